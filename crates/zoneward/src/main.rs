//! Entry point and exit codes of the command line.

#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
mod static_names;

use std::process::ExitCode;

use cluster::failure;
use mimalloc::MiMalloc;
use zoneward::{cli, commands};

/// Requests make hundreds of small allocations; with the allocator of glibc they took a fifth of the time of the API.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Failure, or a check that found problems; clap exits with 2 on usage errors.
const FAILED: u8 = 1;

fn main() -> ExitCode {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    static_names::use_files_and_dns();
    let cli = cli::parse();
    match commands::run(cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        // A reader that stops early, such as `head`, is not a failure.
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("zoneward: {}", failure::text(&error));
            ExitCode::from(FAILED)
        }
    }
}

//! Service traffic that stays close: the command line's way in and the exit codes.

use std::process::ExitCode;

use clap::Parser;
use cluster::failure;
use mimalloc::MiMalloc;
use zoneward::{cli, commands};

/// A request is hundreds of small allocations; glibc's allocator took a fifth of the API's time.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The answer is "no", or something failed; wrong use is 2, as clap has it.
const FAILED: u8 = 1;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match commands::run(cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        // A reader that stops early, as `head` does, is no failure of ours.
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("zoneward: {}", failure::text(&error));
            ExitCode::from(FAILED)
        }
    }
}

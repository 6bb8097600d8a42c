//! Service traffic that stays close: the command line's way in and the exit codes.

use std::process::ExitCode;

use clap::Parser;
use zoneward::{cli, commands, output};

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
            eprintln!("zoneward: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

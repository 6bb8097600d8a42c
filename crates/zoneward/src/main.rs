//! The one binary: service traffic that stays close.
//!
//! Commands parse their flags, read the world through [`input`], ask the brain (`plan`) and print through
//! [`output`]. Nothing is decided here.

mod cli;
mod commands;
mod input;
mod node;
mod output;
mod routes;

use std::process::ExitCode;

use clap::Parser;

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

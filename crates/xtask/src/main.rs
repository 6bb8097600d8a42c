//! The developers' commands of Zoneward: `cargo xtask demo | test | docs | tools | bench | soak`.
//! People and CI use the same ones. Only std, so that this builds in seconds on a bare toolchain and can
//! then install whatever the rest needs.

mod args;
mod bench;
mod callgrind;
mod demo;
mod deny;
mod docs;
mod help;
mod report;
mod shell;
mod soak;
mod suite;
mod tools;

use std::process::ExitCode;

use args::Command;

/// Why a command ended without success. The text is for the person at the terminal: what, and what to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Wrong use: exit code 2.
    Usage(String),
    /// Something failed: exit code 1.
    Failed(String),
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match args::parse(&words).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Usage(why)) => {
            report::complain(&why);
            ExitCode::from(2)
        }
        Err(Stop::Failed(why)) => {
            report::complain(&format!("xtask: {why}"));
            ExitCode::from(1)
        }
    }
}

fn run(command: Command) -> Result<(), Stop> {
    match command {
        Command::Help(topic) => {
            report::say(&help::text(topic));
            Ok(())
        }
        Command::Test(options) => suite::run(&options),
        Command::Tools { install } => tools::run(install),
        Command::Docs { install, serve } => docs::run(install, serve),
        Command::Demo(options) => demo::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Soak(options) => soak::run(&options),
    }
}

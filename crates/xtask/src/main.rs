//! Developer commands of Zoneward: `cargo xtask demo | test | docs | manifests | tools | bench | soak | dist`. CI
//! uses them as well. Only std, so that this builds in seconds on a bare toolchain and can install the tools of the rest.

mod args;
mod bench;
mod callgrind;
mod demo;
mod deny;
mod dist;
mod docs;
mod fuzz;
mod ipvs;
mod manifests;
mod report;
mod shell;
mod soak;
mod suite;
mod tools;
mod vm;

use std::process::ExitCode;

use args::Command;

/// Why a command failed, with advice.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Usage error: exit code 2.
    Usage(String),
    /// Failure: exit code 1.
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
        Command::Help => {
            report::say(&args::help());
            Ok(())
        }
        Command::Test(options) => suite::run(&options),
        Command::Tools { install } => tools::run(install),
        Command::Docs { install, serve } => docs::run(install, serve),
        Command::Manifests { install, check } => manifests::run(install, check),
        Command::Demo { binary } => demo::run(binary.as_deref()),
        Command::Dist { words } => dist::run(&words),
        Command::Bench(options) => bench::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::SoakFleet { seed, minutes } => soak::fleet(seed.as_deref(), minutes),
        Command::SoakDist { profile } => dist::soak(&profile),
    }
}

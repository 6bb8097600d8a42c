//! `zoneward completion`: completion scripts, generated from the command line itself.

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::cli::Cli;
use crate::output::print_text;

/// Prints the script for a shell.
pub fn run(shell: Shell) -> Result<bool> {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "zoneward", &mut script);
    print_text(&String::from_utf8_lossy(&script))?;
    Ok(true)
}

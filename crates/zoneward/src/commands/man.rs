//! `zoneward man`: manual pages, generated from the command line itself.

use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_mangen::Man;

use crate::cli::Cli;
use output::print_text;

/// Prints the page of `zoneward`, or writes the pages of all commands into a folder.
pub(super) fn run(dir: Option<&Path>) -> Result<bool> {
    let command = Cli::command();
    let Some(dir) = dir else {
        let mut page = Vec::new();
        Man::new(command).render(&mut page).context("writing the manual page")?;
        print_text(&String::from_utf8_lossy(&page))?;
        return Ok(true);
    };
    std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    clap_mangen::generate_to(command, dir)
        .with_context(|| format!("writing pages into {}", dir.display()))?;
    Ok(true)
}

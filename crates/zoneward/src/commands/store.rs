//! `zoneward store`: backup, restore and check of the embedded API's data, while the API does not run.

use std::path::{Path, PathBuf};

use ::store::engine::{Engine, Options, Report};
use anyhow::Result;
use serde_json::json;

use crate::cli::{Format, StoreCheck, StoreCommand, StoreFile};
use crate::output::{print_text, print_value};

/// Runs the command.
pub fn run(command: &StoreCommand) -> Result<bool> {
    match command {
        StoreCommand::Backup(args) => backup(args),
        StoreCommand::Restore(args) => restore(args),
        StoreCommand::Check(args) => check(args),
    }
}

/// Where `zoneward up` keeps its objects in the data folder.
fn folder(data_dir: &Path) -> PathBuf {
    data_dir.join("store")
}

fn backup(args: &StoreFile) -> Result<bool> {
    // Opening would make a new store where there is none.
    let folder = folder(&args.data_dir);
    Engine::require(&folder)?;
    let revision = Engine::open(&folder, Options::default())?.backup(&args.file)?;
    print_text(&format!("{} holds everything up to revision {revision}.\n", args.file.display()))?;
    Ok(true)
}

fn restore(args: &StoreFile) -> Result<bool> {
    let revision = Engine::restore(&args.file, &folder(&args.data_dir))?;
    print_text(&format!(
        "{} holds what the backup held; revisions go on at {revision}.\n",
        args.data_dir.display()
    ))?;
    Ok(true)
}

fn check(args: &StoreCheck) -> Result<bool> {
    let report = Engine::check(&folder(&args.data_dir))?;
    match args.output.format {
        Format::Table => print_text(&format!("{report}\n"))?,
        format => print_value(&value(&report), format)?,
    }
    Ok(report.is_sound())
}

fn value(report: &Report) -> serde_json::Value {
    json!({
        "sound": report.is_sound(),
        "revision": report.revision.0,
        "compacted": report.compacted.0,
        "objects": report.objects,
        "versions": report.versions,
        "problems": report.problems,
        "problemCount": report.problem_count,
    })
}

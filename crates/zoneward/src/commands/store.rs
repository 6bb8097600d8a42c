//! `zoneward store`: backup, restore and check of the store. Only backups work while the API runs.

mod live;

use std::path::{Path, PathBuf};

use ::store::bootstrap;
use ::store::engine::{CheckReport, Engine, EngineOptions};
use anyhow::{Result, bail};
use model::Notice;
use serde_json::json;

use crate::cli::{Format, StoreCheck, StoreCommand, StoreFile};
use output::{print_text, print_value};

pub fn run(command: &StoreCommand) -> Result<bool> {
    match command {
        StoreCommand::Backup(args) => backup(args),
        StoreCommand::Restore(args) => restore(args),
        StoreCommand::Check(args) => check(args),
    }
}

/// Path of the store in the data directory.
fn folder(data_dir: &Path) -> PathBuf {
    data_dir.join("store")
}

fn backup(args: &StoreFile) -> Result<bool> {
    let said = |revision: &dyn std::fmt::Display| {
        print_text(&format!("{}: backup of revision {revision}.\n", args.file.display()))
    };
    if let Some(revision) = live::backup(&args.data_dir, &args.file)? {
        said(&revision)?;
        return Ok(true);
    }
    // Opening would make a new store where there is none.
    let folder = folder(&args.data_dir);
    Engine::require(&folder)?;
    let revision = Engine::open(&folder, EngineOptions::default())?.backup(&args.file)?;
    said(&revision)?;
    Ok(true)
}

fn restore(args: &StoreFile) -> Result<bool> {
    let revision = Engine::restore(&args.file, &folder(&args.data_dir))?;
    print_text(&format!(
        "{}: restored from the backup; revisions continue at {revision}.\n",
        args.data_dir.display()
    ))?;
    Ok(true)
}

fn check(args: &StoreCheck) -> Result<bool> {
    let report = match (&args.backup, &args.data_dir) {
        (Some(backup), _) => Engine::check_backup(backup)?,
        (None, Some(data_dir)) => Engine::check(&folder(data_dir))?,
        (None, None) => bail!("--data-dir or --backup is required"),
    };
    // What cannot be read says nothing.
    let notices = match (&args.backup, &args.data_dir) {
        _ if !report.is_sound() => Vec::new(),
        (Some(backup), _) => Engine::peek_backup(backup, bootstrap::check)?,
        (None, Some(data_dir)) => Engine::peek(&folder(data_dir), bootstrap::check)?,
        (None, None) => Vec::new(),
    };
    match args.output.format {
        Format::Table => print_text(&text(&report, &notices))?,
        format => print_value(&value(&report, &notices), format)?,
    }
    Ok(report.is_sound() && notices.is_empty())
}

fn text(report: &CheckReport, notices: &[Notice]) -> String {
    let mut text = format!("{report}\n");
    for notice in notices {
        text += &format!("repairable: {notice}\n");
    }
    if !notices.is_empty() {
        text += "`zoneward up` can start with these problems; repair them while it runs\n";
    }
    text
}

fn value(report: &CheckReport, notices: &[Notice]) -> serde_json::Value {
    let damage = report.problems.iter().cloned();
    let problems: Vec<String> = damage.chain(notices.iter().map(Notice::to_string)).collect();
    json!({
        "sound": report.is_sound() && notices.is_empty(),
        "revision": report.revision.0,
        "compacted": report.compacted.0,
        "objects": report.objects,
        "versions": report.versions,
        "problems": problems,
        "problemCount": report.problem_count + notices.len() as u64,
    })
}

//! `zoneward store`: backup, restore, check and migration of the store. Only backups work while the API runs.

mod live;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ::store::bootstrap;
use ::store::engine::{CheckReport, Engine, FORMAT, Migration};
use anyhow::{Result, bail};
use model::Notice;
use serde_json::json;

use crate::cli::{Format, StoreCheck, StoreCommand, StoreFile, StoreMigrate, StoreRestore};
use output::{print_text, print_value};

pub(super) fn run(command: &StoreCommand) -> Result<bool> {
    match command {
        StoreCommand::Backup(args) => backup(args),
        StoreCommand::Restore(args) => restore(args),
        StoreCommand::Check(args) => check(args),
        StoreCommand::Migrate(args) => migrate(args),
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
    said(&Engine::backup_of(&folder(&args.data_dir), &args.file)?)?;
    Ok(true)
}

fn restore(args: &StoreRestore) -> Result<bool> {
    let StoreFile { data_dir, file } = &args.file;
    let revision = Engine::restore(file, &folder(data_dir), &args.encryption.keys()?)?;
    print_text(&format!(
        "{}: restored from the backup; revisions continue at {revision}.\n",
        data_dir.display()
    ))?;
    Ok(true)
}

fn check(args: &StoreCheck) -> Result<bool> {
    let keys = args.encryption.keys()?;
    let report = match (&args.backup, &args.data_dir) {
        (Some(backup), _) => Engine::check_backup(backup, &keys)?,
        (None, Some(data_dir)) => Engine::check(&folder(data_dir), &keys)?,
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
        Format::Table => print_text(&text(&report, &notices, !keys.is_empty()))?,
        format => print_value(&value(&report, &notices), format)?,
    }
    Ok(report.is_sound() && notices.is_empty())
}

fn migrate(args: &StoreMigrate) -> Result<bool> {
    let folder = folder(&args.data_dir);
    Engine::require(&folder)?;
    let migration = if args.dry_run { Engine::plan_migration(&folder)? } else { Engine::migrate(&folder)? };
    match args.output.format {
        Format::Table => print_text(&migration_text(&folder, migration.as_ref(), args.dry_run))?,
        format => print_value(&migration_value(migration.as_ref(), args.dry_run), format)?,
    }
    Ok(true)
}

fn migration_text(folder: &Path, migration: Option<&Migration>, dry_run: bool) -> String {
    let place = folder.display();
    let Some(migration) = migration else {
        return format!("{place} is in format {FORMAT}: nothing to migrate.\n");
    };
    let Migration { from, to, revision, backup, changes } = migration;
    let backup = backup.display();
    let mut text = match dry_run {
        true => format!(
            "{place} would be migrated from format {from} to {to}.\n\
             A backup of revision {revision} in format {from} would be written first: {backup}\n"
        ),
        false => format!(
            "{place} was migrated from format {from} to {to}.\n\
             Backup of revision {revision} in format {from}: {backup}\n"
        ),
    };
    for change in changes {
        text += &format!("change: {change}\n");
    }
    text
}

fn migration_value(migration: Option<&Migration>, dry_run: bool) -> serde_json::Value {
    let from = migration.map_or(FORMAT, |migration| migration.from);
    json!({
        "from": from,
        "to": FORMAT,
        "dryRun": dry_run,
        "revision": migration.map(|migration| migration.revision.0),
        "backup": migration.map(|migration| migration.backup.display().to_string()),
        "changes": migration.map(|migration| migration.changes.clone()).unwrap_or_default(),
    })
}

fn text(report: &CheckReport, notices: &[Notice], has_keys: bool) -> String {
    let mut text = format!("{report}\n");
    for (key, count) in &report.encrypted {
        let advice = if has_keys { "" } else { ", not decrypted without --encryption-key-file" };
        text += &format!("{count} Secrets are encrypted with key {key}{advice}\n");
    }
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
    let encrypted: BTreeMap<String, u64> =
        report.encrypted.iter().map(|(key, count)| (key.to_string(), *count)).collect();
    let problems: Vec<String> = damage.chain(notices.iter().map(Notice::to_string)).collect();
    json!({
        "sound": report.is_sound() && notices.is_empty(),
        "format": report.format,
        "revision": report.revision.0,
        "compacted": report.compacted.0,
        "objects": report.objects,
        "versions": report.versions,
        "encryptedSecrets": encrypted,
        "problems": problems,
        "problemCount": report.problem_count + notices.len() as u64,
    })
}

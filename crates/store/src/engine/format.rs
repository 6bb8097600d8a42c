//! The format of a store on disk: its number, the file that names it, and the migration from older formats.
//!
//! ```text
//!  migrate:  verify ----> backup in the old format ----> steps and the new number, one transaction ----> store.format
//! ```
//!
//! A change gets a new number if an older program could not read its result, or would misread it. The number is in the
//! table `meta`, which decides, and in a file that is read before the tables are opened: a newer program may have changed
//! those so that they look damaged. A crash before the transaction leaves the old format, one after it the new one.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use redb::{Database, ReadableDatabase, WriteTransaction};
use serde::{Deserialize, Serialize};

use super::EngineOptions;
use super::backup;
use super::encryption::EncryptionKeys;
use super::error::{OpenError, StorageError};
use super::files::{DATA_FILE, StoreFolder, free_bytes, holds_store, sync_folder};
use super::key::Revision;
use super::storage::Storage;
use super::tables::{ReadTables, WriteTables};

/// The format that this program writes.
pub const FORMAT: u64 = 2;
/// [`FORMAT`] with encrypted rows: only a store with encryption has it, and programs without encryption refuse it.
pub const ENCRYPTED_FORMAT: u64 = 3;
/// The oldest format that this program migrates.
pub(super) const OLDEST: u64 = 1;
/// Names the format and the program that opened the store last.
pub const FORMAT_FILE: &str = "store.format";

/// Size of a new file of tables with few objects.
const NEW_FILE_BYTES: u64 = 2 << 20;

/// One step of a migration. A step that changes a table keeps the reader of the old one for the backup.
pub(super) struct MigrationStep {
    /// The format after the step.
    pub to: u64,
    /// What changes, for the operator.
    pub change: &'static str,
    pub run: fn(&WriteTransaction) -> Result<(), StorageError>,
}

/// Every step, in order; the first one starts at [`OLDEST`].
const STEPS: [MigrationStep; 1] = [MigrationStep {
    to: 2,
    change: "the file store.format names the format and the program",
    // The tables are as they were. The file follows the transaction, as at every start.
    run: |_| Ok(()),
}];

fn steps(from: u64) -> &'static [MigrationStep] {
    const { assert!(STEPS[STEPS.len() - 1].to == FORMAT, "the last step ends at the current format") };
    &STEPS[STEPS.partition_point(|step| step.to <= from)..]
}

/// What a migration did, or would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    pub from: u64,
    pub to: u64,
    /// The revision of the backup.
    pub revision: Revision,
    /// The backup in the old format.
    pub backup: PathBuf,
    /// What changes, one sentence per step.
    pub changes: Vec<&'static str>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FormatFile {
    format: u64,
    #[serde(default)]
    program: String,
}

/// Fails if the format file names a newer format. Without the file, or if it is malformed, the tables decide.
pub(super) fn refuse_newer(folder: &Path) -> Result<(), OpenError> {
    match read_file(folder) {
        Some(FormatFile { format, program }) if format > ENCRYPTED_FORMAT => {
            let place = folder.display().to_string();
            let program = (!program.is_empty()).then_some(program);
            Err(OpenError::Format { place, found: format, program, known: ENCRYPTED_FORMAT })
        }
        _ => Ok(()),
    }
}

fn read_file(folder: &Path) -> Option<FormatFile> {
    serde_json::from_slice(&fs::read(folder.join(FORMAT_FILE)).ok()?).ok()
}

/// Names the format and this program's version in the format file, if it says otherwise. The caller has locked the store.
/// On a full disk a file with the right format and another version stays.
pub(super) fn write_file(folder: &Path, format: u64) -> io::Result<()> {
    let written = try_write_file(folder, format);
    let is_right = || read_file(folder).is_some_and(|file| file.format == format);
    match written {
        Err(error) if error.kind() == io::ErrorKind::StorageFull && is_right() => Ok(()),
        written => written,
    }
}

fn try_write_file(folder: &Path, format: u64) -> io::Result<()> {
    let file = FormatFile { format, program: env!("CARGO_PKG_VERSION").to_owned() };
    if read_file(folder).as_ref() == Some(&file) {
        return sync_folder(folder);
    }
    let partial = folder.join(format!("{FORMAT_FILE}.partial"));
    let mut options = OpenOptions::new();
    let mut out = options.write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
    out.write_all(format!("{}\n", serde_json::to_string(&file)?).as_bytes())?;
    out.sync_all()?;
    fs::rename(&partial, folder.join(FORMAT_FILE))?;
    sync_folder(folder)
}

/// Runs the steps on the tables of a new file, which have the format of their source.
pub(super) fn migrate_database(database: &Database) -> Result<(), StorageError> {
    let mut meta = ReadTables::open(&database.begin_read()?)?.meta()?;
    let mut txn = database.begin_write()?;
    txn.set_quick_repair(true);
    for step in steps(meta.format) {
        (step.run)(&txn)?;
        meta.format = step.to;
    }
    WriteTables::open(&txn)?.set_meta(&meta)?;
    Ok(txn.commit()?)
}

pub(super) fn migrate(folder: &Path, dry_run: bool) -> Result<Option<Migration>, OpenError> {
    let place = folder.display().to_string();
    let failed = |error: StorageError| OpenError::at(&place, error);
    if !holds_store(folder).map_err(|error| failed(error.into()))? {
        return Ok(None);
    }
    refuse_newer(folder)?;
    if read_file(folder).is_some_and(|file| file.format >= FORMAT) {
        return Ok(None);
    }
    let files = StoreFolder::new(folder).map_err(|error| failed(error.into()))?;
    let storage = Storage::open_since(OLDEST, Box::new(files), EngineOptions::default())?;
    let migrated = migrate_storage(folder, &storage, dry_run);
    let format = storage.meta().map_or(FORMAT, |meta| meta.format);
    storage.close();
    let migrated = migrated?;
    if !dry_run {
        write_file(folder, format).map_err(|error| failed(error.into()))?;
    }
    Ok(migrated)
}

fn migrate_storage(folder: &Path, storage: &Storage, dry_run: bool) -> Result<Option<Migration>, OpenError> {
    let failed = |error: StorageError| OpenError::at(&folder.display().to_string(), error);
    let meta = storage.meta().map_err(failed)?;
    let (from, revision) = (meta.format, Revision(meta.revision));
    let steps = steps(from);
    if steps.is_empty() {
        return Ok(None);
    }
    let backup = folder.join(format!("format-{from}-revision-{revision}.backup"));
    if !dry_run {
        take_backup(folder, storage, &backup, from)?;
        storage.migrate(steps).map_err(failed)?;
    }
    let changes = steps.iter().map(|step| step.change).collect();
    Ok(Some(Migration { from, to: FORMAT, revision, backup, changes }))
}

/// A migration that was interrupted after its backup finds it complete, because it gets its name at the end.
fn take_backup(folder: &Path, storage: &Storage, file: &Path, format: u64) -> Result<(), OpenError> {
    let failed = |error: io::Error| OpenError::at(&folder.display().to_string(), error.into());
    if fs::exists(file).map_err(failed)? {
        let report = backup::check(file, &EncryptionKeys::default())?;
        if report.is_sound() && report.format == format {
            return Ok(());
        }
        return Err(OpenError::Exists { place: file.display().to_string() });
    }
    let needed = fs::metadata(folder.join(DATA_FILE)).map_err(failed)?.len() + NEW_FILE_BYTES;
    let free = free_bytes(folder).map_err(failed)?;
    if free < needed {
        let place = folder.display().to_string();
        let cause =
            format!("the backup before the migration takes up to {needed} bytes, {free} bytes are free");
        return Err(OpenError::Full { place, cause });
    }
    backup::write(storage, file).map(drop)
}

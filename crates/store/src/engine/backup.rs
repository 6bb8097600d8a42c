//! Backup and restore. A backup is one file with the newest state and no history; it gets its name once it is complete,
//! and never overwrites a file.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable};

use super::EngineOptions;
use super::check::CheckReport;
use super::encryption::{EncryptionKeyId, EncryptionKeys};
use super::error::{OpenError, StorageError, StorageErrorKind, StoreReadError};
use super::files::{DATA_FILE, GuardedFile, StoreFiles, StoreFolder, SyncState, holds_store, sync_folder};
use super::format::{self, ENCRYPTED_FORMAT, OLDEST};
use super::journal::{Journal, RecordBuffer};
use super::key::Revision;
use super::list::Lister;
use super::row::Row;
use super::storage::{Storage, commit_meta, database_meta, newest_error, no_panic};
use super::tables::{Meta, ReadTables, WriteTables, key_of};

/// Added to the revision at a restore. Clients may know revisions from after the backup; with fewer writes than this since
/// then, no revision is used twice.
const JUMP: u64 = 1_000_000_000;

pub(super) fn write(storage: &Storage, file: &Path) -> Result<Revision, OpenError> {
    if at(file, || Ok(file.try_exists()?))? {
        return Err(OpenError::BackupExists { place: file.display().to_string() });
    }
    at(file, || {
        let write_to = |target: &Database| {
            storage.read_newest(|tables| {
                let meta = tables.meta()?;
                copy_newest(tables, target, meta, None)?;
                Ok(Revision(meta.revision))
            })
        };
        new_file(file, write_to)
    })
}

/// Backs up a store that is not open, in the format that it has.
pub(super) fn write_from(folder: &Path, file: &Path) -> Result<Revision, OpenError> {
    super::check::require(folder)?;
    format::refuse_newer(folder)?;
    let files = at(folder, || Ok(StoreFolder::new(folder)?))?;
    let storage = Storage::open_since(OLDEST, Box::new(files), EngineOptions::default())?;
    let revision = write(&storage, file);
    storage.close();
    revision
}

/// A backup in an open, unlinked file: its space is freed when it is closed.
pub struct BackupSnapshot {
    /// The revision of the backup.
    pub revision: Revision,
    /// The file, at its start.
    pub file: File,
    /// The size in bytes.
    pub length: u64,
}

/// The file in the store's folder before it is unlinked.
const SNAPSHOT_FILE: &str = "store.snapshot";

/// Writes a snapshot into the store's folder, which is private and on a disk with space.
pub(super) fn snapshot(storage: &Storage, folder: &Path) -> Result<BackupSnapshot, OpenError> {
    let path = folder.join(SNAPSHOT_FILE);
    // Left behind by a killed process.
    at(&path, || match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    })?;
    let revision = write(storage, &path)?;
    at(&path, || {
        let file = File::open(&path)?;
        fs::remove_file(&path)?;
        let length = file.metadata()?.len();
        Ok(BackupSnapshot { revision, file, length })
    })
}

/// Verifies a backup; without keys, encrypted objects stay closed.
pub(super) fn check(file: &Path, keys: &EncryptionKeys) -> Result<CheckReport, OpenError> {
    read(file, |tables| tables.with_keys(keys).check())
}

/// Lists objects of a backup.
pub(super) fn peek<T>(
    file: &Path,
    body: impl FnOnce(&Lister<'_>) -> Result<T, StoreReadError>,
) -> Result<T, OpenError> {
    read(file, |tables| body(&|query| tables.list(query)).map_err(newest_error))
}

/// Reads a backup of a format that this program knows.
fn read<T>(file: &Path, body: impl FnOnce(ReadTables) -> Result<T, StorageError>) -> Result<T, OpenError> {
    let mut newer = None;
    let result = at(file, || {
        no_panic(|| {
            let source = Database::builder().open_read_only(file)?;
            let tables = ReadTables::open(&source.begin_read()?)?;
            newer = Some(tables.meta()?.format).filter(|format| *format > ENCRYPTED_FORMAT);
            if newer.is_some() {
                return Ok(None);
            }
            body(tables).map(Some)
        })
    });
    let result = result.map_err(|error| match error {
        OpenError::Damaged { place, cause } => OpenError::DamagedBackup { place, cause },
        other => other,
    })?;
    let place = file.display().to_string();
    let found = newer.unwrap_or_default();
    result.ok_or(OpenError::Format { place, found, program: None, known: ENCRYPTED_FORMAT })
}

pub(super) fn restore(file: &Path, folder: &Path, keys: &EncryptionKeys) -> Result<Revision, OpenError> {
    if at(folder, || Ok(holds_store(folder)?))? {
        return Err(OpenError::Exists { place: folder.display().to_string() });
    }
    let files = at(folder, || Ok(StoreFolder::new(folder)?))?;
    let restored = read(file, |tables| restore_data(&tables.with_keys(keys), &folder.join(DATA_FILE), keys))?;
    // The journal comes last: opening data without a journal fails, a journal without data would be an empty store.
    at(folder, || {
        let options = EngineOptions::default();
        let journal =
            GuardedFile::new(files.journal()?, Arc::new(SyncState::default()), options.on_sync_failure);
        Journal::open(journal, options.journal_bytes, 0, 0)?;
        Ok(format::write_file(folder, keys.format())?)
    })?;
    Ok(restored)
}

/// The store is encrypted with the first key, whatever the backup is encrypted with.
fn restore_data(tables: &ReadTables, data: &Path, keys: &EncryptionKeys) -> Result<Revision, StorageError> {
    let mut meta = tables.meta()?;
    if meta.encryption_key != 0 && keys.is_empty() {
        let key = EncryptionKeyId(meta.encryption_key);
        return Err(StorageError::new(
            StorageErrorKind::Key,
            format!("the backup is encrypted with key {key}"),
        ));
    }
    if let Some(problem) = tables.check()?.summary() {
        return Err(StorageError::damaged(problem));
    }
    meta.revision = meta.revision.saturating_add(JUMP);
    new_file(data, |target| {
        copy_newest(tables, target, meta, Some(keys))?;
        format::migrate_database(target)?;
        let (format, encryption_key) = (keys.format(), keys.sealing_number());
        commit_meta(target, &Meta { format, encryption_key, ..database_meta(target)? })?;
        Ok(Revision(meta.revision))
    })
}

/// Copies the live objects; the newest revision becomes the oldest readable one. With keys, the copy is encrypted with
/// them; otherwise as the source is.
fn copy_newest(
    from: &ReadTables,
    to: &Database,
    meta: Meta,
    keys: Option<&EncryptionKeys>,
) -> Result<(), StorageError> {
    let mut txn = to.begin_write()?;
    txn.set_quick_repair(true);
    let mut tables = WriteTables::open(&txn)?.with_keys(keys.unwrap_or(&EncryptionKeys::default()));
    let mut buffer = RecordBuffer::new();
    for entry in from.index.iter()? {
        let (key, head) = entry?;
        let (revision, alive) = head.value();
        if !alive {
            continue;
        }
        let key = key_of(key.value())?;
        let found = from.version(revision)?.filter(|row| row.key == key && !row.deleted);
        let missing = || StorageError::damaged(format!("{key} is missing at revision {revision}"));
        let mut row = Row { previous: 0, ..found.ok_or_else(missing)? };
        if let Some(keys) = keys {
            row = keys.open(revision, row)?;
        }
        tables.insert(revision, &row, &mut buffer)?;
        buffer.clear();
    }
    tables.set_meta(&Meta { compacted: meta.revision, log_bytes: 0, epoch: 0, journal: 0, ..meta })?;
    drop(tables);
    Ok(txn.commit()?)
}

/// Creates a database under a temporary name, and links it to its path once it is complete and durable.
fn new_file<T>(
    path: &Path,
    fill: impl FnOnce(&Database) -> Result<T, StorageError>,
) -> Result<T, StorageError> {
    let (partial, file) = partial_file(path)?;
    let filled = Database::builder()
        .create_file(file)
        .map_err(StorageError::from)
        .and_then(|database| fill(&database));
    let kept = filled.and_then(|filled| {
        // Unlike a rename, a link fails if the path exists.
        fs::hard_link(&partial, path)?;
        Ok(filled)
    });
    let removed = fs::remove_file(&partial);
    let kept = kept?;
    removed?;
    sync_folder(folder_of(path))?;
    Ok(kept)
}

/// Replaces a database by a new one once that is complete and durable. The new one is locked before it gets its name.
pub(super) fn replace_file<T>(
    path: &Path,
    fill: impl FnOnce(&Database) -> Result<T, StorageError>,
) -> Result<T, StorageError> {
    let (partial, file) = partial_file(path)?;
    let database = Database::builder().create_file(file)?;
    let filled = fill(&database).and_then(|filled| {
        fs::rename(&partial, path)?;
        sync_folder(folder_of(path))?;
        Ok(filled)
    });
    if filled.is_err() {
        // After a rename there is no such file.
        let _ = fs::remove_file(&partial);
    }
    filled
}

/// A new file beside a path, instead of one that a killed process left.
fn partial_file(path: &Path) -> Result<(PathBuf, File), StorageError> {
    let partial = partial_name(path);
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut options = OpenOptions::new();
    // It contains Secrets.
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(&partial)?;
    Ok((partial, file))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn partial_name(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".partial");
    PathBuf::from(name)
}

/// Adds the path to the errors of a body.
fn at<T>(path: &Path, body: impl FnOnce() -> Result<T, StorageError>) -> Result<T, OpenError> {
    let place = path.display().to_string();
    body().map_err(|error| OpenError::at(&place, error))
}

//! Backup and restore. A backup is one file with the newest state and no history; it is complete before it gets its
//! name, and nothing is ever overwritten.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable};

use super::Options;
use super::check::Report;
use super::disk::{Disk, newest, no_panic};
use super::failure::{Failure, OpenError, ReadError};
use super::journal::{Journal, Sheet};
use super::key::Revision;
use super::list::Lister;
use super::medium::{DATA_FILE, Folder, Guarded, Medium, Tally, holds_store, sync_folder};
use super::row::Row;
use super::tables::{Meta, ReadTables, WriteTables, key_of};

/// How far revisions jump at a restore. Clients remember revisions from after the backup; below this many writes
/// since then, none of those is ever given out a second time.
const JUMP: u64 = 1_000_000_000;

pub(super) fn write(disk: &Disk, file: &Path) -> Result<Revision, OpenError> {
    at(file, || {
        let write_to = |target: &Database| {
            disk.look(|tables| {
                let meta = tables.meta()?;
                copy_newest(tables, target, meta)?;
                Ok(Revision(meta.revision))
            })
        };
        new_file(file, write_to)
    })
}

/// A backup as an open file that has no name any more: it is gone when the last reader is.
pub struct Snapshot {
    /// Up to where it holds everything.
    pub revision: Revision,
    /// The file, at its beginning.
    pub file: File,
    /// How many bytes it has.
    pub length: u64,
}

/// The file in the store's folder while it has a name.
const SNAPSHOT_FILE: &str = "store.snapshot";

/// Makes a snapshot in the store's folder, since that is on a disk that has room and is private.
pub(super) fn snapshot(disk: &Disk, folder: &Path) -> Result<Snapshot, OpenError> {
    let path = folder.join(SNAPSHOT_FILE);
    // One that a killed process left behind.
    at(&path, || match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    })?;
    let revision = write(disk, &path)?;
    at(&path, || {
        let file = File::open(&path)?;
        fs::remove_file(&path)?;
        let length = file.metadata()?.len();
        Ok(Snapshot { revision, file, length })
    })
}

/// Reads all of a backup and says what is wrong with it.
pub(super) fn check(file: &Path) -> Result<Report, OpenError> {
    at(file, || {
        no_panic(|| {
            let source = Database::builder().open_read_only(file)?;
            ReadTables::open(&source.begin_read()?)?.check()
        })
    })
}

/// Lists objects of a backup.
pub(super) fn peek<T>(
    file: &Path,
    body: impl FnOnce(&Lister<'_>) -> Result<T, ReadError>,
) -> Result<T, OpenError> {
    at(file, || {
        no_panic(|| {
            let source = Database::builder().open_read_only(file)?;
            let tables = ReadTables::open(&source.begin_read()?)?;
            body(&|query| tables.list(query)).map_err(newest)
        })
    })
}

pub(super) fn restore(file: &Path, folder: &Path) -> Result<Revision, OpenError> {
    if at(folder, || Ok(holds_store(folder)?))? {
        return Err(OpenError::Exists { place: folder.display().to_string() });
    }
    let medium = at(folder, || Ok(Folder::new(folder)?))?;
    let restored = at(file, || no_panic(|| restore_data(file, &folder.join(DATA_FILE))))?;
    // The journal comes last: data without one is refused, a journal without data would be an empty store.
    at(folder, || {
        let options = Options::default();
        let journal = Guarded::new(medium.journal()?, Arc::new(Tally::default()), options.on_sync_failure);
        Journal::open(journal, options.journal_bytes, 0)?;
        Ok(sync_folder(folder)?)
    })?;
    Ok(restored)
}

fn restore_data(file: &Path, data: &Path) -> Result<Revision, Failure> {
    let source = Database::builder().open_read_only(file)?;
    let tables = ReadTables::open(&source.begin_read()?)?;
    if let Some(problem) = tables.check()?.summary() {
        return Err(Failure::damaged(problem));
    }
    let mut meta = tables.meta()?;
    meta.revision = meta.revision.saturating_add(JUMP);
    new_file(data, |target| {
        copy_newest(&tables, target, meta)?;
        Ok(Revision(meta.revision))
    })
}

/// Copies what is alive; the newest revision is then the oldest that can be read.
fn copy_newest(from: &ReadTables, to: &Database, meta: Meta) -> Result<(), Failure> {
    let mut txn = to.begin_write()?;
    txn.set_quick_repair(true);
    let mut tables = WriteTables::open(&txn)?;
    let mut sheet = Sheet::new();
    for entry in from.index.iter()? {
        let (key, head) = entry?;
        let (revision, alive) = head.value();
        if !alive {
            continue;
        }
        let key = key_of(key.value())?;
        let Some(found) = from.object(&key)? else { continue };
        let row = Row { key, deleted: false, previous: 0, expires: found.expires, json: found.json };
        tables.insert(revision, &row, &mut sheet)?;
        sheet.clear();
    }
    tables.set_meta(&Meta { compacted: meta.revision, log_bytes: 0, epoch: 0, ..meta })?;
    drop(tables);
    Ok(txn.commit()?)
}

/// Makes a database under another name, which becomes its own once it is complete and durable.
fn new_file<T>(path: &Path, fill: impl FnOnce(&Database) -> Result<T, Failure>) -> Result<T, Failure> {
    let partial = partial_name(path);
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut options = OpenOptions::new();
    // Secrets are inside.
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(&partial)?;
    let filled =
        Database::builder().create_file(file).map_err(Failure::from).and_then(|database| fill(&database));
    let kept = filled.and_then(|filled| {
        // Unlike a rename, a link fails where something has the name already.
        fs::hard_link(&partial, path)?;
        Ok(filled)
    });
    let removed = fs::remove_file(&partial);
    let kept = kept?;
    removed?;
    sync_folder(path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
    Ok(kept)
}

fn partial_name(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".partial");
    PathBuf::from(name)
}

/// Names the place in the errors of a body.
fn at<T>(path: &Path, body: impl FnOnce() -> Result<T, Failure>) -> Result<T, OpenError> {
    let place = path.display().to_string();
    body().map_err(|failure| OpenError::at(&place, failure))
}

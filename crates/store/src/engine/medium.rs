//! What the bytes lie on: a folder with two files, or something that a test puts in its place.
//! Each file is watched over by a guard, which counts syncs and ends the process when one fails.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

/// The file of tables in the store's folder.
pub const DATA_FILE: &str = "store.redb";
/// The journal beside it. Both belong together: neither is a store without the other.
pub const JOURNAL_FILE: &str = "store.journal";

/// Where a store keeps its bytes. The engine opens both parts again after an error that is not a failed sync.
pub trait Medium: Send + Sync + 'static {
    /// The tables; made if missing.
    fn data(&self) -> io::Result<Box<dyn StorageBackend>>;
    /// The journal; made if missing.
    fn journal(&self) -> io::Result<Box<dyn StorageBackend>>;
    /// How to call it in a message.
    fn place(&self) -> String;
}

/// A folder on disk, readable by its owner alone.
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes the folder if it is missing, with the folders above it.
    pub fn new(path: &Path) -> io::Result<Folder> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Ok(Folder { path: path.to_owned() })
    }

    fn file(&self, name: &str) -> io::Result<Box<dyn StorageBackend>> {
        let path = self.path.join(name);
        let is_new = !path.try_exists()?;
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        if is_new {
            sync_folder(&self.path)?;
        }
        Ok(Box::new(FileBackend::new(file).map_err(io::Error::other)?))
    }
}

impl Medium for Folder {
    fn data(&self) -> io::Result<Box<dyn StorageBackend>> {
        self.file(DATA_FILE)
    }

    fn journal(&self) -> io::Result<Box<dyn StorageBackend>> {
        self.file(JOURNAL_FILE)
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}

/// Makes the names in a folder as durable as the files' content.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Whether a folder holds a store, or a part of one.
pub(super) fn holds_store(path: &Path) -> io::Result<bool> {
    Ok(fs::exists(path.join(DATA_FILE))? || fs::exists(path.join(JOURNAL_FILE))?)
}

/// What is called when a sync fails. After a failed sync nobody knows what is on the disk: the system may have
/// thrown the bytes away and call the next sync a success. So the only safe way on is to end and to read again.
pub type OnSyncFailure = Arc<dyn Fn(&io::Error) + Send + Sync>;

/// Says what happened and ends the process, at once and without tidying up.
pub(super) fn end_process() -> OnSyncFailure {
    Arc::new(|error| {
        eprintln!(
            "zoneward: the store's disk failed to make data durable ({error}). Ending, because going on could \
             lose acknowledged writes. Look at the system's log, then start again."
        );
        std::process::abort()
    })
}

/// The part of a [`StorageBackend`] that whatever wraps another one leaves to it: locks, and the end.
macro_rules! lets_inner_lock {
    () => {
        lets_inner_lock! {
            close() -> std::io::Result<()>;
            try_lock_range(start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError>;
            try_lock_shared_range(start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError>;
            lock_range(start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError>;
            lock_shared_range(start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError>;
            unlock_range(start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError>;
            query_lock_range(start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError>;
        }
    };
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> $result {
            self.inner.$name($($argument),*)
        })*
    };
}
pub(super) use lets_inner_lock;

/// Counts and verdicts that the guards of one store share.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub syncs: AtomicU64,
    /// A sync failed: nothing may be trusted until the process starts anew.
    pub dead: AtomicBool,
}

/// A file whose syncs are counted and must not fail.
pub(super) struct Guarded {
    inner: Box<dyn StorageBackend>,
    tally: Arc<Tally>,
    on_sync_failure: OnSyncFailure,
}

impl Guarded {
    pub fn new(inner: Box<dyn StorageBackend>, tally: Arc<Tally>, on_sync_failure: OnSyncFailure) -> Guarded {
        Guarded { inner, tally, on_sync_failure }
    }
}

impl std::fmt::Debug for Guarded {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(out)
    }
}

impl StorageBackend for Guarded {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.tally.syncs.fetch_add(1, Ordering::Relaxed);
        self.inner.sync_data().inspect_err(|error| {
            self.tally.dead.store(true, Ordering::SeqCst);
            (self.on_sync_failure)(error);
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)
    }

    lets_inner_lock!();
}

//! The two files of a store: in a folder, or in tests on a faulty disk.
//! Each file is wrapped to count syncs and to end the process when one fails.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;
use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

/// The file of tables in the store's folder.
pub const DATA_FILE: &str = "store.redb";
/// The journal beside it. Neither file is a store without the other.
pub const JOURNAL_FILE: &str = "store.journal";

/// Bytes that are reserved at once, so that a part is kept where there is no space for all.
const RESERVE_STEP: u64 = 1 << 20;

/// The files of a store. The engine reopens both after an error that is not a failed sync.
pub trait StoreFiles: Send + Sync + 'static {
    /// Opens the tables; creates them if missing.
    fn data(&self) -> io::Result<Box<dyn StorageBackend>>;
    /// Opens the journal; creates it if missing.
    fn journal(&self) -> io::Result<Box<dyn StorageBackend>>;
    /// Names the files in messages.
    fn place(&self) -> String;
    /// Takes space on the disk for all bytes of the tables and so many after their end, or as much as there is if it
    /// fails.
    fn reserve(&self, bytes: u64) -> io::Result<()>;
    /// Bytes that are free besides what is reserved.
    fn free(&self) -> io::Result<u64>;
}

/// A folder on disk, readable by its owner alone.
pub(super) struct StoreFolder {
    path: PathBuf,
}

impl StoreFolder {
    /// Creates the folder and its parents if missing.
    pub(super) fn new(path: &Path) -> io::Result<StoreFolder> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Ok(StoreFolder { path: path.to_owned() })
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

impl StoreFiles for StoreFolder {
    fn data(&self) -> io::Result<Box<dyn StorageBackend>> {
        self.file(DATA_FILE)
    }

    fn journal(&self) -> io::Result<Box<dyn StorageBackend>> {
        self.file(JOURNAL_FILE)
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.path.join(DATA_FILE))?;
        let found = file.metadata()?;
        let end = found.len().saturating_add(bytes);
        if found.blocks().saturating_mul(512) >= end {
            return Ok(());
        }
        let allocate = |start: u64, length: u64| {
            fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, start as i64, length as i64)
        };
        let Err(error) = allocate(0, end) else { return Ok(()) };
        if error == Errno::ENOSPC {
            let mut start = 0;
            while start < end && self.free()? >= RESERVE_STEP {
                allocate(start, RESERVE_STEP.min(end - start))?;
                start += RESERVE_STEP;
            }
        }
        Err(error.into())
    }

    fn free(&self) -> io::Result<u64> {
        free_bytes(&self.path)
    }
}

/// Bytes that are free for all users. A file system that has no size never counts as full.
pub(super) fn free_bytes(folder: &Path) -> io::Result<u64> {
    let found = statvfs(folder)?;
    if found.blocks() == 0 {
        return Ok(u64::MAX);
    }
    Ok(found.blocks_available().saturating_mul(found.fragment_size()))
}

/// Makes the names in a folder durable.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Whether a folder holds a store, or part of one.
pub(super) fn holds_store(path: &Path) -> io::Result<bool> {
    Ok(fs::exists(path.join(DATA_FILE))? || fs::exists(path.join(JOURNAL_FILE))?)
}

/// Called when a sync fails. The content of the disk is unknown then: the kernel may have dropped the bytes and report
/// the next sync as successful. The only safe way is to end the process and read the files again.
pub type OnSyncFailure = Arc<dyn Fn(&io::Error) + Send + Sync>;

/// Prints the error and aborts the process.
pub(super) fn end_process() -> OnSyncFailure {
    Arc::new(|error| {
        eprintln!(
            "zoneward: sync of the store's disk failed ({error}); aborting, because continuing could lose \
             acknowledged writes. Check the kernel log, then start again."
        );
        std::process::abort()
    })
}

/// The methods of a [`StorageBackend`] that a wrapper delegates: locks and close.
macro_rules! delegate_locks {
    () => {
        delegate_locks! {
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
pub(super) use delegate_locks;

/// Shared by the files of one store.
#[derive(Debug, Default)]
pub(super) struct SyncState {
    pub syncs: AtomicU64,
    /// A sync failed: nothing may be trusted until the process restarts.
    pub dead: AtomicBool,
}

/// A file whose syncs are counted and must not fail.
pub(super) struct GuardedFile {
    inner: Box<dyn StorageBackend>,
    sync_state: Arc<SyncState>,
    on_sync_failure: OnSyncFailure,
}

impl GuardedFile {
    pub(super) fn new(
        inner: Box<dyn StorageBackend>,
        sync_state: Arc<SyncState>,
        on_sync_failure: OnSyncFailure,
    ) -> GuardedFile {
        GuardedFile { inner, sync_state, on_sync_failure }
    }
}

impl std::fmt::Debug for GuardedFile {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(out)
    }
}

impl StorageBackend for GuardedFile {
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
        self.sync_state.syncs.fetch_add(1, Ordering::Relaxed);
        self.inner.sync_data().inspect_err(|error| {
            self.sync_state.dead.store(true, Ordering::SeqCst);
            (self.on_sync_failure)(error);
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)
    }

    delegate_locks!();
}

//! Durable storage of the embedded API: objects with revisions, transactions, and watches.
//!
//! ```text
//!  write ----> queue ----> writer: one group commit for many callers ----> journal (one sync) ----> tables
//!     \---- no other writer: on the caller's thread -----^           \---> event history ----> watchers
//!  get, list, watch of old revisions ----> tables (a read transaction that ends with the call)
//! ```
//!
//! The engine knows keys, revisions and bytes. It knows nothing of Kubernetes, HTTP or JSON, and needs no async runtime.
//! With [`CommitMode::Inline`] it has no threads either.

mod backup;
mod block_on;
mod check;
mod copy_on_write;
mod encryption;
mod error;
mod event_history;
mod files;
mod format;
pub(crate) mod fuzzing;
mod group_commit;
mod idle_checkpoint;
mod journal;
mod key;
mod list;
mod row;
mod sabotage;
mod storage;
mod tables;
mod txn;
mod watch_cache;
mod watcher;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clock::Clock;

pub use backup::BackupSnapshot;
pub use bytes::Bytes;
pub use check::CheckReport;
pub use encryption::{EncryptionKeyId, EncryptionKeys, KeyFileError, Reencryption};
pub use error::{OpenError, StorageError, StorageErrorKind, StoreReadError, TxnError, WriteError};
pub use files::{DATA_FILE, JOURNAL_FILE, OnSyncFailure, StoreFiles};
pub use format::{ENCRYPTED_FORMAT, FORMAT, FORMAT_FILE, Migration};
pub use group_commit::PendingWrite;
pub use key::{ResourceId, Revision, StoreKey, StoredObject, WatchEvent, WatchEventType};
pub use list::{ListPage, ListQuery, Lister};
pub use redb::StorageBackend;
pub(crate) use sabotage::EngineSabotage;
pub use txn::{Expect, Txn};
pub use watcher::Watcher;

use crate::sync::{
    AtomicUsize, Builder, JoinHandle, Mutex, Ordering, SyncSender, TrySendError, sync_channel,
};
use event_history::HistoryLimits;
use files::StoreFolder;
use group_commit::{WriteCall, WriteJob};
use storage::Storage;
use watch_cache::{WatchCache, WatchScope, lock};

/// Which thread commits writes. Writes are durable before they are acknowledged in either mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitMode {
    /// A writer thread groups concurrent writes; two more threads notify watchers and checkpoint while idle.
    #[default]
    WriterThread,
    /// Every write commits on its caller's thread, and the engine starts no threads: for tests and simulation. A
    /// transaction must not start another write.
    Inline,
}

/// Bounds and modes; the defaults suit one machine.
#[derive(Clone)]
pub struct EngineOptions {
    /// Which thread commits.
    pub commit: CommitMode,
    /// Time for waits; objects carry the time that their writers pass.
    pub clock: Clock,
    /// Memory for pages of the tables. The kernel's page cache holds most of the rest.
    pub cache_bytes: usize,
    /// Maximum number of queued writes.
    pub queue: usize,
    /// Maximum number of writes in one group commit.
    pub group: usize,
    /// Bytes after which the rest of a group waits for the next commit.
    pub group_bytes: usize,
    /// Number of revisions that watches and continued lists can go back.
    pub log_revisions: u64,
    /// Maximum size of those revisions on disk.
    pub log_bytes: u64,
    /// Maximum number of events in the event history in memory.
    pub history_events: usize,
    /// Maximum size of the event history. Watchers that are further behind read the log on disk.
    pub history_bytes: usize,
    /// Size of the journal. A checkpoint runs when half of it is full, or earlier while the store is idle.
    pub journal_bytes: u64,
    /// Whether opening reads everything and refuses damaged files.
    pub verify: bool,
    /// The keys of encryption at rest; the default encrypts nothing. See [`Engine::reencrypt`].
    pub encryption: EncryptionKeys,
    /// Called when a sync fails; the default ends the process.
    pub on_sync_failure: OnSyncFailure,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            commit: CommitMode::default(),
            clock: Clock::system(),
            cache_bytes: 8 << 20,
            queue: 4_096,
            group: 1_024,
            group_bytes: 8 << 20,
            log_revisions: 100_000,
            log_bytes: 256 << 20,
            history_events: 16_384,
            history_bytes: 6 << 20,
            journal_bytes: 32 << 20,
            verify: true,
            encryption: EncryptionKeys::default(),
            on_sync_failure: files::end_process(),
        }
    }
}

/// State shared by the threads of an engine.
struct Shared {
    storage: Storage,
    watch_cache: WatchCache,
    options: EngineOptions,
    /// Held during a commit, by the writer thread or by a caller that commits inline.
    commit_lock: Mutex<()>,
    /// Number of writes in the queue.
    queued: AtomicUsize,
    /// Number of writes in the last group commit.
    last_group: AtomicUsize,
}

/// Numbers for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineStats {
    /// The newest revision.
    pub revision: Revision,
    /// The oldest revision that can be read.
    pub compacted: Revision,
    /// Commits, each of one or more writes.
    pub commits: u64,
    /// Syncs of either file.
    pub syncs: u64,
    /// Checkpoints: the tables were made durable and the journal restarted.
    pub checkpoints: u64,
    /// Open watchers.
    pub watchers: usize,
}

/// A store. Dropping it commits the queued writes and joins its threads.
pub struct Engine {
    shared: Arc<Shared>,
    /// `None` when commits are inline, or when the engine is closing.
    queue: Option<SyncSender<Box<dyn WriteJob>>>,
    /// The writer first: it ends the others.
    threads: Vec<JoinHandle<()>>,
    /// The folder of the files; locked while a backup snapshot is written into it.
    folder: Mutex<Option<PathBuf>>,
}

impl Engine {
    /// Opens the store in a folder, or creates one there. An older format has to be migrated first, see
    /// [`Engine::migrate`].
    pub fn open(path: &Path, options: EngineOptions) -> Result<Engine, OpenError> {
        let place = path.display().to_string();
        format::refuse_newer(path)?;
        let folder = StoreFolder::new(path).map_err(|error| OpenError::at(&place, error.into()))?;
        let format = options.encryption.format();
        let mut engine = Engine::open_on(folder, options)?;
        format::write_file(path, format).map_err(|error| OpenError::at(&place, error.into()))?;
        engine.folder = Mutex::new(Some(path.to_owned()));
        Ok(engine)
    }

    /// Opens a store on other files than a folder's, such as disks that fail in tests.
    pub fn open_on(files: impl StoreFiles, options: EngineOptions) -> Result<Engine, OpenError> {
        let place = files.place();
        let storage = Storage::open(Box::new(files), options.clone())?;
        let failed = |error: StorageError| OpenError::at(&place, error);
        let revision = Revision(storage.meta().map_err(failed)?.revision);
        let limits = HistoryLimits { events: options.history_events, bytes: options.history_bytes };
        let watch_cache = WatchCache::new(revision, limits, options.commit);
        let (commit_lock, queued, last_group) = (Mutex::new(()), AtomicUsize::new(0), AtomicUsize::new(0));
        let shared = Arc::new(Shared { storage, watch_cache, options, commit_lock, queued, last_group });
        let mut engine = Engine { shared, queue: None, threads: Vec::new(), folder: Mutex::new(None) };
        if engine.shared.options.commit == CommitMode::WriterThread {
            engine.start_threads().map_err(|error| failed(error.into()))?;
        }
        Ok(engine)
    }

    /// If one cannot be started, dropping the engine ends the others.
    fn start_threads(&mut self) -> io::Result<()> {
        let (queue, jobs) = sync_channel(self.shared.options.queue);
        self.queue = Some(queue);
        let [writer, notifier, idle] = std::array::from_fn(|_| self.shared.clone());
        self.start("store-writer", move || group_commit::run(&writer, &jobs))?;
        self.start("store-notifier", move || notifier.watch_cache.notify_in_waves(&notifier.options.clock))?;
        self.start("store-checkpoint", move || idle.storage.checkpoint_while_idle())
    }

    #[allow(clippy::disallowed_methods, reason = "the engine's own threads; inline commits need none")]
    fn start(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(Builder::new().name(name.to_owned()).spawn(body)?);
        Ok(())
    }

    /// The newest revision.
    pub fn revision(&self) -> Revision {
        self.shared.watch_cache.revision()
    }

    /// The clock of the options.
    pub fn clock(&self) -> &Clock {
        &self.shared.options.clock
    }

    /// The newest version of an object.
    pub fn get(&self, key: &StoreKey) -> Result<Option<StoredObject>, StoreReadError> {
        self.shared.storage.read_object(key)
    }

    /// As [`Engine::get`], from the event history if the object changed recently. The version may be stale, so use it
    /// only for a write that expects exactly this version.
    pub fn get_cached(&self, key: &StoreKey) -> Result<Option<StoredObject>, StoreReadError> {
        let cached = self.shared.watch_cache.history().last_of(key).cloned();
        match cached {
            Some(event) => Ok(event.stored()),
            None => self.get(key),
        }
    }

    /// Objects of a resource at one revision.
    pub fn list(&self, query: &ListQuery<'_>) -> Result<ListPage, StoreReadError> {
        self.shared.storage.read(|tables| tables.list(query))
    }

    /// Runs a transaction and blocks until it is durable.
    ///
    /// The closure sees every acknowledged write. If it returns an error nothing is written; a dry run is a closure that
    /// returns its result as the error. Changes of one closure are atomic; each put and each delete has its own revision.
    pub fn write<T, E, F>(&self, closure: F) -> Result<T, WriteError<E>>
    where
        F: FnOnce(&mut Txn<'_>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        let (call, pending) = WriteCall::new(closure);
        match &self.queue {
            Some(queue) => {
                self.shared.queued.fetch_add(1, Ordering::SeqCst);
                queue.send(Box::new(call)).map_err(|_| WriteError::Failed(StorageError::closed()))?;
            }
            None => group_commit::commit_inline(&self.shared, Box::new(call)),
        }
        pending.wait()
    }

    /// As [`Engine::write`], for async callers: never blocks, and fails with [`WriteError::Busy`] if the queue is full.
    /// The write happens whether or not the future is polled.
    pub fn submit<T, E, F>(&self, closure: F) -> Result<PendingWrite<T, E>, WriteError<E>>
    where
        F: FnOnce(&mut Txn<'_>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        let (call, pending) = WriteCall::new(closure);
        self.enqueue(Box::new(call))?;
        Ok(pending)
    }

    /// As [`Engine::submit`], but commits on the caller's thread if no other write is queued or running: a single writer
    /// need not wait for two threads to wake. At most one caller at a time blocks, for one sync.
    pub fn submit_or_commit<T, E, F>(&self, closure: F) -> Result<PendingWrite<T, E>, WriteError<E>>
    where
        F: FnOnce(&mut Txn<'_>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        let (call, pending) = WriteCall::new(closure);
        let job: Box<dyn WriteJob> = Box::new(call);
        if let Some(job) = group_commit::try_commit_alone(&self.shared, job) {
            self.enqueue(job)?;
        }
        Ok(pending)
    }

    fn enqueue<E>(&self, job: Box<dyn WriteJob>) -> Result<(), WriteError<E>> {
        let Some(queue) = &self.queue else {
            group_commit::commit_inline(&self.shared, job);
            return Ok(());
        };
        // Counted before it is queued, so that a later write of the same caller cannot overtake it.
        self.shared.queued.fetch_add(1, Ordering::SeqCst);
        let error = match queue.try_send(job) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Full(_)) => WriteError::Busy,
            Err(TrySendError::Disconnected(_)) => WriteError::Failed(StorageError::closed()),
        };
        self.shared.queued.fetch_sub(1, Ordering::SeqCst);
        Err(error)
    }

    /// Watches a resource, or one namespace of it, for the events after a revision.
    pub fn watch(
        &self,
        resource: ResourceId,
        namespace: Option<&str>,
        from: Revision,
    ) -> Result<Watcher, StoreReadError> {
        let scope = WatchScope { resource, namespace: namespace.map(Box::from) };
        Watcher::new(self.shared.clone(), scope, from)
    }

    /// The events of some resources after a revision, as far as they are published, and the revision they reach; `None`
    /// if the event history does not reach back that far.
    pub(crate) fn recent_events(
        &self,
        after: Revision,
        covers: impl Fn(ResourceId) -> bool,
    ) -> Option<(Revision, Vec<Arc<WatchEvent>>)> {
        let history = self.shared.watch_cache.history();
        let events = history.after(after)?.filter(|event| covers(event.key.resource)).cloned().collect();
        Some((history.revision, events))
    }

    /// Compacts the history: revisions before `to` can no longer be listed or watched. The bounds on the log's length
    /// and size are kept without this.
    pub fn compact(&self, to: Revision) -> Result<(), WriteError> {
        let to = to.min(self.revision());
        while self.shared.storage.meta().map_err(WriteError::Failed)?.compacted < to.0 {
            self.write(move |txn| {
                txn.compact_to(to);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// As [`Txn::expire`], in a transaction of its own.
    pub fn expire(
        &self,
        now: u64,
        limit: usize,
        last: impl Fn(&StoredObject, Revision) -> Bytes + Send + 'static,
    ) -> Result<usize, WriteError<TxnError>> {
        self.write(move |txn| txn.expire(now, limit, last))
    }

    /// Writes a copy of the newest state into a new file; reads and writes continue.
    pub fn backup(&self, file: &Path) -> Result<Revision, OpenError> {
        backup::write(&self.shared.storage, file)
    }

    /// A readable copy of the newest state; reads and writes continue. One at a time, others wait. Takes as much disk
    /// space beside the store as the objects do, until it is dropped.
    pub fn snapshot(&self) -> Result<BackupSnapshot, OpenError> {
        let folder = lock(&self.folder);
        match &*folder {
            Some(folder) => backup::snapshot(&self.shared.storage, folder),
            None => Err(OpenError::Missing { place: "the store's folder".to_owned() }),
        }
    }

    /// As [`Engine::backup`], of a store that is not open and may have an older format, which the backup keeps.
    pub fn backup_of(folder: &Path, file: &Path) -> Result<Revision, OpenError> {
        backup::write_from(folder, file)
    }

    /// Migrates the store in a folder to the format of this program, after a backup beside it in the old format. `None`
    /// if it has the format already, or if there is no store. An interrupted migration is repeated by the next one.
    pub fn migrate(folder: &Path) -> Result<Option<Migration>, OpenError> {
        format::migrate(folder, false)
    }

    /// What [`Engine::migrate`] would do.
    pub fn plan_migration(folder: &Path) -> Result<Option<Migration>, OpenError> {
        format::migrate(folder, true)
    }

    /// Encrypts every version in the store of a folder with the first key, or none if the keys say so, in a new file that
    /// replaces the old one. `None` if that is so already, if there are no keys, or if there is no store. An interrupted
    /// call is repeated by the next one.
    pub fn reencrypt(folder: &Path, keys: &EncryptionKeys) -> Result<Option<Reencryption>, OpenError> {
        encryption::reencrypt(folder, keys)
    }

    /// Verifies a backup without changing it. Without keys, encrypted objects are counted and not decrypted.
    pub fn check_backup(file: &Path, keys: &EncryptionKeys) -> Result<CheckReport, OpenError> {
        backup::check(file, keys)
    }

    /// Creates a store from a backup in a folder that has none. Its revisions start far above the backup's, so that
    /// clients never see a revision twice. An encrypted backup needs its key; the store is encrypted with the first key.
    pub fn restore(file: &Path, folder: &Path, keys: &EncryptionKeys) -> Result<Revision, OpenError> {
        backup::restore(file, folder, keys)
    }

    /// Fails if a folder holds no store; opening it would create one.
    pub fn require(folder: &Path) -> Result<(), OpenError> {
        check::require(folder)
    }

    /// Verifies the store in a folder. Changes only what opening after a crash changes. Without keys, encrypted objects
    /// are counted and not decrypted.
    pub fn check(folder: &Path, keys: &EncryptionKeys) -> Result<CheckReport, OpenError> {
        check::folder(folder, keys)
    }

    /// Lists objects of a store that is not open.
    pub fn peek<T>(
        folder: &Path,
        body: impl FnOnce(&Lister<'_>) -> Result<T, StoreReadError>,
    ) -> Result<T, OpenError> {
        check::peek(folder, body)
    }

    /// Lists objects of a backup.
    pub fn peek_backup<T>(
        file: &Path,
        body: impl FnOnce(&Lister<'_>) -> Result<T, StoreReadError>,
    ) -> Result<T, OpenError> {
        backup::peek(file, body)
    }

    /// Numbers for metrics.
    pub fn stats(&self) -> Result<EngineStats, StorageError> {
        let Shared { storage, watch_cache, .. } = &*self.shared;
        Ok(EngineStats {
            revision: watch_cache.revision(),
            compacted: Revision(storage.meta()?.compacted),
            commits: storage.commits.load(Ordering::Relaxed),
            syncs: storage.syncs(),
            checkpoints: storage.checkpoints.load(Ordering::Relaxed),
            watchers: watch_cache.watchers(),
        })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.queue = None;
        if self.threads.is_empty() {
            group_commit::close(&self.shared);
        }
        // The writer closes the watch cache and the storage when its queue ends, which ends the other threads.
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

//! The durable heart of the embedded API: objects with revisions, transactions, and watches.
//!
//! ```text
//!  write ----> queue ----> writer: one transaction for many callers ----> journal (one sync) ----> tables
//!     \---- nobody else writes: the caller himself -----^            \---> ring ----> watchers
//!  get, list, log ----> tables (a read transaction that ends with the call)
//! ```
//!
//! The engine knows keys, revisions and bytes. It knows nothing of Kubernetes, HTTP or JSON; it has no clock
//! and no runtime.

mod backup;
mod check;
mod disk;
mod early;
mod failure;
mod hub;
mod journal;
mod key;
mod list;
mod medium;
mod overlay;
mod park;
mod row;
mod tables;
mod txn;
mod watch;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

pub use backup::Snapshot;
pub use bytes::Bytes;
pub use check::Report;
pub use failure::{Failure, FailureKind, OpenError, ReadError, TxnError, WriteError};
pub use key::{Change, ChangeKind, Key, ResourceId, Revision, Stored};
pub use list::{Lister, Page, Query};
pub use medium::{DATA_FILE, JOURNAL_FILE, Medium, OnSyncFailure};
pub use redb::StorageBackend;
pub use txn::{Expect, Txn};
pub use watch::Watcher;
pub use writer::Pending;

use disk::Disk;
use hub::{Hub, Interest, RingLimits, lock};
use medium::Folder;
use writer::{Call, Job};

/// Bounds, all of them with a default that suits one machine.
#[derive(Clone)]
pub struct Options {
    /// Memory for pages of the tables. Little is enough: what it does not hold, the kernel's own cache mostly does.
    pub cache_bytes: usize,
    /// How many writes may wait.
    pub queue: usize,
    /// How many writes share a sync at most.
    pub group: usize,
    /// After how many bytes the next write has to wait for the next sync.
    pub group_bytes: usize,
    /// How many revisions watches and continued lists can go back.
    pub log_revisions: u64,
    /// How many bytes these may take on disk.
    pub log_bytes: u64,
    /// How many changes are kept in memory for watches.
    pub ring_changes: usize,
    /// How many bytes these may take. Whoever is further behind reads the log on disk.
    pub ring_bytes: usize,
    /// The size of the journal; a checkpoint comes when half of it is full, and before that in quiet moments.
    pub journal_bytes: u64,
    /// Whether opening reads everything and refuses what is damaged.
    pub verify: bool,
    /// What happens when a sync fails; by default the process ends.
    pub on_sync_failure: OnSyncFailure,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cache_bytes: 8 << 20,
            queue: 4_096,
            group: 1_024,
            group_bytes: 8 << 20,
            log_revisions: 100_000,
            log_bytes: 256 << 20,
            ring_changes: 16_384,
            ring_bytes: 6 << 20,
            journal_bytes: 32 << 20,
            verify: true,
            on_sync_failure: medium::end_process(),
        }
    }
}

/// What the threads of an engine share.
struct Shared {
    disk: Disk,
    hub: Hub,
    options: Options,
    /// Held by whoever commits: the writer's thread, or a caller who found nobody else writing.
    turn: Mutex<()>,
    /// Writes that are in the queue.
    waiting: AtomicUsize,
    /// How many writes shared the last commit.
    company: AtomicUsize,
}

/// Numbers for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// The newest revision.
    pub revision: Revision,
    /// The oldest revision that can be read.
    pub compacted: Revision,
    /// Commits, each of one or more writes.
    pub commits: u64,
    /// Syncs of either file.
    pub syncs: u64,
    /// Times that the tables were made durable and the journal began anew.
    pub checkpoints: u64,
    /// Watchers that are open.
    pub watchers: usize,
}

/// A store. Dropping it ends its threads, after the writes that already wait.
pub struct Engine {
    shared: Arc<Shared>,
    queue: Option<SyncSender<Box<dyn Job>>>,
    writer: Option<JoinHandle<()>>,
    /// The pacer, and who does checkpoints in quiet moments.
    helpers: [Option<JoinHandle<()>>; 2],
    /// Where it keeps its files; held while a snapshot is made there.
    folder: Mutex<Option<PathBuf>>,
}

impl Engine {
    /// Opens the store in a folder, or makes a new one there.
    pub fn open(path: &Path, options: Options) -> Result<Engine, OpenError> {
        let place = path.display().to_string();
        let folder = Folder::new(path).map_err(|error| OpenError::at(&place, error.into()))?;
        let mut engine = Engine::open_on(folder, options)?;
        engine.folder = Mutex::new(Some(path.to_owned()));
        Ok(engine)
    }

    /// Opens a store on another medium than a folder; tests use this to let disks fail.
    pub fn open_on(medium: impl Medium, options: Options) -> Result<Engine, OpenError> {
        let place = medium.place();
        let disk = Disk::open(Box::new(medium), options.clone())?;
        let failed = |failure: Failure| OpenError::at(&place, failure);
        let revision = Revision(disk.meta().map_err(failed)?.revision);
        let limits = RingLimits { changes: options.ring_changes, bytes: options.ring_bytes };
        let (queue, jobs) = sync_channel(options.queue);
        let hub = Hub::new(revision, limits);
        let (turn, waiting, company) = (Mutex::new(()), AtomicUsize::new(0), AtomicUsize::new(0));
        let shared = Arc::new(Shared { disk, hub, options, turn, waiting, company });
        let start = |name: &str, body: Box<dyn FnOnce() + Send>| {
            let started = thread::Builder::new().name(name.to_owned()).spawn(body);
            started.map_err(|error: io::Error| failed(error.into()))
        };
        let (writers, paced) = (shared.clone(), shared.clone());
        let writer = start("store-writer", Box::new(move || writer::run(&writers, &jobs)))?;
        // If this fails, the queue goes, and the writer closes everything.
        let pacer = start("store-pacer", Box::new(move || paced.hub.pace()))?;
        let tidied = shared.clone();
        let tidy = start("store-tidy", Box::new(move || tidied.disk.tidy()))?;
        let (folder, writer, helpers) = (Mutex::new(None), Some(writer), [Some(pacer), Some(tidy)]);
        Ok(Engine { shared, queue: Some(queue), writer, helpers, folder })
    }

    /// The newest revision.
    pub fn revision(&self) -> Revision {
        self.shared.hub.revision()
    }

    /// One object, as it is now.
    pub fn get(&self, key: &Key) -> Result<Option<Stored>, ReadError> {
        self.shared.disk.read_object(key)
    }

    /// As [`Engine::get`], from memory if the object has changed lately. It may be a moment behind, so it is for whoever
    /// finds out later: a write that expects this very version.
    pub fn glimpse(&self, key: &Key) -> Result<Option<Stored>, ReadError> {
        let lately = self.shared.hub.ring().last_of(key).cloned();
        match lately {
            Some(change) => Ok(change.stored()),
            None => self.get(key),
        }
    }

    /// Objects of a resource at one revision.
    pub fn list(&self, query: &Query<'_>) -> Result<Page, ReadError> {
        self.shared.disk.read(|tables| tables.list(query))
    }

    /// Runs a transaction and waits until it is durable.
    ///
    /// The closure sees everything that was acknowledged before. If it returns an error nothing is written; a
    /// dry run is a closure that returns its result as the error. Changes of one closure happen together or not
    /// at all; each put and each delete has a revision of its own.
    pub fn write<T, E, F>(&self, closure: F) -> Result<T, WriteError<E>>
    where
        F: FnOnce(&mut Txn<'_>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        let (call, pending) = Call::new(closure);
        let Some(queue) = &self.queue else { return Err(WriteError::Failed(Failure::closed())) };
        self.shared.waiting.fetch_add(1, Ordering::SeqCst);
        match queue.send(Box::new(call)) {
            Ok(()) => pending.wait(),
            Err(_) => Err(WriteError::Failed(Failure::closed())),
        }
    }

    /// As [`Engine::write`], for async callers: never blocks, and answers [`WriteError::Busy`] if too many writes
    /// are waiting. The write happens whether or not the future is polled.
    pub fn submit<T, E, F>(&self, closure: F) -> Result<Pending<T, E>, WriteError<E>>
    where
        F: FnOnce(&mut Txn<'_>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        let (call, pending) = Call::new(closure);
        self.enqueue(Box::new(call))?;
        Ok(pending)
    }

    /// As [`Engine::submit`], but a caller who finds nobody else writing does the write himself, before this returns:
    /// one writer alone need not wait for two threads to wake. It takes as long as a sync, so at most one caller at a
    /// time blocks; whoever comes meanwhile is queued.
    pub fn submit_or_do<T, E, F>(&self, closure: F) -> Result<Pending<T, E>, WriteError<E>>
    where
        F: FnOnce(&mut Txn<'_>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        let (call, pending) = Call::new(closure);
        let job: Box<dyn Job> = Box::new(call);
        if let Some(job) = writer::do_alone(&self.shared, job) {
            self.enqueue(job)?;
        }
        Ok(pending)
    }

    fn enqueue<E>(&self, job: Box<dyn Job>) -> Result<(), WriteError<E>> {
        let Some(queue) = &self.queue else { return Err(WriteError::Failed(Failure::closed())) };
        // Counted before it is in the queue, so that nobody overtakes what this caller submitted before.
        self.shared.waiting.fetch_add(1, Ordering::SeqCst);
        let error = match queue.try_send(job) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Full(_)) => WriteError::Busy,
            Err(TrySendError::Disconnected(_)) => WriteError::Failed(Failure::closed()),
        };
        self.shared.waiting.fetch_sub(1, Ordering::SeqCst);
        Err(error)
    }

    /// Watches a resource, or one namespace of it, for the changes after a revision.
    pub fn watch(
        &self,
        resource: ResourceId,
        namespace: Option<&str>,
        from: Revision,
    ) -> Result<Watcher, ReadError> {
        let interest = Interest { resource, namespace: namespace.map(Box::from) };
        Watcher::new(self.shared.clone(), interest, from)
    }

    /// Forgets what was before a revision, so that nothing older can be listed or watched. Bounds on the log's
    /// length and weight are kept without this.
    pub fn compact(&self, to: Revision) -> Result<(), WriteError> {
        let to = to.min(self.revision());
        while self.shared.disk.meta().map_err(WriteError::Failed)?.compacted < to.0 {
            self.write(move |txn| {
                txn.compact_to(to);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Deletes objects whose time is up, at most `limit`; `now` is in seconds since 1970. `last` makes what
    /// watchers see of each, from its last version and the deletion's revision. The result is how many went.
    pub fn expire(
        &self,
        now: u64,
        limit: usize,
        last: impl Fn(&Stored, Revision) -> Bytes + Send + 'static,
    ) -> Result<usize, WriteError<TxnError>> {
        self.write(move |txn| {
            let keys = txn.expired(now, limit)?;
            for key in &keys {
                if let Some(stored) = txn.get(key)? {
                    let json = last(&stored, txn.next_revision());
                    txn.delete(key, Some(json), Expect::At(stored.revision))?;
                }
            }
            Ok(keys.len())
        })
    }

    /// Writes a copy of the newest state into one new file, while everything goes on.
    pub fn backup(&self, file: &Path) -> Result<Revision, OpenError> {
        backup::write(&self.shared.disk, file)
    }

    /// A copy of the newest state to read from, made while everything goes on; one at a time, others wait. Takes as
    /// much room beside the store as the objects do, until it is dropped.
    pub fn snapshot(&self) -> Result<Snapshot, OpenError> {
        let folder = lock(&self.folder);
        match &*folder {
            Some(folder) => backup::snapshot(&self.shared.disk, folder),
            None => Err(OpenError::Missing { place: "the store's folder".to_owned() }),
        }
    }

    /// Reads all of a backup and says what is wrong with it. Changes nothing.
    pub fn check_backup(file: &Path) -> Result<Report, OpenError> {
        backup::check(file)
    }

    /// Makes a store in a folder that has none, from a backup. Its revisions begin far above the backup's, so that
    /// nobody takes a new version for one that he saw before.
    pub fn restore(file: &Path, folder: &Path) -> Result<Revision, OpenError> {
        backup::restore(file, folder)
    }

    /// An error if a folder does not hold a store: opening it would make a new one.
    pub fn require(folder: &Path) -> Result<(), OpenError> {
        check::require(folder)
    }

    /// Reads all of the store in a folder and says what is wrong with it. Changes nothing but what opening after
    /// a crash does.
    pub fn check(folder: &Path) -> Result<Report, OpenError> {
        check::folder(folder)
    }

    /// Lists objects of the store in a folder that is not open.
    pub fn peek<T>(
        folder: &Path,
        body: impl FnOnce(&Lister<'_>) -> Result<T, ReadError>,
    ) -> Result<T, OpenError> {
        check::peek(folder, body)
    }

    /// Lists objects of a backup.
    pub fn peek_backup<T>(
        file: &Path,
        body: impl FnOnce(&Lister<'_>) -> Result<T, ReadError>,
    ) -> Result<T, OpenError> {
        backup::peek(file, body)
    }

    /// Numbers for metrics.
    pub fn stats(&self) -> Result<Stats, Failure> {
        let Shared { disk, hub, .. } = &*self.shared;
        Ok(Stats {
            revision: hub.revision(),
            compacted: Revision(disk.meta()?.compacted),
            commits: disk.commits.load(Ordering::Relaxed),
            syncs: disk.syncs(),
            checkpoints: disk.checkpoints.load(Ordering::Relaxed),
            watchers: hub.watchers(),
        })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.queue = None;
        // The writer closes the hub and the disk as his last act, which ends the helpers.
        let helpers = self.helpers.iter_mut().map(Option::take);
        for thread in std::iter::once(self.writer.take()).chain(helpers).flatten() {
            let _ = thread.join();
        }
    }
}

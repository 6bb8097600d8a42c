//! The tables and the journal: open, read, write, checkpoint, and reopen after an error.
//! Invariant: nothing is visible before it is durable.

use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use clock::Clock;
use redb::{Database, Durability, ReadTransaction, ReadableDatabase, StorageBackend};

use super::EngineOptions;
use super::check::CheckReport;
use super::copy_on_write::pages_are_sound;
use super::encryption::EncryptionKeyId;
use super::error::{OpenError, StorageError, StorageErrorKind, StoreReadError};
use super::files::{GuardedFile, StoreFiles, SyncState};
use super::format::{ENCRYPTED_FORMAT, FORMAT, MigrationStep};
use super::idle_checkpoint::IdleCheckpoint;
use super::journal::{Journal, JournalRecord, RecordBuffer};
use super::key::{StoreKey, StoredObject};
use super::tables::{Meta, ReadTables, WriteTables};
use super::watch_cache::lock;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, PoisonError, RwLock, RwLockWriteGuard};

/// Milliseconds to wait for the readers of a database before it is closed.
const CLOSE_STEPS: u32 = 2_000;

/// Length of the magic bytes of a redb file.
const MAGIC_LEN: usize = 9;

pub(super) struct Storage {
    files: Box<dyn StoreFiles>,
    options: EngineOptions,
    sync_state: Arc<SyncState>,
    /// The open tables, or why they are not open.
    database: RwLock<Result<Arc<Database>, StorageError>>,
    /// Locked during a write.
    journal: Mutex<Option<Journal>>,
    idle_checkpoint: IdleCheckpoint,
    /// The disk is full: there is too little space beside the reserve, or for it.
    full: AtomicBool,
    pub commits: AtomicU64,
    pub checkpoints: AtomicU64,
}

/// The result of a write to the tables.
pub(super) struct Written {
    /// The revision of the first row.
    pub first: u64,
    /// Whether anything changed.
    pub dirty: bool,
}

/// The error of a read at the newest revision: only the disk can fail.
pub(super) fn newest_error(error: StoreReadError) -> StorageError {
    match error {
        StoreReadError::Failed(error) => error,
        other => StorageError::damaged(other.to_string()),
    }
}

impl Storage {
    /// Opens a store of this program's format for reads and writes, encrypted with the key of the options.
    pub(super) fn open(files: Box<dyn StoreFiles>, options: EngineOptions) -> Result<Storage, OpenError> {
        let (place, wanted) = (files.place(), options.encryption.sealing_number());
        let storage = Storage::open_since(FORMAT, files, options)?;
        let found = storage.meta().map_err(|error| OpenError::at(&place, error))?.encryption_key;
        if found != wanted {
            let key = (found != 0).then_some(EncryptionKeyId(found));
            return Err(OpenError::Encrypted { place, key });
        }
        storage.full.store(!storage.hold_reserve(), Ordering::SeqCst);
        Ok(storage)
    }

    /// Opens a store of a format from `oldest` on. Formats that are listed in [`super::format`] are read alike.
    pub(super) fn open_since(
        oldest: u64,
        files: Box<dyn StoreFiles>,
        options: EngineOptions,
    ) -> Result<Storage, OpenError> {
        let place = files.place();
        let storage = Storage {
            files,
            options,
            sync_state: Arc::new(SyncState::default()),
            database: RwLock::new(Err(StorageError::closed())),
            journal: Mutex::new(None),
            idle_checkpoint: IdleCheckpoint::default(),
            full: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            checkpoints: AtomicU64::new(0),
        };
        if storage.options.verify {
            storage.verify_pages().map_err(|error| OpenError::at(&place, error))?;
        }
        let opened = storage.open_both().map_err(|error| OpenError::at(&place, error))?;
        let meta = opened.2;
        if meta.format > ENCRYPTED_FORMAT {
            return Err(OpenError::Format {
                place,
                found: meta.format,
                program: None,
                known: ENCRYPTED_FORMAT,
            });
        }
        if meta.format < oldest {
            return Err(OpenError::OldFormat { place, found: meta.format, known: FORMAT });
        }
        storage.install(opened.0, opened.1);
        if storage.options.verify {
            let report = storage.check().map_err(|error| OpenError::at(&place, error))?;
            if let Some(cause) = report.summary() {
                return Err(OpenError::Damaged { place, cause });
            }
        }
        Ok(storage)
    }

    /// Whether only writes that free space are accepted.
    pub(super) fn is_full(&self) -> bool {
        self.full.load(Ordering::SeqCst)
    }

    /// Reserves space for deletes on a full disk, in the file of tables, where no other program can take it; false if
    /// there is too little. Where a file system cannot reserve any, the store works as long as there is space.
    fn hold_reserve(&self) -> bool {
        let held = self.files.reserve(self.options.journal_bytes);
        !held.is_err_and(|error| error.kind() == io::ErrorKind::StorageFull)
    }

    fn check_space(&self) {
        let is_scarce = self.files.free().is_ok_and(|free| free < self.options.journal_bytes / 4);
        self.full.store(!self.hold_reserve() || is_scarce, Ordering::SeqCst);
    }

    pub(super) fn syncs(&self) -> u64 {
        self.sync_state.syncs.load(Ordering::Relaxed)
    }

    /// Runs before anything trusts the tables, and changes nothing.
    fn verify_pages(&self) -> Result<(), StorageError> {
        let data = self.files.data()?;
        if is_unfinished(&*data)? || pages_are_sound(data, self.options.cache_bytes)? {
            return Ok(());
        }
        Err(StorageError::damaged("checksums of table pages do not match"))
    }

    fn install(&self, database: Database, journal: Journal) {
        *lock(&self.journal) = Some(journal);
        *self.database_slot() = Ok(Arc::new(database));
    }

    fn database_slot(&self) -> RwLockWriteGuard<'_, Result<Arc<Database>, StorageError>> {
        self.database.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn guarded(&self, file: io::Result<Box<dyn StorageBackend>>) -> Result<GuardedFile, StorageError> {
        Ok(GuardedFile::new(file?, self.sync_state.clone(), self.options.on_sync_failure.clone()))
    }

    /// Opens the tables (which takes the lock), then the journal, and replays it.
    fn open_both(&self) -> Result<(Database, Journal, Meta), StorageError> {
        let (data, file) = (self.guarded(self.files.data())?, self.guarded(self.files.journal())?);
        let is_new = Journal::is_new(&file)?;
        if is_new {
            discard_unfinished(&data)?;
        }
        let mut builder = Database::builder();
        builder.set_cache_size(self.options.cache_bytes);
        let database = no_panic(|| builder.create_with_backend(data).map_err(StorageError::from))?;
        let mut meta = no_panic(|| meta_or_empty(&database))?;
        if meta.format > ENCRYPTED_FORMAT {
            // Written by a newer program: read nothing else, change nothing.
            return Ok((database, Journal::unread(file), meta));
        }
        if meta.format != 0 && is_new {
            return Err(StorageError::damaged(
                "the journal is missing or empty, and with it the latest writes",
            ));
        }
        let (journal, records) = Journal::open(file, self.options.journal_bytes, meta.epoch, meta.journal)?;
        meta.journal = journal.capacity();
        if meta.format == 0 {
            if !records.is_empty() {
                return Err(StorageError::damaged("the tables are missing or empty, the journal is not"));
            }
            meta.format = self.options.encryption.format();
            meta.encryption_key = self.options.encryption.sealing_number();
            no_panic(|| commit_meta(&database, &meta))?;
        }
        no_panic(|| replay(&database, records, &mut meta))?;
        Ok((database, journal, meta))
    }

    /// The tables, unless they are closed or a sync failed.
    fn database(&self) -> Result<Arc<Database>, StorageError> {
        if self.sync_state.dead.load(Ordering::SeqCst) {
            return Err(StorageError::new(StorageErrorKind::Closed, "a sync of its disk failed"));
        }
        self.database.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the newest state. The transaction ends with the call.
    pub(super) fn read<T>(
        &self,
        body: impl FnOnce(&ReadTables) -> Result<T, StoreReadError>,
    ) -> Result<T, StoreReadError> {
        self.read_with(|txn| body(&ReadTables::open(txn)?.with_keys(&self.options.encryption)))
    }

    /// The newest version of one object; opens only the tables that this needs.
    pub(super) fn read_object(&self, key: &StoreKey) -> Result<Option<StoredObject>, StoreReadError> {
        self.read_with(|txn| Ok(ReadTables::object_of(txn, key, &self.options.encryption)?))
    }

    fn read_with<T>(
        &self,
        body: impl FnOnce(&ReadTransaction) -> Result<T, StoreReadError>,
    ) -> Result<T, StoreReadError> {
        let result = self
            .database()
            .map_err(StoreReadError::from)
            .and_then(|database| no_panic(|| body(&database.begin_read().map_err(StorageError::from)?)));
        if let Err(StoreReadError::Failed(error)) = &result
            && matches!(error.kind, StorageErrorKind::Io | StorageErrorKind::Full)
            // A concurrent write meets the same error and reopens.
            && let Ok(mut journal) = self.journal.try_lock()
        {
            self.reopen(&mut journal);
        }
        result
    }

    /// Reads the newest state, where only the disk can fail.
    pub(super) fn read_newest<T>(
        &self,
        body: impl FnOnce(&ReadTables) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.read(|tables| Ok(body(tables)?)).map_err(newest_error)
    }

    pub(super) fn meta(&self) -> Result<Meta, StorageError> {
        self.read_newest(|tables| tables.meta())
    }

    pub(super) fn check(&self) -> Result<CheckReport, StorageError> {
        self.read_newest(ReadTables::check)
    }

    /// Changes the tables durably; the body adds its rows to the buffer. After an error the change may still be on disk:
    /// see [`Storage::reopen`].
    pub(super) fn write(
        &self,
        body: impl FnOnce(&mut WriteTables<'_>, &mut Meta, &mut RecordBuffer) -> Result<Written, StorageError>,
    ) -> Result<(), StorageError> {
        let mut guard = lock(&self.journal);
        if guard.is_none() {
            // The last attempt to reopen failed; try again.
            self.reopen(&mut guard);
        }
        self.check_space();
        self.make_room(&mut guard);
        let result = match guard.as_mut() {
            Some(journal) => no_panic(|| self.write_with(journal, body)),
            None => self.database().map(drop).and(Err(StorageError::closed())),
        };
        if let Err(error) = &result {
            self.full.fetch_or(error.kind == StorageErrorKind::Full, Ordering::SeqCst);
            self.reopen(&mut guard);
        }
        result
    }

    /// Checkpoints before the journal is full. If that fails, the write may still fit.
    fn make_room(&self, guard: &mut Option<Journal>) {
        let Some(journal) = guard.as_mut().filter(|journal| self.is_due(journal)) else { return };
        if let Err(error) = no_panic(|| self.checkpoint_with(&*self.database()?, journal)) {
            self.full.fetch_or(error.kind == StorageErrorKind::Full, Ordering::SeqCst);
            self.reopen(guard);
        }
    }

    /// Whether a checkpoint is due before the next write.
    fn is_due(&self, journal: &Journal) -> bool {
        journal.is_half_full() || self.is_full() && journal.is_due_on_full_disk()
    }

    fn write_with(
        &self,
        journal: &mut Journal,
        body: impl FnOnce(&mut WriteTables<'_>, &mut Meta, &mut RecordBuffer) -> Result<Written, StorageError>,
    ) -> Result<(), StorageError> {
        let database = self.database()?;
        let mut txn = database.begin_write()?;
        let mut tables = WriteTables::open(&txn)?.with_keys(&self.options.encryption);
        let before = tables.meta()?;
        let mut meta = before;
        let mut buffer = journal.buffer();
        let written = body(&mut tables, &mut meta, &mut buffer)?;
        if !written.dirty {
            drop(tables);
            return Ok(txn.abort()?);
        }
        // Without rows there was only compaction.
        let fits = buffer.is_empty() || journal.append(written.first, &mut buffer)?;
        journal.keep(buffer);
        if !fits {
            meta.epoch += 1;
        }
        tables.update_meta(&before, &meta)?;
        drop(tables);
        if fits {
            txn.set_durability(Durability::None)?;
        } else {
            txn.set_quick_repair(true);
        }
        txn.commit()?;
        self.commits.fetch_add(1, Ordering::Relaxed);
        if !fits {
            journal.restart(meta.epoch);
        } else if journal.is_long() {
            self.idle_checkpoint.request();
        }
        Ok(())
    }

    /// The thread that checkpoints while the store is idle, until [`Storage::close`].
    pub(super) fn checkpoint_while_idle(&self) {
        self.idle_checkpoint.run(|| self.commits.load(Ordering::Relaxed), || self.checkpoint_if_long());
    }

    fn checkpoint_if_long(&self) {
        // A write in progress requests the next checkpoint.
        let Ok(mut guard) = self.journal.try_lock() else { return };
        let Some(journal) = guard.as_mut().filter(|journal| journal.is_long()) else { return };
        if let Err(error) = no_panic(|| self.checkpoint_with(&*self.database()?, journal)) {
            self.full.fetch_or(error.kind == StorageErrorKind::Full, Ordering::SeqCst);
            self.reopen(&mut guard);
        }
    }

    /// Whether the next write includes a checkpoint, or reopening after an error.
    pub(super) fn is_checkpoint_due(&self) -> bool {
        match self.journal.try_lock() {
            Ok(journal) => journal.as_ref().is_none_or(|journal| self.is_due(journal)),
            Err(_) => true,
        }
    }

    fn checkpoint(&self) -> Result<(), StorageError> {
        let mut guard = lock(&self.journal);
        match guard.as_mut() {
            Some(journal) => no_panic(|| self.checkpoint_with(&*self.database()?, journal)),
            None => Err(StorageError::closed()),
        }
    }

    fn checkpoint_with(&self, database: &Database, journal: &mut Journal) -> Result<(), StorageError> {
        let mut meta = database_meta(database)?;
        meta.epoch += 1;
        commit_meta(database, &meta)?;
        journal.restart(meta.epoch);
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Checkpoints, and overwrites what the journal held.
    pub(super) fn clear_journal(&self) -> Result<(), StorageError> {
        self.checkpoint()?;
        lock(&self.journal).as_mut().ok_or_else(StorageError::closed)?.clear()
    }

    /// Runs migration steps in one durable transaction: afterwards the store has the format of the last step, or the one
    /// that it had.
    pub(super) fn migrate(&self, steps: &[MigrationStep]) -> Result<(), StorageError> {
        let mut guard = lock(&self.journal);
        let journal = guard.as_mut().ok_or_else(StorageError::closed)?;
        no_panic(|| {
            let database = self.database()?;
            let mut txn = database.begin_write()?;
            txn.set_quick_repair(true);
            let mut meta = WriteTables::open(&txn)?.meta()?;
            for step in steps {
                (step.run)(&txn)?;
                meta.format = step.to;
            }
            // As a checkpoint: the transaction holds what the journal does.
            meta.epoch += 1;
            WriteTables::open(&txn)?.set_meta(&meta)?;
            txn.commit()?;
            journal.restart(meta.epoch);
            Ok(())
        })
    }

    /// Checkpoints and closes the files, even if watchers still refer to the storage. A failed checkpoint loses nothing:
    /// the journal has everything.
    pub(super) fn close(&self) {
        self.idle_checkpoint.close();
        let _ = self.checkpoint();
        *lock(&self.journal) = None;
        let closed = std::mem::replace(&mut *self.database_slot(), Err(StorageError::closed()));
        // Damaged files can make redb panic.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(closed)));
    }

    /// Closes and opens again, because redb refuses all work after an error. Acknowledged writes come back from the
    /// journal; others may too, if they had reached the disk.
    fn reopen(&self, journal: &mut Option<Journal>) {
        if self.sync_state.dead.load(Ordering::SeqCst) {
            return;
        }
        let mut slot = self.database_slot();
        let closed = std::mem::replace(&mut *slot, Err(StorageError::closed()));
        if let Ok(database) = closed
            && let Err(database) = close(database, &self.options.clock)
        {
            *slot = Ok(database);
            return;
        }
        *journal = None;
        match self.open_both() {
            Ok((database, opened, _)) => {
                *slot = Ok(Arc::new(database));
                *journal = Some(opened);
            }
            Err(error) => *slot = Err(error),
        }
    }
}

fn is_unfinished(data: &dyn StorageBackend) -> Result<bool, StorageError> {
    let mut magic = [0; MAGIC_LEN];
    if data.len()? >= magic.len() as u64 {
        data.read(0, &mut magic)?;
    }
    Ok(magic == [0; MAGIC_LEN])
}

/// An interrupted first start, by a full disk for instance, leaves a file without redb's magic bytes, which come last. It
/// never held data, so it is emptied.
fn discard_unfinished(data: &GuardedFile) -> Result<(), StorageError> {
    let whole = (Bound::Unbounded, Bound::Unbounded);
    // Files of tests have no locks, and no other process either.
    let locked = match data.try_lock_range(whole.0, whole.1) {
        Ok(true) => true,
        Ok(false) => return Err(StorageError::new(StorageErrorKind::InUse, "the file is locked")),
        Err(_) => false,
    };
    if is_unfinished(data)? {
        data.set_len(0)?;
    }
    if locked {
        data.unlock_range(whole.0, whole.1).map_err(io::Error::from)?;
    }
    Ok(())
}

/// Waits for the readers, then closes. Returns the database if a reader does not end in time.
fn close(mut database: Arc<Database>, clock: &Clock) -> Result<(), Arc<Database>> {
    for _ in 0..CLOSE_STEPS {
        match Arc::try_unwrap(database) {
            Ok(database) => {
                // What redb cannot write is in the journal.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(database)));
                return Ok(());
            }
            Err(shared) => database = shared,
        }
        clock.sleep_blocking(Duration::from_millis(1));
    }
    Err(database)
}

pub(super) fn database_meta(database: &Database) -> Result<Meta, StorageError> {
    ReadTables::open(&database.begin_read()?)?.meta()
}

/// The numbers of a database that may have no tables yet.
fn meta_or_empty(database: &Database) -> Result<Meta, StorageError> {
    let txn = database.begin_read()?;
    if txn.list_tables()?.next().is_none() { Ok(Meta::default()) } else { ReadTables::open(&txn)?.meta() }
}

/// Commits the meta numbers, and with them everything before, durably.
pub(super) fn commit_meta(database: &Database, meta: &Meta) -> Result<(), StorageError> {
    let mut txn = database.begin_write()?;
    txn.set_quick_repair(true);
    WriteTables::open(&txn)?.set_meta(meta)?;
    Ok(txn.commit()?)
}

/// Applies the records that the tables do not have, in memory: the journal is durable.
fn replay(database: &Database, records: Vec<JournalRecord>, meta: &mut Meta) -> Result<(), StorageError> {
    let mut txn = database.begin_write()?;
    txn.set_durability(Durability::None)?;
    let mut tables = WriteTables::open(&txn)?;
    let mut buffer = RecordBuffer::new();
    for record in records {
        for (revision, row) in (record.first..).zip(record.rows) {
            if revision <= meta.revision {
                continue;
            }
            if revision != meta.revision + 1 {
                let cause = format!(
                    "the journal continues at revision {revision}, the tables end at {}",
                    meta.revision
                );
                return Err(StorageError::damaged(cause));
            }
            tables.replay(meta, row, &mut buffer)?;
            buffer.clear();
        }
    }
    tables.set_meta(meta)?;
    drop(tables);
    Ok(txn.commit()?)
}

/// Damaged pages can make redb panic; that becomes an error of this call.
pub(super) fn no_panic<T, E: From<StorageError>>(body: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        Err(StorageError::damaged(format!("the tables cannot be read: {}", panic_text(&panic))).into())
    })
}

pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no reason given".to_owned())
}

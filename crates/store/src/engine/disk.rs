//! The tables and the journal on their medium: opening, reading, writing, and opening again after an error.
//! Invariant: nothing is visible to anyone before it is durable.

use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};
use std::thread;
use std::time::Duration;

use redb::{Database, Durability, ReadTransaction, ReadableDatabase, StorageBackend};

use super::Options;
use super::check::Report;
use super::early::Early;
use super::failure::{Failure, FailureKind, OpenError, ReadError};
use super::hub::lock;
use super::journal::{Journal, Record, Sheet};
use super::key::{Key, Stored};
use super::medium::{Guarded, Medium, Tally};
use super::overlay::pages_are_sound;
use super::tables::{FORMAT, Meta, ReadTables, WriteTables};

/// How long to wait for readers of a database that is about to be closed, in steps of a millisecond.
const CLOSE_STEPS: u32 = 2_000;

/// How many bytes say that a file is redb's.
const MAGIC_LEN: usize = 9;

pub(super) struct Disk {
    medium: Box<dyn Medium>,
    options: Options,
    tally: Arc<Tally>,
    /// The open tables, or why they are not open.
    database: RwLock<Result<Arc<Database>, Failure>>,
    /// Held by whoever writes.
    journal: Mutex<Option<Journal>>,
    early: Early,
    pub commits: AtomicU64,
    pub checkpoints: AtomicU64,
}

/// What a body did to the tables.
pub(super) struct Written {
    /// The revision of the first row.
    pub first: u64,
    /// Whether anything at all has changed.
    pub dirty: bool,
}

/// The failure of a read that asked for no revision: nothing but the disk can go wrong.
pub(super) fn newest(error: ReadError) -> Failure {
    match error {
        ReadError::Failed(failure) => failure,
        other => Failure::damaged(other.to_string()),
    }
}

impl Disk {
    pub fn open(medium: Box<dyn Medium>, options: Options) -> Result<Disk, OpenError> {
        let place = medium.place();
        let disk = Disk {
            medium,
            options,
            tally: Arc::new(Tally::default()),
            database: RwLock::new(Err(Failure::closed())),
            journal: Mutex::new(None),
            early: Early::default(),
            commits: AtomicU64::new(0),
            checkpoints: AtomicU64::new(0),
        };
        if disk.options.verify {
            disk.verify_pages().map_err(|failure| OpenError::at(&place, failure))?;
        }
        let opened = disk.open_both().map_err(|failure| OpenError::at(&place, failure))?;
        let meta = opened.2;
        if meta.format != FORMAT {
            return Err(OpenError::Format { place, found: meta.format, known: FORMAT });
        }
        disk.install(opened.0, opened.1);
        if disk.options.verify {
            let report = disk.check().map_err(|failure| OpenError::at(&place, failure))?;
            if let Some(cause) = report.summary() {
                return Err(OpenError::Damaged { place, cause });
            }
        }
        Ok(disk)
    }

    pub fn syncs(&self) -> u64 {
        self.tally.syncs.load(Ordering::Relaxed)
    }

    /// Before anything trusts the tables, and without a change to them.
    fn verify_pages(&self) -> Result<(), Failure> {
        let data = self.medium.data()?;
        if is_unfinished(&*data)? || pages_are_sound(data, self.options.cache_bytes)? {
            return Ok(());
        }
        Err(Failure::damaged("pages of the tables do not have the content that was written"))
    }

    fn install(&self, database: Database, journal: Journal) {
        *lock(&self.journal) = Some(journal);
        *self.database_slot() = Ok(Arc::new(database));
    }

    fn database_slot(&self) -> RwLockWriteGuard<'_, Result<Arc<Database>, Failure>> {
        self.database.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn guarded(&self, file: io::Result<Box<dyn StorageBackend>>) -> Result<Guarded, Failure> {
        Ok(Guarded::new(file?, self.tally.clone(), self.options.on_sync_failure.clone()))
    }

    /// Opens the tables (which takes the lock), then the journal, and brings the tables up to date.
    fn open_both(&self) -> Result<(Database, Journal, Meta), Failure> {
        let (data, file) = (self.guarded(self.medium.data())?, self.guarded(self.medium.journal())?);
        let is_new = Journal::is_new(&file)?;
        if is_new {
            discard_unfinished(&data)?;
        }
        let mut builder = Database::builder();
        builder.set_cache_size(self.options.cache_bytes);
        let database = no_panic(|| builder.create_with_backend(data).map_err(Failure::from))?;
        let mut meta = no_panic(|| meta_or_empty(&database))?;
        if meta.format > FORMAT {
            // Written by a newer program: look at nothing else, change nothing.
            let (journal, _) = Journal::open(file, 0, u64::MAX)?;
            return Ok((database, journal, meta));
        }
        if meta.format != 0 && is_new {
            return Err(Failure::damaged("the journal is missing or empty, and with it the latest writes"));
        }
        let (journal, records) = Journal::open(file, self.options.journal_bytes, meta.epoch)?;
        if meta.format == 0 {
            if !records.is_empty() {
                return Err(Failure::damaged("the tables are missing or empty, the journal is not"));
            }
            meta.format = FORMAT;
            no_panic(|| commit_meta(&database, &meta))?;
        }
        no_panic(|| replay(&database, records, &mut meta))?;
        Ok((database, journal, meta))
    }

    /// The tables if they are open and may be trusted.
    fn database(&self) -> Result<Arc<Database>, Failure> {
        if self.tally.dead.load(Ordering::SeqCst) {
            return Err(Failure::new(FailureKind::Closed, "its disk failed to make data durable"));
        }
        self.database.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the newest state. The transaction ends with the call.
    pub fn read<T>(&self, body: impl FnOnce(&ReadTables) -> Result<T, ReadError>) -> Result<T, ReadError> {
        self.read_with(|txn| body(&ReadTables::open(txn)?))
    }

    /// One object as it is now; the tables that this does not need are not opened.
    pub fn read_object(&self, key: &Key) -> Result<Option<Stored>, ReadError> {
        self.read_with(|txn| Ok(ReadTables::object_of(txn, key)?))
    }

    fn read_with<T>(
        &self,
        body: impl FnOnce(&ReadTransaction) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let result = self
            .database()
            .map_err(ReadError::from)
            .and_then(|database| no_panic(|| body(&database.begin_read().map_err(Failure::from)?)));
        if let Err(ReadError::Failed(failure)) = &result
            && matches!(failure.kind, FailureKind::Io | FailureKind::Full)
            // Whoever writes meets the same error and heals by himself.
            && let Ok(mut journal) = self.journal.try_lock()
        {
            self.heal(&mut journal);
        }
        result
    }

    /// Reads the newest state, where nothing but the disk can go wrong.
    pub fn look<T>(&self, body: impl FnOnce(&ReadTables) -> Result<T, Failure>) -> Result<T, Failure> {
        self.read(|tables| Ok(body(tables)?)).map_err(newest)
    }

    pub fn meta(&self) -> Result<Meta, Failure> {
        self.look(|tables| tables.meta())
    }

    pub fn check(&self) -> Result<Report, Failure> {
        self.look(ReadTables::check)
    }

    /// Changes the tables and makes that durable; the body puts its rows on the sheet. After an error, `Ok` may still be the truth: see [`Disk::heal`].
    pub fn write(
        &self,
        body: impl FnOnce(&mut WriteTables<'_>, &mut Meta, &mut Sheet) -> Result<Written, Failure>,
    ) -> Result<(), Failure> {
        let mut guard = lock(&self.journal);
        if guard.is_none() {
            // The last try to heal did not work; things may be better now.
            self.heal(&mut guard);
        }
        let result = match guard.as_mut() {
            Some(journal) => no_panic(|| self.write_with(journal, body)),
            None => self.database().map(drop).and(Err(Failure::closed())),
        };
        if result.is_err() {
            self.heal(&mut guard);
        }
        result
    }

    fn write_with(
        &self,
        journal: &mut Journal,
        body: impl FnOnce(&mut WriteTables<'_>, &mut Meta, &mut Sheet) -> Result<Written, Failure>,
    ) -> Result<(), Failure> {
        let database = self.database()?;
        if journal.is_half_full() {
            self.checkpoint_with(&database, journal)?;
        }
        let mut txn = database.begin_write()?;
        let mut tables = WriteTables::open(&txn)?;
        let before = tables.meta()?;
        let mut meta = before;
        let mut sheet = journal.sheet();
        let written = body(&mut tables, &mut meta, &mut sheet)?;
        if !written.dirty {
            drop(tables);
            return Ok(txn.abort()?);
        }
        // Without rows, only compaction was done.
        let fits = sheet.is_empty() || journal.append(written.first, &mut sheet)?;
        journal.keep(sheet);
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
            self.early.ask();
        }
        Ok(())
    }

    /// The thread that does checkpoints in quiet moments, until [`Disk::close`].
    pub fn tidy(&self) {
        self.early.run(|| self.commits.load(Ordering::Relaxed), || self.checkpoint_early());
    }

    fn checkpoint_early(&self) {
        // Whoever writes now asks again.
        let Ok(mut guard) = self.journal.try_lock() else { return };
        let Some(journal) = guard.as_mut().filter(|journal| journal.is_long()) else { return };
        if no_panic(|| self.checkpoint_with(&*self.database()?, journal)).is_err() {
            self.heal(&mut guard);
        }
    }

    /// Whether the next write comes with more than its own work: a checkpoint, or opening again after an error.
    pub fn is_checkpoint_due(&self) -> bool {
        match self.journal.try_lock() {
            Ok(journal) => journal.as_ref().is_none_or(Journal::is_half_full),
            Err(_) => true,
        }
    }

    /// Makes the tables durable by themselves.
    pub fn checkpoint(&self) -> Result<(), Failure> {
        let mut guard = lock(&self.journal);
        match guard.as_mut() {
            Some(journal) => no_panic(|| self.checkpoint_with(&*self.database()?, journal)),
            None => Err(Failure::closed()),
        }
    }

    fn checkpoint_with(&self, database: &Database, journal: &mut Journal) -> Result<(), Failure> {
        let mut meta = database_meta(database)?;
        meta.epoch += 1;
        commit_meta(database, &meta)?;
        journal.restart(meta.epoch);
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the tables durable and lets go of the files, also if watchers still refer to them. If the checkpoint
    /// fails nothing is lost: the journal has everything.
    pub fn close(&self) {
        self.early.close();
        let _ = self.checkpoint();
        *lock(&self.journal) = None;
        let closed = std::mem::replace(&mut *self.database_slot(), Err(Failure::closed()));
        // A damaged file can make redb panic here, too.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(closed)));
    }

    /// Closes and opens again after an error: redb refuses to go on after one. What was acknowledged comes back
    /// from the journal; what was not may come back too, if it had reached the disk.
    fn heal(&self, journal: &mut Option<Journal>) {
        if self.tally.dead.load(Ordering::SeqCst) {
            return;
        }
        let mut slot = self.database_slot();
        let closed = std::mem::replace(&mut *slot, Err(Failure::closed()));
        if let Ok(database) = closed
            && let Err(database) = close(database)
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
            Err(failure) => *slot = Err(failure),
        }
    }
}

fn is_unfinished(data: &dyn StorageBackend) -> Result<bool, Failure> {
    let mut magic = [0; MAGIC_LEN];
    if data.len()? >= magic.len() as u64 {
        data.read(0, &mut magic)?;
    }
    Ok(magic == [0; MAGIC_LEN])
}

/// A first start that was cut short, by a full disk for instance, leaves a file without redb's magic bytes, which
/// come last. It never held anything, so it begins again.
fn discard_unfinished(data: &Guarded) -> Result<(), Failure> {
    let whole = (Bound::Unbounded, Bound::Unbounded);
    // Without locks, as on media of tests, there is no other process either.
    let locked = match data.try_lock_range(whole.0, whole.1) {
        Ok(true) => true,
        Ok(false) => return Err(Failure::new(FailureKind::InUse, "the file is locked")),
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

/// Waits for the readers, then closes. The database comes back if someone does not let go.
fn close(mut database: Arc<Database>) -> Result<(), Arc<Database>> {
    for _ in 0..CLOSE_STEPS {
        match Arc::try_unwrap(database) {
            Ok(database) => {
                // What redb cannot write any more is in the journal.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(database)));
                return Ok(());
            }
            Err(shared) => database = shared,
        }
        thread::sleep(Duration::from_millis(1));
    }
    Err(database)
}

fn database_meta(database: &Database) -> Result<Meta, Failure> {
    ReadTables::open(&database.begin_read()?)?.meta()
}

/// The numbers of a database that may have no tables yet.
fn meta_or_empty(database: &Database) -> Result<Meta, Failure> {
    let txn = database.begin_read()?;
    if txn.list_tables()?.next().is_none() { Ok(Meta::default()) } else { ReadTables::open(&txn)?.meta() }
}

/// Writes the numbers, and with them everything before, durably.
pub(super) fn commit_meta(database: &Database, meta: &Meta) -> Result<(), Failure> {
    let mut txn = database.begin_write()?;
    txn.set_quick_repair(true);
    WriteTables::open(&txn)?.set_meta(meta)?;
    Ok(txn.commit()?)
}

/// Applies what the journal has and the tables have not, in memory: the journal already is durable.
fn replay(database: &Database, records: Vec<Record>, meta: &mut Meta) -> Result<(), Failure> {
    let mut txn = database.begin_write()?;
    txn.set_durability(Durability::None)?;
    let mut tables = WriteTables::open(&txn)?;
    let mut sheet = Sheet::new();
    for record in records {
        for (revision, row) in (record.first..).zip(record.rows) {
            if revision <= meta.revision {
                continue;
            }
            if revision != meta.revision + 1 {
                let cause = format!("the journal goes on at {revision}, the tables end at {}", meta.revision);
                return Err(Failure::damaged(cause));
            }
            tables.apply(meta, row, &[], &mut sheet)?;
            sheet.clear();
        }
    }
    tables.set_meta(meta)?;
    drop(tables);
    Ok(txn.commit()?)
}

/// Damage can make redb panic where it trusts its pages; that must not be the end of more than this one call.
pub(super) fn no_panic<T, E: From<Failure>>(body: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        Err(Failure::damaged(format!("the tables cannot be read: {}", panic_text(&panic))).into())
    })
}

/// What a panic said.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no reason given".to_owned())
}

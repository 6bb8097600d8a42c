//! Group commit: one sync makes many writes durable. While one group is on its way to the disk the next one queues up, so
//! the cost per write falls with the load. A caller that is alone commits on its own thread; with
//! [`CommitMode::Inline`](super::CommitMode::Inline) every caller does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::block_on::block_on;
use super::error::{StorageError, WriteError};
use super::journal::RecordBuffer;
use super::key::{Revision, WatchEvent};
use super::sabotage::EngineSabotage;
use super::storage::{Written, panic_text};
use super::tables::{Meta, WriteTables};
use super::txn::{StagedWrites, Txn};
use super::watch_cache::lock;
use super::{EngineOptions, Shared};
use crate::sync::{Mutex, Ordering, Receiver, is_sabotaged};

/// Versions that one commit compacts at most, to bound its duration.
const COMPACT_STEP: u64 = 4_096;

/// A queued write.
pub(super) trait WriteJob: Send {
    /// Runs the caller's closure. `false`: it refused, and its changes are dropped.
    fn run(&mut self, txn: &mut Txn<'_>) -> bool;
    fn panicked(&mut self, text: String);
    /// The disk is full, and the write is not accepted then.
    fn refuse(&mut self, error: StorageError);
    /// Completes the caller's write: the group is durable, or it failed.
    fn finish(self: Box<Self>, error: Option<&StorageError>);
}

/// The writer thread. Closes the engine when the queue ends.
pub(super) fn run(shared: &Shared, queue: &Receiver<Box<dyn WriteJob>>) {
    let mut group: Vec<Box<dyn WriteJob>> = Vec::new();
    loop {
        if group.is_empty() {
            match queue.recv() {
                Ok(first) => group.push(first),
                Err(_) => break,
            }
        }
        let _guard = lock(&shared.commit_lock);
        group.extend(queue.try_iter().take(shared.options.group.saturating_sub(group.len())));
        let count = group.len();
        group = commit(shared, group);
        shared.last_group.store(count - group.len(), Ordering::Relaxed);
        shared.queued.fetch_sub(count - group.len(), Ordering::SeqCst);
    }
    close(shared);
}

pub(super) fn close(shared: &Shared) {
    shared.watch_cache.close();
    shared.storage.close();
}

/// Commits on the caller's thread, after a commit in progress.
pub(super) fn commit_inline(shared: &Shared, job: Box<dyn WriteJob>) {
    let _guard = lock(&shared.commit_lock);
    // A job alone is always part of the group, so nothing is left over.
    commit(shared, vec![job]);
}

/// Commits on the caller's thread if no other write is running or queued; otherwise returns the job. After a group of
/// several writes more are likely to follow, and the caller's thread is needed to read them.
pub(super) fn try_commit_alone(shared: &Shared, job: Box<dyn WriteJob>) -> Option<Box<dyn WriteJob>> {
    let Ok(_guard) = shared.commit_lock.try_lock() else { return Some(job) };
    if shared.last_group.load(Ordering::Relaxed) > 1 {
        return Some(job);
    }
    // A checkpoint takes long and is left to the writer thread.
    let is_queued = shared.queued.load(Ordering::SeqCst) > 0 && !is_sabotaged(EngineSabotage::IgnoredQueue);
    if is_queued || shared.storage.is_checkpoint_due() {
        return Some(job);
    }
    commit(shared, vec![job]).pop()
}

/// Commits as much of a group as may share a sync; returns the rest for the next commit.
fn commit(shared: &Shared, mut group: Vec<Box<dyn WriteJob>>) -> Vec<Box<dyn WriteJob>> {
    let (mut events, mut done) = (Vec::new(), group.len());
    let result = shared.storage.write(|tables, meta, buffer| {
        let is_full = shared.storage.is_full();
        let ran = run_group(&shared.options, is_full, tables, meta, buffer, &mut group)?;
        (events, done) = (ran.events, ran.jobs);
        Ok(ran.written)
    });
    let left = group.split_off(done);
    let error = match result {
        Err(error) => (!read_back(shared, &mut events)).then_some(error),
        Ok(()) => {
            close_gap(shared, &mut events);
            None
        }
    };
    if is_sabotaged(EngineSabotage::AnswerBeforePublish) {
        group.drain(..).for_each(|job| job.finish(error.as_ref()));
    }
    let affected = shared.watch_cache.publish(events);
    for job in group {
        job.finish(error.as_ref());
    }
    shared.watch_cache.notify(affected);
    left
}

/// After an error the disk decides what happened, even for writes that were reported as failed. Replaces the events by
/// those on disk that watchers have not seen; true if all of this group's are among them.
fn read_back(shared: &Shared, events: &mut Vec<WatchEvent>) -> bool {
    let last = events.last().map(|last| last.revision);
    events.clear();
    let published = shared.watch_cache.revision();
    let read = shared.storage.read_newest(|tables| tables.events_after(published.0, usize::MAX, usize::MAX));
    if let Ok(found) = read {
        *events = found;
    }
    last.is_some_and(|last| events.last().is_some_and(|found| found.revision >= last))
}

/// Events of an earlier group that failed and reached the disk after all come before this group's.
fn close_gap(shared: &Shared, events: &mut Vec<WatchEvent>) {
    let expected = shared.watch_cache.revision().next();
    if events.first().is_some_and(|first| first.revision != expected) {
        read_back(shared, events);
    }
}

struct GroupResult {
    written: Written,
    events: Vec<WatchEvent>,
    /// How many jobs of the group ran.
    jobs: usize,
}

fn run_group(
    options: &EngineOptions,
    is_full: bool,
    tables: &mut WriteTables<'_>,
    meta: &mut Meta,
    buffer: &mut RecordBuffer,
    group: &mut [Box<dyn WriteJob>],
) -> Result<GroupResult, StorageError> {
    let first = meta.revision.saturating_add(1);
    let (mut events, mut jobs) = (Vec::with_capacity(group.len()), 0);
    let mut compact_to = due_compaction(options, meta);
    for job in group {
        if buffer.len() > options.group_bytes {
            break;
        }
        jobs += 1;
        let mut txn = Txn::new(&*tables, Revision(meta.revision));
        if !run_job(job.as_mut(), &mut txn) {
            continue;
        }
        let StagedWrites { rows, compact_to: wanted, cached, allowed_on_full_disk } = txn.into_parts();
        if is_full && !allowed_on_full_disk {
            job.refuse(StorageError::full());
            continue;
        }
        if is_full {
            // What was deleted takes space until its versions are removed.
            compact_to = meta.revision;
        }
        compact_to = compact_to.max(wanted.map_or(0, |wanted| wanted.0));
        for row in rows {
            events.push(tables.apply(meta, row, &cached, buffer)?);
        }
    }
    let compacted = meta.compacted;
    tables.compact(meta, compact_to, COMPACT_STEP)?;
    let dirty = !events.is_empty() || meta.compacted != compacted;
    Ok(GroupResult { written: Written { first, dirty }, events, jobs })
}

fn run_job(job: &mut dyn WriteJob, txn: &mut Txn<'_>) -> bool {
    match catch_unwind(AssertUnwindSafe(|| job.run(txn))) {
        Ok(agreed) => agreed,
        Err(panic) => {
            job.panicked(panic_text(panic.as_ref()));
            false
        }
    }
}

/// The revision to compact to when the log has too many revisions or bytes. A sixteenth of slack keeps most commits free
/// of compaction.
fn due_compaction(options: &EngineOptions, meta: &Meta) -> u64 {
    let length = meta.revision.saturating_sub(meta.compacted);
    let mut to = 0;
    if length > options.log_revisions + options.log_revisions / 16 {
        to = meta.revision.saturating_sub(options.log_revisions);
    }
    if meta.log_bytes > options.log_bytes + options.log_bytes / 16 {
        let surplus = (meta.log_bytes - options.log_bytes) as u128;
        let share = surplus * u128::from(length) / u128::from(meta.log_bytes);
        to = to.max(meta.compacted.saturating_add(share as u64).saturating_add(1));
    }
    to
}

/// A submitted write: a future, or for plain threads something to wait for.
pub struct PendingWrite<T, E> {
    slot: Arc<Mutex<OutcomeSlot<T, E>>>,
}

struct OutcomeSlot<T, E> {
    outcome: Option<Result<T, WriteError<E>>>,
    waker: Option<Waker>,
}

impl<T, E> PendingWrite<T, E> {
    /// Waits until the write is durable, or has failed.
    pub fn wait(mut self) -> Result<T, WriteError<E>> {
        block_on(|context| Pin::new(&mut self).poll(context))
    }
}

impl<T, E> Future for PendingWrite<T, E> {
    type Output = Result<T, WriteError<E>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = lock(&self.slot);
        match slot.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// A caller's closure, and the slot for its outcome.
pub(super) struct WriteCall<F, T, E> {
    closure: Option<F>,
    outcome: Option<Result<T, WriteError<E>>>,
    slot: Arc<Mutex<OutcomeSlot<T, E>>>,
}

impl<F, T, E> WriteCall<F, T, E> {
    pub(super) fn new(closure: F) -> (WriteCall<F, T, E>, PendingWrite<T, E>) {
        let slot = Arc::new(Mutex::new(OutcomeSlot { outcome: None, waker: None }));
        (WriteCall { closure: Some(closure), outcome: None, slot: slot.clone() }, PendingWrite { slot })
    }
}

impl<F, T, E> WriteJob for WriteCall<F, T, E>
where
    F: FnOnce(&mut Txn<'_>) -> Result<T, E> + Send,
    T: Send,
    E: Send,
{
    fn run(&mut self, txn: &mut Txn<'_>) -> bool {
        let Some(closure) = self.closure.take() else { return false };
        let outcome = closure(txn);
        let agreed = outcome.is_ok();
        self.outcome = Some(outcome.map_err(WriteError::Refused));
        agreed
    }

    fn panicked(&mut self, text: String) {
        self.outcome = Some(Err(WriteError::Panicked(text.into())));
    }

    fn refuse(&mut self, error: StorageError) {
        self.outcome = Some(Err(WriteError::Failed(error)));
    }

    fn finish(mut self: Box<Self>, error: Option<&StorageError>) {
        // A refused write has its outcome, whatever happened to the rest of the group.
        if let Some(error) = error
            && !matches!(self.outcome, Some(Err(_)))
        {
            self.outcome = Some(Err(WriteError::Failed(error.clone())));
        }
    }
}

/// Sets the outcome; a job that never ran, because the engine ended first, reports that.
impl<F, T, E> Drop for WriteCall<F, T, E> {
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| Err(WriteError::Failed(StorageError::closed())));
        let waker = {
            let mut slot = lock(&self.slot);
            slot.outcome = Some(outcome);
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

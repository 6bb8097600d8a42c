//! The writer: one thread that runs writes, many of them per sync; a caller who is alone takes its place.
//! While one group is on its way to the disk the next one gathers, so the busier it is the less each write costs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::disk::{Written, panic_text};
use super::failure::{Failure, WriteError};
use super::hub::lock;
use super::journal::Sheet;
use super::key::{Change, Revision};
use super::tables::{Meta, WriteTables};
use super::txn::{Parts, Txn};
use super::{Options, Shared, park};

/// How many versions one commit compacts at most, so that nobody waits long for it.
const COMPACT_STEP: u64 = 4_096;

/// A write that waits for its turn.
pub(super) trait Job: Send {
    /// Runs the caller's closure. `false`: it refused, its changes shall be dropped.
    fn run(&mut self, txn: &mut Txn<'_>) -> bool;
    /// The closure panicked.
    fn panicked(&mut self, text: String);
    /// The group is durable, or it failed: the caller gets his answer.
    fn finish(self: Box<Self>, failure: Option<&Failure>);
}

pub(super) fn run(shared: &Shared, queue: &Receiver<Box<dyn Job>>) {
    let mut group: Vec<Box<dyn Job>> = Vec::new();
    loop {
        if group.is_empty() {
            match queue.recv() {
                Ok(first) => group.push(first),
                Err(_) => break,
            }
        }
        let _turn = lock(&shared.turn);
        group.extend(queue.try_iter().take(shared.options.group.saturating_sub(group.len())));
        let count = group.len();
        group = commit(shared, group);
        shared.company.store(count - group.len(), Ordering::Relaxed);
        shared.waiting.fetch_sub(count - group.len(), Ordering::SeqCst);
    }
    shared.hub.close();
    shared.disk.close();
}

/// Does a job on the caller's thread if nobody writes and nobody waits; otherwise gives it back. Where writes just
/// shared a commit more of them are about to come, and the caller's thread is needed to read them.
pub(super) fn do_alone(shared: &Shared, job: Box<dyn Job>) -> Option<Box<dyn Job>> {
    let Ok(_turn) = shared.turn.try_lock() else { return Some(job) };
    if shared.company.load(Ordering::Relaxed) > 1 {
        return Some(job);
    }
    // A checkpoint takes long; the writer's thread has nothing else to do.
    if shared.waiting.load(Ordering::SeqCst) > 0 || shared.disk.is_checkpoint_due() {
        return Some(job);
    }
    // One job alone always has its turn, so nothing is left.
    commit(shared, vec![job]).pop()
}

/// Commits as much of a group as may share a sync; the result is what is left for the next one.
fn commit(shared: &Shared, mut group: Vec<Box<dyn Job>>) -> Vec<Box<dyn Job>> {
    let (mut changes, mut done) = (Vec::new(), group.len());
    let result = shared.disk.write(|tables, meta, sheet| {
        let ran = run_group(&shared.options, tables, meta, sheet, &mut group)?;
        (changes, done) = (ran.changes, ran.jobs);
        Ok(ran.written)
    });
    let left = group.split_off(done);
    let failure = match result {
        Err(failure) => (!settle(shared, &mut changes)).then_some(failure),
        Ok(()) => {
            close_gap(shared, &mut changes);
            None
        }
    };
    let touched = shared.hub.publish(changes);
    for job in group {
        job.finish(failure.as_ref());
    }
    shared.hub.wake(touched);
    left
}

/// After an error: what the disk really has is what happened, also if the callers had given it up. Leaves the
/// changes that watchers have not seen, and says whether all of this group's are among them.
fn settle(shared: &Shared, changes: &mut Vec<Change>) -> bool {
    let last = changes.last().map(|last| last.revision);
    changes.clear();
    let published = shared.hub.revision();
    let read = shared.disk.look(|tables| tables.changes_after(published.0, usize::MAX, usize::MAX));
    if let Ok(found) = read {
        *changes = found;
    }
    last.is_some_and(|last| changes.last().is_some_and(|found| found.revision >= last))
}

/// What an earlier group had given up and the disk kept after all comes before this group's changes.
fn close_gap(shared: &Shared, changes: &mut Vec<Change>) {
    let expected = shared.hub.revision().next();
    if changes.first().is_some_and(|first| first.revision != expected) {
        settle(shared, changes);
    }
}

/// What a group did, and how many of its jobs had their turn.
struct Ran {
    written: Written,
    changes: Vec<Change>,
    jobs: usize,
}

fn run_group(
    options: &Options,
    tables: &mut WriteTables<'_>,
    meta: &mut Meta,
    sheet: &mut Sheet,
    group: &mut [Box<dyn Job>],
) -> Result<Ran, Failure> {
    let first = meta.revision.saturating_add(1);
    let (mut changes, mut jobs) = (Vec::with_capacity(group.len()), 0);
    let mut compact_to = due_compaction(options, meta);
    for job in group {
        if sheet.len() > options.group_bytes {
            break;
        }
        jobs += 1;
        let mut txn = Txn::new(&*tables, Revision(meta.revision));
        if !run_job(job.as_mut(), &mut txn) {
            continue;
        }
        let Parts { rows, compact_to: wanted, seen } = txn.into_parts();
        compact_to = compact_to.max(wanted.map_or(0, |wanted| wanted.0));
        for row in rows {
            changes.push(tables.apply(meta, row, &seen, sheet)?);
        }
    }
    let compacted = meta.compacted;
    tables.compact(meta, compact_to, COMPACT_STEP)?;
    let dirty = !changes.is_empty() || meta.compacted != compacted;
    Ok(Ran { written: Written { first, dirty }, changes, jobs })
}

fn run_job(job: &mut dyn Job, txn: &mut Txn<'_>) -> bool {
    match catch_unwind(AssertUnwindSafe(|| job.run(txn))) {
        Ok(agreed) => agreed,
        Err(panic) => {
            job.panicked(panic_text(panic.as_ref()));
            false
        }
    }
}

/// Up to where the log has to go, because it is too long or too heavy. A sixteenth of slack, so that not
/// every commit has to do a little.
fn due_compaction(options: &Options, meta: &Meta) -> u64 {
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

/// A write on its way: a future, and for plain threads something to wait for.
pub struct Pending<T, E> {
    slot: Arc<Mutex<Slot<T, E>>>,
}

struct Slot<T, E> {
    outcome: Option<Result<T, WriteError<E>>>,
    waker: Option<Waker>,
}

impl<T, E> Pending<T, E> {
    /// Waits until the write is durable, or has failed.
    pub fn wait(mut self) -> Result<T, WriteError<E>> {
        let outcome = park::wait(None, |context| Pin::new(&mut self).poll(context));
        outcome.unwrap_or_else(|| Err(WriteError::Failed(Failure::closed())))
    }
}

impl<T, E> Future for Pending<T, E> {
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

/// A caller's closure with the place for its answer.
pub(super) struct Call<F, T, E> {
    closure: Option<F>,
    outcome: Option<Result<T, WriteError<E>>>,
    slot: Arc<Mutex<Slot<T, E>>>,
}

impl<F, T, E> Call<F, T, E> {
    pub fn new(closure: F) -> (Call<F, T, E>, Pending<T, E>) {
        let slot = Arc::new(Mutex::new(Slot { outcome: None, waker: None }));
        (Call { closure: Some(closure), outcome: None, slot: slot.clone() }, Pending { slot })
    }
}

impl<F, T, E> Job for Call<F, T, E>
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

    fn finish(mut self: Box<Self>, failure: Option<&Failure>) {
        // Who refused has his answer, whatever became of the others.
        if let Some(failure) = failure
            && !matches!(self.outcome, Some(Err(_)))
        {
            self.outcome = Some(Err(WriteError::Failed(failure.clone())));
        }
    }
}

/// Also the way out for a job that was never run, because the engine ended first.
impl<F, T, E> Drop for Call<F, T, E> {
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| Err(WriteError::Failed(Failure::closed())));
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

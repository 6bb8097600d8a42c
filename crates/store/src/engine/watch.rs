//! A watch: every change of a resource after a revision, once and in order.
//! From the ring in memory while it can keep up, from the log on disk when it cannot, and an end with
//! [`ReadError::Gone`] when the log has moved on.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::failure::{Failure, ReadError};
use super::hub::{Interest, Ring, Sleeper};
use super::key::{Change, Revision};
use super::list::readable_at;
use super::{Shared, park};

/// How many changes a step hands out, and how many it reads from disk at most: neither memory nor the time of
/// one step grows with how far a watcher is behind.
const STEP: usize = 256;

/// Sees every change that it is interested in, once and in order.
pub struct Watcher {
    shared: Arc<Shared>,
    interest: Interest,
    sleeper: Arc<Sleeper>,
    /// Every change up to here was handed out or is of no interest.
    seen: Revision,
}

impl Watcher {
    pub(super) fn new(shared: Arc<Shared>, interest: Interest, from: Revision) -> Result<Watcher, ReadError> {
        if from > shared.hub.revision() || shared.hub.ring().after(from).is_none() {
            shared.disk.read(|tables| readable_at(&tables.meta()?, Some(from)))?;
        }
        let sleeper = shared.hub.enter(&interest);
        Ok(Watcher { shared, interest, sleeper, seen: from })
    }

    /// The revision up to which nothing is missing: what a bookmark says. Call [`Watcher::ready`] first to
    /// move it over the changes of others.
    pub fn progress(&self) -> Revision {
        self.seen
    }

    /// The next changes if there are any, without waiting; empty if not.
    pub fn ready(&mut self) -> Result<Vec<Arc<Change>>, ReadError> {
        loop {
            if let Some(changes) = self.step()? {
                return Ok(changes);
            }
        }
    }

    /// The next changes, never empty; wakes the task when there are some.
    pub fn poll_changes(&mut self, context: &mut Context<'_>) -> Poll<Result<Vec<Arc<Change>>, ReadError>> {
        // Before looking, so that a change between looking and sleeping wakes us.
        self.sleeper.sleep(context.waker());
        match self.ready() {
            Ok(changes) if changes.is_empty() => Poll::Pending,
            other => Poll::Ready(other),
        }
    }

    /// The next changes, never empty.
    pub async fn changes(&mut self) -> Result<Vec<Arc<Change>>, ReadError> {
        std::future::poll_fn(|context| self.poll_changes(context)).await
    }

    /// The next changes, for plain threads; empty if none came in time.
    pub fn wait(&mut self, timeout: Duration) -> Result<Vec<Arc<Change>>, ReadError> {
        let deadline = Instant::now().checked_add(timeout);
        park::wait(deadline, |context| self.poll_changes(context)).unwrap_or(Ok(Vec::new()))
    }

    /// `None` means: there may be more at once.
    fn step(&mut self) -> Result<Option<Vec<Arc<Change>>>, ReadError> {
        let shared = self.shared.clone();
        let ring = shared.hub.ring();
        match self.take_from_ring(&ring) {
            Some(changes) if changes.is_empty() && ring.closed => Err(Failure::closed().into()),
            Some(changes) => Ok(Some(changes)),
            None => {
                drop(ring);
                let changes = self.take_from_log()?;
                Ok((!changes.is_empty()).then_some(changes))
            }
        }
    }

    fn take_from_ring(&mut self, ring: &Ring) -> Option<Vec<Arc<Change>>> {
        let mut found = Vec::new();
        // A watcher may start at a revision that the ring is about to get.
        let mut seen = self.seen.max(ring.revision);
        for change in ring.after(self.seen)? {
            if !self.interest.covers(&change.key) {
                continue;
            }
            if found.len() == STEP {
                seen = found.last().map_or(seen, |last: &Arc<Change>| last.revision);
                break;
            }
            found.push(change.clone());
        }
        self.seen = seen;
        Some(found)
    }

    fn take_from_log(&mut self) -> Result<Vec<Arc<Change>>, ReadError> {
        let (seen, published) = (self.seen, self.shared.hub.revision());
        let changes = self.shared.disk.read(|tables| {
            readable_at(&tables.meta()?, Some(seen))?;
            Ok(tables.changes_after(seen.0, STEP)?)
        })?;
        // What is committed and not published yet comes by the ring.
        let changes = changes.into_iter().take_while(|change| change.revision <= published);
        let mut found = Vec::new();
        for change in changes {
            self.seen = change.revision;
            if self.interest.covers(&change.key) {
                found.push(Arc::new(change));
            }
        }
        if self.seen == seen {
            let cause = format!("the log should have revision {} and has not", seen.next());
            return Err(Failure::damaged(cause).into());
        }
        Ok(found)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.hub.leave(&self.interest, &self.sleeper);
    }
}

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
/// How many bytes of objects a step hands out, give or take the last change.
const STEP_BYTES: usize = 64 << 10;

/// Sees every change that it is interested in, once and in order.
pub struct Watcher {
    shared: Arc<Shared>,
    interest: Interest,
    sleeper: Arc<Sleeper>,
    /// Every change up to here was handed out or is of no interest.
    seen: Revision,
    /// Every change of interest that we were woken for is at most this one.
    told: Revision,
}

impl Watcher {
    pub(super) fn new(shared: Arc<Shared>, interest: Interest, from: Revision) -> Result<Watcher, ReadError> {
        if from > shared.hub.revision() || shared.hub.ring().after(from).is_none() {
            shared.disk.read(|tables| readable_at(&tables.meta()?, Some(from)))?;
        }
        let sleeper = shared.hub.enter(&interest);
        // After entering: whatever comes later wakes us.
        let told = shared.hub.revision();
        Ok(Watcher { shared, interest, sleeper, seen: from, told })
    }

    /// The revision up to which nothing is missing: what a bookmark says. Changes of others move it on once
    /// everything of interest has been handed out.
    pub fn progress(&mut self) -> Revision {
        // In this order: whoever wakes us says so before he says that he has.
        let announced = self.shared.hub.announced();
        if self.seen >= self.told && !self.sleeper.is_rung() {
            self.seen = self.seen.max(announced);
        }
        self.seen
    }

    /// Up to where changes were handed out or passed over.
    pub fn position(&self) -> Revision {
        self.seen
    }

    /// Goes on behind a revision up to which another watcher with the same interest was handed everything.
    pub fn skip_to(&mut self, revision: Revision) {
        self.seen = self.seen.max(revision);
    }

    /// Waits until there is news, and says up to where; [`Watcher::news`] has the changes. Many watchers hear of
    /// changes in waves: those with the same interest who keep up are all told of the same changes.
    pub fn poll_news(&mut self, context: &mut Context<'_>) -> Poll<Result<Revision, ReadError>> {
        // Before looking, so that a ring between looking and sleeping wakes us.
        self.sleeper.sleep(context.waker());
        self.hear();
        if self.seen < self.told {
            return Poll::Ready(Ok(self.told));
        }
        if self.shared.hub.ring().closed {
            return Poll::Ready(Err(Failure::closed().into()));
        }
        Poll::Pending
    }

    /// Takes note of what we were woken for. If everything before was handed out, then nothing up to there was of
    /// interest: so a watcher that has slept for long needs no part of the log that it slept through.
    fn hear(&mut self) {
        let Some(news) = self.sleeper.take_news() else { return };
        if self.seen >= self.told {
            self.seen = self.seen.max(Revision(news.first.0.saturating_sub(1)));
        }
        self.told = self.told.max(news.last);
    }

    /// The next changes of those that [`Watcher::poll_news`] told of; empty if none of them is of interest.
    pub fn news(&mut self) -> Result<Vec<Arc<Change>>, ReadError> {
        while self.seen < self.told {
            if let Some(changes) = self.step(self.told)?
                && !changes.is_empty()
            {
                return Ok(changes);
            }
        }
        Ok(Vec::new())
    }

    /// The next changes if there are any, without waiting; empty if not.
    pub fn ready(&mut self) -> Result<Vec<Arc<Change>>, ReadError> {
        loop {
            if let Some(changes) = self.step(Revision(u64::MAX))? {
                return Ok(changes);
            }
        }
    }

    /// The next changes, never empty; wakes the task when there are some. Looks at nothing before it was told of it:
    /// whoever looks earlier might need a part of the log that is of no interest, and gone.
    pub fn poll_changes(&mut self, context: &mut Context<'_>) -> Poll<Result<Vec<Arc<Change>>, ReadError>> {
        loop {
            match self.poll_news(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(_)) => {}
            }
            match self.news() {
                Ok(changes) if changes.is_empty() => {}
                other => return Poll::Ready(other),
            }
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

    /// Changes up to a revision. `None` means: there may be more at once.
    fn step(&mut self, last: Revision) -> Result<Option<Vec<Arc<Change>>>, ReadError> {
        let shared = self.shared.clone();
        let ring = shared.hub.ring();
        match self.take_from_ring(&ring, last) {
            Some(changes) if changes.is_empty() && ring.closed => Err(Failure::closed().into()),
            Some(changes) => Ok(Some(changes)),
            None => {
                drop(ring);
                let changes = self.take_from_log(last)?;
                Ok((!changes.is_empty()).then_some(changes))
            }
        }
    }

    fn take_from_ring(&mut self, ring: &Ring, last: Revision) -> Option<Vec<Arc<Change>>> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        // A watcher may start at a revision that the ring is about to get.
        let mut seen = self.seen.max(ring.revision.min(last));
        for change in ring.after(self.seen)?.take_while(|change| change.revision <= last) {
            if !self.interest.covers(&change.key) {
                continue;
            }
            if found.len() == STEP || bytes > STEP_BYTES {
                seen = found.last().map_or(seen, |last: &Arc<Change>| last.revision);
                break;
            }
            bytes += change.json.len();
            found.push(change.clone());
        }
        self.seen = seen;
        Some(found)
    }

    fn take_from_log(&mut self, last: Revision) -> Result<Vec<Arc<Change>>, ReadError> {
        let (seen, published) = (self.seen, self.shared.hub.revision().min(last));
        let changes = self.shared.disk.read(|tables| {
            readable_at(&tables.meta()?, Some(seen))?;
            Ok(tables.changes_after(seen.0, STEP, STEP_BYTES)?)
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

//! A watcher: every event of a scope after a revision, once and in order.
//! Events come from the event history in memory, or from the log on disk if the watcher is too far behind; if the log
//! was compacted past it, the watch ends with [`StoreReadError::Gone`].

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Shared;
use super::block_on::block_until;
use super::error::{StorageError, StoreReadError};
use super::event_history::EventHistory;
use super::key::{Revision, WatchEvent};
use super::list::readable_at;
use super::sabotage::EngineSabotage;
use super::watch_cache::{WatchScope, WatcherSlot};
use crate::sync::is_sabotaged;

/// Events per batch, and per read from disk: memory and time of one step do not depend on how far a watcher is behind.
const BATCH_EVENTS: usize = 256;
/// Bytes of objects per batch, not counting its last event.
const BATCH_BYTES: usize = 64 << 10;

/// Sees every event of its scope, once and in order.
pub struct Watcher {
    shared: Arc<Shared>,
    scope: WatchScope,
    slot: Arc<WatcherSlot>,
    /// Every event up to here was returned, or is out of scope.
    position: Revision,
    /// Every event that was notified is at or before this revision.
    notified: Revision,
}

impl Watcher {
    pub(super) fn new(
        shared: Arc<Shared>,
        scope: WatchScope,
        from: Revision,
    ) -> Result<Watcher, StoreReadError> {
        if from > shared.watch_cache.revision() || shared.watch_cache.history().after(from).is_none() {
            shared.storage.read(|tables| readable_at(&tables.meta()?, Some(from)))?;
        }
        let early = is_sabotaged(EngineSabotage::LateSubscription).then(|| shared.watch_cache.revision());
        let slot = shared.watch_cache.subscribe(&scope);
        // After the subscription: later events are notified.
        let notified = early.unwrap_or_else(|| shared.watch_cache.revision());
        Ok(Watcher { shared, scope, slot, position: from, notified })
    }

    /// The revision for a bookmark: no event up to here is missing. Events out of scope move it on once every event in
    /// scope was returned.
    pub fn progress(&mut self) -> Revision {
        // In this order: a notification is set before its revision counts as notified.
        let notified = self.shared.watch_cache.notified();
        if self.position >= self.notified && !self.slot.is_notified() {
            let sabotaged = is_sabotaged(EngineSabotage::EagerBookmark);
            let notified = if sabotaged { self.shared.watch_cache.notified() } else { notified };
            self.position = self.position.max(notified);
        }
        self.position
    }

    /// The revision up to which events were returned or skipped.
    pub(crate) fn position(&self) -> Revision {
        self.position
    }

    /// Skips to a revision up to which another watcher of the same scope got every event.
    pub(crate) fn skip_to(&mut self, revision: Revision) {
        self.position = self.position.max(revision);
    }

    /// Waits for new events and returns the revision they reach; [`Watcher::notified_events`] has the events. With many
    /// watchers, those of one scope that keep up are all notified of the same revisions.
    pub fn poll_notified(&mut self, context: &mut Context<'_>) -> Poll<Result<Revision, StoreReadError>> {
        // The waker comes first, so that a notification between the look and the return wakes the task.
        let is_late = is_sabotaged(EngineSabotage::WakerAfterLook);
        if !is_late {
            self.slot.set_waker(context.waker());
        }
        self.take_notification();
        if self.position < self.notified {
            return Poll::Ready(Ok(self.notified));
        }
        if self.shared.watch_cache.history().closed {
            return Poll::Ready(Err(StorageError::closed().into()));
        }
        if is_late {
            self.slot.set_waker(context.waker());
        }
        Poll::Pending
    }

    /// If all earlier events were returned, nothing before the notification is in scope: a watcher that was idle for long
    /// needs no part of the log from that time.
    fn take_notification(&mut self) {
        let Some(notification) = self.slot.take_notification() else { return };
        if self.position >= self.notified {
            self.position = self.position.max(Revision(notification.first.0.saturating_sub(1)));
        }
        self.notified = self.notified.max(notification.last);
    }

    /// The next batch of the events that [`Watcher::poll_notified`] announced; empty if none is in scope.
    pub fn notified_events(&mut self) -> Result<Vec<Arc<WatchEvent>>, StoreReadError> {
        while self.position < self.notified {
            if let Some(events) = self.step(self.notified)?
                && !events.is_empty()
            {
                return Ok(events);
            }
        }
        Ok(Vec::new())
    }

    /// The next events without waiting; empty if there are none.
    pub fn ready(&mut self) -> Result<Vec<Arc<WatchEvent>>, StoreReadError> {
        loop {
            if let Some(events) = self.step(Revision(u64::MAX))? {
                return Ok(events);
            }
        }
    }

    /// The next events, never empty. Reads nothing before it was notified: an earlier look might need a part of the log
    /// that is out of scope and compacted.
    pub fn poll_events(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Vec<Arc<WatchEvent>>, StoreReadError>> {
        loop {
            match self.poll_notified(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(_)) => {}
            }
            match self.notified_events() {
                Ok(events) if events.is_empty() => {}
                other => return Poll::Ready(other),
            }
        }
    }

    /// The next events, never empty.
    pub async fn events(&mut self) -> Result<Vec<Arc<WatchEvent>>, StoreReadError> {
        std::future::poll_fn(|context| self.poll_events(context)).await
    }

    /// The next events, for plain threads; empty after the timeout.
    pub fn wait(&mut self, timeout: Duration) -> Result<Vec<Arc<WatchEvent>>, StoreReadError> {
        let clock = self.shared.options.clock.clone();
        let deadline = clock.now() + timeout;
        block_until(&clock, deadline, |context| self.poll_events(context)).unwrap_or(Ok(Vec::new()))
    }

    /// Events up to a revision. `None`: there may be more at once.
    fn step(&mut self, last: Revision) -> Result<Option<Vec<Arc<WatchEvent>>>, StoreReadError> {
        let shared = self.shared.clone();
        let history = shared.watch_cache.history();
        match self.take_from_history(&history, last) {
            Some(events) if events.is_empty() && history.closed => Err(StorageError::closed().into()),
            Some(events) => Ok(Some(events)),
            None => {
                drop(history);
                let events = self.take_from_log(last)?;
                Ok((!events.is_empty()).then_some(events))
            }
        }
    }

    fn take_from_history(&mut self, history: &EventHistory, last: Revision) -> Option<Vec<Arc<WatchEvent>>> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        // A watcher may start at a revision that is not published yet.
        let mut position = self.position.max(history.revision.min(last));
        for event in history.after(self.position)?.take_while(|event| event.revision <= last) {
            if !self.scope.covers(&event.key) {
                continue;
            }
            if found.len() == BATCH_EVENTS || bytes > BATCH_BYTES {
                position = found.last().map_or(position, |last: &Arc<WatchEvent>| last.revision);
                break;
            }
            bytes += event.json.len();
            found.push(event.clone());
        }
        self.position = position;
        Some(found)
    }

    fn take_from_log(&mut self, last: Revision) -> Result<Vec<Arc<WatchEvent>>, StoreReadError> {
        let (position, published) = (self.position, self.shared.watch_cache.revision().min(last));
        let events = self.shared.storage.read(|tables| {
            readable_at(&tables.meta()?, Some(position))?;
            Ok(tables.events_after(position.0, BATCH_EVENTS, BATCH_BYTES)?)
        })?;
        // Events that are committed but not published follow from the event history.
        let events = events.into_iter().take_while(|event| event.revision <= published);
        let mut found = Vec::new();
        for event in events {
            self.position = event.revision;
            if self.scope.covers(&event.key) {
                found.push(Arc::new(event));
            }
        }
        if self.position == position {
            let cause = format!("revision {} is missing from the log", position.next());
            return Err(StorageError::damaged(cause).into());
        }
        Ok(found)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.watch_cache.unsubscribe(&self.scope, &self.slot);
    }
}

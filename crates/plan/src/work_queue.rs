//! The work queue of Services to sync, with batch period and backoff. Time is an argument.
//!
//! ```text
//! change -> dependents: the Services -> add -> waiting (batch period, backoff) -> next -> running
//!                                     ^                                                  |
//!                                     +---- changed in the meantime, or failed <- done --+
//! ```
//!
//! A key is waiting at most once and running at most once, so the queue is bounded by the number of Services. An added key
//! is handed out until a sync that started later succeeds.

mod expectations;
mod slice_losses;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::ServiceKey;

pub use expectations::{Expectations, SliceVersion};
pub use slice_losses::SliceLosses;

/// Monotonic time since a start that the caller chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MonotonicTime(pub Duration);

impl MonotonicTime {
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(delay))
    }
}

/// Delays of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueTiming {
    /// How long changes of pods are collected before their Service is synced.
    pub batch_period: Duration,
    /// Backoff after the first failure; it doubles with each further one.
    pub base_delay: Duration,
    /// Maximum backoff. Retries never end.
    pub max_delay: Duration,
}

impl Default for QueueTiming {
    fn default() -> Self {
        Self {
            batch_period: Duration::ZERO,
            base_delay: Duration::from_millis(20),
            max_delay: Duration::from_secs(60),
        }
    }
}

impl QueueTiming {
    pub fn backoff(&self, failures: u32) -> Duration {
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.base_delay.saturating_mul(doubled).min(self.max_delay)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncOutcome {
    Done,
    /// Retry with backoff.
    Failed,
}

/// The Services to sync.
#[derive(Debug, Default)]
pub struct WorkQueue {
    timing: QueueTiming,
    items: BTreeMap<ServiceKey, QueueItem>,
    /// By due time, then first in, first out.
    waiting: BTreeSet<(MonotonicTime, u64, ServiceKey)>,
    added: u64,
    running: usize,
}

/// The state of one key. Idle keys without failures are removed.
#[derive(Debug, Default)]
struct QueueItem {
    waiting: Option<(MonotonicTime, u64)>,
    running: bool,
    /// Due time of an addition while it was running.
    added_while_running: Option<MonotonicTime>,
    failures: u32,
}

impl WorkQueue {
    pub fn new(timing: QueueTiming) -> Self {
        Self { timing, ..Self::default() }
    }

    pub fn timing(&self) -> &QueueTiming {
        &self.timing
    }

    /// Adds a Service to sync at `due`. A waiting one moves forward, never back. A running one is added again afterwards,
    /// because it may have started before the change.
    pub fn add(&mut self, key: &ServiceKey, due: MonotonicTime) {
        let item = self.items.entry(key.clone()).or_default();
        if item.running {
            item.added_while_running = Some(item.added_while_running.map_or(due, |again| again.min(due)));
            return;
        }
        if item.waiting.is_some_and(|(earlier, _)| earlier <= due) {
            return;
        }
        if let Some((later, number)) = item.waiting.take() {
            self.waiting.remove(&(later, number, key.clone()));
        }
        self.added += 1;
        item.waiting = Some((due, self.added));
        self.waiting.insert((due, self.added, key.clone()));
    }

    /// The next key that is due. It is running until [`WorkQueue::done`].
    pub fn next(&mut self, now: MonotonicTime) -> Option<ServiceKey> {
        if self.waiting.first()?.0 > now {
            return None;
        }
        let (_, _, key) = self.waiting.pop_first()?;
        let item = self.items.entry(key.clone()).or_default();
        item.waiting = None;
        item.running = true;
        self.running += 1;
        Some(key)
    }

    /// When [`WorkQueue::next`] returns the next key.
    pub fn due(&self) -> Option<MonotonicTime> {
        self.waiting.first().map(|(due, _, _)| *due)
    }

    /// Reports the result of a sync. Keys that are not running are ignored.
    pub fn done(&mut self, key: &ServiceKey, outcome: SyncOutcome, now: MonotonicTime) {
        let Some(item) = self.items.get_mut(key).filter(|item| item.running) else { return };
        item.running = false;
        self.running -= 1;
        let again = item.added_while_running.take();
        let due = match outcome {
            SyncOutcome::Done => {
                item.failures = 0;
                again
            }
            SyncOutcome::Failed => {
                item.failures = item.failures.saturating_add(1);
                Some(now.after(self.timing.backoff(item.failures)))
            }
        };
        match due {
            Some(due) => self.add(key, due),
            None => drop(self.items.remove(key)),
        }
    }

    /// Consecutive failures of a key.
    pub fn failures(&self, key: &ServiceKey) -> u32 {
        self.items.get(key).map_or(0, |item| item.failures)
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn running(&self) -> usize {
        self.running
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running == 0
    }
}

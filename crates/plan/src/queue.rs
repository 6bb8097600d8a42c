//! Which Service is planned and written when. Time is an argument: the loop around it only waits and asks.
//!
//! ```text
//! a change -> touched: whom it concerns -> add --> waits (batch period, backoff) --> next -> one sync under way
//!                                           ^                                                      |
//!                                           +---- changed meanwhile, or failed <---- done ---------+
//! ```
//!
//! A key waits at most once and is under way at most once, so the queue is never larger than the number of
//! Services; a key that was added is handed out until a sync of it, begun later, says that all is done.

mod expect;
#[cfg(test)]
mod tests;
mod touch;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::ServiceKey;

pub use expect::{Expectations, Version};
pub use touch::{NodeChange, Selectors, node_changed, services_on_node, services_to_requeue};

/// A point in time, counted from a start that the caller chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub Duration);

impl Moment {
    /// The moment that much later.
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(delay))
    }
}

/// How long things wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long the changes of pods are gathered before their Service is planned.
    pub batch: Duration,
    /// The wait after the first failure; it doubles with each further one.
    pub first_retry: Duration,
    /// The longest wait after a failure. There is no last try: what is not written is not forgotten.
    pub longest_retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            batch: Duration::ZERO,
            first_retry: Duration::from_millis(20),
            longest_retry: Duration::from_secs(60),
        }
    }
}

impl Timing {
    /// The wait after so many failures in a row.
    pub fn backoff(&self, failures: u32) -> Duration {
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first_retry.saturating_mul(doubled).min(self.longest_retry)
    }
}

/// How a sync ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What was planned is written.
    Done,
    /// Something stood in the way: again later, and each time later.
    Failed,
}

/// The Services to sync, by when they are due.
#[derive(Debug, Default)]
pub struct Queue {
    timing: Timing,
    items: BTreeMap<ServiceKey, Item>,
    /// By when they are due, and then by who came first.
    waiting: BTreeSet<(Moment, u64, ServiceKey)>,
    added: u64,
    running: usize,
}

/// What is known of one key. A key that neither waits nor runs nor failed is not kept.
#[derive(Debug, Default)]
struct Item {
    waits: Option<(Moment, u64)>,
    running: bool,
    /// Added while it was under way: when it is due after that.
    again: Option<Moment>,
    failures: u32,
}

impl Queue {
    /// An empty queue.
    pub fn new(timing: Timing) -> Self {
        Self { timing, ..Self::default() }
    }

    /// How long things wait.
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    /// A Service has to be looked at, `due` at the latest. One that waits already moves forward, never back;
    /// one that is under way waits until that is over, because it may have seen the world before the change.
    pub fn add(&mut self, key: &ServiceKey, due: Moment) {
        let item = self.items.entry(key.clone()).or_default();
        if item.running {
            item.again = Some(item.again.map_or(due, |again| again.min(due)));
            return;
        }
        if item.waits.is_some_and(|(earlier, _)| earlier <= due) {
            return;
        }
        if let Some((later, number)) = item.waits.take() {
            self.waiting.remove(&(later, number, key.clone()));
        }
        self.added += 1;
        item.waits = Some((due, self.added));
        self.waiting.insert((due, self.added, key.clone()));
    }

    /// The next key that is due. It counts as under way until [`Queue::done`].
    pub fn next(&mut self, now: Moment) -> Option<ServiceKey> {
        if self.waiting.first()?.0 > now {
            return None;
        }
        let (_, _, key) = self.waiting.pop_first()?;
        let item = self.items.entry(key.clone()).or_default();
        item.waits = None;
        item.running = true;
        self.running += 1;
        Some(key)
    }

    /// When [`Queue::next`] has something, if nothing is added before.
    pub fn due(&self) -> Option<Moment> {
        self.waiting.first().map(|(due, _, _)| *due)
    }

    /// A sync is over. One that nobody began is no news.
    pub fn done(&mut self, key: &ServiceKey, outcome: Outcome, now: Moment) {
        let Some(item) = self.items.get_mut(key).filter(|item| item.running) else { return };
        item.running = false;
        self.running -= 1;
        let again = item.again.take();
        let due = match outcome {
            Outcome::Done => {
                item.failures = 0;
                again
            }
            Outcome::Failed => {
                item.failures = item.failures.saturating_add(1);
                Some(now.after(self.timing.backoff(item.failures)))
            }
        };
        match due {
            Some(due) => self.add(key, due),
            None => drop(self.items.remove(key)),
        }
    }

    /// How often in a row a key has failed.
    pub fn failures(&self, key: &ServiceKey) -> u32 {
        self.items.get(key).map_or(0, |item| item.failures)
    }

    /// How many keys wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many syncs are under way.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Whether nothing waits and nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running == 0
    }
}

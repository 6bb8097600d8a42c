//! Event history: the newest events of all objects in a bounded ring in memory, shared by all watchers.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::key::{Revision, StoreKey, WatchEvent};

#[derive(Clone, Copy, Debug)]
pub(super) struct HistoryLimits {
    pub events: usize,
    pub bytes: usize,
}

/// The newest events, without a gap.
pub(super) struct EventHistory {
    events: VecDeque<Arc<WatchEvent>>,
    /// The last event of each object in the history. Hashed, because every update looks here; never iterated.
    last_by_key: HashMap<StoreKey, Arc<WatchEvent>>,
    bytes: usize,
    limits: HistoryLimits,
    /// The newest revision that watchers may see.
    pub revision: Revision,
    /// The engine has ended; no event follows.
    pub closed: bool,
}

impl EventHistory {
    pub(super) fn new(revision: Revision, limits: HistoryLimits) -> EventHistory {
        let (events, last_by_key) = (VecDeque::new(), HashMap::new());
        EventHistory { events, last_by_key, bytes: 0, limits, revision, closed: false }
    }

    /// The events after a revision, or `None` if the history does not reach back that far.
    pub(super) fn after(&self, revision: Revision) -> Option<impl Iterator<Item = &Arc<WatchEvent>>> {
        let missing = self.revision.0.saturating_sub(revision.0);
        let skip = (self.events.len() as u64).checked_sub(missing)?;
        Some(self.events.range(skip as usize..))
    }

    /// The last event of an object, if the history still has it.
    pub(super) fn last_of(&self, key: &StoreKey) -> Option<&Arc<WatchEvent>> {
        self.last_by_key.get(key)
    }

    pub(super) fn push(&mut self, event: Arc<WatchEvent>) {
        self.revision = event.revision;
        self.bytes += event.memory();
        match self.last_by_key.get_mut(&event.key) {
            Some(last) => *last = event.clone(),
            None => drop(self.last_by_key.insert(event.key.clone(), event.clone())),
        }
        self.events.push_back(event);
        while self.events.len() > self.limits.events || self.bytes > self.limits.bytes {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= oldest.memory();
            if self.last_by_key.get(&oldest.key).is_some_and(|last| last.revision == oldest.revision) {
                self.last_by_key.remove(&oldest.key);
            }
        }
    }
}

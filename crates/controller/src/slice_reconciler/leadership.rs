//! Leading and standing by. A standby follows the watches and plans nothing; a new leader plans every Service from its
//! warm cache. Most plans then need no write, which costs microseconds each.

use plan::work_queue::{MonotonicTime, WorkQueue};
use tracing::info;

use super::SliceReconciler;
use crate::last_sync::ServiceCounts;

impl SliceReconciler {
    /// Starts planning, with every Service first.
    pub fn lead(&mut self, now: MonotonicTime) {
        self.leading = true;
        self.plan_all(now);
    }

    /// Stops planning. The state of Services is dropped: another leader may change it, and the slices hold it. Expected
    /// writes are kept, so that nothing is created twice.
    pub fn stand_by(&mut self) {
        self.leading = false;
        self.queue = WorkQueue::new(*self.queue.timing());
        self.in_flight.clear();
        self.unacknowledged.clear();
        self.planner.drains = None;
        self.recheck = None;
        for (_, last) in std::mem::take(&mut self.last_syncs) {
            self.metrics.recount(&last.counts, &ServiceCounts::default());
        }
        self.metrics.set_queue_depth(0);
    }

    /// Whether this process leads and all kinds have synced.
    pub(crate) fn plans(&self) -> bool {
        self.leading && self.synced
    }

    /// Enqueues every Service, if this process plans.
    pub(super) fn plan_all(&mut self, now: MonotonicTime) {
        if !self.plans() {
            return;
        }
        self.facts_changed = true;
        let snapshot = self.cache.snapshot();
        let keys = snapshot.services().map(|(service, _)| service.key.clone());
        let orphans = snapshot.orphaned_slices().map(|(key, _)| key.clone());
        for key in keys.chain(orphans).collect::<Vec<_>>() {
            self.queue.add(&key, now);
        }
        info!(services = self.queue.waiting(), "planning every Service");
    }
}

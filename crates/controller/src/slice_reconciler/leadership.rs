//! Leading and standing by. Whoever stands by follows the watches and plans nothing; when it is its turn, it plans every
//! Service at once from what it has in memory. Most plans then find nothing to write, which costs microseconds each.

use plan::work_queue::{MonotonicTime, WorkQueue};
use tracing::info;

use super::SliceReconciler;
use crate::service_state::ServiceCounts;

impl SliceReconciler {
    /// We lead: from now on plans are made, of everything first.
    pub fn lead(&mut self, now: MonotonicTime) {
        self.leading = true;
        self.plan_all(now);
    }

    /// Somebody else may lead. What was remembered of Services is forgotten: it is his to know, and can be read back
    /// from the slices. What we wrote and have not seen yet is still waited for, so that nothing is made twice.
    pub fn stand_by(&mut self) {
        self.leading = false;
        self.queue = WorkQueue::new(*self.queue.timing());
        self.in_flight.clear();
        self.open.clear();
        self.recheck = None;
        for (_, kept) in std::mem::take(&mut self.memories) {
            self.metrics.recount(&kept.counts, &ServiceCounts::default());
        }
        self.metrics.waiting(0);
    }

    /// Whether plans are made: we lead, and absence means absence.
    pub(super) fn plans(&self) -> bool {
        self.leading && self.synced
    }

    /// Every Service is to be planned, if it is our turn and all is listed.
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

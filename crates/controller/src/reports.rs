//! What the reconciler lends to the report of `zoneward status`, to its metrics and to the condition
//! TrafficDistributionObserved, which crate `insight` makes.

use std::collections::BTreeSet;
use std::time::Duration;

use insight::status::{ConvergenceFigures, NodeReportState, SpillDemandStatus, StatusSignals};
use insight::status_board::{Evaluations, LedgerView, ObservedCluster, StatusRequest, StatusUnavailable};
use model::{ServiceKey, Snapshot};
use plan::subsetting::SliceView;
use plan::work_queue::MonotonicTime;

use super::last_sync::LastSync;
use super::slice_reconciler::SliceReconciler;

impl ObservedCluster for SliceReconciler {
    fn snapshot(&self) -> &Snapshot {
        self.cache.snapshot()
    }

    fn node_states(&self, now: MonotonicTime) -> (Vec<NodeReportState>, usize) {
        let snapshot = self.cache.snapshot();
        let revisions_by_view = self.leases.views().into_iter().map(|view| {
            let revisions = self.revisions(&view, now);
            (view, revisions)
        });
        let states = self.leases.states(snapshot, &revisions_by_view.collect(), now);
        let has_proxy: BTreeSet<&str> = states.iter().map(|state| state.name.as_str()).collect();
        let ready = snapshot.nodes().values().filter(|node| node.ready);
        let without = ready.filter(|node| !has_proxy.contains(node.name.as_str())).count();
        (states, without)
    }

    fn convergence(&self) -> ConvergenceFigures {
        ConvergenceFigures::new(&self.slice_delays, &self.leases.kernel_delays())
    }

    fn spill_demand(&self, key: &ServiceKey) -> Option<SpillDemandStatus> {
        self.demands.status(key)
    }
}

impl SliceReconciler {
    /// Answers a request for a report.
    pub(crate) fn answer(
        &mut self,
        request: StatusRequest,
        traffic: &LedgerView,
        leads: bool,
        now: MonotonicTime,
    ) {
        let refusal = match (leads, self.is_synced()) {
            (false, _) => Some(StatusUnavailable::NotLeading),
            (true, false) => Some(StatusUnavailable::NotSynced),
            (true, true) => None,
        };
        self.with_evaluations(|evaluations, own| request.answer(evaluations, own, traffic, refusal, now));
    }

    /// Updates the metrics of Services while this process leads.
    pub(crate) fn publish_signals(&mut self, traffic: &LedgerView, now: MonotonicTime) {
        if !self.plans() {
            self.evaluations.forget_signals();
            return self.metrics.set_signals(StatusSignals::default());
        }
        let signals = self.with_evaluations(|evaluations, own| evaluations.signals(own, traffic, now));
        if let Some(signals) = signals {
            self.metrics.set_signals(signals);
        }
    }

    /// Goes on with evaluations while reports are requested.
    pub(crate) fn evaluate_more(&mut self, traffic: &LedgerView, now: MonotonicTime) {
        if self.plans() {
            self.evaluations.evaluate_more(self.cache.snapshot(), traffic, now);
        }
    }

    /// Compares measured traffic with the plan, and queues the Services whose condition turned.
    pub(crate) fn compare_with_plan(&mut self, traffic: &LedgerView, now: MonotonicTime) {
        if !self.plans() {
            return;
        }
        let mut observations = std::mem::take(&mut self.observations);
        let turned = self.with_evaluations(|evaluations, own| {
            let is_steady = |key: &ServiceKey, time: Duration| {
                let last = own.last_syncs.get(key).filter(|last| last.requested);
                last.is_some_and(|last| last.revision.1.after(time) <= now) && !own.is_unacknowledged(key)
            };
            observations.compare(evaluations, own.cache.snapshot(), traffic, now, is_steady)
        });
        self.observations = observations;
        for key in turned {
            self.enqueue(&key, now);
        }
    }

    /// Lets the evaluations read the rest of the reconciler.
    fn with_evaluations<T>(&mut self, run: impl FnOnce(&mut Evaluations, &Self) -> T) -> T {
        let none = Evaluations::new(self.planner.config.clone());
        let mut evaluations = std::mem::replace(&mut self.evaluations, none);
        let answer = run(&mut evaluations, self);
        self.evaluations = evaluations;
        answer
    }

    /// The revisions of all Services' slices that a node receives, sorted, with the time of the oldest among those that are
    /// as new or newer.
    fn revisions(&self, view: &SliceView, now: MonotonicTime) -> Vec<(u64, MonotonicTime)> {
        let snapshot = self.cache.snapshot();
        let of_view = |(key, last): (&ServiceKey, &LastSync)| match view {
            SliceView::All => last.revision,
            SliceView::Zone(_) => (view.highest_revision(snapshot.slices(key)), last.revision.1),
        };
        let mut revisions: Vec<(u64, MonotonicTime)> = self.last_syncs.iter().map(of_view).collect();
        revisions.sort_by_key(|(revision, _)| *revision);
        let mut oldest = now;
        for (_, since) in revisions.iter_mut().rev() {
            oldest = oldest.min(*since);
            *since = oldest;
        }
        revisions
    }
}

#[cfg(test)]
mod tests;

//! The reconciler of what is reported: answers for `zoneward status`, metrics of Services and the condition
//! TrafficDistributionObserved, which crate `insight` makes.

use std::collections::BTreeSet;
use std::time::Duration;

use insight::observations::Observations;
use insight::status::{ConvergenceFigures, NodeReportState, SpillDemandStatus, StatusSignals};
use insight::status_board::{Evaluations, LedgerView, ObservedCluster, StatusRequest, StatusUnavailable};
use model::{ServiceKey, Snapshot};
use plan::PlanningConfig;
use plan::subsetting::SliceView;
use plan::work_queue::MonotonicTime;

use super::demand_loop::DemandReconciler;
use super::last_sync::LastSync;
use super::metrics::ControllerMetrics;
use super::slice_reconciler::{ChangedServices, SliceReconciler};

/// The kept evaluations of Services, and what was observed of each.
#[derive(Debug)]
pub(crate) struct StatusReconciler {
    evaluations: Evaluations,
    pub(crate) observations: Observations,
    metrics: ControllerMetrics,
}

/// What a report reads.
struct ReportedCluster<'a> {
    slices: &'a SliceReconciler,
    demands: &'a DemandReconciler,
}

impl ObservedCluster for ReportedCluster<'_> {
    fn snapshot(&self) -> &Snapshot {
        self.slices.snapshot()
    }

    fn node_states(&self, now: MonotonicTime) -> (Vec<NodeReportState>, usize) {
        let (snapshot, leases) = (self.slices.snapshot(), &self.slices.leases);
        let revisions_by_view = leases.views().into_iter().map(|view| {
            let revisions = self.slices.revisions(&view, now);
            (view, revisions)
        });
        let states = leases.states(snapshot, &revisions_by_view.collect(), now);
        let has_proxy: BTreeSet<&str> = states.iter().map(|state| state.name.as_str()).collect();
        let ready = snapshot.nodes().values().filter(|node| node.ready);
        let without = ready.filter(|node| !has_proxy.contains(node.name.as_str())).count();
        (states, without)
    }

    fn convergence(&self) -> ConvergenceFigures {
        ConvergenceFigures::new(&self.slices.slice_delays, &self.slices.leases.kernel_delays())
    }

    fn spill_demand(&self, key: &ServiceKey) -> Option<SpillDemandStatus> {
        self.demands.status(key)
    }
}

impl StatusReconciler {
    pub(crate) fn new(planning: PlanningConfig, metrics: ControllerMetrics) -> Self {
        Self { evaluations: Evaluations::new(planning), observations: Observations::default(), metrics }
    }

    /// Services or their slices have changed.
    pub(crate) fn forget(&mut self, changed: ChangedServices) {
        if changed.all {
            self.evaluations.clear();
        }
        changed.services.iter().for_each(|key| self.evaluations.forget(key));
        changed.deleted.iter().for_each(|key| self.observations.forget(key));
    }

    /// The conditions hold what was observed.
    pub(crate) fn stand_by(&mut self) {
        self.observations.clear();
    }

    /// Answers a request for a report.
    pub(crate) fn answer(
        &mut self,
        request: StatusRequest,
        slices: &SliceReconciler,
        demands: &DemandReconciler,
        traffic: &LedgerView,
        now: MonotonicTime,
    ) {
        let refusal = match (slices.leading, slices.is_synced()) {
            (false, _) => Some(StatusUnavailable::NotLeading),
            (true, false) => Some(StatusUnavailable::NotSynced),
            (true, true) => None,
        };
        let cluster = ReportedCluster { slices, demands };
        request.answer(&mut self.evaluations, &cluster, traffic, refusal, now);
    }

    /// Updates the metrics of Services while this process leads.
    pub(crate) fn publish_signals(
        &mut self,
        slices: &SliceReconciler,
        demands: &DemandReconciler,
        traffic: &LedgerView,
        now: MonotonicTime,
    ) {
        if !slices.plans() {
            self.evaluations.forget_signals();
            return self.metrics.set_signals(StatusSignals::default());
        }
        let cluster = ReportedCluster { slices, demands };
        if let Some(signals) = self.evaluations.signals(&cluster, traffic, now) {
            self.metrics.set_signals(signals);
        }
    }

    /// Goes on with evaluations while reports are requested.
    pub(crate) fn evaluate_more(
        &mut self,
        slices: &SliceReconciler,
        traffic: &LedgerView,
        now: MonotonicTime,
    ) {
        if slices.plans() {
            self.evaluations.evaluate_more(slices.snapshot(), traffic, now);
        }
    }

    /// Compares measured traffic with the plan, and queues the Services whose condition turned.
    pub(crate) fn compare_with_plan(
        &mut self,
        slices: &mut SliceReconciler,
        traffic: &LedgerView,
        now: MonotonicTime,
    ) {
        if !slices.plans() {
            return;
        }
        let is_steady = |key: &ServiceKey, time: Duration| {
            let last = slices.last_syncs.get(key).filter(|last| last.requested);
            last.is_some_and(|last| last.revision.1.after(time) <= now) && !slices.is_unacknowledged(key)
        };
        let snapshot = slices.snapshot();
        let turned = self.observations.compare(&mut self.evaluations, snapshot, traffic, now, is_steady);
        for key in turned {
            slices.enqueue(&key, now);
        }
    }
}

impl SliceReconciler {
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

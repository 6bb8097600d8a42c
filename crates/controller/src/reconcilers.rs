//! The reconcilers of Services, which share one cache: slices, and beside them what is reported, what is measured, and which
//! zones are drained.
//!
//! ```text
//! watches -> SliceReconciler (cache, queue) -- changed Services --> StatusReconciler
//!                 ^                     \-- cache, last syncs ----> StatusReconciler, DemandReconciler, DrainReconciler
//!                 +--- Services to plan, demand, drains, conditions ----/
//! ```

use cluster::{InformerEvent, ObjectKind};
use insight::observations::Observations;
use insight::status_board::{LedgerView, StatusRequest};
use jiff::Timestamp;
use model::{Notice, Service, ServiceKey};
use plan::hints::Condition;
use plan::spill::MeasuredDemand;
use plan::work_queue::MonotonicTime;

use super::demand_loop::DemandReconciler;
use super::metrics::ControllerMetrics;
use super::reports::StatusReconciler;
use super::slice_reconciler::{ReconcilerSettings, SliceReconciler, SyncInputs};
use super::slice_writes::SliceWrites;
use super::zone_drains::{DrainReconciler, DrainStatus};

#[derive(Debug)]
pub(crate) struct Reconcilers {
    pub(crate) slices: SliceReconciler,
    pub(crate) status: StatusReconciler,
    pub(crate) demands: DemandReconciler,
    pub(crate) drains: DrainReconciler,
}

/// What the slices of a Service get from the others.
struct Measured<'a> {
    demands: &'a DemandReconciler,
    observations: &'a Observations,
}

impl SyncInputs for Measured<'_> {
    fn measured_demand(&self, key: &ServiceKey) -> Option<MeasuredDemand> {
        self.demands.measured(key)
    }

    fn observed(&self, service: &Service) -> Option<Condition> {
        self.observations.condition(service)
    }
}

impl Reconcilers {
    pub(crate) fn new(settings: ReconcilerSettings, metrics: ControllerMetrics) -> Self {
        Self {
            status: StatusReconciler::new(settings.planning.clone(), metrics.clone()),
            demands: DemandReconciler::new(metrics.clone()),
            drains: DrainReconciler::default(),
            slices: SliceReconciler::new(settings, metrics),
        }
    }

    /// Applies a watch event. Returns Notices about malformed objects.
    pub(crate) fn observe(&mut self, event: InformerEvent, now: MonotonicTime) -> Vec<Notice> {
        if kind(&event) == ObjectKind::ZoneDrain {
            self.drains.observe(event);
            return Vec::new();
        }
        let notices = self.slices.observe(event, now);
        self.status.forget(self.slices.take_changed());
        notices
    }

    /// The writes of the next due Service.
    pub(crate) fn next(&mut self, now: MonotonicTime, wall: Timestamp) -> Option<SliceWrites> {
        let inputs = Measured { demands: &self.demands, observations: &self.status.observations };
        self.slices.next(now, wall, &inputs)
    }

    /// What is due every second. Returns Notices.
    pub(crate) fn tick(
        &mut self,
        traffic: &LedgerView,
        now: MonotonicTime,
        time: model::Timestamp,
    ) -> Vec<Notice> {
        self.slices.tick(now);
        self.status.evaluate_more(&self.slices, traffic, now);
        self.status.compare_with_plan(&mut self.slices, traffic, now);
        self.status.publish_signals(&self.slices, &self.demands, traffic, now);
        self.demands.decide(&mut self.slices, traffic, now, time)
    }

    /// Decides which drains are in force; returns statuses to write.
    pub(crate) fn decide_drains(
        &mut self,
        traffic: &LedgerView,
        now: MonotonicTime,
        time: model::Timestamp,
    ) -> Vec<DrainStatus> {
        self.drains.decide(&mut self.slices, &self.demands, traffic, now, time)
    }

    /// Answers a request for a report.
    pub(crate) fn answer(&mut self, request: StatusRequest, traffic: &LedgerView, now: MonotonicTime) {
        self.status.answer(request, &self.slices, &self.demands, traffic, now);
    }

    /// Starts planning, with every Service first.
    pub(crate) fn lead(&mut self, now: MonotonicTime) {
        self.drains.decide_again();
        self.slices.lead(now);
    }

    /// Stops planning. The state of Services is dropped: another leader may change it, and slices and conditions hold it.
    pub(crate) fn stand_by(&mut self) {
        self.slices.stand_by();
        self.status.stand_by();
        self.demands.stand_by();
    }
}

fn kind(event: &InformerEvent) -> ObjectKind {
    match event {
        InformerEvent::ListStarted(kind)
        | InformerEvent::Applied(kind, _)
        | InformerEvent::Deleted(kind, _)
        | InformerEvent::ListCompleted(kind)
        | InformerEvent::Failed(kind, _) => *kind,
    }
}

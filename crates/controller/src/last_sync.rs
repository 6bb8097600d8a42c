//! The state that the controller keeps per Service between syncs. All of it that decides anything can be read back from the
//! slices, so a new leader starts without it.

use std::collections::BTreeMap;

use model::{Family, Labels, ServiceKey, Slice};
use plan::hints::{HintOutcome, Hysteresis, Mechanism};
use plan::slices::{SlicePlan, TriggerTimes};
use plan::work_queue::MonotonicTime;

/// The result of the last sync of a Service.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastSync {
    /// Last changes of its Pods.
    pub trigger: TriggerTimes,
    /// State of the mechanisms, per family.
    pub hint_memories: Vec<(Family, Hysteresis)>,
    /// Reasons of the Notices that still hold, which are recorded once.
    pub reported: Vec<&'static str>,
    /// Whether the Service requests a mechanism.
    pub requested: bool,
    /// Conditions that were sent and that the watch has not shown yet.
    pub sent: Option<Labels>,
    /// When conditions were last sent.
    pub conditions_sent: Option<MonotonicTime>,
    /// Highest resourceVersion of its slices, and since when.
    pub revision: (u64, MonotonicTime),
    /// When labels by zone were set or dropped.
    pub subset_switched: Option<MonotonicTime>,
    pub counts: ServiceCounts,
}

/// The contribution of a Service to the gauges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceCounts {
    /// Slices after the plan is written.
    pub slices: i64,
    /// Slices of an optimal packing.
    pub desired_slices: i64,
    pub endpoints: i64,
    pub mechanism: Mechanism,
    /// The safeguard that holds the mechanism back.
    pub held_back: Option<&'static str>,
    /// `spec.trafficDistribution`.
    pub traffic_distribution: Option<model::Name>,
}

impl LastSync {
    /// The mechanism's state for a family, if necessary restored from the slices.
    pub(crate) fn memory(&self, family: Family, slices: &[Slice]) -> Hysteresis {
        let known = self.hint_memories.iter().find(|(f, _)| *f == family);
        known.map_or_else(|| Hysteresis::from_slices(family, slices), |(_, memory)| memory.clone())
    }

    /// The state after a plan is written.
    pub(crate) fn after(&self, plan: &SlicePlan, outcomes: &[HintOutcome]) -> Self {
        Self {
            trigger: plan.trigger.clone(),
            hint_memories: outcomes.iter().map(|o| (o.family, o.hysteresis.clone())).collect(),
            reported: plan.notices.iter().map(|notice| notice.reason).collect(),
            requested: outcomes.iter().any(|o| o.requested),
            sent: self.sent.clone(),
            conditions_sent: self.conditions_sent,
            revision: self.revision,
            subset_switched: self.subset_switched,
            counts: self.counts.clone(),
        }
    }
}

pub(crate) type LastSyncs = BTreeMap<ServiceKey, LastSync>;

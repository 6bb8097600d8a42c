//! What the controller remembers of each Service from one sync to the next: what plans ask for, what was reported, and
//! the numbers behind the gauges. One entry per Service, dropped with it; all of it that decides anything can be
//! read back from the slices.

use std::collections::BTreeMap;

use model::{Family, Labels, ServiceKey, Slice};
use plan::hints::{HintOutcome, Hysteresis, Mechanism};
use plan::slices::{SlicePlan, TriggerTimes};
use plan::work_queue::MonotonicTime;

/// What is remembered of one Service.
#[derive(Clone, Debug, Default)]
pub struct ServiceState {
    /// When its pods last changed.
    pub trigger: TriggerTimes,
    /// What the mechanisms remember.
    pub memories: Vec<(Family, Hysteresis)>,
    /// The reasons of the Notices that stand, so that they are said once.
    pub reported: Vec<&'static str>,
    /// Whether it asks for a mechanism.
    pub requested: bool,
    /// The conditions that were sent last and have not come back yet.
    pub sent: Option<Labels>,
    /// When conditions were last sent.
    pub conditions_sent: Option<MonotonicTime>,
    /// The highest resourceVersion of its slices, and since when.
    pub revision: (u64, MonotonicTime),
    /// The numbers behind the gauges.
    pub counts: ServiceCounts,
}

/// One Service's part of the gauges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceCounts {
    /// Slices that are stored, or will be once the plan is written.
    pub slices: i64,
    /// Slices that an ideal packing would need.
    pub desired_slices: i64,
    /// Endpoints that should be in slices.
    pub endpoints: i64,
    /// The mechanism at work.
    pub mechanism: Mechanism,
    /// Why a mechanism holds back.
    pub held_back: Option<&'static str>,
    /// `spec.trafficDistribution`.
    pub traffic_distribution: Option<model::Name>,
}

impl ServiceState {
    /// What the mechanisms remember of a family, or what the slices tell.
    pub fn memory(&self, family: Family, slices: &[Slice]) -> Hysteresis {
        let known = self.memories.iter().find(|(f, _)| *f == family);
        known.map_or_else(|| Hysteresis::from_slices(family, slices), |(_, memory)| memory.clone())
    }

    /// What to remember once a plan is carried out.
    pub fn after(&self, plan: &SlicePlan, outcomes: &[HintOutcome]) -> Self {
        Self {
            trigger: plan.trigger.clone(),
            memories: outcomes.iter().map(|o| (o.family, o.hysteresis.clone())).collect(),
            reported: plan.notices.iter().map(|notice| notice.reason).collect(),
            requested: outcomes.iter().any(|o| o.requested),
            sent: self.sent.clone(),
            conditions_sent: self.conditions_sent,
            revision: self.revision,
            counts: self.counts.clone(),
        }
    }
}

/// Every Service's entry.
pub type ServiceStates = BTreeMap<ServiceKey, ServiceState>;

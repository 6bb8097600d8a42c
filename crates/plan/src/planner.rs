//! The EndpointSlices of one Service: packing, hints and label repair in one step, for the controller, `plan slices` and
//! the simulator.

use std::time::Duration;

use model::{Family, Name, Pod, Service, Slice, Snapshot};

use crate::capacity;
use crate::config::PlanningConfig;
use crate::drain::ZoneDrains;
use crate::hints::{self, ClusterTopology, HintInput, HintOutcome, Hysteresis};
use crate::slices::{self, SlicePlan, TriggerTimes};
use crate::subsetting::may_subset;

/// Inputs that all Services share.
#[derive(Debug)]
pub struct Planner {
    /// What is known of nodes and zones.
    pub topology: ClusterTopology,
    pub config: PlanningConfig,
    /// Zones that are drained; `None` while they are not known.
    pub drains: Option<ZoneDrains>,
}

/// Inputs of one Service.
#[derive(Clone, Copy, Debug)]
pub struct ServiceInput<'a> {
    pub slices: slices::SliceInput<'a>,
    /// The namespace's `zoneward.dev/default-traffic-distribution`.
    pub namespace_default: Option<&'a Name>,
    /// Since labels by zone were set or dropped on its slices; `None` if that is not known.
    pub since_switch: Option<Duration>,
}

impl Planner {
    /// A planner for the cluster of a snapshot.
    pub fn new(snapshot: &Snapshot, config: PlanningConfig) -> Self {
        let topology = ClusterTopology::from_nodes(snapshot.nodes());
        Self { topology, config, drains: None }
    }

    /// The plan for a Service of a snapshot, and the outcome of each of its families. `hysteresis` is what is remembered of
    /// a family.
    pub fn plan(
        &self,
        snapshot: &Snapshot,
        service: &Service,
        stored: &[Slice],
        trigger: &TriggerTimes,
        hysteresis: impl Fn(Family) -> Hysteresis,
    ) -> (SlicePlan, Vec<HintOutcome>) {
        self.plan_after(snapshot, service, stored, trigger, None, hysteresis)
    }

    /// As [`Planner::plan`], with the time since labels by zone were set or dropped.
    pub fn plan_after(
        &self,
        snapshot: &Snapshot,
        service: &Service,
        stored: &[Slice],
        trigger: &TriggerTimes,
        since_switch: Option<Duration>,
        hysteresis: impl Fn(Family) -> Hysteresis,
    ) -> (SlicePlan, Vec<HintOutcome>) {
        let namespace = &service.key.namespace;
        let selector = service.selector.as_ref();
        let pods: Vec<&Pod> = selector.map(|s| snapshot.pods_selected(namespace, s)).unwrap_or_default();
        let slices =
            slices::SliceInput { service, pods: &pods, nodes: snapshot.nodes(), slices: stored, trigger };
        let namespace_default = snapshot.default_traffic_distribution(namespace);
        self.plan_service(&ServiceInput { slices, namespace_default, since_switch }, hysteresis)
    }

    /// As [`Planner::plan`], with the pods of the Service as input.
    pub fn plan_service(
        &self,
        input: &ServiceInput<'_>,
        hysteresis: impl Fn(Family) -> Hysteresis,
    ) -> (SlicePlan, Vec<HintOutcome>) {
        let mut outcomes: Vec<HintOutcome> = Vec::new();
        let pods = input.slices.pods;
        let subset = self.subset(input);
        let mut plan =
            slices::plan_by_zone(&input.slices, &self.config.slices, subset.as_ref(), |family, packing| {
                // Of a plan by zone whose hints lend endpoints.
                outcomes.retain(|outcome| outcome.family != family);
                let (service, namespace_default) = (input.slices.service, input.namespace_default);
                let (topology, config, hysteresis) = (&self.topology, &self.config, &hysteresis(family));
                let input = HintInput {
                    service,
                    family,
                    topology,
                    namespace_default,
                    config,
                    hysteresis,
                    with_notices: true,
                };
                packing.capacities = capacity::capacities(pods);
                outcomes.push(hints::assign(&input, packing));
                capacity::annotate(service, pods, self.drains.as_ref(), packing);
            });
        plan.notices.extend(capacity::notices(input.slices.service, pods));
        (plan, outcomes)
    }

    /// What slices by zone need, for a Service that may have them.
    fn subset(&self, input: &ServiceInput<'_>) -> Option<slices::SubsetInput<'_>> {
        let options = self.config.slices.subset?;
        let (service, stored) = (input.slices.service, input.slices.slices);
        let mechanism = self.config.choose(service, input.namespace_default).mechanism;
        let zones = self.topology.zones();
        let subset = slices::SubsetInput { options, zones, since_switch: input.since_switch };
        may_subset(service, mechanism, self.drains.as_ref(), stored).then_some(subset)
    }
}

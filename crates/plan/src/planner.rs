//! The EndpointSlices of one Service: packing, hints and label repair in one step, for the controller, `plan slices` and
//! the simulator.

use model::{Family, Name, Pod, Service, Slice, Snapshot};

use crate::hints::{self, ClusterFacts, HintInput, HintOutcome, Memory};
use crate::slices::{self, SlicePlan, TriggerTimes};

/// Inputs that all Services share.
#[derive(Debug)]
pub struct Planner {
    pub facts: ClusterFacts,
    pub hints: hints::Config,
    pub slices: slices::SliceOptions,
}

/// Inputs of one Service.
#[derive(Clone, Copy, Debug)]
pub struct ServiceInput<'a> {
    pub slices: slices::SliceInput<'a>,
    /// The namespace's `zoneward.dev/default-traffic-distribution`.
    pub namespace_default: Option<&'a Name>,
}

impl Planner {
    pub fn new(snapshot: &Snapshot, hints: hints::Config, slices: slices::SliceOptions) -> Self {
        Self { facts: ClusterFacts::from_nodes(snapshot.nodes()), hints, slices }
    }

    /// The plan for a Service, and the outcome of the hints of each IP family. `memory` is the outcome of the previous
    /// plan.
    pub fn plan(
        &self,
        snapshot: &Snapshot,
        service: &Service,
        stored: &[Slice],
        trigger: &TriggerTimes,
        memory: impl Fn(Family) -> Memory,
    ) -> (SlicePlan, Vec<HintOutcome>) {
        let namespace = &service.key.namespace;
        let selector = service.selector.as_ref();
        let pods: Vec<&Pod> = selector.map(|s| snapshot.pods_selected(namespace, s)).unwrap_or_default();
        let slices =
            slices::SliceInput { service, pods: &pods, nodes: snapshot.nodes(), slices: stored, trigger };
        let namespace = snapshot.namespace(namespace);
        let namespace_default = namespace.and_then(|n| n.default_traffic_distribution.as_ref());
        self.plan_service(&ServiceInput { slices, namespace_default }, memory)
    }

    /// As [`Planner::plan`], with the pods of the Service as input.
    pub fn plan_service(
        &self,
        input: &ServiceInput<'_>,
        memory: impl Fn(Family) -> Memory,
    ) -> (SlicePlan, Vec<HintOutcome>) {
        let mut outcomes = Vec::new();
        let plan = slices::plan(&input.slices, &self.slices, |family, packing| {
            let (service, namespace_default) = (input.slices.service, input.namespace_default);
            let (facts, config, memory) = (&self.facts, &self.hints, &memory(family));
            let input = HintInput { service, family, facts, namespace_default, config, memory };
            outcomes.push(hints::assign(&input, packing));
        });
        (plan, outcomes)
    }
}

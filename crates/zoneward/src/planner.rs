//! Plans the slices of one Service out of a snapshot: packing and hints in one step. `plan slices` shows what the
//! controller would write because both call this.

use model::{Family, Name, Service, Slice, Snapshot};
use plan::hints::{self, ClusterFacts, HintInput, HintOutcome, Memory};
use plan::slices::{self, SlicePlan, TriggerTimes};

/// What holds for all Services.
#[derive(Debug)]
pub struct Planner {
    /// What is known of nodes and zones.
    pub facts: ClusterFacts,
    /// Gates and defaults.
    pub hints: hints::Config,
    /// How slices are packed.
    pub slices: slices::Options,
}

impl Planner {
    /// A planner for the cluster of a snapshot.
    pub fn new(snapshot: &Snapshot, hints: hints::Config, slices: slices::Options) -> Self {
        Self { facts: ClusterFacts::from_nodes(snapshot.nodes()), hints, slices }
    }

    /// The plan for a Service, and the outcome of each of its families. `memory` is what is remembered of a family.
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
        let pods = selector.map(|s| snapshot.pods_selected(namespace, s)).unwrap_or_default();
        let input = slices::Input { service, pods: &pods, nodes: snapshot.nodes(), slices: stored, trigger };
        let namespace_default: Option<&Name> =
            snapshot.namespace(namespace).and_then(|n| n.default_traffic_distribution.as_ref());
        let mut outcomes = Vec::new();
        let plan = slices::plan(&input, &self.slices, |family, packing| {
            let (facts, config, memory) = (&self.facts, &self.hints, &memory(family));
            let input = HintInput { service, family, facts, namespace_default, config, memory };
            outcomes.push(hints::assign(&input, packing));
        });
        (plan, outcomes)
    }
}

//! The pods behind Services, kept at their number as a Deployment keeps them.
//!
//! Pods with the same labels are one workload; the labels that tell one generation from the next do not count.

use std::collections::BTreeMap;

use model::{Labels, Name, Pod};

/// Labels that Kubernetes itself puts on the pods of a workload, different for each generation or pod.
const PER_GENERATION: [&str; 5] = [
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
];

/// The default of a Deployment for `maxSurge` and `maxUnavailable`: a quarter, up and down.
pub(crate) fn surge(replicas: usize) -> usize {
    replicas.div_ceil(4)
}

/// The default of a Deployment for `maxUnavailable`: a quarter, rounded down.
pub(crate) fn unavailable(replicas: usize) -> usize {
    replicas / 4
}

/// Pods that are one another's replacement.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    /// What a new pod looks like, but for its name, node and address.
    pub template: Pod,
    pub replicas: usize,
    /// The generation that all pods should have.
    pub generation: u32,
    pub pods: BTreeMap<Name, Replica>,
    /// How many pods were made here, for their names.
    pub made: u32,
}

/// A pod and the generation that it is of.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub generation: u32,
    pub pod: Pod,
}

/// What a workload needs next.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    pub create: usize,
    pub delete: Vec<Name>,
}

/// The workloads of these pods; those that end or have ended belong to none.
pub(super) fn workloads(pods: &[Pod]) -> Vec<Workload> {
    let mut found: BTreeMap<(Name, Labels), Workload> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod.deleting && !pod.finished && pod.ips.is_some()) {
        let lasting = pod.labels.iter().filter(|(key, _)| !PER_GENERATION.contains(&key.as_str()));
        let key = (pod.key.namespace.clone(), Labels::from_pairs(lasting.cloned().collect()));
        let workload = found.entry(key).or_insert_with(|| Workload {
            template: pod.clone(),
            replicas: 0,
            generation: 0,
            pods: BTreeMap::new(),
            made: 0,
        });
        workload.replicas += 1;
        workload.pods.insert(pod.key.name.clone(), Replica { generation: 0, pod: pod.clone() });
    }
    found.into_values().collect()
}

impl Workload {
    /// The pods that are not on their way out.
    fn live(&self) -> impl Iterator<Item = (&Name, &Replica)> {
        self.pods.iter().filter(|(_, replica)| !replica.pod.deleting)
    }

    /// How many live pods each node has.
    pub fn pods_by_node(&self) -> BTreeMap<&Name, usize> {
        let mut counts = BTreeMap::new();
        for node in self.live().filter_map(|(_, replica)| replica.pod.node.as_ref()) {
            *counts.entry(node).or_default() += 1;
        }
        counts
    }

    /// One step of a Deployment: towards the wanted number, and towards the wanted generation.
    pub fn need(&self) -> Need {
        let live: Vec<(&Name, &Replica)> = self.live().collect();
        let (new, old): (Vec<_>, Vec<_>) = live.iter().partition(|(_, r)| r.generation == self.generation);
        if old.is_empty() {
            let surplus = new.len().saturating_sub(self.replicas);
            let create = self.replicas.saturating_sub(new.len());
            return Need { create, delete: self.last_of(new, surplus) };
        }
        let ready = live.iter().filter(|(_, r)| r.pod.ready).count();
        let room = (self.replicas + surge(self.replicas)).saturating_sub(live.len());
        let spare = ready.saturating_sub(self.replicas - unavailable(self.replicas));
        let idle = old.iter().filter(|(_, r)| !r.pod.ready).count();
        Need {
            create: self.replicas.saturating_sub(new.len()).min(room),
            delete: self.last_of(old, idle + spare),
        }
    }

    /// Which of these go first: what is not ready, then from the node with most of them, then the youngest.
    fn last_of(&self, mut pods: Vec<(&Name, &Replica)>, count: usize) -> Vec<Name> {
        let by_node = self.pods_by_node();
        let crowd = |r: &Replica| r.pod.node.as_ref().and_then(|n| by_node.get(n)).copied().unwrap_or(0);
        pods.sort_by_key(|(name, r)| {
            (r.pod.ready, std::cmp::Reverse(crowd(r)), std::cmp::Reverse((*name).clone()))
        });
        pods.into_iter().take(count).map(|(name, _)| name.clone()).collect()
    }
}

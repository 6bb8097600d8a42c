//! Workloads behind Services, which keep their number of pods as a Deployment does.
//!
//! Pods with the same labels form a workload; labels that differ by generation are ignored.

use std::collections::BTreeMap;

use insight::what_if::{surge, unavailable};
use model::{Labels, Name, Pod};

/// Labels that Kubernetes sets per generation or pod.
const PER_GENERATION: [&str; 5] = [
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
];

#[derive(Clone, Debug)]
pub(super) struct Workload {
    /// Template of new pods, except name, node and address.
    pub template: Pod,
    pub replicas: usize,
    /// The desired generation.
    pub generation: u32,
    pub pods: BTreeMap<Name, Replica>,
    /// Number of pods created, for their names.
    pub created: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub generation: u32,
    pub pod: Pod,
}

/// Pods to create and delete.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Scaling {
    pub create: usize,
    pub delete: Vec<Name>,
}

/// Terminating and finished pods belong to no workload.
pub(super) fn workloads(pods: &[Pod]) -> Vec<Workload> {
    let mut workloads: BTreeMap<(Name, Labels), Workload> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod.deleting && !pod.finished && pod.ips.is_some()) {
        let lasting = pod.labels.iter().filter(|(key, _)| !PER_GENERATION.contains(&key.as_str()));
        let key = (pod.key.namespace.clone(), Labels::from_pairs(lasting.cloned().collect()));
        let workload = workloads.entry(key).or_insert_with(|| Workload {
            template: pod.clone(),
            replicas: 0,
            generation: 0,
            pods: BTreeMap::new(),
            created: 0,
        });
        workload.replicas += 1;
        workload.pods.insert(pod.key.name.clone(), Replica { generation: 0, pod: pod.clone() });
    }
    workloads.into_values().collect()
}

impl Workload {
    /// Pods that are not terminating.
    fn live(&self) -> impl Iterator<Item = (&Name, &Replica)> {
        self.pods.iter().filter(|(_, replica)| !replica.pod.deleting)
    }

    pub(super) fn pods_by_node(&self) -> BTreeMap<&Name, usize> {
        let mut counts = BTreeMap::new();
        for node in self.live().filter_map(|(_, replica)| replica.pod.node.as_ref()) {
            *counts.entry(node).or_default() += 1;
        }
        counts
    }

    /// One reconcile of a Deployment.
    pub(super) fn reconcile(&self) -> Scaling {
        let live: Vec<(&Name, &Replica)> = self.live().collect();
        let (new, old): (Vec<_>, Vec<_>) = live.iter().partition(|(_, r)| r.generation == self.generation);
        if old.is_empty() {
            let surplus = new.len().saturating_sub(self.replicas);
            let create = self.replicas.saturating_sub(new.len());
            return Scaling { create, delete: self.last_of(new, surplus) };
        }
        let ready = live.iter().filter(|(_, r)| r.pod.ready).count();
        let room = (self.replicas + surge(self.replicas)).saturating_sub(live.len());
        let spare = ready.saturating_sub(self.replicas - unavailable(self.replicas));
        let idle = old.iter().filter(|(_, r)| !r.pod.ready).count();
        Scaling {
            create: self.replicas.saturating_sub(new.len()).min(room),
            delete: self.last_of(old, idle + spare),
        }
    }

    /// Selects pods to delete: not ready first, then from the node with most pods, then the newest.
    fn last_of(&self, mut pods: Vec<(&Name, &Replica)>, count: usize) -> Vec<Name> {
        let by_node = self.pods_by_node();
        let crowd = |r: &Replica| r.pod.node.as_ref().and_then(|n| by_node.get(n)).copied().unwrap_or(0);
        pods.sort_by_key(|(name, r)| {
            (r.pod.ready, std::cmp::Reverse(crowd(r)), std::cmp::Reverse((*name).clone()))
        });
        pods.into_iter().take(count).map(|(name, _)| name.clone()).collect()
    }
}

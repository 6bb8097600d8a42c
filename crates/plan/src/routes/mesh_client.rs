//! A client in the mesh: its namespace, the Services that it belongs to, and its tags.

use std::collections::BTreeMap;

use model::route::PolicyTarget;
use model::{Labels, Name, Pod, ServiceKey, Snapshot};

pub(crate) const ZONE: &str = "topology.kubernetes.io/zone";
pub(crate) const REGION: &str = "topology.kubernetes.io/region";
pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";

/// A client in the mesh, as policies see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshClient {
    pub namespace: Name,
    /// The Services that its pod is an endpoint of.
    pub services: Vec<Name>,
    /// The labels of its pod, and the pod's zone, region and node.
    pub tags: Labels,
}

impl MeshClient {
    pub fn of_pod(snapshot: &Snapshot, pod: &Pod) -> Self {
        let namespace = pod.key.namespace.clone();
        let selects = |selector: &Labels| !selector.is_empty() && selector.selects(&pod.labels);
        let services = snapshot.services().map(|(service, _)| service);
        let own = services.filter(|service| service.key.namespace == namespace);
        let own = own.filter(|service| service.selector.as_ref().is_some_and(selects));
        let services = own.map(|service| service.key.name.clone()).collect();
        Self { namespace, services, tags: pod_tags(snapshot, pod) }
    }

    /// Any client of a Service with these tags; it also has the tags that all such pods share.
    pub fn of_service(snapshot: &Snapshot, key: &ServiceKey, tags: &Labels) -> Self {
        let selector = snapshot.service(key).and_then(|service| service.selector.as_ref());
        let pods = selector.map(|s| snapshot.pods_selected(&key.namespace, s)).unwrap_or_default();
        let all = pods.iter().map(|pod| pod_tags(snapshot, pod)).filter(|own| tags.selects(own));
        let shared = all.reduce(|a, b| {
            let both = a.iter().filter(|(name, value)| b.value(name) == Some(value));
            Labels::from_pairs(both.cloned().collect())
        });
        let mut pairs: Vec<(Name, Name)> = shared.unwrap_or_default().as_slice().to_vec();
        pairs.extend(tags.iter().cloned());
        Self {
            namespace: key.namespace.clone(),
            services: vec![key.name.clone()],
            tags: Labels::from_pairs(pairs),
        }
    }

    /// Whether the targetRef of a policy in `namespace` selects it.
    pub(super) fn is_selected(&self, target: &PolicyTarget, namespace: &Name) -> bool {
        let is_of = |name: &Name| self.namespace == *namespace && self.services.contains(name);
        match target {
            PolicyTarget::Mesh => true,
            PolicyTarget::Subset(tags) => tags.selects(&self.tags),
            PolicyTarget::Service(name) => is_of(name),
            PolicyTarget::ServiceSubset(name, tags) => is_of(name) && tags.selects(&self.tags),
            PolicyTarget::Gateway(..) => false,
        }
    }
}

/// The labels of a pod; zone, region and node come from topology and override labels.
fn pod_tags(snapshot: &Snapshot, pod: &Pod) -> Labels {
    let mut tags: BTreeMap<Name, Name> = pod.labels.iter().cloned().collect();
    let node = pod.node.as_ref();
    let known = node.and_then(|name| snapshot.node(name));
    let zone = known.and_then(|node| node.zone.as_ref());
    let region = known.and_then(|node| node.region.as_ref());
    for (key, value) in [(ZONE, zone), (REGION, region), (HOSTNAME, node)] {
        if let Some(value) = value {
            tags.insert(Name::new(key), value.clone());
        }
    }
    Labels::from_pairs(tags.into_iter().collect())
}

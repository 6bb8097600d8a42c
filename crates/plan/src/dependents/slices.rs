//! The Services whose slices a change of a pod or node affects.
//!
//! Services are indexed by their selectors, so that the cost depends on the affected Services only.

use std::collections::{BTreeMap, BTreeSet};

use model::plant::{PlantedBug, is_planted};
use model::{Labels, Name, Node, Pod, Service, ServiceKey, Snapshot};

use crate::slices::pod_changed;

/// Services indexed by their selectors.
///
/// A Service is indexed under the pair of its selector with the fewest other Services; the rest of the selector is compared
/// on look-up.
#[derive(Debug, Default)]
pub struct SelectorIndex {
    selectors: BTreeMap<ServiceKey, Labels>,
    /// (namespace, label key, label value) -> names of Services.
    services_by_pair: BTreeMap<(Name, Name, Name), BTreeSet<Name>>,
    /// Services whose empty selector selects all pods of the namespace.
    services_without_pairs: BTreeMap<Name, BTreeSet<Name>>,
}

impl SelectorIndex {
    pub fn set(&mut self, service: &Service) {
        let key = &service.key;
        if self.selectors.get(key) == service.selector.as_ref() {
            return;
        }
        self.remove(key);
        let Some(selector) = &service.selector else { return };
        self.selectors.insert(key.clone(), selector.clone());
        let pair = |(k, v): &(Name, Name)| (key.namespace.clone(), k.clone(), v.clone());
        let others = |pair: &(Name, Name, Name)| self.services_by_pair.get(pair).map_or(0, BTreeSet::len);
        let services = match selector.iter().map(pair).min_by_key(others) {
            Some(rarest) => self.services_by_pair.entry(rarest).or_default(),
            None => self.services_without_pairs.entry(key.namespace.clone()).or_default(),
        };
        services.insert(key.name.clone());
    }

    pub fn remove(&mut self, key: &ServiceKey) {
        let Some(selector) = self.selectors.remove(key) else { return };
        for (k, v) in selector.iter() {
            let pair = (key.namespace.clone(), k.clone(), v.clone());
            remove_name(&mut self.services_by_pair, &pair, &key.name);
        }
        if selector.is_empty() {
            remove_name(&mut self.services_without_pairs, &key.namespace, &key.name);
        }
    }

    pub fn selecting(&self, namespace: &Name, labels: &Labels) -> BTreeSet<ServiceKey> {
        let pairs = labels.iter().map(|(k, v)| (namespace.clone(), k.clone(), v.clone()));
        let by_pair = pairs.filter_map(|pair| self.services_by_pair.get(&pair)).flatten();
        let keys = by_pair.map(|name| ServiceKey::new(namespace, name));
        let mut found: BTreeSet<ServiceKey> =
            keys.filter(|key| self.selectors.get(key).is_some_and(|s| s.selects(labels))).collect();
        let everything = self.services_without_pairs.get(namespace).into_iter().flatten();
        found.extend(everything.map(|name| ServiceKey::new(namespace, name)));
        found
    }

    /// The Services that a change of a pod affects; `None` is an absent pod.
    pub fn affected_by_pod(&self, old: Option<&Pod>, new: Option<&Pod>) -> BTreeSet<ServiceKey> {
        let selecting = |pod: &Pod| self.selecting(&pod.key.namespace, &pod.labels);
        match (old, new) {
            (None, None) => BTreeSet::new(),
            (Some(pod), None) | (None, Some(pod)) => selecting(pod),
            (Some(old), Some(new)) => {
                let change = pod_changed(old, new);
                match (change.endpoint, change.labels) {
                    (false, false) => BTreeSet::new(),
                    (_, false) => selecting(new),
                    // A changed hostname sets `labels`, but does not change which Services select the pod.
                    (endpoint, true) => services_to_requeue(
                        selecting(old),
                        selecting(new),
                        endpoint || old.labels == new.labels,
                    ),
                }
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.selectors.is_empty()
            && self.services_by_pair.is_empty()
            && self.services_without_pairs.is_empty()
    }

    pub fn services(&self) -> impl Iterator<Item = &ServiceKey> {
        self.selectors.keys()
    }
}

fn remove_name<K: Ord>(index: &mut BTreeMap<K, BTreeSet<Name>>, at: &K, name: &Name) {
    let Some(names) = index.get_mut(at) else { return };
    names.remove(name);
    if names.is_empty() {
        index.remove(at);
    }
}

/// Semantics B6, after a change of a pod's labels: all Services that selected or select it if the pod also changed,
/// otherwise those that select only one version.
pub fn services_to_requeue<K: Ord + Clone>(
    old: BTreeSet<K>,
    new: BTreeSet<K>,
    pod_changed: bool,
) -> BTreeSet<K> {
    if pod_changed { &old | &new } else { &old ^ &new }
}

/// The effect of a node update on Services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeChange {
    /// Its endpoints change: it was created, deleted or moved to another zone (pitfall 30).
    pub endpoints: bool,
    /// Facts about zones may change, which affects all Services with a hints mechanism.
    pub facts: bool,
}

/// Compares two versions of a node; `None` is an absent node.
pub fn node_changed(old: Option<&Node>, new: Option<&Node>) -> NodeChange {
    let (Some(old), Some(new)) = (old, new) else {
        let changed = old.is_some() != new.is_some();
        return NodeChange { endpoints: changed, facts: changed };
    };
    let counts =
        |node: &Node| (node.ready, node.control_plane, node.cpu_millis, node.deleting, node.to_be_deleted);
    let moved = old.zone != new.zone && !is_planted(PlantedBug::StaleHint);
    NodeChange { endpoints: moved, facts: moved || old.region != new.region || counts(old) != counts(new) }
}

/// The Services with pods on a node.
pub fn services_on_node(snapshot: &Snapshot, selectors: &SelectorIndex, node: &str) -> BTreeSet<ServiceKey> {
    let here = snapshot.pods().filter(|pod| pod.node.as_ref().is_some_and(|name| *name == node));
    // Pods of one workload have the same labels.
    let sets: BTreeSet<(&Name, &Labels)> = here.map(|pod| (&pod.key.namespace, &pod.labels)).collect();
    sets.into_iter().flat_map(|(namespace, labels)| selectors.selecting(namespace, labels)).collect()
}

//! Pods by key and by label.
//!
//! Pods of one workload share their label set, so the index maps label pairs to label sets and label sets to pods: one
//! pointer per pod, independent of the number of labels.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::label::Labels;
use crate::name::{Name, ObjectKey};
use crate::pod::Pod;

#[derive(Debug, Default)]
pub(super) struct PodIndex {
    pods: BTreeSet<ByKey>,
    /// (namespace, label set) -> its pods, by name.
    pods_by_labels: BTreeMap<(Name, Labels), Vec<Arc<Pod>>>,
    /// (namespace, label key, label value) -> label sets.
    labels_by_pair: BTreeMap<(Name, Name, Name), Vec<Labels>>,
}

/// A pod ordered by its key, without a second copy of the key.
#[derive(Debug)]
struct ByKey(Arc<Pod>);

impl Borrow<ObjectKey> for ByKey {
    fn borrow(&self) -> &ObjectKey {
        &self.0.key
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for ByKey {}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key.cmp(&other.0.key)
    }
}

impl PodIndex {
    pub(super) fn insert(&mut self, pod: Pod) {
        self.remove(&pod.key);
        let pod = Arc::new(pod);
        let namespace = &pod.key.namespace;
        let pods = self.pods_by_labels.entry((namespace.clone(), pod.labels.clone())).or_default();
        if pods.is_empty() {
            for (key, value) in pod.labels.iter() {
                let pair = (namespace.clone(), key.clone(), value.clone());
                let sets = self.labels_by_pair.entry(pair).or_default();
                // Most pairs occur in one label set.
                sets.reserve_exact(1);
                sets.push(pod.labels.clone());
            }
        }
        let at = pods.partition_point(|p| p.key.name < pod.key.name);
        if pods.len() == pods.capacity() {
            // Grow by a quarter instead of doubling: there are many workloads, and their size is stable.
            pods.reserve_exact(pods.len() / 4 + 1);
        }
        pods.insert(at, pod.clone());
        self.pods.insert(ByKey(pod));
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) {
        let Some(ByKey(pod)) = self.pods.take(key) else { return };
        let index = (pod.key.namespace.clone(), pod.labels.clone());
        let Some(pods) = self.pods_by_labels.get_mut(&index) else { return };
        if let Ok(at) = pods.binary_search_by(|p| p.key.name.cmp(&key.name)) {
            pods.remove(at);
        }
        if pods.is_empty() {
            self.pods_by_labels.remove(&index);
            self.forget_labels(&pod);
        }
    }

    fn forget_labels(&mut self, pod: &Pod) {
        for (key, value) in pod.labels.iter() {
            let pair = (pod.key.namespace.clone(), key.clone(), value.clone());
            let Some(sets) = self.labels_by_pair.get_mut(&pair) else { continue };
            sets.retain(|set| *set != pod.labels);
            if sets.is_empty() {
                self.labels_by_pair.remove(&pair);
            }
        }
    }

    pub(super) fn pod(&self, key: &ObjectKey) -> Option<&Pod> {
        self.pods.get(key).map(|pod| &*pod.0)
    }

    pub(super) fn selected(&self, namespace: &Name, selector: &Labels) -> Vec<&Pod> {
        let sets_of = |(key, value): &(Name, Name)| {
            let pair = (namespace.clone(), key.clone(), value.clone());
            self.labels_by_pair.get(&pair).map_or(&[][..], Vec::as_slice)
        };
        let Some(fewest) = selector.iter().map(sets_of).min_by_key(|sets| sets.len()) else {
            return self.in_namespace(namespace);
        };
        let sets: Vec<&Labels> = fewest.iter().filter(|set| selector.selects(set)).collect();
        let pods_of = |set: &Labels| self.pods_by_labels.get(&(namespace.clone(), set.clone()));
        let mut pods: Vec<&Pod> =
            sets.iter().filter_map(|set| pods_of(set)).flatten().map(|p| &**p).collect();
        if sets.len() > 1 {
            pods.sort_by(|a, b| a.key.name.cmp(&b.key.name));
        }
        pods
    }

    fn in_namespace(&self, namespace: &Name) -> Vec<&Pod> {
        let first = ObjectKey { namespace: namespace.clone(), name: Name::default() };
        let pods = self.pods.range::<ObjectKey, _>(first..).map(|p| &*p.0);
        pods.take_while(|p| p.key.namespace == *namespace).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter().map(|p| &*p.0)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.pods_by_labels.is_empty() && self.labels_by_pair.is_empty()
    }
}

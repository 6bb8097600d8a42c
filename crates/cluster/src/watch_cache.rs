//! The watch cache: watch events in, changes of a Snapshot out.
//!
//! ```text
//! WatchStream -> WatchEvent -> WatchCache::read -> ObjectChange -> (reader compares with the snapshot) -> WatchCache::apply
//! ```
//! Reading and applying are two steps, so that a controller can compare an object with its previous state.

use std::collections::{BTreeMap, BTreeSet};

use model::{Interner, Name, Notice, Object, ObjectKey, ServiceKey, Snapshot, parse};

use super::{ResourceKind, WatchEvent, WatchedObject};

/// A change of the cache.
#[derive(Debug)]
pub enum ObjectChange {
    /// An object was created or changed; the Notices are about ignored fields.
    Applied(Object, Vec<Notice>),
    /// An object that cannot be parsed, and why. The snapshot does not hold it.
    Unreadable(ResourceKind, ObjectKey, Vec<Notice>),
    Deleted(ResourceKind, ObjectKey),
    /// An object of a kind that the snapshot does not hold.
    Other(ResourceKind, Box<WatchedObject>),
    /// A list is complete; these are the keys of its objects.
    Listed(ResourceKind, BTreeSet<ObjectKey>),
    /// The watch failed and is retried.
    Failed(ResourceKind, String),
}

/// A Snapshot that follows the API.
#[derive(Debug, Default)]
pub struct WatchCache {
    snapshot: Snapshot,
    interner: Interner,
    /// Lists in progress, with the keys received so far.
    listing: BTreeMap<ResourceKind, BTreeSet<ObjectKey>>,
    listed: BTreeSet<ResourceKind>,
    /// Interned names after the last sweep.
    swept: usize,
}

impl WatchCache {
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Whether these kinds have synced: before that, absence of an object means nothing.
    pub fn has_listed(&self, kinds: &[ResourceKind]) -> bool {
        kinds.iter().all(|kind| self.listed.contains(kind))
    }

    /// Whether a list is in progress; its objects are not ordered by version.
    pub fn is_listing(&self, kind: ResourceKind) -> bool {
        self.listing.contains_key(&kind)
    }

    /// Parses an event. The caller passes each change to [`WatchCache::apply`].
    pub fn read(&mut self, event: WatchEvent) -> Vec<ObjectChange> {
        match event {
            WatchEvent::ListStarted(kind) => {
                self.listing.insert(kind, BTreeSet::new());
                Vec::new()
            }
            WatchEvent::Applied(kind, watched) => {
                let key = self.key(&watched);
                if let Some(seen) = self.listing.get_mut(&kind) {
                    seen.insert(key.clone());
                }
                vec![self.parse(kind, key, watched)]
            }
            WatchEvent::Deleted(kind, watched) => vec![ObjectChange::Deleted(kind, self.key(&watched))],
            WatchEvent::ListCompleted(kind) => self.complete(kind),
            WatchEvent::Failed(kind, text) => vec![ObjectChange::Failed(kind, text)],
        }
    }

    pub fn apply(&mut self, change: ObjectChange) {
        match change {
            ObjectChange::Applied(object, _) => self.snapshot.apply(object),
            ObjectChange::Deleted(kind, key) | ObjectChange::Unreadable(kind, key, _) => {
                self.remove(kind, &key)
            }
            ObjectChange::Listed(kind, _) => drop(self.listed.insert(kind)),
            ObjectChange::Other(..) | ObjectChange::Failed(..) => {}
        }
        self.sweep();
    }

    fn key(&mut self, watched: &WatchedObject) -> ObjectKey {
        ObjectKey {
            namespace: self.interner.name(watched.namespace()),
            name: self.interner.name(watched.name()),
        }
    }

    fn parse(&mut self, kind: ResourceKind, key: ObjectKey, watched: WatchedObject) -> ObjectChange {
        if matches!(kind, ResourceKind::Lease | ResourceKind::Secret) {
            return ObjectChange::Other(kind, Box::new(watched));
        }
        let resource = kind.resource();
        match parse::text(&resource.api_version, &resource.kind, watched.text(), &mut self.interner) {
            (Some(object), notices) => ObjectChange::Applied(object, notices),
            (None, notices) => ObjectChange::Unreadable(kind, key, notices),
        }
    }

    /// Objects of the snapshot that a completed list lacks were deleted while the watch was down.
    fn complete(&mut self, kind: ResourceKind) -> Vec<ObjectChange> {
        let seen = self.listing.remove(&kind).unwrap_or_default();
        let gone = self.keys(kind).into_iter().filter(|key| !seen.contains(key));
        let mut changes: Vec<ObjectChange> = gone.map(|key| ObjectChange::Deleted(kind, key)).collect();
        changes.push(ObjectChange::Listed(kind, seen));
        changes
    }

    fn keys(&self, kind: ResourceKind) -> Vec<ObjectKey> {
        let snapshot = &self.snapshot;
        let global = |name: &Name| ObjectKey::new(&Name::default(), name);
        match kind {
            ResourceKind::Service => {
                snapshot.services().map(|(s, _)| ObjectKey::new(&s.key.namespace, &s.key.name)).collect()
            }
            ResourceKind::Slice => snapshot.slice_keys().cloned().collect(),
            ResourceKind::Pod => snapshot.pods().map(|pod| pod.key.clone()).collect(),
            ResourceKind::Node => snapshot.nodes().keys().map(global).collect(),
            ResourceKind::Namespace => snapshot.namespaces().keys().map(global).collect(),
            ResourceKind::ServiceCidr => snapshot.service_cidrs().map(|cidr| global(&cidr.name)).collect(),
            ResourceKind::IpAddress => {
                snapshot.ip_addresses().map(|ip| global(&Name::new(&ip.address.to_string()))).collect()
            }
            ResourceKind::HttpRoute => snapshot.http_route_keys().cloned().collect(),
            ResourceKind::GatewayHttpRoute => snapshot.gateway_http_route_keys().cloned().collect(),
            ResourceKind::TcpRoute => snapshot.tcp_route_keys().cloned().collect(),
            ResourceKind::Gateway => snapshot.gateways().map(|gateway| gateway.key.clone()).collect(),
            ResourceKind::Lease | ResourceKind::Secret => Vec::new(),
        }
    }

    fn remove(&mut self, kind: ResourceKind, key: &ObjectKey) {
        let snapshot = &mut self.snapshot;
        match kind {
            ResourceKind::Service => snapshot.remove_service(&ServiceKey::new(&key.namespace, &key.name)),
            ResourceKind::Slice => snapshot.remove_slice(key),
            ResourceKind::Pod => snapshot.remove_pod(key),
            ResourceKind::Node => snapshot.remove_node(&key.name),
            ResourceKind::Namespace => snapshot.remove_namespace(&key.name),
            ResourceKind::ServiceCidr => snapshot.remove_service_cidr(&key.name),
            ResourceKind::IpAddress => {
                if let Ok(address) = key.name.parse() {
                    snapshot.remove_ip_address(address);
                }
            }
            ResourceKind::HttpRoute => snapshot.remove_http_route(key),
            ResourceKind::GatewayHttpRoute => snapshot.remove_gateway_http_route(key),
            ResourceKind::TcpRoute => snapshot.remove_tcp_route(key),
            ResourceKind::Gateway => snapshot.remove_gateway(key),
            ResourceKind::Lease | ResourceKind::Secret => {}
        }
    }

    /// Drops names of deleted objects whenever the number of interned names has doubled.
    fn sweep(&mut self) {
        const MIN_NAMES: usize = 10_000;
        if self.interner.name_count() > 2 * self.swept.max(MIN_NAMES) {
            self.interner.sweep();
            self.swept = self.interner.name_count();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> WatchedObject {
        let text = format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"1"}}}}"#);
        serde_json::from_str(&text).expect("a node")
    }

    fn process(cache: &mut WatchCache, event: WatchEvent) {
        for change in cache.read(event) {
            cache.apply(change);
        }
    }

    #[test]
    fn a_list_after_a_gap_removes_what_was_deleted_meanwhile() {
        let mut cache = WatchCache::default();
        assert!(!cache.has_listed(&[ResourceKind::Node]));
        for event in [
            WatchEvent::ListStarted(ResourceKind::Node),
            WatchEvent::Applied(ResourceKind::Node, node("a")),
            WatchEvent::Applied(ResourceKind::Node, node("b")),
            WatchEvent::ListCompleted(ResourceKind::Node),
        ] {
            process(&mut cache, event);
        }
        assert!(cache.has_listed(&[ResourceKind::Node]));
        for event in [
            WatchEvent::ListStarted(ResourceKind::Node),
            WatchEvent::Applied(ResourceKind::Node, node("b")),
            WatchEvent::Applied(ResourceKind::Node, node("c")),
        ] {
            process(&mut cache, event);
        }
        assert_eq!(cache.snapshot().nodes().len(), 3, "objects are deleted only when the list is complete");
        process(&mut cache, WatchEvent::ListCompleted(ResourceKind::Node));
        assert_eq!(cache.snapshot().nodes().keys().map(Name::as_str).collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn an_object_that_turns_unreadable_counts_as_absent() {
        let mut cache = WatchCache::default();
        process(&mut cache, WatchEvent::Applied(ResourceKind::Node, node("a")));
        let bad = r#"{"metadata":{"name":"a","labels":7}}"#;
        let changes =
            cache.read(WatchEvent::Applied(ResourceKind::Node, serde_json::from_str(bad).expect("JSON")));
        assert!(
            matches!(&changes[..], [ObjectChange::Unreadable(ResourceKind::Node, _, notices)] if notices.len() == 1)
        );
        changes.into_iter().for_each(|change| cache.apply(change));
        assert!(cache.snapshot().node("a").is_none());
    }
}

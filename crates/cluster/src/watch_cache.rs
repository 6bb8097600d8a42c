//! The watch cache: watch events in, changes of a Snapshot out.
//!
//! ```text
//! Informer -> InformerEvent -> WatchCache::read -> ObjectChange -> (reader compares with the snapshot) -> WatchCache::apply
//! ```
//! Reading and applying are two steps, so that a controller can compare an object with its previous state.

use std::collections::{BTreeMap, BTreeSet};

use model::gateway_api::{CertificateKind, CertificateSource, GatewayApiKind, GatewayApiObject};
use model::plant::{PlantedBug, is_planted};
use model::{Interner, Name, Notice, Object, ObjectKey, ServiceKey, Snapshot, parse};

use plan::dependents::Change;

use super::{InformerEvent, ObjectKind, WatchedObject};

/// A change of the cache.
#[derive(Debug)]
pub enum ObjectChange {
    /// An object was created or changed; the Notices are about ignored fields.
    Applied(Object, Vec<Notice>),
    /// An object that cannot be parsed, and why. The snapshot does not hold it.
    Unreadable(ObjectKind, ObjectKey, Vec<Notice>),
    Deleted(ObjectKind, ObjectKey),
    /// An object of a kind that the snapshot does not hold.
    Other(ObjectKind, Box<WatchedObject>),
    /// A list is complete; these are the keys of its objects.
    Listed(ObjectKind, BTreeSet<ObjectKey>),
    /// The watch failed and is retried.
    Failed(ObjectKind, String),
}

impl ObjectChange {
    /// This change beside what the snapshot holds; `None` if nothing depends on it.
    pub fn compared<'s>(&'s self, snapshot: &'s Snapshot) -> Option<Change<'s>> {
        match self {
            Self::Applied(object, _) => Change::applied(snapshot, object),
            Self::Deleted(kind, key) | Self::Unreadable(kind, key, _) => removed(snapshot, *kind, key),
            Self::Other(..) | Self::Listed(..) | Self::Failed(..) => None,
        }
    }
}

/// What the snapshot holds, without a new version.
fn removed<'s>(snapshot: &'s Snapshot, kind: ObjectKind, key: &'s ObjectKey) -> Option<Change<'s>> {
    Some(match kind {
        ObjectKind::Service => {
            Change::Service((snapshot.service(&ServiceKey::new(&key.namespace, &key.name)), None))
        }
        ObjectKind::Slice => Change::Slice((snapshot.slice(key), None)),
        ObjectKind::Pod => Change::Pod((snapshot.pod(key), None)),
        ObjectKind::Node => Change::Node((snapshot.node(&key.name), None)),
        ObjectKind::Namespace => Change::Namespace((snapshot.namespace(&key.name), None)),
        ObjectKind::MeshHttpRoute => Change::MeshHttpRoute((snapshot.mesh_http_route(key), None)),
        ObjectKind::MeshGatewayHttpRoute => {
            Change::MeshGatewayHttpRoute((snapshot.mesh_gateway_http_route(key), None))
        }
        ObjectKind::MeshTcpRoute => Change::MeshTcpRoute((snapshot.mesh_tcp_route(key), None)),
        ObjectKind::MeshGateway => Change::MeshGateway((snapshot.mesh_gateway(key), None)),
        ObjectKind::MeshLoadBalancing => {
            Change::MeshLoadBalancing((snapshot.load_balancing_policy(key), None))
        }
        ObjectKind::MeshRouteFilter => Change::MeshRouteFilter((snapshot.route_filter(key), None)),
        ObjectKind::GatewayApi(kind) => Change::GatewayApi(kind, key, None),
        ObjectKind::ServiceCidr
        | ObjectKind::IpAddress
        | ObjectKind::Lease
        | ObjectKind::Secret
        | ObjectKind::ConfigMap
        | ObjectKind::CustomResourceDefinition
        | ObjectKind::ZoneDrain => return None,
    })
}

/// A Snapshot that follows the API.
#[derive(Debug, Default)]
pub struct WatchCache {
    snapshot: Snapshot,
    interner: Interner,
    /// Lists in progress, with the keys received so far.
    listing: BTreeMap<ObjectKind, BTreeSet<ObjectKey>>,
    listed: BTreeSet<ObjectKind>,
    /// Interned names after the last sweep.
    swept: usize,
}

impl WatchCache {
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// For values that follow from objects and the time.
    pub fn snapshot_mut(&mut self) -> &mut Snapshot {
        &mut self.snapshot
    }

    /// Whether these kinds have synced: before that, absence of an object means nothing.
    pub fn has_listed(&self, kinds: &[ObjectKind]) -> bool {
        kinds.iter().all(|kind| self.listed.contains(kind))
    }

    /// Whether a list is in progress; its objects are not ordered by version.
    pub fn is_listing(&self, kind: ObjectKind) -> bool {
        self.listing.contains_key(&kind)
    }

    /// Parses an event. The caller passes each change to [`WatchCache::apply`].
    pub fn read(&mut self, event: InformerEvent) -> Vec<ObjectChange> {
        match event {
            InformerEvent::ListStarted(kind) => {
                self.listing.insert(kind, BTreeSet::new());
                Vec::new()
            }
            InformerEvent::Applied(kind, watched) => {
                let key = self.key(&watched);
                if let Some(seen) = self.listing.get_mut(&kind) {
                    seen.insert(key.clone());
                }
                vec![self.parse(kind, key, watched)]
            }
            InformerEvent::Deleted(ObjectKind::Service, _) if is_planted(PlantedBug::MissedDelete) => {
                Vec::new()
            }
            InformerEvent::Deleted(kind, watched) => vec![ObjectChange::Deleted(kind, self.key(&watched))],
            InformerEvent::ListCompleted(kind) => self.complete(kind),
            InformerEvent::Failed(kind, text) => vec![ObjectChange::Failed(kind, text)],
        }
    }

    pub fn apply(&mut self, change: ObjectChange) {
        match change {
            ObjectChange::Applied(object, _) => self.snapshot.apply(object),
            ObjectChange::Deleted(kind, key) | ObjectChange::Unreadable(kind, key, _) => {
                self.remove(kind, &key)
            }
            ObjectChange::Listed(kind, _) => {
                self.listed.insert(kind);
                self.compact(kind);
            }
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

    fn parse(&mut self, kind: ObjectKind, key: ObjectKey, watched: WatchedObject) -> ObjectChange {
        if is_kept_by_readers(kind) {
            return ObjectChange::Other(kind, Box::new(watched));
        }
        let resource = kind.resource();
        let (version, name, interner) = (&resource.api_version, &resource.kind, &mut self.interner);
        let parsed = match watched.message() {
            Some(message) => parse::message(version, name, message, interner),
            None => parse::text(version, name, watched.text(), interner),
        };
        match parsed {
            (Some(object), notices) => ObjectChange::Applied(object, notices),
            (None, notices) => ObjectChange::Unreadable(kind, key, notices),
        }
    }

    /// Objects of the snapshot that a completed list lacks were deleted while the watch was down.
    fn complete(&mut self, kind: ObjectKind) -> Vec<ObjectChange> {
        let seen = self.listing.remove(&kind).unwrap_or_default();
        let keys = if is_planted(PlantedBug::Lost410) { Vec::new() } else { self.keys(kind) };
        let gone = keys.into_iter().filter(|key| !seen.contains(key));
        let mut changes: Vec<ObjectChange> = gone.map(|key| ObjectChange::Deleted(kind, key)).collect();
        changes.push(ObjectChange::Listed(kind, seen));
        changes
    }

    fn keys(&self, kind: ObjectKind) -> Vec<ObjectKey> {
        let snapshot = &self.snapshot;
        let global = |name: &Name| ObjectKey::new(&Name::default(), name);
        match kind {
            ObjectKind::Service => {
                snapshot.services().map(|(s, _)| ObjectKey::new(&s.key.namespace, &s.key.name)).collect()
            }
            ObjectKind::Slice => snapshot.slice_keys().cloned().collect(),
            ObjectKind::Pod => snapshot.pods().map(|pod| pod.key.clone()).collect(),
            ObjectKind::Node => snapshot.nodes().keys().map(global).collect(),
            ObjectKind::Namespace => snapshot.namespaces().keys().map(global).collect(),
            ObjectKind::ServiceCidr => snapshot.service_cidrs().map(|cidr| global(&cidr.name)).collect(),
            ObjectKind::IpAddress => {
                snapshot.ip_addresses().map(|ip| global(&Name::new(&ip.address.to_string()))).collect()
            }
            ObjectKind::MeshHttpRoute => snapshot.mesh_http_route_keys().cloned().collect(),
            ObjectKind::MeshGatewayHttpRoute => snapshot.mesh_gateway_http_route_keys().cloned().collect(),
            ObjectKind::MeshTcpRoute => snapshot.mesh_tcp_route_keys().cloned().collect(),
            ObjectKind::MeshGateway => snapshot.mesh_gateways().map(|gateway| gateway.key.clone()).collect(),
            ObjectKind::MeshRouteFilter => {
                snapshot.route_filters().map(|filter| filter.key.clone()).collect()
            }
            ObjectKind::MeshLoadBalancing => {
                snapshot.all_load_balancing_policies().map(|policy| policy.identity.key.clone()).collect()
            }
            ObjectKind::GatewayApi(kind) => self.gateway_api_keys(kind),
            ObjectKind::Lease
            | ObjectKind::Secret
            | ObjectKind::ConfigMap
            | ObjectKind::CustomResourceDefinition
            | ObjectKind::ZoneDrain => Vec::new(),
        }
    }

    fn gateway_api_keys(&self, kind: GatewayApiKind) -> Vec<ObjectKey> {
        let snapshot = &self.snapshot;
        match kind {
            GatewayApiKind::Class => snapshot.gateway_classes().map(|o| o.identity.key.clone()).collect(),
            GatewayApiKind::Gateway => snapshot.gateways().map(|o| o.identity.key.clone()).collect(),
            GatewayApiKind::ListenerSet => snapshot.listener_sets().map(|o| o.identity.key.clone()).collect(),
            GatewayApiKind::Route(kind) => {
                let own = snapshot.routes().filter(|route| route.kind == kind);
                own.map(|route| route.identity.key.clone()).collect()
            }
            GatewayApiKind::Grant => {
                snapshot.all_reference_grants().map(|o| o.identity.key.clone()).collect()
            }
            GatewayApiKind::TlsPolicy => {
                snapshot.all_backend_tls_policies().map(|o| o.identity.key.clone()).collect()
            }
        }
    }

    fn remove(&mut self, kind: ObjectKind, key: &ObjectKey) {
        let snapshot = &mut self.snapshot;
        match kind {
            ObjectKind::Service => snapshot.remove_service(&ServiceKey::new(&key.namespace, &key.name)),
            ObjectKind::Slice => snapshot.remove_slice(key),
            ObjectKind::Pod => snapshot.remove_pod(key),
            ObjectKind::Node => snapshot.remove_node(&key.name),
            ObjectKind::Namespace => snapshot.remove_namespace(&key.name),
            ObjectKind::ServiceCidr => snapshot.remove_service_cidr(&key.name),
            ObjectKind::IpAddress => {
                if let Ok(address) = key.name.parse() {
                    snapshot.remove_ip_address(address);
                }
            }
            ObjectKind::MeshHttpRoute => snapshot.remove_mesh_http_route(key),
            ObjectKind::MeshGatewayHttpRoute => snapshot.remove_mesh_gateway_http_route(key),
            ObjectKind::MeshTcpRoute => snapshot.remove_mesh_tcp_route(key),
            ObjectKind::MeshGateway => snapshot.remove_mesh_gateway(key),
            ObjectKind::MeshRouteFilter => snapshot.remove_route_filter(key),
            ObjectKind::MeshLoadBalancing => snapshot.remove_load_balancing_policy(key),
            ObjectKind::GatewayApi(kind) => match kind {
                GatewayApiKind::Class => snapshot.remove_gateway_class(&key.name),
                GatewayApiKind::Gateway => snapshot.remove_gateway(key),
                GatewayApiKind::ListenerSet => snapshot.remove_listener_set(key),
                GatewayApiKind::Route(kind) => snapshot.remove_route(kind, key),
                GatewayApiKind::Grant => snapshot.remove_reference_grant(key),
                GatewayApiKind::TlsPolicy => snapshot.remove_backend_tls_policy(key),
            },
            ObjectKind::Lease
            | ObjectKind::Secret
            | ObjectKind::ConfigMap
            | ObjectKind::CustomResourceDefinition
            | ObjectKind::ZoneDrain => {}
        }
    }

    /// Sets what is known of a Secret or ConfigMap, which readers watch one by one; `None` if it is not watched any more.
    pub fn put_certificate(
        &mut self,
        kind: CertificateKind,
        key: &ObjectKey,
        source: Option<CertificateSource>,
    ) {
        match source {
            Some(source) => {
                self.snapshot.apply(Object::GatewayApi(GatewayApiObject::Certificate(source).into()));
            }
            None => self.snapshot.remove_certificate_source(kind, key),
        }
    }

    /// After a list: what follows changes little.
    fn compact(&mut self, kind: ObjectKind) {
        if matches!(kind, ObjectKind::Service | ObjectKind::Slice) {
            self.snapshot.compact_services();
        }
        self.interner.sweep();
        self.swept = self.interner.name_count();
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

/// Kinds whose objects the snapshot does not hold.
fn is_kept_by_readers(kind: ObjectKind) -> bool {
    matches!(
        kind,
        ObjectKind::Secret
            | ObjectKind::ConfigMap
            | ObjectKind::Lease
            | ObjectKind::CustomResourceDefinition
            | ObjectKind::ZoneDrain
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> WatchedObject {
        let text = format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"1"}}}}"#);
        serde_json::from_str(&text).expect("a node")
    }

    fn process(cache: &mut WatchCache, event: InformerEvent) {
        for change in cache.read(event) {
            cache.apply(change);
        }
    }

    #[test]
    fn a_list_after_a_gap_removes_what_was_deleted_meanwhile() {
        let mut cache = WatchCache::default();
        assert!(!cache.has_listed(&[ObjectKind::Node]));
        for event in [
            InformerEvent::ListStarted(ObjectKind::Node),
            InformerEvent::Applied(ObjectKind::Node, node("a")),
            InformerEvent::Applied(ObjectKind::Node, node("b")),
            InformerEvent::ListCompleted(ObjectKind::Node),
        ] {
            process(&mut cache, event);
        }
        assert!(cache.has_listed(&[ObjectKind::Node]));
        for event in [
            InformerEvent::ListStarted(ObjectKind::Node),
            InformerEvent::Applied(ObjectKind::Node, node("b")),
            InformerEvent::Applied(ObjectKind::Node, node("c")),
        ] {
            process(&mut cache, event);
        }
        assert_eq!(cache.snapshot().nodes().len(), 3, "objects are deleted only when the list is complete");
        process(&mut cache, InformerEvent::ListCompleted(ObjectKind::Node));
        assert_eq!(cache.snapshot().nodes().keys().map(Name::as_str).collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn an_object_that_turns_unreadable_counts_as_absent() {
        let mut cache = WatchCache::default();
        process(&mut cache, InformerEvent::Applied(ObjectKind::Node, node("a")));
        let bad = r#"{"metadata":{"name":"a","labels":7}}"#;
        let changes =
            cache.read(InformerEvent::Applied(ObjectKind::Node, serde_json::from_str(bad).expect("JSON")));
        assert!(
            matches!(&changes[..], [ObjectChange::Unreadable(ObjectKind::Node, _, notices)] if notices.len() == 1)
        );
        changes.into_iter().for_each(|change| cache.apply(change));
        assert!(cache.snapshot().node("a").is_none());
    }
}

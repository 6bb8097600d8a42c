//! The table cache: watched objects in, the tables of each proxy identity out; only affected parts are planned again.
//!
//! ```text
//! let mut cache = TableCache::default();
//! cache.add(identity);
//! loop { cache.apply(event); ...; for update in cache.refresh() { cache.tables(&update.identity) } }
//! ```
//!
//! Before every kind has been listed once, absence means nothing, and [`TableCache::refresh`] returns nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::gateway_api::CertificateKind;
use model::{BackendTable, Notice, Object, ObjectKey, RouteTable, Snapshot, Timestamp};
use plan::dependents::AffectedTables;
use plan::routes::unused_targets;
use xds::render::PemKeyPair;

use super::certificate_watches::{CertificateData, CertificateKey, CertificateUpdate};
pub use super::identity_tables::ChangedTables;
use super::identity_tables::{IdentityTables, RefreshContext};
use super::proxy_identity::ProxyIdentity;
use cluster::{InformerEvent, ObjectChange, ObjectKind, WatchCache, WatchSpec};

pub const KINDS: [ObjectKind; 21] = [
    ObjectKind::Service,
    ObjectKind::Slice,
    ObjectKind::Pod,
    ObjectKind::Node,
    ObjectKind::MeshHttpRoute,
    ObjectKind::MeshGatewayHttpRoute,
    ObjectKind::MeshTcpRoute,
    ObjectKind::MeshGateway,
    ObjectKind::MeshLoadBalancing,
    ObjectKind::MeshRouteFilter,
    ObjectKind::Namespace,
    ObjectKind::GATEWAY_API[0],
    ObjectKind::GATEWAY_API[1],
    ObjectKind::GATEWAY_API[2],
    ObjectKind::GATEWAY_API[3],
    ObjectKind::GATEWAY_API[4],
    ObjectKind::GATEWAY_API[5],
    ObjectKind::GATEWAY_API[6],
    ObjectKind::GATEWAY_API[7],
    ObjectKind::GATEWAY_API[8],
    ObjectKind::GATEWAY_API[9],
];

/// All objects of these kinds; of Pods and Namespaces the metadata only. Secrets and ConfigMaps are watched one by one,
/// see [`TableCache::wanted_certificates`].
pub fn wanted() -> Vec<WatchSpec> {
    let wanted = |kind| match kind {
        ObjectKind::Pod => WatchSpec::all(kind).metadata_only(),
        // Only listeners that select namespaces by label need them.
        ObjectKind::Namespace => WatchSpec::all(kind).metadata_only().optional(),
        _ => WatchSpec::all(kind),
    };
    KINDS.into_iter().map(wanted).collect()
}

/// An identity whose tables changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableUpdate {
    pub identity: ProxyIdentity,
    pub changed: ChangedTables,
}

/// The tables of an identity.
#[derive(Clone, Debug)]
pub struct MeshTables {
    pub routes: Arc<RouteTable>,
    /// The endpoints of every backend of a route.
    pub backends: Arc<BackendTable>,
    /// Failover tiers, in priority order; empty unless enabled.
    pub fallbacks: Vec<Arc<BackendTable>>,
    /// By Secret; missing and unusable ones are absent.
    pub certificates: BTreeMap<ObjectKey, Arc<PemKeyPair>>,
    /// PEM of certificate authorities, by ConfigMap; missing and unusable ones are absent.
    pub authorities: BTreeMap<ObjectKey, Arc<[u8]>>,
}

#[derive(Debug, Default)]
pub struct TableCache {
    mirror: WatchCache,
    with_fallbacks: bool,
    identities: BTreeMap<ProxyIdentity, IdentityTables>,
    affected: AffectedTables,
    certificates: BTreeMap<CertificateKey, CertificateData>,
    /// Notices about single objects.
    object_notices: BTreeMap<(ObjectKind, ObjectKey), Vec<Notice>>,
    /// Kinds whose watch fails, and why.
    watch_errors: BTreeMap<ObjectKind, String>,
}

impl TableCache {
    /// Also plans failover tiers, for Envoy's priorities.
    #[must_use]
    pub fn with_fallbacks(self) -> Self {
        Self { with_fallbacks: true, ..self }
    }

    pub fn snapshot(&self) -> &Snapshot {
        self.mirror.snapshot()
    }

    /// Whether every kind has been listed.
    pub fn is_listed(&self) -> bool {
        self.mirror.has_listed(&KINDS)
    }

    /// Kinds whose watch fails, and why.
    pub fn watch_errors(&self) -> &BTreeMap<ObjectKind, String> {
        &self.watch_errors
    }

    /// Adds an identity; the next [`TableCache::refresh`] plans its tables.
    pub fn add(&mut self, identity: ProxyIdentity) {
        self.identities.entry(identity.clone()).or_insert_with(|| IdentityTables::new(identity));
    }

    pub fn remove(&mut self, identity: &ProxyIdentity) {
        self.identities.remove(identity);
    }

    /// Applies an event of a watch.
    pub fn apply(&mut self, event: InformerEvent) {
        for change in self.mirror.read(event) {
            self.apply_change(change);
        }
    }

    fn apply_change(&mut self, change: ObjectChange) {
        // Changes before all kinds are listed are planned once, when they are.
        let listed = self.is_listed();
        if listed && let Some(compared) = change.compared(self.mirror.snapshot()) {
            self.affected.add(&compared, self.mirror.snapshot());
        }
        self.note_change(&change);
        self.mirror.apply(change);
        self.affected.everything |= self.is_listed() && !listed;
    }

    fn note_change(&mut self, change: &ObjectChange) {
        match change {
            ObjectChange::Applied(object, notices) => {
                if let Some((kind, key)) = kind_and_key(object) {
                    self.set_object_notices(kind, key, notices);
                }
            }
            ObjectChange::Unreadable(kind, key, notices) => {
                self.set_object_notices(*kind, key.clone(), notices)
            }
            ObjectChange::Deleted(kind, key) => self.set_object_notices(*kind, key.clone(), &[]),
            ObjectChange::Failed(kind, why) => drop(self.watch_errors.insert(*kind, why.clone())),
            ObjectChange::Listed(kind, seen) => {
                self.watch_errors.remove(kind);
                // Unusable objects are not in the snapshot, so their removal is seen only here.
                self.object_notices.retain(|(of, key), _| of != kind || seen.contains(key));
            }
            ObjectChange::Other(..) => {}
        }
    }

    fn set_object_notices(&mut self, kind: ObjectKind, key: ObjectKey, notices: &[Notice]) {
        if notices.is_empty() {
            self.object_notices.remove(&(kind, key));
        } else {
            self.object_notices.insert((kind, key), notices.to_vec());
        }
    }

    /// The Secrets and ConfigMaps of the gateways; only these are watched.
    pub fn wanted_certificates(&self) -> BTreeSet<CertificateKey> {
        self.identities.values().flat_map(|tables| tables.certificates.iter().cloned()).collect()
    }

    pub fn put_certificate(&mut self, update: CertificateUpdate) {
        let CertificateUpdate { key, data, source } = update;
        let (kind, object) = &key;
        let notices: Vec<Notice> = data.as_ref().err().cloned().into_iter().collect();
        self.set_object_notices(object_kind(*kind), object.clone(), &notices);
        let before = self.certificates.get(&key);
        let is_same = match &data {
            Ok(data) => before == Some(data),
            Err(_) => before.is_none(),
        };
        if !is_same {
            self.affected.certificates.insert(key.clone());
        }
        match data {
            // Equal data keeps its value: users compare by pointer.
            Ok(_) if is_same => {}
            Ok(data) => drop(self.certificates.insert(key.clone(), data)),
            Err(_) => drop(self.certificates.remove(&key)),
        }
        if self.snapshot().certificate_source(*kind, object) != source.as_ref() {
            self.affected.all_gateways = true;
            self.mirror.put_certificate(*kind, object, source);
        }
    }

    pub fn remove_certificate(&mut self, key: &CertificateKey) {
        self.certificates.remove(key);
        self.mirror.put_certificate(key.0, &key.1, None);
        self.set_object_notices(object_kind(key.0), key.1.clone(), &[]);
    }

    /// Sets the shares of endpoints that warm up or are drained to those of this time, for the next
    /// [`TableCache::refresh`].
    pub fn advance_shares(&mut self, now: Timestamp) {
        let changes = plan::capacity::advance(self.mirror.snapshot_mut(), now);
        if self.is_listed() {
            self.affected.backends.extend(changes.services);
        }
    }

    /// Plans the affected parts, and returns the identities whose tables changed.
    pub fn refresh(&mut self) -> Vec<TableUpdate> {
        if !self.is_listed() {
            return Vec::new();
        }
        let affected = std::mem::take(&mut self.affected);
        let mut context = RefreshContext {
            snapshot: self.mirror.snapshot(),
            affected: &affected,
            with_fallbacks: self.with_fallbacks,
            planned: BTreeMap::new(),
        };
        let mut updates = Vec::new();
        for (identity, tables) in &mut self.identities {
            if affected.is_empty() && !tables.is_new() {
                continue;
            }
            let changed = tables.refresh(&mut context);
            if changed.any() {
                updates.push(TableUpdate { identity: identity.clone(), changed });
            }
        }
        updates
    }

    /// The tables of an identity, as of the last [`TableCache::refresh`].
    pub fn tables(&self, identity: &ProxyIdentity) -> Option<MeshTables> {
        let tables = self.identities.get(identity)?;
        let (mut certificates, mut authorities) = (BTreeMap::new(), BTreeMap::new());
        for key in &tables.certificates {
            match self.certificates.get(key) {
                Some(CertificateData::KeyPair(pair)) => {
                    certificates.insert(key.1.clone(), pair.clone());
                }
                Some(CertificateData::Authorities(pem)) => {
                    authorities.insert(key.1.clone(), pem.clone());
                }
                None => {}
            }
        }
        Some(MeshTables {
            routes: tables.routes.clone(),
            backends: tables.backends.clone(),
            fallbacks: tables.fallbacks.clone(),
            certificates,
            authorities,
        })
    }

    /// About objects, about the routes of the identities, and about policies without effect.
    pub fn notices(&self) -> Vec<Notice> {
        let mut notices: Vec<Notice> = self.object_notices.values().flatten().cloned().collect();
        notices.extend(self.identities.values().flat_map(IdentityTables::notices));
        let namespaces: BTreeSet<_> =
            self.identities.keys().map(|identity| identity.namespace().clone()).collect();
        for namespace in &namespaces {
            notices.extend(unused_targets(self.snapshot(), namespace));
        }
        notices.sort();
        notices.dedup();
        notices
    }
}

fn kind_and_key(object: &Object) -> Option<(ObjectKind, ObjectKey)> {
    Some(match object {
        Object::Service(o) => (ObjectKind::Service, ObjectKey::new(&o.key.namespace, &o.key.name)),
        Object::Slice(o) => (ObjectKind::Slice, o.key.clone()),
        Object::Pod(o) => (ObjectKind::Pod, o.key.clone()),
        Object::MeshHttpRoute(o) => (ObjectKind::MeshHttpRoute, o.key.clone()),
        Object::MeshGatewayHttpRoute(o) => (ObjectKind::MeshGatewayHttpRoute, o.key.clone()),
        Object::MeshTcpRoute(o) => (ObjectKind::MeshTcpRoute, o.key.clone()),
        Object::MeshGateway(o) => (ObjectKind::MeshGateway, o.key.clone()),
        Object::MeshRouteFilter(o) => (ObjectKind::MeshRouteFilter, o.key.clone()),
        Object::MeshLoadBalancing(o) => (ObjectKind::MeshLoadBalancing, o.identity.key.clone()),
        Object::GatewayApi(o) => {
            let (kind, key) = o.kind_and_key()?;
            (ObjectKind::GatewayApi(kind), key.clone())
        }
        Object::Node(_) | Object::Namespace(_) | Object::ServiceCidr(_) | Object::IpAddress(_) => {
            return None;
        }
    })
}

fn object_kind(kind: CertificateKind) -> ObjectKind {
    match kind {
        CertificateKind::Secret => ObjectKind::Secret,
        CertificateKind::ConfigMap => ObjectKind::ConfigMap,
    }
}

#[cfg(test)]
mod tests;

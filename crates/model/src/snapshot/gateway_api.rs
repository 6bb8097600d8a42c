//! Objects of the Gateway API; routes and ListenerSets also by their parent.

use std::collections::{BTreeMap, BTreeSet};

use super::Snapshot;
use crate::gateway_api::{
    BackendTlsPolicy, CertificateKind, CertificateSource, Gateway, GatewayApiObject, GatewayClass,
    ListenerSet, ObjectIdentity, ParentKind, ReferenceGrant, Route, RouteKind,
};
use crate::name::{Name, ObjectKey, ServiceKey};
use crate::route::Hostname;

type ParentKey = (ParentKind, ObjectKey);
type RouteKey = (RouteKind, ObjectKey);

#[derive(Debug, Default)]
pub(super) struct GatewayApiIndex {
    classes: BTreeMap<Name, GatewayClass>,
    gateways: BTreeMap<ObjectKey, Gateway>,
    listener_sets: BTreeMap<ObjectKey, ListenerSet>,
    sets_by_gateway: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
    routes: BTreeMap<RouteKey, Route>,
    routes_by_parent: BTreeMap<ParentKey, BTreeSet<RouteKey>>,
    routes_by_backend: BTreeMap<ServiceKey, BTreeSet<RouteKey>>,
    routes_by_host: BTreeMap<Hostname, BTreeSet<RouteKey>>,
    grants: BTreeMap<ObjectKey, ReferenceGrant>,
    tls_policies: BTreeMap<ObjectKey, BackendTlsPolicy>,
    certificates: BTreeMap<(CertificateKind, ObjectKey), CertificateSource>,
}

impl GatewayApiIndex {
    pub(super) fn put(&mut self, mut object: GatewayApiObject, revision: u64) {
        let known = self.added(&object);
        if let Some(identity) = identity_mut(&mut object) {
            identity.added = known.unwrap_or(revision);
        }
        match object {
            GatewayApiObject::Class(class) => {
                self.classes.insert(class.identity.key.name.clone(), class);
            }
            GatewayApiObject::Gateway(gateway) => {
                self.gateways.insert(gateway.identity.key.clone(), gateway);
            }
            GatewayApiObject::ListenerSet(set) => {
                self.remove_listener_set(&set.identity.key);
                let key = set.identity.key.clone();
                self.sets_by_gateway.entry(set.parent.object.key()).or_default().insert(key.clone());
                self.listener_sets.insert(key, set);
            }
            GatewayApiObject::Route(route) => {
                let key = (route.kind, route.identity.key.clone());
                self.remove_route(&key);
                for parent in parents(&route) {
                    self.routes_by_parent.entry(parent).or_default().insert(key.clone());
                }
                for service in route.backend_services() {
                    self.routes_by_backend.entry(service).or_default().insert(key.clone());
                }
                for host in &route.hostnames {
                    self.routes_by_host.entry(host.clone()).or_default().insert(key.clone());
                }
                self.routes.insert(key, route);
            }
            GatewayApiObject::Grant(grant) => drop(self.grants.insert(grant.identity.key.clone(), grant)),
            GatewayApiObject::TlsPolicy(policy) => {
                self.tls_policies.insert(policy.identity.key.clone(), policy);
            }
            GatewayApiObject::Certificate(source) => {
                self.certificates.insert((source.kind, source.key.clone()), source);
            }
        }
    }

    /// The revision that added an object, if it exists.
    fn added(&self, object: &GatewayApiObject) -> Option<u64> {
        let known = match object {
            GatewayApiObject::Gateway(o) => self.gateways.get(&o.identity.key).map(|o| &o.identity),
            GatewayApiObject::ListenerSet(o) => self.listener_sets.get(&o.identity.key).map(|o| &o.identity),
            GatewayApiObject::Route(o) => {
                self.routes.get(&(o.kind, o.identity.key.clone())).map(|o| &o.identity)
            }
            GatewayApiObject::TlsPolicy(o) => self.tls_policies.get(&o.identity.key).map(|o| &o.identity),
            GatewayApiObject::Class(_) | GatewayApiObject::Grant(_) | GatewayApiObject::Certificate(_) => {
                None
            }
        };
        known.map(|identity| identity.added)
    }

    fn remove_listener_set(&mut self, key: &ObjectKey) {
        let Some(old) = self.listener_sets.remove(key) else { return };
        let gateway = old.parent.object.key();
        if let Some(sets) = self.sets_by_gateway.get_mut(&gateway) {
            sets.remove(key);
            if sets.is_empty() {
                self.sets_by_gateway.remove(&gateway);
            }
        }
    }

    fn remove_route(&mut self, key: &RouteKey) {
        let Some(old) = self.routes.remove(key) else { return };
        for parent in parents(&old) {
            remove_from(&mut self.routes_by_parent, &parent, key);
        }
        for service in old.backend_services() {
            remove_from(&mut self.routes_by_backend, &service, key);
        }
        for host in &old.hostnames {
            remove_from(&mut self.routes_by_host, host, key);
        }
    }

    /// Whether an object is the one that is held, but for the revision that added it.
    fn holds(&self, object: &GatewayApiObject) -> bool {
        let same = |held: &ObjectIdentity, new: &ObjectIdentity| {
            ObjectIdentity { added: held.added, ..new.clone() } == *held
        };
        match object {
            GatewayApiObject::Class(new) => self.classes.get(&new.identity.key.name).is_some_and(|held| {
                same(&held.identity, &new.identity)
                    && (&held.controller, held.has_parameters) == (&new.controller, new.has_parameters)
            }),
            GatewayApiObject::Gateway(new) => self.gateways.get(&new.identity.key).is_some_and(|held| {
                same(&held.identity, &new.identity)
                    && Gateway { identity: held.identity.clone(), ..new.clone() } == *held
            }),
            GatewayApiObject::ListenerSet(new) => {
                self.listener_sets.get(&new.identity.key).is_some_and(|held| {
                    same(&held.identity, &new.identity)
                        && (&held.parent, &held.listeners) == (&new.parent, &new.listeners)
                })
            }
            GatewayApiObject::Route(new) => {
                self.routes.get(&(new.kind, new.identity.key.clone())).is_some_and(|held| {
                    same(&held.identity, &new.identity)
                        && (&held.parents, &held.hostnames, &held.rules)
                            == (&new.parents, &new.hostnames, &new.rules)
                })
            }
            GatewayApiObject::Grant(new) => self.grants.get(&new.identity.key).is_some_and(|held| {
                same(&held.identity, &new.identity) && (&held.from, &held.to) == (&new.from, &new.to)
            }),
            GatewayApiObject::TlsPolicy(new) => {
                self.tls_policies.get(&new.identity.key).is_some_and(|held| {
                    same(&held.identity, &new.identity)
                        && BackendTlsPolicy { identity: held.identity.clone(), ..new.clone() } == *held
                })
            }
            GatewayApiObject::Certificate(new) => {
                self.certificates.get(&(new.kind, new.key.clone())) == Some(new)
            }
        }
    }
}

fn remove_from<K: Ord>(index: &mut BTreeMap<K, BTreeSet<RouteKey>>, at: &K, key: &RouteKey) {
    let Some(routes) = index.get_mut(at) else { return };
    routes.remove(key);
    if routes.is_empty() {
        index.remove(at);
    }
}

fn identity_mut(object: &mut GatewayApiObject) -> Option<&mut ObjectIdentity> {
    match object {
        GatewayApiObject::Class(o) => Some(&mut o.identity),
        GatewayApiObject::Gateway(o) => Some(&mut o.identity),
        GatewayApiObject::ListenerSet(o) => Some(&mut o.identity),
        GatewayApiObject::Route(o) => Some(&mut o.identity),
        GatewayApiObject::Grant(o) => Some(&mut o.identity),
        GatewayApiObject::TlsPolicy(o) => Some(&mut o.identity),
        GatewayApiObject::Certificate(_) => None,
    }
}

fn parents(route: &Route) -> impl Iterator<Item = ParentKey> {
    route.parents.iter().map(|parent| (parent.kind(), parent.object.key()))
}

impl Snapshot {
    pub fn gateway_class(&self, name: &str) -> Option<&GatewayClass> {
        self.gateway_api.classes.get(name)
    }

    pub fn gateway_classes(&self) -> impl Iterator<Item = &GatewayClass> {
        self.gateway_api.classes.values()
    }

    pub fn gateway(&self, key: &ObjectKey) -> Option<&Gateway> {
        self.gateway_api.gateways.get(key)
    }

    pub fn gateways(&self) -> impl Iterator<Item = &Gateway> {
        self.gateway_api.gateways.values()
    }

    pub fn listener_set(&self, key: &ObjectKey) -> Option<&ListenerSet> {
        self.gateway_api.listener_sets.get(key)
    }

    pub fn listener_sets(&self) -> impl Iterator<Item = &ListenerSet> {
        self.gateway_api.listener_sets.values()
    }

    /// The ListenerSets that name a Gateway as their parent.
    pub fn listener_sets_of(&self, gateway: &ObjectKey) -> impl Iterator<Item = &ListenerSet> {
        let keys = self.gateway_api.sets_by_gateway.get(gateway).into_iter().flatten();
        keys.filter_map(|key| self.gateway_api.listener_sets.get(key))
    }

    pub fn route(&self, kind: RouteKind, key: &ObjectKey) -> Option<&Route> {
        self.gateway_api.routes.get(&(kind, key.clone()))
    }

    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.gateway_api.routes.values()
    }

    /// The routes with a parentRef to an object, attached or not.
    pub fn routes_of_parent(&self, kind: ParentKind, key: &ObjectKey) -> impl Iterator<Item = &Route> {
        let keys = self.gateway_api.routes_by_parent.get(&(kind, key.clone())).into_iter().flatten();
        keys.filter_map(|key| self.gateway_api.routes.get(key))
    }

    /// The routes that may send requests to a Service, whether permitted or not.
    pub fn routes_of_backend(&self, service: &ServiceKey) -> impl Iterator<Item = &Route> {
        let keys = self.gateway_api.routes_by_backend.get(service).into_iter().flatten();
        keys.filter_map(|key| self.gateway_api.routes.get(key))
    }

    /// The routes that name this host.
    pub fn routes_of_host(&self, host: &Hostname) -> impl Iterator<Item = &Route> {
        let keys = self.gateway_api.routes_by_host.get(host).into_iter().flatten();
        keys.filter_map(|key| self.gateway_api.routes.get(key))
    }

    /// The routes that may send requests to a Service of a namespace.
    pub fn routes_to_namespace(&self, namespace: &Name) -> impl Iterator<Item = &Route> {
        let first = ServiceKey::new(namespace, &Name::default());
        let of = namespace.clone();
        let services = self.gateway_api.routes_by_backend.range(first..);
        let keys =
            services.take_while(move |(service, _)| service.namespace == of).flat_map(|(_, keys)| keys);
        keys.filter_map(|key| self.gateway_api.routes.get(key))
    }

    /// Whether an object of the Gateway API is already held like this: a write of its status changes nothing here.
    pub fn holds(&self, object: &GatewayApiObject) -> bool {
        self.gateway_api.holds(object)
    }

    pub fn reference_grants(&self, namespace: &Name) -> impl Iterator<Item = &ReferenceGrant> {
        super::routes::within(&self.gateway_api.grants, namespace)
    }

    pub fn all_reference_grants(&self) -> impl Iterator<Item = &ReferenceGrant> {
        self.gateway_api.grants.values()
    }

    pub fn backend_tls_policies(&self, namespace: &Name) -> impl Iterator<Item = &BackendTlsPolicy> {
        super::routes::within(&self.gateway_api.tls_policies, namespace)
    }

    pub fn backend_tls_policy(&self, key: &ObjectKey) -> Option<&BackendTlsPolicy> {
        self.gateway_api.tls_policies.get(key)
    }

    pub fn all_backend_tls_policies(&self) -> impl Iterator<Item = &BackendTlsPolicy> {
        self.gateway_api.tls_policies.values()
    }

    pub fn certificate_source(&self, kind: CertificateKind, key: &ObjectKey) -> Option<&CertificateSource> {
        self.gateway_api.certificates.get(&(kind, key.clone()))
    }

    pub fn remove_gateway_class(&mut self, name: &str) {
        self.revision.0 += 1;
        self.gateway_api.classes.remove(name);
    }

    pub fn remove_gateway(&mut self, key: &ObjectKey) {
        self.revision.0 += 1;
        self.gateway_api.gateways.remove(key);
    }

    pub fn remove_listener_set(&mut self, key: &ObjectKey) {
        self.revision.0 += 1;
        self.gateway_api.remove_listener_set(key);
    }

    pub fn remove_route(&mut self, kind: RouteKind, key: &ObjectKey) {
        self.revision.0 += 1;
        self.gateway_api.remove_route(&(kind, key.clone()));
    }

    pub fn remove_reference_grant(&mut self, key: &ObjectKey) {
        self.revision.0 += 1;
        self.gateway_api.grants.remove(key);
    }

    pub fn remove_backend_tls_policy(&mut self, key: &ObjectKey) {
        self.revision.0 += 1;
        self.gateway_api.tls_policies.remove(key);
    }

    pub fn remove_certificate_source(&mut self, kind: CertificateKind, key: &ObjectKey) {
        self.revision.0 += 1;
        self.gateway_api.certificates.remove(&(kind, key.clone()));
    }
}

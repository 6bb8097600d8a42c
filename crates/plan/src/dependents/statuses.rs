//! Which statuses a change of an object may affect.

use std::collections::BTreeSet;

use model::gateway_api::{BackendTlsPolicy, Gateway, GatewayApiKind, ListenerSet, ParentKind, Route};
use model::route::MeshGatewayHttpRoute;
use model::{Name, ObjectKey, Service, ServiceKey, Snapshot};

use super::{Change, same};
use crate::gateway_api::{AttachedRoutes, GATEWAY_NAME_LABEL, gateway_of};

/// An object of the Gateway API with a status.
pub type StatusKey = (GatewayApiKind, ObjectKey);

/// An object that changed.
#[derive(Clone, Debug)]
pub enum ChangedObject {
    GatewayApi(GatewayApiKind, ObjectKey),
    Service(ServiceKey),
    /// Its labels.
    Namespace(Name),
    /// A Secret or ConfigMap that certificates come from.
    Certificate,
    MeshHttpRoute(ObjectKey),
    MeshTcpRoute(ObjectKey),
    /// Its ports are not free for Gateways.
    MeshGateway(ObjectKey),
    /// Its hosts may be those of routes.
    MeshGatewayHttpRoute(ObjectKey),
    RouteFilter(ObjectKey),
    /// Whether proxies have bound the ports of this Gateway.
    BoundPorts(ObjectKey),
}

impl ChangedObject {
    /// `None` if no status depends on what changed.
    pub fn of(change: &Change<'_>, snapshot: &Snapshot) -> Option<Self> {
        match *change {
            Change::Service((old, new)) => {
                let service = old.or(new).filter(|_| !same((old, new), has_same_look))?;
                Some(Self::Service(service.key.clone()))
            }
            Change::Namespace((old, new)) => {
                let namespace = old.or(new).filter(|_| !same((old, new), |a, b| a.labels == b.labels))?;
                Some(Self::Namespace(namespace.name.clone()))
            }
            Change::MeshHttpRoute((old, new)) => {
                old.or(new).filter(|_| old != new).map(|route| Self::MeshHttpRoute(route.key.clone()))
            }
            Change::MeshTcpRoute((old, new)) => {
                old.or(new).filter(|_| old != new).map(|route| Self::MeshTcpRoute(route.key.clone()))
            }
            Change::MeshGateway((old, new)) => {
                old.or(new).filter(|_| old != new).map(|gateway| Self::MeshGateway(gateway.key.clone()))
            }
            Change::MeshGatewayHttpRoute((old, new)) => {
                old.or(new).filter(|_| old != new).map(|route| Self::MeshGatewayHttpRoute(route.key.clone()))
            }
            Change::MeshRouteFilter((old, new)) => {
                old.or(new).filter(|_| old != new).map(|filter| Self::RouteFilter(filter.key.clone()))
            }
            Change::GatewayApi(_, _, Some(new)) if snapshot.holds(new) => None,
            Change::GatewayApi(kind, key, _) => Some(Self::GatewayApi(kind, key.clone())),
            Change::Slice(_) | Change::Pod(_) | Change::Node(_) | Change::MeshLoadBalancing(_) => None,
        }
    }
}

fn has_same_look(a: &Service, b: &Service) -> bool {
    (a.kind, &a.ports, &a.labels) == (b.kind, &b.ports, &b.labels)
        && (&a.cluster_ips, &a.load_balancer) == (&b.cluster_ips, &b.load_balancer)
}

/// What statuses are planned again.
#[derive(Debug, Default)]
pub struct AffectedStatuses {
    pub gateway_api: BTreeSet<StatusKey>,
    pub mesh_gateway_http_routes: BTreeSet<ObjectKey>,
    /// Namespaces whose Mesh* objects, and those with a destination there, are affected.
    pub namespaces: BTreeSet<Name>,
}

/// The statuses that a change may affect. It is asked before the change and after it: both count.
pub fn dependent_statuses(
    snapshot: &Snapshot,
    changed: &ChangedObject,
    attached: &mut AttachedRoutes,
) -> AffectedStatuses {
    let mut found = DependentStatuses { snapshot, attached, keys: BTreeSet::new() };
    match changed {
        ChangedObject::GatewayApi(kind, key) => found.gateway_api(*kind, key),
        ChangedObject::Service(key) => found.service(key),
        ChangedObject::Namespace(name) => found.namespace(name),
        ChangedObject::Certificate => {
            found.gateways();
            found.tls_policies(snapshot.all_backend_tls_policies());
        }
        ChangedObject::MeshHttpRoute(key) => {
            let destinations = snapshot.mesh_http_route(key).into_iter().flat_map(|route| &route.to);
            destinations.for_each(|to| found.of_service_parent(&to.service));
        }
        ChangedObject::MeshTcpRoute(key) => {
            let destinations = snapshot.mesh_tcp_route(key).into_iter().flat_map(|route| &route.to);
            destinations.filter_map(|to| to.service.as_ref()).for_each(|key| found.of_service_parent(key));
        }
        ChangedObject::MeshGateway(key) => {
            found.gateways();
            for policy in snapshot.mesh_gateway_http_routes(&key.namespace) {
                found.with_hosts(policy);
            }
        }
        ChangedObject::RouteFilter(key) => {
            let own = snapshot.routes().filter(|o| o.identity.key.namespace == key.namespace);
            found.routes(own.filter(|route| route.refers_to_filter(&key.name)));
        }
        ChangedObject::BoundPorts(key) => {
            found.keys.insert((GatewayApiKind::Gateway, key.clone()));
            let sets = snapshot.listener_sets_of(key);
            found.keys.extend(sets.map(|set| (GatewayApiKind::ListenerSet, set.identity.key.clone())));
        }
        ChangedObject::MeshGatewayHttpRoute(key) => {
            snapshot.mesh_gateway_http_route(key).into_iter().for_each(|policy| found.with_hosts(policy));
        }
    }
    AffectedStatuses {
        gateway_api: found.keys,
        mesh_gateway_http_routes: mesh_gateway_http_routes(snapshot, changed),
        namespaces: namespaces(snapshot, changed),
    }
}

/// The MeshGatewayHTTPRoutes whose host a route of the Gateway API has, too; after a Gateway's change, all.
fn mesh_gateway_http_routes(snapshot: &Snapshot, changed: &ChangedObject) -> BTreeSet<ObjectKey> {
    match changed {
        ChangedObject::GatewayApi(GatewayApiKind::Route(kind), key) => {
            let hosts = snapshot.route(*kind, key).into_iter().flat_map(|o| o.hostnames.iter());
            let policies = hosts.flat_map(|host| snapshot.mesh_gateway_http_routes_of_host(host));
            policies.map(|policy| policy.key.clone()).collect()
        }
        ChangedObject::GatewayApi(GatewayApiKind::Grant | GatewayApiKind::TlsPolicy, _) => BTreeSet::new(),
        ChangedObject::GatewayApi(..) => snapshot.mesh_gateway_http_route_keys().cloned().collect(),
        _ => BTreeSet::new(),
    }
}

/// The namespace of a Service or MeshGateway, and those of the Services that a route of the Gateway API decides for.
fn namespaces(snapshot: &Snapshot, changed: &ChangedObject) -> BTreeSet<Name> {
    match changed {
        ChangedObject::Service(key) => [key.namespace.clone()].into(),
        ChangedObject::MeshGateway(key) => [key.namespace.clone()].into(),
        ChangedObject::GatewayApi(GatewayApiKind::Route(kind), key) => {
            let parents = snapshot.route(*kind, key).into_iter().flat_map(|route| route.parents.iter());
            let services = parents.filter(|parent| parent.kind() == ParentKind::Service);
            services.map(|parent| parent.object.namespace.clone()).collect()
        }
        _ => BTreeSet::new(),
    }
}

struct DependentStatuses<'s> {
    snapshot: &'s Snapshot,
    attached: &'s mut AttachedRoutes,
    keys: BTreeSet<StatusKey>,
}

impl<'s> DependentStatuses<'s> {
    fn gateway_api(&mut self, kind: GatewayApiKind, key: &ObjectKey) {
        if kind != GatewayApiKind::Grant {
            self.keys.insert((kind, key.clone()));
        }
        match kind {
            GatewayApiKind::Class => self.everything(),
            GatewayApiKind::Gateway => {
                // The addresses of other Gateways may depend on its ports.
                self.gateways();
                self.gateway(key);
            }
            GatewayApiKind::ListenerSet => {
                self.gateways();
                if let Some(set) = self.snapshot.listener_set(key) {
                    self.gateway(&set.parent.object.key());
                }
                self.owner(ParentKind::ListenerSet, key);
            }
            GatewayApiKind::Route(kind) => {
                if let Some(route) = self.snapshot.route(kind, key) {
                    self.route(route);
                }
            }
            GatewayApiKind::Grant => {
                self.gateways();
                self.routes(self.snapshot.routes_to_namespace(&key.namespace));
            }
            GatewayApiKind::TlsPolicy => {
                self.tls_policies(self.snapshot.backend_tls_policies(&key.namespace));
            }
        }
    }

    fn everything(&mut self) {
        self.attached.forget_all();
        self.gateways();
        self.routes(self.snapshot.routes());
        self.tls_policies(self.snapshot.all_backend_tls_policies());
    }

    /// All Gateways and ListenerSets.
    fn gateways(&mut self) {
        let gateways = self.snapshot.gateways();
        let key = |o: &Gateway| (GatewayApiKind::Gateway, o.identity.key.clone());
        self.keys.extend(gateways.map(key));
        let sets = self.snapshot.listener_sets();
        let key = |o: &ListenerSet| (GatewayApiKind::ListenerSet, o.identity.key.clone());
        self.keys.extend(sets.map(key));
    }

    /// A Gateway's routes and those of its ListenerSets.
    fn gateway(&mut self, key: &ObjectKey) {
        self.owner(ParentKind::Gateway, key);
        let sets: Vec<ObjectKey> =
            self.snapshot.listener_sets_of(key).map(|set| set.identity.key.clone()).collect();
        for set in &sets {
            self.owner(ParentKind::ListenerSet, set);
        }
    }

    /// The routes of an object with listeners, and the policies whose ancestor it may be.
    fn owner(&mut self, kind: ParentKind, key: &ObjectKey) {
        self.attached.forget(kind, key);
        self.routes(self.snapshot.routes_of_parent(kind, key));
        self.tls_policies(self.snapshot.all_backend_tls_policies());
    }

    fn route(&mut self, route: &'s Route) {
        self.attached.route_changed(route);
        for parent in &route.parents {
            let key = parent.object.key();
            match parent.kind() {
                ParentKind::Gateway => drop(self.keys.insert((GatewayApiKind::Gateway, key))),
                ParentKind::ListenerSet => {
                    self.keys.insert((GatewayApiKind::ListenerSet, key));
                    if let Some((gateway, _)) = gateway_of(self.snapshot, parent) {
                        self.keys.insert((GatewayApiKind::Gateway, gateway.identity.key.clone()));
                    }
                }
                // Routes of several kinds cannot share a port of a Service.
                ParentKind::Service => {
                    self.of_service_parent(&ServiceKey::new(&key.namespace, &key.name));
                }
                ParentKind::Other => {}
            }
        }
        let services: BTreeSet<ServiceKey> = route.backend_services().collect();
        for service in &services {
            let policies = self.snapshot.backend_tls_policies(&service.namespace);
            self.tls_policies(policies.filter(|policy| has_target(policy, service)));
        }
    }

    fn service(&mut self, key: &ServiceKey) {
        self.routes(self.snapshot.routes_of_backend(key));
        self.of_service_parent(key);
        let labels = self.snapshot.service(key).map(|service| &service.labels);
        if let Some(gateway) = labels.and_then(|labels| labels.value(GATEWAY_NAME_LABEL)) {
            self.keys.insert((GatewayApiKind::Gateway, ObjectKey::new(&key.namespace, gateway)));
        }
    }

    fn of_service_parent(&mut self, key: &ServiceKey) {
        let key = ObjectKey::new(&key.namespace, &key.name);
        self.routes(self.snapshot.routes_of_parent(ParentKind::Service, &key));
    }

    /// The routes with a host of a MeshGatewayHTTPRoute.
    fn with_hosts(&mut self, policy: &MeshGatewayHttpRoute) {
        for host in &policy.hostnames {
            self.routes(self.snapshot.routes_of_host(host));
        }
    }

    fn namespace(&mut self, name: &Name) {
        self.attached.forget_all();
        self.gateways();
        self.routes(self.snapshot.routes().filter(|route| route.identity.key.namespace == *name));
        // The routes of a ListenerSet of the namespace.
        let sets: Vec<ObjectKey> =
            self.snapshot.listener_sets().map(|set| set.identity.key.clone()).collect();
        for set in sets.iter().filter(|set| set.namespace == *name) {
            self.owner(ParentKind::ListenerSet, set);
        }
    }

    fn routes(&mut self, routes: impl Iterator<Item = &'s Route>) {
        self.keys.extend(routes.map(|o| (GatewayApiKind::Route(o.kind), o.identity.key.clone())));
    }

    fn tls_policies(&mut self, policies: impl Iterator<Item = &'s BackendTlsPolicy>) {
        self.keys.extend(policies.map(|o| (GatewayApiKind::TlsPolicy, o.identity.key.clone())));
    }
}

fn has_target(policy: &BackendTlsPolicy, service: &ServiceKey) -> bool {
    policy.targets.iter().any(|target| target.name == service.name)
}

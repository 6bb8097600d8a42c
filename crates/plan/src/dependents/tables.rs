//! The parts of proxies' tables that a change of an object affects, by comparison with the object before.
//!
//! ```text
//! EndpointSlice -> backends of its Service
//! Service       -> its outbounds; routes with it as a backend; its backends
//! route policy  -> its destinations, before and now; itself, for the gateway
//! MeshLoadBalancing -> the settings of every proxy, which are compared with those before
//! Pod's labels  -> the clients of its Services; subsets
//! Node          -> locations of proxies; subsets by zone and region
//! Gateway API: a route -> its Gateways, and its Services; Gateway, ListenerSet -> the Gateway; others -> all Gateways
//! ```

use std::collections::{BTreeMap, BTreeSet};

use model::gateway_api::{CertificateKind, GatewayApiKind, GatewayApiObject, ParentKind, Route};
use model::route::{
    MeshGateway, MeshGatewayHttpRoute, MeshHttpRoute, MeshTcpRoute, PolicyTarget, RouteFilter, RouteRule,
    ToHttp,
};
use model::{Labels, Name, Node, ObjectKey, Pod, Service, ServiceKey, Slice, Snapshot};

use super::{Change, Versions, same};

/// What has to be planned again.
#[derive(Debug, Default)]
pub struct AffectedTables {
    pub everything: bool,
    /// Outbounds of these Services, for every client.
    pub destinations: BTreeSet<ServiceKey>,
    /// Outbounds of these Services, but only by these MeshHTTPRoutes.
    pub http_routes_by_destination: BTreeMap<ServiceKey, BTreeSet<ObjectKey>>,
    /// All routes of these gateways.
    pub mesh_gateways: BTreeSet<ObjectKey>,
    pub gateway_routes: BTreeSet<ObjectKey>,
    /// Endpoints of these Services.
    pub backends: BTreeSet<ServiceKey>,
    /// Sidecars of these Services.
    pub clients: BTreeSet<ServiceKey>,
    /// Pods with changed labels.
    pub pods: BTreeSet<ObjectKey>,
    /// Nodes with a changed zone or region.
    pub nodes: BTreeSet<Name>,
    pub certificates: BTreeSet<(CertificateKind, ObjectKey)>,
    /// Gateways of the Gateway API.
    pub gateways: BTreeSet<ObjectKey>,
    pub all_gateways: bool,
    pub load_balancing: bool,
}

impl AffectedTables {
    pub fn is_empty(&self) -> bool {
        !self.everything
            && self.destinations.is_empty()
            && self.http_routes_by_destination.is_empty()
            && self.mesh_gateways.is_empty()
            && self.gateway_routes.is_empty()
            && self.backends.is_empty()
            && self.clients.is_empty()
            && self.pods.is_empty()
            && self.nodes.is_empty()
            && self.certificates.is_empty()
            && self.gateways.is_empty()
            && !self.all_gateways
            && !self.load_balancing
    }

    /// Whether policies, or what they select clients by, changed.
    pub fn may_change_load_balancing(&self) -> bool {
        self.load_balancing || !self.clients.is_empty() || !self.nodes.is_empty()
    }

    /// Adds what a change affects. The snapshot is the one before the change.
    pub fn add(&mut self, change: &Change<'_>, snapshot: &Snapshot) {
        match *change {
            Change::Service(versions) => self.service(versions, snapshot),
            Change::Slice(versions) => self.slice(versions),
            Change::Pod(versions) => self.pod(versions, snapshot),
            Change::Node(versions) => self.node(versions),
            Change::Namespace(versions) => self.all_gateways |= !same(versions, |a, b| a.labels == b.labels),
            Change::MeshHttpRoute(versions) => self.http_route(versions),
            Change::MeshGatewayHttpRoute(versions) => self.gateway_route(versions),
            Change::MeshTcpRoute(versions) => self.tcp_route(versions),
            Change::MeshGateway(versions) => self.gateway(versions),
            Change::MeshLoadBalancing(versions) => {
                self.load_balancing |= !same(versions, |a, b| a.is_same(b))
            }
            Change::MeshRouteFilter((old, new)) => {
                if let Some(filter) = old.or(new).filter(|_| old != new) {
                    self.route_filter(&filter.key, snapshot);
                }
            }
            Change::GatewayApi(_, _, Some(new)) if snapshot.holds(new) => {}
            Change::GatewayApi(kind, key, new) => {
                self.gateway_api(kind, key, snapshot);
                match new {
                    Some(GatewayApiObject::Route(route)) => self.route(route, snapshot),
                    Some(GatewayApiObject::ListenerSet(set)) => {
                        self.gateways.insert(set.parent.object.key());
                    }
                    _ => {}
                }
            }
        }
    }

    /// An object of the Gateway API as it was before the change.
    fn gateway_api(&mut self, kind: GatewayApiKind, key: &ObjectKey, snapshot: &Snapshot) {
        match kind {
            GatewayApiKind::Gateway => drop(self.gateways.insert(key.clone())),
            GatewayApiKind::ListenerSet => {
                let gateway = snapshot.listener_set(key).map(|set| set.parent.object.key());
                self.gateways.extend(gateway);
            }
            GatewayApiKind::Route(kind) => {
                if let Some(route) = snapshot.route(kind, key) {
                    self.route(route, snapshot);
                }
            }
            GatewayApiKind::Class | GatewayApiKind::Grant | GatewayApiKind::TlsPolicy => {
                self.all_gateways = true;
            }
        }
    }

    /// Adds the routes that refer to a MeshRouteFilter.
    fn route_filter(&mut self, key: &ObjectKey, snapshot: &Snapshot) {
        let own = snapshot.routes().filter(|route| route.identity.key.namespace == key.namespace);
        for route in own.filter(|route| route.refers_to_filter(&key.name)) {
            self.route(route, snapshot);
        }
    }

    /// Adds the gateways and destinations of a route.
    fn route(&mut self, route: &Route, snapshot: &Snapshot) {
        for parent in &route.parents {
            let key = parent.object.key();
            match parent.kind() {
                ParentKind::Gateway => drop(self.gateways.insert(key)),
                ParentKind::ListenerSet => {
                    let gateway = snapshot.listener_set(&key).map(|set| set.parent.object.key());
                    self.gateways.extend(gateway);
                }
                ParentKind::Service => {
                    self.destinations.insert(ServiceKey::new(&key.namespace, &key.name));
                }
                ParentKind::Other => {}
            }
        }
    }

    fn service(&mut self, (old, new): Versions<'_, Service>, snapshot: &Snapshot) {
        let Some(key) = old.or(new).map(|service| service.key.clone()) else { return };
        if !same((old, new), |a, b| a.selector == b.selector) {
            self.clients.insert(key.clone());
        }
        if !same((old, new), has_same_backends) {
            self.backends.insert(key.clone());
        }
        if !same((old, new), has_same_routes) {
            self.routes_to(&key, snapshot);
            self.destinations.insert(key);
        }
    }

    /// Adds everything that uses a Service as a backend, because whether it resolves may have changed.
    fn routes_to(&mut self, service: &ServiceKey, snapshot: &Snapshot) {
        let (namespace, name) = (&service.namespace, &service.name);
        for route in snapshot.routes_of_backend(service) {
            self.route(route, snapshot);
        }
        for policy in snapshot.mesh_http_routes(namespace) {
            self.http_route_to(policy, |to| to.rules.iter().any(|rule| names(rule, name)));
        }
        for policy in snapshot.mesh_gateway_http_routes(namespace) {
            if policy.rules.iter().any(|rule| names(rule, name)) {
                self.gateway_routes.insert(policy.key.clone());
            }
        }
        for policy in snapshot.mesh_tcp_routes(namespace) {
            for to in policy.to.iter().filter(|to| to.backends.iter().any(|b| b.name == *name)) {
                match &to.service {
                    Some(key) => drop(self.destinations.insert(key.clone())),
                    None => self.target(&policy.target, namespace),
                }
            }
        }
    }

    fn slice(&mut self, (old, new): Versions<'_, Slice>) {
        if same((old, new), |a, b| a.content == b.content && a.deleting == b.deleting) {
            return;
        }
        // A slice may move from one Service to another.
        self.backends.extend([old, new].into_iter().flatten().filter_map(Slice::service));
    }

    fn pod(&mut self, (old, new): Versions<'_, Pod>, snapshot: &Snapshot) {
        let Some(key) = old.or(new).map(|pod| pod.key.clone()) else { return };
        if same((old, new), |a, b| a.labels == b.labels) {
            return;
        }
        let carries = |selector: &Labels| {
            let mut labels = [old, new].into_iter().flatten().map(|pod| &pod.labels);
            !selector.is_empty() && labels.any(|labels| selector.selects(labels))
        };
        for service in snapshot.services_within(&key.namespace) {
            if service.selector.as_ref().is_some_and(carries) {
                self.clients.insert(service.key.clone());
            }
        }
        self.pods.insert(key);
    }

    fn node(&mut self, (old, new): Versions<'_, Node>) {
        if let Some(node) = old.or(new)
            && !same((old, new), |a, b| (&a.zone, &a.region) == (&b.zone, &b.region))
        {
            self.nodes.insert(node.name.clone());
        }
    }

    fn http_route(&mut self, (old, new): Versions<'_, MeshHttpRoute>) {
        if same((old, new), |a, b| a == b) {
            return;
        }
        for policy in [old, new].into_iter().flatten() {
            self.http_route_to(policy, |_| true);
        }
    }

    /// Adds a policy for some of its destinations.
    fn http_route_to(&mut self, policy: &MeshHttpRoute, is_affected: impl Fn(&ToHttp) -> bool) {
        for to in policy.to.iter().filter(|to| is_affected(to)) {
            let routes = self.http_routes_by_destination.entry(to.service.clone()).or_default();
            routes.insert(policy.key.clone());
        }
    }

    fn gateway_route(&mut self, (old, new): Versions<'_, MeshGatewayHttpRoute>) {
        if let Some(policy) = old.or(new)
            && !same((old, new), |a, b| a == b)
        {
            self.gateway_routes.insert(policy.key.clone());
        }
    }

    fn tcp_route(&mut self, (old, new): Versions<'_, MeshTcpRoute>) {
        if same((old, new), |a, b| a == b) {
            return;
        }
        for policy in [old, new].into_iter().flatten() {
            self.target(&policy.target, &policy.key.namespace);
            self.destinations.extend(policy.to.iter().filter_map(|to| to.service.clone()));
        }
    }

    fn gateway(&mut self, (old, new): Versions<'_, MeshGateway>) {
        if let Some(gateway) = old.or(new)
            && !same((old, new), |a, b| a == b)
        {
            self.mesh_gateways.insert(gateway.key.clone());
        }
    }

    fn target(&mut self, target: &PolicyTarget, namespace: &Name) {
        if let PolicyTarget::Gateway(name, _) = target {
            self.mesh_gateways.insert(ObjectKey::new(namespace, name));
        }
    }
}

fn has_same_routes(a: &Service, b: &Service) -> bool {
    (a.kind, &a.ports, &a.cluster_ips) == (b.kind, &b.ports, &b.cluster_ips)
}

/// Everything but status and creation time may change the choice of endpoints.
fn has_same_backends(a: &Service, b: &Service) -> bool {
    let strip = |service: &Service| Service { conditions: Labels::EMPTY, created: None, ..service.clone() };
    strip(a) == strip(b)
}

fn names(rule: &RouteRule, service: &Name) -> bool {
    rule.parts().any(|(_, filters, backends)| {
        let is_mirror =
            |f: &RouteFilter| matches!(f, RouteFilter::Mirror { backend, .. } if backend.name == *service);
        backends.iter().any(|backend| backend.name == *service) || filters.iter().any(is_mirror)
    })
}

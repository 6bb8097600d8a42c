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

use model::gateway_api::{GatewayApiKind, GatewayApiObject, ParentKind, Route};
use model::route::{
    MeshGateway, MeshGatewayHttpRoute, MeshHttpRoute, MeshTcpRoute, PolicyTarget, RouteFilter, RouteRule,
    ToHttp,
};
use model::{Labels, Name, Node, Object, ObjectKey, Pod, Service, ServiceKey, Slice, Snapshot};

use super::certificate_watches::CertificateKey;
use cluster::{ObjectChange, ObjectKind};

/// What has to be planned again.
#[derive(Debug, Default)]
pub(super) struct Affected {
    pub(super) everything: bool,
    /// Outbounds of these Services, for every client.
    pub(super) destinations: BTreeSet<ServiceKey>,
    /// Outbounds of these Services, but only by these MeshHTTPRoutes.
    pub(super) http_routes_by_destination: BTreeMap<ServiceKey, BTreeSet<ObjectKey>>,
    /// All routes of these gateways.
    pub(super) mesh_gateways: BTreeSet<ObjectKey>,
    pub(super) gateway_routes: BTreeSet<ObjectKey>,
    /// Endpoints of these Services.
    pub(super) backends: BTreeSet<ServiceKey>,
    /// Sidecars of these Services.
    pub(super) clients: BTreeSet<ServiceKey>,
    /// Pods with changed labels.
    pub(super) pods: BTreeSet<ObjectKey>,
    /// Nodes with a changed zone or region.
    pub(super) nodes: BTreeSet<Name>,
    pub(super) certificates: BTreeSet<CertificateKey>,
    /// Gateways of the Gateway API.
    pub(super) gateways: BTreeSet<ObjectKey>,
    pub(super) all_gateways: bool,
    pub(super) load_balancing: bool,
}

impl Affected {
    pub(super) fn is_empty(&self) -> bool {
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
    pub(super) fn may_change_load_balancing(&self) -> bool {
        self.load_balancing || !self.clients.is_empty() || !self.nodes.is_empty()
    }

    /// Adds what a change affects. The snapshot is the one before the change.
    pub(super) fn add(&mut self, change: &ObjectChange, snapshot: &Snapshot) {
        match change {
            ObjectChange::Applied(object, _) => self.put(object, snapshot),
            ObjectChange::Deleted(kind, key) | ObjectChange::Unreadable(kind, key, _) => {
                self.gone(*kind, key, snapshot)
            }
            ObjectChange::Other(..) | ObjectChange::Listed(..) | ObjectChange::Failed(..) => {}
        }
    }

    fn put(&mut self, object: &Object, snapshot: &Snapshot) {
        match object {
            Object::Service(new) => self.service(snapshot.service(&new.key), Some(new), snapshot),
            Object::Slice(new) => self.slice(snapshot.slice(&new.key), Some(new)),
            Object::Pod(new) => self.pod(snapshot.pod(&new.key), Some(new), snapshot),
            Object::Node(new) => self.node(snapshot.node(&new.name), Some(new)),
            Object::MeshHttpRoute(new) => self.http_route(snapshot.mesh_http_route(&new.key), Some(new)),
            Object::MeshGatewayHttpRoute(new) => {
                self.gateway_route(snapshot.mesh_gateway_http_route(&new.key), Some(new))
            }
            Object::MeshTcpRoute(new) => self.tcp_route(snapshot.mesh_tcp_route(&new.key), Some(new)),
            Object::MeshGateway(new) => self.gateway(snapshot.mesh_gateway(&new.key), Some(new)),
            Object::MeshRouteFilter(new) if snapshot.route_filter(&new.key) == Some(&**new) => {}
            Object::MeshRouteFilter(new) => self.route_filter(&new.key, snapshot),
            Object::MeshLoadBalancing(new) => {
                let held = snapshot.load_balancing_policy(&new.identity.key);
                self.load_balancing |= held.is_none_or(|held| !held.is_same(new));
            }
            Object::GatewayApi(new) if snapshot.holds(new) => {}
            Object::GatewayApi(new) => {
                if let Some((kind, key)) = new.kind_and_key() {
                    self.gateway_api(kind, key, snapshot);
                }
                match &**new {
                    GatewayApiObject::Route(route) => self.route(route, snapshot),
                    GatewayApiObject::ListenerSet(set) => {
                        self.gateways.insert(set.parent.object.key());
                    }
                    _ => {}
                }
            }
            Object::Namespace(new) => {
                let known = snapshot.namespace(&new.name).map(|held| &held.labels);
                self.all_gateways |= known != Some(&new.labels);
            }
            Object::ServiceCidr(_) | Object::IpAddress(_) => {}
        }
    }

    fn gone(&mut self, kind: ObjectKind, key: &ObjectKey, snapshot: &Snapshot) {
        match kind {
            ObjectKind::Service => {
                let key = ServiceKey::new(&key.namespace, &key.name);
                self.service(snapshot.service(&key), None, snapshot);
            }
            ObjectKind::Slice => self.slice(snapshot.slice(key), None),
            ObjectKind::Pod => self.pod(snapshot.pod(key), None, snapshot),
            ObjectKind::Node => self.node(snapshot.node(&key.name), None),
            ObjectKind::MeshHttpRoute => self.http_route(snapshot.mesh_http_route(key), None),
            ObjectKind::MeshGatewayHttpRoute => {
                self.gateway_route(snapshot.mesh_gateway_http_route(key), None)
            }
            ObjectKind::MeshTcpRoute => self.tcp_route(snapshot.mesh_tcp_route(key), None),
            ObjectKind::MeshGateway => self.gateway(snapshot.mesh_gateway(key), None),
            ObjectKind::MeshRouteFilter => self.route_filter(key, snapshot),
            ObjectKind::MeshLoadBalancing => {
                self.load_balancing |= snapshot.load_balancing_policy(key).is_some();
            }
            ObjectKind::GatewayApi(kind) => self.gateway_api(kind, key, snapshot),
            ObjectKind::Namespace => self.all_gateways = true,
            ObjectKind::ServiceCidr
            | ObjectKind::IpAddress
            | ObjectKind::Lease
            | ObjectKind::Secret
            | ObjectKind::ConfigMap
            | ObjectKind::CustomResourceDefinition
            | ObjectKind::ZoneDrain => {}
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

    fn service(&mut self, old: Option<&Service>, new: Option<&Service>, snapshot: &Snapshot) {
        let Some(key) = old.or(new).map(|service| service.key.clone()) else { return };
        if !same(old, new, |a, b| a.selector == b.selector) {
            self.clients.insert(key.clone());
        }
        if !same(old, new, has_same_backends) {
            self.backends.insert(key.clone());
        }
        if !same(old, new, has_same_routes) {
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

    fn slice(&mut self, old: Option<&Slice>, new: Option<&Slice>) {
        if same(old, new, |a, b| a.content == b.content && a.deleting == b.deleting) {
            return;
        }
        // A slice may move from one Service to another.
        self.backends.extend([old, new].into_iter().flatten().filter_map(Slice::service));
    }

    fn pod(&mut self, old: Option<&Pod>, new: Option<&Pod>, snapshot: &Snapshot) {
        let Some(key) = old.or(new).map(|pod| pod.key.clone()) else { return };
        if same(old, new, |a, b| a.labels == b.labels) {
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

    fn node(&mut self, old: Option<&Node>, new: Option<&Node>) {
        if let Some(node) = old.or(new)
            && !same(old, new, |a, b| (&a.zone, &a.region) == (&b.zone, &b.region))
        {
            self.nodes.insert(node.name.clone());
        }
    }

    fn http_route(&mut self, old: Option<&MeshHttpRoute>, new: Option<&MeshHttpRoute>) {
        if same(old, new, |a, b| a == b) {
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

    fn gateway_route(&mut self, old: Option<&MeshGatewayHttpRoute>, new: Option<&MeshGatewayHttpRoute>) {
        if let Some(policy) = old.or(new)
            && !same(old, new, |a, b| a == b)
        {
            self.gateway_routes.insert(policy.key.clone());
        }
    }

    fn tcp_route(&mut self, old: Option<&MeshTcpRoute>, new: Option<&MeshTcpRoute>) {
        if same(old, new, |a, b| a == b) {
            return;
        }
        for policy in [old, new].into_iter().flatten() {
            self.target(&policy.target, &policy.key.namespace);
            self.destinations.extend(policy.to.iter().filter_map(|to| to.service.clone()));
        }
    }

    fn gateway(&mut self, old: Option<&MeshGateway>, new: Option<&MeshGateway>) {
        if let Some(gateway) = old.or(new)
            && !same(old, new, |a, b| a == b)
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

fn same<T>(old: Option<&T>, new: Option<&T>, is_same: impl Fn(&T, &T) -> bool) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => is_same(old, new),
        (None, None) => true,
        _ => false,
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

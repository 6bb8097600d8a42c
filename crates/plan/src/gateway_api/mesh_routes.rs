//! Routes with a Service as parent: the routing of requests of one client namespace to one port of the Service.
//!
//! A route in the Service's namespace is for all clients (producer); one in another namespace is for clients of that
//! namespace (consumer), which then do not see the rules of producers.

use std::sync::Arc;

use model::gateway_api::{ParentKind, ParentReference, Route, RouteKind};
use model::route::{AppProtocol, HttpRoutes, MeshHttpRoute, MeshTcpRoute, Routing, ToTcp};
use model::{Name, Notice, ObjectKey, ObjectRef, Protocol, Service, ServiceKey, ServicePort, Snapshot};

use super::Problem;
use super::rules::RouteRules;
use super::table::group;

/// The routing of a Service's port by routes of the Gateway API.
#[derive(Debug)]
pub struct MeshRouting {
    pub routing: Routing,
    /// What the port speaks if its declaration does not say: the route tells.
    pub protocol: AppProtocol,
    /// The routes that decide, older ones first.
    pub routes: Vec<ObjectRef>,
    pub notices: Vec<Notice>,
}

/// The routing for clients of a namespace; `None` without a route.
pub fn mesh_routing(
    snapshot: &Snapshot,
    client: &Name,
    service: &Service,
    port: &ServicePort,
) -> Option<MeshRouting> {
    let attached = effective_routes(snapshot, client, service, port);
    let kind = attached.first()?.kind;
    let mut notices = Vec::new();
    let rules = |route| RouteRules { snapshot, route, is_mesh: true };
    let (routing, protocol) = if kind.is_http() {
        let lists: Vec<_> =
            attached.iter().map(|route| (route.kind, rules(route).http(&mut notices))).collect();
        let groups = [Arc::new(group(&lists))].into();
        let protocol = if kind == RouteKind::Grpc { AppProtocol::Grpc } else { AppProtocol::Http };
        (Routing::Http(Arc::new(HttpRoutes { groups })), protocol)
    } else {
        let split = attached.first().map(|route| rules(route).connections(&mut notices));
        (Routing::Tcp(Arc::new(split.unwrap_or_default())), AppProtocol::Tcp)
    };
    let routes = attached.iter().map(|route| route.object()).collect();
    Some(MeshRouting { routing, protocol, routes, notices })
}

/// The routes that decide for clients of a namespace instead of Mesh* policies.
pub(crate) fn deciding_routes(
    snapshot: &Snapshot,
    client: &Name,
    service: &Service,
    port: &ServicePort,
) -> Vec<ObjectRef> {
    effective_routes(snapshot, client, service, port).into_iter().map(Route::object).collect()
}

/// The Mesh* policies with a Service as destination, which a route of the Gateway API overrides.
pub(super) fn overridden_policies(snapshot: &Snapshot, service: &ServiceKey) -> Vec<ObjectRef> {
    let http =
        snapshot.all_mesh_http_routes().filter(|policy| policy.to.iter().any(|to| to.service == *service));
    let is_tcp = |to: &ToTcp| to.service.as_ref() == Some(service);
    let tcp = snapshot.all_mesh_tcp_routes().filter(|policy| policy.to.iter().any(is_tcp));
    http.map(MeshHttpRoute::object).chain(tcp.map(MeshTcpRoute::object)).collect()
}

/// The routes of the kind that wins, older ones first.
fn effective_routes<'s>(
    snapshot: &'s Snapshot,
    client: &Name,
    service: &Service,
    port: &ServicePort,
) -> Vec<&'s Route> {
    let of = |namespace: &Name| routes_within(snapshot, namespace, service, port);
    let mut routes = of(client);
    if routes.is_empty() && *client != service.key.namespace {
        routes = of(&service.key.namespace);
    }
    let Some(kind) = routes.iter().map(|route| route.kind).min() else { return Vec::new() };
    routes.retain(|route| route.kind == kind);
    routes
}

fn routes_within<'s>(
    snapshot: &'s Snapshot,
    namespace: &Name,
    service: &Service,
    port: &ServicePort,
) -> Vec<&'s Route> {
    let key = ObjectKey::new(&service.key.namespace, &service.key.name);
    let all = snapshot.routes_of_parent(ParentKind::Service, &key);
    let is_attached = |route: &&Route| {
        let is_udp = port.protocol == Protocol::Udp;
        route.identity.key.namespace == *namespace
            && (route.kind == RouteKind::Udp) == is_udp
            && route.parents.iter().any(|parent| is_for(parent, &key, port))
    };
    let mut routes: Vec<&Route> = all.filter(is_attached).collect();
    routes.sort_by_cached_key(|route| route.identity.age_order());
    routes
}

fn is_for(parent: &ParentReference, service: &ObjectKey, port: &ServicePort) -> bool {
    parent.kind() == ParentKind::Service
        && parent.object.key() == *service
        && parent.port.is_none_or(|number| number == port.port)
        && parent.section.as_ref().is_none_or(|name| *name == port.name)
}

/// Whether a route takes effect for a Service that is its parent; `None` if the Service does not exist.
pub(super) fn attached_to_service(
    snapshot: &Snapshot,
    route: &Route,
    parent: &ParentReference,
) -> Option<Result<(), Problem>> {
    let key = parent.object.key();
    let service = snapshot.service(&ServiceKey::new(&key.namespace, &key.name))?;
    let ports: Vec<&ServicePort> = service.ports.iter().filter(|port| is_for(parent, &key, port)).collect();
    if ports.is_empty() {
        return Some(Err(Problem::new("NoMatchingParent", "the Service has no port of the parentRef")));
    }
    let namespace = &route.identity.key.namespace;
    let is_effective = |port: &&ServicePort| {
        let effective = routes_within(snapshot, namespace, service, port);
        effective.iter().map(|other| other.kind).min() == Some(route.kind)
    };
    if ports.iter().any(is_effective) {
        return Some(Ok(()));
    }
    let message = "routes of another kind decide: GRPCRoute before HTTPRoute before TLSRoute before TCPRoute";
    Some(Err(Problem::new("Conflicted", message)))
}

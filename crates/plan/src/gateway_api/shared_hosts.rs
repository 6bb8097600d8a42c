//! Hosts that routes of both APIs claim on one port. MeshGateways have their addresses and ports before Gateways, so that
//! the two never meet at one listener: clients of an address see the routes of one API. Both sides say so in their status.

use std::collections::BTreeSet;

use model::gateway_api::{CONTROLLER, GatewayListener, ParentKind, ParentReference, Route};
use model::route::{MeshGatewayHttpRoute, PolicyTarget};
use model::{ObjectKey, ObjectRef, Snapshot};

use super::attachment::gateway_of;
use super::listeners::is_ours;

/// What a status says about the order of both APIs.
const ORDER: &str =
    "each answers at the addresses of its own gateway, and a MeshGateway has an address and port first";
/// How many routes a message lists.
const LISTED: usize = 10;

/// About MeshGatewayHTTPRoutes with a host and port of a route; `None` if there are none.
pub(super) fn of_route(snapshot: &Snapshot, route: &Route) -> Option<String> {
    let ports = ports_of_route(snapshot, route);
    let rivals = route.hostnames.iter().flat_map(|host| snapshot.mesh_gateway_http_routes_of_host(host));
    let rivals = rivals.filter(|policy| !ports_of_policy(snapshot, policy).is_disjoint(&ports));
    message(rivals.map(MeshGatewayHttpRoute::object).collect())
}

/// About routes of the Gateway API with a host and port of a MeshGatewayHTTPRoute; `None` if there are none.
pub(crate) fn of_mesh_policy(snapshot: &Snapshot, policy: &MeshGatewayHttpRoute) -> Option<String> {
    let ports = ports_of_policy(snapshot, policy);
    let rivals = policy.hostnames.iter().flat_map(|host| snapshot.routes_of_host(host));
    let rivals = rivals.filter(|route| !ports_of_route(snapshot, route).is_disjoint(&ports));
    message(rivals.map(Route::object).collect())
}

fn message(rivals: BTreeSet<ObjectRef>) -> Option<String> {
    let names: Vec<String> = rivals.iter().take(LISTED).map(ToString::to_string).collect();
    let more = rivals.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| format!("{}{more} has the same host and port: {ORDER}", names.join(", ")))
}

fn ports_of_policy(snapshot: &Snapshot, policy: &MeshGatewayHttpRoute) -> BTreeSet<u16> {
    let PolicyTarget::Gateway(name, _) = &policy.target else { return BTreeSet::new() };
    let gateway = snapshot.mesh_gateway(&ObjectKey::new(&policy.key.namespace, name));
    gateway.into_iter().flat_map(|gateway| gateway.listeners.iter()).map(|listener| listener.port).collect()
}

fn ports_of_route(snapshot: &Snapshot, route: &Route) -> BTreeSet<u16> {
    let ports = route.parents.iter().flat_map(|parent| {
        let named = move |own: &&GatewayListener| {
            parent.section.as_ref().is_none_or(|name| *name == own.name)
                && parent.port.is_none_or(|port| port == own.port)
        };
        listeners(snapshot, parent).iter().filter(named).map(|own| own.port)
    });
    ports.collect()
}

fn listeners<'s>(snapshot: &'s Snapshot, parent: &ParentReference) -> &'s [GatewayListener] {
    let found = gateway_of(snapshot, parent).filter(|(own, _)| is_ours(snapshot, own, CONTROLLER));
    match (found, parent.kind()) {
        (Some((gateway, _)), ParentKind::Gateway) => &gateway.listeners,
        (Some(_), ParentKind::ListenerSet) => {
            snapshot.listener_set(&parent.object.key()).map(|set| &*set.listeners).unwrap_or_default()
        }
        _ => &[],
    }
}

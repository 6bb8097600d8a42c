//! Which route a request takes: from the policies of a namespace to the table of one proxy.
//!
//! ```text
//! policies -> applies: those for this client, by precedence -> merge: one list of rules per destination
//!          -> order: first hit wins -> act: filters and backends resolved -> RouteTable
//! ```
//!
//! A sidecar's table is made of one destination at a time, a gateway's of one port at a time, so that a change
//! costs what it touches. Nothing depends on the order in which policies came (seed 004, semantics 1.3 to 1.8).

mod act;
mod applies;
mod client;
mod draft;
mod gateway;
mod merge;
mod order;
mod resolve;
#[cfg(test)]
mod tests;
mod trace;

use std::sync::Arc;

use model::route::{
    AppProtocol, BackendId, HttpRoutes, HttpRule, LegTarget, Outbound, RouteGroup, RouteTable, Routing, Split,
};
use model::{Labels, Notice, Protocol, Service, ServicePort, Snapshot};

use applies::{http_rules, tcp_backends};
use resolve::Resolver;

pub use applies::unused_targets;
pub use client::Client;
pub(crate) use client::{HOSTNAME, REGION, ZONE};
pub use gateway::{GatewayRoutes, gateway};
pub use merge::{Source, merge};
pub use trace::{Incoming, Outcome, Step, Trace, trace};

/// The routes of a client to every Service.
pub fn sidecar(snapshot: &Snapshot, client: &Client) -> (RouteTable, Vec<Notice>) {
    let (mut table, mut notices) = (RouteTable::default(), Vec::new());
    for (service, _) in snapshot.services() {
        for port in service.ports.iter() {
            let Some((outbound, told)) = outbound(snapshot, client, service, port) else { continue };
            table.put_outbound(Arc::new(outbound));
            notices.extend(told);
        }
    }
    notices.sort();
    notices.dedup();
    (table, notices)
}

/// The routes of a client to one port of a Service. `None` for what is not TCP.
pub fn outbound(
    snapshot: &Snapshot,
    client: &Client,
    service: &Service,
    port: &ServicePort,
) -> Option<(Outbound, Vec<Notice>)> {
    if port.protocol != Protocol::Tcp {
        return None;
    }
    let protocol = AppProtocol::of(port.app_protocol.as_deref(), &port.name);
    let destination = Destination { service, port, protocol };
    let mut notices = Vec::new();
    let routing = routing(snapshot, client, &destination, &mut notices);
    let outbound = Outbound {
        service: service.key.clone(),
        port: port.port,
        protocol,
        addresses: service.cluster_ips.addresses().into(),
        routing,
    };
    Some((outbound, notices))
}

/// A Service's port as what a client asked for.
struct Destination<'a> {
    service: &'a Service,
    port: &'a ServicePort,
    protocol: AppProtocol,
}

impl Destination<'_> {
    fn backend(&self) -> BackendId {
        BackendId { service: self.service.key.clone(), port: self.port.port, tags: Labels::EMPTY }
    }
}

/// Semantics 1.8: HTTP routes where requests can be told apart, TCP routes elsewhere or where there are no others.
fn routing(
    snapshot: &Snapshot,
    client: &Client,
    destination: &Destination<'_>,
    notices: &mut Vec<Notice>,
) -> Routing {
    let http = http_rules(snapshot, client, &destination.service.key);
    let tcp = tcp_backends(snapshot, client, &destination.service.key);
    if !destination.protocol.is_http() {
        notices.extend(http.iter().map(|source| not_http(source, destination)));
    }
    if destination.protocol.is_http() && (!http.is_empty() || tcp.is_none()) {
        return Routing::Http(Arc::new(http_routes(snapshot, destination, &http, notices)));
    }
    let Some((policy, backends)) = tcp else {
        return Routing::Tcp(Arc::new(Split::new([(LegTarget::Backend(destination.backend()), 1)])));
    };
    let resolver = Resolver { snapshot, namespace: &client.namespace, near: Some(destination.port) };
    Routing::Tcp(Arc::new(resolver.split(backends, false, &policy, notices)))
}

fn http_routes(
    snapshot: &Snapshot,
    destination: &Destination<'_>,
    sources: &[Source<'_>],
    notices: &mut Vec<Notice>,
) -> HttpRoutes {
    let namespace = &destination.service.key.namespace;
    let resolver = Resolver { snapshot, namespace, near: Some(destination.port) };
    let setting = act::Setting { resolver, otherwise: Some(destination.backend()), keeps_query: true };
    let mut rules = act::rules(merge(sources), &setting, notices);
    // Semantics 1.5: no 404 in the mesh. What no rule takes goes where it was going.
    if !rules.iter().flat_map(|rule| &rule.rule.matches).any(|on| on.is_everything()) {
        rules.push(HttpRule::catch_all(act::pass_on(destination.backend())));
    }
    let rules: Vec<Arc<HttpRule>> = rules.into_iter().map(Arc::new).collect();
    let entries = order::entries(&rules);
    HttpRoutes { groups: [Arc::new(RouteGroup::new(rules, entries))].into() }
}

fn not_http(source: &Source<'_>, destination: &Destination<'_>) -> Notice {
    let Destination { service, port, .. } = destination;
    let message = format!(
        "{}: port {} of {} speaks TCP as far as we know, so its requests cannot be told apart and this route is not used there; set the port's appProtocol to http, http2 or grpc, or use a MeshTCPRoute",
        source.field, port.port, service.key
    );
    Notice::new(source.policy.clone(), "DestinationNotHTTP", message)
}

//! The routes of one proxy, from the policies of the mesh.
//!
//! ```text
//! policies -> policy_attachment: those for this client, by precedence -> merge: one list of rules per destination
//!          -> match_precedence: first match wins -> rule_action: filters and backends resolved -> RouteTable
//! ```
//!
//! A sidecar's table is planned per destination, a gateway's per host, and the rules of a policy are prepared once
//! (prepared_rules), so that a change costs only what it affects. The order in which policies were created does not matter
//! (seed 004, semantics 1.3 to 1.8).

mod backend_resolution;
mod duplicate_matches;
mod gateway;
mod load_balancing;
pub(crate) mod match_precedence;
mod merge;
mod mesh_client;
mod outbound;
mod policy_attachment;
mod prepared_rules;
mod route_status;
mod rule_action;
#[cfg(test)]
mod tests;
mod trace;

use model::route::{Outbound, RouteTable};
use model::{Notice, Service, ServicePort, Snapshot};

pub use duplicate_matches::{never_matching, never_matching_within};
pub use gateway::{GatewayRoutes, gateway};
pub use load_balancing::{
    LoadBalancingByService, PolicyConsumer, all_load_balancing, idle_fields, load_balancing,
    set_load_balancing,
};
pub use merge::{RuleSource, merge};
pub use mesh_client::MeshClient;
pub(crate) use mesh_client::{HOSTNAME, REGION, ZONE};
pub use outbound::OutboundRoutes;
pub use policy_attachment::{applies, destinations, unused_targets};
pub use route_status::{
    RouteCondition, RouteStatus, SecretState, of_gateway, of_gateway_http_route, of_http_route,
    of_load_balancing, of_route_filter, of_tcp_route,
};
pub(crate) use rule_action::header_and_path_changes;
pub use trace::{RequestOutcome, RequestTrace, TraceStep, TracedRequest, trace};

/// The routes of a client to every Service.
pub fn sidecar(snapshot: &Snapshot, client: &MeshClient) -> (RouteTable, Vec<Notice>) {
    let (mut table, mut notices) = (RouteTable::default(), Vec::new());
    for (service, _) in snapshot.services() {
        for port in service.ports.iter() {
            let Some(routes) = OutboundRoutes::new(snapshot, client, service, port) else { continue };
            table.put_outbound(routes.outbound);
            notices.extend(routes.notices);
        }
    }
    notices.extend(set_load_balancing(&mut table, snapshot, PolicyConsumer::Client(client)));
    notices.sort();
    notices.dedup();
    (table, notices)
}

/// The routes of a client to one port of a Service. `None` for protocols other than TCP.
pub fn outbound(
    snapshot: &Snapshot,
    client: &MeshClient,
    service: &Service,
    port: &ServicePort,
) -> Option<(Outbound, Vec<Notice>)> {
    let OutboundRoutes { outbound, notices, .. } = OutboundRoutes::new(snapshot, client, service, port)?;
    Some((std::sync::Arc::unwrap_or_clone(outbound), notices))
}

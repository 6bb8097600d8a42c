//! Which route a request takes: from the policies of the mesh to the table of one proxy.
//!
//! ```text
//! policies -> applies: those for this client, by precedence -> merge: one list of rules per destination
//!          -> order: first hit wins -> act: filters and backends resolved -> RouteTable
//! ```
//!
//! A sidecar's table is made of one destination at a time, a gateway's of one host at a time, and the rules of a policy
//! are made ready once (draft), so that a change costs what it touches. Nothing depends on the order in which policies
//! came (seed 004, semantics 1.3 to 1.8).

mod act;
mod applies;
mod client;
mod draft;
mod gateway;
mod merge;
mod order;
mod outbound;
mod repeats;
mod resolve;
mod standing;
#[cfg(test)]
mod tests;
mod trace;

use model::route::{Outbound, RouteTable};
use model::{Notice, Service, ServicePort, Snapshot};

pub use applies::{applies, destinations, unused_targets};
pub use client::Client;
pub(crate) use client::{HOSTNAME, REGION, ZONE};
pub use gateway::{GatewayRoutes, gateway};
pub use merge::{Source, merge};
pub use outbound::OutboundRoutes;
pub use repeats::{never_matching, never_matching_within};
pub use standing::{
    Finding, Holds, SecretState, Standing, of_gateway, of_gateway_http_route, of_http_route, of_tcp_route,
};
pub use trace::{Incoming, Outcome, Step, Trace, trace};

/// The routes of a client to every Service.
pub fn sidecar(snapshot: &Snapshot, client: &Client) -> (RouteTable, Vec<Notice>) {
    let (mut table, mut notices) = (RouteTable::default(), Vec::new());
    for (service, _) in snapshot.services() {
        for port in service.ports.iter() {
            let Some(routes) = OutboundRoutes::new(snapshot, client, service, port) else { continue };
            table.put_outbound(routes.outbound);
            notices.extend(routes.notices);
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
    let OutboundRoutes { outbound, notices, .. } = OutboundRoutes::new(snapshot, client, service, port)?;
    Some((std::sync::Arc::unwrap_or_clone(outbound), notices))
}

//! Which flows are stale: the decision alone, without a kernel.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::{Flow, UDP};

/// One UDP port of a Service, as far as flows are concerned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UdpService {
    /// Its frontends of both families: cluster IPs, load balancer IPs and external IPs with the port.
    // pitfall 26: load balancer IPs belong to it. pitfall 22: the port too.
    pub frontends: BTreeSet<SocketAddr>,
    /// Its node port.
    pub node_port: Option<u16>,
    /// Its serving endpoints, with their ports; policies, topology and termination do not matter.
    // semantics D7: not a serving endpoint is what makes a flow stale.
    pub serving: BTreeSet<SocketAddr>,
}

/// Whether the flow was sent to this Service and its answers come from none of its serving endpoints.
///
/// A node port is on the node's addresses; without knowing those (`node_addresses` is empty) any address will do.
pub fn is_stale(service: &UdpService, node_addresses: &[IpAddr], flow: &Flow) -> bool {
    flow.protocol == UDP
        && (service.frontends.contains(&flow.dst) || is_to_node_port(service, node_addresses, flow))
        && !service.serving.contains(&flow.reply_src)
}

fn is_to_node_port(service: &UdpService, node_addresses: &[IpAddr], flow: &Flow) -> bool {
    // pitfall 24: a flow through this node to the same port of another host is none of ours.
    let on_node = node_addresses.is_empty() || node_addresses.contains(&flow.dst.ip());
    // semantics D7: without a serving endpoint, a match by port alone proves too little.
    on_node
        && service.node_port == Some(flow.dst.port())
        && service.serving.iter().any(|endpoint| endpoint.is_ipv4() == flow.dst.is_ipv4())
}

//! Stale UDP flows: conntrack entries of a Service whose endpoint no longer serves.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// One UDP port of a Service, with what tells its stale flows from the others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UdpService {
    /// Cluster IPs, load balancer IPs and external IPs of both families, with the port.
    // pitfall 26: load balancer IPs belong to it. pitfall 22: so does the port.
    pub frontends: BTreeSet<SocketAddr>,
    pub node_port: Option<u16>,
    /// Serving endpoints, with their ports, regardless of traffic policy, topology and termination.
    // semantics D7: a flow is stale if its endpoint is not serving.
    pub serving: BTreeSet<SocketAddr>,
}

impl UdpService {
    /// Whether a UDP flow to `dst` belongs to this Service while its replies, from `reply_src`, come from no serving endpoint.
    ///
    /// `node_addresses` are those that node ports are on; if empty, any address counts.
    pub fn is_stale(&self, node_addresses: &[IpAddr], dst: SocketAddr, reply_src: SocketAddr) -> bool {
        (self.frontends.contains(&dst) || self.is_at_node_port(node_addresses, dst))
            && !self.serving.contains(&reply_src)
    }

    fn is_at_node_port(&self, node_addresses: &[IpAddr], dst: SocketAddr) -> bool {
        // pitfall 24: a flow through this node to the same port of another host does not belong to the Service.
        let on_node = node_addresses.is_empty() || node_addresses.contains(&dst.ip());
        // semantics D7: without a serving endpoint, a match by port alone proves too little.
        on_node
            && self.node_port == Some(dst.port())
            && self.serving.iter().any(|endpoint| endpoint.is_ipv4() == dst.is_ipv4())
    }
}

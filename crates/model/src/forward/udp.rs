//! What has to be known of a Service to tell its stale UDP flows.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

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

impl UdpService {
    /// Whether a UDP flow to `dst` was sent to this Service and its answers, from `reply_src`, come from none of its serving
    /// endpoints.
    ///
    /// A node port is on the node's addresses; without knowing those (`node_addresses` is empty) any address will do.
    pub fn is_stale(&self, node_addresses: &[IpAddr], dst: SocketAddr, reply_src: SocketAddr) -> bool {
        (self.frontends.contains(&dst) || self.is_at_node_port(node_addresses, dst))
            && !self.serving.contains(&reply_src)
    }

    fn is_at_node_port(&self, node_addresses: &[IpAddr], dst: SocketAddr) -> bool {
        // pitfall 24: a flow through this node to the same port of another host is none of ours.
        let on_node = node_addresses.is_empty() || node_addresses.contains(&dst.ip());
        // semantics D7: without a serving endpoint, a match by port alone proves too little.
        on_node
            && self.node_port == Some(dst.port())
            && self.serving.iter().any(|endpoint| endpoint.is_ipv4() == dst.is_ipv4())
    }
}

//! Which connections a node masquerades: the rule of each frontend, and what it means for one packet (semantics D3).

use super::{ForwardingTable, Frontend, TrafficPolicy, TrafficSource};

/// Whose source address is replaced by the node's. A pod that reaches itself through its Service always is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Masquerade {
    /// Clients outside the cluster, if pods can be recognised; every client under `masqueradeAll`.
    NotPods,
    /// Every client: the reply has to pass through this node.
    Everyone,
    /// Only the node's own traffic: the client's address stays visible.
    NodeItself,
}

impl Masquerade {
    /// The rule for node ports, load balancer IPs and external IPs.
    pub fn of_external_traffic(policy: TrafficPolicy) -> Self {
        match policy {
            TrafficPolicy::Cluster => Self::Everyone,
            TrafficPolicy::Local => Self::NodeItself,
        }
    }
}

impl ForwardingTable {
    /// Whether a new connection through a frontend is masqueraded, and why.
    pub(super) fn masquerade(&self, frontend: &Frontend, source: TrafficSource) -> (bool, &'static str) {
        let can_detect_pods = self.node.detect_local.knows(frontend.port.family());
        match frontend.masquerade {
            Masquerade::Everyone => {
                (true, "yes: under externalTrafficPolicy Cluster the reply has to pass through this node")
            }
            Masquerade::NodeItself if source == TrafficSource::Node => {
                (true, "yes: the client is the node itself")
            }
            Masquerade::NodeItself => {
                (false, "no: externalTrafficPolicy Local preserves the client's address")
            }
            Masquerade::NotPods if self.node.masquerade_all => (true, "yes: masqueradeAll is set"),
            Masquerade::NotPods if !can_detect_pods => {
                (false, "no: detectLocal is not configured for this family, so pods cannot be recognised")
            }
            Masquerade::NotPods if source == TrafficSource::Pod => (false, "no: the client is a pod"),
            Masquerade::NotPods => {
                (true, "yes: the client is not a pod, so the reply has to pass through this node")
            }
        }
    }
}

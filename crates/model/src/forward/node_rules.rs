//! Facts about a node that its forwarding rules depend on.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::address::Family;
use crate::name::Name;

/// The settings of a node that apply to all Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRules {
    pub detect_local: LocalTrafficDetector,
    /// Whether all traffic to cluster IPs is masqueraded.
    pub masquerade_all: bool,
    /// The bit of the packet mark that requests masquerading, 0 to 31.
    pub mark_bit: u8,
    pub node_ports_v4: NodePortAddresses,
    pub node_ports_v6: NodePortAddresses,
    /// Loopback addresses on which the node proxy itself listens for connections to TCP node ports (KEP-6032).
    pub localhost_node_ports: Box<[IpAddr]>,
    /// Ranges whose unassigned addresses are dropped, sorted.
    pub service_cidrs: Box<[IpNet]>,
    /// The node's known addresses, for explanations and for external addresses among them; the kernel uses its own list.
    pub addresses: Box<[IpAddr]>,
}

impl Default for NodeRules {
    fn default() -> Self {
        Self {
            detect_local: LocalTrafficDetector::Unknown,
            masquerade_all: false,
            mark_bit: 14,
            node_ports_v4: NodePortAddresses::All,
            node_ports_v6: NodePortAddresses::All,
            localhost_node_ports: Box::default(),
            service_cidrs: Box::default(),
            addresses: Box::default(),
        }
    }
}

impl NodeRules {
    pub fn node_ports(&self, family: Family) -> &NodePortAddresses {
        match family {
            Family::V4 => &self.node_ports_v4,
            Family::V6 => &self.node_ports_v6,
        }
    }

    /// Semantics D4: whether node ports are served on an address: one of this node within the ranges; loopback never.
    pub fn takes_node_ports(&self, address: IpAddr) -> bool {
        let listed = match self.node_ports(Family::of(address)) {
            NodePortAddresses::All => true,
            NodePortAddresses::Within(ranges) => ranges.iter().any(|range| range.contains(&address)),
        };
        listed && !address.is_loopback() && self.addresses.contains(&address)
    }

    /// The packet mark that requests masquerading.
    pub fn mark(&self) -> u32 {
        1u32.checked_shl(u32::from(self.mark_bit)).unwrap_or(1 << 14)
    }
}

/// How packets from local pods are recognised (kube-proxy's detectLocal).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum LocalTrafficDetector {
    /// Not configured: no packet counts as a pod's.
    #[default]
    Unknown,
    /// By source address (modes ClusterCIDR and NodeCIDR); a family without a range has no pods.
    Ranges { v4: Option<IpNet>, v6: Option<IpNet> },
    /// By the incoming bridge.
    Bridge(Name),
    /// By the prefix of the incoming interface's name.
    InterfacePrefix(Name),
}

impl LocalTrafficDetector {
    /// Whether pods of a family can be recognised.
    pub fn knows(&self, family: Family) -> bool {
        match self {
            Self::Unknown => false,
            Self::Ranges { .. } => self.range(family).is_some(),
            Self::Bridge(_) | Self::InterfacePrefix(_) => true,
        }
    }

    /// The pod range of a family, if pods are recognised by source address.
    pub fn range(&self, family: Family) -> Option<IpNet> {
        match (self, family) {
            (Self::Ranges { v4, .. }, Family::V4) => *v4,
            (Self::Ranges { v6, .. }, Family::V6) => *v6,
            _ => None,
        }
    }
}

/// The node's addresses that accept node ports. Loopback never does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    All,
    /// Addresses within these ranges, sorted.
    Within(Box<[IpNet]>),
}

//! Facts about a node that its forwarding rules depend on.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Frontend, FrontendAction, FrontendHost, FrontendKind};
use crate::address::Family;
use crate::name::Name;

/// How a node treats traffic where kube-proxy's modes differ (semantics D2, D4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardingMode {
    /// Ports that a Service does not have are refused on its cluster IP, and unassigned addresses are dropped.
    #[default]
    Nftables,
    /// Only the frontends of Services are touched. Node ports without endpoints are refused on every address of the
    /// node, source ranges apply only while there are endpoints, and the node's own packets to external addresses
    /// without endpoints leave the node.
    Iptables,
    /// As nftables. Addresses of Services are local to the node, whose virtual servers forward to endpoints.
    Ipvs,
    /// Windows: only frontends with endpoints are touched. Nothing refuses or drops a packet.
    Kernelspace,
}

impl ForwardingMode {
    /// The value in a KubeProxyConfiguration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
            Self::Kernelspace => "kernelspace",
        }
    }
}

/// The settings of a node that apply to all Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRules {
    pub mode: ForwardingMode,
    pub detect_local: LocalTrafficDetector,
    /// Whether all traffic to cluster IPs is masqueraded.
    pub masquerade_all: bool,
    /// The bit of the packet mark that requests masquerading, 0 to 31.
    pub mark_bit: u8,
    pub node_ports_v4: NodePortAddresses,
    pub node_ports_v6: NodePortAddresses,
    /// Whether node ports are served on IPv4 loopback addresses by rules, in mode iptables.
    pub localhost_node_ports: bool,
    /// Loopback addresses on which the node proxy itself listens for connections to TCP node ports (KEP-6032).
    pub localhost_listeners: Box<[IpAddr]>,
    /// Ranges whose unassigned addresses are dropped, sorted.
    pub service_cidrs: Box<[IpNet]>,
    /// The node's known addresses, for explanations and for external addresses among them; the kernel uses its own list.
    pub addresses: Box<[IpAddr]>,
    /// The node's address of each family, as the cluster knows it.
    pub primary: Box<[IpAddr]>,
}

impl Default for NodeRules {
    fn default() -> Self {
        Self {
            mode: ForwardingMode::Nftables,
            detect_local: LocalTrafficDetector::Unknown,
            masquerade_all: false,
            mark_bit: 14,
            node_ports_v4: NodePortAddresses::All,
            node_ports_v6: NodePortAddresses::All,
            localhost_node_ports: false,
            localhost_listeners: Box::default(),
            service_cidrs: Box::default(),
            addresses: Box::default(),
            primary: Box::default(),
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

    /// Semantics D4: whether node ports are served on an address: one of this node within the ranges. Loopback is one of
    /// them only in IPv4 and with `localhost_node_ports`.
    pub fn takes_node_ports(&self, address: IpAddr) -> bool {
        let listed = match self.node_ports(Family::of(address)) {
            NodePortAddresses::All => true,
            NodePortAddresses::Within(ranges) => ranges.iter().any(|range| range.contains(&address)),
        };
        let is_served = match address.is_loopback() {
            true => self.localhost_node_ports && address.is_ipv4(),
            false => self.addresses.contains(&address),
        };
        listed && is_served
    }

    /// Whether an address is this node's own.
    pub fn is_own(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address)
    }

    /// Mode ipvs: whether a virtual server carries a frontend. Frontends with a selection of endpoints of their own for
    /// clients inside are not: a virtual server has one list. External addresses are not, nor load balancer IPs that are
    /// the node's: a virtual server needs its address to be local, which would make another node with it unreachable.
    pub fn is_forwarded_by_ipvs(&self, frontend: &Frontend) -> bool {
        let is_own = |host| matches!(host, FrontendHost::Address(ip) if self.addresses.contains(&ip));
        let has_place = match frontend.kind {
            FrontendKind::ClusterIp | FrontendKind::NodePort => true,
            FrontendKind::LoadBalancer => !is_own(frontend.address.host),
            FrontendKind::ExternalIp => false,
        };
        let sends = matches!(frontend.outside, FrontendAction::Send(_));
        self.mode == ForwardingMode::Ipvs && has_place && sends && frontend.inside.is_none()
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

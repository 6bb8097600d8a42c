//! The forwarding table of a node: the interface between planning and the data planes.
//!
//! ```text
//! packet -> FrontendAddress (IP or node port, protocol, port) -> Frontend -> FrontendAction -> EndpointSet of a port
//! ```
//!
//! It speaks Kubernetes; how a kernel implements it is up to a data plane. Endpoints have already been selected: a data
//! plane makes no choice but a random one among the endpoints of a set.

mod masquerade;
mod node_rules;
mod packet_verdict;
mod stale_udp;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::address::{Family, Protocol};
use crate::name::{Name, ServiceKey};
use crate::service::TrafficPolicy;
use crate::tree::compact;

pub use masquerade::Masquerade;
pub use node_rules::{ForwardingMode, LocalTrafficDetector, NodePortAddresses, NodeRules};
pub use packet_verdict::{FirstPacket, ForwardingDecision, PacketVerdict, TrafficClass, TrafficSource};
pub use stale_udp::UdpService;

/// The frontends of every Service on a node, with the facts about the node that the rules need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForwardingTable {
    pub node: NodeRules,
    frontends_by_service: BTreeMap<ServiceKey, Box<[Frontend]>>,
    service_by_address: BTreeMap<FrontendAddress, ServiceKey>,
}

impl ForwardingTable {
    pub fn new(node: NodeRules) -> Self {
        Self { node, ..Self::default() }
    }

    /// Replaces the frontends of a Service; an empty list removes it. The last writer owns an address that two Services
    /// have: `plan::forward` resolves such conflicts before.
    pub fn replace(&mut self, service: &ServiceKey, frontends: Vec<Frontend>) {
        for old in self.frontends_by_service.remove(service).iter().flatten() {
            if self.service_by_address.get(&old.address) == Some(service) {
                self.service_by_address.remove(&old.address);
            }
        }
        for frontend in &frontends {
            self.service_by_address.insert(frontend.address, service.clone());
        }
        if !frontends.is_empty() {
            self.frontends_by_service.insert(service.clone(), frontends.into());
        }
    }

    /// Packs the trees: after many Services were added.
    pub fn compact(&mut self) {
        compact(&mut self.frontends_by_service);
        compact(&mut self.service_by_address);
    }

    /// The frontends of a Service.
    pub fn frontends(&self, service: &ServiceKey) -> &[Frontend] {
        self.frontends_by_service.get(service).map_or(&[], |frontends| frontends)
    }

    pub fn services(&self) -> impl Iterator<Item = (&ServiceKey, &[Frontend])> {
        self.frontends_by_service.iter().map(|(key, frontends)| (key, &**frontends))
    }

    pub fn frontend(&self, address: &FrontendAddress) -> Option<&Frontend> {
        self.frontends(self.service_by_address.get(address)?).iter().find(|f| f.address == *address)
    }

    /// A frontend of a load balancer IP that is local to the node because IPVS forwards it (mode ipvs).
    pub fn local_load_balancer(&self, address: IpAddr) -> Option<&Frontend> {
        if self.node.mode != ForwardingMode::Ipvs {
            return None;
        }
        self.frontends_at(address).find(|frontend| self.node.is_forwarded_by_ipvs(frontend))
    }

    /// The Service with this cluster IP.
    pub fn cluster_ip_holder(&self, address: IpAddr) -> Option<&ServiceKey> {
        let mut ports = self.frontends_at(address).map(|frontend| &frontend.port);
        ports.find(|port| port.cluster_ip == address).map(|port| &port.service)
    }

    /// The frontends of all ports of an address.
    fn frontends_at(&self, address: IpAddr) -> impl Iterator<Item = &Frontend> {
        let first = FrontendAddress::new(address, Protocol::Tcp, 0);
        let of_address =
            self.service_by_address.range(first..).take_while(move |(at, _)| at.host == first.host);
        of_address.filter_map(|(at, _)| self.frontend(at))
    }
}

/// The destination that a packet must have to reach a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendAddress {
    pub host: FrontendHost,
    pub protocol: Protocol,
    pub port: u16,
}

/// The address part of a [`FrontendAddress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendHost {
    Address(IpAddr),
    /// Every address of the node that accepts node ports of this family.
    Node(Family),
}

impl FrontendAddress {
    pub fn new(address: IpAddr, protocol: Protocol, port: u16) -> Self {
        Self { host: FrontendHost::Address(address), protocol, port }
    }

    pub fn node_port(family: Family, protocol: Protocol, port: u16) -> Self {
        Self { host: FrontendHost::Node(family), protocol, port }
    }

    pub fn family(&self) -> Family {
        match self.host {
            FrontendHost::Address(address) => Family::of(address),
            FrontendHost::Node(family) => family,
        }
    }
}

impl fmt::Display for FrontendAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, protocol, port } = self;
        match host {
            FrontendHost::Address(address) => write!(f, "{protocol} {}", SocketAddr::new(*address, *port)),
            FrontendHost::Node(family) => write!(f, "{protocol} node port {port} ({family})"),
        }
    }
}

/// One way to reach a port of a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct Frontend {
    pub address: FrontendAddress,
    pub kind: FrontendKind,
    /// Shared by all frontends of the port.
    pub port: Arc<ForwardedPort>,
    /// For traffic from outside the cluster, and for all traffic if `inside` is absent.
    pub outside: FrontendAction,
    /// For traffic from pods and from the node itself, which externalTrafficPolicy Local does not restrict
    /// (semantics D2).
    pub inside: Option<FrontendAction>,
    pub masquerade: Masquerade,
    /// Allowed sources; packets from elsewhere are dropped. `None` allows every source.
    pub source_ranges: Option<Arc<[IpNet]>>,
}

impl Frontend {
    /// What it does with clients outside, then inside.
    pub fn actions(&self) -> impl Iterator<Item = FrontendAction> {
        std::iter::once(self.outside).chain(self.inside)
    }

    /// Whether it sends any client to an endpoint.
    pub fn is_served(&self) -> bool {
        self.actions().any(|action| matches!(action, FrontendAction::Send(_)))
    }
}

/// The field of a Service that a frontend comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKind {
    /// `spec.clusterIPs`.
    ClusterIp,
    /// `spec.externalIPs`.
    ExternalIp,
    /// `status.loadBalancer.ingress`.
    LoadBalancer,
    /// `spec.ports[].nodePort`.
    NodePort,
}

impl FrontendKind {
    /// The words in explanations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "cluster IP",
            Self::ExternalIp => "external IP",
            Self::LoadBalancer => "load balancer IP",
            Self::NodePort => "node port",
        }
    }

    pub fn field(self) -> &'static str {
        match self {
            Self::ClusterIp => "spec.clusterIPs",
            Self::ExternalIp => "spec.externalIPs",
            Self::LoadBalancer => "status.loadBalancer.ingress",
            Self::NodePort => "spec.ports[].nodePort",
        }
    }
}

/// A Service port in one address family: what its frontends share. Cluster IP, protocol and number identify it.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardedPort {
    pub service: ServiceKey,
    /// The name of the port; may be empty if the Service has only one.
    pub name: Name,
    pub cluster_ip: IpAddr,
    pub protocol: Protocol,
    pub number: u16,
    /// The timeout of ClientIP session affinity.
    pub affinity_seconds: Option<u32>,
    /// `spec.healthCheckNodePort`, where this node serves it.
    pub health_check_port: Option<u16>,
    /// The endpoints under the traffic policy Cluster.
    pub cluster: EndpointSet,
    /// The endpoints under the traffic policy Local.
    pub local: EndpointSet,
}

impl ForwardedPort {
    pub fn endpoints(&self, policy: TrafficPolicy) -> &EndpointSet {
        match policy {
            TrafficPolicy::Cluster => &self.cluster,
            TrafficPolicy::Local => &self.local,
        }
    }

    /// The address of its cluster IP frontend.
    pub fn cluster_address(&self) -> FrontendAddress {
        FrontendAddress::new(self.cluster_ip, self.protocol, self.number)
    }

    pub fn family(&self) -> Family {
        Family::of(self.cluster_ip)
    }
}

/// `ns/name:port`, or `ns/name` for a port without a name.
impl fmt::Display for ForwardedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.is_empty() {
            return self.service.fmt(f);
        }
        write!(f, "{}:{}", self.service, self.name)
    }
}

/// The endpoints of one traffic policy, sorted by address, without duplicates. Empty if no frontend uses the policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndpointSet {
    pub endpoints: Box<[ForwardedEndpoint]>,
    /// The offset of the running sum when weights are rounded to whole slots, in 2^-32 of a slot. It differs by node, so
    /// that endpoints whose share is below one slot still get traffic from some nodes.
    pub rounding: u32,
}

/// One endpoint. Nodes keep one per endpoint of the cluster: IP and port take 20 bytes, a `SocketAddr` 32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardedEndpoint {
    ip: IpAddr,
    port: u16,
    /// Relative to the other endpoints of the set.
    pub weight: f32,
    /// Whether it runs on this node, so that it may be its own client (hairpin).
    pub is_local: bool,
}

impl ForwardedEndpoint {
    pub fn new(address: SocketAddr, weight: f32, is_local: bool) -> Self {
        Self { ip: address.ip(), port: address.port(), weight, is_local }
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }
}

impl EndpointSet {
    /// Whether all weights are equal.
    pub fn is_even(&self) -> bool {
        self.endpoints.windows(2).all(|pair| pair[0].weight == pair[1].weight)
    }

    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// The port that most endpoints have, the lowest of those; none if the set is empty.
    pub fn main_port(&self) -> Option<u16> {
        let mut counts: BTreeMap<u16, usize> = BTreeMap::new();
        for endpoint in &self.endpoints {
            *counts.entry(endpoint.port).or_default() += 1;
        }
        counts.into_iter().max_by_key(|(port, count)| (*count, Reverse(*port))).map(|(port, _)| port)
    }

    /// Each endpoint with its share of new connections; the shares sum to 1.
    pub fn shares(&self) -> impl Iterator<Item = (SocketAddr, f64)> + '_ {
        let total: f64 = self.endpoints.iter().map(|e| f64::from(e.weight)).sum();
        self.endpoints.iter().map(move |e| (e.address(), f64::from(e.weight) / total))
    }
}

/// What a frontend does with a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendAction {
    /// Sends it to an endpoint of this policy's set.
    Send(TrafficPolicy),
    /// Refuses it with an ICMP error.
    Reject,
    /// Drops it silently, so that a load balancer tries another node.
    Drop,
    /// Leaves it to another part of the kernel. Planning never decides so; mode ipvs does for its virtual servers.
    Pass,
}

#[cfg(test)]
mod tests;

//! Where a node sends what it receives: the one table between the decision and the kernel.
//!
//! ```text
//! packet -> Place (address or node port, protocol, port) -> Frontend -> outcome -> EndpointSet of its ForwardedPort
//! ```
//!
//! The words are Kubernetes' own; how a kernel does it is the business of a data plane. Everything that is
//! chosen has been chosen when it stands here.

mod decide;
mod udp;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::address::{Family, Protocol};
use crate::name::{Name, ServiceKey};

pub use decide::{Decision, Origin, Packet, Traffic, Verdict};
pub use udp::UdpService;

/// Everything that a node forwards, and the facts about the node that the rules need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForwardingTable {
    /// What holds for all Services on this node.
    pub node: NodeRules,
    frontends_by_service: BTreeMap<ServiceKey, Box<[Frontend]>>,
    service_by_place: BTreeMap<Place, ServiceKey>,
    services_by_cluster_ip: BTreeMap<IpAddr, Vec<ServiceKey>>,
}

impl ForwardingTable {
    /// A node without Services.
    pub fn new(node: NodeRules) -> Self {
        Self { node, ..Self::default() }
    }

    /// Puts the frontends of a Service in the place of those that it had; an empty list takes it out. Of a
    /// place that two Services claim, the last writer has it: whoever fills the table settles that before.
    pub fn replace(&mut self, service: &ServiceKey, frontends: Vec<Frontend>) {
        for old in self.frontends_by_service.remove(service).iter().flatten() {
            if self.service_by_place.get(&old.place) == Some(service) {
                self.service_by_place.remove(&old.place);
            }
            self.release_cluster_ip(old.port.cluster_ip, service);
        }
        for frontend in &frontends {
            self.service_by_place.insert(frontend.place, service.clone());
            let holders = self.services_by_cluster_ip.entry(frontend.port.cluster_ip).or_default();
            if !holders.contains(service) {
                holders.push(service.clone());
            }
        }
        if !frontends.is_empty() {
            self.frontends_by_service.insert(service.clone(), frontends.into());
        }
    }

    fn release_cluster_ip(&mut self, ip: IpAddr, service: &ServiceKey) {
        if let Some(holders) = self.services_by_cluster_ip.get_mut(&ip) {
            holders.retain(|holder| holder != service);
            if holders.is_empty() {
                self.services_by_cluster_ip.remove(&ip);
            }
        }
    }

    /// The frontends of a Service.
    pub fn frontends(&self, service: &ServiceKey) -> &[Frontend] {
        self.frontends_by_service.get(service).map_or(&[], |frontends| frontends)
    }

    /// Every Service with its frontends.
    pub fn services(&self) -> impl Iterator<Item = (&ServiceKey, &[Frontend])> {
        self.frontends_by_service.iter().map(|(key, frontends)| (key, &**frontends))
    }

    /// The frontend at a place.
    pub fn frontend(&self, place: &Place) -> Option<&Frontend> {
        self.frontends(self.service_by_place.get(place)?).iter().find(|f| f.place == *place)
    }

    /// The Service that has this address as its cluster IP.
    pub fn cluster_ip_holder(&self, address: IpAddr) -> Option<&ServiceKey> {
        self.services_by_cluster_ip.get(&address)?.first()
    }
}

/// What a packet has to be sent to in order to reach a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Which address.
    pub at: At,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

/// The address of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum At {
    /// This one.
    Address(IpAddr),
    /// Each address of the node that takes node ports of this family.
    Node(Family),
}

impl Place {
    /// A port of an address.
    pub fn address(address: IpAddr, protocol: Protocol, port: u16) -> Self {
        Self { at: At::Address(address), protocol, port }
    }

    /// A port of the node.
    pub fn node_port(family: Family, protocol: Protocol, port: u16) -> Self {
        Self { at: At::Node(family), protocol, port }
    }

    /// The family of its addresses.
    pub fn family(&self) -> Family {
        match self.at {
            At::Address(address) => Family::of(address),
            At::Node(family) => family,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, protocol, port } = self;
        match at {
            At::Address(address) => write!(f, "{protocol} {}", SocketAddr::new(*address, *port)),
            At::Node(family) => write!(f, "{protocol} node port {port} ({family})"),
        }
    }
}

/// One way to reach a port of a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct Frontend {
    /// Where packets are sent.
    pub place: Place,
    /// Which field of the Service it comes from.
    pub kind: FrontendKind,
    /// The port that it leads to, shared with the other frontends of that port.
    pub port: Arc<ForwardedPort>,
    /// What becomes of traffic from outside, and of all traffic if `inside` says nothing.
    pub outside: Outcome,
    /// What becomes of traffic from pods and from the node itself where that differs: such traffic is not
    /// bound by externalTrafficPolicy Local (semantics D2).
    pub inside: Option<Outcome>,
    /// Whose source address is replaced by the node's.
    pub masquerade: Masquerade,
    /// Who may come; `None`: everybody. Others are dropped.
    pub source_ranges: Option<Arc<[IpNet]>>,
}

/// Which field of a Service a frontend comes from.
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
    /// In words for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "cluster IP",
            Self::ExternalIp => "external IP",
            Self::LoadBalancer => "load balancer IP",
            Self::NodePort => "node port",
        }
    }

    /// The field of the Service.
    pub fn field(self) -> &'static str {
        match self {
            Self::ClusterIp => "spec.clusterIPs",
            Self::ExternalIp => "spec.externalIPs",
            Self::LoadBalancer => "status.loadBalancer.ingress",
            Self::NodePort => "spec.ports[].nodePort",
        }
    }
}

/// What all frontends of a Service port in one family share. Its cluster IP, protocol and port name it.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardedPort {
    /// The Service.
    pub service: ServiceKey,
    /// The name of the port, empty where the Service has only one.
    pub name: Name,
    /// The Service's cluster IP of this family.
    pub cluster_ip: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The number on the cluster IP.
    pub number: u16,
    /// For how many seconds a client keeps its endpoint.
    pub affinity_seconds: Option<u32>,
    /// The endpoints for traffic under the policy Cluster.
    pub cluster: EndpointSet,
    /// The endpoints for traffic under the policy Local.
    pub local: EndpointSet,
}

impl ForwardedPort {
    /// The endpoints of a traffic policy.
    pub fn endpoints(&self, scope: Scope) -> &EndpointSet {
        match scope {
            Scope::Cluster => &self.cluster,
            Scope::Local => &self.local,
        }
    }

    /// Where its cluster IP is reached.
    pub fn place(&self) -> Place {
        Place::address(self.cluster_ip, self.protocol, self.number)
    }

    /// The family.
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

/// The endpoints of one traffic policy, in the order of their addresses, each once. Empty where no frontend
/// sends to them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndpointSet {
    /// The endpoints.
    pub endpoints: Box<[ForwardedEndpoint]>,
    /// Where the running sum of unequal shares starts when it is rounded to whole slots, in 2^-32 of a slot. It differs by
    /// node, so that shares below one slot do not all go to the same endpoints.
    pub rounding: u32,
}

/// One endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardedEndpoint {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its share relative to the others of the set.
    pub weight: f32,
    /// Whether it runs on this node, so that it could be its own client.
    pub is_local: bool,
}

impl EndpointSet {
    /// Whether each gets the same share.
    pub fn is_even(&self) -> bool {
        self.endpoints.windows(2).all(|pair| pair[0].weight == pair[1].weight)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Each endpoint with its share of the connections; the shares sum to 1.
    pub fn shares(&self) -> impl Iterator<Item = (SocketAddr, f64)> + '_ {
        let total: f64 = self.endpoints.iter().map(|e| f64::from(e.weight)).sum();
        self.endpoints.iter().map(move |e| (e.address, f64::from(e.weight) / total))
    }
}

/// A traffic policy, as the name of the endpoints that it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Those that the node selected of the whole cluster.
    Cluster,
    /// Those on this node.
    Local,
}

/// What becomes of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// It goes to one of these endpoints.
    Send(Scope),
    /// The client is told at once.
    Reject,
    /// It disappears, so that a load balancer tries another node.
    Drop,
}

/// Whose source address is replaced by the node's (semantics D3). A pod that reaches itself always is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Masquerade {
    /// Of all who are no pods of this cluster, if pods can be told from others; of everybody if the node says so.
    NotPods,
    /// Everybody's: the answer has to come back through this node.
    Everyone,
    /// The node's own traffic only: clients stay visible.
    NodeItself,
}

/// What holds for all Services on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRules {
    /// How a pod's packet is told from others.
    pub detect_local: DetectLocal,
    /// Whether everybody who goes to a cluster IP is masqueraded.
    pub masquerade_all: bool,
    /// The bit of the packet mark that asks for masquerading, 0 to 31.
    pub mark_bit: u8,
    /// Which addresses take node ports, of IPv4.
    pub node_ports_v4: NodePortAddresses,
    /// Which addresses take node ports, of IPv6.
    pub node_ports_v6: NodePortAddresses,
    /// Ranges whose unassigned addresses are dropped, sorted.
    pub service_cidrs: Box<[IpNet]>,
    /// The node's own addresses as far as they are known. The kernel knows them better; these are for
    /// explaining what it would do.
    pub addresses: Box<[IpAddr]>,
}

impl Default for NodeRules {
    fn default() -> Self {
        Self {
            detect_local: DetectLocal::Unknown,
            masquerade_all: false,
            mark_bit: 14,
            node_ports_v4: NodePortAddresses::All,
            node_ports_v6: NodePortAddresses::All,
            service_cidrs: Box::default(),
            addresses: Box::default(),
        }
    }
}

impl NodeRules {
    /// The addresses that take node ports of a family.
    pub fn node_ports(&self, family: Family) -> &NodePortAddresses {
        match family {
            Family::V4 => &self.node_ports_v4,
            Family::V6 => &self.node_ports_v6,
        }
    }

    /// The bit of the packet mark that asks for masquerading.
    pub fn mark(&self) -> u32 {
        1u32.checked_shl(u32::from(self.mark_bit)).unwrap_or(1 << 14)
    }
}

/// How a packet of a pod is told from one that came from outside.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum DetectLocal {
    /// Not at all: nobody counts as a pod.
    #[default]
    Unknown,
    /// By its source address (modes ClusterCIDR and NodeCIDR); a family without a range has no pods.
    Ranges {
        /// The range of IPv4.
        v4: Option<IpNet>,
        /// The range of IPv6.
        v6: Option<IpNet>,
    },
    /// By the bridge that it comes in by.
    Bridge(Name),
    /// By how the name of the interface begins that it comes in by.
    InterfacePrefix(Name),
}

impl DetectLocal {
    /// Whether pods of a family can be told from others.
    pub fn knows(&self, family: Family) -> bool {
        match self {
            Self::Unknown => false,
            Self::Ranges { .. } => self.range(family).is_some(),
            Self::Bridge(_) | Self::InterfacePrefix(_) => true,
        }
    }

    /// The range of the pods of a family, if they are told by that.
    pub fn range(&self, family: Family) -> Option<IpNet> {
        match (self, family) {
            (Self::Ranges { v4, .. }, Family::V4) => *v4,
            (Self::Ranges { v6, .. }, Family::V6) => *v6,
            _ => None,
        }
    }
}

/// Which of the node's addresses take node ports. Loopback never does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// All.
    All,
    /// Those within these ranges, sorted.
    Within(Box<[IpNet]>),
}

#[cfg(test)]
mod tests;

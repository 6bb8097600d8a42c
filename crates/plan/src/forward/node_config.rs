//! The configuration of a node proxy, from a KubeProxyConfiguration and the Node object.
//!
//! An invalid value becomes a Notice and the default applies: one wrong field must not take a node off the network
//! (pitfall 18).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use model::forward::{ForwardingMode, LocalTrafficDetector, NodePortAddresses, NodeRules};
use model::hash::{BASIS_32, fnv1a_32};
use model::{Family, Name, Node, Notice, ObjectRef};

use crate::feature_gates::NodeGates;
use crate::select::NodeView;

/// The fields of a KubeProxyConfiguration v1alpha1 that affect forwarding, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySettings {
    /// `mode`.
    pub mode: ForwardingMode,
    /// `iptables.localhostNodePorts`, in mode iptables.
    pub localhost_node_ports: bool,
    /// `bindAddress`: the node's address unless unspecified.
    pub bind_address: String,
    /// `clusterCIDR`: one range, or one of each family with a comma between them.
    pub cluster_cidr: String,
    /// `detectLocalMode`.
    pub detect_local_mode: String,
    /// `detectLocal.bridgeInterface`.
    pub bridge_interface: String,
    /// `detectLocal.interfaceNamePrefix`.
    pub interface_name_prefix: String,
    /// `nodePortAddresses`.
    pub node_port_addresses: Vec<String>,
    /// `nftables.masqueradeAll`.
    pub masquerade_all: bool,
    /// `nftables.masqueradeBit`.
    pub masquerade_bit: Option<i64>,
    /// `featureGates`.
    pub gates: NodeGates,
    /// `--service-node-port-range`.
    pub node_port_range: NodePortRange,
    /// `ipvs.scheduler`.
    pub ipvs_scheduler: String,
}

impl ProxySettings {
    /// What holds without flags and without a configuration file.
    pub fn without_flags() -> Self {
        Self {
            mode: ForwardingMode::default(),
            localhost_node_ports: false,
            bind_address: String::new(),
            cluster_cidr: String::new(),
            detect_local_mode: String::new(),
            bridge_interface: String::new(),
            interface_name_prefix: String::new(),
            node_port_addresses: Vec::new(),
            masquerade_all: false,
            masquerade_bit: None,
            gates: NodeGates::WITHOUT_FLAGS,
            node_port_range: NodePortRange::default(),
            ipvs_scheduler: String::new(),
        }
    }
}

/// The node ports that a node serves. The API server assigns them; the node only keeps a mistake there from taking the ports
/// of the machine's own daemons, so the default leaves out privileged ports alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePortRange {
    first: u16,
    last: u16,
}

impl NodePortRange {
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl Default for NodePortRange {
    fn default() -> Self {
        Self { first: 1024, last: u16::MAX }
    }
}

impl fmt::Display for NodePortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for NodePortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ends =
            text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
        match ends {
            Some((first, last)) if first > 0 && first <= last => Ok(Self { first, last }),
            _ => Err("expected a range of ports such as 30000-32767".to_owned()),
        }
    }
}

/// The configuration that a node forwards by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    pub name: Name,
    pub zone: Option<Name>,
    pub gates: NodeGates,
    pub node_port_range: NodePortRange,
    pub rules: NodeRules,
}

impl NodeConfig {
    /// What holds for a node of this name without flags, before anything else is known of it.
    pub fn without_flags(name: Name) -> Self {
        Self {
            name,
            zone: None,
            gates: NodeGates::WITHOUT_FLAGS,
            node_port_range: NodePortRange::default(),
            rules: NodeRules::default(),
        }
    }

    /// `more_addresses` are the machine's addresses besides those of the Node object.
    pub fn new(
        settings: &ProxySettings,
        node: &Node,
        service_cidrs: &[IpNet],
        more_addresses: &[IpAddr],
    ) -> (Self, Vec<Notice>) {
        let mut notices = ConfigNotices::default();
        let primary = primary(settings, node, &mut notices);
        let ports = node_port_ranges(&settings.node_port_addresses, &primary, &mut notices);
        let within = |family| node_ports_of(&ports, family);
        let localhost_node_ports = settings.localhost_node_ports && has_loopback(&within(Family::V4));
        let localhost_listeners = match localhost_node_ports {
            true => Box::default(),
            false => localhost_listeners(&ports, settings.gates.localhost_node_ports, &mut notices),
        };
        let mut addresses: Vec<IpAddr> =
            primary.iter().chain(&node.addresses).chain(more_addresses).copied().collect();
        addresses.sort();
        addresses.dedup();
        // Without the gate, unassigned addresses are not dropped.
        let in_force = service_cidrs.iter().filter(|_| settings.gates.service_cidrs);
        let mut cidrs: Vec<IpNet> = in_force.map(IpNet::trunc).collect();
        cidrs.sort();
        cidrs.dedup();
        let rules = NodeRules {
            mode: settings.mode,
            detect_local: detect_local(settings, node, &mut notices),
            masquerade_all: settings.masquerade_all,
            mark_bit: mark_bit(settings.masquerade_bit, &mut notices),
            node_ports_v4: within(Family::V4),
            node_ports_v6: within(Family::V6),
            localhost_node_ports,
            localhost_listeners,
            service_cidrs: cidrs.into(),
            addresses: addresses.into(),
            primary: primary.into(),
        };
        let config = Self {
            name: node.name.clone(),
            zone: node.zone.clone(),
            gates: settings.gates,
            node_port_range: settings.node_port_range,
            rules,
        };
        (config, notices.0)
    }

    /// The input of endpoint selection.
    pub fn view(&self) -> NodeView<'_> {
        NodeView { name: &self.name, zone: self.zone.as_deref(), gates: self.gates.select }
    }

    /// The offset for rounding weights to slots: a hash of the node's name, so that endpoints whose share is below one slot
    /// get traffic from some nodes.
    pub fn rounding(&self) -> u32 {
        let hash = fnv1a_32(BASIS_32, self.name.as_bytes());
        // The high bits of FNV differ little between names that differ only in the last letter.
        let hash = (hash ^ (hash >> 16)).wrapping_mul(0x7feb_352d);
        let hash = (hash ^ (hash >> 15)).wrapping_mul(0x846c_a68b);
        hash ^ (hash >> 16)
    }

    /// The node's address of a family.
    pub fn primary(&self, family: Family) -> Option<IpAddr> {
        self.rules.primary.iter().copied().find(|address| Family::of(*address) == family)
    }
}

#[derive(Default)]
struct ConfigNotices(Vec<Notice>);

impl ConfigNotices {
    fn add(&mut self, field: &str, message: impl AsRef<str>) {
        let object = ObjectRef::new("KubeProxyConfiguration", "", "config");
        let message = format!("{field}: {}", message.as_ref());
        self.0.push(Notice::new(object, "InvalidConfiguration", message));
    }
}

/// Semantics D15: the bind address unless unspecified, then the Node's addresses, one of each family.
fn primary(settings: &ProxySettings, node: &Node, notices: &mut ConfigNotices) -> Vec<IpAddr> {
    let text = settings.bind_address.trim();
    let bound = model::address::parse_ip(text);
    if bound.is_none() && !text.is_empty() {
        notices.add("bindAddress", format!("{text:?} is not an IP address; the Node's addresses are used"));
    }
    let bound = bound.filter(|address| !address.is_unspecified());
    let mut primary: Vec<IpAddr> = Vec::new();
    for address in bound.into_iter().chain(node.addresses.iter().copied()) {
        if !primary.iter().any(|p| Family::of(*p) == Family::of(address)) {
            primary.push(address);
        }
    }
    primary
}

fn mark_bit(bit: Option<i64>, notices: &mut ConfigNotices) -> u8 {
    const DEFAULT: u8 = 14;
    match bit {
        None => DEFAULT,
        Some(bit @ 0..=31) => bit as u8,
        Some(bit) => {
            notices
                .add("nftables.masqueradeBit", format!("{bit} is not between 0 and 31; {DEFAULT} is used"));
            DEFAULT
        }
    }
}

/// Semantics D3, the four modes.
fn detect_local(settings: &ProxySettings, node: &Node, notices: &mut ConfigNotices) -> LocalTrafficDetector {
    match settings.detect_local_mode.as_str() {
        "" | "ClusterCIDR" => cluster_ranges(&settings.cluster_cidr, notices),
        "NodeCIDR" => {
            if node.pod_cidrs.is_empty() {
                notices.add(
                    "detectLocalMode",
                    format!(
                        "NodeCIDR, but Node {} has no spec.podCIDRs: no traffic is recognised as a pod's",
                        node.name
                    ),
                );
            }
            ranges(&node.pod_cidrs)
        }
        "BridgeInterface" => interface("detectLocal.bridgeInterface", &settings.bridge_interface, notices)
            .map_or(LocalTrafficDetector::Unknown, LocalTrafficDetector::Bridge),
        "InterfaceNamePrefix" => {
            interface("detectLocal.interfaceNamePrefix", &settings.interface_name_prefix, notices)
                .map_or(LocalTrafficDetector::Unknown, LocalTrafficDetector::InterfacePrefix)
        }
        other => {
            notices.add(
                "detectLocalMode",
                format!("{other:?} is not ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix; ClusterCIDR is used"),
            );
            cluster_ranges(&settings.cluster_cidr, notices)
        }
    }
}

fn cluster_ranges(text: &str, notices: &mut ConfigNotices) -> LocalTrafficDetector {
    let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
    let parsed: Vec<IpNet> = texts.filter_map(|text| parse_range("clusterCIDR", text, notices)).collect();
    ranges(&parsed)
}

/// Only the first range of each family counts (semantics D3).
fn ranges(listed: &[IpNet]) -> LocalTrafficDetector {
    let first = |family| listed.iter().find(|range| Family::of(range.addr()) == family).map(IpNet::trunc);
    match (first(Family::V4), first(Family::V6)) {
        (None, None) => LocalTrafficDetector::Unknown,
        (v4, v6) => LocalTrafficDetector::Ranges { v4, v6 },
    }
}

/// Interface names in Linux have at most 15 bytes, without blanks and slashes.
fn interface(field: &str, name: &str, notices: &mut ConfigNotices) -> Option<Name> {
    const LONGEST: usize = 15;
    let name = name.trim();
    let fits = !name.is_empty() && name.len() <= LONGEST;
    if !fits || name.chars().any(|c| c.is_whitespace() || c == '/' || c.is_control()) {
        notices.add(
            field,
            format!(
                "{name:?} is not an interface name (1 to {LONGEST} bytes): no traffic is recognised as a pod's"
            ),
        );
        return None;
    }
    Some(Name::new(name))
}

fn parse_range(field: &str, text: &str, notices: &mut ConfigNotices) -> Option<IpNet> {
    let range = text.parse::<IpNet>().ok();
    if range.is_none() {
        notices.add(field, format!("{text:?} is not a CIDR such as 10.0.0.0/8; it is ignored"));
    }
    range
}

/// Semantics D4: CIDRs and the keywords primary, localhost and all. The default is primary.
fn node_port_ranges(words: &[String], primary: &[IpAddr], notices: &mut ConfigNotices) -> Vec<IpNet> {
    const FIELD: &str = "nodePortAddresses";
    let primary_ranges = || primary.iter().filter(|a| !a.is_loopback()).map(|a| IpNet::from(*a));
    let mut ranges: Vec<IpNet> = Vec::new();
    for (i, word) in words.iter().map(|word| word.trim()).enumerate() {
        if words[..i].iter().any(|earlier| earlier.trim() == word) {
            notices.add(FIELD, format!("{word:?} is listed twice; remove one"));
            continue;
        }
        match word {
            "primary" => ranges.extend(primary_ranges()),
            "all" => ranges.extend(everything()),
            "localhost" => ranges.extend(loopback()),
            range => ranges.extend(parse_range(FIELD, range, notices)),
        }
    }
    if ranges.is_empty() {
        // Nothing listed, or nothing valid: a typing error must not open every address.
        ranges.extend(primary_ranges());
    }
    for family in [Family::V4, Family::V6] {
        let listed = ranges.iter().any(|range| Family::of(range.addr()) == family);
        let has_primary = primary.iter().any(|address| Family::of(*address) == family);
        if !listed && has_primary {
            // Pitfall 18: the other family is then unrestricted.
            notices.add(
                FIELD,
                format!("no {family} range is listed, so node ports are open on every {family} address"),
            );
        }
    }
    ranges
}

/// Whether IPv4 loopback addresses are among those that accept node ports.
fn has_loopback(addresses: &NodePortAddresses) -> bool {
    let first = IpAddr::from(std::net::Ipv4Addr::new(127, 0, 0, 0));
    match addresses {
        NodePortAddresses::All => true,
        NodePortAddresses::Within(ranges) => {
            ranges.iter().any(|range| range.addr().is_loopback() || range.contains(&first))
        }
    }
}

/// KEP-6032: 127.0.0.1 and ::1, where a loopback range is listed that contains them; `/0` lists none.
fn localhost_listeners(ranges: &[IpNet], is_on: bool, notices: &mut ConfigNotices) -> Box<[IpAddr]> {
    let listed = || ranges.iter().filter(|range| range.addr().is_loopback());
    let localhost = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
    let served = localhost.into_iter().filter(|at| is_on && listed().any(|range| range.contains(at)));
    let served: Box<[IpAddr]> = served.collect();
    if served.is_empty() && listed().next().is_some() {
        let message = match is_on {
            true => {
                "node ports are served on 127.0.0.1 and ::1, and on no other loopback address: list localhost"
            }
            false => {
                "node ports are not served on loopback addresses: connect to another address of the node, or set the feature gate KubeProxyNFTablesLocalhostNodePorts for TCP"
            }
        };
        notices.add("nodePortAddresses", message);
    }
    served
}

fn everything() -> [IpNet; 2] {
    [IpNet::from(ipnet::Ipv4Net::default()), IpNet::from(ipnet::Ipv6Net::default())]
}

fn loopback() -> [IpNet; 2] {
    let v4 = ipnet::Ipv4Net::new(Ipv4Addr::new(127, 0, 0, 0), 8).expect("8 is a prefix length");
    [IpNet::from(v4), IpNet::from(IpAddr::from(Ipv6Addr::LOCALHOST))]
}

/// A family without a range accepts node ports on every address, and so does one with /0 (semantics D4).
fn node_ports_of(ranges: &[IpNet], family: Family) -> NodePortAddresses {
    let of_family: Vec<IpNet> =
        ranges.iter().filter(|r| Family::of(r.addr()) == family).map(IpNet::trunc).collect();
    if of_family.is_empty() || of_family.iter().any(|range| range.prefix_len() == 0) {
        return NodePortAddresses::All;
    }
    NodePortAddresses::Within(IpNet::aggregate(&of_family).into())
}

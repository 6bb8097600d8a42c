//! What a node knows of itself, out of the words of a KubeProxyConfiguration and the Node object.
//!
//! A value that cannot be used becomes a Notice and the default stands: one wrong flag must not take a node
//! off the network (pitfall 18).

use std::net::IpAddr;

use ipnet::IpNet;
use model::forward::{DetectLocal, NodePortAddresses, NodeRules};
use model::{Family, Name, Node, Notice, ObjectRef};

use crate::gates::NodeGates;
use crate::select::NodeView;

/// The fields of a KubeProxyConfiguration v1alpha1 that decide where packets go, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxySettings {
    /// `bindAddress`: a specific one is the node's address.
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
}

/// What a node knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeConfig {
    /// Its name.
    pub name: Name,
    /// Its zone.
    pub zone: Option<Name>,
    /// What is switched on.
    pub gates: NodeGates,
    /// Its own address of each family, as the cluster knows it.
    pub primary: Vec<IpAddr>,
    /// What holds for all Services.
    pub rules: NodeRules,
}

impl NodeConfig {
    /// Out of the settings, the Node object, the ServiceCIDRs, and addresses that the machine has besides.
    pub fn new(
        settings: &ProxySettings,
        node: &Node,
        service_cidrs: &[IpNet],
        more_addresses: &[IpAddr],
    ) -> (Self, Vec<Notice>) {
        let mut remarks = Remarks::default();
        let primary = primary(settings, node, &mut remarks);
        let ports = node_port_ranges(&settings.node_port_addresses, &primary, &mut remarks);
        let within = |family| node_ports_of(&ports, family);
        let mut addresses: Vec<IpAddr> =
            primary.iter().chain(&node.addresses).chain(more_addresses).copied().collect();
        addresses.sort();
        addresses.dedup();
        // Without the gate unassigned addresses are left alone.
        let in_force = service_cidrs.iter().filter(|_| settings.gates.service_cidrs);
        let mut cidrs: Vec<IpNet> = in_force.map(IpNet::trunc).collect();
        cidrs.sort();
        cidrs.dedup();
        let rules = NodeRules {
            detect_local: detect_local(settings, node, &mut remarks),
            masquerade_all: settings.masquerade_all,
            mark_bit: mark_bit(settings.masquerade_bit, &mut remarks),
            node_ports_v4: within(Family::V4),
            node_ports_v6: within(Family::V6),
            service_cidrs: cidrs.into(),
            addresses: addresses.into(),
        };
        let config =
            Self { name: node.name.clone(), zone: node.zone.clone(), gates: settings.gates, primary, rules };
        (config, remarks.0)
    }

    /// What selection needs.
    pub fn view(&self) -> NodeView<'_> {
        NodeView { name: &self.name, zone: self.zone.as_deref(), gates: self.gates.select }
    }

    /// Where rounding shares to slots starts on this node: a hash of its name (FNV-1a), so that what is too small for a slot
    /// goes to other endpoints from other nodes.
    pub fn rounding(&self) -> u32 {
        let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        let hash = self.name.as_bytes().iter().fold(0x811c_9dc5, mix);
        // The high bits of FNV differ little between names that differ in the last letter.
        let hash = (hash ^ (hash >> 16)).wrapping_mul(0x7feb_352d);
        let hash = (hash ^ (hash >> 15)).wrapping_mul(0x846c_a68b);
        hash ^ (hash >> 16)
    }

    /// Its own address of a family.
    pub fn primary(&self, family: Family) -> Option<IpAddr> {
        self.primary.iter().copied().find(|address| Family::of(*address) == family)
    }
}

#[derive(Default)]
struct Remarks(Vec<Notice>);

impl Remarks {
    fn add(&mut self, field: &str, message: impl AsRef<str>) {
        let object = ObjectRef::new("KubeProxyConfiguration", "", "config");
        let message = format!("{field}: {}", message.as_ref());
        self.0.push(Notice::new(object, "InvalidConfiguration", message));
    }
}

/// Semantics D15: the bind address if it is a specific one, else the Node's addresses, one of each family.
fn primary(settings: &ProxySettings, node: &Node, remarks: &mut Remarks) -> Vec<IpAddr> {
    let text = settings.bind_address.trim();
    let bound = model::address::parse_ip(text);
    if bound.is_none() && !text.is_empty() {
        remarks.add("bindAddress", format!("{text:?} is no IP address; the Node's addresses are used"));
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

fn mark_bit(bit: Option<i64>, remarks: &mut Remarks) -> u8 {
    const DEFAULT: u8 = 14;
    match bit {
        None => DEFAULT,
        Some(bit @ 0..=31) => bit as u8,
        Some(bit) => {
            remarks.add("nftables.masqueradeBit", format!("{bit} is not within 0 to 31; {DEFAULT} is used"));
            DEFAULT
        }
    }
}

/// Semantics D3, the four modes.
fn detect_local(settings: &ProxySettings, node: &Node, remarks: &mut Remarks) -> DetectLocal {
    match settings.detect_local_mode.as_str() {
        "" | "ClusterCIDR" => cluster_ranges(&settings.cluster_cidr, remarks),
        "NodeCIDR" => {
            if node.pod_cidrs.is_empty() {
                remarks.add(
                    "detectLocalMode",
                    format!(
                        "NodeCIDR, but Node {} has no spec.podCIDRs: no packet counts as a pod's",
                        node.name
                    ),
                );
            }
            ranges(&node.pod_cidrs)
        }
        "BridgeInterface" => interface("detectLocal.bridgeInterface", &settings.bridge_interface, remarks)
            .map_or(DetectLocal::Unknown, DetectLocal::Bridge),
        "InterfaceNamePrefix" => {
            interface("detectLocal.interfaceNamePrefix", &settings.interface_name_prefix, remarks)
                .map_or(DetectLocal::Unknown, DetectLocal::InterfacePrefix)
        }
        other => {
            remarks.add(
                "detectLocalMode",
                format!("{other:?} is not ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix; ClusterCIDR is used"),
            );
            cluster_ranges(&settings.cluster_cidr, remarks)
        }
    }
}

fn cluster_ranges(text: &str, remarks: &mut Remarks) -> DetectLocal {
    let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
    let parsed: Vec<IpNet> = texts.filter_map(|text| parse_range("clusterCIDR", text, remarks)).collect();
    ranges(&parsed)
}

/// Only the first range of each family counts (semantics D3).
fn ranges(listed: &[IpNet]) -> DetectLocal {
    let first = |family| listed.iter().find(|range| Family::of(range.addr()) == family).map(IpNet::trunc);
    match (first(Family::V4), first(Family::V6)) {
        (None, None) => DetectLocal::Unknown,
        (v4, v6) => DetectLocal::Ranges { v4, v6 },
    }
}

/// The kernel's names of interfaces have at most fifteen bytes, and no blank or slash.
fn interface(field: &str, name: &str, remarks: &mut Remarks) -> Option<Name> {
    const LONGEST: usize = 15;
    let name = name.trim();
    let fits = !name.is_empty() && name.len() <= LONGEST;
    if !fits || name.chars().any(|c| c.is_whitespace() || c == '/' || c.is_control()) {
        remarks.add(
            field,
            format!(
                "{name:?} is no name of an interface (1 to {LONGEST} bytes): no packet counts as a pod's"
            ),
        );
        return None;
    }
    Some(Name::new(name))
}

fn parse_range(field: &str, text: &str, remarks: &mut Remarks) -> Option<IpNet> {
    let range = text.parse::<IpNet>().ok();
    if range.is_none() {
        remarks.add(field, format!("{text:?} is no range such as 10.0.0.0/8; it is left out"));
    }
    range
}

/// Semantics D4: ranges and the words primary, localhost and all. The default of this mode is primary.
fn node_port_ranges(words: &[String], primary: &[IpAddr], remarks: &mut Remarks) -> Vec<IpNet> {
    const FIELD: &str = "nodePortAddresses";
    let primary_ranges = || primary.iter().filter(|a| !a.is_loopback()).map(|a| IpNet::from(*a));
    let mut ranges: Vec<IpNet> = Vec::new();
    for (i, word) in words.iter().map(|word| word.trim()).enumerate() {
        if words[..i].iter().any(|earlier| earlier.trim() == word) {
            remarks.add(FIELD, format!("{word:?} is listed twice; once is enough"));
            continue;
        }
        match word {
            "primary" => ranges.extend(primary_ranges()),
            "all" => ranges.extend(everything()),
            "localhost" => ranges.extend(loopback()),
            range => ranges.extend(parse_range(FIELD, range, remarks)),
        }
    }
    if ranges.is_empty() {
        // Nothing said, or nothing that could be read: a typing error must not open every address.
        ranges.extend(primary_ranges());
    }
    if ranges.iter().any(|range| range.addr().is_loopback()) {
        remarks.add(
            FIELD,
            "node ports are not served on loopback addresses: connect to another address of the node",
        );
    }
    for family in [Family::V4, Family::V6] {
        let listed = ranges.iter().any(|range| Family::of(range.addr()) == family);
        let has_primary = primary.iter().any(|address| Family::of(*address) == family);
        if !listed && has_primary {
            // Pitfall 18: the other family is then wide open.
            remarks.add(
                FIELD,
                format!("no {family} range is listed, so node ports are open on every {family} address"),
            );
        }
    }
    ranges
}

fn everything() -> [IpNet; 2] {
    [IpNet::from(ipnet::Ipv4Net::default()), IpNet::from(ipnet::Ipv6Net::default())]
}

fn loopback() -> [IpNet; 2] {
    let v4 = ipnet::Ipv4Net::new(std::net::Ipv4Addr::new(127, 0, 0, 0), 8).expect("8 is a prefix length");
    [IpNet::from(v4), IpNet::from(IpAddr::from(std::net::Ipv6Addr::LOCALHOST))]
}

/// A family without a range takes node ports everywhere, and so does one with /0 (semantics D4).
fn node_ports_of(ranges: &[IpNet], family: Family) -> NodePortAddresses {
    let of_family: Vec<IpNet> =
        ranges.iter().filter(|r| Family::of(r.addr()) == family).map(IpNet::trunc).collect();
    if of_family.is_empty() || of_family.iter().any(|range| range.prefix_len() == 0) {
        return NodePortAddresses::All;
    }
    NodePortAddresses::Within(IpNet::aggregate(&of_family).into())
}

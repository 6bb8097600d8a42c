//! Random clusters: a node with its settings, Services that compete for a few addresses, slices, packets.
//!
//! Pools are small on purpose: packets meet frontends, Services meet each other, clients are endpoints.

use std::net::{IpAddr, SocketAddr};

use model::forward::FirstPacket;
use model::{Name, Node, Protocol, Snapshot};
use plan::forward::{NodeConfig, ProxySettings};
use plan::{FeatureGates, NodeGates};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

use super::addresses::{OWN, endpoint};

/// A cluster as one node sees it.
#[derive(Clone, Debug)]
pub(crate) struct World {
    /// The settings of the node.
    pub(crate) settings: ProxySettings,
    /// The zone of the node.
    pub(crate) zone: Option<&'static str>,
    /// Services and slices.
    pub(crate) services: Vec<Spec>,
}

/// One Service with its endpoints.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// Which of a few names.
    name: u8,
    created: u8,
    kind: &'static str,
    internal: &'static str,
    external: &'static str,
    affinity: Option<u32>,
    external_ips: Vec<u8>,
    load_balancer: Vec<u8>,
    ranges: Vec<&'static str>,
    protocols: Vec<&'static str>,
    node_port: Option<u16>,
    families: Vec<bool>,
    endpoints: Vec<(u8, u8)>,
    topology: Topology,
}

/// What a Service and its slices say about zones and nodes.
#[derive(Clone, Debug)]
struct Topology {
    /// Hints for zones, for nodes; of both kinds one may be missing.
    hints: (bool, bool, bool),
    /// The annotations of the slices.
    slices: &'static [(&'static str, &'static str)],
    /// An annotation of the Service.
    service: Option<(&'static str, &'static str)>,
}

const MECHANISM: &str = "zoneward.dev/mechanism";
const SLICES: [&[(&str, &str)]; 7] = [
    &[],
    &[(MECHANISM, "RequireZone")],
    &[(MECHANISM, "RequireNode")],
    &[(MECHANISM, "PreferNodeRequireZone"), ("zoneward.dev/mechanism-source", "namespace")],
    &[(MECHANISM, "RequireRegion"), ("zoneward.dev/regions", "east=za,zb;west=zc")],
    &[(MECHANISM, "PreferRegion"), ("zoneward.dev/regions", "east=za,zb;west=zc")],
    &[(MECHANISM, "Spill"), ("zoneward.dev/demand", "za=128,zb=128")],
];
const ASKED: [Option<(&str, &str)>; 6] = [
    None,
    Some(("endpointslice.kubernetes.io/same-zone", "Require")),
    Some(("service.kubernetes.io/topology-mode", "Auto")),
    Some(("zoneward.dev/traffic-distribution", "Balanced")),
    Some(("zoneward.dev/traffic-distribution", "Spill")),
    Some(("endpointslice.kubernetes.io/same-region", "Prefer")),
];
/// Where the ServiceCIDRs of the cluster are.
pub(crate) const SERVICE_CIDRS: [&str; 2] = ["10.96.0.0/24", "fd00:96::/112"];
/// Addresses of the node that its Node object does not list.
pub(crate) const MORE: [&str; 2] = ["198.51.101.1", "2001:db8:52::1"];

fn zone(index: u8) -> &'static str {
    ["za", "zb", "zc"][usize::from(index % 3)]
}

const NODE_V4: &str = OWN[0];
const NODE_V6: &str = OWN[1];
const RANGES: [&str; 4] = ["203.0.113.0/25", "198.51.100.0/24", "2001:db8:203::/64", "10.1.0.0/16"];

fn vip(v6: bool, index: u8) -> String {
    if v6 { format!("2001:db8:2::{index}") } else { format!("192.0.2.{index}") }
}

fn cluster_ip(v6: bool, index: u8) -> String {
    if v6 { format!("fd00:96::{index}") } else { format!("10.96.0.{index}") }
}

impl Spec {
    /// The name of the Service.
    pub(crate) fn name(&self) -> String {
        format!("svc{}", self.name)
    }

    /// The Service and its slices.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let ports: Vec<Value> = self
            .protocols
            .iter()
            .enumerate()
            .map(|(i, protocol)| {
                let node_port = self.node_port.filter(|_| self.kind != "ClusterIP").map(|p| p + i as u16);
                json!({"name": format!("p{i}"), "port": 80 + i, "protocol": protocol, "nodePort": node_port})
            })
            .collect();
        let addresses = |make: fn(bool, u8) -> String, list: &[u8]| -> Vec<String> {
            self.families.iter().flat_map(|v6| list.iter().map(|i| make(*v6, *i))).collect()
        };
        let ips = addresses(cluster_ip, &[self.name]);
        let ingress: Vec<Value> =
            addresses(vip, &self.load_balancer).into_iter().map(|ip| json!({"ip": ip})).collect();
        let asked: serde_json::Map<String, Value> =
            self.topology.service.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": self.name(), "namespace": "ns", "annotations": asked,
                "creationTimestamp": format!("2026-01-0{}T00:00:00Z", self.created),
            },
            "spec": {
                "type": self.kind, "clusterIP": ips[0], "clusterIPs": ips, "ports": ports,
                "internalTrafficPolicy": self.internal, "externalTrafficPolicy": self.external,
                "externalIPs": addresses(vip, &self.external_ips),
                "loadBalancerSourceRanges": self.ranges,
                "sessionAffinity": if self.affinity.is_some() { "ClientIP" } else { "None" },
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": self.affinity.unwrap_or(1)}},
            },
            "status": {"loadBalancer": {"ingress": if self.kind == "LoadBalancer" { ingress } else { vec![] }}},
        });
        let slices = self.families.iter().map(|v6| self.slice(*v6));
        std::iter::once(service).chain(slices).collect()
    }

    fn slice(&self, v6: bool) -> Value {
        let endpoints: Vec<Value> = self
            .endpoints
            .iter()
            .map(|(index, state)| {
                let (ready, serving, terminating) =
                    [(true, true, false), (true, true, false), (false, true, true), (false, false, false)]
                        [usize::from(*state % 4)];
                let node = if *index <= 3 { "here" } else { "there" };
                json!({
                    "addresses": [endpoint(v6, *index)], "nodeName": node, "zone": zone(*index),
                    "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
                    "hints": self.topology.hints(*index, node),
                })
            })
            .collect();
        let ports = self.protocols.iter().enumerate();
        let ports: Vec<Value> = ports
            .map(|(i, protocol)| json!({"name": format!("p{i}"), "port": 8080 + i, "protocol": protocol}))
            .collect();
        let family = if v6 { "IPv6" } else { "IPv4" };
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
            "metadata": {
                "name": format!("{}-{}", self.name(), family.to_lowercase()), "namespace": "ns",
                "labels": {"kubernetes.io/service-name": self.name()},
                "annotations": self.topology.annotations(),
            },
            "ports": ports, "endpoints": endpoints,
        })
    }
}

impl Topology {
    fn hints(&self, index: u8, node: &str) -> Value {
        let (zones, nodes, one_is_missing) = self.hints;
        if one_is_missing && index == 2 {
            return Value::Null;
        }
        let named = |is_there: bool, name: &str| {
            if is_there { json!([{"name": name}]) } else { Value::Null }
        };
        json!({"forZones": named(zones, zone(index)), "forNodes": named(nodes, node)})
    }

    fn annotations(&self) -> Value {
        self.slices.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect()
    }
}

impl World {
    /// The objects as the planner sees them.
    pub(crate) fn snapshot(&self) -> Snapshot {
        fixtures::snapshot(self.services.iter().flat_map(Spec::objects))
    }

    /// The Node.
    pub(crate) fn node(&self) -> Node {
        let parse = |text: &str| text.parse::<IpAddr>().expect("an address");
        Node {
            zone: self.zone.map(Name::new),
            addresses: [parse(NODE_V4), parse(NODE_V6)].into(),
            pod_cidrs: ["10.1.0.0/16", "fd00:1::/64"].map(|r| r.parse().expect("a range")).into(),
            ..Node::named("here")
        }
    }

    /// What the node knows of itself.
    pub(crate) fn config(&self) -> NodeConfig {
        let cidrs = SERVICE_CIDRS.map(|r| r.parse().expect("a range"));
        let more = MORE.map(|text| text.parse().expect("an address"));
        NodeConfig::new(&self.settings, &self.node(), &cidrs, &more).0
    }
}

fn settings() -> impl Strategy<Value = ProxySettings> {
    let modes = ["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"];
    let ports = [&[][..], &["all"], &["198.51.101.0/24"], &["primary", "2001:db8:52::/64"], &["localhost"]];
    let cidrs = ["", "10.1.0.0/16", "fd00:1::/64,10.1.0.0/16"];
    let by = (select(modes.to_vec()), select(ports.to_vec()), select(cidrs.to_vec()));
    (by, any::<bool>(), 0i64..32, gates()).prop_map(|((mode, ports, cidr), all, bit, gates)| ProxySettings {
        cluster_cidr: cidr.into(),
        detect_local_mode: mode.into(),
        bridge_interface: "cbr0".into(),
        interface_name_prefix: "cali".into(),
        node_port_addresses: ports.iter().map(|p| (*p).to_owned()).collect(),
        masquerade_all: all,
        masquerade_bit: Some(bit),
        gates,
        ..ProxySettings::without_flags()
    })
}

fn gates() -> impl Strategy<Value = NodeGates> {
    let off = subsequence(vec![0usize, 1, 2, 3, 4], 0..3);
    off.prop_map(|off| {
        let on = |gate: usize| !off.contains(&gate);
        let select = FeatureGates {
            service_traffic_distribution: on(0),
            prefer_same_traffic_distribution: on(1),
            topology_aware_hints: on(2),
        };
        NodeGates { select, external_ips: on(3), service_cidrs: on(4), ..NodeGates::WITHOUT_FLAGS }
    })
}

/// One of a few Services, with anything.
pub(crate) fn spec() -> impl Strategy<Value = Spec> {
    let policy = || select(&["Cluster", "Local"][..]);
    let protocols = [&["TCP"][..], &["UDP"], &["SCTP"], &["TCP", "UDP"]];
    let families = [&[false][..], &[true], &[false, true]];
    let affinity = prop_oneof![2 => Just(None), 1 => select(vec![Some(10_800), Some(7)])];
    let kinds = select(&["ClusterIP", "NodePort", "LoadBalancer"][..]);
    let who = (1u8..6, 1u8..4, kinds, policy(), policy(), affinity);
    let places = (
        subsequence(vec![1u8, 2, 3], 0..2),
        subsequence(vec![1u8, 2, 3], 0..3),
        subsequence(RANGES.to_vec(), 0..3),
        select(protocols.to_vec()),
        proptest::option::of(select(vec![30_000u16, 30_001])),
    );
    let endpoints = (select(families.to_vec()), proptest::collection::vec((1u8..8, any::<u8>()), 0..6));
    let topology =
        (any::<(bool, bool)>(), proptest::bool::weighted(0.2), select(&SLICES[..]), select(&ASKED[..]));
    (who, places, endpoints, topology).prop_map(|(who, places, endpoints, topology)| {
        let (name, created, kind, internal, external, affinity) = who;
        let (external_ips, load_balancer, ranges, protocols, node_port) = places;
        let (families, endpoints) = endpoints;
        let (protocols, families) = (protocols.to_vec(), families.to_vec());
        let ((zones, nodes), one_is_missing, slices, service) = topology;
        let topology = Topology { hints: (zones, nodes, one_is_missing), slices, service };
        Spec {
            name,
            created,
            kind,
            internal,
            external,
            affinity,
            external_ips,
            load_balancer,
            ranges,
            protocols,
            node_port,
            families,
            endpoints,
            topology,
        }
    })
}

/// A cluster with a few Services. Of two with the same name the last one counts.
pub(crate) fn world() -> impl Strategy<Value = World> {
    let zones = select(vec![Some("za"), Some("zb"), Some("zd"), None]);
    (settings(), zones, proptest::collection::vec(spec(), 0..5))
        .prop_map(|(settings, zone, services)| World { settings, zone, services })
}

/// A packet that is likely to meet something.
pub(crate) fn packet() -> impl Strategy<Value = FirstPacket> {
    any::<bool>().prop_flat_map(|v6| {
        let sources = match v6 {
            false => vec![
                endpoint(false, 1),
                endpoint(false, 2),
                endpoint(false, 9),
                NODE_V4.into(),
                "203.0.113.2".into(),
                "203.0.113.200".into(),
                vip(false, 1),
            ],
            true => vec![
                endpoint(true, 1),
                endpoint(true, 9),
                NODE_V6.into(),
                "2001:db8:203::2".into(),
                "2001:db8:204::2".into(),
                vip(true, 1),
            ],
        };
        let mut targets: Vec<String> =
            (1..7).map(|i| cluster_ip(v6, i)).chain((1..4).map(|i| vip(v6, i))).collect();
        targets.extend(
            if v6 { [NODE_V6, "2001:db8:52::1", "::1"] } else { [NODE_V4, "198.51.101.1", "127.0.0.1"] }
                .map(String::from),
        );
        let protocols = select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
        let ports = select(vec![80u16, 80, 80, 81, 30_000, 30_001, 9]);
        let iif = select(vec![None, Some("cbr0"), Some("cali1"), Some("eth0")]);
        (select(sources), select(targets), protocols, ports, iif).prop_map(
            |(src, dst, protocol, port, iif)| {
                let address = |text: &str| text.parse::<IpAddr>().expect("an address");
                FirstPacket {
                    src: SocketAddr::new(address(&src), 40_000),
                    dst: SocketAddr::new(address(&dst), port),
                    protocol,
                    iif: iif.map(Name::new),
                }
            },
        )
    })
}

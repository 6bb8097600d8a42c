//! The packet-flow cases of vectors/packetflow-*.json as values.

use std::net::{IpAddr, SocketAddr};

use model::forward::{FirstPacket, ForwardingMode};
use model::{ForwardingTable, Node, Protocol};
use plan::forward::{NodeConfig, ProxySettings, table};
use serde_json::Value;

/// A node with its Services, and packets.
pub(crate) struct Scenario {
    /// Its name in the file.
    pub(crate) id: String,
    /// What the node forwards.
    pub(crate) table: ForwardingTable,
    /// The packets.
    pub(crate) flows: Vec<Flow>,
    /// The file's own words.
    pub(crate) value: Value,
}

/// A packet and what becomes of it.
pub(crate) struct Flow {
    /// Its number in the scenario.
    pub(crate) n: u64,
    /// The packet.
    pub(crate) packet: FirstPacket,
    /// DNAT, REJECT or DROP.
    pub(crate) verdict: String,
    /// Where it may go, sorted.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// Whether its source changes.
    pub(crate) masquerade: bool,
}

pub(crate) fn texts(value: &Value) -> Vec<String> {
    let list = value.as_array().into_iter().flatten();
    list.map(|v| v.as_str().expect("a text").to_owned()).collect()
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Debug>>(value: &Value) -> Vec<T> {
    texts(value).iter().map(|text| text.parse().expect("well formed")).collect()
}

/// All of mode nftables.
pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios_of("nftables")
}

/// All of a mode.
pub(crate) fn scenarios_of(mode: &str) -> Vec<Scenario> {
    scenarios_in(mode, None)
}

/// Those of a file, on nodes in another mode.
pub(crate) fn scenarios_in(mode: &str, other: Option<ForwardingMode>) -> Vec<Scenario> {
    let path = format!("{}/../../vectors/packetflow-{mode}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    let file: Value = serde_json::from_str(&text).expect("the vectors are JSON");
    let scenarios: Vec<Scenario> =
        file["scenarios"].as_array().expect("scenarios").iter().map(|value| scenario(value, other)).collect();
    let flows: usize = scenarios.iter().map(|s| s.flows.len()).sum();
    assert_eq!(Some(flows as u64), file["flowCount"].as_u64());
    scenarios
}

fn scenario(value: &Value, mode: Option<ForwardingMode>) -> Scenario {
    let snapshot = fixtures::snapshot(
        ["services", "endpointSlices"].iter().flat_map(|kind| value[*kind].as_array().expect("a list")),
    );
    let flows = value["flows"].as_array().expect("flows").iter().map(flow).collect();
    let id = value["id"].as_str().expect("an id").to_owned();
    Scenario { id, table: table(&snapshot, &config(&value["config"], mode)).0, flows, value: value.clone() }
}

fn config(config: &Value, mode: Option<ForwardingMode>) -> NodeConfig {
    assert_eq!(config["detectLocal"]["mode"], "ClusterCIDR");
    let mut node_port_addresses = texts(&config["nodePortAddresses"]);
    let is_iptables = config["mode"] == "iptables";
    if is_iptables && node_port_addresses.is_empty() {
        node_port_addresses.push("all".to_owned());
    }
    if mode == Some(ForwardingMode::Kernelspace) {
        node_port_addresses = vec!["all".to_owned()];
    }
    let settings = ProxySettings {
        mode: mode.unwrap_or(if is_iptables { ForwardingMode::Iptables } else { ForwardingMode::Nftables }),
        localhost_node_ports: config["localhostNodePorts"].as_bool().unwrap_or_default(),
        cluster_cidr: config["detectLocal"]["cidr"].as_str().expect("a range").to_owned(),
        node_port_addresses,
        masquerade_all: config["masqueradeAll"].as_bool().expect("a bool"),
        ..ProxySettings::without_flags()
    };
    let address = config["nodeIP"].as_str().expect("an address").parse().expect("an address");
    let name = config["nodeName"].as_str().expect("a name");
    let node = Node { addresses: [address].into(), ..Node::named(name) };
    let cidrs: Vec<ipnet::IpNet> = parsed(&config["serviceCIDRs"]);
    NodeConfig::new(&settings, &node, &cidrs, &parsed::<IpAddr>(&config["nodeLocalAddresses"])).0
}

fn flow(value: &Value) -> Flow {
    let (given, expect) = (&value["packet"], &value["expect"]);
    let address = |field: &str| given[field].as_str().expect("an address").parse().expect("an address");
    let port = u16::try_from(given["port"].as_u64().expect("a port")).expect("a port");
    assert_eq!(given["protocol"], "TCP");
    let mut endpoints: Vec<SocketAddr> = parsed(&expect["endpoints"]);
    endpoints.sort();
    Flow {
        n: value["n"].as_u64().expect("a number"),
        packet: FirstPacket {
            src: SocketAddr::new(address("src"), 40_000),
            dst: SocketAddr::new(address("dst"), port),
            protocol: Protocol::Tcp,
            iif: None,
        },
        verdict: expect["verdict"].as_str().expect("a word").to_owned(),
        endpoints,
        masquerade: expect["masquerade"].as_bool().expect("a bool"),
    }
}

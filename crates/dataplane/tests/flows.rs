//! The cases of vectors/conntrack-cleanup.json as entries and Services.

use std::net::{IpAddr, SocketAddr};

use dataplane::conntrack::ConntrackEntry;
use model::forward::UdpService;
use plan::forward::NodeConfig;
use serde_json::{Value, json};

/// One case: what the Service looks like now, and each flow with whether a pass deletes it.
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) service: UdpService,
    pub(crate) entries: Vec<(ConntrackEntry, bool)>,
}

const TEXT: &str = include_str!("../../../vectors/conntrack-cleanup.json");

pub(crate) fn cases() -> Vec<Case> {
    let file: Value = serde_json::from_str(TEXT).expect("the file of cases is JSON");
    let cases = file["vectors"].as_array().expect("it has cases");
    assert!(!cases.is_empty());
    cases.iter().map(case).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not text"))
}

fn address(value: &Value) -> IpAddr {
    text(value).parse().unwrap_or_else(|error| panic!("{value}: {error}"))
}

fn port(value: &Value) -> u16 {
    value.as_u64().and_then(|port| port.try_into().ok()).unwrap_or_else(|| panic!("{value} is not a port"))
}

fn case(value: &Value) -> Case {
    let entries = value["flows"].as_array().expect("a case has entries");
    let entries = entries.iter().zip(1u16..).map(|(value, number)| flow(value, number)).collect();
    Case { id: text(&value["id"]).to_string(), service: service(value), entries }
}

/// The Service as the plan sees it on a node that serves it.
fn service(value: &Value) -> UdpService {
    let snapshot = fixtures::snapshot([value["service"].clone(), slice(value)]);
    let (service, slices) = snapshot.services().next().expect("a case has a Service");
    let (frontends, _) = plan::forward::forward(service, slices, &NodeConfig::without_flags("".into()));
    let mut udp = plan::forward::stale_udp::services(&frontends, slices);
    assert_eq!(udp.len(), 1, "a case has one UDP port");
    udp.remove(0)
}

fn slice(value: &Value) -> Value {
    let listed = value["endpoints"].as_array().expect("a case has endpoints");
    let number = &listed[0]["port"];
    assert!(listed.iter().all(|endpoint| endpoint["port"] == *number));
    let endpoint = |endpoint: &Value| {
        let serving = &endpoint["serving"];
        json!({"addresses": [endpoint["address"]], "conditions": {"ready": serving, "serving": serving}})
    };
    let metadata = &value["service"]["metadata"];
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"namespace": metadata["namespace"], "name": "s-1",
            "labels": {"kubernetes.io/service-name": metadata["name"]}},
        "ports": [{"name": "u", "port": number, "protocol": "UDP"}],
        "endpoints": listed.iter().map(endpoint).collect::<Vec<_>>()})
}

/// Clients differ, so that no two entries are the same.
fn flow(value: &Value, number: u16) -> (ConntrackEntry, bool) {
    let client = SocketAddr::new([10, 99, 0, 1].into(), 20_000 + number);
    let protocol = match text(&value["protocol"]) {
        "TCP" => 6,
        "UDP" => 17,
        "SCTP" => 132,
        other => panic!("protocol {other}"),
    };
    let end = |ip: &str, number: &str| SocketAddr::new(address(&value[ip]), port(&value[number]));
    let flow = ConntrackEntry {
        protocol,
        src: client,
        dst: end("originalDst", "originalDstPort"),
        reply_src: end("replySrc", "replySrcPort"),
        reply_dst: client,
        id: None,
    };
    (flow, value["deleted"].as_bool().expect("a flow says whether it is deleted"))
}

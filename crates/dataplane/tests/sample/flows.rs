//! The cases of vectors/conntrack-cleanup.json as flows and Services.

use std::net::{IpAddr, SocketAddr};

use dataplane::conntrack::{Flow, UdpService};
use serde_json::Value;

/// One case: what the Service looks like now, and each flow with whether a pass deletes it.
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) service: UdpService,
    pub(crate) flows: Vec<(Flow, bool)>,
}

const TEXT: &str = include_str!("../../../../vectors/conntrack-cleanup.json");

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
    let flows = value["flows"].as_array().expect("a case has flows");
    let flows = flows.iter().zip(1u16..).map(|(value, number)| flow(value, number)).collect();
    Case { id: text(&value["id"]).to_string(), service: service(value), flows }
}

fn service(value: &Value) -> UdpService {
    let (spec, status) = (&value["service"]["spec"], &value["service"]["status"]);
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut addresses = vec![address(&spec["clusterIP"])];
    addresses.extend(list(&spec["externalIPs"]).iter().map(address));
    addresses.extend(list(&status["loadBalancer"]["ingress"]).iter().map(|ingress| address(&ingress["ip"])));
    let ports = list(&spec["ports"]);
    let udp: Vec<&Value> = ports.iter().filter(|port| port["protocol"] == "UDP").collect();
    let [udp] = udp.as_slice() else { panic!("a case has one UDP port") };
    let serving = list(&value["endpoints"]);
    let serving = serving.iter().filter(|endpoint| endpoint["serving"] == true);
    UdpService {
        frontends: addresses.iter().map(|address| SocketAddr::new(*address, port(&udp["port"]))).collect(),
        node_port: udp.get("nodePort").map(port),
        serving: serving
            .map(|endpoint| SocketAddr::new(address(&endpoint["address"]), port(&endpoint["port"])))
            .collect(),
    }
}

/// Clients differ, so that no two flows are the same.
fn flow(value: &Value, number: u16) -> (Flow, bool) {
    let client = SocketAddr::new([10, 99, 0, 1].into(), 20_000 + number);
    let protocol = match text(&value["protocol"]) {
        "TCP" => 6,
        "UDP" => 17,
        "SCTP" => 132,
        other => panic!("protocol {other}"),
    };
    let end = |ip: &str, number: &str| SocketAddr::new(address(&value[ip]), port(&value[number]));
    let flow = Flow {
        protocol,
        src: client,
        dst: end("originalDst", "originalDstPort"),
        reply_src: end("replySrc", "replySrcPort"),
        reply_dst: client,
        id: None,
    };
    (flow, value["deleted"].as_bool().expect("a flow says whether it is deleted"))
}

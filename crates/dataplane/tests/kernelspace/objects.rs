//! Golden files: the HCN documents of the packet-flow cases, and of one Service with everything.

use expect_test::{ExpectFile, expect, expect_file};
use model::forward::ForwardingMode;
use model::{ForwardingTable, Node};
use plan::forward::{NodeConfig, ProxySettings, table};
use serde_json::{Value, json};

use super::*;

/// One line for each object.
fn lines(rendered: &HcnObjects) -> String {
    let endpoints = rendered.endpoints.values().map(|endpoint| json!(endpoint).to_string());
    let load_balancers = rendered.load_balancers.values().map(|wanted| {
        let text = json!(wanted.object).to_string();
        format!("# {}, {}\n{text}", wanted.service, wanted.address)
    });
    let mut load_balancers: Vec<String> = load_balancers.collect();
    load_balancers.sort();
    let lines: Vec<String> =
        endpoints.chain(load_balancers).chain(rendered.problems.iter().cloned()).collect();
    lines.join("\n") + "\n"
}

fn check_cases(network: &Network, settings: &KernelspaceSettings, golden: &ExpectFile) {
    let of_case = |scenario: case::Scenario| {
        format!("## {}\n{}\n", scenario.id, lines(&rendered(&scenario.table, settings, network)))
    };
    golden.assert_eq(&scenarios().into_iter().map(of_case).collect::<String>());
}

#[test]
fn objects_of_the_packet_flow_cases_in_a_bridged_network() {
    check_cases(&Network::l2bridge("pods"), &settings(), &expect_file!["l2bridge.txt"]);
}

#[test]
fn objects_of_the_packet_flow_cases_in_an_overlay_network_with_dsr() {
    let settings =
        KernelspaceSettings { source_vip: Some(address("10.1.9.1")), enable_dsr: true, ..settings() };
    check_cases(&overlay(), &settings, &expect_file!["overlay.txt"]);
}

fn slice(family: &str, hosts: &[(&str, &str)]) -> Value {
    let endpoint = |(address, node): &(&str, &str)| {
        json!({"addresses": [address], "nodeName": node, "zone": "za", "conditions": {"ready": true},
            "hints": {"forZones": [{"name": if *node == "far" { "zb" } else { "za" }}]}})
    };
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
        "metadata": {"name": format!("web-{}", family.to_lowercase()), "namespace": "ns",
            "labels": {"kubernetes.io/service-name": "web"}},
        "ports": [{"name": "http", "port": 8080, "protocol": "SCTP"}],
        "endpoints": hosts.iter().map(endpoint).collect::<Vec<_>>()})
}

/// Both families, all kinds of frontends, policy Local, affinity, a zone hint for another zone.
fn full_table() -> ForwardingTable {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "ns"},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00:96::1"],
            "trafficDistribution": "PreferSameZone",
            "externalIPs": ["192.0.2.9"], "externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "ports": [{"name": "http", "port": 80, "protocol": "SCTP", "nodePort": 30000}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}});
    let v4 = slice("IPv4", &[("10.1.9.2", "here"), ("10.1.0.2", "there"), ("10.1.0.3", "far")]);
    let v6 = slice("IPv6", &[("fd00:1::2", "there"), ("2001:db8:5::1", "there")]);
    let snapshot = fixtures::snapshot([service, v4, v6]);
    let settings = ProxySettings {
        mode: ForwardingMode::Kernelspace,
        node_port_addresses: vec!["all".to_owned()],
        ..ProxySettings::without_flags()
    };
    let own = [address("192.168.0.1"), address("2001:db8::1")];
    let node = Node { zone: Some("za".into()), addresses: own.into(), ..Node::named("here") };
    table(&snapshot, &NodeConfig::new(&settings, &node, &[], &[]).0).0
}

#[test]
fn one_service_with_everything() {
    let settings = KernelspaceSettings { source_vip: Some(address("10.1.9.1")), ..settings() };
    let text = lines(&rendered(&full_table(), &settings, &overlay()));
    expect_file!["everything.txt"].assert_eq(&text);
}

#[test]
fn a_pod_that_the_network_plugin_has_not_made_yet_is_left_out() {
    let (network, table) = (Network::l2bridge("pods"), full_table());
    let rendered = render(&table, &settings(), &network, &BTreeMap::new());
    let web = rendered.load_balancers.values().filter(|wanted| wanted.address.family() == model::Family::V4);
    let endpoints: Vec<&[IpAddr]> = web.map(|wanted| &wanted.endpoints[..]).collect();
    assert_eq!(endpoints, [&[address("10.1.0.2")][..]], "those of policy Local have no endpoint at all");
    expect![[r#"
        "Service ns/web: HNS network pods has no endpoint with the address 10.1.9.2 of a pod on this node; the network plugin has to create it"
    "#]]
    .assert_debug_eq(&rendered.problems[0]);
}

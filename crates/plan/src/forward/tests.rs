//! Tests of forwarding: the packet-flow cases by the table alone, and what they leave out.

use std::net::{IpAddr, SocketAddr};

use expect_test::{Expect, expect};
use ipnet::IpNet;
use model::forward::{FirstPacket, ForwardingDecision, ForwardingMode, PacketVerdict};
use model::{Name, Node, Protocol, ServiceKey};
use serde_json::{Value, json};

use super::*;
use crate::feature_gates::NodeGates;

fn texts(value: &Value) -> Vec<String> {
    let list = value.as_array().into_iter().flatten();
    list.map(|v| v.as_str().expect("a text").to_owned()).collect()
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Debug>>(value: &Value) -> Vec<T> {
    texts(value).iter().map(|text| text.parse().expect("well formed")).collect()
}

fn node(name: &str, addresses: &[IpAddr]) -> Node {
    Node { addresses: addresses.into(), ..Node::named(name) }
}

fn snapshot(objects: &[Value]) -> Snapshot {
    fixtures::snapshot(objects)
}

fn packet(protocol: Protocol, src: &str, dst: &str) -> FirstPacket {
    let (src, dst) = (src.parse().expect("a source"), dst.parse().expect("a destination"));
    FirstPacket { src, dst, protocol, iif: None }
}

fn config_of(scenario: &Value) -> NodeConfig {
    let config = &scenario["config"];
    assert_eq!(config["detectLocal"]["mode"], "ClusterCIDR");
    let mut node_port_addresses = texts(&config["nodePortAddresses"]);
    let mode = match config["mode"].as_str() {
        Some("iptables") => ForwardingMode::Iptables,
        _ => ForwardingMode::Nftables,
    };
    if mode == ForwardingMode::Iptables && node_port_addresses.is_empty() {
        node_port_addresses.push("all".to_owned());
    }
    let settings = ProxySettings {
        mode,
        localhost_node_ports: config["localhostNodePorts"].as_bool().unwrap_or_default(),
        cluster_cidr: config["detectLocal"]["cidr"].as_str().expect("a range").to_owned(),
        node_port_addresses,
        masquerade_all: config["masqueradeAll"].as_bool().expect("a bool"),
        ..ProxySettings::without_flags()
    };
    let own: IpAddr = config["nodeIP"].as_str().expect("an address").parse().expect("an address");
    let node = node(config["nodeName"].as_str().expect("a name"), &[own]);
    let cidrs: Vec<IpNet> = parsed(&config["serviceCIDRs"]);
    NodeConfig::new(&settings, &node, &cidrs, &parsed::<IpAddr>(&config["nodeLocalAddresses"])).0
}

fn shown(decision: &ForwardingDecision<'_>) -> Value {
    let verdict = match &decision.verdict {
        PacketVerdict::Send(endpoints) => {
            let addresses: Vec<String> = endpoints.iter().map(|(a, _)| a.to_string()).collect();
            return json!({"verdict": "DNAT", "endpoints": addresses, "masquerade": decision.masquerade});
        }
        PacketVerdict::Reject => "REJECT",
        PacketVerdict::Drop => "DROP",
        PacketVerdict::Accept => "ACCEPT",
        PacketVerdict::Untouched => "UNTOUCHED",
    };
    json!({"verdict": verdict, "masquerade": decision.masquerade})
}

#[test]
fn every_packet_flow_case_is_decided_as_upstream_does() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors");
    for mode in ["nftables", "iptables"] {
        check_packet_flows(&format!("{folder}/packetflow-{mode}.json"));
    }
}

fn check_packet_flows(path: &str) {
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    let file: Value = serde_json::from_str(&text).expect("the vectors are JSON");
    let mut flows = 0;
    for scenario in file["scenarios"].as_array().expect("scenarios") {
        let objects: Vec<Value> = ["services", "endpointSlices"]
            .iter()
            .flat_map(|kind| scenario[*kind].as_array().expect("a list").clone())
            .collect();
        let (table, notices) = table(&snapshot(&objects), &config_of(scenario));
        assert!(notices.iter().all(|notice| notice.reason == DEPRECATED_EXTERNAL_IPS), "{notices:?}");
        for flow in scenario["flows"].as_array().expect("flows") {
            let given = &flow["packet"];
            let address =
                |field: &str| given[field].as_str().expect("an address").parse().expect("an address");
            let port = given["port"].as_u64().expect("a port") as u16;
            assert_eq!(given["protocol"], "TCP");
            let packet = FirstPacket {
                src: SocketAddr::new(address("src"), 40_000),
                dst: SocketAddr::new(address("dst"), port),
                protocol: Protocol::Tcp,
                iif: None,
            };
            let decision = table.decide(&packet);
            assert_eq!(
                shown(&decision),
                flow["expect"],
                "{} flow {}: {:?}",
                scenario["id"],
                flow["n"],
                decision.why
            );
            flows += 1;
        }
    }
    assert_eq!(Value::from(flows), file["flowCount"]);
}

/// A LoadBalancer Service with one endpoint on the node `here` and one on `there`.
fn service(patch: Value) -> Value {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop", "creationTimestamp": "2026-01-02T00:00:00Z"},
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
    });
    fixtures::with(service, &patch)
}

fn slice(name: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("{name}-1"), "namespace": "shop", "labels": {"kubernetes.io/service-name": name}},
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [
            {"addresses": ["10.1.0.1"], "nodeName": "here"}, {"addresses": ["10.1.1.1"], "nodeName": "there"},
        ],
    })
}

fn settings() -> ProxySettings {
    ProxySettings { cluster_cidr: "10.1.0.0/16".into(), ..ProxySettings::without_flags() }
}

fn config(settings: &ProxySettings) -> NodeConfig {
    let here = node("here", &["198.51.100.1".parse().expect("an address")]);
    NodeConfig::new(settings, &here, &["10.96.0.0/16".parse().expect("a range")], &[]).0
}

fn check(objects: &[Value], settings: &ProxySettings, packets: &[(&str, &str)], expect: Expect) {
    let (table, notices) = table(&snapshot(objects), &config(settings));
    let mut text = String::new();
    for (src, dst) in packets {
        let decision = table.decide(&packet(Protocol::Tcp, src, dst));
        let shown = shown(&decision);
        let endpoints = texts(&shown["endpoints"]).join(" ");
        let masquerade = if decision.masquerade { " masquerade" } else { "" };
        text += &format!(
            "{src} -> {dst}: {} {endpoints}{masquerade}\n",
            shown["verdict"].as_str().expect("a word")
        );
    }
    for notice in notices {
        text += &format!("{notice}\n");
    }
    expect.assert_eq(&text);
}

// semantics D2
#[test]
fn source_ranges_bind_the_load_balancer_alone_and_pods_too() {
    let ranges = json!({"spec": {"loadBalancerSourceRanges": [" 203.0.113.0/25 ", "2001:db8::/32"]}});
    check(
        &[service(ranges), slice("web")],
        &settings(),
        &[
            ("203.0.113.2:1", "192.0.2.1:80"),
            ("203.0.113.130:1", "192.0.2.1:80"),
            ("10.1.0.9:1", "192.0.2.1:80"),
            ("203.0.113.130:1", "198.51.100.1:30080"),
        ],
        expect![[r#"
            203.0.113.2:1 -> 192.0.2.1:80: DNAT 10.1.0.1:8080 10.1.1.1:8080 masquerade
            203.0.113.130:1 -> 192.0.2.1:80: DROP 
            10.1.0.9:1 -> 192.0.2.1:80: DROP 
            203.0.113.130:1 -> 198.51.100.1:30080: DNAT 10.1.0.1:8080 10.1.1.1:8080 masquerade
        "#]],
    );
}

// semantics D2
#[test]
fn source_ranges_of_everything_or_of_the_other_family_bind_nobody() {
    for ranges in [json!(["10.0.0.0/8", "0.0.0.0/0"]), json!(["2001:db8::/32"])] {
        let service = service(json!({"spec": {"loadBalancerSourceRanges": ranges}}));
        check(
            &[service, slice("web")],
            &settings(),
            &[("203.0.113.2:1", "192.0.2.1:80")],
            expect![[r#"
                203.0.113.2:1 -> 192.0.2.1:80: DNAT 10.1.0.1:8080 10.1.1.1:8080 masquerade
            "#]],
        );
    }
}

// semantics D2
#[test]
fn a_range_that_holds_the_node_lets_the_load_balancers_own_address_in() {
    let service = service(json!({"spec": {"loadBalancerSourceRanges": ["198.51.100.0/24"]}}));
    check(
        &[service],
        &settings(),
        &[("192.0.2.1:1", "192.0.2.1:80"), ("192.0.2.2:1", "192.0.2.1:80")],
        expect![[r#"
            192.0.2.1:1 -> 192.0.2.1:80: REJECT 
            192.0.2.2:1 -> 192.0.2.1:80: DROP 
        "#]],
    );
}

// semantics D2
#[test]
fn proxy_mode_ingress_is_left_to_the_load_balancer() {
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "Proxy"}]}}});
    check(
        &[service(status), slice("web")],
        &settings(),
        &[("203.0.113.2:1", "192.0.2.1:80")],
        expect![[r#"
            203.0.113.2:1 -> 192.0.2.1:80: UNTOUCHED 
        "#]],
    );
}

// semantics D2
#[test]
fn other_ports_of_a_cluster_ip_are_rejected_and_unassigned_addresses_dropped() {
    check(
        &[service(json!({})), slice("web")],
        &settings(),
        &[("10.1.0.9:1", "10.96.0.10:81"), ("10.1.0.9:1", "10.96.0.11:80"), ("10.1.0.9:1", "192.0.2.1:81")],
        expect![[r#"
            10.1.0.9:1 -> 10.96.0.10:81: REJECT 
            10.1.0.9:1 -> 10.96.0.11:80: DROP 
            10.1.0.9:1 -> 192.0.2.1:81: UNTOUCHED 
        "#]],
    );
}

// semantics D3: without a detector nobody is a pod, and cluster IP traffic is not masqueraded.
#[test]
fn without_a_detector_pods_are_outside_clients() {
    let local = json!({"spec": {"externalTrafficPolicy": "Local"}});
    check(
        &[service(local), slice("web")],
        &ProxySettings::without_flags(),
        &[
            ("10.1.0.9:1", "192.0.2.1:80"),
            ("198.51.100.1:1", "192.0.2.1:80"),
            ("203.0.113.2:1", "10.96.0.10:80"),
        ],
        expect![[r#"
            10.1.0.9:1 -> 192.0.2.1:80: DNAT 10.1.0.1:8080
            198.51.100.1:1 -> 192.0.2.1:80: DNAT 10.1.0.1:8080 10.1.1.1:8080 masquerade
            203.0.113.2:1 -> 10.96.0.10:80: DNAT 10.1.0.1:8080 10.1.1.1:8080
        "#]],
    );
}

#[test]
fn bridge_and_prefix_tell_pods_by_the_interface() {
    let local = json!({"spec": {"externalTrafficPolicy": "Local"}});
    let snapshot = snapshot(&[service(local), slice("web")]);
    for (mode, iif, origin) in [
        ("BridgeInterface", "cbr0", model::forward::TrafficSource::Pod),
        ("BridgeInterface", "cbr01", model::forward::TrafficSource::Outside),
        ("InterfaceNamePrefix", "cali12", model::forward::TrafficSource::Pod),
        ("InterfaceNamePrefix", "eth0", model::forward::TrafficSource::Outside),
    ] {
        let settings = ProxySettings {
            detect_local_mode: mode.into(),
            bridge_interface: "cbr0".into(),
            interface_name_prefix: "cali".into(),
            ..ProxySettings::without_flags()
        };
        let (table, _) = table(&snapshot, &config(&settings));
        let mut packet = packet(Protocol::Tcp, "10.1.0.9:1", "192.0.2.1:80");
        packet.iif = Some(Name::new(iif));
        assert_eq!(table.decide(&packet).origin, origin, "{mode} {iif}");
    }
}

#[test]
fn the_older_of_two_services_owns_the_address_they_both_request() {
    let younger = json!({
        "metadata": {"name": "late", "creationTimestamp": "2026-01-03T00:00:00Z"},
        "spec": {"clusterIP": "10.96.0.11", "clusterIPs": ["10.96.0.11"]},
    });
    check(
        &[service(json!({})), slice("web"), service(younger)],
        &settings(),
        &[("203.0.113.2:1", "192.0.2.1:80"), ("10.1.0.9:1", "10.96.0.11:80")],
        expect![[r#"
            203.0.113.2:1 -> 192.0.2.1:80: DNAT 10.1.0.1:8080 10.1.1.1:8080 masquerade
            10.1.0.9:1 -> 10.96.0.11:80: REJECT 
            Service shop/late: FrontendConflict: status.loadBalancer.ingress: TCP 192.0.2.1:80 belongs to the older Service shop/web, so TCP 192.0.2.1:80 of port shop/late:http is not served; change the address or port of one of the two
            Service shop/late: FrontendConflict: spec.ports[].nodePort: TCP node port 30080 (IPv4) belongs to the older Service shop/web, so TCP node port 30080 (IPv4) of port shop/late:http is not served; change the address or port of one of the two
        "#]],
    );
}

/// An older Service of another tenant with these fields, beside `web`.
fn intruder(spec: Value, status: Value) -> Value {
    let intruder = service(json!({
        "metadata": {"name": "intruder", "creationTimestamp": "2020-01-01T00:00:00Z"},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.66", "clusterIPs": ["10.96.0.66"]}, "status": status,
    }));
    fixtures::with(intruder, &json!({"spec": spec}))
}

#[test]
fn external_addresses_never_take_the_cluster_ip_of_another_service() {
    let ports = json!([{"name": "http", "port": 80}, {"name": "more", "port": 443}]);
    let by_external_ip =
        intruder(json!({"externalIPs": ["10.96.0.10"], "ports": ports}), json!({"loadBalancer": {}}));
    let by_load_balancer =
        intruder(json!({"ports": ports}), json!({"loadBalancer": {"ingress": [{"ip": "10.96.0.10"}]}}));
    let packets = [("10.1.0.9:1", "10.96.0.10:80"), ("10.1.0.9:1", "10.96.0.10:443")];
    check(
        &[service(json!({})), slice("web"), by_external_ip, slice("intruder")],
        &settings(),
        &packets,
        expect![[r#"
            10.1.0.9:1 -> 10.96.0.10:80: DNAT 10.1.0.1:8080 10.1.1.1:8080
            10.1.0.9:1 -> 10.96.0.10:443: REJECT 
            Service shop/intruder: DeprecatedExternalIPs: spec.externalIPs works, but is deprecated since Kubernetes 1.36: use type LoadBalancer or a Gateway
            Service shop/intruder: FrontendConflict: spec.externalIPs: 10.96.0.10 is the cluster IP of Service shop/web, so TCP 10.96.0.10:80 of port shop/intruder:http is not served; remove the address from this Service
            Service shop/intruder: FrontendConflict: spec.externalIPs: 10.96.0.10 is the cluster IP of Service shop/web, so TCP 10.96.0.10:443 of port shop/intruder:more is not served; remove the address from this Service
        "#]],
    );
    check(
        &[service(json!({})), slice("web"), by_load_balancer, slice("intruder")],
        &settings(),
        &packets,
        expect![[r#"
            10.1.0.9:1 -> 10.96.0.10:80: DNAT 10.1.0.1:8080 10.1.1.1:8080
            10.1.0.9:1 -> 10.96.0.10:443: REJECT 
            Service shop/intruder: FrontendConflict: status.loadBalancer.ingress: 10.96.0.10 is the cluster IP of Service shop/web, so TCP 10.96.0.10:80 of port shop/intruder:http is not served; remove the address from this Service
            Service shop/intruder: FrontendConflict: status.loadBalancer.ingress: 10.96.0.10 is the cluster IP of Service shop/web, so TCP 10.96.0.10:443 of port shop/intruder:more is not served; remove the address from this Service
        "#]],
    );
}

#[test]
fn external_addresses_never_take_the_node_port_of_another_service() {
    let ports = json!([{"name": "http", "port": 30080}, {"name": "more", "port": 443}]);
    let by_external_ip =
        intruder(json!({"externalIPs": ["198.51.100.1"], "ports": ports}), json!({"loadBalancer": {}}));
    let by_load_balancer =
        intruder(json!({"ports": ports}), json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}}));
    // Port 443 of the node is no node port: the external address has it.
    let packets = [("203.0.113.2:1", "198.51.100.1:30080"), ("203.0.113.2:1", "198.51.100.1:443")];
    for intruder in [by_external_ip, by_load_balancer] {
        let (table, _) = table(
            &snapshot(&[service(json!({})), slice("web"), intruder, slice("intruder")]),
            &config(&settings()),
        );
        let names = packets.map(|(src, dst)| {
            let decision = table.decide(&packet(Protocol::Tcp, src, dst));
            decision.frontend.map(|f| f.port.to_string()).unwrap_or_default()
        });
        assert_eq!(names, ["shop/web:http", "shop/intruder:more"]);
    }
}

#[test]
fn a_load_balancer_ip_comes_before_an_older_external_ip() {
    let intruder = intruder(
        json!({"externalIPs": ["192.0.2.1"], "ports": [{"name": "http", "port": 80}]}),
        json!({"loadBalancer": {}}),
    );
    check(
        &[service(json!({})), slice("web"), intruder],
        &settings(),
        &[("203.0.113.2:1", "192.0.2.1:80")],
        expect![[r#"
            203.0.113.2:1 -> 192.0.2.1:80: DNAT 10.1.0.1:8080 10.1.1.1:8080 masquerade
            Service shop/intruder: DeprecatedExternalIPs: spec.externalIPs works, but is deprecated since Kubernetes 1.36: use type LoadBalancer or a Gateway
            Service shop/intruder: FrontendConflict: spec.externalIPs: TCP 192.0.2.1:80 is the load balancer IP of Service shop/web, so TCP 192.0.2.1:80 of port shop/intruder:http is not served; remove the address from this Service or change its port
        "#]],
    );
}

#[test]
fn external_addresses_yield_to_node_ports_when_the_node_gets_the_address() {
    let intruder = intruder(
        json!({"externalIPs": ["198.51.100.77"], "ports": [{"name": "http", "port": 30080}]}),
        json!({"loadBalancer": {}}),
    );
    let snapshot = snapshot(&[service(json!({})), slice("web"), intruder, slice("intruder")]);
    let settings = ProxySettings { node_port_addresses: vec!["0.0.0.0/0".to_owned()], ..settings() };
    let mut forwarder = Forwarder::of(&snapshot, config(&settings));
    let owner = |forwarder: &Forwarder| {
        let packet = packet(Protocol::Tcp, "203.0.113.2:1", "198.51.100.77:30080");
        forwarder.table().decide(&packet).frontend.map(|f| f.port.to_string()).unwrap_or_default()
    };
    assert_eq!(owner(&forwarder), "shop/intruder:http");
    for (addresses, expected) in
        [(&["198.51.100.1", "198.51.100.77"][..], "shop/web:http"), (&["198.51.100.1"], "shop/intruder:http")]
    {
        let addresses = addresses.iter().map(|a| a.parse().expect("an address")).collect();
        let affected = forwarder.set_addresses(addresses);
        assert_eq!(affected.len(), 1);
        forwarder.update(&snapshot, &affected);
        assert_eq!(owner(&forwarder), expected);
    }
}

#[test]
fn an_external_address_on_the_node_follows_the_owner_of_its_node_port() {
    let objects = [
        intruder(
            json!({"externalIPs": ["198.51.100.77"], "ports": [{"name": "http", "port": 30080}]}),
            json!({"loadBalancer": {}}),
        ),
        slice("intruder"),
        service(json!({})),
        slice("web"),
    ];
    let with_web = snapshot(&objects);
    let without = snapshot(&objects[..2]);
    let settings = ProxySettings { node_port_addresses: vec!["0.0.0.0/0".to_owned()], ..settings() };
    let mut forwarder = Forwarder::of(&without, config(&settings));
    forwarder.set_addresses(["198.51.100.77".parse().expect("an address")].into());
    let key = |name: &str| ServiceKey::new(&"shop".into(), &name.into());
    for (snapshot, expected) in [(&with_web, "shop/web:http"), (&without, "shop/intruder:http")] {
        forwarder.update(snapshot, &[key("web")].into());
        let packet = packet(Protocol::Tcp, "203.0.113.2:1", "198.51.100.77:30080");
        let decision = forwarder.table().decide(&packet);
        assert_eq!(decision.frontend.map(|f| f.port.to_string()).as_deref(), Some(expected));
    }
}

#[test]
fn an_address_passes_to_the_next_service_when_its_owner_is_deleted() {
    let config = config(&settings());
    let younger = json!({
        "metadata": {"name": "late", "creationTimestamp": "2026-01-03T00:00:00Z"},
        "spec": {"clusterIP": "10.96.0.11", "clusterIPs": ["10.96.0.11"]},
    });
    let snapshot = snapshot(&[service(younger), service(json!({}))]);
    let mut conflicts = FrontendConflicts::default();
    let mut keys = Vec::new();
    for (service, slices) in snapshot.services() {
        conflicts.insert(service, forward(service, slices, &config).0, &config.rules);
        keys.push(service.key.clone());
    }
    let (late, web) = (&keys[0], &keys[1]);
    let served = |conflicts: &FrontendConflicts, key| conflicts.resolved(key, &config.rules).frontends.len();
    assert_eq!((served(&conflicts, late), served(&conflicts, web)), (1, 3));
    let affected = conflicts.remove(web, &config.rules);
    assert!(affected.contains(late) && affected.contains(web));
    assert_eq!((served(&conflicts, late), served(&conflicts, web)), (3, 0));
}

// seed 003
#[test]
fn require_without_an_endpoint_in_reach_is_rejected_inside_and_outside() {
    let mut slice = slice("web");
    slice["metadata"]["annotations"] = json!({"zoneward.dev/mechanism": "RequireSameZone"});
    check(
        &[service(json!({})), slice],
        &settings(),
        &[("10.1.0.9:1", "10.96.0.10:80"), ("203.0.113.2:1", "192.0.2.1:80")],
        expect![[r#"
            10.1.0.9:1 -> 10.96.0.10:80: DNAT 10.1.0.1:8080 10.1.1.1:8080
            203.0.113.2:1 -> 192.0.2.1:80: DNAT 10.1.0.1:8080 10.1.1.1:8080 masquerade
        "#]],
    );
}

// semantics D1
#[test]
fn headless_and_foreign_services_have_no_frontends() {
    let headless = service(json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}}));
    let foreign =
        service(json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "other"}}}));
    for object in [headless, foreign] {
        let (table, _) = table(&snapshot(&[object, slice("web")]), &config(&settings()));
        assert_eq!(table.services().count(), 0);
    }
}

// semantics D4
#[test]
fn node_port_addresses_are_words_and_ranges() {
    let v4: IpAddr = "198.51.100.1".parse().expect("an address");
    let v6: IpAddr = "2001:db8::1".parse().expect("an address");
    let mut text = String::new();
    for words in [&[][..], &["all"], &["localhost"], &["198.51.0.0/16", "primary", "primary"], &["10.0.0.0"]]
    {
        let settings = ProxySettings {
            node_port_addresses: words.iter().map(|w| (*w).to_owned()).collect(),
            ..ProxySettings::without_flags()
        };
        let (config, notices) = NodeConfig::new(&settings, &node("here", &[v4, v6]), &[], &[]);
        text += &format!("{words:?}: {:?} {:?}\n", config.rules.node_ports_v4, config.rules.node_ports_v6);
        notices.iter().for_each(|notice| text += &format!("  {}\n", notice.message));
    }
    expect![[r#"
        []: Within([198.51.100.1/32]) Within([2001:db8::1/128])
        ["all"]: All All
        ["localhost"]: Within([127.0.0.0/8]) Within([::1/128])
          nodePortAddresses: node ports are not served on loopback addresses: connect to another address of the node, or set the feature gate KubeProxyNFTablesLocalhostNodePorts for TCP
        ["198.51.0.0/16", "primary", "primary"]: Within([198.51.0.0/16]) Within([2001:db8::1/128])
          nodePortAddresses: "primary" is listed twice; remove one
        ["10.0.0.0"]: Within([198.51.100.1/32]) Within([2001:db8::1/128])
          nodePortAddresses: "10.0.0.0" is not a CIDR such as 10.0.0.0/8; it is ignored
    "#]]
    .assert_eq(&text);
}

/// The gate is on, and these are nodePortAddresses.
fn on_localhost(words: &[&str]) -> ProxySettings {
    ProxySettings {
        node_port_addresses: words.iter().map(|word| (*word).to_owned()).collect(),
        gates: NodeGates { localhost_node_ports: true, ..NodeGates::WITHOUT_FLAGS },
        ..settings()
    }
}

// KEP-6032
#[test]
fn localhost_has_a_listener_where_loopback_is_listed() {
    let v4: IpAddr = "198.51.100.1".parse().expect("an address");
    let mut text = String::new();
    for words in
        [&[][..], &["all"], &["primary", "localhost"], &["0.0.0.0/0", "127.0.0.1/32"], &["127.0.0.2/32"]]
    {
        let (config, notices) = NodeConfig::new(&on_localhost(words), &node("here", &[v4]), &[], &[]);
        text += &format!("{words:?}: {:?}\n", config.rules.localhost_listeners);
        notices.iter().for_each(|notice| text += &format!("  {}\n", notice.message));
    }
    expect![[r#"
        []: []
        ["all"]: []
        ["primary", "localhost"]: [127.0.0.1, ::1]
        ["0.0.0.0/0", "127.0.0.1/32"]: [127.0.0.1]
        ["127.0.0.2/32"]: []
          nodePortAddresses: node ports are served on 127.0.0.1 and ::1, and on no other loopback address: list localhost
    "#]]
    .assert_eq(&text);
}

// KEP-6032, semantics D2
#[test]
fn listeners_on_localhost_connect_where_the_rules_select_for_this_node() {
    let local = |field: &str| service(json!({"spec": {field: "Local"}}));
    let mut elsewhere = slice("web");
    elsewhere["endpoints"].as_array_mut().expect("a list").remove(0);
    let mut none = slice("web");
    none["endpoints"] = json!([]);
    let mut text = String::new();
    for (what, objects, words) in [
        ("primary", vec![service(json!({})), slice("web")], &["primary", "localhost"][..]),
        (
            "external Local",
            vec![local("externalTrafficPolicy"), elsewhere.clone()],
            &["primary", "localhost"],
        ),
        ("no endpoints", vec![service(json!({})), none], &["primary", "localhost"]),
        ("localhost alone", vec![service(json!({})), slice("web")], &["localhost"]),
        ("internal Local", vec![local("internalTrafficPolicy"), slice("web")], &["localhost"]),
    ] {
        let config = config(&on_localhost(words));
        let (table, _) = table(&snapshot(&objects), &config);
        let key = ServiceKey::new(&"shop".into(), &"web".into());
        let (ports, notices) = localhost_node_ports(&key, &table, &config);
        text += &format!("{what}\n");
        for LocalhostNodePort { listen, connect, port } in ports {
            text += &format!("  {listen} -> {connect} ({port})\n");
        }
        notices.iter().for_each(|notice| text += &format!("  {}\n", notice.message));
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let packet = packet(protocol, "127.0.0.1:40000", "127.0.0.1:30080");
            assert_eq!(table.decide(&packet).verdict, PacketVerdict::Untouched);
            let why = explain_localhost_node_port(&packet, &table, &config);
            why.iter().for_each(|why| text += &format!("  trace: {why}\n"));
        }
    }
    expect![[r#"
        primary
          127.0.0.1:30080 -> 198.51.100.1:30080 (shop/web:http)
          trace: the node proxy listens on 127.0.0.1:30080 for Service shop/web:http, and connects to 198.51.100.1:30080 as a client on this node: trace that packet for the endpoints
        external Local
          127.0.0.1:30080 -> 198.51.100.1:30080 (shop/web:http)
          trace: the node proxy listens on 127.0.0.1:30080 for Service shop/web:http, and connects to 198.51.100.1:30080 as a client on this node: trace that packet for the endpoints
        no endpoints
          trace: 30080 is a node port of Service shop/web:http, which has no endpoint for this node: the node proxy does not listen, the connection is refused
        localhost alone
          127.0.0.1:30080 -> 10.96.0.10:80 (shop/web:http)
          trace: the node proxy listens on 127.0.0.1:30080 for Service shop/web:http, and connects to 10.96.0.10:80 as a client on this node: trace that packet for the endpoints
        internal Local
          spec.ports[].nodePort: 127.0.0.1:30080 is not served: internalTrafficPolicy is Local; add primary to nodePortAddresses
          trace: 30080 is a node port of Service shop/web:http; the node proxy does not listen: internalTrafficPolicy is Local; add primary to nodePortAddresses
    "#]].assert_eq(&text);
}

#[test]
fn settings_that_cannot_be_used_are_named_and_the_default_stands() {
    let settings = ProxySettings {
        bind_address: "nowhere".into(),
        cluster_cidr: "10.1.0.0/16,oops,fd00::/64,10.2.0.0/16".into(),
        detect_local_mode: "Guess".into(),
        masquerade_bit: Some(32),
        ..ProxySettings::without_flags()
    };
    let (config, notices) = NodeConfig::new(&settings, &node("here", &[]), &[], &[]);
    assert_eq!(config.rules.mark(), 0x4000);
    assert_eq!(config.rules.detect_local.range(Family::V4), "10.1.0.0/16".parse().ok());
    assert_eq!(config.rules.detect_local.range(Family::V6), "fd00::/64".parse().ok());
    let fields: Vec<&str> = notices.iter().map(|n| n.message.split(':').next().expect("a field")).collect();
    assert_eq!(fields, ["bindAddress", "detectLocalMode", "clusterCIDR", "nftables.masqueradeBit"]);
}

#[test]
fn external_ips_and_service_cidrs_follow_their_gates() {
    let gates = |text: &str| NodeGates::read(&crate::feature_gates::parse_list(text).unwrap()).gates;
    let external = service(json!({"spec": {"externalIPs": ["203.0.113.77"]}}));
    let packets = [("10.1.0.9:1", "203.0.113.77:80"), ("10.1.0.9:1", "10.96.0.99:80")];
    check(
        &[external.clone(), slice("web")],
        &settings(),
        &packets,
        expect![[r#"
        10.1.0.9:1 -> 203.0.113.77:80: DNAT 10.1.0.1:8080 10.1.1.1:8080 masquerade
        10.1.0.9:1 -> 10.96.0.99:80: DROP 
        Service shop/web: DeprecatedExternalIPs: spec.externalIPs works, but is deprecated since Kubernetes 1.36: use type LoadBalancer or a Gateway
    "#]],
    );
    let gates = gates("AllowServiceExternalIPs=false,MultiCIDRServiceAllocator=false");
    check(
        &[external, slice("web")],
        &ProxySettings { gates, ..settings() },
        &packets,
        expect![[r#"
        10.1.0.9:1 -> 203.0.113.77:80: UNTOUCHED 
        10.1.0.9:1 -> 10.96.0.99:80: UNTOUCHED 
    "#]],
    );
}

/// A tenant's ports below 1024 are those of the machine's own daemons.
#[test]
fn node_ports_outside_of_the_range_are_neither_forwarded_nor_listened_on() {
    let spec = json!({"ports": [{"name": "http", "port": 80, "nodePort": 22}],
        "externalTrafficPolicy": "Local", "healthCheckNodePort": 22});
    let objects = [service(json!({"spec": spec})), slice("web")];
    assert_eq!(checked(&objects, "here"), None);
    check(
        &objects,
        &settings(),
        &[("203.0.113.2:1", "198.51.100.1:22"), ("203.0.113.2:1", "192.0.2.1:80")],
        expect![[r#"
            203.0.113.2:1 -> 198.51.100.1:22: UNTOUCHED 
            203.0.113.2:1 -> 192.0.2.1:80: DNAT 10.1.0.1:8080
            Service shop/web: PortOutOfRange: spec.ports[].nodePort: port 22 is outside of 1024-65535, so this node does not use it; allow it with --service-node-port-range of the node proxy
            Service shop/web: PortOutOfRange: spec.healthCheckNodePort: port 22 is outside of 1024-65535, so this node does not use it; allow it with --service-node-port-range of the node proxy
        "#]],
    );
    let node_port_range = "1-65535".parse().expect("a range");
    let (table, notices) =
        table(&snapshot(&objects), &config(&ProxySettings { node_port_range, ..settings() }));
    let decision = table.decide(&packet(Protocol::Tcp, "203.0.113.2:1", "198.51.100.1:22"));
    assert_eq!((shown(&decision)["verdict"].as_str(), notices.len()), (Some("DNAT"), 0));
}

/// The API server refuses such addresses: on a node they would be its own daemons, or every machine of its link.
#[test]
fn endpoints_that_no_other_node_can_reach_get_no_traffic() {
    let mut slice = slice("web");
    slice["endpoints"] = json!([
        {"addresses": ["10.1.0.1"]}, {"addresses": ["127.0.0.1"]}, {"addresses": ["169.254.169.254"]},
        {"addresses": ["224.0.0.1"]}, {"addresses": ["0.0.0.0"]},
    ]);
    let packets = [("203.0.113.2:1", "192.0.2.1:80")];
    check(
        &[service(json!({})), slice.clone()],
        &settings(),
        &packets,
        expect![[r#"
            203.0.113.2:1 -> 192.0.2.1:80: DNAT 10.1.0.1:8080 masquerade
            EndpointSlice shop/web-1: EndpointAddressRefused: endpoints[1].addresses: 127.0.0.1 is a loopback address (127.0.0.0/8, ::1): no traffic is sent to it; use an address that other nodes can reach (3 more)
        "#]],
    );
    slice["endpoints"] = json!([{"addresses": ["127.0.0.1"]}]);
    let (table, _) = table(&snapshot(&[service(json!({})), slice]), &config(&settings()));
    let decision = table.decide(&packet(Protocol::Tcp, packets[0].0, packets[0].1));
    assert_eq!(shown(&decision)["verdict"], "REJECT");
}

/// The same Service in both families, with one pod here.
fn dual_stack() -> Vec<Value> {
    let service = service(json!({"spec": {"clusterIPs": ["10.96.0.10", "fd00:96::10"],
        "externalTrafficPolicy": "Local", "healthCheckNodePort": 32_000}}));
    let mut v6 = slice("web");
    v6["metadata"]["name"] = "web-v6".into();
    v6["addressType"] = "IPv6".into();
    v6["endpoints"] = json!([{"addresses": ["fd00:1::1"], "nodeName": "here"}]);
    vec![service, slice("web"), v6]
}

fn checked(objects: &[Value], node: &str) -> Option<HealthCheck> {
    let snapshot = snapshot(objects);
    let (service, slices) = snapshot.services().next().unwrap();
    let config = NodeConfig { name: Name::new(node), ..config(&settings()) };
    health_check(service, slices, &config)
}

#[test]
fn a_health_check_counts_each_family_for_itself() {
    let mut objects = dual_stack();
    let of = |v4, v6| Some(HealthCheck { port: 32_000, v4, v6 });
    // One pod with an address of each family is one endpoint in each.
    assert_eq!(checked(&objects, "here"), of(Some(1), Some(1)));
    // A node with an IPv6 endpoint only has none for IPv4.
    objects[2]["endpoints"][0]["nodeName"] = "six".into();
    assert_eq!(checked(&objects, "six"), of(Some(0), Some(1)));
    assert_eq!(checked(&objects, "here"), of(Some(1), Some(0)));
    // Without a cluster IP of the family there is no server for it.
    objects[0]["spec"]["clusterIPs"] = json!(["10.96.0.10"]);
    assert_eq!(checked(&objects, "six"), of(Some(0), None));
    objects[0]["spec"]["externalTrafficPolicy"] = "Cluster".into();
    assert_eq!(checked(&objects, "here"), None);
}

#[test]
fn flows_to_a_frontend_that_another_service_holds_are_left_alone() {
    let named = |name: &str, created: &str, ip: &str| {
        let mut service = service(json!({"metadata": {"name": name, "creationTimestamp": created},
            "spec": {"clusterIP": ip, "clusterIPs": [ip], "externalIPs": ["203.0.113.77"],
                "ports": [{"name": "http", "port": 80, "protocol": "UDP"}]}}));
        service["status"] = json!({});
        service
    };
    let mut endpoints = slice("younger");
    endpoints["ports"][0]["protocol"] = "UDP".into();
    let snapshot = snapshot(&[
        named("older", "2026-01-01T00:00:00Z", "10.96.0.1"),
        named("younger", "2026-01-02T00:00:00Z", "10.96.0.2"),
        endpoints,
    ]);
    let forwarder = Forwarder::of(&snapshot, config(&settings()));
    let frontends = |name: &str| {
        let udp = forwarder.udp(&snapshot, &ServiceKey::new(&"shop".into(), &name.into()), &[]);
        let listed = udp.iter().flat_map(|service| &service.frontends);
        listed.map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(frontends("older"), ["10.96.0.1:80", "203.0.113.77:80"]);
    assert_eq!(frontends("younger"), ["10.96.0.2:80"]);
}

#[test]
fn nodes_of_a_zone_round_shares_differently() {
    let rounding = |name: &str| NodeConfig::without_flags(name.into()).rounding();
    let mut spread: Vec<u32> = (0..100).map(|i| rounding(&format!("node-{i}"))).collect();
    assert_eq!(spread[7], rounding("node-7"), "it is a function of the name");
    spread.sort();
    let gaps = spread.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(
        gaps.max().unwrap() < u32::MAX / 10,
        "over a hundred nodes no tenth of a slot is left out: {spread:?}"
    );
}

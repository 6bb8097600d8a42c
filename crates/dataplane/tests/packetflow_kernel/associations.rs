//! SCTP through the node, IPv4 and IPv6: hand-made INITs to cluster IPs and node ports, and who answers them.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use dataplane::conntrack::{ConntrackFilter, ConntrackSocket, ConntrackTable};
use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::apply::{initial_load_groups, load};
use dataplane::nftables::render::Renderer;
use model::forward::{FirstPacket, PacketVerdict};
use model::{Family, ForwardingTable, Protocol};
use plan::forward::{ProxySettings, table};
use serde_json::{Value, json};

use super::addresses::endpoint;
use super::connect::{Hope, Seen};
use super::random::check;
use super::sctp;
use super::site::Site;
use super::world::World;

/// The pods behind the Service; the first three run on this node.
const PODS: [u8; 5] = [1, 2, 3, 5, 7];
/// Five endpoints are all met long before.
const MOST_TRIES: usize = 500;

fn service(name: &str, ips: [&str; 2]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "ns"},
        "spec": {
            "type": "NodePort", "clusterIP": ips[0], "clusterIPs": ips,
            "ports": [{"name": "s1", "protocol": "SCTP", "port": 3868, "nodePort": if name == "calls" { 30_000 } else { 30_001 }}],
        },
    })
}

fn slice(v6: bool) -> Value {
    let family = if v6 { "IPv6" } else { "IPv4" };
    let endpoint = |pod: &u8| json!({"addresses": [endpoint(v6, *pod)], "nodeName": if *pod <= 3 { "here" } else { "there" }});
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
        "metadata": {
            "name": format!("calls-{}", family.to_lowercase()), "namespace": "ns",
            "labels": {"kubernetes.io/service-name": "calls"},
        },
        "ports": [{"name": "s1", "protocol": "SCTP", "port": 8080}],
        "endpoints": PODS.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

/// Two Services: `calls` with five pods, `empty` without any.
fn node() -> ForwardingTable {
    let settings =
        ProxySettings { cluster_cidr: "10.1.0.0/16,fd00:1::/64".into(), ..ProxySettings::without_flags() };
    let config = World { settings, zone: None, services: Vec::new() }.config();
    let objects = [
        service("calls", ["10.96.0.1", "fd00:96::1"]),
        service("empty", ["10.96.0.2", "fd00:96::2"]),
        slice(false),
        slice(true),
    ];
    let snapshot = fixtures::snapshot(&objects);
    table(&snapshot, &config).0
}

fn packet(site: &Site, from: &str, to: &str) -> FirstPacket {
    let src = SocketAddr::new(from.parse().unwrap(), 0);
    let iif = site.home(src.ip()).1;
    FirstPacket { src, dst: to.parse().unwrap(), protocol: Protocol::Sctp, iif }
}

/// Clients of every kind and where they call.
const CALLS: [[&str; 2]; 10] = [
    // A pod that is no endpoint, one that is, somebody from outside, the node itself; and from outside by node port.
    ["10.1.0.9", "10.96.0.1:3868"],
    ["10.1.0.1", "10.96.0.1:3868"],
    ["203.0.113.2", "10.96.0.1:3868"],
    ["198.51.100.1", "10.96.0.1:3868"],
    ["203.0.113.2", "198.51.100.1:30000"],
    ["fd00:1::9", "[fd00:96::1]:3868"],
    ["fd00:1::1", "[fd00:96::1]:3868"],
    ["2001:db8:203::2", "[fd00:96::1]:3868"],
    ["2001:db8:51::1", "[fd00:96::1]:3868"],
    ["2001:db8:203::2", "[2001:db8:51::1]:30000"],
];

/// An INIT reaches one of the endpoints at its own address and port, with the source that was decided; its answer
/// comes back from the address that was called, and the association stays with that endpoint.
#[test]
fn associations_of_sctp_are_sent_to_every_endpoint_and_answered() {
    toolbox::in_own_namespaces!();
    let (site, table) = (Site::new(), node());
    load(&mut NetlinkSocket::open().unwrap(), initial_load_groups(&Renderer::start(&table).1)).unwrap();
    let mut masqueraded = BTreeSet::new();
    for [from, to] in CALLS {
        let packet = packet(&site, from, to);
        let decision = table.decide(&packet);
        let mut missing: BTreeSet<SocketAddr> = PODS
            .iter()
            .map(|pod| SocketAddr::new(endpoint(packet.dst.is_ipv6(), *pod).parse().unwrap(), 8080))
            .collect();
        let mut tries = 0;
        while !missing.is_empty() {
            let seen = site.send(&packet, Hope::Answer);
            check(&decision, &packet, &seen);
            let Seen::Answered(endpoint, _) = seen else { panic!("{packet:?}: {seen:?}") };
            missing.remove(&endpoint);
            tries += 1;
            assert!(tries < MOST_TRIES, "{packet:?}: nothing reached {missing:?}");
        }
        println!(
            "{from} -> {to}: all endpoints within {tries} associations, masquerade {}",
            decision.masquerade
        );
        masqueraded.insert(decision.masquerade);
    }
    assert_eq!(masqueraded.len(), 2, "both with and without masquerading");
    for (family, own) in [(Family::V4, "10.96.0.1"), (Family::V6, "fd00:96::1")] {
        assert!(tracked(family, own) >= PODS.len(), "connection tracking knows the associations");
    }
}

/// How many associations to an address were followed to an endpoint.
fn tracked(family: Family, dst: &str) -> usize {
    let filter =
        ConntrackFilter { protocol: 132, family, dst: Some(dst.parse().unwrap()), dport: Some(3868) };
    let mut count = 0;
    ConntrackSocket::open()
        .unwrap()
        .dump(&filter, &mut |flow| count += usize::from(flow.reply_src.port() == 8080))
        .unwrap();
    count
}

/// An unknown port of a cluster IP and a Service without endpoints answer with ICMP port unreachable, for which a
/// socket says "connection refused"; an address without a Service is silent, and so is a damaged packet.
#[test]
fn sctp_that_nobody_serves_is_refused() {
    toolbox::in_own_namespaces!();
    let (site, table) = (Site::new(), node());
    load(&mut NetlinkSocket::open().unwrap(), initial_load_groups(&Renderer::start(&table).1)).unwrap();
    let clients =
        [["10.1.0.9", "203.0.113.2", "198.51.100.1"], ["fd00:1::9", "2001:db8:203::2", "2001:db8:51::1"]];
    let unserved = [
        ["10.96.0.1:3869", "10.96.0.2:3868", "198.51.100.1:30001"],
        ["[fd00:96::1]:3869", "[fd00:96::2]:3868", "[2001:db8:51::1]:30001"],
    ];
    for (clients, unserved) in clients.iter().zip(unserved) {
        for (from, to) in clients.iter().flat_map(|from| unserved.map(|to| (from, to))) {
            let packet = packet(&site, from, to);
            assert_eq!(table.decide(&packet).verdict, PacketVerdict::Reject, "{packet:?}");
            assert_eq!(site.send(&packet, Hope::Answer), Seen::Refused, "{packet:?}");
        }
    }
    for (from, to) in [("10.1.0.9", "10.96.0.77:3868"), ("fd00:1::9", "[fd00:96::77]:3868")] {
        let packet = packet(&site, from, to);
        assert_eq!(table.decide(&packet).verdict, PacketVerdict::Drop, "{packet:?}");
        assert_eq!(site.send(&packet, Hope::Silence), Seen::Silence, "{packet:?}");
    }
    for (from, to) in [("10.1.0.9", "10.96.0.1:3868"), ("fd00:1::9", "[fd00:96::1]:3868")] {
        let packet = packet(&site, from, to);
        assert_eq!(site.send_by(&packet, sctp::send_damaged), Seen::Silence, "{packet:?}");
    }
}

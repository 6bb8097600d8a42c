//! Random clusters with real traffic: every pod has a namespace of its own, everybody else shares one.

use std::net::SocketAddr;

use dataplane::backend::NodeBackend;
use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::apply::{apply, initial_load_groups, load};
use dataplane::nftables::diff::diff;
use dataplane::nftables::ir::Ruleset;
use dataplane::nftables::render::{RenderedChange, Renderer};
use model::forward::{FirstPacket, ForwardingDecision, PacketVerdict};
use model::{ForwardingTable, Protocol, ServiceKey};
use plan::forward::{NodeConfig, table};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::json;

use super::addresses::{PODS, endpoint};
use super::connect::{Hope, Seen};
use super::site::Site;
use super::world;

const CLUSTERS: usize = 8;
const PACKETS: usize = 10;

/// Replaces what the kernel holds.
fn program(kernel: &mut NetlinkSocket, before: &mut Ruleset, new: Ruleset) {
    if before.tables.is_empty() {
        load(kernel, initial_load_groups(&new)).unwrap();
    } else {
        let difference = diff(before, &new);
        apply(kernel, &difference.now).unwrap();
        apply(kernel, &difference.later).unwrap();
    }
    *before = new;
}

pub(crate) fn check(decision: &ForwardingDecision<'_>, packet: &FirstPacket, seen: &Seen) {
    let why = format!("{packet:?} {seen:?}\n{decision:#?}");
    match (&decision.verdict, seen) {
        (PacketVerdict::Reject, Seen::Refused) | (PacketVerdict::Drop, Seen::Silence) => {}
        (PacketVerdict::Send(shares), Seen::Answered(endpoint, client)) => {
            assert!(shares.iter().any(|(address, _)| address == endpoint), "{why}");
            let is_itself = endpoint.ip() == packet.src.ip();
            assert_eq!(*client != packet.src.ip(), decision.masquerade || is_itself, "{why}");
        }
        _ => panic!("{why}"),
    }
}

#[test]
fn packets_of_random_clusters_fare_as_the_table_decides() {
    toolbox::in_own_namespaces!();
    let site = Site::new();
    let mut kernel = NetlinkSocket::open().unwrap();
    let mut before = Ruleset::default();
    let mut runner = TestRunner::deterministic();
    let mut sent = 0;
    for _ in 0..CLUSTERS {
        let world = world::world().new_tree(&mut runner).unwrap().current();
        let (table, _) = table(&world.snapshot(), &world.config());
        program(&mut kernel, &mut before, Renderer::start(&table).1);
        let packets = || {
            let mut packet = world::packet().new_tree(&mut runner).unwrap().current();
            packet.iif = site.home(packet.src.ip()).1;
            packet
        };
        let mut drops = 0;
        // What is no concern of ours has nobody to answer it. Silence takes long to hear: two of it are enough.
        let mut is_telling = |packet: &FirstPacket| {
            let verdict = table.decide(packet).verdict;
            drops += usize::from(verdict == PacketVerdict::Drop);
            let heard = verdict != PacketVerdict::Untouched && (verdict != PacketVerdict::Drop || drops <= 2);
            // One of those next door has a load balancer's address itself: its neighbours do not reach the node.
            let at_home = ["192.0.2.1", "2001:db8:2::1"].contains(&packet.dst.ip().to_string().as_str())
                && packet.iif.as_ref().is_some_and(|iif| *iif == "cbr0");
            heard && !at_home
        };
        let many = std::iter::repeat_with(packets).take(PACKETS * 100);
        let chosen: Vec<FirstPacket> = many.filter(|packet| is_telling(packet)).take(PACKETS).collect();
        for packet in chosen {
            let decision = table.decide(&packet);
            let hope = if decision.verdict == PacketVerdict::Drop { Hope::Silence } else { Hope::Answer };
            check(&decision, &packet, &site.send(&packet, hope));
            sent += 1;
        }
    }
    assert!(sent > CLUSTERS * PACKETS / 2, "{sent} packets say too little");
}

/// A Service with session affinity and these pods, reached by cluster IP and by node port.
fn sticky(pods: &[u8]) -> ForwardingTable {
    let endpoints: Vec<_> = pods.iter().map(|i| json!({"addresses": [endpoint(false, *i)]})).collect();
    let objects = [
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "ns"},
            "spec": {
                "type": "NodePort", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "sessionAffinity": "ClientIP",
                "ports": [{"port": 80, "nodePort": 30000}],
            },
        }),
        fixtures::slice("ns", "web-1", "web", json!({"name": "", "port": 8080}), &endpoints),
    ];
    let snapshot = fixtures::snapshot(&objects);
    table(&snapshot, &NodeConfig::without_flags("".into())).0
}

#[test]
fn clients_with_affinity_keep_their_endpoint_until_it_goes() {
    toolbox::in_own_namespaces!();
    let site = Site::new();
    let mut kernel = NetlinkSocket::open().unwrap();
    let all: Vec<u8> = PODS.collect();
    let full = sticky(&all);
    let (mut renderer, program) = Renderer::start(&full);
    load(&mut kernel, initial_load_groups(&program)).unwrap();
    let packet = |dst: &str| FirstPacket {
        src: "203.0.113.2:0".parse().unwrap(),
        dst: dst.parse().unwrap(),
        protocol: Protocol::Tcp,
        iif: None,
    };
    // The node port leads to the same endpoint as the cluster IP (semantics D5: any frontend).
    let destinations = ["10.96.0.1:80", "198.51.100.1:30000"];
    let chosen = |site: &Site| {
        let seen: Vec<SocketAddr> = (0..20)
            .map(|i| match site.send(&packet(destinations[i % 2]), Hope::Answer) {
                Seen::Answered(endpoint, _) => endpoint,
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(seen.iter().all(|endpoint| *endpoint == seen[0]), "{seen:?}");
        seen[0]
    };
    let first = chosen(&site);
    let gone = all.iter().copied().find(|i| endpoint(false, *i) == first.ip().to_string()).unwrap();
    let rest: Vec<u8> = all.iter().copied().filter(|i| *i != gone).collect();
    let fewer = sticky(&rest);
    let key = ServiceKey::new(&"ns".into(), &"web".into());
    let RenderedChange::Changes(changes) = renderer.change(&[(full.frontends(&key), fewer.frontends(&key))])
    else {
        panic!("everything fits")
    };
    apply(&mut kernel, &changes).unwrap();
    apply(&mut kernel, &renderer.maintenance()).unwrap();
    let second = chosen(&site);
    assert_ne!(first, second);
    // It comes back, but clients stay where they are now.
    let RenderedChange::Changes(changes) = renderer.change(&[(fewer.frontends(&key), full.frontends(&key))])
    else {
        panic!("everything fits")
    };
    apply(&mut kernel, &changes).unwrap();
    assert_eq!(chosen(&site), second);
}

/// Two Services with session affinity, one of TCP and one of UDP, with the same pods.
fn two_tenants() -> ForwardingTable {
    let pods: Vec<_> = PODS.map(|i| json!({"addresses": [endpoint(false, i)]})).collect();
    let mut snapshot = model::Snapshot::default();
    for (name, ip, protocol) in [("quiet", "10.96.0.1", "TCP"), ("flooded", "10.96.0.2", "UDP")] {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "ns"},
            "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "sessionAffinity": "ClientIP",
                "ports": [{"port": 80, "protocol": protocol}]},
        });
        let slice =
            fixtures::slice("ns", name, name, json!({"name": "", "port": 8080, "protocol": protocol}), &pods);
        for object in [service, slice] {
            snapshot.apply(fixtures::object(&object));
        }
    }
    table(&snapshot, &NodeConfig::without_flags("".into())).0
}

/// Sources that never were: each sends one datagram.
const FORGED: u32 = 6_000;
/// What a Service port may store.
const SHARE: usize = 4_096;

fn stored_clients() -> usize {
    super::namespace::run("nft", &["list", "map", "ip", "zoneward", "affinity"]).matches(" : 0x").count()
}

#[test]
fn forged_sources_take_the_share_of_their_service_alone() {
    toolbox::in_own_namespaces!();
    let site = Site::new();
    let mut backend = dataplane::nftables::NftablesBackend::open().unwrap();
    let full = two_tenants();
    backend.load(&full).unwrap();
    let endpoint_of = |dst: &str, protocol| {
        let packet = FirstPacket {
            src: "203.0.113.2:0".parse().unwrap(),
            dst: dst.parse().unwrap(),
            protocol,
            iif: None,
        };
        match site.send(&packet, Hope::Answer) {
            Seen::Answered(endpoint, _) => endpoint,
            other => panic!("{dst}: {other:?}"),
        }
    };
    let quiet = endpoint_of("10.96.0.1:80", Protocol::Tcp);
    site.others.within(|| {
        super::namespace::run("ip", &["route", "add", "local", "100.64.0.0/10", "dev", "lo"]);
        for number in 0..FORGED {
            let source = std::net::Ipv4Addr::from(0x6440_0000 + number * 7);
            let socket = std::net::UdpSocket::bind((source, 0)).unwrap();
            socket.send_to(b"?", "10.96.0.2:80").unwrap();
        }
    });
    let stored = stored_clients();
    assert!(stored > SHARE / 2, "{stored}: the flood arrived");
    assert!(stored <= SHARE + 1, "{stored}: more than the share of one Service port");
    for _ in 0..5 {
        assert_eq!(endpoint_of("10.96.0.1:80", Protocol::Tcp), quiet, "a client of the other Service");
    }
    // The flooded Service keeps its clients, too, with their entries or with those that they share.
    let flooded = endpoint_of("10.96.0.2:80", Protocol::Udp);
    for _ in 0..5 {
        assert_eq!(endpoint_of("10.96.0.2:80", Protocol::Udp), flooded, "a client of the flooded Service");
    }
    let key = ServiceKey::new(&"ns".into(), &"flooded".into());
    let mut rest = full.clone();
    rest.replace(&key, Vec::new());
    backend.change(&rest, &[(full.frontends(&key), &[])]).unwrap();
    while backend.maintain().unwrap() {}
    assert_eq!(stored_clients(), 1, "entries end with their Service");
    assert_eq!(endpoint_of("10.96.0.1:80", Protocol::Tcp), quiet);
}

//! The accelerator on the fake kernel: restarts, refusals, and changes that end half way.

use std::slice::from_ref;
use std::sync::Arc;

use model::forward::{
    EndpointSet, ForwardedEndpoint, ForwardedPort, FrontendAction, FrontendKind, LocalTrafficDetector,
    Masquerade,
};
use model::{Protocol, ServiceKey, TrafficPolicy};

use super::*;
use crate::accelerator::fake::FakeAccelerator;
use crate::accelerator::{ConnectOutcome, ConnectingSocket, LeftToRules, NotAccelerated, not_accelerated};

const PERIOD: Duration = Duration::from_secs(30);

fn port(name: &str, number: u16, endpoints: &[(u8, bool)]) -> ForwardedPort {
    let endpoint = |(index, is_local): &(u8, bool)| {
        ForwardedEndpoint::new(SocketAddr::from(([10, 1, 0, *index], 8080)), 1.0, *is_local)
    };
    ForwardedPort {
        service: ServiceKey::new(&"ns".into(), &name.into()),
        name: "http".into(),
        cluster_ip: [10, 96, 0, 1].into(),
        protocol: Protocol::Tcp,
        number,
        affinity_seconds: None,
        health_check_port: None,
        cluster: EndpointSet { endpoints: endpoints.iter().map(endpoint).collect(), rounding: 0 },
        local: EndpointSet::default(),
    }
}

fn frontend(port: ForwardedPort) -> Frontend {
    Frontend {
        address: port.cluster_address(),
        kind: FrontendKind::ClusterIp,
        outside: FrontendAction::Send(TrafficPolicy::Cluster),
        inside: None,
        masquerade: Masquerade::NotPods,
        source_ranges: None,
        port: Arc::new(port),
    }
}

fn table(frontends: &[Frontend]) -> ForwardingTable {
    let mut table = ForwardingTable::default();
    for frontend in frontends {
        table.replace(&frontend.port.service.clone(), vec![frontend.clone()]);
    }
    table
}

fn pod(to: &Frontend) -> ConnectingSocket {
    let to = SocketAddr::new(to.port.cluster_ip, to.port.number);
    ConnectingSocket { to, is_of_node: false, is_bound: false }
}

fn endpoints(kernel: &FakeAccelerator, socket: &ConnectingSocket) -> Vec<u8> {
    match kernel.connect(socket) {
        Some(ConnectOutcome::Rewritten(shares)) => {
            let last = |(address, _): &(SocketAddr, f64)| match address.ip() {
                std::net::IpAddr::V4(ip) => ip.octets()[3],
                std::net::IpAddr::V6(_) => 0,
            };
            shares.iter().map(last).collect()
        }
        _ => Vec::new(),
    }
}

fn left(kernel: &FakeAccelerator, socket: &ConnectingSocket) -> Option<LeftToRules> {
    match kernel.connect(socket) {
        Some(ConnectOutcome::Left(reason)) => Some(reason),
        _ => None,
    }
}

fn accelerator(kernel: &FakeAccelerator) -> Accelerator {
    Accelerator::new(Box::new(kernel.clone()), AccelerateScope::AllNamespaces, PERIOD)
}

#[test]
fn sockets_are_connected_to_the_endpoints_of_the_table() {
    let kernel = FakeAccelerator::default();
    let web = frontend(port("web", 80, &[(1, false), (2, false)]));
    let mut running = accelerator(&kernel);
    running.load(&table(from_ref(&web))).expect("it loads");
    assert_eq!(endpoints(&kernel, &pod(&web)), [1, 2]);
    let changed = frontend(port("web", 80, &[(2, false), (3, false)]));
    let new = table(from_ref(&changed));
    running.change(&new, &[(from_ref(&web), from_ref(&changed))]).expect("it changes");
    assert_eq!(endpoints(&kernel, &pod(&web)), [2, 3]);
    running.change(&table(&[]), &[(&[changed], &[])]).expect("it changes");
    assert_eq!(left(&kernel, &pod(&web)), Some(LeftToRules::NoEntry));
    assert_eq!(running.entries().expect("entries").chunks.len(), 0, "old slots are gone");
}

#[test]
fn an_address_may_go_from_one_service_to_another_in_one_change() {
    let kernel = FakeAccelerator::default();
    let (one, other) = (frontend(port("one", 80, &[(1, false)])), frontend(port("other", 80, &[(2, false)])));
    let mut running = accelerator(&kernel);
    running.load(&table(from_ref(&one))).expect("it loads");
    let new = table(from_ref(&other));
    let (old, added) = ([one.clone()], [other]);
    running.change(&new, &[(&[], &added), (&old, &[])]).expect("it changes");
    assert_eq!(endpoints(&kernel, &pod(&one)), [2]);
}

#[test]
fn a_process_that_ends_within_a_change_leaves_old_or_new_endpoints_and_the_next_repairs() {
    let (old, new) = (port("web", 80, &[(1, false)]), port("web", 80, &[(2, false), (3, false)]));
    let (old, new) = (frontend(old), frontend(new));
    for after in 0..4 {
        let kernel = FakeAccelerator::default();
        let mut running = accelerator(&kernel);
        running.load(&table(from_ref(&old))).expect("it loads");
        kernel.fail_after(Some(after));
        let changed = table(from_ref(&new));
        let _ = running.change(&changed, &[(from_ref(&old), from_ref(&new))]);
        let seen = endpoints(&kernel, &pod(&new));
        assert!(seen == [1] || seen == [2, 3], "after {after}: {seen:?}");
        kernel.fail_after(None);
        let mut next = accelerator(&kernel);
        next.load(&changed).expect("it loads");
        assert_eq!(endpoints(&kernel, &pod(&new)), [2, 3]);
        assert_eq!(next.entries().expect("entries").chunks.len(), 1, "nothing is left behind");
    }
}

#[test]
fn entries_that_nothing_refreshes_expire() {
    let kernel = FakeAccelerator::default();
    let web = frontend(port("web", 80, &[(1, false)]));
    let all = table(from_ref(&web));
    let mut running = accelerator(&kernel);
    running.load(&all).expect("it loads");
    let nanoseconds = |period: Duration| u64::try_from(period.as_nanos()).expect("small");
    kernel.advance(nanoseconds(PERIOD));
    running.refresh(&all).expect("it refreshes");
    kernel.advance(nanoseconds(2 * PERIOD));
    assert_eq!(endpoints(&kernel, &pod(&web)), [1]);
    kernel.advance(1);
    assert_eq!(left(&kernel, &pod(&web)), Some(LeftToRules::Expired));
}

#[test]
fn pods_are_left_to_the_rules_where_they_may_be_their_own_endpoint() {
    let kernel = FakeAccelerator::default();
    let web = frontend(port("web", 80, &[(1, true), (2, false)]));
    let mut all = table(from_ref(&web));
    accelerator(&kernel).load(&all).expect("it loads");
    assert_eq!(left(&kernel, &pod(&web)), Some(LeftToRules::LocalEndpoint));
    let of_node = ConnectingSocket { is_of_node: true, ..pod(&web) };
    assert_eq!(endpoints(&kernel, &of_node), [1, 2], "the rules do not masquerade without detectLocal");
    all.node.detect_local = LocalTrafficDetector::InterfacePrefix("veth".into());
    accelerator(&kernel).load(&all).expect("it loads");
    assert_eq!(left(&kernel, &of_node), Some(LeftToRules::NoEntry), "no socket would use an entry");
    let reason = not_accelerated(Some(&web), &all.node, AccelerateScope::AllNamespaces);
    assert_eq!(reason, Some(NotAccelerated::LocalEndpoint));
}

#[test]
fn only_sockets_of_the_node_are_taken_where_that_is_wanted() {
    let kernel = FakeAccelerator::default();
    let web = frontend(port("web", 80, &[(1, false)]));
    let mut all = table(from_ref(&web));
    all.node.detect_local = LocalTrafficDetector::InterfacePrefix("veth".into());
    let mut running = Accelerator::new(Box::new(kernel.clone()), AccelerateScope::NodeNamespace, PERIOD);
    running.load(&all).expect("it loads");
    assert_eq!(left(&kernel, &pod(&web)), Some(LeftToRules::NodeOnly));
    let of_node = ConnectingSocket { is_of_node: true, ..pod(&web) };
    assert_eq!(endpoints(&kernel, &of_node), [1]);
    let bound = ConnectingSocket { is_bound: true, ..of_node };
    assert_eq!(left(&kernel, &bound), Some(LeftToRules::Masqueraded), "its source address would stay");
}

#[test]
fn maps_grow_with_the_table() {
    let kernel = FakeAccelerator::default();
    let mut running = accelerator(&kernel);
    running.load(&table(&[])).expect("it loads");
    let many: Vec<Frontend> =
        (1..=5000).map(|i| frontend(port(&format!("s{i}"), i, &[(1, false)]))).collect();
    let all = table(&many);
    running.change(&all, &[(&[], &many)]).expect("it changes");
    assert_eq!(running.entries().expect("entries").frontends.len(), 5000);
}

#[test]
fn what_the_rules_must_do_has_no_entry() {
    let plain = || frontend(port("web", 80, &[(1, false)]));
    let reason = |frontend: &Frontend, masquerade_all| {
        let node = NodeRules { masquerade_all, ..NodeRules::default() };
        not_accelerated(Some(frontend), &node, AccelerateScope::AllNamespaces)
    };
    assert_eq!(reason(&plain(), false), None);
    assert_eq!(reason(&plain(), true), Some(NotAccelerated::MasqueradeAll));
    let mut sticky = port("web", 80, &[(1, false)]);
    sticky.affinity_seconds = Some(60);
    assert_eq!(reason(&frontend(sticky), false), Some(NotAccelerated::SessionAffinity));
    let mut udp = port("web", 80, &[(1, false)]);
    udp.protocol = Protocol::Udp;
    assert_eq!(reason(&frontend(udp), false), Some(NotAccelerated::NotTcp));
    let refused = Frontend { outside: FrontendAction::Reject, ..plain() };
    assert_eq!(reason(&refused, false), Some(NotAccelerated::NoEndpoint));
    let external = Frontend { kind: FrontendKind::ExternalIp, ..plain() };
    assert_eq!(reason(&external, false), Some(NotAccelerated::NoClusterIp));
}

#[test]
fn the_object_is_the_one_of_the_checksums() {
    let sums = include_str!("../../../bpf/accelerator.sha256");
    let source = include_bytes!("../../../bpf/accelerator.c");
    for (name, content) in [("accelerator.c", &source[..]), ("accelerator.o", crate::accelerator::OBJECT)] {
        let digest = ring::digest::digest(&ring::digest::SHA256, content);
        let text: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(sums.contains(&format!("{text}  {name}")), "{name} changed: run `cargo xtask bpf`");
    }
}

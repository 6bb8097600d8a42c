//! What schedulers choose, and what happens to connections over the life of a virtual server.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use dataplane::backend::{CleanupScope, NodeBackend};
use dataplane::conntrack::{AccountedEntry, ConntrackSocket};
use dataplane::ipvs::{
    IpvsBackend, IpvsChange, IpvsScheduler, IpvsSettings, IpvsSocket, VirtualServer, probe, server_counts,
};
use model::forward::FirstPacket;
use model::{Family, ForwardingTable, Protocol};

use super::connect::{Hope, Seen, open};
use super::machine::{Machine, change, listing};
use super::moves;
use super::service::{TestService, key, web};
use super::site::Site;

const CLIENT: &str = "203.0.113.2:0";
const CLUSTER_IP: &str = "10.96.0.1:80";

/// The endpoint that answers one connection.
fn ask(site: &Site, protocol: Protocol, dst: &str) -> SocketAddr {
    let packet = FirstPacket { src: CLIENT.parse().unwrap(), dst: dst.parse().unwrap(), protocol, iif: None };
    match site.send(&packet, Hope::Answer) {
        Seen::Answered(endpoint, _) => endpoint,
        other => panic!("{dst}: {other:?}\n{:#?}", listing()),
    }
}

/// Connections for each endpoint.
fn spread(site: &Site, connections: usize) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..connections {
        *counts.entry(ask(site, Protocol::Tcp, CLUSTER_IP).ip().to_string()).or_default() += 1;
    }
    counts
}

fn counts(spread: &BTreeMap<String, usize>) -> Vec<usize> {
    spread.values().copied().collect()
}

fn only_cluster_ip(pods: u8) -> TestService {
    TestService { pods, ports: false, ..TestService::default() }
}

fn sync(backend: &mut IpvsBackend, old: &ForwardingTable, new: &ForwardingTable) {
    backend.change(new, &[(old.frontends(&web()), new.frontends(&web()))]).unwrap();
}

/// A part of the test by its name.
type Step = (&'static str, fn(&Site, &Machine));

pub(crate) fn say(step: &str, start: std::time::Instant) {
    println!("  {:6.2} s {step}", start.elapsed().as_secs_f64());
}

pub(crate) fn schedulers_weights_and_lifetimes(site: &Site, machine: &Machine, start: std::time::Instant) {
    // The random clusters had other ranges.
    machine.backend().cleanup(CleanupScope::Zoneward, false).unwrap();
    let steps: [Step; 11] = [
        ("probe", |_, _| probe(&mut IpvsSocket::open().unwrap(), &IpvsScheduler::ALL).unwrap()),
        ("schedulers", schedulers),
        ("weights", weights),
        ("termination", termination),
        ("termination of UDP", termination_of_udp),
        ("affinity", affinity),
        ("node ports, load balancer IPs and counts", places_and_counts),
        ("restart", restart),
        ("counters of mode iptables", moves::nfacct_counts),
        ("changes of the mode under load", moves::change_the_mode_under_load),
        ("cleanup beside a foreign virtual server", cleanup),
    ];
    for (name, step) in steps {
        step(site, machine);
        say(name, start);
        // Each step starts with nothing: connections that have not ended are given up.
        let empty = ForwardingTable::new(only_cluster_ip(1).table().node);
        let mut backend = machine.backend();
        backend.load(&empty).unwrap();
        machine.pass(15 * 60);
        backend.reconcile(&empty).unwrap();
        let left = listing();
        assert!(left.iter().all(|line| !line.contains("0A60")), "{name}: {left:?}");
    }
}

fn schedulers(site: &Site, machine: &Machine) {
    let table = only_cluster_ip(3).table();
    for scheduler in IpvsScheduler::ALL {
        let settings = IpvsSettings { scheduler, ..IpvsSettings::default() };
        let mut backend = machine.backend_with(settings);
        backend.load(&table).unwrap();
        let held = listing();
        let line = format!("TCP 0A600001:0050 {}", scheduler.as_str());
        assert!(held.iter().any(|held| held.starts_with(&line)), "{held:?}");
        let spread = spread(site, 12);
        match scheduler {
            IpvsScheduler::Rr | IpvsScheduler::Wrr | IpvsScheduler::Lc | IpvsScheduler::Wlc => {
                assert_eq!(counts(&spread), [4, 4, 4], "{scheduler:?}");
            }
            // With mh-port the client's port counts.
            IpvsScheduler::Mh => assert!(spread.len() > 1, "{spread:?}"),
            // By destination, by client, or the first of idle servers.
            _ => assert_eq!(counts(&spread), [12], "{scheduler:?}"),
        }
        let empty = ForwardingTable::new(table.node.clone());
        backend.load(&empty).unwrap();
        machine.pass(15 * 60);
        backend.reconcile(&empty).unwrap();
    }
}

fn weights(site: &Site, machine: &Machine) {
    let shares = Some([0.8, 0.15, 0.05]);
    machine.backend().load(&TestService { weights: shares, ..only_cluster_ip(3) }.table()).unwrap();
    assert_eq!(counts(&spread(site, 32)), [26, 4, 2]);
}

fn echo(stream: &mut TcpStream, word: &[u8]) {
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(word).unwrap();
    let mut answer = vec![0; word.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, word);
}

/// A connection to the cluster IP that stays open.
fn hold(site: &Site) -> (SocketAddr, TcpStream) {
    site.others.within(|| open(CLUSTER_IP.parse().unwrap()).unwrap())
}

/// A table of two pods, and one without that which an open connection has.
fn without(endpoint: SocketAddr) -> ForwardingTable {
    let is_first = endpoint.ip().to_string() == "10.1.0.1";
    TestService { first: u8::from(is_first), ..only_cluster_ip(1) }.table()
}

fn termination(site: &Site, machine: &Machine) {
    let mut backend = machine.backend();
    let two = only_cluster_ip(2).table();
    backend.load(&two).unwrap();
    let (endpoint, mut stream) = hold(site);
    let one = without(endpoint);
    sync(&mut backend, &two, &one);
    echo(&mut stream, b"still here");
    assert!(!spread(site, 6).contains_key(&endpoint.ip().to_string()), "it gets no new connections");
    machine.pass(14 * 60);
    assert_eq!(backend.reconcile(&one).unwrap().transactions, 0);
    echo(&mut stream, b"still here");
    machine.pass(60);
    backend.reconcile(&one).unwrap();
    let reals = listing().iter().filter(|line| line.starts_with("->")).count();
    assert_eq!(reals, 1, "its time is over");
}

fn termination_of_udp(site: &Site, machine: &Machine) {
    let udp = |first, pods| TestService { protocol: Protocol::Udp, first, ..only_cluster_ip(pods) }.table();
    let mut backend = machine.backend();
    let (two, one) = (udp(0, 2), udp(1, 1));
    backend.load(&two).unwrap();
    for _ in 0..4 {
        ask(site, Protocol::Udp, CLUSTER_IP);
    }
    sync(&mut backend, &two, &one);
    let reals = listing().iter().filter(|line| line.starts_with("->")).count();
    assert_eq!(reals, 1, "its connections have no end to wait for");
    for _ in 0..4 {
        assert_eq!(ask(site, Protocol::Udp, CLUSTER_IP).ip().to_string(), "10.1.0.2");
    }
}

fn affinity(site: &Site, machine: &Machine) {
    let sticky = |first, pods| TestService { affinity: Some(300), first, ..only_cluster_ip(pods) }.table();
    let mut backend = machine.backend();
    let two = sticky(0, 2);
    backend.load(&two).unwrap();
    let spread_of_two = spread(site, 6);
    assert_eq!(counts(&spread_of_two), [6]);
    let is_first = spread_of_two.contains_key("10.1.0.1");
    let one = sticky(u8::from(is_first), 1);
    sync(&mut backend, &two, &one);
    let spread_of_one = spread(site, 6);
    assert_eq!(counts(&spread_of_one), [6]);
    assert_ne!(spread_of_two, spread_of_one, "the client's endpoint has gone");
    sync(&mut backend, &one, &two);
    assert_eq!(spread(site, 6), spread_of_one, "it is back, but the client stays");
}

fn places_and_counts(site: &Site, machine: &Machine) {
    machine.backend().load(&TestService { pods: 2, ..TestService::default() }.table()).unwrap();
    let mut kernel = IpvsSocket::open().unwrap();
    let mut known = BTreeMap::new();
    let mut counters = BTreeMap::new();
    let mut read = |into: &mut BTreeMap<(SocketAddr, SocketAddr), u64>| {
        let counts = server_counts(&mut kernel, &mut known).unwrap();
        into.extend(counts.into_iter().map(|count| ((count.frontend, count.endpoint), count.connections)));
    };
    read(&mut counters);
    let before = counters.clone();
    for place in ["198.51.100.1:31000", "192.0.2.80:80"] {
        for _ in 0..4 {
            ask(site, Protocol::Tcp, place);
        }
    }
    // The kernel sums its counters every two seconds.
    let waiting = std::time::Instant::now();
    let mut new = BTreeMap::new();
    while new.values().sum::<u64>() < 8 && waiting.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(100));
        read(&mut counters);
        new = counters.iter().map(|(pair, count)| (*pair, count - before.get(pair).unwrap_or(&0))).collect();
    }
    let of = |place: &str| {
        let of_place = new.iter().filter(|((frontend, _), _)| *frontend == place.parse().unwrap());
        of_place.map(|(_, count)| *count).collect::<Vec<u64>>()
    };
    assert_eq!((of("198.51.100.1:31000"), of("192.0.2.80:80")), (vec![2, 2], vec![2, 2]));
    assert_eq!(of(CLUSTER_IP), [0, 0]);
    // Bytes are counted by conntrack, whose entries name the endpoint.
    let mut endpoints = BTreeMap::new();
    let mut take = |account: AccountedEntry| {
        if account.entry.dst == "192.0.2.80:80".parse().unwrap() {
            *endpoints.entry(account.entry.reply_src.to_string()).or_insert(0) += 1;
        }
    };
    ConntrackSocket::open().unwrap().accounts(Family::V4, &mut take).unwrap();
    assert_eq!(
        endpoints.into_iter().collect::<Vec<_>>(),
        [("10.1.0.1:8080".into(), 2), ("10.1.0.2:8080".to_owned(), 2)]
    );
    // Other ports of a load balancer IP do not reach servers of the node itself.
    let listener = std::net::TcpListener::bind("0.0.0.0:2222").unwrap();
    let packet = FirstPacket {
        src: CLIENT.parse().unwrap(),
        dst: "192.0.2.80:2222".parse().unwrap(),
        protocol: Protocol::Tcp,
        iif: None,
    };
    assert_eq!(site.send(&packet, Hope::Answer), Seen::Refused);
    drop(listener);
}

fn restart(site: &Site, machine: &Machine) {
    let table = TestService { pods: 3, ..TestService::default() }.table();
    let mut first = machine.backend();
    first.load(&table).unwrap();
    while first.maintain().unwrap() {}
    let (_, mut stream) = hold(site);
    let before = listing();
    let loaded = machine.backend().load(&table).unwrap();
    assert!(!loaded.is_initial && loaded.transactions == 0, "{loaded:?}");
    assert_eq!(listing(), before);
    echo(&mut stream, b"still here");
}

fn cleanup(_: &Site, machine: &Machine) {
    let foreign = VirtualServer { scheduler: "wlc".into(), flags: 0, persistence: None };
    for address in ["203.0.113.77", "10.97.0.1"] {
        change(&IpvsChange::NewServer(key(address, 31_000), foreign.clone()));
    }
    let mut backend = machine.backend();
    backend.load(&TestService { pods: 3, ..TestService::default() }.table()).unwrap();
    let deleted = backend.cleanup(CleanupScope::Zoneward, false).unwrap();
    assert!(deleted.iter().all(|item| item.error.is_none()), "{deleted:?}");
    let mut left = listing();
    left.sort();
    assert_eq!(left, ["TCP 0A610001:7918 wlc", "TCP CB00714D:7918 wlc"], "only what another program made");
    let routes = super::namespace::run("ip", &["route", "show", "table", "local", "proto", "90"]);
    assert_eq!(routes, "");
}

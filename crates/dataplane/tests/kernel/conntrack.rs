//! Flows in the kernel's own table: the shared cases, and real UDP packets through DNAT.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use dataplane::conntrack::{
    ConntrackEntry, ConntrackFilter, ConntrackSocket, ConntrackTable, delete_stale_udp,
};
use model::Family;
use model::forward::UdpService;

use super::flows;
use crate::namespace::{run, run_with};

/// All flows of a family and protocols; numbers are left out, since the kernel makes them up.
fn all(conntrack: &mut ConntrackSocket, family: Family) -> BTreeSet<ConntrackEntry> {
    let mut flows = BTreeSet::new();
    for protocol in [6, 17, 132] {
        let filter = ConntrackFilter { protocol, family, dst: None, dport: None };
        conntrack
            .dump(&filter, &mut |flow| assert!(flows.insert(ConntrackEntry { id: None, ..flow })))
            .unwrap();
    }
    flows
}

/// Puts a flow into the table as if its packets had passed.
fn insert(flow: &ConntrackEntry) {
    let (proto, state): (_, &[&str]) = match flow.protocol {
        6 => ("tcp", &["--state", "ESTABLISHED"]),
        17 => ("udp", &[]),
        _ => ("sctp", &["--state", "ESTABLISHED", "--orig-vtag", "1", "--reply-vtag", "2"]),
    };
    let ends = [flow.src, flow.dst, flow.reply_src, flow.reply_dst];
    let [src, dst, reply_src, reply_dst] = ends.map(|end| end.ip().to_string());
    let [sport, dport, reply_sport, reply_dport] = ends.map(|end| end.port().to_string());
    let mut words = vec!["-I", "-t", "600", "-p", proto, "-s", &src, "-d", &dst, "--sport", &sport];
    words.extend(["--dport", &dport, "-r", &reply_src, "-q", &reply_dst]);
    words.extend(["--reply-port-src", &reply_sport, "--reply-port-dst", &reply_dport]);
    words.extend(state);
    run("conntrack", &words);
}

#[test]
fn pass_leaves_exactly_the_flows_that_the_cases_keep() {
    toolbox::in_own_namespaces!();
    let mut conntrack = ConntrackSocket::open().unwrap();
    for case in flows::cases() {
        case.entries.iter().for_each(|(flow, _)| insert(flow));
        let inserted: BTreeSet<ConntrackEntry> = case.entries.iter().map(|(flow, _)| flow.clone()).collect();
        assert_eq!(all(&mut conntrack, Family::V4), inserted, "{}", case.id);
        let cleaned = delete_stale_udp(&mut conntrack, &[case.service], &[[192, 168, 0, 2].into()]).unwrap();
        let kept =
            case.entries.iter().filter(|(_, deleted)| !deleted).map(|(flow, _)| flow.clone()).collect();
        assert_eq!(all(&mut conntrack, Family::V4), kept, "{}", case.id);
        assert_eq!(cleaned.deleted, inserted.len() - kept.len(), "{}", case.id);
        run("conntrack", &["-F"]);
    }
}

/// Addresses of one family: the client, the frontend and two endpoints.
struct World {
    family: &'static str,
    client: &'static str,
    frontend: &'static str,
    endpoints: [&'static str; 2],
}

const WORLDS: [World; 2] = [
    World { family: "ip", client: "10.9.0.1", frontend: "172.30.0.10", endpoints: ["10.1.0.1", "10.1.0.2"] },
    World {
        family: "ip6",
        client: "fd00:9::1",
        frontend: "fd00:30::10",
        endpoints: ["fd00:10::1", "fd00:10::2"],
    },
];

fn dnat(world: &World, endpoint: &str) {
    let World { family, frontend, .. } = world;
    let to = SocketAddr::new(endpoint.parse().unwrap(), 5353);
    let rules = format!(
        "table {family} t\ndelete table {family} t\ntable {family} t {{\n chain out {{\n type nat hook output priority -100\n \
         {family} daddr {frontend} udp dport 53 dnat to {to}\n }}\n}}\n"
    );
    run_with("nft", &["-f", "-"], &rules);
}

/// A socket on an address; where it came from, if something comes.
fn bind(ip: &str, port: u16) -> UdpSocket {
    let socket = UdpSocket::bind(SocketAddr::new(ip.parse().unwrap(), port)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket
}

fn received(socket: &UdpSocket) -> bool {
    socket.recv(&mut [0; 16]).is_ok()
}

#[test]
fn client_reaches_a_new_endpoint_after_the_pass() {
    toolbox::in_own_namespaces!();
    let mut conntrack = ConntrackSocket::open().unwrap();
    for world in &WORLDS {
        let dash = if world.family == "ip" { "-4" } else { "-6" };
        let hosts = [world.client, world.endpoints[0], world.endpoints[1]];
        // Without asking whether another has it: until that is known, an IPv6 address cannot be bound.
        let more: &[&str] = if world.family == "ip6" { &["nodad"] } else { &[] };
        for host in hosts {
            run("ip", &[&[dash, "addr", "add", host, "dev", "lo"], more].concat());
        }
        run("ip", &[dash, "route", "add", world.frontend, "dev", "lo"]);
        let frontend = SocketAddr::new(world.frontend.parse().unwrap(), 53);
        let [old, new] = world.endpoints.map(|endpoint| bind(endpoint, 5353));
        let client = bind(world.client, 4000);
        dnat(world, world.endpoints[0]);
        client.send_to(b"1", frontend).unwrap();
        assert!(received(&old), "{}", world.family);
        // The endpoint is replaced; the flow still goes the old way.
        dnat(world, world.endpoints[1]);
        client.send_to(b"2", frontend).unwrap();
        assert!(received(&old) && !received(&new), "{}", world.family);
        let service = UdpService {
            frontends: [frontend].into(),
            node_port: None,
            serving: [new.local_addr().unwrap()].into(),
        };
        let cleaned = delete_stale_udp(&mut conntrack, std::slice::from_ref(&service), &[]).unwrap();
        assert_eq!(cleaned.deleted, 1, "{}", world.family);
        client.send_to(b"3", frontend).unwrap();
        assert!(received(&new), "{}", world.family);
        // The flow to the new endpoint is left alone.
        assert_eq!(delete_stale_udp(&mut conntrack, std::slice::from_ref(&service), &[]).unwrap().deleted, 0);
        // Without any endpoint left, one filtered delete does it; other flows stay.
        let family = Family::of(frontend.ip());
        let other = bind(world.endpoints[0], 4001);
        other.send_to(b"4", SocketAddr::new(world.client.parse().unwrap(), 53)).unwrap();
        let unserved = UdpService { serving: BTreeSet::new(), ..service };
        let cleaned = delete_stale_udp(&mut conntrack, &[unserved], &[]).unwrap();
        assert_eq!(cleaned.matched, usize::from(family == Family::V4), "{}", world.family);
        let left: Vec<SocketAddr> = all(&mut conntrack, family).iter().map(|flow| flow.dst).collect();
        assert!(!left.contains(&frontend) && left.iter().any(|dst| dst.port() == 53), "{left:?}");
    }
}

#[test]
fn flows_are_deleted_by_a_filter_within_the_kernel() {
    toolbox::in_own_namespaces!();
    // Any rule that asks conntrack turns it on in this namespace.
    run_with(
        "nft",
        &["-f", "-"],
        "table ip t {\n chain out {\n type filter hook output priority 0\n ct state new\n }\n}\n",
    );
    run("ip", &["addr", "add", "10.9.0.1", "dev", "lo"]);
    run("ip", &["route", "add", "172.30.0.0/16", "dev", "lo"]);
    const CLIENTS: u16 = 2_000;
    for port in 0..CLIENTS {
        let client = UdpSocket::bind(("10.9.0.1", 10_000 + port)).unwrap();
        for frontend in ["172.30.0.1:53", "172.30.0.2:53"] {
            client.send_to(b"x", frontend).unwrap();
        }
    }
    let mut conntrack = ConntrackSocket::open().unwrap();
    let count = |conntrack: &mut ConntrackSocket, dst: [u8; 4]| {
        let filter =
            ConntrackFilter { protocol: 17, family: Family::V4, dst: Some(dst.into()), dport: Some(53) };
        let mut count = 0;
        conntrack.dump(&filter, &mut |_| count += 1).unwrap();
        count
    };
    assert_eq!(count(&mut conntrack, [172, 30, 0, 1]), CLIENTS);
    let start = Instant::now();
    let filter = ConntrackFilter {
        protocol: 17,
        family: Family::V4,
        dst: Some([172, 30, 0, 1].into()),
        dport: Some(53),
    };
    conntrack.delete_matching(&filter).unwrap();
    println!("{CLIENTS} flows of {} deleted by one message in {:?}", CLIENTS * 2, start.elapsed());
    assert_eq!(count(&mut conntrack, [172, 30, 0, 1]), 0);
    assert_eq!(count(&mut conntrack, [172, 30, 0, 2]), CLIENTS);
}

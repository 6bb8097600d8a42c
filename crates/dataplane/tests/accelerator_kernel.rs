//! The eBPF accelerator on the real kernel: real sockets in namespaces and a cgroup of their own, with the rules of
//! nftables behind it.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

#[path = "packetflow/case.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod case;
#[path = "packetflow/connect.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod connect;
#[path = "packetflow/net.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod net;
#[path = "accelerator/place.rs"]
mod place;
#[path = "kernel/namespace.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod plain_namespace;
#[path = "kernel/runner.rs"]
mod runner;
#[path = "packetflow/sctp.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod sctp;
#[path = "accelerator/service.rs"]
mod service;
#[path = "accelerator/soak.rs"]
mod soak;
#[path = "packetflow/traffic.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod traffic;

/// What the other modules of tests use, with another way in.
mod namespace {
    pub(crate) use crate::place::enter;
    pub(crate) use crate::plain_namespace::{run, run_with};
}

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use dataplane::accelerator::fake::FakeAccelerator;
use dataplane::accelerator::{
    AccelerateScope, Accelerator, AcceleratorKernel, ConnectOutcome, ConnectingSocket, PinnedAccelerator,
    remove_pins,
};
use dataplane::backend::NodeBackend;
use dataplane::nftables::NftablesBackend;
use model::ForwardingTable;
use model::forward::{FirstPacket, TrafficSource};

use connect::{open, serve};
use net::{Neighbour, be_a_router};
use place::{Cgroup, pins};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use service::{PORT, frontends, table};

const TESTS: &[runner::Test] = &[
    ("connections_of_the_cases_fare_as_without_it", connections_of_the_cases_fare_as_without_it),
    (
        "sockets_reach_endpoints_see_the_cluster_ip_and_are_counted",
        sockets_reach_endpoints_see_the_cluster_ip_and_are_counted,
    ),
    (
        "only_sockets_of_the_node_are_taken_where_that_is_wanted",
        only_sockets_of_the_node_are_taken_where_that_is_wanted,
    ),
    ("a_restart_takes_over_and_growth_replaces_the_maps", a_restart_takes_over_and_growth_replaces_the_maps),
    ("where_bpf_is_refused_nothing_is_left_behind", where_bpf_is_refused_nothing_is_left_behind),
    (
        "soak_killed_node_proxies_leave_no_stale_endpoint_and_lose_no_connection",
        soak::soak_killed_node_proxies_leave_no_stale_endpoint_and_lose_no_connection,
    ),
];

const PERIOD: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    runner::run(TESTS)
}

fn accelerator(cgroup: &Cgroup, scope: AccelerateScope) -> Accelerator {
    Accelerator::new(Box::new(PinnedAccelerator::new(pins(), &cgroup.path)), scope, PERIOD)
}

/// Connections that the attached program made.
fn counted() -> u64 {
    let counts = PinnedAccelerator::attached(pins()).unwrap().counts().unwrap();
    counts.iter().map(|count| count.connections).sum()
}

/// What the fake does with the socket that sends a packet.
fn on_the_fake(table: &ForwardingTable, packet: &FirstPacket, origin: TrafficSource) -> ConnectOutcome {
    let fake = FakeAccelerator::default();
    let mut accelerator = Accelerator::new(Box::new(fake.clone()), AccelerateScope::AllNamespaces, PERIOD);
    accelerator.load(table).unwrap();
    let is_of_node = origin == TrafficSource::Node;
    fake.connect(&ConnectingSocket { to: packet.dst, is_of_node, is_bound: true }).unwrap()
}

/// The packet-flow cases, which hold with nftables alone (packetflow_kernel), hold with the accelerator. Clients outside
/// have their sockets on other machines: those to cluster IPs that are accelerated are left out.
fn connections_of_the_cases_fare_as_without_it() {
    let cgroup = Cgroup::enter("test");
    let mut rules = NftablesBackend::open().unwrap();
    let mut rewritten = 0;
    traffic::each_packet_fares_as_the_cases_say(
        20,
        |scenario| {
            rules.load(&scenario.table).unwrap();
            accelerator(&cgroup, AccelerateScope::AllNamespaces).load(&scenario.table).unwrap();
        },
        |scenario, flow, send| {
            let origin = scenario.table.decide(&flow.packet).origin;
            let whose = format!("{} flow {}", scenario.id, flow.n);
            let is_rewritten = match on_the_fake(&scenario.table, &flow.packet, origin) {
                ConnectOutcome::Rewritten(shares) => {
                    let endpoints: Vec<SocketAddr> = shares.iter().map(|(endpoint, _)| *endpoint).collect();
                    assert_eq!(endpoints, flow.endpoints, "{whose}");
                    true
                }
                ConnectOutcome::Left(_) => false,
            };
            if is_rewritten && origin == TrafficSource::Outside {
                return;
            }
            let before = counted();
            send();
            assert_eq!(counted() > before, is_rewritten, "{whose}");
            rewritten += u32::from(is_rewritten);
        },
    );
    assert!(rewritten > 0, "some of the cases are accelerated");
    remove_pins(pins(), false).unwrap();
}

/// Neighbours with one client and servers, as pods.
fn neighbours(servers_at: &[SocketAddr]) -> (Neighbour, Neighbour) {
    be_a_router(&[]);
    let (clients, servers) = (Neighbour::new(1, "clients"), Neighbour::new(2, "servers"));
    clients.be_the_way_out();
    for server in servers_at {
        servers.add_address(server.ip());
        let server = *server;
        servers.within(move || serve(server));
    }
    (clients, servers)
}

fn sockets_reach_endpoints_see_the_cluster_ip_and_are_counted() {
    let cgroup = Cgroup::enter("test");
    let endpoints: [SocketAddr; 2] = ["10.1.0.1:8080".parse().unwrap(), "[fd00:1::1]:8080".parse().unwrap()];
    let cluster_ips: [IpAddr; 2] = ["10.96.0.1".parse().unwrap(), "fd00:96::1".parse().unwrap()];
    let (clients, _servers) = neighbours(&endpoints);
    for (cluster_ip, endpoint) in cluster_ips.into_iter().zip(endpoints) {
        // No rule of nftables: a connection that arrives was rewritten.
        let mut accelerator = accelerator(&cgroup, AccelerateScope::AllNamespaces);
        accelerator.load(&table(frontends(cluster_ip, &[endpoint]))).unwrap();
        let before = counted();
        let to = SocketAddr::new(cluster_ip, PORT);
        let peer = clients.within(move || {
            let (seen, stream) = open(to).unwrap();
            assert_eq!(seen, endpoint);
            stream.peer_addr().unwrap()
        });
        assert_eq!(peer, to, "getpeername shows the cluster IP");
        let direct = clients.within(move || open(endpoint).unwrap().1.peer_addr().unwrap());
        assert_eq!(direct, endpoint);
        assert_eq!(counted() - before, 1, "a direct connection is not counted");
    }
    // A socket of IPv6 may connect to an address of IPv4.
    let mut accelerator = accelerator(&cgroup, AccelerateScope::AllNamespaces);
    accelerator.load(&table(frontends(cluster_ips[0], &endpoints[..1]))).unwrap();
    let IpAddr::V4(v4) = cluster_ips[0] else { unreachable!("it is of IPv4") };
    let mapped = SocketAddr::new(v4.to_ipv6_mapped().into(), PORT);
    let peer = clients.within(move || TcpStream::connect(mapped).unwrap().peer_addr().unwrap());
    assert_eq!(peer, mapped);
    remove_pins(pins(), false).unwrap();
    let is_gone = || clients.within(move || open(SocketAddr::new(cluster_ips[0], PORT)).is_err());
    // The kernel detaches a moment later.
    let is_gone_soon = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        is_gone()
    });
    assert!(is_gone_soon, "the program is detached with its pins");
}

fn only_sockets_of_the_node_are_taken_where_that_is_wanted() {
    let cgroup = Cgroup::enter("test");
    let endpoint: SocketAddr = "10.1.0.1:8080".parse().unwrap();
    let (clients, _servers) = neighbours(&[endpoint]);
    let to: SocketAddr = "10.96.0.1:80".parse().unwrap();
    let mut accelerator = accelerator(&cgroup, AccelerateScope::NodeNamespace);
    accelerator.load(&table(frontends(to.ip(), &[endpoint]))).unwrap();
    assert_eq!(open(to).unwrap().0, endpoint);
    assert!(
        clients.within(move || open(to).is_err()),
        "a pod's socket is left to the rules, of which there are none"
    );
    remove_pins(pins(), false).unwrap();
}

fn a_restart_takes_over_and_growth_replaces_the_maps() {
    let cgroup = Cgroup::enter("test");
    let endpoint: SocketAddr = "10.1.0.1:8080".parse().unwrap();
    let (clients, _servers) = neighbours(&[endpoint]);
    let to: SocketAddr = "10.96.0.1:80".parse().unwrap();
    let small = frontends(to.ip(), &[endpoint]);
    let folders = || std::fs::read_dir(pins()).unwrap().map(|f| f.unwrap().file_name()).collect::<Vec<_>>();
    accelerator(&cgroup, AccelerateScope::AllNamespaces).load(&table(small.clone())).unwrap();
    let (first, ids) =
        (folders(), || PinnedAccelerator::attached(pins()).unwrap().entries().unwrap().frontends[&to].id);
    let id = ids();
    let mut next = accelerator(&cgroup, AccelerateScope::AllNamespaces);
    next.load(&table(small.clone())).unwrap();
    assert_eq!((folders(), ids()), (first.clone(), id), "nothing changed, so nothing is written");
    assert_eq!(first.len(), 1);
    let many: Vec<SocketAddr> = (0..40_000_u32)
        .map(|i| SocketAddr::from(([10, 2, (i / 250) as u8, (i % 250) as u8], 8080)))
        .collect();
    let large = frontends(to.ip(), &many);
    next.change(&table(large.clone()), &[(&small, &large)]).unwrap();
    assert_eq!(folders().len(), 1, "the small maps are gone");
    assert_ne!(folders(), first);
    next.change(&table(small.clone()), &[(&large, &small)]).unwrap();
    assert_eq!(clients.within(move || open(to).unwrap().0), endpoint);
    next.remove().unwrap();
    assert!(!pins().exists(), "nothing is left");
}

/// Without the right to call bpf(), for the thread that calls it.
fn refuse_bpf() {
    let mut sets = capabilities(None).unwrap();
    let refused = CapabilitySet::BPF | CapabilitySet::SYS_ADMIN | CapabilitySet::PERFMON;
    sets.effective &= !refused;
    sets.permitted &= !refused;
    sets.inheritable &= !refused;
    set_capabilities(None, sets).unwrap();
}

fn where_bpf_is_refused_nothing_is_left_behind() {
    let cgroup = Cgroup::enter("test");
    let kernel = PinnedAccelerator::new(pins(), &cgroup.path);
    let loaded = std::thread::spawn(move || {
        refuse_bpf();
        let mut accelerator = Accelerator::new(Box::new(kernel), AccelerateScope::AllNamespaces, PERIOD);
        accelerator.load(&ForwardingTable::default())
    });
    let error = loaded.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("ermission denied") || error.contains("not permitted"), "{error}");
    assert!(!pins().exists());
}

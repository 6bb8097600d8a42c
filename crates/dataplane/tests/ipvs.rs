//! The ipvs backend on fake kernels, which got the very bytes that the real ones would get: the packet-flow cases,
//! agreement with the table's own decision for random clusters, and what happens to virtual servers over time.

pub(crate) mod service;

use crate::packetflow::addresses;
use crate::packetflow::case;
use crate::packetflow::world;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dataplane::backend::{CleanupScope, NodeBackend, PacketTrace, PreviousMode, TracedVerdict};
use dataplane::ipvs::fake::FakeIpvs;
use dataplane::ipvs::{
    IpvsBackend, IpvsChange, IpvsLeftovers, IpvsListing, IpvsScheduler, IpvsSettings, IpvsUnavailable,
    RealServer, VirtualServer, probe, server_counts,
};
use dataplane::nftables::NftablesBackend;
use dataplane::nftables::fake::FakeKernel;
use dataplane::nftables::trace::{NodeAddresses, TracedPacket, evaluate};
use model::forward::{FirstPacket, ForwardingMode, PacketVerdict};
use model::{ForwardingTable, Protocol};
use plan::forward::table;
use proptest::prelude::*;
use service::{TestService, as_ipvs, key};

/// Two fake kernels that outlive backends, and a clock.
struct Machine {
    nft: Arc<Mutex<FakeKernel>>,
    ipvs: Arc<Mutex<FakeIpvs>>,
    seconds: Arc<AtomicU64>,
}

impl Machine {
    fn new(addresses: &[IpAddr]) -> Self {
        Self {
            nft: Arc::new(Mutex::new(FakeKernel::new())),
            ipvs: Arc::new(Mutex::new(FakeIpvs::new(addresses))),
            seconds: Arc::default(),
        }
    }

    fn of(table: &ForwardingTable) -> Self {
        Self::new(&table.node.addresses)
    }

    fn backend_with(&self, settings: IpvsSettings) -> IpvsBackend {
        let seconds = self.seconds.clone();
        let time = Box::new(move || Duration::from_secs(seconds.load(Ordering::Relaxed)));
        let nft = NftablesBackend::new(Box::new(self.nft.clone()));
        IpvsBackend::new(nft, Box::new(self.ipvs.clone()), settings, time)
    }

    fn backend(&self) -> IpvsBackend {
        self.backend_with(IpvsSettings::default())
    }

    fn leftovers(&self) -> IpvsLeftovers {
        let seconds = self.seconds.clone();
        let time = Box::new(move || Duration::from_secs(seconds.load(Ordering::Relaxed)));
        IpvsLeftovers::new(Box::new(self.nft.clone()), Box::new(self.ipvs.clone()), time)
    }

    /// The ranges that are local.
    fn ranges(&self) -> Vec<String> {
        self.ipvs.lock().unwrap().routes().iter().map(|route| route.range.to_string()).collect()
    }

    /// Whether a packet that no Service takes is rejected.
    fn guard_rejects(&self, packet: &FirstPacket, table: &ForwardingTable) -> bool {
        let mut rules = self.nft.lock().unwrap().ruleset().clone();
        rules.tables.retain(|id, _| id.name == "zoneward-ipvs");
        let traced = TracedPacket::new(6, packet.src, packet.dst);
        // Addresses of Services are local.
        let addresses = table.node.addresses.iter().copied().chain([packet.dst.ip()]).collect();
        let verdict = evaluate(&rules, &traced, &NodeAddresses { addresses }).unwrap().verdict;
        verdict == TracedVerdict::Reject
    }

    fn listing(&self) -> BTreeMap<String, String> {
        self.ipvs.lock().unwrap().listing()
    }

    fn log(&self) -> Vec<String> {
        self.ipvs.lock().unwrap().take_log().iter().map(ToString::to_string).collect()
    }

    fn pass(&self, seconds: u64) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
    }
}

fn change(backend: &mut IpvsBackend, old: &ForwardingTable, new: &ForwardingTable) {
    let service = service::web();
    backend.change(new, &[(old.frontends(&service), new.frontends(&service))]).unwrap();
}

fn verdict_of(verdict: &PacketVerdict) -> TracedVerdict {
    match verdict {
        PacketVerdict::Send(_) => TracedVerdict::Dnat,
        PacketVerdict::Reject => TracedVerdict::Reject,
        PacketVerdict::Drop => TracedVerdict::Drop,
        PacketVerdict::Accept => TracedVerdict::Accept,
        PacketVerdict::Untouched => TracedVerdict::Untouched,
    }
}

#[test]
fn every_packet_flow_case_holds_on_the_bytes() {
    let mut carried = 0;
    for scenario in case::scenarios() {
        let table = as_ipvs(scenario.table);
        let machine = Machine::of(&table);
        let mut backend = machine.backend();
        backend.load(&table).unwrap();
        carried += machine.listing().len();
        for flow in &scenario.flows {
            let trace = backend.trace(std::slice::from_ref(&flow.packet), &table.node.addresses).unwrap();
            let trace = &trace[0];
            let whose = format!("{} flow {}: {trace:#?}\n{:#?}", scenario.id, flow.n, machine.listing());
            let verdict = match flow.verdict.as_str() {
                "DNAT" => TracedVerdict::Dnat,
                "REJECT" => TracedVerdict::Reject,
                _ => TracedVerdict::Drop,
            };
            assert_eq!(trace.verdict, verdict, "{whose}");
            let endpoints: Vec<SocketAddr> = trace.endpoints.iter().map(|(e, _)| *e).collect();
            assert_eq!(endpoints, flow.endpoints, "{whose}");
            assert_eq!(trace.masquerade && verdict == TracedVerdict::Dnat, flow.masquerade, "{whose}");
        }
    }
    assert!(carried > 20, "{carried} virtual servers say little");
}

fn compare(table: &ForwardingTable, packet: &FirstPacket, trace: &PacketTrace) -> Result<(), TestCaseError> {
    let decision = table.decide(packet);
    // A link-local or unknown address aside, an accepted packet met its virtual server.
    prop_assert_eq!(trace.verdict, verdict_of(&decision.verdict), "{:#?}\n{:#?}", decision, trace);
    if let PacketVerdict::Send(shares) = &decision.verdict {
        let sum: f64 = trace.endpoints.iter().map(|(_, chance)| chance).sum();
        prop_assert!((sum - 1.0).abs() < 1e-9);
        for (endpoint, chance) in &trace.endpoints {
            let share = shares.iter().find(|(address, _)| address == endpoint).map(|(_, share)| *share);
            prop_assert!(share.is_some(), "{} was not selected", endpoint);
            prop_assert!((chance - share.unwrap_or(0.0)).abs() <= 1.0 / 32.0 + 1e-9);
        }
        let seconds = decision.frontend.and_then(|f| f.port.affinity_seconds);
        prop_assert_eq!(trace.affinity, seconds.map(|s| u64::from(s) * 1000));
        let is_own_client = trace.endpoints.iter().any(|(endpoint, _)| endpoint.ip() == packet.src.ip());
        prop_assert!(
            trace.masquerade == decision.masquerade || is_own_client,
            "{:#?}\n{:#?}",
            decision,
            trace
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn packets_fare_as_the_table_decides(
        world in world::world(),
        packets in proptest::collection::vec(world::packet(), 20),
    ) {
        let mut world = world;
        world.settings.mode = ForwardingMode::Ipvs;
        let (table, _) = table(&world.snapshot(), &world.config());
        let machine = Machine::of(&table);
        let mut backend = machine.backend();
        backend.load(&table).expect("the fake kernels take it");
        let traces = backend.trace(&packets, &table.node.addresses).expect("few ways");
        for (packet, trace) in packets.iter().zip(&traces) {
            compare(&table, packet, trace)?;
        }
    }

    #[test]
    fn changes_one_by_one_leave_the_kernel_as_a_fresh_start_would(
        before in world::world(),
        after in world::world(),
    ) {
        let mut after = after;
        after.settings = before.settings.clone();
        after.settings.mode = ForwardingMode::Ipvs;
        after.zone = before.zone;
        let (mut old, _) = table(&before.snapshot(), &after.config());
        let (new, _) = table(&after.snapshot(), &after.config());
        let machine = Machine::of(&old);
        let mut backend = machine.backend();
        backend.load(&old).expect("the fake kernels take it");
        // All at once: a frontend may move from one Service to another.
        let services: std::collections::BTreeSet<_> =
            old.services().chain(new.services()).map(|(key, _)| key.clone()).collect();
        let empty = ForwardingTable::new(old.node.clone());
        let pairs: Vec<_> = services.iter().map(|key| (old.frontends(key), new.frontends(key))).collect();
        backend.change(&new, &pairs).expect("the fake kernels take it");
        let fresh = Machine::of(&new);
        fresh.backend().load(&new).expect("the fake kernels take it");
        prop_assert_eq!(machine.listing(), fresh.listing());
        let routes = |machine: &Machine| machine.ipvs.lock().unwrap().routes().clone();
        prop_assert_eq!(routes(&machine), routes(&fresh));
        prop_assert_eq!(backend.reconcile(&new).expect("nothing to do").transactions, 0);
        old = new;
        let gone: Vec<_> = old.services().map(|(_, frontends)| (frontends, &[][..])).collect();
        backend.change(&empty, &gone).expect("the fake kernels take it");
        prop_assert!(machine.listing().is_empty() && routes(&machine).is_empty());
    }
}

#[test]
fn a_service_is_virtual_servers_a_local_range_and_rules() {
    let table = TestService { pods: 3, ..TestService::default() }.table();
    let machine = Machine::of(&table);
    machine.backend().load(&table).unwrap();
    let reals = "rr 10.1.0.1:8080=1 10.1.0.2:8080=1 10.1.0.3:8080=1";
    let listing: Vec<(String, String)> = machine.listing().into_iter().collect();
    let expected =
        ["TCP 10.96.0.1:80", "TCP 192.0.2.80:80", "TCP 198.51.100.1:31000", "TCP 198.51.101.1:31000"];
    assert_eq!(listing, expected.map(|key| (key.to_owned(), reals.to_owned())));
    let routes: Vec<String> =
        machine.ipvs.lock().unwrap().routes().iter().map(|r| format!("{} {:?}", r.range, r.source)).collect();
    assert_eq!(routes, ["10.96.0.0/16 Some(198.51.100.1)", "192.0.2.80/32 Some(198.51.100.1)"]);
}

#[test]
fn listings_show_what_changes() {
    let two = TestService { pods: 2, ports: false, ..TestService::default() }.table();
    let machine = Machine::of(&two);
    machine.backend().load(&two).unwrap();
    let settings = IpvsSettings::default();
    let held = IpvsListing::read(&mut machine.ipvs.clone()).unwrap();
    assert_eq!(held.changes(&IpvsListing::of(&two, &settings)), []);
    let three = TestService { pods: 3, ports: false, ..TestService::default() }.table();
    let lines = held.changes(&IpvsListing::of(&three, &settings));
    let texts: Vec<String> = lines.iter().map(|l| format!("{} {}: {}", l.does, l.what, l.detail)).collect();
    let reals = "rr, 10.1.0.1:8080 weight 1, 10.1.0.2:8080 weight 1, 10.1.0.3:8080 weight 1 (ns/web)";
    assert_eq!(texts, [format!("replace virtual server TCP 10.96.0.1:80: {reals}")]);
    let gone = held.changes(&IpvsListing::default());
    assert!(
        gone.iter().any(|line| line.what == "local route 10.96.0.0/16" && line.does == "delete"),
        "{gone:?}"
    );
}

#[test]
fn settings_reach_the_virtual_servers() {
    let sticky = TestService { pods: 1, affinity: Some(7), ..TestService::default() }.table();
    let machine = Machine::of(&sticky);
    let settings = IpvsSettings { scheduler: IpvsScheduler::Mh, ..IpvsSettings::default() };
    machine.backend_with(settings).load(&sticky).unwrap();
    assert_eq!(machine.listing()["TCP 10.96.0.1:80"], "mh persistent 7 10.1.0.1:8080=1");
    let flags = machine.ipvs.lock().unwrap().take_log().into_iter().find_map(|change| match change {
        IpvsChange::NewServer(_, server) => Some(server.flags),
        _ => None,
    });
    assert_eq!(flags, Some(0x30), "ours, with mh-port and not mh-fallback");
}

#[test]
fn unequal_shares_are_weights_of_wrr_that_sum_to_about_32() {
    let table = TestService { pods: 3, weights: Some([0.8, 0.15, 0.05]), ..TestService::default() }.table();
    let machine = Machine::of(&table);
    machine.backend().load(&table).unwrap();
    assert_eq!(machine.listing()["TCP 10.96.0.1:80"], "wrr 10.1.0.1:8080=26 10.1.0.2:8080=4 10.1.0.3:8080=2");
}

#[test]
fn real_servers_are_added_in_another_order_on_each_node() {
    let table = TestService { pods: 7, ..TestService::default() }.table();
    let first = |node: &str| {
        let machine = Machine::of(&table);
        let settings = IpvsSettings { node: node.into(), ..IpvsSettings::default() };
        machine.backend_with(settings).load(&table).unwrap();
        let log = machine.log();
        log.into_iter().find(|line| line.starts_with("add real server")).unwrap()
    };
    let firsts: std::collections::BTreeSet<String> =
        (0..40).map(|number| first(&format!("node-{number}"))).collect();
    assert!(firsts.len() >= 5, "{firsts:?}");
}

#[test]
fn additions_come_before_removals_and_the_weight_of_a_returning_server_is_set() {
    let three = TestService { pods: 3, ports: false, ..TestService::default() }.table();
    let other = TestService { pods: 3, first: 3, ports: false, ..TestService::default() }.table();
    let machine = Machine::of(&three);
    let mut backend = machine.backend();
    backend.load(&three).unwrap();
    machine.ipvs.lock().unwrap().set_open("10.1.0.1:8080".parse().unwrap(), 5);
    machine.log();
    change(&mut backend, &three, &other);
    let log = machine.log();
    let at =
        |line: &str| log.iter().position(|other| other == line).unwrap_or_else(|| panic!("{line}: {log:#?}"));
    let added = at("add real server 10.1.0.5:8080 to TCP 10.96.0.1:80");
    assert!(added < at("set the weight of real server 10.1.0.1:8080 of TCP 10.96.0.1:80 to 0"));
    assert!(added < at("delete real server 10.1.0.2:8080 of TCP 10.96.0.1:80"), "no connection uses it");
    change(&mut backend, &other, &three);
    let log = machine.log();
    assert!(
        log.contains(&"set the weight of real server 10.1.0.1:8080 of TCP 10.96.0.1:80 to 1".to_owned()),
        "{log:#?}"
    );
}

#[test]
fn connections_of_a_removed_server_may_end_for_15_minutes() {
    let two = TestService { pods: 2, ports: false, ..TestService::default() }.table();
    let one = TestService { pods: 1, ports: false, ..TestService::default() }.table();
    let machine = Machine::of(&two);
    let mut backend = machine.backend();
    backend.load(&two).unwrap();
    machine.ipvs.lock().unwrap().set_open("10.1.0.2:8080".parse().unwrap(), 1);
    change(&mut backend, &two, &one);
    let dying = "rr 10.1.0.1:8080=1 10.1.0.2:8080=0";
    assert_eq!(machine.listing()["TCP 10.96.0.1:80"], dying);
    machine.pass(14 * 60);
    assert_eq!(backend.reconcile(&one).unwrap().transactions, 0);
    assert_eq!(machine.listing()["TCP 10.96.0.1:80"], dying);
    // A restart does not forget it: the kernel is the memory.
    let mut backend = machine.backend();
    backend.load(&one).unwrap();
    assert_eq!(machine.listing()["TCP 10.96.0.1:80"], dying);
    machine.pass(15 * 60);
    assert_eq!(backend.reconcile(&one).unwrap().transactions, 0, "its end is no repair");
    assert_eq!(machine.listing()["TCP 10.96.0.1:80"], "rr 10.1.0.1:8080=1");
}

#[test]
fn a_removed_server_goes_when_its_last_connection_has_ended() {
    let two = TestService { pods: 2, ports: false, ..TestService::default() }.table();
    let one = TestService { pods: 1, ports: false, ..TestService::default() }.table();
    let machine = Machine::of(&two);
    let mut backend = machine.backend();
    backend.load(&two).unwrap();
    let real = "10.1.0.2:8080".parse().unwrap();
    machine.ipvs.lock().unwrap().set_open(real, 1);
    change(&mut backend, &two, &one);
    machine.ipvs.lock().unwrap().set_open(real, 0);
    backend.reconcile(&one).unwrap();
    assert_eq!(machine.listing()["TCP 10.96.0.1:80"], "rr 10.1.0.1:8080=1");
}

#[test]
fn connections_of_a_deleted_service_may_end_while_new_ones_are_refused() {
    let table = TestService { pods: 2, ..TestService::default() }.table();
    let empty = ForwardingTable::new(table.node.clone());
    let machine = Machine::of(&table);
    let mut backend = machine.backend();
    backend.load(&table).unwrap();
    machine.ipvs.lock().unwrap().set_open("10.1.0.2:8080".parse().unwrap(), 1);
    backend.change(&empty, &[(table.frontends(&service::web()), &[])]).unwrap();
    let listing = machine.listing();
    assert_eq!(listing.get("TCP 10.96.0.1:80").map(String::as_str), Some("rr 10.1.0.2:8080=0"));
    assert_eq!(listing.len(), 1, "other ports of a load balancer IP would reach servers of the node");
    assert_eq!(machine.ranges(), ["10.96.0.0/16"]);
    let packet = FirstPacket {
        src: "10.1.0.9:40000".parse().unwrap(),
        dst: "10.96.0.1:80".parse().unwrap(),
        protocol: Protocol::Tcp,
        iif: None,
    };
    let trace = backend.trace(&[packet], &table.node.addresses).unwrap();
    assert_eq!(trace[0].verdict, TracedVerdict::Drop, "no Service has the address");
    let ended = machine.backend().cleanup(CleanupScope::Zoneward, true).unwrap();
    assert!(ended.iter().any(|item| item.name == "TCP 10.96.0.1:80"), "{ended:?}");
    machine.pass(15 * 60);
    assert_eq!(backend.reconcile(&empty).unwrap().transactions, 0);
    assert!(machine.listing().is_empty(), "{:?}", machine.listing());
    backend.reconcile(&empty).unwrap();
    assert!(machine.ranges().is_empty());
}

#[test]
fn leaving_mode_ipvs_ends_its_connections_like_those_of_a_removed_server() {
    let table = TestService { pods: 1, ..TestService::default() }.table();
    let machine = Machine::of(&table);
    machine.backend().load(&table).unwrap();
    machine.ipvs.lock().unwrap().set_open("10.1.0.1:8080".parse().unwrap(), 1);
    let mut nftables = table.clone();
    nftables.node.mode = ForwardingMode::Nftables;
    let mut backend = NftablesBackend::new(Box::new(machine.nft.clone()));
    backend.load(&nftables).unwrap();
    assert!(machine.leftovers().retire().unwrap().is_none(), "connections are open");
    let draining = "rr 10.1.0.1:8080=0";
    let expected =
        ["TCP 10.96.0.1:80", "TCP 192.0.2.80:80", "TCP 198.51.100.1:31000", "TCP 198.51.101.1:31000"];
    let expected = expected.map(|key| (key.to_owned(), draining.to_owned()));
    assert_eq!(machine.listing().into_iter().collect::<Vec<_>>(), expected);
    assert_eq!(machine.ranges(), ["10.96.0.1/32", "192.0.2.80/32"], "no other address of the range is local");
    let refused = |dst: &str| {
        let packet = FirstPacket {
            src: "203.0.113.2:40000".parse().unwrap(),
            dst: dst.parse().unwrap(),
            protocol: Protocol::Tcp,
            iif: None,
        };
        machine.guard_rejects(&packet, &table)
    };
    assert!(refused("10.96.0.1:22") && refused("192.0.2.80:22"), "they would reach servers of the node");
    assert!(!refused("198.51.100.1:22"), "the node's own address");
    // A new process knows which are ours.
    let mut left = machine.leftovers();
    assert!(left.retire().unwrap().is_none());
    machine.ipvs.lock().unwrap().set_open("10.1.0.1:8080".parse().unwrap(), 0);
    assert!(left.retire().unwrap().is_some());
    assert!(machine.listing().is_empty() && machine.ranges().is_empty());
    assert!(!refused("10.96.0.1:22"));
    assert_eq!(left.retire().unwrap().map(|removed| removed.len()), Some(0));
}

#[test]
fn connections_that_mode_ipvs_left_end_after_15_minutes() {
    let table = TestService { pods: 1, ..TestService::default() }.table();
    let machine = Machine::of(&table);
    machine.backend().load(&table).unwrap();
    machine.ipvs.lock().unwrap().set_open("10.1.0.1:8080".parse().unwrap(), 1);
    let mut left = machine.leftovers();
    assert!(left.retire().unwrap().is_none());
    machine.pass(14 * 60);
    assert!(left.retire().unwrap().is_none());
    machine.pass(60);
    assert!(left.retire().unwrap().is_some());
    assert!(machine.listing().is_empty());
}

#[test]
fn back_in_mode_ipvs_its_virtual_servers_take_new_connections_again() {
    let table = TestService { pods: 1, ..TestService::default() }.table();
    let machine = Machine::of(&table);
    machine.backend().load(&table).unwrap();
    let before = machine.listing();
    machine.ipvs.lock().unwrap().set_open("10.1.0.1:8080".parse().unwrap(), 1);
    let mut nftables = table.clone();
    nftables.node.mode = ForwardingMode::Nftables;
    NftablesBackend::new(Box::new(machine.nft.clone())).load(&nftables).unwrap();
    assert!(machine.leftovers().retire().unwrap().is_none());
    machine.backend().load(&table).unwrap();
    assert_eq!(
        (machine.listing(), machine.ranges()),
        (before, vec!["10.96.0.0/16".into(), "192.0.2.80/32".to_owned()])
    );
    let tables =
        machine.nft.lock().unwrap().ruleset().tables.keys().map(ToString::to_string).collect::<Vec<_>>();
    assert!(tables.iter().all(|table| !table.contains("zoneward-ipvs")), "{tables:?}");
}

#[test]
fn addresses_are_on_the_dummy_interface_if_asked_for() {
    let settings = IpvsSettings { has_dummy_interface: true, ..IpvsSettings::default() };
    let table = TestService { pods: 1, ..TestService::default() }.table();
    let machine = Machine::of(&table);
    let addresses = |machine: &Machine| {
        let addresses = machine.ipvs.lock().unwrap().interface_addresses();
        addresses.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    // kube-proxy left one, with the address of a Service that is gone.
    machine.ipvs.lock().unwrap().add_foreign_interface(&["10.96.0.9".parse().unwrap()]);
    let mut backend = machine.backend_with(settings.clone());
    backend.load(&table).unwrap();
    assert_eq!(addresses(&machine), Some(vec!["10.96.0.1".to_owned(), "192.0.2.80".into()]));
    assert_eq!(machine.ranges(), ["10.96.0.0/16", "10.96.0.1/32", "192.0.2.80/32"], "the source is the node");
    assert_eq!(backend.reconcile(&table).unwrap().transactions, 0);
    let fewer = TestService { pods: 1, ports: false, ..TestService::default() }.table();
    change(&mut backend, &table, &fewer);
    assert_eq!(addresses(&machine), Some(vec!["10.96.0.1".to_owned()]));
    change(&mut backend, &fewer, &table);
    assert_eq!(addresses(&machine), Some(vec!["10.96.0.1".to_owned(), "192.0.2.80".into()]));
    while backend.maintain().unwrap() {}
    let mut again = machine.backend_with(settings);
    assert_eq!(again.load(&table).unwrap().transactions, 0);
    // Without the flag, and in another mode.
    machine.backend().load(&table).unwrap();
    assert_eq!(addresses(&machine), None);
    assert_eq!(machine.ranges(), ["10.96.0.0/16", "192.0.2.80/32"]);
    again.load(&table).unwrap();
    assert!(machine.leftovers().retire().unwrap().is_some());
    assert_eq!(addresses(&machine), None);
    again.load(&table).unwrap();
    let items = again.cleanup(CleanupScope::Zoneward, false).unwrap();
    assert!(items.iter().any(|item| item.name == "kube-ipvs0"), "{items:?}");
    assert_eq!(addresses(&machine), None);
    machine.ipvs.lock().unwrap().add_foreign_interface(&[]);
    machine.backend().cleanup(CleanupScope::Zoneward, false).unwrap();
    assert_eq!(addresses(&machine), Some(Vec::new()), "it is not ours");
}

#[test]
fn udp_servers_go_at_once() {
    let udp = |pods| TestService { pods, protocol: Protocol::Udp, ports: false, ..TestService::default() };
    let (two, one) = (udp(2).table(), udp(1).table());
    let machine = Machine::of(&two);
    let mut backend = machine.backend();
    backend.load(&two).unwrap();
    machine.ipvs.lock().unwrap().set_open("10.1.0.2:8080".parse().unwrap(), 1);
    change(&mut backend, &two, &one);
    assert_eq!(machine.listing()["UDP 10.96.0.1:80"], "rr 10.1.0.1:8080=1");
}

fn plain(scheduler: &str) -> VirtualServer {
    VirtualServer { scheduler: scheduler.to_owned(), flags: 0, persistence: None }
}

#[test]
fn external_changes_are_repaired_and_weights_compared_at_every_sync() {
    let table = TestService { pods: 2, ports: false, ..TestService::default() }.table();
    let machine = Machine::of(&table);
    let mut backend = machine.backend();
    backend.load(&table).unwrap();
    let wanted = machine.listing();
    let cluster_ip = key("10.96.0.1", 80);
    let zero = RealServer { address: "10.1.0.2:8080".parse().unwrap(), weight: 0 };
    for damage in [
        IpvsChange::SetReal(cluster_ip, zero),
        IpvsChange::DeleteReal(cluster_ip, zero.address),
        IpvsChange::SetServer(cluster_ip, plain("lc")),
        IpvsChange::DeleteServer(cluster_ip),
    ] {
        machine.ipvs.lock().unwrap().apply(damage.clone()).unwrap();
        assert!(backend.reconcile(&table).unwrap().transactions > 0, "{damage}");
        assert_eq!(machine.listing(), wanted, "{damage}");
    }
    // A change of the Service meets a virtual server that has gone.
    machine.ipvs.lock().unwrap().apply(IpvsChange::DeleteServer(cluster_ip)).unwrap();
    let three = TestService { pods: 3, ports: false, ..TestService::default() }.table();
    change(&mut backend, &table, &three);
    assert_eq!(machine.listing()["TCP 10.96.0.1:80"].matches("=1").count(), 3);
}

#[test]
fn only_our_virtual_servers_go() {
    let table = TestService { pods: 1, ..TestService::default() }.table();
    let machine = Machine::of(&table);
    let foreign = [key("203.0.113.9", 80), key("203.0.113.9", 31_000), key("10.96.7.7", 80)];
    for key in foreign {
        machine.ipvs.lock().unwrap().apply(IpvsChange::NewServer(key, plain("wlc"))).unwrap();
    }
    let settings =
        IpvsSettings { exclude_cidrs: vec!["10.96.7.0/24".parse().unwrap()], ..IpvsSettings::default() };
    let mut backend = machine.backend_with(settings.clone());
    backend.load(&table).unwrap();
    assert_eq!(machine.listing().len(), 4 + foreign.len());
    // While no proxy ran, the Service was deleted: a flag says which virtual servers were its own, node ports included.
    let empty = ForwardingTable::new(table.node.clone());
    machine.backend_with(settings).load(&empty).unwrap();
    let left: Vec<String> = machine.listing().into_keys().collect();
    assert_eq!(
        left,
        foreign
            .map(|key| key.to_string())
            .iter()
            .cloned()
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
    );
    // Without excludeCIDRs, what is in a ServiceCIDR and belongs to no Service is stale.
    machine.backend().load(&empty).unwrap();
    assert_eq!(machine.listing().len(), 2);
}

#[test]
fn restart_changes_nothing_and_cleanup_leaves_nothing_but_foreign_servers() {
    let table = TestService { pods: 3, ..TestService::default() }.table();
    let machine = Machine::of(&table);
    let mut first = machine.backend();
    first.load(&table).unwrap();
    while first.maintain().unwrap() {}
    let before = machine.listing();
    machine.log();
    let mut again = machine.backend();
    let loaded = again.load(&table).unwrap();
    assert!(!loaded.is_initial && loaded.transactions == 0, "{loaded:?}");
    assert_eq!((machine.listing(), machine.log()), (before, vec![]));
    let foreign = IpvsChange::NewServer(key("10.96.9.9", 81), plain("rr"));
    machine.ipvs.lock().unwrap().apply(foreign).unwrap();
    let listed = again.cleanup(CleanupScope::Zoneward, true).unwrap();
    assert_eq!(machine.listing().len(), 5, "a dry run deletes nothing");
    let deleted = again.cleanup(CleanupScope::Zoneward, false).unwrap();
    assert!(deleted.len() == listed.len() && deleted.iter().all(|item| item.error.is_none()), "{deleted:?}");
    let names: Vec<&str> = deleted.iter().map(|item| item.name.as_str()).collect();
    assert!(names.contains(&"TCP 10.96.0.1:80") && names.contains(&"10.96.0.0/16"), "{names:?}");
    assert_eq!(machine.listing().into_keys().collect::<Vec<_>>(), ["TCP 10.96.9.9:81"]);
    assert!(machine.ipvs.lock().unwrap().routes().is_empty());
    assert!(again.trace(&[], &[]).is_err(), "no table is left");
}

#[test]
fn missing_modules_are_named() {
    let mut kernel = FakeIpvs::new(&[]).without(IpvsScheduler::Sed).without(IpvsScheduler::Wrr);
    assert_eq!(probe(&mut kernel, &[IpvsScheduler::Rr]), Ok(()));
    let missing = probe(&mut kernel, &[IpvsScheduler::Sed, IpvsScheduler::Wrr]);
    let modules = ["ip_vs_sed", "ip_vs_wrr"].map(str::to_owned).to_vec();
    assert_eq!(missing, Err(IpvsUnavailable::MissingModules(modules)));
    assert!(kernel.listing().is_empty(), "a probe leaves nothing");
    let machine = Machine { ipvs: Arc::new(Mutex::new(kernel)), ..Machine::new(&[]) };
    let table = TestService { pods: 1, ports: false, ..TestService::default() }.table();
    let settings = IpvsSettings { scheduler: IpvsScheduler::Sed, ..IpvsSettings::default() };
    let error = machine.backend_with(settings).load(&table).expect_err("no such scheduler");
    assert!(error.to_string().contains("load the kernel module ip_vs_sed"), "{error}");
    assert!(error.services().contains(&service::web()), "{error:?}");
}

#[test]
fn connections_are_counted_by_frontend_and_endpoint() {
    let table = TestService { pods: 2, ..TestService::default() }.table();
    let machine = Machine::of(&table);
    machine.backend().load(&table).unwrap();
    let mut kernel = machine.ipvs.clone();
    let mut known = BTreeMap::new();
    server_counts(&mut kernel, &mut known).unwrap();
    assert_eq!(
        server_counts(&mut kernel, &mut known).unwrap(),
        [],
        "idle virtual servers are not read again"
    );
    machine.ipvs.lock().unwrap().set_open("10.1.0.2:8080".parse().unwrap(), 3);
    let counts = server_counts(&mut kernel, &mut known).unwrap();
    let of_cluster_ip = counts.iter().filter(|count| count.frontend.ip().to_string() == "10.96.0.1");
    let counted: Vec<(String, u64)> =
        of_cluster_ip.map(|count| (count.endpoint.to_string(), count.connections)).collect();
    assert_eq!(counted, [("10.1.0.1:8080".to_owned(), 0), ("10.1.0.2:8080".to_owned(), 3)]);
}

#[test]
fn frontends_with_two_lists_of_endpoints_have_no_virtual_server() {
    let table = TestService { pods: 2, local: true, ..TestService::default() }.table();
    let machine = Machine::of(&table);
    machine.backend().load(&table).unwrap();
    assert_eq!(machine.listing().into_keys().collect::<Vec<_>>(), ["TCP 10.96.0.1:80"]);
}

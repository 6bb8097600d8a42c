//! The ipvs backend on a real kernel, in the virtual machine of `cargo xtask test --extended --only ipvs`: packets of the
//! packet-flow cases and of random clusters, sent for real, every scheduler, and what happens to connections when
//! endpoints go, the proxy restarts and its rules are cleaned up.

mod lifetime;
mod machine;
mod moves;

use crate::ipvs::service;
use crate::namespace;
use crate::packetflow::connect;
use crate::packetflow::net;
use crate::packetflow::site;
use crate::packetflow::traffic;
use crate::packetflow::world;

use dataplane::backend::NodeBackend;
use model::forward::{FirstPacket, ForwardingMode, PacketVerdict};
use plan::forward::table;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use connect::{Hope, Seen};
use machine::{Machine, set_sysctls};
use service::as_ipvs;
use site::Site;

#[test]
fn packets_sent_for_real_fare_as_the_cases_say() {
    namespace::enter_as_root();
    set_sysctls();
    let machine = Machine::default();
    let mut backend = machine.backend();
    traffic::packets_fare_as_the_cases_say(2, |scenario| {
        backend.load(&as_ipvs(scenario.table.clone())).unwrap();
    });
}

const CLUSTERS: usize = 8;
const PACKETS: usize = 10;

/// In one test: the namespaces around the node take longer to make than all of it.
#[test]
fn random_clusters_schedulers_weights_and_lifetimes() {
    namespace::enter_as_root();
    let start = std::time::Instant::now();
    set_sysctls();
    let site = Site::new();
    lifetime::say("namespaces", start);
    let machine = Machine::default();
    packets_of_random_clusters_fare_as_the_table_decides(&site, &machine);
    lifetime::say("random clusters", start);
    lifetime::schedulers_weights_and_lifetimes(&site, &machine, start);
}

fn packets_of_random_clusters_fare_as_the_table_decides(site: &Site, machine: &Machine) {
    let mut backend = machine.backend();
    let mut runner = TestRunner::deterministic();
    let (mut sent, mut carried) = (0, 0);
    for _ in 0..CLUSTERS {
        let mut world = world::world().new_tree(&mut runner).unwrap().current();
        world.settings.mode = ForwardingMode::Ipvs;
        let (table, _) = table(&world.snapshot(), &world.config());
        backend.load(&table).unwrap();
        let packets = || {
            let mut packet = world::packet().new_tree(&mut runner).unwrap().current();
            packet.iif = site.home(packet.src.ip()).1;
            packet
        };
        let mut drops = 0;
        let mut is_telling = |packet: &FirstPacket| {
            let verdict = table.decide(packet).verdict;
            drops += usize::from(verdict == PacketVerdict::Drop);
            let heard = verdict != PacketVerdict::Untouched && (verdict != PacketVerdict::Drop || drops <= 1);
            // A load balancer's address is local to the node, so it cannot be a client's, and its neighbours do not send
            // to the node what is for it.
            let balanced = ["192.0.2.1", "2001:db8:2::1"];
            let is_at_home = balanced.contains(&packet.dst.ip().to_string().as_str())
                && packet.iif.as_ref().is_some_and(|iif| *iif == "cbr0");
            heard && !is_at_home && !balanced.contains(&packet.src.ip().to_string().as_str())
        };
        let many = std::iter::repeat_with(packets).take(PACKETS * 100);
        let telling: Vec<FirstPacket> = many.filter(|packet| is_telling(packet)).collect();
        let is_carried = |packet: &&FirstPacket| {
            table.decide(packet).frontend.is_some_and(|f| table.node.is_forwarded_by_ipvs(f))
        };
        let through_ipvs = telling.iter().filter(is_carried).take(PACKETS);
        let others = telling.iter().filter(|packet| !is_carried(packet)).take(PACKETS / 2);
        carried += through_ipvs.clone().count();
        for packet in through_ipvs.chain(others) {
            let decision = table.decide(packet);
            let hope = if decision.verdict == PacketVerdict::Drop { Hope::Silence } else { Hope::Answer };
            let seen = site.send(packet, hope);
            let why = format!("{packet:?} {seen:?}\n{decision:#?}");
            match (&decision.verdict, &seen) {
                (PacketVerdict::Reject, Seen::Refused) | (PacketVerdict::Drop, Seen::Silence) => {}
                (PacketVerdict::Send(shares), Seen::Answered(endpoint, client)) => {
                    assert!(shares.iter().any(|(address, _)| address == endpoint), "{why}");
                    let is_itself = endpoint.ip() == packet.src.ip();
                    assert_eq!(*client != packet.src.ip(), decision.masquerade || is_itself, "{why}");
                }
                _ => panic!("{why}"),
            }
            sent += 1;
        }
    }
    assert!(sent > CLUSTERS * PACKETS / 2 && carried > 10, "{sent} packets, {carried} through IPVS: too few");
}

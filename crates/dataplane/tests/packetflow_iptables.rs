//! Packets of mode iptables through the very text that iptables-restore would get: the packet-flow cases, and agreement
//! with the table's own decision for random clusters.

use crate::packetflow::case;
use crate::packetflow::iptables_backend;
use crate::packetflow::world;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use dataplane::backend::{FrontendChange, NodeBackend, TracedVerdict};
use dataplane::iptables::IptablesBackend;
use dataplane::iptables::commands::IptablesFlavour;
use dataplane::iptables::fake::FakeIptables;
use dataplane::iptables::render::KernelFeatures;
use dataplane::iptables::ruleset::{IptablesEvaluation, IptablesNode, evaluate};
use model::forward::{
    EndpointSet, FirstPacket, ForwardedEndpoint, ForwardedPort, ForwardingDecision, ForwardingMode,
    FrontendAction, FrontendAddress, FrontendKind, Masquerade, NodeRules, PacketVerdict,
};
use model::{Family, ForwardingTable, Frontend, Protocol, ServiceKey, TrafficPolicy};
use plan::forward::table;
use proptest::prelude::*;

const FLAVOURS: [IptablesFlavour; 2] = [IptablesFlavour::Nft, IptablesFlavour::Legacy];

type SharedFake = Arc<Mutex<FakeIptables>>;

fn backend(flavour: IptablesFlavour, features: KernelFeatures) -> (IptablesBackend, SharedFake) {
    let fake = Arc::new(Mutex::new(FakeIptables::new(flavour)));
    (IptablesBackend::new(Box::new(fake.clone()), features), fake)
}

fn loaded(table: &ForwardingTable, flavour: IptablesFlavour, features: KernelFeatures) -> FakeIptables {
    let (mut backend, fake) = backend(flavour, features);
    backend.load(table).expect("the fake takes it");
    fake.lock().expect("no test panicked").clone()
}

fn evaluated(fake: &FakeIptables, table: &ForwardingTable, packet: &FirstPacket) -> IptablesEvaluation {
    let node = IptablesNode::new(&table.node.addresses);
    evaluate(fake.ruleset(Family::of(packet.dst.ip())), packet, &node).expect("every rule is understood")
}

#[test]
fn backend_loads_changes_repairs_traces_and_cleans_up_on_the_fake() {
    for flavour in FLAVOURS {
        iptables_backend::loads_changes_repairs_traces_and_cleans_up(FakeIptables::new(flavour));
    }
}

#[test]
fn every_packet_flow_case_holds_on_the_restored_text() {
    for scenario in case::scenarios_of("iptables") {
        for flavour in FLAVOURS {
            let fake = loaded(&scenario.table, flavour, KernelFeatures::default());
            for flow in &scenario.flows {
                let evaluation = evaluated(&fake, &scenario.table, &flow.packet);
                let whose = format!("{} flow {}: {evaluation:#?}", scenario.id, flow.n);
                assert_eq!(evaluation.verdict, iptables_backend::verdict(&flow.verdict), "{whose}");
                let endpoints: Vec<SocketAddr> = evaluation.endpoints.iter().map(|(e, _)| *e).collect();
                assert_eq!(endpoints, flow.endpoints, "{whose}");
                let share = 1.0 / flow.endpoints.len() as f64;
                assert!(evaluation.endpoints.iter().all(|(_, c)| (c - share).abs() < 1e-9), "{whose}");
                let is_dnat = evaluation.verdict == TracedVerdict::Dnat;
                assert_eq!(evaluation.masquerade && is_dnat, flow.masquerade, "{whose}");
            }
        }
    }
}

/// A Service with a cluster IP and a node port, and these weights.
fn frontends(number: u16, weights: &[f32]) -> Vec<Frontend> {
    let [high, low] = number.wrapping_mul(7919).to_be_bytes();
    let cluster_ip: std::net::IpAddr = [10, 96 + high % 16, high, low].into();
    let endpoint = |(index, weight): (usize, &f32)| {
        let ip = [10, 2 + (number % 200) as u8, (index / 250) as u8, (index % 250) as u8];
        ForwardedEndpoint::new(SocketAddr::from((ip, 8080)), *weight, false)
    };
    let port = Arc::new(ForwardedPort {
        service: ServiceKey::new(&"ns".into(), &format!("web-{number}").as_str().into()),
        name: "http".into(),
        cluster_ip,
        protocol: if number.is_multiple_of(3) { Protocol::Udp } else { Protocol::Tcp },
        number: 80,
        affinity_seconds: number.is_multiple_of(5).then_some(60),
        health_check_port: None,
        cluster: EndpointSet { endpoints: weights.iter().enumerate().map(endpoint).collect(), rounding: 0 },
        local: EndpointSet::default(),
    });
    let action = if weights.is_empty() {
        FrontendAction::Reject
    } else {
        FrontendAction::Send(TrafficPolicy::Cluster)
    };
    let frontend = |address, kind, masquerade| Frontend {
        address,
        kind,
        port: port.clone(),
        outside: action,
        inside: None,
        masquerade,
        source_ranges: None,
    };
    let node_port = FrontendAddress::node_port(Family::V4, port.protocol, 30_000 + number);
    vec![
        frontend(port.cluster_address(), FrontendKind::ClusterIp, Masquerade::NotPods),
        frontend(node_port, FrontendKind::NodePort, Masquerade::Everyone),
    ]
}

fn packet_to(dst: SocketAddr, protocol: Protocol) -> FirstPacket {
    FirstPacket { src: "203.0.113.9:40000".parse().expect("an address"), dst, protocol, iif: None }
}

#[test]
fn hundreds_of_services_are_found_by_the_trees() {
    let own = "198.51.100.1".parse().expect("an address");
    let node = NodeRules { mode: ForwardingMode::Iptables, addresses: [own].into(), ..NodeRules::default() };
    let mut table = ForwardingTable::new(node);
    for number in 0..700u16 {
        let weights: &[f32] = if number.is_multiple_of(4) { &[] } else { &[1.0, 3.0] };
        let frontends = frontends(number, weights);
        table.replace(&frontends[0].port.service.clone(), frontends);
    }
    for flavour in FLAVOURS {
        let fake = loaded(&table, flavour, KernelFeatures::default());
        let nat = &fake.ruleset(Family::V4).tables["nat"];
        let longest = nat
            .chains
            .iter()
            .filter(|(name, _)| name.starts_with("KUBE-SVC-IP-") || *name == "KUBE-SERVICES");
        assert!(longest.clone().count() > 10 && longest.clone().all(|(_, chain)| chain.rules.len() <= 17));
        for (_, frontends) in table.services().step_by(7) {
            let port = &frontends[0].port;
            for dst in [SocketAddr::new(port.cluster_ip, 80), SocketAddr::new(own, frontends[1].address.port)]
            {
                let packet = packet_to(dst, port.protocol);
                let evaluation = evaluated(&fake, &table, &packet);
                compare(&table.decide(&packet), &evaluation, &packet).expect("as the table decides");
            }
        }
        let other = packet_to("10.96.250.250:9".parse().expect("an address"), Protocol::Tcp);
        assert_eq!(evaluated(&fake, &table, &other).verdict, TracedVerdict::Untouched);
    }
}

#[test]
fn weights_and_thousands_of_endpoints_are_met_exactly() {
    let many: Vec<f32> = (0..2000u16).map(|i| 1.0 + f32::from(i % 7)).collect();
    for weights in [vec![3.0, 1.0, 1.5], many, vec![1.0; 3000]] {
        let frontends = frontends(1, &weights);
        let port = frontends[0].port.clone();
        let mut table =
            ForwardingTable::new(NodeRules { mode: ForwardingMode::Iptables, ..NodeRules::default() });
        table.replace(&port.service, frontends);
        let fake = loaded(&table, IptablesFlavour::Nft, KernelFeatures::default());
        let longest =
            fake.ruleset(Family::V4).tables["nat"].chains.values().map(|chain| chain.rules.len()).max();
        assert!(longest.is_some_and(|rules| rules <= 17), "{longest:?}");
        let packet = packet_to(SocketAddr::new(port.cluster_ip, 80), port.protocol);
        let evaluation = evaluated(&fake, &table, &packet);
        compare(&table.decide(&packet), &evaluation, &packet).expect("as the table decides");
    }
}

/// The table's decision and what the rules did must be the same, for each endpoint.
fn compare(
    decision: &ForwardingDecision<'_>,
    evaluation: &IptablesEvaluation,
    packet: &FirstPacket,
) -> Result<(), TestCaseError> {
    let (verdict, shares) = match &decision.verdict {
        PacketVerdict::Send(shares) => (TracedVerdict::Dnat, shares.clone()),
        PacketVerdict::Reject => (TracedVerdict::Reject, vec![]),
        PacketVerdict::Drop => (TracedVerdict::Drop, vec![]),
        PacketVerdict::Accept => (TracedVerdict::Accept, vec![]),
        PacketVerdict::Untouched => (TracedVerdict::Untouched, vec![]),
    };
    prop_assert_eq!(evaluation.verdict, verdict);
    if verdict != TracedVerdict::Dnat {
        return Ok(());
    }
    let chances: BTreeMap<SocketAddr, f64> = evaluation.endpoints.iter().copied().collect();
    prop_assert_eq!(chances.len(), shares.len());
    for (endpoint, share) in &shares {
        let chance = chances.get(endpoint).copied().unwrap_or_default();
        prop_assert!((chance - share).abs() <= 1e-8, "{} has {} of {}", endpoint, chance, share);
    }
    let seconds = decision.frontend.and_then(|f| f.port.affinity_seconds);
    prop_assert_eq!(evaluation.affinity, seconds.map(|s| u64::from(s) * 1000));
    for path in evaluation.paths.iter().filter(|path| path.verdict == TracedVerdict::Dnat) {
        // A pod that reaches itself is masqueraded whatever else holds (semantics D3).
        let itself = path.destination.ip() == packet.src.ip();
        prop_assert_eq!(path.masquerade, decision.masquerade || itself, "to {}", path.destination);
        prop_assert_eq!(path.mark, 0, "no mark is left behind");
    }
    Ok(())
}

fn iptables_table(world: &world::World, localhost: bool) -> ForwardingTable {
    let mut world = world.clone();
    world.settings.mode = ForwardingMode::Iptables;
    world.settings.localhost_node_ports = localhost;
    table(&world.snapshot(), &world.config()).0
}

/// The frontends of both tables, Service by Service.
fn changes<'t>(old: &'t ForwardingTable, new: &'t ForwardingTable) -> Vec<FrontendChange<'t>> {
    let keys: std::collections::BTreeSet<&ServiceKey> =
        old.services().chain(new.services()).map(|(key, _)| key).collect();
    let both =
        |key: &&ServiceKey| -> (&'t [Frontend], &'t [Frontend]) { (old.frontends(key), new.frontends(key)) };
    keys.iter().map(both).filter(|(old, new)| old != new).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_rules_do_what_the_table_decides(
        world in world::world(),
        localhost in any::<bool>(),
        (bpf, nfacct) in any::<(bool, bool)>(),
        packets in proptest::collection::vec(world::packet(), 40),
    ) {
        let table = iptables_table(&world, localhost);
        let features = KernelFeatures { bpf, nfacct, drops_invalid: true };
        let fake = loaded(&table, IptablesFlavour::Legacy, features);
        for packet in &packets {
            let decision = table.decide(packet);
            let evaluation = evaluated(&fake, &table, packet);
            compare(&decision, &evaluation, packet).map_err(|error| {
                let rules = fake.ruleset(Family::of(packet.dst.ip())).to_save(false);
                TestCaseError::fail(format!("{packet:?}\n{error}\n{decision:#?}\n{:#?}\n{rules}", evaluation.paths.first()))
            })?;
        }
    }

    #[test]
    fn changes_one_after_another_leave_the_rules_of_a_fresh_start(
        worlds in proptest::collection::vec(world::world(), 1..5),
        is_legacy in any::<bool>(),
    ) {
        let flavour = FLAVOURS[usize::from(is_legacy)];
        let (mut backend, fake) = backend(flavour, KernelFeatures::default());
        let tables: Vec<ForwardingTable> = worlds.iter().map(|world| {
            let same_node = world::World { settings: worlds[0].settings.clone(), zone: worlds[0].zone, ..world.clone() };
            iptables_table(&same_node, true)
        }).collect();
        backend.load(&tables[0]).expect("the fake takes it");
        for pair in tables.windows(2) {
            backend.change(&pair[1], &changes(&pair[0], &pair[1])).expect("the fake takes it");
            let fresh = loaded(&pair[1], flavour, KernelFeatures::default());
            for family in [Family::V4, Family::V6] {
                let held = fake.lock().expect("no test panicked").ruleset(family).to_save(false);
                prop_assert_eq!(held, fresh.ruleset(family).to_save(false));
            }
        }
        let counted = fake.lock().expect("no test panicked").inputs.len();
        backend.load(&tables[tables.len() - 1]).expect("the fake takes it");
        prop_assert_eq!(fake.lock().expect("no test panicked").inputs.len(), counted, "nothing differs from what is saved");
    }
}

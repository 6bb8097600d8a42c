//! Packets on the fake kernel, which got the very bytes that the real one would get: the packet-flow cases, and
//! agreement with the table's own decision for random clusters.

pub(crate) mod addresses;
pub(crate) mod any_backend;
pub(crate) mod backend;
pub(crate) mod case;
pub(crate) mod connect;
pub(crate) mod iptables_backend;
pub(crate) mod net;
pub(crate) mod node;
pub(crate) mod sctp;
#[allow(dead_code, reason = "tests of other crates use the rest of it")]
pub(crate) mod site;
pub(crate) mod traffic;
pub(crate) mod world;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use dataplane::backend::TracedVerdict;
use dataplane::nftables::apply::{apply, initial_load_groups, load};
use dataplane::nftables::fake::FakeKernel;
use dataplane::nftables::render::{Renderer, initial_load, protocol_number};
use dataplane::nftables::trace::{Evaluation, NodeAddresses, TracedPacket};
use model::forward::{
    self, EndpointSet, ForwardedEndpoint, ForwardedPort, ForwardingDecision, Frontend, FrontendAction,
    FrontendKind, Masquerade, PacketVerdict,
};
use model::{ForwardingTable, Protocol, ServiceKey, TrafficPolicy};
use plan::forward::table;
use proptest::prelude::*;

fn kernel(table: &ForwardingTable) -> FakeKernel {
    let mut kernel = FakeKernel::new();
    load(&mut kernel, initial_load_groups(&Renderer::start(table).1)).expect("the fake kernel takes it");
    kernel
}

fn evaluate(kernel: &FakeKernel, table: &ForwardingTable, packet: &forward::FirstPacket) -> Evaluation {
    let node = NodeAddresses { addresses: table.node.addresses.to_vec() };
    let mut sent = TracedPacket::new(protocol_number(packet.protocol), packet.src, packet.dst);
    sent.iif = packet.iif.as_ref().map(|name| name.as_str().into());
    kernel.evaluate(&sent, &node).expect("few ways")
}

#[test]
fn backend_loads_changes_repairs_traces_and_cleans_up_on_the_fake_kernel() {
    backend::backend_loads_changes_repairs_traces_and_cleans_up(FakeKernel::new());
}

#[test]
fn every_packet_flow_case_holds_on_the_bytes() {
    for scenario in case::scenarios() {
        let kernel = kernel(&scenario.table);
        for flow in &scenario.flows {
            let evaluation = evaluate(&kernel, &scenario.table, &flow.packet);
            let whose = format!("{} flow {}: {evaluation:#?}", scenario.id, flow.n);
            let fate = match flow.verdict.as_str() {
                "DNAT" => TracedVerdict::Dnat,
                "REJECT" => TracedVerdict::Reject,
                "DROP" => TracedVerdict::Drop,
                other => panic!("{whose}: unknown verdict {other}"),
            };
            assert_eq!(evaluation.verdict, fate, "{whose}");
            let endpoints: Vec<SocketAddr> = evaluation.endpoints.iter().map(|(e, _)| *e).collect();
            assert_eq!(endpoints, flow.endpoints, "{whose}");
            let share = 1.0 / flow.endpoints.len() as f64;
            assert!(evaluation.endpoints.iter().all(|(_, chance)| (chance - share).abs() < 1e-9), "{whose}");
            assert_eq!(evaluation.masquerade && fate == TracedVerdict::Dnat, flow.masquerade, "{whose}");
        }
    }
}

#[test]
fn weights_are_met_to_one_slot_and_thousands_of_endpoints_exactly() {
    let cluster_ip = "10.96.0.1".parse().expect("an address");
    let client = "10.1.9.9:40000".parse().expect("an address");
    let weighted = vec![3.0, 1.0, 1.5];
    for weights in [weighted, vec![1.0; 3000]] {
        let endpoints = weights.iter().enumerate().map(|(i, weight)| {
            let address = SocketAddr::from(([10, 2, (i / 250) as u8, (i % 250) as u8], 8080));
            ForwardedEndpoint::new(address, *weight, false)
        });
        let port = ForwardedPort {
            service: ServiceKey::new(&"ns".into(), &"web".into()),
            name: "http".into(),
            cluster_ip,
            protocol: Protocol::Sctp,
            number: 80,
            affinity_seconds: None,
            health_check_port: None,
            cluster: EndpointSet { endpoints: endpoints.collect(), rounding: 1 << 31 },
            local: EndpointSet::default(),
        };
        let frontend = Frontend {
            address: port.cluster_address(),
            kind: FrontendKind::ClusterIp,
            outside: FrontendAction::Send(TrafficPolicy::Cluster),
            inside: None,
            masquerade: Masquerade::NotPods,
            source_ranges: None,
            port: Arc::new(port),
        };
        let mut table = ForwardingTable::default();
        let set = frontend.port.cluster.clone();
        table.replace(&frontend.port.service.clone(), vec![frontend]);
        let packet = forward::FirstPacket {
            src: client,
            dst: SocketAddr::new(cluster_ip, 80),
            protocol: Protocol::Sctp,
            iif: None,
        };
        let evaluation = evaluate(&kernel(&table), &table, &packet);
        let slot = if set.is_even() { 1e-9 } else { 1.0 / 256.0 };
        assert_eq!(evaluation.endpoints.len(), weights.len());
        for ((address, chance), (planned, share)) in evaluation.endpoints.iter().zip(set.shares()) {
            assert_eq!(*address, planned);
            assert!((chance - share).abs() <= slot, "{address}: {chance} of {share}");
        }
    }
}

/// The table's decision and what the rules did must be the same, for each endpoint.
fn compare(
    decision: &ForwardingDecision<'_>,
    evaluation: &Evaluation,
    packet: &forward::FirstPacket,
) -> Result<(), TestCaseError> {
    let (fate, shares) = match &decision.verdict {
        PacketVerdict::Send(shares) => (TracedVerdict::Dnat, shares.clone()),
        PacketVerdict::Reject => (TracedVerdict::Reject, vec![]),
        PacketVerdict::Drop => (TracedVerdict::Drop, vec![]),
        PacketVerdict::Accept => (TracedVerdict::Accept, vec![]),
        PacketVerdict::Untouched => (TracedVerdict::Untouched, vec![]),
    };
    prop_assert_eq!(evaluation.verdict, fate);
    if fate != TracedVerdict::Dnat {
        return Ok(());
    }
    let chances: BTreeMap<SocketAddr, f64> = evaluation.endpoints.iter().copied().collect();
    let is_even =
        decision.frontend.zip(decision.scope).is_none_or(|(f, scope)| f.port.endpoints(scope).is_even());
    // Unequal shares are rounded to one of 256 slots; below one slot an endpoint may have none.
    let tolerance = if is_even { 1e-9 } else { 1.0 / 256.0 };
    prop_assert!(chances.keys().all(|endpoint| shares.iter().any(|(planned, _)| planned == endpoint)));
    for (endpoint, share) in &shares {
        let chance = chances.get(endpoint).copied().unwrap_or_default();
        prop_assert!((chance - share).abs() <= tolerance, "{} has {} of {}", endpoint, chance, share);
    }
    let seconds = decision.frontend.and_then(|f| f.port.affinity_seconds);
    prop_assert_eq!(evaluation.affinity, seconds.map(|s| u64::from(s) * 1000));
    for path in &evaluation.paths {
        // A pod that reaches itself is masqueraded whatever else holds (semantics D3).
        let itself = path.destination.ip() == packet.src.ip() && is_local(decision, path.destination);
        prop_assert_eq!(path.masquerade, decision.masquerade || itself, "to {}", path.destination);
        prop_assert_eq!(path.mark, 0, "no mark is left behind");
    }
    Ok(())
}

fn is_local(decision: &ForwardingDecision<'_>, endpoint: SocketAddr) -> bool {
    let Some((frontend, scope)) = decision.frontend.zip(decision.scope) else { return false };
    frontend.port.endpoints(scope).endpoints.iter().any(|e| e.address() == endpoint && e.is_local)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_rules_do_what_the_table_decides(
        world in world::world(),
        packets in proptest::collection::vec(world::packet(), 40),
    ) {
        let (table, _) = table(&world.snapshot(), &world.config());
        let kernel = kernel(&table);
        let mut other = FakeKernel::new();
        let mut renderer = Renderer::new(&table);
        load(&mut other, initial_load(&mut renderer, &table)).expect("the fake kernel takes it");
        let sweeps = std::iter::repeat_with(|| renderer.maintenance()).take_while(|changes| !changes.is_empty());
        sweeps.for_each(|changes| apply(&mut other, &changes).expect("the fake kernel takes it"));
        prop_assert!(kernel.ruleset() == other.ruleset(), "in portions it is the same");
        for packet in &packets {
            let decision = table.decide(packet);
            let evaluation = evaluate(&kernel, &table, packet);
            compare(&decision, &evaluation, packet).map_err(|error| {
                TestCaseError::fail(format!("{packet:?}\n{error}\n{decision:#?}\n{:#?}", evaluation.paths.first()))
            })?;
        }
    }
}

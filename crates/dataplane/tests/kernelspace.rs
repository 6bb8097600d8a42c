//! Mode kernelspace on the fake HNS: the objects of the packet-flow cases, packets, and random worlds with faults.

mod objects;
mod rounds;

use crate::packetflow::any_backend;
use crate::packetflow::case;
use crate::packetflow::world;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use dataplane::backend::{CleanupScope, NodeBackend, TracedVerdict};
use dataplane::kernelspace::fake::FakeHcn;
use dataplane::kernelspace::{
    Guid, HcnEndpoint, HcnKind, HcnObjects, KernelspaceBackend, KernelspaceSettings, LoadBalancer, Network,
    RemoteSubnet, render,
};
use model::ForwardingTable;
use model::forward::{ForwardingMode, PacketVerdict};
use plan::forward::table;
use proptest::prelude::*;

fn scenarios() -> Vec<case::Scenario> {
    case::scenarios_in("nftables", Some(ForwardingMode::Kernelspace))
}

fn settings() -> KernelspaceSettings {
    KernelspaceSettings { network_name: "pods".to_owned(), ..KernelspaceSettings::default() }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Pods 10.1.0.0/24 and fd00:1::/64 are on other nodes.
fn overlay() -> Network {
    let subnet = |range: &str, provider: &str| RemoteSubnet {
        range: range.parse().expect("a range"),
        provider: address(provider),
    };
    Network::overlay("pods", &[subnet("10.1.0.0/24", "192.168.0.9"), subnet("fd00:1::/64", "2001:db8::9")])
}

/// The endpoints that a fake holds.
fn held_endpoints(fake: &FakeHcn) -> BTreeMap<Guid, HcnEndpoint> {
    let all = [true, false].into_iter().flat_map(|ours| fake.objects(HcnKind::Endpoint, ours));
    all.map(|(id, value)| (id, serde_json::from_value(value).expect("an endpoint"))).collect()
}

fn rendered(table: &ForwardingTable, settings: &KernelspaceSettings, network: &Network) -> HcnObjects {
    render(table, settings, network, &held_endpoints(&FakeHcn::with_pods(network, table)))
}

#[test]
fn every_packet_of_the_cases_fares_as_the_table_decides() {
    for scenario in scenarios() {
        let network = Network::l2bridge("pods");
        let fake = Arc::new(Mutex::new(FakeHcn::with_pods(&network, &scenario.table)));
        let mut backend = KernelspaceBackend::new(Box::new(fake.clone()), settings());
        let loaded = backend.load(&scenario.table).unwrap();
        assert!(loaded.is_initial && loaded.problems.is_empty(), "{}: {loaded:?}", scenario.id);
        any_backend::assert_traced(&mut backend, &scenario);
        assert_eq!(backend.reconcile(&scenario.table).unwrap().transactions, 0, "{}", scenario.id);
        any_backend::empty_and_refill(&mut backend, &scenario.table);
        any_backend::assert_traced(&mut backend, &scenario);
        let listed = backend.cleanup(CleanupScope::AllProxies, true).unwrap().len();
        assert_eq!(backend.cleanup(CleanupScope::AllProxies, false).unwrap().len(), listed);
        assert!(!backend.has_services().unwrap());
        let fake = fake.lock().unwrap();
        assert!(fake.violations().is_empty(), "{:?}", fake.violations());
        assert!(fake.objects(HcnKind::Endpoint, true).is_empty(), "the endpoints that were made are deleted");
    }
}

#[test]
fn a_node_without_the_network_says_which_field_to_set() {
    let mut backend =
        KernelspaceBackend::new(Box::new(FakeHcn::new(&Network::l2bridge("other"))), settings());
    let error = backend.load(&ForwardingTable::default()).unwrap_err().to_string();
    assert!(error.contains("winkernel.networkName"), "{error}");
    let mut fake = FakeHcn::new(&Network::l2bridge("pods"));
    fake.set_away(true);
    let mut backend = KernelspaceBackend::new(Box::new(fake), settings());
    let error = backend.load(&ForwardingTable::default()).unwrap_err();
    assert!(error.to_string().contains("start the service hns") && !error.is_refusal(), "{error}");
}

/// What must hold of every load balancer.
fn check(
    table: &ForwardingTable,
    rendered: &HcnObjects,
    endpoints: &BTreeMap<Guid, HcnEndpoint>,
) -> Result<(), TestCaseError> {
    let frontends: Vec<_> = table.services().flat_map(|(_, frontends)| frontends).collect();
    let served = frontends.iter().filter(|frontend| frontend.is_served()).count();
    prop_assert_eq!(rendered.load_balancers.len(), served, "one for each frontend with endpoints");
    for (id, wanted) in &rendered.load_balancers {
        let object: &LoadBalancer = &wanted.object;
        prop_assert!(id.is_ours() && object.id == *id && object.port_mappings.len() == 1);
        let frontend = table.frontend(&wanted.address).expect("its frontend");
        let mapping = object.port_mappings[0];
        prop_assert_eq!(mapping.external_port, frontend.address.port);
        prop_assert_eq!(mapping.distribution_type == 2, frontend.port.affinity_seconds.is_some());
        for used in &object.host_compute_endpoints {
            let endpoint = rendered.endpoints.get(used).or_else(|| endpoints.get(used)).expect("it is there");
            prop_assert!(endpoint.addresses().any(|address| wanted.endpoints.contains(&address)));
        }
        let of_family = |address: &IpAddr| address.is_ipv6() == (object.flags & 2 != 0);
        prop_assert!(
            object.frontend_vips.iter().chain(&wanted.endpoints).chain(&object.source_vip).all(of_family)
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn load_balancers_do_what_the_table_decides(
        mut world in world::world(),
        packets in proptest::collection::vec(world::packet(), 30),
        is_overlay in any::<bool>(),
        enable_dsr in any::<bool>(),
    ) {
        world.settings.mode = ForwardingMode::Kernelspace;
        world.settings.node_port_addresses = vec!["all".to_owned()];
        let (table, _) = table(&world.snapshot(), &world.config());
        let network = if is_overlay { overlay() } else { Network::l2bridge("pods") };
        let settings = KernelspaceSettings { source_vip: Some(address("10.1.9.1")), enable_dsr, ..settings() };
        let fake = FakeHcn::with_pods(&network, &table);
        let pods = held_endpoints(&fake);
        check(&table, &render(&table, &settings, &network, &pods), &pods)?;
        let mut backend = KernelspaceBackend::new(Box::new(fake), settings);
        backend.load(&table).expect("the fake takes it");
        let traces = backend.trace(&packets, &table.node.addresses).expect("HNS is there");
        for (packet, trace) in packets.iter().zip(traces) {
            let decision = table.decide(packet);
            let found: Vec<SocketAddr> = trace.endpoints.iter().map(|(address, _)| *address).collect();
            match &decision.verdict {
                PacketVerdict::Send(shares) => {
                    prop_assert_eq!(trace.verdict, TracedVerdict::Dnat, "{:?}", packet);
                    let mut planned: Vec<SocketAddr> = shares.iter().map(|(address, _)| *address).collect();
                    planned.sort();
                    prop_assert_eq!(found, planned);
                    prop_assert!(shares.iter().all(|(_, share)| (share - shares[0].1).abs() < 1e-9));
                }
                verdict => {
                    prop_assert_eq!(verdict, &PacketVerdict::Untouched);
                    prop_assert_eq!(trace.verdict, TracedVerdict::Untouched, "{:?}", packet);
                }
            }
        }
    }
}

//! One function decides: a table made at once, a table kept up by changes in a kernel, and the answer of `trace packet` are
//! the same, in random clusters under random configurations and gates.

#[path = "../../../../../dataplane/tests/packetflow/addresses.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod addresses;
#[path = "../../../../../dataplane/tests/packetflow/world.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod world;

use std::collections::BTreeSet;

use fixtures::object;
use model::{Object, ServiceKey, Snapshot};
use plan::NodeGates;
use plan::forward::{Forwarder, NodeConfig, ProxySettings, ServiceDelta};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use node::config::{Configuration, resolve};
use node::kernel::apply_deltas;
use node::offline::settings;
use world::Spec;

/// The settings as an operator writes them.
fn configuration(settings: &ProxySettings) -> Configuration {
    let NodeGates { select, external_ips, service_cidrs, localhost_node_ports } = settings.gates;
    let gates = [
        ("ServiceTrafficDistribution", select.service_traffic_distribution),
        ("PreferSameTrafficDistribution", select.prefer_same_traffic_distribution),
        ("TopologyAwareHints", select.topology_aware_hints),
        ("AllowServiceExternalIPs", external_ips),
        ("MultiCIDRServiceAllocator", service_cidrs),
        ("KubeProxyNFTablesLocalhostNodePorts", localhost_node_ports),
    ];
    let mut configuration = Configuration {
        mode: "nftables".to_owned(),
        cluster_cidr: settings.cluster_cidr.clone(),
        detect_local_mode: settings.detect_local_mode.clone(),
        node_port_addresses: settings.node_port_addresses.clone(),
        feature_gates: gates.map(|(name, on)| (name.to_owned(), on)).into(),
        ..Configuration::default()
    };
    configuration.detect_local.bridge_interface.clone_from(&settings.bridge_interface);
    configuration.detect_local.interface_name_prefix.clone_from(&settings.interface_name_prefix);
    configuration.nftables.masquerade_all = settings.masquerade_all;
    configuration.nftables.masquerade_bit = settings.masquerade_bit;
    configuration
}

/// The node that runs: changes come one at a time, into a kernel.
struct Live {
    forwarder: Forwarder,
    backend: NftablesBackend,
}

impl Live {
    fn start(world: &world::World, snapshot: &Snapshot) -> Self {
        let (settings, _) = resolve(configuration(&world.settings), false).unwrap();
        let cidrs: Vec<_> = snapshot.service_cidrs().flat_map(|c| c.cidrs.iter().copied()).collect();
        let (config, _) = NodeConfig::new(&settings.proxy, &world.node(), &cidrs, &more_addresses());
        let mut live = Self {
            forwarder: Forwarder::new(config.clone()),
            backend: NftablesBackend::new(Box::new(FakeKernel::new())),
        };
        live.forwarder.rebuild(snapshot, config);
        live.backend.load(live.forwarder.table()).unwrap();
        live
    }

    fn sync(&mut self, key: ServiceKey, snapshot: &Snapshot) {
        let deltas = self.forwarder.update(snapshot, &BTreeSet::from([key]));
        let deltas: Vec<&ServiceDelta> = deltas.iter().collect();
        assert_eq!(apply_deltas(&mut self.backend, &mut self.forwarder, &deltas).unwrap(), []);
        while self.backend.maintain().unwrap() {}
    }
}

fn more_addresses() -> Vec<std::net::IpAddr> {
    world::MORE.iter().map(|text| text.parse().unwrap()).collect()
}

/// The cluster with its Node and its ServiceCIDRs.
fn snapshot(world: &world::World) -> Snapshot {
    let mut snapshot = world.snapshot();
    snapshot.apply(Object::Node(world.node().into()));
    let cidrs = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"}, "spec": {"cidrs": world::SERVICE_CIDRS}});
    snapshot.apply(object(&cidrs));
    snapshot
}

/// What `trace packet` and `plan node` make of the same cluster and configuration.
fn offline(world: &world::World, snapshot: Snapshot) -> (NodeWorld, LoadedObjects) {
    let mut notices = Vec::new();
    let settings = settings(None, None, Some(configuration(&world.settings)), &mut notices).unwrap();
    let choice = NodeChoice::of("here", settings, more_addresses());
    let read = LoadedObjects { snapshot, ..LoadedObjects::default() };
    (NodeWorld::new(&choice, &read).unwrap(), read)
}

fn without_reasons(trace: &Trace<'_>) -> Value {
    let mut value = trace.value();
    value["why"].take();
    value
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_offline_table_the_live_one_and_the_trace_agree(
        mut world in world::world(),
        edits in proptest::collection::vec((world::spec(), any::<bool>()), 1..6),
        packets in proptest::collection::vec(world::packet(), 25),
    ) {
        let mut live = Live::start(&world, &snapshot(&world));
        for (spec, stays) in edits {
            let name = Spec::name(&spec);
            world.services.retain(|service| service.name() != name);
            if stays {
                world.services.push(spec);
            }
            live.sync(ServiceKey::new(&"ns".into(), &name.as_str().into()), &snapshot(&world));
        }
        let (node, read) = offline(&world, snapshot(&world));
        prop_assert_eq!(&node.table, live.forwarder.table());
        prop_assert_eq!(&node.config, live.forwarder.config());
        let by_files = trace(&packets, &mut *super::offline(&node, Default::default()).unwrap(), &node, &read).unwrap();
        let by_kernel = trace(&packets, &mut live.backend, &node, &read).unwrap();
        for (by_files, by_kernel) in by_files.iter().zip(&by_kernel) {
            let packet = by_files.packet;
            prop_assert_eq!(&by_files.differs, &None, "{:?}", packet);
            prop_assert_eq!(&by_kernel.differs, &None, "{:?}", packet);
            prop_assert_eq!(without_reasons(by_files), without_reasons(by_kernel), "{:?}", packet);
        }
    }
}

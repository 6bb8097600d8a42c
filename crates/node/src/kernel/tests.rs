//! The tables on a fake kernel: starts, changes, other hands, refusals.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use dataplane::nftables::fake::FakeKernel;
use dataplane::nftables::ir::Change;
use dataplane::nftables::netlink::Query;
use dataplane::nftables::render::render;
use model::{Interner, Snapshot, parse};
use nix::errno::Errno;
use plan::forward::{NodeConfig, ProxySettings};
use serde_json::json;

use dataplane::nftables::diff::diff;

use super::*;

/// A kernel that several hold, and that refuses what mentions certain bytes.
#[derive(Clone)]
struct Shared {
    kernel: Arc<Mutex<FakeKernel>>,
    refuses: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Shared {
    fn program(&self) -> Program {
        self.kernel.lock().unwrap().program().clone()
    }
}

impl Kernel for Shared {
    fn transact(&mut self, batch: &[u8]) -> Result<(), NetlinkError> {
        let refused = self.refuses.lock().unwrap();
        if refused.iter().any(|bytes| batch.windows(bytes.len()).any(|window| window == bytes)) {
            return Err(NetlinkError::Refused { seq: 2, errno: Errno::EINVAL, text: None });
        }
        self.kernel.lock().unwrap().transact(batch)
    }

    fn dump(&mut self, query: &Query) -> Result<Vec<u8>, NetlinkError> {
        self.kernel.lock().unwrap().dump(query)
    }

    fn generation(&mut self) -> Result<u32, NetlinkError> {
        self.kernel.lock().unwrap().generation()
    }

    fn longest_batch(&self) -> usize {
        self.kernel.lock().unwrap().longest_batch()
    }
}

struct World {
    kernel: Shared,
    tables: Tables,
    forwarder: Forwarder,
    snapshot: Snapshot,
}

fn config() -> NodeConfig {
    NodeConfig::new(&ProxySettings::default(), &super::super::unknown("n1"), &[], &[]).0
}

impl World {
    fn new() -> Self {
        let kernel = Shared { kernel: Arc::new(Mutex::new(FakeKernel::new())), refuses: Arc::default() };
        let tables = Tables::new(Box::new(kernel.clone()));
        let forwarder = Forwarder::new(config());
        Self { kernel, tables, forwarder, snapshot: Snapshot::default() }
    }

    /// A Service with endpoints 10.1.`number`.1 to 10.1.`number`.`endpoints`.
    fn set(&mut self, number: u8, endpoints: u8) -> ServiceKey {
        let name = format!("s{number}");
        let list: Vec<_> =
            (1..=endpoints).map(|i| json!({"addresses": [format!("10.1.{number}.{i}")]})).collect();
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"clusterIPs": [format!("10.96.0.{number}")], "ports": [{"name": "p", "port": 80}]}});
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4", "ports": [{"name": "p", "port": 8080}], "endpoints": list});
        for value in [service, slice] {
            let (object, notices) = parse::object(&value, &mut Interner::default());
            assert!(notices.is_empty(), "{notices:?}");
            self.snapshot.apply(object.unwrap());
        }
        ServiceKey::new(&"default".into(), &name.as_str().into())
    }

    fn sync(&mut self, dirty: &[ServiceKey]) -> Vec<Failed> {
        let dirty: BTreeSet<ServiceKey> = dirty.iter().cloned().collect();
        let deltas = self.forwarder.update(&self.snapshot, &dirty);
        let deltas: Vec<&ServiceDelta> = deltas.iter().collect();
        make(&mut self.tables, &mut self.forwarder, &deltas).unwrap()
    }

    fn assert_in_kernel(&self) {
        let sizes = self.tables.renderer.as_ref().unwrap().sizes();
        let wanted = render(self.forwarder.table(), sizes);
        let difference = diff(&self.kernel.program(), &wanted);
        assert!(difference.is_empty(), "{difference:?}");
    }
}

#[test]
fn start_over_rules_that_are_there_changes_nothing() {
    let mut world = World::new();
    let keys: Vec<_> = (1..=5).map(|n| world.set(n, 3)).collect();
    world.sync(&keys);
    while world.tables.tidy().unwrap() {}
    let before = world.kernel.program();
    let generation = world.kernel.generation().unwrap();
    let mut again = Tables::new(Box::new(world.kernel.clone()));
    world.forwarder.rebuild(&world.snapshot, config());
    let compared = again.compare(world.forwarder.table()).unwrap();
    assert_eq!(compared, Compared::default());
    assert_eq!(world.kernel.generation().unwrap(), generation, "no transaction");
    assert!(world.kernel.program() == before);
}

#[test]
fn what_another_hand_altered_is_noticed_and_repaired() {
    let mut world = World::new();
    let keys: Vec<_> = (1..=5).map(|n| world.set(n, 3)).collect();
    world.sync(&keys);
    while world.tables.tidy().unwrap() {}
    world.tables.compare(world.forwarder.table()).unwrap();
    assert!(world.tables.is_untouched());
    let key = world.set(2, 2);
    world.sync(&[key]);
    assert!(world.tables.is_untouched(), "our own changes are counted");
    let chain = Change::FlushChain { table: table_id(Family::V4), chain: "services".into() };
    apply(&mut world.kernel.clone(), &[chain]).unwrap();
    assert!(!world.tables.is_untouched());
    let compared = world.tables.compare(world.forwarder.table()).unwrap();
    assert!(compared.changes > 0 && !compared.is_first);
    world.assert_in_kernel();
    let table = Change::DeleteTable { table: table_id(Family::V4) };
    apply(&mut world.kernel.clone(), &[table]).unwrap();
    assert!(!world.tables.is_untouched());
    world.tables.compare(world.forwarder.table()).unwrap();
    while world.tables.tidy().unwrap() {}
    world.assert_in_kernel();
}

#[test]
fn service_that_the_kernel_refuses_does_not_stop_the_others() {
    let mut world = World::new();
    let keys: Vec<_> = (1..=9).map(|n| world.set(n, 2)).collect();
    world.sync(&keys);
    world.kernel.refuses.lock().unwrap().push(vec![10, 1, 4, 3, 0x1f, 0x90]);
    let keys: Vec<_> = (1..=9).map(|n| world.set(n, 3)).collect();
    let failed = world.sync(&keys);
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].service.name, "s4");
    for key in &keys {
        let frontends = world.forwarder.table().frontends(key);
        let endpoints = frontends[0].port.cluster.endpoints.len();
        assert_eq!(endpoints, if key.name == "s4" { 2 } else { 3 }, "{key}");
    }
    while world.tables.tidy().unwrap() {}
    world.assert_in_kernel();
    // Once the kernel takes it, it gets it.
    world.kernel.refuses.lock().unwrap().clear();
    assert_eq!(world.sync(&keys), []);
    assert_eq!(world.forwarder.table().frontends(&keys[3])[0].port.cluster.endpoints.len(), 3);
    while world.tables.tidy().unwrap() {}
    world.assert_in_kernel();
}

#[test]
fn hundreds_of_changes_leave_what_a_fresh_start_would() {
    let mut world = World::new();
    let mut dice = 7_u64;
    let mut roll = |below: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % below
    };
    for round in 0..300 {
        let count = roll(4);
        let keys: Vec<_> = (0..=count).map(|_| world.set(roll(40) as u8, roll(12) as u8)).collect();
        world.sync(&keys);
        if round % 7 == 0 {
            world.tables.tidy().unwrap();
        }
    }
    while world.tables.tidy().unwrap() {}
    world.assert_in_kernel();
}

//! Full and partial syncs on a fake kernel: after a start, after changes by other programs, after errors of the kernel.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use dataplane::backend::Reconciled;
use dataplane::nftables::apply::apply;
use dataplane::nftables::diff::diff;
use dataplane::nftables::fake::{FakeKernel, FaultyKernel};
use dataplane::nftables::ir::{NftChange, Ruleset};
use dataplane::nftables::render::{render, table_id};
use dataplane::nftables::{Kernel, NftablesBackend};
use fixtures::object;
use model::{Family, Snapshot};
use plan::forward::{NodeConfig, ProxySettings};
use serde_json::json;

use super::*;

type SharedKernel = Arc<Mutex<FaultyKernel<FakeKernel>>>;

struct World {
    kernel: SharedKernel,
    backend: NftablesBackend,
    forwarder: Forwarder,
    snapshot: Snapshot,
}

fn config() -> NodeConfig {
    NodeConfig::new(&ProxySettings::without_flags(), &model::Node::named("n1"), &[], &[]).0
}

impl World {
    fn new() -> Self {
        let kernel = Arc::new(Mutex::new(FaultyKernel::new(FakeKernel::new(), &[])));
        let backend = NftablesBackend::new(Box::new(kernel.clone()));
        let forwarder = Forwarder::new(config());
        Self { kernel, backend, forwarder, snapshot: Snapshot::default() }
    }

    /// A Service with endpoints 10.1.`number`.1 to 10.1.`number`.`endpoints`.
    fn set(&mut self, number: u8, endpoints: u8) -> ServiceKey {
        let name = format!("s{number}");
        let list: Vec<_> =
            (1..=endpoints).map(|i| json!({"addresses": [format!("10.1.{number}.{i}")]})).collect();
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"clusterIPs": [format!("10.96.0.{number}")], "ports": [{"name": "p", "port": 80}]}});
        let slice = fixtures::slice("default", &name, &name, json!({"name": "p", "port": 8080}), &list);
        for value in [service, slice] {
            self.snapshot.apply(object(&value));
        }
        ServiceKey::new(&"default".into(), &name.as_str().into())
    }

    fn sync(&mut self, dirty: &[ServiceKey]) -> Vec<RefusedService> {
        let dirty: BTreeSet<ServiceKey> = dirty.iter().cloned().collect();
        let deltas = self.forwarder.update(&self.snapshot, &dirty);
        let deltas: Vec<&ServiceDelta> = deltas.iter().collect();
        apply_deltas(&mut self.backend, &mut self.forwarder, &deltas).unwrap()
    }

    fn ruleset(&self) -> Ruleset {
        self.kernel.lock().unwrap().kernel.ruleset().clone()
    }

    fn refuse_transactions_with(&self, bytes: &[u8]) {
        self.kernel.lock().unwrap().refuse_transactions_with(vec![bytes.to_vec()]);
    }

    fn assert_in_kernel(&self) {
        let sizes = self.backend.set_sizes().unwrap();
        let wanted = render(self.forwarder.table(), sizes);
        let difference = diff(&self.ruleset(), &wanted);
        assert!(difference.is_empty(), "{difference:?}");
    }
}

#[test]
fn start_over_rules_that_are_there_changes_nothing() {
    let mut world = World::new();
    let keys: Vec<_> = (1..=5).map(|n| world.set(n, 3)).collect();
    world.sync(&keys);
    while world.backend.maintain().unwrap() {}
    let before = world.ruleset();
    let generation = world.kernel.generation().unwrap();
    let mut again = NftablesBackend::new(Box::new(world.kernel.clone()));
    world.forwarder.rebuild(&world.snapshot, config());
    let compared = again.load(world.forwarder.table()).unwrap();
    assert_eq!(compared, Reconciled::default());
    assert_eq!(world.kernel.generation().unwrap(), generation, "no transaction");
    assert!(world.ruleset() == before);
}

#[test]
fn what_another_hand_altered_is_noticed_and_repaired() {
    let mut world = World::new();
    let keys: Vec<_> = (1..=5).map(|n| world.set(n, 3)).collect();
    world.sync(&keys);
    while world.backend.maintain().unwrap() {}
    world.backend.load(world.forwarder.table()).unwrap();
    assert!(world.backend.is_unmodified());
    let key = world.set(2, 2);
    world.sync(&[key]);
    assert!(world.backend.is_unmodified(), "our own changes are counted");
    let chain = NftChange::FlushChain { table: table_id(Family::V4), chain: "services".into() };
    apply(&mut world.kernel.clone(), &[chain]).unwrap();
    assert!(!world.backend.is_unmodified());
    let compared = world.backend.load(world.forwarder.table()).unwrap();
    assert!(compared.transactions > 0 && !compared.is_initial);
    world.assert_in_kernel();
    let table = NftChange::DeleteTable { table: table_id(Family::V4) };
    apply(&mut world.kernel.clone(), &[table]).unwrap();
    assert!(!world.backend.is_unmodified());
    world.backend.load(world.forwarder.table()).unwrap();
    while world.backend.maintain().unwrap() {}
    world.assert_in_kernel();
}

#[test]
fn service_that_the_kernel_refuses_does_not_stop_the_others() {
    let mut world = World::new();
    let keys: Vec<_> = (1..=9).map(|n| world.set(n, 2)).collect();
    world.sync(&keys);
    world.refuse_transactions_with(&[10, 1, 4, 3, 0x1f, 0x90]);
    let keys: Vec<_> = (1..=9).map(|n| world.set(n, 3)).collect();
    let failed = world.sync(&keys);
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].service.name, "s4");
    for key in &keys {
        let frontends = world.forwarder.table().frontends(key);
        let endpoints = frontends[0].port.cluster.endpoints.len();
        assert_eq!(endpoints, if key.name == "s4" { 2 } else { 3 }, "{key}");
    }
    while world.backend.maintain().unwrap() {}
    world.assert_in_kernel();
    // Once the kernel takes it, it gets it.
    world.kernel.lock().unwrap().refuse_transactions_with(Vec::new());
    assert_eq!(world.sync(&keys), []);
    assert_eq!(world.forwarder.table().frontends(&keys[3])[0].port.cluster.endpoints.len(), 3);
    while world.backend.maintain().unwrap() {}
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
            world.backend.maintain().unwrap();
        }
    }
    while world.backend.maintain().unwrap() {}
    world.assert_in_kernel();
}

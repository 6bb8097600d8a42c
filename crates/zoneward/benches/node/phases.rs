//! The parts of a start that are ours alone, for counting instructions: reading, deciding, rendering, one change.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::{Duration, Instant};

use dataplane::backend::NodeBackend;
use dataplane::nftables::NftablesBackend;
use dataplane::nftables::fake::FakeKernel;
use model::{Interner, ServiceKey, Snapshot, parse};
use node::kernel::apply_deltas;
use plan::forward::{Forwarder, NodeConfig, ProxySettings, ServiceDelta};

use super::world::{ENDPOINTS, service, slice};

fn texts(services: usize) -> Vec<(&'static str, &'static str, String)> {
    let of = |number: usize| {
        [
            ("v1", "Service", service(number).to_string()),
            ("discovery.k8s.io/v1", "EndpointSlice", slice(number, 0).to_string()),
        ]
    };
    (0..services).flat_map(of).collect()
}

/// What it takes to read all objects once.
pub(crate) fn json_cpu(services: usize) -> Duration {
    let texts = texts(services);
    let begin = Instant::now();
    black_box(phase_read(&texts));
    begin.elapsed()
}

#[inline(never)]
fn phase_read(texts: &[(&'static str, &'static str, String)]) -> Snapshot {
    let (mut snapshot, mut interner) = (Snapshot::default(), Interner::default());
    for (version, kind, text) in texts {
        let (object, _) = parse::text(version, kind, text, &mut interner);
        snapshot.apply(object.expect("a good object"));
    }
    snapshot
}

#[inline(never)]
fn phase_decide(forwarder: &mut Forwarder, snapshot: &Snapshot) {
    let node = model::Node::named("n1");
    let (config, _) = NodeConfig::new(&ProxySettings::without_flags(), &node, &[], &[]);
    forwarder.rebuild(snapshot, config);
}

#[inline(never)]
fn phase_load(backend: &mut NftablesBackend, forwarder: &Forwarder) {
    backend.load(forwarder.table()).expect("the fake kernel takes it");
}

#[inline(never)]
fn phase_change(
    backend: &mut NftablesBackend,
    forwarder: &mut Forwarder,
    snapshot: &Snapshot,
    key: &ServiceKey,
) {
    let deltas = forwarder.update(snapshot, &BTreeSet::from([key.clone()]));
    let deltas: Vec<&ServiceDelta> = deltas.iter().collect();
    apply_deltas(backend, forwarder, &deltas).expect("the fake kernel takes it");
}

pub(crate) fn run(services: usize) {
    println!("{} endpoints", services * ENDPOINTS);
    let mut snapshot = phase_read(&texts(services));
    let mut forwarder = Forwarder::new(NodeConfig::without_flags("".into()));
    phase_decide(&mut forwarder, &snapshot);
    let mut backend = NftablesBackend::new(Box::new(FakeKernel::new()));
    phase_load(&mut backend, &forwarder);
    let object = parse::object(&slice(7, 1), &mut Interner::default()).0.expect("a good slice");
    snapshot.apply(object);
    let key = ServiceKey::new(&"team-7".into(), &"service-00007".into());
    phase_change(&mut backend, &mut forwarder, &snapshot, &key);
}

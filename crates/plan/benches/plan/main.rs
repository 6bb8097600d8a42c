//! What deciding costs: 10,000 Services x 10 endpoints, 1,000 nodes, 3 zones.
//!
//! Run it with `cargo xtask bench plan`. Times are the best of several passes, and what matters are the ratios
//! against a floor in the same run: one pass of `serde_json` over the same objects that keeps nothing.

#![allow(unreachable_pub)]

mod allocation;
mod hints;
mod world;

use std::hint::black_box;
use std::time::{Duration, Instant};

use model::{Family, Interner, Object, Snapshot};
use plan::FeatureGates;
use plan::select::{NodeView, select};
use plan::slices::{self, SlicePlan, TriggerTimes};
use serde::de::IgnoredAny;
use world::Manifests;

#[global_allocator]
static COUNTING: allocation::Counting = allocation::Counting;

const SERVICES: usize = 10_000;
const PASSES: usize = 9;

fn main() {
    let count_only = std::env::var_os("ZONEWARD_BENCH_COUNT").is_some();
    let wanted = std::env::var("ZONEWARD_BENCH_SERVICES").ok().and_then(|n| n.parse().ok());
    let services = wanted.unwrap_or(if count_only { 1_000 } else { SERVICES });
    let passes = if count_only { 1 } else { PASSES };
    let manifests = Manifests::new(services);
    println!(
        "world: {services} services, {} endpoints, {} nodes, {:.1} MB of JSON ({:.1} MB without pods)",
        manifests.endpoints(),
        manifests.nodes.len(),
        manifests.bytes() as f64 / 1e6,
        manifests.routed_bytes() as f64 / 1e6,
    );
    report(&manifests, passes);
}

fn report(manifests: &Manifests, passes: usize) {
    let endpoints = manifests.endpoints();
    let floor = best(passes, || phase_floor_of_routed_objects(manifests));
    let line = |what: &str, time: Duration, note: &str| {
        let each = time.as_nanos() as f64 / endpoints as f64;
        let ratio = time.as_secs_f64() / floor.as_secs_f64();
        println!("{what:<44} {:>9.2} ms {each:>8.0} ns/endpoint {ratio:>7.2} x floor  {note}", ms(time));
    };
    line("floor: IgnoredAny over Services, slices, nodes", floor, "");
    let floor_all = best(passes, || phase_floor_of_all_objects(manifests));
    line("IgnoredAny over all, pods too", floor_all, "");
    line("parse all", best(passes, || drop(phase_parse(manifests))), "");

    let held_before = allocation::held();
    let (snapshot, interner) = phase_parse(manifests);
    let held = allocation::held() - held_before;
    let held_before = allocation::held();
    let (routed, routed_interner) = parse_routed(manifests);
    let held_routed = allocation::held() - held_before;
    line("slices of all, from nothing", best(passes, || phase_slices_from_nothing(&snapshot)), "");
    line("slices of all, nothing to change", best(passes, || phase_slices_unchanged(&snapshot)), "");
    hints::report(&snapshot, passes);
    let selecting = best(passes, || phase_select_all(&routed));
    line("select all on one node", selecting, "goal: 0.25 x floor or less");
    println!(
        "held with pods, all names and indexes counted: {} bytes per endpoint (goal: under 400)",
        held / endpoints
    );
    println!("held without pods, as a node proxy does:       {} bytes per endpoint", held_routed / endpoints);
    drop((snapshot, interner, routed, routed_interner));
    one_change(manifests, passes);
}

/// One changed slice, in worlds of a tenth and of the full size: the cost must be the Service's, not the world's.
fn one_change(manifests: &Manifests, passes: usize) {
    let small = Manifests::new((manifests.services.len() / 10).max(1));
    for world in [&small, manifests] {
        let (mut snapshot, mut interner) = parse_routed(world);
        let turns = 1_000.min(world.slices.len());
        let time = best(passes, || phase_one_changed_slice(world, &mut snapshot, &mut interner, turns));
        println!(
            "one changed slice among {:>6} services          {:>9.2} us (parse, apply, select its Service)",
            world.services.len(),
            time.as_secs_f64() * 1e6 / turns as f64,
        );
    }
}

pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

pub(crate) fn best(passes: usize, mut run: impl FnMut()) -> Duration {
    let one = |()| {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    std::iter::repeat_n((), passes).map(one).min().unwrap_or_default()
}

#[inline(never)]
fn phase_floor_of_routed_objects(manifests: &Manifests) {
    for json in manifests.routed() {
        black_box(serde_json::from_slice::<IgnoredAny>(json).expect("JSON"));
    }
}

#[inline(never)]
fn phase_floor_of_all_objects(manifests: &Manifests) {
    for json in manifests.routed().chain(&manifests.pods) {
        black_box(serde_json::from_slice::<IgnoredAny>(json).expect("JSON"));
    }
}

#[inline(never)]
fn phase_parse(manifests: &Manifests) -> (Snapshot, Interner) {
    let (mut snapshot, mut interner) = parse_routed(manifests);
    for json in &manifests.pods {
        let pod = serde_json::from_slice(json).expect("a Pod");
        let pod = model::parse::pod(&pod, &mut interner).expect("a good Pod");
        snapshot.apply(Object::Pod(pod.into()));
    }
    (snapshot, interner)
}

/// What a node proxy holds: everything but pods.
fn parse_routed(manifests: &Manifests) -> (Snapshot, Interner) {
    let (mut snapshot, mut interner) = (Snapshot::default(), Interner::default());
    for json in &manifests.nodes {
        let node = serde_json::from_slice(json).expect("a Node");
        let node = model::parse::node(&node, &mut interner).expect("a good Node");
        snapshot.apply(Object::Node(node.into()));
    }
    for json in &manifests.services {
        let service = serde_json::from_slice(json).expect("a Service");
        let service =
            model::parse::service(&service, &mut interner, &mut Vec::new()).expect("a good Service");
        snapshot.apply(Object::Service(service.into()));
    }
    for json in &manifests.slices {
        snapshot.apply(parse_slice(json, &mut interner));
    }
    (snapshot, interner)
}

fn parse_slice(json: &[u8], interner: &mut Interner) -> Object {
    let slice = serde_json::from_slice(json).expect("an EndpointSlice");
    Object::Slice(model::parse::slice(&slice, interner).expect("a good EndpointSlice").into())
}

fn plan_slices(snapshot: &Snapshot, with_existing: bool) -> usize {
    let options = slices::SliceOptions::WITHOUT_FLAGS;
    let trigger = TriggerTimes::default();
    let mut writes = 0;
    for (service, existing) in snapshot.services() {
        let selector = service.selector.as_ref().expect("a selector");
        let pods = snapshot.pods_selected(&service.key.namespace, selector);
        let existing = if with_existing { existing } else { &[] };
        let nodes = snapshot.nodes();
        let input = slices::SliceInput { service, pods: &pods, nodes, slices: existing, trigger: &trigger };
        let plan: SlicePlan = slices::plan(&input, &options, |_, _| {});
        writes += plan.creates.len() + plan.updates.len() + plan.deletes.len();
    }
    writes
}

#[inline(never)]
fn phase_slices_from_nothing(snapshot: &Snapshot) {
    assert_eq!(plan_slices(snapshot, false), snapshot.services().count(), "a slice for each Service");
}

#[inline(never)]
fn phase_slices_unchanged(snapshot: &Snapshot) {
    assert_eq!(plan_slices(snapshot, true), 0, "an unchanged world plans nothing");
}

const NODE: NodeView<'static> = NodeView {
    name: "node-0",
    zone: Some("zone-0"),
    gates: FeatureGates {
        service_traffic_distribution: true,
        prefer_same_traffic_distribution: true,
        topology_aware_hints: true,
    },
};

#[inline(never)]
fn phase_select_all(snapshot: &Snapshot) {
    let mut selected = 0;
    for (service, slices) in snapshot.services() {
        let ports = black_box(select(service, slices, Family::V4, &NODE));
        selected += ports.iter().filter_map(|p| p.cluster.as_ref()).map(|s| s.endpoints.len()).sum::<usize>();
    }
    assert!(selected > 0, "something is selected");
}

#[inline(never)]
fn phase_one_changed_slice(
    world: &Manifests,
    snapshot: &mut Snapshot,
    interner: &mut Interner,
    turns: usize,
) {
    for json in world.slices.iter().take(turns) {
        let Object::Slice(slice) = parse_slice(json, interner) else { unreachable!("a slice") };
        let key = slice.service().expect("a labelled slice");
        snapshot.apply(Object::Slice(slice));
        let service = snapshot.service(&key).expect("its Service");
        black_box(select(service, snapshot.slices(&key), Family::V4, &NODE));
    }
}

//! What hints cost beside packing: all Services under each mechanism, from pods to slices with hints.

use std::hint::black_box;
use std::time::Duration;

use model::{Name, Service, Snapshot, annotation};
use plan::PlanningConfig;
use plan::hints::{ClusterTopology, HintInput, Hysteresis, assign};
use plan::slices::{self, Packing, TriggerTimes};

use crate::{best, ms};

/// A mechanism by name, and how a Service asks for it.
const MECHANISMS: &[(&str, Asks)] = &[
    ("none", Asks::Nothing),
    ("Auto", Asks::Annotation(annotation::TOPOLOGY_MODE, "Auto")),
    ("PreferSameZone", Asks::Field("PreferSameZone")),
    ("PreferSameNode", Asks::Field("PreferSameNode")),
    ("Require", Asks::Annotation(annotation::SAME_ZONE, "Require")),
    ("Prefer", Asks::Annotation(annotation::SAME_ZONE, "Prefer")),
    ("Spill", Asks::Annotation(annotation::TRAFFIC_DISTRIBUTION, "Spill")),
];

#[derive(Clone, Copy)]
enum Asks {
    Nothing,
    Field(&'static str),
    Annotation(&'static str, &'static str),
}

/// Prints the time of hints per mechanism, and its ratio to packing the same Services.
pub(crate) fn report(snapshot: &Snapshot, passes: usize) {
    let plain: Vec<Service> = services(snapshot, Asks::Nothing);
    let packing = best(passes, || phase_pack(snapshot, &plain));
    println!("packing all, from nothing, without hints       {:>9.2} ms", ms(packing));
    for (name, asks) in MECHANISMS {
        let services = services(snapshot, *asks);
        let both = best(passes, || phase_pack_and_hint(snapshot, &services));
        let hints = both.saturating_sub(packing);
        let ratio = hints.as_secs_f64() / packing.max(Duration::from_nanos(1)).as_secs_f64();
        println!("  hints of {name:<35} {:>9.2} ms {ratio:>8.2} x packing  goal: 1.00 or less", ms(hints));
    }
}

fn services(snapshot: &Snapshot, asks: Asks) -> Vec<Service> {
    let ask = |service: &Service| {
        let mut service = service.clone();
        match asks {
            Asks::Nothing => {}
            Asks::Field(value) => service.traffic_distribution = Some(Name::new(value)),
            Asks::Annotation(key, value) => service.annotations = [(key, value)].into_iter().collect(),
        }
        service
    };
    snapshot.services().map(|(service, _)| ask(service)).collect()
}

fn plan_all(
    snapshot: &Snapshot,
    services: &[Service],
    mut hint: impl FnMut(&Service, model::Family, &mut Packing<'_>),
) {
    let (options, trigger) = (slices::SliceOptions::WITHOUT_FLAGS, TriggerTimes::default());
    for service in services {
        let selector = service.selector.as_ref().expect("a selector");
        let pods = snapshot.pods_selected(&service.key.namespace, selector);
        let nodes = snapshot.nodes();
        let input = slices::SliceInput { service, pods: &pods, nodes, slices: &[], trigger: &trigger };
        black_box(slices::plan(&input, &options, |family, packing| hint(service, family, packing)));
    }
}

#[inline(never)]
fn phase_pack(snapshot: &Snapshot, services: &[Service]) {
    plan_all(snapshot, services, |_, _, _| {});
}

#[inline(never)]
fn phase_pack_and_hint(snapshot: &Snapshot, services: &[Service]) {
    let topology = ClusterTopology::from_nodes(snapshot.nodes());
    let (config, hysteresis) = (PlanningConfig::without_flags(), Hysteresis::default());
    plan_all(snapshot, services, |service, family, packing| {
        let (topology, config, hysteresis) = (&topology, &config, &hysteresis);
        let input = HintInput {
            service,
            family,
            topology,
            namespace_default: None,
            config,
            hysteresis,
            with_notices: true,
        };
        black_box(assign(&input, packing));
    });
}

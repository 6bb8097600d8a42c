//! What `cargo xtask bench` counts instructions of: the controller's head, without API and disk.

use std::time::Duration;

use cluster::{InformerEvent, ObjectKind, WatchedObject};
use controller::slice_reconciler::SliceReconciler;
use controller::{ControllerMetrics, ReconcilerSettings};
use jiff::Timestamp;
use plan::work_queue::MonotonicTime;
use serde_json::Value;

use super::load::{PODS_PER_SERVICE, node, pod, pod_status, service};

fn now() -> MonotonicTime {
    MonotonicTime(Duration::ZERO)
}

fn watched(object: &Value) -> WatchedObject {
    serde_json::from_str(&object.to_string()).unwrap()
}

pub fn run() {
    let services =
        std::env::var("ZONEWARD_BENCH_SERVICES").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000);
    let services: usize = services.min(2_000);
    let mut head = SliceReconciler::new(
        ReconcilerSettings::from(plan::PlanningConfig::without_flags()),
        ControllerMetrics::default(),
    );
    head.lead(now());
    phase_list(&mut head, services);
    phase_plan(&mut head);
    phase_flip(&mut head, services);
    println!("{} endpoints", services * PODS_PER_SERVICE);
}

#[inline(never)]
fn phase_list(head: &mut SliceReconciler, services: usize) {
    let pods = (0..services).flat_map(|s| (0..PODS_PER_SERVICE).map(move |p| pod(s, p)));
    let kinds: [(ObjectKind, Vec<Value>); 5] = [
        (ObjectKind::Node, (0..100).map(node).collect()),
        (ObjectKind::Service, (0..services).map(service).collect()),
        (ObjectKind::Pod, pods.collect()),
        (ObjectKind::Namespace, Vec::new()),
        (ObjectKind::Slice, Vec::new()),
    ];
    for (kind, objects) in kinds {
        head.observe(InformerEvent::ListStarted(kind), now());
        for object in objects {
            head.observe(InformerEvent::Applied(kind, watched(&object)), now());
        }
        head.observe(InformerEvent::ListCompleted(kind), now());
    }
}

#[inline(never)]
fn phase_plan(head: &mut SliceReconciler) {
    while head.next(now(), Timestamp::UNIX_EPOCH, &()).is_some() {}
}

#[inline(never)]
fn phase_flip(head: &mut SliceReconciler, services: usize) {
    for number in 0..services {
        let mut object = pod(number, 3);
        object["status"] = pod_status(number, 3, false);
        head.observe(InformerEvent::Applied(ObjectKind::Pod, watched(&object)), now());
    }
}

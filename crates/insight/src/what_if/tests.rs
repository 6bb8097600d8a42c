//! What-if on endpoints of different capacity.

use fixtures::{node, object};
use model::{Object, Slice, Snapshot, Timestamp};
use plan::PlanningConfig;
use plan::capacity::advance;
use plan::hints::{Hysteresis, Mechanism};
use plan::planner::Planner;
use plan::slices::TriggerTimes;
use serde_json::json;

use super::*;

/// Three zones with a node each, and a Service with the slices that the controller writes for its pods.
fn cluster(pods: &[(u8, &str)]) -> Snapshot {
    let mut snapshot = fixtures::snapshot(["za", "zb", "zc"].map(|zone| node(&format!("n-{zone}"), zone)));
    snapshot.apply(object(&json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "shop", "name": "web", "uid": "u"},
            "spec": {"selector": {"app": "web"}, "clusterIPs": ["10.96.0.1"], "ipFamilies": ["IPv4"],
                "ports": [{"name": "p", "port": 80, "targetPort": 8080}]}})));
    for (number, zone) in pods {
        let annotations = if *number == 1 { json!({"zoneward.dev/capacity": "2"}) } else { json!({}) };
        snapshot.apply(object(&json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"namespace": "shop", "name": format!("web-{number}"), "uid": format!("p{number}"),
                    "labels": {"app": "web"}, "annotations": annotations},
                "spec": {"nodeName": format!("n-{zone}")},
                "status": {"podIPs": [{"ip": format!("10.0.0.{number}")}],
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z"}]}})));
    }
    let planner = Planner::new(&snapshot, PlanningConfig::without_flags());
    let (service, stored) = snapshot.services().next().expect("there is one");
    let plan =
        planner.plan(&snapshot, service, stored, &TriggerTimes::default(), |_| Hysteresis::default()).0;
    let service = service.clone();
    for (at, content) in plan.creates.into_iter().enumerate() {
        snapshot.apply(Object::Slice(Slice::owned_by(&service, &format!("web-{at}"), content).into()));
    }
    snapshot
}

#[test]
fn what_if_weighs_endpoints_by_their_capacity() {
    let mut snapshot = cluster(&[(1, "za"), (2, "zb"), (3, "zb"), (4, "zc"), (5, "zc")]);
    advance(&mut snapshot, Timestamp::from_seconds(1_800_000_000));
    let (service, slices) = snapshot.services().next().expect("there is one");
    let evaluator =
        WhatIfEvaluator::new(snapshot.nodes(), DemandBasis::Cpu, &PlanningConfig::without_flags());
    let query = WhatIfQuery { service, slices, namespace_default: None, scale: &[], measured: None };
    let result = evaluator.evaluate(&query);
    for mechanism in [Mechanism::None, Mechanism::PreferSameZone, Mechanism::Spill] {
        let outcome = result.outcomes.iter().find(|outcome| outcome.mechanism == mechanism).expect("all");
        let figures = &outcome.figures;
        assert!(
            figures.max_overload < 0.02,
            "za has as much capacity as the others: {mechanism:?}: {figures:?}"
        );
        let in_zone = if mechanism == Mechanism::None { 1.0 / 3.0 } else { 1.0 };
        assert!((figures.in_zone - in_zone).abs() < 0.01, "{mechanism:?}: {figures:?}");
    }
    let loads = evaluator.endpoint_loads(service, slices, None);
    assert!(loads.iter().all(|load| (load.load / load.fair - 1.0).abs() < 1e-9), "{loads:?}");
}

//! The condition TrafficDistributionObserved and the metrics of Services, by the reconciler.

use cluster::{InformerEvent, ObjectKind};
use fixtures::node;
use insight::ledger::{TrafficOwner, TrafficRow, TrafficSums, ZonePairTraffic};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::metrics::ControllerMetrics;
use crate::reconcilers::Reconcilers;
use crate::slice_reconciler::ReconcilerSettings;
use crate::slice_writes::{SliceWrites, WriteResult};

fn at(seconds: u64) -> MonotonicTime {
    MonotonicTime(Duration::from_secs(seconds))
}

/// A leading reconciler with a Service that keeps traffic in its zone, and one endpoint in each of two zones.
fn reconciler() -> Reconcilers {
    let pod = |name: &str, node: &str, ip: &str| fixtures::pod("shop", name, "web", node, &[ip]);
    let endpoint = |name: &str, node: &str, ip: &str, zone: &str| {
        json!({"addresses": [ip], "nodeName": node, "zone": zone, "hints": {"forZones": [{"name": zone}]},
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "targetRef": {"kind": "Pod", "namespace": "shop", "name": name, "uid": name}})
    };
    let service = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "service-1"},
        "spec": {"selector": {"app": "web"}, "clusterIPs": ["10.96.0.1"], "ipFamilies": ["IPv4"],
            "trafficDistribution": "PreferSameZone",
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}});
    let slice = json!({"addressType": "IPv4",
        "metadata": {"name": "web-1", "namespace": "shop", "uid": "slice-1", "resourceVersion": "5",
            "annotations": {"zoneward.dev/mechanism": "PreferSameZone"},
            "labels": {"kubernetes.io/service-name": "web",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "service-1"}]},
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": [endpoint("p1", "n1", "10.0.0.1", "za"), endpoint("p2", "n2", "10.0.0.2", "zb")]});
    let mut reconciler = Reconcilers::new(
        ReconcilerSettings::from(plan::PlanningConfig::without_flags()),
        ControllerMetrics::default(),
    );
    reconciler.lead(at(0));
    for (kind, objects) in [
        (ObjectKind::Node, vec![node("n1", "za"), node("n2", "zb")]),
        (ObjectKind::Service, vec![service]),
        (ObjectKind::Pod, vec![pod("p1", "n1", "10.0.0.1"), pod("p2", "n2", "10.0.0.2")]),
        (ObjectKind::Namespace, Vec::new()),
        (ObjectKind::Slice, vec![slice]),
    ] {
        reconciler.observe(InformerEvent::ListStarted(kind), at(0));
        for object in objects {
            let object = serde_json::from_str(&object.to_string()).expect("an object");
            reconciler.observe(InformerEvent::Applied(kind, object), at(0));
        }
        reconciler.observe(InformerEvent::ListCompleted(kind), at(0));
    }
    reconciler
}

fn traffic(pairs: &'static [(&str, &str, u64)]) -> LedgerView {
    let pair = |(from, to, connections): &(&str, &str, u64)| ZonePairTraffic {
        from_zone: (*from).to_owned(),
        to_zone: (*to).to_owned(),
        connections: *connections,
        bytes: 0,
    };
    let owner = TrafficOwner::Service { namespace: "shop".to_owned(), name: "web".to_owned() };
    let zone_pairs = pairs.iter().map(pair).collect();
    let sums = TrafficSums { rows: vec![TrafficRow { owner, zone_pairs }], ..TrafficSums::default() };
    LedgerView::new(move |_| Some(sums.clone()), |_, _| None)
}

/// The condition that a sync writes, if it writes any.
fn written(reconciler: &mut Reconcilers, now: MonotonicTime) -> Option<Value> {
    let work: SliceWrites = reconciler.next(now, Timestamp::UNIX_EPOCH)?;
    let done = WriteResult { service: work.service.clone(), ..WriteResult::default() };
    reconciler.slices.done(done, now, Timestamp::UNIX_EPOCH);
    let conditions = work.conditions?["status"]["conditions"].as_array()?.clone();
    conditions.into_iter().find(|c| c["type"] == "zoneward.dev/TrafficDistributionObserved")
}

#[test]
fn the_condition_is_written_when_it_turns_and_then_no_more() {
    let mut reconciler = reconciler();
    assert_eq!(written(&mut reconciler, at(0)), None, "nothing is observed yet");
    let away = traffic(&[("za", "zb", 500), ("zb", "zb", 500)]);
    let mut turned = Vec::new();
    for minute in 1..12 {
        let now = at(minute * 60);
        reconciler.status.compare_with_plan(&mut reconciler.slices, &away, now);
        // A second call within the window changes nothing.
        reconciler.status.compare_with_plan(&mut reconciler.slices, &away, now);
        turned.extend(written(&mut reconciler, now).map(|condition| (minute, condition)));
    }
    let [(minute, condition)] = turned.as_slice() else { panic!("{turned:?}") };
    assert_eq!(*minute, 5, "unchanged for 150 s, then three windows");
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("DeviatesFromPlan")));
    let kept = traffic(&[("za", "za", 500), ("zb", "zb", 500)]);
    let turns = (12..20).filter_map(|minute| {
        reconciler.status.compare_with_plan(&mut reconciler.slices, &kept, at(minute * 60));
        written(&mut reconciler, at(minute * 60))
    });
    let turns: Vec<Value> = turns.map(|condition| condition["status"].clone()).collect();
    assert_eq!(turns, ["True"]);
}

#[test]
fn the_condition_of_a_service_that_gains_session_affinity_is_unknown() {
    let mut reconciler = reconciler();
    assert_eq!(written(&mut reconciler, at(0)), None);
    let condition = "zoneward.dev/TrafficDistributionObserved";
    let mut service = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "service-1"},
        "spec": {"selector": {"app": "web"}, "clusterIPs": ["10.96.0.1"], "ipFamilies": ["IPv4"],
            "trafficDistribution": "PreferSameZone",
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}});
    let mut apply = |service: &Value, seconds| {
        let object = serde_json::from_str(&service.to_string()).expect("an object");
        reconciler.observe(InformerEvent::Applied(ObjectKind::Service, object), at(seconds));
        written(&mut reconciler, at(seconds))
    };
    service["status"] = json!({"conditions": [{"type": condition, "status": "True", "reason": "AsPlanned",
        "message": "Words.", "lastTransitionTime": "2026-11-17T08:00:00Z"}]});
    assert_eq!(apply(&service, 60), None, "it stands");
    service["spec"]["sessionAffinity"] = "ClientIP".into();
    let unknown = apply(&service, 120).expect("it turns");
    assert_eq!((&unknown["status"], &unknown["reason"]), (&json!("Unknown"), &json!("NotCompared")));
}

#[test]
fn metrics_of_services_are_of_the_leader_alone() {
    let mut reconciler = reconciler();
    let away = traffic(&[("za", "zb", 500), ("zb", "zb", 500)]);
    let mut registry = prometheus_client::registry::Registry::default();
    reconciler.slices.metrics.register(&mut registry);
    let text = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("a text");
        text
    };
    reconciler.status.publish_signals(&reconciler.slices, &reconciler.demands, &away, at(60));
    let labels = r#"{namespace="shop",service="web"}"#;
    for line in [
        format!("zoneward_service_in_zone_ratio{labels} 0.5"),
        format!("zoneward_service_planned_in_zone_ratio{labels} 1.0"),
        format!("zoneward_service_honored{labels} 1.0"),
        "zoneward_services_not_honored 0.0".to_owned(),
    ] {
        assert!(text().contains(&line), "{line}\n{}", text());
    }
    reconciler.stand_by();
    reconciler.status.publish_signals(&reconciler.slices, &reconciler.demands, &away, at(61));
    assert!(!text().contains(labels) && text().contains("zoneward_services_not_honored 0.0"), "{}", text());
}

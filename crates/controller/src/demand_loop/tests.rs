//! A Service with one endpoint in each of two zones, whose connections all come from one of them.

use std::time::Duration;

use cluster::{InformerEvent, ObjectKind};
use fixtures::node;
use insight::ledger::{ServiceDemandRow, ZoneDemandRow};
use plan::PlanningConfig;
use plan::spill::measured::BusiestNode;
use serde_json::{Value, json};

use super::*;
use crate::metrics::ControllerMetrics;
use crate::reconcilers::Reconcilers;
use crate::slice_reconciler::ReconcilerSettings;
use crate::slice_writes::WriteResult;

pub(crate) const START: i64 = 1_800_000_000;

pub(crate) fn at(seconds: u64) -> MonotonicTime {
    MonotonicTime(Duration::from_secs(seconds))
}

fn apply(reconciler: &mut Reconcilers, kind: ObjectKind, objects: &[Value]) {
    reconciler.observe(InformerEvent::ListStarted(kind), at(0));
    for object in objects {
        let object = serde_json::from_str(&object.to_string()).expect("an object");
        reconciler.observe(InformerEvent::Applied(kind, object), at(0));
    }
    reconciler.observe(InformerEvent::ListCompleted(kind), at(0));
}

fn service(mode: Option<&str>) -> Value {
    let mut annotations = json!({"zoneward.dev/traffic-distribution": "Spill"});
    if let Some(mode) = mode {
        annotations["zoneward.dev/spill-demand"] = mode.into();
    }
    json!({"metadata": {"name": "web", "namespace": "shop", "uid": "service-1", "annotations": annotations},
        "spec": {"selector": {"app": "web"}, "clusterIPs": ["10.96.0.1"], "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}})
}

/// A leading reconciler without slices. Four endpoints: three in za, one in zb.
pub(crate) fn reconciler(mode: Option<SpillDemandMode>, service_mode: Option<&str>) -> Reconcilers {
    let pod = |name: &str, node: &str, ip: &str| fixtures::pod("shop", name, "web", node, &[ip]);
    let lease = |node: &str| {
        json!({"metadata": {"name": format!("zoneward-node-{node}"), "namespace": "kube-system",
            "labels": {"zoneward.dev/component": "node-proxy"}}, "spec": {}})
    };
    let hints = PlanningConfig { spill_demand: mode, ..PlanningConfig::without_flags() };
    let settings = ReconcilerSettings::from(hints);
    let mut reconciler = Reconcilers::new(settings, ControllerMetrics::default());
    reconciler.lead(at(0));
    apply(&mut reconciler, ObjectKind::Node, &[node("n1", "za"), node("n2", "zb")]);
    apply(&mut reconciler, ObjectKind::Service, &[service(service_mode)]);
    let pods = [("p1", "n1"), ("p2", "n1"), ("p3", "n1"), ("p4", "n2")];
    let pods: Vec<Value> =
        pods.iter().zip(1..).map(|((name, node), ip)| pod(name, node, &format!("10.0.0.{ip}"))).collect();
    apply(&mut reconciler, ObjectKind::Pod, &pods);
    apply(&mut reconciler, ObjectKind::Namespace, &[]);
    apply(&mut reconciler, ObjectKind::Lease, &[lease("n1"), lease("n2")]);
    apply(&mut reconciler, ObjectKind::Slice, &[]);
    reconciler
}

/// Connections per second: all from zb, split by its plan.
pub(crate) fn traffic(own: f64, other: f64) -> LedgerView {
    let busiest = BusiestNode { name: "n2".to_owned(), rate: own + other, ..BusiestNode::default() };
    traffic_with(own, other, busiest)
}

fn traffic_with(own: f64, other: f64, busiest: BusiestNode) -> LedgerView {
    let owner = TrafficOwner::Service { namespace: "shop".to_owned(), name: "web".to_owned() };
    let zones = vec![ZoneDemandRow {
        from_zone: "zb".to_owned(),
        rate_by_target: vec![("za".to_owned(), other), ("zb".to_owned(), own)],
        highest_rate: busiest.rate,
        busiest,
    }];
    let reporting = ["node/n1", "node/n2"].map(str::to_owned).into();
    let demand = LedgerDemand { services: vec![ServiceDemandRow { owner, zones }], reporting };
    LedgerView::new(|_| None, |_, _| None).with_demand(move || Some(demand.clone()))
}

/// Writes what is due, as the API server would store it. Returns the annotations of the last slice.
fn write(reconciler: &mut Reconcilers, seconds: u64) -> Option<BTreeMap<String, String>> {
    let mut written = None;
    while let Some(work) = reconciler.next(at(seconds), jiff::Timestamp::UNIX_EPOCH) {
        let created = work.creates.iter().map(|content| content.annotations.clone());
        let updated = work.updates.iter().map(|(_, content)| content.annotations.clone());
        for annotations in created.chain(updated) {
            let pairs = annotations.iter().map(|(key, value)| (key.to_string(), value.to_string()));
            written = Some(pairs.collect::<BTreeMap<_, _>>());
        }
        let slice = written.as_ref().map(|annotations| slice(annotations, seconds));
        let done = WriteResult { service: work.service.clone(), ..WriteResult::default() };
        reconciler.slices.done(done, at(seconds), jiff::Timestamp::UNIX_EPOCH);
        if let Some(slice) = slice {
            let object = serde_json::from_str(&slice.to_string()).expect("an object");
            reconciler.observe(InformerEvent::Applied(ObjectKind::Slice, object), at(seconds));
        }
        if written.is_some() {
            break;
        }
    }
    written
}

fn slice(annotations: &BTreeMap<String, String>, revision: u64) -> Value {
    let endpoint = |name: &str, node: &str, ip: &str, zone: &str| {
        json!({"addresses": [ip], "nodeName": node, "zone": zone,
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "targetRef": {"kind": "Pod", "namespace": "shop", "name": name, "uid": name}})
    };
    json!({"addressType": "IPv4",
        "metadata": {"name": "web-1", "namespace": "shop", "uid": "slice-1", "annotations": annotations,
            "resourceVersion": (revision + 1).to_string(),
            "labels": {"kubernetes.io/service-name": "web",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "service-1"}]},
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": [endpoint("p1", "n1", "10.0.0.1", "za"), endpoint("p2", "n1", "10.0.0.2", "za"),
            endpoint("p3", "n1", "10.0.0.3", "za"), endpoint("p4", "n2", "10.0.0.4", "zb")]})
}

/// The slices of the Service as another leader has written them, and the first plan that reads them.
pub(crate) fn slice_with(reconciler: &mut Reconcilers, annotations: &[(&str, &str)]) {
    let annotations = annotations.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let object = serde_json::from_str(&slice(&annotations, 0).to_string()).expect("an object");
    reconciler.observe(InformerEvent::Applied(ObjectKind::Slice, object), at(0));
    while let Some(work) = reconciler.next(at(1), jiff::Timestamp::UNIX_EPOCH) {
        let done = WriteResult { service: work.service.clone(), ..WriteResult::default() };
        reconciler.slices.done(done, at(1), jiff::Timestamp::UNIX_EPOCH);
    }
}

fn decide(reconciler: &mut Reconcilers, traffic: &LedgerView, seconds: u64) -> Vec<Notice> {
    reconciler.demands.decide(
        &mut reconciler.slices,
        traffic,
        at(seconds),
        Timestamp::from_seconds(START + seconds as i64),
    )
}

#[test]
fn measured_demand_is_written_once_and_read_back_by_the_next_leader() {
    let mut reconciler = reconciler(Some(SpillDemandMode::Measured), None);
    let first = write(&mut reconciler, 0).expect("slices are created");
    assert_eq!(first["zoneward.dev/demand"], "za=128,zb=128");
    assert!(!first.contains_key("zoneward.dev/keep"));
    // Zone zb sends 100 connections per second, and keeps a quarter of them at an equal load.
    let traffic = traffic(25.0, 75.0);
    decide(&mut reconciler, &traffic, 10);
    let measured = write(&mut reconciler, 10).expect("the demand moved");
    let demand = SpillDemand::parse(&measured["zoneward.dev/demand"]).expect("valid");
    assert!(demand.fraction("zb") > 0.9, "{measured:?}");
    assert_eq!(measured["zoneward.dev/keep"], "1.00/4");
    let mut later = Vec::new();
    for seconds in (20..2_000).step_by(10) {
        decide(&mut reconciler, &traffic, seconds);
        later.extend(write(&mut reconciler, seconds));
    }
    let [proved] = later.as_slice() else { panic!("{later:?}") };
    assert!(proved["zoneward.dev/proved"].starts_with("25.000@20"), "{proved:?}");
    reconciler.stand_by();
    reconciler.lead(at(2_000));
    for seconds in (2_000..4_000).step_by(10) {
        assert_eq!(write(&mut reconciler, seconds), None);
        decide(&mut reconciler, &traffic, seconds);
    }
}

#[test]
fn a_node_far_above_the_others_of_its_zone_gets_one_notice() {
    let mut reconciler = reconciler(Some(SpillDemandMode::Measured), None);
    write(&mut reconciler, 0).expect("slices are created");
    let busiest = BusiestNode { name: "n2".to_owned(), rate: 94.0, next_rate: 2.0, others: 3 };
    let traffic = traffic_with(25.0, 75.0, busiest);
    let mut notices = decide(&mut reconciler, &traffic, 10);
    let measured = write(&mut reconciler, 10).expect("the demand moved");
    assert_eq!(measured["zoneward.dev/keep"], "1.00/4 spread=zb");
    for seconds in (20..300).step_by(10) {
        notices.extend(decide(&mut reconciler, &traffic, seconds));
        assert_eq!(write(&mut reconciler, seconds), None);
    }
    let [notice] = notices.as_slice() else { panic!("{notices:?}") };
    assert_eq!(notice.reason, NODE_NOT_TRUSTED);
    assert!(notice.message.starts_with("Node n2 reports 94.0 connections per second"), "{notice:?}");
    let key = ServiceKey::new(&"shop".into(), &"web".into());
    let status = reconciler.demands.status(&key).expect("it is measured");
    let zone = status.zones.iter().find(|zone| zone.zone == "zb").expect("it has nodes");
    assert!(zone.is_spread);
    assert_eq!(zone.suspected_node.as_ref().map(|suspected| suspected.node.as_str()), Some("n2"));
    assert_eq!(reconciler.demands.wanted_endpoints().iter().find(|(_, zone, _)| *zone == "zb"), None);
}

#[test]
fn observed_demand_is_shown_and_not_written() {
    let mut reconciler = reconciler(Some(SpillDemandMode::Observe), None);
    write(&mut reconciler, 0).expect("slices are created");
    let traffic = traffic(25.0, 75.0);
    for seconds in (10..100).step_by(10) {
        decide(&mut reconciler, &traffic, seconds);
        assert_eq!(write(&mut reconciler, seconds), None);
    }
    let key = ServiceKey::new(&"shop".into(), &"web".into());
    let status = reconciler.demands.status(&key).expect("it is observed");
    assert_eq!((status.mode.as_str(), status.keep.as_deref()), ("observe", Some("1.00/4")));
    assert!(status.highest_load > 1.5 && status.measured_highest_load < 1.1, "{status:?}");
    let zone = status.zones.iter().find(|zone| zone.zone == "zb").expect("it has nodes");
    assert_eq!((zone.connections_per_second, zone.cpu_share, zone.is_spread), (Some(100.0), 0.5, false));
}

#[test]
fn the_annotation_of_a_service_decides() {
    let mut own = reconciler(Some(SpillDemandMode::Observe), Some("measured"));
    write(&mut own, 0).expect("slices are created");
    decide(&mut own, &traffic(25.0, 75.0), 10);
    assert!(write(&mut own, 10).is_some_and(|annotations| annotations.contains_key("zoneward.dev/keep")));
    // Turned off again, the CPU of nodes decides.
    let object = serde_json::from_str(&service(Some("cpu")).to_string()).expect("an object");
    own.observe(InformerEvent::Applied(ObjectKind::Service, object), at(11));
    decide(&mut own, &traffic(25.0, 75.0), 50);
    let annotations = write(&mut own, 50).expect("the demand moved");
    assert_eq!(annotations["zoneward.dev/demand"], "za=128,zb=128");
    assert!(
        !annotations.contains_key("zoneward.dev/keep") && !annotations.contains_key("zoneward.dev/proved")
    );
    let mut off = reconciler(Some(SpillDemandMode::Measured), Some("cpu"));
    write(&mut off, 0).expect("slices are created");
    decide(&mut off, &traffic(25.0, 75.0), 10);
    assert_eq!(write(&mut off, 10), None);
    let key = ServiceKey::new(&"shop".into(), &"web".into());
    assert_eq!(off.demands.status(&key), None);
}

#[test]
fn a_zone_with_another_split_than_planned_is_noticed_once() {
    let mut reconciler = reconciler(Some(SpillDemandMode::Measured), None);
    write(&mut reconciler, 0).expect("slices are created");
    let wrong = traffic(100.0, 0.0);
    let mut notices = Vec::new();
    for seconds in (10..600).step_by(10) {
        notices.extend(decide(&mut reconciler, &wrong, seconds));
        write(&mut reconciler, seconds);
    }
    let [notice] = notices.as_slice() else { panic!("{notices:?}") };
    assert_eq!(notice.reason, NOT_TRUSTED);
    assert!(notice.message.starts_with("Zone zb reports connections"), "{}", notice.message);
}

//! A Service with three endpoints in za and one in zb, whose load and proof decide on drains of za.

use super::*;
use crate::demand_loop::tests::{START, at, reconciler, slice_with, traffic};
use crate::reconcilers::Reconcilers;
use cluster::InformerEvent;
use plan::spill::SpillDemandMode;

fn object(zone: &str, spec: &Value) -> Value {
    let time = |seconds| Timestamp::from_seconds(START + seconds).to_string();
    let mut object = json!({"metadata": {"name": zone, "generation": 1, "creationTimestamp": time(0)},
        "spec": {"zone": zone, "expiresAt": time(600), "over": "100s"}});
    let fields = spec.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.clone()));
    object["spec"].as_object_mut().expect("it is one").extend(fields);
    object
}

fn decided(reconciler: &mut Reconcilers, objects: &[Value], seconds: u64) -> Vec<DrainStatus> {
    list(reconciler, objects, seconds);
    decide(reconciler, seconds)
}

fn list(reconciler: &mut Reconcilers, objects: &[Value], seconds: u64) {
    let watch = |event| drop(reconciler.observe(event, at(seconds)));
    let objects = objects.iter().map(|object| serde_json::from_value(object.clone()).expect("an object"));
    let applied = objects.map(|object| InformerEvent::Applied(ObjectKind::ZoneDrain, object));
    let list = [InformerEvent::ListStarted(ObjectKind::ZoneDrain)].into_iter().chain(applied);
    list.chain([InformerEvent::ListCompleted(ObjectKind::ZoneDrain)]).for_each(watch);
}

fn decide(reconciler: &mut Reconcilers, seconds: u64) -> Vec<DrainStatus> {
    let time = Timestamp::from_seconds(START + seconds as i64);
    reconciler.decide_drains(&traffic(25.0, 75.0), at(seconds), time)
}

fn is_drained(reconciler: &Reconcilers) -> bool {
    reconciler.slices.planner().drains.as_ref().is_some_and(|drains| !drains.zones().is_empty())
}

/// A leader that has read a proved load from the slices: `rate` connections per second and endpoint.
fn proved(rate: &str) -> Reconcilers {
    let mut reconciler = reconciler(Some(SpillDemandMode::Measured), None);
    let annotations = [
        ("zoneward.dev/mechanism", "Spill"),
        ("zoneward.dev/demand", "za=3,zb=253"),
        ("zoneward.dev/keep", "1.00/4"),
        ("zoneward.dev/proved", &format!("{rate}@{}", Timestamp::from_seconds(START))),
    ];
    slice_with(&mut reconciler, &annotations);
    let time = Timestamp::from_seconds(START + 10);
    reconciler.demands.decide(&mut reconciler.slices, &traffic(25.0, 75.0), at(10), time);
    reconciler
}

#[test]
fn a_drain_is_accepted_if_the_others_have_carried_as_much() {
    let mut reconciler = proved("101.000");
    let drain = object("za", &json!({}));
    let statuses = decided(&mut reconciler, std::slice::from_ref(&drain), 20);
    assert_eq!(statuses[0].status["conditions"][0]["status"], "True", "{statuses:?}");
    assert_eq!(statuses[0].status["services"][0]["verdict"], "Moves", "{statuses:?}");
    assert_eq!(statuses[0].status["services"][0]["percentInZone"], 75, "{statuses:?}");
    assert_eq!(statuses[0].status["movedPercent"], 30, "the third of ten steps");
    assert!(is_drained(&reconciler));
    let mut written = drain.clone();
    written["status"] = statuses[0].status.clone();
    assert_eq!(decided(&mut reconciler, &[written.clone()], 21), [], "nothing new is not written");
    let over = decided(&mut reconciler, &[written], 600);
    assert_eq!(over[0].status["conditions"][0]["reason"], "Expired");
    assert!(!is_drained(&reconciler));
    decided(&mut reconciler, &[drain], 30);
    assert!(is_drained(&reconciler));
    assert_eq!(decided(&mut reconciler, &[], 31), []);
    assert!(!is_drained(&reconciler), "the object was deleted");
}

#[test]
fn rates_alone_are_written_once_a_minute() {
    let mut reconciler = proved("101.000");
    let mut drain = object("za", &json!({"over": "0s"}));
    drain["status"] = decided(&mut reconciler, std::slice::from_ref(&drain), 20)[0].status.clone();
    assert_eq!(drain["status"]["services"][0]["percentInZone"], 75);
    let mut decide = |drain: &Value, in_zone: f64, seconds: u64| {
        list(&mut reconciler, std::slice::from_ref(drain), seconds);
        let time = Timestamp::from_seconds(START + seconds as i64);
        reconciler.decide_drains(&traffic(100.0 - in_zone, in_zone), at(seconds), time)
    };
    let statuses = decide(&drain, 50.0, 100);
    assert_eq!(statuses[0].status["services"][0]["percentInZone"], 50, "{statuses:?}");
    drain["status"] = statuses[0].status.clone();
    assert_eq!(decide(&drain, 70.0, 110), [], "within the minute");
    assert_eq!(decide(&drain, 70.0, 200).len(), 1);
}

#[test]
fn a_drain_that_others_have_not_carried_is_refused_with_the_service_named() {
    let mut reconciler = proved("30.000");
    let refused = decided(&mut reconciler, &[object("za", &json!({}))], 20);
    let condition = &refused[0].status["conditions"][0];
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("NotEnoughCapacity")));
    let message = condition["message"].as_str().expect("a text");
    let why = "shop/web: each endpoint elsewhere would get 100.0 connections/s, and has carried 30.0";
    assert!(message.contains(why), "{message}");
    assert!(!is_drained(&reconciler));
    // A tenth of it is 32.5 for each.
    let rehearsed = decided(&mut reconciler, &[object("za", &json!({"percent": 1}))], 20);
    assert_eq!(rehearsed[0].status["conditions"][0]["status"], "True", "{rehearsed:?}");
    assert_eq!(rehearsed[0].status["services"][0]["verdict"], "Refused", "what a whole drain would break");
    let checked = decided(&mut reconciler, &[object("za", &json!({"dryRun": true, "force": true}))], 20);
    assert_eq!(checked[0].status["conditions"][0]["status"], "True");
    assert!(!is_drained(&reconciler), "a check moves nothing");
    decided(&mut reconciler, &[object("za", &json!({"force": true}))], 20);
    assert!(is_drained(&reconciler));
}

#[test]
fn an_object_that_cannot_be_read_names_its_field() {
    let mut reconciler = proved("30.000");
    let wrong = decided(&mut reconciler, &[object("za", &json!({"over": "soon"}))], 20);
    let condition = &wrong[0].status["conditions"][0];
    assert_eq!(condition["reason"], "Invalid");
    assert!(condition["message"].as_str().is_some_and(|text| text.starts_with("spec.over: ")), "{condition}");
}

#[test]
fn a_watched_drain_is_decided_at_once_and_then_at_intervals() {
    let mut reconciler = proved("101.000");
    let drain = object("za", &json!({}));
    let watched = || serde_json::from_value(drain.clone()).expect("an object");
    reconciler.observe(InformerEvent::Applied(ObjectKind::ZoneDrain, watched()), at(20));
    assert_eq!(decide(&mut reconciler, 20), [], "before the list is complete others may be in force");
    let statuses = decided(&mut reconciler, std::slice::from_ref(&drain), 20);
    assert_eq!(statuses.len(), 1);
    assert_eq!(decide(&mut reconciler, 21), [], "nothing changed");
    assert_eq!(decide(&mut reconciler, 40)[0].status["movedPercent"], 50, "the fifth of ten steps");
    // A list that starts anew ends no drain until it is complete.
    reconciler.observe(InformerEvent::ListStarted(ObjectKind::ZoneDrain), at(41));
    decide(&mut reconciler, 44);
    assert!(is_drained(&reconciler));
    reconciler.observe(InformerEvent::ListCompleted(ObjectKind::ZoneDrain), at(45));
    decide(&mut reconciler, 45);
    assert!(!is_drained(&reconciler));
    reconciler.observe(InformerEvent::Applied(ObjectKind::ZoneDrain, watched()), at(46));
    decide(&mut reconciler, 46);
    assert!(is_drained(&reconciler));
    reconciler.observe(InformerEvent::Deleted(ObjectKind::ZoneDrain, watched()), at(47));
    decide(&mut reconciler, 47);
    assert!(!is_drained(&reconciler), "it was deleted");
}

#[test]
fn an_edited_drain_gets_a_decision_on_its_generation() {
    let mut reconciler = proved("101.000");
    let mut drain = object("za", &json!({"over": "0s"}));
    drain["metadata"]["uid"] = json!("first");
    let statuses = decided(&mut reconciler, std::slice::from_ref(&drain), 20);
    assert_eq!(statuses[0].patch()["metadata"]["uid"], "first", "for no other object of its name");
    drain["status"] = statuses[0].status.clone();
    assert_eq!(decided(&mut reconciler, std::slice::from_ref(&drain), 21), []);
    // A later end changes nothing else in the status.
    drain["metadata"]["generation"] = json!(2);
    drain["spec"]["expiresAt"] = json!(Timestamp::from_seconds(START + 900).to_string());
    let statuses = decided(&mut reconciler, std::slice::from_ref(&drain), 22);
    assert_eq!(statuses[0].status["observedGeneration"], 2);
    drain["status"] = statuses[0].status.clone();
    assert_eq!(ZoneDrain::parse(&drain).expect("a drain").accepted, Some(true));
}

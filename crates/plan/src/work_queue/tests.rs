//! Tests of the queue with manual time, and its properties.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::{Interner, Name, Object, Pod, Service, ServiceKey, Slice, Snapshot, Uid, parse};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::dependents::{NodeChange, SelectorIndex, node_changed, services_on_node, services_to_requeue};

fn key(name: &str) -> ServiceKey {
    ServiceKey::new(&Name::new("shop"), &Name::new(name))
}

fn at(millis: u64) -> MonotonicTime {
    MonotonicTime(Duration::from_millis(millis))
}

fn timing() -> QueueTiming {
    let (base_delay, max_delay) = (Duration::from_millis(100), Duration::from_secs(1));
    QueueTiming { batch_period: Duration::ZERO, base_delay, max_delay }
}

#[test]
fn a_service_added_often_is_handed_out_once() {
    let mut queue = WorkQueue::new(timing());
    for _ in 0..5 {
        queue.add(&key("a"), at(10));
    }
    assert_eq!(queue.next(at(9)), None, "it is not due");
    assert_eq!(queue.next(at(10)), Some(key("a")));
    assert_eq!(queue.next(at(10)), None);
    queue.done(&key("a"), SyncOutcome::Done, at(11));
    assert!(queue.is_idle() && queue.items.is_empty());
}

#[test]
fn what_waits_moves_forward_and_never_back() {
    let mut queue = WorkQueue::new(timing());
    queue.add(&key("a"), at(50));
    queue.add(&key("a"), at(90));
    assert_eq!(queue.due(), Some(at(50)));
    queue.add(&key("a"), at(20));
    assert_eq!((queue.due(), queue.waiting()), (Some(at(20)), 1));
}

#[test]
fn a_change_during_a_sync_waits_for_its_end() {
    let mut queue = WorkQueue::new(timing());
    queue.add(&key("a"), at(0));
    queue.next(at(0));
    queue.add(&key("a"), at(1));
    assert_eq!(queue.next(at(5)), None, "it is under way");
    queue.done(&key("a"), SyncOutcome::Done, at(6));
    assert_eq!(queue.next(at(6)), Some(key("a")));
}

#[test]
fn failures_wait_longer_each_time_and_a_success_forgets_them() {
    let mut queue = WorkQueue::new(timing());
    queue.add(&key("a"), at(0));
    let mut now = at(0);
    let mut waits = Vec::new();
    for _ in 0..6 {
        queue.next(now).expect("it is due");
        queue.done(&key("a"), SyncOutcome::Failed, now);
        let due = queue.due().expect("it will be tried again");
        waits.push((due.0 - now.0).as_millis());
        now = due;
    }
    assert_eq!(waits, [100, 200, 400, 800, 1000, 1000]);
    assert_eq!(queue.failures(&key("a")), 6);
    queue.next(now);
    queue.done(&key("a"), SyncOutcome::Done, now);
    assert_eq!(queue.failures(&key("a")), 0);
    assert_eq!(timing().backoff(u32::MAX), Duration::from_secs(1));
}

#[test]
fn an_end_without_a_beginning_changes_nothing() {
    let mut queue = WorkQueue::new(timing());
    queue.done(&key("a"), SyncOutcome::Failed, at(0));
    queue.add(&key("b"), at(0));
    queue.done(&key("b"), SyncOutcome::Done, at(0));
    assert_eq!((queue.waiting(), queue.running()), (1, 0));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(u8, u16),
    Next,
    End(bool),
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..6u8, 0..300u16).prop_map(|(k, delay)| Step::Add(k, delay)),
        Just(Step::Next),
        any::<bool>().prop_map(Step::End),
        (0..500u16).prop_map(Step::Pass),
    ]
}

proptest! {
    /// Nothing is lost: each key that was added is handed out after that. Nothing runs twice at once. No wait is
    /// longer than the longest.
    #[test]
    fn nothing_is_lost_and_nothing_runs_twice(steps in prop::collection::vec(step(), 1..200)) {
        let mut queue = WorkQueue::new(timing());
        let mut now = at(0);
        let mut running: BTreeSet<ServiceKey> = BTreeSet::new();
        let mut owed: BTreeMap<ServiceKey, MonotonicTime> = BTreeMap::new();
        let hand_out = |queue: &mut WorkQueue, now, running: &mut BTreeSet<_>, owed: &mut BTreeMap<_, _>| {
            let Some(key) = queue.next(now) else { return false };
            assert!(running.insert(key.clone()), "{key} runs twice");
            owed.remove(&key);
            true
        };
        for step in steps {
            match step {
                Step::Add(k, delay) => {
                    let (key, due) = (key(&k.to_string()), now.after(Duration::from_millis(delay.into())));
                    queue.add(&key, due);
                    owed.entry(key).and_modify(|known: &mut MonotonicTime| *known = due.min(*known)).or_insert(due);
                }
                Step::Next => drop(hand_out(&mut queue, now, &mut running, &mut owed)),
                Step::End(well) => if let Some(key) = running.pop_first() {
                    queue.done(&key, if well { SyncOutcome::Done } else { SyncOutcome::Failed }, now);
                    if !well {
                        owed.entry(key).or_insert(now);
                    }
                },
                Step::Pass(millis) => now = now.after(Duration::from_millis(millis.into())),
            }
            prop_assert!(queue.waiting() <= 6 && queue.running() == running.len());
            prop_assert!(queue.due().is_none_or(|due| due <= now.after(timing().max_delay)));
        }
        for key in std::mem::take(&mut running) {
            queue.done(&key, SyncOutcome::Done, now);
        }
        now = now.after(timing().max_delay);
        while hand_out(&mut queue, now, &mut running, &mut owed) {}
        prop_assert!(owed.is_empty(), "lost: {owed:?}");
        prop_assert_eq!(queue.waiting(), 0);
    }
}

fn parsed(api_version: &str, kind: &str, value: &Value) -> Object {
    let mut object = value.clone();
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    let (parsed, notices) = parse::object(&object, &mut Interner::default());
    parsed.unwrap_or_else(|| panic!("{kind} cannot be read: {notices:?}"))
}

fn slice(value: &Value) -> Slice {
    let mut value = value.clone();
    value["addressType"] = "IPv4".into();
    match parsed("discovery.k8s.io/v1", "EndpointSlice", &value) {
        Object::Slice(slice) => *slice,
        other => panic!("no slice: {other:?}"),
    }
}

fn stored(uid: &str, generation: i64, revision: &str) -> Slice {
    let metadata = json!({"name": uid, "namespace": "shop", "uid": uid, "generation": generation,
        "resourceVersion": revision, "labels": {"kubernetes.io/service-name": "a"}});
    slice(&json!({"metadata": metadata}))
}

fn version(slice: &Slice) -> SliceVersion {
    SliceVersion::of(slice)
}

fn vectors(kind: &str) -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/endpoint-conversion.json");
    let text = std::fs::read_to_string(path).expect("the vectors are part of the repository");
    let file: Value = serde_json::from_str(&text).expect("the vectors are JSON");
    let all = file["vectors"].as_array().cloned().unwrap_or_default();
    let found: Vec<Value> = all.into_iter().filter(|vector| vector["kind"] == kind).collect();
    assert!(!found.is_empty(), "no vector of kind {kind}");
    found
}

#[test]
fn the_vectors_of_services_to_requeue_hold() {
    for vector in vectors("services-to-requeue") {
        let names = |value: &Value| -> BTreeSet<String> {
            value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let input = &vector["input"];
        let changed = input["podChanged"] == true;
        let requeue =
            services_to_requeue(names(&input["oldServices"]), names(&input["newServices"]), changed);
        assert_eq!(requeue, names(&vector["expect"]["requeue"]), "{}", vector["id"]);
    }
}

#[test]
fn the_vectors_of_stale_cache_detection_hold() {
    for vector in vectors("stale-cache-detection") {
        let input = &vector["input"];
        let mut expectations = Expectations::default();
        let tracked = input["trackedGenerations(-1=delete expected)"].as_object().cloned();
        for (service, slices) in tracked.into_iter().flatten() {
            let (namespace, name) = service.split_once('/').expect("a key");
            let service = ServiceKey::new(&namespace.into(), &name.into());
            for (uid, generation) in slices.as_object().cloned().into_iter().flatten() {
                match generation.as_i64().expect("a generation") {
                    -1 => expectations.deleted(&service, Uid::new(&uid), at(0)),
                    generation => {
                        let version = SliceVersion { generation, revision: None };
                        expectations.wrote(&service, Uid::new(&uid), version, at(0));
                    }
                }
            }
        }
        let metadata = &input["service"]["metadata"];
        let text = |field: &str| Name::new(metadata[field].as_str().unwrap_or_default());
        let service = ServiceKey::new(&text("namespace"), &text("name"));
        let cached: Vec<Slice> = input["slicesInCache"].as_array().into_iter().flatten().map(slice).collect();
        let stale = expectations.is_stale(&service, &cached, at(1));
        assert_eq!(stale, vector["expect"]["stale"], "{}", vector["id"]);
    }
}

#[test]
fn our_own_write_is_no_news_and_another_one_is() {
    let mut expectations = Expectations::default();
    let service = key("a");
    let (first, ours, foreign) = (stored("u", 1, "10"), stored("u", 2, "12"), stored("u", 3, "15"));
    assert!(expectations.saw(&service, &first), "nobody expected it");
    expectations.wrote(&service, Uid::new("u"), version(&ours), at(0));
    assert!(expectations.is_stale(&service, std::slice::from_ref(&first), at(0)));
    assert!(!expectations.saw(&service, &first), "an older version is on its way still");
    assert!(!expectations.saw(&service, &ours));
    assert!(!expectations.is_stale(&service, &[ours], at(0)));
    assert!(expectations.saw(&service, &foreign));
    assert!(!expectations.saw(&service, &foreign), "it is known now");
}

#[test]
fn a_slice_that_came_and_went_before_the_answer_is_not_waited_for() {
    let mut expectations = Expectations::default();
    let (service, ours) = (key("a"), stored("u", 1, "10"));
    expectations.saw(&service, &ours);
    expectations.reached(version(&ours));
    expectations.saw_gone(&service, Some(&Uid::new("u")));
    expectations.wrote(&service, Uid::new("u"), version(&ours), at(0));
    assert!(!expectations.is_stale(&service, &[], at(0)));
    let next = stored("v", 1, "11");
    expectations.wrote(&service, Uid::new("v"), version(&next), at(0));
    assert!(expectations.is_stale(&service, &[], at(0)), "what has not come yet is");
}

#[test]
fn annotations_alone_are_news_too() {
    let mut expectations = Expectations::default();
    let ours = stored("u", 2, "12");
    expectations.wrote(&key("a"), Uid::new("u"), version(&ours), at(0));
    assert!(expectations.saw(&key("a"), &stored("u", 2, "13")), "the generation says nothing of them");
}

#[test]
fn a_deletion_of_ours_is_no_news_and_another_one_is() {
    let mut expectations = Expectations::default();
    let service = key("a");
    let slice = stored("u", 1, "10");
    expectations.deleted(&service, Uid::new("u"), at(0));
    assert!(expectations.is_stale(&service, std::slice::from_ref(&slice), at(0)));
    let going = Slice { deleting: true, ..slice };
    assert!(!expectations.is_stale(&service, &[going], at(0)), "pitfall 36");
    assert!(!expectations.saw_gone(&service, Some(&Uid::new("u"))));
    assert!(expectations.saw_gone(&service, Some(&Uid::new("u"))));
    assert!(expectations.is_empty());
}

#[test]
fn a_write_that_never_shows_up_is_given_up() {
    let mut expectations = Expectations::default();
    let ours = stored("u", 1, "10");
    expectations.wrote(&key("a"), Uid::new("u"), version(&ours), at(0));
    assert!(expectations.is_stale(&key("a"), &[], at(29_000)));
    assert!(!expectations.is_stale(&key("a"), &[], at(30_000)));
    expectations.deleted(&key("a"), Uid::new("u"), at(0));
    assert!(!expectations.is_stale(&key("a"), &[], at(0)));
    assert!(expectations.is_empty(), "its end came by before we wrote it down");
}

fn service(name: &str, selector: &[(&str, &str)]) -> Service {
    let selector: serde_json::Map<String, Value> =
        selector.iter().map(|(k, v)| ((*k).to_owned(), (*v).into())).collect();
    let object = json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {"selector": selector}});
    match parsed("v1", "Service", &object) {
        Object::Service(mut service) => {
            service.selector.get_or_insert_default();
            *service
        }
        other => panic!("no Service: {other:?}"),
    }
}

fn pod(labels: &[(&str, &str)]) -> Pod {
    let labels: serde_json::Map<String, Value> =
        labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).into())).collect();
    let object = json!({"metadata": {"name": "p", "namespace": "shop", "labels": labels}});
    match parsed("v1", "Pod", &object) {
        Object::Pod(pod) => *pod,
        other => panic!("no Pod: {other:?}"),
    }
}

fn names(keys: BTreeSet<ServiceKey>) -> Vec<String> {
    keys.into_iter().map(|key| key.name.to_string()).collect()
}

#[test]
fn a_pod_finds_the_services_that_select_it() {
    let mut selectors = SelectorIndex::default();
    selectors.set(&service("all", &[]));
    selectors.set(&service("web", &[("app", "web")]));
    selectors.set(&service("front", &[("app", "web"), ("tier", "front")]));
    let front = pod(&[("app", "web"), ("tier", "front")]);
    let plain = pod(&[("app", "web")]);
    assert_eq!(names(selectors.affected_by_pod(None, Some(&front))), ["all", "front", "web"]);
    assert_eq!(names(selectors.affected_by_pod(Some(&plain), None)), ["all", "web"]);
    assert_eq!(names(selectors.affected_by_pod(Some(&plain), Some(&front))), ["front"]);
    let ready = Pod { ready: true, ..front.clone() };
    assert_eq!(names(selectors.affected_by_pod(Some(&plain), Some(&ready))), ["all", "front", "web"]);
    assert_eq!(names(selectors.affected_by_pod(Some(&front), Some(&front))), [""; 0]);
    // Another selector, then none: the old one leaves nothing behind.
    selectors.set(&service("front", &[("app", "api")]));
    assert_eq!(names(selectors.affected_by_pod(None, Some(&front))), ["all", "web"]);
    for name in ["all", "web", "front"] {
        selectors.remove(&key(name));
    }
    assert!(selectors.is_empty());
}

#[test]
fn a_pod_that_gets_a_name_in_dns_concerns_its_services() {
    let mut selectors = SelectorIndex::default();
    selectors.set(&service("web", &[("app", "web")]));
    let old = pod(&[("app", "web")]);
    let details = model::PodDetails { hostname: Some("h".into()), ..Default::default() };
    let named = Pod { details: Some(details.into()), ..old.clone() };
    assert_eq!(names(selectors.affected_by_pod(Some(&old), Some(&named))), ["web"]);
}

#[test]
fn a_node_concerns_its_services_when_its_zone_changes_and_all_when_the_facts_do() {
    let object = json!({"metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "za"}}});
    let Object::Node(node) = parsed("v1", "Node", &object) else { panic!("no Node") };
    let moved = model::Node { zone: Some("zb".into()), ..(*node).clone() };
    let ready = model::Node { ready: true, ..(*node).clone() };
    let readdressed = model::Node { addresses: Box::default(), ..(*node).clone() };
    assert_eq!(node_changed(Some(&node), Some(&moved)), NodeChange { endpoints: true, facts: true });
    assert_eq!(node_changed(Some(&node), Some(&ready)), NodeChange { endpoints: false, facts: true });
    assert_eq!(node_changed(Some(&node), Some(&readdressed)), NodeChange::default());
    assert_eq!(node_changed(None, Some(&node)), NodeChange { endpoints: true, facts: true });

    let mut snapshot = Snapshot::default();
    let mut selectors = SelectorIndex::default();
    selectors.set(&service("web", &[("app", "web")]));
    selectors.set(&service("api", &[("app", "api")]));
    let there = Pod { node: Some("n1".into()), ..pod(&[("app", "web")]) };
    snapshot.apply(Object::Pod(there.into()));
    assert_eq!(names(services_on_node(&snapshot, &selectors, "n1")), ["web"]);
    assert_eq!(names(services_on_node(&snapshot, &selectors, "n2")), [""; 0]);
}

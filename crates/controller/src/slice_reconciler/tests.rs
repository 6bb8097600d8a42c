//! The reconciler: events in, writes out, and nothing written twice while the cache lags.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

use model::Uid;
use plan::work_queue::SliceVersion;
use serde_json::json;

use super::*;
use crate::slice_writes::WrittenSlices;
use cluster::WatchedObject;

fn at(millis: u64) -> MonotonicTime {
    MonotonicTime(Duration::from_millis(millis))
}

fn watched(object: &Value) -> WatchedObject {
    serde_json::from_str(&object.to_string()).unwrap()
}

fn service() -> Value {
    json!({"metadata": {"name": "web", "namespace": "shop", "uid": "service-1"},
        "spec": {"selector": {"app": "web"}, "clusterIPs": ["10.96.0.1"], "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}})
}

fn pod(name: &str, address: &str) -> Value {
    fixtures::pod("shop", name, "web", "n1", &[address])
}

/// The one slice of the Service, as some version of it is stored.
fn slice(revision: u64, manager: Option<&str>, addresses: &[&str]) -> Value {
    let endpoint = |address: &&str| {
        json!({"addresses": [address], "nodeName": "n1", "conditions": {"ready": true, "serving": true,
            "terminating": false}, "targetRef": {"kind": "Pod", "namespace": "shop",
            "name": format!("pod-{address}"), "uid": format!("pod-{address}")}})
    };
    let mut slice = json!({"addressType": "IPv4",
        "metadata": {"name": "web-1", "namespace": "shop", "uid": "slice-1", "generation": revision,
            "resourceVersion": revision.to_string(),
            "labels": {"kubernetes.io/service-name": "web",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "service-1"}]},
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>()});
    if let Some(manager) = manager {
        slice["metadata"]["managedFields"] = json!([{"manager": manager, "operation": "Update",
            "time": "2026-11-15T10:00:00Z"}]);
    }
    slice
}

/// A leading reconciler that has listed a node, the Service, one pod and these slices.
fn reconciler(settings: ReconcilerSettings, slices: &[Value]) -> SliceReconciler {
    reconciler_with(ControllerMetrics::default(), settings, slices)
}

fn reconciler_with(
    metrics: ControllerMetrics,
    settings: ReconcilerSettings,
    slices: &[Value],
) -> SliceReconciler {
    let mut reconciler = SliceReconciler::new(settings, metrics);
    reconciler.lead(at(0));
    let node = json!({"metadata": {"name": "n1"}});
    let first = pod("pod-10.0.0.1", "10.0.0.1");
    for (kind, objects) in [
        (ObjectKind::Node, &[node][..]),
        (ObjectKind::Service, &[service()]),
        (ObjectKind::Pod, &[first]),
        (ObjectKind::Namespace, &[]),
        (ObjectKind::Slice, slices),
    ] {
        assert_eq!(
            reconciler.next(at(0), Timestamp::UNIX_EPOCH, &()).map(|work| work.service),
            None,
            "not before all is listed"
        );
        reconciler.observe(InformerEvent::ListStarted(kind), at(0));
        for object in objects {
            reconciler.observe(InformerEvent::Applied(kind, watched(object)), at(0));
        }
        reconciler.observe(InformerEvent::ListCompleted(kind), at(0));
    }
    reconciler
}

fn next(reconciler: &mut SliceReconciler, now: u64) -> Option<SliceWrites> {
    reconciler.next(at(now), Timestamp::UNIX_EPOCH, &())
}

fn done(work: &SliceWrites, revision: Option<u64>) -> WriteResult {
    let version = |revision: u64| SliceVersion { generation: revision as i64, revision: Some(revision) };
    let written = revision.map(|revision| (Uid::new("slice-1"), version(revision)));
    WriteResult {
        service: work.service.clone(),
        written: written.into_iter().collect(),
        ..WriteResult::default()
    }
}

/// Semantics M7: the nodes that reached the slices of before have not reached those that are written now.
#[test]
fn honored_waits_until_nodes_have_programmed_the_slices_of_a_new_service() {
    let mut reconciler = reconciler(ReconcilerSettings::from(plan::PlanningConfig::without_flags()), &[]);
    let node = fixtures::node("n1", "za");
    let mut wanted = service();
    wanted["spec"]["trafficDistribution"] = "PreferSameZone".into();
    let lease = |revision: &str| {
        json!({"metadata": {"name": "zoneward-node-n1", "namespace": "kube-system",
            "annotations": {annotation::PROGRAMMED_REVISION: revision}}})
    };
    for (kind, object) in
        [(ObjectKind::Node, &node), (ObjectKind::Service, &wanted), (ObjectKind::Lease, &lease("5"))]
    {
        reconciler.observe(InformerEvent::Applied(kind, watched(object)), at(0));
    }
    let honored = |work: &SliceWrites| {
        let conditions = work.conditions.as_ref()?["status"]["conditions"].as_array()?;
        let honored = conditions.iter().find(|c| c["type"] == plan::hints::conditions::HONORED)?;
        Some(honored["status"].clone())
    };
    let work = next(&mut reconciler, 0).expect("a slice to make");
    assert_eq!((work.creates.len(), honored(&work)), (1, None), "no node has programmed it");
    let mut stored = model::write::new_slice(&work.service, work.uid.as_ref(), &work.creates[0]);
    for (field, value) in [("name", "web-1"), ("uid", "slice-1"), ("resourceVersion", "7")] {
        stored["metadata"][field] = value.into();
    }
    stored["metadata"]["generation"] = 7.into();
    reconciler.done(done(&work, Some(7)), at(1), Timestamp::UNIX_EPOCH);
    reconciler.observe(InformerEvent::Applied(ObjectKind::Slice, watched(&stored)), at(2));
    reconciler.tick(at(1_000));
    assert!(next(&mut reconciler, 1_000).is_none(), "the node may follow");
    reconciler.observe(InformerEvent::Applied(ObjectKind::Lease, watched(&lease("7"))), at(1_500));
    reconciler.tick(at(2_000));
    let work = next(&mut reconciler, 2_000).expect("the condition");
    assert_eq!(honored(&work), Some("True".into()));
}

#[test]
fn a_slice_that_was_made_is_not_made_again_while_the_cache_does_not_show_it() {
    let mut reconciler = reconciler(ReconcilerSettings::from(plan::PlanningConfig::without_flags()), &[]);
    let work = next(&mut reconciler, 0).expect("a slice to make");
    assert_eq!((work.creates.len(), work.updates.len()), (1, 0));
    reconciler.done(done(&work, Some(7)), at(1), Timestamp::UNIX_EPOCH);
    // A second Pod is created before the watch shows the slice.
    reconciler
        .observe(InformerEvent::Applied(ObjectKind::Pod, watched(&pod("pod-10.0.0.2", "10.0.0.2"))), at(2));
    assert!(next(&mut reconciler, 2).is_none(), "the cache is stale");
    reconciler
        .observe(InformerEvent::Applied(ObjectKind::Slice, watched(&slice(7, None, &["10.0.0.1"]))), at(3));
    let work = next(&mut reconciler, 3).expect("the second pod, at once");
    assert_eq!((work.creates.len(), work.updates.len()), (0, 1));
    assert_eq!(work.updates[0].1.endpoints.len(), 2);
}

#[test]
fn changes_count_what_the_api_took_not_what_was_planned() {
    let metrics = ControllerMetrics::default();
    let changes = |operation: &str| {
        let mut registry = prometheus_client::registry::Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
        let name = format!("endpoint_slice_controller_changes{{operation=\"{operation}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.and_then(|value| value.parse().ok())
    };
    let mut reconciler = reconciler_with(
        metrics.clone(),
        ReconcilerSettings::from(plan::PlanningConfig::without_flags()),
        &[],
    );
    let work = next(&mut reconciler, 0).expect("a slice to make");
    assert_eq!(changes("create"), Some(0), "there before the first event");
    let refused =
        WriteResult { failure: Some(WriteFailure::Refused("the disk is full".into())), ..done(&work, None) };
    reconciler.done(refused, at(1), Timestamp::UNIX_EPOCH);
    assert_eq!(changes("create"), Some(0), "planned, and not written");
    let work = next(&mut reconciler, 3_600_000).expect("it is tried again");
    let written = WrittenSlices { creates: 1, ..WrittenSlices::default() };
    let partly = WriteResult {
        failure: Some(WriteFailure::Refused("its status".into())),
        slices: written,
        ..done(&work, Some(7))
    };
    reconciler.done(partly, at(3_600_001), Timestamp::UNIX_EPOCH);
    assert_eq!(changes("create"), Some(1), "written, whatever failed afterwards");
    assert_eq!(changes("delete"), Some(0));
}

#[test]
fn our_own_write_coming_back_is_no_work() {
    let mut reconciler = reconciler(ReconcilerSettings::from(plan::PlanningConfig::without_flags()), &[]);
    let work = next(&mut reconciler, 0).expect("a slice to make");
    reconciler.done(done(&work, Some(7)), at(1), Timestamp::UNIX_EPOCH);
    reconciler
        .observe(InformerEvent::Applied(ObjectKind::Slice, watched(&slice(7, None, &["10.0.0.1"]))), at(2));
    assert!(reconciler.is_idle(), "nothing waits");
    // Another writer empties it.
    reconciler.observe(InformerEvent::Applied(ObjectKind::Slice, watched(&slice(9, None, &[]))), at(3));
    assert_eq!(next(&mut reconciler, 3).expect("it is filled again").updates.len(), 1);
}

#[test]
fn a_conflict_is_planned_again_with_the_newer_slice() {
    let mut reconciler =
        reconciler(ReconcilerSettings::from(plan::PlanningConfig::without_flags()), &[slice(5, None, &[])]);
    let work = next(&mut reconciler, 0).expect("a slice to fill");
    let outdated =
        WriteResult { failure: Some(WriteFailure::Outdated("conflict".into())), ..done(&work, None) };
    assert!(reconciler.done(outdated, at(1), Timestamp::UNIX_EPOCH).is_none());
    assert!(next(&mut reconciler, 1).is_none(), "it waits");
    reconciler.observe(InformerEvent::Applied(ObjectKind::Slice, watched(&slice(6, None, &[]))), at(2));
    let again = next(&mut reconciler, 2).expect("the newer slice is reason enough");
    assert_eq!(again.updates[0].0.resource_version.as_deref(), Some("6"));
}

#[test]
fn failures_are_told_to_the_owner_once() {
    let mut reconciler = reconciler(ReconcilerSettings::from(plan::PlanningConfig::without_flags()), &[]);
    let mut told = 0;
    let mut now = 0;
    for _ in 0..10 {
        let work = next(&mut reconciler, now).expect("it is tried again");
        let refused = WriteResult {
            failure: Some(WriteFailure::Refused("the disk is full".into())),
            ..done(&work, None)
        };
        told += usize::from(reconciler.done(refused, at(now), Timestamp::UNIX_EPOCH).is_some());
        now += 60_000;
    }
    assert_eq!(told, 1);
}

#[test]
fn a_fresh_slice_of_kubernetes_own_controller_is_seen_and_an_old_one_is_taken_over() {
    let theirs = |revision| slice(revision, Some("kube-controller-manager"), &["10.0.0.1"]);
    let mut alone = reconciler(ReconcilerSettings::from(plan::PlanningConfig::without_flags()), &[theirs(5)]);
    assert!(next(&mut alone, 0).is_none(), "it is right as it is");
    assert_eq!(alone.competing_slice(), None);
    alone.observe(InformerEvent::Applied(ObjectKind::Slice, watched(&theirs(5))), at(1));
    assert_eq!(alone.competing_slice(), None, "the same version again is not fresh");
    alone.observe(InformerEvent::Applied(ObjectKind::Slice, watched(&theirs(6))), at(1));
    assert_eq!(alone.competing_slice().map(ToString::to_string).as_deref(), Some("shop/web-1"));

    let mut settings = ReconcilerSettings::from(plan::PlanningConfig::without_flags());
    settings.planning.slices.mode = SliceMode::Coexist;
    let mut beside = reconciler(settings, &[theirs(5)]);
    assert_eq!(next(&mut beside, 0).expect("one of our own").creates.len(), 1);
    beside.observe(InformerEvent::Applied(ObjectKind::Slice, watched(&theirs(6))), at(1));
    assert_eq!(beside.competing_slice(), None);
}

#[test]
fn a_slice_that_moves_to_another_service_leaves_nobody_waiting() {
    let mut reconciler = reconciler(ReconcilerSettings::from(plan::PlanningConfig::without_flags()), &[]);
    let work = next(&mut reconciler, 0).expect("a slice to make");
    reconciler.done(done(&work, Some(7)), at(1), Timestamp::UNIX_EPOCH);
    reconciler
        .observe(InformerEvent::Applied(ObjectKind::Slice, watched(&slice(7, None, &["10.0.0.1"]))), at(2));
    let mut moved = slice(8, None, &["10.0.0.1"]);
    moved["metadata"]["labels"]["kubernetes.io/service-name"] = "other".into();
    reconciler.observe(InformerEvent::Applied(ObjectKind::Slice, watched(&moved)), at(3));
    let keys: Vec<String> = std::iter::from_fn(|| next(&mut reconciler, 3))
        .map(|work| format!("{} {}", work.service, work.creates.len()))
        .collect();
    assert_eq!(keys, ["shop/web 1", "shop/other 0"]);
}

#[test]
fn whoever_stands_by_plans_nothing_and_knows_everything_when_it_is_his_turn() {
    let mut reconciler = reconciler(ReconcilerSettings::from(plan::PlanningConfig::without_flags()), &[]);
    let work = next(&mut reconciler, 0).expect("a slice to make");
    // Leadership is lost with the write in flight: it succeeds, and its response is lost.
    reconciler.stand_by();
    assert!(next(&mut reconciler, 1).is_none() && reconciler.due().is_none());
    assert!(reconciler.done(done(&work, Some(7)), at(1), Timestamp::UNIX_EPOCH).is_none());
    reconciler
        .observe(InformerEvent::Applied(ObjectKind::Slice, watched(&slice(7, None, &["10.0.0.1"]))), at(2));
    reconciler
        .observe(InformerEvent::Applied(ObjectKind::Pod, watched(&pod("pod-10.0.0.2", "10.0.0.2"))), at(3));
    assert!(next(&mut reconciler, 3).is_none(), "another controller writes that");
    reconciler.lead(at(4));
    let work = next(&mut reconciler, 4).expect("what came meanwhile");
    assert_eq!((work.creates.len(), work.updates.len()), (0, 1));
    assert_eq!(work.updates[0].1.endpoints.len(), 2);
}

#[test]
fn who_leads_again_makes_nothing_twice_that_the_cache_does_not_show_yet() {
    let mut reconciler = reconciler(ReconcilerSettings::from(plan::PlanningConfig::without_flags()), &[]);
    let work = next(&mut reconciler, 0).expect("a slice to make");
    reconciler.done(done(&work, Some(7)), at(1), Timestamp::UNIX_EPOCH);
    reconciler.stand_by();
    reconciler.lead(at(2));
    assert!(next(&mut reconciler, 2).is_none(), "its own slice has not come by yet");
    reconciler
        .observe(InformerEvent::Applied(ObjectKind::Slice, watched(&slice(7, None, &["10.0.0.1"]))), at(3));
    assert!(next(&mut reconciler, 3).is_none() && reconciler.is_idle(), "there it is");
}

/// The slices that an API would store.
#[derive(Default)]
struct StoredByName {
    objects: BTreeMap<String, Value>,
    revision: u64,
    made: u64,
}

impl StoredByName {
    /// Carries out all writes that are due, and shows them to the watch. Returns how many there were.
    fn carry_out(&mut self, reconciler: &mut SliceReconciler, now: u64) -> usize {
        let mut writes = 0;
        while let Some(work) = next(reconciler, now) {
            let mut result = done(&work, None);
            let mut changed = Vec::new();
            for content in &work.creates {
                let mut object = model::write::new_slice(&work.service, work.uid.as_ref(), content);
                self.made += 1;
                let name = format!("web-{}", self.made);
                object["metadata"]["name"] = name.as_str().into();
                object["metadata"]["uid"] = name.into();
                changed.push(object);
            }
            for (stored, content) in &work.updates {
                let mut object = self.objects[stored.key.name.as_str()].clone();
                model::write::update_slice(&mut object, content);
                changed.push(object);
            }
            for object in &mut changed {
                self.revision += 1;
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                object["metadata"]["resourceVersion"] = self.revision.to_string().into();
                object["metadata"]["generation"] = self.revision.into();
                let version =
                    SliceVersion { generation: self.revision as i64, revision: Some(self.revision) };
                result.written.push((Uid::new(object["metadata"]["uid"].as_str().unwrap()), version));
                self.objects.insert(name, object.clone());
            }
            result.deleted.extend(work.deletes.iter().filter_map(|stored| stored.uid.clone()));
            reconciler.done(result, at(now), Timestamp::UNIX_EPOCH);
            for object in &changed {
                reconciler.observe(InformerEvent::Applied(ObjectKind::Slice, watched(object)), at(now));
            }
            for stored in &work.deletes {
                let gone = self.objects.remove(stored.key.name.as_str()).unwrap();
                reconciler.observe(InformerEvent::Deleted(ObjectKind::Slice, watched(&gone)), at(now));
            }
            writes += changed.len() + work.deletes.len();
        }
        writes
    }

    fn zones(&self) -> Vec<&str> {
        let labels = self.objects.values().map(|slice| &slice["metadata"]["labels"]);
        let mut zones: Vec<&str> =
            labels.filter_map(|labels| labels[annotation::FOR_ZONE].as_str()).collect();
        zones.sort_unstable();
        zones
    }
}

/// Conflict 8 of subsetting: labels go at once, and come back after five minutes without any other event.
#[test]
fn labels_by_zone_are_dropped_at_once_and_set_again_later() {
    let subset = Some(plan::subsetting::SubsetOptions { from: 6 });
    let slices = slices::SliceOptions { subset, ..slices::SliceOptions::WITHOUT_FLAGS };
    let mut reconciler = reconciler(
        ReconcilerSettings::from(plan::PlanningConfig { slices, ..plan::PlanningConfig::without_flags() }),
        &[],
    );
    let apply = |reconciler: &mut SliceReconciler, kind, object: &Value, now: u64| {
        reconciler.observe(InformerEvent::Applied(kind, watched(object)), at(now));
    };
    for (name, zone) in [("n1", "za"), ("n2", "zb")] {
        apply(&mut reconciler, ObjectKind::Node, &fixtures::node(name, zone), 1);
    }
    let pod_at = |number: u8, ready: &str| {
        let mut pod = pod(&format!("pod-10.0.0.{number}"), &format!("10.0.0.{number}"));
        pod["spec"]["nodeName"] = if number % 2 == 1 { "n1" } else { "n2" }.into();
        pod["status"]["conditions"][0]["status"] = ready.into();
        pod
    };
    (1..=12).for_each(|number| apply(&mut reconciler, ObjectKind::Pod, &pod_at(number, "True"), 1));
    let mut preferring = service();
    preferring["spec"]["trafficDistribution"] = "PreferSameZone".into();
    apply(&mut reconciler, ObjectKind::Service, &preferring, 1);
    let mut api = StoredByName::default();
    api.carry_out(&mut reconciler, 2);
    assert_eq!(api.zones(), ["za", "zb"]);
    // Four of six in zb are not ready.
    [2, 4, 6, 8]
        .iter()
        .for_each(|number| apply(&mut reconciler, ObjectKind::Pod, &pod_at(*number, "False"), 1_000));
    api.carry_out(&mut reconciler, 1_001);
    assert_eq!(api.zones(), [""; 0]);
    [2, 4, 6, 8]
        .iter()
        .for_each(|number| apply(&mut reconciler, ObjectKind::Pod, &pod_at(*number, "True"), 2_000));
    api.carry_out(&mut reconciler, 2_001);
    assert!(reconciler.is_idle(), "nothing waits in the queue for five minutes");
    for now in [60_000, 300_000] {
        reconciler.tick(at(now));
        assert_eq!((api.carry_out(&mut reconciler, now), api.zones().len()), (0, 0), "{now}");
    }
    reconciler.tick(at(301_002));
    assert!(api.carry_out(&mut reconciler, 301_003) > 0);
    assert_eq!(api.zones(), ["za", "zb"]);
    reconciler.tick(at(900_000));
    assert_eq!(api.carry_out(&mut reconciler, 900_000), 0, "and nothing more");
}

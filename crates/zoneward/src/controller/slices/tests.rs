//! The head without hands: events in, work out, and nothing done twice while the cache lags behind.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

use model::Uid;
use plan::work_queue::SliceVersion;
use serde_json::json;

use super::*;
use crate::cluster::Watched;
use crate::controller::commit::WrittenSlices;

fn at(millis: u64) -> MonotonicTime {
    MonotonicTime(Duration::from_millis(millis))
}

fn watched(object: &Value) -> Watched {
    serde_json::from_str(&object.to_string()).unwrap()
}

fn service() -> Value {
    json!({"metadata": {"name": "web", "namespace": "shop", "uid": "service-1"},
        "spec": {"selector": {"app": "web"}, "clusterIPs": ["10.96.0.1"], "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}})
}

fn pod(name: &str, address: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": "web"}},
        "spec": {"nodeName": "n1"},
        "status": {"podIPs": [{"ip": address}], "conditions": [{"type": "Ready", "status": "True"}]}})
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

/// A head that leads and has listed a node, the Service, one pod and these slices.
fn head(settings: Settings, slices: &[Value]) -> Head {
    head_with(Metrics::default(), settings, slices)
}

fn head_with(metrics: Metrics, settings: Settings, slices: &[Value]) -> Head {
    let mut head = Head::new(settings, metrics);
    head.lead(at(0));
    let node = json!({"metadata": {"name": "n1"}});
    let first = pod("pod-10.0.0.1", "10.0.0.1");
    for (kind, objects) in [
        (Kind::Node, &[node][..]),
        (Kind::Service, &[service()]),
        (Kind::Pod, &[first]),
        (Kind::Namespace, &[]),
        (Kind::Slice, slices),
    ] {
        assert_eq!(
            head.next(at(0), Timestamp::UNIX_EPOCH).map(|work| work.service),
            None,
            "not before all is listed"
        );
        head.saw(Event::Listing(kind), at(0));
        for object in objects {
            head.saw(Event::Put(kind, watched(object)), at(0));
        }
        head.saw(Event::Listed(kind), at(0));
    }
    head
}

fn next(head: &mut Head, now: u64) -> Option<Work> {
    head.next(at(now), Timestamp::UNIX_EPOCH)
}

fn done(work: &Work, revision: Option<u64>) -> Done {
    let version = |revision: u64| SliceVersion { generation: revision as i64, revision: Some(revision) };
    let written = revision.map(|revision| (Uid::new("slice-1"), version(revision)));
    Done { service: work.service.clone(), written: written.into_iter().collect(), ..Done::default() }
}

#[test]
fn a_slice_that_was_made_is_not_made_again_while_the_cache_does_not_show_it() {
    let mut head = head(Settings::default(), &[]);
    let work = next(&mut head, 0).expect("a slice to make");
    assert_eq!((work.creates.len(), work.updates.len()), (1, 0));
    head.done(done(&work, Some(7)), at(1), Timestamp::UNIX_EPOCH);
    // A second pod comes before the watch shows the slice.
    head.saw(Event::Put(Kind::Pod, watched(&pod("pod-10.0.0.2", "10.0.0.2"))), at(2));
    assert!(next(&mut head, 2).is_none(), "the cache is stale");
    head.saw(Event::Put(Kind::Slice, watched(&slice(7, None, &["10.0.0.1"]))), at(3));
    let work = next(&mut head, 3).expect("the second pod, at once");
    assert_eq!((work.creates.len(), work.updates.len()), (0, 1));
    assert_eq!(work.updates[0].1.endpoints.len(), 2);
}

#[test]
fn changes_count_what_the_api_took_not_what_was_planned() {
    let metrics = Metrics::default();
    let changes = |operation: &str| {
        let mut registry = prometheus_client::registry::Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
        let name = format!("endpoint_slice_controller_changes{{operation=\"{operation}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.and_then(|value| value.parse().ok())
    };
    let mut head = head_with(metrics.clone(), Settings::default(), &[]);
    let work = next(&mut head, 0).expect("a slice to make");
    assert_eq!(changes("create"), Some(0), "there before the first event");
    let refused = Done { failure: Some(Failure::Refused("the disk is full".into())), ..done(&work, None) };
    head.done(refused, at(1), Timestamp::UNIX_EPOCH);
    assert_eq!(changes("create"), Some(0), "planned, and not written");
    let work = next(&mut head, 3_600_000).expect("it is tried again");
    let written = WrittenSlices { creates: 1, ..WrittenSlices::default() };
    let partly = Done {
        failure: Some(Failure::Refused("its status".into())),
        slices: written,
        ..done(&work, Some(7))
    };
    head.done(partly, at(3_600_001), Timestamp::UNIX_EPOCH);
    assert_eq!(changes("create"), Some(1), "written, whatever failed afterwards");
    assert_eq!(changes("delete"), Some(0));
}

#[test]
fn our_own_write_coming_back_is_no_work() {
    let mut head = head(Settings::default(), &[]);
    let work = next(&mut head, 0).expect("a slice to make");
    head.done(done(&work, Some(7)), at(1), Timestamp::UNIX_EPOCH);
    head.saw(Event::Put(Kind::Slice, watched(&slice(7, None, &["10.0.0.1"]))), at(2));
    assert!(head.is_idle(), "nothing waits");
    // Somebody empties it.
    head.saw(Event::Put(Kind::Slice, watched(&slice(9, None, &[]))), at(3));
    assert_eq!(next(&mut head, 3).expect("it is filled again").updates.len(), 1);
}

#[test]
fn a_conflict_is_planned_again_with_the_newer_slice() {
    let mut head = head(Settings::default(), &[slice(5, None, &[])]);
    let work = next(&mut head, 0).expect("a slice to fill");
    let outdated = Done { failure: Some(Failure::Outdated("conflict".into())), ..done(&work, None) };
    assert!(head.done(outdated, at(1), Timestamp::UNIX_EPOCH).is_none());
    assert!(next(&mut head, 1).is_none(), "it waits");
    head.saw(Event::Put(Kind::Slice, watched(&slice(6, None, &[]))), at(2));
    let again = next(&mut head, 2).expect("the newer slice is reason enough");
    assert_eq!(again.updates[0].0.resource_version.as_deref(), Some("6"));
}

#[test]
fn failures_are_told_to_the_owner_once() {
    let mut head = head(Settings::default(), &[]);
    let mut told = 0;
    let mut now = 0;
    for _ in 0..10 {
        let work = next(&mut head, now).expect("it is tried again");
        let refused =
            Done { failure: Some(Failure::Refused("the disk is full".into())), ..done(&work, None) };
        told += usize::from(head.done(refused, at(now), Timestamp::UNIX_EPOCH).is_some());
        now += 60_000;
    }
    assert_eq!(told, 1);
}

#[test]
fn a_fresh_slice_of_kubernetes_own_controller_is_seen_and_an_old_one_is_taken_over() {
    let theirs = |revision| slice(revision, Some("kube-controller-manager"), &["10.0.0.1"]);
    let mut alone = head(Settings::default(), &[theirs(5)]);
    assert!(next(&mut alone, 0).is_none(), "it is right as it is");
    assert_eq!(alone.rival(), None);
    alone.saw(Event::Put(Kind::Slice, watched(&theirs(5))), at(1));
    assert_eq!(alone.rival(), None, "the same version again is not fresh");
    alone.saw(Event::Put(Kind::Slice, watched(&theirs(6))), at(1));
    assert_eq!(alone.rival().map(ToString::to_string).as_deref(), Some("shop/web-1"));

    let mut settings = Settings::default();
    settings.slices.mode = SliceMode::Coexist;
    let mut beside = head(settings, &[theirs(5)]);
    assert_eq!(next(&mut beside, 0).expect("one of our own").creates.len(), 1);
    beside.saw(Event::Put(Kind::Slice, watched(&theirs(6))), at(1));
    assert_eq!(beside.rival(), None);
}

#[test]
fn a_slice_that_moves_to_another_service_leaves_nobody_waiting() {
    let mut head = head(Settings::default(), &[]);
    let work = next(&mut head, 0).expect("a slice to make");
    head.done(done(&work, Some(7)), at(1), Timestamp::UNIX_EPOCH);
    head.saw(Event::Put(Kind::Slice, watched(&slice(7, None, &["10.0.0.1"]))), at(2));
    let mut moved = slice(8, None, &["10.0.0.1"]);
    moved["metadata"]["labels"]["kubernetes.io/service-name"] = "other".into();
    head.saw(Event::Put(Kind::Slice, watched(&moved)), at(3));
    let keys: Vec<String> = std::iter::from_fn(|| next(&mut head, 3))
        .map(|work| format!("{} {}", work.service, work.creates.len()))
        .collect();
    assert_eq!(keys, ["shop/web 1", "shop/other 0"]);
}

#[test]
fn whoever_stands_by_plans_nothing_and_knows_everything_when_it_is_his_turn() {
    let mut head = head(Settings::default(), &[]);
    let work = next(&mut head, 0).expect("a slice to make");
    // Deposed with the write under way: it was carried out, and the answer is lost.
    head.stand_by();
    assert!(next(&mut head, 1).is_none() && head.due().is_none());
    assert!(head.done(done(&work, Some(7)), at(1), Timestamp::UNIX_EPOCH).is_none());
    head.saw(Event::Put(Kind::Slice, watched(&slice(7, None, &["10.0.0.1"]))), at(2));
    head.saw(Event::Put(Kind::Pod, watched(&pod("pod-10.0.0.2", "10.0.0.2"))), at(3));
    assert!(next(&mut head, 3).is_none(), "somebody else writes that");
    head.lead(at(4));
    let work = next(&mut head, 4).expect("what came meanwhile");
    assert_eq!((work.creates.len(), work.updates.len()), (0, 1));
    assert_eq!(work.updates[0].1.endpoints.len(), 2);
}

#[test]
fn who_leads_again_makes_nothing_twice_that_the_cache_does_not_show_yet() {
    let mut head = head(Settings::default(), &[]);
    let work = next(&mut head, 0).expect("a slice to make");
    head.done(done(&work, Some(7)), at(1), Timestamp::UNIX_EPOCH);
    head.stand_by();
    head.lead(at(2));
    assert!(next(&mut head, 2).is_none(), "its own slice has not come by yet");
    head.saw(Event::Put(Kind::Slice, watched(&slice(7, None, &["10.0.0.1"]))), at(3));
    assert!(next(&mut head, 3).is_none() && head.is_idle(), "there it is");
}

//! Tests of [`super::Snapshot`].

use serde_json::json;

use super::*;
use crate::name::Interner;
use crate::parse;

fn apply(snapshot: &mut Snapshot, value: serde_json::Value) {
    let (object, notices) = parse::object(&value, &mut Interner::default());
    assert_eq!(notices, []);
    snapshot.apply(object.expect("a known kind"));
}

fn pod(name: &str, labels: serde_json::Value) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": name, "labels": labels}})
}

fn slice(name: &str, service: &str) -> serde_json::Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": [],
        "metadata": {"namespace": "ns", "name": name, "labels": {"kubernetes.io/service-name": service}}})
}

fn key(name: &str) -> ServiceKey {
    ServiceKey::new(&"ns".into(), &name.into())
}

#[test]
fn pods_are_found_by_the_whole_selector() {
    let mut snapshot = Snapshot::default();
    apply(&mut snapshot, pod("b", json!({"app": "web", "tier": "front"})));
    apply(&mut snapshot, pod("a", json!({"app": "web"})));
    apply(&mut snapshot, pod("c", json!({"tier": "front"})));
    let names = |snapshot: &Snapshot, pairs: &[(&str, &str)]| {
        let selector: Labels = pairs.iter().copied().collect();
        let pods = snapshot.pods_selected(&"ns".into(), &selector);
        pods.iter().map(|p| p.key.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&snapshot, &[("app", "web")]), ["a", "b"]);
    assert_eq!(names(&snapshot, &[("app", "web"), ("tier", "front")]), ["b"]);
    assert_eq!(names(&snapshot, &[]), ["a", "b", "c"]);
    assert_eq!(names(&snapshot, &[("app", "none")]), [""; 0]);

    apply(&mut snapshot, pod("b", json!({"app": "api"})));
    assert_eq!(names(&snapshot, &[("app", "web")]), ["a"], "a relabelled pod leaves its old place");
    snapshot.remove_pod(&ObjectKey::new(&"ns".into(), &"a".into()));
    assert_eq!(names(&snapshot, &[("app", "web")]), [""; 0]);
}

#[test]
fn a_slice_that_changes_its_service_leaves_the_old_one() {
    let mut snapshot = Snapshot::default();
    apply(&mut snapshot, slice("s-1", "old"));
    apply(&mut snapshot, slice("s-1", "new"));
    assert_eq!(snapshot.slices(&key("old")).len(), 0);
    assert_eq!(snapshot.slices(&key("new")).len(), 1);
}

#[test]
fn nothing_stays_behind_when_all_objects_are_gone() {
    let mut snapshot = Snapshot::default();
    apply(
        &mut snapshot,
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "ns", "name": "svc"}}),
    );
    apply(&mut snapshot, slice("svc-1", "svc"));
    apply(&mut snapshot, pod("a", json!({"app": "web"})));
    snapshot.remove_service(&key("svc"));
    assert_eq!(snapshot.orphaned_slices().count(), 1);
    snapshot.remove_slice(&ObjectKey::new(&"ns".into(), &"svc-1".into()));
    snapshot.remove_pod(&ObjectKey::new(&"ns".into(), &"a".into()));
    assert!(snapshot.services.is_empty() && snapshot.service_by_slice.is_empty());
    assert!(snapshot.pods.is_empty());
    assert_eq!(snapshot.revision(), SnapshotRevision(6));
}

#[test]
fn unchanged_rules_of_a_replaced_policy_are_the_same_values() {
    let rule = |path: &str| {
        json!({"matches": [{"path": {"prefix": path}}],
            "default": {"backendRefs": [{"kind": "MeshService", "name": "b"}]}})
    };
    let policy = |second: &str| {
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGatewayHTTPRoute",
            "metadata": {"namespace": "ns", "name": "p"},
            "spec": {"targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": [rule("/a"), rule(second)]}})
    };
    let mut snapshot = Snapshot::default();
    let rules = |snapshot: &Snapshot| {
        let key = ObjectKey { namespace: "ns".into(), name: "p".into() };
        snapshot.mesh_gateway_http_route(&key).expect("it was applied").rules.clone()
    };
    apply(&mut snapshot, policy("/b"));
    let before = rules(&snapshot);
    apply(&mut snapshot, policy("/c"));
    let after = rules(&snapshot);
    assert!(std::sync::Arc::ptr_eq(&before[0], &after[0]));
    assert_ne!(before[1], after[1]);
}

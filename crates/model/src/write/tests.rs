//! Tests of writing: unknown fields are preserved.

use serde_json::json;

use super::*;
use crate::name::Interner;
use crate::parse::{self, Object};

fn stored() -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": "web-1", "namespace": "ns", "resourceVersion": "7",
            "labels": {"kubernetes.io/service-name": "web"},
            "annotations": {"example.com/theirs": "stays", "zoneward.dev/mechanism": "Auto"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "u"}],
        },
        "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
        "endpoints": [
            {"addresses": ["10.0.0.1"], "conditions": {"ready": true}, "fieldOfTheFuture": 1,
             "hints": {"forZones": [{"name": "a"}]}},
            {"addresses": ["10.0.0.2"], "conditions": {}, "zone": "b"},
        ],
        "topLevelOfTheFuture": {"x": [1]},
    })
}

fn content(value: &Value) -> SliceContent {
    match parse::object(value, &mut Interner::default()) {
        (Some(Object::Slice(slice)), _) => slice.content,
        other => panic!("not a slice: {other:?}"),
    }
}

#[test]
fn writing_what_was_read_changes_nothing() {
    let mut value = stored();
    update_slice(&mut value, &content(&stored()));
    assert_eq!(value, stored());
}

#[test]
fn only_our_fields_change() {
    let mut value = stored();
    let mut changed = content(&value);
    changed.endpoints[0].hints = None;
    changed.endpoints.remove(1);
    changed.annotations = Labels::EMPTY;
    update_slice(&mut value, &changed);

    let mut wanted = stored();
    wanted["endpoints"] =
        json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": true}, "fieldOfTheFuture": 1}]);
    wanted["metadata"]["annotations"] = json!({"example.com/theirs": "stays"});
    assert_eq!(value, wanted);
}

#[test]
fn a_name_that_is_too_long_gets_no_dash() {
    assert_eq!(generate_name(&"web".into()), "web-");
    let long = "x".repeat(248);
    assert_eq!(generate_name(&long.as_str().into()), long);
}

fn slice(value: &Value) -> crate::Slice {
    match parse::object(value, &mut Interner::default()) {
        (Some(Object::Slice(slice)), _) => *slice,
        other => panic!("not a slice: {other:?}"),
    }
}

/// The stored object after the patch, which must be the one that changing it in place gives.
fn patched(value: &Value, content: &SliceContent) -> Value {
    let patch = patch_slice(&slice(value), content).expect("it can be said as a patch");
    let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
    let mut patched = value.clone();
    json_patch::patch(&mut patched, &patch).unwrap();
    let mut updated = value.clone();
    update_slice(&mut updated, content);
    assert_eq!(patched, updated);
    patched
}

#[test]
fn a_patch_says_what_changing_in_place_does() {
    let value = stored();
    let mut changed = content(&value);
    assert_eq!(patched(&value, &changed), value);
    changed.endpoints[1].conditions = EndpointConditions::new(false, true, true);
    changed.endpoints[1].zone = None;
    changed.endpoints[1].node = Some("n1".into());
    changed.endpoints[1].hints = Some(Hints::zone(&"a".into()).into());
    changed.endpoints[0].hints = None;
    changed.annotations = [(annotation::TRIGGER_TIME, "now")].into_iter().collect();
    changed.labels = [("team", "blue")].into_iter().collect();
    changed.ports = [].into();
    patched(&value, &changed);
}

#[test]
fn a_patch_takes_out_and_puts_in_without_losing_what_stays() {
    let value = stored();
    let mut changed = content(&value);
    let new = |last: u8| {
        let mut endpoint = changed.endpoints[0].clone();
        endpoint.addresses = crate::Addresses::from_slice(&[[10, 0, 1, last].into()]).unwrap();
        endpoint
    };
    let (one, two, three) = (new(1), new(2), new(3));
    changed.endpoints.remove(1);
    changed.endpoints.insert(0, one);
    changed.endpoints.push(two);
    patched(&value, &changed);
    changed.endpoints.remove(1);
    changed.endpoints.push(three);
    patched(&value, &changed);
    changed.endpoints.clear();
    patched(&value, &changed);
}

#[test]
fn a_patch_fills_what_was_empty() {
    let mut value = stored();
    let full = content(&value);
    value["endpoints"] = Value::Null;
    value["metadata"]["annotations"] = Value::Null;
    patched(&value, &full);
}

#[test]
fn endpoints_that_change_places_are_no_patch() {
    let value = stored();
    let mut changed = content(&value);
    changed.endpoints.swap(0, 1);
    assert_eq!(patch_slice(&slice(&value), &changed), None);
    let mut twice = content(&value);
    twice.endpoints.push(twice.endpoints[0].clone());
    let mut stored_twice = value.clone();
    update_slice(&mut stored_twice, &twice);
    assert_eq!(patch_slice(&slice(&stored_twice), &changed), None);
}

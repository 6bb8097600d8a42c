//! Tests of writing: what we do not own survives.

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

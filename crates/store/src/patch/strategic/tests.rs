//! Strategic merge, case by case: what is stored, the patch, what comes out.

use serde_json::{Value, json};

use super::apply;
use crate::schema::definition;

fn patched(kind: &str, object: Value, patch: Value) -> Result<Value, u16> {
    let schema = definition(&format!("io.k8s.api.core.v1.{kind}")).unwrap();
    apply(&object, &patch, schema).map_err(|failure| failure.code)
}

fn ports(numbers: &[(u16, &str)]) -> Value {
    let ports: Vec<Value> = numbers.iter().map(|(port, name)| json!({"port": port, "name": name})).collect();
    json!({"spec": {"ports": ports}})
}

#[test]
fn ports_are_merged_by_their_number() {
    let patch = json!({"spec": {"ports": [{"port": 80, "name": "web"}, {"port": 90, "name": "new"}]}});
    let after = patched("Service", ports(&[(70, "a"), (80, "b")]), patch);
    assert_eq!(after, Ok(ports(&[(70, "a"), (80, "web"), (90, "new")])));
}

#[test]
fn an_entry_is_deleted_by_its_key() {
    let patch = json!({"spec": {"ports": [{"port": 80, "$patch": "delete"}]}});
    assert_eq!(patched("Service", ports(&[(70, "a"), (80, "b")]), patch), Ok(ports(&[(70, "a")])));
}

#[test]
fn a_whole_list_is_replaced_on_request() {
    let patch = json!({"spec": {"ports": [{"$patch": "replace"}, {"port": 1, "name": "x"}]}});
    assert_eq!(patched("Service", ports(&[(70, "a"), (80, "b")]), patch), Ok(ports(&[(1, "x")])));
}

#[test]
fn the_order_is_set_and_entries_of_others_keep_their_place() {
    let patch = json!({"spec": {
        "$setElementOrder/ports": [{"port": 90}, {"port": 70}],
        "ports": [{"port": 90, "name": "c"}],
    }});
    let after = patched("Service", ports(&[(70, "a"), (80, "b")]), patch);
    assert_eq!(after, Ok(ports(&[(90, "c"), (70, "a"), (80, "b")])));
}

#[test]
fn conditions_of_other_writers_survive() {
    let object =
        json!({"status": {"conditions": [{"type": "A", "status": "True"}, {"type": "B", "status": "True"}]}});
    let patch = json!({"status": {"conditions": [{"type": "B", "status": "False"}]}});
    let after = patched("Service", object, patch).unwrap();
    assert_eq!(
        after["status"]["conditions"],
        json!([{"type": "A", "status": "True"}, {"type": "B", "status": "False"}])
    );
}

#[test]
fn finalizers_are_a_set_and_can_be_taken_out() {
    let object = json!({"metadata": {"finalizers": ["a", "b"]}});
    let after = patched("Service", object.clone(), json!({"metadata": {"finalizers": ["b", "c"]}})).unwrap();
    assert_eq!(after["metadata"]["finalizers"], json!(["a", "b", "c"]));
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}});
    assert_eq!(patched("Service", object, patch).unwrap()["metadata"]["finalizers"], json!(["b"]));
}

#[test]
fn retained_keys_push_the_others_out() {
    let object = json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]}});
    let patch = json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "emptyDir"], "emptyDir": {"medium": "Memory"}}]}});
    let after = patched("Pod", object.clone(), patch).unwrap();
    assert_eq!(after["spec"]["volumes"], json!([{"name": "v", "emptyDir": {"medium": "Memory"}}]));
    let wrong = json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name"], "emptyDir": {}}]}});
    assert_eq!(patched("Pod", object, wrong), Err(400));
}

#[test]
fn maps_are_replaced_deleted_and_merged_by_directive() {
    let object = json!({"spec": {"selector": {"a": "1", "b": "2"}}});
    let replace = json!({"spec": {"selector": {"$patch": "replace", "c": "3"}}});
    assert_eq!(patched("Service", object.clone(), replace), Ok(json!({"spec": {"selector": {"c": "3"}}})));
    let delete = json!({"spec": {"selector": {"$patch": "delete"}}});
    assert_eq!(patched("Service", object.clone(), delete), Ok(json!({"spec": {}})));
    let merge = json!({"spec": {"selector": {"$patch": "merge", "a": null, "c": "3"}}});
    assert_eq!(patched("Service", object, merge), Ok(json!({"spec": {"selector": {"b": "2", "c": "3"}}})));
}

#[test]
fn lists_without_a_strategy_are_replaced() {
    let object = json!({"spec": {"externalIPs": ["1.1.1.1"], "clusterIPs": ["10.0.0.1"]}});
    let patch = json!({"spec": {"externalIPs": ["2.2.2.2"]}});
    assert_eq!(patched("Service", object, patch).unwrap()["spec"]["externalIPs"], json!(["2.2.2.2"]));
}

#[test]
fn containers_and_their_environment_are_merged_at_depth() {
    let object =
        json!({"spec": {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]}});
    let patch = json!({"spec": {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}]}]}});
    let after = patched("Pod", object, patch).unwrap();
    // A new entry comes first, as in Kubernetes.
    let env = json!([{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}]);
    assert_eq!(after["spec"]["containers"], json!([{"name": "a", "env": env}, {"name": "b"}]));
}

#[test]
fn patches_that_cannot_be_understood_are_refused() {
    let object = ports(&[(70, "a")]);
    for (patch, code) in [
        (json!([]), 400),
        (json!({"spec": {"$patch": "explode"}}), 400),
        (json!({"spec": {"ports": [{"name": "no-key"}]}}), 422),
        (json!({"spec": {"ports": ["x"]}}), 400),
        (json!({"metadata": {"$deleteFromPrimitiveList/finalizers": "a"}}), 400),
    ] {
        assert_eq!(patched("Service", object.clone(), patch.clone()), Err(code), "{patch}");
    }
}

//! The cases of `vectors/endpoint-conversion.json`: pod -> endpoint, ports, labels, change detection.
//!
//! Two kinds of cases are for the work queue and expectations, and are checked by the tests of `plan::work_queue`. They are
//! listed here, so that an unknown kind fails.

use model::{
    AddressType, Endpoint, Family, Interner, Labels, Object, Pod, Service, Slice, SliceContent, SlicePort,
    parse, write,
};
use plan::slices;
use serde_json::{Map, Value, json};

/// Kinds that belong to the queue.
const OF_THE_QUEUE: &[&str] = &["services-to-requeue", "stale-cache-detection"];

fn vectors() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/endpoint-conversion.json");
    let text = std::fs::read_to_string(path).expect("the vectors are part of the repository");
    let mut file: Value = serde_json::from_str(&text).expect("the vectors are JSON");
    serde_json::from_value(file["vectors"].take()).expect("the vectors are a list")
}

fn parsed(id: &str, api_version: &str, kind: &str, object: &Value) -> Object {
    let mut object = object.as_object().cloned().unwrap_or_default();
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    // The vectors write a time that does not matter as {"time": "<now>"}.
    if let Some(time) = object.get_mut("metadata").and_then(|m| m.get_mut("deletionTimestamp")) {
        *time = "2026-11-15T10:00:00Z".into();
    }
    let (parsed, notices) = parse::object(&Value::Object(object), &mut Interner::default());
    parsed.unwrap_or_else(|| panic!("{id}: {kind} cannot be read: {notices:?}"))
}

fn service(id: &str, value: &Value) -> Service {
    let Object::Service(service) = parsed(id, "v1", "Service", value) else { panic!("{id}: no Service") };
    *service
}

fn pod(id: &str, value: &Value) -> Pod {
    let Object::Pod(pod) = parsed(id, "v1", "Pod", value) else { panic!("{id}: no Pod") };
    *pod
}

fn slice(id: &str, value: Value) -> Slice {
    let mut object = json!({"addressType": "IPv4"}).as_object().cloned().unwrap_or_default();
    object.extend(value.as_object().cloned().unwrap_or_default());
    let parsed = parsed(id, "discovery.k8s.io/v1", "EndpointSlice", &Value::Object(object));
    let Object::Slice(slice) = parsed else { panic!("{id}: no EndpointSlice") };
    *slice
}

fn listed_endpoint(id: &str, value: &Value) -> Endpoint {
    // A pod is always in the namespace of its slice.
    let namespace = &value["targetRef"]["namespace"];
    let value = json!({"metadata": {"namespace": namespace}, "endpoints": [value]});
    slice(id, value).content.endpoints.remove(0)
}

fn listed_ports(id: &str, ports: &Value) -> Vec<SlicePort> {
    slice(id, json!({"ports": ports})).content.ports.to_vec()
}

fn family(id: &str, text: &Value) -> Family {
    match text.as_str() {
        Some("IPv4") => Family::V4,
        Some("IPv6") => Family::V6,
        other => panic!("{id}: no family: {other:?}"),
    }
}

fn string_map(labels: &Labels) -> Value {
    let pairs = labels.iter().map(|(k, v)| (k.to_string(), Value::from(v.as_str())));
    pairs.collect::<Map<_, _>>().into()
}

/// Object keys in any order.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().map(|(k, v)| (k.clone(), sorted(v))).collect();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            fields.into_iter().collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

fn check_endpoint(id: &str, input: &Value, expect: &Value) {
    let node = (!input["node"].is_null()).then(|| match parsed(id, "v1", "Node", &input["node"]) {
        Object::Node(node) => node,
        other => panic!("{id}: no Node: {other:?}"),
    });
    let pod = pod(id, &input["pod"]);
    let family = family(id, &input["addressType"]);
    let endpoint = slices::endpoint(&service(id, &input["service"]), &pod, node.as_deref(), family);
    assert_eq!(endpoint, Some(listed_endpoint(id, &expect["endpoint"])), "{id}");
}

fn check_find_port(id: &str, input: &Value, expect: &Value) {
    let service = service(id, &json!({"spec": {"ports": [input["servicePort"]]}}));
    let port = slices::find_port(&pod(id, &input["pod"]), &service.ports[0]);
    assert_eq!(port.map(Value::from), expect.get("port").cloned(), "{id}");
}

/// A vector of upstream's quirk: reserved labels that differ (conv.034) are no reason to write.
fn check_labels(id: &str, input: &Value, expect: &Value) {
    let stored = slice(id, input["slice"].clone());
    let (labels, changed) = slices::labels(&service(id, &input["service"]), Some(&stored.content.labels));
    assert_eq!(sorted(&string_map(&labels)), sorted(&expect["labels"]), "{id}");
    assert_eq!(changed, expect["changed"], "{id}");
}

fn check_address_types(id: &str, input: &Value, expect: &Value) {
    let families = slices::families(&service(id, &input["service"]));
    let names: Vec<&str> = families.iter().map(|f| f.as_str()).collect();
    assert_eq!(Value::from(names), expect["addressTypes"], "{id}");
}

fn check_new_slice(id: &str, input: &Value, expect: &Value) {
    let service = service(id, &input["service"]);
    let content = SliceContent {
        address_type: AddressType::Ip(family(id, &input["meta"]["addressType"])),
        labels: slices::labels(&service, None).0,
        annotations: Labels::EMPTY,
        ports: listed_ports(id, &input["meta"]["ports"]).into(),
        endpoints: Vec::new(),
    };
    let mut written = write::new_slice(&service.key, service.uid.as_ref(), &content);
    let written = written.as_object_mut().expect("an object");
    written.remove("apiVersion");
    written.remove("kind");
    assert_eq!(sorted(&Value::Object(written.clone())), sorted(&expect["slice"]), "{id}");
}

/// We always include terminating pods; the function behind the vector can be asked not to.
fn check_included(id: &str, input: &Value, expect: &Value) {
    let pod = pod(id, &input["pod"]);
    let terminating_too = input["includeTerminating"] == true;
    let included = slices::included(&pod) && (terminating_too || !pod.deleting);
    assert_eq!(included, expect["included"], "{id}");
}

fn check_hostname(id: &str, input: &Value, expect: &Value) {
    let mut with_address = input["pod"].clone();
    with_address["status"] = json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]});
    let service = service(id, &input["service"]);
    let endpoint = slices::endpoint(&service, &pod(id, &with_address), None, Family::V4);
    assert_eq!(endpoint.expect("it has an address").hostname().is_some(), expect["set"], "{id}");
}

fn check_pod_change(id: &str, input: &Value, expect: &Value) {
    let change = slices::pod_changed(&pod(id, &input["old"]), &pod(id, &input["new"]));
    assert_eq!(change.endpoint, expect["podChanged"], "{id}: endpoint");
    assert_eq!(change.labels, expect["labelsChanged"], "{id}: labels");
}

fn check_equality(id: &str, input: &Value, expect: &Value) {
    let [a, b] = [&input["a"], &input["b"]].map(|value| listed_endpoint(id, value));
    assert_eq!(slices::endpoints_equal(&a, &b), expect["equal"], "{id}");
    assert_eq!(slices::endpoints_equal(&b, &a), expect["equal"], "{id}, the other way round");
}

#[test]
fn every_conversion_vector_holds() {
    let mut checked = 0;
    for vector in vectors() {
        let (id, kind) = (vector["id"].as_str().unwrap_or("?"), vector["kind"].as_str().unwrap_or("?"));
        let (input, expect) = (&vector["input"], &vector["expect"]);
        match kind {
            "pod-to-endpoint" => check_endpoint(id, input, expect),
            "pod-ports" => {
                let ports = slices::ports(&service(id, &input["service"]), &pod(id, &input["pod"]));
                assert_eq!(ports, listed_ports(id, &expect["ports"]), "{id}");
            }
            "find-port" => check_find_port(id, input, expect),
            "slice-labels" => check_labels(id, input, expect),
            "address-types" => check_address_types(id, input, expect),
            "new-slice" => check_new_slice(id, input, expect),
            "pod-included" => check_included(id, input, expect),
            "hostname-published" => check_hostname(id, input, expect),
            "pod-change-detection" => check_pod_change(id, input, expect),
            "endpoint-equality" => check_equality(id, input, expect),
            of_the_queue if OF_THE_QUEUE.contains(&of_the_queue) => continue,
            unknown => panic!("{id}: nobody checks the kind {unknown:?}"),
        }
        checked += 1;
    }
    assert_eq!(checked, 32);
}

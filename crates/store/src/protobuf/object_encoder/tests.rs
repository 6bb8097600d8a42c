//! What is encoded is read back the same: by the table-driven decoder as JSON, and by the decoder of nodes as objects.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

use model::protobuf::{envelope, frame_length, head, list, status, watch_event};
use model::{Interner, parse};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::kinds;

fn encoder(object: &Value) -> ObjectEncoder {
    let kind = kinds::of(object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap()).unwrap();
    ObjectEncoder::of(kind, false).unwrap()
}

fn message(object: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    encoder(object).put_object(&mut out, object.to_string().as_bytes()).unwrap();
    out
}

/// The object and the Notices of a node, by JSON and by protobuf.
fn check_parses_the_same(object: &Value) {
    let word = |field: &str| object[field].as_str().unwrap().to_owned();
    let (api_version, kind) = (word("apiVersion"), word("kind"));
    let by_json = parse::text(&api_version, &kind, &object.to_string(), &mut Interner::default());
    let by_message = parse::message(&api_version, &kind, &message(object), &mut Interner::default());
    assert_eq!(by_json.0, by_message.0, "{object}");
    let texts = |notices: &[model::Notice]| notices.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(texts(&by_json.1), texts(&by_message.1), "{object}");
}

fn cases() -> Vec<Value> {
    let text = include_str!("../../../../../vectors/protobuf.json");
    let document: Value = serde_json::from_str(text).unwrap();
    document["cases"].as_array().unwrap().clone()
}

#[test]
fn cases_of_another_encoder_are_read_as_their_json() {
    for case in cases() {
        let (name, json) = (&case["name"], &case["json"]);
        let bytes = STANDARD.decode(case["protobuf"].as_str().unwrap()).unwrap();
        match case["form"].as_str().unwrap() {
            "object" => {
                let decoded = super::super::object(&bytes).unwrap();
                assert_eq!(without_zeros(&decoded), without_zeros(json), "{name}");
                let envelope = envelope(&bytes).unwrap();
                let parsed = parse::message(
                    envelope.api_version,
                    envelope.kind,
                    envelope.raw,
                    &mut Interner::default(),
                );
                assert_eq!(parsed.0, parse::object(json, &mut Interner::default()).0, "{name}");
                check_parses_the_same(json);
            }
            "event" => {
                assert_eq!(frame_length(&bytes).unwrap(), Some(bytes.len() - FRAME_HEADER));
                let (word, object) = watch_event(&bytes[FRAME_HEADER..]).unwrap();
                let mine = match case["type"].as_str().unwrap() {
                    "ERROR" => status_event(json.to_string().as_bytes()),
                    word => {
                        let mut mine = Vec::new();
                        encoder(json).put_event(&mut mine, word, json.to_string().as_bytes()).unwrap();
                        mine
                    }
                };
                let (my_word, my_object) = watch_event(&mine[FRAME_HEADER..]).unwrap();
                assert_eq!((word, my_word), (case["type"].as_str().unwrap(), word));
                let (theirs, mine) = (envelope(object).unwrap(), envelope(my_object).unwrap());
                assert_eq!((theirs.kind, theirs.api_version), (mine.kind, mine.api_version));
                if word == "ERROR" {
                    assert_eq!(status(theirs.raw).unwrap(), status(mine.raw).unwrap());
                    assert_eq!(status(mine.raw).unwrap().code, 410);
                } else {
                    assert_eq!(head(theirs.raw).unwrap(), head(mine.raw).unwrap());
                    assert_eq!(head(mine.raw).unwrap().ends_initial_events, word == "BOOKMARK");
                }
            }
            _ => {
                let theirs = envelope(&bytes).unwrap();
                let items: Vec<Bytes> =
                    json["items"].as_array().unwrap().iter().map(|item| item.to_string().into()).collect();
                let service = kinds::of("v1", "Service").unwrap();
                let mine =
                    ObjectEncoder::of(service, false).unwrap().list(&json["metadata"], &items).unwrap();
                let mine = envelope(&mine).unwrap();
                assert_eq!((theirs.kind, theirs.api_version), (mine.kind, mine.api_version));
                let (theirs, mine) = (list(theirs.raw).unwrap(), list(mine.raw).unwrap());
                assert_eq!(theirs.resource_version, mine.resource_version);
                assert_eq!((theirs.continue_token, theirs.items.len()), ("abc", 2));
                for (theirs, mine) in theirs.items.iter().zip(&mine.items) {
                    let read = |raw| parse::message("v1", "Service", raw, &mut Interner::default()).0;
                    assert_eq!(read(theirs), read(mine));
                }
            }
        }
    }
}

/// What protobuf cannot say, as Go leaves it out of JSON: zeros, and empty lists and maps.
fn without_zeros(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let kept = members.iter().map(|(name, value)| (name.clone(), without_zeros(value)));
            let is_said = |value: &Value| {
                !matches!(value, Value::Null)
                    && value != ""
                    && value != &json!(0)
                    && value != &json!(false)
                    && value != &json!([])
            };
            Value::Object(kept.filter(|(_, value)| is_said(value)).collect())
        }
        Value::Array(items) => items.iter().map(without_zeros).collect(),
        other => other.clone(),
    }
}

#[test]
fn every_field_survives_the_table_in_both_directions() {
    for case in cases().iter().filter(|case| case["form"] == "object") {
        let object = &case["json"];
        let mut bytes = Vec::new();
        let [api_version, kind] = ["apiVersion", "kind"].map(|field| object[field].as_str().unwrap());
        put_envelope(&mut bytes, api_version, kind, |out| {
            out.extend(message(object));
            Ok(())
        })
        .unwrap();
        assert_eq!(without_zeros(&super::super::object(&bytes).unwrap()), without_zeros(object));
    }
}

#[test]
fn managed_fields_are_dropped_for_clients_that_do_not_read_them() {
    let object = &cases()[1]["json"];
    let kind = kinds::of("discovery.k8s.io/v1", "EndpointSlice").unwrap();
    let mut out = Vec::new();
    ObjectEncoder::of(kind, true).unwrap().put_object(&mut out, object.to_string().as_bytes()).unwrap();
    let mut dropped = object.clone();
    dropped["metadata"].as_object_mut().unwrap().remove("managedFields");
    let sorted = |bytes: &[u8]| {
        parse::message("discovery.k8s.io/v1", "EndpointSlice", bytes, &mut Interner::default()).0
    };
    assert_eq!(sorted(&out), sorted(&message(&dropped)));
    assert_eq!(out.len(), message(&dropped).len());
}

#[test]
fn the_table_has_only_maps_that_can_be_encoded() {
    let table = MessageTable::shared();
    for (name, index) in &table.index_by_name {
        for field in &table.messages[*index] {
            assert_ne!(field.name, "-", "{name} has a message whose fields stand in it");
            let of = match field.of {
                FieldType::Plain(plain) => Some(plain),
                FieldType::Message(_) => None,
            };
            let is_known = matches!(of, Some(Plain::Text | Plain::Quantity));
            assert!(field.shape != Shape::Map || is_known, "{name}.{}", field.name);
        }
    }
}

#[test]
fn values_of_other_types_are_left_out() {
    let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "labels": {"x": 7}, "generation": "z"},
        "spec": {"ports": {"port": 1}, "selector": ["a"], "clusterIPs": "none", "type": 5, "clusterIP": null,
            "healthCheckNodePort": 1.5, "publishNotReadyAddresses": {}, "unknown": [{"a": [1]}]}, "status": []});
    let bytes = message(&object);
    let service = parse::message("v1", "Service", &bytes, &mut Interner::default()).0.unwrap();
    let plain = json!({"metadata": {"name": "a", "labels": {"x": ""}}});
    assert_eq!(Some(service), parse::text("v1", "Service", &plain.to_string(), &mut Interner::default()).0);
    let kind = kinds::of("v1", "Service").unwrap();
    let (encoder, mut out) = (ObjectEncoder::of(kind, false).unwrap(), b"before".to_vec());
    assert!(encoder.put_event(&mut out, "ADDED", b"{\"metadata\":").is_err());
    assert_eq!(out, b"before", "nothing of an event that cannot be encoded");
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{1,8}", "\\PC{0,5}", "[a-z]{120,140}", Just("\"\\\n\u{1}".to_owned())]
}

fn addresses() -> impl Strategy<Value = String> {
    prop_oneof![
        (1u8..255).prop_map(|last| format!("10.0.0.{last}")),
        Just("fd00::1".to_owned()),
        Just("malformed".to_owned()),
        Just(String::new())
    ]
}

fn labels() -> impl Strategy<Value = Value> {
    proptest::collection::btree_map(texts(), texts(), 1..4).prop_map(|map| json!(map))
}

fn times() -> impl Strategy<Value = Value> {
    (-3_000_000_000i64..30_000_000_000)
        .prop_map(|seconds| json!(jiff::Timestamp::from_second(seconds).unwrap().to_string()))
}

/// An object with some of these members.
fn some(members: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let members: Vec<_> = members
        .into_iter()
        .map(|(name, value)| proptest::option::of(value).prop_map(move |value| (name, value)))
        .collect();
    members
        .prop_map(|members| {
            Value::Object(members.into_iter().filter_map(|(n, v)| Some((n.to_owned(), v?))).collect())
        })
        .boxed()
}

fn text() -> BoxedStrategy<Value> {
    texts().prop_map(Value::from).boxed()
}

fn one_of(words: &'static [&'static str]) -> BoxedStrategy<Value> {
    proptest::sample::select(words).prop_map(Value::from).boxed()
}

fn many(of: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    proptest::collection::vec(of, 1..4).prop_map(Value::from).boxed()
}

fn number() -> BoxedStrategy<Value> {
    prop_oneof![4 => 1i32..70_000, 1 => any::<i32>()].prop_map(Value::from).boxed()
}

fn flag() -> BoxedStrategy<Value> {
    any::<bool>().prop_map(Value::from).boxed()
}

fn address() -> BoxedStrategy<Value> {
    addresses().prop_map(Value::from).boxed()
}

fn metadata() -> BoxedStrategy<Value> {
    let owner = some(vec![
        ("apiVersion", one_of(&["v1", "apps/v1"])),
        ("kind", one_of(&["Service", "Pod"])),
        ("name", text()),
        ("uid", text()),
    ]);
    let managed = some(vec![("manager", text()), ("time", times().boxed()), ("operation", text())]);
    some(vec![
        ("name", text()),
        ("namespace", text()),
        ("uid", text()),
        ("resourceVersion", text()),
        ("generation", any::<i64>().prop_map(Value::from).boxed()),
        ("creationTimestamp", times().boxed()),
        ("deletionTimestamp", times().boxed()),
        ("labels", labels().boxed()),
        ("annotations", labels().boxed()),
        ("ownerReferences", many(owner)),
        ("managedFields", many(managed)),
    ])
}

fn services() -> BoxedStrategy<Value> {
    let port = some(vec![
        ("name", text()),
        ("protocol", one_of(&["TCP", "UDP", "SCTP", "ICMP"])),
        ("port", number()),
        ("targetPort", prop_oneof![number(), text()].boxed()),
        ("nodePort", number()),
        ("appProtocol", text()),
    ]);
    let affinity = some(vec![("timeoutSeconds", number())]);
    let affinity = some(vec![("clientIP", affinity)]);
    let ingress = some(vec![("ip", address()), ("hostname", text()), ("ipMode", one_of(&["VIP", "Proxy"]))]);
    let condition = some(vec![
        ("type", one_of(&["zoneward.dev/Spread", "Other"])),
        ("status", text()),
        ("reason", text()),
        ("message", text()),
    ])
    .prop_map(|mut condition| {
        condition["lastTransitionTime"] = "2026-01-02T03:04:05Z".into();
        condition
    });
    let spec = some(vec![
        ("ports", many(port)),
        ("selector", labels().boxed()),
        ("clusterIP", address()),
        ("clusterIPs", many(prop_oneof![address(), Just(json!("None"))].boxed())),
        ("type", one_of(&["ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "Odd"])),
        ("externalIPs", many(address())),
        ("sessionAffinity", one_of(&["None", "ClientIP"])),
        ("sessionAffinityConfig", affinity),
        ("loadBalancerSourceRanges", many(one_of(&["10.0.0.0/8", " fd00::/8 ", "odd"]))),
        ("externalName", text()),
        ("externalTrafficPolicy", one_of(&["Local", "Cluster"])),
        ("internalTrafficPolicy", one_of(&["Local", "Cluster", "Odd"])),
        ("healthCheckNodePort", number()),
        ("publishNotReadyAddresses", flag()),
        ("ipFamilies", many(one_of(&["IPv4", "IPv6"]))),
        ("ipFamilyPolicy", one_of(&["SingleStack", "PreferDualStack"])),
        ("trafficDistribution", text()),
    ]);
    let status = some(vec![
        ("loadBalancer", some(vec![("ingress", many(ingress))])),
        ("conditions", many(condition.boxed())),
    ]);
    object("v1", "Service", vec![("metadata", metadata()), ("spec", spec), ("status", status)])
}

fn object(
    api_version: &'static str,
    kind: &'static str,
    members: Vec<(&'static str, BoxedStrategy<Value>)>,
) -> BoxedStrategy<Value> {
    let stamped = move |mut value: Value| {
        value["apiVersion"] = api_version.into();
        value["kind"] = kind.into();
        value
    };
    some(members).prop_map(stamped).boxed()
}

fn slices() -> BoxedStrategy<Value> {
    let conditions = some(vec![("ready", flag()), ("serving", flag()), ("terminating", flag())]);
    let target = some(vec![
        ("kind", one_of(&["Pod", "Node"])),
        ("namespace", text()),
        ("name", text()),
        ("uid", text()),
    ]);
    let named = || many(some(vec![("name", text())]));
    let endpoint = some(vec![
        ("addresses", many(prop_oneof![8 => Just(json!("10.0.0.7")), 1 => address()].boxed())),
        ("conditions", conditions),
        ("hostname", text()),
        ("targetRef", target),
        ("nodeName", text()),
        ("zone", text()),
        ("hints", some(vec![("forZones", named()), ("forNodes", named())])),
    ]);
    let port = some(vec![
        ("name", text()),
        ("protocol", one_of(&["TCP", "UDP"])),
        ("port", number()),
        ("appProtocol", text()),
    ]);
    let address_type = one_of(&["IPv4", "IPv4", "IPv4", "IPv6", "FQDN", "Odd"]);
    let members = vec![
        ("metadata", metadata()),
        ("endpoints", many(endpoint)),
        ("ports", many(port)),
        ("addressType", address_type),
    ];
    object("discovery.k8s.io/v1", "EndpointSlice", members)
}

fn nodes() -> BoxedStrategy<Value> {
    let condition = some(vec![
        ("type", one_of(&["Ready", "Other"])),
        ("status", one_of(&["True", "False"])),
        ("reason", text()),
    ]);
    let node_address =
        some(vec![("type", one_of(&["InternalIP", "ExternalIP", "Hostname"])), ("address", address())]);
    let status = some(vec![
        ("allocatable", some(vec![("cpu", one_of(&["4", "3920m", "odd"])), ("memory", text())])),
        ("conditions", many(condition)),
        ("addresses", many(node_address)),
    ]);
    let spec = some(vec![
        ("podCIDR", one_of(&["10.0.0.0/24", "odd"])),
        ("podCIDRs", many(one_of(&["10.0.0.0/24", "fd00::/64"]))),
        ("providerID", one_of(&["kind://a", "b"])),
        (
            "taints",
            many(some(vec![("key", one_of(&["ToBeDeletedByClusterAutoscaler", "x"])), ("effect", text())])),
        ),
    ]);
    object("v1", "Node", vec![("metadata", metadata()), ("spec", spec), ("status", status)])
}

proptest! {
    #[test]
    fn a_node_reads_an_object_the_same_in_both_encodings(object in prop_oneof![services(), slices(), nodes()]) {
        check_parses_the_same(&object);
    }

    #[test]
    fn a_message_that_is_cut_is_no_panic(object in prop_oneof![services(), slices(), nodes()]) {
        let [api_version, kind] = ["apiVersion", "kind"].map(|field| object[field].as_str().unwrap());
        let bytes = message(&object);
        for end in 0..bytes.len() {
            let _ = parse::message(api_version, kind, &bytes[..end], &mut Interner::default());
        }
    }
}

//! Model types -> Kubernetes JSON. In stored objects only our own fields change; all others are preserved, including
//! unknown ones.

mod patch;

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::address::Family;
use crate::annotation;
use crate::endpoint::{Endpoint, EndpointConditions, Hints, TargetRef};
use crate::label::Labels;
use crate::name::{Name, ServiceKey};
use crate::slice::{SliceContent, SlicePort};
use crate::uid::Uid;

pub use patch::patch_slice;

/// The generated suffix has five characters.
const MAX_GENERATE_NAME: usize = 253 - 5;

/// A new EndpointSlice of a Service.
pub fn new_slice(service: &ServiceKey, uid: Option<&Uid>, content: &SliceContent) -> Value {
    let mut metadata = Map::new();
    metadata.insert("generateName".into(), generate_name(&service.name).into());
    metadata.insert("namespace".into(), service.namespace.as_str().into());
    metadata.insert(
        "ownerReferences".into(),
        json!([{
            "apiVersion": "v1",
            "kind": "Service",
            "name": service.name.as_str(),
            "uid": uid.map(Uid::to_string).unwrap_or_default(),
            "controller": true,
            "blockOwnerDeletion": true,
        }]),
    );
    let mut slice = Map::new();
    slice.insert("apiVersion".into(), "discovery.k8s.io/v1".into());
    slice.insert("kind".into(), "EndpointSlice".into());
    slice.insert("metadata".into(), Value::Object(metadata));
    slice.insert("addressType".into(), content.address_type.as_str().into());
    let mut slice = Value::Object(slice);
    update_slice(&mut slice, content);
    slice
}

/// Semantics B5: the name of the Service and a dash, without the dash if that is too long.
fn generate_name(service: &Name) -> String {
    let with_dash = format!("{service}-");
    if with_dash.len() > MAX_GENERATE_NAME { service.to_string() } else { with_dash }
}

/// Applies `content` to a stored EndpointSlice.
///
/// We own all labels, our annotations, the ports and the endpoints. An endpoint with the same addresses and target keeps
/// its unknown fields.
pub fn update_slice(stored: &mut Value, content: &SliceContent) {
    let Some(slice) = stored.as_object_mut() else { return };
    let metadata = slice.entry("metadata").or_insert_with(|| json!({}));
    let namespace = metadata["namespace"].clone();
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.insert("labels".into(), string_map(&content.labels));
        set_annotations(metadata, &content.annotations);
    }
    let before = slice.remove("endpoints");
    let before: &[Value] = before.as_ref().and_then(Value::as_array).map_or(&[], Vec::as_slice);
    let endpoints: Vec<Value> = content.endpoints.iter().map(|e| endpoint(e, &namespace, before)).collect();
    slice.insert("endpoints".into(), endpoints.into());
    slice.insert("ports".into(), content.ports.iter().map(port).collect());
}

fn set_annotations(metadata: &mut Map<String, Value>, ours: &Labels) {
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    if annotations.is_null() {
        *annotations = json!({});
    }
    let Some(annotations) = annotations.as_object_mut() else { return };
    annotations.retain(|key, _| !annotation::READ_FROM_SLICES.contains(&key.as_str()));
    for (key, value) in ours.iter() {
        annotations.insert(key.to_string(), value.as_str().into());
    }
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
}

fn string_map(labels: &Labels) -> Value {
    labels.iter().map(|(k, v)| (k.to_string(), Value::from(v.as_str()))).collect::<Map<_, _>>().into()
}

fn port(port: &SlicePort) -> Value {
    let mut value = Map::new();
    if let Some(name) = &port.name {
        value.insert("name".into(), name.as_str().into());
    }
    value.insert("protocol".into(), port.protocol.as_str().into());
    if let Some(number) = port.port {
        value.insert("port".into(), number.into());
    }
    if let Some(app_protocol) = &port.app_protocol {
        value.insert("appProtocol".into(), app_protocol.as_str().into());
    }
    value.into()
}

/// The fields of an endpoint that we own.
const ENDPOINT_FIELDS: &[&str] =
    &["addresses", "conditions", "hostname", "nodeName", "zone", "targetRef", "hints"];

fn endpoint(endpoint: &Endpoint, namespace: &Value, before: &[Value]) -> Value {
    let addresses: Vec<Value> = endpoint.addresses.iter().map(|a| a.to_string().into()).collect();
    let target_name = endpoint.target().map(|t| t.name.as_str());
    let same = |old: &&Value| {
        old["addresses"].as_array() == Some(&addresses) && old["targetRef"]["name"].as_str() == target_name
    };
    let mut value = before.iter().find(same).and_then(Value::as_object).cloned().unwrap_or_default();
    value.retain(|field, _| !ENDPOINT_FIELDS.contains(&field.as_str()));
    value.insert("addresses".into(), addresses.into());
    value.insert("conditions".into(), conditions_value(endpoint.conditions));
    for (field, name) in [
        ("hostname", endpoint.hostname()),
        ("nodeName", endpoint.node.as_ref()),
        ("zone", endpoint.zone.as_ref()),
    ] {
        if let Some(name) = name {
            value.insert(field.into(), name.as_str().into());
        }
    }
    if let Some(target) = endpoint.target() {
        value.insert("targetRef".into(), target_value(target, namespace));
    }
    if let Some(hints) = &endpoint.hints {
        value.insert("hints".into(), hints_value(hints));
    }
    value.into()
}

fn conditions_value(conditions: EndpointConditions) -> Value {
    let given = [
        ("ready", conditions.ready),
        ("serving", conditions.serving),
        ("terminating", conditions.terminating),
    ];
    let given = given.into_iter().filter_map(|(k, v)| Some((k.to_owned(), Value::Bool(v?))));
    given.collect::<Map<_, _>>().into()
}

fn target_value(target: &TargetRef, namespace: &Value) -> Value {
    let mut reference = json!({
        "kind": "Pod", "namespace": namespace, "name": target.name.as_str(),
    });
    if let Some(uid) = &target.uid {
        reference["uid"] = uid.to_string().into();
    }
    reference
}

fn hints_value(hints: &Hints) -> Value {
    let named = |names: &[Name]| names.iter().map(|n| json!({"name": n.as_str()})).collect::<Vec<_>>();
    let mut value = Map::new();
    if !hints.zones.is_empty() {
        value.insert("forZones".into(), named(&hints.zones).into());
    }
    if !hints.nodes.is_empty() {
        value.insert("forNodes".into(), named(&hints.nodes).into());
    }
    value.into()
}

/// A new IPAddress for a Service (semantics E2).
pub fn new_ip_address(address: IpAddr, service: &ServiceKey) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IPAddress",
        "metadata": {
            "name": address.to_string(),
            "labels": {
                annotation::IP_FAMILY: Family::of(address).as_str(),
                annotation::IP_MANAGED_BY: annotation::IP_ALLOCATOR,
            },
        },
        "spec": {
            "parentRef": {
                "group": "",
                "resource": "services",
                "namespace": service.namespace.as_str(),
                "name": service.name.as_str(),
            },
        },
    })
}

#[cfg(test)]
mod tests;

//! Reduces objects to the fields that planning reads, by an allow list.

use model::annotation;
use serde_json::{Map, Value, json};

/// `None` for kinds that planning does not read.
pub(super) fn reduced(object: &Value) -> Option<Value> {
    let kind = object["kind"].as_str()?;
    let (annotations, body): (&[&str], Value) = match kind {
        "Service" => (annotation::READ_FROM_SERVICES, service(object)),
        "EndpointSlice" => (annotation::READ_FROM_SLICES, slice(object)),
        "Pod" => (&[], pod(object)),
        "Node" => (&[], node(object)),
        "Namespace" => (&[annotation::DEFAULT_TRAFFIC_DISTRIBUTION], json!({})),
        _ => return None,
    };
    let mut reduced = Map::new();
    reduced.insert("apiVersion".into(), object["apiVersion"].clone());
    reduced.insert("kind".into(), kind.into());
    reduced.insert("metadata".into(), metadata(&object["metadata"], kind, annotations));
    reduced.extend(body.as_object().cloned().unwrap_or_default());
    Some(reduced.into())
}

/// The existing fields of an object.
fn only(object: &Value, fields: &[&str]) -> Map<String, Value> {
    let there = fields.iter().filter_map(|field| Some((*field, object.get(*field)?)));
    there
        .filter(|(_, value)| !value.is_null())
        .map(|(field, value)| (field.to_owned(), value.clone()))
        .collect()
}

fn each(list: &Value, one: impl Fn(&Value) -> Value) -> Value {
    list.as_array().into_iter().flatten().map(one).collect()
}

fn metadata(metadata: &Value, kind: &str, annotations: &[&str]) -> Value {
    let fields = [
        "name",
        "namespace",
        "uid",
        "generation",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
    ];
    let mut kept = only(metadata, &fields);
    let labels = match kind {
        "Node" => {
            let read = [annotation::ZONE, annotation::REGION, annotation::CONTROL_PLANE, annotation::MASTER];
            only(&metadata["labels"], &read)
        }
        "Namespace" => Map::new(),
        _ => metadata["labels"].as_object().cloned().unwrap_or_default(),
    };
    for (field, values) in [("labels", labels), ("annotations", only(&metadata["annotations"], annotations))]
    {
        if !values.is_empty() {
            kept.insert(field.into(), values.into());
        }
    }
    if metadata["ownerReferences"].is_array() {
        let owner = |owner: &Value| only(owner, &["apiVersion", "kind", "name", "uid", "controller"]).into();
        kept.insert("ownerReferences".into(), each(&metadata["ownerReferences"], owner));
    }
    kept.into()
}

const SERVICE_FIELDS: &[&str] = &[
    "type",
    "selector",
    "ports",
    "clusterIP",
    "clusterIPs",
    "ipFamilies",
    "ipFamilyPolicy",
    "externalIPs",
    "externalName",
    "loadBalancerSourceRanges",
    "internalTrafficPolicy",
    "externalTrafficPolicy",
    "sessionAffinity",
    "sessionAffinityConfig",
    "publishNotReadyAddresses",
    "healthCheckNodePort",
    "trafficDistribution",
];

fn service(object: &Value) -> Value {
    json!({
        "spec": only(&object["spec"], SERVICE_FIELDS),
        "status": only(&object["status"], &["loadBalancer"]),
    })
}

fn slice(object: &Value) -> Value {
    const ENDPOINT: &[&str] =
        &["addresses", "conditions", "hostname", "nodeName", "zone", "targetRef", "hints"];
    let endpoint = |endpoint: &Value| {
        let mut kept = only(endpoint, ENDPOINT);
        if let Some(target) = kept.get_mut("targetRef") {
            *target = only(target, &["kind", "namespace", "name", "uid"]).into();
        }
        kept.into()
    };
    json!({
        "addressType": object["addressType"],
        "ports": each(&object["ports"], |port| only(port, &["name", "protocol", "port", "appProtocol"]).into()),
        "endpoints": each(&object["endpoints"], endpoint),
    })
}

fn pod(object: &Value) -> Value {
    let mut spec = only(&object["spec"], &["nodeName", "hostname", "subdomain"]);
    let container = |container: &Value| {
        let mut kept = only(container, &["name", "restartPolicy"]);
        if container["ports"].is_array() {
            let port = |port: &Value| only(port, &["name", "containerPort", "protocol"]).into();
            kept.insert("ports".into(), each(&container["ports"], port));
        }
        Value::from(kept)
    };
    for field in ["containers", "initContainers"] {
        if object["spec"][field].is_array() {
            spec.insert(field.into(), each(&object["spec"][field], container));
        }
    }
    let mut status = only(&object["status"], &["phase", "podIP", "podIPs"]);
    status.insert("conditions".into(), ready(&object["status"]));
    json!({"spec": spec, "status": status})
}

fn ready(status: &Value) -> Value {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let ready = conditions.filter(|condition| condition["type"] == "Ready");
    ready.map(|condition| Value::from(only(condition, &["type", "status", "lastTransitionTime"]))).collect()
}

fn node(object: &Value) -> Value {
    let mut spec = only(&object["spec"], &["podCIDR", "podCIDRs"]);
    let taints = object["spec"]["taints"].as_array().into_iter().flatten();
    let taints: Vec<Value> = taints
        .filter(|taint| taint["key"] == annotation::TO_BE_DELETED)
        .map(|taint| only(taint, &["key", "effect"]).into())
        .collect();
    if !taints.is_empty() {
        spec.insert("taints".into(), taints.into());
    }
    let addresses = object["status"]["addresses"].as_array().into_iter().flatten();
    let is_ip = |address: &&Value| address["type"].as_str().is_some_and(|kind| kind.ends_with("IP"));
    json!({
        "spec": spec,
        "status": {
            "allocatable": only(&object["status"]["allocatable"], &["cpu"]),
            "addresses": addresses.filter(is_ip).cloned().collect::<Vec<_>>(),
            "conditions": ready(&object["status"]),
        },
    })
}

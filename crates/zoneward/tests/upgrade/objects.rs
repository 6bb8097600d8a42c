//! The objects of a fixture: every kind that the API stores, and a Service for every mechanism. What the program writes
//! for them is compared without what differs each time: names, times, identifiers and sentences.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::world::{LEASES, Machine, SERVICES, SLICES, text};

/// Cluster IP and port of every Service of [`create`] that has an address.
pub(crate) fn addresses() -> Vec<String> {
    let count = services().iter().filter(|(_, spec)| spec["clusterIP"] != "None").count();
    (1..=count).map(|i| format!("10.96.1.{i}:80")).chain(["10.96.2.1:80".to_owned()]).collect()
}

/// Annotations and spec.
fn services() -> Vec<(Value, Value)> {
    vec![
        (json!({}), json!({})),
        (json!({}), json!({"trafficDistribution": "PreferSameZone"})),
        (json!({}), json!({"trafficDistribution": "PreferSameNode"})),
        (json!({"service.kubernetes.io/topology-mode": "Auto"}), json!({})),
        (json!({"zoneward.dev/traffic-distribution": "Spill"}), json!({})),
        (json!({"endpointslice.kubernetes.io/same-zone": "Require"}), json!({})),
        (json!({"endpointslice.kubernetes.io/same-zone": "Prefer"}), json!({})),
        (json!({"endpointslice.kubernetes.io/same-region": "Prefer"}), json!({})),
        (json!({}), json!({"internalTrafficPolicy": "Local"})),
        (json!({}), json!({"type": "NodePort", "sessionAffinity": "ClientIP"})),
        // Malformed: a condition and an Event say so.
        (json!({"endpointslice.kubernetes.io/same-zone": "Sometimes"}), json!({})),
        (json!({}), json!({"clusterIP": "None"})),
    ]
}

fn service(name: &str, app: &str, ip: &str, annotations: &Value, spec: &Value) -> Value {
    let mut all = json!({"clusterIP": ip, "selector": {"app": app},
        "ports": [{"name": "http", "port": 80, "targetPort": 8080}]});
    for (key, value) in spec.as_object().unwrap() {
        all[key] = value.clone();
    }
    if all["type"] == "NodePort" {
        all["ports"][0]["nodePort"] = 30080.into();
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "annotations": annotations}, "spec": all})
}

fn pod(name: &str, app: &str, node: usize, number: usize) -> Value {
    let ip = format!("10.1.{node}.{number}");
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": app}},
        "spec": {"nodeName": format!("n{node}"), "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}]}})
}

/// Creates everything.
pub(crate) fn create(machine: &Machine) {
    let shop = json!({"metadata": {"name": "shop",
        "annotations": {"zoneward.dev/default-traffic-distribution": "PreferSameZone"}}});
    machine.create("/api/v1/namespaces", &shop);
    for (i, zone) in ["zone-a", "zone-b", "zone-c"].iter().enumerate() {
        let labels =
            json!({"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": "region-1"});
        machine.create(
            "/api/v1/nodes",
            &json!({"metadata": {"name": format!("n{}", i + 1), "labels": labels},
                "status": {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}],
                    "addresses": [{"type": "InternalIP", "address": format!("192.0.2.{}", i + 1)}]}}),
        );
    }
    for (i, node) in [1, 1, 1, 2, 2, 3, 3].iter().enumerate() {
        machine.create("/api/v1/namespaces/default/pods", &pod(&format!("web-{i}"), "web", *node, 10 + i));
        machine.create("/api/v1/namespaces/shop/pods", &pod(&format!("cart-{i}"), "cart", *node, 30 + i));
    }
    for (i, (annotations, spec)) in services().iter().enumerate() {
        let (name, ip) = (format!("web-{:02}", i + 1), format!("10.96.1.{}", i + 1));
        machine.create("/api/v1/namespaces/default/services", &service(&name, "web", &ip, annotations, spec));
    }
    let cart = service("cart", "cart", "10.96.2.1", &json!({}), &json!({}));
    machine.create("/api/v1/namespaces/shop/services", &cart);
    for (path, object) in others() {
        machine.create(path, &object);
    }
}

/// The kinds that Services do not need.
fn others() -> Vec<(&'static str, Value)> {
    let mesh = |path: &'static str, kind: &str, spec: Value| {
        (
            path,
            json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": kind, "metadata": {"name": "one"}, "spec": spec}),
        )
    };
    let rule = json!([{"matches": [{"path": {"type": "Prefix", "value": "/"}}],
        "default": {"backendRefs": [{"kind": "MeshService", "name": "cart"}]}}]);
    let to = json!([{"targetRef": {"kind": "MeshService", "name": "cart"}, "rules": rule}]);
    let tcp = json!([{"targetRef": {"kind": "MeshService", "name": "cart"},
        "rules": [{"default": {"backendRefs": [{"kind": "MeshService", "name": "cart"}]}}]}]);
    vec![
        ("/api/v1/namespaces/shop/configmaps", json!({"metadata": {"name": "one"}, "data": {"a": "1"}})),
        ("/api/v1/namespaces/shop/secrets", json!({"metadata": {"name": "one"}, "data": {"a": "MQ=="}})),
        (
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
            json!({"metadata": {"name": "one"}, "spec": {"failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                    "operations": ["CREATE"], "resources": ["configmaps"]}]},
                "validations": [{"expression": "object.metadata.name != 'forbidden'"}]}}),
        ),
        (
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
            json!({"metadata": {"name": "one"}, "spec": {"policyName": "one", "validationActions": ["Deny"]}}),
        ),
        mesh(
            "/apis/zoneward.dev/v1alpha1/namespaces/shop/meshgateways",
            "MeshGateway",
            json!({"listeners": [{"name": "http", "port": 8080, "protocol": "HTTP"}]}),
        ),
        mesh(
            "/apis/zoneward.dev/v1alpha1/namespaces/shop/meshgatewayhttproutes",
            "MeshGatewayHTTPRoute",
            json!({"targetRef": {"kind": "MeshGateway", "name": "one"}, "rules": rule}),
        ),
        mesh(
            "/apis/zoneward.dev/v1alpha1/namespaces/shop/meshhttproutes",
            "MeshHTTPRoute",
            json!({"targetRef": {"kind": "Mesh"}, "to": to}),
        ),
        mesh(
            "/apis/zoneward.dev/v1alpha1/namespaces/shop/meshtcproutes",
            "MeshTCPRoute",
            json!({"targetRef": {"kind": "Mesh"}, "to": tcp}),
        ),
    ]
}

/// Lists that are compared, by the name in `objects.json`.
const LISTS: [(&str, &str); 12] = [
    ("configmaps", "/api/v1/configmaps"),
    ("endpointslices", SLICES),
    ("events", "/api/v1/events"),
    ("ipaddresses", "/apis/networking.k8s.io/v1/ipaddresses"),
    ("leases", LEASES),
    ("meshgatewayhttproutes", "/apis/zoneward.dev/v1alpha1/meshgatewayhttproutes"),
    ("meshgateways", "/apis/zoneward.dev/v1alpha1/meshgateways"),
    ("meshhttproutes", "/apis/zoneward.dev/v1alpha1/meshhttproutes"),
    ("meshtcproutes", "/apis/zoneward.dev/v1alpha1/meshtcproutes"),
    ("secrets", "/api/v1/secrets"),
    ("servicecidrs", "/apis/networking.k8s.io/v1/servicecidrs"),
    ("services", SERVICES),
];

/// Every object, by list and by a name that is the same in each run.
pub(crate) fn dump(machine: &Machine) -> Value {
    let mut all = Map::new();
    for (name, path) in LISTS {
        let mut objects: BTreeMap<String, Value> = BTreeMap::new();
        for mut object in machine.list(path) {
            let key = key(name, &object);
            normalise(&mut object);
            // Events of one kind on one object are compared once.
            objects.entry(key).or_insert(object);
        }
        all.insert(name.to_owned(), json!(objects));
    }
    Value::Object(all)
}

fn key(list: &str, object: &Value) -> String {
    let meta = &object["metadata"];
    let name = match list {
        "endpointslices" if meta["generateName"].is_string() => {
            format!("{}{}", text(&meta["generateName"]), text(&object["addressType"]))
        }
        "events" => {
            let about = &object["involvedObject"];
            format!("{} {} {}", text(&about["kind"]), text(&about["name"]), text(&object["reason"]))
        }
        _ => text(&meta["name"]).to_owned(),
    };
    format!("{}/{name}", text(&meta["namespace"]))
}

/// Replaces what differs in each run. Names of annotations, conditions and reasons stay: those are read by others;
/// sentences are not.
fn normalise(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(normalise),
        Value::Object(fields) => {
            fields.retain(|key, _| !["managedFields", "generation", "observedGeneration"].contains(&&**key));
            for (key, value) in fields.iter_mut() {
                match key.as_str() {
                    "uid" => *value = "UID".into(),
                    "resourceVersion" | "zoneward.dev/programmed-revision" => *value = "REVISION".into(),
                    "message" | "note" => *value = "TEXT".into(),
                    "holderIdentity" | "reportingInstance" | "host" => *value = "IDENTITY".into(),
                    "count" | "leaseTransitions" => *value = 1.into(),
                    _ if value.as_str().is_some_and(is_time) => *value = "TIME".into(),
                    _ => normalise(value),
                }
            }
            if fields.contains_key("generateName") || fields.get("name").is_some_and(is_event_name) {
                fields.insert("name".to_owned(), "GENERATED".into());
            }
        }
        _ => {}
    }
}

/// `web.17f0a2b3c4d5e6f7`: the object and a time.
fn is_event_name(name: &Value) -> bool {
    let mut parts = name.as_str().unwrap_or_default().split('.');
    parts.any(|part| part.len() >= 12 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn is_time(text: &str) -> bool {
    text.len() >= 20 && text.as_bytes()[10] == b'T' && text.ends_with('Z')
}

/// What an older reader would miss: fields of `old` that `new` lacks or has otherwise. New fields are ignored by it.
pub(crate) fn missing(old: &Value, new: &Value, at: &str, found: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(old), Value::Object(_)) => {
            for (key, value) in old {
                missing(value, &new[key], &format!("{at}.{key}"), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (old, new)) in a.iter().zip(b).enumerate() {
                missing(old, new, &format!("{at}[{i}]"), found);
            }
        }
        _ if old == new => {}
        _ => found.push(format!("{at}: {old} became {new}")),
    }
}

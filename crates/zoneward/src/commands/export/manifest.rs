//! A stored object as a manifest: what a server or controller sets is left out, what a user sets stays.

use model::annotation::{COEXIST_CONTROLLER_NAME, CONTROLLER_NAME, HEALTH_CHECK, MANAGED_BY};
use serde_json::{Map, Value};

/// Namespaces of the system. What is in them belongs to the source.
const SYSTEM_NAMESPACES: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", "zoneward-node-lease"];
/// Metadata that a user sets; all other fields are the server's.
const METADATA: [&str; 4] = ["name", "namespace", "labels", "annotations"];
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The server's label on each Namespace.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExportOptions {
    pub keep_cluster_ips: bool,
    pub keep_node_ports: bool,
}

#[derive(Debug, Default)]
pub(super) struct Exported {
    /// In the order of the input.
    pub objects: Vec<Value>,
    pub pods: usize,
    pub notices: Vec<String>,
}

/// The manifests of these objects, and what is lost on the way.
pub(super) fn export(objects: Vec<Value>, options: &ExportOptions) -> Exported {
    let mut exported = Exported::default();
    for object in objects {
        if object["kind"] == "Pod" {
            exported.pods += 1;
        } else if is_exported(&object) {
            exported.notices.extend(notice(&object));
            exported.objects.push(manifest(object, options));
        }
    }
    exported
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// Whether an object was made by a user and works in another cluster.
fn is_exported(object: &Value) -> bool {
    let (namespace, name) = (text(object, "namespace"), text(object, "name"));
    if SYSTEM_NAMESPACES.contains(&namespace) || !object["metadata"]["deletionTimestamp"].is_null() {
        return false;
    }
    match object["kind"].as_str().unwrap_or_default() {
        "Namespace" if SYSTEM_NAMESPACES.contains(&name) => false,
        // Every cluster has it; settings on it are exported.
        "Namespace" if name == "default" => has_settings(object),
        "Service" => (namespace, name) != ("default", "kubernetes"),
        "EndpointSlice" => !is_made_by_controllers(object) && (namespace, name) != ("default", "kubernetes"),
        "ConfigMap" => name != "kube-root-ca.crt",
        "Secret" => !matches!(
            object["type"].as_str(),
            Some("kubernetes.io/service-account-token" | "bootstrap.kubernetes.io/token")
        ),
        _ => true,
    }
}

fn has_settings(namespace: &Value) -> bool {
    let keys = |field: &str| {
        let map = namespace["metadata"][field].as_object();
        map.into_iter().flat_map(Map::keys).any(|key| key != NAMESPACE_NAME && key != LAST_APPLIED)
    };
    keys("labels") || keys("annotations")
}

/// Slices of Pods: the cluster writes them from its own.
fn is_made_by_controllers(slice: &Value) -> bool {
    let manager = slice["metadata"]["labels"][MANAGED_BY].as_str();
    matches!(manager, Some(CONTROLLER_NAME | COEXIST_CONTROLLER_NAME))
}

fn notice(object: &Value) -> Option<String> {
    let annotations = &object["metadata"]["annotations"];
    if object["kind"] != "EndpointSlice" || annotations[HEALTH_CHECK].is_null() {
        return None;
    }
    let endpoints = object["endpoints"].as_array().into_iter().flatten();
    let away = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == false).count();
    let (namespace, name) = (text(object, "namespace"), text(object, "name"));
    Some(format!(
        "EndpointSlice {namespace}/{name} has a health check, which a cluster does not run: its endpoints stay as they \
         are, {away} of them not ready"
    ))
}

/// The object without what servers and controllers set.
pub(super) fn manifest(object: Value, options: &ExportOptions) -> Value {
    let Value::Object(mut fields) = object else { return object };
    fields.shift_remove("status");
    if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
        clean_metadata(metadata);
    }
    match fields.get("kind").and_then(Value::as_str).unwrap_or_default() {
        "Namespace" => drop(fields.shift_remove("spec")),
        "Service" => {
            if let Some(Value::Object(spec)) = fields.get_mut("spec") {
                clean_service(spec, options);
            }
        }
        _ => {}
    }
    ordered(fields)
}

fn clean_metadata(metadata: &mut Map<String, Value>) {
    metadata.retain(|field, _| METADATA.contains(&field.as_str()));
    for (field, key) in [("annotations", LAST_APPLIED), ("labels", NAMESPACE_NAME)] {
        let Some(Value::Object(map)) = metadata.get_mut(field) else { continue };
        map.shift_remove(key);
        if map.is_empty() {
            metadata.shift_remove(field);
        }
    }
}

fn clean_service(spec: &mut Map<String, Value>, options: &ExportOptions) {
    let is_headless = spec.get("clusterIP").is_some_and(|ip| ip == "None");
    if !options.keep_cluster_ips && !is_headless {
        spec.shift_remove("clusterIP");
        spec.shift_remove("clusterIPs");
    }
    if options.keep_node_ports {
        return;
    }
    spec.shift_remove("healthCheckNodePort");
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            port.shift_remove("nodePort");
        }
    }
}

/// apiVersion, kind and metadata first, as people write them; the rest by name, so that equal objects give equal text.
fn ordered(mut fields: Map<String, Value>) -> Value {
    let mut first = Map::new();
    for field in ["apiVersion", "kind", "metadata"] {
        if let Some(value) = fields.shift_remove(field) {
            first.insert(field.to_owned(), value);
        }
    }
    fields.sort_keys();
    first.extend(fields);
    first.values_mut().for_each(Value::sort_all_objects);
    Value::Object(first)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service() -> Value {
        json!({"kind": "Service", "apiVersion": "v1",
            "metadata": {"name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "7", "generation": 2,
                "creationTimestamp": "2026-11-17T00:00:00Z", "managedFields": [{}], "finalizers": ["x/y"],
                "ownerReferences": [{"uid": "o"}], "labels": {"app": "web"}, "annotations": {LAST_APPLIED: "{}"}},
            "spec": {"type": "NodePort", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"],
                "healthCheckNodePort": 31000, "ipFamilies": ["IPv4"], "ports": [{"port": 80, "nodePort": 30080}]},
            "status": {"loadBalancer": {}}})
    }

    #[test]
    fn what_a_server_sets_is_left_out() {
        let wanted = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}},
            "spec": {"type": "NodePort", "ipFamilies": ["IPv4"], "ports": [{"port": 80}]}});
        assert_eq!(manifest(service(), &ExportOptions::default()), wanted);
        let all = ExportOptions { keep_cluster_ips: true, keep_node_ports: true };
        assert_eq!(manifest(service(), &all)["spec"], service()["spec"]);
        let mut headless = service();
        headless["spec"]["clusterIP"] = json!("None");
        assert_eq!(manifest(headless, &ExportOptions::default())["spec"]["clusterIP"], "None");
        let text =
            manifest(json!({"spec": {"b": [{"y": 1, "x": 2}], "a": 1}, "kind": "K"}), &all).to_string();
        assert_eq!(text, r#"{"kind":"K","spec":{"a":1,"b":[{"x":2,"y":1}]}}"#);
    }

    #[test]
    fn objects_of_the_system_and_of_controllers_stay_behind() {
        let object = |kind: &str, namespace: &str, name: &str| json!({"kind": kind, "metadata": {"namespace": namespace, "name": name}});
        for left in [
            object("Service", "default", "kubernetes"),
            object("EndpointSlice", "default", "kubernetes"),
            object("Namespace", "", "kube-system"),
            object("Namespace", "", "default"),
            object("ConfigMap", "shop", "kube-root-ca.crt"),
            object("Secret", "kube-system", "x"),
            json!({"kind": "Secret", "type": "kubernetes.io/service-account-token", "metadata": {"name": "t"}}),
            json!({"kind": "EndpointSlice", "metadata": {"labels": {MANAGED_BY: CONTROLLER_NAME}}}),
            json!({"kind": "Service", "metadata": {"name": "x", "deletionTimestamp": "2026-11-17T00:00:00Z"}}),
        ] {
            assert!(!is_exported(&left), "{left}");
        }
        for kept in [
            service(),
            object("Namespace", "", "shop"),
            object("Secret", "shop", "tls"),
            json!({"kind": "Namespace", "metadata": {"name": "default", "annotations": {"a": "b"}}}),
            json!({"kind": "EndpointSlice", "metadata": {"name": "own", "namespace": "default", "labels": {}}}),
        ] {
            assert!(is_exported(&kept), "{kept}");
        }
        let pods = export(vec![object("Pod", "shop", "p"), service()], &ExportOptions::default());
        assert_eq!((pods.pods, pods.objects.len()), (1, 1));
    }
}

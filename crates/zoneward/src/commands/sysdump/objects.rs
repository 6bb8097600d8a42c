//! Objects of the API without what may hold secrets: fields are kept by name, not removed by name.

use serde_json::{Map, Value, json};

use super::redact::Redactor;

const REMOVED: &str = "(removed)";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Domains whose annotations hold settings and no secrets.
const SAFE_DOMAINS: [&str; 3] = ["zoneward.dev", "kubernetes.io", "k8s.io"];
/// Words in the name of an environment variable or header whose value is a secret.
const SECRET_WORDS: [&str; 8] =
    ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "CREDENTIAL", "AUTH", "COOKIE"];

/// An object as it goes into the archive. Values that are dropped here are learnt, so that logs lose them, too.
pub(super) fn clean(mut object: Value, redactor: &mut Redactor) -> Value {
    learn_annotations(&object, redactor);
    metadata(&mut object);
    match object["kind"].as_str() {
        Some("Secret") => secret(&object, redactor),
        Some("Pod") => pod(&object, redactor),
        Some("DaemonSet" | "Deployment") => workload(object, redactor),
        Some(kind) if kind.ends_with("Route") => {
            headers(&mut object["spec"], redactor);
            object
        }
        _ => object,
    }
}

/// The last applied configuration of a Secret or Pod holds its values once more.
fn learn_annotations(object: &Value, redactor: &mut Redactor) {
    let Some(text) = object["metadata"]["annotations"][LAST_APPLIED].as_str() else { return };
    let Ok(applied) = serde_json::from_str::<Value>(text) else { return };
    learn_secret(&applied, redactor);
    for container in containers(&applied) {
        learn_environment(container, redactor);
    }
}

fn metadata(object: &mut Value) {
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    metadata.remove("managedFields");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
        for (name, value) in annotations.iter_mut() {
            let domain = name.split('/').next().unwrap_or_default();
            let is_safe =
                SAFE_DOMAINS.iter().any(|safe| domain == *safe || domain.ends_with(&format!(".{safe}")));
            if !is_safe {
                *value = REMOVED.into();
            }
        }
    }
}

fn learn_secret(object: &Value, redactor: &mut Redactor) {
    for (field, is_encoded) in [("data", true), ("stringData", false)] {
        for value in object[field].as_object().into_iter().flatten().filter_map(|(_, value)| value.as_str()) {
            match is_encoded {
                true => redactor.learn_base64(value),
                false => redactor.learn(value),
            }
        }
    }
}

/// Name, type, and the keys with their lengths.
fn secret(object: &Value, redactor: &mut Redactor) -> Value {
    learn_secret(object, redactor);
    let data = object["data"].as_object().into_iter().flatten();
    let lengths: Map<String, Value> = data
        .map(|(key, value)| {
            let length = value.as_str().map_or(0, |text| text.trim_end_matches('=').len() * 3 / 4);
            (key.clone(), format!("({length} bytes removed)").into())
        })
        .collect();
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": object["metadata"], "type": object["type"],
        "data": lengths})
}

/// The containers of a Pod, or of the template of a workload.
fn containers(object: &Value) -> Vec<&Value> {
    let specs = [&object["spec"], &object["spec"]["template"]["spec"]];
    let lists = specs.into_iter().flat_map(|spec| [&spec["containers"], &spec["initContainers"]]);
    lists.filter_map(Value::as_array).flatten().collect()
}

fn is_secret(name: &str) -> bool {
    let name = name.to_uppercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

/// Headers that a route adds or matches: entries with name and value, wherever they are.
fn headers(value: &mut Value, redactor: &mut Redactor) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| headers(item, redactor)),
        Value::Object(fields) => {
            let has_secret = fields.get("name").and_then(Value::as_str).is_some_and(is_secret);
            if let Some(Value::String(text)) = fields.get_mut("value").filter(|_| has_secret) {
                redactor.learn(text);
                *text = REMOVED.to_owned();
            }
            fields.values_mut().for_each(|field| headers(field, redactor));
        }
        _ => {}
    }
}

fn learn_environment(container: &Value, redactor: &mut Redactor) {
    for variable in container["env"].as_array().into_iter().flatten() {
        if is_secret(variable["name"].as_str().unwrap_or_default()) {
            redactor.learn(variable["value"].as_str().unwrap_or_default());
        }
    }
}

/// What Services and slices depend on.
fn pod(object: &Value, redactor: &mut Redactor) -> Value {
    containers(object).into_iter().for_each(|container| learn_environment(container, redactor));
    let spec = &object["spec"];
    let list = |field: &str| -> Value {
        let some = spec[field].as_array().into_iter().flatten();
        some.map(|container| picked(container, &["name", "image", "ports", "restartPolicy"])).collect()
    };
    let mut kept = picked(
        spec,
        &[
            "nodeName",
            "hostNetwork",
            "hostname",
            "subdomain",
            "readinessGates",
            "serviceAccountName",
            "priorityClassName",
        ],
    );
    kept["containers"] = list("containers");
    let status = picked(
        &object["status"],
        &["phase", "podIP", "podIPs", "hostIP", "hostIPs", "conditions", "startTime"],
    );
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": object["metadata"], "spec": kept, "status": status})
}

/// Zoneward's own: flags stay, values of environment variables go.
fn workload(mut object: Value, redactor: &mut Redactor) -> Value {
    containers(&object).into_iter().for_each(|container| learn_environment(container, redactor));
    for field in ["containers", "initContainers"] {
        let list = object["spec"]["template"]["spec"][field].as_array_mut().into_iter().flatten();
        for container in list {
            for variable in container["env"].as_array_mut().into_iter().flatten() {
                if !variable["value"].is_null() {
                    variable["value"] = REMOVED.into();
                }
            }
        }
    }
    object
}

fn picked(object: &Value, fields: &[&str]) -> Value {
    let some = fields.iter().filter(|field| !object[**field].is_null());
    Value::Object(some.map(|field| ((*field).to_owned(), object[*field].clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_fields_of_a_pod_stay() {
        let pod = json!({"kind": "Pod", "metadata": {"name": "p", "managedFields": [1], "annotations": {
                LAST_APPLIED: "{\"data\": {}}", "zoneward.dev/x": "kept", "vault.example.com/role": "gone"}},
            "spec": {"nodeName": "n", "volumes": [{"name": "v"}], "containers": [{"name": "c", "image": "i",
                "args": ["--password=x"], "env": [{"name": "DB_PASSWORD", "value": "hunter22"}]}]},
            "status": {"phase": "Running", "message": "x"}});
        let mut redactor = Redactor::default();
        let cleaned = clean(pod, &mut redactor);
        assert_eq!(
            cleaned,
            json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "p", "annotations": {"zoneward.dev/x": "kept", "vault.example.com/role": REMOVED}},
                "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
                "status": {"phase": "Running"}})
        );
        assert_eq!(redactor.text("said hunter22 again"), "said (removed) again");
    }

    #[test]
    fn a_route_loses_the_values_of_headers_with_secrets() {
        let header = |name: &str, value: &str| json!({"name": name, "value": value});
        let filter = |value: &str| {
            json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {
                "set": [header("Authorization", value), header("x-zone", "za")]}})
        };
        let route = |value: &str| {
            json!({"kind": "HTTPRoute", "metadata": {"name": "r"},
                "spec": {"rules": [{"filters": [filter(value)], "backendRefs": [{"name": "web", "port": 80}]}]}})
        };
        let mut redactor = Redactor::default();
        assert_eq!(clean(route("Basic aHVudGVyMjI6"), &mut redactor), route(REMOVED));
        assert_eq!(redactor.text("sent Basic aHVudGVyMjI6"), "sent (removed)");
    }

    #[test]
    fn a_secret_keeps_its_keys_and_lengths() {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "type": "Opaque",
            "data": {"key": "c2VjcmV0LWRhdGE="}});
        let mut redactor = Redactor::default();
        assert_eq!(clean(secret, &mut redactor)["data"], json!({"key": "(11 bytes removed)"}));
        assert_eq!(redactor.text("log: secret-data"), "log: (removed)");
    }
}

//! Defaulting: fields that kube-apiserver sets when the writer leaves them out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::kinds::ResourceKind;
use crate::meta::{self, at};
use crate::schema;

/// Resets the fields of a new object that belong to the server, such as the status.
pub(crate) fn prepare_for_create(kind: &ResourceKind, object: &mut Value) {
    let Some(map) = object.as_object_mut() else { return };
    match kind.kind {
        "Namespace" => {
            map.insert("status".to_owned(), json!({"phase": "Active"}));
            // Removed when the namespace is empty.
            meta::set_in(object, "spec", "finalizers", json!(["kubernetes"]));
        }
        "Pod" => {
            map.insert("status".to_owned(), json!({"phase": "Pending"}));
        }
        "Service" => {
            map.insert("status".to_owned(), json!({"loadBalancer": {}}));
        }
        // Kubelets create their node with its status.
        "Node" => {}
        _ if kind.status => {
            map.shift_remove("status");
        }
        _ => {}
    }
    let counts = matches!(
        kind.kind,
        "EndpointSlice" | "ValidatingAdmissionPolicy" | "ValidatingAdmissionPolicyBinding" | "Pod"
    );
    if counts || kind.schema.is_some() {
        meta::set(object, "generation", 1);
    }
}

/// Sets defaults in a new object or a new version.
pub(crate) fn defaults(kind: &ResourceKind, object: &mut Value) {
    match (kind.group, kind.kind) {
        ("", "Service") => service(object),
        ("", "Pod") => pod(object),
        ("", "Secret") => secret(object),
        ("", "Event") => event(object),
        ("", "Namespace") => namespace(object),
        ("discovery.k8s.io", "EndpointSlice") => slice(object),
        (apimachinery::rbac::GROUP, "RoleBinding" | "ClusterRoleBinding") => role_binding(object),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => policy(object),
        _ => {}
    }
    if let Some(schema) = kind.schema {
        schema::fill_defaults(schema(), object);
    }
}

/// The API group of the role, and of users and groups.
fn role_binding(object: &mut Value) {
    let group = |part: &mut Value| {
        if part.is_object() && part["apiGroup"].as_str().is_none_or(str::is_empty) {
            part["apiGroup"] = apimachinery::rbac::GROUP.into();
        }
    };
    if let Some(reference) = object.get_mut("roleRef") {
        group(reference);
    }
    let subjects = object.get_mut("subjects").and_then(Value::as_array_mut);
    for subject in subjects.into_iter().flatten() {
        if matches!(subject["kind"].as_str(), Some("User" | "Group")) {
            group(subject);
        }
    }
}

/// Syncs `podIP` and `podIPs` of a Pod's status; `podIP` wins.
pub(crate) fn pod_ips(kind: &ResourceKind, object: &mut Value) {
    let Some(status) = object.get_mut("status").filter(|status| kind.kind == "Pod" && status.is_object())
    else {
        return;
    };
    let single = status["podIP"].as_str().unwrap_or_default().to_owned();
    let first = status["podIPs"][0]["ip"].as_str().unwrap_or_default().to_owned();
    match (single.is_empty(), first.is_empty()) {
        (true, false) => status["podIP"] = first.into(),
        (false, _) if single != first => status["podIPs"] = json!([{"ip": single}]),
        _ => {}
    }
}

fn set_default(object: &mut Value, name: &str, value: impl Into<Value>) {
    if let Some(map) = object.as_object_mut() {
        let missing = map.get(name).is_none_or(|value| value.is_null() || value == "");
        if missing {
            map.insert(name.to_owned(), value.into());
        }
    }
}

/// `stringData` is write-only: it is merged into `data`.
fn secret(object: &mut Value) {
    set_default(object, "type", "Opaque");
    let Some(map) = object.as_object_mut() else { return };
    let Some(Value::Object(texts)) = map.shift_remove("stringData") else { return };
    if texts.is_empty() {
        return;
    }
    let data = map.entry("data").or_insert_with(|| json!({}));
    if data.is_null() {
        *data = json!({});
    }
    for (name, text) in texts {
        if let (Value::Object(data), Some(text)) = (&mut *data, text.as_str()) {
            data.insert(name, STANDARD.encode(text).into());
        }
    }
}

fn namespace(object: &mut Value) {
    let name = meta::text(object, "name").to_owned();
    if let Some(meta) = meta::metadata(object) {
        let labels = meta.entry("labels").or_insert_with(|| json!({}));
        if labels.is_object() {
            labels["kubernetes.io/metadata.name"] = name.into();
        }
    }
}

fn service(object: &mut Value) {
    set_default(object, "spec", json!({}));
    let Some(spec) = object.get_mut("spec").filter(|spec| spec.is_object()) else { return };
    set_default(spec, "sessionAffinity", "None");
    set_default(spec, "type", "ClusterIP");
    let kind = spec["type"].as_str().unwrap_or_default().to_owned();
    if kind != "ExternalName" {
        set_default(spec, "internalTrafficPolicy", "Cluster");
    }
    affinity(spec);
    if spec["ports"].as_array().is_some_and(Vec::is_empty) {
        spec.as_object_mut().map(|spec| spec.shift_remove("ports"));
    }
    let by_address =
        kind == "ClusterIP" && spec["externalIPs"].as_array().is_some_and(|list| !list.is_empty());
    if kind == "NodePort" || kind == "LoadBalancer" || by_address {
        set_default(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        set_default(spec, "allocateLoadBalancerNodePorts", true);
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        set_default(port, "protocol", "TCP");
        if matches!(port["targetPort"], Value::Null) || port["targetPort"] == 0 || port["targetPort"] == "" {
            let number = port["port"].clone();
            if port.is_object() && !number.is_null() {
                port["targetPort"] = number;
            }
        }
    }
}

/// Three hours (seed 002, session affinity).
const AFFINITY_SECONDS: u32 = 10_800;

fn affinity(spec: &mut Value) {
    if spec["sessionAffinity"] == "ClientIP" {
        if at(spec, "sessionAffinityConfig.clientIP.timeoutSeconds").is_null() {
            spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}});
        }
    } else if let Some(spec) = spec.as_object_mut() {
        spec.shift_remove("sessionAffinityConfig");
    }
}

fn slice(object: &mut Value) {
    let Some(members) = object.as_object_mut() else { return };
    for list in ["endpoints", "ports"] {
        // kube-apiserver shows empty lists as null, and clients compare.
        if members.get(list).is_none_or(|list| list.as_array().is_some_and(Vec::is_empty)) {
            members.insert(list.to_owned(), Value::Null);
        }
    }
    for port in object.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(map) = port.as_object_mut() {
            map.entry("name").or_insert_with(|| "".into());
        }
        set_default(port, "protocol", "TCP");
    }
}

fn pod(object: &mut Value) {
    let Some(spec) = object.get_mut("spec").filter(|spec| spec.is_object()) else { return };
    set_default(spec, "restartPolicy", "Always");
    set_default(spec, "terminationGracePeriodSeconds", 30);
    set_default(spec, "dnsPolicy", "ClusterFirst");
    set_default(spec, "securityContext", json!({}));
    set_default(spec, "schedulerName", "default-scheduler");
    set_default(spec, "enableServiceLinks", true);
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        items(spec, list).for_each(container);
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for variable in items(spec, list).flat_map(|container| items(container, "env")) {
            field_version(variable.get_mut("valueFrom"));
        }
    }
    for volume in items(spec, "volumes") {
        downward(volume.get_mut("downwardAPI"));
        for source in
            volume.get_mut("projected").into_iter().flat_map(|projected| items(projected, "sources"))
        {
            downward(source.get_mut("downwardAPI"));
        }
    }
}

fn items<'a>(object: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
}

/// Field references in a volume.
fn downward(source: Option<&mut Value>) {
    for item in source.into_iter().flat_map(|source| items(source, "items")) {
        field_version(Some(item));
    }
}

/// Defaults the apiVersion of a `fieldRef`.
fn field_version(holder: Option<&mut Value>) {
    let reference = holder.and_then(|holder| holder.get_mut("fieldRef"));
    if let Some(reference) = reference.filter(|reference| reference.is_object()) {
        set_default(reference, "apiVersion", "v1");
    }
}

fn container(container: &mut Value) {
    set_default(container, "terminationMessagePath", "/dev/termination-log");
    set_default(container, "terminationMessagePolicy", "File");
    let image = container["image"].as_str().unwrap_or_default();
    let newest =
        image.ends_with(":latest") || !image.rsplit('/').next().unwrap_or(image).contains([':', '@']);
    set_default(container, "imagePullPolicy", if newest { "Always" } else { "IfNotPresent" });
    set_default(container, "resources", json!({}));
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        set_default(port, "protocol", "TCP");
    }
}

fn event(object: &mut Value) {
    for name in ["source", "involvedObject"] {
        set_default(object, name, Value::Object(Map::new()));
    }
}

fn policy(object: &mut Value) {
    let Some(spec) = object.get_mut("spec").filter(|spec| spec.is_object()) else { return };
    set_default(spec, "failurePolicy", "Fail");
    if let Some(constraints) = spec.get_mut("matchConstraints").filter(|value| value.is_object()) {
        set_default(constraints, "matchPolicy", "Equivalent");
        set_default(constraints, "namespaceSelector", json!({}));
        set_default(constraints, "objectSelector", json!({}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;

    #[test]
    fn a_service_gets_its_defaults() {
        let mut service = json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}});
        defaults(kinds::find("", "v1", "services").unwrap(), &mut service);
        assert_eq!(service["spec"]["ports"][0], json!({"port": 80, "protocol": "TCP", "targetPort": 80}));
        assert_eq!(service["spec"]["externalTrafficPolicy"], "Cluster");
        assert_eq!(service["spec"]["allocateLoadBalancerNodePorts"], true);
        assert_eq!(service["spec"]["internalTrafficPolicy"], "Cluster");
        assert_eq!(service["spec"]["sessionAffinity"], "None");
    }

    #[test]
    fn client_affinity_lasts_three_hours_by_default() {
        let mut service = json!({"spec": {"sessionAffinity": "ClientIP"}});
        defaults(kinds::find("", "v1", "services").unwrap(), &mut service);
        assert_eq!(at(&service, "spec.sessionAffinityConfig.clientIP.timeoutSeconds"), 10_800);
    }

    #[test]
    fn string_data_of_a_secret_becomes_data() {
        let mut secret = json!({"data": {"a": "MQ=="}, "stringData": {"b": "2"}});
        defaults(kinds::named("Secret").unwrap(), &mut secret);
        assert_eq!(secret, json!({"data": {"a": "MQ==", "b": "Mg=="}, "type": "Opaque"}));
    }

    #[test]
    fn field_references_of_a_pod_get_their_version() {
        let by_field = json!({"fieldRef": {"fieldPath": "metadata.name"}});
        let item = json!({"path": "name", "fieldRef": {"fieldPath": "metadata.name"}});
        let container =
            json!({"name": "c", "env": [{"name": "A", "valueFrom": by_field}, {"name": "B", "value": "b"}]});
        let mut pod = json!({"spec": {
            "containers": [container], "initContainers": [container], "ephemeralContainers": [container],
            "volumes": [
                {"name": "a", "downwardAPI": {"items": [item]}},
                {"name": "b", "projected": {"sources": [{"downwardAPI": {"items": [item]}}]}},
                {"name": "c", "emptyDir": {}},
            ],
        }});
        defaults(kinds::named("Pod").unwrap(), &mut pod);
        let versions = pod.to_string().matches(r#""apiVersion":"v1""#).count();
        assert_eq!(versions, 5, "{pod:#}");
    }

    #[test]
    fn malformed_objects_are_left_for_validation() {
        for kind in kinds::KINDS {
            for mut object in
                [json!({"spec": 5}), json!({"spec": {"ports": [1, null]}}), json!([]), json!(null)]
            {
                defaults(kind, &mut object);
                prepare_for_create(kind, &mut object);
            }
        }
    }

    #[test]
    fn pod_ip_and_pod_ips_agree() {
        let kind = crate::kinds::named("Pod").expect("the table has Pods");
        let agreed = |status: Value| {
            let mut pod = json!({"status": status});
            pod_ips(kind, &mut pod);
            (pod["status"]["podIP"].clone(), pod["status"]["podIPs"].clone())
        };
        let one = json!([{"ip": "10.0.0.1"}]);
        assert_eq!(agreed(json!({"podIP": "10.0.0.1"})), (json!("10.0.0.1"), one.clone()));
        assert_eq!(agreed(json!({"podIPs": one})), (json!("10.0.0.1"), one.clone()));
        let other = json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.9"}]});
        assert_eq!(agreed(other), (json!("10.0.0.1"), one));
        let both = json!([{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]);
        assert_eq!(agreed(json!({"podIP": "10.0.0.1", "podIPs": both})), (json!("10.0.0.1"), both));
        let mut bare = json!({});
        pod_ips(kind, &mut bare);
        assert_eq!(bare, json!({}));
    }
}

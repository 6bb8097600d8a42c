//! The manifests below deploy/: each document is read as its Kubernetes type and written back. Whatever does not come
//! back is a field that the API does not have, and a typing mistake would be silent in a cluster.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn manifests(folder: &Path, found: &mut Vec<(String, Value)>) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            manifests(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "yaml") {
            let text = fs::read_to_string(&path).expect("the file can be read");
            for document in text.split("\n---\n") {
                let value: Value = serde_saphyr::from_str(document)
                    .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                found.push((path.display().to_string(), value));
            }
        }
    }
}

fn all() -> Vec<(String, Value)> {
    let mut found = Vec::new();
    manifests(&deploy(), &mut found);
    assert!(found.len() >= 7, "the manifests are there");
    found
}

fn round_trip<T: DeserializeOwned + Serialize>(value: &Value) -> Result<Value, String> {
    let typed: T = serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
    serde_json::to_value(typed).map_err(|error| error.to_string())
}

fn typed(value: &Value) -> Result<Value, String> {
    let words = (value["apiVersion"].as_str().unwrap_or(""), value["kind"].as_str().unwrap_or(""));
    match words {
        ("v1", "Namespace") => round_trip::<Namespace>(value),
        ("v1", "ServiceAccount") => round_trip::<ServiceAccount>(value),
        ("v1", "ConfigMap") => round_trip::<ConfigMap>(value),
        ("v1", "Service") => round_trip::<Service>(value),
        ("apps/v1", "Deployment") => round_trip::<Deployment>(value),
        ("apps/v1", "DaemonSet") => round_trip::<DaemonSet>(value),
        ("policy/v1", "PodDisruptionBudget") => round_trip::<PodDisruptionBudget>(value),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => round_trip::<ClusterRole>(value),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => round_trip::<ClusterRoleBinding>(value),
        ("rbac.authorization.k8s.io/v1", "Role") => round_trip::<Role>(value),
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => round_trip::<RoleBinding>(value),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition") => {
            round_trip::<CustomResourceDefinition>(value)
        }
        (version, kind) => Err(format!("{version} {kind} is not checked yet: add its type here")),
    }
}

/// The paths of `wanted` that `got` does not have with the same value.
fn lost(wanted: &Value, got: &Value, path: &str, list: &mut Vec<String>) {
    match (wanted, got) {
        (Value::Object(fields), Value::Object(others)) => {
            for (name, field) in fields {
                let path = format!("{path}.{name}");
                match others.get(name) {
                    Some(other) => lost(field, other, &path, list),
                    None => list.push(path),
                }
            }
        }
        (Value::Array(items), Value::Array(others)) if items.len() == others.len() => {
            for (i, (item, other)) in items.iter().zip(others).enumerate() {
                lost(item, other, &format!("{path}[{i}]"), list);
            }
        }
        // Bounds in schemas are read as floating point.
        (Value::Number(one), Value::Number(other)) if one.as_f64() == other.as_f64() => {}
        _ if wanted == got => {}
        _ => list.push(path.to_owned()),
    }
}

#[test]
fn every_manifest_has_only_fields_that_its_kind_has() {
    for (file, value) in all() {
        let back = typed(&value).unwrap_or_else(|error| panic!("{file}: {error}"));
        let mut list = Vec::new();
        lost(&value, &back, "", &mut list);
        assert!(list.is_empty(), "{file}: {} does not have {list:?}", value["kind"]);
    }
}

#[test]
fn a_typing_mistake_would_be_found() {
    let wrong = serde_json::json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "x"}, "spec": {"maxUnavailabel": 1}});
    let mut list = Vec::new();
    lost(&wrong, &typed(&wrong).expect("it is read"), "", &mut list);
    assert_eq!(list, [".spec.maxUnavailabel"]);
}

#[test]
fn service_accounts_and_roles_that_are_named_exist() {
    let name = |v: &Value| v["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let all = all();
    let named = |kind: &str| -> BTreeSet<String> {
        all.iter().filter(|(_, v)| v["kind"] == kind).map(|(_, v)| name(v)).collect()
    };
    let (accounts, roles, cluster_roles) = (named("ServiceAccount"), named("Role"), named("ClusterRole"));
    for (file, value) in &all {
        if let Some(role) = value["roleRef"]["name"].as_str() {
            let there = if value["roleRef"]["kind"] == "Role" { &roles } else { &cluster_roles };
            assert!(there.contains(role), "{file}: {role}");
            for subject in value["subjects"].as_array().into_iter().flatten() {
                assert!(accounts.contains(subject["name"].as_str().unwrap_or_default()), "{file}");
            }
        }
        let account = &value["spec"]["template"]["spec"]["serviceAccountName"];
        assert!(account.as_str().is_none_or(|account| accounts.contains(account)), "{file}: {account}");
    }
}

#[test]
fn no_role_may_everything() {
    for (file, value) in all() {
        for rule in value["rules"].as_array().into_iter().flatten() {
            for field in ["verbs", "resources", "apiGroups"] {
                let stars = rule[field].as_array().into_iter().flatten().filter(|word| *word == "*").count();
                assert_eq!(stars, 0, "{file}: {field} of {rule}");
            }
        }
    }
}

#[test]
fn the_arguments_of_containers_are_read_by_the_program() {
    use clap::Parser;
    for (file, value) in all() {
        let pod = &value["spec"]["template"]["spec"];
        let lists =
            ["initContainers", "containers"].map(|list| pod[list].as_array().cloned().unwrap_or_default());
        // Envoys have words of their own.
        let ours = |container: &&Value| container["image"].as_str().is_none_or(|i| i.starts_with("zoneward"));
        for container in lists.iter().flatten().filter(ours) {
            let list = |field: &str| container[field].as_array().cloned().unwrap_or_default();
            // The image's entry point is the program; a command of one's own starts with it.
            let words = list("command").into_iter().skip(1).chain(list("args"));
            let words = words.filter_map(|word| word.as_str().map(str::to_owned));
            let words = std::iter::once("zoneward".to_owned()).chain(words);
            if let Err(error) = zoneward::cli::Cli::try_parse_from(words) {
                panic!("{file}: {error}");
            }
        }
    }
}

#[test]
fn the_node_proxy_is_given_an_address_of_the_api_that_needs_no_service() {
    let all = all();
    let daemon = all.iter().find(|(_, value)| value["kind"] == "DaemonSet").map(|(_, value)| value);
    let daemon = daemon.expect("the node proxy is a DaemonSet");
    let env =
        daemon["spec"]["template"]["spec"]["containers"][0]["env"].as_array().cloned().unwrap_or_default();
    let given = |name: &str| {
        let entry =
            env.iter().find(|entry| entry["name"] == name).unwrap_or_else(|| panic!("{name} is not set"));
        let key = &entry["valueFrom"]["configMapKeyRef"];
        let map = all.iter().find(|(_, v)| v["kind"] == "ConfigMap" && v["metadata"]["name"] == key["name"]);
        let (_, map) = map.unwrap_or_else(|| panic!("{name}: there is no ConfigMap {}", key["name"]));
        let value = &map["data"][key["key"].as_str().unwrap_or_default()];
        value.as_str().unwrap_or_else(|| panic!("{name}: no key {} in the ConfigMap", key["key"])).to_owned()
    };
    assert!(!given("KUBERNETES_SERVICE_HOST").is_empty());
    assert!(given("KUBERNETES_SERVICE_PORT").parse::<u16>().is_ok());
    let pod = &daemon["spec"]["template"]["spec"];
    assert_eq!(
        (&pod["hostNetwork"], &pod["dnsPolicy"]),
        (&true.into(), &"Default".into()),
        "the node's own way"
    );
}

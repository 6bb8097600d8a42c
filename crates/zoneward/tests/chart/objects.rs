//! What the chart renders for each value set, and the plain manifests: each document is read as its Kubernetes type and
//! written back. What does not come back is a field that the API does not have, and a typing mistake would be silent in a
//! cluster.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::Stdio;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::chart::helm::{ValueSet, documents, root, succeed, template, value_sets};

/// The plain manifests: file and object.
fn manifests() -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for folder in ["crds", "controller", "node", "mesh"] {
        for entry in fs::read_dir(root().join("deploy").join(folder)).expect("the folder can be read") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|ending| ending == "yaml") {
                let text = fs::read_to_string(&path).expect("the file can be read");
                let name = format!("deploy/{folder}/{}", path.file_name().unwrap().display());
                found.extend(documents(&text).into_iter().map(|object| (name.clone(), object)));
            }
        }
    }
    found
}

/// The objects of each value set, and the plain manifests.
fn lists() -> Vec<Vec<(String, Value)>> {
    let of_set = |set: ValueSet| set.objects().into_iter().map(|o| (set.name.clone(), o)).collect();
    let mut lists: Vec<Vec<(String, Value)>> = value_sets().into_iter().map(of_set).collect();
    lists.push(manifests());
    lists
}

fn all() -> Vec<(String, Value)> {
    lists().concat()
}

fn round_trip<T: DeserializeOwned + Serialize>(value: &Value) -> Result<Value, String> {
    let typed: T = serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
    serde_json::to_value(typed).map_err(|error| error.to_string())
}

/// The fields of an object that its kind does not have.
pub fn unknown_fields(value: &Value) -> Result<Vec<String>, String> {
    let mut list = Vec::new();
    lost(value, &typed(value)?, "", &mut list);
    Ok(list)
}

fn typed(value: &Value) -> Result<Value, String> {
    let words = (value["apiVersion"].as_str().unwrap_or(""), value["kind"].as_str().unwrap_or(""));
    match words {
        ("v1", "ServiceAccount") => round_trip::<ServiceAccount>(value),
        ("v1", "Namespace") => round_trip::<Namespace>(value),
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy") => {
            round_trip::<ValidatingAdmissionPolicy>(value)
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding") => {
            round_trip::<ValidatingAdmissionPolicyBinding>(value)
        }
        ("v1", "ConfigMap") => round_trip::<ConfigMap>(value),
        ("v1", "Service") => round_trip::<Service>(value),
        ("apps/v1", "Deployment") => round_trip::<Deployment>(value),
        ("apps/v1", "DaemonSet") => round_trip::<DaemonSet>(value),
        ("networking.k8s.io/v1", "NetworkPolicy") => round_trip::<NetworkPolicy>(value),
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
fn every_object_has_only_fields_that_its_kind_has() {
    for (place, value) in all() {
        let list = unknown_fields(&value).unwrap_or_else(|error| panic!("{place}: {error}"));
        assert!(list.is_empty(), "{place}: {} does not have {list:?}", value["kind"]);
    }
}

#[test]
fn a_typing_mistake_would_be_found() {
    let wrong = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "x"}, "spec": {"maxUnavailabel": 1}});
    assert_eq!(unknown_fields(&wrong), Ok(vec![".spec.maxUnavailabel".to_owned()]));
}

/// What kubernetes-validate says of objects of a set, for a version of Kubernetes.
fn schema_problems(rows: &[Value]) -> String {
    let script = root().join("crates/zoneward/tests/chart/validate.py");
    let mut command = toolbox::command("python3-validate");
    let command = command.arg("-B").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(json!(rows).to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_object_passes_the_schema_of_its_kubernetes() {
    let mut rows = Vec::new();
    for set in value_sets() {
        let rendered = set.objects().into_iter();
        rows.extend(
            rendered.map(|object| json!({"set": set.name, "version": set.version, "object": object})),
        );
    }
    assert!(rows.len() > 150, "{}", rows.len());
    assert_eq!(schema_problems(&rows), "");
    let mut wrong = rows.iter().find(|row| row["object"]["kind"] == "Deployment").unwrap().clone();
    wrong["object"]["spec"]["template"]["spec"]["hostNetworking"] = json!(true);
    assert!(schema_problems(&[wrong]).contains("hostNetworking"), "an unknown field is a problem");
}

#[test]
fn service_accounts_and_roles_that_are_named_exist() {
    let key = |v: &Value| (v["metadata"]["namespace"].clone(), v["metadata"]["name"].clone());
    for all in lists() {
        let named = |kind: &str| -> Vec<(Value, Value)> {
            all.iter().filter(|(_, v)| v["kind"] == kind).map(|(_, v)| key(v)).collect()
        };
        let (accounts, roles, cluster_roles) = (named("ServiceAccount"), named("Role"), named("ClusterRole"));
        // The accounts of sidecars belong to their applications.
        for (place, value) in all.iter().filter(|(_, v)| v["metadata"]["name"] != "zoneward-sidecars") {
            if value["roleRef"].is_object() {
                let name = value["roleRef"]["name"].clone();
                let there = if value["roleRef"]["kind"] == "Role" {
                    roles.contains(&(value["metadata"]["namespace"].clone(), name))
                } else {
                    cluster_roles.contains(&(Value::Null, name))
                };
                assert!(there, "{place}: {}", value["roleRef"]);
                for subject in value["subjects"].as_array().into_iter().flatten() {
                    let account = (subject["namespace"].clone(), subject["name"].clone());
                    assert!(accounts.contains(&account), "{place}: {subject}");
                }
            }
            let account = value["spec"]["template"]["spec"]["serviceAccountName"].clone();
            let account = (value["metadata"]["namespace"].clone(), account);
            assert!(account.1.is_null() || accounts.contains(&account), "{place}: {account:?}");
        }
    }
}

#[test]
fn no_role_may_everything() {
    for (place, value) in all() {
        for rule in value["rules"].as_array().into_iter().flatten() {
            for field in ["verbs", "resources", "apiGroups"] {
                let stars = rule[field].as_array().into_iter().flatten().filter(|word| *word == "*").count();
                assert_eq!(stars, 0, "{place}: {field} of {rule}");
            }
        }
    }
}

/// The pod templates: place, pod, and its containers.
fn pods(all: &[(String, Value)]) -> Vec<(String, Value, Vec<Value>)> {
    let templates = all.iter().filter(|(_, value)| value["spec"]["template"]["spec"].is_object());
    let pod = |(place, value): &(String, Value)| {
        let pod = value["spec"]["template"]["spec"].clone();
        let lists = ["initContainers", "containers"].map(|list| pod[list].as_array().cloned());
        let place = format!("{place}: {}", value["metadata"]["name"]);
        (place, pod, lists.into_iter().flatten().flatten().collect())
    };
    templates.map(pod).collect()
}

#[test]
fn the_arguments_of_containers_are_read_by_the_program() {
    use clap::Parser;
    for (place, _, containers) in pods(&all()) {
        // Envoys have words of their own. The entry point of our image is the program.
        for container in containers.iter().filter(|container| container["command"].is_null()) {
            let words = container["args"].as_array().into_iter().flatten();
            let words =
                words.filter_map(|word| word.as_str().map(|word| word.replace("$(POD_IP)", "10.0.0.1")));
            let words = std::iter::once("zoneward".to_owned()).chain(words);
            if let Err(error) = zoneward::cli::Cli::try_parse_from(words) {
                panic!("{place}: {error}");
            }
        }
    }
}

#[test]
fn containers_have_no_right_that_they_do_not_need() {
    for (place, pod, containers) in pods(&all()) {
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{place}");
        let is_node = pod["hostNetwork"] == true;
        assert_eq!(pod["securityContext"]["runAsNonRoot"] == true, !is_node, "{place}");
        for container in containers {
            let (name, context) = (&container["name"], &container["securityContext"]);
            let place = format!("{place}: {name}");
            assert!(container["resources"]["requests"].is_object(), "{place}: no requests");
            assert_eq!(context["readOnlyRootFilesystem"], true, "{place}");
            if *name == "kernel-variables" {
                // The API refuses `allowPrivilegeEscalation: false` beside it.
                assert_eq!(context["privileged"], true, "{place}");
                continue;
            }
            assert_eq!(context["privileged"], Value::Null, "{place}");
            assert_eq!(context["allowPrivilegeEscalation"], false, "{place}");
            assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{place}");
            let added = context["capabilities"]["add"].as_array().cloned().unwrap_or_default();
            let may: &[&str] = if is_node { &["NET_ADMIN", "NET_RAW", "SYS_RESOURCE"] } else { &[] };
            let is_known = |capability: &Value| may.iter().any(|name| capability == name);
            assert!(added.iter().all(is_known), "{place}: {added:?}");
        }
    }
}

/// The pod of the node proxy in a value set.
fn node_pod(name: &str) -> Value {
    let objects = ValueSet::named(name).objects();
    let daemon = objects.iter().find(|object| object["kind"] == "DaemonSet").unwrap();
    daemon["spec"]["template"]["spec"].clone()
}

#[test]
fn mode_iptables_has_the_lock_of_the_host_and_net_raw_and_other_modes_have_neither() {
    // A node proxy that leaves the mode removes the chains with the same programs.
    for name in ["iptables", "iptables-left"] {
        let pod = node_pod(name);
        let container = &pod["containers"][0];
        assert_eq!(container["securityContext"]["capabilities"]["add"], json!(["NET_ADMIN", "NET_RAW"]));
        assert_eq!(
            container["volumeMounts"][1],
            json!({"name": "xtables-lock", "mountPath": "/run/xtables.lock"})
        );
        assert_eq!(
            pod["volumes"][1],
            json!({"name": "xtables-lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}})
        );
    }
    for name in ["ipvs", "canary"] {
        let pod = node_pod(name);
        assert_eq!(pod["volumes"].as_array().map(Vec::len), Some(1), "{name}");
        assert_eq!(
            pod["containers"][0]["securityContext"]["capabilities"]["add"],
            json!(["NET_ADMIN"]),
            "{name}"
        );
    }
}

#[test]
fn the_dummy_interface_of_mode_ipvs_is_a_value() {
    let has_flag = |name: &str| {
        let words = node_pod(name)["containers"][0]["args"].clone();
        words.as_array().unwrap().iter().any(|word| word == "--ipvs-dummy-interface")
    };
    assert!(has_flag("ipvs"));
    assert!(!has_flag("iptables") && !has_flag("canary"));
}

#[test]
fn sys_resource_is_given_only_for_an_oom_score_below_the_kubelets() {
    let added =
        |name: &str| node_pod(name)["containers"][0]["securityContext"]["capabilities"]["add"].clone();
    assert_eq!(added("canary"), json!(["NET_ADMIN"]));
    assert_eq!(added("managed"), json!(["NET_ADMIN", "SYS_RESOURCE"]), "oomScoreAdj is -999");
    assert_eq!(added("nodes-only"), json!(["NET_ADMIN", "SYS_RESOURCE"]), "not system-node-critical");
}

#[test]
fn every_pod_runs_the_one_image() {
    let plain = format!("zoneward:{}", env!("CARGO_PKG_VERSION"));
    let with_iptables = format!("{plain}-iptables");
    let left = "zoneward:1.2.3-iptables".to_owned();
    for (place, _, containers) in pods(&all()) {
        for container in containers.iter().filter(|container| container["command"].is_null()) {
            let wanted = if place.starts_with("managed") {
                "registry.example.com/platform/zoneward@sha256:"
            } else if place.starts_with("iptables-left") {
                &left
            } else if place.starts_with("iptables") || place.starts_with("node-ipv6") {
                &with_iptables
            } else {
                &plain
            };
            let image = container["image"].as_str().unwrap();
            assert!(
                image == wanted || wanted.ends_with(':') && image.starts_with(wanted),
                "{place}: {image}"
            );
        }
    }
}

#[test]
fn the_node_proxy_is_given_an_address_of_the_api_that_needs_no_service() {
    let mut seen = 0;
    for (place, pod, containers) in pods(&all()).into_iter().filter(|(_, pod, _)| pod["hostNetwork"] == true)
    {
        let env = containers.last().unwrap()["env"].as_array().cloned().unwrap_or_default();
        let given = |name: &str| env.iter().find(|entry| entry["name"] == name).unwrap()["value"].clone();
        assert!(given("KUBERNETES_SERVICE_HOST").as_str().is_some_and(|host| !host.is_empty()), "{place}");
        assert!(given("KUBERNETES_SERVICE_PORT").as_str().unwrap().parse::<u16>().is_ok(), "{place}");
        assert_eq!(pod["dnsPolicy"], "Default", "{place}: the node's own way");
        seen += 1;
    }
    assert!(seen >= 6, "{seen}");
}

#[test]
fn the_configuration_of_the_node_proxy_is_read_by_the_program() {
    let maps = all().into_iter().filter(|(_, value)| value["kind"] == "ConfigMap");
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("chart-config-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for (place, map) in maps {
        let (file, effective) = (folder.join("config.yaml"), folder.join("effective.yaml"));
        fs::write(&file, map["data"]["config.yaml"].as_str().unwrap()).unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_zoneward"));
        succeed(command.arg("node").arg("--config").arg(&file).arg("--write-config-to").arg(&effective));
        let effective: Value = serde_saphyr::from_str(&fs::read_to_string(&effective).unwrap()).unwrap();
        if place == "node-ipv6" {
            assert_eq!(effective["conntrack"]["min"], 1_048_576, "helm reads numbers as floating point");
        }
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_plain_manifests_are_rendered_from_the_chart() {
    let values = root().join("deploy/manifests-values.yaml");
    let text = succeed(template("kube-system", "1.37.0").arg("--values").arg(values));
    let texts = |objects: Vec<Value>| -> BTreeSet<String> { objects.iter().map(Value::to_string).collect() };
    let (rendered, held) =
        (texts(documents(&text)), texts(manifests().into_iter().map(|(_, o)| o).collect()));
    let differ: Vec<&String> = rendered.symmetric_difference(&held).collect();
    assert!(differ.is_empty(), "run `cargo xtask manifests`: {differ:#?}");
}

#[test]
fn the_bases_for_kustomize_have_all_manifests() {
    let kustomize = |folder: &str| {
        let text =
            succeed(toolbox::command("kubectl").arg("kustomize").arg(root().join("deploy").join(folder)));
        documents(&text)
    };
    let held = |folders: &[&str]| {
        let ours =
            |place: &String| folders.iter().any(|folder| place.starts_with(&format!("deploy/{folder}/")));
        manifests().iter().filter(|(place, _)| ours(place)).count()
    };
    for folder in ["crds", "controller", "node", "mesh"] {
        assert_eq!(kustomize(folder).len(), held(&[folder]), "{folder}");
    }
    assert_eq!(kustomize("").len(), held(&["crds", "controller"]));
    let default: BTreeSet<String> = ValueSet::named("default")
        .objects()
        .iter()
        .map(|o| o["kind"].to_string() + &o["metadata"]["name"].to_string())
        .collect();
    let base: BTreeSet<String> =
        kustomize("").iter().map(|o| o["kind"].to_string() + &o["metadata"]["name"].to_string()).collect();
    assert_eq!(base, default, "the base is what a plain `helm install` runs");
}

//! The part of a Pod's text that decides anything, read without the rest: most of a Pod is about what its containers
//! are, and there are many Pods. What this cannot read, the whole type says in words.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;

#[derive(Deserialize)]
struct LeanPod {
    #[serde(default)]
    metadata: Meta,
    spec: Option<Spec>,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<Time>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
    hostname: Option<String>,
    subdomain: Option<String>,
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    restart_policy: Option<String>,
    ports: Option<Vec<core::ContainerPort>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<core::PodIP>>,
    conditions: Option<Vec<Condition>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    last_transition_time: Option<Time>,
}

/// A Pod with the fields that [`super::pod`] looks at, and no other.
pub(super) fn pod(text: &str) -> serde_json::Result<core::Pod> {
    let LeanPod { metadata, spec, status } = serde_json::from_str(text)?;
    Ok(core::Pod {
        metadata: ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            labels: metadata.labels,
            deletion_timestamp: metadata.deletion_timestamp,
            ..ObjectMeta::default()
        },
        spec: spec.map(|spec| core::PodSpec {
            node_name: spec.node_name,
            hostname: spec.hostname,
            subdomain: spec.subdomain,
            containers: spec.containers.into_iter().flatten().map(container).collect(),
            init_containers: spec.init_containers.map(|all| all.into_iter().map(container).collect()),
            ..core::PodSpec::default()
        }),
        status: status.map(|status| core::PodStatus {
            phase: status.phase,
            pod_ip: status.pod_ip,
            pod_ips: status.pod_ips,
            conditions: status.conditions.map(|all| all.into_iter().map(condition).collect()),
            ..core::PodStatus::default()
        }),
    })
}

fn container(container: Container) -> core::Container {
    core::Container {
        restart_policy: container.restart_policy,
        ports: container.ports,
        ..core::Container::default()
    }
}

fn condition(condition: Condition) -> core::PodCondition {
    core::PodCondition {
        type_: condition.kind,
        status: condition.status,
        last_transition_time: condition.last_transition_time,
        ..core::PodCondition::default()
    }
}

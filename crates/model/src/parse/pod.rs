//! A Pod as the API stores it -> [`Pod`]. Only [`PodFields`] are deserialized: most of a Pod describes its containers,
//! and Pods are the most numerous objects of a cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;

use super::{DEFAULT_NAMESPACE, ParseResult, labels, port, protocol};
use crate::address::{Addresses, parse_ip};
use crate::name::{Interner, ObjectKey};
use crate::pod::{ContainerPort, Pod, PodDetails};
use crate::uid::Uid;

/// The fields of a Pod that are read.
#[derive(Default, Deserialize)]
pub struct PodFields {
    metadata: Option<PodMetadata>,
    spec: Option<PodSpec>,
    status: Option<PodStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<PodAnnotations>,
    deletion_timestamp: Option<Time>,
}

#[derive(Default, Deserialize)]
struct PodAnnotations {
    #[serde(rename = "zoneward.dev/capacity")]
    capacity: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    node_name: Option<String>,
    hostname: Option<String>,
    subdomain: Option<String>,
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    restart_policy: Option<String>,
    ports: Option<Vec<core::ContainerPort>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStatus {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<core::PodIP>>,
    conditions: Option<Vec<PodCondition>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    last_transition_time: Option<Time>,
}

pub fn pod(fields: &PodFields, interner: &mut Interner) -> ParseResult<Pod> {
    let (no_metadata, no_spec, no_status) = Default::default();
    let meta = fields.metadata.as_ref().unwrap_or(&no_metadata);
    let spec = fields.spec.as_ref().unwrap_or(&no_spec);
    let status = fields.status.as_ref().unwrap_or(&no_status);
    let ready = status.conditions.iter().flatten().find(|condition| condition.kind == "Ready");
    let ips = status.pod_ips.as_deref().unwrap_or_default();
    // An address that does not parse is dropped, as upstream's controller drops it.
    let addresses: Vec<_> = ips.iter().filter_map(|ip| parse_ip(&ip.ip)).collect();
    let pod_ip = status.pod_ip.as_deref().unwrap_or_default();
    let namespace = meta.namespace.as_deref().filter(|n| !n.is_empty()).unwrap_or(DEFAULT_NAMESPACE);
    let annotations = meta.annotations.as_ref();
    let capacity = annotations.and_then(|annotations| annotations.capacity.as_deref());
    let details = PodDetails { capacity: interner.name_if_set(capacity), ..details(spec, interner)? };
    Ok(Pod {
        key: ObjectKey {
            namespace: interner.name(namespace),
            name: interner.name(meta.name.as_deref().unwrap_or_default()),
        },
        uid: meta.uid.as_deref().filter(|uid| !uid.is_empty()).map(Uid::new),
        labels: labels(meta.labels.as_ref(), interner),
        node: interner.name_if_set(spec.node_name.as_deref()),
        ips: Addresses::from_slice(&addresses),
        details: (details != PodDetails::default()).then(|| interner.details(details)),
        ready_since: ready.and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0.into()),
        ready: ready.is_some_and(|c| c.status == "True"),
        deleting: meta.deletion_timestamp.is_some(),
        finished: matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")),
        has_ip: !pod_ip.is_empty() || !ips.is_empty(),
    })
}

fn details(spec: &PodSpec, interner: &mut Interner) -> ParseResult<PodDetails> {
    Ok(PodDetails {
        ports: named_ports(spec, interner)?.into(),
        hostname: interner.name_if_set(spec.hostname.as_deref()),
        subdomain: interner.name_if_set(spec.subdomain.as_deref()),
        capacity: None,
    })
}

/// Semantics B3: containers first, then restartable init containers (sidecars).
fn named_ports(spec: &PodSpec, interner: &mut Interner) -> ParseResult<Vec<ContainerPort>> {
    let is_sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(is_sidecar);
    let containers = spec.containers.iter().flatten().chain(sidecars).enumerate();
    let mut named = Vec::new();
    for (i, container) in containers {
        let ports = container.ports.iter().flatten().enumerate();
        for (j, p) in ports {
            let Some(name) = p.name.as_deref().filter(|n| !n.is_empty()) else { continue };
            let at = |field| format!("spec.containers[{i}].ports[{j}].{field}");
            named.push(ContainerPort {
                name: interner.name(name),
                protocol: protocol(p.protocol.as_deref(), || at("protocol"))?,
                port: port(p.container_port, || at("containerPort"))?,
            });
        }
    }
    Ok(named)
}

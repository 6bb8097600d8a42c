//! Nodes and Namespaces as the API stores them -> [`Node`], [`Namespace`].

use k8s_openapi::api::core::v1 as core;

use super::quantity::millis;
use super::{FieldError, ParseResult, cidr, ip, labels, name};
use crate::annotation;
use crate::name::Interner;
use crate::node::{Namespace, Node};

pub fn node(object: &core::Node, interner: &mut Interner) -> ParseResult<Node> {
    let meta = &object.metadata;
    let label = |key: &str| meta.labels.as_ref().and_then(|l| l.get(key)).map(String::as_str);
    let status = object.status.as_ref();
    let ready = status.and_then(|s| s.conditions.iter().flatten().find(|c| c.type_ == "Ready"));
    let provider_id = object.spec.as_ref().and_then(|s| s.provider_id.as_deref());
    let provider = provider_id.and_then(|id| id.split_once("://")).map(|(provider, _)| provider);
    let taints = object.spec.iter().flat_map(|s| s.taints.iter().flatten());
    Ok(Node {
        name: name(meta, interner),
        zone: interner.name_if_set(label(annotation::ZONE)),
        region: interner.name_if_set(label(annotation::REGION)),
        ready: ready.is_some_and(|c| c.status == "True"),
        control_plane: label(annotation::CONTROL_PLANE).or(label(annotation::MASTER)).is_some(),
        cpu_millis: cpu(status)?,
        deleting: meta.deletion_timestamp.is_some(),
        to_be_deleted: taints.into_iter().any(|t| t.key == annotation::TO_BE_DELETED),
        addresses: addresses(status)?,
        pod_cidrs: pod_cidrs(object)?,
        provider: interner.name_if_set(provider),
    })
}

fn cpu(status: Option<&core::NodeStatus>) -> ParseResult<Option<u64>> {
    let Some(quantity) = status.and_then(|s| s.allocatable.as_ref()).and_then(|a| a.get("cpu")) else {
        return Ok(None);
    };
    millis(&quantity.0).map(Some).ok_or_else(|| {
        FieldError::invalid(
            "status.allocatable.cpu",
            format!("{:?} is not a quantity, e.g. 4 or 3920m", quantity.0),
        )
    })
}

fn addresses(status: Option<&core::NodeStatus>) -> ParseResult<Box<[std::net::IpAddr]>> {
    let mut found = Vec::new();
    for wanted in ["InternalIP", "ExternalIP"] {
        let all = status.into_iter().flat_map(|s| s.addresses.iter().flatten()).enumerate();
        for (i, address) in all.filter(|(_, a)| a.type_ == wanted) {
            found.push(ip(&address.address, || format!("status.addresses[{i}].address"))?);
        }
    }
    Ok(found.into())
}

fn pod_cidrs(object: &core::Node) -> ParseResult<Box<[ipnet::IpNet]>> {
    let Some(spec) = &object.spec else { return Ok(Box::default()) };
    match spec.pod_cidrs.as_deref() {
        Some(cidrs) if !cidrs.is_empty() => {
            cidrs.iter().enumerate().map(|(i, c)| cidr(c, || format!("spec.podCIDRs[{i}]"))).collect()
        }
        _ => spec
            .pod_cidr
            .iter()
            .filter(|c| !c.is_empty())
            .map(|c| cidr(c, || "spec.podCIDR".into()))
            .collect(),
    }
}

pub fn namespace(object: &core::Namespace, interner: &mut Interner) -> Namespace {
    let annotations = object.metadata.annotations.as_ref();
    let default = annotations.and_then(|a| a.get(annotation::DEFAULT_TRAFFIC_DISTRIBUTION));
    Namespace {
        name: name(&object.metadata, interner),
        labels: labels(object.metadata.labels.as_ref(), interner),
        default_traffic_distribution: interner.name_if_set(default.map(String::as_str)),
    }
}

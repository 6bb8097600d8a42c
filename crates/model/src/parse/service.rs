//! A Service as the API stores it -> [`Service`].

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{FieldError, ParseResult, annotations, cidr, ip, key, own_labels, port, protocol};
use crate::address::Family;
use crate::annotation;
use crate::backend::ProxyProtocol;
use crate::label::Labels;
use crate::name::{Interner, ServiceKey};
use crate::service::{
    ClusterIps, FamilyPolicy, LoadBalancerIngress, Service, ServicePort, ServiceType, TargetPort,
    TrafficPolicy, condition_text,
};
use crate::uid::Uid;

/// Seed 002: 3 hours.
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;

/// Invalid entries that do not invalidate the Service are added to `ignored`.
pub fn service(
    object: &core::Service,
    interner: &mut Interner,
    ignored: &mut Vec<FieldError>,
) -> ParseResult<Service> {
    let default_spec = core::ServiceSpec::default();
    let spec = object.spec.as_ref().unwrap_or(&default_spec);
    let meta = &object.metadata;
    let key = key(meta, interner);
    let proxy_protocol = meta.annotations.as_ref().and_then(|all| all.get(annotation::PROXY_PROTOCOL));
    if let Some(text) = proxy_protocol.filter(|text| ProxyProtocol::parse(text).is_none()) {
        let field = format!("metadata.annotations[{}]", annotation::PROXY_PROTOCOL);
        ignored.push(FieldError::invalid(&field, format!("{text:?} is not v1 or v2: no header is sent")));
    }
    let mut ports = Vec::new();
    for (i, p) in spec.ports.iter().flatten().enumerate() {
        ports.push(service_port(p, i, interner)?);
    }
    Ok(Service {
        key: ServiceKey { namespace: key.namespace, name: key.name },
        uid: meta.uid.as_deref().filter(|uid| !uid.is_empty()).map(Uid::new),
        labels: own_labels(meta.labels.as_ref(), interner),
        annotations: annotations(meta, annotation::READ_FROM_SERVICES, interner),
        created: meta.creation_timestamp.as_ref().map(|t| t.0.into()),
        deleting: meta.deletion_timestamp.is_some(),
        kind: service_type(spec.type_.as_deref())?,
        selector: spec.selector.as_ref().map(|s| own_labels(Some(s), interner)),
        ports: ports.into(),
        cluster_ips: cluster_ips(spec)?,
        external_name: interner.name_if_set(spec.external_name.as_deref()),
        families: families(spec)?,
        family_policy: family_policy(spec.ip_family_policy.as_deref())?,
        external_ips: external_ips(spec, ignored),
        load_balancer: load_balancer(object, ignored),
        source_ranges: source_ranges(spec, ignored),
        internal_policy: policy(spec.internal_traffic_policy.as_deref(), "spec.internalTrafficPolicy")?,
        external_policy: policy(spec.external_traffic_policy.as_deref(), "spec.externalTrafficPolicy")?,
        affinity_seconds: affinity(spec)?,
        publish_not_ready: spec.publish_not_ready_addresses.unwrap_or(false),
        health_check_node_port: optional_port(spec.health_check_node_port, "spec.healthCheckNodePort")?,
        traffic_distribution: interner.name_if_set(spec.traffic_distribution.as_deref()),
        conditions: conditions(object, interner),
    })
}

/// Only our own. Their messages have no numbers, so that many Services share them.
fn conditions(object: &core::Service, interner: &mut Interner) -> Labels {
    let all = object.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ours = all.filter(|c| c.type_.starts_with(annotation::CONDITION_PREFIX));
    let texts: Vec<(&str, String)> =
        ours.map(|c| (c.type_.as_str(), condition_text(&c.status, &c.reason, &c.message))).collect();
    if texts.is_empty() {
        return Labels::EMPTY;
    }
    interner.labels(texts.iter().map(|(kind, text)| (*kind, text.as_str())))
}

fn service_type(text: Option<&str>) -> ParseResult<ServiceType> {
    match text {
        None | Some("" | "ClusterIP") => Ok(ServiceType::ClusterIp),
        Some("NodePort") => Ok(ServiceType::NodePort),
        Some("LoadBalancer") => Ok(ServiceType::LoadBalancer),
        Some("ExternalName") => Ok(ServiceType::ExternalName),
        Some(other) => Err(FieldError::invalid(
            "spec.type",
            format!("{other:?} is not ClusterIP, NodePort, LoadBalancer or ExternalName"),
        )),
    }
}

fn service_port(p: &core::ServicePort, i: usize, interner: &mut Interner) -> ParseResult<ServicePort> {
    let at = |field: &str| format!("spec.ports[{i}].{field}");
    let number = port(p.port, || at("port"))?;
    let target = match &p.target_port {
        // The default of the API server.
        None | Some(IntOrString::Int(0)) => TargetPort::Number(number),
        Some(IntOrString::Int(n)) => TargetPort::Number(port(*n, || at("targetPort"))?),
        Some(IntOrString::String(name)) if name.is_empty() => TargetPort::Number(number),
        Some(IntOrString::String(name)) => TargetPort::Name(interner.name(name)),
    };
    Ok(ServicePort {
        name: interner.name(p.name.as_deref().unwrap_or_default()),
        protocol: protocol(p.protocol.as_deref(), || at("protocol"))?,
        port: number,
        target,
        node_port: optional_port(p.node_port, &at("nodePort"))?,
        app_protocol: interner.name_if_set(p.app_protocol.as_deref()),
    })
}

/// Zero means "none".
fn optional_port(number: Option<i32>, field: &str) -> ParseResult<Option<u16>> {
    match number {
        None | Some(0) => Ok(None),
        Some(n) => port(n, || field.to_owned()).map(Some),
    }
}

fn cluster_ips(spec: &core::ServiceSpec) -> ParseResult<ClusterIps> {
    let listed: Vec<&str> = spec.cluster_ips.iter().flatten().map(String::as_str).collect();
    let single = spec.cluster_ip.as_deref().unwrap_or_default();
    let texts = if listed.is_empty() && !single.is_empty() { vec![single] } else { listed };
    if texts.first() == Some(&"None") {
        return Ok(ClusterIps::None);
    }
    let mut addresses = Vec::new();
    for (i, text) in texts.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
        addresses.push(ip(text, || format!("spec.clusterIPs[{i}]"))?);
    }
    Ok(if addresses.is_empty() { ClusterIps::Unset } else { ClusterIps::Addresses(addresses.into()) })
}

fn families(spec: &core::ServiceSpec) -> ParseResult<Box<[Family]>> {
    let texts = spec.ip_families.iter().flatten().enumerate();
    texts
        .map(|(i, text)| match text.as_str() {
            "IPv4" => Ok(Family::V4),
            "IPv6" => Ok(Family::V6),
            other => Err(FieldError::invalid(
                format!("spec.ipFamilies[{i}]"),
                format!("{other:?} is not IPv4 or IPv6"),
            )),
        })
        .collect()
}

fn family_policy(text: Option<&str>) -> ParseResult<Option<FamilyPolicy>> {
    match text {
        None | Some("") => Ok(None),
        Some("SingleStack") => Ok(Some(FamilyPolicy::SingleStack)),
        Some("PreferDualStack") => Ok(Some(FamilyPolicy::PreferDualStack)),
        Some("RequireDualStack") => Ok(Some(FamilyPolicy::RequireDualStack)),
        Some(other) => Err(FieldError::invalid(
            "spec.ipFamilyPolicy",
            format!("{other:?} is not SingleStack, PreferDualStack or RequireDualStack"),
        )),
    }
}

fn policy(text: Option<&str>, field: &str) -> ParseResult<TrafficPolicy> {
    match text {
        None | Some("" | "Cluster") => Ok(TrafficPolicy::Cluster),
        Some("Local") => Ok(TrafficPolicy::Local),
        Some(other) => Err(FieldError::invalid(field, format!("{other:?} is not Cluster or Local"))),
    }
}

fn affinity(spec: &core::ServiceSpec) -> ParseResult<Option<u32>> {
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => return Ok(None),
        Some("ClientIP") => {}
        Some(other) => {
            return Err(FieldError::invalid(
                "spec.sessionAffinity",
                format!("{other:?} is not None or ClientIP"),
            ));
        }
    }
    let config = spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref());
    let Some(seconds) = config.and_then(|c| c.timeout_seconds) else {
        return Ok(Some(DEFAULT_AFFINITY_SECONDS));
    };
    match u32::try_from(seconds) {
        Ok(seconds @ 1..=86_400) => Ok(Some(seconds)),
        _ => Err(FieldError::invalid(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            format!("{seconds} is not within 1 to 86400"),
        )),
    }
}

fn external_ips(spec: &core::ServiceSpec, ignored: &mut Vec<FieldError>) -> Box<[std::net::IpAddr]> {
    let texts = spec.external_ips.iter().flatten().enumerate();
    texts
        .filter_map(|(i, t)| ip(t, || format!("spec.externalIPs[{i}]")).map_err(|p| ignored.push(p)).ok())
        .collect()
}

fn load_balancer(object: &core::Service, ignored: &mut Vec<FieldError>) -> Box<[LoadBalancerIngress]> {
    let status = object.status.as_ref().and_then(|s| s.load_balancer.as_ref());
    let ingress = status.and_then(|s| s.ingress.as_ref()).into_iter().flatten().enumerate();
    // Semantics D2: nodes ignore an ingress with only a hostname.
    let with_ip = ingress.filter_map(|(i, entry)| entry.ip.as_deref().map(|text| (i, text, entry)));
    with_ip
        .filter(|(_, text, _)| !text.is_empty())
        .filter_map(|(i, text, entry)| {
            let address = ip(text, || format!("status.loadBalancer.ingress[{i}].ip"));
            let ip = address.map_err(|error| ignored.push(error)).ok()?;
            Some(LoadBalancerIngress {
                ip,
                is_vip: entry.ip_mode.as_deref().is_none_or(|mode| mode == "VIP"),
            })
        })
        .collect()
}

/// Semantics D2: spaces around a range are allowed, and an invalid one is ignored.
fn source_ranges(spec: &core::ServiceSpec, ignored: &mut Vec<FieldError>) -> Box<[ipnet::IpNet]> {
    let texts = spec.load_balancer_source_ranges.iter().flatten().enumerate();
    texts
        .filter_map(|(i, text)| {
            let range = cidr(text, || format!("spec.loadBalancerSourceRanges[{i}]"));
            range.map_err(|error| ignored.push(error)).ok()
        })
        .collect()
}

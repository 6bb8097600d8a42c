//! An EndpointSlice as the API stores it -> [`Slice`].

use std::sync::Arc;

use k8s_openapi::api::{core::v1 as core, discovery::v1 as discovery};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{FieldError, ParseResult, annotations, ip, labels, namespace_name, port, protocol};
use crate::address::{AddressType, Addresses, Family};
use crate::annotation;
use crate::endpoint::{Endpoint, EndpointConditions, EndpointIdentity, Hints, TargetRef};
use crate::name::{Interner, Name, ObjectKey};
use crate::slice::{Owner, Slice, SliceContent, SlicePort};
use crate::uid::Uid;

pub fn slice(object: &discovery::EndpointSlice, interner: &mut Interner) -> ParseResult<Slice> {
    let meta = &object.metadata;
    let address_type = match object.address_type.as_str() {
        "IPv4" => AddressType::Ip(Family::V4),
        "IPv6" => AddressType::Ip(Family::V6),
        "FQDN" => AddressType::Fqdn,
        other => {
            return Err(FieldError::invalid("addressType", format!("{other:?} is not IPv4, IPv6 or FQDN")));
        }
    };
    let mut ports = Vec::new();
    for (i, p) in object.ports.iter().flatten().enumerate() {
        ports.push(slice_port(p, i, interner)?);
    }
    let namespace = namespace_name(meta, interner);
    let stored = object.endpoints.as_deref().unwrap_or_default();
    let mut endpoints = Vec::with_capacity(stored.len());
    if let AddressType::Ip(family) = address_type {
        for (i, e) in stored.iter().enumerate() {
            endpoints.push(endpoint(e, i, family, &namespace, interner)?);
        }
    }
    let owners = meta.owner_references.iter().flatten();
    let services = owners.filter(|o| o.kind == "Service" && o.api_version == "v1");
    let owners = services.map(|o| Owner { name: interner.name(&o.name), uid: Uid::new(&o.uid) }).collect();
    Ok(Slice {
        // Names of slices are unique: interning them would only cost memory.
        key: ObjectKey { namespace, name: meta.name.as_deref().unwrap_or_default().into() },
        uid: meta.uid.as_deref().filter(|uid| !uid.is_empty()).map(Uid::new),
        generation: meta.generation.unwrap_or(0),
        resource_version: meta.resource_version.as_deref().filter(|v| !v.is_empty()).map(Into::into),
        deleting: meta.deletion_timestamp.is_some(),
        annotated: meta.annotations.as_ref().is_some_and(|all| !all.is_empty()),
        written_by: written_by(meta, interner),
        owners,
        content: SliceContent {
            address_type,
            labels: labels(meta.labels.as_ref(), interner),
            annotations: annotations(meta, annotation::READ_FROM_SLICES, interner),
            ports: interner.ports(ports),
            endpoints,
        },
        shares: None,
    })
}

/// The manager with the latest entry; one without a time counts as oldest. Times are in seconds: of several writers in one
/// second it is the first by name, so that kube-controller-manager is seen beside our own controller.
fn written_by(meta: &ObjectMeta, interner: &mut Interner) -> Option<Name> {
    let entries = meta.managed_fields.iter().flatten().rev();
    let last = entries.max_by_key(|entry| entry.time.as_ref().map(|time| time.0))?;
    interner.name_if_set(last.manager.as_deref())
}

fn slice_port(p: &discovery::EndpointPort, i: usize, interner: &mut Interner) -> ParseResult<SlicePort> {
    let number = p.port.map(|n| port(n, || format!("ports[{i}].port"))).transpose()?;
    Ok(SlicePort {
        name: p.name.as_deref().map(|n| interner.name(n)),
        protocol: protocol(p.protocol.as_deref(), || format!("ports[{i}].protocol"))?,
        port: number,
        app_protocol: p.app_protocol.as_deref().map(|n| interner.name(n)),
    })
}

fn endpoint(
    e: &discovery::Endpoint,
    i: usize,
    family: Family,
    namespace: &str,
    interner: &mut Interner,
) -> ParseResult<Endpoint> {
    let conditions = e.conditions.as_ref();
    let hostname = interner.name_if_set(e.hostname.as_deref());
    let target = e.target_ref.as_ref().filter(|t| is_pod_in(t, namespace)).map(|t| target(t, interner));
    Ok(Endpoint {
        addresses: addresses(e, i, family)?,
        conditions: EndpointConditions {
            ready: conditions.and_then(|c| c.ready),
            serving: conditions.and_then(|c| c.serving),
            terminating: conditions.and_then(|c| c.terminating),
        },
        node: interner.name_if_set(e.node_name.as_deref()),
        zone: interner.name_if_set(e.zone.as_deref()),
        hints: e.hints.as_ref().and_then(|h| hints(h, interner)),
        identity: EndpointIdentity::new(hostname, target),
    })
}

fn addresses(e: &discovery::Endpoint, i: usize, family: Family) -> ParseResult<Addresses> {
    let mut addresses = Vec::with_capacity(e.addresses.len());
    for (j, text) in e.addresses.iter().enumerate() {
        let field = || format!("endpoints[{i}].addresses[{j}]");
        let address = ip(text, field)?;
        if Family::of(address) != family {
            return Err(FieldError::invalid(field(), format!("{text:?} is not an {family} address")));
        }
        addresses.push(address);
    }
    Addresses::from_slice(&addresses).ok_or_else(|| {
        FieldError::invalid(format!("endpoints[{i}].addresses"), "an endpoint needs an address")
    })
}

fn is_pod_in(t: &core::ObjectReference, namespace: &str) -> bool {
    t.kind.as_deref() == Some("Pod") && t.namespace.as_deref().is_none_or(|n| n.is_empty() || n == namespace)
}

fn target(t: &core::ObjectReference, interner: &mut Interner) -> TargetRef {
    TargetRef {
        name: interner.name(t.name.as_deref().unwrap_or_default()),
        uid: t.uid.as_deref().filter(|uid| !uid.is_empty()).map(Uid::new),
    }
}

fn hints(h: &discovery::EndpointHints, interner: &mut Interner) -> Option<Arc<Hints>> {
    let zones = h.for_zones.iter().flatten().map(|z| interner.name(&z.name)).collect();
    let nodes = h.for_nodes.iter().flatten().map(|n| interner.name(&n.name)).collect();
    let hints = Hints { zones, nodes };
    (!hints.is_empty()).then(|| interner.hints(hints))
}

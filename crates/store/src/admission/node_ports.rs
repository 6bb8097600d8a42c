//! Allocation of NodePorts, in the transaction of the Service. Which ports is decided in [`apimachinery::node_port_allocator`].

use std::collections::BTreeSet;

use apimachinery::node_port_allocator::{self, NodePortError, NodePortRequest, PortRequest};
use model::Name;
use serde_json::Value;

use super::service::{AllocationContext, holder};
use crate::kinds;
use crate::meta::{self, at};
use crate::object_txn::{AllocationLock, ObjectTxn};
use crate::status::{Cause, StatusError};

/// Allocates the ports that a Service needs and releases those that it no longer does.
pub(super) fn allocate(
    objects: &mut ObjectTxn<'_, '_>,
    context: AllocationContext<'_>,
    old: Option<&Value>,
    new: &mut Value,
) -> Result<(), StatusError> {
    let holder = holder(new);
    let (before, after) = (old.map(held).unwrap_or_default(), held(new));
    for port in before.difference(&after) {
        objects.release(AllocationLock::NodePort, &port.to_string(), &holder)?;
    }
    let request = request(new);
    let in_use = in_use(objects, &request, &holder)?;
    let grant =
        node_port_allocator::allocate(&request, &context.ranges.node_ports.node_ports, &in_use, context.seed)
            .map_err(|refusal| refused(refusal, new))?;
    for port in grant.numbers() {
        objects.take(AllocationLock::NodePort, &port.to_string(), &holder)?;
    }
    for (i, given) in grant.ports.iter().enumerate() {
        if let Some(given) = given.filter(|_| new["spec"]["ports"][i].is_object()) {
            new["spec"]["ports"][i]["nodePort"] = given.into();
        }
    }
    if let Some(given) = grant.health_check {
        new["spec"]["healthCheckNodePort"] = given.into();
    }
    Ok(())
}

/// Releases all ports of a Service.
pub(super) fn release(objects: &mut ObjectTxn<'_, '_>, service: &Value) -> Result<(), StatusError> {
    let holder = holder(service);
    for port in held(service) {
        objects.release(AllocationLock::NodePort, &port.to_string(), &holder)?;
    }
    Ok(())
}

fn number(value: &Value) -> Option<u16> {
    value.as_u64().and_then(|number| u16::try_from(number).ok()).filter(|number| *number != 0)
}

fn ports(service: &Value) -> &[Value] {
    at(service, "spec.ports").as_array().map_or(&[], Vec::as_slice)
}

fn held(service: &Value) -> BTreeSet<u16> {
    request(service).requested().map(|(port, _)| port).collect()
}

fn request(service: &Value) -> NodePortRequest {
    let port = |port: &Value| PortRequest {
        port: number(&port["port"]).unwrap_or(0),
        protocol: Name::new(port["protocol"].as_str().unwrap_or_default()),
        node_port: number(&port["nodePort"]),
    };
    let spec = &service["spec"];
    let balanced = spec["type"] == "LoadBalancer";
    NodePortRequest {
        ports: ports(service).iter().map(port).collect(),
        allocates: spec["type"] == "NodePort" || balanced && spec["allocateLoadBalancerNodePorts"] != false,
        health_check: number(&spec["healthCheckNodePort"]),
        needs_health_check: balanced && spec["externalTrafficPolicy"] == "Local",
    }
}

/// The ports of other Services: all of them if a port has to be chosen, otherwise those that this Service names.
fn in_use(
    objects: &ObjectTxn<'_, '_>,
    request: &NodePortRequest,
    holder: &str,
) -> Result<BTreeSet<u16>, StatusError> {
    if request.needs_allocation() {
        let locks = objects.locks(AllocationLock::NodePort)?.into_iter().filter(|(_, other)| other != holder);
        return Ok(locks.filter_map(|(port, _)| port.parse().ok()).collect());
    }
    let mut others = BTreeSet::new();
    for (port, _) in request.requested() {
        if objects.holder(AllocationLock::NodePort, &port.to_string())?.is_some_and(|other| other != holder) {
            others.insert(port);
        }
    }
    Ok(others)
}

fn refused(refusal: NodePortError, service: &Value) -> StatusError {
    match &refusal {
        NodePortError::Full => StatusError::internal(refusal),
        NodePortError::Taken { field, .. } => {
            let cause = Cause::invalid(field, refusal.to_string());
            let services = kinds::find("", "v1", "services").expect("the table has Services");
            StatusError::invalid(services, meta::text(service, "name"), &[cause])
        }
    }
}

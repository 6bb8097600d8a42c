//! Allocation for Services, in the transaction of the Service: cluster IPs, node ports, load balancer addresses.

mod cluster_ips;
mod load_balancer;
mod preserve_allocated;

use ipnet::IpNet;
use serde_json::Value;

use super::node_ports;
use crate::kinds::{self, ResourceKind};
use crate::meta;
use crate::object_txn::ObjectTxn;
use crate::status::StatusError;

pub(crate) use cluster_ips::check_ip_address;
pub(crate) use preserve_allocated::preserve_allocated;

/// The ranges of addresses and ports for Services, and the feature gates for their validation.
#[derive(Clone, Debug)]
pub struct ServiceRanges {
    pub node_ports: apimachinery::validate::ValidationOptions,
    /// For cluster IPs while there is no default ServiceCIDR.
    pub cluster_ips: Vec<IpNet>,
    /// For load balancer addresses; empty if none are allocated here.
    pub load_balancers: Vec<IpNet>,
    pub gates: plan::FeatureGates,
}

impl ServiceRanges {
    /// Kubernetes' own range of node ports, no range of addresses, all gates on.
    pub fn without_flags() -> Self {
        Self {
            node_ports: apimachinery::validate::ValidationOptions::WITHOUT_FLAGS,
            cluster_ips: Vec::new(),
            load_balancers: Vec::new(),
            gates: plan::FeatureGates::ALL,
        }
    }
}

/// The parameters of an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationContext<'a> {
    pub(crate) ranges: &'a ServiceRanges,
    pub(crate) dry_run: bool,
    /// Where searches start.
    pub(crate) seed: u64,
}

/// Allocates what a new version of a Service needs, and releases what it no longer does.
pub(crate) fn allocate(
    objects: &mut ObjectTxn<'_, '_>,
    context: AllocationContext<'_>,
    old: Option<&Value>,
    new: &mut Value,
) -> Result<(), StatusError> {
    cluster_ips::allocate(objects, context, old, new)?;
    node_ports::allocate(objects, context, old, new)?;
    load_balancer::allocate(objects, context, old, new)
}

/// Releases everything of a deleted Service.
pub(crate) fn release(objects: &mut ObjectTxn<'_, '_>, service: &Value) -> Result<(), StatusError> {
    cluster_ips::release(objects, service)?;
    node_ports::release(objects, service)?;
    load_balancer::release(objects, service)
}

/// The holder of a Service's locks.
pub(super) fn holder(service: &Value) -> String {
    format!("{}/{}", meta::text(service, "namespace"), meta::text(service, "name"))
}

pub(super) fn services() -> &'static ResourceKind {
    kinds::find("", "v1", "services").expect("the table has Services")
}

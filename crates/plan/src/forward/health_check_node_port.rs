//! healthCheckNodePort: how many local endpoints a load balancer sees on this node.
//!
//! Each family has its own server, as in kube-proxy: an IPv4 address answers for the IPv4 endpoints, and a family in which
//! the Service has no cluster IP has none.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{AddressType, Family, Service, ServiceType, Slice, TrafficPolicy};

use super::node_config::NodeConfig;
use crate::select::{external_policy, not_proxied};

/// The health check of one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub port: u16,
    /// Unique addresses of ready endpoints on this node; `None` if the Service has no cluster IP of the family.
    pub v4: Option<usize>,
    pub v6: Option<usize>,
}

impl HealthCheck {
    /// Ready endpoints on this node; `None` if the family has no server.
    pub fn local(&self, family: Family) -> Option<usize> {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

/// The port of a Service's health check on this node.
pub(super) fn health_check_port(service: &Service, node: &NodeConfig) -> Option<u16> {
    let is_local =
        service.kind == ServiceType::LoadBalancer && external_policy(service) == TrafficPolicy::Local;
    let has_check = is_local && not_proxied(service).is_none();
    let port = service.health_check_node_port.filter(|port| node.node_port_range.contains(*port));
    port.filter(|port| has_check && *port != 0)
}

/// The health check of a Service, if it has one (semantics D8).
pub fn health_check(service: &Service, slices: &[Slice], node: &NodeConfig) -> Option<HealthCheck> {
    let port = health_check_port(service, node)?;
    let local = |family| service.cluster_ip(family).is_some().then(|| ready_here(slices, family, &node.name));
    Some(HealthCheck { port, v4: local(Family::V4), v6: local(Family::V6) })
}

// Pitfall 27: unique addresses, ready ones only.
fn ready_here(slices: &[Slice], family: Family, node: &str) -> usize {
    let of_family = slices.iter().filter(|slice| slice.content.address_type == AddressType::Ip(family));
    let here = of_family.flat_map(|slice| &slice.content.endpoints).filter(|endpoint| {
        endpoint.conditions.is_ready() && endpoint.node.as_ref().is_some_and(|name| *name == node)
    });
    here.map(|endpoint| endpoint.addresses.first()).collect::<BTreeSet<IpAddr>>().len()
}

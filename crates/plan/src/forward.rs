//! The frontends of a Service on a node.
//!
//! ```text
//! Service, slices -> select: endpoints of each port for the policies Cluster and Local
//!                 -> frontends: cluster IP, external IPs, load balancer IPs, node port
//!                 -> frontend_conflicts: one Service owns an address, by kind and age -> ForwardingTable
//! ```
//!
//! A function of one Service, so that a change costs one Service.

mod forwarder;
mod frontend_conflicts;
mod health_check_node_port;
mod kernelspace;
mod localhost_node_port;
mod node_config;
pub mod stale_udp;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use model::address::unreachable_range;
use model::forward::{
    EndpointSet, ForwardedEndpoint, ForwardedPort, ForwardingMode, ForwardingTable, Frontend, FrontendAction,
    FrontendAddress, FrontendKind, Masquerade,
};
use model::{Family, Notice, ObjectRef, Service, ServicePort, Slice, Snapshot, TrafficPolicy};

use crate::select::{self, PortSelection, SelectionMode, external_policy, not_proxied};

pub use forwarder::{Forwarder, NoLocalEndpoints, ServiceDelta};
pub use frontend_conflicts::{FrontendConflicts, ResolvedFrontends};
pub use health_check_node_port::{HealthCheck, health_check};
pub use localhost_node_port::{LocalhostNodePort, explain_localhost_node_port, localhost_node_ports};
pub use node_config::{NodeConfig, NodePortRange, ProxySettings};

use health_check_node_port::health_check_port;

/// The reason of the Notice about `spec.externalIPs`. Every node has it, so the node proxy writes no Event.
pub const DEPRECATED_EXTERNAL_IPS: &str = "DeprecatedExternalIPs";

/// The reason of the Notice about session affinity in mode iptables. Every node has it, so the node proxy writes no Event.
pub const LIMITED_AFFINITY: &str = "LimitedAffinity";

/// The frontends of a Service on a node, of both families, in the order of ports. None for a Service that a service proxy
/// ignores.
pub fn forward(service: &Service, slices: &[Slice], node: &NodeConfig) -> (Vec<Frontend>, Vec<Notice>) {
    if not_proxied(service).is_some() {
        return (Vec::new(), Vec::new());
    }
    let mut frontends = Vec::new();
    let mut limits = Vec::new();
    let is_kernelspace = node.rules.mode == ForwardingMode::Kernelspace;
    for family in [Family::V4, Family::V6] {
        // A Service without a cluster IP of a family is not served in it.
        let Some(cluster_ip) = service.cluster_ip(family) else { continue };
        let local = addresses_on_node(slices, &node.name);
        for selection in select::select(service, slices, family, &node.view()) {
            let mut port = forwarded_port(service, cluster_ip, &selection, &local, node);
            if is_kernelspace {
                limits.extend(kernelspace::limit_port(&mut port));
            }
            add_frontends(service, &selection, &Arc::new(port), node, &mut frontends);
        }
    }
    let mut notices = drop_duplicates(service, &mut frontends);
    if is_kernelspace {
        notices.extend(limits);
        notices.extend(kernelspace::limit_frontends(service, &mut frontends));
    }
    notices.extend(deprecated_external_ips(service, &frontends));
    notices.extend(limited_affinity(service, &frontends, node));
    notices.extend(refused_ports(service, node));
    notices.extend(slices.iter().filter_map(refused_endpoints));
    (frontends, notices)
}

/// Ports that this node neither forwards nor listens on.
fn refused_ports(service: &Service, node: &NodeConfig) -> Vec<Notice> {
    let node_ports =
        service.ports.iter().filter_map(|port| Some((port.node_port?, FrontendKind::NodePort.field())));
    let check = service.health_check_node_port.map(|port| (port, "spec.healthCheckNodePort"));
    let range = node.node_port_range;
    let refused = node_ports.chain(check).filter(|(port, _)| *port != 0 && !range.contains(*port));
    let notice = |(port, field): (u16, &str)| {
        let message = format!(
            "{field}: port {port} is outside of {range}, so this node does not use it; allow it with --service-node-port-range of the node proxy"
        );
        Notice::new(ObjectRef::service(&service.key), "PortOutOfRange", message)
    };
    refused.map(notice).collect()
}

/// Endpoints that selection leaves out.
fn refused_endpoints(slice: &Slice) -> Option<Notice> {
    let endpoints = slice.content.endpoints.iter().enumerate();
    let mut refused = endpoints.filter_map(|(index, endpoint)| {
        let address = endpoint.addresses.first();
        Some((index, address, unreachable_range(address)?))
    });
    let (index, address, range) = refused.next()?;
    let more = match refused.count() {
        0 => String::new(),
        more => format!(" ({more} more)"),
    };
    let message = format!(
        "endpoints[{index}].addresses: {address} is {range}: no traffic is sent to it; use an address that other nodes can reach{more}"
    );
    let object = ObjectRef::new("EndpointSlice", &slice.key.namespace, &slice.key.name);
    Some(Notice::new(object, "EndpointAddressRefused", message))
}

/// KEP-5707: deprecated in Kubernetes 1.36. Frontends are absent where the gate is off.
fn deprecated_external_ips(service: &Service, frontends: &[Frontend]) -> Option<Notice> {
    frontends.iter().find(|frontend| frontend.kind == FrontendKind::ExternalIp)?;
    let message =
        "spec.externalIPs works, but is deprecated since Kubernetes 1.36: use type LoadBalancer or a Gateway";
    Some(Notice::new(ObjectRef::service(&service.key), DEPRECATED_EXTERNAL_IPS, message))
}

/// Mode iptables: the kernel's list of recent clients has a fixed length.
fn limited_affinity(service: &Service, frontends: &[Frontend], node: &NodeConfig) -> Option<Notice> {
    frontends.iter().find(|frontend| frontend.port.affinity_seconds.is_some())?;
    if node.rules.mode != ForwardingMode::Iptables {
        return None;
    }
    let message = "spec.sessionAffinity: in mode iptables the kernel remembers 100 clients for each endpoint (ip_list_tot of the module xt_recent), further clients may change their endpoint; load the module with a larger ip_list_tot, or use mode nftables";
    Some(Notice::new(ObjectRef::service(&service.key), LIMITED_AFFINITY, message))
}

/// The forwarding table of a whole snapshot.
pub fn table(snapshot: &Snapshot, node: &NodeConfig) -> (ForwardingTable, Vec<Notice>) {
    Forwarder::of(snapshot, node.clone()).into_table()
}

/// The addresses of endpoints on this node: such a pod may be its own client.
fn addresses_on_node(slices: &[Slice], node: &str) -> BTreeSet<IpAddr> {
    let endpoints = slices.iter().flat_map(|slice| &slice.content.endpoints);
    let here = endpoints.filter(|e| e.node.as_ref().is_some_and(|name| *name == node));
    here.map(|e| e.addresses.first()).collect()
}

fn forwarded_port(
    service: &Service,
    cluster_ip: IpAddr,
    selection: &PortSelection<'_>,
    local: &BTreeSet<IpAddr>,
    node: &NodeConfig,
) -> ForwardedPort {
    let rounding = node.rounding();
    let set = |selected: Option<&select::SelectedEndpoints>| EndpointSet {
        endpoints: selected
            .into_iter()
            .flat_map(|set| &set.endpoints)
            .filter_map(|e| endpoint(e, local))
            .collect(),
        rounding,
    };
    ForwardedPort {
        service: service.key.clone(),
        name: selection.port.name.clone(),
        cluster_ip,
        protocol: selection.port.protocol,
        number: selection.port.port,
        affinity_seconds: service.affinity_seconds,
        health_check_port: health_check_port(service, node),
        cluster: set(selection.cluster.as_ref()),
        local: set(selection.local.as_ref()),
    }
}

/// An endpoint without weight gets no traffic and is left out.
fn endpoint(target: &select::SelectedEndpoint, local: &BTreeSet<IpAddr>) -> Option<ForwardedEndpoint> {
    let is_local = local.contains(&target.address.ip());
    let endpoint = ForwardedEndpoint::new(target.address, target.weight as f32, is_local);
    (endpoint.weight > 0.0 && endpoint.weight.is_finite()).then_some(endpoint)
}

/// Semantics D2: every address of the port.
fn add_frontends(
    service: &Service,
    selection: &PortSelection<'_>,
    port: &Arc<ForwardedPort>,
    node: &NodeConfig,
    frontends: &mut Vec<Frontend>,
) {
    let family = selection.family;
    let ServicePort { protocol, port: number, node_port, .. } = *selection.port;
    frontends.push(cluster_ip(service, selection, port));
    // Load balancer IPs come before external IPs: of two equal addresses the first stays, and it may have source ranges.
    let ranges = source_ranges(service, family, node);
    for address in service.load_balancer_vips(family) {
        let address = FrontendAddress::new(address, protocol, number);
        let frontend = external(service, selection, port, address, FrontendKind::LoadBalancer);
        frontends.push(Frontend { source_ranges: ranges.clone(), ..frontend });
    }
    // Semantics D2: only with the feature gate AllowServiceExternalIPs.
    for address in service.external_ips(family).filter(|_| node.gates.external_ips) {
        let address = FrontendAddress::new(address, protocol, number);
        frontends.push(external(service, selection, port, address, FrontendKind::ExternalIp));
    }
    if let Some(node_port) = node_port.filter(|port| node.node_port_range.contains(*port)) {
        let address = FrontendAddress::node_port(family, protocol, node_port);
        frontends.push(external(service, selection, port, address, FrontendKind::NodePort));
    }
}

fn cluster_ip(service: &Service, selection: &PortSelection<'_>, port: &Arc<ForwardedPort>) -> Frontend {
    Frontend {
        address: port.cluster_address(),
        kind: FrontendKind::ClusterIp,
        outside: action(selection, service.internal_policy),
        inside: None,
        masquerade: Masquerade::NotPods,
        source_ranges: None,
        port: port.clone(),
    }
}

fn external(
    service: &Service,
    selection: &PortSelection<'_>,
    port: &Arc<ForwardedPort>,
    address: FrontendAddress,
    kind: FrontendKind,
) -> Frontend {
    let policy = external_policy(service);
    let is_local = policy == TrafficPolicy::Local;
    Frontend {
        address,
        kind,
        port: port.clone(),
        outside: action(selection, policy),
        inside: is_local.then(|| action(selection, TrafficPolicy::Cluster)),
        masquerade: Masquerade::of_external_traffic(policy),
        source_ranges: None,
    }
}

/// Semantics D2, the verdict table.
fn action(selection: &PortSelection<'_>, policy: TrafficPolicy) -> FrontendAction {
    let set = match policy {
        TrafficPolicy::Cluster => selection.cluster.as_ref(),
        TrafficPolicy::Local => selection.local.as_ref(),
    };
    match set {
        Some(set) if !set.endpoints.is_empty() => FrontendAction::Send(policy),
        // Seed 003, Require: a Service is reachable only from where it has endpoints, so the connection is refused.
        Some(set) if set.mode == SelectionMode::Require => FrontendAction::Reject,
        _ if selection.has_any => FrontendAction::Drop,
        _ => FrontendAction::Reject,
    }
}

/// The sources that may use the load balancer IPs of a family (semantics D2); `None` allows all.
fn source_ranges(service: &Service, family: Family, node: &NodeConfig) -> Option<Arc<[IpNet]>> {
    let of_family = service.source_ranges.iter().filter(|range| Family::of(range.addr()) == family);
    let mut ranges: Vec<IpNet> = of_family.map(IpNet::trunc).collect();
    // No range of this family, or one that contains every address: no restriction.
    if ranges.is_empty() || ranges.iter().any(|range| range.prefix_len() == 0) {
        return None;
    }
    let own = node.primary(family);
    if own.is_some_and(|own| ranges.iter().any(|range| range.contains(&own))) {
        // Where a cloud assigns the load balancer IP to the node, an allowed node connects from that address.
        ranges.extend(service.load_balancer_vips(family).map(IpNet::from));
    }
    Some(IpNet::aggregate(&ranges).into())
}

/// Keeps the first frontend of each address. Two addresses of one port may be equal; two ports may not share one.
fn drop_duplicates(service: &Service, frontends: &mut Vec<Frontend>) -> Vec<Notice> {
    let mut notices = Vec::new();
    let mut kept: Vec<(FrontendAddress, Arc<ForwardedPort>)> = Vec::new();
    frontends.retain(|frontend| {
        let Some((_, first)) = kept.iter().find(|(address, _)| *address == frontend.address) else {
            kept.push((frontend.address, frontend.port.clone()));
            return true;
        };
        if !Arc::ptr_eq(first, &frontend.port) {
            let message = format!(
                "{}: port {} requests {}, which port {} of this Service already uses; change the number of one of them",
                frontend.kind.field(),
                frontend.port,
                frontend.address,
                first
            );
            notices.push(Notice::new(ObjectRef::service(&service.key), "FrontendConflict", message));
        }
        false
    });
    notices
}

#[cfg(test)]
mod tests;

//! From a Service and its slices to the frontends of a node.
//!
//! ```text
//! Service, slices -> select -> the two endpoint sets of each port
//!                 -> frontends: cluster IP, external IPs, load balancer IPs, node port
//!                 -> Claims: of a place that two Services want, the older one has it -> ForwardingTable
//! ```
//!
//! A function of one Service, so that a change costs one Service.

mod claims;
mod config;
mod forwarder;
mod health;
pub mod udp;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use model::forward::{
    EndpointSet, ForwardedEndpoint, ForwardedPort, ForwardingTable, Frontend, FrontendKind, Masquerade,
    Outcome, Place, Scope,
};
use model::{Family, Notice, ObjectRef, Service, ServicePort, Slice, Snapshot, TrafficPolicy};

use crate::select::{self, Mode, PortSelection, external_policy, not_proxied};

pub use claims::{Claims, Granted};
pub use config::{NodeConfig, ProxySettings};
pub use forwarder::{Delta, Dropped, Forwarder};
pub use health::{HealthCheck, health_check};

/// The frontends of a Service on a node, of both families, in the order of ports. A Service that is not for
/// a service proxy has none.
pub fn forward(service: &Service, slices: &[Slice], node: &NodeConfig) -> (Vec<Frontend>, Vec<Notice>) {
    if not_proxied(service).is_some() {
        return (Vec::new(), Vec::new());
    }
    let mut frontends = Vec::new();
    for family in [Family::V4, Family::V6] {
        // Without a cluster IP of the family a Service is not there for it.
        let Some(cluster_ip) = service.cluster_ip(family) else { continue };
        let local = addresses_on_node(slices, &node.name);
        for selection in select::select(service, slices, family, &node.view()) {
            let port = Arc::new(forwarded_port(service, cluster_ip, &selection, &local, node.rounding()));
            add_frontends(service, &selection, &port, node, &mut frontends);
        }
    }
    let notices = drop_doubles(service, &mut frontends);
    (frontends, notices)
}

/// The table of a whole snapshot.
pub fn table(snapshot: &Snapshot, node: &NodeConfig) -> (ForwardingTable, Vec<Notice>) {
    Forwarder::of(snapshot, node.clone()).into_table()
}

/// The addresses of endpoints that run on this node: a pod there may be its own client.
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
    rounding: u32,
) -> ForwardedPort {
    let set = |selected: Option<&select::EndpointSet>| EndpointSet {
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
        cluster: set(selection.cluster.as_ref()),
        local: set(selection.local.as_ref()),
    }
}

/// One with no share gets no traffic, so it is not there.
fn endpoint(target: &select::Target, local: &BTreeSet<IpAddr>) -> Option<ForwardedEndpoint> {
    let endpoint = ForwardedEndpoint {
        address: target.address,
        weight: target.weight as f32,
        is_local: local.contains(&target.address.ip()),
    };
    (endpoint.weight > 0.0 && endpoint.weight.is_finite()).then_some(endpoint)
}

/// Semantics D2: each way to reach the port.
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
    // A load balancer's address goes before the same one among the external IPs: it may have source ranges.
    let ranges = source_ranges(service, family, node);
    for address in service.load_balancer_vips(family) {
        let place = Place::address(address, protocol, number);
        let frontend = external(service, selection, port, place, FrontendKind::LoadBalancer);
        frontends.push(Frontend { source_ranges: ranges.clone(), ..frontend });
    }
    // Semantics D2: honoured only with the gate AllowServiceExternalIPs.
    for address in service.external_ips(family).filter(|_| node.gates.external_ips) {
        let place = Place::address(address, protocol, number);
        frontends.push(external(service, selection, port, place, FrontendKind::ExternalIp));
    }
    if let Some(node_port) = node_port {
        let place = Place::node_port(family, protocol, node_port);
        frontends.push(external(service, selection, port, place, FrontendKind::NodePort));
    }
}

fn cluster_ip(service: &Service, selection: &PortSelection<'_>, port: &Arc<ForwardedPort>) -> Frontend {
    Frontend {
        place: port.place(),
        kind: FrontendKind::ClusterIp,
        outside: outcome(selection, scope_of(service.internal_policy)),
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
    place: Place,
    kind: FrontendKind,
) -> Frontend {
    let scope = scope_of(external_policy(service));
    let outside = outcome(selection, scope);
    let (inside, masquerade) = match scope {
        Scope::Cluster => (None, Masquerade::Everyone),
        Scope::Local => (Some(outcome(selection, Scope::Cluster)), Masquerade::NodeItself),
    };
    Frontend { place, kind, port: port.clone(), outside, inside, masquerade, source_ranges: None }
}

fn scope_of(policy: TrafficPolicy) -> Scope {
    match policy {
        TrafficPolicy::Cluster => Scope::Cluster,
        TrafficPolicy::Local => Scope::Local,
    }
}

/// Semantics D2, the verdict table.
fn outcome(selection: &PortSelection<'_>, scope: Scope) -> Outcome {
    let set = match scope {
        Scope::Cluster => selection.cluster.as_ref(),
        Scope::Local => selection.local.as_ref(),
    };
    match set {
        Some(set) if !set.endpoints.is_empty() => Outcome::Send(scope),
        // Seed 003, Require: reachable only from where there are endpoints, so the client is told.
        Some(set) if set.mode == Mode::Require => Outcome::Reject,
        _ if selection.has_any => Outcome::Drop,
        _ => Outcome::Reject,
    }
}

/// Who may use the load balancer's addresses of a family (semantics D2); `None`: everybody.
fn source_ranges(service: &Service, family: Family, node: &NodeConfig) -> Option<Arc<[IpNet]>> {
    let of_family = service.source_ranges.iter().filter(|range| Family::of(range.addr()) == family);
    let mut ranges: Vec<IpNet> = of_family.map(IpNet::trunc).collect();
    // Only ranges of the other family, or one that holds every address: no restriction.
    if ranges.is_empty() || ranges.iter().any(|range| range.prefix_len() == 0) {
        return None;
    }
    let own = node.primary(family);
    if own.is_some_and(|own| ranges.iter().any(|range| range.contains(&own))) {
        // A node that may come does so from the load balancer's own address, where a cloud puts that on it.
        ranges.extend(service.load_balancer_vips(family).map(IpNet::from));
    }
    Some(IpNet::aggregate(&ranges).into())
}

/// Keeps the first frontend at each place. Two addresses of one port may be the same; two ports may not.
fn drop_doubles(service: &Service, frontends: &mut Vec<Frontend>) -> Vec<Notice> {
    let mut notices = Vec::new();
    let mut kept: Vec<(Place, Arc<ForwardedPort>)> = Vec::new();
    frontends.retain(|frontend| {
        let Some((_, first)) = kept.iter().find(|(place, _)| *place == frontend.place) else {
            kept.push((frontend.place, frontend.port.clone()));
            return true;
        };
        if !Arc::ptr_eq(first, &frontend.port) {
            let message = format!(
                "{}: port {} asks for {}, which port {} of this Service has already; give one of them another number",
                frontend.kind.field(),
                frontend.port,
                frontend.place,
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

//! The packets with which rule sets are compared: to each frontend of each Service, from each kind of client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use model::forward::{
    FirstPacket, Frontend, FrontendAddress, FrontendHost, FrontendKind, LocalTrafficDetector, NodeRules,
};
use model::{Family, ForwardingTable, Name, Protocol, ServiceKey};

/// Addresses for benchmarks (RFC 2544, RFC 5180): of no client and in no cluster.
const OUTSIDE_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const OUTSIDE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1);
const CLIENT_PORT: u16 = 40_000;
/// Source ranges of a Service that are tried; the others behave as these.
const MAX_SOURCE_RANGES: usize = 3;

/// Where a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowOrigin {
    Pod,
    /// An endpoint of the Service itself, on this node.
    Endpoint,
    Node,
    Localhost,
    Outside,
    /// A client within spec.loadBalancerSourceRanges.
    SourceRange,
}

impl FlowOrigin {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Endpoint => "its own endpoint",
            Self::Node => "node",
            Self::Localhost => "localhost",
            Self::Outside => "outside",
            Self::SourceRange => "allowed source range",
        }
    }
}

/// What a packet is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowTarget {
    Frontend(FrontendKind),
    /// A node port on 127.0.0.1 or ::1.
    LocalhostNodePort,
    /// `spec.healthCheckNodePort`.
    HealthCheck,
    /// A port of a cluster IP that no Service has.
    UnusedPort,
    /// A forwarded packet that conntrack calls INVALID.
    Invalid,
}

impl FlowTarget {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Frontend(kind) => kind.as_str(),
            Self::LocalhostNodePort => "node port on localhost",
            Self::HealthCheck => "health check node port",
            Self::UnusedPort => "cluster IP, port of no Service",
            Self::Invalid => "forwarded packets in state INVALID",
        }
    }
}

/// A packet to compare with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationFlow {
    /// The Service port as `ns/name:port`; none for traffic of no Service.
    pub service: Option<String>,
    pub target: FlowTarget,
    pub origin: FlowOrigin,
    pub packet: FirstPacket,
}

/// The health check node port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheckPort {
    pub service: ServiceKey,
    pub port: u16,
}

/// A client: its kind, address and interface.
type Client = (FlowOrigin, IpAddr, Option<Name>);

/// All packets for a table.
pub fn flows(table: &ForwardingTable, health_checks: &[HealthCheckPort]) -> Vec<MigrationFlow> {
    let mut flows = Vec::new();
    for (_, frontends) in table.services() {
        for frontend in frontends {
            frontend_flows(&table.node, frontend, &mut flows);
        }
    }
    for check in health_checks {
        health_check_flows(&table.node, check, &mut flows);
    }
    for family in [Family::V4, Family::V6] {
        flows.extend(unused_port_flow(table, family));
    }
    flows.extend(invalid_flow(table));
    flows
}

fn frontend_flows(node: &NodeRules, frontend: &Frontend, flows: &mut Vec<MigrationFlow>) {
    let family = frontend.address.family();
    let service = frontend.port.to_string();
    let mut add = |target, (origin, src, iif): Client, dst: IpAddr, port| {
        let packet = packet(src, dst, port, frontend.address.protocol, iif);
        flows.push(MigrationFlow { service: Some(service.clone()), target, origin, packet });
    };
    let clients = clients(node, family, frontend);
    let port = frontend.address.port;
    let target = FlowTarget::Frontend(frontend.kind);
    match frontend.address.host {
        FrontendHost::Address(address) => {
            for client in &clients {
                add(target, client.clone(), address, port);
            }
        }
        FrontendHost::Node(_) => {
            let own = node.addresses.iter().filter(|address| Family::of(**address) == family);
            for address in own.filter(|address| !address.is_loopback()) {
                for client in &clients {
                    add(target, client.clone(), *address, port);
                }
            }
            let loopback = loopback(family);
            add(FlowTarget::LocalhostNodePort, (FlowOrigin::Localhost, loopback, None), loopback, port);
        }
    }
}

fn packet(src: IpAddr, dst: IpAddr, port: u16, protocol: Protocol, iif: Option<Name>) -> FirstPacket {
    FirstPacket { src: SocketAddr::new(src, CLIENT_PORT), dst: SocketAddr::new(dst, port), protocol, iif }
}

fn loopback(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    }
}

fn outside(family: Family) -> IpAddr {
    match family {
        Family::V4 => OUTSIDE_V4.into(),
        Family::V6 => OUTSIDE_V6.into(),
    }
}

/// Never empty: there is always an outside.
fn clients(node: &NodeRules, family: Family, frontend: &Frontend) -> Vec<Client> {
    let mut clients = vec![(FlowOrigin::Outside, outside(family), None)];
    clients.extend(pod(node, family));
    let own = node.addresses.iter().find(|a| Family::of(**a) == family && !a.is_loopback());
    clients.extend(own.map(|address| (FlowOrigin::Node, *address, None)));
    let endpoints = frontend.port.cluster.endpoints.iter().chain(&frontend.port.local.endpoints);
    let local = endpoints.filter(|endpoint| endpoint.is_local).map(|endpoint| endpoint.address().ip()).next();
    if let Some(address) = local.filter(|address| !node.addresses.contains(address)) {
        clients.push((FlowOrigin::Endpoint, address, interface(node)));
    }
    let ranges = frontend.source_ranges.iter().flat_map(|ranges| ranges.iter());
    let within = ranges.filter(|range| Family::of(range.addr()) == family).take(MAX_SOURCE_RANGES);
    clients.extend(within.map(|range| (FlowOrigin::SourceRange, member(*range), None)));
    clients
}

/// A pod of this node, where the node recognises pods.
fn pod(node: &NodeRules, family: Family) -> Option<Client> {
    let address = match &node.detect_local {
        LocalTrafficDetector::Unknown => return None,
        LocalTrafficDetector::Ranges { .. } => member(node.detect_local.range(family)?),
        LocalTrafficDetector::Bridge(_) | LocalTrafficDetector::InterfacePrefix(_) => outside(family),
    };
    Some((FlowOrigin::Pod, address, interface(node)))
}

fn interface(node: &NodeRules) -> Option<Name> {
    match &node.detect_local {
        LocalTrafficDetector::Bridge(name) => Some(name.clone()),
        LocalTrafficDetector::InterfacePrefix(prefix) => Some(Name::from(format!("{prefix}0").as_str())),
        LocalTrafficDetector::Unknown | LocalTrafficDetector::Ranges { .. } => None,
    }
}

/// The last address of a range but one: seldom an endpoint's.
fn member(range: IpNet) -> IpAddr {
    match range.broadcast() {
        IpAddr::V4(last) if range.prefix_len() < 31 => Ipv4Addr::from_bits(last.to_bits() - 1).into(),
        IpAddr::V6(last) if range.prefix_len() < 127 => Ipv6Addr::from_bits(last.to_bits() - 1).into(),
        last => last,
    }
}

fn health_check_flows(node: &NodeRules, check: &HealthCheckPort, flows: &mut Vec<MigrationFlow>) {
    for family in [Family::V4, Family::V6] {
        let Some(address) = node.addresses.iter().find(|a| Family::of(**a) == family && !a.is_loopback())
        else {
            continue;
        };
        flows.push(MigrationFlow {
            service: Some(check.service.to_string()),
            target: FlowTarget::HealthCheck,
            origin: FlowOrigin::Outside,
            packet: packet(outside(family), *address, check.port, Protocol::Tcp, None),
        });
    }
}

/// A packet to a port of a cluster IP that no Service has: one for all cluster IPs.
fn unused_port_flow(table: &ForwardingTable, family: Family) -> Option<MigrationFlow> {
    let mut frontends = table.services().flat_map(|(_, frontends)| frontends);
    let frontend = frontends
        .find(|frontend| frontend.kind == FrontendKind::ClusterIp && frontend.address.family() == family)?;
    let address = frontend.port.cluster_ip;
    let is_free = |port: &u16| {
        let place = FrontendAddress::new(address, frontend.address.protocol, *port);
        table.frontend(&place).is_none()
    };
    let port = (1..=u16::MAX).find(is_free)?;
    let (origin, src, iif) = pod(&table.node, family).unwrap_or((FlowOrigin::Outside, outside(family), None));
    let packet = packet(src, address, port, frontend.address.protocol, iif);
    Some(MigrationFlow { service: None, target: FlowTarget::UnusedPort, origin, packet })
}

/// A packet from a pod to an endpoint elsewhere, out of its TCP window.
fn invalid_flow(table: &ForwardingTable) -> Option<MigrationFlow> {
    let mut endpoints = table.services().flat_map(|(_, frontends)| frontends).filter_map(|frontend| {
        let mut endpoints = frontend.port.cluster.endpoints.iter();
        endpoints.find(|endpoint| !table.node.addresses.contains(&endpoint.address().ip()))
    });
    let to = endpoints.next()?.address();
    let family = Family::of(to.ip());
    let (origin, src, iif) = pod(&table.node, family).unwrap_or((FlowOrigin::Outside, outside(family), None));
    let packet = packet(src, to.ip(), to.port(), Protocol::Tcp, iif);
    Some(MigrationFlow { service: None, target: FlowTarget::Invalid, origin, packet })
}

//! A made-up node's table, built from model values: no JSON, so that nothing else is measured or held.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use model::forward::{
    EndpointSet, ForwardedEndpoint, ForwardedPort, ForwardingTable, Frontend, FrontendAction,
    FrontendAddress, FrontendKind, LocalTrafficDetector, Masquerade, NodeRules,
};
use model::{Interner, Name, Protocol, ServiceKey, TrafficPolicy};

/// Endpoints of each Service.
pub(crate) const ENDPOINTS: usize = 10;
/// The port of every Service.
pub(crate) const PORT: u16 = 80;
/// The port of every endpoint.
pub(crate) const TARGET_PORT: u16 = 8080;
/// Where pods live.
pub(crate) const PODS: &str = "10.128.0.0/9";
/// Where cluster IPs come from.
pub(crate) const CLUSTER_IPS: &str = "10.96.0.0/12";

const NODES: usize = 1_000;
const PER_NAMESPACE: usize = 100;

/// The cluster IP of a Service.
pub(crate) fn cluster_ip(service: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 96, 1, 0).to_bits() + service as u32)
}

/// The address of a pod, by number. Numbers beyond those of the world are pods that come later.
pub(crate) fn pod(number: usize) -> Ipv4Addr {
    // Neighbours in number are not neighbours in address: pods come up anywhere. The factor is odd, so that no two
    // numbers meet.
    let scattered = (number as u32).wrapping_mul(0x9e37_79b1) & 0x007f_ffff;
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 128, 0, 0).to_bits() | scattered)
}

/// What all Services of a world are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Shape {
    Ipv4,
    Ipv6,
    /// IPv4 with session affinity.
    Sticky,
}

impl Shape {
    pub(crate) const ALL: [Shape; 3] = [Shape::Ipv4, Shape::Ipv6, Shape::Sticky];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Shape::Ipv4 => "ipv4",
            Shape::Ipv6 => "ipv6",
            Shape::Sticky => "affinity",
        }
    }

    /// An address of this shape's family; IPv6 ones carry the IPv4 one in their last bytes.
    pub(crate) fn address(self, address: Ipv4Addr) -> IpAddr {
        if self != Shape::Ipv6 {
            return address.into();
        }
        let prefix = u128::from(Ipv6Addr::new(0xfd00, 0x10, 0, 0, 0, 0, 0, 0));
        Ipv6Addr::from(prefix | u128::from(address.to_bits())).into()
    }
}

/// The table of a node.
pub(crate) struct World {
    pub(crate) table: ForwardingTable,
    /// The Services by number.
    pub(crate) keys: Vec<ServiceKey>,
    shape: Shape,
    port_name: Name,
    next_pod: usize,
}

impl World {
    pub(crate) fn new(services: usize) -> World {
        World::of(services, Shape::Ipv4)
    }

    pub(crate) fn of(services: usize, shape: Shape) -> World {
        let mut interner = Interner::default();
        let rules = NodeRules {
            detect_local: LocalTrafficDetector::Ranges { v4: PODS.parse().ok(), v6: None },
            service_cidrs: CLUSTER_IPS.parse().into_iter().collect(),
            ..NodeRules::default()
        };
        let mut world = World {
            table: ForwardingTable::new(rules),
            keys: Vec::with_capacity(services),
            shape,
            port_name: interner.name("http"),
            next_pod: services * ENDPOINTS,
        };
        for service in 0..services {
            let namespace = interner.name(&format!("team-{}", service / PER_NAMESPACE));
            let key = ServiceKey::new(&namespace, &interner.name(&format!("app-{service}")));
            let endpoints = (0..ENDPOINTS).map(|number| endpoint(shape, service, number)).collect();
            let frontend = world.frontend(&key, service, endpoints);
            world.table.replace(&key, vec![frontend]);
            world.keys.push(key);
        }
        world
    }

    /// The one frontend of a Service with these endpoints.
    fn frontend(&self, key: &ServiceKey, service: usize, mut endpoints: Vec<ForwardedEndpoint>) -> Frontend {
        endpoints.sort_by_key(|endpoint| endpoint.address());
        let cluster_ip = self.shape.address(cluster_ip(service));
        Frontend {
            address: FrontendAddress::new(cluster_ip, Protocol::Tcp, PORT),
            kind: FrontendKind::ClusterIp,
            port: Arc::new(ForwardedPort {
                service: key.clone(),
                name: self.port_name.clone(),
                cluster_ip,
                protocol: Protocol::Tcp,
                number: PORT,
                affinity_seconds: (self.shape == Shape::Sticky).then_some(10_800),
                health_check_port: None,
                cluster: EndpointSet { endpoints: endpoints.into(), rounding: 0 },
                local: EndpointSet::default(),
            }),
            outside: FrontendAction::Send(TrafficPolicy::Cluster),
            inside: None,
            masquerade: Masquerade::NotPods,
            source_ranges: None,
        }
    }

    /// The frontends of a Service after its endpoints changed.
    pub(crate) fn changed(
        &self,
        service: usize,
        change: impl FnOnce(&mut Vec<ForwardedEndpoint>),
    ) -> Vec<Frontend> {
        let key = &self.keys[service];
        let mut endpoints = self.table.frontends(key)[0].port.cluster.endpoints.to_vec();
        change(&mut endpoints);
        vec![self.frontend(key, service, endpoints)]
    }

    /// A pod that was not there before.
    pub(crate) fn new_pod(&mut self) -> ForwardedEndpoint {
        self.next_pod += 1;
        at(SocketAddr::new(self.shape.address(pod(self.next_pod)), TARGET_PORT), false)
    }

    /// Lets all traffic of a Service go to one address.
    pub(crate) fn lead_to(&mut self, service: usize, server: SocketAddr) {
        let frontends = self.changed(service, |endpoints| *endpoints = vec![at(server, false)]);
        self.table.replace(&self.keys[service].clone(), frontends);
    }
}

/// Whether an endpoint of a Service, by its number, is on this node.
pub(crate) fn is_local(service: usize, number: usize) -> bool {
    (service * 7 + number * 101).is_multiple_of(NODES)
}

fn at(address: SocketAddr, is_local: bool) -> ForwardedEndpoint {
    ForwardedEndpoint::new(address, 1.0, is_local)
}

fn endpoint(shape: Shape, service: usize, number: usize) -> ForwardedEndpoint {
    let address = shape.address(pod(service * ENDPOINTS + number));
    at(SocketAddr::new(address, TARGET_PORT), is_local(service, number))
}

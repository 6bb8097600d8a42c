//! A Service with all kinds of frontends, as a table of mode ipvs.

use std::net::SocketAddr;
use std::sync::Arc;

use dataplane::ipvs::VirtualServerKey;
use model::forward::{
    EndpointSet, ForwardedEndpoint, ForwardedPort, ForwardingMode, Frontend, FrontendAction, FrontendAddress,
    FrontendKind, LocalTrafficDetector, Masquerade, NodeRules,
};
use model::{Family, ForwardingTable, Protocol, ServiceKey, TrafficPolicy};

use super::addresses::OWN;

/// What differs between tests.
pub(crate) struct TestService {
    pub(crate) pods: u8,
    /// The pods are those after this one.
    pub(crate) first: u8,
    pub(crate) protocol: Protocol,
    pub(crate) affinity: Option<u32>,
    /// Has a node port and a load balancer IP.
    pub(crate) ports: bool,
    pub(crate) weights: Option<[f32; 3]>,
    /// externalTrafficPolicy Local.
    pub(crate) local: bool,
}

impl Default for TestService {
    fn default() -> Self {
        Self {
            pods: 1,
            first: 0,
            protocol: Protocol::Tcp,
            affinity: None,
            ports: true,
            weights: None,
            local: false,
        }
    }
}

pub(crate) fn web() -> ServiceKey {
    ServiceKey::new(&"ns".into(), &"web".into())
}

pub(crate) fn key(address: &str, port: u16) -> VirtualServerKey {
    VirtualServerKey { address: address.parse().unwrap(), protocol: Protocol::Tcp, port }
}

impl TestService {
    /// The table of a node with the addresses of the tests.
    pub(crate) fn table(&self) -> ForwardingTable {
        let node = NodeRules {
            detect_local: LocalTrafficDetector::Ranges { v4: "10.1.0.0/16".parse().ok(), v6: None },
            service_cidrs: ["10.96.0.0/16".parse().unwrap()].into(),
            addresses: OWN.iter().map(|text| text.parse().unwrap()).collect(),
            mode: ForwardingMode::Ipvs,
            primary: ["198.51.100.1".parse().unwrap(), "2001:db8:51::1".parse().unwrap()].into(),
            ..NodeRules::default()
        };
        let mut table = ForwardingTable::new(node);
        table.replace(&web(), self.frontends());
        table
    }

    fn frontends(&self) -> Vec<Frontend> {
        let endpoints = (1..=self.pods).map(|index| {
            let weight = self.weights.map_or(1.0, |weights| weights[usize::from(index) - 1]);
            ForwardedEndpoint::new(SocketAddr::from(([10, 1, 0, self.first + index], 8080)), weight, false)
        });
        let port = Arc::new(ForwardedPort {
            service: web(),
            name: "http".into(),
            cluster_ip: [10, 96, 0, 1].into(),
            protocol: self.protocol,
            number: 80,
            affinity_seconds: self.affinity,
            health_check_port: None,
            cluster: EndpointSet { endpoints: endpoints.collect(), rounding: 1 << 31 },
            local: EndpointSet::default(),
        });
        let all = FrontendAction::Send(TrafficPolicy::Cluster);
        let frontend = |address, kind| Frontend {
            address,
            kind,
            port: port.clone(),
            outside: if self.local && kind != FrontendKind::ClusterIp { FrontendAction::Drop } else { all },
            inside: (self.local && kind != FrontendKind::ClusterIp).then_some(all),
            masquerade: match kind {
                FrontendKind::ClusterIp => Masquerade::NotPods,
                _ if self.local => Masquerade::NodeItself,
                _ => Masquerade::Everyone,
            },
            source_ranges: None,
        };
        let balanced = FrontendAddress::new([192, 0, 2, 80].into(), self.protocol, 80);
        // Not one of the random clusters: a real server that was deleted with open connections keeps its counters.
        let node_port = FrontendAddress::node_port(Family::V4, self.protocol, 31_000);
        let mut frontends = vec![frontend(port.cluster_address(), FrontendKind::ClusterIp)];
        if self.ports {
            frontends.push(frontend(balanced, FrontendKind::LoadBalancer));
            frontends.push(frontend(node_port, FrontendKind::NodePort));
        }
        frontends
    }
}

/// A table of another mode as one of mode ipvs.
pub(crate) fn as_ipvs(mut table: ForwardingTable) -> ForwardingTable {
    table.node.mode = ForwardingMode::Ipvs;
    table.node.primary = table.node.addresses.clone();
    table
}

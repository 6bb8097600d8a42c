//! One Service whose endpoints are real servers, and its table.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use model::forward::{
    EndpointSet, ForwardedEndpoint, ForwardedPort, Frontend, FrontendAction, FrontendKind, Masquerade,
};
use model::{ForwardingTable, Protocol, ServiceKey, TrafficPolicy};

pub(crate) const PORT: u16 = 80;

/// The frontends of a Service in one family with these endpoints.
pub(crate) fn frontends(cluster_ip: IpAddr, endpoints: &[SocketAddr]) -> Vec<Frontend> {
    let endpoint = |address: &SocketAddr| ForwardedEndpoint::new(*address, 1.0, false);
    let port = ForwardedPort {
        service: ServiceKey::new(&"ns".into(), &"web".into()),
        name: "http".into(),
        cluster_ip,
        protocol: Protocol::Tcp,
        number: PORT,
        affinity_seconds: None,
        health_check_port: None,
        cluster: EndpointSet { endpoints: endpoints.iter().map(endpoint).collect(), rounding: 0 },
        local: EndpointSet::default(),
    };
    vec![Frontend {
        address: port.cluster_address(),
        kind: FrontendKind::ClusterIp,
        outside: FrontendAction::Send(TrafficPolicy::Cluster),
        inside: None,
        masquerade: Masquerade::NotPods,
        source_ranges: None,
        port: Arc::new(port),
    }]
}

pub(crate) fn table(frontends: Vec<Frontend>) -> ForwardingTable {
    let mut table = ForwardingTable::default();
    let service = frontends[0].port.service.clone();
    table.replace(&service, frontends);
    table
}

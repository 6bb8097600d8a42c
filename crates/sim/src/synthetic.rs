//! Synthetic objects for the planning functions, with only the fields that placement needs.

use std::net::{IpAddr, Ipv4Addr};

use model::service::ClusterIps;
use model::{
    AddressType, Addresses, Endpoint, EndpointConditions, Family, Labels, Name, Node, Protocol, Service,
    ServiceKey, ServicePort, ServiceType, SliceContent, TargetPort, TrafficPolicy,
};

pub(crate) fn service(annotations: &[(&str, &str)]) -> Service {
    Service {
        key: ServiceKey::new(&Name::new("default"), &Name::new("simulated")),
        uid: None,
        labels: Labels::EMPTY,
        annotations: annotations.iter().copied().collect(),
        created: None,
        deleting: false,
        kind: ServiceType::ClusterIp,
        selector: Some([("app", "simulated")].into_iter().collect()),
        ports: [ServicePort {
            name: Name::default(),
            protocol: Protocol::Tcp,
            port: 80,
            target: TargetPort::Number(80),
            node_port: None,
            app_protocol: None,
        }]
        .into(),
        cluster_ips: ClusterIps::Addresses([IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))].into()),
        external_name: None,
        families: [Family::V4].into(),
        family_policy: None,
        external_ips: Box::default(),
        load_balancer: Box::default(),
        source_ranges: Box::default(),
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        affinity_seconds: None,
        publish_not_ready: false,
        health_check_node_port: None,
        traffic_distribution: None,
        conditions: Labels::EMPTY,
    }
}

pub(crate) fn node(name: &Name, zone: &Name, ready: bool, cpu_millis: u64) -> Node {
    Node { zone: Some(zone.clone()), ready, cpu_millis: Some(cpu_millis), ..Node::named(name.clone()) }
}

/// A slice with ready endpoints in each zone.
pub(crate) fn slice(zones: &[Name], counts: impl Iterator<Item = usize>) -> SliceContent {
    let places = zones.iter().zip(counts).flat_map(|(zone, count)| std::iter::repeat_n(zone, count));
    let endpoint = |(at, zone): (u32, &Name)| Endpoint {
        addresses: Addresses::one(IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + at))),
        conditions: EndpointConditions::new(true, true, false),
        node: None,
        zone: Some(zone.clone()),
        hints: None,
        identity: None,
    };
    SliceContent {
        address_type: AddressType::Ip(Family::V4),
        labels: Labels::EMPTY,
        annotations: Labels::EMPTY,
        ports: std::sync::Arc::default(),
        endpoints: (1u32..).zip(places).map(endpoint).collect(),
    }
}

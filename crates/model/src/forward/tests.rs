//! Tests of the table by itself.

use super::*;

fn frontend(service: &str, cluster_ip: &str, address: Option<FrontendAddress>) -> Frontend {
    let port = ForwardedPort {
        service: ServiceKey::new(&Name::new("shop"), &Name::new(service)),
        name: Name::default(),
        cluster_ip: cluster_ip.parse().unwrap(),
        protocol: Protocol::Tcp,
        number: 80,
        affinity_seconds: None,
        health_check_port: None,
        cluster: EndpointSet::default(),
        local: EndpointSet::default(),
    };
    Frontend {
        address: address.unwrap_or(port.cluster_address()),
        kind: FrontendKind::ClusterIp,
        port: Arc::new(port),
        outside: FrontendAction::Reject,
        inside: None,
        masquerade: Masquerade::NotPods,
        source_ranges: None,
    }
}

#[test]
fn a_service_that_goes_leaves_nothing_behind() {
    let mut table = ForwardingTable::default();
    let empty = table.clone();
    let web = frontend("web", "10.96.0.10", None);
    let node_port = FrontendAddress::node_port(Family::V4, Protocol::Tcp, 30080);
    let key = web.port.service.clone();
    table.replace(&key, vec![web.clone(), frontend("web", "10.96.0.10", Some(node_port))]);
    assert_eq!(table.cluster_ip_holder(web.port.cluster_ip), Some(&key));
    assert!(table.frontend(&node_port).is_some());
    table.replace(&key, vec![web.clone()]);
    assert!(table.frontend(&node_port).is_none() && table.frontend(&web.address).is_some());
    table.replace(&key, Vec::new());
    assert_eq!(table, empty);
}

#[test]
fn shares_follow_the_weights() {
    let endpoint =
        |last: u8, weight| ForwardedEndpoint::new(SocketAddr::from(([10, 1, 0, last], 80)), weight, false);
    let set = EndpointSet { endpoints: [endpoint(1, 3.0), endpoint(2, 1.0)].into(), rounding: 0 };
    let shares: Vec<f64> = set.shares().map(|(_, share)| share).collect();
    assert_eq!((shares, set.is_even()), (vec![0.75, 0.25], false));
}

#[test]
fn an_endpoint_takes_24_bytes() {
    assert_eq!(size_of::<ForwardedEndpoint>(), 24);
}

#[test]
fn ports_are_named_as_people_do() {
    let web = frontend("web", "10.96.0.10", None);
    assert_eq!(web.port.to_string(), "shop/web");
    assert_eq!(web.address.to_string(), "TCP 10.96.0.10:80");
    assert_eq!(
        FrontendAddress::node_port(Family::V6, Protocol::Udp, 53).to_string(),
        "UDP node port 53 (IPv6)"
    );
}

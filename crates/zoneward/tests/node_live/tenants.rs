//! What a tenant writes into a Service must not take the traffic of others, nor the ports of the machine. Objects are
//! stored as they are, without the checks of the API: the node is the last line.

use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::addresses::OWN;
use super::place::{From, Place, Source::Masqueraded, VIPS, here};
use super::world::{get, service, slice};

const NODE_PORT: u16 = 30_080;
const PODS_BY_RANGE: &str = "clusterCIDR: 10.1.0.0/16,fd00:1::/64";

/// A Service of another tenant, older than `web`, with pod 7 as its endpoint.
fn put_intruder(place: &Place, spec: Value, status: Value) {
    let mut object = service("intruder", &["10.96.0.66", "fd00:96::66"]);
    object["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z".into();
    for (field, value) in spec.as_object().unwrap() {
        object["spec"][field] = value.clone();
    }
    object["status"] = status;
    place.world.put(object);
    for pod in ["10.1.0.7", "fd00:1::7"] {
        let mut slice = slice("intruder", &[(pod, "")]);
        let ports = ["p", "more", "node"].map(|name| json!({"name": name, "protocol": "TCP", "port": 8080}));
        slice["ports"] = json!(ports);
        place.world.put(slice);
    }
}

#[test]
fn external_ips_of_an_older_service_take_no_cluster_ip_or_node_port() {
    toolbox::in_own_namespaces!();
    older_service_takes_nothing(json!({"externalIPs": wanted()}), json!({}));
}

#[test]
fn load_balancer_ips_of_an_older_service_take_no_cluster_ip_or_node_port() {
    toolbox::in_own_namespaces!();
    let ingress: Vec<Value> = wanted().iter().map(|ip| json!({"ip": ip})).collect();
    older_service_takes_nothing(
        json!({"type": "LoadBalancer"}),
        json!({"loadBalancer": {"ingress": ingress}}),
    );
}

/// Cluster IPs of `web`, and addresses of the node.
fn wanted() -> [&'static str; 4] {
    [VIPS[0], VIPS[1], OWN[0], OWN[1]]
}

fn older_service_takes_nothing(mut spec: Value, status: Value) {
    spec["ports"] = json!([
        {"name": "p", "protocol": "TCP", "port": 80}, {"name": "more", "protocol": "TCP", "port": 443},
        {"name": "node", "protocol": "TCP", "port": NODE_PORT},
    ]);
    let place = Place::new("intruder");
    put_intruder(&place, spec, status);
    place.put_web(json!({"type": "NodePort", "nodePort": NODE_PORT}), &[here(1)]);
    let _node = place.start(PODS_BY_RANGE);
    for i in [0, 1] {
        place.goes(From::Outside, (VIPS[i], 80), &[1], Masqueraded);
        place.is_refused(From::Outside, (VIPS[i], 443));
        place.goes(From::Outside, (OWN[i], NODE_PORT), &[1], Masqueraded);
        // Port 443 of the node belongs to no other Service.
        place.goes(From::Outside, (OWN[i], 443), &[7], Masqueraded);
    }
    let events = || {
        let all = place.world.list("Event").into_iter();
        all.filter(|event| event["reason"] == "FrontendConflict").collect::<Vec<_>>()
    };
    place.world.until("events about the loser", || events().len() >= 8);
    assert!(events().iter().all(|event| event["involvedObject"]["name"] == "intruder"));
}

#[test]
fn ports_of_the_machine_and_loopback_endpoints_are_refused() {
    toolbox::in_own_namespaces!();
    let place = Place::new("machine");
    let mut object = service("intruder", &["10.96.0.66", "fd00:96::66"]);
    object["spec"]["type"] = "LoadBalancer".into();
    object["spec"]["externalTrafficPolicy"] = "Local".into();
    object["spec"]["healthCheckNodePort"] = 22.into();
    object["spec"]["ports"][0]["nodePort"] = 23.into();
    place.world.put(object);
    // The health server of the node proxy itself, which listens on every address.
    let mut own = slice("intruder", &[("127.0.0.1", ""), ("169.254.1.1", ""), ("224.0.0.9", "")]);
    own["ports"][0]["port"] = 10256.into();
    place.world.put(own);
    place.put_web(json!({}), &[here(1)]);
    let node = place.start(PODS_BY_RANGE);
    place.goes(From::Outside, (VIPS[0], 80), &[1], Masqueraded);
    place.is_refused(From::Outside, ("10.96.0.66", 80));
    let events = |reason: &str| {
        place.world.list("Event").into_iter().filter(|event| event["reason"] == reason).count()
    };
    place.world.until("events", || events("PortOutOfRange") == 2 && events("EndpointAddressRefused") == 1);
    let at = format!("{}:22", OWN[0]);
    let refused = TcpStream::connect_timeout(&at.parse().unwrap(), Duration::from_secs(2));
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused, "{at} is not the proxy's");
    drop(node);
    let path = super::world::config(&place.world.folder, PODS_BY_RANGE);
    let _node = place.world.node("n1", &["--config", &path, "--service-node-port-range=22-65535"]);
    place.world.until("an operator may allow it", || get(&at, "/").is_some());
}

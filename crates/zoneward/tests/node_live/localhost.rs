//! Node ports on 127.0.0.1 and ::1, by the node proxy's own listeners.

use serde_json::json;

use super::place::Source::Masqueraded;
use super::place::{From, Place, here, there};
use super::traffic::sum;
use super::world::metric;

const NODE_PORT: u16 = 30_080;
const LOCALHOST: [&str; 2] = ["127.0.0.1", "::1"];
const OWN: [&str; 2] = ["198.51.100.1", "2001:db8:51::1"];
const CONFIG: &str = "clusterCIDR: 10.1.0.0/16,fd00:1::/64\nnftables: {syncPeriod: 1s}\nfeatureGates: {KubeProxyNFTablesLocalhostNodePorts: true}";

fn config(addresses: &str) -> String {
    format!("{CONFIG}\nnodePortAddresses: [{addresses}]")
}

fn listeners() -> f64 {
    sum("kubeproxy_nftables_localhost_nodeport_listeners", &[])
}

#[test]
fn node_ports_on_localhost_follow_their_service() {
    toolbox::in_own_namespaces!();
    let place = Place::new("localhost");
    place.put_web(json!({"type": "NodePort", "nodePort": NODE_PORT}), &[here(1), there(5)]);
    let refused = || LOCALHOST.iter().for_each(|at| place.is_refused(From::Node, (at, NODE_PORT)));
    let goes = |pods: &[u8]| {
        LOCALHOST.iter().for_each(|at| place.goes(From::Node, (at, NODE_PORT), pods, Masqueraded));
    };
    // Without the gate, and with it where loopback is not listed.
    let node = place.start("clusterCIDR: 10.1.0.0/16,fd00:1::/64\nnodePortAddresses: [primary, localhost]");
    refused();
    drop(node);
    let node = place.start(&config("all"));
    refused();
    drop(node);
    let node = place.start(&config("primary, localhost"));
    place.world.until("listeners", || listeners() == 2.0);
    goes(&[1, 5]);
    // The node's own address is as before, and loopback is for this machine.
    (0..2).for_each(|i| place.goes(From::Outside, (OWN[i], NODE_PORT), &[1, 5], Masqueraded));
    place.put_pods(&[there(6)]);
    place.settle();
    goes(&[6]);
    place.put_pods(&[]);
    place.settle();
    place.world.until("no listener without endpoints", || listeners() == 0.0);
    refused();
    // Semantics D2: externalTrafficPolicy Local is for clients outside.
    let local = json!({"type": "NodePort", "nodePort": NODE_PORT, "externalTrafficPolicy": "Local"});
    place.put_web(local, &[there(5), there(6)]);
    place.settle();
    place.world.until("listeners", || listeners() == 2.0);
    goes(&[5, 6]);
    let sticky = json!({"type": "NodePort", "nodePort": NODE_PORT, "sessionAffinity": "ClientIP"});
    place.put_web(sticky, &[here(1), here(2), here(3), there(4), there(5), there(6)]);
    place.settle();
    for at in LOCALHOST {
        let first = place.answering(From::Node, (at, NODE_PORT));
        (0..12).for_each(|_| assert_eq!(place.answering(From::Node, (at, NODE_PORT)), first));
    }
    // Another port: the old one is closed.
    place.put_web(json!({"type": "NodePort", "nodePort": 30_081}), &[here(1)]);
    place.settle();
    place.world.until("the other port", || listeners() == 2.0);
    refused();
    LOCALHOST.iter().for_each(|at| place.goes(From::Node, (at, 30_081), &[1], Masqueraded));
    drop(node);
    // Loopback alone: the cluster IP selects.
    let _node = place.start(&config("localhost"));
    place.world.until("listeners", || listeners() == 2.0);
    LOCALHOST.iter().for_each(|at| place.goes(From::Node, (at, 30_081), &[1], Masqueraded));
    OWN.iter().for_each(|at| place.is_refused(From::Node, (at, 30_081)));
}

#[test]
fn connections_through_localhost_are_counted_and_ports_in_use_are_told() {
    toolbox::in_own_namespaces!();
    let place = Place::new("localhost-counted");
    let taken = std::net::TcpListener::bind(("127.0.0.1", NODE_PORT)).unwrap();
    place.put_web(json!({"type": "NodePort", "nodePort": NODE_PORT}), &[here(1), there(5)]);
    let _node = place.start(&config("primary, localhost"));
    let event =
        || place.world.list("Event").into_iter().find(|event| event["reason"] == "FailedToListenOnLocalhost");
    place.world.until("an event", || event().is_some());
    let told = event().unwrap();
    assert_eq!((&told["type"], &told["involvedObject"]["name"]), (&json!("Warning"), &json!("web")));
    assert!(told["message"].as_str().unwrap().contains("127.0.0.1:30080"), "{told}");
    assert_eq!(listeners(), 1.0, "of IPv6");
    assert!(sum("kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total", &["IPv4"]) > 0.0);
    drop(taken);
    place.world.until("a listener when the port is free", || listeners() == 2.0);
    let before = sum("zoneward_service_connections_total", &["service=\"web\""]);
    for _ in 0..6 {
        for at in LOCALHOST {
            place.answering(From::Node, (at, NODE_PORT));
        }
    }
    let count = || sum("zoneward_service_connections_total", &["service=\"web\""]) - before;
    place.world.until("connections are counted", || count() >= 12.0);
    assert_eq!(sum("zoneward_localhost_nodeport_connections_total", &["connected"]), 12.0);
    assert_eq!(sum("zoneward_localhost_nodeport_connections_total", &["failed"]), 0.0);
    assert_eq!(metric("zoneward_node_services_failed"), Some(0.0));
    super::namespace::run("conntrack", &["-F"]);
    place
        .world
        .until("bytes are counted", || sum("zoneward_service_bytes_total", &["service=\"web\""]) > 0.0);
    assert_eq!(count(), 12.0, "each once");
}

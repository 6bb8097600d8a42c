//! Mode iptables: the node programs kube-proxy's chains, takes over from nftables and hands back, with a connection open.

use std::io::{Read, Write};
use std::net::SocketAddr;

use serde_json::json;

use super::connect::{open, serve};
use super::namespace::run;
use super::net::{Neighbour, be_a_router};
use super::world::{World, get, metric};

const CLIENT: &str = "10.1.0.9";
const VIP: &str = "10.96.0.10:80";

fn put_service(world: &World) {
    world.put(json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"],
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}}));
    world.put(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.1.0.1"]}]}));
}

fn saved(variant: &str, table: &str) -> String {
    run(&format!("{variant}-save"), &["-t", table])
}

fn start(world: &World, mode: &str) -> super::world::Proxy {
    let path = toolbox::search_path();
    let path = path.to_str().unwrap();
    let socket = world.socket().display().to_string();
    let words = ["node", "--hostname-override", "n1", "--cluster-cidr=10.1.0.0/16", "--api-socket", &socket];
    let mode = format!("--proxy-mode={mode}");
    world.start(&[&words[..], &[&mode]].concat(), &[("PATH", path)])
}

/// Everything of ours.
fn clean_up() {
    let zoneward = env!("CARGO_BIN_EXE_zoneward");
    let path = toolbox::search_path();
    let output = std::process::Command::new(zoneward)
        .args(["cleanup", "--only-zoneward"])
        .env("PATH", path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("KUBE-SVC-ZONEWARD"), "{text}");
}

#[test]
fn modes_change_with_a_connection_open() {
    toolbox::in_own_namespaces!();
    be_a_router(&["192.0.2.1".parse().unwrap()]);
    let (client, server) = (Neighbour::new(1, "client"), Neighbour::new(2, "server"));
    client.add_address(CLIENT.parse().unwrap());
    client.be_the_way_out();
    server.add_address("10.1.0.1".parse().unwrap());
    server.within(|| serve("10.1.0.1:8080".parse().unwrap()));
    let world = World::new("iptables");
    world.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}));
    put_service(&world);

    let connects = |client: &Neighbour| {
        client.within(|| {
            open(VIP.parse::<SocketAddr>().unwrap()).map(|(endpoint, stream)| (endpoint.to_string(), stream))
        })
    };
    let node = start(&world, "iptables");
    world.until("the chains lead to the endpoint", || connects(&client).is_ok());
    let nat = saved("iptables-nft", "nat");
    let expected = "-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment \"shop/web:http cluster IP\" -m tcp --dport 80 -j KUBE-SVC-";
    assert!(nat.contains(expected), "{nat}");
    assert!(saved("iptables-nft", "mangle").contains(":KUBE-PROXY-CANARY "));
    assert_eq!(get("127.0.0.1:10249", "/proxyMode").unwrap().2, "iptables");
    let rules = "kubeproxy_sync_proxy_rules_iptables_total{ip_family=\"IPv4\",table=\"nat\"}";
    world.until("rules are counted", || metric(rules).is_some_and(|count| count > 5.0));
    let (endpoint, mut stream) = connects(&client).unwrap();
    assert_eq!(endpoint, "10.1.0.1:8080");
    let mut is_alive = move || {
        let mut answer = [0; 5];
        stream.write_all(b"hello").and_then(|()| stream.read_exact(&mut answer)).unwrap();
        assert_eq!(&answer, b"hello");
    };
    is_alive();

    // To nftables: the chains go after the table is there.
    drop(node);
    let node = start(&world, "nftables");
    world.until("the chains have gone", || {
        assert!(connects(&client).is_ok(), "no connection fails meanwhile");
        !saved("iptables-nft", "nat").contains("KUBE-SERVICES")
    });
    assert!(run("nft", &["list", "tables"]).contains("table ip zoneward"));
    assert_eq!(get("127.0.0.1:10249", "/proxyMode").unwrap().2, "nftables");
    is_alive();
    drop(node);

    // And back.
    let node = start(&world, "iptables");
    world.until("the table of nftables has gone", || {
        assert!(connects(&client).is_ok(), "no connection fails meanwhile");
        !run("nft", &["list", "tables"]).contains("table ip zoneward")
    });
    assert!(saved("iptables-nft", "nat").contains(expected));
    is_alive();
    drop(node);
    clean_up();
    assert!(!saved("iptables-nft", "nat").contains("KUBE-SERVICES"), "the chains are gone");
    is_alive();
}

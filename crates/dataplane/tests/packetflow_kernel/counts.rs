//! What the rules count is what clients saw: each new connection once, from its frontend to its endpoint.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::apply::{connection_counts, initial_load_groups, load};
use dataplane::nftables::render::Renderer;
use model::forward::FirstPacket;
use model::{Family, ForwardingTable, Protocol};
use plan::forward::{ProxySettings, table};
use serde_json::json;

use super::addresses::{OWN, endpoint};
use super::connect::{Hope, Seen, serve};
use super::namespace::{run, run_with};
use super::site::Site;
use super::world::World;

const PORT: u16 = 30_000;

type Counts = BTreeMap<(SocketAddr, SocketAddr), u64>;

/// Services with two pods each and one endpoint on the node's own address; `sticky` remembers its clients.
fn node(own: [&str; 2]) -> ForwardingTable {
    let mut objects = Vec::new();
    for (n, affinity) in [(1, "None"), (2, "ClientIP")] {
        let ips = [format!("10.96.0.{n}"), format!("fd00:96::{n}")];
        objects.push(json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "ns", "name": format!("s{n}")},
            "spec": {"type": "NodePort", "clusterIP": ips[0], "clusterIPs": ips, "sessionAffinity": affinity,
                "ports": [{"name": "p", "port": 80, "nodePort": PORT + n}]}}));
        for (v6, family, own) in [(false, "IPv4", own[0]), (true, "IPv6", own[1])] {
            let pods = [endpoint(v6, 1), endpoint(v6, 2), own.to_owned()];
            objects.push(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"namespace": "ns", "name": format!("s{n}-{}", family.to_lowercase()),
                    "labels": {"kubernetes.io/service-name": format!("s{n}")}},
                "addressType": family, "ports": [{"name": "p", "port": 8080}],
                "endpoints": pods.map(|ip| json!({"addresses": [ip], "nodeName": "here"}))}));
        }
    }
    let settings =
        ProxySettings { cluster_cidr: "10.1.0.0/16,fd00:1::/64".into(), ..ProxySettings::without_flags() };
    let config = World { settings, zone: None, services: Vec::new() }.config();
    let snapshot = fixtures::snapshot(&objects);
    table(&snapshot, &config).0
}

fn counts(kernel: &mut NetlinkSocket) -> Counts {
    let families = [Family::V4, Family::V6];
    let all = families.into_iter().flat_map(|family| connection_counts(kernel, family).unwrap());
    all.map(|one| {
        assert_eq!(one.protocol, Protocol::Tcp);
        ((one.frontend, one.endpoint), one.connections)
    })
    .collect()
}

#[test]
fn connections_are_counted_by_frontend_and_endpoint() {
    toolbox::in_own_namespaces!();
    let site = Site::new();
    let mut kernel = NetlinkSocket::open().unwrap();
    assert!(counts(&mut kernel).is_empty(), "without a table there are none");
    let v6 = |text: &&&str| text.contains(':');
    let own = [OWN.iter().find(|text| !v6(text)).unwrap(), OWN.iter().find(v6).unwrap()].map(|text| *text);
    own.iter().for_each(|address| serve(SocketAddr::new(address.parse().unwrap(), 8080)));
    // Somebody else's rules: they rewrite what is none of ours, and the source of everything.
    let foreign =
        "table ip other {\n chain o {\n type nat hook postrouting priority 100;\n masquerade\n}\n}\n";
    run_with("nft", &["-f", "-"], foreign);
    load(&mut kernel, initial_load_groups(&Renderer::start(&node(own)).1)).unwrap();
    let mut expected = Counts::new();
    for (i, family) in ["10.96.0", "fd00:96:"].iter().enumerate() {
        // A pod that is an endpoint itself, somebody outside, the node itself.
        let outside = ["203.0.113.2", "2001:db8:203::2"][i];
        for client in [endpoint(i == 1, 1).as_str(), outside, own[i]] {
            for n in [1, 2] {
                let vip = format!("{family}{}{n}", if i == 0 { "." } else { ":" });
                for frontend in [(vip.as_str(), 80), (own[i], PORT + n)] {
                    let dst = SocketAddr::new(frontend.0.parse().unwrap(), frontend.1);
                    let src = SocketAddr::new(client.parse().unwrap(), 0);
                    for _ in 0..8 {
                        let packet = FirstPacket { src, dst, protocol: Protocol::Tcp, iif: None };
                        let Seen::Answered(endpoint, _) = site.send(&packet, Hope::Answer) else {
                            panic!("{packet:?} has no answer")
                        };
                        *expected.entry((dst, endpoint)).or_default() += 1;
                    }
                }
            }
        }
    }
    assert_eq!(counts(&mut kernel), expected);
    assert_eq!(expected.values().sum::<u64>(), 2 * 3 * 2 * 2 * 8);
    // What nft 1.0.6 makes of it can be read.
    let listing = run("nft", &["list", "ruleset"]);
    for words in [
        "update @connections { ct original ip daddr . meta l4proto . ct original proto-dst . ip daddr . th dport counter",
        "update @connections { ct original ip6 daddr . meta l4proto",
        "counter packets",
    ] {
        assert!(listing.contains(words), "{words} is missing in:\n{listing}");
    }
}

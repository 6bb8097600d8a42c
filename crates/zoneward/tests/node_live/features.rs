//! Each feature of seed 002 with real connections through a running node, IPv4 and IPv6.

use std::time::Duration;

use serde_json::json;

use super::place::Source::{Kept, Masqueraded};
use super::place::{From, Place, VIPS, here, there};
use super::world::{config, held};

/// Pods are told by their addresses.
const PODS_BY_RANGE: &str = "clusterCIDR: 10.1.0.0/16,fd00:1::/64";
const NODE_PORT: u16 = 30_080;
const OWN: [&str; 2] = ["198.51.100.1", "2001:db8:51::1"];
const OTHER_OWN: [&str; 2] = ["198.51.101.1", "2001:db8:52::1"];
const EXTERNAL: [&str; 2] = ["198.18.0.9", "2001:db8:18::9"];
const BALANCED: [&str; 2] = ["198.18.0.5", "2001:db8:18::5"];
const PROXIED: [&str; 2] = ["198.18.0.6", "2001:db8:18::6"];

#[test]
fn cluster_ips_are_served_and_what_is_no_service_is_refused_or_dropped() {
    toolbox::in_own_namespaces!();
    let place = Place::new("cluster-ips");
    place.put_web(json!({}), &[here(1), there(5)]);
    let _node = place.start(PODS_BY_RANGE);
    for vip in VIPS {
        place.goes(From::Pod(2), (vip, 80), &[1, 5], Kept);
        // Semantics D3: whoever is no pod, the node included.
        place.goes(From::Outside, (vip, 80), &[1, 5], Masqueraded);
        place.goes(From::Node, (vip, 80), &[1, 5], Masqueraded);
        place.is_refused(From::Pod(2), (vip, 81));
    }
    for unassigned in ["10.96.200.200", "fd00:96::c8"] {
        place.is_dropped(From::Pod(2), (unassigned, 80));
    }
    // Nobody is there: refused, until somebody is.
    place.put_pods(&[]);
    place.settle();
    VIPS.iter().for_each(|vip| place.is_refused(From::Pod(2), (vip, 80)));
    place.put_pods(&[there(6)]);
    place.settle();
    VIPS.iter().for_each(|vip| place.goes(From::Pod(2), (vip, 80), &[6], Kept));
}

#[test]
fn pod_reaches_itself_through_its_service() {
    toolbox::in_own_namespaces!();
    let place = Place::new("hairpin");
    place.put_web(json!({"type": "NodePort", "nodePort": NODE_PORT}), &[here(1)]);
    let _node = place.start(PODS_BY_RANGE);
    for i in [0, 1] {
        place.goes(From::Pod(1), (VIPS[i], 80), &[1], Masqueraded);
        place.goes(From::Pod(1), (OWN[i], NODE_PORT), &[1], Masqueraded);
        place.goes(From::Pod(2), (VIPS[i], 80), &[1], Kept);
    }
}

#[test]
fn clients_stay_with_their_endpoint_for_as_long_as_they_were_told() {
    toolbox::in_own_namespaces!();
    let place = Place::new("affinity");
    let all = [here(1), here(2), here(3), there(4), there(5), there(6), there(7)];
    let affinity = |seconds: u32| {
        json!({"type": "NodePort", "nodePort": NODE_PORT, "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}})
    };
    place.put_web(affinity(10_800), &all);
    let mut node = place.start(PODS_BY_RANGE);
    for i in [0, 1] {
        let frontends = [(VIPS[i], 80), (OWN[i], NODE_PORT)];
        // Semantics D5: whatever the frontend.
        let stays =
            |pod: u8| (0..12).for_each(|n| assert_eq!(place.answering(From::Outside, frontends[n % 2]), pod));
        let first = place.answering(From::Outside, frontends[0]);
        stays(first);
        // A restart forgets nobody.
        drop(node);
        node = place.start(PODS_BY_RANGE);
        stays(first);
        let rest: Vec<_> = (1..=7).filter(|pod| *pod != first).map(there).collect();
        place.put_pods(&rest);
        place.settle();
        let second = place.answering(From::Outside, frontends[0]);
        assert_ne!(second, first);
        stays(second);
        place.put_pods(&all);
        place.settle();
        stays(second);
    }
    // A second is over soon, and then any of seven may be next.
    place.put_web(affinity(1), &all);
    place.settle();
    for vip in VIPS {
        let first = place.answering(From::Stranger, (vip, 80));
        let moved = (0..8).any(|_| {
            std::thread::sleep(Duration::from_millis(2300));
            place.answering(From::Stranger, (vip, 80)) != first
        });
        assert!(moved, "{vip}: still pod {first}");
    }
}

#[test]
fn node_ports_are_served_where_they_are_asked_for() {
    toolbox::in_own_namespaces!();
    let place = Place::new("node-ports");
    place.put_web(json!({"type": "NodePort", "nodePort": NODE_PORT}), &[here(1), there(5)]);
    let check = |own: bool, other: bool| {
        for i in [0, 1] {
            for (address, is_served) in [(OWN[i], own), (OTHER_OWN[i], other)] {
                for from in [From::Outside, From::Pod(2), From::Node] {
                    match is_served {
                        true => place.goes(from, (address, NODE_PORT), &[1, 5], Masqueraded),
                        false => place.is_refused(from, (address, NODE_PORT)),
                    }
                }
            }
        }
    };
    // Semantics D4: primary by default.
    let node = place.start(PODS_BY_RANGE);
    check(true, false);
    drop(node);
    let node =
        place.start(&format!("{PODS_BY_RANGE}\nnodePortAddresses: [198.51.101.0/24, '2001:db8:52::/64']"));
    check(false, true);
    drop(node);
    let _node = place.start(&format!("{PODS_BY_RANGE}\nnodePortAddresses: [0.0.0.0/0, '::/0']"));
    check(true, true);
}

#[test]
fn external_ips_and_load_balancers_are_served_to_whom_they_are_for() {
    toolbox::in_own_namespaces!();
    let place = Place::new("external");
    let modes = [(BALANCED, "VIP"), (PROXIED, "Proxy")];
    let ingress: Vec<_> =
        modes.iter().flat_map(|(ips, mode)| ips.map(|ip| json!({"ip": ip, "ipMode": mode}))).collect();
    place.put_web(
        json!({"type": "LoadBalancer", "externalIPs": EXTERNAL,
            // Pitfall 13: blanks are legal.
            "loadBalancerSourceRanges": [" 203.0.113.0/25", "2001:db8:203::/64 "],
            "status": {"loadBalancer": {"ingress": ingress}}}),
        &[here(1), there(5)],
    );
    let _node = place.start(PODS_BY_RANGE);
    for i in [0, 1] {
        place.goes(From::Outside, (EXTERNAL[i], 80), &[1, 5], Masqueraded);
        place.goes(From::Stranger, (EXTERNAL[i], 80), &[1, 5], Masqueraded);
        place.goes(From::Outside, (BALANCED[i], 80), &[1, 5], Masqueraded);
        place.is_dropped(From::Stranger, (BALANCED[i], 80));
        // ipMode Proxy: the load balancer itself is meant, wherever that is.
        place.is_dropped(From::Outside, (PROXIED[i], 80));
    }
    // The ranges hold without endpoints, too.
    place.put_pods(&[]);
    place.settle();
    for vip in BALANCED {
        place.is_refused(From::Outside, (vip, 80));
        place.is_dropped(From::Stranger, (vip, 80));
    }
}

#[test]
fn external_traffic_policy_local_keeps_the_client_and_the_node() {
    toolbox::in_own_namespaces!();
    let place = Place::new("external-local");
    place.put_web(
        json!({"type": "LoadBalancer", "nodePort": NODE_PORT, "externalTrafficPolicy": "Local", "externalIPs": EXTERNAL,
            "status": {"loadBalancer": {"ingress": BALANCED.map(|ip| json!({"ip": ip}))}}}),
        &[here(1), here(2), there(5)],
    );
    let _node = place.start(PODS_BY_RANGE);
    let frontends = |i: usize| [(OWN[i], NODE_PORT), (EXTERNAL[i], 80), (BALANCED[i], 80)];
    for i in [0, 1] {
        for frontend in frontends(i) {
            place.goes(From::Outside, frontend, &[1, 2], Kept);
            // Semantics D2: clients inside may use every endpoint.
            place.goes(From::Pod(3), frontend, &[1, 2, 5], Kept);
            place.goes(From::Node, frontend, &[1, 2, 5], Masqueraded);
        }
        place.goes(From::Outside, (VIPS[i], 80), &[1, 2, 5], Masqueraded);
    }
    place.put_pods(&[there(5)]);
    place.settle();
    for i in [0, 1] {
        for frontend in frontends(i) {
            place.is_dropped(From::Outside, frontend);
            place.goes(From::Pod(3), frontend, &[5], Kept);
        }
    }
}

#[test]
fn internal_traffic_policy_local_stays_on_the_node() {
    toolbox::in_own_namespaces!();
    let place = Place::new("internal-local");
    let spec = json!({"type": "NodePort", "nodePort": NODE_PORT, "internalTrafficPolicy": "Local"});
    place.put_web(spec, &[here(1), there(5)]);
    let _node = place.start(PODS_BY_RANGE);
    for i in [0, 1] {
        place.goes(From::Pod(2), (VIPS[i], 80), &[1], Kept);
        place.goes(From::Outside, (OWN[i], NODE_PORT), &[1, 5], Masqueraded);
    }
    place.put_pods(&[there(5), there(6)]);
    place.settle();
    VIPS.iter().for_each(|vip| place.is_dropped(From::Pod(2), (vip, 80)));
}

#[test]
fn terminating_endpoints_are_used_when_no_other_is_left() {
    toolbox::in_own_namespaces!();
    let place = Place::new("terminating");
    let local = json!({"type": "NodePort", "nodePort": NODE_PORT, "externalTrafficPolicy": "Local"});
    place.put_web(local, &[here(1).terminating(), here(2), there(5)]);
    let _node = place.start(PODS_BY_RANGE);
    for i in [0, 1] {
        place.goes(From::Pod(3), (VIPS[i], 80), &[2, 5], Kept);
        place.goes(From::Outside, (OWN[i], NODE_PORT), &[2], Kept);
    }
    // Seed 002: under Local this node's terminating ones are left; semantics C1: under Cluster too, if all are.
    place.put_pods(&[here(1).terminating(), here(2).terminating(), there(5)]);
    place.settle();
    for i in [0, 1] {
        place.goes(From::Pod(3), (VIPS[i], 80), &[5], Kept);
        place.goes(From::Outside, (OWN[i], NODE_PORT), &[1, 2], Kept);
    }
    place.put_pods(&[here(1).terminating(), there(5).terminating()]);
    place.settle();
    VIPS.iter().for_each(|vip| place.goes(From::Pod(3), (vip, 80), &[1, 5], Kept));
}

#[test]
fn pods_are_told_by_interface_bridge_or_range() {
    toolbox::in_own_namespaces!();
    let place = Place::new("detect-local");
    place.put_web(json!({}), &[there(5)]);
    let modes = [
        ("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}", Kept, Masqueraded),
        // Whoever comes by the bridge is a pod then, and our pods are not.
        ("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cbr0}", Masqueraded, Kept),
        (PODS_BY_RANGE, Kept, Masqueraded),
        // Nobody can tell, so nobody is masqueraded.
        ("detectLocalMode: ClusterCIDR", Kept, Kept),
        ("clusterCIDR: 10.1.0.0/16,fd00:1::/64\nnftables: {masqueradeAll: true}", Masqueraded, Masqueraded),
    ];
    for (lines, pod, outside) in modes {
        let _node = place.start(lines);
        // The rules of the mode before may stand for a moment.
        place.world.until(lines, || super::place::is_settled_as(&place, pod, outside));
        for vip in VIPS {
            place.goes(From::Pod(1), (vip, 80), &[5], pod);
            place.goes(From::Outside, (vip, 80), &[5], outside);
        }
    }
}

#[test]
fn node_range_is_waited_for() {
    toolbox::in_own_namespaces!();
    let place = Place::new("node-cidr");
    place.put_web(json!({}), &[there(5)]);
    let path = config(&place.world.folder, "detectLocalMode: NodeCIDR");
    let _node = place.world.node("n1", &["--config", &path]);
    std::thread::sleep(Duration::from_secs(2));
    // Semantics D3: rules that masquerade the wrong ones would be worse than none.
    assert!(held().tables.is_empty(), "{}", place.world.log());
    place.put_node(&["10.1.0.0/16", "fd00:1::/64"]);
    place.settle();
    for vip in VIPS {
        place.goes(From::Pod(1), (vip, 80), &[5], Kept);
        place.goes(From::Outside, (vip, 80), &[5], Masqueraded);
    }
}

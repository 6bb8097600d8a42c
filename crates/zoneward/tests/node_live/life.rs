//! The life of a node proxy: external changes of its rules, an API that is away, stops and new configurations, what it
//! writes to the cluster.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use super::namespace::run;
use super::world::{World, config, endpoints, fate, held, metric, service, slice};

fn shop() -> World {
    let world = World::new("life");
    world.put_service_cidr("kubernetes", &["10.96.0.0/16", "fd00:96::/112"]);
    world.put_node("n1", "za");
    world.put(service("web", &["10.96.0.7", "fd00:96::7"]));
    world.put(slice("web", &[("10.1.0.1", "za"), ("10.1.0.2", "zb")]));
    world.put(slice("web", &[("fd00:1::1", "za"), ("fd00:1::2", "zb")]));
    world
}

fn is_served() -> bool {
    endpoints("10.96.0.7:80") == ["10.1.0.1:8080"] && endpoints("[fd00:96::7]:80") == ["[fd00:1::1]:8080"]
}

#[test]
fn what_somebody_altered_is_repaired() {
    toolbox::in_own_namespaces!();
    let world = shop();
    let config = config(&world.folder, "nftables: {syncPeriod: 1s}");
    let _node = world.node("n1", &["--config", &config]);
    world.until("served", is_served);
    for altered in [
        &["flush", "chain", "ip", "zoneward", "services"][..],
        &["delete", "table", "ip6", "zoneward"],
        &["flush", "set", "ip", "zoneward", "cluster-ips-1k"],
        &["add", "chain", "ip", "zoneward", "mine"],
    ] {
        let before = metric("zoneward_node_repairs_total").unwrap();
        run("nft", altered);
        let start = Instant::now();
        world.until("repaired", || metric("zoneward_node_repairs_total").unwrap() > before && is_served());
        assert!(start.elapsed() < Duration::from_secs(10), "{altered:?}: {:?}", start.elapsed());
    }
    let table = &held().tables[&dataplane::nftables::render::table_id(model::Family::V4)];
    assert!(!table.chains.contains_key("mine"), "what is not ours does not stay in our table");
}

/// As `deploy/node/daemonset.yaml` has it: its variables in the place of the kubelet's.
#[test]
fn rebooted_node_reaches_the_api_at_its_real_address() {
    toolbox::in_own_namespaces!();
    let world = shop();
    let address = world.serve_pods();
    let port = address.port().to_string();
    assert!(!is_served(), "nothing is programmed after a reboot");
    let words = ["node", "--hostname-override", "n1", "--proxy-mode=nftables"];
    let through_the_service = [("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("KUBERNETES_SERVICE_PORT", "443")];
    let mut lost = world.start(&words, &through_the_service);
    std::thread::sleep(Duration::from_secs(2));
    assert!(!is_served(), "the cluster IP of the API leads nowhere");
    lost.signal(Signal::SIGKILL);
    let real = [("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", port.as_str())];
    let _node = world.start(&words, &real);
    world.until("served", is_served);
}

#[test]
fn rules_stay_and_hold_while_the_api_is_away() {
    toolbox::in_own_namespaces!();
    let world = shop();
    let mut node = world.node("n1", &["--proxy-mode=nftables"]);
    world.until("served", is_served);
    world.go_away();
    std::thread::sleep(Duration::from_millis(500));
    assert!(is_served(), "the rules stay");
    // A proxy that starts without an API leaves what the kernel has.
    node.signal(Signal::SIGKILL);
    let _node = world.node("n1", &["--proxy-mode=nftables"]);
    std::thread::sleep(Duration::from_secs(1));
    assert!(is_served(), "and a start without an API keeps them");
    world.put(slice("web", &[("10.1.0.3", "za"), ("10.1.0.2", "zb")]));
    world.serve();
    world.until("what changed meanwhile is seen", || endpoints("10.96.0.7:80") == ["10.1.0.3:8080"]);
}

#[test]
fn stop_leaves_the_rules_and_a_new_configuration_ends_the_process() {
    toolbox::in_own_namespaces!();
    let world = shop();
    let path = config(&world.folder, "");
    let mut node = world.node("n1", &["--config", &path]);
    world.until("served", is_served);
    assert_eq!(node.signal(Signal::SIGTERM), Some(0));
    assert!(is_served());
    let mut node = world.node("n1", &["--config", &path]);
    std::thread::sleep(Duration::from_secs(1));
    config(&world.folder, "clusterCIDR: 10.0.0.0/8");
    assert_eq!(node.child.wait().unwrap().code(), Some(1), "{}", world.log());
    assert!(is_served());
}

#[test]
fn lease_says_what_is_programmed_and_events_say_what_is_odd() {
    toolbox::in_own_namespaces!();
    let world = shop();
    let mut web = service("web", &["10.96.0.7", "fd00:96::7"]);
    web["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    world.put(web);
    let mut other = service("other", &["10.96.0.7"]);
    other["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z".into();
    world.put(other);
    let revision = world.put(slice("web", &[("10.1.0.1", "za"), ("10.1.0.2", "zb")]));
    // No mode: kube-proxy would run iptables.
    let _node = world.node("n1", &[]);
    world.until("served", is_served);
    let lease = || world.list("Lease").into_iter().find(|l| l["metadata"]["name"] == "zoneward-node-n1");
    world.until("a Lease", || lease().is_some());
    let lease = lease().unwrap();
    assert_eq!(lease["metadata"]["namespace"], "kube-system");
    assert_eq!(lease["metadata"]["labels"]["zoneward.dev/component"], "node-proxy");
    let annotations = &lease["metadata"]["annotations"];
    assert_eq!(annotations["zoneward.dev/programmed-revision"], revision.to_string(), "{lease}");
    assert_eq!(annotations["zoneward.dev/failed-services"], "");
    assert_eq!(lease["spec"]["holderIdentity"], "n1");
    let event = |reason: &str| world.list("Event").into_iter().find(|event| event["reason"] == reason);
    world.until("events", || event("KubeProxyDefaultMode").is_some() && event("FrontendConflict").is_some());
    let event = event("KubeProxyDefaultMode").unwrap();
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["involvedObject"]["kind"], "Node");
    assert!(event["message"].as_str().unwrap().contains("runs as nftables"), "{event}");
}

#[test]
fn new_service_cidr_and_new_zone_count_at_once() {
    toolbox::in_own_namespaces!();
    // Pitfall 7, and a label that comes late.
    let world = shop();
    let _node = world.node("n1", &["--proxy-mode=nftables"]);
    world.until("served", is_served);
    let is_dropped = || {
        fate(&held(), "10.9.9.9:40000", "10.97.0.1:80", &[]).verdict
            == dataplane::backend::TracedVerdict::Drop
    };
    assert!(!is_dropped());
    world.put_service_cidr("second", &["10.97.0.0/16"]);
    world.until("addresses of the new range are dropped", is_dropped);
    world.put_node("n1", "zb");
    world.until("the other zone", || endpoints("10.96.0.7:80") == ["10.1.0.2:8080"]);
}

#[test]
fn requirement_ends_with_the_service_that_asked_for_it() {
    toolbox::in_own_namespaces!();
    let world = World::new("handed-back");
    world.put_service_cidr("kubernetes", &["10.96.0.0/16"]);
    world.put_node("n1", "za");
    let mut asking = service("web", &["10.96.0.7"]);
    asking["metadata"]["annotations"] = json!({"endpointslice.kubernetes.io/same-zone": "Require"});
    world.put(asking);
    let mut endpoints_elsewhere = slice("web", &[("10.1.0.1", "zb")]);
    endpoints_elsewhere["metadata"]["annotations"] = json!({"zoneward.dev/mechanism": "RequireZone"});
    world.put(endpoints_elsewhere.clone());
    // A Service that says when the rules are there.
    world.put(service("other", &["10.96.0.8"]));
    world.put(slice("other", &[("10.1.0.9", "")]));
    let _node = world.node("n1", &["--proxy-mode=nftables"]);
    world.until("programmed", || endpoints("10.96.0.8:80") == ["10.1.0.9:8080"]);
    assert_eq!(endpoints("10.96.0.7:80"), [""; 0], "the zone has no endpoint");
    // The annotation goes from the Service alone: kube-controller-manager leaves the slice as it is.
    world.put(service("web", &["10.96.0.7"]));
    world.until("reachable again", || endpoints("10.96.0.7:80") == ["10.1.0.1:8080"]);
    // What a default asks for is on the slice alone.
    endpoints_elsewhere["metadata"]["annotations"]["zoneward.dev/mechanism-source"] = "namespace".into();
    world.put(endpoints_elsewhere);
    world.until("bound by a default", || endpoints("10.96.0.7:80").is_empty());
}

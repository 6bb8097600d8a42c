//! What a running node answers: /healthz, /livez, health-check node ports, /metrics.

use serde_json::{Value, json};

use super::world::{World, config, endpoints, get, metric, service, slice};

const HEALTH: &str = "127.0.0.1:10256";

fn code(path: &str) -> Option<u16> {
    get(HEALTH, path).map(|(code, _, _)| code)
}

#[test]
fn health_follows_the_node() {
    toolbox::in_own_namespaces!();
    let world = World::new("health");
    world.put_service_cidr("kubernetes", &["10.96.0.0/16"]);
    world.put_node("n1", "za");
    let _node = world.node("n1", &["--proxy-mode=nftables"]);
    world.until("healthy", || code("/healthz") == Some(200) && code("/livez") == Some(200));
    world.until("programmed", || get(HEALTH, "/healthz").is_some_and(|(_, _, body)| body.contains("IPv6")));
    let (_, head, body) = get(HEALTH, "/healthz").unwrap();
    assert!(
        head.contains("content-type: application/json") && head.contains("x-content-type-options: nosniff")
    );
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&body["healthy"], &body["nodeEligible"]), (&true.into(), &true.into()));
    // Seed 002: a node that the autoscaler is about to delete, and one that is being deleted.
    let tainted = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
        "spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}});
    world.put(tainted);
    world.until("not eligible", || code("/healthz") == Some(503));
    assert_eq!(code("/livez"), Some(200));
    world.put_node("n1", "za");
    world.until("eligible again", || code("/healthz") == Some(200));
    world.remove("Node", "", "n1");
    world.until("not eligible without a Node", || code("/healthz") == Some(503));
    assert_eq!(code("/livez"), Some(200));
    assert_eq!(code("/elsewhere"), Some(404));
}

#[test]
fn load_balancers_are_told_how_many_endpoints_are_here() {
    toolbox::in_own_namespaces!();
    // healthcheck.json, health.013: on the addresses that take node ports, and nowhere else.
    let world = World::new("checks");
    world.put_service_cidr("kubernetes", &["10.96.0.0/16"]);
    world.put_node("n1", "za");
    let mut object = service("b", &["10.96.0.7"]);
    object["spec"]["type"] = "LoadBalancer".into();
    object["spec"]["externalTrafficPolicy"] = "Local".into();
    object["spec"]["healthCheckNodePort"] = 9376.into();
    world.put(object);
    let config = config(&world.folder, "nodePortAddresses: [127.0.0.0/8]");
    let _node = world.node("n1", &["--config", &config]);
    world.until("it answers", || get("127.0.0.1:9376", "/").is_some());
    let (code, head, body) = get("127.0.0.1:9376", "/").unwrap();
    assert_eq!(code, 503);
    for line in [
        "x-load-balancing-endpoint-weight: 0",
        "content-type: application/json",
        "x-content-type-options: nosniff",
    ] {
        assert!(head.contains(line), "{line} is missing: {head}");
    }
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["localEndpoints"], 0);
    assert_eq!(body["serviceProxyHealthy"], true);
    assert_eq!(body["service"], json!({"namespace": "ns", "name": "b"}));
    let mut endpoints = slice("b", &[("10.1.0.1", ""), ("10.1.0.2", ""), ("10.1.0.3", "")]);
    for i in [0, 1] {
        endpoints["endpoints"][i]["nodeName"] = "n1".into();
    }
    world.put(endpoints);
    world.until("two endpoints are here", || {
        get("127.0.0.1:9376", "/").is_some_and(|(code, head, _)| {
            code == 200 && head.contains("x-load-balancing-endpoint-weight: 2")
        })
    });
    world.remove("Service", "ns", "b");
    world.until("nobody asks any more", || get("127.0.0.1:9376", "/").is_none());
}

/// Code and weight of a health-check node port.
fn health(at: &str) -> Option<(u16, String)> {
    let (code, head, body) = get(at, "/")?;
    let weight = head.lines().find_map(|line| line.strip_prefix("x-load-balancing-endpoint-weight: "))?;
    let body: Value = serde_json::from_str(&body).ok()?;
    assert_eq!(body["localEndpoints"].to_string(), weight, "the header and the body agree");
    Some((code, weight.to_owned()))
}

#[test]
fn health_check_ports_count_each_family_for_itself() {
    toolbox::in_own_namespaces!();
    let world = World::new("families");
    world.put_service_cidr("kubernetes", &["10.96.0.0/16", "fd00:96::/112"]);
    world.put_node("n1", "za");
    let mut object = service("b", &["10.96.0.7", "fd00:96::7"]);
    object["spec"]["type"] = "LoadBalancer".into();
    object["spec"]["externalTrafficPolicy"] = "Local".into();
    object["spec"]["healthCheckNodePort"] = 9376.into();
    world.put(object.clone());
    let on = |address: &str, node: &str| {
        let mut slice = slice("b", &[(address, "")]);
        slice["endpoints"][0]["nodeName"] = node.into();
        slice
    };
    // One pod with an address of each family.
    world.put(on("10.1.0.1", "n1"));
    world.put(on("fd00:1::1", "n1"));
    let config = config(&world.folder, "nodePortAddresses: [127.0.0.0/8, '::1/128']");
    let _node = world.node("n1", &["--config", &config]);
    let (v4, v6) = ("127.0.0.1:9376", "[::1]:9376");
    let one = Some((200, "1".to_owned()));
    world.until("one endpoint in each family", || health(v4) == one && health(v6) == one);
    world.put(on("10.1.0.1", "n2"));
    world.until("none of IPv4", || health(v4) == Some((503, "0".to_owned())));
    assert_eq!(health(v6), one, "an IPv6 endpoint is none of IPv4, and the other way round");
    object["spec"]["clusterIPs"] = json!(["10.96.0.7"]);
    world.put(object);
    world.until("a family without a cluster IP does not answer", || get(v6, "/").is_none());
    assert!(get(v4, "/").is_some());
}

#[test]
fn metrics_have_the_names_that_dashboards_know() {
    toolbox::in_own_namespaces!();
    let world = World::new("metrics");
    world.put_service_cidr("kubernetes", &["10.96.0.0/16"]);
    world.put_node("n1", "za");
    world.put(service("web", &["10.96.0.7"]));
    world.put(slice("web", &[("10.1.0.1", "")]));
    let _node = world.node("n1", &["--proxy-mode=nftables"]);
    world.until("programmed", || endpoints("10.96.0.7:80") == ["10.1.0.1:8080"]);
    world.until("counted", || {
        metric("kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}")
            .is_some_and(|at| at > 0.0)
    });
    let (_, _, text) = get("127.0.0.1:10249", "/metrics").unwrap();
    for name in [
        "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}",
        "kubeproxy_sync_full_proxy_rules_duration_seconds_count",
        "kubeproxy_sync_proxy_rules_service_changes_total",
        "kubeproxy_sync_proxy_rules_endpoint_changes_total",
        "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"} 0",
        "zoneward_node_programmed_revision",
    ] {
        assert!(text.contains(name), "{name} is missing in:\n{text}");
    }
    assert_eq!(get("127.0.0.1:10249", "/proxyMode").unwrap().2, "nftables");
    assert!(get("127.0.0.1:10249", "/configz").unwrap().2.contains("KubeProxyConfiguration"));
    assert_eq!(get("127.0.0.1:10249", "/healthz").unwrap().2, "ok");
}

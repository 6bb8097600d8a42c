//! Each rule for Services with a valid and an invalid case.

use serde_json::{Value, json};

use crate::validate::test_cases::{creates, updates};
use crate::validate::{ValidationOptions, validate};

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    })
}

fn spec(spec: Value) -> Value {
    json!({"spec": spec})
}

fn ports(ports: Value) -> Value {
    spec(json!({"ports": ports}))
}

#[test]
fn a_service_is_named_by_a_dns_label() {
    creates(
        &service(),
        &[
            (json!({"metadata": {"name": "web-1"}}), ""),
            (json!({"metadata": {"name": "1-web"}}), ""),
            (json!({"metadata": {"name": "web.eu"}}), "metadata.name"),
        ],
    );
}

#[test]
fn a_service_with_an_address_has_ports() {
    creates(
        &service(),
        &[
            (ports(json!([])), "spec.ports"),
            (json!({"spec": null}), "spec.ports"),
            (json!({"spec": "web"}), "spec spec.ports"),
            (spec(json!({"ports": null, "clusterIP": "None"})), ""),
            (spec(json!({"ports": null, "type": "ExternalName", "externalName": "example.com"})), ""),
            (spec(json!({"ports": {"port": 80}})), "spec.ports"),
        ],
    );
}

#[test]
fn ports_are_named_when_there_are_several() {
    creates(
        &service(),
        &[
            (ports(json!([{"port": 80, "name": "http"}, {"port": 443, "name": "https"}])), ""),
            (ports(json!([{"port": 80, "name": "http"}, {"port": 443}])), "spec.ports[1].name"),
            (ports(json!([{"port": 80, "name": "a"}, {"port": 443, "name": "a"}])), "spec.ports[1].name"),
            (ports(json!([{"port": 80, "name": "HTTP"}])), "spec.ports[0].name"),
        ],
    );
}

#[test]
fn port_numbers_are_in_range() {
    creates(
        &service(),
        &[
            (ports(json!([{"port": 1}])), ""),
            (ports(json!([{"port": 65_535}])), ""),
            (ports(json!([{"port": 0}])), "spec.ports[0].port spec.ports[0].targetPort"),
            (ports(json!([{"port": 0, "targetPort": 80}])), "spec.ports[0].port"),
            (ports(json!([{"port": 65_536}])), "spec.ports[0].port"),
            (ports(json!([{"port": "80"}])), "spec.ports[0].port"),
            (ports(json!([{}])), "spec.ports[0].port spec.ports[0].targetPort"),
            (ports(json!([{"port": 80, "targetPort": 8080}])), ""),
            (ports(json!([{"port": 80, "targetPort": "http"}])), ""),
            (ports(json!([{"port": 80, "targetPort": 0}])), ""),
            (ports(json!([{"port": 80, "targetPort": ""}])), ""),
            (ports(json!([{"port": 80, "targetPort": 65_536}])), "spec.ports[0].targetPort"),
            (ports(json!([{"port": 80, "targetPort": "8080"}])), "spec.ports[0].targetPort"),
            (ports(json!([{"port": 80, "targetPort": [80]}])), "spec.ports[0].targetPort"),
            (ports(json!([{"port": 80, "protocol": "SCTP"}])), ""),
            (ports(json!([{"port": 80, "protocol": "tcp"}])), "spec.ports[0].protocol"),
            (ports(json!([{"port": 80, "appProtocol": "kubernetes.io/ws"}])), ""),
            (ports(json!([{"port": 80, "appProtocol": "web socket"}])), "spec.ports[0].appProtocol"),
        ],
    );
}

#[test]
fn no_two_ports_catch_the_same_packet() {
    let two = |a: Value, b: Value| {
        let (mut a, mut b) = (a, b);
        a["name"] = "a".into();
        b["name"] = "b".into();
        spec(json!({"type": "NodePort", "ports": [a, b]}))
    };
    creates(
        &service(),
        &[
            (two(json!({"port": 53}), json!({"port": 53, "protocol": "UDP"})), ""),
            (two(json!({"port": 53}), json!({"port": 53, "protocol": "TCP"})), "spec.ports[1]"),
            (
                two(
                    json!({"port": 1, "nodePort": 30_000}),
                    json!({"port": 2, "nodePort": 30_000, "protocol": "UDP"}),
                ),
                "",
            ),
            (
                two(json!({"port": 1, "nodePort": 30_000}), json!({"port": 2, "nodePort": 30_000})),
                "spec.ports[1].nodePort",
            ),
        ],
    );
}

#[test]
fn node_ports_are_for_nodes_and_within_the_range() {
    let port =
        |kind: &str, number: i64| spec(json!({"type": kind, "ports": [{"port": 80, "nodePort": number}]}));
    creates(
        &service(),
        &[
            (port("NodePort", 30_000), ""),
            (port("LoadBalancer", 32_767), ""),
            (port("NodePort", 0), ""),
            (port("ClusterIP", 30_000), "spec.ports[0].nodePort"),
            (port("NodePort", 29_999), "spec.ports[0].nodePort"),
            (port("NodePort", 70_000), "spec.ports[0].nodePort"),
        ],
    );
    let wide = ValidationOptions { node_ports: 20_000..=22_767 };
    let object = crate::validate::test_cases::changed(&service(), &port("NodePort", 20_080));
    assert_eq!(wide.validate(&object), []);
    // A port that the Service holds already is no new request.
    updates(
        &service(),
        &[
            (port("NodePort", 20_080), port("NodePort", 20_080), ""),
            (port("NodePort", 20_080), port("NodePort", 20_081), "spec.ports[0].nodePort"),
        ],
    );
}

#[test]
fn the_type_is_known_and_an_external_name_has_no_address() {
    let external = |more: Value| {
        let base = json!({"type": "ExternalName", "externalName": "example.com", "ports": null});
        spec(crate::validate::test_cases::changed(&base, &more))
    };
    creates(
        &service(),
        &[
            (spec(json!({"type": "LoadBalancer"})), ""),
            (spec(json!({"type": "Balancer"})), "spec.type"),
            (external(json!({"externalName": "example.com."})), ""),
            (external(json!({"externalName": ""})), "spec.externalName"),
            (external(json!({"externalName": null})), "spec.externalName"),
            (external(json!({"externalName": "Example.com"})), "spec.externalName"),
            (external(json!({"clusterIP": "10.0.0.1"})), "spec.clusterIPs"),
            (external(json!({"clusterIP": ""})), ""),
            (external(json!({"ipFamilies": ["IPv4"]})), "spec.ipFamilies"),
            (external(json!({"ipFamilyPolicy": "SingleStack"})), "spec.ipFamilyPolicy"),
        ],
    );
}

#[test]
fn cluster_ips_agree_with_each_other() {
    creates(
        &service(),
        &[
            (spec(json!({"clusterIP": "10.0.0.1"})), ""),
            (spec(json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]})), ""),
            (spec(json!({"clusterIP": "", "clusterIPs": []})), ""),
            (spec(json!({"clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.1"]})), "spec.clusterIPs"),
            (spec(json!({"clusterIPs": ["10.0.0.1"]})), "spec.clusterIPs"),
            (spec(json!({"clusterIP": "10.0.0.01"})), "spec.clusterIPs[0]"),
            (spec(json!({"clusterIP": "FD00::1", "clusterIPs": ["FD00::1"]})), "spec.clusterIPs[0]"),
            (spec(json!({"clusterIP": 10})), "spec.clusterIPs[0]"),
            (spec(json!({"clusterIP": "none"})), "spec.clusterIPs[0]"),
            (spec(json!({"clusterIP": "None", "clusterIPs": ["None"]})), ""),
            (spec(json!({"clusterIP": "None", "type": "NodePort"})), "spec.clusterIPs[0]"),
            (spec(json!({"clusterIP": "None", "type": "LoadBalancer"})), "spec.clusterIPs[0]"),
            (
                spec(
                    json!({"clusterIP": "None", "clusterIPs": ["None", "10.0.0.1"], "ipFamilyPolicy": "PreferDualStack"}),
                ),
                "spec.clusterIPs",
            ),
        ],
    );
}

#[test]
fn families_agree_with_the_policy_and_the_addresses() {
    let dual = |ips: &[&str], families: &[&str], policy: &str| {
        spec(
            json!({"clusterIP": ips.first(), "clusterIPs": ips, "ipFamilies": families, "ipFamilyPolicy": policy}),
        )
    };
    let both = ["10.0.0.1", "fd00::1"];
    creates(
        &service(),
        &[
            (spec(json!({"ipFamilies": ["IPv6"]})), ""),
            (spec(json!({"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "PreferDualStack"})), ""),
            (spec(json!({"ipFamilyPolicy": "RequireDualStack"})), ""),
            (dual(&both, &["IPv4", "IPv6"], "RequireDualStack"), ""),
            (dual(&both, &[], "PreferDualStack"), ""),
            (spec(json!({"ipFamilies": ["ipv4"]})), "spec.ipFamilies[0]"),
            (spec(json!({"ipFamilies": [""]})), "spec.ipFamilies[0]"),
            (
                spec(json!({"ipFamilies": ["IPv4", "IPv4"], "ipFamilyPolicy": "PreferDualStack"})),
                "spec.ipFamilies[1]",
            ),
            (spec(json!({"ipFamilyPolicy": "DualStack"})), "spec.ipFamilyPolicy"),
            (spec(json!({"ipFamilies": ["IPv4", "IPv6"]})), "spec.ipFamilyPolicy"),
            (
                spec(json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "SingleStack"})),
                "spec.ipFamilyPolicy",
            ),
            (dual(&both, &[], "SingleStack"), "spec.ipFamilyPolicy"),
            (dual(&both, &["IPv6", "IPv4"], "PreferDualStack"), "spec.clusterIPs[0] spec.clusterIPs[1]"),
            (dual(&["10.0.0.1"], &["IPv6"], "SingleStack"), "spec.clusterIPs[0]"),
            (dual(&["10.0.0.1", "10.0.0.2"], &[], "PreferDualStack"), "spec.clusterIPs"),
            (dual(&["10.0.0.1", "fd00::1", "fd00::2"], &[], "PreferDualStack"), "spec.clusterIPs"),
        ],
    );
    // Semantics E3: headless and without a selector is dual-stack unless it says otherwise.
    let headless = spec(json!({"clusterIP": "None", "selector": null, "ipFamilies": ["IPv4", "IPv6"]}));
    creates(&service(), &[(headless, "")]);
}

#[test]
fn external_addresses_can_be_reached() {
    let ips = |ips: &[&str]| spec(json!({"externalIPs": ips}));
    creates(
        &service(),
        &[
            (ips(&["192.0.2.1", "2001:db8::1"]), ""),
            (ips(&["192.0.2"]), "spec.externalIPs[0]"),
            (ips(&["192.0.2.01"]), "spec.externalIPs[0]"),
            (ips(&["192.0.2.1", "127.0.0.1"]), "spec.externalIPs[1]"),
            (ips(&["fe80::1"]), "spec.externalIPs[0]"),
            (ips(&["0.0.0.0"]), "spec.externalIPs[0]"),
            (ips(&["224.0.0.1"]), "spec.externalIPs[0]"),
        ],
    );
}

#[test]
fn affinity_is_none_or_by_client_for_up_to_a_day() {
    let seconds = |kind: &str, seconds: Value| {
        spec(
            json!({"sessionAffinity": kind, "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}}),
        )
    };
    let timeout = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    creates(
        &service(),
        &[
            (spec(json!({"sessionAffinity": "None"})), ""),
            (spec(json!({"sessionAffinity": "ClientIP"})), ""),
            (spec(json!({"sessionAffinity": "Cookie"})), "spec.sessionAffinity"),
            (seconds("ClientIP", json!(1)), ""),
            (seconds("ClientIP", json!(86_400)), ""),
            (seconds("ClientIP", json!(0)), timeout),
            (seconds("ClientIP", json!(86_401)), timeout),
            (seconds("ClientIP", json!("3h")), timeout),
            (seconds("None", json!(10)), "spec.sessionAffinityConfig"),
        ],
    );
}

#[test]
fn what_belongs_to_a_load_balancer_stands_only_there() {
    let balancer =
        |more: Value| spec(crate::validate::test_cases::changed(&json!({"type": "LoadBalancer"}), &more));
    creates(
        &service(),
        &[
            (balancer(json!({"loadBalancerSourceRanges": ["10.0.0.0/8", " fd00::/8 "]})), ""),
            (
                balancer(json!({"loadBalancerSourceRanges": ["10.0.0.1/8"]})),
                "spec.loadBalancerSourceRanges[0]",
            ),
            (balancer(json!({"loadBalancerSourceRanges": ["10.0.0.1"]})), "spec.loadBalancerSourceRanges[0]"),
            (spec(json!({"loadBalancerSourceRanges": []})), ""),
            (spec(json!({"loadBalancerSourceRanges": ["10.0.0.0/8"]})), "spec.loadBalancerSourceRanges"),
            (balancer(json!({"loadBalancerClass": "example.com/inside"})), ""),
            (balancer(json!({"loadBalancerClass": "not one"})), "spec.loadBalancerClass"),
            (spec(json!({"loadBalancerClass": "example.com/inside"})), "spec.loadBalancerClass"),
            (balancer(json!({"allocateLoadBalancerNodePorts": false})), ""),
            (spec(json!({"allocateLoadBalancerNodePorts": false})), "spec.allocateLoadBalancerNodePorts"),
        ],
    );
    let status = |kind: &str, ingress: Value| json!({"spec": {"type": kind}, "status": {"loadBalancer": {"ingress": [ingress]}}});
    let at = |field: &str| format!("status.loadBalancer.ingress[0].{field}");
    creates(
        &service(),
        &[
            (status("LoadBalancer", json!({"ip": "192.0.2.1", "ipMode": "VIP"})), ""),
            (status("LoadBalancer", json!({"hostname": "lb.example.com"})), ""),
            (status("LoadBalancer", json!({"ip": "lb"})), &at("ip")),
            (status("LoadBalancer", json!({"ip": "192.0.2.1", "ipMode": "Direct"})), &at("ipMode")),
            (status("LoadBalancer", json!({"hostname": "lb", "ipMode": "VIP"})), &at("ipMode")),
            (status("LoadBalancer", json!({"hostname": "LB"})), &at("hostname")),
            (status("ClusterIP", json!({"ip": "192.0.2.1"})), "status.loadBalancer.ingress"),
        ],
    );
}

#[test]
fn policies_stand_where_they_count() {
    let local = |kind: &str| spec(json!({"type": kind, "externalTrafficPolicy": "Local"}));
    let check = |kind: &str, policy: &str, port: i64| {
        spec(json!({"type": kind, "externalTrafficPolicy": policy, "healthCheckNodePort": port}))
    };
    creates(
        &service(),
        &[
            (spec(json!({"internalTrafficPolicy": "Local"})), ""),
            (spec(json!({"internalTrafficPolicy": "Zone"})), "spec.internalTrafficPolicy"),
            (local("NodePort"), ""),
            (local("LoadBalancer"), ""),
            (local("ClusterIP"), "spec.externalTrafficPolicy"),
            (spec(json!({"externalTrafficPolicy": "Cluster", "externalIPs": ["192.0.2.1"]})), ""),
            (
                spec(json!({"type": "NodePort", "externalTrafficPolicy": "Zone"})),
                "spec.externalTrafficPolicy",
            ),
            (check("LoadBalancer", "Local", 30_500), ""),
            (check("LoadBalancer", "Local", 70_000), "spec.healthCheckNodePort"),
            (check("LoadBalancer", "Local", 22), "spec.healthCheckNodePort"),
            (check("LoadBalancer", "Local", 32_768), "spec.healthCheckNodePort"),
            (check("LoadBalancer", "Cluster", 30_500), "spec.healthCheckNodePort"),
            (check("NodePort", "Local", 30_500), "spec.healthCheckNodePort"),
            (check("NodePort", "Local", 0), ""),
            (spec(json!({"publishNotReadyAddresses": true})), ""),
            (spec(json!({"publishNotReadyAddresses": "yes"})), "spec.publishNotReadyAddresses"),
            (spec(json!({"selector": {"app": "web shop"}})), "spec.selector"),
        ],
    );
}

#[test]
fn traffic_distribution_is_a_standard_word_or_has_a_domain() {
    // KEP-4444: standard heuristics, and implementation-specific ones with a prefix.
    let value = |value: &str| spec(json!({"trafficDistribution": value}));
    creates(
        &service(),
        &[
            (value("PreferSameZone"), ""),
            (value("PreferSameNode"), ""),
            (value("PreferClose"), ""),
            (value("zoneward.dev/Spill"), ""),
            (value("Spill"), "spec.trafficDistribution"),
            (value("preferclose"), "spec.trafficDistribution"),
            (value(""), "spec.trafficDistribution"),
            (value("zoneward.dev/"), "spec.trafficDistribution"),
        ],
    );
}

#[test]
fn the_two_annotations_for_auto_agree() {
    let annotations = |hints: &str, mode: &str| {
        json!({"metadata": {"annotations": {
            "service.kubernetes.io/topology-aware-hints": hints, "service.kubernetes.io/topology-mode": mode}}})
    };
    creates(
        &service(),
        &[
            (annotations("Auto", "Auto"), ""),
            (annotations("Auto", "Disabled"), "metadata.annotations[service.kubernetes.io/topology-mode]"),
        ],
    );
}

#[test]
fn a_cluster_ip_is_for_life() {
    let ip = |ip: &str| spec(json!({"clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"]}));
    let name = spec(json!({"type": "ExternalName", "externalName": "example.com"}));
    updates(
        &service(),
        &[
            (ip("10.0.0.1"), ip("10.0.0.1"), ""),
            (ip("10.0.0.1"), json!({}), ""),
            (ip("10.0.0.1"), spec(json!({"clusterIP": "10.0.0.1"})), ""),
            (ip("10.0.0.1"), spec(json!({"clusterIPs": ["10.0.0.1"]})), ""),
            (json!({}), ip("10.0.0.1"), ""),
            (ip("10.0.0.1"), ip("10.0.0.2"), "spec.clusterIPs[0]"),
            (ip("10.0.0.1"), spec(json!({"clusterIP": "10.0.0.2"})), "spec.clusterIPs[0]"),
            (ip("10.0.0.1"), spec(json!({"clusterIP": "None"})), "spec.clusterIPs[0]"),
            (
                spec(json!({"clusterIP": "None"})),
                spec(json!({"clusterIP": "10.0.0.1"})),
                "spec.clusterIPs[0]",
            ),
            (ip("10.0.0.1"), name.clone(), ""),
            (name, ip("10.0.0.2"), ""),
        ],
    );
}

#[test]
fn the_second_family_comes_and_goes_by_the_policy() {
    let single = spec(json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack"}));
    let dual = |policy: &str, second: &str| {
        spec(
            json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", second], "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": policy}),
        )
    };
    let first_only = |policy: Value| {
        spec(json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": policy}))
    };
    let prefer = dual("PreferDualStack", "fd00::1");
    updates(
        &service(),
        &[
            (single.clone(), prefer.clone(), ""),
            (single.clone(), spec(json!({"ipFamilyPolicy": "PreferDualStack"})), ""),
            (prefer.clone(), single.clone(), ""),
            // The lists as they were and the policy turned: the server trims them.
            (prefer.clone(), dual("SingleStack", "fd00::1"), ""),
            (prefer.clone(), first_only(json!("PreferDualStack")), "spec.ipFamilyPolicy spec.ipFamilyPolicy"),
            (prefer.clone(), first_only(Value::Null), "spec.ipFamilyPolicy spec.ipFamilyPolicy"),
            (prefer.clone(), dual("PreferDualStack", "fd00::2"), "spec.clusterIPs[1]"),
            (prefer, spec(json!({"clusterIP": "10.0.0.1"})), ""),
            (single.clone(), spec(json!({"ipFamilies": ["IPv6"]})), "spec.ipFamilies[0]"),
            // A policy that is left out is the stored one.
            (first_only(json!("PreferDualStack")), spec(json!({"ipFamilies": ["IPv4", "IPv6"]})), ""),
            (single, spec(json!({"ipFamilies": ["IPv4", "IPv6"]})), "spec.ipFamilyPolicy"),
        ],
    );
}

#[test]
fn what_a_load_balancer_was_given_stays() {
    let class = |class: Value| spec(json!({"type": "LoadBalancer", "loadBalancerClass": class}));
    let check = |port: Value| {
        spec(json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": port}))
    };
    updates(
        &service(),
        &[
            (class(json!("a.dev/x")), class(json!("a.dev/x")), ""),
            (class(json!("a.dev/x")), class(json!("a.dev/y")), "spec.loadBalancerClass"),
            (class(json!("a.dev/x")), class(Value::Null), "spec.loadBalancerClass"),
            (class(json!("a.dev/x")), spec(json!({"type": "NodePort"})), ""),
            (json!({}), class(json!("a.dev/x")), ""),
            (check(json!(30_500)), check(json!(30_500)), ""),
            (check(json!(30_500)), check(Value::Null), ""),
            (check(json!(30_500)), check(json!(30_501)), "spec.healthCheckNodePort"),
        ],
    );
}

#[test]
fn reasons_say_what_is_allowed() {
    let object =
        crate::validate::test_cases::changed(&service(), &spec(json!({"trafficDistribution": "Close"})));
    let violation = &validate(&object)[0];
    assert_eq!(
        violation.to_string(),
        "Service shop/web: spec.trafficDistribution: \"Close\" is not supported: use PreferSameZone, \
         PreferSameNode or PreferClose, or a value with the domain of its implementation, e.g. zoneward.dev/Spill"
    );
}

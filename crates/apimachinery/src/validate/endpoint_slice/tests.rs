//! Each rule for EndpointSlices with a valid and an invalid case.

use serde_json::{Value, json};

use crate::validate::test_cases::{creates, updates};

fn slice() -> Value {
    // Seed 001: the slice with hints.
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "example-hints", "labels": {"kubernetes.io/service-name": "example-svc"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
        "endpoints": [{
            "addresses": ["10.1.2.3"], "conditions": {"ready": true}, "hostname": "pod-1", "zone": "zone-a",
            "hints": {"forZones": [{"name": "zone-a"}]},
        }],
    })
}

fn endpoint(endpoint: &Value) -> Value {
    json!({"endpoints": [crate::validate::test_cases::changed(&slice()["endpoints"][0], endpoint)]})
}

fn addresses(list: &[&str]) -> Value {
    endpoint(&json!({"addresses": list}))
}

#[test]
fn the_type_of_the_addresses_is_said() {
    creates(
        &slice(),
        &[
            (json!({"addressType": "FQDN", "endpoints": [{"addresses": ["web.example.com"]}]}), ""),
            (
                json!({"addressType": "FQDN", "endpoints": [{"addresses": ["web"]}]}),
                "endpoints[0].addresses[0]",
            ),
            (json!({"addressType": null}), "addressType"),
            (json!({"addressType": "IP"}), "addressType"),
            (json!({"addressType": "IPv6", "endpoints": null, "ports": null}), ""),
        ],
    );
}

#[test]
fn addresses_are_of_the_type_and_can_be_reached() {
    creates(
        &slice(),
        &[
            (addresses(&["10.1.2.3", "10.1.2.4"]), ""),
            (addresses(&[]), "endpoints[0].addresses"),
            (endpoint(&json!({"addresses": null})), "endpoints[0].addresses"),
            (addresses(&["fd00::1"]), "endpoints[0].addresses[0]"),
            (addresses(&["010.1.2.3"]), "endpoints[0].addresses[0]"),
            (addresses(&["web"]), "endpoints[0].addresses[0]"),
            (addresses(&["0.0.0.0"]), "endpoints[0].addresses[0]"),
            (addresses(&["127.0.0.1"]), "endpoints[0].addresses[0]"),
            (addresses(&["169.254.1.1"]), "endpoints[0].addresses[0]"),
            (addresses(&["224.0.0.1"]), "endpoints[0].addresses[0]"),
        ],
    );
    let v6 = |address: &str| json!({"addressType": "IPv6", "endpoints": [{"addresses": [address]}]});
    creates(
        &slice(),
        &[
            (v6("fd00::1"), ""),
            (v6("10.1.2.3"), "endpoints[0].addresses[0]"),
            (v6("::ffff:10.1.2.3"), "endpoints[0].addresses[0]"),
            (v6("::"), "endpoints[0].addresses[0]"),
            (v6("::1"), "endpoints[0].addresses[0]"),
            (v6("fe80::1"), "endpoints[0].addresses[0]"),
            (v6("ff02::1"), "endpoints[0].addresses[0]"),
        ],
    );
}

#[test]
fn a_slice_and_an_endpoint_have_limits() {
    let endpoints = |n: usize| {
        let one = |i| json!({"addresses": [format!("10.1.{}.{}", i / 250, i % 250 + 1)]});
        json!({"endpoints": (0..n).map(one).collect::<Vec<_>>()})
    };
    let texts = |n: usize| (0..n).map(|i| format!("10.1.2.{i}")).collect::<Vec<_>>();
    let labels = |n: usize| (0..n).map(|i| (format!("k{i}"), "v".into())).collect::<serde_json::Map<_, _>>();
    let ports = |n: usize| {
        let one = |i| json!({"name": format!("p{i}"), "port": 80});
        json!({"ports": (0..n).map(one).collect::<Vec<_>>()})
    };
    creates(
        &slice(),
        &[
            (endpoints(1_000), ""),
            (endpoints(1_001), "endpoints"),
            (endpoint(&json!({"addresses": texts(100)})), ""),
            (endpoint(&json!({"addresses": texts(101)})), "endpoints[0].addresses"),
            (ports(20_000), ""),
            (ports(20_001), "ports"),
            (endpoint(&json!({"deprecatedTopology": labels(16)})), ""),
            (endpoint(&json!({"deprecatedTopology": labels(17)})), "endpoints[0].deprecatedTopology"),
        ],
    );
}

#[test]
fn the_parts_of_an_endpoint_have_their_form() {
    creates(
        &slice(),
        &[
            (endpoint(&json!({"nodeName": "a1.example.com", "zone": "", "hostname": null})), ""),
            (endpoint(&json!({"nodeName": ""})), "endpoints[0].nodeName"),
            (endpoint(&json!({"nodeName": "Node"})), "endpoints[0].nodeName"),
            (endpoint(&json!({"hostname": "Pod-1"})), "endpoints[0].hostname"),
            (endpoint(&json!({"zone": "zone a"})), "endpoints[0].zone"),
            (endpoint(&json!({"conditions": {"ready": null, "serving": true}})), ""),
            (endpoint(&json!({"conditions": {"ready": "true"}})), "endpoints[0].conditions.ready"),
            (endpoint(&json!({"targetRef": {"kind": "Pod", "name": "web-0"}})), ""),
            (endpoint(&json!({"targetRef": "web-0"})), "endpoints[0].targetRef"),
            (json!({"endpoints": ["10.1.2.3"]}), "endpoints[0].addresses"),
            (json!({"endpoints": {"addresses": []}}), "endpoints"),
        ],
    );
}

#[test]
fn hints_are_few_and_distinct() {
    let zones = |names: &[&str]| {
        let names: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        endpoint(&json!({"hints": {"forZones": names, "forNodes": null}}))
    };
    let nodes = |names: &[&str]| {
        let names: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        endpoint(&json!({"hints": {"forZones": null, "forNodes": names}}))
    };
    let eight = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let nine = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    creates(
        &slice(),
        &[
            (zones(&eight), ""),
            (zones(&nine), "endpoints[0].hints.forZones"),
            (zones(&["a", "a"]), "endpoints[0].hints.forZones[1].name"),
            (zones(&["zone a"]), "endpoints[0].hints.forZones[0].name"),
            (nodes(&eight), ""),
            (nodes(&nine), "endpoints[0].hints.forNodes"),
            (nodes(&["a", "a"]), "endpoints[0].hints.forNodes[1].name"),
            (nodes(&["Node"]), "endpoints[0].hints.forNodes[0].name"),
            (endpoint(&json!({"hints": {"forZones": [{}]}})), "endpoints[0].hints.forZones[0].name"),
            (endpoint(&json!({"hints": {"forZones": ["zone-a"]}})), "endpoints[0].hints.forZones[0].name"),
        ],
    );
}

#[test]
fn ports_have_distinct_names() {
    let ports = |ports: Value| json!({"ports": ports});
    creates(
        &slice(),
        &[
            (ports(json!([{}])), ""),
            (ports(json!([{"name": "", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}])), ""),
            (ports(json!([{"port": 80}, {"name": "", "port": 81}])), "ports[1].name"),
            (ports(json!([{"name": "a"}, {"name": "a"}])), "ports[1].name"),
            (ports(json!([{"name": "A"}])), "ports[0].name"),
            (ports(json!([{"protocol": "ICMP"}])), "ports[0].protocol"),
            (ports(json!([{"port": 65_536}])), "ports[0].port"),
            (ports(json!([{"port": 80.5}])), "ports[0].port"),
            (ports(json!([{"appProtocol": "kubernetes.io/h2c"}])), ""),
            (ports(json!([{"appProtocol": "http 2"}])), "ports[0].appProtocol"),
        ],
    );
}

#[test]
fn the_type_of_the_addresses_stays() {
    let v6 = json!({"addressType": "IPv6", "endpoints": []});
    updates(
        &slice(),
        &[(json!({}), endpoint(&json!({"zone": "zone-b"})), ""), (json!({}), v6, "addressType")],
    );
}

//! The worlds that the hints vectors stand for, asked through `plan slices`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{items, vectors, zoneward};

/// A node for each zone that has pods: one of the vector's, or one that does not count because it is not ready.
fn node_of(zone: &Value, nodes: &mut Vec<Value>) -> String {
    let in_zone = |node: &&Value| node["metadata"]["labels"]["topology.kubernetes.io/zone"] == *zone;
    if let Some(node) = nodes.iter().filter(|_| zone.is_string()).find(in_zone) {
        return node["metadata"]["name"].as_str().expect("a name").to_owned();
    }
    let name = format!("idle-{}", nodes.len());
    let labels = if zone.is_string() { json!({"topology.kubernetes.io/zone": zone}) } else { json!({}) };
    nodes.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]}}));
    name
}

fn world(input: &Value) -> Vec<Value> {
    let mut nodes = items(&input["nodes"]);
    let mut pods = Vec::new();
    for group in items(&input["readyEndpointsInSliceOrder"]) {
        let node = node_of(&group["zone"], &mut nodes);
        for _ in 0..group["count"].as_u64().expect("a count") {
            let address = format!("10.64.{}.{}", pods.len() / 250, pods.len() % 250 + 1);
            pods.push(json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": format!("pod{:04}", pods.len()), "labels": {"foo": "bar"}},
                "spec": {"nodeName": node},
                "status": {"phase": "Running", "podIPs": [{"ip": address}],
                    "conditions": [{"type": "Ready", "status": "True"}]}}));
        }
    }
    pods.extend(nodes);
    pods.push(json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "svc", "uid": "u", "annotations": {"service.kubernetes.io/topology-mode": "Auto"}},
        "spec": {"selector": {"foo": "bar"}, "ipFamilies": ["IPv4"], "clusterIPs": ["10.0.0.1"],
            "ports": [{"name": "p", "port": 80}]}}));
    pods
}

#[test]
fn plan_slices_hints_auto_as_hints_auto_does_end_to_end() {
    for vector in vectors("hints-auto.json").iter().filter(|v| v["kind"] == "end-to-end") {
        let (id, expect) = (&vector["id"], &vector["expect"]);
        let plan =
            zoneward(&["plan", "slices", "--max-endpoints-per-slice", "1000"], &world(&vector["input"]));
        let endpoints = items(&plan["creates"][0]["endpoints"]);
        let mut per_zone: BTreeMap<&str, u64> = BTreeMap::new();
        let mut crossing = 0;
        for endpoint in &endpoints {
            let Some(zone) = endpoint["hints"]["forZones"][0]["name"].as_str() else { continue };
            *per_zone.entry(zone).or_default() += 1;
            crossing += u64::from(endpoint["zone"] != zone);
        }
        let wanted =
            if expect["hintsPerZone"].is_null() { json!({}) } else { expect["hintsPerZone"].clone() };
        assert_eq!(json!(per_zone), wanted, "{id}: hints per zone");
        assert_eq!(json!(crossing), expect["crossZoneHints"], "{id}: hints for another zone");
        let event = &expect["events"][0];
        let told = |n: &Value| {
            let message = n["message"].as_str().unwrap_or_default();
            n["reason"] == event["reason"] && message.starts_with(event["message"].as_str().unwrap_or("?"))
        };
        assert!(items(&plan["notices"]).iter().any(told), "{id}: {} in {}", event, plan["notices"]);
    }
}

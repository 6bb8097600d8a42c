//! For tests: the Service shop/cart in three zones, its node proxies' Leases, and their reports of traffic.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{Read, Write};

use serde_json::{Value, json};

use crate::started::{Up, ask_socket, folder};

pub const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];
pub const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

/// The nodes with their zones.
pub fn nodes() -> impl Iterator<Item = (String, &'static str)> {
    ZONES.iter().flat_map(|zone| [0, 1].map(|number| (format!("{zone}-{number}"), *zone)))
}

/// Three zones of two nodes, and the Service shop/cart with a pod on each.
pub fn cluster(name: &str) -> Up {
    cluster_with(name, &[])
}

/// The same, with more flags of `up`.
pub fn cluster_with(name: &str, flags: &[&str]) -> Up {
    let up = Up::start(&folder(name), &[&["--no-mesh"], flags].concat());
    up.post("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}}));
    for (at, zone) in ZONES.iter().enumerate() {
        for number in 0..2 {
            let node = format!("{zone}-{number}");
            let ready =
                json!({"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "4"}});
            let object = json!({"metadata": {"name": node, "labels": {"topology.kubernetes.io/zone": zone}}});
            up.post("/api/v1/nodes", &object);
            patch(&up, &format!("/api/v1/nodes/{node}/status"), &json!({"status": ready}));
            let pod = json!({"metadata": {"name": format!("cart-{node}"), "labels": {"app": "cart"}},
                "spec": {"nodeName": node, "containers": [{"name": "c", "image": "c"}]}});
            up.post("/api/v1/namespaces/shop/pods", &pod);
            let ip = format!("10.244.{at}.{}", number + 10);
            let status = json!({"status": fixtures::pod_status(&[&ip], true)});
            patch(&up, &format!("/api/v1/namespaces/shop/pods/cart-{node}/status"), &status);
        }
    }
    let service = json!({"metadata": {"name": "cart"},
        "spec": {"selector": {"app": "cart"}, "ports": [{"port": 80}]}});
    up.post("/api/v1/namespaces/shop/services", &service);
    up
}

pub fn patch(up: &Up, path: &str, change: &Value) {
    let mut stream = std::os::unix::net::UnixStream::connect(up.data.join("api.sock")).unwrap();
    let body = change.to_string();
    let head = format!(
        "PATCH {path} HTTP/1.0\r\nhost: x\r\ncontent-type: application/merge-patch+json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
}

/// The Lease of a node proxy, as it would write it.
pub fn lease(up: &Up, node: &str, revision: &str, failed: &str) {
    let object = json!({"metadata": {"name": format!("zoneward-node-{node}"),
        "labels": {"zoneward.dev/component": "node-proxy"},
        "annotations": {"zoneward.dev/programmed-revision": revision, "zoneward.dev/failed-services": failed,
            "zoneward.dev/convergence": "0,0,9,1", "zoneward.dev/repairs": "2"}},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": 90}});
    let path = format!("{LEASES}/zoneward-node-{node}");
    match up.ask("GET", &path, "").code {
        404 => drop(up.post(LEASES, &object)),
        _ => patch(up, &path, &object),
    }
}

/// What a node has counted: so many connections to shop/cart from its zone in each second, all to its own zone.
fn traffic_report(node: &str, zone: &str, per_second: u64, sequence: u64, seconds: u64) -> Value {
    let pair = json!({"fromZone": zone, "toZone": zone, "connections": per_second * seconds, "bytes": 0});
    json!({"reporter": format!("node/{node}"), "start": "s", "sequence": sequence, "countedSeconds": seconds,
        "rows": [{"kind": "Service", "namespace": "shop", "name": "cart", "zonePairs": [pair]}],
        "gaps": {"lostEvents": 0, "droppedCounts": 0, "unaccountedFlows": 0}})
}

/// Every node has counted one second more: the shares are exact, and the rates those of the times of reports.
pub fn report_traffic(up: &Up, sequence: u64, per_node_by_zone: [u64; 3]) {
    for (node, zone) in nodes() {
        let rate = per_node_by_zone[ZONES.iter().position(|known| *known == zone).unwrap()];
        let report = traffic_report(&node, zone, rate, sequence, sequence).to_string();
        let answer = ask_socket(&up.data.join("ledger.sock"), "POST", "/ledger", &report);
        assert_eq!(answer.code, 200, "{}", answer.body);
    }
}

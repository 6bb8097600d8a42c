//! A joined machine while the API is away and after: the age of what it serves, names, and what `observe` cannot read.

use std::net::SocketAddr;

use fixtures::eventually;
use serde_json::{Value, json};

use super::boxes::{Machine, is_in_snapshot, machines};

const SERVICES: &str = "/api/v1/namespaces/default/services";

fn status(machine: &Machine) -> (bool, Value) {
    let kubeconfig = machine.kubeconfig().display().to_string();
    let output = machine.run(&["status", "-o", "json", "--kubeconfig", &kubeconfig]);
    (output.status.success(), serde_json::from_slice(&output.stdout).unwrap_or_default())
}

fn age(machine: &Machine) -> Option<u64> {
    machine.within(|| {
        let curl =
            toolbox::command("curl").args(["-s", "-m", "5", "http://127.0.0.1:10249/metrics"]).output();
        let text = String::from_utf8(curl.unwrap().stdout).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("zoneward_node_object_age_seconds "));
        line.and_then(|value| value.parse().ok())
    })
}

/// A DNS message over TCP: the query of `web.default.svc.cluster.local`, type A.
fn query() -> Vec<u8> {
    let mut query = vec![0, 0, 0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in ["web", "default", "svc", "cluster", "local"] {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query[1] = (query.len() - 2) as u8;
    query
}

#[test]
fn joined_machine_says_how_old_its_objects_are() {
    toolbox::in_own_namespaces!();
    let [first, second] = machines("age");
    let mut up = first.up();
    let token = first.token("box-2", &["--server", "https://10.0.0.1:6443"]);
    let words = Machine::join_words(&token);
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.extend(["--zone", "zone-2", "--dns"]);
    let mut joined = second.start(&words);
    let web = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}], "ipFamilies": ["IPv4"]}});
    let (code, web) = first.admin("POST", SERVICES, &web.to_string());
    assert_eq!(code, 201, "{web}");
    let ip: std::net::Ipv4Addr = web["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
    let dns: SocketAddr = "127.0.0.10:53".parse().unwrap();
    let is_answered = || second.exchange(dns, &query()).is_some_and(|answer| answer.ends_with(&ip.octets()));
    eventually("the name", is_answered);
    eventually("the age", || age(&second) == Some(0));
    for file in ["snapshot.json", "dns-snapshot.json"] {
        let path = second.data.join(file);
        eventually(file, || is_in_snapshot(&path, "web"));
    }

    // The metrics of box-2 are on its own loopback: box-1 does not read its own instead.
    let kubeconfig = first.kubeconfig().display().to_string();
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/zoneward-node-box-2";
    eventually("the Lease", || first.admin("GET", lease, "").0 == 200);
    let said = first.refused(&["observe", "--node", "box-2", "--kubeconfig", &kubeconfig]);
    assert!(said.contains("ssh -L 10349:127.0.0.1:10249 box-2"), "{said}");

    up.kill();
    eventually("the API is away", || age(&second).is_some_and(|age| age > 0));
    let (is_honored, report) = status(&second);
    assert!(!is_honored && report["node"]["name"] == "box-2", "{report}");
    assert_eq!(report["node"]["fromFile"], false);
    let shown = second.run(&["status", "--kubeconfig", &second.kubeconfig().display().to_string()]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("Node box-2 of this machine serves what it knew"), "{shown}");

    // After a reboot: the snapshot, and names from one.
    joined.kill();
    let joined = second.start(&["join", "--dns"]);
    eventually("the snapshot", || status(&second).1["node"]["fromFile"] == true);
    assert!(status(&second).1["node"]["objectAgeSeconds"].as_u64().unwrap() > 0);
    eventually("the name of before", is_answered);

    let up = first.up();
    eventually("the API is back", || age(&second) == Some(0));
    let outage = || {
        let (_, report) = status(&first);
        let nodes = report["nodes"].as_array().cloned().unwrap_or_default();
        nodes.into_iter().find(|node| node["name"] == "box-2").unwrap_or_default()["lastOutage"].clone()
    };
    eventually("the outage in the status", || outage()["fromFile"] == true);
    assert!(outage()["ageSeconds"].as_u64().unwrap() >= 10, "{}", outage());
    drop((joined, up));
    [first, second].iter().for_each(Machine::remove);
}

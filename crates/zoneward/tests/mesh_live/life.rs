//! Proxies over time: gateways that come and go, processes that are killed, stops under way, tables that change.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fixtures::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::mesh_live::world::{Machine, Running, Upstream, ask, body, folder, route};

fn gateway(name: &str, port: u16) -> Value {
    json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway", "metadata": {"name": name},
        "spec": {"listeners": [{"name": "http", "port": port, "protocol": "HTTP"}]}})
}

fn gateway_route(name: &str, gateway: &str, answer: &str) -> Value {
    json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGatewayHTTPRoute", "metadata": {"name": name},
        "spec": {"targetRef": {"kind": "MeshGateway", "name": gateway}, "rules": [
            {"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": {"filters": [
                {"type": "DirectResponse", "directResponse": {"status": 200, "body": {"inlineString": answer}}}]}}]}})
}

/// The processes of `up`, by what their command line has.
fn child(machine: &Machine, word: &str) -> Option<Pid> {
    let id = machine.up.child.id();
    let tasks = fs::read_dir(format!("/proc/{id}/task")).ok()?;
    let lists = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let all: Vec<i32> = lists
        .flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect();
    let words = |id: &i32| fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
    all.into_iter().find(|id| words(id).split('\0').any(|part| part == word)).map(Pid::from_raw)
}

#[test]
fn gateways_come_and_go_and_a_killed_proxy_comes_back() {
    toolbox::in_own_namespaces!();
    let mut machine = Machine::up("gateways", &["--mesh-bind", "127.0.0.1"]);
    machine.apply(&gateway("one", 8001));
    machine.apply(&gateway("two", 8002));
    machine.apply(&gateway_route("one", "one", "first"));
    machine.apply(&gateway_route("two", "two", "second"));
    let (one, two) = ("127.0.0.1:8001", "127.0.0.1:8002");
    eventually("both gateways", || {
        body(one, "/").as_deref() == Some("first") && body(two, "/").as_deref() == Some("second")
    });
    let (first, second) = (child(&machine, "one").unwrap(), child(&machine, "two").unwrap());
    kill(first, Signal::SIGKILL).unwrap();
    eventually("the first one again", || {
        child(&machine, "one").is_some_and(|id| id != first) && body(one, "/").is_some()
    });
    assert_eq!(child(&machine, "two"), Some(second), "the other was not touched");
    machine.apply(&gateway_route("one", "one", "changed"));
    eventually("the new route", || body(one, "/").as_deref() == Some("changed"));
    machine.apply(
        &json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway", "metadata": {"name": "one"},
        "spec": {"listeners": [{"name": "http", "port": 8003, "protocol": "HTTP"}]}}),
    );
    eventually("the other port", || {
        body("127.0.0.1:8003", "/").is_some() && ask(one, "x", "/", "").is_none()
    });
    let accepted = |name: &str| {
        let path = format!("/apis/zoneward.dev/v1alpha1/namespaces/default/meshgateways/{name}");
        machine.read(&path)["status"]["conditions"][0]["status"].clone()
    };
    eventually("the conditions", || accepted("one") == "True" && accepted("two") == "True");
    machine.delete(&gateway("two", 8002));
    eventually("the end of the second", || {
        child(&machine, "two").is_none() && ask(two, "x", "/", "").is_none()
    });
    assert_eq!(machine.up.stop(), Some(0));
    assert!(ask("127.0.0.1:8003", "x", "/", "").is_none(), "nothing is left behind");
}

#[test]
fn requests_under_way_are_answered_after_the_stop() {
    toolbox::in_own_namespaces!();
    let slow = Upstream::slow("slow", "10.1.0.1", Duration::from_millis(700));
    let machine = Machine::up("stop", &["--no-mesh"]);
    machine.expose("backend", std::slice::from_ref(&slow.address));
    let mut proxy = machine.proxy("proxy", &["--from", "frontend", "--outbound", "8081=backend"]);
    eventually("the first answer", || body("127.0.0.1:8081", "/").is_some());
    let asked = slow.seen().len();
    let client = std::thread::spawn(|| body("127.0.0.1:8081", "/last"));
    eventually("the request under way", || slow.seen().len() > asked);
    assert_eq!(proxy.stop(), Some(0));
    assert_eq!(client.join().unwrap().as_deref(), Some("slow"));
    assert!(ask("127.0.0.1:8081", "x", "/", "").is_none());
}

#[test]
fn files_are_obeyed_and_read_again_when_they_change() {
    toolbox::in_own_namespaces!();
    let (one, two) = (Upstream::start("one", "10.1.0.1"), Upstream::start("two", "10.1.0.2"));
    let folder = folder("files");
    let file = folder.join("world.yaml");
    let write = |address: &str| {
        let (ip, _) = address.rsplit_once(':').unwrap();
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "backend"},
            "spec": {"clusterIP": "10.96.0.7", "ports": [{"name": "http", "port": 80}]}});
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "backend-1", "labels": {"kubernetes.io/service-name": "backend"}},
            "ports": [{"name": "http", "port": 8080}], "endpoints": [{"addresses": [ip]}]});
        fs::write(&file, format!("{service}\n---\n{slice}\n---\nkind: [broken\n")).unwrap();
    };
    write(&one.address);
    let path = file.display().to_string();
    let words = ["mesh", "proxy", "-f", &path, "--from", "frontend", "--outbound", "8081=backend:http"];
    let mut proxy = Running::start(&folder, "proxy", &words);
    let at = "127.0.0.1:8081";
    eventually("the first answer", || body(at, "/").as_deref() == Some("one"));
    write(&two.address);
    eventually("the other endpoint", || body(at, "/").as_deref() == Some("two"));
    let log = proxy.log();
    assert!(log.contains("world.yaml") && log.contains("Unreadable"), "the broken document is named: {log}");
    let metrics = ask("127.0.0.1:10271", "x", "/metrics", "").unwrap().body;
    assert!(metrics.contains("zoneward_mesh_table_swaps_total 2\n"), "{metrics}");
    assert_eq!(ask("127.0.0.1:10271", "x", "/readyz", "").unwrap().status, 200);
    assert_eq!(proxy.stop(), Some(0));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn routes_and_endpoints_change_without_a_failed_request() {
    toolbox::in_own_namespaces!();
    let upstreams: Vec<Upstream> =
        (1..=4).map(|i| Upstream::start(&format!("u{i}"), &format!("10.1.0.{i}"))).collect();
    let machine = Machine::up("changes", &["--sidecar", "frontend:8081=backend"]);
    let at = "127.0.0.1:8081";
    machine.expose("backend", &[upstreams[0].address.clone()]);
    eventually("the first answer", || body(at, "/").is_some());
    machine.apply(&route(
        "moving",
        "backend",
        json!([{"matches": [{"path": {"type": "Prefix", "value": "/x"}}], "default": {}}]),
    ));
    let asked = std::process::Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args([
            "plan",
            "routes",
            "--from",
            "frontend",
            "--to",
            "backend",
            "-o",
            "json",
            "--api-socket",
            &machine.socket(),
        ])
        .output()
        .unwrap();
    let plan: Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert_eq!(
        plan["rules"].as_array().map(Vec::len),
        Some(1),
        "what a cluster has can be asked for: {plan}"
    );
    let stop = Arc::new(AtomicBool::new(false));
    let (done, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (stop, done, failed) = (stop.clone(), done.clone(), failed.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let counter = if body(at, "/").is_some() { &done } else { &failed };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let slice = |round: usize| {
        let ips: Vec<Value> =
            (0..3).map(|i| json!({"addresses": [format!("10.1.0.{}", (round + i) % 4 + 1)]})).collect();
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "backend-own", "labels": {"kubernetes.io/service-name": "backend"}},
            "ports": [{"name": "http", "port": 8080}], "endpoints": ips})
    };
    let (began, mut round) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(5) {
        machine.apply(&slice(round));
        let rules =
            json!([{"matches": [{"path": {"type": "Prefix", "value": format!("/{round}")}}], "default": {}}]);
        machine.apply(&route("moving", "backend", rules));
        round += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    stop.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    let (done, failed) = (done.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
    println!("{} changes in {:?}, {done} requests, {failed} failed", 2 * round, began.elapsed());
    assert!(done > 100 && failed == 0, "{done} requests, {failed} failed, {} changes", 2 * round);
    assert!(upstreams.iter().all(|upstream| !upstream.seen().is_empty()));
}

#[test]
fn zones_are_kept_and_counted() {
    toolbox::in_own_namespaces!();
    let (near, far) = (Upstream::start("near", "10.1.0.1"), Upstream::start("far", "10.1.0.2"));
    let machine = Machine::up("zones", &["--no-mesh"]);
    let node = |name: &str, zone: &str| {
        json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}}})
    };
    machine.apply(&node("node-a", "zone-a"));
    machine.apply(&node("node-b", "zone-b"));
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "backend"},
        "spec": {"trafficDistribution": "PreferSameZone", "ports": [{"name": "http", "port": 80}]}});
    machine.apply(&service);
    machine.expose("backend", &[format!("{}@zone-a", near.address), format!("{}@zone-b", far.address)]);
    let words = [
        "--from",
        "frontend",
        "--outbound",
        "8081=backend",
        "--node",
        "node-a",
        "--bind-address",
        "127.0.0.1:9001",
    ];
    let socket = machine.socket();
    let proxy = Running::start(
        &machine.folder,
        "proxy",
        &[&["mesh", "proxy", "--api-socket", &socket][..], &words].concat(),
    );
    let at = "127.0.0.1:8081";
    eventually("the first answer", || body(at, "/").as_deref() == Some("near"));
    assert!((0..50).all(|_| body(at, "/").as_deref() == Some("near")), "{}", proxy.log());
    machine.expose("backend", &[format!("{}@zone-b", far.address)]);
    eventually("the other zone", || body(at, "/").as_deref() == Some("far"));
    let metrics = ask("127.0.0.1:9001", "x", "/metrics", "").unwrap().body;
    for locality in ["same-zone", "cross-zone"] {
        let word = format!("locality=\"{locality}\"}}");
        let count = metrics.lines().find(|line| line.contains("backend_zone_total{") && line.contains(&word));
        assert!(count.is_some_and(|line| !line.ends_with(" 0")), "{locality} is counted: {metrics}");
    }
}

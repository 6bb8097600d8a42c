//! `zoneward status` against a real API and its controllers: what it reports, the fix that it prints run by kubectl, exit
//! codes, and what it says when no controller answers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

#[path = "started/up.rs"]
mod started;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use started::{Up, folder};

const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

fn zoneward(up: &Up, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
    command.args(words).args(["--kubeconfig", &up.kubeconfig]).env("NO_COLOR", "1").output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn report(up: &Up, more: &[&str]) -> Value {
    let output = zoneward(up, &[&["status", "-o", "json"], more].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)))
}

/// Asks until the answer is as wanted.
fn eventually(up: &Up, more: &[&str], wanted: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let output = zoneward(up, &[&["status", "-o", "json"], more].concat());
        let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if wanted(&value) {
            return value;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{}", text(&output));
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Three zones of two nodes, and the Service shop/cart with a pod on each.
fn cluster(name: &str) -> Up {
    let up = Up::start(&folder(name), &["--no-mesh"]);
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
            let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                "conditions": [{"type": "Ready", "status": "True"}]}});
            patch(&up, &format!("/api/v1/namespaces/shop/pods/cart-{node}/status"), &status);
        }
    }
    let service = json!({"metadata": {"name": "cart"},
        "spec": {"selector": {"app": "cart"}, "ports": [{"port": 80}]}});
    up.post("/api/v1/namespaces/shop/services", &service);
    up
}

fn patch(up: &Up, path: &str, change: &Value) {
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
fn lease(up: &Up, node: &str, revision: &str, failed: &str) {
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

fn widths(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{} columns: {line}\n{text}", line.chars().count());
    }
}

#[test]
fn the_printed_fix_is_run_by_kubectl_and_does_what_was_predicted() {
    let up = cluster("status-fix");
    let cart = |value: &Value| value["services"][0].clone();
    let before = eventually(&up, &["-n", "shop"], |v| v["services"][0]["inZone"]["planned"].is_f64());
    let service = cart(&before);
    assert_eq!((&service["namespace"], &service["name"]), (&json!("shop"), &json!("cart")), "{before}");
    assert_eq!(service["mechanism"], "default");
    assert_eq!(service["inZone"], json!({"measured": null, "planned": 0.3333, "best": 1.0}));
    let (fix, effect) = (service["fix"].as_str().unwrap(), &service["effect"]);
    assert_eq!(effect["inZone"], 1.0);

    let words = format!(
        "{} --kubeconfig {} {}",
        fix.split_once(' ').unwrap().0,
        up.kubeconfig,
        fix.split_once(' ').unwrap().1
    );
    let run = Command::new("sh").args(["-c", &words]).env("PATH", toolbox::search_path()).output().unwrap();
    assert!(run.status.success(), "{words}: {}", text(&run));

    let after =
        eventually(&up, &["-n", "shop"], |v| v["services"][0]["inZone"]["planned"] == effect["inZone"]);
    assert_eq!(cart(&after)["mechanism"], effect["mechanism"], "{after}");
    assert_eq!(cart(&after)["fix"], Value::Null);
    assert_eq!(cart(&after)["worstOverload"], effect["worstOverload"]);
    fs::remove_dir_all(&up.data).unwrap();
}

#[test]
fn nodes_are_listed_by_name_and_decide_the_exit_code() {
    let up = cluster("status-nodes");
    lease(&up, "zone-a-0", "999999999", "");
    lease(&up, "zone-b-0", "999999999", "");
    let nodes = |value: &Value| value["summary"]["nodes"].clone();
    eventually(&up, &["-A"], |v| nodes(v)["current"] == 2);
    let output = zoneward(&up, &["status", "-A"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let table = text(&output);
    widths(&table);
    for expected in ["2 current, 4 without a Zoneward node proxy", "shop/cart", "zone-a-0", "p50 156 ms"] {
        assert!(table.contains(expected), "{expected}:\n{table}");
    }
    lease(&up, "zone-b-0", "999999999", "shop/cart");
    let behind = eventually(&up, &["-A"], |v| nodes(v)["behind"] == json!(["zone-b-0"]));
    assert_eq!(behind["nodes"][0]["failedServices"], json!(["shop/cart"]));
    assert_eq!(behind["nodes"][0]["repairs"], 2);
    let output = zoneward(&up, &["status", "-A"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    widths(&text(&output));
    fs::remove_dir_all(&up.data).unwrap();
}

#[test]
fn one_service_is_shown_in_full_and_unknown_ones_are_suggested() {
    let up = cluster("status-one");
    let change = json!({"spec": {"trafficDistribution": "PreferSameZone"}});
    patch(&up, "/api/v1/namespaces/shop/services/cart", &change);
    let full = eventually(&up, &["cart", "-n", "shop"], |v| v["detail"]["zones"][0]["mode"] == "same-zone");
    let zone = &full["detail"]["zones"][0];
    assert_eq!((&zone["from"], &zone["endpoints"]), (&json!("zone-a"), &json!(2)));
    assert_eq!(zone["flows"], json!([{"to": "zone-a", "planned": 1.0, "measured": null}]));
    assert!(zone["why"].to_string().contains("zone hints"), "{zone}");
    let full = eventually(&up, &["shop/cart"], |v| {
        v["detail"]["conditions"].as_array().is_some_and(|c| c.len() == 3)
    });
    let kinds = full["detail"]["conditions"].to_string();
    assert!(kinds.contains("zoneward.dev/TrafficDistributionProgrammed"), "{kinds}");
    let output = zoneward(&up, &["status", "svc/cart", "-n", "shop"]);
    widths(&text(&output));
    for expected in ["from zone-a", "Conditions:", "Programmed", "same-zone"] {
        assert!(text(&output).contains(expected), "{expected}:\n{}", text(&output));
    }
    let unknown = zoneward(&up, &["status", "crat", "-n", "shop"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(text(&unknown).contains("did you mean \"shop/cart\"?"), "{}", text(&unknown));
    for format in ["wide", "yaml", "html"] {
        let output = zoneward(&up, &["status", "-A", "-o", format]);
        assert!(output.status.success() && text(&output).contains("cart"), "{}", text(&output));
    }
    let top = zoneward(&up, &["top", "-A", "--count", "1"]);
    assert!(text(&top).contains("No traffic in the last minute."), "{}", text(&top));
    fs::remove_dir_all(&up.data).unwrap();
}

#[test]
fn without_a_leader_the_error_says_what_to_do() {
    let up = Up::start(&folder("status-none"), &["--no-mesh", "--no-controllers"]);
    let output = zoneward(&up, &["status", "-A"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output);
    assert!(said.contains("no Zoneward controller leads: there is no Lease zoneward-controller"), "{said}");
    assert!(said.contains("start `zoneward controller` or `zoneward up`"), "{said}");
    // A holder that has gone without releasing its Lease.
    let held = json!({"metadata": {"name": "zoneward-controller",
        "annotations": {"zoneward.dev/status-address": "127.0.0.1:1"}},
        "spec": {"holderIdentity": "controller-1_0123", "leaseDurationSeconds": 15}});
    up.post(LEASES, &held);
    let output = zoneward(&up, &["status", "-A"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("the leader controller-1_0123"), "{}", text(&output));
    let output = zoneward(&up, &["status", "-A", "--lease", "nonsense"]);
    assert!(text(&output).contains("expected NAMESPACE/NAME"), "{}", text(&output));
    fs::remove_dir_all(&up.data).unwrap();
}

#[test]
fn a_flood_of_requests_and_wrong_ones_leave_the_controller_at_work() {
    let up = cluster("status-flood");
    eventually(&up, &["-n", "shop"], |v| v["services"][0]["inZone"]["planned"].is_f64());
    let lease = up.ask("GET", &format!("{LEASES}/zoneward-controller"), "").json();
    let address =
        lease["metadata"]["annotations"]["zoneward.dev/status-address"].as_str().unwrap().to_owned();
    let get = |path: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let _ = write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    for path in ["/api/status?x=1", "/api/status?window=-1", "/api/status?name=cart"] {
        assert!(get(path).starts_with("HTTP/1.1 400"), "{path}: {}", get(path));
    }
    let long = format!("/api/status?namespace={}", "n".repeat(7_000));
    assert!(get(&long).starts_with("HTTP/1.1 200"), "an unknown namespace has no Services");
    // Clients that ask and do not read.
    let idle: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).unwrap();
            let _ = write!(stream, "GET /api/status HTTP/1.1\r\nhost: localhost\r\n\r\n");
            stream
        })
        .collect();
    let change = json!({"spec": {"trafficDistribution": "PreferSameZone"}});
    patch(&up, "/api/v1/namespaces/shop/services/cart", &change);
    eventually(&up, &["-n", "shop"], |v| v["services"][0]["inZone"]["planned"] == 1.0);
    drop(idle);
    assert_eq!(report(&up, &["-A"])["summary"]["currency"], "USD");
    fs::remove_dir_all(&up.data).unwrap();
}

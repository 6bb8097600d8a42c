//! `zoneward status` against a real API and its controllers: what it reports, the fix that it prints run by kubectl, exit
//! codes, and what it says when no controller answers.

use crate::shop;
use crate::started;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use fixtures::eventually;
use serde_json::{Value, json};
use shop::{LEASES, cluster, cluster_with, lease, patch, report_traffic};
use started::{Up, folder};

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
fn report_when(up: &Up, more: &[&str], wanted: impl Fn(&Value) -> bool) -> Value {
    eventually("the report", || {
        let output = zoneward(up, &[&["status", "-o", "json"], more].concat());
        let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if wanted(&value) { Ok(value) } else { Err(text(&output)) }
    })
}

/// Of the dashboard.
fn status_address(up: &Up) -> String {
    let lease = up.ask("GET", &format!("{LEASES}/zoneward-controller"), "").json();
    lease["metadata"]["annotations"]["zoneward.dev/status-address"].as_str().unwrap().to_owned()
}

/// The whole answer of the dashboard.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let _ = write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn widths(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{} columns: {line}\n{text}", line.chars().count());
    }
}

/// What each part says about shop/cart: the controller in its slices, and all that explains, predicts or traces. Commands get
/// no flag of the controller: they read them from it.
struct Said {
    /// Of the slices.
    annotations: Value,
    hints: Vec<Value>,
    report: Value,
    what_if: Value,
    plan: Value,
    /// From a node in zone-a.
    selected: Value,
    packet: Value,
    dashboard: Value,
    page: String,
}

impl Said {
    /// Once the status is as wanted.
    fn when(up: &Up, wanted: impl Fn(&Value) -> bool) -> Self {
        let report = report_when(up, &["-n", "shop"], wanted);
        let json = |words: &[&str]| -> Value {
            let output = zoneward(up, &[words, &["-n", "shop", "-o", "json"]].concat());
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)))
        };
        let slices = up.ask("GET", "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices", "").json();
        let slices = slices["items"].as_array().unwrap();
        assert_eq!(slices.len(), 1, "{slices:?}");
        let endpoints = slices[0]["endpoints"].as_array().unwrap();
        let cart = up.ask("GET", "/api/v1/namespaces/shop/services/cart", "").json();
        let packet = format!("tcp 10.0.0.2:40000 -> {}:80", cart["spec"]["clusterIP"].as_str().unwrap());
        let address = status_address(up);
        let dashboard = get(&address, "/api/status?namespace=shop");
        Self {
            annotations: slices[0]["metadata"]["annotations"].clone(),
            hints: endpoints.iter().map(|e| json!([e["zone"], e["hints"]["forZones"][0]["name"]])).collect(),
            report: report["services"][0].clone(),
            what_if: json(&["simulate", "what-if"])["services"][0].clone(),
            plan: json(&["plan", "slices"]),
            selected: json(&["trace", "select", "cart", "--node", "zone-a-0"])[0].clone(),
            packet: json(&["trace", "packet", "--node", "zone-a-0", "--packet", &packet]),
            dashboard: serde_json::from_str(dashboard.split_once("\r\n\r\n").unwrap().1).unwrap(),
            page: get(&address, "/services"),
        }
    }

    /// Everything names this mechanism, and nothing is left to plan.
    fn is(&self, mechanism: &str) {
        assert_eq!(self.report["mechanism"], mechanism, "status: {}", self.report);
        assert_eq!(self.dashboard["services"][0]["mechanism"], mechanism, "dashboard: {}", self.dashboard);
        assert!(self.page.contains(&format!(">{mechanism}<")), "page: {}", self.page);
        let in_what_if = if mechanism == "default" { "None" } else { mechanism };
        assert_eq!(self.what_if["current"], in_what_if, "what-if: {}", self.what_if);
        for changes in ["creates", "updates", "deletes"] {
            assert_eq!(self.plan[changes], json!([]), "the controller and plan agree: {}", self.plan);
        }
    }

    /// The addresses that a node in zone-a selects, and those of its rules.
    fn endpoints(&self) -> [usize; 2] {
        let count = |list: &Value| list.as_array().unwrap_or_else(|| panic!("{list}")).len();
        [count(&self.selected["cluster"]["endpoints"]), count(&self.packet["endpoints"])]
    }
}

#[test]
fn a_default_of_the_controller_is_that_of_everything_that_explains_or_predicts() {
    let up = cluster_with("status-default", &["--default-traffic-distribution", "PreferSameZone"]);
    let said = Said::when(&up, |v| v["services"][0]["inZone"]["planned"] == 1.0);
    said.is("PreferSameZone");
    assert_eq!(said.annotations["zoneward.dev/mechanism"], "PreferSameZone", "{}", said.annotations);
    assert_eq!(said.annotations["zoneward.dev/mechanism-source"], "controller", "{}", said.annotations);
    assert!(said.hints.iter().all(|hint| hint[0] == hint[1]), "each for its own zone: {:?}", said.hints);
    assert_eq!(said.selected["cluster"]["mode"], "same-zone", "{}", said.selected);
    assert_eq!(said.endpoints(), [2, 2], "{} {}", said.selected, said.packet);
    assert_eq!(said.report["fix"], Value::Null, "nothing is better: {}", said.report);
    let other = ["simulate", "what-if", "--default-traffic-distribution", "zoneward.dev/Spill", "-n", "shop"];
    let other = zoneward(&up, &[&other[..], &["-o", "json"]].concat());
    let other: Value = serde_json::from_slice(&other.stdout).unwrap();
    assert_eq!(other["services"][0]["current"], "Spill", "a flag overrides: {other}");
    fs::remove_dir_all(&up.data).unwrap();
}

#[test]
fn a_feature_gate_of_the_controller_is_that_of_everything_that_explains_or_predicts() {
    let up = cluster_with("status-gate", &["--feature-gates", "TopologyAwareHints=false"]);
    let auto = json!({"metadata": {"annotations": {"service.kubernetes.io/topology-mode": "Auto"}}});
    patch(&up, "/api/v1/namespaces/shop/services/cart", &auto);
    let said = Said::when(&up, |v| v["services"][0]["inZone"]["planned"].is_f64());
    said.is("default");
    assert_eq!(said.annotations["zoneward.dev/mechanism"], Value::Null, "{}", said.annotations);
    assert!(said.hints.iter().all(|hint| hint[1].is_null()), "{:?}", said.hints);
    assert_eq!(said.endpoints(), [6, 6], "{} {}", said.selected, said.packet);
    fs::remove_dir_all(&up.data).unwrap();
}

#[test]
fn the_printed_fix_is_run_by_kubectl_and_does_what_was_predicted() {
    let up = cluster("status-fix");
    let cart = |value: &Value| value["services"][0].clone();
    let before = report_when(&up, &["-n", "shop"], |v| v["services"][0]["inZone"]["planned"].is_f64());
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
        report_when(&up, &["-n", "shop"], |v| v["services"][0]["inZone"]["planned"] == effect["inZone"]);
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
    report_when(&up, &["-A"], |v| nodes(v)["current"] == 2);
    let output = zoneward(&up, &["status", "-A"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let table = text(&output);
    widths(&table);
    for expected in ["2 current, 4 without a Zoneward node proxy", "shop/cart", "zone-a-0", "p50 156 ms"] {
        assert!(table.contains(expected), "{expected}:\n{table}");
    }
    lease(&up, "zone-b-0", "999999999", "shop/cart");
    let behind = report_when(&up, &["-A"], |v| nodes(v)["behind"] == json!(["zone-b-0"]));
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
    let full = report_when(&up, &["cart", "-n", "shop"], |v| v["detail"]["zones"][0]["mode"] == "same-zone");
    let zone = &full["detail"]["zones"][0];
    assert_eq!((&zone["from"], &zone["endpoints"]), (&json!("zone-a"), &json!(2)));
    assert_eq!(zone["flows"], json!([{"to": "zone-a", "planned": 1.0, "measured": null}]));
    assert!(zone["why"].to_string().contains("zone hints"), "{zone}");
    let full = report_when(&up, &["shop/cart"], |v| {
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
fn observed_demand_is_shown_with_what_it_would_change() {
    let up = cluster("status-observe");
    shop::nodes().for_each(|(node, _)| lease(&up, &node, "1", ""));
    let spill = json!({"metadata": {"annotations": {"zoneward.dev/traffic-distribution": "Spill"}}});
    patch(&up, "/api/v1/namespaces/shop/services/cart", &spill);
    let start = Instant::now();
    let has_rates = |v: &Value| {
        let zones = v["detail"]["spillDemand"]["zones"].as_array();
        zones.is_some_and(|zones| {
            zones.len() == 3 && zones.iter().all(|zone| zone["connectionsPerSecond"].as_f64() > Some(1.0))
        })
    };
    let mut sequence = 0;
    let full = loop {
        sequence += 1;
        report_traffic(&up, sequence, [600, 300, 100]);
        let full = report(&up, &["cart", "-n", "shop"]);
        if has_rates(&full) {
            break full;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{full}");
        std::thread::sleep(Duration::from_secs(1));
    };
    let demand = &full["detail"]["spillDemand"];
    let share = |at: usize| demand["zones"][at]["share"].as_f64().unwrap();
    assert!(share(0) > share(1) && share(1) > share(2), "{demand}");
    assert_eq!(demand["mode"], "observe");
    assert!(demand["inZone"].as_f64() > Some(0.99), "by CPU every zone keeps all: {demand}");
    let load = |name: &str| demand[name].as_f64().unwrap();
    assert!(load("highestLoad") > 1.3 && load("measuredHighestLoad") < 1.2, "{demand}");
    assert!(load("measuredInZone") < 0.9, "{demand}");
    let shown = text(&zoneward(&up, &["status", "cart", "-n", "shop"]));
    widths(&shown);
    for expected in ["Demand of Spill (observe):", "CONNECTIONS/S", "now:", "measured:", "none yet"] {
        assert!(shown.contains(expected), "{expected}:\n{shown}");
    }
    let slices = up.ask("GET", "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices", "").body;
    assert!(slices.contains("zoneward.dev/demand") && !slices.contains("zoneward.dev/keep"), "{slices}");
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
    report_when(&up, &["-n", "shop"], |v| v["services"][0]["inZone"]["planned"].is_f64());
    let address = status_address(&up);
    let get = |path: &str| get(&address, path);
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
    report_when(&up, &["-n", "shop"], |v| v["services"][0]["inZone"]["planned"] == 1.0);
    drop(idle);
    assert_eq!(report(&up, &["-A"])["summary"]["currency"], "USD");
    fs::remove_dir_all(&up.data).unwrap();
}

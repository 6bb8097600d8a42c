//! Zones in the demo's cluster: Envoys in clients' pods give the shares that the plan says, and zones that lose their
//! endpoints cost no request.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use fixtures::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::envoy_live::control::{self, apply, kubectl, said};
use crate::mesh_live::world::folder;
use crate::process::Envoy;

const SAME: &str = "127.0.0.1:18091";
const REQUIRE: &str = "127.0.0.1:18092";
const SPILL: &str = "127.0.0.1:18093";
const EMBEDDED: &str = "127.0.0.1:18094";
/// The first client's pod: `mesh control` runs there, too.
const SERVER: &str = "10.1.1.2:15010";

/// A demo that keeps running.
struct Demo {
    child: Child,
    folder: PathBuf,
    /// Where traffic should go.
    told: Value,
}

impl Demo {
    fn start() -> Self {
        let folder = folder("envoy-demo").join("demo");
        let mut child = Command::new(env!("CARGO_BIN_EXE_zoneward"))
            .args(["demo", "--keep", "--bare", "-o", "json", "--data-dir"])
            .arg(&folder)
            .env("PATH", toolbox::search_path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut text = String::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap) {
            text += &line;
            if line == "}" {
                break;
            }
        }
        Self { child, folder, told: serde_json::from_str(&text).unwrap() }
    }

    /// A command in the namespace of a pod; the program comes next.
    fn within(&self, pod: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
        command.args(["demo", "exec", pod, "--data-dir"]).arg(&self.folder).arg("--");
        command.env("PATH", toolbox::search_path());
        command
    }

    fn kubeconfig(&self) -> PathBuf {
        self.folder.join("data/kubeconfig")
    }

    /// Who answers a client, on a node as `a1`.
    fn asking(&self, node: &str, at: &str, count: usize) -> Child {
        let mut command = self.within(&format!("client-{node}"));
        command.arg(std::env::current_exe().unwrap()).args(["--exact", THIS, "--nocapture"]);
        command.env(CLIENT, format!("{at} {count}"));
        command.stdout(Stdio::piped()).spawn().unwrap()
    }

    fn ask(&self, node: &str, at: &str, count: usize) -> Answers {
        Answers::of(self.asking(node, at, count))
    }

    /// An Envoy beside the client of a node.
    fn envoy(&self, node: &str) -> Envoy {
        let place = format!("node-{node}");
        let outbounds = [SAME, REQUIRE, SPILL].map(|at| at.rsplit(':').next().unwrap());
        let outbounds = [
            format!("{}=envoy-same", outbounds[0]),
            format!("{}=envoy-require", outbounds[1]),
            format!("{}=envoy-spill", outbounds[2]),
        ];
        let mut words = vec!["mesh", "bootstrap", "--from", "client", "--node", &place, "--server", SERVER];
        outbounds.iter().for_each(|outbound| words.extend(["--outbound", outbound]));
        let mut command = self.within(&format!("client-{node}"));
        command.arg(Envoy::program());
        Envoy::start_by(command, &said(&words), "yaml", &["--disable-hot-restart"])
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.child.id().try_into().unwrap()), Signal::SIGINT);
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(self.folder.parent().unwrap());
    }
}

/// The test of this file.
const THIS: &str = "envoy_live::zones::envoys_in_the_demos_pods_keep_to_zones";
/// With this variable, it is a client in a pod, which counts its answers: `ADDRESS COUNT`.
const CLIENT: &str = "ENVOY_TEST_CLIENT";

/// Answers by zone.
#[derive(Debug)]
struct Answers(Value);

impl Answers {
    fn of(child: Child) -> Self {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        Self(text.lines().find_map(|line| serde_json::from_str(line).ok()).unwrap())
    }

    fn failed(&self) -> u64 {
        self.0["failed"].as_u64().unwrap()
    }

    fn of_pod(&self, name: &str) -> u64 {
        let all = self.0.as_object().unwrap().iter();
        all.filter(|(pod, _)| pod.split(' ').next() == Some(name))
            .filter_map(|(_, count)| count.as_u64())
            .sum()
    }

    /// How many came from a zone, as `a`.
    fn from(&self, zone: &str) -> u64 {
        let name = format!("web-{zone}");
        let all = self.0.as_object().unwrap().iter();
        all.filter(|(pod, _)| pod.starts_with(&name)).filter_map(|(_, count)| count.as_u64()).sum()
    }
}

fn service(name: &str, annotation: Option<(&str, &str)>, field: Option<&str>) -> Value {
    let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"app": "web"}, "ports": [
            {"name": "http", "port": 80, "targetPort": 8081, "appProtocol": "http"}]}});
    if let Some((key, value)) = annotation {
        service["metadata"]["annotations"] = json!({key: value});
    }
    if let Some(value) = field {
        service["spec"]["trafficDistribution"] = value.into();
    }
    service
}

/// The server of Envoys, in the first client's pod; or the embedded proxy in another.
struct Control(Child);

impl Control {
    fn start(demo: &Demo) -> Self {
        let mut command = demo.within("client-a1");
        let socket = demo.folder.join("data/api.sock").display().to_string();
        let log = std::fs::File::create(demo.folder.join("logs/control.log")).unwrap();
        command.arg(env!("CARGO_BIN_EXE_zoneward")).args(["mesh", "control", "--api-socket", &socket]);
        command.args(["--listen", SERVER, "--insecure"]).stdout(Stdio::null()).stderr(log);
        Self(command.spawn().unwrap())
    }

    /// The embedded proxy beside a client, with a port for Service envoy-same.
    fn embedded(demo: &Demo, node: &str) -> Self {
        let mut command = demo.within(&format!("client-{node}"));
        let socket = demo.folder.join("data/api.sock").display().to_string();
        let log = std::fs::File::create(demo.folder.join("logs/embedded.log")).unwrap();
        let (port, place) = (EMBEDDED.rsplit(':').next().unwrap(), format!("node-{node}"));
        let outbound = format!("{port}=envoy-same");
        command.arg(env!("CARGO_BIN_EXE_zoneward")).args(["mesh", "proxy", "--api-socket", &socket]);
        command.args(["--from", "client", "--node", &place, "--outbound", &outbound, "--slow-start", "0s"]);
        Self(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn envoys_in_the_demos_pods_keep_to_zones() {
    if let Ok(text) = std::env::var(CLIENT) {
        let (at, count) = text.split_once(' ').unwrap();
        return println!("\n{}", control::count(at.parse().unwrap(), count.parse().unwrap()));
    }
    toolbox::in_own_namespaces!();
    let demo = Demo::start();
    let services = [
        service("envoy-same", None, Some("PreferSameZone")),
        service("envoy-require", Some(("endpointslice.kubernetes.io/same-zone", "Require")), None),
        service("envoy-spill", Some(("zoneward.dev/traffic-distribution", "Spill")), None),
    ];
    apply(&demo.folder, &demo.kubeconfig(), &services);
    let _control = Control::start(&demo);
    let zones = ["a", "b", "c"];
    let _envoys = zones.map(|zone| demo.envoy(&format!("{zone}1")));
    for zone in zones {
        let client = format!("{zone}1");
        let near = |at: &str| {
            let seen = demo.ask(&client, at, 40);
            seen.failed() == 0 && seen.from(zone) == 40
        };
        eventually("the own zone", || near(SAME) && near(REQUIRE));
        eventually("Spill", || demo.ask(&client, SPILL, 20).failed() == 0);
    }
    stay_as_planned(&demo);
    follow_drains_and_weights(&demo);
    told_of_a_loss(&demo);
    not_told_of_a_loss(&demo);
}

/// PreferSameZone and Require stay; Spill's shares are those of the plan.
fn stay_as_planned(demo: &Demo) {
    let spill = &demo.told["expected"]["Spill"];
    for zone in ["a", "b", "c"] {
        let client = format!("{zone}1");
        for at in [SAME, REQUIRE] {
            let seen = demo.ask(&client, at, 200);
            assert_eq!((seen.failed(), seen.from(zone)), (0, 200), "{seen:?}");
        }
        // Zone c has too few endpoints for its nodes, so only its shares are fractions.
        let requests = if zone == "c" { 1_200 } else { 200 };
        let seen = demo.ask(&client, SPILL, requests);
        assert_eq!(seen.failed(), 0, "{seen:?}");
        for to in ["a", "b", "c"] {
            let share = spill[format!("zone-{zone}")][format!("zone-{to}")].as_f64().unwrap_or(0.0);
            let (count, n) = (seen.from(to) as f64, requests as f64);
            // Four standard deviations, and a slot of 256.
            let most = 4.0 * (n * share * (1.0 - share)).sqrt() + n / 256.0;
            println!("Spill {zone} -> {to}: {count} of {n}, planned {share:.3}");
            assert!(
                (count - n * share).abs() <= most,
                "Spill {zone} -> {to}: {count} of {n}, planned {share}"
            );
        }
    }
}

/// A drained zone gets nothing, and capacities and slow starts weigh its endpoints: in Envoy and in the embedded proxy.
fn follow_drains_and_weights(demo: &Demo) {
    let _proxy = Control::embedded(demo, "a2");
    let clients = [("a1", SAME), ("a2", EMBEDDED)];
    let all = |zones: &[&str]| {
        clients.iter().all(|(client, at)| {
            let seen = demo.ask(client, at, 60);
            seen.failed() == 0 && zones.iter().map(|zone| seen.from(zone)).sum::<u64>() == 60
        })
    };
    eventually("the own zone", || all(&["a"]));
    let kubeconfig = demo.kubeconfig().display().to_string();
    said(&["drain-zone", "zone-a", "--over", "1s", "--expires-in", "10m", "--kubeconfig", &kubeconfig]);
    eventually("other zones", || all(&["b", "c"]));
    said(&["undrain-zone", "zone-a", "--kubeconfig", &kubeconfig]);
    eventually("the own zone again", || all(&["a"]));

    let kubectl = |words: &[&str]| kubectl(&demo.kubeconfig(), words);
    kubectl(&["annotate", "pod", "web-a1-0", "zoneward.dev/capacity=7"]);
    // The others have been ready for long.
    for pod in (0..8).map(|i| format!("web-a{}-{}", i / 4 + 1, i % 4)).filter(|pod| pod != "web-a1-1") {
        let condition =
            json!({"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"});
        let ready = json!({"status": {"conditions": [condition]}}).to_string();
        kubectl(&["patch", "pod", &pod, "--subresource=status", "--type=strategic", "-p", &ready]);
    }
    kubectl(&["annotate", "service", "envoy-same", "zoneward.dev/slow-start=1h"]);
    // Eight endpoints: one of capacity 7, one that has just started with a tenth, and six like any other.
    let planned = [("web-a1-0", 7.0 / 13.1), ("web-a1-1", 0.1 / 13.1), ("web-a1-2", 1.0 / 13.1)];
    let requests = 600.0_f64;
    let deviation = || {
        let answers = clients.map(|(client, at)| demo.ask(client, at, requests as usize));
        let pairs = answers.iter().flat_map(|seen| planned.map(|(pod, share)| (seen, pod, share)));
        let far = pairs.filter(|(seen, pod, share)| {
            let most = 5.0 * (requests * share * (1.0 - share)).sqrt() + requests / 256.0;
            (seen.of_pod(pod) as f64 - requests * share).abs() > most
        });
        let far: Vec<String> =
            far.map(|(seen, pod, share)| format!("{pod}: {} of {share:.3}", seen.of_pod(pod))).collect();
        println!("weights: {far:?}");
        far
    };
    eventually("weights", || deviation().is_empty());
    kubectl(&["annotate", "service", "envoy-same", "zoneward.dev/slow-start-"]);
    kubectl(&["annotate", "pod", "web-a1-0", "zoneward.dev/capacity-"]);
}

/// Zone b's pods go from the API while a client asks.
fn told_of_a_loss(demo: &Demo) {
    let asking = demo.asking("b1", SAME, 1_500);
    let pods = ["web-b1-0", "web-b1-1", "web-b1-2", "web-b2-0", "web-b2-1", "web-b2-2"];
    kubectl(&demo.kubeconfig(), &[&["delete", "pod", "--wait=false", "--now"], &pods[..]].concat());
    eventually("other zones for b", || demo.ask("b1", SAME, 40).from("b") == 0);
    let seen = Answers::of(asking);
    println!("while zone b went: {seen:?}");
    assert_eq!(seen.failed(), 0, "{seen:?}");
    let after = demo.ask("b1", SAME, 200);
    assert_eq!(
        (after.failed(), after.from("b"), after.from("a") + after.from("c")),
        (0, 0, 200),
        "{after:?}"
    );
    // Each Service's slices are written by themselves.
    eventually("nothing for Require: the own zone or nothing", || demo.ask("b1", REQUIRE, 20).failed() == 20);
    assert_eq!(demo.ask("a1", SAME, 100).from("a"), 100);
}

/// Zone a's pods stop listening, and nobody tells: priority 1 takes over.
fn not_told_of_a_loss(demo: &Demo) {
    let table = "add table ip gone; add chain ip gone in { type filter hook input priority 0; }; add rule ip gone in tcp dport 8081 reject with tcp reset";
    for pod in (0..8).map(|i| format!("web-a{}-{}", i / 4 + 1, i % 4)) {
        let status = demo.within(&pod).args(["nft", table]).status().unwrap();
        assert!(status.success(), "{pod}");
    }
    let seen = demo.ask("a1", SAME, 500);
    println!("after zone a went: {seen:?}");
    // Zone b has none any more.
    assert_eq!((seen.failed(), seen.from("a"), seen.from("c")), (0, 0, 500), "{seen:?}");
    assert_eq!(demo.ask("a1", REQUIRE, 20).failed(), 20, "Require: the own zone or nothing");
}

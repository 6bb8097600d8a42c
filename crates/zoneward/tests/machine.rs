//! One machine from the outside: `up` with its controllers, `expose`, and `controller` processes that lead in turn.

mod process;

use std::time::{Duration, Instant};

use fixtures::eventually;
use process::{Machine, folder};
use serde_json::{Value, json};

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

fn pod(name: &str, ip: &str) -> Value {
    fixtures::pod("default", name, "web", "n1", &[ip])
}

fn service() -> Value {
    json!({"metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}], "trafficDistribution": "PreferSameZone"}})
}

fn put_web(machine: &Machine) {
    machine.post("/api/v1/nodes", &fixtures::node("n1", "a"));
    machine.post_pod(&pod("p1", "10.1.0.1"));
    machine.post("/api/v1/namespaces/default/services", &service());
}

fn addresses(machine: &Machine, service: &str) -> Vec<String> {
    let list = machine.read(&format!("{SLICES}?labelSelector=kubernetes.io/service-name%3D{service}"));
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let endpoints = items.iter().flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default());
    let mut all: Vec<String> =
        endpoints.filter_map(|e| e["addresses"][0].as_str().map(str::to_owned)).collect();
    all.sort();
    all
}

#[test]
fn up_writes_slices_and_goes_on_after_a_kill() {
    let mut machine = Machine::up(&folder("slices"), &[]);
    put_web(&machine);
    eventually("the slice", || addresses(&machine, "web") == ["10.1.0.1"]);
    machine.kill();
    let mut machine = machine.again(&[]);
    let began = Instant::now();
    machine.post_pod(&pod("p2", "10.1.0.2"));
    eventually("the second pod", || addresses(&machine, "web") == ["10.1.0.1", "10.1.0.2"]);
    // The Lease of the killed process is not waited for: it has the same name.
    assert!(began.elapsed() < Duration::from_secs(14), "{:?}", began.elapsed());
    let cidr = machine.read("/apis/networking.k8s.io/v1/servicecidrs/kubernetes");
    assert_eq!(cidr["metadata"]["finalizers"][0], "networking.k8s.io/service-cidr-finalizer");
    assert_eq!(machine.stop(), Some(0));
    machine.remove();
}

#[test]
fn expose_registers_processes_replaces_them_and_takes_them_away() {
    let mut machine = Machine::up(&folder("expose"), &[]);
    let both = [
        "--port",
        "80",
        "--to",
        "10.0.0.7:8080@a",
        "--to",
        "10.0.1.7:8080@b",
        "--traffic-distribution",
        "PreferSameZone",
    ];
    let shown = machine.expose(&[&both[..], &["--dry-run"]].concat());
    assert_eq!((shown["dryRun"].clone(), shown["changed"].clone()), (json!(true), json!(true)));
    assert!(addresses(&machine, "shop").is_empty(), "nothing was written");
    let made = machine.expose(&both);
    assert_eq!(addresses(&machine, "shop"), ["10.0.0.7", "10.0.1.7"]);
    assert_eq!(made["slices"][0]["endpoints"][0]["hints"]["forZones"][0]["name"], "a");
    assert!(made["service"]["spec"]["clusterIP"].as_str().is_some_and(|ip| ip.starts_with("10.96.")));
    let owner = &made["slices"][0]["metadata"]["ownerReferences"][0]["uid"];
    assert_eq!(*owner, made["service"]["metadata"]["uid"]);
    assert_eq!(machine.expose(&both)["changed"], json!(false), "again is nothing");
    let ip = made["service"]["spec"]["clusterIP"].as_str().unwrap();
    let shown = machine.zoneward(&["expose", "shop", "--port", "80", "--to", "10.0.0.8:9090@a"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains(&format!("Cluster IP of default/shop: {ip}")), "{shown}");
    assert_eq!(addresses(&machine, "shop"), ["10.0.0.8"]);
    // The controller leaves the endpoints alone, and a restart keeps them.
    machine.kill();
    let mut machine = machine.again(&[]);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(addresses(&machine, "shop"), ["10.0.0.8"]);
    machine.expose(&["--remove"]);
    assert!(addresses(&machine, "shop").is_empty());
    assert_eq!(machine.read("/api/v1/namespaces/default/services/shop")["code"], 404);
    let refused = machine.zoneward(&["expose", "shop", "--port", "80", "--to", "127.0.0.1:80"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("loopback"));
    assert_eq!(machine.stop(), Some(0));
    machine.remove();
}

#[test]
fn of_two_controllers_one_leads_and_the_other_takes_over() {
    let mut machine = Machine::up(&folder("lead"), &["--no-controllers"]);
    let quick = [
        "--leader-elect-lease-duration=3s",
        "--leader-elect-renew-deadline=2s",
        "--leader-elect-retry-period=200ms",
        "--bind-address=127.0.0.1:0",
    ];
    let mut first = machine.controller(&quick);
    eventually("the first leads", || machine.holder().is_some_and(|holder| !holder.is_empty()));
    let leader = machine.holder();
    let mut second = machine.controller(&quick);
    put_web(&machine);
    eventually("the slice", || addresses(&machine, "web") == ["10.1.0.1"]);
    assert_eq!(machine.holder(), leader);
    first.kill();
    machine.post_pod(&pod("p2", "10.1.0.2"));
    eventually("the second leads and writes", || addresses(&machine, "web") == ["10.1.0.1", "10.1.0.2"]);
    assert_ne!(machine.holder(), leader);
    assert_eq!(second.stop(), Some(0), "it stops cleanly");
    assert_eq!(machine.holder().as_deref(), Some(""), "and hands over");
    assert_eq!(machine.stop(), Some(0));
    machine.remove();
}

#[test]
fn a_controller_says_that_it_is_ready_and_shows_its_metrics() {
    let mut machine = Machine::up(&folder("health"), &["--no-controllers"]);
    let mut controller = machine.controller(&["--bind-address=127.0.0.1:0", "--log-format=json"]);
    let address = controller.served_at();
    eventually("it is ready", || process::http(&address, "/readyz").starts_with("HTTP/1.1 200"));
    eventually("it leads", || {
        process::http(&address, "/metrics")
            .contains("leader_election_master_status{name=\"zoneward-controller\"} 1")
    });
    let metrics = process::http(&address, "/metrics");
    assert!(metrics.contains("# TYPE endpoint_slice_controller_num_endpoint_slices gauge"), "{metrics}");
    assert!(process::http(&address, "/livez").starts_with("HTTP/1.1 200"));
    assert_eq!(machine.stop(), Some(0));
    assert_eq!(controller.stop(), Some(0));
    machine.remove();
}

/// The path of the one slice of Service `web`.
fn web_slice(machine: &Machine) -> String {
    let list = machine.read(&format!("{SLICES}?labelSelector=kubernetes.io/service-name%3Dweb"));
    format!("{SLICES}/{}", list["items"][0]["metadata"]["name"].as_str().unwrap())
}

/// What Kubernetes' own controller does to slices that carry hints which it would not give.
fn undo_hints(machine: &Machine) {
    let slice = web_slice(machine);
    let mut endpoints = machine.read(&slice)["endpoints"].clone();
    endpoints[0].as_object_mut().unwrap().remove("hints");
    machine.merge_as("kube-controller-manager", &slice, &json!({"endpoints": endpoints}));
}

#[test]
fn beside_kubernetes_own_controller_it_stops_and_says_both_ways_out() {
    let mut machine = Machine::up(&folder("rival"), &["--no-controllers"]);
    put_web(&machine);
    let first = machine.controller(&["--bind-address=127.0.0.1:0"]);
    eventually("the slice", || addresses(&machine, "web") == ["10.1.0.1"]);
    let hinted = |machine: &Machine| !machine.read(&web_slice(machine))["endpoints"][0]["hints"].is_null();
    // Whoever edits by hand is no rival.
    machine.merge_as("kubectl-edit", &web_slice(&machine), &json!({"endpoints": []}));
    eventually("it comes back", || addresses(&machine, "web") == ["10.1.0.1"] && hinted(&machine));
    undo_hints(&machine);
    let (code, said) = first.ended();
    assert_eq!(code, Some(1), "{said}");
    for words in
        ["kube-controller-manager", "--controllers=*,-endpointslice-controller", "--coexist", "default/web-"]
    {
        assert!(said.contains(words), "{words} is not in {said}");
    }
    assert_eq!(machine.holder().as_deref(), Some(""), "somebody else may lead");
    assert!(!hinted(&machine), "the other one's word stands");

    // What it wrote before we come is no sign that it is still at work.
    let mut second = machine.controller(&["--bind-address=127.0.0.1:0", "--coexist"]);
    let ours = || {
        let list = machine.read(&format!("{SLICES}?labelSelector=zoneward.dev/service-name%3Dweb"));
        list["items"].as_array().is_some_and(|items| items.len() == 1)
    };
    eventually("a slice of our own beside", ours);
    machine.merge_as(
        "kube-controller-manager",
        &web_slice(&machine),
        &json!({"metadata": {"labels": {"x": "y"}}}),
    );
    std::thread::sleep(Duration::from_millis(500));
    assert!(second.lives() && ours(), "with --coexist it goes on");
    machine.post_pod(&pod("p2", "10.1.0.2"));
    eventually("it writes on", || {
        let list = machine.read(&format!("{SLICES}?labelSelector=zoneward.dev/service-name%3Dweb"));
        list["items"][0]["endpoints"].as_array().is_some_and(|endpoints| endpoints.len() == 2)
    });
    assert_eq!(addresses(&machine, "web"), ["10.1.0.1"], "theirs are left alone");
    assert_eq!(second.stop(), Some(0));

    let mut third = machine.controller(&["--bind-address=127.0.0.1:0"]);
    eventually("it takes the slices over", || addresses(&machine, "web") == ["10.1.0.1", "10.1.0.2"]);
    assert_eq!(third.stop(), Some(0));
    assert_eq!(machine.stop(), Some(0));
    machine.remove();
}

#[test]
fn up_says_that_it_is_not_ready_when_another_controller_writes_its_slices() {
    let mut machine = Machine::up(&folder("rival-up"), &[]);
    put_web(&machine);
    eventually("the slice", || addresses(&machine, "web") == ["10.1.0.1"]);
    undo_hints(&machine);
    eventually("it is not ready", || {
        let answer = process::http(&machine.served_at, "/readyz");
        answer.contains("[-]endpointslices failed")
            && answer.contains("--controllers=*,-endpointslice-controller")
    });
    assert_eq!(machine.stop(), Some(0));
    machine.remove();
}

#[test]
fn up_shows_the_health_and_metrics_of_its_api_and_its_controllers() {
    let mut machine = Machine::up(&folder("oversight"), &[]);
    let ask = |path: &str| process::http(&machine.served_at, path);
    put_web(&machine);
    eventually("the slice", || addresses(&machine, "web") == ["10.1.0.1"]);
    eventually("it is ready", || ask("/readyz").starts_with("HTTP/1.1 200"));
    let checks = ask("/readyz?verbose");
    assert!(checks.contains("[+]api ok") && checks.contains("[+]endpointslices ok"), "{checks}");
    assert!(ask("/healthz").starts_with("HTTP/1.1 200") && ask("/livez").starts_with("HTTP/1.1 200"));
    let lines = [
        "leader_election_master_status{name=\"zoneward-controller\"} 1",
        "endpoint_slice_controller_num_endpoint_slices 1",
        "# TYPE zoneward_api_revision gauge",
        "zoneward_api_watchers ",
    ];
    for line in lines {
        eventually(line, || ask("/metrics").contains(line));
    }
    assert_eq!(machine.stop(), Some(0));
    machine.remove();
}

#[test]
fn an_address_for_metrics_that_is_taken_is_said_before_anything_begins() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let data = folder("taken");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_zoneward"));
    command.args(["up", "--no-node", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&data);
    let output =
        command.args(["--metrics-bind-address", &taken.local_addr().unwrap().to_string()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("--metrics-bind-address"), "{text}");
    std::fs::remove_dir_all(&data).unwrap();
}

/// In a user and network namespace of its own: this machine's kernel rules are not touched.
#[test]
fn the_node_proxy_is_a_child_that_comes_back_alone() {
    let data = folder("node");
    let mut machine = Machine::up_in_namespace(&data);
    machine.expose(&["--port", "80", "--to", "10.0.0.7:8080@a"]);
    let lease = || {
        let list = machine.read("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases");
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.iter().any(|l| l["metadata"]["labels"]["zoneward.dev/component"] == "node-proxy")
    };
    eventually("the node proxy reports", lease);
    let first = machine.children();
    assert_eq!(first.len(), 1, "{first:?}");
    process::signal("-KILL", first[0]);
    eventually("another one is there", || {
        let now = machine.children();
        now.len() == 1 && now != first
    });
    let second = machine.children()[0];
    machine.kill();
    eventually("it ends with its parent", || !process::lives(second));
    let mut machine = Machine::up_in_namespace(&data);
    eventually("a child", || machine.children().len() == 1);
    let third = machine.children()[0];
    assert_eq!(machine.stop(), Some(0));
    assert!(!process::lives(third), "it is stopped before us");
    machine.remove();
}

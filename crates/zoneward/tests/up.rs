//! `zoneward up` from the outside: it says where its kubeconfig is, answers, keeps what it acknowledged, and stops.

use crate::started;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use fixtures::eventually;
use serde_json::{Value, json};
use started::{Up, folder};
use store::engine::{Engine, EngineOptions, Expect, ResourceId, StoreKey};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[test]
fn it_answers_stops_cleanly_and_keeps_what_was_written() {
    let data = folder("clean");
    let mut up = Up::start(&data, &[]);
    assert_eq!(Path::new(&up.kubeconfig), data.join("kubeconfig"));
    assert!(fs::read_to_string(&up.kubeconfig).unwrap().contains("https://127.0.0.1:"));
    assert_eq!(up.ask("GET", "/healthz", "").code, 200);
    let services = up.ask("GET", "/api/v1/services", "").body;
    assert!(services.contains("\"10.96.0.1\""), "{services}");
    assert_eq!(up.ask("POST", CONFIG_MAPS, r#"{"metadata":{"name":"kept"}}"#).code, 201);
    assert_eq!(up.signal("-TERM"), Some(0));
    let mut again = Up::start(&data, &[]);
    assert_eq!(again.ask("GET", &format!("{CONFIG_MAPS}/kept"), "").code, 200);
    assert_eq!(again.signal("-INT"), Some(0));
    fs::remove_dir_all(&data).unwrap();
}

/// As kube-apiserver does, beside the port of its own.
#[test]
fn the_api_serves_the_metrics_of_the_process() {
    let data = folder("metrics");
    let up = Up::start(&data, &[]);
    eventually("the metrics", || up.ask("GET", "/metrics", "").code == 200);
    let metrics = up.ask("GET", "/metrics", "").body;
    assert!(metrics.contains("\nzoneward_api_watchers "), "{metrics}");
    assert_eq!(up.ask("POST", "/metrics", "").code, 405);
    let paths = up.ask("GET", "/", "").body;
    assert!(paths.contains("\"/metrics\""), "{paths}");
    drop(up);
    fs::remove_dir_all(&data).unwrap();
}

#[test]
fn what_it_acknowledged_survives_a_kill() {
    let data = folder("killed");
    let mut up = Up::start(&data, &["--load-balancer-range", "192.0.2.0/28"]);
    let service = r#"{"metadata":{"name":"lb"},"spec":{"type":"LoadBalancer","ports":[{"port":80}]}}"#;
    let made = up.ask("POST", "/api/v1/namespaces/default/services", service).body;
    assert!(made.contains("192.0.2.1"), "{made}");
    assert_eq!(up.signal("-KILL"), None);
    let again = Up::start(&data, &[]);
    let found = again.ask("GET", "/api/v1/namespaces/default/services/lb", "").body;
    assert!(found.contains("192.0.2.1"), "{found}");
    drop(again);
    fs::remove_dir_all(&data).unwrap();
}

/// The folder of a small file system, in the process that has one.
const SMALL_DISK: &str = "ZONEWARD_SMALL_DISK";

#[test]
fn deletes_and_a_restart_work_on_a_full_disk() {
    if let Ok(disk) = std::env::var(SMALL_DISK) {
        return delete_and_restart(Path::new(&disk));
    }
    // This test again, in a mount namespace with a tmpfs.
    let disk = folder("full");
    fs::create_dir_all(&disk).unwrap();
    let script = "mount -t tmpfs -o size=100m tmpfs \"$0\" && exec \"$1\" --exact \"$2\" --nocapture";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(&disk)
        .arg(std::env::current_exe().unwrap())
        .arg(toolbox::this_test!())
        .env(SMALL_DISK, &disk)
        .output()
        .unwrap();
    fs::remove_dir_all(&disk).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let is_passed = output.status.success() && text.contains("1 passed");
    assert!(is_passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// Takes all space that is left.
fn fill(disk: &Path) {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(disk.join("filler")).unwrap();
    while file.write_all(&[b'x'; 4_096]).is_ok() {}
}

fn delete_and_restart(disk: &Path) {
    let data = disk.join("data");
    // The same after each restart.
    let listen = toolbox::ports::free_port().to_string();
    let listen = ["--listen", listen.as_str()];
    let mut up = Up::start(&data, &listen);
    up.post("/api/v1/namespaces", &json!({"metadata": {"name": "old"}}));
    for number in 0..200 {
        let object = json!({"metadata": {"name": format!("c{number}")}, "data": {"x": "x".repeat(8_000)}});
        up.post(CONFIG_MAPS, &object);
        up.post("/api/v1/namespaces/old/configmaps", &object);
    }
    let held = json!({"metadata": {"name": "held", "finalizers": ["example.com/a", "example.com/b"]}});
    up.post(CONFIG_MAPS, &held);
    fill(disk);
    let object = json!({"metadata": {"name": "other"}}).to_string();
    let refused = |up: &Up| {
        let answer = up.ask("POST", CONFIG_MAPS, &object);
        assert_eq!(answer.code, 500, "{}", answer.body);
        assert!(answer.body.contains("the store's disk is full"), "{}", answer.body);
    };
    for number in 0..200 {
        if number % 50 == 0 {
            refused(&up);
            fill(disk);
            // Once as a crash, once as usual.
            let signal = if number == 50 { "-TERM" } else { "-KILL" };
            up.signal(signal);
            up = Up::start(&data, &listen);
            refused(&up);
        }
        let deleted = up.ask("DELETE", &format!("{CONFIG_MAPS}/c{number}"), "");
        assert_eq!(deleted.code, 200, "c{number}: {}", deleted.body);
    }
    let held = format!("{CONFIG_MAPS}/held");
    assert_eq!(up.ask("DELETE", &held, "").code, 200);
    // Objects that are being deleted are no place for more data.
    let mut larger = up.ask("GET", &held, "").json();
    larger["data"] = json!({"x": "x".repeat(100_000)});
    for left in [&["example.com/a", "example.com/b"][..], &["example.com/b"]] {
        larger["metadata"]["finalizers"] = json!(left);
        assert_eq!(up.ask("PUT", &held, &larger.to_string()).code, 500);
    }
    for left in [&["example.com/b"][..], &[]] {
        let mut object = up.ask("GET", &held, "").json();
        object["metadata"]["finalizers"] = json!(left);
        let answer = up.ask("PUT", &held, &object.to_string());
        assert_eq!(answer.code, 200, "{}", answer.body);
    }
    assert_eq!(up.ask("GET", &held, "").code, 404);
    assert_eq!(up.ask("DELETE", "/api/v1/namespaces/old", "").code, 200);
    let end = Instant::now() + Duration::from_secs(60);
    while up.ask("GET", "/api/v1/namespaces/old", "").code != 404 {
        assert!(
            Instant::now() < end,
            "still there: {} with {}",
            up.ask("GET", "/api/v1/namespaces/old", "").body,
            up.ask("GET", "/api/v1/namespaces/old/configmaps?limit=1", "").body
        );
        // Other programs take what is free at any moment.
        fill(disk);
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::remove_file(disk.join("filler")).unwrap();
    assert_eq!(up.ask("POST", CONFIG_MAPS, &object).code, 201);
    assert_eq!(up.signal("-TERM"), Some(0));
}

#[test]
fn wrong_use_is_said_at_once() {
    let data = folder("wrong");
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
        command.args(["up", "--data-dir"]).arg(&data).args(words).output().unwrap()
    };
    assert_eq!(run(&["--no-node", "--node-config", "x"]).status.code(), Some(2), "no node to configure");
    let two = run(&["--no-node", "--service-cluster-ip-range", "10.0.0.0/16,10.1.0.0/16"]);
    assert_eq!(two.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&two.stderr).contains("one per family"));
    assert!(!data.exists(), "nothing was made");
}

#[test]
fn the_audit_log_is_complete_after_the_stop() {
    let data = folder("audit");
    fs::create_dir_all(&data).unwrap();
    let (log, policy) = (data.join("audit.log"), data.join("policy.yaml"));
    fs::write(
        &policy,
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Request\n  verbs: [create]\n  resources:\n  \
         - group: ''\n    resources: [configmaps]\n",
    )
    .unwrap();
    let words = ["--audit-log-path", log.to_str().unwrap(), "--audit-policy-file", policy.to_str().unwrap()];
    let mut up = Up::start(&data, &words);
    for count in 0..20 {
        let body = json!({"metadata": {"name": format!("c{count}")}}).to_string();
        assert_eq!(up.ask("POST", CONFIG_MAPS, &body).code, 201);
    }
    assert_eq!(up.signal("-TERM"), Some(0));
    let text = fs::read_to_string(&log).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let done = events.iter().filter(|event| event["stage"] == "ResponseComplete");
    let names: Vec<&str> =
        done.map(|event| event["requestObject"]["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!((names.len(), names.last()), (20, Some(&"c19")), "{text}");
    assert_eq!(events[0]["user"]["username"], "system:zoneward");
    fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None, verb: [get]}]\n")
        .unwrap();
    let wrong = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(["up", "--no-node", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(&data)
        .args(words)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(1), "{said}");
    assert!(said.contains("rules[0].verb: unknown field"), "{said}");
    fs::remove_dir_all(&data).unwrap();
}

#[test]
fn lost_audit_events_are_in_the_log() {
    let data = folder("lost");
    fs::create_dir_all(&data).unwrap();
    let (mut up, _) = Up::start_logged_with(&data, &["--audit-log-path", "/dev/full"]);
    assert_eq!(up.ask("GET", "/version", "").code, 200, "the API goes on");
    assert_eq!(up.signal("-TERM"), Some(0));
    let log = fs::read_to_string(data.join("log")).unwrap();
    assert!(log.contains("audit events were lost"), "{log}");
    fs::remove_dir_all(&data).unwrap();
}

const SERVICES: &str = "/api/v1/namespaces/default/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";

fn cluster_ip(up: &Up, name: &str) -> Value {
    up.ask("GET", &format!("{SERVICES}/{name}"), "").json()["spec"]["clusterIP"].clone()
}

#[test]
fn its_own_service_comes_back_and_its_address_is_given_to_no_other() {
    let data = folder("own-service");
    let mut up = Up::start(&data, &[]);
    assert_eq!(up.ask("DELETE", &format!("{SERVICES}/kubernetes"), "").code, 200);
    let taker = r#"{"metadata":{"name":"taker"},"spec":{"clusterIP":"10.96.0.1","ports":[{"port":80}]}}"#;
    let refused = up.ask("POST", SERVICES, taker);
    assert_eq!(refused.code, 422, "{}", refused.body);
    assert!(
        refused.body.contains("10.96.0.1 is reserved for Service default/kubernetes"),
        "{}",
        refused.body
    );
    eventually("the Service is back", || cluster_ip(&up, "kubernetes") == "10.96.0.1");
    assert_eq!(up.ask("DELETE", &format!("{SERVICES}/kubernetes"), "").code, 200);
    assert_eq!(up.signal("-TERM"), Some(0));
    let again = Up::start(&data, &[]);
    assert_eq!(cluster_ip(&again, "kubernetes"), "10.96.0.1");
    drop(again);
    fs::remove_dir_all(&data).unwrap();
}

/// Data as an older version could leave it: the API's Service deleted, its address given to another.
fn give_the_address_away(data: &Path) {
    let engine = Engine::open(&data.join("store"), EngineOptions::default()).unwrap();
    let taker = json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "taker", "namespace": "default",
        "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]}});
    let key = |kind: &str, namespace: &str, name: &str| {
        StoreKey::new(ResourceId(store::kinds::named(kind).unwrap().id), namespace, name)
    };
    let (own, other) = (key("Service", "default", "kubernetes"), key("Service", "default", "taker"));
    let lock = key("IPAddress", "", "10.96.0.1");
    let mut held: Value = serde_json::from_slice(&engine.get(&lock).unwrap().unwrap().json).unwrap();
    held["spec"]["parentRef"]["name"] = "taker".into();
    engine
        .write(move |txn| {
            txn.delete(&own, None, Expect::Present)?;
            txn.put(other, taker.to_string().into(), Expect::Absent)?;
            txn.put(lock, held.to_string().into(), Expect::Present)
        })
        .unwrap();
}

#[test]
fn old_data_whose_address_is_given_away_is_found_started_with_and_repaired() {
    let data = folder("given-away");
    let mut up = Up::start(&data, &[]);
    assert_eq!(up.signal("-TERM"), Some(0));
    give_the_address_away(&data);
    let check = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
        command.args(["store", "check", "--data-dir"]).arg(&data).output().unwrap()
    };
    let found = check();
    let said = String::from_utf8_lossy(&found.stdout).into_owned();
    assert_eq!(found.status.code(), Some(1), "{said}");
    for part in ["Service default/taker", "10.96.0.1", "kubectl delete service taker -n default"] {
        assert!(said.contains(part), "{part}: {said}");
    }

    let (mut up, log) = Up::start_logged(&data);
    assert!(log.contains("reserved for Service default/kubernetes"), "{log}");
    let own = cluster_ip(&up, "kubernetes");
    assert!(own.is_string() && own != "10.96.0.1", "{own}");
    assert_eq!(up.ask("DELETE", &format!("{SERVICES}/taker"), "").code, 200);
    assert_eq!(up.ask("DELETE", &format!("{SERVICES}/kubernetes"), "").code, 200);
    eventually("the Service has its address", || cluster_ip(&up, "kubernetes") == "10.96.0.1");
    let lock = up.ask("GET", &format!("{ADDRESSES}/10.96.0.1"), "").json();
    assert_eq!(lock["spec"]["parentRef"]["name"], "kubernetes");
    assert_eq!(up.signal("-TERM"), Some(0));
    let sound = check();
    assert_eq!(sound.status.code(), Some(0), "{}", String::from_utf8_lossy(&sound.stdout));
    fs::remove_dir_all(&data).unwrap();
}

#[test]
fn a_feature_gate_that_is_off_drops_its_field() {
    let data = folder("gate");
    let up = Up::start(&data, &["--feature-gates", "ServiceTrafficDistribution=false"]);
    let service = r#"{"metadata":{"name":"web"},"spec":{"trafficDistribution":"PreferSameZone","ports":[{"port":80}]}}"#;
    let made = up.ask("POST", SERVICES, service);
    assert_eq!((made.code, made.json()["spec"].get("trafficDistribution")), (201, None), "{}", made.body);
    drop(up);
    fs::remove_dir_all(&data).unwrap();
}

/// The attack: what a gateway that was taken over finds. It has a user of its own, one capability and its own rights.
#[test]
fn gateway_runs_without_privileges_and_with_its_own_rights_only() {
    let data = folder("privileges");
    let port = toolbox::ports::free_port().port();
    let up = Up::start(&data, &["--mesh-bind", "127.0.0.1", "--mesh-metrics-bind-address", "127.0.0.1:0"]);
    let gateways = "/apis/zoneward.dev/v1alpha1/namespaces/default/meshgateways";
    let listeners = json!([{"name": "https", "port": port, "protocol": "HTTPS", "hostname": "a.example",
        "tls": {"certificateRef": {"name": "own"}}}]);
    up.post(
        gateways,
        &json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway",
        "metadata": {"name": "edge"}, "spec": {"listeners": listeners}}),
    );
    for name in ["own", "other"] {
        up.post("/api/v1/namespaces/default/secrets", &json!({"metadata": {"name": name}}));
    }
    let child = eventually("the gateway", || {
        let children =
            fs::read_to_string(format!("/proc/{0}/task/{0}/children", up.id())).unwrap_or_default();
        let tasks = fs::read_dir(format!("/proc/{}/task", up.id())).ok()?;
        let all =
            tasks.flatten().map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
        let children = all.fold(children, |all, more| all + " " + &more);
        let is_gateway = |id: &&str| {
            fs::read(format!("/proc/{id}/cmdline"))
                .is_ok_and(|line| line.windows(9).any(|part| part == b"--gateway"))
        };
        children.split_whitespace().find(is_gateway).map(str::to_owned)
    });
    let line = |name: &str| {
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap();
        status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
    };
    let is_root = fs::metadata(&data).unwrap();
    if std::os::unix::fs::MetadataExt::uid(&is_root) == 0 {
        eventually("the drop of privileges", || line("Uid:").starts_with("65532"));
        eventually("the drop of capabilities", || line("CapEff:") == "0000000000000400");
        assert_eq!(line("Uid:"), "65532\t65532\t65532\t65532");
        assert_eq!((line("Groups:").as_str(), line("NoNewPrivs:").as_str()), ("", "1"));
        assert_eq!(line("CapBnd:"), "0000000000000400");
    }
    let command = fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap();
    let words: Vec<&str> = command.split('\0').collect();
    let at = words.iter().position(|word| *word == "--api-socket").unwrap();
    let socket = Path::new(words[at + 1]).to_owned();
    assert_ne!(socket, data.join("api.sock"));
    let ask = |method: &str, path: &str| started::ask_socket(&socket, method, path, "").code;
    let named = |name: &str| {
        format!("/api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3D{name}&limit=1")
    };
    eventually("its rights", || ask("GET", &named("own")) == 200);
    assert_eq!(ask("GET", "/api/v1/services"), 200);
    for (method, path) in [
        ("GET", named("other")),
        ("GET", "/api/v1/secrets".to_owned()),
        ("GET", "/api/v1/namespaces/default/secrets".to_owned()),
        ("GET", "/api/v1/namespaces/default/secrets/other".to_owned()),
        ("DELETE", "/api/v1/namespaces/default/services/kubernetes".to_owned()),
        ("DELETE", format!("{gateways}/edge")),
        ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles".to_owned()),
        ("POST", "/api/v1/namespaces/kube-system/serviceaccounts/default/token".to_owned()),
    ] {
        assert_eq!(ask(method, &path), 403, "{method} {path}");
    }
    // A clean stop removes its socket.
    let mut up = up;
    assert_eq!(up.signal("-TERM"), Some(0));
    assert!(!socket.exists());
    fs::remove_dir_all(&data).unwrap();
}

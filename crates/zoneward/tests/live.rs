//! Commands without `-f` on a live API: the embedded one, started here, asked by its kubeconfig.

use crate::started;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use started::{Up, folder};

fn zoneward(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(args)
        .env_remove("KUBECONFIG")
        .env("HOME", env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap()
}

fn kubectl(up: &Up, args: &[&str]) -> String {
    let output =
        toolbox::command("kubectl").args(["--kubeconfig", &up.kubeconfig]).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Three zones with a node each; `shop/cart` with three pods in zone-a and one in zone-b, more than a page of pods in all.
fn fill(up: &Up) {
    up.post("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}}));
    for (at, zone) in ["zone-a", "zone-b", "zone-c"].iter().enumerate() {
        let name = format!("secret-node-{at}");
        up.post(
            "/api/v1/nodes",
            &json!({"metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}, "annotations": {"secret-note": "x"}},
                "status": {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}}),
        );
    }
    up.post(
        "/api/v1/namespaces/shop/services",
        &json!({"metadata": {"name": "secret-cart"}, "spec": {"selector": {"secret-app": "secret-cart"}, "ports": [{"name": "http", "port": 80}]}}),
    );
    let cart = up.ask("GET", "/api/v1/namespaces/shop/services/secret-cart", "").json();
    let uid = cart["metadata"]["uid"].as_str().unwrap();
    let mut endpoints = Vec::new();
    for at in 0..4 {
        let (name, ip, node) =
            (format!("secret-pod-{at}"), format!("10.244.0.{}", at + 10), usize::from(at == 3));
        let pod = json!({"metadata": {"name": name, "labels": {"secret-app": "secret-cart", "pod-template-hash": "5d9"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "secret-cart-5d9", "uid": "1", "controller": true}]},
            "spec": {"nodeName": format!("secret-node-{node}"),
                "containers": [{"name": "main", "image": "secret-image", "env": [{"name": "PASSWORD", "value": "secret-word"}]}]},
            "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [{"type": "Ready", "status": "True"}]}});
        up.post("/api/v1/namespaces/shop/pods", &pod);
        endpoints.push(
            json!({"addresses": [ip], "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("secret-node-{node}"), "zone": if node == 1 { "zone-b" } else { "zone-a" },
            "targetRef": {"kind": "Pod", "namespace": "shop", "name": name}}),
        );
    }
    up.post(
        "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices",
        &json!({"metadata": {"name": "secret-cart-abcde", "labels": {"kubernetes.io/service-name": "secret-cart",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "secret-cart", "uid": uid, "controller": true}]},
            "addressType": "IPv4", "ports": [{"name": "http", "protocol": "TCP", "port": 80}], "endpoints": endpoints}),
    );
    for at in 0..520 {
        let pod = json!({"metadata": {"name": format!("idle-{at:03}")}, "spec": {"containers": [{"name": "main", "image": "i"}]}});
        up.post("/api/v1/namespaces/shop/pods", &pod);
    }
}

/// Figures of a what-if without names.
fn figures(answer: &Value) -> Vec<(f64, f64)> {
    let mechanisms = answer["services"][0]["mechanisms"].as_array().unwrap();
    // The last bits depend on the order of nodes.
    let rounded = |value: &Value| (value.as_f64().unwrap() * 1e6).round();
    let pair = |m: &Value| (rounded(&m["in_zone_pct"]), rounded(&m["max_overload_pct"]));
    mechanisms.iter().map(pair).collect()
}

#[test]
fn what_if_plan_trace_and_capture_read_the_live_cluster() {
    let data = folder("live");
    let up = Up::start(&data, &["--no-controllers"]);
    fill(&up);
    let cluster = ["--kubeconfig", up.kubeconfig.as_str()];
    let ask = |args: &[&str]| zoneward(&[args, &cluster[..]].concat());

    let answer = json_of(&ask(&["simulate", "what-if", "-n", "shop", "-o", "json"]));
    assert_eq!(answer["services"][0]["service"], "shop/secret-cart", "{answer}");
    assert_eq!(answer["services"][0]["endpoints"], json!({"zone-a": 3, "zone-b": 1}));
    let yaml = answer["services"][0]["recommendation"]["yaml"].as_str().unwrap();
    assert!(yaml.contains("kind: Deployment\nmetadata:\n  name: secret-cart\n"), "{yaml}");

    // Without -n the context's namespace counts, as in kubectl.
    let default = json_of(&ask(&["simulate", "what-if", "-o", "json"]));
    assert!(!default.to_string().contains("secret-cart"), "{default}");
    let plan = json_of(&ask(&["plan", "slices", "-A", "-o", "json"]));
    assert_eq!(plan["notices"], json!([]), "{plan}");
    let trace = json_of(&ask(&["trace", "select", "-n", "shop", "--node", "secret-node-0", "-o", "json"]));
    assert_eq!(trace[0]["cluster"]["endpoints"].as_array().unwrap().len(), 4, "{trace}");

    // All pods, although they are more than a page.
    let file = up.data.join("snapshot.yaml");
    let file = file.to_str().unwrap();
    assert!(ask(&["simulate", "capture", "-A", file]).status.success());
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains("idle-519") && text.contains("secret-cart"), "names are not hashed");
    for left_out in ["secret-image", "secret-word", "secret-note", "managedFields"] {
        assert!(!text.contains(left_out), "{left_out} is in the snapshot");
    }
    let again = json_of(&zoneward(&["simulate", "what-if", "-f", file, "-n", "shop", "-o", "json"]));
    assert_eq!(again["services"], answer["services"]);

    let hashed = |salt: &[&str]| {
        let output =
            ask(&[&["simulate", "capture", "-n", "shop", "--hash-names", "-o", "json"], salt].concat());
        String::from_utf8(output.stdout).unwrap()
    };
    let one = hashed(&["--salt", "pepper"]);
    for name in ["secret", "shop", "idle", "zone-a\"", "10.244.0.", "10.96."] {
        assert!(!one.contains(name), "{name} is in {one}");
    }
    assert_eq!(one, hashed(&["--salt", "pepper"]));
    assert_ne!(one, hashed(&["--salt", "salt"]));
    assert_ne!(hashed(&[]), hashed(&[]), "without a salt each capture has its own");
    fs::write(file, one).unwrap();
    let anonymous = json_of(&zoneward(&["simulate", "what-if", "-f", file, "-o", "json"]));
    assert_eq!(figures(&anonymous), figures(&answer), "decisions are the same");
    let yaml = anonymous["services"][0]["recommendation"]["yaml"].as_str().unwrap();
    assert!(yaml.contains("kind: Deployment") && !yaml.contains("FILL-IN"), "{yaml}");

    // What is recommended for the Service is a patch that kubectl takes.
    let tried = ["simulate", "what-if", "-n", "shop", "--set", "secret-cart=Require", "-o", "json"];
    let tried = json_of(&ask(&tried));
    let yaml = tried["services"][0]["recommendation"]["yaml"].as_str().unwrap();
    let (setting, _) = yaml.split_once("---").unwrap();
    assert!(setting.contains("kind: Service"), "{yaml}");
    let file = up.data.join("setting.yaml");
    fs::write(&file, setting).unwrap();
    let file = file.to_str().unwrap();
    kubectl(&up, &["patch", "-f", file, "--patch-file", file]);
    let patched = kubectl(&up, &["get", "service", "secret-cart", "-n", "shop", "-o", "yaml"]);
    let wanted = setting.lines().last().unwrap().trim();
    assert!(patched.contains(wanted) && patched.contains("port: 80"), "{wanted}: {patched}");
    drop(up);
    fs::remove_dir_all(&data).unwrap();
}

#[test]
fn the_advice_of_what_if_can_be_pasted_and_is_then_in_force() {
    let data = folder("advice");
    let up = Up::start(&data, &["--no-controllers"]);
    fill(&up);
    let ask = |more: &[&str]| {
        let args = ["simulate", "what-if", "-n", "shop", "-o", "json", "--kubeconfig", &up.kubeconfig];
        json_of(&zoneward(&[&args[..], more].concat()))["services"][0].clone()
    };
    let paste = |command: &str| {
        let output = Command::new("sh")
            .args(["-c", command])
            .env("KUBECONFIG", &up.kubeconfig)
            .env("PATH", toolbox::search_path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let before = ask(&[]);
    let advice = &before["recommendation"];
    assert_ne!(before["current"], advice["mechanism"], "{advice}");
    let command = advice["commands"][0].as_str().unwrap();
    assert!(command.starts_with("kubectl annotate service secret-cart -n shop"), "{command}");
    paste(command);
    let after = ask(&[]);
    assert_eq!(after["current"], advice["mechanism"]);
    assert!(!after["recommendation"]["commands"].to_string().contains("kubectl annotate"), "{after}");

    // Kubernetes' own field is patched where nothing goes before it: with a pod in each zone PreferSameZone is as good.
    kubectl(&up, &["annotate", "service", "secret-cart", "-n", "shop", "zoneward.dev/traffic-distribution-"]);
    let even = ask(&["--scale", "secret-cart=-2@zone-a", "--scale", "secret-cart=+1@zone-c"]);
    let command = even["recommendation"]["commands"][0].as_str().unwrap();
    assert!(command.starts_with("kubectl patch service secret-cart -n shop"), "{command}");
    paste(command);
    assert_eq!(ask(&[])["current"], even["recommendation"]["mechanism"]);
    drop(up);
    fs::remove_dir_all(&data).unwrap();
}

#[test]
fn replay_completion_and_errors_go_by_the_kubeconfig() {
    let data = folder("named");
    let up = Up::start(&data, &["--no-controllers"]);
    fill(&up);

    let flag =
        ["simulate", "replay", "-n", "shop", "--events", "3", "-o", "json", "--kubeconfig", &up.kubeconfig];
    let replayed = json_of(&zoneward(&flag));
    assert_eq!((&replayed["nodes"], &replayed["services"]), (&json!(3), &json!(1)), "{replayed}");
    let by_variable = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
        command.args(args).env("KUBECONFIG", &up.kubeconfig).output().unwrap()
    };
    let again = json_of(&by_variable(&["simulate", "replay", "-n", "shop", "--events", "3", "-o", "json"]));
    assert_eq!(again["nodes"], 3, "{again}");
    let made_up =
        json_of(&by_variable(&["simulate", "replay", "--zones", "2", "--events", "3", "-o", "json"]));
    assert_eq!(made_up["nodes"], 12, "a size asks for a made-up cluster");

    // The script of bash, as bash calls it.
    let complete = |words: &[&str]| {
        let folder = Path::new(env!("CARGO_BIN_EXE_zoneward")).parent().unwrap();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let script = format!(
            "source <(zoneward completion bash); COMP_WORDS=(zoneward {}); COMP_CWORD={}; \
             _zoneward_names zoneward \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            quoted.join(" "),
            words.len()
        );
        let mut command = Command::new("bash");
        command.args(["-c", &script]).env("PATH", path).env("KUBECONFIG", &up.kubeconfig);
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let nodes = ["secret-node-0", "secret-node-1", "secret-node-2"];
    assert_eq!(complete(&["trace", "select", "--node", ""]), nodes);
    assert_eq!(complete(&["plan", "node", "--node", "secret-node-1"]), ["secret-node-1"]);
    assert_eq!(complete(&["trace", "select", "-n", "sh"]), ["shop"]);
    assert_eq!(complete(&["trace", "select", "-n", "shop", "sec"]), ["secret-cart"]);
    assert_eq!(complete(&["simulate", "what-if", "-n", "shop", "svc/"]), ["svc/secret-cart"]);
    assert!(complete(&["trace", "sel"]).contains(&"select".to_owned()), "commands are completed as before");
    let away = complete(&["trace", "select", "--api-socket", "/nowhere", "--node", ""]);
    assert!(
        away.iter().all(|word| !word.contains("secret")),
        "nothing is said where nothing is known: {away:?}"
    );

    let kubeconfig = data.join("kubeconfig");
    let remove = |words: &[&str]| {
        let words =
            [&["expose", "away", "--remove", "--kubeconfig", kubeconfig.to_str().unwrap()], words].concat();
        let output = zoneward(&words);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let nothing = "Nothing to remove: Service default/away does not exist, or `zoneward expose` added no endpoints to it";
    assert_eq!(remove(&[]), format!("{nothing}.\n"));
    assert_eq!(remove(&["--port", "80"]), format!("{nothing} on port 80.\n"));
    assert!(remove(&["-o", "json"]).contains("\"changed\": false"));

    let reader = data.join("reader.kubeconfig");
    let refused = zoneward(&[
        "expose",
        "web",
        "--port",
        "80",
        "--to",
        "10.0.0.7:80",
        "--kubeconfig",
        reader.to_str().unwrap(),
    ]);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("the API at https://127.0.0.1:") && said.contains("forbidden"), "{said}");
    assert!(
        said.contains("bind a role to it") && !said.contains("ApiError") && !said.contains("Status {"),
        "{said}"
    );
    drop(up);
    fs::remove_dir_all(&data).unwrap();
}

#[test]
fn without_files_and_kubeconfig_the_way_out_is_said() {
    for args in [&["simulate", "what-if"][..], &["simulate", "capture"], &["plan", "slices"]] {
        let output = zoneward(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("-f") && said.contains("--kubeconfig"), "{said}");
    }
    let both = zoneward(&["plan", "slices", "-f", "x.yaml", "--kubeconfig", "y"]);
    assert_eq!(both.status.code(), Some(2), "files or a cluster, not both");
}

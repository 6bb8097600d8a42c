//! `zoneward export` from one API into others by kubectl: everything arrives, traces agree, and a second export is the same.

use crate::started;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use fixtures::eventually;
use serde_json::{Value, json};
use started::{Up, folder};

fn kubectl(up: &Up, words: &[&str], input: &str) -> Output {
    let mut child = toolbox::command("kubectl")
        .args(["--kubeconfig", &up.kubeconfig, "--cache-dir"])
        .arg(up.data.join("cache"))
        .args(words)
        .env("HOME", &up.data)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn apply(up: &Up, more: &[&str], manifests: &str) -> String {
    let output = kubectl(up, &[&["apply", "-f", "-"][..], more].concat(), manifests);
    assert!(output.status.success(), "{}{}\n{manifests}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn zoneward(up: &Up, words: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(words)
        .args(["--kubeconfig", &up.kubeconfig])
        .output()
        .unwrap();
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    output
}

fn export(up: &Up, more: &[&str]) -> String {
    text(&zoneward(up, &[&["export"][..], more].concat()).stdout)
}

/// Strings that YAML 1.1 would take for something else.
const WORDS: [&str; 14] = [
    "yes",
    "no",
    "on",
    "off",
    "y",
    "null",
    "~",
    "1",
    "0x10",
    "1e3",
    "1_000",
    "012",
    "2026-11-17",
    "a: b #c\n- d\n",
];

fn objects() -> Value {
    let words: serde_json::Map<String, Value> =
        WORDS.iter().enumerate().map(|(at, word)| (format!("word-{at}"), json!(word))).collect();
    json!([
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop",
            "annotations": {"zoneward.dev/default-traffic-distribution": "PreferSameZone"}}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "words", "namespace": "shop"}, "data": words},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token", "namespace": "shop"},
            "stringData": {"key": "hunter22"}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "cart", "namespace": "shop"},
            "spec": {"selector": {"app": "cart"}, "type": "NodePort", "ports": [{"port": 80}]}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db", "namespace": "shop"},
            "spec": {"clusterIP": "None", "ports": [{"port": 5432}]}},
        {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "db-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "db"}},
            "ports": [{"port": 5432}], "endpoints": [{"addresses": ["10.8.0.1"]}]},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "checked", "namespace": "shop"},
            "spec": {"ports": [{"port": 80}]}},
        // Of a node that does not check it.
        {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "checked-1", "namespace": "shop",
                "labels": {"kubernetes.io/service-name": "checked",
                    "endpointslice.kubernetes.io/managed-by": "expose.zoneward.dev"},
                "annotations": {"zoneward.dev/health-check": "{\"tcpSocket\":{}}",
                    "zoneward.dev/not-ready": "{\"10.8.0.2\":\"not checked yet by node n1\"}"}},
            "ports": [{"name": "", "port": 80}], "endpoints": [{"addresses": ["10.8.0.2"], "nodeName": "n1",
                "conditions": {"ready": false, "serving": false, "terminating": false}}]},
        {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "other"},
            "spec": {"controllerName": "example.com/other"}},
        {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "front", "namespace": "shop"},
            "spec": {"gatewayClassName": "other", "listeners": [{"name": "http", "port": 8088, "protocol": "HTTP"}]}},
        {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "cart", "namespace": "shop"},
            "spec": {"parentRefs": [{"kind": "Service", "group": "", "name": "cart", "port": 80}],
                "rules": [{"backendRefs": [{"name": "cart", "port": 80}]}]}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "cart-1", "namespace": "shop", "labels": {"app": "cart"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}},
    ])
}

fn node() -> String {
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "zone-a"}}})
    .to_string()
}

fn fill(source: &Up) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects()});
    apply(source, &[], &node());
    apply(source, &[], &list.to_string());
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/routes");
    for example in ["canary.yaml", "redirect.yaml", "load-balancing.yaml"] {
        let text = std::fs::read_to_string(examples.join(example)).unwrap();
        // The Services of the last one have selectors.
        let is_kept =
            |document: &&str| example != "load-balancing.yaml" || !document.contains("kind: Service\n");
        apply(source, &[], &text.split("\n---\n").filter(is_kept).collect::<Vec<_>>().join("\n---\n"));
    }
    let to = ["--to", "10.9.0.1:8080@zone-a,version=v1", "--to", "10.9.0.2:8080@zone-b,version=v2"];
    zoneward(source, &[&["expose", "backend", "--port", "80:http"][..], &to].concat());
    let distribution = ["--traffic-distribution", "PreferSameZone"];
    let to = ["--to", "10.9.0.1:8080@zone-a", "--to", "10.9.0.2:8080@zone-b"];
    zoneward(source, &[&["expose", "web", "-n", "shop", "--port", "80"][..], &to, &distribution].concat());
}

/// Which endpoints the node uses for each Service but the API's.
fn select(up: &Up) -> Value {
    let output = zoneward(up, &["trace", "select", "-A", "--node", "n1", "-o", "json"]);
    let mut rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    rows.as_array_mut().unwrap().retain(|row| row["service"] != "default/kubernetes");
    rows
}

/// Where requests go, in the mesh and through the gateway.
fn http(up: &Up) -> Vec<Value> {
    let request = |name: &str, object: &Value| {
        let file = up.data.join(name);
        std::fs::write(&file, object.to_string()).unwrap();
        file.display().to_string()
    };
    let get = |path: &str| json!({"method": "GET", "host": "shop.example.com", "path": path, "headers": {}});
    let api = request("api.json", &get("/api"));
    let old = request("old.json", &get("/old/x"));
    let mesh = ["--from", "frontend", "--to", "backend", "--request", &api];
    let gateway = ["--gateway", "edge:inside", "--request", &old];
    [&mesh[..], &gateway[..]]
        .iter()
        .map(|words| {
            let output = zoneward(up, &[&["trace", "http", "-o", "json"][..], words].concat());
            serde_json::from_slice(&output.stdout).unwrap()
        })
        .collect()
}

#[test]
fn exported_manifests_make_the_same_cluster_by_both_kinds_of_apply() {
    let source = Up::start(&folder("export-source"), &["--no-mesh"]);
    fill(&source);
    eventually("hints and the pod's slice", || {
        let slices = source.ask("GET", "/apis/discovery.k8s.io/v1/endpointslices", "").body;
        slices.contains("forZones") && slices.contains("cart-")
    });
    let output = zoneward(&source, &["export", "--include-secrets"]);
    let (manifests, said) = (text(&output.stdout), text(&output.stderr));
    for words in ["1 Pod not exported", "which a cluster does not run", "1 of them not ready", "exported "] {
        assert!(said.contains(words), "{words}: {said}");
    }
    for field in [
        " uid:",
        "resourceVersion",
        "managedFields",
        "creationTimestamp",
        "\nstatus:",
        "clusterIPs:\n  - \"10.",
        " nodePort:",
        "ownerReferences",
        "last-applied",
        " generation:",
        " finalizers:",
    ] {
        assert!(!manifests.contains(field), "{field} is in\n{manifests}");
    }
    assert!(!manifests.contains("name: kubernetes\n") && !manifests.contains("kind: Node\n"), "{manifests}");
    let first = |kind: &str| {
        manifests.find(&format!("\nkind: {kind}\n")).unwrap_or_else(|| panic!("{kind}: {manifests}"))
    };
    let kinds = [
        "Namespace",
        "Secret",
        "ConfigMap",
        "Service",
        "EndpointSlice",
        "MeshHTTPRoute",
        "GatewayClass",
        "Gateway",
        "HTTPRoute",
    ];
    assert!(kinds.windows(2).all(|pair| first(pair[0]) < first(pair[1])), "{manifests}");
    assert!(!export(&source, &[]).contains("kind: Secret"), "Secrets are asked for");
    let of_shop = export(&source, &["-n", "shop"]);
    assert!(of_shop.contains("name: cart") && !of_shop.contains("name: backend"), "{of_shop}");
    assert!(of_shop.contains("kind: Namespace") && !of_shop.contains("kind: GatewayClass"), "{of_shop}");

    for (name, more) in [("export-server-side", &["--server-side"][..]), ("export-client-side", &[])] {
        let target = Up::start(&folder(name), &["--no-mesh"]);
        apply(&target, &[], &node());
        // Strict: no unknown field, and what kubectl reads is what was written.
        apply(&target, &[more, &["--validate=strict"]].concat(), &manifests);
        let again = apply(&target, more, &manifests);
        let changed = again.lines().filter(|line| line.ends_with("created") || line.ends_with("configured"));
        assert_eq!(changed.count(), 0, "{name}: {again}");
        let words: Value = target.ask("GET", "/api/v1/namespaces/shop/configmaps/words", "").json();
        for (at, word) in WORDS.iter().enumerate() {
            assert_eq!(words["data"][format!("word-{at}")], *word);
        }
        let secret = target.ask("GET", "/api/v1/namespaces/shop/secrets/token", "").json();
        assert_eq!(secret["data"]["key"], "aHVudGVyMjI=");
        let without_pods = |rows: Value| -> Vec<Value> {
            rows.as_array().unwrap().iter().filter(|row| row["service"] != "shop/cart").cloned().collect()
        };
        assert!(select(&source).as_array().unwrap().len() > 5);
        assert_eq!(without_pods(select(&target)), without_pods(select(&source)), "{name}");
        assert_eq!(http(&target), http(&source), "{name}");
        eventually("the export of the target is that of the source", || {
            export(&target, &["--include-secrets"]) == manifests
        });
        std::fs::remove_dir_all(&target.data).unwrap();
    }
    std::fs::remove_dir_all(&source.data).unwrap();
}

#[test]
fn cluster_ips_and_node_ports_are_kept_if_asked_for_and_a_reader_may_export() {
    let source = Up::start(&folder("export-keep"), &["--no-mesh"]);
    fill(&source);
    let manifests = export(&source, &["--keep-cluster-ips", "--keep-node-ports", "-o", "json"]);
    let target = Up::start(&folder("export-kept"), &["--no-mesh"]);
    apply(&target, &["--server-side"], &manifests);
    let addresses = |up: &Up| {
        let list = up.ask("GET", "/api/v1/services", "").json();
        let row = |service: &Value| {
            let (metadata, spec) = (&service["metadata"], &service["spec"]);
            json!([metadata["namespace"], metadata["name"], spec["clusterIPs"], spec["ports"][0]["nodePort"]])
        };
        let services = list["items"].as_array().unwrap().iter();
        services.filter(|s| s["metadata"]["name"] != "kubernetes").map(row).collect::<Vec<_>>()
    };
    assert_eq!(addresses(&target), addresses(&source));
    let reader = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(["export", "--keep-cluster-ips", "--keep-node-ports", "-o", "json", "--kubeconfig"])
        .arg(source.data.join("reader.kubeconfig"))
        .output()
        .unwrap();
    assert!(reader.status.success(), "{}", text(&reader.stderr));
    assert_eq!(
        text(&reader.stdout),
        export(&source, &["--keep-cluster-ips", "--keep-node-ports", "-o", "json"])
    );
    for up in [&source, &target] {
        std::fs::remove_dir_all(&up.data).unwrap();
    }
}

//! Sidecars and gateways on joined machines: requests through them, what their credentials may read, ports that are taken,
//! and the metrics of the machine.

use std::io::{Read, Write};
use std::net::TcpListener;

use fixtures::{TestCertificate, eventually};
use serde_json::{Value, json};

use super::boxes::{Machine, Running, machines};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const GATEWAY_API: &str = "/apis/gateway.networking.k8s.io/v1";
const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/default/gateways";

/// An HTTP server on a machine that tells its name.
fn serve_http(machine: &Machine, port: u16) {
    let (address, name) = (format!("{}:{port}", machine.address()), machine.name());
    machine.within(move || {
        let listener = TcpListener::bind(address).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, name) = (stream.unwrap(), name.clone());
                std::thread::spawn(move || {
                    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
                    while let Ok(count @ 1..) = stream.read(&mut buffer) {
                        seen.extend_from_slice(&buffer[..count]);
                        if seen.ends_with(b"\r\n\r\n") {
                            let answer =
                                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len());
                            let _ = stream.write_all(answer.as_bytes());
                            seen.clear();
                        }
                    }
                });
            }
        });
    });
}

/// Body and status of a request from a machine.
fn curl(from: &Machine, words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    from.within(move || {
        let mut curl = toolbox::command("curl");
        let output = curl.args(["-s", "-k", "-m", "5", "-w", " %{http_code}"]).args(words).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    })
}

fn post(api: &Machine, path: &str, object: &Value) {
    let (code, answer) = api.admin("POST", path, &object.to_string());
    assert_eq!(code, 201, "{path}: {answer}");
}

fn up(machine: &Machine) -> Running {
    let audit = machine.data.with_extension("audit");
    machine.start(&[
        "up",
        "--no-mesh",
        "--gateway-address=10.0.0.2",
        "--listen=10.0.0.1:6443",
        "--metrics-bind-address=10.0.0.1:10270",
        "--audit-log-path",
        audit.to_str().unwrap(),
    ])
}

fn join(machine: &Machine, token: &Value, more: &[&str]) -> Running {
    let words = Machine::join_words(token);
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.extend(more);
    machine.start(&words)
}

/// Service `web` on box-3, and a Gateway with a route to it, a certificate and a port that box-2 has no place for.
fn create_objects(first: &Machine, third: &Machine) {
    post(first, SERVICES, &json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}));
    serve_http(third, 8080);
    let kubeconfig = third.kubeconfig().display().to_string();
    third.run_json(&["expose", "web", "--port", "80", "--to", "10.0.0.3:8080", "--kubeconfig", &kubeconfig]);
    let made = TestCertificate::of("shop.example");
    for name in ["edge", "other"] {
        post(first, SECRETS, &made.secret(name));
    }
    post(
        first,
        &format!("{GATEWAY_API}/gatewayclasses"),
        &json!({"metadata": {"name": "zoneward"}, "spec": {"controllerName": "zoneward.dev/gateway"}}),
    );
    post(
        first,
        GATEWAYS,
        &json!({"metadata": {"name": "edge"}, "spec": {"gatewayClassName": "zoneward", "listeners": [
            {"name": "http", "port": 8080, "protocol": "HTTP"},
            {"name": "https", "port": 8443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "edge"}]}},
            {"name": "taken", "port": 8088, "protocol": "HTTP"},
        ]}}),
    );
    post(
        first,
        &format!("{GATEWAY_API}/namespaces/default/httproutes"),
        &json!({"metadata": {"name": "web"}, "spec": {"parentRefs": [{"name": "edge"}],
            "rules": [{"backendRefs": [{"name": "web", "port": 80}]}]}}),
    );
}

/// The condition of a listener.
fn programmed(first: &Machine, listener: &str) -> Value {
    let (_, gateway) = first.admin("GET", &format!("{GATEWAYS}/edge"), "");
    let listeners = gateway["status"]["listeners"].as_array().cloned().unwrap_or_default();
    let own = listeners.into_iter().find(|own| own["name"] == listener).unwrap_or_default();
    let conditions = own["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == "Programmed").unwrap_or_default()
}

#[test]
fn joined_machine_runs_gateways_and_sidecars() {
    toolbox::in_own_namespaces!();
    let [first, second, third] = machines("proxies");
    let running = up(&first);
    let server = ["--server", "https://10.0.0.1:6443"];
    let allowed = [&server[..], &["--gateways", "--sidecars"]].concat();
    let (for_second, for_third) = (first.token("box-2", &allowed), first.token("box-3", &server));
    let taken = second.within(|| TcpListener::bind("10.0.0.2:8088").unwrap());
    let metrics = ["--metrics-bind-address=10.0.0.2:10270", "--mesh-metrics-bind-address=127.0.0.1:10280"];
    let proxies = ["--gateways", "--gateway-address=10.0.0.2", "--sidecar", "frontend:8181=web:80"];
    let joined = join(&second, &for_second, &[&["--zone", "zone-2"], &proxies[..], &metrics[..]].concat());
    // Its token does not allow what it asks for.
    let also_joined = join(&third, &for_third, &["--zone", "zone-3", "--sidecar", "frontend:8181=web:80"]);
    create_objects(&first, &third);

    let through_gateway = || curl(&third, &["http://10.0.0.2:8080/"]);
    eventually("a request through the gateway", || through_gateway() == "box-3 200");
    eventually("the certificate", || curl(&first, &["https://10.0.0.2:8443/"]) == "box-3 200");
    eventually("a request through the sidecar", || curl(&second, &["http://127.0.0.1:8181/"]) == "box-3 200");

    // The status names the machine's address, and the port that it could not bind.
    let (_, gateway) = first.admin("GET", &format!("{GATEWAYS}/edge"), "");
    assert_eq!(gateway["status"]["addresses"][0]["value"], "10.0.0.2");
    eventually("the port that is taken", || {
        let found = programmed(&first, "taken");
        let message = found["message"].as_str().unwrap_or_default();
        found["status"] == "False" && message.contains("10.0.0.2:8088 on node box-2: ")
    });
    assert_eq!(programmed(&first, "http")["status"], "True");
    drop(taken);
    eventually("the port is free", || programmed(&first, "taken")["status"] == "True");

    reads_its_own_certificates(&second, &third);
    let log = std::fs::read_to_string(third.log()).unwrap();
    let advice = "kubectl create clusterrolebinding zoneward:joined-sidecars:box-3";
    assert!(log.contains(advice), "{log}");

    // Metrics: of the machine's health checks, and of a proxy.
    let kubeconfig = second.kubeconfig().display().to_string();
    serve_http(&second, 8081);
    let words = ["expose", "web", "--port", "80", "--to", "10.0.0.2:8081", "--kubeconfig", &kubeconfig];
    second.run_json(&[&words[..], &["--check", "http:/", "--check-interval", "1s"]].concat());
    let admin = std::fs::read_to_string(first.data.join("pki/admin.token")).unwrap();
    let token = format!("authorization: Bearer {}", admin.trim());
    eventually("metrics of checks", || {
        let text = curl(&first, &["-H", &token, "https://10.0.0.2:10270/metrics"]);
        text.lines().any(|line| line.starts_with("zoneward_health_checks_total{") && !line.ends_with(" 0"))
    });
    assert!(curl(&first, &["https://10.0.0.2:10270/metrics"]).ends_with(" 401"), "without a token");
    assert!(curl(&first, &["https://10.0.0.2:10270/readyz"]).ends_with(" 200"));
    assert!(curl(&second, &["http://127.0.0.1:10280/readyz"]).ends_with(" 200"), "the sidecar");

    // Rights and credentials of its proxies end with the Node.
    let of_gateway = second.data.join("proxies/1.kubeconfig");
    let copy = second.data.with_extension("copy");
    std::fs::copy(&of_gateway, &copy).unwrap();
    assert_eq!(first.admin("DELETE", "/api/v1/nodes/box-2", "").0, 200);
    let (code, message) =
        second.ask(&copy, "GET", &format!("{SECRETS}?fieldSelector=metadata.name%3Dedge"), &Value::Null);
    assert_eq!(code, 401, "{message}");
    let binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/zoneward:joined-gateways:box-2";
    eventually("the binding is gone", || first.admin("GET", binding, "").0 == 404);
    std::fs::remove_file(copy).unwrap();
    drop((joined, also_joined, running));
    [first, second, third].iter().for_each(Machine::remove);
}

/// A gateway reads its certificate and no other; the machine itself reads none.
fn reads_its_own_certificates(second: &Machine, third: &Machine) {
    let ask = |file: &std::path::Path, method: &str, path: &str| {
        let machine = if file.starts_with(&third.data) { third } else { second };
        machine.ask(file, method, path, &Value::Null).0
    };
    let (sidecar, gateway) =
        (second.data.join("proxies/0.kubeconfig"), second.data.join("proxies/1.kubeconfig"));
    let named = |name: &str| format!("{SECRETS}?fieldSelector=metadata.name%3D{name}");
    assert_eq!(ask(&gateway, "GET", &named("edge")), 200);
    for (file, method, path) in [
        (&gateway, "GET", named("other")),
        (&gateway, "GET", SECRETS.to_owned()),
        (&gateway, "DELETE", format!("{GATEWAYS}/edge")),
        (&gateway, "POST", "/join".to_owned()),
        (&gateway, "POST", "/join/gateways/default/other".to_owned()),
        (&sidecar, "GET", named("edge")),
        (&second.kubeconfig(), "GET", named("edge")),
        (&second.kubeconfig(), "GET", "/api/v1/pods".to_owned()),
        (&third.kubeconfig(), "POST", "/join/gateways/default/edge".to_owned()),
        (&third.kubeconfig(), "POST", "/join/sidecars/default/0".to_owned()),
        (&third.kubeconfig(), "GET", GATEWAYS.to_owned()),
    ] {
        assert_eq!(ask(file, method, &path), 403, "{} {method} {path}", file.display());
    }
    let wrong = second.ask(&second.kubeconfig(), "POST", "/join/nodes/default/edge", &Value::Null).0;
    assert!(wrong == 403 || wrong == 404, "{wrong}");
}

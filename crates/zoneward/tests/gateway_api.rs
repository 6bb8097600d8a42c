//! The Gateway API with real parts: `zoneward up`, kubectl and curl, in a network namespace of the test's own.

use crate::started;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use fixtures::{TestCertificate, eventually};
use serde_json::Value;
use started::{Up, folder};

/// Set in the process that has its own network.
const INSIDE: &str = "ZONEWARD_GATEWAY_API_TEST";

/// Runs this test again in user and network namespaces, where an address on the loopback device stands for a pod's.
fn inside(test: &str, run: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return run();
    }
    let script = "\"$0\" link set lo up && \"$0\" address add 10.9.0.1/32 dev lo && exec \"$1\" --exact \"$2\" --nocapture";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "sh", "-c", script])
        .arg(toolbox::path("ip"))
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A backend that answers every request with a text.
fn backend(port: u16, text: &'static str) {
    let listener = TcpListener::bind(("10.9.0.1", port)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut seen = Vec::new();
                let mut buffer = [0; 4096];
                while let Ok(count) = stream.read(&mut buffer) {
                    seen.extend_from_slice(&buffer[..count]);
                    if count == 0 {
                        return;
                    }
                    if seen.windows(4).any(|end| end == b"\r\n\r\n") {
                        let answer =
                            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len());
                        stream.write_all(answer.as_bytes()).unwrap();
                        seen.clear();
                    }
                }
            });
        }
    });
}

struct Kubectl<'a> {
    kubeconfig: &'a str,
}

impl Kubectl<'_> {
    fn run(&self, words: &[&str], input: &str) -> Output {
        let mut child = toolbox::command("kubectl")
            .args(["--kubeconfig", self.kubeconfig])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    fn apply(&self, manifests: &str) {
        let output = self.run(&["apply", "-f", "-"], manifests);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn get(&self, what: &[&str]) -> Value {
        let output = self.run(&[&["get", "-o", "json"], what].concat(), "");
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn yaml(&self, what: &[&str]) -> String {
        String::from_utf8(self.run(&[&["get", "-o", "yaml"], what].concat(), "").stdout).unwrap()
    }
}

/// Status and body of a request.
fn curl(words: &[&str]) -> String {
    let output = toolbox::command("curl").args(["-s", "-m", "5", "-w", " %{http_code}"]).args(words).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

fn until<T: PartialEq + std::fmt::Debug>(what: &str, wanted: &T, found: impl Fn() -> T) {
    eventually(what, || {
        let now = found();
        if now == *wanted { Ok(()) } else { Err(format!("{now:?}, not {wanted:?}")) }
    });
}

/// A certificate for a name as a Secret; its PEM is written to a file.
fn secret(name: &str, host: &str, file: &Path) -> String {
    let made = TestCertificate::of(host);
    fs::write(file, &made.chain).unwrap();
    made.secret(name).to_string()
}

const BACKENDS: &str = r"
apiVersion: v1
kind: Service
metadata: {name: one}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: one, labels: {kubernetes.io/service-name: one}}
addressType: IPv4
ports: [{port: 9001}]
endpoints: [{addresses: [10.9.0.1], conditions: {ready: true}}]
---
apiVersion: v1
kind: Service
metadata: {name: two}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: two, labels: {kubernetes.io/service-name: two}}
addressType: IPv4
ports: [{port: 9002}]
endpoints: [{addresses: [10.9.0.1], conditions: {ready: true}}]
";

const GATEWAY: &str = r"
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: zoneward}
spec: {controllerName: zoneward.dev/gateway}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  gatewayClassName: zoneward
  listeners:
  - {name: http, port: 8080, protocol: HTTP}
  - {name: https, port: 8443, protocol: HTTPS, tls: {certificateRefs: [{name: shop}]}}
";

fn route(backend: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: shop}}\nspec:\n  parentRefs: [{{name: edge}}]\n  hostnames: [shop.example.com]\n  rules: [{{backendRefs: [{{name: {backend}, port: 80}}]}}]\n"
    )
}

#[test]
fn a_gateway_is_served_follows_changes_and_takes_new_certificates() {
    inside(toolbox::this_test!(), || {
        backend(9001, "one");
        backend(9002, "two");
        let data = folder("gateway-api");
        let up = Up::start(&data, &["--gateway-address", "127.0.7.1", "--gateway-address", "127.0.7.2"]);
        let kubectl = Kubectl { kubeconfig: &up.kubeconfig };
        let (first, second) = (data.join("first.pem"), data.join("second.pem"));
        kubectl.apply(BACKENDS);
        kubectl.apply(GATEWAY);
        kubectl.apply(&route("one"));

        let listener = |field: &str| {
            let gateway = kubectl.get(&["gateway", "edge"]);
            let listeners = gateway["status"]["listeners"].as_array().cloned().unwrap_or_default();
            let https = listeners.into_iter().find(|own| own["name"] == "https").unwrap_or_default();
            let all = https["conditions"].as_array().cloned().unwrap_or_default();
            all.iter().find(|own| own["type"] == field).map(|own| own["reason"].as_str().unwrap().to_owned())
        };
        until("a certificate is missing", &Some("InvalidCertificateRef".to_owned()), || {
            listener("ResolvedRefs")
        });
        let plain = ["-H", "Host: shop.example.com", "http://127.0.7.1:8080/"];
        until("HTTP is served all the same", &"one 200".to_owned(), || curl(&plain));
        assert_eq!(
            curl(&["-H", "Host: other.example.com", "http://127.0.7.1:8080/"]).split(' ').next_back(),
            Some("404")
        );

        kubectl.apply(&secret("shop", "shop.example.com", &first));
        let tls = |ca: &Path| {
            let ca = ca.to_str().unwrap();
            let resolve = "shop.example.com:8443:127.0.7.1";
            curl(&["--cacert", ca, "--resolve", resolve, "https://shop.example.com:8443/"])
        };
        until("TLS", &"one 200".to_owned(), || tls(&first));
        until("resolved", &Some("ResolvedRefs".to_owned()), || listener("ResolvedRefs"));

        let yaml = kubectl.yaml(&["gateway", "edge"]);
        for wanted in ["type: IPAddress", "value: 127.0.7.1", "attachedRoutes: 1", "reason: Programmed"] {
            assert!(yaml.contains(wanted), "{wanted}: {yaml}");
        }
        let yaml = kubectl.yaml(&["httproute", "shop"]);
        for wanted in ["controllerName: zoneward.dev/gateway", "reason: Accepted", "reason: ResolvedRefs"] {
            assert!(yaml.contains(wanted), "{wanted}: {yaml}");
        }

        kubectl.apply(&route("two"));
        until("the route changed", &"two 200".to_owned(), || curl(&plain));
        kubectl.apply(&secret("shop", "shop.example.com", &second));
        until("the certificate was replaced", &"two 200".to_owned(), || tls(&second));
        assert_ne!(tls(&first), "two 200", "the old certificate is not used any more");

        // A second Gateway with the same port gets another address.
        kubectl.apply(&GATEWAY.replace("name: edge", "name: second"));
        kubectl.apply(
            &route("one").replace("name: edge", "name: second").replace("{name: shop}", "{name: other}"),
        );
        let second = ["-H", "Host: shop.example.com", "http://127.0.7.2:8080/"];
        until("the second Gateway", &"one 200".to_owned(), || curl(&second));

        // A route that leaves is not served, and the count says so.
        assert!(kubectl.run(&["delete", "httproute", "shop"], "").status.success());
        until("no route", &"404".to_owned(), || curl(&plain).split(' ').next_back().unwrap().to_owned());
        let count = || kubectl.get(&["gateway", "edge"])["status"]["listeners"][0]["attachedRoutes"].clone();
        until("no attached route", &Value::from(0), count);
        drop(up);
        fs::remove_dir_all(&data).unwrap();
    });
}

/// A route with a Service as parent reaches a sidecar; without a match it is 404.
#[test]
fn a_route_of_a_service_reaches_sidecars() {
    inside(toolbox::this_test!(), || {
        backend(9001, "one");
        backend(9002, "two");
        let data = folder("gateway-api-mesh");
        let up = Up::start(&data, &["--sidecar", "client:8081=one:80"]);
        let kubectl = Kubectl { kubeconfig: &up.kubeconfig };
        kubectl.apply(BACKENDS);
        let get = |path: &str| curl(&[&format!("http://127.0.0.1:8081{path}")]);
        kubectl.apply(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: mesh}\nspec:\n  parentRefs: [{group: '', kind: Service, name: one}]\n  rules:\n  - matches: [{path: {type: PathPrefix, value: /two}}]\n    backendRefs: [{name: two, port: 80}]\n",
        );
        until("the route decides", &"two 200".to_owned(), || get("/two"));
        assert_eq!(get("/").split(' ').next_back(), Some("404"));
        let accepted = || {
            let route = kubectl.get(&["httproute", "mesh"]);
            route["status"]["parents"][0]["conditions"][0]["reason"].as_str().map(str::to_owned)
        };
        until("accepted", &Some("Accepted".to_owned()), accepted);
        assert!(kubectl.run(&["delete", "httproute", "mesh"], "").status.success());
        until("as before", &"one 200".to_owned(), || get("/"));
        drop(up);
        fs::remove_dir_all(&data).unwrap();
    });
}

/// A port that another program has is not Programmed, with the reason; when it is free, it is.
#[test]
fn a_taken_port_is_not_programmed_until_it_is_free() {
    inside(toolbox::this_test!(), || {
        backend(9001, "one");
        let data = folder("gateway-api-ports");
        let taken = TcpListener::bind(("127.0.7.1", 8081)).unwrap();
        let up = Up::start(&data, &["--gateway-address", "127.0.7.1"]);
        let kubectl = Kubectl { kubeconfig: &up.kubeconfig };
        kubectl.apply(BACKENDS);
        let gateway = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge}\nspec:\n  gatewayClassName: zoneward\n  listeners:\n  - {name: free, port: 8080, protocol: HTTP}\n  - {name: taken, port: 8081, protocol: HTTP}\n";
        let class = GATEWAY.split("---").next().unwrap();
        kubectl.apply(&format!("{class}\n---\n{gateway}"));
        kubectl.apply(&route("one"));
        let programmed = |part: &str| -> (String, String) {
            let status = kubectl.get(&["gateway", "edge"])["status"].clone();
            let listeners = status["listeners"].as_array().cloned().unwrap_or_default();
            let own = match part {
                "" => status,
                name => listeners.into_iter().find(|own| own["name"] == name).unwrap_or_default(),
            };
            let all = own["conditions"].as_array().cloned().unwrap_or_default();
            let found = all.into_iter().find(|own| own["type"] == "Programmed").unwrap_or_default();
            let field = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
            (format!("{} {}", field("status"), field("reason")), field("message"))
        };
        let pending = "False Pending".to_owned();
        until("the taken port", &pending, || programmed("taken").0);
        until("its Gateway", &pending, || programmed("").0);
        assert_eq!(programmed("free").0, "True Programmed");
        let message = programmed("taken").1;
        let start = "port 8081 cannot be bound: 127.0.7.1:8081 on node ";
        assert!(message.starts_with(start) && message.contains("Address already in use"), "{message}");
        let to = |port: u16| {
            let url = format!("http://127.0.7.1:{port}/");
            curl(&["-H", "Host: shop.example.com", &url])
        };
        until("the other port is served", &"one 200".to_owned(), || to(8080));

        drop(taken);
        until("the port is served", &"one 200".to_owned(), || to(8081));
        let good = "True Programmed".to_owned();
        until("the port is bound", &good, || programmed("taken").0);
        until("its Gateway is", &good, || programmed("").0);
        assert_eq!(programmed("").1, "");
        drop(up);
        fs::remove_dir_all(&data).unwrap();
    });
}

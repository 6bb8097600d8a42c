//! The API of the demo, by its unix socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
/// The label of the pods that serve.
const LABEL: &str = "spill-live";

pub struct Api {
    pub socket: PathBuf,
}

impl Api {
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let kind = match method {
            "PATCH" => "application/strategic-merge-patch+json",
            _ => "application/json",
        };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.0\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            head.split(' ').nth(1).is_some_and(|code| code.starts_with('2')),
            "{method} {path}: {answer}"
        );
        serde_json::from_str(body).unwrap()
    }

    /// Makes a pod an endpoint of the Services.
    pub fn label(&self, pod: &str) {
        self.ask("PATCH", &format!("{PODS}/{pod}"), &json!({"metadata": {"labels": {LABEL: "true"}}}));
    }

    /// As the readiness probe of a kubelet would find it.
    pub fn set_ready(&self, pod: &str, is_ready: bool) {
        let status = if is_ready { "True" } else { "False" };
        let conditions = ["Ready", "ContainersReady"].map(|kind| json!({"type": kind, "status": status}));
        self.ask("PATCH", &format!("{PODS}/{pod}/status"), &json!({"status": {"conditions": conditions}}));
    }

    /// Creates a Service and returns its cluster IP.
    pub fn create_service(
        &self,
        name: &str,
        port: u16,
        annotations: &Value,
        distribution: Option<&str>,
    ) -> String {
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "selector": {LABEL: "true"}, "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"],
                "ports": [{"name": "http", "port": 80, "targetPort": port}],
            },
        });
        if let Some(distribution) = distribution {
            service["spec"]["trafficDistribution"] = distribution.into();
        }
        let service = self.ask("POST", SERVICES, &service);
        service["spec"]["clusterIP"].as_str().unwrap().to_owned()
    }

    pub fn delete_service(&self, name: &str) {
        self.ask("DELETE", &format!("{SERVICES}/{name}"), &Value::Null);
    }

    /// Number of ready endpoints of a Service, and what its slices say about Spill.
    pub fn slices(&self, service: &str) -> (usize, String) {
        let selector = format!("?labelSelector=kubernetes.io%2Fservice-name%3D{service}");
        let slices = self.ask("GET", &format!("{SLICES}{selector}"), &Value::Null);
        let items = slices["items"].as_array().unwrap();
        let ready = |endpoint: &&Value| endpoint["conditions"]["ready"] == true;
        let endpoints = items.iter().flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
        let plan = |slice: &Value| {
            let all = slice["metadata"]["annotations"].as_object().into_iter().flatten();
            let words = ["demand", "keep", "proved"].map(|word| format!("zoneward.dev/{word}"));
            let ours = all.filter(|(key, _)| words.contains(key));
            ours.map(|(key, value)| format!("{key}={} ", value.as_str().unwrap_or_default()))
                .collect::<String>()
        };
        (endpoints.filter(ready).count(), items.iter().map(plan).collect())
    }
}

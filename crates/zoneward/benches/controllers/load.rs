//! The world of the bench: Services of ten pods on a hundred nodes in three zones, written through the API.

use std::path::Path;
use std::sync::Arc;

use http::Request;
use kube::Client;
use serde_json::{Value, json};
use store::admission::service::ServiceRanges;
use store::api::{Api, ApiLimits};
use store::bootstrap::{BootstrapOptions, bootstrap};
use store::engine::{Engine, EngineOptions};
use tokio::task::JoinSet;

pub const PODS_PER_SERVICE: usize = 10;
const NODES: usize = 100;
/// How many requests are under way while the world is made.
const WRITERS: usize = 64;

pub async fn store() -> Api {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-controllers-{}", std::process::id()));
    let mut options = EngineOptions::default();
    let megabytes = |name: &str| std::env::var(name).ok()?.parse::<usize>().ok().map(|n| n << 20);
    options.cache_bytes = megabytes("ZONEWARD_BENCH_CACHE_MB").unwrap_or(options.cache_bytes);
    options.history_bytes = megabytes("ZONEWARD_BENCH_RING_MB").unwrap_or(options.history_bytes);
    let engine = Engine::open(&folder, options).unwrap();
    // Open files live on; nothing is left behind.
    std::fs::remove_dir_all(&folder).unwrap();
    let api = Api::new(Arc::new(engine), ServiceRanges::without_flags(), ApiLimits::default());
    let service_cidrs = vec!["10.96.0.0/12".parse().unwrap()];
    bootstrap(&api, BootstrapOptions { service_cidrs, listen: "127.0.0.1:6443".parse().unwrap() })
        .await
        .unwrap();
    api
}

pub fn service_name(service: usize) -> String {
    format!("service-{service}")
}

pub fn pod_name(service: usize, pod: usize) -> String {
    format!("service-{service}-{pod}")
}

fn node_name(node: usize) -> String {
    format!("node-{node}")
}

fn address(service: usize, pod: usize) -> String {
    let number = service * PODS_PER_SERVICE + pod;
    format!("10.{}.{}.{}", 128 + number / 62_500, number / 250 % 250, number % 250 + 1)
}

pub fn node(node: usize) -> Value {
    let zone = format!("zone-{}", node % 3);
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": node_name(node), "labels": {"topology.kubernetes.io/zone": zone}},
        "status": {"allocatable": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}})
}

pub fn service(service: usize) -> Value {
    let name = service_name(service);
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}})
}

/// About as large as pods of small workloads are.
pub fn pod(service: usize, pod: usize) -> Value {
    let app = service_name(service);
    let env: Vec<Value> = (0..8)
        .map(|i| json!({"name": format!("SETTING_{i}"), "value": format!("the value of setting {i}")}))
        .collect();
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": pod_name(service, pod), "namespace": "default",
            "labels": {"app": app, "pod-template-hash": "6d4cf56db6"}},
        "spec": {"nodeName": node_name((service * 7 + pod) % NODES), "containers": [{
            "name": "app", "image": "registry.example/app:1.2.3", "env": env,
            "ports": [{"name": "http", "containerPort": 8080}],
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
            "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 5}}]},
        "status": pod_status(service, pod, true)})
}

pub fn pod_status(service: usize, pod: usize, ready: bool) -> Value {
    let address = address(service, pod);
    let ready = if ready { "True" } else { "False" };
    json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-11-15T10:00:00Z"}]})
}

pub async fn fill(client: &Client, services: usize) {
    put_all(client, (0..NODES).map(node)).await;
    put_all(client, (0..services).map(service)).await;
    let pods = (0..services).flat_map(|s| (0..PODS_PER_SERVICE).map(move |p| pod(s, p)));
    put_all(client, pods).await;
}

async fn put_all(client: &Client, objects: impl Iterator<Item = Value>) {
    let mut writers = JoinSet::new();
    for object in objects {
        if writers.len() >= WRITERS {
            writers.join_next().await.unwrap().unwrap();
        }
        let client = client.clone();
        writers.spawn(async move { put(&client, object).await });
    }
    while let Some(written) = writers.join_next().await {
        written.unwrap();
    }
}

async fn put(client: &Client, mut object: Value) {
    let status = object.as_object_mut().unwrap().remove("status");
    let path = match object["kind"].as_str().unwrap() {
        "Node" => "/api/v1/nodes".to_owned(),
        kind => format!("/api/v1/namespaces/default/{}s", kind.to_lowercase()),
    };
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    send(client, "POST", &path, "application/json", &object).await;
    if let Some(status) = status {
        let path = format!("{path}/{name}/status");
        send(client, "PATCH", &path, "application/merge-patch+json", &json!({"status": status})).await;
    }
}

/// Whether a pod is ready.
pub async fn pod_ready(client: &Client, pod: &str) -> bool {
    let path = format!("/api/v1/namespaces/default/pods/{pod}");
    let request = Request::builder().uri(path).body(Vec::new()).unwrap();
    let pod: Value = client.request(request).await.unwrap();
    pod["status"]["conditions"][0]["status"] == "True"
}

pub async fn patch_status(client: &Client, pod: &str, status: &Value) {
    let path = format!("/api/v1/namespaces/default/pods/{pod}/status");
    send(client, "PATCH", &path, "application/merge-patch+json", status).await;
}

async fn send(client: &Client, method: &str, path: &str, kind: &str, body: &Value) {
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    let sent = client.request_text(request.body(serde_json::to_vec(body).unwrap()).unwrap()).await;
    sent.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
}

//! For tests: an embedded API in a folder of its own, controllers over it, and objects in and out by the API.

use std::sync::Arc;

use controller::{ControllerConfig, ControllerExit, ControllerMetrics};
use http::Request;
use kube::Client;
use serde_json::{Value, json};
use store::admission::service::ServiceRanges;
use store::api::{Api as Store, ApiLimits};
use store::bootstrap::{BootstrapOptions, bootstrap};
use store::engine::{Engine, EngineOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub struct World {
    pub store: Store,
    pub client: Client,
    pub metrics: ControllerMetrics,
    running: Option<Running>,
}

/// A controller under way.
pub struct Running {
    pub leading: watch::Sender<bool>,
    pub stop: watch::Sender<bool>,
    pub task: JoinHandle<ControllerExit>,
}

/// Starts a controller that leads.
pub fn start(client: &Client, config: ControllerConfig, metrics: &ControllerMetrics) -> Running {
    let running = start_standby(client, config, metrics);
    running.leading.send_replace(true);
    running
}

/// Starts a controller that watches and waits.
pub fn start_standby(client: &Client, config: ControllerConfig, metrics: &ControllerMetrics) -> Running {
    let (stop, stopped) = watch::channel(false);
    let (office, leading) = watch::channel(false);
    let task = tokio::spawn(controller::run(client.clone(), config, metrics.clone(), leading, stopped));
    Running { leading: office, stop, task }
}

pub fn config() -> ControllerConfig {
    ControllerConfig::new(plan::PlanningConfig::without_flags())
}

impl World {
    /// An API without a controller.
    pub async fn new() -> Self {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("controller-{}-{count}", std::process::id());
        let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let engine = Engine::open(&folder, EngineOptions::default()).unwrap();
        // Open files live on; nothing is left behind.
        std::fs::remove_dir_all(&folder).unwrap();
        let store = Store::new(Arc::new(engine), ServiceRanges::without_flags(), ApiLimits::default());
        let service_cidrs = vec!["10.96.0.0/16".parse().unwrap(), "fd00:10:96::/112".parse().unwrap()];
        bootstrap(&store, BootstrapOptions { service_cidrs, listen: "127.0.0.1:6443".parse().unwrap() })
            .await
            .unwrap();
        let client = cluster::in_process(store.local(), &clock::Clock::system());
        Self { store, client, metrics: ControllerMetrics::default(), running: None }
    }

    pub fn start(&mut self, config: ControllerConfig) {
        self.running = Some(start(&self.client, config, &self.metrics));
    }

    pub async fn stop(&mut self) -> ControllerExit {
        let running = self.running.take().expect("a controller");
        running.stop.send_replace(true);
        running.task.await.unwrap()
    }

    pub async fn try_send(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> Result<Value, kube::Error> {
        let bytes = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        self.client.request(request.body(bytes).unwrap()).await
    }

    pub async fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.try_send(method, path, "application/json", body).await;
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}: {body:#}"))
    }

    pub async fn get(&self, path: &str) -> Value {
        self.send("GET", path, &Value::Null).await
    }

    pub async fn merge(&self, path: &str, patch: &Value) -> Value {
        let answer = self.try_send("PATCH", path, "application/merge-patch+json", patch).await;
        answer.unwrap_or_else(|error| panic!("PATCH {path}: {error}"))
    }

    /// Creates an object with its status, as two writes: an API server takes no status on create.
    pub async fn put(&self, object: &Value) -> Value {
        let mut object = object.clone();
        let status = object.as_object_mut().unwrap().remove("status");
        let deleting = object["metadata"].as_object_mut().unwrap().remove("deletionTimestamp");
        object["metadata"].as_object_mut().unwrap().remove("uid");
        if deleting.is_some() {
            object["metadata"]["finalizers"] = json!(["example.com/slow"]);
        }
        let path = collection(&object);
        let created = self.send("POST", &path, &object).await;
        let path = format!("{path}/{}", created["metadata"]["name"].as_str().unwrap());
        let mut newest = created;
        if let Some(status) = status {
            newest = self.merge(&format!("{path}/status"), &json!({"status": status})).await;
        }
        if deleting.is_some() {
            self.send("DELETE", &path, &Value::Null).await;
        }
        newest
    }

    pub async fn namespace(&self, name: &str) {
        if self
            .try_send("GET", &format!("/api/v1/namespaces/{name}"), "application/json", &Value::Null)
            .await
            .is_err()
        {
            self.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
        }
    }

    /// The slices of a namespace.
    pub async fn slices(&self, namespace: &str) -> Vec<Value> {
        items(&self.get(&slices_path(namespace)).await["items"])
    }

    /// The slices of a Service that consumers see.
    pub async fn slices_of(&self, namespace: &str, service: &str) -> Vec<Value> {
        let path = format!("{}?labelSelector=kubernetes.io/service-name={service}", slices_path(namespace));
        items(&self.get(&path).await["items"])
    }
}

pub fn slices_path(namespace: &str) -> String {
    format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
}

fn collection(object: &Value) -> String {
    let api_version = object["apiVersion"].as_str().unwrap();
    let root = if api_version.contains('/') { "/apis" } else { "/api" };
    let plural = match object["kind"].as_str().unwrap() {
        "Node" => return format!("{root}/{api_version}/nodes"),
        "Namespace" => return format!("{root}/{api_version}/namespaces"),
        "EndpointSlice" => "endpointslices",
        "Service" => "services",
        "Pod" => "pods",
        "Lease" => "leases",
        other => panic!("no path for {other}"),
    };
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    format!("{root}/{api_version}/namespaces/{namespace}/{plural}")
}

pub fn items(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

pub fn vectors(file: &str) -> Vec<Value> {
    let path = format!("{}/../../vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    let file: Value = serde_json::from_str(&text).expect("the vectors are JSON");
    items(&file["vectors"])
}

pub fn pod(namespace: &str, name: &str, app: &str, node: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": app}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        "status": pod_status(address, true)})
}

pub fn pod_status(address: &str, ready: bool) -> Value {
    fixtures::pod_status(&[address], ready)
}

pub fn service(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}})
}

/// The addresses that slices list as ready, in order; twice where two slices list one.
pub fn ready(slices: &[Value]) -> Vec<String> {
    let endpoints = slices.iter().flat_map(|slice| items(&slice["endpoints"]));
    let ready = endpoints.filter(|e| e["conditions"]["ready"] == true);
    let mut addresses: Vec<String> =
        ready.map(|e| e["addresses"][0].as_str().unwrap_or_default().to_owned()).collect();
    addresses.sort();
    addresses
}

//! An embedded API on a socket, and the controller, whose writes are counted.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clock::Clock;
use cluster::Connection;
use cluster::write::{JSON, MERGE_PATCH};
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use mesh::route_status::ObservedGateways;
use model::random::Random;
use plan::gateway_api::{AssignedAddresses, MachineAddresses, UnboundPorts};
use serde_json::{Value, json};
use store::admission::service::ServiceRanges;
use store::api::{Api, ApiLimits};
use store::bootstrap::{BootstrapOptions, bootstrap};
use store::credentials::Credentials;
use store::engine::{Engine, EngineOptions};
use store::server::ApiServer;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::statuses::{check_object, text};

const GROUP: &str = "/apis/gateway.networking.k8s.io/v1";
pub const LIMIT: Duration = Duration::from_secs(60);

pub struct World {
    client: Client,
    /// Statuses that the controller wrote.
    writes: Arc<AtomicUsize>,
    pub rival: Arc<Rival>,
    /// Whether the controller gets 404 for the Gateway API.
    pub hides: Arc<watch::Sender<bool>>,
    /// Ports that proxies could not bind.
    pub unbound: watch::Sender<UnboundPorts>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    folder: PathBuf,
}

/// Another client, which writes just before the controller does.
#[derive(Default)]
pub struct Rival {
    /// The path of a status, and what is written there before the controller's next write of it.
    pub write: Mutex<Option<(String, Value)>>,
    /// Writes of the controller that were answered with 409.
    pub conflicts: AtomicUsize,
    /// Single objects that the controller read.
    pub reads: AtomicUsize,
}

impl World {
    pub async fn new() -> Self {
        Self::hiding(false).await
    }

    pub async fn hiding(hides: bool) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("gw-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // The path of a socket is short.
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let engine = Engine::open(&folder.join("store"), EngineOptions::default()).expect("a store");
        let api = Api::new(Arc::new(engine), ServiceRanges::without_flags(), ApiLimits::default());
        let service_cidrs = vec!["10.96.0.0/16".parse().expect("a range")];
        let listen = "127.0.0.1:6443".parse().expect("an address");
        bootstrap(&api, BootstrapOptions { service_cidrs, listen }).await.expect("bootstrap");
        let (stop, stopped) = watch::channel(false);
        let credentials = Arc::new(Credentials::open(&folder).expect("credentials"));
        let server = ApiServer::new(api, credentials, stopped.clone());
        let socket = folder.join("api.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let mut tasks = vec![tokio::spawn(server.serve_unix(listener))];
        let connection = Connection { api_socket: Some(socket), ..Connection::default() };
        let client = cluster::connect(&connection, &Clock::system()).await.expect("a client");
        let (writes, hides) = (Arc::new(AtomicUsize::new(0)), Arc::new(watch::channel(hides).0));
        let rival = Arc::new(Rival::default());
        let own = counted(client.clone(), writes.clone(), hides.clone(), rival.clone());
        let usable = (1..=8).map(|i| format!("192.0.2.{i}").parse().expect("an address")).collect();
        let addresses = AssignedAddresses::Machine(MachineAddresses { usable, mesh: Vec::new() });
        let (clock, random) = (Clock::system(), Random::seeded(1));
        let (unbound, ports) = watch::channel(UnboundPorts::new());
        let gateways = ObservedGateways { addresses, unbound_ports: Some(ports) };
        tasks.push(tokio::spawn(mesh::route_status::run(own, gateways, clock, random, stopped)));
        Self { client, writes, rival, hides, unbound, stop, tasks, folder }
    }

    pub async fn send(&self, method: Method, path: &str, body: &Value) -> Result<Value, kube::Error> {
        let kind = if method == Method::PATCH { MERGE_PATCH } else { JSON };
        cluster::write::send(&self.client, method, path, kind, body).await
    }

    pub async fn create(&self, object: &Value) {
        let created = self.send(Method::POST, &collection(object), object).await;
        created.unwrap_or_else(|error| panic!("{object}: {error}"));
    }

    /// Replaces the spec of an object.
    pub async fn replace(&self, object: &Value) {
        let path = format!("{}/{}", collection(object), text(&object["metadata"]["name"]));
        loop {
            let mut stored = self.send(Method::GET, &path, &Value::Null).await.expect("the object");
            stored["spec"] = object["spec"].clone();
            match self.send(Method::PUT, &path, &stored).await {
                Ok(_) => return,
                // The controller wrote its status.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => panic!("{object}: {error}"),
            }
        }
    }

    pub async fn get(&self, kind: &str, name: &str) -> Value {
        self.send(Method::GET, &object_path(kind, name), &Value::Null).await.unwrap_or_default()
    }

    /// Waits until all statuses are as wanted, and still are a moment later.
    pub async fn check(&self, wanted: &[Value]) -> Result<(), String> {
        let (mut found, mut good) = (Ok(()), 0);
        let waited = tokio::time::timeout(LIMIT, async {
            while good < 2 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                found = self.check_now(wanted).await;
                good = if found.is_ok() { good + 1 } else { 0 };
            }
        });
        if waited.await.is_ok() { Ok(()) } else { found }
    }

    async fn check_now(&self, wanted: &[Value]) -> Result<(), String> {
        for wanted in wanted {
            let object = self.get(text(&wanted["kind"]), text(&wanted["name"])).await;
            let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
            let found = check_object(&object["status"], wanted, generation);
            found.map_err(|why| format!("{wanted}: {why}"))?;
        }
        Ok(())
    }

    /// Waits until the controller has written nothing for a while; the number of its writes.
    pub async fn quiet(&self) -> usize {
        loop {
            let before = self.writes.load(Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(500)).await;
            if before == self.writes.load(Ordering::SeqCst) {
                return before;
            }
        }
    }

    pub async fn end(self) {
        self.stop.send_replace(true);
        for task in self.tasks {
            let _ = tokio::time::timeout(LIMIT, task).await;
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A client that counts writes of statuses and may hide the Gateway API, with a rival.
fn counted(
    inner: Client,
    writes: Arc<AtomicUsize>,
    hides: Arc<watch::Sender<bool>>,
    rival: Arc<Rival>,
) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (inner, writes, hides, rival) = (inner.clone(), writes.clone(), hides.clone(), rival.clone());
        async move {
            let path = request.uri().path().to_owned();
            if request.method() == Method::PATCH && path.ends_with("/status") {
                writes.fetch_add(1, Ordering::SeqCst);
                let earlier = rival.write.lock().expect("not poisoned").take_if(|(at, _)| *at == path);
                if let Some((at, status)) = earlier {
                    let sent =
                        cluster::write::send::<Value>(&inner, Method::PATCH, &at, MERGE_PATCH, &status);
                    sent.await.expect("the rival's status");
                }
            }
            let query = request.uri().query().unwrap_or_default();
            if query.starts_with("fieldSelector=metadata.name%3D") && path.ends_with("routes") {
                rival.reads.fetch_add(1, Ordering::SeqCst);
            }
            if *hides.borrow() && path.contains("gateway.networking.k8s.io") {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                    "reason": "NotFound", "message": "the server could not find the requested resource"});
                let body = Body::from(status.to_string().into_bytes());
                return Response::builder().status(404).body(body).map_err(kube::Error::HttpError);
            }
            let response = inner.send(request).await?;
            let is_conflict = response.status() == http::StatusCode::CONFLICT;
            rival.conflicts.fetch_add(usize::from(is_conflict), Ordering::SeqCst);
            Ok(response)
        }
    });
    Client::new(service, "default")
}

fn plural(kind: &str) -> String {
    let lower = kind.to_lowercase();
    match lower.strip_suffix("policy") {
        Some(stem) => format!("{stem}policies"),
        None if lower.ends_with("class") => format!("{lower}es"),
        None => format!("{lower}s"),
    }
}

fn collection(object: &Value) -> String {
    let version = text(&object["apiVersion"]);
    let root = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
    let kind = plural(text(&object["kind"]));
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{kind}"),
        None => format!("{root}/{kind}"),
    }
}

/// The path of an object of the Gateway API by `namespace/name`.
pub fn object_path(kind: &str, name: &str) -> String {
    match name.split_once('/') {
        Some((namespace, name)) => format!("{GROUP}/namespaces/{namespace}/{}/{name}", plural(kind)),
        None => format!("{GROUP}/{}/{name}", plural(kind)),
    }
}

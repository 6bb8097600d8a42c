//! For tests: the embedded API, the controller and its status listener in this process, with a ledger of known traffic.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clock::Clock;
use cluster::Connection;
use cluster::admin_server::access::AdminAccessArgs;
use controller::{ControllerConfig, ControllerMetrics};
use http::Request;
use insight::ledger::{TrafficLedger, TrafficOwner, TrafficReport, TrafficRow, ZonePairTraffic};
use insight::status_board::LedgerView;
use kube::Client;
use plan::work_queue::MonotonicTime;
use serde_json::{Value, json};
use store::admission::service::ServiceRanges;
use store::api::{Api, ApiLimits};
use store::bootstrap::{BootstrapOptions, bootstrap};
use store::engine::{Engine, EngineOptions};
use tokio::sync::watch;
use zoneward::commands::status::server::{StatusListener, StatusListenerArgs};

pub const ZONES: [&str; 3] = ["eu-west-1a", "eu-west-1b", "eu-west-1c"];
/// Name, what it requests, pods by zone, and megabytes per minute that each zone sends.
const SERVICES: &[(&str, &str, [usize; 3], [u64; 3])] = &[
    ("cart", "", [3, 3, 3], [320, 300, 280]),
    ("checkout", "PreferSameZone", [2, 2, 2], [90, 80, 70]),
    ("search", "PreferSameZone", [4, 1, 1], [60, 240, 60]),
    ("payments", "", [2, 2, 0], [20, 10, 30]),
    ("recommendations", "Spill", [3, 2, 2], [120, 90, 90]),
    ("images", "", [4, 4, 4], [900, 800, 700]),
    ("web-v1", "PreferSameZone", [2, 2, 2], [40, 40, 40]),
    ("web-v2", "PreferSameZone", [1, 1, 1], [5, 5, 5]),
];
/// Of the ledger.
const MINUTES: u64 = 180;

pub struct World {
    pub address: SocketAddr,
    ledger: Arc<Mutex<FedLedger>>,
    runtime: tokio::runtime::Runtime,
    client: Client,
    stop: watch::Sender<bool>,
}

struct FedLedger {
    ledger: TrafficLedger,
    sums: Vec<TrafficRow>,
    minute: u64,
}

impl FedLedger {
    /// One more minute of traffic; `in_zone` is the share that stays, by Service.
    fn feed(&mut self, in_zone: impl Fn(&str) -> f64) {
        self.minute += 1;
        let wave = 1.0 + 0.4 * (self.minute as f64 / 25.0).sin();
        for (row, (name, _, _, sends)) in self.sums.iter_mut().zip(SERVICES) {
            for pair in &mut row.zone_pairs {
                let from = ZONES.iter().position(|zone| *zone == pair.from_zone).unwrap();
                let part = match pair.from_zone == pair.to_zone {
                    true => in_zone(name),
                    false => (1.0 - in_zone(name)) / 2.0,
                };
                let bytes = sends[from] as f64 * 1e6 * wave * part;
                pair.bytes += bytes as u64;
                pair.connections += (bytes / 20_000.0) as u64 + 1;
            }
        }
        let report = TrafficReport {
            reporter: "node/worker-0".to_owned(),
            start: "one".to_owned(),
            sequence: self.minute,
            counted_seconds: self.minute * 60,
            rows: self.sums.clone(),
            ..TrafficReport::default()
        };
        self.ledger.record(&report, self.now()).unwrap();
    }

    fn now(&self) -> MonotonicTime {
        MonotonicTime(Duration::from_secs(self.minute * 60))
    }
}

fn measured(name: &str) -> f64 {
    match name {
        "checkout" | "web-v1" | "web-v2" => 0.98,
        "search" => 0.83,
        "recommendations" => 0.94,
        "payments" => 0.30,
        _ => 0.34,
    }
}

fn ledger(since: &str) -> FedLedger {
    let pair = |from: &str, to: &str| ZonePairTraffic {
        from_zone: from.to_owned(),
        to_zone: to.to_owned(),
        ..ZonePairTraffic::default()
    };
    let row = |(name, ..): &(&str, &str, [usize; 3], [u64; 3])| TrafficRow {
        owner: TrafficOwner::Service { namespace: "shop".to_owned(), name: (*name).to_owned() },
        zone_pairs: ZONES.iter().flat_map(|from| ZONES.iter().map(|to| pair(from, to))).collect(),
    };
    let ledger = TrafficLedger::new(since, MonotonicTime(Duration::ZERO));
    let mut fed = FedLedger { ledger, sums: SERVICES.iter().map(row).collect(), minute: 0 };
    (0..MINUTES).for_each(|_| fed.feed(measured));
    fed
}

impl World {
    pub fn start(allow_apply: bool) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let clock = Clock::system();
        let since = clock.timestamp() - jiff::SignedDuration::from_secs((MINUTES * 60).cast_signed());
        let ledger = Arc::new(Mutex::new(ledger(&since.to_string())));
        let (stop, stopped) = watch::channel(false);
        let (client, address) = runtime.block_on(async {
            let client = cluster::in_process(api().await.local(), &clock);
            fill(&client).await;
            let (sums, history) = (ledger.clone(), ledger.clone());
            let traffic = LedgerView::new(
                move |window| {
                    let fed = sums.lock().unwrap();
                    Some(fed.ledger.sums(window, fed.now()))
                },
                |from, to| Some(if from == to { 0.0 } else { 0.02 }),
            );
            let traffic = traffic.with_history(move |owner| history.lock().unwrap().ledger.history(owner));
            let config =
                ControllerConfig { traffic, ..ControllerConfig::new(plan::PlanningConfig::without_flags()) };
            let args =
                StatusListenerArgs { status_bind_address: Some("127.0.0.1:0".parse().unwrap()), allow_apply };
            let listener = StatusListener::bind(&args).await.unwrap();
            let address = listener.address();
            let access = AdminAccessArgs::default();
            let until = stopped.clone();
            listener.serve(&config, &access, client.clone(), Connection::default(), until).await.unwrap();
            let (leading, leads) = watch::channel(true);
            let running =
                controller::run(client.clone(), config, ControllerMetrics::default(), leads, stopped);
            tokio::spawn(async move {
                running.await;
                drop(leading);
            });
            (client, address)
        });
        Self { address, ledger, runtime, client, stop }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Minutes of traffic that stays in its zone.
    pub fn feed_in_zone(&self, minutes: u64) {
        let mut fed = self.ledger.lock().unwrap();
        (0..minutes).for_each(|_| fed.feed(|_| 0.99));
    }

    pub fn send(&self, method: &str, path: &str, object: &Value) {
        self.runtime.block_on(send(&self.client, method, path, object));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

async fn api() -> Api {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dashboard-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let engine = Engine::open(&folder, EngineOptions::default()).unwrap();
    // Open files live on; nothing is left behind.
    std::fs::remove_dir_all(&folder).unwrap();
    let api = Api::new(Arc::new(engine), ServiceRanges::without_flags(), ApiLimits::default());
    let service_cidrs = vec!["10.96.0.0/12".parse().unwrap()];
    bootstrap(&api, BootstrapOptions { service_cidrs, listen: "127.0.0.1:6443".parse().unwrap() })
        .await
        .unwrap();
    api
}

async fn fill(client: &Client) {
    let post = async |path: &str, object: Value| send(client, "POST", path, &object).await;
    let status = async |path: String, status: Value| {
        send(client, "PATCH", &(path + "/status"), &json!({"status": status})).await;
    };
    post("/api/v1/namespaces", json!({"metadata": {"name": "shop"}})).await;
    for number in 0..6 {
        let name = format!("worker-{number}");
        let labels = json!({"topology.kubernetes.io/zone": ZONES[number % 3]});
        post("/api/v1/nodes", json!({"metadata": {"name": name, "labels": labels}})).await;
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "8"}});
        status(format!("/api/v1/nodes/{name}"), ready).await;
        let failed = if number == 4 { "shop/search" } else { "" };
        let lease = json!({"metadata": {"name": format!("zoneward-node-{name}"),
            "labels": {"zoneward.dev/component": "node-proxy"},
            "annotations": {"zoneward.dev/programmed-revision": "999999999", "zoneward.dev/failed-services": failed,
                "zoneward.dev/convergence": "0,2,9,3,1", "zoneward.dev/repairs": "0", "zoneward.dev/lost-events": "0"}},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 90}});
        post("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", lease).await;
    }
    for (at, (name, requests, pods, _)) in SERVICES.iter().enumerate() {
        let mut spec = json!({"selector": {"app": name}, "ports": [{"name": "http", "port": 80}]});
        let mut annotations = json!({});
        match *requests {
            "" => {}
            "Spill" => annotations = json!({"zoneward.dev/traffic-distribution": "Spill"}),
            field => spec["trafficDistribution"] = json!(field),
        }
        let service = json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec});
        post("/api/v1/namespaces/shop/services", service).await;
        for (zone, count) in pods.iter().enumerate() {
            for number in 0..*count {
                let pod = format!("{name}-{zone}-{number}");
                let node = format!("worker-{}", zone + 3 * (number % 2));
                let object = json!({"metadata": {"name": pod, "labels": {"app": name}},
                    "spec": {"nodeName": node, "containers": [{"name": "c", "image": "c"}]}});
                post("/api/v1/namespaces/shop/pods", object).await;
                let ip = format!("10.244.{}.{}", zone * 50 + at, number + 10);
                let ready = fixtures::pod_status(&[&ip], true);
                status(format!("/api/v1/namespaces/shop/pods/{pod}"), ready).await;
            }
        }
    }
    let backends = json!([{"kind": "MeshService", "name": "web-v1", "weight": 90},
        {"kind": "MeshService", "name": "web-v2", "weight": 10}]);
    let rule = json!({"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": {"backendRefs": backends}});
    let route = json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshHTTPRoute",
        "metadata": {"name": "web-canary"}, "spec": {"targetRef": {"kind": "Mesh"},
            "to": [{"targetRef": {"kind": "MeshService", "name": "web-v1"}, "rules": [rule]}]}});
    post("/apis/zoneward.dev/v1alpha1/namespaces/shop/meshhttproutes", route).await;
    let conditions = json!([{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
        "lastTransitionTime": "2026-11-17T08:00:00Z"}]);
    let path = "/apis/zoneward.dev/v1alpha1/namespaces/shop/meshhttproutes/web-canary";
    status(path.to_owned(), json!({"conditions": conditions})).await;
}

async fn send(client: &Client, method: &str, path: &str, body: &Value) {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    let sent = client.request_text(request.body(serde_json::to_vec(body).unwrap()).unwrap()).await;
    sent.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
}

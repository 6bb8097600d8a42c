//! A made-up cluster in an embedded API: Services of ten endpoints each, in one slice.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use store::admission::service::ServiceRanges;
use store::api::{Api, ApiLimits};
use store::credentials::Credentials;
use store::engine::{Engine, EngineOptions};
use store::kinds;
use store::server::ApiServer;
use tokio::net::UnixListener;
use tokio::sync::watch;

pub(crate) const ENDPOINTS: usize = 10;
/// Objects of one write.
const BATCH: usize = 500;

pub(crate) struct World {
    runtime: tokio::runtime::Runtime,
    api: Api,
    folder: PathBuf,
    services: usize,
    revision: AtomicU64,
    _stop: watch::Sender<bool>,
}

impl World {
    pub(crate) fn new(services: usize) -> World {
        let folder = std::env::temp_dir().join(format!("zoneward-bench-node-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let engine = Engine::open(&folder.join("store"), EngineOptions::default()).unwrap();
        let api = Api::new(Arc::new(engine), ServiceRanges::without_flags(), ApiLimits::default());
        let (stop, stopped) = watch::channel(false);
        {
            let _inside = runtime.enter();
            let listener = UnixListener::bind(folder.join("api.sock")).unwrap();
            let credentials = Credentials::open(&folder).unwrap();
            runtime.spawn(ApiServer::new(api.clone(), Arc::new(credentials), stopped).serve_unix(listener));
        }
        let world = World { runtime, api, folder, services, revision: AtomicU64::new(0), _stop: stop };
        world.put(vec![
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
                "spec": {"cidrs": ["10.96.0.0/16"]}}),
            json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "za"}},
                "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}),
        ]);
        let all: Vec<usize> = (0..services).collect();
        for some in all.chunks(BATCH) {
            world.put(some.iter().map(|number| service(*number)).collect());
            world.put(some.iter().map(|number| slice(*number, 0)).collect());
        }
        world
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("api.sock")
    }

    /// The highest revision of a slice.
    pub(crate) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }

    /// Replaces one endpoint of a Service.
    pub(crate) fn change(&self, service: usize, round: usize) {
        self.put(vec![slice(service % self.services, round + 1)]);
    }

    fn put(&self, mut objects: Vec<Value>) {
        let work = move |store: &mut store::object_txn::ObjectTxn<'_, '_>| {
            for object in &mut objects {
                let kind = kinds::named(object["kind"].as_str().unwrap_or_default());
                store.put(kind.expect("a kind that the API has"), object)?;
            }
            Ok(objects)
        };
        let objects = self.runtime.block_on(self.api.commit(false, work)).unwrap();
        let slices = objects.iter().filter(|object| object["kind"] == "EndpointSlice");
        let version = |object: &Value| object["metadata"]["resourceVersion"].as_str()?.parse().ok();
        if let Some(last) = slices.filter_map(version).max() {
            self.revision.fetch_max(last, Ordering::Relaxed);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn name(number: usize) -> String {
    format!("service-{number:05}")
}

pub(crate) fn service(number: usize) -> Value {
    let ip = format!("10.{}.{}.{}", 96 + number / 62_500, number / 250 % 250, number % 250 + 1);
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": format!("team-{}", number % 50), "name": name(number),
            "uid": format!("00000000-0000-4000-8000-{number:012}"), "creationTimestamp": "2026-11-01T10:00:00Z",
            "labels": {"app": name(number)}},
        "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
            "selector": {"app": name(number)},
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}]}})
}

/// Ten endpoints; the last one's address goes by the round.
pub(crate) fn slice(number: usize, round: usize) -> Value {
    let endpoint = |i: usize| {
        let pod = if i + 1 == ENDPOINTS && round > 0 {
            1_500_000 + round % 100_000
        } else {
            number * ENDPOINTS + i
        };
        let address = format!("10.{}.{}.{}", 128 + pod / 62_500, pod / 250 % 250, pod % 250 + 1);
        let zone = ["za", "zb", "zc"][i % 3];
        json!({"addresses": [address], "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("node-{}", pod % 500), "zone": zone,
            "targetRef": {"kind": "Pod", "namespace": format!("team-{}", number % 50),
                "name": format!("{}-{i}", name(number)), "uid": format!("00000000-0000-4000-9000-{pod:012}")}})
    };
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"namespace": format!("team-{}", number % 50), "name": format!("{}-abcde", name(number)),
            "uid": format!("00000000-0000-4000-a000-{number:012}"), "generation": 1,
            "labels": {"app": name(number), "kubernetes.io/service-name": name(number),
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": name(number), "controller": true,
                "blockOwnerDeletion": true, "uid": format!("00000000-0000-4000-8000-{number:012}")}]},
        "addressType": "IPv4", "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": (0..ENDPOINTS).map(endpoint).collect::<Vec<_>>()})
}

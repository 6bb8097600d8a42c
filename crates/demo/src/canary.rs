//! Act four: a canary across zones. Nine of ten requests go to version one, one to version two, each to the nearest
//! pods of its version; a sidecar beside every client sees to it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::future::try_join_all;
use model::backend::ConsumerLocation;
use model::{BackendId, Labels, Name, ServiceKey, Snapshot};
use plan::FeatureGates;
use serde_json::{Value, json};

use super::layout::{self, Node, POD_HTTP_PORT, SIDECAR_PORT};
use super::objects::{NAMESPACE, Pod, SERVICE_PORT};
use super::protocol::Request;
use super::verdict::is_in_line;
use super::world::World;
use cluster::ResourceKind;

/// The Service.
const SERVICE: &str = "cart";
/// The versions, with their shares of a hundred.
pub const VERSIONS: [(&str, u32); 2] = [("v1", 90), ("v2", 10)];
/// Requests of each client.
const REQUESTS: u32 = 300;
const PATIENCE: Duration = Duration::from_secs(30);

/// From a zone, to a version, to a zone.
pub type ByVersion<T> = BTreeMap<String, BTreeMap<String, BTreeMap<String, T>>>;

/// What the canary got.
pub struct Canary {
    /// Where requests went.
    pub requests: ByVersion<u64>,
    /// The shares that the plan has.
    pub expected: ByVersion<f64>,
    /// Requests without an answer.
    pub failed: u64,
}

impl Canary {
    /// All requests of a zone that were answered.
    pub fn total(&self, zone: &str) -> u64 {
        let versions = self.requests.get(zone).into_iter().flat_map(|versions| versions.values());
        versions.flat_map(|row| row.values()).sum()
    }

    /// How many requests of a zone a version got in a zone.
    pub fn count(&self, from: &str, version: &str, to: &str) -> u64 {
        let row = self.requests.get(from).and_then(|versions| versions.get(version));
        row.and_then(|row| row.get(to)).copied().unwrap_or_default()
    }

    /// What is out of line, in words.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        if self.failed > 0 {
            complaints.push(format!("canary: {} requests got no answer", self.failed));
        }
        for from in layout::ZONES {
            let all = self.total(from);
            if all == 0 {
                complaints.push(format!("canary: nothing came from {from}"));
                continue;
            }
            for ((version, _), to) in VERSIONS.iter().flat_map(|v| layout::ZONES.map(|to| (v, to))) {
                let row = self.expected.get(from).and_then(|versions| versions.get(*version));
                let share = row.and_then(|row| row.get(to)).copied().unwrap_or_default();
                let seen = self.count(from, version, to) as f64 / all as f64;
                if !is_in_line(share, seen, all) {
                    complaints.push(format!(
                        "canary: from {from} to {version} in {to} went {:.1} %, planned were {:.1} %",
                        seen * 100.0,
                        share * 100.0
                    ));
                }
            }
        }
        complaints
    }

    /// For programs; the names are fixed.
    pub fn value(&self) -> Value {
        json!({"requests": self.requests, "expected": self.expected, "failed": self.failed})
    }
}

/// Version one on every node; version two on one node of zone-a and one of zone-b, and none in zone-c.
fn pods() -> Vec<Pod> {
    let pod = |node: Node, version: &'static str, number: u8| {
        let letter = node.name.trim_start_matches("node-").to_owned();
        Pod { name: format!("cart-{version}-{letter}"), app: SERVICE, version: Some(version), node, number }
    };
    let mut pods: Vec<Pod> = layout::nodes().into_iter().map(|node| pod(node, "v1", 40)).collect();
    let canaries =
        layout::nodes().into_iter().filter(|node| ["node-a1", "node-b1"].contains(&node.name.as_str()));
    pods.extend(canaries.map(|node| pod(node, "v2", 50)));
    pods
}

fn service() -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE, "namespace": NAMESPACE},
        "spec": {"selector": {"app": SERVICE}, "trafficDistribution": "PreferSameZone",
            "ipFamilyPolicy": "RequireDualStack",
            "ports": [{"name": "http", "port": SERVICE_PORT, "targetPort": POD_HTTP_PORT, "appProtocol": "http"}]}})
}

/// The route that makes it a canary.
fn route() -> Value {
    let backend = |(version, weight): (&str, u32)| json!({"kind": "MeshServiceSubset", "name": SERVICE, "tags": {"version": version}, "weight": weight});
    json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshHTTPRoute",
        "metadata": {"name": "cart-canary", "namespace": NAMESPACE},
        "spec": {"targetRef": {"kind": "Mesh"}, "to": [{"targetRef": {"kind": "MeshService", "name": SERVICE}, "rules": [
            {"matches": [{"path": {"type": "Prefix", "value": "/"}}],
             "default": {"backendRefs": VERSIONS.map(backend)}}]}]}})
}

/// Makes the pods, the route and the sidecars, and lets every client ask.
pub async fn play(world: &mut World) -> Result<Canary> {
    for pod in pods() {
        world.add_pod(pod).await?;
    }
    world.create(ResourceKind::Service, service()).await?;
    world.create(ResourceKind::HttpRoute, route()).await?;
    let all = 2 * pods().len();
    let complete = move |snapshot: &Snapshot| {
        let key = ServiceKey::new(&NAMESPACE.into(), &SERVICE.into());
        snapshot.slices(&key).iter().map(|slice| slice.content.endpoints.len()).sum::<usize>() == all
    };
    world.until("EndpointSlices of the canary", complete).await?;
    let clients = world.clients();
    for client in &clients {
        world.start_sidecar(&client.pod, SERVICE).await?;
    }
    for client in &clients {
        until_answered(world, &client.pod).await?;
    }
    let asked = clients.iter().map(|client| {
        let request = ask(&client.pod, REQUESTS);
        let stage = &world.stage;
        async move { anyhow::Ok((client.zone, stage.count(request).await?)) }
    });
    let counted = try_join_all(asked).await?;
    let mut canary = Canary { requests: BTreeMap::new(), expected: expected(world.snapshot()), failed: 0 };
    for (from, counts) in counted {
        canary.failed += counts.failed + counts.refused;
        let versions = canary.requests.entry(from.to_owned()).or_default();
        for (pod, count) in counts.answers {
            let version = world.version(&pod).unwrap_or("unknown").to_owned();
            let zone = world.zone(&pod).unwrap_or("elsewhere").to_owned();
            *versions.entry(version).or_default().entry(zone).or_default() += count;
        }
    }
    Ok(canary)
}

fn ask(client: &str, count: u32) -> Request {
    let to = std::net::SocketAddr::from(([127, 0, 0, 1], SIDECAR_PORT));
    Request::Connect { from: client.to_owned(), to, count }
}

async fn until_answered(world: &World, client: &str) -> Result<()> {
    let start = Instant::now();
    loop {
        let counts = world.stage.count(ask(client, 1)).await?;
        if !counts.answers.is_empty() {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            bail!("the sidecar of {client} did not answer within 30 s: see its log");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// By the same function that the sidecars' tables come from.
fn expected(snapshot: &Snapshot) -> ByVersion<f64> {
    let mut shares = ByVersion::new();
    let nodes = layout::nodes();
    for node in &nodes {
        let place = ConsumerLocation { node: Name::new(&node.name), zone: Some(Name::new(node.zone)) };
        let per_zone = nodes.iter().filter(|n| n.zone == node.zone).count() as f64;
        for (version, weight) in VERSIONS {
            let tags: Labels = [("version", version)].into_iter().collect();
            let service = ServiceKey::new(&NAMESPACE.into(), &SERVICE.into());
            let id = BackendId { service, port: SERVICE_PORT, tags };
            let Some(backend) = plan::backends::backend(snapshot, &id, &place, FeatureGates::default())
            else {
                continue;
            };
            let row: &mut BTreeMap<String, f64> =
                shares.entry(node.zone.to_owned()).or_default().entry(version.to_owned()).or_default();
            for (endpoint, share) in backend.shares() {
                let to = endpoint.zone.as_ref().map_or("elsewhere", |zone| zone.as_str()).to_owned();
                *row.entry(to).or_default() += share * f64::from(weight) / 100.0 / per_zone;
            }
        }
    }
    shares
}

impl World {
    /// Starts a sidecar in the namespace of a client, with a port for a Service.
    async fn start_sidecar(&mut self, client: &str, service: &str) -> Result<()> {
        let node = self.node_of(client).with_context(|| format!("no pod {client}"))?;
        let socket = self.folder.join("data/api.sock").display().to_string();
        let outbound = format!("{SIDECAR_PORT}={service}");
        let words = [
            "mesh",
            "proxy",
            "--api-socket",
            &socket,
            "--from",
            "client",
            "--outbound",
            &outbound,
            "--node",
            &node,
            // All pods are there before it is, so none needs a gentle beginning.
            "--slow-start",
            "0s",
        ];
        let arguments = words.map(str::to_owned).to_vec();
        self.start_process(client, arguments, &format!("sidecar-{client}.log")).await
    }
}

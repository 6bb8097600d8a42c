//! The canary step: a weighted route sends 90 % of the requests to v1 and 10 % to v2, each to the nearest pods of its
//! version, through a sidecar per client.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::future::try_join_all;
use model::backend::ConsumerLocation;
use model::{BackendId, Labels, Name, Protocol, ServiceKey, Snapshot};
use plan::FeatureGates;
use serde_json::{Value, json};

use super::demo_cluster::DemoCluster;
use super::deviation::is_within_sampling_error;
use super::layout::{self, DemoNode, POD_HTTP_PORT, SIDECAR_PORT};
use super::objects::{DemoPod, NAMESPACE, SERVICE_PORT};
use super::protocol::NamespaceRequest;
use cluster::ObjectKind;

const SERVICE: &str = "cart";
/// Versions and their weights in percent.
pub(crate) const VERSIONS: [(&str, u32); 2] = [("v1", 90), ("v2", 10)];
/// Requests per client.
const REQUESTS: u32 = 300;
const TIMEOUT: Duration = Duration::from_secs(60);

/// From a zone, to a version, to a zone.
pub(crate) type ByVersion<T> = BTreeMap<String, BTreeMap<String, BTreeMap<String, T>>>;

/// Measured and planned requests by version.
pub(crate) struct CanaryTraffic {
    pub requests: ByVersion<u64>,
    pub expected: ByVersion<f64>,
    /// Requests without a response.
    pub failed: u64,
}

impl CanaryTraffic {
    /// Responses to clients of a zone.
    pub(crate) fn total(&self, zone: &str) -> u64 {
        let versions = self.requests.get(zone).into_iter().flat_map(|versions| versions.values());
        versions.flat_map(|row| row.values()).sum()
    }

    pub(crate) fn count(&self, from: &str, version: &str, to: &str) -> u64 {
        let row = self.requests.get(from).and_then(|versions| versions.get(version));
        row.and_then(|row| row.get(to)).copied().unwrap_or_default()
    }

    /// Differences from the plan beyond sampling error.
    pub(crate) fn deviations(&self) -> Vec<String> {
        let mut deviations = Vec::new();
        if self.failed > 0 {
            deviations.push(format!("canary: {} requests failed", self.failed));
        }
        for from in layout::ZONES {
            let all = self.total(from);
            if all == 0 {
                deviations.push(format!("canary: no requests from {from}"));
                continue;
            }
            for ((version, _), to) in VERSIONS.iter().flat_map(|v| layout::ZONES.map(|to| (v, to))) {
                let row = self.expected.get(from).and_then(|versions| versions.get(*version));
                let share = row.and_then(|row| row.get(to)).copied().unwrap_or_default();
                let seen = self.count(from, version, to) as f64 / all as f64;
                if !is_within_sampling_error(share, seen, all) {
                    deviations.push(format!(
                        "canary: {from} to {version} in {to}: {:.1} %, planned {:.1} %",
                        seen * 100.0,
                        share * 100.0
                    ));
                }
            }
        }
        deviations
    }

    /// JSON with stable fields.
    pub(crate) fn value(&self) -> Value {
        json!({"requests": self.requests, "expected": self.expected, "failed": self.failed})
    }
}

/// v1 on every node; v2 on one node each of zone-a and zone-b.
fn pods() -> Vec<DemoPod> {
    let pod = |node: DemoNode, version: &'static str, number: u8| {
        let letter = node.name.trim_start_matches("node-").to_owned();
        DemoPod {
            name: format!("cart-{version}-{letter}"),
            app: SERVICE,
            version: Some(version),
            node,
            number,
        }
    };
    let mut pods: Vec<DemoPod> = layout::nodes().into_iter().map(|node| pod(node, "v1", 40)).collect();
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

fn route() -> Value {
    let backend = |(version, weight): (&str, u32)| json!({"kind": "MeshServiceSubset", "name": SERVICE, "tags": {"version": version}, "weight": weight});
    json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshHTTPRoute",
        "metadata": {"name": "cart-canary", "namespace": NAMESPACE},
        "spec": {"targetRef": {"kind": "Mesh"}, "to": [{"targetRef": {"kind": "MeshService", "name": SERVICE}, "rules": [
            {"matches": [{"path": {"type": "Prefix", "value": "/"}}],
             "default": {"backendRefs": VERSIONS.map(backend)}}]}]}})
}

/// Creates the pods, the route and the sidecars, and sends requests from every client.
pub(crate) async fn run(cluster: &mut DemoCluster) -> Result<CanaryTraffic> {
    for pod in pods() {
        cluster.add_pod(pod).await?;
    }
    cluster.create(ObjectKind::Service, service()).await?;
    cluster.create(ObjectKind::MeshHttpRoute, route()).await?;
    let all = 2 * pods().len();
    let complete = move |snapshot: &Snapshot| {
        let key = ServiceKey::new(&NAMESPACE.into(), &SERVICE.into());
        snapshot.slices(&key).iter().map(|slice| slice.content.endpoints.len()).sum::<usize>() == all
    };
    cluster.until("EndpointSlices of the canary", complete).await?;
    let clients = cluster.clients();
    for client in &clients {
        cluster.start_sidecar(&client.pod, SERVICE).await?;
    }
    for client in &clients {
        until_sidecar_ready(cluster, &client.pod).await?;
    }
    let requests = clients.iter().map(|client| {
        let request = sidecar_request(&client.pod, REQUESTS);
        let namespaces = &cluster.namespaces;
        async move { anyhow::Ok((client.zone, namespaces.count(request).await?)) }
    });
    let counted = try_join_all(requests).await?;
    let mut canary =
        CanaryTraffic { requests: BTreeMap::new(), expected: expected(cluster.snapshot()), failed: 0 };
    for (from, counts) in counted {
        canary.failed += counts.failed + counts.refused;
        let versions = canary.requests.entry(from.to_owned()).or_default();
        for (pod, count) in counts.answers {
            let version = cluster.version(&pod).unwrap_or("unknown").to_owned();
            let zone = cluster.zone(&pod).unwrap_or("elsewhere").to_owned();
            *versions.entry(version).or_default().entry(zone).or_default() += count;
        }
    }
    Ok(canary)
}

fn sidecar_request(client: &str, count: u32) -> NamespaceRequest {
    let to = std::net::SocketAddr::from(([127, 0, 0, 1], SIDECAR_PORT));
    NamespaceRequest::Connect { from: client.to_owned(), to, count }
}

async fn until_sidecar_ready(cluster: &DemoCluster, client: &str) -> Result<()> {
    let start = cluster.clock().now();
    loop {
        let counts = cluster.namespaces.count(sidecar_request(client, 1)).await?;
        if !counts.answers.is_empty() {
            return Ok(());
        }
        if cluster.clock().since(start) > TIMEOUT {
            bail!("the sidecar of {client} was not ready within 60 s: see its log");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// By the function that the sidecars use.
fn expected(snapshot: &Snapshot) -> ByVersion<f64> {
    let mut shares = ByVersion::new();
    let nodes = layout::nodes();
    for node in &nodes {
        let place = ConsumerLocation { node: Name::new(&node.name), zone: Some(Name::new(node.zone)) };
        let per_zone = nodes.iter().filter(|n| n.zone == node.zone).count() as f64;
        for (version, weight) in VERSIONS {
            let tags: Labels = [("version", version)].into_iter().collect();
            let service = ServiceKey::new(&NAMESPACE.into(), &SERVICE.into());
            let id = BackendId { service, port: SERVICE_PORT, protocol: Protocol::Tcp, tags };
            let gates = FeatureGates::OF_PROXIES;
            let Some(backend) = plan::backends::backend(snapshot, &id, &place, gates, None) else { continue };
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

impl DemoCluster {
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
            // All pods exist before the sidecar starts.
            "--slow-start",
            "0s",
        ];
        let arguments = words.map(str::to_owned).to_vec();
        self.start_process(client, None, arguments, &format!("sidecar-{client}.log")).await
    }
}

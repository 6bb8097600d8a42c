//! `zoneward demo upgrade`: every process of a running demo is replaced by one of another program while clients connect.
//!
//! ```text
//!  controller-first:  API and controllers -> node proxies, one by one -> gateways, one by one
//!  nodes-first:       node proxies, one by one -> gateways, one by one -> API and controllers
//! ```
//!
//! Node proxies are replaced as a DaemonSet does, the old one stops before the new one starts; gateways as a Deployment
//! does, the new one is ready before the old one leaves the Service and drains.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use model::Family;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::RunningDemoArgs;
use super::command_socket::{DemoRequest, DemoResponse, StepWriter};
use super::demo_cluster::{DemoCluster, key};
use super::layout::{self, DemoNode, GATEWAY_PORT};
use super::objects::{DemoPod, NAMESPACE, SERVICE_PORT};
use super::protocol::NamespaceRequest;
use super::steps::until_removed_from_slices;
use cluster::ObjectKind;

const GATEWAY: &str = "gateway";
/// The nodes of the two replicas.
const GATEWAY_NODES: [&str; 2] = ["node-a1", "node-b1"];
/// Pod numbers of a replica; the new one gets the number that the old one does not have.
const GATEWAY_NUMBERS: [u8; 2] = [60, 61];
/// Services that clients connect to.
const TARGETS: [&str; 3] = ["web-prefersamezone", "shop", GATEWAY];
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// `zoneward demo upgrade`
#[derive(Debug, Args)]
pub struct UpgradeArgs {
    /// Program to upgrade to: another build of zoneward
    #[arg(long, value_name = "FILE")]
    pub program: PathBuf,
    /// What is replaced first
    #[arg(long, value_name = "ORDER", default_value = "controller-first")]
    pub order: UpgradeOrder,
    /// Replace only these components; repeatable [default: all]
    #[arg(long, value_name = "COMPONENT")]
    pub only: Vec<UpgradeComponent>,
    #[command(flatten)]
    pub running: RunningDemoArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpgradeOrder {
    /// API and controllers, then node proxies and gateways
    ControllerFirst,
    /// Node proxies and gateways, then API and controllers
    NodesFirst,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpgradeComponent {
    /// API and controllers
    Controller,
    /// Node proxies
    Nodes,
    /// Gateways
    Gateways,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct UpgradeRequest {
    program: PathBuf,
    order: UpgradeOrder,
    only: Vec<UpgradeComponent>,
}

impl UpgradeRequest {
    /// The components in their order.
    fn components(&self) -> Vec<UpgradeComponent> {
        use UpgradeComponent::{Controller, Gateways, Nodes};
        let all = match self.order {
            UpgradeOrder::ControllerFirst => [Controller, Nodes, Gateways],
            UpgradeOrder::NodesFirst => [Nodes, Gateways, Controller],
        };
        all.into_iter().filter(|component| self.only.is_empty() || self.only.contains(component)).collect()
    }
}

/// `false` if a connection failed.
pub(crate) fn run(args: &UpgradeArgs) -> Result<bool> {
    let program = args.program.canonicalize();
    let program = program.with_context(|| format!("--program {}", args.program.display()))?;
    let request = UpgradeRequest { program, order: args.order, only: args.only.clone() };
    args.running.request(&DemoRequest::Upgrade(request), "")
}

pub(crate) async fn serve(
    cluster: &mut DemoCluster,
    request: &UpgradeRequest,
    steps: &mut StepWriter<'_>,
) -> Result<DemoResponse> {
    let version = version(&request.program).await?;
    cluster.until_quiet().await;
    ensure_gateways(cluster, steps).await?;
    let loops = start_loops(cluster).await?;
    steps.step(format!("{} connect in a loop", output::count(loops.len(), "client"))).await;
    let mut replaced = Vec::new();
    let result = replace_all(cluster, request, &mut replaced, steps).await;
    let traffic = stop_loops(cluster, loops).await?;
    result.with_context(|| format!("replaced so far: {}", names(&replaced)))?;
    cluster.write_state()?;
    Ok(response(request, &version, &replaced, &traffic))
}

/// The version of a program; an error if it is not Zoneward.
async fn version(program: &Path) -> Result<String> {
    let run = tokio::process::Command::new(program).arg("--version").output().await;
    let run = run.with_context(|| format!("--program {}", program.display()))?;
    let text = String::from_utf8_lossy(&run.stdout);
    match text.trim().strip_prefix("zoneward ") {
        Some(version) if run.status.success() => Ok(version.to_owned()),
        _ => bail!("--program {}: expected a build of zoneward", program.display()),
    }
}

async fn replace_all(
    cluster: &mut DemoCluster,
    request: &UpgradeRequest,
    replaced: &mut Vec<String>,
    steps: &mut StepWriter<'_>,
) -> Result<()> {
    for component in request.components() {
        match component {
            UpgradeComponent::Controller => {
                steps.step("Replacing API and controllers").await;
                cluster.replace_api(&request.program).await.context("replacing the API")?;
                replaced.push("api".to_owned());
            }
            UpgradeComponent::Nodes => {
                for node in layout::nodes() {
                    steps.step(format!("Replacing the node proxy of {}", node.name)).await;
                    let result = replace_node_proxy(cluster, &node, &request.program).await;
                    result.with_context(|| format!("replacing the node proxy of {}", node.name))?;
                    replaced.push(node.name);
                }
            }
            UpgradeComponent::Gateways => {
                for node in gateway_nodes() {
                    steps.step(format!("Replacing the gateway on {}", node.name)).await;
                    let result = replace_gateway(cluster, &node, &request.program).await;
                    result.with_context(|| format!("replacing the gateway on {}", node.name))?;
                    replaced.push(format!("{GATEWAY} on {}", node.name));
                }
            }
        }
    }
    Ok(())
}

/// The rules stay in the kernel between the two. The new proxy renews its Lease once it has synced them.
async fn replace_node_proxy(cluster: &mut DemoCluster, node: &DemoNode, program: &Path) -> Result<()> {
    cluster.stop_process(&node.name).await?;
    let before = cluster.lease_renewed(&node.name).await?;
    cluster.start_proxy(node, Some(program.to_owned())).await?;
    let start = cluster.clock().now();
    while cluster.lease_renewed(&node.name).await? <= before {
        if cluster.clock().since(start) > TIMEOUT {
            bail!("it did not sync within 60 s: see {}/logs/{}.log", cluster.folder.display(), node.name);
        }
        tokio::time::sleep(POLL).await;
    }
    cluster.until_programmed().await
}

fn gateway_nodes() -> impl Iterator<Item = DemoNode> {
    layout::nodes().into_iter().filter(|node| GATEWAY_NODES.contains(&node.name.as_str()))
}

fn gateway_pod(node: &DemoNode, number: u8) -> DemoPod {
    let name = format!("{GATEWAY}-{}-{number}", node.name.trim_start_matches("node-"));
    DemoPod { name, app: GATEWAY, version: None, node: node.clone(), number }
}

async fn replace_gateway(cluster: &mut DemoCluster, node: &DemoNode, program: &Path) -> Result<()> {
    let old = cluster.pods_of(GATEWAY).into_iter().find(|pod| pod.node == *node);
    let old = old.context("it does not run")?;
    let number = GATEWAY_NUMBERS.into_iter().find(|number| *number != old.number);
    start_gateway(cluster, gateway_pod(node, number.context("two numbers")?), Some(program)).await?;
    cluster.delete_pod_object(&old.name).await?;
    // With the time for nodes to sync: in a cluster, the preStop hook of the Deployment waits as long.
    until_removed_from_slices(cluster, vec![old.name.clone()]).await?;
    cluster.until_programmed().await?;
    cluster.stop_process(&old.name).await?;
    cluster.remove_pod(&old.name).await
}

/// Starts a replica, and makes it part of the Service once it answers and all nodes know it.
async fn start_gateway(cluster: &mut DemoCluster, pod: DemoPod, program: Option<&Path>) -> Result<()> {
    cluster.add_pod_namespace(&pod).await?;
    let socket = cluster.folder.join("data/api.sock").display().to_string();
    let words = ["mesh", "proxy", "--api-socket", &socket, "--gateway", GATEWAY, "--node", &pod.node.name];
    let arguments = words.into_iter().chain(["--drain", "2s", "--slow-start", "0s"]).map(str::to_owned);
    let (arguments, log) = (arguments.collect(), format!("{}.log", pod.name));
    cluster.start_process(&pod.name, program.map(Path::to_owned), arguments, &log).await?;
    let address = SocketAddr::new(layout::pod(pod.node.number, pod.number, Family::V4), GATEWAY_PORT);
    let probe = cluster.pods_of("shop").first().map(|pod| pod.name.clone());
    let from = probe.context("Service shop has no pods: scale it up first")?;
    let start = cluster.clock().now();
    loop {
        let request = NamespaceRequest::Connect { from: from.clone(), to: address, count: 1 };
        if !cluster.namespaces.count(request).await?.answers.is_empty() {
            break;
        }
        if cluster.clock().since(start) > TIMEOUT {
            bail!("it was not ready within 60 s: see {}/logs/{log}", cluster.folder.display());
        }
        tokio::time::sleep(POLL).await;
    }
    let name = pod.name.clone();
    cluster.add_pod_object(pod).await?;
    let known = move |snapshot: &model::Snapshot| {
        let endpoints = snapshot.slices(&key(GATEWAY)).iter().flat_map(|slice| &slice.content.endpoints);
        endpoints.filter(|e| e.target().is_some_and(|target| target.name == name.as_str())).count() == 2
    };
    cluster.until("slices with the gateway", known).await?;
    cluster.until_programmed().await
}

/// Two gateways to Service shop, behind a Service of their own; made by the first upgrade.
async fn ensure_gateways(cluster: &mut DemoCluster, steps: &mut StepWriter<'_>) -> Result<()> {
    if !cluster.pods_of(GATEWAY).is_empty() {
        return Ok(());
    }
    steps.step("Starting two gateways").await;
    let object = |kind: &str, spec: Value| {
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": kind,
            "metadata": {"name": GATEWAY, "namespace": NAMESPACE}, "spec": spec})
    };
    let listener = json!({"listeners": [{"name": "http", "port": GATEWAY_PORT, "protocol": "HTTP"}]});
    cluster.create(ObjectKind::MeshGateway, object("MeshGateway", listener)).await?;
    let route = json!({"targetRef": {"kind": "MeshGateway", "name": GATEWAY}, "rules": [
        {"matches": [{"path": {"type": "Prefix", "value": "/"}}],
         "default": {"backendRefs": [{"kind": "MeshService", "name": "shop"}]}}]});
    cluster.create(ObjectKind::MeshGatewayHttpRoute, object("MeshGatewayHTTPRoute", route)).await?;
    let mut service = super::objects::service(GATEWAY, GATEWAY);
    service["spec"]["ports"] = json!([{"name": "http", "port": SERVICE_PORT, "targetPort": GATEWAY_PORT}]);
    cluster.create(ObjectKind::Service, service).await?;
    let has_address = |snapshot: &model::Snapshot| snapshot.service(&key(GATEWAY)).is_some();
    cluster.until("the Service of the gateways", has_address).await?;
    for node in gateway_nodes() {
        start_gateway(cluster, gateway_pod(&node, GATEWAY_NUMBERS[0]), None).await?;
    }
    Ok(())
}

/// A client of every node connects to a Service in a loop.
async fn start_loops(cluster: &DemoCluster) -> Result<Vec<(String, &'static str)>> {
    let mut loops = Vec::new();
    for (client, target) in cluster.clients().into_iter().zip(TARGETS.into_iter().cycle()) {
        let to = cluster.address(&key(target), Family::V4)?;
        cluster.namespaces.ask(NamespaceRequest::StartLoop { from: client.pod.clone(), to }).await?;
        loops.push((client.pod, target));
    }
    Ok(loops)
}

#[derive(Debug, Default, Serialize)]
struct UpgradeTraffic {
    connections: u64,
    failed: u64,
}

async fn stop_loops(
    cluster: &DemoCluster,
    loops: Vec<(String, &'static str)>,
) -> Result<BTreeMap<&'static str, UpgradeTraffic>> {
    let mut traffic: BTreeMap<&'static str, UpgradeTraffic> = BTreeMap::new();
    for (from, target) in loops {
        let counts = cluster.namespaces.count(NamespaceRequest::StopLoop { from }).await?;
        let sum = traffic.entry(target).or_default();
        sum.connections += counts.total();
        sum.failed += counts.failed + counts.refused;
    }
    Ok(traffic)
}

fn names(replaced: &[String]) -> String {
    if replaced.is_empty() { "nothing".to_owned() } else { replaced.join(", ") }
}

fn response(
    request: &UpgradeRequest,
    version: &str,
    replaced: &[String],
    traffic: &BTreeMap<&'static str, UpgradeTraffic>,
) -> DemoResponse {
    let connections: u64 = traffic.values().map(|traffic| traffic.connections).sum();
    let failed: u64 = traffic.values().map(|traffic| traffic.failed).sum();
    let program = request.program.display().to_string();
    let mut text =
        format!("Replaced by {program} (zoneward {version}), in this order:\n  {}\n", names(replaced));
    for (service, UpgradeTraffic { connections, failed }) in traffic {
        text += &format!("Service {service}: {connections} connections, {failed} failed\n");
    }
    text += &format!("{connections} connections, {failed} failed\n");
    let value = json!({
        "program": program, "version": version, "order": request.order, "replaced": replaced,
        "connections": connections, "failed": failed, "services": traffic,
    });
    DemoResponse::Done { text, value, succeeded: failed == 0 }
}

//! `zoneward demo`: a cluster of three zones on this machine, made of network namespaces, with real traffic.
//!
//! ```text
//! host:   zoneward demo (this process: runs the steps and reports)
//!           |-- zoneward up --no-node         the API and the controllers; kubectl works meanwhile
//!           '-- zoneward demo namespace-host  in its own user and network namespaces
//!                 |-- 6 x zoneward node       each in a namespace, connected to the API by its unix socket
//!                 |-- 30 pods and more        each a namespace with a server that answers with its name, node and zone
//!                 '-- 6 x zoneward mesh proxy each in a client's namespace, for the canary
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod canary;
mod closed_loop;
mod command_socket;
mod data_dir;
mod demo_cluster;
mod deviation;
mod exec;
mod layout;
mod measure;
mod namespace_client;
mod namespace_host;
mod objects;
mod protocol;
mod report;
mod scale;
mod steps;
mod traffic;
mod upgrade;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use clock::Clock;
use model::Family;
use serde_json::json;

use cluster::ObjectKind;
use cluster::signals::Signals;
use data_dir::DataDir;
use demo_cluster::DemoCluster;
use objects::MECHANISMS;
use output::{Format, OutputArgs};
use output::{print_text, print_value};
use report::{Console, DemoReport};

/// `zoneward demo`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DemoArgs {
    #[command(subcommand)]
    pub command: Option<DemoCommand>,
    /// Keep the cluster running afterwards, until Ctrl-C
    #[arg(long)]
    pub keep: bool,
    /// Build the cluster without running the steps; use with --keep for experiments
    #[arg(long)]
    pub bare: bool,
    /// Directory for data and logs; must be empty or missing [default: a temporary directory of its own]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Address family of connections
    #[arg(long, value_name = "FAMILY", default_value = "ipv4")]
    pub ip_family: IpFamily,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `zoneward demo ...`
#[derive(Debug, Subcommand)]
pub enum DemoCommand {
    /// Run a command in the network namespace of a node or pod of a running demo
    ///
    /// KUBECONFIG, NODE_NAME and PATH are set so that kubectl and `zoneward` work there. Requires a demo started with
    /// --keep.
    #[command(after_help = "\
Examples:
  zoneward demo exec node-a1 -- nft list ruleset
  zoneward demo exec client-b1 -- curl -s http://10.96.0.10/
  zoneward demo exec node-a1 -- kubectl get pods")]
    Exec(ExecArgs),
    /// Send traffic to a Service of a running demo and show its distribution
    ///
    /// Opens a new connection per request. Shows the measured and the planned share of connections from each zone to
    /// each zone, and the load of the busiest pod. The exit code is 1 if a share deviates from the plan or a
    /// connection fails unexpectedly. Requires a demo started with --keep.
    #[command(after_help = "\
Examples:
  zoneward demo traffic web-spill
  zoneward demo traffic web-prefersamezone --from zone-c
  zoneward demo traffic shop --from client-b1 --connections 1000 -o json")]
    Traffic(traffic::TrafficArgs),
    /// Scale an app of a running demo per zone
    #[command(after_help = "\
Examples:
  zoneward demo scale web --zone zone-c --replicas 1
  zoneward demo scale web --replicas 6")]
    Scale(scale::ScaleArgs),
    /// Move demand to one zone of a running demo, and show how Spill on measured demand follows
    ///
    /// Most connections come from zone-c, which has the fewest pods. Shows in-zone traffic and the load of the busiest
    /// pod under PreferSameZone, Spill by CPU, and Spill on measured demand before and after it followed, measured and
    /// planned. Takes half a minute to a minute. The exit code is 1 if a share deviates from the plan, or if a pod is
    /// still overloaded after two minutes. Requires a demo started with --keep.
    #[command(after_help = "\
Examples:
  zoneward demo closed-loop
  zoneward demo closed-loop -o json")]
    ClosedLoop(closed_loop::ClosedLoopArgs),
    /// Replace every process of a running demo by those of another program, under load
    ///
    /// One by one, as a Deployment and a DaemonSet do: the API with its controllers, the node proxies, and two gateways
    /// behind a Service. Meanwhile clients open connections to Services and to the gateways. The exit code is 1 if a
    /// connection fails. Requires a demo started with --keep.
    #[command(after_help = "\
Examples:
  zoneward demo upgrade --program ./zoneward-new
  zoneward demo upgrade --program ./zoneward-new --order nodes-first -o json
  zoneward demo upgrade --program ./zoneward-old --only nodes")]
    Upgrade(upgrade::UpgradeArgs),
    /// Run the namespaces of the demo; started by `zoneward demo`
    #[command(hide = true)]
    NamespaceHost(NamespaceHostArgs),
}

/// Flags that commands for a running demo share.
#[derive(Debug, Args)]
pub struct RunningDemoArgs {
    /// Data directory of the demo; required if several are running [default: that of the running demo]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl RunningDemoArgs {
    /// Sends a request to the running demo and prints its response, with more text below the table.
    fn request(&self, request: &command_socket::DemoRequest, closing: &str) -> Result<bool> {
        let folder = data_dir::of_running_demo(self.data_dir.as_deref(), Clock::system().timestamp())?;
        let (text, value, succeeded) = command_socket::send(&folder, request)?;
        match self.output.format {
            Format::Table => print_text(&format!("{text}{closing}"))?,
            format => print_value(&value, format)?,
        }
        Ok(succeeded)
    }
}

/// `zoneward demo namespace-host`
#[derive(Debug, Args)]
pub struct NamespaceHostArgs {
    /// Unix socket of the API
    #[arg(long, value_name = "PATH")]
    pub api_socket: PathBuf,
}

/// `zoneward demo exec`
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// Node or pod, such as node-a1 or client-b1
    #[arg(value_name = "NODE|POD")]
    pub target: String,
    /// Data directory of the demo; required if several are running [default: that of the running demo]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Command to run
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IpFamily {
    /// IPv4
    Ipv4,
    /// IPv6
    Ipv6,
}

pub fn run(args: &DemoArgs) -> Result<bool> {
    match &args.command {
        Some(DemoCommand::NamespaceHost(args)) => namespace_host::run(&args.api_socket).map(|()| true),
        Some(DemoCommand::Exec(exec)) => {
            let folder = data_dir::of_running_demo(exec.data_dir.as_deref(), Clock::system().timestamp())?;
            exec::run(&folder, &exec.target, &exec.command)
        }
        Some(DemoCommand::Traffic(traffic)) => traffic::run(traffic),
        Some(DemoCommand::Scale(scale)) => scale::run(scale),
        Some(DemoCommand::ClosedLoop(closed_loop)) => closed_loop::run(closed_loop),
        Some(DemoCommand::Upgrade(upgrade)) => upgrade::run(upgrade),
        None => {
            let runtime = tokio::runtime::Runtime::new().context("starting threads")?;
            runtime.block_on(run_demo(args, &Clock::system()))
        }
    }
}

/// A command line for a running demo, with the program name of this process.
fn command_line(command: &str, data_dir: Option<&Path>) -> String {
    let flag = data_dir.map(|dir| format!(" --data-dir {}", dir.display())).unwrap_or_default();
    format!("{} demo {command}{flag}", program_name())
}

/// As this program was called: it need not be on PATH.
fn program_name() -> String {
    let called = std::env::args().next().filter(|called| !called.is_empty());
    called.unwrap_or_else(|| "zoneward".to_owned())
}

/// The zones, nodes and clients that `demo traffic --from` accepts, for completion.
pub fn client_names() -> Vec<String> {
    let clients = objects::pods().into_iter().filter(|pod| pod.app == "client").map(|pod| pod.name);
    let nodes = layout::nodes().into_iter().map(|node| node.name);
    layout::ZONES.map(str::to_owned).into_iter().chain(nodes).chain(clients).collect()
}

/// Starts the cluster, runs the steps and removes everything.
async fn run_demo(args: &DemoArgs, clock: &Clock) -> Result<bool> {
    let started = clock.now();
    let folder = DataDir::claim(args.data_dir.as_deref())?;
    let mut signals = Signals::listen()?;
    let mut cluster = DemoCluster::start(&folder.path, clock.clone()).await?;
    let result = tokio::select! {
        biased;
        () = signals.wait() => Err(anyhow::anyhow!("interrupted")),
        result = run_steps(args, &mut cluster, clock, started) => result,
    };
    let mut kept = Ok(());
    if result.is_ok() && args.keep {
        let console = Console::new(args.output.format == Format::Table);
        let closing = closing(&cluster, &folder, &cluster.dashboard().await);
        kept = tokio::select! {
            biased;
            () = signals.wait() => Ok(()),
            kept = command_socket::run(&mut cluster, &console, &closing) => kept,
        };
    }
    cluster.stop().await?;
    let result = kept.and(result);
    match result {
        Ok(succeeded) => folder.remove().map(|()| succeeded),
        // After a failure, keep the logs.
        Err(error) => Err(error.context(format!("see the logs in {}", folder.path.join("logs").display()))),
    }
}

async fn run_steps(
    args: &DemoArgs,
    cluster: &mut DemoCluster,
    clock: &Clock,
    started: Instant,
) -> Result<bool> {
    let family = match args.ip_family {
        IpFamily::Ipv4 => Family::V4,
        IpFamily::Ipv6 => Family::V6,
    };
    let console = Console::new(args.output.format == Format::Table);
    build(cluster, &console).await?;
    if args.bare {
        return print_planned(args, cluster, family);
    }
    console.print(
        "\nThe same 18 web pods are behind 7 Services, one for each traffic distribution.\n\
         A client on every node connects to each of them. Distribution of the connections:\n",
    );
    console.mechanism_header();
    let mechanisms =
        steps::compare(cluster, family, |mechanism, measured| console.mechanism(mechanism, measured)).await?;
    console.mechanism_summary(&mechanisms);
    console.print("\nRemoving all web pods of zone-c ...");
    let fallback = steps::fail_over(cluster, "zone-c", family).await?;
    console.fallback(&fallback);
    console.print("\nReplacing every pod of Service shop while a client connects ...");
    let rolling = steps::rolling_update(cluster, family, |done, all| console.progress(done, all)).await?;
    console.rolling(&rolling);
    console.print(
        "\nCanary: Service cart has v1 on every node, and v2 in zone-a and zone-b only. The\n\
         sidecar of each client sends 10 % of the requests to v2, and each request to the\n\
         nearest pods of its version ...",
    );
    let canary = canary::run(cluster).await?;
    console.canary(&canary);
    let report =
        DemoReport { mechanisms, fallback, rolling, canary, seconds: clock.since(started).as_secs_f64() };
    console.summary(&report);
    if args.output.format != Format::Table {
        print_value(&report.value(), args.output.format)?;
    }
    Ok(report.deviations().is_empty())
}

/// The planned traffic of each mechanism, for `--bare`.
fn print_planned(args: &DemoArgs, cluster: &DemoCluster, family: Family) -> Result<bool> {
    let clients = cluster.clients();
    let shares = MECHANISMS.map(|mechanism| {
        let planned = cluster.planned(&demo_cluster::key(&mechanism.service()), family, &clients);
        (mechanism.name.to_owned(), json!(planned.zones))
    });
    let expected: serde_json::Map<String, serde_json::Value> = shares.into_iter().collect();
    if args.output.format != Format::Table {
        print_value(&json!({"expected": expected}), args.output.format)?;
    }
    Ok(true)
}

/// Creates nodes, pods and Services, and waits until all nodes have programmed their rules.
async fn build(cluster: &mut DemoCluster, console: &Console) -> Result<()> {
    console.print("Creating a cluster of network namespaces: 3 zones with 2 nodes each ...");
    let nodes = layout::nodes();
    for node in &nodes {
        cluster.add_node(node).await?;
    }
    console.print(
        "Starting 30 pods: 18 web servers (8 in zone-a, 6 in zone-b, 4 in zone-c), and\n\
         on each node a pod of Service shop and a client ...",
    );
    for pod in objects::pods() {
        cluster.add_pod(pod).await?;
    }
    for mechanism in MECHANISMS {
        cluster.create(ObjectKind::Service, mechanism.object()).await?;
    }
    cluster.create(ObjectKind::Service, objects::service("shop", "shop")).await?;
    cluster.create(ObjectKind::Service, objects::measured_service()).await?;
    console.print("Waiting for the controllers to write the EndpointSlices ...");
    // Slices of both families.
    let complete = |snapshot: &model::Snapshot| {
        let of = |name: &str, count: usize| {
            let key = model::ServiceKey::new(&objects::NAMESPACE.into(), &name.into());
            let endpoints: usize = snapshot.slices(&key).iter().map(|s| s.content.endpoints.len()).sum();
            endpoints == 2 * count
        };
        let is_complete = MECHANISMS.iter().all(|mechanism| of(&mechanism.service(), 18));
        is_complete && of("shop", 6) && of(objects::MEASURED_SERVICE, 18)
    };
    cluster.until("EndpointSlices for all Services", complete).await?;
    console.print("Starting a node proxy on each node ...");
    for node in &nodes {
        cluster.start_proxy(node, None).await?;
    }
    cluster.until_programmed().await?;
    cluster.capture().await?;
    cluster.write_state()
}

/// Commands to try while the cluster keeps running.
fn closing(cluster: &DemoCluster, folder: &DataDir, dashboard: &str) -> String {
    let spill = cluster
        .address(&demo_cluster::key("web-spill"), Family::V4)
        .map(|to| to.to_string())
        .unwrap_or_default();
    let host = spill.trim_end_matches(":80");
    let [traffic, closed_loop, scale, exec] = ["traffic", "closed-loop", "scale", "exec"]
        .map(|command| command_line(command, folder.flag.as_deref()));
    format!(
        "\nThe dashboard is at {dashboard}\nIts costs are at {price} USD per GB between zones, as on AWS.\n\
         Data and logs are in {path}{beside}.\n\n\
         Everything keeps running until Ctrl-C. In another terminal:\n\n\
         Move demand to zone-c, and see traffic follow:\n  \
         {closed_loop}\n\n\
         Send traffic, remove pods in zone-c, and see traffic move:\n  \
         {traffic} web-spill\n  \
         {scale} web --zone zone-c --replicas 1\n  \
         {traffic} web-spill\n\n\
         One request from a pod, and the pod that answers it:\n  \
         {exec} client-b1 -- curl -s http://{host}/\n\n\
         Trace a packet through the rules of a node:\n  \
         {exec} node-b1 -- \\\n    \
         zoneward trace packet --live \\\n    \
         --packet 'tcp 10.1.3.2:40000 -> {spill}'\n\n\
         What crosses zones, what it costs, and what to change:\n  \
         {program} status -A --kubeconfig {kubeconfig}\n\n\
         The cluster itself:\n  \
         kubectl --kubeconfig {kubeconfig} get pods -o wide",
        price = demo_cluster::PRICE,
        path = cluster.folder.display(),
        beside = if folder.is_beside_another() { ", because another demo is running" } else { "" },
        program = program_name(),
        kubeconfig = cluster.kubeconfig.display(),
    )
}

//! `zoneward demo`: a cluster of three zones on this machine, made of network namespaces, with real traffic.
//!
//! ```text
//! host:   zoneward demo (this process: tells the story)
//!           |-- zoneward up --no-node         the API and the controllers; kubectl works meanwhile
//!           '-- zoneward demo stage           in its own user and network namespaces
//!                 |-- 6 x zoneward node       each in a namespace, speaks to the API by its unix socket
//!                 |-- 30 pods and more        each a namespace with a server that answers with its name, node and zone
//!                 '-- 6 x zoneward mesh proxy each in a client's namespace, for the canary
//! ```

mod acts;
mod canary;
mod director;
mod exec;
mod kept;
mod layout;
mod measure;
mod objects;
mod protocol;
mod report;
mod scale;
mod stage;
mod traffic;
mod verdict;
mod world;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use model::Family;
use serde_json::json;

use cluster::ResourceKind;
use cluster::signals::Signals;
use objects::MECHANISMS;
use output::{Format, Output, print_value};
use report::{Report, Teller};
use world::World;

/// `zoneward demo`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Demo {
    #[command(subcommand)]
    #[allow(missing_docs)]
    pub command: Option<DemoCommand>,
    /// Leave everything running afterwards, until Ctrl-C
    #[arg(long)]
    pub keep: bool,
    /// Make the cluster and tell no story: with --keep, something to try things on
    #[arg(long)]
    pub bare: bool,
    /// Where data and logs go; it must be empty or missing [default: a temporary folder]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The family of the addresses that clients connect to
    #[arg(long, value_name = "FAMILY", default_value = "ipv4")]
    pub ip_family: IpFamily,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
}

/// `zoneward demo ...`
#[derive(Debug, Subcommand)]
pub enum DemoCommand {
    /// Run a command in the namespace of a node or pod of a demo that was started with --keep
    ///
    /// There, KUBECONFIG names a kubeconfig that works in the namespace, NODE_NAME is the node, and `zoneward` is this
    /// program.
    #[command(after_help = "\
Examples:
  zoneward demo exec node-a1 -- nft list ruleset
  zoneward demo exec client-b1 -- curl -s http://10.96.0.10/
  zoneward demo exec node-a1 -- kubectl get pods")]
    Exec(Exec),
    /// Send traffic to a Service of a demo that was started with --keep, and show where it went
    ///
    /// Clients connect one after the other, each time anew. Shows the share of connections that went from each zone to
    /// each zone beside the planned one, and the busiest pod's load. The exit code is 1 if a share is out of line with
    /// the plan or a connection failed that should not have.
    #[command(after_help = "\
Examples:
  zoneward demo traffic web-spill
  zoneward demo traffic web-prefersamezone --from zone-c
  zoneward demo traffic shop --from client-b1 --connections 1000 -o json")]
    Traffic(traffic::Traffic),
    /// Change the number of pods in the zones of a demo that was started with --keep
    #[command(after_help = "\
Examples:
  zoneward demo scale web --zone zone-c --replicas 1
  zoneward demo scale web --replicas 6")]
    Scale(scale::Scale),
    /// The namespaces of the demo; started by it
    #[command(hide = true)]
    Stage(Stage),
}

/// `zoneward demo stage`
#[derive(Debug, Args)]
pub struct Stage {
    /// The unix socket of the API
    #[arg(long, value_name = "PATH")]
    pub api_socket: PathBuf,
}

/// `zoneward demo exec`
#[derive(Debug, Args)]
pub struct Exec {
    /// A node or pod, as node-a1 or client-b1
    #[arg(value_name = "NODE|POD")]
    pub place: String,
    /// Where the demo has its data [default: where the demo puts it]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// The family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IpFamily {
    /// IPv4
    Ipv4,
    /// IPv6
    Ipv6,
}

/// Runs the command.
pub fn run(args: &Demo) -> Result<bool> {
    match &args.command {
        Some(DemoCommand::Stage(stage)) => stage::run(&stage.api_socket).map(|()| true),
        Some(DemoCommand::Exec(exec)) => {
            exec::run(&exec.data_dir.clone().unwrap_or_else(default_folder), &exec.place, &exec.command)
        }
        Some(DemoCommand::Traffic(traffic)) => traffic::run(traffic),
        Some(DemoCommand::Scale(scale)) => scale::run(scale),
        None => {
            let runtime = tokio::runtime::Runtime::new().context("starting threads")?;
            runtime.block_on(tell(args))
        }
    }
}

/// A command of a kept demo to copy, as this program was called.
fn typed(command: &str, data_dir: Option<&Path>) -> String {
    let called = std::env::args().next().filter(|called| !called.is_empty());
    let flag = data_dir.map(|dir| format!(" --data-dir {}", dir.display())).unwrap_or_default();
    format!("{} demo {command}{flag}", called.as_deref().unwrap_or("zoneward"))
}

/// One for each user, so that `demo exec` finds it.
fn default_folder() -> PathBuf {
    std::env::temp_dir().join(format!("zoneward-demo-{}", nix::unistd::Uid::current()))
}

/// From nothing to the last line, with everything taken away again.
async fn tell(args: &Demo) -> Result<bool> {
    let folder = args.data_dir.clone().unwrap_or_else(default_folder);
    let begun = Instant::now();
    let ours = prepare(&folder, args.data_dir.is_none())?;
    let mut signals = Signals::listen()?;
    let mut world = World::start(&folder).await?;
    let told = tokio::select! {
        told = story(args, &mut world, begun) => told,
        () = signals.wait() => Err(anyhow::anyhow!("stopped before the end")),
    };
    let mut kept = Ok(());
    if told.is_ok() && args.keep {
        let teller = Teller::new(args.output.format == Format::Table);
        let closing = closing(&world, args);
        kept = tokio::select! {
            kept = kept::run(&mut world, &teller, &closing) => kept,
            () = signals.wait() => Ok(()),
        };
    }
    world.end().await?;
    let told = kept.and(told);
    // After a failure the logs are worth more than a tidy folder.
    if told.is_ok() && ours {
        std::fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    told.map_err(|error| error.context(format!("the logs are in {}", folder.join("logs").display())))
}

/// Whether the folder is ours to remove. What an earlier demo left behind is replaced.
fn prepare(folder: &Path, ours: bool) -> Result<bool> {
    exec::check_owner(folder)?;
    if folder.join("places.json").exists() && exec::is_running(folder) {
        bail!("a demo is running already, with its data in {}: end it with Ctrl-C there", folder.display());
    }
    let begun_earlier = folder.join("logs").exists();
    if ours && begun_earlier {
        std::fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
    } else if folder.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("--data-dir {}: it is not empty; name one that is empty or missing", folder.display());
    }
    Ok(ours)
}

async fn story(args: &Demo, world: &mut World, begun: Instant) -> Result<bool> {
    let family = match args.ip_family {
        IpFamily::Ipv4 => Family::V4,
        IpFamily::Ipv6 => Family::V6,
    };
    let teller = Teller::new(args.output.format == Format::Table);
    build(world, &teller).await?;
    if args.bare {
        return made(args, world, family);
    }
    teller.say(
        "\nThe same 18 web pods are behind 7 Services, one for each traffic distribution.\n\
         A client on every node connects to each of them; where did the connections go?\n",
    );
    teller.head();
    let mechanisms =
        acts::compare(world, family, |mechanism, measured| teller.mechanism(mechanism, measured)).await?;
    teller.compared(&mechanisms);
    teller.say("\nTaking all web pods of zone-c away ...");
    let fallback = acts::fall_back(world, "zone-c", family).await?;
    teller.fallback(&fallback);
    teller.say("\nReplacing every pod of Service shop by a new one, while a client connects ...");
    let rolling = acts::roll(world, family, |done, all| teller.progress(done, all)).await?;
    teller.rolling(&rolling);
    teller.say(
        "\nA canary: Service cart has v1 on every node, and v2 in zone-a and zone-b only.\n\
         An L7 proxy beside each client sends a tenth of the requests to v2, and each\n\
         request to the nearest pods of its version ...",
    );
    let canary = canary::play(world).await?;
    teller.canary(&canary);
    let report = Report { mechanisms, fallback, rolling, canary, seconds: begun.elapsed().as_secs_f64() };
    teller.end(&report);
    if args.output.format != Format::Table {
        print_value(&report.value(), args.output.format)?;
    }
    Ok(report.complaints().is_empty())
}

/// What a cluster without a story is good for: where each mechanism's traffic should go.
fn made(args: &Demo, world: &World, family: Family) -> Result<bool> {
    let clients = world.clients();
    let shares = MECHANISMS.map(|mechanism| {
        let planned = world.planned(&world::key(&mechanism.service()), family, &clients);
        (mechanism.name.to_owned(), json!(planned.zones))
    });
    let expected: serde_json::Map<String, serde_json::Value> = shares.into_iter().collect();
    if args.output.format != Format::Table {
        print_value(&json!({"expected": expected}), args.output.format)?;
    }
    Ok(true)
}

/// Nodes, pods and Services, until every kernel has its rules.
async fn build(world: &mut World, teller: &Teller) -> Result<()> {
    teller.say("Making a cluster of network namespaces: 3 zones with 2 nodes each ...");
    let nodes = layout::nodes();
    for node in &nodes {
        world.add_node(node).await?;
    }
    teller.say(
        "Starting 30 pods: 18 web servers (8 in zone-a, 6 in zone-b, 4 in zone-c), and\n\
         on each node a pod of Service shop and a client ...",
    );
    for pod in objects::pods() {
        world.add_pod(pod).await?;
    }
    for mechanism in MECHANISMS {
        world.create(ResourceKind::Service, mechanism.object()).await?;
    }
    world.create(ResourceKind::Service, objects::service("shop", "shop")).await?;
    teller.say("Waiting for the controllers to write the EndpointSlices ...");
    // Of both families, for each of the Services.
    let complete = |snapshot: &model::Snapshot| {
        let of = |name: &str, count: usize| {
            let key = model::ServiceKey::new(&objects::NAMESPACE.into(), &name.into());
            let endpoints: usize = snapshot.slices(&key).iter().map(|s| s.content.endpoints.len()).sum();
            endpoints == 2 * count
        };
        MECHANISMS.iter().all(|mechanism| of(&mechanism.service(), 18)) && of("shop", 6)
    };
    world.until("EndpointSlices for all Services", complete).await?;
    teller.say("Starting a node proxy on each node, which programs its kernel ...");
    for node in &nodes {
        world.start_proxy(node).await?;
    }
    world.until_programmed().await?;
    world.capture().await?;
    world.write_places()
}

/// What can be done while it keeps running: commands to copy.
fn closing(world: &World, args: &Demo) -> String {
    let spill =
        world.address(&world::key("web-spill"), Family::V4).map(|to| to.to_string()).unwrap_or_default();
    let host = spill.trim_end_matches(":80");
    let [traffic, scale, exec] =
        ["traffic", "scale", "exec"].map(|command| typed(command, args.data_dir.as_deref()));
    format!(
        "\nEverything keeps running until Ctrl-C. In another terminal:\n\n\
         Send traffic, take pods away in zone-c, and see traffic move:\n  \
         {traffic} web-spill\n  \
         {scale} web --zone zone-c --replicas 1\n  \
         {traffic} web-spill\n\n\
         One request from a pod, and the pod that answers it:\n  \
         {exec} client-b1 -- curl -s http://{host}/\n\n\
         Where a node's kernel sends a packet, and why:\n  \
         {exec} node-b1 -- \\\n    \
         zoneward trace packet --live \\\n    \
         --packet 'tcp 10.1.3.2:40000 -> {spill}'\n\n\
         The cluster itself:\n  \
         kubectl --kubeconfig {} get pods -o wide",
        world.kubeconfig.display(),
    )
}

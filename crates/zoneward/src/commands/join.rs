//! `zoneward join`: this machine as a node of the embedded API of another one.
//!
//! ```text
//! --token, --ca-hash -> credential -> DIR/kubeconfig (renewed in time) -> node proxy, a child process
//!                       Node, Lease, Events, exposed slices: its own, and no others
//!                       health checks of its exposed processes
//!                       a credential per sidecar and gateway, each a child process
//! ```

mod authority_discovery;
mod credential;
mod proxies;
pub(super) mod proxy_credentials;

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::health_checks::readiness::CheckScope;
use ::node::dns::DnsFlags;
use anyhow::{Context, Result, bail};
use clap::Args;
use clock::Clock;
use kube::Client;
use model::random::Random;
use tokio::sync::watch;
use tracing::{info, warn};

use super::up::{check_rights, machine, mesh};
use crate::cli;
use crate::health_checks::{self, HealthCheckMetrics};
use cluster::admin_server::access::AdminAccessArgs;
use cluster::admin_server::controller_health::{self, ApiHealth};
use cluster::admin_server::{self, HealthChecks};
use cluster::log;
use cluster::signals::Signals;
use cluster::supervisor::{self, ChildPrivileges, ChildProgram, RestartBackoff};
use cluster::{Connection, failure, systemd};
use credential::{JoinFlags, NodeCredential};
use proxies::ProxyFlags;

/// Interval between attempts to register the Node.
const REGISTER_RETRY: Duration = Duration::from_secs(5);

/// `zoneward join`
#[derive(Debug, Args)]
pub struct Join {
    /// URL of the API, such as https://box-1:6443; without a token, it replaces that of the stored credential
    #[arg(value_name = "URL")]
    pub server: Option<String>,
    /// Token of `zoneward token create`; valid once, and ignored while the stored credential is valid
    #[arg(long, value_name = "TOKEN", requires = "ca_hash", requires = "server")]
    pub token: Option<String>,
    /// Hash of the API's certificate authority, as `zoneward token create` prints it
    #[arg(long, value_name = "sha256:HEX", requires = "token")]
    pub ca_hash: Option<String>,
    /// Data directory, for the credential; created if missing
    #[arg(long, value_name = "DIR", default_value = "/var/lib/zoneward-join")]
    pub data_dir: PathBuf,
    /// Zone of this machine; set as a label of its Node
    #[arg(long, value_name = "NAME")]
    pub zone: Option<String>,
    /// KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) of the node proxy
    #[arg(long, value_name = "FILE", conflicts_with = "no_node")]
    pub node_config: Option<PathBuf>,
    /// Let the node proxy watch only the EndpointSlices that its zone needs; for `up --subset-slices`
    #[arg(long, conflicts_with = "no_node")]
    pub watch_own_zone: bool,
    /// Do not run a node proxy: only register the Node and keep its credential
    #[arg(long)]
    pub no_node: bool,
    #[command(flatten)]
    pub proxies: ProxyFlags,
    /// Listen address of /healthz, /livez, /readyz and /metrics of this command, with the health checks of exposed
    /// processes; port 0 picks a free port [default: 127.0.0.1:10270, or a free port if it is in use]
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = cli::listen_address)]
    pub metrics_bind_address: Option<SocketAddr>,
    #[command(flatten)]
    pub access: AdminAccessArgs,
    #[command(flatten)]
    pub dns: DnsFlags,
    #[command(flatten)]
    pub log: log::LogArgs,
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: &Join) -> Result<bool> {
    log::start(&args.log);
    let runtime = tokio::runtime::Runtime::new().context("starting threads")?;
    runtime.block_on(serve(args))?;
    Ok(true)
}

async fn serve(args: &Join) -> Result<()> {
    check(args)?;
    let mut signals = Signals::listen()?;
    let clock = Clock::system();
    create_folder(&args.data_dir)?;
    let overseers = admin_server::listen_or_fallback_port(
        args.metrics_bind_address,
        controller_health::ADDRESS,
        "--metrics-bind-address",
    )
    .await?;
    let kubeconfig = args.data_dir.join("kubeconfig");
    let credential =
        credential::obtain(&kubeconfig, args.server.as_deref(), flags(args).as_ref(), &clock).await?;
    let node = credential.node.clone();
    info!(node, server = credential.server, "joined");
    let connection = Connection { kubeconfig: Some(kubeconfig.clone()), ..Connection::default() };
    let client = cluster::connect(&connection, &clock).await?;
    let (stop, stopped) = watch::channel(false);
    let keeping =
        tokio::spawn(credential::keep(client.clone(), kubeconfig.clone(), clock.clone(), stopped.clone()));
    let mut registry = admin_server::registry("join");
    let checks = HealthCheckMetrics::default();
    checks.register(&mut registry);
    let scope = CheckScope { node: node.clone(), without_node: false };
    let mut random = Random::seeded(clock::os_seed());
    let checking =
        health_checks::run(client.clone(), scope, clock.clone(), random.split(), checks, stopped.clone());
    let checking = tokio::spawn(checking);
    let health = ApiHealth::poll(client.clone(), clock.clone(), stopped.clone());
    let ready = HealthChecks::default().check("api", move || health.check());
    let access = args.access.access(overseers.local_addr()?, Some(client.clone()), &clock)?;
    let routes = controller_health::routes(registry, ready).with_access(access);
    let overseen = tokio::spawn(admin_server::serve(overseers, routes, stopped.clone()));
    let registering =
        tokio::spawn(register(client.clone(), node.clone(), args.zone.clone(), stopped.clone()));
    let (children_stop, children_stopped) = watch::channel(false);
    let proxies =
        args.proxies.supervisor(&node, args.zone.as_deref(), &args.access, args.log.logging_format)?;
    let proxies = match proxies {
        None => None,
        Some(proxies) => {
            let access = proxies::access(client.clone(), &kubeconfig, &node, &clock)?;
            let (random, stopped) = (random.split(), children_stopped.clone());
            Some(tokio::spawn(mesh::keep(client, access, clock.clone(), random, proxies, stopped)))
        }
    };
    let node_proxy = match args.no_node {
        true => None,
        false => {
            let program = node_proxy(args, &kubeconfig, &credential)?;
            let supervised =
                supervisor::supervise(program, RestartBackoff::default(), clock, children_stopped);
            Some(tokio::spawn(supervised))
        }
    };
    output::print_text(&format!("{}\n", kubeconfig.display()))?;
    systemd::notify_ready();
    signals.wait().await;
    info!("stopping; rules stay in place");
    children_stop.send_replace(true);
    if let Some(node_proxy) = node_proxy {
        node_proxy.await.context("supervisor of the node proxy panicked")?;
    }
    if let Some(proxies) = proxies {
        proxies.await.context("supervisor of the L7 proxies panicked")?;
    }
    stop.send_replace(true);
    overseen.await.context("admin server task panicked")?;
    checking.await.context("the health checks panicked")?;
    keeping.await.context("the renewal of the credential panicked")?;
    registering.await.context("the registration of the Node panicked")
}

fn check(args: &Join) -> Result<()> {
    if !args.no_node {
        check_rights()?;
    } else if args.dns.dns.is_some() {
        bail!("--dns is served by the node proxy: leave out --no-node, or --dns");
    }
    args.proxies.check()
}

fn create_folder(folder: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("creating {}", folder.display()))?;
    if folder.join("store").exists() {
        bail!(
            "{} is the data directory of `zoneward up`, whose machine has joined: use another one with --data-dir",
            folder.display()
        );
    }
    Ok(())
}

fn flags(args: &Join) -> Option<JoinFlags> {
    let (server, token, ca_hash) = (args.server.clone()?, args.token.clone()?, args.ca_hash.clone()?);
    Some(JoinFlags { server, token, ca_hash })
}

/// Registers the Node. The API may be away at a restart: the node proxy does not wait for it.
async fn register(client: Client, node: String, zone: Option<String>, mut stop: watch::Receiver<bool>) {
    let mut is_failing = false;
    loop {
        let registered = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            registered = machine::register(client.clone(), &node, zone.as_deref(), "join") => registered,
        };
        let Err(error) = registered else { break };
        if !is_failing {
            warn!(node, error = failure::text(&error), "the Node is not registered; retrying");
        }
        is_failing = true;
        if tokio::time::timeout(REGISTER_RETRY, stop.wait_for(|stop| *stop)).await.is_ok() {
            return;
        }
    }
    info!(node, "Node registered");
}

/// The node proxy as a child process, as that of `zoneward up`.
fn node_proxy(args: &Join, kubeconfig: &Path, credential: &NodeCredential) -> Result<ChildProgram> {
    let path = std::env::current_exe().context("path of this program")?;
    let mut words: Vec<OsString> = vec!["node".into(), "--kubeconfig".into(), kubeconfig.into()];
    words.extend(["--hostname-override", &credential.node].map(OsString::from));
    words.extend(["--snapshot".into(), kubeconfig.with_file_name("snapshot.json").into()]);
    words.extend(args.dns.words());
    words.extend(["--logging-format", args.log.logging_format.as_str()].map(OsString::from));
    words.extend(args.watch_own_zone.then(|| "--watch-own-zone".into()));
    match &args.node_config {
        Some(config) => words.extend(["--config".into(), config.into()]),
        None => words.extend(["--proxy-mode", "nftables", "--nodeport-addresses", "all"].map(OsString::from)),
    }
    Ok(ChildProgram {
        name: "node".to_owned(),
        path,
        args: words,
        log: args.log.logging_format,
        privileges: ChildPrivileges::Inherited,
    })
}

//! `zoneward mesh proxy`: flags into settings, then the proxy until it is told to stop.

use std::fs::OpenOptions;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{ArgGroup, Args};
use clock::{Clock, os_seed};
use model::Name;
use model::random::Random;
use proxy::{
    AccessLog, DirectResponseSources, LoadBalancerSettings, Proxy, ProxyLimits, ProxyOptions, ProxyTables,
    ProxyTimeouts,
};
use tokio::sync::watch;

use crate::cli;
use cluster::admin_server::{self, AdminRoutes, HealthChecks};
use cluster::log;
use cluster::signals::Signals;
use mesh::embedded_proxy::{EmbeddedProxyConfig, ProxyHealth, outbound};
use mesh::object_source::ObjectSource;
use mesh::{ProxyIdentity, ProxyRole, run};

/// Where health and metrics are, unless `--bind-address` says otherwise.
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_271);
/// The port that connections are redirected to, unless `--redirect=PORT` says otherwise.
const REDIRECT_PORT: &str = "15001";

/// `zoneward mesh proxy`
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("role").required(true).args(["gateway", "from"]))]
#[command(group = ArgGroup::new("ways").multiple(true).args(["outbound", "redirect"]))]
pub struct ProxyArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: cluster::input::InputArgs,
    /// Be this MeshGateway, or one listener of it
    #[arg(long, value_name = "NAME[:LISTENER]")]
    pub gateway: Option<String>,
    /// Be the sidecar of a client: a pod of this Service, with these labels
    #[arg(long, value_name = "SERVICE[,TAG=VALUE...]", requires = "ways")]
    pub from: Option<String>,
    /// As a sidecar, listen on a port for a Service; may be repeated
    #[arg(long, value_name = "PORT=SERVICE[:PORT]", requires = "from", conflicts_with = "gateway")]
    pub outbound: Vec<String>,
    /// As a sidecar, let the kernel send TCP connections to Services here; needs NET_ADMIN in the pod's namespace
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = REDIRECT_PORT)]
    #[arg(requires = "from", conflicts_with = "gateway")]
    pub redirect: Option<u16>,
    /// The node that it runs on [default: $NODE_NAME, or the host's name]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// The zone that it is in [default: that of the Node]
    #[arg(long, value_name = "NAME")]
    pub zone: Option<String>,
    /// The address to listen on; may be repeated [default: a gateway everywhere, a sidecar on loopback]
    #[arg(long, value_name = "IP")]
    pub bind: Vec<IpAddr>,
    /// Threads that carry requests [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub threads: Option<usize>,
    /// How long open connections may take to end after the stop
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = model::duration::parse)]
    pub drain: Duration,
    /// Where a JSON line for each request goes; - is standard output
    #[arg(long, value_name = "FILE|-")]
    pub access_log: Option<PathBuf>,
    /// A file that direct responses may read; may be repeated
    #[arg(long, value_name = "FILE")]
    pub allow_file: Vec<PathBuf>,
    /// An environment variable that direct responses may read; may be repeated
    #[arg(long, value_name = "NAME")]
    pub allow_env: Vec<String>,
    /// How much of everything, and for how long.
    #[command(flatten)]
    pub bounds: Bounds,
    /// Where /healthz, /livez, /readyz and /metrics are served; port 0 takes a free one [default: 127.0.0.1:10271,
    /// or a free port if that one is taken]
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = cli::listen_address)]
    pub bind_address: Option<SocketAddr>,
    /// How logs look.
    #[command(flatten)]
    pub log: log::LogArgs,
}

/// The limits and timeouts of a proxy.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Limits and timeouts")]
pub struct Bounds {
    /// Connections of clients at once; more wait
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = at_least_one)]
    pub max_connections: usize,
    /// Requests in flight; more get 503
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = at_least_one)]
    pub max_requests: usize,
    /// Concurrent streams of one HTTP/2 connection
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_streams: u32,
    /// Bytes of a request's headers; more is 431
    #[arg(long, value_name = "BYTES", default_value_t = 65_536, value_parser = at_least_one)]
    pub max_header_bytes: usize,
    /// Bytes of a request's body; more is 413 [default: any number]
    #[arg(long, value_name = "BYTES")]
    pub max_body_bytes: Option<u64>,
    /// Bytes of bodies that are held, of all requests together; when there are so many, new requests get 503
    #[arg(long, value_name = "BYTES", default_value_t = 268_435_456, value_parser = at_least_one)]
    pub max_held_body_bytes: usize,
    /// Idle connections kept to one endpoint
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub max_idle_per_endpoint: usize,
    /// Further attempts when no connection to an endpoint could be made
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub retries: u32,
    /// For a client to send the headers of a request
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = model::duration::parse)]
    pub header_timeout: Duration,
    /// For a connection to an endpoint
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = model::duration::parse)]
    pub connect_timeout: Duration,
    /// For an endpoint to begin its answer; longer is 504
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = model::duration::parse)]
    pub response_timeout: Duration,
    /// Between two pieces of a body or of a TCP stream
    #[arg(long, value_name = "DURATION", default_value = "300s", value_parser = model::duration::parse)]
    pub idle_timeout: Duration,
    /// That an unused connection to an endpoint is kept
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = model::duration::parse)]
    pub keep_timeout: Duration,
    /// Failures in a row after which an endpoint is left out for a while
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub eject_after: u32,
    /// For how long at first
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = model::duration::parse)]
    pub eject_for: Duration,
    /// Of how many in a hundred endpoints of a backend at most
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub max_ejected: u32,
    /// How long a new endpoint takes to its full share; 0 for at once
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = model::duration::parse)]
    pub slow_start: Duration,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a whole number from 1 up belongs here".to_owned()),
        Ok(number) => Ok(number),
    }
}

impl Bounds {
    fn limits(&self) -> ProxyLimits {
        ProxyLimits {
            connections: self.max_connections,
            requests: self.max_requests,
            streams: self.max_streams,
            header_bytes: self.max_header_bytes,
            body_bytes: self.max_body_bytes.unwrap_or(u64::MAX),
            held_body_bytes: self.max_held_body_bytes,
            idle_per_endpoint: self.max_idle_per_endpoint,
            retries: self.retries,
            ..ProxyLimits::default()
        }
    }

    fn timeouts(&self) -> ProxyTimeouts {
        ProxyTimeouts {
            headers: self.header_timeout,
            connect: self.connect_timeout,
            response: self.response_timeout,
            idle: self.idle_timeout,
            keep: self.keep_timeout,
        }
    }

    fn load_balancing(&self) -> LoadBalancerSettings {
        LoadBalancerSettings {
            consecutive_failures: self.eject_after,
            base_ejection_time: self.eject_for,
            max_ejection_percent: self.max_ejected,
            slow_start: self.slow_start,
        }
    }
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: &ProxyArgs) -> Result<bool> {
    log::start(&args.log);
    let mut runtime = match args.threads {
        // Alone, a thread needs no locks to share its work.
        Some(1) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if let Some(threads) = args.threads {
        runtime.worker_threads(threads);
    }
    let runtime = runtime.enable_all().build().context("starting threads")?;
    runtime.block_on(serve(args))?;
    Ok(true)
}

async fn serve(args: &ProxyArgs) -> Result<()> {
    let options = options(args)?;
    let log = options.access_log.clone();
    let mut signals = Signals::listen()?;
    let (source, namespace) = source(args).await?;
    let plan = plan(args, &Name::new(&namespace))?;
    let listener =
        admin_server::listen_or_fallback_port(args.bind_address, ADDRESS, "--bind-address").await?;
    let proxy = Proxy::new(options, ProxyTables::default());
    let health = Arc::new(ProxyHealth::new());
    let (done, finished) = watch::channel(false);
    let server = tokio::spawn(admin_server::serve(listener, pages(&proxy, &health), finished));
    let ended = run::run(plan, source, proxy, health, signals.wait()).await;
    done.send_replace(true);
    server.await.context("the server of health and metrics ended badly")?;
    if let Some(log) = log {
        log.flush();
    }
    ended
}

/// Where the world comes from, and the namespace that names without one are in.
async fn source(args: &ProxyArgs) -> Result<(ObjectSource, String)> {
    let input = &args.input;
    if !input.files.is_empty() {
        let namespace = input.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let input = cluster::input::InputArgs {
            files: input.files.clone(),
            recursive: input.recursive,
            namespace: input.namespace.clone(),
            ..cluster::input::InputArgs::default()
        };
        return Ok((ObjectSource::files(input)?, namespace));
    }
    let client = cluster::connect(&input.connection, &Clock::system())
        .await
        .context("no -f is given, so routes and endpoints come from an API")?;
    let namespace = input.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    Ok((ObjectSource::cluster(client, model::random::Random::seeded(clock::os_seed())), namespace))
}

fn plan(args: &ProxyArgs, namespace: &Name) -> Result<EmbeddedProxyConfig> {
    let role = match (&args.gateway, &args.from) {
        (Some(gateway), _) => ProxyRole::gateway(gateway, namespace).context("--gateway")?,
        (None, from) => {
            let from = from.as_deref().context("say --gateway or --from")?;
            ProxyRole::sidecar(from, namespace).context("--from")?
        }
    };
    let consumer = ProxyIdentity { role, node: node(args), zone: args.zone.as_deref().map(Name::new) };
    let outbounds: Result<Vec<_>> = args.outbound.iter().map(|text| outbound(text, namespace)).collect();
    Ok(EmbeddedProxyConfig {
        identity: consumer,
        bind: args.bind.clone(),
        outbounds: outbounds?,
        redirect: args.redirect,
        drain: args.drain,
        clock: Clock::system(),
    })
}

fn node(args: &ProxyArgs) -> Name {
    let given = args.node.clone().or_else(|| std::env::var("NODE_NAME").ok());
    let given = given.filter(|name| !name.is_empty());
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Name::new(&given.unwrap_or_else(|| host().trim().to_lowercase()))
}

fn options(args: &ProxyArgs) -> Result<ProxyOptions> {
    Ok(ProxyOptions {
        limits: args.bounds.limits(),
        timeouts: args.bounds.timeouts(),
        load_balancing: args.bounds.load_balancing(),
        access_log: args.access_log.as_deref().map(access_log).transpose()?,
        direct_response_sources: DirectResponseSources {
            files: args.allow_file.iter().cloned().collect(),
            variables: args.allow_env.iter().cloned().collect(),
        },
        mark: args.redirect.map(|_| dataplane::nftables::sidecar_redirect::MARK),
        clock: Clock::system(),
        random: Random::seeded(os_seed()),
    })
}

fn access_log(path: &Path) -> Result<AccessLog> {
    let opened = if path.as_os_str() == "-" {
        AccessLog::to(io::stdout())
    } else {
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.and_then(AccessLog::to)
    };
    opened.with_context(|| format!("--access-log {}: choose a file that can be written", path.display()))
}

fn pages(proxy: &Proxy, health: &Arc<ProxyHealth>) -> AdminRoutes {
    let alive = HealthChecks::default().check("ping", || Ok(()));
    let asked = health.clone();
    let ready = HealthChecks::default().check("tables", move || asked.check());
    let mut registry = admin_server::registry("mesh-proxy");
    health.register_metrics(&mut registry);
    proxy.register_metrics(&mut registry);
    AdminRoutes::default()
        .checks("/healthz", alive.clone())
        .checks("/livez", alive)
        .checks("/readyz", ready)
        .metrics(registry)
}

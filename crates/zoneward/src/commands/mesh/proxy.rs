//! `zoneward mesh proxy`: turns flags into settings and runs the proxy until it is stopped.

use std::fs::OpenOptions;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{ArgGroup, Args};
use clock::{Clock, os_seed};
use kube::Client;
use model::Name;
use model::random::Random;
use proxy::{
    AccessLog, CircuitBreakerLimits, DirectResponseSources, LoadBalancerSettings, Proxy, ProxyLimits,
    ProxyOptions, ProxyTables, ProxyTimeouts, SpanExporter, SpanExporterOptions,
};
use tokio::sync::watch;

use crate::cli;
use crate::edge::GatewayEdgeArgs;
use crate::otlp::OtlpArgs;
use crate::retries::RetryArgs;
use cluster::admin_server::access::AdminAccessArgs;
use cluster::admin_server::{self, AdminRoutes, HealthChecks};
use cluster::ledger_client::{self, ControllerLease, LedgerClient, controller_lease};
use cluster::log;
use cluster::port_reporter::PortReporter;
use cluster::signals::Signals;
use insight::traffic_reporter::TrafficReporter;
use mesh::embedded_proxy::{EmbeddedProxyConfig, TablesHealth, outbound};
use mesh::object_source::ObjectSource;
use mesh::proxy_traffic::ProxyTraffic;
use mesh::{ProxyIdentity, ProxyRole, embedded_proxy};

/// Default of `--bind-address`.
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_271);
/// Default of `--redirect`.
const REDIRECT_PORT: &str = "15001";

/// `zoneward mesh proxy`
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("role").required(true).args(["gateway", "from"]))]
#[command(group = ArgGroup::new("ways").multiple(true).args(["outbound", "redirect"]))]
pub struct ProxyArgs {
    #[command(flatten)]
    pub input: cli::InputArgs,
    /// MeshGateway to serve, else Gateway of the Gateway API, or one listener of it
    #[arg(long, value_name = "NAME[:LISTENER]")]
    pub gateway: Option<String>,
    /// Run as the sidecar of a client: Service and labels of its pod
    #[arg(long, value_name = "SERVICE[,TAG=VALUE...]", requires = "ways")]
    pub from: Option<String>,
    /// Sidecar: listen on a loopback port for a Service; repeatable
    #[arg(long, value_name = "PORT=SERVICE[:PORT]", requires = "from", conflicts_with = "gateway")]
    pub outbound: Vec<String>,
    /// Sidecar: redirect TCP connections to Services to this port; requires NET_ADMIN in the network namespace of the
    /// pod
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = REDIRECT_PORT)]
    #[arg(requires = "from", conflicts_with = "gateway")]
    pub redirect: Option<u16>,
    /// Node of the proxy [default: $NODE_NAME, or the hostname]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Zone of the proxy [default: that of the Node]
    #[arg(long, value_name = "NAME")]
    pub zone: Option<String>,
    /// Listen address; repeatable [default: all addresses for a gateway, loopback for a sidecar]
    #[arg(long, value_name = "IP")]
    pub bind: Vec<IpAddr>,
    /// Number of worker threads [default: number of CPUs]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub threads: Option<usize>,
    /// Drain timeout of open connections at shutdown
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = model::duration::parse)]
    pub drain: Duration,
    /// Access log file, one JSON line per request; - is standard output
    #[arg(long, value_name = "FILE|-")]
    pub access_log: Option<PathBuf>,
    /// File that direct responses may read; repeatable
    #[arg(long, value_name = "FILE")]
    pub allow_file: Vec<PathBuf>,
    /// Environment variable that direct responses may read; repeatable
    #[arg(long, value_name = "NAME")]
    pub allow_env: Vec<String>,
    #[command(flatten)]
    pub edge: GatewayEdgeArgs,
    #[command(flatten)]
    pub otlp: OtlpArgs,
    #[command(flatten)]
    pub bounds: Bounds,
    /// Listen address of /healthz, /livez, /readyz and /metrics; port 0 picks a free port [default: 127.0.0.1:10271,
    /// or a free port if it is in use]
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = cli::listen_address)]
    pub bind_address: Option<SocketAddr>,
    #[command(flatten)]
    pub access: AdminAccessArgs,
    /// Lease of the leading controller, which this proxy reports its traffic to; empty disables reports
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "kube-system/zoneward-controller")]
    #[arg(value_parser = controller_lease)]
    pub controller_lease: ControllerLease,
    /// Unix socket to report traffic to, instead of the address in the Lease
    #[arg(long, value_name = "FILE")]
    pub ledger_socket: Option<PathBuf>,
    /// Name of this proxy in reports of traffic, for a proxy of a joined machine
    #[arg(long, value_name = "NAME", hide = true)]
    pub report_as: Option<String>,
    #[command(flatten)]
    pub log: log::LogArgs,
}

/// The limits and timeouts of a proxy.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Limits and timeouts")]
pub struct Bounds {
    /// Maximum number of downstream connections; further ones wait, and idle ones are closed for them
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = at_least_one)]
    pub max_connections: usize,
    /// Maximum number of concurrent requests; at the limit, a request of the client that has most gets 503
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = at_least_one)]
    pub max_requests: usize,
    /// Maximum number of concurrent streams per HTTP/2 connection
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_streams: u32,
    /// Maximum size of request headers; larger ones get 431
    #[arg(long, value_name = "BYTES", default_value_t = 65_536, value_parser = at_least_one)]
    pub max_header_bytes: usize,
    /// Maximum size of a request body; larger ones get 413 [default: unlimited]
    #[arg(long, value_name = "BYTES")]
    pub max_body_bytes: Option<u64>,
    /// Maximum total size of buffered bodies; at the limit, connections of the clients that hold most are closed
    #[arg(long, value_name = "BYTES", default_value_t = 268_435_456, value_parser = at_least_one)]
    pub max_held_body_bytes: usize,
    /// Minimum rate, in bytes per second, at which clients take responses and send bodies of known length; 0 disables
    #[arg(long, value_name = "BYTES", default_value_t = 240)]
    pub min_transfer_rate: u64,
    /// Circuit breaker: maximum number of connections to a backend, each of one HTTP/1.1 request or TCP connection
    #[arg(long, value_name = "N", default_value_t = BREAKERS.max_connections, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_backend_connections: u32,
    /// Circuit breaker: maximum number of requests that wait for a connection to a backend
    #[arg(long, value_name = "N", default_value_t = BREAKERS.max_pending_requests, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_backend_pending: u32,
    /// Circuit breaker: maximum number of concurrent requests of a backend; at the limit, a request of the client that
    /// has most gets 503
    #[arg(long, value_name = "N", default_value_t = BREAKERS.max_requests, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_backend_requests: u32,
    /// Circuit breaker: maximum number of concurrent retries of a backend
    #[arg(long, value_name = "N", default_value_t = BREAKERS.max_retries)]
    pub max_backend_retries: u32,
    /// Maximum number of idle connections per endpoint
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub max_idle_per_endpoint: usize,
    #[command(flatten)]
    pub retries: RetryArgs,
    /// Timeout for a client to send request headers
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = model::duration::parse)]
    pub header_timeout: Duration,
    /// Timeout for a client to send a whole request; returns 408; 0 disables, for long uploads and client streams
    /// [default: 300s for a gateway, 0s for a sidecar]
    #[arg(long, value_name = "DURATION", value_parser = model::duration::parse)]
    pub request_timeout: Option<Duration>,
    /// Timeout for connecting to an endpoint
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = model::duration::parse)]
    pub connect_timeout: Duration,
    /// Timeout for response headers of an endpoint; returns 504
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = model::duration::parse)]
    pub response_timeout: Duration,
    /// Idle timeout between chunks of a body or TCP stream
    #[arg(long, value_name = "DURATION", default_value = "300s", value_parser = model::duration::parse)]
    pub idle_timeout: Duration,
    /// Idle timeout of pooled connections to endpoints
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = model::duration::parse)]
    pub keep_timeout: Duration,
    /// Consecutive failures after which an endpoint is ejected
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub eject_after: u32,
    /// Duration of the first ejection
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = model::duration::parse)]
    pub eject_for: Duration,
    /// Maximum percentage of ejected endpoints per backend
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub max_ejected: u32,
    /// Slow start duration of new endpoints; 0 disables
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = model::duration::parse)]
    pub slow_start: Duration,
}

const BREAKERS: CircuitBreakerLimits = CircuitBreakerLimits::DEFAULT;
/// Default of `--request-timeout` of a gateway, as in Envoy's guide for edge proxies.
const GATEWAY_REQUEST_TIMEOUT: Duration = Duration::from_secs(300);

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a positive whole number".to_owned()),
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
            min_transfer_rate: self.min_transfer_rate,
            idle_per_endpoint: self.max_idle_per_endpoint,
            retries: self.retries.limits(),
            ..ProxyLimits::default()
        }
    }

    fn circuit_breakers(&self) -> CircuitBreakerLimits {
        CircuitBreakerLimits {
            max_connections: self.max_backend_connections,
            max_pending_requests: self.max_backend_pending,
            max_requests: self.max_backend_requests,
            max_retries: self.max_backend_retries,
        }
    }

    fn timeouts(&self, is_gateway: bool) -> ProxyTimeouts {
        let request = self.request_timeout.or(is_gateway.then_some(GATEWAY_REQUEST_TIMEOUT));
        ProxyTimeouts {
            headers: self.header_timeout,
            request: request.filter(|limit| !limit.is_zero()),
            connect: self.connect_timeout,
            response: self.response_timeout,
            idle: self.idle_timeout,
            keep: self.keep_timeout,
            ..ProxyTimeouts::default()
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
    match proxy::raise_descriptor_limit() {
        Ok((soft, hard)) if soft < hard => {
            tracing::info!(from = soft, to = hard, "raised soft limit of file descriptors");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "failed to raise soft limit of file descriptors"),
    }
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
    let mut options = options(args)?;
    let log = options.access_log.clone();
    let mut signals = Signals::listen()?;
    let (source, namespace, client) = source(args).await?;
    let plan = plan(args, &Name::new(&namespace))?;
    options.span_exporter = span_exporter(args, &plan.identity)?;
    let listener =
        admin_server::listen_or_fallback_port(args.bind_address, ADDRESS, "--bind-address").await?;
    let proxy = Proxy::new(options, ProxyTables::default());
    let health = Arc::new(TablesHealth::new());
    let (done, finished) = watch::channel(false);
    let access = args.access.access(listener.local_addr()?, client.clone(), &Clock::system())?;
    let traffic = ProxyTraffic::new(proxy.clone());
    let routes = pages(&proxy, &health, &traffic).with_access(access);
    if let Some(client) = client.and_then(|client| report_client(args, client)) {
        let reporter = reporter(args, &namespace);
        let ports = PortReporter {
            client: client.clone(),
            path: ledger_client::PORTS_PATH,
            reporter: reporter.clone(),
            ports: health.unbound_ports(),
            random: Random::seeded(os_seed()),
        };
        tokio::spawn(ports.run());
        let traffic = TrafficReporter {
            channel: Box::new(client),
            reporter,
            source: Box::new(traffic),
            clock: Clock::system(),
            random: Random::seeded(os_seed()),
        };
        tokio::spawn(traffic.run());
    }
    let server = tokio::spawn(admin_server::serve(listener, routes, finished));
    let ended = embedded_proxy::run(plan, source, proxy, health, signals.wait()).await;
    done.send_replace(true);
    server.await.context("admin server task panicked")?;
    if let Some(log) = log {
        log.flush();
    }
    ended
}

/// Where the objects come from, the namespace of names without one, and the client of the API if they come from one.
async fn source(args: &ProxyArgs) -> Result<(ObjectSource, String, Option<Client>)> {
    let input = &args.input;
    if !input.files.is_empty() {
        let namespace = input.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let input = cli::InputArgs {
            files: input.files.clone(),
            recursive: input.recursive,
            namespace: input.namespace.clone(),
            ..cli::InputArgs::default()
        };
        return Ok((ObjectSource::files(input)?, namespace, None));
    }
    let client = cluster::connect(&input.connection, &Clock::system())
        .await
        .context("reading routes and endpoints from the API, because there is no -f")?;
    let namespace = input.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    let random = model::random::Random::seeded(clock::os_seed());
    Ok((ObjectSource::cluster(client.clone(), random), namespace, Some(client)))
}

fn plan(args: &ProxyArgs, namespace: &Name) -> Result<EmbeddedProxyConfig> {
    let role = match (&args.gateway, &args.from) {
        (Some(gateway), _) => ProxyRole::gateway(gateway, namespace).context("--gateway")?,
        (None, from) => {
            let from = from.as_deref().context("--gateway or --from is required")?;
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
    Name::new(&given.unwrap_or_else(cluster::hostname))
}

fn options(args: &ProxyArgs) -> Result<ProxyOptions> {
    Ok(ProxyOptions {
        limits: args.bounds.limits(),
        timeouts: args.bounds.timeouts(args.gateway.is_some()),
        load_balancing: args.bounds.load_balancing(),
        circuit_breakers: args.bounds.circuit_breakers(),
        access_log: args.access_log.as_deref().map(access_log).transpose()?,
        direct_response_sources: DirectResponseSources {
            files: args.allow_file.iter().cloned().collect(),
            variables: args.allow_env.iter().cloned().collect(),
        },
        edge: args.edge.settings()?,
        mark: mark(args),
        clock: Clock::system(),
        random: Random::seeded(os_seed()),
        ..ProxyOptions::default()
    })
}

/// `None` unless spans are wanted.
fn span_exporter(args: &ProxyArgs, identity: &ProxyIdentity) -> Result<Option<SpanExporter>> {
    let Some(options) = args.otlp.options(identity, |name| std::env::var(name).ok())? else {
        return Ok(None);
    };
    let options = SpanExporterOptions { mark: mark(args), random: Random::seeded(os_seed()), ..options };
    let ratio = options.sampling_ratio;
    tracing::info!(url = %options.url, ratio, "exporting spans");
    Ok(Some(SpanExporter::start(options).context("OpenTelemetry exporter")?))
}

/// Connections of the proxy itself are not redirected to it.
fn mark(args: &ProxyArgs) -> Option<u32> {
    args.redirect.map(|_| dataplane::nftables::sidecar_redirect::MARK)
}

fn access_log(path: &Path) -> Result<AccessLog> {
    let opened = if path.as_os_str() == "-" {
        AccessLog::to(io::stdout())
    } else {
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.and_then(AccessLog::to)
    };
    opened.with_context(|| format!("--access-log {}: not writable", path.display()))
}

/// Where traffic and ports are reported to, if they are.
fn report_client(args: &ProxyArgs, client: Client) -> Option<LedgerClient> {
    let connection = args.input.connection.clone();
    match (&args.ledger_socket, args.controller_lease.0.clone()) {
        (Some(socket), _) => Some(LedgerClient::to_socket(client, connection, socket)),
        (None, Some(lease)) => Some(LedgerClient::new(client, connection, lease)),
        (None, None) => None,
    }
}

/// The name of this proxy in its reports.
fn reporter(args: &ProxyArgs, namespace: &str) -> String {
    let pod = super::pod(&args.input.connection);
    args.report_as.clone().unwrap_or_else(|| format!("proxy/{namespace}/{pod}"))
}

fn pages(proxy: &Proxy, health: &Arc<TablesHealth>, traffic: &ProxyTraffic) -> AdminRoutes {
    let alive = HealthChecks::default().check("ping", || Ok(()));
    let asked = health.clone();
    let ready = HealthChecks::default().check("tables", move || asked.check());
    let mut registry = admin_server::registry("mesh-proxy");
    health.register_metrics(&mut registry);
    proxy.register_metrics(&mut registry);
    traffic.register_metrics(&mut registry);
    AdminRoutes::default()
        .checks("/healthz", alive.clone())
        .checks("/livez", alive)
        .checks("/readyz", ready)
        .metrics(registry)
}

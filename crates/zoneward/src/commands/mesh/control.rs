//! `zoneward mesh control`: turns flags into settings and runs the xDS server until it is stopped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use clock::Clock;
use kube::Client;
use store::credentials::Authority;
use tokio::sync::watch;
use tracing::{info, warn};
use xds::render::DirectResponseAllowlist;
use xds::server::{self, XdsServerSettings, XdsServerTls};

use cluster::admin_server::access::AdminAccessArgs;
use cluster::ledger_client::{self, ControllerLease, LedgerClient, controller_lease};
use cluster::port_reporter::PortReporter;
use cluster::{admin_server, log};

use crate::cli;
use crate::edge::GatewayEdgeArgs;
use crate::retries::RetryArgs;
use cluster::signals::Signals;
use mesh::control::{EnvoySettings, Subscriptions, pages, run as serve_envoys};
use mesh::object_source::ObjectSource;

/// Default of `--bind-address`.
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_272);

/// Names of the server in a certificate that it issues to itself.
const SERVER_NAMES: [&str; 2] = ["localhost", "zoneward-mesh-control"];
/// Interval between checks of the certificate files.
const TLS_POLL: Duration = Duration::from_secs(10);
/// Two thirds of the year that an issued certificate is valid.
const ISSUE_AGAIN: Duration = Duration::from_secs(243 * 86_400);

/// `zoneward mesh control`
#[derive(Debug, Args)]
pub struct ControlArgs {
    #[command(flatten)]
    pub input: cli::InputArgs,
    /// Listen address of the xDS server
    #[arg(long, value_name = "[ADDRESS:]PORT", default_value = "127.0.0.1:15010", value_parser = cli::listen_address)]
    pub listen: SocketAddr,
    /// Server certificate chain (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Server key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// CA of client certificates (PEM); requires a client certificate from every Envoy
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub client_ca: Option<PathBuf>,
    /// Data directory of `zoneward up`, whose authority issues the server certificate and verifies those of Envoys
    #[arg(long, value_name = "DIR", conflicts_with_all = ["tls_cert", "tls_key", "client_ca"])]
    pub issue: Option<PathBuf>,
    /// File with a bearer token that Envoys must send
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Allow non-loopback connections without client certificates; each Envoy gets what it asks for, private keys
    /// included
    #[arg(long)]
    pub insecure: bool,
    /// Maximum number of concurrent xDS streams
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_streams: u32,
    /// File on the Envoy host that direct responses may read; repeatable
    #[arg(long, value_name = "FILE")]
    pub allow_file: Vec<String>,
    /// Environment variable of Envoy that direct responses may read; repeatable
    #[arg(long, value_name = "NAME")]
    pub allow_env: Vec<String>,
    #[command(flatten)]
    pub edge: GatewayEdgeArgs,
    #[command(flatten)]
    pub retries: RetryArgs,
    /// Listen address of /healthz, /livez, /readyz, /metrics and /status; port 0 picks a free port [default:
    /// 127.0.0.1:10272, or a free port if it is in use]
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = cli::listen_address)]
    pub bind_address: Option<SocketAddr>,
    #[command(flatten)]
    pub access: AdminAccessArgs,
    /// Lease of the leading controller, which is told the ports of gateways that Envoys could not bind; empty disables
    /// reports
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "kube-system/zoneward-controller")]
    #[arg(value_parser = controller_lease)]
    pub controller_lease: ControllerLease,
    #[command(flatten)]
    pub log: log::LogArgs,
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: &ControlArgs) -> Result<bool> {
    log::start(&args.log);
    let runtime = tokio::runtime::Runtime::new().context("starting threads")?;
    runtime.block_on(serve(args))?;
    Ok(true)
}

async fn serve(args: &ControlArgs) -> Result<()> {
    let (settings, edge) = (settings(args)?, args.edge.settings()?);
    let tls = settings.tls.clone();
    let mut signals = Signals::listen()?;
    let (source, client) = source(&args.input).await?;
    let listener = admin_server::listen(args.listen, "--listen").await?;
    let health = admin_server::listen_or_fallback_port(args.bind_address, ADDRESS, "--bind-address").await?;
    info!(address = %listener.local_addr().unwrap_or(args.listen), "serving xDS");
    let subscriptions = Arc::new(Subscriptions::new(settings.max_streams));
    let (stop, stopped) = watch::channel(false);
    let access = args.access.access(health.local_addr()?, client.clone(), &Clock::system())?;
    if let Some(reporter) = client.and_then(|client| port_reporter(args, client, &subscriptions)) {
        tokio::spawn(reporter.run());
    }
    let routes = pages(&subscriptions).with_access(access);
    let shown = tokio::spawn(admin_server::serve(health, routes, stopped.clone()));
    let talking = tokio::spawn(server::serve(
        listener,
        settings,
        subscriptions.clone(),
        subscriptions.streams.clone(),
        stopped,
    ));
    let allowlist = DirectResponseAllowlist {
        files: args.allow_file.iter().cloned().collect(),
        environment: args.allow_env.iter().cloned().collect(),
    };
    let settings = EnvoySettings {
        allowlist: Arc::new(allowlist),
        edge: Arc::new(edge),
        retries: args.retries.limits(),
    };
    tokio::select! {
        biased;
        () = serve_envoys(source, subscriptions, settings, Clock::system(), signals.wait()) => {}
        () = keep_tls(args, tls) => {}
    }
    stop.send_replace(true);
    talking.await.context("xDS server task panicked")?;
    shown.await.context("admin server task panicked")
}

/// Reports to the controller that writes the statuses of gateways.
fn port_reporter(args: &ControlArgs, client: Client, subscriptions: &Subscriptions) -> Option<PortReporter> {
    let lease = args.controller_lease.0.clone()?;
    let connection = args.input.connection.clone();
    let namespace = client.default_namespace().to_owned();
    Some(PortReporter {
        reporter: format!("control/{namespace}/{}", super::pod(&connection)),
        client: LedgerClient::new(client, connection, lease),
        path: ledger_client::ENVOYS_PATH,
        ports: subscriptions.unbound_ports(),
        random: model::random::Random::seeded(clock::os_seed()),
    })
}

fn settings(args: &ControlArgs) -> Result<XdsServerSettings> {
    let token = args.token_file.as_deref().map(token).transpose()?;
    let verifies = args.client_ca.is_some() || args.issue.is_some();
    if !args.listen.ip().to_canonical().is_loopback() && !verifies && !args.insecure {
        bail!(
            "--listen {}: not a loopback address, and responses include private keys; use --client-ca or --issue, so that a certificate says which Envoy may have which (a token is the same for all), or allow it with --insecure",
            args.listen
        );
    }
    Ok(XdsServerSettings {
        max_streams: args.max_streams as usize,
        token,
        tls: tls(args)?,
        ..XdsServerSettings::default()
    })
}

/// TLS of the flags, from files or issued now.
fn tls(args: &ControlArgs) -> Result<Option<XdsServerTls>> {
    if let Some(data) = &args.issue {
        let authority = Authority::open(data).context("--issue")?;
        let mut addresses = vec![IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        addresses.extend(Some(args.listen.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback()));
        let issued = authority.issue_server(&SERVER_NAMES, &addresses, Clock::system().timestamp());
        let issued = issued.context("--issue")?;
        let authority = authority.pem().as_bytes();
        let tls = XdsServerTls::new(issued.certificate.as_bytes(), issued.key.as_bytes(), Some(authority));
        return Ok(Some(tls.context("--issue")?));
    }
    let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) else { return Ok(None) };
    let authority = args.client_ca.as_deref().map(read).transpose()?;
    let tls = XdsServerTls::new(&read(certificate)?, &read(key)?, authority.as_deref());
    Ok(Some(tls.context("--tls-cert, --tls-key, --client-ca")?))
}

/// Follows changes of the files, and renews what was issued. Never returns.
async fn keep_tls(args: &ControlArgs, current: Option<XdsServerTls>) {
    let Some(current) = current else { return std::future::pending().await };
    let clock = Clock::system();
    let (mut read, mut issued) = (tls_files(args), clock.now());
    loop {
        tokio::time::sleep(TLS_POLL).await;
        let content = tls_files(args);
        let is_due = args.issue.is_some() && clock.since(issued) >= ISSUE_AGAIN;
        if content == read && !is_due {
            continue;
        }
        match tls(args) {
            Ok(Some(renewed)) => {
                current.replace(&renewed);
                info!("certificates reloaded");
                issued = clock.now();
            }
            Ok(None) => {}
            Err(error) => {
                warn!(error = %format_args!("{error:#}"), "certificates were not reloaded; the previous ones stay");
            }
        }
        read = content;
    }
}

/// The content of the files of TLS; `None` for one that cannot be read.
fn tls_files(args: &ControlArgs) -> [Option<Vec<u8>>; 3] {
    [&args.tls_cert, &args.tls_key, &args.client_ca]
        .map(|file| file.as_ref().and_then(|file| std::fs::read(file).ok()))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("reading {}", file.display()))
}

/// The token of a file, without the line's end.
pub(super) fn token(file: &Path) -> Result<Arc<str>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("--token-file {}", file.display()))?;
    let token = text.trim();
    if token.len() < 16 || token.contains(|c: char| c.is_whitespace() || c.is_control()) {
        bail!(
            "--token-file {}: a token is one word of at least 16 characters; create one with `openssl rand -hex 32`",
            file.display()
        );
    }
    Ok(token.into())
}

/// Where the objects come from, and the client of the API if it is that.
async fn source(input: &cli::InputArgs) -> Result<(ObjectSource, Option<Client>)> {
    if !input.files.is_empty() {
        let input = cli::InputArgs {
            files: input.files.clone(),
            recursive: input.recursive,
            namespace: input.namespace.clone(),
            ..cli::InputArgs::default()
        };
        return Ok((ObjectSource::files(input)?, None));
    }
    let client = cluster::connect(&input.connection, &Clock::system())
        .await
        .context("reading routes and endpoints from the API, because there is no -f")?;
    let random = model::random::Random::seeded(clock::os_seed());
    Ok((ObjectSource::cluster(client.clone(), random), Some(client)))
}

//! `zoneward mesh control`: turns flags into settings and runs the xDS server until it is stopped.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use clock::Clock;
use kube::Client;
use tokio::sync::watch;
use tracing::info;
use xds::render::DirectResponseAllowlist;
use xds::server::{self, XdsServerSettings, XdsServerTls};

use cluster::admin_server::access::AdminAccessArgs;
use cluster::{admin_server, log};

use crate::cli;
use cluster::signals::Signals;
use mesh::control::{Subscriptions, pages, run as serve_envoys};
use mesh::object_source::ObjectSource;

/// Default of `--bind-address`.
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_272);

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
    /// File with a bearer token that Envoys must send
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Allow non-loopback connections without a token or client certificates; exposes all configuration
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
    /// Listen address of /healthz, /livez, /readyz, /metrics and /status; port 0 picks a free port [default:
    /// 127.0.0.1:10272, or a free port if it is in use]
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = cli::listen_address)]
    pub bind_address: Option<SocketAddr>,
    #[command(flatten)]
    pub access: AdminAccessArgs,
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
    let settings = settings(args)?;
    let mut signals = Signals::listen()?;
    let (source, client) = source(&args.input).await?;
    let listener = admin_server::listen(args.listen, "--listen").await?;
    let health = admin_server::listen_or_fallback_port(args.bind_address, ADDRESS, "--bind-address").await?;
    info!(address = %listener.local_addr().unwrap_or(args.listen), "serving xDS");
    let subscriptions = Arc::new(Subscriptions::new(settings.max_streams));
    let (stop, stopped) = watch::channel(false);
    let access = args.access.access(health.local_addr()?, client, &Clock::system())?;
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
    serve_envoys(source, subscriptions, allowlist, Clock::system(), signals.wait()).await;
    stop.send_replace(true);
    talking.await.context("xDS server task panicked")?;
    shown.await.context("admin server task panicked")
}

fn settings(args: &ControlArgs) -> Result<XdsServerSettings> {
    let token = args.token_file.as_deref().map(token).transpose()?;
    if !args.listen.ip().is_loopback() && token.is_none() && args.client_ca.is_none() && !args.insecure {
        bail!(
            "--listen {}: not a loopback address, and responses include private keys; use --token-file or --client-ca, or allow it with --insecure",
            args.listen
        );
    }
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            let authority = args.client_ca.as_deref().map(read).transpose()?;
            let tls = XdsServerTls::new(&read(certificate)?, &read(key)?, authority.as_deref());
            Some(tls.context("--tls-cert, --tls-key, --client-ca")?)
        }
        _ => None,
    };
    Ok(XdsServerSettings {
        max_streams: args.max_streams as usize,
        token,
        tls,
        ..XdsServerSettings::default()
    })
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

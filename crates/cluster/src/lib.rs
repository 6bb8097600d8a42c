//! The runtime that every daemon and command shares: API client, watches and their cache, events, leader election,
//! admin server (health, metrics), supervision of child processes, logs.
//!
//! All access to the API is a `kube::Client`: of a cluster, of the embedded API over its socket, or of the embedded API in
//! the same process.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod admin_server;
pub mod api_outage;
pub mod certificate_check;
pub mod events;
pub mod failure;
mod https_client;
pub mod input;
mod kubeconfig_client;
pub mod leader_election;
mod lean_client;
pub mod ledger_client;
mod list;
pub mod log;
pub mod object_name;
pub mod port_reporter;
mod request_metrics;
mod resource_kind;
pub mod signals;
pub mod supervisor;
pub mod systemd;
pub mod tcp_relay;
mod unix_socket_client;
mod watch_cache;
mod watch_stream;
pub mod write;

use std::path::PathBuf;

use anyhow::{Context, Error, Result, anyhow};
use clap::Args;
use clock::Clock;
use http::{Request, Response};
use hyper::body::Body as HttpBody;
use kube::Client;
use kube::client::Body;
use kube::config::{AuthInfo, Config, InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use tower::{BoxError, Layer, Service};

pub use list::list;
use request_metrics::RequestMetricsLayer;
pub use resource_kind::ObjectKind;
pub use watch_cache::{ObjectChange, WatchCache};
pub use watch_stream::{Informer, InformerEvent, WatchSpec, WatchedObject};

/// The flags that select the API.
#[derive(Clone, Debug, Default, Args)]
pub struct Connection {
    /// Kubeconfig file [default: $KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Unix socket of an embedded API: api.sock in the data directory of `zoneward up`
    #[arg(long, value_name = "PATH", conflicts_with_all = ["kubeconfig", "context"])]
    pub api_socket: Option<PathBuf>,
    /// The address of the API instead of the kubeconfig's, as kube-proxy's --master.
    #[arg(skip)]
    pub server: Option<String>,
}

impl Connection {
    /// Whether a flag, $KUBECONFIG, ~/.kube/config or a pod's service account names an API.
    pub fn is_named(&self) -> bool {
        let flags = self.kubeconfig.is_some() || self.context.is_some() || self.api_socket.is_some();
        let variable = std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty());
        let default_file = || std::env::home_dir().is_some_and(|home| home.join(".kube/config").is_file());
        flags || variable || default_file() || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
    }
}

/// A client for the API that the flags select, which follows changes of its kubeconfig. Nothing is sent yet. `clock` times
/// its requests and outages.
pub async fn connect(connection: &Connection, clock: &Clock) -> Result<Client> {
    open(connection, clock).await.map(|(client, _)| client)
}

/// As [`connect`], with the address of the API for messages.
pub async fn open(connection: &Connection, clock: &Clock) -> Result<(Client, String)> {
    if let Some(path) = &connection.api_socket {
        return Ok((unix_socket_client::client(path, clock), path.display().to_string()));
    }
    let (client, server) = client_of(connection, clock).await?;
    Ok((kubeconfig_client::following(client, connection, clock), server))
}

/// A client of the same API with the credentials of a token alone. The API reviews it as any other client's.
pub async fn connect_with_token(connection: &Connection, token: String, clock: &Clock) -> Result<Client> {
    let mut config = config(connection).await?;
    config.auth_info = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
    build(config, clock).map(|(client, _)| client)
}

/// A client of the text of a kubeconfig, which need not be stored.
pub async fn connect_with_kubeconfig(text: &str, clock: &Clock) -> Result<Client> {
    let kubeconfig = Kubeconfig::from_yaml(text).context("reading the kubeconfig")?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    build(config.context("reading the kubeconfig")?, clock).map(|(client, _)| client)
}

/// A client of the kubeconfig as it is now, or of the pod's service account.
async fn client_of(connection: &Connection, clock: &Clock) -> Result<(Client, String)> {
    build(config(connection).await?, clock)
}

/// The token that requests to the API carry now; files are read again, because they are rotated.
pub async fn bearer_token(connection: &Connection) -> Result<String> {
    let user = config(connection).await?.auth_info;
    if let Some(file) = &user.token_file {
        let token = std::fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
        return Ok(token.trim().to_owned());
    }
    // Serialized, a token is its text.
    let user = serde_json::to_value(&user).context("reading the kubeconfig")?;
    let token = user["token"].as_str().map(str::to_owned);
    token.context("a report needs a token, and the kubeconfig has none: use a service account's token")
}

async fn config(connection: &Connection) -> Result<Config> {
    let mut config = match (&connection.kubeconfig, &connection.context) {
        (None, None) => Config::infer().await.map_err(|error| not_inferred(&error))?,
        (file, context) => {
            let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
            let kubeconfig = match file {
                Some(file) => Kubeconfig::read_from(file).map_err(|error| match &error {
                    KubeconfigError::ReadConfig(cause, _) => {
                        anyhow!("--kubeconfig {}: {cause}", file.display())
                    }
                    _ => Error::new(error).context(format!("--kubeconfig {}", file.display())),
                })?,
                None => Kubeconfig::read().map_err(|error| anyhow!(unreadable(&error)))?,
            };
            Config::from_custom_kubeconfig(kubeconfig, &options).await.context("reading the kubeconfig")?
        }
    };
    if let Some(server) = &connection.server {
        config.cluster_url = server.parse().with_context(|| format!("--master {server}"))?;
    }
    Ok(config)
}

fn build(config: Config, clock: &Clock) -> Result<(Client, String)> {
    let server = config.cluster_url.clone();
    let host = server.authority().map_or("unknown", |authority| authority.as_str()).to_owned();
    let client = https_client::client(config, &host, clock)
        .with_context(|| format!("creating a client for {server}"))?;
    Ok((client, server.to_string()))
}

/// The error of [`Config::infer`] tells its cause twice, and why this process is not in a pod.
fn not_inferred(error: &InferConfigError) -> Error {
    let cause = std::error::Error::source(error).and_then(|source| source.downcast_ref::<KubeconfigError>());
    let cause = cause.map_or_else(|| error.to_string(), unreadable);
    if std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty()) {
        return anyhow!("$KUBECONFIG: {cause}");
    }
    anyhow!(
        "no cluster configured: use --kubeconfig FILE, set KUBECONFIG, or run in a pod with a service account ({cause})"
    )
}

/// Why a kubeconfig cannot be used.
fn unreadable(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(cause, file) => format!("{}: {cause}", file.display()),
        other => other.to_string(),
    }
}

/// The name of this machine as kube-proxy uses it, in lower case; empty if it has none.
pub fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_lowercase()
}

/// A client of an API in this process: a service that answers requests, such as that of the embedded API.
pub fn in_process<S, B>(service: S, clock: &Clock) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Client::new(RequestMetricsLayer::new("in-process", clock).layer(service), "default")
}

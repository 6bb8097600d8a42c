//! The one way to the API: a `kube::Client` for a cluster, for the embedded API by its socket, or for the embedded
//! API in the same process. Controllers, the node proxy and `simulate` all come through here.

pub mod failure;
mod kind;
mod list;
mod mirror;
pub mod outage;
pub mod requests;
mod socket;
mod watch;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use kube::Client;
use kube::client::ClientBuilder;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use store::api::{Api, Caller};
use store::server::Local;
use tower::Layer;

pub use kind::Kind;
pub use list::list;
pub use mirror::{Change, Mirror};
use requests::Counting;
pub use watch::{Event, Feed, Wanted, Watched};

/// Which API to speak to.
#[derive(Clone, Debug, Default, Args)]
pub struct Connection {
    /// Path of the kubeconfig [default: $KUBECONFIG, ~/.kube/config, or the service account of the pod]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Unix socket of an embedded API: api.sock in the data directory of `zoneward up`
    #[arg(long, value_name = "PATH", conflicts_with_all = ["kubeconfig", "context"])]
    pub api_socket: Option<PathBuf>,
    /// The address of the API in the place of the kubeconfig's, as kube-proxy's --master says it.
    #[arg(skip)]
    pub server: Option<String>,
}

impl Connection {
    /// Whether a flag, $KUBECONFIG, ~/.kube/config or a pod's service account names an API.
    pub fn is_named(&self) -> bool {
        let flags = self.kubeconfig.is_some() || self.context.is_some() || self.api_socket.is_some();
        let variable = std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty());
        let usual = || std::env::home_dir().is_some_and(|home| home.join(".kube/config").is_file());
        flags || variable || usual() || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
    }
}

/// A client for the API that the flags name. Nothing is sent yet.
pub async fn connect(connection: &Connection) -> Result<Client> {
    open(connection).await.map(|(client, _)| client)
}

/// The same, with the address of the API for messages.
pub async fn open(connection: &Connection) -> Result<(Client, String)> {
    if let Some(path) = &connection.api_socket {
        return Ok((socket::client(path), path.display().to_string()));
    }
    let mut config = match (&connection.kubeconfig, &connection.context) {
        (None, None) => Config::infer().await.context(
            "no way to a cluster: give --kubeconfig FILE, set KUBECONFIG, or run in a pod with a service account",
        )?,
        (file, context) => {
            let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
            let kubeconfig = match file {
                Some(file) => Kubeconfig::read_from(file)
                    .with_context(|| format!("--kubeconfig {}", file.display()))?,
                None => Kubeconfig::read().context("reading the kubeconfig")?,
            };
            Config::from_custom_kubeconfig(kubeconfig, &options).await.context("reading the kubeconfig")?
        }
    };
    if let Some(server) = &connection.server {
        config.cluster_url = server.parse().with_context(|| format!("--master {server}"))?;
    }
    let server = config.cluster_url.clone();
    let host = server.authority().map_or("unknown", |authority| authority.as_str()).to_owned();
    let builder = ClientBuilder::try_from(config).with_context(|| format!("a client for {server}"))?;
    Ok((builder.with_layer(&Counting::new(&host)).build(), server.to_string()))
}

/// A client for the embedded API in this process, with all rights.
pub fn in_process(api: Api) -> Client {
    Client::new(Counting::new("in-process").layer(Local::new(api, Caller::own())), "default")
}

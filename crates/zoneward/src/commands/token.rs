//! `zoneward token`: tokens by which other machines join, each for one Node, once, until it expires. The store has their
//! hashes only.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apimachinery::join::{AllowedProxies, JoinToken, NAMESPACE, SECRET_TYPE, StoredToken, secret_name};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use clock::Clock;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::config::Kubeconfig;
use kube::{Client, Error};
use serde_json::{Value, json};
use store::authenticator::sha256;
use store::credentials::certificate_hash;

use crate::cli::{Format, OutputArgs};
use cluster::Connection;
use output::{print_text, print_value, render, table};

/// The longest time for a machine to join.
const MAX_TTL: Duration = Duration::from_secs(30 * 86_400);

/// `zoneward token ...`
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token by which one machine joins, and print the command for that machine
    ///
    /// The token is valid once, and until its time is over. The store has its hash only, so it cannot be shown again.
    /// Other machines have to reach the API: start `zoneward up` with --listen 0.0.0.0:6443, or an address of theirs.
    #[command(after_help = "\
Examples:
  zoneward token create --data-dir ./zoneward-data --node box-2
  zoneward token create --data-dir ./zoneward-data --node box-2 --gateways --sidecars
  zoneward token create --kubeconfig ./zoneward-data/kubeconfig --node box-2 --ttl 10m --server https://10.0.0.1:6443")]
    Create(TokenCreate),
    /// List tokens that were not used, without their secrets
    #[command(after_help = "Examples:\n  zoneward token list --data-dir ./zoneward-data")]
    List(TokenList),
    /// Delete a token that was not used
    #[command(after_help = "Examples:\n  zoneward token delete abcdef --data-dir ./zoneward-data")]
    Delete(TokenDelete),
}

/// The API, as an administrator.
#[derive(Debug, Args)]
pub struct AdminApi {
    /// Data directory of `zoneward up`: uses the kubeconfig in it
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "context", "api_socket"])]
    pub data_dir: Option<PathBuf>,
    #[command(flatten)]
    pub connection: Connection,
}

impl AdminApi {
    fn connection(&self) -> Result<Connection> {
        let Some(folder) = &self.data_dir else { return Ok(self.connection.clone()) };
        let kubeconfig = folder.join("kubeconfig");
        if !kubeconfig.exists() {
            bail!(
                "--data-dir {}: no API has its data there: start `zoneward up` with it first, or name the folder of the one \
                 that runs",
                folder.display()
            );
        }
        Ok(Connection { kubeconfig: Some(kubeconfig), ..self.connection.clone() })
    }
}

/// `zoneward token create`
#[derive(Debug, Args)]
pub struct TokenCreate {
    /// Name of the Node of the machine; it must not exist
    #[arg(long, value_name = "NAME")]
    pub node: String,
    /// Time for the machine to join, at most 30 days
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = model::duration::parse)]
    pub ttl: Duration,
    /// URL of the API for the machine [default: that of the kubeconfig, with this machine's hostname instead of
    /// loopback]
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// Let the machine run gateways, with their certificates and keys, by `zoneward join --gateways`
    #[arg(long)]
    pub gateways: bool,
    /// Let the machine run sidecars, which read routes and pods, by `zoneward join --sidecar`
    #[arg(long)]
    pub sidecars: bool,
    #[command(flatten)]
    pub api: AdminApi,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `zoneward token list`
#[derive(Debug, Args)]
pub struct TokenList {
    #[command(flatten)]
    pub api: AdminApi,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `zoneward token delete`
#[derive(Debug, Args)]
pub struct TokenDelete {
    /// The part of the token before the dot
    #[arg(value_name = "ID")]
    pub id: String,
    #[command(flatten)]
    pub api: AdminApi,
}

pub fn run(command: &TokenCommand) -> Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")?;
    runtime.block_on(async {
        match command {
            TokenCommand::Create(args) => create(args).await,
            TokenCommand::List(args) => list(args).await,
            TokenCommand::Delete(args) => delete(args).await,
        }
    })?;
    Ok(true)
}

async fn create(args: &TokenCreate) -> Result<()> {
    check_flags(args)?;
    let (connection, clock) = (args.api.connection()?, Clock::system());
    let (hash, server) = authority(&connection)?;
    let (client, address) = cluster::open(&connection, &clock).await?;
    let at = || format!("the API at {address}");
    let nodes: Api<Node> = Api::all(client.clone());
    if nodes.get_opt(&args.node).await.context("reading the Node").with_context(at)?.is_some() {
        bail!(
            "Node {node} exists. To let the machine join again, delete it first, which revokes its credential: kubectl \
             delete node {node}",
            node = args.node
        );
    }
    let now = clock.timestamp().as_second();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    for expired in stored(&client).await.with_context(at)?.iter().filter(|token| token.is_expired(now)) {
        // One that another process deletes at the same time is gone as well.
        let _ = secrets.delete(&secret_name(&expired.id), &DeleteParams::default()).await;
    }
    let token = random_token()?;
    let expires = now.saturating_add(i64::try_from(args.ttl.as_secs()).unwrap_or(i64::MAX));
    let row = StoredToken {
        id: token.id.clone(),
        hash: sha256(token.secret.as_bytes()),
        node: args.node.clone(),
        expires,
        allowed: AllowedProxies { gateways: args.gateways, sidecars: args.sidecars },
    };
    let secret = serde_json::from_value(row.to_secret()).context("the Secret of the token")?;
    secrets.create(&PostParams::default(), &secret).await.context("storing the token").with_context(at)?;
    let server = args.server.clone().unwrap_or(server);
    let command = format!("zoneward join {server} --token {} --ca-hash {hash}", token.text());
    match args.output.format {
        Format::Table => print_text(&format!(
            "{}\n\nOn {}, as root, once, until {}; --zone NAME sets its zone:\n\n  {command}\n",
            token.text(),
            args.node,
            time(expires)
        )),
        format => {
            let value = json!({"token": token.text(), "id": token.id, "node": args.node, "expires": time(expires),
                "server": server, "caHash": hash, "command": command});
            print_value(&value, format)
        }
    }
}

fn check_flags(args: &TokenCreate) -> Result<()> {
    if args.ttl.as_secs() == 0 || args.ttl > MAX_TTL {
        bail!("--ttl {:?}: expected 1s to 720h", args.ttl);
    }
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": args.node}});
    if let Some(violation) = apimachinery::validate::validate(&node).first() {
        bail!("--node {}: {}", args.node, violation.reason);
    }
    match &args.server {
        Some(server) if !server.starts_with("https://") => {
            bail!("--server {server}: expected a URL such as https://box-1:6443")
        }
        _ => Ok(()),
    }
}

fn random_token() -> Result<JoinToken> {
    // Half of the bytes are enough on average.
    let mut bytes = [0u8; 512];
    getrandom::fill(&mut bytes)
        .map_err(|error| anyhow::anyhow!("the system has no random bytes: {error}"))?;
    let mut next = bytes.iter().copied().cycle();
    Ok(JoinToken::new(|| next.next().unwrap_or_default()))
}

/// The hash of the API's authority, and its URL for other machines.
fn authority(connection: &Connection) -> Result<(String, String)> {
    let hash = |pem: &[u8]| certificate_hash(pem).context("the certificate authority of the API");
    let hostname = match cluster::hostname() {
        name if name.is_empty() => "HOSTNAME".to_owned(),
        name => name,
    };
    if let Some(socket) = &connection.api_socket {
        let file = socket.with_file_name("pki").join("ca.crt");
        let pem = std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        return Ok((hash(&pem)?, format!("https://{hostname}:6443")));
    }
    let kubeconfig = match &connection.kubeconfig {
        Some(file) => {
            std::fs::metadata(file).with_context(|| format!("reading {}", file.display()))?;
            Kubeconfig::read_from(file)?
        }
        None => Kubeconfig::read().context("reading the kubeconfig: use --data-dir or --kubeconfig")?,
    };
    let context = connection.context.clone().or(kubeconfig.current_context);
    let context = kubeconfig.contexts.into_iter().find(|item| Some(&item.name) == context.as_ref());
    let name = context.and_then(|item| item.context).map(|context| context.cluster);
    let cluster = kubeconfig.clusters.into_iter().find(|item| Some(&item.name) == name.as_ref());
    let cluster = cluster.and_then(|item| item.cluster).context("the kubeconfig names no cluster")?;
    let pem = match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
        (Some(data), _) => STANDARD.decode(data).context("certificate-authority-data of the kubeconfig")?,
        (None, Some(file)) => std::fs::read(file).with_context(|| format!("reading {file}"))?,
        (None, None) => bail!("the kubeconfig has no certificate authority: use that of `zoneward up`"),
    };
    let server = cluster.server.unwrap_or_default();
    let shown = ["127.0.0.1", "[::1]", "localhost"]
        .iter()
        .find_map(|own| server.strip_prefix(&format!("https://{own}:")))
        .map_or(server.clone(), |port| format!("https://{hostname}:{port}"));
    Ok((hash(&pem)?, shown))
}

/// The tokens that were not used.
async fn stored(client: &Client) -> Result<Vec<StoredToken>> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let params = ListParams::default().fields(&format!("type={SECRET_TYPE}"));
    let found = secrets.list(&params).await.context("listing tokens")?;
    let token = |secret: Secret| {
        let secret: Value = serde_json::to_value(secret).ok()?;
        StoredToken::of_secret(&secret, |data| STANDARD.decode(data).ok())
    };
    Ok(found.items.into_iter().filter_map(token).collect())
}

async fn list(args: &TokenList) -> Result<()> {
    let clock = Clock::system();
    let (client, address) = cluster::open(&args.api.connection()?, &clock).await?;
    let tokens = stored(&client).await.with_context(|| format!("the API at {address}"))?;
    let now = clock.timestamp().as_second();
    if args.output.format != Format::Table {
        let row = |token: &StoredToken| json!({"id": token.id, "node": token.node, "expires": time(token.expires), "expired": token.is_expired(now)});
        return print_value(&tokens.iter().map(row).collect(), args.output.format);
    }
    let mut rows = table(&["ID", "NODE", "EXPIRES"]);
    for token in &tokens {
        let ended = if token.is_expired(now) { " (expired)" } else { "" };
        rows.add_row([token.id.clone(), token.node.clone(), format!("{}{ended}", time(token.expires))]);
    }
    print_text(&render(&rows))
}

async fn delete(args: &TokenDelete) -> Result<()> {
    // The whole token is accepted as well.
    let id = args.id.split('.').next().unwrap_or_default();
    let (client, address) = cluster::open(&args.api.connection()?, &Clock::system()).await?;
    let secrets: Api<Secret> = Api::namespaced(client, NAMESPACE);
    match secrets.delete(&secret_name(id), &DeleteParams::default()).await {
        Ok(_) => print_text(&format!("token {id} deleted\n")),
        Err(Error::Api(status)) if status.code == 404 => {
            bail!("token {id} does not exist: it was used or deleted. `zoneward token list` shows tokens")
        }
        Err(error) => {
            Err(error).context("deleting the token").with_context(|| format!("the API at {address}"))
        }
    }
}

fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map(|time| time.to_string()).unwrap_or_default()
}

//! `zoneward observe`: new connections through Services as the nodes see them, with zones and the reason.
//!
//! Nodes log addresses only; Services, zones and reasons come from the API's objects and the functions of `trace select`.

mod directory;
mod nodes;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use clock::Clock;
use cluster::input::{InputArgs, LoadedObjects};
use cluster::object_name::ObjectName;
use cluster::signals::Signals;
use model::Locality;
use output::{count, print_text};
use serde_json::json;
use tokio::sync::mpsc;

use directory::{Directory, ObservedConnection};
use nodes::{NodeLog, NodeMessage};

/// Connections between nodes and the printer.
const MAX_QUEUED: usize = 4_096;
/// Objects are read again at most this often, when an address is unknown.
const REFRESH: Duration = Duration::from_secs(5);

/// `zoneward observe`
#[derive(Debug, Args)]
pub struct ObserveArgs {
    /// Limit to one Service, such as web or svc/web, in the namespace of -n
    #[arg(value_name = "SERVICE")]
    pub service: Option<ObjectName>,
    /// Namespace of Services [default: the namespace of the context]
    #[arg(short = 'n', long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Services in all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Node to read from; repeatable [default: all with a node proxy, up to 20]
    #[arg(long, value_name = "NAME")]
    pub node: Vec<String>,
    /// Only connections that leave their zone
    #[arg(long)]
    pub cross_zone: bool,
    /// End after this many connections
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Output format
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table")]
    pub format: ObserveFormat,
    /// Address of the metrics server of one node proxy, where it cannot be found by its Lease; requires one --node
    #[arg(long, value_name = "ADDRESS:PORT", requires = "node")]
    pub server: Option<SocketAddr>,
    /// Namespace of the Leases of node proxies
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    pub lease_namespace: String,
    #[command(flatten)]
    pub connection: cluster::Connection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ObserveFormat {
    /// One line per connection
    Table,
    /// One JSON object per line
    Json,
}

pub fn run(args: &ObserveArgs) -> Result<bool> {
    if args.server.is_some() && args.node.len() != 1 {
        bail!("--server is the address of one node proxy: name its node with one --node");
    }
    let input =
        InputArgs { all_namespaces: true, connection: args.connection.clone(), ..InputArgs::default() };
    let loaded = LoadedObjects::read(&input)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting")?;
    runtime.block_on(observe(args, input, loaded))
}

async fn observe(args: &ObserveArgs, input: InputArgs, loaded: LoadedObjects) -> Result<bool> {
    let clock = Clock::system();
    let mut signals = Signals::listen()?;
    let client = cluster::connect(&args.connection, &clock).await?;
    let namespace = match (&args.namespace, args.all_namespaces) {
        (Some(namespace), _) => Some(namespace.clone()),
        (None, true) => None,
        (None, false) => Some(client.default_namespace().to_owned()),
    };
    if let Some(name) = &args.service {
        loaded.check_service(name, namespace.as_deref())?;
    }
    let (logs, elsewhere) = match args.server {
        Some(server) => (vec![NodeLog::direct(&args.node[0], server)], Vec::new()),
        None => NodeLog::find(&client, &args.lease_namespace, &args.node).await?,
    };
    elsewhere.iter().for_each(|why| eprintln!("{why}"));
    eprintln!("observing {}; stop with Ctrl-C", count(logs.len(), "node"));
    let (sender, mut messages) = mpsc::channel(MAX_QUEUED);
    logs.into_iter().for_each(|log| log.follow(client.clone(), sender.clone()));
    drop(sender);
    let mut printer = Printer { args, namespace, directory: Directory::new(loaded), ..Printer::new(args) };
    let mut read_at = clock.now();
    loop {
        let message = tokio::select! {
            biased;
            () = signals.wait() => break,
            message = messages.recv() => message,
        };
        let Some(message) = message else { bail!("no node answers: {}", printer.failures.join("; ")) };
        match message {
            NodeMessage::Failed(node, why) => {
                eprintln!("{node}: {why}");
                printer.failures.push(format!("{node}: {why}"));
            }
            NodeMessage::Skipped(number) => printer.skipped += number,
            NodeMessage::Connection(node, connection) => {
                if !printer.directory.knows(&connection) && clock.since(read_at) >= REFRESH {
                    read_at = clock.now();
                    let input = input.clone();
                    let loaded = tokio::task::spawn_blocking(move || LoadedObjects::read(&input));
                    printer.directory = Directory::new(loaded.await.context("reading objects")??);
                }
                let Some(observed) = printer.directory.resolve(&node, &connection) else { continue };
                if printer.print(&observed, &clock)? {
                    break;
                }
            }
        }
    }
    eprintln!("{}", printer.summary());
    Ok(true)
}

struct Printer<'a> {
    args: &'a ObserveArgs,
    namespace: Option<String>,
    directory: Directory,
    shown: u64,
    across: u64,
    skipped: u64,
    failures: Vec<String>,
}

impl<'a> Printer<'a> {
    fn new(args: &'a ObserveArgs) -> Self {
        Self {
            args,
            namespace: None,
            directory: Directory::new(LoadedObjects::default()),
            shown: 0,
            across: 0,
            skipped: 0,
            failures: Vec::new(),
        }
    }

    /// Prints a connection that was asked for; true after the last one.
    fn print(&mut self, observed: &ObservedConnection, clock: &Clock) -> Result<bool> {
        let namespace = self.namespace.as_deref();
        let is_wanted = match &self.args.service {
            Some(name) => name.matches(&observed.service, namespace),
            None => namespace.is_none_or(|namespace| observed.service.namespace == namespace),
        };
        let is_across = observed.locality == Locality::CrossZone;
        if !is_wanted || (self.args.cross_zone && !is_across) {
            return Ok(false);
        }
        self.shown += 1;
        self.across += u64::from(is_across);
        let time = clock.timestamp();
        print_text(&match self.args.format {
            ObserveFormat::Table => line(observed, &time.strftime("%H:%M:%S").to_string()),
            ObserveFormat::Json => format!("{}\n", value(observed, &time.to_string())),
        })?;
        Ok(self.args.limit.is_some_and(|limit| self.shown >= limit))
    }

    fn summary(&self) -> String {
        let skipped = match self.skipped {
            0 => String::new(),
            skipped => format!("; {skipped} more were not logged: nodes log 1,000 a second"),
        };
        format!(
            "{} shown, {} of them across zones{skipped}",
            count(self.shown as usize, "connection"),
            self.across
        )
    }
}

fn line(observed: &ObservedConnection, time: &str) -> String {
    let zone = |zone: &str| if zone.is_empty() { "no zone".to_owned() } else { zone.to_owned() };
    format!(
        "{time} {} {} ({}) -> {} {} ({}) {}, {}\n",
        observed.node,
        observed.client,
        zone(&observed.client_zone),
        observed.service,
        observed.endpoint,
        zone(&observed.endpoint_zone),
        observed.locality,
        observed.reason,
    )
}

fn value(observed: &ObservedConnection, time: &str) -> serde_json::Value {
    json!({
        "time": time, "node": observed.node,
        "client": observed.client.to_string(), "clientZone": observed.client_zone,
        "namespace": observed.service.namespace.as_str(), "service": observed.service.name.as_str(),
        "frontend": observed.frontend.to_string(), "protocol": observed.protocol.as_str(),
        "endpoint": observed.endpoint.to_string(), "endpointZone": observed.endpoint_zone,
        "locality": observed.locality.as_str(), "mode": observed.mode, "reason": observed.reason,
    })
}

//! `zoneward expose`: plain processes as endpoints of a Service without a selector. Its slices get their first hints here,
//! by the same function as the controller's, which keeps hints and conditions up to date from then on.
//!
//! ```text
//! flags -> Wish \
//! API -> Found  --> plan (pure) -> Changes -> shown, or written
//! ```

mod api;
mod changes;
mod wish;

use anyhow::{Context, Result, bail};
use clap::Args;
use clock::Clock;
use model::Protocol;
use serde_json::json;

use crate::cli::{Format, Output};
use changes::{Changes, Found};
use cluster::Connection;
use output::{notices_text, notices_value, print_text, print_value, render, table};
use wish::Wish;
pub use wish::{PortWish, Target};

/// How often objects that change meanwhile are read again.
const ATTEMPTS: usize = 5;

/// `zoneward expose`
#[derive(Debug, Args)]
pub struct Expose {
    /// The Service, as web or svc/web
    #[arg(value_name = "NAME", value_parser = cluster::object_name::plain)]
    pub name: String,
    /// The Service's port, as 80 or 80:http with its name
    #[arg(long, value_name = "PORT[:NAME]", required_unless_present = "remove")]
    pub port: Option<PortWish>,
    /// Where a process listens, as 10.0.0.7:8080@zone-a or `[fd00::7]:8080`, and what routes select it by, as
    /// 10.0.0.7:8080,version=v2; may be repeated
    #[arg(
        long,
        value_name = "IP:PORT[@ZONE][,TAG=VALUE...]",
        required_unless_present = "remove",
        conflicts_with = "remove"
    )]
    pub to: Vec<Target>,
    /// The port's protocol
    #[arg(long, value_name = "PROTOCOL", default_value = "TCP", ignore_case = true)]
    #[arg(value_parser = ["TCP", "UDP", "SCTP"])]
    pub protocol: String,
    /// Where the traffic goes, as PreferSameZone, PreferSameNode, Spill or None [default: as the Service says]
    #[arg(long, value_name = "VALUE", conflicts_with = "remove")]
    pub traffic_distribution: Option<String>,
    /// Take the endpoints away: of the port, or of all ports; a Service that this command made goes with the last one
    #[arg(long)]
    pub remove: bool,
    /// Only show what would be written
    #[arg(long)]
    pub dry_run: bool,
    /// The namespace
    #[arg(short = 'n', long, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// Which API.
    #[command(flatten)]
    pub connection: Connection,
    /// How the answer is written.
    #[command(flatten)]
    pub output: Output,
}

impl Expose {
    fn wish(&self) -> Result<Wish> {
        let protocol = match self.protocol.to_ascii_uppercase().as_str() {
            "UDP" => Protocol::Udp,
            "SCTP" => Protocol::Sctp,
            _ => Protocol::Tcp,
        };
        Wish::new(&self.namespace, &self.name, self.port.clone(), protocol, &self.to)
            .map(|wish| Wish { traffic_distribution: self.traffic_distribution.clone(), ..wish })
    }
}

/// Runs the command.
pub fn run(args: &Expose) -> Result<bool> {
    let wish = args.wish()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let changes = runtime.context("starting")?.block_on(expose(args, &wish))?;
    match args.output.format {
        Format::Table => print_text(&text(args, &changes))?,
        format => print_value(&value(args, &changes), format)?,
    }
    Ok(true)
}

async fn expose(args: &Expose, wish: &Wish) -> Result<Changes> {
    let (client, address) = cluster::open(&args.connection, &Clock::system()).await?;
    let at = || format!("the API at {address}");
    for _ in 1..ATTEMPTS {
        match attempt(&client, args, wish).await {
            Err(error) if is_conflict(&error) => {}
            done => return done.with_context(at),
        }
    }
    attempt(&client, args, wish).await.with_context(at)
}

/// The controller writes hints and conditions on the same objects: what changed meanwhile is read and planned again.
fn is_conflict(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.code == 409)
}

async fn attempt(client: &kube::Client, args: &Expose, wish: &Wish) -> Result<Changes> {
    let found: Found = api::find(client, wish).await?;
    let mut changes = if args.remove { changes::remove(wish, &found) } else { changes::put(wish, &found) }?;
    if !changes.violations.is_empty() {
        let list: Vec<String> = changes.violations.iter().map(ToString::to_string).collect();
        bail!("the API would refuse this:\n  {}", list.join("\n  "));
    }
    if !args.dry_run {
        api::write(client, wish, &mut changes).await?;
    }
    Ok(changes)
}

fn value(args: &Expose, changes: &Changes) -> serde_json::Value {
    let deletes: Vec<_> =
        changes.deletes.iter().map(|(kind, name)| json!({"kind": kind, "name": name})).collect();
    json!({
        "dryRun": args.dry_run,
        "service": changes.service.as_ref().map(|change| &change.object),
        "slices": changes.slices.iter().map(|change| &change.object).collect::<Vec<_>>(),
        "changed": changes.changed(),
        "deletes": deletes,
        "notices": notices_value(&changes.notices),
    })
}

/// The addresses that clients connect to; none for a Service that is headless, not written yet, or gone.
fn cluster_ips(changes: &Changes) -> Option<String> {
    let spec = &changes.service.as_ref()?.object["spec"];
    let all = spec["clusterIPs"].as_array().into_iter().flatten().filter_map(|ip| ip.as_str());
    let all: Vec<&str> = all.filter(|ip| *ip != "None").collect();
    (!all.is_empty()).then(|| all.join(", "))
}

fn text(args: &Expose, changes: &Changes) -> String {
    let mut rows = table(&["ACTION", "OBJECT", "WHAT"]);
    for change in changes.service.iter().chain(&changes.slices) {
        rows.add_row([change.action.as_str(), &change.title(), &change.what()]);
    }
    for (kind, name) in &changes.deletes {
        rows.add_row(["delete", &format!("{kind} {}/{name}", args.namespace), ""]);
    }
    let mut text = render(&rows);
    if let Some(addresses) = cluster_ips(changes) {
        text += &format!("\nCluster IP of {}/{}: {addresses}\n", args.namespace, args.name);
    }
    if args.dry_run {
        text += "\nNothing was written (--dry-run).\n";
    }
    text + &notices_text(&changes.notices)
}

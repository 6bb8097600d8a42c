//! `zoneward expose`: processes outside Kubernetes as endpoints of a Service without a selector. Hints of new slices
//! are computed here by the function that the controller uses, which maintains them afterwards.
//!
//! ```text
//! flags -> ExposeSpec     \
//! API -> ExistingObjects  --> plan (pure) -> PlannedWrites -> shown, or written
//! ```

mod api;
mod check;
mod spec;
mod writes;

use anyhow::{Context, Result, bail};
use clap::Args;
use clock::Clock;
use model::Protocol;
use serde_json::json;

use crate::cli::{Format, OutputArgs};
use check::CheckArgs;
use cluster::Connection;
use output::{notices_text, notices_value, print_text, print_value, render, table};
use spec::ExposeSpec;
pub use spec::{ExposePort, ExposeTarget};
use writes::{ExistingObjects, PlannedWrites};

/// Attempts when objects are modified concurrently.
const ATTEMPTS: usize = 5;

/// `zoneward expose`
#[derive(Debug, Args)]
pub struct Expose {
    /// Service, such as web or svc/web
    #[arg(value_name = "NAME", value_parser = cluster::object_name::plain)]
    pub name: String,
    /// Port of the Service, such as 80 or 80:http with a name
    #[arg(long, value_name = "PORT[:NAME]", required_unless_present = "remove")]
    pub port: Option<ExposePort>,
    /// Address of a process, such as 10.0.0.7:8080@zone-a or `[fd00::7]:8080`, with optional labels for routes, such
    /// as 10.0.0.7:8080,version=v2; repeatable
    #[arg(
        long,
        value_name = "IP:PORT[@ZONE][,TAG=VALUE...]",
        required_unless_present = "remove",
        conflicts_with = "remove"
    )]
    pub to: Vec<ExposeTarget>,
    /// Protocol of the port
    #[arg(long, value_name = "PROTOCOL", default_value = "TCP", ignore_case = true)]
    #[arg(value_parser = ["TCP", "UDP", "SCTP"])]
    pub protocol: String,
    /// Traffic distribution: PreferSameZone, PreferSameNode, Spill or None [default: unchanged]
    #[arg(long, value_name = "VALUE", conflicts_with = "remove")]
    pub traffic_distribution: Option<String>,
    #[command(flatten)]
    pub check: CheckArgs,
    /// Remove the endpoints of the port, or of all ports; a Service that this command created is deleted with its
    /// last endpoint
    #[arg(long)]
    pub remove: bool,
    /// Show what would be written, without writing it
    #[arg(long)]
    pub dry_run: bool,
    /// Namespace
    #[arg(short = 'n', long, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,
    #[command(flatten)]
    pub connection: Connection,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl Expose {
    fn spec(&self) -> Result<ExposeSpec> {
        let protocol = match self.protocol.to_ascii_uppercase().as_str() {
            "UDP" => Protocol::Udp,
            "SCTP" => Protocol::Sctp,
            _ => Protocol::Tcp,
        };
        let check = self.check.health_check(protocol)?;
        let spec = ExposeSpec::new(&self.namespace, &self.name, self.port.clone(), protocol, &self.to)?;
        let traffic_distribution = self.traffic_distribution.clone();
        Ok(ExposeSpec { traffic_distribution, check, ..spec })
    }
}

pub fn run(args: &Expose) -> Result<bool> {
    let spec = args.spec()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let writes = runtime.context("starting")?.block_on(expose(args, &spec))?;
    match args.output.format {
        Format::Table => print_text(&text(args, &writes))?,
        format => print_value(&value(args, &writes), format)?,
    }
    Ok(true)
}

async fn expose(args: &Expose, spec: &ExposeSpec) -> Result<PlannedWrites> {
    let (client, address) = cluster::open(&args.connection, &Clock::system()).await?;
    let at = || format!("the API at {address}");
    for _ in 1..ATTEMPTS {
        match attempt(&client, args, spec).await {
            Err(error) if is_conflict(&error) => {}
            done => return done.with_context(at),
        }
    }
    attempt(&client, args, spec).await.with_context(at)
}

/// The controller writes hints and conditions to the same objects: on conflict, read and plan again.
fn is_conflict(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.code == 409)
}

async fn attempt(client: &kube::Client, args: &Expose, spec: &ExposeSpec) -> Result<PlannedWrites> {
    let existing: ExistingObjects = api::find(client, spec).await?;
    let mut writes =
        if args.remove { writes::remove(spec, &existing) } else { writes::put(spec, &existing) }?;
    if !writes.violations.is_empty() {
        let list: Vec<String> = writes.violations.iter().map(ToString::to_string).collect();
        bail!("the API would reject this:\n  {}", list.join("\n  "));
    }
    if !args.dry_run {
        api::write(client, spec, &mut writes).await?;
    }
    Ok(writes)
}

fn value(args: &Expose, writes: &PlannedWrites) -> serde_json::Value {
    let deletes: Vec<_> =
        writes.deletes.iter().map(|(kind, name)| json!({"kind": kind, "name": name})).collect();
    json!({
        "dryRun": args.dry_run,
        "service": writes.service.as_ref().map(|write| &write.object),
        "slices": writes.slices.iter().map(|write| &write.object).collect::<Vec<_>>(),
        "changed": writes.changed(),
        "deletes": deletes,
        "notices": notices_value(&writes.notices),
    })
}

/// `None` for a Service that is headless, not yet written, or deleted.
fn cluster_ips(writes: &PlannedWrites) -> Option<String> {
    let spec = &writes.service.as_ref()?.object["spec"];
    let all = spec["clusterIPs"].as_array().into_iter().flatten().filter_map(|ip| ip.as_str());
    let all: Vec<&str> = all.filter(|ip| *ip != "None").collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// `--remove` found no endpoints.
fn nothing_to_remove(args: &Expose) -> String {
    let Expose { namespace, name, .. } = args;
    let port = args.port.as_ref().map(|port| format!(" on port {}", port.number)).unwrap_or_default();
    format!(
        "Nothing to remove: Service {namespace}/{name} does not exist, or `zoneward expose` added no endpoints to \
         it{port}.\n"
    )
}

fn text(args: &Expose, writes: &PlannedWrites) -> String {
    if args.remove && !writes.changed() {
        return nothing_to_remove(args);
    }
    let mut rows = table(&["ACTION", "OBJECT", "WHAT"]);
    for write in writes.service.iter().chain(&writes.slices) {
        rows.add_row([write.action.as_str(), &write.title(), &write.what()]);
    }
    for (kind, name) in &writes.deletes {
        rows.add_row(["delete", &format!("{kind} {}/{name}", args.namespace), ""]);
    }
    let mut text = render(&rows);
    if let Some(addresses) = cluster_ips(writes) {
        text += &format!("\nCluster IP of {}/{}: {addresses}\n", args.namespace, args.name);
    }
    if args.dry_run {
        text += "\nNothing was written (--dry-run).\n";
    }
    text + &notices_text(&writes.notices)
}

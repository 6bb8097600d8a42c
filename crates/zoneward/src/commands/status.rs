//! `zoneward status` and `zoneward top`: what is measured beside what is planned, why, and what to change.
//!
//! The controller that leads makes the report; this asks it, adds Events and routes of one Service, and prints.

mod checks;
pub(in crate::commands) mod detail;
pub(in crate::commands) mod leader;
mod local;
pub mod server;
mod tables;

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use clock::Clock;
use cluster::object_name::ObjectName;
use cluster::signals::Signals;
use insight::status::StatusReport;
use kube::Client;
use output::{Format, print_text, value_text};

use leader::StatusServer;

/// Interval of `--watch`.
const INTERVAL: &str = "5s";

/// `zoneward status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Show one Service in full, such as web or svc/web, in the namespace of -n
    #[arg(value_name = "SERVICE")]
    pub service: Option<ObjectName>,
    /// Repeat until interrupted
    #[arg(short = 'w', long)]
    pub watch: bool,
    /// Time that rates and shares cover, up to 24h; longer than the ledger is old means all of it
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = model::duration::parse)]
    pub window: Duration,
    /// Output format
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table")]
    pub format: StatusFormat,
    #[command(flatten)]
    pub target: StatusTarget,
}

/// `zoneward top`
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Show one Service, such as web or svc/web, in the namespace of -n
    #[arg(value_name = "SERVICE")]
    pub service: Option<ObjectName>,
    /// Number of updates [default: until interrupted]
    #[arg(long, value_name = "N")]
    pub count: Option<u32>,
    #[command(flatten)]
    pub target: StatusTarget,
}

/// Which report is asked for, and of which controller.
#[derive(Debug, Args)]
pub struct StatusTarget {
    /// Namespace of Services [default: the namespace of the context]; the summary covers all namespaces
    #[arg(short = 'n', long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Services in all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Interval of updates
    #[arg(long, value_name = "DURATION", default_value = INTERVAL, value_parser = model::duration::parse)]
    pub interval: Duration,
    /// Lease of the controllers [default: zoneward-controller, in any namespace]
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub lease: Option<String>,
    /// Address of the status listener of a controller [default: the one of the leader, found by its Lease]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub server: Option<std::net::SocketAddr>,
    #[command(flatten)]
    pub connection: cluster::Connection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StatusFormat {
    /// Tables within 80 columns
    Table,
    /// Tables with every column and row
    Wide,
    /// JSON with stable fields
    Json,
    /// YAML with the same fields as JSON
    Yaml,
    /// Self-contained HTML page
    Html,
}

pub fn status(args: &StatusArgs) -> Result<bool> {
    if args.watch && args.format == StatusFormat::Html {
        bail!("--watch repeats tables, JSON or YAML; an HTML page is printed once");
    }
    let text = |report: &StatusReport| rendered(report, args);
    let count = if args.watch { None } else { Some(1) };
    let result = follow(&args.target, args.service.as_ref(), args.window, count, text);
    match (result, args.target.server) {
        (Err(error), None) => without_api(args, error),
        (result, _) => result,
    }
}

/// Where the API does not answer, what the node proxy of this machine serves meanwhile.
fn without_api(args: &StatusArgs, error: anyhow::Error) -> Result<bool> {
    let Some(running) = local::serving_alone() else { return Err(error) };
    let (why, clock) = (cluster::failure::text(&error), Clock::system());
    let value = || local::value(&running, &why, &clock);
    print_text(&match args.format {
        StatusFormat::Json => value_text(&value(), Format::Json)?,
        StatusFormat::Yaml => value_text(&value(), Format::Yaml)?,
        StatusFormat::Table | StatusFormat::Wide | StatusFormat::Html => local::text(&running, &why, &clock),
    })?;
    Ok(false)
}

pub fn top(args: &TopArgs) -> Result<bool> {
    // The ledger counts by the minute.
    let window = Duration::from_secs(60);
    follow(&args.target, args.service.as_ref(), window, args.count, |report| Ok(tables::rates(report)))
}

fn rendered(report: &StatusReport, args: &StatusArgs) -> Result<String> {
    let value = || serde_json::to_value(report).context("writing the report");
    Ok(match args.format {
        StatusFormat::Table => tables::text(report, false),
        StatusFormat::Wide => tables::text(report, true),
        StatusFormat::Json => value_text(&value()?, Format::Json)?,
        StatusFormat::Yaml => value_text(&value()?, Format::Yaml)?,
        StatusFormat::Html => insight::pages::status_file(report),
    })
}

/// Prints the report once or `count` times; on a terminal, each takes the place of the last. Returns whether everything
/// is honored.
fn follow(
    target: &StatusTarget,
    service: Option<&ObjectName>,
    window: Duration,
    count: Option<u32>,
    text: impl Fn(&StatusReport) -> Result<String>,
) -> Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let client = cluster::connect(&target.connection, &Clock::system()).await?;
        let server = StatusServer::new(client.clone(), target)?;
        let mut printed = 0;
        loop {
            let report = ask(&server, &client, target, service, window).await?;
            let text = text(&report)?;
            let is_screen = count != Some(1) && std::io::stdout().is_terminal();
            // Cursor to the top left, and clear to the end.
            print_text(&if is_screen { format!("\x1b[H\x1b[2J{text}") } else { text })?;
            printed += 1;
            if count.is_some_and(|count| printed >= count) {
                return Ok(is_honored(&report));
            }
            tokio::select! {
                biased;
                () = signals.wait() => return Ok(is_honored(&report)),
                () = tokio::time::sleep(target.interval) => {}
            }
        }
    })
}

/// Whether every Service and node does what is requested.
fn is_honored(report: &StatusReport) -> bool {
    let nodes = &report.summary.nodes;
    nodes.behind.is_empty() && nodes.silent.is_empty() && report.services.iter().all(|s| s.honored)
}

async fn ask(
    server: &StatusServer,
    client: &Client,
    target: &StatusTarget,
    service: Option<&ObjectName>,
    window: Duration,
) -> Result<StatusReport> {
    let own = || client.default_namespace().to_owned();
    let namespace = match (service.and_then(|name| name.namespace.clone()), &target.namespace) {
        (Some(named), _) => Some(named),
        (None, Some(given)) => Some(given.clone()),
        (None, None) if service.is_some() => Some(own()),
        (None, None) => (!target.all_namespaces).then(own),
    };
    let Some(service) = service else {
        let mut report = server.report(namespace.as_deref(), None, window).await?;
        checks::complete(&mut report, client, namespace.as_deref(), None).await;
        return Ok(report);
    };
    let namespace = namespace.unwrap_or_else(own);
    let mut report = server.report(Some(&namespace), Some(&service.name), window).await?;
    if report.detail.is_none() {
        let all = server.report(None, None, window).await?;
        let keys: Vec<model::ServiceKey> = all
            .services
            .iter()
            .map(|s| model::ServiceKey::new(&s.namespace.as_str().into(), &s.name.as_str().into()))
            .collect();
        bail!(service.unknown(Some(&namespace), &keys));
    }
    detail::complete(&mut report, client, server, window).await;
    checks::complete(&mut report, client, Some(&namespace), Some(&service.name)).await;
    Ok(report)
}

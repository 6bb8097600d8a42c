//! `zoneward simulate ...`: scores of algorithms, and what a change would do to a cluster.

mod capture;
mod events;
mod inputs;
mod replay;
mod rows;
mod run;
mod what_if;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use model::duration::parse_or_seconds;
use sim::{Algorithm, ScoreWeights};

/// `zoneward simulate ...`
#[derive(Debug, Subcommand)]
pub enum SimulateCommand {
    /// Score algorithms on a data set or on your own inputs
    ///
    /// An input is a number of nodes and endpoints per zone. The score is the KEP's: 45 % traffic that stays in its
    /// zone, 40 % overload, 15 % number of EndpointSlices.
    #[command(after_help = "\
Examples:
  zoneward simulate run --input small
  zoneward simulate run --input mine.csv --algorithm local,spill,best --per-input
  zoneward simulate run --input large -o html > report.html")]
    Run(SimulateRun),
    /// Show what each mechanism would do to your Services
    ///
    /// Reads Services, Nodes, EndpointSlices and Pods. For every Service and mechanism: traffic that stays in its zone,
    /// overload, endpoints without traffic, what would be written, what crosses zones and costs, and the same when a
    /// zone fails, during a rolling update and with one replica more; with a recommendation to apply. Changes nothing.
    #[command(after_help = "\
Examples:
  zoneward simulate what-if -A
  kubectl get svc,nodes,endpointslices,pods -A -o json | zoneward simulate what-if -f -
  zoneward simulate what-if -f cluster.yaml --scale svc/web=+2@zone-b --set svc/web=Spill
  zoneward simulate what-if -f cluster.yaml --traffic zone-a=500,zone-b=300 --price 0.02 --demand measured")]
    WhatIf(SimulateWhatIf),
    /// Replay events under each mechanism and count what they cost
    ///
    /// Pods are scaled, rolled out and lost with their nodes in virtual time, and the controller's own functions plan
    /// every Service that changes: slices written, hints flipped, endpoints that serve other zones, bytes that the API
    /// sends to all nodes. Starts from files; else from a made-up cluster, if its size is given or there is no
    /// kubeconfig; else from the cluster of the kubeconfig. Changes nothing.
    #[command(after_help = "\
Examples:
  zoneward simulate replay --seed 7 --events 200
  zoneward simulate replay --zones 3 --nodes 100 --services 200 --endpoints 20 -o html > churn.html
  zoneward simulate replay -f cluster.yaml --event-file monday.yaml
  zoneward simulate replay --kubeconfig ~/.kube/config -A")]
    Replay(SimulateReplay),
    /// Write a snapshot of a cluster that what-if, replay, plan and trace can read
    ///
    /// Holds Services, EndpointSlices, Pods, Nodes and Namespaces with what planning reads of them and nothing else: no
    /// environment, no commands, no images, no annotations of others. With --hash-names also no name of yours.
    #[command(after_help = "\
Examples:
  zoneward simulate capture -A cluster.yaml
  zoneward simulate capture -A --hash-names -o json > for-others.json")]
    Capture(SimulateCapture),
}

/// `zoneward simulate capture`
#[derive(Debug, Args)]
pub struct SimulateCapture {
    /// Where to write it [default: standard output]
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: cluster::input::InputArgs,
    /// Put hashes for namespaces, names, labels and node names, and other addresses, zones and identities
    #[arg(long)]
    pub hash_names: bool,
    /// Makes the hashes repeatable; whoever knows it can guess names [default: random, kept by nobody]
    #[arg(long, value_name = "TEXT", requires = "hash_names")]
    pub salt: Option<String>,
    /// Overwrite the file if it exists
    #[arg(long, requires = "file")]
    pub force: bool,
    /// How to write it
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "yaml")]
    pub format: CaptureFormat,
}

/// How a snapshot is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CaptureFormat {
    /// Easy to look through
    Yaml,
    /// Faster to read back
    Json,
}

/// `zoneward simulate replay`
#[derive(Debug, Args)]
pub struct SimulateReplay {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: cluster::input::InputArgs,
    /// The events: YAML or JSON, as {at: 1m30s, event: roll, service: shop/cart} [default: by chance]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "events"])]
    pub event_file: Option<PathBuf>,
    /// Makes the events by chance repeatable
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// How many events by chance
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub events: u32,
    /// Zones of a made-up cluster [default: 3]
    #[arg(long, value_name = "N", conflicts_with_all = ["files", "kubeconfig", "context", "api_socket", "all_namespaces"], value_parser = clap::value_parser!(u16).range(1..=100))]
    pub zones: Option<u16>,
    /// Nodes of a made-up cluster [default: 12]
    #[arg(long, value_name = "N", conflicts_with_all = ["files", "kubeconfig", "context", "api_socket", "all_namespaces"], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub nodes: Option<u32>,
    /// Services of a made-up cluster [default: 10]
    #[arg(long, value_name = "N", conflicts_with_all = ["files", "kubeconfig", "context", "api_socket", "all_namespaces"], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub services: Option<u32>,
    /// Endpoints of each Service of a made-up cluster [default: 12]
    #[arg(long, value_name = "N", conflicts_with_all = ["files", "kubeconfig", "context", "api_socket", "all_namespaces"], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub endpoints: Option<u32>,
    /// From the creation of a pod to its readiness; a number without a unit is seconds
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_or_seconds)]
    pub pod_start: Duration,
    /// From the deletion of a pod to its end
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_or_seconds)]
    pub pod_stop: Duration,
    /// From the loss of a node to the replacement of its pods
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_or_seconds)]
    pub eviction: Duration,
    /// How to write the answer
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table")]
    pub format: ReportFormat,
}

/// `zoneward simulate what-if`
#[derive(Debug, Args)]
pub struct SimulateWhatIf {
    /// Only this Service, as web or svc/web; its namespace comes from -n
    #[arg(value_name = "SERVICE")]
    pub service: Option<cluster::object_name::ObjectName>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: cluster::input::InputArgs,
    /// What the traffic of a zone is proportional to
    #[arg(long, value_name = "WHAT", default_value = "cpu")]
    pub demand: DemandBy,
    /// Gigabytes per month that each Service gets: one number, one per zone as zone-a=500,zone-b=300, or a file with
    /// the nodes' metrics as nodes.prom
    #[arg(long, value_name = "GB|ZONE=GB,...|FILE.prom")]
    pub traffic: Option<what_if::Traffic>,
    /// How many days the counters in the file of --traffic cover
    #[arg(long, value_name = "DAYS", default_value_t = 30.0, value_parser = parse_days, requires = "traffic")]
    pub traffic_days: f64,
    /// What a gigabyte between zones costs
    #[arg(long, value_name = "MONEY", value_parser = parse_price, requires = "traffic")]
    pub price: Option<f64>,
    /// Try a mechanism for a Service, as svc/web=Spill; may be repeated
    #[arg(long, value_name = "SERVICE=MECHANISM")]
    pub set: Vec<what_if::Setting>,
    /// Try more or fewer replicas in a zone, as svc/web=+2@zone-b; may be repeated
    #[arg(long, value_name = "SERVICE=+N@ZONE", allow_hyphen_values = true)]
    pub scale: Vec<what_if::Scaling>,
    /// How to write the answer
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table")]
    pub format: ReportFormat,
}

/// What stands for the traffic of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DemandBy {
    /// Its ready nodes
    Nodes,
    /// The allocatable CPU of its ready nodes
    Cpu,
    /// What --traffic says per zone, or per Service and zone
    Measured,
}

/// `zoneward simulate run`
#[derive(Debug, Args)]
pub struct SimulateRun {
    /// small, medium, large, representative, or a file: .csv as the public tool takes it, or .json
    #[arg(long, value_name = "SET|FILE", default_value = "small")]
    pub input: PathBuf,
    /// Which algorithms, in this order
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "balanced,local,local-shared,local-weighted,local-opt,spill,best"
    )]
    pub algorithm: Vec<Algorithm>,
    /// Endpoints per zone from which on local works
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub starting_threshold: usize,
    /// What local and local-shared let an endpoint get above its fair share, 0.5 for 50 %
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = parse_threshold)]
    pub overload_threshold: f64,
    /// What in-zone traffic, overload and slices count in the score; only the ratio matters
    #[arg(long, value_name = "A,B,C", default_value = "45,40,15")]
    pub weights: ScoreWeights,
    /// How to write the answer
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table")]
    pub format: ReportFormat,
    /// A row for each input and algorithm instead of means
    #[arg(long)]
    pub per_input: bool,
    /// How many threads work [default: as many as there are processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// How a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// For people, within 80 columns
    Table,
    /// For people, with every column
    Wide,
    /// For programs; the fields are stable
    Json,
    /// For spreadsheets
    Csv,
    /// One page with plots, that needs nothing else
    Html,
}

/// Runs one of the commands.
pub fn run(command: &SimulateCommand) -> Result<bool> {
    match command {
        SimulateCommand::Run(args) => run::run(args),
        SimulateCommand::WhatIf(args) => what_if::run(args),
        SimulateCommand::Replay(args) => replay::run(args),
        SimulateCommand::Capture(args) => capture::run(args),
    }
}

fn parse_threshold(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| share.is_finite() && *share > 0.0);
    share.ok_or_else(|| "write a number above 0, as 0.5".to_owned())
}

fn parse_days(text: &str) -> Result<f64, String> {
    let days = text.parse::<f64>().ok().filter(|days| days.is_finite() && *days > 0.0);
    days.ok_or_else(|| "write a number above 0, as 7 or 0.5".to_owned())
}

fn parse_price(text: &str) -> Result<f64, String> {
    let price = text.parse::<f64>().ok().filter(|price| price.is_finite() && *price >= 0.0);
    price.ok_or_else(|| "write a number from 0 on, as 0.02".to_owned())
}

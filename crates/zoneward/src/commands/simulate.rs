//! `zoneward simulate ...`: scores of algorithms, and offline evaluation of changes to a cluster.

mod capture;
mod events;
mod inputs;
mod per_input;
mod replay;
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
    /// An input is the number of nodes and endpoints per zone. The score is that of the KEP: 45 % in-zone traffic, 40
    /// % overload, 15 % number of EndpointSlices.
    #[command(after_help = "\
Examples:
  zoneward simulate run --input small
  zoneward simulate run --input mine.csv --algorithm local,spill,best --per-input
  zoneward simulate run --input large -o html > report.html")]
    Run(SimulateRun),
    /// Evaluate each traffic distribution for the Services of a cluster
    ///
    /// Reads Services, Nodes, EndpointSlices and Pods, and reports for each Service and mechanism: in-zone traffic,
    /// overload, idle endpoints, slices written, cross-zone traffic and its cost, and the same during a zone failure,
    /// during a rolling update and with one more replica. Ends with a recommendation. Changes nothing.
    #[command(after_help = "\
Examples:
  zoneward simulate what-if -A
  kubectl get svc,nodes,endpointslices,pods -A -o json | zoneward simulate what-if -f -
  zoneward simulate what-if -f cluster.yaml --scale svc/web=+2@zone-b --set svc/web=Spill
  zoneward simulate what-if -f cluster.yaml --traffic zone-a=500,zone-b=300 --price 0.02 --demand measured")]
    WhatIf(SimulateWhatIf),
    /// Replay events under each traffic distribution and measure churn
    ///
    /// Scales, rolls out and evicts pods in virtual time, and plans every affected Service with the functions of the
    /// controller: slices written, hints changed, endpoints moved to other zones, watch traffic to all nodes. The
    /// initial cluster comes from files, from a generated cluster if its size is given or there is no kubeconfig, or
    /// from the cluster of the kubeconfig. Changes nothing.
    #[command(after_help = "\
Examples:
  zoneward simulate replay --seed 7 --events 200
  zoneward simulate replay --zones 3 --nodes 100 --services 200 --endpoints 20 -o html > churn.html
  zoneward simulate replay -f cluster.yaml --event-file monday.yaml
  zoneward simulate replay --kubeconfig ~/.kube/config -A")]
    Replay(SimulateReplay),
    /// Capture a cluster as input for what-if, replay, plan and trace
    ///
    /// Contains Services, EndpointSlices, Pods, Nodes and Namespaces, reduced to the fields that planning reads: no
    /// environment, commands, images or annotations of other programs. --hash-names also anonymizes names.
    #[command(after_help = "\
Examples:
  zoneward simulate capture -A cluster.yaml
  zoneward simulate capture -A --hash-names -o json > for-others.json")]
    Capture(SimulateCapture),
}

/// `zoneward simulate capture`
#[derive(Debug, Args)]
pub struct SimulateCapture {
    /// Output file [default: standard output]
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub input: cluster::input::InputArgs,
    /// Replace names, namespaces, labels and node names with hashes, and anonymize addresses, zones and UIDs
    #[arg(long)]
    pub hash_names: bool,
    /// Salt of the hashes, for repeatable output; it allows names to be guessed [default: random]
    #[arg(long, value_name = "TEXT", requires = "hash_names")]
    pub salt: Option<String>,
    /// Overwrite an existing file
    #[arg(long, requires = "file")]
    pub force: bool,
    /// Output format
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "yaml")]
    pub format: CaptureFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CaptureFormat {
    /// YAML, easier to read
    Yaml,
    /// JSON, faster to load
    Json,
}

/// `zoneward simulate replay`
#[derive(Debug, Args)]
pub struct SimulateReplay {
    #[command(flatten)]
    pub input: cluster::input::InputArgs,
    /// Event file (YAML or JSON) with items such as {at: 1m30s, event: roll, service: shop/cart} [default: random
    /// events]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "events"])]
    pub event_file: Option<PathBuf>,
    /// Seed of random events
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Number of random events
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub events: u32,
    /// Zones of the generated cluster [default: 3]
    #[arg(long, value_name = "N", conflicts_with_all = ["files", "kubeconfig", "context", "api_socket", "all_namespaces"], value_parser = clap::value_parser!(u16).range(1..=100))]
    pub zones: Option<u16>,
    /// Nodes of the generated cluster [default: 12]
    #[arg(long, value_name = "N", conflicts_with_all = ["files", "kubeconfig", "context", "api_socket", "all_namespaces"], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub nodes: Option<u32>,
    /// Services of the generated cluster [default: 10]
    #[arg(long, value_name = "N", conflicts_with_all = ["files", "kubeconfig", "context", "api_socket", "all_namespaces"], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub services: Option<u32>,
    /// Endpoints per Service of the generated cluster [default: 12]
    #[arg(long, value_name = "N", conflicts_with_all = ["files", "kubeconfig", "context", "api_socket", "all_namespaces"], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub endpoints: Option<u32>,
    /// Time from the creation of a pod to readiness; a number without unit is seconds
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_or_seconds)]
    pub pod_start: Duration,
    /// Time from the deletion of a pod to its termination
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_or_seconds)]
    pub pod_stop: Duration,
    /// Time from the loss of a node to the eviction of its pods
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_or_seconds)]
    pub eviction: Duration,
    #[command(flatten)]
    pub subset: crate::cli::SubsetArgs,
    /// Output format
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table")]
    pub format: ReportFormat,
}

/// `zoneward simulate what-if`
#[derive(Debug, Args)]
pub struct SimulateWhatIf {
    /// Limit to one Service, such as web or svc/web, in the namespace of -n
    #[arg(value_name = "SERVICE")]
    pub service: Option<cluster::object_name::ObjectName>,
    #[command(flatten)]
    pub input: cluster::input::InputArgs,
    /// Measure of the traffic of a zone
    #[arg(long, value_name = "WHAT", default_value = "cpu")]
    pub demand: DemandBy,
    /// Traffic per Service in GB per month: one number, one per zone such as zone-a=500,zone-b=300, or a file with
    /// node metrics such as nodes.prom
    #[arg(long, value_name = "GB|ZONE=GB,...|FILE.prom")]
    pub traffic: Option<what_if::TrafficVolume>,
    /// Number of days that the counters in the file of --traffic cover
    #[arg(long, value_name = "DAYS", default_value_t = 30.0, value_parser = parse_days, requires = "traffic")]
    pub traffic_days: f64,
    /// Price of cross-zone traffic per GB
    #[arg(long, value_name = "MONEY", value_parser = parse_price, requires = "traffic")]
    pub price: Option<f64>,
    #[command(flatten)]
    pub hints: crate::cli::HintFlags,
    /// Evaluate a mechanism for a Service, such as svc/web=Spill; repeatable
    #[arg(long, value_name = "SERVICE=MECHANISM")]
    pub set: Vec<what_if::MechanismOverride>,
    /// Evaluate more or fewer replicas in a zone, such as svc/web=+2@zone-b; repeatable
    #[arg(long, value_name = "SERVICE=+N@ZONE", allow_hyphen_values = true)]
    pub scale: Vec<what_if::ReplicaChange>,
    /// Output format
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table")]
    pub format: ReportFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DemandBy {
    /// Ready nodes
    Nodes,
    /// Allocatable CPU of ready nodes
    Cpu,
    /// Traffic per zone, or per Service and zone, from --traffic
    Measured,
}

/// `zoneward simulate run`
#[derive(Debug, Args)]
pub struct SimulateRun {
    /// Data set (small, medium, large, representative), or a .csv or .json file
    #[arg(long, value_name = "SET|FILE", default_value = "small")]
    pub input: PathBuf,
    /// Algorithms to score, in output order
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "balanced,local,local-shared,local-weighted,local-opt,spill,best"
    )]
    pub algorithm: Vec<Algorithm>,
    /// Minimum average number of endpoints per zone for algorithm local
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub starting_threshold: usize,
    /// Maximum overload of an endpoint under local and local-shared, 0.5 for 50 %
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = parse_threshold)]
    pub overload_threshold: f64,
    /// Weights of in-zone traffic, overload and slices in the score; only the ratio matters
    #[arg(long, value_name = "A,B,C", default_value = "45,40,15")]
    pub weights: ScoreWeights,
    /// Output format
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table")]
    pub format: ReportFormat,
    /// Print one row per input and algorithm instead of means
    #[arg(long)]
    pub per_input: bool,
    /// Number of threads [default: number of CPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// Table within 80 columns
    Table,
    /// Table with every column
    Wide,
    /// JSON with stable fields
    Json,
    /// CSV
    Csv,
    /// Self-contained HTML page with plots
    Html,
}

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
    share.ok_or_else(|| "expected a number greater than 0, such as 0.5".to_owned())
}

fn parse_days(text: &str) -> Result<f64, String> {
    let days = text.parse::<f64>().ok().filter(|days| days.is_finite() && *days > 0.0);
    days.ok_or_else(|| "expected a number greater than 0, such as 7 or 0.5".to_owned())
}

fn parse_price(text: &str) -> Result<f64, String> {
    let price = text.parse::<f64>().ok().filter(|price| price.is_finite() && *price >= 0.0);
    price.ok_or_else(|| "expected a non-negative number, such as 0.02".to_owned())
}

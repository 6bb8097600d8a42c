//! `zoneward simulate ...`: scores of algorithms, and what a change would do to a cluster.

mod inputs;
mod rows;
mod run;
mod what_if;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
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
    /// zone fails; with a recommendation to apply. Changes nothing.
    #[command(after_help = "\
Examples:
  kubectl get svc,nodes,endpointslices -A -o json | zoneward simulate what-if -f -
  zoneward simulate what-if -f cluster.yaml --scale svc/web=+2@zone-b --set svc/web=Spill
  zoneward simulate what-if -f cluster.yaml --traffic zone-a=500,zone-b=300 --price 0.02 --demand measured")]
    WhatIf(SimulateWhatIf),
}

/// `zoneward simulate what-if`
#[derive(Debug, Args)]
pub struct SimulateWhatIf {
    /// Only this Service, as NAMESPACE/NAME or NAME
    #[arg(value_name = "SERVICE")]
    pub service: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: crate::cli::Input,
    /// What the traffic of a zone is proportional to
    #[arg(long, value_name = "WHAT", default_value = "cpu")]
    pub demand: DemandBy,
    /// Gigabytes per month that each Service gets: one number, or one per zone as zone-a=500,zone-b=300
    #[arg(long, value_name = "GB|ZONE=GB,...")]
    pub traffic: Option<what_if::Traffic>,
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
    /// What --traffic says per zone
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
    /// For people
    Table,
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
    }
}

fn parse_threshold(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| share.is_finite() && *share > 0.0);
    share.ok_or_else(|| "write a number above 0, as 0.5".to_owned())
}

fn parse_price(text: &str) -> Result<f64, String> {
    let price = text.parse::<f64>().ok().filter(|price| price.is_finite() && *price >= 0.0);
    price.ok_or_else(|| "write a number from 0 on, as 0.02".to_owned())
}

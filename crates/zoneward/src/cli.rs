//! The command line: what a user can say, with the help that a man page would give.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use model::Timestamp;
use plan::FeatureGates;

const EXIT_CODES: &str = "\
Exit codes:
  0  fine
  1  the answer is \"no\", or something failed
  2  wrong use";

/// Service traffic that stays close: decides, programs and explains where it goes.
///
/// Zoneward replaces kube-proxy and the EndpointSlice controller. The commands here decide on files and write
/// nothing: they show what would be written, and why.
#[derive(Debug, Parser)]
#[command(name = "zoneward", version, after_help = EXIT_CODES, arg_required_else_help = true)]
#[command(infer_subcommands = true, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what the controllers would write; writes nothing
    #[command(subcommand, arg_required_else_help = true)]
    Plan(PlanCommand),
    /// Show where traffic would go from a node, and why
    #[command(subcommand, arg_required_else_help = true)]
    Trace(TraceCommand),
    /// Serve the embedded Kubernetes API on this machine
    ///
    /// Everything is kept in the data directory: what is stored, the API's own authority, and the credentials. The
    /// path of the admin's kubeconfig is printed when the API answers; reader.kubeconfig beside it may only look.
    /// The server stops cleanly on SIGINT and SIGTERM.
    #[command(after_help = "\
Examples:
  zoneward up --no-node --data-dir ./zoneward-data
  kubectl --kubeconfig ./zoneward-data/kubeconfig get services -A")]
    Up(Up),
    /// Back up, restore and check the data of the embedded API
    #[command(subcommand, arg_required_else_help = true)]
    Store(StoreCommand),
    /// Print a completion script for a shell
    ///
    /// For bash: `source <(zoneward completion bash)`.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one page per command into a folder
    Man {
        /// The folder; it is made if it is missing.
        #[arg(value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// `zoneward plan ...`
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// EndpointSlices that would be made, changed and deleted
    ///
    /// Reads Services, Pods, Nodes and the EndpointSlices that exist, packs the ready pods of every Service into
    /// slices with as few changes as possible, and shows each change with its reason. Slices that other
    /// controllers write are left alone.
    #[command(after_help = "\
Examples:
  zoneward plan slices -f cluster.yaml
  kubectl get svc,pods,nodes,endpointslices -A -o json | zoneward plan slices -f - -o json")]
    Slices(PlanSlices),
    /// Cluster IPs that would be given, and IPAddress objects made or deleted
    ///
    /// Reads Services, ServiceCIDRs and IPAddresses. Services without an address get one: from the upper band
    /// of a ready range first, so that addresses chosen by hand, which belong into the lower band, stay free.
    #[command(after_help = "\
Examples:
  zoneward plan addresses -f services.yaml --seed 1
  zoneward plan addresses -f services.yaml --now 2026-11-15T10:00:00Z -o json")]
    Addresses(PlanAddresses),
    /// What an API server would refuse, before one is asked
    ///
    /// Checks Services, EndpointSlices, Pods, Nodes, Namespaces, ServiceCIDRs and IPAddresses. Other kinds are
    /// passed over. The exit code is 1 if anything is refused.
    #[command(after_help = "Examples:\n  zoneward plan validate -R -f manifests/")]
    Validate(PlanValidate),
}

/// `zoneward trace ...`
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// The endpoints that a node would send the traffic of each Service port to
    ///
    /// For every port two sets: `cluster` for traffic that may use every endpoint, `local` for traffic that a
    /// traffic policy keeps on the node. Each choice comes with its reason.
    #[command(after_help = "\
Examples:
  zoneward trace select -f cluster.yaml --node node-a1
  zoneward trace select shop/cart -f cluster.yaml --node node-a1 -o json")]
    Select(TraceSelect),
}

/// `zoneward store ...`
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Copy everything that is stored into one new file
    ///
    /// The copy is complete and durable before it gets its name, and only its owner can read it: Secrets are inside.
    /// The API must not be running on the data.
    #[command(after_help = "Examples:\n  zoneward store backup --data-dir ./zoneward-data monday.backup")]
    Backup(StoreFile),
    /// Make new data from a backup
    ///
    /// Data that exists is never overwritten: move it away first. Versions of objects go on far above those of
    /// the backup, so that clients that have seen later ones list again instead of missing changes.
    #[command(after_help = "Examples:\n  zoneward store restore --data-dir ./zoneward-data monday.backup")]
    Restore(StoreFile),
    /// Read everything that is stored and say what is wrong with it
    ///
    /// The exit code is 1 if anything is. The API must not be running on the data.
    #[command(after_help = "Examples:\n  zoneward store check --data-dir ./zoneward-data")]
    Check(StoreCheck),
}

/// `zoneward store backup` and `zoneward store restore`
#[derive(Debug, Args)]
pub struct StoreFile {
    /// The folder that `zoneward up` was given
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// The backup
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// `zoneward store check`
#[derive(Debug, Args)]
pub struct StoreCheck {
    /// The folder that `zoneward up` was given
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
}

/// Where objects come from.
#[derive(Debug, Args)]
pub struct Input {
    /// Kubernetes YAML or JSON: a file, a folder, or - for standard input; may be repeated
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR|-", required = true)]
    pub files: Vec<PathBuf>,
    /// Go into the folders of a folder, too
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Only Services of this namespace; also the namespace of objects that name none [default: all; default]
    #[arg(short = 'n', long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
}

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For programs; the fields are stable
    Json,
    /// The same as JSON, as YAML
    Yaml,
}

/// `-o`.
#[derive(Debug, Args)]
pub struct Output {
    /// How to write the answer
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table")]
    pub format: Format,
}

/// `zoneward up`
#[derive(Debug, Args)]
pub struct Up {
    /// Where everything is kept; it is made if it is missing
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Leave this machine's kernel alone: serve the API and program no node
    #[arg(long, required = true)]
    pub no_node: bool,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:6443")]
    pub listen: SocketAddr,
    /// Where cluster IPs come from when the API starts for the first time; one range, or one of each family
    #[arg(
        long,
        value_name = "CIDR,...",
        value_delimiter = ',',
        default_value = "10.96.0.0/16,fd00:10:96::/112"
    )]
    pub service_cluster_ip_range: Vec<IpNet>,
    /// Where addresses of Services of type LoadBalancer come from [default: none, they stay pending]
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    pub load_balancer_range: Vec<IpNet>,
}

/// `zoneward plan slices`
#[derive(Debug, Args)]
pub struct PlanSlices {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: Input,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    /// How many endpoints a slice may hold, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub max_endpoints_per_slice: u16,
    /// Show the slices that stay as they are, too
    #[arg(long)]
    pub all: bool,
}

/// `zoneward plan addresses`
#[derive(Debug, Args)]
pub struct PlanAddresses {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: Input,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    /// Makes the random choice of addresses repeatable [default: another one each time]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// The time to measure grace periods from, as 2026-11-15T10:00:00Z [default: now]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub now: Option<Timestamp>,
}

/// `zoneward plan validate`
#[derive(Debug, Args)]
pub struct PlanValidate {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: Input,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
}

/// `zoneward trace select`
#[derive(Debug, Args)]
pub struct TraceSelect {
    /// Only this Service, as NAMESPACE/NAME or NAME
    #[arg(value_name = "SERVICE")]
    pub service: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: Input,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    /// The node to stand on
    #[arg(long, value_name = "NAME")]
    pub node: String,
    /// Switch features on or off, as PreferSameTrafficDistribution=false
    #[arg(long, value_name = "NAME=BOOL,...", default_value = "", hide_default_value = true)]
    pub feature_gates: FeatureGates,
}

fn parse_time(text: &str) -> Result<Timestamp, String> {
    Timestamp::parse(text).ok_or_else(|| "write it as 2026-11-15T10:00:00Z".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}

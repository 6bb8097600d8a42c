//! The command line: commands, flags and their help text.

mod backup_args;
mod gateway_api_args;
mod price_args;
mod store_args;
mod subset_args;
mod trace_args;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use model::{Name, Timestamp};
use plan::hints::ZoneWeight;
use plan::slices::{SliceMode, SliceOptions};
use plan::{FeatureGates, PlanningConfig};

use crate::edge::GatewayEdgeArgs;
pub use backup_args::BackupArgs;
pub use cluster::input::InputArgs;
pub use gateway_api_args::{GatewayAddressRange, GatewayApiSchemas, PlanStatus, gateway_addresses};
pub use node::offline::{NodeArgs, ProxyMode};
pub use output::{Format, OutputArgs};
pub use price_args::PriceArgs;
pub use store_args::{EncryptionArgs, StoreCheck, StoreCommand, StoreFile, StoreMigrate, StoreRestore};
pub use subset_args::SubsetArgs;
pub use trace_args::{TraceCommand, TraceDns, TraceHttp, TracePacket, TraceSelect};

const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  failure, or a check that found problems
  2  usage error";

/// Topology-aware Service networking: EndpointSlices, node proxy, L7 proxy
///
/// Zoneward replaces kube-proxy and the EndpointSlice controller. `plan` and `trace` work on manifests or on a
/// cluster, show each decision with its reason, and write nothing.
#[derive(Debug, Parser)]
#[command(name = "zoneward", version, after_help = EXIT_CODES, arg_required_else_help = true)]
#[command(infer_subcommands = true, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// Name of the file by which `kubectl zoneward` finds this program.
const KUBECTL_PLUGIN: &str = "kubectl-zoneward";

/// Parses the command line of this process; prints help and usage errors, and exits then.
pub fn parse() -> Cli {
    let program = std::env::args_os().next().unwrap_or_default();
    let command = match Path::new(&program).file_stem().is_some_and(|name| name == KUBECTL_PLUGIN) {
        true => as_kubectl_plugin(Cli::command()).bin_name("kubectl zoneward"),
        false => Cli::command(),
    };
    Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
}

/// Examples as they are typed with kubectl.
fn as_kubectl_plugin(command: clap::Command) -> clap::Command {
    let examples =
        command.get_after_help().map(|text| text.to_string().replace(" zoneward ", " kubectl zoneward "));
    let command = command.mut_subcommands(as_kubectl_plugin);
    match examples {
        Some(examples) => command.after_help(examples),
        None => command,
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what the controllers would write, without writing it
    #[command(subcommand, arg_required_else_help = true)]
    Plan(PlanCommand),
    /// Show which backends traffic from a node or client reaches, and why
    #[command(subcommand, arg_required_else_help = true)]
    Trace(TraceCommand),
    /// Run the node proxy, a replacement for kube-proxy that takes its flags and configuration
    ///
    /// Watches Services, EndpointSlices, ServiceCIDRs and the Node of this machine, and syncs nftables rules to the
    /// kernel. Reconciles existing rules at startup and leaves them in place when it exits. Requires NET_ADMIN.
    #[command(after_help = "\
Examples:
  zoneward node --config /var/lib/kube-proxy/config.conf
  zoneward node --proxy-mode nftables --kubeconfig kubeconfig --cluster-cidr 10.244.0.0/16
  zoneward node --proxy-mode nftables --api-socket ./zoneward-data/api.sock --hostname-override node-a")]
    Node(Box<node::config::flags::NodeFlags>),
    /// Remove all rules of node proxies: Zoneward's, and kube-proxy's in every mode
    ///
    /// Stop the node proxy first, or it restores its rules; running ones are warned of. Tables, chains and sets of other programs are not
    /// touched. Removed items are listed; a failure to remove one is reported and does not stop the rest.
    #[command(after_help = "\
Examples:
  zoneward cleanup --dry-run
  sudo zoneward cleanup
  sudo zoneward cleanup --only-zoneward")]
    Cleanup(Cleanup),
    /// Score routing algorithms and evaluate changes to a cluster offline
    #[command(subcommand, arg_required_else_help = true)]
    Simulate(crate::commands::simulate::SimulateCommand),
    /// Show what crosses zones and what it costs, beside the plan, with reasons, fixes and the state of nodes
    ///
    /// Asks the controller that leads: by port-forward to the pod that holds its Lease, or directly on a machine with
    /// `zoneward up` or `zoneward demo`. Services are sorted by the cost that a change of their traffic distribution
    /// would avoid; the fix is one command, with its effect predicted for the measured traffic. With SERVICE, shows
    /// its weights per zone with reasons, conditions, canary routes and Events. The exit code is 1 if a Service or a
    /// node does not honor what is requested.
    #[command(after_help = "\
Examples:
  zoneward status -A
  zoneward status cart -n shop
  zoneward status -A --watch --interval 10s
  zoneward status -A -o json --kubeconfig ./zoneward-data/kubeconfig")]
    Status(Box<crate::commands::status::StatusArgs>),
    /// Show live rates of Services: `status --watch` over the last minute
    #[command(after_help = "\
Examples:
  zoneward top -A
  zoneward top cart -n shop --count 1")]
    Top(Box<crate::commands::status::TopArgs>),
    /// Show new connections through Services as nodes see them, with zones and the reason
    ///
    /// Nodes read conntrack events only while they are asked, and log at most 1,000 connections a second. The log is a
    /// page of the metrics server of each node proxy, reached by port-forward to its pod, or directly on a machine
    /// with `zoneward up`.
    #[command(after_help = "\
Examples:
  zoneward observe -A --cross-zone
  zoneward observe cart -n shop --node node-a1 --limit 100 -o json
  zoneward observe -A --node node-a1 --server 127.0.0.1:10249")]
    Observe(Box<crate::commands::observe::ObserveArgs>),
    /// Back up, restore, check and migrate the store of the embedded API
    #[command(subcommand, arg_required_else_help = true)]
    Store(StoreCommand),
    /// Run the embedded Kubernetes API with its controllers, a node proxy and L7 proxies
    ///
    /// The node proxy runs as a child process and requires NET_ADMIN; `--no-node` disables it. Each MeshGateway runs
    /// as a child process on the ports of its listeners; `--no-mesh` disables them. The data directory holds the
    /// store, the certificate authority and the credentials. When the API is ready, the path of the admin kubeconfig
    /// is printed; reader.kubeconfig in the same directory is read-only. SIGINT and SIGTERM shut the server down
    /// gracefully.
    #[command(after_help = "\
Examples:
  zoneward up --no-node --data-dir ./zoneward-data
  zoneward up --no-node --data-dir ./zoneward-data --sidecar frontend:8081=backend
  zoneward up --no-node --data-dir ./zoneward-data --backup-every 6h --backup-to /mnt/backups
  kubectl --kubeconfig ./zoneward-data/kubeconfig get services -A")]
    Up(Box<Up>),
    /// Run the EndpointSlice controller against a cluster
    ///
    /// Replaces the EndpointSlice controller of kube-controller-manager: disable that one first
    /// (`--controllers=*,-endpointslice-controller`), or use `--coexist`. SIGINT and SIGTERM shut it down gracefully.
    #[command(after_help = "\
Examples:
  zoneward controller --kubeconfig ~/.kube/config
  zoneward controller --coexist --default-traffic-distribution PreferSameZone")]
    Controller(Controller),
    /// Run a demo cluster on this machine: three zones, six nodes, thirty pods, real traffic
    ///
    /// Builds the cluster from network namespaces, without root and without changes to the host network. Clients on
    /// every node connect to the same pods under each traffic distribution, while a zone loses its pods, while pods
    /// are replaced under load, and through a 90/10 canary route; each step reports where the connections went. The
    /// exit code is 1 if a share deviates from the plan or a connection fails unexpectedly.
    #[command(after_help = "\
Examples:
  zoneward demo
  zoneward demo --keep
  zoneward demo -o json")]
    Demo(demo::DemoArgs),
    /// Move traffic away from a zone, in steps, if the other zones have carried as much before
    ///
    /// Creates a ZoneDrain, which the controller accepts or refuses with the Services named. Nodes and proxies then move
    /// the traffic in ten steps. It returns with `undrain-zone`, when the drain expires, and when this command is
    /// interrupted while it waits. The exit code is 1 if the drain is refused.
    #[command(after_help = "\
Examples:
  zoneward drain-zone zone-a --dry-run
  zoneward drain-zone zone-a --rehearse --over 2m
  zoneward drain-zone zone-a --over 10m --expires-in 4h")]
    DrainZone(crate::commands::drain_zone::DrainZone),
    /// End the drain of a zone: its traffic returns at once
    #[command(after_help = "\
Examples:
  zoneward undrain-zone zone-a")]
    UndrainZone(crate::commands::drain_zone::UndrainZone),
    /// Expose processes outside Kubernetes as endpoints of a Service
    ///
    /// Creates the Service if it does not exist, and EndpointSlices with the hints of its traffic distribution. The
    /// endpoints of `--to` replace the previous ones; repeating the command changes nothing. A Service with a
    /// selector is rejected, because its endpoints come from Pods. With `--check`, endpoints are ready while a health
    /// check succeeds; `zoneward status` shows the reason if one is not.
    #[command(after_help = "\
Examples:
  zoneward expose web --port 80 --to 10.0.0.7:8080@zone-a --to 10.0.1.7:8080@zone-b
  zoneward expose web --port 80 --to 10.0.0.7:8080@zone-a --check http:/healthz --check-interval 5s
  zoneward expose web --port 80 --to '[fd00::7]:8080@zone-a' --traffic-distribution PreferSameZone --dry-run
  zoneward expose web --port 80 --remove")]
    Expose(crate::commands::expose::Expose),
    /// Create, list and delete tokens by which other machines join the embedded API
    #[command(subcommand, arg_required_else_help = true)]
    Token(crate::commands::token::TokenCommand),
    /// Join the embedded API of another machine, and run the node proxy
    ///
    /// The certificate authority is verified by its hash, and the token is exchanged for a credential of this machine's
    /// Node, which is stored in the data directory and renewed in time. A restart needs no token. The credential may read
    /// what a node proxy reads, and write the Node, Lease, Events, traffic report and exposed endpoints of this machine.
    /// It ends when the Node is deleted. The node proxy runs as a child process and requires NET_ADMIN; rules stay in
    /// place when this command ends.
    #[command(after_help = "\
Examples:
  zoneward join https://box-1:6443 --token abcdef.0123456789abcdef --ca-hash sha256:...
  zoneward join --zone zone-b
  zoneward join --gateways --sidecar frontend:8081=backend
  zoneward expose web --port 80 --to 10.0.0.7:8080 --kubeconfig /var/lib/zoneward-join/kubeconfig")]
    Join(crate::commands::join::Join),
    /// Write the objects of `zoneward up` as manifests for a Kubernetes cluster
    ///
    /// Prints Namespaces, ConfigMaps, Services, EndpointSlices of exposed processes, and the routes, gateways and policies
    /// of zoneward.dev and of the Gateway API, in the order in which `kubectl apply` takes them. Fields that a server sets
    /// are left out, and so are Pods, Nodes and objects of the system. What is not exported is said on standard error.
    #[command(after_help = "\
Examples:
  zoneward export --kubeconfig ./zoneward-data/kubeconfig > manifests.yaml
  zoneward export -n shop --include-secrets --keep-cluster-ips --kubeconfig ./zoneward-data/kubeconfig
  kubectl apply --server-side -f manifests.yaml")]
    Export(crate::commands::export::Export),
    /// Run and configure the L7 mesh: gateways, sidecars and Envoy
    #[command(subcommand, arg_required_else_help = true)]
    Mesh(crate::commands::mesh::MeshCommand),
    /// Check that this machine and this cluster have what Zoneward needs
    ///
    /// Checks kernel features, kernel variables, other proxies and rules that they left, the CNI plugin, ports, versions
    /// and the rights of this account in the API. The kernel validates a sample ruleset without applying it; nothing is
    /// changed. Each check is ok, warn or fail, with a command that fixes it. The exit code is 1 if one fails.
    #[command(after_help = "\
Examples:
  sudo zoneward preflight
  zoneward preflight --component controller --kubeconfig ~/.kube/config
  sudo zoneward preflight --component up -o json")]
    Preflight(crate::commands::preflight::Preflight),
    /// Prepare the move from kube-proxy
    #[command(subcommand)]
    Migrate(crate::commands::migrate::MigrateCommand),
    /// Collect one archive for a bug report, without secrets
    ///
    /// Contains versions, flags, the result of `zoneward preflight`, Zoneward's nftables tables, connection tracking
    /// statistics, kernel facts, metrics, health and status pages, logs, and the objects that Zoneward reads. Values of
    /// Secrets, environment variables of pods, tokens, keys and certificates are removed. index.json lists the content,
    /// and what could not be read. Only the owner can read the archive.
    #[command(after_help = "\
Examples:
  sudo zoneward sysdump
  zoneward sysdump --kubeconfig ~/.kube/config --output-file report.tar.gz
  sudo zoneward sysdump --no-api --log /var/log/zoneward.log")]
    Sysdump(crate::commands::sysdump::Sysdump),
    /// Show the version, the formats that it supports, and the version of the API server
    ///
    /// The API server is asked if a kubeconfig or a flag names one.
    #[command(after_help = "Examples:\n  zoneward version\n  zoneward version --client -o json")]
    Version(VersionArgs),
    /// Generate a shell completion script
    ///
    /// For bash: `source <(zoneward completion bash)`. In bash, zsh and fish, names of nodes, namespaces and Services
    /// are completed from the files of -f, or from the cluster with a timeout of one second.
    Completion {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Print completion candidates for the word at the cursor
    #[command(hide = true)]
    Complete {
        /// Words of the command line after the program name, up to the cursor
        #[arg(last = true)]
        words: Vec<String>,
    },
    /// Print the manual page, or write one page per command to a directory
    Man {
        /// Output directory; created if missing
        #[arg(value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// `zoneward plan ...`
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Show EndpointSlices that would be created, updated and deleted
    ///
    /// Reads Services, Pods, Nodes, Namespaces and existing EndpointSlices, packs the pods of each Service into
    /// slices with as few writes as possible, adds the hints of its traffic distribution, and shows each write with
    /// its reason. Slices of other controllers are ignored.
    #[command(after_help = "\
Examples:
  zoneward plan slices -f cluster.yaml
  kubectl get svc,pods,nodes,endpointslices -A -o json | zoneward plan slices -f - -o json")]
    Slices(PlanSlices),
    /// Show cluster IPs that would be allocated, and IPAddress objects created or deleted
    ///
    /// Reads Services, ServiceCIDRs and IPAddresses. Dynamic allocation uses the upper band of a ready range first
    /// and leaves the lower band to static addresses.
    #[command(after_help = "\
Examples:
  zoneward plan addresses -f services.yaml --seed 1
  zoneward plan addresses -f services.yaml --now 2026-11-15T10:00:00Z -o json")]
    Addresses(PlanAddresses),
    /// Validate manifests as the API server would
    ///
    /// Checks Services, EndpointSlices, Pods, Nodes, Namespaces, ServiceCIDRs, IPAddresses, the kinds of zoneward.dev:
    /// MeshHTTPRoute, MeshGatewayHTTPRoute, MeshTCPRoute and MeshGateway, and those of the Gateway API by its published
    /// schemas and rules. Other kinds are skipped. The exit code is 1 if any object is invalid.
    #[command(after_help = "Examples:\n  zoneward plan validate -R -f manifests/")]
    Validate(PlanValidate),
    /// Show the nftables changes of a node when objects change
    ///
    /// Compares the rules for the objects of `-f` with the rules after the objects of `--with` are added or replaced.
    /// Without `--with`, compares with an empty ruleset. With `--live`, compares the rules in the kernel of this
    /// machine with the rules for the objects, under the configuration of the running node proxy; the result is a
    /// summary by Service, and `--full` lists every element.
    #[command(after_help = "\
Examples:
  zoneward plan node -f cluster.yaml --node node-a1 --with changed-service.yaml
  sudo zoneward plan node --live
  sudo zoneward plan node -f cluster.yaml --node node-a1 --live --full")]
    Node(PlanNode),
    /// Show the effective routes of a client and destination, or of a gateway
    ///
    /// Merges the policies that apply and shows the resulting rules, in matching order, with the policy that each
    /// part comes from.
    #[command(after_help = "\
Examples:
  zoneward plan routes -f routes.yaml --from frontend --to backend
  zoneward plan routes -f routes.yaml --from frontend,version=v2 --to backend:8080 -o json
  zoneward plan routes -f gateway.yaml --gateway edge --host shop.example.com")]
    Routes(PlanRoutes),
    /// Show the statuses that the controller would write
    ///
    /// Reads objects of the Gateway API (GatewayClass, Gateway, ListenerSet, HTTPRoute, GRPCRoute, TLSRoute, TCPRoute,
    /// UDPRoute, ReferenceGrant, BackendTLSPolicy), the Services, Secrets, ConfigMaps and Namespaces that they refer
    /// to, and the kinds of zoneward.dev from files, and shows their conditions. Objects without a creationTimestamp
    /// count as created in the order of the files.
    #[command(after_help = "\
Examples:
  zoneward plan status -f gateway.yaml -f routes.yaml
  zoneward plan status -R -f manifests/ --gateway-address 192.0.2.1 -o json")]
    Status(PlanStatus),
}

/// `zoneward version`
#[derive(Debug, Args)]
pub struct VersionArgs {
    /// Do not ask the API server
    #[arg(long)]
    pub client: bool,
    #[command(flatten)]
    pub connection: cluster::Connection,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `zoneward up`
#[derive(Debug, Args)]
pub struct Up {
    /// Data directory; created if missing
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Do not run a node proxy
    #[arg(long)]
    pub no_node: bool,
    /// KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) of the node proxy
    #[arg(long, value_name = "FILE", conflicts_with = "no_node")]
    pub node_config: Option<PathBuf>,
    /// Let the node proxy watch only the EndpointSlices that its zone needs; for --subset-slices
    #[arg(long, conflicts_with = "no_node")]
    pub watch_own_zone: bool,
    /// Zone of this machine; set as a label of its Node and used by L7 proxies
    #[arg(long, value_name = "NAME")]
    pub zone: Option<String>,
    /// Do not run L7 proxies
    #[arg(long)]
    pub no_mesh: bool,
    /// Listen address of MeshGateways; repeatable [default: all addresses]
    #[arg(long, value_name = "IP", conflicts_with = "no_mesh")]
    pub mesh_bind: Vec<IpAddr>,
    /// Address of Gateways of the Gateway API, or a range of at most 256; repeatable. A port of an address is that of
    /// one Gateway. With --no-mesh, the addresses that your Envoys or joined machines bind [default: those of --mesh-bind,
    /// or the machine's address; none with --no-mesh]
    #[arg(long, value_name = "IP|CIDR")]
    pub gateway_address: Vec<GatewayAddressRange>,
    /// Loopback port of a sidecar for a client and a Service, such as frontend:8081=backend; repeatable
    #[arg(long, value_name = "CLIENT:PORT=SERVICE[:PORT]", conflicts_with = "no_mesh")]
    pub sidecar: Vec<String>,
    /// Listen address of the API; a port alone listens on loopback, port 0 picks a free port
    #[arg(long, value_name = "[ADDRESS:]PORT", default_value = "127.0.0.1:6443", value_parser = listen_address)]
    pub listen: SocketAddr,
    /// Cluster IP ranges, used when the store is created; one range, or one per family
    #[arg(
        long,
        value_name = "CIDR,...",
        value_delimiter = ',',
        default_value = "10.96.0.0/16,fd00:10:96::/112"
    )]
    pub service_cluster_ip_range: Vec<IpNet>,
    /// Channel of the Gateway API's schemas; experimental has fields such as retry
    #[arg(long, value_name = "CHANNEL", default_value = "standard")]
    pub gateway_api_channel: GatewayApiSchemas,
    /// Address ranges of LoadBalancer Services [default: none, they stay pending]
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    pub load_balancer_range: Vec<IpNet>,
    /// Serve only the API, without controllers; run `zoneward controller` separately
    #[arg(long)]
    pub no_controllers: bool,
    #[command(flatten)]
    pub encryption: EncryptionArgs,
    #[command(flatten)]
    pub backups: BackupArgs,
    /// Serve requests without credentials as system:anonymous
    #[arg(long)]
    pub anonymous_auth: bool,
    /// Lifetime of the credentials of machines that join, 15s to 8760h; they are renewed after a third of it
    #[arg(long, value_name = "DURATION", default_value = "720h", value_parser = node_credential_ttl)]
    pub node_credential_ttl: i64,
    /// Audit policy (audit.k8s.io/v1 Policy) [default: metadata of every request]
    #[arg(long, value_name = "FILE", requires = "audit_log_path")]
    pub audit_policy_file: Option<PathBuf>,
    /// Audit log of the API; - for standard output [default: no audit log]
    #[arg(long, value_name = "FILE")]
    pub audit_log_path: Option<PathBuf>,
    /// Size of the audit log in megabytes at which it is rotated; 0 disables
    #[arg(long, value_name = "MEGABYTES", default_value_t = 100, requires = "audit_log_path")]
    pub audit_log_maxsize: u64,
    /// Rotated audit logs to keep; 0 keeps all
    #[arg(long, value_name = "COUNT", default_value_t = 10, requires = "audit_log_path")]
    pub audit_log_maxbackup: usize,
    /// Listen address of /healthz, /livez, /readyz and /metrics of the API and its controllers; port 0 picks a free
    /// port [default: 127.0.0.1:10270, or a free port if it is in use]
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = listen_address)]
    pub metrics_bind_address: Option<SocketAddr>,
    /// Listen address of the same endpoints of the first L7 proxy; further proxies use the ports after it, sidecars
    /// in flag order, then gateways; port 0 picks free ports
    #[arg(long, value_name = "[ADDRESS:]PORT", default_value = "127.0.0.1:10280", conflicts_with = "no_mesh", value_parser = listen_address)]
    pub mesh_metrics_bind_address: SocketAddr,
    #[command(flatten)]
    pub dns: node::dns::DnsFlags,
    #[command(flatten)]
    pub status: crate::commands::status::server::StatusListenerArgs,
    #[command(flatten)]
    pub access: cluster::admin_server::access::AdminAccessArgs,
    #[command(flatten)]
    pub prices: PriceArgs,
    #[command(flatten)]
    pub edge: GatewayEdgeArgs,
    #[command(flatten)]
    pub making: SliceMaking,
    #[command(flatten)]
    pub log: cluster::log::LogArgs,
}

/// `zoneward plan slices`
#[derive(Debug, Args)]
pub struct PlanSlices {
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Also show unchanged slices
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub making: SliceMaking,
    #[command(flatten)]
    pub coexist: CoexistFlag,
}

/// Flags that decide which hints the Services of a cluster have.
#[derive(Clone, Debug, Args)]
pub struct HintFlags {
    /// Traffic distribution of Services when neither the Service nor its namespace sets one, such as PreferSameZone
    /// or zoneward.dev/Spill
    #[arg(long, value_name = "VALUE")]
    pub default_traffic_distribution: Option<String>,
    /// Measure of the traffic of a zone under `same-zone: Prefer` [default: nodes]
    #[arg(long, value_name = "WHAT")]
    pub prefer_by: Option<PreferByFlag>,
    /// Feature gates, such as TopologyAwareHints=false
    #[arg(long, value_name = "NAME=BOOL,...")]
    pub feature_gates: Option<FeatureGates>,
}

/// Flags for slices and hints that `plan slices` and the controllers share.
#[derive(Clone, Debug, Args)]
pub struct SliceMaking {
    /// Maximum number of endpoints per slice, 1 to 1000 [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub max_endpoints_per_slice: Option<u16>,
    #[command(flatten)]
    pub hints: HintFlags,
    /// Demand of zones under Spill: `cpu` of the nodes; `measured` connections; `observe`, as `cpu`, with what measured
    /// demand would do in `zoneward status` [default: observe; `plan slices` leaves measured demand as it is]
    #[arg(long, value_name = "MODE", value_parser = spill_demand)]
    pub spill_demand: Option<plan::spill::SpillDemandMode>,
    #[command(flatten)]
    pub subset: SubsetArgs,
}

fn spill_demand(text: &str) -> Result<plan::spill::SpillDemandMode, String> {
    text.parse()
}

/// The flag for clusters with kube-controller-manager; `up` has none.
#[derive(Clone, Copy, Debug, Args)]
pub struct CoexistFlag {
    /// Write slices next to those of kube-controller-manager, for clusters where its EndpointSlice controller stays
    /// enabled
    #[arg(long)]
    pub coexist: bool,
}

impl SliceMaking {
    /// For `plan slices`, which leaves measured demand as the slices have it.
    pub fn planning(&self, coexist: CoexistFlag, base: PlanningConfig) -> PlanningConfig {
        let max_endpoints = self.max_endpoints_per_slice.map(usize::from);
        let slices = SliceOptions {
            max_endpoints: max_endpoints.unwrap_or(base.slices.max_endpoints),
            mode: if coexist.coexist { SliceMode::Coexist } else { base.slices.mode },
            subset: self.subset.options().or(base.slices.subset),
        };
        PlanningConfig { spill_demand: self.spill_demand, slices, ..self.hints.planning(base) }
    }

    /// For a controller, which has a source of demand.
    fn controller_planning(&self, coexist: CoexistFlag) -> PlanningConfig {
        let spill_demand = Some(self.spill_demand.unwrap_or_default());
        PlanningConfig { spill_demand, ..self.planning(coexist, PlanningConfig::without_flags()) }
    }
}

impl HintFlags {
    /// What these flags do not say is as in `base`.
    pub fn planning(&self, base: PlanningConfig) -> PlanningConfig {
        let default_traffic_distribution = self.default_traffic_distribution.as_deref().map(Name::new);
        PlanningConfig {
            gates: self.feature_gates.unwrap_or(base.gates),
            default_traffic_distribution: default_traffic_distribution.or(base.default_traffic_distribution),
            prefer_by: self.prefer_by.map_or(base.prefer_by, ZoneWeight::from),
            ..base
        }
    }
}

impl From<PreferByFlag> for ZoneWeight {
    fn from(flag: PreferByFlag) -> Self {
        match flag {
            PreferByFlag::Nodes => Self::Nodes,
            PreferByFlag::Cpu => Self::Cpu,
        }
    }
}

/// `zoneward controller`
#[derive(Debug, Args)]
pub struct Controller {
    #[command(flatten)]
    pub connection: cluster::Connection,
    #[command(flatten)]
    pub making: SliceMaking,
    #[command(flatten)]
    pub coexist: CoexistFlag,
    /// Number of Services synced concurrently, 1 to 50
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=50))]
    pub concurrent_syncs: u8,
    /// Batch period of pod changes before their Service is synced, such as 500ms
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = model::duration::parse)]
    pub endpoint_updates_batch_period: std::time::Duration,
    /// Namespace of the Leases of node proxies, which report what the nodes have programmed
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    pub lease_namespace: String,
    #[command(flatten)]
    pub leader: cluster::leader_election::LeaderArgs,
    /// Listen address of /healthz, /livez, /readyz and /metrics; port 0 picks a free port [default: 127.0.0.1:10270,
    /// or a free port if it is in use]
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = listen_address)]
    pub bind_address: Option<SocketAddr>,
    #[command(flatten)]
    pub status: crate::commands::status::server::StatusListenerArgs,
    #[command(flatten)]
    pub access: cluster::admin_server::access::AdminAccessArgs,
    /// IP address at which nodes reach this controller, to report their traffic [default: that of --bind-address, if it
    /// is neither loopback nor all addresses]
    #[arg(long, value_name = "IP")]
    pub advertise_address: Option<std::net::IpAddr>,
    #[command(flatten)]
    pub prices: PriceArgs,
    /// Remove everything specific to Zoneward from EndpointSlices and Services, for a hand-over to
    /// kube-controller-manager, and exit; rejected while another Zoneward controller leads
    #[arg(long)]
    pub hand_back: bool,
    #[command(flatten)]
    pub log: cluster::log::LogArgs,
}

impl Up {
    pub fn slice_controller(&self) -> controller::ControllerConfig {
        controller::ControllerConfig::new(self.making.controller_planning(CoexistFlag { coexist: false }))
    }

    pub fn service_ranges(&self) -> store::admission::service::ServiceRanges {
        store::admission::service::ServiceRanges {
            node_ports: apimachinery::validate::ValidationOptions::WITHOUT_FLAGS,
            cluster_ips: self.service_cluster_ip_range.clone(),
            load_balancers: self.load_balancer_range.clone(),
            gates: self.slice_controller().settings.planning.gates,
        }
    }
}

impl Controller {
    pub fn slice_controller(&self) -> controller::ControllerConfig {
        let planning = self.making.controller_planning(self.coexist);
        let timing = plan::work_queue::QueueTiming {
            batch_period: self.endpoint_updates_batch_period,
            ..plan::work_queue::QueueTiming::default()
        };
        controller::ControllerConfig {
            settings: controller::ReconcilerSettings { planning: planning.clone(), timing },
            concurrent_syncs: self.concurrent_syncs.into(),
            lease_namespace: self.lease_namespace.clone(),
            ..controller::ControllerConfig::new(planning)
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PreferByFlag {
    /// Ready nodes
    Nodes,
    /// Allocatable CPU of ready nodes
    Cpu,
}

/// `zoneward plan addresses`
#[derive(Debug, Args)]
pub struct PlanAddresses {
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Seed of the random address allocation [default: random]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Reference time of grace periods, such as 2026-11-15T10:00:00Z [default: now]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub now: Option<Timestamp>,
}

/// `zoneward plan validate`
#[derive(Debug, Args)]
pub struct PlanValidate {
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Channel of the Gateway API's schemas; experimental has fields such as retry
    #[arg(long, value_name = "CHANNEL", default_value = "standard")]
    pub gateway_api_channel: GatewayApiSchemas,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("whose").required(true).args(["to", "gateway"]))]
pub struct RouteArgs {
    /// Service of the client, and labels of its pod
    #[arg(long, value_name = "[NS/]SERVICE[,TAG=VALUE...]", requires = "to")]
    pub from: Option<String>,
    /// Destination Service; without a port, its first HTTP port
    #[arg(long, value_name = "[NS/]SERVICE[:PORT]", requires = "from")]
    pub to: Option<String>,
    /// MeshGateway, or Gateway of the Gateway API; without a listener, the one that matches the host
    #[arg(long, value_name = "[NS/]NAME[:LISTENER]", conflicts_with_all = ["from", "to"])]
    pub gateway: Option<String>,
    /// Port of the gateway [default: the first that serves HTTP]
    #[arg(long, value_name = "PORT", requires = "gateway")]
    pub port: Option<u16>,
}

/// `zoneward plan routes`
#[derive(Debug, Args)]
pub struct PlanRoutes {
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub routes: RouteArgs,
    /// Limit the routes of a gateway to one host [default: all hosts]
    #[arg(long, value_name = "HOST", conflicts_with_all = ["from", "to"])]
    pub host: Option<String>,
    /// Form of the routes: merged rules, or Envoy resources
    #[arg(long = "as", value_name = "FORM", default_value = "rules")]
    pub form: RoutesAs,
    /// With --as envoy, show what adding or replacing these objects would change; repeatable
    #[arg(long, value_name = "FILE|DIR|-", conflicts_with = "host")]
    pub diff: Vec<PathBuf>,
    /// With --as envoy, the node of the Envoy
    #[arg(long, value_name = "NAME", conflicts_with = "host")]
    pub node: Option<String>,
    /// With --as envoy, the zone of the Envoy [default: that of the node]
    #[arg(long, value_name = "NAME", conflicts_with = "host")]
    pub zone: Option<String>,
    #[command(flatten)]
    pub edge: GatewayEdgeArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoutesAs {
    /// Merged rules
    Rules,
    /// Envoy resources
    Envoy,
}

/// `zoneward plan node`
#[derive(Debug, Args)]
pub struct PlanNode {
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub node: NodeArgs,
    /// Objects to add or replace; repeatable
    #[arg(long, value_name = "FILE|DIR|-", conflicts_with = "live")]
    pub with: Vec<PathBuf>,
    /// Compare with the rules in the kernel of this machine; requires NET_ADMIN
    #[arg(long)]
    pub live: bool,
    /// With --live, list every element instead of a summary by Service
    #[arg(long, requires = "live")]
    pub full: bool,
}

/// `zoneward cleanup`
#[derive(Debug, Args)]
pub struct Cleanup {
    #[command(flatten)]
    pub output: OutputArgs,
    /// List what would be removed, without removing it
    #[arg(long)]
    pub dry_run: bool,
    /// Remove only Zoneward's tables, and leave the rules of kube-proxy
    #[arg(long)]
    pub only_zoneward: bool,
}

/// Seconds of the lifetime of a credential.
fn node_credential_ttl(text: &str) -> Result<i64, String> {
    let limits = apimachinery::join::MIN_CREDENTIAL_SECONDS..=apimachinery::join::MAX_CREDENTIAL_SECONDS;
    let seconds = i64::try_from(model::duration::parse(text)?.as_secs()).unwrap_or(i64::MAX);
    limits.contains(&seconds).then_some(seconds).ok_or_else(|| "expected 15s to 8760h".to_owned())
}

/// Parses `127.0.0.1:6443`, `[::1]:6443`, or a port alone, which listens on loopback.
pub(crate) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
    }
    let wrong = || match (text.trim_matches(['[', ']']).parse::<IpAddr>(), text.strip_prefix(':')) {
        (Ok(ip), _) => format!("missing port: expected {}", SocketAddr::new(ip, 6443)),
        (_, Some(port)) => {
            format!("missing address: expected 127.0.0.1:{port}, or 0.0.0.0:{port} for all addresses")
        }
        _ => "expected an IP address and a port, such as 127.0.0.1:6443, or a port alone for loopback"
            .to_owned(),
    };
    text.parse().map_err(|_| wrong())
}

fn parse_time(text: &str) -> Result<Timestamp, String> {
    Timestamp::parse(text).ok_or_else(|| "expected a time such as 2026-11-15T10:00:00Z".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }

    #[test]
    fn a_port_alone_listens_on_loopback_and_a_missing_part_is_named() {
        let read = |text: &str| super::listen_address(text).map(|address| address.to_string());
        assert_eq!(read("6444").as_deref(), Ok("127.0.0.1:6444"));
        assert_eq!(read("[::1]:6444").as_deref(), Ok("[::1]:6444"));
        for (text, said) in [
            ("10.0.0.1", "missing port: expected 10.0.0.1:6443"),
            ("::1", "missing port: expected [::1]:6443"),
            (":6444", "missing address: expected 127.0.0.1:6444, or 0.0.0.0:6444 for all addresses"),
            (
                "localhost:1",
                "expected an IP address and a port, such as 127.0.0.1:6443, or a port alone for loopback",
            ),
        ] {
            assert_eq!(read(text), Err(said.to_owned()), "{text}");
        }
    }
}

//! The command line: what a user can say, with the help that a man page would give.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use model::Timestamp;
use model::forward::FirstPacket;
use plan::FeatureGates;

pub use cluster::input::InputArgs;
use cluster::object_name::ObjectName;
use node::config::flags::{GateList, parse_gates};
pub use node::offline::{NodeArgs, ProxyMode};
pub use output::{Format, Output};

const EXIT_CODES: &str = "\
Exit codes:
  0  fine
  1  the answer is \"no\", or something failed
  2  wrong use";

/// Service traffic that stays close: decides, programs and explains where it goes.
///
/// Zoneward replaces kube-proxy and the EndpointSlice controller. `plan` and `trace` decide on files and write
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
    /// Be the node proxy: what kube-proxy does, with its flags and its configuration
    ///
    /// Watches Services, EndpointSlices, this machine's Node and ServiceCIDRs, and keeps the kernel's nftables rules as
    /// they say. Starts over the rules that are there, changes what differs, and leaves them in place when it ends.
    /// Needs NET_ADMIN.
    #[command(after_help = "\
Examples:
  zoneward node --config /var/lib/kube-proxy/config.conf
  zoneward node --proxy-mode nftables --kubeconfig kubeconfig --cluster-cidr 10.244.0.0/16
  zoneward node --proxy-mode nftables --api-socket ./zoneward-data/api.sock --hostname-override node-a")]
    Node(Box<node::config::flags::NodeFlags>),
    /// Remove every rule that a node proxy left: ours, and kube-proxy's of every mode
    ///
    /// Stop the node proxy first, or it will make its rules again. Tables, chains and sets of others are not
    /// touched. What was removed is listed; what could not be removed is an error, and the rest is still done.
    #[command(after_help = "\
Examples:
  zoneward cleanup --dry-run
  sudo zoneward cleanup")]
    Cleanup(Cleanup),
    /// Score algorithms, and try changes on a cluster's objects without touching it
    #[command(subcommand, arg_required_else_help = true)]
    Simulate(crate::commands::simulate::SimulateCommand),
    /// Back up, restore and check the data of the embedded API
    #[command(subcommand, arg_required_else_help = true)]
    Store(StoreCommand),
    /// Serve the embedded Kubernetes API on this machine, with its controllers, a node proxy and L7 proxies
    ///
    /// The node proxy is a process of its own and needs NET_ADMIN; `--no-node` leaves it out. Each MeshGateway is
    /// served by a process of its own on its listeners' ports; `--no-mesh` leaves them out. Everything is kept in the
    /// data directory: what is stored, the API's own authority, and the credentials. The path of the admin's
    /// kubeconfig is printed when the API answers; reader.kubeconfig beside it may only look. The server stops cleanly
    /// on SIGINT and SIGTERM.
    #[command(after_help = "\
Examples:
  zoneward up --no-node --data-dir ./zoneward-data
  zoneward up --no-node --data-dir ./zoneward-data --sidecar frontend:8081=backend
  kubectl --kubeconfig ./zoneward-data/kubeconfig get services -A")]
    Up(Up),
    /// Keep EndpointSlices, conditions and Events of a cluster as the plan says
    ///
    /// Takes the place of kube-controller-manager's EndpointSlice controller: turn that one off first
    /// (`--controllers=*,-endpointslice-controller`), or use `--coexist`. Stops cleanly on SIGINT and SIGTERM.
    #[command(after_help = "\
Examples:
  zoneward controller --kubeconfig ~/.kube/config
  zoneward controller --coexist --default-traffic-distribution PreferSameZone")]
    Controller(Controller),
    /// Show it all on this machine: three zones, six nodes, thirty pods, real traffic
    ///
    /// Makes a cluster out of network namespaces, without root, and touches nothing of the machine's own network.
    /// Clients on every node connect to the same pods under each traffic distribution; a zone loses its pods; pods
    /// are replaced under load; a canary gets its tenth of the requests. Each time it shows where they went. The exit code is 1 if a share is out of
    /// line with the plan or a connection failed that should not have.
    #[command(after_help = "\
Examples:
  zoneward demo
  zoneward demo --keep
  zoneward demo -o json")]
    Demo(demo::Demo),
    /// Register plain processes as endpoints of a Service
    ///
    /// Makes the Service if there is none, and EndpointSlices of its own beside it, with the hints that its traffic
    /// distribution asks for. The list of `--to` replaces the one before; the same list again changes nothing. A
    /// Service with a selector gets its endpoints from Pods and is refused.
    #[command(after_help = "\
Examples:
  zoneward expose web --port 80 --to 10.0.0.7:8080@zone-a --to 10.0.1.7:8080@zone-b
  zoneward expose web --port 80 --to '[fd00::7]:8080@zone-a' --traffic-distribution PreferSameZone --dry-run
  zoneward expose web --port 80 --remove")]
    Expose(crate::commands::expose::Expose),
    /// L7: route requests by what they say, as a gateway or beside a client
    #[command(subcommand, arg_required_else_help = true)]
    Mesh(crate::commands::mesh::MeshCommand),
    /// Print a completion script for a shell
    ///
    /// For bash: `source <(zoneward completion bash)`. In bash, zsh and fish the names of nodes, namespaces and Services
    /// are completed, too: from the files of -f, else from the cluster, within a second.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// The names that could stand at the cursor, for completion scripts
    #[command(hide = true)]
    Complete {
        /// The words of the command line behind the program's name, up to the cursor.
        #[arg(last = true)]
        words: Vec<String>,
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
    /// Reads Services, Pods, Nodes, Namespaces and the EndpointSlices that exist, packs the pods of every Service
    /// into slices with as few changes as possible, gives them the hints that its traffic distribution asks for, and
    /// shows each change with its reason. Slices that other controllers write are left alone.
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
    /// Checks Services, EndpointSlices, Pods, Nodes, Namespaces, ServiceCIDRs, IPAddresses, and the kinds of
    /// zoneward.dev: MeshHTTPRoute, MeshGatewayHTTPRoute, MeshTCPRoute and MeshGateway. Other kinds are passed over. The exit code is 1 if anything is refused.
    #[command(after_help = "Examples:\n  zoneward plan validate -R -f manifests/")]
    Validate(PlanValidate),
    /// The nftables changes of a node when objects change
    ///
    /// Compares the rules for the objects of `-f` with the rules after the objects of `--with` were put in or
    /// in the place of others. Without `--with`, with an empty kernel; with `--live`, what this machine's kernel
    /// holds now with the rules for the objects, under the configuration of the node proxy that runs here; the answer
    /// is then a summary by Service, and `--full` lists every element.
    #[command(after_help = "\
Examples:
  zoneward plan node -f cluster.yaml --node node-a1 --with changed-service.yaml
  sudo zoneward plan node --live
  sudo zoneward plan node -f cluster.yaml --node node-a1 --live --full")]
    Node(PlanNode),
    /// The routes that count for a client and a destination, or at a gateway
    ///
    /// Merges the policies that apply and shows the rules that are left, each with the policy that every part of it
    /// comes from, and the order in which their matches are asked.
    #[command(after_help = "\
Examples:
  zoneward plan routes -f routes.yaml --from frontend --to backend
  zoneward plan routes -f routes.yaml --from frontend,version=v2 --to backend:8080 -o json
  zoneward plan routes -f gateway.yaml --gateway edge --host shop.example.com")]
    Routes(PlanRoutes),
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
  zoneward trace select svc/cart -n shop -f cluster.yaml --node node-a1 -o json")]
    Select(TraceSelect),
    /// What would become of a packet on a node, rule by rule
    ///
    /// Renders the node's nftables rules, reads their bytes back as the kernel would, and sends the first packet
    /// of a connection through them. The packet counts as the node's own if its source is an address of the
    /// node: those of its Node object and of `--local-address`. With `--live` the rules are those of this machine's
    /// kernel, and the configuration is that of the node proxy that runs here.
    #[command(after_help = "\
Examples:
  zoneward trace packet -f cluster.yaml --node node-a1 --packet 'tcp 10.1.0.5:40000 -> 10.96.0.10:80'
  zoneward trace packet -f cluster.yaml --node node-a1 --config kube-proxy.yaml --packets packets.json -o json")]
    Packet(TracePacket),
    /// Which route an HTTP request would take, and why not the others
    ///
    /// The request is a JSON file: `{"method", "host", "path", "headers": {name: value or [values]}}` and, to see what
    /// becomes of an answer, "upstreamResponseHeaders".
    #[command(after_help = "\
Examples:
  zoneward trace http -f routes.yaml --from frontend --to backend --request request.json
  zoneward trace http -f gateway.yaml --gateway edge:https --request request.json -o json")]
    Http(TraceHttp),
}

/// `zoneward store ...`
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Copy everything that is stored into one new file
    ///
    /// The copy is complete and durable before it gets its name, and only its owner can read it: Secrets are inside.
    /// The API may be running: then it makes the copy itself, and nobody has to wait for it.
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
    /// The exit code is 1 if anything is. The API must not be running on the data; a backup can always be checked.
    #[command(after_help = "\
Examples:
  zoneward store check --data-dir ./zoneward-data
  zoneward store check --backup monday.backup")]
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
    #[arg(long, value_name = "DIR", required_unless_present = "backup")]
    pub data_dir: Option<PathBuf>,
    /// A backup, instead of a folder
    #[arg(long, value_name = "FILE", conflicts_with = "data_dir")]
    pub backup: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
}

/// `zoneward up`
#[derive(Debug, Args)]
pub struct Up {
    /// Where everything is kept; it is made if it is missing
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Leave this machine's kernel alone: run no node proxy
    #[arg(long)]
    pub no_node: bool,
    /// A KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) for this machine's node proxy
    #[arg(long, value_name = "FILE", conflicts_with = "no_node")]
    pub node_config: Option<PathBuf>,
    /// The zone that this machine is in; it becomes a label of its Node, and L7 proxies are in it
    #[arg(long, value_name = "NAME")]
    pub zone: Option<String>,
    /// Run no L7 proxies
    #[arg(long)]
    pub no_mesh: bool,
    /// Where the proxies of MeshGateways listen; may be repeated [default: everywhere]
    #[arg(long, value_name = "IP", conflicts_with = "no_mesh")]
    pub mesh_bind: Vec<IpAddr>,
    /// A port on loopback for what a client sends to a Service, as frontend:8081=backend; may be repeated
    #[arg(long, value_name = "CLIENT:PORT=SERVICE[:PORT]", conflicts_with = "no_mesh")]
    pub sidecar: Vec<String>,
    /// Where to listen; a port alone is on loopback, and port 0 takes a free one
    #[arg(long, value_name = "[ADDRESS:]PORT", default_value = "127.0.0.1:6443", value_parser = listen_address)]
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
    /// Serve only the API: EndpointSlices are written by `zoneward controller` processes, or by nobody
    #[arg(long)]
    pub no_controllers: bool,
    /// Where /healthz, /livez, /readyz and /metrics are served, of the API and of its controllers; port 0 takes a free
    /// one [default: 127.0.0.1:10270, or a free port if that one is taken]
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = listen_address)]
    pub metrics_bind_address: Option<SocketAddr>,
    /// The same of the first L7 proxy; sidecars in the order of their flags, then gateways, have the ports after it;
    /// port 0 takes free ones
    #[arg(long, value_name = "[ADDRESS:]PORT", default_value = "127.0.0.1:10280", conflicts_with = "no_mesh", value_parser = listen_address)]
    pub mesh_metrics_bind_address: SocketAddr,
    /// How slices are made.
    #[command(flatten)]
    pub making: SliceMaking,
    /// How logs look.
    #[command(flatten)]
    pub log: cluster::log::LogArgs,
}

/// `zoneward plan slices`
#[derive(Debug, Args)]
pub struct PlanSlices {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    /// Show the slices that stay as they are, too
    #[arg(long)]
    pub all: bool,
    /// How slices are made.
    #[command(flatten)]
    pub making: SliceMaking,
}

/// How slices are made: what `plan slices` and the controller have in common.
#[derive(Clone, Debug, Args)]
pub struct SliceMaking {
    /// How many endpoints a slice may hold, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub max_endpoints_per_slice: u16,
    /// What Services do that say nothing, in namespaces that say nothing, as PreferSameZone or zoneward.dev/Spill
    #[arg(long, value_name = "VALUE")]
    pub default_traffic_distribution: Option<String>,
    /// What stands for a zone's traffic under `same-zone: Prefer`
    #[arg(long, value_name = "WHAT", default_value = "nodes")]
    pub prefer_by: PreferBy,
    /// Switch features on or off, as TopologyAwareHints=false
    #[arg(long, value_name = "NAME=BOOL,...", default_value = "", hide_default_value = true)]
    pub feature_gates: FeatureGates,
    /// Write slices beside those of kube-controller-manager, for clusters where its EndpointSlice controller stays on
    #[arg(long)]
    pub coexist: bool,
}

impl SliceMaking {
    /// Gates and defaults.
    pub fn hints(&self) -> plan::hints::HintConfig {
        let prefer_by = match self.prefer_by {
            PreferBy::Nodes => plan::hints::ZoneWeight::Nodes,
            PreferBy::Cpu => plan::hints::ZoneWeight::Cpu,
        };
        let cluster_default = self.default_traffic_distribution.as_deref().map(model::Name::new);
        plan::hints::HintConfig {
            gates: self.feature_gates,
            prefer_by,
            cluster_default,
            without_notices: false,
        }
    }

    /// How slices are packed, and where they stand.
    pub fn slices(&self) -> plan::slices::SliceOptions {
        let mode =
            if self.coexist { plan::slices::SliceMode::Coexist } else { plan::slices::SliceMode::Exclusive };
        plan::slices::SliceOptions { max_endpoints: self.max_endpoints_per_slice.into(), mode }
    }
}

/// `zoneward controller`
#[derive(Debug, Args)]
pub struct Controller {
    /// Which API.
    #[command(flatten)]
    pub connection: cluster::Connection,
    /// How slices are made.
    #[command(flatten)]
    pub making: SliceMaking,
    /// How many Services are written at once, 1 to 50
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=50))]
    pub concurrent_syncs: u8,
    /// How long changes of pods are gathered before their Service is planned, as 500ms
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = model::duration::parse)]
    pub endpoint_updates_batch_period: std::time::Duration,
    /// The namespace of the node proxies' Leases, which say what the nodes have programmed
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    pub lease_namespace: String,
    /// Who of several leads.
    #[command(flatten)]
    pub leader: cluster::leader_election::LeaderArgs,
    /// Where /healthz, /livez, /readyz and /metrics are served; port 0 takes a free one [default: 127.0.0.1:10270,
    /// or a free port if that one is taken]
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = listen_address)]
    pub bind_address: Option<SocketAddr>,
    /// Remove from EndpointSlices and Services what only Zoneward writes, so that kube-controller-manager can take over,
    /// and exit; refused while another Zoneward controller leads
    #[arg(long)]
    pub hand_back: bool,
    /// How logs look.
    #[command(flatten)]
    pub log: cluster::log::LogArgs,
}

impl Up {
    /// What the slice controller is told.
    pub fn slice_controller(&self) -> controller::ControllerConfig {
        let settings = controller::ReconcilerSettings {
            hints: self.making.hints(),
            slices: self.making.slices(),
            ..controller::ReconcilerSettings::default()
        };
        controller::ControllerConfig { settings, ..controller::ControllerConfig::default() }
    }
}

impl Controller {
    /// What the slice controller is told.
    pub fn slice_controller(&self) -> controller::ControllerConfig {
        let batch = self.endpoint_updates_batch_period;
        controller::ControllerConfig {
            settings: controller::ReconcilerSettings {
                hints: self.making.hints(),
                slices: self.making.slices(),
                timing: plan::work_queue::QueueTiming {
                    batch_period: batch,
                    ..plan::work_queue::QueueTiming::default()
                },
            },
            concurrent_syncs: self.concurrent_syncs.into(),
            lease_namespace: self.lease_namespace.clone(),
            ..controller::ControllerConfig::default()
        }
    }
}

/// What stands for a zone's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PreferBy {
    /// Its ready nodes
    Nodes,
    /// The allocatable CPU of its ready nodes
    Cpu,
}

/// `zoneward plan addresses`
#[derive(Debug, Args)]
pub struct PlanAddresses {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,
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
    pub input: InputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
}

/// `zoneward trace select`
#[derive(Debug, Args)]
pub struct TraceSelect {
    /// Only this Service, as web or svc/web; its namespace comes from -n
    #[arg(value_name = "SERVICE")]
    pub service: Option<ObjectName>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    /// The node to stand on
    #[arg(long, value_name = "NAME")]
    pub node: String,
    /// A KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1); its feature gates count
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Switch features on or off, as PreferSameTrafficDistribution=false
    #[arg(long, value_name = "NAME=BOOL,...", value_parser = parse_gates)]
    pub feature_gates: Option<GateList>,
}

/// Whose routes: a client's to a Service, or a gateway's.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("whose").required(true).args(["to", "gateway"]))]
pub struct RouteArgs {
    /// The Service that requests come from, and tags of its pods
    #[arg(long, value_name = "[NS/]SERVICE[,TAG=VALUE...]", requires = "to")]
    pub from: Option<String>,
    /// The Service that requests go to; without a port the first that speaks HTTP
    #[arg(long, value_name = "[NS/]SERVICE[:PORT]", requires = "from")]
    pub to: Option<String>,
    /// The MeshGateway that requests arrive at; without a listener the one for the host
    #[arg(long, value_name = "[NS/]NAME[:LISTENER]", conflicts_with_all = ["from", "to"])]
    pub gateway: Option<String>,
}

/// `zoneward plan routes`
#[derive(Debug, Args)]
pub struct PlanRoutes {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub routes: RouteArgs,
    /// At a gateway, only this host [default: all hosts]
    #[arg(long, value_name = "HOST", conflicts_with_all = ["from", "to"])]
    pub host: Option<String>,
    /// What to show: the rules after merging, or the resources that an Envoy would get
    #[arg(long = "as", value_name = "FORM", default_value = "rules")]
    pub form: RoutesAs,
    /// With --as envoy, show what these objects would change, put in or in the place of those with the same name; may
    /// be repeated
    #[arg(long, value_name = "FILE|DIR|-", conflicts_with = "host")]
    pub diff: Vec<PathBuf>,
    /// With --as envoy, the node that the Envoy runs on
    #[arg(long, value_name = "NAME", conflicts_with = "host")]
    pub node: Option<String>,
    /// With --as envoy, the zone that the Envoy is in [default: that of the node]
    #[arg(long, value_name = "NAME", conflicts_with = "host")]
    pub zone: Option<String>,
}

/// What `plan routes` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoutesAs {
    /// The rules after merging
    Rules,
    /// The resources that an Envoy would get
    Envoy,
}

/// `zoneward trace http`
#[derive(Debug, Args)]
pub struct TraceHttp {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub routes: RouteArgs,
    /// The request: a JSON file, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub request: PathBuf,
}

/// `zoneward trace packet`
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["packet", "packets"]))]
pub struct TracePacket {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub node: NodeArgs,
    /// The packet, as 'tcp 10.0.0.2:40000 -> 172.30.0.41:80', with 'iif NAME' behind it for its interface
    #[arg(long, value_name = "PACKET", value_parser = crate::commands::parse_packet)]
    pub packet: Option<FirstPacket>,
    /// Many packets: a JSON list of {"src","sport","dst","dport","proto"}, each may have "iif"
    #[arg(long, value_name = "FILE")]
    pub packets: Option<PathBuf>,
    /// Evaluate the rules that this machine's kernel holds now; needs NET_ADMIN
    #[arg(long)]
    pub live: bool,
}

/// `zoneward plan node`
#[derive(Debug, Args)]
pub struct PlanNode {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub node: NodeArgs,
    /// Objects that are put in, or in the place of those with the same name; may be repeated
    #[arg(long, value_name = "FILE|DIR|-", conflicts_with = "live")]
    pub with: Vec<PathBuf>,
    /// Compare with the rules that this machine's kernel holds now; needs NET_ADMIN
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
    #[allow(missing_docs)]
    pub output: Output,
    /// Only list what would be removed
    #[arg(long)]
    pub dry_run: bool,
}

/// Reads `127.0.0.1:6443`, `[::1]:6443`, or a port alone, which is on loopback.
pub(crate) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
    }
    let wrong = || match (text.trim_matches(['[', ']']).parse::<IpAddr>(), text.strip_prefix(':')) {
        (Ok(ip), _) => format!("the port is missing: write it as {}", SocketAddr::new(ip, 6443)),
        (_, Some(port)) => {
            format!("the address is missing: write 127.0.0.1:{port}, or 0.0.0.0:{port} for all addresses")
        }
        _ => "write an IP address and a port, as 127.0.0.1:6443, or a port alone for loopback".to_owned(),
    };
    text.parse().map_err(|_| wrong())
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

    #[test]
    fn a_port_alone_listens_on_loopback_and_what_is_missing_is_said() {
        let read = |text: &str| super::listen_address(text).map(|address| address.to_string());
        assert_eq!(read("6444").as_deref(), Ok("127.0.0.1:6444"));
        assert_eq!(read("[::1]:6444").as_deref(), Ok("[::1]:6444"));
        for (text, said) in [
            ("10.0.0.1", "the port is missing: write it as 10.0.0.1:6443"),
            ("::1", "the port is missing: write it as [::1]:6443"),
            (":6444", "the address is missing: write 127.0.0.1:6444, or 0.0.0.0:6444 for all addresses"),
            (
                "localhost:1",
                "write an IP address and a port, as 127.0.0.1:6443, or a port alone for loopback",
            ),
        ] {
            assert_eq!(read(text), Err(said.to_owned()), "{text}");
        }
    }
}

//! The commands that trace decisions.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use cluster::object_name::ObjectName;
use model::forward::FirstPacket;
use node::config::flags::{GateList, parse_gates};
use plan::FeatureGates;
use plan::dns::{DnsName, DnsQueryType};

use super::{InputArgs, NodeArgs, OutputArgs, RouteArgs};
use crate::edge::EdgeArgs;

/// `zoneward trace ...`
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Show the endpoints that a node selects for each Service port
    ///
    /// Prints two sets per port: `cluster` for traffic that may use every endpoint, `local` for traffic that a
    /// traffic policy keeps on the node. Each selection comes with its reason.
    #[command(after_help = "\
Examples:
  zoneward trace select -f cluster.yaml --node node-a1
  zoneward trace select svc/cart -n shop -f cluster.yaml --node node-a1 -o json")]
    Select(TraceSelect),
    /// Trace a packet through the rules of a node
    ///
    /// Renders the nftables rules of the node, decodes them as the kernel would, and evaluates the first packet of a
    /// connection. A packet is local if its source is an address of the node: those of its Node object and of
    /// `--local-address`. With `--live`, uses the rules in the kernel of this machine and the configuration of the
    /// running node proxy.
    #[command(after_help = "\
Examples:
  zoneward trace packet -f cluster.yaml --node node-a1 --packet 'tcp 10.1.0.5:40000 -> 10.96.0.10:80'
  zoneward trace packet -f cluster.yaml --node node-a1 --config kube-proxy.yaml --packets packets.json -o json")]
    Packet(TracePacket),
    /// Show which route an HTTP request takes, and why the others do not match
    ///
    /// The request is a JSON file: `{"method", "host", "path", "headers": {name: value or [values]}}` and, to see how
    /// a response is modified, "upstreamResponseHeaders". For a Gateway of the Gateway API, "scheme" (http, https, tls,
    /// tcp or udp), "sni" and "protocol" (h2c, grpc or websocket) may be set.
    #[command(after_help = "\
Examples:
  zoneward trace http -f routes.yaml --from frontend --to backend --request request.json
  zoneward trace http -f gateway.yaml --gateway edge:https --request request.json -o json
  zoneward trace http -f gateway.yaml --gateway shop/edge --port 443 --request request.json")]
    Http(TraceHttp),
    /// Show how DNS answers a name, and why
    ///
    /// The answer that `zoneward up --dns` gives on a machine. Headless Services have the endpoints that a machine of the
    /// zone would select.
    #[command(after_help = "\
Examples:
  zoneward trace dns web.default.svc.cluster.local -f cluster.yaml
  zoneward trace dns db.shop.svc.cluster.local --type SRV --zone zone-a -f cluster.yaml -o json
  zoneward trace dns 10.0.96.10.in-addr.arpa --type PTR --from-node node-a1")]
    Dns(TraceDns),
}

/// `zoneward trace dns`
#[derive(Debug, Args)]
pub struct TraceDns {
    /// Name, such as web.default.svc.cluster.local
    #[arg(value_name = "NAME", value_parser = dns_name)]
    pub name: DnsName,
    /// Record type
    #[arg(long = "type", value_name = "TYPE", default_value = "A", value_parser = dns_type)]
    pub kind: DnsQueryType,
    /// Zone of the machine that asks
    #[arg(long, value_name = "ZONE", conflicts_with = "from_node")]
    pub zone: Option<String>,
    /// Node that asks
    #[arg(long, value_name = "NAME")]
    pub from_node: Option<String>,
    /// Domain of the names of Services
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local", value_parser = dns_name)]
    pub cluster_domain: DnsName,
    /// Feature gates of the machine that asks, such as PreferSameTrafficDistribution=false
    #[arg(long, value_name = "NAME=BOOL,...")]
    pub feature_gates: Option<FeatureGates>,
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

fn dns_name(text: &str) -> Result<DnsName, String> {
    DnsName::parse(text).map_err(str::to_owned)
}

fn dns_type(text: &str) -> Result<DnsQueryType, String> {
    text.parse().map_err(str::to_owned)
}

/// `zoneward trace select`
#[derive(Debug, Args)]
pub struct TraceSelect {
    /// Limit to one Service, such as web or svc/web, in the namespace of -n
    #[arg(value_name = "SERVICE")]
    pub service: Option<ObjectName>,
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Node to evaluate
    #[arg(long, value_name = "NAME")]
    pub node: String,
    /// Only the EndpointSlices that a node with --watch-own-zone receives
    #[arg(long)]
    pub watch_own_zone: bool,
    /// KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) to take feature gates from
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Feature gates, such as PreferSameTrafficDistribution=false
    #[arg(long, value_name = "NAME=BOOL,...", value_parser = parse_gates)]
    pub feature_gates: Option<GateList>,
}

/// `zoneward trace http`
#[derive(Debug, Args)]
pub struct TraceHttp {
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub routes: RouteArgs,
    /// Request as a JSON file, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub request: PathBuf,
    #[command(flatten)]
    pub edge: EdgeArgs,
}

/// `zoneward trace packet`
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["packet", "packets"]))]
pub struct TracePacket {
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub node: NodeArgs,
    /// Packet, such as 'tcp 10.0.0.2:40000 -> 172.30.0.41:80'; append 'iif NAME' for its input interface
    #[arg(long, value_name = "PACKET", value_parser = crate::commands::parse_packet)]
    pub packet: Option<FirstPacket>,
    /// JSON file with a list of packets {"src","sport","dst","dport","proto"}, each with an optional "iif"
    #[arg(long, value_name = "FILE")]
    pub packets: Option<PathBuf>,
    /// Evaluate the rules in the kernel of this machine; requires NET_ADMIN
    #[arg(long)]
    pub live: bool,
}

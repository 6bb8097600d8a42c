//! kube-proxy's flags, all of them, under their own names.
//!
//! With `--config` those that stand for a field of the file are ignored, as kube-proxy does (semantics D15), and said to be.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use model::GoDuration;
use serde_json::Value;

use super::file::{API_VERSION, Configuration, KIND};
use cluster::Connection;

/// `zoneward node`
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "The proxy itself")]
pub struct NodeFlags {
    /// A KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1); the process ends when it changes, to be started anew
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write the configuration in force to this file, with its defaults, and exit
    #[arg(long, value_name = "FILE")]
    pub write_config_to: Option<PathBuf>,
    /// Remove the rules of every mode, ours and kube-proxy's, and exit
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub cleanup: Option<bool>,
    /// Set the kernel variables that need privileges, and exit
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub init_only: Option<bool>,
    /// Refuse to start in a mode other than nftables instead of running it as nftables
    #[arg(long)]
    pub strict_mode: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub connection: Connection,
    /// The address of the API, in the place of that of the kubeconfig
    #[arg(long, value_name = "URL")]
    pub master: Option<String>,
    /// Where the Lease of this node is kept that says what is programmed; empty for no Lease
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    pub lease_namespace: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub logging: LoggingFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub fields: FieldFlags,
}

/// How the proxy logs.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Logging")]
pub struct LoggingFlags {
    /// How much is logged: 0 and 1 decisions, 2 to 4 details, above that everything; RUST_LOG goes before it
    #[arg(short = 'v', long = "v", value_name = "N")]
    pub v: Option<u32>,
    /// text or json
    #[arg(long, visible_alias = "log-format", value_name = "FORMAT")]
    pub logging_format: Option<String>,
    /// No effect: RUST_LOG chooses by module
    #[arg(long, value_name = "PATTERN")]
    pub vmodule: Option<String>,
    /// No effect: lines are written at once
    #[arg(long, value_name = "TIME")]
    pub log_flush_frequency: Option<GoDuration>,
    /// No effect: lines go to standard error
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub log_text_split_stream: Option<bool>,
    /// No effect: lines are written at once
    #[arg(long, value_name = "SIZE")]
    pub log_text_info_buffer_size: Option<String>,
    /// No effect: lines go to standard error
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub log_json_split_stream: Option<bool>,
    /// No effect: lines are written at once
    #[arg(long, value_name = "SIZE")]
    pub log_json_info_buffer_size: Option<String>,
}

/// Flags that stand for fields of the configuration.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Fields of the configuration (ignored with --config)")]
pub struct FieldFlags {
    /// Switch features on or off, as PreferSameTrafficDistribution=false
    #[arg(long, value_name = "NAME=BOOL,...", value_parser = parse_gates)]
    pub feature_gates: Option<GateList>,
    /// What is asked of the API; JSON is spoken whatever it says
    #[arg(long, value_name = "TYPE")]
    pub kube_api_content_type: Option<String>,
    /// Requests per second; no effect
    #[arg(long, value_name = "N")]
    pub kube_api_qps: Option<f64>,
    /// Requests at once; no effect
    #[arg(long, value_name = "N")]
    pub kube_api_burst: Option<i64>,
    /// The name of this node's Node object [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// The node's own address, if it is a specific one [default: those of the Node object]
    #[arg(long, value_name = "IP")]
    pub bind_address: Option<String>,
    /// Where /healthz and /livez are served; empty for nowhere [default: 0.0.0.0:10256]
    #[arg(long, value_name = "IP:PORT")]
    pub healthz_bind_address: Option<String>,
    /// The older way to say the port of --healthz-bind-address; 0 for nowhere
    #[arg(long, value_name = "PORT")]
    pub healthz_port: Option<u16>,
    /// Where /metrics is served; empty for nowhere [default: 127.0.0.1:10249]
    #[arg(long, value_name = "IP:PORT")]
    pub metrics_bind_address: Option<String>,
    /// The older way to say the port of --metrics-bind-address; 0 for nowhere
    #[arg(long, value_name = "PORT")]
    pub metrics_port: Option<u16>,
    /// Stop if one of these cannot be listened on
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub bind_address_hard_fail: Option<bool>,
    /// Refused: there is no profiler of Go in this program
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub profiling: Option<bool>,
    /// No effect: no metric is hidden
    #[arg(long, value_name = "VERSION")]
    pub show_hidden_metrics_for_version: Option<String>,
    /// nftables; iptables and ipvs run as nftables, with a list of what differs
    #[arg(long, value_name = "MODE")]
    pub proxy_mode: Option<String>,
    /// The bit of the packet mark that asks for masquerading, 0 to 31 [default: 14]
    #[arg(long, value_name = "BIT")]
    pub iptables_masquerade_bit: Option<i64>,
    /// No effect: node ports are never served on loopback addresses
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub iptables_localhost_nodeports: Option<bool>,
    /// How often the kernel's rules are looked through for what somebody altered [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub iptables_sync_period: Option<GoDuration>,
    /// The least time between two changes of rules; 0s for none [default: as long as there is load, up to 1s]
    #[arg(long, value_name = "TIME")]
    pub iptables_min_sync_period: Option<GoDuration>,
    /// Masquerade everybody who goes to a cluster IP
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub masquerade_all: Option<bool>,
    /// As --iptables-sync-period, in mode ipvs
    #[arg(long, value_name = "TIME")]
    pub ipvs_sync_period: Option<GoDuration>,
    /// As --iptables-min-sync-period, in mode ipvs
    #[arg(long, value_name = "TIME")]
    pub ipvs_min_sync_period: Option<GoDuration>,
    /// No effect: endpoints are chosen at random
    #[arg(long, value_name = "NAME")]
    pub ipvs_scheduler: Option<String>,
    /// No effect: IPVS is not used
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    pub ipvs_exclude_cidrs: Vec<String>,
    /// No effect: IPVS is not used
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub ipvs_strict_arp: Option<bool>,
    /// No effect: IPVS is not used
    #[arg(long, value_name = "TIME")]
    pub ipvs_tcp_timeout: Option<GoDuration>,
    /// No effect: IPVS is not used
    #[arg(long, value_name = "TIME")]
    pub ipvs_tcpfin_timeout: Option<GoDuration>,
    /// No effect: IPVS is not used
    #[arg(long, value_name = "TIME")]
    pub ipvs_udp_timeout: Option<GoDuration>,
    /// How pods are told from others: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
    #[arg(long, value_name = "MODE")]
    pub detect_local_mode: Option<String>,
    /// The bridge of pods, for BridgeInterface
    #[arg(long, value_name = "NAME")]
    pub pod_bridge_interface: Option<String>,
    /// How names of pods' interfaces begin, for InterfaceNamePrefix
    #[arg(long, value_name = "PREFIX")]
    pub pod_interface_name_prefix: Option<String>,
    /// The range of pods, one of each family, for ClusterCIDR
    #[arg(long, value_name = "CIDR,...")]
    pub cluster_cidr: Option<String>,
    /// Where node ports are served: ranges, primary, all [default: primary]
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    pub nodeport_addresses: Vec<String>,
    /// How readily the kernel ends this process for want of memory, -1000 to 1000 [default: -999]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub oom_score_adj: Option<i64>,
    /// Tracked connections for each core; 0 leaves the limit alone [default: 32768]
    #[arg(long, value_name = "N")]
    pub conntrack_max_per_core: Option<i64>,
    /// Tracked connections at least [default: 131072]
    #[arg(long, value_name = "N")]
    pub conntrack_min: Option<i64>,
    /// When an idle TCP connection is forgotten; 0 leaves it alone [default: 24h]
    #[arg(long, value_name = "TIME")]
    pub conntrack_tcp_timeout_established: Option<GoDuration>,
    /// The same in CLOSE_WAIT [default: 1h]
    #[arg(long, value_name = "TIME")]
    pub conntrack_tcp_timeout_close_wait: Option<GoDuration>,
    /// Let packets outside of the TCP window belong to their connection
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub conntrack_tcp_be_liberal: Option<bool>,
    /// When an unanswered UDP flow is forgotten; 0 leaves it alone
    #[arg(long, value_name = "TIME")]
    pub conntrack_udp_timeout: Option<GoDuration>,
    /// When an answered UDP flow is forgotten; 0 leaves it alone
    #[arg(long, value_name = "TIME")]
    pub conntrack_udp_timeout_stream: Option<GoDuration>,
    /// No effect: watches report every change
    #[arg(long, value_name = "TIME")]
    pub config_sync_period: Option<GoDuration>,
    /// Refused: for Windows
    #[arg(long, value_name = "NAME")]
    pub network_name: Option<String>,
    /// Refused: for Windows
    #[arg(long, value_name = "IP")]
    pub source_vip: Option<String>,
    /// Refused: for Windows
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_dsr: Option<bool>,
    /// Refused: for Windows
    #[arg(long, value_name = "NAME")]
    pub root_hnsendpoint_name: Option<String>,
    /// Refused: for Windows
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub forward_healthcheck_vip: Option<bool>,
    /// Refused: for Windows
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub windows_service: Option<bool>,
}

/// Feature gates by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateList(pub BTreeMap<String, bool>);

/// Parses `NAME=BOOL,...`.
pub fn parse_gates(text: &str) -> Result<GateList, String> {
    plan::feature_gates::parse_list(text).map(GateList).map_err(|error| error.to_string())
}

impl FieldFlags {
    /// The configuration that these flags say.
    pub fn configuration(&self) -> Configuration {
        let mut config = Configuration {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            feature_gates: self.feature_gates.clone().unwrap_or_default().0,
            hostname_override: text(&self.hostname_override),
            bind_address: self.bind_address.clone(),
            bind_address_hard_fail: is_on(self.bind_address_hard_fail),
            enable_profiling: is_on(self.profiling),
            show_hidden_metrics_for_version: text(&self.show_hidden_metrics_for_version),
            mode: text(&self.proxy_mode),
            detect_local_mode: text(&self.detect_local_mode),
            cluster_cidr: text(&self.cluster_cidr),
            node_port_addresses: self.nodeport_addresses.clone(),
            oom_score_adj: self.oom_score_adj,
            config_sync_period: self.config_sync_period,
            windows_run_as_service: is_on(self.windows_service),
            ..Configuration::default()
        };
        config.healthz_bind_address = address(&self.healthz_bind_address, self.healthz_port, "0.0.0.0");
        config.metrics_bind_address = address(&self.metrics_bind_address, self.metrics_port, "127.0.0.1");
        config.client_connection.content_type = text(&self.kube_api_content_type);
        config.client_connection.qps = self.kube_api_qps;
        config.client_connection.burst = self.kube_api_burst;
        config.detect_local.bridge_interface = text(&self.pod_bridge_interface);
        config.detect_local.interface_name_prefix = text(&self.pod_interface_name_prefix);
        self.set_modes(&mut config);
        self.set_conntrack(&mut config);
        config
    }

    /// The flags named iptables-... are those of mode nftables, too (semantics D15).
    fn set_modes(&self, config: &mut Configuration) {
        config.iptables.masquerade_bit = self.iptables_masquerade_bit;
        config.iptables.masquerade_all = is_on(self.masquerade_all);
        config.iptables.localhost_node_ports = self.iptables_localhost_nodeports;
        config.iptables.sync_period = self.iptables_sync_period;
        config.iptables.min_sync_period = self.iptables_min_sync_period;
        config.nftables.masquerade_bit = self.iptables_masquerade_bit;
        config.nftables.masquerade_all = is_on(self.masquerade_all);
        config.nftables.sync_period = self.iptables_sync_period;
        config.nftables.min_sync_period = self.iptables_min_sync_period;
        config.ipvs.sync_period = self.ipvs_sync_period;
        config.ipvs.min_sync_period = self.ipvs_min_sync_period;
        config.ipvs.scheduler = text(&self.ipvs_scheduler);
        config.ipvs.exclude_cidrs = self.ipvs_exclude_cidrs.clone();
        config.ipvs.strict_arp = is_on(self.ipvs_strict_arp);
        config.ipvs.tcp_timeout = self.ipvs_tcp_timeout;
        config.ipvs.tcp_fin_timeout = self.ipvs_tcpfin_timeout;
        config.ipvs.udp_timeout = self.ipvs_udp_timeout;
        config.winkernel.network_name = text(&self.network_name);
        config.winkernel.source_vip = text(&self.source_vip);
        config.winkernel.enable_dsr = is_on(self.enable_dsr);
        config.winkernel.root_hns_endpoint_name = text(&self.root_hnsendpoint_name);
        config.winkernel.forward_health_check_vip = is_on(self.forward_healthcheck_vip);
    }

    fn set_conntrack(&self, config: &mut Configuration) {
        config.conntrack.max_per_core = self.conntrack_max_per_core;
        config.conntrack.min = self.conntrack_min;
        config.conntrack.tcp_established_timeout = self.conntrack_tcp_timeout_established;
        config.conntrack.tcp_close_wait_timeout = self.conntrack_tcp_timeout_close_wait;
        config.conntrack.tcp_be_liberal = is_on(self.conntrack_tcp_be_liberal);
        config.conntrack.udp_timeout = self.conntrack_udp_timeout;
        config.conntrack.udp_stream_timeout = self.conntrack_udp_timeout_stream;
    }
}

impl LoggingFlags {
    /// These count with a file, too.
    pub fn set(&self, config: &mut Configuration) {
        let logging = &mut config.logging;
        logging.format = self.logging_format.clone().unwrap_or_else(|| logging.format.clone());
        logging.verbosity = self.v.unwrap_or(logging.verbosity);
        logging.vmodule.extend(self.vmodule.clone().map(Value::String));
        if let Some(frequency) = self.log_flush_frequency {
            logging.flush_frequency = Some(Value::String(frequency.to_string()));
        }
        let sizes = [&self.log_text_info_buffer_size, &self.log_json_info_buffer_size];
        let streams = [self.log_text_split_stream, self.log_json_split_stream];
        for ((format, size), split) in ["text", "json"].into_iter().zip(sizes).zip(streams) {
            if size.is_some() || split.is_some() {
                let options = serde_json::json!({"infoBufferSize": size, "splitStream": split});
                logging.options.insert(format.to_owned(), options);
            }
        }
    }
}

fn text(given: &Option<String>) -> String {
    given.clone().unwrap_or_default()
}

fn is_on(given: Option<bool>) -> bool {
    given.unwrap_or(false)
}

/// An address with a port, out of it or of the older flag for the port alone.
fn address(given: &Option<String>, port: Option<u16>, ip: &str) -> Option<String> {
    match (given, port) {
        (Some(given), _) => Some(given.clone()),
        (None, Some(0)) => Some(String::new()),
        (None, Some(port)) => Some(format!("{ip}:{port}")),
        (None, None) => None,
    }
}

//! All flags of kube-proxy, under their own names.
//!
//! With `--config`, flags that correspond to a field of the file are ignored with a warning, as in kube-proxy
//! (semantics D15).

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use model::GoDuration;
use plan::forward::NodePortRange;
use serde_json::Value;

use super::file::{API_VERSION, Configuration, KIND};
use crate::dns::DnsFlags;
use cluster::Connection;
use cluster::admin_server::access::AdminAccessArgs;
use cluster::ledger_client::{ControllerLease, controller_lease};

/// `zoneward node`
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "The proxy itself")]
pub struct NodeFlags {
    /// KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1); the process exits when the file changes, to be
    /// restarted
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write the effective configuration, including defaults, to this file and exit
    #[arg(long, value_name = "FILE")]
    pub write_config_to: Option<PathBuf>,
    /// Remove the rules of every proxy mode, including those of kube-proxy, and exit
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub cleanup: Option<bool>,
    /// Set the sysctls that require privileges and exit
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub init_only: Option<bool>,
    /// Fail where no proxy mode is set, instead of running nftables
    #[arg(long)]
    pub strict_mode: bool,
    #[command(flatten)]
    pub connection: Connection,
    /// URL of the API server; overrides that of the kubeconfig
    #[arg(long, value_name = "URL")]
    pub master: Option<String>,
    /// File for a copy of the watched objects, to start with if the API does not answer within 10 s
    #[arg(long, value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    /// Namespace of the Lease in which this node reports what is programmed; empty disables it
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    pub lease_namespace: String,
    /// Lease of the leading controller, which this node reports its traffic to; empty disables reports
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "kube-system/zoneward-controller")]
    #[arg(value_parser = controller_lease)]
    pub controller_lease: ControllerLease,
    /// Export connections and bytes per Service in /metrics, a series per Service and pair of zones; false leaves them to
    /// the controller, which has sums of the busiest Services
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "true")]
    #[arg(default_missing_value = "true", action = clap::ArgAction::Set)]
    pub service_traffic_metrics: bool,
    /// Node ports and health check ports that this node may serve; others are refused with an Event
    #[arg(long, value_name = "FIRST-LAST", default_value_t)]
    pub service_node_port_range: NodePortRange,
    /// Mode ipvs: also put the addresses of Services on the dummy interface kube-ipvs0, as kube-proxy does, for programs
    /// that read them
    #[arg(long)]
    pub ipvs_dummy_interface: bool,
    /// Watch only the EndpointSlices of this node's zone and those that nodes of all zones need; for controllers with
    /// --subset-slices
    #[arg(long)]
    pub watch_own_zone: bool,
    #[command(flatten)]
    pub dns: DnsFlags,
    #[command(flatten)]
    pub access: AdminAccessArgs,
    #[command(flatten)]
    pub logging: LoggingFlags,
    #[command(flatten)]
    pub fields: FieldFlags,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Logging")]
pub struct LoggingFlags {
    /// Log verbosity: 0 and 1 log info, 2 to 4 debug, higher values trace; RUST_LOG takes precedence
    #[arg(short = 'v', long = "v", value_name = "N")]
    pub v: Option<u32>,
    /// Log format: text or json
    #[arg(long, visible_alias = "log-format", value_name = "FORMAT")]
    pub logging_format: Option<String>,
    /// No effect: use RUST_LOG to filter by module
    #[arg(long, value_name = "PATTERN")]
    pub vmodule: Option<String>,
    /// No effect: log output is not buffered
    #[arg(long, value_name = "TIME")]
    pub log_flush_frequency: Option<GoDuration>,
    /// No effect: log output goes to standard error
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub log_text_split_stream: Option<bool>,
    /// No effect: log output is not buffered
    #[arg(long, value_name = "SIZE")]
    pub log_text_info_buffer_size: Option<String>,
    /// No effect: log output goes to standard error
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub log_json_split_stream: Option<bool>,
    /// No effect: log output is not buffered
    #[arg(long, value_name = "SIZE")]
    pub log_json_info_buffer_size: Option<String>,
}

/// Flags that correspond to fields of the configuration.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Fields of the configuration (ignored with --config)")]
pub struct FieldFlags {
    /// Feature gates, such as PreferSameTrafficDistribution=false
    #[arg(long, value_name = "NAME=BOOL,...", value_parser = parse_gates)]
    pub feature_gates: Option<GateList>,
    /// Content type to ask the API for; application/json turns protobuf off
    #[arg(long, value_name = "TYPE")]
    pub kube_api_content_type: Option<String>,
    /// No effect: client requests are not rate-limited
    #[arg(long, value_name = "N")]
    pub kube_api_qps: Option<f64>,
    /// No effect: client requests are not rate-limited
    #[arg(long, value_name = "N")]
    pub kube_api_burst: Option<i64>,
    /// Name of the Node object of this machine [default: the hostname]
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// Node address to use, if specific [default: those of the Node object]
    #[arg(long, value_name = "IP")]
    pub bind_address: Option<String>,
    /// Listen address of /healthz and /livez; empty disables [default: 0.0.0.0:10256]
    #[arg(long, value_name = "IP:PORT")]
    pub healthz_bind_address: Option<String>,
    /// Deprecated: port of --healthz-bind-address; 0 disables
    #[arg(long, value_name = "PORT")]
    pub healthz_port: Option<u16>,
    /// Listen address of /metrics; empty disables [default: 127.0.0.1:10249]
    #[arg(long, value_name = "IP:PORT")]
    pub metrics_bind_address: Option<String>,
    /// Deprecated: port of --metrics-bind-address; 0 disables
    #[arg(long, value_name = "PORT")]
    pub metrics_port: Option<u16>,
    /// Exit if one of these addresses cannot be bound
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub bind_address_hard_fail: Option<bool>,
    /// Not supported: this program has no Go profiler
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub profiling: Option<bool>,
    /// No effect: there are no hidden metrics
    #[arg(long, value_name = "VERSION")]
    pub show_hidden_metrics_for_version: Option<String>,
    /// Proxy mode: nftables, iptables or ipvs; nftables where none is set, and the differences to iptables are logged
    #[arg(long, value_name = "MODE")]
    pub proxy_mode: Option<String>,
    /// Bit of the fwmark that marks packets for masquerading, 0 to 31 [default: 14]
    #[arg(long, value_name = "BIT")]
    pub iptables_masquerade_bit: Option<i64>,
    /// Serve NodePorts on IPv4 loopback addresses, in mode iptables [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub iptables_localhost_nodeports: Option<bool>,
    /// Interval of full resyncs that repair external changes to the rules [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub iptables_sync_period: Option<GoDuration>,
    /// Minimum interval between syncs; 0s disables [default: 1s in mode iptables, else adaptive, up to 1s]
    #[arg(long, value_name = "TIME")]
    pub iptables_min_sync_period: Option<GoDuration>,
    /// Masquerade all traffic to cluster IPs
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub masquerade_all: Option<bool>,
    /// Same as --iptables-sync-period, for mode ipvs
    #[arg(long, value_name = "TIME")]
    pub ipvs_sync_period: Option<GoDuration>,
    /// Same as --iptables-min-sync-period, for mode ipvs
    #[arg(long, value_name = "TIME")]
    pub ipvs_min_sync_period: Option<GoDuration>,
    /// Scheduler of mode ipvs: rr, wrr, lc, wlc, lblc, lblcr, sh, dh, sed, nq or mh [default: rr]
    #[arg(long, value_name = "NAME")]
    pub ipvs_scheduler: Option<String>,
    /// Virtual servers on these addresses are never deleted, for mode ipvs
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    pub ipvs_exclude_cidrs: Vec<String>,
    /// Do not answer ARP requests for addresses of Services, for mode ipvs
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub ipvs_strict_arp: Option<bool>,
    /// Timeout of idle TCP connections, for mode ipvs; 0s leaves it
    #[arg(long, value_name = "TIME")]
    pub ipvs_tcp_timeout: Option<GoDuration>,
    /// Timeout of TCP connections after a FIN, for mode ipvs; 0s leaves it
    #[arg(long, value_name = "TIME")]
    pub ipvs_tcpfin_timeout: Option<GoDuration>,
    /// Timeout of idle UDP flows, for mode ipvs; 0s leaves it
    #[arg(long, value_name = "TIME")]
    pub ipvs_udp_timeout: Option<GoDuration>,
    /// How local pod traffic is detected: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
    #[arg(long, value_name = "MODE")]
    pub detect_local_mode: Option<String>,
    /// Bridge interface of local pods, for BridgeInterface
    #[arg(long, value_name = "NAME")]
    pub pod_bridge_interface: Option<String>,
    /// Interface name prefix of local pods, for InterfaceNamePrefix
    #[arg(long, value_name = "PREFIX")]
    pub pod_interface_name_prefix: Option<String>,
    /// Pod CIDR, or one per family, for ClusterCIDR
    #[arg(long, value_name = "CIDR,...")]
    pub cluster_cidr: Option<String>,
    /// Addresses that serve NodePorts: CIDRs, primary, localhost or all [default: primary with --proxy-mode nftables, else all]
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    pub nodeport_addresses: Vec<String>,
    /// oom_score_adj of this process, -1000 to 1000 [default: -999]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub oom_score_adj: Option<i64>,
    /// Maximum number of conntrack entries per core; 0 keeps the current limit [default: 32768]
    #[arg(long, value_name = "N")]
    pub conntrack_max_per_core: Option<i64>,
    /// Minimum of the conntrack limit, regardless of --conntrack-max-per-core [default: 131072]
    #[arg(long, value_name = "N")]
    pub conntrack_min: Option<i64>,
    /// Conntrack timeout of established TCP connections; 0 keeps the current value [default: 24h]
    #[arg(long, value_name = "TIME")]
    pub conntrack_tcp_timeout_established: Option<GoDuration>,
    /// Conntrack timeout of TCP connections in CLOSE_WAIT [default: 1h]
    #[arg(long, value_name = "TIME")]
    pub conntrack_tcp_timeout_close_wait: Option<GoDuration>,
    /// Accept out-of-window packets as part of their TCP connection
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub conntrack_tcp_be_liberal: Option<bool>,
    /// Conntrack timeout of unreplied UDP flows; 0 keeps the current value
    #[arg(long, value_name = "TIME")]
    pub conntrack_udp_timeout: Option<GoDuration>,
    /// Conntrack timeout of UDP streams; 0 keeps the current value
    #[arg(long, value_name = "TIME")]
    pub conntrack_udp_timeout_stream: Option<GoDuration>,
    /// No effect: watches deliver every change
    #[arg(long, value_name = "TIME")]
    pub config_sync_period: Option<GoDuration>,
    /// Not supported: Windows only
    #[arg(long, value_name = "NAME")]
    pub network_name: Option<String>,
    /// Not supported: Windows only
    #[arg(long, value_name = "IP")]
    pub source_vip: Option<String>,
    /// Not supported: Windows only
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_dsr: Option<bool>,
    /// Not supported: Windows only
    #[arg(long, value_name = "NAME")]
    pub root_hnsendpoint_name: Option<String>,
    /// Not supported: Windows only
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub forward_healthcheck_vip: Option<bool>,
    /// Not supported: Windows only
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub windows_service: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateList(pub BTreeMap<String, bool>);

/// Parses `NAME=BOOL,...`.
pub fn parse_gates(text: &str) -> Result<GateList, String> {
    plan::feature_gates::parse_list(text).map(GateList).map_err(|error| error.to_string())
}

impl FieldFlags {
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

    /// The flags named iptables-... apply to mode nftables as well (semantics D15).
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
    /// Applied on top of a configuration file.
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

/// The address flag, or the deprecated port flag.
fn address(given: &Option<String>, port: Option<u16>, ip: &str) -> Option<String> {
    match (given, port) {
        (Some(given), _) => Some(given.clone()),
        (None, Some(0)) => Some(String::new()),
        (None, Some(port)) => Some(format!("{ip}:{port}")),
        (None, None) => None,
    }
}

//! Configuration of the node proxy: kube-proxy's flags or a KubeProxyConfiguration, as validated settings.
//!
//! ```text
//! flags | file -> Configuration (every field) -> defaults -> check -> NodeSettings, or errors
//! ```
//!
//! Values that kube-proxy refuses are refused, and so are settings that this program does not implement.

mod check;
pub mod fields;
pub mod file;
pub mod flags;
pub mod modes;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use model::{GoDuration, Notice, ObjectRef};
use plan::NodeGates;
use plan::feature_gates::ReadGates;
use plan::forward::{NodePortRange, ProxySettings};

pub use file::Configuration;
pub use modes::Mode;

use super::sync_schedule::MinSyncPeriod;

/// kube-proxy's default syncPeriod.
const SYNC_PERIOD: GoDuration = GoDuration::seconds(30);
/// Upper bound of the adaptive minSyncPeriod.
const MAX_ADAPTIVE_PERIOD: Duration = Duration::from_secs(1);
/// kube-proxy's default minSyncPeriod in mode iptables, in which a sync costs more.
const IPTABLES_MIN_SYNC_PERIOD: Duration = Duration::from_secs(1);

/// Validated settings.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// With defaults filled in.
    pub configuration: Configuration,
    /// The configured mode.
    pub mode: Mode,
    pub proxy: ProxySettings,
    pub sync_period: Duration,
    pub min_sync_period: MinSyncPeriod,
    pub healthz: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    pub kubeconfig: Option<PathBuf>,
    /// Mode ipvs: addresses of Services are on the interface kube-ipvs0, too.
    pub ipvs_dummy_interface: bool,
    /// Watches only the EndpointSlices that nodes of its zone need.
    pub watch_own_zone: bool,
}

/// Settings from flags and file, with warnings.
pub fn settings(flags: &flags::NodeFlags) -> Result<(NodeSettings, Vec<Notice>)> {
    let (mut config, mut notices) = match &flags.config {
        Some(path) => {
            let (config, mut notices) = file::read(path)?;
            notices.extend(ignored_flags(flags));
            (config, notices)
        }
        None => (flags.fields.configuration(), Vec::new()),
    };
    // Semantics D15: these apply beside a file.
    flags.logging.set(&mut config);
    if let Some(name) = &flags.fields.hostname_override {
        config.hostname_override.clone_from(name);
    }
    if let Some(path) = flags.connection.kubeconfig.as_ref().filter(|_| flags.config.is_none()) {
        config.client_connection.kubeconfig = path.display().to_string();
    }
    let (mut settings, more) = resolve(config, flags.strict_mode)?;
    settings.proxy.node_port_range = flags.service_node_port_range;
    settings.ipvs_dummy_interface = flags.ipvs_dummy_interface;
    settings.watch_own_zone = flags.watch_own_zone;
    if flags.ipvs_dummy_interface && settings.mode != Mode::Ipvs {
        notices.push(notice("NoEffect", "--ipvs-dummy-interface: no effect: only with mode ipvs"));
    }
    notices.extend(more);
    Ok((settings, notices))
}

/// Warns of flags that --config overrides.
fn ignored_flags(flags: &flags::NodeFlags) -> Vec<Notice> {
    let given = flags::FieldFlags { hostname_override: None, ..flags.fields.clone() };
    let said = given.configuration() != flags::FieldFlags::default().configuration();
    let message =
        "flags that set fields of the configuration are ignored with --config; set the fields in the file";
    (said || flags.connection.kubeconfig.is_some())
        .then(|| notice("FlagsIgnored", message))
        .into_iter()
        .collect()
}

fn notice(reason: &'static str, message: impl Into<String>) -> Notice {
    Notice::new(ObjectRef::new(file::KIND, "", "config"), reason, message)
}

/// Fills in defaults and validates.
pub fn resolve(mut config: Configuration, strict: bool) -> Result<(NodeSettings, Vec<Notice>)> {
    let value = serde_json::to_value(&config)?;
    let without_effect = fields::without_effect(&value).into_iter();
    let mut notices: Vec<Notice> = without_effect
        .map(|(path, reason)| notice("NoEffect", format!("{path}: no effect: {reason}")))
        .collect();
    let refused = fields::refused(&value).into_iter();
    let mut refusals: Vec<String> = refused.map(|(path, reason)| format!("{path}: {reason}")).collect();
    match fields::scheduler_remark(&config.ipvs.scheduler) {
        Some(remark) if config.mode == Mode::Ipvs.as_str() => refusals.push(remark),
        remark => notices.extend(remark.map(|remark| notice("NoEffect", remark))),
    }
    let ReadGates { mut gates, remarks, refusals: refused } = NodeGates::read(&config.feature_gates);
    notices.extend(remarks.into_iter().map(|remark| notice("NoEffect", remark)));
    refusals.extend(refused);
    let mode = modes::mode(&config.mode, strict).map_err(|refusal| refusals.push(refusal)).ok();
    if gates.localhost_node_ports && mode.is_some_and(|mode| mode != Mode::Nftables) {
        // KEP-6032: of that mode only.
        gates.localhost_node_ports = false;
        let remark = "featureGates.KubeProxyNFTablesLocalhostNodePorts: no effect: only with mode nftables";
        notices.push(notice("NoEffect", remark));
    }
    fill(&mut config);
    check::check(&config, &mut refusals);
    let healthz = listen("healthzBindAddress", config.healthz_bind_address.as_deref(), 10256, &mut refusals);
    let metrics = listen("metricsBindAddress", config.metrics_bind_address.as_deref(), 10249, &mut refusals);
    let (Some(mode), true) = (mode, refusals.is_empty()) else {
        bail!("the configuration is refused:\n  {}", refusals.join("\n  "));
    };
    let (period, min_sync_period) = periods(&config, mode);
    let kubeconfig = &config.client_connection.kubeconfig;
    let settings = NodeSettings {
        mode,
        proxy: proxy_settings(&config, mode, gates),
        sync_period: period,
        min_sync_period,
        healthz,
        metrics,
        kubeconfig: (!kubeconfig.is_empty()).then(|| kubeconfig.into()),
        configuration: config,
        ipvs_dummy_interface: false,
        watch_own_zone: false,
    };
    Ok((settings, notices))
}

/// Defaults (semantics D15).
fn fill(config: &mut Configuration) {
    let bind = config.bind_address.get_or_insert_with(|| "0.0.0.0".to_owned());
    let is_v6 = bind.parse::<std::net::Ipv6Addr>().is_ok();
    let any = if is_v6 { "[::]" } else { "0.0.0.0" };
    let loopback = if is_v6 { "[::1]" } else { "127.0.0.1" };
    config.healthz_bind_address.get_or_insert_with(|| format!("{any}:10256"));
    config.metrics_bind_address.get_or_insert_with(|| format!("{loopback}:10249"));
    config.hostname_override = config.hostname_override.trim().to_lowercase();
    let periods =
        [&mut config.iptables.sync_period, &mut config.ipvs.sync_period, &mut config.nftables.sync_period];
    for period in periods {
        *period = period.filter(|period| !period.is_zero()).or(Some(SYNC_PERIOD));
    }
    config.iptables.masquerade_bit.get_or_insert(14);
    config.nftables.masquerade_bit.get_or_insert(14);
    config.iptables.localhost_node_ports.get_or_insert(true);
    config.oom_score_adj.get_or_insert(-999);
    config.conntrack.max_per_core.get_or_insert(32 * 1024);
    config.conntrack.min.get_or_insert(128 * 1024);
    config.conntrack.tcp_established_timeout.get_or_insert(GoDuration::seconds(24 * 3600));
    config.conntrack.tcp_close_wait_timeout.get_or_insert(GoDuration::seconds(3600));
    config.config_sync_period.get_or_insert(GoDuration::seconds(15 * 60));
    if config.detect_local_mode.is_empty() {
        config.detect_local_mode = "ClusterCIDR".to_owned();
    }
    if config.logging.format.is_empty() {
        config.logging.format = "text".to_owned();
    }
}

/// An address to listen on; empty is none, and the port has a default.
fn listen(field: &str, text: Option<&str>, port: u16, refusals: &mut Vec<String>) -> Option<SocketAddr> {
    let text = text.unwrap_or_default().trim();
    if text.is_empty() {
        return None;
    }
    let with_port = || model::address::parse_ip(text).map(|ip| SocketAddr::new(ip, port));
    let address = text.parse::<SocketAddr>().ok().or_else(with_port);
    if address.is_none() {
        refusals.push(format!("{field}: {text:?} is not IP:PORT, such as 0.0.0.0:{port}"));
    }
    address
}

/// Semantics D15: the pair of the configured mode applies. Seed 002: an explicit 0s is obeyed.
fn periods(config: &Configuration, mode: Mode) -> (Duration, MinSyncPeriod) {
    let (period, least) = match mode {
        Mode::Nftables => (config.nftables.sync_period, config.nftables.min_sync_period),
        Mode::Iptables | Mode::Default => (config.iptables.sync_period, config.iptables.min_sync_period),
        Mode::Ipvs => (config.ipvs.sync_period, config.ipvs.min_sync_period),
    };
    let default = match mode {
        Mode::Iptables => MinSyncPeriod::Fixed(IPTABLES_MIN_SYNC_PERIOD),
        _ => MinSyncPeriod::Adaptive { max: MAX_ADAPTIVE_PERIOD },
    };
    let min_sync_period = least.map_or(default, |least| MinSyncPeriod::Fixed(least.0));
    (period.unwrap_or(SYNC_PERIOD).0, min_sync_period)
}

/// The fields that decisions use.
fn proxy_settings(config: &Configuration, mode: Mode, gates: NodeGates) -> ProxySettings {
    let mut node_port_addresses = config.node_port_addresses.clone();
    if node_port_addresses.is_empty() && mode != Mode::Nftables {
        // Semantics D4: the default of those modes is every address; node ports must not disappear from one.
        node_port_addresses = vec!["all".to_owned()];
    }
    let (all, bit) = match mode {
        Mode::Nftables => (config.nftables.masquerade_all, config.nftables.masquerade_bit),
        _ => (config.iptables.masquerade_all, config.iptables.masquerade_bit),
    };
    let is_iptables = mode == Mode::Iptables;
    ProxySettings {
        mode: mode.forwarding(),
        localhost_node_ports: is_iptables && config.iptables.localhost_node_ports != Some(false),
        bind_address: config.bind_address.clone().unwrap_or_default(),
        cluster_cidr: config.cluster_cidr.clone(),
        detect_local_mode: config.detect_local_mode.clone(),
        bridge_interface: config.detect_local.bridge_interface.clone(),
        interface_name_prefix: config.detect_local.interface_name_prefix.clone(),
        node_port_addresses,
        masquerade_all: all,
        masquerade_bit: bit,
        gates,
        node_port_range: NodePortRange::default(),
        ipvs_scheduler: config.ipvs.scheduler.clone(),
    }
}

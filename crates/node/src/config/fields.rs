//! Every field of KubeProxyConfiguration v1alpha1 and every flag of kube-proxy, and whether it has an effect here.
//!
//! One table for parsing, validation and docs/reference/kube-proxy.md, which a test compares.

use model::suggestion;
use serde_json::Value;

/// Support of a field or flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// As in kube-proxy.
    Works,
    /// Accepted without effect, for this reason.
    NoEffect(&'static str),
    /// As in kube-proxy in mode ipvs; in others without effect, for this reason.
    InIpvs(&'static str),
    /// Refused unless it has its default, for this reason.
    Refused(&'static str),
}

use Support::{InIpvs, NoEffect, Refused, Works};

const WINDOWS: &str = "only for Windows nodes, which the node proxy does not run on; `zoneward plan node --proxy-mode kernelspace` is a preview, see docs/design/windows.md";
const NO_IPVS: &str = "it tunes IPVS, which mode nftables does not use";
const FEW_REQUESTS: &str = "the node proxy keeps four watches, writes one Lease every ten seconds at most and a bounded number of events; rate limits are not needed";
const UNBUFFERED: &str = "log lines are written at once, to standard error";
const NO_PROFILE: &str = "this program has no Go profiler; use perf";

/// Every leaf field. A path that ends in `.*` stands for everything below it.
pub const FIELDS: &[(&str, Support)] = &[
    ("apiVersion", Works),
    ("kind", Works),
    ("featureGates.*", Works),
    ("clientConnection.kubeconfig", Works),
    ("clientConnection.acceptContentTypes", Works),
    ("clientConnection.contentType", Works),
    ("clientConnection.qps", NoEffect(FEW_REQUESTS)),
    ("clientConnection.burst", NoEffect(FEW_REQUESTS)),
    ("logging.format", Works),
    ("logging.verbosity", Works),
    ("logging.flushFrequency", NoEffect(UNBUFFERED)),
    ("logging.vmodule", NoEffect("it selects source files of kube-proxy; set RUST_LOG to select modules")),
    ("logging.options.*", NoEffect(UNBUFFERED)),
    ("hostnameOverride", Works),
    ("bindAddress", Works),
    ("healthzBindAddress", Works),
    ("metricsBindAddress", Works),
    ("bindAddressHardFail", Works),
    ("enableProfiling", Refused(NO_PROFILE)),
    ("showHiddenMetricsForVersion", NoEffect("no metric is hidden")),
    ("mode", Works),
    ("iptables.masqueradeBit", Works),
    ("iptables.masqueradeAll", Works),
    ("iptables.localhostNodePorts", Works),
    ("iptables.syncPeriod", Works),
    ("iptables.minSyncPeriod", Works),
    ("ipvs.syncPeriod", Works),
    ("ipvs.minSyncPeriod", Works),
    (
        "ipvs.scheduler",
        InIpvs("mode nftables selects endpoints at random, or by weight where a Service uses Spill"),
    ),
    ("ipvs.excludeCIDRs", InIpvs(NO_IPVS)),
    ("ipvs.strictARP", InIpvs(NO_IPVS)),
    ("ipvs.tcpTimeout", InIpvs(NO_IPVS)),
    ("ipvs.tcpFinTimeout", InIpvs(NO_IPVS)),
    ("ipvs.udpTimeout", InIpvs(NO_IPVS)),
    ("nftables.masqueradeBit", Works),
    ("nftables.masqueradeAll", Works),
    ("nftables.syncPeriod", Works),
    ("nftables.minSyncPeriod", Works),
    ("winkernel.networkName", Refused(WINDOWS)),
    ("winkernel.sourceVip", Refused(WINDOWS)),
    ("winkernel.enableDSR", Refused(WINDOWS)),
    ("winkernel.rootHnsEndpointName", Refused(WINDOWS)),
    ("winkernel.forwardHealthCheckVip", Refused(WINDOWS)),
    ("detectLocalMode", Works),
    ("detectLocal.bridgeInterface", Works),
    ("detectLocal.interfaceNamePrefix", Works),
    ("clusterCIDR", Works),
    ("nodePortAddresses", Works),
    ("oomScoreAdj", Works),
    ("conntrack.maxPerCore", Works),
    ("conntrack.min", Works),
    ("conntrack.tcpEstablishedTimeout", Works),
    ("conntrack.tcpCloseWaitTimeout", Works),
    ("conntrack.tcpBeLiberal", Works),
    ("conntrack.udpTimeout", Works),
    ("conntrack.udpStreamTimeout", Works),
    ("configSyncPeriod", NoEffect("watches report every change; a broken watch lists again")),
    ("portRange", NoEffect("kube-proxy does not use it either")),
    ("windowsRunAsService", Refused(WINDOWS)),
];

/// Every flag, with its field or its own effect.
pub const FLAGS: &[(&str, &str)] = &[
    ("config", ""),
    ("write-config-to", ""),
    ("cleanup", ""),
    ("init-only", ""),
    ("feature-gates", "featureGates.*"),
    ("kubeconfig", "clientConnection.kubeconfig"),
    ("master", ""),
    ("kube-api-content-type", "clientConnection.contentType"),
    ("kube-api-qps", "clientConnection.qps"),
    ("kube-api-burst", "clientConnection.burst"),
    ("hostname-override", "hostnameOverride"),
    ("bind-address", "bindAddress"),
    ("healthz-bind-address", "healthzBindAddress"),
    ("healthz-port", "healthzBindAddress"),
    ("metrics-bind-address", "metricsBindAddress"),
    ("metrics-port", "metricsBindAddress"),
    ("bind-address-hard-fail", "bindAddressHardFail"),
    ("profiling", "enableProfiling"),
    ("show-hidden-metrics-for-version", "showHiddenMetricsForVersion"),
    ("proxy-mode", "mode"),
    ("iptables-masquerade-bit", "iptables.masqueradeBit"),
    ("iptables-localhost-nodeports", "iptables.localhostNodePorts"),
    ("iptables-sync-period", "iptables.syncPeriod"),
    ("iptables-min-sync-period", "iptables.minSyncPeriod"),
    ("masquerade-all", "iptables.masqueradeAll"),
    ("ipvs-sync-period", "ipvs.syncPeriod"),
    ("ipvs-min-sync-period", "ipvs.minSyncPeriod"),
    ("ipvs-scheduler", "ipvs.scheduler"),
    ("ipvs-exclude-cidrs", "ipvs.excludeCIDRs"),
    ("ipvs-strict-arp", "ipvs.strictARP"),
    ("ipvs-tcp-timeout", "ipvs.tcpTimeout"),
    ("ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout"),
    ("ipvs-udp-timeout", "ipvs.udpTimeout"),
    ("detect-local-mode", "detectLocalMode"),
    ("pod-bridge-interface", "detectLocal.bridgeInterface"),
    ("pod-interface-name-prefix", "detectLocal.interfaceNamePrefix"),
    ("cluster-cidr", "clusterCIDR"),
    ("nodeport-addresses", "nodePortAddresses"),
    ("oom-score-adj", "oomScoreAdj"),
    ("conntrack-max-per-core", "conntrack.maxPerCore"),
    ("conntrack-min", "conntrack.min"),
    ("conntrack-tcp-timeout-established", "conntrack.tcpEstablishedTimeout"),
    ("conntrack-tcp-timeout-close-wait", "conntrack.tcpCloseWaitTimeout"),
    ("conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal"),
    ("conntrack-udp-timeout", "conntrack.udpTimeout"),
    ("conntrack-udp-timeout-stream", "conntrack.udpStreamTimeout"),
    ("config-sync-period", "configSyncPeriod"),
    ("logging-format", "logging.format"),
    ("v", "logging.verbosity"),
    ("vmodule", "logging.vmodule"),
    ("log-flush-frequency", "logging.flushFrequency"),
    ("log-text-split-stream", "logging.options.*"),
    ("log-text-info-buffer-size", "logging.options.*"),
    ("log-json-split-stream", "logging.options.*"),
    ("log-json-info-buffer-size", "logging.options.*"),
    ("network-name", "winkernel.networkName"),
    ("source-vip", "winkernel.sourceVip"),
    ("enable-dsr", "winkernel.enableDSR"),
    ("root-hnsendpoint-name", "winkernel.rootHnsEndpointName"),
    ("forward-healthcheck-vip", "winkernel.forwardHealthCheckVip"),
    ("windows-service", "windowsRunAsService"),
];

/// The fields that are set and refused, each with the reason. A field at its default is not set.
pub fn refused(value: &Value) -> Vec<(&'static str, &'static str)> {
    let set = |path: &str| path.split('.').try_fold(value, |inner, field| inner.get(field));
    let refused = FIELDS.iter().filter_map(|(path, support)| match support {
        Refused(reason) => Some((*path, *reason)),
        Works | NoEffect(_) | InIpvs(_) => None,
    });
    refused.filter(|(path, _)| set(path).is_some_and(|value| !is_default(value))).collect()
}

/// The fields that are set and change nothing, each with the reason.
pub fn without_effect(value: &Value) -> Vec<(&'static str, &'static str)> {
    let set = |path: &str| path.trim_end_matches(".*").split('.').try_fold(value, |inner, f| inner.get(f));
    let is_ipvs = value["mode"] == "ipvs";
    let listed = FIELDS.iter().filter_map(|(path, support)| match support {
        NoEffect(reason) => Some((*path, *reason)),
        InIpvs(reason) => (!is_ipvs).then_some((*path, *reason)),
        Works | Refused(_) => None,
    });
    listed.filter(|(path, _)| set(path).is_some_and(|value| !is_default(value))).collect()
}

/// The schedulers that IPVS has; kube-proxy refuses others in mode ipvs.
const SCHEDULERS: [&str; 11] = ["rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh"];

/// Warning about an unknown scheduler.
pub fn scheduler_remark(scheduler: &str) -> Option<String> {
    let known = scheduler.is_empty() || SCHEDULERS.contains(&scheduler);
    let near = || suggestion::did_you_mean(scheduler, SCHEDULERS);
    let list = SCHEDULERS.join(", ");
    (!known).then(|| format!("ipvs.scheduler: IPVS has no scheduler {scheduler:?}, only {list}{}", near()))
}

fn is_default(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => matches!(text.as_str(), "" | "0" | "0s"),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_default),
        Value::Bool(true) => false,
    }
}

/// Unknown paths in a configuration.
pub fn unknown(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(value, "", &mut found);
    found
}

/// `; did you mean clusterCIDR?` for an unknown path.
pub fn did_you_mean(path: &str) -> String {
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    let beside = FIELDS.iter().filter_map(|(known, _)| {
        let below = if parent.is_empty() { known } else { known.strip_prefix(parent)?.strip_prefix('.')? };
        below.split('.').next()
    });
    suggestion::nearest(name, beside).map_or_else(String::new, |near| match parent {
        "" => format!("; did you mean {near}?"),
        parent => format!("; did you mean {parent}.{near}?"),
    })
}

fn walk(value: &Value, path: &str, unknown: &mut Vec<String>) {
    for (field, inner) in value.as_object().into_iter().flatten() {
        let path = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
        let (below, all_below) = (format!("{path}."), format!("{path}.*"));
        if FIELDS.iter().any(|(known, _)| *known == path || *known == all_below) {
            continue;
        }
        if FIELDS.iter().any(|(known, _)| known.starts_with(&below)) {
            walk(inner, &path, unknown);
        } else {
            unknown.push(path);
        }
    }
}

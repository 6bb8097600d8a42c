//! NodeMetrics of the node proxy: kube-proxy's by their names (semantics D14), and our own.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use cluster::admin_server;
use dataplane::backend::{PacketCount, RuleCount};
use dataplane::iptables::names::{INVALID_COUNTER, LOCALHOST_COUNTER};

const FAMILIES: [model::Family; 2] = [model::Family::V4, model::Family::V6];

/// LabelPairs as pairs.
pub type LabelPairs = Vec<(&'static str, String)>;
type Histograms = Family<LabelPairs, Histogram, fn() -> Histogram>;
type Counters = Family<LabelPairs, Counter>;
type Times = Gauge<f64, AtomicU64>;

/// All metrics; clones share their values.
pub struct NodeMetrics {
    registry: Registry,
    pub sync: Histograms,
    pub sync_full: Histograms,
    pub sync_partial: Histograms,
    pub last_sync: Family<LabelPairs, Times>,
    pub last_queued: Family<LabelPairs, Times>,
    pub programming: Histograms,
    pub endpoint_pending: Gauge,
    pub endpoint_changes: Counter,
    pub service_pending: Gauge,
    pub service_changes: Counter,
    sync_failures: Counters,
    cleanup_failures: Counters,
    restore_failures: Counters,
    partial_restore_failures: Counters,
    /// Rules that the kernel holds, and rules of the last sync, in mode iptables.
    rules: [Family<LabelPairs, Gauge>; 2],
    invalid_dropped: Counter,
    localhost_accepted: Counter,
    pub no_local: Family<LabelPairs, Gauge>,
    pub healthz: Counters,
    pub livez: Counters,
    pub conntrack: Histograms,
    conntrack_deleted: Counters,
    pub failed_services: Gauge,
    pub repairs: Counter,
    pub programmed: Gauge,
    pub object_age: Gauge,
    pub connections: Counters,
    pub bytes: Counters,
    pub direct_connections: Counters,
    pub direct_bytes: Counters,
    pub lost_events: Counter,
    pub dropped_counts: Counter,
    pub unaccounted_flows: Gauge,
    pub reports: Counters,
    pub localhost: LocalhostMetrics,
}

/// Metrics of node ports on localhost.
#[derive(Clone, Debug, Default)]
pub struct LocalhostMetrics {
    pub listeners: Family<LabelPairs, Gauge>,
    pub failures: Counters,
    pub connections: Counters,
}

/// The upper bounds of kube-proxy: 1 ms, 2 ms, ... 16 s.
fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

/// The upper bounds of kube-proxy: a quarter and half a second, each second of the first minute, every 5 s of the second,
/// every 30 s up to five minutes.
fn delays() -> Histogram {
    let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    Histogram::new([0.25, 0.5].into_iter().chain(seconds.map(f64::from)))
}

impl Default for NodeMetrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: admin_server::registry("node"),
            sync: Family::new_with_constructor(durations),
            sync_full: Family::new_with_constructor(durations),
            sync_partial: Family::new_with_constructor(durations),
            last_sync: Family::default(),
            last_queued: Family::default(),
            programming: Family::new_with_constructor(delays),
            endpoint_pending: Gauge::default(),
            endpoint_changes: Counter::default(),
            service_pending: Gauge::default(),
            service_changes: Counter::default(),
            sync_failures: Family::default(),
            cleanup_failures: Family::default(),
            restore_failures: Family::default(),
            partial_restore_failures: Family::default(),
            rules: Default::default(),
            invalid_dropped: Counter::default(),
            localhost_accepted: Counter::default(),
            no_local: Family::default(),
            healthz: Family::default(),
            livez: Family::default(),
            conntrack: Family::new_with_constructor(durations),
            conntrack_deleted: Family::default(),
            failed_services: Gauge::default(),
            repairs: Counter::default(),
            programmed: Gauge::default(),
            object_age: Gauge::default(),
            connections: Family::default(),
            bytes: Family::default(),
            direct_connections: Family::default(),
            direct_bytes: Family::default(),
            lost_events: Counter::default(),
            dropped_counts: Counter::default(),
            unaccounted_flows: Gauge::default(),
            reports: Family::default(),
            localhost: LocalhostMetrics::default(),
        };
        metrics.prepare();
        metrics.register_kube_proxy();
        metrics.register_ours();
        metrics.register_localhost();
        metrics
    }
}

impl NodeMetrics {
    /// Series that exist before the first event, so that rates and alerts see the first one.
    fn prepare(&self) {
        for at in FAMILIES {
            for histograms in
                [&self.sync, &self.sync_full, &self.sync_partial, &self.programming, &self.conntrack]
            {
                drop(histograms.get_or_create(&family(at)));
            }
            for times in [&self.last_sync, &self.last_queued] {
                drop(times.get_or_create(&family(at)));
            }
            for counters in [&self.sync_failures, &self.cleanup_failures, &self.conntrack_deleted] {
                drop(counters.get_or_create(&family(at)));
            }
            drop(self.localhost.listeners.get_or_create(&family(at)));
            drop(self.localhost.failures.get_or_create(&family(at)));
            for result in ["connected", "failed"] {
                drop(self.localhost.connections.get_or_create(&connection_result(at, result)));
            }
            for policy in ["internal", "external"] {
                drop(self.no_local.get_or_create(&local_policy(at, policy)));
            }
        }
        for result in ["success", "failed"] {
            drop(self.reports.get_or_create(&report_result(result)));
        }
        for answers in [&self.healthz, &self.livez] {
            for code in [200, 503] {
                drop(answers.get_or_create(&status(code)));
            }
        }
    }

    fn register_kube_proxy(&mut self) {
        let all = &mut self.registry;
        // Counters get the suffix `_total` when they are encoded.
        for (name, family) in [("proxy_healthz", &self.healthz), ("proxy_livez", &self.livez)] {
            all.register(name, "Responses by status code", family.clone());
            all.register(format!("kubeproxy_{name}"), "Responses by status code", family.clone());
        }
        let all = all.sub_registry_with_prefix("kubeproxy");
        let rules = "sync_proxy_rules";
        all.register(format!("{rules}_duration_seconds"), "Duration of a sync", self.sync.clone());
        all.register(
            format!("sync_full_{}_duration_seconds", "proxy_rules"),
            "Duration of a full sync",
            self.sync_full.clone(),
        );
        all.register(
            format!("sync_partial_{}_duration_seconds", "proxy_rules"),
            "Duration of a partial sync",
            self.sync_partial.clone(),
        );
        all.register(
            format!("{rules}_last_timestamp_seconds"),
            "Time of the last successful sync",
            self.last_sync.clone(),
        );
        all.register(
            format!("{rules}_last_queued_timestamp_seconds"),
            "Time of the last queued change",
            self.last_queued.clone(),
        );
        all.register(
            "network_programming_duration_seconds",
            "Latency from an endpoint change to programmed rules",
            self.programming.clone(),
        );
        all.register(
            format!("{rules}_endpoint_changes_pending"),
            "Endpoint changes that are pending",
            self.endpoint_pending.clone(),
        );
        all.register(format!("{rules}_endpoint_changes"), "Endpoint changes", self.endpoint_changes.clone());
        all.register(
            format!("{rules}_service_changes_pending"),
            "Service changes that are pending",
            self.service_pending.clone(),
        );
        all.register(format!("{rules}_service_changes"), "Service changes", self.service_changes.clone());
        all.register(
            format!("{rules}_nftables_sync_failures"),
            "Transactions that failed",
            self.sync_failures.clone(),
        );
        all.register(
            format!("{rules}_nftables_cleanup_failures"),
            "Deletions of unused chains that failed",
            self.cleanup_failures.clone(),
        );
        all.register(
            format!("{rules}_iptables_restore_failures"),
            "Runs of iptables-restore that failed",
            self.restore_failures.clone(),
        );
        all.register(
            format!("{rules}_iptables_partial_restore_failures"),
            "Runs of iptables-restore that failed in a partial sync",
            self.partial_restore_failures.clone(),
        );
        let [total, last] = &self.rules;
        all.register(format!("{rules}_iptables_total"), "Rules in the kernel, by table", total.clone());
        all.register(
            format!("{rules}_iptables_last"),
            "Rules that the last sync wrote, by table",
            last.clone(),
        );
        all.register(
            "iptables_ct_state_invalid_dropped_packets",
            "Packets that conntrack found invalid and the rules dropped",
            self.invalid_dropped.clone(),
        );
        all.register(
            "iptables_localhost_nodeports_accepted_packets",
            "Connections to node ports on loopback addresses",
            self.localhost_accepted.clone(),
        );
        all.register(
            format!("{rules}_no_local_endpoints_total"),
            "Service ports with traffic policy Local and no endpoint on this node",
            self.no_local.clone(),
        );
        all.register(
            "conntrack_reconciler_sync_duration_seconds",
            "Duration of deleting stale conntrack entries",
            self.conntrack.clone(),
        );
        all.register(
            "conntrack_reconciler_deleted_entries",
            "Deleted conntrack entries",
            self.conntrack_deleted.clone(),
        );
    }

    /// Those of kube-proxy, and connections.
    fn register_localhost(&mut self) {
        let all = self.registry.sub_registry_with_prefix("kubeproxy_nftables_localhost_nodeport");
        all.register(
            "listeners",
            "Listeners of node ports on loopback addresses",
            self.localhost.listeners.clone(),
        );
        all.register(
            "listener_creation_failures",
            "Node ports on loopback addresses that could not be bound",
            self.localhost.failures.clone(),
        );
        let all = self.registry.sub_registry_with_prefix("zoneward");
        all.register(
            "localhost_nodeport_connections",
            "Connections to node ports on loopback addresses, by result",
            self.localhost.connections.clone(),
        );
    }

    fn register_ours(&mut self) {
        let all = self.registry.sub_registry_with_prefix("zoneward");
        all.register(
            "node_services_failed",
            "Services whose last change the kernel refused",
            self.failed_services.clone(),
        );
        all.register("node_repairs", "Repairs of tables that were modified externally", self.repairs.clone());
        all.register(
            "node_programmed_revision",
            "Highest resourceVersion of an EndpointSlice in the kernel",
            self.programmed.clone(),
        );
        all.register(
            "node_object_age_seconds",
            "Age of the objects that are served while the API does not answer; 0 while it does",
            self.object_age.clone(),
        );
        all.register(
            "service_connections",
            "Connections to Services by source zone, destination zone and locality",
            self.connections.clone(),
        );
        all.register(
            "service_bytes",
            "Bytes to and from Services by source zone, destination zone and locality",
            self.bytes.clone(),
        );
        all.register(
            "direct_connections",
            "Connections from pod to pod that go through no Service, by zones and locality",
            self.direct_connections.clone(),
        );
        all.register(
            "direct_bytes",
            "Bytes from pod to pod that go through no Service, by zones and locality",
            self.direct_bytes.clone(),
        );
        all.register(
            "traffic_lost_events",
            "Overflows of the buffer of conntrack events; the bytes of some connections are not counted",
            self.lost_events.clone(),
        );
        all.register(
            "traffic_dropped_counts",
            "Traffic counts that found no place in a bounded table",
            self.dropped_counts.clone(),
        );
        all.register(
            "traffic_unaccounted_flows",
            "Open connections that are older than nf_conntrack_acct, whose bytes are not counted",
            self.unaccounted_flows.clone(),
        );
        all.register(
            "traffic_reports",
            "Reports of traffic to the leading controller, by result",
            self.reports.clone(),
        );
    }

    /// Counts a failed transaction, which holds the rules of both families.
    pub fn sync_failed(&self) {
        for at in FAMILIES {
            self.sync_failures.get_or_create(&family(at)).inc();
        }
    }

    /// Counts a failed run of iptables-restore.
    pub fn restore_failed(&self, is_partial: bool) {
        for at in FAMILIES {
            self.restore_failures.get_or_create(&family(at)).inc();
            self.partial_restore_failures.get_or_create(&family(at)).inc_by(u64::from(is_partial));
        }
    }

    /// Sets the rules of mode iptables.
    pub fn set_rule_counts(&self, counts: &[RuleCount]) {
        for count in counts {
            let labels = vec![("ip_family", count.family.to_string()), ("table", count.table.to_owned())];
            let [total, last] = &self.rules;
            for (gauge, rules) in [(total, count.total), (last, count.last)] {
                gauge.get_or_create(&labels).set(i64::try_from(rules).unwrap_or(i64::MAX));
            }
        }
    }

    /// Advances the counters of mode iptables to what the kernel has counted.
    pub fn set_packet_counts(&self, counts: &[PacketCount]) {
        for PacketCount { counter, packets } in counts {
            let counter = match *counter {
                INVALID_COUNTER => &self.invalid_dropped,
                LOCALHOST_COUNTER => &self.localhost_accepted,
                _ => continue,
            };
            counter.inc_by(packets.saturating_sub(counter.get()));
        }
    }

    /// Counts a failed deletion of unused chains.
    pub fn cleanup_failed(&self) {
        for at in FAMILIES {
            self.cleanup_failures.get_or_create(&family(at)).inc();
        }
    }

    /// Counts deleted conntrack entries.
    pub fn deleted_flows(&self, cleaned: &dataplane::conntrack::StaleCleanup) {
        let ipv4 = cleaned.deleted.saturating_sub(cleaned.deleted_ipv6);
        for (at, count) in [(model::Family::V4, ipv4), (model::Family::V6, cleaned.deleted_ipv6)] {
            self.conntrack_deleted.get_or_create(&family(at)).inc_by(count as u64);
        }
    }

    /// To add metrics before they are served.
    pub fn registry_mut(&mut self) -> &mut Registry {
        &mut self.registry
    }

    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    #[cfg(test)]
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }
}

/// LabelPairs of responses.
pub fn status(code: u16) -> LabelPairs {
    vec![("code", code.to_string())]
}

/// LabelPairs of reports.
pub fn report_result(result: &str) -> LabelPairs {
    vec![("result", result.to_owned())]
}

/// LabelPairs of connections to node ports on loopback addresses.
pub fn connection_result(family: model::Family, result: &str) -> LabelPairs {
    vec![("ip_family", family.to_string()), ("result", result.to_owned())]
}

/// LabelPairs of Service ports with traffic policy Local.
pub fn local_policy(family: model::Family, policy: &str) -> LabelPairs {
    vec![("ip_family", family.to_string()), ("traffic_policy", policy.to_owned())]
}

/// Label `ip_family`.
pub fn family(family: model::Family) -> LabelPairs {
    vec![("ip_family", family.to_string())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_that_dashboards_know() {
        // Semantics D14.
        let metrics = NodeMetrics::default();
        metrics.healthz.get_or_create(&status(200)).inc();
        metrics.programming.get_or_create(&family(model::Family::V4)).observe(0.001);
        metrics.restore_failed(false);
        let nat = RuleCount { family: model::Family::V4, table: "nat", total: 12, last: 3 };
        metrics.set_rule_counts(&[nat]);
        metrics.set_packet_counts(&[PacketCount { counter: INVALID_COUNTER, packets: 7 }]);
        let text = metrics.text();
        for name in [
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=",
            "kubeproxy_sync_full_proxy_rules_duration_seconds_count",
            "kubeproxy_sync_partial_proxy_rules_duration_seconds_count",
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 0",
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv6\"} 0",
            "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"} 1",
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
            "kubeproxy_sync_proxy_rules_endpoint_changes_total 0",
            "kubeproxy_sync_proxy_rules_service_changes_total 0",
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"} 0",
            "kubeproxy_proxy_healthz_total{code=\"200\"} 1",
            "\nproxy_healthz_total{code=\"200\"} 1",
            "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"} 0",
            "kubeproxy_nftables_localhost_nodeport_listeners{ip_family=\"IPv4\"} 0",
            "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total{ip_family=\"IPv6\"} 0",
            "zoneward_node_services_failed 0",
            "kubeproxy_sync_proxy_rules_iptables_total{ip_family=\"IPv4\",table=\"nat\"} 12",
            "kubeproxy_sync_proxy_rules_iptables_last{ip_family=\"IPv4\",table=\"nat\"} 3",
            "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"} 1",
            "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family=\"IPv4\"} 0",
            "kubeproxy_iptables_ct_state_invalid_dropped_packets_total 7",
        ] {
            assert!(text.contains(name), "{name} is missing in:\n{text}");
        }
    }
}

//! Metrics of the embedded API's store, read at each scrape.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use store::api::Api;
use store::engine::EngineStats;

/// Registers the metrics of the store behind an API.
pub fn register(api: Api, registry: &mut Registry) {
    registry.register_collector(Box::new(StoreCollector(api)));
}

struct StoreCollector(Api);

impl fmt::Debug for StoreCollector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("StoreCollector")
    }
}

type MetricRow = (&'static str, &'static str, fn(&EngineStats) -> u64);

const GAUGES: [MetricRow; 3] = [
    ("zoneward_api_revision", "Newest resourceVersion", |stats| stats.revision.0),
    ("zoneward_api_compacted_revision", "Oldest resourceVersion that a watch can start at", |stats| {
        stats.compacted.0
    }),
    ("zoneward_api_watchers", "Open watches", |stats| stats.watchers as u64),
];

/// The exposition adds `_total`.
const COUNTERS: [MetricRow; 3] = [
    ("zoneward_api_commits", "Commits of one or more writes", |stats| stats.commits),
    ("zoneward_api_syncs", "fsync calls of the journal and checkpoints", |stats| stats.syncs),
    ("zoneward_api_checkpoints", "Checkpoints written", |stats| stats.checkpoints),
];

impl Collector for StoreCollector {
    /// A failed store has no metrics; `/readyz` reports why.
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Ok(stats) = self.0.engine().stats() else { return Ok(()) };
        for (name, help, value) in COUNTERS {
            let counter = ConstCounter::new(value(&stats));
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        if let Some(audit) = self.0.audit_stats() {
            for (name, help, value) in [
                ("apiserver_audit_event", "Audit events recorded", audit.events),
                ("zoneward_audit_dropped", "Audit events dropped because the queue was full", audit.dropped),
                ("apiserver_audit_error", "Audit events that could not be written", audit.errors),
            ] {
                let counter = ConstCounter::new(value);
                counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
            }
        }
        for (name, help, value) in GAUGES {
            let gauge = ConstGauge::new(i64::try_from(value(&stats)).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

//! Metrics of the embedded API's store, read at each scrape.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use store::api::{Api, FairnessStats};
use store::engine::EngineStats;

/// Registers the metrics of the store behind an API.
pub(super) fn register(api: Api, registry: &mut Registry) {
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

/// Encodes counts by the value of a label.
fn encode_counts(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&'static str, &'static str),
    label: &'static str,
    counts: &[(&'static str, u64)],
) -> fmt::Result {
    let kind = ConstCounter::new(0_u64).metric_type();
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (value, count) in counts {
        ConstCounter::new(*count).encode(family.encode_family(&[(label, *value)])?)?;
    }
    Ok(())
}

fn encode_fairness(stats: &FairnessStats, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let evictions = [
        ("connections", stats.evicted_connections),
        ("watches", stats.evicted_watches),
        ("responses", stats.evicted_responses),
        ("bodies", stats.evicted_bodies),
    ];
    let text = ("zoneward_api_evictions", "Connections closed because others needed what they held");
    encode_counts(encoder, text, "held", &evictions)?;
    let refusals = [
        ("queue-full", stats.queue.queue_full),
        ("time-out", stats.queue.timed_out),
        ("watches", stats.refused_watches),
    ];
    let text = ("zoneward_api_rejected_requests", "Requests answered with 429");
    encode_counts(encoder, text, "reason", &refusals)?;
    let waits = ConstCounter::new(stats.queue.waited);
    let help = "Requests that waited for a seat";
    waits.encode(encoder.encode_descriptor(
        "zoneward_api_queue_waits",
        help,
        None,
        waits.metric_type(),
    )?)?;
    let seconds = ConstCounter::new(stats.queue.wait_seconds);
    let (name, help) = ("zoneward_api_queue_wait_seconds", "Time that requests waited for a seat");
    seconds.encode(encoder.encode_descriptor(name, help, None, seconds.metric_type())?)?;
    for (name, help, value) in [
        ("zoneward_api_queued_requests", "Requests that wait for a seat", stats.queue.waiting),
        ("zoneward_api_executing_requests", "Requests with a seat", stats.queue.executing),
        ("zoneward_api_open_connections", "Open connections", stats.open_connections),
        ("zoneward_api_unsent_response_bytes", "Bytes of responses that are not sent", stats.response_bytes),
        ("zoneward_api_request_body_bytes", "Bytes of bodies of unfinished requests", stats.body_bytes),
    ] {
        let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
    }
    Ok(())
}

impl Collector for StoreCollector {
    /// A failed store has no metrics of its own; `/readyz` reports why.
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        encode_fairness(&self.0.fairness_stats(), &mut encoder)?;
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

//! The embedded API's own numbers, read when somebody asks for them.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use store::api::Api;
use store::engine::EngineStats;

/// Shows the numbers of the store behind an API.
pub fn show_api(api: Api, registry: &mut Registry) {
    registry.register_collector(Box::new(Store(api)));
}

struct Store(Api);

impl fmt::Debug for Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Store")
    }
}

type Row = (&'static str, &'static str, fn(&EngineStats) -> u64);

const GAUGES: [Row; 3] = [
    ("zoneward_api_revision", "The newest resourceVersion", |stats| stats.revision.0),
    ("zoneward_api_compacted_revision", "The oldest resourceVersion that a watch can begin at", |stats| {
        stats.compacted.0
    }),
    ("zoneward_api_watchers", "Watches that are open", |stats| stats.watchers as u64),
];

/// Their names get `_total` when they are written.
const COUNTERS: [Row; 3] = [
    ("zoneward_api_commits", "Commits, each of one or more writes", |stats| stats.commits),
    ("zoneward_api_syncs", "Times that a file was made durable", |stats| stats.syncs),
    ("zoneward_api_checkpoints", "Times that the journal began anew", |stats| stats.checkpoints),
];

impl Collector for Store {
    /// A store that cannot be read has no numbers; `/readyz` says why.
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Ok(stats) = self.0.engine().stats() else { return Ok(()) };
        for (name, help, value) in COUNTERS {
            let counter = ConstCounter::new(value(&stats));
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        for (name, help, value) in GAUGES {
            let gauge = ConstGauge::new(i64::try_from(value(&stats)).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

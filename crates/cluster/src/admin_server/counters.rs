//! Counters under names without `_total`, which Kubernetes has and dashboards know. OpenMetrics has no such counters, so
//! there they are of unknown type; the older text format calls them counters.

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::{MetricType, TypedMetric};

/// A counter whose name stays as it is.
#[derive(Clone, Debug, Default)]
pub struct BareCounter(Counter);

impl BareCounter {
    /// Adds.
    pub fn inc_by(&self, by: u64) {
        self.0.inc_by(by);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

impl TypedMetric for BareCounter {
    const TYPE: MetricType = MetricType::Unknown;
}

impl EncodeMetric for BareCounter {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        // A sample without an ending.
        encoder.encode_gauge(&self.0.get())
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

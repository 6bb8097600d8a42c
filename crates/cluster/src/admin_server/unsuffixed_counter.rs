//! Counters without the suffix `_total`, as Kubernetes names some. OpenMetrics requires the suffix, so there the type is
//! unknown; in the text format 0.0.4 it is counter.

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::{MetricType, TypedMetric};

#[derive(Clone, Debug, Default)]
pub struct UnsuffixedCounter(Counter);

impl UnsuffixedCounter {
    pub fn inc_by(&self, by: u64) {
        self.0.inc_by(by);
    }

    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

impl TypedMetric for UnsuffixedCounter {
    const TYPE: MetricType = MetricType::Unknown;
}

impl EncodeMetric for UnsuffixedCounter {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        // A gauge's sample has no suffix.
        encoder.encode_gauge(&self.0.get())
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

//! Metrics of DNS.

use std::time::Duration;

use plan::dns::DnsQueryType;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    proto: &'static str,
    r#type: &'static str,
    rcode: &'static str,
    source: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SourceLabel {
    source: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DropLabel {
    reason: &'static str,
}

/// Where the answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerSource {
    Cluster,
    Forward,
    /// The message was not answerable.
    Rejected,
}

impl AnswerSource {
    fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Forward => "forward",
            Self::Rejected => "rejected",
        }
    }
}

/// Reasons why a message has no answer, or an answer only for want of places.
const DROPS: [&str; 4] = ["malformed", "overload", "no_upstream", "upstream_unanswered"];

/// From 0.1 ms to 3 s.
fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.000_1, 2.0, 16))
}

/// Clones share their values.
#[derive(Clone, Debug)]
pub(super) struct DnsMetrics {
    requests: Family<RequestLabels, Counter>,
    durations: Family<SourceLabel, Histogram, fn() -> Histogram>,
    drops: Family<DropLabel, Counter>,
}

impl Default for DnsMetrics {
    fn default() -> Self {
        let metrics = Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(durations),
            drops: Family::default(),
        };
        for source in [AnswerSource::Cluster, AnswerSource::Forward] {
            drop(metrics.durations.get_or_create(&SourceLabel { source: source.as_str() }));
        }
        for reason in DROPS {
            drop(metrics.drops.get_or_create(&DropLabel { reason }));
        }
        metrics
    }
}

impl DnsMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "zoneward_dns_requests",
            "DNS requests by protocol, type, response code and source of the answer",
            metrics.requests.clone(),
        );
        registry.register(
            "zoneward_dns_request_duration_seconds",
            "Time to answer DNS requests",
            metrics.durations.clone(),
        );
        registry.register(
            "zoneward_dns_failures",
            "DNS messages that were ignored, and requests that could not be forwarded",
            metrics.drops.clone(),
        );
        metrics
    }

    pub(super) fn answered(
        &self,
        proto: &'static str,
        kind: DnsQueryType,
        rcode: &'static str,
        source: AnswerSource,
        took: Duration,
    ) {
        let labels = RequestLabels { proto, r#type: kind.as_str(), rcode, source: source.as_str() };
        self.requests.get_or_create(&labels).inc();
        if source != AnswerSource::Rejected {
            let label = SourceLabel { source: source.as_str() };
            self.durations.get_or_create(&label).observe(took.as_secs_f64());
        }
    }

    pub(super) fn failed(&self, reason: &'static str) {
        self.drops.get_or_create(&DropLabel { reason }).inc();
    }
}

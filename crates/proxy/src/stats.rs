//! The counters of the request path: plain atomics, added to without a lock. `metrics.rs` exports them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::Locality;

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn inc(&self) {
        self.inc_by(1);
    }

    pub(crate) fn inc_by(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Requests by class of status; class `none` is for clients that disconnected before a response.
#[derive(Debug, Default)]
pub(crate) struct StatusCounters([Counter; 6]);

impl StatusCounters {
    const CLASSES: [&'static str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

    pub(crate) fn inc(&self, status: u16) {
        if let Some(counter) = self.0.get(usize::from(status / 100)) {
            counter.inc();
        }
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::CLASSES.into_iter().zip(self.0.iter().map(Counter::value))
    }
}

/// Request durations in buckets.
#[derive(Debug, Default)]
pub(crate) struct DurationHistogram {
    buckets: [Counter; Self::BOUNDS_MS.len() + 1],
    sum_us: Counter,
}

impl DurationHistogram {
    const BOUNDS_MS: [u64; 9] = [1, 5, 10, 50, 100, 500, 1_000, 5_000, 10_000];

    pub(crate) fn observe(&self, duration: Duration) {
        let microseconds = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = Self::BOUNDS_MS.iter().position(|bound| microseconds <= bound * 1000);
        self.buckets[bucket.unwrap_or(Self::BOUNDS_MS.len())].inc();
        self.sum_us.inc_by(microseconds);
    }

    pub(crate) fn sum_seconds(&self) -> f64 {
        self.sum_us.value() as f64 / 1e6
    }

    /// Upper bounds in seconds with the count of each bucket alone.
    pub(crate) fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = Self::BOUNDS_MS.iter().map(|bound| *bound as f64 / 1e3).chain([f64::INFINITY]);
        bounds.zip(self.buckets.iter().map(Counter::value)).collect()
    }
}

/// Of one route rule.
#[derive(Debug)]
pub(crate) struct RouteStats {
    pub(crate) label: Arc<str>,
    pub(crate) statuses: StatusCounters,
    pub(crate) durations: DurationHistogram,
}

impl RouteStats {
    pub(crate) fn new(label: Arc<str>) -> Self {
        Self { label, statuses: StatusCounters::default(), durations: DurationHistogram::default() }
    }

    /// The policy of the rule, which the label begins with; `None` for the original destination.
    pub(crate) fn policy(&self) -> Option<&str> {
        self.label.rsplit_once(" spec.").map(|(policy, _)| policy)
    }
}

/// Of one backend.
#[derive(Debug, Default)]
pub(crate) struct BackendStats {
    pub(crate) statuses: StatusCounters,
    /// By the locality of the endpoint.
    pub(crate) localities: [Counter; Locality::ALL.len()],
    pub(crate) connections: Counter,
    pub(crate) connect_failures: Counter,
    pub(crate) retries: Counter,
    pub(crate) ejections: Counter,
    /// 503 because too many requests wait for a connection.
    pub(crate) pending_overflow: Counter,
    /// Failures without a retry because too many are in flight.
    pub(crate) retry_overflow: Counter,
    pub(crate) mirrored: Counter,
}

/// Of the whole proxy.
#[derive(Debug, Default)]
pub(crate) struct ProxyStats {
    pub(crate) connections: Counter,
    pub(crate) refused_connections: Counter,
    /// Idle connections closed for new ones.
    pub(crate) evicted_idle: Counter,
    /// Connections closed for want of descriptors.
    pub(crate) evicted_sockets: Counter,
    /// 503 because of the limit on buffered body bytes.
    pub(crate) bodies_over_limit: Counter,
    pub(crate) passed_through: Counter,
    pub(crate) failed_handshakes: Counter,
    pub(crate) dropped_mirrors: Counter,
    pub(crate) table_swaps: Counter,
}

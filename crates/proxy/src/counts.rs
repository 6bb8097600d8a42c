//! What is counted, where it happens: plain counters that requests add to without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::Locality;

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_many(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Answers by the first digit of their status; the first is for clients that went away before.
#[derive(Debug, Default)]
pub(crate) struct Statuses([Count; 6]);

impl Statuses {
    pub(crate) const NAMES: [&'static str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

    pub(crate) fn add(&self, status: u16) {
        let class = usize::from(status / 100);
        if let Some(count) = self.0.get(class) {
            count.add();
        }
    }

    pub(crate) fn values(&self) -> [u64; 6] {
        std::array::from_fn(|at| self.0[at].value())
    }
}

/// How long requests took, in buckets.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    buckets: [Count; Self::BOUNDS.len() + 1],
    microseconds: Count,
}

impl Durations {
    /// Upper bounds in milliseconds.
    pub(crate) const BOUNDS: [u64; 9] = [1, 5, 10, 50, 100, 500, 1_000, 5_000, 10_000];

    pub(crate) fn add(&self, took: Duration) {
        let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = Self::BOUNDS.iter().position(|bound| microseconds <= bound * 1000);
        self.buckets[bucket.unwrap_or(Self::BOUNDS.len())].add();
        self.microseconds.add_many(microseconds);
    }

    /// Each bucket on its own, and the sum in microseconds.
    pub(crate) fn values(&self) -> ([u64; Self::BOUNDS.len() + 1], u64) {
        (std::array::from_fn(|at| self.buckets[at].value()), self.microseconds.value())
    }
}

/// What is counted of one rule.
#[derive(Debug, Default)]
pub(crate) struct RouteCounts {
    pub(crate) statuses: Statuses,
    pub(crate) durations: Durations,
}

/// What is counted of one backend.
#[derive(Debug, Default)]
pub(crate) struct BackendCounts {
    pub(crate) statuses: Statuses,
    /// By the locality of the endpoint.
    pub(crate) localities: [Count; Locality::ALL.len()],
    pub(crate) connections: Count,
    pub(crate) connect_failures: Count,
    pub(crate) retries: Count,
    pub(crate) ejections: Count,
    pub(crate) mirrored: Count,
}

/// What is counted of the whole proxy.
#[derive(Debug, Default)]
pub(crate) struct ProxyCounts {
    pub(crate) connections: Count,
    pub(crate) refused: Count,
    /// Requests that got 503 because there were too many.
    pub(crate) requests_refused: Count,
    /// Requests that got 503 because too many bytes of bodies were held.
    pub(crate) bodies_refused: Count,
    pub(crate) passed_through: Count,
    pub(crate) handshakes_failed: Count,
    pub(crate) mirrors_left_out: Count,
    pub(crate) swaps: Count,
}

//! One endpoint as we know it: its load, its health, and the connections to it. It outlives tables: a new table that
//! has the same address goes on with the same peer, and one that nobody holds any more closes its connections.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::pool::Pool;
use crate::settings::Health;

/// How an endpoint is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wire {
    Http1,
    Http2,
    Bytes,
}

/// Milliseconds since the proxy began: what fits into an atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(crate) u64);

impl Moment {
    pub(crate) fn plus(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// An endpoint.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) wire: Wire,
    /// When it came, if it came to others that were there before.
    pub(crate) born: Option<Moment>,
    pub(crate) pool: Pool,
    load: AtomicUsize,
    failures: AtomicU32,
    ejections: AtomicU32,
    ejected_until: AtomicU64,
}

impl Peer {
    pub(crate) fn new(address: SocketAddr, wire: Wire, born: Option<Moment>) -> Self {
        Self {
            address,
            wire,
            born,
            pool: Pool::default(),
            load: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            ejections: AtomicU32::new(0),
            ejected_until: AtomicU64::new(0),
        }
    }

    /// Requests and connections that it has now, from us.
    pub(crate) fn load(&self) -> usize {
        self.load.load(Relaxed)
    }

    pub(crate) fn take_up(&self) {
        self.load.fetch_add(1, Relaxed);
    }

    pub(crate) fn put_down(&self) {
        self.load.fetch_sub(1, Relaxed);
    }

    pub(crate) fn is_ejected(&self, now: Moment) -> bool {
        self.ejected_until.load(Relaxed) > now.0
    }

    /// How much of its share a new endpoint gets: from a tenth to all of it.
    pub(crate) fn warmth(&self, now: Moment, slow_start: Duration) -> f32 {
        let Some(born) = self.born.filter(|_| !slow_start.is_zero()) else { return 1.0 };
        let age = now.0.saturating_sub(born.0) as f32 / slow_start.as_millis().max(1) as f32;
        age.clamp(0.1, 1.0)
    }

    pub(crate) fn succeeded(&self) {
        // Nearly always so already: a read costs other threads nothing.
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
            self.ejections.store(0, Relaxed);
        }
    }

    /// Counts a failure. Whether there have been so many in a row that it should be left out.
    pub(crate) fn failed(&self, health: &Health) -> bool {
        let count = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        health.failures > 0 && count >= health.failures
    }

    /// Leaves it out for a while, longer every time in a row.
    pub(crate) fn eject(&self, now: Moment, health: &Health) {
        let times = self.ejections.fetch_add(1, Relaxed).saturating_add(1).min(10);
        self.ejected_until.store(now.plus(health.ejection * times).0, Relaxed);
        // It comes back on trial: one more failure and it is out again.
        self.failures.store(health.failures.saturating_sub(1), Relaxed);
    }
}

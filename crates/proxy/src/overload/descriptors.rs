//! The file descriptors of upstream connections: bounded, so that accept, health checks and logs always have some.
//!
//! ```text
//! limit of the process = spare + downstream connections + upstream connections
//! ```

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::open_connections::RELIEF_PAUSE;
use crate::settings::ProxyLimits;
use crate::stats::Counter;

/// How the descriptors of the process are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorShares {
    pub(crate) downstream: usize,
    pub(crate) upstream: usize,
}

impl DescriptorShares {
    /// A sixteenth, and at least 64, are spare; the rest is divided in halves, and what downstream connections may not
    /// use is for upstream ones.
    pub(crate) fn of(limits: &ProxyLimits) -> Self {
        let soft = || getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        let all = limits.descriptors.unwrap_or_else(|| usize::try_from(soft()).unwrap_or(usize::MAX));
        let usable = all.saturating_sub((all / 16).max(64)).max(2);
        let downstream = limits.connections.clamp(1, usable / 2);
        Self { downstream, upstream: usable - downstream }
    }
}

#[derive(Debug)]
pub(crate) struct UpstreamSockets {
    limit: usize,
    open: AtomicUsize,
    closed: Notify,
    pub(crate) refused: Counter,
}

/// One descriptor, until it is dropped.
#[derive(Debug)]
pub(crate) struct UpstreamSocket(Arc<UpstreamSockets>);

#[derive(Debug, thiserror::Error)]
#[error("no file descriptor for a connection to the endpoint")]
pub(crate) struct OutOfDescriptors;

impl UpstreamSockets {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, open: AtomicUsize::new(0), closed: Notify::new(), refused: Counter::default() }
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// What one relief frees: enough that the next one is not needed at once.
    pub(crate) fn goal(&self) -> usize {
        (self.limit / 16).max(1)
    }

    fn try_acquire(self: &Arc<Self>) -> Option<UpstreamSocket> {
        let one_more = |open: usize| (open < self.limit).then_some(open + 1);
        self.open.fetch_update(Relaxed, Relaxed, one_more).is_ok().then(|| UpstreamSocket(self.clone()))
    }

    /// A descriptor. At the limit, `relieve` makes some free; the caller waits for one as long as it does.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        within: Duration,
        relieve: impl Fn() -> bool,
    ) -> io::Result<UpstreamSocket> {
        if let Some(socket) = self.try_acquire() {
            return Ok(socket);
        }
        let waiting = async {
            loop {
                let mut closed = std::pin::pin!(self.closed.notified());
                // Before the next check, so that no notification is missed.
                closed.as_mut().enable();
                if let Some(socket) = self.try_acquire() {
                    return Some(socket);
                }
                if !relieve() {
                    return None;
                }
                let _ = timeout(RELIEF_PAUSE, closed).await;
            }
        };
        let acquired = timeout(within, Box::pin(waiting)).await.ok().flatten();
        acquired.ok_or_else(|| {
            self.refused.inc();
            io::Error::other(OutOfDescriptors)
        })
    }
}

impl Drop for UpstreamSocket {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
        self.0.closed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_descriptors_are_kept_whatever_the_limit() {
        let of = |descriptors, connections| {
            let limits =
                ProxyLimits { descriptors: Some(descriptors), connections, ..ProxyLimits::default() };
            let shares = DescriptorShares::of(&limits);
            (shares.downstream, shares.upstream)
        };
        assert_eq!(of(1024, 16_384), (480, 480));
        assert_eq!(of(1_048_576, 16_384), (16_384, 966_656));
        assert_eq!(of(20_000, 100), (100, 18_650));
        assert_eq!(of(10, 16_384), (1, 1));
    }
}

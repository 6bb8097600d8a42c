//! The file descriptors of upstream connections: bounded, so that accept, health checks and logs always have some.
//!
//! ```text
//! limit of the process = spare + downstream connections + upstream connections
//! ```

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use listener::{ConnectionOwner, FairShares, HolderId};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::open_connections::RELIEF_PAUSE;
use crate::downstream::idle_timeout::ConnectionActivity;
use crate::settings::ProxyLimits;
use crate::stats::Counter;

/// Raises the soft limit of file descriptors to the hard limit, and returns both. The soft limit is low for programs that
/// call select(2), which cannot use more than 1024; this one does not. Call it before [`crate::Proxy::new`], which
/// divides what there is.
pub fn raise_descriptor_limit() -> io::Result<(u64, u64)> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok((soft, hard))
}

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
    state: Mutex<SocketState>,
    pub(crate) refused: Counter,
}

#[derive(Debug)]
struct SocketState {
    open: usize,
    /// Requests that wait, by what their connections use: the smallest gets the next descriptor that is free.
    waiting: FairShares<ConnectionOwner, oneshot::Sender<UpstreamSocket>>,
}

/// One descriptor, until it is dropped.
#[derive(Debug)]
pub(crate) struct UpstreamSocket(Arc<UpstreamSockets>);

#[derive(Debug, thiserror::Error)]
#[error("no file descriptor for a connection to the endpoint")]
pub(crate) struct OutOfDescriptors;

impl UpstreamSockets {
    pub(crate) fn new(limit: usize) -> Self {
        let state = SocketState { open: 0, waiting: FairShares::new(u64::MAX) };
        Self { limit, state: Mutex::new(state), refused: Counter::default() }
    }

    pub(crate) fn open(&self) -> usize {
        self.state().open
    }

    /// What one relief frees: enough that the next one is not needed at once.
    pub(crate) fn goal(&self) -> usize {
        (self.limit / 16).max(1)
    }

    /// A descriptor. At the limit, `relieve` makes some free; the claimant waits for one as long as it returns true. A
    /// mirror has no claimant, and does not wait.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        within: Duration,
        claimant: Option<&ConnectionActivity>,
        relieve: impl Fn() -> bool,
    ) -> io::Result<UpstreamSocket> {
        if self.try_open() {
            return Ok(UpstreamSocket(self.clone()));
        }
        let acquired = match claimant {
            Some(claimant) => timeout(within, Box::pin(self.wait(claimant, relieve))).await.ok().flatten(),
            None => None,
        };
        acquired.ok_or_else(|| {
            self.refused.inc();
            io::Error::other(OutOfDescriptors)
        })
    }

    fn try_open(&self) -> bool {
        let mut state = self.state();
        let is_free = state.open < self.limit;
        state.open += usize::from(is_free);
        is_free
    }

    async fn wait(
        self: &Arc<Self>,
        claimant: &ConnectionActivity,
        relieve: impl Fn() -> bool,
    ) -> Option<UpstreamSocket> {
        let (given, mut socket) = oneshot::channel();
        let owner = (claimant.client().clone(), claimant.id);
        let id = self.state().waiting.add(owner, claimant.sockets().max(1) as u64, given);
        let _waiting = WaitingRequest { sockets: self, id };
        // One may have become free before.
        if self.try_open() {
            return Some(UpstreamSocket(self.clone()));
        }
        while relieve() {
            if let Ok(given) = timeout(RELIEF_PAUSE, &mut socket).await {
                return given.ok();
            }
        }
        // Given meanwhile.
        socket.try_recv().ok()
    }

    /// The request that gets a descriptor next; without one, the descriptor is free.
    fn next_waiting(&self) -> Option<oneshot::Sender<UpstreamSocket>> {
        let mut state = self.state();
        let next = state.waiting.pop_smallest();
        state.open -= usize::from(next.is_none());
        next
    }

    fn state(&self) -> MutexGuard<'_, SocketState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// In the queue until it is dropped, if not served before.
struct WaitingRequest<'s> {
    sockets: &'s UpstreamSockets,
    id: HolderId,
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.sockets.state().waiting.release(self.id);
    }
}

impl Drop for UpstreamSocket {
    fn drop(&mut self) {
        if let Some(waiting) = self.0.next_waiting() {
            // If the request has ended meanwhile, this drops the descriptor again, for the next one.
            let _ = waiting.send(Self(self.0.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use clock::Clock;

    use super::*;
    use crate::http::body_chunk::BufferBudget;
    use crate::upstream::endpoint::ProxyTime;

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

    #[tokio::test]
    async fn a_free_descriptor_goes_to_the_claimant_that_uses_least() {
        let sockets = Arc::new(UpstreamSockets::new(1));
        let budget = Arc::new(BufferBudget::new(1, Clock::system()));
        let client = |last: u8, used| {
            let address = IpAddr::from([127, 0, 0, last]);
            let activity =
                ConnectionActivity::new(&budget, ConnectionOwner::source(address), last.into(), ProxyTime(0));
            (0..used).for_each(|_| activity.add_socket());
            activity
        };
        let (large, small) = (client(1, 9), client(2, 1));
        let within = Duration::from_secs(60);
        let first = sockets.acquire(within, Some(&small), || true).await.unwrap();
        let order = Mutex::new(Vec::new());
        let take = async |client: &ConnectionActivity| {
            let socket = sockets.acquire(within, Some(client), || true).await.unwrap();
            order.lock().unwrap().push(client.id);
            tokio::task::yield_now().await;
            drop(socket);
        };
        let free = async {
            // Those that wait no more are left out.
            let gone = sockets.acquire(Duration::from_millis(1), Some(&small), || true).await;
            assert!(gone.is_err());
            drop(first);
        };
        tokio::join!(take(&large), take(&small), take(&large), free);
        assert_eq!(*order.lock().unwrap(), [2, 1, 1]);
        assert_eq!((sockets.open(), sockets.refused.value()), (0, 1));
        assert!(sockets.acquire(within, None, || true).await.is_ok());
    }

    #[tokio::test]
    async fn a_claimant_that_nothing_is_closed_for_is_refused() {
        let sockets = Arc::new(UpstreamSockets::new(1));
        let budget = Arc::new(BufferBudget::new(1, Clock::system()));
        let client = ConnectionActivity::new(
            &budget,
            ConnectionOwner::source(IpAddr::from([127, 0, 0, 1])),
            1,
            ProxyTime(0),
        );
        let acquire =
            |is_relieved| sockets.acquire(Duration::from_secs(60), Some(&client), move || is_relieved);
        let first = acquire(false).await.unwrap();
        assert!(acquire(false).await.is_err());
        assert!(sockets.acquire(Duration::from_secs(60), None, || true).await.is_err(), "a mirror");
        drop(first);
        assert!(acquire(false).await.is_ok());
        assert_eq!(sockets.open(), 0);
    }

    #[test]
    fn the_soft_limit_of_descriptors_is_raised() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let soft = hard.min(512);
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        assert_eq!(raise_descriptor_limit().unwrap(), (soft, hard));
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
    }
}

//! The accept loop of every server: backoff when accept fails, a limit of open connections, drain on stop.
//!
//! ```text
//! socket -> accept --failed--> backoff
//!             |
//!           admit, by ConnectionPolicy --at the limit--> close, or leave new ones in the backlog
//!             |
//!           serve, in a task that holds a ConnectionPermit --stop--> drain
//! ```
//!
//! `admit` is the one place that decides whether a connection is served. Servers whose clients must not displace each
//! other use [`FairConnections`]: the same loop with a place per connection, and shares per source or user. TLS handshakes
//! of all servers have [`HandshakeTurns`].

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod fair_connections;
pub mod handshakes;
pub mod shares;

use std::future::Future;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

pub use fair_connections::{ConnectionHandle, ConnectionOwner, ConnectionPlace, FairConnections};
pub use handshakes::HandshakeTurns;
pub use shares::{AtShare, FairShares, HolderId, ShareClaim};

/// Pause after accept failed, which nearly always means that the process is out of file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(20);

/// Which connections are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionPolicy {
    /// Open connections, over all sockets that share a [`ConnectionLimit`].
    pub max_connections: usize,
    pub at_limit: AtLimit,
    /// How long connections may take to close after the stop.
    pub drain_timeout: Duration,
}

/// What happens to a connection above the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtLimit {
    /// It is closed at once: clients of an API retry elsewhere or later.
    Close,
    /// It waits in the socket's backlog.
    Wait,
}

/// The open connections of one or more sockets, and the policy for new ones.
#[derive(Clone, Debug)]
pub struct ConnectionLimit {
    policy: ConnectionPolicy,
    permits: Arc<Semaphore>,
}

/// Held while a connection is open.
#[derive(Debug)]
pub struct ConnectionPermit {
    _permit: OwnedSemaphorePermit,
}

impl ConnectionLimit {
    pub fn new(policy: ConnectionPolicy) -> Self {
        let permits = policy.max_connections.min(Semaphore::MAX_PERMITS);
        Self { policy, permits: Arc::new(Semaphore::new(permits)) }
    }

    /// The next connection that the policy admits. `accept` is that of a socket.
    pub async fn accept<T, A>(&self, accept: impl Fn() -> A) -> (T, ConnectionPermit)
    where
        A: Future<Output = io::Result<T>>,
    {
        let mut is_failing = false;
        loop {
            let waited = match self.policy.at_limit {
                AtLimit::Wait => self.permits.clone().acquire_owned().await.ok(),
                AtLimit::Close => None,
            };
            match accept().await {
                Ok(accepted) => {
                    if let Some(permit) = waited.or_else(|| self.admit()) {
                        return (accepted, ConnectionPermit { _permit: permit });
                    }
                    is_failing = false;
                }
                // The client is gone; the next connection may be fine.
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(%error, "failed to accept connections; retrying");
                    }
                    drop(waited);
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }

    fn admit(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().try_acquire_owned().ok()
    }

    /// Serves each connection in a task of its own until `stop` is true or its sender is dropped, then drains.
    pub async fn serve<T, A, F>(
        &self,
        accept: impl Fn() -> A,
        mut stop: watch::Receiver<bool>,
        mut serve: impl FnMut(T) -> F,
    ) where
        A: Future<Output = io::Result<T>>,
        F: Future<Output = ()> + Send + 'static,
    {
        let mut connections = JoinSet::new();
        loop {
            let (accepted, permit) = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                accepted = self.accept(&accept) => accepted,
            };
            while connections.try_join_next().is_some() {}
            let connection = serve(accepted);
            connections.spawn(async move {
                let _permit = permit;
                connection.await;
            });
        }
        let drained = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(self.policy.drain_timeout, drained).await;
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    fn limit(max_connections: usize, at_limit: AtLimit) -> ConnectionLimit {
        let drain_timeout = Duration::from_secs(30);
        ConnectionLimit::new(ConnectionPolicy { max_connections, at_limit, drain_timeout })
    }

    /// Answers each byte that a client sends.
    async fn echo(mut stream: TcpStream) {
        let mut byte = [0];
        while stream.read_exact(&mut byte).await.is_ok() && stream.write_all(&byte).await.is_ok() {}
    }

    async fn is_answered(stream: &mut TcpStream) -> bool {
        stream.write_all(b"x").await.is_ok() && stream.read_u8().await.is_ok()
    }

    #[tokio::test]
    async fn connection_above_the_limit_is_closed() {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let server = tokio::spawn(async move {
            limit(1, AtLimit::Close).serve(|| socket.accept(), stopped, |(stream, _)| echo(stream)).await;
        });
        let mut first = TcpStream::connect(address).await.unwrap();
        assert!(is_answered(&mut first).await);
        assert!(!is_answered(&mut TcpStream::connect(address).await.unwrap()).await);
        drop(first);
        while !is_answered(&mut TcpStream::connect(address).await.unwrap()).await {}
        stop.send(true).unwrap();
        server.await.unwrap();
    }

    #[tokio::test]
    async fn connection_above_the_limit_waits_for_a_permit() {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let limit = limit(1, AtLimit::Wait);
        let (_one, two) = tokio::join!(TcpStream::connect(address), TcpStream::connect(address));
        let ((first, _), permit) = limit.accept(|| socket.accept()).await;
        let second = limit.accept(|| socket.accept());
        tokio::pin!(second);
        tokio::select! {
            biased;
            _ = second.as_mut() => panic!("the limit is one"),
            () = tokio::task::yield_now() => {}
        }
        drop((first, permit));
        let ((_, peer), _permit) = second.await;
        assert_eq!(peer, two.unwrap().local_addr().unwrap());
    }

    #[tokio::test]
    async fn failed_accept_is_retried() {
        let calls = Cell::new(0);
        let accept = || {
            calls.set(calls.get() + 1);
            let result = match calls.get() {
                1..=3 => Err(io::Error::from_raw_os_error(24)),
                4 => Err(ErrorKind::ConnectionAborted.into()),
                _ => Ok(7),
            };
            std::future::ready(result)
        };
        let (accepted, _permit) = limit(1, AtLimit::Close).accept(accept).await;
        assert_eq!((accepted, calls.get()), (7, 5));
    }

    #[tokio::test]
    async fn stop_waits_for_open_connections() {
        let (stop, stopped) = watch::channel(false);
        let (served, finished) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
        let accept = || async {
            match served.load(Ordering::SeqCst) {
                0..3 => Ok(()),
                _ => std::future::pending().await,
            }
        };
        limit(10, AtLimit::Close)
            .serve(accept, stopped, |()| {
                if served.fetch_add(1, Ordering::SeqCst) == 2 {
                    stop.send(true).unwrap();
                }
                let finished = finished.clone();
                async move {
                    tokio::task::yield_now().await;
                    finished.fetch_add(1, Ordering::SeqCst);
                }
            })
            .await;
        assert_eq!(finished.load(Ordering::SeqCst), 3);
    }
}

//! Connections to one endpoint: those of HTTP/1.1 are lent to one request at a time, those of HTTP/2 carry many.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::body::OutBody;
use crate::peer::{Peer, Wire};
use crate::settings::{Limits, Settings};

/// The connections to one endpoint.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    idle: Mutex<Vec<Idle>>,
    shared: Mutex<Vec<SharedConnection>>,
    /// One at a time dials for many.
    dialing: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Idle {
    sender: http1::SendRequest<OutBody>,
    since: Instant,
}

#[derive(Clone, Debug)]
struct SharedConnection {
    sender: http2::SendRequest<OutBody>,
    streams: Arc<AtomicUsize>,
    used: Arc<Mutex<Instant>>,
}

/// More than this many streams on one connection, and another one is made.
const STREAMS: usize = 100;
/// Connections of HTTP/2 to one endpoint.
const SHARED: usize = 16;

/// A connection for one request.
pub(crate) enum Lent {
    Http1(http1::SendRequest<OutBody>),
    Http2(http2::SendRequest<OutBody>, Arc<AtomicUsize>),
}

/// The place of a request at an endpoint: its load, and what it holds of the pool.
pub(crate) struct Lease {
    pub(crate) peer: Arc<Peer>,
    pub(crate) is_reused: bool,
    lent: Option<Lent>,
    keep: usize,
}

impl Lease {
    /// A connection to a peer, an unused one or a new one.
    pub(crate) async fn take(peer: &Arc<Peer>, settings: &Settings) -> io::Result<Self> {
        peer.take_up();
        let mut lease = Self {
            peer: peer.clone(),
            is_reused: false,
            lent: None,
            keep: settings.limits.idle_per_endpoint,
        };
        let lent = match peer.wire {
            Wire::Http2 => peer.shared(settings).await?,
            Wire::Http1 | Wire::Bytes => match peer.pool.unused() {
                Some(sender) => {
                    lease.is_reused = true;
                    Lent::Http1(sender)
                }
                None => Lent::Http1(dial1(peer, settings).await?),
            },
        };
        lease.lent = Some(lent);
        Ok(lease)
    }

    pub(crate) fn lent(&mut self) -> Option<&mut Lent> {
        self.lent.as_mut()
    }

    /// The answer has been read to its end: the next request may have the connection.
    pub(crate) fn give_back(&mut self) {
        if let Some(Lent::Http1(sender)) = self.lent.take_if(|lent| matches!(lent, Lent::Http1(_))) {
            self.peer.pool.put(sender, self.keep);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(Lent::Http2(_, streams)) = &self.lent {
            streams.fetch_sub(1, Relaxed);
        }
        self.peer.put_down();
    }
}

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared(&self) -> MutexGuard<'_, Vec<SharedConnection>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection that was used last: the others may become old and go.
    fn unused(&self) -> Option<http1::SendRequest<OutBody>> {
        let mut idle = self.idle();
        // One that is not ready is still about to finish its last message, or closed.
        while let Some(at) = idle.iter().rposition(|idle| idle.sender.is_ready() || idle.sender.is_closed()) {
            let found = idle.remove(at);
            if !found.sender.is_closed() {
                return Some(found.sender);
            }
        }
        None
    }

    fn put(&self, sender: http1::SendRequest<OutBody>, keep: usize) {
        if sender.is_closed() {
            return;
        }
        let mut idle = self.idle();
        if idle.len() < keep {
            idle.push(Idle { sender, since: Instant::now() });
        }
    }

    /// Closes what has not been used for a while.
    pub(crate) fn sweep(&self, now: Instant, keep: Duration) {
        let is_fresh = |since: Instant| now.saturating_duration_since(since) < keep;
        self.idle().retain(|idle| !idle.sender.is_closed() && is_fresh(idle.since));
        self.shared().retain(|shared| {
            let used = *shared.used.lock().unwrap_or_else(PoisonError::into_inner);
            !shared.sender.is_closed() && (shared.streams.load(Relaxed) > 0 || is_fresh(used))
        });
    }

    /// The connection with the fewest streams, if it has room.
    fn least_used(&self) -> Option<Lent> {
        let mut shared = self.shared();
        shared.retain(|shared| !shared.sender.is_closed());
        let full = shared.len() >= SHARED;
        let least = shared.iter().min_by_key(|shared| shared.streams.load(Relaxed))?;
        if least.streams.load(Relaxed) >= STREAMS && !full {
            return None;
        }
        Some(least.lend())
    }
}

impl SharedConnection {
    fn lend(&self) -> Lent {
        self.streams.fetch_add(1, Relaxed);
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Lent::Http2(self.sender.clone(), self.streams.clone())
    }
}

impl Peer {
    async fn shared(&self, settings: &Settings) -> io::Result<Lent> {
        if let Some(lent) = self.pool.least_used() {
            return Ok(lent);
        }
        let _turn = self.pool.dialing.lock().await;
        if let Some(lent) = self.pool.least_used() {
            return Ok(lent);
        }
        let sender = dial2(self, settings).await?;
        let used = Arc::new(Mutex::new(Instant::now()));
        let made = SharedConnection { sender, streams: Arc::new(AtomicUsize::new(0)), used };
        let lent = made.lend();
        self.pool.shared().push(made);
        Ok(lent)
    }

    /// A new connection, without a protocol.
    pub(crate) async fn dial(&self, settings: &Settings) -> io::Result<TcpStream> {
        let stream = timeout(settings.timeouts.connect, TcpStream::connect(self.address)).await??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

async fn dial1(peer: &Peer, settings: &Settings) -> io::Result<http1::SendRequest<OutBody>> {
    let stream = peer.dial(settings).await?;
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(buffer(&settings.limits))
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(async move {
        // Whoever sent the request is told what went wrong.
        let _ = connection.with_upgrades().await;
    });
    Ok(sender)
}

async fn dial2(peer: &Peer, settings: &Settings) -> io::Result<http2::SendRequest<OutBody>> {
    let stream = peer.dial(settings).await?;
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(stream_window(&settings.limits))
        .initial_connection_window_size(connection_window(&settings.limits, STREAMS as u32))
        .max_send_buf_size(settings.limits.buffer)
        .max_header_list_size(u32::try_from(settings.limits.header_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(10));
    let handshake = builder.handshake(TokioIo::new(stream));
    let made = timeout(settings.timeouts.connect, handshake).await?;
    let (sender, connection) = made.map_err(io::Error::other)?;
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}

/// What hyper may hold of one message; it wants 8 KiB at the least.
pub(crate) fn buffer(limits: &Limits) -> usize {
    limits.buffer.max(limits.header_bytes).max(8 << 10)
}

/// What a peer of HTTP/2 may send of one body before it is taken.
pub(crate) fn stream_window(limits: &Limits) -> u32 {
    u32::try_from(limits.buffer).unwrap_or(u32::MAX).clamp(65_535, 1 << 24)
}

/// And of all bodies of a connection: enough that some which nobody takes do not hold the others up.
pub(crate) fn connection_window(limits: &Limits, streams: u32) -> u32 {
    stream_window(limits).saturating_mul(streams).clamp(1 << 20, 1 << 24)
}

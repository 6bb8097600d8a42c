//! Connections to one endpoint: those of HTTP/1.1 are lent to one request at a time, those of HTTP/2 carry many.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderName, HeaderValue};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep, timeout};

use crate::body::OutBody;
use crate::peer::{Peer, Wire};
use crate::settings::{Limits, Settings};
use crate::tcp::connect;

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
    kept: Kept,
}

/// What a connection of HTTP/1.1 keeps from one request to the next, so that it is not made for each.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Room for the fields of a request that may have to be sent again.
    pub(crate) fields: Vec<(HeaderName, HeaderValue)>,
    /// A timer, where a request before has set it.
    pub(crate) timer: Option<Pin<Box<Sleep>>>,
}

#[derive(Clone, Debug)]
struct SharedConnection {
    sender: http2::SendRequest<OutBody>,
    usage: Arc<Usage>,
}

/// How a connection of HTTP/2 is used.
#[derive(Debug)]
pub(crate) struct Usage {
    streams: AtomicUsize,
    used: Mutex<Instant>,
    made: Instant,
    /// Whether the endpoint offers extended CONNECT (RFC 8441).
    is_extended: AtomicBool,
}

/// More than this many streams on one connection, and another one is made.
const STREAMS: usize = 100;
/// Connections of HTTP/2 to one endpoint.
const SHARED: usize = 16;

/// A connection for one request.
pub(crate) enum Lent {
    Http1(http1::SendRequest<OutBody>),
    Http2(http2::SendRequest<OutBody>, Arc<Usage>),
}

/// The place of a request at an endpoint: its load, and what it holds of the pool.
pub(crate) struct Lease {
    pub(crate) peer: Arc<Peer>,
    pub(crate) is_reused: bool,
    /// Whether HTTP/1.1 is tried at an endpoint that is only said to speak HTTP/2.
    pub(crate) is_guess: bool,
    pub(crate) lent: Option<Lent>,
    pub(crate) kept: Kept,
    keep: usize,
}

/// What a connection is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Request,
    /// A request that is to become something else.
    Upgrade,
}

impl Lease {
    /// A connection to a peer, an unused one or a new one.
    pub(crate) async fn take(peer: &Arc<Peer>, settings: &Settings, what_for: Use) -> io::Result<Self> {
        peer.take_up();
        let mut lease = Self {
            peer: peer.clone(),
            is_reused: false,
            is_guess: false,
            lent: None,
            kept: Kept::default(),
            keep: settings.limits.idle_per_endpoint,
        };
        let lent = match peer.wire {
            // What is rare is boxed: every request would be moved about with room for it.
            Wire::Http2 if what_for == Use::Upgrade => match Box::pin(peer.extended(settings)).await? {
                Some(lent) => lent,
                None => {
                    (lease.is_guess, lease.keep) = (true, 0);
                    Lent::Http1(Box::pin(dial1(peer, settings)).await?)
                }
            },
            Wire::Http2 => match peer.pool.least_used() {
                Some(lent) => lent,
                None => Box::pin(peer.shared(settings)).await?,
            },
            Wire::Http1 | Wire::Bytes => match peer.pool.unused() {
                Some((sender, kept)) => {
                    (lease.is_reused, lease.kept) = (true, kept);
                    Lent::Http1(sender)
                }
                None => Lent::Http1(Box::pin(dial1(peer, settings)).await?),
            },
        };
        lease.lent = Some(lent);
        Ok(lease)
    }

    pub(crate) fn is_http2(&self) -> bool {
        matches!(self.lent, Some(Lent::Http2(..)))
    }

    /// The answer has been read to its end: the next request may have the connection.
    pub(crate) fn give_back(&mut self) {
        if let Some(Lent::Http1(sender)) = self.lent.take_if(|lent| matches!(lent, Lent::Http1(_))) {
            self.peer.pool.put(sender, std::mem::take(&mut self.kept), self.keep);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(Lent::Http2(_, usage)) = &self.lent {
            usage.streams.fetch_sub(1, Relaxed);
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
    fn unused(&self) -> Option<(http1::SendRequest<OutBody>, Kept)> {
        let mut idle = self.idle();
        // One that is not ready is still about to finish its last message, or closed.
        while let Some(at) = idle.iter().rposition(|idle| idle.sender.is_ready() || idle.sender.is_closed()) {
            let found = idle.remove(at);
            if !found.sender.is_closed() {
                return Some((found.sender, found.kept));
            }
        }
        None
    }

    fn put(&self, sender: http1::SendRequest<OutBody>, mut kept: Kept, keep: usize) {
        if sender.is_closed() {
            return;
        }
        kept.fields.clear();
        let mut idle = self.idle();
        if idle.len() < keep {
            idle.push(Idle { sender, since: Instant::now(), kept });
        }
    }

    /// Closes what has not been used for a while.
    pub(crate) fn sweep(&self, now: Instant, keep: Duration) {
        let is_fresh = |since: Instant| now.saturating_duration_since(since) < keep;
        self.idle().retain(|idle| !idle.sender.is_closed() && is_fresh(idle.since));
        self.shared().retain(|shared| {
            let used = *shared.usage.used.lock().unwrap_or_else(PoisonError::into_inner);
            !shared.sender.is_closed() && (shared.streams() > 0 || is_fresh(used))
        });
    }

    /// The connection with the fewest streams, if it has room.
    fn least_used(&self) -> Option<Lent> {
        let mut shared = self.shared();
        shared.retain(|shared| !shared.sender.is_closed());
        let full = shared.len() >= SHARED;
        let least = shared.iter().min_by_key(|shared| shared.streams())?;
        if least.streams() >= STREAMS && !full {
            return None;
        }
        Some(least.lend())
    }
}

impl SharedConnection {
    fn streams(&self) -> usize {
        self.usage.streams.load(Relaxed)
    }

    fn lend(&self) -> Lent {
        self.usage.streams.fetch_add(1, Relaxed);
        *self.usage.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Lent::Http2(self.sender.clone(), self.usage.clone())
    }
}

/// The first frame of an endpoint says what it offers. By then it has come.
const OFFERS_WITHIN: Duration = Duration::from_millis(250);

impl Peer {
    async fn shared(&self, settings: &Settings) -> io::Result<Lent> {
        if let Some(lent) = self.pool.least_used() {
            return Ok(lent);
        }
        let _turn = self.pool.dialing.lock().await;
        if let Some(lent) = self.pool.least_used() {
            return Ok(lent);
        }
        let made = dial2(self, settings).await?;
        let lent = made.lend();
        self.pool.shared().push(made);
        Ok(lent)
    }

    /// A connection by which the endpoint offers extended CONNECT (RFC 8441), if it does.
    async fn extended(&self, settings: &Settings) -> io::Result<Option<Lent>> {
        let Lent::Http2(sender, usage) = self.shared(settings).await? else { return Ok(None) };
        // Not while it waits: a client that goes meanwhile would leave the count behind.
        usage.streams.fetch_sub(1, Relaxed);
        while !usage.is_extended.load(Relaxed) {
            if usage.made.elapsed() > OFFERS_WITHIN || sender.is_closed() {
                return Ok(None);
            }
            sleep(Duration::from_millis(2)).await;
        }
        usage.streams.fetch_add(1, Relaxed);
        Ok(Some(Lent::Http2(sender, usage)))
    }

    /// A new connection, without a protocol.
    pub(crate) async fn dial(&self, settings: &Settings) -> io::Result<TcpStream> {
        let stream = timeout(settings.timeouts.connect, connect(self.address, settings.mark)).await??;
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

async fn dial2(peer: &Peer, settings: &Settings) -> io::Result<SharedConnection> {
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
    let (sender, mut connection) = made.map_err(io::Error::other)?;
    let now = Instant::now();
    let usage = Arc::new(Usage {
        streams: AtomicUsize::new(0),
        used: Mutex::new(now),
        made: now,
        is_extended: AtomicBool::new(false),
    });
    let noted = usage.clone();
    tokio::spawn(async move {
        // What an endpoint offers comes first, and nobody tells us when: looked at often in the beginning, then no more.
        let mut pause = Duration::from_millis(1);
        while pause < OFFERS_WITHIN {
            if timeout(pause, &mut connection).await.is_ok() {
                return;
            }
            noted.is_extended.store(connection.is_extended_connect_protocol_enabled(), Relaxed);
            pause *= 2;
        }
        let _ = connection.await;
    });
    Ok(SharedConnection { sender, usage })
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

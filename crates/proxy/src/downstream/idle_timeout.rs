//! Timeouts of downstream connections: slow headers, idle connections, and responses that the client does not read.
//!
//! One slow tick per connection replaces a timer per request. It compares counters that requests update: bytes without
//! a request are headers that take too long, no change is idleness, and a response without progress is a stall. In
//! HTTP/2 one stream may stall while others continue: body chunks are counted by the epoch in which they were queued,
//! and none may stay queued for two epochs. A client that takes chunks more slowly than the minimum rate is closed, too.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use listener::ConnectionOwner;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::transport_socket::{ReadAhead, TransportSocket};
use crate::http::body_chunk::BufferBudget;
use crate::overload::eviction::{EvictionSignal, EvictionWait};
use crate::settings::{ProxyOptions, ProxyTimeouts};
use crate::upstream::endpoint::ProxyTime;

/// Counters that requests update; the timeout and the overload manager read them.
#[derive(Debug)]
pub(crate) struct ConnectionActivity {
    pub(crate) budget: Arc<BufferBudget>,
    peer: ConnectionOwner,
    /// The client that the PROXY protocol header of a trusted peer names.
    named: OnceLock<ConnectionOwner>,
    /// Larger for younger connections.
    pub(crate) id: u64,
    opened: ProxyTime,
    /// Body bytes buffered for its requests.
    held: AtomicUsize,
    /// Connections to endpoints that its requests use or wait for.
    sockets: AtomicUsize,
    /// Bytes of response chunks that the client has taken.
    taken: AtomicU64,
    eviction: EvictionSignal,
    /// The last request was refused a slot, or lost it.
    is_refused: AtomicBool,
    requests_started: AtomicU64,
    /// When the last one started, as [`ProxyTime`].
    last_started: AtomicU64,
    requests_ended: AtomicU64,
    chunks_sent: AtomicU64,
    /// Chunks that the client has not read, by the epoch in which they were queued.
    queued: [AtomicU32; EPOCHS],
    epoch: AtomicU8,
}

/// A new connection is not closed for others before: a few round trips of a distant client.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// The current one, two before it, and the next.
const EPOCHS: usize = 4;

impl ConnectionActivity {
    pub(crate) fn new(budget: &Arc<BufferBudget>, peer: ConnectionOwner, id: u64, opened: ProxyTime) -> Self {
        Self {
            budget: budget.clone(),
            peer,
            named: OnceLock::new(),
            id,
            opened,
            held: AtomicUsize::new(0),
            sockets: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            eviction: EvictionSignal::default(),
            is_refused: AtomicBool::new(false),
            requests_started: AtomicU64::new(0),
            last_started: AtomicU64::new(opened.0),
            requests_ended: AtomicU64::new(0),
            chunks_sent: AtomicU64::new(0),
            queued: Default::default(),
            epoch: AtomicU8::new(0),
        }
    }

    /// Whose share the connection uses.
    pub(crate) fn client(&self) -> &ConnectionOwner {
        self.named.get().unwrap_or(&self.peer)
    }

    /// Before its first request: counts the connection for the client that its PROXY protocol header names.
    pub(crate) fn name_client(&self, client: IpAddr) {
        let _ = self.named.set(ConnectionOwner::source(client));
    }

    pub(crate) fn request_started(&self, now: ProxyTime) {
        self.last_started.store(now.0, Ordering::Relaxed);
        self.requests_started.fetch_add(1, Ordering::Relaxed);
    }

    /// When the last request started, or the connection was opened.
    pub(crate) fn last_started(&self) -> ProxyTime {
        ProxyTime(self.last_started.load(Ordering::Relaxed))
    }

    pub(crate) fn request_ended(&self) {
        self.requests_ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it waits for a request, and has had the time to send its first one.
    pub(crate) fn is_idle(&self, now: ProxyTime) -> bool {
        let (started, ended) = self.requests();
        started == ended && (started > 0 || self.opened.plus(FIRST_REQUEST) <= now)
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(crate) fn add_held(&self, bytes: usize) {
        self.held.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn remove_held(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sockets(&self) -> usize {
        self.sockets.load(Ordering::Relaxed)
    }

    pub(crate) fn add_socket(&self) {
        self.sockets.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove_socket(&self) {
        self.sockets.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn add_taken(&self, bytes: usize) {
        self.taken.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    pub(crate) fn set_refused(&self, is_refused: bool) {
        if self.is_refused() != is_refused {
            self.is_refused.store(is_refused, Ordering::Relaxed);
        }
    }

    /// Closes the connection to make room for other clients.
    pub(crate) fn evict(&self) {
        self.eviction.set();
    }

    pub(crate) fn is_evicted(&self) -> bool {
        self.eviction.is_set()
    }

    /// Of the task that serves the connection.
    pub(crate) fn evicted(&self) -> EvictionWait<'_> {
        self.eviction.wait()
    }

    /// Requests started and ended.
    fn requests(&self) -> (u64, u64) {
        (self.requests_started.load(Ordering::Relaxed), self.requests_ended.load(Ordering::Relaxed))
    }

    fn queued(&self, epoch: u8) -> &AtomicU32 {
        &self.queued[usize::from(epoch) % EPOCHS]
    }

    /// Counts a chunk that waits for the client, and returns its epoch.
    pub(crate) fn chunk_queued(&self) -> u8 {
        let epoch = self.epoch.load(Ordering::Relaxed);
        self.queued(epoch).fetch_add(1, Ordering::Relaxed);
        epoch
    }

    /// The chunk was written to the client, or dropped.
    pub(crate) fn chunk_done(&self, epoch: u8) {
        self.chunks_sent.fetch_add(1, Ordering::Relaxed);
        self.queued(epoch).fetch_sub(1, Ordering::Relaxed);
    }

    /// Chunks that wait for the client.
    fn all_queued(&self) -> u64 {
        self.queued.iter().map(|queued| u64::from(queued.load(Ordering::Relaxed))).sum()
    }

    fn has_queued(&self) -> bool {
        self.queued.iter().any(|queued| queued.load(Ordering::Relaxed) > 0)
    }

    /// Starts the next epoch, and reports whether a chunk has been queued for two whole ones.
    fn next_epoch(&self) -> bool {
        let epoch = self.epoch.load(Ordering::Relaxed);
        self.epoch.store(epoch.wrapping_add(1), Ordering::Relaxed);
        self.queued(epoch.wrapping_sub(2)).load(Ordering::Relaxed) > 0
    }
}

/// A downstream connection with its timeouts.
pub(crate) struct DownstreamStream {
    inner: ReadAhead<TransportSocket>,
    activity: Arc<ConnectionActivity>,
    timeout: ClientTimeout,
}

struct ClientTimeout {
    tick: Option<Pin<Box<Sleep>>>,
    /// The limit for the headers of a request; `None` in HTTP/2, where frames do not show it.
    headers: Option<Duration>,
    /// The limit for a client that reads nothing while the buffers of the proxy are full.
    when_full: Duration,
    idle: Duration,
    period: Duration,
    epoch_started: Instant,
    /// The requests started and ended when bytes last arrived.
    requests_at_read: Option<(u64, u64)>,
    writes: u64,
    written: u64,
    /// The minimum rate of a client that chunks wait for, and over which time it is measured.
    min_rate: u64,
    rate_window: Duration,
    /// Since when the client is behind, and the bytes that it had taken then.
    behind: Option<(Instant, u64)>,
    /// The client has not read what was written last.
    is_blocked: bool,
    /// The state at the last tick, and since when.
    seen: (ClientState, Instant),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientState {
    /// Between requests.
    Idle((u64, u64)),
    /// Headers have arrived in part.
    Headers((u64, u64)),
    /// Requests are in flight; the number counts progress of their responses.
    Busy((u64, u64), u64),
    /// A response chunk has been queued for two epochs.
    Stalled,
}

impl DownstreamStream {
    pub(crate) fn new(
        inner: ReadAhead<TransportSocket>,
        activity: Arc<ConnectionActivity>,
        is_http2: bool,
        settings: &ProxyOptions,
    ) -> Self {
        let timeouts: &ProxyTimeouts = &settings.timeouts;
        let shortest = timeouts.headers.min(timeouts.idle);
        let timeout = ClientTimeout {
            tick: None,
            headers: (!is_http2).then_some(timeouts.headers),
            when_full: shortest,
            idle: timeouts.idle,
            period: (shortest / 2).max(Duration::from_millis(5)),
            epoch_started: Instant::now(),
            requests_at_read: None,
            writes: 0,
            written: 0,
            min_rate: settings.limits.min_transfer_rate,
            rate_window: timeouts.transfer,
            behind: None,
            is_blocked: false,
            seen: (ClientState::Idle((0, 0)), Instant::now()),
        };
        Self { inner, activity, timeout }
    }
}

impl ClientTimeout {
    fn state(&self, activity: &ConnectionActivity) -> ClientState {
        let requests = activity.requests();
        if requests.0 != requests.1 || activity.has_queued() {
            // In HTTP/2 writes may be other frames, such as PING, so only chunks count.
            let sent = activity.chunks_sent.load(Ordering::Relaxed);
            ClientState::Busy(requests, if self.headers.is_some() { self.writes } else { sent })
        } else if self.headers.is_some() && self.requests_at_read == Some(requests) {
            ClientState::Headers(requests)
        } else {
            ClientState::Idle(requests)
        }
    }

    /// At a tick, returns the state that has lasted longer than its limit.
    fn poll(&mut self, cx: &mut Context<'_>, activity: &ConnectionActivity) -> Option<ClientState> {
        let period = self.period;
        loop {
            let tick = self.tick.get_or_insert_with(|| Box::pin(sleep(period)));
            if tick.as_mut().poll(cx).is_pending() {
                return None;
            }
            let now = Instant::now();
            tick.as_mut().reset(now + period);
            // HTTP/1.1 has one response at a time, and writes show its progress.
            if self.headers.is_none() && now.duration_since(self.epoch_started) >= self.idle / 2 {
                self.epoch_started = now;
                if activity.next_epoch() {
                    return Some(ClientState::Stalled);
                }
            }
            if self.is_below_rate(now, activity) {
                return Some(ClientState::Stalled);
            }
            let state = self.state(activity);
            if state != self.seen.0 {
                self.seen = (state, now);
                continue;
            }
            let limit = self.limit(state, activity);
            if limit.is_some_and(|limit| now.duration_since(self.seen.1) >= limit) {
                return Some(state);
            }
        }
    }

    /// Whether the client has taken less than the minimum rate for each waiting chunk, over a whole window. Under
    /// pressure the window is shorter. A client that is not behind is idle or waits for an endpoint.
    fn is_below_rate(&mut self, now: Instant, activity: &ConnectionActivity) -> bool {
        let is_http2 = self.headers.is_none();
        let waiting = if is_http2 { activity.all_queued() } else { u64::from(self.is_blocked) };
        if waiting == 0 || self.min_rate == 0 {
            self.behind = None;
            return false;
        }
        let taken = if is_http2 { activity.taken.load(Ordering::Relaxed) } else { self.written };
        let (since, before) = *self.behind.get_or_insert((now, taken));
        let elapsed = now.duration_since(since);
        let is_pressed = activity.budget.is_pressed();
        let window = if is_pressed { self.rate_window.min(self.when_full) } else { self.rate_window };
        if elapsed < window {
            return false;
        }
        self.behind = Some((now, taken));
        let required = u128::from(self.min_rate) * u128::from(waiting) * elapsed.as_millis() / 1000;
        u128::from(taken.wrapping_sub(before)) < required
    }

    /// `None`: no limit.
    fn limit(&self, state: ClientState, activity: &ConnectionActivity) -> Option<Duration> {
        match state {
            ClientState::Headers(_) => Some(self.headers.unwrap_or(self.idle)),
            ClientState::Busy(..) if activity.has_queued() && activity.budget.is_pressed() => {
                Some(self.when_full)
            }
            ClientState::Busy(..) if self.is_blocked => Some(self.idle),
            // The response has timeouts of its own.
            ClientState::Busy(..) => None,
            ClientState::Idle(_) | ClientState::Stalled => Some(self.idle),
        }
    }
}

impl DownstreamStream {
    fn stalled(&self) -> io::Error {
        self.activity.budget.stalled.inc();
        io::Error::new(io::ErrorKind::TimedOut, "client stalled")
    }

    /// Counts a finished write, and checks the timeout of a blocked one.
    fn check_write(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match result {
            Poll::Pending => {
                self.timeout.is_blocked = true;
                match self.timeout.poll(cx, &self.activity) {
                    None => Poll::Pending,
                    Some(_) => Poll::Ready(Err(self.stalled())),
                }
            }
            done => {
                self.timeout.is_blocked = false;
                self.timeout.writes = self.timeout.writes.wrapping_add(1);
                if let Poll::Ready(Ok(count)) = &done {
                    self.timeout.written = self.timeout.written.wrapping_add(*count as u64);
                }
                done
            }
        }
    }
}

impl AsyncRead for DownstreamStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let requests = this.activity.requests();
        match Pin::new(&mut this.inner).poll_read(cx, buf) {
            Poll::Pending => match this.timeout.poll(cx, &this.activity) {
                None => Poll::Pending,
                // Closing an idle connection is not an error.
                Some(ClientState::Idle(_)) => Poll::Ready(Ok(())),
                Some(_) => Poll::Ready(Err(this.stalled())),
            },
            done => {
                this.timeout.requests_at_read = Some(requests);
                done
            }
        }
    }
}

impl AsyncWrite for DownstreamStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.check_write(cx, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.check_write(cx, result)
    }
}

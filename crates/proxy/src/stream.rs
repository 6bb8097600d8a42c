//! A client's connection: plain or TLS, with what was read ahead, and a watch against clients that stall.
//!
//! The watch ticks slowly for each connection instead of arming a timer for each request. It looks at counters that
//! requests leave behind: bytes without a request are a head that takes too long, nothing at all is idleness, and
//! an answer that nobody takes is a stall. In HTTP/2 one stream may stall while others go on: so pieces of answers
//! are counted by the epoch in which they were handed on, and none may stay for two.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::server::TlsStream;

use crate::piece::Budget;
use crate::settings::Timeouts;

/// What carries the bytes.
pub(crate) enum Carrier {
    Plain(TcpStream),
    Tls(Box<TlsStream<Ahead<TcpStream>>>),
}

/// A stream of which some bytes were read before.
pub(crate) struct Ahead<T> {
    ahead: Bytes,
    inner: T,
}

impl<T> Ahead<T> {
    pub(crate) fn new(ahead: Bytes, inner: T) -> Self {
        Self { ahead, inner }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Ahead<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buf);
        }
        let count = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..count]);
        self.ahead.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Ahead<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
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
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }
}

impl AsyncRead for Carrier {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Carrier {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }
}

/// What the requests of a connection leave behind for its watch.
#[derive(Debug)]
pub(crate) struct Activity {
    pub(crate) budget: Arc<Budget>,
    begun: AtomicU64,
    ended: AtomicU64,
    taken: AtomicU64,
    /// Pieces that the client has yet to take, by the epoch in which they were handed on.
    out: [AtomicU32; EPOCHS],
    epoch: AtomicU8,
}

/// The current one, two before it, and the next.
const EPOCHS: usize = 4;

impl Activity {
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self {
            budget: budget.clone(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            out: Default::default(),
            epoch: AtomicU8::new(0),
        }
    }

    pub(crate) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn seen(&self) -> (u64, u64) {
        (self.begun.load(Ordering::Relaxed), self.ended.load(Ordering::Relaxed))
    }

    fn out(&self, epoch: u8) -> &AtomicU32 {
        &self.out[usize::from(epoch) % EPOCHS]
    }

    /// A piece waits for the client. The epoch that it is of.
    pub(crate) fn hand_on(&self) -> u8 {
        let epoch = self.epoch.load(Ordering::Relaxed);
        self.out(epoch).fetch_add(1, Ordering::Relaxed);
        epoch
    }

    /// The client took it, or nobody wants it any more.
    pub(crate) fn taken(&self, epoch: u8) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.out(epoch).fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the client could take something and has not.
    fn is_owed(&self) -> bool {
        self.out.iter().any(|out| out.load(Ordering::Relaxed) > 0)
    }

    /// Begins an epoch. Whether a piece has waited for two whole ones.
    fn advance(&self) -> bool {
        let epoch = self.epoch.load(Ordering::Relaxed);
        self.epoch.store(epoch.wrapping_add(1), Ordering::Relaxed);
        self.out(epoch.wrapping_sub(2)).load(Ordering::Relaxed) > 0
    }
}

/// A client's connection as requests are read from it and answered.
pub(crate) struct ClientStream {
    inner: Ahead<Carrier>,
    activity: Arc<Activity>,
    watch: Watch,
}

/// When to give up on a client.
struct Watch {
    tick: Option<Pin<Box<Sleep>>>,
    /// How long a head may take; `None` where heads come in frames and nobody can tell.
    headers: Option<Duration>,
    /// How long a client may take nothing when there is no room for others.
    hurry: Duration,
    idle: Duration,
    period: Duration,
    /// When the epoch of pieces began.
    epoch: Instant,
    /// How requests stood when bytes last came.
    read_at: Option<(u64, u64)>,
    writes: u64,
    /// Whether the client has yet to take what was written last.
    is_blocked: bool,
    /// What the last tick saw, and since when it has been so.
    seen: (State, Instant),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Between requests.
    Idle((u64, u64)),
    /// Some bytes of a head are there.
    Head((u64, u64)),
    /// Requests are served, so many writes and pieces have been taken.
    Busy((u64, u64), u64),
    /// A piece of an answer has waited for two epochs.
    Stuck,
}

impl ClientStream {
    /// `is_framed`: HTTP/2, where bytes without a request mean nothing.
    pub(crate) fn new(
        inner: Ahead<Carrier>,
        activity: Arc<Activity>,
        is_framed: bool,
        timeouts: &Timeouts,
    ) -> Self {
        let shortest = timeouts.headers.min(timeouts.idle);
        let watch = Watch {
            tick: None,
            headers: (!is_framed).then_some(timeouts.headers),
            hurry: shortest,
            idle: timeouts.idle,
            period: (shortest / 2).max(Duration::from_millis(5)),
            epoch: Instant::now(),
            read_at: None,
            writes: 0,
            is_blocked: false,
            seen: (State::Idle((0, 0)), Instant::now()),
        };
        Self { inner, activity, watch }
    }
}

impl Watch {
    fn state(&self, activity: &Activity) -> State {
        let requests = activity.seen();
        if requests.0 != requests.1 || activity.is_owed() {
            // Frames that are no piece, as answers to PING, are no sign that answers are taken.
            let taken = activity.taken.load(Ordering::Relaxed);
            State::Busy(requests, if self.headers.is_some() { self.writes } else { taken })
        } else if self.headers.is_some() && self.read_at == Some(requests) {
            State::Head(requests)
        } else {
            State::Idle(requests)
        }
    }

    /// Looks at the clock, if a tick is due, and says what has lasted too long.
    fn poll(&mut self, cx: &mut Context<'_>, activity: &Activity) -> Option<State> {
        let period = self.period;
        loop {
            let tick = self.tick.get_or_insert_with(|| Box::pin(sleep(period)));
            if tick.as_mut().poll(cx).is_pending() {
                return None;
            }
            let now = Instant::now();
            tick.as_mut().reset(now + period);
            // In HTTP/1.1 there is one answer at a time, and writes show whether it moves.
            if self.headers.is_none() && now.duration_since(self.epoch) >= self.idle / 2 {
                self.epoch = now;
                if activity.advance() {
                    return Some(State::Stuck);
                }
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

    /// How long a state may last; any time, if nothing is said.
    fn limit(&self, state: State, activity: &Activity) -> Option<Duration> {
        match state {
            State::Head(_) => Some(self.headers.unwrap_or(self.idle)),
            State::Busy(..) if activity.is_owed() && activity.budget.is_spent() => Some(self.hurry),
            State::Busy(..) if self.is_blocked => Some(self.idle),
            // A client may wait for its answer: other clocks run for that.
            State::Busy(..) => None,
            State::Idle(_) | State::Stuck => Some(self.idle),
        }
    }
}

impl ClientStream {
    fn stalled(&self) -> io::Error {
        self.activity.budget.stalled.add();
        io::Error::new(io::ErrorKind::TimedOut, "the client stalled")
    }

    /// A write that has to wait is watched; one that does not is counted.
    fn watched<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match result {
            Poll::Pending => {
                self.watch.is_blocked = true;
                match self.watch.poll(cx, &self.activity) {
                    None => Poll::Pending,
                    Some(_) => Poll::Ready(Err(self.stalled())),
                }
            }
            done => {
                self.watch.is_blocked = false;
                self.watch.writes = self.watch.writes.wrapping_add(1);
                done
            }
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let requests = this.activity.seen();
        match Pin::new(&mut this.inner).poll_read(cx, buf) {
            Poll::Pending => match this.watch.poll(cx, &this.activity) {
                None => Poll::Pending,
                // The end of an unused connection is no error.
                Some(State::Idle(_)) => Poll::Ready(Ok(())),
                Some(_) => Poll::Ready(Err(this.stalled())),
            },
            done => {
                this.watch.read_at = Some(requests);
                done
            }
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.watched(cx, result)
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
        self.watched(cx, result)
    }
}

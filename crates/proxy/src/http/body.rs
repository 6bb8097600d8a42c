//! Bodies of requests, responses and mirrored requests. They stream; buffered bytes are counted (`body_chunk`), and a
//! body without progress ends at the idle timeout. A request body also has a minimum rate, if its length is known, and a
//! deadline.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep_until};

use super::body_chunk::{BodyChunk, BodyReadAhead};
use crate::downstream::connection::HttpConnection;
use crate::downstream::idle_timeout::ConnectionActivity;
use crate::proxy::ProxyShared;
use crate::request_log::RequestLog;
use crate::settings::ProxyOptions;
use crate::upstream::connection_pool::PooledConnection;

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("body exceeds the limit")]
    TooLong,
    #[error("body idle timeout")]
    Stalled,
    #[error("mirror is too slow")]
    MirrorTooSlow,
    #[error(transparent)]
    Transport(#[from] hyper::Error),
}

/// The idle timeout of a body: one timer, armed only if the body has to wait, checked once per period.
#[derive(Debug)]
struct BodyIdleTimer {
    limit: Duration,
    /// Bytes that have to arrive in a period of waiting.
    required: u64,
    deadline: Option<Instant>,
    moved: u64,
    /// Since when the body waits, and how long it waited before in this period: only waiting for the peer counts.
    waits_since: Option<Instant>,
    waited: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl BodyIdleTimer {
    fn new(limit: Duration) -> Self {
        Self {
            limit,
            required: 1,
            deadline: None,
            moved: 0,
            waits_since: None,
            waited: Duration::ZERO,
            timer: None,
        }
    }

    /// Of a request: with a deadline, and a minimum rate if the client knows the length and has no reason to wait.
    fn of_request(settings: &ProxyOptions, length: &SizeHint) -> Self {
        let (limits, timeouts) = (&settings.limits, &settings.timeouts);
        let mut timer = Self::new(timeouts.idle);
        timer.deadline = timeouts.request.map(|limit| Instant::now() + limit);
        if length.exact().is_some() && limits.min_transfer_rate > 0 && timeouts.transfer < timeouts.idle {
            timer.limit = timeouts.transfer;
            let required = u128::from(limits.min_transfer_rate) * timeouts.transfer.as_millis() / 1000;
            timer.required = u64::try_from(required).unwrap_or(u64::MAX).max(1);
        }
        timer
    }

    /// A frame arrived; one without data counts, too.
    fn progressed(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes.max(1) as u64);
        if let Some(since) = self.waits_since.take() {
            self.waited = (self.waited + since.elapsed()).min(self.limit);
        }
    }

    /// Polled while the body waits; true at the deadline, and after a whole period with too little progress.
    fn is_expired(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            let since = *self.waits_since.get_or_insert_with(Instant::now);
            let period_end = since + self.limit.saturating_sub(self.waited);
            let end = self.deadline.map_or(period_end, |deadline| deadline.min(period_end));
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
            // It may have been set for an earlier wait.
            if timer.is_elapsed() {
                timer.as_mut().reset(end);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return false;
            }
            let now = Instant::now();
            if self.deadline.is_some_and(|deadline| now >= deadline) {
                return true;
            }
            if now >= period_end {
                if self.moved < self.required {
                    return true;
                }
                (self.moved, self.waited, self.waits_since) = (0, Duration::ZERO, Some(now));
            }
        }
    }
}

/// The body of an upstream request.
#[derive(Debug)]
pub(crate) enum RequestBody {
    Empty,
    Client(Box<ClientBody>),
    Mirror(MirrorBody),
    /// Read whole before it is sent, so that it can be sent again.
    Buffered(Option<BodyChunk>),
}

/// Streamed from the client.
#[derive(Debug)]
pub(crate) struct ClientBody {
    incoming: Incoming,
    activity: Arc<ConnectionActivity>,
    bytes_left: u64,
    idle: BodyIdleTimer,
    read_ahead: BodyReadAhead,
    mirrors: Vec<MirrorSender>,
    /// Counts frames: the response timeout starts when the request stops making progress.
    progress: Arc<AtomicU64>,
}

type PolledFrame = Poll<Option<Result<Frame<BodyChunk>, BodyError>>>;

impl RequestBody {
    /// `progress` is `None` for an empty body.
    pub(crate) fn new(
        connection: &HttpConnection,
        incoming: Incoming,
        mirrors: Vec<MirrorSender>,
        progress: Option<Arc<AtomicU64>>,
    ) -> Self {
        let Some(progress) = progress else { return Self::Empty };
        let settings = &connection.proxy.settings;
        let length = incoming.size_hint();
        let read_ahead = BodyReadAhead::new(settings.limits.buffer);
        Self::Client(Box::new(ClientBody {
            incoming,
            activity: connection.activity.clone(),
            bytes_left: settings.limits.body_bytes,
            idle: BodyIdleTimer::of_request(settings, &length),
            read_ahead,
            mirrors,
            progress,
        }))
    }
}

impl ClientBody {
    fn poll(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        // Waiting for room is not idleness: the bodies that hold it have timeouts of their own.
        if self.read_ahead.poll_room(cx, &self.activity, &self.incoming.size_hint()).is_pending() {
            return Poll::Pending;
        }
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Pending => {
                self.read_ahead.clear();
                if self.idle.is_expired(cx) { self.fail(BodyError::Stalled) } else { Poll::Pending }
            }
            Poll::Ready(None) => {
                self.read_ahead.clear();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => self.fail(error.into()),
            Poll::Ready(Some(Ok(frame))) => {
                self.idle.progressed(frame.data_ref().map_or(0, Bytes::len));
                self.progress.fetch_add(1, Ordering::Relaxed);
                let frame = frame.map_data(|bytes| BodyChunk::to_endpoint(bytes, &self.activity));
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                let Some(left) = self.bytes_left.checked_sub(length) else {
                    return self.fail(BodyError::TooLong);
                };
                self.bytes_left = left;
                self.mirrors.retain(|mirror| mirror.send(&frame));
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn fail(&mut self, error: BodyError) -> PolledFrame {
        self.mirrors.drain(..).for_each(|mirror| mirror.cut());
        Poll::Ready(Some(Err(error)))
    }
}

impl Body for RequestBody {
    type Data = BodyChunk;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Client(body) => body.poll(cx),
            Self::Mirror(body) => body.poll(cx),
            Self::Buffered(chunk) => Poll::Ready(chunk.take().map(|chunk| Ok(Frame::data(chunk)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Client(body) => body.incoming.is_end_stream(),
            Self::Mirror(_) => false,
            Self::Buffered(chunk) => chunk.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Client(body) => body.incoming.size_hint(),
            Self::Mirror(body) => body.length,
            Self::Buffered(chunk) => {
                SizeHint::with_exact(chunk.as_ref().map_or(0, |chunk| chunk.len() as u64))
            }
        }
    }
}

/// Frames that a mirror may lag behind.
const MIRROR_LAG: usize = 16;

#[derive(Debug)]
pub(crate) struct MirrorSender {
    frames: mpsc::Sender<Frame<BodyChunk>>,
    is_cut: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(crate) struct MirrorBody {
    frames: mpsc::Receiver<Frame<BodyChunk>>,
    is_cut: Arc<AtomicBool>,
    length: SizeHint,
}

/// The body of a mirrored request, and the sender of its frames.
pub(crate) fn mirror(length: SizeHint) -> (MirrorSender, MirrorBody) {
    let (sender, frames) = mpsc::channel(MIRROR_LAG);
    let is_cut = Arc::new(AtomicBool::new(false));
    (MirrorSender { frames: sender, is_cut: is_cut.clone() }, MirrorBody { frames, is_cut, length })
}

impl MirrorSender {
    /// Never waits: a slow mirror must not slow the request. Returns false once the mirror is cut off.
    fn send(&self, frame: &Frame<BodyChunk>) -> bool {
        let copied = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => data.copy().map(Frame::data),
            (None, Some(trailers)) => Some(Frame::trailers(HeaderMap::clone(trailers))),
            (None, None) => return true,
        };
        let sent = copied.is_some_and(|copied| self.frames.try_send(copied).is_ok());
        if !sent {
            self.cut();
        }
        sent
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
    }
}

impl MirrorBody {
    fn poll(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        match self.frames.poll_recv(cx) {
            // A truncated copy must not look complete.
            Poll::Ready(None) if self.is_cut.load(Ordering::Acquire) => {
                Poll::Ready(Some(Err(BodyError::MirrorTooSlow)))
            }
            other => other.map(|frame| frame.map(Ok)),
        }
    }
}

/// The body of a response, with the log of its request: dropping it ends the request.
pub(crate) struct ResponseBody {
    content: ResponseContent,
    request_log: RequestLog,
}

#[allow(clippy::large_enum_variant, reason = "nearly all responses are the large one")]
enum ResponseContent {
    Local(Option<Bytes>),
    Upstream(UpstreamBody),
}

struct UpstreamBody {
    incoming: Incoming,
    connection: PooledConnection,
    idle: BodyIdleTimer,
    read_ahead: BodyReadAhead,
}

impl UpstreamBody {
    fn poll(&mut self, cx: &mut Context<'_>, activity: &Arc<ConnectionActivity>) -> PolledFrame {
        if self.read_ahead.poll_room(cx, activity, &self.incoming.size_hint()).is_pending() {
            return Poll::Pending;
        }
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Pending => {
                self.read_ahead.clear();
                if self.idle.is_expired(cx) {
                    return Poll::Ready(Some(Err(BodyError::Stalled)));
                }
                Poll::Pending
            }
            Poll::Ready(frame) => {
                self.idle.progressed(0);
                if frame.is_none() || self.incoming.is_end_stream() {
                    self.read_ahead.clear();
                    self.connection.release();
                }
                let chunk =
                    |frame: Frame<Bytes>| frame.map_data(|bytes| BodyChunk::to_client(bytes, activity));
                Poll::Ready(frame.map(|frame| frame.map(chunk).map_err(BodyError::from)))
            }
        }
    }
}

impl ResponseBody {
    /// The body of a local reply.
    pub(crate) fn local(bytes: Bytes, request_log: RequestLog) -> Self {
        Self { content: ResponseContent::Local(Some(bytes).filter(|bytes| !bytes.is_empty())), request_log }
    }

    pub(crate) fn upstream(
        incoming: Incoming,
        mut connection: PooledConnection,
        proxy: &ProxyShared,
        deadline: Option<Instant>,
        request_log: RequestLog,
    ) -> Self {
        if incoming.is_end_stream() {
            connection.release();
        }
        let read_ahead = BodyReadAhead::new(proxy.settings.limits.buffer);
        request_log.begin_streaming();
        let mut idle = BodyIdleTimer::new(proxy.settings.timeouts.idle);
        idle.deadline = deadline;
        let body = UpstreamBody { incoming, connection, idle, read_ahead };
        Self { content: ResponseContent::Upstream(body), request_log }
    }
}

impl Body for ResponseBody {
    type Data = BodyChunk;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let this = &mut *self;
        let frame = match &mut this.content {
            ResponseContent::Local(bytes) => {
                let chunk = |bytes| Ok(Frame::data(BodyChunk::uncounted(bytes, this.request_log.activity())));
                Poll::Ready(bytes.take().map(chunk))
            }
            ResponseContent::Upstream(body) => body.poll(cx, this.request_log.activity()),
        };
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                this.request_log.sent += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
            Poll::Ready(Some(Err(_))) => this.request_log.is_incomplete = true,
            _ => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            ResponseContent::Local(bytes) => bytes.is_none(),
            ResponseContent::Upstream(body) => body.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            ResponseContent::Local(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            ResponseContent::Upstream(body) => body.incoming.size_hint(),
        }
    }
}

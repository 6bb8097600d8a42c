//! Bodies on their way: of requests to endpoints, of answers to clients, and copies for mirrors. They stream; what
//! is held is counted (piece), and one that stands still for too long is ended.

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
use tokio::time::{Sleep, sleep};

use crate::connection::Connection;
use crate::piece::{Behind, Piece};
use crate::pool::Lease;
use crate::proxy::Inner;
use crate::stream::Activity;
use crate::ticket::Ticket;

/// Why a body ended before its time.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the body is longer than allowed")]
    TooLong,
    #[error("the body stood still for too long")]
    Stalled,
    #[error("the copy could not keep up")]
    Cut,
    #[error(transparent)]
    Broken(#[from] hyper::Error),
}

/// Ends what stands still. One timer for a body that has to wait at all, looked at once per period.
#[derive(Debug)]
pub(crate) struct Stall {
    limit: Duration,
    has_moved: bool,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, has_moved: false, timer: None }
    }

    pub(crate) fn moved(&mut self) {
        self.has_moved = true;
    }

    /// Called when there is nothing to do. Whether it has been so for the whole period.
    pub(crate) fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        while timer.as_mut().poll(cx).is_ready() {
            if !std::mem::take(&mut self.has_moved) {
                return true;
            }
            timer.as_mut().reset(tokio::time::Instant::now() + limit);
        }
        false
    }
}

/// The body of a request to an endpoint.
#[derive(Debug)]
pub(crate) enum OutBody {
    Empty,
    Client(Box<ClientBody>),
    Copy(CopyBody),
}

/// What a client sends.
#[derive(Debug)]
pub(crate) struct ClientBody {
    incoming: Incoming,
    activity: Arc<Activity>,
    left: u64,
    stall: Stall,
    behind: Behind,
    copies: Vec<CopySender>,
    /// Grows with every frame, so that whoever waits for the answer sees the request is not done.
    progress: Arc<AtomicU64>,
}

type Polled = Poll<Option<Result<Frame<Piece>, BodyError>>>;

impl OutBody {
    /// `progress` is there unless the body is empty.
    pub(crate) fn new(
        connection: &Connection,
        incoming: Incoming,
        copies: Vec<CopySender>,
        progress: Option<Arc<AtomicU64>>,
    ) -> Self {
        let Some(progress) = progress else { return Self::Empty };
        let settings = &connection.proxy.settings;
        let behind = Behind::new(&connection.proxy.budget, settings.limits.buffer, &incoming.size_hint());
        Self::Client(Box::new(ClientBody {
            incoming,
            activity: connection.activity.clone(),
            left: settings.limits.body_bytes,
            stall: Stall::new(settings.timeouts.idle),
            behind,
            copies,
            progress,
        }))
    }
}

impl ClientBody {
    fn poll(&mut self, cx: &mut Context<'_>) -> Polled {
        // Nobody stands still who waits for room: those who hold it have clocks of their own.
        if self.behind.poll_room(cx).is_pending() {
            return Poll::Pending;
        }
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Pending => {
                self.behind.is_empty();
                if self.stall.is_over(cx) { self.fail(BodyError::Stalled) } else { Poll::Pending }
            }
            Poll::Ready(None) => {
                self.behind.is_empty();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => self.fail(error.into()),
            Poll::Ready(Some(Ok(frame))) => {
                self.stall.moved();
                self.progress.fetch_add(1, Ordering::Relaxed);
                let frame = frame.map_data(|bytes| Piece::to_endpoint(bytes, &self.activity));
                self.behind.waits(&self.incoming.size_hint());
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                let Some(left) = self.left.checked_sub(length) else { return self.fail(BodyError::TooLong) };
                self.left = left;
                self.copies.retain(|copy| copy.send(&frame));
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn fail(&mut self, error: BodyError) -> Polled {
        self.copies.drain(..).for_each(|copy| copy.cut());
        Poll::Ready(Some(Err(error)))
    }
}

impl Body for OutBody {
    type Data = Piece;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Client(body) => body.poll(cx),
            Self::Copy(body) => body.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Client(body) => body.incoming.is_end_stream(),
            Self::Copy(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Client(body) => body.incoming.size_hint(),
            Self::Copy(body) => body.length,
        }
    }
}

/// Frames that a copy may lag behind.
const LAG: usize = 16;

/// Where a body's frames are copied to.
#[derive(Debug)]
pub(crate) struct CopySender {
    frames: mpsc::Sender<Frame<Piece>>,
    is_cut: Arc<AtomicBool>,
}

/// The body of a copied request.
#[derive(Debug)]
pub(crate) struct CopyBody {
    frames: mpsc::Receiver<Frame<Piece>>,
    is_cut: Arc<AtomicBool>,
    length: SizeHint,
}

/// A body that gets what another one gets.
pub(crate) fn copy(length: SizeHint) -> (CopySender, CopyBody) {
    let (sender, frames) = mpsc::channel(LAG);
    let is_cut = Arc::new(AtomicBool::new(false));
    (CopySender { frames: sender, is_cut: is_cut.clone() }, CopyBody { frames, is_cut, length })
}

impl CopySender {
    /// Never waits: a slow mirror must not slow the request. Whether the copy goes on.
    fn send(&self, frame: &Frame<Piece>) -> bool {
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

impl CopyBody {
    fn poll(&mut self, cx: &mut Context<'_>) -> Polled {
        match self.frames.poll_recv(cx) {
            // What was cut must not look like what is whole.
            Poll::Ready(None) if self.is_cut.load(Ordering::Acquire) => {
                Poll::Ready(Some(Err(BodyError::Cut)))
            }
            other => other.map(|frame| frame.map(Ok)),
        }
    }
}

/// The body of an answer, with the account of its request: when this is gone, the request is over.
pub(crate) struct AnswerBody {
    content: Content,
    pub(crate) ticket: Ticket,
}

enum Content {
    Own(Option<Bytes>),
    Endpoint(Answering),
}

/// What an endpoint says, and the place there.
struct Answering {
    incoming: Incoming,
    lease: Lease,
    stall: Stall,
    behind: Behind,
}

impl Answering {
    fn poll(&mut self, cx: &mut Context<'_>, activity: &Arc<Activity>) -> Polled {
        if self.behind.poll_room(cx).is_pending() {
            return Poll::Pending;
        }
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Pending => {
                self.behind.is_empty();
                if self.stall.is_over(cx) {
                    return Poll::Ready(Some(Err(BodyError::Stalled)));
                }
                Poll::Pending
            }
            Poll::Ready(frame) => {
                self.stall.moved();
                if frame.is_none() || self.incoming.is_end_stream() {
                    self.behind.is_empty();
                    self.lease.give_back();
                } else {
                    self.behind.waits(&self.incoming.size_hint());
                }
                let piece = |frame: Frame<Bytes>| frame.map_data(|bytes| Piece::to_client(bytes, activity));
                Poll::Ready(frame.map(|frame| frame.map(piece).map_err(BodyError::from)))
            }
        }
    }
}

impl AnswerBody {
    /// What the proxy says itself.
    pub(crate) fn own(bytes: Bytes, ticket: Ticket) -> Self {
        Self { content: Content::Own(Some(bytes).filter(|bytes| !bytes.is_empty())), ticket }
    }

    /// What an endpoint says.
    pub(crate) fn of_endpoint(incoming: Incoming, mut lease: Lease, proxy: &Inner, ticket: Ticket) -> Self {
        if incoming.is_end_stream() {
            lease.give_back();
        }
        let behind = Behind::new(&proxy.budget, proxy.settings.limits.buffer, &incoming.size_hint());
        let stall = Stall::new(proxy.settings.timeouts.idle);
        Self { content: Content::Endpoint(Answering { incoming, lease, stall, behind }), ticket }
    }
}

impl Body for AnswerBody {
    type Data = Piece;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let this = &mut *self;
        let frame = match &mut this.content {
            Content::Own(bytes) => {
                let piece = |bytes| Ok(Frame::data(Piece::own(bytes, this.ticket.activity())));
                Poll::Ready(bytes.take().map(piece))
            }
            Content::Endpoint(answering) => answering.poll(cx, this.ticket.activity()),
        };
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                this.ticket.sent += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
            Poll::Ready(Some(Err(_))) => this.ticket.is_broken = true,
            _ => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Own(bytes) => bytes.is_none(),
            Content::Endpoint(answering) => answering.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Content::Endpoint(answering) => answering.incoming.size_hint(),
        }
    }
}

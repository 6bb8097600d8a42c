//! Bodies on their way: of requests to endpoints, of answers to clients, and copies for mirrors. They stream; what
//! is held is a frame at a time, and one that stands still for too long is ended.

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

use crate::pool::Lease;
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
    left: u64,
    stall: Stall,
    copies: Vec<CopySender>,
    /// Grows with every frame, so that whoever waits for the answer sees the request is not done.
    progress: Arc<AtomicU64>,
}

impl OutBody {
    /// `progress` is there unless the body is empty.
    pub(crate) fn new(
        incoming: Incoming,
        limit: u64,
        idle: Duration,
        copies: Vec<CopySender>,
        progress: Option<Arc<AtomicU64>>,
    ) -> Self {
        let Some(progress) = progress else { return Self::Empty };
        let stall = Stall::new(idle);
        Self::Client(Box::new(ClientBody { incoming, left: limit, stall, copies, progress }))
    }
}

impl ClientBody {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Pending if self.stall.is_over(cx) => self.fail(BodyError::Stalled),
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(Err(error))) => self.fail(error.into()),
            Poll::Ready(Some(Ok(frame))) => {
                self.stall.moved();
                self.progress.fetch_add(1, Ordering::Relaxed);
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                let Some(left) = self.left.checked_sub(length) else { return self.fail(BodyError::TooLong) };
                self.left = left;
                self.copies.retain(|copy| copy.send(&frame));
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn fail(&mut self, error: BodyError) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.copies.drain(..).for_each(|copy| copy.cut());
        Poll::Ready(Some(Err(error)))
    }
}

impl Body for OutBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
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
    frames: mpsc::Sender<Frame<Bytes>>,
    is_cut: Arc<AtomicBool>,
}

/// The body of a copied request.
#[derive(Debug)]
pub(crate) struct CopyBody {
    frames: mpsc::Receiver<Frame<Bytes>>,
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
    fn send(&self, frame: &Frame<Bytes>) -> bool {
        let copied = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => Frame::data(data.clone()),
            (None, Some(trailers)) => Frame::trailers(HeaderMap::clone(trailers)),
            (None, None) => return true,
        };
        let sent = self.frames.try_send(copied).is_ok();
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
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
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
    Endpoint { incoming: Incoming, lease: Lease, stall: Stall },
}

impl AnswerBody {
    /// What the proxy says itself.
    pub(crate) fn own(bytes: Bytes, ticket: Ticket) -> Self {
        Self { content: Content::Own(Some(bytes).filter(|bytes| !bytes.is_empty())), ticket }
    }

    /// What an endpoint says.
    pub(crate) fn of_endpoint(incoming: Incoming, mut lease: Lease, idle: Duration, ticket: Ticket) -> Self {
        if incoming.is_end_stream() {
            lease.give_back();
        }
        Self { content: Content::Endpoint { incoming, lease, stall: Stall::new(idle) }, ticket }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let frame = match &mut this.content {
            Content::Own(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Content::Endpoint { incoming, lease, stall } => match Pin::new(&mut *incoming).poll_frame(cx) {
                Poll::Pending if stall.is_over(cx) => Poll::Ready(Some(Err(BodyError::Stalled))),
                Poll::Pending => Poll::Pending,
                Poll::Ready(frame) => {
                    stall.moved();
                    if frame.is_none() || incoming.is_end_stream() {
                        lease.give_back();
                    }
                    Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)))
                }
            },
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
            Content::Endpoint { incoming, .. } => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Content::Endpoint { incoming, .. } => incoming.size_hint(),
        }
    }
}

//! The way from a party's `kube::Client` to the API: a tower service that hands requests to the simulated network and
//! gives back what the network delivers.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};
use kube::Client;
use tokio::sync::{mpsc, oneshot, watch};

use crate::upgrade::ControllerVersion;

/// A connection that ended before its response did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkError(pub &'static str);

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for LinkError {}

pub(crate) type LinkResponse = Result<Response<LinkBody>, LinkError>;

/// A request that a party sent.
pub struct SentRequest {
    pub party: usize,
    pub request: Request<Bytes>,
    pub reply: oneshot::Sender<LinkResponse>,
    /// Whether the party led when it sent this; `None` for parties that do not run for election.
    pub is_leading: Option<bool>,
}

/// Requests that the network has not taken yet.
#[derive(Clone, Default)]
pub(crate) struct Outbox(Arc<Mutex<VecDeque<SentRequest>>>);

impl Outbox {
    fn queue(&self) -> MutexGuard<'_, VecDeque<SentRequest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, request: SentRequest) {
        self.queue().push_back(request);
    }

    pub(crate) fn take(&self) -> Option<SentRequest> {
        self.queue().pop_front()
    }
}

/// One party's way to the API.
#[derive(Clone)]
pub(crate) struct Link {
    pub party: usize,
    pub outbox: Outbox,
    /// Set by parties that run for election.
    pub leading: Arc<OnceLock<watch::Receiver<bool>>>,
    /// The version of the party.
    pub version: ControllerVersion,
}

impl Link {
    pub(crate) fn new(party: usize, outbox: &Outbox) -> Self {
        let (leading, version) = (Arc::default(), ControllerVersion::This);
        Self { party, outbox: outbox.clone(), leading, version }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.clone(), "default")
    }

    /// Sends a request; the receiver gets the response. Responses are not compressed: what they say is checked on the way.
    pub(crate) fn send(&self, mut request: Request<Bytes>) -> oneshot::Receiver<LinkResponse> {
        let (reply, response) = oneshot::channel();
        request.headers_mut().remove(http::header::ACCEPT_ENCODING);
        let is_leading = self.leading.get().map(|leading| *leading.borrow());
        let party = self.party;
        if let Some(own) = self.version.response(&request) {
            let _ = reply.send(Ok(own));
            return response;
        }
        let request = self.version.rewrite(request);
        self.outbox.push(SentRequest { party, request, reply, is_leading });
        response
    }
}

impl tower::Service<Request<kube::client::Body>> for Link {
    type Response = Response<LinkBody>;
    type Error = LinkError;
    type Future = Pin<Box<dyn Future<Output = LinkResponse> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let link = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map_err(|_| LinkError("unreadable request body"))?.to_bytes();
            let response = link.send(Request::from_parts(head, body));
            response.await.unwrap_or(Err(LinkError("connection closed")))
        })
    }
}

/// The body of a response: whole, or a stream of what the network delivers.
#[derive(Debug)]
pub enum LinkBody {
    Whole(Option<Bytes>),
    Stream(mpsc::UnboundedReceiver<Result<Bytes, LinkError>>),
}

impl Body for LinkBody {
    type Data = Bytes;
    type Error = LinkError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, LinkError>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(frames) => {
                frames.poll_recv(context).map(|item| item.map(|item| item.map(Frame::data)))
            }
        }
    }
}

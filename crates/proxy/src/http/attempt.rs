//! One attempt of a request: on one connection to one endpoint.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body::{Body, Incoming};
use tokio::time::{Instant, Sleep, sleep};

use super::body::{BodyError, RequestBody};
use super::forward::translate;
use super::upgrade::{NOT_OFFERED, UpgradeRequest};
use crate::proxy_protocol::ConnectionAddresses;
use crate::upstream::connection_pool::{Http1Reuse, PooledConnection, Purpose, UpstreamSender};

/// The same for all attempts of a request.
pub(super) struct AttemptContext<'s> {
    pub(super) upgrade: Option<&'s UpgradeRequest>,
    pub(super) purpose: Purpose,
    /// The connection that the request came by.
    pub(super) from: ConnectionAddresses,
    /// Frames of the request body sent so far; `None` for an empty one.
    pub(super) progress: Option<&'s AtomicU64>,
    /// From the end of the request to the headers of the response.
    pub(super) response_timeout: Duration,
}

/// An attempt without a response.
pub(super) struct FailedAttempt {
    /// The request, if no endpoint has seen it.
    pub(super) request: Option<Request<RequestBody>>,
    pub(super) status: StatusCode,
    /// What the status does not say.
    pub(super) reason: Option<&'static str>,
    /// Counts for outlier detection.
    pub(super) is_endpoint_fault: bool,
}

impl FailedAttempt {
    pub(super) fn by_endpoint(status: StatusCode) -> Self {
        Self { request: None, status, reason: None, is_endpoint_fault: true }
    }

    /// 503 without a fault of an endpoint.
    pub(super) fn by_proxy(reason: Option<&'static str>) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self { request: None, status, reason, is_endpoint_fault: false }
    }
}

/// Sends a request on a connection. A safe request without a body is handed back if the connection was reused and closed
/// meanwhile.
pub(super) async fn send(
    mut connection: PooledConnection,
    mut request: Request<RequestBody>,
    context: &AttemptContext<'_>,
) -> Result<(Response<Incoming>, PooledConnection), FailedAttempt> {
    translate(&mut request, &connection);
    match context.upgrade {
        Some(upgrade) if connection.is_http2() => upgrade.write_http2(&mut request),
        Some(upgrade) => upgrade.write_http1(&mut request),
        None => {}
    }
    // The endpoint may close an idle connection at any time; a safe request is then sent on another one.
    let copy = (connection.is_reused && is_safe(request.method()) && request.body().is_end_stream())
        .then(|| RequestCopy::of(&request, &mut connection.reuse));
    let (progress, response_timeout) = (context.progress, context.response_timeout);
    let sent = match &mut connection.sender {
        Some(UpstreamSender::Http1(sender)) => {
            let timer = connection.reuse.timer.get_or_insert_with(|| Box::pin(sleep(response_timeout)));
            within(timer.as_mut(), response_timeout, progress, sender.try_send_request(request)).await
        }
        Some(UpstreamSender::Http2(sender, _)) => {
            let timer = std::pin::pin!(sleep(response_timeout));
            within(timer, response_timeout, progress, sender.try_send_request(request)).await
        }
        None => {
            let failed = FailedAttempt::by_endpoint(StatusCode::BAD_GATEWAY);
            return Err(FailedAttempt { request: Some(request), is_endpoint_fault: false, ..failed });
        }
    };
    match sent {
        None => Err(FailedAttempt::by_endpoint(StatusCode::GATEWAY_TIMEOUT)),
        Some(Ok(response)) => Ok((response, connection)),
        // The endpoint speaks HTTP/2 only, as declared.
        Some(Err(_)) if connection.is_http1_guess => {
            let failed = FailedAttempt::by_endpoint(StatusCode::BAD_GATEWAY);
            Err(FailedAttempt { reason: Some(NOT_OFFERED), is_endpoint_fault: false, ..failed })
        }
        Some(Err(mut error)) => {
            let unsent = error.take_message();
            let (status, is_endpoint_fault) = classify(error.error());
            let is_stale = connection.is_reused && is_endpoint_fault;
            let copy = copy.filter(|_| is_stale).map(|copy| copy.into_request(&mut connection.reuse));
            let request = unsent.or(copy);
            let is_endpoint_fault = is_endpoint_fault && !(is_stale && request.is_some());
            Err(FailedAttempt { request, is_endpoint_fault, ..FailedAttempt::by_endpoint(status) })
        }
    }
}

/// Whether a method may be sent twice.
fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
}

/// The response, or `None` at the timeout, which restarts while the request body makes progress.
///
/// The timer may be set for an earlier request of the connection. It is moved only when it fires: nearly all responses
/// arrive long before, and setting it for each request costs more than checking it.
async fn within<T>(
    mut timer: Pin<&mut Sleep>,
    limit: Duration,
    progress: Option<&AtomicU64>,
    response: impl Future<Output = T>,
) -> Option<T> {
    let progress = || progress.map_or(0, |progress| progress.load(Relaxed));
    let mut response = std::pin::pin!(response);
    let (mut deadline, mut before) = (Instant::now() + limit, progress());
    // The limits of requests on one connection may differ.
    if timer.deadline() > deadline {
        timer.as_mut().reset(deadline);
    }
    poll_fn(|cx| {
        if let Poll::Ready(response) = response.as_mut().poll(cx) {
            return Poll::Ready(Some(response));
        }
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                if progress() == before {
                    return Poll::Ready(None);
                }
                (deadline, before) = (Instant::now() + limit, progress());
            }
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    })
    .await
}

/// The status of the local reply to an error, and whether the endpoint caused it.
fn classify(error: &hyper::Error) -> (StatusCode, bool) {
    use std::error::Error;
    match error.source().and_then(|source| source.downcast_ref::<BodyError>()) {
        Some(BodyError::TooLong) => (StatusCode::PAYLOAD_TOO_LARGE, false),
        Some(BodyError::Stalled) => (StatusCode::REQUEST_TIMEOUT, false),
        Some(_) => (StatusCode::BAD_REQUEST, false),
        None => (StatusCode::BAD_GATEWAY, !error.is_user()),
    }
}

/// A copy of a request without a body. Its headers are in [`Http1Reuse`], whose allocation is reused.
struct RequestCopy {
    method: Method,
    uri: Uri,
}

impl RequestCopy {
    fn of(request: &Request<RequestBody>, reuse: &mut Http1Reuse) -> Self {
        reuse.fields.clear();
        reuse.fields.extend(request.headers().iter().map(|(name, value)| (name.clone(), value.clone())));
        Self { method: request.method().clone(), uri: request.uri().clone() }
    }

    fn into_request(self, reuse: &mut Http1Reuse) -> Request<RequestBody> {
        let mut request = Request::new(RequestBody::Empty);
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        for (name, value) in reuse.fields.drain(..) {
            request.headers_mut().append(name, value);
        }
        request
    }
}

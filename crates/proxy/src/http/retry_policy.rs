//! The timeouts and retries of a rule, or of the policy for its backend.
//!
//! ```text
//! request timeout: |------------------------------------------------| the whole exchange, 504
//!                  | try -> status or timeout, backoff | try | ...   | each try at most backendRequest
//! ```
//!
//! A request with a body is sent again only if the body fits into the read-ahead buffer; it is read whole before the first
//! try then.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use http::{Request, StatusCode};
use hyper::body::Body;
use tokio::time::{Instant, sleep, timeout_at};

use super::body::{BodyError, RequestBody};
use super::body_chunk::BodyChunk;
use super::retry::{self, AttemptContext, SentRequest};
use crate::downstream::connection::HttpConnection;
use crate::request_log::RequestLog;
use crate::upstream::backend::UpstreamBackend;
use crate::upstream::backend_settings::RequestLimits;
use crate::upstream::endpoint::UpstreamEndpoint;
use crate::upstream::outlier_detection::note_failure;

/// Envoy's base interval.
const DEFAULT_BACKOFF: Duration = Duration::from_millis(25);

/// Sends a request within its limits. Also returns until when the body of the response may take.
pub(super) async fn send(
    connection: &HttpConnection,
    backend: &Arc<UpstreamBackend>,
    request: Request<RequestBody>,
    context: &AttemptContext<'_>,
    limits: &RequestLimits,
    request_log: &mut RequestLog,
) -> (SentRequest, Option<Instant>) {
    let deadline = limits.timeouts.request.map(|limit| Instant::now() + limit);
    let mut tries =
        Tries { connection, backend, context, limits, deadline, until: deadline, avoid: Vec::new() };
    let sent = match deadline {
        None => tries.run(request, request_log).await,
        Some(deadline) => match timeout_at(deadline, tries.run(request, request_log)).await {
            Ok(sent) => sent,
            Err(_) => {
                tries.timed_out(request_log);
                Err((StatusCode::GATEWAY_TIMEOUT, None))
            }
        },
    };
    (sent, tries.until)
}

struct Tries<'s> {
    connection: &'s HttpConnection,
    backend: &'s Arc<UpstreamBackend>,
    context: &'s AttemptContext<'s>,
    limits: &'s RequestLimits,
    deadline: Option<Instant>,
    /// The end of the current try.
    until: Option<Instant>,
    avoid: Vec<Arc<UpstreamEndpoint>>,
}

impl Tries<'_> {
    async fn run(&mut self, mut request: Request<RequestBody>, request_log: &mut RequestLog) -> SentRequest {
        let settings = &self.connection.proxy.settings;
        let mut left = match &self.limits.retry {
            Some(retry) if self.context.upgrade.is_none() => {
                retry.attempts.unwrap_or(settings.limits.retries)
            }
            _ => 0,
        };
        let template = if left > 0 { self.template(&mut request).await? } else { None };
        let mut retrying = None;
        loop {
            let sent = self.send_once(request, request_log).await;
            let status = match &sent {
                Ok((response, _)) => response.status(),
                Err((status, _)) => *status,
            };
            let (Some(template), true) = (&template, left > 0 && self.is_retried(&sent, status)) else {
                return sent;
            };
            if retrying.is_none() {
                let in_use = self.backend.breaker.requests.in_use();
                let max_retries = self.backend.load_balancer().settings.max_retries(in_use);
                retrying = self.backend.breaker.retries.enter(max_retries);
                if retrying.is_none() {
                    self.backend.stats.retry_overflow.inc();
                    return sent;
                }
            }
            if let Ok((response, mut upstream)) = sent {
                self.avoid.push(upstream.endpoint.clone());
                if response.body().is_end_stream() {
                    upstream.release();
                }
            }
            left -= 1;
            self.backend.stats.retries.inc();
            let backoff = self.limits.retry.as_ref().and_then(|retry| retry.backoff);
            sleep(backoff.unwrap_or(DEFAULT_BACKOFF)).await;
            request = template.request(self.connection);
        }
    }

    /// One try, within its own limit and that of all.
    async fn send_once(
        &mut self,
        request: Request<RequestBody>,
        request_log: &mut RequestLog,
    ) -> SentRequest {
        let limits = &self.limits.timeouts;
        let own_limit = limits.backend_request.or(limits.request).unwrap_or_default();
        let context = AttemptContext {
            avoid: &self.avoid,
            // The limits of the rule replace that of the proxy.
            response_timeout: self.context.response_timeout.max(own_limit),
            ..*self.context
        };
        let sent = retry::send(self.connection, self.backend, request, &context, request_log);
        let Some(limit) = limits.backend_request else { return sent.await };
        let end = Instant::now() + limit;
        self.until = Some(self.deadline.map_or(end, |deadline| deadline.min(end)));
        if let Ok(sent) = timeout_at(end, sent).await {
            return sent;
        }
        self.timed_out(request_log);
        Err((StatusCode::GATEWAY_TIMEOUT, None))
    }

    /// Counts a timeout as a failure of the endpoint, which the next try avoids.
    fn timed_out(&mut self, request_log: &mut RequestLog) {
        let proxy = &*self.connection.proxy;
        if let Some(trace) = &mut request_log.trace {
            trace.attempt_failed(proxy, StatusCode::GATEWAY_TIMEOUT, None);
        }
        let balancer = self.backend.load_balancer();
        let mut endpoints = balancer.endpoints().iter().map(|weighted| &weighted.endpoint);
        if let Some(slow) = endpoints.find(|endpoint| Some(endpoint.address) == request_log.endpoint) {
            note_failure(proxy, self.backend, &balancer, slow);
            self.avoid.push(slow.clone());
        }
    }

    /// Connection errors and timeouts are retried without being listed; an overloaded proxy or backend is not.
    fn is_retried(&self, sent: &SentRequest, status: StatusCode) -> bool {
        let codes = self.limits.retry.as_ref().map(|retry| &*retry.codes).unwrap_or_default();
        match sent {
            Ok(_) => codes.contains(&status.as_u16()),
            Err((_, Some(_))) => false,
            Err((status, None)) => status.is_server_error(),
        }
    }

    /// What the request is sent from again; `None` if its body is too long to keep.
    async fn template(
        &self,
        request: &mut Request<RequestBody>,
    ) -> Result<Option<RequestTemplate>, (StatusCode, Option<&'static str>)> {
        let mut bytes = BytesMut::new();
        if !request.body().is_end_stream() {
            let max = self.connection.proxy.settings.limits.buffer as u64;
            if request.body().size_hint().exact().is_none_or(|length| length > max) {
                return Ok(None);
            }
            let body = request.body_mut();
            while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
                let frame = frame.map_err(|error| (body_status(&error), None))?;
                if let Ok(mut data) = frame.into_data() {
                    bytes.extend_from_slice(&data.copy_to_bytes(data.remaining()));
                }
            }
        }
        let mut head = Request::new(());
        *head.method_mut() = request.method().clone();
        *head.uri_mut() = request.uri().clone();
        *head.version_mut() = request.version();
        *head.headers_mut() = request.headers().clone();
        let template = RequestTemplate { head, body: bytes.freeze() };
        if !template.body.is_empty() {
            *request.body_mut() = template.body_for(self.connection);
        }
        Ok(Some(template))
    }
}

fn body_status(error: &BodyError) -> StatusCode {
    match error {
        BodyError::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
        BodyError::Stalled => StatusCode::REQUEST_TIMEOUT,
        BodyError::MirrorTooSlow | BodyError::Transport(_) => StatusCode::BAD_REQUEST,
    }
}

struct RequestTemplate {
    head: Request<()>,
    body: bytes::Bytes,
}

impl RequestTemplate {
    fn body_for(&self, connection: &HttpConnection) -> RequestBody {
        if self.body.is_empty() {
            return RequestBody::Empty;
        }
        RequestBody::Buffered(Some(BodyChunk::to_endpoint(self.body.clone(), &connection.activity)))
    }

    fn request(&self, connection: &HttpConnection) -> Request<RequestBody> {
        let mut request = Request::new(self.body_for(connection));
        *request.method_mut() = self.head.method().clone();
        *request.uri_mut() = self.head.uri().clone();
        *request.version_mut() = self.head.version();
        *request.headers_mut() = self.head.headers().clone();
        request
    }
}

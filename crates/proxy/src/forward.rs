//! A request on its way to an endpoint: changed as its rule says, sent, and once more elsewhere if nobody was
//! reached.
//!
//! Answers of ours: 503 no endpoint, or none could be reached; 502 it broke off or spoke no HTTP; 504 it took too
//! long; 500 the rule leads nowhere (semantics 1.8).

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use http::header::{self, HeaderValue};
use http::request::Parts;
use http::uri::{self, PathAndQuery, Scheme};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::{Body, Incoming};
use tokio::time::{Instant, Sleep, sleep};

use crate::body::{AnswerBody, BodyError, OutBody};
use crate::connection::Connection;
use crate::edits::{self, strip};
use crate::exchange::note_failure;
use crate::mirror;
use crate::peer::Peer;
use crate::pool::{Kept, Lease, Lent, Use};
use crate::proxy::Inner;
use crate::reply;
use crate::request::is_safe;
use crate::rules::{Legs, Rule, Target};
use crate::slot::Slot;
use crate::ticket::Ticket;
use crate::upgrade::{self, Wish};

/// What a rule wants for a request.
pub(crate) struct Outgoing<'s> {
    pub(crate) rule: Option<&'s Rule>,
    pub(crate) legs: &'s Legs,
    pub(crate) target: Option<PathAndQuery>,
}

/// Sends a request to a backend and brings the answer.
pub(crate) async fn forward(
    connection: &Arc<Connection>,
    outgoing: Outgoing<'_>,
    mut parts: Parts,
    body: Incoming,
    is_grpc: bool,
    mut ticket: Ticket,
) -> Response<AnswerBody> {
    let proxy = &connection.proxy;
    let slot = match outgoing.legs.pick(|| proxy.random.next()) {
        Some(Target::Backend(slot)) => slot,
        Some(Target::Error(status)) => return unresolved(*status, outgoing.rule, is_grpc, ticket),
        None => return unresolved(StatusCode::INTERNAL_SERVER_ERROR, outgoing.rule, is_grpc, ticket),
    };
    let wish = Wish::of(&mut parts, &proxy.random);
    prepare(&mut parts, outgoing.rule, outgoing.target);
    let copies = match outgoing.rule {
        Some(rule) if !rule.mirrors.is_empty() => mirror::send(proxy, rule, &parts, &body),
        _ => Vec::new(),
    };
    let progress = (!body.is_end_stream()).then(|| Arc::new(AtomicU64::new(0)));
    let body = OutBody::new(connection, body, copies, progress.clone());
    let request = Request::from_parts(parts, body);
    let sending = Sending { wish: wish.as_ref(), progress: progress.as_deref() };
    let sent = exchange(proxy, slot, request, &sending, &mut ticket).await;
    let (mut response, lease) = match sent {
        Ok(answered) => answered,
        Err((status, Some(reason))) => return reply::refusal(status, reason, is_grpc, ticket),
        Err((status, None)) => return reply::error(status, is_grpc, ticket),
    };
    let status = response.status();
    ticket.status = status.as_u16();
    match wish {
        Some(wish) if wish.is_granted(status, lease.is_http2()) => {
            return upgrade::join(connection, wish, response, lease, outgoing.rule, ticket);
        }
        // A client of HTTP/2 would take any success for the tunnel that it asked for.
        Some(wish) if wish.is_connect && status.is_success() => {
            return reply::error(StatusCode::BAD_GATEWAY, is_grpc, ticket);
        }
        // Nobody asked for it.
        _ if status == StatusCode::SWITCHING_PROTOCOLS => {
            return reply::error(StatusCode::BAD_GATEWAY, is_grpc, ticket);
        }
        _ => {}
    }
    strip(response.headers_mut());
    if let Some(rule) = outgoing.rule {
        rule.response.apply(response.headers_mut());
    }
    *response.version_mut() = Version::HTTP_11;
    response.extensions_mut().clear();
    response.map(|incoming| AnswerBody::of_endpoint(incoming, lease, proxy, ticket))
}

/// The answer in the place of a backend that there is not. It is the rule's own, so the rule's filters change it.
fn unresolved(
    status: StatusCode,
    rule: Option<&Rule>,
    is_grpc: bool,
    ticket: Ticket,
) -> Response<AnswerBody> {
    let mut response = reply::error(status, is_grpc, ticket);
    if let Some(rule) = rule {
        rule.response.apply(response.headers_mut());
    }
    response
}

/// Changes a request as its rule says.
fn prepare(parts: &mut Parts, rule: Option<&Rule>, target: Option<PathAndQuery>) {
    strip(&mut parts.headers);
    if let Some(host) = parts.uri.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok()) {
        parts.headers.insert(header::HOST, host);
    }
    if let Some(target) = target {
        parts.uri = Uri::from(target);
    } else if parts.uri.authority().is_some() {
        let target = parts.uri.path_and_query().cloned();
        parts.uri = Uri::from(target.unwrap_or_else(|| PathAndQuery::from_static("/")));
    }
    if let Some(rule) = rule {
        rule.request.apply(&mut parts.headers);
        if let Some(host) = &rule.host {
            parts.headers.insert(header::HOST, host.clone());
        }
    }
    // Extended CONNECT, which is said in the words of the endpoint's version when that is known.
    if parts.method == Method::CONNECT {
        parts.method = Method::GET;
    }
    parts.extensions.clear();
}

/// What is known of a request besides itself.
struct Sending<'s> {
    wish: Option<&'s Wish>,
    progress: Option<&'s AtomicU64>,
}

/// Sends a request to an endpoint of a backend, and to another one if no connection could be made.
async fn exchange(
    proxy: &Inner,
    slot: &Arc<Slot>,
    mut request: Request<OutBody>,
    sending: &Sending<'_>,
    ticket: &mut Ticket,
) -> Result<(Response<Incoming>, Lease), (StatusCode, Option<&'static str>)> {
    let settings = &proxy.settings;
    let mut now = proxy.at(ticket.began);
    let mut avoid: Vec<Arc<Peer>> = Vec::new();
    let mut attempts = 0;
    let what_for = if sending.wish.is_some() { Use::Upgrade } else { Use::Request };
    loop {
        let cluster = slot.cluster();
        let choice = cluster.pick(&proxy.random, now, &settings.health, &avoid);
        let choice = choice.ok_or((StatusCode::SERVICE_UNAVAILABLE, None))?;
        ticket.backend = Some((slot.clone(), choice.locality));
        ticket.endpoint = Some(choice.peer.address);
        let failed = match Lease::take(&choice.peer, settings, what_for).await {
            Ok(lease) => match attempt(lease, request, sending, settings.timeouts.response).await {
                Ok((response, lease)) => {
                    if is_gateway_failure(response.status()) {
                        note_failure(proxy, slot, &cluster, &choice.peer);
                    } else {
                        choice.peer.succeeded();
                    }
                    return Ok((response, lease));
                }
                Err(failed) => failed,
            },
            Err(_) => {
                slot.counts.connect_failures.add();
                Failed { request: Some(request), ..Failed::by_endpoint(StatusCode::SERVICE_UNAVAILABLE) }
            }
        };
        if failed.is_endpoints {
            note_failure(proxy, slot, &cluster, &choice.peer);
            avoid.push(choice.peer.clone());
        }
        attempts += 1;
        request = match failed.request {
            Some(request) if attempts <= settings.limits.retries => request,
            _ => return Err((failed.status, failed.reason)),
        };
        slot.counts.retries.add();
        now = proxy.now();
    }
}

/// What came of an attempt, and the request if it may be sent again.
struct Failed {
    request: Option<Request<OutBody>>,
    status: StatusCode,
    /// What the status does not say.
    reason: Option<&'static str>,
    /// Whether the endpoint is to blame.
    is_endpoints: bool,
}

impl Failed {
    fn by_endpoint(status: StatusCode) -> Self {
        Self { request: None, status, reason: None, is_endpoints: true }
    }
}

async fn attempt(
    mut lease: Lease,
    mut request: Request<OutBody>,
    sending: &Sending<'_>,
    patience: Duration,
) -> Result<(Response<Incoming>, Lease), Failed> {
    fit(&mut request, &lease);
    match sending.wish {
        Some(wish) if lease.is_http2() => wish.ask_http2(&mut request),
        Some(wish) => wish.ask_http1(&mut request),
        None => {}
    }
    // The endpoint may have closed an unused connection just now: then the request is sent by another one.
    let spare = (lease.is_reused && is_safe(request.method()) && request.body().is_end_stream())
        .then(|| Spare::of(&request, &mut lease.kept));
    let progress = sending.progress;
    let sent = match &mut lease.lent {
        Some(Lent::Http1(sender)) => {
            let timer = lease.kept.timer.get_or_insert_with(|| Box::pin(sleep(patience)));
            within(timer.as_mut(), patience, progress, sender.try_send_request(request)).await
        }
        Some(Lent::Http2(sender, _)) => {
            let timer = std::pin::pin!(sleep(patience));
            within(timer, patience, progress, sender.try_send_request(request)).await
        }
        None => {
            let failed = Failed::by_endpoint(StatusCode::BAD_GATEWAY);
            return Err(Failed { request: Some(request), is_endpoints: false, ..failed });
        }
    };
    match sent {
        None => Err(Failed::by_endpoint(StatusCode::GATEWAY_TIMEOUT)),
        Some(Ok(response)) => Ok((response, lease)),
        // It speaks HTTP/2, as it is said to.
        Some(Err(_)) if lease.is_guess => {
            let failed = Failed::by_endpoint(StatusCode::BAD_GATEWAY);
            Err(Failed { reason: Some(upgrade::NOT_OFFERED), is_endpoints: false, ..failed })
        }
        Some(Err(mut error)) => {
            let unsent = error.take_message();
            let (status, is_endpoints) = blame(error.error());
            let is_stale = lease.is_reused && is_endpoints;
            let spare = spare.filter(|_| is_stale).map(|spare| spare.request(&mut lease.kept));
            let request = unsent.or(spare);
            let is_endpoints = is_endpoints && !(is_stale && request.is_some());
            Err(Failed { request, is_endpoints, ..Failed::by_endpoint(status) })
        }
    }
}

/// The answer, if it comes in time. While a body moves, the clock starts anew: it may be long.
///
/// The timer may be set for an earlier request. It is left there and moved on only when it goes off, for nearly all
/// answers come long before: to set it for each request costs more than to look at it.
async fn within<T>(
    mut timer: Pin<&mut Sleep>,
    patience: Duration,
    progress: Option<&AtomicU64>,
    answer: impl Future<Output = T>,
) -> Option<T> {
    let seen = || progress.map_or(0, |progress| progress.load(Relaxed));
    let mut answer = std::pin::pin!(answer);
    let (mut deadline, mut before) = (Instant::now() + patience, seen());
    poll_fn(|cx| {
        if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
            return Poll::Ready(Some(answer));
        }
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                if seen() == before {
                    return Poll::Ready(None);
                }
                (deadline, before) = (Instant::now() + patience, seen());
            }
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    })
    .await
}

/// What a client is told about a broken exchange, and whether the endpoint broke it.
fn blame(error: &hyper::Error) -> (StatusCode, bool) {
    use std::error::Error;
    match error.source().and_then(|source| source.downcast_ref::<BodyError>()) {
        Some(BodyError::TooLong) => (StatusCode::PAYLOAD_TOO_LARGE, false),
        Some(BodyError::Stalled) => (StatusCode::REQUEST_TIMEOUT, false),
        Some(_) => (StatusCode::BAD_REQUEST, false),
        None => (StatusCode::BAD_GATEWAY, !error.is_user()),
    }
}

pub(crate) fn is_gateway_failure(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT)
}

/// What it takes to send a request without a body again. Its fields are kept with the connection, which has room for
/// them from the request before.
struct Spare {
    method: Method,
    uri: Uri,
}

impl Spare {
    fn of(request: &Request<OutBody>, kept: &mut Kept) -> Self {
        kept.fields.clear();
        kept.fields.extend(request.headers().iter().map(|(name, value)| (name.clone(), value.clone())));
        Self { method: request.method().clone(), uri: request.uri().clone() }
    }

    fn request(self, kept: &mut Kept) -> Request<OutBody> {
        let mut request = Request::new(OutBody::Empty);
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        for (name, value) in kept.fields.drain(..) {
            request.headers_mut().append(name, value);
        }
        request
    }
}

/// Gives a request the form that the endpoint's protocol wants.
pub(crate) fn fit(request: &mut Request<OutBody>, lease: &Lease) {
    if !lease.is_http2() {
        if request.version() == Version::HTTP_2 {
            edits::join_cookies(request.headers_mut());
        }
        *request.version_mut() = Version::HTTP_11;
        if let Some(authority) = request.uri().authority().cloned() {
            if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
                request.headers_mut().insert(header::HOST, host);
            }
            *request.uri_mut() = Uri::from(edits::target(request.uri()));
        }
        return;
    }
    *request.version_mut() = Version::HTTP_2;
    if request.uri().authority().is_some() {
        return;
    }
    let host = request.headers_mut().remove(header::HOST);
    let authority = host.and_then(|host| uri::Authority::try_from(host.as_bytes()).ok());
    let mut parts = uri::Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = authority.or_else(|| lease.peer.address.to_string().parse().ok());
    parts.path_and_query = Some(edits::target(request.uri()));
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

//! Forwarding of a request to a backend: the rule's mutations, mirrors, and the translation between HTTP versions.
//!
//! Local replies: 503 no endpoint, or none could be reached; 502 the upstream connection failed; 504 timeout; 500 the
//! backend cannot be resolved (semantics 1.8).

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use http::header::{self, HeaderValue};
use http::request::Parts;
use http::uri::{self, PathAndQuery, Scheme};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::{Body, Incoming};

use super::attempt::AttemptContext;
use super::body::{RequestBody, ResponseBody};
use super::headers::{join_cookies, path_and_query, strip_hop_by_hop};
use super::local_reply;
use super::mirror;
use super::response_changes::{CorsHeaders, ResponseChanges};
use super::retry;
use super::route_rule::CompiledRule;
use super::router;
use super::upgrade::{self, UpgradeRequest};
use crate::downstream::connection::HttpConnection;
use crate::request_log::RequestLog;
use crate::upstream::backend_settings::RequestLimits;
use crate::upstream::connection_pool::{PooledConnection, Purpose};
use crate::upstream::weighted_backends::{BackendMutations, PickedBackend};

/// Where a request goes.
pub(super) struct ForwardTarget<'s> {
    pub(super) rule: Option<&'s CompiledRule>,
    /// `None`: no backend has a weight.
    pub(super) picked: Option<&'s PickedBackend>,
    /// `None`: the path stays as it is.
    pub(super) path: Option<PathAndQuery>,
    /// By the filters of the backendRef, which mirrors do not see.
    pub(super) backend_path: Option<PathAndQuery>,
}

pub(super) struct ForwardPlan<'s> {
    pub(super) target: ForwardTarget<'s>,
    pub(super) cors: Option<CorsHeaders>,
    pub(super) upgrade: Option<UpgradeRequest>,
}

pub(super) async fn forward(
    connection: &Arc<HttpConnection>,
    plan: ForwardPlan<'_>,
    mut parts: Parts,
    body: Incoming,
    is_grpc: bool,
    mut request_log: RequestLog,
) -> Response<ResponseBody> {
    let ForwardPlan { target: ForwardTarget { rule, picked, path, backend_path }, cors, upgrade } = plan;
    let proxy = &connection.proxy;
    let mut changes = ResponseChanges { rule, cors, backend: None };
    let (backend, filters) = match picked {
        Some(PickedBackend::Backend(backend, filters)) => (backend, filters.as_deref()),
        Some(PickedBackend::Error(status)) => return unresolved(*status, &changes, is_grpc, request_log),
        None => return unresolved(StatusCode::INTERNAL_SERVER_ERROR, &changes, is_grpc, request_log),
    };
    changes.backend = filters;
    mutate(&mut parts, rule, path);
    if let Some(trace) = &request_log.trace {
        trace.propagate(&mut parts.headers);
    }
    let mirrors = match rule {
        Some(rule) if !rule.mirrors.is_empty() => mirror::send(connection, rule, &parts, &body),
        _ => Vec::new(),
    };
    if let Some(filters) = filters {
        mutate_for_backend(&mut parts, filters, backend_path);
    }
    let progress = (!body.is_end_stream()).then(|| Arc::new(AtomicU64::new(0)));
    let body = RequestBody::new(connection, body, mirrors, progress.clone());
    let request = Request::from_parts(parts, body);
    let extension = rule.and_then(|rule| rule.extension.as_deref());
    let purpose = match &upgrade {
        Some(_) => Purpose::Upgrade,
        None if extension.is_some_and(|extension| extension.is_grpc) => Purpose::Grpc,
        None => Purpose::Request,
    };
    let limits = request_limits(extension.map(|extension| &extension.limits), backend.request_limits());
    let response_timeout = proxy.settings.timeouts.response;
    let context = AttemptContext {
        upgrade: upgrade.as_ref(),
        purpose,
        from: connection.addresses,
        progress: progress.as_deref(),
        // The limits of the rule replace that of the proxy.
        response_timeout: limits.as_ref().map_or(response_timeout, |own| own.response(response_timeout)),
    };
    let (sent, deadline) =
        retry::send(connection, backend, request, &context, limits.as_deref(), &mut request_log).await;
    let (mut response, upstream) = match sent {
        Ok(response) => response,
        Err((status, Some(reason))) => {
            return local_reply::error_with_reason(status, reason, is_grpc, request_log);
        }
        Err((status, None)) => return local_reply::error(status, is_grpc, request_log),
    };
    let status = response.status();
    request_log.status = status.as_u16();
    match upgrade {
        Some(upgrade) if upgrade.is_accepted(status, upstream.is_http2()) => {
            return upgrade::join(connection, upgrade, response, upstream, &changes, request_log);
        }
        // An HTTP/2 client would take any success for the tunnel, and 101 was not requested.
        upgrade
            if status == StatusCode::SWITCHING_PROTOCOLS
                || status.is_success() && upgrade.as_ref().is_some_and(|upgrade| upgrade.is_connect) =>
        {
            return local_reply::error(StatusCode::BAD_GATEWAY, is_grpc, request_log);
        }
        _ => {}
    }
    let has_body = !response.body().is_end_stream();
    if has_body && proxy.budget.is_spent() && !proxy.budget.relieve(&connection.activity) {
        proxy.stats.bodies_over_limit.inc();
        let status = StatusCode::SERVICE_UNAVAILABLE;
        return local_reply::error_with_reason(status, router::TOO_MANY_BYTES, is_grpc, request_log);
    }
    strip_hop_by_hop(response.headers_mut());
    changes.apply(response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
    response.extensions_mut().clear();
    response.map(|incoming| ResponseBody::upstream(incoming, upstream, proxy, deadline, request_log))
}

/// Limits of the rule, before those of the backend.
fn request_limits(
    rule: Option<&RequestLimits>,
    backend: Option<RequestLimits>,
) -> Option<Cow<'_, RequestLimits>> {
    match (rule.filter(|limits| limits.any()), backend) {
        (Some(own), Some(otherwise)) => Some(Cow::Owned(own.or(&otherwise))),
        (Some(own), None) => Some(Cow::Borrowed(own)),
        (None, otherwise) => otherwise.map(Cow::Owned),
    }
}

/// The reply for a backend that cannot be resolved. It stands for the rule's response, so the rule's filters apply.
fn unresolved(
    status: StatusCode,
    changes: &ResponseChanges<'_>,
    is_grpc: bool,
    request_log: RequestLog,
) -> Response<ResponseBody> {
    let mut response = local_reply::error(status, is_grpc, request_log);
    changes.apply(response.headers_mut());
    response
}

/// Applies the filters of a backendRef, after those of the rule.
fn mutate_for_backend(parts: &mut Parts, filters: &BackendMutations, path: Option<PathAndQuery>) {
    if let Some(path) = path {
        parts.uri = Uri::from(path);
    }
    filters.request.apply(&mut parts.headers);
    if let Some(host) = &filters.host {
        parts.headers.insert(header::HOST, host.clone());
    }
}

/// Applies the rule to the request's headers and path.
fn mutate(parts: &mut Parts, rule: Option<&CompiledRule>, path: Option<PathAndQuery>) {
    if let Some(host) = parts.uri.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok()) {
        parts.headers.insert(header::HOST, host);
    }
    if let Some(path) = path {
        parts.uri = Uri::from(path);
    } else if parts.uri.authority().is_some() {
        parts.uri = Uri::from(path_and_query(&parts.uri));
    }
    if let Some(rule) = rule {
        rule.request.apply(&mut parts.headers);
        if let Some(host) = &rule.host {
            parts.headers.insert(header::HOST, host.clone());
        }
    }
    // Extended CONNECT is written for the endpoint's HTTP version once that is known.
    if parts.method == Method::CONNECT {
        parts.method = Method::GET;
    }
    parts.extensions.clear();
}

pub(super) fn is_gateway_failure(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT)
}

/// Translates a request to the HTTP version of its connection. Without a length, hyper would leave out the body of a GET.
pub(super) fn translate(request: &mut Request<RequestBody>, upstream: &PooledConnection) {
    if !upstream.is_http2() {
        if request.version() == Version::HTTP_2 {
            join_cookies(request.headers_mut());
        }
        *request.version_mut() = Version::HTTP_11;
        if !request.body().is_end_stream() && request.body().size_hint().exact().is_none() {
            let chunked = HeaderValue::from_static("chunked");
            request.headers_mut().insert(header::TRANSFER_ENCODING, chunked);
        }
        if let Some(authority) = request.uri().authority().cloned() {
            if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
                request.headers_mut().insert(header::HOST, host);
            }
            *request.uri_mut() = Uri::from(path_and_query(request.uri()));
        }
        // RFC 9112, 3.2: a request of HTTP/1.1 has a Host; one of HTTP/1.0 may come without.
        if !request.headers().contains_key(header::HOST)
            && let Ok(host) = HeaderValue::from_str(&upstream.endpoint.address.to_string())
        {
            request.headers_mut().insert(header::HOST, host);
        }
        return;
    }
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(header::TRANSFER_ENCODING);
    if request.uri().authority().is_some() {
        return;
    }
    let host = request.headers_mut().remove(header::HOST);
    let authority = host.and_then(|host| uri::Authority::try_from(host.as_bytes()).ok());
    let mut parts = uri::Parts::default();
    parts.scheme = Some(if upstream.endpoint.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP });
    parts.authority = authority.or_else(|| upstream.endpoint.address.to_string().parse().ok());
    parts.path_and_query = Some(path_and_query(request.uri()));
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

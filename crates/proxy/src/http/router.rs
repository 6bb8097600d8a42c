//! Routing of one request: validation, limits, the matching rule, and its action.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use hyper::body::{Body, Incoming};
use hyper::ext::Protocol;
use model::route::path::{self, NormalizedPath};
use model::route::{
    self, ForwardedHeaders, HeaderLines, ListenerChoice, PathChange, RequestOrigin, Responder, Routing,
    is_forwarded_header,
};

use super::body::ResponseBody;
use super::forward::{self, ForwardPlan, ForwardTarget};
use super::headers::{is_http, strip_hop_by_hop};
use super::local_reply;
use super::response_changes::{CorsHeaders, ResponseChanges};
use super::route_rule::{CompiledAction, CompiledRule};
use super::upgrade::UpgradeRequest;
use crate::active_tables::{ActiveTables, MatchedRule};
use crate::downstream::connection::{HttpConnection, RouteScope};
use crate::proxy::ProxyShared;
use crate::request_log::RequestLog;
use crate::upstream::weighted_backends::PickedBackend;

enum RouteDecision<'s> {
    Reject(StatusCode),
    /// With a reason that the status does not say.
    RejectFor(StatusCode, &'static str),
    /// To the normalised path.
    RedirectToPath(String),
    Redirect(&'s CompiledRule, StatusCode, String),
    Respond(&'s CompiledRule, StatusCode, Bytes),
    /// The response to a CORS preflight request.
    Preflight(&'s CompiledRule),
    Forward(ForwardTarget<'s>),
}

pub(crate) async fn respond(
    connection: Arc<HttpConnection>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let proxy = &connection.proxy;
    let (mut parts, body) = request.into_parts();
    let mut request_log = RequestLog::open(&connection, &parts);
    let is_grpc = is_grpc(&parts.headers);
    if let Some((status, reason)) = over_limits(proxy, &body, &mut request_log) {
        return Ok(local_reply::error_with_reason(status, reason, is_grpc, request_log));
    }
    let upgrade = UpgradeRequest::of(&mut parts, &proxy.random);
    // Only what a backend receives is matched.
    strip_hop_by_hop(&mut parts.headers);
    if matches!(connection.scope, RouteScope::Gateway(..)) {
        request_log.forwarded_for = set_forwarded(&connection, &mut parts);
    }
    let active = proxy.active_tables();
    if let Some(limits) = active.outbound_limits(&connection.scope)
        && let Err((status, reason)) = Box::pin(limits.admit(proxy)).await
    {
        return Ok(local_reply::error_with_reason(status, reason, is_grpc, request_log));
    }
    let decision = decide(&active, &connection, &parts, upgrade.as_ref(), &mut request_log);
    request_log.route = match &decision {
        RouteDecision::Redirect(rule, ..)
        | RouteDecision::Respond(rule, ..)
        | RouteDecision::Preflight(rule)
        | RouteDecision::Forward(ForwardTarget { rule: Some(rule), .. }) => Some(rule.stats.clone()),
        RouteDecision::Reject(_)
        | RouteDecision::RejectFor(..)
        | RouteDecision::RedirectToPath(_)
        | RouteDecision::Forward(ForwardTarget { rule: None, .. }) => None,
    };

    Ok(match decision {
        RouteDecision::Reject(status) => local_reply::error(status, is_grpc, request_log),
        RouteDecision::RejectFor(status, reason) => {
            local_reply::error_with_reason(status, reason, is_grpc, request_log)
        }
        // gRPC has no redirects.
        RouteDecision::RedirectToPath(_) if is_grpc => {
            local_reply::error_with_reason(StatusCode::BAD_REQUEST, ESCAPED_SLASH, true, request_log)
        }
        RouteDecision::RedirectToPath(location) => local_reply::redirect_to_path(&location, request_log),
        RouteDecision::Redirect(rule, status, location) => {
            local_reply::redirect(&local_changes(rule, &parts), status, &location, request_log)
        }
        RouteDecision::Respond(rule, status, bytes) => {
            local_reply::direct(&local_changes(rule, &parts), status, bytes, request_log)
        }
        RouteDecision::Preflight(rule) => {
            let changes = ResponseChanges { rule: None, ..local_changes(rule, &parts) };
            local_reply::preflight(&changes, request_log)
        }
        RouteDecision::Forward(target) => {
            if let Some(PickedBackend::Backend(backend, _)) = target.picked
                && let Some(limits) = active.backend_limits(&connection.scope, backend)
                && let Err((status, reason)) = Box::pin(limits.admit(proxy)).await
            {
                return Ok(local_reply::error_with_reason(status, reason, is_grpc, request_log));
            }
            let cors = target.rule.and_then(|rule| cors_headers(rule, &parts));
            let plan = ForwardPlan { target, cors, upgrade };
            forward::forward(&connection, plan, parts, body, is_grpc, request_log).await
        }
    })
}

/// The changes to a local reply of a rule.
fn local_changes<'s>(rule: &'s CompiledRule, parts: &Parts) -> ResponseChanges<'s> {
    ResponseChanges { rule: Some(rule), cors: cors_headers(rule, parts), backend: None }
}

/// The CORS headers of a response; `None` without a filter.
fn cors_headers(rule: &CompiledRule, parts: &Parts) -> Option<CorsHeaders> {
    let filter = rule.extension.as_ref()?.cors.as_ref()?;
    Some(CorsHeaders::new(filter, parts.method.as_str(), &parts.headers))
}

/// The reason of a 400.
const ESCAPED_SLASH: &str = "the path contains an escaped slash";

/// Replaces the headers that say where a request came from. Returns the client that trusted proxies name.
fn set_forwarded(connection: &HttpConnection, parts: &mut Parts) -> Option<IpAddr> {
    // A malformed host is rejected by `decide`.
    let host = host(parts).ok()?;
    let origin = RequestOrigin { peer: connection.addresses.client, scheme: connection.arrival.scheme, host };
    let trusted = &connection.proxy.settings.edge.trusted_proxies;
    let headers = RequestHeaders { headers: &parts.headers, upgrade: None };
    let forwarded = ForwardedHeaders::of(&origin, trusted, &headers);
    if !forwarded.is_trusted {
        let untrusted = parts.headers.keys().filter(|name| is_forwarded_header(name.as_str()));
        let untrusted: Vec<HeaderName> = untrusted.cloned().collect();
        untrusted.into_iter().for_each(|name| drop(parts.headers.remove(name)));
    }
    for (name, value) in forwarded.set {
        match HeaderValue::try_from(value) {
            Ok(value) => drop(parts.headers.insert(name, value)),
            Err(_) => drop(parts.headers.remove(name)),
        }
    }
    forwarded.is_trusted.then_some(forwarded.client)
}

/// The reason of a 503.
pub(super) const TOO_MANY_BYTES: &str = "too many buffered body bytes";

/// Takes a slot for the request.
fn over_limits(
    proxy: &ProxyShared,
    body: &Incoming,
    request_log: &mut RequestLog,
) -> Option<(StatusCode, &'static str)> {
    let limits = &proxy.settings.limits;
    if !request_log.take_slot_of_proxy() {
        return Some((StatusCode::SERVICE_UNAVAILABLE, "too many requests in flight"));
    }
    if proxy.budget.is_spent() && !proxy.budget.relieve(request_log.activity()) {
        proxy.stats.bodies_over_limit.inc();
        return Some((StatusCode::SERVICE_UNAVAILABLE, TOO_MANY_BYTES));
    }
    (body.size_hint().lower() > limits.body_bytes)
        .then_some((StatusCode::PAYLOAD_TOO_LARGE, "request body exceeds the limit"))
}

fn decide<'s>(
    active: &'s ActiveTables,
    connection: &HttpConnection,
    parts: &Parts,
    upgrade: Option<&UpgradeRequest>,
    request_log: &mut RequestLog,
) -> RouteDecision<'s> {
    if parts.method == Method::CONNECT {
        match parts.extensions.get::<Protocol>() {
            // Plain CONNECT would open a tunnel to anywhere; extended CONNECT is an upgrade (RFC 8441).
            None => return RouteDecision::Reject(StatusCode::METHOD_NOT_ALLOWED),
            // RFC 9220, 3.
            Some(protocol) if is_http(protocol.as_str().as_bytes()) => {
                let reason = "extended CONNECT for HTTP is not supported";
                return RouteDecision::RejectFor(StatusCode::NOT_IMPLEMENTED, reason);
            }
            Some(_) => {}
        }
    }
    if !has_absolute_target(parts) {
        return RouteDecision::Reject(StatusCode::BAD_REQUEST);
    }
    let host = match host(parts) {
        Ok(host) => host,
        Err(MalformedHost) => return RouteDecision::Reject(StatusCode::BAD_REQUEST),
    };
    let given = parts.uri.path();
    let normal = match connection.proxy.settings.edge.path.normalize(given) {
        NormalizedPath::Matched(normal) => normal,
        NormalizedPath::Redirect(normal) => {
            return RouteDecision::RedirectToPath(path::join(&normal, parts.uri.query()));
        }
        NormalizedPath::Rejected(reason) => return RouteDecision::RejectFor(StatusCode::BAD_REQUEST, reason),
    };
    let routing = match routing(active, &connection.scope, host) {
        Ok(routing) => routing,
        Err(status) => return RouteDecision::Reject(status),
    };
    let headers =
        RequestHeaders { headers: &parts.headers, upgrade: upgrade.map(|upgrade| &upgrade.protocol) };
    let method = if parts.method == Method::CONNECT { "GET" } else { parts.method.as_str() };
    let request =
        route::RequestView { method, host, path: &normal, query: parts.uri.query(), headers: &headers };
    let routes = match routing {
        Routing::Http(routes) => routes,
        // The route changed to TCP while this connection was open.
        Routing::Tcp(split) => {
            return match active.tcp_backends(split) {
                Some(backends) => RouteDecision::Forward(ForwardTarget {
                    rule: None,
                    picked: backends.pick(|| connection.proxy.random.next()),
                    path: None,
                    backend_path: None,
                }),
                None => RouteDecision::Reject(StatusCode::SERVICE_UNAVAILABLE),
            };
        }
    };
    match active.match_rule(routes, &request) {
        Some(matched) => {
            if let (Some(trace), Some(_)) = (&mut request_log.trace, &matched.model.origin.policy) {
                trace.set_http_route(matched.path);
            }
            let is_preflight = || cors_headers(matched.rule, parts).is_some_and(|cors| cors.is_preflight);
            if matched.rule.extension.is_some() && is_preflight() {
                return RouteDecision::Preflight(matched.rule);
            }
            apply_rule(matched, &request, connection, normal != given)
        }
        // Semantics 1.5: in the mesh the last rule matches everything, so this is a gateway.
        None => RouteDecision::Reject(StatusCode::NOT_FOUND),
    }
}

fn routing<'s>(active: &'s ActiveTables, scope: &RouteScope, host: &str) -> Result<&'s Routing, StatusCode> {
    let routes = &active.tables.routes;
    match scope {
        RouteScope::Outbound(service, port) => {
            let outbound = routes.outbound(service, *port).ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
            Ok(&outbound.routing)
        }
        RouteScope::Gateway(port, server_name) => {
            let port = routes.port(*port).ok_or(StatusCode::NOT_FOUND)?;
            match port.choose(server_name.as_deref(), host) {
                ListenerChoice::Found(listener) => listener.routing(host).ok_or(StatusCode::NOT_FOUND),
                // The connection's certificate is not for this host (RFC 9110, 15.5.20), or its listener is gone.
                ListenerChoice::Misdirected | ListenerChoice::NoCertificate => {
                    Err(StatusCode::MISDIRECTED_REQUEST)
                }
                ListenerChoice::None => Err(StatusCode::NOT_FOUND),
            }
        }
    }
}

fn apply_rule<'s>(
    matched: MatchedRule<'s>,
    request: &route::RequestView<'_>,
    connection: &HttpConnection,
    is_normalized: bool,
) -> RouteDecision<'s> {
    let rule = matched.rule;
    match (&rule.action, &matched.model.action.responder) {
        (CompiledAction::Forward(backends), _) => {
            let picked = backends.pick(|| connection.proxy.random.next());
            let mut target = ForwardTarget { rule: Some(rule), picked, path: None, backend_path: None };
            let rewritten = |change: &PathChange| {
                let path = change.apply(request.path, matched.path);
                PathAndQuery::try_from(path::join(&path, request.query))
            };
            if let Some(PickedBackend::Backend(_, Some(filters))) = picked
                && let Some(change) = &filters.path
            {
                let Ok(path) = rewritten(change) else {
                    return RouteDecision::Reject(StatusCode::BAD_REQUEST);
                };
                target.backend_path = Some(path);
            }
            let path = match &matched.model.action.rewrite.path {
                None if !is_normalized => return RouteDecision::Forward(target),
                None => PathAndQuery::try_from(path::join(request.path, request.query)),
                Some(change) => rewritten(change),
            };
            match path {
                Ok(path) => RouteDecision::Forward(ForwardTarget { path: Some(path), ..target }),
                Err(_) => RouteDecision::Reject(StatusCode::BAD_REQUEST),
            }
        }
        (CompiledAction::Respond(status, bytes), _) => RouteDecision::Respond(rule, *status, bytes.clone()),
        (CompiledAction::Redirect, Responder::Redirect(redirect)) => {
            let status = StatusCode::from_u16(redirect.status).unwrap_or(StatusCode::FOUND);
            let location = redirect.location(request, matched.path, &connection.arrival);
            RouteDecision::Redirect(rule, status, location)
        }
        (CompiledAction::Redirect, _) => RouteDecision::Reject(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// The target of a request (RFC 9112, 3.2): a path, a URL, or `*` with OPTIONS. A word such as `admin` would be parsed
/// as a host.
fn has_absolute_target(parts: &Parts) -> bool {
    let uri = &parts.uri;
    match uri.path_and_query().map(PathAndQuery::as_str) {
        Some("*") => parts.method == Method::OPTIONS,
        Some(path) => path.starts_with('/') || (uri.scheme().is_some() && path.starts_with('?')),
        None => uri.scheme().is_some(),
    }
}

struct RequestHeaders<'a> {
    headers: &'a HeaderMap,
    /// The protocol of a valid upgrade, whose headers are hop-by-hop.
    upgrade: Option<&'a HeaderValue>,
}

impl HeaderLines for RequestHeaders<'_> {
    fn any(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        if let Some(protocol) = self.upgrade.filter(|_| name == "upgrade") {
            return test(protocol.as_bytes());
        }
        self.headers.get_all(name).iter().any(|value| test(value.as_bytes()))
    }
}

struct MalformedHost;

/// The host of a request; empty for HTTP/1.0 without one. Ambiguous requests are malformed.
fn host(parts: &Parts) -> Result<&str, MalformedHost> {
    let mut lines = parts.headers.get_all(header::HOST).iter();
    let (line, more) = (lines.next(), lines.next());
    if more.is_some() {
        return Err(MalformedHost);
    }
    let line = line.map(|line| line.to_str()).transpose().map_err(|_| MalformedHost)?;
    let host = match (parts.uri.authority().map(Authority::as_str), line) {
        // RFC 9113, 8.3.1: the two must not differ.
        (Some(authority), Some(line)) if parts.version == Version::HTTP_2 && authority != line => {
            return Err(MalformedHost);
        }
        // RFC 9112, 3.2.2: the absolute form takes precedence over the Host header.
        (Some(authority), _) => authority,
        (None, Some(line)) => line,
        (None, None) if parts.version == Version::HTTP_10 => "",
        (None, None) => return Err(MalformedHost),
    };
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]%~!$&'()*+,;=".contains(&byte);
    if host.bytes().all(is_allowed) { Ok(host) } else { Err(MalformedHost) }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

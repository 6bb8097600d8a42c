//! The spans of one request. Attributes have the stable names of OpenTelemetry's conventions for HTTP, and `zoneward.*`
//! for what a route decided.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::{Instant, SystemTime};

use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version, header};
use model::route::{PathMatch, Scheme};
use model::{Locality, Name};

use super::encoding::{EncodedSpan, SpanKind};
use super::exporter::SpanExporter;
use super::trace_context::{TRACEPARENT, TRACESTATE, TraceContext, trace_state};
use crate::proxy::ProxyShared;
use crate::request_log::RequestLog;
use crate::upstream::backend::UpstreamBackend;
use crate::upstream::endpoint::EndpointProtocol;
use crate::upstream::load_balancer::WeightedEndpoint;

/// The trace that a request belongs to.
pub(crate) struct RequestTrace {
    /// The server span; that of the client if the request is not recorded and has one.
    context: TraceContext,
    trace_state: Option<HeaderValue>,
    /// The client decided not to sample; its headers pass unchanged.
    is_forwarded: bool,
    /// `None`: not sampled.
    spans: Option<RequestSpans>,
}

/// The spans of a request that is sampled.
struct RequestSpans {
    start: SpanStart,
    server: EncodedSpan,
    method: Method,
    http_route: Option<String>,
    attempt: Option<AttemptSpan>,
    attempts: u64,
    endpoint_zone: Option<Name>,
}

/// Wall time at the start; later times follow the monotonic clock.
#[derive(Clone, Copy)]
struct SpanStart {
    wall: u64,
    monotonic: Instant,
}

impl SpanStart {
    /// Nanoseconds since the epoch.
    fn now(self, proxy: &ProxyShared) -> u64 {
        let since = proxy.settings.clock.since(self.monotonic);
        self.wall.saturating_add(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// A client span: from the choice of an endpoint to the end of the response.
struct AttemptSpan {
    span: EncodedSpan,
    has_response: bool,
}

impl RequestTrace {
    pub(crate) fn start(
        exporter: &SpanExporter,
        proxy: &ProxyShared,
        (peer, scheme): (SocketAddr, Scheme),
        parts: &Parts,
        started: Instant,
    ) -> Self {
        let random = &proxy.random;
        let parent = TraceContext::of(&parts.headers);
        let context = match parent {
            Some(parent) if parent.is_sampled() => parent.child(random),
            Some(parent) => {
                return Self { context: parent, trace_state: None, is_forwarded: true, spans: None };
            }
            None => TraceContext::root(random, exporter.ratio),
        };
        let trace_state = parent.and_then(|_| trace_state(&parts.headers));
        let spans = context.is_sampled().then(|| {
            let start = SpanStart { wall: nanoseconds(proxy.settings.clock.wall()), monotonic: started };
            let state = trace_state.as_ref().map(HeaderValue::as_bytes);
            let parent = parent.map(|parent| parent.span_id);
            let mut server = EncodedSpan::new(SpanKind::Server, context, parent, state, start.wall);
            write_request(&mut server, parts, scheme);
            server.text("network.peer.address", &peer.ip().to_string());
            server.number("network.peer.port", peer.port().into());
            RequestSpans {
                start,
                server,
                method: parts.method.clone(),
                http_route: None,
                attempt: None,
                attempts: 0,
                endpoint_zone: None,
            }
        });
        Self { context, trace_state, is_forwarded: false, spans }
    }

    /// For the access log.
    pub(crate) fn context(&self) -> TraceContext {
        self.context
    }

    /// The match of a policy's rule; low cardinality, as `http.route` has to be.
    pub(crate) fn set_http_route(&mut self, path: &PathMatch) {
        let Some(spans) = &mut self.spans else { return };
        spans.http_route = Some(match path {
            PathMatch::Exact(path) => path.to_string(),
            PathMatch::Prefix(path) => format!("{}/*", path.trim_end_matches('/')),
            PathMatch::Regex(pattern) => pattern.as_str().to_owned(),
        });
    }

    /// Sets the context of the server span, which attempts replace with theirs.
    pub(crate) fn propagate(&self, headers: &mut HeaderMap) {
        if !self.is_forwarded {
            self.write(self.context, headers);
        }
    }

    fn write(&self, context: TraceContext, headers: &mut HeaderMap) {
        headers.insert(TRACEPARENT, context.header());
        match &self.trace_state {
            Some(state) => drop(headers.insert(TRACESTATE, state.clone())),
            None => drop(headers.remove(TRACESTATE)),
        }
    }

    /// Starts the span of an attempt, and makes it the parent of what the endpoint does.
    pub(crate) fn start_attempt<B>(
        &mut self,
        proxy: &ProxyShared,
        backend: &UpstreamBackend,
        chosen: &WeightedEndpoint,
        request: &mut Request<B>,
    ) {
        let Some(spans) = &mut self.spans else { return };
        let context = self.context.child(&proxy.random);
        let state = self.trace_state.as_ref().map(HeaderValue::as_bytes);
        let (parent, start) = (Some(self.context.span_id), spans.start.now(proxy));
        let mut span = EncodedSpan::new(SpanKind::Client, context, parent, state, start);
        write_method(&mut span, request.method());
        span.text("url.full", &full_url(request));
        let endpoint = &chosen.endpoint;
        let (address, port) = (endpoint.address.ip().to_string(), u64::from(endpoint.address.port()));
        for (name, number) in
            [("server.address", "server.port"), ("network.peer.address", "network.peer.port")]
        {
            span.text(name, &address);
            span.number(number, port);
        }
        let is_http2 = endpoint.protocol == EndpointProtocol::Http2;
        span.text("network.protocol.version", if is_http2 { "2" } else { "1.1" });
        if spans.attempts > 0 {
            span.number("http.request.resend_count", spans.attempts);
        }
        write_backend(&mut span, proxy, (&backend.label, chosen.locality), endpoint.zone.as_ref());
        spans.attempts += 1;
        spans.endpoint_zone = endpoint.zone.clone();
        spans.attempt = Some(AttemptSpan { span, has_response: false });
        self.write(context, request.headers_mut());
    }

    /// The endpoint responded; the span ends with the response.
    pub(crate) fn attempt_responded(&mut self, status: StatusCode) {
        let Some(attempt) = self.spans.as_mut().and_then(|spans| spans.attempt.as_mut()) else { return };
        attempt.has_response = true;
        attempt.span.number("http.response.status_code", status.as_u16().into());
        if status.is_client_error() || status.is_server_error() {
            attempt.span.failed(status.as_str());
        }
    }

    /// The attempt failed without a response.
    pub(crate) fn attempt_failed(&mut self, proxy: &ProxyShared, status: StatusCode, reason: Option<&str>) {
        let Some(spans) = &mut self.spans else { return };
        let Some(mut attempt) = spans.attempt.take() else { return };
        if let Some(reason) = reason {
            attempt.span.text("zoneward.reason", reason);
        }
        attempt.span.failed(match (reason, status) {
            (Some(_), _) => status.as_str(),
            (None, StatusCode::SERVICE_UNAVAILABLE) => "connection_failed",
            (None, StatusCode::GATEWAY_TIMEOUT) => "timeout",
            (None, _) => "connection_closed",
        });
        spans.export(proxy, attempt);
    }

    /// The request has ended.
    pub(crate) fn end(self, proxy: &ProxyShared, request: &RequestLog) {
        let Some(mut spans) = self.spans else { return };
        if let Some(mut attempt) = spans.attempt.take() {
            if !attempt.has_response {
                attempt.span.failed("canceled");
            } else if request.is_incomplete {
                attempt.span.failed("response_incomplete");
            }
            spans.export(proxy, attempt);
        }
        let name = span_name(&spans.method, spans.http_route.as_deref());
        let end = spans.start.now(proxy);
        let mut server = spans.server;
        if let Some(route) = &spans.http_route {
            server.text("http.route", route);
        }
        let client = request.forwarded_for.unwrap_or(request.client().ip());
        server.text("client.address", &client.to_string());
        if let Some(route) = &request.route {
            server.text("zoneward.route", &route.label);
            if let Some(policy) = route.policy() {
                server.text("zoneward.policy", policy);
            }
        }
        match &request.backend {
            Some((backend, locality)) => {
                let backend = (&*backend.label, *locality);
                write_backend(&mut server, proxy, backend, spans.endpoint_zone.as_ref());
            }
            None => write_zone(&mut server, proxy),
        }
        if let Some(reason) = request.reason {
            server.text("zoneward.reason", reason);
        }
        write_outcome(&mut server, request);
        if let Some(exporter) = &proxy.settings.span_exporter {
            exporter.put(server.end(&name, end));
        }
    }
}

impl RequestSpans {
    fn export(&self, proxy: &ProxyShared, attempt: AttemptSpan) {
        let name = span_name(&self.method, None);
        if let Some(exporter) = &proxy.settings.span_exporter {
            exporter.put(attempt.span.end(&name, self.start.now(proxy)));
        }
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn write_request(span: &mut EncodedSpan, parts: &Parts, scheme: Scheme) {
    write_method(span, &parts.method);
    span.text("url.scheme", scheme.as_str());
    span.text("url.path", parts.uri.path());
    if let Some(query) = parts.uri.query() {
        span.text("url.query", &redacted(query));
    }
    if let Some(authority) = authority(&parts.uri, &parts.headers) {
        span.text("server.address", authority.host());
        span.number("server.port", authority.port_u16().unwrap_or(scheme.default_port()).into());
    }
    span.text("network.protocol.version", protocol_version(parts.version));
    if let Some(agent) = parts.headers.get(header::USER_AGENT) {
        span.lossy("user_agent.original", agent.as_bytes());
    }
}

fn write_outcome(span: &mut EncodedSpan, request: &RequestLog) {
    if request.status != 0 {
        span.number("http.response.status_code", request.status.into());
    }
    match request.status {
        0 => span.failed("canceled"),
        500.. => span.failed(&request.status.to_string()),
        _ if request.is_incomplete => span.failed("response_incomplete"),
        _ => {}
    }
}

fn write_backend(
    span: &mut EncodedSpan,
    proxy: &ProxyShared,
    (backend, locality): (&str, Locality),
    endpoint_zone: Option<&Name>,
) {
    span.text("zoneward.backend", backend);
    span.text("zoneward.locality", locality.as_str());
    write_zone(span, proxy);
    if let Some(zone) = endpoint_zone {
        span.text("zoneward.endpoint.zone", zone);
    }
}

/// The zone of the proxy: of a sidecar's client, or of the gateway.
fn write_zone(span: &mut EncodedSpan, proxy: &ProxyShared) {
    if let Some(zone) = &proxy.active_tables().tables.backends.consumer.zone {
        span.text("zoneward.client.zone", zone);
    }
}

/// Other methods could be of any number.
fn known_method(method: &Method) -> Option<&str> {
    let known = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "CONNECT", "TRACE", "QUERY"];
    known.into_iter().find(|known| *known == method.as_str())
}

fn write_method(span: &mut EncodedSpan, method: &Method) {
    match known_method(method) {
        Some(method) => span.text("http.request.method", method),
        None => {
            span.text("http.request.method", "_OTHER");
            span.text("http.request.method_original", method.as_str());
        }
    }
}

fn span_name(method: &Method, http_route: Option<&str>) -> String {
    let method = known_method(method).unwrap_or("HTTP");
    http_route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}"))
}

fn protocol_version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}

fn authority(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    let host = || headers.get(header::HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
    uri.authority().cloned().or_else(host)
}

/// Without a user and password.
fn full_url<B>(request: &Request<B>) -> String {
    let authority = authority(request.uri(), request.headers());
    let host = authority.as_ref().map_or("", Authority::host);
    let port = authority.as_ref().and_then(Authority::port_u16).map(|port| format!(":{port}"));
    let (port, path) = (port.unwrap_or_default(), request.uri().path());
    let query = request.uri().path_and_query().and_then(PathAndQuery::query);
    let query = query.map(|query| format!("?{}", redacted(query))).unwrap_or_default();
    format!("http://{host}{port}{path}{query}")
}

/// Parameters that sign URLs, by the conventions for `url.query`.
const SECRET_PARAMETERS: [&str; 4] = ["AWSAccessKeyId", "Signature", "sig", "X-Goog-Signature"];

fn redacted(query: &str) -> Cow<'_, str> {
    let name = |parameter: &str| parameter.split_once('=').map_or("", |(name, _)| name).to_owned();
    let is_secret = |parameter: &str| SECRET_PARAMETERS.contains(&name(parameter).as_str());
    if !query.split('&').any(is_secret) {
        return Cow::Borrowed(query);
    }
    let show = |parameter: &str| match is_secret(parameter) {
        true => format!("{}=REDACTED", name(parameter)),
        false => parameter.to_owned(),
    };
    Cow::Owned(query.split('&').map(show).collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_in_queries_are_redacted() {
        assert_eq!(redacted("a=1&b"), "a=1&b");
        assert_eq!(
            redacted("a=1&sig=secret&Signature=x=y&sigma=2"),
            "a=1&sig=REDACTED&Signature=REDACTED&sigma=2"
        );
    }

    #[test]
    fn urls_have_no_credentials() {
        let request = Request::get("http://user:password@host:8080/p?q=1").body(()).expect("a request");
        assert_eq!(full_url(&request), "http://host:8080/p?q=1");
        let request = Request::get("/p").header("host", "a.test").body(()).expect("a request");
        assert_eq!(full_url(&request), "http://a.test/p");
    }

    #[test]
    fn unknown_methods_do_not_name_spans() {
        let other = Method::from_bytes(b"BREW").expect("a token");
        assert_eq!(span_name(&other, Some("/tea")), "HTTP /tea");
        assert_eq!(span_name(&Method::GET, None), "GET");
    }
}

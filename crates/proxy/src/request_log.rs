//! The record of one request, from its headers to the end of its response or to its cancellation: counters and the
//! access log line.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::request::Parts;
use http::{HeaderValue, Method, Uri, Version, header};
use listener::ConnectionOwner;
use model::Locality;
use model::backend::CircuitBreakerLimits;

use crate::downstream::connection::HttpConnection;
use crate::downstream::idle_timeout::ConnectionActivity;
use crate::overload::request_slots::{HeldRequest, RequestSlot};
use crate::proxy::ProxyShared;
use crate::spans::request_trace::RequestTrace;
use crate::stats::RouteStats;
use crate::upstream::backend::UpstreamBackend;
use crate::upstream::circuit_breaker::max_requests;
use crate::upstream::endpoint::EndpointProtocol;

/// Written when it is dropped.
pub(crate) struct RequestLog {
    proxy: Arc<ProxyShared>,
    activity: Arc<ConnectionActivity>,
    client: SocketAddr,
    /// The client that trusted proxies name.
    pub(crate) forwarded_for: Option<IpAddr>,
    /// The response has no body, whatever its headers say.
    pub(crate) is_head: bool,
    pub(crate) started: Instant,
    pub(crate) route: Option<Arc<RouteStats>>,
    pub(crate) backend: Option<(Arc<UpstreamBackend>, Locality)>,
    pub(crate) endpoint: Option<SocketAddr>,
    /// 0 until there is a response.
    pub(crate) status: u16,
    pub(crate) sent: u64,
    /// The response body ended early.
    pub(crate) is_incomplete: bool,
    /// Why the proxy replied itself, where the status does not say.
    pub(crate) reason: Option<&'static str>,
    /// `None` without an exporter.
    pub(crate) trace: Option<Box<RequestTrace>>,
    slots: HeldSlots,
    logged: Option<Box<LoggedFields>>,
}

/// The slots of a request, until its response ends or the tunnel that it became.
#[derive(Debug, Default)]
struct HeldSlots {
    of_proxy: Option<RequestSlot>,
    of_backend: Option<RequestSlot>,
    /// `None`: no slot is in a ledger, so the request cannot be evicted.
    held: Option<Arc<HeldRequest>>,
    /// One of the slots was refused.
    is_refused: bool,
}

impl HeldSlots {
    fn release(
        &mut self,
        proxy: &ProxyShared,
        backend: Option<&UpstreamBackend>,
        activity: &ConnectionActivity,
    ) {
        let is_evicted = self.held.as_ref().is_some_and(|held| held.signal.is_set());
        if self.of_proxy.is_some() && !self.is_refused && !is_evicted {
            activity.set_refused(false);
        }
        if let Some(slot) = self.of_proxy.take() {
            proxy.requests.release(slot);
        }
        if let (Some(slot), Some(backend)) = (self.of_backend.take(), backend) {
            backend.breaker.requests.release(slot);
        }
        self.held = None;
    }
}

/// The slots of a tunnel, until it is dropped.
pub(crate) struct TunnelSlots {
    proxy: Arc<ProxyShared>,
    backend: Option<Arc<UpstreamBackend>>,
    activity: Arc<ConnectionActivity>,
    slots: HeldSlots,
}

impl Drop for TunnelSlots {
    fn drop(&mut self) {
        self.slots.release(&self.proxy, self.backend.as_deref(), &self.activity);
    }
}

/// Fields of the request that only the access log needs; `None` without one.
struct LoggedFields {
    method: Method,
    uri: Uri,
    version: Version,
    host: Option<HeaderValue>,
    request_id: Option<HeaderValue>,
    trace: Option<HeaderValue>,
}

impl RequestLog {
    pub(crate) fn open(connection: &HttpConnection, parts: &Parts) -> Self {
        let HttpConnection { proxy, activity, addresses, arrival, .. } = connection;
        let (client, started) = (addresses.client, proxy.settings.clock.now());
        activity.request_started(proxy.at(started));
        let trace = proxy.settings.span_exporter.as_ref().map(|exporter| {
            let from = (client, arrival.scheme);
            Box::new(RequestTrace::start(exporter, proxy, from, parts, started))
        });
        let logged = proxy.settings.access_log.is_some().then(|| {
            Box::new(LoggedFields {
                method: parts.method.clone(),
                uri: parts.uri.clone(),
                version: parts.version,
                host: parts.headers.get(header::HOST).cloned(),
                request_id: parts.headers.get("x-request-id").cloned(),
                trace: parts.headers.get("traceparent").cloned(),
            })
        });
        Self {
            proxy: proxy.clone(),
            activity: activity.clone(),
            client,
            forwarded_for: None,
            is_head: parts.method == Method::HEAD,
            started,
            route: None,
            backend: None,
            endpoint: None,
            status: 0,
            sent: 0,
            is_incomplete: false,
            reason: None,
            trace,
            slots: HeldSlots::default(),
            logged,
        }
    }

    pub(crate) fn client(&self) -> SocketAddr {
        self.client
    }

    pub(crate) fn activity(&self) -> &Arc<ConnectionActivity> {
        &self.activity
    }

    /// Takes one of the slots for requests in flight.
    pub(crate) fn take_slot_of_proxy(&mut self) -> bool {
        let (proxy, slots) = (&self.proxy, &mut self.slots);
        let (limit, now) = (proxy.settings.limits.requests, proxy.at(self.started));
        let client = self.activity.client();
        slots.of_proxy = proxy.requests.acquire(limit, now, client, &self.activity, &mut slots.held);
        slots.is_refused = slots.of_proxy.is_none();
        !slots.is_refused
    }

    /// Takes one of a backend's slots, unless it has one. It counts for the client that trusted proxies name.
    pub(crate) fn take_slot_of_backend(
        &mut self,
        backend: &UpstreamBackend,
        limits: &CircuitBreakerLimits,
        protocol: EndpointProtocol,
    ) -> bool {
        let slots = &mut self.slots;
        if slots.of_backend.is_none() {
            let limit = max_requests(limits, protocol);
            let now = self.proxy.at(self.started);
            let named = self.forwarded_for.map(ConnectionOwner::source);
            let client = named.as_ref().unwrap_or(self.activity.client());
            let requests = &backend.breaker.requests;
            slots.of_backend = requests.acquire(limit, now, client, &self.activity, &mut slots.held);
            slots.is_refused = slots.of_backend.is_none();
        }
        slots.of_backend.is_some()
    }

    /// The response has begun.
    pub(crate) fn begin_streaming(&self) {
        let Some(held) = &self.slots.held else { return };
        held.begin_streaming();
        if let Some(slot) = &self.slots.of_proxy {
            self.proxy.requests.begin_streaming(slot);
        }
        if let (Some(slot), Some((backend, _))) = (&self.slots.of_backend, &self.backend) {
            backend.breaker.requests.begin_streaming(slot);
        }
    }

    /// Never ends, if the request has no slot in a ledger.
    pub(crate) async fn evicted(&self) {
        match &self.slots.held {
            Some(held) => held.signal.wait().await,
            None => std::future::pending().await,
        }
    }

    /// Gives the slots back before the request ends.
    pub(crate) fn release_slots(&mut self) {
        let backend = self.backend.as_ref().map(|(backend, _)| &**backend);
        self.slots.release(&self.proxy, backend, &self.activity);
    }

    /// Moves the slots to the tunnel that the request becomes.
    pub(crate) fn take_slots(&mut self) -> TunnelSlots {
        self.begin_streaming();
        let backend = self.backend.as_ref().map(|(backend, _)| backend.clone());
        let (proxy, activity) = (self.proxy.clone(), self.activity.clone());
        TunnelSlots { proxy, backend, activity, slots: std::mem::take(&mut self.slots) }
    }

    fn write(&self, duration: Duration) {
        let (Some(log), Some(logged)) = (&self.proxy.settings.access_log, &self.logged) else { return };
        let mut line = JsonLine::new();
        line.time(&self.proxy);
        line.text("client", &self.client.to_string());
        let forwarded_for = self.forwarded_for.map(|ip| ip.to_string());
        line.bytes("forwardedFor", forwarded_for.as_deref().map(str::as_bytes));
        line.text("protocol", protocol(logged.version));
        line.text("method", logged.method.as_str());
        let host = logged.uri.authority().map(|authority| authority.as_str().as_bytes());
        line.bytes("host", host.or_else(|| logged.host.as_ref().map(HeaderValue::as_bytes)));
        line.text("path", logged.uri.path_and_query().map_or("*", |target| target.as_str()));
        line.number("status", self.status.into());
        line.bytes("route", self.route.as_ref().map(|route| route.label.as_bytes()));
        line.bytes("backend", self.backend.as_ref().map(|(backend, _)| backend.label.as_bytes()));
        line.bytes(
            "endpoint",
            self.endpoint.map(|address| address.to_string()).as_deref().map(str::as_bytes),
        );
        line.bytes("locality", self.backend.as_ref().map(|(_, locality)| locality.as_str().as_bytes()));
        line.number("sent", self.sent);
        line.number("microseconds", u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
        line.bytes("requestId", logged.request_id.as_ref().map(HeaderValue::as_bytes));
        let trace = self.trace.as_ref().map(|trace| trace.context().header());
        line.bytes("traceparent", trace.as_ref().or(logged.trace.as_ref()).map(HeaderValue::as_bytes));
        line.bytes("reason", self.reason.map(str::as_bytes));
        if self.is_incomplete {
            line.text("broken", "the response ended early");
        }
        log.line(|out| line.end_into(out));
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        self.activity.request_ended();
        self.release_slots();
        let duration = self.proxy.settings.clock.since(self.started);
        if let Some(route) = &self.route {
            route.statuses.inc(self.status);
            route.durations.observe(duration);
        }
        if let Some((backend, locality)) = &self.backend {
            backend.stats.statuses.inc(self.status);
            backend.stats.localities[*locality as usize].inc();
        }
        self.write(duration);
        if let Some(trace) = self.trace.take() {
            trace.end(&self.proxy, self);
        }
    }
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        _ => "HTTP/1.1",
    }
}

/// A JSON object on one line.
struct JsonLine(String);

impl JsonLine {
    fn new() -> Self {
        Self(String::with_capacity(512))
    }

    fn key(&mut self, key: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        let _ = write!(self.0, "\"{key}\":");
    }

    fn time(&mut self, proxy: &ProxyShared) {
        self.text("time", &format!("{:.3}", proxy.settings.clock.timestamp()));
    }

    fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        let _ = write!(self.0, "{value}");
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        self.0.push('"');
        for letter in value.chars() {
            match letter {
                '"' | '\\' => self.0.extend(['\\', letter]),
                control if control.is_control() => {
                    let _ = write!(self.0, "\\u{:04x}", control as u32);
                }
                plain => self.0.push(plain),
            }
        }
        self.0.push('"');
    }

    /// Bytes that are not UTF-8 become replacement characters.
    fn bytes(&mut self, key: &str, value: Option<&[u8]>) {
        if let Some(value) = value {
            self.text(key, &String::from_utf8_lossy(value));
        }
    }

    fn end_into(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0.as_bytes());
        out.push(b'}');
    }
}

/// Writes the access log line of a TCP connection.
pub(crate) fn log_connection(
    proxy: &ProxyShared,
    client: SocketAddr,
    backend: Option<(&UpstreamBackend, Locality)>,
    endpoint: SocketAddr,
    bytes: (u64, u64),
    duration: Duration,
) {
    let Some(log) = &proxy.settings.access_log else { return };
    let mut line = JsonLine::new();
    line.time(proxy);
    line.text("client", &client.to_string());
    line.text("protocol", "TCP");
    line.bytes("backend", backend.map(|(backend, _)| backend.label.as_bytes()));
    line.text("endpoint", &endpoint.to_string());
    line.bytes("locality", backend.map(|(_, locality)| locality.as_str().as_bytes()));
    line.number("received", bytes.0);
    line.number("sent", bytes.1);
    line.number("microseconds", u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    log.line(|out| line.end_into(out));
}

//! The account of one request: opened when its head is read, settled when the last byte of the answer is out, or
//! when somebody went away before.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use http::request::Parts;
use http::{HeaderValue, Method, Uri, Version, header};
use model::Locality;

use crate::proxy::Inner;
use crate::registry::Account;
use crate::slot::Slot;
use crate::stream::Activity;

/// The account of one request.
pub(crate) struct Ticket {
    proxy: Arc<Inner>,
    activity: Arc<Activity>,
    client: SocketAddr,
    /// Whether the answer has no body, whatever its head says.
    pub(crate) is_head: bool,
    pub(crate) began: Instant,
    pub(crate) account: Option<Arc<Account>>,
    pub(crate) backend: Option<(Arc<Slot>, Locality)>,
    pub(crate) endpoint: Option<SocketAddr>,
    /// 0 until there is an answer.
    pub(crate) status: u16,
    pub(crate) sent: u64,
    pub(crate) is_broken: bool,
    /// Why the proxy answered itself, where the status does not say.
    pub(crate) reason: Option<&'static str>,
    said: Option<Box<Said>>,
}

/// What the log tells of a request; kept only where there is a log.
struct Said {
    method: Method,
    uri: Uri,
    version: Version,
    host: Option<HeaderValue>,
    request_id: Option<HeaderValue>,
    trace: Option<HeaderValue>,
}

impl Ticket {
    pub(crate) fn open(
        proxy: &Arc<Inner>,
        activity: &Arc<Activity>,
        client: SocketAddr,
        parts: &Parts,
    ) -> Self {
        activity.begin();
        proxy.begin_request();
        let said = proxy.settings.access_log.is_some().then(|| {
            Box::new(Said {
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
            is_head: parts.method == Method::HEAD,
            began: Instant::now(),
            account: None,
            backend: None,
            endpoint: None,
            status: 0,
            sent: 0,
            is_broken: false,
            reason: None,
            said,
        }
    }

    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    fn log(&self, took: std::time::Duration) {
        let (Some(log), Some(said)) = (&self.proxy.settings.access_log, &self.said) else { return };
        let mut line = Line::new();
        line.text("time", &now());
        line.text("client", &self.client.to_string());
        line.text("protocol", protocol(said.version));
        line.text("method", said.method.as_str());
        let host = said.uri.authority().map(|authority| authority.as_str().as_bytes());
        line.bytes("host", host.or_else(|| said.host.as_ref().map(HeaderValue::as_bytes)));
        line.text("path", said.uri.path_and_query().map_or("*", |target| target.as_str()));
        line.number("status", self.status.into());
        line.bytes("route", self.account.as_ref().map(|account| account.label.as_bytes()));
        line.bytes("backend", self.backend.as_ref().map(|(slot, _)| slot.label.as_bytes()));
        line.bytes(
            "endpoint",
            self.endpoint.map(|address| address.to_string()).as_deref().map(str::as_bytes),
        );
        line.bytes("locality", self.backend.as_ref().map(|(_, locality)| locality.as_str().as_bytes()));
        line.number("sent", self.sent);
        line.number("microseconds", u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        line.bytes("requestId", said.request_id.as_ref().map(HeaderValue::as_bytes));
        line.bytes("traceparent", said.trace.as_ref().map(HeaderValue::as_bytes));
        line.bytes("reason", self.reason.map(str::as_bytes));
        if self.is_broken {
            line.text("broken", "the answer ended early");
        }
        log.line(|out| line.end_into(out));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.activity.end();
        self.proxy.end_request();
        let took = self.began.elapsed();
        if let Some(account) = &self.account {
            account.counts.statuses.add(self.status);
            account.counts.durations.add(took);
        }
        if let Some((slot, locality)) = &self.backend {
            slot.counts.statuses.add(self.status);
            slot.counts.localities[*locality as usize].add();
        }
        self.log(took);
    }
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        _ => "HTTP/1.1",
    }
}

fn now() -> String {
    jiff::Timestamp::try_from(SystemTime::now()).map(|time| format!("{time:.3}")).unwrap_or_default()
}

/// A JSON object on one line.
pub(crate) struct Line(String);

impl Line {
    pub(crate) fn new() -> Self {
        Self(String::with_capacity(512))
    }

    fn key(&mut self, key: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        let _ = write!(self.0, "\"{key}\":");
    }

    pub(crate) fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        let _ = write!(self.0, "{value}");
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
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

    /// Whatever came; what is not UTF-8 is shown as such.
    pub(crate) fn bytes(&mut self, key: &str, value: Option<&[u8]>) {
        if let Some(value) = value {
            self.text(key, &String::from_utf8_lossy(value));
        }
    }

    pub(crate) fn end_into(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0.as_bytes());
        out.push(b'}');
    }
}

/// The account of a connection that is carried whole.
pub(crate) fn log_connection(
    proxy: &Inner,
    client: SocketAddr,
    backend: Option<(&Slot, Locality)>,
    endpoint: SocketAddr,
    bytes: (u64, u64),
    took: std::time::Duration,
) {
    let Some(log) = &proxy.settings.access_log else { return };
    let mut line = Line::new();
    line.text("time", &now());
    line.text("client", &client.to_string());
    line.text("protocol", "TCP");
    line.bytes("backend", backend.map(|(slot, _)| slot.label.as_bytes()));
    line.text("endpoint", &endpoint.to_string());
    line.bytes("locality", backend.map(|(_, locality)| locality.as_str().as_bytes()));
    line.number("received", bytes.0);
    line.number("sent", bytes.1);
    line.number("microseconds", u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    log.line(|out| line.end_into(out));
}

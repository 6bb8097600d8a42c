//! A small HTTP server for those who look after us: health, metrics, and what else a part has to show. What it
//! answers is a table of paths; connections, headers and the farewell are bounded.

pub mod controllers;
mod counters;
pub mod embedded_api;
mod exposition;
mod health;
mod process;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt};
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::supervisor;
pub use counters::BareCounter;
pub use health::Checks;
pub use process::registry;

/// How many connections may be open: a few probes and scrapers come, no crowd.
const CONNECTIONS: usize = 128;
/// How long a client may take to send its headers, and to come back on an open connection.
const HEADERS: Duration = Duration::from_secs(30);
/// How long answers under way may take after the stop.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long until a port is tried again that somebody else has.
const AGAIN: Duration = Duration::from_secs(5);
/// How often an address that stays taken is logged.
const REMINDER: Duration = Duration::from_secs(60);
const BACKLOG: u32 = 128;
const TEXT: &str = "text/plain; charset=utf-8";

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The status.
    pub status: StatusCode,
    /// What the body is.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
    /// A header that is not usual.
    pub header: Option<(&'static str, String)>,
}

impl Page {
    /// Plain text.
    pub fn text(status: StatusCode, body: impl Into<String>) -> Self {
        Self { status, content_type: TEXT, body: body.into(), header: None }
    }

    /// JSON.
    pub fn json(status: StatusCode, body: &serde_json::Value) -> Self {
        Self { status, content_type: "application/json", body: body.to_string(), header: None }
    }

    /// The same with one more header.
    pub fn with_header(self, name: &'static str, value: String) -> Self {
        Self { header: Some((name, value)), ..self }
    }
}

type Handler = Arc<dyn Fn(&Parts) -> Page + Send + Sync>;

/// What is answered where.
#[derive(Clone, Default)]
pub struct Routes {
    handlers: BTreeMap<&'static str, Handler>,
    otherwise: Option<Handler>,
}

impl Routes {
    /// Answers a path by a function, which must not wait.
    pub fn page(
        mut self,
        path: &'static str,
        handler: impl Fn(&Parts) -> Page + Send + Sync + 'static,
    ) -> Self {
        self.handlers.insert(path, Arc::new(handler));
        self
    }

    /// Answers a path by checks: 200 when all are fine, else 503 and which are not.
    pub fn checks(self, path: &'static str, checks: Checks) -> Self {
        self.page(path, move |head| checks.page(head.uri.query().unwrap_or_default()))
    }

    /// Answers every path that has no answer of its own.
    pub fn otherwise(mut self, handler: impl Fn(&Parts) -> Page + Send + Sync + 'static) -> Self {
        self.otherwise = Some(Arc::new(handler));
        self
    }

    /// Shows metrics at `/metrics`.
    pub fn metrics(self, registry: Registry) -> Self {
        self.page("/metrics", move |head| metrics(&registry, head))
    }

    fn answer(&self, head: &Parts) -> Page {
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return Page::text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        }
        match self.handlers.get(head.uri.path()).or(self.otherwise.as_ref()) {
            Some(handler) => handler(head),
            None => {
                let paths: Vec<&str> = self.handlers.keys().copied().collect();
                Page::text(StatusCode::NOT_FOUND, format!("not here; there is {}\n", paths.join(", ")))
            }
        }
    }
}

/// Metrics: as OpenMetrics to whoever accepts that, else as Prometheus' text.
pub fn metrics(registry: &Registry, head: &Parts) -> Page {
    let accept = head.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    exposition::page(registry, accept.collect::<Vec<_>>().join(",").as_str())
}

/// Listens for health and metrics where the flag says, or at the usual address. Several daemons on one machine are
/// nothing unusual: the usual port may be taken, and so may the one that `zoneward up` gives to a child.
pub async fn listen_or_near(wish: Option<SocketAddr>, usual: SocketAddr, flag: &str) -> Result<TcpListener> {
    let (wish, usual) = match wish {
        Some(given) if supervisor::is_child() => (None, given),
        wish => (wish, usual),
    };
    let listener = match wish {
        Some(address) => listen(address, flag).await?,
        None => match TcpListener::bind(usual).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                warn!(address = %usual, flag, "address for health and metrics is in use; taking a free port");
                listen(SocketAddr::new(usual.ip(), 0), flag).await?
            }
            bound => bound.with_context(|| format!("listening on {usual}: choose with {flag}"))?,
        },
    };
    let address = listener.local_addr().context("asking for the address that we listen on")?;
    info!(url = %format_args!("http://{address}"), "serving health and metrics");
    Ok(listener)
}

/// Listens, so that whoever gives a wrong address hears of it before anything else begins.
pub async fn listen(address: SocketAddr, flag: &str) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("listening on {address}: choose another address with {flag}"))
}

/// Listens on just this address: one of IPv6 stands for itself alone, so that `::` and `0.0.0.0` go together.
pub fn listen_alone(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address.ip() {
        IpAddr::V4(_) => TcpSocket::new_v4()?,
        IpAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
            socket
        }
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves at an address; where that cannot be listened on, it is tried again every five seconds.
pub async fn keep_serving(
    name: &'static str,
    address: SocketAddr,
    routes: Routes,
    mut stop: watch::Receiver<bool>,
) {
    let mut outage = Taken::default();
    loop {
        match listen_alone(address) {
            Ok(listener) => {
                info!(server = name, %address, "listening");
                return serve(listener, routes, stop).await;
            }
            Err(error) => outage.failed(name, address, &error),
        }
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

/// An address that is taken, as log lines: one at once, then one a minute.
#[derive(Default)]
struct Taken {
    said: Option<Instant>,
}

impl Taken {
    fn failed(&mut self, name: &str, address: SocketAddr, error: &io::Error) {
        if self.said.is_none_or(|said| said.elapsed() >= REMINDER) {
            self.said = Some(Instant::now());
            tracing::error!(server = name, %address, %error, "cannot listen; retrying every 5 s");
        }
    }
}

/// Serves until `stop` turns true, or nobody is left who could turn it.
pub async fn serve(listener: TcpListener, routes: Routes, mut stop: watch::Receiver<bool>) {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = accepted else {
            // Without descriptors, waiting a little is all that helps.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Ok(permit) = free.clone().try_acquire_owned() else { continue };
        let connection = talk(stream, routes.clone(), stop.clone());
        connections.spawn(async move {
            let _permit = permit;
            connection.await;
        });
    }
    let farewell = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(FAREWELL, farewell).await;
}

async fn talk(stream: TcpStream, routes: Routes, mut stop: watch::Receiver<bool>) {
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let answer = response(&routes, &request.into_parts().0);
        async move { Ok::<_, Infallible>(answer) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADERS);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        // A client that breaks off is no news.
        _ = connection.as_mut() => return,
        _ = stop.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

fn response(routes: &Routes, head: &Parts) -> Response<Full<Bytes>> {
    let page = routes.answer(head);
    let mut response = Response::new(Full::new(Bytes::from(page.body)));
    *response.status_mut() = page.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    if let Some((name, value)) = page.header
        && let Ok(value) = HeaderValue::from_str(&value)
    {
        headers.insert(name, value);
    }
    if page.status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

#[cfg(test)]
mod tests;

//! The admin HTTP server of every daemon: health, metrics and debug pages from a table of routes. Connections, headers and
//! the drain are bounded, and each client address has connections reserved: a probe is answered whatever others hold. Off
//! loopback, all pages but health require HTTPS and a token ([`access`]).

pub mod access;
pub mod controller_health;
mod exposition;
mod health;
mod process_metrics;
mod unsuffixed_counter;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use ::listener::{ConnectionOwner, ConnectionPlace, FairConnections};
use anyhow::{Context, Result};
use bytes::Bytes;
use clock::Clock;
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt};
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::supervisor;
pub use access::ReviewedUser;
use access::{AdminAccess, AdminStream};
pub use health::HealthChecks;
pub use process_metrics::registry;
pub use unsuffixed_counter::UnsuffixedCounter;

/// Connections of probes and scrapers to one address.
const MAX_CONNECTIONS: usize = 128;
/// Time for responses in flight after a stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for a client to send its headers, and idle timeout of a connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a client to take a response, and lifetime of a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval between attempts to bind an address.
const BIND_RETRY: Duration = Duration::from_secs(5);
/// Interval between log lines about an address that cannot be bound.
const REMINDER: Duration = Duration::from_secs(60);
const BACKLOG: u32 = 128;
/// Longest body of a POST, and time for a client to send it.
const MAX_BODY_BYTES: usize = 512 << 10;
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections to the admin servers of this process that were closed because others needed their places.
static EVICTED: LazyLock<Arc<AtomicU64>> = LazyLock::new(Arc::default);
const TEXT: &str = "text/plain; charset=utf-8";

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminPage {
    pub status: StatusCode,
    pub content_type: &'static str,
    pub body: String,
    pub header: Option<(&'static str, String)>,
}

impl AdminPage {
    pub fn text(status: StatusCode, body: impl Into<String>) -> Self {
        Self { status, content_type: TEXT, body: body.into(), header: None }
    }

    pub fn json(status: StatusCode, body: &serde_json::Value) -> Self {
        Self { status, content_type: "application/json", body: body.to_string(), header: None }
    }

    pub fn with_header(self, name: &'static str, value: String) -> Self {
        Self { header: Some((name, value)), ..self }
    }
}

type Handler = Arc<dyn Fn(&Parts) -> AdminPage + Send + Sync>;
/// The body of a response, which may go on for the lifetime of the connection.
pub type AdminBody = UnsyncBoxBody<Bytes, Infallible>;
type RequestHandler =
    Arc<dyn Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = Response<AdminBody>> + Send>> + Send + Sync>;
type WaitingHandler = Arc<dyn Fn(&Parts) -> Pin<Box<dyn Future<Output = AdminPage> + Send>> + Send + Sync>;
type PostHandler = Arc<dyn Fn(&AdminPost) -> AdminPage + Send + Sync>;

/// A request with a body, from an account that may send it.
#[derive(Clone, Debug)]
pub struct AdminPost {
    /// The account; `None` for processes that may open the Unix socket.
    pub user: Option<ReviewedUser>,
    /// `None` on a Unix socket.
    pub peer: Option<IpAddr>,
    pub body: Bytes,
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug)]
struct AdminPeer {
    is_tls: bool,
    /// `None` on a Unix socket.
    address: Option<IpAddr>,
}

/// The handlers by path.
#[derive(Clone, Default)]
pub struct AdminRoutes {
    handlers: BTreeMap<&'static str, Handler>,
    waiting: BTreeMap<&'static str, WaitingHandler>,
    posts: BTreeMap<&'static str, PostHandler>,
    fallback: Option<Handler>,
    /// Answers whole requests to all other paths.
    requests: Option<RequestHandler>,
    /// Paths that need no token.
    open: BTreeSet<&'static str>,
    access: Option<Arc<AdminAccess>>,
}

impl AdminRoutes {
    /// Adds a handler, which must not block.
    pub fn page(
        mut self,
        path: &'static str,
        handler: impl Fn(&Parts) -> AdminPage + Send + Sync + 'static,
    ) -> Self {
        self.handlers.insert(path, Arc::new(handler));
        self
    }

    /// Adds a handler that may wait.
    pub fn waiting_page<F: Future<Output = AdminPage> + Send + 'static>(
        mut self,
        path: &'static str,
        handler: impl Fn(&Parts) -> F + Send + Sync + 'static,
    ) -> Self {
        self.waiting.insert(path, Arc::new(move |head| Box::pin(handler(head))));
        self
    }

    /// Adds a handler whose page needs no token.
    pub fn open_page(
        mut self,
        path: &'static str,
        handler: impl Fn(&Parts) -> AdminPage + Send + Sync + 'static,
    ) -> Self {
        self.open.insert(path);
        self.page(path, handler)
    }

    /// Adds a handler of POST, which must not block. It needs a token, or a Unix socket: on loopback without tokens, it is
    /// refused.
    pub fn post(
        mut self,
        path: &'static str,
        handler: impl Fn(&AdminPost) -> AdminPage + Send + Sync + 'static,
    ) -> Self {
        self.posts.insert(path, Arc::new(handler));
        self
    }

    /// Requires HTTPS and a token for all pages that are not open; `None` requires nothing.
    pub fn with_access(self, access: Option<Arc<AdminAccess>>) -> Self {
        Self { access, ..self }
    }

    /// Adds a health endpoint: 200, or 503 with the failed checks.
    pub fn checks(self, path: &'static str, checks: HealthChecks) -> Self {
        self.open_page(path, move |head| checks.page(head.uri.query().unwrap_or_default()))
    }

    /// Sets the handler of all other paths.
    pub fn fallback(mut self, handler: impl Fn(&Parts) -> AdminPage + Send + Sync + 'static) -> Self {
        self.fallback = Some(Arc::new(handler));
        self
    }

    /// Sets the handler of whole requests, of any method, to all other paths. Access is checked before.
    pub fn requests<F: Future<Output = Response<AdminBody>> + Send + 'static>(
        mut self,
        handler: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    ) -> Self {
        self.requests = Some(Arc::new(move |request| Box::pin(handler(request))));
        self
    }

    /// The handler of whole requests, if the path has no other.
    fn request_handler(&self, path: &str) -> Option<RequestHandler> {
        let is_other = !self.handlers.contains_key(path) && !self.waiting.contains_key(path);
        self.requests.clone().filter(|_| is_other)
    }

    /// The account whose token was reviewed, if one is required, or the response that refuses the request.
    async fn user(&self, head: &Parts, peer: AdminPeer) -> Result<Option<ReviewedUser>, AdminPage> {
        match &self.access {
            Some(access) if peer.address.is_some() && !self.open.contains(head.uri.path()) => {
                access.check(head, peer.is_tls).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Serves `/metrics`.
    pub fn metrics(self, registry: impl Into<Arc<Registry>>) -> Self {
        let registry = registry.into();
        self.page("/metrics", move |head| metrics(&registry, head))
    }

    async fn respond(&self, head: &Parts, body: Incoming, peer: AdminPeer) -> AdminPage {
        let user = match self.user(head, peer).await {
            Ok(user) => user,
            Err(refusal) => return refusal,
        };
        if let (Some(handler), &Method::POST) = (self.posts.get(head.uri.path()), &head.method) {
            return match read_body(body).await {
                Some(body) if user.is_some() || peer.address.is_none() => {
                    handler(&AdminPost { user, peer: peer.address, body })
                }
                Some(_) => {
                    let text = "a token is required: send it over HTTPS to an address off loopback\n";
                    AdminPage::text(StatusCode::FORBIDDEN, text)
                }
                None => AdminPage::text(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large or slow\n"),
            };
        }
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return AdminPage::text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed: use GET or HEAD\n");
        }
        if let Some(handler) = self.waiting.get(head.uri.path()) {
            return handler(head).await;
        }
        match self.handlers.get(head.uri.path()).or(self.fallback.as_ref()) {
            Some(handler) => handler(head),
            None => {
                let paths: Vec<&str> = self.handlers.keys().chain(self.waiting.keys()).copied().collect();
                AdminPage::text(StatusCode::NOT_FOUND, format!("not found; paths: {}\n", paths.join(", ")))
            }
        }
    }
}

async fn read_body(body: Incoming) -> Option<Bytes> {
    let read = Limited::new(body, MAX_BODY_BYTES).collect();
    Some(tokio::time::timeout(BODY_TIMEOUT, read).await.ok()?.ok()?.to_bytes())
}

/// Metrics as OpenMetrics if the client accepts it, else in Prometheus' text format.
pub fn metrics(registry: &Registry, head: &Parts) -> AdminPage {
    let accept = head.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    metrics_accepted(registry, &accept.collect::<Vec<_>>().join(","))
}

/// Metrics in the format of an Accept header.
pub fn metrics_accepted(registry: &Registry, accept: &str) -> AdminPage {
    exposition::page(registry, accept)
}

/// Listens for health and metrics at the address of the flag, or at the default. Several daemons may share a machine: if
/// the default port is in use, or the one that `zoneward up` passes to a child, the kernel chooses a free port.
pub async fn listen_or_fallback_port(
    flag_address: Option<SocketAddr>,
    default: SocketAddr,
    flag: &str,
) -> Result<TcpListener> {
    let (required, preferred) = match flag_address {
        Some(given) if supervisor::is_child() => (None, given),
        given => (given, default),
    };
    let listener = match required {
        Some(address) => listen(address, flag).await?,
        None => match TcpListener::bind(preferred).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                warn!(address = %preferred, flag, "address for health and metrics is in use; taking a free port");
                listen(SocketAddr::new(preferred.ip(), 0), flag).await?
            }
            bound => bound.with_context(|| format!("listening on {preferred}: set another with {flag}"))?,
        },
    };
    let address = listener.local_addr().context("reading the listener's address")?;
    info!(url = %format_args!("http://{address}"), "serving health and metrics");
    Ok(listener)
}

/// Listens on the address of a flag.
pub async fn listen(address: SocketAddr, flag: &str) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("listening on {address}: set another address with {flag}"))
}

/// Listens on this address only: IPv6 sockets are v6-only, so that `::` and `0.0.0.0` can coexist.
pub fn listen_single_family(address: SocketAddr) -> std::io::Result<TcpListener> {
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

/// Serves at an address; if it cannot be bound, retries every five seconds.
pub async fn serve_with_retry(
    name: &'static str,
    address: SocketAddr,
    routes: AdminRoutes,
    clock: Clock,
    mut stop: watch::Receiver<bool>,
) {
    let mut logged: Option<Instant> = None;
    loop {
        match listen_single_family(address) {
            Ok(listener) => {
                info!(server = name, %address, "listening");
                return serve(listener, routes, stop).await;
            }
            Err(error) if logged.is_none_or(|logged| clock.since(logged) >= REMINDER) => {
                logged = Some(clock.now());
                error!(server = name, %address, %error, "cannot listen; retrying every 5 s");
            }
            Err(_) => {}
        }
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(BIND_RETRY) => {}
        }
    }
}

/// Serves until `stop` is true or its sender is dropped.
pub async fn serve(listener: TcpListener, routes: AdminRoutes, stop: watch::Receiver<bool>) {
    let connections = FairConnections::new(MAX_CONNECTIONS, DRAIN_TIMEOUT).count_evictions_in(&EVICTED);
    let owner = |(_, peer): &(TcpStream, SocketAddr)| ConnectionOwner::source(peer.ip());
    let serve = |(stream, peer): (TcpStream, SocketAddr), place| {
        serve_connection(stream, peer.ip(), place, routes.clone(), stop.clone())
    };
    connections.serve(|| listener.accept(), stop.clone(), owner, serve).await;
}

/// Serves a Unix socket, whose file mode is the access control, until `stop` is true or its sender is dropped.
pub async fn serve_unix(listener: UnixListener, routes: AdminRoutes, stop: watch::Receiver<bool>) {
    let connections = FairConnections::new(MAX_CONNECTIONS, DRAIN_TIMEOUT).count_evictions_in(&EVICTED);
    let owner = |_: &UnixStream| ConnectionOwner::source(Ipv4Addr::LOCALHOST.into());
    let peer = AdminPeer { is_tls: false, address: None };
    let serve = |stream: UnixStream, place| serve_http(stream, place, routes.clone(), peer, stop.clone());
    let accept = || async { listener.accept().await.map(|(stream, _)| stream) };
    connections.serve(accept, stop.clone(), owner, serve).await;
}

async fn serve_connection(
    stream: TcpStream,
    peer: IpAddr,
    place: ConnectionPlace,
    routes: AdminRoutes,
    stop: watch::Receiver<bool>,
) {
    let from = |is_tls| AdminPeer { is_tls, address: Some(peer) };
    let Some(access) = routes.access.clone() else {
        return serve_http(stream, place, routes, from(false), stop).await;
    };
    match tokio::time::timeout(HEADER_TIMEOUT, access.accept(stream)).await {
        Ok(Ok(AdminStream::Plain(stream))) => serve_http(stream, place, routes, from(false), stop).await,
        Ok(Ok(AdminStream::Tls(stream))) => serve_http(stream, place, routes, from(true), stop).await,
        // Errors of a client are not logged.
        Ok(Err(_)) | Err(_) => {}
    }
}

async fn serve_http(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    place: ConnectionPlace,
    routes: AdminRoutes,
    peer: AdminPeer,
    mut stop: watch::Receiver<bool>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (routes, in_flight) = (routes.clone(), place.begin_request());
        async move {
            let response = response(&routes, request, peer).await;
            drop(in_flight);
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => {}
        () = tokio::time::sleep(CONNECTION_TIMEOUT) => {}
        // Errors of a client are not logged.
        _ = connection.as_mut() => return,
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, connection).await;
}

async fn response(routes: &AdminRoutes, request: Request<Incoming>, peer: AdminPeer) -> Response<AdminBody> {
    let (head, body) = request.into_parts();
    let page = match routes.request_handler(head.uri.path()) {
        Some(handler) => match routes.user(&head, peer).await {
            Err(refusal) => refusal,
            Ok(_) => return handler(Request::from_parts(head, body)).await,
        },
        None => routes.respond(&head, body, peer).await,
    };
    let mut response = Response::new(Full::new(Bytes::from(page.body)).boxed_unsync());
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

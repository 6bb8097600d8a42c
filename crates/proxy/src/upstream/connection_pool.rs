//! The connection pool of one endpoint: an HTTP/1.1 connection serves one request at a time, an HTTP/2 connection many.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clock::Clock;
use http::{HeaderName, HeaderValue};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Sleep, sleep, timeout};

use super::backend::UpstreamBackend;
use super::circuit_breaker::InFlightGuard;
use super::endpoint::{EndpointProtocol, UpstreamEndpoint};
use super::tls::EndpointStream;
use crate::downstream::idle_timeout::ConnectionActivity;
use crate::http::body::RequestBody;
use crate::http::http2_limits::{self, MAX_UPSTREAM_CONNECTIONS, MAX_UPSTREAM_STREAMS};
use crate::overload::descriptors::{OutOfDescriptors, UpstreamSocket};
use crate::proxy::ProxyShared;
use crate::proxy_protocol::{self, ConnectionAddresses};

#[derive(Debug)]
pub(crate) struct ConnectionPool {
    clock: Clock,
    http1: Mutex<Vec<IdleHttp1>>,
    http2: Mutex<Vec<Http2Connection>>,
    /// Held while an HTTP/2 connection is established: concurrent requests wait and share it.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct IdleHttp1 {
    sender: http1::SendRequest<RequestBody>,
    since: Instant,
    reuse: Http1Reuse,
}

/// Allocations that an HTTP/1.1 connection keeps from one request to the next.
#[derive(Debug, Default)]
pub(crate) struct Http1Reuse {
    /// Header fields of a request that may be retried.
    pub(crate) fields: Vec<(HeaderName, HeaderValue)>,
    /// The response timer.
    pub(crate) timer: Option<Pin<Box<Sleep>>>,
}

#[derive(Clone, Debug)]
struct Http2Connection {
    sender: http2::SendRequest<RequestBody>,
    usage: Arc<Http2Usage>,
}

#[derive(Debug)]
pub(crate) struct Http2Usage {
    streams: AtomicUsize,
    last_used: Mutex<Instant>,
    established: Instant,
    /// Whether the endpoint offers extended CONNECT (RFC 8441).
    extended_connect: AtomicBool,
}

pub(crate) enum UpstreamSender {
    Http1(http1::SendRequest<RequestBody>),
    Http2(http2::SendRequest<RequestBody>, Arc<Http2Usage>),
}

/// A request's hold on an endpoint: one unit of load, and a connection or a stream of one.
pub(crate) struct PooledConnection {
    pub(crate) endpoint: Arc<UpstreamEndpoint>,
    pub(crate) is_reused: bool,
    /// HTTP/1.1 is tried at an endpoint that is declared as HTTP/2.
    pub(crate) is_http1_guess: bool,
    /// `None` after [`PooledConnection::release`] of an HTTP/1.1 connection.
    pub(crate) sender: Option<UpstreamSender>,
    pub(crate) reuse: Http1Reuse,
    max_idle: usize,
    /// Whose client uses the connection, if no other may use it meanwhile.
    user: Option<Arc<ConnectionActivity>>,
}

/// What a connection is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Request,
    Upgrade,
    /// A request of a GRPCRoute: by HTTP/2, whatever the endpoint's port declares.
    Grpc,
}

/// More requests of a backend wait for a connection than its circuit breaker allows.
#[derive(Debug, thiserror::Error)]
#[error("too many requests of this backend wait for a connection")]
pub(crate) struct PendingOverflow;

/// The reason of a 503 that is not the endpoint's fault.
pub(crate) fn overload_reason(error: &io::Error) -> Option<&'static str> {
    let inner = error.get_ref()?;
    if inner.is::<PendingOverflow>() {
        return Some("too many requests wait for a connection to this backend");
    }
    inner.is::<OutOfDescriptors>().then_some("out of file descriptors for connections to endpoints")
}

/// Whose connection is established, and for which backend.
#[derive(Clone, Copy)]
pub(crate) struct Connector<'s> {
    pub(crate) proxy: &'s ProxyShared,
    pub(crate) backend: &'s UpstreamBackend,
    /// `None` for a mirror, for which no client gives way.
    pub(crate) claimant: Option<&'s Arc<ConnectionActivity>>,
    /// For the PROXY protocol.
    pub(crate) from: &'s ConnectionAddresses,
}

impl PooledConnection {
    /// An idle connection of the pool, or a new one.
    pub(crate) async fn acquire(
        endpoint: &Arc<UpstreamEndpoint>,
        connector: Connector<'_>,
        purpose: Purpose,
    ) -> io::Result<Self> {
        let settings = &connector.proxy.settings;
        let protocol = if purpose == Purpose::Grpc { EndpointProtocol::Http2 } else { endpoint.protocol };
        endpoint.add_load();
        let mut pooled = Self {
            endpoint: endpoint.clone(),
            is_reused: false,
            is_http1_guess: false,
            sender: None,
            reuse: Http1Reuse::default(),
            max_idle: settings.limits.idle_per_endpoint,
            user: None,
        };
        if let (EndpointProtocol::Http1 | EndpointProtocol::Tcp, Some(user)) = (protocol, connector.claimant)
        {
            user.add_socket();
            pooled.user = Some(user.clone());
        }
        if endpoint.proxy_protocol.is_some() {
            pooled.max_idle = 0;
            pooled.sender = Some(Box::pin(unshared(endpoint, connector, purpose)).await?);
            return Ok(pooled);
        }
        let sender = match protocol {
            // Rare paths are boxed: otherwise every request's future has room for them.
            EndpointProtocol::Http2 if purpose == Purpose::Upgrade => {
                match Box::pin(endpoint.http2_with_extended_connect(connector)).await? {
                    Some(sender) => sender,
                    None => {
                        (pooled.is_http1_guess, pooled.max_idle) = (true, 0);
                        UpstreamSender::Http1(Box::pin(connect_http1(endpoint, connector)).await?)
                    }
                }
            }
            EndpointProtocol::Http2 => match endpoint.pool.least_used_http2() {
                Some(sender) => sender,
                None => Box::pin(endpoint.http2(connector)).await?,
            },
            EndpointProtocol::Http1 | EndpointProtocol::Tcp => match endpoint.pool.take_idle() {
                Some((sender, reuse)) => {
                    (pooled.is_reused, pooled.reuse) = (true, reuse);
                    UpstreamSender::Http1(sender)
                }
                None => UpstreamSender::Http1(Box::pin(connect_http1(endpoint, connector)).await?),
            },
        };
        pooled.sender = Some(sender);
        Ok(pooled)
    }

    pub(crate) fn is_http2(&self) -> bool {
        matches!(self.sender, Some(UpstreamSender::Http2(..)))
    }

    /// Returns an HTTP/1.1 connection to the pool once the response has been read to its end.
    pub(crate) fn release(&mut self) {
        let is_http1 = |sender: &mut UpstreamSender| matches!(sender, UpstreamSender::Http1(_));
        if let Some(UpstreamSender::Http1(sender)) = self.sender.take_if(is_http1) {
            self.endpoint.pool.put_idle(sender, std::mem::take(&mut self.reuse), self.max_idle);
        }
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if let Some(UpstreamSender::Http2(_, usage)) = &self.sender {
            usage.streams.fetch_sub(1, Relaxed);
        }
        if let Some(user) = &self.user {
            user.remove_socket();
        }
        self.endpoint.remove_load();
    }
}

impl ConnectionPool {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, http1: Mutex::default(), http2: Mutex::default(), connecting: Default::default() }
    }

    fn http1(&self) -> MutexGuard<'_, Vec<IdleHttp1>> {
        self.http1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn http2(&self) -> MutexGuard<'_, Vec<Http2Connection>> {
        self.http2.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most recently used connection, so that surplus ones reach their idle timeout.
    fn take_idle(&self) -> Option<(http1::SendRequest<RequestBody>, Http1Reuse)> {
        let mut idle = self.http1();
        // One that is not ready is still finishing its last message.
        while let Some(at) = idle.iter().rposition(|idle| idle.sender.is_ready() || idle.sender.is_closed()) {
            let found = idle.remove(at);
            if !found.sender.is_closed() {
                return Some((found.sender, found.reuse));
            }
        }
        None
    }

    fn put_idle(&self, sender: http1::SendRequest<RequestBody>, mut reuse: Http1Reuse, max_idle: usize) {
        if sender.is_closed() {
            return;
        }
        reuse.fields.clear();
        let mut idle = self.http1();
        if idle.len() < max_idle {
            idle.push(IdleHttp1 { sender, since: self.clock.now(), reuse });
        }
    }

    /// Closes connections that have been idle for `keep`, and returns how many.
    pub(crate) fn sweep_idle(&self, now: Instant, keep: Duration) -> usize {
        let is_fresh = |since: Instant| now.saturating_duration_since(since) < keep;
        let (mut http1, mut http2) = (self.http1(), self.http2());
        let before = http1.len() + http2.len();
        http1.retain(|idle| !idle.sender.is_closed() && is_fresh(idle.since));
        http2.retain(|connection| {
            let last_used = *connection.usage.last_used.lock().unwrap_or_else(PoisonError::into_inner);
            !connection.sender.is_closed() && (connection.streams() > 0 || is_fresh(last_used))
        });
        before - http1.len() - http2.len()
    }

    /// The connection with the fewest streams, unless it is full and another one may be established.
    fn least_used_http2(&self) -> Option<UpstreamSender> {
        let mut connections = self.http2();
        connections.retain(|connection| !connection.sender.is_closed());
        let is_full = connections.len() >= MAX_UPSTREAM_CONNECTIONS;
        let least = connections.iter().min_by_key(|connection| connection.streams())?;
        if least.streams() >= MAX_UPSTREAM_STREAMS as usize && !is_full {
            return None;
        }
        Some(least.add_stream(self.clock.now()))
    }
}

impl Http2Connection {
    fn streams(&self) -> usize {
        self.usage.streams.load(Relaxed)
    }

    fn add_stream(&self, now: Instant) -> UpstreamSender {
        self.usage.streams.fetch_add(1, Relaxed);
        *self.usage.last_used.lock().unwrap_or_else(PoisonError::into_inner) = now;
        UpstreamSender::Http2(self.sender.clone(), self.usage.clone())
    }
}

/// How long an endpoint's SETTINGS may take, which say whether it offers extended CONNECT.
const SETTINGS_WITHIN: Duration = Duration::from_millis(250);

impl UpstreamEndpoint {
    async fn http2(&self, connector: Connector<'_>) -> io::Result<UpstreamSender> {
        if let Some(sender) = self.pool.least_used_http2() {
            return Ok(sender);
        }
        let _pending = connector.pending()?;
        let _connecting = self.pool.connecting.lock().await;
        if let Some(sender) = self.pool.least_used_http2() {
            return Ok(sender);
        }
        let connection = connect_http2(self, connector).await?;
        let sender = connection.add_stream(connector.proxy.settings.clock.now());
        self.pool.http2().push(connection);
        Ok(sender)
    }

    /// A connection to an endpoint that offers extended CONNECT (RFC 8441), if it does.
    async fn http2_with_extended_connect(
        &self,
        connector: Connector<'_>,
    ) -> io::Result<Option<UpstreamSender>> {
        let UpstreamSender::Http2(sender, usage) = self.http2(connector).await? else { return Ok(None) };
        // Not counted while it waits: if the request is cancelled here, the count would stay.
        usage.streams.fetch_sub(1, Relaxed);
        while !usage.extended_connect.load(Relaxed) {
            if connector.proxy.settings.clock.since(usage.established) > SETTINGS_WITHIN || sender.is_closed()
            {
                return Ok(None);
            }
            sleep(Duration::from_millis(2)).await;
        }
        usage.streams.fetch_add(1, Relaxed);
        Ok(Some(UpstreamSender::Http2(sender, usage)))
    }
}

impl<'s> Connector<'s> {
    fn pending(&self) -> io::Result<InFlightGuard<'s>> {
        let limit = self.backend.load_balancer().settings.circuit_breakers.max_pending_requests;
        self.backend.breaker.pending.enter(limit).ok_or_else(|| {
            self.backend.stats.pending_overflow.inc();
            io::Error::other(PendingOverflow)
        })
    }

    /// Connects to an endpoint of the backend; the request is pending meanwhile.
    pub(crate) async fn connect(
        &self,
        endpoint: &UpstreamEndpoint,
        protocol: EndpointProtocol,
    ) -> io::Result<(EndpointStream, UpstreamSocket)> {
        let _pending = self.pending()?;
        self.open(endpoint, protocol).await
    }

    /// Connects, writes the PROXY protocol header if the endpoint expects one, and performs the TLS handshake, which offers
    /// the protocol.
    async fn open(
        &self,
        endpoint: &UpstreamEndpoint,
        protocol: EndpointProtocol,
    ) -> io::Result<(EndpointStream, UpstreamSocket)> {
        let claimant = self.claimant.map(|claimant| &**claimant);
        let within = self.backend.load_balancer().settings.connect_timeout;
        let (stream, descriptor) = connect(endpoint.address, self.proxy, within, claimant).await?;
        let mut stream = self.proxy.traffic.connected(&self.backend.service, endpoint.zone.as_ref(), stream);
        if let Some(version) = endpoint.proxy_protocol {
            // Fits into the empty buffer of a new socket.
            stream.write_all(&proxy_protocol::write(version, self.from)).await?;
        }
        let Some(tls) = &endpoint.tls else { return Ok((EndpointStream::Plain(stream), descriptor)) };
        let handshake = Box::pin(tls.connect(stream, protocol));
        let stream = timeout(within, handshake).await??;
        Ok((stream, descriptor))
    }
}

/// Connects with the firewall mark, so that the kernel does not redirect the connection to this proxy. The descriptor is
/// free when both values are dropped.
pub(crate) async fn connect(
    address: SocketAddr,
    proxy: &ProxyShared,
    within: Duration,
    claimant: Option<&ConnectionActivity>,
) -> io::Result<(TcpStream, UpstreamSocket)> {
    let settings = &proxy.settings;
    let relieve = || proxy.relieve_sockets(claimant);
    let descriptor = proxy.sockets.acquire(within, claimant, relieve).await?;
    let socket = marked_socket(address, settings.mark)?;
    let stream = timeout(within, socket.connect(address)).await??;
    stream.set_nodelay(true)?;
    Ok((stream, descriptor))
}

/// A socket whose connection to an address has the firewall mark.
pub(crate) fn marked_socket(address: SocketAddr, mark: Option<u32>) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(mark) = mark {
        setsockopt(&socket, sockopt::Mark, &mark)?;
    }
    Ok(socket)
}

async fn connect_http1(
    endpoint: &UpstreamEndpoint,
    connector: Connector<'_>,
) -> io::Result<http1::SendRequest<RequestBody>> {
    let (stream, descriptor) = connector.connect(endpoint, EndpointProtocol::Http1).await?;
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(connector.proxy.settings.limits.http1_buffer())
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(async move {
        // The sender of the request gets the error.
        let _ = connection.with_upgrades().await;
        drop(descriptor);
    });
    Ok(sender)
}

/// A connection for one request, to an endpoint that expects a PROXY protocol header. Upgrades use HTTP/1.1: whether the
/// endpoint offers extended CONNECT is not known yet.
async fn unshared(
    endpoint: &UpstreamEndpoint,
    connector: Connector<'_>,
    purpose: Purpose,
) -> io::Result<UpstreamSender> {
    let is_http2 = endpoint.protocol == EndpointProtocol::Http2 && purpose == Purpose::Request;
    if is_http2 || purpose == Purpose::Grpc {
        let _pending = connector.pending()?;
        let connection = connect_http2(endpoint, connector).await?;
        return Ok(connection.add_stream(connector.proxy.settings.clock.now()));
    }
    Ok(UpstreamSender::Http1(connect_http1(endpoint, connector).await?))
}

async fn connect_http2(endpoint: &UpstreamEndpoint, connector: Connector<'_>) -> io::Result<Http2Connection> {
    let settings = &connector.proxy.settings;
    // The caller is pending already.
    let (stream, descriptor) = connector.open(endpoint, EndpointProtocol::Http2).await?;
    let handshake = http2_limits::client(&settings.limits).handshake(TokioIo::new(stream));
    let established = timeout(settings.timeouts.connect, handshake).await?;
    let (sender, mut connection) = established.map_err(io::Error::other)?;
    let now = settings.clock.now();
    let usage = Arc::new(Http2Usage {
        streams: AtomicUsize::new(0),
        last_used: Mutex::new(now),
        established: now,
        extended_connect: AtomicBool::new(false),
    });
    let noted = usage.clone();
    tokio::spawn(async move {
        let _descriptor = descriptor;
        // hyper does not report SETTINGS, so they are polled: often at first, then no more.
        let mut pause = Duration::from_millis(1);
        while pause < SETTINGS_WITHIN {
            if timeout(pause, &mut connection).await.is_ok() {
                return;
            }
            noted.extended_connect.store(connection.is_extended_connect_protocol_enabled(), Relaxed);
            pause *= 2;
        }
        let _ = connection.await;
    });
    Ok(Http2Connection { sender, usage })
}

//! The xDS server: gRPC over HTTP/2, plain or TLS, with a token or client certificates.
//!
//! [`crate::stream`] decides what is sent. Connections, streams, messages, requests per second and memory are bounded,
//! with fair shares per client; idle connections are checked by keepalive. A client certificate decides which role an
//! Envoy may have.

mod ads_stream;
mod memory;
mod peer;
mod stream_status;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::listener::{ConnectionOwner, ConnectionPlace, FairConnections, HandshakeTurns};
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio_rustls::server::TlsStream;

use crate::identity::EnvoyIdentity;
use crate::stream::PublishedResources;

use memory::{MemoryPool, RequestBody, ResponseBody, StreamMemory};
use peer::{PeerError, XdsPeer};
pub use stream_status::{
    RejectedResource, RejectedResources, ResourceCounters, StreamRegistry, StreamStatus, UnboundListener,
};
pub use tls::{XdsServerTls, XdsServerTlsError};

pub trait ResourceSource: Send + Sync + 'static {
    /// The resources of an Envoy, now and as they change. The error is sent to its operator.
    fn watch(
        &self,
        identity: &EnvoyIdentity,
    ) -> Result<watch::Receiver<Option<Arc<PublishedResources>>>, String>;
}

#[derive(Clone)]
pub struct XdsServerSettings {
    /// Concurrent streams; more are rejected.
    pub max_streams: usize,
    /// The bearer token of clients.
    pub token: Option<Arc<str>>,
    pub tls: Option<XdsServerTls>,
    /// How long routes wait for endpoints that Envoy does not subscribe to.
    pub endpoints_timeout: Duration,
    /// Bytes of unfinished requests, unknown names and unread responses, over all streams.
    pub max_held_bytes: u64,
    /// How long a large request may take, and the period in which a client takes at least 64 KiB of a response.
    pub stall_timeout: Duration,
}

impl Default for XdsServerSettings {
    fn default() -> Self {
        Self {
            max_streams: 1000,
            token: None,
            tls: None,
            endpoints_timeout: Duration::from_secs(5),
            max_held_bytes: 256 << 20,
            stall_timeout: Duration::from_secs(30),
        }
    }
}

/// The names of ten thousand resources fit many times.
const MAX_REQUEST_BYTES: usize = 32 << 20;
/// Semantics, xDS 9: a half-open connection would keep an Envoy on old configuration.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connections may take to close after the stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of checks for connections without a stream.
const IDLE_CHECK: Duration = Duration::from_secs(10);
/// An Envoy needs one, and one more while it reconnects.
const STREAMS_PER_CONNECTION: u32 = 16;
/// HTTP/2 buffers for a connection: what a client sent and is not read yet, and what it does not read, per stream.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 128 << 10;
const SEND_BUFFER: usize = 32 << 10;
const MAX_HEADER_BYTES: u32 = 16 << 10;

/// Returns when a connection had no stream at two checks in a row.
async fn idle(active: &AtomicUsize) {
    let mut was_idle = false;
    loop {
        tokio::time::sleep(IDLE_CHECK).await;
        let is_idle = active.load(Ordering::Relaxed) == 0;
        if is_idle && was_idle {
            return;
        }
        was_idle = is_idle;
    }
}

/// Serves until `stop` turns true.
pub async fn serve(
    listener: TcpListener,
    settings: XdsServerSettings,
    source: Arc<dyn ResourceSource>,
    streams: Arc<StreamRegistry>,
    stop: watch::Receiver<bool>,
) {
    let memory = MemoryPool::new(settings.max_held_bytes);
    serve_with(listener, settings, source, streams, memory, stop).await;
}

async fn serve_with(
    listener: TcpListener,
    settings: XdsServerSettings,
    source: Arc<dyn ResourceSource>,
    streams: Arc<StreamRegistry>,
    memory: Arc<MemoryPool>,
    stop: watch::Receiver<bool>,
) {
    let connections = FairConnections::new(settings.max_streams.saturating_mul(2), DRAIN_TIMEOUT);
    let tls = settings.tls.clone();
    let service = ads_stream::AdsService::new(settings, source, streams, stop.clone());
    let owner = |(_, peer): &(TcpStream, SocketAddr)| ConnectionOwner::source(peer.ip());
    let serve = |(stream, peer), place| {
        connection(stream, (peer, place), tls.clone(), service.clone(), memory.clone(), stop.clone())
    };
    connections.serve(|| listener.accept(), stop.clone(), owner, serve).await;
}

async fn connection(
    stream: TcpStream,
    (peer, place): (SocketAddr, ConnectionPlace),
    tls: Option<XdsServerTls>,
    service: ads_stream::AdsService,
    memory: Arc<MemoryPool>,
    stop: watch::Receiver<bool>,
) {
    // Messages are small and must not be delayed.
    let _ = stream.set_nodelay(true);
    let connection = XdsConnection::new(place.handle().id(), Some(place));
    let Some(tls) = tls else {
        return serve_http2(stream, service.of(XdsPeer::anonymous(peer.ip()), connection), memory, stop)
            .await;
    };
    let tls = tls.current();
    let handshake = async {
        stream.readable().await?;
        let (source, turns) = (ConnectionOwner::source(peer.ip()), HandshakeTurns::of_process());
        turns.run(&source, async { tls.acceptor.accept(stream).await }).await
    };
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok(stream)) => match peer_of(&stream, &tls, peer) {
            Ok(known) => {
                if tls.verifies_clients {
                    connection.assign(&known);
                }
                serve_http2(stream, service.of(known, connection), memory, stop).await;
            }
            Err(error) => tracing::warn!(%peer, %error, "connection refused"),
        },
        Ok(Err(error)) => tracing::info!(%peer, %error, "TLS handshake failed"),
        Err(_) => tracing::info!(%peer, "TLS handshake timed out"),
    }
}

/// One connection, as its streams know it.
#[derive(Clone, Debug)]
struct XdsConnection {
    number: u64,
    /// Notified to drop the connection.
    close: Arc<Notify>,
    /// Open streams.
    active: Arc<AtomicUsize>,
    place: Option<ConnectionPlace>,
}

impl XdsConnection {
    fn new(number: u64, place: Option<ConnectionPlace>) -> Self {
        Self { number, close: Arc::default(), active: Arc::default(), place }
    }

    /// Counts the connection for the identity of its certificate.
    fn assign(&self, peer: &XdsPeer) {
        if let Some(place) = &self.place {
            place.assign(ConnectionOwner::User(peer.key.clone()));
        }
    }
}

/// The peer of a connection after the handshake.
fn peer_of(
    stream: &TlsStream<TcpStream>,
    tls: &tls::XdsTlsState,
    address: SocketAddr,
) -> Result<XdsPeer, PeerError> {
    if !tls.verifies_clients {
        return Ok(XdsPeer::anonymous(address.ip()));
    }
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    XdsPeer::certified(certificate.ok_or(PeerError::Malformed)?, &tls.names)
}

async fn serve_http2(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: ads_stream::AdsService,
    memory: Arc<MemoryPool>,
    mut stop: watch::Receiver<bool>,
) {
    let XdsConnection { number, close, active, .. } = service.connection().clone();
    let (holder, closing) = ((service.peer_key(), number), close.clone());
    let stall_timeout = service.stall_timeout();
    let service = AggregatedDiscoveryServiceServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_concurrent_streams(STREAMS_PER_CONNECTION);
    let service = TowerToHyperService::new(service);
    let service = service_fn(move |mut request: http::Request<Incoming>| {
        let held = StreamMemory::new(&memory, holder.clone(), close.clone());
        request.extensions_mut().insert(held.clone());
        let response = service.call(request.map(|body| RequestBody::new(body, held.clone(), stall_timeout)));
        async move { response.await.map(|response| response.map(|body| ResponseBody::new(body, held))) }
    });
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
        () = closing.notified() => return,
        // Disconnects are normal.
        _ = connection.as_mut() => return,
        // Connections without a stream keep others away.
        () = idle(&active) => connection.as_mut().graceful_shutdown(),
    }
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, connection).await;
}

#[cfg(test)]
mod tests;

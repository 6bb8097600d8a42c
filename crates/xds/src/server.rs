//! The xDS server: gRPC over HTTP/2, plain or TLS, with a token or client certificates.
//!
//! [`crate::stream`] decides what is sent. Connections, streams, messages, requests per second and pending responses are
//! bounded, and idle connections are checked by keepalive. A client certificate decides which role an Envoy may have.

mod ads_stream;
mod peer;
mod stream_status;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::listener::{AtLimit, ConnectionLimit, ConnectionOwner, ConnectionPolicy, HandshakeTurns};
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::server::TlsStream;

use crate::identity::EnvoyIdentity;
use crate::stream::PublishedResources;

use peer::{CountedBody, HeldBytes, PeerError, RequestMemory, XdsPeer};
pub use stream_status::{
    RejectedResource, RejectedResources, ResourceCounters, StreamRegistry, StreamStatus,
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
}

impl Default for XdsServerSettings {
    fn default() -> Self {
        Self { max_streams: 1000, token: None, tls: None, endpoints_timeout: Duration::from_secs(5) }
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
    let limit = ConnectionLimit::new(ConnectionPolicy {
        max_connections: settings.max_streams.saturating_mul(2),
        at_limit: AtLimit::Close,
        drain_timeout: DRAIN_TIMEOUT,
    });
    let tls = settings.tls.clone();
    let memory = RequestMemory::default();
    let service = ads_stream::AdsService::new(settings, source, streams, stop.clone());
    let serve =
        |(stream, peer)| connection(stream, peer, tls.clone(), service.clone(), memory.clone(), stop.clone());
    limit.serve(|| listener.accept(), stop.clone(), serve).await;
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<XdsServerTls>,
    service: ads_stream::AdsService,
    memory: RequestMemory,
    stop: watch::Receiver<bool>,
) {
    // Messages are small and must not be delayed.
    let _ = stream.set_nodelay(true);
    match tls {
        None => serve_http2(stream, service.of(XdsPeer::anonymous(peer.ip())), memory, stop).await,
        Some(tls) => {
            let tls = tls.current();
            let handshake = async {
                stream.readable().await?;
                let (source, turns) = (ConnectionOwner::source(peer.ip()), HandshakeTurns::of_process());
                turns.run(&source, async { tls.acceptor.accept(stream).await }).await
            };
            match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
                Ok(Ok(stream)) => match peer_of(&stream, &tls, peer) {
                    Ok(known) => serve_http2(stream, service.of(known), memory, stop).await,
                    Err(error) => tracing::warn!(%peer, %error, "connection refused"),
                },
                Ok(Err(error)) => tracing::info!(%peer, %error, "TLS handshake failed"),
                Err(_) => tracing::info!(%peer, "TLS handshake timed out"),
            }
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
    memory: RequestMemory,
    mut stop: watch::Receiver<bool>,
) {
    let active = service.active();
    let service = AggregatedDiscoveryServiceServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .max_concurrent_streams(STREAMS_PER_CONNECTION);
    let service = TowerToHyperService::new(service);
    let service = service_fn(move |mut request: http::Request<Incoming>| {
        let held = HeldBytes::new(&memory);
        request.extensions_mut().insert(held.clone());
        service.call(request.map(|body| CountedBody::new(body, held)))
    });
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
        // Disconnects are normal.
        _ = connection.as_mut() => return,
        // Connections without a stream keep others away.
        () = idle(&active) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

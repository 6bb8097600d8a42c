//! The server that Envoys connect to: gRPC over HTTP/2, in the clear or by TLS, with a token or client certificates.
//!
//! It carries and counts; what is said to whom is decided by [`crate::stream`]. Connections, streams, messages and
//! what waits to be sent are bounded, and who says nothing for long is asked whether it is still there.

mod ledger;
mod talk;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::identity::Identity;
use crate::stream::Published;

pub use ledger::{Count, Ledger, Refusals, Refused, StreamStatus};
pub use tls::{Tls, TlsError};

/// Where what a proxy is to have comes from.
pub trait Source: Send + Sync + 'static {
    /// What this proxy is to have, now and as it changes. The error says what its operator can do.
    fn watch(&self, identity: &Identity) -> Result<watch::Receiver<Option<Arc<Published>>>, String>;
}

/// How the server behaves.
#[derive(Clone)]
pub struct Settings {
    /// How many streams are served at once; one more is turned away.
    pub streams: usize,
    /// What clients have to know, if anything.
    pub token: Option<Arc<str>>,
    /// The TLS of the server.
    pub tls: Option<Tls>,
    /// How long routes wait for endpoints that Envoy does not ask for.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { streams: 1000, token: None, tls: None, patience: Duration::from_secs(5) }
    }
}

/// How much of a request is read: names of ten thousand resources fit many times.
const REQUEST_BYTES: usize = 32 << 20;
/// Semantics, xDS 9: a half-open connection would keep an Envoy on old configuration.
const ASK_AFTER: Duration = Duration::from_secs(20);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long connections may take to end after the stop.
const FAREWELL: Duration = Duration::from_secs(2);
/// Streams of one connection: an Envoy needs one, and one more while it reconnects.
const STREAMS_PER_CONNECTION: u32 = 16;

/// Serves until `stop` turns true.
pub async fn serve(
    listener: TcpListener,
    settings: Settings,
    source: Arc<dyn Source>,
    ledger: Arc<Ledger>,
    mut stop: watch::Receiver<bool>,
) {
    let free = Arc::new(Semaphore::new(settings.streams.saturating_mul(2)));
    let tls = settings.tls.clone();
    let service = talk::Service::new(settings, source, ledger, stop.clone());
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        while connections.try_join_next().is_some() {}
        let Ok((stream, peer)) = accepted else {
            // Without descriptors, waiting a little is all that helps.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Ok(permit) = free.clone().try_acquire_owned() else { continue };
        let connection = connection(stream, peer, tls.clone(), service.clone(), stop.clone());
        connections.spawn(async move {
            let _permit = permit;
            connection.await;
        });
    }
    let farewell = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(FAREWELL, farewell).await;
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Tls>,
    service: talk::Service,
    stop: watch::Receiver<bool>,
) {
    // Small messages that somebody waits for.
    let _ = stream.set_nodelay(true);
    match tls {
        None => carry(stream, service, stop).await,
        Some(tls) => match tokio::time::timeout(HANDSHAKE, tls.acceptor.accept(stream)).await {
            Ok(Ok(stream)) => carry(stream, service, stop).await,
            Ok(Err(error)) => tracing::info!(%peer, %error, "a client did not get through the TLS handshake"),
            Err(_) => tracing::info!(%peer, "a client took too long for the TLS handshake"),
        },
    }
}

async fn carry(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: talk::Service,
    mut stop: watch::Receiver<bool>,
) {
    let service = AggregatedDiscoveryServiceServer::new(service).max_decoding_message_size(REQUEST_BYTES);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(ASK_AFTER)
        .keep_alive_timeout(ANSWER_WITHIN)
        .max_concurrent_streams(STREAMS_PER_CONNECTION);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    tokio::pin!(connection);
    tokio::select! {
        // A client that breaks off is no news.
        _ = connection.as_mut() => return,
        _ = stop.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

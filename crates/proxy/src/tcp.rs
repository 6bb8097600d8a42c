//! TCP proxying: connections split by weight over backends, or passed through to their original destination.

pub(crate) mod tunnel;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use model::Locality;
use model::route::WeightedBackends;
use tokio::net::TcpStream;

use crate::downstream::transport_socket::{ReadAhead, TransportSocket};
use crate::proxy::ProxyShared;
use crate::proxy_protocol::ConnectionAddresses;
use crate::request_log::log_connection;
use crate::upstream::backend::UpstreamBackend;
use crate::upstream::connection_pool::connect;
use crate::upstream::endpoint::UpstreamEndpoint;
use crate::upstream::outlier_detection::note_failure;
use crate::upstream::weighted_backends::PickedBackend;

/// Forwards a connection to one of several backends.
pub(crate) async fn forward(
    proxy: &Arc<ProxyShared>,
    client: ReadAhead<TransportSocket>,
    split: &Arc<WeightedBackends>,
    from: ConnectionAddresses,
) -> io::Result<()> {
    let started = proxy.settings.clock.now();
    let active = proxy.active_tables();
    let backends =
        active.tcp_backends(split).cloned().ok_or_else(|| io::Error::other("route was removed"))?;
    drop(active);
    let backend = match backends.pick(|| proxy.random.next()) {
        Some(PickedBackend::Backend(backend)) => backend.clone(),
        // Semantics 1.8: the share of an unresolved backend fails; for TCP that is a closed connection.
        Some(PickedBackend::Error(_)) | None => {
            proxy.stats.refused_connections.inc();
            return Err(io::Error::other("backend cannot be resolved"));
        }
    };
    let (stream, load, locality) = connect_to_endpoint(proxy, &backend, &from).await?;
    backend.stats.connections.inc();
    backend.stats.localities[locality as usize].inc();
    let idle = proxy.settings.timeouts.idle;
    let (bytes, result) = tunnel::copy(client, stream, idle, proxy.phase.subscribe()).await;
    let duration = proxy.settings.clock.since(started);
    log_connection(proxy, from.client, Some((&backend, locality)), load.0.address, bytes, duration);
    result
}

/// One unit of load at an endpoint, for as long as the connection is open.
struct LoadGuard(Arc<UpstreamEndpoint>);

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.0.remove_load();
    }
}

/// Connects to an endpoint, and to another one if that fails.
async fn connect_to_endpoint(
    proxy: &ProxyShared,
    backend: &UpstreamBackend,
    from: &ConnectionAddresses,
) -> io::Result<(TcpStream, LoadGuard, Locality)> {
    let settings = &proxy.settings;
    let mut avoid: Vec<Arc<UpstreamEndpoint>> = Vec::new();
    let mut last = io::Error::other("backend has no endpoint");
    for attempt in 0..=settings.limits.retries {
        let (balancer, now) = (backend.load_balancer(), proxy.now());
        let Some(chosen) = balancer.pick(&proxy.random, now, &settings.load_balancing, &avoid) else {
            break;
        };
        if attempt > 0 {
            backend.stats.retries.inc();
        }
        let endpoint = &chosen.endpoint;
        endpoint.add_load();
        let load = LoadGuard(endpoint.clone());
        match endpoint.connect(settings, from).await {
            Ok(stream) => {
                endpoint.outlier.succeeded();
                return Ok((stream, load, chosen.locality));
            }
            Err(error) => {
                backend.stats.connect_failures.inc();
                note_failure(proxy, backend, &balancer, endpoint);
                last = error;
            }
        }
        avoid.push(endpoint.clone());
    }
    Err(last)
}

/// Forwards a connection to its original destination, which is not a Service.
pub(crate) async fn pass_through(
    proxy: &Arc<ProxyShared>,
    client: TcpStream,
    to: SocketAddr,
    from: SocketAddr,
) -> io::Result<()> {
    let settings = &proxy.settings;
    let started = settings.clock.now();
    let stream = connect(to, settings).await?;
    proxy.stats.passed_through.inc();
    let (bytes, result) = tunnel::copy(client, stream, settings.timeouts.idle, proxy.phase.subscribe()).await;
    log_connection(proxy, from, None, to, bytes, settings.clock.since(started));
    result
}

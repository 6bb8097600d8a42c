//! TCP proxying: connections split by weight over backends, or passed through to their original destination.

pub(crate) mod tunnel;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use model::Locality;
use model::route::WeightedBackends;
use tokio::net::TcpStream;

use crate::downstream::idle_timeout::ConnectionActivity;
use crate::downstream::transport_socket::{ReadAhead, TransportSocket};
use crate::overload::descriptors::UpstreamSocket;
use crate::overload::request_slots::{HeldRequest, RequestSlot};
use crate::proxy::ProxyShared;
use crate::proxy_protocol::ConnectionAddresses;
use crate::request_log::log_connection;
use crate::upstream::backend::UpstreamBackend;
use crate::upstream::circuit_breaker::max_requests;
use crate::upstream::connection_pool::{Connector, connect, overload_reason};
use crate::upstream::endpoint::{EndpointProtocol, UpstreamEndpoint};
use crate::upstream::outlier_detection::note_failure;
use crate::upstream::tls::EndpointStream;
use crate::upstream::weighted_backends::PickedBackend;

/// Forwards a connection to one of several backends.
pub(crate) async fn forward(
    proxy: &Arc<ProxyShared>,
    client: ReadAhead<TransportSocket>,
    split: &Arc<WeightedBackends>,
    from: ConnectionAddresses,
    activity: &Arc<ConnectionActivity>,
) -> io::Result<()> {
    let started = proxy.settings.clock.now();
    // A tunnel is one request for as long as it is open, which is as long as its connection.
    activity.request_started(proxy.at(started));
    activity.add_socket();
    let active = proxy.active_tables();
    let backends =
        active.tcp_backends(split).cloned().ok_or_else(|| io::Error::other("route was removed"))?;
    drop(active);
    let backend = match backends.pick(|| proxy.random.next()) {
        Some(PickedBackend::Backend(backend, _)) => backend.clone(),
        // Semantics 1.8: the share of an unresolved backend fails; for TCP that is a closed connection.
        Some(PickedBackend::Error(_)) | None => {
            proxy.stats.refused_connections.inc();
            return Err(io::Error::other("backend cannot be resolved"));
        }
    };
    let _slot = BackendSlot::take(proxy, &backend, activity).ok_or_else(|| {
        proxy.stats.refused_connections.inc();
        io::Error::other("too many connections to this backend")
    })?;
    let (stream, load, locality) = connect_to_endpoint(proxy, &backend, &from, activity).await?;
    backend.stats.connections.inc();
    backend.stats.localities[locality as usize].inc();
    let idle = proxy.settings.timeouts.idle;
    let (bytes, result) = tunnel::copy(client, stream, idle, proxy.phase.subscribe()).await;
    let duration = proxy.settings.clock.since(started);
    log_connection(proxy, from.client, Some((&backend, locality)), load.endpoint.address, bytes, duration);
    result
}

/// A slot of the backend's circuit breaker, until it is dropped. Eviction closes the connection, because there is no
/// response to wait for.
struct BackendSlot<'b> {
    backend: &'b UpstreamBackend,
    slot: Option<RequestSlot>,
}

impl<'b> BackendSlot<'b> {
    fn take(
        proxy: &ProxyShared,
        backend: &'b UpstreamBackend,
        activity: &Arc<ConnectionActivity>,
    ) -> Option<Self> {
        let settings = backend.load_balancer().settings.clone();
        let limit = max_requests(&settings.circuit_breakers, EndpointProtocol::Tcp);
        let now = proxy.now();
        let held = Arc::new(HeldRequest::new(activity, now));
        held.begin_streaming();
        let slot =
            backend.breaker.requests.acquire(limit, now, activity.client(), activity, &mut Some(held))?;
        Some(Self { backend, slot: Some(slot) })
    }
}

impl Drop for BackendSlot<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.backend.breaker.requests.release(slot);
        }
    }
}

/// One unit of load at an endpoint and its descriptor, for as long as the connection is open.
struct LoadGuard {
    endpoint: Arc<UpstreamEndpoint>,
    _descriptor: Option<UpstreamSocket>,
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.endpoint.remove_load();
    }
}

/// Connects to an endpoint, and to another one if that fails.
async fn connect_to_endpoint(
    proxy: &ProxyShared,
    backend: &UpstreamBackend,
    from: &ConnectionAddresses,
    activity: &Arc<ConnectionActivity>,
) -> io::Result<(EndpointStream, LoadGuard, Locality)> {
    let settings = &proxy.settings;
    let connector = Connector { proxy, backend, claimant: Some(activity), from };
    let mut retrying = None;
    let mut avoid: Vec<Arc<UpstreamEndpoint>> = Vec::new();
    let mut last = io::Error::other("backend has no endpoint");
    for attempt in 0..=settings.limits.retries.of(None) {
        let (balancer, now) = (backend.load_balancer(), proxy.now());
        let key = balancer.key_of_connection(from.client.ip());
        let Some(chosen) = balancer.pick(&proxy.random, now, key, &avoid) else {
            break;
        };
        if attempt > 0 && retrying.is_none() {
            let max_retries = balancer.settings.max_retries(backend.breaker.requests.in_use());
            retrying = backend.breaker.retries.enter(max_retries);
            if retrying.is_none() {
                backend.stats.retry_overflow.inc();
                break;
            }
        }
        if attempt > 0 {
            backend.stats.retries.inc();
        }
        let endpoint = &chosen.endpoint;
        endpoint.add_load();
        let mut load = LoadGuard { endpoint: endpoint.clone(), _descriptor: None };
        match connector.connect(endpoint, EndpointProtocol::Tcp).await {
            Ok((stream, descriptor)) => {
                endpoint.outlier.succeeded();
                load._descriptor = Some(descriptor);
                return Ok((stream, load, chosen.locality));
            }
            Err(error) if overload_reason(&error).is_some() => return Err(error),
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
    activity: &ConnectionActivity,
) -> io::Result<()> {
    let settings = &proxy.settings;
    let started = settings.clock.now();
    activity.request_started(proxy.at(started));
    activity.add_socket();
    let (stream, _descriptor) = connect(to, proxy, settings.timeouts.connect, Some(activity)).await?;
    proxy.stats.passed_through.inc();
    let (bytes, result) = tunnel::copy(client, stream, settings.timeouts.idle, proxy.phase.subscribe()).await;
    log_connection(proxy, from, None, to, bytes, settings.clock.since(started));
    result
}

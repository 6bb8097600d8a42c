//! One endpoint: its load, its outlier state and its connection pool. It outlives tables: a new table with the same
//! address continues with the same value, and the last reference closes the connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use clock::Clock;
use model::Name;
use model::backend::ProxyProtocol;
use model::route::SlowStart;

use super::connection_pool::ConnectionPool;
use super::outlier_detection::OutlierState;
use super::tls::UpstreamTls;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EndpointProtocol {
    Http1,
    Http2,
    Tcp,
}

/// Milliseconds since the proxy started: small enough for an atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProxyTime(pub(crate) u64);

impl ProxyTime {
    pub(crate) fn plus(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
    }
}

#[derive(Debug)]
pub(crate) struct UpstreamEndpoint {
    pub(crate) address: SocketAddr,
    pub(crate) protocol: EndpointProtocol,
    /// The header that each of its connections begins with. Connections are not shared then: it names one client.
    pub(crate) proxy_protocol: Option<ProxyProtocol>,
    /// `None`: without TLS.
    pub(crate) tls: Option<Arc<UpstreamTls>>,
    pub(crate) zone: Option<Name>,
    /// The start of slow start; `None` for endpoints that a backend started with.
    pub(crate) added_at: Option<ProxyTime>,
    pub(crate) pool: ConnectionPool,
    pub(crate) outlier: OutlierState,
    load: AtomicUsize,
}

impl UpstreamEndpoint {
    pub(crate) fn new(
        address: SocketAddr,
        protocol: EndpointProtocol,
        proxy_protocol: Option<ProxyProtocol>,
        zone: Option<Name>,
        added_at: Option<ProxyTime>,
        clock: Clock,
    ) -> Self {
        Self {
            address,
            protocol,
            proxy_protocol,
            tls: None,
            zone,
            added_at,
            pool: ConnectionPool::new(clock),
            outlier: OutlierState::default(),
            load: AtomicUsize::new(0),
        }
    }

    pub(crate) fn with_tls(self, tls: Option<Arc<UpstreamTls>>) -> Self {
        Self { tls, ..self }
    }

    /// Requests and connections of this proxy at the endpoint.
    pub(crate) fn load(&self) -> usize {
        self.load.load(Relaxed)
    }

    pub(crate) fn add_load(&self) {
        self.load.fetch_add(1, Relaxed);
    }

    pub(crate) fn remove_load(&self) {
        self.load.fetch_sub(1, Relaxed);
    }

    pub(crate) fn is_ejected(&self, now: ProxyTime) -> bool {
        self.outlier.is_ejected(now)
    }

    /// The part of its share that an endpoint in slow start gets.
    pub(crate) fn slow_start_factor(&self, now: ProxyTime, slow_start: &SlowStart) -> f32 {
        let Some(added_at) = self.added_at else { return 1.0 };
        slow_start.factor(Duration::from_millis(now.0.saturating_sub(added_at.0)))
    }
}

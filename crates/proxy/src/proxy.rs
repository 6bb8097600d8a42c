//! The proxy's handle: created once, given tables and listeners, drained at the end.
//!
//! ```text
//! a Gateway: plan::gateway_api::gateway_table, with certificates and authorities -> Proxy::swap, again with each change
//!   each RouteTable::ports      -> Proxy::serve(TcpListener, ListenerKind::Gateway { port })
//!   each RouteTable::udp_ports  -> Proxy::serve_udp(UdpSocket, port)
//! ```
//!
//! A proxy serves one Gateway, because ports are numbered per Gateway; the port that is bound may differ. Ports that the
//! table gains or loses are bound and closed by the caller; hosts, protocols, certificates and routes follow `swap`.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ::listener::{AtLimit, ConnectionLimit, ConnectionPolicy};
use model::{BackendTable, Notice, ObjectKey, RouteTable};
use prometheus_client::registry::Registry as MetricsRegistry;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::active_tables::ActiveTables;
use crate::certificates::{CertificateAuthorities, ServerCertificate};
use crate::downstream::idle_timeout::ConnectionActivity;
use crate::downstream::listener::{self, ListenerKind};
use crate::http::body_chunk::BufferBudget;
use crate::metrics::ProxyCollector;
use crate::overload::descriptors::{DescriptorShares, UpstreamSockets};
use crate::overload::open_connections::PressureRelief;
use crate::overload::request_slots::{OLD, RequestSlots};
use crate::random::SharedRandom;
use crate::registry::Registry;
use crate::settings::ProxyOptions;
use crate::stats::ProxyStats;
use crate::udp;
use crate::upstream::endpoint::ProxyTime;
use crate::zone_traffic::{ServiceZoneTraffic, ZoneTraffic};

/// The configuration of a proxy; always replaced as a whole.
#[derive(Clone, Debug, Default)]
pub struct ProxyTables {
    pub routes: Arc<RouteTable>,
    pub backends: Arc<BackendTable>,
    /// The certificates of a gateway by Secret: those of [`RouteTable::secrets`].
    pub certificates: Arc<BTreeMap<ObjectKey, Arc<ServerCertificate>>>,
    /// Certificate authorities by ConfigMap: those of [`RouteTable::authorities`].
    pub authorities: Arc<BTreeMap<ObjectKey, Arc<CertificateAuthorities>>>,
}

/// The proxy. Clones are the same proxy.
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<ProxyShared>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainPhase {
    Serving,
    /// Requests and connections in progress may finish.
    Draining,
    /// Remaining connections are closed.
    Closed,
}

pub(crate) struct ProxyShared {
    pub(crate) settings: ProxyOptions,
    pub(crate) random: SharedRandom,
    pub(crate) stats: ProxyStats,
    pub(crate) phase: watch::Sender<DrainPhase>,
    pub(crate) mirrors: AtomicUsize,
    pub(crate) budget: Arc<BufferBudget>,
    /// Permits of open downstream connections.
    pub(crate) connections: ConnectionLimit,
    max_connections: usize,
    connection_relief: PressureRelief,
    socket_relief: PressureRelief,
    pub(crate) sockets: Arc<UpstreamSockets>,
    pub(crate) requests: RequestSlots,
    pub(crate) traffic: ZoneTraffic,
    active: RwLock<Arc<ActiveTables>>,
    registry: Mutex<Registry>,
    started: Instant,
    open_connections: AtomicUsize,
    all_closed: Notify,
}

impl Proxy {
    /// A proxy with these tables. [`Proxy::swap`] returns Notices about them; start with `ProxyTables::default()` where
    /// these are needed.
    pub fn new(settings: ProxyOptions, tables: ProxyTables) -> Self {
        let descriptors = DescriptorShares::of(&settings.limits);
        let policy = ConnectionPolicy {
            max_connections: descriptors.downstream,
            at_limit: AtLimit::Wait,
            // `Proxy::drain` waits for connections and requests.
            drain_timeout: Duration::ZERO,
        };
        let shared = ProxyShared {
            random: SharedRandom::new(settings.random.clone()),
            stats: ProxyStats::default(),
            phase: watch::Sender::new(DrainPhase::Serving),
            mirrors: AtomicUsize::new(0),
            budget: Arc::new(BufferBudget::new(settings.limits.held_body_bytes, settings.clock.clone())),
            connections: ConnectionLimit::new(policy),
            max_connections: descriptors.downstream,
            connection_relief: PressureRelief::new(settings.clock.clone(), Duration::ZERO),
            socket_relief: PressureRelief::new(settings.clock.clone(), Duration::from_millis(5)),
            sockets: Arc::new(UpstreamSockets::new(descriptors.upstream)),
            requests: RequestSlots::default(),
            traffic: ZoneTraffic::default(),
            active: RwLock::default(),
            registry: Mutex::default(),
            started: settings.clock.now(),
            open_connections: AtomicUsize::new(0),
            all_closed: Notify::new(),
            settings,
        };
        let proxy = Self { shared: Arc::new(shared) };
        proxy.swap(tables);
        proxy
    }

    /// Connections and bytes to endpoints since the start, by Service and zones.
    pub fn traffic(&self) -> Vec<ServiceZoneTraffic> {
        self.shared.traffic.read()
    }

    /// Activates other tables for requests from now on; requests in flight keep theirs. Returns Notices about
    /// configuration that cannot be applied.
    pub fn swap(&self, tables: ProxyTables) -> Vec<Notice> {
        self.shared.traffic.set_zone(tables.backends.consumer.zone.as_ref());
        let shared = &self.shared;
        let mut registry = shared.registry();
        let before = shared.active_tables();
        let backends = tables.backends.clone();
        let (active, notices) =
            ActiveTables::new(tables, &before, &mut registry, shared.now(), &shared.settings);
        // Backends have their new endpoints before the routes to them are active, and lose old ones only after.
        *shared.active.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(active);
        drop(before);
        registry.prune(&backends);
        shared.stats.table_swaps.inc();
        notices
    }

    /// Accepts connections until `stop`; open ones continue, see [`Proxy::drain`].
    pub async fn serve(&self, listener: TcpListener, kind: ListenerKind, stop: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = stop => {}
            () = listener::sweep_idle(&self.shared) => {}
            () = listener::relieve_connections(&self.shared) => {}
            () = listener::accept(&self.shared, listener, kind) => {}
        }
    }

    /// Forwards the datagrams of a gateway's UDP port until `stop`.
    pub async fn serve_udp(&self, socket: UdpSocket, port: u16, stop: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = stop => {}
            () = udp::forward(&self.shared, socket, port) => {}
        }
    }

    /// Lets requests and connections in progress finish: HTTP clients get `Connection: close` or GOAWAY. After `within`
    /// the rest is closed. Stop the listeners first.
    pub async fn drain(&self, within: Duration) {
        self.shared.phase.send_replace(DrainPhase::Draining);
        if timeout(within, self.shared.wait_until_closed()).await.is_err() {
            self.shared.phase.send_replace(DrainPhase::Closed);
            // Closing waits for the runtime only, not for the network.
            let _ = timeout(Duration::from_secs(1), self.shared.wait_until_closed()).await;
        }
        if let Some(log) = self.shared.settings.access_log.clone() {
            let _ = tokio::task::spawn_blocking(move || log.flush()).await;
        }
        if let Some(exporter) = &self.shared.settings.span_exporter {
            exporter.flush().await;
        }
    }

    /// Open downstream connections.
    pub fn open_connections(&self) -> usize {
        self.shared.open_connections()
    }

    /// Adds the proxy's metrics to a registry.
    pub fn register_metrics(&self, registry: &mut MetricsRegistry) {
        registry.register_collector(Box::new(ProxyCollector(self.shared.clone())));
    }
}

impl ProxyShared {
    pub(crate) fn since_start(&self) -> Duration {
        self.settings.clock.since(self.started)
    }

    pub(crate) fn active_tables(&self) -> Arc<ActiveTables> {
        self.active.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> ProxyTime {
        self.at(self.settings.clock.now())
    }

    pub(crate) fn at(&self, instant: Instant) -> ProxyTime {
        ProxyTime::default().plus(instant.saturating_duration_since(self.started))
    }

    /// Near the limit of downstream connections, closes idle ones of the clients that have most: a new connection then
    /// still finds a place.
    pub(crate) fn relieve_connections(&self, newcomer: &ConnectionActivity) {
        let reserve = self.max_connections / 16;
        let wanted = (self.open_connections() + reserve).saturating_sub(self.max_connections);
        if wanted == 0 {
            return;
        }
        let now = self.now();
        let is_idle = |activity: &ConnectionActivity| usize::from(activity.is_idle(now));
        let connections = &self.budget.connections;
        let goal = wanted.max(reserve);
        let relief = self.connection_relief.relieve(connections, newcomer, goal, is_idle, |_| true);
        self.stats.evicted_idle.inc_by(relief.closed as u64);
    }

    /// At the limit of upstream connections, closes pooled ones, or connections of the clients that use most. False if
    /// the claimant is one of these; one that uses none may always wait, if only for those that are closing.
    pub(crate) fn relieve_sockets(&self, claimant: Option<&ConnectionActivity>) -> bool {
        if self.registry().sweep_idle(self.settings.clock.now(), Duration::ZERO) > 0 {
            return true;
        }
        let Some(claimant) = claimant else { return false };
        // The claimant's own request is one of those of its connection.
        let weigh = |activity: &ConnectionActivity| {
            activity.sockets().saturating_sub(usize::from(activity.id == claimant.id))
        };
        let (connections, goal, now) = (&self.budget.connections, self.sockets.goal(), self.now());
        // A burst of short requests waits for its own connections instead of closing them.
        let is_old = |activity: &ConnectionActivity| activity.last_started().plus(OLD) <= now;
        let relief = self.socket_relief.relieve(connections, claimant, goal, weigh, is_old);
        if relief.closed > 0 {
            self.stats.evicted_sockets.inc_by(relief.closed as u64);
            let connections = relief.closed;
            tracing::warn!(connections, "closed connections that used most endpoint connections");
        }
        relief.is_entitled || weigh(claimant) == 0
    }

    pub(crate) fn open_connections(&self) -> usize {
        self.open_connections.load(Ordering::Acquire)
    }

    pub(crate) fn connection_opened(&self) {
        self.open_connections.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn connection_closed(&self) {
        if self.open_connections.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.all_closed.notify_waiters();
        }
    }

    async fn wait_until_closed(&self) {
        loop {
            let woken = self.all_closed.notified();
            if self.open_connections() == 0 {
                return;
            }
            woken.await;
        }
    }
}

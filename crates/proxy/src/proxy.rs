//! The proxy as its owner sees it: made once, fed with tables, given listeners, drained at the end.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use model::{BackendTable, Notice, ObjectKey, RouteTable, ServiceKey};
use tokio::net::TcpListener;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::certificate::KeyPair;
use crate::connection;
use crate::counts::ProxyCounts;
use crate::metrics;
use crate::peer::Moment;
use crate::piece::Budget;
use crate::random::Random;
use crate::registry::Registry;
use crate::settings::Settings;
use crate::state::State;

/// What a proxy obeys. All of it is replaced together.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// Which way requests go.
    pub routes: Arc<RouteTable>,
    /// Who answers there.
    pub backends: Arc<BackendTable>,
    /// The certificates of a gateway's listeners, by Secret.
    pub certificates: Arc<BTreeMap<ObjectKey, Arc<KeyPair>>>,
}

/// How requests come to a listener, and so which routes are theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entrance {
    /// All of them are for this port of a Service.
    Outbound {
        /// The Service.
        service: ServiceKey,
        /// Its port.
        port: u16,
    },
    /// The kernel sent them here; it knows where they were going.
    OriginalDestination,
    /// They are for a gateway.
    Gateway {
        /// The port of the gateway's listeners, whatever the number that this machine listens on.
        port: u16,
    },
}

/// The proxy. Clones are the same proxy.
#[derive(Clone)]
pub struct Proxy {
    inner: Arc<Inner>,
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Serving,
    /// What is begun is finished.
    Draining,
    /// What is left is closed.
    Closed,
}

pub(crate) struct Inner {
    pub(crate) settings: Settings,
    pub(crate) random: Random,
    pub(crate) counts: ProxyCounts,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) mirrors: AtomicUsize,
    pub(crate) budget: Arc<Budget>,
    state: RwLock<Arc<State>>,
    registry: Mutex<Registry>,
    began: Instant,
    requests: AtomicUsize,
    places: Arc<Semaphore>,
    open: AtomicUsize,
    quiet: Notify,
}

impl Proxy {
    /// A proxy that obeys these tables. What cannot be obeyed in them is told by [`Proxy::swap`]: to hear of it,
    /// begin with `Tables::default()`.
    pub fn new(settings: Settings, tables: Tables) -> Self {
        let inner = Inner {
            random: Random::new(settings.seed),
            counts: ProxyCounts::default(),
            phase: watch::Sender::new(Phase::Serving),
            mirrors: AtomicUsize::new(0),
            budget: Arc::new(Budget::new(settings.limits.held_body_bytes)),
            state: RwLock::default(),
            registry: Mutex::default(),
            began: Instant::now(),
            requests: AtomicUsize::new(0),
            places: Arc::new(Semaphore::new(settings.limits.connections.clamp(1, Semaphore::MAX_PERMITS))),
            open: AtomicUsize::new(0),
            quiet: Notify::new(),
            settings,
        };
        let proxy = Self { inner: Arc::new(inner) };
        proxy.swap(tables);
        proxy
    }

    /// Obeys other tables from the next request on; requests in flight keep theirs. What cannot be obeyed is told.
    pub fn swap(&self, tables: Tables) -> Vec<Notice> {
        let inner = &self.inner;
        let mut registry = inner.registry();
        let before = inner.state();
        let backends = tables.backends.clone();
        let (state, notices) = State::new(tables, &before, &mut registry, inner.now(), &inner.settings);
        // Backends have their new endpoints before the routes that lead to them are in force, and lose what they
        // had only after.
        *inner.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
        drop(before);
        registry.prune(&backends);
        inner.counts.swaps.add();
        notices
    }

    /// Accepts connections until `stop`; those that are open then go on, see [`Proxy::drain`].
    pub async fn serve(&self, listener: TcpListener, entrance: Entrance, stop: impl Future<Output = ()>) {
        let entrance = Arc::new(entrance);
        tokio::select! {
            () = self.accept(listener, &entrance) => {}
            () = self.sweep() => {}
            () = stop => {}
        }
    }

    async fn accept(&self, listener: TcpListener, entrance: &Arc<Entrance>) {
        loop {
            let Ok(place) = self.inner.places.clone().acquire_owned().await else { return };
            let (stream, client) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    // Nearly always: no more files may be opened. Others will close some.
                    sleep(Duration::from_millis(20)).await;
                    continue;
                }
            };
            let alive = Arc::new(Alive::new(&self.inner, place));
            let (inner, entrance) = (self.inner.clone(), entrance.clone());
            tokio::spawn(async move {
                inner.counts.connections.add();
                connection::serve(inner, &entrance, stream, client, alive).await;
            });
        }
    }

    /// Closes connections to endpoints that nobody has used for a while.
    async fn sweep(&self) {
        let period = (self.inner.settings.timeouts.keep / 2).max(Duration::from_millis(100));
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.inner.registry().sweep(Instant::now(), &self.inner.settings);
        }
    }

    /// Lets what is begun come to its end: HTTP clients are told to go, connections are waited for. What takes
    /// longer than this is closed. Stop the listeners before.
    pub async fn drain(&self, within: Duration) {
        self.inner.phase.send_replace(Phase::Draining);
        if timeout(within, self.inner.is_quiet()).await.is_err() {
            self.inner.phase.send_replace(Phase::Closed);
            // Closing takes a moment of the runtime, not of the network.
            let _ = timeout(Duration::from_secs(1), self.inner.is_quiet()).await;
        }
        if let Some(log) = self.inner.settings.access_log.clone() {
            let _ = tokio::task::spawn_blocking(move || log.flush()).await;
        }
    }

    /// Connections of clients that are open.
    pub fn open_connections(&self) -> usize {
        self.inner.open.load(Ordering::Acquire)
    }

    /// What was counted, as text for Prometheus.
    pub fn metrics(&self) -> String {
        metrics::text(&self.inner, &self.inner.registry())
    }
}

impl Inner {
    pub(crate) fn state(&self) -> Arc<State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Moment {
        Moment::default().plus(self.began.elapsed())
    }

    pub(crate) fn at(&self, instant: Instant) -> Moment {
        Moment::default().plus(instant.saturating_duration_since(self.began))
    }

    pub(crate) fn begin_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end_request(&self) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    async fn is_quiet(&self) {
        loop {
            let woken = self.quiet.notified();
            if self.open.load(Ordering::Acquire) == 0 {
                return;
            }
            woken.await;
        }
    }
}

/// A connection, or what it was upgraded to, that has to end before the proxy does.
pub(crate) struct Alive {
    proxy: Arc<Inner>,
    /// Its place among those that may be open at once.
    _place: OwnedSemaphorePermit,
}

impl Alive {
    fn new(proxy: &Arc<Inner>, place: OwnedSemaphorePermit) -> Self {
        proxy.open.fetch_add(1, Ordering::AcqRel);
        Self { proxy: proxy.clone(), _place: place }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if self.proxy.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.proxy.quiet.notify_waiters();
        }
    }
}

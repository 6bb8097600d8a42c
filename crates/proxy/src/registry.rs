//! State that outlives tables: backends, endpoints with their connections and health, compiled rules, and counters.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use clock::Clock;
use model::backend::{Backend, BackendEndpoint, BackendTable, ProxyProtocol};
use model::hash::fnv1a_64;
use model::random::GOLDEN_STEP;
use model::route::{BackendId, HttpRule, RouteTable};

use crate::http::route_rule::CompiledRule;
use crate::settings::ProxyOptions;
use crate::stats::RouteStats;
use crate::upstream::backend::{UpstreamBackend, endpoint_protocol};
use crate::upstream::endpoint::{EndpointProtocol, ProxyTime, UpstreamEndpoint};
use crate::upstream::tls::{UpstreamTls, UpstreamTlsByBackend};

/// Locked when tables are swapped and when metrics are read, never for a request.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    backends: BTreeMap<BackendId, Arc<UpstreamBackend>>,
    endpoints: EndpointsByAddress,
    routes: BTreeMap<Arc<str>, Arc<RouteStats>>,
    /// Compiled rules with their source: tables that differ in one rule share the others.
    rules: ByPointer<(Arc<HttpRule>, Arc<CompiledRule>)>,
}

/// The last part of the key is the address of the TLS configuration, 0 without TLS.
type EndpointsByAddress =
    BTreeMap<(SocketAddr, EndpointProtocol, Option<ProxyProtocol>, usize), Weak<UpstreamEndpoint>>;

/// Values that belong to a table's value, by its address. The owner of such a map also holds the table's values, so
/// that no address is reused.
pub(crate) type ByPointer<T> = HashMap<usize, T, BuildHasherDefault<PointerHasher>>;

#[derive(Default)]
pub(crate) struct PointerHasher(u64);

impl Hasher for PointerHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = fnv1a_64(self.0, bytes);
    }

    fn write_usize(&mut self, pointer: usize) {
        self.0 = (pointer as u64).wrapping_mul(GOLDEN_STEP).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

pub(crate) fn pointer<T>(of: &Arc<T>) -> usize {
    Arc::as_ptr(of) as usize
}

impl Registry {
    /// Finds or creates a backend, which may have no endpoints yet.
    pub(crate) fn backend(&mut self, id: &BackendId) -> Arc<UpstreamBackend> {
        if let Some(backend) = self.backends.get(id) {
            return backend.clone();
        }
        let backend = Arc::new(UpstreamBackend::new(id));
        self.backends.insert(id.clone(), backend.clone());
        backend
    }

    /// Finds or creates the counters of a rule.
    pub(crate) fn route_stats(&mut self, label: &str) -> Arc<RouteStats> {
        if let Some(stats) = self.routes.get(label) {
            return stats.clone();
        }
        let label: Arc<str> = label.into();
        let stats = Arc::new(RouteStats::new(label.clone()));
        self.routes.insert(label, stats.clone());
        stats
    }

    /// Compiles a rule, unless the tables before had the same one.
    pub(crate) fn rule(&mut self, source: &Arc<HttpRule>, options: &ProxyOptions) -> Arc<CompiledRule> {
        if let Some((_, known)) = self.rules.get(&pointer(source)) {
            return known.clone();
        }
        let rule = Arc::new(CompiledRule::new(source, self, options));
        self.rules.insert(pointer(source), (source.clone(), rule.clone()));
        rule
    }

    /// Updates the endpoints of every backend.
    pub(crate) fn update(
        &mut self,
        backends: &BackendTable,
        routes: &RouteTable,
        tls: &UpstreamTlsByBackend,
        now: ProxyTime,
        settings: &ProxyOptions,
    ) {
        let endpoints = &mut self.endpoints;
        let mut update = |known: &UpstreamBackend, backend: &Arc<Backend>| {
            let tls = if tls.is_empty() { None } else { tls.get(&backend.id) };
            let policy = routes.load_balancing(&backend.id.service);
            known.update(backend, tls, policy, now, settings, |endpoint, backend, added_at| {
                find_or_create(endpoints, endpoint, backend, tls, added_at, &settings.clock)
            });
        };
        // Both are sorted by id, and nearly all are unchanged: one walk along both.
        let mut known = self.backends.iter().peekable();
        let mut added = Vec::new();
        for backend in backends.backends() {
            while known.next_if(|(id, _)| **id < backend.id).is_some() {}
            match known.next_if(|(id, _)| **id == backend.id) {
                Some((_, known)) => update(known, backend),
                None => added.push(backend),
            }
        }
        for backend in added {
            let new = Arc::new(UpstreamBackend::new(&backend.id));
            update(&new, backend);
            self.backends.insert(backend.id.clone(), new);
        }
    }

    /// Drops what is in no table and no longer referenced.
    pub(crate) fn prune(&mut self, backends: &BackendTable) {
        // Rules first: they hold backends and counters.
        self.rules.retain(|_, (_, rule)| Arc::strong_count(rule) > 1);
        let mut in_table = backends.backends().peekable();
        self.backends.retain(|id, known| {
            while in_table.next_if(|backend| backend.id < *id).is_some() {}
            let is_in_table = in_table.next_if(|backend| backend.id == *id).is_some();
            if !is_in_table {
                known.clear();
            }
            is_in_table || Arc::strong_count(known) > 1
        });
        self.routes.retain(|_, stats| Arc::strong_count(stats) > 1);
        self.endpoints.retain(|_, endpoint| endpoint.strong_count() > 0);
    }

    /// Closes upstream connections that have been idle for `keep`, and returns how many.
    pub(crate) fn sweep_idle(&self, now: Instant, keep: Duration) -> usize {
        let endpoints = self.endpoints.values().filter_map(Weak::upgrade);
        endpoints.map(|endpoint| endpoint.pool.sweep_idle(now, keep)).sum()
    }

    pub(crate) fn backends(&self) -> impl Iterator<Item = &Arc<UpstreamBackend>> {
        self.backends.values()
    }

    pub(crate) fn routes(&self) -> impl Iterator<Item = &Arc<RouteStats>> {
        self.routes.values()
    }
}

fn find_or_create(
    endpoints: &mut EndpointsByAddress,
    endpoint: &BackendEndpoint,
    backend: &Backend,
    tls: Option<&Arc<UpstreamTls>>,
    added_at: Option<ProxyTime>,
    clock: &Clock,
) -> Arc<UpstreamEndpoint> {
    let protocol = endpoint_protocol(backend.protocol);
    let key = (endpoint.address, protocol, backend.proxy_protocol, tls.map_or(0, pointer));
    if let Some(known) = endpoints.get(&key).and_then(Weak::upgrade) {
        return known;
    }
    let (address, proxy_protocol) = (endpoint.address, backend.proxy_protocol);
    let zone = endpoint.zone.clone();
    let new = UpstreamEndpoint::new(address, protocol, proxy_protocol, zone, added_at, clock.clone());
    let new = Arc::new(new.with_tls(tls.cloned()));
    endpoints.insert(key, Arc::downgrade(&new));
    new
}

//! TrafficCounters metrics: connections and bytes by Service, source and destination zone, and locality.
//!
//! ```text
//! rule counters, new connections -> read every few seconds --> by (frontend, endpoint) --\
//! conntrack destroy events, bytes ---------------------------> likewise ---------------+-> by Service, zone -> metrics
//! conntrack dump every half minute, bytes of open flows -----> likewise --------------/
//! ```

mod conntrack_events;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clock::Clock;
use model::forward::{ForwardingTable, FrontendAddress};
use model::{Locality, ServiceKey, Snapshot};
use plan::forward::NodeConfig;

use super::metrics::{LabelPairs, NodeMetrics};
use conntrack_events::{ConntrackReader, FlowPair, Sums, TrafficCounts};

/// Interval between updates of the metrics.
const PERIOD: Duration = Duration::from_secs(5);

/// What was counted, and what of it is in the metrics.
pub struct TrafficCounters {
    counts: Option<Arc<Mutex<TrafficCounts>>>,
    due: Instant,
    /// Bytes of connections that ended.
    ended: Routes,
    /// Bytes of open connections.
    open: Routes,
    /// Bytes in the metrics.
    reported: Routes,
}

type Routes = BTreeMap<Route, u64>;

/// A Service, and how far its traffic goes from here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Route {
    service: ServiceKey,
    from_zone: String,
    to_zone: String,
    locality: Locality,
}

impl Route {
    fn labels(&self) -> LabelPairs {
        vec![
            ("namespace", self.service.namespace.to_string()),
            ("service", self.service.name.to_string()),
            ("from_zone", self.from_zone.clone()),
            ("to_zone", self.to_zone.clone()),
            ("locality", self.locality.to_string()),
        ]
    }
}

/// Starts counting. Without conntrack accounting, nothing is counted.
pub fn start(clock: &Clock) -> TrafficCounters {
    let counts = match ConntrackReader::open() {
        Ok(reader) => {
            let counts = Arc::new(Mutex::new(TrafficCounts::default()));
            let theirs = counts.clone();
            let clock = clock.clone();
            #[allow(clippy::disallowed_methods, reason = "blocks on netlink for the life of the process")]
            std::thread::spawn(move || reader.run(&theirs, &clock));
            Some(counts)
        }
        Err(error) => {
            tracing::warn!(%error, "cannot count the traffic of Services");
            None
        }
    };
    TrafficCounters::new(counts, clock.now())
}

/// What addresses are resolved with.
pub struct Known<'a> {
    pub snapshot: &'a Snapshot,
    pub table: &'a ForwardingTable,
    pub node: &'a NodeConfig,
}

impl TrafficCounters {
    fn new(counts: Option<Arc<Mutex<TrafficCounts>>>, now: Instant) -> Self {
        TrafficCounters {
            counts,
            due: now + PERIOD,
            ended: Routes::new(),
            open: Routes::new(),
            reported: Routes::new(),
        }
    }

    /// Counts nothing.
    pub fn disabled(now: Instant) -> Self {
        Self::new(None, now)
    }

    /// When to call [`Self::count`] again.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Adds new counts to the metrics.
    pub fn count(&mut self, known: &Known<'_>, metrics: &NodeMetrics, now: Instant) {
        self.due = now + PERIOD;
        let Some(counts) = &self.counts else { return };
        let counts = std::mem::take(&mut *counts.lock().unwrap_or_else(PoisonError::into_inner));
        let mut connections = Routes::new();
        add_all(&mut connections, &counts.connections, known);
        for (route, count) in connections {
            metrics.connections.get_or_create(&route.labels()).inc_by(count);
            // Removes the metric with its Service.
            self.reported.entry(route).or_default();
        }
        add_all(&mut self.ended, &counts.ended, known);
        if let Some(open) = counts.open {
            self.open.clear();
            add_all(&mut self.open, &open, known);
        }
        self.report_bytes(metrics);
        self.forget(known.snapshot, metrics);
    }

    /// Counters only grow: a connection that ended after the last dump is in both sums until the next dump, and is
    /// reported once.
    fn report_bytes(&mut self, metrics: &NodeMetrics) {
        let mut now = self.ended.clone();
        for (route, bytes) in &self.open {
            *now.entry(route.clone()).or_default() += bytes;
        }
        for (route, bytes) in now {
            let reported = self.reported.entry(route.clone()).or_default();
            metrics.bytes.get_or_create(&route.labels()).inc_by(bytes.saturating_sub(*reported));
            *reported = bytes.max(*reported);
        }
    }

    /// Removes the metrics of deleted Services.
    fn forget(&mut self, snapshot: &Snapshot, metrics: &NodeMetrics) {
        let is_there = |route: &Route| snapshot.service(&route.service).is_some();
        self.ended.retain(|route, _| is_there(route));
        self.open.retain(|route, _| is_there(route));
        self.reported.retain(|route, _| {
            let keep = is_there(route);
            if !keep {
                metrics.connections.remove(&route.labels());
                metrics.bytes.remove(&route.labels());
            }
            keep
        });
    }
}

fn add_all(routes: &mut Routes, sums: &Sums, known: &Known<'_>) {
    for (pair, count) in sums {
        if let Some(route) = route(pair, known) {
            let sum = routes.entry(route).or_default();
            *sum = sum.saturating_add(*count);
        }
    }
}

fn route(pair: &FlowPair, known: &Known<'_>) -> Option<Route> {
    let Known { snapshot, table, node } = known;
    let FlowPair { protocol, frontend, endpoint } = *pair;
    let at = FrontendAddress::new(frontend.ip(), protocol, frontend.port());
    let port = FrontendAddress::node_port(model::Family::of(frontend.ip()), protocol, frontend.port());
    let by_port = || table.frontend(&port).filter(|_| node.rules.addresses.contains(&frontend.ip()));
    let service = &table.frontend(&at).or_else(by_port)?.port.service;
    let endpoints = snapshot.slices(service).iter().flat_map(|slice| &slice.content.endpoints);
    let found = endpoints.into_iter().find(|e| e.addresses.first() == endpoint.ip());
    let to_zone = found.and_then(|e| e.zone.as_deref());
    let from_zone = node.zone.as_deref();
    let to_node = found.and_then(|e| e.node.as_deref());
    let locality = Locality::of((Some(&node.name), from_zone), (to_node, to_zone));
    let text = |zone: Option<&str>| zone.unwrap_or_default().to_owned();
    Some(Route { service: service.clone(), from_zone: text(from_zone), to_zone: text(to_zone), locality })
}

#[cfg(test)]
mod tests;

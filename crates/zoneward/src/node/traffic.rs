//! Where connections went, and how many bytes they carried: by Service, on this node, in this zone, or elsewhere.
//!
//! ```text
//! rules count each new connection -> read every few seconds -> by (frontend, endpoint) --\
//! connection ends -> the kernel tells its bytes ---------------> likewise ---------------+-> by Service, zone -> metrics
//! every half minute: open ones are asked for theirs -----------> likewise --------------/
//! ```

mod hear;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use model::forward::{ForwardingTable, FrontendAddress};
use model::{Locality, ServiceKey, Snapshot};
use plan::forward::NodeConfig;

use super::metrics::{Labels, Metrics};
use hear::{Ears, Heard, Pair, Sums};

/// How often what was heard goes into the metrics.
const PERIOD: Duration = Duration::from_secs(5);

/// What was heard, and what of it is in the metrics.
pub struct Traffic {
    heard: Option<Arc<Mutex<Heard>>>,
    due: Instant,
    /// Bytes of connections that ended.
    ended: Routes,
    /// Bytes of those that are open.
    open: Routes,
    /// Bytes in the metrics.
    told: Routes,
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
    fn labels(&self) -> Labels {
        vec![
            ("namespace", self.service.namespace.to_string()),
            ("service", self.service.name.to_string()),
            ("from_zone", self.from_zone.clone()),
            ("to_zone", self.to_zone.clone()),
            ("locality", self.locality.to_string()),
        ]
    }
}

/// Starts to listen. Where the kernel does not tell, nothing is counted.
pub fn start() -> Traffic {
    let heard = match Ears::open() {
        Ok(ears) => {
            let heard = Arc::new(Mutex::new(Heard::default()));
            let theirs = heard.clone();
            std::thread::spawn(move || ears.listen(&theirs));
            Some(heard)
        }
        Err(error) => {
            tracing::warn!(%error, "cannot count the traffic of Services");
            None
        }
    };
    Traffic::new(heard)
}

/// What is known of this node and its Services when traffic is told.
pub struct Known<'a> {
    /// All Services and slices.
    pub snapshot: &'a Snapshot,
    /// Where frontends lead.
    pub table: &'a ForwardingTable,
    /// This node.
    pub node: &'a NodeConfig,
}

impl Traffic {
    fn new(heard: Option<Arc<Mutex<Heard>>>) -> Self {
        Traffic {
            heard,
            due: Instant::now() + PERIOD,
            ended: Routes::new(),
            open: Routes::new(),
            told: Routes::new(),
        }
    }

    /// When to count again.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Puts what was heard into the metrics.
    pub fn count(&mut self, known: &Known<'_>, metrics: &Metrics) {
        self.due = Instant::now() + PERIOD;
        let Some(heard) = &self.heard else { return };
        let heard = std::mem::take(&mut *heard.lock().unwrap_or_else(PoisonError::into_inner));
        let mut connections = Routes::new();
        add_all(&mut connections, &heard.connections, known);
        for (route, count) in connections {
            metrics.connections.get_or_create(&route.labels()).inc_by(count);
            // So that it is forgotten with its Service.
            self.told.entry(route).or_default();
        }
        add_all(&mut self.ended, &heard.ended, known);
        if let Some(open) = heard.open {
            self.open.clear();
            add_all(&mut self.open, &open, known);
        }
        self.tell_bytes(metrics);
        self.forget(known.snapshot, metrics);
    }

    /// Counters only grow: what a connection carried that ended since the open ones were asked is in both sums until they
    /// are asked again, and is told once.
    fn tell_bytes(&mut self, metrics: &Metrics) {
        let mut now = self.ended.clone();
        for (route, bytes) in &self.open {
            *now.entry(route.clone()).or_default() += bytes;
        }
        for (route, bytes) in now {
            let told = self.told.entry(route.clone()).or_default();
            metrics.bytes.get_or_create(&route.labels()).inc_by(bytes.saturating_sub(*told));
            *told = bytes.max(*told);
        }
    }

    /// Services that are gone take their counts with them.
    fn forget(&mut self, snapshot: &Snapshot, metrics: &Metrics) {
        let is_there = |route: &Route| snapshot.service(&route.service).is_some();
        self.ended.retain(|route, _| is_there(route));
        self.open.retain(|route, _| is_there(route));
        self.told.retain(|route, _| {
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

fn route(pair: &Pair, known: &Known<'_>) -> Option<Route> {
    let Known { snapshot, table, node } = known;
    let Pair { protocol, frontend, endpoint } = *pair;
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

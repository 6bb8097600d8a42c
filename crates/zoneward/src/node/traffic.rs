//! Where connections went, and how many bytes they carried: by Service, on this node, in this zone, or elsewhere.
//!
//! ```text
//! connection ends -> the kernel tells it -> ended, summed by (frontend, endpoint) --\
//! every half minute: open ones are asked -> open, summed likewise -------------------+-> by Service and zone -> metrics
//! ```
//!
//! A thread of its own does the listening and asking: a large table of connections shall not hold up rules.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dataplane::conntrack::{Account, CtSocket, Ended, Family};
use dataplane::nftables::render::protocol_of;
use model::forward::{ForwardingTable, Place};
use model::{Protocol, ServiceKey, Snapshot};
use plan::forward::NodeConfig;

use super::metrics::{Labels, Metrics};

/// How often open connections are asked.
const PERIOD: Duration = Duration::from_secs(30);
/// Pairs of frontend and endpoint that are told apart.
const MOST_PAIRS: usize = 200_000;

/// A frontend and the endpoint behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    protocol: Protocol,
    frontend: SocketAddr,
    endpoint: SocketAddr,
}

/// Connections and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    connections: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.connections = self.connections.saturating_add(other.connections);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

type Sums = BTreeMap<Pair, Sum>;

#[derive(Default)]
struct Heard {
    ended: Sums,
    open: Sums,
}

/// What was heard, and what of it is in the metrics.
pub struct Traffic {
    heard: Option<Arc<Mutex<Heard>>>,
    due: Instant,
    ended: BTreeMap<Route, Sum>,
    told: BTreeMap<Route, Sum>,
}

/// A Service, and how far its traffic goes from here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Route {
    service: ServiceKey,
    from_zone: String,
    to_zone: String,
    locality: &'static str,
}

impl Route {
    fn labels(&self) -> Labels {
        vec![
            ("namespace", self.service.namespace.to_string()),
            ("service", self.service.name.to_string()),
            ("from_zone", self.from_zone.clone()),
            ("to_zone", self.to_zone.clone()),
            ("locality", self.locality.to_owned()),
        ]
    }
}

/// Starts to listen. Where the kernel does not tell, nothing is counted.
pub fn start() -> Traffic {
    let sockets = Ended::open().and_then(|ended| Ok((ended, CtSocket::open()?)));
    let heard = match sockets {
        Ok((ended, open)) => {
            let heard = Arc::new(Mutex::new(Heard::default()));
            let theirs = heard.clone();
            std::thread::spawn(move || listen(ended, open, &theirs));
            Some(heard)
        }
        Err(error) => {
            tracing::warn!(%error, "traffic of Services is not counted");
            None
        }
    };
    Traffic { heard, due: Instant::now() + PERIOD, ended: BTreeMap::new(), told: BTreeMap::new() }
}

/// Ends when nobody else holds what is heard.
fn listen(mut ended: Ended, mut open: CtSocket, heard: &Arc<Mutex<Heard>>) {
    let mut asked = Instant::now();
    while Arc::strong_count(heard) > 1 {
        let mut came = Vec::new();
        // What was lost is lost: the count is a little low, and the next one is right again.
        let _ = ended.wait(&mut |account| came.extend(pair(&account)));
        if !came.is_empty() {
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            came.into_iter().for_each(|(pair, sum)| add(&mut heard.ended, pair, sum));
        }
        if asked.elapsed() >= PERIOD - Duration::from_secs(2) {
            asked = Instant::now();
            let mut sums = Sums::new();
            for family in [Family::Ip, Family::Ip6] {
                let _ = open.accounts(family, &mut |account| {
                    pair(&account).into_iter().for_each(|(pair, sum)| add(&mut sums, pair, sum));
                });
            }
            heard.lock().unwrap_or_else(PoisonError::into_inner).open = sums;
        }
    }
}

fn add(sums: &mut Sums, pair: Pair, sum: Sum) {
    if sums.len() < MOST_PAIRS || sums.contains_key(&pair) {
        sums.entry(pair).or_default().add(sum);
    }
}

/// Only what was sent elsewhere than it was addressed to can be a Service's.
fn pair(account: &Account) -> Option<(Pair, Sum)> {
    let flow = &account.flow;
    let protocol = protocol_of(flow.protocol).filter(|_| flow.dst != flow.reply_src)?;
    let pair = Pair { protocol, frontend: flow.dst, endpoint: flow.reply_src };
    Some((pair, Sum { connections: 1, bytes: account.bytes }))
}

impl Traffic {
    /// When to count again.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Puts what was heard into the metrics.
    pub fn count(
        &mut self,
        snapshot: &Snapshot,
        table: &ForwardingTable,
        node: &NodeConfig,
        metrics: &Metrics,
    ) {
        self.due = Instant::now() + PERIOD;
        let Some(heard) = &self.heard else { return };
        let (ended, open) = {
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            (std::mem::take(&mut heard.ended), std::mem::take(&mut heard.open))
        };
        for (pair, sum) in ended {
            if let Some(route) = route(&pair, snapshot, table, node) {
                self.ended.entry(route).or_default().add(sum);
            }
        }
        let mut now = self.ended.clone();
        for (pair, sum) in open {
            if let Some(route) = route(&pair, snapshot, table, node) {
                now.entry(route).or_default().add(sum);
            }
        }
        self.tell(now, metrics);
        self.forget(snapshot, metrics);
    }

    /// Counters only grow: a connection that ended meanwhile may have been counted twice for a moment.
    fn tell(&mut self, now: BTreeMap<Route, Sum>, metrics: &Metrics) {
        for (route, sum) in now {
            let told = self.told.entry(route.clone()).or_default();
            let labels = route.labels();
            metrics
                .connections
                .get_or_create(&labels)
                .inc_by(sum.connections.saturating_sub(told.connections));
            metrics.bytes.get_or_create(&labels).inc_by(sum.bytes.saturating_sub(told.bytes));
            told.connections = told.connections.max(sum.connections);
            told.bytes = told.bytes.max(sum.bytes);
        }
    }

    /// Services that are gone take their counts with them.
    fn forget(&mut self, snapshot: &Snapshot, metrics: &Metrics) {
        let is_there = |route: &Route| snapshot.service(&route.service).is_some();
        self.ended.retain(|route, _| is_there(route));
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

fn route(pair: &Pair, snapshot: &Snapshot, table: &ForwardingTable, node: &NodeConfig) -> Option<Route> {
    let Pair { protocol, frontend, endpoint } = *pair;
    let at = Place::address(frontend.ip(), protocol, frontend.port());
    let port = Place::node_port(model::Family::of(frontend.ip()), protocol, frontend.port());
    let by_port = || table.frontend(&port).filter(|_| node.rules.addresses.contains(&frontend.ip()));
    let service = &table.frontend(&at).or_else(by_port)?.port.service;
    let endpoints = snapshot.slices(service).iter().flat_map(|slice| &slice.content.endpoints);
    let found = endpoints.into_iter().find(|e| e.addresses.first() == endpoint.ip());
    let to_zone = found.and_then(|e| e.zone.as_deref());
    let from_zone = node.zone.as_deref();
    let is_here = found.and_then(|e| e.node.as_ref()).is_some_and(|name| *name == node.name);
    let locality = match (is_here, from_zone, to_zone) {
        (true, _, _) => "same-node",
        (false, Some(from), Some(to)) if from == to => "same-zone",
        (false, Some(_), Some(_)) => "cross-zone",
        _ => "unknown",
    };
    let text = |zone: Option<&str>| zone.unwrap_or_default().to_owned();
    Some(Route { service: service.clone(), from_zone: text(from_zone), to_zone: text(to_zone), locality })
}

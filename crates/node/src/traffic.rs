//! Traffic metrics and the sums of this node's reports: connections and bytes by Service, source and destination zone, and
//! locality; pod to pod connections that go through no Service as one row.
//!
//! ```text
//! rule counters, new connections -> read every few seconds --\
//! conntrack destroy events, bytes ----------------------------+-> by Service, zone -> metrics -> sums of reports
//! conntrack dump every half minute, bytes of open flows -----/
//! ```

mod conntrack_events;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clock::Clock;
use insight::ledger::{
    MAX_REPORT_PAIRS, PodZones, TrafficGaps, TrafficOwner, TrafficRow, ZoneLookup, ZonePairTraffic,
};
use insight::traffic_reporter::ReportedTraffic;
use model::forward::{ForwardingTable, FrontendAddress};
use model::{Locality, Name, ServiceKey, Slice, Snapshot};
use plan::forward::NodeConfig;
use tokio::sync::watch;

use super::metrics::{LabelPairs, NodeMetrics, report_result};
use super::run::SharedState;
pub use conntrack_events::{ConnectionSource, TrafficKernel, TrafficReader};
use conntrack_events::{DirectPair, FlowPair, TrafficCounts, TrafficSockets};

/// Interval between updates of the metrics.
const PERIOD: Duration = Duration::from_secs(5);
/// How long the zone of an endpoint that has gone is known.
const DEPARTED_TTL: Duration = Duration::from_secs(60);
/// How long the zone of an endpoint is known whose slice left the view of the node: it lives on, and so may connections.
const UNSEEN_TTL: Duration = Duration::from_secs(3600);
/// Most endpoints that have gone.
const MAX_DEPARTED: usize = 50_000;
/// Most pairs that wait for their Service to be known.
const MAX_UNRESOLVED: usize = 10_000;

/// The sums of this node since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTraffic {
    pub rows: Vec<TrafficRow>,
    pub gaps: TrafficGaps,
}

/// The sums for reports; the zones of pods come back.
pub struct NodeTrafficSource {
    pub sums: watch::Receiver<NodeTraffic>,
    pub zones: watch::Sender<ZoneLookup>,
    pub shared: Arc<SharedState>,
}

impl ReportedTraffic for NodeTrafficSource {
    fn read(&mut self) -> (Vec<TrafficRow>, TrafficGaps) {
        let traffic = self.sums.borrow_and_update().clone();
        (traffic.rows, traffic.gaps)
    }

    fn pod_zones_version(&self) -> u64 {
        self.zones.borrow().version
    }

    fn set_pod_zones(&mut self, zones: PodZones) {
        self.zones.send_replace(zones.into());
    }

    fn reported(&mut self, is_accepted: bool) {
        let result = report_result(if is_accepted { "success" } else { "failed" });
        self.shared.metrics.reports.get_or_create(&result).inc();
    }
}

/// What was counted, and what of it is in the metrics.
pub struct TrafficCounters {
    counts: Option<Arc<Mutex<TrafficCounts>>>,
    due: Instant,
    totals: BTreeMap<Route, RouteTotals>,
    /// Sums of reports: bounded, while the metrics are not.
    reported: BTreeMap<(TrafficOwner, String, String), RouteTotals>,
    gaps: TrafficGaps,
    departed: BTreeMap<(ServiceKey, IpAddr), DepartedEndpoint>,
    /// Counts of frontends that no known Service has, while rules are not programmed.
    unresolved: BTreeMap<FlowPair, RouteTotals>,
    /// Zones of pods, from the controller.
    zones: watch::Receiver<ZoneLookup>,
    sums: watch::Sender<NodeTraffic>,
    /// Whether Services have metrics; reports have them in any case.
    has_service_metrics: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct RouteTotals {
    connections: u64,
    bytes: u64,
}

impl RouteTotals {
    fn add(&mut self, connections: u64, bytes: u64) {
        self.connections = self.connections.saturating_add(connections);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

struct DepartedEndpoint {
    node: Option<Name>,
    zone: Option<Name>,
    until: Instant,
}

/// A Service, and how far its traffic goes from here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Route {
    /// `None` for connections from pod to pod.
    service: Option<ServiceKey>,
    from_zone: String,
    to_zone: String,
    locality: Locality,
}

impl Route {
    fn labels(&self) -> LabelPairs {
        let service = self.service.iter().flat_map(|service| {
            [("namespace", service.namespace.to_string()), ("service", service.name.to_string())]
        });
        let zones = [
            ("from_zone", self.from_zone.clone()),
            ("to_zone", self.to_zone.clone()),
            ("locality", self.locality.to_string()),
        ];
        service.chain(zones).collect()
    }
}

/// Starts counting. Without conntrack accounting, nothing is counted.
pub fn start(
    clock: &Clock,
    source: ConnectionSource,
    zones: watch::Receiver<ZoneLookup>,
    sums: watch::Sender<NodeTraffic>,
    has_service_metrics: bool,
) -> TrafficCounters {
    let counters = match TrafficSockets::open() {
        Ok(sockets) => {
            let (counters, reader) = start_reading(clock, Box::new(sockets), source, zones, sums);
            #[allow(clippy::disallowed_methods, reason = "blocks on netlink for the life of the process")]
            std::thread::spawn(move || reader.run());
            counters
        }
        Err(error) => {
            tracing::warn!(%error, "cannot count the traffic of Services");
            TrafficCounters::new(None, clock.now(), zones, sums)
        }
    };
    TrafficCounters { has_service_metrics, ..counters }
}

/// Counts what a reader reads, whose [`TrafficReader::step`] the caller calls again and again.
pub fn start_reading(
    clock: &Clock,
    kernel: Box<dyn TrafficKernel>,
    source: ConnectionSource,
    zones: watch::Receiver<ZoneLookup>,
    sums: watch::Sender<NodeTraffic>,
) -> (TrafficCounters, TrafficReader) {
    let reader = TrafficReader::new(clock, kernel, source);
    (TrafficCounters::new(Some(reader.counts()), clock.now(), zones, sums), reader)
}

/// What addresses are resolved with.
pub struct Known<'a> {
    pub snapshot: &'a Snapshot,
    pub table: &'a ForwardingTable,
    pub node: &'a NodeConfig,
    /// Whether the kernel has the rules of the table. After a sync whose reply was lost it forwards for Services that the
    /// table does not have.
    pub is_programmed: bool,
}

impl TrafficCounters {
    fn new(
        counts: Option<Arc<Mutex<TrafficCounts>>>,
        now: Instant,
        zones: watch::Receiver<ZoneLookup>,
        sums: watch::Sender<NodeTraffic>,
    ) -> Self {
        TrafficCounters {
            counts,
            due: now + PERIOD,
            totals: BTreeMap::new(),
            reported: BTreeMap::new(),
            gaps: TrafficGaps::default(),
            departed: BTreeMap::new(),
            unresolved: BTreeMap::new(),
            zones,
            sums,
            has_service_metrics: true,
        }
    }

    /// Counts nothing.
    pub fn disabled(now: Instant) -> Self {
        let (zones, sums) =
            (watch::channel(ZoneLookup::default()).1, watch::channel(NodeTraffic::default()).0);
        Self::new(None, now, zones, sums)
    }

    /// When to call [`Self::count`] again.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Remembers the endpoints that a change removes from a slice: connections to them end later.
    pub fn slice_changes(
        &mut self,
        service: &ServiceKey,
        before: &Slice,
        after: Option<&Slice>,
        now: Instant,
    ) {
        if self.counts.is_none() {
            return;
        }
        let stays =
            |ip| after.is_some_and(|after| after.content.endpoints.iter().any(|e| e.addresses.first() == ip));
        for endpoint in &before.content.endpoints {
            let ip = endpoint.addresses.first();
            if self.departed.len() >= MAX_DEPARTED {
                return;
            }
            if !stays(ip) {
                let (node, zone) = (endpoint.node.clone(), endpoint.zone.clone());
                let gone = DepartedEndpoint { node, zone, until: now + DEPARTED_TTL };
                self.departed.insert((service.clone(), ip), gone);
            }
        }
    }

    /// Remembers the endpoints of a slice that left the view of the node.
    pub fn slice_leaves(&mut self, service: &ServiceKey, slice: &Slice, now: Instant) {
        self.slice_changes(service, slice, None, now);
        for endpoint in &slice.content.endpoints {
            if let Some(gone) = self.departed.get_mut(&(service.clone(), endpoint.addresses.first())) {
                gone.until = now + UNSEEN_TTL;
            }
        }
    }

    /// Adds new counts to the metrics.
    pub fn count(&mut self, known: &Known<'_>, metrics: &NodeMetrics, now: Instant) {
        self.due = now + PERIOD;
        let Some(counts) = &self.counts else { return };
        let counts = std::mem::take(&mut *counts.lock().unwrap_or_else(PoisonError::into_inner));
        self.departed.retain(|_, endpoint| endpoint.until > now);
        let mut new = self.resolve(&counts, known);
        {
            let zones = self.zones.borrow_and_update().clone();
            for (pair, growth) in &counts.direct {
                if let Some(route) = direct_route(pair, &zones, known) {
                    new.entry(route).or_default().add(growth.connections, growth.bytes);
                }
            }
        }
        for (route, more) in new {
            self.add(route, more, metrics);
        }
        self.gaps.lost_events += counts.lost_events;
        self.gaps.dropped_counts += counts.dropped;
        metrics.lost_events.inc_by(counts.lost_events);
        metrics.dropped_counts.inc_by(counts.dropped);
        if let Some(flows) = counts.unaccounted {
            self.gaps.unaccounted_flows = flows;
            metrics.unaccounted_flows.set(i64::try_from(flows).unwrap_or(i64::MAX));
        }
        self.forget(known.snapshot, metrics);
        self.publish();
    }

    /// New counts, and those that waited, by route.
    fn resolve(&mut self, counts: &TrafficCounts, known: &Known<'_>) -> BTreeMap<Route, RouteTotals> {
        let mut pairs = std::mem::take(&mut self.unresolved);
        for (pair, connections) in &counts.connections {
            pairs.entry(*pair).or_default().add(*connections, 0);
        }
        for (pair, bytes) in &counts.bytes {
            pairs.entry(*pair).or_default().add(0, *bytes);
        }
        let mut new: BTreeMap<Route, RouteTotals> = BTreeMap::new();
        for (pair, more) in pairs {
            match self.route(&pair, known) {
                Some(route) => new.entry(route).or_default().add(more.connections, more.bytes),
                None if !known.is_programmed && self.unresolved.len() < MAX_UNRESOLVED => {
                    self.unresolved.insert(pair, more);
                }
                // Of a Service that was deleted, or of another program's rules.
                None => {}
            }
        }
        new
    }

    fn add(&mut self, route: Route, more: RouteTotals, metrics: &NodeMetrics) {
        let RouteTotals { connections, bytes } = more;
        let labels = route.labels();
        let (of_connections, of_bytes) = match route.service {
            Some(_) => (&metrics.connections, &metrics.bytes),
            None => (&metrics.direct_connections, &metrics.direct_bytes),
        };
        if route.service.is_none() || self.has_service_metrics {
            of_connections.get_or_create(&labels).inc_by(connections);
            of_bytes.get_or_create(&labels).inc_by(bytes);
        }
        let mut owner = match &route.service {
            Some(service) => TrafficOwner::from(service),
            None => TrafficOwner::NotThroughService,
        };
        // The row of other Services, and that of no Service, always have room.
        let room = MAX_REPORT_PAIRS / 2;
        let key = |owner| (owner, route.from_zone.clone(), route.to_zone.clone());
        if self.reported.len() >= room
            && route.service.is_some()
            && !self.reported.contains_key(&key(owner.clone()))
        {
            owner = TrafficOwner::OtherServices;
        }
        self.reported.entry(key(owner)).or_default().add(connections, bytes);
        self.totals.entry(route).or_default().add(connections, bytes);
    }

    /// Removes the metrics of deleted Services.
    fn forget(&mut self, snapshot: &Snapshot, metrics: &NodeMetrics) {
        let is_there = |service: &ServiceKey| snapshot.service(service).is_some();
        self.totals.retain(|route, _| {
            let keep = route.service.as_ref().is_none_or(is_there);
            if !keep {
                metrics.connections.remove(&route.labels());
                metrics.bytes.remove(&route.labels());
            }
            keep
        });
        self.reported.retain(|(owner, ..), _| match owner {
            TrafficOwner::Service { namespace, name } => {
                is_there(&ServiceKey::new(&namespace.as_str().into(), &name.as_str().into()))
            }
            TrafficOwner::OtherServices | TrafficOwner::NotThroughService => true,
        });
    }

    /// Gives the sums to the reporter.
    fn publish(&self) {
        let mut rows: Vec<TrafficRow> = Vec::new();
        for ((owner, from_zone, to_zone), totals) in &self.reported {
            if rows.last().is_none_or(|row| row.owner != *owner) {
                rows.push(TrafficRow { owner: owner.clone(), zone_pairs: Vec::new() });
            }
            let RouteTotals { connections, bytes } = *totals;
            let (from_zone, to_zone) = (from_zone.clone(), to_zone.clone());
            let pair = ZonePairTraffic { from_zone, to_zone, connections, bytes };
            if let Some(row) = rows.last_mut() {
                row.zone_pairs.push(pair);
            }
        }
        self.sums.send_replace(NodeTraffic { rows, gaps: self.gaps });
    }

    fn route(&self, pair: &FlowPair, known: &Known<'_>) -> Option<Route> {
        let Known { snapshot, table, node, .. } = known;
        let FlowPair { protocol, frontend, endpoint } = *pair;
        let at = FrontendAddress::new(frontend.ip(), protocol, frontend.port());
        let port = FrontendAddress::node_port(model::Family::of(frontend.ip()), protocol, frontend.port());
        let by_port = || table.frontend(&port).filter(|_| node.rules.addresses.contains(&frontend.ip()));
        let service = &table.frontend(&at).or_else(by_port)?.port.service;
        let endpoints = snapshot.slices(service).iter().flat_map(|slice| &slice.content.endpoints);
        let found = endpoints.into_iter().find(|e| e.addresses.first() == endpoint.ip());
        let zones = self.zones.borrow();
        let (to_node, to_zone) = match (found, self.departed.get(&(service.clone(), endpoint.ip()))) {
            (Some(endpoint), _) => (endpoint.node.as_deref(), endpoint.zone.as_deref()),
            (None, Some(gone)) => (gone.node.as_deref(), gone.zone.as_deref()),
            // A slice of another zone may never have been in view.
            (None, None) => (None, zones.zone(endpoint.ip()).filter(|zone| !zone.is_empty())),
        };
        let from_zone = node.zone.as_deref();
        let locality = Locality::of((Some(&node.name), from_zone), (to_node, to_zone));
        Some(Route {
            service: Some(service.clone()),
            from_zone: text(from_zone),
            to_zone: text(to_zone),
            locality,
        })
    }
}

/// Connections from this node to a pod, counted here and not at the pod's node. An embedded proxy counts its own.
fn direct_route(pair: &DirectPair, zones: &ZoneLookup, known: &Known<'_>) -> Option<Route> {
    let node = known.snapshot.node(&known.node.name)?;
    let is_of_this_node = |ip: &IpAddr| node.pod_cidrs.iter().any(|cidr| cidr.contains(ip));
    let is_from_here = is_of_this_node(&pair.src) || known.node.rules.addresses.contains(&pair.src);
    if !is_from_here || zones.is_proxy(pair.src) {
        return None;
    }
    let to_zone = Some(zones.zone(pair.dst)?).filter(|zone| !zone.is_empty());
    let from_zone = known.node.zone.as_deref();
    let to_node = is_of_this_node(&pair.dst).then_some(known.node.name.as_str());
    let locality = Locality::of((Some(&known.node.name), from_zone), (to_node, to_zone));
    Some(Route { service: None, from_zone: text(from_zone), to_zone: text(to_zone), locality })
}

fn text(zone: Option<&str>) -> String {
    zone.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;

//! Where the traffic of a Service goes: from every zone, and from every node that has endpoints of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use model::{Endpoint, Family, Name, Node, Service, Slice, annotation};
use plan::FeatureGates;
use plan::select::{ClusterPolicySelector, NodeView, SelectedEndpoint};

use super::DemandBasis;

/// What traffic does. Shares are fractions of the Service's traffic.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrafficFigures {
    /// Traffic that stays in its zone.
    pub in_zone: f64,
    /// Traffic that reaches no endpoint.
    pub refused: f64,
    /// What the most loaded endpoint gets above its fair share.
    pub max_overload: f64,
    /// The mean distance from the fair share.
    pub mean_overload: f64,
    /// Ready endpoints that get nothing.
    pub idle: usize,
    /// Traffic by the zone that it comes from and the zone that it goes to.
    pub zones: BTreeMap<(Name, Name), f64>,
}

impl TrafficFigures {
    /// Of the traffic that a zone sends and that is not refused, the share that goes to each zone. This is what
    /// connections counted by zone are compared with.
    pub fn rows(&self) -> BTreeMap<Name, BTreeMap<Name, f64>> {
        let mut rows: BTreeMap<Name, BTreeMap<Name, f64>> = BTreeMap::new();
        for ((from, to), share) in &self.zones {
            rows.entry(from.clone()).or_default().insert(to.clone(), *share);
        }
        for row in rows.values_mut() {
            let sum: f64 = row.values().sum();
            row.values_mut().for_each(|share| *share /= sum);
        }
        rows
    }

    /// How bad it is: what is refused counts before any overload.
    pub(super) fn badness(&self) -> f64 {
        self.refused * 1_000.0 + self.max_overload
    }
}

/// How much each zone and each node sends.
#[derive(Clone, Debug)]
pub(super) struct TrafficSources {
    zone: BTreeMap<Name, f64>,
    /// By node: its zone, and its share of what the zone sends.
    node: Arc<BTreeMap<Name, (Name, f64)>>,
    /// Those of the nodes.
    gates: FeatureGates,
}

impl TrafficSources {
    pub(super) fn new(nodes: &BTreeMap<Name, Node>, demand: &DemandBasis, gates: FeatureGates) -> Self {
        let counted = || nodes.values().filter(|n| n.ready).filter_map(|n| Some((n, n.zone.as_ref()?)));
        let known: Vec<u64> = counted().filter_map(|(n, _)| n.cpu_millis.filter(|cpu| *cpu > 0)).collect();
        let average = known.iter().sum::<u64>().checked_div(known.len() as u64).map_or(1, |a| a.max(1));
        let weight = |node: &Node| match demand {
            DemandBasis::Nodes => 1.0,
            DemandBasis::Cpu | DemandBasis::Measured(_) => {
                node.cpu_millis.filter(|c| *c > 0).unwrap_or(average) as f64
            }
        };
        let mut by_zone: BTreeMap<Name, f64> = BTreeMap::new();
        counted().for_each(|(node, zone)| *by_zone.entry(zone.clone()).or_default() += weight(node));
        let node = counted().map(|(node, zone)| {
            let part = weight(node) / by_zone.get(zone).copied().unwrap_or(1.0);
            (node.name.clone(), (zone.clone(), part))
        });
        let node = Arc::new(node.collect());
        let sources = Self { zone: by_zone, node, gates };
        match demand {
            DemandBasis::Measured(measured) => sources.measured(measured),
            DemandBasis::Nodes | DemandBasis::Cpu => sources.shared(),
        }
    }

    /// The same nodes, with zones that send what was measured.
    pub(super) fn measured(&self, measured: &BTreeMap<Name, f64>) -> Self {
        let wanted = |zone: &Name| measured.get(zone).copied().unwrap_or(0.0);
        let zone = self.zone.keys().map(|zone| (zone.clone(), wanted(zone))).collect();
        Self { zone, node: self.node.clone(), gates: self.gates }.shared()
    }

    /// What zones send, as shares of one.
    fn shared(mut self) -> Self {
        let all: f64 = self.zone.values().sum();
        self.zone.values_mut().for_each(|sum| *sum = if all > 0.0 { *sum / all } else { 0.0 });
        self
    }

    pub(super) fn shares(&self) -> Vec<(Name, f64)> {
        self.zone.iter().map(|(zone, share)| (zone.clone(), *share)).collect()
    }

    /// The name of a ready node, as it is held here.
    pub(super) fn node_name(&self, name: &Name) -> Option<Name> {
        self.node.get_key_value(name).map(|(name, _)| name.clone())
    }

    /// Who has to be asked: every zone without the nodes that have endpoints, and each of those nodes.
    fn places<'a>(&'a self, serving: &BTreeSet<&'a Name>) -> Vec<Place<'a>> {
        // A name that no node has stands for all nodes without endpoints.
        let whole = self.zone.iter().map(|(zone, share)| Place { node: "", zone, share: *share });
        let mut places: Vec<Place<'_>> = whole.collect();
        for (node, (zone, part)) in serving.iter().filter_map(|n| self.node.get_key_value(*n)) {
            let Some(at) = places.iter().position(|p| p.node.is_empty() && p.zone == zone) else { continue };
            let share = self.zone.get(zone).copied().unwrap_or(0.0) * part;
            places[at].share = (places[at].share - share).max(0.0);
            places.push(Place { node, zone, share });
        }
        places.retain(|place| place.share > 1e-15);
        places
    }
}

/// Somewhere that traffic comes from.
struct Place<'a> {
    node: &'a str,
    zone: &'a Name,
    share: f64,
}

/// An endpoint and what it gets.
struct Load<'s> {
    ip: IpAddr,
    endpoint: &'s Endpoint,
    /// What it can take beside others.
    capacity: f64,
    load: f64,
}

/// What one endpoint gets, as shares of the Service's traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointLoad {
    pub address: IpAddr,
    pub node: Option<Name>,
    pub zone: Option<Name>,
    pub load: f64,
    /// The same for every endpoint, unless their capacities differ.
    pub fair: f64,
}

/// Where the traffic of the Service's first port goes.
pub(super) fn figures(
    service: &Service,
    slices: &[Slice],
    family: Family,
    sources: &TrafficSources,
) -> TrafficFigures {
    figures_and_loads(service, slices, family, sources).0
}

/// The same with the load of each endpoint that is ready or gets traffic, by zone and address.
pub(super) fn figures_and_loads<'s>(
    service: &Service,
    slices: &'s [Slice],
    family: Family,
    sources: &TrafficSources,
) -> (TrafficFigures, Vec<EndpointLoad>) {
    let endpoints = slices.iter().flat_map(|s| s.content.endpoints.iter().map(move |e| (s, e)));
    let load = |(slice, endpoint): (&Slice, &'s Endpoint)| {
        let ip = endpoint.addresses.first();
        Load { ip, endpoint, capacity: f64::from(slice.capacity(ip)), load: 0.0 }
    };
    let mut loads: Vec<Load<'_>> = endpoints.map(load).collect();
    loads.sort_by_key(|load| load.ip);
    loads.dedup_by_key(|load| load.ip);
    let ready = || loads.iter().map(|l| l.endpoint).filter(|e| e.conditions.is_ready());
    let serving: BTreeSet<&Name> = match ready().any(|e| !e.node_hints().is_empty()) {
        true => ready().filter_map(|e| e.node.as_ref()).collect(),
        false => BTreeSet::new(),
    };
    let alike = !is_told_apart(slices);
    let mut figures = TrafficFigures::default();
    let sets = service
        .ports
        .first()
        .map(|port| ClusterPolicySelector::new(service, port, slices, family, sources.gates));
    let mut targets: Option<Vec<SelectedEndpoint>> = None;
    for place in sources.places(&serving) {
        if !alike || targets.is_none() {
            let view = NodeView { name: place.node, zone: Some(place.zone), gates: sources.gates };
            targets = sets.as_ref().map(|sets| sets.select(&view).endpoints);
        }
        figures.send(&place, targets.as_deref().unwrap_or_default(), &mut loads);
    }
    figures.weigh(&loads);
    let counted = loads.iter().filter(|l| l.endpoint.conditions.is_ready() || l.load > 0.0);
    let capacity: f64 = counted.clone().map(|l| l.capacity).sum();
    let fair = |l: &Load<'_>| (1.0 - figures.refused) * l.capacity / capacity.max(f64::MIN_POSITIVE);
    let mut endpoints: Vec<EndpointLoad> = counted
        .map(|l| EndpointLoad {
            address: l.ip,
            node: l.endpoint.node.clone(),
            zone: l.endpoint.zone.clone(),
            load: l.load,
            fair: fair(l),
        })
        .collect();
    endpoints.sort_by(|a, b| (&a.zone, a.address).cmp(&(&b.zone, b.address)));
    (figures, endpoints)
}

/// Whether slices tell one node from another: without hints and mechanism every node selects the same.
fn is_told_apart(slices: &[Slice]) -> bool {
    slices.iter().any(|slice| {
        slice.content.annotation(annotation::MECHANISM).is_some()
            || slice.content.endpoints.iter().any(|e| e.hints.is_some())
    })
}

impl TrafficFigures {
    /// Adds what one place sends. Targets and loads are both in the order of their addresses.
    fn send(&mut self, place: &Place<'_>, targets: &[SelectedEndpoint], loads: &mut [Load<'_>]) {
        let weights: f64 = targets.iter().map(|t| t.weight).sum();
        if weights <= 0.0 {
            self.refused += place.share;
            return;
        }
        let mut rest = loads.iter_mut();
        let mut sent: Vec<(Option<&Name>, f64)> = Vec::with_capacity(4);
        for target in targets {
            let part = place.share * target.weight / weights;
            let ip = target.address.ip();
            let Some(load) = rest.find(|load| load.ip == ip) else { continue };
            load.load += part;
            let to = load.endpoint.zone.as_ref();
            match sent.iter_mut().find(|(zone, _)| *zone == to) {
                Some((_, sum)) => *sum += part,
                None => sent.push((to, part)),
            }
        }
        for (to, part) in sent {
            self.in_zone += if to == Some(place.zone) { part } else { 0.0 };
            let key = (place.zone.clone(), to.cloned().unwrap_or_default());
            *self.zones.entry(key).or_default() += part;
        }
    }

    /// Overload of the ready endpoints, relative to what is not refused.
    fn weigh(&mut self, loads: &[Load<'_>]) {
        let counted = loads.iter().filter(|l| l.endpoint.conditions.is_ready() || l.load > 0.0);
        self.idle = counted.clone().filter(|l| l.load <= 0.0).count();
        let (count, sent) = (counted.clone().count() as f64, 1.0 - self.refused);
        let capacity: f64 = counted.clone().map(|l| l.capacity).sum();
        if sent > 1e-9 && capacity > 0.0 {
            let deviations = counted.map(|l| l.load * capacity / (l.capacity * sent) - 1.0);
            self.max_overload = deviations.clone().fold(0.0, f64::max);
            self.mean_overload = deviations.map(f64::abs).sum::<f64>() / count;
        }
    }
}

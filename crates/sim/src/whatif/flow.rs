//! Where the traffic of a Service goes: from every zone, and from every node that has endpoints of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{Endpoint, Family, Name, Node, Service, Slice};
use plan::FeatureGates;
use plan::select::{NodeView, select};

use super::Demand;

/// What traffic does. Shares are fractions of the Service's traffic.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
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

/// How much each zone and each node sends.
#[derive(Clone, Debug)]
pub(super) struct Senders {
    zone: BTreeMap<Name, f64>,
    /// By node: its zone, and its share of all traffic.
    node: BTreeMap<Name, (Name, f64)>,
}

impl Senders {
    pub(super) fn new(nodes: &BTreeMap<Name, Node>, demand: &Demand) -> Self {
        let counted = || nodes.values().filter(|n| n.ready).filter_map(|n| Some((n, n.zone.as_ref()?)));
        let known: Vec<u64> = counted().filter_map(|(n, _)| n.cpu_millis.filter(|cpu| *cpu > 0)).collect();
        let average = known.iter().sum::<u64>().checked_div(known.len() as u64).map_or(1, |a| a.max(1));
        let weight = |node: &Node| match demand {
            Demand::Nodes => 1.0,
            Demand::Cpu | Demand::Measured(_) => node.cpu_millis.filter(|c| *c > 0).unwrap_or(average) as f64,
        };
        let mut by_zone: BTreeMap<Name, f64> = BTreeMap::new();
        counted().for_each(|(node, zone)| *by_zone.entry(zone.clone()).or_default() += weight(node));
        let wanted = |zone: &Name, sum: f64| match demand {
            Demand::Measured(measured) => measured.get(zone).copied().unwrap_or(0.0),
            Demand::Nodes | Demand::Cpu => sum,
        };
        let all: f64 = by_zone.iter().map(|(zone, sum)| wanted(zone, *sum)).sum();
        let share = |zone: &Name, sum: f64| if all > 0.0 { wanted(zone, sum) / all } else { 0.0 };
        let zone: BTreeMap<Name, f64> = by_zone.iter().map(|(z, sum)| (z.clone(), share(z, *sum))).collect();
        let node = counted().map(|(node, name)| {
            let part = weight(node) / by_zone.get(name).copied().unwrap_or(1.0);
            let share = zone.get(name).copied().unwrap_or(0.0) * part;
            (node.name.clone(), (name.clone(), share))
        });
        let node = node.collect();
        Self { zone, node }
    }

    pub(super) fn shares(&self) -> Vec<(Name, f64)> {
        self.zone.iter().map(|(zone, share)| (zone.clone(), *share)).collect()
    }

    /// Who has to be asked: every zone without the nodes that have endpoints, and each of those nodes.
    fn places<'a>(&'a self, serving: &BTreeSet<&'a Name>) -> Vec<(&'a str, &'a Name, f64)> {
        let mut rest = self.zone.clone();
        let mut places = Vec::new();
        for (node, (zone, share)) in serving.iter().filter_map(|n| self.node.get_key_value(*n)) {
            if let Some(left) = rest.get_mut(zone) {
                *left -= share;
            }
            places.push((node.as_str(), zone, *share));
        }
        // A name that no node has stands for all nodes without endpoints.
        places
            .extend(self.zone.keys().map(|zone| ("", zone, rest.get(zone).copied().unwrap_or(0.0).max(0.0))));
        places
    }
}

/// Where the traffic of the Service's first port goes.
pub(super) fn figures(service: &Service, slices: &[Slice], family: Family, senders: &Senders) -> Figures {
    let endpoints: BTreeMap<IpAddr, &Endpoint> =
        slices.iter().flat_map(|s| &s.content.endpoints).map(|e| (e.addresses.first(), e)).collect();
    let ready = endpoints.values().filter(|e| e.conditions.is_ready());
    let by_node = ready.clone().any(|e| !e.node_hints().is_empty());
    let serving: BTreeSet<&Name> =
        if by_node { ready.clone().filter_map(|e| e.node.as_ref()).collect() } else { BTreeSet::new() };
    let mut load: BTreeMap<IpAddr, f64> =
        endpoints.iter().filter(|(_, e)| e.conditions.is_ready()).map(|(ip, _)| (*ip, 0.0)).collect();
    let mut figures = Figures::default();
    for (name, zone, share) in senders.places(&serving).into_iter().filter(|(_, _, share)| *share > 0.0) {
        let view = NodeView { name, zone: Some(zone), gates: FeatureGates::default() };
        let selections = select(service, slices, family, &view);
        let set = selections.first().and_then(|s| s.cluster.as_ref());
        let targets = set.map_or(&[][..], |set| &set.endpoints);
        let weights: f64 = targets.iter().map(|t| t.weight).sum();
        if weights <= 0.0 {
            figures.refused += share;
            continue;
        }
        for target in targets {
            let part = share * target.weight / weights;
            let to = endpoints.get(&target.address.ip()).and_then(|e| e.zone.clone()).unwrap_or_default();
            *load.entry(target.address.ip()).or_default() += part;
            figures.in_zone += if to == *zone { part } else { 0.0 };
            *figures.zones.entry((zone.clone(), to)).or_default() += part;
        }
    }
    figures.idle = load.values().filter(|l| **l <= 0.0).count();
    let (count, sent) = (load.len() as f64, 1.0 - figures.refused);
    if sent > 1e-9 && count > 0.0 {
        let deviations = load.values().map(|l| l * count / sent - 1.0);
        figures.max_overload = deviations.clone().fold(0.0, f64::max);
        figures.mean_overload = deviations.map(f64::abs).sum::<f64>() / count;
    }
    figures
}

//! What the mechanisms know of the cluster: its zones, and how much traffic to expect from each.
//!
//! Built once per change of a Node and shared by all Services, so that nothing about nodes is looked up per
//! endpoint. Two facts compare equal when no Service has to be planned again.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Hints, Labels, Name, Node, annotation};

use super::choice::Origin;
use super::mechanism::Mechanism;
use crate::regions::Regions;
use crate::spill::Demand;

/// The zones of the cluster and what each can send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterFacts {
    zones: Vec<ZoneFacts>,
    /// Hints of PreferSameNode, by node name in order.
    nodes: Vec<NodeHints>,
    auto: Result<Vec<(usize, Ratio)>, NodeGap>,
    ready_without_zone: usize,
    first_without_zone: Option<Name>,
    torn_zone: Option<TornZone>,
    demand: Option<Demand>,
    /// `zoneward.dev/mechanism` of Spill with this demand, and the demand alone.
    spill_tag: Option<(Name, Labels)>,
    /// `zoneward.dev/mechanism` and where it comes from, one per mechanism and origin, so that slices share them.
    tags: Vec<[Labels; 3]>,
}

/// One zone. It is known as long as any node names it, ready or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneFacts {
    /// Its name.
    pub name: Name,
    /// Its region, as its first node by name says; nodes without the label make up a region without a name.
    pub region: Option<Name>,
    /// Its ready nodes.
    pub ready_nodes: u64,
    /// The allocatable CPU of its ready nodes in thousandths; a node that reports none counts as the average one.
    /// Where no node reports any this is the number of nodes.
    pub cpu: u64,
    own: Arc<Hints>,
    regional: Arc<Hints>,
}

/// A node with the hints that its endpoints get under PreferSameNode.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeHints {
    node: Name,
    hints: Arc<Hints>,
}

/// A zone whose nodes name two regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornZone {
    /// The zone.
    pub zone: Name,
    /// The first node that says otherwise than the zone's first node.
    pub node: Name,
}

/// A zone's share of the CPU that Auto counts. Never NaN, so it compares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio(pub(super) f64);

impl Eq for Ratio {}

/// Why Auto cannot go by the nodes (seed 001, safeguard 3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeGap {
    /// No ready node beside those of the control plane.
    NoNodes,
    /// This ready node has no zone label.
    NoZone(Name),
    /// This ready node reports no allocatable CPU.
    NoCpu(Name),
    /// All of them are in this zone.
    OneZone(Name),
}

/// What stands for the traffic that a zone sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreferBy {
    /// Its ready nodes, as seed 003 assumes.
    #[default]
    Nodes,
    /// The allocatable CPU of its ready nodes.
    Cpu,
}

impl PreferBy {
    /// For a sentence: "33 % of the nodes".
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Cpu => "CPU",
        }
    }
}

fn spill_tag(demand: &Demand, origin: Origin) -> (Name, Labels) {
    let demand = Name::new(&demand.to_string());
    let mut pairs = tag(Mechanism::Spill, origin);
    pairs.push((Name::new(annotation::DEMAND), demand.clone()));
    (demand, Labels::from_pairs(pairs))
}

fn tag(mechanism: Mechanism, origin: Origin) -> Vec<(Name, Name)> {
    let mut pairs = vec![(Name::new(annotation::MECHANISM), Name::new(mechanism.as_str()))];
    if let Some(source) = origin.annotation() {
        pairs.push((Name::new(annotation::MECHANISM_SOURCE), Name::new(source)));
    }
    pairs
}

impl ClusterFacts {
    /// The facts of these nodes.
    pub fn from_nodes(nodes: &BTreeMap<Name, Node>) -> Self {
        let (mut zones, torn_zone) = zones(nodes);
        add_cpu(&mut zones, nodes);
        add_regional_hints(&mut zones);
        let without_zone = nodes.values().filter(|n| n.ready && n.zone.is_none());
        let tags = |m: &Mechanism| Origin::ALL.map(|origin| Labels::from_pairs(tag(*m, origin)));
        let demand = Demand::from_zones(&zones);
        let spill_tag = demand.as_ref().map(|demand| spill_tag(demand, Origin::Service));
        Self {
            demand,
            spill_tag,
            nodes: nodes.values().filter_map(|n| node_hints(n, &zones)).collect(),
            auto: auto_ratios(nodes, &zones),
            ready_without_zone: without_zone.clone().count(),
            first_without_zone: without_zone.clone().next().map(|n| n.name.clone()),
            torn_zone,
            zones,
            tags: Mechanism::ALL.iter().map(tags).collect(),
        }
    }

    /// Every zone that a node names, by name.
    pub fn zones(&self) -> &[ZoneFacts] {
        &self.zones
    }

    /// How many zones have a ready node.
    pub fn ready_zones(&self) -> usize {
        self.zones.iter().filter(|z| z.ready_nodes > 0).count()
    }

    /// The share of traffic expected from each zone; none where no zone has a ready node.
    pub fn demand(&self) -> Option<&Demand> {
        self.demand.as_ref()
    }

    /// Why Auto cannot use the nodes, if it cannot.
    pub fn node_gap(&self) -> Option<&NodeGap> {
        self.auto.as_ref().err()
    }

    /// Each zone's share of CPU as Auto counts it: control-plane nodes and nodes that are not ready are left out.
    pub fn cpu_ratios(&self) -> Option<impl Iterator<Item = (&Name, f64)>> {
        Some(self.auto.as_ref().ok()?.iter().map(|(zone, ratio)| (&self.zones[*zone].name, ratio.0)))
    }

    /// The same by index.
    pub(super) fn auto(&self) -> Result<&[(usize, Ratio)], &NodeGap> {
        self.auto.as_deref()
    }

    /// Ready nodes without a zone label: how many, and the first by name.
    pub fn nodes_without_zone(&self) -> Option<(usize, &Name)> {
        Some((self.ready_without_zone, self.first_without_zone.as_ref()?))
    }

    /// All ready nodes, with a zone or without.
    pub fn ready_nodes(&self) -> usize {
        let with_zone: u64 = self.zones.iter().map(|z| z.ready_nodes).sum();
        usize::try_from(with_zone).unwrap_or(usize::MAX).saturating_add(self.ready_without_zone)
    }

    /// A zone whose nodes do not agree on its region.
    pub fn torn_zone(&self) -> Option<&TornZone> {
        self.torn_zone.as_ref()
    }

    /// The mechanism's annotations alone, shared.
    pub(super) fn tag(&self, mechanism: Mechanism, origin: Origin) -> Labels {
        let at = Mechanism::ALL.iter().position(|m| *m == mechanism);
        let tags = at.and_then(|at| self.tags.get(at));
        tags.map(|tags| tags[origin as usize].clone()).unwrap_or_default()
    }

    /// The zones of each region; nodes without the label make up the region `-`, which no label can name.
    pub(super) fn regions(&self) -> Regions {
        let region = |zone: &ZoneFacts| zone.region.clone().unwrap_or_else(|| Name::new("-"));
        Regions::new(self.zones.iter().map(|zone| (zone.name.clone(), region(zone))))
    }

    /// The demand as the slices of Spill name it, and all annotations: shared where they are the cluster's own.
    pub(super) fn spill_tag(&self, demand: &Demand, origin: Origin) -> (Name, Labels) {
        let is_own = origin == Origin::Service && self.demand.as_ref() == Some(demand);
        let own = self.spill_tag.clone().filter(|_| is_own);
        own.unwrap_or_else(|| spill_tag(demand, origin))
    }

    /// Hints for these zones and this node: the shared ones where they fit.
    pub(super) fn node_hints(&self, node: &Name, zones: &[Name]) -> Arc<Hints> {
        let known = self.nodes.binary_search_by(|n| n.node.cmp(node)).ok().map(|at| &self.nodes[at].hints);
        match known {
            Some(hints) if *hints.zones == *zones => hints.clone(),
            _ => Arc::new(Hints { zones: zones.into(), nodes: [node.clone()].into() }),
        }
    }
}

impl ZoneFacts {
    /// What the zone is expected to send, in units that only compare with those of other zones.
    pub fn weight(&self, by: PreferBy) -> u64 {
        match by {
            PreferBy::Nodes => self.ready_nodes,
            PreferBy::Cpu => self.cpu,
        }
    }

    /// Hints for this zone.
    pub(super) fn own(&self) -> &Arc<Hints> {
        &self.own
    }

    /// Hints for all zones of its region.
    pub(super) fn regional(&self) -> &Arc<Hints> {
        &self.regional
    }
}

fn zones(nodes: &BTreeMap<Name, Node>) -> (Vec<ZoneFacts>, Option<TornZone>) {
    let mut by_name: BTreeMap<&Name, ZoneFacts> = BTreeMap::new();
    let mut torn = None;
    for node in nodes.values() {
        let Some(name) = &node.zone else { continue };
        let zone = by_name.entry(name).or_insert_with(|| {
            let own = Arc::new(Hints::zone(name));
            let region = node.region.clone();
            ZoneFacts { name: name.clone(), region, ready_nodes: 0, cpu: 0, regional: own.clone(), own }
        });
        zone.ready_nodes += u64::from(node.ready);
        if zone.region != node.region && torn.is_none() {
            torn = Some(TornZone { zone: name.clone(), node: node.name.clone() });
        }
    }
    (by_name.into_values().collect(), torn)
}

/// A node that does not report its CPU yet would otherwise move the shares of the whole cluster for a moment.
fn add_cpu(zones: &mut [ZoneFacts], nodes: &BTreeMap<Name, Node>) {
    let counted = || nodes.values().filter(|n| n.ready && n.zone.is_some());
    let known: Vec<u64> = counted().filter_map(|n| n.cpu_millis.filter(|cpu| *cpu > 0)).collect();
    let total = known.iter().fold(0u64, |sum, cpu| sum.saturating_add(*cpu));
    let average = total.checked_div(known.len() as u64).map_or(1, |a| a.max(1));
    for node in counted() {
        let at = zones.iter_mut().find(|z| Some(&z.name) == node.zone.as_ref());
        if let Some(zone) = at {
            let cpu = node.cpu_millis.filter(|cpu| *cpu > 0).unwrap_or(average);
            zone.cpu = zone.cpu.saturating_add(cpu);
        }
    }
}

fn add_regional_hints(zones: &mut [ZoneFacts]) {
    let mut by_region: BTreeMap<Option<Name>, Vec<Name>> = BTreeMap::new();
    for zone in zones.iter() {
        by_region.entry(zone.region.clone()).or_default().push(zone.name.clone());
    }
    let shared = |names: Vec<Name>| Arc::new(Hints { zones: names.into(), nodes: Box::default() });
    let hints: BTreeMap<Option<Name>, Arc<Hints>> =
        by_region.into_iter().map(|(region, names)| (region, shared(names))).collect();
    for zone in zones {
        if let Some(regional) = hints.get(&zone.region) {
            zone.regional = regional.clone();
        }
    }
}

fn node_hints(node: &Node, zones: &[ZoneFacts]) -> Option<NodeHints> {
    let at = zones.binary_search_by(|z| Some(&z.name).cmp(&node.zone.as_ref())).ok()?;
    let hints = Hints { zones: zones[at].own.zones.clone(), nodes: [node.name.clone()].into() };
    Some(NodeHints { node: node.name.clone(), hints: Arc::new(hints) })
}

/// Semantics A2, "Node input": shares of the whole in IEEE doubles, or the first node that forbids it.
fn auto_ratios(nodes: &BTreeMap<Name, Node>, zones: &[ZoneFacts]) -> Result<Vec<(usize, Ratio)>, NodeGap> {
    let mut cpu_by_zone = vec![0u64; zones.len()];
    for node in nodes.values().filter(|n| n.ready && !n.control_plane) {
        let Some(zone) = &node.zone else { return Err(NodeGap::NoZone(node.name.clone())) };
        let Some(cpu) = node.cpu_millis.filter(|cpu| *cpu > 0) else {
            return Err(NodeGap::NoCpu(node.name.clone()));
        };
        if let Ok(at) = zones.binary_search_by(|z| z.name.cmp(zone)) {
            cpu_by_zone[at] = cpu_by_zone[at].saturating_add(cpu);
        }
    }
    let total = cpu_by_zone.iter().fold(0u64, |sum, cpu| sum.saturating_add(*cpu));
    let with_cpu = cpu_by_zone.iter().enumerate().filter(|(_, cpu)| **cpu > 0);
    let ratios: Vec<_> = with_cpu.map(|(at, cpu)| (at, Ratio(*cpu as f64 / total as f64))).collect();
    match ratios.as_slice() {
        [] => Err(NodeGap::NoNodes),
        [(only, _)] => Err(NodeGap::OneZone(zones[*only].name.clone())),
        _ => Ok(ratios),
    }
}

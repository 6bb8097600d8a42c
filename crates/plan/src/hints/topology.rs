//! The topology of the cluster: its zones, and the expected traffic from each.
//!
//! Computed once per change of a Node and shared by all Services, so that no node is looked up per endpoint. Two are equal
//! if no Service has to be planned again.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Hints, Labels, Name, Node, annotation};
use serde::{Deserialize, Serialize};

use super::mechanism::Mechanism;
use super::traffic_distribution::SettingOrigin;
use crate::regions::Regions;
use crate::spill::SpillDemand;

/// The zones of the cluster and the expected traffic from each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterTopology {
    zones: Vec<ZoneTopology>,
    /// Sorted by node name.
    nodes: Vec<NodeHints>,
    auto: Result<Vec<(usize, CpuRatio)>, MissingNodeInfo>,
    ready_without_zone: usize,
    first_without_zone: Option<Name>,
    zone_in_two_regions: Option<ZoneInTwoRegions>,
    demand: Option<SpillDemand>,
    /// The demand and the annotations of Spill, shared by slices.
    spill_annotations: Option<(Name, Labels)>,
    /// The annotations of each mechanism and origin, shared by slices.
    annotations: Vec<[Labels; 3]>,
}

/// A zone that has nodes, ready or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneTopology {
    pub name: Name,
    /// The region of its first node by name; nodes without the label form a region without a name.
    pub region: Option<Name>,
    pub ready_nodes: u64,
    /// The allocatable CPU of its ready nodes in millicores; a node that reports none counts as average. If no node reports
    /// any, the number of nodes.
    pub cpu: u64,
    own: Arc<Hints>,
    regional: Arc<Hints>,
}

/// The hints of a node's endpoints under PreferSameNode.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeHints {
    node: Name,
    hints: Arc<Hints>,
}

/// A zone whose nodes have different regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneInTwoRegions {
    pub zone: Name,
    /// The first node whose region differs from the first one's.
    pub node: Name,
}

/// A zone's share of CPU for Auto. Never NaN, so it is `Eq`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CpuRatio(pub(super) f64);

impl Eq for CpuRatio {}

/// Missing information about nodes that disables Auto (seed 001, safeguard 3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingNodeInfo {
    /// No ready node outside the control plane.
    NoNodes,
    /// A ready node without a zone label.
    NoZone(Name),
    /// A ready node without allocatable CPU.
    NoCpu(Name),
    /// All ready nodes are in this zone.
    OneZone(Name),
}

/// The number that a zone's traffic is assumed to be proportional to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ZoneWeight {
    /// Ready nodes (seed 003).
    Nodes,
    /// Allocatable CPU of ready nodes.
    Cpu,
}

impl ZoneWeight {
    /// As in "33 % of the nodes".
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Cpu => "CPU",
        }
    }
}

fn spill_annotations(demand: &SpillDemand, origin: SettingOrigin) -> (Name, Labels) {
    let text = Name::new(&demand.to_string());
    let mut pairs = mechanism_annotations(Mechanism::Spill, origin);
    pairs.push((Name::new(annotation::DEMAND), text.clone()));
    if let Some(keep) = demand.keep() {
        pairs.push((Name::new(annotation::KEEP), Name::new(&keep.to_string())));
    }
    (text, Labels::from_pairs(pairs))
}

fn mechanism_annotations(mechanism: Mechanism, origin: SettingOrigin) -> Vec<(Name, Name)> {
    let mut pairs = vec![(Name::new(annotation::MECHANISM), Name::new(mechanism.as_str()))];
    if let Some(source) = origin.annotation() {
        pairs.push((Name::new(annotation::MECHANISM_SOURCE), Name::new(source)));
    }
    pairs
}

impl ClusterTopology {
    pub fn from_nodes(nodes: &BTreeMap<Name, Node>) -> Self {
        let (mut zones, zone_in_two_regions) = zones(nodes);
        add_cpu(&mut zones, nodes);
        add_regional_hints(&mut zones);
        let without_zone = nodes.values().filter(|n| n.ready && n.zone.is_none());
        let annotations = |m: &Mechanism| {
            SettingOrigin::ALL.map(|origin| Labels::from_pairs(mechanism_annotations(*m, origin)))
        };
        let demand = SpillDemand::from_zones(&zones);
        let spill_annotations =
            demand.as_ref().map(|demand| spill_annotations(demand, SettingOrigin::Service));
        Self {
            demand,
            spill_annotations,
            nodes: nodes.values().filter_map(|n| node_hints(n, &zones)).collect(),
            auto: auto_ratios(nodes, &zones),
            ready_without_zone: without_zone.clone().count(),
            first_without_zone: without_zone.clone().next().map(|n| n.name.clone()),
            zone_in_two_regions,
            zones,
            annotations: Mechanism::ALL.iter().map(annotations).collect(),
        }
    }

    /// Sorted by name.
    pub fn zones(&self) -> &[ZoneTopology] {
        &self.zones
    }

    /// The number of zones with a ready node.
    pub fn ready_zones(&self) -> usize {
        self.zones.iter().filter(|z| z.ready_nodes > 0).count()
    }

    /// The expected share of traffic from each zone; none if no zone has a ready node.
    pub fn demand(&self) -> Option<&SpillDemand> {
        self.demand.as_ref()
    }

    pub fn missing_node_info(&self) -> Option<&MissingNodeInfo> {
        self.auto.as_ref().err()
    }

    /// Each zone's share of CPU for Auto, without control-plane nodes and unready nodes.
    pub fn cpu_ratios(&self) -> Option<impl Iterator<Item = (&Name, f64)>> {
        Some(self.auto.as_ref().ok()?.iter().map(|(zone, ratio)| (&self.zones[*zone].name, ratio.0)))
    }

    /// Like [`Self::cpu_ratios`], by zone number.
    pub(super) fn auto(&self) -> Result<&[(usize, CpuRatio)], &MissingNodeInfo> {
        self.auto.as_deref()
    }

    /// The number of ready nodes without a zone label, and the first by name.
    pub fn nodes_without_zone(&self) -> Option<(usize, &Name)> {
        Some((self.ready_without_zone, self.first_without_zone.as_ref()?))
    }

    /// All ready nodes, with or without a zone.
    pub fn ready_nodes(&self) -> usize {
        let with_zone: u64 = self.zones.iter().map(|z| z.ready_nodes).sum();
        usize::try_from(with_zone).unwrap_or(usize::MAX).saturating_add(self.ready_without_zone)
    }

    pub fn zone_in_two_regions(&self) -> Option<&ZoneInTwoRegions> {
        self.zone_in_two_regions.as_ref()
    }

    /// The annotations of a mechanism, shared.
    pub(super) fn annotations(&self, mechanism: Mechanism, origin: SettingOrigin) -> Labels {
        let at = Mechanism::ALL.iter().position(|m| *m == mechanism);
        let annotations = at.and_then(|at| self.annotations.get(at));
        annotations.map(|annotations| annotations[origin as usize].clone()).unwrap_or_default()
    }

    /// The zones of each region; nodes without the label form the region `-`, which is not a valid label.
    pub(super) fn regions(&self) -> Regions {
        let region = |zone: &ZoneTopology| zone.region.clone().unwrap_or_else(|| Name::new("-"));
        Regions::new(self.zones.iter().map(|zone| (zone.name.clone(), region(zone))))
    }

    /// The demand annotation and all annotations of Spill, shared if the demand is the cluster's current one.
    pub(super) fn spill_annotations(&self, demand: &SpillDemand, origin: SettingOrigin) -> (Name, Labels) {
        let is_own = origin == SettingOrigin::Service && self.demand.as_ref() == Some(demand);
        let own = self.spill_annotations.clone().filter(|_| is_own);
        own.unwrap_or_else(|| spill_annotations(demand, origin))
    }

    /// Hints for a node and these zones, shared if possible.
    pub(super) fn node_hints(&self, node: &Name, zones: &[Name]) -> Arc<Hints> {
        let known = self.nodes.binary_search_by(|n| n.node.cmp(node)).ok().map(|at| &self.nodes[at].hints);
        match known {
            Some(hints) if *hints.zones == *zones => hints.clone(),
            _ => Arc::new(Hints { zones: zones.into(), nodes: [node.clone()].into() }),
        }
    }
}

impl ZoneTopology {
    /// The expected traffic, relative to other zones.
    pub fn weight(&self, by: ZoneWeight) -> u64 {
        match by {
            ZoneWeight::Nodes => self.ready_nodes,
            ZoneWeight::Cpu => self.cpu,
        }
    }

    pub(super) fn own(&self) -> &Arc<Hints> {
        &self.own
    }

    /// Hints for all zones of its region.
    pub(super) fn regional(&self) -> &Arc<Hints> {
        &self.regional
    }
}

fn zones(nodes: &BTreeMap<Name, Node>) -> (Vec<ZoneTopology>, Option<ZoneInTwoRegions>) {
    let mut by_name: BTreeMap<&Name, ZoneTopology> = BTreeMap::new();
    let mut torn = None;
    for node in nodes.values() {
        let Some(name) = &node.zone else { continue };
        let zone = by_name.entry(name).or_insert_with(|| {
            let own = Arc::new(Hints::zone(name));
            let region = node.region.clone();
            ZoneTopology { name: name.clone(), region, ready_nodes: 0, cpu: 0, regional: own.clone(), own }
        });
        zone.ready_nodes += u64::from(node.ready);
        if zone.region != node.region && torn.is_none() {
            torn = Some(ZoneInTwoRegions { zone: name.clone(), node: node.name.clone() });
        }
    }
    (by_name.into_values().collect(), torn)
}

/// A new node that does not report its CPU yet must not change the shares of the whole cluster.
fn add_cpu(zones: &mut [ZoneTopology], nodes: &BTreeMap<Name, Node>) {
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

fn add_regional_hints(zones: &mut [ZoneTopology]) {
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

fn node_hints(node: &Node, zones: &[ZoneTopology]) -> Option<NodeHints> {
    let at = zones.binary_search_by(|z| Some(&z.name).cmp(&node.zone.as_ref())).ok()?;
    let hints = Hints { zones: zones[at].own.zones.clone(), nodes: [node.name.clone()].into() };
    Some(NodeHints { node: node.name.clone(), hints: Arc::new(hints) })
}

/// Semantics A2, "Node input": CPU ratios in IEEE doubles, or the first node that disables Auto.
fn auto_ratios(
    nodes: &BTreeMap<Name, Node>,
    zones: &[ZoneTopology],
) -> Result<Vec<(usize, CpuRatio)>, MissingNodeInfo> {
    let mut cpu_by_zone = vec![0u64; zones.len()];
    for node in nodes.values().filter(|n| n.ready && !n.control_plane) {
        let Some(zone) = &node.zone else { return Err(MissingNodeInfo::NoZone(node.name.clone())) };
        let Some(cpu) = node.cpu_millis.filter(|cpu| *cpu > 0) else {
            return Err(MissingNodeInfo::NoCpu(node.name.clone()));
        };
        if let Ok(at) = zones.binary_search_by(|z| z.name.cmp(zone)) {
            cpu_by_zone[at] = cpu_by_zone[at].saturating_add(cpu);
        }
    }
    let total = cpu_by_zone.iter().fold(0u64, |sum, cpu| sum.saturating_add(*cpu));
    let with_cpu = cpu_by_zone.iter().enumerate().filter(|(_, cpu)| **cpu > 0);
    let ratios: Vec<_> = with_cpu.map(|(at, cpu)| (at, CpuRatio(*cpu as f64 / total as f64))).collect();
    match ratios.as_slice() {
        [] => Err(MissingNodeInfo::NoNodes),
        [(only, _)] => Err(MissingNodeInfo::OneZone(zones[*only].name.clone())),
        _ => Ok(ratios),
    }
}

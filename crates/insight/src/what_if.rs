//! Evaluates each mechanism for a Service with the functions of the controller.
//!
//! ```text
//! stored slices -> scale -> hints of a mechanism -> slices -> selection from every zone -> traffic -> figures
//!   \-> zone failure, additional replica, rolling update -> hints -> selection -> figures
//! ```

mod comparison;
mod recommend;
mod scenario;
mod setting_command;
mod traffic;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use model::{
    AddressType, Addresses, Endpoint, EndpointConditions, Family, Interner, Labels, Name, Node, ObjectKey,
    Service, Slice, SliceContent, annotation,
};
use plan::PlanningConfig;
use plan::hints::{ClusterTopology, Hysteresis, Mechanism, MechanismChoice};

pub use comparison::{ComparedState, WhatIfChange, WhatIfComparison};
pub use recommend::{NotRecommended, RULE, Recommendation, recommend};
use scenario::Scenario;
pub use scenario::{surge, unavailable};
pub use setting_command::{is_set_by_field, quoted, setting_command, setting_patch, setting_value};
pub use traffic::{EndpointLoad, TrafficFigures};
use traffic::{TrafficSources, figures};

/// The compared mechanisms, by the values of `zoneward.dev/traffic-distribution`.
pub const MECHANISMS: &[Mechanism] = &[
    Mechanism::None,
    Mechanism::PreferSameZone,
    Mechanism::PreferSameNode,
    Mechanism::Auto,
    Mechanism::PreferZone,
    Mechanism::RequireZone,
    Mechanism::Spill,
];

/// What the traffic of a zone is proportional to.
#[derive(Clone, Debug, PartialEq)]
pub enum DemandBasis {
    Nodes,
    /// Allocatable CPU of ready nodes.
    Cpu,
    /// Measured traffic by zone; within a zone, nodes send by their CPU.
    Measured(BTreeMap<Name, f64>),
}

/// The part of an evaluation that all Services share.
///
/// Each thread uses its own evaluator with its own names: the reference counts of shared names would be contended.
#[derive(Debug)]
pub struct WhatIfEvaluator {
    /// The first ready node of each zone.
    first_node: BTreeMap<Name, Name>,
    topology: ClusterTopology,
    config: PlanningConfig,
    sources: TrafficSources,
    /// The cluster without each zone.
    failures: Vec<(Name, ClusterTopology, TrafficSources)>,
}

#[derive(Clone, Copy, Debug)]
pub struct WhatIfQuery<'a> {
    pub service: &'a Service,
    /// Existing slices, or those that the controller would write.
    pub slices: &'a [Slice],
    pub namespace_default: Option<&'a Name>,
    /// Replicas to add or remove, by zone.
    pub scale: &'a [(Name, i64)],
    /// Measured traffic by zone; by default that of the evaluator.
    pub measured: Option<&'a BTreeMap<Name, f64>>,
}

/// The evaluation of one mechanism.
#[derive(Clone, Debug)]
pub struct MechanismOutcome {
    pub mechanism: Mechanism,
    /// Whether its hints would be set, not suppressed by a safeguard.
    pub programmed: bool,
    pub held_back: Option<&'static str>,
    pub slices_written: usize,
    /// Endpoints with changed hints.
    pub hints_changed: usize,
    pub figures: TrafficFigures,
    /// The worst zone failure.
    pub worst_failure: Option<(Name, TrafficFigures)>,
    /// Zone of one more replica.
    pub replica_added: Option<(Name, TrafficFigures)>,
    /// The worst point of a rolling update: number of ready endpoints.
    pub rolling_update: Option<(usize, TrafficFigures)>,
}

#[derive(Clone, Debug)]
pub struct WhatIfResult {
    /// The mechanism in use.
    pub current: Mechanism,
    /// Share of traffic by source zone.
    pub shares: Vec<(Name, f64)>,
    /// After scaling.
    pub endpoints_by_zone: BTreeMap<Name, usize>,
    /// In the order of [`MECHANISMS`].
    pub outcomes: Vec<MechanismOutcome>,
}

impl WhatIfEvaluator {
    /// `config` is that of the controller whose decisions are evaluated.
    pub fn new(nodes: &BTreeMap<Name, Node>, demand: DemandBasis, config: &PlanningConfig) -> Self {
        let nodes = &with_own_names(nodes);
        let topology = ClusterTopology::from_nodes(nodes);
        let sources = TrafficSources::new(nodes, &demand, config.gates);
        let failure = |zone: &Name| {
            let mut left = nodes.clone();
            left.values_mut().filter(|n| n.zone.as_ref() == Some(zone)).for_each(|n| n.ready = false);
            (
                zone.clone(),
                ClusterTopology::from_nodes(&left),
                TrafficSources::new(&left, &demand, config.gates),
            )
        };
        let zones = topology.zones().iter().filter(|z| z.ready_nodes > 0).map(|z| &z.name);
        let failures = zones.map(failure).collect();
        let mut first_node = BTreeMap::new();
        for node in nodes.values().filter(|node| node.ready) {
            if let Some(zone) = &node.zone {
                first_node.entry(zone.clone()).or_insert_with(|| node.name.clone());
            }
        }
        // Measured demand stays as the slices have it: a what-if measures nothing.
        let config = PlanningConfig { spill_demand: None, ..config.clone() };
        Self { first_node, topology, config, sources, failures }
    }

    /// Share of traffic by source zone.
    pub fn shares(&self) -> Vec<(Name, f64)> {
        self.sources.shares()
    }

    /// Where the nodes send the traffic with the slices as they are: the plan that measurements are compared with.
    pub fn planned(
        &self,
        service: &Service,
        slices: &[Slice],
        measured: Option<&BTreeMap<Name, f64>>,
    ) -> TrafficFigures {
        let family = family_of(service, slices);
        let of_family = |slice: &&Slice| slice.content.address_type == AddressType::Ip(family);
        let stored: Vec<Slice> = slices.iter().filter(of_family).map(|s| self.reduced_slice(s)).collect();
        let sources = measured.map_or_else(|| self.sources.clone(), |zones| self.sources.measured(zones));
        figures(service, &stored, family, &sources)
    }

    pub fn evaluate(&self, query: &WhatIfQuery<'_>) -> WhatIfResult {
        let family = family_of(query.service, query.slices);
        let of_family =
            |slice: &&Slice| slice.content.address_type == AddressType::Ip(family) && !slice.deleting;
        let stored: Vec<Slice> =
            query.slices.iter().filter(of_family).map(|slice| self.reduced_slice(slice)).collect();
        let mut scaled = stored.clone();
        query.scale.iter().for_each(|(zone, by)| self.scale(&mut scaled, family, zone, *by));
        let current = self.config.choose(query.service, query.namespace_default).mechanism;
        let sources = measured(&self.sources, query);
        // Only the first port is evaluated.
        let one_port =
            Service { ports: query.service.ports.iter().take(1).cloned().collect(), ..query.service.clone() };
        let failures: Vec<(&Name, &ClusterTopology, TrafficSources)> = self
            .failures
            .iter()
            .map(|(zone, topology, sources)| (zone, topology, measured(sources, query)))
            .collect();
        let hysteresis = Hysteresis::from_slices(family, &stored);
        let outcome = |mechanism: &Mechanism| {
            let service = with_mechanism(&one_port, *mechanism);
            let choice = self.config.choose(&service, None);
            let choice = MechanismChoice { source: None, notices: Vec::new(), ..choice };
            let scenario = Scenario {
                evaluator: self,
                service: &service,
                family,
                config: &self.config,
                choice: &choice,
            };
            let now = scenario.hinted(&self.topology, &hysteresis, scaled.clone());
            MechanismOutcome {
                mechanism: *mechanism,
                programmed: now.programmed,
                held_back: now.held_back,
                slices_written: now
                    .slices
                    .iter()
                    .zip(&stored)
                    .filter(|(a, s)| a.content != s.content)
                    .count()
                    + now.slices.len().abs_diff(stored.len()),
                hints_changed: hints_changed(&stored, &now.slices),
                figures: scenario.figures(&now.slices, &sources),
                worst_failure: scenario.worst_failure(&now, &failures),
                replica_added: scenario.with_replica(&now, &sources),
                rolling_update: scenario.worst_of_rolling_update(&now, &sources),
            }
        };
        let mut endpoints_by_zone: BTreeMap<Name, usize> = BTreeMap::new();
        for endpoint in ready(&scaled) {
            *endpoints_by_zone.entry(endpoint.zone.clone().unwrap_or_default()).or_default() += 1;
        }
        let outcomes = MECHANISMS.iter().map(outcome).collect();
        WhatIfResult { current, shares: sources.shares(), endpoints_by_zone, outcomes }
    }

    /// A copy of a slice with only the fields that decide on traffic, in names of this thread. Its generation counts
    /// changes of scenarios.
    fn reduced_slice(&self, slice: &Slice) -> Slice {
        let own = |name: &Name| Name::new(name);
        let zone =
            |name: &Name| self.topology.zones().iter().find(|z| z.name == *name).map(|z| z.name.clone());
        let endpoint = |e: &Endpoint| Endpoint {
            addresses: e.addresses.clone(),
            conditions: e.conditions,
            node: e.node.as_ref().map(|node| self.sources.node_name(node).unwrap_or_else(|| own(node))),
            zone: e.zone.as_ref().map(|name| zone(name).unwrap_or_else(|| own(name))),
            hints: e.hints.as_deref().map(|hints| Arc::new(hints.clone())),
            identity: None,
        };
        let content = SliceContent {
            address_type: slice.content.address_type,
            labels: slice.content.labels.clone(),
            annotations: slice.content.annotations.clone(),
            ports: slice.content.ports.to_vec().into(),
            endpoints: slice.content.endpoints.iter().map(endpoint).collect(),
        };
        let key = ObjectKey::new(&own(&slice.key.namespace), &own(&slice.key.name));
        let shares = slice.shares.clone();
        Slice { deleting: slice.deleting, annotated: slice.annotated, shares, ..Slice::new(key, content) }
    }

    /// Adds or removes ready endpoints of a zone.
    fn scale(&self, slices: &mut [Slice], family: Family, zone: &Name, by: i64) {
        for _ in 0..by.unsigned_abs() {
            if by < 0 {
                let found = slices.iter_mut().rev().find_map(|slice| {
                    let here = |e: &Endpoint| is_ready_in(e, zone);
                    let at = slice.content.endpoints.iter().rposition(here)?;
                    slice.generation += 1;
                    Some(slice.content.endpoints.remove(at))
                });
                if found.is_none() {
                    return;
                }
                continue;
            }
            let count: usize = slices.iter().map(|s| s.content.endpoints.len()).sum();
            let endpoint = new_endpoint(family, count as u64, zone, self.first_node.get(zone).cloned());
            let shortest = slices.iter_mut().min_by_key(|s| s.content.endpoints.len());
            let Some(slice) = shortest else { return };
            slice.content.endpoints.push(endpoint);
            slice.generation += 1;
        }
    }
}

/// The family that is evaluated: the first of the Service that has slices.
fn family_of(service: &Service, slices: &[Slice]) -> Family {
    let has = |family: &Family| slices.iter().any(|s| s.content.address_type == AddressType::Ip(*family));
    service.families.iter().copied().chain([Family::V4, Family::V6]).find(has).unwrap_or(Family::V4)
}

/// Copies of the nodes with names that no other thread uses.
fn with_own_names(nodes: &BTreeMap<Name, Node>) -> BTreeMap<Name, Node> {
    let mut names = Interner::default();
    let own = |node: &Node| Node {
        name: names.name(&node.name),
        zone: node.zone.as_ref().map(|zone| names.name(zone)),
        region: node.region.as_ref().map(|region| names.name(region)),
        ..node.clone()
    };
    nodes.values().map(own).map(|node| (node.name.clone(), node)).collect()
}

fn measured(sources: &TrafficSources, query: &WhatIfQuery<'_>) -> TrafficSources {
    query.measured.map_or_else(|| sources.clone(), |measured| sources.measured(measured))
}

fn is_ready_in(endpoint: &Endpoint, zone: &Name) -> bool {
    endpoint.conditions.is_ready() && endpoint.zone.as_ref() == Some(zone)
}

/// A reserved address, which no other endpoint has.
pub fn spare_address(family: Family, number: u64) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(0xf000_0000 | (number & 0x0fff_ffff) as u32)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(0x0100_u128 << 112 | u128::from(number))),
    }
}

fn new_endpoint(family: Family, number: u64, zone: &Name, node: Option<Name>) -> Endpoint {
    let address = spare_address(family, number);
    Endpoint {
        addresses: Addresses::one(address),
        conditions: EndpointConditions::new(true, true, false),
        node,
        zone: Some(zone.clone()),
        hints: None,
        identity: None,
    }
}

/// The Service with the annotation of a mechanism.
pub fn with_mechanism(service: &Service, mechanism: Mechanism) -> Service {
    let value = if mechanism == Mechanism::None { "Balanced" } else { mechanism.as_str() };
    let others = service.annotations.iter().filter(|(key, _)| key != annotation::TRAFFIC_DISTRIBUTION);
    let own = (Name::new(annotation::TRAFFIC_DISTRIBUTION), Name::new(value));
    let annotations = Labels::from_pairs(others.cloned().chain([own]).collect());
    Service { annotations, ..service.clone() }
}

fn ready(slices: &[Slice]) -> impl Iterator<Item = &Endpoint> {
    slices.iter().flat_map(|s| &s.content.endpoints).filter(|e| e.conditions.is_ready())
}

fn hints_changed(stored: &[Slice], after: &[Slice]) -> usize {
    let before: BTreeMap<IpAddr, &Endpoint> =
        stored.iter().flat_map(|s| &s.content.endpoints).map(|e| (e.addresses.first(), e)).collect();
    let differs = |e: &&Endpoint| match before.get(&e.addresses.first()) {
        Some(old) => old.zone_hints() != e.zone_hints() || old.node_hints() != e.node_hints(),
        None => e.hints.is_some(),
    };
    ready(after).filter(differs).count()
}

#[cfg(test)]
mod tests;

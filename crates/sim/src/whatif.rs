//! What would each mechanism do to this Service? Asked of the controller's own functions, answered with numbers.
//!
//! ```text
//! stored slices -> scale -> hints of a mechanism -> slices -> selection from every zone -> flows -> figures
//!   \-> and then: a zone fails, a replica is added, a rolling update -> hints again -> selection -> figures
//! ```

mod flow;
mod recommend;
mod trial;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use model::{
    AddressType, Addresses, Endpoint, EndpointConditions, Family, Interner, Labels, Name, Node, ObjectKey,
    Service, Slice, SliceContent, annotation,
};
use plan::hints::{
    ClusterTopology, HintConfig, Hysteresis, Mechanism, MechanismChoice, TrafficDistributionDefaults,
    ZoneWeight, choose,
};

pub use flow::Figures;
use flow::Senders;
pub use recommend::{RULE, Recommendation, WhyNot, recommend};
use trial::Trial;

/// The mechanisms that are compared, by the name that `zoneward.dev/traffic-distribution` takes.
pub const MECHANISMS: &[Mechanism] = &[
    Mechanism::None,
    Mechanism::PreferSameZone,
    Mechanism::PreferSameNode,
    Mechanism::Auto,
    Mechanism::PreferZone,
    Mechanism::RequireZone,
    Mechanism::Spill,
];

/// What the traffic that a zone sends is proportional to.
#[derive(Clone, Debug, PartialEq)]
pub enum Demand {
    /// Its ready nodes.
    Nodes,
    /// The allocatable CPU of its ready nodes.
    Cpu,
    /// What was measured, by zone; within a zone nodes send by their CPU.
    Measured(BTreeMap<Name, f64>),
}

/// What is the same for all Services.
///
/// Its names are its own: threads that count the references to a shared name wait for each other, so each thread
/// makes a cluster for itself.
#[derive(Debug)]
pub struct Cluster {
    /// The first ready node of each zone.
    first_node: BTreeMap<Name, Name>,
    topology: ClusterTopology,
    config: HintConfig,
    senders: Senders,
    /// The cluster without each of its zones.
    failures: Vec<(Name, ClusterTopology, Senders)>,
}

/// One Service to ask about.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The Service.
    pub service: &'a Service,
    /// Its slices as stored, or as they would be made.
    pub slices: &'a [Slice],
    /// Its namespace's default.
    pub namespace_default: Option<&'a Name>,
    /// Replicas to add or take away, by zone.
    pub scale: &'a [(Name, i64)],
    /// What each zone sends to this Service, where that was measured; else the cluster's demand counts.
    pub measured: Option<&'a BTreeMap<Name, f64>>,
}

/// What one mechanism would do.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The mechanism.
    pub mechanism: Mechanism,
    /// Whether its hints would be there, and not held back by a safeguard.
    pub programmed: bool,
    /// Why they would be held back.
    pub held_back: Option<&'static str>,
    /// Slices that would be written.
    pub slices_written: usize,
    /// Endpoints whose hints would be others.
    pub hints_changed: usize,
    /// Where traffic would go.
    pub figures: Figures,
    /// The zone whose failure would be worst, and what would be then.
    pub worst_failure: Option<(Name, Figures)>,
    /// Where a replica more would be put, and what would be then.
    pub replica_added: Option<(Name, Figures)>,
    /// The worst moment of a rolling update: how many endpoints are ready, and what is then.
    pub rolling_update: Option<(usize, Figures)>,
}

/// What is known about one Service.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The mechanism that its settings choose now.
    pub current: Mechanism,
    /// The share of traffic that each zone sends.
    pub shares: Vec<(Name, f64)>,
    /// Ready endpoints by zone, after scaling.
    pub endpoints_by_zone: BTreeMap<Name, usize>,
    /// One per mechanism, in the order of [`MECHANISMS`].
    pub outcomes: Vec<Outcome>,
}

impl Cluster {
    /// The cluster of these nodes.
    pub fn new(nodes: &BTreeMap<Name, Node>, demand: Demand) -> Self {
        let nodes = &with_own_names(nodes);
        let topology = ClusterTopology::from_nodes(nodes);
        let senders = Senders::new(nodes, &demand);
        let failure = |zone: &Name| {
            let mut left = nodes.clone();
            left.values_mut().filter(|n| n.zone.as_ref() == Some(zone)).for_each(|n| n.ready = false);
            (zone.clone(), ClusterTopology::from_nodes(&left), Senders::new(&left, &demand))
        };
        let zones = topology.zones().iter().filter(|z| z.ready_nodes > 0).map(|z| &z.name);
        let failures = zones.map(failure).collect();
        let mut first_node = BTreeMap::new();
        for node in nodes.values().filter(|node| node.ready) {
            if let Some(zone) = &node.zone {
                first_node.entry(zone.clone()).or_insert_with(|| node.name.clone());
            }
        }
        let prefer_by = if demand == Demand::Nodes { ZoneWeight::Nodes } else { ZoneWeight::Cpu };
        let config = HintConfig { prefer_by, without_notices: true, ..HintConfig::default() };
        Self { first_node, topology, config, senders, failures }
    }

    /// The share of traffic that each zone sends.
    pub fn shares(&self) -> Vec<(Name, f64)> {
        self.senders.shares()
    }

    /// What each mechanism would do to a Service.
    pub fn ask(&self, question: &Question<'_>) -> Answer {
        let family = question.slices.iter().find_map(|slice| match slice.content.address_type {
            AddressType::Ip(family) => Some(family),
            AddressType::Fqdn => None,
        });
        let family = family.unwrap_or(Family::V4);
        let of_family =
            |slice: &&Slice| slice.content.address_type == AddressType::Ip(family) && !slice.deleting;
        let stored: Vec<Slice> =
            question.slices.iter().filter(of_family).map(|slice| self.bare(slice)).collect();
        let mut scaled = stored.clone();
        question.scale.iter().for_each(|(zone, by)| self.scale(&mut scaled, family, zone, *by));
        let defaults =
            TrafficDistributionDefaults { namespace: question.namespace_default.cloned(), cluster: None };
        let current = choose(question.service, &defaults, &plan::FeatureGates::default()).mechanism;
        let senders = measured(&self.senders, question);
        // Traffic is followed through the first port; the others would only cost.
        let one_port = Service {
            ports: question.service.ports.iter().take(1).cloned().collect(),
            ..question.service.clone()
        };
        let failures: Vec<(&Name, &ClusterTopology, Senders)> = self
            .failures
            .iter()
            .map(|(zone, topology, senders)| (zone, topology, measured(senders, question)))
            .collect();
        let hysteresis = Hysteresis::from_slices(family, &stored);
        let outcome = |mechanism: &Mechanism| {
            let service = asking(&one_port, *mechanism);
            let choice = choose(&service, &TrafficDistributionDefaults::default(), &self.config.gates);
            let choice = MechanismChoice { source: None, notices: Vec::new(), ..choice };
            let trial =
                Trial { cluster: self, service: &service, family, config: &self.config, choice: &choice };
            let now = trial.hinted(&self.topology, &hysteresis, scaled.clone());
            Outcome {
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
                figures: trial.figures(&now.slices, &senders),
                worst_failure: trial.worst_failure(&now, &failures),
                replica_added: trial.with_replica(&now, &senders),
                rolling_update: trial.worst_of_roll(&now, &senders),
            }
        };
        let mut endpoints_by_zone: BTreeMap<Name, usize> = BTreeMap::new();
        for endpoint in ready(&scaled) {
            *endpoints_by_zone.entry(endpoint.zone.clone().unwrap_or_default()).or_default() += 1;
        }
        let outcomes = MECHANISMS.iter().map(outcome).collect();
        Answer { current, shares: senders.shares(), endpoints_by_zone, outcomes }
    }

    /// A copy of a slice with what decides where traffic goes and nothing else, in names that no other thread holds. Its
    /// generation counts what is tried on it.
    fn bare(&self, slice: &Slice) -> Slice {
        let own = |name: &Name| Name::new(name);
        let zone =
            |name: &Name| self.topology.zones().iter().find(|z| z.name == *name).map(|z| z.name.clone());
        let endpoint = |e: &Endpoint| Endpoint {
            addresses: e.addresses.clone(),
            conditions: e.conditions,
            hostname: None,
            node: e.node.as_ref().map(|node| self.senders.node_name(node).unwrap_or_else(|| own(node))),
            zone: e.zone.as_ref().map(|name| zone(name).unwrap_or_else(|| own(name))),
            target: None,
            hints: e.hints.as_deref().map(|hints| Arc::new(hints.clone())),
        };
        Slice {
            key: ObjectKey::new(&own(&slice.key.namespace), &own(&slice.key.name)),
            uid: None,
            generation: 0,
            resource_version: None,
            deleting: slice.deleting,
            annotated: slice.annotated,
            written_by: None,
            owners: Box::default(),
            content: SliceContent {
                address_type: slice.content.address_type,
                labels: slice.content.labels.clone(),
                annotations: slice.content.annotations.clone(),
                ports: slice.content.ports.to_vec().into(),
                endpoints: slice.content.endpoints.iter().map(endpoint).collect(),
            },
        }
    }

    /// Adds ready endpoints to a zone or takes some away.
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

/// The nodes in names that nobody else holds.
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

/// What the zones send to this Service.
fn measured(senders: &Senders, question: &Question<'_>) -> Senders {
    question.measured.map_or_else(|| senders.clone(), |measured| senders.measured(measured))
}

fn is_ready_in(endpoint: &Endpoint, zone: &Name) -> bool {
    endpoint.conditions.is_ready() && endpoint.zone.as_ref() == Some(zone)
}

/// An address that is reserved and so belongs to nobody else.
pub(crate) fn spare_address(family: Family, number: u64) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(0xf000_0000 | (number & 0x0fff_ffff) as u32)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(0x0100_u128 << 112 | u128::from(number))),
    }
}

/// A ready endpoint that was not there before.
fn new_endpoint(family: Family, number: u64, zone: &Name, node: Option<Name>) -> Endpoint {
    let address = spare_address(family, number);
    Endpoint {
        addresses: Addresses::one(address),
        conditions: EndpointConditions::new(true, true, false),
        hostname: None,
        node,
        zone: Some(zone.clone()),
        target: None,
        hints: None,
    }
}

/// The Service as if it asked for a mechanism.
pub(crate) fn asking(service: &Service, mechanism: Mechanism) -> Service {
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

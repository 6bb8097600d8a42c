//! What would each mechanism do to this Service? Asked of the controller's own functions, answered with numbers.
//!
//! ```text
//! stored slices -> scale -> hints of a mechanism -> slices -> selection from every zone -> flows -> figures
//!                                                  \-> a zone fails -> hints again -> selection -> figures
//! ```

mod flow;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::{
    AddressType, Addresses, Conditions, Endpoint, Family, Labels, Name, Node, Service, Slice, annotation,
};
use plan::hints::{ClusterFacts, Config, HintInput, Mechanism, Memory, PreferBy, assign, choose};
use plan::slices::Packing;

pub use flow::Figures;
use flow::{Senders, figures};

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
#[derive(Debug)]
pub struct Cluster {
    nodes: BTreeMap<Name, Node>,
    facts: ClusterFacts,
    demand: Demand,
    senders: Senders,
    /// The cluster without each of its zones.
    failures: Vec<(Name, ClusterFacts, Senders)>,
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
}

/// What is known about one Service.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The mechanism that its settings choose now.
    pub current: Mechanism,
    /// Ready endpoints by zone, after scaling.
    pub endpoints_by_zone: BTreeMap<Name, usize>,
    /// One per mechanism, in the order of [`MECHANISMS`].
    pub outcomes: Vec<Outcome>,
}

impl Cluster {
    /// The cluster of these nodes.
    pub fn new(nodes: &BTreeMap<Name, Node>, demand: Demand) -> Self {
        let facts = ClusterFacts::from_nodes(nodes);
        let senders = Senders::new(nodes, &demand);
        let failure = |zone: &Name| {
            let mut left = nodes.clone();
            left.values_mut().filter(|n| n.zone.as_ref() == Some(zone)).for_each(|n| n.ready = false);
            (zone.clone(), ClusterFacts::from_nodes(&left), Senders::new(&left, &demand))
        };
        let zones = facts.zones().iter().filter(|z| z.ready_nodes > 0).map(|z| &z.name);
        let failures = zones.map(failure).collect();
        Self { nodes: nodes.clone(), facts, senders, failures, demand }
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
        let stored: Vec<Slice> = question.slices.iter().filter(of_family).cloned().collect();
        let mut scaled = stored.clone();
        question.scale.iter().for_each(|(zone, by)| self.scale(&mut scaled, family, zone, *by));
        let defaults =
            plan::hints::Defaults { namespace: question.namespace_default.cloned(), cluster: None };
        let current = choose(question.service, &defaults, &plan::FeatureGates::default()).mechanism;
        let outcome = |mechanism: &Mechanism| self.outcome(question, *mechanism, family, &stored, &scaled);
        let mut endpoints_by_zone: BTreeMap<Name, usize> = BTreeMap::new();
        for endpoint in ready(&scaled) {
            *endpoints_by_zone.entry(endpoint.zone.clone().unwrap_or_default()).or_default() += 1;
        }
        Answer { current, endpoints_by_zone, outcomes: MECHANISMS.iter().map(outcome).collect() }
    }

    fn outcome(
        &self,
        question: &Question<'_>,
        mechanism: Mechanism,
        family: Family,
        stored: &[Slice],
        scaled: &[Slice],
    ) -> Outcome {
        let service = asking(question.service, mechanism);
        let memory = Memory::from_slices(family, stored);
        let (after, decided) = self.hinted(&service, family, &self.facts, &memory, scaled);
        let flows = figures(&service, &after, family, &self.senders);
        let memory = Memory::from_slices(family, &after);
        let failures = self.failures.iter().map(|(zone, facts, senders)| {
            let without: Vec<Slice> = after.iter().map(|slice| without_zone(slice, zone)).collect();
            let (then, _) = self.hinted(&service, family, facts, &memory, &without);
            (zone.clone(), figures(&service, &then, family, senders))
        });
        let rank = |f: &Figures| f.refused * 1_000.0 + f.max_overload;
        let worst_failure = failures.reduce(|a, b| if rank(&b.1) > rank(&a.1) { b } else { a });
        Outcome {
            mechanism,
            programmed: decided.0,
            held_back: decided.1,
            slices_written: after.iter().zip(stored).filter(|(a, s)| a.content != s.content).count()
                + after.len().abs_diff(stored.len()),
            hints_changed: hints_changed(stored, &after),
            figures: flows,
            worst_failure,
        }
    }

    /// The slices with the hints that the Service asks for, and whether those are at work.
    fn hinted(
        &self,
        service: &Service,
        family: Family,
        facts: &ClusterFacts,
        memory: &Memory,
        slices: &[Slice],
    ) -> (Vec<Slice>, (bool, Option<&'static str>)) {
        let prefer_by = if self.demand == Demand::Nodes { PreferBy::Nodes } else { PreferBy::Cpu };
        let config = Config { prefer_by, ..Config::default() };
        let input = HintInput { service, family, facts, namespace_default: None, config: &config, memory };
        let mut packing = Packing { unchanged: slices.iter().collect(), ..Packing::default() };
        let outcome = assign(&input, &mut packing);
        let mut after = slices.to_vec();
        for (name, content) in packing.updates {
            if let Some(slice) = after.iter_mut().find(|slice| slice.key.name == name) {
                slice.content = content;
            }
        }
        (after, (outcome.programmed, outcome.held_back.map(|(_, sentence)| sentence)))
    }

    /// Adds ready endpoints to a zone or takes some away.
    fn scale(&self, slices: &mut [Slice], family: Family, zone: &Name, by: i64) {
        for _ in 0..by.unsigned_abs() {
            if by < 0 {
                let found = slices.iter_mut().rev().find_map(|slice| {
                    let here = |e: &Endpoint| is_ready_in(e, zone);
                    let at = slice.content.endpoints.iter().rposition(here)?;
                    Some(slice.content.endpoints.remove(at))
                });
                if found.is_none() {
                    return;
                }
                continue;
            }
            let count: usize = slices.iter().map(|s| s.content.endpoints.len()).sum();
            let node = self.nodes.values().find(|n| n.ready && n.zone.as_ref() == Some(zone));
            let endpoint = new_endpoint(family, count, zone, node.map(|n| n.name.clone()));
            let shortest = slices.iter_mut().min_by_key(|s| s.content.endpoints.len());
            let Some(slice) = shortest else { return };
            slice.content.endpoints.push(endpoint);
        }
    }
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
fn new_endpoint(family: Family, number: usize, zone: &Name, node: Option<Name>) -> Endpoint {
    let address = spare_address(family, number as u64);
    Endpoint {
        addresses: Addresses::one(address),
        conditions: Conditions::new(true, true, false),
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

/// The slice after its zone went away.
fn without_zone(slice: &Slice, zone: &Name) -> Slice {
    let mut slice = slice.clone();
    let lost = slice.content.endpoints.iter_mut().filter(|e| e.zone.as_ref() == Some(zone));
    lost.for_each(|endpoint| endpoint.conditions = Conditions::new(false, false, false));
    slice
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

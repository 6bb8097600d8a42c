//! The endpoints of one Service and family, counted once for all mechanisms.
//!
//! Zones become small numbers here: those of the cluster first, in the order of their names, then those that only
//! endpoints name. What follows is arithmetic over arrays, without a look-up by name per endpoint.

use std::sync::Arc;

use model::{Endpoint, Hints, Name, SliceContent};

use super::facts::{ClusterFacts, PreferBy, ZoneFacts};
use crate::slices::Packing;

/// Where one endpoint is, as far as hints care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// Gets no traffic.
    Unready,
    /// Ready, but nobody knows where.
    NoZone,
    /// Ready in this zone.
    Zone(usize),
}

/// All endpoints in the order creates, updates, unchanged, which is the order of every walk over a packing.
#[derive(Debug)]
pub(super) struct Survey<'f> {
    /// The zones by number.
    pub zones: Zones<'f>,
    /// One per endpoint.
    pub spots: Vec<Spot>,
    /// Ready endpoints.
    pub ready: usize,
    /// Ready endpoints per zone.
    pub ready_by_zone: Vec<usize>,
    /// Ready endpoints without a zone.
    pub without_zone: usize,
    /// Ready endpoints without a node.
    pub without_node: usize,
    /// The first ready endpoint without a zone, by the name that its owner knows.
    pub first_without_zone: Option<String>,
}

/// The slices of a packing in the order of every walk.
pub(super) fn contents<'p>(packing: &'p Packing<'_>) -> impl Iterator<Item = &'p SliceContent> {
    let updates = packing.updates.iter().map(|(_, content)| content);
    let unchanged = packing.unchanged.iter().map(|slice| &slice.content);
    packing.creates.iter().chain(updates).chain(unchanged)
}

impl<'f> Survey<'f> {
    /// Counts the endpoints of a packing.
    pub(super) fn new(facts: &'f ClusterFacts, packing: &Packing<'_>) -> Self {
        let mut survey = Self {
            ready_by_zone: vec![0; facts.zones().len()],
            zones: Zones { known: facts.zones(), others: Vec::new() },
            spots: Vec::with_capacity(contents(packing).map(|c| c.endpoints.len()).sum()),
            ready: 0,
            without_zone: 0,
            without_node: 0,
            first_without_zone: None,
        };
        for content in contents(packing) {
            for endpoint in &content.endpoints {
                survey.add(endpoint);
            }
        }
        survey
    }

    /// For those who need no counts.
    pub(super) fn empty(facts: &'f ClusterFacts) -> Self {
        Self {
            zones: Zones { known: facts.zones(), others: Vec::new() },
            spots: Vec::new(),
            ready: 0,
            ready_by_zone: Vec::new(),
            without_zone: 0,
            without_node: 0,
            first_without_zone: None,
        }
    }

    fn add(&mut self, endpoint: &Endpoint) {
        if !endpoint.conditions.is_ready_for_hints() {
            self.spots.push(Spot::Unready);
            return;
        }
        self.ready += 1;
        self.without_node += usize::from(endpoint.node.is_none());
        let Some(zone) = endpoint.zone.as_ref().filter(|z| !z.is_empty()) else {
            self.without_zone += 1;
            self.first_without_zone.get_or_insert_with(|| name_of(endpoint));
            self.spots.push(Spot::NoZone);
            return;
        };
        let zone = self.zones.number(zone);
        if zone == self.ready_by_zone.len() {
            self.ready_by_zone.push(0);
        }
        self.ready_by_zone[zone] += 1;
        self.spots.push(Spot::Zone(zone));
    }

    /// Whether consumers can use the hints: each ready endpoint has one for a zone, or each has one for its node. A
    /// cluster without zones can still prefer the own node.
    pub(super) fn has_usable_hints(&self, by_node: bool) -> bool {
        self.without_zone == 0 || by_node && self.without_node == 0
    }

    /// The weight of a zone's traffic and the weight of all.
    pub(super) fn share(&self, zone: usize, by: PreferBy) -> f64 {
        let all = self.zones.known.iter().fold(0u64, |sum, z| sum.saturating_add(z.weight(by)));
        if all == 0 { 0.0 } else { self.zones.weight(zone, by) as f64 / all as f64 }
    }
}

/// The name of what is behind an endpoint, or its address.
pub(super) fn name_of(endpoint: &Endpoint) -> String {
    match &endpoint.target {
        Some(target) => format!("Pod {}", target.name),
        None => endpoint.addresses.first().to_string(),
    }
}

/// Zones by number.
#[derive(Debug)]
pub(super) struct Zones<'f> {
    known: &'f [ZoneFacts],
    /// Zones that no node names.
    others: Vec<(Name, Arc<Hints>)>,
}

impl Zones<'_> {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.known.len() + self.others.len()
    }

    /// Those that nodes name.
    pub(super) fn known(&self) -> std::ops::Range<usize> {
        0..self.known.len()
    }

    /// The number of a zone; a new one for a zone not seen before.
    fn number(&mut self, name: &Name) -> usize {
        self.find(name).unwrap_or_else(|| {
            self.others.push((name.clone(), Arc::new(Hints::zone(name))));
            self.len() - 1
        })
    }

    /// The number of a zone that was seen before.
    pub(super) fn find(&self, name: &Name) -> Option<usize> {
        // A handful of zones is scanned faster than searched.
        let known = match self.known.len() {
            0..=8 => self.known.iter().position(|z| z.name == *name),
            _ => self.known.binary_search_by(|z| z.name.cmp(name)).ok(),
        };
        let other = || self.others.iter().position(|(other, _)| other == name);
        known.or_else(|| other().map(|at| self.known.len() + at))
    }

    /// Its name.
    pub(super) fn name(&self, zone: usize) -> &Name {
        match self.known.get(zone) {
            Some(known) => &known.name,
            None => &self.others[zone - self.known.len()].0,
        }
    }

    /// Hints for it alone.
    pub(super) fn own(&self, zone: usize) -> &Arc<Hints> {
        match self.known.get(zone) {
            Some(known) => known.own(),
            None => &self.others[zone - self.known.len()].1,
        }
    }

    /// Hints for all zones of its region; of a zone that no node names, for it alone.
    pub(super) fn regional(&self, zone: usize) -> &Arc<Hints> {
        self.known.get(zone).map_or_else(|| self.own(zone), ZoneFacts::regional)
    }

    /// Its region, if a node tells.
    pub(super) fn region(&self, zone: usize) -> Option<&Name> {
        self.known.get(zone)?.region.as_ref()
    }

    /// What it is expected to send.
    pub(super) fn weight(&self, zone: usize, by: PreferBy) -> u64 {
        self.known.get(zone).map_or(0, |z| z.weight(by))
    }

    /// Its ready nodes.
    pub(super) fn ready_nodes(&self, zone: usize) -> u64 {
        self.known.get(zone).map_or(0, |z| z.ready_nodes)
    }

    /// All numbers in the order of the names.
    pub(super) fn by_name(&self) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..self.len()).collect();
        if !self.others.is_empty() {
            numbers.sort_by(|a, b| self.name(*a).cmp(self.name(*b)));
        }
        numbers
    }
}

//! The endpoints of one Service and family by zone, counted once for all mechanisms.
//!
//! Zones are numbered: those of the cluster first, sorted by name, then those that only endpoints have. The mechanisms
//! compute with these numbers and look up no names.

use std::sync::Arc;

use model::{Endpoint, Hints, Name, SliceContent};

use super::topology::{ClusterTopology, ZoneTopology, ZoneWeight};
use crate::capacity::WHOLE;
use crate::slices::Packing;

/// The zone of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndpointZone {
    Unready,
    /// Ready, without a zone.
    NoZone,
    /// Ready in this zone.
    Zone(usize),
}

/// All endpoints, in the order creates, updates, unchanged: the order of every iteration over a packing.
#[derive(Debug)]
pub(super) struct EndpointsByZone<'f> {
    pub zones: ZoneNumbers<'f>,
    /// One per endpoint.
    pub zone_by_endpoint: Vec<EndpointZone>,
    pub ready: usize,
    pub ready_by_zone: Vec<usize>,
    /// Like `ready_by_zone`, each endpoint with its capacity, in thousandths; `None` if all have the same.
    pub capacity_by_zone: Option<Vec<u64>>,
    /// Ready endpoints without a zone.
    pub without_zone: usize,
    /// Ready endpoints without a node.
    pub without_node: usize,
    /// The first ready endpoint without a zone: its pod, else its address.
    pub first_without_zone: Option<String>,
}

/// The slices of a packing, in the order of every iteration.
pub(super) fn contents<'p>(packing: &'p Packing<'_>) -> impl Iterator<Item = &'p SliceContent> {
    let updates = packing.updates.iter().map(|(_, content)| content);
    let unchanged = packing.unchanged.iter().map(|slice| &slice.content);
    packing.creates.iter().chain(updates).chain(unchanged)
}

impl<'f> EndpointsByZone<'f> {
    pub(super) fn new(topology: &'f ClusterTopology, packing: &Packing<'_>) -> Self {
        let mut endpoints = Self {
            ready_by_zone: vec![0; topology.zones().len()],
            capacity_by_zone: None,
            zones: ZoneNumbers { known: topology.zones(), others: Vec::new() },
            zone_by_endpoint: Vec::with_capacity(contents(packing).map(|c| c.endpoints.len()).sum()),
            ready: 0,
            without_zone: 0,
            without_node: 0,
            first_without_zone: None,
        };
        for content in contents(packing) {
            for endpoint in &content.endpoints {
                endpoints.add(endpoint);
            }
        }
        if !packing.capacities.is_empty() {
            endpoints.weigh(packing);
        }
        endpoints
    }

    /// Without counts.
    pub(super) fn empty(topology: &'f ClusterTopology) -> Self {
        Self {
            zones: ZoneNumbers { known: topology.zones(), others: Vec::new() },
            zone_by_endpoint: Vec::new(),
            ready: 0,
            ready_by_zone: Vec::new(),
            capacity_by_zone: None,
            without_zone: 0,
            without_node: 0,
            first_without_zone: None,
        }
    }

    fn add(&mut self, endpoint: &Endpoint) {
        if !endpoint.conditions.is_ready_for_hints() {
            self.zone_by_endpoint.push(EndpointZone::Unready);
            return;
        }
        self.ready += 1;
        self.without_node += usize::from(endpoint.node.is_none());
        let Some(zone) = endpoint.zone.as_ref().filter(|z| !z.is_empty()) else {
            self.without_zone += 1;
            self.first_without_zone.get_or_insert_with(|| name_of(endpoint));
            self.zone_by_endpoint.push(EndpointZone::NoZone);
            return;
        };
        let zone = self.zones.number(zone);
        if zone == self.ready_by_zone.len() {
            self.ready_by_zone.push(0);
        }
        self.ready_by_zone[zone] += 1;
        self.zone_by_endpoint.push(EndpointZone::Zone(zone));
    }

    /// Sums the capacities of zones.
    fn weigh(&mut self, packing: &Packing<'_>) {
        let mut sums = vec![0; self.ready_by_zone.len()];
        let endpoints = contents(packing).flat_map(|content| &content.endpoints);
        for (endpoint, zone) in endpoints.zip(&self.zone_by_endpoint) {
            if let EndpointZone::Zone(zone) = zone {
                let own = packing.capacities.get(&endpoint.addresses.first()).copied();
                sums[*zone] += u64::from(own.unwrap_or(WHOLE));
            }
        }
        self.capacity_by_zone = Some(sums);
    }

    /// The capacity of a zone in thousandths of one endpoint.
    pub(super) fn capacity(&self, zone: usize) -> u64 {
        match &self.capacity_by_zone {
            Some(sums) => sums[zone],
            None => self.ready_by_zone[zone] as u64 * u64::from(WHOLE),
        }
    }

    /// The capacity of all zones and of endpoints without one.
    pub(super) fn capacity_of_all(&self) -> u64 {
        let without_zone = self.without_zone as u64 * u64::from(WHOLE);
        (0..self.ready_by_zone.len()).map(|zone| self.capacity(zone)).sum::<u64>() + without_zone
    }

    /// Whether consumers can use the hints: every ready endpoint has a zone hint, or every one has a node hint.
    /// PreferSameNode works in a cluster without zones.
    pub(super) fn has_usable_hints(&self, by_node: bool) -> bool {
        self.without_zone == 0 || by_node && self.without_node == 0
    }

    /// The expected share of traffic from a zone.
    pub(super) fn share(&self, zone: usize, by: ZoneWeight) -> f64 {
        let all = self.zones.known.iter().fold(0u64, |sum, z| sum.saturating_add(z.weight(by)));
        if all == 0 { 0.0 } else { self.zones.weight(zone, by) as f64 / all as f64 }
    }
}

/// The pod of an endpoint, else its address.
pub(super) fn name_of(endpoint: &Endpoint) -> String {
    match endpoint.target() {
        Some(target) => format!("Pod {}", target.name),
        None => endpoint.addresses.first().to_string(),
    }
}

/// The zones by number.
#[derive(Debug)]
pub(super) struct ZoneNumbers<'f> {
    known: &'f [ZoneTopology],
    /// Zones without nodes.
    others: Vec<(Name, Arc<Hints>)>,
}

impl ZoneNumbers<'_> {
    pub(super) fn len(&self) -> usize {
        self.known.len() + self.others.len()
    }

    /// Zones with nodes.
    pub(super) fn known(&self) -> std::ops::Range<usize> {
        0..self.known.len()
    }

    /// The number of a zone; a new one if it has none.
    fn number(&mut self, name: &Name) -> usize {
        self.find(name).unwrap_or_else(|| {
            self.others.push((name.clone(), Arc::new(Hints::zone(name))));
            self.len() - 1
        })
    }

    pub(super) fn find(&self, name: &Name) -> Option<usize> {
        // For a few zones a linear scan is faster.
        let known = match self.known.len() {
            0..=8 => self.known.iter().position(|z| z.name == *name),
            _ => self.known.binary_search_by(|z| z.name.cmp(name)).ok(),
        };
        let other = || self.others.iter().position(|(other, _)| other == name);
        known.or_else(|| other().map(|at| self.known.len() + at))
    }

    pub(super) fn name(&self, zone: usize) -> &Name {
        match self.known.get(zone) {
            Some(known) => &known.name,
            None => &self.others[zone - self.known.len()].0,
        }
    }

    /// Hints for this zone alone.
    pub(super) fn own(&self, zone: usize) -> &Arc<Hints> {
        match self.known.get(zone) {
            Some(known) => known.own(),
            None => &self.others[zone - self.known.len()].1,
        }
    }

    /// Hints for all zones of its region; for a zone without nodes, for it alone.
    pub(super) fn regional(&self, zone: usize) -> &Arc<Hints> {
        self.known.get(zone).map_or_else(|| self.own(zone), ZoneTopology::regional)
    }

    pub(super) fn region(&self, zone: usize) -> Option<&Name> {
        self.known.get(zone)?.region.as_ref()
    }

    /// The expected traffic from it.
    pub(super) fn weight(&self, zone: usize, by: ZoneWeight) -> u64 {
        self.known.get(zone).map_or(0, |z| z.weight(by))
    }

    pub(super) fn ready_nodes(&self, zone: usize) -> u64 {
        self.known.get(zone).map_or(0, |z| z.ready_nodes)
    }

    /// All numbers, sorted by name.
    pub(super) fn by_name(&self) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..self.len()).collect();
        if !self.others.is_empty() {
            numbers.sort_by(|a, b| self.name(*a).cmp(self.name(*b)));
        }
        numbers
    }
}

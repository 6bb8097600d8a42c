//! The load that endpoints have to expect when clients keep to their own zone or node.
//!
//! Overload is what an endpoint gets above its fair share (seed 003): 0.5 is half as much again.

use std::collections::BTreeMap;

use model::Name;

use super::facts::PreferBy;
use super::survey::{Spot, Survey, contents};
use crate::slices::Packing;

/// From here on a mechanism warns or holds back (seed 003: 50 %).
pub(super) const THRESHOLD: f64 = 0.5;

/// Where clients go whose zone has no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strays {
    /// To all endpoints alike.
    Everywhere,
    /// To none.
    Nowhere,
}

/// The place where the load is highest. All shares are parts of the Service's traffic.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Worst {
    /// `Zone zone-a` or `Node node-1`.
    pub place: String,
    /// What the place sends to its own endpoints.
    pub share: f64,
    /// Its ready endpoints.
    pub endpoints: usize,
    /// What the rest of its zone sends to all endpoints of the zone, and how many those are.
    zone_share: f64,
    zone_endpoints: usize,
    /// What comes from zones without endpoints.
    stray_share: f64,
    ready: usize,
}

impl Worst {
    /// What each endpoint gets above its fair share.
    pub(super) fn overload(&self) -> f64 {
        self.overload_with(0)
    }

    /// The same with more endpoints at the place.
    fn overload_with(&self, more: usize) -> f64 {
        let zone = self.zone_share / (self.zone_endpoints + more) as f64;
        let own = self.share / (self.endpoints + more) as f64;
        (self.ready + more) as f64 * (own + zone) + self.stray_share - 1.0
    }

    /// The fewest endpoints to add at the place so that the load is bearable.
    pub(super) fn missing(&self) -> Option<usize> {
        (1..=1_000).find(|more| self.overload_with(*more) <= THRESHOLD)
    }
}

/// The highest load under "own zone, else wherever strays go".
pub(super) fn by_zone(survey: &Survey<'_>, by: PreferBy, strays: Strays) -> Option<Worst> {
    let stray_share = stray_share(survey, by, strays);
    let zones = (0..survey.zones.len()).filter(|z| survey.ready_by_zone[*z] > 0);
    let load = |zone: usize| survey.share(zone, by) / survey.ready_by_zone[zone] as f64;
    let zone = first_highest(zones, load)?;
    Some(Worst {
        place: format!("Zone {}", survey.zones.name(zone)),
        share: survey.share(zone, by),
        endpoints: survey.ready_by_zone[zone],
        zone_share: 0.0,
        zone_endpoints: survey.ready_by_zone[zone],
        stray_share,
        ready: survey.ready,
    })
}

/// Zones with ready nodes but without ready endpoints.
pub(super) fn zones_without_endpoints(survey: &Survey<'_>) -> impl Iterator<Item = usize> {
    survey.zones.known().filter(|z| survey.ready_by_zone[*z] == 0 && survey.zones.ready_nodes(*z) > 0)
}

fn stray_share(survey: &Survey<'_>, by: PreferBy, strays: Strays) -> f64 {
    match strays {
        Strays::Everywhere => zones_without_endpoints(survey).map(|z| survey.share(z, by)).sum(),
        Strays::Nowhere => 0.0,
    }
}

/// The highest load under "own node, else own zone, else everywhere". The nodes of a zone are taken as alike.
pub(super) fn by_node(survey: &Survey<'_>, packing: &Packing<'_>, by: PreferBy) -> Option<Worst> {
    let mut endpoints_by_node: BTreeMap<(usize, &Name), usize> = BTreeMap::new();
    let endpoints = contents(packing).flat_map(|c| &c.endpoints);
    for (spot, endpoint) in survey.spots.iter().zip(endpoints) {
        if let (Spot::Zone(zone), Some(node)) = (spot, &endpoint.node) {
            *endpoints_by_node.entry((*zone, node)).or_default() += 1;
        }
    }
    let mut serving_nodes = vec![0u64; survey.zones.len()];
    endpoints_by_node.keys().for_each(|(zone, _)| serving_nodes[*zone] += 1);
    let stray_share = stray_share(survey, by, Strays::Everywhere);
    let worst = |((zone, _), endpoints): (&(usize, &Name), &usize)| {
        let nodes = survey.zones.ready_nodes(*zone).max(serving_nodes[*zone]);
        let share = survey.share(*zone, by) / nodes as f64;
        Worst {
            place: String::new(),
            share,
            endpoints: *endpoints,
            zone_share: share * (nodes - serving_nodes[*zone]) as f64,
            zone_endpoints: survey.ready_by_zone[*zone],
            stray_share,
            ready: survey.ready,
        }
    };
    let entries: Vec<_> = endpoints_by_node.iter().collect();
    let load = |at: usize| worst(entries[at]).overload();
    let at = first_highest(0..entries.len(), load)?;
    Some(Worst { place: format!("Node {}", entries[at].0.1), ..worst(entries[at]) })
}

/// The first of the highest, so that equal loads do not change the answer.
fn first_highest(places: impl Iterator<Item = usize>, load: impl Fn(usize) -> f64) -> Option<usize> {
    let highest = places.fold(None, |highest: Option<(usize, f64)>, place| match highest {
        Some((_, most)) if most >= load(place) => highest,
        _ => Some((place, load(place))),
    });
    highest.map(|(place, _)| place)
}

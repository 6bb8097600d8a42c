//! The expected load of endpoints when clients stay in their zone or on their node.
//!
//! Overload is the traffic of an endpoint above its fair share (seed 003): 0.5 means 150 % of it.

use std::collections::BTreeMap;

use model::Name;

use super::endpoints_by_zone::{EndpointZone, EndpointsByZone, contents};
use super::topology::ZoneWeight;
use crate::slices::Packing;

/// The overload threshold: above it a mechanism warns or stays inactive (seed 003: 50 %).
pub(super) const THRESHOLD: f64 = 0.5;

/// Where the traffic of a zone without endpoints goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZoneFallback {
    /// To all endpoints evenly.
    Everywhere,
    /// It is refused.
    Nowhere,
}

/// The zone or node with the highest load per endpoint. Shares are fractions of the Service's traffic.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HighestLoad {
    /// `Zone zone-a` or `Node node-1`.
    pub place: String,
    /// The traffic from this zone or node to its own endpoints.
    pub share: f64,
    /// Its ready endpoints.
    pub endpoints: usize,
    /// The traffic from the rest of the zone to all its endpoints, and their number.
    zone_share: f64,
    zone_endpoints: usize,
    /// The traffic from zones without endpoints.
    fallback_share: f64,
    ready: usize,
}

impl HighestLoad {
    pub(super) fn overload(&self) -> f64 {
        self.overload_with(0)
    }

    /// The overload with more endpoints there.
    fn overload_with(&self, more: usize) -> f64 {
        let zone = self.zone_share / (self.zone_endpoints + more) as f64;
        let own = self.share / (self.endpoints + more) as f64;
        (self.ready + more) as f64 * (own + zone) + self.fallback_share - 1.0
    }

    /// How many endpoints to add there to get below the threshold.
    pub(super) fn missing(&self) -> Option<usize> {
        (1..=1_000).find(|more| self.overload_with(*more) <= THRESHOLD)
    }
}

/// The highest load if traffic stays in its zone, with a fallback for zones without endpoints.
pub(super) fn by_zone(
    endpoints: &EndpointsByZone<'_>,
    by: ZoneWeight,
    fallback: ZoneFallback,
) -> Option<HighestLoad> {
    let fallback_share = fallback_share(endpoints, by, fallback);
    let zones = (0..endpoints.zones.len()).filter(|z| endpoints.ready_by_zone[*z] > 0);
    let load = |zone: usize| endpoints.share(zone, by) / endpoints.ready_by_zone[zone] as f64;
    let zone = first_highest(zones, load)?;
    Some(HighestLoad {
        place: format!("Zone {}", endpoints.zones.name(zone)),
        share: endpoints.share(zone, by),
        endpoints: endpoints.ready_by_zone[zone],
        zone_share: 0.0,
        zone_endpoints: endpoints.ready_by_zone[zone],
        fallback_share,
        ready: endpoints.ready,
    })
}

/// Zones with ready nodes but without ready endpoints.
pub(super) fn zones_without_endpoints(endpoints: &EndpointsByZone<'_>) -> impl Iterator<Item = usize> {
    endpoints
        .zones
        .known()
        .filter(|z| endpoints.ready_by_zone[*z] == 0 && endpoints.zones.ready_nodes(*z) > 0)
}

fn fallback_share(endpoints: &EndpointsByZone<'_>, by: ZoneWeight, fallback: ZoneFallback) -> f64 {
    match fallback {
        ZoneFallback::Everywhere => zones_without_endpoints(endpoints).map(|z| endpoints.share(z, by)).sum(),
        ZoneFallback::Nowhere => 0.0,
    }
}

/// The highest load if traffic stays on its node, else in its zone, else goes everywhere. The nodes of a zone count as
/// equal.
pub(super) fn by_node(
    endpoints: &EndpointsByZone<'_>,
    packing: &Packing<'_>,
    by: ZoneWeight,
) -> Option<HighestLoad> {
    let mut endpoints_by_node: BTreeMap<(usize, &Name), usize> = BTreeMap::new();
    let packed = contents(packing).flat_map(|c| &c.endpoints);
    for (zone_of, endpoint) in endpoints.zone_by_endpoint.iter().zip(packed) {
        if let (EndpointZone::Zone(zone), Some(node)) = (zone_of, &endpoint.node) {
            *endpoints_by_node.entry((*zone, node)).or_default() += 1;
        }
    }
    let mut serving_nodes = vec![0u64; endpoints.zones.len()];
    endpoints_by_node.keys().for_each(|(zone, _)| serving_nodes[*zone] += 1);
    let fallback_share = fallback_share(endpoints, by, ZoneFallback::Everywhere);
    let load_of = |((zone, _), on_node): (&(usize, &Name), &usize)| {
        let nodes = endpoints.zones.ready_nodes(*zone).max(serving_nodes[*zone]);
        let share = endpoints.share(*zone, by) / nodes as f64;
        HighestLoad {
            place: String::new(),
            share,
            endpoints: *on_node,
            zone_share: share * (nodes - serving_nodes[*zone]) as f64,
            zone_endpoints: endpoints.ready_by_zone[*zone],
            fallback_share,
            ready: endpoints.ready,
        }
    };
    let entries: Vec<_> = endpoints_by_node.iter().collect();
    let load = |at: usize| load_of(entries[at]).overload();
    let at = first_highest(0..entries.len(), load)?;
    Some(HighestLoad { place: format!("Node {}", entries[at].0.1), ..load_of(entries[at]) })
}

/// The first of the highest, so that the result is stable among equals.
fn first_highest(candidates: impl Iterator<Item = usize>, load: impl Fn(usize) -> f64) -> Option<usize> {
    let highest = candidates.fold(None, |highest: Option<(usize, f64)>, at| match highest {
        Some((_, most)) if most >= load(at) => highest,
        _ => Some((at, load(at))),
    });
    highest.map(|(at, _)| at)
}

//! Selection under Spill: the weights of endpoints, seen from this node's zone.

use std::collections::BTreeMap;

use model::Name;

use super::candidates::Candidate;
use super::{NodeView, SelectedEndpoint};
use crate::spill::{SpillDemand, ZoneCapacity, row};

/// The ready endpoints that this zone uses, with weights whose mean is 1.
///
/// `None` if this node has no zone or nothing is ready. Hints then decide; there are none while a zone spills, so all
/// endpoints are used.
pub(super) fn spill_weights(
    demand: &SpillDemand,
    node: &NodeView<'_>,
    candidates: &[Candidate<'_>],
) -> Option<Vec<SelectedEndpoint>> {
    let zone = node.zone?;
    let mut capacity_by_zone: BTreeMap<Name, ZoneCapacity> = BTreeMap::new();
    for candidate in candidates.iter().filter(|c| c.ready) {
        let own = ZoneCapacity::of_endpoint(candidate.capacity);
        match capacity_by_zone.get_mut(zone_of(candidate)) {
            Some(capacity) => *capacity += own,
            None => drop(capacity_by_zone.insert(candidate.endpoint.zone.clone().unwrap_or_default(), own)),
        }
    }
    let shares = row(demand, &capacity_by_zone, zone)?;
    let weight_of = |candidate: &Candidate<'_>| {
        let zone = zone_of(candidate);
        let (_, share) = shares.iter().find(|(name, _)| *name == zone)?;
        let own = ZoneCapacity::of_endpoint(candidate.capacity).endpoints();
        Some(share * own / capacity_by_zone.get(zone)?.endpoints())
    };
    let ready = candidates.iter().filter(|c| c.ready);
    let mut targets: Vec<SelectedEndpoint> =
        ready.filter_map(|c| Some(SelectedEndpoint { weight: weight_of(c)?, ..c.selected() })).collect();
    let mean = targets.iter().map(|t| t.weight).sum::<f64>() / targets.len() as f64;
    targets.iter_mut().for_each(|t| t.weight /= mean);
    (!targets.is_empty()).then_some(targets)
}

fn zone_of<'e>(candidate: &Candidate<'e>) -> &'e str {
    candidate.endpoint.zone.as_deref().unwrap_or_default()
}

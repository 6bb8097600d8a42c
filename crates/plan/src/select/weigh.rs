//! Spill: from a demand and the endpoints' zones to weights for this node's zone.

use std::collections::BTreeMap;

use model::Name;

use super::{Candidate, NodeView, Target};
use crate::spill::{Demand, row};

/// The ready endpoints that this zone uses, with weights whose mean is 1.
///
/// `None` where weights cannot be had: this node has no zone, or nothing is ready. Hints then decide, and there are
/// none while some zone spills, so that all endpoints count.
pub(super) fn spill(
    demand: &Demand,
    node: &NodeView<'_>,
    candidates: &[Candidate<'_>],
) -> Option<Vec<Target>> {
    let zone = node.zone?;
    let mut endpoints_by_zone: BTreeMap<Name, usize> = BTreeMap::new();
    for candidate in candidates.iter().filter(|c| c.ready) {
        match endpoints_by_zone.get_mut(zone_of(candidate)) {
            Some(count) => *count += 1,
            None => drop(endpoints_by_zone.insert(candidate.endpoint.zone.clone().unwrap_or_default(), 1)),
        }
    }
    let shares = row(demand, &endpoints_by_zone, zone)?;
    let weight_of = |candidate: &Candidate<'_>| {
        let zone = zone_of(candidate);
        let (_, share) = shares.iter().find(|(name, _)| *name == zone)?;
        Some(share / *endpoints_by_zone.get(zone)? as f64)
    };
    let ready = candidates.iter().filter(|c| c.ready);
    let mut targets: Vec<Target> =
        ready.filter_map(|c| Some(Target { weight: weight_of(c)?, ..c.target() })).collect();
    let mean = targets.iter().map(|t| t.weight).sum::<f64>() / targets.len() as f64;
    targets.iter_mut().for_each(|t| t.weight /= mean);
    (!targets.is_empty()).then_some(targets)
}

fn zone_of<'e>(candidate: &Candidate<'e>) -> &'e str {
    candidate.endpoint.zone.as_deref().unwrap_or_default()
}

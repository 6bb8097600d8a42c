//! What a plan would do with the estimated demand.

use std::collections::BTreeMap;

use model::Name;

use crate::spill::{SpillDemand, ZoneCapacity, row};

/// The outcome of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PredictedTraffic {
    /// The share of traffic that stays in its zone.
    pub in_zone: f64,
    /// The highest load of an endpoint, in fair shares.
    pub highest_load: f64,
}

impl PredictedTraffic {
    /// For these shares of traffic by zone.
    pub fn new(
        plan: &SpillDemand,
        share_by_zone: &BTreeMap<Name, f64>,
        endpoints_by_zone: &BTreeMap<Name, ZoneCapacity>,
    ) -> Self {
        let mut in_zone = 0.0;
        let mut load_by_zone: BTreeMap<Name, f64> = BTreeMap::new();
        for (from, demand) in share_by_zone {
            for (to, share) in row(plan, endpoints_by_zone, from).into_iter().flatten() {
                in_zone += if to == *from { demand * share } else { 0.0 };
                *load_by_zone.entry(to).or_default() += demand * share;
            }
        }
        let all = endpoints_by_zone.values().copied().sum::<ZoneCapacity>().endpoints();
        let load = |(zone, load): (&Name, &f64)| {
            let own = endpoints_by_zone.get(zone).map_or(1.0, |capacity| capacity.endpoints());
            load * all / own.max(0.001)
        };
        Self { in_zone, highest_load: load_by_zone.iter().map(load).fold(0.0, f64::max) }
    }
}

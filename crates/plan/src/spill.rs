//! Spill: each zone keeps the traffic that its endpoints have capacity for at equal load per endpoint; only the excess goes
//! elsewhere, first within its region.
//!
//! ```text
//! Nodes -> SpillDemand (share of traffic per zone, in the slices) --\
//!                                                                    row(zone) -> share of its traffic per target zone
//! slices -> ready endpoints per zone (share of capacity) -----------/
//! ```
//!
//! Slices carry only the demand, which changes with nodes and not with pods. Each consumer computes the row of its own zone,
//! so the controller, every node and the simulator agree.
//!
//! The demand follows the CPU of nodes, or the connections that nodes count ([`measured`]). Measured demand comes with a
//! keep factor ([`SpillKeep`]): a zone keeps more than its fair share while its endpoints have carried more before.

mod capacity;
pub mod demand;
mod demand_mode;
mod keep;
pub mod measured;
mod proved;

use std::collections::{BTreeMap, BTreeSet};

use model::Name;

pub use capacity::ZoneCapacity;
pub use demand::{DemandError, SpillDemand, ZoneDemand};
pub use demand_mode::SpillDemandMode;
pub use keep::SpillKeep;
pub(crate) use keep::thousandths;
pub use measured::MeasuredDemand;
pub use proved::ProvedLoad;

/// Shares of the demand are in 1/256, unless they are measured and there are many zones.
pub const PARTS: u64 = 256;

/// An excess up to this percentage of a zone's capacity counts as a rounding error.
const ROUNDING_PERCENT: u64 = 5;

/// Where the traffic of zone `from` goes: a share per target zone, sorted by name, without zeros, with sum 1. The endpoints
/// of a target zone share by capacity. Endpoints without a zone count as zone "".
///
/// A zone without demand uses its own endpoints if it has any, and otherwise all in proportion to capacity. `None` if there
/// are no endpoints.
pub fn row<C: Copy + Into<ZoneCapacity>>(
    demand: &SpillDemand,
    endpoints_by_zone: &BTreeMap<Name, C>,
    from: &str,
) -> Option<Vec<(Name, f64)>> {
    row_among(&balance(demand, endpoints_by_zone)?, from)
}

/// Like [`row`], from exact weights of zones (nodes or CPU) in one region, without rounding to 1/256. For the simulator.
pub fn exact_row(
    weights: &BTreeMap<Name, u64>,
    endpoints_by_zone: &BTreeMap<Name, usize>,
    from: &str,
) -> Option<Vec<(Name, f64)>> {
    let all: u64 = endpoints_by_zone.values().map(|n| *n as u64).sum();
    let parts = weights.values().sum::<u64>().max(1);
    let names: BTreeSet<&Name> = weights.keys().chain(endpoints_by_zone.keys()).collect();
    let balance = |zone| ZoneBalance {
        zone,
        region: None,
        endpoints: endpoints_by_zone.get(zone).map_or(0, |n| *n as u64),
        demand: weights.get(zone).map_or(0, |weight| weight * all),
        capacity: endpoints_by_zone.get(zone).map_or(0, |n| parts * *n as u64),
        part: 0,
        follows_capacity: false,
    };
    let zones: Vec<ZoneBalance> = names.into_iter().map(balance).collect();
    if all == 0 { None } else { row_among(&zones, from) }
}

fn row_among(zones: &[ZoneBalance], from: &str) -> Option<Vec<(Name, f64)>> {
    let is_known =
        |z: &&ZoneBalance| z.zone == from && (z.demand > 0 || z.endpoints > 0) && !z.follows_capacity;
    let Some(own) = zones.iter().find(is_known) else { return Some(follow_capacity(zones)) };
    if own.demand == 0 || !any_spills(zones) {
        return Some(vec![(own.zone.clone(), 1.0)]);
    }
    let (near, far) = own.split(zones);
    let spare_near: u64 = zones.iter().filter(|z| z.region == own.region).map(ZoneBalance::spare).sum();
    let spare_far: f64 = zones.iter().map(|z| z.spare_after_region(zones)).sum();
    let part = |z: &ZoneBalance| {
        let kept = if z.zone == own.zone { own.kept() as f64 } else { 0.0 };
        let is_near = z.region == own.region && near > 0.0;
        let nearby = if is_near { near * z.spare() as f64 / spare_near as f64 } else { 0.0 };
        let distant = if far > 0.0 { far * z.spare_after_region(zones) / spare_far } else { 0.0 };
        (z.zone.clone(), (kept + nearby + distant) / own.demand as f64)
    };
    Some(zones.iter().map(part).filter(|(_, share)| *share > 0.0).collect())
}

/// Whether the demand of some zone exceeds its capacity by more than rounding.
pub fn spills<C: Copy + Into<ZoneCapacity>>(
    demand: &SpillDemand,
    endpoints_by_zone: &BTreeMap<Name, C>,
) -> bool {
    balance(demand, endpoints_by_zone).is_some_and(|zones| any_spills(&zones))
}

/// Demand and capacity of one zone, in the same unit: 1 / (parts x endpoints), or a thousandth of that with a keep factor.
#[derive(Debug)]
struct ZoneBalance<'a> {
    zone: &'a Name,
    region: Option<&'a Name>,
    /// In thousandths, or whole ones if the demand is not rounded.
    endpoints: u64,
    demand: u64,
    capacity: u64,
    /// 1/256 of all traffic; 0 if the demand is not rounded.
    part: u64,
    /// Its demand is not known: it is spread over all endpoints, and takes that from each zone's capacity.
    follows_capacity: bool,
}

impl ZoneBalance<'_> {
    fn kept(&self) -> u64 {
        self.demand.min(self.capacity)
    }

    fn excess(&self) -> u64 {
        self.demand - self.kept()
    }

    fn spare(&self) -> u64 {
        self.capacity - self.kept()
    }

    fn spills(&self) -> bool {
        exceeds(self.demand, self.capacity, self.part)
    }

    /// The part of the excess that stays in the region, and the rest.
    fn split(&self, zones: &[Self]) -> (f64, f64) {
        if self.excess() == 0 {
            return (0.0, 0.0);
        }
        let (excess, spare) = region_sums(zones, self.region);
        let near = self.excess() as f64 * (excess.min(spare) as f64 / excess as f64);
        // Exactly zero if the region has capacity for all of it, so that no rounding error leaves the region.
        (near, if spare >= excess { 0.0 } else { self.excess() as f64 - near })
    }

    /// The spare capacity that remains after the zone's own region.
    fn spare_after_region(&self, zones: &[Self]) -> f64 {
        let (excess, spare) = region_sums(zones, self.region);
        if spare <= excess { 0.0 } else { self.spare() as f64 * ((spare - excess) as f64 / spare as f64) }
    }
}

fn region_sums(zones: &[ZoneBalance], region: Option<&Name>) -> (u64, u64) {
    let within = zones.iter().filter(|z| z.region == region);
    within.fold((0, 0), |(excess, spare), z| (excess + z.excess(), spare + z.spare()))
}

fn any_spills(zones: &[ZoneBalance]) -> bool {
    zones.iter().any(ZoneBalance::spills)
}

/// Whether `demand` exceeds `capacity` by more than rounding: by 1/256 of all traffic, or by more than 5 %.
fn exceeds(demand: u64, capacity: u64, part: u64) -> bool {
    let excess = demand.saturating_sub(capacity);
    excess > 0 && (excess >= part || excess * 100 > capacity * ROUNDING_PERCENT)
}

/// Whether a zone with this share of the demand and `own` of the capacity `all` spills; both are in the same unit.
///
/// At an equal load, whatever the keep factor: consumers that read only hints do not follow it.
pub(crate) fn zone_spills(demand: &SpillDemand, share: u32, own: u64, all: u64) -> bool {
    let part = all * demand.parts() / PARTS;
    all > 0 && exceeds(u64::from(share) * all, demand.parts() * own, part)
}

/// The share of its traffic that a zone keeps; 1 if there are no endpoints at all.
pub fn kept_share<C: Copy + Into<ZoneCapacity>>(
    demand: &SpillDemand,
    endpoints_by_zone: &BTreeMap<Name, C>,
    zone: &str,
) -> f64 {
    let row = row(demand, endpoints_by_zone, zone);
    row.map_or(1.0, |row| row.iter().filter(|(to, _)| to == zone).map(|(_, share)| share).sum())
}

fn follow_capacity(zones: &[ZoneBalance]) -> Vec<(Name, f64)> {
    let all: u64 = zones.iter().map(|z| z.endpoints).sum();
    let with_endpoints = zones.iter().filter(|z| z.endpoints > 0);
    with_endpoints.map(|z| (z.zone.clone(), z.endpoints as f64 / all as f64)).collect()
}

/// Every zone with demand or endpoints, sorted by name.
fn balance<'a, C: Copy + Into<ZoneCapacity>>(
    demand: &'a SpillDemand,
    endpoints_by_zone: &'a BTreeMap<Name, C>,
) -> Option<Vec<ZoneBalance<'a>>> {
    let all: u64 = endpoints_by_zone.values().map(|capacity| (*capacity).into().thousandths()).sum();
    if all == 0 {
        return None;
    }
    let keep = demand.keep();
    let (scale, factor) = keep.map_or((1, 1), |keep| (keep::SCALE, keep.factor_for(all)));
    let parts = demand.parts();
    let is_spread = |zone: &Name| keep.is_some_and(|keep| keep.spreads(zone));
    let spread = demand.zones().iter().filter(|z| is_spread(&z.zone));
    let spread: u64 = spread.map(|z| u64::from(z.share)).sum();
    let none = |zone, region| ZoneBalance {
        zone,
        region,
        endpoints: 0,
        demand: 0,
        capacity: 0,
        part: all * scale * parts / PARTS,
        follows_capacity: is_spread(zone),
    };
    let mut zones: BTreeMap<&Name, ZoneBalance> = BTreeMap::new();
    for z in demand.zones() {
        let mut zone = none(&z.zone, z.region.as_ref());
        zone.demand = if zone.follows_capacity { 0 } else { u64::from(z.share) * all * scale };
        zones.insert(&z.zone, zone);
    }
    for (zone, capacity) in endpoints_by_zone {
        let entry = zones.entry(zone).or_insert_with(|| none(zone, None));
        entry.endpoints = (*capacity).into().thousandths();
        entry.capacity = entry.endpoints * (parts * factor - scale * spread);
    }
    Some(zones.into_values().collect())
}

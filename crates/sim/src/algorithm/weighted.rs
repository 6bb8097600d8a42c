//! `local-weighted`: whole endpoints as in `local-opt`, and fractions by groups of one endpoint that two or more zones
//! weigh (seed 003, "Local-Weighted"). Labels, overwriting and the order of subtractions are the published tool's.

use std::collections::VecDeque;

use model::Name;

use super::opt::fill;
use crate::input::{Shares, Zone};
use crate::slice_group::SliceGroup;

/// Endpoints of a zone, and how much of each is to be given or is missing.
#[derive(Clone, Copy, Debug)]
struct Fraction {
    zone: usize,
    count: u64,
    weight: f64,
    /// Whether the zone itself uses the rest of it.
    local: bool,
}

#[derive(Debug, Default)]
struct Pools {
    available: VecDeque<(usize, u64)>,
    needs: Vec<(usize, u64)>,
    fractions_available: Vec<Fraction>,
    fractions_needed: VecDeque<Fraction>,
}

/// The groups.
pub(super) fn groups(zones: &[Zone]) -> Vec<SliceGroup> {
    let shares = Shares::of(zones);
    let mut pools = Pools::default();
    let mut groups: Vec<SliceGroup> = (0..zones.len())
        .map(|at| SliceGroup::own(zones, at, pools.sort_in(at, zones[at].endpoints, shares.expected[at])))
        .collect();
    pools.fill_whole(&mut groups);
    for part in std::mem::take(&mut pools.fractions_available) {
        groups.push(pools.share_out(part, zones));
    }
    groups
}

impl Pools {
    /// Says how many endpoints the zone's own group starts with.
    fn sort_in(&mut self, zone: usize, endpoints: u64, expected: f64) -> u64 {
        let surplus = endpoints as f64 - expected;
        let whole = surplus.trunc();
        if whole > 0.0 {
            self.available.push_back((zone, whole as u64));
        } else if whole < 0.0 {
            self.needs.push((zone, -whole as u64));
        }
        let fraction = surplus - whole;
        if fraction > 0.0 {
            self.fractions_available.push(Fraction { zone, count: 1, weight: 1.0 - fraction, local: true });
        } else if fraction < 0.0 {
            self.fractions_needed.push_back(Fraction { zone, count: 1, weight: -fraction, local: false });
        }
        if whole >= 0.0 { expected.trunc() as u64 } else { endpoints }
    }

    fn fill_whole(&mut self, groups: &mut [SliceGroup]) {
        for (zone, need) in std::mem::take(&mut self.needs) {
            let missing = fill(&mut groups[zone], need, &mut self.available);
            if missing > 0 {
                self.fractions_needed.push_back(Fraction { zone, count: missing, weight: 1.0, local: false });
            }
        }
        for (zone, count) in std::mem::take(&mut self.available) {
            self.fractions_available.push(Fraction { zone, count, weight: 1.0, local: false });
        }
    }

    fn share_out(&mut self, mut part: Fraction, zones: &[Zone]) -> SliceGroup {
        let mut label = "shared".to_owned();
        let mut group = SliceGroup::empty(Name::default(), zones.len());
        group.composition[part.zone] = part.count;
        if part.local {
            group.weights[part.zone] = Some(part.weight);
            label = format!("{label}-{}", zones[part.zone].name);
            part.weight = 1.0 - part.weight;
        }
        while let Some(needed) = self.fractions_needed.front_mut() {
            let wanted = needed.count as f64 * needed.weight;
            let missing = wanted - part.count as f64 * part.weight;
            label = format!("{label}-{}", zones[needed.zone].name);
            let weight = group.weights[needed.zone].get_or_insert(0.0);
            if missing >= 0.0 {
                *weight += part.weight;
                if missing == 0.0 {
                    self.fractions_needed.pop_front();
                } else {
                    (needed.count, needed.weight) = (1, missing);
                }
                break;
            }
            *weight += wanted / part.count as f64;
            part.weight -= *weight;
            self.fractions_needed.pop_front();
        }
        group.label = Name::new(&label);
        group
    }
}

//! `local-opt`: whole endpoints go where they are missing, and what is left serves every zone alike (seed 003,
//! "Local-Opt"). Where an expected number is rounded below a whole one, an endpoint is lost, as in the published tool
//! (simulator 4, "Double-rounding loss").

use std::collections::VecDeque;

use model::Name;

use crate::input::{Shares, Zone};
use crate::slice_group::SliceGroup;

/// The groups.
pub(super) fn groups(zones: &[Zone]) -> Vec<SliceGroup> {
    let shares = Shares::of(zones);
    let mut available: VecDeque<(usize, u64)> = VecDeque::new();
    let mut needs: Vec<(usize, u64)> = Vec::new();
    let mut groups = Vec::with_capacity(zones.len() + 1);
    for (at, zone) in zones.iter().enumerate() {
        let expected = shares.expected[at];
        let surplus = zone.endpoints as f64 - expected;
        let own = if surplus > 0.0 { expected.trunc() as u64 } else { zone.endpoints };
        groups.push(SliceGroup::own(zones, at, own));
        if surplus > 0.0 {
            available.push_back((at, surplus.ceil() as u64));
        } else if surplus < 0.0 {
            needs.push((at, (-surplus).trunc() as u64));
        }
    }
    for (zone, need) in needs {
        fill(&mut groups[zone], need, &mut available);
    }
    if !available.is_empty() {
        let mut rest = SliceGroup::empty(Name::new("global"), zones.len());
        available.iter().for_each(|(zone, count)| rest.composition[*zone] = *count);
        rest.weights = vec![Some(1.0 / zones.len() as f64); zones.len()];
        groups.push(rest);
    }
    groups
}

/// Fills a group from the front of what is available, and says how many are still missing.
pub(super) fn fill(group: &mut SliceGroup, need: u64, available: &mut VecDeque<(usize, u64)>) -> u64 {
    let mut missing = need;
    while let Some((giver, left)) = available.front_mut().filter(|_| missing > 0) {
        let given = missing.min(*left);
        group.composition[*giver] = given;
        missing -= given;
        *left -= given;
        if *left == 0 {
            available.pop_front();
        }
    }
    missing
}

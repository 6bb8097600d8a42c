//! `spill`: a group per zone, and weights out of the function by which nodes spill.
//!
//! Slices carry the demand in 256ths; here it is exact, so that the score is that of the idea and not of its rounding.

use std::collections::BTreeMap;

use model::Name;
use plan::spill::exact_row;

use crate::input::Zone;
use crate::slice_group::SliceGroup;

/// The groups; `None` without endpoints.
pub(super) fn groups(zones: &[Zone]) -> Option<Vec<SliceGroup>> {
    let names: Vec<Name> = zones.iter().map(|z| z.name.clone()).collect();
    let nodes: BTreeMap<Name, u64> = names.iter().cloned().zip(zones.iter().map(|z| z.nodes)).collect();
    let endpoints = zones.iter().map(|z| usize::try_from(z.endpoints).unwrap_or(usize::MAX));
    let endpoints: BTreeMap<Name, usize> = names.iter().cloned().zip(endpoints).collect();
    let total: u64 = zones.iter().map(|z| z.endpoints).sum();
    let own = |at: usize| SliceGroup {
        weights: vec![None; zones.len()],
        ..SliceGroup::own(zones, at, zones[at].endpoints)
    };
    let mut groups: Vec<SliceGroup> = (0..zones.len()).map(own).collect();
    for (from, name) in names.iter().enumerate() {
        for (to, share) in exact_row(&nodes, &endpoints, name)? {
            let Ok(at) = names.binary_search(&to) else { continue };
            groups[at].weights[from] = Some(share * total as f64 / zones[at].endpoints as f64);
        }
    }
    groups.retain(|g| g.size() > 0);
    Some(groups)
}

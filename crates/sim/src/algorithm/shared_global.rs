//! `shared-global` and `shared-multizone`: what a zone has too much goes into one group for all or for the others.

use model::Name;

use crate::input::{Shares, Zone};
use crate::slice_group::SliceGroup;

/// Below this nothing is shared out.
const START: u64 = 100;

/// Who uses the common group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Every zone.
    All,
    /// Not the zones that gave to it and kept some.
    Needy,
}

/// The groups for a weight of the common group; `None` is balanced.
pub(super) fn groups(zones: &[Zone], weight: f64, reach: Reach) -> Option<Vec<SliceGroup>> {
    let shares = Shares::of(zones);
    if shares.total <= START {
        return None;
    }
    let mut common = SliceGroup {
        weights: vec![Some(weight); zones.len()],
        ..SliceGroup::empty(Name::new("global"), zones.len())
    };
    let mut groups = Vec::with_capacity(zones.len() + 1);
    for (at, zone) in zones.iter().enumerate() {
        let endpoints = zone.endpoints as f64;
        let surplus = (endpoints - shares.expected[at]).max(0.0);
        let given = (surplus / weight).min(endpoints).trunc() as u64;
        common.composition[at] = given;
        if reach == Reach::Needy && given > 0 && given < zone.endpoints {
            common.weights[at] = Some(0.0);
        }
        groups.push(SliceGroup::own(zones, at, zone.endpoints - given));
    }
    groups.push(common);
    Some(groups)
}

//! The endpoints of a Service by the zones whose nodes receive them, and the reserve that all nodes receive (subsetting).
//!
//! ```text
//! endpoints -> reserve: a few ready ones of each zone, unlabelled -\
//!           -> by zone, each with its label ------------------------> packing, group by group -> order_moves
//! stored slices -> homes: the group whose endpoints they keep ------/
//! ```
//!
//! An endpoint that moves to another slice is never missing in between: it is in a new slice, or in a slice that is written
//! before the one that loses it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use model::{Endpoint, Name, Slice, SliceContent};

use super::Packing;
use super::port_groups::DesiredGroup;
use crate::hints::topology::ZoneTopology;
use crate::subsetting::{MAX_RESERVE, RESERVE, SubsetDecision, SubsetFacts, SubsetOptions, decide};

/// What subsetting needs to know of a Service that may have slices by zone.
#[derive(Clone, Copy, Debug)]
pub struct SubsetInput<'a> {
    pub options: SubsetOptions,
    /// The zones of all nodes.
    pub zones: &'a [ZoneTopology],
    /// Since the labels of its slices were set or dropped.
    pub since_switch: Option<Duration>,
}

/// What happened to the labels of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubsetOutcome {
    /// Whether labels are set or dropped by the plan.
    pub switched: bool,
    /// When to plan again, because the last switch is too recent.
    pub retry_after: Option<Duration>,
}

impl SubsetOutcome {
    pub(super) fn add(&mut self, switched: bool, retry_after: Option<Duration>) {
        self.switched |= switched;
        self.retry_after = self.retry_after.into_iter().chain(retry_after).min();
    }
}

/// The groups of a Service with slices by zone.
pub(super) struct ZoneGroups {
    pub(super) groups: Vec<DesiredGroup>,
    /// By the name of a stored slice: the zone of its group, `None` for the reserve. Those that are not here are not kept.
    pub(super) homes: BTreeMap<Name, Option<Name>>,
    /// Whether the slices had no labels before.
    pub(super) is_switch: bool,
}

/// Decides whether a family has slices by zone. Pods with different ports, as in a rolling update of named ports, are
/// several groups, each of which would need its reserve: they are not split.
pub(super) fn decision(
    subset: &SubsetInput<'_>,
    desired: &[DesiredGroup],
    owned: &[&Slice],
) -> SubsetDecision {
    let [group] = desired else { return SubsetDecision::default() };
    let mut ready_by_zone: BTreeMap<&Name, usize> =
        subset.zones.iter().filter(|zone| !zone.name.is_empty()).map(|zone| (&zone.name, 0)).collect();
    for endpoint in group.endpoints.iter().filter(|endpoint| is_ready(endpoint)) {
        let Some(zone) = zone_of(endpoint) else { return SubsetDecision::default() };
        *ready_by_zone.entry(zone).or_default() += 1;
    }
    let (is_subset, since_switch) = (is_subset(owned), subset.since_switch);
    decide(subset.options, &SubsetFacts { is_subset, ready_by_zone, since_switch })
}

/// Whether stored slices are by zone.
pub(super) fn is_subset(owned: &[&Slice]) -> bool {
    owned.iter().any(|slice| slice.for_zone().is_some())
}

/// Splits a group by zone.
pub(super) fn split(group: DesiredGroup, owned: &[&Slice]) -> ZoneGroups {
    let is_switch = !is_subset(owned);
    let homes = homes(&group, owned, is_switch);
    let reserved = owned.iter().filter(|slice| homes.get(&slice.key.name) == Some(&None));
    let reserved = reserved.flat_map(|slice| &slice.content.endpoints).map(|e| e.addresses.first()).collect();
    let in_reserve = reserve(&group.endpoints, &reserved);
    let mut endpoints_by_zone: BTreeMap<Option<Name>, Vec<Endpoint>> = BTreeMap::new();
    for (endpoint, in_reserve) in group.endpoints.into_iter().zip(in_reserve) {
        let zone = zone_of(&endpoint).filter(|_| !in_reserve).cloned();
        endpoints_by_zone.entry(zone).or_default().push(endpoint);
    }
    let ports = &group.ports;
    let group = |(zone, endpoints)| DesiredGroup { ports: ports.clone(), zone, endpoints };
    ZoneGroups { groups: endpoints_by_zone.into_iter().map(group).collect(), homes, is_switch }
}

/// Which endpoints are in the reserve: those that are, and ready ones until each zone has enough. What is above the maximum
/// leaves it only in a plan in which none enters, so that all moves have one direction.
fn reserve(endpoints: &[Endpoint], reserved: &BTreeSet<IpAddr>) -> Vec<bool> {
    let mut in_reserve: Vec<bool> =
        endpoints.iter().map(|e| reserved.contains(&e.addresses.first())).collect();
    let mut ready_by_zone: BTreeMap<&Name, usize> = BTreeMap::new();
    for (endpoint, in_reserve) in endpoints.iter().zip(&mut in_reserve) {
        match zone_of(endpoint) {
            // Nodes of all zones may need it.
            None => *in_reserve = true,
            Some(zone) => {
                *ready_by_zone.entry(zone).or_default() += usize::from(*in_reserve && is_ready(endpoint));
            }
        }
    }
    let is_short = ready_by_zone.values().any(|ready| *ready < RESERVE);
    for (endpoint, in_reserve) in endpoints.iter().zip(&mut in_reserve).filter(|(e, _)| is_ready(e)) {
        let Some(ready) = zone_of(endpoint).and_then(|zone| ready_by_zone.get_mut(zone)) else { continue };
        if is_short && !*in_reserve && *ready < RESERVE {
            (*in_reserve, *ready) = (true, *ready + 1);
        } else if !is_short && *in_reserve && *ready > MAX_RESERVE {
            (*in_reserve, *ready) = (false, *ready - 1);
        }
    }
    in_reserve
}

/// The group that each stored slice belongs to. Without labels, it is that of the zone of most of its endpoints, and the
/// smallest slice with several zones is the reserve, as it was before labels were dropped.
fn homes(group: &DesiredGroup, owned: &[&Slice], is_switch: bool) -> BTreeMap<Name, Option<Name>> {
    let same_ports = |slice: &&&Slice| slice.content.ports == group.ports;
    let stored = owned.iter().filter(same_ports);
    if !is_switch {
        return stored.map(|slice| (slice.key.name.clone(), slice.for_zone().cloned())).collect();
    }
    let mut homes = BTreeMap::new();
    let mixed = stored.clone().filter(|slice| counts_by_zone(&slice.content).len() > 1);
    let fits = |slice: &&&Slice| {
        let content = &slice.content;
        content.endpoints.len() <= 2 * MAX_RESERVE * counts_by_zone(content).len()
    };
    let reserve = mixed.filter(fits).min_by_key(|slice| (slice.content.endpoints.len(), &slice.key.name));
    for slice in stored {
        let name = slice.key.name.clone();
        if reserve.is_some_and(|reserve| reserve.key == slice.key) {
            homes.insert(name, None);
            continue;
        }
        let counts = counts_by_zone(&slice.content);
        let most = counts.iter().max_by_key(|(_, count)| **count);
        if let Some((zone, count)) = most
            && count * 3 >= slice.content.endpoints.len() * 2
        {
            homes.insert(name, Some((*zone).clone()));
        }
    }
    homes
}

fn counts_by_zone(content: &SliceContent) -> BTreeMap<&Name, usize> {
    let mut counts = BTreeMap::new();
    for zone in content.endpoints.iter().filter_map(zone_of) {
        *counts.entry(zone).or_default() += 1;
    }
    counts
}

fn zone_of(endpoint: &Endpoint) -> Option<&Name> {
    endpoint.zone.as_ref().filter(|zone| !zone.is_empty())
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.is_ready_for_hints()
}

/// Whether each ready endpoint serves its own zone alone: none is lent to another zone, and no hint is missing.
pub(super) fn stays_in_zone(packing: &Packing<'_>) -> bool {
    let updates = packing.updates.iter().map(|(_, content)| content);
    let unchanged = packing.unchanged.iter().map(|slice| &slice.content);
    let contents = packing.creates.iter().chain(updates).chain(unchanged);
    let stays = |endpoint: &Endpoint| match endpoint.zone_hints() {
        [] => !endpoint.node_hints().is_empty() && endpoint.node_hints() == endpoint.node.as_slice(),
        zones => zones == endpoint.zone.as_slice(),
    };
    contents.flat_map(|content| &content.endpoints).filter(|e| is_ready(e)).all(stays)
}

/// Puts updates that gain an endpoint of another slice before those that lose one.
pub(super) fn order_moves(packing: &mut Packing<'_>, owned: &[&Slice]) {
    let stored_in: BTreeMap<IpAddr, &Name> = owned
        .iter()
        .flat_map(|slice| slice.content.endpoints.iter().map(|e| (e.addresses.first(), &slice.key.name)))
        .collect();
    let updates = packing.updates.iter().map(|(name, content)| (Some(name), content));
    let written = packing.creates.iter().map(|content| (None, content)).chain(updates);
    let mut losers: BTreeSet<Name> = BTreeSet::new();
    let mut gainers: BTreeSet<Name> = BTreeSet::new();
    for (name, content) in written {
        for endpoint in &content.endpoints {
            let Some(before) = stored_in.get(&endpoint.addresses.first()) else { continue };
            if Some(*before) != name {
                losers.insert((*before).clone());
                gainers.extend(name.cloned());
            }
        }
    }
    packing.updates.sort_by_key(|(name, _)| (losers.contains(name), !gainers.contains(name)));
}

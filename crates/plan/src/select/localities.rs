//! Selection by the `localities` of a MeshLoadBalancing, in place of the Service's traffic distribution: zones with weights,
//! in priorities.
//!
//! ```text
//! ready endpoints (none: terminating ones that serve) -> by zone: priority and weight
//!   -> within a zone by capacity -> priorities without an endpoint are left out
//! ```
//!
//! Require and the traffic policy Local are rules and not preferences, so they come first: there is no selection then.

use std::collections::BTreeMap;

use model::route::LocalityRule;
use model::{Family, Service, ServicePort, Slice, TrafficPolicy};

use super::candidates::{Candidate, consumed, is_reachable_or_loopback, list_candidates};
use super::slice_mechanism::{SliceMechanism, SliceMechanismKind};
use super::{NodeView, SelectedEndpoint, mixed};
use crate::capacity::WHOLE;
use crate::feature_gates::FeatureGates;
use crate::hints::TopologyScope;

/// An endpoint with its priority; 0 is the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrioritizedEndpoint {
    pub selected: SelectedEndpoint,
    pub priority: u8,
}

/// The endpoints of a port for an L7 proxy, sorted by address. `None`: the Service says that traffic stays in a scope, so the
/// rule does not count.
pub fn select_by_localities(
    service: &Service,
    port: &ServicePort,
    slices: &[Slice],
    family: Family,
    node: &NodeView<'_>,
    rule: &LocalityRule,
) -> Option<Vec<PrioritizedEndpoint>> {
    let slices = consumed(slices, family);
    if binding_rule(service, &slices, node.gates).is_some() {
        return None;
    }
    let mut candidates = Vec::new();
    list_candidates(&slices, port, is_reachable_or_loopback, &mut candidates);
    Some(with_drains(&candidates, node, rule))
}

/// Why the zones of a policy do not count for a Service; `None`: they do.
pub fn why_localities_are_idle(
    service: &Service,
    slices: &[Slice],
    gates: FeatureGates,
) -> Option<&'static str> {
    let mut families = [Family::V4, Family::V6].into_iter();
    families.find_map(|family| binding_rule(service, &consumed(slices, family), gates))
}

/// The rule of a Service that no policy takes traffic out of.
fn binding_rule(service: &Service, slices: &[&Slice], gates: FeatureGates) -> Option<&'static str> {
    if service.internal_policy == TrafficPolicy::Local {
        return Some("its internalTrafficPolicy is Local");
    }
    match SliceMechanism::of(service, slices, gates).kind {
        SliceMechanismKind::Require(scope) => Some(match scope.within {
            TopologyScope::Node => "it requires endpoints of the same node",
            TopologyScope::Zone => "it requires endpoints of the same zone",
            TopologyScope::Region => "it requires endpoints of the same region",
        }),
        _ => None,
    }
}

/// With a zone that is drained, a share of the traffic is that of the selection without it.
fn with_drains(
    candidates: &[Candidate<'_>],
    node: &NodeView<'_>,
    rule: &LocalityRule,
) -> Vec<PrioritizedEndpoint> {
    let selected = prioritized(candidates, node, rule);
    let drained = candidates.iter().filter(|c| c.ready).map(|c| c.drained).max().unwrap_or(0);
    if drained == 0 {
        return selected;
    }
    let others: Vec<Candidate<'_>> = candidates.iter().filter(|c| c.drained == 0).copied().collect();
    let moved = first_priority(&prioritized(&others, node, rule));
    if moved.is_empty() || !others.iter().any(|c| c.ready) {
        return selected;
    }
    let share = f64::from(drained) / f64::from(WHOLE);
    let first = mixed(&first_priority(&selected), &moved, share);
    let is_first = |one: &PrioritizedEndpoint| first.iter().any(|own| own.address == one.selected.address);
    // A zone that is drained wholly is left out.
    let later = selected.iter().filter(|one| one.priority > 0 && !is_first(one)).copied();
    let first = first.iter().map(|own| PrioritizedEndpoint { selected: *own, priority: 0 });
    without_gaps(first.chain(later).collect())
}

fn first_priority(all: &[PrioritizedEndpoint]) -> Vec<SelectedEndpoint> {
    all.iter().filter(|one| one.priority == 0).map(|one| one.selected).collect()
}

fn prioritized(
    candidates: &[Candidate<'_>],
    node: &NodeView<'_>,
    rule: &LocalityRule,
) -> Vec<PrioritizedEndpoint> {
    let placed = |candidate: &Candidate<'_>| {
        let place = rule.place(candidate.endpoint.zone.as_deref(), node.zone)?;
        Some((place, candidate.selected()))
    };
    let mut found: Vec<((usize, usize), SelectedEndpoint)> =
        candidates.iter().filter(|c| c.ready).filter_map(placed).collect();
    if found.is_empty() {
        found = candidates.iter().filter(|c| c.is_serving_terminating).filter_map(placed).collect();
    }
    let mut capacities: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for (place, selected) in &found {
        *capacities.entry(*place).or_default() += selected.weight;
    }
    let weighted = |(place, selected): ((usize, usize), SelectedEndpoint)| {
        let zone = rule.priorities.get(place.0)?.zones.get(place.1)?;
        let capacity = capacities.get(&place).copied().filter(|sum| *sum > 0.0)?;
        let weight = f64::from(zone.weight) * selected.weight / capacity;
        let priority = u8::try_from(place.0).ok()?;
        Some(PrioritizedEndpoint { selected: SelectedEndpoint { weight, ..selected }, priority })
    };
    without_gaps(found.into_iter().filter_map(weighted).collect())
}

/// Numbers the priorities from 0, and sorts by address.
fn without_gaps(mut all: Vec<PrioritizedEndpoint>) -> Vec<PrioritizedEndpoint> {
    let mut used: Vec<u8> = all.iter().map(|one| one.priority).collect();
    used.sort_unstable();
    used.dedup();
    for one in &mut all {
        let at = used.iter().position(|priority| *priority == one.priority).unwrap_or_default();
        one.priority = u8::try_from(at).unwrap_or(u8::MAX);
    }
    all.sort_by_key(|one| one.selected.address);
    all
}

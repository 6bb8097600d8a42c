//! Selection by hints, with the consumers' safeguards: PreferSameNode, PreferSameZone and Auto on a node.

use model::Service;

use super::candidates::Candidate;
use super::slice_mechanism::{SliceMechanism, SliceMechanismKind};
use super::terminating::or_terminating;
use super::{EndpointCounts, NodeView, SelectedEndpoints, SelectionMode};
use crate::feature_gates::FeatureGates;
use crate::hints::traffic_distribution::is_auto;
use crate::regions::Regions;

/// Ready endpoints by node hints, else by zone hints, else by region, else all of them.
pub(super) fn select_by_hints(
    service: &Service,
    node: &NodeView<'_>,
    mechanism: &SliceMechanism,
    candidates: &[Candidate<'_>],
    counts: EndpointCounts,
) -> SelectedEndpoints {
    let in_region = |c: &Candidate<'_>| {
        mechanism.kind == SliceMechanismKind::PreferRegion && is_in_region(c, node, &mechanism.regions)
    };
    let mut mode = hint_mode(service, node, counts);
    let by_region =
        mode == SelectionMode::All && counts.with_zone_hint == 0 && hints_count(service, node.gates);
    if by_region && candidates.iter().any(|c| c.ready && in_region(c)) {
        mode = SelectionMode::SameRegion;
    }
    let is_selected = |c: &&Candidate<'_>| {
        c.ready
            && match mode {
                SelectionMode::SameNode => c.has_hint_for_node(node),
                SelectionMode::SameZone => c.has_hint_for_zone(node),
                SelectionMode::SameRegion => in_region(c),
                _ => true,
            }
    };
    let ready = candidates.iter().filter(is_selected).map(Candidate::selected).collect();
    // Semantics C1: terminating endpoints count regardless of hints.
    or_terminating(mode, ready, candidates, counts, |_| true)
}

pub(super) fn is_in_region(
    candidate: &Candidate<'_>,
    node: &NodeView<'_>,
    regions: &Option<Regions>,
) -> bool {
    let (Some(regions), Some(own)) = (regions, node.zone) else { return false };
    candidate.endpoint.zone.as_deref().is_some_and(|zone| regions.are_together(zone, own))
}

/// Seed 001, safeguards 4 and 5: if a ready endpoint has no hint, or none has a hint for this node or zone, all are used.
fn hint_mode(service: &Service, node: &NodeView<'_>, counts: EndpointCounts) -> SelectionMode {
    if counts.ready == 0 || !hints_count(service, node.gates) {
        return SelectionMode::All;
    }
    if node.gates.prefer_same_traffic_distribution
        && counts.with_node_hint == counts.ready
        && counts.for_this_node > 0
    {
        return SelectionMode::SameNode;
    }
    // Node hints without one for this node leave zone hints in effect.
    if counts.with_zone_hint == counts.ready && counts.for_this_zone > 0 {
        return SelectionMode::SameZone;
    }
    SelectionMode::All
}

/// KEP-4444, "Changes within kube-proxy": hints always count; with the gate off, only under the annotation of Auto.
pub(super) fn hints_count(service: &Service, gates: FeatureGates) -> bool {
    gates.service_traffic_distribution || gates.topology_aware_hints && is_auto(service)
}

//! Selection under Require: endpoints outside the scope are never used (seed 003).

use super::candidates::Candidate;
use super::hints::is_in_region;
use super::slice_mechanism::{RequiredScope, SliceMechanism};
use super::terminating::or_terminating;
use super::{EndpointCounts, NodeView, SelectedEndpoints, SelectionMode};
use crate::hints::TopologyScope;

/// The endpoints in scope. An empty set is final, and the terminating fallback stays in scope.
pub(super) fn select_required(
    scope: RequiredScope,
    node: &NodeView<'_>,
    mechanism: &SliceMechanism,
    candidates: &[Candidate<'_>],
    counts: EndpointCounts,
) -> SelectedEndpoints {
    let on_node = |c: &Candidate<'_>| c.has_hint_for_node(node) || c.is_on(node);
    let near = |c: &Candidate<'_>| match c.endpoint.zone_hints() {
        // Without hints the endpoint's own zone counts: only ready endpoints have hints, Kubernetes' own controller removes
        // hints but not the annotation when it takes over slices, and a region may have more zones than hints can list. If
        // the regions are unknown, the zone counts, which is the narrower scope.
        [] => {
            let in_zone = node.zone.is_some() && c.endpoint.zone.as_deref() == node.zone;
            in_zone || scope.within == TopologyScope::Region && is_in_region(c, node, &mechanism.regions)
        }
        _ => c.has_hint_for_zone(node),
    };
    let node_first = scope.node_first && candidates.iter().any(|c| c.ready && on_node(c));
    let stays_on_node = node_first || scope.within == TopologyScope::Node;
    let in_scope: &dyn Fn(&Candidate<'_>) -> bool = if stays_on_node { &on_node } else { &near };
    let ready = candidates.iter().filter(|c| c.ready && in_scope(c)).map(Candidate::selected).collect();
    let selected = or_terminating(SelectionMode::Require, ready, candidates, counts, in_scope);
    SelectedEndpoints { bound: Some(scope.within), node_first, ..selected }
}

//! The terminating fallback: without a ready endpoint, traffic goes to endpoints that are terminating but still serving
//! (seed 002, "Traffic to terminating endpoints"; kube-proxy's ProxyTerminatingEndpoints).
//!
//! Upstream has it for the policy Local, and by semantics C1 also for Cluster, where hints are then ignored. It never leaves
//! the scope of the selection: this node under Local, the required scope under Require.

use super::candidates::Candidate;
use super::{EndpointCounts, SelectedEndpoint, SelectedEndpoints, SelectionMode};

/// The `ready` endpoints, selected by `mode`; if there are none, the serving-terminating endpoints in scope.
pub(super) fn or_terminating(
    mode: SelectionMode,
    ready: Vec<SelectedEndpoint>,
    candidates: &[Candidate<'_>],
    counts: EndpointCounts,
    in_scope: impl Fn(&Candidate<'_>) -> bool,
) -> SelectedEndpoints {
    if !ready.is_empty() {
        return SelectedEndpoints::new(mode, ready, counts);
    }
    let terminating = candidates.iter().filter(|c| c.is_serving_terminating && in_scope(c));
    let terminating: Vec<SelectedEndpoint> = terminating.map(Candidate::selected).collect();
    let mode = if terminating.is_empty() { mode } else { SelectionMode::Terminating };
    SelectedEndpoints::new(mode, terminating, counts)
}

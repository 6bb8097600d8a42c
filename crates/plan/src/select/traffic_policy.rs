//! internalTrafficPolicy and externalTrafficPolicy: which apply to a port, and the endpoints under Local.

use model::{Family, Service, ServicePort, ServiceType, TrafficPolicy};

use super::candidates::Candidate;
use super::terminating::or_terminating;
use super::{EndpointCounts, NodeView, SelectedEndpoints, SelectionMode};

/// The policies that traffic of a port may be subject to (semantics C).
pub(super) struct UsedPolicies {
    pub(super) cluster: bool,
    pub(super) local: bool,
}

impl UsedPolicies {
    pub(super) fn of(service: &Service, port: &ServicePort, family: Family) -> Self {
        let has_external = port.node_port.is_some()
            || service.load_balancer_vips(family).next().is_some()
            || service.external_ips(family).next().is_some();
        let internal_local = service.internal_policy == TrafficPolicy::Local;
        let external_local = external_policy(service) == TrafficPolicy::Local;
        Self {
            cluster: !internal_local || has_external,
            local: internal_local || external_local && has_external,
        }
    }
}

/// externalTrafficPolicy, where the API defines it; else Cluster.
pub fn external_policy(service: &Service) -> TrafficPolicy {
    let is_defined = matches!(service.kind, ServiceType::NodePort | ServiceType::LoadBalancer)
        || service.kind == ServiceType::ClusterIp && !service.external_ips.is_empty();
    if is_defined { service.external_policy } else { TrafficPolicy::Cluster }
}

/// The endpoints on this node, regardless of hints (semantics C2).
pub(super) fn select_local(
    node: &NodeView<'_>,
    candidates: &[Candidate<'_>],
    counts: EndpointCounts,
) -> SelectedEndpoints {
    let ready = candidates.iter().filter(|c| c.is_on(node) && c.ready).map(Candidate::selected).collect();
    or_terminating(SelectionMode::Local, ready, candidates, counts, |c| c.is_on(node))
}

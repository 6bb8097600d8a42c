//! Which endpoints a node sends the traffic of a Service port to (semantics C, seeds 000-003).
//!
//! ```text
//! slices of one family -> candidates: one per address and port
//!   -> policy Cluster: Require | Spill | node hints, else zone hints, else all ready ones
//!   -> policy Local:   ready ones on this node
//!   -> none ready in scope: the terminating ones that still serve (terminating)
//! ```
//!
//! Hints apply to the policy Cluster only: Local is stricter and has precedence (KEP-4444, "Intersection with
//! internal/externalTrafficPolicy").

mod candidates;
mod explain;
mod hints;
mod localities;
mod require;
mod slice_mechanism;
mod spill;
mod terminating;
mod traffic_policy;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use model::{Family, Service, ServicePort, ServiceType, Slice};

use crate::capacity::WHOLE;
use crate::feature_gates::FeatureGates;
use crate::hints::{Mechanism, TopologyScope};
pub(crate) use candidates::consumed;
use candidates::{Candidate, count, is_reachable, is_reachable_or_loopback, list_addresses, list_candidates};
use slice_mechanism::{SliceMechanism, SliceMechanismKind};
use traffic_policy::{UsedPolicies, select_local};

pub use explain::{SelectionReason, explain, explain_addresses};
pub use localities::{PrioritizedEndpoint, select_by_localities, why_localities_are_idle};
pub use traffic_policy::external_policy;

/// The node that selects.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    pub name: &'a str,
    pub zone: Option<&'a str>,
    pub gates: FeatureGates,
}

/// The selected endpoints of one port and family.
#[derive(Clone, Debug)]
pub struct PortSelection<'a> {
    pub port: &'a ServicePort,
    pub family: Family,
    /// Under the traffic policy Cluster; `None` if it applies to no traffic of this port.
    pub cluster: Option<SelectedEndpoints>,
    /// Under the traffic policy Local; `None` if it applies to no traffic of this port.
    pub local: Option<SelectedEndpoints>,
    /// Whether any node has an endpoint: an empty set then means drop, otherwise reject.
    pub has_any: bool,
}

/// The selected endpoints of one traffic policy, and how they were selected.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectedEndpoints {
    pub mode: SelectionMode,
    /// Sorted by address, without duplicates.
    pub endpoints: Vec<SelectedEndpoint>,
    pub counts: EndpointCounts,
    /// The scope of Require.
    pub bound: Option<TopologyScope>,
    /// Whether only this node's endpoints are used because the node is preferred within the scope.
    pub node_first: bool,
    /// A slice's mechanism that is ignored, because the Service does not request it any more.
    pub set_aside: Option<Mechanism>,
    /// The share of the traffic that avoids zones that are drained.
    pub drained: f64,
}

/// An endpoint that traffic may go to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelectedEndpoint {
    pub address: SocketAddr,
    /// Relative to the other endpoints. They differ under Spill, by capacity, while new ones warm up, and while a zone is
    /// drained.
    pub weight: f64,
}

/// How endpoints were selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectionMode {
    /// Every ready endpoint.
    All,
    /// By hints for this node's zone.
    SameZone,
    /// By hints for this node.
    SameNode,
    /// By region, if it has more zones than hints can list.
    SameRegion,
    /// On this node, by traffic policy.
    Local,
    /// None ready: terminating endpoints that still serve.
    Terminating,
    /// Within the scope of Require.
    Require,
    /// By weights, so that a zone sends away only what exceeds its capacity.
    Spill,
}

impl SelectionMode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::SameZone => "same-zone",
            Self::SameNode => "same-node",
            Self::SameRegion => "same-region",
            Self::Local => "local",
            Self::Terminating => "terminating",
            Self::Require => "require",
            Self::Spill => "spill",
        }
    }
}

/// The endpoint counts behind a selection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    /// All endpoints of the port.
    pub listed: usize,
    pub ready: usize,
    /// Terminating but serving, and not ready.
    pub terminating: usize,
    /// Ready, with a node hint.
    pub with_node_hint: usize,
    /// Ready, with a hint for this node.
    pub for_this_node: usize,
    /// Ready, with a zone hint.
    pub with_zone_hint: usize,
    /// Ready, with a hint for this node's zone.
    pub for_this_zone: usize,
}

/// Why a service proxy ignores a Service (semantics D1); `None` if it does not.
pub fn not_proxied(service: &Service) -> Option<&'static str> {
    if service.kind == ServiceType::ExternalName {
        Some("its type is ExternalName, which only DNS serves")
    } else if service.cluster_ips == model::ClusterIps::None {
        Some("it is headless, so clients get the endpoints' addresses from DNS and connect to them directly")
    } else if service.is_for_another_proxy() {
        Some("its label service.kubernetes.io/service-proxy-name assigns it to another service proxy")
    } else {
        None
    }
}

/// The selection of every port of a Service for one family on one node.
///
/// `slices` are all slices of the Service; those of the other family and those without the Service's label are ignored.
pub fn select<'a>(
    service: &'a Service,
    slices: &[Slice],
    family: Family,
    node: &NodeView<'_>,
) -> Vec<PortSelection<'a>> {
    select_usable(service, slices, family, node, is_reachable)
}

/// The same for an L7 proxy, which may have endpoints on loopback addresses.
pub fn select_for_proxy<'a>(
    service: &'a Service,
    slices: &[Slice],
    family: Family,
    node: &NodeView<'_>,
) -> Vec<PortSelection<'a>> {
    select_usable(service, slices, family, node, is_reachable_or_loopback)
}

/// The endpoints whose addresses DNS gives a node for a headless Service, which no proxy serves: those of the policy
/// Cluster, whatever their ports (which are 0).
pub fn select_addresses(
    service: &Service,
    slices: &[Slice],
    family: Family,
    node: &NodeView<'_>,
) -> SelectedEndpoints {
    let slices = consumed(slices, family);
    let mechanism = SliceMechanism::of(service, &slices, node.gates);
    let candidates = list_addresses(&slices);
    select_cluster(service, node, &mechanism, &candidates, count(&candidates, node))
}

fn select_usable<'a>(
    service: &'a Service,
    slices: &[Slice],
    family: Family,
    node: &NodeView<'_>,
    is_usable: fn(IpAddr) -> bool,
) -> Vec<PortSelection<'a>> {
    let slices = consumed(slices, family);
    let mechanism = SliceMechanism::of(service, &slices, node.gates);
    let mut candidates = Vec::new();
    let ports = service.ports.iter();
    ports
        .map(|port| {
            list_candidates(&slices, port, is_usable, &mut candidates);
            select_port(service, port, family, node, &mechanism, &candidates)
        })
        .collect()
}

/// Selects the endpoints of one port for many nodes, under the policy Cluster.
#[derive(Debug)]
pub struct ClusterPolicySelector<'s> {
    service: &'s Service,
    mechanism: SliceMechanism,
    candidates: Vec<Candidate<'s>>,
}

impl<'s> ClusterPolicySelector<'s> {
    pub fn new(
        service: &'s Service,
        port: &ServicePort,
        slices: &'s [Slice],
        family: Family,
        gates: FeatureGates,
    ) -> Self {
        let slices = consumed(slices, family);
        let mut candidates = Vec::new();
        list_candidates(&slices, port, is_reachable, &mut candidates);
        let mechanism = SliceMechanism::of(service, &slices, gates);
        Self { service, mechanism, candidates }
    }

    pub fn select(&self, node: &NodeView<'_>) -> SelectedEndpoints {
        select_cluster(self.service, node, &self.mechanism, &self.candidates, count(&self.candidates, node))
    }
}

fn select_port<'a>(
    service: &Service,
    port: &'a ServicePort,
    family: Family,
    node: &NodeView<'_>,
    mechanism: &SliceMechanism,
    candidates: &[Candidate<'_>],
) -> PortSelection<'a> {
    let used = UsedPolicies::of(service, port, family);
    let counts = count(candidates, node);
    let cluster = used.cluster.then(|| select_cluster(service, node, mechanism, candidates, counts));
    let local = used.local.then(|| select_local(node, candidates, counts));
    // Semantics C3. Under Local, endpoints on other nodes make the difference between drop and reject.
    let has_any = cluster.as_ref().is_some_and(|set| !set.endpoints.is_empty())
        || used.local && counts.ready + counts.terminating > 0;
    PortSelection { port, family, cluster, local, has_any }
}

/// With a zone that is drained, a share of the traffic is that of the selection without it.
fn select_cluster(
    service: &Service,
    node: &NodeView<'_>,
    mechanism: &SliceMechanism,
    candidates: &[Candidate<'_>],
    counts: EndpointCounts,
) -> SelectedEndpoints {
    let selected = select_undrained(service, node, mechanism, candidates, counts);
    let drained = candidates.iter().filter(|c| c.ready).map(|c| c.drained).max().unwrap_or(0);
    if drained == 0 || selected.mode == SelectionMode::Terminating {
        return selected;
    }
    let others: Vec<Candidate<'_>> = candidates.iter().filter(|c| c.drained == 0).copied().collect();
    let moved = select_undrained(service, node, mechanism, &others, count(&others, node));
    // Traffic that must stay, or that only this zone can take, is not moved.
    if moved.endpoints.is_empty() || moved.mode == SelectionMode::Terminating {
        return selected;
    }
    let share = f64::from(drained) / f64::from(WHOLE);
    let endpoints = mixed(&selected.endpoints, &moved.endpoints, share);
    SelectedEndpoints { endpoints, drained: share, ..selected }
}

/// Weights of two selections, of which the second has this share of the traffic; their mean is 1.
fn mixed(first: &[SelectedEndpoint], second: &[SelectedEndpoint], share: f64) -> Vec<SelectedEndpoint> {
    let mut weight_by_address: BTreeMap<SocketAddr, f64> = BTreeMap::new();
    for (endpoints, share) in [(first, 1.0 - share), (second, share)] {
        let sum: f64 = endpoints.iter().map(|endpoint| endpoint.weight).sum();
        for endpoint in endpoints.iter().filter(|_| share > 0.0 && sum > 0.0) {
            *weight_by_address.entry(endpoint.address).or_default() += endpoint.weight / sum * share;
        }
    }
    let count = weight_by_address.len() as f64;
    let endpoint =
        |(address, weight): (SocketAddr, f64)| SelectedEndpoint { address, weight: weight * count };
    weight_by_address.into_iter().map(endpoint).collect()
}

fn select_undrained(
    service: &Service,
    node: &NodeView<'_>,
    mechanism: &SliceMechanism,
    candidates: &[Candidate<'_>],
    counts: EndpointCounts,
) -> SelectedEndpoints {
    let spilled = match &mechanism.kind {
        SliceMechanismKind::Require(scope) => {
            return require::select_required(*scope, node, mechanism, candidates, counts);
        }
        SliceMechanismKind::Spill(demand) => spill::spill_weights(demand, node, candidates),
        SliceMechanismKind::Hints | SliceMechanismKind::PreferRegion => None,
    };
    let selected = match spilled {
        Some(endpoints) => SelectedEndpoints::new(SelectionMode::Spill, endpoints, counts),
        None => hints::select_by_hints(service, node, mechanism, candidates, counts),
    };
    SelectedEndpoints { set_aside: mechanism.set_aside, ..selected }
}

impl SelectedEndpoints {
    fn new(mode: SelectionMode, endpoints: Vec<SelectedEndpoint>, counts: EndpointCounts) -> Self {
        Self { mode, endpoints, counts, bound: None, node_first: false, set_aside: None, drained: 0.0 }
    }
}

impl PortSelection<'_> {
    /// Every endpoint of either policy, sorted by address, without duplicates.
    pub fn reachable(&self) -> Vec<SocketAddr> {
        let sets = [&self.cluster, &self.local].into_iter().flatten();
        let mut all: Vec<SocketAddr> = sets.flat_map(|s| s.endpoints.iter().map(|t| t.address)).collect();
        all.sort();
        all.dedup();
        all
    }
}

#[cfg(test)]
mod tests;

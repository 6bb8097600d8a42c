//! Which endpoints this node sends the traffic of a Service port to.
//!
//! The file reads from top to bottom as the rules do (semantics C, seeds 000-003):
//!
//! ```text
//! slices of one family -> candidates (one per address and port)
//!   -> Cluster set: ready; by node hints, else by zone hints, else all; nothing ready: the terminating ones
//!   -> Local set:   ready on this node; nothing ready here: the terminating ones of this node
//! ```
//!
//! Hints speak to the Cluster set only: a traffic policy of Local is stricter and goes first (KEP-4444,
//! "Intersection with internal/externalTrafficPolicy").

mod explain;
mod rule;
mod weigh;

use std::net::{IpAddr, SocketAddr};

use model::{Endpoint, Family, Service, ServicePort, ServiceType, Slice, TrafficPolicy, annotation};

use crate::gates::FeatureGates;
use crate::hints::{Mechanism, Scope};
use crate::regions::Regions;

pub use explain::{Reason, explain};
use rule::{Kind, Reach, Rule};

/// What a node knows of itself when it selects.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its zone.
    pub zone: Option<&'a str>,
    /// What is switched on.
    pub gates: FeatureGates,
}

/// The answer for one port of a Service and one family.
#[derive(Clone, Debug)]
pub struct PortSelection<'a> {
    /// The port.
    pub port: &'a ServicePort,
    /// The family.
    pub family: Family,
    /// For traffic under the policy Cluster; `None` if no traffic of this port ever is.
    pub cluster: Option<EndpointSet>,
    /// For traffic under the policy Local; `None` if no traffic of this port ever is.
    pub local: Option<EndpointSet>,
    /// Whether there is an endpoint anywhere: an empty set then means drop, otherwise reject.
    pub has_any: bool,
}

/// The endpoints of one traffic policy.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointSet {
    /// How they were chosen.
    pub mode: Mode,
    /// In the order of their addresses, each once.
    pub endpoints: Vec<Target>,
    /// The numbers behind the choice.
    pub counts: Counts,
    /// How far traffic may go at most, under Require.
    pub bound: Option<Scope>,
    /// Whether these are the endpoints of this node alone because it comes first, within a wider bound.
    pub node_first: bool,
    /// The mechanism of a slice that is not obeyed, because the Service does not ask for it any more.
    pub set_aside: Option<Mechanism>,
}

/// One endpoint that traffic may go to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its share relative to the others of the set; 1 for all unless the Service spills.
    pub weight: f64,
}

/// How a set was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Every ready endpoint.
    All,
    /// Those with a hint for this node's zone.
    SameZone,
    /// Those with a hint for this node.
    SameNode,
    /// Those of this node's region, where it has more zones than hints can name.
    SameRegion,
    /// Those that run on this node, by traffic policy.
    Local,
    /// None was ready: those that are going away but still serve.
    Terminating,
    /// Those that the Service requires to be near; there is no way out to others.
    Require,
    /// Weighted, so that a zone sends away only what its own endpoints cannot take.
    Spill,
}

impl Mode {
    /// The word in JSON.
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

/// What was counted on the way to a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Endpoints that the slices list for this port.
    pub listed: usize,
    /// Of these, ready.
    pub ready: usize,
    /// Of these, serving while they go away.
    pub terminating: usize,
    /// Ready ones with any node hint.
    pub with_node_hint: usize,
    /// Ready ones with a hint for this node.
    pub for_this_node: usize,
    /// Ready ones with any zone hint.
    pub with_zone_hint: usize,
    /// Ready ones with a hint for this node's zone.
    pub for_this_zone: usize,
}

/// Why a service proxy leaves a Service alone (semantics D1); `None` if it does not.
pub fn not_proxied(service: &Service) -> Option<&'static str> {
    if service.kind == ServiceType::ExternalName {
        Some("it is of type ExternalName: only DNS answers for it")
    } else if service.cluster_ips == model::ClusterIps::None {
        Some("it is headless: clients get the endpoints' addresses from DNS and connect to them directly")
    } else if service.is_for_another_proxy() {
        Some("its label service.kubernetes.io/service-proxy-name gives it to another service proxy")
    } else {
        None
    }
}

/// The selection of every port of a Service for one family on one node.
///
/// `slices` are all slices of the Service; those of the other family and those without the Service's label
/// are passed over.
pub fn select<'a>(
    service: &'a Service,
    slices: &[Slice],
    family: Family,
    node: &NodeView<'_>,
) -> Vec<PortSelection<'a>> {
    let slices = consumed(slices, family);
    let rule = Rule::of(service, &slices, node.gates);
    let mut candidates = Vec::new();
    let ports = service.ports.iter();
    ports
        .map(|port| {
            list_candidates(&slices, port, &mut candidates);
            select_port(service, port, family, node, &rule, &candidates)
        })
        .collect()
}

/// One port of a Service, for whoever asks about many nodes: what is the same for all of them is found out once.
#[derive(Debug)]
pub struct ClusterSets<'s> {
    service: &'s Service,
    rule: Rule,
    candidates: Vec<Candidate<'s>>,
}

impl<'s> ClusterSets<'s> {
    /// Of this port, with the gates at their defaults.
    pub fn new(service: &'s Service, port: &ServicePort, slices: &'s [Slice], family: Family) -> Self {
        let slices = consumed(slices, family);
        let mut candidates = Vec::new();
        list_candidates(&slices, port, &mut candidates);
        let rule = Rule::of(service, &slices, FeatureGates::default());
        Self { service, rule, candidates }
    }

    /// Where a node sends traffic under the policy Cluster.
    pub fn of(&self, node: &NodeView<'_>) -> EndpointSet {
        cluster_set(self.service, node, &self.rule, &self.candidates, count(&self.candidates, node))
    }
}

/// The slices that a service proxy goes by.
fn consumed(slices: &[Slice], family: Family) -> Vec<&Slice> {
    let mut slices: Vec<&Slice> = slices.iter().filter(|slice| is_consumed(slice, family)).collect();
    if slices.iter().any(|slice| slice.is_coexisting()) {
        // Ours and those of Kubernetes' own controller list the same endpoints: ours say where traffic goes.
        let kubernetes = |slice: &Slice| slice.managed_by().is_some_and(|w| w == annotation::CONTROLLER_NAME);
        slices.retain(|slice| !kubernetes(slice));
    }
    slices
}

fn is_consumed(slice: &Slice, family: Family) -> bool {
    slice.content.address_type == model::AddressType::Ip(family) && slice.labelled_service().is_some()
}

/// An endpoint that a slice lists for the port at hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'s> {
    /// The address as a number: all candidates are of one family, and numbers sort fast.
    order: u128,
    pub(crate) ip: IpAddr,
    pub(crate) port: u16,
    pub(crate) ready: bool,
    /// Marked as terminating.
    going: bool,
    /// Marked as terminating, and still serving.
    pub(crate) terminating: bool,
    pub(crate) endpoint: &'s Endpoint,
}

impl Candidate<'_> {
    pub(crate) fn is_on(&self, node: &NodeView<'_>) -> bool {
        self.endpoint.node.as_ref().is_some_and(|name| *name == node.name)
    }

    fn target(&self) -> Target {
        Target { address: SocketAddr::new(self.ip, self.port), weight: 1.0 }
    }
}

/// Every endpoint of the port, once: an address that two slices list counts as the one that stays, if only
/// one of them says that it is going away (pitfall 5: the address may have gone to a new pod).
fn list_candidates<'s>(slices: &[&'s Slice], port: &ServicePort, candidates: &mut Vec<Candidate<'s>>) {
    candidates.clear();
    for slice in slices {
        let same_port = |p: &&model::SlicePort| {
            p.protocol == port.protocol && p.name.as_ref().is_some_and(|name| *name == port.name)
        };
        // A port without a name or a number is none that a proxy can use (semantics C).
        let listed = slice.content.ports.iter().filter(same_port);
        for number in listed.filter_map(|p| p.port).filter(|number| *number != 0) {
            candidates.extend(slice.content.endpoints.iter().map(|e| candidate(e, number)));
        }
    }
    // Sorting is stable, so among equals the first slice's stays in front.
    candidates.sort_by_key(|c| (c.order, c.port, c.going));
    candidates.dedup_by_key(|c| (c.order, c.port));
}

fn candidate(endpoint: &Endpoint, port: u16) -> Candidate<'_> {
    let conditions = endpoint.conditions;
    let ip = endpoint.addresses.first();
    let order = match ip {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    let going = conditions.is_terminating();
    Candidate {
        order,
        ip,
        port,
        ready: conditions.is_ready(),
        going,
        terminating: going && conditions.is_serving(),
        endpoint,
    }
}

fn select_port<'a>(
    service: &Service,
    port: &'a ServicePort,
    family: Family,
    node: &NodeView<'_>,
    rule: &Rule,
    candidates: &[Candidate<'_>],
) -> PortSelection<'a> {
    let classes = classes_of(service, port, family);
    let counts = count(candidates, node);
    let cluster = classes.cluster.then(|| cluster_set(service, node, rule, candidates, counts));
    let local = classes.local.then(|| local_set(node, candidates, counts));
    // Semantics C3. Under Local, endpoints elsewhere make the difference between a drop and a reject.
    let has_any = cluster.as_ref().is_some_and(|set| !set.endpoints.is_empty())
        || classes.local && counts.ready + counts.terminating > 0;
    PortSelection { port, family, cluster, local, has_any }
}

/// Which traffic policies a port can meet (semantics C).
struct Classes {
    cluster: bool,
    local: bool,
}

fn classes_of(service: &Service, port: &ServicePort, family: Family) -> Classes {
    let reached_from_outside = port.node_port.is_some()
        || service.load_balancer_vips(family).next().is_some()
        || service.external_ips(family).next().is_some();
    let internal_local = service.internal_policy == TrafficPolicy::Local;
    let external_local = external_policy(service) == TrafficPolicy::Local;
    Classes {
        cluster: !internal_local || reached_from_outside,
        local: internal_local || external_local && reached_from_outside,
    }
}

/// The external policy counts only where the API gives it a meaning.
pub fn external_policy(service: &Service) -> TrafficPolicy {
    let meant = matches!(service.kind, ServiceType::NodePort | ServiceType::LoadBalancer)
        || service.kind == ServiceType::ClusterIp && !service.external_ips.is_empty();
    if meant { service.external_policy } else { TrafficPolicy::Cluster }
}

fn count(candidates: &[Candidate<'_>], node: &NodeView<'_>) -> Counts {
    let mut counts = Counts { listed: candidates.len(), ..Counts::default() };
    for candidate in candidates {
        counts.terminating += usize::from(candidate.terminating && !candidate.ready);
        if !candidate.ready {
            continue;
        }
        counts.ready += 1;
        let (nodes, zones) = (candidate.endpoint.node_hints(), candidate.endpoint.zone_hints());
        counts.with_node_hint += usize::from(!nodes.is_empty());
        counts.for_this_node += usize::from(nodes.iter().any(|n| *n == node.name));
        counts.with_zone_hint += usize::from(!zones.is_empty());
        counts.for_this_zone += usize::from(is_hinted_to_zone(candidate, node));
    }
    counts
}

fn is_hinted_to_zone(candidate: &Candidate<'_>, node: &NodeView<'_>) -> bool {
    node.zone.is_some_and(|zone| candidate.endpoint.zone_hints().iter().any(|z| *z == zone))
}

fn is_hinted_to_node(candidate: &Candidate<'_>, node: &NodeView<'_>) -> bool {
    candidate.endpoint.node_hints().iter().any(|n| *n == node.name)
}

/// The Cluster set.
fn cluster_set(
    service: &Service,
    node: &NodeView<'_>,
    rule: &Rule,
    candidates: &[Candidate<'_>],
    counts: Counts,
) -> EndpointSet {
    let set = match &rule.kind {
        Kind::Require(reach) => return required_set(*reach, node, rule, candidates, counts),
        Kind::Spill(demand) => weigh::spill(demand, node, candidates)
            .map(|endpoints| EndpointSet { endpoints, ..EndpointSet::empty(Mode::Spill, counts) }),
        Kind::Hints | Kind::PreferRegion => None,
    };
    let set = set.unwrap_or_else(|| hinted_set(service, node, rule, candidates, counts));
    EndpointSet { set_aside: rule.set_aside, ..set }
}

fn hinted_set(
    service: &Service,
    node: &NodeView<'_>,
    rule: &Rule,
    candidates: &[Candidate<'_>],
    counts: Counts,
) -> EndpointSet {
    let in_region =
        |c: &Candidate<'_>| rule.kind == Kind::PreferRegion && is_in_region(c, node, &rule.regions);
    let mut mode = hint_mode(service, node, counts);
    let by_region = mode == Mode::All && counts.with_zone_hint == 0 && hints_count(service, node.gates);
    if by_region && candidates.iter().any(|c| c.ready && in_region(c)) {
        mode = Mode::SameRegion;
    }
    let wanted = |c: &&Candidate<'_>| {
        c.ready
            && match mode {
                Mode::SameNode => is_hinted_to_node(c, node),
                Mode::SameZone => is_hinted_to_zone(c, node),
                Mode::SameRegion => in_region(c),
                _ => true,
            }
    };
    let endpoints: Vec<Target> = candidates.iter().filter(wanted).map(Candidate::target).collect();
    if endpoints.is_empty() && counts.terminating > 0 {
        // Semantics C1: hints are not asked here. Seed 002 has this fallback for Local only.
        return terminating_set(candidates, counts, |_| true);
    }
    EndpointSet { endpoints, ..EndpointSet::empty(mode, counts) }
}

fn is_in_region(candidate: &Candidate<'_>, node: &NodeView<'_>, regions: &Option<Regions>) -> bool {
    let (Some(regions), Some(own)) = (regions, node.zone) else { return false };
    candidate.endpoint.zone.as_deref().is_some_and(|zone| regions.are_together(zone, own))
}

/// Seed 001, safeguards 4 and 5: a hint missing on one ready endpoint, or no hint for here, and all count.
fn hint_mode(service: &Service, node: &NodeView<'_>, counts: Counts) -> Mode {
    if counts.ready == 0 || !hints_count(service, node.gates) {
        return Mode::All;
    }
    if node.gates.prefer_same_traffic_distribution
        && counts.with_node_hint == counts.ready
        && counts.for_this_node > 0
    {
        return Mode::SameNode;
    }
    // Node hints that do not name this node leave the zone hints in force.
    if counts.with_zone_hint == counts.ready && counts.for_this_zone > 0 {
        return Mode::SameZone;
    }
    Mode::All
}

/// KEP-4444, "Changes within kube-proxy": hints always count; with the gate off, as before it, they count only
/// under the annotation.
fn hints_count(service: &Service, gates: FeatureGates) -> bool {
    gates.service_traffic_distribution || gates.topology_aware_hints && crate::hints::choice::is_auto(service)
}

/// Seed 003, Require: reachable only from where there are endpoints. Terminating ones stay within the same
/// bounds, and an empty set is final.
fn required_set(
    reach: Reach,
    node: &NodeView<'_>,
    rule: &Rule,
    candidates: &[Candidate<'_>],
    counts: Counts,
) -> EndpointSet {
    let on_node = |c: &Candidate<'_>| is_hinted_to_node(c, node) || c.is_on(node);
    let near = |c: &Candidate<'_>| match c.endpoint.zone_hints() {
        // One without a hint is judged by where it runs: hints are put on ready endpoints only, Kubernetes' own
        // controller takes hints away and leaves the annotation when it takes slices over, and a region may have more
        // zones than hints can name. What cannot be told apart by region is by zone, which is the narrower bound.
        [] => {
            let in_zone = node.zone.is_some() && c.endpoint.zone.as_deref() == node.zone;
            in_zone || reach.within == Scope::Region && is_in_region(c, node, &rule.regions)
        }
        _ => is_hinted_to_zone(c, node),
    };
    let node_first = reach.node_first && candidates.iter().any(|c| c.ready && on_node(c));
    let stays_on_node = node_first || reach.within == Scope::Node;
    let near: &dyn Fn(&Candidate<'_>) -> bool = if stays_on_node { &on_node } else { &near };
    let ready = candidates.iter().filter(|c| c.ready && near(c));
    let endpoints: Vec<Target> = ready.map(Candidate::target).collect();
    let set = if endpoints.is_empty() && candidates.iter().any(|c| c.terminating && near(c)) {
        terminating_set(candidates, counts, near)
    } else {
        EndpointSet { endpoints, ..EndpointSet::empty(Mode::Require, counts) }
    };
    EndpointSet { bound: Some(reach.within), node_first, ..set }
}

/// The Local set (semantics C2): what runs on this node; hints are never asked.
fn local_set(node: &NodeView<'_>, candidates: &[Candidate<'_>], counts: Counts) -> EndpointSet {
    let ready = candidates.iter().filter(|c| c.is_on(node) && c.ready);
    let endpoints: Vec<Target> = ready.map(Candidate::target).collect();
    if endpoints.is_empty() && candidates.iter().any(|c| c.is_on(node) && c.terminating) {
        // Seed 002, "Traffic to terminating endpoints".
        return terminating_set(candidates, counts, |c| c.is_on(node));
    }
    EndpointSet { endpoints, ..EndpointSet::empty(Mode::Local, counts) }
}

fn terminating_set(
    candidates: &[Candidate<'_>],
    counts: Counts,
    within: impl Fn(&Candidate<'_>) -> bool,
) -> EndpointSet {
    let going = candidates.iter().filter(|c| c.terminating && within(c));
    EndpointSet {
        endpoints: going.map(Candidate::target).collect(),
        ..EndpointSet::empty(Mode::Terminating, counts)
    }
}

impl EndpointSet {
    fn empty(mode: Mode, counts: Counts) -> Self {
        Self { mode, endpoints: Vec::new(), counts, bound: None, node_first: false, set_aside: None }
    }
}

impl PortSelection<'_> {
    /// Every endpoint of either set, in the order of their addresses, each once.
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

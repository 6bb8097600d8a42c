//! The endpoints that slices list for a port, before any of them is selected.

use std::net::{IpAddr, SocketAddr};

use model::address::unreachable_range;
use model::{AddressType, Endpoint, Family, ServicePort, Slice, SlicePort, annotation};

use super::{EndpointCounts, NodeView, SelectedEndpoint};
use crate::capacity::WHOLE;

/// An endpoint of the port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'s> {
    /// The address as a number, which sorts fast; all candidates are of one family.
    order: u128,
    ip: IpAddr,
    port: u16,
    pub(super) ready: bool,
    is_terminating: bool,
    pub(super) is_serving_terminating: bool,
    /// Compared with other endpoints, in thousandths.
    pub(super) capacity: u32,
    /// What is moved away from its zone, in thousandths.
    pub(super) drained: u32,
    pub(super) endpoint: &'s Endpoint,
}

impl<'s> Candidate<'s> {
    fn new(slice: &Slice, endpoint: &'s Endpoint, port: u16) -> Self {
        let conditions = endpoint.conditions;
        let ip = endpoint.addresses.first();
        let order = match ip {
            IpAddr::V4(v4) => v4.to_bits().into(),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        let is_terminating = conditions.is_terminating();
        Self {
            order,
            ip,
            port,
            ready: conditions.is_ready(),
            is_terminating,
            is_serving_terminating: is_terminating && conditions.is_serving(),
            capacity: slice.capacity(ip),
            drained: slice.drained(endpoint.zone.as_ref()),
            endpoint,
        }
    }

    pub(super) fn is_on(&self, node: &NodeView<'_>) -> bool {
        self.endpoint.node.as_ref().is_some_and(|name| *name == node.name)
    }

    pub(super) fn has_hint_for_zone(&self, node: &NodeView<'_>) -> bool {
        node.zone.is_some_and(|zone| self.endpoint.zone_hints().iter().any(|z| *z == zone))
    }

    pub(super) fn has_hint_for_node(&self, node: &NodeView<'_>) -> bool {
        self.endpoint.node_hints().iter().any(|n| *n == node.name)
    }

    pub(super) fn selected(&self) -> SelectedEndpoint {
        let weight = f64::from(self.capacity) / f64::from(WHOLE);
        SelectedEndpoint { address: SocketAddr::new(self.ip, self.port), weight }
    }
}

/// The slices that a service proxy uses.
pub(crate) fn consumed(slices: &[Slice], family: Family) -> Vec<&Slice> {
    let is_consumed = |slice: &&Slice| {
        slice.content.address_type == AddressType::Ip(family) && slice.labelled_service().is_some()
    };
    let mut slices: Vec<&Slice> = slices.iter().filter(is_consumed).collect();
    if slices.iter().any(|slice| slice.is_coexisting()) {
        // Ours and those of Kubernetes' own controller list the same endpoints: ours have our annotations.
        let kubernetes = |slice: &Slice| slice.managed_by().is_some_and(|w| w == annotation::CONTROLLER_NAME);
        slices.retain(|slice| !kubernetes(slice));
    }
    slices
}

/// Addresses that the rules of a node may lead to: others would be those of its own daemons, or of another machine on its
/// link.
pub(super) fn is_reachable(address: IpAddr) -> bool {
    unreachable_range(address).is_none()
}

/// Addresses that a proxy may connect to: also those of processes beside it. An API refuses them, files may have them.
pub(super) fn is_reachable_or_loopback(address: IpAddr) -> bool {
    address.is_loopback() || is_reachable(address)
}

/// Every endpoint of the port, once. Of an address in two slices the one that is not terminating counts (pitfall 5: the
/// address may belong to a new pod).
pub(super) fn list_candidates<'s>(
    slices: &[&'s Slice],
    port: &ServicePort,
    is_usable: fn(IpAddr) -> bool,
    candidates: &mut Vec<Candidate<'s>>,
) {
    candidates.clear();
    for slice in slices {
        let same_port = |p: &&SlicePort| {
            p.protocol == port.protocol && p.name.as_ref().is_some_and(|name| *name == port.name)
        };
        // A proxy cannot use a port without a name or a number (semantics C).
        let listed = slice.content.ports.iter().filter(same_port);
        for number in listed.filter_map(|p| p.port).filter(|number| *number != 0) {
            let usable = |e: &&Endpoint| is_usable(e.addresses.first());
            let endpoints = slice.content.endpoints.iter().filter(usable);
            candidates.extend(endpoints.map(|e| Candidate::new(slice, e, number)));
        }
    }
    dedup(candidates);
}

/// Every endpoint, once, whatever its ports.
pub(super) fn list_addresses<'s>(slices: &[&'s Slice]) -> Vec<Candidate<'s>> {
    let mut candidates = Vec::new();
    for slice in slices {
        let usable = |e: &&Endpoint| is_reachable(e.addresses.first());
        let endpoints = slice.content.endpoints.iter().filter(usable);
        candidates.extend(endpoints.map(|e| Candidate::new(slice, e, 0)));
    }
    dedup(&mut candidates);
    candidates
}

fn dedup(candidates: &mut Vec<Candidate<'_>>) {
    // Sorting is stable: of equals the first slice's wins.
    candidates.sort_by_key(|c| (c.order, c.port, c.is_terminating));
    candidates.dedup_by_key(|c| (c.order, c.port));
}

pub(super) fn count(candidates: &[Candidate<'_>], node: &NodeView<'_>) -> EndpointCounts {
    let mut counts = EndpointCounts { listed: candidates.len(), ..EndpointCounts::default() };
    for candidate in candidates {
        if !candidate.ready {
            counts.terminating += usize::from(candidate.is_serving_terminating);
            continue;
        }
        counts.ready += 1;
        counts.with_node_hint += usize::from(!candidate.endpoint.node_hints().is_empty());
        counts.for_this_node += usize::from(candidate.has_hint_for_node(node));
        counts.with_zone_hint += usize::from(!candidate.endpoint.zone_hints().is_empty());
        counts.for_this_zone += usize::from(candidate.has_hint_for_zone(node));
    }
    counts
}

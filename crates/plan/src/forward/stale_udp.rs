//! Stale UDP flows: the facts by which a data plane finds them after a change.
//!
//! They follow from the frontends that the node serves rather than from the Service: flows to addresses that another
//! Service owns, or that this node does not serve, are left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use model::forward::{FrontendHost, UdpService};
use model::{Frontend, Protocol, Slice};

use super::forwarder::ServiceDelta;

/// The UDP ports of a Service.
pub fn services(frontends: &[Frontend], slices: &[Slice]) -> Vec<UdpService> {
    services_in_view(frontends, slices, &[])
}

/// The UDP ports of a Service. Of `departed` slices, which left the node's view a moment ago, the endpoints that no other
/// slice lists still count as serving: a label may have changed, and not an endpoint.
pub fn services_in_view(frontends: &[Frontend], slices: &[Slice], departed: &[Slice]) -> Vec<UdpService> {
    let mut services: BTreeMap<(&str, u16), UdpService> = BTreeMap::new();
    for frontend in frontends.iter().filter(|frontend| is_udp(frontend)) {
        let port = &frontend.port;
        let service = services.entry((port.name.as_str(), port.number)).or_insert_with(|| UdpService {
            serving: still_serving(slices, departed, &port.name),
            ..UdpService::default()
        });
        match frontend.address.host {
            FrontendHost::Address(ip) => {
                service.frontends.insert(SocketAddr::new(ip, frontend.address.port));
            }
            FrontendHost::Node(_) => service.node_port = Some(frontend.address.port),
        }
    }
    services.into_values().collect()
}

/// The UDP frontends that a change removed: all their flows are stale.
pub fn lost(delta: &ServiceDelta) -> Option<UdpService> {
    let kept: BTreeSet<_> = delta.new.iter().map(|frontend| frontend.address).collect();
    let lost = delta.old.iter().filter(|frontend| is_udp(frontend) && !kept.contains(&frontend.address));
    let address = |frontend: &Frontend| match frontend.address.host {
        FrontendHost::Address(ip) => Some(SocketAddr::new(ip, frontend.address.port)),
        FrontendHost::Node(_) => None,
    };
    let frontends: BTreeSet<SocketAddr> = lost.filter_map(address).collect();
    (!frontends.is_empty()).then(|| UdpService { frontends, ..UdpService::default() })
}

fn is_udp(frontend: &Frontend) -> bool {
    frontend.address.protocol == Protocol::Udp
}

fn still_serving(slices: &[Slice], departed: &[Slice], port: &str) -> BTreeSet<SocketAddr> {
    let mut found = serving(slices, port);
    if !departed.is_empty() {
        let listed: BTreeSet<IpAddr> =
            slices.iter().flat_map(|slice| &slice.content.endpoints).map(|e| e.addresses.first()).collect();
        found.extend(serving(departed, port).into_iter().filter(|address| !listed.contains(&address.ip())));
    }
    found
}

/// Semantics D7: all serving endpoints, regardless of policies and topology.
fn serving(slices: &[Slice], port: &str) -> BTreeSet<SocketAddr> {
    let mut found = BTreeSet::new();
    for slice in slices {
        let numbers = slice
            .content
            .ports
            .iter()
            .filter(|p| p.protocol == Protocol::Udp && p.name.as_ref().is_some_and(|name| *name == port));
        for number in numbers.filter_map(|p| p.port) {
            let endpoints = slice.content.endpoints.iter().filter(|e| e.conditions.is_serving());
            found.extend(endpoints.map(|e| SocketAddr::new(e.addresses.first(), number)));
        }
    }
    found
}

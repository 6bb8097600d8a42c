//! Which UDP flows of a Service are stale after a change: what the data plane has to know to tell.
//!
//! Out of the frontends that the node serves, not out of the Service: flows to an address that another Service
//! holds, or that this node does not serve, are left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use model::forward::{At, UdpService};
use model::{Frontend, Protocol, Slice};

use super::forwarder::Delta;

/// The UDP ports of a Service.
pub fn services(frontends: &[Frontend], slices: &[Slice]) -> Vec<UdpService> {
    let mut services: BTreeMap<(&str, u16), UdpService> = BTreeMap::new();
    for frontend in frontends.iter().filter(|frontend| is_udp(frontend)) {
        let port = &frontend.port;
        let service = services
            .entry((port.name.as_str(), port.number))
            .or_insert_with(|| UdpService { serving: serving(slices, &port.name), ..UdpService::default() });
        match frontend.place.at {
            At::Address(ip) => drop(service.frontends.insert(SocketAddr::new(ip, frontend.place.port))),
            At::Node(_) => service.node_port = Some(frontend.place.port),
        }
    }
    services.into_values().collect()
}

/// The UDP frontends that a change took away: no endpoint answers there any more.
pub fn lost(delta: &Delta) -> Option<UdpService> {
    let kept: BTreeSet<_> = delta.new.iter().map(|frontend| frontend.place).collect();
    let lost = delta.old.iter().filter(|frontend| is_udp(frontend) && !kept.contains(&frontend.place));
    let address = |frontend: &Frontend| match frontend.place.at {
        At::Address(ip) => Some(SocketAddr::new(ip, frontend.place.port)),
        At::Node(_) => None,
    };
    let frontends: BTreeSet<SocketAddr> = lost.filter_map(address).collect();
    (!frontends.is_empty()).then(|| UdpService { frontends, ..UdpService::default() })
}

fn is_udp(frontend: &Frontend) -> bool {
    frontend.place.protocol == Protocol::Udp
}

/// Semantics D7: serving is what counts, policies and topology do not.
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

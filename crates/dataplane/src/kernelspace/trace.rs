//! Traces packets through the load balancers that HNS holds, as its documentation describes them. No packet went through one.

use std::net::{IpAddr, SocketAddr};

use model::Family;
use model::forward::FirstPacket;

use super::hcn::HcnState;
use super::object::{BY_CLIENT, LoadBalancer, PortMapping};
use crate::backend::{PacketTrace, PacketTraceStep, TracedVerdict};
use crate::nftables::render::protocol_number;

pub(super) fn trace(state: &HcnState, packet: &FirstPacket, addresses: &[IpAddr]) -> PacketTrace {
    let mut trace = PacketTrace {
        verdict: TracedVerdict::Untouched,
        endpoints: Vec::new(),
        masquerade: false,
        affinity: None,
        steps: Vec::new(),
    };
    let Some((held, mapping)) = met(state, packet, addresses) else { return trace };
    let of_family = |address: &IpAddr| Family::of(*address) == held.family();
    let found = held.host_compute_endpoints.iter().filter_map(|id| state.endpoints.get(id));
    let found = found.filter_map(|endpoint| endpoint.addresses().find(of_family));
    let mut endpoints: Vec<SocketAddr> =
        found.map(|address| SocketAddr::new(address, mapping.internal_port)).collect();
    endpoints.sort();
    let share = 1.0 / endpoints.len() as f64;
    trace.endpoints = endpoints.into_iter().map(|address| (address, share)).collect();
    trace.verdict = TracedVerdict::Dnat;
    trace.masquerade = !held.is_dsr();
    trace.steps.push(PacketTraceStep {
        rule: format!("hns load balancer {}", held.id),
        detail: detail(held, &mapping),
    });
    trace
}

/// The load balancer of an address comes before that of a node port.
fn met<'s>(
    state: &'s HcnState,
    packet: &FirstPacket,
    addresses: &[IpAddr],
) -> Option<(&'s LoadBalancer, PortMapping)> {
    let (address, port) = (packet.dst.ip(), packet.dst.port());
    let protocol = u32::from(protocol_number(packet.protocol));
    let is_mapped = |mapping: &&PortMapping| mapping.protocol == protocol && mapping.external_port == port;
    let of_port = || {
        let held = state.load_balancers.values().filter(|held| held.family() == Family::of(address));
        held.filter_map(|held| Some((held, *held.port_mappings.iter().find(is_mapped)?)))
    };
    let by_address = of_port().find(|(held, _)| held.frontend_vips.contains(&address));
    let is_own = addresses.contains(&address) && !address.is_loopback();
    by_address.or_else(|| of_port().find(|(held, _)| is_own && held.frontend_vips.is_empty()))
}

fn detail(held: &LoadBalancer, mapping: &PortMapping) -> String {
    let count = held.host_compute_endpoints.len();
    let mut text = format!("port {} of one of {count} endpoints", mapping.internal_port);
    if mapping.distribution_type == BY_CLIENT {
        text += ", by client address";
    }
    text += if held.is_dsr() { ", DSR" } else { ", source replaced" };
    if let Some(source) = held.source_vip {
        text += &format!(", source VIP {source}");
    }
    text
}

//! Traces packets through the rules and then through the virtual servers. Which real server a scheduler chooses depends
//! on connections that a trace does not know: each gets its share by weight.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use model::forward::FirstPacket;

use super::kernel::HeldServer;
use super::message::VirtualServerKey;
use crate::backend::{BackendError, PacketTrace, PacketTraceStep, TracedVerdict};
use crate::nftables::ir::Ruleset;
use crate::nftables::render::protocol_number;
use crate::nftables::trace::{NodeAddresses, TracedPacket, evaluate, steps};

pub(super) fn trace(
    rules: &Ruleset,
    servers: &BTreeMap<VirtualServerKey, HeldServer>,
    packet: &FirstPacket,
    addresses: &[IpAddr],
) -> Result<PacketTrace, BackendError> {
    let mut traced = TracedPacket::new(protocol_number(packet.protocol), packet.src, packet.dst);
    traced.iif = packet.iif.as_ref().map(|name| name.as_str().into());
    let node = NodeAddresses { addresses: addresses.to_vec() };
    let evaluation =
        evaluate(rules, &traced, &node).map_err(|error| BackendError::failed(error.to_string()))?;
    let steps = steps(&evaluation);
    let mark = evaluation.paths.first().map_or(0, |path| path.mark);
    let mut trace = PacketTrace {
        verdict: evaluation.verdict,
        endpoints: evaluation.endpoints,
        masquerade: evaluation.masquerade,
        affinity: evaluation.affinity,
        steps,
    };
    if trace.verdict == TracedVerdict::Accept {
        let address = packet.dst.ip();
        let key = VirtualServerKey { address, protocol: packet.protocol, port: packet.dst.port() };
        // The mark of a packet to the node itself is left for postrouting, which it passes after IPVS.
        trace.masquerade |= mark != 0;
        meet(&mut trace, &key, servers.get(&key));
    }
    Ok(trace)
}

fn meet(trace: &mut PacketTrace, key: &VirtualServerKey, held: Option<&HeldServer>) {
    let Some(held) = held else {
        trace.verdict = TracedVerdict::Untouched;
        trace.masquerade = false;
        trace.steps.push(PacketTraceStep {
            rule: format!("ipvs {key}"),
            detail: "no such virtual server: the packet is delivered to the node itself".to_owned(),
        });
        return;
    };
    let weighted: Vec<(SocketAddr, f64)> =
        held.reals.values().map(|real| (real.server.address, f64::from(real.server.weight))).collect();
    let total: f64 = weighted.iter().map(|(_, weight)| weight).sum();
    let chosen = weighted.into_iter().filter(|(_, weight)| *weight > 0.0);
    trace.endpoints = chosen.map(|(address, weight)| (address, weight / total)).collect();
    let count = trace.endpoints.len();
    trace.verdict = if count == 0 { TracedVerdict::Reject } else { TracedVerdict::Dnat };
    trace.affinity = held.server.persistence.map(|seconds| u64::from(seconds) * 1000);
    let detail = match count {
        0 => "virtual server without real servers: refused".to_owned(),
        _ => format!("virtual server: one of {count} real servers"),
    };
    trace.steps.push(PacketTraceStep { rule: format!("ipvs {key} {}", held.server.scheduler), detail });
}

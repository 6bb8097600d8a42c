//! `zoneward trace packet`: traces a packet through the rules of a node.
//!
//! The rules are loaded into the fake kernel, or read from the kernel of this node, and traced there. The reasons come
//! from the forwarding table; a difference between the two is reported.

pub(crate) mod parse;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use dataplane::backend::{NodeBackend, PacketTrace, TracedVerdict};
use dataplane::iptables::IptablesBackend;
use dataplane::iptables::commands::{IptablesFlavour, IptablesPrograms};
use dataplane::iptables::fake::FakeIptables;
use dataplane::iptables::render::KernelFeatures;
use dataplane::ipvs::fake::FakeIpvs;
use dataplane::ipvs::{IpvsBackend, IpvsKernel, IpvsScheduler, IpvsSettings, IpvsSocket};
use dataplane::nftables::NftablesBackend;
use dataplane::nftables::fake::FakeKernel;
use model::forward::{self, ForwardingDecision, ForwardingMode, PacketVerdict, TrafficClass};
use plan::forward::explain_localhost_node_port;
use plan::select;
use serde_json::{Value, json};

use crate::cli::{Format, TracePacket};
use cluster::input::LoadedObjects;
use node::{NodeChoice, NodeWorld};
use output::{notices_text, print_text, print_value};

/// The share of one slot in the smallest table of unequal shares.
const ONE_SLOT: f64 = 1.0 / 256.0;
/// The share of weight 1 of a virtual server with unequal weights.
const ONE_WEIGHT: f64 = 1.0 / 32.0;

pub(crate) fn run(args: &TracePacket) -> Result<bool> {
    let packets = packets(args)?;
    let choice = NodeChoice::new(&args.node, args.live)?;
    let mut loaded = LoadedObjects::read(&choice.input(&args.input))?;
    choice.apply_view(&mut loaded);
    let mut node = NodeWorld::new(&choice, &loaded)?;
    loaded.notices.append(&mut node.notices);
    let scheduler = choice.ipvs_scheduler().parse().context("ipvs.scheduler")?;
    let mut backend = if args.live { live(&node)? } else { offline(&node, scheduler)? };
    let traces = trace(&packets, &mut *backend, &node, &loaded)?;
    match args.output.format {
        Format::Table => {
            let text: Vec<String> = traces.iter().map(|t| t.text(&choice.name)).collect();
            let source = choice.source().unwrap_or_default();
            print_text(&(source + &text.join("\n") + &notices_text(&loaded.notices)))?;
        }
        format => {
            eprint!("{}", notices_text(&loaded.notices).trim_start());
            let mut rows: Vec<Value> = traces.iter().map(Trace::value).collect();
            let one = args.packets.is_none() && rows.len() == 1;
            let value = if one { rows.remove(0) } else { Value::Array(rows) };
            print_value(&value, format)?;
        }
    }
    Ok(!loaded.unreadable && traces.iter().all(|t| t.differs.is_none()))
}

fn packets(args: &TracePacket) -> Result<Vec<forward::FirstPacket>> {
    if let Some(path) = &args.packets {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        return parse::list(&text).with_context(|| path.display().to_string());
    }
    Ok(args.packet.iter().cloned().collect())
}

/// Fake kernels with the rules of these objects.
pub(crate) fn offline(node: &NodeWorld, scheduler: IpvsScheduler) -> Result<Box<dyn NodeBackend>> {
    let nft = || NftablesBackend::new(Box::new(FakeKernel::new()));
    let mut backend: Box<dyn NodeBackend> = match node.table.node.mode {
        ForwardingMode::Iptables => {
            let fake = FakeIptables::new(IptablesFlavour::Nft);
            Box::new(IptablesBackend::new(Box::new(fake), KernelFeatures::default()))
        }
        ForwardingMode::Ipvs => Box::new(ipvs(nft(), FakeIpvs::new(&node.table.node.addresses), scheduler)),
        ForwardingMode::Nftables => Box::new(nft()),
        ForwardingMode::Kernelspace => {
            let preview = node.kernelspace.as_ref().context("mode kernelspace without its settings")?;
            Box::new(preview.backend())
        }
    };
    backend
        .load(&node.table)
        .context("the fake kernel rejected the rendered rules, which is a bug in Zoneward")?;
    Ok(backend)
}

/// The kernel of this machine.
fn live(node: &NodeWorld) -> Result<Box<dyn NodeBackend>> {
    if node.table.node.mode == ForwardingMode::Iptables {
        let programs = IptablesPrograms::find()?;
        return Ok(Box::new(IptablesBackend::new(Box::new(programs), KernelFeatures::default())));
    }
    let nft = NftablesBackend::open()
        .context("opening a netlink socket; reading the rules of the kernel requires NET_ADMIN")?;
    Ok(match node.table.node.mode {
        ForwardingMode::Ipvs => Box::new(ipvs(nft, IpvsSocket::open()?, IpvsScheduler::default())),
        _ => Box::new(nft),
    })
}

/// Time does not matter: no connection is open in a trace.
fn ipvs(
    nft: NftablesBackend,
    kernel: impl IpvsKernel + Send + 'static,
    scheduler: IpvsScheduler,
) -> IpvsBackend {
    let settings = IpvsSettings { scheduler, ..IpvsSettings::default() };
    IpvsBackend::new(nft, Box::new(kernel), settings, Box::new(|| Duration::ZERO))
}

struct Trace<'a> {
    packet: &'a forward::FirstPacket,
    traced: PacketTrace,
    decision: ForwardingDecision<'a>,
    why: Vec<(String, String)>,
    differs: Option<String>,
}

fn trace<'a>(
    packets: &'a [forward::FirstPacket],
    backend: &mut dyn NodeBackend,
    node: &'a NodeWorld,
    loaded: &LoadedObjects,
) -> Result<Vec<Trace<'a>>> {
    let all = backend.trace(packets, &node.table.node.addresses)?;
    Ok(packets.iter().zip(all).map(|(packet, traced)| explain(packet, traced, node, loaded)).collect())
}

fn explain<'a>(
    packet: &'a forward::FirstPacket,
    traced: PacketTrace,
    node: &'a NodeWorld,
    loaded: &LoadedObjects,
) -> Trace<'a> {
    let decision = node.table.decide(packet);
    let is_ipvs = node.table.node.mode == ForwardingMode::Ipvs;
    let smallest = if is_ipvs { ONE_WEIGHT } else { ONE_SLOT };
    let differs = difference(&decision, &traced, smallest);
    let mut why = reasons(&decision, node, loaded);
    let localhost = explain_localhost_node_port(packet, &node.table, &node.config);
    why.extend(localhost.map(|detail| ("localhost node port".to_owned(), detail)));
    why.extend(traced.steps.iter().map(|step| (step.rule.clone(), step.detail.clone())));
    if let Some(difference) = &differs {
        why.push(("disagreement".to_owned(), difference.clone()));
    }
    Trace { packet, traced, decision, why, differs }
}

/// Where the rules differ from the table: the kernel does not hold what these objects require. An endpoint whose share is
/// below the smallest may have none on this node.
fn difference(decision: &ForwardingDecision<'_>, traced: &PacketTrace, smallest: f64) -> Option<String> {
    let (verdict, shares) = match &decision.verdict {
        PacketVerdict::Send(shares) => (TracedVerdict::Dnat, &shares[..]),
        PacketVerdict::Reject => (TracedVerdict::Reject, &[][..]),
        PacketVerdict::Drop => (TracedVerdict::Drop, &[][..]),
        PacketVerdict::Accept => (TracedVerdict::Accept, &[][..]),
        PacketVerdict::Untouched => (TracedVerdict::Untouched, &[][..]),
    };
    let found: BTreeSet<SocketAddr> = traced.endpoints.iter().map(|(address, _)| *address).collect();
    let planned: BTreeSet<SocketAddr> = shares.iter().map(|(address, _)| *address).collect();
    let is_there = |(address, share): &(SocketAddr, f64)| found.contains(address) || *share < smallest;
    if traced.verdict == verdict && found.is_subset(&planned) && shares.iter().all(is_there) {
        return None;
    }
    let planned: Vec<String> = planned.iter().map(SocketAddr::to_string).collect();
    Some(format!("expected {} {} for these objects; the rules differ", word(verdict), planned.join(" ")))
}

/// Reasons from the Service to the selection of endpoints, then for this packet.
fn reasons(
    decision: &ForwardingDecision<'_>,
    node: &NodeWorld,
    loaded: &LoadedObjects,
) -> Vec<(String, String)> {
    let mut why = Vec::new();
    if let Some(frontend) = decision.frontend {
        let port = &frontend.port;
        let slices = loaded.snapshot.slices(&port.service);
        let view = node.config.view();
        if let Some(service) = loaded.snapshot.service(&port.service) {
            let selections = select::select(service, slices, port.family(), &view);
            let of_port =
                selections.iter().find(|s| s.port.name == port.name && s.port.protocol == port.protocol);
            let reasons = of_port.map(|s| select::explain(service, s, &view)).unwrap_or_default();
            why.extend(reasons.into_iter().map(|r| (r.rule.to_owned(), r.detail)));
        }
    }
    why.extend(decision.why.iter().map(|(rule, detail)| ((*rule).to_owned(), detail.clone())));
    why
}

fn word(verdict: TracedVerdict) -> &'static str {
    match verdict {
        TracedVerdict::Dnat => "dnat",
        TracedVerdict::Reject => "reject",
        TracedVerdict::Drop => "drop",
        TracedVerdict::Accept => "accept",
        TracedVerdict::Untouched => "untouched",
    }
}

impl Trace<'_> {
    fn traffic(&self) -> Option<&'static str> {
        self.decision.traffic().map(|traffic| match traffic {
            TrafficClass::Internal => "internal",
            TrafficClass::External => "external",
        })
    }

    fn service(&self) -> Option<String> {
        self.decision.frontend.map(|frontend| frontend.port.to_string())
    }

    fn is_masqueraded(&self) -> bool {
        self.traced.verdict == TracedVerdict::Dnat && self.traced.masquerade
    }

    fn value(&self) -> Value {
        let count = self.traced.endpoints.len() as f64;
        // The mean weight is 1.
        let endpoint = |(address, chance): &(SocketAddr, f64)| json!({"address": address.to_string(), "weight": rounded(chance * count)});
        let endpoints: Vec<Value> = self.traced.endpoints.iter().map(endpoint).collect();
        let why: Vec<Value> =
            self.why.iter().map(|(rule, detail)| json!({"rule": rule, "detail": detail})).collect();
        json!({
            "verdict": word(self.traced.verdict),
            "endpoints": endpoints,
            "masquerade": self.is_masqueraded(),
            "affinity": self.traced.affinity.map(|milliseconds| milliseconds / 1000),
            "service": self.service(),
            "traffic": self.traffic(),
            "why": why,
        })
    }

    fn text(&self, node: &str) -> String {
        let forward::FirstPacket { src, dst, protocol, .. } = self.packet;
        let mut text = format!("{protocol} {src} -> {dst} on {node}: {}\n", word(self.traced.verdict));
        if let (Some(service), Some(traffic)) = (self.service(), self.traffic()) {
            text += &format!("  Service {service}, {traffic} traffic\n");
        }
        for (address, chance) in &self.traced.endpoints {
            text += &format!("  to {address} ({:.1} %)\n", chance * 100.0);
        }
        if self.traced.verdict == TracedVerdict::Dnat {
            let source = if self.is_masqueraded() { "an address of the node" } else { "unchanged" };
            text += &format!("  source: {source}\n");
        }
        text += "  why:\n";
        for (rule, detail) in &self.why {
            text += &format!("    {rule}: {detail}\n");
        }
        text
    }
}

/// Rounded, to hide floating-point noise.
fn rounded(number: f64) -> f64 {
    (number * 1e9).round() / 1e9
}

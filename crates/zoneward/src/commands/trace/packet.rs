//! `zoneward trace packet`: traces a packet through the rules of a node.
//!
//! The rules are rendered, decoded again and evaluated by the fake kernel. The reasons come from the forwarding
//! table; a difference between the two is reported.

pub(crate) mod parse;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use dataplane::nftables::apply::{load, read};
use dataplane::nftables::fake::{Evaluation, FakeKernel, Fate, Node, Packet, evaluate};
use dataplane::nftables::ir::Program;
use dataplane::nftables::netlink::Socket;
use dataplane::nftables::render::{Renderer, protocol_number, table_id};
use model::Family;
use model::forward::{self, Decision, Traffic, Verdict};
use plan::select;
use serde_json::{Value, json};

use crate::cli::{Format, TracePacket};
use crate::input::LoadedObjects;
use crate::node::{NodeChoice, NodeWorld};
use crate::output::{notices_text, print_text, print_value};

/// The share of one slot in the smallest table of unequal shares.
const ONE_SLOT: f64 = 1.0 / 256.0;
pub fn run(args: &TracePacket) -> Result<bool> {
    let packets = packets(args)?;
    let choice = NodeChoice::new(&args.node, args.live)?;
    let mut loaded = LoadedObjects::read(&choice.input(&args.input))?;
    let mut node = NodeWorld::new(&choice, &loaded)?;
    loaded.notices.append(&mut node.notices);
    let program = if args.live { held()? } else { sent(&node)? };
    let traces: Vec<Trace<'_>> =
        packets.iter().map(|packet| trace(packet, &program, &node, &loaded)).collect::<Result<_>>()?;
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

fn packets(args: &TracePacket) -> Result<Vec<forward::Packet>> {
    if let Some(path) = &args.packets {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        return parse::list(&text).with_context(|| path.display().to_string());
    }
    Ok(args.packet.iter().cloned().collect())
}

/// The rendered rules, as decoded by the kernel.
fn sent(node: &NodeWorld) -> Result<Program> {
    let mut kernel = FakeKernel::new();
    let (_, program) = Renderer::start(&node.table);
    load(&mut kernel, &program).context("the rendered rules were rejected, which is a bug in Zoneward")?;
    Ok(kernel.program().clone())
}

/// The rules in the kernel of this machine.
fn held() -> Result<Program> {
    let mut kernel = Socket::open().context("reading the rules of the kernel requires NET_ADMIN")?;
    let wanted = [table_id(Family::V4), table_id(Family::V6)];
    let (program, problems) = read(&mut kernel, &wanted).context("reading the rules of the kernel")?;
    if let Some(problem) = problems.first() {
        bail!("unsupported object in the kernel: {problem}");
    }
    if program.tables.is_empty() {
        bail!("the kernel has no table `zoneward`: no Zoneward node proxy has run in this network namespace");
    }
    Ok(program)
}

struct Trace<'a> {
    packet: &'a forward::Packet,
    evaluation: Evaluation,
    decision: Decision<'a>,
    why: Vec<(String, String)>,
    differs: Option<String>,
}

fn trace<'a>(
    packet: &'a forward::Packet,
    program: &Program,
    node: &'a NodeWorld,
    loaded: &LoadedObjects,
) -> Result<Trace<'a>> {
    let mut sent = Packet::new(protocol_number(packet.protocol), packet.src, packet.dst);
    sent.iif = packet.iif.as_ref().map(|name| name.as_str().into());
    let kernel = Node { addresses: node.table.node.addresses.to_vec() };
    let evaluation = evaluate(program, &sent, &kernel)?;
    let decision = node.table.decide(packet);
    let differs = difference(&decision, &evaluation);
    let mut why = reasons(&decision, node, loaded);
    why.extend(rules(&evaluation));
    if let Some(difference) = &differs {
        why.push(("disagreement".to_owned(), difference.clone()));
    }
    Ok(Trace { packet, evaluation, decision, why, differs })
}

/// The difference between rules and table. A share below one slot may have no endpoint on this node.
fn difference(decision: &Decision<'_>, evaluation: &Evaluation) -> Option<String> {
    let (fate, shares) = match &decision.verdict {
        Verdict::Send(shares) => (Fate::Dnat, &shares[..]),
        Verdict::Reject => (Fate::Reject, &[][..]),
        Verdict::Drop => (Fate::Drop, &[][..]),
        Verdict::Untouched => (Fate::Untouched, &[][..]),
    };
    let found: BTreeSet<SocketAddr> = evaluation.endpoints.iter().map(|(address, _)| *address).collect();
    let planned: BTreeSet<SocketAddr> = shares.iter().map(|(address, _)| *address).collect();
    let is_there = |(address, share): &(SocketAddr, f64)| found.contains(address) || *share < ONE_SLOT;
    if evaluation.fate == fate && found.is_subset(&planned) && shares.iter().all(is_there) {
        return None;
    }
    let planned: Vec<String> = planned.iter().map(SocketAddr::to_string).collect();
    Some(format!("expected {} {} for these objects; the rules differ", word(fate), planned.join(" ")))
}

/// Reasons from the Service to the selection of endpoints, then for this packet.
fn reasons(decision: &Decision<'_>, node: &NodeWorld, loaded: &LoadedObjects) -> Vec<(String, String)> {
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

/// The matching rules on the most likely path, as nft names them.
fn rules(evaluation: &Evaluation) -> Vec<(String, String)> {
    let likeliest = evaluation.paths.iter().max_by(|a, b| a.weight.total_cmp(&b.weight));
    let steps = likeliest.into_iter().flat_map(|path| &path.steps);
    steps
        .map(|step| {
            let rule = format!("nftables {} {}", step.table, step.chain);
            let comment = step.rule.as_ref().map_or("", |comment| comment.as_str());
            let found = step.found.iter().filter_map(|(set, of)| Some(format!(" [{set}: {}]", of.as_ref()?)));
            (rule, format!("{comment}{}: {}", found.collect::<String>(), step.did))
        })
        .collect()
}

fn word(fate: Fate) -> &'static str {
    match fate {
        Fate::Dnat => "dnat",
        Fate::Reject => "reject",
        Fate::Drop => "drop",
        Fate::Accept => "accept",
        Fate::Untouched => "untouched",
    }
}

impl Trace<'_> {
    fn traffic(&self) -> Option<&'static str> {
        self.decision.traffic().map(|traffic| match traffic {
            Traffic::Internal => "internal",
            Traffic::External => "external",
        })
    }

    fn service(&self) -> Option<String> {
        self.decision.frontend.map(|frontend| frontend.port.to_string())
    }

    fn is_masqueraded(&self) -> bool {
        self.evaluation.fate == Fate::Dnat && self.evaluation.masquerade
    }

    fn value(&self) -> Value {
        let count = self.evaluation.endpoints.len() as f64;
        // The mean weight is 1.
        let endpoint = |(address, chance): &(SocketAddr, f64)| json!({"address": address.to_string(), "weight": rounded(chance * count)});
        let endpoints: Vec<Value> = self.evaluation.endpoints.iter().map(endpoint).collect();
        let why: Vec<Value> =
            self.why.iter().map(|(rule, detail)| json!({"rule": rule, "detail": detail})).collect();
        json!({
            "verdict": word(self.evaluation.fate),
            "endpoints": endpoints,
            "masquerade": self.is_masqueraded(),
            "affinity": self.evaluation.affinity.map(|milliseconds| milliseconds / 1000),
            "service": self.service(),
            "traffic": self.traffic(),
            "why": why,
        })
    }

    fn text(&self, node: &str) -> String {
        let forward::Packet { src, dst, protocol, .. } = self.packet;
        let mut text = format!("{protocol} {src} -> {dst} on {node}: {}\n", word(self.evaluation.fate));
        if let (Some(service), Some(traffic)) = (self.service(), self.traffic()) {
            text += &format!("  Service {service}, {traffic} traffic\n");
        }
        for (address, chance) in &self.evaluation.endpoints {
            text += &format!("  to {address} ({:.1} %)\n", chance * 100.0);
        }
        if self.evaluation.fate == Fate::Dnat {
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

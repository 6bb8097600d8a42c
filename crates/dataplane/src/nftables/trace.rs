//! Traces packets through a ruleset, whether rendered, held by the fake kernel or dumped from a real one.
//!
//! Each random number is tried with each of its values, so that the result is the exact distribution.
//!
//! ```text
//!  from outside: prerouting -> to the node: input
//!                           -> to others:   forward -> postrouting
//!  from the node: output -> postrouting (-> to the node: prerouting -> input)
//! ```

mod interpreter;
mod packet;
mod register;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;

use model::forward;

use super::ir::{
    Base, Chain, ChainType, Hook, NftFamily, NftName, NftRule, NftVerdict, Policy, Ruleset, Table, TableId,
};
use super::render::protocol_number;
use crate::backend::{PacketTrace, PacketTraceStep, TracedVerdict};

pub(super) use interpreter::field_ranges;
pub use packet::{DynsetUpdate, Evaluation, NodeAddresses, RuleMatch, TracePath, TracedPacket};
pub(super) use register::REGISTER_BYTES;

use interpreter::{Interpreter, RuleEnd};

/// Limit of paths. A Service with 10,000 endpoints has 10,000.
const MAX_PATHS: usize = 1 << 17;
/// The kernel's limit of nested jumps.
const MAX_DEPTH: usize = 16;

/// The random numbers of a packet multiply to too many paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyPaths;

impl fmt::Display for TooManyPaths {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the packet has more than {MAX_PATHS} paths through the rules")
    }
}

impl std::error::Error for TooManyPaths {}

/// Traces a packet that meets a node with these addresses.
pub(super) fn trace(
    ruleset: &Ruleset,
    packet: &forward::FirstPacket,
    addresses: &[IpAddr],
) -> Result<PacketTrace, TooManyPaths> {
    let mut traced = TracedPacket::new(protocol_number(packet.protocol), packet.src, packet.dst);
    traced.iif = packet.iif.as_ref().map(|name| name.as_str().into());
    let evaluation = evaluate(ruleset, &traced, &NodeAddresses { addresses: addresses.to_vec() })?;
    let steps = steps(&evaluation);
    let Evaluation { verdict, endpoints, masquerade, affinity, .. } = evaluation;
    Ok(PacketTrace { verdict, endpoints, masquerade, affinity, steps })
}

/// The rules that matched on the most likely path, named as nft does.
pub(crate) fn steps(evaluation: &Evaluation) -> Vec<PacketTraceStep> {
    let likeliest = evaluation.paths.iter().max_by(|a, b| a.weight.total_cmp(&b.weight));
    let matches = likeliest.into_iter().flat_map(|path| &path.steps);
    let step = |matched: &RuleMatch| {
        let comment = matched.rule.as_ref().map_or("", |comment| comment.as_str());
        let found = matched.found.iter().filter_map(|(set, of)| Some(format!(" [{set}: {}]", of.as_ref()?)));
        PacketTraceStep {
            rule: format!("nftables {} {}", matched.table, matched.chain),
            detail: format!("{comment}{}: {}", found.collect::<String>(), matched.did),
        }
    };
    matches.map(step).collect()
}

/// All paths of a packet.
pub fn evaluate(
    ruleset: &Ruleset,
    packet: &TracedPacket,
    node: &NodeAddresses,
) -> Result<Evaluation, TooManyPaths> {
    let mut paths = Vec::new();
    // The random numbers of the previous path, each with its modulus: incremented like an odometer.
    let mut drawn: Vec<(u32, u32)> = Vec::new();
    loop {
        let mut position = 0;
        let path = evaluate_once(ruleset, packet, node, |modulus| {
            if position == drawn.len() {
                drawn.push((0, modulus.max(1)));
            }
            position += 1;
            drawn[position - 1].0
        });
        drawn.truncate(position);
        let weight = drawn.iter().map(|(_, modulus)| 1.0 / f64::from(*modulus)).product();
        paths.push(TracePath { weight, ..path });
        while drawn.pop_if(|(number, modulus)| *number + 1 >= *modulus).is_some() {}
        let Some((number, _)) = drawn.last_mut() else { break };
        *number += 1;
        if paths.len() == MAX_PATHS {
            return Err(TooManyPaths);
        }
    }
    Ok(summarise(ruleset, paths))
}

fn summarise(ruleset: &Ruleset, paths: Vec<TracePath>) -> Evaluation {
    let mut weights: BTreeMap<TracedVerdict, f64> = BTreeMap::new();
    let mut endpoints: BTreeMap<SocketAddr, f64> = BTreeMap::new();
    for path in &paths {
        *weights.entry(path.verdict).or_default() += path.weight;
        if path.verdict == TracedVerdict::Dnat {
            *endpoints.entry(path.destination).or_default() += path.weight;
        }
    }
    let verdict = weights
        .iter()
        .max_by(|left, right| left.1.total_cmp(right.1))
        .map_or(TracedVerdict::Untouched, |(verdict, _)| *verdict);
    let typical = paths.iter().find(|path| path.verdict == verdict);
    let affinity = typical.and_then(|path| affinity_timeout(ruleset, path));
    Evaluation {
        verdict,
        endpoints: endpoints.into_iter().collect(),
        masquerade: typical.is_some_and(|path| path.masquerade),
        affinity,
        paths,
    }
}

/// The longest timeout of a map element that rules store for this packet. Members of sets, such as counters, do not
/// affect later packets.
fn affinity_timeout(ruleset: &Ruleset, path: &TracePath) -> Option<u64> {
    let times = path.updates.iter().filter_map(|updates| {
        let set = ruleset.tables.get(&updates.table)?.sets.get(&updates.set)?;
        set.spec.data.as_ref()?;
        updates.value.as_ref()?.timeout.map(NonZeroU64::get).or(set.spec.timeout)
    });
    times.max()
}

/// One path of a packet; `random` returns a number below its argument.
pub fn evaluate_once(
    ruleset: &Ruleset,
    packet: &TracedPacket,
    node: &NodeAddresses,
    mut random: impl FnMut(u32) -> u32,
) -> TracePath {
    let mut interpreter = Interpreter {
        ruleset,
        node,
        original: packet,
        random: &mut random,
        hook: Hook::Prerouting,
        destination: SocketAddr::new(packet.dst, packet.dport),
        mark: packet.mark,
        ct_mark: 0,
        dnat: false,
        masquerade: false,
        steps: Vec::new(),
        updates: Vec::new(),
        overlay: BTreeMap::new(),
        found: Vec::new(),
        did: Vec::new(),
    };
    let mut accepted = false;
    let ended = walk(&mut interpreter, &mut accepted);
    let verdict = match ended {
        Some(verdict) => verdict,
        None if interpreter.dnat => TracedVerdict::Dnat,
        None if accepted => TracedVerdict::Accept,
        None => TracedVerdict::Untouched,
    };
    let lost = matches!(verdict, TracedVerdict::Drop | TracedVerdict::Reject);
    TracePath {
        weight: 1.0,
        verdict,
        destination: interpreter.destination,
        masquerade: interpreter.masquerade && !lost,
        mark: interpreter.mark,
        steps: interpreter.steps,
        updates: interpreter.updates,
    }
}

/// Runs the hooks in the order of this packet, up to a final verdict.
fn walk(interpreter: &mut Interpreter<'_>, accepted: &mut bool) -> Option<TracedVerdict> {
    let from_node = interpreter.node.is_local(interpreter.original.src);
    let first = if from_node { Hook::Output } else { Hook::Prerouting };
    if let Some(verdict) = run_hook(interpreter, first, accepted) {
        return Some(verdict);
    }
    // The routing decision, on the rewritten destination.
    let for_node = interpreter.node.is_local(interpreter.destination.ip());
    let rest: &[Hook] = match (from_node, for_node) {
        (true, true) => &[Hook::Postrouting, Hook::Prerouting, Hook::Input],
        (true, false) => &[Hook::Postrouting],
        (false, true) => &[Hook::Input],
        (false, false) => &[Hook::Forward, Hook::Postrouting],
    };
    rest.iter().find_map(|hook| run_hook(interpreter, *hook, accepted))
}

/// The chains of a hook, first to last. The kernel runs all nat chains of a hook at one priority; their own only orders
/// them among themselves.
fn chains_at(ruleset: &Ruleset, hook: Hook, is_v4: bool) -> Vec<(&TableId, &Table, &NftName, &Chain, &Base)> {
    let fits = |family: NftFamily| match family {
        NftFamily::Inet => true,
        NftFamily::Ip => is_v4,
        NftFamily::Ip6 => !is_v4,
    };
    let tables = ruleset.tables.iter().filter(|(id, _)| fits(id.family));
    let chains = tables.flat_map(|(id, table)| {
        table.chains.iter().filter_map(move |(name, chain)| {
            let base = chain.spec.base.as_ref().filter(|base| base.hook == hook)?;
            Some((id, table, name, chain, base))
        })
    });
    let mut chains: Vec<_> = chains.collect();
    chains.sort_by_key(|(.., base)| (hook_priority(base), base.priority));
    chains
}

fn hook_priority(base: &Base) -> i32 {
    match (base.kind, base.hook) {
        (ChainType::Nat, Hook::Prerouting | Hook::Output) => -100,
        (ChainType::Nat, _) => 100,
        _ => base.priority,
    }
}

fn run_hook(interpreter: &mut Interpreter<'_>, hook: Hook, accepted: &mut bool) -> Option<TracedVerdict> {
    interpreter.hook = hook;
    let ruleset = interpreter.ruleset;
    for (id, table, name, chain, base) in chains_at(ruleset, hook, interpreter.destination.is_ipv4()) {
        if base.kind == ChainType::Nat && !sees_nat(interpreter, hook) {
            continue;
        }
        match run_chain(interpreter, id, table, name, &chain.rules, 0) {
            ChainEnd::Final(verdict) => return Some(verdict),
            ChainEnd::Accept => *accepted = true,
            ChainEnd::Policy if base.policy == Policy::Drop => return Some(TracedVerdict::Drop),
            ChainEnd::Policy | ChainEnd::Return => {}
        }
    }
    None
}

/// Whether nat chains of this hook see the packet: only for new connections, only until one of them rewrote it, and not
/// again when the packet comes back over loopback.
fn sees_nat(interpreter: &Interpreter<'_>, hook: Hook) -> bool {
    let from_node = interpreter.node.is_local(interpreter.original.src);
    let decided = match hook {
        Hook::Prerouting => interpreter.dnat || from_node,
        Hook::Output => interpreter.dnat,
        Hook::Input => interpreter.masquerade || from_node,
        Hook::Forward | Hook::Postrouting => interpreter.masquerade,
    };
    !interpreter.original.established && !decided
}

/// How a chain ended.
enum ChainEnd {
    Final(TracedVerdict),
    Accept,
    /// End of the chain or return: the calling chain continues.
    Return,
    /// End of a base chain, possibly through goto.
    Policy,
}

fn run_chain(
    interpreter: &mut Interpreter<'_>,
    id: &TableId,
    table: &Table,
    name: &NftName,
    rules: &[NftRule],
    depth: usize,
) -> ChainEnd {
    for (index, rule) in rules.iter().enumerate() {
        let end = interpreter.rule(id, table, &rule.exprs);
        if matches!(end, RuleEnd::Break) {
            continue;
        }
        record(interpreter, id, name, index, rule, &end);
        let (target, returns) = match end {
            RuleEnd::Break | RuleEnd::End | RuleEnd::Verdict(NftVerdict::Continue) => continue,
            RuleEnd::Reject => return ChainEnd::Final(TracedVerdict::Reject),
            RuleEnd::Verdict(NftVerdict::Accept) => return ChainEnd::Accept,
            RuleEnd::Verdict(NftVerdict::Drop) => return ChainEnd::Final(TracedVerdict::Drop),
            RuleEnd::Verdict(NftVerdict::Return) => break,
            RuleEnd::Verdict(NftVerdict::Jump(target)) => (target, true),
            RuleEnd::Verdict(NftVerdict::Goto(target)) => (target, false),
        };
        // The kernel refuses tables in which this could happen.
        let Some(next) = table.chains.get(&target).filter(|_| depth < MAX_DEPTH) else {
            return ChainEnd::Final(TracedVerdict::Drop);
        };
        match run_chain(interpreter, id, table, &target, &next.rules, depth + 1) {
            ChainEnd::Return | ChainEnd::Policy if returns => {}
            ChainEnd::Return | ChainEnd::Policy => break,
            ended => return ended,
        }
    }
    if depth == 0 { ChainEnd::Policy } else { ChainEnd::Return }
}

fn record(
    interpreter: &mut Interpreter<'_>,
    id: &TableId,
    chain: &NftName,
    index: usize,
    rule: &NftRule,
    end: &RuleEnd,
) {
    let mut did = std::mem::take(&mut interpreter.did);
    let last = match end {
        RuleEnd::Break | RuleEnd::End => None,
        RuleEnd::Reject => Some("reject".to_string()),
        RuleEnd::Verdict(NftVerdict::Accept) if !did.is_empty() => None,
        RuleEnd::Verdict(verdict) => Some(verdict_text(verdict)),
    };
    did.extend(last);
    let step = RuleMatch {
        hook: interpreter.hook,
        table: id.clone(),
        chain: chain.clone(),
        index,
        rule: rule.comment.clone(),
        found: std::mem::take(&mut interpreter.found),
        did: did.join(", "),
    };
    interpreter.steps.push(step);
}

fn verdict_text(verdict: &NftVerdict) -> String {
    match verdict {
        NftVerdict::Accept => "accept".to_string(),
        NftVerdict::Drop => "drop".to_string(),
        NftVerdict::Continue => "continue".to_string(),
        NftVerdict::Return => "return".to_string(),
        NftVerdict::Jump(chain) => format!("jump to {chain}"),
        NftVerdict::Goto(chain) => format!("go to {chain}"),
    }
}

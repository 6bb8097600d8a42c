//! A packet through all hooks, on every way that chance allows: each random number is tried with each of its values, so
//! that the answer is the exact distribution and not a sample.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU64;

use super::machine::{Flow, Machine};
use super::packet::{Evaluation, Fate, Node, Packet, Path, Step};
use crate::nftables::ir::{
    Base, Chain, ChainType, Family, Hook, Name, Policy, Program, Rule, Table, TableId, Verdict,
};

/// More ways than this are not walked. A Service of 10,000 endpoints has 10,000.
const MOST_WAYS: usize = 1 << 17;
/// How deep chains may call each other.
const DEEPEST: usize = 16;

/// Random numbers multiply to more ways than can be walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyWays;

impl fmt::Display for TooManyWays {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the random numbers on the packet's way allow more than {MOST_WAYS} outcomes")
    }
}

impl std::error::Error for TooManyWays {}

/// Everything that can become of a packet.
pub fn evaluate(program: &Program, packet: &Packet, node: &Node) -> Result<Evaluation, TooManyWays> {
    let mut paths = Vec::new();
    // The numbers drawn on the way before, each with how many there are: counted up like an odometer.
    let mut drawn: Vec<(u32, u32)> = Vec::new();
    loop {
        let mut place = 0;
        let path = evaluate_once(program, packet, node, |modulus| {
            if place == drawn.len() {
                drawn.push((0, modulus.max(1)));
            }
            place += 1;
            drawn[place - 1].0
        });
        drawn.truncate(place);
        let weight = drawn.iter().map(|(_, modulus)| 1.0 / f64::from(*modulus)).product();
        paths.push(Path { weight, ..path });
        while drawn.pop_if(|(number, modulus)| *number + 1 >= *modulus).is_some() {}
        let Some((number, _)) = drawn.last_mut() else { break };
        *number += 1;
        if paths.len() == MOST_WAYS {
            return Err(TooManyWays);
        }
    }
    Ok(summarise(program, paths))
}

fn summarise(program: &Program, paths: Vec<Path>) -> Evaluation {
    let mut weights: BTreeMap<Fate, f64> = BTreeMap::new();
    let mut endpoints: BTreeMap<SocketAddr, f64> = BTreeMap::new();
    for path in &paths {
        *weights.entry(path.fate).or_default() += path.weight;
        if path.fate == Fate::Dnat {
            *endpoints.entry(path.destination).or_default() += path.weight;
        }
    }
    let fate = weights
        .iter()
        .max_by(|left, right| left.1.total_cmp(right.1))
        .map_or(Fate::Untouched, |(fate, _)| *fate);
    let typical = paths.iter().find(|path| path.fate == fate);
    let affinity = typical.and_then(|path| remembered(program, path));
    Evaluation {
        fate,
        endpoints: endpoints.into_iter().collect(),
        masquerade: typical.is_some_and(|path| path.masquerade),
        affinity,
        paths,
    }
}

/// How long the longest thing lives that rules remember of this packet. A mere member of a set, as one that is counted,
/// decides nothing later.
fn remembered(program: &Program, path: &Path) -> Option<u64> {
    let times = path.learned.iter().filter_map(|learned| {
        let set = program.tables.get(&learned.table)?.sets.get(&learned.set)?;
        set.spec.data.as_ref()?;
        learned.value.as_ref()?.timeout.map(NonZeroU64::get).or(set.spec.timeout)
    });
    times.max()
}

/// One way of a packet; `chance` answers with a number below its argument.
pub fn evaluate_once(
    program: &Program,
    packet: &Packet,
    node: &Node,
    mut chance: impl FnMut(u32) -> u32,
) -> Path {
    let mut machine = Machine {
        program,
        node,
        original: packet,
        chance: &mut chance,
        hook: Hook::Prerouting,
        destination: SocketAddr::new(packet.dst, packet.dport),
        mark: packet.mark,
        ct_mark: 0,
        dnat: false,
        masquerade: false,
        steps: Vec::new(),
        learned: Vec::new(),
        overlay: BTreeMap::new(),
        found: Vec::new(),
        did: Vec::new(),
    };
    let mut accepted = false;
    let ended = walk(&mut machine, &mut accepted);
    let fate = match ended {
        Some(fate) => fate,
        None if machine.dnat => Fate::Dnat,
        None if accepted => Fate::Accept,
        None => Fate::Untouched,
    };
    let lost = matches!(fate, Fate::Drop | Fate::Reject);
    Path {
        weight: 1.0,
        fate,
        destination: machine.destination,
        masquerade: machine.masquerade && !lost,
        mark: machine.mark,
        steps: machine.steps,
        learned: machine.learned,
    }
}

/// The hooks in the order of this packet; ends with a fate where the packet does.
fn walk(machine: &mut Machine<'_>, accepted: &mut bool) -> Option<Fate> {
    let from_node = machine.node.is_local(machine.original.src);
    let first = if from_node { Hook::Output } else { Hook::Prerouting };
    if let Some(fate) = run_hook(machine, first, accepted) {
        return Some(fate);
    }
    // The routing decision, on the destination as it is now.
    let for_node = machine.node.is_local(machine.destination.ip());
    let rest: &[Hook] = match (from_node, for_node) {
        (true, true) => &[Hook::Postrouting, Hook::Prerouting, Hook::Input],
        (true, false) => &[Hook::Postrouting],
        (false, true) => &[Hook::Input],
        (false, false) => &[Hook::Forward, Hook::Postrouting],
    };
    rest.iter().find_map(|hook| run_hook(machine, *hook, accepted))
}

/// The chains of a hook, first to last. All nat chains of a hook hang at one place in the kernel, whatever their own
/// priority, which only orders them among themselves.
fn chains_at(program: &Program, hook: Hook, is_v4: bool) -> Vec<(&TableId, &Table, &Name, &Chain, &Base)> {
    let fits = |family: Family| match family {
        Family::Inet => true,
        Family::Ip => is_v4,
        Family::Ip6 => !is_v4,
    };
    let tables = program.tables.iter().filter(|(id, _)| fits(id.family));
    let chains = tables.flat_map(|(id, table)| {
        table.chains.iter().filter_map(move |(name, chain)| {
            let base = chain.spec.base.as_ref().filter(|base| base.hook == hook)?;
            Some((id, table, name, chain, base))
        })
    });
    let mut chains: Vec<_> = chains.collect();
    chains.sort_by_key(|(.., base)| (place(base), base.priority));
    chains
}

fn place(base: &Base) -> i32 {
    match (base.kind, base.hook) {
        (ChainType::Nat, Hook::Prerouting | Hook::Output) => -100,
        (ChainType::Nat, _) => 100,
        _ => base.priority,
    }
}

fn run_hook(machine: &mut Machine<'_>, hook: Hook, accepted: &mut bool) -> Option<Fate> {
    machine.hook = hook;
    let program = machine.program;
    for (id, table, name, chain, base) in chains_at(program, hook, machine.destination.is_ipv4()) {
        if base.kind == ChainType::Nat && !sees_nat(machine, hook) {
            continue;
        }
        match run_chain(machine, id, table, name, &chain.rules, 0) {
            Ended::Fate(fate) => return Some(fate),
            Ended::Accept => *accepted = true,
            Ended::Policy if base.policy == Policy::Drop => return Some(Fate::Drop),
            Ended::Policy | Ended::Back => {}
        }
    }
    None
}

/// Whether nat chains of this hook still have a say: only for new connections, only until one of them decided, and
/// not a second time when the packet comes back over loopback.
fn sees_nat(machine: &Machine<'_>, hook: Hook) -> bool {
    let from_node = machine.node.is_local(machine.original.src);
    let decided = match hook {
        Hook::Prerouting => machine.dnat || from_node,
        Hook::Output => machine.dnat,
        Hook::Input => machine.masquerade || from_node,
        Hook::Forward | Hook::Postrouting => machine.masquerade,
    };
    !machine.original.established && !decided
}

/// How a chain ended.
enum Ended {
    /// The packet ends here.
    Fate(Fate),
    /// This base chain is done.
    Accept,
    /// The end of the chain, or return: the calling chain goes on.
    Back,
    /// The end of a base chain, perhaps through goto.
    Policy,
}

fn run_chain(
    machine: &mut Machine<'_>,
    id: &TableId,
    table: &Table,
    name: &Name,
    rules: &[Rule],
    depth: usize,
) -> Ended {
    for (index, rule) in rules.iter().enumerate() {
        let flow = machine.rule(id, table, &rule.exprs);
        if matches!(flow, Flow::Break) {
            continue;
        }
        note(machine, id, name, index, rule, &flow);
        let (target, returns) = match flow {
            Flow::Break | Flow::End | Flow::To(Verdict::Continue) => continue,
            Flow::Reject => return Ended::Fate(Fate::Reject),
            Flow::To(Verdict::Accept) => return Ended::Accept,
            Flow::To(Verdict::Drop) => return Ended::Fate(Fate::Drop),
            Flow::To(Verdict::Return) => break,
            Flow::To(Verdict::Jump(target)) => (target, true),
            Flow::To(Verdict::Goto(target)) => (target, false),
        };
        // The kernel takes no table in which this could happen.
        let Some(next) = table.chains.get(&target).filter(|_| depth < DEEPEST) else {
            return Ended::Fate(Fate::Drop);
        };
        match run_chain(machine, id, table, &target, &next.rules, depth + 1) {
            Ended::Back | Ended::Policy if returns => {}
            Ended::Back | Ended::Policy => break,
            ended => return ended,
        }
    }
    if depth == 0 { Ended::Policy } else { Ended::Back }
}

fn note(machine: &mut Machine<'_>, id: &TableId, chain: &Name, index: usize, rule: &Rule, flow: &Flow) {
    let mut did = std::mem::take(&mut machine.did);
    let last = match flow {
        Flow::Break | Flow::End => None,
        Flow::Reject => Some("reject".to_string()),
        Flow::To(Verdict::Accept) if !did.is_empty() => None,
        Flow::To(verdict) => Some(words(verdict)),
    };
    did.extend(last);
    let step = Step {
        hook: machine.hook,
        table: id.clone(),
        chain: chain.clone(),
        index,
        rule: rule.comment.clone(),
        found: std::mem::take(&mut machine.found),
        did: did.join(", "),
    };
    machine.steps.push(step);
}

fn words(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Accept => "accept".to_string(),
        Verdict::Drop => "drop".to_string(),
        Verdict::Continue => "go on".to_string(),
        Verdict::Return => "return".to_string(),
        Verdict::Jump(chain) => format!("jump to {chain}"),
        Verdict::Goto(chain) => format!("go to {chain}"),
    }
}

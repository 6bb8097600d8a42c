//! Traces a packet through a rule set. A random match splits a path in two, so that the result is the exact
//! distribution.
//!
//! ```text
//!  from outside: PREROUTING -> to the node: INPUT (-> IPVS -> OUTPUT -> POSTROUTING)
//!                           -> to others:   FORWARD -> POSTROUTING
//!  from the node: OUTPUT (with IPVS) -> POSTROUTING (-> to the node: PREROUTING -> INPUT)
//! ```

mod matching;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use model::forward::FirstPacket;

use super::ipset::IpSets;
use super::ipvs::IpvsServers;
use super::rule::{FULL_PROBABILITY, IptablesMatch, IptablesTarget, RecentAction};
use super::{ChainPolicy, IptablesChain, IptablesError, IptablesRule, IptablesRuleset};
use crate::backend::{PacketTrace, PacketTraceStep, TracedVerdict};
use crate::nftables::render::protocol_number;

use matching::Outcome;

/// Limit of paths. A Service with 10,000 endpoints has 10,000.
const MAX_PATHS: usize = 1 << 17;
/// Limit of nested chains: more than the longest chain of jumps of a rule set without loops.
const MAX_DEPTH: usize = 64;

/// What the kernel of a node knows beside the rules.
#[derive(Clone, Debug, Default)]
pub struct IptablesNode {
    /// The node's own addresses; loopback addresses always count.
    pub addresses: Vec<IpAddr>,
    pub sets: IpSets,
    pub virtual_servers: IpvsServers,
    /// The lists of `-m recent`: addresses that were seen within every timeout.
    pub recent: BTreeMap<String, BTreeSet<IpAddr>>,
}

impl IptablesNode {
    pub fn new(addresses: &[IpAddr]) -> Self {
        Self { addresses: addresses.to_vec(), ..Self::default() }
    }

    pub(super) fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address)
    }
}

/// The state that conntrack gives a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionState {
    #[default]
    New,
    Established,
    Invalid,
}

/// All paths of a packet.
#[derive(Clone, Debug, PartialEq)]
pub struct IptablesEvaluation {
    /// The most likely verdict.
    pub verdict: TracedVerdict,
    /// Endpoints with their probabilities, sorted by address.
    pub endpoints: Vec<(SocketAddr, f64)>,
    /// Whether every path of this verdict replaces the source.
    pub masquerade: bool,
    /// Session affinity timeout in milliseconds.
    pub affinity: Option<u64>,
    pub paths: Vec<IptablesPath>,
}

/// One path.
#[derive(Clone, Debug, PartialEq)]
pub struct IptablesPath {
    pub probability: f64,
    pub verdict: TracedVerdict,
    /// Where the packet goes after DNAT.
    pub destination: SocketAddr,
    pub masquerade: bool,
    /// Whether a rule of the filter table accepted it, rather than a policy.
    pub accepted: bool,
    pub mark: u32,
    /// `--reject-with` of the rule that rejected it.
    pub rejected_with: Option<String>,
    /// The lists of `-m recent` that it was added to.
    pub remembered: Vec<String>,
    /// The persistence of the IPVS virtual server that it met, in seconds.
    pub persistence: Option<u32>,
    /// Accounting objects of `-m nfacct` that counted it.
    pub counted: Vec<String>,
    pub steps: Vec<PacketTraceStep>,
}

/// Traces the first packet of a connection at a node with these addresses.
pub fn trace(
    ruleset: &IptablesRuleset,
    packet: &FirstPacket,
    addresses: &[IpAddr],
) -> Result<PacketTrace, IptablesError> {
    Ok(evaluate(ruleset, packet, &IptablesNode::new(addresses))?.into_trace())
}

/// All paths of the first packet of a connection.
pub fn evaluate(
    ruleset: &IptablesRuleset,
    packet: &FirstPacket,
    node: &IptablesNode,
) -> Result<IptablesEvaluation, IptablesError> {
    evaluate_state(ruleset, packet, node, ConnectionState::New)
}

/// All paths of the first packet of a connection whose destination another program rewrites to `destination`, before the
/// nat table would.
pub fn evaluate_rewritten(
    ruleset: &IptablesRuleset,
    packet: &FirstPacket,
    node: &IptablesNode,
    destination: SocketAddr,
) -> Result<IptablesEvaluation, IptablesError> {
    evaluate_in(&Context { rewritten: Some(destination), ..Context::new(ruleset, packet, node) })
}

/// All paths of a packet in this state. Only a new connection sees the nat table.
pub fn evaluate_state(
    ruleset: &IptablesRuleset,
    packet: &FirstPacket,
    node: &IptablesNode,
    state: ConnectionState,
) -> Result<IptablesEvaluation, IptablesError> {
    evaluate_in(&Context { state, ..Context::new(ruleset, packet, node) })
}

fn evaluate_in(context: &Context<'_>) -> Result<IptablesEvaluation, IptablesError> {
    let mut waiting = vec![Walker::start(context)];
    let mut paths = Vec::new();
    while let Some(walker) = waiting.pop() {
        paths.push(walker.finish(context, &mut waiting)?);
        if paths.len() > MAX_PATHS {
            return Err(IptablesError::new(format!(
                "the packet has more than {MAX_PATHS} paths through the rules"
            )));
        }
    }
    Ok(summarise(context.ruleset, paths))
}

impl IptablesEvaluation {
    /// The most likely path.
    pub fn likeliest(&self) -> Option<&IptablesPath> {
        self.paths.iter().max_by(|left, right| left.probability.total_cmp(&right.probability))
    }

    pub fn into_trace(self) -> PacketTrace {
        let steps = self.likeliest().map(|path| path.steps.clone()).unwrap_or_default();
        let Self { verdict, endpoints, masquerade, affinity, .. } = self;
        PacketTrace { verdict, endpoints, masquerade, affinity, steps }
    }
}

fn summarise(ruleset: &IptablesRuleset, paths: Vec<IptablesPath>) -> IptablesEvaluation {
    let mut likelihoods: BTreeMap<TracedVerdict, f64> = BTreeMap::new();
    let mut endpoints: BTreeMap<SocketAddr, f64> = BTreeMap::new();
    for path in &paths {
        *likelihoods.entry(path.verdict).or_default() += path.probability;
        if path.verdict == TracedVerdict::Dnat {
            *endpoints.entry(path.destination).or_default() += path.probability;
        }
    }
    let verdict = likelihoods
        .iter()
        .max_by(|left, right| left.1.total_cmp(right.1))
        .map_or(TracedVerdict::Untouched, |(verdict, _)| *verdict);
    let mut typical = paths.iter().filter(|path| path.verdict == verdict).peekable();
    let affinity = typical.peek().and_then(|path| affinity(ruleset, path));
    let masquerade = typical.peek().is_some() && typical.all(|path| path.masquerade);
    IptablesEvaluation { verdict, endpoints: endpoints.into_iter().collect(), masquerade, affinity, paths }
}

/// The longest timeout with which a rule reads a list that the packet was added to, in milliseconds.
fn affinity(ruleset: &IptablesRuleset, path: &IptablesPath) -> Option<u64> {
    if path.remembered.is_empty() {
        return path.persistence.map(|seconds| u64::from(seconds) * 1000);
    }
    let chains = ruleset.tables.values().flat_map(|table| table.chains.values());
    let matches = chains.flat_map(|chain| &chain.rules).flat_map(|rule| &rule.matches);
    let seconds = matches.filter_map(|found| match found {
        IptablesMatch::Recent { action, name, .. } if path.remembered.contains(name) => match action.value {
            RecentAction::Check { seconds, .. } | RecentAction::Update { seconds, .. } => seconds,
            RecentAction::Set | RecentAction::Remove => None,
        },
        _ => None,
    });
    seconds.max().map(|seconds| u64::from(seconds) * 1000)
}

struct Context<'c> {
    ruleset: &'c IptablesRuleset,
    node: &'c IptablesNode,
    packet: &'c FirstPacket,
    state: ConnectionState,
    from_node: bool,
    /// The destination that another program gives the packet.
    rewritten: Option<SocketAddr>,
}

impl<'c> Context<'c> {
    fn new(ruleset: &'c IptablesRuleset, packet: &'c FirstPacket, node: &'c IptablesNode) -> Self {
        let from_node = node.is_local(packet.src.ip());
        Self { ruleset, node, packet, state: ConnectionState::New, from_node, rewritten: None }
    }
}

/// Where a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The built-in chain of a table.
    Chain(&'static str, &'static str),
    /// Where IPVS takes packets to its virtual servers.
    Ipvs,
    Routing,
}

const PREROUTING: [Stage; 3] = [
    Stage::Chain("raw", "PREROUTING"),
    Stage::Chain("mangle", "PREROUTING"),
    Stage::Chain("nat", "PREROUTING"),
];
const INPUT: [Stage; 5] = [
    Stage::Chain("mangle", "INPUT"),
    Stage::Chain("filter", "INPUT"),
    Stage::Chain("security", "INPUT"),
    Stage::Ipvs,
    Stage::Chain("nat", "INPUT"),
];
const FORWARD: [Stage; 3] = [
    Stage::Chain("mangle", "FORWARD"),
    Stage::Chain("filter", "FORWARD"),
    Stage::Chain("security", "FORWARD"),
];
const OUTPUT: [Stage; 6] = [
    Stage::Chain("raw", "OUTPUT"),
    Stage::Chain("mangle", "OUTPUT"),
    Stage::Chain("nat", "OUTPUT"),
    Stage::Ipvs,
    Stage::Chain("filter", "OUTPUT"),
    Stage::Chain("security", "OUTPUT"),
];
const POSTROUTING: [Stage; 2] = [Stage::Chain("mangle", "POSTROUTING"), Stage::Chain("nat", "POSTROUTING")];

#[derive(Clone)]
struct Frame<'r> {
    name: &'r str,
    chain: &'r IptablesChain,
    next: usize,
}

/// One path, on its way.
#[derive(Clone)]
struct Walker<'r> {
    probability: f64,
    src: SocketAddr,
    dst: SocketAddr,
    mark: u32,
    is_dnat: bool,
    is_snat: bool,
    /// The virtual server that IPVS took it to.
    virtual_server: Option<SocketAddr>,
    /// The timeout of its persistence in seconds.
    persistence: Option<u32>,
    accepted: bool,
    rejected_with: Option<String>,
    remembered: Vec<String>,
    counted: Vec<String>,
    steps: Vec<PacketTraceStep>,
    /// Interfaces, where known.
    in_interface: Option<&'r str>,
    out_interface: Option<&'r str>,
    /// The stages to come, last first.
    stages: Vec<Stage>,
    table: &'static str,
    stack: Vec<Frame<'r>>,
}

/// How a stage ended.
enum StageEnd {
    Continue,
    Lost(TracedVerdict),
}

impl<'r> Walker<'r> {
    fn start(context: &Context<'r>) -> Self {
        let mut walker = Self {
            probability: 1.0,
            src: context.packet.src,
            dst: context.packet.dst,
            mark: 0,
            is_dnat: false,
            is_snat: false,
            virtual_server: None,
            persistence: None,
            accepted: false,
            rejected_with: None,
            remembered: Vec::new(),
            counted: Vec::new(),
            steps: Vec::new(),
            in_interface: context
                .packet
                .iif
                .as_ref()
                .map(|name| name.as_str())
                .filter(|_| !context.from_node),
            out_interface: None,
            stages: vec![Stage::Routing],
            table: "",
            stack: Vec::new(),
        };
        walker.schedule(if context.from_node { &OUTPUT } else { &PREROUTING });
        walker
    }

    /// These stages come next.
    fn schedule(&mut self, stages: &[Stage]) {
        self.stages.extend(stages.iter().rev());
    }

    fn finish(
        mut self,
        context: &Context<'r>,
        waiting: &mut Vec<Self>,
    ) -> Result<IptablesPath, IptablesError> {
        loop {
            let end = if self.stack.is_empty() {
                let Some(stage) = self.stages.pop() else { break };
                self.enter(context, stage, waiting)
            } else {
                self.run_chain(context, waiting)?
            };
            if let StageEnd::Lost(verdict) = end {
                return Ok(self.into_path(verdict));
            }
        }
        let verdict = match (self.is_dnat, self.accepted) {
            (true, _) => TracedVerdict::Dnat,
            (false, true) => TracedVerdict::Accept,
            (false, false) => TracedVerdict::Untouched,
        };
        Ok(self.into_path(verdict))
    }

    fn into_path(self, verdict: TracedVerdict) -> IptablesPath {
        let is_lost = matches!(verdict, TracedVerdict::Drop | TracedVerdict::Reject);
        IptablesPath {
            probability: self.probability,
            verdict,
            destination: self.dst,
            masquerade: self.is_snat && !is_lost,
            accepted: self.accepted,
            mark: self.mark,
            rejected_with: self.rejected_with,
            remembered: self.remembered,
            persistence: self.persistence,
            counted: self.counted,
            steps: self.steps,
        }
    }

    fn enter(&mut self, context: &Context<'r>, stage: Stage, waiting: &mut Vec<Self>) -> StageEnd {
        if let (Stage::Chain("nat", "PREROUTING" | "OUTPUT"), Some(to)) = (stage, context.rewritten) {
            self.dst = to;
            self.is_dnat = true;
        }
        match stage {
            Stage::Routing => self.route(context),
            Stage::Ipvs => return self.balance(context, waiting),
            Stage::Chain("nat", hook) if !self.sees_nat(context, hook) => {}
            Stage::Chain(table, hook) => {
                if let Some(chain) = context.ruleset.chain(table, hook) {
                    self.table = table;
                    self.stack.push(Frame { name: hook, chain, next: 0 });
                }
            }
        }
        StageEnd::Continue
    }

    /// The routing decision, on the rewritten destination.
    fn route(&mut self, context: &Context<'r>) {
        match (context.from_node, context.node.is_local(self.dst.ip())) {
            (true, true) => {
                self.out_interface = Some("lo");
                self.in_interface = Some("lo");
                self.schedule(&INPUT);
                self.schedule(&PREROUTING);
                self.schedule(&POSTROUTING);
            }
            (true, false) => self.schedule(&POSTROUTING),
            (false, true) => self.schedule(&INPUT),
            (false, false) => {
                self.schedule(&POSTROUTING);
                self.schedule(&FORWARD);
            }
        }
    }

    /// Only a new connection, only until it is rewritten, and not again when a packet comes back over loopback.
    fn sees_nat(&self, context: &Context<'r>, hook: &str) -> bool {
        let is_decided = match hook {
            "PREROUTING" => self.is_dnat || context.from_node,
            "OUTPUT" => self.is_dnat || self.virtual_server.is_some(),
            "INPUT" => self.is_snat || context.from_node,
            _ => self.is_snat,
        };
        context.state == ConnectionState::New && !is_decided
    }

    /// IPVS takes a packet to a virtual server after the filter table of INPUT, or in OUTPUT; the packet then leaves
    /// through OUTPUT and POSTROUTING.
    fn balance(&mut self, context: &Context<'r>, waiting: &mut Vec<Self>) -> StageEnd {
        let protocol = protocol_number(context.packet.protocol);
        let server = context.node.virtual_servers.0.get(&(protocol, self.dst));
        let Some(server) = server.filter(|_| self.virtual_server.is_none()) else {
            return StageEnd::Continue;
        };
        let virtual_server = self.dst;
        let step = |what: &str| PacketTraceStep {
            rule: format!("ipvs {virtual_server}"),
            detail: format!("scheduler {}: {what}", server.scheduler),
        };
        let shares = server.shares();
        if shares.is_empty() {
            self.steps.push(step("no destination"));
            return StageEnd::Lost(TracedVerdict::Reject);
        }
        self.virtual_server = Some(virtual_server);
        self.is_dnat = true;
        self.persistence = server.persistence;
        self.stages.clear();
        self.schedule(&POSTROUTING);
        self.schedule(&[
            Stage::Chain("mangle", "OUTPUT"),
            Stage::Chain("filter", "OUTPUT"),
            Stage::Chain("security", "OUTPUT"),
        ]);
        let mut paths = shares.iter().map(|(address, share)| {
            let mut path = Self { dst: *address, probability: self.probability * share, ..self.clone() };
            path.steps.push(step(&format!("to {address}")));
            path
        });
        let first = paths.next().expect("there is a share");
        waiting.extend(paths);
        *self = first;
        StageEnd::Continue
    }

    /// Runs rules up to the end of the base chain.
    fn run_chain(
        &mut self,
        context: &Context<'r>,
        waiting: &mut Vec<Self>,
    ) -> Result<StageEnd, IptablesError> {
        while let Some(frame) = self.stack.last_mut() {
            let (name, chain) = (frame.name, frame.chain);
            let Some(rule) = chain.rules.get(frame.next) else {
                if self.stack.len() == 1 && chain.policy == Some(ChainPolicy::Drop) {
                    self.steps.push(self.step(context, name, "policy", "drop"));
                    return Ok(StageEnd::Lost(TracedVerdict::Drop));
                }
                self.stack.pop();
                continue;
            };
            frame.next += 1;
            if self.matches(context, rule, waiting).map_err(|error| in_rule(error, self.table, name, rule))?
                && let Some(end) = self.act(context, name, rule)?
            {
                self.stack.clear();
                return Ok(end);
            }
        }
        Ok(StageEnd::Continue)
    }

    /// Whether all conditions of a rule hold. The other path of a random one waits behind the rule.
    fn matches(
        &mut self,
        context: &Context<'r>,
        rule: &'r IptablesRule,
        waiting: &mut Vec<Self>,
    ) -> Result<bool, IptablesError> {
        if !self.matches_header(context, rule) {
            return Ok(false);
        }
        for condition in &rule.matches {
            match self.condition(context, condition)? {
                Outcome::Yes => {}
                Outcome::No => return Ok(false),
                Outcome::Random(0) => return Ok(false),
                Outcome::Random(FULL_PROBABILITY) => {}
                Outcome::Random(probability) => {
                    let share = f64::from(probability) / f64::from(FULL_PROBABILITY);
                    waiting.push(Self { probability: self.probability * (1.0 - share), ..self.clone() });
                    self.probability *= share;
                }
            }
        }
        Ok(true)
    }

    /// Runs the target; returns how the stage ended if it did.
    fn act(
        &mut self,
        context: &Context<'r>,
        name: &str,
        rule: &'r IptablesRule,
    ) -> Result<Option<StageEnd>, IptablesError> {
        let Some(target) = &rule.target else { return Ok(None) };
        let comment = rule.comment().map_or_else(|| rule.to_string().trim().to_string(), str::to_string);
        let mut did = target.to_string();
        let end = match target {
            IptablesTarget::Accept => {
                self.accepted |= self.table == "filter";
                Some(StageEnd::Continue)
            }
            IptablesTarget::Drop => Some(StageEnd::Lost(TracedVerdict::Drop)),
            IptablesTarget::Reject { with } => {
                self.rejected_with = Some(with.clone());
                Some(StageEnd::Lost(TracedVerdict::Reject))
            }
            IptablesTarget::Return => {
                // In a built-in chain it means the policy.
                let base = self.stack.first().expect("a rule runs in a chain").chain;
                self.stack.pop();
                let ends = self.stack.is_empty() && base.policy == Some(ChainPolicy::Drop);
                ends.then_some(StageEnd::Lost(TracedVerdict::Drop))
            }
            IptablesTarget::Mark(change) => {
                self.mark = (self.mark & !change.mask) ^ change.value;
                did = format!("mark {:#x}", self.mark);
                None
            }
            IptablesTarget::Dnat { address, port, .. } => {
                self.dst = SocketAddr::new(address.unwrap_or(self.dst.ip()), port.unwrap_or(self.dst.port()));
                self.is_dnat = true;
                did = format!("dnat to {}", self.dst);
                Some(StageEnd::Continue)
            }
            IptablesTarget::Snat { address, .. } => {
                self.rewrite_source(Some(*address));
                Some(StageEnd::Continue)
            }
            IptablesTarget::Masquerade { .. } => {
                let fits =
                    |address: &&IpAddr| address.is_ipv4() == self.src.is_ipv4() && !address.is_loopback();
                self.rewrite_source(context.node.addresses.iter().find(fits).copied());
                did = "masquerade".to_string();
                Some(StageEnd::Continue)
            }
            IptablesTarget::Jump(to) | IptablesTarget::Goto(to) => {
                let chains = &context.ruleset.tables[self.table].chains;
                let (to, chain) = chains.get_key_value(to).ok_or_else(|| {
                    in_rule(IptablesError::new(format!("unknown chain {to:?}")), self.table, name, rule)
                })?;
                if self.stack.len() >= MAX_DEPTH {
                    return Err(IptablesError::new(format!("chain {to} of table {} is a loop", self.table)));
                }
                if matches!(target, IptablesTarget::Goto(_)) && self.stack.len() > 1 {
                    self.stack.pop();
                } else if matches!(target, IptablesTarget::Goto(_)) {
                    // Falling out of the chain means the policy of the built-in one.
                    let frame = self.stack.first_mut().expect("a rule runs in a chain");
                    frame.next = frame.chain.rules.len();
                }
                did = format!("jump to {to}");
                self.stack.push(Frame { name: to, chain, next: 0 });
                None
            }
            IptablesTarget::Passive { .. } => None,
            IptablesTarget::Other { name: target, .. } => {
                let unknown = IptablesError::new(format!("unknown target {target:?}"));
                return Err(in_rule(unknown, self.table, name, rule));
            }
        };
        let step = self.step(context, name, &comment, did.trim().trim_start_matches("-j "));
        self.steps.push(step);
        Ok(end)
    }

    fn rewrite_source(&mut self, address: Option<IpAddr>) {
        self.is_snat = true;
        self.src.set_ip(address.unwrap_or(self.src.ip()));
    }

    fn step(&self, context: &Context<'r>, chain: &str, what: &str, did: &str) -> PacketTraceStep {
        let program = match context.ruleset.family {
            model::Family::V4 => "iptables",
            model::Family::V6 => "ip6tables",
        };
        PacketTraceStep {
            rule: format!("{program} {} {chain}", self.table),
            detail: format!("{what}: {did}"),
        }
    }
}

fn in_rule(error: IptablesError, table: &str, chain: &str, rule: &IptablesRule) -> IptablesError {
    IptablesError::new(format!("{} in table {table}: -A {chain}{rule}", error.message))
}

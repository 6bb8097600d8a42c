//! The rules that a node has now, with and without those of kube-proxy.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use model::{Family, ForwardingTable};

use super::compare::{ChangeCause, FlowChange};
use super::{FlowOrigin, FlowOutcome, FlowTarget, MigrationFlow};
use crate::backend::{BackendError, NodeBackend, TracedVerdict};
use crate::iptables::IptablesBackend;
use crate::iptables::fake::FakeIptables;
use crate::iptables::render::KernelFeatures;
use crate::iptables::ruleset::{
    ConnectionState, IpSets, IptablesEvaluation, IptablesMatch, IptablesNode, IptablesRule, IptablesRuleset,
    IptablesTarget, IpvsServers, evaluate, evaluate_rewritten, evaluate_state,
};
use crate::ipvs::IpvsScheduler;
use crate::nftables::ir::Ruleset;
use crate::nftables::render::protocol_number;
use crate::nftables::trace::{self as nftables, Evaluation, NodeAddresses, TracedPacket};

/// Rules of modes iptables and ipvs, with those of other programs beside them.
#[derive(Clone, Debug)]
pub struct InstalledIptables {
    pub v4: IptablesRuleset,
    pub v6: IptablesRuleset,
    pub sets: IpSets,
    /// Empty in mode iptables.
    pub virtual_servers: IpvsServers,
    /// Whether the rules were read with their counters.
    pub has_counters: bool,
}

/// The rules that a node has.
#[derive(Clone, Debug)]
pub enum InstalledRules {
    Iptables(Box<InstalledIptables>),
    /// The tables of kube-proxy's mode nftables. Tables of other programs are not among them: an accept in one table
    /// does not override a drop in another, so that they decide the same before and after.
    Nftables(Ruleset),
}

/// The kubelet's own chains; every other `KUBE-` chain is kube-proxy's.
const KUBELET_CHAINS: [&str; 3] = ["KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"];

fn is_kube_proxys(chain: &str) -> bool {
    chain.starts_with("KUBE-") && !KUBELET_CHAINS.contains(&chain)
}

impl InstalledRules {
    /// The node of these rules. In mode ipvs it has the addresses of its virtual servers.
    pub(super) fn node(&self, addresses: &[IpAddr]) -> IptablesNode {
        let mut node = IptablesNode::new(addresses);
        if let Self::Iptables(rules) = self {
            let servers: BTreeSet<IpAddr> =
                rules.virtual_servers.0.keys().map(|(_, address)| address.ip()).collect();
            node.addresses.extend(servers);
            node.sets = rules.sets.clone();
            node.virtual_servers = rules.virtual_servers.clone();
        }
        node
    }

    /// What these rules do with a packet.
    pub(super) fn before(&self, flow: &MigrationFlow, node: &IptablesNode) -> Result<FlowOutcome, String> {
        match self {
            Self::Iptables(rules) => rules.evaluate(flow, node).map(|found| found.into_trace().into()),
            Self::Nftables(_) if flow.target == FlowTarget::Invalid => Ok(passes()),
            Self::Nftables(ruleset) => {
                let mut packet = TracedPacket::new(
                    protocol_number(flow.packet.protocol),
                    flow.packet.src,
                    flow.packet.dst,
                );
                packet.iif = flow.packet.iif.as_ref().map(|name| name.as_str().into());
                let node = NodeAddresses { addresses: node.addresses.clone() };
                let found = nftables::evaluate(ruleset, &packet, &node).map_err(|error| error.to_string())?;
                Ok(nftables_outcome(ruleset, found))
            }
        }
    }

    /// The rules that stay when kube-proxy's are removed.
    pub(super) fn without_kube_proxy(&self) -> Self {
        match self {
            Self::Iptables(rules) => Self::Iptables(Box::new(rules.without_kube_proxy())),
            Self::Nftables(_) => Self::Nftables(Ruleset::default()),
        }
    }

    /// These rules with our chains of mode iptables among them.
    pub(super) fn with_chains_of(&self, table: &ForwardingTable) -> Result<Self, BackendError> {
        let mut rules = match self {
            Self::Iptables(rules) => (**rules).clone(),
            Self::Nftables(_) => InstalledIptables::default(),
        };
        let fake = FakeIptables::with_rules([rules.v4, rules.v6]);
        let fake = Arc::new(Mutex::new(fake));
        IptablesBackend::new(Box::new(fake.clone()), KernelFeatures::default()).load(table)?;
        let held = fake.lock().unwrap_or_else(PoisonError::into_inner);
        (rules.v4, rules.v6) = (held.ruleset(Family::V4).clone(), held.ruleset(Family::V6).clone());
        Ok(Self::Iptables(Box::new(rules)))
    }

    /// What our rules and these do with a packet, given what ours alone do.
    pub(super) fn after(
        &self,
        flow: &MigrationFlow,
        ours: &FlowOutcome,
        node: &IptablesNode,
    ) -> Result<FlowOutcome, String> {
        // No rule of ours matches a state.
        if flow.target == FlowTarget::Invalid {
            return self.before(flow, node);
        }
        match self {
            Self::Iptables(rules) if !ours.is_lost() => rules.after(flow, ours, node),
            _ => Ok(ours.clone()),
        }
    }

    /// Packets that the rule for this flow has counted: only rules for localhost node ports and INVALID packets tell.
    pub(super) fn packets(&self, flow: &MigrationFlow) -> Option<u64> {
        let Self::Iptables(rules) = self else { return None };
        if !rules.has_counters {
            return None;
        }
        let ruleset = rules.family(flow);
        let port = flow.packet.dst.port();
        let rule = match flow.target {
            FlowTarget::LocalhostNodePort => {
                let mut rules = ruleset.chain("nat", "KUBE-NODEPORTS")?.rules.iter();
                rules.find(|rule| is_localhost_port(rule, port))
            }
            FlowTarget::Invalid => {
                ruleset.chain("filter", "KUBE-FORWARD")?.rules.iter().find(|rule| is_invalid_drop(rule))
            }
            _ => None,
        };
        rule.map(|rule| rule.counters.packets)
    }

    /// Changes that no packet shows: schedulers that remember or compare, and rules of other programs that use a chain
    /// of kube-proxy that is not among the rules then. `scheduler` is that of our mode ipvs.
    pub(super) fn other_changes(
        &self,
        flows: &[MigrationFlow],
        scheduler: Option<IpvsScheduler>,
        then: &Self,
    ) -> Vec<FlowChange> {
        let Self::Iptables(rules) = self else { return Vec::new() };
        let stays = |family: Family, table: &str, chain: &str| match then {
            Self::Iptables(then) => then.of(family).chain(table, chain).is_some(),
            Self::Nftables(_) => false,
        };
        let mut changes = rules.schedulers(flows, scheduler);
        changes.extend(rules.users_of_chains(&stays));
        changes
    }
}

/// kube-proxy remembers clients in a set per endpoint, with the timeout of the set.
fn nftables_outcome(ruleset: &Ruleset, found: Evaluation) -> FlowOutcome {
    let typical = found.paths.iter().find(|path| path.verdict == found.verdict);
    let updates = typical.map(|path| path.updates.as_slice()).unwrap_or_default();
    let timeouts = updates
        .iter()
        .filter(|update| update.value.is_some())
        .filter_map(|update| ruleset.tables.get(&update.table)?.sets.get(&update.set)?.spec.timeout);
    let affinity = found.affinity.or(timeouts.max());
    let rule = typical.and_then(|path| path.steps.last());
    FlowOutcome {
        verdict: found.verdict,
        masquerade: found.masquerade && found.verdict == TracedVerdict::Dnat,
        affinity_seconds: affinity.map(|milliseconds| milliseconds / 1000),
        rule: rule.map(|step| format!("nftables {} {}: {}", step.table, step.chain, step.did)),
        endpoints: found.endpoints,
    }
}

fn passes() -> FlowOutcome {
    FlowOutcome {
        verdict: TracedVerdict::Untouched,
        endpoints: Vec::new(),
        masquerade: false,
        affinity_seconds: None,
        rule: None,
    }
}

fn is_localhost_port(rule: &IptablesRule, port: u16) -> bool {
    let is_loopback =
        rule.destination.as_ref().is_some_and(|net| !net.negated && net.value.addr().is_loopback());
    is_loopback
        && rule.matches.iter().any(|found| match found {
            IptablesMatch::Ports { destination: Some(ports), .. } => {
                !ports.negated && ports.value.first == port && ports.value.last == port
            }
            _ => false,
        })
}

fn is_invalid_drop(rule: &IptablesRule) -> bool {
    let matches_state = |found: &IptablesMatch| match found {
        IptablesMatch::Conntrack { states, .. } => states.value.invalid && !states.negated,
        _ => false,
    };
    rule.target == Some(IptablesTarget::Drop) && rule.matches.iter().any(matches_state)
}

impl Default for InstalledIptables {
    /// No rules.
    fn default() -> Self {
        Self {
            v4: IptablesRuleset::new(Family::V4),
            v6: IptablesRuleset::new(Family::V6),
            sets: IpSets::default(),
            virtual_servers: IpvsServers::default(),
            has_counters: false,
        }
    }
}

impl InstalledIptables {
    fn of(&self, family: Family) -> &IptablesRuleset {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    fn family(&self, flow: &MigrationFlow) -> &IptablesRuleset {
        self.of(Family::of(flow.packet.dst.ip()))
    }

    fn evaluate(&self, flow: &MigrationFlow, node: &IptablesNode) -> Result<IptablesEvaluation, String> {
        let state = match flow.target {
            FlowTarget::Invalid => ConnectionState::Invalid,
            _ => ConnectionState::New,
        };
        let mut packet = flow.packet.clone();
        // The interface of mode ipvs has the virtual address, so that the node's own packets to it come from it.
        let key = (protocol_number(packet.protocol), packet.dst);
        if flow.origin == FlowOrigin::Node && self.virtual_servers.0.contains_key(&key) {
            packet.src.set_ip(packet.dst.ip());
        }
        evaluate_state(self.family(flow), &packet, node, state).map_err(|error| error.to_string())
    }

    fn after(
        &self,
        flow: &MigrationFlow,
        ours: &FlowOutcome,
        node: &IptablesNode,
    ) -> Result<FlowOutcome, String> {
        let ruleset = self.family(flow);
        if ours.verdict != TracedVerdict::Dnat {
            let found = evaluate(ruleset, &flow.packet, node).map_err(|error| error.to_string())?;
            let outcome = FlowOutcome::from(found.into_trace());
            return Ok(if outcome.is_lost() {
                outcome
            } else {
                FlowOutcome { rule: outcome.rule, ..ours.clone() }
            });
        }
        // An endpoint that other rules block is as good as none; the first such rule is reported.
        for (endpoint, _) in &ours.endpoints {
            let found = evaluate_rewritten(ruleset, &flow.packet, node, *endpoint);
            let outcome = FlowOutcome::from(found.map_err(|error| error.to_string())?.into_trace());
            if outcome.is_lost() {
                return Ok(FlowOutcome { endpoints: Vec::new(), ..outcome });
            }
        }
        Ok(ours.clone())
    }

    fn without_kube_proxy(&self) -> Self {
        let stays = |rule: &IptablesRule| !rule.chain().is_some_and(is_kube_proxys);
        let reduced = |ruleset: &IptablesRuleset| {
            let mut reduced = ruleset.clone();
            for table in reduced.tables.values_mut() {
                table.chains.retain(|name, _| !is_kube_proxys(name));
                for chain in table.chains.values_mut() {
                    chain.rules.retain(stays);
                }
            }
            reduced
        };
        let mut sets = self.sets.clone();
        sets.0.retain(|name, _| !name.starts_with("KUBE-"));
        Self {
            v4: reduced(&self.v4),
            v6: reduced(&self.v6),
            sets,
            virtual_servers: IpvsServers::default(),
            has_counters: self.has_counters,
        }
    }

    /// One change per virtual server with another scheduler than ours. In other modes endpoints are chosen at random, from
    /// which neither rr nor wrr differs for long.
    fn schedulers(&self, flows: &[MigrationFlow], ours: Option<IpvsScheduler>) -> Vec<FlowChange> {
        let is_same = |scheduler: &str| match ours {
            Some(ours) => scheduler == ours.as_str(),
            None => matches!(scheduler, "rr" | "wrr"),
        };
        let mut seen: BTreeSet<(u8, SocketAddr)> = BTreeSet::new();
        let mut changes = Vec::new();
        for flow in flows {
            let key = (protocol_number(flow.packet.protocol), flow.packet.dst);
            let Some(server) = self.virtual_servers.0.get(&key) else { continue };
            if is_same(&server.scheduler) || !seen.insert(key) {
                continue;
            }
            changes.push(FlowChange {
                service: flow.service.clone(),
                target: flow.target,
                origins: [flow.origin].into(),
                address: flow.packet.dst.to_string(),
                before: format!("scheduler {}", server.scheduler),
                after: match ours {
                    Some(ours) => format!("scheduler {}", ours.as_str()),
                    None => "random choice".to_owned(),
                },
                cause: ChangeCause::Scheduler,
                rule: None,
                packets: None,
            });
        }
        changes
    }

    /// Rules of other programs that jump to chains of kube-proxy, such as KUBE-MARK-MASQ.
    fn users_of_chains(&self, stays: &dyn Fn(Family, &str, &str) -> bool) -> Vec<FlowChange> {
        let mut changes = Vec::new();
        for ruleset in [&self.v4, &self.v6] {
            for (table_name, table) in &ruleset.tables {
                let foreign = table.chains.iter().filter(|(name, chain)| {
                    // Jumps from built-in chains are kube-proxy's own.
                    chain.policy.is_none() && !name.starts_with("KUBE-")
                });
                for (name, chain) in foreign {
                    let is_gone = |to: &&str| is_kube_proxys(to) && !stays(ruleset.family, table_name, to);
                    let used = chain.rules.iter().find_map(|rule| rule.chain().filter(is_gone));
                    let Some(used) = used else { continue };
                    changes.push(FlowChange {
                        service: None,
                        target: FlowTarget::Frontend(model::forward::FrontendKind::NodePort),
                        origins: BTreeSet::new(),
                        address: format!("{} chain {table_name} {name}", ruleset.family),
                        before: format!("uses {used}"),
                        after: format!("{used} is gone"),
                        cause: ChangeCause::ChainUsed,
                        rule: None,
                        packets: None,
                    });
                }
            }
        }
        changes
    }
}

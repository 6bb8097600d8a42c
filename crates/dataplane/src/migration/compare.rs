//! The difference between two outcomes, its cause and its remedy.

use std::collections::{BTreeMap, BTreeSet};

use model::ForwardingTable;
use model::forward::FrontendKind;

use super::{FlowOrigin, FlowOutcome, FlowTarget, MigrationFlow};
use crate::backend::TracedVerdict;

/// The share of one slot in the smallest table of unequal shares.
const ONE_SLOT: f64 = 1.0 / 256.0;

/// Why a flow changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeCause {
    LocalhostNodePort,
    NodePortAddress,
    FirewallAccept,
    InvalidDrop,
    Scheduler,
    ChainUsed,
    Endpoints,
    Shares,
    Affinity,
    Masquerade,
    UnusedPort,
    ExternalAddress,
    Verdict,
}

impl ChangeCause {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LocalhostNodePort => "LocalhostNodePort",
            Self::NodePortAddress => "NodePortAddress",
            Self::FirewallAccept => "FirewallAccept",
            Self::InvalidDrop => "InvalidDrop",
            Self::Scheduler => "Scheduler",
            Self::ChainUsed => "ChainUsed",
            Self::Endpoints => "Endpoints",
            Self::Shares => "Shares",
            Self::Affinity => "Affinity",
            Self::Masquerade => "Masquerade",
            Self::UnusedPort => "UnusedPort",
            Self::ExternalAddress => "ExternalAddress",
            Self::Verdict => "Verdict",
        }
    }

    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::LocalhostNodePort => {
                "let the client use the cluster IP, or the node port on an address of the node; or serve TCP there: \
                 feature gate KubeProxyNFTablesLocalhostNodePorts, and localhost in nodePortAddresses"
            }
            Self::NodePortAddress => {
                "if clients use this address, set nodePortAddresses to [all] or to ranges that contain it"
            }
            Self::FirewallAccept => {
                "allow this traffic in the firewall before the move: a chain of kube-proxy accepts it now, and the \
                 rule named here drops it then"
            }
            Self::InvalidDrop => {
                "set conntrack.tcpBeLiberal to true if clients see resets: packets out of the TCP window are \
                 forwarded instead of dropped"
            }
            Self::Scheduler => {
                "where clients must keep their endpoint, set sessionAffinity to ClientIP; for least-connection \
                 schedulers use mode ipvs"
            }
            Self::ChainUsed => {
                "configure the owner of this rule to masquerade on its own, such as without externalSetMarkChain in \
                 the CNI plugin portmap"
            }
            Self::Endpoints => {
                "check that objects and rules are of the same time and node; otherwise kube-proxy has other feature \
                 gates, does not know this traffic distribution, or applies externalTrafficPolicy Local to pods and \
                 the node, too (mode ipvs)"
            }
            Self::Shares => "none needed: endpoints get shares of the Service's traffic distribution",
            Self::Affinity => {
                "compare spec.sessionAffinityConfig with the rules: kube-proxy may not have synced"
            }
            Self::Masquerade => {
                "check clusterCIDR, detectLocalMode and masqueradeAll in the configuration: backends see another \
                 client address"
            }
            Self::UnusedPort => {
                "none needed: a connection to a port that no Service has is refused instead of leaving the node"
            }
            Self::ExternalAddress => {
                "check the clients of this address: without endpoints its traffic is handled here instead of being \
                 routed on"
            }
            Self::Verdict => "check the clients of this address before the move",
        }
    }
}

/// One flow, or flows that differ only in their origin, that change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowChange {
    /// The Service port as `ns/name:port`; none for traffic of no Service.
    pub service: Option<String>,
    pub target: FlowTarget,
    pub origins: BTreeSet<FlowOrigin>,
    /// The destination, or the rule of another program.
    pub address: String,
    pub before: String,
    pub after: String,
    pub cause: ChangeCause,
    /// The rule that decides then, if it is not ours.
    pub rule: Option<String>,
    /// Packets that the rule of kube-proxy has counted.
    pub packets: Option<u64>,
}

/// What changes, if anything. `ours` is the outcome without the other rules of the node.
pub(super) fn compare(
    table: &ForwardingTable,
    flow: &MigrationFlow,
    before: FlowOutcome,
    ours: &FlowOutcome,
    after: FlowOutcome,
    packets: Option<u64>,
) -> Option<FlowChange> {
    let cause = cause(table, flow, &before, ours, &after)?;
    let is_firewall = cause == ChangeCause::FirewallAccept;
    let (before_text, after_text) = texts(cause, &before, &after);
    Some(FlowChange {
        service: flow.service.clone(),
        target: flow.target,
        origins: [flow.origin].into(),
        address: format!("{} {}", flow.packet.protocol, flow.packet.dst),
        before: before_text,
        after: after_text,
        cause,
        rule: after.rule.filter(|_| is_firewall),
        packets,
    })
}

fn cause(
    table: &ForwardingTable,
    flow: &MigrationFlow,
    before: &FlowOutcome,
    ours: &FlowOutcome,
    after: &FlowOutcome,
) -> Option<ChangeCause> {
    if before.verdict == after.verdict {
        return same_verdict(flow, before, after);
    }
    // Nothing listens there, so that the kernel refuses it.
    if flow.target == FlowTarget::LocalhostNodePort && before.verdict != TracedVerdict::Dnat {
        return None;
    }
    if flow.target == FlowTarget::Invalid {
        return Some(ChangeCause::InvalidDrop);
    }
    if after.is_lost() && !ours.is_lost() && flow.target != FlowTarget::LocalhostNodePort {
        return Some(ChangeCause::FirewallAccept);
    }
    let is_gone = before.verdict == TracedVerdict::Dnat && after.verdict == TracedVerdict::Untouched;
    let takes_node_ports = table.node.takes_node_ports(flow.packet.dst.ip());
    Some(match flow.target {
        FlowTarget::LocalhostNodePort => ChangeCause::LocalhostNodePort,
        FlowTarget::UnusedPort => ChangeCause::UnusedPort,
        FlowTarget::Frontend(FrontendKind::NodePort) if is_gone || !takes_node_ports => {
            ChangeCause::NodePortAddress
        }
        FlowTarget::Frontend(FrontendKind::ExternalIp | FrontendKind::LoadBalancer) => {
            ChangeCause::ExternalAddress
        }
        _ => ChangeCause::Verdict,
    })
}

fn same_verdict(flow: &MigrationFlow, before: &FlowOutcome, after: &FlowOutcome) -> Option<ChangeCause> {
    if before.verdict != TracedVerdict::Dnat {
        return None;
    }
    let addresses = |of: &FlowOutcome| of.endpoints.iter().map(|(address, _)| *address).collect::<Vec<_>>();
    if addresses(before) != addresses(after) {
        return Some(ChangeCause::Endpoints);
    }
    let mut pairs = before.endpoints.iter().zip(&after.endpoints);
    if pairs.any(|((_, left), (_, right))| (left - right).abs() > ONE_SLOT) {
        return Some(ChangeCause::Shares);
    }
    if before.affinity_seconds != after.affinity_seconds {
        return Some(ChangeCause::Affinity);
    }
    // An endpoint among others is masqueraded only on the way to itself, which the outcome does not tell apart.
    let is_one_of_many = flow.origin == FlowOrigin::Endpoint && before.endpoints.len() > 1;
    (before.masquerade != after.masquerade && !is_one_of_many).then_some(ChangeCause::Masquerade)
}

fn texts(cause: ChangeCause, before: &FlowOutcome, after: &FlowOutcome) -> (String, String) {
    let text = |outcome: &FlowOutcome| match cause {
        ChangeCause::Affinity => match outcome.affinity_seconds {
            Some(seconds) => format!("affinity {seconds}s"),
            None => "no affinity".to_owned(),
        },
        ChangeCause::Masquerade if outcome.masquerade => "masqueraded".to_owned(),
        ChangeCause::Masquerade => "source kept".to_owned(),
        ChangeCause::Endpoints => list(outcome, |(address, _)| address.to_string()),
        ChangeCause::Shares => list(outcome, |(address, share)| format!("{address} {:.1} %", share * 100.0)),
        _ => verdict(outcome),
    };
    (text(before), text(after))
}

fn list(outcome: &FlowOutcome, text: impl Fn(&(std::net::SocketAddr, f64)) -> String) -> String {
    const SHOWN: usize = 4;
    let mut list: Vec<String> = outcome.endpoints.iter().take(SHOWN).map(text).collect();
    if outcome.endpoints.len() > SHOWN {
        list.push(format!("and {} more", outcome.endpoints.len() - SHOWN));
    }
    list.join(", ")
}

fn verdict(outcome: &FlowOutcome) -> String {
    match outcome.verdict {
        TracedVerdict::Dnat if outcome.endpoints.len() == 1 => "to 1 endpoint".to_owned(),
        TracedVerdict::Dnat => format!("to {} endpoints", outcome.endpoints.len()),
        TracedVerdict::Reject => "refused".to_owned(),
        TracedVerdict::Drop => "dropped".to_owned(),
        TracedVerdict::Accept | TracedVerdict::Untouched => "passed on".to_owned(),
    }
}

/// Joins changes that differ only in their origin, sorted by Service.
pub(super) fn merged(changes: Vec<FlowChange>) -> Vec<FlowChange> {
    let mut merged = BTreeMap::new();
    for change in changes {
        let FlowChange { service, target, origins, address, before, after, cause, rule, packets } = change;
        let key = (service.is_none(), service, target, address, cause, before, after, rule, packets);
        merged.entry(key).or_insert_with(BTreeSet::new).extend(origins);
    }
    let change = |(key, origins)| {
        let (_, service, target, address, cause, before, after, rule, packets) = key;
        FlowChange { service, target, origins, address, before, after, cause, rule, packets }
    };
    merged.into_iter().map(change).collect()
}

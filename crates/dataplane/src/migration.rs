//! What changes for the traffic of a node when Zoneward's rules replace those of kube-proxy.
//!
//! ```text
//! ForwardingTable -> flows -> kube-proxy's rules, and the node's other rules -> outcome before --\
//!                          -> our rules, and the node's other rules          -> outcome after  ---+-> changes
//! ```
//!
//! Both rule sets are evaluated with the same packets, and only differences are reported. Other rules of the node, such
//! as a firewall's, are evaluated in both: a packet that a chain of kube-proxy accepted may meet a drop without it.

mod compare;
mod flow;
mod installed;

use std::net::{IpAddr, SocketAddr};

use model::ForwardingTable;
use model::forward::ForwardingMode;

use crate::backend::{BackendError, NodeBackend, PacketTrace, TracedVerdict};
use crate::ipvs::IpvsScheduler;

pub use compare::{ChangeCause, FlowChange};
pub use flow::{FlowOrigin, FlowTarget, HealthCheckPort, MigrationFlow, flows};
pub use installed::{InstalledIptables, InstalledRules};

/// What happens to a packet.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowOutcome {
    /// `Untouched` if the packet passes, whether or not a rule accepted it.
    pub verdict: TracedVerdict,
    /// Endpoints with their probabilities, sorted by address.
    pub endpoints: Vec<(SocketAddr, f64)>,
    pub masquerade: bool,
    /// Session affinity timeout in seconds.
    pub affinity_seconds: Option<u64>,
    /// The last rule that matched.
    pub rule: Option<String>,
}

impl From<PacketTrace> for FlowOutcome {
    fn from(trace: PacketTrace) -> Self {
        let verdict = match trace.verdict {
            TracedVerdict::Accept => TracedVerdict::Untouched,
            verdict => verdict,
        };
        Self {
            verdict,
            masquerade: trace.masquerade && verdict == TracedVerdict::Dnat,
            affinity_seconds: trace.affinity.map(|milliseconds| milliseconds / 1000),
            rule: trace.steps.last().map(|step| format!("{}: {}", step.rule, step.detail)),
            endpoints: trace.endpoints,
        }
    }
}

impl FlowOutcome {
    fn is_lost(&self) -> bool {
        matches!(self.verdict, TracedVerdict::Drop | TracedVerdict::Reject)
    }
}

/// The result for a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MigrationReport {
    /// Flows that were evaluated.
    pub flows: usize,
    pub changes: Vec<FlowChange>,
    /// Localhost node ports and drops of INVALID packets that counters show as unused.
    pub unused: Vec<FlowChange>,
    /// Rules that could not be evaluated, each once.
    pub unevaluated: Vec<String>,
}

/// Compares the rules that are installed with ours, which `backend` holds. `addresses` are the node's own, `scheduler` is
/// that of mode ipvs.
pub fn check(
    table: &ForwardingTable,
    flows: &[MigrationFlow],
    installed: &InstalledRules,
    backend: &mut dyn NodeBackend,
    addresses: &[IpAddr],
    scheduler: IpvsScheduler,
) -> Result<MigrationReport, BackendError> {
    let packets: Vec<_> = flows.iter().map(|flow| flow.packet.clone()).collect();
    let ours = backend.trace(&packets, addresses)?;
    let mut remaining = installed.without_kube_proxy();
    let is_iptables = table.node.mode == ForwardingMode::Iptables;
    if is_iptables {
        // Our chains stand among the rules of other programs, in the place of kube-proxy's.
        remaining = remaining.with_chains_of(table)?;
    }
    let (node_before, node_after) = (installed.node(addresses), remaining.node(addresses));
    let mut report = MigrationReport { flows: flows.len(), ..MigrationReport::default() };
    for (flow, ours) in flows.iter().zip(ours) {
        let ours = FlowOutcome::from(ours);
        let outcomes = installed.before(flow, &node_before).and_then(|before| {
            let after = match is_iptables {
                true => remaining.before(flow, &node_after)?,
                false => remaining.after(flow, &ours, &node_after)?,
            };
            Ok((before, after))
        });
        match outcomes {
            Ok((before, after)) => {
                let packets = installed.packets(flow);
                let change = compare::compare(table, flow, before, &ours, after, packets);
                match change {
                    Some(change) if packets == Some(0) => report.unused.push(change),
                    change => report.changes.extend(change),
                }
            }
            Err(error) if report.unevaluated.contains(&error) => {}
            Err(error) => report.unevaluated.push(error),
        }
    }
    let scheduler = (table.node.mode == ForwardingMode::Ipvs).then_some(scheduler);
    report.changes.extend(installed.other_changes(flows, scheduler, &remaining));
    report.changes = compare::merged(report.changes);
    report.unused = compare::merged(report.unused);
    Ok(report)
}

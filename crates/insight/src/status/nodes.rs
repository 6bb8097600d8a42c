//! The nodes by what they report: current, behind, or silent.

use serde::{Deserialize, Serialize};

use super::{NodeCounts, PastOutage};

/// A node is silent after this time without a renewed Lease: its leaseDurationSeconds.
const SILENT_AFTER_SECONDS: u64 = 90;
/// A node may lag this long: three renewals of its Lease.
const GRACE_SECONDS: u64 = 30;

/// What is known of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReportState {
    pub name: String,
    pub zone: Option<String>,
    pub ready: bool,
    /// The highest EndpointSlice resourceVersion that its kernel holds.
    pub revision: u64,
    /// Services whose EndpointSlices are newer.
    pub services_behind: usize,
    /// Seconds since the oldest of those was written.
    pub behind_seconds: u64,
    /// Seconds since its Lease was renewed.
    pub report_age_seconds: u64,
    /// Services that it failed to program.
    pub failed: Vec<String>,
    /// How often tables were restored that others had modified.
    pub repairs: Option<u64>,
    /// Overflows of its conntrack events.
    pub lost_events: Option<u64>,
    /// The last time that it served without the API.
    pub last_outage: Option<PastOutage>,
}

/// How far a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    Silent,
    Behind,
    Current,
    /// Its Node is not Ready, so nothing is expected of it.
    NotReady,
}

impl NodeState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Behind => "behind",
            Self::Current => "current",
            Self::NotReady => "not ready",
        }
    }
}

/// The state of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    pub name: String,
    pub zone: Option<String>,
    pub state: NodeState,
    pub revision: u64,
    /// Services with EndpointSlices that its kernel does not hold yet.
    pub services_behind: usize,
    pub report_age_seconds: u64,
    pub failed_services: Vec<String>,
    pub repairs: Option<u64>,
    pub lost_events: Option<u64>,
    /// The last time that it served without the API, since its node proxy started.
    #[serde(default)]
    pub last_outage: Option<PastOutage>,
}

fn state(node: &NodeReportState) -> NodeState {
    if !node.ready {
        NodeState::NotReady
    } else if node.report_age_seconds > SILENT_AFTER_SECONDS {
        NodeState::Silent
    } else if !node.failed.is_empty() || (node.services_behind > 0 && node.behind_seconds >= GRACE_SECONDS) {
        NodeState::Behind
    } else {
        NodeState::Current
    }
}

/// The nodes, those that need attention first.
pub(super) fn statuses(nodes: Vec<NodeReportState>) -> Vec<NodeStatus> {
    let status = |node: NodeReportState| NodeStatus {
        state: state(&node),
        name: node.name,
        zone: node.zone,
        revision: node.revision,
        services_behind: node.services_behind,
        report_age_seconds: node.report_age_seconds,
        failed_services: node.failed,
        repairs: node.repairs,
        lost_events: node.lost_events,
        last_outage: node.last_outage,
    };
    let mut statuses: Vec<NodeStatus> = nodes.into_iter().map(status).collect();
    statuses.sort_by(|a, b| (a.state, &a.name).cmp(&(b.state, &b.name)));
    statuses
}

pub(super) fn counts(nodes: &[NodeStatus], without_proxy: usize) -> NodeCounts {
    let named = |state| nodes.iter().filter(move |node| node.state == state).map(|node| node.name.clone());
    NodeCounts {
        current: named(NodeState::Current).count(),
        behind: named(NodeState::Behind).collect(),
        silent: named(NodeState::Silent).collect(),
        without_proxy,
    }
}

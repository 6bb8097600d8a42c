//! The three conditions of KEP-4444 ("Status Reporting") on a Service, under our own prefix.
//!
//! Their texts hold no counts: a condition is written when it turns, not whenever a pod or a node changes. The numbers
//! are in the Notices, in `status` and in metrics.

use super::HintOutcome;

/// The value was recognised.
pub const ACCEPTED: &str = "zoneward.dev/TrafficDistributionAccepted";
/// The slices say it.
pub const PROGRAMMED: &str = "zoneward.dev/TrafficDistributionProgrammed";
/// The nodes do it.
pub const HONORED: &str = "zoneward.dev/TrafficDistributionHonored";

/// A condition without its times, which are the writer's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// One of the three types.
    pub kind: &'static str,
    /// True, False or Unknown.
    pub status: Status,
    /// A word for programs.
    pub reason: &'static str,
    /// What it means and what to do.
    pub message: String,
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// Nobody can tell.
    Unknown,
}

impl Status {
    /// As in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Ready nodes that run a node proxy, by whether they have programmed the Service's slices as they are now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeAcks {
    /// Nodes that have reached the slices' resourceVersion.
    pub reached: usize,
    /// Nodes that have not, or say that they failed.
    pub waiting: usize,
}

/// Accepted, Programmed and Honored of a Service, from the outcomes of its address families.
///
/// A Service that asks for nothing ([`HintOutcome::requested`] is false for all) has no use for them: whoever writes
/// conditions leaves them out, and takes old ones away.
pub fn conditions(outcomes: &[HintOutcome], acks: NodeAcks) -> [Condition; 3] {
    let programmed = programmed(outcomes);
    let honored = honored(programmed.status, acks);
    [accepted(outcomes), programmed, honored]
}

fn accepted(outcomes: &[HintOutcome]) -> Condition {
    let condition = |status, reason, message| Condition { kind: ACCEPTED, status, reason, message };
    if let Some(refusal) = outcomes.iter().find_map(|o| o.accepted.as_ref().err()) {
        return condition(Status::False, "UnsupportedValue", refusal.clone());
    }
    let Some(first) = outcomes.iter().find(|o| o.requested) else {
        return condition(
            Status::Unknown,
            "NotRequested",
            "The Service asks for no traffic distribution.".into(),
        );
    };
    match &first.overridden {
        Some(overridden) => condition(Status::True, "Overridden", overridden.clone()),
        None => condition(Status::True, "Accepted", format!("{} is known.", first.source)),
    }
}

fn programmed(outcomes: &[HintOutcome]) -> Condition {
    let condition = |status, reason, message| Condition { kind: PROGRAMMED, status, reason, message };
    if !outcomes.iter().any(|o| o.requested) {
        return condition(Status::False, "NotRequested", "Traffic spreads evenly over all endpoints.".into());
    }
    if let Some((family, reason, sentence)) = outcomes.iter().find_map(|o| {
        let (reason, sentence) = o.held_back?;
        Some((o.family, reason, sentence))
    }) {
        let message =
            format!("{sentence} The Events say the numbers and what would help. Address family: {family}.");
        return condition(Status::False, reason, message);
    }
    match outcomes.iter().find(|o| o.programmed) {
        Some(outcome) => condition(
            Status::True,
            "Programmed",
            format!("The EndpointSlices say {}.", outcome.mechanism.as_str()),
        ),
        None => condition(Status::False, "NoMechanism", "Traffic spreads evenly over all endpoints.".into()),
    }
}

/// Design, "Honored": every Ready node that runs a node proxy has reached the Service's slices.
fn honored(programmed: Status, acks: NodeAcks) -> Condition {
    let (status, reason, message) = match acks {
        _ if programmed != Status::True => (Status::False, "NotProgrammed", "There is nothing to honor yet."),
        NodeAcks { reached: 0, waiting: 0 } => {
            (Status::Unknown, "NoNodeProxy", "No ready node runs a Zoneward node proxy, so nobody can tell.")
        }
        NodeAcks { waiting: 0, .. } => {
            (Status::True, "Honored", "Every ready node that runs a node proxy has programmed the slices.")
        }
        _ => (
            Status::False,
            "NodesBehind",
            "Some ready nodes have not programmed the slices yet; `zoneward status` names them.",
        ),
    };
    Condition { kind: HONORED, status, reason, message: message.to_owned() }
}

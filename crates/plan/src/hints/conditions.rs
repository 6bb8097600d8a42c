//! The three conditions of KEP-4444 ("Status Reporting") on a Service, with our own prefix.
//!
//! Messages hold no numbers that change with every pod: the numbers are in Events and metrics. Only the message about nodes
//! that are behind changes by itself; it is updated at most once a minute ([`Condition::or_previous`]).

use std::time::Duration;

use model::Name;
use model::service::condition_text;

use super::HintOutcome;
use crate::condition_status::ConditionStatus;

/// How many nodes that are behind a message lists.
pub const LISTED_NODES: usize = 3;
/// The minimum interval between updates of Honored while only the nodes that are behind change.
pub const NODES_BEHIND_INTERVAL: Duration = Duration::from_secs(60);

pub const ACCEPTED: &str = "zoneward.dev/TrafficDistributionAccepted";
pub const PROGRAMMED: &str = "zoneward.dev/TrafficDistributionProgrammed";
pub const HONORED: &str = "zoneward.dev/TrafficDistributionHonored";
pub const OBSERVED: &str = "zoneward.dev/TrafficDistributionObserved";
/// The reason of Programmed when the API refused the slices.
pub const WRITE_REFUSED: &str = "WriteRefused";
/// The reason of Honored while nodes have not programmed the slices.
pub const NODES_BEHIND: &str = "NodesBehind";
/// How many characters of the API's error a message quotes.
const QUOTED: usize = 1_000;

/// A condition without its timestamps, which the controller adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The type.
    pub kind: &'static str,
    pub status: ConditionStatus,
    pub reason: &'static str,
    pub message: String,
}

/// Honored as it was last written.
#[derive(Clone, Copy, Debug)]
pub struct PreviousHonored<'a> {
    /// In the form of [`condition_text`].
    pub text: &'a str,
    /// The time since it was written.
    pub age: Duration,
}

impl Condition {
    /// Keeps the previous message if status and reason stay, only the nodes that are behind differ, and the condition was
    /// written less than [`NODES_BEHIND_INTERVAL`] ago.
    pub fn or_previous(self, previous: Option<PreviousHonored<'_>>) -> Self {
        let recent = previous.filter(|p| self.reason == NODES_BEHIND && p.age < NODES_BEHIND_INTERVAL);
        let same = condition_text(self.status.as_str(), self.reason, "");
        match recent.and_then(|p| p.text.strip_prefix(&same)) {
            Some(message) => Self { message: message.to_owned(), ..self },
            None => self,
        }
    }
}

/// Ready nodes that run a node proxy, by whether they have programmed the Service's current slices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAcks {
    /// Nodes that have reached the slices' resourceVersion.
    pub reached: usize,
    /// Nodes that have not, or report a failure.
    pub waiting: usize,
    /// The first [`LISTED_NODES`] of those by name.
    pub behind: Vec<Name>,
}

impl NodeAcks {
    /// Adds a node that has not reached the slices; nodes come sorted by name.
    pub fn add_behind(&mut self, node: &Name) {
        self.waiting += 1;
        if self.behind.len() < LISTED_NODES {
            self.behind.push(node.clone());
        }
    }
}

/// Accepted, Programmed and Honored of a Service, from the outcomes of its address families.
///
/// A Service without a setting ([`HintOutcome::requested`] is false for all) should have no conditions.
pub fn conditions(outcomes: &[HintOutcome], acks: &NodeAcks) -> [Condition; 3] {
    let programmed = programmed(outcomes);
    let honored = match outcomes.iter().find_map(|o| Some((o.not_proxied?, o.headless))) {
        Some((why, headless)) if programmed.status == ConditionStatus::True => not_proxied(why, headless),
        _ => honored(programmed.status, acks),
    };
    [accepted(outcomes), programmed, honored]
}

/// The conditions after the API refused the slices.
pub fn after_refusal(conditions: [Condition; 3], why: &str) -> [Condition; 3] {
    let [accepted, _, _] = conditions;
    let message = format!("The API server refused EndpointSlices, some were not written: {}", shortened(why));
    let programmed =
        Condition { kind: PROGRAMMED, status: ConditionStatus::False, reason: WRITE_REFUSED, message };
    let honored = honored(ConditionStatus::False, &NodeAcks::default());
    [accepted, programmed, honored]
}

/// The API server lists each field of each endpoint that it refuses.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

fn accepted(outcomes: &[HintOutcome]) -> Condition {
    let condition = |status, reason, message| Condition { kind: ACCEPTED, status, reason, message };
    if let Some(refusal) = outcomes.iter().find_map(|o| o.accepted.as_ref().err()) {
        return condition(ConditionStatus::False, "UnsupportedValue", refusal.clone());
    }
    let Some(first) = outcomes.iter().find(|o| o.requested) else {
        let message = "The Service has no traffic distribution setting.".to_owned();
        return condition(ConditionStatus::Unknown, "NotRequested", message);
    };
    match (&first.refused, &first.overridden) {
        (Some(refused), _) => {
            let message = format!("{} is used. {refused}", first.source);
            condition(ConditionStatus::True, "OtherSettingRefused", message)
        }
        (None, Some(overridden)) => condition(ConditionStatus::True, "Overridden", overridden.clone()),
        (None, None) => condition(ConditionStatus::True, "Accepted", format!("{} is used.", first.source)),
    }
}

fn programmed(outcomes: &[HintOutcome]) -> Condition {
    let condition = |status, reason, message| Condition { kind: PROGRAMMED, status, reason, message };
    let evenly = || "Traffic is spread evenly over all endpoints.".to_owned();
    if !outcomes.iter().any(|o| o.requested) {
        return condition(ConditionStatus::False, "NotRequested", evenly());
    }
    if let Some((family, reason, sentence)) = outcomes.iter().find_map(|o| {
        let (reason, sentence) = o.held_back?;
        Some((o.family, reason, sentence))
    }) {
        let message =
            format!("{sentence} See the Service's Events for numbers and advice. Address family: {family}.");
        return condition(ConditionStatus::False, reason, message);
    }
    match outcomes.iter().find(|o| o.programmed) {
        Some(outcome) => {
            let caveat = outcome.caveat.map(|caveat| format!(" {caveat}")).unwrap_or_default();
            let message = format!("The EndpointSlices express {}.{caveat}", outcome.mechanism.as_str());
            condition(ConditionStatus::True, "Programmed", message)
        }
        None => condition(ConditionStatus::False, "NoMechanism", evenly()),
    }
}

/// Semantics M7: every ready node that runs a node proxy has reached the Service's slices.
fn honored(programmed: ConditionStatus, acks: &NodeAcks) -> Condition {
    let (status, reason, message) = match acks {
        _ if programmed != ConditionStatus::True => (
            ConditionStatus::False,
            "NotProgrammed",
            "The EndpointSlices do not express the traffic distribution, see Programmed.".to_owned(),
        ),
        NodeAcks { reached: 0, waiting: 0, .. } => (
            ConditionStatus::Unknown,
            "NoNodeProxy",
            "No ready node runs a Zoneward node proxy, so no node reports what it programmed.".to_owned(),
        ),
        NodeAcks { waiting: 0, .. } => (
            ConditionStatus::True,
            "Honored",
            "Every ready node with a node proxy has programmed the EndpointSlices.".to_owned(),
        ),
        behind => (ConditionStatus::False, NODES_BEHIND, nodes_behind(behind)),
    };
    Condition { kind: HONORED, status, reason, message }
}

fn nodes_behind(acks: &NodeAcks) -> String {
    let names: Vec<&str> = acks.behind.iter().map(Name::as_str).collect();
    let more = acks.waiting.saturating_sub(names.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "Ready nodes that have not programmed the EndpointSlices: {}{more}. See the logs of their node proxies.",
        names.join(", ")
    )
}

/// The slices are written, but Zoneward's nodes do not serve the Service.
fn not_proxied(why: &str, headless: bool) -> Condition {
    let status = if headless { ConditionStatus::False } else { ConditionStatus::Unknown };
    let message = format!("Zoneward's nodes do not proxy this Service: {why}.");
    Condition { kind: HONORED, status, reason: "NotProxied", message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_errors_of_the_api_are_cut_between_characters() {
        assert_eq!(shortened("endpoints: too many"), "endpoints: too many");
        let exact = "\u{e4}".repeat(QUOTED);
        assert_eq!(shortened(&exact), exact);
        assert_eq!(shortened(&format!("{exact}b")), format!("{exact}..."));
    }

    fn behind(nodes: &[&str]) -> Condition {
        let mut acks = NodeAcks::default();
        nodes.iter().for_each(|node| acks.add_behind(&Name::new(node)));
        honored(ConditionStatus::True, &acks)
    }

    fn text(condition: &Condition) -> String {
        condition_text(condition.status.as_str(), condition.reason, &condition.message)
    }

    #[test]
    fn at_most_three_nodes_are_listed_and_the_others_counted() {
        assert!(behind(&["a", "b"]).message.contains(": a, b. "));
        assert!(behind(&["a", "b", "c", "d", "e"]).message.contains(": a, b, c and 2 more. "));
    }

    #[test]
    fn a_change_of_the_nodes_that_are_behind_is_written_at_most_once_a_minute() {
        let (old, new) = (behind(&["a", "b"]), behind(&["b"]));
        let written = text(&old);
        let after = |seconds| PreviousHonored { text: &written, age: Duration::from_secs(seconds) };
        assert_eq!(new.clone().or_previous(Some(after(0))), old);
        assert_eq!(new.clone().or_previous(Some(after(59))), old);
        assert_eq!(new.clone().or_previous(Some(after(60))), new);
        assert_eq!(new.clone().or_previous(None), new);
    }

    #[test]
    fn a_change_of_status_or_reason_is_written_at_once() {
        let reached = honored(ConditionStatus::True, &NodeAcks { reached: 1, ..NodeAcks::default() });
        let written = text(&behind(&["a"]));
        let previous = PreviousHonored { text: &written, age: Duration::ZERO };
        assert_eq!(reached.clone().or_previous(Some(previous)), reached);
        let written = text(&reached);
        let previous = PreviousHonored { text: &written, age: Duration::ZERO };
        assert_eq!(behind(&["a"]).or_previous(Some(previous)), behind(&["a"]));
    }
}

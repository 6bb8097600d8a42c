//! The three conditions of KEP-4444 ("Status Reporting") on a Service, under our own prefix.
//!
//! Their texts hold no counts: a condition is written when it turns, not whenever a pod or a node changes. The numbers
//! are in the Notices and in metrics. Only nodes that stay behind are named, the first three.

use model::Name;

use super::HintOutcome;

/// How many lagging nodes are named.
pub const NAMED_NODES: usize = 3;

/// The value was recognised.
pub const ACCEPTED: &str = "zoneward.dev/TrafficDistributionAccepted";
/// The slices say it.
pub const PROGRAMMED: &str = "zoneward.dev/TrafficDistributionProgrammed";
/// The reason of Programmed when the API refused the slices.
pub const WRITE_REFUSED: &str = "WriteRefused";
/// How many characters of the API's words a condition repeats.
const MOST_WORDS: usize = 1_000;
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAcks {
    /// Nodes that have reached the slices' resourceVersion.
    pub reached: usize,
    /// Nodes that have not, or say that they failed.
    pub waiting: usize,
    /// The first [`NAMED_NODES`] of those by name.
    pub behind: Vec<Name>,
}

impl NodeAcks {
    /// One more node that has not reached the slices; nodes come in the order of their names.
    pub fn add_behind(&mut self, node: &Name) {
        self.waiting += 1;
        if self.behind.len() < NAMED_NODES {
            self.behind.push(node.clone());
        }
    }
}

/// Accepted, Programmed and Honored of a Service, from the outcomes of its address families.
///
/// A Service that asks for nothing ([`HintOutcome::requested`] is false for all) has no use for them: whoever writes
/// conditions leaves them out, and takes old ones away.
pub fn conditions(outcomes: &[HintOutcome], acks: &NodeAcks) -> [Condition; 3] {
    let programmed = programmed(outcomes);
    let honored = match outcomes.iter().find_map(|o| Some((o.not_proxied?, o.headless))) {
        Some((why, headless)) if programmed.status == Status::True => not_proxied(why, headless),
        _ => honored(programmed.status, acks),
    };
    [accepted(outcomes), programmed, honored]
}

/// What the conditions become when the API refuses the slices that they speak of.
pub fn after_refusal(conditions: [Condition; 3], why: &str) -> [Condition; 3] {
    let [accepted, _, _] = conditions;
    let message = format!("The API refused the EndpointSlices, not all were written: {}", shortened(why));
    let programmed = Condition { kind: PROGRAMMED, status: Status::False, reason: WRITE_REFUSED, message };
    let honored = honored(Status::False, &NodeAcks::default());
    [accepted, programmed, honored]
}

/// The start of a text, by characters: an API names each field of each endpoint that it refuses.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(MOST_WORDS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
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
    match (&first.refused, &first.overridden) {
        (Some(refused), _) => {
            let message = format!("{} is known and decides. {refused}", first.source);
            condition(Status::True, "OtherSettingRefused", message)
        }
        (None, Some(overridden)) => condition(Status::True, "Overridden", overridden.clone()),
        (None, None) => condition(Status::True, "Accepted", format!("{} is known.", first.source)),
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
        Some(outcome) => {
            let caveat = outcome.caveat.map(|caveat| format!(" {caveat}")).unwrap_or_default();
            let message = format!("The EndpointSlices say {}.{caveat}", outcome.mechanism.as_str());
            condition(Status::True, "Programmed", message)
        }
        None => condition(Status::False, "NoMechanism", "Traffic spreads evenly over all endpoints.".into()),
    }
}

/// Semantics M7: every Ready node that runs a node proxy has reached the Service's slices.
fn honored(programmed: Status, acks: &NodeAcks) -> Condition {
    let (status, reason, message) = match acks {
        _ if programmed != Status::True => {
            (Status::False, "NotProgrammed", "There is nothing to honor yet.".to_owned())
        }
        NodeAcks { reached: 0, waiting: 0, .. } => (
            Status::Unknown,
            "NoNodeProxy",
            "No ready node runs a Zoneward node proxy, which would report what it programmed.".to_owned(),
        ),
        NodeAcks { waiting: 0, .. } => (
            Status::True,
            "Honored",
            "Every ready node that runs a node proxy has programmed the slices.".to_owned(),
        ),
        behind => (Status::False, "NodesBehind", nodes_behind(behind)),
    };
    Condition { kind: HONORED, status, reason, message }
}

fn nodes_behind(acks: &NodeAcks) -> String {
    let names: Vec<&str> = acks.behind.iter().map(Name::as_str).collect();
    let others = if acks.waiting > names.len() { " and others" } else { "" };
    format!(
        "Ready nodes that have not programmed the slices yet: {}{others}. See the logs of their node proxies.",
        names.join(", ")
    )
}

/// The slices say it, and Zoneward's nodes have no part in it.
fn not_proxied(why: &str, headless: bool) -> Condition {
    let status = if headless { Status::False } else { Status::Unknown };
    let message = format!("Zoneward's nodes do not proxy this Service: {why}.");
    Condition { kind: HONORED, status, reason: "NotProxied", message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_words_of_the_api_are_cut_between_characters() {
        assert_eq!(shortened("endpoints: too many"), "endpoints: too many");
        let exact = "\u{e4}".repeat(MOST_WORDS);
        assert_eq!(shortened(&exact), exact);
        assert_eq!(shortened(&format!("{exact}b")), format!("{exact}..."));
    }
}

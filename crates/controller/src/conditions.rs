//! The conditions of a Service, as a strategic merge patch. Conditions of other writers are preserved, and nothing is written
//! unless one of ours changes.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use model::service::condition_text;
use model::{Labels, annotation};
use plan::ConditionStatus;
use plan::hints::conditions::{
    ACCEPTED, HONORED, NODES_BEHIND, OBSERVED, PROGRAMMED, PreviousHonored, WRITE_REFUSED, after_refusal,
};
use plan::hints::{self, Condition, HintOutcome, NodeAcks};
use serde_json::{Value, json};

/// Acknowledgements of a Service's slices by the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AckState {
    /// All nodes have acknowledged, or their grace period is over.
    Settled(NodeAcks),
    /// Some nodes are behind within their grace period: the last reported condition stands.
    Open,
    /// Nodes are behind, and the condition still lists others: its update waits.
    Deferred,
}

impl AckState {
    /// Whether nodes have not reached the slices although they had time to.
    pub fn are_behind(&self) -> bool {
        match self {
            Self::Settled(acks) => acks.waiting > 0,
            Self::Open => false,
            Self::Deferred => true,
        }
    }
}

#[derive(Debug, Default)]
pub struct ConditionUpdate {
    /// Patch of the status; `None` if nothing changes, or if the change was sent already.
    pub patch: Option<Value>,
    /// Sent conditions that the watch has not shown yet.
    pub awaited: Option<Labels>,
    /// Whether an update of the nodes that are behind waits, because the last one is recent.
    pub deferred: bool,
}

/// Compares the desired conditions with the `stored` ones and with those `sent` before. `age` is the time since conditions
/// were last sent.
pub fn update(
    outcomes: &[HintOutcome],
    acks: &AckState,
    observed: Option<Condition>,
    stored: &Labels,
    sent: Option<&Labels>,
    age: Option<Duration>,
    now: Timestamp,
) -> ConditionUpdate {
    let mut desired = desired(outcomes, acks);
    if !desired.is_empty() {
        desired.extend(observed);
    }
    let text = sent.and_then(|sent| sent.value(HONORED)).or_else(|| stored.value(HONORED));
    let previous = text.zip(age).map(|(text, age)| PreviousHonored { text, age });
    let damped = |c: &Condition| if c.kind == HONORED { c.clone().or_previous(previous) } else { c.clone() };
    let conditions: Vec<Condition> = desired.iter().map(damped).collect();
    let deferred = conditions != desired;
    if are_stored(&conditions, stored) {
        return ConditionUpdate { deferred, ..ConditionUpdate::default() };
    }
    let texts = texts(&conditions);
    let is_sent = sent == Some(&texts);
    let patch = (!is_sent).then(|| patch(&conditions, stored, sent, now));
    ConditionUpdate { patch, awaited: Some(texts), deferred }
}

/// The conditions of a Service if the API rejects its slices.
#[derive(Clone, Debug)]
pub struct RejectedWrite {
    conditions: [Condition; 3],
    stored: Labels,
}

impl RejectedWrite {
    /// `None` for a Service that requests no mechanism: it has no conditions.
    pub fn of(outcomes: &[HintOutcome], stored: &Labels) -> Option<Self> {
        if !outcomes.iter().any(|outcome| outcome.requested) {
            return None;
        }
        let conditions = hints::conditions(outcomes, &NodeAcks::default());
        Some(Self { conditions, stored: stored.clone() })
    }

    /// The patch of the Service's status, once: the message may differ with each attempt.
    pub fn patch(&self, message: &str, now: Timestamp) -> Option<Value> {
        let reported = condition_text(ConditionStatus::False.as_str(), WRITE_REFUSED, "");
        let stored = self.stored.value(PROGRAMMED);
        if stored.is_some_and(|text| text.starts_with(reported.trim_end())) {
            return None;
        }
        Some(patch(&after_refusal(self.conditions.clone(), message), &self.stored, None, now))
    }
}

/// The desired conditions; none if the Service requests no mechanism.
fn desired(outcomes: &[HintOutcome], acks: &AckState) -> Vec<Condition> {
    if !outcomes.iter().any(|outcome| outcome.requested) {
        return Vec::new();
    }
    let unsettled = NodeAcks { waiting: 1, ..NodeAcks::default() };
    let settled = match acks {
        AckState::Settled(acks) => acks,
        AckState::Open | AckState::Deferred => &unsettled,
    };
    let all = hints::conditions(outcomes, settled);
    let open = *acks == AckState::Open && all.iter().any(|c| c.kind == HONORED && c.reason == NODES_BEHIND);
    if open {
        // Semantics M7: written when it changes. A new Pod alone changes nothing.
        return all.into_iter().filter(|c| c.kind != HONORED).collect();
    }
    all.into()
}

/// Conditions as texts for comparison.
fn texts(conditions: &[Condition]) -> Labels {
    let texts: Vec<(&str, String)> = conditions
        .iter()
        .map(|c| (c.kind, condition_text(c.status.as_str(), c.reason, &c.message)))
        .collect();
    texts.iter().map(|(kind, text)| (*kind, text.as_str())).collect()
}

/// Whether the Service has these conditions. Other conditions are ignored.
fn are_stored(conditions: &[Condition], stored: &Labels) -> bool {
    if conditions.is_empty() {
        return stored.iter().all(|(kind, _)| !is_ours(kind));
    }
    texts(conditions).iter().all(|(kind, text)| stored.value(kind) == Some(text))
}

fn is_ours(kind: &str) -> bool {
    kind.starts_with(annotation::CONDITION_PREFIX)
}

/// The patch of `status` from the stored conditions to these. Only a changed status sets lastTransitionTime: one that differs
/// from the stored one, or from one that was sent and that the watch has not shown yet.
fn patch(conditions: &[Condition], stored: &Labels, sent: Option<&Labels>, now: Timestamp) -> Value {
    let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut entries = Vec::new();
    for condition in conditions {
        let status = condition.status.as_str();
        let is_same = |before: &Labels| {
            before.value(condition.kind).and_then(|text| text.split(' ').next()) == Some(status)
        };
        let mut entry = json!({"type": condition.kind, "status": status, "reason": condition.reason,
            "message": condition.message});
        if !is_same(stored) || !sent.is_none_or(is_same) {
            entry["lastTransitionTime"] = time.clone().into();
        }
        entries.push(entry);
    }
    if conditions.is_empty() {
        // Also those that were sent and that the watch has not shown yet.
        let stored = stored.iter().map(|(kind, _)| kind.as_str()).filter(|kind| is_ours(kind));
        let all: BTreeSet<&str> = stored.chain([ACCEPTED, PROGRAMMED, HONORED, OBSERVED]).collect();
        entries.extend(all.into_iter().map(|kind| json!({"$patch": "delete", "type": kind})));
    }
    json!({"status": {"conditions": entries}})
}

#[cfg(test)]
mod tests {
    use plan::ConditionStatus;

    use super::*;

    fn condition(kind: &'static str, status: ConditionStatus) -> Condition {
        Condition { kind, status, reason: "Because", message: "Words.".into() }
    }

    #[test]
    fn only_a_changed_status_sets_the_transition_time() {
        let accepted = condition(ACCEPTED, ConditionStatus::True);
        let honored = condition(HONORED, ConditionStatus::True);
        let before = texts(&[accepted.clone(), condition(HONORED, ConditionStatus::False)]);
        let patch = patch(&[accepted, honored], &before, None, Timestamp::UNIX_EPOCH);
        let entries = &patch["status"]["conditions"];
        assert_eq!(entries[0].get("lastTransitionTime"), None);
        assert_eq!(entries[1]["lastTransitionTime"], "1970-01-01T00:00:00Z");
    }

    /// The stored conditions are those that the watch has shown; they may have been removed since.
    #[test]
    fn conditions_that_were_removed_a_moment_ago_get_a_transition_time() {
        let accepted = condition(ACCEPTED, ConditionStatus::True);
        let before = texts(std::slice::from_ref(&accepted));
        let patch = patch(&[accepted], &before, Some(&Labels::EMPTY), Timestamp::UNIX_EPOCH);
        assert_eq!(patch["status"]["conditions"][0]["lastTransitionTime"], "1970-01-01T00:00:00Z");
    }

    #[test]
    fn conditions_of_a_service_without_a_mechanism_are_removed() {
        let before = texts(&[condition(HONORED, ConditionStatus::True)]);
        assert!(!are_stored(&[], &before) && are_stored(&[], &Labels::EMPTY));
        let patch = patch(&[], &before, None, Timestamp::UNIX_EPOCH);
        let entries = patch["status"]["conditions"].as_array().unwrap();
        // A condition that the watch has not shown yet goes as well.
        for kind in [ACCEPTED, PROGRAMMED, HONORED, OBSERVED] {
            assert!(entries.contains(&json!({"$patch": "delete", "type": kind})), "{kind}");
        }
    }
}

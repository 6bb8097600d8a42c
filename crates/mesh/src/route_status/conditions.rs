//! Status conditions and Events of an object, if they differ from the stored ones.

use jiff::Timestamp;
use model::{Notice, ObjectRef};
use plan::ConditionStatus;
use plan::routes::{RouteCondition, RouteStatus};
use serde_json::{Value, json};

use cluster::ObjectKind;
use cluster::events;

pub const ACCEPTED: &str = "Accepted";
pub const RESOLVED_REFS: &str = "ResolvedRefs";
pub const PROGRAMMED: &str = "Programmed";

/// Problems listed in a message.
const MAX_LISTED: usize = 10;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct StatusWrite {
    pub(super) path: String,
    pub(super) patch: Value,
    pub(super) events: Vec<Value>,
}

/// The parts of a stored object that its status depends on.
#[derive(Clone, Debug)]
pub(super) struct StoredObject {
    uid: Option<String>,
    resource_version: Value,
    generation: Value,
    conditions: Vec<Value>,
    /// Why it is invalid.
    pub(super) problems: Vec<String>,
    /// About rules that no request can match.
    pub(super) idle: Vec<Notice>,
}

impl StoredObject {
    pub(super) fn new(object: &Value, problems: Vec<String>, idle: Vec<Notice>) -> Self {
        let metadata = &object["metadata"];
        Self {
            uid: metadata["uid"].as_str().map(str::to_owned),
            resource_version: metadata["resourceVersion"].clone(),
            generation: metadata["generation"].clone(),
            conditions: object["status"]["conditions"].as_array().cloned().unwrap_or_default(),
            problems,
            idle,
        }
    }

    /// Whether an object has the specification that is known.
    pub(super) fn has_generation(&self, object: &Value) -> bool {
        self.generation == object["metadata"]["generation"]
    }

    /// Takes the status of the same object at another version.
    pub(super) fn set_status(&mut self, object: &Value) {
        self.resource_version = object["metadata"]["resourceVersion"].clone();
        self.conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    }

    /// `None` if the stored status is current. `standing` is `None` for an invalid object.
    pub(super) fn status_write(
        &self,
        kind: ObjectKind,
        about: &ObjectRef,
        standing: Option<RouteStatus>,
        now: Timestamp,
    ) -> Option<StatusWrite> {
        let RouteStatus { resolved, programmed } = standing.unwrap_or_else(ignored);
        let accepted = accepted(&self.problems, &self.idle);
        let wanted = [(ACCEPTED, accepted), (RESOLVED_REFS, resolved), (PROGRAMMED, programmed)];
        let is_stored = |(name, finding): &(&str, RouteCondition)| {
            self.stored(name).is_some_and(|before| {
                before["status"] == finding.status.as_str()
                    && before["reason"] == finding.reason
                    && before["message"] == finding.message.as_str()
                    && before["observedGeneration"] == self.generation
            })
        };
        if wanted.iter().all(is_stored) {
            return None;
        }
        let is_ours = |condition: &Value| wanted.iter().any(|(name, _)| condition["type"] == *name);
        let mut conditions: Vec<Value> =
            self.conditions.iter().filter(|condition| !is_ours(condition)).cloned().collect();
        let mut events = Vec::new();
        for (name, finding) in &wanted {
            conditions.push(self.condition(name, finding, now));
            events.extend(self.event(name, finding, about, now));
        }
        let resource = kind.resource();
        let path = format!(
            "/apis/{}/namespaces/{}/{}/{}/status?fieldManager=zoneward-controller",
            resource.api_version, about.namespace, resource.plural, about.name
        );
        let patch = json!({"metadata": {"resourceVersion": self.resource_version},
            "status": {"conditions": conditions, "observedGeneration": self.generation}});
        Some(StatusWrite { path, patch, events })
    }

    fn stored(&self, name: &str) -> Option<&Value> {
        self.conditions.iter().find(|condition| condition["type"] == name)
    }

    fn condition(&self, name: &str, finding: &RouteCondition, now: Timestamp) -> Value {
        let status = finding.status.as_str();
        let since = match self.stored(name) {
            Some(before) if before["status"] == status => before["lastTransitionTime"].clone(),
            _ => now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into(),
        };
        json!({"type": name, "status": status, "reason": finding.reason, "message": finding.message,
            "observedGeneration": self.generation, "lastTransitionTime": since})
    }

    /// An Event when a condition changes, or fails for another reason. A condition that is true from the start has none.
    fn event(
        &self,
        name: &str,
        finding: &RouteCondition,
        about: &ObjectRef,
        now: Timestamp,
    ) -> Option<Value> {
        let before = self.stored(name);
        let is_true = finding.status == ConditionStatus::True;
        let has_turned = before.is_some_and(|before| before["status"] != finding.status.as_str());
        let says_other = before.is_none_or(|before| before["message"] != finding.message.as_str());
        let is_idle = name == ACCEPTED && !self.idle.is_empty();
        let is_news = if is_true { has_turned || (is_idle && says_other) } else { has_turned || says_other };
        if !is_news {
            return None;
        }
        let reason: &'static str = match (name, is_true) {
            (ACCEPTED, false) => "Malformed",
            (ACCEPTED, true) if is_idle => "RuleNeverMatches",
            (ACCEPTED, true) => ACCEPTED,
            _ => finding.reason,
        };
        let notice = Notice::new(about.clone(), reason, finding.message.clone());
        let mut event = events::event(events::SLICE_CONTROLLER, &notice, self.uid.as_deref(), now);
        event["type"] = if is_true && !is_idle { "Normal" } else { "Warning" }.into();
        Some(event)
    }
}

fn accepted(problems: &[String], idle: &[Notice]) -> RouteCondition {
    if problems.is_empty() {
        let mut message = "valid".to_owned();
        if !idle.is_empty() {
            let texts: Vec<String> = idle.iter().map(|notice| notice.message.clone()).collect();
            message += &format!("; {}", named(&texts));
        }
        return RouteCondition { status: ConditionStatus::True, reason: "Valid", message };
    }
    let message = format!("{}; ignored until this is fixed", named(problems));
    RouteCondition { status: ConditionStatus::False, reason: "Invalid", message }
}

/// References of an invalid object are not resolved, and proxies do not use it.
fn ignored() -> RouteStatus {
    RouteStatus {
        resolved: RouteCondition {
            status: ConditionStatus::Unknown,
            reason: "Invalid",
            message: "invalid, so its references were not resolved: see Accepted".to_owned(),
        },
        programmed: RouteCondition {
            status: ConditionStatus::False,
            reason: "Invalid",
            message: "invalid and ignored as a whole: see Accepted".to_owned(),
        },
    }
}

fn named(all: &[String]) -> String {
    let mut parts: Vec<String> = all.iter().take(MAX_LISTED).cloned().collect();
    if all.len() > MAX_LISTED {
        parts.push(format!("and {} more", all.len() - MAX_LISTED));
    }
    parts.join("; ")
}

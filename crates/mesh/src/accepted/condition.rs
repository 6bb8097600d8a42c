//! Findings about an object -> its status and Events, if they differ from what is stored.

use jiff::Timestamp;
use model::parse::Problem;
use model::{Notice, ObjectRef};
use plan::routes::{Finding, Holds, Standing};
use serde_json::{Value, json};

use cluster::ResourceKind;
use cluster::events;

/// Whether the object is valid.
pub const ACCEPTED: &str = "Accepted";
/// Whether everything that it names is there.
pub const RESOLVED_REFS: &str = "ResolvedRefs";
/// Whether proxies get something of it.
pub const PROGRAMMED: &str = "Programmed";

/// How many mistakes a message names.
const NAMED: usize = 10;

/// What is to be written about one object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Work {
    pub(super) path: String,
    pub(super) patch: Value,
    pub(super) events: Vec<Value>,
}

/// An object as it is stored, as far as its status depends on it.
#[derive(Clone, Debug)]
pub(super) struct Record {
    uid: Option<String>,
    resource_version: Value,
    generation: Value,
    conditions: Vec<Value>,
    /// Everything that is wrong with it by itself.
    pub(super) problems: Vec<Problem>,
    /// What in it no request can hit.
    pub(super) idle: Vec<Notice>,
}

impl Record {
    /// From the object's JSON.
    pub(super) fn new(object: &Value, problems: Vec<Problem>, idle: Vec<Notice>) -> Self {
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

    /// What has to be written; nothing if the status says so already. `standing` is that of a valid object.
    pub(super) fn work(
        &self,
        kind: ResourceKind,
        about: &ObjectRef,
        standing: Option<Standing>,
        now: Timestamp,
    ) -> Option<Work> {
        let Standing { resolved, programmed } = standing.unwrap_or_else(ignored);
        let accepted = accepted(&self.problems, &self.idle);
        let wanted = [(ACCEPTED, accepted), (RESOLVED_REFS, resolved), (PROGRAMMED, programmed)];
        let is_stored = |(name, finding): &(&str, Finding)| {
            self.stored(name).is_some_and(|before| {
                before["status"] == finding.holds.as_str()
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
        Some(Work { path, patch, events })
    }

    fn stored(&self, name: &str) -> Option<&Value> {
        self.conditions.iter().find(|condition| condition["type"] == name)
    }

    fn condition(&self, name: &str, finding: &Finding, now: Timestamp) -> Value {
        let status = finding.holds.as_str();
        let since = match self.stored(name) {
            Some(before) if before["status"] == status => before["lastTransitionTime"].clone(),
            _ => now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into(),
        };
        json!({"type": name, "status": status, "reason": finding.reason, "message": finding.message,
            "observedGeneration": self.generation, "lastTransitionTime": since})
    }

    /// An Event when a condition turns, or does not hold for another reason than before. That all is well from the
    /// beginning is no news.
    fn event(&self, name: &str, finding: &Finding, about: &ObjectRef, now: Timestamp) -> Option<Value> {
        let before = self.stored(name);
        let is_true = finding.holds == Holds::True;
        let has_turned = before.is_some_and(|before| before["status"] != finding.holds.as_str());
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

fn accepted(problems: &[Problem], idle: &[Notice]) -> Finding {
    if problems.is_empty() {
        let mut message = "it is valid".to_owned();
        if !idle.is_empty() {
            let texts: Vec<String> = idle.iter().map(|notice| notice.message.clone()).collect();
            message += &format!("; but {}", named(&texts));
        }
        return Finding { holds: Holds::True, reason: "Valid", message };
    }
    let texts: Vec<String> =
        problems.iter().map(|problem| format!("{}: {}", problem.field, problem.text)).collect();
    let message = format!("{}. It is ignored until this is put right.", named(&texts));
    Finding { holds: Holds::False, reason: "Invalid", message }
}

/// Of an object that is not valid nothing is looked up, and proxies get nothing of it.
fn ignored() -> Standing {
    Standing {
        resolved: Finding {
            holds: Holds::Unknown,
            reason: "Invalid",
            message: "it is not valid, so what it names was not looked up: see Accepted".to_owned(),
        },
        programmed: Finding {
            holds: Holds::False,
            reason: "Invalid",
            message: "it is not valid and is ignored as a whole: see Accepted".to_owned(),
        },
    }
}

fn named(all: &[String]) -> String {
    let mut parts: Vec<String> = all.iter().take(NAMED).cloned().collect();
    if all.len() > NAMED {
        parts.push(format!("and {} more", all.len() - NAMED));
    }
    parts.join("; ")
}

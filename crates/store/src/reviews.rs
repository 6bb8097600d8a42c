//! Questions of a caller about itself: who am I, may I do this, what may I do. They are answered and not kept,
//! and by the same rule that lets requests in, so that `kubectl auth` tells the truth.

use serde_json::{Value, json};

use crate::api::Caller;
use crate::kinds::{self, Kind};
use crate::meta;

/// What somebody wants to do to objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Act<'a> {
    /// `get`, `create` and so on.
    pub verb: &'a str,
    /// The API group, empty for core.
    pub group: &'a str,
    /// The name in paths, as `services`; with `/status` where only that is meant.
    pub resource: &'a str,
}

const LOOKS: &[&str] = &["get", "list", "watch"];

/// Whether a caller may do something. Two users, one rule: the reader looks at everything but Secrets, and may ask
/// about itself.
pub fn may(caller: &Caller, act: Act<'_>) -> bool {
    let looks = LOOKS.contains(&act.verb);
    let secret =
        act.group.is_empty() && (act.resource == "secrets" || act.resource == "*") || act.group == "*";
    let asks = act.verb == "create" && is_question(act.group, act.resource);
    !caller.read_only || looks && !secret || asks
}

fn is_question(group: &str, resource: &str) -> bool {
    questions().any(|kind| kind.group == group && kind.plural == resource)
}

fn questions() -> impl Iterator<Item = &'static Kind> {
    kinds::KINDS.iter().filter(|kind| !kind.is_stored())
}

/// Whether an object is such a question.
pub fn is_review(api_version: &str, kind: &str) -> bool {
    kinds::of(api_version, kind).is_some_and(|kind| !kind.is_stored())
}

/// The answer: the question with its status.
pub fn answer(kind: &Kind, mut question: Value, caller: &Caller, now: jiff::Timestamp) -> Value {
    let status = match kind.kind {
        "SelfSubjectReview" => {
            meta::set(&mut question, "creationTimestamp", meta::time(now));
            json!({"userInfo": {"username": caller.name, "groups": caller.groups()}})
        }
        "SelfSubjectAccessReview" => access(&question["spec"], caller),
        _ => rules(caller),
    };
    kind.stamp(&mut question);
    question["status"] = status;
    question
}

fn access(spec: &Value, caller: &Caller) -> Value {
    let allowed = match (&spec["resourceAttributes"], &spec["nonResourceAttributes"]) {
        (Value::Null, Value::Null) => false,
        (Value::Null, path) => !caller.read_only || path["verb"] == "get",
        (wanted, _) => {
            let word = |name: &str| wanted[name].as_str().unwrap_or_default();
            may(caller, Act { verb: word("verb"), group: word("group"), resource: word("resource") })
        }
    };
    let reason = if allowed {
        format!("{:?} may do that", caller.name)
    } else {
        format!("{:?} may only look, and not at Secrets", caller.name)
    };
    json!({"allowed": allowed, "reason": reason})
}

fn rules(caller: &Caller) -> Value {
    if !caller.read_only {
        return json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false,
        });
    }
    let asks = questions()
        .map(|kind| json!({"verbs": ["create"], "apiGroups": [kind.group], "resources": [kind.plural]}));
    let looks = kinds::KINDS
        .iter()
        .filter(|kind| {
            kind.is_stored() && may(caller, Act { verb: "get", group: kind.group, resource: kind.plural })
        })
        .map(|kind| json!({"verbs": LOOKS, "apiGroups": [kind.group], "resources": [kind.plural]}));
    json!({
        "resourceRules": asks.chain(looks).collect::<Vec<Value>>(),
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["*"]}],
        "incomplete": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader() -> Caller {
        Caller { name: "zoneward-reader".to_owned(), read_only: true }
    }

    #[test]
    fn the_reader_looks_at_everything_but_secrets() {
        for (verb, group, resource, allowed) in [
            ("get", "", "services", true),
            ("watch", "discovery.k8s.io", "endpointslices", true),
            ("list", "", "secrets", false),
            ("get", "*", "*", false),
            ("get", "", "*", false),
            ("create", "", "services", false),
            ("*", "", "services", false),
            ("create", "authorization.k8s.io", "selfsubjectaccessreviews", true),
        ] {
            let act = Act { verb, group, resource };
            assert_eq!(may(&reader(), act), allowed, "{act:?}");
            assert!(may(&Caller::own(), act));
        }
    }

    #[test]
    fn rules_name_what_the_reader_may_see() {
        let rules = rules(&reader());
        let text = rules.to_string();
        assert!(text.contains("\"services\"") && !text.contains("\"secrets\""), "{text}");
    }
}

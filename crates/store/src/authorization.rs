//! Authorization, and the SelfSubject reviews of `kubectl auth`, which use the same rule.

use serde_json::{Value, json};

use crate::api::Caller;
use crate::kinds::{self, ResourceKind};
use crate::meta;

/// What a request does to objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessAttributes<'a> {
    /// `get`, `create` and so on.
    pub verb: &'a str,
    /// The API group, empty for core.
    pub group: &'a str,
    /// The name in paths, as `services`; with `/status` for the subresource.
    pub resource: &'a str,
}

const READ_VERBS: &[&str] = &["get", "list", "watch"];

/// Whether a caller may do something: the read-only user may read everything but Secrets, and create SelfSubject reviews.
pub fn is_allowed(caller: &Caller, attributes: AccessAttributes<'_>) -> bool {
    let reads = READ_VERBS.contains(&attributes.verb);
    let secret = attributes.group.is_empty()
        && (attributes.resource == "secrets" || attributes.resource == "*")
        || attributes.group == "*";
    let reviews = attributes.verb == "create" && is_review_resource(attributes.group, attributes.resource);
    !caller.read_only || reads && !secret || reviews
}

fn is_review_resource(group: &str, resource: &str) -> bool {
    review_kinds().any(|kind| kind.group == group && kind.plural == resource)
}

fn review_kinds() -> impl Iterator<Item = &'static ResourceKind> {
    kinds::KINDS.iter().filter(|kind| !kind.is_stored())
}

/// Whether an object is a SelfSubject review.
pub fn is_review(api_version: &str, kind: &str) -> bool {
    kinds::of(api_version, kind).is_some_and(|kind| !kind.is_stored())
}

/// The review with its status.
pub fn review(kind: &ResourceKind, mut review: Value, caller: &Caller, now: jiff::Timestamp) -> Value {
    let status = match kind.kind {
        "SelfSubjectReview" => {
            meta::set(&mut review, "creationTimestamp", meta::time(now));
            json!({"userInfo": {"username": caller.name, "groups": caller.groups()}})
        }
        "SelfSubjectAccessReview" => access(&review["spec"], caller),
        _ => rules(caller),
    };
    kind.stamp(&mut review);
    review["status"] = status;
    review
}

fn access(spec: &Value, caller: &Caller) -> Value {
    let allowed = match (&spec["resourceAttributes"], &spec["nonResourceAttributes"]) {
        (Value::Null, Value::Null) => false,
        (Value::Null, path) => !caller.read_only || path["verb"] == "get",
        (wanted, _) => {
            let word = |name: &str| wanted[name].as_str().unwrap_or_default();
            is_allowed(
                caller,
                AccessAttributes { verb: word("verb"), group: word("group"), resource: word("resource") },
            )
        }
    };
    let reason = if allowed {
        format!("{:?} is allowed", caller.name)
    } else {
        format!("{:?} has read-only access, without Secrets", caller.name)
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
    let reviews = review_kinds()
        .map(|kind| json!({"verbs": ["create"], "apiGroups": [kind.group], "resources": [kind.plural]}));
    let reads = kinds::KINDS
        .iter()
        .filter(|kind| {
            kind.is_stored()
                && is_allowed(
                    caller,
                    AccessAttributes { verb: "get", group: kind.group, resource: kind.plural },
                )
        })
        .map(|kind| json!({"verbs": READ_VERBS, "apiGroups": [kind.group], "resources": [kind.plural]}));
    json!({
        "resourceRules": reviews.chain(reads).collect::<Vec<Value>>(),
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
    fn the_reader_may_read_everything_but_secrets() {
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
            let attributes = AccessAttributes { verb, group, resource };
            assert_eq!(is_allowed(&reader(), attributes), allowed, "{attributes:?}");
            assert!(is_allowed(&Caller::own(), attributes));
        }
    }

    #[test]
    fn rules_list_what_the_reader_may_read() {
        let rules = rules(&reader());
        let text = rules.to_string();
        assert!(text.contains("\"services\"") && !text.contains("\"secrets\""), "{text}");
    }
}

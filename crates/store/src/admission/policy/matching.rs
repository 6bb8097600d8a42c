//! Whether a policy or binding matches a write.

use serde_json::Value;

use super::AdmissionAttributes;
use crate::meta;
use crate::selector::LabelSelector;

/// Whether the rules cover the write, without its namespace and labels: most policies end here, before the namespace has
/// to be read.
pub(super) fn may_match(constraints: &Value, attempt: &AdmissionAttributes<'_>) -> bool {
    let rules = &constraints["resourceRules"];
    rules.is_null() || rules.as_array().is_some_and(|rules| rules.iter().any(|rule| covers(rule, attempt)))
}

/// Whether `constraints` (matchConstraints, or matchResources of a binding) cover the write.
pub(super) fn matches(constraints: &Value, attempt: &AdmissionAttributes<'_>, namespace: &Value) -> bool {
    let any = |name: &str| {
        constraints[name].as_array().is_some_and(|rules| rules.iter().any(|rule| covers(rule, attempt)))
    };
    // A binding without rules has those of the policy.
    let ruled = constraints["resourceRules"].is_null() || any("resourceRules");
    ruled
        && !any("excludeResourceRules")
        && in_namespace(&constraints["namespaceSelector"], namespace)
        && by_labels(&constraints["objectSelector"], attempt)
}

fn names(rule: &Value, list: &str, word: &str) -> bool {
    rule[list].as_array().is_some_and(|items| items.iter().any(|item| item == "*" || item == word))
}

fn covers(rule: &Value, attempt: &AdmissionAttributes<'_>) -> bool {
    let resource = if attempt.subresource.is_empty() {
        attempt.kind.plural.to_owned()
    } else {
        format!("{}/{}", attempt.kind.plural, attempt.subresource)
    };
    let scope = match rule["scope"].as_str() {
        Some("Cluster") => !attempt.kind.namespaced,
        Some("Namespaced") => attempt.kind.namespaced,
        _ => true,
    };
    let all = rule["resources"].as_array().is_some_and(|items| items.iter().any(|item| item == "*/*"));
    let whole = format!("{}/*", attempt.kind.plural);
    let named = rule["resourceNames"].as_array().is_none_or(|list| {
        list.is_empty() || list.iter().any(|name| name == meta::text(attempt.any(), "name"))
    });
    names(rule, "operations", attempt.operation.word())
        && names(rule, "apiGroups", attempt.kind.group)
        && names(rule, "apiVersions", attempt.kind.version)
        && (all || names(rule, "resources", &resource) || names(rule, "resources", &whole))
        && scope
        && named
}

fn selector(value: &Value) -> Option<LabelSelector> {
    if value.is_null() { Some(LabelSelector::default()) } else { LabelSelector::of_object(value).ok() }
}

/// Cluster-scoped objects match every namespace selector.
fn in_namespace(value: &Value, namespace: &Value) -> bool {
    namespace.is_null() || selector(value).is_some_and(|labels| labels.matches(namespace))
}

fn by_labels(value: &Value, attempt: &AdmissionAttributes<'_>) -> bool {
    let Some(labels) = selector(value) else { return false };
    let is = |object: &Value| !object.is_null() && labels.matches(object);
    labels.is_empty() || is(attempt.object) || is(attempt.old)
}

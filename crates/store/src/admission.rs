//! What happens to an object between the request and the store: defaults, validation, what Services need.
//!
//! ```text
//! body -> defaults -> carried over from the stored one -> validation -> policies -> allocation -> store
//! ```

mod defaults;
pub mod policy;
pub mod ports;
pub mod service;
pub mod structural;
mod warnings;

use plan::validate::{Settings, Violation};
use serde_json::Value;

use crate::kinds::{Kind, Naming};
use crate::meta;
use crate::status::{Cause, Failure};

pub use defaults::{defaults, pod_ips, prepare_new};
pub use warnings::warnings;

/// Refuses an object that an API server would refuse.
pub fn validate(settings: &Settings, kind: &Kind, old: Option<&Value>, new: &Value) -> Result<(), Failure> {
    let mut violations = if plan::validate::is_known(new) {
        match old {
            Some(old) => settings.validate_update(old, new),
            None => settings.validate(new),
        }
    } else {
        metadata_violations(settings, kind, old, new)
    };
    if kind.needs_version && old.is_some() && meta::text(new, "resourceVersion").is_empty() {
        let reason = "must be specified for an update".to_owned();
        let object = model::parse::object_ref(new);
        violations.push(Violation { object, field: "metadata.resourceVersion".to_owned(), reason });
    }
    let object = model::parse::object_ref(new);
    let found = structural::check(kind, old, new).into_iter().chain(event_violations(kind, new));
    violations.extend(found.map(|(field, reason)| Violation { object: object.clone(), field, reason }));
    if kind.kind == "ValidatingAdmissionPolicy" {
        policy_violations(new, &mut violations);
    }
    if violations.is_empty() {
        return Ok(());
    }
    let causes: Vec<Cause> = violations.into_iter().map(cause).collect();
    Err(Failure::invalid(kind, meta::text(new, "name"), &causes))
}

/// Metadata obeys the same rules in every kind. The brain knows them for some kinds; for the others it is
/// asked as if the object were one of those with the same kind of name.
fn metadata_violations(settings: &Settings, kind: &Kind, old: Option<&Value>, new: &Value) -> Vec<Violation> {
    let (api_version, alias) = match (kind.naming, kind.namespaced) {
        (Naming::Label1035, _) => ("v1", "Service"),
        (_, true) => ("discovery.k8s.io/v1", "EndpointSlice"),
        (_, false) => ("networking.k8s.io/v1", "ServiceCIDR"),
    };
    let alias = |object: &Value| {
        let metadata = object["metadata"].clone();
        serde_json::json!({"apiVersion": api_version, "kind": alias, "metadata": metadata})
    };
    let found = match old {
        Some(old) => settings.validate_update(&alias(old), &alias(new)),
        None => settings.validate(&alias(new)),
    };
    found.into_iter().filter(|violation| violation.field.starts_with("metadata")).collect()
}

/// An event lives with what it is about; one about an object without a namespace lives in `default`.
fn event_violations(kind: &Kind, event: &Value) -> Option<(String, String)> {
    let about = event["involvedObject"]["namespace"].as_str().unwrap_or_default();
    let (own, wanted) = (meta::text(event, "namespace"), if about.is_empty() { "default" } else { about });
    let wrong = kind.kind == "Event" && own != wanted;
    wrong.then(|| ("involvedObject.namespace".to_owned(), format!("does not match event.namespace: {own:?}")))
}

fn policy_violations(policy: &Value, violations: &mut Vec<Violation>) {
    let object = model::parse::object_ref(policy);
    for (field, reason) in policy::uncompilable(policy) {
        violations.push(Violation { object: object.clone(), field, reason });
    }
}

fn cause(violation: Violation) -> Cause {
    Cause::invalid(violation.field, violation.reason)
}

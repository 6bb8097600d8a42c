//! Admission: what happens to an object between the request and the store.
//!
//! ```text
//! body -> defaulting -> fields kept from the stored version -> disabled fields dropped -> validation -> policies
//!      -> allocation (Services) -> store
//! ```

mod builtin_validation;
mod defaulting;
mod node_ports;
pub(crate) mod node_restriction;
pub(crate) mod policy;
mod schema_validation;
pub mod service;
mod warnings;

use apimachinery::validate::{FieldErrorType, ValidationOptions, Violation, refuse_disabled};
use serde_json::Value;

use crate::kinds::{Naming, ResourceKind};
use crate::meta;
use crate::status::{Cause, StatusError};

pub(crate) use defaulting::{defaults, pod_ips, prepare_for_create};
pub(crate) use warnings::warnings;

/// What the schema of a custom resource refuses in a new object, with defaults set: the field, the type of error and the
/// reason. Limits come first, then rules.
pub fn schema_violations(kind: &ResourceKind, object: &Value) -> Vec<(String, FieldErrorType, String)> {
    let mut object = object.clone();
    defaults(kind, &mut object);
    schema_validation::check(kind, None, &object)
}

/// Refuses an object that kube-apiserver would refuse.
pub(crate) fn validate(
    ranges: &service::ServiceRanges,
    kind: &ResourceKind,
    old: Option<&Value>,
    new: &Value,
) -> Result<(), StatusError> {
    let settings = &ranges.node_ports;
    let violations = if apimachinery::validate::is_known(new) {
        match old {
            Some(old) => settings.validate_update(old, new),
            None => settings.validate(new),
        }
    } else {
        metadata_violations(settings, kind, old, new)
    };
    let mut causes: Vec<Cause> = violations.into_iter().map(cause).collect();
    if kind.needs_version && old.is_some() && meta::text(new, "resourceVersion").is_empty() {
        causes.push(Cause::invalid("metadata.resourceVersion", "must be specified for an update"));
    }
    let found =
        schema_validation::check(kind, old, new).into_iter().chain(builtin_validation::check(kind, old, new));
    causes.extend(found.map(|(field, fault, reason)| Cause::new(fault, field, reason)));
    let disabled = refuse_disabled(&ranges.gates, old, new);
    causes.extend(disabled.map(|(field, fault, reason)| Cause::new(fault, field, reason)));
    causes.extend(event_cause(kind, new));
    if kind.kind == "ValidatingAdmissionPolicy" {
        causes.extend(policy::uncompilable(new).into_iter().map(|(field, why)| Cause::invalid(field, why)));
    }
    if causes.is_empty() { Ok(()) } else { Err(StatusError::invalid(kind, meta::text(new, "name"), &causes)) }
}

/// Metadata has the same rules in every kind. `apimachinery::validate` has them for some kinds; other objects are validated as if
/// they were of one of those with the same format of names.
fn metadata_violations(
    settings: &ValidationOptions,
    kind: &ResourceKind,
    old: Option<&Value>,
    new: &Value,
) -> Vec<Violation> {
    let (api_version, alias) = match (kind.naming, kind.namespaced) {
        (Naming::Label, true) => ("v1", "Service"),
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

/// An Event is in the namespace of its object; for a cluster-scoped object that is `default`.
fn event_cause(kind: &ResourceKind, event: &Value) -> Option<Cause> {
    let about = event["involvedObject"]["namespace"].as_str().unwrap_or_default();
    let (own, wanted) = (meta::text(event, "namespace"), if about.is_empty() { "default" } else { about });
    let wrong = kind.kind == "Event" && own != wanted;
    wrong.then(|| {
        Cause::invalid("involvedObject.namespace", format!("does not match event.namespace: {own:?}"))
    })
}

fn cause(violation: Violation) -> Cause {
    Cause::new(violation.error_type, violation.field, violation.reason)
}

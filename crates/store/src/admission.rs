//! What happens to an object between the request and the store: defaults, validation, what Services need.
//!
//! ```text
//! body -> defaults -> carried over from the stored one -> disabled fields dropped -> validation -> policies
//!      -> allocation -> store
//! ```

mod defaults;
pub mod policy;
pub mod ports;
pub mod service;
pub mod structural;
mod values;
mod warnings;

use plan::validate::{ValidationOptions, Violation, refuse_disabled};
use serde_json::Value;

use crate::kinds::{Kind, Naming};
use crate::meta;
use crate::status::{Cause, Failure};

pub use defaults::{defaults, pod_ips, prepare_new};
pub use warnings::warnings;

/// Refuses an object that an API server would refuse.
pub fn validate(
    ranges: &service::Ranges,
    kind: &Kind,
    old: Option<&Value>,
    new: &Value,
) -> Result<(), Failure> {
    let settings = &ranges.node_ports;
    let violations = if plan::validate::is_known(new) {
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
    let found = structural::check(kind, old, new).into_iter().chain(values::check(kind, old, new));
    causes.extend(found.map(|(field, fault, reason)| Cause::new(fault, field, reason)));
    let disabled = refuse_disabled(&ranges.gates, old, new);
    causes.extend(disabled.map(|(field, fault, reason)| Cause::new(fault, field, reason)));
    causes.extend(event_cause(kind, new));
    if kind.kind == "ValidatingAdmissionPolicy" {
        causes.extend(policy::uncompilable(new).into_iter().map(|(field, why)| Cause::invalid(field, why)));
    }
    if causes.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, meta::text(new, "name"), &causes)) }
}

/// Metadata obeys the same rules in every kind. The brain knows them for some kinds; for the others it is
/// asked as if the object were one of those with the same kind of name.
fn metadata_violations(
    settings: &ValidationOptions,
    kind: &Kind,
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

/// An event lives with what it is about; one about an object without a namespace lives in `default`.
fn event_cause(kind: &Kind, event: &Value) -> Option<Cause> {
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

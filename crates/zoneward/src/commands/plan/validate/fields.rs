//! Unknown fields, which an API server drops unless validation is strict, and the limits and rules of custom resources;
//! checked against the schemas of the embedded API.

use apimachinery::validate::{FieldErrorType, Violation, is_known};
use model::{parse, suggestion};
use serde_json::Value;
use store::admission::schema_violations;
use store::{kinds, schema};

/// Unknown and mistyped fields; `None` without a schema for the kind.
pub(super) fn check(object: &Value) -> Option<Vec<Violation>> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let kind = kinds::of(text("apiVersion"), text("kind"))?;
    let schema = schema::of(kind)?;
    let mut checked = object.clone();
    let findings = schema::check(&mut checked, None, schema);
    let about = parse::object_ref(object);
    let violation = |field: &str, reason: String, error_type| Violation {
        object: about.clone(),
        field: field.to_owned(),
        reason,
        error_type,
    };
    let unknown = findings.unknown.iter().map(|path| {
        let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
        let near = suggestion::did_you_mean(name, beside(schema, parent));
        violation(path, format!("unknown field{near}"), FieldErrorType::Forbidden)
    });
    let mistyped = findings
        .mistyped
        .iter()
        .map(|finding| violation(&finding.path, finding.reason.clone(), FieldErrorType::Invalid));
    let mut found: Vec<Violation> = unknown.chain(mistyped).collect();
    // `apimachinery::validate` has the rules of other kinds.
    if found.is_empty() && !is_known(object) {
        found.extend(schema_violations(kind, object).into_iter().map(|(field, error_type, reason)| {
            let reason = if reason.is_empty() { error_type.prefix().to_owned() } else { reason };
            violation(&field, reason, error_type)
        }));
    }
    Some(found)
}

/// The fields of the object at a path, such as `spec.ports[0]`.
fn beside(schema: &'static Value, path: &str) -> Vec<&'static str> {
    let mut at = schema::resolve(schema);
    for step in path.split('.').filter(|step| !step.is_empty()) {
        let (name, items) =
            step.split_once('[').map_or((step, 0), |(name, rest)| (name, 1 + rest.matches('[').count()));
        let below = match at["properties"].get(name) {
            Some(below) => below,
            None => &at["additionalProperties"],
        };
        at = schema::resolve(below);
        for _ in 0..items {
            at = schema::resolve(&at["items"]);
        }
    }
    at["properties"].as_object().into_iter().flat_map(|fields| fields.keys()).map(String::as_str).collect()
}

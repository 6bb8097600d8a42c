//! Table tests: changes of a valid object, each with the fields that become invalid.

use serde_json::{Map, Value};

use super::{validate, validate_update};

/// Lays a change over an object: maps are merged, null removes, all else replaces.
pub(super) fn changed(object: &Value, change: &Value) -> Value {
    let Value::Object(change) = change else { return change.clone() };
    let mut merged: Map<String, Value> = object.as_object().cloned().unwrap_or_default();
    for (key, value) in change {
        if value.is_null() {
            merged.remove(key);
        } else {
            let below = changed(merged.get(key).unwrap_or(&Value::Null), value);
            merged.insert(key.clone(), below);
        }
    }
    merged.into()
}

/// Each change with the fields that are refused after it, blanks between them; none for an accepted one.
pub(super) fn creates(base: &Value, cases: &[(Value, &str)]) {
    assert_eq!(validate(base), [], "the object to start from is good");
    for (change, fields) in cases {
        let violations = validate(&changed(base, change));
        assert_eq!(refused(&violations), *fields, "{change}: {violations:#?}");
    }
}

/// Each pair of changes, to the stored object and to the one that replaces it, with the refused fields.
pub(super) fn updates(base: &Value, cases: &[(Value, Value, &str)]) {
    for (old, new, fields) in cases {
        let violations = validate_update(&changed(base, old), &changed(base, new));
        assert_eq!(refused(&violations), *fields, "{old} -> {new}: {violations:#?}");
    }
}

fn refused(violations: &[super::Violation]) -> String {
    let fields: Vec<&str> = violations.iter().map(|violation| violation.field.as_str()).collect();
    fields.join(" ")
}

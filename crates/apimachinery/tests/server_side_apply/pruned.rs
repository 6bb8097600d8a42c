//! For tests: JSON in which null, `{}` and `[]` count as absent.

use serde_json::{Map, Value, json};

/// The value without absent members.
pub fn pruned(value: &Value) -> Value {
    let is_kept = |value: &Value| {
        !(value.is_null() || value.as_object().is_some_and(Map::is_empty) || value == &json!([]))
    };
    match value {
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| (name.clone(), pruned(value)));
            Value::Object(members.filter(|(_, value)| is_kept(value)).collect())
        }
        Value::Array(items) => items.iter().map(pruned).collect(),
        other => other.clone(),
    }
}

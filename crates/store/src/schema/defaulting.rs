//! Schema defaults of custom resources, set in place. Schemas without defaults, as ours are, cost nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value};

/// Deeper than any schema.
const MAX_DEPTH: usize = 64;

pub(crate) fn fill_defaults(schema: &'static Value, object: &mut Value) {
    if has_some(schema) {
        fill(schema, object, 0);
    }
}

/// Whether a schema has defaults; cached, because schemas are static.
fn has_some(schema: &'static Value) -> bool {
    static KNOWN: Mutex<BTreeMap<usize, bool>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let address = std::ptr::from_ref(schema) as usize;
    *known.entry(address).or_insert_with(|| has_any(schema, 0))
}

fn has_any(schema: &Value, depth: usize) -> bool {
    let properties = schema["properties"].as_object().into_iter().flat_map(Map::values);
    let below = properties.chain([&schema["items"], &schema["additionalProperties"]]);
    depth <= MAX_DEPTH
        && below
            .into_iter()
            .any(|below| below.is_object() && (below.get("default").is_some() || has_any(below, depth + 1)))
}

fn fill(schema: &Value, value: &mut Value, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(members) => fill_members(schema, members, depth),
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                items.iter_mut().for_each(|item| fill(schema, item, depth + 1));
            }
        }
        _ => {}
    }
}

fn fill_members(schema: &Value, members: &mut Map<String, Value>, depth: usize) {
    let properties = schema["properties"].as_object();
    let additional = &schema["additionalProperties"];
    let is_open = schema["x-kubernetes-preserve-unknown-fields"] == true;
    let additional = Some(additional).filter(|additional| additional.is_object() && !is_open);
    for (name, value) in members.iter_mut() {
        let own = properties.and_then(|properties| properties.get(name));
        if let Some(schema) = own.or(additional) {
            fill(schema, value, depth + 1);
        }
    }
    // A default is complete: nothing is set inside it.
    for (name, property) in properties.into_iter().flatten() {
        if let Some(default) = property.get("default").filter(|_| !members.contains_key(name)) {
            members.insert(name.clone(), default.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json_diff::tests::any_json;
    use crate::kinds;
    use proptest::prelude::*;
    use serde_json::json;

    fn schema(levels: usize) -> Value {
        if levels == 0 {
            return json!({"type": "object", "default": {"a": 1}});
        }
        let below = schema(levels - 1);
        json!({"items": below, "properties": {
            "a": {"type": "integer", "default": 7},
            "b": below,
            "c": {"default": {"d": 1}, "additionalProperties": below},
            "d": {"x-kubernetes-preserve-unknown-fields": true, "additionalProperties": below}}})
    }

    proptest! {
        #[test]
        fn defaults_are_filled_in_as_by_the_library_that_copies(object in any_json()) {
            let schema = schema(4);
            let mut filled = object.clone();
            fill(&schema, &mut filled, 0);
            prop_assert_eq!(filled.to_string(), kube_cel::apply_defaults(&schema, &object).to_string());
        }
    }

    #[test]
    fn a_schema_is_known_to_have_defaults_or_none() {
        assert!(has_any(&schema(1), 0) && has_any(&json!({"items": {"items": {"default": 1}}}), 0));
        // A property named `default` is no default.
        assert!(!has_any(&json!({"properties": {"default": {"type": "object"}}}), 0));
        for kind in kinds::stored().filter(|kind| kind.schema.is_some()) {
            let schema = crate::schema::of(kind).unwrap();
            let object = json!({"spec": {"rules": [{}], "to": [{}]}});
            let mut filled = object.clone();
            fill_defaults(schema, &mut filled);
            assert_eq!(filled, kube_cel::apply_defaults(schema, &object), "{}", kind.kind);
        }
    }
}

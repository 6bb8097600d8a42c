//! Patches. Line 1 of the input is the type and the resource (`merge services`), line 2 the object, the rest the patch.

use serde_json::{Map, Value};
use store::fuzzing;

/// An object has at most 1.5 MB; a patch may leave a little more, which is refused later.
const MAX_OUTPUT: usize = 3 << 20;

pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let mut lines = text.splitn(3, '\n');
    let (Some(head), Some(object), Some(patch)) = (lines.next(), lines.next(), lines.next()) else { return };
    let Some((how, plural)) = head.split_once(' ') else { return };
    let Some(kind) = fuzzing::kind_of_plural(plural) else { return };
    let (Ok(object), Ok(patch)) =
        (serde_json::from_str::<Value>(object), serde_json::from_str::<Value>(patch))
    else {
        return;
    };
    // What is patched is always a stored object.
    if !object.is_object() {
        return;
    }
    let content_type = match how {
        "json" => "application/json-patch+json",
        "merge" => "application/merge-patch+json",
        "strategic" => "application/strategic-merge-patch+json",
        _ => return,
    };
    let apply = |object: &Value| fuzzing::apply_patch(content_type, kind, object, &patch);
    let Some(Ok(patched)) = apply(&object) else { return };
    let size = patched.to_string().len();
    assert!(size <= MAX_OUTPUT, "a patch of {} bytes made {size}", input.len());
    match how {
        "merge" => {
            assert_eq!(patched, merged(&object, &patch), "RFC 7386 says otherwise");
            assert_eq!(apply(&patched), Some(Ok(patched.clone())), "a merge patch is not idempotent");
        }
        "strategic" => {
            if !has_directive(&object) {
                assert!(!has_directive(&patched), "a directive was stored: {patched}");
            }
            if !has_directive(&patch) {
                assert_eq!(apply(&patched), Some(Ok(patched.clone())), "a strategic patch is not idempotent");
            }
        }
        _ => {}
    }
}

/// RFC 7386, section 2, as written there.
fn merged(target: &Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else { return patch.clone() };
    let mut members = target.as_object().cloned().unwrap_or_else(Map::new);
    for (name, value) in patch {
        if value.is_null() {
            members.shift_remove(name);
        } else {
            let before = members.get(name).unwrap_or(&Value::Null);
            let after = merged(before, value);
            members.insert(name.clone(), after);
        }
    }
    Value::Object(members)
}

fn has_directive(value: &Value) -> bool {
    match value {
        Value::Object(members) => {
            members.iter().any(|(name, value)| name.starts_with('$') || has_directive(value))
        }
        Value::Array(items) => items.iter().any(has_directive),
        _ => false,
    }
}

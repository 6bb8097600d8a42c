//! Objects as JSON or YAML, from bodies, files and the store, into JSON values and model types.

use model::{Interner, parse};
use serde_json::Value;
use store::fuzzing;

/// What an alias of YAML may make of an input; an object has at most 1.5 MB.
const MAX_OUTPUT: usize = 3 << 20;

pub(crate) fn run(input: &[u8]) {
    let strict = fuzzing::strict_json(input);
    let plain = serde_json::from_slice::<Value>(input);
    // Two decoders of JSON.
    assert_eq!(strict.is_ok(), plain.is_ok(), "only one decoder accepts it: {strict:?} {plain:?}");
    if let (Ok((value, duplicates)), Ok(plain)) = (&strict, &plain) {
        assert_eq!(value, plain, "two decoders, two values");
        check_json(input, value, !duplicates.is_empty());
    }
    if let Ok(value) = fuzzing::request_body("application/yaml", input) {
        let text = value.to_string();
        assert!(text.len() <= MAX_OUTPUT, "{} bytes of YAML became {} of JSON", input.len(), text.len());
        check_value(&value);
    }
}

fn check_json(input: &[u8], value: &Value, has_duplicates: bool) {
    check_value(value);
    let Some(members) = value.as_object() else { return };
    let names: Vec<&str> = members.keys().map(String::as_str).step_by(2).collect();
    let chosen = members.iter().filter(|(name, _)| names.contains(&name.as_str()));
    let chosen: serde_json::Map<_, _> = chosen.map(|(name, value)| (name.clone(), value.clone())).collect();
    let partial = fuzzing::chosen_members(input, &names);
    assert_eq!(partial, Some(Value::Object(chosen)), "partial and full decoding disagree");
    if has_duplicates {
        return;
    }
    // Stored objects have no duplicate fields.
    assert!(fuzzing::has_content(input, value), "an object differs from its own bytes");
    for (name, _) in members.iter().filter(|(name, _)| !matches!(name.as_str(), "metadata" | "status")) {
        let mut other = value.clone();
        other[name] = Value::String(format!("not {name}"));
        assert_eq!(fuzzing::has_content(input, &other), other == *value, "a change of {name} is not seen");
    }
}

fn check_value(value: &Value) {
    let text = value.to_string();
    let again = fuzzing::strict_json(text.as_bytes()).map(|(value, _)| value);
    assert_eq!(again.as_ref(), Ok(value), "JSON does not survive encoding");
    let (mut one, mut two) = (Interner::default(), Interner::default());
    let (object, notices) = parse::object(value, &mut one);
    for notice in &notices {
        assert!(!notice.to_string().is_empty());
    }
    let word = |field: &str| value[field].as_str().unwrap_or_default();
    let (from_text, text_notices) = parse::text(word("apiVersion"), word("kind"), &text, &mut two);
    assert_eq!(from_text, object, "parsing the value and its text disagree");
    assert_eq!(text_notices.len(), notices.len(), "{text_notices:?} {notices:?}");
}

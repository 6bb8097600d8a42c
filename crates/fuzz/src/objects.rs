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
    for (name, member) in members {
        let mut others = members.clone();
        others.retain(|other, _| other != name);
        let (decoded, is_same) = fuzzing::all_but(input, name, member).expect("it is JSON");
        assert_eq!(decoded, Value::Object(others), "partial and full decoding disagree");
        // Stored objects have no duplicate fields.
        assert!(has_duplicates || is_same == Some(true), "{name} differs from its own bytes");
        let changed = Value::String(format!("not {name}"));
        let is_same = fuzzing::all_but(input, name, &changed).and_then(|(_, is_same)| is_same);
        assert_eq!(is_same, Some(changed == *member), "a change of {name} is not seen");
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

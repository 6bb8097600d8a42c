//! Checks types and prunes unknown fields, as kube-apiserver does when it decodes JSON.

use std::fmt::Write;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use serde_json::Value;

use super::resolve;
use crate::json_diff::JsonDiff;

/// As in kube-apiserver, the last character may have unused bits.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// Decodes base64. Line ends, which YAML keeps, are skipped.
pub fn bytes(text: &str) -> Option<Vec<u8>> {
    if text.contains(['\r', '\n']) {
        return BASE64.decode(text.replace(['\r', '\n'], "")).ok();
    }
    BASE64.decode(text).ok()
}

/// Fields that are reported of each kind, as in kube-apiserver; all unknown ones are removed.
const MAX_UNKNOWN: usize = 100;

/// The result of [`check`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Paths of the first unknown fields; all are removed.
    pub unknown: Vec<String>,
    /// Fields of the wrong type: path, and the expected type.
    pub mistyped: Vec<String>,
}

/// Checks `value` against `schema` and removes unknown fields. Parts that are equal in `stored` are skipped.
pub fn check(value: &mut Value, stored: Option<&Value>, schema: &'static Value) -> Findings {
    let mut findings = Findings::default();
    if let Some(difference) = JsonDiff::since(stored, value) {
        walk(value, &difference, schema, &mut String::new(), &mut findings);
    }
    findings
}

/// `path` is one buffer that grows and shrinks on the way, because most objects have no findings.
fn walk(
    value: &mut Value,
    difference: &JsonDiff,
    schema: &'static Value,
    path: &mut String,
    findings: &mut Findings,
) {
    let schema = resolve(schema);
    if value.is_null() || schema["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    if !has_type(value, schema) {
        let wanted = schema["type"].as_str().unwrap_or("integer or string");
        if findings.mistyped.len() >= MAX_UNKNOWN {
            return;
        }
        let found = type_of(value);
        let at = if path.is_empty() { "the object" } else { path.as_str() };
        findings.mistyped.push(format!("{at}: expected {wanted}, got {found}"));
        return;
    }
    if schema["format"] == "byte" && value.as_str().and_then(bytes).is_none() {
        if findings.mistyped.len() < MAX_UNKNOWN {
            findings.mistyped.push(format!("{path}: illegal base64 data"));
        }
        return;
    }
    match value {
        Value::Object(map) => members(map, difference, schema, path, findings),
        Value::Array(items) => {
            let schema = &schema["items"];
            for (i, item) in items.iter_mut().enumerate() {
                let Some(difference) = difference.item(i) else { continue };
                let length = path.len();
                let _ = write!(path, "[{i}]");
                walk(item, difference, schema, path, findings);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

fn members(
    map: &mut serde_json::Map<String, Value>,
    difference: &JsonDiff,
    schema: &'static Value,
    path: &mut String,
    findings: &mut Findings,
) {
    let length = path.len();
    let below = |path: &mut String, name: &str| {
        path.truncate(length);
        if length > 0 {
            path.push('.');
        }
        path.push_str(name);
    };
    if let Some(properties) = schema["properties"].as_object() {
        map.retain(|name, _| {
            let is_known = properties.contains_key(name);
            if !is_known && findings.unknown.len() < MAX_UNKNOWN {
                below(path, name);
                findings.unknown.push(path.clone());
            }
            is_known
        });
        for (name, value) in map.iter_mut() {
            if let (Some(schema), Some(difference)) = (properties.get(name), difference.member(name)) {
                below(path, name);
                walk(value, difference, schema, path, findings);
            }
        }
    } else if schema["additionalProperties"].is_object() {
        let schema = &schema["additionalProperties"];
        for (name, value) in map.iter_mut() {
            let Some(difference) = difference.member(name) else { continue };
            below(path, name);
            walk(value, difference, schema, path, findings);
        }
    }
    path.truncate(length);
}

fn has_type(value: &Value, schema: &Value) -> bool {
    if schema["x-kubernetes-int-or-string"] == true {
        return value.is_string() || value.is_i64() || value.is_u64();
    }
    match schema["type"].as_str() {
        Some("string") => value.is_string(),
        Some("integer") => value.as_i64().is_some_and(|number| fits(number, schema)),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        // Quantities may be numbers, and some definitions have no type.
        _ => true,
    }
}

fn fits(number: i64, schema: &Value) -> bool {
    schema["format"] != "int32" || i32::try_from(number).is_ok()
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::definition;
    use serde_json::json;

    fn check_service(mut value: Value) -> (Value, Findings) {
        let findings = check(&mut value, None, definition("io.k8s.api.core.v1.Service").unwrap());
        (value, findings)
    }

    #[test]
    fn unknown_fields_are_found_and_dropped() {
        let (object, findings) = check_service(json!({
            "metadata": {"name": "a", "labels": {"any": "thing"}},
            "spec": {"colour": "red", "ports": [{"port": 80, "prot": 1, "targetPort": "http"}]},
        }));
        assert_eq!(findings.unknown, ["spec.colour", "spec.ports[0].prot"]);
        assert_eq!(object["spec"], json!({"ports": [{"port": 80, "targetPort": "http"}]}));
        assert!(findings.mistyped.is_empty());
    }

    #[test]
    fn valid_objects_have_no_findings_and_stay_unchanged() {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {
            "selector": {"a": "b"}, "ports": [{"port": 80, "targetPort": "http"}, {"port": 81, "targetPort": 8080}]},
            "status": {"loadBalancer": {}}});
        assert_eq!(check_service(service.clone()), (service, Findings::default()));
    }

    #[test]
    fn wrong_types_are_named_with_their_path() {
        let (_, findings) = check_service(json!({"spec": {"ports": [{"port": "80"}], "type": 5}}));
        assert_eq!(
            findings.mistyped,
            ["spec.ports[0].port: expected integer, got string", "spec.type: expected string, got number"]
        );
        let (_, findings) = check_service(json!({"spec": {"ports": [{"port": 5_000_000_000u64}]}}));
        assert_eq!(findings.mistyped.len(), 1);
    }
}

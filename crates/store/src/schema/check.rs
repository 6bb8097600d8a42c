//! Checks types and prunes unknown fields, as kube-apiserver does when it decodes JSON.

use std::fmt::{self, Write};

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
pub(crate) fn bytes(text: &str) -> Option<Vec<u8>> {
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
    pub mistyped: Vec<TypeMismatch>,
}

/// A field of the wrong type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeMismatch {
    /// Empty for the object itself.
    pub path: String,
    /// What is wrong.
    pub reason: String,
    /// The same in the words of kube-apiserver about the object that a patch makes.
    restored: String,
}

impl TypeMismatch {
    fn new(path: &str, schema: &Value, value: &Value) -> Self {
        let (wanted, found) = (schema["type"].as_str().unwrap_or("integer or string"), type_of(value));
        let reason = format!("expected {wanted}, got {found}");
        let restored = match wanted {
            "object" if schema["additionalProperties"].is_object() => {
                format!("cannot restore map from {found}")
            }
            "object" => format!("cannot restore struct from: {found}"),
            "array" => format!("cannot restore slice from {found}"),
            _ => reason.clone(),
        };
        Self { path: path.to_owned(), reason, restored }
    }

    fn base64(path: &str) -> Self {
        let reason = "illegal base64 data".to_owned();
        Self { path: path.to_owned(), restored: reason.clone(), reason }
    }

    fn place(&self) -> &str {
        if self.path.is_empty() { "the object" } else { &self.path }
    }

    /// In the words about a patch.
    pub(crate) fn of_patch(&self) -> String {
        format!("{}: {}", self.place(), self.restored)
    }
}

impl fmt::Display for TypeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place(), self.reason)
    }
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
        if findings.mistyped.len() < MAX_UNKNOWN {
            findings.mistyped.push(TypeMismatch::new(path, schema, value));
        }
        return;
    }
    if schema["format"] == "byte" && value.as_str().and_then(bytes).is_none() {
        if findings.mistyped.len() < MAX_UNKNOWN {
            findings.mistyped.push(TypeMismatch::base64(path));
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
        let said: Vec<String> = findings.mistyped.iter().map(TypeMismatch::to_string).collect();
        assert_eq!(
            said,
            ["spec.ports[0].port: expected integer, got string", "spec.type: expected string, got number"]
        );
        let (_, findings) = check_service(json!({"spec": {"ports": [{"port": 5_000_000_000u64}]}}));
        assert_eq!(findings.mistyped.len(), 1);
    }

    #[test]
    fn wrong_types_of_a_patch_have_the_words_of_kubernetes() {
        let object = json!({"metadata": {"labels": "a"}, "spec": {"ports": {}, "type": 5}, "status": true});
        let (_, findings) = check_service(object);
        let said: Vec<String> = findings.mistyped.iter().map(TypeMismatch::of_patch).collect();
        assert_eq!(
            said,
            [
                "metadata.labels: cannot restore map from string",
                "spec.ports: cannot restore slice from object",
                "spec.type: expected string, got number",
                "status: cannot restore struct from: boolean",
            ]
        );
    }
}

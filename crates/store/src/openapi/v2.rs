//! OpenAPI v2: the schemas of all kinds in one document, without paths. kubectl requests it, as protobuf, for a
//! `kind: List`.

use std::sync::OnceLock;

use bytes::Bytes;
use http::{HeaderMap, header};
use serde_json::{Map, Value, json};

use super::{definition_name, gnostic};
use crate::kinds::{KINDS, OPEN_DEFINITION};
use crate::schema::{self, PREFIX};
use crate::status::StatusError;

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// In the Accept header of clients. An `@` is not valid in a content type, so the response has the name without it.
const OLD_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// The document in the negotiated content type.
pub(crate) fn document(headers: &HeaderMap) -> Result<(&'static str, Bytes), StatusError> {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut ranges = accepted.flat_map(|value| value.split(',')).filter_map(|range| {
        let range = range.split(';').next().unwrap_or_default().trim();
        (!range.is_empty()).then_some(range)
    });
    let Some(first) = ranges.next() else { return Ok((JSON, text())) };
    std::iter::once(first)
        .chain(ranges)
        .find_map(|range| match range {
            JSON | "application/*" | "*/*" => Some((JSON, text())),
            PROTOBUF | OLD_PROTOBUF => Some((PROTOBUF, protobuf())),
            _ => None,
        })
        .ok_or_else(|| StatusError::not_acceptable(&format!("{JSON}, {OLD_PROTOBUF}")))
}

fn text() -> Bytes {
    static TEXT: OnceLock<Bytes> = OnceLock::new();
    TEXT.get_or_init(|| Bytes::from(made().to_string())).clone()
}

fn protobuf() -> Bytes {
    static BYTES: OnceLock<Bytes> = OnceLock::new();
    BYTES.get_or_init(|| Bytes::from(gnostic::encode(&made()))).clone()
}

fn made() -> Value {
    let plain = schema::definitions().iter().filter(|(name, _)| *name != OPEN_DEFINITION);
    let mut definitions: Map<String, Value> =
        plain.map(|(name, definition)| (name.clone(), reduced(definition))).collect();
    for kind in KINDS {
        let mut definition = schema::of(kind).map_or_else(|| json!({}), reduced);
        definition["x-kubernetes-group-version-kind"] =
            json!([{"group": kind.group, "version": kind.version, "kind": kind.kind}]);
        definitions.insert(definition_name(kind), definition);
    }
    definitions.sort_keys();
    json!({
        "swagger": "2.0",
        "info": {"title": "Zoneward", "version": env!("CARGO_PKG_VERSION")},
        "paths": {},
        "definitions": definitions,
    })
}

/// Reduces a schema to OpenAPI v2: references, types, members and extensions. It has no `oneOf` and `anyOf`; such schemas
/// allow everything.
fn reduced(schema: &Value) -> Value {
    let Value::Object(members) = schema else { return json!({}) };
    let mut kept = Map::new();
    if let Some(description) = members.get("description") {
        kept.insert("description".to_owned(), description.clone());
    }
    let target = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
    if let Some(name) = target.and_then(|target| target.strip_prefix(PREFIX)) {
        kept.insert("$ref".to_owned(), format!("#/definitions/{name}").into());
    } else if let Some(word) = type_of(schema) {
        kept.insert("type".to_owned(), word.into());
    }
    // As in Kubernetes: kubectl would take a value of several types for a map.
    let is_any = kept.get("type").is_none() && schema["x-kubernetes-preserve-unknown-fields"] == true;
    for (name, value) in members {
        match name.as_str() {
            "properties" | "items" | "required" if is_any => {}
            "format" | "required" => {
                kept.insert(name.clone(), value.clone());
            }
            "properties" => {
                let members = value.as_object().into_iter().flatten();
                let members: Map<_, _> =
                    members.map(|(name, value)| (name.clone(), reduced(value))).collect();
                kept.insert(name.clone(), members.into());
            }
            "items" => {
                kept.insert(name.clone(), reduced(value));
            }
            "additionalProperties" if *value != false => {
                kept.insert(name.clone(), reduced(value));
            }
            extension if extension.starts_with("x-") => {
                kept.insert(name.clone(), value.clone());
            }
            _ => {}
        }
    }
    if kept.get("type").is_some_and(|word| word == "array") {
        kept.entry("items").or_insert_with(|| json!({}));
    }
    Value::Object(kept)
}

/// The type of a schema without `null`.
fn type_of(schema: &Value) -> Option<&str> {
    match &schema["type"] {
        Value::String(word) => Some(word),
        Value::Array(words) => words.iter().filter_map(Value::as_str).find(|word| *word != "null"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(accept: &str) -> Result<&'static str, u16> {
        let mut headers = HeaderMap::new();
        if !accept.is_empty() {
            headers.insert(header::ACCEPT, accept.parse().unwrap());
        }
        document(&headers).map(|(kind, _)| kind).map_err(|failure| failure.code)
    }

    #[test]
    fn the_first_form_that_we_can_serve_is_taken() {
        assert_eq!(asked(""), Ok(JSON));
        assert_eq!(asked("*/*"), Ok(JSON));
        assert_eq!(asked(OLD_PROTOBUF), Ok(PROTOBUF));
        assert_eq!(asked(&format!("text/html, {PROTOBUF};q=1, application/json")), Ok(PROTOBUF));
        assert_eq!(asked("text/html"), Err(406));
    }

    #[test]
    fn every_reference_leads_to_a_definition() {
        let document = made();
        let definitions = document["definitions"].as_object().unwrap();
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"").skip(1) {
            let target = reference.split('"').next().unwrap().strip_prefix("#/definitions/").unwrap();
            assert!(definitions.contains_key(target), "{target}");
        }
        assert!(!text.contains("OpenObject"));
        assert_eq!(
            definitions["io.k8s.api.core.v1.Service"]["x-kubernetes-group-version-kind"][0]["kind"],
            "Service"
        );
        assert!(
            definitions["dev.zoneward.v1alpha1.MeshHTTPRoute"]["properties"]["spec"]["properties"]
                .is_object()
        );
        assert_eq!(definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"].get("type"), None);
    }
}

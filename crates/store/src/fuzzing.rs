//! Entries for the fuzz targets of crate `fuzz`: parsers that are private otherwise. No stable interface.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use serde_json::Value;

use crate::kinds::{self, ResourceKind};
use crate::patch::{self, PatchKind};
use crate::query::QueryParams;
use crate::strict_json::StrictJson;
use crate::{admission, api, partial_decode, protobuf};

pub use crate::engine::fuzzing::{ParsedRecord, parse_journal};

/// Strict JSON: the value, and a message for each duplicate field.
pub fn strict_json(bytes: &[u8]) -> Result<(Value, Vec<String>), String> {
    let decoded = StrictJson::decode(bytes).map_err(|error| error.to_string())?;
    Ok((decoded.value, decoded.duplicates))
}

/// The object in the body of a request.
pub fn request_body(content_type: &'static str, bytes: &[u8]) -> Result<Value, String> {
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
    api::body::object(&headers, bytes, "Object").map(|decoded| decoded.value).map_err(|error| error.message)
}

pub fn protobuf_object(bytes: &[u8]) -> Result<Value, String> {
    protobuf::object(bytes).map_err(|error| format!("{error:?}"))
}

/// Partial decoding: an object but for one member, and whether that member is this value.
pub fn all_but(json: &[u8], name: &str, value: &Value) -> Option<(Value, Option<bool>)> {
    let (object, left_out) = partial_decode::all_but(json, name).ok()?;
    Some((object, left_out.map(|json| partial_decode::is_same(json, value))))
}

/// A patch of an object of this kind; `None` if the kind cannot be patched like this.
pub fn apply_patch(
    content_type: &str,
    kind: &ResourceKind,
    object: &Value,
    patch: &Value,
) -> Option<Result<Value, String>> {
    let how = PatchKind::of(content_type, kind).ok()?;
    Some(patch::apply(how, kind, object, patch).map_err(|error| error.message))
}

/// Evaluates a CEL expression as a policy does.
pub fn evaluate_cel(expression: &str, object: &Value) -> Result<bool, String> {
    admission::policy::evaluate_expression(expression, object)
}

/// Whether an expression compiles.
pub fn compiles_cel(expression: &str) -> bool {
    let policy = serde_json::json!({"spec": {"validations": [{"expression": expression}]}});
    admission::policy::uncompilable(&policy).is_empty()
}

/// Path and query of a request: the fields of the path, and whether an object matches the selectors.
pub fn parse_request(
    path: &str,
    query: &str,
    object: &Value,
) -> Result<(String, Option<Result<bool, String>>), String> {
    let (shown, kind) = api::fuzzing::parse_path(path)?;
    let options = kind.map(|kind| {
        let options = QueryParams::parse(query).list_options(kind).map_err(|error| error.message)?;
        if let Some(token) = &options.continue_token {
            api::fuzzing::parse_continue_token(token)?;
        }
        Ok(options.labels.matches(object) && options.fields.matches(object))
    });
    Ok((shown, options))
}

/// Percent-decoding of a segment or parameter.
pub fn percent_decoded(text: &str) -> String {
    crate::query::decode(text)
}

/// The kind of a resource, as `services` or `leases`.
pub fn kind_of_plural(plural: &str) -> Option<&'static ResourceKind> {
    kinds::stored().find(|kind| kind.plural == plural)
}

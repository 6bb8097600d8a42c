//! JSON patch, merge patch and strategic merge patch. Server-side apply is in `field_tracking`.

mod strategic;

use json_patch::{AddOperation, CopyOperation, MoveOperation, PatchOperation, RemoveOperation};
use serde_json::Value;

use crate::kinds::ResourceKind;
use crate::object_size::{self, MAX_OBJECT};
use crate::schema;
use crate::status::StatusError;

/// Maximum number of operations in a JSON patch.
const MAX_OPERATIONS: usize = 10_000;
/// Maximum number of items of lists that the operations of a JSON patch move: a fraction of a second.
const MAX_MOVES: usize = 50_000_000;

/// The kind of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchKind {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    Strategic,
}

const ACCEPTED: &str = "application/json-patch+json, application/merge-patch+json, \
    application/strategic-merge-patch+json, application/apply-patch+yaml";

/// The media type of server-side apply.
pub(crate) const APPLY: &str = "application/apply-patch+yaml";

impl PatchKind {
    /// The patch kind of a content type.
    pub(crate) fn of(content_type: &str, kind: &ResourceKind) -> Result<Self, StatusError> {
        let media = content_type.split(';').next().unwrap_or_default().trim();
        match media {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" if kind.definition != crate::kinds::OPEN_DEFINITION => {
                Ok(Self::Strategic)
            }
            other => Err(StatusError::unsupported_media_type(format!(
                "the body of the request was in an unknown format - accepted media types include: {ACCEPTED}; \
                 got {other:?}"
            ))),
        }
    }
}

/// The object after the patch.
pub(crate) fn apply(
    how: PatchKind,
    kind: &ResourceKind,
    object: &Value,
    patch: &Value,
) -> Result<Value, StatusError> {
    let patched = match how {
        PatchKind::Json => json(object, patch.clone())?,
        PatchKind::Merge => merge(object, patch)?,
        PatchKind::Strategic => {
            let schema = schema::definition(kind.definition);
            let schema =
                schema.ok_or_else(|| StatusError::internal(format!("{} has no schema", kind.kind)))?;
            strategic::apply(object, patch, schema)?
        }
    };
    object_size::check_change(object, &patched)?;
    Ok(patched)
}

fn json(object: &Value, patch: Value) -> Result<Value, StatusError> {
    if patch.as_array().is_some_and(|list| list.len() > MAX_OPERATIONS) {
        let message = format!("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}");
        return Err(StatusError { message, ..StatusError::too_large(MAX_OPERATIONS) });
    }
    let patch: json_patch::Patch = serde_json::from_value(patch)
        .map_err(|error| StatusError::bad_request(format!("error decoding patch: {error}")))?;
    let (mut patched, mut copied, mut moved) = (object.clone(), 0, 0);
    for operation in &patch.0 {
        copied += copied_bytes(&patched, operation);
        moved += moved_items(&patched, operation);
        if copied > MAX_OBJECT {
            return Err(inapplicable(format!(
                "unable to copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_OBJECT}"
            )));
        }
        if moved > MAX_MOVES {
            return Err(inapplicable(format!("the operations move more than {MAX_MOVES} items of lists")));
        }
        // What fails is dropped as a whole, so operations need not be undone.
        json_patch::patch_unsafe(&mut patched, std::slice::from_ref(operation)).map_err(inapplicable)?;
    }
    Ok(patched)
}

fn inapplicable(error: impl std::fmt::Display) -> StatusError {
    StatusError::unprocessable(format!(
        "the server rejected our request due to an error in our request: {error}"
    ))
}

/// The size of the value that an operation copies.
fn copied_bytes(object: &Value, operation: &PatchOperation) -> usize {
    match operation {
        PatchOperation::Copy(copy) => object.pointer(copy.from.as_str()).map_or(0, text_size),
        _ => 0,
    }
}

/// About the size of a value as JSON.
fn text_size(value: &Value) -> usize {
    match value {
        Value::Object(members) => {
            2 + members.iter().map(|(name, value)| name.len() + 4 + text_size(value)).sum::<usize>()
        }
        Value::Array(items) => 2 + items.iter().map(|item| 1 + text_size(item)).sum::<usize>(),
        Value::String(text) => text.len() + 2,
        _ => 4,
    }
}

/// The items of lists that make room for an operation: up to all of the list.
fn moved_items(object: &Value, operation: &PatchOperation) -> usize {
    let items = |path: &str| {
        let parent = path.rsplit_once('/').and_then(|(parent, _)| object.pointer(parent));
        parent.and_then(Value::as_array).map_or(0, Vec::len)
    };
    match operation {
        PatchOperation::Add(add) if add.path.as_str().ends_with("/-") => 0,
        PatchOperation::Add(AddOperation { path, .. }) | PatchOperation::Remove(RemoveOperation { path }) => {
            items(path.as_str())
        }
        PatchOperation::Move(MoveOperation { from, path }) => items(from.as_str()) + items(path.as_str()),
        PatchOperation::Copy(CopyOperation { path, .. }) => items(path.as_str()),
        PatchOperation::Replace(_) | PatchOperation::Test(_) => 0,
    }
}

fn merge(object: &Value, patch: &Value) -> Result<Value, StatusError> {
    if !patch.is_object() {
        return Err(StatusError::bad_request("error decoding patch: expected a JSON object"));
    }
    let mut patched = object.clone();
    json_patch::merge(&mut patched, patch);
    Ok(patched)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;
    use serde_json::json;

    fn service() -> &'static ResourceKind {
        kinds::find("", "v1", "services").unwrap()
    }

    fn patched(how: PatchKind, object: Value, patch: Value) -> Result<Value, u16> {
        apply(how, service(), &object, &patch).map_err(|failure| failure.code)
    }

    #[test]
    fn a_json_patch_is_applied_or_refused_as_a_whole() {
        let object = json!({"spec": {"type": "ClusterIP"}});
        let good = json!([{"op": "test", "path": "/spec/type", "value": "ClusterIP"},
            {"op": "add", "path": "/spec/clusterIP", "value": "None"}]);
        assert_eq!(patched(PatchKind::Json, object.clone(), good).unwrap()["spec"]["clusterIP"], "None");
        let failing = json!([{"op": "remove", "path": "/spec/ports"}]);
        assert_eq!(patched(PatchKind::Json, object.clone(), failing), Err(422));
        assert_eq!(patched(PatchKind::Json, object, json!({"op": "add"})), Err(400));
    }

    #[test]
    fn a_merge_patch_replaces_lists_and_removes_by_null() {
        let object = json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"ports": [{"port": 1}]}});
        let patch = json!({"metadata": {"labels": {"a": null}}, "spec": {"ports": [{"port": 2}]}});
        let expected = json!({"metadata": {"labels": {"b": "2"}}, "spec": {"ports": [{"port": 2}]}});
        assert_eq!(patched(PatchKind::Merge, object.clone(), patch), Ok(expected));
        assert_eq!(patched(PatchKind::Merge, object, json!([])), Err(400));
    }

    #[test]
    fn the_media_type_tells_the_kind_of_a_patch() {
        assert_eq!(PatchKind::of("application/apply-patch+cbor", service()).unwrap_err().code, 415);
        assert_eq!(PatchKind::of("text/plain", service()).unwrap_err().code, 415);
        assert_eq!(
            PatchKind::of("application/merge-patch+json; charset=utf-8", service()),
            Ok(PatchKind::Merge)
        );
    }
}

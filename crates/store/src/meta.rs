//! The metadata of objects: what the server writes into it, and how fields are found by their paths.
//!
//! managedFields are left out, as nothing here applies on the server's side; only of EndpointSlices, which two
//! controllers may write, the last writer's name is kept there.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::kinds::Kind;

static NULL: Value = Value::Null;

/// The value at a path of names, as `spec.type`; null where there is none.
pub fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    path.split('.').try_fold(object, |value, name| value.get(name)).unwrap_or(&NULL)
}

/// A member of `metadata` as text, empty where there is none.
pub fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"][name].as_str().unwrap_or_default()
}

/// `metadata`, made if it is missing; an object that is none has no metadata to write to.
pub fn metadata(object: &mut Value) -> Option<&mut Map<String, Value>> {
    let map = object.as_object_mut()?;
    let meta = map.entry("metadata").or_insert_with(|| json!({}));
    if !meta.is_object() {
        *meta = json!({});
    }
    meta.as_object_mut()
}

/// Sets a member of `metadata`.
pub fn set(object: &mut Value, name: &str, value: impl Into<Value>) {
    if let Some(meta) = metadata(object) {
        meta.insert(name.to_owned(), value.into());
    }
}

/// Removes a member of `metadata`.
pub fn remove(object: &mut Value, name: &str) {
    if let Some(meta) = metadata(object) {
        meta.remove(name);
    }
}

/// Sets a member below an object that is made if it is missing.
pub fn set_in(object: &mut Value, parent: &str, name: &str, value: impl Into<Value>) {
    let Some(map) = object.as_object_mut() else { return };
    let below = map.entry(parent).or_insert_with(|| json!({}));
    if let Some(below) = below.as_object_mut() {
        below.insert(name.to_owned(), value.into());
    }
}

/// A point in time as objects carry it: whole seconds, UTC.
pub fn time(now: Timestamp) -> String {
    let whole = Timestamp::from_second(now.as_second()).unwrap_or(now);
    whole.to_string()
}

/// The finalizers that an object waits for before it goes.
pub fn finalizers(object: &Value) -> Vec<&str> {
    let list = object["metadata"]["finalizers"].as_array();
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Whether the object is being deleted.
pub fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// What a new object gets, whatever its writer said about it.
pub fn born(object: &mut Value, now: Timestamp, uid: String) {
    for name in
        ["resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"]
    {
        remove(object, name);
    }
    set(object, "uid", uid);
    set(object, "creationTimestamp", time(now));
}

/// What a stored object keeps, whatever the writer of its new version says. Names and uid that differ are
/// for validation to refuse; they are filled in only where they are missing.
pub fn carry_over(old: &Value, new: &mut Value) {
    for name in ["name", "namespace", "uid", "generateName"] {
        if text(new, name).is_empty() && !text(old, name).is_empty() {
            set(new, name, old["metadata"][name].clone());
        }
    }
    for name in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"] {
        match &old["metadata"][name] {
            Value::Null => remove(new, name),
            value => set(new, name, value.clone()),
        }
    }
    match &old["metadata"]["managedFields"] {
        Value::Null => remove(new, "managedFields"),
        value => set(new, "managedFields", value.clone()),
    }
    remove(new, "selfLink");
}

/// Notes who wrote an EndpointSlice, so that its controllers notice each other.
pub fn note_writer(kind: &Kind, object: &mut Value, manager: &str, now: Timestamp) {
    if kind.kind == "EndpointSlice" {
        let entry = json!({"manager": manager, "operation": "Update",
            "apiVersion": kind.api_version(), "time": time(now)});
        set(object, "managedFields", Value::Array(vec![entry]));
    }
}

/// Counts the generation up if something other than metadata and status changed.
pub fn count_generation(old: &Value, new: &mut Value) {
    if old["metadata"]["generation"].is_null() {
        return;
    }
    let began = !is_deleting(old) && is_deleting(new);
    if !has_same_content(old, new) || began {
        raise_generation(old, new);
    }
}

/// Counts the generation up, where objects have one.
pub fn raise_generation(old: &Value, new: &mut Value) {
    if !old["metadata"]["generation"].is_null() {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
        set(new, "generation", generation.saturating_add(1));
    }
}

/// Whether two objects are equal but for metadata and status; neither is copied for it.
fn has_same_content(old: &Value, new: &Value) -> bool {
    fn content(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
        let members = object.as_object().into_iter().flatten();
        members.filter(|(name, _)| *name != "metadata" && *name != "status")
    }
    content(old).count() == content(new).count()
        && content(old)
            .all(|(name, value)| new.get(name).is_some_and(|other| model::json::same(value, other)))
}

/// Takes empty members of metadata out, as `labels: {}`, so that equal objects have equal bytes.
pub fn tidy(object: &mut Value) {
    let Some(meta) = metadata(object) else { return };
    meta.retain(|_, value| match value {
        Value::Null => false,
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => true,
    });
}

/// Puts the version of the store into an object.
pub fn set_resource_version(object: &mut Value, revision: u64) {
    set(object, "resourceVersion", revision.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_of_content_count_as_a_generation() {
        let old = json!({"metadata": {"generation": 3}, "spec": {"a": 1}, "status": {}});
        let mut same = json!({"metadata": {"generation": 3, "labels": {"x": "y"}}, "spec": {"a": 1}, "status": {"b": 1}});
        count_generation(&old, &mut same);
        assert_eq!(same["metadata"]["generation"], 3);
        let mut other = json!({"metadata": {"generation": 3}, "spec": {"a": 2}});
        count_generation(&old, &mut other);
        assert_eq!(other["metadata"]["generation"], 4);
    }

    #[test]
    fn writers_cannot_change_what_the_server_gave() {
        let old = json!({"metadata": {"name": "a", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}});
        let mut new = json!({"metadata": {"name": "a", "creationTimestamp": "1999-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        carry_over(&old, &mut new);
        assert_eq!(
            new["metadata"],
            json!({"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "u"})
        );
    }
}

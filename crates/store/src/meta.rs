//! Object metadata, and access to fields by path.
//!
//! managedFields are set by `field_tracking`.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

static NULL: Value = Value::Null;

/// The value at a path such as `spec.type`; null if missing.
pub(crate) fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    path.split('.').try_fold(object, |value, name| value.get(name)).unwrap_or(&NULL)
}

/// A string field of `metadata`; empty if missing.
pub(crate) fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"][name].as_str().unwrap_or_default()
}

/// `metadata`, created if missing; `None` if the value is no object.
pub(crate) fn metadata(object: &mut Value) -> Option<&mut Map<String, Value>> {
    let map = object.as_object_mut()?;
    let meta = map.entry("metadata").or_insert_with(|| json!({}));
    if !meta.is_object() {
        *meta = json!({});
    }
    meta.as_object_mut()
}

/// Sets a field of `metadata`.
pub(crate) fn set(object: &mut Value, name: &str, value: impl Into<Value>) {
    if let Some(meta) = metadata(object) {
        meta.insert(name.to_owned(), value.into());
    }
}

/// Removes a field of `metadata`.
pub(crate) fn remove(object: &mut Value, name: &str) {
    if let Some(meta) = metadata(object) {
        meta.remove(name);
    }
}

/// Sets a field of a nested object, which is created if missing.
pub(crate) fn set_in(object: &mut Value, parent: &str, name: &str, value: impl Into<Value>) {
    let Some(map) = object.as_object_mut() else { return };
    let below = map.entry(parent).or_insert_with(|| json!({}));
    if let Some(below) = below.as_object_mut() {
        below.insert(name.to_owned(), value.into());
    }
}

/// A time as in objects: whole seconds, UTC.
pub(crate) fn time(now: Timestamp) -> String {
    let whole = Timestamp::from_second(now.as_second()).unwrap_or(now);
    whole.to_string()
}

pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    let list = object["metadata"]["finalizers"].as_array();
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Sets the server's fields of a new object.
pub(crate) fn prepare_new(object: &mut Value, now: Timestamp, uid: String) {
    for name in
        ["resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"]
    {
        remove(object, name);
    }
    set(object, "uid", uid);
    set(object, "creationTimestamp", time(now));
}

/// Keeps the server's fields in a new version. Name and uid are set only if missing; validation refuses changes.
pub(crate) fn keep_server_fields(old: &Value, new: &mut Value) {
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

/// Increments the generation if anything but metadata and status changed, or if deletion starts.
pub(crate) fn update_generation(old: &Value, new: &mut Value) {
    if old["metadata"]["generation"].is_null() {
        return;
    }
    let began = !is_deleting(old) && is_deleting(new);
    if !has_same_content(old, new) || began {
        increment_generation(old, new);
    }
}

/// Increments the generation, if there is one.
pub(crate) fn increment_generation(old: &Value, new: &mut Value) {
    if !old["metadata"]["generation"].is_null() {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
        set(new, "generation", generation.saturating_add(1));
    }
}

/// Whether two objects are equal except for metadata and status.
fn has_same_content(old: &Value, new: &Value) -> bool {
    fn content(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
        let members = object.as_object().into_iter().flatten();
        members.filter(|(name, _)| *name != "metadata" && *name != "status")
    }
    content(old).count() == content(new).count()
        && content(old)
            .all(|(name, value)| new.get(name).is_some_and(|other| model::json::same(value, other)))
}

/// Whether two objects are equal except for managedFields.
pub(crate) fn has_same_fields(old: &Value, new: &Value) -> bool {
    fn is_same(old: &Value, new: &Value, name: &str, same: impl Fn(&Value, &Value) -> bool) -> bool {
        let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return old == new };
        let others = |members: &Map<String, Value>| members.len() - usize::from(members.contains_key(name));
        others(old) == others(new)
            && old
                .iter()
                .filter(|(member, _)| *member != name)
                .all(|(member, old)| new.get(member) == Some(old))
            && same(old.get(name).unwrap_or(&NULL), new.get(name).unwrap_or(&NULL))
    }
    is_same(old, new, "metadata", |old, new| is_same(old, new, "managedFields", |_, _| true))
}

/// Removes empty fields of metadata, such as `labels: {}`, so that equal objects have equal bytes.
pub(crate) fn remove_empty(object: &mut Value) {
    let Some(meta) = metadata(object) else { return };
    meta.retain(|_, value| match value {
        Value::Null => false,
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => true,
    });
}

pub(crate) fn set_resource_version(object: &mut Value, revision: u64) {
    set(object, "resourceVersion", revision.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_of_content_increment_the_generation() {
        let old = json!({"metadata": {"generation": 3}, "spec": {"a": 1}, "status": {}});
        let mut same = json!({"metadata": {"generation": 3, "labels": {"x": "y"}}, "spec": {"a": 1}, "status": {"b": 1}});
        update_generation(&old, &mut same);
        assert_eq!(same["metadata"]["generation"], 3);
        let mut other = json!({"metadata": {"generation": 3}, "spec": {"a": 2}});
        update_generation(&old, &mut other);
        assert_eq!(other["metadata"]["generation"], 4);
    }

    #[test]
    fn writers_cannot_change_fields_of_the_server() {
        let old = json!({"metadata": {"name": "a", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}});
        let mut new = json!({"metadata": {"name": "a", "creationTimestamp": "1999-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        keep_server_fields(&old, &mut new);
        assert_eq!(
            new["metadata"],
            json!({"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "u"})
        );
    }
}

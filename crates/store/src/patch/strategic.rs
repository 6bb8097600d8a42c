//! Strategic merge patch: lists are merged by keys, and directives express what a merge cannot.
//!
//! ```text
//! $patch: replace | delete | merge     applies to this map, or to the list that contains it
//! $retainKeys: [a, b]                  only these members of the map are kept
//! $setElementOrder/ports: [{port: 1}]  the order; entries that are not named keep their positions
//! $deleteFromPrimitiveList/x: [a]      removes values from a list of scalars
//! ```
//!
//! The keys are in the schema, see `schema::merge_keys`.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::schema::resolve;
use crate::status::StatusError;

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE: &str = "$deleteFromPrimitiveList/";

type Members = Map<String, Value>;

/// The object after the patch.
pub(super) fn apply(object: &Value, patch: &Value, schema: &'static Value) -> Result<Value, StatusError> {
    let (Value::Object(object), Value::Object(patch)) = (object, patch) else {
        return Err(bad("expected a JSON object"));
    };
    Ok(Value::Object(merge_maps(object.clone(), patch, schema)?))
}

fn bad(message: impl Into<String>) -> StatusError {
    StatusError::bad_request(format!("error decoding patch: {}", message.into()))
}

fn merge_maps(mut object: Members, patch: &Members, schema: &'static Value) -> Result<Members, StatusError> {
    match directive(patch)? {
        Some("replace") => return Ok(plain_members(patch)),
        Some("delete") => return Ok(Members::new()),
        _ => {}
    }
    if let Some(retained) = patch.get(RETAIN) {
        retain(&mut object, patch, retained)?;
    }
    // Removed together, because each removal would move all that follow.
    let mut removed: HashSet<&str> = HashSet::new();
    for (name, change) in patch.iter().filter(|(name, _)| !name.starts_with('$')) {
        let field = property(schema, name);
        match (object.get_mut(name), change) {
            (_, Value::Null) => {
                removed.insert(name);
            }
            (Some(Value::Object(stored)), Value::Object(change)) => {
                let deleted = directive(change)? == Some("delete");
                let merged = merge_maps(std::mem::take(stored), change, field)?;
                *stored = merged;
                if deleted {
                    removed.insert(name);
                }
            }
            (Some(Value::Array(stored)), Value::Array(change)) => {
                let before = stored.clone();
                let merged = merge_lists(std::mem::take(stored), change, field)?;
                *stored = match order_of(patch, name)? {
                    Some(order) => arrange(merged, order, &before, merge_key(field)),
                    None if merges(field) => arrange(merged, change, &before, merge_key(field)),
                    None => merged,
                };
            }
            (_, change) => put(&mut object, name, change, field)?,
        }
    }
    if !removed.is_empty() {
        object.retain(|name, _| !removed.contains(name.as_str()));
    }
    for (name, gone) in patch.iter().filter_map(|(name, list)| Some((name.strip_prefix(DELETE)?, list))) {
        let gone = gone.as_array().ok_or_else(|| bad(format!("{DELETE}{name} must be a list")))?;
        if let Some(Value::Array(stored)) = object.get_mut(name) {
            let gone: HashSet<&Value> = gone.iter().collect();
            stored.retain(|value| !gone.contains(value));
        }
    }
    for name in
        patch.keys().filter_map(|name| name.strip_prefix(ORDER)).filter(|name| !patch.contains_key(*name))
    {
        if let (Some(order), Some(Value::Array(stored))) = (order_of(patch, name)?, object.get_mut(name)) {
            let before = stored.clone();
            *stored = arrange(std::mem::take(stored), order, &before, merge_key(property(schema, name)));
        }
    }
    Ok(object)
}

/// Sets a field that was missing or of another type.
fn put(object: &mut Members, name: &str, change: &Value, field: &'static Value) -> Result<(), StatusError> {
    let value = match change {
        Value::Object(change) if directive(change)? == Some("delete") => return Ok(()),
        Value::Object(change) => Value::Object(merge_maps(Members::new(), change, field)?),
        Value::Array(change) => Value::Array(merge_lists(Vec::new(), change, field)?),
        other => other.clone(),
    };
    object.insert(name.to_owned(), value);
    Ok(())
}

fn directive(patch: &Members) -> Result<Option<&str>, StatusError> {
    match patch.get(PATCH) {
        None => Ok(None),
        Some(Value::String(word)) if ["replace", "delete", "merge"].contains(&word.as_str()) => {
            Ok(Some(word))
        }
        Some(other) => Err(bad(format!("unknown $patch type {other}: expected replace, delete or merge"))),
    }
}

fn retain(object: &mut Members, patch: &Members, retained: &Value) -> Result<(), StatusError> {
    let kept = retained.as_array().ok_or_else(|| bad("$retainKeys must be a list of names"))?;
    let kept: HashSet<&str> = kept.iter().filter_map(Value::as_str).collect();
    let is_kept = |name: &str| kept.contains(name);
    let left_out =
        patch.iter().find(|(name, value)| !name.starts_with('$') && !value.is_null() && !is_kept(name));
    if let Some((name, _)) = left_out {
        return Err(bad(format!("the patch sets {name:?}, which is not in $retainKeys")));
    }
    object.retain(|name, _| is_kept(name));
    Ok(())
}

/// A map without directives and nulls.
fn plain_members(patch: &Members) -> Members {
    let kept = patch.iter().filter(|(name, value)| !name.starts_with('$') && !value.is_null());
    kept.map(|(name, value)| (name.clone(), plain(value))).collect()
}

fn plain(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(plain_members(map)),
        Value::Array(items) => items.iter().map(plain).collect(),
        other => other.clone(),
    }
}

fn property(schema: &'static Value, name: &str) -> &'static Value {
    let schema = resolve(schema);
    let field = &schema["properties"][name];
    if field.is_null() { &schema["additionalProperties"] } else { field }
}

fn order_of<'a>(patch: &'a Members, name: &str) -> Result<Option<&'a [Value]>, StatusError> {
    match patch.get(&format!("{ORDER}{name}")) {
        None => Ok(None),
        Some(Value::Array(order)) => Ok(Some(order)),
        Some(_) => Err(bad(format!("{ORDER}{name} must be a list"))),
    }
}

fn merges(field: &'static Value) -> bool {
    field["x-kubernetes-patch-strategy"].as_str().is_some_and(|word| word.contains("merge"))
}

fn merge_key(field: &'static Value) -> Option<&'static str> {
    field["x-kubernetes-patch-merge-key"].as_str()
}

fn merge_lists(
    stored: Vec<Value>,
    patch: &[Value],
    field: &'static Value,
) -> Result<Vec<Value>, StatusError> {
    let replaced = patch.iter().any(|item| item[PATCH] == "replace" && is_only_directive(item, field));
    if !merges(field) || replaced {
        return Ok(patch.iter().filter(|item| item[PATCH] != "replace").map(plain).collect());
    }
    match merge_key(field) {
        Some(key) => merge_by_key(stored, patch, key, &field["items"]),
        None => Ok(merge_set(stored, patch)),
    }
}

/// `{$patch: replace}` beside entries replaces the list by them.
fn is_only_directive(item: &Value, field: &'static Value) -> bool {
    merge_key(field).is_none_or(|key| item[key].is_null())
}

fn merge_set(mut stored: Vec<Value>, patch: &[Value]) -> Vec<Value> {
    let mut known: HashSet<&Value> = stored.iter().collect();
    let new: Vec<Value> = patch.iter().filter(|value| known.insert(value)).cloned().collect();
    stored.extend(new);
    stored
}

fn merge_by_key(
    stored: Vec<Value>,
    patch: &[Value],
    key: &str,
    items: &'static Value,
) -> Result<Vec<Value>, StatusError> {
    let mut positions: HashMap<Value, Vec<usize>> = HashMap::new();
    for (at, value) in stored.iter().enumerate() {
        positions.entry(value[key].clone()).or_default().push(at);
    }
    // Deleted entries are empty until the end.
    let mut entries: Vec<Option<Value>> = stored.into_iter().map(Some).collect();
    for item in patch {
        let Value::Object(change) = item else { return Err(bad("expected a list of maps")) };
        let Some(id) = change.get(key).filter(|id| !id.is_null()) else {
            let message = format!("map: {item} does not contain declared merge key: {key}");
            return Err(StatusError::unprocessable(message));
        };
        let found = positions.get(id).and_then(|places| places.first().copied());
        match (directive(change)?, found) {
            (Some("delete"), _) => {
                positions.remove(id).into_iter().flatten().for_each(|at| entries[at] = None);
            }
            (Some("replace"), Some(at)) => entries[at] = Some(Value::Object(plain_members(change))),
            (_, Some(at)) => {
                let Some(Value::Object(before)) = entries[at].take() else { continue };
                entries[at] = Some(Value::Object(merge_maps(before, change, items)?));
            }
            (_, None) => {
                positions.insert(id.clone(), vec![entries.len()]);
                entries.push(Some(Value::Object(merge_maps(Members::new(), change, items)?)));
            }
        }
    }
    Ok(entries.into_iter().flatten().collect())
}

/// Orders a merged list: entries in `order` have that order, the others that of the stored list, which also decides
/// between the two. New entries come as early as that allows, as in Kubernetes.
fn arrange(merged: Vec<Value>, order: &[Value], before: &[Value], key: Option<&str>) -> Vec<Value> {
    let id = |value: &Value| key.map_or_else(|| value.clone(), |key| value[key].clone());
    let positions = |values: &[Value]| {
        // The first of equal ones counts.
        values.iter().enumerate().rev().map(|(at, value)| (id(value), at)).collect::<HashMap<Value, usize>>()
    };
    let (order, before) = (positions(order), positions(before));
    let place = |value: &Value| before.get(&id(value)).copied();
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|value| order.contains_key(&id(value)));
    named.sort_by_cached_key(|value| order.get(&id(value)).copied());
    others.sort_by_cached_key(place);
    let mut arranged = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for value in named {
        if let Some(at) = place(&value) {
            while let Some(other) = others.next_if(|other| place(other).is_some_and(|place| place < at)) {
                arranged.push(other);
            }
        }
        arranged.push(value);
    }
    arranged.extend(others);
    arranged
}

#[cfg(test)]
mod tests;

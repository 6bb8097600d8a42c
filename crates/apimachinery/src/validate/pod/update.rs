//! Immutable fields of a stored Pod: all but a few. The mutable fields are removed from both versions; the rest must be
//! equal.

use serde_json::{Map, Value};

use super::{Field, FieldErrors};

const LISTS: [&str; 2] = ["containers", "initContainers"];

pub(super) fn check(old: &Field, new: &Field, errors: &mut FieldErrors) {
    if old.value() == new.value() {
        return;
    }
    let lists = LISTS.map(|list| (old.child(list), new.child(list)));
    let grown: Vec<&Field> = lists
        .iter()
        .filter(|(before, after)| before.item_count() != after.item_count())
        .map(|(_, after)| after)
        .collect();
    for list in &grown {
        errors.forbidden(list, "containers cannot be added or removed: replace the Pod");
    }
    gates(&old.child("schedulingGates"), &new.child("schedulingGates"), errors);
    tolerations(&old.child("tolerations"), &new.child("tolerations"), errors);
    if grown.is_empty() && fixed(old.value(), new.value()) != fixed(new.value(), new.value()) {
        let reason = "only container images, activeDeadlineSeconds, additional tolerations and removed scheduling gates can \
                      change: replace the Pod";
        errors.forbidden(new, reason);
    }
}

fn gates(old: &Field, new: &Field, errors: &mut FieldErrors) {
    let held = old.as_items();
    for gate in new.as_items() {
        if !held.iter().any(|before| before.value()["name"] == gate.value()["name"]) {
            errors.forbidden(&gate.child("name"), "scheduling gates can only be removed");
        }
    }
}

/// Tolerations can be added; of an existing one only tolerationSeconds can change.
fn tolerations(old: &Field, new: &Field, errors: &mut FieldErrors) {
    let without_time = |toleration: &Field| {
        let mut toleration = without_empty(toleration.value());
        if let Value::Object(members) = &mut toleration {
            members.remove("tolerationSeconds");
        }
        toleration
    };
    let kept: Vec<Value> = new.as_items().iter().map(without_time).collect();
    if old.as_items().iter().any(|before| !kept.contains(&without_time(before))) {
        errors.forbidden(new, "tolerations can only be added: keep the existing ones");
    }
}

/// The immutable part of a spec.
fn fixed(spec: &Value, new: &Value) -> Value {
    let mut spec = without_empty(spec);
    let Value::Object(members) = &mut spec else { return spec };
    for name in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        members.remove(name);
    }
    // A negative grace period may be set to 1.
    let negative =
        members.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|s| s < 0);
    if negative && new["terminationGracePeriodSeconds"] == 1 {
        members.insert("terminationGracePeriodSeconds".to_owned(), 1.into());
    }
    for list in LISTS {
        for container in members.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            fixed_container(container);
        }
    }
    spec
}

fn fixed_container(container: &mut Value) {
    let Value::Object(members) = container else { return };
    members.remove("image");
    for port in members.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Value::Object(port) = port {
            // Defaulted by the API server.
            port.entry("protocol").or_insert_with(|| "TCP".into());
        }
    }
}

/// Without members that are null or an empty string, list or map.
fn without_empty(value: &Value) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(members) => {
            let kept = members.iter().map(|(name, value)| (name.clone(), without_empty(value)));
            Value::Object(kept.filter(|(_, value)| !is_empty(value)).collect::<Map<_, _>>())
        }
        Value::Array(items) => items.iter().map(without_empty).collect(),
        other => other.clone(),
    }
}

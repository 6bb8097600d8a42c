//! What of a Pod may change once it is stored: hardly anything, since it runs somewhere already.
//!
//! Both versions are cut down to what is fixed, and what is left has to be equal.

use serde_json::{Map, Value};

use super::{Field, Findings};

const LISTS: [&str; 2] = ["containers", "initContainers"];

pub(super) fn check(old: &Field, new: &Field, findings: &mut Findings) {
    if old.value() == new.value() {
        return;
    }
    let lists = LISTS.map(|list| (old.child(list), new.child(list)));
    let grown: Vec<&Field> = lists
        .iter()
        .filter(|(before, after)| before.count() != after.count())
        .map(|(_, after)| after)
        .collect();
    for list in &grown {
        findings.forbid(list, "a Pod keeps the containers that it has: replace the Pod");
    }
    gates(&old.child("schedulingGates"), &new.child("schedulingGates"), findings);
    tolerations(&old.child("tolerations"), &new.child("tolerations"), findings);
    if grown.is_empty() && fixed(old.value(), new.value()) != fixed(new.value(), new.value()) {
        let reason = "of a Pod that is stored, only the images of its containers, activeDeadlineSeconds and more \
                      tolerations can be written, and gates be taken away: replace the Pod";
        findings.forbid(new, reason);
    }
}

/// Gates can be taken away, never added.
fn gates(old: &Field, new: &Field, findings: &mut Findings) {
    let held = old.peek_items();
    for gate in new.peek_items() {
        if !held.iter().any(|before| before.value()["name"] == gate.value()["name"]) {
            findings.forbid(&gate.child("name"), "gates can only be taken away from a Pod");
        }
    }
}

/// Tolerations can be added; one that is there stays, though it may last another time.
fn tolerations(old: &Field, new: &Field, findings: &mut Findings) {
    let without_time = |toleration: &Field| {
        let mut toleration = tidy(toleration.value());
        if let Value::Object(members) = &mut toleration {
            members.remove("tolerationSeconds");
        }
        toleration
    };
    let kept: Vec<Value> = new.peek_items().iter().map(without_time).collect();
    if old.peek_items().iter().any(|before| !kept.contains(&without_time(before))) {
        findings.forbid(new, "tolerations can only be added: keep those that the Pod has");
    }
}

/// What is fixed in a Pod's spec, given the version that is to come.
fn fixed(spec: &Value, new: &Value) -> Value {
    let mut spec = tidy(spec);
    let Value::Object(members) = &mut spec else { return spec };
    for name in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        members.remove(name);
    }
    // A Pod that was never to end may be told to end at once.
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
            // What the API server fills in.
            port.entry("protocol").or_insert_with(|| "TCP".into());
        }
    }
}

/// Without what says nothing: a member that is null, or an empty text, list or map.
fn tidy(value: &Value) -> Value {
    let says_nothing = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(members) => {
            let kept = members.iter().map(|(name, value)| (name.clone(), tidy(value)));
            Value::Object(kept.filter(|(_, value)| !says_nothing(value)).collect::<Map<_, _>>())
        }
        Value::Array(items) => items.iter().map(tidy).collect(),
        other => other.clone(),
    }
}

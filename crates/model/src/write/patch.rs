//! The update of a stored EndpointSlice as a JSON patch (RFC 6902), without reading the object again and without touching
//! unknown fields.

use serde_json::{Map, Value, json};

use super::{endpoint, hints_value, port, string_map, target_value};
use crate::annotation;
use crate::endpoint::Endpoint;
use crate::name::Name;
use crate::slice::{Slice, SliceContent};

/// The operations that change a stored slice to `content`. The first one sets the resource version, so that the API
/// rejects the patch on a conflict.
///
/// `None` if endpoints are reordered or duplicated: then the stored JSON has to be changed by [`super::update_slice`].
pub fn patch_slice(stored: &Slice, content: &SliceContent) -> Option<Value> {
    let version = stored.resource_version.as_ref()?;
    let mut patch =
        vec![json!({"op": "replace", "path": "/metadata/resourceVersion", "value": version.as_str()})];
    let before = &stored.content;
    if before.labels != content.labels {
        patch.push(add("/metadata/labels", string_map(&content.labels)));
    }
    patch_annotations(stored, content, &mut patch);
    if before.ports != content.ports {
        patch.push(add("/ports", content.ports.iter().map(port).collect()));
    }
    patch_endpoints(stored, &content.endpoints, &mut patch)?;
    Some(patch.into())
}

fn add(path: impl Into<Value>, value: Value) -> Value {
    let mut operation = Map::new();
    operation.insert("op".into(), "add".into());
    operation.insert("path".into(), path.into());
    operation.insert("value".into(), value);
    operation.into()
}

fn remove(path: String) -> Value {
    json!({"op": "remove", "path": path})
}

fn patch_annotations(stored: &Slice, content: &SliceContent, patch: &mut Vec<Value>) {
    if !stored.annotated {
        if !content.annotations.is_empty() {
            patch.push(add("/metadata/annotations", string_map(&content.annotations)));
        }
        return;
    }
    for key in annotation::READ_FROM_SLICES {
        let path = format!("/metadata/annotations/{}", key.replace('/', "~1"));
        match (stored.content.annotation(key), content.annotation(key)) {
            (before, Some(after)) if before != Some(after) => patch.push(add(path, after.as_str().into())),
            (Some(_), None) => patch.push(remove(path)),
            _ => {}
        }
    }
}

fn same(a: &Endpoint, b: &Endpoint) -> bool {
    let name = |e: &Endpoint| e.target().map(|t| t.name.clone());
    a.addresses == b.addresses && name(a) == name(b)
}

/// Removals first, from the end, so that the indexes of the others stay valid; then changes and additions from the front.
fn patch_endpoints(stored: &Slice, wanted: &[Endpoint], patch: &mut Vec<Value>) -> Option<()> {
    let before = &stored.content.endpoints;
    let namespace = Value::from(stored.key.namespace.as_str());
    if before.is_empty() {
        if !wanted.is_empty() {
            let all = wanted.iter().map(|e| endpoint(e, &namespace, &[])).collect();
            patch.push(add("/endpoints", all));
        }
        return Some(());
    }
    let mut kept: Vec<&Endpoint> = Vec::with_capacity(before.len());
    let mut gone = Vec::new();
    let mut next = 0;
    for (at, old) in before.iter().enumerate() {
        // Planned slices keep the order of what stays, so the search mostly ends where it begins.
        match wanted[next.min(wanted.len())..].iter().position(|new| same(old, new)) {
            Some(ahead) => {
                next += ahead + 1;
                kept.push(old);
            }
            None => gone.push(at),
        }
    }
    let stays = |at: &usize| wanted.iter().any(|new| same(&before[*at], new));
    if gone.iter().any(stays) {
        return None;
    }
    patch.extend(gone.iter().rev().map(|at| remove(format!("/endpoints/{at}"))));
    let mut kept = kept.into_iter().peekable();
    for (at, new) in wanted.iter().enumerate() {
        match kept.next_if(|old| same(old, new)) {
            Some(old) => patch_endpoint(at, old, new, &namespace, patch),
            None => patch.push(add(format!("/endpoints/{at}"), endpoint(new, &namespace, &[]))),
        }
    }
    kept.next().is_none().then_some(())
}

fn patch_endpoint(at: usize, old: &Endpoint, new: &Endpoint, namespace: &Value, patch: &mut Vec<Value>) {
    if old == new {
        return;
    }
    let mut set = |field: &str, value: Option<Value>| {
        let path = format!("/endpoints/{at}/{field}");
        patch.push(match value {
            Some(value) => add(path, value),
            None => remove(path),
        });
    };
    if old.conditions != new.conditions {
        set("conditions", Some(super::conditions_value(new.conditions)));
    }
    let text = |name: Option<&Name>| name.map(|name| Value::from(name.as_str()));
    for (field, old, new) in [
        ("hostname", old.hostname(), new.hostname()),
        ("nodeName", old.node.as_ref(), new.node.as_ref()),
        ("zone", old.zone.as_ref(), new.zone.as_ref()),
    ] {
        if old != new {
            set(field, text(new));
        }
    }
    if old.target() != new.target() {
        set("targetRef", new.target().map(|target| target_value(target, namespace)));
    }
    if old.hints != new.hints {
        set("hints", new.hints.as_deref().map(hints_value));
    }
}

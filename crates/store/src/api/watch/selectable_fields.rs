//! The fields of an event that selectors read, before and after the change. Extracted once for all watches: a thousand
//! watches with a label selector would otherwise parse each object two thousand times.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::super::parse;
use crate::engine::{WatchEvent, WatchEventType};
use crate::kinds::ResourceKind;
use crate::meta::at;

/// `None` where there is no object.
pub(super) struct SelectableFields {
    pub(super) before: Option<Value>,
    pub(super) after: Option<Value>,
}

impl SelectableFields {
    pub(super) fn of(event: &WatchEvent, kind: &ResourceKind) -> Arc<SelectableFields> {
        event.memo(|| SelectableFields {
            before: event.before.as_deref().and_then(|json| selectable(json, kind)),
            after: (event.kind != WatchEventType::Deleted).then(|| selectable(&event.json, kind)).flatten(),
        })
    }
}

/// Name, namespace, labels, and the selectable fields of the kind.
fn selectable(json: &[u8], kind: &ResourceKind) -> Option<Value> {
    let object = parse(json).ok()?;
    let mut kept = Value::Object(Map::new());
    let always = ["metadata.name", "metadata.namespace", "metadata.labels"];
    // The selector `source` of Events means the component.
    let fields = kind.selectable.iter().map(|path| if *path == "source" { "source.component" } else { path });
    for path in always.into_iter().chain(fields) {
        let found = at(&object, path);
        if !found.is_null() {
            insert(&mut kept, path, found.clone());
        }
    }
    Some(kept)
}

fn insert(object: &mut Value, path: &str, value: Value) {
    match path.split_once('.') {
        Some((head, rest)) => {
            if object[head].is_null() {
                object[head] = Value::Object(Map::new());
            }
            if object[head].is_object() {
                insert(&mut object[head], rest, value);
            }
        }
        None => object[path] = value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;
    use serde_json::json;

    #[test]
    fn only_selectable_fields_are_kept() {
        let pod = json!({"metadata": {"name": "a", "namespace": "b", "labels": {"x": "y"}, "annotations": {"c": "d"}},
            "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running", "podIP": "10.0.0.1"}});
        let kept = selectable(pod.to_string().as_bytes(), kinds::named("Pod").unwrap()).unwrap();
        assert_eq!(kept["metadata"], json!({"name": "a", "namespace": "b", "labels": {"x": "y"}}));
        assert_eq!((&kept["spec"]["nodeName"], &kept["spec"]["containers"]), (&json!("n"), &Value::Null));
        assert_eq!(kept["status"]["phase"], "Running");
        for kind in kinds::KINDS {
            for path in kind.selectable {
                let path = if *path == "source" { "source.component" } else { path };
                let mut object = json!({});
                insert(&mut object, path, json!("v"));
                let kept = selectable(object.to_string().as_bytes(), kind).unwrap();
                assert_eq!(at(&kept, path), "v", "{} {path}", kind.kind);
            }
        }
        assert!(selectable(b"no JSON", kinds::named("Pod").unwrap()).is_none());
    }
}

//! What selectors see of a change, before and after it. Made once for all watchers: a thousand of them with a label
//! selector would otherwise parse each object two thousand times.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::parse;
use crate::engine::{Change, ChangeKind};
use crate::kinds::Kind;
use crate::meta::at;

/// The selectable parts of an object before and after a change; nothing where there is no object.
pub(super) struct Basis {
    pub(super) before: Option<Value>,
    pub(super) after: Option<Value>,
}

impl Basis {
    pub(super) fn of(change: &Change, kind: &Kind) -> Arc<Basis> {
        change.noted(|| Basis {
            before: change.before.as_deref().and_then(|json| selectable(json, kind)),
            after: (change.kind != ChangeKind::Deleted).then(|| selectable(&change.json, kind)).flatten(),
        })
    }
}

/// Names, labels, and the fields that the kind lets people select by.
fn selectable(json: &[u8], kind: &Kind) -> Option<Value> {
    let object = parse(json).ok()?;
    let mut kept = Value::Object(Map::new());
    let always = ["metadata.name", "metadata.namespace", "metadata.labels"];
    // Events are selected by `source`, which means the component.
    let fields = kind.selectable.iter().map(|path| if *path == "source" { "source.component" } else { path });
    for path in always.into_iter().chain(fields) {
        let found = at(&object, path);
        if !found.is_null() {
            place(&mut kept, path, found.clone());
        }
    }
    Some(kept)
}

fn place(object: &mut Value, path: &str, value: Value) {
    match path.split_once('.') {
        Some((head, rest)) => {
            if object[head].is_null() {
                object[head] = Value::Object(Map::new());
            }
            if object[head].is_object() {
                place(&mut object[head], rest, value);
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
    fn what_selectors_ask_for_is_kept_and_the_rest_is_not() {
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
                place(&mut object, path, json!("v"));
                let kept = selectable(object.to_string().as_bytes(), kind).unwrap();
                assert_eq!(at(&kept, path), "v", "{} {path}", kind.kind);
            }
        }
        assert!(selectable(b"no JSON", kinds::named("Pod").unwrap()).is_none());
    }
}

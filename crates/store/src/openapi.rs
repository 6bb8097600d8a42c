//! OpenAPI v3: one document per group, with the schemas of its kinds, and the operations that kubectl reads (field
//! validation, patch types). [`v2`] has the schemas only.

mod gnostic;
pub(crate) mod v2;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::discovery::group_paths;
use crate::kinds::{BINDING, EVICTION, KINDS, OPEN_DEFINITION, ResourceKind, TOKEN_REQUEST};
use crate::patch;
use crate::schema::{self, PREFIX};
use crate::status::StatusError;

/// The index, for an empty path, or the document of a group.
pub(crate) fn document(path: &str) -> Result<Bytes, StatusError> {
    if path.is_empty() {
        return Ok(Bytes::from(index().to_string()));
    }
    documents().get(path.trim_end_matches('/')).cloned().ok_or_else(StatusError::no_such_path)
}

fn documents() -> &'static BTreeMap<String, Bytes> {
    static DOCUMENTS: OnceLock<BTreeMap<String, Bytes>> = OnceLock::new();
    DOCUMENTS.get_or_init(|| {
        let made = |path: String| {
            let document = Bytes::from(group(&path).to_string());
            (path, document)
        };
        group_paths().into_iter().map(made).collect()
    })
}

fn index() -> Value {
    let mut paths = Map::new();
    for path in group_paths() {
        // Clients cache a document by its hash; ours changes with the version.
        let url = format!("/openapi/v3/{path}?hash={}", env!("CARGO_PKG_VERSION"));
        paths.insert(path, json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

fn group(path: &str) -> Value {
    let kinds: Vec<&ResourceKind> = KINDS.iter().filter(|kind| prefix(kind) == path).collect();
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    for kind in &kinds {
        operations(kind, &mut paths);
        if kind.binds {
            collect(BINDING.definition, &mut schemas);
            collect(EVICTION.definition, &mut schemas);
        }
        if kind.issues_tokens {
            collect(TOKEN_REQUEST.definition, &mut schemas);
        }
        collect(kind.definition, &mut schemas);
        let name = definition_name(kind);
        let mut definition = schema::of(kind).cloned().unwrap_or(Value::Null);
        definition["x-kubernetes-group-version-kind"] =
            json!([{"group": kind.group, "version": kind.version, "kind": kind.kind}]);
        schemas.insert(name, definition);
    }
    collect("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions", &mut schemas);
    schemas.shift_remove(OPEN_DEFINITION);
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Zoneward", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

fn prefix(kind: &ResourceKind) -> String {
    if kind.group.is_empty() {
        format!("api/{}", kind.version)
    } else {
        format!("apis/{}/{}", kind.group, kind.version)
    }
}

/// Custom resources share a definition, and each has its own name for it.
fn definition_name(kind: &ResourceKind) -> String {
    if kind.definition == OPEN_DEFINITION {
        format!("dev.zoneward.{}.{}", kind.version, kind.kind)
    } else {
        kind.definition.to_owned()
    }
}

/// Adds a definition and everything that it refers to.
fn collect(name: &str, schemas: &mut Map<String, Value>) {
    if schemas.contains_key(name) {
        return;
    }
    let Some(definition) = schema::definition(name) else { return };
    schemas.insert(name.to_owned(), definition.clone());
    references(definition, &mut |target| collect(target, schemas));
}

fn references(value: &Value, found: &mut impl FnMut(&str)) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                match value.as_str().and_then(|text| text.strip_prefix(PREFIX)) {
                    Some(target) if name == "$ref" => found(target),
                    _ => references(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

fn operations(kind: &ResourceKind, paths: &mut Map<String, Value>) {
    let base = format!("/{}", prefix(kind));
    let all = if kind.namespaced {
        format!("{base}/namespaces/{{namespace}}/{}", kind.plural)
    } else {
        format!("{base}/{}", kind.plural)
    };
    let one = format!("{all}/{{name}}");
    if !kind.is_stored() {
        paths.insert(all, json!({"post": writing(kind, "post")}));
        return;
    }
    paths.insert(all, json!({"get": operation(kind, "list", &[]), "post": writing(kind, "post")}));
    let object = json!({
        "get": operation(kind, "get", &[]),
        "put": writing(kind, "put"),
        "patch": patching(kind),
        "delete": operation(kind, "delete", &["dryRun", "gracePeriodSeconds", "propagationPolicy"]),
    });
    paths.insert(one.clone(), object);
    let part =
        || json!({"get": operation(kind, "get", &[]), "put": writing(kind, "put"), "patch": patching(kind)});
    if kind.status {
        paths.insert(format!("{one}/status"), part());
    }
    if kind.binds {
        paths.insert(format!("{one}/binding"), json!({"post": writing(&BINDING, "post")}));
        paths.insert(format!("{one}/eviction"), json!({"post": writing(&EVICTION, "post")}));
    }
    if kind.issues_tokens {
        paths.insert(format!("{one}/token"), json!({"post": writing(&TOKEN_REQUEST, "post")}));
    }
    if kind.namespaced {
        paths.insert(format!("{base}/{}", kind.plural), json!({"get": operation(kind, "list", &[])}));
    }
}

fn reference(kind: &ResourceKind) -> Value {
    json!({"schema": {"$ref": format!("{PREFIX}{}", definition_name(kind))}})
}

fn operation(kind: &ResourceKind, action: &str, parameters: &[&str]) -> Value {
    let parameter =
        |name: &&str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
    json!({
        "description": format!("{action} {}", kind.kind),
        "operationId": format!("{action}{}", kind.kind),
        "parameters": parameters.iter().map(parameter).collect::<Vec<_>>(),
        "responses": {"200": {"description": "OK", "content": {"application/json": reference(kind)}}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
    })
}

const WRITE_PARAMETERS: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
const PATCH_PARAMETERS: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];

fn writing(kind: &ResourceKind, action: &str) -> Value {
    let mut operation = operation(kind, action, WRITE_PARAMETERS);
    operation["requestBody"] = json!({"content": {"*/*": reference(kind)}, "required": true});
    operation
}

fn patching(kind: &ResourceKind) -> Value {
    let mut operation = operation(kind, "patch", PATCH_PARAMETERS);
    let mut content = Map::new();
    let strategic = (kind.definition != OPEN_DEFINITION).then_some("application/strategic-merge-patch+json");
    let every = ["application/json-patch+json", "application/merge-patch+json", patch::APPLY];
    for media in every.into_iter().chain(strategic) {
        content.insert(media.to_owned(), json!({"schema": {"type": "object"}}));
    }
    operation["requestBody"] = json!({"content": content, "required": true});
    operation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_whole_and_not_huge() {
        let mut size = 0;
        for path in group_paths() {
            let bytes = document(&path).unwrap();
            size += bytes.len();
            let document: Value = serde_json::from_slice(&bytes).unwrap();
            let schemas = document["components"]["schemas"].as_object().unwrap();
            references(&document, &mut |target| assert!(schemas.contains_key(target), "{path}: {target}"));
        }
        assert!(size < 2_000_000, "{size} bytes");
        assert_eq!(document("apis/apps/v1").unwrap_err().code, 404);
    }
}

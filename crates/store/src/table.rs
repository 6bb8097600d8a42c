//! Server-side printing: Tables for `kubectl get`, and PartialObjectMetadata.

use serde_json::{Value, json};

use crate::kinds::{Cell, Column, ResourceKind};
use crate::meta::at;

/// How much of each object a row includes beside its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IncludeObject {
    None,
    Metadata,
    Object,
}

/// A table of stored objects; `list_meta` is the metadata of the list.
pub(crate) fn table(
    kind: &ResourceKind,
    objects: &[Value],
    list_meta: Value,
    include: IncludeObject,
    now: i64,
) -> Value {
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_meta,
        "columnDefinitions": kind.columns().iter().map(definition).collect::<Vec<_>>(),
        "rows": objects.iter().map(|object| row(kind, object, include, now)).collect::<Vec<_>>(),
    })
}

fn definition(column: &Column) -> Value {
    let is_name = matches!(column.cell, Cell::Field("metadata.name"));
    let format = if is_name { "name" } else { "" };
    json!({
        "name": column.name, "type": column.kind, "format": format, "priority": column.priority,
        "description": format!("{} of the object", column.name),
    })
}

fn row(kind: &ResourceKind, object: &Value, include: IncludeObject, now: i64) -> Value {
    let cells: Vec<Value> = kind.columns().iter().map(|column| cell(column, object, now)).collect();
    let object = &*kind.converted(object);
    match include {
        IncludeObject::None => json!({"cells": cells}),
        IncludeObject::Metadata => json!({"cells": cells, "object": partial(object)}),
        IncludeObject::Object => json!({"cells": cells, "object": object}),
    }
}

fn cell(column: &Column, object: &Value, now: i64) -> Value {
    match &column.cell {
        Cell::Field(path) => match at(object, path) {
            Value::Null => "<none>".into(),
            Value::String(text) if text.is_empty() => "<none>".into(),
            value => value.clone(),
        },
        Cell::Age => crate::kinds::since(object, "metadata.creationTimestamp", now),
        Cell::Computed(compute) => compute(object, now),
        Cell::Path(path) => crate::kinds::printed_cell(path, column.kind, object, now),
    }
}

/// The object reduced to its metadata.
pub(crate) fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;

    #[test]
    fn a_table_has_a_cell_for_every_column() {
        for kind in kinds::KINDS {
            let table = table(kind, &[json!({"metadata": {"name": "x"}})], json!({}), IncludeObject::None, 0);
            let columns = table["columnDefinitions"].as_array().unwrap().len();
            assert_eq!(table["rows"][0]["cells"].as_array().unwrap().len(), columns, "{}", kind.kind);
        }
    }

    #[test]
    fn a_service_has_the_columns_of_kubernetes() {
        let service = json!({
            "metadata": {"name": "web", "creationTimestamp": "1970-01-01T00:01:40Z"},
            "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.7", "ports": [{"port": 80, "protocol": "TCP"}],
                "selector": {"app": "web"}},
        });
        let services = kinds::find("", "v1", "services").unwrap();
        let table = table(services, &[service], json!({}), IncludeObject::Metadata, 400);
        let cells = &table["rows"][0]["cells"];
        assert_eq!(cells, &json!(["web", "ClusterIP", "10.96.0.7", "<none>", "80/TCP", "5m", "app=web"]));
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    }
}

//! The schemas and print columns of custom resources, from the CustomResourceDefinitions in `deploy/crds`.

use std::sync::OnceLock;

use serde_json::Value;

use super::{Column, crd_columns};
use crate::schema::of_crd;

macro_rules! definition_of {
    ($name:ident, $file:literal) => {
        pub(super) mod $name {
            use super::*;

            const TEXT: &str = include_str!(concat!("../../../../deploy/crds/", $file));

            pub(in crate::kinds) fn schema() -> &'static Value {
                static SCHEMA: OnceLock<Value> = OnceLock::new();
                SCHEMA.get_or_init(|| of_crd(TEXT, "v1alpha1").expect("a test reads every definition"))
            }

            pub(in crate::kinds) fn columns() -> &'static [Column] {
                static COLUMNS: OnceLock<Vec<Column>> = OnceLock::new();
                COLUMNS.get_or_init(|| {
                    crd_columns::columns(TEXT, "v1alpha1").expect("a test reads every definition")
                })
            }
        }
    };
}

definition_of!(gateway, "meshgateways.yaml");
definition_of!(gateway_http_route, "meshgatewayhttproutes.yaml");
definition_of!(http_route, "meshhttproutes.yaml");
definition_of!(tcp_route, "meshtcproutes.yaml");

#[cfg(test)]
mod tests {
    use crate::kinds::KINDS;

    #[test]
    fn every_definition_can_be_read_and_has_a_spec_and_columns() {
        for kind in KINDS.iter().filter(|kind| kind.group == "zoneward.dev") {
            let schema = kind.schema.expect("it has one")();
            assert!(schema["properties"]["spec"]["properties"].is_object(), "{}", kind.kind);
            let names: Vec<&str> = kind.columns().iter().map(|column| column.name).collect();
            assert!(names.starts_with(&["Name"]) && names.ends_with(&["Age"]), "{}: {names:?}", kind.kind);
            assert!(names.contains(&"Accepted"), "{}: {names:?}", kind.kind);
        }
    }
}

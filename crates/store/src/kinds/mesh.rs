//! The schemas of our own kinds, out of the very definitions that a cluster is given (`deploy/crds`).

use std::sync::OnceLock;

use serde_json::Value;

use crate::schema::of_crd;

macro_rules! schema_of {
    ($name:ident, $file:literal) => {
        pub(super) fn $name() -> &'static Value {
            static SCHEMA: OnceLock<Value> = OnceLock::new();
            SCHEMA.get_or_init(|| {
                let definition = include_str!(concat!("../../../../deploy/crds/", $file));
                of_crd(definition, "v1alpha1").expect("a test reads every definition")
            })
        }
    };
}

schema_of!(gateway, "meshgateways.yaml");
schema_of!(gateway_http_route, "meshgatewayhttproutes.yaml");
schema_of!(http_route, "meshhttproutes.yaml");
schema_of!(tcp_route, "meshtcproutes.yaml");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_can_be_read_and_has_a_spec() {
        for schema in [gateway(), gateway_http_route(), http_route(), tcp_route()] {
            assert!(schema["properties"]["spec"]["properties"].is_object());
        }
    }
}

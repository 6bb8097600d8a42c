//! The schemas and print columns of custom resources, from the CustomResourceDefinitions in `deploy/crds` and those of the
//! Gateway API.

use std::sync::OnceLock;

use serde_json::Value;

use super::gateway_api_channel::{GatewayApiChannel, gateway_api_channel};
use super::{Column, crd_columns};
use crate::schema::of_crd;

macro_rules! definition_of {
    ($name:ident, $version:literal, $file:literal) => {
        definition_of!($name, $version, $file, $file);
    };
    ($name:ident, $version:literal, $file:literal, $experimental:literal) => {
        pub(super) mod $name {
            use super::*;

            fn text() -> &'static str {
                match gateway_api_channel() {
                    GatewayApiChannel::Standard => include_str!(concat!("../../../../", $file)),
                    GatewayApiChannel::Experimental => include_str!(concat!("../../../../", $experimental)),
                }
            }

            pub(in crate::kinds) fn schema() -> &'static Value {
                static SCHEMA: OnceLock<Value> = OnceLock::new();
                SCHEMA.get_or_init(|| of_crd(text(), $version).expect("a test reads every definition"))
            }

            pub(in crate::kinds) fn columns() -> &'static [Column] {
                static COLUMNS: OnceLock<Vec<Column>> = OnceLock::new();
                COLUMNS.get_or_init(|| {
                    crd_columns::columns(text(), $version).expect("a test reads every definition")
                })
            }
        }
    };
}

definition_of!(gateway, "v1alpha1", "deploy/crds/meshgateways.yaml");
definition_of!(gateway_http_route, "v1alpha1", "deploy/crds/meshgatewayhttproutes.yaml");
definition_of!(http_route, "v1alpha1", "deploy/crds/meshhttproutes.yaml");
definition_of!(load_balancing, "v1alpha1", "deploy/crds/meshloadbalancings.yaml");
definition_of!(route_filter, "v1alpha1", "deploy/crds/meshroutefilters.yaml");
definition_of!(tcp_route, "v1alpha1", "deploy/crds/meshtcproutes.yaml");
definition_of!(zone_drain, "v1alpha1", "deploy/crds/zonedrains.yaml");

definition_of!(standard_class, "v1", "crates/store/gateway-api/gatewayclasses.yaml");
definition_of!(
    standard_gateway,
    "v1",
    "crates/store/gateway-api/gateways.yaml",
    "crates/store/gateway-api/experimental/gateways.yaml"
);
definition_of!(
    standard_grpc_route,
    "v1",
    "crates/store/gateway-api/grpcroutes.yaml",
    "crates/store/gateway-api/experimental/grpcroutes.yaml"
);
definition_of!(
    standard_http_route,
    "v1",
    "crates/store/gateway-api/httproutes.yaml",
    "crates/store/gateway-api/experimental/httproutes.yaml"
);
definition_of!(standard_listener_set, "v1", "crates/store/gateway-api/listenersets.yaml");
definition_of!(standard_reference_grant, "v1", "crates/store/gateway-api/referencegrants.yaml");
definition_of!(standard_tcp_route, "v1", "crates/store/gateway-api/tcproutes.yaml");
definition_of!(standard_tls_policy, "v1", "crates/store/gateway-api/backendtlspolicies.yaml");
definition_of!(standard_tls_route, "v1", "crates/store/gateway-api/tlsroutes.yaml");
definition_of!(standard_udp_route, "v1", "crates/store/gateway-api/udproutes.yaml");

#[cfg(test)]
mod tests {
    use crate::kinds::KINDS;

    #[test]
    fn every_definition_can_be_read_and_has_a_spec_and_columns() {
        for kind in KINDS.iter().filter(|kind| kind.schema.is_some()) {
            let schema = kind.schema.expect("it has one")();
            assert!(schema["properties"]["spec"]["properties"].is_object(), "{}", kind.kind);
            let names: Vec<&str> = kind.columns().iter().map(|column| column.name).collect();
            assert!(names.starts_with(&["Name"]) && names.contains(&"Age"), "{}: {names:?}", kind.kind);
            let is_ours = kind.group == "zoneward.dev";
            assert!(!is_ours || names.contains(&"Accepted"), "{}: {names:?}", kind.kind);
        }
    }
}

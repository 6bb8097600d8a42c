//! Types of errors, and kinds without a file of their own.

use serde_json::{Value, json};

use super::test_cases::changed;
use super::{FieldErrorType, validate};

fn error_types(object: &Value) -> Vec<(String, FieldErrorType)> {
    validate(object).into_iter().map(|violation| (violation.field, violation.error_type)).collect()
}

fn check(base: &Value, cases: &[(Value, &str, FieldErrorType)]) {
    for (change, field, error_type) in cases {
        assert_eq!(error_types(&changed(base, change)), [((*field).to_owned(), *error_type)], "{change}");
    }
}

#[test]
fn errors_of_a_service_have_their_types() {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"ports": [{"port": 80}]}});
    let spec = |spec: Value| json!({"spec": spec});
    let two = |a: Value, b: Value| json!({"spec": {"ports": [a, b]}});
    check(
        &service,
        &[
            (json!({"metadata": {"name": ""}}), "metadata.name", FieldErrorType::Required),
            (json!({"metadata": {"name": "Web"}}), "metadata.name", FieldErrorType::Invalid),
            (spec(json!({"ports": []})), "spec.ports", FieldErrorType::Required),
            (spec(json!({"type": "Odd"})), "spec.type", FieldErrorType::NotSupported),
            (
                spec(json!({"trafficDistribution": "Odd"})),
                "spec.trafficDistribution",
                FieldErrorType::NotSupported,
            ),
            (spec(json!({"loadBalancerClass": "a/b"})), "spec.loadBalancerClass", FieldErrorType::Forbidden),
            (
                spec(json!({"ports": [{"port": 80, "nodePort": 30_001}]})),
                "spec.ports[0].nodePort",
                FieldErrorType::Forbidden,
            ),
            (
                two(json!({"port": 80, "name": "a"}), json!({"port": 81, "name": "a"})),
                "spec.ports[1].name",
                FieldErrorType::Duplicate,
            ),
            (
                two(json!({"port": 80, "name": "a"}), json!({"port": 80, "name": "b"})),
                "spec.ports[1]",
                FieldErrorType::Duplicate,
            ),
            (
                two(json!({"port": 80, "name": "a"}), json!({"port": 81})),
                "spec.ports[1].name",
                FieldErrorType::Required,
            ),
        ],
    );
}

#[test]
fn errors_of_long_lists_have_their_types() {
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "web-x"}, "addressType": "IPv4"});
    let addresses: Vec<String> = (0..101).map(|i| format!("10.0.0.{i}")).collect();
    let notes = json!({"metadata": {"annotations": {"a": "x".repeat(300_000)}}});
    check(
        &slice,
        &[
            (
                json!({"endpoints": [{"addresses": addresses}]}),
                "endpoints[0].addresses",
                FieldErrorType::TooMany,
            ),
            (json!({"endpoints": [{"addresses": []}]}), "endpoints[0].addresses", FieldErrorType::Required),
            (notes, "metadata.annotations", FieldErrorType::TooLong),
            (json!({"addressType": null}), "addressType", FieldErrorType::Required),
        ],
    );
}

#[test]
fn a_namespace_is_named_by_a_dns_label() {
    for (name, accepted) in [("shop", true), ("8ball", true), ("a.b", false), ("Shop", false)] {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        assert_eq!(validate(&object).is_empty(), accepted, "{name}");
    }
}

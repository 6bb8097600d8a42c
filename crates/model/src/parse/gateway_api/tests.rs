//! Defaults, unsupported values and errors of each kind.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::gateway_api::{CertificateKind, NamespaceScope};
use crate::parse;
use crate::route::{Hostname, PathMatch, Percentage, RouteFilter};
use crate::{Interner, Object};

fn read(value: &Value) -> GatewayApiObject {
    match parse::object(value, &mut Interner::default()) {
        (Some(Object::GatewayApi(object)), notices) => {
            assert_eq!(notices, []);
            *object
        }
        other => panic!("{other:?}"),
    }
}

fn object(kind: &str, spec: Value) -> Value {
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
        "metadata": {"name": "a", "namespace": "ns", "generation": 3, "creationTimestamp": "2026-11-01T00:00:00Z"},
        "spec": spec})
}

#[test]
fn a_gateway_has_the_defaults_of_the_schema() {
    let GatewayApiObject::Gateway(gateway) = read(&object(
        "Gateway",
        json!({"gatewayClassName": "c", "listeners": [
            {"name": "http", "port": 80, "protocol": "HTTP"},
            {"name": "tls", "port": 443, "protocol": "HTTPS", "hostname": "*.Example.com",
             "tls": {"certificateRefs": [{"name": "cert"}]}},
        ]}),
    )) else {
        panic!("a Gateway")
    };
    assert_eq!(gateway.identity.generation, 3);
    assert_eq!(gateway.listener_sets_from, NamespaceScope::None);
    let [http, tls] = &*gateway.listeners else { panic!("two listeners") };
    assert_eq!((&http.routes_from, &http.hostname), (&NamespaceScope::Same, &Hostname::Any));
    assert_eq!(tls.hostname, Hostname::parse("*.example.com"));
    let own = tls.tls.as_ref().expect("tls");
    assert!(own.terminates);
    assert_eq!((own.certificates[0].kind.as_str(), own.certificates[0].namespace.as_str()), ("Secret", "ns"));
}

#[test]
fn a_route_has_the_defaults_of_the_schema_and_a_prefix_no_trailing_slash() {
    let GatewayApiObject::Route(route) = read(&object(
        "HTTPRoute",
        json!({"parentRefs": [{"name": "gw"}], "rules": [
            {"backendRefs": [{"name": "web", "port": 80}], "timeouts": {"request": "500ms", "backendRequest": "0s"}},
            {"matches": [{"path": {"value": "/a/"}}], "filters": [{"type": "RequestMirror",
             "requestMirror": {"backendRef": {"name": "m", "port": 1}, "fraction": {"numerator": 1, "denominator": 8}}}]},
        ]}),
    )) else {
        panic!("a route")
    };
    assert_eq!(route.parents[0].object.kind, "Gateway");
    let rule = &route.rules[0].rule;
    assert!(rule.matches[0].is_everything());
    let backend = &rule.backends.as_ref().expect("backends")[0];
    assert_eq!((backend.kind(), backend.share()), ("Service", 1));
    assert_eq!(rule.timeouts.request, Some(Duration::from_millis(500)));
    assert_eq!(rule.timeouts.backend_request, None);
    let rule = &route.rules[1].rule;
    assert_eq!(rule.matches[0].path, Some(PathMatch::Prefix("/a".into())));
    let filters = rule.filters.as_ref().expect("filters");
    assert!(matches!(filters[0], RouteFilter::Mirror { percentage: Some(Percentage(125_000)), .. }));
}

#[test]
fn grpc_methods_become_paths() {
    let GatewayApiObject::Route(route) = read(&object(
        "GRPCRoute",
        json!({"rules": [{"matches": [
            {"method": {"service": "a.B", "method": "C"}},
            {"method": {"service": "a.B"}},
            {"method": {"method": "C"}},
            {"method": {"type": "RegularExpression", "service": "a|b", "method": "C"}},
        ]}]}),
    )) else {
        panic!("a route")
    };
    let matches = &route.rules[0].rule.matches;
    let paths = ["/a.B/C", "/a.B/D", "/x/C", "/b/C", "/ab/C/D"];
    let hits = |at: usize| -> Vec<bool> {
        paths.iter().map(|path| matches[at].path.as_ref().is_some_and(|on| on.matches(path))).collect()
    };
    assert_eq!(hits(0), [true, false, false, false, false]);
    assert_eq!(hits(1), [true, true, false, false, false]);
    assert_eq!(hits(2), [true, false, true, true, false]);
    assert_eq!(hits(3), [false, false, false, true, false]);
}

#[test]
fn fields_of_a_wrong_type_are_named_and_unsupported_values_are_kept() {
    let wrong = object("HTTPRoute", json!({"parentRefs": [{"name": 7}], "rules": "x"}));
    let (found, notices) = parse::object(&wrong, &mut Interner::default());
    assert!(found.is_none());
    let text: Vec<String> = notices.iter().map(ToString::to_string).collect();
    assert_eq!(text.len(), 2, "{text:?}");
    assert!(text[0].contains("HTTPRoute ns/a: Malformed: spec.rules: expected a list"), "{text:?}");
    assert!(text[1].contains("spec.parentRefs[0].name"), "{text:?}");
    let GatewayApiObject::Route(route) = read(&object(
        "HTTPRoute",
        json!({"rules": [{"filters": [{"type": "Later"}]}, {"matches": [{"path": {"type": "RegularExpression", "value": "("}}]}, {}]}),
    )) else {
        panic!("a route")
    };
    let dropped: Vec<bool> = route.rules.iter().map(|rule| rule.unsupported.is_some()).collect();
    assert_eq!(dropped, [true, true, false]);
}

#[test]
fn certificates_are_checked_and_not_kept() {
    use base64::Engine;
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let pem = |label: &str| format!("-----BEGIN {label}-----\nMAA=\n-----END {label}-----\n");
    let secret = |kind: &str, certificate: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "type": kind,
            "data": {"tls.crt": encode(certificate), "tls.key": encode(&pem("EC PRIVATE KEY"))}})
    };
    let problem = |value: &Value| match read(value) {
        GatewayApiObject::Certificate(source) => (source.kind, source.problem.map(|text| text.to_string())),
        other => panic!("{other:?}"),
    };
    let good = secret("kubernetes.io/tls", &pem("CERTIFICATE"));
    assert_eq!(problem(&good), (CertificateKind::Secret, None));
    assert!(problem(&secret("Opaque", &pem("CERTIFICATE"))).1.is_some());
    assert!(problem(&secret("kubernetes.io/tls", "Hello world")).1.is_some());
    let map = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data});
    assert_eq!(problem(&map(json!({"ca.crt": pem("CERTIFICATE")}))), (CertificateKind::ConfigMap, None));
    assert!(problem(&map(json!({}))).1.is_some());
}

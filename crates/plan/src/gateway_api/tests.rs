//! Rules that the conformance cases do not show: ties, errors, hosts, TLS, the mesh and zones.

use model::backend::ConsumerLocation;
use model::gateway_api::CONTROLLER;
use model::route::{BackendTarget, EdgeSettings, RouteTable, Routing};
use model::{Labels, Name, ObjectKey, ServiceKey, Snapshot};
use serde_json::{Value, json};

use super::*;
use crate::feature_gates::FeatureGates;
use crate::routes::{MeshClient, RequestOutcome, TracedRequest, outbound};

fn snapshot(objects: &[Value]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let class = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": "c"}, "spec": {"controllerName": CONTROLLER}});
    for object in std::iter::once(&class).chain(objects) {
        snapshot.apply(fixtures::object(object));
    }
    snapshot
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    let (namespace, name) = name.split_once('/').unwrap_or(("ns", name));
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
        "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

fn gateway(listeners: Value) -> Value {
    object("Gateway", "gw", json!({"gatewayClassName": "c", "listeners": listeners}))
}

fn http_gateway() -> Value {
    gateway(
        json!([{"name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "All"}}}]),
    )
}

fn route(name: &str, rules: Value) -> Value {
    object("HTTPRoute", name, json!({"parentRefs": [{"name": "gw", "namespace": "ns"}], "rules": rules}))
}

fn service(name: &str) -> Value {
    let (namespace, name) = name.split_once('/').unwrap_or(("ns", name));
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]}})
}

fn secret(name: &str) -> Value {
    let (namespace, name) = name.split_once('/').unwrap_or(("ns", name));
    let pem = |label: &str| format!("-----BEGIN {label}-----\nMAA=\n-----END {label}-----\n");
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace},
        "type": "kubernetes.io/tls", "stringData": {"tls.crt": pem("CERTIFICATE"), "tls.key": pem("PRIVATE KEY")}})
}

fn to(name: &str) -> Value {
    json!([{"name": name, "port": 80}])
}

fn table(snapshot: &Snapshot) -> RouteTable {
    let key = ObjectKey::new(&"ns".into(), &"gw".into());
    gateway_table(snapshot, snapshot.gateway(&key).expect("the Gateway")).0
}

fn incoming(host: &str, path: &str, headers: &[(&str, &str)]) -> TracedRequest {
    TracedRequest {
        method: "GET".to_owned(),
        host: host.to_owned(),
        path: path.to_owned(),
        headers: headers.iter().map(|(name, value)| (Name::new(name), Name::new(value))).collect(),
        ..TracedRequest::default()
    }
}

fn send(snapshot: &Snapshot, port: u16, sni: Option<&str>, request: &TracedRequest) -> RequestOutcome {
    let at = ArrivingRequest { port, sni: sni.map(str::to_owned), ..ArrivingRequest::default() };
    trace_at_gateway(&table(snapshot), &at, request, &EdgeSettings::default()).outcome
}

/// The status, or the Services with their weights.
fn answer(outcome: &RequestOutcome) -> String {
    if outcome.is_closed {
        return "closed".to_owned();
    }
    if let Some(status) = outcome.status {
        return status.to_string();
    }
    let one = |backend: &model::route::WeightedBackend| match &backend.to {
        BackendTarget::Backend(id) => format!("{} {}", id.service, backend.weight),
        BackendTarget::Error(status) => format!("{status} {}", backend.weight),
    };
    outcome.backends.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn get(snapshot: &Snapshot, host: &str, path: &str) -> String {
    answer(&send(snapshot, 80, None, &incoming(host, path, &[])))
}

fn status_of(snapshot: &Snapshot, kind: &str, name: &str) -> Value {
    let addresses = AssignedAddresses::Any(vec![[127, 0, 0, 1].into()]);
    let found = statuses(snapshot, CONTROLLER, &addresses, &UnboundPorts::new());
    let own = found.into_iter().find(|own| own.kind == kind && own.key.name == name);
    own.map(|own| own.status).unwrap_or_default()
}

fn condition(conditions: &Value, kind: &str) -> String {
    let all = conditions.as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|condition| condition["type"] == kind).cloned().unwrap_or_default();
    format!("{} {}", found["status"].as_str().unwrap_or("-"), found["reason"].as_str().unwrap_or("-"))
}

fn route_condition(snapshot: &Snapshot, name: &str, kind: &str) -> String {
    condition(&status_of(snapshot, "HTTPRoute", name)["parents"][0]["conditions"], kind)
}

#[test]
fn of_equal_matches_the_older_route_wins_whole() {
    let filter = json!([{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "x", "value": "1"}]}}]);
    let snapshot = snapshot(&[
        http_gateway(),
        service("a"),
        service("b"),
        route("older", json!([{"backendRefs": to("b")}])),
        // By name it would be the first.
        route("a-newer", json!([{"backendRefs": to("a"), "filters": filter}])),
    ]);
    let outcome = send(&snapshot, 80, None, &incoming("x.io", "/", &[]));
    assert_eq!((answer(&outcome).as_str(), outcome.headers.len()), ("ns/b 1", 0));
}

#[test]
fn a_rule_without_backends_is_500_and_weights_of_bad_references_fail() {
    let snapshot = snapshot(&[
        http_gateway(),
        service("a"),
        service("other/b"),
        route(
            "r",
            json!([
                {"matches": [{"path": {"value": "/none"}}]},
                {"matches": [{"path": {"value": "/empty/"}}], "backendRefs": []},
                {"matches": [{"path": {"value": "/zero"}}], "backendRefs": [{"name": "a", "port": 80, "weight": 0}]},
                {"matches": [{"path": {"value": "/split"}}], "backendRefs": [
                    {"name": "a", "port": 80, "weight": 3}, {"name": "b", "namespace": "other", "port": 80}]},
            ]),
        ),
    ]);
    for (path, wanted) in
        [("/none", "500"), ("/empty/x", "500"), ("/zero", "500"), ("/split", "ns/a 3, 500 1"), ("/x", "404")]
    {
        assert_eq!(get(&snapshot, "x.io", path), wanted, "{path}");
    }
    assert_eq!(route_condition(&snapshot, "r", "ResolvedRefs"), "False RefNotPermitted");
    assert_eq!(route_condition(&snapshot, "r", "Accepted"), "True Accepted");
}

#[test]
fn unsupported_rules_are_dropped_and_named() {
    let bad = json!({"filters": [{"type": "Later"}], "backendRefs": to("a")});
    let good = json!({"matches": [{"path": {"value": "/good"}}], "backendRefs": to("a")});
    let some = snapshot(&[http_gateway(), service("a"), route("r", json!([bad, good]))]);
    assert_eq!(route_condition(&some, "r", "Accepted"), "True Accepted");
    assert_eq!(route_condition(&some, "r", "PartiallyInvalid"), "True UnsupportedValue");
    assert_eq!((get(&some, "x", "/good").as_str(), get(&some, "x", "/").as_str()), ("ns/a 1", "404"));
    let all = snapshot(&[http_gateway(), service("a"), route("r", json!([bad]))]);
    assert_eq!(route_condition(&all, "r", "Accepted"), "False UnsupportedValue");
    let listeners = &status_of(&all, "Gateway", "gw")["listeners"];
    assert_eq!(listeners[0]["attachedRoutes"], 0);
}

#[test]
fn an_unknown_extension_filter_is_an_error_not_skipped() {
    let filter =
        json!([{"type": "ExtensionRef", "extensionRef": {"group": "x.io", "kind": "Auth", "name": "a"}}]);
    let snapshot = snapshot(&[
        http_gateway(),
        service("a"),
        route("r", json!([{"filters": filter, "backendRefs": to("a")}])),
    ]);
    assert_eq!(get(&snapshot, "x", "/"), "500");
    assert_eq!(route_condition(&snapshot, "r", "ResolvedRefs"), "False InvalidKind");
}

fn route_filter(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshRouteFilter",
        "metadata": {"name": name, "namespace": "ns"}, "spec": spec})
}

fn extension(name: &str) -> Value {
    json!([{"type": "ExtensionRef",
        "extensionRef": {"group": "zoneward.dev", "kind": "MeshRouteFilter", "name": name}}])
}

#[test]
fn a_direct_response_by_extension_answers_for_the_rule() {
    let response = json!({"directResponse": {"status": 451, "body": {"inlineString": "not here"}}});
    let rules = json!([{"filters": extension("closed")}]);
    let objects = [http_gateway(), service("a"), route("r", rules), route_filter("closed", response)];
    let there = snapshot(&objects);
    assert_eq!(get(&there, "x", "/"), "451");
    assert_eq!(route_condition(&there, "r", "ResolvedRefs"), "True ResolvedRefs");
    let missing = snapshot(&objects[..3]);
    assert_eq!(get(&missing, "x", "/"), "500");
    assert_eq!(route_condition(&missing, "r", "ResolvedRefs"), "False InvalidExtensionRef");
}

#[test]
fn a_subset_by_extension_reduces_the_backends_of_a_rule_or_one_of_them() {
    let subset = |version: &str| json!({"subset": {"tags": {"version": version}}});
    let of_rule = json!({"matches": [{"path": {"value": "/rule"}}], "filters": extension("v2"),
        "backendRefs": to("a")});
    let of_backend = json!({"matches": [{"path": {"value": "/backend"}}], "backendRefs": [
        {"name": "a", "port": 80, "filters": extension("v1")}, {"name": "a", "port": 80, "weight": 3}]});
    let unknown = json!({"matches": [{"path": {"value": "/unknown"}}], "backendRefs": [
        {"name": "a", "port": 80, "filters": extension("v3")}]});
    let snapshot = snapshot(&[
        http_gateway(),
        service("a"),
        route("r", json!([of_rule, of_backend, unknown])),
        route_filter("v1", subset("v1")),
        route_filter("v2", subset("v2")),
    ]);
    let gateway = snapshot.gateway(&ObjectKey::new(&"ns".into(), &"gw".into())).unwrap();
    let backends: Vec<String> =
        gateway_table(&snapshot, gateway).0.backends().iter().map(ToString::to_string).collect();
    assert_eq!(backends, ["ns/a:80", "ns/a:80{version=v1}", "ns/a:80{version=v2}"]);
    assert_eq!(get(&snapshot, "x", "/unknown"), "500", "a filter that is not known is not skipped");
    assert_eq!(route_condition(&snapshot, "r", "ResolvedRefs"), "False InvalidExtensionRef");
}

#[test]
fn a_host_falls_back_to_less_specific_names_of_the_same_listener() {
    let with_hosts = |name: &str, hosts: Value, path: &str, backend: &str| {
        let mut route =
            route(name, json!([{"matches": [{"path": {"value": path}}], "backendRefs": to(backend)}]));
        route["spec"]["hostnames"] = hosts;
        route
    };
    let snapshot = snapshot(&[
        http_gateway(),
        service("a"),
        service("b"),
        with_hosts("narrow", json!(["a.x.io"]), "/only", "a"),
        with_hosts("wide", json!(["*.x.io"]), "/", "b"),
    ]);
    assert_eq!(get(&snapshot, "a.x.io:8080", "/only"), "ns/a 1");
    assert_eq!(get(&snapshot, "a.x.io", "/other"), "ns/b 1");
    assert_eq!(get(&snapshot, "x.io", "/"), "404");
}

#[test]
fn backend_filters_come_after_those_of_the_rule() {
    let set = |value: &str| json!([{"type": "RequestHeaderModifier", "requestHeaderModifier": {"add": [{"name": "x", "value": value}]}}]);
    let backends = json!([{"name": "a", "port": 80, "filters": set("backend")}]);
    let snapshot = snapshot(&[
        http_gateway(),
        service("a"),
        route("r", json!([{"filters": set("rule"), "backendRefs": backends}])),
    ]);
    let outcome = send(&snapshot, 80, None, &incoming("x", "/", &[]));
    let values: Vec<&str> = outcome.headers.iter().map(|(_, value)| value.as_str()).collect();
    assert_eq!(values, ["rule", "backend"]);
}

#[test]
fn preflight_requests_are_answered_by_the_proxy() {
    let cors = json!([{"type": "CORS", "cors": {"allowOrigins": ["https://*.shop.io"], "allowMethods": ["PUT"], "allowCredentials": true}}]);
    let snapshot = snapshot(&[
        http_gateway(),
        service("a"),
        route("r", json!([{"filters": cors, "backendRefs": to("a")}])),
    ]);
    let mut request =
        incoming("x", "/", &[("origin", "https://a.shop.io"), ("access-control-request-method", "PUT")]);
    request.method = "OPTIONS".to_owned();
    let outcome = send(&snapshot, 80, None, &request);
    assert_eq!(answer(&outcome), "204");
    let value = |outcome: &RequestOutcome, name: &str| {
        outcome.response_headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.to_string())
    };
    assert_eq!(value(&outcome, "access-control-allow-methods").as_deref(), Some("PUT"));
    request.headers[0].1 = "https://evil.io".into();
    let outcome = send(&snapshot, 80, None, &request);
    assert_eq!((answer(&outcome).as_str(), value(&outcome, "access-control-allow-origin")), ("204", None));
    let outcome = send(&snapshot, 80, None, &incoming("x", "/", &[("origin", "https://a.shop.io")]));
    assert_eq!(answer(&outcome), "ns/a 1");
    assert_eq!(value(&outcome, "access-control-allow-origin").as_deref(), Some("https://a.shop.io"));
}

fn https_gateway(extra: &[Value]) -> Value {
    let listener = |name: &str, host: &str| {
        json!({"name": name, "port": 443, "protocol": "HTTPS", "hostname": host,
        "tls": {"certificateRefs": [{"name": "cert"}]}})
    };
    let mut listeners = vec![listener("a", "a.x.io"), listener("b", "b.x.io")];
    listeners.extend_from_slice(extra);
    gateway(listeners.into())
}

#[test]
fn a_host_of_another_listener_than_the_sni_is_misdirected() {
    let snapshot = snapshot(&[
        https_gateway(&[]),
        secret("cert"),
        service("a"),
        route("r", json!([{"backendRefs": to("a")}])),
    ]);
    let https = |sni: &str, host: &str| answer(&send(&snapshot, 443, Some(sni), &incoming(host, "/", &[])));
    assert_eq!(https("a.x.io", "a.x.io"), "ns/a 1");
    assert_eq!(https("a.x.io", "b.x.io"), "421");
    assert_eq!(https("a.x.io", "c.x.io"), "404");
    assert_eq!(https("c.x.io", "a.x.io"), "closed");
}

#[test]
fn https_and_passed_tls_share_a_port_by_sni() {
    let passed = json!({"name": "p", "port": 443, "protocol": "TLS", "hostname": "p.x.io", "tls": {"mode": "Passthrough"}});
    let tls = object(
        "TLSRoute",
        "t",
        json!({"parentRefs": [{"name": "gw"}], "hostnames": ["p.x.io"], "rules": [{"backendRefs": to("b")}]}),
    );
    let snapshot = snapshot(&[
        https_gateway(&[passed]),
        secret("cert"),
        service("a"),
        service("b"),
        tls,
        route("r", json!([{"backendRefs": to("a")}])),
    ]);
    let https = |sni: &str| answer(&send(&snapshot, 443, Some(sni), &incoming(sni, "/", &[])));
    assert_eq!((https("a.x.io").as_str(), https("p.x.io").as_str()), ("ns/a 1", "ns/b 1"));
    let no_path = route("r", json!([{"matches": [{"path": {"value": "/only"}}], "backendRefs": to("a")}]));
    let object = fixtures::object(&no_path);
    let mut snapshot = snapshot;
    snapshot.apply(object);
    assert_eq!(answer(&send(&snapshot, 443, Some("a.x.io"), &incoming("a.x.io", "/", &[]))), "404");
    assert_eq!(condition(&status_of(&snapshot, "Gateway", "gw")["conditions"], "Accepted"), "True Accepted");
}

#[test]
fn certificates_of_other_namespaces_need_a_grant_of_the_own_kind() {
    let listener = |namespace: &str| {
        json!([{"name": "a", "port": 443, "protocol": "HTTPS",
        "tls": {"certificateRefs": [{"name": "cert", "namespace": namespace}]}}])
    };
    let grant = |kind: &str| {
        object(
            "ReferenceGrant",
            "other/g",
            json!({
        "from": [{"group": "gateway.networking.k8s.io", "kind": kind, "namespace": "ns"}],
        "to": [{"group": "", "kind": "Secret"}]}),
        )
    };
    let resolved = |objects: &[Value]| {
        let snapshot = snapshot(objects);
        let status = status_of(&snapshot, "Gateway", "gw");
        (
            condition(&status["listeners"][0]["conditions"], "ResolvedRefs"),
            condition(&status["conditions"], "Programmed"),
        )
    };
    let gateway = gateway(listener("other"));
    let good = ("True ResolvedRefs".to_owned(), "True Programmed".to_owned());
    let refused = ("False RefNotPermitted".to_owned(), "False Invalid".to_owned());
    assert_eq!(resolved(&[gateway.clone(), secret("other/cert"), grant("Gateway")]), good);
    assert_eq!(resolved(&[gateway.clone(), secret("other/cert"), grant("ListenerSet")]), refused);
    let missing = ("False InvalidCertificateRef".to_owned(), "False Invalid".to_owned());
    assert_eq!(resolved(&[gateway, grant("Gateway")]), missing);
}

#[test]
fn where_both_kinds_meet_grpc_requests_take_the_grpc_route() {
    let grpc = object(
        "GRPCRoute",
        "g",
        json!({"parentRefs": [{"name": "gw"}], "rules": [
        {"matches": [{"method": {"method": "Echo"}}], "backendRefs": to("a")}, {"backendRefs": to("b")}]}),
    );
    let both = snapshot(&[
        http_gateway(),
        service("a"),
        service("b"),
        service("h"),
        grpc.clone(),
        route("r", json!([{"backendRefs": to("h")}])),
    ]);
    let of = |snapshot: &Snapshot, path: &str, headers: &[(&str, &str)]| {
        answer(&send(snapshot, 80, None, &incoming("x", path, headers)))
    };
    let kind = [("content-type", "application/grpc+proto")];
    assert_eq!(of(&both, "/svc/Echo", &kind), "ns/a 1");
    assert_eq!(of(&both, "/svc/Other", &kind), "ns/b 1");
    assert_eq!(of(&both, "/svc/Echo", &[]), "ns/h 1");
    let alone = snapshot(&[http_gateway(), service("a"), service("b"), grpc]);
    assert_eq!(of(&alone, "/svc/Echo", &[]), "ns/a 1");
}

fn mesh(objects: &[Value], client: &str, path: &str) -> String {
    let snapshot = snapshot(objects);
    let client =
        MeshClient::of_service(&snapshot, &ServiceKey::new(&client.into(), &"client".into()), &Labels::EMPTY);
    let service = snapshot.service(&ServiceKey::new(&"ns".into(), &"web".into())).expect("the Service");
    let (outbound, _) = outbound(&snapshot, &client, service, &service.ports[0]).expect("TCP");
    answer(
        &trace_in_mesh(&outbound.routing, &incoming("web", path, &[]), &EdgeSettings::default(), false)
            .outcome,
    )
}

fn mesh_route(name: &str, kind: &str, path: &str, backend: &str) -> Value {
    let matches = json!([{"path": {"value": path}}]);
    let mut rule = json!({"backendRefs": [{"name": backend, "namespace": "ns", "port": 80}]});
    if kind == "HTTPRoute" {
        rule["matches"] = matches;
    }
    object(
        kind,
        name,
        json!({"parentRefs": [{"group": "", "kind": "Service", "name": "web", "namespace": "ns"}], "rules": [rule]}),
    )
}

#[test]
fn in_the_mesh_an_unmatched_request_is_404_and_consumers_do_not_see_producers() {
    let services = [service("web"), service("a"), service("b")];
    let producer = mesh_route("producer", "HTTPRoute", "/p", "a");
    let consumer = mesh_route("team/consumer", "HTTPRoute", "/c", "b");
    let all = [&services[..], &[producer.clone(), consumer]].concat();
    assert_eq!(mesh(&all, "ns", "/p"), "ns/a 1");
    assert_eq!(mesh(&all, "ns", "/c"), "404");
    assert_eq!(mesh(&all, "other", "/p"), "ns/a 1");
    // Another namespace needs no grant.
    assert_eq!(mesh(&all, "team", "/c"), "ns/b 1");
    assert_eq!(mesh(&all, "team", "/p"), "404");
    // The port is declared as nothing: the route makes it HTTP.
    let snapshot = snapshot(&[&services[..], &[producer]].concat());
    let client =
        MeshClient::of_service(&snapshot, &ServiceKey::new(&"ns".into(), &"x".into()), &Labels::EMPTY);
    let service = snapshot.service(&ServiceKey::new(&"ns".into(), &"web".into())).expect("the Service");
    let (outbound, _) = outbound(&snapshot, &client, service, &service.ports[0]).expect("TCP");
    assert!(outbound.protocol.is_http() && matches!(outbound.routing, Routing::Http(_)));
}

#[test]
fn one_kind_of_route_decides_on_a_port_of_a_service() {
    let services = [service("web"), service("a"), service("b")];
    let http = mesh_route("h", "HTTPRoute", "/", "a");
    let tcp = mesh_route("t", "TCPRoute", "/", "b");
    let all = [&services[..], &[http, tcp]].concat();
    assert_eq!(mesh(&all, "ns", "/"), "ns/a 1");
    let snapshot = snapshot(&all);
    let tcp = status_of(&snapshot, "TCPRoute", "t");
    assert_eq!(condition(&tcp["parents"][0]["conditions"], "Accepted"), "False Conflicted");
    assert_eq!(
        tcp["parents"][0]["parentRef"],
        json!({"group": "", "kind": "Service", "namespace": "ns", "name": "web"})
    );
    assert_eq!(route_condition(&snapshot, "h", "Accepted"), "True Accepted");
}

#[test]
fn backends_of_a_route_are_planned_by_the_distribution_of_their_service() {
    let mut web = service("a");
    web["spec"]["trafficDistribution"] = "PreferSameZone".into();
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "a-1", "namespace": "ns", "labels": {"kubernetes.io/service-name": "a"}},
        "addressType": "IPv4", "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": [
            {"addresses": ["10.1.0.1"], "zone": "z1", "conditions": {"ready": true}, "hints": {"forZones": [{"name": "z1"}]}},
            {"addresses": ["10.1.0.2"], "zone": "z2", "conditions": {"ready": true}, "hints": {"forZones": [{"name": "z2"}]}}]});
    let snapshot = snapshot(&[http_gateway(), web, slice, route("r", json!([{"backendRefs": to("a")}]))]);
    let routes = table(&snapshot);
    let ids = routes.backends();
    for (zone, address) in [("z1", "10.1.0.1:8080"), ("z2", "10.1.0.2:8080")] {
        let consumer = ConsumerLocation { node: "n".into(), zone: Some(zone.into()) };
        let planned = crate::backends::table(&snapshot, &routes, &consumer, FeatureGates::ALL);
        let backend = planned.backend(ids.first().expect("a backend")).expect("a backend");
        let addresses: Vec<String> = backend.endpoints.iter().map(|e| e.address.to_string()).collect();
        assert_eq!((backend.mode, addresses), ("same-zone", vec![address.to_owned()]));
    }
}

#[test]
fn mesh_policies_of_a_service_with_a_standard_route_have_no_effect_and_both_say_so() {
    let policy = json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshHTTPRoute",
        "metadata": {"name": "p", "namespace": "ns"}, "spec": {"targetRef": {"kind": "Mesh"}, "to": [{
            "targetRef": {"kind": "MeshService", "name": "web"},
            "rules": [{"matches": [{"path": {"prefix": "/"}}], "default": {"backendRefs": [{"kind": "MeshService", "name": "b"}]}}]}]}});
    let mut web = service("web");
    web["spec"]["ports"][0]["appProtocol"] = "http".into();
    let route = mesh_route("h", "HTTPRoute", "/", "a");
    let all = [web, service("a"), service("b"), policy, route];
    assert_eq!(mesh(&all, "ns", "/"), "ns/a 1");
    let snapshot = snapshot(&all);
    assert_eq!(route_condition(&snapshot, "h", "zoneward.dev/OverridesMeshPolicies"), "True SameService");
    let policy = snapshot.all_mesh_http_routes().next().expect("the policy");
    let status = crate::routes::of_http_route(&snapshot, policy);
    assert_eq!(status.programmed.reason, "Overridden", "{status:?}");
}

fn mesh_object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": kind, "metadata": {"name": name, "namespace": "ns"},
        "spec": spec})
}

fn mesh_gateway(port: u16) -> Value {
    mesh_object(
        "MeshGateway",
        "mesh",
        json!({"listeners": [{"name": "http", "port": port, "protocol": "HTTP"}]}),
    )
}

#[test]
fn routes_of_both_apis_with_one_host_say_so() {
    let mut own = route("r", json!([{"backendRefs": to("web")}]));
    own["spec"]["hostnames"] = json!(["shop.example.com"]);
    let rule = json!({"matches": [{"path": {"type": "Prefix", "value": "/"}}],
        "default": {"backendRefs": [{"kind": "MeshService", "name": "web"}]}});
    let other = mesh_object(
        "MeshGatewayHTTPRoute",
        "m",
        json!({"targetRef": {"kind": "MeshGateway", "name": "mesh"}, "hostnames": ["shop.example.com"],
            "rules": [rule]}),
    );
    let of_mesh = |snapshot: &Snapshot| {
        let key = ObjectKey::new(&"ns".into(), &"m".into());
        let policy = snapshot.mesh_gateway_http_route(&key).expect("the route");
        crate::routes::of_gateway_http_route(snapshot, policy).programmed.message
    };
    let shared = snapshot(&[http_gateway(), service("web"), own.clone(), mesh_gateway(80), other.clone()]);
    assert_eq!(route_condition(&shared, "r", "zoneward.dev/SharedHost"), "True SameHost");
    assert!(of_mesh(&shared).contains("HTTPRoute ns/r has the same host and port"), "{}", of_mesh(&shared));
    let apart = snapshot(&[http_gateway(), service("web"), own, mesh_gateway(81), other]);
    assert_eq!(route_condition(&apart, "r", "zoneward.dev/SharedHost"), "- -");
    assert!(!of_mesh(&apart).contains("same host"), "{}", of_mesh(&apart));
}

#[test]
fn a_port_of_an_address_is_that_of_one_gateway() {
    let on = |name: &str, port: u16, spec: Value| {
        let mut gateway = object(
            "Gateway",
            name,
            json!({"gatewayClassName": "c", "listeners": [{"name": "http", "port": port, "protocol": "HTTP"}]}),
        );
        gateway["spec"]["addresses"] = spec;
        gateway
    };
    let (first, second) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    let machine = MachineAddresses { usable: vec![first, second], mesh: vec![first] };
    let asked = json!([{"type": "IPAddress", "value": "192.0.2.1"}]);
    let objects = [
        on("older", 80, Value::Null),
        on("newer", 80, Value::Null),
        on("apart", 81, Value::Null),
        on("none", 80, Value::Null),
        on("taken", 80, asked),
        on("mesh", 82, Value::Null),
        on("mesh2", 8080, Value::Null),
        mesh_gateway(8080),
    ];
    let snapshot = snapshot(&objects);
    let found = machine_addresses(&snapshot, CONTROLLER, &machine);
    let of = |name: &str| found.get(&ObjectKey::new(&"ns".into(), &name.into())).cloned().unwrap_or_default();
    assert_eq!((of("older"), of("newer"), of("apart")), (vec![first], vec![second], vec![first]));
    assert_eq!(of("mesh2"), [second], "MeshGateways listen on the first address");
    for name in ["none", "taken", "mesh"] {
        assert!(of(name).is_empty(), "{name}");
    }
    let status = |name: &str| {
        let addresses = AssignedAddresses::Machine(machine.clone());
        let all = statuses(&snapshot, CONTROLLER, &addresses, &UnboundPorts::new());
        let own = all.into_iter().find(|own| own.kind == "Gateway" && own.key.name == name);
        condition(&own.expect("a status").status["conditions"], "Programmed")
    };
    assert_eq!(status("older"), "True Programmed");
    assert_eq!(status("none"), "False AddressNotAssigned");
    assert_eq!(status("taken"), "False AddressNotUsable");
    assert_eq!(status("mesh"), "False AddressNotAssigned");
}

#[test]
fn in_a_cluster_services_give_a_gateway_its_addresses() {
    let mut front = service("front");
    front["metadata"]["labels"] = json!({GATEWAY_NAME_LABEL: "gw"});
    let status = |objects: &[Value]| {
        let snapshot = snapshot(objects);
        let all = statuses(&snapshot, CONTROLLER, &AssignedAddresses::Services, &UnboundPorts::new());
        let own = all.into_iter().find(|own| own.kind == "Gateway").expect("a status").status;
        (condition(&own["conditions"], "Programmed"), own["addresses"].clone())
    };
    assert_eq!(status(&[http_gateway()]), ("False AddressNotAssigned".to_owned(), json!([])));
    let address = json!([{"type": "IPAddress", "value": "10.0.0.1"}]);
    assert_eq!(status(&[http_gateway(), front]), ("True Programmed".to_owned(), address));
}

#[test]
fn another_version_of_the_definitions_is_said() {
    let snapshot = snapshot(&[]);
    let supported = |version: Option<&str>| {
        let (mut attached, addresses) = (AttachedRoutes::default(), AssignedAddresses::Services);
        let planner = StatusPlanner::new(&snapshot, CONTROLLER, &addresses, &mut attached);
        let key = ObjectKey::new(&Name::default(), &"c".into());
        let class =
            planner.with_bundle_version(version).status(model::gateway_api::GatewayApiKind::Class, &key);
        condition(&class.expect("a status")["conditions"], "SupportedVersion")
    };
    assert_eq!(supported(None), "True SupportedVersion");
    assert_eq!(supported(Some("v1.6.0")), "True SupportedVersion");
    assert_eq!(supported(Some("v1.4.1")), "False UnsupportedVersion");
}

#[test]
fn a_port_that_proxies_could_not_bind_is_not_programmed() {
    let listeners = json!([
        {"name": "http", "port": 80, "protocol": "HTTP"},
        {"name": "other", "port": 81, "protocol": "HTTP"},
        {"name": "dns", "port": 80, "protocol": "UDP"}]);
    let mut edge = gateway(listeners);
    edge["spec"]["allowedListeners"] = json!({"namespaces": {"from": "Same"}});
    let parent = json!({"name": "gw"});
    let more = json!([{"name": "more", "port": 82, "protocol": "HTTP"}]);
    let set = object("ListenerSet", "set", json!({"parentRef": parent, "listeners": more}));
    let snapshot = snapshot(&[edge, set]);
    let unbound = |ports: &[(u16, bool)]| {
        UnboundPort::by_gateway(ports.iter().map(|(port, is_udp)| UnboundPort {
            namespace: "ns".to_owned(),
            gateway: "gw".to_owned(),
            is_udp: *is_udp,
            address: ([10, 0, 0, 1], *port).into(),
            listener_port: None,
            envoy: String::new(),
            node: "n1".to_owned(),
            error: "Address already in use (os error 98)".to_owned(),
        }))
    };
    let addresses = AssignedAddresses::Any(vec![[127, 0, 0, 1].into()]);
    let programmed = |ports: &[(u16, bool)]| {
        let all = statuses(&snapshot, CONTROLLER, &addresses, &unbound(ports));
        let own = |kind: &str| all.iter().find(|own| own.kind == kind).expect("a status").status.clone();
        let mut found = Vec::new();
        for kind in ["Gateway", "ListenerSet"] {
            found.push(condition(&own(kind)["conditions"], "Programmed"));
            let listeners = own(kind)["listeners"].as_array().cloned().unwrap_or_default();
            found.extend(listeners.iter().map(|own| condition(&own["conditions"], "Programmed")));
            for listener in &listeners {
                assert_eq!(
                    condition(&listener["conditions"], "Accepted"),
                    "True Accepted",
                    "routes stay attached"
                );
            }
        }
        found
    };
    let (yes, no) = ("True Programmed", "False Pending");
    // The Gateway and its listeners, the ListenerSet and its listener.
    assert_eq!(programmed(&[]), [yes, yes, yes, yes, yes, yes]);
    assert_eq!(
        programmed(&[(80, false)]),
        [no, no, yes, yes, yes, yes],
        "one of several is enough to say so"
    );
    assert_eq!(programmed(&[(80, true)]), [no, yes, yes, no, yes, yes]);
    assert_eq!(programmed(&[(82, false)]), [yes, yes, yes, yes, no, no], "another object's listener");
    assert_eq!(programmed(&[(9, false)]), [yes, yes, yes, yes, yes, yes], "a port that no listener has");
    let status = statuses(&snapshot, CONTROLLER, &addresses, &unbound(&[(80, false)]));
    let gateway = status.iter().find(|own| own.kind == "Gateway").expect("a status").status.to_string();
    let wanted = "port 80 cannot be bound: 10.0.0.1:80 on node n1: Address already in use (os error 98)";
    assert!(gateway.contains(wanted), "{gateway}");
}

#[test]
fn a_mesh_gateway_says_too_that_its_port_is_not_bound() {
    let snapshot = snapshot(&[mesh_gateway(8080)]);
    let own = snapshot.mesh_gateways().next().expect("a MeshGateway");
    let unbound = UnboundPort::by_gateway([UnboundPort {
        namespace: own.key.namespace.to_string(),
        gateway: own.key.name.to_string(),
        is_udp: false,
        address: ([0, 0, 0, 0], 8080).into(),
        listener_port: None,
        envoy: String::new(),
        node: "n1".to_owned(),
        error: "Permission denied (os error 13)".to_owned(),
    }]);
    let programmed = |unbound| {
        let found = crate::routes::of_gateway(own, &std::collections::BTreeMap::new(), unbound).programmed;
        (
            found.status.as_str(),
            found.reason,
            found.message.contains("0.0.0.0:8080 on node n1: Permission denied"),
        )
    };
    assert_eq!(programmed(&unbound), ("False", "Pending", true));
    assert_eq!(programmed(&UnboundPorts::new()), ("True", "Programmed", false));
}

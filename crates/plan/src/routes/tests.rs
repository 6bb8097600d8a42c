//! Tests of routes beyond the vectors: precedence, protocols, unresolved backends, gateways, and the words.

use expect_test::expect;
use model::route::{Arrival, BackendId, BackendTarget, EdgeSettings, Responder, Routing, Scheme};
use model::{Labels, Name, ObjectKey, ServiceKey, Snapshot};
use serde_json::{Value, json};

use super::*;

fn world(objects: &[Value]) -> Snapshot {
    fixtures::snapshot(objects)
}

fn service(name: &str, app_protocol: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "ns", "name": name},
        "spec": {"clusterIP": "10.0.0.1", "selector": {"app": name},
            "ports": [{"port": 80, "appProtocol": app_protocol}]}})
}

fn policy(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": kind,
        "metadata": {"namespace": "ns", "name": name}, "spec": spec})
}

/// A MeshHTTPRoute that sends everything for `backend` to one Service.
fn all_to(name: &str, target: Value, backend: &str) -> Value {
    policy(
        "MeshHTTPRoute",
        name,
        json!({"targetRef": target, "to": [{
        "targetRef": {"kind": "MeshService", "name": "backend"},
        "rules": [{"matches": [{"path": {"prefix": "/"}}],
            "default": {"backendRefs": [{"kind": "MeshService", "name": backend}]}}]}]}),
    )
}

fn client(tags: &[(&str, &str)]) -> MeshClient {
    MeshClient {
        namespace: "ns".into(),
        services: vec!["frontend".into()],
        tags: tags.iter().copied().collect(),
    }
}

fn route(snapshot: &Snapshot, client: &MeshClient) -> (Outbound, Vec<Notice>) {
    let service = snapshot.service(&ServiceKey::new(&"ns".into(), &"backend".into())).unwrap();
    outbound(snapshot, client, service, &service.ports[0]).unwrap()
}

/// The Services that a request for `path` may go to, and the errors.
fn goes_to(outbound: &Outbound, path: &str) -> Vec<String> {
    let Routing::Http(routes) = &outbound.routing else { return vec!["tcp".to_owned()] };
    let incoming = TracedRequest { method: "GET".into(), path: path.into(), ..TracedRequest::default() };
    let trace = trace(
        Some(routes),
        &incoming,
        &Arrival { scheme: Scheme::Http, port: None },
        &EdgeSettings::default(),
    );
    trace.outcome.backends.iter().map(|backend| target(&backend.to)).collect()
}

fn target(to: &BackendTarget) -> String {
    match to {
        BackendTarget::Backend(BackendId { service, .. }) => service.name.to_string(),
        BackendTarget::Error(status) => status.to_string(),
    }
}

#[test]
fn the_kind_of_the_target_decides_then_the_smaller_name() {
    let names = ["mesh", "subset", "service", "service-subset", "b", "a"];
    let mut objects: Vec<Value> = names.iter().map(|name| service(name, "http")).collect();
    objects.push(service("backend", "http"));
    let policies = [
        all_to(
            "z1",
            json!({"kind": "MeshServiceSubset", "name": "frontend", "tags": {"v": "1"}}),
            "service-subset",
        ),
        all_to("z2", json!({"kind": "MeshService", "name": "frontend"}), "service"),
        all_to("z3", json!({"kind": "MeshSubset", "tags": {"v": "1"}}), "subset"),
        all_to("z4", json!({"kind": "Mesh"}), "mesh"),
    ];
    let winners = ["service-subset", "service", "subset", "mesh"];
    for (i, winner) in winners.iter().enumerate() {
        let mut some = objects.clone();
        some.extend(policies[i..].iter().rev().cloned());
        assert_eq!(goes_to(&route(&world(&some), &client(&[("v", "1")])).0, "/"), [*winner]);
    }
    let mut other = objects.clone();
    other.extend(policies.iter().cloned());
    assert_eq!(goes_to(&route(&world(&other), &client(&[("v", "2")])).0, "/"), ["service"]);
    objects.extend(["b", "a"].map(|name| all_to(name, json!({"kind": "Mesh"}), name)));
    assert_eq!(
        goes_to(&route(&world(&objects), &client(&[])).0, "/"),
        ["a"],
        "semantics 1.3: the smaller name"
    );
}

#[test]
fn lower_entries_of_one_policy_override_upper_ones() {
    let mut twice = all_to("p", json!({"kind": "Mesh"}), "upper");
    let mut lower = twice["spec"]["to"][0].clone();
    lower["rules"][0]["default"]["backendRefs"][0]["name"] = "lower".into();
    twice["spec"]["to"].as_array_mut().unwrap().push(lower);
    let objects = [service("backend", "http"), service("upper", "http"), service("lower", "http"), twice];
    assert_eq!(goes_to(&route(&world(&objects), &client(&[])).0, "/"), ["lower"]);
}

/// A MeshHTTPRoute of one rule for `/` of `backend`.
fn rule_of(name: &str, target: Value, mut rule: Value) -> Value {
    rule["matches"] = json!([{"path": {"prefix": "/"}}]);
    let to = json!([{"targetRef": {"kind": "MeshService", "name": "backend"}, "rules": [rule]}]);
    policy("MeshHTTPRoute", name, json!({"targetRef": target, "to": to}))
}

fn sets(name: &str, value: &str) -> Value {
    json!([{"requestHeaderModifier": {"add": [{"name": name, "value": value}]}}])
}

fn first_rule(outbound: &Outbound) -> &model::route::HttpRule {
    let Routing::Http(routes) = &outbound.routing else { panic!("HTTP") };
    routes.rules().next().unwrap()
}

fn added_headers(rule: &model::route::HttpRule) -> Vec<String> {
    rule.action.request_headers.put.iter().map(|put| format!("{}={}", put.name, put.value)).collect()
}

fn names(of: &Option<model::ObjectRef>) -> Option<&str> {
    of.as_ref().map(|policy| &*policy.name)
}

// Seed 004: "maybe the owner wants final say over backendRefs", "can tolerate additional filters".
#[test]
fn the_owner_has_the_final_say_by_override_and_tolerates_more_by_merge() {
    let to = |name: &str| json!([{"kind": "MeshService", "name": name}]);
    let (everyone, frontend) = (json!({"kind": "Mesh"}), json!({"kind": "MeshService", "name": "frontend"}));
    let services = ["backend", "own", "other"].map(|name| service(name, "http"));
    let plan = |policies: &[Value]| {
        let objects: Vec<Value> = services.iter().chain(policies).cloned().collect();
        route(&world(&objects), &client(&[])).0
    };
    let owner = rule_of(
        "owner",
        everyone.clone(),
        json!({"override": {"backendRefs": to("own")}, "merge": {"filters": sets("x", "owner")}}),
    );
    let consumer = rule_of(
        "consumer",
        frontend.clone(),
        json!({"default": {"backendRefs": to("other"), "filters": sets("x", "default")},
            "merge": {"filters": sets("x", "consumer")}}),
    );
    let planned = plan(&[owner.clone(), consumer]);
    let rule = first_rule(&planned);
    assert_eq!(goes_to(&planned, "/"), ["own"]);
    assert_eq!(added_headers(rule), ["x=default", "x=owner", "x=consumer"]);
    let origin = &rule.origin;
    assert_eq!((names(&origin.policy), names(&origin.filters)), (Some("consumer"), Some("consumer")));
    assert_eq!(
        (names(&origin.backends), names(&origin.backends_override)),
        (Some("consumer"), Some("owner"))
    );
    let merged: Vec<&str> = origin.merged.iter().map(|policy| &*policy.name).collect();
    assert_eq!(merged, ["owner", "consumer"]);

    // A consumer's response does not replace the backends, either.
    let respond = json!({"default": {"filters": [{"directResponse": {"status": 418}}]}});
    let planned = plan(&[owner.clone(), rule_of("consumer", frontend.clone(), respond)]);
    assert_eq!(goes_to(&planned, "/"), ["own"]);

    // Of two overrides, that of the less specific policy counts.
    let narrow = rule_of("narrow", frontend, json!({"override": {"backendRefs": to("other")}}));
    assert_eq!(goes_to(&plan(&[owner, narrow.clone()]), "/"), ["own"]);
    let clears = rule_of("clears", everyone, json!({"override": {"filters": []}}));
    let planned = plan(&[clears, narrow]);
    assert_eq!(
        (goes_to(&planned, "/").as_slice(), added_headers(first_rule(&planned)).len()),
        (&["other".to_owned()][..], 0)
    );
}

#[test]
fn filters_of_a_backend_apply_to_its_share() {
    let backends = json!([{"kind": "MeshService", "name": "own", "filters": sets("x", "own")},
        {"kind": "MeshService", "name": "other"}]);
    let objects = [
        service("backend", "http"),
        service("own", "http"),
        service("other", "http"),
        rule_of("p", json!({"kind": "Mesh"}), json!({"default": {"backendRefs": backends}})),
    ];
    let planned = route(&world(&objects), &client(&[])).0;
    let Responder::Forward(split) = &first_rule(&planned).action.responder else { panic!("backends") };
    let filtered: Vec<bool> = split.entries().iter().map(|entry| entry.filters.is_some()).collect();
    assert_eq!(filtered, [true, false]);
}

#[test]
fn a_rule_with_filters_only_is_merged_at_a_gateway() {
    let edge =
        policy("MeshGateway", "edge", json!({"listeners": [{"name": "a", "port": 80, "protocol": "HTTP"}]}));
    let at = |name: &str, default: Value| {
        let rules = json!([{"matches": [{"path": {"prefix": "/"}}], "default": default}]);
        policy(
            "MeshGatewayHTTPRoute",
            name,
            json!({"targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": rules}),
        )
    };
    let backends = at("b", json!({"backendRefs": [{"kind": "MeshService", "name": "own"}]}));
    let snapshot =
        world(&[edge, service("own", "http"), at("a", json!({"filters": sets("x", "y")})), backends]);
    let gateway_key = ObjectKey::new(&"ns".into(), &"edge".into());
    let (table, _) = gateway(&snapshot, snapshot.mesh_gateway(&gateway_key).unwrap());
    let port = table.port(80).unwrap();
    let Some(Routing::Http(routes)) = port.listeners[0].routing("x") else { panic!("HTTP") };
    let rules: Vec<_> = routes.rules().collect();
    assert_eq!(rules.len(), 1);
    assert_eq!(added_headers(rules[0]), ["x=y"]);
    assert!(matches!(&rules[0].action.responder, Responder::Forward(split) if split.failure().is_none()));
}

/// The same object in another namespace; `to` still names the Service of `ns`.
fn moved(mut policy: Value, namespace: &str) -> Value {
    policy["metadata"]["namespace"] = namespace.into();
    policy["spec"]["to"][0]["targetRef"]["namespace"] = "ns".into();
    policy
}

fn of_namespace(namespace: &str, tags: &[(&str, &str)]) -> MeshClient {
    MeshClient { namespace: namespace.into(), ..client(tags) }
}

// Seed 004: "a routing policy for their service that applies to requests from all services".
#[test]
fn a_policy_for_the_mesh_reaches_clients_of_every_namespace() {
    let objects = [service("backend", "http"), service("other", "http")];
    let with = |target: Value, client: &MeshClient| {
        let world = world(&[&objects[..], &[all_to("p", target, "other")]].concat());
        goes_to(&route(&world, client).0, "/")
    };
    let far = of_namespace("far", &[("v", "1")]);
    assert_eq!(with(json!({"kind": "Mesh"}), &far), ["other"]);
    assert_eq!(with(json!({"kind": "MeshSubset", "tags": {"v": "1"}}), &far), ["other"]);
    assert_eq!(with(json!({"kind": "MeshSubset", "tags": {"v": "2"}}), &far), ["backend"]);
    let frontend = json!({"kind": "MeshService", "name": "frontend"});
    assert_eq!(with(frontend.clone(), &client(&[])), ["other"]);
    assert_eq!(
        with(frontend, &far),
        ["backend"],
        "the frontend that is meant is that of the policy's namespace"
    );
    let tcp = policy(
        "MeshTCPRoute",
        "t",
        json!({"targetRef": {"kind": "Mesh"}, "to": [{"targetRef": {"kind": "MeshService", "name": "backend"},
            "rules": [{"default": {"backendRefs": [{"kind": "MeshService", "name": "other"}]}}]}]}),
    );
    let (outbound, _) = route(&world(&[service("backend", "tcp"), service("other", "tcp"), tcp]), &far);
    let Routing::Tcp(split) = &outbound.routing else { panic!("TCP") };
    assert_eq!(target(&split.entries()[0].to), "other");
}

#[test]
fn a_client_s_namespace_changes_its_own_requests_and_its_backends_are_its_own() {
    let mut own = service("own", "http");
    own["metadata"]["namespace"] = "far".into();
    let objects = [
        service("backend", "http"),
        service("producers", "http"),
        own,
        all_to("a", json!({"kind": "Mesh"}), "producers"),
        moved(all_to("b", json!({"kind": "Mesh"}), "own"), "far"),
    ];
    let snapshot = world(&objects);
    let (outbound, notices) = route(&snapshot, &of_namespace("far", &[]));
    assert_eq!(notices, []);
    assert_eq!(goes_to(&outbound, "/"), ["own"], "semantics 1.3: the consumer goes before the producer");
    assert_eq!(goes_to(&route(&snapshot, &client(&[])).0, "/"), ["producers"]);
}

#[test]
fn a_namespace_cannot_alter_traffic_between_two_others() {
    let mut objects = vec![service("backend", "http"), service("frontend", "http"), service("other", "http")];
    for name in ["backend", "other", "frontend"] {
        let mut copy = service(name, "http");
        copy["metadata"]["namespace"] = "evil".into();
        objects.push(copy);
    }
    let untouched = world(&objects);
    let targets = [
        json!({"kind": "Mesh"}),
        json!({"kind": "MeshSubset", "tags": {"v": "1"}}),
        json!({"kind": "MeshService", "name": "frontend"}),
        json!({"kind": "MeshServiceSubset", "name": "frontend", "tags": {"v": "1"}}),
    ];
    for (i, target) in targets.into_iter().enumerate() {
        objects.push(moved(all_to(&format!("h{i}"), target.clone(), "other"), "evil"));
        let tcp = policy(
            "MeshTCPRoute",
            &format!("t{i}"),
            json!({"targetRef": target, "to": [{"targetRef": {"kind": "MeshService", "name": "backend"},
                "rules": [{"default": {"backendRefs": [{"kind": "MeshService", "name": "other"}]}}]}]}),
        );
        objects.push(moved(tcp, "evil"));
    }
    let altered = world(&objects);
    for client in [of_namespace("third", &[("v", "1")]), client(&[("v", "1")])] {
        assert_eq!(route(&untouched, &client), route(&altered, &client), "{}", client.namespace);
    }
    assert_ne!(
        route(&untouched, &of_namespace("evil", &[("v", "1")])).0,
        route(&altered, &of_namespace("evil", &[("v", "1")])).0,
        "its own requests it may change"
    );
}

fn pattern_to(pattern: &str, backend: &str) -> Value {
    json!({"matches": [{"path": {"type": "RegularExpression", "value": pattern}}],
        "default": {"backendRefs": [{"kind": "MeshService", "name": backend}]}})
}

fn rules_for_backend(name: &str, rules: Value) -> Value {
    let to = json!([{"targetRef": {"kind": "MeshService", "name": "backend"}, "rules": rules}]);
    policy("MeshHTTPRoute", name, json!({"targetRef": {"kind": "Mesh"}, "to": to}))
}

#[test]
fn a_pattern_is_asked_before_the_implied_catch_all() {
    let rules = json!([pattern_to("/v[0-9]+/.*", "numbered")]);
    let objects = [service("backend", "http"), service("numbered", "http"), rules_for_backend("p", rules)];
    let (outbound, _) = route(&world(&objects), &client(&[]));
    assert_eq!(goes_to(&outbound, "/v7/items"), ["numbered"]);
    assert_eq!(goes_to(&outbound, "/other"), ["backend"]);
}

#[test]
fn the_implied_catch_all_goes_last_where_a_written_one_was_before() {
    let services = [service("backend", "http"), service("numbered", "http")];
    let written = json!([pattern_to("/v.*", "numbered"), {"matches": [{"path": {"prefix": "/"}}]}]);
    let first = world(&[&services[..], &[rules_for_backend("p", written)]].concat());
    let second = rules_for_backend("p", json!([pattern_to("/v.*", "numbered")]));
    let second = world(&[&services[..], &[second]].concat());
    let service = |snapshot: &Snapshot| {
        snapshot.service(&ServiceKey::new(&"ns".into(), &"backend".into())).unwrap().clone()
    };
    let (one, two) = (service(&first), service(&second));
    let before = OutboundRoutes::new(&first, &client(&[]), &one, &one.ports[0]).unwrap();
    assert_eq!(goes_to(&before.outbound, "/v7"), ["backend"], "semantics 1.5: a written prefix goes first");
    let changed = [ObjectKey::new(&"ns".into(), &"p".into())].into_iter().collect();
    let after = before.after(&second, &client(&[]), &two, &two.ports[0], &changed).unwrap();
    assert_eq!(goes_to(&after.outbound, "/v7"), ["numbered"]);
}

#[test]
fn a_rule_that_no_request_can_hit_is_told_with_the_one_that_goes_first() {
    let to = |name: &str| json!({"backendRefs": [{"kind": "MeshService", "name": name}]});
    let rules = json!([
        {"matches": [{"path": {"prefix": "/a"}}], "default": to("x")},
        {"matches": [{"path": {"prefix": "/b"}}]},
        {"matches": [{"path": {"prefix": "/a"}}], "default": to("y")},
        {"matches": [{"path": {"prefix": "/b"}}], "default": to("y")},
        {"matches": [{"path": {"prefix": "/c"}}, {"path": {"type": "Prefix", "value": "/a"}}]},
        pattern_to("/v.*", "x"),
        {"matches": [{}]},
    ]);
    let snapshot = world(&[rules_for_backend("p", rules)]);
    let text: String =
        never_matching_within(&snapshot, &"ns".into()).iter().map(|n| format!("{n}\n")).collect();
    expect![[r#"
        MeshHTTPRoute ns/p: RuleNeverMatches: spec.to[0].rules[2] has the same matches as spec.to[0].rules[0], which has precedence, so it has no effect; merge the two, delete one, or change its matches
        MeshHTTPRoute ns/p: RuleNeverMatches: spec.to[0].rules[3] has the same matches as spec.to[0].rules[1], which has precedence, so only its backendRefs are used; merge the two, delete one, or change its matches
        MeshHTTPRoute ns/p: RuleNeverMatches: spec.to[0].rules[4].matches[1] is the same as spec.to[0].rules[0].matches[0], which has precedence, so no request matches it; delete it, or change one of the two
        MeshHTTPRoute ns/p: RuleNeverMatches: spec.to[0].rules[5].matches[0] is a pattern, and prefixes have precedence over patterns: spec.to[0].rules[6].matches[0] is the prefix / and matches every request; replace that one by the pattern /.*, or delete it
    "#]].assert_eq(&text);
}

#[test]
fn an_upper_entry_for_the_same_service_is_told() {
    let mut twice = all_to("p", json!({"kind": "Mesh"}), "upper");
    let lower = twice["spec"]["to"][0].clone();
    twice["spec"]["to"].as_array_mut().unwrap().push(lower);
    let entry = json!({"targetRef": {"kind": "MeshService", "name": "backend"},
        "rules": [{"default": {"backendRefs": [{"kind": "MeshService", "name": "x"}]}}]});
    let tcp = policy("MeshTCPRoute", "t", json!({"to": [entry, entry]}));
    let told: Vec<String> = never_matching_within(&world(&[twice, tcp]), &"ns".into())
        .iter()
        .map(|notice| notice.message.clone())
        .collect();
    let http = "spec.to[0].rules[0] has the same matches as spec.to[1].rules[0], which has precedence, so it has no effect";
    assert!(told[0].starts_with(http), "{told:?}");
    assert!(told[1].starts_with("spec.to[0] has the same destination as spec.to[1]"), "{told:?}");
}

#[test]
fn what_no_rule_takes_goes_where_it_was_going() {
    let only_v1 = policy(
        "MeshHTTPRoute",
        "p",
        json!({"to": [{
        "targetRef": {"kind": "MeshService", "name": "backend"},
        "rules": [{"matches": [{"path": {"prefix": "/v1"}}],
            "default": {"backendRefs": [{"kind": "MeshService", "name": "v1"}]}},
            {"matches": [{"path": {"prefix": "/same"}}]}]}]}),
    );
    let (outbound, notices) =
        route(&world(&[service("backend", "http"), service("v1", "http"), only_v1]), &client(&[]));
    assert_eq!(notices, []);
    assert_eq!(goes_to(&outbound, "/v1/x"), ["v1"]);
    assert_eq!(goes_to(&outbound, "/v1x"), ["backend"]);
    assert_eq!(goes_to(&outbound, "/same"), ["backend"]);
}

#[test]
fn an_unresolved_backend_keeps_its_share_and_is_told() {
    let split = policy(
        "MeshHTTPRoute",
        "p",
        json!({"to": [{
        "targetRef": {"kind": "MeshService", "name": "backend"},
        "rules": [{"matches": [{"path": {"prefix": "/"}}], "default": {"backendRefs": [
            {"kind": "MeshService", "name": "gone", "weight": 50}, {"kind": "MeshService", "name": "tcp", "weight": 20},
            {"kind": "MeshService", "name": "backend", "weight": 30, "port": 81},
            {"kind": "MeshService", "name": "backend", "weight": 30}],
            "filters": [{"requestMirror": {"backendRef": {"kind": "MeshService", "name": "lost"}}}]}}]}]}),
    );
    let (outbound, notices) =
        route(&world(&[service("backend", "http"), service("tcp", "tcp"), split]), &client(&[]));
    assert_eq!(goes_to(&outbound, "/"), ["500", "backend"], "errors are one leg");
    let text: String = notices.iter().map(|n| format!("{n}\n")).collect();
    expect![[r#"
        MeshHTTPRoute ns/p: BackendNotResolved: backendRef MeshService lost: Service ns/lost does not exist: create it, or correct the name; until then no requests are mirrored
        MeshHTTPRoute ns/p: BackendNotResolved: backendRef MeshService gone: Service ns/gone does not exist: create it, or correct the name; until then its share of requests fails
        MeshHTTPRoute ns/p: BackendNotResolved: backendRef MeshService tcp: no port of Service ns/tcp is declared as HTTP; set the appProtocol of one to http, http2 or grpc; until then its share of requests fails
        MeshHTTPRoute ns/p: BackendNotResolved: backendRef MeshService backend: Service ns/backend has no TCP port 81; until then its share of requests fails
    "#]].assert_eq(&text);
}

#[test]
fn http_routes_go_before_tcp_routes_where_requests_can_be_told_apart() {
    let tcp = policy(
        "MeshTCPRoute",
        "t",
        json!({"to": [{
        "targetRef": {"kind": "MeshService", "name": "backend"},
        "rules": [{"default": {"backendRefs": [{"kind": "MeshService", "name": "other"}]}}]}]}),
    );
    let http = all_to("h", json!({"kind": "Mesh"}), "other");
    let is_tcp_to = |protocol: &str, policies: &[&Value]| {
        let mut objects = vec![service("backend", protocol), service("other", "http")];
        objects.extend(policies.iter().map(|p| (*p).clone()));
        let (outbound, notices) = route(&world(&objects), &client(&[]));
        let to = match &outbound.routing {
            Routing::Tcp(split) => Some(target(&split.entries()[0].to)),
            Routing::Http(_) => None,
        };
        (to, notices.len())
    };
    assert_eq!(is_tcp_to("http", &[&tcp, &http]), (None, 0));
    assert_eq!(is_tcp_to("http", &[&tcp]), (Some("other".to_owned()), 0));
    assert_eq!(
        is_tcp_to("tcp", &[&tcp, &http]),
        (Some("other".to_owned()), 1),
        "an HTTP route to TCP is told"
    );
    assert_eq!(is_tcp_to("tcp", &[]), (Some("backend".to_owned()), 0));
}

#[test]
fn a_redirect_of_one_policy_overrules_the_backends_of_another_and_is_told() {
    let redirect = policy(
        "MeshHTTPRoute",
        "r",
        json!({
        "targetRef": {"kind": "MeshService", "name": "frontend"}, "to": [{
        "targetRef": {"kind": "MeshService", "name": "backend"},
        "rules": [{"matches": [{"path": {"prefix": "/"}}],
            "default": {"filters": [{"requestRedirect": {"scheme": "https"}}]}}]}]}),
    );
    let objects = [service("backend", "http"), redirect, all_to("p", json!({"kind": "Mesh"}), "backend")];
    let (outbound, notices) = route(&world(&objects), &client(&[]));
    let Routing::Http(routes) = &outbound.routing else { panic!("HTTP") };
    assert!(matches!(routes.rules().next().unwrap().action.responder, Responder::Redirect(_)));
    assert_eq!(notices[0].reason, "RouteConflict");
}

/// Seed 004, "exact same structure": a rule means the same in the mesh and at a gateway.
#[test]
fn a_redirect_keeps_the_query_in_the_mesh_and_at_a_gateway() {
    let rules = json!([{"matches": {"path": {"prefix": "/"}},
        "default": {"filters": [{"requestRedirect": {"scheme": "https"}}]}}]);
    let objects = [
        service("backend", "http"),
        edge(json!([{"name": "http", "port": 80, "protocol": "HTTP"}])),
        policy(
            "MeshHTTPRoute",
            "mesh",
            json!({"to": [{"targetRef": {"kind": "MeshService", "name": "backend"}, "rules": rules}]}),
        ),
        policy(
            "MeshGatewayHTTPRoute",
            "gateway",
            json!({"targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": rules}),
        ),
    ];
    let (table, _) = at_edge(&objects);
    let at_gateway = table.port(80).and_then(|port| port.listener("x.io")?.routing("x.io")).unwrap();
    for routing in [&route(&world(&objects), &client(&[])).0.routing, at_gateway] {
        let Routing::Http(routes) = routing else { panic!("HTTP") };
        let incoming = TracedRequest {
            method: "GET".into(),
            host: "x.io".into(),
            path: "/r?x=1".into(),
            ..TracedRequest::default()
        };
        let at = Arrival { scheme: Scheme::Http, port: None };
        let outcome = trace(Some(routes), &incoming, &at, &EdgeSettings::default()).outcome;
        assert_eq!(outcome.response_headers, [("location".into(), "https://x.io/r?x=1".into())]);
    }
}

fn edge(listeners: Value) -> Value {
    policy("MeshGateway", "edge", json!({"listeners": listeners}))
}

fn gateway_route(name: &str, hostnames: &[&str], tags: Value, path: &str, backend: &str) -> Value {
    policy(
        "MeshGatewayHTTPRoute",
        name,
        json!({
        "targetRef": {"kind": "MeshGateway", "name": "edge", "tags": tags}, "hostnames": hostnames,
        "rules": [{"matches": [{"path": {"prefix": path}}],
            "default": {"backendRefs": [{"kind": "MeshService", "name": backend}]}}]}),
    )
}

fn at_edge(objects: &[Value]) -> (RouteTable, Vec<Notice>) {
    let snapshot = world(objects);
    let key = ObjectKey::new(&"ns".into(), &"edge".into());
    gateway(&snapshot, snapshot.mesh_gateway(&key).unwrap())
}

fn through(table: &RouteTable, port: u16, host: &str, path: &str) -> String {
    let listener = table.port(port).and_then(|p| p.listener(host));
    let routes = match listener.and_then(|l| l.routing(host)) {
        Some(Routing::Http(routes)) => Some(&**routes),
        Some(Routing::Tcp(split)) => return target(&split.entries()[0].to),
        None => None,
    };
    let incoming = TracedRequest {
        method: "GET".into(),
        host: host.into(),
        path: path.into(),
        ..TracedRequest::default()
    };
    let trace = trace(
        routes,
        &incoming,
        &Arrival { scheme: Scheme::Http, port: Some(port) },
        &EdgeSettings::default(),
    );
    match trace.outcome.status {
        Some(status) => status.to_string(),
        None => target(&trace.outcome.backends[0].to),
    }
}

#[test]
fn a_host_has_its_own_rules_before_those_of_wider_names() {
    let objects = [
        service("a", "http"),
        service("b", "http"),
        service("c", "http"),
        edge(json!([{"name": "http", "port": 80, "protocol": "HTTP"}])),
        gateway_route("exact", &["a.x.io"], json!({}), "/only", "a"),
        gateway_route("wide", &["*.x.io"], json!({}), "/only/deeper", "b"),
        gateway_route("any", &[], json!({}), "/", "c"),
    ];
    let (table, notices) = at_edge(&objects);
    assert_eq!(notices, []);
    assert_eq!(through(&table, 80, "a.x.io", "/only/deeper"), "a", "the host goes before the longer path");
    assert_eq!(through(&table, 80, "b.x.io", "/only/deeper"), "b");
    assert_eq!(through(&table, 80, "a.x.io:80", "/other"), "c");
    assert_eq!(through(&table, 80, "y.io", "/only"), "c");
}

#[test]
fn a_wider_listener_does_not_get_the_hosts_of_a_narrower_one() {
    let objects = [
        service("a", "http"),
        service("b", "http"),
        edge(
            json!([{"name": "narrow", "port": 80, "protocol": "HTTP", "hostname": "a.x.io", "tags": {"l": "narrow"}},
            {"name": "wide", "port": 80, "protocol": "HTTP", "tags": {"l": "wide"}},
            {"name": "raw", "port": 90, "protocol": "TCP"}]),
        ),
        gateway_route("wide", &[], json!({"l": "wide"}), "/", "b"),
        gateway_route("lost", &["y.io"], json!({"l": "narrow"}), "/", "b"),
        policy(
            "MeshTCPRoute",
            "t",
            json!({"targetRef": {"kind": "MeshGateway", "name": "edge"}, "to": [{
            "targetRef": {"kind": "Mesh"}, "rules": [{"default": {"backendRefs": [{"kind": "MeshService", "name": "a"}]}}]}]}),
        ),
    ];
    let (table, notices) = at_edge(&objects);
    assert_eq!(through(&table, 80, "a.x.io", "/"), "404", "semantics 1.6");
    assert_eq!(through(&table, 80, "b.x.io", "/"), "b");
    assert_eq!(through(&table, 90, "", ""), "a");
    let told: Vec<String> = notices.iter().map(|n| format!("{} {}", n.object, n.reason)).collect();
    assert_eq!(told, ["MeshGatewayHTTPRoute ns/lost NoListener"]);
    assert_eq!(table.backends().len(), 2);
}

#[test]
fn a_pod_is_a_client_of_its_services_with_the_tags_of_its_place() {
    let pod = |name: &str, version: &str, node: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": name,
            "labels": {"app": "frontend", "version": version, "topology.kubernetes.io/zone": "a lie"}},
            "spec": {"nodeName": node}})
    };
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1",
        "labels": {"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r"}}});
    let snapshot = world(&[
        service("frontend", "http"),
        service("backend", "http"),
        pod("a", "v1", "n1"),
        pod("b", "v2", "n1"),
        node,
    ]);
    let own =
        MeshClient::of_pod(&snapshot, snapshot.pod(&ObjectKey::new(&"ns".into(), &"a".into())).unwrap());
    assert_eq!(own.services, [Name::new("frontend")]);
    assert_eq!(own.tags.value(ZONE).map(Name::as_str), Some("z1"));
    assert_eq!(own.tags.value("version").map(Name::as_str), Some("v1"));
    let key = ServiceKey::new(&"ns".into(), &"frontend".into());
    let some = MeshClient::of_service(&snapshot, &key, &Labels::EMPTY);
    assert_eq!((some.tags.has("version"), some.tags.has(REGION)), (false, true), "only what its pods share");
    let v2 = MeshClient::of_service(&snapshot, &key, &[("version", "v2")].into_iter().collect());
    assert_eq!(v2.tags.value("version").map(Name::as_str), Some("v2"));
}

#[test]
fn a_trace_says_which_condition_each_match_misses() {
    let rules = policy(
        "MeshHTTPRoute",
        "p",
        json!({"to": [{
        "targetRef": {"kind": "MeshService", "name": "backend"}, "rules": [
        {"matches": [{"path": {"exact": "/a"}}, {"path": {"prefix": "/a"}, "method": "POST"}]},
        {"matches": [{"path": {"prefix": "/a"}, "headers": [{"name": "x", "type": "Present"}]}]},
        {"matches": [{"path": {"prefix": "/a"}, "queryParams": [{"name": "q", "value": "1"}]}]},
        {"matches": [{"path": {"prefix": "/a"}}], "default": {"filters": [{"urlRewrite": {"path": {"replacePrefixMatch": "/"}}}]}},
        {"matches": [{"path": {"regex": "/.*"}}]}]}]}),
    );
    let (outbound, _) = route(&world(&[service("backend", "http"), rules]), &client(&[]));
    let Routing::Http(routes) = &outbound.routing else { panic!("HTTP") };
    let incoming =
        TracedRequest { method: "GET".into(), path: "/x/../a/b?q=2".into(), ..TracedRequest::default() };
    let trace = trace(
        Some(routes),
        &incoming,
        &Arrival { scheme: Scheme::Http, port: None },
        &EdgeSettings::default(),
    );
    let text: String = trace.why.iter().map(|s| format!("{}: {}\n", s.rule, s.detail)).collect();
    expect![[r#"
        path: /x/../a/b is normalised to /a/b
        MeshHTTPRoute ns/p spec.to[0].rules[0].matches[0]: no match: /a/b is not /a
        MeshHTTPRoute ns/p spec.to[0].rules[0].matches[1]: no match: the method is GET, not POST
        MeshHTTPRoute ns/p spec.to[0].rules[1].matches[0]: no match: required: header x is present
        MeshHTTPRoute ns/p spec.to[0].rules[2].matches[0]: no match: required: query parameter q is "1"
        MeshHTTPRoute ns/p spec.to[0].rules[3].matches[0]: matches: /a/b is at or below /a
        later: 2 entries have lower precedence: not tested, the first match wins
        rewrite: the path becomes /b?q=2
        backend: 100.0 % of requests go to ns/backend:80
    "#]]
    .assert_eq(&text);
}

#[test]
fn a_policy_for_what_is_not_there_is_told() {
    let snapshot = world(&[
        all_to("p", json!({"kind": "MeshService", "name": "nobody"}), "x"),
        gateway_route("g", &[], json!({}), "/", "x"),
    ]);
    let fields: Vec<String> =
        unused_targets(&snapshot, &"ns".into()).iter().map(|n| n.message.clone()).collect();
    assert_eq!(fields.len(), 3, "{fields:?}");
    assert!(fields[1].starts_with("spec.to[0].targetRef.name: Service backend does not exist"), "{fields:?}");
}

#[test]
fn a_trace_shows_what_the_edge_leaves_of_a_request() {
    let (admin, app) = (service("admin", "http"), service("app", "http"));
    let listeners = json!({"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]});
    let rules = json!([
        {"matches": [{"path": {"prefix": "/admin"}}], "default": {"backendRefs": [{"kind": "MeshService", "name": "admin"}]}},
        {"matches": [{"headers": [{"name": "authorization", "type": "Present"}]},
            {"headers": [{"name": "x-real-ip", "value": "10.0.0.1"}]}],
         "default": {"backendRefs": [{"kind": "MeshService", "name": "admin"}]}},
        {"matches": [{"path": {"prefix": "/"}}], "default": {"backendRefs": [{"kind": "MeshService", "name": "app"}]}}]);
    let route = json!({"targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": rules});
    let (table, _) = at_edge(&[
        admin,
        app,
        policy("MeshGateway", "edge", listeners),
        policy("MeshGatewayHTTPRoute", "r", route),
    ]);
    for (path, wanted) in [
        ("//admin", "admin"),
        (r"/x\..\admin", "admin"),
        ("/x/..;/admin", "admin"),
        ("/%2fadmin", "307"),
        ("/x%2f..%2fadmin?q=1", "307"),
        ("/admin%2fx", "307"),
        ("/x/..%3b/admin", "400"),
        ("//", "400"),
        ("/x", "app"),
    ] {
        assert_eq!(through(&table, 80, "a.io", path), wanted, "{path}");
    }
    let Some(Routing::Http(routes)) = table.port(80).and_then(|p| p.listener("a.io")?.routing("a.io")) else {
        panic!("HTTP")
    };
    let pairs = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(name, value)| (Name::new(name), Name::new(value))).collect::<Vec<_>>()
    };
    let incoming = TracedRequest {
        method: "GET".into(),
        host: "a.io".into(),
        path: "/".into(),
        headers: pairs(&[
            ("Authorization", "x"),
            ("Connection", "close, authorization"),
            ("X-Real-IP", "10.0.0.1"),
            ("X-Forwarded-For", "10.0.0.1"),
        ]),
        client: Some("192.0.2.7".parse().unwrap()),
        ..TracedRequest::default()
    };
    let trace = trace(
        Some(routes),
        &incoming,
        &Arrival { scheme: Scheme::Https, port: Some(80) },
        &EdgeSettings::default(),
    );
    assert_eq!(target(&trace.outcome.backends[0].to), "app");
    let wanted = [
        ("x-forwarded-for", "192.0.2.7"),
        ("x-forwarded-proto", "https"),
        ("x-real-ip", "192.0.2.7"),
        ("forwarded", r#"for="192.0.2.7:0";host="a.io";proto=https"#),
        ("x-forwarded-host", "a.io"),
    ];
    assert_eq!(trace.outcome.headers, pairs(&wanted));
    let why: Vec<&str> =
        trace.why.iter().filter(|s| s.rule == "headers").map(|s| s.detail.as_str()).collect();
    assert_eq!(
        why,
        [
            "Authorization is hop-by-hop: neither matched nor forwarded",
            "Connection is hop-by-hop: neither matched nor forwarded",
            "X-Real-IP is removed: the client is not a trusted proxy",
            "X-Forwarded-For is removed: the client is not a trusted proxy",
        ]
    );
}

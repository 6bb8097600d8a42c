//! Conditions of routes and gateways, as the watches bring objects and as what these name comes and goes.

use serde_json::json;

use super::*;
use crate::certificate_watches::CertificateData;

const TIME: Timestamp = Timestamp::UNIX_EPOCH;

fn listed() -> StatusReconciler {
    let mut reconciler = StatusReconciler::new(AssignedAddresses::Services);
    for kind in KINDS.into_iter().chain(ObjectKind::GATEWAY_API) {
        reconciler.apply(InformerEvent::ListStarted(kind));
        reconciler.apply(InformerEvent::ListCompleted(kind));
    }
    reconciler
}

fn object(name: &str, version: &str, spec: Value) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name, "uid": "u", "generation": 3, "resourceVersion": version},
        "spec": spec})
}

fn put(reconciler: &mut StatusReconciler, kind: ObjectKind, object: Value) {
    reconciler.apply(InformerEvent::Applied(kind, serde_json::from_value(object).unwrap()));
}

/// What is written about everything that waits, as if the writes succeeded.
fn written(reconciler: &mut StatusReconciler) -> Vec<StatusWrite> {
    let mut all = Vec::new();
    while let Some((key, work)) = reconciler.next(Instant::now(), TIME) {
        reconciler.done(key, Ok(Value::Null), Instant::now());
        all.push(work);
    }
    all
}

/// Status and reason of the three conditions.
fn said(work: &StatusWrite) -> Vec<String> {
    let conditions = work.patch["status"]["conditions"].as_array().unwrap();
    let ours = [ACCEPTED, RESOLVED_REFS, PROGRAMMED];
    let ours = conditions.iter().filter(|condition| ours.iter().any(|name| condition["type"] == *name));
    let text = |condition: &Value, field: &str| condition[field].as_str().unwrap().to_owned();
    ours.map(|c| format!("{} {} {}", text(c, "type"), text(c, "status"), text(c, "reason"))).collect()
}

fn events(work: &StatusWrite) -> Vec<String> {
    let text = |event: &Value, field: &str| event[field].as_str().unwrap().to_owned();
    work.events.iter().map(|e| format!("{} {}", text(e, "type"), text(e, "reason"))).collect()
}

fn route(backend: Option<&str>) -> Value {
    let mut rule = json!({"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": {}});
    if let Some(name) = backend {
        rule["default"]["backendRefs"] = json!([{"kind": "MeshService", "name": name}]);
    }
    json!({"targetRef": {"kind": "Mesh"},
        "to": [{"targetRef": {"kind": "MeshService", "name": "b"}, "rules": [rule]}]})
}

fn service(reconciler: &mut StatusReconciler, name: &str) {
    let spec = json!({"ports": [{"port": 80, "appProtocol": "http"}]});
    put(reconciler, ObjectKind::Service, object(name, "1", spec));
}

#[test]
fn a_good_policy_is_told_so_once_and_without_an_event() {
    let mut reconciler = listed();
    service(&mut reconciler, "b");
    put(&mut reconciler, ObjectKind::MeshHttpRoute, object("r", "7", route(None)));
    let work = written(&mut reconciler).remove(0);
    assert!(work.path.starts_with("/apis/zoneward.dev/v1alpha1/namespaces/shop/meshhttproutes/r/status"));
    assert_eq!(work.patch["metadata"]["resourceVersion"], "7");
    assert_eq!(
        said(&work),
        ["Accepted True Valid", "ResolvedRefs True ResolvedRefs", "Programmed True Programmed"]
    );
    assert_eq!(work.events, [json!(null); 0]);
    let mut stored = object("r", "8", route(None));
    stored["status"] = work.patch["status"].clone();
    put(&mut reconciler, ObjectKind::MeshHttpRoute, stored);
    assert_eq!(written(&mut reconciler), [], "what is there is not written again");
}

#[test]
fn a_missing_service_is_told_and_so_is_its_coming() {
    let mut reconciler = listed();
    service(&mut reconciler, "b");
    put(&mut reconciler, ObjectKind::MeshHttpRoute, object("r", "7", route(Some("lost"))));
    let work = written(&mut reconciler).remove(0);
    assert_eq!(
        said(&work),
        ["Accepted True Valid", "ResolvedRefs False BackendNotFound", "Programmed True Programmed"]
    );
    assert_eq!(events(&work), ["Warning BackendNotFound"]);
    let conditions = &work.patch["status"]["conditions"];
    assert_eq!(
        conditions[1]["message"],
        "spec.to[0].rules[0].default.backendRefs[0]: Service shop/lost does not exist: create it, or correct the name"
    );
    assert!(conditions[2]["message"].as_str().unwrap().ends_with("get status 500"), "{conditions}");
    let mut stored = object("r", "8", route(Some("lost")));
    stored["status"] = work.patch["status"].clone();
    put(&mut reconciler, ObjectKind::MeshHttpRoute, stored);
    assert_eq!(written(&mut reconciler), []);
    service(&mut reconciler, "lost");
    let work = written(&mut reconciler).remove(0);
    assert_eq!(said(&work)[1], "ResolvedRefs True ResolvedRefs");
    assert_eq!(events(&work), ["Normal ResolvedRefs"]);
}

#[test]
fn absence_says_nothing_before_services_were_listed() {
    let mut reconciler = StatusReconciler::new(AssignedAddresses::Services);
    reconciler.apply(InformerEvent::ListStarted(ObjectKind::MeshHttpRoute));
    put(&mut reconciler, ObjectKind::MeshHttpRoute, object("r", "7", route(None)));
    reconciler.apply(InformerEvent::ListCompleted(ObjectKind::MeshHttpRoute));
    reconciler.apply(InformerEvent::Failed(ObjectKind::Service, "the API is away".to_owned()));
    assert_eq!(written(&mut reconciler), []);
    reconciler.apply(InformerEvent::ListStarted(ObjectKind::Service));
    service(&mut reconciler, "b");
    reconciler.apply(InformerEvent::ListCompleted(ObjectKind::Service));
    assert_eq!(said(&written(&mut reconciler)[0])[1], "ResolvedRefs True ResolvedRefs");
}

#[test]
fn a_policy_whose_destination_is_missing_is_not_programmed() {
    let mut reconciler = listed();
    put(&mut reconciler, ObjectKind::MeshHttpRoute, object("r", "7", route(None)));
    let work = written(&mut reconciler).remove(0);
    assert_eq!(
        said(&work),
        ["Accepted True Valid", "ResolvedRefs False TargetNotFound", "Programmed False TargetNotFound"]
    );
}

#[test]
fn a_gateway_waits_for_its_secrets_and_says_what_is_wrong_with_them() {
    let mut reconciler = listed();
    let listener = json!({"name": "https", "port": 443, "protocol": "HTTPS", "tls": {"certificateRef": {"name": "cert"}}});
    put(&mut reconciler, ObjectKind::MeshGateway, object("edge", "7", json!({"listeners": [listener]})));
    let key = ObjectKey::new(&"shop".into(), &"cert".into());
    assert_eq!(reconciler.take_wanted_certificates(), Some([(CertificateKind::Secret, key.clone())].into()));
    assert_eq!(written(&mut reconciler), [], "absence says nothing before it was looked at");
    reconciler.put_certificate(CertificateUpdate::missing(&(CertificateKind::Secret, key.clone())));
    let work = written(&mut reconciler).remove(0);
    assert_eq!(
        said(&work),
        [
            "Accepted True Valid",
            "ResolvedRefs False InvalidCertificateRef",
            "Programmed False ListenersNotValid"
        ]
    );
    assert_eq!(events(&work), ["Warning InvalidCertificateRef", "Warning ListenersNotValid"]);
    reconciler
        .put_certificate(CertificateUpdate::unreadable(&(CertificateKind::Secret, key.clone()), "forbidden"));
    assert_eq!(said(&written(&mut reconciler)[0])[1], "ResolvedRefs Unknown SecretNotReadable");
    let pair = xds::render::PemKeyPair { chain: Box::default(), key: Box::default() };
    let data = Ok(CertificateData::KeyPair(pair.into()));
    reconciler.put_certificate(CertificateUpdate { key: (CertificateKind::Secret, key), data, source: None });
    assert_eq!(
        said(&written(&mut reconciler)[0])[1..],
        ["ResolvedRefs True ResolvedRefs", "Programmed True Programmed"]
    );
}

#[test]
fn an_invalid_policy_is_told_field_and_reason_and_others_conditions_stay() {
    let mut reconciler = listed();
    let mut spec = route(None);
    spec["to"][0]["rules"][0]["matches"][0]["path"] = json!({"type": "RegularExpression", "value": "("});
    let mut bad = object("r", "7", spec);
    let other = json!({"type": "Seen", "status": "True"});
    let before = json!({"type": ACCEPTED, "status": "False", "reason": "Invalid", "message": "old",
        "observedGeneration": 2, "lastTransitionTime": "2026-01-01T00:00:00Z"});
    bad["status"] = json!({"conditions": [other, before]});
    put(&mut reconciler, ObjectKind::MeshHttpRoute, bad);
    let work = written(&mut reconciler).remove(0);
    let conditions = work.patch["status"]["conditions"].as_array().unwrap();
    assert_eq!((conditions.len(), &conditions[0]["type"]), (4, &json!("Seen")));
    let message = conditions[1]["message"].as_str().unwrap();
    assert!(message.starts_with("spec.to[0].rules[0].matches[0].path.value: "), "{message}");
    assert_eq!(conditions[1]["lastTransitionTime"], "2026-01-01T00:00:00Z", "it did not turn");
    assert_eq!(
        said(&work),
        ["Accepted False Invalid", "ResolvedRefs Unknown Invalid", "Programmed False Invalid"]
    );
    assert_eq!(work.events[0]["involvedObject"]["apiVersion"], "zoneward.dev/v1alpha1");
    assert_eq!(events(&work)[0], "Warning Malformed");
}

#[test]
fn a_rule_that_no_request_can_hit_is_told_with_the_other_one() {
    let mut reconciler = listed();
    service(&mut reconciler, "b");
    let mut spec = route(None);
    let same = spec["to"][0]["rules"][0].clone();
    spec["to"][0]["rules"].as_array_mut().unwrap().push(same);
    put(&mut reconciler, ObjectKind::MeshHttpRoute, object("r", "7", spec));
    let work = written(&mut reconciler).remove(0);
    assert_eq!(said(&work)[0], "Accepted True Valid");
    let message = work.patch["status"]["conditions"][0]["message"].as_str().unwrap();
    assert!(message.contains("spec.to[0].rules[1] has the same matches as spec.to[0].rules[0]"), "{message}");
    assert_eq!(events(&work), ["Warning RuleNeverMatches"]);
}

#[test]
fn a_refused_write_is_tried_again_unless_the_object_changed() {
    let mut reconciler = listed();
    service(&mut reconciler, "b");
    let now = Instant::now();
    put(&mut reconciler, ObjectKind::MeshHttpRoute, object("r", "7", route(None)));
    let (key, _) = reconciler.next(now, TIME).unwrap();
    put(&mut reconciler, ObjectKind::MeshHttpRoute, object("r", "8", route(None)));
    assert!(reconciler.next(now, TIME).is_none(), "one write at a time for one object");
    reconciler.done(key.clone(), Err(kube::Error::Service("away".into())), now);
    let (_, work) = reconciler.next(now, TIME).unwrap();
    assert_eq!(work.patch["metadata"]["resourceVersion"], "8", "the newer version is the one to judge");
    reconciler.done(key, Err(kube::Error::Service("away".into())), now);
    assert!(reconciler.next(now, TIME).is_none() && reconciler.has_backoff());
    assert!(reconciler.next(now + BACKOFF, TIME).is_some());
}

fn standard(kind: GatewayApiKind, name: &str, generation: i64, spec: Value) -> (ObjectKind, Value) {
    let mut metadata = json!({"name": name, "generation": generation, "resourceVersion": generation.to_string(),
        "creationTimestamp": "2026-11-01T00:00:00Z"});
    if kind != GatewayApiKind::Class {
        metadata["namespace"] = "shop".into();
    }
    (ObjectKind::GatewayApi(kind), json!({"metadata": metadata, "spec": spec}))
}

fn http_route(name: &str, generation: i64, backend: &str) -> (ObjectKind, Value) {
    let kind = GatewayApiKind::Route(model::gateway_api::RouteKind::Http);
    standard(
        kind,
        name,
        generation,
        json!({"parentRefs": [{"name": "edge"}], "hostnames": [format!("{name}.example.com")],
            "rules": [{"backendRefs": [{"name": backend, "port": 80}]}]}),
    )
}

/// What is written about the Gateway API, as the API would answer it.
fn written_standard(reconciler: &mut StatusReconciler) -> Vec<StatusWrite> {
    let mut all = Vec::new();
    while let Some((key, work)) = reconciler.next(Instant::now(), TIME) {
        let mut answer = work.patch.clone();
        answer["metadata"]["name"] = key.1.name.as_str().into();
        answer["metadata"]["namespace"] = key.1.namespace.as_str().into();
        reconciler.done(key, Ok(answer), Instant::now());
        all.push(work);
    }
    all
}

#[test]
fn one_change_among_ten_thousand_routes_is_one_status() {
    let mut reconciler = listed();
    let class = standard(GatewayApiKind::Class, "c", 1, json!({"controllerName": "zoneward.dev/gateway"}));
    let gateway = standard(
        GatewayApiKind::Gateway,
        "edge",
        1,
        json!({"gatewayClassName": "c", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}),
    );
    let web = json!({"spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]},
        "metadata": {"name": "web", "namespace": "shop"}});
    let routes = (0..10_000).map(|i| http_route(&format!("r{i}"), 1, "web"));
    for (kind, object) in [class, gateway, (ObjectKind::Service, web)].into_iter().chain(routes) {
        put(&mut reconciler, kind, object);
    }
    assert_eq!(reconciler.take_wanted_certificates(), Some(BTreeSet::new()));
    let first = written_standard(&mut reconciler);
    assert_eq!(first.len(), 10_002, "the class, the Gateway and every route");
    assert!(first.iter().any(|work| work.patch["status"]["listeners"][0]["attachedRoutes"] == 10_000));
    let (kind, object) = http_route("r7", 2, "other");
    put(&mut reconciler, kind, object);
    assert!(reconciler.standard.len() <= 2, "the route and its Gateway: {:?}", reconciler.standard);
    let second = written_standard(&mut reconciler);
    assert_eq!(second.len(), 1);
    assert!(second[0].path.contains("/httproutes/r7/status"), "{}", second[0].path);
    let other = json!({"spec": {"clusterIP": "10.0.0.2", "ports": [{"port": 80}]},
        "metadata": {"name": "other", "namespace": "shop"}});
    put(&mut reconciler, ObjectKind::Service, other);
    assert_eq!(written_standard(&mut reconciler).len(), 1, "one route has this backend");
    let (kind, object) = http_route("r7", 2, "other");
    put(&mut reconciler, kind, object);
    assert_eq!(
        written_standard(&mut reconciler).len(),
        1,
        "a status that another writer removed is written again"
    );
    assert_eq!(written_standard(&mut reconciler).len(), 0);
}

/// The object of a write with another version and another writer's condition.
fn changed_by_another(generation: i64, version: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": "r", "generation": generation, "resourceVersion": version},
        "status": {"conditions": [{"type": "Seen", "status": "True"}],
            "parents": [{"controllerName": "example.com/other", "parentRef": {"name": "edge"}}]}})
}

#[test]
fn after_a_conflict_the_status_is_planned_from_the_newest_object() {
    let mut reconciler = listed();
    service(&mut reconciler, "b");
    let now = Instant::now();
    put(&mut reconciler, ObjectKind::MeshHttpRoute, object("r", "7", route(None)));
    let (key, _) = reconciler.next(now, TIME).unwrap();
    reconciler.conflicted(key.clone(), Ok(changed_by_another(3, "9")), now);
    let (_, work) = reconciler.next(now, TIME).expect("at once, without an event of the watch");
    assert_eq!(work.patch["metadata"]["resourceVersion"], "9");
    assert_eq!(work.patch["status"]["conditions"][0]["type"], "Seen", "the other writer's condition stays");
    // Its answer is another conflict, with a new specification that the watch has not brought yet.
    reconciler.conflicted(key.clone(), Ok(changed_by_another(4, "10")), now);
    assert!(reconciler.next(now, TIME).is_none() && !reconciler.has_backoff(), "waits for the watch");
    let mut newer = object("r", "10", route(None));
    newer["metadata"]["generation"] = 4.into();
    put(&mut reconciler, ObjectKind::MeshHttpRoute, newer);
    for version in 11..16 {
        let (key, _) = reconciler.next(now, TIME).expect("planned again");
        reconciler.conflicted(key, Ok(changed_by_another(4, &version.to_string())), now);
        if reconciler.has_backoff() {
            break;
        }
    }
    assert!(
        reconciler.next(now, TIME).is_none() && reconciler.has_backoff(),
        "two writers do not race forever"
    );
    assert!(reconciler.next(now + BACKOFF, TIME).is_some());
    reconciler.conflicted(key, Ok(Value::Null), now);
    assert!(reconciler.next(now, TIME).is_none() && !reconciler.has_backoff(), "deleted");
}

#[test]
fn a_conflict_of_a_standard_route_keeps_the_entries_of_other_controllers() {
    let mut reconciler = listed();
    let class = standard(GatewayApiKind::Class, "c", 1, json!({"controllerName": "zoneward.dev/gateway"}));
    let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    let gateway = standard(
        GatewayApiKind::Gateway,
        "edge",
        1,
        json!({"gatewayClassName": "c", "listeners": listeners}),
    );
    for (kind, object) in [class, gateway] {
        put(&mut reconciler, kind, object);
    }
    assert_eq!(reconciler.take_wanted_certificates(), Some(BTreeSet::new()));
    written_standard(&mut reconciler);
    let (kind, object) = http_route("r", 1, "web");
    put(&mut reconciler, kind, object);
    let mut found = Vec::new();
    while let Some((key, work)) = reconciler.next(Instant::now(), TIME) {
        match (work.path.contains("/httproutes/"), found.is_empty()) {
            (true, true) => reconciler.conflicted(key, Ok(changed_by_another(1, "77")), Instant::now()),
            _ => reconciler.done(key, Ok(Value::Null), Instant::now()),
        }
        found.extend(work.path.contains("/httproutes/").then_some(work));
    }
    let [_, again] = &found[..] else { panic!("{found:?}") };
    assert_eq!(again.patch["metadata"]["resourceVersion"], "77");
    let owners: Vec<&Value> =
        again.patch["status"]["parents"].as_array().unwrap().iter().map(|p| &p["controllerName"]).collect();
    assert_eq!(owners, ["example.com/other", "zoneward.dev/gateway"]);
}

//! Tests of backends: hints, Require and Spill seen from a zone, and subsets by tags.

use fixtures::object;
use model::{Interner, Labels, Name, Protocol, ServiceKey, parse};
use serde_json::{Value, json};

use super::*;

/// Endpoints as (pod, zone, version), in one slice with these annotations and hints for their own zones. The Service asks
/// for the mechanism.
fn world(annotations: Value, hinted: bool, endpoints: &[(&str, &str, &str)]) -> Snapshot {
    let mut objects = vec![json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "ns", "name": "web", "annotations":
            {"zoneward.dev/traffic-distribution": annotations["zoneward.dev/mechanism"].as_str().unwrap_or_default()}},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"name": "http", "port": 80}]}})];
    let mut listed = Vec::new();
    for (i, (pod, zone, version)) in endpoints.iter().enumerate() {
        objects.push(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "ns", "name": pod, "labels": {"version": version}}}));
        let mut endpoint = json!({"addresses": [format!("10.1.0.{}", i + 1)], "zone": zone, "nodeName": format!("n-{zone}"),
            "targetRef": {"kind": "Pod", "name": pod, "namespace": "ns"}});
        if hinted {
            endpoint["hints"] = json!({"forZones": [{"name": zone}]});
        }
        listed.push(endpoint);
    }
    objects.push(fixtures::with(
        fixtures::slice("ns", "web-1", "web", json!({"name": "http", "port": 8080}), &listed),
        &json!({"metadata": {"annotations": annotations}}),
    ));
    fixtures::snapshot(&objects)
}

fn is_near(endpoint: &BackendEndpoint) -> bool {
    matches!(endpoint.locality, Locality::SameNode | Locality::SameZone)
}

fn seen(snapshot: &Snapshot, zone: &str, tags: &[(&str, &str)]) -> (String, &'static str) {
    let service = ServiceKey::new(&"ns".into(), &"web".into());
    let id = BackendId {
        service,
        port: 80,
        protocol: Protocol::Tcp,
        tags: tags.iter().copied().collect::<Labels>(),
    };
    let place = ConsumerLocation { node: Name::new(&format!("n-{zone}")), zone: Some(Name::new(zone)) };
    let backend = backend(snapshot, &id, &place, FeatureGates::ALL, None).unwrap();
    let text = backend
        .endpoints
        .iter()
        .map(|e| format!("{}x{:.2}{}", e.address.ip(), e.weight, if is_near(e) { "!" } else { "" }));
    (text.collect::<Vec<_>>().join(" "), backend.mode)
}

const THREE: &[(&str, &str, &str)] = &[("p1", "a", "v1"), ("p2", "b", "v1"), ("p3", "b", "v2")];

#[test]
fn hints_keep_requests_in_the_zone_and_a_subset_counts_for_itself() {
    let snapshot = world(json!({}), true, THREE);
    assert_eq!(seen(&snapshot, "a", &[]), ("10.1.0.1x1.00!".to_owned(), "same-zone"));
    assert_eq!(seen(&snapshot, "b", &[("version", "v2")]), ("10.1.0.3x1.00!".to_owned(), "same-zone"));
    assert_eq!(
        seen(&snapshot, "a", &[("version", "v2")]),
        ("10.1.0.3x1.00".to_owned(), "all"),
        "no canary near"
    );
    assert_eq!(seen(&snapshot, "a", &[("version", "v3")]), (String::new(), ""));
}

#[test]
fn require_holds_for_subsets_too() {
    let snapshot = world(json!({"zoneward.dev/mechanism": "RequireZone"}), true, THREE);
    assert_eq!(seen(&snapshot, "b", &[]).0, "10.1.0.2x1.00! 10.1.0.3x1.00!");
    assert_eq!(seen(&snapshot, "a", &[("version", "v2")]).0, "", "never leaves the zone");
}

fn seen_later(snapshot: &Snapshot, zone: &str) -> Vec<String> {
    let service = ServiceKey::new(&"ns".into(), &"web".into());
    let id = BackendId { service, port: 80, protocol: Protocol::Tcp, tags: Labels::EMPTY };
    let place = ConsumerLocation { node: Name::new(&format!("n-{zone}")), zone: Some(Name::new(zone)) };
    let fallbacks = fallbacks(snapshot, &id, &place, FeatureGates::ALL, None);
    let text = |b: &Backend| {
        let addresses: Vec<String> = b.endpoints.iter().map(|e| e.address.ip().to_string()).collect();
        format!("{}: {}", b.mode, addresses.join(" "))
    };
    fallbacks.iter().map(text).collect()
}

#[test]
fn behind_a_preference_stands_what_would_be_chosen_without_it() {
    let snapshot = world(json!({}), true, THREE);
    assert_eq!(seen_later(&snapshot, "a"), ["all: 10.1.0.2 10.1.0.3"]);
    assert_eq!(seen_later(&snapshot, "b"), ["all: 10.1.0.1"]);
    assert_eq!(seen_later(&snapshot, "c"), [""; 0], "everything is chosen already");
}

#[test]
fn behind_a_rule_stands_nothing() {
    let required = world(json!({"zoneward.dev/mechanism": "RequireZone"}), true, THREE);
    assert_eq!(seen_later(&required, "a"), [""; 0]);
    let annotations = json!({"zoneward.dev/mechanism": "Spill", "zoneward.dev/demand": "a=128,b=128"});
    assert_eq!(seen_later(&world(annotations, false, THREE), "a"), [""; 0]);
}

#[test]
fn spill_weighs_endpoints() {
    let annotations = json!({"zoneward.dev/mechanism": "Spill", "zoneward.dev/demand": "a=128,b=128"});
    let snapshot = world(annotations, false, THREE);
    assert_eq!(seen(&snapshot, "a", &[]), ("10.1.0.1x2.00! 10.1.0.2x0.50 10.1.0.3x0.50".to_owned(), "spill"));
}

#[test]
fn zones_are_tags_by_topology() {
    let snapshot = world(json!({}), false, THREE);
    assert_eq!(
        seen(&snapshot, "a", &[("topology.kubernetes.io/zone", "b")]).0,
        "10.1.0.2x1.00 10.1.0.3x1.00"
    );
}

#[test]
fn an_endpoint_without_a_pod_has_the_tags_of_its_slice() {
    let mut snapshot = world(json!({}), false, THREE);
    let slice = |name: &str, address: &str, version: &str| {
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"namespace": "ns", "name": name,
                "labels": {"kubernetes.io/service-name": "web", "version": version}},
            "ports": [{"name": "http", "port": 8080}], "endpoints": [{"addresses": [address]}]})
    };
    for value in [slice("web-2", "10.1.0.8", "v2"), slice("web-3", "10.1.0.9", "v3")] {
        snapshot.apply(object(&value));
    }
    assert_eq!(seen(&snapshot, "a", &[("version", "v2")]).0, "10.1.0.3x1.00 10.1.0.8x1.00");
    assert_eq!(seen(&snapshot, "a", &[("version", "v3")]).0, "10.1.0.9x1.00");
}

#[test]
fn a_backend_whose_port_is_gone_is_left_out() {
    let snapshot = world(json!({}), false, THREE);
    let id = |port| BackendId {
        service: ServiceKey::new(&"ns".into(), &"web".into()),
        port,
        protocol: Protocol::Tcp,
        tags: Labels::EMPTY,
    };
    let found = |port| backend(&snapshot, &id(port), &ConsumerLocation::default(), FeatureGates::ALL, None);
    assert!(found(80).is_some_and(|backend| backend.protocol == AppProtocol::Http));
    assert_eq!(found(81), None);
}

/// Addresses with priority and weight, as a proxy in `zone` uses them by these localities.
fn by_localities(snapshot: &Snapshot, zone: &str, localities: Value) -> (String, &'static str) {
    let policy = json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshLoadBalancing",
        "metadata": {"namespace": "ns", "name": "p"}, "spec": {"to": [
            {"targetRef": {"kind": "MeshService", "name": "web"}, "default": {"localities": localities}}]}});
    let (object, notices) = parse::object(&policy, &mut Interner::default());
    assert_eq!(notices, []);
    let Some(model::Object::MeshLoadBalancing(policy)) = object else { panic!("a policy") };
    let place = ConsumerLocation { node: Name::new(&format!("n-{zone}")), zone: Some(Name::new(zone)) };
    let rule = policy.to[0].settings.locality_rule(Some(zone));
    let service = ServiceKey::new(&"ns".into(), &"web".into());
    let id = BackendId { service, port: 80, protocol: Protocol::Tcp, tags: Labels::EMPTY };
    let gates = FeatureGates::ALL;
    if rule.is_some() {
        let is_bound = backend(snapshot, &id, &place, gates, rule).unwrap().mode == "require";
        assert!(
            is_bound || fallbacks(snapshot, &id, &place, gates, rule).is_empty(),
            "priorities of its own"
        );
    }
    let backend = backend(snapshot, &id, &place, gates, rule).unwrap();
    let last = |e: &BackendEndpoint| e.address.ip().to_string().rsplit('.').next().unwrap().to_owned();
    let text = backend.endpoints.iter().map(|e| format!("{}@{}x{:.2}", last(e), e.priority, e.weight));
    (text.collect::<Vec<_>>().join(" "), backend.mode)
}

#[test]
fn localities_of_a_policy_replace_the_preferences_of_the_service() {
    let snapshot =
        world(json!({}), true, &[("p1", "a", "v"), ("p2", "b", "v"), ("p3", "b", "v"), ("p4", "c", "v")]);
    let weights = json!([{"from": ["a"], "priorities": [
        {"zones": [{"name": "a", "weight": 3}, {"name": "b", "weight": 1}]}, {"zones": [{"type": "Other"}]}]}]);
    assert_eq!(
        by_localities(&snapshot, "a", weights.clone()),
        ("1@0x3.00 2@0x0.50 3@0x0.50 4@1x1.00".to_owned(), "localities")
    );
    assert_eq!(by_localities(&snapshot, "b", weights).1, "same-zone", "no rule is for its zone");
    let near = json!([{"priorities": [{"zones": [{"type": "Same"}]}, {"zones": [{"name": "c"}]}]}]);
    assert_eq!(by_localities(&snapshot, "b", near.clone()).0, "2@0x0.50 3@0x0.50 4@1x1.00", "a gets nothing");
    assert_eq!(by_localities(&snapshot, "c", near.clone()).0, "4@0x1.00", "a name counts before Same");
    assert_eq!(
        by_localities(&snapshot, "d", near).0,
        "4@0x1.00",
        "priorities without endpoints are left out"
    );
    let nowhere = json!([{"priorities": [{"zones": [{"name": "d"}]}]}]);
    assert_eq!(by_localities(&snapshot, "a", nowhere), (String::new(), ""));
}

#[test]
fn require_comes_before_the_localities_of_a_policy_and_spill_after_them() {
    let far = json!([{"priorities": [{"zones": [{"name": "b"}]}]}]);
    let required = world(json!({"zoneward.dev/mechanism": "RequireZone"}), true, THREE);
    assert_eq!(by_localities(&required, "a", far.clone()), ("1@0x1.00".to_owned(), "require"));
    let annotations = json!({"zoneward.dev/mechanism": "Spill", "zoneward.dev/demand": "a=128,b=128"});
    let spill = world(annotations, false, THREE);
    assert_eq!(by_localities(&spill, "a", far), ("2@0x0.50 3@0x0.50".to_owned(), "localities"));
}

#[test]
fn a_drained_zone_gives_its_traffic_to_the_next_priority() {
    let mut snapshot = world(json!({}), false, THREE);
    let mut slice = snapshot.slices(&ServiceKey::new(&"ns".into(), &"web".into()))[0].clone();
    let drained_by_zone = vec![(Name::new("a"), 1_000)];
    slice.shares = Some(Box::new(model::EndpointShares { capacities: Vec::new(), drained_by_zone }));
    snapshot.apply(model::Object::Slice(Box::new(slice)));
    let rule = json!([{"priorities": [{"zones": [{"name": "a"}]}, {"zones": [{"name": "b"}]}]}]);
    assert_eq!(by_localities(&snapshot, "a", rule).0, "2@0x1.00 3@0x1.00");
}

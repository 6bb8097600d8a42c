//! Validation of the cases of the vectors and of arbitrary JSON.

use apimachinery::validate::{is_known, validate, validate_update};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Good objects of every kind, with every field that has a rule.
fn good_objects() -> Vec<Value> {
    let meta = |name: &str| {
        json!({
            "name": name, "uid": "5d0c1f4e-9a4b-4d0a-8f5e-0123456789ab", "labels": {"app": "web"},
            "annotations": {"example.com/note": "text"}, "finalizers": ["example.com/keep"],
            "creationTimestamp": "2026-11-15T10:00:00Z",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "1"}],
        })
    };
    let mut balancer = json!({"apiVersion": "v1", "kind": "Service", "metadata": meta("web"), "spec": {
        "type": "LoadBalancer", "selector": {"app": "web"},
        "ports": [
            {"name": "http", "port": 80, "targetPort": "http", "nodePort": 30_080, "appProtocol": "http"},
            {"name": "dns", "port": 53, "targetPort": 5353, "nodePort": 30_053, "protocol": "UDP"},
        ],
        "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"],
        "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack",
        "externalIPs": ["192.0.2.1"], "loadBalancerSourceRanges": ["10.0.0.0/8"],
        "loadBalancerClass": "example.com/inside", "allocateLoadBalancerNodePorts": true,
        "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10}},
        "internalTrafficPolicy": "Cluster", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30_500,
        "trafficDistribution": "PreferSameZone", "publishNotReadyAddresses": false,
    }});
    balancer["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.9", "ipMode": "VIP"}]}});
    vec![
        balancer,
        json!({"apiVersion": "v1", "kind": "Service", "metadata": meta("docs"),
            "spec": {"type": "ExternalName", "externalName": "example.com"}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta("web-1"),
        "addressType": "IPv4", "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
        "endpoints": [{
            "addresses": ["10.1.2.3"], "hostname": "pod-1", "nodeName": "node-a1", "zone": "zone-a",
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "targetRef": {"kind": "Pod", "namespace": "shop", "name": "web-0", "uid": "1"},
            "hints": {"forZones": [{"name": "zone-a"}], "forNodes": [{"name": "node-a1"}]},
        }]}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta("web-0"),
            "spec": {"nodeName": "node-a1", "hostname": "web-0", "subdomain": "web",
                "containers": [{"name": "web", "image": "i", "ports": [{"name": "http", "containerPort": 8080}]}],
                "initContainers": [{"name": "side", "image": "i", "restartPolicy": "Always"}]},
            "status": {"phase": "Running", "podIP": "10.1.0.5", "podIPs": [{"ip": "10.1.0.5"}],
                "conditions": [{"type": "Ready", "status": "True"}]}}),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": meta("node-a1"),
            "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"],
                "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]},
            "status": {"allocatable": {"cpu": "4"}, "addresses": [{"type": "InternalIP", "address": "192.168.1.1"}],
                "conditions": [{"type": "Ready", "status": "True"}]}}),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": meta("shop")}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": meta("kubernetes"),
            "spec": {"cidrs": ["10.96.0.0/16", "fd00:10:96::/112"]}}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": meta("10.96.0.1"),
            "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "shop", "name": "web"}}}),
    ]
}

#[test]
fn good_objects_of_every_kind_are_accepted_and_can_be_read() {
    for object in good_objects() {
        assert!(is_known(&object), "{object}");
        assert_eq!(validate(&object), []);
        assert_eq!(validate_update(&object, &object), []);
        let (parsed, notices) = model::parse::object(&object, &mut model::Interner::default());
        assert!(parsed.is_some() && notices.is_empty(), "{notices:?}");
    }
}

#[test]
fn other_kinds_are_not_ours_to_judge() {
    for other in [
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "Not A Name"}}),
        json!({"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {}}),
        json!({"kind": 5}),
        json!({}),
        json!([1, 2]),
        json!(null),
    ] {
        assert!(!is_known(&other), "{other}");
        assert_eq!(validate(&other), []);
        assert_eq!(validate_update(&good_objects()[0], &other), []);
    }
}

#[test]
fn the_rules_for_service_cidrs_are_those_of_the_vectors() {
    let file: Value = serde_json::from_str(include_str!("../../../vectors/ip-allocation.json")).unwrap();
    let range = |spec: &Value| json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "test"}, "spec": spec});
    let mut count = 0;
    for case in file["vectors"].as_array().unwrap() {
        let input = &case["input"];
        let violations = match case["kind"].as_str().unwrap() {
            "servicecidr-create-validation" => validate(&range(&input["spec"])),
            "servicecidr-update-validation" => validate_update(&range(&input["old"]), &range(&input["new"])),
            _ => continue,
        };
        let valid = case["expect"]["valid"].as_bool().unwrap();
        assert_eq!(violations.is_empty(), valid, "{}: {violations:?}", case["id"]);
        count += 1;
    }
    assert_eq!(count, 5, "the file has changed: look whether all its cases are still run");
}

/// Texts that look like what belongs somewhere, so that rules behind the type checks are reached.
const TELLING: &[&str] = &[
    "",
    "None",
    "10.0.0.1",
    "fd00::1",
    "::ffff:1.2.3.4",
    "10.0.0.0/8",
    "::/0",
    "TCP",
    "Local",
    "a",
    "-",
    "/",
    ".",
    "ExternalName",
    "NodePort",
    "IPv4",
    "IPv6",
    "FQDN",
    "SingleStack",
    "True",
    "v1",
    "é",
    "4m",
];

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![proptest::sample::select(TELLING).prop_map(str::to_owned), any::<String>()]
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0..70_000i64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any_text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(any_text(), inner, 0..4)
                .prop_map(|map| map.into_iter().collect::<serde_json::Map<_, _>>().into()),
        ]
    })
}

/// Every place of a value, as JSON pointers; the whole is not one of them.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    let mut below = |step: String, value: &Value| {
        let place = format!("{at}/{}", step.replace('~', "~0").replace('/', "~1"));
        found.push(place.clone());
        places(value, &place, found);
    };
    match value {
        Value::Array(items) => items.iter().enumerate().for_each(|(i, v)| below(i.to_string(), v)),
        Value::Object(map) => map.iter().for_each(|(key, v)| below(key.clone(), v)),
        _ => {}
    }
}

fn spoilt() -> impl Strategy<Value = (Value, Value)> {
    let change = (any::<proptest::sample::Index>(), any_json());
    let changes = proptest::collection::vec(change, 1..4);
    (proptest::sample::select(good_objects()), changes).prop_map(|(good, changes)| {
        let mut bad = good.clone();
        for (place, value) in changes {
            let mut all = Vec::new();
            places(&bad, "", &mut all);
            if let Some(old) = (!all.is_empty()).then(|| place.get(&all)).and_then(|at| bad.pointer_mut(at)) {
                *old = value;
            }
        }
        (good, bad)
    })
}

fn check_violations(violations: &[apimachinery::validate::Violation]) {
    for violation in violations {
        assert!(!violation.field.is_empty() && !violation.reason.is_empty(), "{violation:?}");
        assert!(violation.reason.len() < 2_000, "{violation:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_object_makes_validation_fail((good, bad) in spoilt()) {
        check_violations(&validate(&bad));
        check_violations(&validate_update(&good, &bad));
        check_violations(&validate_update(&bad, &good));
    }

    #[test]
    fn no_json_makes_validation_fail(mut value in any_json(), kind in 0usize..8) {
        check_violations(&validate(&value));
        let good = &good_objects()[kind];
        if let Some(map) = value.as_object_mut() {
            map.insert("apiVersion".into(), good["apiVersion"].clone());
            map.insert("kind".into(), good["kind"].clone());
            check_violations(&validate(&value));
        }
    }
}

/// The cases of vectors/l7-routing.json that admission refuses.
#[test]
fn what_the_l7_cases_refuse_is_refused_by_field() {
    let file: Value = serde_json::from_str(include_str!("../../../vectors/l7-routing.json")).unwrap();
    let cases = file["cases"].as_array().unwrap().iter().filter(|case| case["kind"] == "validation");
    let mut count = 0;
    for case in cases {
        let resource = &case["resource"];
        let object = json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": resource["type"],
            "metadata": {"name": resource["name"], "namespace": "default"}, "spec": resource["spec"]});
        let fields: Vec<String> = validate(&object).into_iter().map(|violation| violation.field).collect();
        let wanted: Vec<&str> = case["violation_path"].as_str().into_iter().collect();
        assert_eq!(fields, wanted, "{}", case["id"]);
        count += 1;
    }
    assert!(count > 0, "the file has cases of validation");
}

//! Tests of parsing and of the Notices for invalid objects.

use expect_test::{Expect, expect};
use serde_json::json;

use super::*;

fn check(value: Value, expect: Expect) {
    let (object, notices) = object(&value, &mut Interner::default());
    let mut text = String::new();
    text += if object.is_some() { "parsed\n" } else { "absent\n" };
    for notice in notices {
        text += &format!("{notice}\n");
    }
    expect.assert_eq(&text);
}

#[test]
fn a_malformed_field_is_named_with_its_object() {
    check(
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {"ports": [{"port": 80}, {"port": 81, "protocol": "HTTP"}]}}),
        expect![[r#"
            absent
            Service default/web: Malformed: spec.ports[1].protocol: "HTTP" is not TCP, UDP or SCTP. The object is ignored until this is fixed.
        "#]],
    );
    check(
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"ports": [{"port": "eighty"}]}}),
        expect![[r#"
            absent
            Service shop/web: Malformed: spec.ports[0].port: invalid type: string "eighty", expected i32. The object is ignored until this is fixed.
        "#]],
    );
    check(
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "extra"},
            "spec": {"cidrs": ["not-a-cidr"]}}),
        expect![[r#"
            absent
            ServiceCIDR extra: Malformed: spec.cidrs[0]: "not-a-cidr" is not a CIDR, e.g. 10.96.0.0/16 or fd00::/112. The object is ignored until this is fixed.
        "#]],
    );
    check(
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "s"}, "endpoints": [{"addresses": ["fd00::1"]}]}),
        expect![[r#"
            absent
            EndpointSlice default/s: Malformed: endpoints[0].addresses[0]: "fd00::1" is not an IPv4 address. The object is ignored until this is fixed.
        "#]],
    );
}

#[test]
fn a_condition_without_a_time_does_not_lose_the_service() {
    for time in [json!(null), json!("2027-01-15T08:00:00Z")] {
        let untimed = json!({"type": "example.com/A", "status": "True", "reason": "R", "message": ""});
        let timed = json!({"type": "example.com/B", "status": "True", "reason": "R", "message": "",
            "lastTransitionTime": time});
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "status": {"conditions": [untimed, timed]}});
        check(
            service.clone(),
            expect![[r#"
            parsed
        "#]],
        );
        let (object, notices) = text("v1", "Service", &service.to_string(), &mut Interner::default());
        assert!(object.is_some() && notices.is_empty());
    }
}

#[test]
fn a_bad_source_range_does_not_lose_the_service() {
    check(
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {"loadBalancerSourceRanges": [" 10.0.0.0/8 ", "10.0.0.0/40"]}}),
        expect![[r#"
            parsed
            Service default/web: IgnoredField: spec.loadBalancerSourceRanges[1]: "10.0.0.0/40" is not a CIDR, e.g. 10.96.0.0/16 or fd00::/112. This entry is ignored; the rest of the object is used.
        "#]],
    );
}

#[test]
fn kinds_of_others_are_passed_over() {
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}});
    assert_eq!(object(&deployment, &mut Interner::default()), (None, Vec::new()));
    let knative =
        json!({"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "web"}});
    assert_eq!(object(&knative, &mut Interner::default()), (None, Vec::new()));
}

#[test]
fn amounts_without_quotes_are_amounts() {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
        "status": {"allocatable": {"cpu": 4, "memory": "8Gi"}}});
    let (Some(Object::Node(node)), notices) = object(&node, &mut Interner::default()) else { panic!() };
    assert_eq!((node.cpu_millis, notices), (Some(4_000), vec![]));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": 0.5}, "limits": {"cpu": 1}}}]}});
    assert!(
        matches!(object(&pod, &mut Interner::default()), (Some(Object::Pod(_)), notices) if notices.is_empty())
    );
}

#[test]
fn sidecars_offer_ports_and_plain_init_containers_do_not() {
    let value = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
    "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 80}]}],
    "initContainers": [
        {"name": "setup", "ports": [{"name": "setup", "containerPort": 1}]},
        {"name": "side", "restartPolicy": "Always", "ports": [{"name": "admin", "containerPort": 9}]},
    ]}});
    let (Some(Object::Pod(pod)), _) = object(&value, &mut Interner::default()) else { panic!() };
    let names: Vec<&str> = pod.ports().iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["http", "admin"]);
}

#[test]
fn text_of_a_list_item_that_names_no_kind_is_read_by_where_it_came_from() {
    let item = r#"{"metadata":{"name":"a","labels":{"topology.kubernetes.io/zone":"z"}}}"#;
    let (object, notices) = text("v1", "Node", item, &mut Interner::default());
    assert!(matches!(object, Some(Object::Node(node)) if node.zone.as_deref() == Some("z")));
    assert!(notices.is_empty());
}

#[test]
fn text_with_a_wrong_field_gets_the_same_notice_as_a_file() {
    let item = r#"{"metadata":{"name":"a","namespace":"n"},"spec":{"ports":[{"port":"x"}]}}"#;
    let (object, notices) = text("v1", "Service", item, &mut Interner::default());
    assert!(object.is_none());
    assert_eq!(notices[0].object.to_string(), "Service n/a");
    assert!(notices[0].message.contains("spec.ports[0].port"), "{}", notices[0].message);
}

#[test]
fn a_pod_read_lean_is_the_pod_read_whole() {
    let value = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"app": "web"}, "annotations": {"a": "b"},
            "deletionTimestamp": "2026-11-15T10:00:00Z", "managedFields": [{"manager": "m"}]},
        "spec": {"nodeName": "n1", "hostname": "h", "subdomain": "web", "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "B"}],
                "ports": [{"name": "http", "containerPort": 80}]}],
            "initContainers": [{"name": "s", "restartPolicy": "Always",
                "ports": [{"name": "admin", "containerPort": 81, "protocol": "UDP"}]}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-15T09:00:00Z"}]},
    });
    let whole = object(&value, &mut Interner::default());
    let lean = text("v1", "Pod", &value.to_string(), &mut Interner::default());
    assert!(matches!(whole.0, Some(Object::Pod(_))));
    assert_eq!(whole, lean);
}

//! Tests of slice plans as text.

mod ownership;
mod world;

use expect_test::expect;
use model::Labels;
use serde_json::json;
use world::World;

use super::*;

#[test]
fn a_dual_stack_service_has_slices_of_both_families() {
    let mut world = World::new(json!({"ipFamilies": ["IPv6", "IPv4"]}));
    world.pod("a", json!({}), json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00:0::1"}]}));
    world.pod("b", json!({}), json!({"podIPs": [{"ip": "10.0.0.2"}]}));
    world.check(expect![[r#"
        create IPv6 [http:8080/TCP] a@n1 fd00::1 ready serving
        create IPv4 [http:8080/TCP] a@n1 10.0.0.1 ready serving, b@n1 10.0.0.2 ready serving
    "#]]);
}

#[test]
fn a_pod_that_terminates_is_ready_only_where_not_ready_ones_are_published() {
    let terminating = json!({"metadata": {"deletionTimestamp": "2026-11-15T10:00:00Z"}});
    let mut world = World::new(json!({}));
    world.pod("a", terminating.clone(), json!({}));
    world.check(expect![[r#"
        create IPv4 [http:8080/TCP] a@n1 10.0.0.1 serving terminating
    "#]]);
    let mut world = World::new(json!({"publishNotReadyAddresses": true}));
    world.pod("a", terminating, json!({}));
    world.pod("b", json!({}), json!({"conditions": []}));
    world.check(expect![[r#"
        create IPv4 [http:8080/TCP] a@n1 10.0.0.1 ready serving terminating, b@n1 10.0.0.2 ready
    "#]]);
}

#[test]
fn pod_ip_alone_is_no_endpoint() {
    // Semantics B2: only status.podIPs gives addresses.
    let mut world = World::new(json!({}));
    world.pod("a", json!({}), json!({"podIP": "10.0.0.1", "podIPs": []}));
    world.check(expect![[r#"
        create IPv4 []
    "#]]);
}

#[test]
fn a_pod_waits_for_its_node_and_the_others_do_not_wait_for_it() {
    let mut world = World::new(json!({}));
    for name in ["a", "c", "d", "e", "f"] {
        world.pod(name, json!({"spec": {"nodeName": "gone"}}), json!({}));
    }
    world.pod("b", json!({}), json!({}));
    world.pod("g", json!({"spec": {"nodeName": null}}), json!({}));
    world.check(expect![[r#"
        create IPv4 [http:8080/TCP] b@n1 10.0.0.6 ready serving
        missing node gone
        Service shop/web: NodeMissing: pod g: excluded, because spec.nodeName is not set. Set it, or set spec.publishNotReadyAddresses on the Service.
        Service shop/web: NodeMissing: pods a, c, d and 2 more: excluded, because node "gone" of spec.nodeName does not exist. They are included as soon as it does; delete pods of removed nodes.
    "#]]);
}

#[test]
fn a_pod_without_node_is_published_where_not_ready_ones_are() {
    let mut world = World::new(json!({"publishNotReadyAddresses": true}));
    world.pod("a", json!({"spec": {"nodeName": "gone"}}), json!({}));
    world.pod("b", json!({"spec": {"nodeName": null}}), json!({}));
    world.check(expect![[r#"
        create IPv4 [http:8080/TCP] a@gone 10.0.0.1 ready serving, b@ 10.0.0.2 ready serving
    "#]]);
}

#[test]
fn a_named_port_puts_pods_into_groups_and_says_once_where_it_is_missing() {
    let mut world = World::new(json!({"ports": [
        {"name": "http", "port": 80, "targetPort": "web"},
        {"name": "dns", "port": 53, "targetPort": 53, "protocol": "UDP"},
    ]}));
    let listening = |port: u16| {
        let ports = json!([{"name": "web", "containerPort": port}]);
        json!({"spec": {"containers": [{"name": "c", "ports": ports}]}})
    };
    world.pod("a", listening(8080), json!({}));
    world.pod("b", listening(9090), json!({}));
    world.pod("c", listening(8080), json!({}));
    world.pod("d", json!({}), json!({}));
    world.pod("e", json!({}), json!({}));
    world.check(expect![[r#"
        create IPv4 [http:8080/TCP dns:53/UDP] a@n1 10.0.0.1 ready serving, c@n1 10.0.0.3 ready serving
        create IPv4 [http:9090/TCP dns:53/UDP] b@n1 10.0.0.2 ready serving
        create IPv4 [dns:53/UDP] d@n1 10.0.0.4 ready serving, e@n1 10.0.0.5 ready serving
        Service shop/web: PortNotFound: spec.ports[0].targetPort: 2 of 5 pods have no container port named "web" with protocol TCP, so port 80 does not forward to them. Name the port in their containers, or use a number as targetPort.
    "#]]);
}

#[test]
fn the_order_of_stored_ports_does_not_matter() {
    let mut world = World::new(json!({"ports": [
        {"name": "http", "port": 80, "targetPort": 8080}, {"name": "admin", "port": 81, "targetPort": 8081},
    ]}));
    world.pod("a", json!({}), json!({}));
    world.settle();
    world.slices[0].content.ports = world.slices[0].content.ports.iter().rev().cloned().collect();
    world.check(expect![[r#"
        keep web-1
    "#]]);
}

#[test]
fn a_placeholder_stays_as_it_is() {
    let mut world = World::new(json!({"ipFamilies": ["IPv4", "IPv6"]}));
    world.settle();
    world.check(expect![[r#"
        keep web-1
        keep web-2
    "#]]);
    // A second one is too many, and only that is written.
    let mut second = world.slices[0].clone();
    second.key.name = "web-0".into();
    world.slices.push(second);
    world.check(expect![[r#"
        delete web-1
        keep web-0
        keep web-2
    "#]]);
}

#[test]
fn a_placeholder_is_filled_by_pods_without_ports() {
    let mut world = World::new(json!({"clusterIP": "None", "ipFamilies": ["IPv4"], "ports": []}));
    world.settle();
    world.pod("a", json!({}), json!({}));
    world.check(expect![[r#"
        update web-1 IPv4 [] a@n1 10.0.0.1 ready serving
    "#]]);
}

#[test]
fn as_many_pods_as_fill_a_slice_get_a_new_one() {
    // Semantics B4: only fewer than a slice holds go into an untouched one, even where that is empty.
    let mut world = World::new(json!({"clusterIP": "None", "ipFamilies": ["IPv4"], "ports": []}));
    world.settle();
    world.options = SliceOptions::new(1).unwrap();
    world.pod("a", json!({}), json!({}));
    world.check(expect![[r#"
        create IPv4 [] a@n1 10.0.0.1 ready serving
        keep web-1
    "#]]);
}

#[test]
fn of_the_slices_that_are_written_anyway_the_fullest_is_filled_first() {
    let mut world = World::new(json!({}));
    for name in ["a", "b", "c", "d", "e"] {
        world.pod(name, json!({}), json!({}));
    }
    world.options = SliceOptions::new(4).unwrap();
    world.settle();
    // web-1 loses one of four, web-2 changes its only one.
    world.pods.remove(0);
    world.pods[3].ready = false;
    world.pod("f", json!({}), json!({}));
    world.pod("g", json!({}), json!({}));
    world.check(expect![[r#"
        update web-1 IPv4 [http:8080/TCP] b@n1 10.0.0.2 ready serving, c@n1 10.0.0.3 ready serving, d@n1 10.0.0.4 ready serving, f@n1 10.0.0.5 ready serving
        update web-2 IPv4 [http:8080/TCP] e@n1 10.0.0.5, g@n1 10.0.0.6 ready serving
    "#]]);
}

#[test]
fn two_ports_of_one_name_do_not_split_the_pods_by_their_order() {
    // No API server lets such a Service in, but a file may hold one.
    let mut world = World::new(json!({"ports": [
        {"name": "p", "port": 1, "targetPort": "x"}, {"name": "p", "port": 2, "targetPort": "y"},
    ]}));
    let listening = |x: u16, y: u16| {
        let ports = json!([{"name": "x", "containerPort": x}, {"name": "y", "containerPort": y}]);
        json!({"spec": {"containers": [{"name": "c", "ports": ports}]}})
    };
    world.pod("a", listening(1, 2), json!({}));
    world.pod("b", listening(2, 1), json!({}));
    world.settle();
    world.check(expect![[r#"
        keep web-1
    "#]]);
}

#[test]
fn a_zone_that_a_node_gets_later_reaches_the_endpoints() {
    // Pitfall 30.
    let mut world = World::new(json!({}));
    world.pod("a", json!({}), json!({}));
    world.settle();
    world.nodes.get_mut("n1").unwrap().zone = Some("za".into());
    let plan = world.plan();
    assert_eq!(plan.updates[0].1.endpoints[0].zone.as_deref(), Some("za"));
}

#[test]
fn a_slice_over_the_limit_is_cut() {
    let mut world = World::new(json!({}));
    for name in ["a", "b", "c", "d", "e"] {
        world.pod(name, json!({}), json!({}));
    }
    world.settle();
    world.options = SliceOptions::new(2).unwrap();
    world.check(expect![[r#"
        create IPv4 [http:8080/TCP] c@n1 10.0.0.3 ready serving, d@n1 10.0.0.4 ready serving
        create IPv4 [http:8080/TCP] e@n1 10.0.0.5 ready serving
        update web-1 IPv4 [http:8080/TCP] a@n1 10.0.0.1 ready serving, b@n1 10.0.0.2 ready serving
    "#]]);
}

#[test]
fn an_endpoint_in_two_slices_stays_in_one() {
    let mut world = World::new(json!({}));
    world.pod("a", json!({}), json!({}));
    world.pod("b", json!({}), json!({}));
    world.settle();
    let mut copy = world.slices[0].clone();
    copy.key.name = "web-2".into();
    copy.content.endpoints.remove(0);
    world.slices.push(copy);
    world.check(expect![[r#"
        delete web-2
        keep web-1
    "#]]);
}

#[test]
fn a_pod_given_twice_is_one_endpoint() {
    let mut world = World::new(json!({}));
    world.pod("a", json!({}), json!({}));
    world.pods.push(world.pods[0].clone());
    world.check(expect![[r#"
        create IPv4 [http:8080/TCP] a@n1 10.0.0.1 ready serving
    "#]]);
}

#[test]
fn an_address_that_went_to_another_pod_is_another_endpoint() {
    // Pitfall 5.
    let mut world = World::new(json!({}));
    world.pod("a", json!({}), json!({"podIPs": [{"ip": "10.0.0.9"}]}));
    world.settle();
    world.pods.clear();
    world.pod("b", json!({}), json!({"podIPs": [{"ip": "10.0.0.9"}]}));
    world.check(expect![[r#"
        update web-1 IPv4 [http:8080/TCP] b@n1 10.0.0.9 ready serving
    "#]]);
}

#[test]
fn a_changed_label_of_the_service_is_written_and_a_reserved_one_is_not() {
    let mut world = World::new(json!({}));
    world.pod("a", json!({}), json!({}));
    world.settle();
    let settled = world.service.labels.clone();
    world.service.labels = [(annotation::MANAGED_BY, "somebody")].into_iter().collect();
    assert!(world.plan().is_noop());
    world.service.labels = [("team", "blue")].into_iter().collect();
    let plan = world.plan();
    assert_eq!(plan.updates.len(), 1);
    assert_eq!(plan.updates[0].1.labels, labels(&world.service, None).0);
    // Semantics B5: a slice that lost its reserved labels gets them back when something else is written.
    world.service.labels = settled;
    world.slices[0].content.labels = Labels::EMPTY;
    assert!(world.plan().is_noop());
    world.pod("b", json!({}), json!({}));
    assert_eq!(world.plan().updates[0].1.labels, labels(&world.service, None).0);
}

#[test]
fn hints_alone_move_a_slice_into_the_updates() {
    let mut world = World::new(json!({}));
    world.pod("a", json!({}), json!({}));
    world.settle();
    let pods: Vec<&Pod> = world.pods.iter().collect();
    let input = world.input(&pods);
    let hinted = |zone: Option<&str>| {
        plan(&input, &SliceOptions::WITHOUT_FLAGS, |_, packing| {
            let slice = packing.unchanged.pop().expect("the one slice");
            let mut content = slice.content.clone();
            if let Some(zone) = zone {
                let hints = model::Hints::zone(&zone.into());
                content.endpoints[0].hints = Some(hints.into());
            }
            packing.updates.push((slice.key.name.clone(), content));
        })
    };
    let plan = hinted(Some("za"));
    assert_eq!(plan.updates.len(), 1);
    assert_eq!(plan.updates[0].1.endpoints[0].zone_hints(), [Name::new("za")]);
    let same = hinted(None);
    assert!(same.is_noop(), "nothing changed, so nothing is written");
    assert_eq!(same.unchanged.len(), 1);
}

#[test]
fn another_annotation_alone_is_written_and_another_date_alone_is_not() {
    let mut world = World::new(json!({}));
    world.pod("a", json!({}), json!({}));
    world.settle();
    let pods: Vec<&Pod> = world.pods.iter().collect();
    let input = world.input(&pods);
    let annotated = |key: &'static str| {
        plan(&input, &SliceOptions::WITHOUT_FLAGS, |_, packing| {
            let slice = packing.unchanged.pop().expect("the one slice");
            let annotations = [(key, "x")].into_iter().collect();
            let content = SliceContent { annotations, ..slice.content.clone() };
            packing.updates.push((slice.key.name.clone(), content));
        })
    };
    assert_eq!(annotated(annotation::MECHANISM).updates.len(), 1);
    assert!(annotated(annotation::TRIGGER_TIME).is_noop());
}

#[test]
fn a_service_made_again_is_a_trigger_of_its_own() {
    let mut world = World::new(json!({}));
    world.pod("a", json!({}), json!({}));
    world.settle();
    let pods: Vec<&Pod> = world.pods.iter().collect();
    assert_eq!(world.trigger.advance(&world.service, &pods), (None, world.trigger.clone()));
    let made = model::Timestamp::parse("2026-11-15T11:00:00Z");
    let again = Service { created: made, ..world.service.clone() };
    assert_eq!(world.trigger.advance(&again, &pods).0, made);
}

#[test]
fn what_is_written_says_when_the_change_happened() {
    let mut world = World::new(json!({}));
    let trigger = |content: &SliceContent| content.annotation(annotation::TRIGGER_TIME).map(Name::to_string);
    world.service.created = model::Timestamp::parse("2026-11-15T10:00:00Z");
    let ready_at =
        |time: &str| json!({"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": time}]});
    world.pod("a", json!({}), ready_at("2026-11-15T10:00:01Z"));
    let first = world.settle();
    assert_eq!(trigger(&first.creates[0]).as_deref(), Some("2026-11-15T10:00:00Z"));

    // Two pods got ready since, the earlier one counts; other annotations stay.
    let mechanism = (annotation::MECHANISM, "Auto");
    let dated = (annotation::TRIGGER_TIME, "2026-11-15T10:00:00Z");
    world.slices[0].content.annotations = [mechanism, dated].into_iter().collect();
    world.pod("b", json!({}), ready_at("2026-11-15T10:00:09Z"));
    world.pod("c", json!({}), ready_at("2026-11-15T10:00:07Z"));
    let second = world.plan();
    let content = &second.updates[0].1;
    assert_eq!(trigger(content).as_deref(), Some("2026-11-15T10:00:07Z"));
    assert_eq!(content.annotation(annotation::MECHANISM).map(Name::as_str), Some("Auto"));

    // Nothing advanced: a pod is gone, so the annotation goes too.
    world.trigger = second.trigger;
    world.pods.truncate(1);
    world.pods[0].ready = false;
    let third = world.plan();
    assert_eq!(trigger(&third.updates[0].1), None);
    assert!(third.updates[0].1.annotations.has(annotation::MECHANISM));
}

#[test]
fn a_limit_outside_of_1_to_1000_is_refused() {
    assert_eq!(SliceOptions::new(1000).map(|o| o.max_endpoints), Ok(1000));
    for wrong in [0, 1001] {
        let text = SliceOptions::new(wrong).unwrap_err().to_string();
        assert_eq!(text, format!("the maximum endpoints per slice must be between 1 and 1000, not {wrong}"));
    }
    let mut world = World::new(json!({}));
    world.pod("a", json!({}), json!({}));
    world.pod("b", json!({}), json!({}));
    world.options = SliceOptions { max_endpoints: 0, ..SliceOptions::WITHOUT_FLAGS };
    assert_eq!(world.plan().creates.len(), 2, "the nearest limit that can be");
}

#[test]
fn a_pod_that_finishes_or_is_replaced_counts_as_changed() {
    let mut world = World::new(json!({}));
    world.pod("a", json!({}), json!({}));
    let old = &world.pods[0];
    assert!(!pod_changed(old, old).any());
    let finished = Pod { finished: true, ..old.clone() };
    let replaced = Pod { uid: Some(model::Uid::new("other")), ..old.clone() };
    let renamed = Pod {
        details: Some(model::PodDetails { hostname: Some("h".into()), ..Default::default() }.into()),
        ..old.clone()
    };
    assert!(pod_changed(old, &finished).endpoint && pod_changed(old, &replaced).endpoint);
    assert_eq!(pod_changed(old, &renamed), PodChange { endpoint: false, labels: true });
}

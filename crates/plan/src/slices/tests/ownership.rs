//! Whose slices are touched, and when nobody's are.

use expect_test::expect;
use model::{AddressType, Labels, Owner, Uid};
use serde_json::json;

use super::super::*;
use super::world::World;

/// A world with one pod and its slice `web-1`, and the slice's copy `web-2` to do something with.
fn with_copy() -> World {
    let mut world = World::new(json!({"ipFamilies": ["IPv4"]}));
    world.pod("a", json!({}), json!({}));
    world.settle();
    let mut copy = world.slices[0].clone();
    copy.key.name = "web-2".into();
    world.slices.push(copy);
    world
}

#[test]
fn slices_of_other_writers_are_never_touched() {
    let mut world = with_copy();
    let mirrored = (annotation::MANAGED_BY, "endpointslicemirroring-controller.k8s.io");
    world.slices[1].content.labels = [mirrored].into_iter().collect();
    world.check(expect![[r#"
        keep web-1
    "#]]);
    // Without a writer's name the owner decides.
    world.slices[1].content.labels = [(annotation::SERVICE_NAME, "web")].into_iter().collect();
    world.slices[1].owners = [].into();
    world.check(expect![[r#"
        keep web-1
    "#]]);
}

#[test]
fn slices_of_an_old_service_of_the_same_name_are_deleted_and_never_recycled() {
    let mut world = with_copy();
    world.service.uid = Some(Uid::new("another life"));
    world.check(expect![[r#"
        create IPv4 [http:8080/TCP] a@n1 10.0.0.1 ready serving
        delete web-1
        delete web-2
    "#]]);
}

#[test]
fn a_service_from_a_file_owns_slices_by_name() {
    let mut world = with_copy();
    world.service.uid = None;
    world.slices[1].owners = [Owner { name: "api".into(), uid: Uid::new("api-uid") }].into();
    world.check(expect![[r#"
        delete web-2
        keep web-1
    "#]]);
}

#[test]
fn a_slice_that_is_being_deleted_is_not_there() {
    let mut world = with_copy();
    world.slices[0].deleting = true;
    world.check(expect![[r#"
        keep web-2
    "#]]);
    world.slices[1].deleting = true;
    world.check(expect![[r#"
        create IPv4 [http:8080/TCP] a@n1 10.0.0.1 ready serving
    "#]]);
}

#[test]
fn slices_of_a_family_that_is_gone_are_deleted() {
    let mut world = with_copy();
    world.slices[1].content.address_type = AddressType::Fqdn;
    world.slices[0].content.address_type = AddressType::Ip(Family::V6);
    world.check(expect![[r#"
        create IPv4 [http:8080/TCP] a@n1 10.0.0.1 ready serving
        delete web-1
        delete web-2
    "#]]);
}

#[test]
fn without_selector_or_as_external_name_everything_is_left_alone() {
    // Semantics B1.
    let mut world = with_copy();
    world.service.selector = None;
    world.check(expect![""]);
    world.service.selector = Some(Labels::EMPTY);
    world.service.kind = ServiceType::ExternalName;
    world.check(expect![""]);
}

#[test]
fn a_service_that_is_being_deleted_gets_no_new_slice() {
    let mut world = with_copy();
    world.service.deleting = true;
    world.options = SliceOptions::new(1).unwrap();
    world.pod("b", json!({}), json!({}));
    world.pod("c", json!({}), json!({}));
    world.check(expect![[r#"
        update web-2 IPv4 [http:8080/TCP] b@n1 10.0.0.2 ready serving
        keep web-1
    "#]]);
}

#[test]
fn a_changed_port_keeps_the_names_of_the_slices() {
    let mut world = with_copy();
    world.service.ports[0].target = model::TargetPort::Number(9090);
    world.check(expect![[r#"
        update web-1 IPv4 [http:9090/TCP] a@n1 10.0.0.1 ready serving
        delete web-2
    "#]]);
}

#[test]
fn beside_another_controller_only_slices_of_our_own_are_touched() {
    let mut world = World::new(json!({"ipFamilies": ["IPv4"]}));
    world.pod("a", json!({}), json!({}));
    world.settle();
    // web-1 is the other controller's; ours comes beside it.
    world.options.mode = SliceMode::Coexist;
    let plan = world.plan();
    assert_eq!((plan.creates.len(), plan.updates.len(), plan.deletes.len()), (1, 0, 0));
    let labels = &plan.creates[0].labels;
    assert_eq!(labels.value(annotation::COEXIST_SERVICE_NAME).map(Name::as_str), Some("web"));
    assert!(!labels.has(annotation::SERVICE_NAME));
    world.store("beside-1", plan.creates[0].clone());
    world.check(expect![[r#"
        keep beside-1
    "#]]);
    // Alone again, or without a selector, nothing stays beside.
    world.options.mode = SliceMode::Exclusive;
    world.check(expect![[r#"
        delete beside-1
        keep web-1
    "#]]);
    world.service.selector = None;
    world.check(expect![[r#"
        delete beside-1
    "#]]);
}

#[test]
fn a_slice_that_lost_the_label_that_consumers_go_by_is_written_at_once() {
    let mut world = with_copy();
    world.slices.pop();
    world.slices[0].resource_version = Some("7".into());
    for lost in [annotation::SERVICE_NAME, annotation::MANAGED_BY] {
        let whole = world.slices[0].content.labels.clone();
        let pairs = whole.iter().filter(|(key, _)| key != lost).cloned();
        world.slices[0].content.labels = Labels::from_pairs(pairs.collect());
        let plan = world.plan();
        assert_eq!(plan.unchanged, [], "{lost}");
        assert_eq!(plan.updates[0].1.labels, whole, "{lost}");
        world.slices[0].content.labels = whole;
    }
    assert!(world.plan().is_noop());
    // The vectors' slices are of files, without any label, and stay as they are.
    world.slices[0].content.labels = Labels::EMPTY;
    world.slices[0].resource_version = None;
    assert!(world.plan().is_noop());
}

#[test]
fn of_exposed_slices_only_hints_are_planned() {
    let mut world = with_copy();
    world.service.selector = None;
    let exposed =
        [(annotation::SERVICE_NAME, "web"), (annotation::MANAGED_BY, annotation::EXPOSE_CONTROLLER_NAME)];
    world.slices[1].content.labels = exposed.into_iter().collect();
    let mut seen = Vec::new();
    let plan = plan(&world.input(&[]), &world.options, |family, packing| {
        seen.push((family, packing.unchanged.len()));
        let slice = packing.unchanged.remove(0);
        let annotations = [(annotation::MECHANISM, "PreferSameZone")].into_iter().collect();
        packing.updates.push((slice.key.name.clone(), SliceContent { annotations, ..slice.content.clone() }));
    });
    assert_eq!(seen, [(Family::V4, 1)]);
    let written: Vec<&str> = plan.updates.iter().map(|(key, _)| key.name.as_str()).collect();
    assert_eq!((written, plan.creates.len(), plan.deletes.len()), (vec!["web-2"], 0, 0));
    assert_eq!(plan.updates[0].1.endpoints, world.slices[1].content.endpoints);
    assert_eq!(plan.updates[0].1.labels, world.slices[1].content.labels);
}

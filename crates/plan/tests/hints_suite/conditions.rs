//! Accepted, Programmed and Honored (KEP-4444).

use expect_test::{Expect, expect};
use model::annotation as a;
use plan::hints::{NodeAcks, conditions};

use crate::world::{self, World};

const ALL_NODES: NodeAcks = NodeAcks { reached: 3, waiting: 0 };

fn world(annotations: &[(&str, &str)], field: Option<&str>, endpoints: usize) -> World {
    let mut world = World::new(&[("a", 1), ("b", 1)], world::service(annotations, field));
    world.add_endpoints(&[("a", endpoints), ("b", endpoints)]);
    world
}

fn check(mut world: World, acks: NodeAcks, expect: Expect) {
    let outcome = world.sync();
    let mut text = String::new();
    for condition in conditions(&[outcome], acks) {
        let kind = condition.kind.trim_start_matches("zoneward.dev/TrafficDistribution");
        text +=
            &format!("{kind} {} {}: {}\n", condition.status.as_str(), condition.reason, condition.message);
    }
    expect.assert_eq(&text);
}

#[test]
fn all_three_hold_once_every_node_has_it() {
    check(
        world(&[], Some("PreferSameZone"), 2),
        ALL_NODES,
        expect![[r#"
        Accepted True Accepted: spec.trafficDistribution: PreferSameZone is known.
        Programmed True Programmed: The EndpointSlices say PreferSameZone.
        Honored True Honored: Every ready node that runs a node proxy has programmed the slices.
    "#]],
    );
}

#[test]
fn honored_waits_for_every_node_and_never_counts_them() {
    let behind = NodeAcks { reached: 2, waiting: 1 };
    check(
        world(&[], Some("PreferSameZone"), 2),
        behind,
        expect![[r#"
        Accepted True Accepted: spec.trafficDistribution: PreferSameZone is known.
        Programmed True Programmed: The EndpointSlices say PreferSameZone.
        Honored False NodesBehind: Some ready nodes have not programmed the slices yet; `zoneward status` names them.
    "#]],
    );
    let one = conditions(&[world(&[], Some("PreferSameZone"), 2).sync()], behind);
    let other =
        conditions(&[world(&[], Some("PreferSameZone"), 9).sync()], NodeAcks { reached: 0, waiting: 7 });
    assert_eq!(one, other);
    check(
        world(&[], Some("PreferSameZone"), 2),
        NodeAcks::default(),
        expect![[r#"
        Accepted True Accepted: spec.trafficDistribution: PreferSameZone is known.
        Programmed True Programmed: The EndpointSlices say PreferSameZone.
        Honored Unknown NoNodeProxy: No ready node runs a Zoneward node proxy, so nobody can tell.
    "#]],
    );
}

#[test]
fn a_value_of_others_is_not_accepted() {
    check(
        world(&[], Some("example.com/Fastest"), 2),
        ALL_NODES,
        expect![[r#"
        Accepted False UnsupportedValue: spec.trafficDistribution: example.com/Fastest gives no hints, so traffic spreads evenly: only the implementation of example.com could know it. Known are PreferSameZone, PreferSameNode, zoneward.dev/Spill and PreferClose.
        Programmed False NoMechanism: Traffic spreads evenly over all endpoints.
        Honored False NotProgrammed: There is nothing to honor yet.
    "#]],
    );
}

#[test]
fn a_field_that_auto_overrides_says_so() {
    check(
        world(&[(a::TOPOLOGY_MODE, "Auto")], Some("PreferSameZone"), 3),
        ALL_NODES,
        expect![[r#"
        Accepted True Overridden: spec.trafficDistribution: PreferSameZone is ignored, because service.kubernetes.io/topology-mode: Auto comes first. Remove what you do not mean.
        Programmed True Programmed: The EndpointSlices say Auto.
        Honored True Honored: Every ready node that runs a node proxy has programmed the slices.
    "#]],
    );
}

#[test]
fn a_mechanism_that_holds_back_is_not_programmed() {
    check(
        world(&[(a::TOPOLOGY_MODE, "Auto")], None, 0),
        ALL_NODES,
        expect![[r#"
        Accepted True Accepted: service.kubernetes.io/topology-mode: Auto is known.
        Programmed False FewerEndpointsThanZones: There are fewer ready endpoints than zones. The Events say the numbers and what would help. Address family: IPv4.
        Honored False NotProgrammed: There is nothing to honor yet.
    "#]],
    );
    check(
        world(&[(a::SAME_ZONE, "Prefer")], None, 2),
        ALL_NODES,
        expect![[r#"
        Accepted True Accepted: endpointslice.kubernetes.io/same-zone: Prefer is known.
        Programmed False TooFewEndpoints: There are too few ready endpoints for Prefer to start. The Events say the numbers and what would help. Address family: IPv4.
        Honored False NotProgrammed: There is nothing to honor yet.
    "#]],
    );
}

#[test]
fn an_explicit_balanced_is_accepted_and_programs_nothing() {
    check(
        world(&[(a::SAME_ZONE, "Balanced")], None, 2),
        ALL_NODES,
        expect![[r#"
        Accepted True Accepted: endpointslice.kubernetes.io/same-zone: Balanced is known.
        Programmed False NoMechanism: Traffic spreads evenly over all endpoints.
        Honored False NotProgrammed: There is nothing to honor yet.
    "#]],
    );
}

#[test]
fn a_service_that_asks_for_nothing_has_no_conditions_to_write() {
    let outcome = world(&[], None, 2).sync();
    assert!(!outcome.requested);
    check(
        world(&[], None, 2),
        ALL_NODES,
        expect![[r#"
        Accepted Unknown NotRequested: The Service asks for no traffic distribution.
        Programmed False NotRequested: Traffic spreads evenly over all endpoints.
        Honored False NotProgrammed: There is nothing to honor yet.
    "#]],
    );
}

#[test]
fn one_family_that_holds_back_is_enough() {
    let good = world(&[(a::TOPOLOGY_MODE, "Auto")], None, 3).sync();
    let bad = world(&[(a::TOPOLOGY_MODE, "Auto")], None, 0).sync();
    let [_, programmed, _] = conditions(&[good, bad], ALL_NODES);
    assert_eq!((programmed.status.as_str(), programmed.reason), ("False", "FewerEndpointsThanZones"));
}

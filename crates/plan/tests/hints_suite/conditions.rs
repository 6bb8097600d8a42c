//! Accepted, Programmed and Honored (KEP-4444).

use expect_test::{Expect, expect};
use model::annotation as a;
use plan::hints::{NodeAcks, conditions};

use crate::world::{self, World};

const ALL_NODES: NodeAcks = NodeAcks { reached: 3, waiting: 0, behind: Vec::new() };

fn world(annotations: &[(&str, &str)], field: Option<&str>, endpoints: usize) -> World {
    let mut world = World::new(&[("a", 1), ("b", 1)], world::service(annotations, field));
    world.add_endpoints(&[("a", endpoints), ("b", endpoints)]);
    world
}

fn check(mut world: World, acks: &NodeAcks, expect: Expect) {
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
        &ALL_NODES,
        expect![[r#"
        Accepted True Accepted: spec.trafficDistribution: PreferSameZone is known.
        Programmed True Programmed: The EndpointSlices say PreferSameZone.
        Honored True Honored: Every ready node that runs a node proxy has programmed the slices.
    "#]],
    );
}

#[test]
fn honored_names_up_to_three_nodes_that_are_behind_and_never_counts_them() {
    let behind = |nodes: &[&str]| {
        let mut acks = NodeAcks { reached: 2, ..NodeAcks::default() };
        nodes.iter().for_each(|node| acks.add_behind(&world::name(node)));
        acks
    };
    check(
        world(&[], Some("PreferSameZone"), 2),
        &behind(&["n1"]),
        expect![[r#"
            Accepted True Accepted: spec.trafficDistribution: PreferSameZone is known.
            Programmed True Programmed: The EndpointSlices say PreferSameZone.
            Honored False NodesBehind: Ready nodes that have not programmed the slices yet: n1. See the logs of their node proxies.
        "#]],
    );
    let conditions = |endpoints: usize, nodes: &[&str]| {
        conditions(&[world(&[], Some("PreferSameZone"), endpoints).sync()], &behind(nodes))
    };
    let four = conditions(2, &["n1", "n2", "n3", "n4"]);
    expect!["Ready nodes that have not programmed the slices yet: n1, n2, n3 and others. See the logs of their node proxies."]
        .assert_eq(&four[2].message);
    assert_eq!(four, conditions(9, &["n1", "n2", "n3", "n5", "n6"]));
    check(
        world(&[], Some("PreferSameZone"), 2),
        &NodeAcks::default(),
        expect![[r#"
            Accepted True Accepted: spec.trafficDistribution: PreferSameZone is known.
            Programmed True Programmed: The EndpointSlices say PreferSameZone.
            Honored Unknown NoNodeProxy: No ready node runs a Zoneward node proxy, which would report what it programmed.
        "#]],
    );
}

#[test]
fn a_value_of_others_is_not_accepted() {
    check(
        world(&[], Some("example.com/Fastest"), 2),
        &ALL_NODES,
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
        &ALL_NODES,
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
        &ALL_NODES,
        expect![[r#"
        Accepted True Accepted: service.kubernetes.io/topology-mode: Auto is known.
        Programmed False FewerEndpointsThanZones: There are fewer ready endpoints than zones. The Events say the numbers and what would help. Address family: IPv4.
        Honored False NotProgrammed: There is nothing to honor yet.
    "#]],
    );
    check(
        world(&[(a::SAME_ZONE, "Prefer")], None, 2),
        &ALL_NODES,
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
        &ALL_NODES,
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
        &ALL_NODES,
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
    let [_, programmed, _] = conditions(&[good, bad], &ALL_NODES);
    assert_eq!((programmed.status.as_str(), programmed.reason), ("False", "FewerEndpointsThanZones"));
}

#[test]
fn a_bad_setting_beside_the_one_that_decides_is_no_refusal_of_that_one() {
    // It said Accepted False beside Programmed True.
    check(
        world(&[(a::TRAFFIC_DISTRIBUTION, "Spil")], Some("PreferSameZone"), 2),
        &ALL_NODES,
        expect![[r#"
        Accepted True OtherSettingRefused: spec.trafficDistribution: PreferSameZone is known and decides. zoneward.dev/traffic-distribution: Spil is ignored: no mechanism has that name. Known are Spill, Auto, PreferSameZone, PreferSameNode, PreferZone, RequireZone and the other mechanisms of docs/guide/choosing.md, and Balanced for none.
        Programmed True Programmed: The EndpointSlices say PreferSameZone.
        Honored True Honored: Every ready node that runs a node proxy has programmed the slices.
    "#]],
    );
    check(
        world(&[(a::SAME_ZONE, "Prefer"), (a::SAME_ZONE_STARTING_THRESHOLD, "many")], None, 9),
        &ALL_NODES,
        expect![[r#"
            Accepted True OtherSettingRefused: endpointslice.kubernetes.io/same-zone: Prefer is known and decides. endpointslice.kubernetes.io/same-zone-starting-threshold: many is no whole number from 1 on, so three times the number of zones holds.
            Programmed True Programmed: The EndpointSlices say PreferZone.
            Honored True Honored: Every ready node that runs a node proxy has programmed the slices.
        "#]],
    );
}

#[test]
fn an_endpoint_without_a_zone_makes_all_hints_unusable_and_nothing_programmed() {
    let mut stray = world(&[], Some("PreferSameZone"), 2);
    stray.add_endpoints(&[("", 1)]);
    check(
        stray,
        &ALL_NODES,
        expect![[r#"
        Accepted True Accepted: spec.trafficDistribution: PreferSameZone is known.
        Programmed False EndpointWithoutZone: A ready endpoint is in no known zone, so consumers ignore the hints of the whole Service. The Events say the numbers and what would help. Address family: IPv4.
        Honored False NotProgrammed: There is nothing to honor yet.
    "#]],
    );
    let mut stray = world(&[(a::SAME_REGION, "Prefer")], None, 2);
    stray.add_endpoints(&[("", 1)]);
    let [_, programmed, _] = conditions(&[stray.sync()], &ALL_NODES);
    assert_eq!((programmed.status.as_str(), programmed.reason), ("False", "EndpointWithoutZone"));
    // Require does not use it, and hints for nodes need no zone.
    for (annotations, field) in [(&[(a::SAME_ZONE, "Require")][..], None), (&[], Some("PreferSameNode"))] {
        let mut fine = world(annotations, field, 2);
        fine.add_endpoints(&[("", 1)]);
        let [_, programmed, _] = conditions(&[fine.sync()], &ALL_NODES);
        assert_eq!(programmed.status.as_str(), "True", "{annotations:?}");
    }
}

#[test]
fn a_headless_service_is_promised_nothing() {
    let mut headless = world(&[], Some("PreferSameZone"), 2);
    headless.service.cluster_ips = model::ClusterIps::None;
    let said = world::notices(&headless.sync());
    expect![[r#"
        Service shop/web: TrafficDistributionNotProxied: spec.trafficDistribution: PreferSameZone: the hints are set, but no service proxy obeys them: the Service is headless, so clients get the endpoints' addresses from DNS and connect to any of them. Give the Service a cluster IP.
    "#]].assert_eq(&said);
    assert!(!said.contains("stays in the zone"), "{said}");
    check(
        headless,
        &ALL_NODES,
        expect![[r#"
        Accepted True Accepted: spec.trafficDistribution: PreferSameZone is known.
        Programmed True Programmed: The EndpointSlices say PreferSameZone.
        Honored False NotProxied: Zoneward's nodes do not proxy this Service: it is headless: clients get the endpoints' addresses from DNS and connect to them directly.
    "#]],
    );
    let mut another = world(&[], Some("PreferSameZone"), 2);
    another.service.labels = [(a::SERVICE_PROXY_NAME, "other")].into_iter().collect();
    let [_, _, honored] = conditions(&[another.sync()], &ALL_NODES);
    assert_eq!((honored.status.as_str(), honored.reason), ("Unknown", "NotProxied"));
}

#[test]
fn a_refused_write_is_not_programmed() {
    let meant = conditions(&[world(&[], Some("PreferSameZone"), 2).sync()], &ALL_NODES);
    let refused = plan::hints::conditions::after_refusal(meant.clone(), "forZones: Too many: 9");
    assert_eq!(refused[0], meant[0]);
    let words = refused.map(|c| format!("{} {} {}", c.status.as_str(), c.reason, c.message));
    expect![[r#"
        False WriteRefused The API refused the EndpointSlices, not all were written: forZones: Too many: 9
        False NotProgrammed There is nothing to honor yet."#]]
    .assert_eq(&words[1..].join("\n"));
}

//! Accepted, Programmed and Honored (KEP-4444).

use expect_test::{Expect, expect};
use model::annotation as a;
use plan::hints::{NodeAcks, conditions};

use crate::hints_suite::world::{self, World};

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
            Accepted True Accepted: spec.trafficDistribution: PreferSameZone is used.
            Programmed True Programmed: The EndpointSlices express PreferSameZone.
            Honored True Honored: Every ready node with a node proxy has programmed the EndpointSlices.
        "#]],
    );
}

#[test]
fn honored_lists_up_to_three_nodes_that_are_behind_and_counts_the_others() {
    let behind = |nodes: &[&str]| {
        let mut acks = NodeAcks { reached: 2, ..NodeAcks::default() };
        nodes.iter().for_each(|node| acks.add_behind(&world::name(node)));
        acks
    };
    check(
        world(&[], Some("PreferSameZone"), 2),
        &behind(&["n1"]),
        expect![[r#"
            Accepted True Accepted: spec.trafficDistribution: PreferSameZone is used.
            Programmed True Programmed: The EndpointSlices express PreferSameZone.
            Honored False NodesBehind: Ready nodes that have not programmed the EndpointSlices: n1. See the logs of their node proxies.
        "#]],
    );
    let conditions = |endpoints: usize, nodes: &[&str]| {
        conditions(&[world(&[], Some("PreferSameZone"), endpoints).sync()], &behind(nodes))
    };
    let four = conditions(2, &["n1", "n2", "n3", "n4"]);
    expect!["Ready nodes that have not programmed the EndpointSlices: n1, n2, n3 and 1 more. See the logs of their node proxies."]
        .assert_eq(&four[2].message);
    let five = conditions(9, &["n1", "n2", "n3", "n5", "n6"]);
    assert_eq!(four[2].message.replace("1 more", "2 more"), five[2].message);
    assert_eq!(four[..2], five[..2], "no number of endpoints is in a condition");
    check(
        world(&[], Some("PreferSameZone"), 2),
        &NodeAcks::default(),
        expect![[r#"
            Accepted True Accepted: spec.trafficDistribution: PreferSameZone is used.
            Programmed True Programmed: The EndpointSlices express PreferSameZone.
            Honored Unknown NoNodeProxy: No ready node runs a Zoneward node proxy, so no node reports what it programmed.
        "#]],
    );
}

#[test]
fn a_value_of_others_is_not_accepted() {
    check(
        world(&[], Some("example.com/Fastest"), 2),
        &ALL_NODES,
        expect![[r#"
            Accepted False UnsupportedValue: spec.trafficDistribution: example.com/Fastest sets no hints, so traffic is spread evenly: it is for the implementation of example.com. Supported are PreferSameZone, PreferSameNode, zoneward.dev/Spill and PreferClose.
            Programmed False NoMechanism: Traffic is spread evenly over all endpoints.
            Honored False NotProgrammed: The EndpointSlices do not express the traffic distribution, see Programmed.
        "#]],
    );
}

#[test]
fn a_field_that_auto_overrides_says_so() {
    check(
        world(&[(a::TOPOLOGY_MODE, "Auto")], Some("PreferSameZone"), 3),
        &ALL_NODES,
        expect![[r#"
            Accepted True Overridden: spec.trafficDistribution: PreferSameZone is ignored: service.kubernetes.io/topology-mode: Auto has precedence. Remove the settings that you do not need.
            Programmed True Programmed: The EndpointSlices express Auto.
            Honored True Honored: Every ready node with a node proxy has programmed the EndpointSlices.
        "#]],
    );
}

#[test]
fn a_mechanism_that_holds_back_is_not_programmed() {
    check(
        world(&[(a::TOPOLOGY_MODE, "Auto")], None, 0),
        &ALL_NODES,
        expect![[r#"
            Accepted True Accepted: service.kubernetes.io/topology-mode: Auto is used.
            Programmed False FewerEndpointsThanZones: There are fewer ready endpoints than zones. See the Service's Events for numbers and advice. Address family: IPv4.
            Honored False NotProgrammed: The EndpointSlices do not express the traffic distribution, see Programmed.
        "#]],
    );
    check(
        world(&[(a::SAME_ZONE, "Prefer")], None, 2),
        &ALL_NODES,
        expect![[r#"
            Accepted True Accepted: endpointslice.kubernetes.io/same-zone: Prefer is used.
            Programmed False TooFewEndpoints: There are too few ready endpoints for Prefer to start. See the Service's Events for numbers and advice. Address family: IPv4.
            Honored False NotProgrammed: The EndpointSlices do not express the traffic distribution, see Programmed.
        "#]],
    );
}

#[test]
fn an_explicit_balanced_is_accepted_and_programs_nothing() {
    check(
        world(&[(a::SAME_ZONE, "Balanced")], None, 2),
        &ALL_NODES,
        expect![[r#"
            Accepted True Accepted: endpointslice.kubernetes.io/same-zone: Balanced is used.
            Programmed False NoMechanism: Traffic is spread evenly over all endpoints.
            Honored False NotProgrammed: The EndpointSlices do not express the traffic distribution, see Programmed.
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
            Accepted Unknown NotRequested: The Service has no traffic distribution setting.
            Programmed False NotRequested: Traffic is spread evenly over all endpoints.
            Honored False NotProgrammed: The EndpointSlices do not express the traffic distribution, see Programmed.
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
            Accepted True OtherSettingRefused: spec.trafficDistribution: PreferSameZone is used. zoneward.dev/traffic-distribution: Spil is ignored: unknown mechanism. Supported are Spill, Auto, PreferSameZone, PreferSameNode, PreferZone, RequireZone and the other mechanisms of docs/guide/choosing.md, and Balanced for none.
            Programmed True Programmed: The EndpointSlices express PreferSameZone.
            Honored True Honored: Every ready node with a node proxy has programmed the EndpointSlices.
        "#]],
    );
    check(
        world(&[(a::SAME_ZONE, "Prefer"), (a::SAME_ZONE_STARTING_THRESHOLD, "many")], None, 9),
        &ALL_NODES,
        expect![[r#"
            Accepted True OtherSettingRefused: endpointslice.kubernetes.io/same-zone: Prefer is used. endpointslice.kubernetes.io/same-zone-starting-threshold: many is not a positive whole number, so the default applies: three per zone.
            Programmed True Programmed: The EndpointSlices express PreferZone.
            Honored True Honored: Every ready node with a node proxy has programmed the EndpointSlices.
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
            Accepted True Accepted: spec.trafficDistribution: PreferSameZone is used.
            Programmed False EndpointWithoutZone: A ready endpoint has no zone, so consumers ignore all hints of the Service. See the Service's Events for numbers and advice. Address family: IPv4.
            Honored False NotProgrammed: The EndpointSlices do not express the traffic distribution, see Programmed.
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
        Service shop/web: TrafficDistributionNotProxied: spec.trafficDistribution: PreferSameZone: the Service is headless, so hints have an effect only where Zoneward serves DNS (--dns): other DNS servers give clients the addresses of all endpoints. Give the Service a cluster IP.
    "#]].assert_eq(&said);
    assert!(!said.contains("stays in its zone"), "{said}");
    check(
        headless,
        &ALL_NODES,
        expect![[r#"
            Accepted True Accepted: spec.trafficDistribution: PreferSameZone is used.
            Programmed True Programmed: The EndpointSlices express PreferSameZone.
            Honored False NotProxied: Zoneward's nodes do not proxy this Service: it is headless, so clients get the endpoints' addresses from DNS and connect to them directly.
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
        False WriteRefused The API server refused EndpointSlices, some were not written: forZones: Too many: 9
        False NotProgrammed The EndpointSlices do not express the traffic distribution, see Programmed."#]]
    .assert_eq(&words[1..].join("\n"));
}

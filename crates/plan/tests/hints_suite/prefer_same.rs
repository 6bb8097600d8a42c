//! PreferSameZone and PreferSameNode.

use expect_test::{Expect, expect};
use model::{EndpointConditions, annotation as a};
use plan::hints::{Mechanism, ZoneWeight};

use crate::hints_suite::world::{self, World, name, notices};

fn check(world: &mut World, expect: Expect) {
    let outcome = world.sync();
    assert!(outcome.programmed);
    expect.assert_eq(&format!("{}\n{}", world.hints(), notices(&outcome)));
}

fn prefer(value: &str, zones: &[(&str, usize)]) -> World {
    World::new(zones, world::service(&[], Some(value)))
}

#[test]
fn every_ready_endpoint_is_for_its_own_zone() {
    let mut world = prefer("PreferSameZone", &[("a", 2), ("b", 2)]);
    world.add_endpoints(&[("a", 2), ("b", 2)]);
    check(
        &mut world,
        expect![[r#"
            a>a 2, b>b 2
            Service shop/web: TrafficDistributionProgrammed: spec.trafficDistribution: PreferSameZone: traffic stays in its zone, and goes to all endpoints if there is none; 4 ready endpoints (a 2, b 2). There is no minimum number of endpoints.
        "#]],
    );
}

#[test]
fn the_deprecated_alias_says_so() {
    let mut world = prefer("PreferClose", &[("a", 2), ("b", 2)]);
    world.add_endpoints(&[("a", 1), ("b", 1)]);
    check(
        &mut world,
        expect![[r#"
            a>a 1, b>b 1
            Service shop/web: DeprecatedTrafficDistribution: spec.trafficDistribution: PreferClose works, but PreferClose is the deprecated name of PreferSameZone. Use PreferSameZone.
            Service shop/web: TrafficDistributionProgrammed: spec.trafficDistribution: PreferClose: traffic stays in its zone, and goes to all endpoints if there is none; 2 ready endpoints (a 1, b 1). There is no minimum number of endpoints.
        "#]],
    );
}

#[test]
fn expected_overload_keeps_the_hints_and_warns() {
    let mut world = prefer("PreferSameZone", &[("a", 4), ("b", 2)]);
    world.add_endpoints(&[("a", 2), ("b", 6)]);
    check(
        &mut world,
        expect![[r#"
            a>a 2, b>b 6
            Service shop/web: TrafficDistributionProgrammed: spec.trafficDistribution: PreferSameZone: traffic stays in its zone, and goes to all endpoints if there is none; 8 ready endpoints (a 2, b 6). There is no minimum number of endpoints.
            Service shop/web: OverloadExpected: Zone a sends 67 % of the traffic (by nodes) to 2 ready endpoints, so each gets about 167 % more than its fair share; the hints stay. Add 3 there, or use Spill, which sends the excess elsewhere.
        "#]],
    );
}

#[test]
fn zones_without_endpoints_load_all_others() {
    // c's traffic goes everywhere: 1/3 to a's one endpoint, and 1/3 of the rest over all four.
    let mut world = prefer("PreferSameZone", &[("a", 1), ("b", 1), ("c", 1)]);
    world.add_endpoints(&[("a", 1), ("b", 3)]);
    check(
        &mut world,
        expect![[r#"
            a>a 1, b>b 3
            Service shop/web: TrafficDistributionProgrammed: spec.trafficDistribution: PreferSameZone: traffic stays in its zone, and goes to all endpoints if there is none; 4 ready endpoints (a 1, b 3). There is no minimum number of endpoints.
            Service shop/web: OverloadExpected: Zone a sends 33 % of the traffic (by nodes) to 1 ready endpoint, so it gets about 67 % more than its fair share; the hints stay. Add 1 there, or use Spill, which sends the excess elsewhere.
        "#]],
    );
}

#[test]
fn overload_may_be_counted_by_cpu() {
    let mut world = prefer("PreferSameZone", &[("b", 2)]);
    world.add_node(world::node("a-node-0", "a", 64_000));
    world.add_endpoints(&[("a", 2), ("b", 4)]);
    assert_eq!(world.sync().notices.len(), 1, "one node of three, two endpoints of six");
    world.config.prefer_by = ZoneWeight::Cpu;
    check(
        &mut world,
        expect![[r#"
            a>a 2, b>b 4
            Service shop/web: TrafficDistributionProgrammed: spec.trafficDistribution: PreferSameZone: traffic stays in its zone, and goes to all endpoints if there is none; 6 ready endpoints (a 2, b 4). There is no minimum number of endpoints.
            Service shop/web: OverloadExpected: Zone a sends 89 % of the traffic (by CPU) to 2 ready endpoints, so each gets about 167 % more than its fair share; the hints stay. Add 4 there, or use Spill, which sends the excess elsewhere.
        "#]],
    );
}

#[test]
fn the_own_node_comes_first() {
    let mut world = prefer("PreferSameNode", &[("a", 2), ("b", 1)]);
    world.add_endpoints(&[("a", 2), ("b", 1)]);
    world.endpoints[1].node = Some(name("a-node-1"));
    check(
        &mut world,
        expect![[r#"
            a>a+node 2, b>b+node 1
            Service shop/web: TrafficDistributionProgrammed: spec.trafficDistribution: PreferSameNode: traffic stays on its node, else in its zone, and goes to all endpoints if there is none; 3 ready endpoints (a 2, b 1). There is no minimum number of endpoints.
        "#]],
    );
    let endpoint = world.stored().next().unwrap();
    assert_eq!((endpoint.zone_hints(), endpoint.node_hints()), (&[name("a")][..], &[name("a-node-0")][..]));
}

#[test]
fn a_node_with_few_endpoints_is_named() {
    // Three nodes send as much each; a-node-0 has one endpoint, and b-node-0 has five.
    let mut world = prefer("PreferSameNode", &[("a", 2), ("b", 1)]);
    world.add_endpoints(&[("a", 1), ("b", 5)]);
    check(
        &mut world,
        expect![[r#"
            a>a+node 1, b>b+node 5
            Service shop/web: TrafficDistributionProgrammed: spec.trafficDistribution: PreferSameNode: traffic stays on its node, else in its zone, and goes to all endpoints if there is none; 6 ready endpoints (a 1, b 5). There is no minimum number of endpoints.
            Service shop/web: OverloadExpected: Node a-node-0 sends 33 % of the traffic (by nodes) to 1 ready endpoint, so it gets about 300 % more than its fair share; the hints stay. Add 3 there, or use Spill, which sends the excess elsewhere.
        "#]],
    );
}

#[test]
fn an_endpoint_without_a_zone_is_named_with_its_consequence() {
    let mut world = prefer("PreferSameZone", &[("a", 1), ("b", 1)]);
    world.add_endpoints(&[("a", 2), ("", 1)]);
    let outcome = world.sync();
    assert_eq!((outcome.programmed, world.hints().as_str()), (false, "?> 1, a>a 2"));
    expect![[r#"
        Service shop/web: TrafficDistributionWithheld: spec.trafficDistribution: PreferSameZone: traffic is spread evenly, because consumers ignore all hints of a Service if one is missing. Without a zone: 1 ready endpoint, the first is Pod web-3. Add the label topology.kubernetes.io/zone to its node.
    "#]].assert_eq(&notices(&outcome));
}

#[test]
fn an_endpoint_without_zone_and_node_has_no_hints() {
    let mut world = prefer("PreferSameNode", &[("a", 1)]);
    world.add_endpoints(&[("", 2)]);
    world.endpoints[0].node = None;
    world.sync();
    assert_eq!(world.hints(), "?> 1, ?>+node 1");
}

#[test]
fn endpoints_that_are_not_ready_get_nothing() {
    let mut world = prefer("PreferSameZone", &[("a", 1)]);
    world.add_endpoints(&[("a", 3)]);
    world.endpoints[0].conditions = EndpointConditions::new(false, true, true);
    // Semantics A1: nobody said that it is ready.
    world.endpoints[1].conditions = EndpointConditions::default();
    world.sync();
    let hinted: Vec<bool> = world.stored().map(|e| e.hints.is_some()).collect();
    assert_eq!(hinted, [false, false, true]);
}

#[test]
fn a_terminating_endpoint_that_is_published_as_ready_gets_hints() {
    // Semantics B2: publishNotReadyAddresses makes it ready and terminating.
    let mut world = prefer("PreferSameZone", &[("a", 1)]);
    world.add_endpoints(&[("a", 1)]);
    world.endpoints[0].conditions = EndpointConditions::new(true, false, true);
    world.sync();
    assert_eq!(world.hints(), "a>a 1");
}

#[test]
fn same_node_prefer_is_prefer_same_node() {
    let mut world = World::new(&[("a", 1)], world::service(&[(a::SAME_NODE, "Prefer")], None));
    world.add_endpoints(&[("a", 1)]);
    assert_eq!(world.sync().mechanism, Mechanism::PreferSameNode);
}

#[test]
fn hints_of_a_zone_are_shared() {
    let mut world = prefer("PreferSameZone", &[("a", 1)]);
    world.add_endpoints(&[("a", 2)]);
    world.sync();
    let hints: Vec<_> = world.stored().map(|e| e.hints.clone().unwrap()).collect();
    assert!(std::sync::Arc::ptr_eq(&hints[0], &hints[1]));
}

//! Spill as the slices say it.

use expect_test::{Expect, expect};
use model::annotation as a;
use plan::hints::Mechanism;

use crate::hints_suite::world::{self, World, name, notices};

fn spill(zones: &[(&str, usize)], endpoints: &[(&str, usize)]) -> World {
    let mut world = World::new(zones, world::service(&[(a::TRAFFIC_DISTRIBUTION, "Spill")], None));
    world.add_endpoints(endpoints);
    world
}

fn check(world: &mut World, expect: Expect) {
    let outcome = world.sync();
    let demand = outcome.demand().unwrap_or_default();
    let stored = world.slices[0].content.annotation(a::DEMAND);
    assert_eq!(stored.map(|d| d.to_string()), outcome.demand());
    let text = format!("{} {demand} [{}]\n{}", outcome.mechanism.as_str(), world.hints(), notices(&outcome));
    expect.assert_eq(&text);
}

#[test]
fn a_zone_that_spills_takes_the_hints_off() {
    check(
        &mut spill(&[("a", 2), ("b", 1)], &[("a", 1), ("b", 3)]),
        expect![[r#"
            Spill a=171,b=85 [a> 1, b> 3]
            Service shop/web: TrafficDistributionProgrammed: zoneward.dev/traffic-distribution: Spill: a keeps 37 % with 1 endpoint, the rest goes to zones with spare capacity; 4 ready endpoints, expected traffic by CPU: a 67 %, b 33 %. Consumers that read only hints spread traffic evenly. Add endpoints there to keep more.
        "#]],
    );
}

#[test]
fn without_any_spill_there_are_own_zone_hints() {
    check(
        &mut spill(&[("a", 1), ("b", 1), ("c", 1)], &[("a", 2), ("b", 2), ("c", 2)]),
        expect![[r#"
            Spill a=86,b=85,c=85 [a>a 2, b>b 2, c>c 2]
            Service shop/web: TrafficDistributionProgrammed: zoneward.dev/traffic-distribution: Spill: all traffic stays in its zone; 6 ready endpoints, expected traffic by CPU: a 34 %, b 33 %, c 33 %. Consumers that read only hints stay in their zone.
        "#]],
    );
}

#[test]
fn demand_names_regions_where_there_are_several() {
    let mut world = spill(&[("a", 1), ("b", 1), ("c", 2)], &[("a", 2)]);
    world.set_regions(&[("a", "east"), ("b", "east"), ("c", "west")]);
    let outcome = world.sync();
    assert_eq!(outcome.demand().as_deref(), Some("east/a=64,east/b=64,west/c=128"));
}

#[test]
fn no_zones_no_spill() {
    check(
        &mut spill(&[], &[("a", 2)]),
        expect![[r#"
            None  [a> 2]
            Service shop/web: TrafficDistributionWithheld: zoneward.dev/traffic-distribution: Spill: traffic is spread evenly: no ready node has the label topology.kubernetes.io/zone. Add it to the nodes.
        "#]],
    );
}

#[test]
fn nodes_count_where_no_cpu_is_known() {
    let mut world = spill(&[("a", 3), ("b", 1)], &[("a", 1)]);
    world.nodes.values_mut().for_each(|n| n.cpu_millis = None);
    assert_eq!(world.sync().demand().as_deref(), Some("a=192,b=64"));
    // One that reports nothing yet counts as the average of the others.
    world.nodes.get_mut("b-node-0").unwrap().cpu_millis = Some(8_000);
    assert_eq!(world.sync().demand().as_deref(), Some("a=192,b=64"));
}

#[test]
fn pods_do_not_change_the_demand() {
    let mut world = spill(&[("a", 2), ("b", 1)], &[("a", 5), ("b", 9)]);
    world.slice_size = 3;
    world.sync();
    world.add_endpoints(&[("b", 1)]);
    assert_eq!(world.sync_counting().1, 1, "the slice that takes the new endpoint");
}

#[test]
fn a_node_more_in_a_large_cluster_does_not_change_it_either() {
    let mut world = spill(&[("a", 100), ("b", 100), ("c", 100)], &[("a", 5), ("b", 9)]);
    let before = world.sync().demand();
    world.add_node(world::node("a-node-more", "a", 4_000));
    let (outcome, written) = world.sync_counting();
    assert_eq!((outcome.demand(), written), (before, 0));
    world.restart();
    assert_eq!(world.sync_counting().1, 0, "the slices tell what was said");
    (0..30).for_each(|i| world.add_node(world::node(&format!("a-node-{i}-more"), "a", 4_000)));
    assert_eq!(world.sync_counting().1, 1);
}

#[test]
fn hints_stay_through_a_rolling_update() {
    let mut world = spill(&[("a", 1), ("b", 1), ("c", 1)], &[("a", 2), ("b", 2), ("c", 2)]);
    world.sync();
    world.remove_endpoints("c", 1);
    check(
        &mut world,
        expect![[r#"
            Spill a=86,b=85,c=85 [a>a 2, b>b 2, c>c 1]
            Service shop/web: TrafficDistributionProgrammed: zoneward.dev/traffic-distribution: Spill: c keeps 60 % with 1 endpoint, the rest goes to zones with spare capacity; 5 ready endpoints, expected traffic by CPU: a 34 %, b 33 %, c 33 %. Consumers that read only hints stay in their zone. Add endpoints there to keep more.
        "#]],
    );
    world.add_endpoints(&[("a", 6)]);
    world.sync();
    assert_eq!(world.hints(), "a> 8, b> 2, c> 1", "c would get four times its fair share");
}

#[test]
fn an_endpoint_without_a_zone_is_spare() {
    let mut world = spill(&[("a", 1), ("b", 1)], &[("a", 2), ("b", 2), ("", 1)]);
    world.sync();
    assert_eq!(world.hints(), "?> 1, a> 2, b> 2");
}

#[test]
fn the_field_says_the_same_as_the_annotation() {
    let mut world = World::new(&[("a", 1), ("b", 1)], world::service(&[], Some("zoneward.dev/Spill")));
    world.add_endpoints(&[("a", 1), ("b", 1)]);
    let outcome = world.sync();
    assert_eq!((outcome.mechanism, outcome.accepted.is_ok()), (Mechanism::Spill, true));
    assert_eq!(world.slices[0].content.annotation(a::MECHANISM), Some(&name("Spill")));
}

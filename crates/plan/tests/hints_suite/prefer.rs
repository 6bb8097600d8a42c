//! `same-zone: Prefer`: every row of seed 003's test plan, and what wraps around the rebalancing.

use expect_test::{Expect, expect};
use model::annotation as a;
use plan::hints::{Mechanism, ZoneWeight};
use proptest::prelude::*;

use crate::hints_suite::world::{self, World, notices};

const THREE: [(&str, usize); 3] = [("a", 1), ("b", 1), ("c", 1)];

fn prefer(zones: &[(&str, usize)], endpoints: &[(&str, usize)]) -> World {
    let mut world = World::new(zones, world::service(&[(a::SAME_ZONE, "Prefer")], None));
    world.add_endpoints(endpoints);
    world
}

fn is_active(world: &mut World) -> bool {
    let outcome = world.sync();
    assert_eq!(outcome.programmed, outcome.mechanism == Mechanism::PreferZone);
    assert_eq!(outcome.programmed, world.stored().any(|e| e.hints.is_some()));
    outcome.programmed
}

fn check(world: &mut World, expect: Expect) {
    let outcome = world.sync();
    expect.assert_eq(&format!("{} [{}]\n{}", outcome.mechanism.as_str(), world.hints(), notices(&outcome)));
}

// Seed 003, "Single Approach Test".

#[test]
fn small_and_large_numbers_of_nodes() {
    check(
        &mut prefer(&THREE, &[("a", 4), ("b", 4), ("c", 4)]),
        expect![[r#"
            PreferZone [a>a 4, b>b 4, c>c 4]
            Service shop/web: TrafficDistributionProgrammed: endpointslice.kubernetes.io/same-zone: Prefer: a has 4 for 33 % of the nodes, b has 4 for 33 % of the nodes, c has 4 for 33 % of the nodes; 0 of 12 ready endpoints serve another zone than their own; highest overload 0 %, threshold 50 % (starts at 12, ends at 6).
        "#]],
    );
    let mut large = prefer(&[("a", 400), ("b", 300), ("c", 100)], &[("a", 60), ("b", 20), ("c", 20)]);
    check(
        &mut large,
        expect![[r#"
            PreferZone [a>a 50, a>b 10, b>b 20, c>b 7, c>c 13]
            Service shop/web: TrafficDistributionProgrammed: endpointslice.kubernetes.io/same-zone: Prefer: a has 50 for 50 % of the nodes, b has 37 for 38 % of the nodes, c has 13 for 13 % of the nodes; 17 of 100 ready endpoints serve another zone than their own; highest overload 1 %, threshold 50 % (starts at 12, ends at 6). To keep more traffic in its zone, add endpoints in the zones that they are reassigned to.
        "#]],
    );
}

#[test]
fn balanced_and_imbalanced_endpoints() {
    check(
        &mut prefer(&THREE, &[("a", 10), ("b", 5), ("c", 3)]),
        expect![[r#"
            PreferZone [a>a 6, a>b 1, a>c 3, b>b 5, c>c 3]
            Service shop/web: TrafficDistributionProgrammed: endpointslice.kubernetes.io/same-zone: Prefer: a has 6 for 33 % of the nodes, b has 6 for 33 % of the nodes, c has 6 for 33 % of the nodes; 4 of 18 ready endpoints serve another zone than their own; highest overload 0 %, threshold 50 % (starts at 12, ends at 6). To keep more traffic in its zone, add endpoints in the zones that they are reassigned to.
        "#]],
    );
}

#[test]
fn no_endpoints_in_some_zones() {
    check(
        &mut prefer(&THREE, &[("a", 14)]),
        expect![[r#"
            PreferZone [a>a 6, a>b 4, a>c 4]
            Service shop/web: TrafficDistributionProgrammed: endpointslice.kubernetes.io/same-zone: Prefer: a has 6 for 33 % of the nodes, b has 4 for 33 % of the nodes, c has 4 for 33 % of the nodes; 8 of 14 ready endpoints serve another zone than their own; highest overload 17 %, threshold 50 % (starts at 12, ends at 6). To keep more traffic in its zone, add endpoints in the zones that they are reassigned to.
        "#]],
    );
}

#[test]
fn an_invalid_annotation_means_the_default() {
    let mut world = World::new(&THREE, world::service(&[(a::SAME_ZONE, "prefer")], None));
    world.add_endpoints(&[("a", 8), ("b", 8), ("c", 8)]);
    let outcome = world.sync();
    assert_eq!((outcome.mechanism, world.hints().as_str()), (Mechanism::None, "a> 8, b> 8, c> 8"));
    assert_eq!(outcome.notices.len(), 1);
}

// Seed 003, "`Prefer` Test".

#[test]
fn an_invalid_starting_threshold_falls_back_to_three_per_zone() {
    let annotations = [(a::SAME_ZONE, "Prefer"), (a::SAME_ZONE_STARTING_THRESHOLD, "-1")];
    let mut world = World::new(&THREE, world::service(&annotations, None));
    world.add_endpoints(&[("a", 4), ("b", 4), ("c", 3)]);
    assert!(!is_active(&mut world));
    world.add_endpoints(&[("c", 1)]);
    assert!(is_active(&mut world));
}

#[test]
fn below_threshold_and_padding_it_does_not_start() {
    // Seed 003: 3 zones, threshold 9, padding 3.
    check(
        &mut prefer(&THREE, &[("a", 4), ("b", 4), ("c", 3)]),
        expect![[r#"
            PreferZoneResting [a> 4, b> 4, c> 3]
            Service shop/web: TrafficDistributionWithheld: endpointslice.kubernetes.io/same-zone: Prefer: traffic is spread evenly: 11 ready endpoints in 3 zones, Prefer starts at 12 (threshold 9, padding 3). Add 1, lower endpointslice.kubernetes.io/same-zone-starting-threshold, or use Spill, which needs no minimum.
        "#]],
    );
}

#[test]
fn at_threshold_and_padding_it_starts() {
    assert!(is_active(&mut prefer(&THREE, &[("a", 4), ("b", 4), ("c", 4)])));
}

#[test]
fn a_threshold_of_its_own_counts() {
    let annotations = [(a::SAME_ZONE, "Prefer"), (a::SAME_ZONE_STARTING_THRESHOLD, "20")];
    let mut world = World::new(&THREE, world::service(&annotations, None));
    world.add_endpoints(&[("a", 8), ("b", 8), ("c", 6)]);
    assert!(!is_active(&mut world), "22 is below 23");
    world.add_endpoints(&[("c", 1)]);
    assert!(is_active(&mut world));
    world.remove_endpoints("a", 5);
    assert!(is_active(&mut world), "18 is above 17");
    world.remove_endpoints("b", 1);
    assert!(!is_active(&mut world));
}

// Seed 003, "Approach Transition Test".

#[test]
fn between_threshold_and_padding_it_keeps_what_it_was() {
    let mut world = prefer(&THREE, &[("a", 3), ("b", 3), ("c", 3)]);
    assert!(!is_active(&mut world));
    world.add_endpoints(&[("a", 1), ("b", 1)]);
    assert!(!is_active(&mut world), "11: not yet");
    world.add_endpoints(&[("c", 1)]);
    assert!(is_active(&mut world), "12: it starts");
    world.remove_endpoints("a", 2);
    world.remove_endpoints("b", 2);
    world.remove_endpoints("c", 1);
    assert!(is_active(&mut world), "7: it goes on");
    world.restart();
    assert!(is_active(&mut world), "7: also after a restart");
    world.remove_endpoints("c", 1);
    check(
        &mut world,
        expect![[r#"
            PreferZoneResting [a> 2, b> 2, c> 2]
            Service shop/web: TrafficDistributionWithheld: endpointslice.kubernetes.io/same-zone: Prefer: traffic is spread evenly: 6 ready endpoints in 3 zones, Prefer ended at 6 and starts again at 12 (threshold 9, padding 3). Add 6, lower endpointslice.kubernetes.io/same-zone-starting-threshold, or use Spill, which needs no minimum.
        "#]],
    );
    world.add_endpoints(&[("a", 2), ("b", 2), ("c", 1)]);
    assert!(!is_active(&mut world), "11: it waits for 12 again");
}

#[test]
fn another_value_of_the_annotation_changes_the_distribution() {
    let mut world = prefer(&THREE, &[("a", 9), ("b", 3), ("c", 0)]);
    for (level, hints) in [
        ("Prefer", "a>a 4, a>b 1, a>c 4, b>b 3"),
        ("Require", "a>a 9, b>b 3"),
        ("Balanced", "a> 9, b> 3"),
        ("Require", "a>a 9, b>b 3"),
        ("Prefer", "a>a 4, a>b 1, a>c 4, b>b 3"),
        ("Balanced", "a> 9, b> 3"),
    ] {
        world.service = world::service(&[(a::SAME_ZONE, level)], None);
        world.sync();
        assert_eq!(world.hints(), hints, "{level}");
    }
}

// What wraps around it.

#[test]
fn an_update_that_overloads_nobody_changes_nothing_else() {
    let mut world = prefer(&THREE, &[("a", 12), ("b", 6), ("c", 2)]);
    world.slice_size = 4;
    world.sync();
    assert_eq!(world.hints(), "a>a 8, a>c 4, b>b 6, c>c 2");
    let before = world.hint_by_address();
    world.add_endpoints(&[("c", 3), ("b", 1)]);
    world.sync();
    // Balanced anew, c would give its own endpoints back.
    assert_eq!(world.hints(), "a>a 8, a>c 4, b>b 7, c>c 5");
    let after = world.hint_by_address();
    assert!(before.iter().all(|(address, hints)| after[address] == *hints));
}

#[test]
fn everything_is_rebalanced_when_a_zone_would_be_overloaded() {
    let mut world = prefer(&THREE, &[("a", 8), ("b", 8), ("c", 8)]);
    world.sync();
    world.remove_endpoints("c", 4);
    world.sync();
    // c would get 20 / 3 / 4 of a fair share, which is 67 % too much.
    assert_eq!(world.hints(), "a>a 7, a>c 1, b>b 7, b>c 1, c>c 4");
}

#[test]
fn endpoints_lent_to_a_zone_that_is_gone_come_home() {
    let mut world = prefer(&THREE, &[("a", 10), ("b", 8)]);
    world.sync();
    assert_eq!(world.hints(), "a>a 6, a>c 4, b>b 6, b>c 2");
    world.nodes.remove("c-node-0");
    world.sync();
    assert_eq!(world.hints(), "a>a 10, b>b 8");
}

#[test]
fn without_zones_or_with_an_endpoint_in_none_it_rests() {
    check(
        &mut prefer(&[], &[("a", 14)]),
        expect![[r#"
            PreferZoneResting [a> 14]
            Service shop/web: TrafficDistributionWithheld: endpointslice.kubernetes.io/same-zone: Prefer: traffic is spread evenly: no ready node has the label topology.kubernetes.io/zone. Add it to the nodes.
        "#]],
    );
    check(
        &mut prefer(&THREE, &[("a", 14), ("", 1)]),
        expect![[r#"
            PreferZoneResting [?> 1, a> 14]
            Service shop/web: TrafficDistributionWithheld: endpointslice.kubernetes.io/same-zone: Prefer: traffic is spread evenly: Pod web-15 has no zone. Add the label topology.kubernetes.io/zone to its node.
        "#]],
    );
}

#[test]
fn it_is_downgraded_where_overload_cannot_be_avoided() {
    // Each of ten zones needs two of fifteen endpoints, and one of fourteen.
    let annotations = [(a::SAME_ZONE, "Prefer"), (a::SAME_ZONE_STARTING_THRESHOLD, "1")];
    let names: Vec<String> = (0..10).map(|i| format!("z{i}")).collect();
    let zones: Vec<(&str, usize)> = names.iter().map(|z| (z.as_str(), 1)).collect();
    let mut world = World::new(&zones, world::service(&annotations, None));
    world.add_endpoints(&[("z0", 14)]);
    check(
        &mut world,
        expect![[r#"
            PreferZoneResting [z0> 14]
            Service shop/web: TrafficDistributionWithheld: endpointslice.kubernetes.io/same-zone: Prefer: traffic is spread evenly: 14 ready endpoints, plus or minus 3, cannot always be distributed over 10 zones without giving one 50 % more than its fair share. Add endpoints, or use Spill, which overloads none.
        "#]],
    );
    world.add_endpoints(&[("z0", 10)]);
    assert!(is_active(&mut world), "24 is possible, and so are 21 to 27");
    world.remove_endpoints("z0", 9);
    check(
        &mut world,
        expect![[r#"
            PreferZoneResting [z0> 15]
            Service shop/web: TrafficDistributionWithheld: endpointslice.kubernetes.io/same-zone: Prefer: traffic is spread evenly: 15 ready endpoints, plus or minus 3, cannot always be distributed over 10 zones without giving one 50 % more than its fair share. Add endpoints, or use Spill, which overloads none.
        "#]],
    );
}

#[test]
fn traffic_may_be_counted_by_cpu() {
    let mut world = prefer(&[], &[("a", 8), ("b", 8)]);
    world.add_node(world::node("a-node-0", "a", 12_000));
    world.add_node(world::node("b-node-0", "b", 4_000));
    world.sync();
    assert_eq!(world.hints(), "a>a 8, b>b 8");
    world.config.prefer_by = ZoneWeight::Cpu;
    world.restart();
    world.sync();
    assert_eq!(world.hints(), "a>a 8, b>a 4, b>b 4");
}

#[test]
fn within_regions_nothing_is_lent_to_the_other() {
    let annotations = [(a::SAME_ZONE, "Prefer"), (a::SAME_REGION, "Require")];
    let mut world = World::new(&[("a", 1), ("b", 1), ("c", 1), ("d", 1)], world::service(&annotations, None));
    world.set_regions(&[("a", "east"), ("b", "east"), ("c", "west"), ("d", "west")]);
    world.add_endpoints(&[("a", 20), ("c", 8)]);
    check(
        &mut world,
        expect![[r#"
            PreferZoneRequireRegionResting [a>a|b 20, c>c|d 8]
            Service shop/web: TrafficDistributionWithheld: endpointslice.kubernetes.io/same-zone: Prefer, endpointslice.kubernetes.io/same-region: Require: traffic is spread evenly over the region: 8 ready endpoints in 2 zones of region west, Prefer starts at 9 (threshold 6, padding 3). Add 1, lower endpointslice.kubernetes.io/same-zone-starting-threshold, or use Spill, which needs no minimum.
        "#]],
    );
    world.add_endpoints(&[("c", 1)]);
    check(
        &mut world,
        expect![[r#"
            PreferZoneRequireRegion [a>a 10, a>b 10, c>c 5, c>d 4]
            Service shop/web: TrafficDistributionProgrammed: endpointslice.kubernetes.io/same-zone: Prefer, endpointslice.kubernetes.io/same-region: Require: a has 10 for 50 % of the nodes, b has 10 for 50 % of the nodes, c has 5 for 50 % of the nodes, d has 4 for 50 % of the nodes; 14 of 29 ready endpoints serve another zone than their own; highest overload 13 %, threshold 50 % (starts at 9, ends at 3). To keep more traffic in its zone, add endpoints in the zones that they are reassigned to.
        "#]],
    );
}

fn highest_overload(world: &World, nodes: &[u64]) -> f64 {
    let ready = world.endpoints.len() as f64;
    let total: u64 = nodes.iter().sum();
    let overload = |(i, nodes): (usize, &u64)| {
        let zone = format!("z{i}");
        let serving = world.stored().filter(|e| e.zone_hints().iter().any(|z| *z == zone.as_str())).count();
        let expected = *nodes as f64 / total as f64 * ready;
        if expected == 0.0 { -1.0 } else { expected / serving as f64 - 1.0 }
    };
    nodes.iter().enumerate().map(overload).fold(-1.0, f64::max)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Through any history of endpoints and nodes that come and go, with any threshold.
    #[test]
    fn prefer_never_exceeds_its_overload_threshold(
        nodes in prop::collection::vec(0u64..9, 1..6),
        steps in prop::collection::vec((0usize..6, -6i64..9, any::<bool>()), 1..12),
        threshold in prop::option::of(1u32..30),
        slice_size in 1usize..30,
    ) {
        let threshold = threshold.map(|t| t.to_string());
        let mut annotations = vec![(a::SAME_ZONE, "Prefer")];
        annotations.extend(threshold.iter().map(|t| (a::SAME_ZONE_STARTING_THRESHOLD, t.as_str())));
        let mut world = World::new(&[], world::service(&annotations, None));
        world.slice_size = slice_size;
        let mut nodes = nodes;
        for (zone, change, restart) in steps {
            let name = format!("z{zone}");
            if let (Some(count), true) = (nodes.get_mut(zone), change % 3 == 0) {
                *count = (*count + 1) % 9;
            }
            world.nodes.clear();
            for (i, count) in nodes.iter().enumerate() {
                (0..*count).for_each(|n| world.add_node(world::node(&format!("n{i}-{n}"), &format!("z{i}"), 1_000)));
            }
            let here = world.endpoints.iter().filter(|e| e.zone.as_ref().is_some_and(|z| *z == name.as_str())).count();
            match usize::try_from(change) {
                Ok(more) => world.add_endpoints(&[(&name, more)]),
                Err(_) => world.remove_endpoints(&name, here.min(change.unsigned_abs() as usize)),
            }
            if restart {
                world.restart();
            }
            let outcome = world.sync();
            if outcome.programmed {
                let overload = highest_overload(&world, &nodes);
                prop_assert!(overload < 0.5, "{}", overload);
                prop_assert!(world.stored().all(|e| e.zone_hints().len() == 1));
            } else {
                prop_assert!(world.stored().all(|e| e.hints.is_none()));
            }
        }
    }
}

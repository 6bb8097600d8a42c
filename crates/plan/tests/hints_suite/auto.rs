//! Auto: safeguards, explanations, and what differs from upstream.

use expect_test::{Expect, expect};
use model::annotation as a;
use plan::hints::{Hysteresis, Mechanism, event_reason};
use proptest::prelude::*;

use crate::hints_suite::world::{self, World, name, notices};

fn auto(zones: &[(&str, usize)], endpoints: &[(&str, usize)]) -> World {
    let mut world = World::new(zones, world::service(&[(a::TOPOLOGY_MODE, "Auto")], None));
    world.add_endpoints(endpoints);
    world
}

fn check(world: &mut World, expect: Expect) {
    let outcome = world.sync();
    let held_back = outcome.held_back.map_or(String::new(), |(word, _)| format!(" held back: {word}"));
    expect.assert_eq(&format!("{}{held_back}\n{}", world.hints(), notices(&outcome)));
}

#[test]
fn zones_get_endpoints_by_their_cpu() {
    let mut world = auto(&[("a", 2), ("b", 1)], &[("a", 3), ("b", 3)]);
    check(
        &mut world,
        expect![[r#"
        a>a 3, b>a 1, b>b 2
        Service shop/web: TopologyAwareHintsEnabled: Topology Aware Hints has been enabled, addressType: IPv4. service.kubernetes.io/topology-mode: Auto: a has 4 for 67 % of the CPU (at least 4), b has 2 for 33 % of the CPU (at least 2).
    "#]],
    );
}

#[test]
fn safeguard_1_fewer_endpoints_than_zones() {
    check(
        &mut auto(&[("a", 1), ("b", 1), ("c", 1)], &[("a", 1), ("b", 1)]),
        expect![[r#"
            a> 1, b> 1 held back: FewerEndpointsThanZones
            Service shop/web: TopologyAwareHintsDisabled: Insufficient number of endpoints (2 endpoints, 3 zones), addressType: IPv4. Every zone needs at least one endpoint: add 1 endpoint, or use PreferSameZone or Spill, which need no minimum.
        "#]],
    );
}

#[test]
fn safeguard_2_no_balanced_allocation() {
    // kubernetes#122437: four, four and three.
    check(
        &mut auto(&[("a", 1), ("b", 1), ("c", 1)], &[("a", 4), ("b", 4), ("c", 3)]),
        expect![[r#"
            a> 4, b> 4, c> 3 held back: OverloadUnavoidable
            Service shop/web: TopologyAwareHintsDisabled: Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (11 endpoints, 3 zones), addressType: IPv4. a needs 4 ready endpoints for its 33 % of the CPU, b needs 4 ready endpoints for its 33 % of the CPU, c needs 4 ready endpoints for its 33 % of the CPU, together 12, and 11 are ready: add 1 endpoint, or use PreferSameZone or Spill, which need no minimum.
        "#]],
    );
}

#[test]
fn safeguard_3_a_node_without_information() {
    let mut world = auto(&[("a", 1), ("b", 1)], &[("a", 2), ("b", 2)]);
    world.add_node(world::node("new", "", 4_000));
    check(
        &mut world,
        expect![[r#"
            a> 2, b> 2 held back: InsufficientNodeInformation
            Service shop/web: TopologyAwareHintsDisabled: Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4. Node new has no zone: add the label topology.kubernetes.io/zone, or use PreferSameZone or Spill, which need no minimum.
        "#]],
    );
    world.add_node(world::node("new", "b", 0));
    check(
        &mut world,
        expect![[r#"
            a> 2, b> 2 held back: InsufficientNodeInformation
            Service shop/web: TopologyAwareHintsDisabled: Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4. Node new reports no allocatable CPU: check its kubelet, or use PreferSameZone or Spill, which need no minimum.
        "#]],
    );
    // Semantics A2: nodes that are not ready, and those of the control plane, do not count.
    world.add_node(model::Node { ready: false, ..world::node("new", "", 0) });
    world.add_node(model::Node { control_plane: true, ..world::node("cp", "", 0) });
    assert!(world.sync().programmed);
}

#[test]
fn one_zone_has_nothing_to_keep_apart() {
    check(
        &mut auto(&[("a", 2)], &[("a", 4)]),
        expect![[r#"
            a> 4 held back: OneZoneOnly
            Service shop/web: TopologyAwareHintsDisabled: Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4. All ready nodes are in a, so there is nothing to distribute: add nodes in another zone, or use PreferSameZone or Spill, which need no minimum.
        "#]],
    );
    check(
        &mut auto(&[], &[("a", 4)]),
        expect![[r#"
            a> 4 held back: InsufficientNodeInformation
            Service shop/web: TopologyAwareHintsDisabled: Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4. No node is ready except those of the control plane: add nodes, or use PreferSameZone or Spill, which need no minimum.
        "#]],
    );
}

#[test]
fn an_endpoint_without_a_zone_takes_all_hints_away() {
    let mut world = auto(&[("a", 1), ("b", 1)], &[("a", 3), ("b", 2), ("", 1)]);
    check(
        &mut world,
        expect![[r#"
            ?> 1, a> 3, b> 2 held back: EndpointWithoutZone
            Service shop/web: TopologyAwareHintsDisabled: One or more endpoints do not have a zone specified, addressType: IPv4. Pod web-6 is the first of 1: add the label topology.kubernetes.io/zone to its node, or use PreferSameZone or Spill, which need no minimum.
        "#]],
    );
}

#[test]
fn a_change_of_cpu_counts() {
    // Upstream notices only nodes that come, go, or change zone or readiness (pitfall 30).
    let mut world = auto(&[("a", 1), ("b", 1)], &[("a", 6), ("b", 6)]);
    world.sync();
    assert_eq!(world.hints(), "a>a 6, b>b 6");
    world.add_node(world::node("a-node-0", "a", 12_000));
    assert!(world.hysteresis.is_overloaded(&world.topology()));
    world.sync();
    assert_eq!(world.hints(), "a>a 6, b>a 3, b>b 3");
    assert!(!world.hysteresis.is_overloaded(&world.topology()));
}

#[test]
fn endpoints_in_a_zone_without_nodes_are_named() {
    check(
        &mut auto(&[("a", 1), ("b", 1)], &[("a", 3), ("b", 3), ("gone", 1)]),
        expect![[r#"
            a>a 3, b>b 3, gone>gone 1
            Service shop/web: TopologyAwareHintsEnabled: Topology Aware Hints has been enabled, addressType: IPv4. service.kubernetes.io/topology-mode: Auto: a has 3 for 50 % of the CPU (at least 3), b has 3 for 50 % of the CPU (at least 3). Endpoints in zones without ready nodes get almost no traffic: gone 1.
        "#]],
    );
}

#[test]
fn no_zone_is_left_without_its_minimum_by_endpoints_elsewhere() {
    // Upstream never reassigns the endpoints of a zone without nodes, and would leave b with none.
    let mut world = auto(&[("a", 1), ("b", 1)], &[("a", 2), ("gone", 4)]);
    world.sync();
    assert_eq!(world.hints(), "a>a 2, gone>a 1, gone>b 3");
}

#[test]
fn hints_that_stand_stay_through_a_rolling_update() {
    let mut world = auto(&[("a", 1), ("b", 1), ("c", 1)], &[("a", 4), ("b", 4), ("c", 4)]);
    world.sync();
    world.remove_endpoints("c", 1);
    check(
        &mut world,
        expect![[r#"
            a>a 4, b>b 4, c>c 3
            Service shop/web: TopologyAwareHintsEnabled: Topology Aware Hints has been enabled, addressType: IPv4. service.kubernetes.io/topology-mode: Auto: a has 4 for 33 % of the CPU (at least 2), b has 4 for 33 % of the CPU (at least 2), c has 3 for 33 % of the CPU (at least 2). There are too few endpoints to set new hints, but existing hints stay while every zone can have half of its share.
        "#]],
    );
    // A controller that starts now goes on with them; one that never saw them would not set them.
    world.restart();
    assert!(world.sync().programmed);
    world.hysteresis = Hysteresis::default();
    assert!(!world.sync().programmed);
}

#[test]
fn nothing_is_said_twice() {
    let mut world = auto(&[("a", 1), ("b", 1)], &[("a", 3), ("b", 3)]);
    let reasons = |world: &mut World| world.sync().news().map(|n| n.reason).collect::<Vec<_>>();
    assert_eq!(reasons(&mut world), [event_reason::AUTO_ENABLED]);
    world.add_endpoints(&[("a", 1), ("b", 1)]);
    assert!(reasons(&mut world).is_empty());
    world.restart();
    assert!(reasons(&mut world).is_empty(), "the slices tell that it was said");
    world.endpoints.truncate(1);
    assert_eq!(reasons(&mut world), [event_reason::AUTO_DISABLED]);
    assert!(reasons(&mut world).is_empty());
    world.add_node(world::node("new", "", 4_000));
    assert_eq!(reasons(&mut world), [event_reason::AUTO_DISABLED], "another cause is news");
    world.nodes.remove("new");
    world.restart();
    assert!(reasons(&mut world).is_empty());
    world.add_endpoints(&[("a", 3), ("b", 3)]);
    assert_eq!(reasons(&mut world), [event_reason::AUTO_ENABLED]);
}

#[test]
fn switching_to_another_mechanism_ends_auto_once() {
    let mut world = auto(&[("a", 1), ("b", 1)], &[("a", 3), ("b", 3)]);
    world.sync();
    world.service = world::service(&[], Some("PreferSameZone"));
    let outcome = world.sync();
    expect![[r#"
        Service shop/web: TopologyAwareHintsDisabled: Topology Aware Hints has been disabled, addressType: IPv4. spec.trafficDistribution: PreferSameZone decides now, the hints of Auto are removed.
        Service shop/web: TrafficDistributionProgrammed: spec.trafficDistribution: PreferSameZone: traffic stays in its zone, and goes to all endpoints if there is none; 6 ready endpoints (a 3, b 3). There is no minimum number of endpoints.
    "#]].assert_eq(&notices(&outcome));
    assert_eq!(world.sync().notices.len(), 1);
}

#[test]
fn the_annotation_is_written_with_the_slices_only() {
    let mut world = auto(&[("a", 1), ("b", 1)], &[("a", 3), ("b", 3)]);
    world.sync();
    assert_eq!(world.slices[0].content.annotation(a::MECHANISM), Some(&name("Auto")));
    assert_eq!(world.hysteresis.mechanism(), Mechanism::Auto);
}

fn counts(world: &World) -> std::collections::BTreeMap<String, usize> {
    let mut counts = std::collections::BTreeMap::new();
    let zones = world.stored().flat_map(|e| e.zone_hints());
    zones.for_each(|z| *counts.entry(z.to_string()).or_default() += 1);
    counts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever was stored before, and wherever the endpoints are.
    #[test]
    fn auto_never_leaves_a_zone_of_its_allocation_without_its_minimum(
        cpu in prop::collection::vec(1u64..16, 2..6),
        steps in prop::collection::vec((0usize..7, 0usize..9), 1..6),
        slice_size in 1usize..12,
    ) {
        let mut world = auto(&[], &[]);
        world.slice_size = slice_size;
        for (i, cpu) in cpu.iter().enumerate() {
            world.add_node(world::node(&format!("n{i}"), &format!("z{i}"), cpu * 1_000));
        }
        for (zone, count) in steps {
            // Zones from the number of nodes on have none.
            world.add_endpoints(&[(&format!("z{zone}"), count)]);
            let held = world.hysteresis.mechanism() == Mechanism::Auto;
            let outcome = world.sync();
            if !outcome.programmed {
                prop_assert_eq!(world.stored().filter(|e| e.hints.is_some()).count(), 0);
                continue;
            }
            let counts = counts(&world);
            let ready = world.endpoints.len() as f64;
            let total: u64 = cpu.iter().sum();
            for (i, cpu) in cpu.iter().enumerate() {
                let share = *cpu as f64 * 1000.0 / (total as f64 * 1000.0) * ready;
                let bound = if held { 2.0 } else { 1.2 };
                let minimum = (share * (1.0 / bound)).ceil() as usize;
                let has = counts.get(&format!("z{i}")).copied().unwrap_or(0);
                prop_assert!(has >= minimum, "z{} has {} of {}", i, has, minimum);
            }
        }
    }
}

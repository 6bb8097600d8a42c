//! Require, the region, and every combination of levels.

use expect_test::{Expect, expect};
use model::annotation as a;
use plan::hints::same_zone::{TopologyLevel, combine};
use plan::hints::{Mechanism, TopologyScope};
use plan::regions::Regions;

use crate::hints_suite::world::{self, World, name, notices};

const LEVELS: [TopologyLevel; 3] = [TopologyLevel::Balanced, TopologyLevel::Prefer, TopologyLevel::Require];

fn text(level: TopologyLevel) -> &'static str {
    match level {
        TopologyLevel::Balanced => "Balanced",
        TopologyLevel::Prefer => "Prefer",
        TopologyLevel::Require => "Require",
    }
}

/// Two regions: east has zones a, b and the empty c; west has d and the empty e.
fn world(annotations: &[(&str, &str)]) -> World {
    let mut world =
        World::new(&[("a", 2), ("b", 2), ("c", 1), ("d", 2), ("e", 1)], world::service(annotations, None));
    world.set_regions(&[("a", "east"), ("b", "east"), ("c", "east"), ("d", "west"), ("e", "west")]);
    world
}

#[test]
fn every_combination_of_levels_has_its_mechanism_and_hints() {
    let mut table = String::new();
    for node in LEVELS {
        for zone in LEVELS {
            for region in LEVELS {
                let annotations =
                    [(a::SAME_NODE, text(node)), (a::SAME_ZONE, text(zone)), (a::SAME_REGION, text(region))];
                let mut world = world(&annotations);
                world.add_endpoints(&[("a", 8), ("b", 6), ("d", 9)]);
                let outcome = world.sync();
                assert_eq!(outcome.mechanism, combine(node, zone, region));
                let levels = annotations.map(|(_, level)| level).join(" ");
                table += &format!("{levels}: {} [{}]\n", outcome.mechanism.as_str(), world.hints());
            }
        }
    }
    expect![[r#"
        Balanced Balanced Balanced: None [a> 8, b> 6, d> 9]
        Balanced Balanced Prefer: PreferRegion [a>a|b|c 8, b>a|b|c 6, d>d|e 9]
        Balanced Balanced Require: RequireRegion [a>a|b|c 8, b>a|b|c 6, d>d|e 9]
        Balanced Prefer Balanced: PreferZone [a>a 6, a>c 1, a>e 1, b>b 6, d>c 1, d>d 7, d>e 1]
        Balanced Prefer Prefer: PreferZoneRegion [a>a 6, a>c 2, b>b 6, d>d 6, d>e 3]
        Balanced Prefer Require: PreferZoneRequireRegion [a>a 6, a>c 2, b>b 6, d>d 6, d>e 3]
        Balanced Require Balanced: RequireZone [a>a 8, b>b 6, d>d 9]
        Balanced Require Prefer: RequireZone [a>a 8, b>b 6, d>d 9]
        Balanced Require Require: RequireZone [a>a 8, b>b 6, d>d 9]
        Prefer Balanced Balanced: PreferSameNode [a>a+node 8, b>b+node 6, d>d+node 9]
        Prefer Balanced Prefer: PreferNodeRegion [a>a|c+node 8, b>b|c+node 6, d>d|e+node 9]
        Prefer Balanced Require: PreferNodeRequireRegion [a>a|c+node 8, b>b|c+node 6, d>d|e+node 9]
        Prefer Prefer Balanced: PreferNodeZone [a>a+node 6, a>c+node 1, a>e+node 1, b>b+node 6, d>c+node 1, d>d+node 7, d>e+node 1]
        Prefer Prefer Prefer: PreferNodeZoneRegion [a>a+node 6, a>c+node 2, b>b+node 6, d>d+node 6, d>e+node 3]
        Prefer Prefer Require: PreferNodeZoneRequireRegion [a>a+node 6, a>c+node 2, b>b+node 6, d>d+node 6, d>e+node 3]
        Prefer Require Balanced: PreferNodeRequireZone [a>a+node 8, b>b+node 6, d>d+node 9]
        Prefer Require Prefer: PreferNodeRequireZone [a>a+node 8, b>b+node 6, d>d+node 9]
        Prefer Require Require: PreferNodeRequireZone [a>a+node 8, b>b+node 6, d>d+node 9]
        Require Balanced Balanced: RequireNode [a>a+node 8, b>b+node 6, d>d+node 9]
        Require Balanced Prefer: RequireNode [a>a+node 8, b>b+node 6, d>d+node 9]
        Require Balanced Require: RequireNode [a>a+node 8, b>b+node 6, d>d+node 9]
        Require Prefer Balanced: RequireNode [a>a+node 8, b>b+node 6, d>d+node 9]
        Require Prefer Prefer: RequireNode [a>a+node 8, b>b+node 6, d>d+node 9]
        Require Prefer Require: RequireNode [a>a+node 8, b>b+node 6, d>d+node 9]
        Require Require Balanced: RequireNode [a>a+node 8, b>b+node 6, d>d+node 9]
        Require Require Prefer: RequireNode [a>a+node 8, b>b+node 6, d>d+node 9]
        Require Require Require: RequireNode [a>a+node 8, b>b+node 6, d>d+node 9]
    "#]].assert_eq(&table);
}

#[test]
fn the_guide_shows_the_same_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/choosing.md");
    let guide = std::fs::read_to_string(path).expect("the guide is in the repository");
    for node in LEVELS {
        for zone in LEVELS {
            let cell = |region| match combine(node, zone, region) {
                Mechanism::None => "none",
                mechanism => mechanism.as_str(),
            };
            let zone = if node == TopologyLevel::Require { "any" } else { text(zone) };
            let row = format!("| {} | {zone} | {} |", text(node), LEVELS.map(cell).join(" | "));
            assert!(guide.contains(&row), "missing in docs/guide/choosing.md: {row}");
        }
    }
}

#[test]
fn a_narrower_require_requires_the_wider_levels() {
    // Seed 003: "Require node would also Require zone and region".
    for wider in LEVELS {
        for widest in LEVELS {
            assert_eq!(combine(TopologyLevel::Require, wider, widest).required(), Some(TopologyScope::Node));
            assert_ne!(combine(wider, TopologyLevel::Require, widest).required(), None);
            assert_ne!(
                combine(wider, TopologyLevel::Require, widest).required(),
                Some(TopologyScope::Region)
            );
        }
    }
}

#[test]
fn prefer_never_goes_past_a_wider_require() {
    assert_eq!(
        combine(TopologyLevel::Prefer, TopologyLevel::Require, TopologyLevel::Balanced).required(),
        Some(TopologyScope::Zone)
    );
    assert_eq!(
        combine(TopologyLevel::Prefer, TopologyLevel::Prefer, TopologyLevel::Require).required(),
        Some(TopologyScope::Region)
    );
    assert_eq!(combine(TopologyLevel::Prefer, TopologyLevel::Prefer, TopologyLevel::Prefer).required(), None);
}

fn check(world: &mut World, expect: Expect) {
    let outcome = world.sync();
    expect.assert_eq(&format!("{} [{}]\n{}", outcome.mechanism.as_str(), world.hints(), notices(&outcome)));
}

#[test]
fn require_says_who_is_cut_off() {
    let mut world =
        World::new(&[("a", 2), ("b", 2), ("c", 1)], world::service(&[(a::SAME_ZONE, "Require")], None));
    world.add_node(world::node("stray", "", 4_000));
    world.add_endpoints(&[("a", 4), ("b", 4)]);
    check(
        &mut world,
        expect![[r#"
            RequireZone [a>a 4, b>b 4]
            Service shop/web: TrafficDistributionProgrammed: endpointslice.kubernetes.io/same-zone: Require: traffic goes to its own zone or nowhere; 8 ready endpoints. Make sure that each has enough endpoints. Consumers that read only hints use all endpoints if a hint is missing, Zoneward's nodes do not.
            Service shop/web: UnreachableFromSome: Clients in c (1 node) cannot reach the Service: no endpoint that they may use is ready. Add one there, or use Prefer instead of Require.
            Service shop/web: UnreachableFromSome: Clients on 1 node without the label topology.kubernetes.io/zone (stray) cannot reach the Service. Add the label, or use Prefer instead of Require.
        "#]],
    );
}

#[test]
fn require_keeps_its_word_at_any_load() {
    let mut world = World::new(&[("a", 3), ("b", 1)], world::service(&[(a::SAME_ZONE, "Require")], None));
    world.add_endpoints(&[("a", 1), ("b", 5), ("", 1)]);
    check(
        &mut world,
        expect![[r#"
            RequireZone [?> 1, a>a 1, b>b 5]
            Service shop/web: TrafficDistributionProgrammed: endpointslice.kubernetes.io/same-zone: Require: traffic goes to its own zone or nowhere; 7 ready endpoints. Make sure that each has enough endpoints. Consumers that read only hints use all endpoints if a hint is missing, Zoneward's nodes do not.
            Service shop/web: OverloadExpected: Zone a sends 75 % of the traffic (by nodes) to 1 ready endpoint, so it gets about 425 % more than its fair share; the hints stay. Add 5 there, or use Spill, which sends the excess elsewhere.
            Service shop/web: TopologyUnknown: Without a zone: 1 ready endpoint, the first is Pod web-7, so Zoneward's nodes do not use it. Add the label topology.kubernetes.io/zone to its node.
        "#]],
    );
}

#[test]
fn require_node_is_for_the_node_alone() {
    let mut world = World::new(&[("a", 2), ("b", 1)], world::service(&[(a::SAME_NODE, "Require")], None));
    world.add_endpoints(&[("a", 1)]);
    check(
        &mut world,
        expect![[r#"
            RequireNode [a>a+node 1]
            Service shop/web: TrafficDistributionProgrammed: endpointslice.kubernetes.io/same-node: Require: traffic goes to its own node or nowhere; 1 ready endpoint. Make sure that each has enough endpoints. Consumers that read only hints use all endpoints if a hint is missing, Zoneward's nodes do not.
            Service shop/web: UnreachableFromSome: Clients on 2 of 3 ready nodes cannot reach the Service: no endpoint is ready there. Run one on every node, e.g. with a DaemonSet, or use Prefer instead of Require.
        "#]],
    );
}

#[test]
fn a_region_is_cut_off_only_if_none_of_its_zones_has_an_endpoint() {
    let mut world = world(&[(a::SAME_REGION, "Require")]);
    world.add_endpoints(&[("a", 2)]);
    check(
        &mut world,
        expect![[r#"
            RequireRegion [a>a|b|c 2]
            Service shop/web: TrafficDistributionProgrammed: endpointslice.kubernetes.io/same-region: Require: traffic goes to its own region or nowhere; 2 ready endpoints. Make sure that each has enough endpoints. Consumers that read only hints use all endpoints if a hint is missing, Zoneward's nodes do not.
            Service shop/web: UnreachableFromSome: Clients in d (2 nodes), e (1 node) cannot reach the Service: no endpoint that they may use is ready. Add one there, or use Prefer instead of Require.
        "#]],
    );
}

#[test]
fn a_region_that_is_preferred_falls_back_to_all() {
    let mut world = world(&[(a::SAME_REGION, "Prefer")]);
    world.add_endpoints(&[("a", 1), ("b", 1)]);
    check(
        &mut world,
        expect![[r#"
            PreferRegion [a>a|b|c 1, b>a|b|c 1]
            Service shop/web: TrafficDistributionProgrammed: endpointslice.kubernetes.io/same-region: Prefer: traffic goes to its own region, else all endpoints; 2 ready endpoints.
        "#]],
    );
}

#[test]
fn regions_that_are_not_labelled_are_one() {
    let mut world = World::new(&[("a", 1), ("b", 1)], world::service(&[(a::SAME_REGION, "Require")], None));
    world.add_endpoints(&[("a", 1), ("b", 1)]);
    check(
        &mut world,
        expect![[r#"
            RequireRegion [a>a|b 1, b>a|b 1]
            Service shop/web: TrafficDistributionProgrammed: endpointslice.kubernetes.io/same-region: Require: traffic goes to its own region or nowhere; 2 ready endpoints. Make sure that each has enough endpoints. Consumers that read only hints use all endpoints if a hint is missing, Zoneward's nodes do not.
            Service shop/web: TopologyUnknown: No node has the label topology.kubernetes.io/region, so the whole cluster counts as one region. Add the label, or use same-zone.
        "#]],
    );
}

#[test]
fn a_zone_whose_nodes_disagree_is_named() {
    let mut world = world(&[(a::SAME_REGION, "Prefer")]);
    world.nodes.get_mut("a-node-1").unwrap().region = Some(name("west"));
    world.add_endpoints(&[("a", 1)]);
    check(
        &mut world,
        expect![[r#"
            PreferRegion [a>a|b|c 1]
            Service shop/web: TrafficDistributionProgrammed: endpointslice.kubernetes.io/same-region: Prefer: traffic goes to its own region, else all endpoints; 1 ready endpoint.
            Service shop/web: TopologyUnknown: The nodes of zone a have different regions (node a-node-1 differs from the first), so the region of the first node by name is used. Correct the label topology.kubernetes.io/region.
        "#]],
    );
}

#[test]
fn hints_alone_say_zone_else_region_else_everywhere() {
    let mut world = world(&[(a::SAME_NODE, "Prefer"), (a::SAME_REGION, "Prefer")]);
    world.add_endpoints(&[("a", 1), ("b", 1), ("d", 1)]);
    assert_eq!(world.sync().mechanism, Mechanism::PreferNodeRegion);
    // c and e have no endpoint: their clients stay in their region.
    assert_eq!(world.hints(), "a>a|c+node 1, b>b|c+node 1, d>d|e+node 1");
    world.add_endpoints(&[("c", 1)]);
    world.sync();
    assert_eq!(world.hints(), "a>a+node 1, b>b+node 1, c>c+node 1, d>d|e+node 1");
}

/// One region of `zones` zones, with an endpoint in each of the first ten, and a region of one zone.
fn wide(annotations: &[(&str, &str)], zones: usize) -> World {
    let names: Vec<String> = (0..zones).map(|i| format!("z{i:02}")).collect();
    let nodes: Vec<(&str, usize)> = names.iter().map(|name| (name.as_str(), 1)).chain([("w", 1)]).collect();
    let mut world = World::new(&nodes, world::service(annotations, None));
    let regions: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "east")).collect();
    world.set_regions(&[&regions[..], &[("w", "west")]].concat());
    let endpoints: Vec<(&str, usize)> = names.iter().take(10).map(|name| (name.as_str(), 1)).collect();
    world.add_endpoints(&endpoints);
    world
}

#[test]
fn a_region_of_more_than_eight_zones_gets_no_hints_for_zones_and_says_so() {
    // The API refuses an endpoint with more than eight: the Service had no endpoints for ever.
    for level in ["Prefer", "Require"] {
        for node in ["Balanced", "Prefer"] {
            for zones in [8, 9, 20] {
                let mut world = wide(&[(a::SAME_NODE, node), (a::SAME_REGION, level)], zones);
                let outcome = world.sync();
                let widest = world.stored().map(|e| e.zone_hints().len()).max().unwrap();
                assert!(widest <= 8, "{widest} zones in a hint");
                let said = notices(&outcome).contains("TooManyZonesForHints");
                assert_eq!(said, widest == 0, "{level} {node} {zones}: {}", notices(&outcome));
                assert_eq!(outcome.caveat.is_some(), said);
                assert!(outcome.programmed, "our nodes obey the annotation");
                let required = (level == "Require").then_some(TopologyScope::Region);
                assert_eq!(outcome.mechanism.required(), required);
                let mechanism = world.slices[0].content.annotation(a::MECHANISM).unwrap().clone();
                assert_eq!(mechanism, *outcome.mechanism.as_str());
            }
        }
    }
    let mut wide = wide(&[(a::SAME_REGION, "Require")], 9);
    expect![[r#"
        Service shop/web: TrafficDistributionProgrammed: endpointslice.kubernetes.io/same-region: Require: traffic goes to its own region or nowhere; 9 ready endpoints. Make sure that each has enough endpoints. Consumers that read only hints use all endpoints if a hint is missing, Zoneward's nodes do not.
        Service shop/web: TooManyZonesForHints: endpointslice.kubernetes.io/same-region: Require: a region has more than 8 zones, more than hints can list, so endpoints have no zone hints. Zoneward's nodes keep traffic in the region, consumers that read only hints use all endpoints. Use same-zone or smaller regions for those.
        Service shop/web: UnreachableFromSome: Clients in w (1 node) cannot reach the Service: no endpoint that they may use is ready. Add one there, or use Prefer instead of Require.
    "#]].assert_eq(&notices(&wide.sync()));
}

#[test]
fn without_hints_for_zones_no_step_to_the_own_zone_is_promised() {
    for (level, end) in [("Prefer", ", else all endpoints"), ("Require", " or nowhere")] {
        let said = |zones: usize| {
            let mut world = wide(&[(a::SAME_NODE, "Prefer"), (a::SAME_REGION, level)], zones);
            notices(&world.sync())
        };
        let fits = format!("its own node, else its own zone, else its own region{end};");
        assert!(said(8).contains(&fits), "{}", said(8));
        let too_wide = format!("traffic goes to its own node, else its own region{end};");
        assert!(said(20).contains(&too_wide), "{}", said(20));
    }
}

#[test]
fn slices_list_the_zones_of_regions_that_hints_cannot_name() {
    for level in ["Prefer", "Require"] {
        let regions = |world: &World| world.slices[0].content.annotation(a::REGIONS).cloned();
        let mut world = wide(&[(a::SAME_REGION, level)], 9);
        world.sync();
        let listed =
            regions(&world).and_then(|text| Regions::parse(&text)).expect("nodes watch only their own Node");
        assert!(listed.are_together("z00", "z08") && !listed.are_together("z00", "w"), "{listed}");
        world.nodes.retain(|_, node| node.zone.as_deref() != Some("z08"));
        world.endpoints.retain(|endpoint| endpoint.zone.as_deref() != Some("z08"));
        world.sync();
        assert_eq!(regions(&world), None, "eight zones fit into hints");
    }
}

#[test]
fn prefer_within_a_region_that_hints_cannot_name_holds_back() {
    let annotations =
        [(a::SAME_ZONE, "Prefer"), (a::SAME_REGION, "Require"), (a::SAME_ZONE_STARTING_THRESHOLD, "1")];
    let mut wide = wide(&annotations, 30);
    let outcome = wide.sync();
    assert_eq!(outcome.mechanism.required(), Some(TopologyScope::Region));
    assert!(outcome.mechanism.is_resting() && !outcome.programmed, "{:?}", outcome.mechanism);
    assert!(wide.stored().all(|e| e.zone_hints().is_empty()));
}

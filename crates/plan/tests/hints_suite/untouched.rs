//! What is not written: taking over a cluster, or looking at it again, changes nothing that is right already.

use model::{EndpointConditions, Family, Hints, Labels, annotation as a};
use plan::PlanningConfig;
use plan::hints::{HintInput, Hysteresis, Mechanism, assign};
use plan::slices::Packing;

use crate::hints_suite::world::{self, World, content, endpoint, name, slice};

#[test]
fn a_service_without_a_mechanism_plans_nothing() {
    let mut world = World::new(&[("a", 1), ("b", 1)], world::service(&[], None));
    world.slices = vec![slice("web-0", content(vec![endpoint(1, "a"), endpoint(2, "b")]))];
    world.add_endpoints(&[("a", 1), ("b", 1)]);
    let (outcome, written) = world.sync_counting();
    assert_eq!(written, 0);
    assert_eq!(outcome.mechanism, Mechanism::None);
    assert!(outcome.notices.is_empty() && !outcome.requested && !outcome.programmed);
    assert!(world.slices[0].content.annotations.is_empty());
}

#[test]
fn hints_that_kubernetes_wrote_are_taken_over_as_they_are() {
    for (annotations, field) in [(&[][..], Some("PreferSameZone")), (&[(a::TOPOLOGY_MODE, "Auto")][..], None)]
    {
        let mut world = World::new(&[("a", 1), ("b", 1)], world::service(annotations, field));
        world.add_endpoints(&[("a", 3), ("b", 3)]);
        let hinted = world.endpoints.iter().map(|e| {
            let hints = Hints::zone(e.zone.as_ref().unwrap());
            model::Endpoint { hints: Some(hints.into()), ..e.clone() }
        });
        world.slices = vec![slice("web-0", content(hinted.collect()))];
        assert_eq!(world.sync_counting().1, 0);
    }
}

#[test]
fn a_value_that_is_refused_is_news_once() {
    let mut world = World::new(&[("a", 1), ("b", 1)], world::service(&[], Some("example.com/Fastest")));
    assert_eq!(world.sync().news().count(), 1);
    assert_eq!(world.sync().news().count(), 0);
}

#[test]
fn hints_that_stand_at_a_start_are_no_news() {
    for field in ["PreferSameZone", "zoneward.dev/Spill"] {
        let mut world = World::new(&[("a", 1), ("b", 1)], world::service(&[], Some(field)));
        world.add_endpoints(&[("a", 2), ("b", 2)]);
        assert_eq!(world.sync().news().count(), 1, "{field}");
        world.restart();
        assert_eq!(world.sync().news().count(), 0, "{field}");
    }
    let mut world = World::new(&[("a", 1), ("b", 1)], world::service(&[], Some("PreferSameZone")));
    world.add_endpoints(&[("a", 2), ("b", 2)]);
    world.sync();
    // As Kubernetes' own controller would have left them.
    world.slices[0].content.annotations = Labels::EMPTY;
    world.restart();
    assert_eq!(world.sync().news().count(), 0);
}

#[test]
fn a_second_look_writes_nothing_under_any_mechanism() {
    for mechanism in Mechanism::ALL.iter().filter(|m| !m.is_resting()) {
        let service = world::service(&[(a::TRAFFIC_DISTRIBUTION, mechanism.as_str())], None);
        let mut world = World::new(&[("a", 3), ("b", 2), ("c", 2), ("d", 1)], service);
        world.set_regions(&[("a", "east"), ("b", "east"), ("c", "west"), ("d", "west")]);
        world.slice_size = 5;
        world.add_endpoints(&[("a", 9), ("c", 12)]);
        world.sync();
        assert_eq!(world.sync_counting().1, 0, "{mechanism:?}");
        world.restart();
        assert_eq!(world.sync_counting().1, 0, "{mechanism:?} after a restart");
    }
}

#[test]
fn memory_is_read_back_from_the_slices_alone() {
    for mechanism in Mechanism::ALL.iter().filter(|m| !m.is_resting()) {
        for endpoints in [0, 1, 4, 5] {
            let service = world::service(&[(a::TRAFFIC_DISTRIBUTION, mechanism.as_str())], None);
            let mut world = World::new(&[("a", 3), ("b", 2), ("c", 2)], service);
            world.add_endpoints(&[("a", 3 * endpoints), ("b", endpoints)]);
            let outcome = world.sync();
            assert_eq!(
                Hysteresis::from_slices(Family::V4, &world.slices),
                outcome.hysteresis,
                "{mechanism:?} {endpoints}"
            );
        }
    }
}

#[test]
fn slices_of_the_other_family_have_a_memory_of_their_own() {
    let mut world = World::new(&[("a", 1), ("b", 1)], world::service(&[(a::SAME_ZONE, "Require")], None));
    world.add_endpoints(&[("a", 1)]);
    world.sync();
    assert_eq!(Hysteresis::from_slices(Family::V4, &world.slices).mechanism(), Mechanism::RequireZone);
    assert_eq!(Hysteresis::from_slices(Family::V6, &world.slices), Hysteresis::default());
}

#[test]
fn a_mechanism_that_is_taken_back_leaves_no_trace() {
    for mechanism in Mechanism::ALL.iter().filter(|m| !m.is_resting()) {
        let mut world = World::new(&[("a", 1), ("b", 1)], world::service(&[], None));
        world.service = world::service(&[(a::TRAFFIC_DISTRIBUTION, mechanism.as_str())], None);
        world.add_endpoints(&[("a", 6), ("b", 6)]);
        world.sync();
        world.service = world::service(&[], None);
        let outcome = world.sync();
        assert_eq!(world.hints(), "a> 6, b> 6", "{mechanism:?}");
        assert!(world.slices[0].content.annotations.is_empty(), "{mechanism:?}");
        assert_eq!(outcome.hysteresis, Hysteresis::default());
    }
}

#[test]
fn a_slice_that_says_another_mechanism_is_rewritten() {
    let mut world = World::new(&[("a", 1), ("b", 1)], world::service(&[(a::SAME_ZONE, "Require")], None));
    world.add_endpoints(&[("a", 1), ("b", 1)]);
    world.sync();
    world.service = world::service(&[], Some("PreferSameZone"));
    let (_, written) = world.sync_counting();
    assert_eq!(written, 1, "the hints are the same, but consumers must not go on requiring");
    assert_eq!(world.slices[0].content.annotation(a::MECHANISM).unwrap(), "PreferSameZone");
}

#[test]
fn hints_of_unready_endpoints_go_when_the_slice_is_written_anyway() {
    // Pitfall 34. Under trafficDistribution they stay, as the shared test cases want it.
    for (annotations, field, stays) in
        [(&[(a::SAME_ZONE, "Require")][..], None, false), (&[][..], Some("PreferSameZone"), true)]
    {
        let stale = |ready: bool| {
            let mut e = endpoint(1, "a");
            e.conditions = EndpointConditions::new(ready, ready, false);
            e.hints = Some(Hints::zone(&name("b")).into());
            e
        };
        let stored = slice("web-0", content(vec![stale(false)]));
        let (service, config) = (world::service(annotations, field), PlanningConfig::without_flags());
        let topology = World::new(&[("a", 1), ("b", 1)], service.clone()).topology();
        let mut packing = Packing {
            updates: vec![(name("web-1"), content(vec![stale(false), stale(true)]))],
            unchanged: vec![&stored],
            ..Packing::default()
        };
        let hysteresis = Hysteresis::default();
        let input = HintInput {
            service: &service,
            family: Family::V4,
            topology: &topology,
            namespace_default: None,
            config: &config,
            hysteresis: &hysteresis,
            with_notices: true,
        };
        assign(&input, &mut packing);
        assert_eq!(packing.updates[0].1.endpoints[0].hints.is_some(), stays);
        assert_eq!(packing.updates[0].1.endpoints[1].zone_hints(), [name("a")]);
    }
}

#[test]
fn a_slice_that_moves_for_its_hints_alone_drops_the_time_of_the_last_pod_change() {
    let mut world = World::new(&[("a", 1), ("b", 1)], world::service(&[], Some("PreferSameZone")));
    world.add_endpoints(&[("a", 1)]);
    let mut stored = content(world.endpoints.clone());
    stored.annotations = [(a::TRIGGER_TIME, "2026-01-01T00:00:00Z")].into_iter().collect();
    world.slices = vec![slice("web-0", stored)];
    world.sync();
    let expected: Labels = [(a::MECHANISM, "PreferSameZone")].into_iter().collect();
    assert_eq!(world.slices[0].content.annotations, expected);
}

#[test]
fn absurd_numbers_are_survived() {
    for mechanism in Mechanism::ALL.iter().filter(|m| !m.is_resting()) {
        let annotations =
            [(a::TRAFFIC_DISTRIBUTION, mechanism.as_str()), (a::SAME_ZONE_STARTING_THRESHOLD, "4294967295")];
        let mut world = World::new(&[("a", 2), ("b", 1)], world::service(&annotations, None));
        world.config.prefer_by = plan::hints::ZoneWeight::Cpu;
        world.nodes.values_mut().for_each(|n| n.cpu_millis = Some(u64::MAX));
        world.add_endpoints(&[("a", 12), ("b", 3), ("c", 1)]);
        world.sync();
        assert_eq!(world.sync_counting().1, 0, "{mechanism:?}");
    }
}

/// The reasons of what is said as Events.
fn news(world: &mut World) -> Vec<&'static str> {
    world.sync().news().map(|notice| notice.reason).collect()
}

#[test]
fn a_change_of_the_mechanism_is_news() {
    // The last Event named the mechanism of before.
    let mut world = World::new(&[("a", 1), ("b", 1)], world::service(&[(a::SAME_ZONE, "Require")], None));
    world.add_endpoints(&[("a", 2), ("b", 2)]);
    assert_eq!(news(&mut world), ["TrafficDistributionProgrammed"]);
    world.service = world::service(&[], Some("PreferSameZone"));
    assert_eq!(news(&mut world), ["TrafficDistributionProgrammed"]);
    assert_eq!(news(&mut world), [""; 0]);
    // The same mechanism by another setting, which the message names.
    world.service = world::service(&[(a::TRAFFIC_DISTRIBUTION, "PreferSameZone")], None);
    assert_eq!(news(&mut world), ["TrafficDistributionProgrammed"]);
    world.service = world::service(&[], None);
    let ended = world.sync();
    assert_eq!(ended.news().count(), 1);
    expect_test::expect![[r#"
        Service shop/web: TrafficDistributionEnded: PreferSameZone ended, traffic is spread evenly over all endpoints: no setting requests it any more.
    "#]].assert_eq(&world::notices(&ended));
    assert_eq!(news(&mut world), [""; 0]);
    // Another value that is refused is another thing to say.
    for value in ["Neaar", "Near"] {
        world.service = world::service(&[(a::TRAFFIC_DISTRIBUTION, value)], None);
        assert_eq!(news(&mut world), ["InvalidTrafficDistribution"], "{value}");
    }
}

#[test]
fn slices_name_a_default_as_the_source_of_their_mechanism() {
    let mut world = World::new(&[("a", 1), ("b", 1)], world::service(&[], None));
    world.add_endpoints(&[("a", 2), ("b", 2)]);
    let source =
        |world: &World| world.slices[0].content.annotation(a::MECHANISM_SOURCE).map(ToString::to_string);
    for mechanism in ["RequireZone", "Spill", "PreferSameZone"] {
        world.config.default_traffic_distribution = Some(name(mechanism));
        world.sync();
        assert_eq!(source(&world).as_deref(), Some("controller"), "{mechanism}");
        world.namespace_default = Some(name(mechanism));
        assert_eq!(world.sync_counting().1, 1, "{mechanism}");
        assert_eq!(source(&world).as_deref(), Some("namespace"), "{mechanism}");
        assert_eq!(world.sync_counting().1, 0, "{mechanism}");
        // The Service's own setting is not marked.
        world.service = world::service(&[(a::TRAFFIC_DISTRIBUTION, mechanism)], None);
        assert_eq!(world.sync_counting().1, 1, "{mechanism}");
        assert_eq!(source(&world), None, "{mechanism}");
        world.service = world::service(&[], None);
        world.namespace_default = None;
    }
    world.config.default_traffic_distribution = None;
    world.sync();
    assert!(world.slices[0].content.annotations.is_empty());
}

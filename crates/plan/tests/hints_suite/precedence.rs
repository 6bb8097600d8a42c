//! Which setting decides, and what is said about the others.

use expect_test::{Expect, expect};
use model::annotation as a;
use plan::hints::{Mechanism, MechanismChoice, TrafficDistributionDefaults, choose};
use plan::{FeatureGates, PlanningConfig};

use crate::hints_suite::world::{self, World, name};

fn choice(annotations: &[(&str, &str)], field: Option<&str>, gates: &str) -> MechanismChoice {
    let service = world::service(annotations, field);
    let config = PlanningConfig { gates: gates.parse().expect("gates"), ..PlanningConfig::without_flags() };
    config.choose(&service, None)
}

fn check(annotations: &[(&str, &str)], field: Option<&str>, expect: Expect) {
    let choice = choice(annotations, field, "");
    let mut text = choice.mechanism.as_str().to_owned();
    text += if choice.accepted.is_ok() { "\n" } else { ", not accepted\n" };
    for (reason, message) in choice.notices {
        text += &format!("{reason}: {message}\n");
    }
    expect.assert_eq(&text);
}

fn mechanism(annotations: &[(&str, &str)], field: Option<&str>) -> Mechanism {
    choice(annotations, field, "").mechanism
}

#[test]
fn the_first_setting_that_is_set_decides() {
    let settings = [
        (a::TRAFFIC_DISTRIBUTION, "Spill", Mechanism::Spill),
        (a::SAME_ZONE, "Require", Mechanism::RequireZone),
        (a::TOPOLOGY_MODE, "Auto", Mechanism::Auto),
    ];
    for first in 0..settings.len() {
        let set: Vec<(&str, &str)> = settings[first..].iter().map(|(key, value, _)| (*key, *value)).collect();
        assert_eq!(mechanism(&set, Some("PreferSameNode")), settings[first].2);
    }
    assert_eq!(mechanism(&[], Some("PreferSameNode")), Mechanism::PreferSameNode);
    assert_eq!(mechanism(&[], None), Mechanism::None);
}

#[test]
fn defaults_of_namespace_and_cluster_come_last() {
    let gates = FeatureGates::ALL;
    let defaults = |namespace: Option<&str>, cluster: Option<&str>| TrafficDistributionDefaults {
        namespace: namespace.map(name),
        cluster: cluster.map(name),
    };
    let plain = world::service(&[], None);
    let both = defaults(Some("PreferSameZone"), Some("Spill"));
    assert_eq!(choose(&plain, &both, &gates).mechanism, Mechanism::PreferSameZone);
    assert_eq!(
        choose(&plain, &defaults(None, Some("zoneward.dev/Spill")), &gates).mechanism,
        Mechanism::Spill
    );
    assert_eq!(choose(&plain, &defaults(Some("None"), Some("Spill")), &gates).mechanism, Mechanism::None);
    let wrong = choose(&plain, &defaults(Some("Wrong"), Some("Spill")), &gates);
    assert_eq!((wrong.mechanism, wrong.notices.len()), (Mechanism::Spill, 1));
    let own = world::service(&[], Some("PreferSameNode"));
    assert_eq!(choose(&own, &both, &gates).mechanism, Mechanism::PreferSameNode);
}

#[test]
fn every_mechanism_can_be_named_but_not_its_rest() {
    for mechanism in Mechanism::ALL.iter().filter(|m| !m.is_resting()) {
        assert_eq!(self::mechanism(&[(a::TRAFFIC_DISTRIBUTION, mechanism.as_str())], None), *mechanism);
    }
    check(
        &[(a::TRAFFIC_DISTRIBUTION, "PreferZoneResting")],
        None,
        expect![[r#"
            None, not accepted
            InvalidTrafficDistribution: zoneward.dev/traffic-distribution: PreferZoneResting is ignored: unknown mechanism. Supported are Spill, Auto, PreferSameZone, PreferSameNode, PreferZone, RequireZone and the other mechanisms of docs/guide/choosing.md, and Balanced for none.
        "#]],
    );
}

#[test]
fn an_explicit_off_of_ours_ends_the_search() {
    for off in ["Balanced", "None", "Disabled"] {
        let set = [(a::TRAFFIC_DISTRIBUTION, off)];
        assert_eq!(mechanism(&set, Some("PreferSameZone")), Mechanism::None, "{off}");
    }
    check(
        &[(a::SAME_ZONE, "Balanced")],
        Some("PreferSameZone"),
        expect![[r#"
            None
            TrafficDistributionIgnored: spec.trafficDistribution: PreferSameZone is ignored: endpointslice.kubernetes.io/same-zone: Balanced has precedence. Remove the settings that you do not need.
        "#]],
    );
}

#[test]
fn topology_mode_disabled_leaves_the_field_in_force() {
    // Semantics A1: only Auto comes before the field, and kube-controller-manager writes the field's hints.
    for key in [a::TOPOLOGY_MODE, a::TOPOLOGY_AWARE_HINTS] {
        for off in ["Disabled", "disabled"] {
            check(&[(key, off)], Some("PreferSameZone"), expect!["PreferSameZone\n"]);
        }
        let choice = choice(&[(key, "Disabled")], None, "");
        assert_eq!((choice.mechanism, choice.source), (Mechanism::None, None));
    }
}

#[test]
fn topology_mode_disabled_keeps_defaults_away() {
    // Kubernetes knows no defaults: such a Service gets no hints there.
    let both =
        TrafficDistributionDefaults { namespace: Some(name("PreferSameZone")), cluster: Some(name("Spill")) };
    let cluster = TrafficDistributionDefaults { namespace: None, ..both.clone() };
    for key in [a::TOPOLOGY_MODE, a::TOPOLOGY_AWARE_HINTS] {
        for defaults in [&both, &cluster] {
            let of =
                |field| choose(&world::service(&[(key, "Disabled")], field), defaults, &FeatureGates::ALL);
            let silent = of(None);
            assert_eq!(
                (silent.mechanism, silent.source, silent.accepted),
                (Mechanism::None, None, Ok(())),
                "{key}"
            );
            assert_eq!(of(Some("PreferSameNode")).mechanism, Mechanism::PreferSameNode, "{key}");
        }
    }
}

#[test]
fn a_default_behind_a_closed_gate_does_not_blame_the_service() {
    let of = |default: &str, gate: &str| {
        let defaults = TrafficDistributionDefaults { namespace: Some(name(default)), cluster: None };
        choose(&world::service(&[], None), &defaults, &format!("{gate}=false").parse().expect("gates"))
    };
    for (default, gate) in [
        ("Auto", "TopologyAwareHints"),
        ("PreferClose", "ServiceTrafficDistribution"),
        ("PreferSameNode", "PreferSameTrafficDistribution"),
    ] {
        let choice = of(default, gate);
        assert_eq!(
            (choice.mechanism, choice.accepted, choice.refused),
            (Mechanism::None, Ok(()), None),
            "{gate}"
        );
        assert_eq!(choice.notices.len(), 1, "{gate}");
        assert!(choice.notices[0].1.contains(gate), "{:?}", choice.notices);
    }
}

#[test]
fn a_choice_says_whose_setting_decided() {
    let defaults =
        TrafficDistributionDefaults { namespace: Some(name("RequireZone")), cluster: Some(name("Spill")) };
    let origin = |annotations: &[(&str, &str)], defaults: &TrafficDistributionDefaults| {
        choose(&world::service(annotations, None), defaults, &FeatureGates::ALL).origin.annotation()
    };
    assert_eq!(origin(&[(a::SAME_ZONE, "Require")], &defaults), None);
    assert_eq!(origin(&[], &defaults), Some("namespace"));
    assert_eq!(origin(&[], &TrafficDistributionDefaults { namespace: None, ..defaults }), Some("controller"));
}

#[test]
fn a_value_that_nobody_knows_is_a_notice_and_the_search_goes_on() {
    check(
        &[(a::TRAFFIC_DISTRIBUTION, "Spil")],
        Some("PreferSameZone"),
        expect![[r#"
            PreferSameZone
            InvalidTrafficDistribution: zoneward.dev/traffic-distribution: Spil is ignored: unknown mechanism. Supported are Spill, Auto, PreferSameZone, PreferSameNode, PreferZone, RequireZone and the other mechanisms of docs/guide/choosing.md, and Balanced for none.
        "#]],
    );
    check(
        &[(a::SAME_ZONE, "require")],
        None,
        expect![[r#"
            None, not accepted
            InvalidTrafficDistribution: endpointslice.kubernetes.io/same-zone: require is ignored as if not set, so settings of lower precedence decide. Use Balanced, Prefer or Require.
        "#]],
    );
    check(
        &[(a::SAME_ZONE, "Require"), (a::SAME_NODE, "Yes")],
        None,
        expect![[r#"
            RequireZone
            InvalidTrafficDistribution: endpointslice.kubernetes.io/same-node: Yes is ignored as if not set, so settings of lower precedence decide. Use Balanced, Prefer or Require.
        "#]],
    );
    check(
        &[(a::TOPOLOGY_MODE, "AUTO")],
        Some("PreferSameZone"),
        expect![[r#"
            PreferSameZone
            InvalidTrafficDistribution: service.kubernetes.io/topology-mode: AUTO is ignored. Use Auto or Disabled, with this spelling.
        "#]],
    );
}

#[test]
fn the_older_topology_annotation_masks_the_newer_one() {
    // Semantics A1, rule 1.
    check(
        &[(a::TOPOLOGY_AWARE_HINTS, "enabled"), (a::TOPOLOGY_MODE, "Auto")],
        None,
        expect![[r#"
            None, not accepted
            InvalidTrafficDistribution: service.kubernetes.io/topology-aware-hints: enabled is ignored and hides topology-mode. Use Auto or Disabled, with this spelling.
        "#]],
    );
}

#[test]
fn auto_wins_over_the_field_and_says_so() {
    // KEP-4444: if both are set, the annotation takes precedence.
    check(
        &[(a::TOPOLOGY_MODE, "Auto")],
        Some("PreferSameZone"),
        expect![[r#"
            Auto
            TrafficDistributionIgnored: spec.trafficDistribution: PreferSameZone is ignored: service.kubernetes.io/topology-mode: Auto has precedence. Remove the settings that you do not need.
        "#]],
    );
}

#[test]
fn the_field_knows_these_values() {
    check(
        &[],
        Some("PreferSameZone"),
        expect![[r#"
        PreferSameZone
    "#]],
    );
    check(
        &[],
        Some("PreferClose"),
        expect![[r#"
            PreferSameZone
            DeprecatedTrafficDistribution: spec.trafficDistribution: PreferClose works, but PreferClose is the deprecated name of PreferSameZone. Use PreferSameZone.
        "#]],
    );
    check(
        &[],
        Some("zoneward.dev/Spill"),
        expect![[r#"
        Spill
    "#]],
    );
    check(
        &[],
        Some("preferClose"),
        expect![[r#"
            None, not accepted
            InvalidTrafficDistribution: spec.trafficDistribution: preferClose sets no hints, so traffic is spread evenly: the value is not supported. Supported are PreferSameZone, PreferSameNode, zoneward.dev/Spill and PreferClose.
        "#]],
    );
    check(
        &[],
        Some("example.com/Fastest"),
        expect![[r#"
            None, not accepted
            InvalidTrafficDistribution: spec.trafficDistribution: example.com/Fastest sets no hints, so traffic is spread evenly: it is for the implementation of example.com. Supported are PreferSameZone, PreferSameNode, zoneward.dev/Spill and PreferClose.
        "#]],
    );
}

#[test]
fn an_unknown_field_is_not_replaced_by_a_default() {
    let service = world::service(&[], Some("example.com/Fastest"));
    let defaults = TrafficDistributionDefaults { namespace: Some(name("Spill")), cluster: None };
    assert_eq!(choose(&service, &defaults, &FeatureGates::ALL).mechanism, Mechanism::None);
}

#[test]
fn a_starting_threshold_needs_prefer() {
    let threshold = |value: &str, zone: &str| {
        choice(&[(a::SAME_ZONE, zone), (a::SAME_ZONE_STARTING_THRESHOLD, value)], None, "").starting_threshold
    };
    assert_eq!(threshold("15", "Prefer"), Some(15));
    for invalid in ["0", "-3", "many", "4.5"] {
        assert_eq!(threshold(invalid, "Prefer"), None, "{invalid}");
    }
    assert_eq!(threshold("15", "Require"), None);
    check(
        &[(a::SAME_ZONE, "Prefer"), (a::SAME_ZONE_STARTING_THRESHOLD, "many")],
        None,
        expect![[r#"
            PreferZone
            InvalidTrafficDistribution: endpointslice.kubernetes.io/same-zone-starting-threshold: many is not a positive whole number, so the default applies: three per zone.
        "#]],
    );
    check(
        &[(a::SAME_ZONE_STARTING_THRESHOLD, "15")],
        None,
        expect![[r#"
            None
            TrafficDistributionIgnored: endpointslice.kubernetes.io/same-zone-starting-threshold: 15 has no effect: it applies only to same-zone: Prefer.
        "#]],
    );
}

#[test]
fn a_closed_gate_removes_the_hints_and_opening_it_brings_them_back() {
    let cases = [
        ("ServiceTrafficDistribution", world::service(&[], Some("PreferClose"))),
        ("ServiceTrafficDistribution", world::service(&[], Some("PreferSameNode"))),
        ("PreferSameTrafficDistribution", world::service(&[], Some("PreferSameZone"))),
        ("TopologyAwareHints", world::service(&[(a::TOPOLOGY_MODE, "Auto")], None)),
        ("TopologyAwareHints", world::service(&[(a::TOPOLOGY_AWARE_HINTS, "auto")], None)),
    ];
    for (gate, service) in cases {
        let mut world = World::new(&[("a", 1), ("b", 1)], service);
        world.add_endpoints(&[("a", 3), ("b", 3)]);
        world.sync();
        let with_hints = world.hints();
        assert!(with_hints.contains("a>a"), "{gate}: {with_hints}");
        world.config.gates = format!("{gate}=false").parse().unwrap();
        let closed = world.sync();
        assert_eq!(world.hints(), "a> 3, b> 3", "{gate}");
        assert_eq!(closed.mechanism, Mechanism::None);
        assert!(closed.accepted.is_err(), "{gate}");
        world.config.gates = FeatureGates::ALL;
        world.sync();
        assert_eq!(world.hints(), with_hints, "{gate}");
    }
}

#[test]
fn prefer_close_does_not_need_the_newer_gate() {
    // Semantics A1, rule 3.
    let gates = "PreferSameTrafficDistribution=false";
    assert_eq!(choice(&[], Some("PreferClose"), gates).mechanism, Mechanism::PreferSameZone);
    assert_eq!(choice(&[], Some("PreferSameZone"), gates).mechanism, Mechanism::None);
}

#[test]
fn a_closed_gate_is_named() {
    let closed = choice(&[(a::TOPOLOGY_MODE, "Auto")], None, "TopologyAwareHints=false");
    expect![[r#"[("FeatureGateOff", "service.kubernetes.io/topology-mode: Auto is ignored and its hints are removed: the feature gate TopologyAwareHints is off. Enable it with --feature-gates=TopologyAwareHints=true.")]"#]].assert_eq(&format!("{:?}", closed.notices));
}

//! What-if on small clusters whose answers can be said in advance.

use std::collections::BTreeMap;

use model::{Name, Slice};
use plan::hints::Mechanism;
use plan::slices::{self, SliceOptions, TriggerTimes};
use sim::replay::{ClusterSize, InitialCluster, PodTimings, generated_cluster};
use sim::what_if::{DemandBasis, MechanismOutcome, WhatIfEvaluator, WhatIfQuery, WhatIfResult};

fn start(endpoints: usize) -> InitialCluster {
    generated_cluster(ClusterSize { zones: 3, nodes: 6, services: 1, endpoints }, PodTimings::default())
}

fn stored(start: &InitialCluster) -> Vec<Slice> {
    let service = &start.services[0];
    let pods: Vec<&model::Pod> = start.pods.iter().collect();
    let trigger = TriggerTimes::default();
    let input =
        slices::SliceInput { service, pods: &pods, nodes: &start.nodes, slices: &[], trigger: &trigger };
    let made = slices::plan(&input, &SliceOptions::WITHOUT_FLAGS, |_, _| {});
    let slice = |content| Slice { annotated: true, ..Slice::owned_by(service, "slice", content) };
    made.creates.into_iter().map(slice).collect()
}

fn evaluate(
    start: &InitialCluster,
    scale: &[(Name, i64)],
    measured: Option<&BTreeMap<Name, f64>>,
) -> WhatIfResult {
    let slices = stored(start);
    let service = &start.services[0];
    let query = WhatIfQuery { service, slices: &slices, namespace_default: None, scale, measured };
    WhatIfEvaluator::new(&start.nodes, DemandBasis::Cpu, &plan::PlanningConfig::without_flags())
        .evaluate(&query)
}

fn of(result: &WhatIfResult, mechanism: Mechanism) -> &MechanismOutcome {
    result.outcomes.iter().find(|o| o.mechanism == mechanism).expect("all are evaluated")
}

#[test]
fn rows_of_every_zone_add_up_to_one() {
    let result = evaluate(&start(7), &[], None);
    for outcome in &result.outcomes {
        let rows = outcome.figures.rows();
        assert_eq!(rows.len(), 3, "{outcome:?}");
        for row in rows.values() {
            assert!((row.values().sum::<f64>() - 1.0).abs() < 1e-12, "{outcome:?}");
        }
    }
    let balanced = of(&result, Mechanism::None).figures.rows();
    let to_a = balanced["zone-b"]["zone-a"];
    assert!((to_a - 3.0 / 7.0).abs() < 1e-12, "three of seven endpoints are there: {to_a}");
    let same = of(&result, Mechanism::PreferSameZone).figures.rows();
    assert!((same["zone-b"]["zone-b"] - 1.0).abs() < 1e-12);
}

#[test]
fn a_replica_goes_to_the_zone_with_fewest_and_helps_it() {
    let result = evaluate(&start(6), &[(Name::new("zone-c"), -1)], None);
    let same = of(&result, Mechanism::PreferSameZone);
    let (zone, then) = same.replica_added.as_ref().expect("there are zones");
    assert_eq!(zone, "zone-c");
    assert!(same.figures.max_overload > 0.5, "one endpoint has a third of the traffic");
    assert!(then.max_overload < 1e-9, "{then:?}");
}

#[test]
fn a_roll_out_never_has_fewer_than_three_quarters() {
    for endpoints in 1..30 {
        let result = evaluate(&start(endpoints), &[], None);
        for outcome in &result.outcomes {
            let (ready, then) = outcome.rolling_update.as_ref().expect("there are endpoints");
            assert!(*ready >= endpoints - endpoints / 4, "{endpoints}: {outcome:?}");
            if outcome.mechanism != Mechanism::RequireZone {
                assert!(then.refused < 1e-12, "{endpoints}: {outcome:?}");
            }
        }
        let balanced = of(&result, Mechanism::None).rolling_update.as_ref().expect("there are endpoints");
        assert!(balanced.1.max_overload < 1e-9, "{balanced:?}");
    }
}

#[test]
fn a_service_is_evaluated_with_its_own_measured_traffic() {
    let measured = BTreeMap::from([(Name::new("zone-a"), 3.0), (Name::new("zone-c"), 1.0)]);
    let result = evaluate(&start(6), &[], Some(&measured));
    let shares: Vec<f64> = result.shares.iter().map(|(_, share)| *share).collect();
    assert_eq!(shares, [0.75, 0.0, 0.25]);
    let same = of(&result, Mechanism::PreferSameZone);
    assert!((same.figures.in_zone - 1.0).abs() < 1e-12);
    // Two of six endpoints have three quarters of the traffic.
    assert!((same.figures.max_overload - 1.25).abs() < 1e-9, "{same:?}");
    assert_eq!(same.figures.idle, 2);
}

//! What-if on small clusters whose answers can be said in advance.

use std::collections::BTreeMap;

use model::{Name, ObjectKey, Owner, Slice, Uid};
use plan::hints::Mechanism;
use plan::slices::{self, SliceOptions, TriggerTimes};
use sim::replay::{Pace, Size, Start, cluster};
use sim::whatif::{Answer, Cluster, Demand, Outcome, Question};

fn start(endpoints: usize) -> Start {
    cluster(Size { zones: 3, nodes: 6, services: 1, endpoints }, Pace::default())
}

fn stored(start: &Start) -> Vec<Slice> {
    let service = &start.services[0];
    let pods: Vec<&model::Pod> = start.pods.iter().collect();
    let trigger = TriggerTimes::default();
    let input =
        slices::SliceInput { service, pods: &pods, nodes: &start.nodes, slices: &[], trigger: &trigger };
    let made = slices::plan(&input, &SliceOptions::default(), |_, _| {});
    let slice = |content| Slice {
        key: ObjectKey::new(&service.key.namespace, &Name::new("slice")),
        uid: None,
        generation: 0,
        resource_version: None,
        deleting: false,
        annotated: true,
        written_by: None,
        owners: [Owner { name: service.key.name.clone(), uid: Uid::new("") }].into(),
        content,
    };
    made.creates.into_iter().map(slice).collect()
}

fn ask(start: &Start, scale: &[(Name, i64)], measured: Option<&BTreeMap<Name, f64>>) -> Answer {
    let slices = stored(start);
    let service = &start.services[0];
    let question = Question { service, slices: &slices, namespace_default: None, scale, measured };
    Cluster::new(&start.nodes, Demand::Cpu).ask(&question)
}

fn of(answer: &Answer, mechanism: Mechanism) -> &Outcome {
    answer.outcomes.iter().find(|o| o.mechanism == mechanism).expect("all are asked")
}

#[test]
fn rows_of_every_zone_add_up_to_one() {
    let answer = ask(&start(7), &[], None);
    for outcome in &answer.outcomes {
        let rows = outcome.figures.rows();
        assert_eq!(rows.len(), 3, "{outcome:?}");
        for row in rows.values() {
            assert!((row.values().sum::<f64>() - 1.0).abs() < 1e-12, "{outcome:?}");
        }
    }
    let balanced = of(&answer, Mechanism::None).figures.rows();
    let to_a = balanced["zone-b"]["zone-a"];
    assert!((to_a - 3.0 / 7.0).abs() < 1e-12, "three of seven endpoints are there: {to_a}");
    let same = of(&answer, Mechanism::PreferSameZone).figures.rows();
    assert!((same["zone-b"]["zone-b"] - 1.0).abs() < 1e-12);
}

#[test]
fn a_replica_goes_to_the_zone_with_fewest_and_helps_it() {
    let answer = ask(&start(6), &[(Name::new("zone-c"), -1)], None);
    let same = of(&answer, Mechanism::PreferSameZone);
    let (zone, then) = same.replica_added.as_ref().expect("there are zones");
    assert_eq!(zone, "zone-c");
    assert!(same.figures.max_overload > 0.5, "one endpoint has a third of the traffic");
    assert!(then.max_overload < 1e-9, "{then:?}");
}

#[test]
fn a_roll_out_never_has_fewer_than_three_quarters() {
    for endpoints in 1..30 {
        let answer = ask(&start(endpoints), &[], None);
        for outcome in &answer.outcomes {
            let (ready, then) = outcome.rolling_update.as_ref().expect("there are endpoints");
            assert!(*ready >= endpoints - endpoints / 4, "{endpoints}: {outcome:?}");
            if outcome.mechanism != Mechanism::RequireZone {
                assert!(then.refused < 1e-12, "{endpoints}: {outcome:?}");
            }
        }
        let balanced = of(&answer, Mechanism::None).rolling_update.as_ref().expect("there are endpoints");
        assert!(balanced.1.max_overload < 1e-9, "{balanced:?}");
    }
}

#[test]
fn a_service_is_asked_with_its_own_measured_traffic() {
    let measured = BTreeMap::from([(Name::new("zone-a"), 3.0), (Name::new("zone-c"), 1.0)]);
    let answer = ask(&start(6), &[], Some(&measured));
    let shares: Vec<f64> = answer.shares.iter().map(|(_, share)| *share).collect();
    assert_eq!(shares, [0.75, 0.0, 0.25]);
    let same = of(&answer, Mechanism::PreferSameZone);
    assert!((same.figures.in_zone - 1.0).abs() < 1e-12);
    // Two of six endpoints have three quarters of the traffic.
    assert!((same.figures.max_overload - 1.25).abs() < 1e-9, "{same:?}");
    assert_eq!(same.figures.idle, 2);
}

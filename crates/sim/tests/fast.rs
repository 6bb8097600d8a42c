//! Compares the fast forms of the algorithms with the plain ones.

use proptest::prelude::*;
use sim::dataset;
use sim::fast::{self, ThreeZones};
use sim::{Algorithm, AlgorithmSettings, Dataset, ScoreMetrics};

const FAST: [Algorithm; 9] = [
    Algorithm::Balanced,
    Algorithm::Local(None),
    Algorithm::Local(Some(1)),
    Algorithm::Local(Some(5)),
    Algorithm::LocalShared,
    Algorithm::LocalWeighted,
    Algorithm::LocalOpt,
    Algorithm::Spill,
    Algorithm::Best,
];

fn same(a: &ScoreMetrics, b: &ScoreMetrics) -> bool {
    let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
    a.slices == b.slices
        && near(a.in_zone, b.in_zone)
        && near(a.max_overload, b.max_overload)
        && near(a.mean_overload, b.mean_overload)
        && near(a.total, b.total)
}

fn check(nodes: [u32; 3], endpoints: [u32; 3], settings: &AlgorithmSettings) {
    let zones = dataset::zones((nodes, endpoints));
    for algorithm in FAST {
        let quick =
            fast::measure(algorithm, &ThreeZones::new((nodes, endpoints)), settings).expect("a fast form");
        let plain = algorithm.measure(&zones, settings);
        let what = format!("{algorithm} nodes {nodes:?} endpoints {endpoints:?}: {quick:?} {plain:?}");
        match (&quick, &plain) {
            (None, None) => {}
            // Partitions of the same score may differ in their slices.
            (Some(q), Some(p)) if algorithm == Algorithm::Best => {
                assert!((q.total - p.total).abs() < 1e-9, "{what}")
            }
            (Some(q), Some(p)) => assert!(same(q, p), "{what}"),
            _ => panic!("{what}"),
        }
    }
}

fn triple(most: u32) -> impl Strategy<Value = [u32; 3]> {
    let count = prop_oneof![3 => 0..=most, 1 => Just(0u32), 1 => 0..=3u32];
    [count.clone(), count.clone(), count]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fast_forms_equal_plain_forms(nodes in triple(12), endpoints in triple(40)) {
        check(nodes, endpoints, &AlgorithmSettings::default());
    }

    #[test]
    fn fast_forms_equal_plain_forms_with_many_endpoints(nodes in triple(60), endpoints in triple(700), percent in 10..90u32) {
        let settings = AlgorithmSettings { overload_threshold: f64::from(percent) / 100.0, ..AlgorithmSettings::default() };
        check(nodes, endpoints, &settings);
    }
}

#[test]
fn fast_forms_equal_plain_forms_in_the_large_set() {
    // A step without common factors with the numbers of triples, so that it visits all kinds of them.
    let set = Dataset::Large;
    for start in (0..set.len()).step_by(7_919 * 5) {
        set.for_each(start, 1, |_, (nodes, endpoints)| {
            check(nodes, endpoints, &AlgorithmSettings::default())
        });
    }
}

//! Proof that the simulation can fail: whether it finds each planted bug within 1,000 seeds. Not all are found yet
//! (docs/benchmarks/simulation.md), so CI does not run it.

use model::plant::{PlantedBug, plant};
use plane::{Options, Simulation};

/// Seeds until a run breaks an invariant.
fn seeds_until_found(bug: PlantedBug) -> Option<(u64, String)> {
    plant(Some(bug));
    let found = (0..1_000).find_map(|seed| {
        let report = Simulation::run(Options::of(seed), false);
        report.broken.map(|broken| (seed + 1, broken.to_string()))
    });
    plant(None);
    found
}

/// One process, one bug at a time: ZONEWARD_PLANT selects one.
#[test]
fn each_planted_bug_is_found_within_a_thousand_seeds() {
    let only = std::env::var("ZONEWARD_PLANT").ok();
    let mut missed = Vec::new();
    for bug in PlantedBug::ALL {
        if only.as_ref().is_some_and(|only| *only != format!("{bug:?}")) {
            continue;
        }
        match seeds_until_found(bug) {
            Some((seeds, how)) => {
                println!("| {bug:?} | {seeds} | {}", how.chars().take(160).collect::<String>())
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "no seed found {missed:?}");
}

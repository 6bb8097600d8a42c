//! Runs of the simulated plane.

use std::time::Duration;

use plane::soak::{failure, regressions, run_seeds};
use plane::{Options, Simulation};

#[test]
fn two_runs_of_a_seed_are_equal() {
    for seed in 0..3 {
        let options = Options { fault_ms: 20_000, ..Options::of(seed) };
        let (one, other) = (Simulation::run(options.clone(), false), Simulation::run(options, false));
        assert_eq!((one.events, one.hash), (other.events, other.hash), "seed {seed}");
        assert!(one.events > 500, "seed {seed}: {} events", one.events);
    }
}

#[test]
fn without_faults_everything_converges() {
    let report = Simulation::run(Options::of(1).without_faults(), false);
    assert!(report.broken.is_none(), "{}", failure(report));
}

#[test]
fn runs_that_failed_once_pass() {
    for (seed, fault_ms) in regressions() {
        let report = Simulation::run(Options { fault_ms, ..Options::of(seed) }, false);
        assert!(report.broken.is_none(), "{}", failure(report));
    }
}

/// ZONEWARD_SEED replays a run; other seeds come from the operating system.
#[test]
fn soak_plane_keeps_its_invariants() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = number("ZONEWARD_SEED").unwrap_or_else(clock::os_seed);
    let seconds = number("ZONEWARD_SOAK_SECONDS").unwrap_or(10);
    println!("ZONEWARD_SEED={seed}");
    let summary = run_seeds(seed, u64::MAX, Duration::from_secs(seconds), true);
    println!("{}", summary.text());
    assert!(summary.failures.is_empty(), "{}", summary.failures[0].1);
    assert!(summary.seeds > 0);
}

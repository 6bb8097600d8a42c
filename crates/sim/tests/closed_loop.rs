//! Spill on measured demand in the simulator: a few cases of the bench in CI, and all of them under `cargo xtask soak`,
//! seed after seed.

use std::time::{Duration, Instant};

use sim::closed_loop::{
    DemandTrace, LoopScenario, LoopScore, LoopStrategy, MeasuredOptions, SCENARIOS, TraceKind, run,
};

const MEASURED: LoopStrategy = LoopStrategy::SpillMeasured(MeasuredOptions { keeps_proved: true });

fn check(kind: TraceKind, scenario: LoopScenario, seed: u64) -> LoopScore {
    let what = format!("{}, {}, seed {seed}", kind.name(), scenario.name);
    let trace = DemandTrace::new(kind, scenario, seed);
    let score = |strategy| run(&trace, strategy, seed);
    let measured = score(MEASURED);
    assert!(measured.in_zone > score(LoopStrategy::Balanced).in_zone, "{what}: {measured:?}");
    assert!(measured.in_zone <= 1.0 && measured.writes_in_an_hour <= 12.0, "{what}: {measured:?}");
    if scenario.liar != 1.0 {
        let same_zone = score(LoopStrategy::PreferSameZone);
        // Reports of a lying node: never worse than PreferSameZone.
        assert!(
            measured.overload_minutes <= same_zone.overload_minutes,
            "{what}: {measured:?} {same_zone:?}"
        );
    }
    let best = score(LoopStrategy::KnownCapacity);
    // Bursts need some seconds until nodes react.
    let more = if kind == TraceKind::Bursts { 10.0 } else { 1.0 };
    assert!(measured.overload_minutes <= best.overload_minutes + more, "{what}: {measured:?} {best:?}");
    measured
}

#[test]
fn the_loss_of_a_zone_is_absorbed_at_once() {
    let (kind, scenario, seed) = (TraceKind::ZoneLoss, SCENARIOS[3], 1);
    let score = check(kind, scenario, seed);
    let again = run(&DemandTrace::new(kind, scenario, seed), MEASURED, seed);
    assert_eq!(again, score, "equal seeds give equal scores");
}

/// A lying node moves the row of its own zone alone, so that the load is as with honest reports. `ZONEWARD_BENCH_SEEDS=20`
/// takes more than one seed.
#[test]
fn a_lying_node_is_never_worse_than_prefer_same_zone() {
    let seeds = std::env::var("ZONEWARD_BENCH_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let lying = SCENARIOS.into_iter().find(|scenario| scenario.liar != 1.0).expect("it is there");
    for kind in TraceKind::ALL {
        for seed in 0..seeds {
            check(kind, lying, seed);
        }
    }
}

/// Each seed is another case: all 40 of traces and scenarios are checked with 40 seeds.
#[test]
fn soak_spill_on_measured_demand() {
    let seconds = std::env::var("ZONEWARD_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let first: u64 = std::env::var("ZONEWARD_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let (start, time) = (Instant::now(), Duration::from_secs(seconds.unwrap_or(3)));
    for seed in first.. {
        let number = seed as usize;
        let kind = TraceKind::ALL[number % TraceKind::ALL.len()];
        check(kind, SCENARIOS[number % SCENARIOS.len()], seed);
        if start.elapsed() >= time {
            println!("seeds {first} to {seed}; ZONEWARD_SEED replays one");
            return;
        }
    }
}

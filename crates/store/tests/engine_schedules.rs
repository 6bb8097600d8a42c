//! The engine's threads in many orders: the engine's source, compiled with locks, channels and threads of shuttle, which
//! runs one thread at a time and decides at each of their uses which one is next (at random, or with few preemptions at
//! random places: PCT). A thread that waits for what nothing will do is a failure, so a lost wake-up is found.
//!
//! Files, and the tables in them, keep the locks of std: no other thread runs while one of those is held.

#[allow(dead_code, unused_imports, reason = "the schedules use a part of the engine")]
#[path = "../src"]
mod source {
    pub mod engine;
}
use source::engine;

// The checker of the simulated plane: this crate cannot depend on one above it.
#[path = "../../plane/src/linearizability.rs"]
mod linearizability;

#[path = "engine_schedules/clients.rs"]
mod clients;
#[path = "engine_schedules/memory_disk.rs"]
mod memory_disk;
#[path = "engine_schedules/scenarios.rs"]
mod scenarios;
#[path = "engine_schedules/sync.rs"]
mod sync;

use std::time::{Duration, Instant};

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// Preemptions of a PCT schedule.
const DEPTH: usize = 3;
/// Schedules of each kind and test.
const SCHEDULES: usize = 50;

/// Unoptimised tables need more than the default.
fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config
}

/// Explores schedules that a seed names; a failure prints its schedule.
fn explore(seed: u64, schedules: usize, scenario: fn()) {
    Runner::new(RandomScheduler::new_from_seed(seed, schedules), config()).run(scenario);
    Runner::new(PctScheduler::new_from_seed(seed, DEPTH, schedules), config()).run(scenario);
}

#[test]
fn watchers_see_every_revision_once_and_in_order() {
    explore(1, SCHEDULES, scenarios::few_watchers);
}

#[test]
fn watchers_that_the_notifier_wakes_see_every_revision_once_and_in_order() {
    explore(1, SCHEDULES, scenarios::many_watchers);
}

#[test]
fn closing_answers_every_write_and_ends_every_watch() {
    explore(1, SCHEDULES, scenarios::closing);
}

#[test]
fn a_failed_write_loses_neither_answers_nor_events() {
    explore(1, SCHEDULES, scenarios::failing_disk);
}

#[test]
fn histories_of_concurrent_clients_are_linearizable() {
    explore(1, SCHEDULES, clients::linearizable);
}

/// Fresh schedules; ZONEWARD_SEED replays them.
#[test]
fn soak_schedules() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seconds = number("ZONEWARD_SOAK_SECONDS").unwrap_or(10);
    let first = number("ZONEWARD_SEED").unwrap_or_else(clock::os_seed);
    println!("ZONEWARD_SEED={first}");
    let scenarios = [
        scenarios::few_watchers,
        scenarios::many_watchers,
        scenarios::closing,
        scenarios::failing_disk,
        clients::linearizable,
    ];
    let (start, mut rounds) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(seconds) {
        for scenario in scenarios {
            explore(first.wrapping_add(rounds), 10, scenario);
        }
        rounds += 1;
    }
    println!("{} schedules of each of {} scenarios", 20 * rounds, scenarios.len());
}

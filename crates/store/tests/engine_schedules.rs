//! The engine's threads in many orders: the engine's source, compiled with locks, channels and threads of shuttle, which
//! runs one thread at a time and decides at each of their uses which one is next (at random, or with few preemptions at
//! random places: PCT). A thread that waits for what nothing will do is a failure, so a lost wake-up is found.
//!
//! Files, and the tables in them, keep the locks of std: no other thread runs while one of those is held.

#![allow(unreachable_pub)]

#[allow(dead_code, unused_imports, reason = "the schedules use a part of the engine")]
#[path = "../src"]
mod source {
    pub mod engine;
}
use source::engine;

// The checker of the simulated fleet: this crate cannot depend on one above it.
#[path = "../../fleet/src/linearizability.rs"]
mod linearizability;

#[path = "engine_schedules/clients.rs"]
mod clients;
#[path = "engine_schedules/memory_disk.rs"]
mod memory_disk;
#[path = "engine_schedules/scenarios.rs"]
mod scenarios;
#[path = "engine_schedules/sync.rs"]
mod sync;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

use engine::EngineSabotage;

/// Preemptions of a PCT schedule.
const DEPTH: usize = 3;
/// Schedules of each kind and test.
const SCHEDULES: usize = 50;
/// Rounds of so many schedules in which a sabotage must be found.
const ROUNDS: u64 = 20;

/// Unoptimised tables need more than the default.
fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config
}

/// Explores schedules that a seed names; a failure prints its schedule.
fn explore(seed: u64, schedules: usize, scenario: impl Fn() + Clone + Send + Sync + 'static) {
    Runner::new(RandomScheduler::new_from_seed(seed, schedules), config()).run(scenario.clone());
    Runner::new(PctScheduler::new_from_seed(seed, DEPTH, schedules), config()).run(scenario);
}

/// Sabotages the engine and runs rounds of schedules, the first as the tests do, until one fails: how many, and how.
fn first_failure(sabotage: EngineSabotage, scenario: fn()) -> Option<(usize, String)> {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = {
        let count = count.clone();
        move || {
            count.fetch_add(1, Ordering::SeqCst);
            scenario();
        }
    };
    sync::sabotage(Some(sabotage));
    let round = |seed| catch_unwind(AssertUnwindSafe(|| explore(seed, SCHEDULES, counted.clone()))).err();
    let failure = (1..=ROUNDS).find_map(round);
    sync::sabotage(None);
    failure.map(|panic| (count.load(Ordering::SeqCst), panic_text(panic.as_ref())))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
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

#[test]
fn watchers_that_come_and_go_see_every_revision_once_and_in_order() {
    explore(1, SCHEDULES, scenarios::leaving_watchers);
}

#[test]
fn each_sabotage_of_the_engine_is_found() {
    let cases: [(EngineSabotage, fn()); 7] = [
        (EngineSabotage::WakerAfterLook, scenarios::few_watchers),
        (EngineSabotage::LateSubscription, scenarios::few_watchers),
        (EngineSabotage::EagerBookmark, scenarios::few_watchers),
        (EngineSabotage::AnswerBeforePublish, scenarios::few_watchers),
        (EngineSabotage::IgnoredQueue, scenarios::closing),
        (EngineSabotage::NotifyPastWave, scenarios::leaving_watchers),
        (EngineSabotage::DroppedHandover, scenarios::many_watchers),
    ];
    for (sabotage, scenario) in cases {
        let found = first_failure(sabotage, scenario);
        let (schedules, how) = found.unwrap_or_else(|| panic!("no schedule finds {sabotage:?}"));
        println!("{sabotage:?}: {schedules} schedules: {how}");
    }
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
        scenarios::leaving_watchers,
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

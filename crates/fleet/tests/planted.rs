//! Whether the simulation finds each of ten planted bugs within 1,000 seeds: `cargo xtask soak planted`, which prints the rows
//! of the table in docs/benchmarks/simulation.md. `cargo xtask test` runs the seeds that are known to find five of them.

use std::sync::{Mutex, PoisonError};

use fleet::soak::shortest_prefix;
use fleet::{Options, RunReport, Sabotage, Simulation};
use model::plant::{PlantedBug, plant};

/// One bug at a time is planted in a process.
static PLANTED: Mutex<()> = Mutex::new(());

/// Plants a bug, runs seeds until it breaks an invariant, and shows that its shortest prefix replays.
fn find(bug: PlantedBug) {
    let _one = PLANTED.lock().unwrap_or_else(PoisonError::into_inner);
    let (seeds, report) = first_failure(bug).unwrap_or_else(|| panic!("no seed found {bug:?}"));
    let broken = report.broken.clone().expect("a failure");
    let how: String = broken.to_string().replace(['\n', '|'], " ").chars().take(160).collect();
    println!("| {bug:?} | {seeds} | {how} |");
    let shortest = shortest_prefix(report);
    let again = Simulation::run(shortest.options.clone(), false);
    assert_eq!((again.hash, &again.broken), (shortest.hash, &shortest.broken), "the prefix replays");
    plant(None);
}

/// The first seed that fails with the bug and passes without it, and how many were run.
fn first_failure(bug: PlantedBug) -> Option<(u64, RunReport)> {
    let run_with = |bug, seed| {
        plant(bug);
        Simulation::run(Options::of(seed), false)
    };
    let is_failing = |report: &RunReport| report.broken.is_some();
    let failures = (0..1_000).map(|seed| (seed, run_with(Some(bug), seed)));
    let mut failures = failures.filter(|(_, report)| is_failing(report));
    let (seed, report) = failures.find(|(seed, _)| !is_failing(&run_with(None, *seed)))?;
    plant(Some(bug));
    Some((seed + 1, report))
}

#[test]
fn skipped_expectation_is_found() {
    find(PlantedBug::SkippedExpectation);
}

#[test]
fn lost_410_is_found() {
    find(PlantedBug::Lost410);
}

#[test]
fn unsynced_journal_is_found() {
    find(PlantedBug::UnsyncedJournal);
}

#[test]
fn two_leaders_are_found() {
    find(PlantedBug::TwoLeaders);
}

#[test]
fn half_batch_is_found() {
    find(PlantedBug::HalfBatch);
}

#[test]
fn stale_hint_is_found() {
    find(PlantedBug::StaleHint);
}

#[test]
fn lost_dirty_set_is_found() {
    find(PlantedBug::LostDirtySet);
}

#[test]
fn wrong_affinity_timeout_is_found() {
    find(PlantedBug::WrongAffinityTimeout);
}

#[test]
fn revision_as_text_is_found() {
    find(PlantedBug::RevisionAsText);
}

#[test]
fn missed_delete_is_found() {
    find(PlantedBug::MissedDelete);
}

/// Whether the checks that no planted bug needs can fail, each within 100 seeds.
#[test]
fn each_sabotage_is_found() {
    let _one = PLANTED.lock().unwrap_or_else(PoisonError::into_inner);
    let all = [
        Sabotage::ForeignConditions,
        Sabotage::EndedConnections,
        Sabotage::RevivedFlows,
        Sabotage::MissedConnections,
        Sabotage::CountedTwice,
        Sabotage::MissingObject,
        Sabotage::Unrest,
        Sabotage::StaleEnvoy,
    ];
    for sabotage in all {
        let run = |seed| Simulation::run(Options { sabotage: Some(sabotage), ..Options::of(seed) }, false);
        let broken = |report: RunReport| report.broken.filter(|b| b.number == sabotage.invariant());
        let found = (0..100).find_map(|seed| Some((seed + 1, broken(run(seed))?)));
        let (seeds, broken) = found.unwrap_or_else(|| panic!("no seed found {sabotage:?}"));
        let how: String = broken.to_string().replace(['\n', '|'], " ").chars().take(160).collect();
        println!("| {sabotage:?} | {seeds} | {how} |");
    }
}

//! Histories of concurrent clients of the embedded API, under faults of network and disk, are linearizable.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fleet::store_histories::{HistoryOptions, HistoryReport, StoreSabotage, run};

fn assert_linearizable(report: &HistoryReport) {
    let HistoryReport { options, broken, story, .. } = report;
    let seed = options.seed;
    assert!(broken.is_none(), "ZONEWARD_SEED={seed}\n{options:?}\n{broken:?}\n{}", story.join("\n"));
}

fn operations(report: &HistoryReport) -> u64 {
    report.histories.values().map(|history| history.len() as u64).sum()
}

/// ZONEWARD_SEED replays a run.
#[test]
fn soak_histories_are_linearizable() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("ZONEWARD_SEED").unwrap_or(1);
    let time = Duration::from_secs(number("ZONEWARD_SOAK_SECONDS").unwrap_or(10));
    let (start, mut seeds, mut counts) = (Instant::now(), 0, BTreeMap::<_, u64>::new());
    while start.elapsed() < time {
        let report = run(HistoryOptions::of(first + seeds));
        assert_linearizable(&report);
        seeds += 1;
        *counts.entry("operations checked").or_default() += operations(&report);
        for (name, count) in &report.counts {
            *counts.entry(name).or_default() += count;
        }
    }
    println!("{seeds} seeds from {first} on in {:.0} s: {counts:#?}", start.elapsed().as_secs_f64());
    assert!(counts["operations checked"] > 0);
}

#[test]
fn two_runs_of_a_seed_have_the_same_history() {
    let [first, second] = [1, 1].map(|seed| run(HistoryOptions::of(seed)).histories);
    assert_eq!(first, second);
    assert_ne!(first, run(HistoryOptions::of(2)).histories);
}

#[test]
fn each_sabotage_of_the_store_is_found() {
    for sabotage in StoreSabotage::ALL {
        let found = (1..=50).find_map(|seed| {
            let report = run(HistoryOptions { sabotage: Some(sabotage), ..HistoryOptions::of(seed) });
            report.broken.map(|broken| (seed, broken))
        });
        let (seeds, broken) = found.unwrap_or_else(|| panic!("no seed finds {sabotage:?}"));
        println!("{sabotage:?}: {seeds} seeds: {broken}");
        assert!(!broken.contains("not decided"), "{broken}");
    }
}

/// The planted bug of the whole simulation, found by clients alone.
#[cfg(debug_assertions)]
#[test]
fn an_unsynced_journal_is_found() {
    model::plant::plant(Some(model::plant::PlantedBug::UnsyncedJournal));
    let found = (1..=50).find_map(|seed| run(HistoryOptions::of(seed)).broken.map(|broken| (seed, broken)));
    model::plant::plant(None);
    let (seeds, broken) = found.expect("50 seeds find it");
    println!("UnsyncedJournal: {seeds} seeds: {broken}");
}

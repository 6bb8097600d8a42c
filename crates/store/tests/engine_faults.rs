//! Disks that fail: whatever they do, an acknowledged write is there afterwards, and a failure is an error in words.

use crate::dice;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dice::{Dice, seed};
use fixtures::{DiskFaults, FaultyDisk};
use model::random::Random;
use proptest::prelude::*;
use store::engine::{
    Bytes, CommitMode, Engine, EngineOptions, Expect, ListQuery, OpenError, PendingWrite, ResourceId,
    Revision, StorageErrorKind, StoreKey, Txn, TxnError, WatchEventType, WriteError,
};

const PODS: ResourceId = ResourceId(1);

/// Without the hook, a failed sync would end the test's process.
fn options(ended: &Arc<AtomicBool>, commit: CommitMode) -> EngineOptions {
    let ended = ended.clone();
    EngineOptions {
        commit,
        journal_bytes: 16 << 10,
        cache_bytes: 256 << 10,
        history_events: 8,
        group_bytes: 2 << 10,
        on_sync_failure: Arc::new(move |_| ended.store(true, Ordering::SeqCst)),
        ..EngineOptions::default()
    }
}

/// Faults must not depend on which thread commits.
const MODES: [CommitMode; 2] = [CommitMode::WriterThread, CommitMode::Inline];

/// What was acknowledged: for every revision the key and the JSON, or nothing for a deletion.
type Acknowledged = BTreeMap<Revision, (StoreKey, Option<Bytes>)>;
type Outcome = (Revision, StoreKey, Option<Bytes>);

fn write(engine: &Engine, dice: &mut Dice) -> Option<PendingWrite<Outcome, TxnError>> {
    let key = StoreKey::new(PODS, "default", &format!("p{}", dice.below(12)));
    let json = (!dice.once_in(4)).then(|| {
        let size = if dice.once_in(40) { 12_000 } else { dice.below(700) };
        Bytes::from(format!("{:x}", dice.roll()).repeat(1 + size as usize / 16))
    });
    let work = move |txn: &mut Txn<'_>| {
        let revision = match &json {
            Some(json) => txn.put(key.clone(), json.clone(), Expect::Anything)?,
            None => txn.delete(&key, None, Expect::Anything)?,
        };
        Ok((revision, key, json))
    };
    // Some commit on their own thread if no other write is queued.
    let submitted = if dice.once_in(2) { engine.submit_or_commit(work) } else { engine.submit(work) };
    submitted.ok()
}

/// Writes in groups of some; notes what was acknowledged. The result is whether the engine still works.
fn work(engine: &Engine, dice: &mut Dice, acknowledged: &mut Acknowledged) -> bool {
    let group: Vec<_> = (0..1 + dice.below(6)).filter_map(|_| write(engine, dice)).collect();
    let mut works = true;
    for pending in group {
        match pending.wait() {
            Ok((revision, key, json)) => {
                let clash = acknowledged.insert(revision, (key, json));
                assert_eq!(clash, None, "revision {revision} was given twice");
            }
            Err(WriteError::Refused(TxnError::Conflict { .. })) => {}
            Err(WriteError::Failed(_) | WriteError::Refused(TxnError::Failed(_))) => works = false,
            Err(other) => panic!("{other}"),
        }
    }
    works
}

/// Every acknowledged change is in the log under its revision, and the log has no gap.
fn assert_kept(engine: &Engine, acknowledged: &Acknowledged) {
    let last = acknowledged.last_key_value().map_or(Revision(0), |(last, _)| *last);
    assert!(engine.revision() >= last, "at {}, acknowledged {last}", engine.revision());
    let mut watcher = engine.watch(PODS, None, Revision(0)).unwrap_or_else(|error| panic!("{error}"));
    let mut next = Revision(1);
    while next <= engine.revision() {
        let changes = watcher.wait(Duration::from_secs(10)).unwrap_or_else(|error| panic!("{error}"));
        assert!(!changes.is_empty(), "nothing at {next}, the engine is at {}", engine.revision());
        for change in changes {
            assert_eq!(change.revision, next);
            next = next.next();
            let Some((key, json)) = acknowledged.get(&change.revision) else { continue };
            assert_eq!(change.key, *key);
            assert_eq!(change.kind == WatchEventType::Deleted, json.is_none());
            assert!(json.as_ref().is_none_or(|json| *json == change.json));
        }
    }
    assert_newest(engine, acknowledged);
}

/// The state is that of the last acknowledged change of each object, or of one that came later unacknowledged.
fn assert_newest(engine: &Engine, acknowledged: &Acknowledged) {
    let newest: BTreeMap<&StoreKey, Revision> =
        acknowledged.iter().map(|(revision, (key, _))| (key, *revision)).collect();
    for (key, revision) in newest {
        let found = engine.get(key).unwrap_or_else(|error| panic!("{error}"));
        let json = &acknowledged[&revision].1;
        match found {
            Some(found) if found.revision == revision => assert_eq!(Some(&found.json), json.as_ref()),
            Some(found) => assert!(found.revision > revision, "{key} fell back"),
            None => assert!(json.is_none() || engine.revision() > revision, "{key} is lost"),
        }
    }
}

fn soak_time() -> Duration {
    let seconds = std::env::var("ZONEWARD_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(10))
}

#[test]
fn soak_power_loss_keeps_what_was_acknowledged() {
    let (seed, end) = (seed(), Instant::now() + soak_time());
    let mut rounds = 0;
    while Instant::now() < end {
        power_loss_round(seed.wrapping_add(rounds), MODES[rounds as usize % 2]);
        rounds += 1;
    }
    println!("{rounds} disks");
    assert!(rounds > 0);
}

/// One disk, many power losses.
fn power_loss_round(seed: u64, commit: CommitMode) {
    println!("round ZONEWARD_SEED={seed} {commit:?}");
    let (mut dice, disk) = (Dice::new(seed), FaultyDisk::new(Random::seeded(seed ^ 1)));
    let mut acknowledged = Acknowledged::new();
    for _ in 0..12 {
        let ended = Arc::new(AtomicBool::new(false));
        // Often during the start, which has the most to lose.
        let reach = if dice.once_in(2) { 300 } else { 30 };
        disk.stop_after(1 + dice.below(reach));
        if let Ok(engine) = Engine::open_on(disk.clone(), options(&ended, commit)) {
            while work(&engine, &mut dice, &mut acknowledged) {}
        }
        if dice.once_in(2) {
            disk.stop_after(1 + dice.below(12));
            drop(Engine::open_on(disk.clone(), options(&ended, commit)));
        }
        disk.restart(true);
        let engine =
            Engine::open_on(disk.clone(), options(&ended, commit)).unwrap_or_else(|error| panic!("{error}"));
        assert_kept(&engine, &acknowledged);
    }
}

#[test]
fn soak_failing_reads_and_writes_lose_nothing_and_heal() {
    let (seed, end) = (seed(), Instant::now() + soak_time());
    let (mut rounds, mut failed) = (0, 0);
    while Instant::now() < end {
        failed += failing_round(seed.wrapping_add(rounds), MODES[rounds as usize % 2]);
        rounds += 1;
    }
    println!("{rounds} disks, {failed} failures healed");
    assert!(failed > 0);
}

fn failing_round(seed: u64, commit: CommitMode) -> u64 {
    println!("round ZONEWARD_SEED={seed} {commit:?}");
    let (mut dice, disk) = (Dice::new(seed), FaultyDisk::new(Random::seeded(seed ^ 1)));
    let (mut acknowledged, ended) = (Acknowledged::new(), Arc::new(AtomicBool::new(false)));
    let engine =
        Engine::open_on(disk.clone(), options(&ended, commit)).unwrap_or_else(|error| panic!("{error}"));
    let mut failed = 0;
    for _ in 0..10 {
        disk.set_faults(DiskFaults { read: 40, write: 20, ..DiskFaults::default() });
        for _ in 0..10 {
            failed += u64::from(!work(&engine, &mut dice, &mut acknowledged));
        }
        disk.set_faults(DiskFaults::default());
        // The first write may still meet what the faults left; then all is well again.
        work(&engine, &mut dice, &mut acknowledged);
        assert!(work(&engine, &mut dice, &mut acknowledged));
        assert_kept(&engine, &acknowledged);
    }
    assert!(!ended.load(Ordering::SeqCst));
    drop(engine);
    disk.restart(true);
    let engine = Engine::open_on(disk, options(&ended, commit)).unwrap_or_else(|error| panic!("{error}"));
    assert_kept(&engine, &acknowledged);
    failed
}

#[test]
fn a_failed_sync_ends_the_engine_and_loses_nothing() {
    MODES.into_iter().for_each(failed_sync);
}

fn failed_sync(commit: CommitMode) {
    let seed = seed();
    let (mut dice, disk) = (Dice::new(seed), FaultyDisk::new(Random::seeded(seed)));
    let (mut acknowledged, ended) = (Acknowledged::new(), Arc::new(AtomicBool::new(false)));
    let engine = Engine::open_on(disk.clone(), options(&ended, commit)).unwrap();
    while !work(&engine, &mut dice, &mut acknowledged) || acknowledged.is_empty() {}
    disk.set_faults(DiskFaults { sync: 1, ..DiskFaults::default() });
    while work(&engine, &mut dice, &mut acknowledged) {}
    assert!(ended.load(Ordering::SeqCst), "the hook was called");
    disk.set_faults(DiskFaults::default());
    // Even though the disk would work again: its content is unknown.
    assert!(!work(&engine, &mut dice, &mut acknowledged));
    assert!(engine.get(&StoreKey::new(PODS, "default", "p1")).is_err());
    drop(engine);
    disk.restart(true);
    let engine = Engine::open_on(disk, options(&ended, commit)).unwrap();
    assert_kept(&engine, &acknowledged);
}

#[test]
fn a_full_disk_is_reported_while_reads_continue_and_recovers() {
    MODES.into_iter().for_each(full_disk);
}

fn full_disk(commit: CommitMode) {
    let (mut dice, disk) = (Dice::new(7), FaultyDisk::new(Random::seeded(7)));
    let (mut acknowledged, ended) = (Acknowledged::new(), Arc::new(AtomicBool::new(false)));
    let engine = Engine::open_on(disk.clone(), options(&ended, commit)).unwrap();
    work(&engine, &mut dice, &mut acknowledged);
    disk.set_faults(DiskFaults { full: true, ..DiskFaults::default() });
    let refused = (0..100_000).find_map(|number| {
        let key = StoreKey::new(PODS, "default", &format!("more-{number}"));
        let json = Bytes::from("x".repeat(1_000));
        let result = engine.write(move |txn| {
            let revision = txn.put(key.clone(), json.clone(), Expect::Absent)?;
            Ok::<_, TxnError>((revision, key, Some(json)))
        });
        match result {
            Ok((revision, key, json)) => {
                acknowledged.insert(revision, (key, json));
                None
            }
            Err(error) => Some(error),
        }
    });
    let Some(WriteError::Failed(failure)) = refused else { panic!("{refused:?}") };
    assert_eq!(failure.kind, StorageErrorKind::Full);
    assert!(failure.to_string().contains("free some space"), "{failure}");
    assert_kept(&engine, &acknowledged);
    disk.set_faults(DiskFaults::default());
    assert!(work(&engine, &mut dice, &mut acknowledged));
    assert!(!ended.load(Ordering::SeqCst));
    drop(engine);
    assert_kept(&Engine::open_on(disk, options(&ended, commit)).unwrap(), &acknowledged);
}

#[test]
fn deletes_and_a_restart_work_on_a_full_disk() {
    MODES.into_iter().for_each(deletes_on_a_full_disk);
}

fn put(engine: &Engine, name: &str, size: usize) -> Result<Revision, WriteError<TxnError>> {
    let key = StoreKey::new(PODS, "default", name);
    engine.write(move |txn| txn.put(key, Bytes::from("x".repeat(size)), Expect::Anything))
}

fn delete(engine: &Engine, name: &str) -> Result<Revision, WriteError<TxnError>> {
    let key = StoreKey::new(PODS, "default", name);
    engine.write(move |txn| txn.delete(&key, None, Expect::Present))
}

fn deletes_on_a_full_disk(commit: CommitMode) {
    let (disk, ended) = (FaultyDisk::new(Random::seeded(11)), Arc::new(AtomicBool::new(false)));
    let options = || EngineOptions { journal_bytes: 256 << 10, ..options(&ended, commit) };
    let mut engine = Engine::open_on(disk.clone(), options()).unwrap();
    for number in 0..2_000 {
        put(&engine, &format!("p{number}"), 1_000).unwrap();
    }
    disk.set_faults(DiskFaults { full: true, ..DiskFaults::default() });
    for number in 0..2_000 {
        if number % 100 == 0 {
            let refused = put(&engine, "other", 1_000).err();
            assert!(
                matches!(refused, Some(WriteError::Failed(error)) if error.kind == StorageErrorKind::Full)
            );
        }
        if number % 700 == 0 {
            drop(engine);
            engine = Engine::open_on(disk.clone(), options()).unwrap();
        }
        delete(&engine, &format!("p{number}")).unwrap_or_else(|error| panic!("p{number}: {error}"));
    }
    let found = engine.get(&StoreKey::new(PODS, "default", "p1")).unwrap();
    assert!(found.is_none());
    disk.set_faults(DiskFaults::default());
    put(&engine, "after", 1_000).unwrap();
    drop(engine);
    let engine = Engine::open_on(disk, options()).unwrap();
    assert!(engine.get(&StoreKey::new(PODS, "default", "after")).unwrap().is_some());
    assert!(!ended.load(Ordering::SeqCst));
}

#[test]
fn a_disk_too_full_for_a_store_is_reported_at_the_start() {
    MODES.into_iter().for_each(too_full_to_start);
}

fn too_full_to_start(commit: CommitMode) {
    let (disk, ended) = (FaultyDisk::new(Random::seeded(1)), Arc::new(AtomicBool::new(false)));
    disk.set_faults(DiskFaults { full: true, ..DiskFaults::default() });
    let error = Engine::open_on(disk.clone(), options(&ended, commit)).err().unwrap();
    assert!(matches!(error, OpenError::Full { .. }), "{error}");
    disk.set_faults(DiskFaults::default());
    assert!(Engine::open_on(disk, options(&ended, commit)).is_ok());
}

/// A store with some content that was closed, and what it held.
fn closed_store(seed: u64, commit: CommitMode) -> (FaultyDisk, Vec<(StoreKey, Bytes)>) {
    let (mut dice, disk) = (Dice::new(seed), FaultyDisk::new(Random::seeded(seed)));
    let (mut acknowledged, ended) = (Acknowledged::new(), Arc::new(AtomicBool::new(false)));
    let engine =
        Engine::open_on(disk.clone(), options(&ended, commit)).unwrap_or_else(|error| panic!("{error}"));
    for _ in 0..20 {
        work(&engine, &mut dice, &mut acknowledged);
    }
    let page = engine.list(&ListQuery::all(PODS)).unwrap_or_else(|error| panic!("{error}"));
    (disk, page.items.into_iter().map(|item| (item.key, item.json)).collect())
}

/// Opens and reads everything: refused, or exactly what was written.
fn assert_refused_or_whole(disk: FaultyDisk, expected: &[(StoreKey, Bytes)], what: &str) -> bool {
    let ended = Arc::new(AtomicBool::new(false));
    match Engine::open_on(disk, options(&ended, CommitMode::WriterThread)) {
        Err(OpenError::Damaged { .. }) => true,
        Err(OpenError::Format { .. }) => true,
        Err(other) => panic!("{what}: {other}"),
        Ok(engine) => {
            let page = engine.list(&ListQuery::all(PODS)).unwrap_or_else(|error| panic!("{what}: {error}"));
            let found: Vec<_> = page.items.into_iter().map(|item| (item.key, item.json)).collect();
            assert_eq!(found, expected, "{what}");
            false
        }
    }
}

#[test]
fn soak_a_damaged_file_is_refused_or_does_not_matter() {
    let (seed, end) = (seed(), Instant::now() + soak_time() / 2);
    let mut dice = Dice::new(seed);
    let (whole, expected) = closed_store(seed, CommitMode::WriterThread);
    let used = whole.used_bytes(0);
    let (mut refused, mut tried) = (0, 0);
    while Instant::now() < end {
        let disk = whole.copy();
        let offset = used[dice.below(used.len() as u64) as usize];
        let bit = dice.below(8) as u8;
        disk.flip_bit(0, offset, bit);
        tried += 1;
        refused += u32::from(assert_refused_or_whole(disk, &expected, &format!("bit {bit} of {offset}")));
    }
    println!("{refused} of {tried} refused");
    assert!(refused > 0);
}

/// A store whose process was killed after some writes, the bytes of its journal that have records, and its content.
fn killed_store(commit: CommitMode) -> (FaultyDisk, usize, Vec<(StoreKey, Bytes)>) {
    let (disk, ended) = (FaultyDisk::new(Random::seeded(5)), Arc::new(AtomicBool::new(false)));
    let options = EngineOptions { journal_bytes: 64 << 10, ..options(&ended, commit) };
    let engine = Engine::open_on(disk.clone(), options).unwrap();
    for number in 0..12 {
        let key = StoreKey::new(PODS, "default", &format!("p{number}"));
        engine.write(move |txn| txn.put(key, Bytes::from("x".repeat(900)), Expect::Absent)).unwrap();
    }
    let page = engine.list(&ListQuery::all(PODS)).unwrap();
    let left = disk.copy();
    // The last sector is the mark.
    let sectors = left.len(1) / 512 - 1;
    let used = left.used_bytes(1).into_iter().rfind(|offset| *offset < sectors * 512).unwrap();
    (left, used / 512 * 512 + 512, page.items.into_iter().map(|item| (item.key, item.json)).collect())
}

#[test]
fn a_journal_that_was_cut_short_is_refused() {
    for commit in MODES {
        let (whole, used, expected) = killed_store(commit);
        let length = whole.len(1);
        let refusal = |disk: FaultyDisk, what: &str| {
            let ended = Arc::new(AtomicBool::new(false));
            let options = EngineOptions { journal_bytes: 64 << 10, ..options(&ended, commit) };
            match Engine::open_on(disk, options) {
                Err(error @ OpenError::Damaged { .. }) => error.to_string(),
                other => panic!("{what}: {:?}", other.map(|engine| engine.revision())),
            }
        };
        for cut in (1..used).step_by(300).chain([used, used + 1, length - 512, length - 1]) {
            let disk = whole.copy();
            disk.cut(1, cut);
            let error = refusal(disk, &format!("cut to {cut}"));
            assert!(error.contains("the journal was cut to"), "{error}");
        }
        for start in (0..used).step_by(512) {
            let disk = whole.copy();
            disk.zero(1, start..length - 512);
            let error = refusal(disk, &format!("zeros from {start}"));
            assert!(error.contains("up to revision 12 were acknowledged"), "{error}");
            // Cut, and then as long as before.
            let disk = whole.copy();
            disk.zero(1, start..length);
            let error = refusal(disk, &format!("zeros from {start} to the end"));
            assert!(error.contains("the journal was cut short"), "{error}");
        }
        assert!(!assert_refused_or_whole(whole, &expected, "the store as it was"));
    }
}

#[test]
fn a_torn_record_that_was_not_acknowledged_is_no_loss() {
    for commit in MODES {
        let (disk, used, expected) = killed_store(commit);
        // What a crash during the next write may leave behind the last record.
        disk.flip_bit(1, used + 3, 1);
        disk.flip_bit(1, used + 600, 1);
        assert!(!assert_refused_or_whole(disk, &expected, "a torn tail"));
    }
}

#[test]
fn power_loss_during_the_start_after_a_crash_is_no_loss() {
    for (seed, operations) in (0..8).flat_map(|seed| (1..24).map(move |operations| (seed, operations))) {
        let (disk, ended) = (FaultyDisk::new(Random::seeded(seed)), Arc::new(AtomicBool::new(false)));
        let options = || options(&ended, CommitMode::Inline);
        let engine = Engine::open_on(disk.clone(), options()).unwrap();
        put(&engine, "acknowledged", 900).unwrap();
        // The record is written and not synced.
        disk.stop_after(2);
        put(&engine, "other", 900).unwrap_err();
        drop(engine);
        disk.stop_after(operations);
        drop(Engine::open_on(disk.clone(), options()));
        disk.restart(true);
        let engine = Engine::open_on(disk, options())
            .unwrap_or_else(|error| panic!("seed {seed}, {operations} operations: {error}"));
        assert!(engine.get(&StoreKey::new(PODS, "default", "acknowledged")).unwrap().is_some());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn power_loss_with_reordered_blocks_keeps_what_was_acknowledged(seed: u64, inline: bool) {
        power_loss_round(seed, MODES[usize::from(inline)]);
    }
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    MODES.into_iter().for_each(mixed_files);
}

fn mixed_files(commit: CommitMode) {
    let (old, expected) = closed_store(3, commit);
    let ended = Arc::new(AtomicBool::new(false));
    let refusal = |disk: FaultyDisk| match Engine::open_on(disk, options(&ended, commit)) {
        Err(error @ OpenError::Damaged { .. }) => error.to_string(),
        other => panic!("{:?}", other.map(|engine| engine.revision())),
    };
    let without_journal = old.copy();
    without_journal.take_file_of(&FaultyDisk::new(Random::seeded(9)), 1);
    assert!(refusal(without_journal).contains("the journal is missing"));

    // Three more epochs on, with writes in the journal that only it has.
    let new = old.copy();
    let engine = Engine::open_on(new.clone(), options(&ended, commit)).unwrap();
    for number in 0..40 {
        let key = StoreKey::new(PODS, "default", "later");
        let json = Bytes::from(format!("{number}").repeat(500));
        engine.write(move |txn| txn.put(key, json, Expect::Anything)).unwrap();
    }
    new.stop_after(1);
    drop(engine);
    new.restart(true);
    let old_data = new.copy();
    old_data.take_file_of(&old, 0);
    assert!(refusal(old_data).contains("the journal is newer"));
    let no_data = new.copy();
    no_data.take_file_of(&FaultyDisk::new(Random::seeded(9)), 0);
    assert!(refusal(no_data).contains("the journal is newer"));

    assert!(!assert_refused_or_whole(old, &expected, "the old store as it was"));
}

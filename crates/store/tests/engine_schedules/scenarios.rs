//! What the engine's threads and their callers do in a schedule, and what must hold whatever the order.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use clock::{Clock, TimeSource};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::{self, JoinHandle};

use crate::engine::{
    Bytes, Engine, EngineOptions, Expect, ResourceId, Revision, StorageErrorKind, StoreKey, StoreReadError,
    Txn, TxnError, Watcher, WriteError,
};
use crate::memory_disk::MemoryDisk;

pub const PODS: ResourceId = ResourceId(1);
/// More watchers than the writer notifies by itself.
const MANY: usize = 33;
/// Watchers that end at any time.
const LEAVING: usize = 5;
/// Watchers that start at any time, and at the newest revision.
const LATE: usize = 3;
const WRITERS: usize = 2;
const WRITES: usize = 3;

/// Time stands still; a thread that sleeps lets others run.
struct TurnTime(Instant);

impl TimeSource for TurnTime {
    fn monotonic(&self) -> Instant {
        self.0
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }

    fn sleep_blocking(&self, _: Duration) {
        thread::yield_now();
    }
}

/// Bounds so small that watchers also read the log, writes find the queue full, and checkpoints happen.
pub fn open(disk: &MemoryDisk) -> Engine {
    let options = EngineOptions {
        clock: Clock::of(Arc::new(TurnTime(Instant::now()))),
        queue: 2,
        group: 2,
        history_events: 3,
        journal_bytes: 16 << 10,
        cache_bytes: 256 << 10,
        verify: false,
        on_sync_failure: Arc::new(|_| panic!("no sync fails here")),
        ..EngineOptions::default()
    };
    Engine::open_on(disk.clone(), options).expect("a new store")
}

fn put(
    namespace: &'static str,
    name: String,
) -> impl FnOnce(&mut Txn<'_>) -> Result<Revision, TxnError> + Send + 'static {
    move |txn| txn.put(StoreKey::new(PODS, namespace, &name), Bytes::from_static(b"{}"), Expect::Anything)
}

/// Writes in one of the three ways; `None` if the queue was full.
fn write(engine: &Engine, namespace: &'static str, name: String) -> Option<Result<Revision, String>> {
    let work = put(namespace, name);
    let submitted = match thread_rng().gen_range(0..3) {
        0 => return Some(engine.write(work).map_err(|error| error.to_string())),
        1 => engine.submit(work),
        _ => engine.submit_or_commit(work),
    };
    match submitted {
        Ok(pending) => Some(pending.wait().map_err(|error| error.to_string())),
        Err(WriteError::Busy) => None,
        Err(error) => Some(Err(error.to_string())),
    }
}

/// Each returns the revisions that it was given. Two namespaces, so that events are in scope of some watchers only.
fn start_writers(engine: &Arc<Engine>) -> Vec<JoinHandle<Vec<Revision>>> {
    let writer = |number: usize| {
        let engine = engine.clone();
        thread::spawn(move || {
            let mut given = Vec::new();
            for write_number in 0..WRITES {
                let namespace = ["a", "b"][(number + write_number) % 2];
                let name = format!("{number}-{write_number}");
                let Some(answer) = write(&engine, namespace, name.clone()) else { continue };
                let revision = answer.expect("the disk works");
                assert!(engine.revision() >= revision, "an answer before its revision");
                let found = engine.get(&StoreKey::new(PODS, namespace, &name)).expect("the disk works");
                assert_eq!(
                    found.map(|object| object.revision),
                    Some(revision),
                    "an answer before its object"
                );
                assert!(given.last().is_none_or(|last| *last < revision), "a caller's writes in order");
                given.push(revision);
            }
            given
        })
    };
    (0..WRITERS).map(writer).collect()
}

/// The name of the object after which watchers end.
const END: &str = "end";

/// Every event up to the end, or until the engine closes; bookmarks come before later events.
fn watch_to_the_end(mut watcher: Watcher) -> (Vec<Revision>, bool) {
    let (mut seen, mut bookmark) = (Vec::new(), Revision(0));
    loop {
        let events = match watcher.wait(Duration::from_secs(1)) {
            Ok(events) => events,
            Err(StoreReadError::Failed(error)) if error.kind == StorageErrorKind::Closed => {
                return (seen, false);
            }
            Err(error) => panic!("{error}"),
        };
        assert!(!events.is_empty(), "a wake-up without events");
        for event in events {
            assert!(event.revision > bookmark, "{} after bookmark {bookmark}", event.revision);
            seen.push(event.revision);
            if *event.key.name == *END {
                return (seen, true);
            }
        }
        if thread_rng().gen_range(0..2) == 0 {
            let progress = watcher.progress();
            assert!(progress >= bookmark, "a bookmark went back");
            bookmark = progress;
        }
    }
}

/// The thread of a watcher returns what it saw, and whether it came to the end.
type WatcherThread = JoinHandle<(Vec<Revision>, bool)>;

fn start_watcher(engine: &Engine, namespace: Option<&'static str>, from: Revision) -> WatcherThread {
    let watcher = engine.watch(PODS, namespace, from).expect("nothing is compacted");
    thread::spawn(move || watch_to_the_end(watcher))
}

/// Writers and watchers; `idle` watchers are there and read nothing until the end, `leaving` ones end before it.
fn watch_all(idle: usize, leaving: usize) {
    let engine = Arc::new(open(&MemoryDisk::default()));
    let watch = |_| engine.watch(PODS, None, Revision(0)).expect("nothing is compacted");
    let idle: Vec<Watcher> = (0..idle).map(watch).collect();
    let leaving: Vec<Watcher> = (0..leaving).map(watch).collect();
    let all = start_watcher(&engine, None, Revision(0));
    let some = start_watcher(&engine, Some("a"), Revision(0));
    let writers = start_writers(&engine);
    thread::spawn(move || leaving.into_iter().for_each(drop));
    let start_late = |_| {
        let from = engine.revision();
        (from, start_watcher(&engine, None, from))
    };
    let late: Vec<(Revision, WatcherThread)> = (0..LATE).map(start_late).collect();
    let mut given: Vec<Revision> =
        writers.into_iter().flat_map(|writer| writer.join().expect("no panic")).collect();
    given.push(engine.write(put("a", END.to_owned())).expect("the disk works"));
    given.sort_unstable();
    let expected: Vec<Revision> = (1..=given.len() as u64).map(Revision).collect();
    assert_eq!(given, expected, "each revision is given once");
    // Nothing wakes the watchers any more: one that missed its wake-up blocks here.
    assert_eq!(all.join().expect("no panic"), (expected.clone(), true));
    for (from, late) in late {
        assert_eq!(late.join().expect("no panic"), (expected[from.0 as usize..].to_vec(), true));
    }
    let mut in_scope = engine.watch(PODS, Some("a"), Revision(0)).expect("nothing is compacted");
    let mut events = Vec::new();
    while events.last().is_none_or(|last| Some(last) != expected.last()) {
        events
            .extend(in_scope.wait(Duration::from_secs(1)).expect("open").iter().map(|event| event.revision));
    }
    assert_eq!(some.join().expect("no panic"), (events, true));
    for watcher in idle {
        assert_eq!(watch_to_the_end(watcher), (expected.clone(), true));
    }
}

pub fn few_watchers() {
    watch_all(0, 0);
}

pub fn many_watchers() {
    watch_all(MANY, 0);
}

/// The writer or the notifier wakes the watchers, by turns: they are more than the writer notifies, and then fewer.
pub fn leaving_watchers() {
    watch_all(MANY - LEAVING, LEAVING);
}

/// The engine is dropped while writes are queued and watchers wait. Writes of one caller keep their order.
pub fn closing() {
    let engine = open(&MemoryDisk::default());
    let watcher = start_watcher(&engine, None, Revision(0));
    let mut pending = Vec::new();
    for number in 0..4 {
        let work = put("a", number.to_string());
        let is_queued = thread_rng().gen_range(0..2) == 0;
        match if is_queued { engine.submit(work) } else { engine.submit_or_commit(work) } {
            Ok(write) => pending.push(thread::spawn(move || write.wait())),
            Err(error) => assert_eq!(error, WriteError::Busy),
        }
    }
    drop(engine);
    let answers = pending.into_iter().map(|write| write.join().expect("no panic"));
    let given: Vec<Revision> = answers.map(|answer| answer.expect("queued writes are committed")).collect();
    assert!(given.is_sorted(), "a later write overtook another: {given:?}");
    // It may have been behind the event history when the log was closed.
    let (seen, _) = watcher.join().expect("no panic");
    assert!(given.starts_with(&seen), "{seen:?} of {given:?}");
}

/// One write to the disk fails at any time: the engine reopens its files while others read and write.
pub fn failing_disk() {
    let disk = MemoryDisk::default();
    let engine = Arc::new(open(&disk));
    disk.fail_after(thread_rng().gen_range(1..12));
    let watcher = start_watcher(&engine, None, Revision(0));
    let writer = |number: usize| {
        let engine = engine.clone();
        thread::spawn(move || {
            let names = (0..WRITES).map(|write_number| format!("{number}-{write_number}"));
            let answers = names.filter_map(|name| write(&engine, "a", name));
            answers.filter_map(Result::ok).collect::<Vec<Revision>>()
        })
    };
    let writers: Vec<_> = (0..WRITERS).map(writer).collect();
    let reader = {
        let engine = engine.clone();
        thread::spawn(move || {
            // It fails or not; what it finds is whole.
            (0..3).filter_map(|_| engine.list(&crate::engine::ListQuery::all(PODS)).ok()).for_each(|page| {
                assert_eq!(page.items.len() as u64, page.revision.0, "a new object per revision");
            });
        })
    };
    let given: Vec<Revision> =
        writers.into_iter().flat_map(|writer| writer.join().expect("no panic")).collect();
    reader.join().expect("no panic");
    let ended = (0..3).any(|_| engine.write(put("a", END.to_owned())).is_ok());
    assert!(ended, "only one write of the disk fails");
    let (seen, _) = watcher.join().expect("no panic");
    let expected: Vec<Revision> = (1..=seen.len() as u64).map(Revision).collect();
    assert_eq!(seen, expected, "every revision once and in order");
    assert!(given.iter().all(|revision| seen.contains(revision)), "{given:?} of {seen:?}");
}

//! What callers of the engine rely on: transactions, lists, watches, expiry, backups, errors that help.

use crate::folder;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use folder::TestFolder;
use store::engine::{
    Bytes, DATA_FILE, EncryptionKeys, Engine, EngineOptions, Expect, JOURNAL_FILE, ListQuery, OpenError,
    ResourceId, Revision, StoreKey, StoreReadError, TxnError, WatchEvent, WatchEventType, WriteError,
};

const PODS: ResourceId = ResourceId(1);
const EVENTS: ResourceId = ResourceId(2);

fn small() -> EngineOptions {
    EngineOptions { journal_bytes: 64 << 10, cache_bytes: 1 << 20, ..EngineOptions::default() }
}

fn open(folder: &TestFolder) -> Engine {
    Engine::open(folder.path(), small()).expect("a store opens")
}

fn pod(name: &str) -> StoreKey {
    StoreKey::new(PODS, "default", name)
}

fn put(
    engine: &Engine,
    key: &StoreKey,
    json: &str,
    expect: Expect,
) -> Result<Revision, WriteError<TxnError>> {
    let (key, json) = (key.clone(), Bytes::copy_from_slice(json.as_bytes()));
    engine.write(move |txn| txn.put(key, json, expect))
}

fn delete(engine: &Engine, key: &StoreKey) -> Result<Revision, WriteError<TxnError>> {
    let key = key.clone();
    engine.write(move |txn| txn.delete(&key, None, Expect::Anything))
}

fn names(engine: &Engine, query: &ListQuery<'_>) -> Vec<String> {
    engine
        .list(query)
        .expect("a list is answered")
        .items
        .iter()
        .map(|item| item.key.name.to_string())
        .collect()
}

fn seen(changes: &[Arc<WatchEvent>]) -> Vec<(u64, WatchEventType, &str)> {
    changes.iter().map(|change| (change.revision.0, change.kind, &*change.key.name)).collect()
}

#[test]
fn an_object_reads_back_with_its_revision_also_after_reopening() {
    let folder = TestFolder::new();
    let engine = open(&folder);
    assert_eq!(put(&engine, &pod("a"), "1", Expect::Absent).unwrap(), Revision(1));
    assert_eq!(put(&engine, &pod("a"), "2", Expect::At(Revision(1))).unwrap(), Revision(2));
    let before = engine.get(&pod("a")).unwrap().unwrap();
    assert_eq!((before.revision, &before.json[..]), (Revision(2), &b"2"[..]));
    drop(engine);
    let engine = open(&folder);
    assert_eq!(engine.get(&pod("a")).unwrap(), Some(before));
    assert_eq!(engine.revision(), Revision(2));
}

#[test]
fn conflicts_name_the_revision_that_was_found_and_write_nothing() {
    let folder = TestFolder::new();
    let engine = open(&folder);
    put(&engine, &pod("a"), "1", Expect::Absent).unwrap();
    let refused = |found| Err(WriteError::Refused(TxnError::Conflict { found }));
    assert_eq!(put(&engine, &pod("a"), "2", Expect::Absent), refused(Some(Revision(1))));
    assert_eq!(put(&engine, &pod("a"), "2", Expect::At(Revision(9))), refused(Some(Revision(1))));
    assert_eq!(put(&engine, &pod("b"), "2", Expect::Present), refused(None));
    assert_eq!(delete(&engine, &pod("b")), refused(None));
    assert_eq!(engine.revision(), Revision(1));
}

#[test]
fn a_transaction_sees_itself_and_happens_whole_or_not_at_all() {
    let folder = TestFolder::new();
    let engine = open(&folder);
    put(&engine, &pod("old"), "0", Expect::Absent).unwrap();
    let outcome: Result<(), WriteError<String>> = engine.write(|txn| {
        let first = txn.put(pod("a"), "1".into(), Expect::Absent).unwrap();
        assert_eq!(first.next(), txn.next_revision());
        txn.delete(&pod("old"), None, Expect::Present).unwrap();
        let seen: Vec<_> = txn.list(PODS, Some("default")).unwrap().into_iter().map(|pod| pod.key).collect();
        assert_eq!(seen, [pod("a")]);
        assert_eq!(txn.get(&pod("old")).unwrap(), None);
        Err("dry run".to_owned())
    });
    assert_eq!(outcome, Err(WriteError::Refused("dry run".to_owned())));
    assert_eq!(names(&engine, &ListQuery::all(PODS)), ["old"]);
    assert_eq!(engine.revision(), Revision(1));
}

#[test]
fn a_closure_that_panics_spoils_nothing() {
    let folder = TestFolder::new();
    let engine = open(&folder);
    let outcome: Result<(), WriteError> = engine.write(|txn| {
        txn.put(pod("a"), "1".into(), Expect::Absent).unwrap();
        panic!("on purpose")
    });
    assert_eq!(outcome, Err(WriteError::Panicked("on purpose".into())));
    assert_eq!(put(&engine, &pod("b"), "1", Expect::Absent).unwrap(), Revision(1));
    assert_eq!(names(&engine, &ListQuery::all(PODS)), ["b"]);
}

#[test]
fn pages_show_one_revision_whatever_is_written_in_between() {
    let folder = TestFolder::new();
    let engine = open(&folder);
    for name in ["a", "b", "c", "d", "e"] {
        put(&engine, &pod(name), "1", Expect::Absent).unwrap();
    }
    put(&engine, &StoreKey::new(PODS, "other", "z"), "1", Expect::Absent).unwrap();
    let query =
        ListQuery { namespace: Some("default"), limit: 2, count_remaining: true, ..ListQuery::all(PODS) };
    let first = engine.list(&query).unwrap();
    assert_eq!((first.revision, first.remaining), (Revision(6), Some(3)));
    delete(&engine, &pod("c")).unwrap();
    put(&engine, &pod("c"), "again", Expect::Absent).unwrap();
    put(&engine, &pod("d"), "2", Expect::Present).unwrap();
    put(&engine, &pod("bb"), "new", Expect::Absent).unwrap();
    let (at, start_after) = (Some(first.revision), first.more.as_ref());
    let second = engine.list(&ListQuery { at, start_after, ..query.clone() }).unwrap();
    let items: Vec<_> = second.items.iter().map(|item| (&*item.key.name, &item.json[..])).collect();
    assert_eq!(items, [("c", &b"1"[..]), ("d", b"1")]);
    assert_eq!((second.revision, second.remaining), (Revision(6), Some(1)));
    let third = engine.list(&ListQuery { at, start_after: second.more.as_ref(), ..query }).unwrap();
    assert_eq!((third.items.len(), third.more, third.remaining), (1, None, None));
}

#[test]
fn what_is_compacted_is_gone_and_what_is_to_come_is_ahead() {
    let folder = TestFolder::new();
    let engine = Engine::open(folder.path(), EngineOptions { history_events: 0, ..small() }).unwrap();
    for name in ["a", "b", "c"] {
        put(&engine, &pod(name), "1", Expect::Absent).unwrap();
    }
    delete(&engine, &pod("b")).unwrap();
    engine.compact(Revision(4)).unwrap();
    let list = |at| engine.list(&ListQuery { at: Some(Revision(at)), ..ListQuery::all(PODS) });
    assert_eq!(list(3), Err(StoreReadError::Gone { asked: Revision(3), oldest: Revision(4) }));
    assert_eq!(list(5), Err(StoreReadError::Ahead { asked: Revision(5), current: Revision(4) }));
    assert_eq!(list(4).unwrap().items.len(), 2);
    assert!(matches!(engine.watch(PODS, None, Revision(3)), Err(StoreReadError::Gone { .. })));
    assert!(matches!(engine.watch(PODS, None, Revision(5)), Err(StoreReadError::Ahead { .. })));
    assert!(engine.watch(PODS, None, Revision(4)).is_ok());
}

#[test]
fn a_watch_brings_each_change_of_its_namespace_once_and_in_order() {
    let folder = TestFolder::new();
    let engine = open(&folder);
    let mut watcher = engine.watch(PODS, Some("default"), Revision(0)).unwrap();
    assert_eq!(watcher.wait(Duration::from_millis(1)).unwrap(), []);
    put(&engine, &pod("a"), "1", Expect::Absent).unwrap();
    put(&engine, &StoreKey::new(PODS, "other", "a"), "1", Expect::Absent).unwrap();
    put(&engine, &StoreKey::new(EVENTS, "default", "a"), "1", Expect::Absent).unwrap();
    put(&engine, &pod("a"), "2", Expect::Present).unwrap();
    delete(&engine, &pod("a")).unwrap();
    // A write is answered before the watchers have it, so the last one may come by itself.
    let mut changes = watcher.wait(Duration::from_secs(5)).unwrap();
    while changes.len() < 3 {
        let more = watcher.wait(Duration::from_secs(5)).unwrap();
        assert!(!more.is_empty(), "{changes:?}");
        changes.extend(more);
    }
    let expected = [
        (1, WatchEventType::Added, "a"),
        (4, WatchEventType::Modified, "a"),
        (5, WatchEventType::Deleted, "a"),
    ];
    assert_eq!(seen(&changes), expected);
    assert_eq!(changes[1].before.as_deref(), Some(&b"1"[..]));
    assert_eq!(changes[2].json, "2");
    put(&engine, &StoreKey::new(EVENTS, "default", "b"), "1", Expect::Absent).unwrap();
    let begin = Instant::now();
    while watcher.progress() < Revision(6) && begin.elapsed() < Duration::from_secs(5) {
        assert_eq!(watcher.ready().unwrap(), []);
    }
    assert_eq!(watcher.progress(), Revision(6));
}

#[test]
fn a_watcher_that_fell_behind_the_ring_reads_the_log() {
    let folder = TestFolder::new();
    let options = EngineOptions { history_events: 4, ..small() };
    let engine = Engine::open(folder.path(), options).unwrap();
    let mut watcher = engine.watch(PODS, None, Revision(0)).unwrap();
    for number in 0..600 {
        put(&engine, &pod("a"), &number.to_string(), Expect::Anything).unwrap();
    }
    let mut revisions = Vec::new();
    while revisions.len() < 600 {
        let changes = watcher.wait(Duration::from_secs(5)).unwrap();
        assert!(!changes.is_empty());
        revisions.extend(changes.iter().map(|change| change.revision.0));
    }
    assert_eq!(revisions, (1..=600).collect::<Vec<_>>());
}

#[test]
fn a_watcher_that_slept_through_the_changes_of_others_needs_none_of_their_log() {
    let folder = TestFolder::new();
    let options = EngineOptions { history_events: 4, log_revisions: 16, ..small() };
    let engine = Engine::open(folder.path(), options).unwrap();
    let mut watcher = engine.watch(PODS, None, Revision(0)).unwrap();
    assert_eq!(watcher.wait(Duration::from_millis(1)).unwrap(), []);
    for number in 0..100 {
        put(&engine, &StoreKey::new(EVENTS, "default", "a"), &number.to_string(), Expect::Anything).unwrap();
    }
    // The writer has its result before watchers are notified.
    assert!(watcher.progress() >= Revision(99), "nothing of interest is missing");
    for number in 0..100 {
        put(&engine, &StoreKey::new(EVENTS, "default", "a"), &number.to_string(), Expect::Anything).unwrap();
    }
    put(&engine, &pod("a"), "1", Expect::Absent).unwrap();
    let changes = watcher.wait(Duration::from_secs(5)).unwrap();
    assert_eq!(seen(&changes), [(201, WatchEventType::Added, "a")]);
}

/// More watchers than are notified directly: they are notified in waves, and half of them poll only when woken.
#[test]
fn many_watchers_see_every_change_once_and_in_order() {
    const CHANGES: u64 = 2_000;
    let folder = TestFolder::new();
    let engine = Engine::open(folder.path(), EngineOptions { history_events: 64, ..small() }).unwrap();
    let mut watchers: Vec<_> =
        (0..100).map(|_| engine.watch(PODS, Some("default"), Revision(0)).unwrap()).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..CHANGES {
                let namespace = if number % 3 == 0 { "other" } else { "default" };
                let key = StoreKey::new(PODS, namespace, "a");
                put(&engine, &key, &number.to_string(), Expect::Anything).unwrap();
            }
        });
        for (index, half) in watchers.chunks_mut(50).enumerate() {
            scope.spawn(move || {
                let mut seen = vec![Vec::new(); half.len()];
                let wanted = (0..CHANGES).filter(|number| number % 3 != 0).map(|number| number + 1);
                let wanted: Vec<u64> = wanted.collect();
                while seen.iter().any(|seen| seen.len() < wanted.len()) {
                    for (watcher, seen) in half.iter_mut().zip(&mut seen) {
                        let mut context = Context::from_waker(Waker::noop());
                        let changes = match index {
                            0 => watcher.ready(),
                            _ if watcher.poll_notified(&mut context).is_ready() => watcher.notified_events(),
                            _ => continue,
                        };
                        seen.extend(changes.unwrap().iter().map(|change| change.revision.0));
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
                assert!(seen.iter().all(|seen| *seen == wanted));
            });
        }
    });
}

#[test]
fn a_watcher_that_fell_behind_the_log_is_told_so() {
    let folder = TestFolder::new();
    let options = EngineOptions { history_events: 4, log_revisions: 16, ..small() };
    let engine = Engine::open(folder.path(), options).unwrap();
    let mut watcher = engine.watch(PODS, None, Revision(0)).unwrap();
    for number in 0..40 {
        put(&engine, &pod("a"), &number.to_string(), Expect::Anything).unwrap();
    }
    assert!(matches!(watcher.ready(), Err(StoreReadError::Gone { .. })));
}

#[test]
fn the_log_stays_within_its_bounds() {
    let folder = TestFolder::new();
    let options = EngineOptions { log_revisions: 100, ..small() };
    let engine = Engine::open(folder.path(), options).unwrap();
    for number in 0..500 {
        put(&engine, &pod(&format!("p{}", number % 7)), "1", Expect::Anything).unwrap();
    }
    let stats = engine.stats().unwrap();
    assert!(stats.revision.0 - stats.compacted.0 <= 107, "{stats:?}");
    drop(engine);
    let heavy = EngineOptions { log_bytes: 10_000, ..small() };
    let engine = Engine::open(folder.path(), heavy).unwrap();
    for _ in 0..100 {
        put(&engine, &pod("heavy"), &"x".repeat(1_000), Expect::Anything).unwrap();
    }
    let stats = engine.stats().unwrap();
    assert!(stats.revision.0 - stats.compacted.0 <= 12, "{stats:?}");
    assert_eq!(names(&engine, &ListQuery::all(PODS)).len(), 8);
}

#[test]
fn a_watch_ends_when_the_engine_does() {
    let folder = TestFolder::new();
    let engine = open(&folder);
    let mut watcher = engine.watch(PODS, None, Revision(0)).unwrap();
    let waiting = std::thread::spawn(move || watcher.wait(Duration::from_secs(20)));
    drop(engine);
    assert!(matches!(waiting.join().unwrap(), Err(StoreReadError::Failed(_))));
}

#[test]
fn objects_with_a_time_go_when_it_is_up_and_others_stay() {
    let folder = TestFolder::new();
    let engine = open(&folder);
    let event = |name: &str| StoreKey::new(EVENTS, "default", name);
    engine
        .write(move |txn| {
            txn.put_until(event("early"), "1".into(), Expect::Absent, Some(100))?;
            txn.put_until(event("late"), "2".into(), Expect::Absent, Some(200))?;
            txn.put_until(event("renewed"), "3".into(), Expect::Absent, Some(100))?;
            txn.put_until(event("renewed"), "4".into(), Expect::Present, Some(300))?;
            txn.put_until(event("kept"), "5".into(), Expect::Absent, Some(100))?;
            txn.put(event("kept"), "6".into(), Expect::Present)
        })
        .unwrap();
    assert_eq!(engine.expire(99, 10, |stored, _| stored.json.clone()), Ok(0));
    let mut watcher = engine.watch(EVENTS, None, engine.revision()).unwrap();
    let gone = engine.expire(200, 10, |_, revision| revision.to_string().into());
    assert_eq!(gone, Ok(2));
    assert_eq!(watcher.ready().unwrap()[0].json, "7");
    assert_eq!(names(&engine, &ListQuery::all(EVENTS)), ["kept", "renewed"]);
    drop(engine);
    assert!(Engine::check(folder.path(), &EncryptionKeys::default()).unwrap().is_sound());
}

#[test]
fn many_writers_share_syncs() {
    let folder = TestFolder::new();
    let engine = Arc::new(open(&folder));
    let before = engine.stats().unwrap();
    let threads: Vec<_> = (0..32)
        .map(|writer| {
            let engine = engine.clone();
            std::thread::spawn(move || {
                for number in 0..10 {
                    put(&engine, &pod(&format!("{writer}-{number}")), "1", Expect::Absent).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let stats = engine.stats().unwrap();
    assert_eq!(stats.revision, Revision(320));
    assert!(stats.syncs - before.syncs < 200, "{stats:?}");
}

#[test]
fn a_full_queue_says_busy() {
    let folder = TestFolder::new();
    let engine = Engine::open(folder.path(), EngineOptions { queue: 1, ..small() }).unwrap();
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let mut pending = vec![
        engine
            .submit(move |_| {
                let _ = held.recv();
                Ok::<_, String>(())
            })
            .unwrap_or_else(|error| panic!("{error}")),
    ];
    let busy = (0..100).find_map(|_| match engine.submit(|_| Ok::<_, String>(())) {
        Ok(more) => {
            pending.push(more);
            None
        }
        Err(error) => Some(error),
    });
    assert_eq!(busy, Some(WriteError::Busy));
    drop(hold);
    for pending in pending {
        pending.wait().unwrap();
    }
}

#[test]
fn a_store_in_use_is_refused() {
    let folder = TestFolder::new();
    let _engine = open(&folder);
    let second = Engine::open(folder.path(), small()).err().unwrap();
    assert!(matches!(second, OpenError::InUse { .. }), "{second}");
    assert!(matches!(Engine::check(folder.path(), &EncryptionKeys::default()), Err(OpenError::InUse { .. })));
}

#[test]
fn files_are_the_owners_alone() {
    let folder = TestFolder::new();
    let engine = open(&folder);
    let copy = folder.path().join("copy");
    engine.backup(&copy).unwrap();
    for path in [folder.path().join(DATA_FILE), folder.path().join(JOURNAL_FILE), copy] {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
}

#[test]
fn a_backup_comes_back_with_revisions_that_nobody_saw() {
    let (folder, target) = (TestFolder::new(), TestFolder::new());
    let engine = open(&folder);
    put(&engine, &pod("a"), "1", Expect::Absent).unwrap();
    put(&engine, &pod("b"), "1", Expect::Absent).unwrap();
    put(&engine, &pod("a"), "2", Expect::Present).unwrap();
    delete(&engine, &pod("b")).unwrap();
    let event = StoreKey::new(EVENTS, "default", "e");
    engine.write(move |txn| txn.put_until(event, "e".into(), Expect::Absent, Some(50))).unwrap();
    let file = folder.path().join("backup");
    assert_eq!(engine.backup(&file).unwrap(), Revision(5));
    assert!(engine.backup(&file).unwrap_err().to_string().contains("exists"));
    put(&engine, &pod("c"), "later", Expect::Absent).unwrap();

    let revision = Engine::restore(&file, target.path(), &EncryptionKeys::default()).unwrap();
    assert!(matches!(
        Engine::restore(&file, target.path(), &EncryptionKeys::default()),
        Err(OpenError::Exists { .. })
    ));
    let restored = open(&target);
    assert!(revision > engine.revision());
    assert_eq!(restored.revision(), revision);
    assert_eq!(restored.get(&pod("a")).unwrap(), engine.get(&pod("a")).unwrap());
    assert_eq!(names(&restored, &ListQuery::all(PODS)), ["a"]);
    assert!(matches!(restored.watch(PODS, None, Revision(5)), Err(StoreReadError::Gone { .. })));
    assert_eq!(put(&restored, &pod("d"), "1", Expect::Absent).unwrap(), revision.next());
    assert_eq!(restored.expire(60, 10, |stored, _| stored.json.clone()), Ok(1));
}

#[test]
fn check_says_what_is_there_and_where_nothing_is() {
    let (folder, empty) = (TestFolder::new(), TestFolder::new());
    let engine = open(&folder);
    put(&engine, &pod("a"), "1", Expect::Absent).unwrap();
    put(&engine, &pod("a"), "2", Expect::Present).unwrap();
    drop(engine);
    let report = Engine::check(folder.path(), &EncryptionKeys::default()).unwrap();
    assert!(report.is_sound());
    assert!(report.to_string().starts_with("1 objects in 2 versions\nnewest revision 2"), "{report}");
    assert!(matches!(
        Engine::check(empty.path(), &EncryptionKeys::default()),
        Err(OpenError::Missing { .. })
    ));
}

#[test]
fn odd_names_are_kept_apart() {
    let folder = TestFolder::new();
    let engine = open(&folder);
    let mut expected = BTreeMap::new();
    for (namespace, name) in [("", "a"), ("a", ""), ("a\0b", "c"), ("a", "b\0c"), ("a\u{10ffff}", "")] {
        let key = StoreKey::new(PODS, namespace, name);
        put(&engine, &key, name, Expect::Absent).unwrap();
        expected.insert(key, name);
    }
    let last = StoreKey::new(ResourceId(u16::MAX), "\u{10ffff}", "z");
    put(&engine, &last, "z", Expect::Absent).unwrap();
    for (key, name) in expected {
        assert_eq!(engine.get(&key).unwrap().unwrap().json, name);
    }
    assert_eq!(names(&engine, &ListQuery::all(PODS)).len(), 5);
    assert_eq!(names(&engine, &ListQuery { namespace: Some("a"), ..ListQuery::all(PODS) }), ["", "b\0c"]);
    assert_eq!(names(&engine, &ListQuery::all(ResourceId(u16::MAX))), ["z"]);
    let beyond = ListQuery { start_after: Some(&last), ..ListQuery::all(PODS) };
    assert_eq!(names(&engine, &beyond), Vec::<String>::new());
}

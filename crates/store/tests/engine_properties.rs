//! The engine beside a model that keeps everything: after any operations, any list, watch and restart agree.

use std::collections::BTreeMap;

use fixtures::FaultyDisk;
use model::random::Random;
use proptest::prelude::*;
use store::engine::{
    Bytes, CommitMode, Engine, EngineOptions, Expect, ListQuery, ResourceId, Revision, StoreKey,
    StoreReadError, TxnError, WatchEventType, WriteError,
};

#[derive(Clone, Debug)]
enum Step {
    Put {
        key: u8,
        json: u16,
        expires: Option<u8>,
    },
    Delete {
        key: u8,
    },
    /// Two changes in one transaction, which may refuse in the end.
    Both {
        put: u8,
        delete: u8,
        refuse: bool,
    },
    Expire {
        now: u8,
    },
    Compact {
        back: u8,
    },
    Reopen,
    /// A page of a list at an older revision.
    Page {
        back: u8,
        after: u8,
        limit: u8,
        namespace: Option<u8>,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let expires = proptest::option::weighted(0.2, any::<u8>());
    prop_oneof![
        6 => (0..24u8, any::<u16>(), expires).prop_map(|(key, json, expires)| Step::Put { key, json, expires }),
        3 => (0..24u8).prop_map(|key| Step::Delete { key }),
        2 => (0..24u8, 0..24u8, any::<bool>())
            .prop_map(|(put, delete, refuse)| Step::Both { put, delete, refuse }),
        1 => any::<u8>().prop_map(|now| Step::Expire { now }),
        1 => (0..40u8).prop_map(|back| Step::Compact { back }),
        1 => Just(Step::Reopen),
        6 => (0..40u8, 0..24u8, 0..6u8, proptest::option::of(0..3u8))
            .prop_map(|(back, after, limit, namespace)| Step::Page { back, after, limit, namespace }),
    ]
}

fn key(number: u8) -> StoreKey {
    StoreKey::new(ResourceId(u16::from(number % 2)), &namespace(number % 3), &format!("n{}", number / 6))
}

fn namespace(number: u8) -> String {
    ["", "a", "ab"][usize::from(number % 3)].to_owned()
}

#[derive(Clone, Debug, PartialEq)]
struct Object {
    revision: u64,
    json: Bytes,
    expires: Option<u64>,
}

type State = BTreeMap<StoreKey, Object>;

/// All that ever was: the state after each revision, and what each one changed.
struct Model {
    states: Vec<State>,
    changes: Vec<(StoreKey, WatchEventType, Bytes, Option<Bytes>)>,
    compacted: u64,
}

impl Model {
    fn revision(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    fn newest(&self) -> &State {
        &self.states[self.states.len() - 1]
    }

    fn put(&mut self, key: StoreKey, json: Bytes, expires: Option<u64>) {
        let mut state = self.newest().clone();
        let object = Object { revision: self.revision() + 1, json: json.clone(), expires };
        let before = state.insert(key.clone(), object);
        let kind = if before.is_some() { WatchEventType::Modified } else { WatchEventType::Added };
        self.states.push(state);
        self.changes.push((key, kind, json, before.map(|before| before.json)));
    }

    fn delete(&mut self, key: &StoreKey) -> bool {
        let mut state = self.newest().clone();
        let Some(before) = state.remove(key) else { return false };
        self.states.push(state);
        self.changes.push((key.clone(), WatchEventType::Deleted, before.json.clone(), Some(before.json)));
        true
    }

    fn expire(&mut self, now: u64) {
        let due = |object: &Object| object.expires.is_some_and(|at| at <= now);
        let mut keys: Vec<_> = self.newest().iter().filter(|(_, object)| due(object)).collect();
        keys.sort_by_key(|(key, object)| (object.expires, (*key).clone()));
        let keys: Vec<_> = keys.into_iter().map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.delete(&key);
        }
    }
}

fn open(disk: &FaultyDisk, commit: CommitMode) -> Engine {
    let options = EngineOptions {
        commit,
        journal_bytes: 4 << 10,
        cache_bytes: 64 << 10,
        history_events: 6,
        ..EngineOptions::default()
    };
    Engine::open_on(disk.clone(), options).expect("a sound disk opens")
}

fn change_both(engine: &mut Engine, model: &mut Model, disk: &FaultyDisk, commit: CommitMode, step: &Step) {
    match step {
        Step::Put { key: number, json, expires } => {
            let (key, json) = (key(*number), Bytes::from(json.to_string().repeat(60)));
            let expires = expires.map(|at| u64::from(at).max(1));
            model.put(key.clone(), json.clone(), expires);
            let revision = engine.write(move |txn| txn.put_until(key, json, Expect::Anything, expires));
            assert_eq!(revision, Ok(Revision(model.revision())));
        }
        Step::Delete { key: number } => {
            let key = key(*number);
            let deleted = model.delete(&key);
            let result = engine.write(move |txn| txn.delete(&key, None, Expect::Anything));
            assert_eq!(result.is_ok(), deleted);
        }
        Step::Both { put, delete, refuse } => both(engine, model, key(*put), key(*delete), *refuse),
        Step::Expire { now } => {
            model.expire(u64::from(*now));
            engine.expire(u64::from(*now), 100, |stored, _| stored.json.clone()).expect("expiry works");
        }
        Step::Compact { back } => {
            let to = model.revision().saturating_sub(u64::from(*back));
            model.compacted = model.compacted.max(to);
            engine.compact(Revision(to)).expect("compaction works");
        }
        Step::Reopen => {
            // A second handle on the same disk would be a bug, so the first has to go before.
            let other = FaultyDisk::new(Random::seeded(0));
            drop(std::mem::replace(engine, open(&other, commit)));
            *engine = open(disk, commit);
        }
        Step::Page { .. } => {}
    }
}

fn both(engine: &Engine, model: &mut Model, put: StoreKey, delete: StoreKey, refuse: bool) {
    let happens = !refuse && (model.newest().contains_key(&delete) || put == delete);
    if happens {
        model.put(put.clone(), "both".into(), None);
        model.delete(&delete);
    }
    let result = engine.write(move |txn| {
        txn.put(put, "both".into(), Expect::Anything)?;
        txn.delete(&delete, None, Expect::Present)?;
        if refuse { Err(TxnError::Conflict { found: None }) } else { Ok(()) }
    });
    assert_eq!(result.is_ok(), happens);
    assert!(matches!(result, Ok(()) | Err(WriteError::Refused(TxnError::Conflict { .. }))));
}

fn assert_page(engine: &Engine, model: &Model, back: u8, after: &StoreKey, limit: u8, only: Option<&str>) {
    let at = model.revision().saturating_sub(u64::from(back));
    let query = ListQuery {
        resource: after.resource,
        namespace: only,
        start_after: Some(after),
        limit: usize::from(limit),
        max_bytes: 0,
        at: Some(Revision(at)),
        count_remaining: true,
    };
    let page = engine.list(&query);
    if at < model.compacted {
        assert_eq!(
            page,
            Err(StoreReadError::Gone { asked: Revision(at), oldest: Revision(model.compacted) })
        );
        return;
    }
    let page = page.expect("the revision is known");
    let wanted = |key: &StoreKey| {
        key.resource == after.resource && key > after && only.is_none_or(|only| *key.namespace == *only)
    };
    let expected: Vec<_> = model.states[at as usize].iter().filter(|(key, _)| wanted(key)).collect();
    let shown = if limit == 0 { expected.len() } else { expected.len().min(usize::from(limit)) };
    let found: Vec<_> = page.items.iter().map(|item| (&item.key, item.revision.0, &item.json)).collect();
    let first: Vec<_> =
        expected[..shown].iter().map(|(key, object)| (*key, object.revision, &object.json)).collect();
    assert_eq!(found, first);
    let left = expected.len() - shown;
    assert_eq!(page.remaining.unwrap_or(0), left as u64);
    assert_eq!(page.more.is_some(), left > 0);
}

/// Every object as it is now, and every change since the compaction, by the log and by the ring.
fn assert_agree(engine: &Engine, model: &Model) {
    assert_eq!(engine.revision(), Revision(model.revision()));
    for number in 0..24 {
        let found = engine.get(&key(number)).expect("reads work");
        let found = found.map(|found| (found.revision.0, found.json, found.expires));
        let expected = model.newest().get(&key(number)).cloned();
        assert_eq!(found, expected.map(|object| (object.revision, object.json, object.expires)));
    }
    for resource in [ResourceId(0), ResourceId(1)] {
        let mut watcher = engine.watch(resource, None, Revision(model.compacted)).expect("the log has it");
        let mut found = Vec::new();
        loop {
            let changes = watcher.ready().expect("watches work");
            if changes.is_empty() {
                break;
            }
            found.extend(changes);
        }
        let found: Vec<_> = found
            .iter()
            .map(|change| (change.revision.0, &change.key, change.kind, &change.json, &change.before))
            .collect();
        let changes = (1..)
            .zip(&model.changes)
            .filter(|(revision, (key, ..))| *revision > model.compacted && key.resource == resource);
        let expected: Vec<_> = changes
            .map(|(revision, (key, kind, json, before))| (revision, key, *kind, json, before))
            .collect();
        assert_eq!(found, expected);
        assert_eq!(watcher.progress(), engine.revision());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_agrees_with_a_model_that_forgets_nothing(steps in prop::collection::vec(step(), 1..120)) {
        assert_agrees_with_model(&steps, CommitMode::WriterThread);
    }

    #[test]
    fn inline_commits_agree_with_a_model_that_forgets_nothing(steps in prop::collection::vec(step(), 1..120)) {
        assert_agrees_with_model(&steps, CommitMode::Inline);
    }
}

fn assert_agrees_with_model(steps: &[Step], commit: CommitMode) {
    let disk = FaultyDisk::new(Random::seeded(1));
    let mut engine = open(&disk, commit);
    let mut model = Model { states: vec![State::new()], changes: Vec::new(), compacted: 0 };
    for step in steps {
        change_both(&mut engine, &mut model, &disk, commit, step);
        if let Step::Page { back, after, limit, namespace: only } = step {
            let only = only.map(namespace);
            assert_page(&engine, &model, *back, &key(*after), *limit, only.as_deref());
        }
    }
    assert_agree(&engine, &model);
    drop(engine);
    assert_agree(&open(&disk, commit), &model);
}

//! Histories of concurrent clients of the engine, with its writer thread, are linearizable.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use crate::engine::{Bytes, Engine, Expect, ListQuery, Revision, StoreKey, Txn, TxnError, WriteError};
use crate::linearizability::{ClientOperation, ObjectAnswer, ObjectCall, check};
use crate::memory_disk::MemoryDisk;
use crate::scenarios::{PODS, open};

const CLIENTS: usize = 3;
const OPERATIONS: u64 = 4;
const NAMES: [&str; 2] = ["a", "b"];

type Histories = BTreeMap<String, Vec<ClientOperation>>;

/// The place of the next call or answer. Not shuttle's: looking at it changes no schedule.
#[derive(Clone, Default)]
struct Recorder {
    events: Arc<AtomicU64>,
    histories: Arc<Mutex<Histories>>,
}

impl Recorder {
    fn next(&self) -> u64 {
        self.events.fetch_add(1, Ordering::SeqCst)
    }

    fn record(&self, name: &str, operation: ClientOperation) {
        let mut histories = self.histories.lock().expect("no holder panics");
        histories.entry(name.to_owned()).or_default().push(operation);
    }
}

fn key(name: &str) -> StoreKey {
    StoreKey::new(PODS, "default", name)
}

fn value_of(json: &Bytes) -> u64 {
    std::str::from_utf8(json).ok().and_then(|text| text.parse().ok()).expect("a client's value")
}

fn expect(only_at: Option<u64>) -> Expect {
    only_at.map_or(Expect::Present, |revision| Expect::At(Revision(revision)))
}

/// A write, and its answer. Two in three commit on their own thread if nothing else is queued.
fn write(engine: &Engine, name: &'static str, call: ObjectCall) -> ObjectAnswer {
    let work = move |txn: &mut Txn<'_>| {
        let json = |value: u64| Bytes::from(value.to_string());
        match call {
            ObjectCall::Create { value } => txn.put(key(name), json(value), Expect::Absent),
            ObjectCall::Update { value, only_at } => txn.put(key(name), json(value), expect(only_at)),
            ObjectCall::Delete { only_at } => txn.delete(&key(name), None, expect(only_at)),
            ObjectCall::Read => unreachable!("reads need no transaction"),
        }
    };
    let result = match thread_rng().gen_range(0..3) {
        0 => engine.write(work),
        _ => match engine.submit_or_commit(work) {
            Ok(pending) => pending.wait(),
            Err(error) => Err(error),
        },
    };
    match (result, call) {
        (Ok(_), ObjectCall::Delete { .. }) => ObjectAnswer::Deleted,
        (Ok(revision), ObjectCall::Create { value } | ObjectCall::Update { value, .. }) => {
            ObjectAnswer::Object { value, revision: revision.0 }
        }
        (Err(WriteError::Refused(TxnError::Conflict { found })), call) => match (found, call) {
            (None, _) => ObjectAnswer::Absent,
            (Some(_), ObjectCall::Create { .. }) => ObjectAnswer::AlreadyExists,
            (Some(_), _) => ObjectAnswer::Conflict,
        },
        // The queue was full: nothing was written.
        (Err(WriteError::Busy), _) => ObjectAnswer::Unknown,
        (other, _) => panic!("{other:?}"),
    }
}

fn read(engine: &Engine, name: &str) -> ObjectAnswer {
    match engine.get(&key(name)).expect("the disk works") {
        Some(found) => ObjectAnswer::Object { value: value_of(&found.json), revision: found.revision.0 },
        None => ObjectAnswer::Absent,
    }
}

fn list(engine: &Engine, recorder: &Recorder, client: usize) {
    let called = recorder.next();
    let page = engine.list(&ListQuery::all(PODS)).expect("the disk works");
    let answered = recorder.next();
    for name in NAMES {
        let found = page.items.iter().find(|item| *item.key.name == *name);
        let found = found.map(|item| (value_of(&item.json), item.revision.0));
        let answer = ObjectAnswer::Listed { found, revision: page.revision.0 };
        recorder.record(name, ClientOperation { client, call: ObjectCall::Read, answer, called, answered });
    }
}

fn client(engine: &Engine, recorder: &Recorder, number: usize) {
    let mut seen = BTreeMap::new();
    for operation in 0..OPERATIONS {
        let value = 1 + number as u64 * OPERATIONS + operation;
        let name = NAMES[thread_rng().gen_range(0..NAMES.len())];
        let only_at = seen.get(name).copied();
        let call = match thread_rng().gen_range(0..10) {
            0..3 => ObjectCall::Create { value },
            3..5 => ObjectCall::Read,
            5..8 => ObjectCall::Update { value, only_at },
            8 => ObjectCall::Delete { only_at },
            _ => {
                list(engine, recorder, number);
                continue;
            }
        };
        let called = recorder.next();
        let answer = if call == ObjectCall::Read { read(engine, name) } else { write(engine, name, call) };
        let answered = recorder.next();
        if let ObjectAnswer::Object { revision, .. } = answer {
            seen.insert(name, revision);
        }
        if answer != ObjectAnswer::Unknown {
            recorder.record(name, ClientOperation { client: number, call, answer, called, answered });
        }
    }
}

pub fn linearizable() {
    let engine = Arc::new(open(&MemoryDisk::default()));
    let recorder = Recorder::default();
    let start = |number: usize| {
        let (engine, recorder) = (engine.clone(), recorder.clone());
        thread::spawn(move || client(&engine, &recorder, number))
    };
    let clients: Vec<_> = (0..CLIENTS).map(start).collect();
    for client in clients {
        client.join().expect("no panic");
    }
    list(&engine, &recorder, CLIENTS);
    let histories = recorder.histories.lock().expect("no holder panics");
    check(&histories).unwrap_or_else(|why| panic!("{why}"));
}

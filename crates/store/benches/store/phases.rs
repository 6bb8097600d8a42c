//! What `cargo xtask bench` counts instructions of: the parts that run on the caller's thread.
//! Writes run on the writer's thread and wait for the disk; their measure is time.

use std::hint::black_box;

use store::engine::{Engine, Expect, ListQuery, Revision, StoreKey};

use super::{PODS, Place, object};

const OBJECTS: u64 = 2_000;

pub fn run() {
    let place = Place::new("phases");
    let engine = place.open();
    let written = engine.write(|txn| {
        (0..OBJECTS)
            .try_for_each(|number| txn.put(key(number), object("pod", 1_024), Expect::Absent).map(drop))
    });
    written.unwrap_or_else(|error| panic!("{error}"));
    phase_get(&engine);
    phase_list(&engine);
    phase_watch(&engine);
    println!("{OBJECTS} endpoints (here: objects)");
}

fn key(number: u64) -> StoreKey {
    StoreKey::new(PODS, "default", &format!("pod-{number}"))
}

#[inline(never)]
fn phase_get(engine: &Engine) {
    for number in 0..OBJECTS {
        black_box(engine.get(&key(number)).unwrap_or_else(|error| panic!("{error}")));
    }
}

#[inline(never)]
fn phase_list(engine: &Engine) {
    black_box(engine.list(&ListQuery::all(PODS)).unwrap_or_else(|error| panic!("{error}")));
}

#[inline(never)]
fn phase_watch(engine: &Engine) {
    let mut watcher = engine.watch(PODS, None, Revision(0)).unwrap_or_else(|error| panic!("{error}"));
    while !black_box(watcher.ready().unwrap_or_else(|error| panic!("{error}"))).is_empty() {}
}

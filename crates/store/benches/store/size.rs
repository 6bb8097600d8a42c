//! A large store: 10,000 Services, 10,000 slices, 100,000 Pods. What it takes, and how long the long ways are.

use std::time::Instant;

use store::engine::{Engine, Expect, ListQuery, ResourceId, StoreKey};

use super::{PODS, Place, SERVICES, SLICES, object};

const WORLD: [(ResourceId, &str, usize, usize); 3] =
    [(SERVICES, "service", 10_000, 900), (SLICES, "slice", 10_000, 2_500), (PODS, "pod", 100_000, 1_400)];

/// How many objects are written together.
const GROUP: usize = 500;

pub fn run() {
    println!("\n10,000 Services, 10,000 slices, 100,000 Pods");
    let place = Place::new("size");
    let engine = place.open();
    say("written", || WORLD.iter().for_each(|kind| fill(&engine, kind)));
    say("all Pods listed, 500 a page", || list(&engine));
    println!("{:<28} {:>8} MiB", "resident after that", resident_kib() / 1_024);
    say("closed", || drop(engine));
    let bytes: u64 = std::fs::read_dir(&place.0)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|file| file.metadata().ok())
        .map(|file| file.len())
        .sum();
    println!("{:<28} {:>8} MiB", "on disk", bytes >> 20);
    let mut engine = None;
    say("opened, everything verified", || engine = Some(place.open()));
    println!("{:<28} {:>8} MiB", "resident after that", resident_kib() / 1_024);
}

fn say(what: &str, body: impl FnOnce()) {
    let start = Instant::now();
    body();
    println!("{what:<28} {:>8.0} ms", start.elapsed().as_secs_f64() * 1e3);
}

fn fill(engine: &Engine, (resource, kind, count, size): &(ResourceId, &str, usize, usize)) {
    for start in (0..*count).step_by(GROUP) {
        let group = (start..start + GROUP).map(|number| {
            let name = format!("{kind}-{number}");
            (StoreKey::new(*resource, &format!("ns-{}", number % 50), &name), object(&name, *size))
        });
        let group: Vec<_> = group.collect();
        let written = engine.write(move |txn| {
            group.into_iter().try_for_each(|(key, json)| txn.put(key, json, Expect::Absent).map(drop))
        });
        written.unwrap_or_else(|error| panic!("{error}"));
    }
}

fn list(engine: &Engine) {
    let (mut after, mut at, mut found) = (None, None, 0);
    loop {
        let query = ListQuery { start_after: after.as_ref(), limit: 500, at, ..ListQuery::all(PODS) };
        let page = engine.list(&query).unwrap_or_else(|error| panic!("{error}"));
        found += page.items.len();
        (after, at) = (page.more, Some(page.revision));
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, 100_000);
}

/// What the system says that this process holds in memory.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

//! How fast the embedded API is, alone and beside etcd, and how fast the engine below it: durable writes, fan-out to
//! watchers, what a large store costs in memory and time. `cargo xtask bench store`, or `-- PART...` for some parts.
//! With ZONEWARD_BENCH_COUNT=1 only the phases whose instructions are counted run.

#![allow(unreachable_pub)]

#[path = "store/client.rs"]
mod client;
#[path = "store/etcd.rs"]
mod etcd;
#[path = "store/fanout.rs"]
mod fanout;
#[path = "store/memory.rs"]
mod memory;
#[path = "store/phases.rs"]
mod phases;
#[path = "store/server.rs"]
mod server;
#[path = "store/size.rs"]
mod size;
#[path = "store/watchers.rs"]
mod watchers;
#[path = "store/writes.rs"]
mod writes;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mimalloc::MiMalloc;
use store::engine::{Bytes, Engine, EngineOptions, ResourceId};

/// As in the command.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Pods, Services and slices, as far as the engine can tell.
const PODS: ResourceId = ResourceId(1);
const SERVICES: ResourceId = ResourceId(2);
const SLICES: ResourceId = ResourceId(3);

fn main() {
    if std::env::var_os("ZONEWARD_BENCH_COUNT").is_some() {
        phases::run();
        return;
    }
    server::serve_if_asked();
    let asked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    for (name, run) in PARTS {
        if asked.is_empty() || asked.iter().any(|word| word == name) {
            run();
        }
    }
}

/// The parts by their names: first the API over the wire, then the engine alone.
const PARTS: &[(&str, fn())] = &[
    ("etcd", || on_runtime(etcd::run())),
    ("watchers", || on_runtime(watchers::run())),
    ("memory", || on_runtime(memory::run())),
    ("engine-writes", writes::run),
    ("engine-fanout", fanout::run),
    ("engine-size", size::run),
];

fn on_runtime(part: impl Future<Output = ()>) {
    tokio::runtime::Runtime::new().expect("threads can be started").block_on(part);
}

/// A folder on the disk that the build uses, gone in the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Place(path)
    }

    fn open(&self) -> Engine {
        Engine::open(&self.0, EngineOptions::default()).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An object of about `size` bytes that no compression could make small.
fn object(name: &str, size: usize) -> Bytes {
    let mut json = format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}"}},"data":""#);
    let mut number = name.len() as u64;
    while json.len() + 18 < size {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let _ = write!(json, "{number:016x}");
    }
    json.push_str("\"}");
    json.into()
}

/// The time that a share of all stayed below, in milliseconds.
fn percentile(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    let at = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
    times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

//! Durable writes per second, by how many write at once. A sync costs what the disk takes; sharing one is the art.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use store::engine::{Engine, Expect, StoreKey};

use super::{PODS, Place, object, percentile};

const SECONDS: u64 = 4;
const SIZE: usize = 1_024;

pub fn run() {
    println!("durable writes of {SIZE} bytes, {SECONDS} s each");
    println!("writers | writes/s | p50 ms | p99 ms | syncs/write");
    println!("--------+----------+--------+--------+------------");
    for writers in [1, 16, 256] {
        row(writers);
    }
}

fn row(writers: u64) {
    let place = Place::new("writes");
    let engine = Arc::new(place.open());
    let before = engine.stats().map_or(0, |stats| stats.syncs);
    let start = Instant::now();
    let end = start + Duration::from_secs(SECONDS);
    let threads = (0..writers).map(|writer| {
        let engine = engine.clone();
        thread::spawn(move || write(&engine, writer, end))
    });
    let threads: Vec<_> = threads.collect();
    let mut times: Vec<_> =
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect();
    let seconds = start.elapsed().as_secs_f64();
    let syncs = engine.stats().map_or(0, |stats| stats.syncs) - before;
    let (count, p50, p99) = (times.len(), percentile(&mut times, 0.5), percentile(&mut times, 0.99));
    let (rate, shared) = (count as f64 / seconds, syncs as f64 / count.max(1) as f64);
    println!("{writers:>7} | {rate:>8.0} | {p50:>6.2} | {p99:>6.2} | {shared:>11.3}");
}

fn write(engine: &Engine, writer: u64, end: Instant) -> Vec<Duration> {
    let mut times = Vec::new();
    for number in 0.. {
        let start = Instant::now();
        if start >= end {
            break;
        }
        let name = format!("pod-{writer}-{}", number % 1_000);
        let (key, json) = (StoreKey::new(PODS, "default", &name), object(&name, SIZE));
        let written = engine.write(move |txn| txn.put(key, json, Expect::Anything));
        written.unwrap_or_else(|error| panic!("{error}"));
        times.push(start.elapsed());
    }
    times
}

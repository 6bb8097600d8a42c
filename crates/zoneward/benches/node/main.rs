//! How fast the node proxy is on the embedded API: from its start until everything is in the kernel, one slice's change
//! from the write to the kernel's commit, a storm of changes, CPU and memory. `cargo xtask bench node`.
//!
//! The proxy is the real program in a process of its own, in network namespaces that this process enters first. With
//! ZONEWARD_BENCH_COUNT=1 only the parts whose instructions are counted run; ZONEWARD_BENCH_CONTENT_TYPE=application/json
//! reads objects as JSON.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends here")]

#[path = "../../../dataplane/tests/namespace.rs"]
#[allow(dead_code, reason = "shared with tests, which use more of it")]
mod namespace;
mod phases;
mod proxy;
mod world;

use std::time::{Duration, Instant};

use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::Kernel;

use proxy::{Proxy, api_cpu};
use world::World;

const SERVICES: usize = 10_000;
const CHANGES: usize = 500;
/// A minute of changes, scaled.
const STORM: Duration = Duration::from_secs(10);
const STORM_RATE: u32 = 100;

fn main() {
    let given = std::env::var("ZONEWARD_BENCH_SERVICES").ok().and_then(|text| text.parse().ok());
    let services = given.unwrap_or(SERVICES);
    if std::env::var_os("ZONEWARD_BENCH_COUNT").is_some() {
        phases::run(services);
        return;
    }
    namespace::enter();
    let world = World::new(services);
    println!("{services} Services x {} endpoints", world::ENDPOINTS);
    let json = phases::json_cpu(services);
    println!("  the JSON itself, read into our model: {:.2} CPU-s", json.as_secs_f64());
    start("start, empty kernel", &world, json);
    let proxy = start("start over its own rules", &world, json);
    one_by_one(&world, &proxy);
    storm(&world, &proxy);
    println!("  at the end: {}", proxy.memory());
}

fn start(what: &str, world: &World, json: Duration) -> Proxy {
    let (begin, api) = (Instant::now(), api_cpu());
    let proxy = Proxy::start(world);
    proxy.until_programmed(world.revision());
    let (took, cpu, api) = (begin.elapsed(), proxy.cpu(), api_cpu() - api);
    println!(
        "  {what}: programmed in {:.2} s, {:.2} CPU-s ({:.2} besides the JSON), API {:.2} CPU-s; {}",
        took.as_secs_f64(),
        cpu.as_secs_f64(),
        cpu.saturating_sub(json).as_secs_f64(),
        api.as_secs_f64(),
        proxy.memory()
    );
    std::thread::sleep(Duration::from_secs(2));
    println!("    two seconds later: {}", proxy.memory());
    proxy
}

/// One endpoint of a Service is replaced; the kernel's generation says when it is there.
fn one_by_one(world: &World, proxy: &Proxy) {
    let mut kernel = NetlinkSocket::open().unwrap();
    let cpu = proxy.cpu();
    let mut times = Vec::with_capacity(CHANGES);
    for number in 0..CHANGES {
        let before = kernel.generation().unwrap();
        let begin = Instant::now();
        world.change(number * 7919, number);
        while kernel.generation().unwrap() == before {
            std::thread::sleep(Duration::from_micros(50));
        }
        times.push(begin.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    times.sort();
    let ms = |at: usize| times[at].as_secs_f64() * 1e3;
    println!(
        "  one slice's change, API write to kernel commit: p50 {:.2} ms, p99 {:.2} ms, {:.2} ms CPU each",
        ms(CHANGES / 2),
        ms(CHANGES * 99 / 100),
        (proxy.cpu() - cpu).as_secs_f64() * 1e3 / CHANGES as f64
    );
}

fn storm(world: &World, proxy: &Proxy) {
    let (begin, cpu) = (Instant::now(), proxy.cpu());
    let mut number = 0;
    while begin.elapsed() < STORM {
        world.change((number * 104_729) as usize, CHANGES + number as usize);
        number += 1;
        let next = begin + Duration::from_secs(1) * number / STORM_RATE;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let share = (proxy.cpu() - cpu).as_secs_f64() / begin.elapsed().as_secs_f64();
    println!("  {STORM_RATE} changes per second for {} s: {share:.3} of a core", STORM.as_secs());
}

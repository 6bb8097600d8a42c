//! How fast the slice controller is on the embedded API, both in one process: from nothing until all slices are written,
//! one pod's change until its slice is on the watch, CPU and memory. `cargo xtask bench controllers`.
//! With ZONEWARD_BENCH_COUNT=1 only the parts whose instructions are counted run, with ZONEWARD_BENCH_HANDOVER=1 only
//! the hand-over from one process to the next.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends here")]

mod handover;
mod load;
mod phases;
mod process;

use std::time::{Duration, Instant};

use cluster::{self, Informer, InformerEvent, ObjectKind, WatchSpec, WatchedObject};
use controller::{ControllerConfig, ControllerMetrics};
use kube::Client;
use serde_json::json;
use tokio::sync::watch;

use load::{PODS_PER_SERVICE, pod_name, pod_status, service_name};

/// The worlds: Services of ten pods each.
const SIZES: [usize; 2] = [1_000, 10_000];
const FLIPS: usize = 400;
/// Says to a child which world is its own.
const WORLD: &str = "ZONEWARD_BENCH_WORLD";

fn main() {
    if std::env::var_os("ZONEWARD_BENCH_COUNT").is_some() {
        phases::run();
        return;
    }
    if std::env::var_os("ZONEWARD_BENCH_HANDOVER").is_some() {
        tokio::runtime::Runtime::new().unwrap().block_on(handover::measure());
        return;
    }
    if let Some(services) = std::env::var(WORLD).ok().and_then(|text| text.parse().ok()) {
        tokio::runtime::Runtime::new().unwrap().block_on(measure(services));
        return;
    }
    let given = std::env::var("ZONEWARD_BENCH_SERVICES").ok().and_then(|text| text.parse().ok());
    for services in given.map_or(SIZES.to_vec(), |one| vec![one]) {
        // Each world in a process of its own: memory that one has let go is not counted for the next.
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let status = child.env(WORLD, services.to_string()).status().unwrap();
        assert!(status.success(), "the run with {services} Services failed");
    }
    tokio::runtime::Runtime::new().unwrap().block_on(handover::measure());
}

async fn measure(services: usize) {
    println!("{services} Services x {PODS_PER_SERVICE} pods");
    let store = load::store().await;
    let client = cluster::in_process(store.local(), &clock::Clock::system());
    let start = Instant::now();
    load::fill(&client, services).await;
    let before = process::memory();
    println!("  the API alone: filled in {:.1} s, {before} MB", start.elapsed().as_secs_f64());

    let mut seen =
        Informer::start(&client, model::random::Random::seeded(1), [WatchSpec::all(ObjectKind::Slice)]);
    let (_stop, stopped) = watch::channel(false);
    let (_office, leading) = watch::channel(true);
    let (start, cpu) = (Instant::now(), process::cpu());
    tokio::spawn(controller::run(
        client.clone(),
        ControllerConfig::new(plan::PlanningConfig::without_flags()),
        ControllerMetrics::default(),
        leading,
        stopped,
    ));
    let mut written = 0;
    while written < services {
        written += usize::from(matches!(seen.next().await, InformerEvent::Applied(..)));
    }
    let (took, used) = (start.elapsed(), process::cpu() - cpu);
    tokio::time::sleep(Duration::from_secs(2)).await;
    println!(
        "  from nothing until all slices are written: {:.2} s, {:.2} CPU-s; then {} MB in all, at most {} MB",
        took.as_secs_f64(),
        used.as_secs_f64(),
        process::memory(),
        process::most_memory()
    );
    flips(&client, &mut seen, services).await;
}

async fn flips(client: &Client, seen: &mut Informer, services: usize) {
    while seen.ready().is_some() {}
    let cpu = process::cpu();
    let mut times = Vec::with_capacity(FLIPS);
    for number in 0..FLIPS {
        // Spread over the Services; each pod goes and comes back once.
        let service = (number / 2 * 7919) % services;
        let pod = pod_name(service, 3);
        let status = json!({"status": pod_status(service, 3, number % 2 == 1)});
        let start = Instant::now();
        load::patch_status(client, &pod, &status).await;
        until_slice_of(seen, &service_name(service)).await;
        times.push(start.elapsed());
    }
    let used = process::cpu() - cpu;
    times.sort_unstable();
    let at =
        |share: f64| times[((times.len() as f64 * share) as usize).min(times.len() - 1)].as_secs_f64() * 1e3;
    println!(
        "  one pod's change until its slice is on the watch: p50 {:.2} ms, p90 {:.2} ms, p99 {:.2} ms, most {:.2} ms; \
         {:.2} ms CPU each; {} MB",
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
        used.as_secs_f64() * 1e3 / FLIPS as f64,
        process::memory()
    );
}

async fn until_slice_of(seen: &mut Informer, service: &str) {
    loop {
        if let InformerEvent::Applied(_, slice) = seen.next().await
            && is_of(&slice, service)
        {
            return;
        }
    }
}

fn is_of(slice: &WatchedObject, service: &str) -> bool {
    slice.name().strip_prefix(service).is_some_and(|rest| rest.starts_with('-'))
}

//! The KEP's two tables beside ours, over all 39,273,145 inputs, and what they cost.
//!
//! Also what-if over 10,000 Services and a replay. Run it with `cargo xtask bench simulate`. `ZONEWARD_BENCH_SET=small`
//! takes the small set alone, `ZONEWARD_BENCH_SET=what-if` no set at all.

#![allow(unreachable_pub)]

use std::hint::black_box;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use model::Slice;
use model::random::Random;
use sim::replay::{ClusterSize, InitialCluster, PodTimings, generated_cluster, random_events, replay};
use sim::scoring::totals::MeanScores;
use sim::scoring::{AlgorithmScores, InputSource, ScoringJob, ScoringSummary, run};
use sim::what_if::{DemandBasis, MECHANISMS, WhatIfEvaluator, WhatIfQuery};
use sim::{Algorithm, AlgorithmSettings, Dataset};

/// Seed 003's row of the large set: total, in-zone, overload, slices.
struct Published {
    name: &'static str,
    figures: [f64; 4],
    comparison: &'static str,
}

const LARGE: [Published; 5] = [
    Published { name: "balanced", figures: [72.48, 38.84, 100.0, 100.0], comparison: "agrees" },
    Published {
        name: "local",
        figures: [86.69, 84.27, 98.26, 63.1],
        comparison: "the KEP's row is of an older state of the tool: its code and its own results.csv give ours",
    },
    Published {
        name: "local-shared",
        figures: [86.87, 83.92, 98.98, 63.41],
        comparison: "as above; the KEP's row is what a start at 10 endpoints per zone gives",
    },
    Published { name: "local-weighted", figures: [84.34, 83.9, 100.0, 43.88], comparison: "agrees" },
    Published {
        name: "local-opt",
        figures: [84.89, 83.74, 99.47, 49.35],
        comparison: "agrees but for 49.35, a slip: the KEP's own total needs 49.45",
    },
];

const SMALL: [(&str, f64); 6] = [
    ("balanced", 72.55),
    ("local-1x", 80.07),
    ("local-2x", 80.09),
    ("local-3x", 80.1),
    ("local-4x", 80.08),
    ("local-5x", 80.01),
];

/// What the five have to stay below, and what the public tool takes.
const GOAL_SECONDS: f64 = 80.0;
const PUBLIC_SECONDS: f64 = 8_000.0;

fn main() {
    if std::env::var_os("ZONEWARD_BENCH_COUNT").is_some() {
        return count();
    }
    let set = std::env::var("ZONEWARD_BENCH_SET").unwrap_or_default();
    if set != "what-if" {
        small();
    }
    what_if();
    churn();
    if set.is_empty() {
        large();
    }
}

/// Number of Services, and goal for the command in seconds.
const SERVICES: usize = 10_000;
const WHAT_IF_GOAL_SECONDS: f64 = 5.0;

/// A generated cluster with stored slices.
fn stored(services: usize) -> InitialCluster {
    let size = ClusterSize { zones: 3, nodes: 1_000, services, endpoints: 10 };
    let mut start = generated_cluster(size, PodTimings::default());
    let mut pods = start.pods.chunks(size.endpoints);
    for service in &start.services {
        let own: Vec<&model::Pod> = pods.next().into_iter().flatten().collect();
        let trigger = plan::slices::TriggerTimes::default();
        let input = plan::slices::SliceInput {
            service,
            pods: &own,
            nodes: &start.nodes,
            slices: &[],
            trigger: &trigger,
        };
        let made = plan::slices::plan(&input, &plan::slices::SliceOptions::WITHOUT_FLAGS, |_, _| {});
        let name = format!("{}-x", service.key.name);
        let slices = made
            .creates
            .into_iter()
            .map(|content| Slice { annotated: true, ..Slice::owned_by(service, &name, content) });
        start.slices.insert(service.key.clone(), slices.collect());
    }
    start
}

fn evaluate_all(cluster: &WhatIfEvaluator, start: &InitialCluster, services: &[model::Service]) -> usize {
    let answers = services.iter().map(|service| {
        let slices = start.slices.get(&service.key).map_or(&[][..], Vec::as_slice);
        let query = WhatIfQuery { service, slices, namespace_default: None, scale: &[], measured: None };
        cluster.evaluate(&query).outcomes.len()
    });
    answers.sum()
}

fn what_if() {
    let start = stored(SERVICES);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (before, clock) = (cpu_seconds(), Instant::now());
    let part = start.services.len().div_ceil(threads);
    let evaluated: usize = std::thread::scope(|scope| {
        let start = &start;
        let work = |services| {
            scope.spawn(move || {
                evaluate_all(
                    &WhatIfEvaluator::new(
                        &start.nodes,
                        DemandBasis::Cpu,
                        &plan::PlanningConfig::without_flags(),
                    ),
                    start,
                    services,
                )
            })
        };
        let workers: Vec<_> = start.services.chunks(part).map(work).collect();
        workers.into_iter().map(|worker| worker.join().expect("nothing here panics")).sum()
    });
    println!(
        "\nWhat-if, {SERVICES} Services x 10 endpoints, 1000 nodes, {} mechanisms: {:.1} CPU-seconds, {:.1} s on the clock \
         with {threads} threads (goal for the command: {WHAT_IF_GOAL_SECONDS} s)",
        evaluated / SERVICES,
        cpu_seconds() - before,
        clock.elapsed().as_secs_f64()
    );
}

fn churn() {
    let start = generated_cluster(
        ClusterSize { zones: 3, nodes: 100, services: 200, endpoints: 20 },
        PodTimings::default(),
    );
    let events = random_events(&start, &mut Random::seeded(1), 200);
    let (before, threads) = (cpu_seconds(), std::thread::available_parallelism().map_or(1, usize::from));
    let churns = replay(&start, &events, MECHANISMS, threads, &AtomicBool::new(false), &|_| {});
    let written: u64 = churns.iter().map(|churn| churn.total.slices_written).sum();
    println!(
        "Replay, 200 Services x 20 endpoints, 200 events, {} mechanisms: {written} slices written, {:.1} CPU-seconds",
        churns.len(),
        cpu_seconds() - before
    );
}

fn named(names: impl IntoIterator<Item = &'static str>) -> Vec<Algorithm> {
    names.into_iter().map(|name| name.parse().expect("a name out of our own table")).collect()
}

fn score(set: Dataset, algorithms: &[Algorithm]) -> ScoringSummary {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let job = ScoringJob {
        source: InputSource::Set(set),
        algorithms,
        settings: AlgorithmSettings::default(),
        threads,
    };
    run(&job, &AtomicBool::new(false), &|_| {})
}

fn means(row: &AlgorithmScores) -> MeanScores {
    row.totals.means().expect("the built-in sets have valid inputs")
}

fn small() {
    let algorithms = named(SMALL.iter().map(|(name, _)| *name).chain(["spill", "best"]));
    let summary = score(Dataset::Small, &algorithms);
    println!("Small set, {} inputs: mean total score", summary.done);
    println!("{:<16} {:>8} {:>9}", "algorithm", "KEP", "ours");
    for row in &summary.rows {
        let name = row.algorithm.to_string();
        let published = SMALL.iter().find(|(known, _)| *known == name).map(|(_, figure)| figure.to_string());
        println!("{name:<16} {:>8} {:>9.4}", published.unwrap_or_else(|| "-".to_owned()), means(row).total);
    }
}

fn large() {
    let five = named(LARGE.iter().map(|row| row.name));
    let before = cpu_seconds();
    let start = Instant::now();
    let summary = score(Dataset::Large, &five);
    let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - before);
    println!("\nLarge set, {} inputs: mean total, in-zone, overload and slice score", summary.done);
    for (row, published) in summary.rows.iter().zip(&LARGE) {
        let m = means(row);
        println!("{:<16} ours {}", published.name, four([m.total, m.in_zone, m.overload, m.slice], 4));
        println!("{:<16} KEP  {}  {}", "", four(published.figures, 2), published.comparison);
        let (lowest, _) = row.totals.extremes;
        println!("{:<16} min total {lowest:.2}, worst overload {:.2} %", "", row.totals.worst_overload);
    }
    println!(
        "The five: {cpu:.1} CPU-seconds, {wall:.1} s on the clock (goal: {GOAL_SECONDS}; public tool: about {PUBLIC_SECONDS})"
    );
    println!("Hysteresis, at most: {}", peak_memory());
    let before = cpu_seconds();
    let summary = score(Dataset::Large, &named(["spill", "best"]));
    for row in &summary.rows {
        let m = means(row);
        println!(
            "{:<16} ours {}",
            row.algorithm.to_string(),
            four([m.total, m.in_zone, m.overload, m.slice], 4)
        );
    }
    println!("Spill and best: {:.1} CPU-seconds", cpu_seconds() - before);
}

fn four(figures: [f64; 4], digits: usize) -> String {
    figures.map(|figure| format!("{figure:>9.digits$}")).concat()
}

/// Processor time of this process, out of the kernel's count of ticks, of which there are 100 in a second.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or_else(|| "unknown".to_owned(), |line| line.trim().to_owned())
}

/// Under callgrind: each algorithm over a part of the small set, in a function of its own.
fn count() {
    const PART: usize = 20_000;
    let inputs = Dataset::Small.inputs(100_000, PART as u64);
    phase_local(&inputs);
    phase_local_shared(&inputs);
    phase_local_weighted(&inputs);
    phase_local_opt(&inputs);
    phase_best(&inputs);
    let start = stored(PART / 100);
    phase_what_if(
        &WhatIfEvaluator::new(&start.nodes, DemandBasis::Cpu, &plan::PlanningConfig::without_flags()),
        &start,
    );
    println!("{PART} endpoints (here: inputs)");
}

fn over(inputs: &[sim::SimulationInput], name: &'static str) {
    let algorithms = named([name]);
    let source = InputSource::List(inputs);
    let job =
        ScoringJob { source, algorithms: &algorithms, settings: AlgorithmSettings::default(), threads: 1 };
    black_box(run(&job, &AtomicBool::new(false), &|_| {}));
}

#[inline(never)]
fn phase_local(inputs: &[sim::SimulationInput]) {
    over(inputs, "local");
}

#[inline(never)]
fn phase_local_shared(inputs: &[sim::SimulationInput]) {
    over(inputs, "local-shared");
}

#[inline(never)]
fn phase_local_weighted(inputs: &[sim::SimulationInput]) {
    over(inputs, "local-weighted");
}

#[inline(never)]
fn phase_local_opt(inputs: &[sim::SimulationInput]) {
    over(inputs, "local-opt");
}

#[inline(never)]
fn phase_best(inputs: &[sim::SimulationInput]) {
    over(inputs, "best");
}

#[inline(never)]
fn phase_what_if(cluster: &WhatIfEvaluator, start: &InitialCluster) {
    black_box(evaluate_all(cluster, start, &start.services));
}

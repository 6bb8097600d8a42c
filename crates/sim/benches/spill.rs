//! Spill on measured demand against seven other ways to split traffic: five traces, eight scenarios, second by second; and
//! what the reports of 5,000 nodes cost the controller.
//!
//! Run it with `cargo xtask bench spill`. `ZONEWARD_BENCH_SEEDS=2` takes other than 100 seeds; `ZONEWARD_BENCH_TRACE=FILE`
//! takes the totals of a recorded trace instead: connections per second, a line for each second of two days.
//! `ZONEWARD_BENCH_SCENARIO="a lying node"` runs one scenario alone. The bench fails if a lying node is worse than
//! PreferSameZone with some seed.
//! `cargo xtask bench spill -- plots` writes the plots of the concept page.

#![allow(unreachable_pub)]

#[path = "spill/plots.rs"]
mod plots;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use insight::ledger::{TrafficGaps, TrafficLedger, TrafficOwner, TrafficReport, TrafficRow, ZonePairTraffic};
use model::random::Random;
use plan::work_queue::MonotonicTime;
use sim::closed_loop::{
    DAY, DemandTrace, LoopScore, LoopStrategy, MeasuredOptions, SCENARIOS, TraceKind, run,
};

/// Goals of Spill on measured demand: minutes above the optimum, points below it, and writes in an hour.
const GOAL_MINUTES: f64 = 1.0;
const GOAL_POINTS: f64 = 4.0;
const GOAL_WRITES: f64 = 6.0;

/// Scores of all seeds, by trace and scenario; each has one score per strategy.
type Scores = BTreeMap<(usize, usize), Vec<[LoopScore; 8]>>;

fn main() {
    if std::env::args().any(|word| word == "plots") {
        return plots::write();
    }
    match std::env::var("ZONEWARD_BENCH_TRACE") {
        Ok(path) => recorded(&path),
        Err(_) => {
            let worse = made();
            reports();
            assert!(
                worse == 0,
                "a lying node is worse than PreferSameZone in {worse} cases: see the last column"
            );
        }
    }
}

fn recorded(path: &str) {
    let text = std::fs::read_to_string(path).expect("ZONEWARD_BENCH_TRACE is a file");
    let totals: Vec<f64> =
        text.lines().map(|line| line.trim().parse().expect("a number per line")).take(2 * DAY).collect();
    let strategies = [
        ("PreferSameZone", LoopStrategy::PreferSameZone),
        ("Spill by CPU", LoopStrategy::SpillByCpu),
        ("measured, equal load", LoopStrategy::SpillMeasured(MeasuredOptions { keeps_proved: false })),
        ("measured + proved", LoopStrategy::SpillMeasured(MeasuredOptions::default())),
        ("HAZL-like 1.2", LoopStrategy::LoadBand(1.2)),
        ("HAZL-like 0.1", LoopStrategy::LoadBand(0.1)),
        ("HAZL-like 10", LoopStrategy::LoadBand(10.0)),
        ("load_aware_locality", LoopStrategy::LoadAwareLocality),
        ("capacity known", LoopStrategy::KnownCapacity),
    ];
    let columns = [
        ("demand 60/30/10", TraceKind::Diurnal, SCENARIOS[1]),
        ("endpoints 12/9/3", TraceKind::Diurnal, SCENARIOS[2]),
        ("drift", TraceKind::Drift, SCENARIOS[0]),
        ("bursts", TraceKind::Bursts, SCENARIOS[0]),
    ];
    let traces = columns
        .map(|(_, kind, scenario)| DemandTrace::of_totals(kind, scenario, &totals, &mut Random::seeded(1)));
    println!("in zone % / minutes above capacity / writes in the busiest hour\n");
    println!("| | {} |", columns.map(|(name, ..)| name).join(" | "));
    println!("|---|---|---|---|---|");
    for (name, strategy) in strategies {
        let cell = |trace: &DemandTrace| {
            let score = run(trace, strategy, 1);
            let (in_zone, minutes) = (score.in_zone * 100.0, score.overload_minutes);
            format!("{in_zone:.0} / {minutes:.1} / {:.0}", score.writes_in_an_hour)
        };
        println!("| {name} | {} |", traces.each_ref().map(cell).join(" | "));
    }
}

/// Returns the number of runs with a lying node that are worse than PreferSameZone.
fn made() -> usize {
    let seeds = std::env::var("ZONEWARD_BENCH_SEEDS").ok();
    let seeds: u64 = seeds.map_or(100, |text| text.parse().expect("ZONEWARD_BENCH_SEEDS is a number"));
    let scores = scores(seeds);
    println!(
        "{seeds} seeds; in zone % / minutes a day above capacity / p99 of load in fair shares / writes an hour\n"
    );
    let strategies = LoopStrategy::all();
    println!("| trace | {} |", strategies.map(LoopStrategy::name).join(" | "));
    println!("|---|{}", "---|".repeat(strategies.len()));
    for (at, kind) in TraceKind::ALL.into_iter().enumerate() {
        // Lies are another question than splits.
        let of_trace =
            scores.iter().filter(|((trace, scenario), _)| *trace == at && SCENARIOS[*scenario].liar == 1.0);
        let rows: Vec<&[LoopScore; 8]> = of_trace.flat_map(|(_, rows)| rows).collect();
        if rows.is_empty() {
            continue;
        }
        println!("| {} | {} |", kind.name(), cells(&rows).join(" | "));
    }
    println!("\n| scenario | {} |", strategies.map(LoopStrategy::name).join(" | "));
    println!("|---|{}", "---|".repeat(strategies.len()));
    for (at, scenario) in SCENARIOS.iter().enumerate() {
        let of_scenario = scores.iter().filter(|((_, number), _)| *number == at);
        let rows: Vec<&[LoopScore; 8]> = of_scenario.flat_map(|(_, rows)| rows).collect();
        if rows.is_empty() {
            continue;
        }
        println!("| {} | {} |", scenario.name, cells(&rows).join(" | "));
    }
    goals(&scores)
}

fn scores(seeds: u64) -> Scores {
    let wanted = std::env::var("ZONEWARD_BENCH_SCENARIO").ok();
    let is_wanted = |at: &usize| wanted.as_deref().is_none_or(|name| SCENARIOS[*at].name == name);
    let scenarios: Vec<usize> = (0..SCENARIOS.len()).filter(is_wanted).collect();
    assert!(!scenarios.is_empty(), "ZONEWARD_BENCH_SCENARIO is none of {:?}", SCENARIOS.map(|s| s.name));
    let pairs =
        (0..TraceKind::ALL.len()).flat_map(|kind| scenarios.iter().map(move |scenario| (kind, *scenario)));
    let jobs: Vec<(usize, usize, u64)> =
        pairs.flat_map(|(kind, at)| (0..seeds).map(move |seed| (kind, at, seed))).collect();
    let next = AtomicUsize::new(0);
    let scores: Mutex<BTreeMap<(usize, usize, u64), [LoopScore; 8]>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some((kind, at, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
                    let trace = DemandTrace::new(TraceKind::ALL[kind], SCENARIOS[at], seed);
                    let row = LoopStrategy::all().map(|strategy| run(&trace, strategy, seed));
                    scores.lock().expect("no thread panicked").insert((kind, at, seed), row);
                }
            });
        }
    });
    let mut all = Scores::new();
    // In the order of seeds, so that sums are equal in every run.
    for ((kind, at, _), row) in scores.into_inner().expect("no thread panicked") {
        all.entry((kind, at)).or_default().push(row);
    }
    all
}

/// Means of each strategy.
fn cells(rows: &[&[LoopScore; 8]]) -> Vec<String> {
    let cell = |at: usize| {
        let mean = |value: fn(&LoopScore) -> f64| {
            rows.iter().map(|row| value(&row[at])).sum::<f64>() / rows.len() as f64
        };
        let (in_zone, minutes) = (mean(|s| s.in_zone) * 100.0, mean(|s| s.overload_minutes));
        let (load, writes) = (mean(|s| s.p99_load), mean(|s| s.writes) / 24.0);
        format!("{in_zone:.1} / {minutes:.1} / {load:.2} / {writes:.1}")
    };
    (0..8).map(cell).collect()
}

/// Spill on measured demand beside the optimum, and with a lying node beside PreferSameZone. Returns in how many runs it is
/// worse than that.
fn goals(scores: &Scores) -> usize {
    let at =
        |wanted: &str| LoopStrategy::all().into_iter().position(|s| s.name() == wanted).expect("it is there");
    let (own, best, same) = (at("Spill measured"), at("capacity known"), at("PreferSameZone"));
    println!(
        "\nSpill measured: points below the optimum in zone; minutes above it, mean and worst; writes in the busiest hour\n"
    );
    println!(
        "| trace, scenario | days with a long peak | days with short peaks | minutes | worst | writes | misses | \
         worse than PreferSameZone |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut all_worse = 0;
    for ((kind, scenario), rows) in scores {
        let mean = |rows: &[&[LoopScore; 8]], value: &dyn Fn(&[LoopScore; 8]) -> f64| {
            rows.iter().map(|row| value(row)).sum::<f64>() / rows.len().max(1) as f64
        };
        let points = |row: &[LoopScore; 8]| (row[best].in_zone - row[own].in_zone) * 100.0;
        let minutes = |row: &[LoopScore; 8]| row[own].overload_minutes - row[best].overload_minutes;
        // Odd seeds have days with short peaks.
        let parity = |odd: usize| -> Vec<&[LoopScore; 8]> { rows.iter().skip(odd).step_by(2).collect() };
        let all: Vec<&[LoopScore; 8]> = rows.iter().collect();
        let (long, short) = (mean(&parity(0), &points), mean(&parity(1), &points));
        let (more, worst) = (mean(&all, &minutes), rows.iter().map(minutes).fold(f64::MIN, f64::max));
        let writes = rows.iter().map(|row| row[own].writes_in_an_hour).fold(0.0, f64::max);
        let (mut misses, mut beside) = (Vec::new(), String::new());
        if SCENARIOS[*scenario].liar != 1.0 {
            let more = rows.iter().map(|row| row[own].overload_minutes - row[same].overload_minutes);
            let (worse, most) = more.fold((0, f64::MIN), |(worse, most), more| {
                (worse + usize::from(more > 0.0), f64::max(most, more))
            });
            all_worse += worse;
            beside = format!("{worse} of {} seeds ({most:+.1} minutes at most)", rows.len());
            misses.extend((worse > 0).then(|| "a lying node".to_owned()));
        } else {
            misses.extend((more > GOAL_MINUTES).then(|| "overload".to_owned()));
            misses.extend((long.max(short) > GOAL_POINTS).then(|| "in zone".to_owned()));
        }
        misses.extend((writes > GOAL_WRITES).then(|| "writes".to_owned()));
        println!(
            "| {}, {} | {long:.1} | {short:.1} | {more:.1} | {worst:.1} | {writes:.0} | {} | {beside} |",
            TraceKind::ALL[*kind].name(),
            SCENARIOS[*scenario].name,
            misses.join(", ")
        );
    }
    all_worse
}

/// Reports of 5,000 nodes with 100 Services each.
fn reports() {
    const NODES: usize = 5_000;
    const SERVICES: usize = 100;
    const ZONES: usize = 3;
    let report = |node: usize, round: u64| {
        let pair = |to: usize| ZonePairTraffic {
            from_zone: format!("zone-{}", node % ZONES),
            to_zone: format!("zone-{to}"),
            connections: round * 300,
            bytes: round * 1_000_000,
        };
        let row = |service: usize| TrafficRow {
            owner: TrafficOwner::Service { namespace: "shop".into(), name: format!("service-{service}") },
            zone_pairs: (0..ZONES).map(pair).collect(),
        };
        TrafficReport {
            reporter: format!("node/node-{node}"),
            start: "a".into(),
            sequence: round,
            counted_seconds: round * 30,
            rows: (0..SERVICES).map(row).collect(),
            gaps: TrafficGaps::default(),
            ..TrafficReport::default()
        }
    };
    let at = |seconds: u64| MonotonicTime(Duration::from_secs(seconds));
    let before = resident_bytes();
    let mut ledger = TrafficLedger::new("2026-11-17T10:00:00Z", at(0));
    let mut recorded = Duration::ZERO;
    for round in 1..=4 {
        for node in 0..NODES {
            let report = report(node, round);
            let start = Instant::now();
            ledger.record(&report, at(round * 30)).expect("it is within the bounds");
            recorded += start.elapsed();
        }
    }
    let start = Instant::now();
    let zones: Vec<String> = (0..ZONES).map(|zone| format!("zone-{zone}")).collect();
    let zone_of_node = |node: &str| {
        let number: usize = node.strip_prefix("node-")?.parse().ok()?;
        Some(zones[number % ZONES].as_str())
    };
    let demand = ledger.demand(at(121), zone_of_node);
    let summed = start.elapsed();
    println!("\nReports of {NODES} nodes with {SERVICES} Services in {ZONES} zones, every 30 s:");
    println!("recorded in {:.2} s of CPU per 30 s", recorded.as_secs_f64() / 4.0);
    println!("summed in {:.0} ms per 10 s, {} Services", summed.as_secs_f64() * 1e3, demand.services.len());
    println!("{} MB of memory", resident_bytes().saturating_sub(before) / 1_000_000);
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or_default() * 4_096
}

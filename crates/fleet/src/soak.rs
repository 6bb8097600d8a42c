//! Many seeds, one after the other; a failing one is reduced to its shortest prefix and told as a story.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::options::Options;
use crate::simulation::{RunReport, Simulation};

/// A file for each run that failed once: seed and milliseconds of faults, then what it was.
const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/regressions");

/// What many runs added up to.
#[derive(Debug, Default)]
pub struct SoakSummary {
    pub seeds: u64,
    pub simulated_ms: u64,
    pub events: u64,
    pub took: Duration,
    pub counts: BTreeMap<&'static str, u64>,
    /// Seeds with a broken invariant, and the text for developers.
    pub failures: Vec<(u64, String)>,
}

impl SoakSummary {
    pub fn add(&mut self, report: &RunReport) {
        self.seeds += 1;
        self.simulated_ms += report.simulated_ms;
        self.events += report.events;
        for (name, count) in &report.counts {
            *self.counts.entry(name).or_default() += count;
        }
    }

    /// A table of what happened.
    pub fn text(&self) -> String {
        let hours = self.simulated_ms as f64 / 3_600_000.0;
        let mut text = format!(
            "{} seeds, {hours:.1} simulated hours in {:.0} s, {} events, {} failed\n",
            self.seeds,
            self.took.as_secs_f64(),
            self.events,
            self.failures.len()
        );
        for (name, count) in &self.counts {
            let _ = writeln!(text, "  {name:<45} {count}");
        }
        text
    }
}

/// Runs seeds from the first on, until the time is over, so many were run, or one fails and `explain` is there, which
/// makes the text of it.
pub fn run_seeds(
    first: u64,
    most: u64,
    time: Duration,
    explain: Option<fn(RunReport) -> String>,
) -> SoakSummary {
    let (start, mut summary) = (Instant::now(), SoakSummary::default());
    for seed in first..first.saturating_add(most) {
        if start.elapsed() >= time {
            break;
        }
        let report = Simulation::run(Options::of(seed), false);
        summary.add(&report);
        if report.broken.is_some() {
            let Some(explain) = explain else {
                let text = headline(&report);
                eprintln!("seed {seed}: {text}");
                summary.failures.push((seed, text));
                continue;
            };
            summary.failures.push((seed, explain(report)));
            break;
        }
    }
    summary.took = start.elapsed();
    summary
}

fn headline(report: &RunReport) -> String {
    report.broken.as_ref().map(ToString::to_string).unwrap_or_default()
}

/// Explains a failing run: its seed, the shortest prefix that fails in the same way, and the last events.
pub fn failure(report: RunReport) -> String {
    told(&shortest_prefix(report))
}

/// As [`failure`], and keeps the prefix as a file that the tests run from now on.
pub fn kept_failure(report: RunReport) -> String {
    let report = shortest_prefix(report);
    let Options { seed, fault_ms, .. } = report.options;
    let path = format!("{REGRESSIONS}/{seed}.txt");
    let text = format!("{seed} {fault_ms}\n{}\n", headline(&report));
    let kept = std::fs::create_dir_all(REGRESSIONS).and_then(|()| std::fs::write(&path, text));
    let kept =
        kept.map_or_else(|error| format!("cannot write {path}: {error}"), |()| format!("kept as {path}"));
    format!("{}{kept}\n", told(&report))
}

fn told(report: &RunReport) -> String {
    let Options { seed, fault_ms, .. } = report.options;
    format!(
        "seed {seed} breaks {}\n\
         shortest prefix: --seed {seed} --once --fault-ms {fault_ms}\n\
         {:?}\nlast events, of {}:\n{}\n",
        headline(report),
        report.options,
        report.events,
        report.story.join("\n")
    )
}

/// Halves the phase of faults as long as the same invariant breaks.
pub fn shortest_prefix(mut report: RunReport) -> RunReport {
    let number = report.broken.as_ref().map(|broken| broken.number);
    // What comes after the failure does not matter.
    let (mut passing, mut failing) = (0, report.options.fault_ms.min(report.simulated_ms));
    report.options.fault_ms = failing;
    for _ in 0..12 {
        if failing - passing <= 100 {
            break;
        }
        let middle = passing.midpoint(failing);
        let options = Options { fault_ms: middle, ..report.options.clone() };
        let shorter = Simulation::run(options, false);
        if shorter.broken.as_ref().map(|broken| broken.number) == number {
            (failing, report) = (middle, shorter);
        } else {
            passing = middle;
        }
    }
    report
}

/// Seed and milliseconds of faults of the runs that failed once.
pub fn regressions() -> Vec<(u64, u64)> {
    let files = std::fs::read_dir(REGRESSIONS)
        .map(|entries| entries.flatten().collect())
        .unwrap_or_else(|_| Vec::new());
    let read = |entry: &std::fs::DirEntry| {
        let text = std::fs::read_to_string(entry.path()).ok()?;
        let mut words = text.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    let mut found: Vec<(u64, u64)> = files.iter().filter_map(read).collect();
    found.sort_unstable();
    found
}

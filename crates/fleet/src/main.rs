//! `cargo xtask soak fleet`: runs seeds of the simulated fleet for some minutes, or one of them.

use std::process::ExitCode;
use std::time::Duration;

use fleet::soak::{failure, kept_failure, run_seeds};
use fleet::{Options, RunReport, Simulation};

const HELP: &str = "fleet [--seed N] [--minutes M] [--seeds K] [--keep-going]   runs seeds from N on
fleet --plant BUG [--seed N] [--seeds K]   the same with a planted bug, in a build with feature plant
fleet --seed N --once [--fault-ms T] [--trace] [--hour] [--twice]   runs one seed, and prints its events with --trace";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| words.iter().any(|word| word == name);
    let number = |name: &str| -> Option<u64> {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1)?.parse().ok()
    };
    if flag("--help") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    #[cfg(debug_assertions)]
    if let Some(at) = words.iter().position(|word| word == "--plant") {
        let wanted = words.get(at + 1).map(String::as_str).unwrap_or_default();
        let all = model::plant::PlantedBug::ALL;
        let Some(bug) = all.into_iter().find(|bug| format!("{bug:?}") == wanted) else {
            println!("--plant is one of {all:?}");
            return ExitCode::FAILURE;
        };
        model::plant::plant(Some(bug));
    }
    let seed = number("--seed").unwrap_or_else(clock::os_seed);
    if flag("--once") {
        if flag("--twice") {
            once(seed, number("--fault-ms"), flag("--trace"), flag("--hour"));
        }
        return once(seed, number("--fault-ms"), flag("--trace"), flag("--hour"));
    }
    let (time, most) = (60 * number("--minutes").unwrap_or(10), number("--seeds").unwrap_or(u64::MAX));
    let told: fn(RunReport) -> String = if flag("--plant") { failure } else { kept_failure };
    let explain = (!flag("--keep-going")).then_some(told);
    let summary = run_seeds(seed, most, Duration::from_secs(time), explain);
    summary.failures.iter().for_each(|(seed, text)| println!("FAILED {seed}: {text}"));
    println!("from seed {seed}: {}", summary.text());
    if summary.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn once(seed: u64, fault_ms: Option<u64>, is_traced: bool, hour: bool) -> ExitCode {
    let mut options = if hour { Options::hour(seed) } else { Options::of(seed) };
    options.fault_ms = fault_ms.unwrap_or(options.fault_ms);
    println!("{options:?}");
    let started = std::time::Instant::now();
    let report = Simulation::run(options, is_traced);
    let took = started.elapsed().as_secs_f64();
    println!(
        "{} events, hash {:016x}, {} ms simulated in {took:.1} s",
        report.events, report.hash, report.simulated_ms
    );
    println!("{:#?}", report.counts);
    if report.broken.is_some() {
        println!("{}", if is_traced { format!("{:?}", report.broken) } else { failure(report) });
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

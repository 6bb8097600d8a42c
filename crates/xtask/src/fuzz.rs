//! The fuzzer of crate fuzz: our crates built with coverage instrumentation, then each target run for a while.
//! `cargo xtask soak fuzz` runs them for as long as asked; `cargo xtask test` replays the corpus and changes of it without.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Stop, report, shell};

/// Bounds of one input: seconds, and resident megabytes of the process.
const INPUT_SECONDS: u64 = 10;
const MEMORY_MB: u64 = 1024;

/// Builds the fuzzer and runs all targets, or one.
pub(crate) fn run(target: Option<&str>, seconds: u64) -> Result<(), Stop> {
    let names = names()?;
    let chosen: Vec<&String> =
        names.iter().filter(|name| target.is_none_or(|target| target == name.as_str())).collect();
    if chosen.is_empty() {
        let unknown = target.unwrap_or_default();
        return Err(Stop::Usage(format!("no fuzz target `{unknown}`; the targets are {}", names.join(", "))));
    }
    let fuzzer = build()?;
    for name in chosen {
        fuzz(&fuzzer, name, seconds)?;
    }
    Ok(())
}

fn corpus() -> PathBuf {
    shell::root().join("crates").join("fuzz").join("corpus")
}

/// A target has a folder of inputs.
fn names() -> Result<Vec<String>, Stop> {
    let folders =
        fs::read_dir(corpus()).map_err(|error| Stop::Failed(format!("reading the corpus: {error}")))?;
    let mut names: Vec<String> =
        folders.flatten().map(|folder| folder.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

/// Third-party crates are those of the tests: the profile is the same, features are resolved for the program, too, and
/// only our crates are compiled with the wrapper.
fn build() -> Result<PathBuf, Stop> {
    let words = ["build", "--package", "zoneward", "--package", "fuzz", "--bin", "fuzz"];
    let mut build = shell::cargo(&words);
    build.args(["--features", "fuzz/libfuzzer"]);
    build.env("RUSTC_WORKSPACE_WRAPPER", shell::root().join("crates").join("fuzz").join("instrument"));
    shell::run(&mut build, "building the fuzzer", "see the compiler errors above; it needs a C++ compiler")?;
    Ok(shell::target_dir().join("debug").join("fuzz"))
}

fn fuzz(fuzzer: &Path, name: &str, seconds: u64) -> Result<(), Stop> {
    let own = shell::target_dir().join("fuzz");
    let (found, failures) = (own.join("corpus").join(name), own.join("failures"));
    for folder in [&found, &failures] {
        fs::create_dir_all(folder)
            .map_err(|error| Stop::Failed(format!("creating {}: {error}", folder.display())))?;
    }
    let mut command = shell::program(fuzzer);
    command.env("ZONEWARD_FUZZ_TARGET", name).arg(&found).arg(corpus().join(name));
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-timeout={INPUT_SECONDS}"));
    command.arg(format!("-rss_limit_mb={MEMORY_MB}")).arg("-print_final_stats=1").arg("-verbosity=0");
    command.arg(format!("-artifact_prefix={}/{name}-", failures.display()));
    let mut stats = Vec::new();
    let mut input = None;
    let status = shell::run_filtering_stderr(&mut command, |line| {
        let is_stat = line.starts_with("stat::");
        if is_stat {
            stats.push(line.to_string());
        }
        input = line.split_once("Test unit written to ").map(|(_, path)| path.to_string()).or(input.take());
        !is_stat
    })?;
    if status.success() {
        report::say(&format!("{name:<10} {}", summary(&stats)));
        return Ok(());
    }
    Err(Stop::Failed(format!(
        "fuzz target `{name}` failed: replay with\n  ZONEWARD_FUZZ_TARGET={name} {} {}\nand keep the input in crates/fuzz/corpus/{name} with the fix",
        fuzzer.display(),
        input.as_deref().unwrap_or("INPUT"),
    )))
}

/// The figures of a run, from lines such as `stat::number_of_executed_units: 4096`.
fn summary(stats: &[String]) -> String {
    let value = |name: &str| {
        let found = stats.iter().find_map(|line| line.strip_prefix(&format!("stat::{name}:")));
        report::grouped(found.and_then(|value| value.trim().parse().ok()).unwrap_or(0))
    };
    format!(
        "{:>12} inputs, {:>8} per second, {:>5} new, {:>5} MB",
        value("number_of_executed_units"),
        value("average_exec_per_sec"),
        value("new_units_added"),
        value("peak_rss_mb")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_run_are_one_line() {
        let stats = ["stat::number_of_executed_units: 4096", "stat::average_exec_per_sec:     1365"];
        let stats = stats.map(str::to_string);
        assert_eq!(summary(&stats), "       4,096 inputs,    1,365 per second,     0 new,     0 MB");
    }

    #[test]
    fn every_target_has_inputs() {
        let names = names().expect("the corpus is in the repository");
        assert!(names.contains(&"http".to_string()), "{names:?}");
        for name in names {
            assert!(
                fs::read_dir(corpus().join(&name)).is_ok_and(|mut files| files.next().is_some()),
                "{name}"
            );
        }
    }
}

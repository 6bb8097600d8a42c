//! `cargo xtask soak`: runs the `soak_` tests for longer than the ten seconds of CI, to find rare interleavings; the fuzz
//! targets (`fuzz`, `fuzz::NAME`); and attacks on running processes (`attack`).

use crate::args::SoakOptions;
use crate::{Stop, fuzz, report, shell, tools};

/// Exit code of nextest if no test matches.
const NO_TESTS_TO_RUN: i32 = 4;

pub(crate) fn run(options: &SoakOptions) -> Result<(), Stop> {
    match options.name.as_deref() {
        Some("attack") => return attack(options.seconds),
        Some("fuzz") => return fuzz::run(None, options.seconds, fuzz::Search::Open),
        Some(name) if name.starts_with(FUZZ_TARGET) => {
            return fuzz::run(name.strip_prefix(FUZZ_TARGET), options.seconds, fuzz::Search::Open);
        }
        _ => {}
    }
    tools::ensure(&tools::TESTS, true)?;
    report::heading(&format!("soak: {} s for each test", options.seconds));
    let mut command = shell::nextest(&["run", "--workspace", "--cargo-profile", "soak", "--profile", "soak"]);
    command.args(["-E", &filter(options.name.as_deref())]);
    command.env("ZONEWARD_SOAK_SECONDS", options.seconds.to_string());
    let status = command
        .status()
        .map_err(|error| Stop::Failed(format!("failed to run cargo ({error}): is it on PATH?")))?;
    if status.code() == Some(NO_TESTS_TO_RUN) {
        return Err(Stop::Failed(match &options.name {
            Some(name) => format!("no soak test's name contains `{name}`: run `cargo xtask soak` for all"),
            None => "no test's name starts with `soak_` yet".to_string(),
        }));
    }
    let advice = "the seed that the test printed replays the failure";
    shell::check(status, "the soak", advice)
}

/// A fuzz target, as `fuzz::http`.
const FUZZ_TARGET: &str = "fuzz::";

/// The bench `attack` of crate zoneward: it starts the real processes, attacks them and prints the table of
/// docs/benchmarks/security.md. ZONEWARD_BINARY attacks another build.
fn attack(seconds: u64) -> Result<(), Stop> {
    report::heading(&format!("attack: {seconds} s for each"));
    let words = ["bench", "--profile", "soak", "--package", "zoneward", "--bench", "attack"];
    let mut command = shell::cargo(&words);
    command.env("ZONEWARD_SOAK_SECONDS", seconds.to_string());
    shell::run(&mut command, "the attack", "see the output above")
}

/// Seeds of the simulated plane, from one on or from a random one.
pub(crate) fn plane(seed: Option<&str>, minutes: u64) -> Result<(), Stop> {
    report::heading(&format!("plane: {minutes} min"));
    let mut command = shell::cargo(&["run", "--profile", "soak", "--package", "plane", "--"]);
    command.args(["--minutes", &minutes.to_string()]);
    command.args(seed.iter().flat_map(|seed| ["--seed", seed]));
    shell::run(
        &mut command,
        "the simulated plane",
        "the seed and the prefix that were printed replay the failure",
    )
}

/// nextest filter: the test function starts with soak_, and its path contains NAME.
fn filter(name: Option<&str>) -> String {
    let soak = "test(/(^|::)soak_[^:]*$/)";
    match name {
        Some(name) => format!("{soak} & test({name})"),
        None => soak.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_narrows_to_soak_tests_and_then_to_the_name() {
        assert_eq!(filter(None), "test(/(^|::)soak_[^:]*$/)");
        assert_eq!(filter(Some("queue")), "test(/(^|::)soak_[^:]*$/) & test(queue)");
    }
}

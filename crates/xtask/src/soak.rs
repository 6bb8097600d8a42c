//! `cargo xtask soak`: runs the `soak_` tests for longer than the ten seconds of CI, to find rare interleavings; the fuzz
//! targets (`fuzz`, `fuzz::NAME`); attacks on running processes (`attack`); and the search for planted bugs (`planted`).

use crate::args::SoakOptions;
use crate::{Stop, fuzz, report, shell, suite, tools};

/// Exit code of nextest if no test matches.
const NO_TESTS_TO_RUN: i32 = 4;

pub(crate) fn run(options: &SoakOptions) -> Result<(), Stop> {
    match options.name.as_deref() {
        Some("attack") => return attack(options.seconds),
        Some("planted") => return planted(),
        Some("fuzz") => return fuzz::run(None, options.seconds),
        Some(name) if name.starts_with(FUZZ_TARGET) => {
            return fuzz::run(name.strip_prefix(FUZZ_TARGET), options.seconds);
        }
        _ => {}
    }
    tools::ensure(&tools::TESTS, true)?;
    report::heading(&format!("soak: {} s for each test", options.seconds));
    let mut command =
        shell::nextest(&["run", "--workspace", "--cargo-profile", "release", "--profile", "soak"]);
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
    let words = ["bench", "--profile", "release", "--package", "zoneward", "--bench", "attack"];
    let mut command = shell::cargo(&words);
    command.env("ZONEWARD_SOAK_SECONDS", seconds.to_string());
    shell::run(&mut command, "the attack", "see the output above")
}

/// The search for planted bugs, then its rows as a table: two to three CPU-minutes after the build. Bugs can be planted in
/// builds with debug assertions alone.
fn planted() -> Result<(), Stop> {
    report::heading("planted: the simulated fleet looks for each of ten planted bugs");
    tools::ensure(&[tools::NEXTEST], true)?;
    let mut run =
        shell::nextest(&["run", "--cargo-profile", "release", "--profile", "soak", "--package", "fleet"]);
    run.args(["--config", "profile.release.debug-assertions=true"]);
    run.args(["--ignore-default-filter", "-E", "test(/^planted::/)"]);
    let mut rows = Vec::new();
    let status = shell::run_watching_stderr(&mut run, |line| rows.extend(planted_row(line)))?;
    rows.sort();
    report::say("| bug | seeds | found by |\n|---|---|---|");
    rows.iter().for_each(|(_, row)| report::say(row));
    let advice = "`fleet --plant BUG --seed N --once --trace` shows a run";
    shell::check(status, "the test of planted bugs", advice)
}

/// A row of the table of planted bugs, behind its number of seeds.
fn planted_row(line: &str) -> Option<(u64, String)> {
    let line = suite::without_colour(line);
    let row = line.trim().strip_prefix("| ")?.strip_suffix(" |")?;
    let seeds = row.split(" | ").nth(1)?.parse().ok()?;
    Some((seeds, line.trim().to_string()))
}

/// Seeds of the simulated fleet, from one on or from a random one.
pub(crate) fn fleet(seed: Option<&str>, minutes: u64) -> Result<(), Stop> {
    report::heading(&format!("fleet: {minutes} min"));
    let mut command = shell::cargo(&["run", "--release", "--package", "fleet", "--"]);
    command.args(["--minutes", &minutes.to_string()]);
    command.args(seed.iter().flat_map(|seed| ["--seed", seed]));
    shell::run(
        &mut command,
        "the simulated fleet",
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

    #[test]
    fn rows_of_planted_bugs_are_recognised() {
        let row = "| TwoLeaders | 6 | invariant 4: both lead |";
        assert_eq!(planted_row(&format!("    \x1b[1m{row}\x1b[0m")), Some((6, row.to_string())));
        assert_eq!(planted_row("        PASS [   0.004s] fleet::planted two_leaders_are_found"), None);
        assert_eq!(planted_row("| bug | seeds | found by |"), None);
    }
}

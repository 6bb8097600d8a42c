//! `cargo xtask test`: the checks of CI, timed, cheap ones first.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::args::TestOptions;
use crate::{Stop, deny, dist, docs, fuzz, ipvs, manifests, report, shell, tools};

/// One part of the suite, as `--only` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Fmt,
    /// Licences, banned crates, sources of dependencies.
    Deny,
    /// The documentation site, with every link in it.
    Site,
    /// The manifests, as the chart renders them.
    Manifests,
    /// Lints, with warnings as errors.
    Clippy,
    /// The documentation of the code builds without a warning.
    Doc,
    Test,
    Release,
    /// Ten planted bugs, which the simulated plane must find, and fresh seeds without them.
    Planted,
    /// Each fuzz target for ten seconds.
    Fuzz,
    /// The commands of README and guides, by the release build.
    Guides,
    /// The tour of `cargo xtask demo`, by the release build; by the build of the tests it is one of them.
    Tour,
    /// Every process of a demo replaced under load: about a minute.
    Upgrade,
    /// Mode ipvs in a virtual machine: about a minute.
    Ipvs,
    /// Packages of profile quick, and what reads, installs and runs them.
    Packages,
}

impl Part {
    /// In the order in which they run.
    pub(crate) const ALL: [Part; 7] =
        [Part::Fmt, Part::Deny, Part::Site, Part::Manifests, Part::Clippy, Part::Doc, Part::Test];

    /// Parts that need another build: `--extended`.
    pub(crate) const EXTENDED: [Part; 8] = [
        Part::Release,
        Part::Planted,
        Part::Fuzz,
        Part::Guides,
        Part::Tour,
        Part::Upgrade,
        Part::Ipvs,
        Part::Packages,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Part::Fmt => "fmt",
            Part::Deny => "deny",
            Part::Site => "site",
            Part::Manifests => "manifests",
            Part::Clippy => "clippy",
            Part::Doc => "doc",
            Part::Test => "test",
            Part::Release => "release",
            Part::Planted => "planted",
            Part::Fuzz => "fuzz",
            Part::Guides => "guides",
            Part::Tour => "tour",
            Part::Upgrade => "upgrade",
            Part::Ipvs => "ipvs",
            Part::Packages => "packages",
        }
    }

    pub(crate) fn description(self) -> &'static str {
        match self {
            Part::Fmt => "the code is formatted",
            Part::Deny => "licences, banned crates and sources of dependencies are in order",
            Part::Site => "the documentation site builds, and its links and anchors lead somewhere",
            Part::Manifests => "the manifests in deploy/ are what the chart renders",
            Part::Clippy => "no compiler or clippy warning, in tests and benches too",
            Part::Doc => "the documentation of the code builds without a warning",
            Part::Test => "all tests pass, with namesakes of the tools that fail first on PATH",
            Part::Release => "the release profile builds",
            Part::Planted => {
                "the simulated plane finds each of ten planted bugs, and nothing in fresh seeds without them"
            }
            Part::Fuzz => "no fuzz target fails within ten seconds",
            Part::Guides => "the commands of README and guides work with the release build",
            Part::Tour => "the tour of `cargo xtask demo` ends well with the release build",
            Part::Upgrade => "a rolling upgrade under load fails no connection, in both orders",
            Part::Ipvs => "mode ipvs works on a kernel that has it, in a virtual machine",
            Part::Packages => "the packages of profile quick are complete, install and run",
        }
    }

    fn run(self, closing_line: &mut Option<String>) -> Result<(), Stop> {
        match self {
            Part::Fmt => cargo(&["fmt", "--all", "--check"], "run `cargo fmt --all`"),
            Part::Deny => deny::run(),
            Part::Site => docs::build(),
            Part::Manifests => manifests::render(true),
            Part::Clippy => clippy(),
            Part::Doc => {
                let mut doc = shell::cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
                let advice = "fix each warning above; broken links are the usual cause";
                shell::run(doc.env("RUSTDOCFLAGS", "-D warnings"), "cargo doc", advice)
            }
            Part::Test => nextest(closing_line),
            Part::Release => {
                cargo(&["build", "--release", "--package", "zoneward"], "see the compiler errors above")
            }
            Part::Planted => planted(),
            Part::Fuzz => fuzz::run(None, fuzz::EXTENDED_SECONDS, fuzz::Search::Repeatable),
            Part::Guides => guides(),
            Part::Tour => tour(),
            Part::Upgrade => upgrade(),
            Part::Ipvs => ipvs::run(),
            Part::Packages => packages(),
        }
    }
}

fn cargo(words: &[&str], advice: &str) -> Result<(), Stop> {
    let shown = words.iter().take_while(|word| **word != "--").copied().collect::<Vec<_>>();
    shell::run(&mut shell::cargo(words), &shell::typed("cargo", &shown), advice)
}

/// With planted bugs, whose test is compiled only then: a second run without them would check most crates again, for one
/// constant function.
fn clippy() -> Result<(), Stop> {
    let words = ["clippy", "--workspace", "--all-targets", "--features", "plane/plant", "--quiet"];
    cargo(
        &[&words[..], &["--", "-D", "warnings"]].concat(),
        "fix each warning above, or allow it at its place with the reason",
    )
}

/// The seed of all property tests, as the crate proptest reads it.
const PROPERTY_SEED: &str = "PROPTEST_RNG_SEED";

/// Runs all tests and keeps nextest's closing line, so that it can be the last thing on the screen.
fn nextest(closing_line: &mut Option<String>) -> Result<(), Stop> {
    // Many tests wait for servers and timers: half as many again as there are cores keep the cores busy.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = (cores + cores.div_ceil(2)).to_string();
    let mut run = shell::nextest(&["run", "--workspace", "--no-fail-fast", "--test-threads", &threads]);
    run.env("PATH", behind_namesakes()?);
    // The same cases in every run: a change is judged by what it did. Another seed looks for new ones.
    let seed = std::env::var(PROPERTY_SEED).unwrap_or_else(|_| "1".to_string());
    run.env(PROPERTY_SEED, &seed);
    println!("property tests: {PROPERTY_SEED}={seed}; set another number for other cases");
    if report::colour() {
        run.args(["--color", "always"]);
    }
    let status = shell::run_watching_stderr(&mut run, |line| {
        if is_closing_line(line) {
            *closing_line = Some(line.to_string());
        }
    })?;
    shell::check(status, "cargo nextest run", "run one test alone with `cargo nextest run NAME`")
}

/// The test of planted bugs, then its rows as a table. With package zoneward, so that dependencies have the features that
/// they had in the release build, and are compiled again only above tokio, which simulates time here.
fn planted() -> Result<(), Stop> {
    let mut run = shell::nextest(&["run", "--cargo-profile", "release", "--profile", "soak"]);
    run.args([
        "--package",
        "plane",
        "--package",
        "zoneward",
        "--features",
        "plane/plant",
        "--test",
        "planted",
    ]);
    let mut rows = Vec::new();
    let status = shell::run_watching_stderr(&mut run, |line| rows.extend(planted_row(line)))?;
    rows.sort();
    report::say("| bug | seeds | found by |\n|---|---|---|");
    rows.iter().for_each(|(_, row)| report::say(row));
    shell::check(
        status,
        "the test of planted bugs",
        "`plane --plant BUG --seed N --once --trace` shows a run",
    )
}

/// A row of the table of planted bugs, behind its number of seeds.
fn planted_row(line: &str) -> Option<(u64, String)> {
    let line = without_colour(line);
    let row = line.trim().strip_prefix("| ")?.strip_suffix(" |")?;
    let seeds = row.split(" | ").nth(1)?.parse().ok()?;
    Some((seeds, line.trim().to_string()))
}

/// PATH as tests see it: what has a tool's name fails, so that a test that would find another machine's tools fails here.
fn behind_namesakes() -> Result<OsString, Stop> {
    let mut places = vec![tools::namesakes()?];
    places.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
    std::env::join_paths(places).map_err(|error| Stop::Failed(format!("PATH cannot be extended: {error}")))
}

/// The release build, which an earlier part has made.
fn release() -> PathBuf {
    shell::target_dir().join("release").join("zoneward")
}

/// `cargo xtask demo` with the release build, as a process of its own.
fn tour() -> Result<(), Stop> {
    let own = std::env::current_exe()
        .map_err(|error| Stop::Failed(format!("xtask does not know its own file: {error}")))?;
    let mut demo = shell::program(own);
    shell::run(
        demo.args(["demo", "--binary"]).arg(release()),
        "the tour",
        "its last step is the one that failed",
    )
}

/// The test of README and guides, with the release build.
fn guides() -> Result<(), Stop> {
    let mut run = shell::nextest(&["run", "--package", "zoneward", "--test", "guides"]);
    run.env("ZONEWARD_BINARY", release()).env("PATH", behind_namesakes()?);
    shell::run(&mut run, "the guides", "the test names the page, the line and what was expected there")
}

/// The tests of a rolling upgrade, which the ordinary run leaves out because they take a minute.
fn upgrade() -> Result<(), Stop> {
    let filter = "test(/^rolling_upgrade_/)";
    let mut run = shell::nextest(&["run", "--package", "zoneward", "--ignore-default-filter", "-E", filter]);
    run.env("PATH", behind_namesakes()?);
    shell::run(&mut run, "the rolling upgrade", "the test prints what was replaced when a connection failed")
}

/// The tests of packages, which the ordinary run leaves out because they need this build.
fn packages() -> Result<(), Stop> {
    let out = shell::target_dir().join("dist-quick");
    dist::quick(&out)?;
    test_packages(&out)
}

/// Reads, installs and runs the packages and the image in a folder.
pub(crate) fn test_packages(folder: &Path) -> Result<(), Stop> {
    let filter = "binary(packages) | binary(image)";
    let mut run = shell::nextest(&["run", "--package", "dist", "--ignore-default-filter", "-E", filter]);
    run.env("ZONEWARD_DIST", folder).env("PATH", behind_namesakes()?);
    shell::run(&mut run, "the tests of packages", "the test names the package and what is wrong with it")
}

fn is_closing_line(line: &str) -> bool {
    without_colour(line).trim_start().starts_with("Summary [")
}

/// The text without its escape sequences for colour.
fn without_colour(line: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for letter in line.chars() {
        match letter {
            '\x1b' => inside = true,
            'm' if inside => inside = false,
            _ if inside => {}
            _ => text.push(letter),
        }
    }
    text
}

/// Runs the parts in order up to the first failure; the summary is printed either way.
pub(crate) fn run(options: &TestOptions) -> Result<(), Stop> {
    let mut timings: Vec<(&str, Duration)> = Vec::new();
    let mut closing_line = None;
    let outcome = run_parts(options, &mut timings, &mut closing_line);
    report::heading("summary");
    for (name, time) in &timings {
        report::say(&format!("{name:<10} {:>10}", report::seconds(*time)));
    }
    let total = timings.iter().map(|(_, time)| *time).sum();
    report::say(&format!("{:<10} {:>10}", "total", report::seconds(total)));
    if let Some(line) = closing_line {
        report::say(&line);
    }
    outcome
}

fn run_parts(
    options: &TestOptions,
    timings: &mut Vec<(&'static str, Duration)>,
    closing_line: &mut Option<String>,
) -> Result<(), Stop> {
    report::heading("tools: what the checks need is installed below target/tools");
    timed("tools", timings, || provide_tools(options))?;
    for part in &options.parts {
        report::heading(&format!("{}: {}", part.name(), part.description()));
        timed(part.name(), timings, || part.run(closing_line))?;
    }
    Ok(())
}

fn timed(
    name: &'static str,
    timings: &mut Vec<(&'static str, Duration)>,
    step: impl FnOnce() -> Result<(), Stop>,
) -> Result<(), Stop> {
    let start = Instant::now();
    let outcome = step();
    timings.push((name, start.elapsed()));
    outcome
}

/// Only what the chosen parts need: `--only fmt` must not build a test runner.
fn provide_tools(options: &TestOptions) -> Result<(), Stop> {
    for part in &options.parts {
        match part {
            Part::Fmt => tools::ensure_component("fmt", "rustfmt", options.install)?,
            Part::Site => tools::ensure(&[tools::MKDOCS], options.install)?,
            Part::Manifests => tools::ensure(&[tools::HELM], options.install)?,
            Part::Clippy => tools::ensure_component("clippy", "clippy", options.install)?,
            Part::Planted => tools::ensure(&[tools::NEXTEST], options.install)?,
            Part::Test | Part::Guides | Part::Upgrade => tools::ensure(&tools::TESTS, options.install)?,
            Part::Ipvs => {
                tools::ensure(&tools::TESTS, options.install)?;
                tools::ensure(&[tools::QEMU], options.install)?;
            }
            Part::Packages => {
                tools::ensure(&tools::TESTS, options.install)?;
                tools::ensure(&tools::PACKAGES, options.install)?;
                tools::ensure(&tools::IMAGE, options.install)?;
            }
            Part::Deny | Part::Doc | Part::Release | Part::Fuzz | Part::Tour => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_line_of_nextest_is_recognised_with_and_without_colour() {
        assert!(is_closing_line("     Summary [   0.012s] 12 tests run: 12 passed, 0 skipped"));
        assert!(is_closing_line("\x1b[32;1m     Summary\x1b[0m [   0.012s] \x1b[1m12\x1b[0m tests run"));
        assert!(!is_closing_line("        PASS [   0.004s] xtask args::tests::summary"));
    }

    #[test]
    fn rows_of_planted_bugs_are_recognised() {
        let row = "| TwoLeaders | 6 | invariant 4: both lead |";
        assert_eq!(planted_row(&format!("    \x1b[1m{row}\x1b[0m")), Some((6, row.to_string())));
        assert_eq!(planted_row("        PASS [   0.004s] plane::planted two_leaders_are_found"), None);
        assert_eq!(planted_row("| bug | seeds | found by |"), None);
    }

    #[test]
    fn every_part_has_a_name_of_its_own() {
        for parts in [&Part::ALL[..], &Part::EXTENDED[..]] {
            let mut names: Vec<&str> = parts.iter().map(|part| part.name()).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), parts.len());
        }
    }
}

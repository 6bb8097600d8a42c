//! `cargo xtask test`: the checks of CI, timed, cheap ones first.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use toolbox::static_build::{self, StaticBuild};

use crate::args::TestOptions;
use crate::{Stop, deny, dist, docs, ipvs, manifests, report, shell, tools};

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
    /// Every process of a demo replaced under load: about a minute.
    Upgrade,
    /// Mode ipvs in a virtual machine: about a minute.
    Ipvs,
    /// Packages of the program that was tested, and what reads, installs and runs them.
    Packages,
}

impl Part {
    /// In the order in which they run.
    pub(crate) const ALL: [Part; 7] =
        [Part::Fmt, Part::Deny, Part::Clippy, Part::Doc, Part::Site, Part::Manifests, Part::Test];

    /// Parts that take minutes for one promise: `--extended`. All but the packages use the build of `Test`.
    pub(crate) const EXTENDED: [Part; 3] = [Part::Upgrade, Part::Ipvs, Part::Packages];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Part::Fmt => "fmt",
            Part::Deny => "deny",
            Part::Site => "site",
            Part::Manifests => "manifests",
            Part::Clippy => "clippy",
            Part::Doc => "doc",
            Part::Test => "test",
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
            Part::Upgrade => "a rolling upgrade under load fails no connection, in both orders",
            Part::Ipvs => "mode ipvs works on a kernel that has it, in a virtual machine",
            Part::Packages => "packages of the tested program are complete, install and run",
        }
    }

    /// Whether it runs programs from target/tools; the others need the toolchain alone.
    fn needs_tools(self) -> bool {
        !matches!(self, Part::Fmt | Part::Deny | Part::Clippy | Part::Doc)
    }

    fn ensure_component(self, install: bool) -> Result<(), Stop> {
        match self {
            Part::Fmt => tools::ensure_component("fmt", "rustfmt", install),
            Part::Clippy => tools::ensure_component("clippy", "clippy", install),
            _ => Ok(()),
        }
    }

    fn run(self) -> Result<Spent, Stop> {
        match self {
            Part::Fmt => ran(|| cargo(&["fmt", "--all", "--check"], "run `cargo fmt --all`")),
            Part::Deny => ran(deny::run),
            Part::Site => ran(docs::build),
            Part::Manifests => ran(|| manifests::render(true)),
            Part::Clippy => built(clippy),
            Part::Doc => built(|| {
                let mut doc =
                    shell::cargo(&["doc", "--profile", PROFILE, "--workspace", "--no-deps", "--quiet"]);
                as_tested(&mut doc)?;
                let advice = "fix each warning above; broken links are the usual cause";
                shell::run(doc.env("RUSTDOCFLAGS", "-D warnings"), "cargo doc", advice)
            }),
            Part::Test => nextest(),
            Part::Upgrade => upgrade(),
            Part::Ipvs => ipvs::run(),
            Part::Packages => packages(),
        }
    }
}

/// Where the time of a part went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) build: Duration,
    pub(crate) run: Duration,
    /// Tests that ran, where nextest counts them.
    pub(crate) tests: u64,
}

impl Spent {
    fn and(self, other: Spent) -> Spent {
        Spent { build: self.build + other.build, run: self.run + other.run, tests: self.tests + other.tests }
    }
}

/// Times what checks something.
pub(crate) fn ran(step: impl FnOnce() -> Result<(), Stop>) -> Result<Spent, Stop> {
    let start = Instant::now();
    step()?;
    Ok(Spent { run: start.elapsed(), ..Spent::default() })
}

/// Times what compiles.
pub(crate) fn built(step: impl FnOnce() -> Result<(), Stop>) -> Result<Spent, Stop> {
    let start = Instant::now();
    step()?;
    Ok(Spent { build: start.elapsed(), ..Spent::default() })
}

fn cargo(words: &[&str], advice: &str) -> Result<(), Stop> {
    let shown = words.iter().take_while(|word| **word != "--").copied().collect::<Vec<_>>();
    shell::run(&mut shell::cargo(words), &shell::typed("cargo", &shown), advice)
}

fn clippy() -> Result<(), Stop> {
    let mut clippy =
        shell::cargo(&["clippy", "--profile", PROFILE, "--workspace", "--all-targets", "--quiet"]);
    as_tested(&mut clippy)?;
    let advice = "fix each warning above, or allow it at its place with the reason";
    shell::run(clippy.args(["--", "-D", "warnings"]), "cargo clippy", advice)
}

/// The profile of all parts: what a check compiles, such as macros, the build of the tests has.
pub(crate) const PROFILE: &str = "ci";

/// The seed of all property tests, as the crate proptest reads it.
const PROPERTY_SEED: &str = "PROPTEST_RNG_SEED";

/// Builds the tests, all of them in the same way so that no part builds them again, and runs those that the words choose.
fn run_tests(
    words: &[&str],
    environment: &[(&str, OsString)],
    (what, advice): (&str, &str),
) -> Result<Spent, Stop> {
    let build = built(|| {
        let mut build = shell::nextest(&["run", "--cargo-profile", PROFILE, "--workspace", "--no-run"]);
        as_tested(&mut build)?;
        shell::run(&mut build, "building the tests", "see the compiler errors above")
    })?;
    let mut run = shell::nextest(&["run", "--cargo-profile", PROFILE, "--workspace", "--no-fail-fast"]);
    as_tested(&mut run)?;
    run.args(["--test-threads", &test_threads()])
        .args(words)
        .env("PATH", behind_namesakes()?)
        .envs(environment.iter().map(|(name, value)| (name, value)));
    if report::colour() {
        run.args(["--color", "always"]);
    }
    let mut tests = 0;
    let run = ran(|| {
        let status = shell::run_watching_stderr(&mut run, |line| {
            tests = tests_run(line).unwrap_or(tests);
        })?;
        shell::check(status, what, advice)
    })?;
    Ok(build.and(Spent { tests, ..run }))
}

/// The target and flags of a build of tests: their programs are static, as those of packages are. Lints and documentation take
/// the same, because build scripts see the flags of C and would run again for each of both.
pub(crate) fn as_tested(cargo: &mut Command) -> Result<(), Stop> {
    let triple = host_triple()?;
    let build = StaticBuild::new(&shell::root(), &shell::target_dir(), &triple);
    build.map_err(|error| Stop::Failed(format!("a static build: {error}")))?.apply(cargo);
    Ok(())
}

/// The program that the tests run.
pub(crate) fn program_as_tested() -> Result<PathBuf, Stop> {
    Ok(shell::target_dir().join(host_triple()?).join(PROFILE).join("zoneward"))
}

fn host_triple() -> Result<String, Stop> {
    let failed = |error| Stop::Failed(format!("rustc does not name its target: {error}"));
    static_build::host_triple(&shell::root()).map_err(failed)
}

/// Many tests wait for servers and timers: twice as many as there are cores keep the cores busy.
fn test_threads() -> String {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (2 * cores).to_string()
}

/// All tests but those of other parts.
fn nextest() -> Result<Spent, Stop> {
    // The same cases in every run: a change is judged by what it did. Another seed looks for new ones.
    let seed = std::env::var(PROPERTY_SEED).unwrap_or_else(|_| "1".to_string());
    println!("property tests: {PROPERTY_SEED}={seed}; set another number for other cases");
    let why = ("cargo nextest run", "run one test alone with `cargo nextest run NAME`");
    run_tests(&[], &[(PROPERTY_SEED, seed.into())], why)
}

/// PATH as tests see it: what has a tool's name fails, so that a test that would find another machine's tools fails here.
fn behind_namesakes() -> Result<OsString, Stop> {
    let mut places = vec![tools::namesakes()?];
    places.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
    std::env::join_paths(places).map_err(|error| Stop::Failed(format!("PATH cannot be extended: {error}")))
}

/// The tests of a rolling upgrade, which the ordinary run leaves out because they take a minute.
fn upgrade() -> Result<Spent, Stop> {
    let why = ("the rolling upgrade", "the test prints what was replaced when a connection failed");
    run_tests(&["--ignore-default-filter", "-E", "test(/::rolling_upgrade_/)"], &[], why)
}

/// The tests of packages, which the ordinary run leaves out because they need packages.
fn packages() -> Result<Spent, Stop> {
    let out = shell::target_dir().join("dist-ci");
    let program = program_as_tested()?;
    let packed = built(|| dist::pack(&program, &out))?;
    Ok(packed.and(test_packages(&out)?))
}

/// Reads, installs and runs the packages and the image in a folder.
pub(crate) fn test_packages(folder: &Path) -> Result<Spent, Stop> {
    let why = ("the tests of packages", "the test names the package and what is wrong with it");
    let words = ["--ignore-default-filter", "-E", "package(dist) & test(/^(packages|image)::/)"];
    run_tests(&words, &[("ZONEWARD_DIST", folder.into())], why)
}

/// The number in `Summary [   0.012s] 12 tests run: 12 passed, 0 skipped`.
fn tests_run(line: &str) -> Option<u64> {
    let line = without_colour(line);
    let (_, rest) = line.trim_start().strip_prefix("Summary [")?.split_once(']')?;
    rest.split_whitespace().next()?.split('/').next()?.parse().ok()
}

/// The text without its escape sequences for colour.
pub(crate) fn without_colour(line: &str) -> String {
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

/// Runs the parts in order up to the first failure; where the time went is printed either way.
pub(crate) fn run(options: &TestOptions) -> Result<(), Stop> {
    let start = Instant::now();
    let mut rows: Vec<(&str, Spent)> = Vec::new();
    let outcome = run_parts(options, &mut rows);
    report::heading("summary");
    report::say(&summary(&rows, start.elapsed()));
    if let Ok(tests @ 1..) = &outcome {
        report::say(&format!("\n{tests} passed, 0 failed"));
    }
    outcome.map(|_| ())
}

/// The table of what each part took.
fn summary(rows: &[(&str, Spent)], total: Duration) -> String {
    let none = |text: String, is_none: bool| if is_none { "-".to_owned() } else { text };
    let time = |time: Duration| none(report::seconds(time), time.is_zero());
    let row = |(name, spent): &(&str, Spent)| {
        let tests = none(report::grouped(spent.tests), spent.tests == 0);
        vec![(*name).to_owned(), time(spent.build), time(spent.run), tests]
    };
    let table = report::table(&["part", "build", "run", "tests"], &rows.iter().map(row).collect::<Vec<_>>());
    format!("{table}\ntotal {}", report::seconds(total))
}

/// The number of tests that ran.
fn run_parts(options: &TestOptions, rows: &mut Vec<(&'static str, Spent)>) -> Result<u64, Stop> {
    let (with_tools, without): (Vec<Part>, Vec<Part>) =
        options.parts.iter().partition(|part| part.needs_tools());
    for part in &without {
        part.ensure_component(options.install)?;
    }
    report::heading("tools: what the checks need is installed below target/tools, while other checks run");
    std::thread::scope(|scope| {
        let tools = scope.spawn(|| {
            let start = Instant::now();
            (provide_tools(&with_tools, options.install), start.elapsed())
        });
        let checked = without.iter().try_for_each(|part| run_part(*part, rows));
        let (provided, run) = tools.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        rows.push(("tools", Spent { run, ..Spent::default() }));
        checked.and(provided)
    })?;
    with_tools.iter().try_for_each(|part| run_part(*part, rows))?;
    Ok(rows.iter().map(|(_, spent)| spent.tests).sum())
}

fn run_part(part: Part, rows: &mut Vec<(&'static str, Spent)>) -> Result<(), Stop> {
    report::heading(&format!("{}: {}", part.name(), part.description()));
    timed(part.name(), rows, || part.run())
}

/// A part that fails has a row, too: all of its time as a run.
fn timed(
    name: &'static str,
    rows: &mut Vec<(&'static str, Spent)>,
    part: impl FnOnce() -> Result<Spent, Stop>,
) -> Result<(), Stop> {
    let start = Instant::now();
    let outcome = part();
    let failed = Spent { run: start.elapsed(), ..Spent::default() };
    rows.push((name, *outcome.as_ref().unwrap_or(&failed)));
    outcome.map(|_| ())
}

/// Only what the chosen parts need: `--only site` must not build a test runner.
fn provide_tools(parts: &[Part], install: bool) -> Result<(), Stop> {
    for part in parts {
        match part {
            Part::Site => tools::ensure(&[tools::MKDOCS], install)?,
            Part::Manifests => tools::ensure(&[tools::HELM], install)?,
            Part::Test | Part::Upgrade => tools::ensure(&tools::TESTS, install)?,
            Part::Ipvs => {
                tools::ensure(&tools::TESTS, install)?;
                tools::ensure(&[tools::QEMU], install)?;
            }
            Part::Packages => {
                tools::ensure(&tools::TESTS, install)?;
                tools::ensure(&tools::PACKAGES, install)?;
                tools::ensure(&tools::IMAGE, install)?;
            }
            Part::Fmt | Part::Deny | Part::Clippy | Part::Doc => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_by_the_closing_line_of_nextest() {
        assert_eq!(tests_run("     Summary [   0.012s] 12 tests run: 12 passed, 0 skipped"), Some(12));
        assert_eq!(
            tests_run("\x1b[32;1m     Summary\x1b[0m [   0.012s] \x1b[1m7/12\x1b[0m tests run"),
            Some(7)
        );
        assert_eq!(tests_run("        PASS [   0.004s] xtask args::tests::summary"), None);
    }

    #[test]
    fn summary_says_where_the_time_went() {
        let [build, run] = [60, 5].map(Duration::from_secs);
        let rows = [("fmt", Spent { run, ..Spent::default() }), ("test", Spent { build, run, tests: 1_200 })];
        let expected = "\
part |  build |   run | tests
-----+--------+-------+------
fmt  |      - | 5.0 s |     -
test | 60.0 s | 5.0 s | 1,200
total 70.0 s";
        assert_eq!(summary(&rows, Duration::from_secs(70)), expected);
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

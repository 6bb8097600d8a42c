//! The command line of xtask, parsed with std alone, and its help.

use std::path::PathBuf;

use crate::suite::Part;
use crate::{Stop, dist};

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Test(TestOptions),
    Tools {
        install: bool,
    },
    Docs {
        install: bool,
        serve: bool,
    },
    Manifests {
        install: bool,
        check: bool,
    },
    Demo {
        binary: Option<PathBuf>,
    },
    /// The words after `dist`, which crate dist parses.
    Dist {
        words: Vec<String>,
    },
    Bench(BenchOptions),
    Soak(SoakOptions),
    /// Seeds of the simulated fleet.
    SoakFleet {
        seed: Option<String>,
        minutes: u64,
    },
    SoakDist {
        profile: String,
    },
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TestOptions {
    pub(crate) parts: Vec<Part>,
    pub(crate) install: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct BenchOptions {
    /// Lists the benches if missing.
    pub(crate) name: Option<String>,
    pub(crate) profile: Option<String>,
    /// Arguments of the bench, after `--`.
    pub(crate) pass_on: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SoakOptions {
    /// Runs only tests whose names contain this.
    pub(crate) name: Option<String>,
    pub(crate) seconds: u64,
}

const DEFAULT_SOAK_SECONDS: u64 = 60;
/// Minutes of `soak fleet`.
const DEFAULT_FLEET_MINUTES: u64 = 10;

pub(crate) fn help() -> String {
    let rows = |parts: &[Part]| -> String {
        parts.iter().map(|part| format!("    {:<9} {}\n", part.name(), part.description())).collect()
    };
    format!(
        "\
Developer commands of Zoneward

  cargo xtask demo [--binary PATH]
      Build zoneward (profile quick, target/quick/zoneward) and run a guided tour; --binary skips the build.

  cargo xtask test [--extended] [--only PART,...] [--no-install]
      Run the checks of CI in this order, and stop at the first failure. Installs missing tools.
{}      With --extended:
{}
  cargo xtask docs [--serve] [--no-install]
      Build the documentation site with mkdocs into target/site and check its links; --serve serves it on
      http://127.0.0.1:8000. Fails on dead links, and on pages that are missing from `nav` in mkdocs.yml.

  cargo xtask manifests [--check] [--no-install]
      Render the manifests in deploy/ from the chart with helm; --check only compares them.

  cargo xtask tools [--no-install]
      Install the tools of tests and benches into target/tools/bin, which is searched instead of PATH.

  cargo xtask bench [NAME [--profile PROFILE] [-- ARGS]]
      List the benches, or run one: times first, then instruction counts under callgrind.
      The default profile is dist. ZONEWARD_BENCH_SERVICES sets the size of the counted run.

  cargo xtask soak [NAME] [--seconds N]
      Run the soak_ tests optimised, for N seconds each (default {DEFAULT_SOAK_SECONDS}).
      `soak fuzz` runs the fuzz targets instead, `soak fuzz::NAME` one of them, `soak attack` attacks
      running processes and prints what other clients notice, and `soak planted` lets the simulated fleet
      look for bugs that are planted, and prints with which seed it finds each.

  cargo xtask soak fleet [--seed N] [--minutes M]
      Run seeds of the simulated fleet from N on, optimised, for M minutes (default {DEFAULT_FLEET_MINUTES}) or until one fails:
      it prints the seed, the shortest prefix and the last events. docs/benchmarks/simulation.md explains it.

  cargo xtask soak dist [--profile dist|quick|release]
      Build the packages of HEAD twice, in different folders below target/soak-dist, compare their bytes, and
      run the tests of packages and image with them. Profile dist, the default, takes about 15 minutes twice.

  cargo xtask dist [--profile dist|quick|release] [--target TRIPLE]... [--out DIR] [--sign-with COMMAND]
      Build the packages into target/dist: static binary, tar.gz, deb, image, chart, SBOM, checksums.
      `cargo xtask dist --help` explains the options.

CARGO_TARGET_DIR and NO_COLOR are honoured. Exit codes: 0 success, 1 failure, 2 usage error.",
        rows(&Part::ALL),
        rows(&Part::EXTENDED)
    )
}

/// Parses the words after `cargo xtask`.
pub(crate) fn parse(words: &[String]) -> Result<Command, Stop> {
    let Some((name, rest)) = words.split_first() else { return Ok(Command::Help) };
    if name == "dist" {
        return Ok(Command::Dist { words: rest.to_vec() });
    }
    let mut args = Arguments::new(name, rest);
    if matches!(name.as_str(), "help" | "--help" | "-h") || args.flag("--help") || args.flag("-h") {
        return Ok(Command::Help);
    }
    let command = match name.as_str() {
        "test" => {
            let install = !args.flag("--no-install");
            let all = if args.flag("--extended") { Part::EXTENDED.as_slice() } else { Part::ALL.as_slice() };
            let parts = match args.value("--only")? {
                Some(list) => parse_parts(all, &list)?,
                None => all.to_vec(),
            };
            Command::Test(TestOptions { parts, install })
        }
        "docs" => Command::Docs { install: !args.flag("--no-install"), serve: args.flag("--serve") },
        "manifests" => {
            Command::Manifests { install: !args.flag("--no-install"), check: args.flag("--check") }
        }
        "tools" => Command::Tools { install: !args.flag("--no-install") },
        "demo" => Command::Demo { binary: args.value("--binary")?.map(PathBuf::from) },
        "bench" => {
            let (profile, pass_on) = (args.value("--profile")?, std::mem::take(&mut args.pass_on));
            Command::Bench(BenchOptions { name: args.positional(), profile, pass_on })
        }
        "soak" if args.words.iter().any(|word| word == "dist") => {
            let profile = parse_profile(args.value("--profile")?)?;
            args.positional();
            Command::SoakDist { profile }
        }
        "soak" if args.words.iter().any(|word| word == "fleet") => {
            let (seed, minutes) = (args.value("--seed")?, args.value("--minutes")?);
            args.positional();
            let whole = |name: &str, text: String| match text.parse::<u64>() {
                Ok(_) => Ok(text),
                Err(_) => Err(Stop::Usage(format!("{name}: expected a whole number, got `{text}`"))),
            };
            let seed = seed.map(|text| whole("--seed", text)).transpose()?;
            let minutes = minutes.map(|text| whole("--minutes", text)).transpose()?;
            let minutes = minutes.and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_FLEET_MINUTES);
            Command::SoakFleet { seed, minutes }
        }
        "soak" => {
            let seconds = match args.value("--seconds")? {
                Some(text) => text.parse().ok().filter(|seconds| *seconds > 0).ok_or_else(|| {
                    Stop::Usage(format!("--seconds: expected a positive whole number, got `{text}`"))
                })?,
                None => DEFAULT_SOAK_SECONDS,
            };
            Command::Soak(SoakOptions { name: args.positional().map(parse_test_name).transpose()?, seconds })
        }
        _ => return Err(Stop::Usage(format!("unknown command `{name}`; see `cargo xtask help`"))),
    };
    args.finish()?;
    Ok(command)
}

/// The arguments of a command that are not parsed yet.
struct Arguments<'a> {
    command: &'a str,
    words: Vec<String>,
    pass_on: Vec<String>,
}

impl<'a> Arguments<'a> {
    /// `--option=value` is the same as `--option value`; words after `--` are kept apart.
    fn new(command: &'a str, rest: &[String]) -> Self {
        let end = rest.iter().position(|word| word == "--").unwrap_or(rest.len());
        let words = rest[..end].iter().flat_map(|word| match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => vec![name.to_owned(), value.to_owned()],
            _ => vec![word.clone()],
        });
        Self { command, words: words.collect(), pass_on: rest.iter().skip(end + 1).cloned().collect() }
    }

    fn flag(&mut self, name: &str) -> bool {
        let at = self.words.iter().position(|word| word == name);
        at.map(|at| self.words.remove(at)).is_some()
    }

    fn value(&mut self, name: &str) -> Result<Option<String>, Stop> {
        let Some(at) = self.words.iter().position(|word| word == name) else { return Ok(None) };
        match self.words.get(at + 1).filter(|value| !value.is_empty()) {
            Some(_) => Ok(self.words.drain(at..at + 2).next_back()),
            None => Err(Stop::Usage(format!("{name} needs a value; see `cargo xtask help`"))),
        }
    }

    fn positional(&mut self) -> Option<String> {
        let at = self.words.iter().position(|word| !word.starts_with('-'));
        at.map(|at| self.words.remove(at))
    }

    fn finish(self) -> Result<(), Stop> {
        match self.words.first().or(self.pass_on.first()) {
            None => Ok(()),
            Some(word) => Err(Stop::Usage(format!(
                "{}: unexpected argument `{word}`; see `cargo xtask help`",
                self.command
            ))),
        }
    }
}

/// In the order of the suite.
fn parse_parts(all: &[Part], list: &str) -> Result<Vec<Part>, Stop> {
    let names: Vec<&str> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let unknown = names.iter().find(|name| all.iter().all(|part| part.name() != **name));
    if names.is_empty() || unknown.is_some() {
        let known: Vec<&str> = all.iter().map(|part| part.name()).collect();
        let unknown = unknown.copied().unwrap_or_default();
        return Err(Stop::Usage(format!("--only: no part `{unknown}`; the parts are {}", known.join(", "))));
    }
    Ok(all.iter().copied().filter(|part| names.contains(&part.name())).collect())
}

/// Known here, so that a mistake does not cost a build.
fn parse_profile(given: Option<String>) -> Result<String, Stop> {
    let profile = given.unwrap_or_else(|| dist::PROFILES[0].to_owned());
    match dist::PROFILES.contains(&profile.as_str()) {
        true => Ok(profile),
        false => Err(Stop::Usage(format!(
            "--profile: no profile `{profile}`; the profiles are {}",
            dist::PROFILES.join(", ")
        ))),
    }
}

/// The name becomes part of a filter expression, so it is limited to the characters of a Rust path.
fn parse_test_name(name: String) -> Result<String, Stop> {
    match name.chars().all(|letter| letter.is_alphanumeric() || letter == '_' || letter == ':') {
        true => Ok(name),
        false => Err(Stop::Usage(format!("soak: `{name}` is not part of a test name"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, Stop> {
        parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>())
    }

    fn usage(line: &str) -> String {
        match parsed(line) {
            Err(Stop::Usage(why)) => why,
            other => panic!("`{line}` should be a usage error, was {other:?}"),
        }
    }

    #[test]
    fn help_lists_every_command_and_part() {
        for line in ["", "help", "--help", "-h", "help soak", "soak --help", "test --only fmt -h"] {
            assert_eq!(parsed(line), Ok(Command::Help), "{line}");
        }
        let commands = ["demo", "test", "docs", "tools", "bench", "soak", "dist"]
            .map(|name| format!("cargo xtask {name}"));
        let parts = Part::ALL.into_iter().chain(Part::EXTENDED).map(|part| part.description().to_owned());
        for text in commands.into_iter().chain(parts) {
            assert!(help().contains(&text), "{text}");
        }
        assert!(help().lines().all(|line| line.chars().count() <= 110));
    }

    #[test]
    fn test_runs_every_part_and_installs_by_default() {
        let options = |parts: &[Part], install| Command::Test(TestOptions { parts: parts.to_vec(), install });
        assert_eq!(parsed("test"), Ok(options(&Part::ALL, true)));
        assert_eq!(parsed("test --extended"), Ok(options(&Part::EXTENDED, true)));
        let two = options(&[Part::Fmt, Part::Clippy], false);
        assert_eq!(parsed("test --only clippy,fmt,fmt --no-install"), Ok(two));
        assert_eq!(parsed("test --only=doc"), Ok(options(&[Part::Doc], true)));
        assert_eq!(parsed("test --only upgrade --extended"), Ok(options(&[Part::Upgrade], true)));
    }

    #[test]
    fn options_come_in_any_order_and_the_rest_is_passed_on() {
        let bench = BenchOptions {
            name: Some("plan".to_string()),
            profile: Some("release".to_string()),
            pass_on: vec!["--help".to_string(), "slices".to_string()],
        };
        assert_eq!(parsed("bench --profile release plan -- --help slices"), Ok(Command::Bench(bench)));
        assert_eq!(parsed("bench"), Ok(Command::Bench(BenchOptions::default())));
        let soak = |name: Option<&str>, seconds| {
            Ok(Command::Soak(SoakOptions { name: name.map(str::to_owned), seconds }))
        };
        assert_eq!(parsed("soak"), soak(None, DEFAULT_SOAK_SECONDS));
        assert_eq!(parsed("soak --seconds 5 queue"), soak(Some("queue"), 5));
        assert_eq!(parsed("soak plan::work_queue --seconds=7"), soak(Some("plan::work_queue"), 7));
        let fleet =
            |seed: Option<&str>, minutes| Command::SoakFleet { seed: seed.map(str::to_owned), minutes };
        assert_eq!(parsed("soak fleet"), Ok(fleet(None, DEFAULT_FLEET_MINUTES)));
        assert_eq!(parsed("soak fleet --seed 7 --minutes 2"), Ok(fleet(Some("7"), 2)));
        for (line, profile) in [("soak dist", "dist"), ("soak --profile quick dist", "quick")] {
            assert_eq!(parsed(line), Ok(Command::SoakDist { profile: profile.to_owned() }), "{line}");
        }
        assert_eq!(parsed("docs"), Ok(Command::Docs { install: true, serve: false }));
        let served = Command::Docs { install: false, serve: true };
        assert_eq!(parsed("docs --serve --no-install"), Ok(served));
        assert_eq!(parsed("tools --no-install"), Ok(Command::Tools { install: false }));
        assert_eq!(
            parsed("demo --binary=some/zoneward"),
            Ok(Command::Demo { binary: Some("some/zoneward".into()) })
        );
    }

    #[test]
    fn crate_dist_parses_its_own_options_and_help() {
        let words = ["--help".to_owned(), "--target=x".to_owned()];
        assert_eq!(parsed("dist --help --target=x"), Ok(Command::Dist { words: words.to_vec() }));
    }

    #[test]
    fn mistakes_are_usage_errors_that_name_the_word() {
        for (line, word) in [
            ("frobnicate", "`frobnicate`"),
            ("test fmt", "`fmt`"),
            ("test --only fmt,tidy", "`tidy`; the parts are fmt, deny, clippy, doc, site, manifests, test"),
            ("test --extended --only fmt", "the parts are upgrade, ipvs, packages"),
            ("test --only", "--only needs a value"),
            ("test --only=", "--only needs a value"),
            ("test --only ,", "the parts are"),
            ("test --no-install=yes", "`yes`"),
            ("docs --open", "`--open`"),
            ("manifests now", "`now`"),
            ("tools kubectl", "`kubectl`"),
            ("demo now", "`now`"),
            ("demo --binary", "--binary needs a value"),
            ("bench plan again", "`again`"),
            ("bench plan --profile", "--profile"),
            ("soak --seconds 0", "`0`"),
            ("soak --seconds ten", "`ten`"),
            ("soak --seconds", "--seconds"),
            ("soak a/b", "`a/b`"),
            ("soak dist --seconds 5", "`--seconds`"),
            ("soak dist --profile debug", "the profiles are dist, quick, release"),
            ("soak queue --profile quick", "`--profile`"),
        ] {
            assert!(usage(line).contains(word), "{line}: {}", usage(line));
        }
    }
}

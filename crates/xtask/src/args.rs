//! The command line of xtask, parsed by hand: words in, one `Command` out, and a sentence for each mistake.
//! Pure, so that every mistake has a test.

use std::path::PathBuf;

use crate::Stop;
use crate::suite::Part;

/// What the developer asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// The manual: of everything, or of one command.
    Help(Option<Topic>),
    /// Every check that CI makes.
    Test(TestOptions),
    /// What the tests need, installed.
    Tools {
        /// Whether missing tools may be installed.
        install: bool,
    },
    /// The documentation as a site.
    Docs {
        /// Whether mkdocs may be installed.
        install: bool,
        /// Whether the site is served as well.
        serve: bool,
    },
    /// The guided tour of the binary.
    Demo(DemoOptions),
    /// Timings and instruction counts.
    Bench(BenchOptions),
    /// The `soak_` tests, for longer.
    Soak(SoakOptions),
}

/// The commands that have a manual page of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topic {
    /// `cargo xtask test`
    Test,
    /// `cargo xtask docs`
    Docs,
    /// `cargo xtask tools`
    Tools,
    /// `cargo xtask demo`
    Demo,
    /// `cargo xtask bench`
    Bench,
    /// `cargo xtask soak`
    Soak,
}

impl Topic {
    /// Every command, in the order in which help lists them.
    pub(crate) const ALL: [Topic; 6] =
        [Topic::Demo, Topic::Test, Topic::Docs, Topic::Tools, Topic::Bench, Topic::Soak];

    /// The word that the developer types.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Topic::Test => "test",
            Topic::Docs => "docs",
            Topic::Tools => "tools",
            Topic::Demo => "demo",
            Topic::Bench => "bench",
            Topic::Soak => "soak",
        }
    }

    fn from_name(name: &str) -> Option<Topic> {
        Topic::ALL.into_iter().find(|topic| topic.name() == name)
    }
}

/// Options of `cargo xtask test`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TestOptions {
    /// The parts to run; all of them unless `--only` says otherwise.
    pub(crate) parts: Vec<Part>,
    /// Whether missing tools may be installed.
    pub(crate) install: bool,
}

/// Options of `cargo xtask demo`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DemoOptions {
    /// A binary that is there already; without it one is built.
    pub(crate) binary: Option<PathBuf>,
}

/// Options of `cargo xtask bench`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct BenchOptions {
    /// Which bench; without it they are listed.
    pub(crate) name: Option<String>,
    /// The build profile, instead of that of packages.
    pub(crate) profile: Option<String>,
    /// What follows `--`: handed to the bench as it is.
    pub(crate) pass_on: Vec<String>,
}

/// Options of `cargo xtask soak`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SoakOptions {
    /// Only soak tests whose names contain this.
    pub(crate) name: Option<String>,
    /// How long each test may go on.
    pub(crate) seconds: u64,
}

/// Long enough to find what ten seconds in CI do not, short enough to wait for.
pub(crate) const DEFAULT_SOAK_SECONDS: u64 = 60;

/// Reads the words after `cargo xtask`.
pub(crate) fn parse(words: &[String]) -> Result<Command, Stop> {
    let Some((first, rest)) = words.split_first() else {
        return Ok(Command::Help(None));
    };
    if matches!(first.as_str(), "help" | "--help" | "-h") {
        return parse_help(rest);
    }
    let Some(topic) = Topic::from_name(first) else {
        return Err(unknown_command(first));
    };
    let own_words = rest.iter().take_while(|word| *word != "--");
    if own_words.into_iter().any(|word| word == "--help" || word == "-h") {
        return Ok(Command::Help(Some(topic)));
    }
    match topic {
        Topic::Test => parse_test(rest),
        Topic::Docs => parse_docs(rest),
        Topic::Tools => parse_tools(rest),
        Topic::Demo => parse_demo(rest),
        Topic::Bench => parse_bench(rest),
        Topic::Soak => parse_soak(rest),
    }
}

fn parse_help(rest: &[String]) -> Result<Command, Stop> {
    match rest {
        [] => Ok(Command::Help(None)),
        [name] => match Topic::from_name(name) {
            Some(topic) => Ok(Command::Help(Some(topic))),
            None => Err(unknown_command(name)),
        },
        [_, extra, ..] => Err(unexpected("help", extra)),
    }
}

fn parse_test(rest: &[String]) -> Result<Command, Stop> {
    let (mut install, mut extended, mut only) = (true, false, None);
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        match split_option(word) {
            ("--no-install", None) => install = false,
            ("--extended", None) => extended = true,
            ("--only", value) => {
                only = Some(value_of("test", "--only", value, words.next_if_needed(value))?);
            }
            _ => return Err(unexpected("test", word)),
        }
    }
    let parts = if extended { Part::EXTENDED.as_slice() } else { Part::ALL.as_slice() };
    let parts = only.map_or(Ok(parts.to_vec()), |list| parse_parts(parts, &list))?;
    Ok(Command::Test(TestOptions { parts, install }))
}

fn parse_docs(rest: &[String]) -> Result<Command, Stop> {
    let (mut install, mut serve) = (true, false);
    for word in rest {
        match word.as_str() {
            "--no-install" => install = false,
            "--serve" => serve = true,
            _ => return Err(unexpected("docs", word)),
        }
    }
    Ok(Command::Docs { install, serve })
}

fn parse_tools(rest: &[String]) -> Result<Command, Stop> {
    match rest {
        [] => Ok(Command::Tools { install: true }),
        [word] if word == "--no-install" => Ok(Command::Tools { install: false }),
        [word, ..] => Err(unexpected("tools", word)),
    }
}

fn parse_demo(rest: &[String]) -> Result<Command, Stop> {
    let mut options = DemoOptions::default();
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        match split_option(word) {
            ("--binary", value) => {
                let path = value_of("demo", "--binary", value, words.next_if_needed(value))?;
                options.binary = Some(path.into());
            }
            _ => return Err(unexpected("demo", word)),
        }
    }
    Ok(Command::Demo(options))
}

fn parse_bench(rest: &[String]) -> Result<Command, Stop> {
    let mut options = BenchOptions::default();
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        if word == "--" {
            options.pass_on = words.cloned().collect();
            break;
        }
        match split_option(word) {
            ("--profile", value) => {
                let name = value_of("bench", "--profile", value, words.next_if_needed(value))?;
                options.profile = Some(name);
            }
            (name, None) if !name.starts_with('-') && options.name.is_none() => {
                options.name = Some(name.to_string());
            }
            _ => return Err(unexpected("bench", word)),
        }
    }
    Ok(Command::Bench(options))
}

fn parse_soak(rest: &[String]) -> Result<Command, Stop> {
    let mut options = SoakOptions { name: None, seconds: DEFAULT_SOAK_SECONDS };
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        match split_option(word) {
            ("--seconds", value) => {
                let text = value_of("soak", "--seconds", value, words.next_if_needed(value))?;
                options.seconds = parse_seconds(&text)?;
            }
            (name, None) if !name.starts_with('-') && options.name.is_none() => {
                options.name = Some(parse_test_name(name)?);
            }
            _ => return Err(unexpected("soak", word)),
        }
    }
    Ok(Command::Soak(options))
}

/// `--only=fmt` and `--only fmt` mean the same: the value is in this word or is the next one.
fn split_option(word: &str) -> (&str, Option<&str>) {
    match word.split_once('=') {
        Some((name, value)) if name.starts_with("--") => (name, Some(value)),
        _ => (word, None),
    }
}

/// Takes the next word only where the value was not already in the option's own word.
trait NextIfNeeded<'a> {
    fn next_if_needed(&mut self, inline: Option<&str>) -> Option<&'a String>;
}

impl<'a> NextIfNeeded<'a> for std::slice::Iter<'a, String> {
    fn next_if_needed(&mut self, inline: Option<&str>) -> Option<&'a String> {
        if inline.is_some() { None } else { self.next() }
    }
}

fn value_of(
    command: &str,
    option: &str,
    inline: Option<&str>,
    next: Option<&String>,
) -> Result<String, Stop> {
    match inline.or(next.map(String::as_str)) {
        Some(value) if !value.is_empty() => Ok(value.to_string()),
        _ => Err(Stop::Usage(format!("{option} needs a value; see `cargo xtask help {command}`"))),
    }
}

fn parse_parts(all: &[Part], list: &str) -> Result<Vec<Part>, Stop> {
    let mut wanted = Vec::new();
    for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        match all.iter().copied().find(|part| part.name() == name) {
            Some(part) => wanted.push(part),
            None => {
                let known: Vec<&str> = all.iter().map(|part| part.name()).collect();
                return Err(Stop::Usage(format!(
                    "--only: there is no part `{name}`; the parts are {}",
                    known.join(", ")
                )));
            }
        }
    }
    if wanted.is_empty() {
        return Err(Stop::Usage("--only needs at least one part, for example --only fmt,clippy".to_string()));
    }
    // The order of a run does not depend on the order in which its parts were typed.
    Ok(all.iter().copied().filter(|part| wanted.contains(part)).collect())
}

fn parse_seconds(text: &str) -> Result<u64, Stop> {
    match text.parse::<u64>() {
        Ok(seconds) if seconds > 0 => Ok(seconds),
        _ => Err(Stop::Usage(format!("--seconds: `{text}` is not a whole number of seconds above 0"))),
    }
}

/// The name becomes part of a filter expression, so it may only hold what a Rust test's path holds.
fn parse_test_name(name: &str) -> Result<String, Stop> {
    if name.chars().all(|letter| letter.is_alphanumeric() || letter == '_' || letter == ':') {
        return Ok(name.to_string());
    }
    Err(Stop::Usage(format!("soak: `{name}` cannot be part of a test's name; use letters, digits, _ and ::")))
}

fn unexpected(command: &str, word: &str) -> Stop {
    Stop::Usage(format!("{command}: did not expect `{word}`; see `cargo xtask help {command}`"))
}

fn unknown_command(word: &str) -> Stop {
    let known: Vec<&str> = Topic::ALL.iter().map(|topic| topic.name()).collect();
    Stop::Usage(format!(
        "there is no command `{word}`; the commands are {}, help\nSee `cargo xtask help`.",
        known.join(", ")
    ))
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
            other => panic!("`{line}` should be wrong use, was {other:?}"),
        }
    }

    #[test]
    fn no_words_and_help_show_the_manual() {
        for line in ["", "help", "--help", "-h"] {
            assert_eq!(parsed(line), Ok(Command::Help(None)), "{line}");
        }
    }

    #[test]
    fn help_of_a_command_can_be_asked_for_both_ways() {
        assert_eq!(parsed("help soak"), Ok(Command::Help(Some(Topic::Soak))));
        assert_eq!(parsed("soak --help"), Ok(Command::Help(Some(Topic::Soak))));
        assert_eq!(parsed("test --only fmt -h"), Ok(Command::Help(Some(Topic::Test))));
    }

    #[test]
    fn unknown_command_lists_the_known_ones() {
        let why = usage("frobnicate");
        for name in ["frobnicate", "demo", "test", "tools", "bench", "soak", "help"] {
            assert!(why.contains(name), "{why}");
        }
    }

    #[test]
    fn test_runs_every_part_and_installs_by_default() {
        let all = TestOptions { parts: Part::ALL.to_vec(), install: true };
        assert_eq!(parsed("test"), Ok(Command::Test(all)));
    }

    #[test]
    fn only_keeps_the_order_of_the_suite() {
        let expected = TestOptions { parts: vec![Part::Fmt, Part::Clippy], install: false };
        assert_eq!(parsed("test --only clippy,fmt,fmt --no-install"), Ok(Command::Test(expected)));
        let expected = TestOptions { parts: vec![Part::Doc], install: true };
        assert_eq!(parsed("test --only=doc"), Ok(Command::Test(expected)));
    }

    #[test]
    fn extended_has_parts_of_its_own() {
        let expected = TestOptions { parts: Part::EXTENDED.to_vec(), install: true };
        assert_eq!(parsed("test --extended"), Ok(Command::Test(expected)));
        let expected = TestOptions { parts: vec![Part::Guides], install: true };
        assert_eq!(parsed("test --only guides --extended"), Ok(Command::Test(expected)));
        assert!(usage("test --extended --only fmt").contains("guides"));
    }

    #[test]
    fn tools_are_installed_unless_that_is_forbidden() {
        assert_eq!(parsed("tools"), Ok(Command::Tools { install: true }));
        assert_eq!(parsed("tools --no-install"), Ok(Command::Tools { install: false }));
        assert!(usage("tools kubectl").contains("`kubectl`"));
    }

    #[test]
    fn docs_are_built_and_served_on_request() {
        assert_eq!(parsed("docs"), Ok(Command::Docs { install: true, serve: false }));
        assert_eq!(parsed("docs --serve --no-install"), Ok(Command::Docs { install: false, serve: true }));
        assert!(usage("docs --open").contains("`--open`"));
    }

    #[test]
    fn only_names_the_part_that_does_not_exist() {
        let why = usage("test --only fmt,tidy");
        assert!(why.contains("`tidy`") && why.contains("clippy"), "{why}");
    }

    #[test]
    fn only_without_a_part_is_wrong_use() {
        assert!(usage("test --only").contains("needs a value"));
        assert!(usage("test --only=").contains("needs a value"));
        assert!(usage("test --only ,").contains("at least one part"));
    }

    #[test]
    fn extra_words_are_wrong_use() {
        assert!(usage("demo now").contains("`now`"));
        assert!(usage("test fmt").contains("`fmt`"));
        assert!(usage("test --no-install=yes").contains("--no-install=yes"));
        assert!(usage("bench plan again").contains("`again`"));
        assert!(usage("help test soak").contains("`soak`"));
    }

    #[test]
    fn demo_builds_unless_a_binary_is_given() {
        assert_eq!(parsed("demo"), Ok(Command::Demo(DemoOptions::default())));
        let given = DemoOptions { binary: Some("some/zoneward".into()) };
        assert_eq!(parsed("demo --binary=some/zoneward"), Ok(Command::Demo(given)));
        assert!(usage("demo --binary").contains("needs a value"));
    }

    #[test]
    fn bench_hands_everything_after_two_dashes_on() {
        let expected = BenchOptions {
            name: Some("plan".to_string()),
            profile: Some("release".to_string()),
            pass_on: vec!["--help".to_string(), "slices".to_string()],
        };
        assert_eq!(parsed("bench --profile release plan -- --help slices"), Ok(Command::Bench(expected)));
        assert!(usage("bench plan --profile").contains("--profile"));
        assert_eq!(parsed("bench"), Ok(Command::Bench(BenchOptions::default())));
    }

    #[test]
    fn name_and_seconds_of_a_soak_come_in_any_order() {
        let expected = SoakOptions { name: Some("queue".to_string()), seconds: 5 };
        assert_eq!(parsed("soak --seconds 5 queue"), Ok(Command::Soak(expected)));
        let expected = SoakOptions { name: Some("plan::work_queue".to_string()), seconds: 7 };
        assert_eq!(parsed("soak plan::work_queue --seconds=7"), Ok(Command::Soak(expected)));
        let expected = SoakOptions { name: None, seconds: DEFAULT_SOAK_SECONDS };
        assert_eq!(parsed("soak"), Ok(Command::Soak(expected)));
    }

    #[test]
    fn seconds_that_are_no_duration_and_names_that_are_no_test_are_wrong_use() {
        for line in ["soak --seconds 0", "soak --seconds ten", "soak --seconds -1", "soak --seconds"] {
            assert!(usage(line).contains("--seconds"), "{line}");
        }
        assert!(usage("soak a/b").contains("`a/b`"));
    }
}

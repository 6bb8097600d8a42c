//! The manual of xtask, printed by `cargo xtask help`. One page for everything, one per command.
//! Lists that the code owns (parts, benches) are taken from there, so that the manual cannot lie about them.

use crate::args::{DEFAULT_SOAK_SECONDS, Topic};
use crate::bench;
use crate::suite::Part;
use crate::tools;

/// The page for a topic, or the overview.
pub(crate) fn text(topic: Option<Topic>) -> String {
    match topic {
        None => overview(),
        Some(Topic::Demo) => DEMO.to_string(),
        Some(Topic::Test) => test_page(),
        Some(Topic::Docs) => DOCS.to_string(),
        Some(Topic::Tools) => tools_page(),
        Some(Topic::Bench) => format!("{BENCH}\nBENCHES\n{}", bench::rows()),
        Some(Topic::Soak) => soak_page(),
    }
}

fn overview() -> String {
    let commands = Topic::ALL.map(|topic| format!("    {:<8} {}", topic.name(), summary(topic)));
    format!(
        "\
NAME
    cargo xtask - developers' commands of Zoneward

SYNOPSIS
    cargo xtask COMMAND [OPTIONS]
    cargo xtask help [COMMAND]

COMMANDS
{}
    help     this page, or the page of one command

FILES
    target/tools/bin     the tools that tests and benches run; PATH is not searched for them
    .config/nextest.toml time limits of tests, and the profile `soak`
    .ci/run              what CI runs: cargo xtask test, then cargo xtask test --extended

ENVIRONMENT
    CARGO_TARGET_DIR     where builds and tools go, instead of target
    NO_COLOR             no colour, even on a terminal

EXIT STATUS
    0 fine; 1 something failed, the last sentence says what to do; 2 wrong use",
        commands.join("\n")
    )
}

fn summary(topic: Topic) -> &'static str {
    match topic {
        Topic::Demo => "build zoneward and walk through what it can do",
        Topic::Test => "everything that CI checks: format, licences, lints, docs, tests",
        Topic::Docs => "build the documentation site and check its links",
        Topic::Tools => "install what the tests need, and say where it is",
        Topic::Bench => "time and instructions of a bench",
        Topic::Soak => "the long tests, for as long as you like",
    }
}

const DEMO: &str = "\
NAME
    cargo xtask demo - build zoneward and walk through what it can do

SYNOPSIS
    cargo xtask demo [--binary PATH]

DESCRIPTION
    Builds the binary with the profile `quick` as target/quick/zoneward: about 3 minutes on two cores the
    first time, seconds later. Then shows live traffic in a cluster of network namespaces (`zoneward demo`),
    four short looks at the files below examples/, and three commands to copy. Changes nothing on this
    machine. A command that fails does not hide the others; the exit status is then 1.

OPTIONS
    --binary PATH   use this binary and build nothing";

const DOCS: &str = "\
NAME
    cargo xtask docs - build the documentation site and check its links

SYNOPSIS
    cargo xtask docs [--serve] [--no-install]

DESCRIPTION
    Builds a searchable site out of the Markdown pages of the root, docs/, examples/ and deploy/ with mkdocs,
    which is installed below target/tools. Fails if a link or an anchor leads nowhere, or if a page is missing
    from `nav` in mkdocs.yml. Prints the path of the first page. Links to other sites are not followed.

OPTIONS
    --serve           serve the site on http://127.0.0.1:8000; the search needs a web server
    --no-install      fail if mkdocs is missing instead of installing it

FILES
    mkdocs.yml        navigation, theme and checks
    target/site       the site";

fn test_page() -> String {
    let row = |part: &Part| format!("    {:<8} {}", part.name(), part.says());
    let parts: Vec<String> = Part::ALL.iter().map(row).collect();
    let extended: Vec<String> = Part::EXTENDED.iter().map(row).collect();
    format!(
        "\
NAME
    cargo xtask test - everything that CI checks

SYNOPSIS
    cargo xtask test [--extended] [--only PART,...] [--no-install]

DESCRIPTION
    Installs the tools that this machine lacks, then runs the parts below in this order. The first failure
    ends the run and says what to do. The summary lists the seconds of each part, and ends with the closing
    line of the test runner.

PARTS
{}

PARTS OF --extended
{}

OPTIONS
    --extended        the parts that need another build, instead of the others
    --only PART,...   only these parts, in the order above
    --no-install      fail where a tool is missing instead of installing it

EXAMPLES
    cargo xtask test --only fmt,clippy     before a commit
    cargo xtask test                       before a merge",
        parts.join("\n"),
        extended.join("\n")
    )
}

fn tools_page() -> String {
    let rows = tools::TESTS.iter().map(|tool| format!("    {:<13} {}", tool.program, tools::origin(tool)));
    format!(
        "\
NAME
    cargo xtask tools - install what the tests need, and say where it is

SYNOPSIS
    cargo xtask tools [--no-install]

DESCRIPTION
    Each tool gets an entry in target/tools/bin. Tests, benches and xtask run that entry and never search
    PATH, so another version of the same program on this machine does not matter.

TOOLS
{}

OPTIONS
    --no-install      fail where a tool is missing instead of installing it",
        rows.collect::<Vec<_>>().join("\n")
    )
}

const BENCH: &str = "\
NAME
    cargo xtask bench - time and instructions of a bench

SYNOPSIS
    cargo xtask bench
    cargo xtask bench NAME [--profile PROFILE] [-- ARGS]

DESCRIPTION
    Without a name, lists the benches. With one, runs it twice: as it is, for its table of times, and under
    callgrind on a smaller world, for a table of instructions per phase and per endpoint. Instructions hardly
    change from run to run, so they show what a change costs. Valgrind is installed where it is missing
    (Debian, as root). ARGS go to the bench. It is built with the profile of packages, dist, which takes long;
    --profile release or quick measures those builds.

ENVIRONMENT
    ZONEWARD_BENCH_SERVICES   size of the world of the counted run (2000 unless set)
";

fn soak_page() -> String {
    format!(
        "\
NAME
    cargo xtask soak - the long tests, for as long as you like

SYNOPSIS
    cargo xtask soak [NAME] [--seconds N]

DESCRIPTION
    Runs the tests whose names start with soak_ (and contain NAME), optimised and without the time limit
    of ordinary tests. `cargo xtask test` runs the same tests for ten seconds each.

OPTIONS
    --seconds N   how long each test goes on ({DEFAULT_SOAK_SECONDS} unless given); tests see it as
                  ZONEWARD_SOAK_SECONDS"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_synopsis() {
        for topic in Topic::ALL {
            let page = text(Some(topic));
            assert!(page.contains(&format!("    cargo xtask {}", topic.name())), "{page}");
            assert!(overview().contains(summary(topic)));
        }
    }

    #[test]
    fn pages_fit_a_terminal() {
        let pages = Topic::ALL.map(Some).into_iter().chain([None]).map(text);
        for line in pages.collect::<Vec<_>>().join("\n").lines() {
            assert!(line.chars().count() <= 110, "{line}");
        }
    }

    #[test]
    fn test_page_lists_every_part() {
        for part in Part::ALL.into_iter().chain(Part::EXTENDED) {
            assert!(test_page().contains(part.says()), "{}", part.name());
        }
    }
}

//! `cargo xtask soak`: runs the `soak_` tests for longer than the ten seconds of CI, to find rare interleavings.

use crate::args::SoakOptions;
use crate::{Stop, report, shell, tools};

/// Exit code of nextest if no test matches.
const NO_TESTS_TO_RUN: i32 = 4;

pub(crate) fn run(options: &SoakOptions) -> Result<(), Stop> {
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

//! For tests that enter namespaces before they have a second thread: a small test runner in the place of the usual one,
//! which starts with threads. Each test is a process, and so has a kernel's tables and all ports to itself.

use std::process::{Command, ExitCode};

/// A test by its name.
pub type Test = (&'static str, fn());

/// Runs the tests that the command line asks for, as nextest and `cargo test` ask.
pub fn run(tests: &'static [Test]) -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| words.iter().any(|word| word == flag);
    if has("--list") {
        tests.iter().filter(|_| !has("--ignored")).for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let filter = words.iter().find(|word| !word.starts_with('-'));
    let wanted = |name: &str| {
        filter.is_none_or(|f| if has("--exact") { name == f } else { name.contains(f.as_str()) })
    };
    let chosen: Vec<&Test> = tests.iter().filter(|(name, _)| !has("--ignored") && wanted(name)).collect();
    if let ([(_, test)], true) = (chosen.as_slice(), has("--exact")) {
        crate::namespace::enter();
        test();
        return ExitCode::SUCCESS;
    }
    let own = std::env::current_exe().expect("this program has a path");
    let mut all_passed = true;
    for (name, _) in chosen {
        // In a process of its own, and so in fresh namespaces.
        let status = Command::new(&own).args(["--exact", name]).status().expect("this program starts");
        println!("test {name} ... {}", if status.success() { "ok" } else { "FAILED" });
        all_passed &= status.success();
    }
    if all_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

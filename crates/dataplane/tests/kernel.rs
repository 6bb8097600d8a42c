//! Tests on the real kernel, without root: this binary enters a user and a network namespace of its own before it starts
//! a second thread (the kernel asks for that), and runs its tests there. So it brings its own small test runner, which
//! speaks enough of the usual one's language for `cargo test` and for nextest.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

#[path = "kernel/conntrack.rs"]
mod conntrack;
#[path = "sample/conntrack_entries.rs"]
mod flows;
#[path = "kernel/namespace.rs"]
mod namespace;
#[path = "kernel/nftables.rs"]
mod nftables;
#[path = "sample/refusals.rs"]
mod refusals;
#[path = "sample/ruleset.rs"]
mod sample;

use std::process::{Command, ExitCode};

/// A test by name.
type Test = (&'static str, fn());

fn tests() -> Vec<Test> {
    [nftables::TESTS, conntrack::TESTS].concat()
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| words.iter().any(|word| word == flag);
    // No test here is ignored, so whoever asks for the ignored ones gets none.
    let ignored = has("--ignored");
    if has("--list") {
        tests().iter().filter(|_| !ignored).for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let filter = words.iter().find(|word| !word.starts_with('-'));
    let wanted = |name: &str| match filter {
        Some(filter) if has("--exact") => name == filter,
        Some(filter) => name.contains(filter.as_str()),
        None => true,
    };
    let chosen: Vec<Test> = tests().into_iter().filter(|(name, _)| !ignored && wanted(name)).collect();
    match chosen.as_slice() {
        [(_, test)] if has("--exact") => {
            namespace::enter();
            test();
            ExitCode::SUCCESS
        }
        many => run_each(many),
    }
}

/// Each test in a process of its own, and so in fresh namespaces.
fn run_each(tests: &[Test]) -> ExitCode {
    let own = std::env::current_exe().expect("this program has a path");
    let mut failed = Vec::new();
    for (name, _) in tests {
        let status =
            Command::new(&own).args(["--exact", name]).status().expect("this program can be started");
        println!("test {name} ... {}", if status.success() { "ok" } else { "FAILED" });
        if !status.success() {
            failed.push(*name);
        }
    }
    println!("test result: {} passed; {} failed", tests.len() - failed.len(), failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! `zoneward node` as a process of its own, in a network namespace of its own, on the embedded API by its socket.
//!
//! The test process enters user and network namespaces before it has a second thread, so it brings its own small test
//! runner: each test is a process, and so has a kernel's tables to itself.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

#[path = "node_live/cases.rs"]
mod cases;
#[path = "node_live/health.rs"]
mod health;
#[path = "node_live/life.rs"]
mod life;
#[path = "../../dataplane/tests/kernel/namespace.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod namespace;
#[path = "../../dataplane/tests/packetflow/net.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod net;
#[path = "node_live/skew.rs"]
mod skew;
#[path = "node_live/traffic.rs"]
mod traffic;
#[path = "node_live/world.rs"]
mod world;

use std::process::{Command, ExitCode};

type Test = (&'static str, fn());

const TESTS: &[Test] = &[
    ("packets_fare_as_the_cases_say", cases::packets_fare_as_the_cases_say),
    ("endpoints_are_selected_as_the_cases_say", cases::endpoints_are_selected_as_the_cases_say),
    ("health_follows_the_node", health::health_follows_the_node),
    (
        "load_balancers_are_told_how_many_endpoints_are_here",
        health::load_balancers_are_told_how_many_endpoints_are_here,
    ),
    ("metrics_have_the_names_that_dashboards_know", health::metrics_have_the_names_that_dashboards_know),
    ("what_somebody_altered_is_repaired", life::what_somebody_altered_is_repaired),
    ("rules_stay_and_hold_while_the_api_is_away", life::rules_stay_and_hold_while_the_api_is_away),
    (
        "stop_leaves_the_rules_and_a_new_configuration_ends_the_process",
        life::stop_leaves_the_rules_and_a_new_configuration_ends_the_process,
    ),
    (
        "lease_says_what_is_programmed_and_events_say_what_is_odd",
        life::lease_says_what_is_programmed_and_events_say_what_is_odd,
    ),
    ("new_service_cidr_and_new_zone_count_at_once", life::new_service_cidr_and_new_zone_count_at_once),
    ("skew_has_the_six_outcomes", skew::skew_has_the_six_outcomes),
    (
        "pods_are_replaced_one_by_one_without_a_failed_connection",
        traffic::pods_are_replaced_one_by_one_without_a_failed_connection,
    ),
    ("datagrams_follow_when_their_endpoint_goes", traffic::datagrams_follow_when_their_endpoint_goes),
    (
        "soak_killed_at_any_moment_no_connection_is_lost",
        traffic::soak_killed_at_any_moment_no_connection_is_lost,
    ),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| words.iter().any(|word| word == flag);
    if has("--list") {
        TESTS.iter().filter(|_| !has("--ignored")).for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let filter = words.iter().find(|word| !word.starts_with('-'));
    let wanted = |name: &str| {
        filter.is_none_or(|f| if has("--exact") { name == f } else { name.contains(f.as_str()) })
    };
    let chosen: Vec<&Test> = TESTS.iter().filter(|(name, _)| !has("--ignored") && wanted(name)).collect();
    if let ([(_, test)], true) = (chosen.as_slice(), has("--exact")) {
        namespace::enter();
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

//! Real Envoys beside a live API, each test in a network namespace of its own: `zoneward up` or the demo, `zoneward mesh
//! control`, bootstraps as they are printed, and requests that are counted.
//!
//! As a program of its own (`ask ADDRESS COUNT`) it is a client for namespaces that a test cannot enter itself.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

#[path = "envoy_live/capture.rs"]
mod capture;
#[path = "envoy_live/certificates.rs"]
mod certificates;
#[path = "envoy_live/changes.rs"]
mod changes;
#[path = "envoy_live/control.rs"]
mod control;
#[path = "../../xds/tests/envoy/http.rs"]
#[allow(dead_code, reason = "others use the rest of it")]
mod http;
#[path = "../../dataplane/tests/kernel/namespace.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod namespace;
#[path = "envoy_live/ports.rs"]
mod ports;
#[path = "../../xds/tests/envoy/process.rs"]
#[allow(dead_code, reason = "others use the rest of it")]
mod process;
#[path = "envoy_live/restarts.rs"]
mod restarts;
#[path = "../../dataplane/tests/kernel/runner.rs"]
mod runner;
#[path = "mesh_live/world.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod world;
#[path = "envoy_live/zones.rs"]
mod zones;

use std::process::ExitCode;

const TESTS: &[runner::Test] = &[
    (
        "policies_by_kubectl_and_endpoints_reach_a_running_envoy",
        changes::policies_by_kubectl_and_endpoints_reach_a_running_envoy,
    ),
    (
        "a_refusal_is_in_status_metrics_and_notices_and_what_worked_goes_on",
        changes::a_refusal_is_in_status_metrics_and_notices_and_what_worked_goes_on,
    ),
    (
        "mesh_control_begins_anew_and_nothing_fails_or_is_sent_again",
        restarts::mesh_control_begins_anew_and_nothing_fails_or_is_sent_again,
    ),
    (
        "an_envoy_begins_anew_with_everything_once_and_the_other_notices_nothing",
        restarts::an_envoy_begins_anew_with_everything_once_and_the_other_notices_nothing,
    ),
    (
        "an_envoy_hands_its_ports_to_the_next_one_without_a_failed_request",
        restarts::an_envoy_hands_its_ports_to_the_next_one_without_a_failed_request,
    ),
    (
        "connections_that_the_kernel_redirects_find_their_way",
        capture::connections_that_the_kernel_redirects_find_their_way,
    ),
    (
        "a_port_that_an_envoy_cannot_bind_is_in_the_status_of_its_gateway_alone",
        ports::a_port_that_an_envoy_cannot_bind_is_in_the_status_of_its_gateway_alone,
    ),
    (
        "name_and_signatures_choose_one_of_several_certificates",
        certificates::name_and_signatures_choose_one_of_several_certificates,
    ),
    ("envoys_in_the_demos_pods_keep_to_zones", zones::envoys_in_the_demos_pods_keep_to_zones),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [word, address, count] = words.as_slice()
        && word == "ask"
    {
        println!("{}", control::count(address.parse().unwrap(), count.parse().unwrap()));
        return ExitCode::SUCCESS;
    }
    runner::run(TESTS)
}

//! L7 proxies as processes, with real requests, in a network namespace of their own: the examples with `zoneward up`,
//! gateways and sidecars, redirects by the kernel.
//!
//! The test process enters user and network namespaces before it has a second thread, so it brings its own small test
//! runner: each test is a process, and so has all ports and the kernel's tables to itself.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

#[path = "mesh_live/examples.rs"]
mod examples;
#[path = "mesh_live/life.rs"]
mod life;
#[path = "../../dataplane/tests/kernel/namespace.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod namespace;
#[path = "mesh_live/redirect.rs"]
mod redirect;
#[path = "../../dataplane/tests/kernel/runner.rs"]
mod runner;
#[path = "mesh_live/tls.rs"]
mod tls;
#[path = "mesh_live/world.rs"]
mod world;

use std::process::ExitCode;

const TESTS: &[runner::Test] = &[
    ("seed_examples_route_as_they_say", examples::seed_examples_route_as_they_say),
    ("canary_gets_a_tenth", examples::canary_gets_a_tenth),
    ("testers_get_the_next_version", examples::testers_get_the_next_version),
    ("mirror_gets_copies_and_nobody_notices", examples::mirror_gets_copies_and_nobody_notices),
    ("gateway_redirects_rewrites_and_answers", examples::gateway_redirects_rewrites_and_answers),
    ("two_hosts_have_their_own_certificates", tls::two_hosts_have_their_own_certificates),
    ("new_certificate_is_used_at_once", tls::new_certificate_is_used_at_once),
    (
        "gateways_come_and_go_and_a_killed_proxy_comes_back",
        life::gateways_come_and_go_and_a_killed_proxy_comes_back,
    ),
    ("requests_under_way_are_answered_after_the_stop", life::requests_under_way_are_answered_after_the_stop),
    (
        "files_are_obeyed_and_read_again_when_they_change",
        life::files_are_obeyed_and_read_again_when_they_change,
    ),
    (
        "routes_and_endpoints_change_without_a_failed_request",
        life::routes_and_endpoints_change_without_a_failed_request,
    ),
    ("zones_are_kept_and_counted", life::zones_are_kept_and_counted),
    (
        "kernel_sends_connections_to_services_into_the_sidecar",
        redirect::kernel_sends_connections_to_services_into_the_sidecar,
    ),
    (
        "sidecars_own_connections_are_left_alone_by_their_mark",
        redirect::sidecars_own_connections_are_left_alone_by_their_mark,
    ),
    ("exports_of_spans_make_no_spans", redirect::exports_of_spans_make_no_spans),
    ("cleanup_removes_what_a_killed_sidecar_left", redirect::cleanup_removes_what_a_killed_sidecar_left),
];

fn main() -> ExitCode {
    runner::run(TESTS)
}

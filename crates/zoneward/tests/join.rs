//! Several machines without Kubernetes: machines of namespaces with a router between them, `zoneward up` in the first and
//! `zoneward join` in the others. The test process enters namespaces before it has a second thread, so it brings its own
//! small test runner.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

#[path = "join/boxes.rs"]
mod boxes;
#[path = "join/joined.rs"]
mod joined;
#[path = "join/killed.rs"]
mod killed;
#[path = "join/ledger.rs"]
mod ledger;
#[path = "../../dataplane/tests/kernel/namespace.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod namespace;
#[path = "../../dataplane/tests/packetflow/net.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod net;
#[path = "join/proxies.rs"]
mod proxies;
#[path = "join/refused.rs"]
mod refused;
#[path = "join/renewal.rs"]
mod renewal;
#[path = "../../dataplane/tests/kernel/runner.rs"]
mod runner;
#[path = "join/snapshot.rs"]
mod snapshot;
#[path = "join/without_api.rs"]
mod without_api;

use std::process::ExitCode;

const TESTS: &[runner::Test] = &[
    (
        "three_machines_join_and_connect_until_a_node_is_deleted",
        joined::three_machines_join_and_connect_until_a_node_is_deleted,
    ),
    ("joined_machine_writes_its_own_objects_alone", joined::joined_machine_writes_its_own_objects_alone),
    (
        "joined_machine_serves_while_the_api_is_away_and_after_its_restart",
        joined::joined_machine_serves_while_the_api_is_away_and_after_its_restart,
    ),
    (
        "joined_machine_checks_its_processes_and_serves_names",
        joined::joined_machine_checks_its_processes_and_serves_names,
    ),
    ("credential_is_renewed_while_the_machine_runs", renewal::credential_is_renewed_while_the_machine_runs),
    (
        "joined_machine_reports_its_traffic_until_its_node_is_deleted",
        ledger::joined_machine_reports_its_traffic_until_its_node_is_deleted,
    ),
    (
        "rules_that_are_newer_than_the_snapshot_stay_while_the_api_is_away",
        snapshot::rules_that_are_newer_than_the_snapshot_stay_while_the_api_is_away,
    ),
    ("machine_notices_that_the_api_lost_its_power", killed::machine_notices_that_the_api_lost_its_power),
    (
        "soak_machines_are_killed_and_the_api_is_away_no_connection_fails",
        killed::soak_machines_are_killed_and_the_api_is_away_no_connection_fails,
    ),
    ("joined_machine_runs_gateways_and_sidecars", proxies::joined_machine_runs_gateways_and_sidecars),
    ("joined_machine_says_how_old_its_objects_are", without_api::joined_machine_says_how_old_its_objects_are),
    ("wrong_used_and_expired_tokens_are_refused", refused::wrong_used_and_expired_tokens_are_refused),
    ("another_authority_is_refused", refused::another_authority_is_refused),
];

fn main() -> ExitCode {
    runner::run(TESTS)
}

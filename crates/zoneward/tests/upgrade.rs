//! Versions side by side. `fixtures/VERSION` holds what a version wrote: the objects of its controller and node proxy,
//! its nftables rules, and its store as `kill -9` left it. The program of this build reads all of it, in both orders of
//! an upgrade, and writes what those versions need to read.
//!
//! `UPDATE_FIXTURES=1 cargo nextest run -p zoneward --test upgrade older_version_reads_what_this_one_writes` writes the
//! folder of this version anew: at each release, never for a version that is out. `FIXTURE_PROGRAM` and `FIXTURE_NAME`
//! make the folder of another build.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

#[path = "../../dataplane/tests/kernel/namespace.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod namespace;
#[path = "upgrade/objects.rs"]
mod objects;
#[path = "upgrade/orders.rs"]
mod orders;
#[path = "../../dataplane/tests/kernel/runner.rs"]
mod runner;
#[path = "upgrade/stores.rs"]
mod stores;
#[path = "upgrade/world.rs"]
mod world;

use std::process::ExitCode;

const TESTS: &[runner::Test] = &[
    ("nodes_first_then_the_controller", orders::nodes_first_then_the_controller),
    ("controller_first_then_the_nodes", orders::controller_first_then_the_nodes),
    ("older_version_reads_what_this_one_writes", orders::older_version_reads_what_this_one_writes),
    ("older_store_is_migrated_after_a_backup", stores::older_store_is_migrated_after_a_backup),
    ("older_data_gets_roles_and_keeps_its_users", stores::older_data_gets_roles_and_keeps_its_users),
    ("way_back_is_the_backup", stores::way_back_is_the_backup),
    ("newer_store_is_refused_by_name_and_untouched", stores::newer_store_is_refused_by_name_and_untouched),
    ("migration_survives_kill_at_any_moment", stores::migration_survives_kill_at_any_moment),
];

fn main() -> ExitCode {
    runner::run(TESTS)
}

//! The rendered program on the real kernel: it loads, reads back equal, nft lists it, and the packets of the
//! packet-flow cases, sent for real between namespaces, fare as expected.
//!
//! The process enters its own user and network namespaces before it has a second thread, so it brings its own
//! small test runner.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

#[path = "packetflow/addresses.rs"]
mod addresses;
#[path = "packetflow/any_backend.rs"]
mod any_backend;
#[path = "packetflow/associations.rs"]
mod associations;
#[path = "packetflow/backend.rs"]
mod backend;
#[path = "packetflow/case.rs"]
mod case;
#[path = "packetflow/churn.rs"]
mod churn;
#[path = "packetflow/classes.rs"]
mod classes;
#[path = "packetflow/cluster.rs"]
mod cluster;
#[path = "packetflow/connect.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod connect;
#[path = "packetflow/counts.rs"]
mod counts;
#[path = "packetflow/large.rs"]
mod large;
#[path = "kernel/namespace.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod namespace;
#[path = "packetflow/net.rs"]
mod net;
#[path = "packetflow/node.rs"]
mod node;
#[path = "packetflow/random.rs"]
mod random;
#[path = "kernel/runner.rs"]
mod runner;
#[path = "packetflow/sctp.rs"]
mod sctp;
#[path = "packetflow/site.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod site;
#[path = "packetflow/traffic.rs"]
mod traffic;
#[path = "packetflow/trouble.rs"]
mod trouble;
#[path = "packetflow/world.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod world;

use std::process::ExitCode;

use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::apply::{apply, initial_load_groups, load, read, read_and_compare};
use dataplane::nftables::diff::diff;
use dataplane::nftables::ir::Ruleset;
use dataplane::nftables::render::{Renderer, table_id};
use model::Family;

const TESTS: &[runner::Test] = &[
    ("kernel_takes_every_program_and_gives_it_back", kernel_takes_every_program_and_gives_it_back),
    (
        "backend_loads_changes_repairs_traces_and_cleans_up",
        backend_loads_changes_repairs_traces_and_cleans_up,
    ),
    ("nft_lists_everything_in_words_of_services", nft_lists_everything_in_words_of_services),
    ("packets_sent_for_real_fare_as_the_cases_say", packets_sent_for_real_fare_as_the_cases_say),
    (
        "packets_of_random_clusters_fare_as_the_table_decides",
        random::packets_of_random_clusters_fare_as_the_table_decides,
    ),
    (
        "clients_with_affinity_keep_their_endpoint_until_it_goes",
        random::clients_with_affinity_keep_their_endpoint_until_it_goes,
    ),
    (
        "forged_sources_take_the_share_of_their_service_alone",
        random::forged_sources_take_the_share_of_their_service_alone,
    ),
    (
        "associations_of_sctp_are_sent_to_every_endpoint_and_answered",
        associations::associations_of_sctp_are_sent_to_every_endpoint_and_answered,
    ),
    (
        "connections_are_counted_by_frontend_and_endpoint",
        counts::connections_are_counted_by_frontend_and_endpoint,
    ),
    ("sctp_that_nobody_serves_is_refused", associations::sctp_that_nobody_serves_is_refused),
    (
        "changes_one_by_one_leave_the_kernel_as_a_fresh_start_would",
        churn::changes_one_by_one_leave_the_kernel_as_a_fresh_start_would,
    ),
    ("classes_made_ready_fit_into_their_map", classes::classes_made_ready_fit_into_their_map),
    (
        "resync_of_thousands_of_services_goes_in_parts_that_leave_each_whole",
        large::resync_of_thousands_of_services_goes_in_parts_that_leave_each_whole,
    ),
    (
        "service_of_thousands_of_endpoints_changes_in_steps",
        large::service_of_thousands_of_endpoints_changes_in_steps,
    ),
    (
        "soak_changes_and_faults_leave_the_kernel_as_a_fresh_start_would",
        churn::soak_changes_and_faults_leave_the_kernel_as_a_fresh_start_would,
    ),
];

fn main() -> ExitCode {
    runner::run(TESTS)
}

fn backend_loads_changes_repairs_traces_and_cleans_up() {
    backend::backend_loads_changes_repairs_traces_and_cleans_up(NetlinkSocket::open().unwrap());
}

fn packets_sent_for_real_fare_as_the_cases_say() {
    let mut kernel = NetlinkSocket::open().unwrap();
    let mut before = Ruleset::default();
    traffic::packets_fare_as_the_cases_say(40, |scenario| {
        let (_, program) = Renderer::start(&scenario.table);
        if before.tables.is_empty() {
            load(&mut kernel, initial_load_groups(&program)).unwrap();
        } else {
            let difference = diff(&before, &program);
            apply(&mut kernel, &difference.now).unwrap();
            apply(&mut kernel, &difference.later).unwrap();
        }
        before = program;
    });
}

fn held(kernel: &mut NetlinkSocket) -> Ruleset {
    let (program, problems) = read(kernel, &[table_id(Family::V4), table_id(Family::V6)]).unwrap();
    assert_eq!(problems, []);
    program
}

fn assert_same(id: &str, held: &Ruleset, wanted: &Ruleset) {
    for (table, content) in &wanted.tables {
        let other = &held.tables[table];
        for (name, chain) in &content.chains {
            assert_eq!(other.chains.get(name), Some(chain), "{id}: {table} {name}");
        }
        for (name, set) in &content.sets {
            assert_eq!(other.sets.get(name), Some(set), "{id}: {table} {name}");
        }
    }
    assert!(held == wanted, "{id}: there is more than was sent");
}

fn kernel_takes_every_program_and_gives_it_back() {
    let mut kernel = NetlinkSocket::open().unwrap();
    let mut before = Ruleset::default();
    for (i, scenario) in case::scenarios().iter().enumerate() {
        let (_, program) = Renderer::start(&scenario.table);
        if i == 0 {
            load(&mut kernel, initial_load_groups(&program)).unwrap();
        } else {
            let difference = diff(&before, &program);
            apply(&mut kernel, &difference.now).unwrap();
            apply(&mut kernel, &difference.later).unwrap();
        }
        before = held(&mut kernel);
        assert_same(&scenario.id, &before, &program);
        assert!(diff(&before, &program).is_empty());
        let ours = [table_id(Family::V4), table_id(Family::V6)];
        let beside = read_and_compare(&mut kernel, &ours, &mut || program.clone().into()).unwrap();
        assert!(diff(&beside.held, &beside.wanted).is_empty(), "{}", scenario.id);
        let sets = [&beside.held, &beside.wanted]
            .into_iter()
            .flat_map(|p| p.tables.values())
            .flat_map(|t| t.sets.values());
        let plain = sets.filter(|set| set.spec.ranges() == dataplane::nftables::ir::IntervalEncoding::None);
        assert_eq!(plain.map(|set| set.elements.len()).sum::<usize>(), 0, "{}: all is the same", scenario.id);
    }
}

fn nft_lists_everything_in_words_of_services() {
    let mut kernel = NetlinkSocket::open().unwrap();
    let scenarios = case::scenarios();
    let scenario =
        scenarios.iter().find(|s| s.id.contains("masquerade")).expect("a case with three Services");
    load(&mut kernel, initial_load_groups(&Renderer::start(&scenario.table).1)).unwrap();
    let listing = namespace::run("nft", &["list", "ruleset"]);
    if std::env::var_os("ZONEWARD_SHOW").is_some() {
        println!("{listing}");
    }
    for words in
        ["ns1/svc1:p80", "ns2/svc2:p80", "masquerade fully-random", "map @endpoints-1k", "vmap @verdicts-1k"]
    {
        assert!(listing.contains(words), "{words} is missing in:\n{listing}");
    }
}

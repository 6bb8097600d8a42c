//! Mode iptables on the real kernel, in both flavours: the rules load, read back equal, change and go, and packets sent
//! for real between namespaces fare as the packet-flow cases say.
//!
//! The process enters its own user and network namespaces before it has a second thread, so it brings its own small test
//! runner.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

#[path = "packetflow/any_backend.rs"]
mod any_backend;
#[path = "packetflow/case.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod case;
#[path = "packetflow/connect.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod connect;
#[path = "packetflow/iptables_backend.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod iptables_backend;
#[path = "packetflow/iptables_programs.rs"]
mod iptables_programs;
#[path = "packetflow/iptables_traffic.rs"]
mod iptables_traffic;
#[path = "kernel/namespace.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod namespace;
#[path = "packetflow/net.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod net;
#[path = "kernel/runner.rs"]
mod runner;
#[path = "packetflow/sctp.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod sctp;

use std::process::ExitCode;

use dataplane::iptables::commands::IptablesFlavour::{Legacy, Nft};

const TESTS: &[runner::Test] = &[
    ("nft_loads_changes_repairs_traces_and_cleans_up", || {
        iptables_backend::loads_changes_repairs_traces_and_cleans_up(iptables_traffic::programs(Nft));
    }),
    ("legacy_loads_changes_repairs_traces_and_cleans_up", || {
        iptables_backend::loads_changes_repairs_traces_and_cleans_up(iptables_traffic::programs(Legacy));
    }),
    ("packets_sent_for_real_fare_as_the_cases_say_with_nft", || {
        iptables_traffic::packets_sent_for_real_fare_as_the_cases_say(Nft);
    }),
    ("packets_sent_for_real_fare_as_the_cases_say_with_legacy", || {
        iptables_traffic::packets_sent_for_real_fare_as_the_cases_say(Legacy);
    }),
    ("the_flavour_is_that_of_the_kubelet", iptables_programs::the_flavour_is_that_of_the_kubelet),
    ("a_held_lock_is_waited_for", iptables_programs::a_held_lock_is_waited_for),
];

fn main() -> ExitCode {
    runner::run(TESTS)
}

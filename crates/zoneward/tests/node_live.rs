//! `zoneward node` as a process of its own, in a network namespace of its own, on the embedded API by its socket.
//!
//! The test process enters user and network namespaces before it has a second thread, so it brings its own small test
//! runner: each test is a process, and so has a kernel's tables to itself.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

#[path = "../../dataplane/tests/packetflow/addresses.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod addresses;
#[path = "node_live/cases.rs"]
mod cases;
#[path = "../../dataplane/tests/packetflow/connect.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod connect;
#[path = "node_live/features.rs"]
mod features;
#[path = "node_live/health.rs"]
mod health;
#[path = "node_live/iptables.rs"]
mod iptables;
#[path = "node_live/killed.rs"]
mod killed;
#[path = "node_live/life.rs"]
mod life;
#[path = "node_live/live.rs"]
mod live;
#[path = "node_live/localhost.rs"]
mod localhost;
#[path = "../../dataplane/tests/kernel/namespace.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod namespace;
#[path = "../../dataplane/tests/packetflow/net.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod net;
#[path = "node_live/place.rs"]
mod place;
#[path = "../../dataplane/tests/kernel/runner.rs"]
mod runner;
#[path = "../../dataplane/tests/packetflow/sctp.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod sctp;
#[path = "../../dataplane/tests/packetflow/site.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod site;
#[path = "node_live/skew.rs"]
mod skew;
#[path = "node_live/subset.rs"]
mod subset;
#[path = "node_live/tenants.rs"]
mod tenants;
#[path = "node_live/traffic.rs"]
mod traffic;
#[path = "node_live/world.rs"]
mod world;
#[path = "node_live/zones.rs"]
mod zones;

use std::process::ExitCode;

const TESTS: &[runner::Test] = &[
    ("packets_fare_as_the_cases_say", cases::packets_fare_as_the_cases_say),
    ("endpoints_are_selected_as_the_cases_say", cases::endpoints_are_selected_as_the_cases_say),
    ("health_follows_the_node", health::health_follows_the_node),
    ("modes_change_with_a_connection_open", iptables::modes_change_with_a_connection_open),
    (
        "load_balancers_are_told_how_many_endpoints_are_here",
        health::load_balancers_are_told_how_many_endpoints_are_here,
    ),
    (
        "health_check_ports_count_each_family_for_itself",
        health::health_check_ports_count_each_family_for_itself,
    ),
    ("metrics_have_the_names_that_dashboards_know", health::metrics_have_the_names_that_dashboards_know),
    ("what_somebody_altered_is_repaired", life::what_somebody_altered_is_repaired),
    ("rules_stay_and_hold_while_the_api_is_away", life::rules_stay_and_hold_while_the_api_is_away),
    (
        "rebooted_node_reaches_the_api_at_its_real_address",
        life::rebooted_node_reaches_the_api_at_its_real_address,
    ),
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
        "cluster_ips_are_served_and_what_is_no_service_is_refused_or_dropped",
        features::cluster_ips_are_served_and_what_is_no_service_is_refused_or_dropped,
    ),
    ("pod_reaches_itself_through_its_service", features::pod_reaches_itself_through_its_service),
    (
        "clients_stay_with_their_endpoint_for_as_long_as_they_were_told",
        features::clients_stay_with_their_endpoint_for_as_long_as_they_were_told,
    ),
    (
        "node_ports_are_served_where_they_are_asked_for",
        features::node_ports_are_served_where_they_are_asked_for,
    ),
    (
        "external_ips_and_load_balancers_are_served_to_whom_they_are_for",
        features::external_ips_and_load_balancers_are_served_to_whom_they_are_for,
    ),
    (
        "external_traffic_policy_local_keeps_the_client_and_the_node",
        features::external_traffic_policy_local_keeps_the_client_and_the_node,
    ),
    (
        "internal_traffic_policy_local_stays_on_the_node",
        features::internal_traffic_policy_local_stays_on_the_node,
    ),
    (
        "terminating_endpoints_are_used_when_no_other_is_left",
        features::terminating_endpoints_are_used_when_no_other_is_left,
    ),
    ("pods_are_told_by_interface_bridge_or_range", features::pods_are_told_by_interface_bridge_or_range),
    ("node_range_is_waited_for", features::node_range_is_waited_for),
    ("node_ports_on_localhost_follow_their_service", localhost::node_ports_on_localhost_follow_their_service),
    (
        "connections_through_localhost_are_counted_and_ports_in_use_are_told",
        localhost::connections_through_localhost_are_counted_and_ports_in_use_are_told,
    ),
    (
        "trace_of_the_live_kernel_answers_as_the_files_do",
        live::trace_of_the_live_kernel_answers_as_the_files_do,
    ),
    (
        "live_commands_go_by_the_running_nodes_configuration",
        live::live_commands_go_by_the_running_nodes_configuration,
    ),
    (
        "requirement_ends_with_the_service_that_asked_for_it",
        life::requirement_ends_with_the_service_that_asked_for_it,
    ),
    (
        "external_ips_of_an_older_service_take_no_cluster_ip_or_node_port",
        tenants::external_ips_of_an_older_service_take_no_cluster_ip_or_node_port,
    ),
    (
        "load_balancer_ips_of_an_older_service_take_no_cluster_ip_or_node_port",
        tenants::load_balancer_ips_of_an_older_service_take_no_cluster_ip_or_node_port,
    ),
    (
        "ports_of_the_machine_and_loopback_endpoints_are_refused",
        tenants::ports_of_the_machine_and_loopback_endpoints_are_refused,
    ),
    (
        "connections_and_bytes_are_counted_by_how_far_they_go",
        traffic::connections_and_bytes_are_counted_by_how_far_they_go,
    ),
    ("capacity_and_slow_start_weigh_connections", zones::capacity_and_slow_start_weigh_connections),
    (
        "drained_zone_gets_no_connections_until_the_drain_ends",
        zones::drained_zone_gets_no_connections_until_the_drain_ends,
    ),
    (
        "prefer_close_stays_in_the_zone_and_blackholes_nobody",
        zones::prefer_close_stays_in_the_zone_and_blackholes_nobody,
    ),
    (
        "prefer_same_node_goes_to_the_node_then_the_zone_then_anywhere",
        zones::prefer_same_node_goes_to_the_node_then_the_zone_then_anywhere,
    ),
    (
        "require_and_prefer_are_reachable_from_each_zone_as_they_promise",
        zones::require_and_prefer_are_reachable_from_each_zone_as_they_promise,
    ),
    (
        "aggressive_rolling_update_under_prefer_fails_nobody_and_ends_as_expected",
        zones::aggressive_rolling_update_under_prefer_fails_nobody_and_ends_as_expected,
    ),
    (
        "node_receives_its_zone_and_falls_back_on_the_reserve",
        subset::node_receives_its_zone_and_falls_back_on_the_reserve,
    ),
    (
        "labels_come_and_go_under_load_and_no_connection_is_lost",
        subset::labels_come_and_go_under_load_and_no_connection_is_lost,
    ),
    (
        "soak_killed_at_any_moment_no_connection_is_lost",
        killed::soak_killed_at_any_moment_no_connection_is_lost,
    ),
];

fn main() -> ExitCode {
    runner::run(TESTS)
}

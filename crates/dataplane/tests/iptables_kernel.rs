//! Mode iptables on the real kernel, in both flavours: the rules load, read back equal, change and go, and packets sent
//! for real between namespaces fare as the packet-flow cases say.

mod iptables_programs;
mod iptables_traffic;

use crate::packetflow::iptables_backend;
use dataplane::iptables::commands::IptablesFlavour::{Legacy, Nft};

#[test]
fn nft_loads_changes_repairs_traces_and_cleans_up() {
    toolbox::in_own_namespaces!();
    iptables_backend::loads_changes_repairs_traces_and_cleans_up(iptables_traffic::programs(Nft));
}

#[test]
fn legacy_loads_changes_repairs_traces_and_cleans_up() {
    toolbox::in_own_namespaces!();
    iptables_backend::loads_changes_repairs_traces_and_cleans_up(iptables_traffic::programs(Legacy));
}

#[test]
fn packets_sent_for_real_fare_as_the_cases_say_with_nft() {
    toolbox::in_own_namespaces!();
    iptables_traffic::packets_sent_for_real_fare_as_the_cases_say(Nft);
}

#[test]
fn packets_sent_for_real_fare_as_the_cases_say_with_legacy() {
    toolbox::in_own_namespaces!();
    iptables_traffic::packets_sent_for_real_fare_as_the_cases_say(Legacy);
}

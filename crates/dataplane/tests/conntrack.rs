//! Which flows a pass deletes, by the shared cases and with a kernel that is disturbed, old or both.

use crate::flows;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use dataplane::conntrack::{
    ConntrackEntry, DumpFault, FakeConntrack, StaleCleanup, delete_stale_udp, is_stale,
};
use model::forward::UdpService;

fn node() -> Vec<IpAddr> {
    vec![[192, 168, 0, 2].into()]
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn flow(client: u16, dst: &str, reply_src: &str) -> ConntrackEntry {
    let src = SocketAddr::new(
        if dst.starts_with('[') { "fd00::9".parse().unwrap() } else { [10, 9, 9, 9].into() },
        client,
    );
    ConntrackEntry {
        protocol: 17,
        src,
        dst: address(dst),
        reply_src: address(reply_src),
        reply_dst: src,
        id: None,
    }
}

fn table(flows: impl IntoIterator<Item = ConntrackEntry>) -> FakeConntrack {
    FakeConntrack { entries: flows.into_iter().collect(), ..FakeConntrack::default() }
}

#[test]
fn every_flow_of_the_cases_is_deleted_or_kept_as_they_say() {
    for case in flows::cases() {
        for (flow, deleted) in &case.entries {
            assert_eq!(is_stale(&case.service, &node(), flow), *deleted, "{} {flow:?}", case.id);
            assert_eq!(is_stale(&case.service, &[], flow), *deleted, "{} {flow:?}", case.id);
        }
    }
}

#[test]
fn pass_leaves_exactly_the_flows_that_the_cases_keep() {
    for case in flows::cases() {
        let kept: BTreeSet<ConntrackEntry> =
            case.entries.iter().filter(|(_, deleted)| !deleted).map(|(flow, _)| flow.clone()).collect();
        for old in [false, true] {
            let mut conntrack = table(case.entries.iter().map(|(flow, _)| flow.clone()));
            conntrack.old = old;
            let cleaned =
                delete_stale_udp(&mut conntrack, std::slice::from_ref(&case.service), &node()).unwrap();
            assert!(conntrack.entries == kept, "{}", case.id);
            assert_eq!(cleaned.deleted, case.entries.len() - kept.len(), "{}", case.id);
        }
    }
}

fn dns(serving: &[&str]) -> UdpService {
    UdpService {
        frontends: [address("172.30.0.10:53"), address("[fd00:30::10]:53")].into(),
        node_port: Some(30_053),
        serving: serving.iter().map(|text| address(text)).collect(),
    }
}

fn of_dns() -> [ConntrackEntry; 5] {
    [
        flow(1, "172.30.0.10:53", "10.1.0.1:5353"),
        flow(2, "172.30.0.10:54", "10.1.0.1:5353"),
        flow(3, "[fd00:30::10]:53", "[fd00:10::1]:5353"),
        flow(4, "192.168.0.2:30053", "10.1.0.9:5353"),
        flow(5, "8.8.8.8:30053", "8.8.8.8:30053"),
    ]
}

#[test]
fn frontend_without_serving_endpoint_is_cleaned_within_the_kernel_and_node_ports_are_left() {
    let mut conntrack = table(of_dns());
    let cleaned = delete_stale_udp(&mut conntrack, &[dns(&[])], &node()).unwrap();
    // One frontend of each family, and no flow was looked at.
    assert_eq!(cleaned, StaleCleanup { matched: 2, ..StaleCleanup::default() });
    let [_, other_port, _, node_port, foreign] = of_dns();
    assert!(conntrack.entries == [other_port, node_port, foreign].into());
}

#[test]
fn family_without_serving_endpoint_is_cleaned_though_the_other_has_some() {
    let mut conntrack = table(of_dns());
    delete_stale_udp(&mut conntrack, &[dns(&["10.1.0.1:5353"])], &node()).unwrap();
    let [served, other_port, _, _, foreign] = of_dns();
    assert!(conntrack.entries == [served, other_port, foreign].into());
}

#[test]
fn flow_through_the_node_to_the_same_port_elsewhere_is_none_of_ours() {
    let service = dns(&["10.1.0.1:5353"]);
    let [.., node_port, foreign] = of_dns();
    assert!(is_stale(&service, &node(), &node_port));
    assert!(!is_stale(&service, &node(), &foreign));
    assert!(
        is_stale(&service, &[], &foreign),
        "without the node's addresses the port decides (semantics D7)"
    );
}

#[test]
fn disturbed_dumps_are_repeated_and_given_up_with_a_partial_result() {
    let service = UdpService { node_port: None, ..dns(&["10.1.0.2:5353"]) };
    let flows: Vec<ConntrackEntry> =
        (1..=10).map(|client| flow(client, "172.30.0.10:53", "10.1.0.1:5353")).collect();
    for fault in [DumpFault::Half, DumpFault::Interrupted, DumpFault::Lost] {
        let mut conntrack = table(flows.clone());
        conntrack.faults = [fault; 3].into();
        let cleaned = delete_stale_udp(&mut conntrack, std::slice::from_ref(&service), &node()).unwrap();
        assert!(conntrack.entries.is_empty() && !cleaned.partial, "{fault:?}");
    }
    let mut conntrack = table(flows);
    conntrack.faults = [DumpFault::Half; 5].into();
    let cleaned = delete_stale_udp(&mut conntrack, std::slice::from_ref(&service), &node()).unwrap();
    assert!(cleaned.partial);
    assert_eq!((cleaned.deleted, conntrack.entries.len()), (5, 5), "the next pass finds the rest");
}

#[test]
fn many_frontends_are_asked_for_in_one_walk() {
    let services: Vec<UdpService> = (0..100u8)
        .map(|number| UdpService {
            frontends: [SocketAddr::new([172, 30, 1, number].into(), 53)].into(),
            node_port: None,
            serving: [address("10.1.0.1:53")].into(),
        })
        .collect();
    let flows =
        (0..100u8).map(|number| flow(u16::from(number), &format!("172.30.1.{number}:53"), "10.1.0.2:53"));
    let mut conntrack = table(flows.chain([flow(900, "8.8.8.8:53", "8.8.8.8:53")]));
    let cleaned = delete_stale_udp(&mut conntrack, &services, &node()).unwrap();
    assert_eq!(cleaned, StaleCleanup { seen: 101, deleted: 100, ..StaleCleanup::default() });
    assert_eq!(conntrack.entries.len(), 1);
}

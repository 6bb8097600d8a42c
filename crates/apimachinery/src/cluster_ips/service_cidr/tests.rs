//! Tests of ServiceCIDRs: deletion protection, lifecycle, the default one.

use super::*;
use crate::cluster_ips::tests::{ip, ip_address, service_cidr};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_seconds(seconds)
}

fn blocked(cidr: &ServiceCidr, all: &[&ServiceCidr], ips: &[&IpAddress]) -> bool {
    blocking_address(cidr, all, ips).is_some()
}

fn deleting(mut cidr: ServiceCidr, since: i64) -> ServiceCidr {
    cidr.deleting = Some(at(since));
    cidr.has_finalizer = true;
    cidr
}

#[test]
fn only_addresses_that_would_be_lost_protect_a_range() {
    let cidr = service_cidr("a", &["192.168.0.0/24"]);
    let mut foreign = ip_address("192.168.0.9", "web", 0);
    foreign.managed_by = Some("example.com".into());
    for unimportant in [ip_address("192.168.0.255", "web", 0), ip_address("10.0.0.1", "web", 0), foreign] {
        assert!(!blocked(&cidr, &[&cidr], &[&unimportant]), "{unimportant:?}");
    }
    let held = ip_address("192.168.0.9", "web", 0);
    assert_eq!(blocking_address(&cidr, &[&cidr], &[&held]), Some(ip("192.168.0.9")));
    let half = service_cidr("half", &["192.168.0.0/28"]);
    assert!(!blocked(&cidr, &[&cidr, &half], &[&held]));
    assert!(blocked(&cidr, &[&cidr, &half], &[&ip_address("192.168.0.15", "web", 0)]));
}

#[test]
fn two_ranges_that_cover_each_other_do_not_both_go() {
    let (a, b) =
        (deleting(service_cidr("a", &["10.0.0.0/24"]), 0), deleting(service_cidr("b", &["10.0.0.0/24"]), 0));
    let held = ip_address("10.0.0.9", "web", 0);
    assert!(blocked(&a, &[&a, &b], &[&held]) && blocked(&b, &[&a, &b], &[&held]));
    assert!(!blocked(&a, &[&a, &b], &[]));
}

#[test]
fn a_live_range_gets_its_finalizer_and_its_condition_once() {
    let mut cidr = service_cidr("a", &["10.0.0.0/24"]);
    let sync = |cidr: &ServiceCidr| sync_service_cidr(cidr, &[cidr], &[], at(0));
    assert_eq!(sync(&cidr), [CidrAction::AddFinalizer, CidrAction::SetReady]);
    cidr.has_finalizer = true;
    cidr.ready = Some(false);
    assert_eq!(sync(&cidr), [CidrAction::SetReady]);
    cidr.ready = Some(true);
    assert_eq!(sync(&cidr), []);
}

// Pitfall 43.
#[test]
fn a_range_goes_ten_seconds_after_its_deletion_began() {
    let cidr = deleting(service_cidr("a", &["10.0.0.0/24"]), 100);
    let sync = |now| sync_service_cidr(&cidr, &[&cidr], &[], at(now));
    assert_eq!(sync(100), [CidrAction::Wait(10)]);
    assert_eq!(sync(109), [CidrAction::Wait(1)]);
    assert_eq!(sync(110), [CidrAction::RemoveFinalizer]);
    assert_eq!(sync(50), [CidrAction::Wait(10)], "the clock went back");
    let mut bare = cidr.clone();
    bare.has_finalizer = false;
    assert_eq!(sync_service_cidr(&bare, &[&bare], &[], at(200)), []);
}

#[test]
fn a_range_in_use_says_so_once() {
    let mut cidr = deleting(service_cidr("a", &["10.0.0.0/24"]), 100);
    let held = ip_address("10.0.0.9", "web", 0);
    let actions = sync_service_cidr(&cidr, &[&cidr], &[&held], at(500));
    assert!(
        matches!(&actions[..], [CidrAction::SetTerminating { message }] if message.contains("e.g. 10.0.0.9,"))
    );
    cidr.ready = Some(false);
    assert_eq!(sync_service_cidr(&cidr, &[&cidr], &[&held], at(500)), []);
}

// Pitfall 42.
#[test]
fn the_default_range_is_made_upgraded_or_left_to_a_person() {
    let nets = |cidrs: &[&str]| cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect::<Vec<IpNet>>();
    let (single, dual) = (nets(&["10.0.0.0/24"]), nets(&["10.0.0.0/24", "fd00::/64"]));
    let stored = service_cidr(DEFAULT_NAME, &["10.0.0.0/24"]);
    assert_eq!(sync_default(&single, None), DefaultCidrAction::Create(single.clone()));
    assert_eq!(sync_default(&single, Some(&stored)), DefaultCidrAction::Nothing);
    assert_eq!(sync_default(&dual, Some(&stored)), DefaultCidrAction::Upgrade(dual.clone()));
    for other in [nets(&["fd00::/64", "10.0.0.0/24"]), nets(&["10.0.0.0/25"])] {
        assert!(matches!(sync_default(&other, Some(&stored)), DefaultCidrAction::Mismatch(_)));
    }
    let both = service_cidr(DEFAULT_NAME, &["10.0.0.0/24", "fd00::/64"]);
    assert!(matches!(sync_default(&single, Some(&both)), DefaultCidrAction::Mismatch(_)));
}

//! Tests of repair: grace periods (pitfall 41), and Services with the same address.

use serde_json::json;

use super::*;
use crate::cluster_ips::tests::{ip, ip_address, service_cidr, stored};

fn at(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp::from_seconds(seconds))
}

fn outcome(ip: &IpAddress, parent: Option<&Service>, now: Option<Timestamp>) -> String {
    match repair_ip_address(ip, parent, now) {
        IpAddressRepair::Keep => "keep".to_owned(),
        IpAddressRepair::Wait(seconds) => format!("wait {seconds}"),
        IpAddressRepair::Delete(notice) => notice.reason.to_owned(),
    }
}

#[test]
fn an_address_without_its_service_is_left_alone_for_a_minute() {
    let address = ip_address("10.0.0.1", "web", 100);
    for (now, expected) in
        [(100, "wait 60"), (130, "wait 30"), (160, "wait 1"), (161, "IPAddressNotAllocated")]
    {
        assert_eq!(outcome(&address, None, at(now)), expected, "{now}");
    }
    assert_eq!(outcome(&address, None, at(0)), "wait 60", "the clock went back");
    assert_eq!(outcome(&address, None, None), "wait 60", "there is no clock");
    let ageless = IpAddress { created: None, ..address };
    assert_eq!(outcome(&ageless, None, None), "IPAddressNotAllocated");
}

#[test]
fn an_address_that_its_service_does_not_list_is_left_alone_for_five_seconds() {
    let web = stored("web", json!({"clusterIP": "10.0.0.9"}));
    let young = ip_address("10.0.0.1", "web", 200);
    for (now, expected) in [(200, "wait 5"), (204, "wait 1"), (205, "IPAddressWrongReference")] {
        assert_eq!(outcome(&young, Some(&web), at(now)), expected, "{now}");
    }
    let older_than_its_service = ip_address("10.0.0.1", "web", 99);
    assert_eq!(outcome(&older_than_its_service, Some(&web), at(100)), "IPAddressWrongReference");
    let listed = ip_address("10.0.0.9", "web", 99);
    assert_eq!(outcome(&listed, Some(&web), at(5000)), "keep");
}

#[test]
fn an_alias_may_be_turning_into_a_service_with_addresses() {
    let alias = stored("web", json!({"type": "ExternalName", "externalName": "example.com"}));
    let address = ip_address("10.0.0.1", "web", 200);
    assert_eq!(outcome(&address, Some(&alias), at(250)), "wait 10");
    assert_eq!(outcome(&address, Some(&alias), at(261)), "IPAddressWrongReference");
}

#[test]
fn addresses_of_others_are_none_of_our_business() {
    let mut foreign = ip_address("10.0.0.1", "web", 100);
    foreign.managed_by = Some("example.com".into());
    assert_eq!(outcome(&foreign, None, at(5000)), "keep");
    let mut changed = ip_address("10.0.0.1", "web", 100);
    changed.parent.group = "gateway.networking.k8s.io".into();
    assert_eq!(outcome(&changed, None, at(100)), "IPAddressNotAllocated");
}

fn objects<'a>(services: &[&'a Service], ips: &[&'a IpAddress], cidr: &'a ServiceCidr) -> AddressObjects<'a> {
    AddressObjects {
        services: services.iter().map(|service| (service.key.clone(), *service)).collect(),
        ip_addresses: ips.iter().map(|ip| (ip.address, *ip)).collect(),
        service_cidrs: vec![cidr],
        ..AddressObjects::default()
    }
}

#[test]
fn a_service_that_cannot_be_read_keeps_its_address() {
    let cidr = service_cidr("kubernetes", &["10.0.0.0/24"]);
    let other = stored("other", json!({"clusterIP": "10.0.0.1"}));
    let lock = ip_address("10.0.0.1", "broken", 100);
    let broken = ServiceKey::new(&lock.parent.namespace, &lock.parent.name);
    let mut objects = objects(&[&other], &[&lock], &cidr);
    assert_eq!(repair_service(&other, &objects, at(5000)).deletes, [lock.address], "its Service is gone");
    objects.unreadable = [broken.clone()].into();
    let repair = repair_service(&other, &objects, at(5000));
    assert_eq!((repair.deletes, repair.creates), (vec![], vec![]));
    assert_eq!(repair.notices[0].reason, "ClusterIPAlreadyAllocated");
    let input = crate::cluster_ips::AddressInput {
        services: &[],
        unreadable: &[broken],
        service_cidrs: &[&cidr],
        ip_addresses: &[&lock],
        seed: 1,
        now: at(5000),
    };
    assert_eq!(crate::cluster_ips::plan(&input).deletes, [] as [IpAddr; 0]);
}

#[test]
fn the_holder_of_a_shared_address_keeps_it_whatever_its_labels() {
    let cidr = service_cidr("kubernetes", &["10.0.0.0/24"]);
    let (a, b) =
        (stored("a", json!({"clusterIP": "10.0.0.1"})), stored("b", json!({"clusterIP": "10.0.0.1"})));
    let mut lock = ip_address("10.0.0.1", "b", 100);
    lock.family_label = Some("IPv6".into());
    let objects = objects(&[&a, &b], &[&lock], &cidr);
    let of_a = repair_service(&a, &objects, at(1000));
    assert_eq!((of_a.deletes, of_a.creates), (vec![], vec![]));
    assert_eq!(of_a.notices[0].reason, "ClusterIPAlreadyAllocated");
    let of_b = repair_service(&b, &objects, at(1000));
    assert_eq!((of_b.deletes, of_b.creates), (vec![ip("10.0.0.1")], vec![ip("10.0.0.1")]));
    assert_eq!(of_b.notices, []);
}

#[test]
fn an_address_whose_holder_no_longer_lists_it_goes_to_the_one_who_does() {
    let cidr = service_cidr("kubernetes", &["10.0.0.0/24"]);
    let (a, b) =
        (stored("a", json!({"clusterIP": "10.0.0.1"})), stored("b", json!({"clusterIP": "10.0.0.2"})));
    let lock = ip_address("10.0.0.1", "b", 200);
    let objects = objects(&[&a, &b], &[&lock], &cidr);
    assert_eq!(repair_service(&a, &objects, at(203)), ServiceRepair::default(), "b may be changing");
    let later = repair_service(&a, &objects, at(205));
    assert_eq!((later.deletes, later.creates), (vec![ip("10.0.0.1")], vec![ip("10.0.0.1")]));
}

//! Tests of whole plans, and objects for the tests of all parts.

use expect_test::{Expect, expect};
use fixtures::object;
use model::parse::Object;
use model::write;
use serde_json::{Value, json};

use super::*;

/// A Service of namespace `ns` with this spec, as a file has it.
pub(super) fn service(name: &str, spec: Value) -> Service {
    service_with(json!({"namespace": "ns", "name": name}), spec)
}

/// A Service that an API server made at 100 s.
pub(super) fn stored(name: &str, spec: Value) -> Service {
    let metadata =
        json!({"namespace": "ns", "name": name, "uid": name, "creationTimestamp": "1970-01-01T00:01:40Z"});
    service_with(metadata, spec)
}

fn service_with(metadata: Value, spec: Value) -> Service {
    match object(&json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})) {
        Object::Service(service) => *service,
        other => panic!("{other:?}"),
    }
}

pub(super) fn service_cidr(name: &str, cidrs: &[&str]) -> ServiceCidr {
    let metadata = json!({"name": name});
    let spec = json!({"cidrs": cidrs});
    match object(
        &json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": metadata, "spec": spec}),
    ) {
        Object::ServiceCidr(cidr) => cidr,
        other => panic!("{other:?}"),
    }
}

/// The IPAddress that names a Service of namespace `ns`, made at so many seconds.
pub(super) fn ip_address(address: &str, service: &str, created: i64) -> IpAddress {
    let key = ServiceKey::new(&"ns".into(), &service.into());
    match object(&write::new_ip_address(address.parse().unwrap(), &key)) {
        Object::IpAddress(ip) => IpAddress { created: Some(Timestamp::from_seconds(created)), ..ip },
        other => panic!("{other:?}"),
    }
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn plan_of(services: &[Service], cidrs: &[ServiceCidr], ips: &[IpAddress], now: i64) -> AddressPlan {
    plan(&AddressInput {
        services: &services.iter().collect::<Vec<_>>(),
        unreadable: &[],
        service_cidrs: &cidrs.iter().collect::<Vec<_>>(),
        ip_addresses: &ips.iter().collect::<Vec<_>>(),
        seed: 1,
        now: Some(Timestamp::from_seconds(now)),
    })
}

fn check(services: &[Service], cidrs: &[ServiceCidr], ips: &[IpAddress], expect: Expect) {
    expect.assert_eq(&text(&plan_of(services, cidrs, ips, 1000)));
}

fn text(plan: &AddressPlan) -> String {
    let list = |ips: &[IpAddr]| ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ");
    let mut lines = Vec::new();
    lines.extend(plan.assigned.iter().map(|a| format!("assign {} {}", a.service, list(&a.cluster_ips))));
    lines.extend(plan.deletes.iter().map(|ip| format!("delete {ip}")));
    lines.extend(plan.creates.iter().map(|(ip, key)| format!("create {ip} for {key}")));
    lines.extend(plan.rejected.iter().map(|r| format!("reject {} {}: {}", r.service, r.field, r.reason)));
    lines.extend(plan.notices.iter().map(|notice| notice.to_string()));
    lines.extend(plan.ranges.iter().map(|range| format!("{} free {}", range.cidr, range.free)));
    lines.join("\n") + "\n"
}

fn small_dual() -> ServiceCidr {
    service_cidr(service_cidr::DEFAULT_NAME, &["10.0.0.0/30", "fd00::/126"])
}

#[test]
fn services_get_what_they_ask_for_before_others_get_anything() {
    check(
        &[
            service("a", json!({})),
            service("b", json!({"clusterIP": "10.0.0.1"})),
            service("headless", json!({"clusterIP": "None"})),
            service("alias", json!({"type": "ExternalName", "externalName": "example.com"})),
        ],
        &[small_dual()],
        &[],
        expect![[r#"
            assign ns/a 10.0.0.2
            create 10.0.0.1 for ns/b
            create 10.0.0.2 for ns/a
            10.0.0.0/30 free 0
            fd00::/126 free 3
        "#]],
    );
}

#[test]
fn addresses_that_cannot_be_had_are_rejected_with_advice() {
    let mut leaving = service_cidr("leaving", &["10.2.0.0/24"]);
    leaving.deleting = Some(Timestamp::from_seconds(999));
    check(
        &[
            service("broadcast", json!({"clusterIP": "10.0.0.3"})),
            service("leaving", json!({"clusterIP": "10.2.0.9"})),
            service("outside", json!({"clusterIP": "10.9.0.1"})),
            service("second", json!({"clusterIP": "10.0.0.1"})),
            service("third", json!({"clusterIP": "10.0.0.2"})),
            stored("first", json!({"clusterIP": "10.0.0.1"})),
            service("winner", json!({"clusterIP": "fd00::1"})),
            service("xloser", json!({"clusterIP": "fd00::1"})),
        ],
        &[small_dual(), leaving],
        &[ip_address("10.0.0.1", "first", 100), ip_address("10.0.0.2", "held", 990)],
        expect![[r#"
            create fd00::1 for ns/winner
            reject ns/broadcast spec.clusterIPs[0]: 10.0.0.3 is the network or broadcast address of 10.0.0.0/30; choose a free address of 10.0.0.0/30, or remove the field to get one allocated
            reject ns/leaving spec.clusterIPs[0]: all ServiceCIDRs of 10.2.0.9 are not ready or being deleted; choose a free address of 10.0.0.0/30, or remove the field to get one allocated
            reject ns/outside spec.clusterIPs[0]: 10.9.0.1 is in no ServiceCIDR; choose a free address of 10.0.0.0/30, or remove the field to get one allocated
            reject ns/second spec.clusterIPs[0]: 10.0.0.1 is allocated to Service ns/first; choose a free address, or remove the field to get one allocated
            reject ns/third spec.clusterIPs[0]: 10.0.0.2 is allocated to Service ns/held; choose a free address, or remove the field to get one allocated
            reject ns/xloser spec.clusterIPs[0]: fd00::1 is allocated to Service ns/winner; choose a free address, or remove the field to get one allocated
            10.0.0.0/30 free 0
            fd00::/126 free 2
            10.2.0.0/24 free 254
        "#]],
    );
}

// Semantics E3: all addresses of a Service or none.
#[test]
fn a_service_that_cannot_have_both_families_gets_none() {
    check(
        &[
            service("a", json!({"clusterIP": "10.0.0.1", "ipFamilyPolicy": "RequireDualStack"})),
            service("b", json!({"clusterIP": "10.0.0.1"})),
            service("c", json!({"ipFamilyPolicy": "RequireDualStack"})),
            service("d", json!({"ipFamilies": ["IPv6"]})),
        ],
        &[service_cidr("kubernetes", &["10.0.0.0/30", "fd00::/127"])],
        &[ip_address("fd00::1", "elsewhere", 990)],
        expect![[r#"
            create 10.0.0.1 for ns/b
            reject ns/a spec.clusterIPs: no IPv6 address is free in fd00::/127 (1 of 1 used); create another ServiceCIDR, or delete unused Services
            reject ns/c spec.clusterIPs: no IPv6 address is free in fd00::/127 (1 of 1 used); create another ServiceCIDR, or delete unused Services
            reject ns/d spec.clusterIPs: no IPv6 address is free in fd00::/127 (1 of 1 used); create another ServiceCIDR, or delete unused Services
            10.0.0.0/30 free 1
            fd00::/127 free 0
        "#]],
    );
}

#[test]
fn a_stored_service_gets_the_family_that_it_lacks() {
    check(
        &[
            stored("a", json!({"clusterIPs": ["10.0.0.1"], "ipFamilyPolicy": "RequireDualStack"})),
            stored(
                "b",
                json!({"clusterIPs": ["10.0.0.2"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "PreferDualStack"}),
            ),
        ],
        &[service_cidr("kubernetes", &["10.0.0.0/30", "fd00::/127"])],
        &[ip_address("10.0.0.1", "a", 100), ip_address("10.0.0.2", "b", 100)],
        expect![[r#"
            assign ns/a 10.0.0.1 fd00::1
            create fd00::1 for ns/a
            10.0.0.0/30 free 0
            fd00::/127 free 0
        "#]],
    );
}

#[test]
fn an_interrupted_assignment_goes_on_with_the_address_that_it_locked() {
    let (services, cidrs) = ([service("a", json!({}))], [service_cidr("kubernetes", &["10.0.0.0/24"])]);
    for age in [1, 10_000] {
        let plan = plan_of(&services, &cidrs, &[ip_address("10.0.0.77", "a", 100)], 100 + age);
        assert_eq!(plan.assigned[0].cluster_ips, [ip("10.0.0.77")]);
        assert_eq!((plan.creates.len(), plan.deletes.len(), plan.notices.len()), (0, 0, 0));
    }
}

#[test]
fn ranges_that_are_not_used_are_listed_all_the_same() {
    let mut waiting = service_cidr("waiting", &["10.1.0.0/24"]);
    waiting.ready = Some(false);
    check(
        &[service("a", json!({}))],
        &[service_cidr("odd", &["192.168.1.1/32", "2001:db8::/1"]), waiting],
        &[],
        expect![[r#"
            reject ns/a spec.clusterIPs: no ServiceCIDR has a ready IPv4 range; create one, or remove IPv4
            ServiceCIDR odd: ServiceCIDRNotUsed: spec.cidrs[0]: 192.168.1.1/32 is not used: it has no usable address; use a shorter prefix.
            ServiceCIDR odd: ServiceCIDRNotUsed: spec.cidrs[1]: 2001:db8::/1 is not used: it is larger than /64; use an IPv6 prefix of /64 or longer.
            192.168.1.1/32 free 0
            2001:db8::/1 free 18446744073709551615
            10.1.0.0/24 free 254
        "#]],
    );
    check(
        &[service("a", json!({}))],
        &[],
        &[],
        expect![[r#"
            reject ns/a spec.clusterIPs: there is no ServiceCIDR to allocate from; create one
        "#]],
    );
}

// Semantics E2: one allocator for each distinct range, ready if one of its ServiceCIDRs is.
#[test]
fn a_range_of_two_service_cidrs_is_one_range() {
    let mut first = service_cidr("first", &["10.0.0.0/24"]);
    first.ready = Some(false);
    let plan = plan_of(&[], &[first, service_cidr("second", &["10.0.0.0/24"])], &[], 0);
    assert_eq!(plan.ranges.len(), 1);
    assert!(plan.ranges[0].ready);
    assert_eq!(plan.ranges[0].names, [Name::new("first"), Name::new("second")]);
}

// Semantics E5: stored Services are told about and mended, never rejected.
#[test]
fn repair_mends_what_it_can_and_tells_about_the_rest() {
    let mut foreign = ip_address("10.0.0.5", "web", 100);
    foreign.parent.resource = "gateways".into();
    let mut unlabelled = ip_address("10.0.0.6", "unlabelled", 100);
    unlabelled.family_label = None;
    check(
        &[
            stored("foreign", json!({"clusterIP": "10.0.0.5"})),
            stored("gone", json!({"clusterIP": "10.0.0.3"})),
            stored("missing", json!({"clusterIP": "10.0.0.4"})),
            stored("missing-too", json!({"clusterIP": "10.0.0.4"})),
            stored("outside", json!({"clusterIP": "10.9.0.1"})),
            stored("twice", json!({"clusterIPs": ["10.0.0.7", "10.0.0.8"]})),
            stored("unlabelled", json!({"clusterIP": "10.0.0.6"})),
        ],
        &[service_cidr("kubernetes", &["10.0.0.0/24"])],
        &[
            ip_address("10.0.0.3", "before", 100),
            ip_address("10.0.0.9", "nobody", 100),
            ip_address("10.0.0.10", "nobody", 950),
            ip_address("10.0.0.11", "gone", 90),
            foreign,
            unlabelled,
        ],
        expect![[r#"
            delete 10.0.0.3
            delete 10.0.0.5
            delete 10.0.0.6
            delete 10.0.0.9
            delete 10.0.0.11
            create 10.0.0.3 for ns/gone
            create 10.0.0.4 for ns/missing
            create 10.0.0.5 for ns/foreign
            create 10.0.0.6 for ns/unlabelled
            create 10.0.0.7 for ns/twice
            Service ns/foreign: ClusterIPNotAllocated: spec.clusterIPs[0] is 10.0.0.5: its IPAddress object referred to another object. It is recreated; no action is needed.
            Service ns/gone: ClusterIPNotAllocated: spec.clusterIPs[0] is 10.0.0.3: its IPAddress object referred to another object. It is recreated; no action is needed.
            Service ns/missing: ClusterIPNotAllocated: spec.clusterIPs[0] is 10.0.0.4: it had no IPAddress object. One is created; no action is needed.
            Service ns/missing-too: ClusterIPAlreadyAllocated: spec.clusterIPs[0] is 10.0.0.4: Service ns/missing has the same address and owns its IPAddress. Recreate one of the two Services.
            Service ns/outside: ClusterIPOutOfRange: spec.clusterIPs[0] is 10.9.0.1: it is not a usable address of any ServiceCIDR. Create a ServiceCIDR that contains it, or recreate the Service to get another address.
            Service ns/twice: ClusterIPNotAllocated: spec.clusterIPs[0] is 10.0.0.7: it had no IPAddress object. One is created; no action is needed.
            Service ns/twice: ClusterIPNotValid: spec.clusterIPs[1] is 10.0.0.8: the Service has another address of that IP family. Recreate the Service with one address per family.
            IPAddress 10.0.0.9: IPAddressNotAllocated: its Service does not exist (ns/nobody of services). It is deleted and the address is released; no action is needed.
            IPAddress 10.0.0.11: IPAddressWrongReference: its Service does not list it in spec.clusterIPs (ns/gone of services). It is deleted and the address is released; no action is needed.
            10.0.0.0/24 free 245
        "#]],
    );
}

#[test]
fn what_is_too_young_is_looked_at_again() {
    let cidrs = [service_cidr("kubernetes", &["10.0.0.0/24"])];
    let ips = [ip_address("10.0.0.9", "nobody", 950), ip_address("10.0.0.10", "nobody", 970)];
    let plan = plan_of(&[], &cidrs, &ips, 1000);
    assert_eq!((plan.deletes.len(), plan.resync_after), (0, Some(10)));
    assert_eq!(plan_of(&[], &cidrs, &ips, 1100).resync_after, None);
}

#[test]
fn a_service_that_is_being_deleted_gets_nothing_and_keeps_what_it_has() {
    let mut bare = service("a", json!({}));
    bare.deleting = true;
    let mut holding = stored("b", json!({"clusterIP": "10.0.0.1"}));
    holding.deleting = true;
    let ips = [ip_address("10.0.0.1", "b", 100)];
    let plan = plan_of(&[bare, holding], &[service_cidr("kubernetes", &["10.0.0.0/24"])], &ips, 1000);
    assert_eq!(text(&plan), "10.0.0.0/24 free 253\n");
}

#[test]
fn a_node_port_of_another_service_is_refused() {
    let at_port = |name: &str, port: u16| {
        service(name, json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}))
    };
    let spec = json!({"type": "NodePort", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"],
        "ports": [{"port": 80, "nodePort": 30_090}]});
    let services = [at_port("a", 30_080), at_port("b", 30_080), at_port("c", 30_090), stored("d", spec)];
    let cidrs = [service_cidr("kubernetes", &["10.0.0.0/24"])];
    let plan = plan_of(&services, &cidrs, &[ip_address("10.0.0.9", "d", 100)], 1_000);
    let rejected = plan.rejected.iter().map(|r| format!("{} {}: {}", r.service, r.field, r.reason));
    expect![[r#"
        [
            "ns/b spec.ports[0].nodePort: 30080 is allocated to Service ns/a; choose a free port, or remove the field to get one allocated",
            "ns/c spec.ports[0].nodePort: 30090 is allocated to Service ns/d; choose a free port, or remove the field to get one allocated",
        ]
    "#]]
    .assert_debug_eq(&rejected.collect::<Vec<_>>());
    let assigned: Vec<&str> = plan.assigned.iter().map(|a| a.service.name.as_str()).collect();
    assert_eq!(assigned, ["a"]);
}

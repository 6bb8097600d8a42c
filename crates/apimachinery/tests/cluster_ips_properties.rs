//! Properties of cluster IP plans: no collisions, determinism, convergence, no panics.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use apimachinery::cluster_ips::{
    self, AddressInput, AddressPlan, ClusterFamilies, IpAllocator, IpPool, IpRange,
};
use fixtures::object;
use ipnet::IpNet;
use model::parse::Object;
use model::{ClusterIps, Family, IpAddress, Service, ServiceCidr, ServiceKey, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

#[derive(Clone, Debug)]
struct World {
    services: Vec<Service>,
    cidrs: Vec<ServiceCidr>,
    ips: Vec<IpAddress>,
    seed: u64,
    now: Option<Timestamp>,
}

impl World {
    fn plan(&self) -> AddressPlan {
        cluster_ips::plan(&AddressInput {
            services: &self.services.iter().collect::<Vec<_>>(),
            unreadable: &[],
            service_cidrs: &self.cidrs.iter().collect::<Vec<_>>(),
            ip_addresses: &self.ips.iter().collect::<Vec<_>>(),
            seed: self.seed,
            now: self.now,
        })
    }

    fn service(&self, key: &ServiceKey) -> &Service {
        self.services.iter().find(|service| service.key == *key).unwrap()
    }

    /// The world after a plan was carried out.
    fn after(&self, plan: &AddressPlan) -> Self {
        let mut world = self.clone();
        world.ips.retain(|ip| !plan.deletes.contains(&ip.address));
        for (address, service) in &plan.creates {
            let taken = world.ips.iter().any(|ip| ip.address == *address);
            assert!(!taken, "creating {address} would collide with an IPAddress that is there");
            world.ips.push(lock(*address, service, self.now));
        }
        for assignment in &plan.assigned {
            let service = world.services.iter_mut().find(|s| s.key == assignment.service).unwrap();
            service.cluster_ips = ClusterIps::Addresses(assignment.cluster_ips.clone().into());
        }
        world
    }

    fn usable_in_ready_range(&self, ip: IpAddr) -> bool {
        let ready = self.cidrs.iter().filter(|c| c.ready != Some(false) && c.deleting.is_none());
        let mut ranges = ready.flat_map(|c| c.cidrs.iter().copied().map(IpRange::new));
        ranges.any(|range| range.contains(ip) && range.unusable_because().is_none())
    }
}

fn service(name: &str, stored: bool, spec: &Value) -> Service {
    let mut metadata = json!({"namespace": "ns", "name": name});
    if stored {
        metadata["uid"] = name.into();
        metadata["creationTimestamp"] = "1970-01-01T00:01:40Z".into();
    }
    match object(&json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})) {
        Object::Service(service) => *service,
        other => panic!("{other:?}"),
    }
}

fn lock(address: IpAddr, service: &ServiceKey, created: Option<Timestamp>) -> IpAddress {
    match object(&model::write::new_ip_address(address, service)) {
        Object::IpAddress(ip) => IpAddress { created, ..ip },
        other => panic!("{other:?}"),
    }
}

fn key(name: &str) -> ServiceKey {
    ServiceKey::new(&"ns".into(), &name.into())
}

/// Few addresses, so that they meet often.
fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        6 => (0u8..20).prop_map(|n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))),
        3 => (0u16..12).prop_map(|n| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n))),
        1 => any::<IpAddr>(),
    ]
}

fn net() -> impl Strategy<Value = IpNet> {
    let small = prop::sample::select(vec![
        "10.0.0.0/30",
        "10.0.0.0/29",
        "10.0.0.0/28",
        "10.0.0.8/29",
        "10.0.0.0/27",
        "10.0.0.0/24",
        "10.0.0.0/31",
        "10.0.0.1/30",
        "fd00::/127",
        "fd00::/126",
        "fd00::/124",
        "fd00::/64",
        "fd00::/63",
        "::/64",
    ]);
    prop_oneof![9 => small.prop_map(|text| text.parse().unwrap()), 1 => any_net()]
}

fn any_net() -> impl Strategy<Value = IpNet> {
    prop_oneof![
        (any::<Ipv4Addr>(), 0u8..=32).prop_map(|(a, p)| IpNet::new(a.into(), p).unwrap()),
        (any::<Ipv6Addr>(), 0u8..=128).prop_map(|(a, p)| IpNet::new(a.into(), p).unwrap()),
    ]
}

fn service_cidr() -> impl Strategy<Value = ServiceCidr> {
    let name = prop::sample::select(vec!["kubernetes", "a", "b", "zz"]);
    let ready = prop_oneof![3 => Just(None), 2 => Just(Some(true)), 1 => Just(Some(false))];
    let deleting =
        prop_oneof![5 => Just(None), 1 => (0i64..2000).prop_map(|s| Some(Timestamp::from_seconds(s)))];
    let cidrs = prop::collection::vec(net(), 0..3);
    (name, ready, deleting, cidrs, any::<bool>()).prop_map(|(name, ready, deleting, cidrs, has_finalizer)| {
        ServiceCidr { name: name.into(), cidrs: cidrs.into(), ready, deleting, has_finalizer }
    })
}

fn spec() -> impl Strategy<Value = Value> {
    let kind = prop_oneof![8 => Just("ClusterIP"), 1 => Just("NodePort"), 1 => Just("ExternalName")];
    let policy = prop::sample::select(vec![
        Value::Null,
        Value::Null,
        json!("SingleStack"),
        json!("PreferDualStack"),
        json!("RequireDualStack"),
    ]);
    let families = prop_oneof![
        4 => Just(json!([])),
        4 => prop::collection::vec(prop::sample::select(vec!["IPv4", "IPv6"]), 1..3).prop_map(|f| json!(f)),
    ];
    let ips = prop_oneof![
        6 => Just(json!([])),
        1 => Just(json!(["None"])),
        6 => prop::collection::vec(address().prop_map(|ip| ip.to_string()), 1..4).prop_map(|ips| json!(ips)),
    ];
    (kind, policy, families, ips).prop_map(|(kind, policy, families, ips)| {
        json!({"type": kind, "ipFamilyPolicy": policy, "ipFamilies": families, "clusterIPs": ips})
    })
}

fn services() -> impl Strategy<Value = Vec<Service>> {
    prop::collection::btree_map(0u8..14, (any::<bool>(), spec()), 0..12).prop_map(|services| {
        services.into_iter().map(|(n, (stored, spec))| service(&format!("s{n}"), stored, &spec)).collect()
    })
}

fn ip_address() -> impl Strategy<Value = IpAddress> {
    let parent = prop_oneof![5 => (0u8..14).prop_map(|n| format!("s{n}")), 1 => Just("ghost".to_owned())];
    let created =
        prop_oneof![1 => Just(None), 5 => (0i64..1200).prop_map(|s| Some(Timestamp::from_seconds(s)))];
    (address(), parent, created, 0u8..12).prop_map(|(address, parent, created, oddity)| {
        // Real IPAddresses are never in IPv4 clothes: their names are canonical.
        let address = address.to_canonical();
        let mut ip = lock(address, &key(&parent), created);
        match oddity {
            0 => ip.managed_by = None,
            1 => ip.family_label = None,
            2 => ip.parent.resource = "gateways".into(),
            3 => ip.managed_by = Some("example.com".into()),
            _ => {}
        }
        ip
    })
}

fn world() -> impl Strategy<Value = World> {
    let cidrs = prop::collection::vec(service_cidr(), 0..4);
    let ips = prop::collection::vec(ip_address(), 0..8);
    let now = prop_oneof![1 => Just(None), 5 => (0i64..1500).prop_map(|s| Some(Timestamp::from_seconds(s)))];
    (services(), cidrs, ips, any::<u64>(), now).prop_map(|(services, cidrs, ips, seed, now)| {
        let cidrs: BTreeMap<_, _> = cidrs.into_iter().map(|c| (c.name.clone(), c)).collect();
        let ips: BTreeMap<_, _> = ips.into_iter().map(|ip| (ip.address, ip)).collect();
        let (cidrs, ips) = (cidrs.into_values().collect(), ips.into_values().collect());
        World { services, cidrs, ips, seed, now }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_address_is_given_twice_and_none_from_elsewhere(world in world()) {
        let plan = world.plan();
        let rejected: BTreeSet<_> = plan.rejected.iter().map(|r| &r.service).collect();
        let mut given = BTreeSet::new();
        for assignment in &plan.assigned {
            let before = world.service(&assignment.service).cluster_ips.addresses();
            prop_assert!(assignment.cluster_ips.starts_with(before));
            let families: BTreeSet<Family> = assignment.cluster_ips.iter().map(|ip| Family::of(*ip)).collect();
            prop_assert_eq!(families.len(), assignment.cluster_ips.len(), "one of each family");
            for ip in &assignment.cluster_ips[before.len()..] {
                prop_assert!(given.insert(*ip), "{} is given twice", ip);
                prop_assert!(world.usable_in_ready_range(*ip), "{} is in no ready range", ip);
                let others = world.services.iter().filter(|s| s.key != assignment.service);
                let mut others = others.filter(|s| s.kind != model::ServiceType::ExternalName);
                prop_assert!(
                    !others.any(|s| !rejected.contains(&s.key) && s.cluster_ips.addresses().contains(ip)),
                    "{} is somebody else's", ip
                );
            }
        }
        let created: BTreeSet<IpAddr> = plan.creates.iter().map(|(ip, _)| *ip).collect();
        prop_assert_eq!(created.len(), plan.creates.len(), "one IPAddress for each address");
        for (_, service) in &plan.creates {
            prop_assert!(!rejected.contains(service) || !world.service(service).cluster_ips.addresses().is_empty());
        }
    }

    #[test]
    fn a_plan_that_was_carried_out_is_settled(world in world()) {
        let plan = world.plan();
        let rejected: BTreeSet<_> = plan.rejected.iter().map(|r| r.service.clone()).collect();
        let again = world.after(&plan).plan();
        // Who was turned away may have more luck now that addresses were released; nobody else changes.
        for assignment in &again.assigned {
            prop_assert!(rejected.contains(&assignment.service), "{:?}", assignment);
        }
        for (ip, service) in &again.creates {
            prop_assert!(rejected.contains(service), "{} for {}", ip, service);
        }
        prop_assert!(again.deletes.is_empty(), "{:?}", again.deletes);
        if rejected.is_empty() {
            prop_assert_eq!(again.rejected, []);
        }
    }

    #[test]
    fn the_same_world_gives_the_same_plan_in_any_order(world in world()) {
        let mut turned = world.clone();
        turned.services.reverse();
        turned.cidrs.reverse();
        turned.ips.reverse();
        prop_assert_eq!(world.plan(), turned.plan());
    }

    #[test]
    fn free_is_what_is_left_when_all_holders_are_counted(world in world()) {
        let plan = world.plan();
        let after = world.after(&plan);
        let rejected: BTreeSet<_> = plan.rejected.iter().map(|r| &r.service).collect();
        let stored = |s: &&Service| s.uid.is_some() || !rejected.contains(&s.key);
        let holding = after.services.iter().filter(|s| s.kind != model::ServiceType::ExternalName).filter(stored);
        let listed = holding.flat_map(|s| s.cluster_ips.addresses().iter().copied());
        // Addresses whose IPAddress is about to be deleted are still held.
        let held: BTreeSet<IpAddr> =
            listed.chain(after.ips.iter().chain(&world.ips).map(|ip| ip.address)).collect();
        for report in plan.ranges {
            let range = IpRange::new(report.cidr);
            let used = held.iter().filter(|ip| range.contains(**ip)).count() as u64;
            if range.capacity() < u64::MAX {
                prop_assert_eq!(report.free, range.capacity() - used, "{}", report.cidr);
            }
        }
    }

    #[test]
    fn tiny_ranges_fill_to_the_last_address(
        cidr in prop::sample::select(vec!["10.0.0.0/30", "10.0.0.0/28", "10.0.0.0/27", "fd00::/127", "fd00::/123"]),
        seed in any::<u64>(),
        more in 0usize..3,
    ) {
        let range = IpRange::new(cidr.parse().unwrap());
        let count = range.capacity() as usize + more;
        let services = (0..count).map(|n| service(&format!("s{n}"), false, &json!({}))).collect();
        let net: IpNet = cidr.parse().unwrap();
        let cidr = ServiceCidr {
            name: "kubernetes".into(), cidrs: [net].into(), ready: None, deleting: None, has_finalizer: true,
        };
        let plan = World { services, cidrs: vec![cidr], ips: vec![], seed, now: None }.plan();
        prop_assert_eq!((plan.assigned.len(), plan.rejected.len()), (count - more, more));
        prop_assert_eq!(plan.ranges[0].free, 0);
    }

    #[test]
    fn the_next_address_is_the_first_free_one_on_the_way(
        cidr in prop::sample::select(vec!["10.0.0.0/29", "10.0.0.0/26", "fd00::/124", "fd00::/122"]),
        taken in prop::collection::btree_set(0u64..64, 0..64),
        offset in any::<u64>(),
    ) {
        let range = IpRange::new(cidr.parse().unwrap());
        let mut allocator = IpAllocator::new([IpPool { range, ready: true }]);
        let (first, last) = (range.first().unwrap(), range.last().unwrap());
        let all: Vec<IpAddr> = cluster_ips::search_order(first, last, 0).collect();
        for n in taken {
            all.get(n as usize).map(|ip| allocator.mark_allocated(*ip));
        }
        let way = |band: Option<(IpAddr, IpAddr)>| {
            let band = band.map(|(first, last)| {
                let length = cluster_ips::search_order(first, last, 0).count() as u64;
                cluster_ips::search_order(first, last, offset % length)
            });
            band.into_iter().flatten()
        };
        let mut visited = way(range.dynamic_band()).chain(way(range.static_band()));
        let expected = visited.find(|ip| !allocator.is_allocated(*ip));
        let before = allocator.clone();
        let got = allocator.allocate_next(range.family(), offset).ok();
        prop_assert_eq!(got, expected);
        if let Some(ip) = got {
            prop_assert!(allocator.release(ip));
            prop_assert_eq!(allocator, before, "a release undoes an allocation");
        }
    }

    #[test]
    fn no_range_and_no_offset_runs_over(net in any_net(), offset in any::<u64>(), ip in any::<IpAddr>()) {
        let range = IpRange::new(net);
        let mut allocator = IpAllocator::new([IpPool { range, ready: true }]);
        allocator.mark_allocated(ip);
        match allocator.allocate_next(range.family(), offset) {
            Ok(got) => prop_assert!(range.contains(got) && got != ip && net.contains(&got)),
            Err(_) => prop_assert!(range.capacity() <= 1),
        }
        prop_assert_eq!(range.contains(ip) || allocator.allocate(ip).is_err(), true);
        if let (Some((first, end)), Some((start, last))) = (range.static_band(), range.dynamic_band()) {
            prop_assert_eq!((Some(first), Some(last)), (range.first(), range.last()));
            prop_assert_eq!(cluster_ips::search_order(end, start, 0).count(), 2, "the bands touch");
        }
    }

    #[test]
    fn every_change_of_a_service_adds_up(
        old in spec(),
        new in spec(),
        v4 in any::<bool>(),
        v6 in any::<bool>(),
    ) {
        let (old, new) = (service("s", true, &old), service("s", true, &new));
        let default = if v4 { Family::V4 } else { Family::V6 };
        let cluster = ClusterFamilies { default: Some(default), v4, v6 };
        let Ok(change) = cluster_ips::update(&old, &new, &cluster) else { return Ok(()) };
        let before = if old.kind == model::ServiceType::ExternalName { &[] } else { old.cluster_ips.addresses() };
        let accounted: Vec<IpAddr> = change.kept.iter().chain(&change.release).copied().collect();
        prop_assert_eq!(accounted, before, "each old address is kept or released");
        let needs = new.kind != model::ServiceType::ExternalName && new.cluster_ips != ClusterIps::None;
        if needs && old.cluster_ips != ClusterIps::None {
            let families = change.kept.iter().map(|ip| Family::of(*ip));
            let families: Vec<Family> = families.chain(change.allocate.iter().map(|(f, _)| *f)).collect();
            prop_assert_eq!(families, change.families);
        }
    }

    #[test]
    fn protection_never_loses_an_address(world in world()) {
        let (all, ips): (Vec<_>, Vec<_>) = (world.cidrs.iter().collect(), world.ips.iter().collect());
        let now = world.now.unwrap_or(Timestamp::from_seconds(0));
        let goes = |cidr: &ServiceCidr| {
            let actions = cluster_ips::sync_service_cidr(cidr, &all, &ips, now);
            actions.contains(&cluster_ips::CidrAction::RemoveFinalizer)
        };
        let staying: Vec<&ServiceCidr> = all.iter().copied().filter(|cidr| !goes(cidr)).collect();
        for ip in ips.iter().filter(|ip| ip.managed_by.as_ref().is_some_and(|by| *by == *"ipallocator.k8s.io")) {
            let before = cluster_ips::containing(ip.address, &all);
            prop_assert!(before.is_empty() || !cluster_ips::containing(ip.address, &staying).is_empty());
        }
    }
}

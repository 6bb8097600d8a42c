//! Cluster IP allocation and repair: Services, ServiceCIDRs and IPAddresses -> addresses to assign, IPAddresses to
//! create and delete.
//!
//! ```text
//!  10.96.0.0                                                              10.111.255.255
//!  |network|  static band  |                dynamic band                     |broadcast|
//!          10.96.0.1 ...   10.96.1.1 ...
//!          for users       searched first, from a random offset with wrap-around; then the static band
//! ```
//!
//! The static band has `min(max(16, size / 16), 256)` addresses, and none in a range of 16 or fewer (seed 002). An
//! IPAddress object locks an address: creating it reserves, deleting it releases. A plan is applied in the order deletes,
//! creates, Services.
//!
//! | file | |
//! |---|---|
//! | [`ip_allocator`] | free and allocated addresses of all ranges |
//! | [`ip_range`], `address_set` | bands of one range; sets of addresses |
//! | `assign` | addresses for Services that lack them |
//! | [`ip_families`], [`service_update`] | IP families of a Service; the effect of an update |
//! | [`repair`] | Services and IPAddresses that do not refer to each other |
//! | [`service_cidr`], [`kubernetes_service`] | the ServiceCIDR controller; Service default/kubernetes |

mod address_set;
mod assign;
pub mod ip_allocator;
pub mod ip_families;
pub mod ip_range;
pub mod kubernetes_service;
pub mod repair;
pub mod service_cidr;
pub mod service_update;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use model::{Family, IpAddress, Name, Notice, ObjectRef, Service, ServiceCidr, ServiceKey, Timestamp};

pub use ip_allocator::{AllocateError, IpAllocator, IpPool, start_offset};
pub use ip_families::ClusterFamilies;
pub use ip_range::{Band, IpRange, search_order};
pub use kubernetes_service::{api_address, check_api_address, is_api_service};
pub use model::field::FieldError;
pub use repair::{AddressObjects, IpAddressRepair, ServiceRepair, repair_ip_address, repair_service};
pub use service_cidr::{
    CidrAction, DefaultCidrAction, blocking_address, containing, overlapping, sync_default, sync_service_cidr,
};
pub use service_update::{AddressChange, update};

/// The objects and parameters of a plan.
#[derive(Clone, Copy, Debug)]
pub struct AddressInput<'a> {
    pub services: &'a [&'a Service],
    /// Services that exist but do not parse. They keep their addresses.
    pub unreadable: &'a [ServiceKey],
    pub service_cidrs: &'a [&'a ServiceCidr],
    pub ip_addresses: &'a [&'a IpAddress],
    /// Determines the offsets at which searches for free addresses start.
    pub seed: u64,
    /// Current time, for grace periods. Without it, no object with a creation time is old enough to be repaired.
    pub now: Option<Timestamp>,
}

/// Writes that give every Service its cluster IPs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressPlan {
    /// Services that get addresses, by key.
    pub assigned: Vec<Assignment>,
    /// IPAddresses to create after the deletes, by address: for assigned addresses, for addresses that new Services
    /// request, and for addresses without an IPAddress.
    pub creates: Vec<(IpAddr, ServiceKey)>,
    /// IPAddresses to delete, by address. A recreated one is also in `creates`.
    pub deletes: Vec<IpAddr>,
    /// The ranges of all ServiceCIDRs, after this plan.
    pub ranges: Vec<RangeReport>,
    /// Services whose request cannot be satisfied, by key.
    pub rejected: Vec<AddressRejection>,
    /// Findings of repair, and unused ranges.
    pub notices: Vec<Notice>,
    /// Seconds until the next grace period ends.
    pub resync_after: Option<u64>,
}

/// The addresses of one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub service: ServiceKey,
    /// The new `spec.clusterIPs`.
    pub cluster_ips: Vec<IpAddr>,
}

/// Usage of one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeReport {
    pub cidr: IpNet,
    pub static_band: Option<Band>,
    pub dynamic_band: Option<Band>,
    /// Free usable addresses. An address whose IPAddress this plan deletes is not free yet.
    pub free: u64,
    /// Whether addresses are allocated from it.
    pub ready: bool,
    /// The ServiceCIDRs with this range.
    pub names: Vec<Name>,
}

/// A Service whose request cannot be satisfied. It gets no address at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressRejection {
    pub service: ServiceKey,
    pub field: String,
    /// Why, and what to do.
    pub reason: String,
}

/// Plans the cluster IPs of all Services.
pub fn plan(input: &AddressInput<'_>) -> AddressPlan {
    let cidrs = service_cidr::in_order(input.service_cidrs);
    let mut objects = objects(input, &cidrs);
    let mut plan = AddressPlan { notices: unused_ranges(&cidrs), ..AddressPlan::default() };
    repair_services(&mut objects, input.now, &mut plan);
    let allocator = assign::assign(&objects, input.seed, &mut plan);
    repair_ip_addresses(&objects, input.now, &mut plan);
    plan.ranges = reports(&cidrs, &allocator);
    plan.assigned.sort_by(|a, b| a.service.cmp(&b.service));
    plan.rejected.sort_by(|a, b| a.service.cmp(&b.service));
    plan.creates.sort();
    plan.deletes.sort();
    plan
}

/// Only the repair part of a plan (semantics E5), for API servers that allocate addresses on admission.
pub fn repair_all(input: &AddressInput<'_>) -> AddressPlan {
    let cidrs = service_cidr::in_order(input.service_cidrs);
    let mut objects = objects(input, &cidrs);
    let mut plan = AddressPlan { notices: unused_ranges(&cidrs), ..AddressPlan::default() };
    repair_services(&mut objects, input.now, &mut plan);
    repair_ip_addresses(&objects, input.now, &mut plan);
    plan.creates.sort();
    plan.deletes.sort();
    plan
}

fn objects<'a>(input: &AddressInput<'a>, cidrs: &[&'a ServiceCidr]) -> AddressObjects<'a> {
    AddressObjects {
        services: input.services.iter().map(|service| (service.key.clone(), *service)).collect(),
        ip_addresses: input.ip_addresses.iter().map(|ip| (ip.address, *ip)).collect(),
        unreadable: input.unreadable.iter().cloned().collect(),
        service_cidrs: cidrs.to_vec(),
        claimed: BTreeMap::new(),
    }
}

/// An empty allocator for the ServiceCIDRs of a cluster, and the IP families of its ready ranges. Unusable ranges are
/// skipped.
pub fn allocator(service_cidrs: &[&ServiceCidr]) -> (IpAllocator, ClusterFamilies) {
    let pools: Vec<IpPool> =
        distinct_ranges(&service_cidr::in_order(service_cidrs)).into_iter().map(|(pool, _)| pool).collect();
    let usable = pools.iter().copied().filter(|pool| pool.range.unusable_because().is_none());
    let allocator = IpAllocator::new(usable);
    let families = ClusterFamilies {
        default: pools.first().map(|pool| pool.range.family()),
        v4: allocator.serves(Family::V4),
        v6: allocator.serves(Family::V6),
    };
    (allocator, families)
}

/// Distinct ranges with their ServiceCIDRs. Semantics E2: a range is ready if one of these is.
fn distinct_ranges(cidrs: &[&ServiceCidr]) -> Vec<(IpPool, Vec<Name>)> {
    let mut distinct: Vec<(IpPool, Vec<Name>)> = Vec::new();
    let mut at_by_cidr: BTreeMap<IpNet, usize> = BTreeMap::new();
    for cidr in cidrs {
        for range in service_cidr::ranges(cidr) {
            let at = *at_by_cidr.entry(range.cidr).or_insert(distinct.len());
            if at == distinct.len() {
                distinct.push((IpPool { range, ready: false }, Vec::new()));
            }
            let (pool, names) = &mut distinct[at];
            pool.ready |= service_cidr::is_ready(cidr) && range.unusable_because().is_none();
            if !names.contains(&cidr.name) {
                names.push(cidr.name.clone());
            }
        }
    }
    distinct
}

fn unused_ranges(cidrs: &[&ServiceCidr]) -> Vec<Notice> {
    let refused = |cidr: &ServiceCidr, i: usize, range: IpRange| {
        let message =
            format!("spec.cidrs[{i}]: {} is not used: it {}.", range.cidr, range.unusable_because()?);
        Some(Notice::new(ObjectRef::new("ServiceCIDR", "", &cidr.name), "ServiceCIDRNotUsed", message))
    };
    let entries =
        cidrs.iter().flat_map(|cidr| service_cidr::ranges(cidr).enumerate().map(move |(i, r)| (cidr, i, r)));
    entries.filter_map(|(cidr, i, range)| refused(cidr, i, range)).collect()
}

fn reports(cidrs: &[&ServiceCidr], allocator: &IpAllocator) -> Vec<RangeReport> {
    let report = |(pool, names): (IpPool, Vec<Name>)| RangeReport {
        cidr: pool.range.cidr,
        static_band: pool.range.static_band(),
        dynamic_band: pool.range.dynamic_band(),
        free: allocator.free(&pool.range),
        ready: pool.ready,
        names,
    };
    distinct_ranges(cidrs).into_iter().map(report).collect()
}

/// Repairs the IPAddresses of stored Services.
fn repair_services(objects: &mut AddressObjects<'_>, now: Option<Timestamp>, plan: &mut AddressPlan) {
    // Semantics E5: without a ServiceCIDR every address would be out of range; repair waits for one.
    if objects.service_cidrs.is_empty() {
        return;
    }
    let services: Vec<&Service> = objects.services.values().copied().collect();
    for service in services {
        if !is_established(service, objects) {
            continue;
        }
        let repair = repair_service(service, objects, now);
        objects.claimed.extend(repair.creates.iter().map(|ip| (*ip, service.key.clone())));
        plan.creates.extend(repair.creates.into_iter().map(|ip| (ip, service.key.clone())));
        plan.deletes.extend(repair.deletes);
        plan.notices.extend(repair.notices);
    }
}

/// Whether the Service is stored with its addresses, so that these are repaired instead of requested: it has a UID or a
/// creation time, or an IPAddress refers to it.
fn is_established(service: &Service, objects: &AddressObjects<'_>) -> bool {
    let held =
        |ip: &IpAddr| objects.ip_addresses.get(ip).is_some_and(|held| repair::refers_to(held, &service.key));
    let addresses = service.cluster_ips.addresses();
    !addresses.is_empty()
        && (service.uid.is_some() || service.created.is_some() || addresses.iter().any(held))
}

/// Repairs the IPAddresses that neither `repair_services` nor the assignment changed.
fn repair_ip_addresses(objects: &AddressObjects<'_>, now: Option<Timestamp>, plan: &mut AddressPlan) {
    let deleted: BTreeSet<IpAddr> = plan.deletes.iter().copied().collect();
    let assigned = plan.assigned.iter().map(|assignment| (&assignment.service, &assignment.cluster_ips));
    let assigned: BTreeMap<&ServiceKey, &Vec<IpAddr>> = assigned.collect();
    for (address, ip) in &objects.ip_addresses {
        let parent = objects.parent(ip);
        let adopted =
            parent.and_then(|service| assigned.get(&service.key)).is_some_and(|list| list.contains(address));
        if deleted.contains(address) || adopted || objects.unreadable_parent(ip).is_some() {
            continue;
        }
        match repair_ip_address(ip, parent, now) {
            IpAddressRepair::Keep => {}
            IpAddressRepair::Wait(seconds) => {
                plan.resync_after = Some(plan.resync_after.map_or(seconds, |s| s.min(seconds)));
            }
            IpAddressRepair::Delete(notice) => {
                plan.deletes.push(*address);
                plan.notices.push(notice);
            }
        }
    }
}

#[cfg(test)]
mod tests;

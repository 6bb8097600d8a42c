//! Which addresses Services have: ServiceCIDRs, Services and IPAddresses -> what to assign, create and
//! delete.
//!
//! ```text
//!  10.96.0.0                                                              10.111.255.255
//!  |network|  static band  |                dynamic band                     |broadcast|
//!          10.96.0.1 ...   10.96.1.1 ...
//!          people choose   chosen first, from a random place on and round; the static band comes last
//! ```
//!
//! The static band has `min(max(16, size / 16), 256)` addresses and none in a range of 16 or fewer (seed
//! 002). An IPAddress object is the lock on an address: creating it reserves, deleting it releases. So a plan
//! is carried out in the order deletes, creates, Services.

pub mod allocator;
pub mod api_service;
mod assign;
pub mod cidr;
pub mod families;
pub mod range;
pub mod repair;
mod runs;
pub mod update;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use model::{Family, IpAddress, Name, Notice, ObjectRef, Service, ServiceCidr, ServiceKey, Timestamp};

pub use allocator::{AllocateError, Allocator, Pool, start_offset};
pub use api_service::{api_address, check_api_address, is_api_service};
pub use cidr::{
    CidrAction, DefaultAction, can_delete, containing, overlapping, sync_default, sync_service_cidr,
    validate_create, validate_update,
};
pub use families::ClusterFamilies;
pub use range::{Band, Range, visits};
pub use repair::{IpAddressRepair, Objects, ServiceRepair, repair_ip_address, repair_service};
pub use update::{AddressChange, update};

/// What there is.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Every Service, in any order.
    pub services: &'a [&'a Service],
    /// The Services that are there but could not be read. What they hold stays theirs.
    pub unreadable: &'a [ServiceKey],
    /// Every ServiceCIDR, in any order.
    pub service_cidrs: &'a [&'a ServiceCidr],
    /// Every IPAddress, in any order.
    pub ip_addresses: &'a [&'a IpAddress],
    /// Decides where the search for free addresses starts. The same seed gives the same plan.
    pub seed: u64,
    /// The time, for what must be left alone while it is young. Without it nothing that says when it was made
    /// is old enough.
    pub now: Option<Timestamp>,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressPlan {
    /// The Services that lacked addresses and get them now, by key.
    pub assigned: Vec<Assignment>,
    /// The IPAddresses to create, after the deletes, by address: for the addresses assigned now, for those
    /// that new Services ask for, and for those that repair found missing.
    pub creates: Vec<(IpAddr, ServiceKey)>,
    /// The IPAddresses to delete, by address. One that is created again is listed in both.
    pub deletes: Vec<IpAddr>,
    /// Every range of every ServiceCIDR, as it is after this plan.
    pub ranges: Vec<RangeReport>,
    /// The Services that do not get what they ask for, by key.
    pub rejected: Vec<Rejection>,
    /// What repair has to say, and which ranges are not used.
    pub notices: Vec<Notice>,
    /// After how many seconds to plan again, because something is still too young to be judged.
    pub look_again_after: Option<u64>,
}

/// The addresses of one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The Service.
    pub service: ServiceKey,
    /// All of its addresses, the primary one first: what `spec.clusterIPs` becomes.
    pub cluster_ips: Vec<IpAddr>,
}

/// One range of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeReport {
    /// The range as written.
    pub cidr: IpNet,
    /// Its lower band.
    pub static_band: Option<Band>,
    /// Its upper band.
    pub dynamic_band: Option<Band>,
    /// How many usable addresses nobody holds. An address whose IPAddress this plan deletes is still held.
    pub free: u64,
    /// Whether new addresses come out of it.
    pub ready: bool,
    /// The ServiceCIDRs that have it, by name.
    pub names: Vec<Name>,
}

/// A Service that does not get what it asks for. Nothing of it is assigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The Service.
    pub service: ServiceKey,
    /// The field that asks for it.
    pub field: String,
    /// Why not, and what to do.
    pub reason: String,
}

/// What is wrong with one field of an object that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The field, as `spec.clusterIPs[0]`.
    pub field: String,
    /// What is wrong, and what to do.
    pub reason: String,
}

impl FieldError {
    fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }
}

/// Plans the addresses of all Services.
pub fn plan(input: &Input<'_>) -> AddressPlan {
    let cidrs = cidr::in_order(input.service_cidrs);
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

/// Only the repair of a plan: what makes Services and IPAddresses name each other (semantics E5). Nobody gets an
/// address by it, so it is for an API that gives addresses itself when Services are written.
pub fn repair_all(input: &Input<'_>) -> AddressPlan {
    let cidrs = cidr::in_order(input.service_cidrs);
    let mut objects = objects(input, &cidrs);
    let mut plan = AddressPlan { notices: unused_ranges(&cidrs), ..AddressPlan::default() };
    repair_services(&mut objects, input.now, &mut plan);
    repair_ip_addresses(&objects, input.now, &mut plan);
    plan.creates.sort();
    plan.deletes.sort();
    plan
}

fn objects<'a>(input: &Input<'a>, cidrs: &[&'a ServiceCidr]) -> Objects<'a> {
    Objects {
        services: input.services.iter().map(|service| (service.key.clone(), *service)).collect(),
        ip_addresses: input.ip_addresses.iter().map(|ip| (ip.address, *ip)).collect(),
        unreadable: input.unreadable.iter().cloned().collect(),
        service_cidrs: cidrs.to_vec(),
        claimed: BTreeMap::new(),
    }
}

/// The allocator of a cluster, in which nothing is taken yet, and the families that it gives. Ranges that are
/// refused are left out.
pub fn allocator(service_cidrs: &[&ServiceCidr]) -> (Allocator, ClusterFamilies) {
    let pools: Vec<Pool> =
        distinct_ranges(&cidr::in_order(service_cidrs)).into_iter().map(|(pool, _)| pool).collect();
    let usable = pools.iter().copied().filter(|pool| pool.range.refusal().is_none());
    let allocator = Allocator::new(usable);
    let families = ClusterFamilies {
        default: pools.first().map(|pool| pool.range.family()),
        v4: allocator.serves(Family::V4),
        v6: allocator.serves(Family::V6),
    };
    (allocator, families)
}

/// The distinct ranges with the ServiceCIDRs that have them. Semantics E2: ready if one of these is.
fn distinct_ranges(cidrs: &[&ServiceCidr]) -> Vec<(Pool, Vec<Name>)> {
    let mut distinct: Vec<(Pool, Vec<Name>)> = Vec::new();
    let mut at_by_cidr: BTreeMap<IpNet, usize> = BTreeMap::new();
    for cidr in cidrs {
        for range in cidr::ranges(cidr) {
            let at = *at_by_cidr.entry(range.cidr).or_insert(distinct.len());
            if at == distinct.len() {
                distinct.push((Pool { range, ready: false }, Vec::new()));
            }
            let (pool, names) = &mut distinct[at];
            pool.ready |= cidr::is_ready(cidr) && range.refusal().is_none();
            if !names.contains(&cidr.name) {
                names.push(cidr.name.clone());
            }
        }
    }
    distinct
}

fn unused_ranges(cidrs: &[&ServiceCidr]) -> Vec<Notice> {
    let refused = |cidr: &ServiceCidr, i: usize, range: Range| {
        let message = format!("spec.cidrs[{i}]: {} is not used: {}.", range.cidr, range.refusal()?);
        Some(Notice::new(ObjectRef::new("ServiceCIDR", "", &cidr.name), "ServiceCIDRNotUsed", message))
    };
    let entries =
        cidrs.iter().flat_map(|cidr| cidr::ranges(cidr).enumerate().map(move |(i, r)| (cidr, i, r)));
    entries.filter_map(|(cidr, i, range)| refused(cidr, i, range)).collect()
}

fn reports(cidrs: &[&ServiceCidr], allocator: &Allocator) -> Vec<RangeReport> {
    let report = |(pool, names): (Pool, Vec<Name>)| RangeReport {
        cidr: pool.range.cidr,
        static_band: pool.range.static_band(),
        dynamic_band: pool.range.dynamic_band(),
        free: allocator.free(&pool.range),
        ready: pool.ready,
        names,
    };
    distinct_ranges(cidrs).into_iter().map(report).collect()
}

/// The Service side of repair, for Services that exist in the cluster already.
fn repair_services(objects: &mut Objects<'_>, now: Option<Timestamp>, plan: &mut AddressPlan) {
    // Semantics E5: without any ServiceCIDR every address would be out of range; repair waits for one.
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

/// Whether the cluster knows the Service and its addresses already, so that they are to be repaired and not
/// to be asked for: an API server gave it an identity or a time, or an IPAddress names it.
fn is_established(service: &Service, objects: &Objects<'_>) -> bool {
    let held =
        |ip: &IpAddr| objects.ip_addresses.get(ip).is_some_and(|held| repair::names(held, &service.key));
    let addresses = service.cluster_ips.addresses();
    !addresses.is_empty()
        && (service.uid.is_some() || service.created.is_some() || addresses.iter().any(held))
}

/// The IPAddress side of repair, for what the Service side and the assignment left alone.
fn repair_ip_addresses(objects: &Objects<'_>, now: Option<Timestamp>, plan: &mut AddressPlan) {
    let touched: BTreeSet<IpAddr> = plan.deletes.iter().copied().collect();
    let assigned = plan.assigned.iter().map(|assignment| (&assignment.service, &assignment.cluster_ips));
    let assigned: BTreeMap<&ServiceKey, &Vec<IpAddr>> = assigned.collect();
    for (address, ip) in &objects.ip_addresses {
        let parent = objects.parent(ip);
        let adopted =
            parent.and_then(|service| assigned.get(&service.key)).is_some_and(|list| list.contains(address));
        if touched.contains(address) || adopted || objects.unreadable_parent(ip).is_some() {
            continue;
        }
        match repair_ip_address(ip, parent, now) {
            IpAddressRepair::Keep => {}
            IpAddressRepair::Wait(seconds) => {
                plan.look_again_after = Some(plan.look_again_after.map_or(seconds, |s| s.min(seconds)));
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

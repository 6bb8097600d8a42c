//! Repairs references between Services (`spec.clusterIPs`) and IPAddresses (`spec.parentRef`).
//!
//! ```text
//! Service lists X  <->  IPAddress X refers to it                     consistent
//! Service lists X       no IPAddress X                               create it
//! Service lists X       IPAddress X refers to no existing object     recreate it
//! Service lists X       IPAddress X refers to another owner          Notice: needs manual repair
//! no Service lists X    IPAddress X refers to a Service              delete it after a grace period
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::annotation::IP_ALLOCATOR;
use model::{Family, IpAddress, Notice, ObjectRef, Service, ServiceCidr, ServiceKey, ServiceType, Timestamp};

use super::ip_families::needs_addresses;
use super::service_cidr;

/// Pitfall 41: an IPAddress exists before its Service, for up to the duration of a request.
const CREATION_GRACE_SECONDS: f64 = 60.0;
/// Pitfall 41: a second address exists shortly before its Service lists it.
const UPDATE_GRACE_SECONDS: f64 = 5.0;

#[derive(Clone, Debug, Default)]
pub struct AddressObjects<'a> {
    pub services: BTreeMap<ServiceKey, &'a Service>,
    /// Services that do not parse: their addresses are unknown.
    pub unreadable: BTreeSet<ServiceKey>,
    pub ip_addresses: BTreeMap<IpAddr, &'a IpAddress>,
    pub service_cidrs: Vec<&'a ServiceCidr>,
    /// Addresses for which this pass creates an IPAddress, with their Service.
    pub claimed: BTreeMap<IpAddr, ServiceKey>,
}

/// Repair of the IPAddresses of one Service. Deletes come before creates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRepair {
    pub deletes: Vec<IpAddr>,
    /// IPAddresses to create for the Service.
    pub creates: Vec<IpAddr>,
    pub notices: Vec<Notice>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IpAddressRepair {
    Keep,
    /// Seconds until the grace period ends.
    Wait(u64),
    Delete(Notice),
}

/// Whether `spec.parentRef` is this Service.
pub fn refers_to(ip: &IpAddress, service: &ServiceKey) -> bool {
    refers_to_a_service(ip) && ip.parent.namespace == service.namespace && ip.parent.name == service.name
}

fn refers_to_a_service(ip: &IpAddress) -> bool {
    ip.parent.group.is_empty() && ip.parent.resource == *"services"
}

fn parent_key(ip: &IpAddress) -> ServiceKey {
    ServiceKey::new(&ip.parent.namespace, &ip.parent.name)
}

fn is_managed(ip: &IpAddress) -> bool {
    ip.managed_by.as_ref().is_some_and(|by| *by == *IP_ALLOCATOR)
}

fn lists(service: &Service, ip: IpAddr) -> bool {
    service.cluster_ips.addresses().contains(&ip)
}

impl<'a> AddressObjects<'a> {
    /// The Service of an IPAddress, if it exists.
    pub fn parent(&self, ip: &IpAddress) -> Option<&'a Service> {
        if !refers_to_a_service(ip) {
            return None;
        }
        self.services.get(&parent_key(ip)).copied()
    }

    /// The Service of an IPAddress, if it does not parse: an invalid manifest must not lose its address.
    pub fn unreadable_parent(&self, ip: &IpAddress) -> Option<&ServiceKey> {
        if !refers_to_a_service(ip) {
            return None;
        }
        self.unreadable.get(&parent_key(ip))
    }
}

/// Compares a Service with the IPAddresses of its addresses (semantics E5, Service side).
pub fn repair_service(
    service: &Service,
    objects: &AddressObjects<'_>,
    now: Option<Timestamp>,
) -> ServiceRepair {
    let mut repair = ServiceRepair::default();
    if !needs_addresses(service) {
        return repair;
    }
    let addresses = service.cluster_ips.addresses();
    for (i, ip) in addresses.iter().enumerate() {
        let repeated = addresses[..i].iter().any(|before| Family::of(*before) == Family::of(*ip));
        if repeated {
            let text = "the Service has another address of that IP family. Recreate the Service with one address per family.";
            repair.notices.push(about_service(service, i, "ClusterIPNotValid", *ip, text));
            continue;
        }
        repair_address(service, i, *ip, objects, now, &mut repair);
    }
    repair
}

fn repair_address(
    service: &Service,
    i: usize,
    ip: IpAddr,
    objects: &AddressObjects<'_>,
    now: Option<Timestamp>,
    repair: &mut ServiceRepair,
) {
    let mut tell = |reason, text: &str| repair.notices.push(about_service(service, i, reason, ip, text));
    if service_cidr::containing(ip, &objects.service_cidrs).is_empty() {
        let text = "it is not a usable address of any ServiceCIDR. Create a ServiceCIDR that contains it, or recreate \
                    the Service to get another address.";
        return tell("ClusterIPOutOfRange", text);
    }
    if let Some(first) = objects.claimed.get(&ip) {
        return repair.notices.push(shared(service, ip, first));
    }
    let Some(stored) = objects.ip_addresses.get(&ip) else {
        tell("ClusterIPNotAllocated", "it had no IPAddress object. One is created; no action is needed.");
        return repair.creates.push(ip);
    };
    match lock_state(service, stored, objects, now) {
        LockState::Correct => return,
        LockState::Shared(other) => return repair.notices.push(shared(service, ip, &other)),
        LockState::WrongReference => {
            let text =
                "its IPAddress object referred to another object. It is recreated; no action is needed.";
            tell("ClusterIPNotAllocated", text);
        }
        LockState::WrongLabels => {}
    }
    repair.deletes.push(ip);
    repair.creates.push(ip);
}

enum LockState {
    Correct,
    Shared(ServiceKey),
    WrongReference,
    WrongLabels,
}

/// How an IPAddress matches a Service that lists its address.
fn lock_state(
    service: &Service,
    ip: &IpAddress,
    objects: &AddressObjects<'_>,
    now: Option<Timestamp>,
) -> LockState {
    if !refers_to(ip, &service.key) {
        if let Some(unreadable) = objects.unreadable_parent(ip) {
            return LockState::Shared(unreadable.clone());
        }
        let Some(other) = objects.parent(ip) else { return LockState::WrongReference };
        if lists(other, ip.address) {
            return LockState::Shared(other.key.clone());
        }
        // The other Service does not list it: the IPAddress is deleted after its grace period.
        return match (is_managed(ip), repair_ip_address(ip, Some(other), now)) {
            (true, IpAddressRepair::Keep | IpAddressRepair::Wait(_)) => LockState::Correct,
            (true, IpAddressRepair::Delete(_)) => LockState::WrongReference,
            (false, _) => LockState::WrongLabels,
        };
    }
    if is_well_labelled(ip) { LockState::Correct } else { LockState::WrongLabels }
}

/// Whether it has the labels that the allocator sets.
pub(super) fn is_well_labelled(ip: &IpAddress) -> bool {
    let family = Family::of(ip.address).as_str();
    is_managed(ip) && ip.family_label.as_ref().is_some_and(|label| *label == *family)
}

/// Compares an IPAddress with its Service `parent`, if that exists (semantics E5, IPAddress side). Without `now`, no
/// grace period ends.
pub fn repair_ip_address(
    ip: &IpAddress,
    parent: Option<&Service>,
    now: Option<Timestamp>,
) -> IpAddressRepair {
    if !is_managed(ip) {
        return IpAddressRepair::Keep;
    }
    if !refers_to_a_service(ip) {
        let text = "spec.parentRef is not a Service, although it is managed by the allocator of cluster IPs";
        return delete(ip, "IPAddressNotAllocated", text);
    }
    let Some(service) = parent else {
        if let Some(left) = grace_left(ip, CREATION_GRACE_SECONDS, now).filter(|left| *left >= 0.0) {
            return wait(left);
        }
        return delete(ip, "IPAddressNotAllocated", "its Service does not exist");
    };
    if lists(service, ip.address) {
        return IpAddressRepair::Keep;
    }
    let left = if service.kind == ServiceType::ExternalName {
        // Pitfall 41: a Service that changes from ExternalName gets its addresses before its new type.
        grace_left(ip, CREATION_GRACE_SECONDS, now).filter(|left| *left >= 0.0)
    } else if ip.created > service.created {
        grace_left(ip, UPDATE_GRACE_SECONDS, now).filter(|left| *left > 0.0)
    } else {
        None
    };
    match left {
        Some(left) => wait(left),
        None => {
            let why = "its Service does not list it in spec.clusterIPs";
            delete(ip, "IPAddressWrongReference", why)
        }
    }
}

/// Seconds until an IPAddress is `grace` seconds old, at most `grace`. Without a creation time it counts as old.
fn grace_left(ip: &IpAddress, grace: f64, now: Option<Timestamp>) -> Option<f64> {
    let created = ip.created?;
    Some(now.map_or(grace, |now| grace - now.seconds_since(created)).min(grace))
}

fn wait(seconds: f64) -> IpAddressRepair {
    IpAddressRepair::Wait(seconds.ceil().max(1.0) as u64)
}

fn delete(ip: &IpAddress, reason: &'static str, why: &str) -> IpAddressRepair {
    let object = ObjectRef::new("IPAddress", "", &ip.address.to_string());
    let parent = &ip.parent;
    let names = format!("{}/{} of {}", parent.namespace, parent.name, parent.resource);
    let message = format!("{why} ({names}). It is deleted and the address is released; no action is needed.");
    IpAddressRepair::Delete(Notice::new(object, reason, message))
}

pub(super) fn shared(service: &Service, ip: IpAddr, holder: &ServiceKey) -> Notice {
    let i = service.cluster_ips.addresses().iter().position(|listed| *listed == ip).unwrap_or_default();
    let text = format!(
        "Service {holder} has the same address and owns its IPAddress. Recreate one of the two Services."
    );
    about_service(service, i, "ClusterIPAlreadyAllocated", ip, &text)
}

fn about_service(service: &Service, i: usize, reason: &'static str, ip: IpAddr, text: &str) -> Notice {
    let message = format!("spec.clusterIPs[{i}] is {ip}: {text}");
    Notice::new(ObjectRef::service(&service.key), reason, message)
}

#[cfg(test)]
mod tests;

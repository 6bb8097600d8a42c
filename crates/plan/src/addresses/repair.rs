//! Services and IPAddresses must name each other; this finds where they do not and says how to mend it.
//!
//! ```text
//! Service lists X  <->  IPAddress X names the Service    fine
//! Service lists X       no IPAddress X                   create it
//! Service lists X       IPAddress X names nobody alive   delete and create it
//! Service lists X       IPAddress X names another owner  a person has to choose
//! nobody lists X        IPAddress X names a Service      delete it, but not while a change is under way
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::annotation::IP_ALLOCATOR;
use model::{Family, IpAddress, Notice, ObjectRef, Service, ServiceCidr, ServiceKey, ServiceType, Timestamp};

use super::cidr;
use super::families::needs_addresses;

/// Pitfall 41: an IPAddress is there before its Service is, for as long as a request may take.
const CREATION_GRACE_SECONDS: f64 = 60.0;
/// Pitfall 41: a second address is there a moment before its Service lists it.
const UPDATE_GRACE_SECONDS: f64 = 5.0;

/// The objects that repair compares.
#[derive(Clone, Debug, Default)]
pub struct Objects<'a> {
    /// Every Service, by its key.
    pub services: BTreeMap<ServiceKey, &'a Service>,
    /// The Services that could not be read: nobody knows which addresses they list.
    pub unreadable: BTreeSet<ServiceKey>,
    /// Every IPAddress, by its address.
    pub ip_addresses: BTreeMap<IpAddr, &'a IpAddress>,
    /// Every ServiceCIDR.
    pub service_cidrs: Vec<&'a ServiceCidr>,
    /// The addresses for which this pass creates an IPAddress already, and for whom.
    pub claimed: BTreeMap<IpAddr, ServiceKey>,
}

/// What is to be done about the IPAddresses of one Service. Deletes come before creates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRepair {
    /// IPAddresses to delete.
    pub deletes: Vec<IpAddr>,
    /// Addresses for which to create an IPAddress that names the Service.
    pub creates: Vec<IpAddr>,
    /// What to tell.
    pub notices: Vec<Notice>,
}

/// What is to be done about one IPAddress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IpAddressRepair {
    /// Nothing.
    Keep,
    /// Look again after so many seconds: a change may be under way.
    Wait(u64),
    /// Delete it, and tell why.
    Delete(Notice),
}

/// Whether an IPAddress names this Service.
pub fn names(ip: &IpAddress, service: &ServiceKey) -> bool {
    names_a_service(ip) && ip.parent.namespace == service.namespace && ip.parent.name == service.name
}

fn names_a_service(ip: &IpAddress) -> bool {
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

impl<'a> Objects<'a> {
    /// The Service that an IPAddress names, if it exists.
    pub fn parent(&self, ip: &IpAddress) -> Option<&'a Service> {
        if !names_a_service(ip) {
            return None;
        }
        self.services.get(&parent_key(ip)).copied()
    }

    /// The Service that an IPAddress names, if it is one that could not be read: a mistake in its manifest must
    /// not cost it its address.
    pub fn unreadable_parent(&self, ip: &IpAddress) -> Option<&ServiceKey> {
        if !names_a_service(ip) {
            return None;
        }
        self.unreadable.get(&parent_key(ip))
    }
}

/// Compares a Service with the IPAddresses of its addresses (semantics E5, Service side).
pub fn repair_service(service: &Service, objects: &Objects<'_>, now: Option<Timestamp>) -> ServiceRepair {
    let mut repair = ServiceRepair::default();
    if !needs_addresses(service) {
        return repair;
    }
    let addresses = service.cluster_ips.addresses();
    for (i, ip) in addresses.iter().enumerate() {
        let repeated = addresses[..i].iter().any(|before| Family::of(*before) == Family::of(*ip));
        if repeated {
            let text =
                "the Service has an address of that family already. Recreate the Service with one of each.";
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
    objects: &Objects<'_>,
    now: Option<Timestamp>,
    repair: &mut ServiceRepair,
) {
    let mut tell = |reason, text: &str| repair.notices.push(about_service(service, i, reason, ip, text));
    if cidr::containing(ip, &objects.service_cidrs).is_empty() {
        let text = "no ServiceCIDR has it as a usable address. Create a ServiceCIDR that does, or recreate \
                    the Service to get another address.";
        return tell("ClusterIPOutOfRange", text);
    }
    if let Some(first) = objects.claimed.get(&ip) {
        return repair.notices.push(shared(service, ip, first));
    }
    let Some(stored) = objects.ip_addresses.get(&ip) else {
        tell("ClusterIPNotAllocated", "it had no IPAddress object. It gets one; nothing is to be done.");
        return repair.creates.push(ip);
    };
    match finding(service, stored, objects, now) {
        Finding::Fine => return,
        Finding::Shared(other) => return repair.notices.push(shared(service, ip, &other)),
        Finding::WrongReference => {
            let text = "its IPAddress object named somebody else. It is made anew; nothing is to be done.";
            tell("ClusterIPNotAllocated", text);
        }
        Finding::WrongLabels => {}
    }
    repair.deletes.push(ip);
    repair.creates.push(ip);
}

enum Finding {
    Fine,
    Shared(ServiceKey),
    WrongReference,
    WrongLabels,
}

/// How an IPAddress fits a Service that lists its address.
fn finding(service: &Service, ip: &IpAddress, objects: &Objects<'_>, now: Option<Timestamp>) -> Finding {
    if !names(ip, &service.key) {
        if let Some(unreadable) = objects.unreadable_parent(ip) {
            return Finding::Shared(unreadable.clone());
        }
        let Some(other) = objects.parent(ip) else { return Finding::WrongReference };
        if lists(other, ip.address) {
            return Finding::Shared(other.key.clone());
        }
        // The other Service does not list it: the IPAddress is about to go, unless a change is under way.
        return match (is_managed(ip), repair_ip_address(ip, Some(other), now)) {
            (true, IpAddressRepair::Keep | IpAddressRepair::Wait(_)) => Finding::Fine,
            (true, IpAddressRepair::Delete(_)) => Finding::WrongReference,
            (false, _) => Finding::WrongLabels,
        };
    }
    if is_well_labelled(ip) { Finding::Fine } else { Finding::WrongLabels }
}

/// Whether it carries the labels that the allocator gives.
pub(super) fn is_well_labelled(ip: &IpAddress) -> bool {
    let family = Family::of(ip.address).as_str();
    is_managed(ip) && ip.family_label.as_ref().is_some_and(|label| *label == *family)
}

/// Compares an IPAddress with the Service that it names (semantics E5, IPAddress side). `parent` is that
/// Service, if it exists; without a clock no IPAddress of known age is deleted for its age.
pub fn repair_ip_address(
    ip: &IpAddress,
    parent: Option<&Service>,
    now: Option<Timestamp>,
) -> IpAddressRepair {
    if !is_managed(ip) {
        return IpAddressRepair::Keep;
    }
    if !names_a_service(ip) {
        let text = "spec.parentRef names no Service, although the allocator of Services wrote it";
        return delete(ip, "IPAddressNotAllocated", text);
    }
    let Some(service) = parent else {
        if let Some(left) = grace_left(ip, CREATION_GRACE_SECONDS, now).filter(|left| *left >= 0.0) {
            return wait(left);
        }
        return delete(ip, "IPAddressNotAllocated", "the Service that it names does not exist");
    };
    if lists(service, ip.address) {
        return IpAddressRepair::Keep;
    }
    let left = if service.kind == ServiceType::ExternalName {
        // Pitfall 41: a Service that stops being an ExternalName gets its addresses before its new type.
        grace_left(ip, CREATION_GRACE_SECONDS, now).filter(|left| *left >= 0.0)
    } else if ip.created > service.created {
        grace_left(ip, UPDATE_GRACE_SECONDS, now).filter(|left| *left > 0.0)
    } else {
        None
    };
    match left {
        Some(left) => wait(left),
        None => {
            let why = "the Service that it names does not list it in spec.clusterIPs";
            delete(ip, "IPAddressWrongReference", why)
        }
    }
}

/// The seconds until an IPAddress is `grace` seconds old, but no more than these. One that does not say when
/// it was made counts as old.
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
    let message =
        format!("{why} ({names}). It is deleted and the address is free again; nothing is to be done.");
    IpAddressRepair::Delete(Notice::new(object, reason, message))
}

/// Two Services have one address.
pub(super) fn shared(service: &Service, ip: IpAddr, holder: &ServiceKey) -> Notice {
    let i = service.cluster_ips.addresses().iter().position(|listed| *listed == ip).unwrap_or_default();
    let text = format!("Service {holder} has it too and holds its IPAddress. Recreate one of the two.");
    about_service(service, i, "ClusterIPAlreadyAllocated", ip, &text)
}

fn about_service(service: &Service, i: usize, reason: &'static str, ip: IpAddr, text: &str) -> Notice {
    let message = format!("spec.clusterIPs[{i}] is {ip}: {text}");
    Notice::new(ObjectRef::service(&service.key), reason, message)
}

#[cfg(test)]
mod tests;

//! Assigns cluster IPs: first to Services that request specific addresses, so that these are not allocated to others,
//! then to the rest by key.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{Family, IpAddress, Service, ServiceKey};

use super::ip_allocator::{AllocateError, IpAllocator, IpPool, start_offset};
use super::ip_families::{self, ClusterFamilies};
use super::{
    AddressObjects, AddressPlan, AddressRejection, Assignment, FieldError, allocator, is_established, repair,
};
use crate::node_port_allocator::{NodePortError, NodePortRequest, allocate};
use crate::validate::ValidationOptions;

/// Assigns into `plan`; returns the resulting allocator.
pub(super) fn assign(objects: &AddressObjects<'_>, seed: u64, plan: &mut AddressPlan) -> IpAllocator {
    let mut assigner = Assigner::new(objects, seed);
    let lacking = || objects.services.values().copied().filter(|service| !service.deleting);
    let has_request = |service: &Service| !service.cluster_ips.addresses().is_empty();
    for service in lacking().filter(|service| has_request(service)) {
        assigner.process(service, plan);
    }
    assigner.release_rejected_requests();
    for service in lacking().filter(|service| !has_request(service)) {
        assigner.process(service, plan);
    }
    assigner.allocator
}

struct Assigner<'a> {
    objects: &'a AddressObjects<'a>,
    seed: u64,
    cluster: ClusterFamilies,
    allocator: IpAllocator,
    /// The owner of an address, for messages.
    holders: BTreeMap<IpAddr, String>,
    /// Addresses in `spec.clusterIPs` of Services.
    listed: BTreeSet<IpAddr>,
    /// Addresses that new Services request, reserved until all requests are processed.
    requested: Vec<IpAddr>,
    /// IPAddresses by their Service.
    locks_by_service: BTreeMap<ServiceKey, Vec<&'a IpAddress>>,
    /// Owners of node ports, including health check node ports.
    holders_by_port: BTreeMap<u16, ServiceKey>,
}

/// Addresses found for a Service.
#[derive(Default)]
struct FoundAddresses {
    cluster_ips: Vec<IpAddr>,
    /// Addresses that need an IPAddress.
    unlocked: Vec<IpAddr>,
    /// Addresses that the allocator chose.
    allocated: Vec<IpAddr>,
}

impl<'a> Assigner<'a> {
    fn new(objects: &'a AddressObjects<'a>, seed: u64) -> Self {
        let (allocator, cluster) = allocator(&objects.service_cidrs);
        let mut assigner = Self {
            objects,
            seed,
            cluster,
            allocator,
            holders: BTreeMap::new(),
            listed: BTreeSet::new(),
            requested: Vec::new(),
            locks_by_service: BTreeMap::new(),
            holders_by_port: BTreeMap::new(),
        };
        assigner.mark_existing();
        assigner
    }

    fn mark_existing(&mut self) {
        for (address, ip) in &self.objects.ip_addresses {
            self.allocator.mark_allocated(*address);
            let parent = &ip.parent;
            let key = ServiceKey::new(&parent.namespace, &parent.name);
            if repair::refers_to(ip, &key) {
                self.holders.insert(*address, format!("Service {key}"));
                self.locks_by_service.entry(key).or_default().push(ip);
            } else {
                self.holders.insert(*address, format!("{key} of {}", parent.resource));
            }
        }
        for (key, service) in self.objects.services.iter().filter(|(_, s)| ip_families::needs_addresses(s)) {
            let established = is_established(service, self.objects);
            if established {
                self.hold_ports(service);
            }
            for ip in service.cluster_ips.addresses() {
                self.listed.insert(*ip);
                if established {
                    self.holders.entry(*ip).or_insert_with(|| format!("Service {key}"));
                    self.allocator.mark_allocated(*ip);
                } else if self.allocator.mark_allocated(*ip) {
                    self.requested.push(*ip);
                }
            }
        }
    }

    fn hold_ports(&mut self, service: &Service) {
        for (port, _) in NodePortRequest::requested_by(service).requested() {
            self.holders_by_port.entry(port).or_insert_with(|| service.key.clone());
        }
    }

    /// API servers reject a Service that requests an allocated node port.
    fn check_ports(&self, service: &Service) -> Result<(), FieldError> {
        let request = NodePortRequest::requested_by(service);
        if request.requested().next().is_none() {
            return Ok(());
        }
        let in_use: BTreeSet<u16> = self.holders_by_port.keys().copied().collect();
        let range = ValidationOptions::WITHOUT_FLAGS.node_ports;
        match allocate(&request, &range, &in_use, self.seed) {
            Err(NodePortError::Taken { field, port }) => {
                let holder = self.holders_by_port.get(&port).map(|key| format!("Service {key}"));
                let holder = holder.unwrap_or_else(|| "another Service".to_owned());
                let reason = format!(
                    "{port} is allocated to {holder}; choose a free port, or remove the field to get one allocated"
                );
                Err(FieldError::invalid(field, reason))
            }
            Ok(_) | Err(NodePortError::Full) => Ok(()),
        }
    }

    fn release_rejected_requests(&mut self) {
        for ip in std::mem::take(&mut self.requested) {
            if !self.holders.contains_key(&ip) {
                self.allocator.release(ip);
            }
        }
    }

    fn process(&mut self, service: &Service, plan: &mut AddressPlan) {
        let found = match self.find(service) {
            Ok(found) => found,
            Err(FieldError { field, message, .. }) => {
                return plan.rejected.push(AddressRejection {
                    service: service.key.clone(),
                    field,
                    reason: message,
                });
            }
        };
        for ip in &found.cluster_ips {
            self.holders.entry(*ip).or_insert_with(|| format!("Service {}", service.key));
        }
        self.hold_ports(service);
        plan.creates.extend(found.unlocked.into_iter().map(|ip| (ip, service.key.clone())));
        if found.cluster_ips.len() > service.cluster_ips.addresses().len() {
            plan.assigned.push(Assignment { service: service.key.clone(), cluster_ips: found.cluster_ips });
        }
    }

    /// All addresses of a Service, or an error and no allocation (semantics E3).
    fn find(&mut self, service: &Service) -> Result<FoundAddresses, FieldError> {
        let mut found = FoundAddresses::default();
        let result = self.find_into(service, &mut found);
        if result.is_err() {
            for ip in &found.allocated {
                self.allocator.release(*ip);
            }
        }
        result.map(|()| found)
    }

    fn find_into(&mut self, service: &Service, found: &mut FoundAddresses) -> Result<(), FieldError> {
        if is_established(service, self.objects) {
            let Some(missing) = ip_families::lacking(service, &self.cluster)? else { return Ok(()) };
            found.cluster_ips.extend(service.cluster_ips.addresses());
            return self.find_free(service, missing, found);
        }
        self.check_ports(service)?;
        for (i, family) in ip_families::wanted(service, &self.cluster)?.into_iter().enumerate() {
            match service.cluster_ips.addresses().get(i) {
                Some(ip) => self.find_requested(*ip, i, found)?,
                None => self.find_free(service, family, found)?,
            }
        }
        Ok(())
    }

    /// A new Service has no IPAddress yet, so an allocated address belongs to another owner.
    fn find_requested(&self, ip: IpAddr, i: usize, found: &mut FoundAddresses) -> Result<(), FieldError> {
        let reason = match (self.allocator.admits(ip), self.holders.get(&ip)) {
            (Err(error), _) => self.not_admitted_message(ip, error),
            (Ok(()), Some(holder)) => {
                format!(
                    "{ip} is allocated to {holder}; choose a free address, or remove the field to get one allocated"
                )
            }
            (Ok(()), None) => {
                found.cluster_ips.push(ip);
                found.unlocked.push(ip);
                return Ok(());
            }
        };
        // Semantics E3: the error is reported on spec.clusterIPs.
        Err(FieldError::invalid(format!("spec.clusterIPs[{i}]"), reason))
    }

    fn not_admitted_message(&self, ip: IpAddr, error: AllocateError) -> String {
        let family = Family::of(ip);
        let ready = self.pools(family).filter(|pool| pool.ready).map(|pool| pool.range.cidr.to_string());
        let ready = ready.collect::<Vec<_>>().join(", ");
        let what = if ready.is_empty() {
            format!("no {family} range is ready: create a ServiceCIDR")
        } else {
            format!("choose a free address of {ready}, or remove the field to get one allocated")
        };
        let network = self.pools(family).find(|pool| pool.range.cidr.contains(&ip));
        match (error, network) {
            (AllocateError::OutOfRange, Some(pool)) => {
                format!("{ip} is the network or broadcast address of {}; {what}", pool.range.cidr)
            }
            (AllocateError::OutOfRange, None) => format!("{ip} is in no ServiceCIDR; {what}"),
            _ => format!("all ServiceCIDRs of {ip} are not ready or being deleted; {what}"),
        }
    }

    fn find_free(
        &mut self,
        service: &Service,
        family: Family,
        found: &mut FoundAddresses,
    ) -> Result<(), FieldError> {
        if let Some(ip) = self.reserved_earlier(service, family) {
            found.cluster_ips.push(ip);
            return Ok(());
        }
        let offset = start_offset(self.seed, &service.key, family);
        let ip = self.allocator.allocate_next(family, offset).map_err(|_| self.exhausted(family))?;
        found.cluster_ips.push(ip);
        found.unlocked.push(ip);
        found.allocated.push(ip);
        Ok(())
    }

    /// An IPAddress that was created for the Service before the Service was updated, in an interrupted run.
    fn reserved_earlier(&self, service: &Service, family: Family) -> Option<IpAddr> {
        let locks = self.locks_by_service.get(&service.key)?.iter();
        let fits = |ip: &&&IpAddress| {
            Family::of(ip.address) == family
                && repair::is_well_labelled(ip)
                && self.allocator.admits(ip.address).is_ok()
                && !self.listed.contains(&ip.address)
        };
        locks.filter(fits).map(|ip| ip.address).min()
    }

    fn exhausted(&self, family: Family) -> FieldError {
        let used = |pool: &IpPool| {
            let (range, used) = (pool.range, self.allocator.used(&pool.range));
            let state = if pool.ready { "" } else { ", not ready" };
            format!("{} ({used} of {} used{state})", range.cidr, range.capacity())
        };
        let ranges = self.pools(family).map(used).collect::<Vec<_>>().join(", ");
        let reason = format!(
            "no {family} address is free in {ranges}; create another ServiceCIDR, or delete unused Services"
        );
        FieldError::invalid("spec.clusterIPs", reason)
    }

    fn pools(&self, family: Family) -> impl Iterator<Item = &IpPool> {
        self.allocator.pools().iter().filter(move |pool| pool.range.family() == family)
    }
}

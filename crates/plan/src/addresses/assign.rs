//! Gives addresses to the Services that lack them: first to those that ask for certain ones, so that nobody
//! gets these by chance, then to the others by key.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{Family, IpAddress, Service, ServiceKey};

use super::allocator::{AllocateError, Allocator, Pool, start_offset};
use super::families::{self, ClusterFamilies};
use super::{AddressPlan, Assignment, FieldError, Objects, Rejection, allocator, is_established, repair};
use crate::node_ports::{Refusal, Request, allocate};
use crate::validate::Settings;

/// Assigns into `plan` and gives back the allocator with everything that is taken then.
pub(super) fn assign(objects: &Objects<'_>, seed: u64, plan: &mut AddressPlan) -> Allocator {
    let mut assigner = Assigner::new(objects, seed);
    let lacking = || objects.services.values().copied().filter(|service| !service.deleting);
    let asks = |service: &Service| !service.cluster_ips.addresses().is_empty();
    for service in lacking().filter(|service| asks(service)) {
        assigner.serve(service, plan);
    }
    assigner.forget_wishes();
    for service in lacking().filter(|service| !asks(service)) {
        assigner.serve(service, plan);
    }
    assigner.allocator
}

struct Assigner<'a> {
    objects: &'a Objects<'a>,
    seed: u64,
    cluster: ClusterFamilies,
    allocator: Allocator,
    /// Who holds an address, in words.
    holders: BTreeMap<IpAddr, String>,
    /// The addresses that Services list.
    listed: BTreeSet<IpAddr>,
    /// Addresses that new Services ask for. They count as taken until all who ask have been served.
    wishes: Vec<IpAddr>,
    /// IPAddresses by the Service that they name.
    locks_by_service: BTreeMap<ServiceKey, Vec<&'a IpAddress>>,
    /// Node ports, and the health check's, by number.
    holders_by_port: BTreeMap<u16, ServiceKey>,
}

/// Addresses found for a Service, before they are its own.
#[derive(Default)]
struct Found {
    /// In the order of the families.
    cluster_ips: Vec<IpAddr>,
    /// Those among them that need an IPAddress.
    unlocked: Vec<IpAddr>,
    /// Those among them that the allocator chose.
    chosen: Vec<IpAddr>,
}

impl<'a> Assigner<'a> {
    fn new(objects: &'a Objects<'a>, seed: u64) -> Self {
        let (allocator, cluster) = allocator(&objects.service_cidrs);
        let mut assigner = Self {
            objects,
            seed,
            cluster,
            allocator,
            holders: BTreeMap::new(),
            listed: BTreeSet::new(),
            wishes: Vec::new(),
            locks_by_service: BTreeMap::new(),
            holders_by_port: BTreeMap::new(),
        };
        assigner.take_what_is_held();
        assigner
    }

    fn take_what_is_held(&mut self) {
        for (address, ip) in &self.objects.ip_addresses {
            self.allocator.take(*address);
            let parent = &ip.parent;
            let key = ServiceKey::new(&parent.namespace, &parent.name);
            if repair::names(ip, &key) {
                self.holders.insert(*address, format!("Service {key}"));
                self.locks_by_service.entry(key).or_default().push(ip);
            } else {
                self.holders.insert(*address, format!("{key} of {}", parent.resource));
            }
        }
        for (key, service) in self.objects.services.iter().filter(|(_, s)| families::needs_addresses(s)) {
            let established = is_established(service, self.objects);
            if established {
                self.hold_ports(service);
            }
            for ip in service.cluster_ips.addresses() {
                self.listed.insert(*ip);
                if established {
                    self.holders.entry(*ip).or_insert_with(|| format!("Service {key}"));
                    self.allocator.take(*ip);
                } else if self.allocator.take(*ip) {
                    self.wishes.push(*ip);
                }
            }
        }
    }

    fn hold_ports(&mut self, service: &Service) {
        for (port, _) in Request::naming(service).named() {
            self.holders_by_port.entry(port).or_insert_with(|| service.key.clone());
        }
    }

    /// An API server refuses all of a Service that names a node port of another one.
    fn check_ports(&self, service: &Service) -> Result<(), FieldError> {
        let request = Request::naming(service);
        if request.named().next().is_none() {
            return Ok(());
        }
        let in_use: BTreeSet<u16> = self.holders_by_port.keys().copied().collect();
        let range = Settings::default().node_ports;
        match allocate(&request, &range, &in_use, self.seed) {
            Err(Refusal::Taken { field, port }) => {
                let holder = self.holders_by_port.get(&port).map(|key| format!("Service {key}"));
                let holder = holder.unwrap_or_else(|| "another Service".to_owned());
                let reason = format!(
                    "{port} is held by {holder}; choose a free port, or leave the field out to be given one"
                );
                Err(FieldError::new(field, reason))
            }
            Ok(_) | Err(Refusal::Full) => Ok(()),
        }
    }

    /// Addresses that were asked for in vain are free again.
    fn forget_wishes(&mut self) {
        for ip in std::mem::take(&mut self.wishes) {
            if !self.holders.contains_key(&ip) {
                self.allocator.release(ip);
            }
        }
    }

    fn serve(&mut self, service: &Service, plan: &mut AddressPlan) {
        let found = match self.find(service) {
            Ok(found) => found,
            Err(FieldError { field, reason }) => {
                return plan.rejected.push(Rejection { service: service.key.clone(), field, reason });
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

    /// All addresses of a Service or, with nothing changed, why it cannot have them all (semantics E3).
    fn find(&mut self, service: &Service) -> Result<Found, FieldError> {
        let mut found = Found::default();
        let result = self.find_into(service, &mut found);
        if result.is_err() {
            for ip in &found.chosen {
                self.allocator.release(*ip);
            }
        }
        result.map(|()| found)
    }

    fn find_into(&mut self, service: &Service, found: &mut Found) -> Result<(), FieldError> {
        if is_established(service, self.objects) {
            let Some(missing) = families::lacking(service, &self.cluster)? else { return Ok(()) };
            found.cluster_ips.extend(service.cluster_ips.addresses());
            return self.find_free(service, missing, found);
        }
        self.check_ports(service)?;
        for (i, family) in families::wanted(service, &self.cluster)?.into_iter().enumerate() {
            match service.cluster_ips.addresses().get(i) {
                Some(ip) => self.find_asked_for(*ip, i, found)?,
                None => self.find_free(service, family, found)?,
            }
        }
        Ok(())
    }

    /// Nothing of a Service that is not established is locked for it, so whoever holds the address is
    /// another.
    fn find_asked_for(&self, ip: IpAddr, i: usize, found: &mut Found) -> Result<(), FieldError> {
        let reason = match (self.allocator.admits(ip), self.holders.get(&ip)) {
            (Err(error), _) => self.why_not_admitted(ip, error),
            (Ok(()), Some(holder)) => {
                format!(
                    "{ip} is held by {holder}; choose a free address, or leave the field out to be given one"
                )
            }
            (Ok(()), None) => {
                found.cluster_ips.push(ip);
                found.unlocked.push(ip);
                return Ok(());
            }
        };
        // Semantics E3: an address that cannot be had is the fault of spec.clusterIPs.
        Err(FieldError::new(format!("spec.clusterIPs[{i}]"), reason))
    }

    fn why_not_admitted(&self, ip: IpAddr, error: AllocateError) -> String {
        let family = Family::of(ip);
        let ready = self.pools(family).filter(|pool| pool.ready).map(|pool| pool.range.cidr.to_string());
        let ready = ready.collect::<Vec<_>>().join(", ");
        let what = if ready.is_empty() {
            format!("no {family} range is ready: create a ServiceCIDR")
        } else {
            format!("choose a free address of {ready}, or leave the field out to be given one")
        };
        let network = self.pools(family).find(|pool| pool.range.cidr.contains(&ip));
        match (error, network) {
            (AllocateError::OutOfRange, Some(pool)) => {
                format!("{ip} is the network or broadcast address of {}; {what}", pool.range.cidr)
            }
            (AllocateError::OutOfRange, None) => format!("{ip} lies in no ServiceCIDR; {what}"),
            _ => format!("{ip} lies only in ServiceCIDRs that are not ready or are being deleted; {what}"),
        }
    }

    fn find_free(&mut self, service: &Service, family: Family, found: &mut Found) -> Result<(), FieldError> {
        if let Some(ip) = self.reserved_earlier(service, family) {
            found.cluster_ips.push(ip);
            return Ok(());
        }
        let offset = start_offset(self.seed, &service.key, family);
        let ip = self.allocator.allocate_next(family, offset).map_err(|_| self.exhausted(family))?;
        found.cluster_ips.push(ip);
        found.unlocked.push(ip);
        found.chosen.push(ip);
        Ok(())
    }

    /// An address that was locked for the Service but never written into it: we were interrupted between the
    /// two, and go on where we stopped.
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
        let used = |pool: &Pool| {
            let (range, used) = (pool.range, self.allocator.used(&pool.range));
            let state = if pool.ready { "" } else { ", not ready" };
            format!("{} ({used} of {} used{state})", range.cidr, range.capacity())
        };
        let ranges = self.pools(family).map(used).collect::<Vec<_>>().join(", ");
        let reason = format!(
            "no {family} address is free in {ranges}; create a ServiceCIDR with more addresses, or delete \
             Services that are not needed"
        );
        FieldError::new("spec.clusterIPs", reason)
    }

    fn pools(&self, family: Family) -> impl Iterator<Item = &Pool> {
        self.allocator.pools().iter().filter(move |pool| pool.range.family() == family)
    }
}

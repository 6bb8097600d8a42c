//! Addresses that several Services request: the oldest Service owns them, then the first by name.
//!
//! All requests are kept, so that an address passes to the next Service when its owner is deleted. The result depends on
//! the existing Services and not on the order of events.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::forward::{Frontend, FrontendAddress};
use model::{Notice, ObjectRef, Service, ServiceKey, Timestamp};

/// The frontends that every Service requests, and who owns each address.
#[derive(Clone, Debug, Default)]
pub struct FrontendConflicts {
    requested: BTreeMap<ServiceKey, Vec<Frontend>>,
    /// The owner first; more than one entry only in a conflict.
    contenders_by_address: BTreeMap<ExclusiveAddress, Vec<Contender>>,
}

/// An address that only one Service can own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ExclusiveAddress {
    /// A cluster IP with all ports: connections to ports that the Service lacks are rejected.
    ClusterIp(IpAddr),
    Frontend(FrontendAddress),
}

impl ExclusiveAddress {
    /// The addresses that a frontend depends on. A data plane identifies a port by its cluster IP, so a frontend also needs
    /// that of its port.
    fn needed(frontend: &Frontend) -> [Self; 3] {
        let port = &frontend.port;
        [
            Self::ClusterIp(port.cluster_ip),
            Self::Frontend(port.cluster_address()),
            Self::Frontend(frontend.address),
        ]
    }

    fn all_needed(frontends: &[Frontend]) -> BTreeSet<Self> {
        frontends.iter().flat_map(Self::needed).collect()
    }
}

/// Sorted by age: the first is the owner. A Service without a creation time was never stored and comes last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Contender {
    has_no_time: bool,
    created: Option<Timestamp>,
    service: ServiceKey,
}

impl Contender {
    fn new(service: &ServiceKey, created: Option<Timestamp>) -> Self {
        Self { has_no_time: created.is_none(), created, service: service.clone() }
    }
}

/// The frontends that a Service gets after conflicts are resolved.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResolvedFrontends {
    pub frontends: Vec<Frontend>,
    /// One per frontend whose address an older Service owns.
    pub notices: Vec<Notice>,
}

impl FrontendConflicts {
    /// Sets the frontends that a Service requests. Returns the affected Services, itself included.
    pub fn insert(&mut self, service: &Service, frontends: Vec<Frontend>) -> BTreeSet<ServiceKey> {
        self.put(&service.key, service.created, frontends)
    }

    /// Removes a Service. Returns the affected Services, itself included.
    pub fn remove(&mut self, service: &ServiceKey) -> BTreeSet<ServiceKey> {
        self.put(service, None, Vec::new())
    }

    fn put(
        &mut self,
        key: &ServiceKey,
        created: Option<Timestamp>,
        frontends: Vec<Frontend>,
    ) -> BTreeSet<ServiceKey> {
        let mut affected = BTreeSet::from([key.clone()]);
        if let Some(old) = self.requested.remove(key) {
            for address in ExclusiveAddress::all_needed(&old) {
                self.release(&address, key, &mut affected);
            }
        }
        for address in ExclusiveAddress::all_needed(&frontends) {
            let contenders = self.contenders_by_address.entry(address).or_default();
            let contender = Contender::new(key, created);
            let at = contenders.partition_point(|c| *c < contender);
            contenders.insert(at, contender);
            affected.extend(contenders.iter().map(|c| c.service.clone()));
        }
        if !frontends.is_empty() {
            self.requested.insert(key.clone(), frontends);
        }
        affected
    }

    fn release(&mut self, address: &ExclusiveAddress, key: &ServiceKey, affected: &mut BTreeSet<ServiceKey>) {
        if let Some(contenders) = self.contenders_by_address.get_mut(address) {
            contenders.retain(|c| c.service != *key);
            affected.extend(contenders.iter().map(|c| c.service.clone()));
            if contenders.is_empty() {
                self.contenders_by_address.remove(address);
            }
        }
    }

    /// The requested frontends of a Service that it owns all addresses of.
    pub fn resolved(&self, service: &ServiceKey) -> ResolvedFrontends {
        let mut resolved = ResolvedFrontends::default();
        for frontend in self.requested.get(service).into_iter().flatten() {
            let lost = ExclusiveAddress::needed(frontend).into_iter().find_map(|address| {
                let owner = self.owner(&address)?;
                (owner != service).then_some((address, owner))
            });
            match lost {
                None => resolved.frontends.push(frontend.clone()),
                Some((address, owner)) => resolved.notices.push(conflict(service, frontend, &address, owner)),
            }
        }
        resolved
    }

    fn owner(&self, address: &ExclusiveAddress) -> Option<&ServiceKey> {
        self.contenders_by_address.get(address)?.first().map(|c| &c.service)
    }
}

fn conflict(
    service: &ServiceKey,
    frontend: &Frontend,
    address: &ExclusiveAddress,
    owner: &ServiceKey,
) -> Notice {
    let (field, what) = match address {
        ExclusiveAddress::ClusterIp(ip) => ("spec.clusterIPs", ip.to_string()),
        ExclusiveAddress::Frontend(own) if *own == frontend.address => {
            (frontend.kind.field(), own.to_string())
        }
        ExclusiveAddress::Frontend(of_port) => ("spec.clusterIPs", of_port.to_string()),
    };
    let message = format!(
        "{field}: {what} belongs to the older Service {owner}, so {} of port {} is not served; change the address or port of one of the two",
        frontend.address, frontend.port
    );
    Notice::new(ObjectRef::service(service), "FrontendConflict", message)
}

//! Addresses that several Services request: the kind of the request decides, then the age of the Service, then its name.
//!
//! Cluster IPs and node ports are allocated, so that each has one Service. Any tenant may write `externalIPs`: they, and
//! load balancer IPs, never take traffic from an allocated address. A cluster IP belongs to its Service with all ports,
//! and a node port with all addresses of the node that accept node ports.
//!
//! All requests are kept, so that an address passes to the next Service when its owner is deleted. The result depends on
//! the existing Services and not on the order of events.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::forward::{Frontend, FrontendAddress, FrontendHost, FrontendKind, NodeRules};
use model::tree::compact;
use model::{Notice, ObjectRef, Service, ServiceKey, Timestamp};

/// The frontends that every Service requests, and who owns each address.
#[derive(Clone, Debug, Default)]
pub struct FrontendConflicts {
    requested: BTreeMap<ServiceKey, Box<[Frontend]>>,
    /// The owner first; more than one entry only in a conflict, so that room for one is all they get at first.
    contenders_by_address: BTreeMap<ExclusiveAddress, Vec<Contender>>,
    /// Services with load balancer or external IPs.
    external_by_ip: BTreeMap<IpAddr, BTreeSet<ServiceKey>>,
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
    /// that of its port. The frontend of a cluster IP needs no more: who owns a cluster IP owns all of its ports.
    fn needed(frontend: &Frontend) -> impl Iterator<Item = (Self, Rank)> {
        let cluster_ip = (Self::ClusterIp(frontend.port.cluster_ip), Rank::Allocated);
        let own = (frontend.kind != FrontendKind::ClusterIp)
            .then(|| (Self::Frontend(frontend.address), Rank::of(frontend.kind)));
        std::iter::once(cluster_ip).chain(own)
    }

    /// All of them, each with its best rank.
    fn all_needed(frontends: &[Frontend]) -> BTreeMap<Self, Rank> {
        let mut all = BTreeMap::new();
        for (address, rank) in frontends.iter().flat_map(Self::needed) {
            let best = all.entry(address).or_insert(rank);
            *best = rank.min(*best);
        }
        all
    }
}

/// Which kind of request comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Cluster IPs and node ports, which the API server allocates.
    Allocated,
    /// Load balancer IPs, which a controller writes to the status.
    LoadBalancer,
    /// External IPs, which the author of a Service chooses.
    ExternalIp,
}

impl Rank {
    fn of(kind: FrontendKind) -> Self {
        match kind {
            FrontendKind::ClusterIp | FrontendKind::NodePort => Self::Allocated,
            FrontendKind::LoadBalancer => Self::LoadBalancer,
            FrontendKind::ExternalIp => Self::ExternalIp,
        }
    }
}

/// Sorted by rank and age: the first is the owner. A Service without a creation time was never stored and comes last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Contender {
    rank: Rank,
    has_no_time: bool,
    created: Option<Timestamp>,
    service: ServiceKey,
}

impl Contender {
    fn new(rank: Rank, service: &ServiceKey, created: Option<Timestamp>) -> Self {
        Self { rank, has_no_time: created.is_none(), created, service: service.clone() }
    }
}

/// The frontends that a Service gets after conflicts are resolved.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResolvedFrontends {
    pub frontends: Vec<Frontend>,
    /// One per frontend whose address another Service owns.
    pub notices: Vec<Notice>,
}

impl FrontendConflicts {
    /// Sets the frontends that a Service requests. Returns the affected Services, itself included.
    pub fn insert(
        &mut self,
        service: &Service,
        frontends: Vec<Frontend>,
        node: &NodeRules,
    ) -> BTreeSet<ServiceKey> {
        self.put(&service.key, service.created, frontends, node)
    }

    /// Removes a Service. Returns the affected Services, itself included.
    pub fn remove(&mut self, service: &ServiceKey, node: &NodeRules) -> BTreeSet<ServiceKey> {
        self.put(service, None, Vec::new(), node)
    }

    fn put(
        &mut self,
        key: &ServiceKey,
        created: Option<Timestamp>,
        frontends: Vec<Frontend>,
        node: &NodeRules,
    ) -> BTreeSet<ServiceKey> {
        let mut affected = BTreeSet::from([key.clone()]);
        if let Some(old) = self.requested.remove(key) {
            for address in ExclusiveAddress::all_needed(&old).into_keys() {
                self.release(&address, key, &mut affected);
                self.add_yielding(&address, node, &mut affected);
            }
            for ip in external_ips(&old) {
                if let Some(services) = self.external_by_ip.get_mut(&ip) {
                    services.remove(key);
                    if services.is_empty() {
                        self.external_by_ip.remove(&ip);
                    }
                }
            }
        }
        for (address, rank) in ExclusiveAddress::all_needed(&frontends) {
            let contenders =
                self.contenders_by_address.entry(address).or_insert_with(|| Vec::with_capacity(1));
            let contender = Contender::new(rank, key, created);
            let at = contenders.partition_point(|c| *c < contender);
            contenders.insert(at, contender);
            affected.extend(contenders.iter().map(|c| c.service.clone()));
            self.add_yielding(&address, node, &mut affected);
        }
        for ip in external_ips(&frontends) {
            self.external_by_ip.entry(ip).or_default().insert(key.clone());
        }
        if !frontends.is_empty() {
            self.requested.insert(key.clone(), frontends.into());
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

    /// Adds the Services whose external addresses depend on the owner of an allocated one.
    fn add_yielding(
        &self,
        address: &ExclusiveAddress,
        node: &NodeRules,
        affected: &mut BTreeSet<ServiceKey>,
    ) {
        match address {
            ExclusiveAddress::ClusterIp(ip) => affected.extend(self.external_at(*ip)),
            ExclusiveAddress::Frontend(FrontendAddress { host: FrontendHost::Node(_), .. }) => {
                let shared = node.addresses.iter().filter(|ip| self.external_by_ip.contains_key(ip));
                let taking = shared.filter(|ip| node.takes_node_ports(**ip));
                affected.extend(taking.flat_map(|ip| self.external_at(*ip)));
            }
            ExclusiveAddress::Frontend(_) => {}
        }
    }

    /// Packs the trees: after many Services were added.
    pub fn compact(&mut self) {
        compact(&mut self.requested);
        compact(&mut self.contenders_by_address);
    }

    /// The Services with this load balancer or external IP.
    pub fn external_at(&self, ip: IpAddr) -> impl Iterator<Item = ServiceKey> {
        self.external_by_ip.get(&ip).into_iter().flatten().cloned()
    }

    /// The requested frontends of a Service that it owns all addresses of.
    pub fn resolved(&self, service: &ServiceKey, node: &NodeRules) -> ResolvedFrontends {
        let mut resolved = ResolvedFrontends::default();
        for frontend in self.requested.get(service).into_iter().flatten() {
            let needed = ExclusiveAddress::needed(frontend);
            let lost = needed.chain(yields_to(frontend, node)).find_map(|(address, rank)| {
                let owner = self.contenders_by_address.get(&address)?.first()?;
                (owner.service != *service).then_some((address, rank, owner))
            });
            match lost {
                None => resolved.frontends.push(frontend.clone()),
                Some((address, rank, owner)) => {
                    resolved.notices.push(conflict(service, frontend, &address, rank, owner));
                }
            }
        }
        resolved
    }
}

fn external_ip(frontend: &Frontend) -> Option<IpAddr> {
    match (frontend.address.host, Rank::of(frontend.kind)) {
        (FrontendHost::Address(ip), Rank::LoadBalancer | Rank::ExternalIp) => Some(ip),
        _ => None,
    }
}

fn external_ips(frontends: &[Frontend]) -> BTreeSet<IpAddr> {
    frontends.iter().filter_map(external_ip).collect()
}

/// The allocated addresses that an external address must not shadow: a cluster IP, whatever the port, and a node port on an
/// address of the node.
fn yields_to(frontend: &Frontend, node: &NodeRules) -> impl Iterator<Item = (ExclusiveAddress, Rank)> {
    let rank = Rank::of(frontend.kind);
    let ip = external_ip(frontend);
    let node_port = ip.filter(|ip| node.takes_node_ports(*ip)).map(|_| {
        let FrontendAddress { protocol, port, .. } = frontend.address;
        ExclusiveAddress::Frontend(FrontendAddress::node_port(frontend.address.family(), protocol, port))
    });
    ip.map(ExclusiveAddress::ClusterIp).into_iter().chain(node_port).map(move |address| (address, rank))
}

fn conflict(
    service: &ServiceKey,
    frontend: &Frontend,
    address: &ExclusiveAddress,
    rank: Rank,
    owner: &Contender,
) -> Notice {
    let own = ExclusiveAddress::Frontend(frontend.address);
    let field = if rank == Rank::Allocated && *address != own {
        FrontendKind::ClusterIp.field()
    } else {
        frontend.kind.field()
    };
    let what = match address {
        ExclusiveAddress::ClusterIp(ip) => ip.to_string(),
        ExclusiveAddress::Frontend(address) => address.to_string(),
    };
    let whose = match (owner.rank, address) {
        (same, _) if same == rank => "belongs to the older",
        (
            Rank::Allocated,
            ExclusiveAddress::Frontend(FrontendAddress { host: FrontendHost::Node(_), .. }),
        ) => "is the node port of",
        (Rank::Allocated, _) => "is the cluster IP of",
        (Rank::LoadBalancer | Rank::ExternalIp, _) => "is the load balancer IP of",
    };
    let advice = match (owner.rank == rank, address) {
        (true, _) => "change the address or port of one of the two",
        (false, ExclusiveAddress::ClusterIp(_)) => "remove the address from this Service",
        (false, ExclusiveAddress::Frontend(_)) => "remove the address from this Service or change its port",
    };
    let message = format!(
        "{field}: {what} {whose} Service {}, so {} of port {} is not served; {advice}",
        owner.service, frontend.address, frontend.port
    );
    Notice::new(ObjectRef::service(service), "FrontendConflict", message)
}

//! Who gets a place that several Services want: the older one, then the one whose name comes first.
//!
//! All claims are kept, so that a place falls to the next in line when its holder goes. What results depends
//! on the Services that are there and not on the order in which they came.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::forward::{Frontend, Place};
use model::{Notice, ObjectRef, Service, ServiceKey, Timestamp};

/// What every Service asks for.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    wanted: BTreeMap<ServiceKey, Wanted>,
    /// More than one only where Services compete.
    claimants_by_good: BTreeMap<Good, Vec<Claimant>>,
}

/// What only one Service can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Good {
    /// A cluster IP with all of its ports: those that the Service does not have are rejected.
    ClusterIp(IpAddr),
    /// One port of any address.
    Place(Place),
}

impl Good {
    /// What a frontend cannot do without. Its port is known by its cluster IP: without that, none of the
    /// port's frontends can be told from another's.
    fn needed(frontend: &Frontend) -> [Self; 3] {
        let port = &frontend.port;
        [Self::ClusterIp(port.cluster_ip), Self::Place(port.place()), Self::Place(frontend.place)]
    }

    fn all_needed(frontends: &[Frontend]) -> BTreeSet<Self> {
        frontends.iter().flat_map(Self::needed).collect()
    }
}

#[derive(Clone, Debug)]
struct Wanted {
    created: Option<Timestamp>,
    frontends: Vec<Frontend>,
}

/// Sorted so that the first one has the place. A Service without a time was never stored: it comes last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claimant {
    has_no_time: bool,
    created: Option<Timestamp>,
    service: ServiceKey,
}

impl Claimant {
    fn new(service: &ServiceKey, created: Option<Timestamp>) -> Self {
        Self { has_no_time: created.is_none(), created, service: service.clone() }
    }
}

/// What a Service gets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Granted {
    /// The frontends that are its own.
    pub frontends: Vec<Frontend>,
    /// What others have.
    pub notices: Vec<Notice>,
}

impl Claims {
    /// Takes what a Service asks for in the place of what it asked for before. Returns the Services whose
    /// grants may have changed, itself included.
    pub fn stake(&mut self, service: &Service, frontends: Vec<Frontend>) -> BTreeSet<ServiceKey> {
        self.put(&service.key, service.created, frontends)
    }

    /// Takes a Service out. Returns the Services whose grants may have changed, itself included.
    pub fn withdraw(&mut self, service: &ServiceKey) -> BTreeSet<ServiceKey> {
        self.put(service, None, Vec::new())
    }

    fn put(
        &mut self,
        key: &ServiceKey,
        created: Option<Timestamp>,
        frontends: Vec<Frontend>,
    ) -> BTreeSet<ServiceKey> {
        let mut touched = BTreeSet::from([key.clone()]);
        if let Some(old) = self.wanted.remove(key) {
            for good in Good::all_needed(&old.frontends) {
                self.release(&good, key, &mut touched);
            }
        }
        for good in Good::all_needed(&frontends) {
            let claimants = self.claimants_by_good.entry(good).or_default();
            let claimant = Claimant::new(key, created);
            let at = claimants.partition_point(|c| *c < claimant);
            claimants.insert(at, claimant);
            touched.extend(claimants.iter().map(|c| c.service.clone()));
        }
        if !frontends.is_empty() {
            self.wanted.insert(key.clone(), Wanted { created, frontends });
        }
        touched
    }

    fn release(&mut self, good: &Good, key: &ServiceKey, touched: &mut BTreeSet<ServiceKey>) {
        if let Some(claimants) = self.claimants_by_good.get_mut(good) {
            claimants.retain(|c| c.service != *key);
            touched.extend(claimants.iter().map(|c| c.service.clone()));
            if claimants.is_empty() {
                self.claimants_by_good.remove(good);
            }
        }
    }

    /// What a Service gets of what it asked for.
    pub fn granted(&self, service: &ServiceKey) -> Granted {
        let mut granted = Granted::default();
        let Some(wanted) = self.wanted.get(service) else { return granted };
        for frontend in &wanted.frontends {
            let lost = Good::needed(frontend).into_iter().find_map(|good| {
                let holder = self.holder(&good)?;
                (holder != service).then_some((good, holder))
            });
            match lost {
                None => granted.frontends.push(frontend.clone()),
                Some((good, holder)) => granted.notices.push(conflict(service, frontend, &good, holder)),
            }
        }
        granted
    }

    /// Every Service with what it gets.
    pub fn all(&self) -> impl Iterator<Item = (&ServiceKey, Granted)> {
        self.wanted.keys().map(|service| (service, self.granted(service)))
    }

    fn holder(&self, good: &Good) -> Option<&ServiceKey> {
        self.claimants_by_good.get(good)?.first().map(|c| &c.service)
    }

    /// When a Service was made, if it asks for anything.
    pub fn created(&self, service: &ServiceKey) -> Option<Timestamp> {
        self.wanted.get(service)?.created
    }
}

fn conflict(service: &ServiceKey, frontend: &Frontend, good: &Good, holder: &ServiceKey) -> Notice {
    let (field, what) = match good {
        Good::ClusterIp(ip) => ("spec.clusterIPs", ip.to_string()),
        Good::Place(place) if *place == frontend.place => (frontend.kind.field(), place.to_string()),
        Good::Place(place) => ("spec.clusterIPs", place.to_string()),
    };
    let message = format!(
        "{field}: {what} belongs to the older Service {holder}, so {} of port {} is not served; give one of the two another address or port",
        frontend.place, frontend.port
    );
    Notice::new(ObjectRef::service(service), "FrontendConflict", message)
}

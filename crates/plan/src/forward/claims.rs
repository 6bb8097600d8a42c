//! Who gets a place that several Services want: the older one, then the one whose name comes first.
//!
//! All claims are kept, so that a place falls to the next in line when its holder goes. What results depends
//! on the Services that are there and not on the order in which they came.

use std::collections::{BTreeMap, BTreeSet};

use model::forward::{Frontend, Place};
use model::{Notice, ObjectRef, Service, ServiceKey, Timestamp};

/// What every Service asks for.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    wanted: BTreeMap<ServiceKey, Wanted>,
    /// More than one only where Services compete.
    claimants_by_place: BTreeMap<Place, Vec<Claimant>>,
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
            for frontend in &old.frontends {
                self.release(&frontend.place, key, &mut touched);
            }
        }
        for frontend in &frontends {
            let claimants = self.claimants_by_place.entry(frontend.place).or_default();
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

    fn release(&mut self, place: &Place, key: &ServiceKey, touched: &mut BTreeSet<ServiceKey>) {
        if let Some(claimants) = self.claimants_by_place.get_mut(place) {
            claimants.retain(|c| c.service != *key);
            touched.extend(claimants.iter().map(|c| c.service.clone()));
            if claimants.is_empty() {
                self.claimants_by_place.remove(place);
            }
        }
    }

    /// What a Service gets of what it asked for.
    pub fn granted(&self, service: &ServiceKey) -> Granted {
        let mut granted = Granted::default();
        let Some(wanted) = self.wanted.get(service) else { return granted };
        for frontend in &wanted.frontends {
            // A port is known by its cluster IP: without that, none of its frontends can be told apart.
            let lost = [frontend.port.place(), frontend.place].into_iter().find_map(|place| {
                let holder = self.holder(&place)?;
                (holder != service).then_some((place, holder))
            });
            match lost {
                None => granted.frontends.push(frontend.clone()),
                Some((place, holder)) => granted.notices.push(conflict(service, frontend, &place, holder)),
            }
        }
        granted
    }

    /// Every Service with what it gets.
    pub fn all(&self) -> impl Iterator<Item = (&ServiceKey, Granted)> {
        self.wanted.keys().map(|service| (service, self.granted(service)))
    }

    fn holder(&self, place: &Place) -> Option<&ServiceKey> {
        self.claimants_by_place.get(place)?.first().map(|c| &c.service)
    }

    /// When a Service was made, if it asks for anything.
    pub fn created(&self, service: &ServiceKey) -> Option<Timestamp> {
        self.wanted.get(service)?.created
    }
}

fn conflict(service: &ServiceKey, frontend: &Frontend, place: &Place, holder: &ServiceKey) -> Notice {
    let field = if *place == frontend.place { frontend.kind.field() } else { "spec.clusterIPs" };
    let message = format!(
        "{field}: {place} belongs to the older Service {holder}, so {} of port {} is not served; give one of the two another address or port",
        frontend.place, frontend.port
    );
    Notice::new(ObjectRef::service(service), "FrontendConflict", message)
}

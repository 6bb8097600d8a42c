//! Which endpoints of UDP ports serve now, and which have always served since they were first listed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use model::{Protocol, Service, Slice};

/// One Service's UDP port as committed.
#[derive(Default)]
struct UdpPort {
    /// Its frontend while the Service exists.
    frontend: Option<SocketAddr>,
    serving: BTreeSet<SocketAddr>,
}

/// UDP ports of Services; a Service has one at most.
#[derive(Default)]
pub(crate) struct UdpHistory {
    ports: BTreeMap<String, UdpPort>,
    /// Frontends and endpoints that were missing once after they had been there.
    lost_frontends: BTreeSet<SocketAddr>,
    lost_endpoints: BTreeSet<(String, SocketAddr)>,
    /// Every Service that had a frontend.
    owners: BTreeMap<SocketAddr, BTreeSet<String>>,
}

impl UdpHistory {
    pub(crate) fn service(&mut self, name: &str, service: &Service, is_deletion: bool) {
        let ip = service.cluster_ips.addresses().first().copied().filter(|_| !is_deletion);
        let port = service.ports.iter().find(|port| port.protocol == Protocol::Udp);
        let frontend = ip.zip(port).map(|(ip, port)| SocketAddr::new(ip, port.port));
        let known = self.ports.entry(name.to_owned()).or_default();
        if known.frontend != frontend {
            self.lost_frontends.extend(known.frontend);
            known.frontend = frontend;
        }
        if let Some(frontend) = frontend {
            self.owners.entry(frontend).or_default().insert(name.to_owned());
        }
    }

    /// All slices of a Service after a change of one.
    pub(crate) fn slices(&mut self, service: &str, slices: &[Slice]) {
        let mut serving = BTreeSet::new();
        for slice in slices {
            let ports = slice.content.ports.iter().filter(|port| port.protocol == Protocol::Udp);
            for number in ports.filter_map(|port| port.port) {
                let endpoints = slice.content.endpoints.iter().filter(|e| e.conditions.is_serving());
                serving.extend(endpoints.map(|e| SocketAddr::new(e.addresses.first(), number)));
            }
        }
        let known = self.ports.entry(service.to_owned()).or_default();
        for lost in known.serving.difference(&serving) {
            self.lost_endpoints.insert((service.to_owned(), *lost));
        }
        known.serving = serving;
    }

    /// Whether an address was the frontend of one Service all the time, and an endpoint served it all the time.
    pub(crate) fn always_served(&self, frontend: SocketAddr, endpoint: SocketAddr) -> bool {
        let Some(owners) = self.owners.get(&frontend).filter(|owners| owners.len() == 1) else {
            return false;
        };
        let always = |owner: &String| {
            let serves = self.ports.get(owner).is_some_and(|port| port.serving.contains(&endpoint));
            serves && !self.lost_endpoints.contains(&(owner.clone(), endpoint))
        };
        !self.lost_frontends.contains(&frontend) && owners.iter().all(always)
    }

    /// The endpoints that serve a frontend now; `None` if no Service has it.
    pub(crate) fn serving(&self, frontend: SocketAddr) -> Option<&BTreeSet<SocketAddr>> {
        self.ports.values().find(|port| port.frontend == Some(frontend)).map(|port| &port.serving)
    }
}

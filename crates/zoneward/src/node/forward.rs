//! From the snapshot to what this node forwards: only the Services that changed are looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use dataplane::conntrack::UdpService;
use model::forward::{FrontendKind, Outcome};
use model::{
    AddressType, Family, ForwardingTable, Frontend, Notice, Protocol, Service, ServiceKey, ServiceType,
    Slice, Snapshot, TrafficPolicy,
};
use plan::forward::{Claims, NodeConfig, forward};
use plan::select::{external_policy, not_proxied};

use super::config::Gates;

/// What a node forwards, and what it takes to change that.
pub struct Forwarder {
    config: NodeConfig,
    gates: Gates,
    claims: Claims,
    table: ForwardingTable,
    /// The Services whose traffic under a policy of Local finds nobody here.
    without_local: BTreeMap<ServiceKey, Dropped>,
    notices: BTreeMap<ServiceKey, Vec<Notice>>,
}

/// Which traffic of a Service is dropped for want of an endpoint on this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Under internalTrafficPolicy Local, by family.
    pub internal: [u32; 2],
    /// Under externalTrafficPolicy Local, by family.
    pub external: [u32; 2],
}

/// A Service whose frontends change.
pub struct Delta {
    /// Which.
    pub service: ServiceKey,
    /// From these.
    pub old: Vec<Frontend>,
    /// To these.
    pub new: Vec<Frontend>,
}

impl Forwarder {
    /// A node without Services.
    pub fn new(config: NodeConfig, gates: Gates) -> Self {
        let table = ForwardingTable::new(config.rules.clone());
        let (without_local, notices) = (BTreeMap::new(), BTreeMap::new());
        Self { config, gates, claims: Claims::default(), table, without_local, notices }
    }

    /// What the node forwards.
    pub fn table(&self) -> &ForwardingTable {
        &self.table
    }

    /// What the node knows of itself.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// The node itself changed: everything is decided anew.
    pub fn rebuild(&mut self, snapshot: &Snapshot, config: NodeConfig) {
        *self = Self::new(config, self.gates);
        for (service, slices) in snapshot.services() {
            let (frontends, notices) = self.wanted(service, slices);
            self.remember(&service.key, notices);
            self.claims.stake(service, frontends);
        }
        let granted: Vec<_> = self.claims.all().map(|(key, granted)| (key.clone(), granted)).collect();
        for (key, granted) in granted {
            self.note_dropped(&key, &granted.frontends);
            self.notices.entry(key.clone()).or_default().extend(granted.notices);
            self.table.replace(&key, granted.frontends);
        }
        self.notices.retain(|_, notices| !notices.is_empty());
    }

    /// Some Services changed, or their slices did. Answers with those whose frontends did, and with the Services
    /// whose Notices are others than before.
    pub fn update(&mut self, snapshot: &Snapshot, dirty: &BTreeSet<ServiceKey>) -> Vec<Delta> {
        let mut touched = BTreeSet::new();
        for key in dirty {
            touched.extend(match snapshot.service(key) {
                Some(service) => {
                    let (frontends, notices) = self.wanted(service, snapshot.slices(key));
                    self.remember(key, notices);
                    self.claims.stake(service, frontends)
                }
                None => {
                    self.notices.remove(key);
                    self.claims.withdraw(key)
                }
            });
        }
        touched.into_iter().filter_map(|key| self.grant(key, dirty)).collect()
    }

    fn grant(&mut self, key: ServiceKey, dirty: &BTreeSet<ServiceKey>) -> Option<Delta> {
        let granted = self.claims.granted(&key);
        if !dirty.contains(&key) {
            // It did not change itself, so what was said of its place alone may be different.
            self.remember(&key, granted.notices);
        } else if !granted.notices.is_empty() {
            self.notices.entry(key.clone()).or_default().extend(granted.notices);
        }
        let old = self.table.frontends(&key);
        if old == granted.frontends {
            return None;
        }
        let old = old.to_vec();
        self.note_dropped(&key, &granted.frontends);
        self.table.replace(&key, granted.frontends.clone());
        Some(Delta { service: key, old, new: granted.frontends })
    }

    /// Takes a Service back to what it had: the kernel did not take the new.
    pub fn undo(&mut self, delta: &Delta) {
        self.note_dropped(&delta.service, &delta.old);
        self.table.replace(&delta.service, delta.old.clone());
    }

    /// Puts a change in again that was taken back.
    pub fn redo(&mut self, delta: &Delta) {
        self.note_dropped(&delta.service, &delta.new);
        self.table.replace(&delta.service, delta.new.clone());
    }

    fn wanted(&self, service: &Service, slices: &[Slice]) -> (Vec<Frontend>, Vec<Notice>) {
        let (mut frontends, notices) = forward(service, slices, &self.config);
        if !self.gates.external_ips {
            // Semantics D2: honoured only with the gate AllowServiceExternalIPs.
            frontends.retain(|frontend| frontend.kind != FrontendKind::ExternalIp);
        }
        (frontends, notices)
    }

    fn remember(&mut self, key: &ServiceKey, notices: Vec<Notice>) {
        if notices.is_empty() {
            self.notices.remove(key);
        } else {
            self.notices.insert(key.clone(), notices);
        }
    }

    /// What there is to say about a Service.
    pub fn notices(&self, service: &ServiceKey) -> &[Notice] {
        self.notices.get(service).map_or(&[], |notices| notices)
    }

    /// The machine's addresses changed, and nothing else.
    pub fn set_addresses(&mut self, addresses: Box<[IpAddr]>) {
        self.table.node.addresses.clone_from(&addresses);
        self.config.rules.addresses = addresses;
    }

    fn note_dropped(&mut self, key: &ServiceKey, frontends: &[Frontend]) {
        let mut dropped = Dropped::default();
        for frontend in frontends.iter().filter(|frontend| frontend.outside == Outcome::Drop) {
            let family = usize::from(frontend.place.family() == Family::V6);
            match frontend.kind {
                FrontendKind::ClusterIp => dropped.internal[family] += 1,
                _ => dropped.external[family] += 1,
            }
        }
        if dropped == Dropped::default() {
            self.without_local.remove(key);
        } else {
            self.without_local.insert(key.clone(), dropped);
        }
    }

    /// How many frontends drop for want of an endpoint on this node.
    pub fn dropped(&self) -> Dropped {
        let mut sum = Dropped::default();
        for dropped in self.without_local.values() {
            for family in 0..2 {
                sum.internal[family] += dropped.internal[family];
                sum.external[family] += dropped.external[family];
            }
        }
        sum
    }

    /// The UDP ports of a Service, for whoever looks for stale flows.
    pub fn udp(&self, snapshot: &Snapshot, key: &ServiceKey) -> Vec<UdpService> {
        let Some(service) = snapshot.service(key).filter(|service| not_proxied(service).is_none()) else {
            // Its frontends went with it: `lost_udp` knows them.
            return Vec::new();
        };
        let slices = snapshot.slices(key);
        let ports = service.ports.iter().filter(|port| port.protocol == Protocol::Udp);
        ports
            .map(|port| UdpService {
                frontends: addresses(service).map(|ip| SocketAddr::new(ip, port.port)).collect(),
                node_port: port.node_port,
                serving: serving(slices, &port.name),
            })
            .collect()
    }
}

/// The UDP frontends that a change took away: nobody answers there any more.
pub fn lost_udp(delta: &Delta) -> Vec<UdpService> {
    let is_udp = |frontend: &&Frontend| frontend.place.protocol == Protocol::Udp;
    let kept: BTreeSet<_> = delta.new.iter().map(|frontend| frontend.place).collect();
    let lost = delta.old.iter().filter(is_udp).filter(|frontend| !kept.contains(&frontend.place));
    let address = |frontend: &Frontend| match frontend.place.at {
        model::forward::At::Address(ip) => Some(SocketAddr::new(ip, frontend.place.port)),
        model::forward::At::Node(_) => None,
    };
    let frontends: BTreeSet<SocketAddr> = lost.filter_map(address).collect();
    if frontends.is_empty() {
        return Vec::new();
    }
    vec![UdpService { frontends, ..UdpService::default() }]
}

/// Every address of a Service that packets are sent to.
fn addresses(service: &Service) -> impl Iterator<Item = IpAddr> + '_ {
    let vips = service.load_balancer.iter().filter(|ingress| ingress.is_vip).map(|ingress| ingress.ip);
    service.cluster_ips.addresses().iter().copied().chain(vips).chain(service.external_ips.iter().copied())
}

/// Semantics D7: serving is what counts, policies and topology do not.
fn serving(slices: &[Slice], port: &str) -> BTreeSet<SocketAddr> {
    let mut found = BTreeSet::new();
    for slice in slices {
        let numbers = slice
            .content
            .ports
            .iter()
            .filter(|p| p.protocol == Protocol::Udp && p.name.as_ref().is_some_and(|name| *name == port));
        for number in numbers.filter_map(|p| p.port) {
            let endpoints = slice.content.endpoints.iter().filter(|e| e.conditions.is_serving());
            found.extend(endpoints.map(|e| SocketAddr::new(e.addresses.first(), number)));
        }
    }
    found
}

/// A Service whose load balancer asks this node whether it has endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port that it asks on.
    pub port: u16,
    /// Ready endpoints of this node, by address.
    // Pitfall 27: unique addresses, ready ones only.
    pub local: usize,
}

/// The health check of a Service, if it has one.
pub fn health_check(service: &Service, slices: &[Slice], node: &str) -> Option<HealthCheck> {
    let port = service.health_check_node_port.filter(|port| *port != 0)?;
    let asks = service.kind == ServiceType::LoadBalancer && external_policy(service) == TrafficPolicy::Local;
    if !asks || not_proxied(service).is_some() {
        return None;
    }
    let of_ip = slices.iter().filter(|slice| matches!(slice.content.address_type, AddressType::Ip(_)));
    let here = of_ip.flat_map(|slice| &slice.content.endpoints).filter(|endpoint| {
        endpoint.conditions.is_ready() && endpoint.node.as_ref().is_some_and(|name| *name == node)
    });
    let local: BTreeSet<IpAddr> = here.map(|endpoint| endpoint.addresses.first()).collect();
    Some(HealthCheck { port, local: local.len() })
}

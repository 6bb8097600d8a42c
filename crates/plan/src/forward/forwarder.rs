//! What a node forwards, kept up to date: only the Services that changed are looked at.
//!
//! The live node and the commands that explain use this one; a table made at once is the same as a table that
//! came by changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::forward::{FrontendKind, Outcome, UdpService};
use model::{Family, ForwardingTable, Frontend, Notice, ServiceKey, Snapshot};

use super::claims::Claims;
use super::config::NodeConfig;
use super::{forward, udp};

/// What a node forwards, and what it takes to change that.
#[derive(Clone, Debug)]
pub struct Forwarder {
    config: NodeConfig,
    claims: Claims,
    table: ForwardingTable,
    /// The Services whose traffic under a policy of Local has no endpoint here.
    without_local: BTreeMap<ServiceKey, Dropped>,
    notices: BTreeMap<ServiceKey, Remarks>,
}

/// What there is to say about a Service.
#[derive(Clone, Debug, Default)]
struct Remarks {
    /// About itself.
    own: Vec<Notice>,
    /// About places that an older Service holds.
    conflicts: Vec<Notice>,
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
#[derive(Clone, Debug, PartialEq)]
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
    pub fn new(config: NodeConfig) -> Self {
        let table = ForwardingTable::new(config.rules.clone());
        let (without_local, notices) = (BTreeMap::new(), BTreeMap::new());
        Self { config, claims: Claims::default(), table, without_local, notices }
    }

    /// A node with everything that the snapshot holds.
    pub fn of(snapshot: &Snapshot, config: NodeConfig) -> Self {
        let mut forwarder = Self::new(config);
        let all = snapshot.services().map(|(service, _)| service.key.clone()).collect();
        forwarder.take(snapshot, &all, |_, _, _| ());
        forwarder
    }

    /// What the node forwards.
    pub fn table(&self) -> &ForwardingTable {
        &self.table
    }

    /// What the node forwards, and what there is to say about it.
    pub fn into_table(self) -> (ForwardingTable, Vec<Notice>) {
        let notices = self.all_notices().cloned().collect();
        (self.table, notices)
    }

    /// What the node knows of itself.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// The node itself changed: everything is decided anew.
    pub fn rebuild(&mut self, snapshot: &Snapshot, config: NodeConfig) {
        // What there was goes first, so that there are never two tables.
        *self = Self::new(config);
        let all = snapshot.services().map(|(service, _)| service.key.clone()).collect();
        self.take(snapshot, &all, |_, _, _| ());
    }

    /// Some Services changed, or their slices did. Answers with those whose frontends did.
    pub fn update(&mut self, snapshot: &Snapshot, dirty: &BTreeSet<ServiceKey>) -> Vec<Delta> {
        let mut deltas = Vec::new();
        self.take(snapshot, dirty, |service, old, new| {
            deltas.push(Delta { service: service.clone(), old: old.to_vec(), new: new.to_vec() });
        });
        deltas
    }

    fn take(
        &mut self,
        snapshot: &Snapshot,
        dirty: &BTreeSet<ServiceKey>,
        mut changed: impl FnMut(&ServiceKey, &[Frontend], &[Frontend]),
    ) {
        let mut touched = BTreeSet::new();
        for key in dirty {
            let (own, claimed) = match snapshot.service(key) {
                Some(service) => {
                    let (frontends, notices) = forward(service, snapshot.slices(key), &self.config);
                    (notices, self.claims.stake(service, frontends))
                }
                None => (Vec::new(), self.claims.withdraw(key)),
            };
            touched.extend(claimed);
            self.remark(key, |remarks| remarks.own = own);
        }
        for key in touched {
            let granted = self.claims.granted(&key);
            self.remark(&key, |remarks| remarks.conflicts = granted.notices);
            let old = self.table.frontends(&key);
            if old != granted.frontends {
                changed(&key, old, &granted.frontends);
                self.put(&key, granted.frontends);
            }
        }
    }

    /// Takes a Service back to what it had: the kernel did not take the new.
    pub fn undo(&mut self, delta: &Delta) {
        self.put(&delta.service, delta.old.clone());
    }

    /// Puts a change in again that was taken back.
    pub fn redo(&mut self, delta: &Delta) {
        self.put(&delta.service, delta.new.clone());
    }

    fn put(&mut self, key: &ServiceKey, frontends: Vec<Frontend>) {
        let dropped = dropped(&frontends);
        if dropped == Dropped::default() {
            self.without_local.remove(key);
        } else {
            self.without_local.insert(key.clone(), dropped);
        }
        self.table.replace(key, frontends);
    }

    fn remark(&mut self, key: &ServiceKey, change: impl FnOnce(&mut Remarks)) {
        let mut remarks = self.notices.remove(key).unwrap_or_default();
        change(&mut remarks);
        if !remarks.own.is_empty() || !remarks.conflicts.is_empty() {
            self.notices.insert(key.clone(), remarks);
        }
    }

    /// What there is to say about a Service.
    pub fn notices(&self, service: &ServiceKey) -> impl Iterator<Item = &Notice> {
        self.notices.get(service).into_iter().flat_map(|remarks| remarks.own.iter().chain(&remarks.conflicts))
    }

    /// What there is to say about all Services.
    pub fn all_notices(&self) -> impl Iterator<Item = &Notice> {
        self.notices.values().flat_map(|remarks| remarks.own.iter().chain(&remarks.conflicts))
    }

    /// The machine's addresses changed, and nothing else.
    pub fn set_addresses(&mut self, addresses: Box<[IpAddr]>) {
        self.table.node.addresses.clone_from(&addresses);
        self.config.rules.addresses = addresses;
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

    /// The UDP ports of a Service as this node forwards them, for the search for stale flows. Of a Service that is gone,
    /// its [`Delta`] knows the frontends ([`udp::lost`]).
    pub fn udp(&self, snapshot: &Snapshot, key: &ServiceKey) -> Vec<UdpService> {
        udp::services(self.table.frontends(key), snapshot.slices(key))
    }
}

fn dropped(frontends: &[Frontend]) -> Dropped {
    let mut dropped = Dropped::default();
    for frontend in frontends.iter().filter(|frontend| frontend.outside == Outcome::Drop) {
        let family = usize::from(frontend.place.family() == Family::V6);
        match frontend.kind {
            FrontendKind::ClusterIp => dropped.internal[family] += 1,
            _ => dropped.external[family] += 1,
        }
    }
    dropped
}

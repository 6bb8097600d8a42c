//! The forwarding table of a node, updated incrementally: only changed Services are planned again.
//!
//! The node proxy and `trace` share it. Incremental updates give the same table as planning from scratch.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::forward::{FrontendAction, FrontendKind, UdpService};
use model::{Family, ForwardingTable, Frontend, Notice, ServiceKey, Slice, Snapshot};

use super::frontend_conflicts::FrontendConflicts;
use super::node_config::NodeConfig;
use super::{forward, stale_udp};

/// The forwarding table of a node with the state that its updates need.
#[derive(Clone, Debug)]
pub struct Forwarder {
    config: NodeConfig,
    conflicts: FrontendConflicts,
    table: ForwardingTable,
    /// Services with the traffic policy Local and no endpoint on this node.
    without_local: BTreeMap<ServiceKey, NoLocalEndpoints>,
    /// The sum over them.
    dropped: NoLocalEndpoints,
    notices: BTreeMap<ServiceKey, ServiceNotices>,
}

#[derive(Clone, Debug, Default)]
struct ServiceNotices {
    own: Vec<Notice>,
    /// Addresses that another Service owns.
    conflicts: Vec<Notice>,
}

/// How many frontends drop traffic because the traffic policy is Local and this node has no endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoLocalEndpoints {
    /// Under internalTrafficPolicy Local, by family.
    pub internal: [u32; 2],
    /// Under externalTrafficPolicy Local, by family.
    pub external: [u32; 2],
}

impl NoLocalEndpoints {
    /// Replaces one summand of a sum.
    fn replace(&mut self, old: &Self, new: &Self) {
        for family in 0..2 {
            self.internal[family] = self.internal[family] + new.internal[family] - old.internal[family];
            self.external[family] = self.external[family] + new.external[family] - old.external[family];
        }
    }
}

/// The frontends of a Service before and after a change.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceDelta {
    pub service: ServiceKey,
    pub old: Vec<Frontend>,
    pub new: Vec<Frontend>,
}

impl Forwarder {
    /// A node without Services.
    pub fn new(config: NodeConfig) -> Self {
        let table = ForwardingTable::new(config.rules.clone());
        Self {
            config,
            conflicts: FrontendConflicts::default(),
            table,
            without_local: BTreeMap::new(),
            dropped: NoLocalEndpoints::default(),
            notices: BTreeMap::new(),
        }
    }

    /// A node with all Services of a snapshot.
    pub fn of(snapshot: &Snapshot, config: NodeConfig) -> Self {
        let mut forwarder = Self::new(config);
        forwarder.take_all(snapshot);
        forwarder
    }

    pub fn table(&self) -> &ForwardingTable {
        &self.table
    }

    pub fn into_table(self) -> (ForwardingTable, Vec<Notice>) {
        let notices = self.all_notices().cloned().collect();
        (self.table, notices)
    }

    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// Plans everything again after a change of the node itself.
    pub fn rebuild(&mut self, snapshot: &Snapshot, config: NodeConfig) {
        // The old table is freed first, so that memory never holds two.
        *self = Self::new(config);
        self.take_all(snapshot);
    }

    fn take_all(&mut self, snapshot: &Snapshot) {
        let all = snapshot.services().map(|(service, _)| service.key.clone()).collect();
        self.take(snapshot, &all, |_, _, _| ());
        self.conflicts.compact();
        self.table.compact();
    }

    /// Plans Services again that changed, or whose slices did. Returns those whose frontends differ.
    pub fn update(&mut self, snapshot: &Snapshot, dirty: &BTreeSet<ServiceKey>) -> Vec<ServiceDelta> {
        let mut deltas = Vec::new();
        self.take(snapshot, dirty, |service, old, new| {
            deltas.push(ServiceDelta { service: service.clone(), old: old.to_vec(), new: new.to_vec() });
        });
        deltas
    }

    fn take(
        &mut self,
        snapshot: &Snapshot,
        dirty: &BTreeSet<ServiceKey>,
        mut changed: impl FnMut(&ServiceKey, &[Frontend], &[Frontend]),
    ) {
        let mut affected = BTreeSet::new();
        for key in dirty {
            let (own, competing) = match snapshot.service(key) {
                Some(service) => {
                    let (frontends, notices) = forward(service, snapshot.slices(key), &self.config);
                    (notices, self.conflicts.insert(service, frontends, &self.config.rules))
                }
                None => (Vec::new(), self.conflicts.remove(key, &self.config.rules)),
            };
            affected.extend(competing);
            self.set_notices(key, |notices| notices.own = own);
        }
        for key in affected {
            let resolved = self.conflicts.resolved(&key, &self.config.rules);
            self.set_notices(&key, |notices| notices.conflicts = resolved.notices);
            let old = self.table.frontends(&key);
            if old != resolved.frontends {
                changed(&key, old, &resolved.frontends);
                self.put(&key, resolved.frontends);
            }
        }
    }

    /// Reverts a change that the kernel refused.
    pub fn undo(&mut self, delta: &ServiceDelta) {
        self.put(&delta.service, delta.old.clone());
    }

    /// Applies a reverted change again.
    pub fn redo(&mut self, delta: &ServiceDelta) {
        self.put(&delta.service, delta.new.clone());
    }

    fn put(&mut self, key: &ServiceKey, frontends: Vec<Frontend>) {
        let dropped = dropped(&frontends);
        let before = match dropped == NoLocalEndpoints::default() {
            true => self.without_local.remove(key),
            false => self.without_local.insert(key.clone(), dropped),
        };
        self.dropped.replace(&before.unwrap_or_default(), &dropped);
        self.table.replace(key, frontends);
    }

    fn set_notices(&mut self, key: &ServiceKey, change: impl FnOnce(&mut ServiceNotices)) {
        let mut notices = self.notices.remove(key).unwrap_or_default();
        change(&mut notices);
        if !notices.own.is_empty() || !notices.conflicts.is_empty() {
            self.notices.insert(key.clone(), notices);
        }
    }

    /// The Notices of one Service.
    pub fn notices(&self, service: &ServiceKey) -> impl Iterator<Item = &Notice> {
        self.notices.get(service).into_iter().flat_map(|notices| notices.own.iter().chain(&notices.conflicts))
    }

    pub fn all_notices(&self) -> impl Iterator<Item = &Notice> {
        self.notices.values().flat_map(|notices| notices.own.iter().chain(&notices.conflicts))
    }

    /// Updates the machine's addresses. Returns the Services to plan again: those with an external address among the
    /// addresses that came or went, which yields to node ports there.
    pub fn set_addresses(&mut self, addresses: Box<[IpAddr]>) -> BTreeSet<ServiceKey> {
        let old: BTreeSet<IpAddr> = self.config.rules.addresses.iter().copied().collect();
        let new: BTreeSet<IpAddr> = addresses.iter().copied().collect();
        let changed = old.symmetric_difference(&new);
        let affected = changed.flat_map(|ip| self.conflicts.external_at(*ip)).collect();
        self.table.node.addresses.clone_from(&addresses);
        self.config.rules.addresses = addresses;
        affected
    }

    /// The sum over all Services.
    pub fn dropped(&self) -> NoLocalEndpoints {
        self.dropped
    }

    /// The UDP ports of a Service on this node, to find stale flows. For a deleted Service see [`stale_udp::lost`].
    /// `departed` are slices that left the node's view a moment ago.
    pub fn udp(&self, snapshot: &Snapshot, key: &ServiceKey, departed: &[Slice]) -> Vec<UdpService> {
        stale_udp::services_in_view(self.table.frontends(key), snapshot.slices(key), departed)
    }
}

fn dropped(frontends: &[Frontend]) -> NoLocalEndpoints {
    let mut dropped = NoLocalEndpoints::default();
    for frontend in frontends.iter().filter(|frontend| frontend.outside == FrontendAction::Drop) {
        let family = usize::from(frontend.address.family() == Family::V6);
        match frontend.kind {
            FrontendKind::ClusterIp => dropped.internal[family] += 1,
            _ => dropped.external[family] += 1,
        }
    }
    dropped
}

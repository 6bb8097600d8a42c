//! [`NodeBackend`] over HNS. Every call compares everything: HNS does not tell what others changed.

use std::net::IpAddr;

use model::ForwardingTable;
use model::forward::FirstPacket;

use super::hcn::{Hcn, HcnErrorKind, HcnKind};
use super::object::Guid;
use super::reconcile::{failed, read, sync};
use super::render::KernelspaceSettings;
use super::trace;
use crate::backend::{
    BackendError, CleanupItem, CleanupScope, FrontendChange, NodeBackend, PacketTrace, Reconciled,
};

/// Our load balancers and endpoints in HNS.
pub struct KernelspaceBackend {
    hcn: Box<dyn Hcn + Send>,
    settings: KernelspaceSettings,
}

impl KernelspaceBackend {
    pub fn new(hcn: Box<dyn Hcn + Send>, settings: KernelspaceSettings) -> Self {
        Self { hcn, settings }
    }
}

impl NodeBackend for KernelspaceBackend {
    fn load(&mut self, table: &ForwardingTable) -> Result<Reconciled, BackendError> {
        let synced = sync(&mut *self.hcn, table, &self.settings)?;
        Ok(Reconciled {
            is_initial: synced.is_initial,
            transactions: synced.changes,
            problems: synced.problems,
        })
    }

    fn change(
        &mut self,
        table: &ForwardingTable,
        _services: &[FrontendChange<'_>],
    ) -> Result<(), BackendError> {
        self.load(table).map(drop)
    }

    fn reconcile(&mut self, table: &ForwardingTable) -> Result<Reconciled, BackendError> {
        self.load(table).map(|reconciled| Reconciled { is_initial: false, ..reconciled })
    }

    fn maintain(&mut self) -> Result<bool, BackendError> {
        Ok(false)
    }

    fn has_services(&mut self) -> Result<bool, BackendError> {
        Ok(self.hcn.enumerate(HcnKind::LoadBalancer).map_err(failed)?.iter().any(Guid::is_ours))
    }

    fn trace(
        &mut self,
        packets: &[FirstPacket],
        addresses: &[IpAddr],
    ) -> Result<Vec<PacketTrace>, BackendError> {
        let state = read(&mut *self.hcn, &self.settings)?;
        Ok(packets.iter().map(|packet| trace::trace(&state, packet, addresses)).collect())
    }

    /// Load balancers of kube-proxy cannot be told from those of other programs, so only ours go.
    fn cleanup(&mut self, _scope: CleanupScope, dry_run: bool) -> Result<Vec<CleanupItem>, BackendError> {
        let mut items = Vec::new();
        for (kind, label) in
            [(HcnKind::LoadBalancer, "HNS load balancer"), (HcnKind::Endpoint, "HNS endpoint")]
        {
            for id in self.hcn.enumerate(kind).map_err(failed)?.iter().filter(|id| id.is_ours()) {
                let result = if dry_run { Ok(()) } else { self.hcn.delete(kind, id) };
                let error = result.err().filter(|error| error.kind() != HcnErrorKind::NotFound);
                items.push(CleanupItem { kind: label, name: id.to_string(), error: error.map(failed) });
            }
        }
        Ok(items)
    }
}

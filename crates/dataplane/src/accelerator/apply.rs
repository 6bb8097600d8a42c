//! Keeps the maps of the program equal to the ForwardingTable, and the program attached.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use model::ForwardingTable;
use model::forward::{Frontend, NodeRules};

use super::connect::MapEntries;
use super::diff::{HeldFrontends, MapChange, chunks_of, size};
use super::entries::AcceleratorSettings;
use super::kernel::{AcceleratorKernel, MapCapacity};
use super::render::{RenderedFrontend, RenderedFrontends, render, render_frontend};
use crate::backend::{BackendError, FrontendChange};

/// Whose sockets are accelerated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccelerateScope {
    /// Those of every network namespace.
    #[default]
    AllNamespaces,
    /// Those of the node's own network namespace: programs in pods, such as sidecars of meshes, see cluster IPs.
    NodeNamespace,
}

/// The accelerator of a node.
pub struct Accelerator {
    kernel: Box<dyn AcceleratorKernel + Send>,
    scope: AccelerateScope,
    /// The program steps aside if nothing is heard for this time.
    validity: Duration,
    held: Option<(MapCapacity, HeldFrontends)>,
}

impl Accelerator {
    /// `sync_period` is the longest time between two calls of [`Self::refresh`].
    pub fn new(
        kernel: Box<dyn AcceleratorKernel + Send>,
        scope: AccelerateScope,
        sync_period: Duration,
    ) -> Self {
        Self { kernel, scope, validity: sync_period * 2, held: None }
    }

    /// Makes the maps hold this table, whatever they held, and attaches the program.
    pub fn load(&mut self, table: &ForwardingTable) -> Result<(), BackendError> {
        self.held = None;
        let wanted = render(table, self.scope);
        let (frontends, chunks) = size(&wanted);
        let mut capacity = self.kernel.open(MapCapacity::of(frontends, chunks))?;
        let entries = self.kernel.entries()?;
        let (mut held, mut changes) = HeldFrontends::adopt(&entries, &wanted);
        // Until the old entries go, the maps have both.
        let added = changes.iter().filter(|change| matches!(change, MapChange::PutChunk(..))).count();
        if !capacity.holds(entries.frontends.len() + frontends, entries.chunks.len() + added) {
            let larger = MapCapacity { frontends: capacity.frontends * 2, chunks: capacity.chunks * 2 };
            capacity = self.kernel.open(larger)?;
            (held, changes) = HeldFrontends::adopt(&self.kernel.entries()?, &wanted);
        }
        for change in &changes {
            self.kernel.apply(change)?;
        }
        self.write_settings()?;
        self.kernel.attach()?;
        self.held = Some((capacity, held));
        Ok(())
    }

    /// Applies the change of some Services. Maps that are too small are replaced by larger ones.
    pub fn change(
        &mut self,
        table: &ForwardingTable,
        services: &[FrontendChange<'_>],
    ) -> Result<(), BackendError> {
        let Some((capacity, held)) = &mut self.held else { return self.load(table) };
        let changed = changed(services, &table.node, self.scope, held);
        let added: usize = changed.values().flatten().map(chunks_of).sum();
        if !capacity.holds(held.frontends() + changed.len(), held.chunks() + added) {
            return self.load(table);
        }
        let changes = held.replace(changed.iter().map(|(address, frontend)| (*address, frontend.as_ref())));
        for change in &changes {
            if let Err(error) = self.kernel.apply(change) {
                self.held = None;
                return Err(error);
            }
        }
        self.write_settings()
    }

    /// Says that the maps are up to date. Loads the table if the program is not attached any more.
    pub fn refresh(&mut self, table: &ForwardingTable) -> Result<(), BackendError> {
        if self.held.is_none() || !self.kernel.is_attached() {
            return self.load(table);
        }
        self.write_settings()
    }

    /// Detaches the program and removes its maps.
    pub fn remove(&mut self) -> Result<(), BackendError> {
        self.held = None;
        self.kernel.remove()
    }

    /// The entries that the kernel holds.
    pub fn entries(&mut self) -> Result<MapEntries, BackendError> {
        self.kernel.entries()
    }

    fn write_settings(&mut self) -> Result<(), BackendError> {
        let validity = u64::try_from(self.validity.as_nanos()).unwrap_or(u64::MAX);
        let settings = AcceleratorSettings {
            valid_until: self.kernel.now().saturating_add(validity),
            node_netns: self.kernel.node_netns()?,
            is_node_only: self.scope == AccelerateScope::NodeNamespace,
        };
        self.kernel.set(settings)
    }
}

/// The frontends whose entries change, with the new ones. An address may go from one Service to another.
fn changed(
    services: &[FrontendChange<'_>],
    node: &NodeRules,
    scope: AccelerateScope,
    held: &HeldFrontends,
) -> BTreeMap<SocketAddr, Option<RenderedFrontend>> {
    let rendered = |frontend: &Frontend| render_frontend(frontend, node, scope);
    let old: RenderedFrontends = services.iter().flat_map(|(old, _)| *old).filter_map(rendered).collect();
    let mut new: RenderedFrontends = services.iter().flat_map(|(_, new)| *new).filter_map(rendered).collect();
    let mut changed: BTreeMap<SocketAddr, Option<RenderedFrontend>> = BTreeMap::new();
    for (address, before) in old {
        match new.remove(&address) {
            Some(after) if after == before && held.holds(&address) => {}
            after => drop(changed.insert(address, after)),
        }
    }
    changed.extend(new.into_iter().map(|(address, frontend)| (address, Some(frontend))));
    changed
}

#[cfg(test)]
mod tests;

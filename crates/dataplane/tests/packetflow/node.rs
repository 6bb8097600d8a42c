//! A node that follows a cluster one Service at a time: what it believes, and what that changes in the kernel.

use std::collections::BTreeSet;

use dataplane::nftables::ir::Ruleset;
use dataplane::nftables::render::{RenderedChange, Renderer};
use model::{ForwardingTable, ServiceKey, Snapshot};
use plan::forward::{Forwarder, NodeConfig};

/// What a node knows.
pub(crate) struct Node {
    /// What it forwards.
    forwarder: Forwarder,
    /// What it remembers of the kernel.
    pub(crate) renderer: Renderer,
}

impl Node {
    /// A node that starts, and what its kernel should hold.
    pub(crate) fn start(snapshot: &Snapshot, config: NodeConfig) -> (Node, Ruleset) {
        let forwarder = Forwarder::of(snapshot, config);
        let (renderer, program) = Renderer::start(forwarder.table());
        (Node { forwarder, renderer }, program)
    }

    /// What it knows of itself.
    pub(crate) fn config(&self) -> &NodeConfig {
        self.forwarder.config()
    }

    /// What it forwards.
    pub(crate) fn table(&self) -> &ForwardingTable {
        self.forwarder.table()
    }

    /// The program that its kernel should hold.
    pub(crate) fn whole(&mut self) -> Ruleset {
        self.renderer.render_all(self.forwarder.table())
    }

    /// Takes other settings of the node itself.
    #[allow(dead_code, reason = "each test file uses a part of it")]
    pub(crate) fn rebuild(&mut self, snapshot: &Snapshot, config: NodeConfig) {
        self.forwarder.rebuild(snapshot, config);
        self.renderer = Renderer::new(self.forwarder.table());
    }

    /// Takes one Service as it is now in the snapshot.
    pub(crate) fn sync(&mut self, key: &ServiceKey, snapshot: &Snapshot) -> RenderedChange {
        let deltas = self.forwarder.update(snapshot, &BTreeSet::from([key.clone()]));
        let pairs: Vec<_> = deltas.iter().map(|delta| (&delta.old[..], &delta.new[..])).collect();
        self.renderer.change(&pairs)
    }
}

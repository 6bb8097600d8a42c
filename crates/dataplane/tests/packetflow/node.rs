//! A node that follows a cluster one Service at a time: what it believes, and what that changes in the kernel.

use dataplane::nftables::ir::Program;
use dataplane::nftables::render::{Edit, Renderer};
use model::{ForwardingTable, ServiceKey, Snapshot};
use plan::forward::{Claims, NodeConfig, forward, table};

/// What a node knows.
pub(crate) struct Node {
    /// Of itself.
    pub(crate) config: NodeConfig,
    claims: Claims,
    /// What it forwards.
    pub(crate) table: ForwardingTable,
    /// What it remembers of the kernel.
    pub(crate) renderer: Renderer,
}

impl Node {
    /// A node that starts, and what its kernel should hold.
    pub(crate) fn start(snapshot: &Snapshot, config: NodeConfig) -> (Node, Program) {
        let (table, claims, _) = table(snapshot, &config);
        let (renderer, program) = Renderer::start(&table);
        (Node { config, claims, table, renderer }, program)
    }

    /// Takes one Service as it is now in the snapshot.
    pub(crate) fn sync(&mut self, key: &ServiceKey, snapshot: &Snapshot) -> Edit {
        let touched = match snapshot.service(key) {
            Some(service) => {
                let (frontends, _) = forward(service, snapshot.slices(key), &self.config);
                self.claims.stake(service, frontends)
            }
            None => self.claims.withdraw(key),
        };
        let mut pairs = Vec::new();
        for key in &touched {
            let (old, new) = (self.table.frontends(key).to_vec(), self.claims.granted(key).frontends);
            pairs.push((old, new));
            self.table.replace(key, Vec::new());
        }
        for (key, (_, new)) in touched.iter().zip(&pairs) {
            self.table.replace(key, new.clone());
        }
        let pairs: Vec<_> = pairs.iter().map(|(old, new)| (&old[..], &new[..])).collect();
        self.renderer.change(&pairs)
    }
}

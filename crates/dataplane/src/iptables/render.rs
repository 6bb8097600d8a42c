//! Renders a ForwardingTable as chains of iptables.
//!
//! ```text
//! PREROUTING, OUTPUT -> KUBE-SERVICES -- tree of addresses --> KUBE-SVC-x  (cluster IP: DNAT rules)
//!                              |                         |---> KUBE-EXT-x --> KUBE-SVC-x or KUBE-SVL-x
//!                              |                         '---> KUBE-FW-x  --> KUBE-EXT-x   (source ranges)
//!                              '-> KUBE-NODEPORTS -- tree of ports --> KUBE-EXT-x
//! ```
//!
//! Names, marks and jumps are kube-proxy's; between them a Service is found by a tree, and its endpoints are DNAT rules in
//! its own chain. docs/reference/iptables.md explains the chains.

mod dispatch;
mod node_chains;
mod service;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use arcstr::ArcStr;
use model::forward::{ForwardingTable, NodeRules};
use model::hash::{BASIS_128, fnv1a_128};
use model::{Family, ServiceKey};

use super::names::IptablesTableName;

pub use dispatch::DispatchRules;
pub use node_chains::node_chains;
pub use service::{RenderedService, render_service};

/// Facts about the kernel that the rules depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFeatures {
    /// The match `bpf`: one rule finds connections of a pod to itself.
    pub bpf: bool,
    /// The match `nfacct`, and its objects exist.
    pub nfacct: bool,
    /// `nf_conntrack_tcp_be_liberal` was not set at the start, so that INVALID packets are dropped.
    pub drops_invalid: bool,
}

impl Default for KernelFeatures {
    fn default() -> Self {
        Self { bpf: true, nfacct: false, drops_invalid: true }
    }
}

/// A chain and its rules, without `-A CHAIN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedChain {
    pub name: ArcStr,
    pub rules: Vec<ArcStr>,
}

impl RenderedChain {
    pub fn new(name: impl Into<ArcStr>, rules: Vec<ArcStr>) -> Self {
        Self { name: name.into(), rules }
    }

    pub fn digest(&self) -> ChainDigest {
        let mut digest = ChainDigest::default();
        self.rules.iter().for_each(|rule| digest.add(rule));
        digest
    }
}

/// The rules of a chain as a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainDigest {
    hash: u128,
    pub rules: usize,
}

impl Default for ChainDigest {
    fn default() -> Self {
        Self { hash: BASIS_128, rules: 0 }
    }
}

impl ChainDigest {
    pub fn add(&mut self, rule: &str) {
        self.hash = fnv1a_128(fnv1a_128(self.hash, rule.as_bytes()), b"\n");
        self.rules += 1;
    }
}

/// What one family's rules are rendered from, besides its Services.
#[derive(Clone, Copy, Debug)]
pub struct RenderContext<'a> {
    pub family: Family,
    pub node: &'a NodeRules,
    pub features: KernelFeatures,
}

/// The chains of one table. Chains of a group refer to each other and change together; a group refers only to chains of
/// groups before it.
pub type ChainGroups = Vec<Vec<RenderedChain>>;

/// Everything of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenderedFamily {
    pub tables: BTreeMap<IptablesTableName, ChainGroups>,
    /// The rules of Services in chains that they share.
    pub dispatch: BTreeMap<ServiceKey, DispatchRules>,
    /// The chains that depend on all Services.
    pub shared: BTreeSet<(IptablesTableName, ArcStr)>,
}

/// Renders all chains of one family.
pub fn render_family(table: &ForwardingTable, context: RenderContext<'_>) -> RenderedFamily {
    let mut rendered = RenderedFamily::default();
    let mut groups = ChainGroups::new();
    for (key, frontends) in table.services() {
        let RenderedService { chains, dispatch } = render_service(frontends, context);
        if !chains.is_empty() {
            groups.push(chains);
        }
        rendered.dispatch.insert(key.clone(), dispatch);
    }
    rendered.tables = node_chains(rendered.dispatch.values(), context);
    rendered.shared = chain_names(&rendered.tables);
    // What every Service refers to comes first.
    let nat = rendered.tables.entry(IptablesTableName::Nat).or_default();
    nat.splice(1..1, groups);
    rendered
}

/// The names of all chains.
pub fn chain_names(
    tables: &BTreeMap<IptablesTableName, ChainGroups>,
) -> BTreeSet<(IptablesTableName, ArcStr)> {
    let of = |(name, groups): (&IptablesTableName, &ChainGroups)| {
        let name = *name;
        groups.iter().flatten().map(move |chain| (name, chain.name.clone())).collect::<Vec<_>>()
    };
    tables.iter().flat_map(of).collect()
}

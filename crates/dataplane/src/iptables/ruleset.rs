//! A rule set of one address family in memory: parsed from iptables-save, changed as iptables-restore changes a kernel,
//! printed as iptables-save prints it, traced by packet.
//!
//! ```text
//! iptables-save    -> parse ---\
//!                               IptablesRuleset -> to_save
//! iptables-restore -> restore -/       |
//!                        packet -> trace -> endpoints with probabilities
//! ```

mod bpf;
mod ipset;
mod ipvs;
mod parse;
mod restore;
mod rule;
mod trace;

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use model::Family;

pub use bpf::{BpfInstruction, BpfProgram};
pub use ipset::{IpSet, IpSets};
pub use ipvs::{IpvsDestination, IpvsServers, IpvsVirtualServer};
pub use restore::FlushMode;
pub use rule::{
    AddrtypeKind, ConntrackStates, IptablesMatch, IptablesRule, IptablesTarget, MarkChange, Negatable,
    PacketDirection, PortRange, PortsOf, RecentAction,
};
pub use trace::{
    ConnectionState, IptablesEvaluation, IptablesNode, IptablesPath, evaluate, evaluate_rewritten,
    evaluate_state, trace,
};

/// Names of built-in tables with their chains, in the order in which a hook runs them.
pub(super) const BUILT_IN: [(&str, &[&str]); 5] = [
    ("raw", &["PREROUTING", "OUTPUT"]),
    ("mangle", &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"]),
    ("nat", &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"]),
    ("filter", &["INPUT", "FORWARD", "OUTPUT"]),
    ("security", &["INPUT", "FORWARD", "OUTPUT"]),
];

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounters {
    pub packets: u64,
    pub bytes: u64,
}

/// The tables of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IptablesRuleset {
    pub family: Family,
    pub tables: BTreeMap<String, IptablesTable>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IptablesTable {
    pub chains: BTreeMap<String, IptablesChain>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IptablesChain {
    /// The policy of a built-in chain; none for a user chain.
    pub policy: Option<ChainPolicy>,
    pub counters: RuleCounters,
    pub rules: Vec<IptablesRule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainPolicy {
    Accept,
    Drop,
}

/// Text that is no rule set, a change that iptables-restore would refuse, or a rule that cannot be evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IptablesError {
    /// The line of the text, from 1.
    pub line: Option<usize>,
    pub message: String,
}

impl IptablesError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { line: None, message: message.into() }
    }

    fn at(self, line: usize) -> Self {
        Self { line: Some(line), ..self }
    }
}

impl fmt::Display for IptablesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for IptablesError {}

impl IptablesRuleset {
    /// No tables, as a kernel has before the first rule.
    pub fn new(family: Family) -> Self {
        Self { family, tables: BTreeMap::new() }
    }

    /// Parses the output of `iptables-save`. Rules with unknown matches or targets are kept; tracing a packet that
    /// depends on one fails.
    pub fn parse(family: Family, text: &str) -> Result<Self, IptablesError> {
        let mut ruleset = Self::new(family);
        restore::load(&mut ruleset, text)?;
        Ok(ruleset)
    }

    /// Applies a text as `iptables-restore` does: each table at its `COMMIT`, so that the tables before a faulty one stay
    /// changed. An error names the line.
    pub fn restore(&mut self, text: &str, mode: FlushMode) -> Result<(), IptablesError> {
        restore::apply(self, text, mode)
    }

    pub fn chain(&self, table: &str, chain: &str) -> Option<&IptablesChain> {
        self.tables.get(table)?.chains.get(chain)
    }

    /// The rules as `iptables-save` prints them, with counters as `iptables-save -c` does if `counters`.
    pub fn to_save(&self, counters: bool) -> String {
        let mut text = String::new();
        for (name, _) in BUILT_IN {
            if let Some(table) = self.tables.get(name) {
                table.save(name, counters, &mut text).expect("writing to a String cannot fail");
            }
        }
        text
    }

    /// The number of rules.
    pub fn rule_count(&self) -> usize {
        self.tables.values().flat_map(|table| table.chains.values()).map(|chain| chain.rules.len()).sum()
    }
}

impl IptablesTable {
    /// A table as the kernel creates it.
    fn built_in(name: &str) -> Option<Self> {
        let (_, chains) = BUILT_IN.iter().find(|(table, _)| *table == name)?;
        let chain = || IptablesChain { policy: Some(ChainPolicy::Accept), ..IptablesChain::default() };
        Some(Self { chains: chains.iter().map(|name| (name.to_string(), chain())).collect() })
    }

    /// Built-in chains in the order of their hooks, then user chains by name.
    fn ordered<'t>(&'t self, name: &str) -> impl Iterator<Item = (&'t String, &'t IptablesChain)> + use<'t> {
        let built_in: &'static [&'static str] =
            BUILT_IN.iter().find(|(table, _)| *table == name).map_or(&[], |(_, chains)| chains);
        let first = built_in.iter().filter_map(|chain| self.chains.get_key_value(*chain));
        first.chain(self.chains.iter().filter(|(name, _)| !built_in.contains(&name.as_str())))
    }

    fn save(&self, name: &str, counters: bool, text: &mut String) -> fmt::Result {
        writeln!(text, "*{name}")?;
        for (name, chain) in self.ordered(name) {
            let policy = match chain.policy {
                Some(ChainPolicy::Accept) => "ACCEPT",
                Some(ChainPolicy::Drop) => "DROP",
                None => "-",
            };
            writeln!(text, ":{name} {policy} {}", chain.counters)?;
        }
        for (name, chain) in self.ordered(name) {
            for rule in &chain.rules {
                if counters {
                    write!(text, "{} ", rule.counters)?;
                }
                writeln!(text, "-A {name}{rule}")?;
            }
        }
        text.push_str("COMMIT\n");
        Ok(())
    }
}

/// `[packets:bytes]`.
impl fmt::Display for RuleCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}:{}]", self.packets, self.bytes)
    }
}

#[cfg(test)]
mod tests;

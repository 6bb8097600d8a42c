//! What a table holds, read from the output of iptables-save.

use std::collections::BTreeMap;

use arcstr::ArcStr;

use super::names::{IptablesTableName, JUMPS, Jump, KUBELET_FIREWALL};
use super::render::ChainDigest;

/// One table: its chains as digests, and the rules of those chains that other programs own as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedTable {
    pub chains: BTreeMap<ArcStr, ChainDigest>,
    /// Rules of built-in chains and of KUBE-FIREWALL.
    shared: BTreeMap<String, Vec<String>>,
}

impl SavedTable {
    pub fn parse(text: &str) -> Self {
        let mut saved = Self::default();
        let mut current: Option<(&str, ChainDigest)> = None;
        for line in text.lines() {
            if let Some(chain) = line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) {
                saved.chains.insert(chain.into(), ChainDigest::default());
            } else if let Some((chain, rule)) = line.strip_prefix("-A ").map(split_rule) {
                if let Some((name, digest)) = current.take_if(|(name, _)| *name != chain) {
                    saved.chains.insert(name.into(), digest);
                }
                let (_, digest) = current.get_or_insert((chain, ChainDigest::default()));
                match rule.contains("--nfacct-name  ") {
                    true => digest.add(&rule.replace("--nfacct-name  ", "--nfacct-name ")),
                    false => digest.add(rule),
                }
                if !chain.starts_with("KUBE-") || chain == KUBELET_FIREWALL {
                    saved.shared.entry(chain.to_owned()).or_default().push(rule.to_owned());
                }
            }
        }
        if let Some((name, digest)) = current {
            saved.chains.insert(name.into(), digest);
        }
        saved
    }

    /// How often a chain that other programs own has a rule.
    pub fn count(&self, chain: &str, rule: &str) -> usize {
        self.shared.get(chain).map_or(0, |rules| rules.iter().filter(|held| *held == rule).count())
    }

    /// The lines that make each jump of a table exist once. An existing jump is not moved.
    pub fn jump_repairs(&self, table: IptablesTableName) -> Vec<String> {
        let mut lines = Vec::new();
        for Jump { from, rule, .. } in JUMPS.iter().filter(|jump| jump.table == table) {
            match self.count(from, rule) {
                0 => lines.push(format!("-I {from} {rule}")),
                // `kube-proxy --cleanup` deletes one.
                held => lines.extend((1..held).map(|_| format!("-D {from} {rule}"))),
            }
        }
        lines
    }
}

fn split_rule(rule: &str) -> (&str, &str) {
    rule.split_once(' ').unwrap_or((rule, ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iptables::render::RenderedChain;

    #[test]
    fn chains_compare_with_what_was_rendered_and_doubled_jumps_are_deleted() {
        let text = "*nat\n:PREROUTING ACCEPT [3:180]\n:KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\n\
                    -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
                    -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
                    -A KUBE-SERVICES -d 10.96.0.1/32 -j RETURN\n-A KUBE-SERVICES -j KUBE-NODEPORTS\nCOMMIT\n";
        let saved = SavedTable::parse(text);
        let rules = ["-d 10.96.0.1/32 -j RETURN", "-j KUBE-NODEPORTS"].map(ArcStr::from);
        let rendered = RenderedChain::new("KUBE-SERVICES", rules.into());
        assert_eq!(saved.chains["KUBE-SERVICES"], rendered.digest());
        assert_eq!(saved.chains["KUBE-NODEPORTS"], ChainDigest::default());
        let repairs = saved.jump_repairs(IptablesTableName::Nat);
        let wanted = [
            "-I OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
            "-D PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
            "-I POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING",
        ];
        assert_eq!(repairs, wanted);
    }
}

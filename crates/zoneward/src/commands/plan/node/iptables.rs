//! `zoneward plan node` in mode iptables: the rules that come and go, by chain.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use dataplane::backend::NodeBackend;
use dataplane::iptables::IptablesBackend;
use dataplane::iptables::cleanup::is_proxy_chain;
use dataplane::iptables::commands::{IptablesCommands, IptablesFlavour, IptablesPrograms};
use dataplane::iptables::fake::FakeIptables;
use dataplane::iptables::names::IptablesTableName;
use dataplane::iptables::render::KernelFeatures;
use dataplane::nftables::diff::DiffLine;
use model::{Family, ForwardingTable};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Rules by table and chain.
pub(super) type ChainRules = BTreeMap<(String, String), Vec<String>>;

/// The rules of a table of Services.
pub(super) fn rendered(table: &ForwardingTable) -> Result<ChainRules> {
    let fake = std::sync::Arc::new(std::sync::Mutex::new(FakeIptables::new(IptablesFlavour::Nft)));
    let mut backend = IptablesBackend::new(Box::new(fake.clone()), KernelFeatures::default());
    backend.load(table).context("the rendered rules were rejected, which is a bug in Zoneward")?;
    drop(backend);
    saved(&mut { fake })
}

/// The rules of node proxies in the kernel of this machine.
pub(super) fn live() -> Result<ChainRules> {
    saved(&mut IptablesPrograms::find()?)
}

fn saved(commands: &mut dyn IptablesCommands) -> Result<ChainRules> {
    let mut rules = ChainRules::new();
    for family in
        FAMILIES.into_iter().filter(|family| commands.families().contains(family)).collect::<Vec<_>>()
    {
        for table in IptablesTableName::ALL {
            let text = commands.save(family, table)?;
            let place = format!("{family} {table}");
            let declared = text.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
            for chain in declared.filter(|chain| is_proxy_chain(chain)) {
                rules.insert((place.clone(), chain.to_owned()), Vec::new());
            }
            for (chain, rule) in text.lines().filter_map(|line| line.strip_prefix("-A ")?.split_once(' ')) {
                let jumps_to_proxy = rule.split_once("-j ").is_some_and(|(_, target)| is_proxy_chain(target));
                if is_proxy_chain(chain) || jumps_to_proxy {
                    rules.entry((place.clone(), chain.to_owned())).or_default().push(rule.to_owned());
                }
            }
        }
    }
    Ok(rules)
}

/// Rules that are in one of the two only.
pub(super) fn changes(old: &ChainRules, new: &ChainRules) -> Vec<DiffLine> {
    let mut lines = Vec::new();
    let places: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).collect();
    for place in places {
        let (table, chain) = place;
        let line = |does, detail: &str| DiffLine {
            does,
            table: table.clone(),
            what: chain.clone(),
            detail: detail.to_owned(),
        };
        let (before, after) = (old.get(place), new.get(place));
        let of = |rules: Option<&Vec<String>>| rules.cloned().unwrap_or_default();
        let (held, wanted) = (of(before), of(after));
        if held.is_empty() && wanted.is_empty() && before.is_some() != after.is_some() {
            lines.push(line(if after.is_some() { "add" } else { "delete" }, ""));
        }
        lines.extend(held.iter().filter(|rule| !wanted.contains(rule)).map(|rule| line("delete", rule)));
        lines.extend(wanted.iter().filter(|rule| !held.contains(rule)).map(|rule| line("add", rule)));
    }
    lines
}

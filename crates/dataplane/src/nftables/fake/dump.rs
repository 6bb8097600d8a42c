//! Dumps tables as the kernel does: the messages that create them, with rule handles.

use nix::errno::Errno;

use crate::nftables::encode::dump_messages;
use crate::nftables::ir::{NftChange, RulePosition, Ruleset, Table, TableId};
use crate::nftables::kernel::DumpRequest;

pub(super) fn dump(ruleset: &Ruleset, request: &DumpRequest) -> Result<Vec<u8>, Errno> {
    let table = |id: &TableId| ruleset.tables.get(id).ok_or(Errno::ENOENT);
    let changes = match request {
        DumpRequest::Tables => ruleset.tables.iter().map(|(id, table)| add_table(id, table)).collect(),
        DumpRequest::Chains => ruleset.tables.iter().flat_map(|(id, table)| chains(id, table)).collect(),
        DumpRequest::Sets(id) => sets(id, table(id)?),
        DumpRequest::Elements(id, name) => {
            let set = table(id)?.sets.get(name).ok_or(Errno::ENOENT)?;
            vec![NftChange::AddElements {
                table: id.clone(),
                set: name.clone(),
                ranges: set.spec.ranges(),
                elements: set.each().collect(),
            }]
        }
        DumpRequest::Rules(id) => rules(id, table(id)?),
    };
    Ok(dump_messages(&changes))
}

fn add_table(id: &TableId, table: &Table) -> NftChange {
    NftChange::AddTable { table: id.clone(), comment: table.comment.clone() }
}

fn chains(id: &TableId, table: &Table) -> Vec<NftChange> {
    let chains = table.chains.iter().map(|(name, chain)| NftChange::AddChain {
        table: id.clone(),
        chain: name.clone(),
        spec: chain.spec.clone(),
    });
    chains.collect()
}

fn sets(id: &TableId, table: &Table) -> Vec<NftChange> {
    let sets = table.sets.iter().map(|(name, set)| NftChange::AddSet {
        table: id.clone(),
        set: name.clone(),
        spec: set.spec.clone(),
    });
    sets.collect()
}

fn rules(id: &TableId, table: &Table) -> Vec<NftChange> {
    let rules = table.chains.iter().flat_map(|(name, chain)| {
        chain.rules.iter().map(|rule| NftChange::AddRule {
            table: id.clone(),
            chain: name.clone(),
            rule: rule.clone(),
            position: RulePosition::Last,
        })
    });
    rules.collect()
}

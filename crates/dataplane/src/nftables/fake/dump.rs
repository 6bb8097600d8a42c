//! The tables as the kernel would show them: the same messages that made them, with the numbers of rules.

use nix::errno::Errno;

use crate::nftables::encode::dump_messages;
use crate::nftables::ir::{Change, Place, Program, Table, TableId};
use crate::nftables::netlink::Query;

pub(super) fn dump(program: &Program, query: &Query) -> Result<Vec<u8>, Errno> {
    let table = |id: &TableId| program.tables.get(id).ok_or(Errno::ENOENT);
    let changes = match query {
        Query::Tables => program.tables.iter().map(|(id, table)| add_table(id, table)).collect(),
        Query::Chains => program.tables.iter().flat_map(|(id, table)| chains(id, table)).collect(),
        Query::Sets(id) => sets(id, table(id)?),
        Query::Elements(id, name) => {
            let set = table(id)?.sets.get(name).ok_or(Errno::ENOENT)?;
            vec![Change::AddElements {
                table: id.clone(),
                set: name.clone(),
                ranges: set.spec.ranges(),
                elements: set.each().collect(),
            }]
        }
        Query::Rules(id) => rules(id, table(id)?),
    };
    Ok(dump_messages(&changes))
}

fn add_table(id: &TableId, table: &Table) -> Change {
    Change::AddTable { table: id.clone(), comment: table.comment.clone() }
}

fn chains(id: &TableId, table: &Table) -> Vec<Change> {
    let chains = table.chains.iter().map(|(name, chain)| Change::AddChain {
        table: id.clone(),
        chain: name.clone(),
        spec: chain.spec.clone(),
    });
    chains.collect()
}

fn sets(id: &TableId, table: &Table) -> Vec<Change> {
    let sets = table.sets.iter().map(|(name, set)| Change::AddSet {
        table: id.clone(),
        set: name.clone(),
        spec: set.spec.clone(),
    });
    sets.collect()
}

fn rules(id: &TableId, table: &Table) -> Vec<Change> {
    let rules = table.chains.iter().flat_map(|(name, chain)| {
        chain.rules.iter().map(|rule| Change::AddRule {
            table: id.clone(),
            chain: name.clone(),
            rule: rule.clone(),
            place: Place::Last,
        })
    });
    rules.collect()
}

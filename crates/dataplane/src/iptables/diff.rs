//! From changed chains to the input of `iptables-restore --noflush`.
//!
//! The input has only chains whose rules differ. Declaring a chain creates or flushes it; all of one table happens at
//! COMMIT, so that packets meet a chain either old or new.

use std::fmt::Write;

use arcstr::ArcStr;

use super::commands::IptablesFlavour;
use super::names::IptablesTableName;
use super::render::ChainGroups;

/// Rules and chain declarations in one input for the nft flavour: it keeps chains in a sorted list, so that its time
/// grows with their square. 2,000 are about 150 Services.
const PORTION: usize = 2000;

/// What changes in one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableChange {
    /// Chains with their new rules; a group refers only to chains that exist or are in groups before it.
    pub groups: ChainGroups,
    /// Chains that no rule refers to afterwards.
    pub deleted: Vec<ArcStr>,
    /// Further lines, such as `-I INPUT ...`.
    pub lines: Vec<String>,
}

impl TableChange {
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.deleted.is_empty() && self.lines.is_empty()
    }

    /// The number of rules that a restore writes.
    pub fn rules(&self) -> usize {
        self.groups.iter().flatten().map(|chain| chain.rules.len()).sum()
    }
}

/// The inputs that apply the changes of one family, in order.
pub fn restore_inputs(changes: &[(IptablesTableName, TableChange)], flavour: IptablesFlavour) -> Vec<String> {
    let changes = changes.iter().filter(|(_, change)| !change.is_empty());
    match flavour {
        // Legacy copies the whole table out and in, whatever the input.
        IptablesFlavour::Legacy => {
            let all: String = changes
                .map(|(table, change)| {
                    let mut input = TableInput::new(*table);
                    input.add_groups(&change.groups);
                    input.finish(change)
                })
                .collect();
            Some(all).filter(|input| !input.is_empty()).into_iter().collect()
        }
        IptablesFlavour::Nft => changes.flat_map(|(table, change)| portions(*table, change)).collect(),
    }
}

fn portions(table: IptablesTableName, change: &TableChange) -> Vec<String> {
    let mut inputs = Vec::new();
    let mut input = TableInput::new(table);
    for group in &change.groups {
        if input.size >= PORTION {
            inputs
                .push(std::mem::replace(&mut input, TableInput::new(table)).finish(&TableChange::default()));
        }
        input.add_groups(std::slice::from_ref(group));
    }
    let lines = TableChange { lines: change.lines.clone(), ..TableChange::default() };
    if change.deleted.len() + input.size <= PORTION {
        inputs.push(input.finish(&TableChange { deleted: change.deleted.clone(), ..lines }));
        return inputs;
    }
    if input.size > 0 || !lines.is_empty() {
        inputs.push(input.finish(&lines));
    }
    // Chains that refer to each other are flushed together, before any of them goes.
    let flush = |names: &[ArcStr]| {
        let mut input = TableInput::new(table);
        names.iter().for_each(|name| input.declare(name));
        input
    };
    let flushed = change.deleted.chunks(PORTION).map(|names| flush(names).finish(&TableChange::default()));
    let deleted = change.deleted.chunks(PORTION).map(|names| {
        TableInput::new(table).finish(&TableChange { deleted: names.to_vec(), ..TableChange::default() })
    });
    inputs.extend(flushed.chain(deleted).collect::<Vec<String>>());
    inputs
}

/// The input for one table in the making.
struct TableInput {
    table: IptablesTableName,
    declared: String,
    rules: String,
    size: usize,
}

impl TableInput {
    fn new(table: IptablesTableName) -> Self {
        Self { table, declared: String::new(), rules: String::new(), size: 0 }
    }

    fn declare(&mut self, chain: &str) {
        writeln!(self.declared, ":{chain} - [0:0]").expect("a String takes every text");
        self.size += 1;
    }

    fn add_groups(&mut self, groups: &[Vec<super::render::RenderedChain>]) {
        for chain in groups.iter().flatten() {
            self.declare(&chain.name);
            for rule in &chain.rules {
                writeln!(self.rules, "-A {} {rule}", chain.name).expect("a String takes every text");
            }
            self.size += chain.rules.len();
        }
    }

    fn finish(mut self, change: &TableChange) -> String {
        change.deleted.iter().for_each(|name| self.declare(name));
        let Self { table, declared, rules, .. } = self;
        let lines: String = change.lines.iter().map(|line| format!("{line}\n")).collect();
        let deleted: String = change.deleted.iter().map(|name| format!("-X {name}\n")).collect();
        format!("*{table}\n{declared}{rules}{lines}{deleted}COMMIT\n")
    }
}

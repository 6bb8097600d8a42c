//! A difference that does not fit into one transaction, in parts.
//!
//! ```text
//! 1 larger sets beside the old ones, filled with what the old ones hold     nothing leads there yet
//! 2 rules and chains change over to them                                    one transaction; every answer is as before
//! 3 elements, Service by Service                                            each Service as before or as after
//! 4 smaller sets beside, filled; rules change over to them                  every answer is as before
//! 5 what nothing leads to any more goes
//! ```

use std::collections::BTreeMap;

use super::units::by_service;
use super::{can_become, diff};
use crate::nftables::apply::first_load;
use crate::nftables::ir::{Chain, Change, Expr, Name, Program, Rule, Set, Table, TableId};
use crate::nftables::render::SetName;

/// Groups of changes in order, each to be done whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    /// The change itself.
    pub now: Vec<Vec<Change>>,
    /// What can be cleared away when that is done.
    pub later: Vec<Change>,
}

/// What turns `old` into `new`, in groups that may be done in transactions of their own. A table that cannot be changed
/// where it is goes as a whole and comes anew, the rules at its hooks last.
pub fn parts(old: &Program, new: &Program) -> Parts {
    let mut parts = Parts::default();
    for id in old.tables.keys().filter(|id| !new.tables.contains_key(*id)) {
        parts.now.push(vec![Change::DeleteTable { table: id.clone() }]);
    }
    for (id, table) in &new.tables {
        let alone = |table: &Table| Program { tables: BTreeMap::from([(id.clone(), table.clone())]) };
        match old.tables.get(id) {
            Some(before) if can_become(before, table) => {
                let (now, later) = in_place(id, alone(before), alone(table));
                parts.now.extend(now);
                parts.later.extend(later);
            }
            Some(_) => {
                parts.now.push(vec![Change::DeleteTable { table: id.clone() }]);
                parts.now.extend(first_load(&alone(table)));
            }
            None => parts.now.extend(first_load(&alone(table))),
        }
    }
    parts
}

fn in_place(id: &TableId, old: Program, new: Program) -> (Vec<Vec<Change>>, Vec<Change>) {
    let (mut now, mut later) = (Vec::new(), Vec::new());
    let (Some(before), Some(after)) = (old.tables.get(id), new.tables.get(id)) else { return (now, later) };
    let moves = Moves::between(before, after);

    let mut beside = old.clone();
    moves.put_beside(&mut beside, id, before, |to, from| moves.grows(to, from));
    now.extend(pieces(diff(&old, &beside).now));

    let mut changed_over = beside.clone();
    if let Some(table) = changed_over.tables.get_mut(id) {
        moves.change_over(table, after);
    }
    now.push(diff(&beside, &changed_over).now);

    let mut moved = changed_over.clone();
    if let Some(table) = moved.tables.get_mut(id) {
        moves.fill(table, after);
    }
    let elements = diff(&changed_over, &moved).now;
    now.extend(by_service(&elements, &[&changed_over, &moved]).unwrap_or_else(|| vec![elements]));

    let mut smaller = moved.clone();
    moves.put_beside(&mut smaller, id, after, |to, from| !moves.grows(to, from));
    now.extend(pieces(diff(&moved, &smaller).now));
    let rest = diff(&smaller, &new);
    now.push(rest.now);
    later.extend(rest.later);
    now.retain(|group| !group.is_empty());
    (now, later)
}

/// Changes that no packet can meet, in small groups.
fn pieces(changes: Vec<Change>) -> Vec<Vec<Change>> {
    const ELEMENTS: usize = 500;
    let mut groups = Vec::new();
    for change in changes {
        let Change::AddElements { table, set, ranges, elements } = change else {
            groups.push(vec![change]);
            continue;
        };
        for some in elements.chunks(ELEMENTS) {
            let (table, set, elements) = (table.clone(), set.clone(), some.to_vec());
            groups.push(vec![Change::AddElements { table, set, ranges, elements }]);
        }
    }
    groups
}

/// Sets that get another name with another size.
struct Moves {
    /// From the new name to the old one.
    from: BTreeMap<Name, Name>,
    sizes: BTreeMap<Name, u32>,
}

impl Moves {
    fn between(old: &Table, new: &Table) -> Moves {
        let by_what: BTreeMap<SetName, &Name> =
            old.sets.keys().filter_map(|name| Some((SetName::parse(name)?, name))).collect();
        let comes = new.sets.keys().filter(|name| !old.sets.contains_key(*name));
        let from = comes.filter_map(|name| {
            let before = by_what.get(&SetName::parse(name)?)?;
            (!new.sets.contains_key(*before)).then(|| (name.clone(), (*before).clone()))
        });
        let sets = old.sets.iter().chain(&new.sets);
        let sizes = sets.map(|(name, set)| (name.clone(), set.spec.size.unwrap_or(u32::MAX))).collect();
        Moves { from: from.collect(), sizes }
    }

    /// Whether what the old one holds fits into the new one.
    fn grows(&self, to: &Name, from: &Name) -> bool {
        self.sizes.get(to) >= self.sizes.get(from)
    }

    /// Puts some of the new sets beside the old ones, with what these hold in `content`.
    fn put_beside(
        &self,
        program: &mut Program,
        id: &TableId,
        content: &Table,
        which: impl Fn(&Name, &Name) -> bool,
    ) {
        let Some(table) = program.tables.get_mut(id) else { return };
        for (to, from) in self.from.iter().filter(|(to, from)| which(to, from)) {
            let Some(size) = self.sizes.get(to) else { continue };
            let held = content.sets.get(from).or_else(|| content.sets.get(to));
            let Some(held) = held else { continue };
            let spec = crate::nftables::ir::SetSpec { size: Some(*size), ..held.spec.clone() };
            table.sets.insert(to.clone(), Set { spec, elements: held.elements.clone() });
        }
    }

    /// The name under which a set of the new program is filled: one that becomes smaller keeps its own until the end.
    fn working<'n>(&'n self, name: &'n Name) -> &'n Name {
        match self.from.get(name) {
            Some(from) if !self.grows(name, from) => from,
            _ => name,
        }
    }

    /// Rules and chains as they will be, with what Services that have not moved still need.
    fn change_over(&self, table: &mut Table, new: &Table) {
        for (name, chain) in &new.chains {
            let rules = chain.rules.iter().map(|rule| self.renamed(rule)).collect();
            let chain = Chain { spec: chain.spec.clone(), rules };
            // Equal rules keep the kernel's numbers.
            if table.chains.get(name) != Some(&chain) {
                table.chains.insert(name.clone(), chain);
            }
        }
        for (name, set) in &new.sets {
            let working = self.working(name);
            match SetName::parse(name) {
                Some(SetName::Verdicts(_)) => {
                    let held =
                        table.sets.entry(working.clone()).or_insert_with(|| Set::empty(set.spec.clone()));
                    held.elements.extend(set.elements.clone());
                }
                Some(SetName::ServiceCidrs | SetName::NodePortRanges) | None => {
                    table.sets.insert(working.clone(), set.clone());
                }
                Some(_) => {
                    table.sets.entry(working.clone()).or_insert_with(|| Set::empty(set.spec.clone()));
                }
            }
        }
    }

    /// The elements of the new program, but for verdicts that go last.
    fn fill(&self, table: &mut Table, new: &Table) {
        for (name, set) in &new.sets {
            let keeps = matches!(SetName::parse(name), Some(SetName::Verdicts(_) | SetName::Affinity));
            if let Some(held) = table.sets.get_mut(self.working(name)).filter(|_| !keeps) {
                held.elements.clone_from(&set.elements);
            }
        }
    }

    fn renamed(&self, rule: &Rule) -> Rule {
        let mut rule = rule.clone();
        for expr in &mut rule.exprs {
            if let Expr::Lookup { set, .. }
            | Expr::LookupMap { set, .. }
            | Expr::LookupVerdict { set, .. }
            | Expr::Dynset { set, .. } = expr
            {
                *set = self.working(set).clone();
            }
        }
        rule
    }
}

//! A difference that exceeds one transaction, in stages.
//!
//! ```text
//! 1 add larger sets, filled with the content of those they replace     not referenced yet
//! 2 switch rules and chains to them                                    one transaction; lookups are unchanged
//! 3 change elements, Service by Service                                each Service is either old or new
//! 4 add smaller sets, filled; switch rules to them                     lookups are unchanged
//! 5 delete what is no longer referenced
//! ```

use std::collections::BTreeMap;

use super::by_service::by_service;
use super::{can_change_in_place, diff};
use crate::nftables::apply::initial_load_groups;
use crate::nftables::ir::{Chain, Expr, NftChange, NftName, NftRule, Ruleset, Set, Table, TableId};
use crate::nftables::render::SetName;

/// Groups of changes in order, each atomic.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StagedDiff {
    pub now: Vec<Vec<NftChange>>,
    /// Deletes of objects that are unused once `now` is committed.
    pub later: Vec<NftChange>,
}

/// The changes that turn `old` into `new`, in groups that may be separate transactions. A table that cannot be changed
/// in place is deleted and created again, the rules of its base chains last.
pub fn stage(old: &Ruleset, new: &Ruleset) -> StagedDiff {
    let mut staged = StagedDiff::default();
    for id in old.tables.keys().filter(|id| !new.tables.contains_key(*id)) {
        staged.now.push(vec![NftChange::DeleteTable { table: id.clone() }]);
    }
    for (id, table) in &new.tables {
        let alone = |table: &Table| Ruleset { tables: BTreeMap::from([(id.clone(), table.clone())]) };
        match old.tables.get(id) {
            Some(before) if can_change_in_place(before, table) => {
                let (now, later) = in_place(id, alone(before), alone(table));
                staged.now.extend(now);
                staged.later.extend(later);
            }
            Some(_) => {
                staged.now.push(vec![NftChange::DeleteTable { table: id.clone() }]);
                staged.now.extend(initial_load_groups(&alone(table)));
            }
            None => staged.now.extend(initial_load_groups(&alone(table))),
        }
    }
    staged
}

fn in_place(id: &TableId, old: Ruleset, new: Ruleset) -> (Vec<Vec<NftChange>>, Vec<NftChange>) {
    let (mut now, mut later) = (Vec::new(), Vec::new());
    let (Some(before), Some(after)) = (old.tables.get(id), new.tables.get(id)) else { return (now, later) };
    let migrations = SetMigrations::between(before, after);

    let mut with_larger = old.clone();
    migrations.add_beside(&mut with_larger, id, before, |to, from| migrations.grows(to, from));
    now.extend(small_groups(diff(&old, &with_larger).now));

    let mut switched = with_larger.clone();
    if let Some(table) = switched.tables.get_mut(id) {
        migrations.switch_rules(table, after);
    }
    now.push(diff(&with_larger, &switched).now);

    let mut moved = switched.clone();
    if let Some(table) = moved.tables.get_mut(id) {
        migrations.fill(table, after);
    }
    let elements = diff(&switched, &moved).now;
    now.extend(by_service(&elements, &[&switched, &moved]).unwrap_or_else(|| vec![elements]));

    let mut smaller = moved.clone();
    migrations.add_beside(&mut smaller, id, after, |to, from| !migrations.grows(to, from));
    now.extend(small_groups(diff(&moved, &smaller).now));
    let rest = diff(&smaller, &new);
    now.push(rest.now);
    later.extend(rest.later);
    now.retain(|group| !group.is_empty());
    (now, later)
}

/// Changes to objects that are not referenced, in small groups.
fn small_groups(changes: Vec<NftChange>) -> Vec<Vec<NftChange>> {
    const ELEMENTS: usize = 500;
    let mut groups = Vec::new();
    for change in changes {
        let NftChange::AddElements { table, set, ranges, elements } = change else {
            groups.push(vec![change]);
            continue;
        };
        for some in elements.chunks(ELEMENTS) {
            let (table, set, elements) = (table.clone(), set.clone(), some.to_vec());
            groups.push(vec![NftChange::AddElements { table, set, ranges, elements }]);
        }
    }
    groups
}

/// Sets that are replaced by one of another size, and thus of another name.
struct SetMigrations {
    /// Old name by new name.
    from: BTreeMap<NftName, NftName>,
    sizes: BTreeMap<NftName, u32>,
}

impl SetMigrations {
    fn between(old: &Table, new: &Table) -> SetMigrations {
        let by_what: BTreeMap<SetName, &NftName> =
            old.sets.keys().filter_map(|name| Some((SetName::parse(name)?, name))).collect();
        let comes = new.sets.keys().filter(|name| !old.sets.contains_key(*name));
        let from = comes.filter_map(|name| {
            let before = by_what.get(&SetName::parse(name)?)?;
            (!new.sets.contains_key(*before)).then(|| (name.clone(), (*before).clone()))
        });
        let sets = old.sets.iter().chain(&new.sets);
        let sizes = sets.map(|(name, set)| (name.clone(), set.spec.size.unwrap_or(u32::MAX))).collect();
        SetMigrations { from: from.collect(), sizes }
    }

    /// Whether the content of the old set fits into the new one.
    fn grows(&self, to: &NftName, from: &NftName) -> bool {
        self.sizes.get(to) >= self.sizes.get(from)
    }

    /// Adds some of the new sets, with the content that the old ones have in `content`.
    fn add_beside(
        &self,
        ruleset: &mut Ruleset,
        id: &TableId,
        content: &Table,
        which: impl Fn(&NftName, &NftName) -> bool,
    ) {
        let Some(table) = ruleset.tables.get_mut(id) else { return };
        for (to, from) in self.from.iter().filter(|(to, from)| which(to, from)) {
            let Some(size) = self.sizes.get(to) else { continue };
            let held = content.sets.get(from).or_else(|| content.sets.get(to));
            let Some(held) = held else { continue };
            let spec = crate::nftables::ir::SetSpec { size: Some(*size), ..held.spec.clone() };
            table.sets.insert(to.clone(), Set { spec, elements: held.elements.clone() });
        }
    }

    /// The name under which a set is filled during the migration: one that shrinks keeps its old name until the end.
    fn working<'n>(&'n self, name: &'n NftName) -> &'n NftName {
        match self.from.get(name) {
            Some(from) if !self.grows(name, from) => from,
            _ => name,
        }
    }

    /// The new rules and chains, and the verdicts of both rulesets.
    fn switch_rules(&self, table: &mut Table, new: &Table) {
        for (name, chain) in &new.chains {
            let rules = chain.rules.iter().map(|rule| self.renamed(rule)).collect();
            let chain = Chain { spec: chain.spec.clone(), rules };
            // Equal rules keep their handles.
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

    /// The elements of the new ruleset; old verdicts stay until the end.
    fn fill(&self, table: &mut Table, new: &Table) {
        for (name, set) in &new.sets {
            let keeps = matches!(SetName::parse(name), Some(SetName::Verdicts(_) | SetName::Affinity));
            if let Some(held) = table.sets.get_mut(self.working(name)).filter(|_| !keeps) {
                held.elements.clone_from(&set.elements);
            }
        }
    }

    fn renamed(&self, rule: &NftRule) -> NftRule {
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

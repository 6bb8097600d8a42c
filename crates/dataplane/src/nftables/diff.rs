//! The changes between two rulesets, in an order that the kernel accepts.
//!
//! ```text
//! now, one transaction:  tables, sets, chains -> delete elements -> rules -> add elements -> rules of base chains
//! later, another one:    unused sets and chains
//! ```
//!
//! A difference that exceeds one transaction is staged (`staged`): each stage leaves every Service either old or new.
//!
//! Rules of base chains come last, so that an initial load may take several transactions. Unused objects are deleted
//! later: kernels before 6.2 keep a chain busy until the transaction that removes its last reference is committed
//! (pitfall 9).

mod by_service;
mod staged;
mod text;

use super::ir::{Chain, Element, NftChange, NftName, NftRule, RulePosition, Ruleset, Set, Table, TableId};

pub use by_service::{by_service, services_of, split_group};
pub use staged::{StagedDiff, stage};
pub use text::{DiffLine, element_text, lines};

/// The changes that turn one ruleset into another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RulesetDiff {
    /// One transaction.
    pub now: Vec<NftChange>,
    /// Deletes of objects that are unused once `now` is committed.
    pub later: Vec<NftChange>,
}

impl RulesetDiff {
    pub fn is_empty(&self) -> bool {
        self.now.is_empty() && self.later.is_empty()
    }
}

/// The changes that turn `old` into `new`. Elements of dynamic sets are left alone.
pub fn diff(old: &Ruleset, new: &Ruleset) -> RulesetDiff {
    let mut steps = Steps::default();
    for id in old.tables.keys().filter(|id| !new.tables.contains_key(*id)) {
        steps.tables.push(NftChange::DeleteTable { table: id.clone() });
    }
    for (id, table) in &new.tables {
        match old.tables.get(id) {
            Some(before) if can_change_in_place(before, table) => steps.change(id, before, table),
            Some(_) => {
                steps.tables.push(NftChange::DeleteTable { table: id.clone() });
                steps.create(id, table);
            }
            None => steps.create(id, table),
        }
    }
    steps.in_order()
}

/// Whether a table can be changed in place. The kernel changes neither the type of a set nor the hook of a chain;
/// another version of Zoneward may have created them differently.
pub(super) fn can_change_in_place(old: &Table, new: &Table) -> bool {
    let same_sets = new.sets.iter().all(|(name, set)| old.sets.get(name).is_none_or(|o| o.spec == set.spec));
    let same_chains =
        new.chains.iter().all(|(name, chain)| old.chains.get(name).is_none_or(|o| o.spec == chain.spec));
    same_sets && same_chains && old.comment == new.comment
}

/// Changes by kind; the order of the fields is the order of application.
#[derive(Default)]
struct Steps {
    tables: Vec<NftChange>,
    sets: Vec<NftChange>,
    chains: Vec<NftChange>,
    flushes: Vec<NftChange>,
    deleted_elements: Vec<NftChange>,
    rules: Vec<NftChange>,
    added_elements: Vec<NftChange>,
    base_chain_rules: Vec<NftChange>,
    unused_sets: Vec<NftChange>,
    unused_chains: Vec<NftChange>,
}

impl Steps {
    fn in_order(self) -> RulesetDiff {
        let now = [
            self.tables,
            self.sets,
            self.chains,
            self.flushes,
            self.deleted_elements,
            // Before elements are added: the kernel walks a whole map for each rule that starts to use it.
            self.rules,
            self.added_elements,
            self.base_chain_rules,
        ];
        RulesetDiff { now: now.concat(), later: [self.unused_sets, self.unused_chains].concat() }
    }

    fn create(&mut self, id: &TableId, table: &Table) {
        self.tables.push(NftChange::AddTable { table: id.clone(), comment: table.comment.clone() });
        self.change(id, &Table::default(), table);
    }

    fn change(&mut self, id: &TableId, old: &Table, new: &Table) {
        for (name, set) in &new.sets {
            if !old.sets.contains_key(name) {
                let (table, set, spec) = (id.clone(), name.clone(), set.spec.clone());
                self.sets.push(NftChange::AddSet { table, set, spec });
            }
            self.change_elements(id, name, old.sets.get(name), set);
        }
        for (name, chain) in &new.chains {
            let before = old.chains.get(name);
            if before.is_none() {
                let (table, chain, spec) = (id.clone(), name.clone(), chain.spec.clone());
                self.chains.push(NftChange::AddChain { table, chain, spec });
            }
            self.change_rules(id, name, before.map_or(&[][..], |b| &b.rules), chain);
        }
        for (name, set) in old.sets.iter().filter(|(name, _)| !new.sets.contains_key(*name)) {
            let (table, name) = (id.clone(), name.clone());
            if !set.elements.is_empty() {
                self.deleted_elements.push(NftChange::FlushSet { table: table.clone(), set: name.clone() });
            }
            self.unused_sets.push(NftChange::DeleteSet { table, set: name });
        }
        for (name, chain) in old.chains.iter().filter(|(name, _)| !new.chains.contains_key(*name)) {
            let (table, name) = (id.clone(), name.clone());
            if !chain.rules.is_empty() {
                self.flushes.push(NftChange::FlushChain { table: table.clone(), chain: name.clone() });
            }
            self.unused_chains.push(NftChange::DeleteChain { table, chain: name });
        }
    }

    fn change_elements(&mut self, id: &TableId, name: &NftName, old: Option<&Set>, new: &Set) {
        if new.spec.dynamic {
            return;
        }
        let was = |element: &Element| old.and_then(|o| o.elements.get(&element.key));
        let mut deleted_elements: Vec<Element> = Vec::new();
        let mut added_elements: Vec<Element> = Vec::new();
        for element in old.into_iter().flat_map(Set::each) {
            // Data cannot be replaced: the element is deleted and added.
            if new.elements.get(&element.key) != Some(&element.value) {
                deleted_elements.push(element);
            }
        }
        added_elements.extend(new.each().filter(|element| was(element) != Some(&element.value)));
        let (table, set, ranges) = (id.clone(), name.clone(), new.spec.ranges());
        if !deleted_elements.is_empty() {
            let (table, set) = (table.clone(), set.clone());
            self.deleted_elements.push(NftChange::DeleteElements {
                table,
                set,
                ranges,
                elements: deleted_elements,
            });
        }
        if !added_elements.is_empty() {
            self.added_elements.push(NftChange::AddElements { table, set, ranges, elements: added_elements });
        }
    }

    fn change_rules(&mut self, id: &TableId, name: &NftName, old: &[NftRule], new: &Chain) {
        if old == new.rules {
            return;
        }
        let target = if new.spec.base.is_some() { &mut self.base_chain_rules } else { &mut self.rules };
        if let Some(handles) = replaceable(old, &new.rules) {
            let pairs = handles.into_iter().zip(old).zip(&new.rules);
            for ((handle, _), rule) in pairs.filter(|((_, old), new)| old != new) {
                let (table, chain, rule) = (id.clone(), name.clone(), rule.clone());
                target.push(NftChange::ReplaceRule { table, chain, handle, rule });
            }
            return;
        }
        if !old.is_empty() {
            self.flushes.push(NftChange::FlushChain { table: id.clone(), chain: name.clone() });
        }
        target.extend(new.rules.iter().map(|rule| NftChange::AddRule {
            table: id.clone(),
            chain: name.clone(),
            rule: rule.clone(),
            position: RulePosition::Last,
        }));
    }
}

/// The handles of the old rules, if the new ones can replace them one by one.
fn replaceable(old: &[NftRule], new: &[NftRule]) -> Option<Vec<u64>> {
    let handles: Option<Vec<u64>> = old.iter().map(|rule| rule.handle).collect();
    handles.filter(|handles| !handles.is_empty() && handles.len() == new.len())
}

//! Two programs -> what changes, in an order that the kernel takes.
//!
//! ```text
//! now, one transaction:  tables, sets, chains -> elements out -> rules -> elements in -> rules at the hooks
//! later, another one:    sets and chains that nothing leads to any more
//! ```
//!
//! What is too long for one transaction goes by `parts`, each of which leaves every Service as before or as after.
//!
//! At a first load everything stands before the hooks lead there, so that it may be cut into several
//! transactions. What goes for good goes later: kernels before 6.2 hold on to a chain until the transaction
//! that takes the last way to it is through (pitfall 9).

mod parts;
mod text;
mod units;

use super::ir::{Chain, Change, Element, Name, Place, Program, Rule, Set, Table, TableId};

pub use parts::{Parts, parts};
pub use text::{Line, element_text, lines};
pub use units::{by_service, in_steps};

/// What turns one program into another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Difference {
    /// The change itself: one transaction.
    pub now: Vec<Change>,
    /// What can be cleared away when that is done.
    pub later: Vec<Change>,
}

impl Difference {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.now.is_empty() && self.later.is_empty()
    }
}

/// What turns `old` into `new`. Elements that rules write themselves are left alone.
pub fn diff(old: &Program, new: &Program) -> Difference {
    let mut steps = Steps::default();
    for id in old.tables.keys().filter(|id| !new.tables.contains_key(*id)) {
        steps.tables.push(Change::DeleteTable { table: id.clone() });
    }
    for (id, table) in &new.tables {
        match old.tables.get(id) {
            Some(before) if can_become(before, table) => steps.change(id, before, table),
            Some(_) => {
                steps.tables.push(Change::DeleteTable { table: id.clone() });
                steps.create(id, table);
            }
            None => steps.create(id, table),
        }
    }
    steps.in_order()
}

/// Whether a table can be changed where it is. The kernel changes neither the type of a set nor the hook of a
/// chain; another version of ours may have made them differently.
pub(super) fn can_become(old: &Table, new: &Table) -> bool {
    let same_sets = new.sets.iter().all(|(name, set)| old.sets.get(name).is_none_or(|o| o.spec == set.spec));
    let same_chains =
        new.chains.iter().all(|(name, chain)| old.chains.get(name).is_none_or(|o| o.spec == chain.spec));
    same_sets && same_chains && old.comment == new.comment
}

/// Changes by kind; the fields are in the order of their turn.
#[derive(Default)]
struct Steps {
    tables: Vec<Change>,
    sets: Vec<Change>,
    chains: Vec<Change>,
    flushes: Vec<Change>,
    elements_out: Vec<Change>,
    rules: Vec<Change>,
    elements_in: Vec<Change>,
    rules_at_hooks: Vec<Change>,
    sets_later: Vec<Change>,
    chains_later: Vec<Change>,
}

impl Steps {
    fn in_order(self) -> Difference {
        let now = [
            self.tables,
            self.sets,
            self.chains,
            self.flushes,
            self.elements_out,
            // While maps are empty: the kernel looks through a whole map for each chain that comes to use it.
            self.rules,
            self.elements_in,
            self.rules_at_hooks,
        ];
        Difference { now: now.concat(), later: [self.sets_later, self.chains_later].concat() }
    }

    fn create(&mut self, id: &TableId, table: &Table) {
        self.tables.push(Change::AddTable { table: id.clone(), comment: table.comment.clone() });
        self.change(id, &Table::default(), table);
    }

    fn change(&mut self, id: &TableId, old: &Table, new: &Table) {
        for (name, set) in &new.sets {
            if !old.sets.contains_key(name) {
                let (table, set, spec) = (id.clone(), name.clone(), set.spec.clone());
                self.sets.push(Change::AddSet { table, set, spec });
            }
            self.change_elements(id, name, old.sets.get(name), set);
        }
        for (name, chain) in &new.chains {
            let before = old.chains.get(name);
            if before.is_none() {
                let (table, chain, spec) = (id.clone(), name.clone(), chain.spec.clone());
                self.chains.push(Change::AddChain { table, chain, spec });
            }
            self.change_rules(id, name, before.map_or(&[][..], |b| &b.rules), chain);
        }
        for (name, set) in old.sets.iter().filter(|(name, _)| !new.sets.contains_key(*name)) {
            let (table, name) = (id.clone(), name.clone());
            if !set.elements.is_empty() {
                self.elements_out.push(Change::FlushSet { table: table.clone(), set: name.clone() });
            }
            self.sets_later.push(Change::DeleteSet { table, set: name });
        }
        for (name, chain) in old.chains.iter().filter(|(name, _)| !new.chains.contains_key(*name)) {
            let (table, name) = (id.clone(), name.clone());
            if !chain.rules.is_empty() {
                self.flushes.push(Change::FlushChain { table: table.clone(), chain: name.clone() });
            }
            self.chains_later.push(Change::DeleteChain { table, chain: name });
        }
    }

    fn change_elements(&mut self, id: &TableId, name: &Name, old: Option<&Set>, new: &Set) {
        if new.spec.dynamic {
            return;
        }
        let was = |element: &Element| old.and_then(|o| o.elements.get(&element.key));
        let mut elements_out: Vec<Element> = Vec::new();
        let mut elements_in: Vec<Element> = Vec::new();
        for element in old.into_iter().flat_map(Set::each) {
            // Data cannot be replaced: the old element goes, and a new one comes.
            if new.elements.get(&element.key) != Some(&element.value) {
                elements_out.push(element);
            }
        }
        elements_in.extend(new.each().filter(|element| was(element) != Some(&element.value)));
        let (table, set, ranges) = (id.clone(), name.clone(), new.spec.ranges());
        if !elements_out.is_empty() {
            let (table, set) = (table.clone(), set.clone());
            self.elements_out.push(Change::DeleteElements { table, set, ranges, elements: elements_out });
        }
        if !elements_in.is_empty() {
            self.elements_in.push(Change::AddElements { table, set, ranges, elements: elements_in });
        }
    }

    fn change_rules(&mut self, id: &TableId, name: &Name, old: &[Rule], new: &Chain) {
        if old == new.rules {
            return;
        }
        let target = if new.spec.base.is_some() { &mut self.rules_at_hooks } else { &mut self.rules };
        if let Some(handles) = replaceable(old, &new.rules) {
            let pairs = handles.into_iter().zip(old).zip(&new.rules);
            for ((handle, _), rule) in pairs.filter(|((_, old), new)| old != new) {
                let (table, chain, rule) = (id.clone(), name.clone(), rule.clone());
                target.push(Change::ReplaceRule { table, chain, handle, rule });
            }
            return;
        }
        if !old.is_empty() {
            self.flushes.push(Change::FlushChain { table: id.clone(), chain: name.clone() });
        }
        target.extend(new.rules.iter().map(|rule| Change::AddRule {
            table: id.clone(),
            chain: name.clone(),
            rule: rule.clone(),
            place: Place::Last,
        }));
    }
}

/// The handles of the old rules, if the new ones can take their places one by one.
fn replaceable(old: &[Rule], new: &[Rule]) -> Option<Vec<u64>> {
    let handles: Option<Vec<u64>> = old.iter().map(|rule| rule.handle).collect();
    handles.filter(|handles| !handles.is_empty() && handles.len() == new.len())
}

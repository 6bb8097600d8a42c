//! A transaction in progress: accepts or refuses each message as the kernel does, with its error numbers, and can be
//! undone. A copy of all tables would cost more than most transactions.

use std::collections::BTreeMap;
use std::ops::Bound;

use nix::errno::Errno;

use super::validate;
use crate::nftables::decode::{ElementList, NftMessage, join};
use crate::nftables::ir::{
    Bytes, Chain, ChainSpec, Comment, DataType, Element, ElementValue, IntervalEncoding, NftChange, NftName,
    NftRule, RulePosition, Ruleset, Set, SetSpec, Table, TableId,
};

/// The longest name of a table, chain or set.
const LONGEST_NAME: usize = 255;

/// The tables after the messages so far.
pub(super) struct Transaction<'k> {
    pub(super) ruleset: &'k mut Ruleset,
    pub(super) last_handle: u64,
    undo: Vec<Undo>,
    /// Whether jumps may have changed: elements without a verdict cannot make a loop.
    pub(super) changes_jumps: bool,
}

/// What was there before a change; `None` for nothing.
enum Undo {
    Table(TableId, Option<Table>),
    Chain(TableId, NftName, Option<Chain>),
    Set(TableId, NftName, Option<Set>),
    Element(TableId, NftName, Bytes, Option<ElementValue>),
}

impl Undo {
    fn apply(self, ruleset: &mut Ruleset) {
        match self {
            Undo::Table(id, old) => restore(&mut ruleset.tables, id, old),
            Undo::Chain(table, name, old) => {
                if let Some(table) = ruleset.tables.get_mut(&table) {
                    restore(&mut table.chains, name, old);
                }
            }
            Undo::Set(table, name, old) => {
                if let Some(table) = ruleset.tables.get_mut(&table) {
                    restore(&mut table.sets, name, old);
                }
            }
            Undo::Element(table, set, key, old) => {
                if let Some(set) = ruleset.tables.get_mut(&table).and_then(|table| table.sets.get_mut(&set)) {
                    restore(&mut set.elements, key, old);
                }
            }
        }
    }
}

fn restore<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, old: Option<V>) {
    match old {
        Some(old) => drop(map.insert(key, old)),
        None => drop(map.remove(&key)),
    }
}

type Accepted = Result<(), Errno>;

impl Transaction<'_> {
    pub(super) fn new(ruleset: &mut Ruleset, last_handle: u64) -> Transaction<'_> {
        Transaction { ruleset, last_handle, undo: Vec::new(), changes_jumps: false }
    }

    /// Undoes everything.
    pub(super) fn abort(self) {
        let Transaction { ruleset, undo, .. } = self;
        undo.into_iter().rev().for_each(|undo| undo.apply(ruleset));
    }

    pub(super) fn take(&mut self, message: NftMessage) -> Accepted {
        match message {
            NftMessage::Begin | NftMessage::End => Ok(()),
            NftMessage::Change(change) => {
                self.changes_jumps = true;
                self.change(change)
            }
            NftMessage::Elements(elements) => self.add_elements(elements),
            NftMessage::DeleteElements(elements) => self.delete_elements(elements),
        }
    }

    fn change(&mut self, change: NftChange) -> Accepted {
        match change {
            NftChange::AddTable { table, comment } => self.add_table(table, comment),
            NftChange::DeleteTable { table } => {
                let old = self.ruleset.tables.remove(&table).ok_or(Errno::ENOENT)?;
                self.undo.push(Undo::Table(table, Some(old)));
                Ok(())
            }
            NftChange::AddChain { table, chain, spec } => self.add_chain(&table, chain, spec),
            NftChange::FlushChain { table, chain } => {
                self.save_chain(&table, &chain)?;
                self.chain(&table, &chain)?.rules.clear();
                Ok(())
            }
            NftChange::DeleteChain { table, chain } => self.delete_chain(&table, &chain),
            NftChange::AddSet { table, set, spec } => self.add_set(&table, set, spec),
            NftChange::FlushSet { table, set } => {
                let old = self.set(&table, &set)?;
                let spec = old.spec.clone();
                let old = std::mem::replace(old, Set::empty(spec));
                self.undo.push(Undo::Set(table, set, Some(old)));
                Ok(())
            }
            NftChange::DeleteSet { table, set } => self.delete_set(&table, &set),
            NftChange::AddRule { table, chain, rule, position } => {
                self.add_rule(&table, &chain, rule, position)
            }
            NftChange::ReplaceRule { table, chain, handle, rule } => {
                validate::rule(self.table(&table)?, &rule)?;
                self.save_chain(&table, &chain)?;
                let new = self.numbered(rule);
                *self.rule(&table, &chain, handle)?.1 = new;
                Ok(())
            }
            NftChange::DeleteRule { table, chain, handle } => {
                let (index, _) = self.rule(&table, &chain, handle)?;
                self.save_chain(&table, &chain)?;
                self.chain(&table, &chain)?.rules.remove(index);
                Ok(())
            }
            // Elements are messages of their own.
            NftChange::AddElements { .. } | NftChange::DeleteElements { .. } => Err(Errno::EINVAL),
        }
    }

    fn table(&mut self, table: &TableId) -> Result<&mut Table, Errno> {
        self.ruleset.tables.get_mut(table).ok_or(Errno::ENOENT)
    }

    fn chain(&mut self, table: &TableId, chain: &NftName) -> Result<&mut Chain, Errno> {
        self.table(table)?.chains.get_mut(chain).ok_or(Errno::ENOENT)
    }

    fn save_chain(&mut self, table: &TableId, chain: &NftName) -> Accepted {
        let old = self.chain(table, chain)?.clone();
        self.undo.push(Undo::Chain(table.clone(), chain.clone(), Some(old)));
        Ok(())
    }

    fn set(&mut self, table: &TableId, set: &NftName) -> Result<&mut Set, Errno> {
        self.table(table)?.sets.get_mut(set).ok_or(Errno::ENOENT)
    }

    fn rule(
        &mut self,
        table: &TableId,
        chain: &NftName,
        handle: u64,
    ) -> Result<(usize, &mut NftRule), Errno> {
        let rules = self.chain(table, chain)?.rules.iter_mut().enumerate();
        rules.into_iter().find(|(_, rule)| rule.handle == Some(handle)).ok_or(Errno::ENOENT)
    }

    fn numbered(&mut self, rule: NftRule) -> NftRule {
        self.last_handle += 1;
        NftRule { handle: Some(self.last_handle), ..rule }
    }

    fn add_table(&mut self, table: TableId, comment: Option<Comment>) -> Accepted {
        check_name(&table.name)?;
        // An existing table stays as it is, comment included.
        if !self.ruleset.tables.contains_key(&table) {
            self.undo.push(Undo::Table(table.clone(), None));
            self.ruleset.tables.insert(table, Table { comment, ..Table::default() });
        }
        Ok(())
    }

    fn add_chain(&mut self, table: &TableId, name: NftName, spec: ChainSpec) -> Accepted {
        check_name(&name)?;
        validate::base(spec.base.as_ref())?;
        let old = self.table(table)?.chains.get(&name).cloned();
        self.undo.push(Undo::Chain(table.clone(), name.clone(), old));
        let chains = &mut self.table(table)?.chains;
        let Some(old) = chains.get_mut(&name) else {
            chains.insert(name, Chain { spec, rules: Vec::new() });
            return Ok(());
        };
        match (&mut old.spec.base, spec.base) {
            (_, None) => Ok(()),
            // Only the policy can change.
            (Some(old), Some(new))
                if (old.kind, old.hook, old.priority) == (new.kind, new.hook, new.priority) =>
            {
                old.policy = new.policy;
                Ok(())
            }
            (Some(_), Some(_)) => Err(Errno::EOPNOTSUPP),
            (None, Some(_)) => Err(Errno::EEXIST),
        }
    }

    fn delete_chain(&mut self, id: &TableId, name: &NftName) -> Accepted {
        self.chain(id, name)?;
        let table = self.table(id)?;
        if validate::is_referenced(table, name) {
            return Err(Errno::EBUSY);
        }
        let old = table.chains.remove(name);
        self.undo.push(Undo::Chain(id.clone(), name.clone(), old));
        Ok(())
    }

    fn add_set(&mut self, table: &TableId, name: NftName, spec: SetSpec) -> Accepted {
        check_name(&name)?;
        let bad_key = spec.key_len() == 0 || spec.key_len() > 64;
        let bad_data = matches!(&spec.data, Some(DataType::Fields(fields)) if fields.is_empty());
        if bad_key || bad_data {
            return Err(Errno::EINVAL);
        }
        // Rules can only update hash tables.
        if spec.dynamic && spec.interval {
            return Err(Errno::EOPNOTSUPP);
        }
        let sets = &mut self.table(table)?.sets;
        match sets.get(&name) {
            Some(old) if SetSpec { comment: spec.comment.clone(), ..old.spec.clone() } == spec => Ok(()),
            Some(_) => Err(Errno::EEXIST),
            None => {
                sets.insert(name.clone(), Set::empty(spec));
                self.undo.push(Undo::Set(table.clone(), name, None));
                Ok(())
            }
        }
    }

    fn delete_set(&mut self, id: &TableId, name: &NftName) -> Accepted {
        self.set(id, name)?;
        let table = self.table(id)?;
        let used = |rule: &NftRule| rule.exprs.iter().any(|expr| validate::set_of(expr) == Some(name));
        if table.chains.values().flat_map(|chain| &chain.rules).any(used) {
            return Err(Errno::EBUSY);
        }
        let old = table.sets.remove(name);
        self.undo.push(Undo::Set(id.clone(), name.clone(), old));
        Ok(())
    }

    fn add_rule(
        &mut self,
        table: &TableId,
        chain: &NftName,
        rule: NftRule,
        position: RulePosition,
    ) -> Accepted {
        self.chain(table, chain)?;
        validate::rule(self.table(table)?, &rule)?;
        self.save_chain(table, chain)?;
        let rule = self.numbered(rule);
        let rules = &mut self.chain(table, chain)?.rules;
        match position {
            RulePosition::Last => rules.push(rule),
            RulePosition::First => rules.insert(0, rule),
        }
        Ok(())
    }

    fn add_elements(&mut self, added: ElementList) -> Accepted {
        let ElementList { table, set, raw } = added;
        let spec = self.set(&table, &set)?.spec.clone();
        self.changes_jumps |= spec.data == Some(DataType::Verdict);
        for element in join(raw, spec.ranges()) {
            validate::element(self.table(&table)?, &spec, &element)?;
            let key = element.key.clone();
            if add_element(self.set(&table, &set)?, element)? {
                self.undo.push(Undo::Element(table.clone(), set.clone(), key, None));
            }
        }
        Ok(())
    }

    fn delete_elements(&mut self, deleted: ElementList) -> Accepted {
        let ElementList { table, set: name, raw } = deleted;
        for element in join(raw, self.set(&table, &name)?.spec.ranges()) {
            let set = self.set(&table, &name)?;
            let found = set.elements.get(&element.key).ok_or(Errno::ENOENT)?;
            if set.spec.interval && found.key_end != element.value.key_end {
                return Err(Errno::ENOENT);
            }
            let old = set.elements.remove(&element.key);
            self.undo.push(Undo::Element(table.clone(), name.clone(), element.key, old));
        }
        Ok(())
    }
}

fn check_name(name: &NftName) -> Accepted {
    match name.len() {
        0 => Err(Errno::EINVAL),
        1..=LONGEST_NAME => Ok(()),
        _ => Err(Errno::ERANGE),
    }
}

/// Whether it was not there before.
fn add_element(set: &mut Set, element: Element) -> Result<bool, Errno> {
    if let Some(old) = set.elements.get(&element.key) {
        // Adding an equal element again changes nothing.
        let same = old.data == element.value.data && old.key_end == element.value.key_end;
        return if same { Ok(false) } else { Err(Errno::EEXIST) };
    }
    if overlaps(set, &element) {
        return Err(Errno::EEXIST);
    }
    if set.spec.size.is_some_and(|size| set.elements.len() >= usize::try_from(size).unwrap_or(usize::MAX)) {
        return Err(Errno::ENFILE);
    }
    set.elements.insert(element.key, element.value);
    Ok(true)
}

fn overlaps(set: &Set, element: &Element) -> bool {
    let (first, last) = (&element.key, element.last());
    match set.spec.ranges() {
        IntervalEncoding::None => false,
        IntervalEncoding::TwoElements => {
            let below = set
                .elements
                .range::<[u8], _>((Bound::Unbounded, Bound::Included(last.as_slice())))
                .next_back();
            below.is_some_and(|(key, value)| value.last(key) >= first)
        }
        IntervalEncoding::KeyEnd => set.elements.iter().any(|(key, value)| {
            let end = value.last(key);
            crate::nftables::trace::field_ranges(&set.spec.key)
                .all(|field| key[field.clone()] <= last[field.clone()] && end[field.clone()] >= first[field])
        }),
    }
}

//! A transaction in progress: accepts or refuses each message as the kernel does, with its error numbers.

use std::ops::Bound;

use nix::errno::Errno;

use super::validate;
use crate::nftables::decode::{ElementList, NftMessage, join};
use crate::nftables::ir::{
    Chain, ChainSpec, Comment, DataType, Element, IntervalEncoding, NftChange, NftName, NftRule,
    RulePosition, Ruleset, Set, SetSpec, Table, TableId,
};

/// The longest name of a table, chain or set.
const LONGEST_NAME: usize = 255;

/// The tables after the messages so far.
pub(super) struct Transaction {
    pub(super) ruleset: Ruleset,
    pub(super) last_handle: u64,
}

type Accepted = Result<(), Errno>;

impl Transaction {
    pub(super) fn take(&mut self, message: NftMessage) -> Accepted {
        match message {
            NftMessage::Begin | NftMessage::End => Ok(()),
            NftMessage::Change(change) => self.change(change),
            NftMessage::Elements(elements) => self.add_elements(elements),
            NftMessage::DeleteElements(elements) => self.delete_elements(elements),
        }
    }

    fn change(&mut self, change: NftChange) -> Accepted {
        match change {
            NftChange::AddTable { table, comment } => self.add_table(table, comment),
            NftChange::DeleteTable { table } => {
                self.ruleset.tables.remove(&table).map(|_| ()).ok_or(Errno::ENOENT)
            }
            NftChange::AddChain { table, chain, spec } => self.add_chain(&table, chain, spec),
            NftChange::FlushChain { table, chain } => {
                self.chain(&table, &chain)?.rules.clear();
                Ok(())
            }
            NftChange::DeleteChain { table, chain } => self.delete_chain(&table, &chain),
            NftChange::AddSet { table, set, spec } => self.add_set(&table, set, spec),
            NftChange::FlushSet { table, set } => {
                self.set(&table, &set)?.elements.clear();
                Ok(())
            }
            NftChange::DeleteSet { table, set } => self.delete_set(&table, &set),
            NftChange::AddRule { table, chain, rule, position } => {
                self.add_rule(&table, &chain, rule, position)
            }
            NftChange::ReplaceRule { table, chain, handle, rule } => {
                validate::rule(self.table(&table)?, &rule)?;
                let new = self.numbered(rule);
                *self.rule(&table, &chain, handle)?.1 = new;
                Ok(())
            }
            NftChange::DeleteRule { table, chain, handle } => {
                let (index, _) = self.rule(&table, &chain, handle)?;
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
        self.ruleset.tables.entry(table).or_insert_with(|| Table { comment, ..Table::default() });
        Ok(())
    }

    fn add_chain(&mut self, table: &TableId, name: NftName, spec: ChainSpec) -> Accepted {
        check_name(&name)?;
        validate::base(spec.base.as_ref())?;
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

    fn delete_chain(&mut self, table: &TableId, name: &NftName) -> Accepted {
        self.chain(table, name)?;
        let table = self.table(table)?;
        if validate::is_referenced(table, name) {
            return Err(Errno::EBUSY);
        }
        table.chains.remove(name);
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
                sets.insert(name, Set::empty(spec));
                Ok(())
            }
        }
    }

    fn delete_set(&mut self, table: &TableId, name: &NftName) -> Accepted {
        self.set(table, name)?;
        let table = self.table(table)?;
        let used = |rule: &NftRule| rule.exprs.iter().any(|expr| validate::set_of(expr) == Some(name));
        if table.chains.values().flat_map(|chain| &chain.rules).any(used) {
            return Err(Errno::EBUSY);
        }
        table.sets.remove(name);
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
        for element in join(raw, spec.ranges()) {
            validate::element(self.table(&table)?, &spec, &element)?;
            add_element(self.set(&table, &set)?, element)?;
        }
        Ok(())
    }

    fn delete_elements(&mut self, deleted: ElementList) -> Accepted {
        let ElementList { table, set, raw } = deleted;
        let set = self.set(&table, &set)?;
        for element in join(raw, set.spec.ranges()) {
            let found = set.elements.get(&element.key).ok_or(Errno::ENOENT)?;
            if set.spec.interval && found.key_end != element.value.key_end {
                return Err(Errno::ENOENT);
            }
            set.elements.remove(&element.key);
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

fn add_element(set: &mut Set, element: Element) -> Accepted {
    if let Some(old) = set.elements.get(&element.key) {
        // Adding an equal element again changes nothing.
        let same = old.data == element.value.data && old.key_end == element.value.key_end;
        return if same { Ok(()) } else { Err(Errno::EEXIST) };
    }
    if overlaps(set, &element) {
        return Err(Errno::EEXIST);
    }
    if set.spec.size.is_some_and(|size| set.elements.len() >= usize::try_from(size).unwrap_or(usize::MAX)) {
        return Err(Errno::ENFILE);
    }
    set.elements.insert(element.key, element.value);
    Ok(())
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

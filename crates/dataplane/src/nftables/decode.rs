//! Decodes messages of batches and of the kernel's dumps.
//!
//! So the fake kernel sees the encoder's bytes, and a ruleset read from the kernel can be compared with a rendered one.
//! Foreign objects in our tables are kept where possible and reported otherwise.

mod expr;
mod object;

pub use object::RawElement;

use std::collections::BTreeMap;
use std::fmt;

use super::abi::{self, msg};
use super::codes;
use super::ir::{
    ChainSpec, Comment, Element, IntervalEncoding, NftChange, NftFamily, NftName, NftRule, PackedIndex,
    RulePosition, Ruleset, Set, SetSpec, TableId,
};
use crate::nfnetlink::wire::{Attrs, RawMessage, messages};

/// Why a message could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    /// The kind of object.
    pub message: &'static str,
    pub problem: String,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "cannot decode a message about {}: {}", self.message, self.problem)
    }
}

impl std::error::Error for DecodeError {}

/// One message of a batch or a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NftMessage {
    /// Begin of a batch.
    Begin,
    /// End of a batch.
    End,
    /// Everything but elements is one change.
    Change(NftChange),
    /// Elements to add.
    Elements(ElementList),
    /// Elements to delete.
    DeleteElements(ElementList),
}

/// Elements as encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElementList {
    pub table: TableId,
    pub set: NftName,
    /// In sets of one field the end of an interval is an element of its own.
    pub raw: Vec<RawElement>,
}

/// Decodes one message.
pub fn message(raw: RawMessage<'_>) -> Result<NftMessage, DecodeError> {
    let kind = raw.header.kind;
    match kind {
        abi::BATCH_BEGIN => return Ok(NftMessage::Begin),
        abi::BATCH_END => return Ok(NftMessage::End),
        _ => {}
    }
    if kind >> 8 != abi::SUBSYS_NFTABLES {
        return Err(problem("another subsystem", format!("message type {kind:#x} is not of nf_tables")));
    }
    let family = codes::FAMILY.word(u32::from(raw.header.family)).ok_or_else(|| {
        problem("a table", format!("address family {} is not supported", raw.header.family))
    })?;
    object::message(kind & 0xff, raw.header.flags, family, raw.attrs())
}

fn problem(message: &'static str, problem: impl Into<String>) -> DecodeError {
    DecodeError { message, problem: problem.into() }
}

/// Decodes a batch as changes. `encoding` is asked for sets that the batch does not add.
pub fn changes(
    batch: &[u8],
    encoding: impl Fn(&TableId, &NftName) -> Option<IntervalEncoding>,
) -> Result<Vec<NftChange>, DecodeError> {
    let mut found: Vec<NftChange> = Vec::new();
    for raw in messages(batch) {
        let (elements, add) = match message(raw)? {
            NftMessage::Begin | NftMessage::End => continue,
            NftMessage::Change(change) => {
                found.push(change);
                continue;
            }
            NftMessage::Elements(elements) => (elements, true),
            NftMessage::DeleteElements(elements) => (elements, false),
        };
        let ElementList { table, set, raw } = elements;
        let here = found.iter().rev().find_map(|change| match change {
            NftChange::AddSet { table: of, set: name, spec } if *of == table && *name == set => {
                Some(spec.ranges())
            }
            _ => None,
        });
        let ranges = here
            .or_else(|| encoding(&table, &set))
            .ok_or_else(|| problem("elements", format!("unknown set {set} in {table}")))?;
        let elements = join(raw, ranges);
        found.push(match add {
            true => NftChange::AddElements { table, set, ranges, elements },
            false => NftChange::DeleteElements { table, set, ranges, elements },
        });
    }
    Ok(found)
}

/// Joins the two ends of intervals. Elements keep their order.
pub fn join(raw: Vec<RawElement>, ranges: IntervalEncoding) -> Vec<Element> {
    if ranges != IntervalEncoding::TwoElements {
        return raw.into_iter().map(|raw| raw.element).collect();
    }
    let mut ends: Vec<_> =
        raw.iter().filter(|raw| raw.interval_end).map(|raw| raw.element.key.clone()).collect();
    ends.sort_unstable();
    let starts = raw.into_iter().filter(|raw| !raw.interval_end).map(|raw| raw.element);
    let joined = starts.map(|start| {
        let behind = ends.get(ends.partition_point(|end| *end <= start.key));
        let last = behind.map_or_else(|| vec![0xff; start.key.len()], |end| object::predecessor(end));
        start.up_to(last)
    });
    joined.collect()
}

/// Builds a ruleset from dumps of tables, chains, sets, elements and rules, in that order.
#[derive(Debug, Default)]
pub struct RulesetReader {
    ruleset: Ruleset,
    /// Elements until all of their set are there: a tree built in one go takes a fraction of the time and half the
    /// memory, and both ends of an interval may arrive in different messages.
    open: BTreeMap<(TableId, NftName), Vec<RawElement>>,
    problems: Vec<DecodeError>,
}

impl RulesetReader {
    /// Takes one message of a dump. Objects of other tables are not decoded: they may be newer than this version
    /// knows (pitfall 11).
    pub fn take(&mut self, raw: RawMessage<'_>, wanted: &[TableId]) {
        // In every message of a dump the first attribute is the table's name.
        let table = raw.attrs().text(abi::table::NAME);
        let family = codes::FAMILY.word(u32::from(raw.header.family));
        if !wanted.iter().any(|id| Some(id.family) == family && Some(id.name.as_str()) == table.as_deref()) {
            return;
        }
        match message(raw) {
            Ok(message) => self.insert(message),
            Err(error) => self.problems.push(error),
        }
    }

    /// Takes the elements that differ from `wanted`, and removes the equal ones from `wanted`.
    pub fn take_difference(&mut self, raw: RawMessage<'_>, wanted: &mut Set) {
        self.take_others(raw, |key, element| {
            let is_same = wanted.elements.get(key).is_some_and(|value| object::is_same(element, value));
            if is_same {
                wanted.elements.remove(key);
            }
            is_same
        });
    }

    /// Takes the elements that differ from `wanted`, and marks the equal ones there.
    pub fn take_packed_difference(&mut self, raw: RawMessage<'_>, wanted: &mut PackedIndex) {
        self.take_others(raw, |key, element| {
            wanted.mark(key, |wanted| object::is_same_packed(element, wanted))
        });
    }

    /// Takes the elements that are not as wanted.
    fn take_others(&mut self, raw: RawMessage<'_>, mut is_wanted: impl FnMut(&[u8], Attrs<'_>) -> bool) {
        let attrs = raw.attrs();
        let list = attrs.nested(abi::elem::LIST_ELEMENTS);
        let mut others = Vec::new();
        for (_, element) in list.iter().flat_map(|list| list.iter()) {
            let element = Attrs::new(element);
            if !object::key(element).is_some_and(|key| is_wanted(key, element)) {
                others.push(object::element(element));
            }
        }
        if others.is_empty() {
            return;
        }
        let head = codes::FAMILY
            .word(u32::from(raw.header.family))
            .zip(attrs.text(abi::elem::LIST_TABLE))
            .zip(attrs.text(abi::elem::LIST_SET));
        let Some(((family, table), set)) = head else { return };
        let open = self.open.entry((TableId::new(family, table), set.into())).or_default();
        for element in others {
            match element {
                Ok(element) => open.push(element),
                Err(error) => self.problems.push(error),
            }
        }
    }

    pub fn so_far(&self) -> &Ruleset {
        &self.ruleset
    }

    /// Moves the elements taken so far into their sets; called after each set.
    pub fn settle(&mut self) {
        for ((table, name), raw) in std::mem::take(&mut self.open) {
            if let Some(set) = self.set(&table, &name) {
                let elements = join(raw, set.spec.ranges());
                let mut new = elements.into_iter().map(|element| (element.key, element.value)).collect();
                set.elements.append(&mut new);
            }
        }
    }

    /// The ruleset, and the objects that could not be decoded.
    pub fn finish(mut self) -> (Ruleset, Vec<DecodeError>) {
        self.settle();
        (self.ruleset, self.problems)
    }

    fn set(&mut self, table: &TableId, set: &NftName) -> Option<&mut Set> {
        self.ruleset.tables.get_mut(table)?.sets.get_mut(set)
    }

    fn insert(&mut self, message: NftMessage) {
        match message {
            NftMessage::Elements(ElementList { table, set, raw }) => {
                self.open.entry((table, set)).or_default().extend(raw);
            }
            message => insert(&mut self.ruleset, message),
        }
    }
}

fn insert(ruleset: &mut Ruleset, message: NftMessage) {
    match message {
        NftMessage::Change(NftChange::AddTable { table, comment }) => {
            ruleset.tables.entry(table).or_default().comment = comment;
        }
        NftMessage::Change(NftChange::AddChain { table, chain, spec }) => {
            if let Some(table) = ruleset.tables.get_mut(&table) {
                table.chains.entry(chain).or_default().spec = spec;
            }
        }
        NftMessage::Change(NftChange::AddSet { table, set, spec }) => {
            if let Some(table) = ruleset.tables.get_mut(&table) {
                table.sets.insert(set, Set::empty(spec));
            }
        }
        NftMessage::Change(NftChange::AddRule { table, chain, rule, .. }) => {
            let found = ruleset.tables.get_mut(&table).and_then(|table| table.chains.get_mut(&chain));
            if let Some(chain) = found {
                chain.rules.push(rule);
            }
        }
        // Dumps have no other messages.
        _ => {}
    }
}

//! From bytes back to values: the same reader for messages that would be sent and for the kernel's dumps.
//!
//! So the fake kernel sees what the encoder wrote and not what it meant, and a program read from the kernel can be
//! compared with one that was rendered. What others put into our tables is kept where it can be and told where not.

mod expr;
mod object;

pub use object::RawElement;

use std::collections::BTreeMap;
use std::fmt;

use super::ir::{
    ChainSpec, Change, Comment, Element, Family, Name, Place, Program, Ranges, Rule, Set, SetSpec, TableId,
};
use super::netlink::abi::{self, msg};
use super::netlink::codes;
use super::netlink::wire::{Attrs, Raw, messages};

/// Why a message could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    /// The message, in words.
    pub message: &'static str,
    /// What is missing or wrong in it.
    pub problem: String,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "cannot read a message about {}: {}", self.message, self.problem)
    }
}

impl std::error::Error for DecodeError {}

/// One message of a batch or a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The begin of a batch, valid only for this generation if one is given.
    Begin {
        /// The generation of the tables that the writer saw.
        generation: Option<u32>,
    },
    /// The end of a batch.
    End,
    /// Everything but elements means one change.
    Change(Change),
    /// Elements to add; what a range is depends on the set.
    Elements(Elements),
    /// Elements to delete.
    DeleteElements(Elements),
}

/// Elements as they are on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elements {
    /// The table.
    pub table: TableId,
    /// The set.
    pub set: Name,
    /// The elements; ends of ranges are elements of their own in sets of one field.
    pub raw: Vec<RawElement>,
}

/// Reads one message.
pub fn message(raw: Raw<'_>) -> Result<Message, DecodeError> {
    let kind = raw.header.kind;
    match kind {
        abi::BATCH_BEGIN => return Ok(Message::Begin { generation: raw.attrs().u32(abi::BATCH_GENID) }),
        abi::BATCH_END => return Ok(Message::End),
        _ => {}
    }
    if kind >> 8 != abi::SUBSYS_NFTABLES {
        return Err(problem("something else", format!("message number {kind:#x} is not one of nf_tables")));
    }
    let family = codes::FAMILY
        .word(u32::from(raw.header.family))
        .ok_or_else(|| problem("a table", format!("address family {} is not ours", raw.header.family)))?;
    object::message(kind & 0xff, raw.header.flags, family, raw.attrs())
}

fn problem(message: &'static str, problem: impl Into<String>) -> DecodeError {
    DecodeError { message, problem: problem.into() }
}

/// Reads all messages of a batch as changes. `ranges` says of each set how its ranges are written; sets that the batch
/// itself adds are known.
pub fn changes(
    batch: &[u8],
    ranges: impl Fn(&TableId, &Name) -> Option<Ranges>,
) -> Result<Vec<Change>, DecodeError> {
    let mut found: Vec<Change> = Vec::new();
    for raw in messages(batch) {
        let (elements, add) = match message(raw)? {
            Message::Begin { .. } | Message::End => continue,
            Message::Change(change) => {
                found.push(change);
                continue;
            }
            Message::Elements(elements) => (elements, true),
            Message::DeleteElements(elements) => (elements, false),
        };
        let Elements { table, set, raw } = elements;
        let here = found.iter().rev().find_map(|change| match change {
            Change::AddSet { table: of, set: name, spec } if *of == table && *name == set => {
                Some(spec.ranges())
            }
            _ => None,
        });
        let ranges = here
            .or_else(|| ranges(&table, &set))
            .ok_or_else(|| problem("elements", format!("the set {set} in {table} is not known")))?;
        let elements = join(raw, ranges);
        found.push(match add {
            true => Change::AddElements { table, set, ranges, elements },
            false => Change::DeleteElements { table, set, ranges, elements },
        });
    }
    Ok(found)
}

/// Puts the two ends of ranges together. Elements keep their order; the ends are looked up.
pub fn join(raw: Vec<RawElement>, ranges: Ranges) -> Vec<Element> {
    if ranges != Ranges::TwoElements {
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

/// A program that grows by the messages of dumps: tables, chains, sets, elements and rules, in that order.
#[derive(Debug, Default)]
pub struct Reader {
    program: Program,
    /// Elements as they came, until all of their set are there: a tree that is built in one go takes a fraction of
    /// the time and half the memory, and both ends of a range may come in different messages.
    open: BTreeMap<(TableId, Name), Vec<RawElement>>,
    problems: Vec<DecodeError>,
}

impl Reader {
    /// Takes one message of a dump. What belongs to none of the wanted tables is not even read: it may be newer than
    /// we are (pitfall 11).
    pub fn take(&mut self, raw: Raw<'_>, wanted: &[TableId]) {
        // The first attribute is the table's name in every message of a dump.
        let table = raw.attrs().text(abi::table::NAME);
        let family = codes::FAMILY.word(u32::from(raw.header.family));
        if !wanted.iter().any(|id| Some(id.family) == family && Some(id.name.as_str()) == table.as_deref()) {
            return;
        }
        match message(raw) {
            Ok(message) => self.place(message),
            Err(error) => self.problems.push(error),
        }
    }

    /// Takes the elements of a set that differ from those that it should have, and takes those that do not out of these.
    pub fn take_beside(&mut self, raw: Raw<'_>, wanted: &mut Set) {
        let attrs = raw.attrs();
        let list = attrs.nested(abi::elem::LIST_ELEMENTS);
        let mut others = Vec::new();
        for (_, element) in list.iter().flat_map(|list| list.iter()) {
            let element = Attrs::new(element);
            let key = object::key(element);
            let is_same = key.is_some_and(|key| {
                wanted.elements.get(key).is_some_and(|value| object::is_same(element, value))
            });
            match key.filter(|_| is_same) {
                Some(key) => drop(wanted.elements.remove(key)),
                None => others.push(object::element(element)),
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

    /// What was read so far.
    pub fn so_far(&self) -> &Program {
        &self.program
    }

    /// Puts the elements in their sets that have come since the last time; call it when a set is through.
    pub fn settle(&mut self) {
        for ((table, name), raw) in std::mem::take(&mut self.open) {
            if let Some(set) = self.set(&table, &name) {
                let elements = join(raw, set.spec.ranges());
                let mut new = elements.into_iter().map(|element| (element.key, element.value)).collect();
                set.elements.append(&mut new);
            }
        }
    }

    /// The program, and what could not be read of it.
    pub fn finish(mut self) -> (Program, Vec<DecodeError>) {
        self.settle();
        (self.program, self.problems)
    }

    fn set(&mut self, table: &TableId, set: &Name) -> Option<&mut Set> {
        self.program.tables.get_mut(table)?.sets.get_mut(set)
    }

    fn place(&mut self, message: Message) {
        match message {
            Message::Elements(Elements { table, set, raw }) => {
                self.open.entry((table, set)).or_default().extend(raw);
            }
            message => place(&mut self.program, message),
        }
    }
}

fn place(program: &mut Program, message: Message) {
    match message {
        Message::Change(Change::AddTable { table, comment }) => {
            program.tables.entry(table).or_default().comment = comment;
        }
        Message::Change(Change::AddChain { table, chain, spec }) => {
            if let Some(table) = program.tables.get_mut(&table) {
                table.chains.entry(chain).or_default().spec = spec;
            }
        }
        Message::Change(Change::AddSet { table, set, spec }) => {
            if let Some(table) = program.tables.get_mut(&table) {
                table.sets.insert(set, Set::empty(spec));
            }
        }
        Message::Change(Change::AddRule { table, chain, rule, .. }) => {
            let found = program.tables.get_mut(&table).and_then(|table| table.chains.get_mut(&chain));
            if let Some(chain) = found {
                chain.rules.push(rule);
            }
        }
        // A dump has nothing else.
        _ => {}
    }
}

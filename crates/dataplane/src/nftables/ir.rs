//! The objects of nf_tables that we use, as plain values: a `Ruleset` is what a kernel holds or should hold, a list of
//! `NftChange` is one transaction.
//!
//! ```text
//! render -> Ruleset --diff--> Vec<NftChange> --encode--> bytes --netlink--> kernel
//!             ^                                         |                  |
//!             +--------------- decode <-----------------+------- dump -----+
//! ```
//!
//! Keys and data are bytes as the kernel compares them: addresses, ports and protocol in network order, marks in
//! host byte order, every field of a concatenation padded to four bytes.

mod bytes;
mod describe;
mod expr;
mod packed;
mod packed_index;
mod types;

pub use bytes::Bytes;
pub use expr::{
    BitwiseOp, CmpOp, CtDirection, CtKey, DynsetOp, Expr, MetaKey, NatFlags, NatKind, NumgenKind,
    PayloadBase, Reg, RejectKind, Span, fib,
};
pub use packed::{PackedElement, PackedElements};
pub use packed_index::PackedIndex;
pub use types::{DataType, FieldType, KeyBuilder};

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use arcstr::ArcStr;

/// The name of a table, chain, set or map. nft can read a name back if it starts with a letter and holds only
/// letters, digits and `_ - . /`.
pub type NftName = ArcStr;

/// The address family of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NftFamily {
    Inet,
    Ip,
    Ip6,
}

/// A table, by family and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId {
    pub family: NftFamily,
    pub name: NftName,
}

impl TableId {
    pub fn new(family: NftFamily, name: impl Into<NftName>) -> TableId {
        TableId { family, name: name.into() }
    }
}

impl std::fmt::Display for TableId {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let family = match self.family {
            NftFamily::Inet => "inet",
            NftFamily::Ip => "ip",
            NftFamily::Ip6 => "ip6",
        };
        write!(out, "{family} {}", self.name)
    }
}

/// A comment, as nft lists it. It is cut to 128 bytes, since nft and old kernels refuse a longer one and with it the
/// transaction (pitfall 12), and has no characters that break the listing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Comment(ArcStr);

impl Comment {
    pub const LONGEST: usize = 128;

    /// Replaces quotes by `'` and control characters by spaces.
    pub fn new(text: &str) -> Comment {
        if Comment::is_clean(text) {
            return Comment(text.into());
        }
        let mut clean = String::with_capacity(text.len().min(Comment::LONGEST));
        for letter in text.chars() {
            let letter = match letter {
                '"' => '\'',
                letter if letter.is_control() => ' ',
                letter => letter,
            };
            if clean.len() + letter.len_utf8() > Comment::LONGEST {
                break;
            }
            clean.push(letter);
        }
        Comment(clean.into())
    }

    /// Whether nft accepts the text as a comment without changes. All names of Services are such.
    fn is_clean(text: &str) -> bool {
        text.len() <= Comment::LONGEST && text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"')
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Comment {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

/// The hook of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// Received packets, before routing.
    Prerouting,
    /// Packets to this node.
    Input,
    /// Forwarded packets.
    Forward,
    /// Packets of this node's processes.
    Output,
    /// Packets after routing.
    Postrouting,
}

/// The type of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainType {
    /// Accept, drop, reject, mark.
    Filter,
    /// Address translation; sees only the first packet of a connection.
    Nat,
    /// Like filter at output, with a new routing decision if the packet changed.
    Route,
}

/// The policy of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    Accept,
    Drop,
}

/// Hook, type and priority of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Base {
    pub kind: ChainType,
    pub hook: Hook,
    /// Lower comes first. dstnat is -100, filter 0, srcnat 100.
    pub priority: i32,
    pub policy: Policy,
}

/// A chain without its rules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChainSpec {
    /// None for a chain that is only jumped to.
    pub base: Option<Base>,
    pub comment: Option<Comment>,
}

/// A chain and its rules, in the order of evaluation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chain {
    pub spec: ChainSpec,
    pub rules: Vec<NftRule>,
}

/// A rule: expressions that run until one does not match. Equality ignores the handle.
#[derive(Debug, Clone, Default)]
pub struct NftRule {
    pub exprs: Vec<Expr>,
    pub comment: Option<Comment>,
    /// Assigned by the kernel, known after a dump.
    pub handle: Option<u64>,
}

impl NftRule {
    /// A rule without a handle.
    pub fn new(exprs: Vec<Expr>, comment: &str) -> NftRule {
        NftRule { exprs, comment: Some(Comment::new(comment)), handle: None }
    }
}

impl PartialEq for NftRule {
    fn eq(&self, other: &NftRule) -> bool {
        self.exprs == other.exprs && self.comment == other.comment
    }
}

impl Eq for NftRule {}

/// The type of a set or map, without its elements.
#[derive(Debug, Clone)]
pub struct SetSpec {
    /// More than one field is a concatenation.
    pub key: Vec<FieldType>,
    /// None for a set.
    pub data: Option<DataType>,
    /// Elements may be intervals (`key` to `key_end`).
    pub interval: bool,
    /// Rules may add elements (dynset).
    pub dynamic: bool,
    /// Elements may expire; implied by `timeout`.
    pub expires: bool,
    /// Default timeout of elements, in milliseconds.
    pub timeout: Option<u64>,
    /// Maximum number of elements. If declared, the kernel uses a faster hash table.
    pub size: Option<u32>,
    pub comment: Option<Comment>,
}

impl PartialEq for SetSpec {
    fn eq(&self, other: &SetSpec) -> bool {
        let same = |spec: &SetSpec| {
            let expires = spec.expires || spec.timeout.is_some();
            (spec.interval, spec.dynamic, expires, spec.timeout, spec.size)
        };
        same(self) == same(other)
            && self.key == other.key
            && self.data == other.data
            && self.comment == other.comment
    }
}

impl Eq for SetSpec {}

impl SetSpec {
    pub fn new(key: &[FieldType]) -> SetSpec {
        SetSpec {
            key: key.to_vec(),
            data: None,
            interval: false,
            dynamic: false,
            expires: false,
            timeout: None,
            size: None,
            comment: None,
        }
    }

    pub fn map(key: &[FieldType], data: DataType) -> SetSpec {
        SetSpec { data: Some(data), ..SetSpec::new(key) }
    }

    pub fn ranges(&self) -> IntervalEncoding {
        match (self.interval, self.key.len()) {
            (false, _) => IntervalEncoding::None,
            (true, 1) => IntervalEncoding::TwoElements,
            (true, _) => IntervalEncoding::KeyEnd,
        }
    }

    /// Length of a key in bytes, including padding.
    pub fn key_len(&self) -> usize {
        types::fields_width(&self.key)
    }
}

/// How the intervals of a set are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IntervalEncoding {
    /// The set has none.
    None,
    /// One field: an element at the start and another one after the end.
    TwoElements,
    /// A concatenation: both ends in one element.
    KeyEnd,
}

/// A set or map with its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    pub spec: SetSpec,
    /// By key, or by the lower end of an interval. Dumps include the elements that rules add.
    pub elements: BTreeMap<Bytes, ElementValue>,
}

impl Set {
    pub fn each(&self) -> impl Iterator<Item = Element> + '_ {
        self.elements.iter().map(|(key, value)| Element { key: key.clone(), value: value.clone() })
    }

    pub fn empty(spec: SetSpec) -> Set {
        Set { spec, elements: BTreeMap::new() }
    }
}

/// An element without its key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ElementValue {
    /// The inclusive upper end of an interval; none for a single value.
    pub key_end: Option<Box<Bytes>>,
    /// The data of a map element.
    pub data: Option<Data>,
    /// Timeout in milliseconds, if it differs from the set's.
    pub timeout: Option<NonZeroU64>,
    pub comment: Option<Comment>,
}

impl ElementValue {
    /// The last key of the element that starts at `key`.
    pub fn last<'a>(&'a self, key: &'a Bytes) -> &'a Bytes {
        self.key_end.as_deref().unwrap_or(key)
    }
}

/// The data of a map element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    Value(Bytes),
    Verdict(NftVerdict),
}

/// An element of a set or map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// The key, or the lower end of an interval.
    pub key: Bytes,
    pub value: ElementValue,
}

impl Element {
    /// An element of a set.
    pub fn member(key: impl Into<Bytes>) -> Element {
        Element { key: key.into(), value: ElementValue::default() }
    }

    /// An element of a map.
    pub fn entry(key: impl Into<Bytes>, data: Data) -> Element {
        Element { key: key.into(), value: ElementValue { data: Some(data), ..ElementValue::default() } }
    }

    /// An interval up to this inclusive end.
    pub fn up_to(mut self, key_end: impl Into<Bytes>) -> Element {
        let key_end = key_end.into();
        self.value.key_end = (key_end != self.key).then(|| Box::new(key_end));
        self
    }

    pub fn last(&self) -> &Bytes {
        self.value.last(&self.key)
    }

    pub fn with_comment(mut self, comment: &Comment) -> Element {
        self.value.comment = Some(comment.clone());
        self
    }
}

/// The result of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NftVerdict {
    /// Ends the base chain.
    Accept,
    Drop,
    Continue,
    Return,
    Jump(NftName),
    /// A jump that does not return.
    Goto(NftName),
}

/// A table with its chains and sets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table {
    pub comment: Option<Comment>,
    pub chains: BTreeMap<NftName, Chain>,
    /// Sets and maps.
    pub sets: BTreeMap<NftName, Set>,
}

/// Our tables in one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ruleset {
    pub tables: BTreeMap<TableId, Table>,
}

/// The position of a new rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RulePosition {
    Last,
    First,
}

/// One change of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NftChange {
    /// Adds the table, or leaves an existing one as it is.
    AddTable {
        table: TableId,
        comment: Option<Comment>,
    },
    /// Deletes the table with its content. It must exist.
    DeleteTable {
        table: TableId,
    },
    /// Adds the chain, or leaves an existing one with the same spec.
    AddChain {
        table: TableId,
        chain: NftName,
        spec: ChainSpec,
    },
    /// Deletes all rules of the chain.
    FlushChain {
        table: TableId,
        chain: NftName,
    },
    /// Deletes the chain, which must not be referenced. On kernels before 6.2 a chain whose last reference is deleted by
    /// the same transaction is still busy (pitfall 9).
    DeleteChain {
        table: TableId,
        chain: NftName,
    },
    /// Adds the set or map, or leaves an existing one with the same spec.
    AddSet {
        table: TableId,
        set: NftName,
        spec: SetSpec,
    },
    /// Deletes all elements.
    FlushSet {
        table: TableId,
        set: NftName,
    },
    /// Deletes the set or map, which no rule may use.
    DeleteSet {
        table: TableId,
        set: NftName,
    },
    /// Adds elements. An equal one may exist; one with the same key and other data is an error: it has to be deleted
    /// earlier in the same transaction.
    AddElements {
        table: TableId,
        set: NftName,
        ranges: IntervalEncoding,
        elements: Vec<Element>,
    },
    /// Deletes elements, which must exist. Data may be omitted, the end of an interval may not.
    DeleteElements {
        table: TableId,
        set: NftName,
        ranges: IntervalEncoding,
        elements: Vec<Element>,
    },
    AddRule {
        table: TableId,
        chain: NftName,
        rule: NftRule,
        position: RulePosition,
    },
    ReplaceRule {
        table: TableId,
        chain: NftName,
        handle: u64,
        rule: NftRule,
    },
    DeleteRule {
        table: TableId,
        chain: NftName,
        handle: u64,
    },
}

impl NftChange {
    /// Number of elements added or deleted.
    pub fn elements(&self) -> usize {
        match self {
            NftChange::AddElements { elements, .. } | NftChange::DeleteElements { elements, .. } => {
                elements.len()
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests;

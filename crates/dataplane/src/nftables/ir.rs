//! The parts of nf_tables that we use, as plain values: a `Ruleset` is what a kernel should hold or does hold, a list
//! of `NftChange` is one transaction.
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
mod types;

pub use bytes::Bytes;
pub use expr::{
    BitwiseOp, CmpOp, CtDirection, CtKey, DynsetOp, Expr, MetaKey, NatFlags, NatKind, NumgenKind,
    PayloadBase, Reg, RejectKind, Span, fib,
};
pub use packed::{PackedElement, PackedElements};
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
    /// Both families in one table.
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
}

/// Which table: its family and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId {
    /// The address family.
    pub family: NftFamily,
    /// The name, unique within the family.
    pub name: NftName,
}

impl TableId {
    /// A table by family and name.
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

/// A comment that nft prints. It is cut to 128 bytes, since nft and older kernels refuse a longer one and with it the
/// whole transaction (pitfall 12), and holds nothing that would break the listing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Comment(ArcStr);

impl Comment {
    /// The most bytes that a comment may have.
    pub const LONGEST: usize = 128;

    /// The comment; quotes and control characters become `'` and a space.
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

    /// Whether a text can stay as it is. Names of Services are always so, and there are many.
    fn is_clean(text: &str) -> bool {
        text.len() <= Comment::LONGEST && text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"')
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Comment {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

/// Where a base chain hangs in the way of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// Packets that came in, before routing.
    Prerouting,
    /// Packets for this node.
    Input,
    /// Packets that go through.
    Forward,
    /// Packets that this node makes.
    Output,
    /// Packets that leave.
    Postrouting,
}

/// What a base chain may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainType {
    /// Accept, drop, reject, mark.
    Filter,
    /// Rewrite addresses; sees only the first packet of a connection.
    Nat,
    /// Like filter at output, with a new routing decision when the packet changed.
    Route,
}

/// What happens to a packet at the end of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// It goes on.
    Accept,
    /// It is dropped.
    Drop,
}

/// What makes a chain a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Base {
    /// What it may do.
    pub kind: ChainType,
    /// Where it hangs.
    pub hook: Hook,
    /// Lower comes first. dstnat is -100, filter 0, srcnat 100.
    pub priority: i32,
    /// What happens at its end.
    pub policy: Policy,
}

/// What a chain is, without its rules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChainSpec {
    /// Hook, type and priority of a base chain; none for a chain that is only jumped to.
    pub base: Option<Base>,
    /// What nft prints beside it.
    pub comment: Option<Comment>,
}

/// A chain and its rules in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chain {
    /// What it is.
    pub spec: ChainSpec,
    /// Its rules in the order of evaluation.
    pub rules: Vec<NftRule>,
}

/// One rule: expressions that run until one does not match.
///
/// Two rules are equal when they do the same with the same comment; the handle is the kernel's business.
#[derive(Debug, Clone, Default)]
pub struct NftRule {
    /// What it does.
    pub exprs: Vec<Expr>,
    /// What nft prints beside it.
    pub comment: Option<Comment>,
    /// The kernel's number for it, known after a dump.
    pub handle: Option<u64>,
}

impl NftRule {
    /// A rule that no kernel holds yet.
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

/// What a set or map is, without its elements.
#[derive(Debug, Clone)]
pub struct SetSpec {
    /// The fields of the key; more than one is a concatenation.
    pub key: Vec<FieldType>,
    /// What a map answers with; none for a set.
    pub data: Option<DataType>,
    /// Elements may be ranges (`key` to `key_end`).
    pub interval: bool,
    /// Rules may add elements (dynset).
    pub dynamic: bool,
    /// Elements may expire. `timeout` implies it.
    pub expires: bool,
    /// How long an element lives that does not say so itself, in milliseconds.
    pub timeout: Option<u64>,
    /// The most elements that it may hold. Declared, the kernel picks the quicker hash table.
    pub size: Option<u32>,
    /// What nft prints beside it.
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
    /// A plain set of these fields.
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

    /// A map from these fields.
    pub fn map(key: &[FieldType], data: DataType) -> SetSpec {
        SetSpec { data: Some(data), ..SetSpec::new(key) }
    }

    /// How the kernel wants the ranges of this set, for `NftChange::AddElements` and `NftChange::DeleteElements`.
    pub fn ranges(&self) -> IntervalEncoding {
        match (self.interval, self.key.len()) {
            (false, _) => IntervalEncoding::None,
            (true, 1) => IntervalEncoding::TwoElements,
            (true, _) => IntervalEncoding::KeyEnd,
        }
    }

    /// The bytes of a whole key, padding included.
    pub fn key_len(&self) -> usize {
        types::fields_width(&self.key)
    }
}

/// How the kernel wants the ranges of a set; it follows from the set's spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IntervalEncoding {
    /// It has none.
    None,
    /// One field: an element where the range begins and another one behind its end.
    TwoElements,
    /// A concatenation: both ends in one element.
    KeyEnd,
}

/// A set or map and what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// What it is.
    pub spec: SetSpec,
    /// Its elements by key (the lower end of a range). What rules add by themselves (`dynamic`) shows in dumps too.
    pub elements: BTreeMap<Bytes, ElementValue>,
}

impl Set {
    /// The elements one by one.
    pub fn each(&self) -> impl Iterator<Item = Element> + '_ {
        self.elements.iter().map(|(key, value)| Element { key: key.clone(), value: value.clone() })
    }

    /// A set without elements.
    pub fn empty(spec: SetSpec) -> Set {
        Set { spec, elements: BTreeMap::new() }
    }
}

/// What belongs to a key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ElementValue {
    /// The upper end of a range, included in it; only in sets with `interval`, and none for a single value.
    pub key_end: Option<Box<Bytes>>,
    /// What a map answers with.
    pub data: Option<Data>,
    /// How long it lives, in milliseconds, where that differs from the set's own.
    pub timeout: Option<NonZeroU64>,
    /// What nft prints beside it.
    pub comment: Option<Comment>,
}

impl ElementValue {
    /// The last key that belongs to the element that begins with this key.
    pub fn last<'a>(&'a self, key: &'a Bytes) -> &'a Bytes {
        self.key_end.as_deref().unwrap_or(key)
    }
}

/// What a map answers with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// Bytes for registers.
    Value(Bytes),
    /// Where to go on.
    Verdict(NftVerdict),
}

/// Key and value of an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// The key, or the lower end of a range.
    pub key: Bytes,
    /// Everything else.
    pub value: ElementValue,
}

impl Element {
    /// A member of a set.
    pub fn member(key: impl Into<Bytes>) -> Element {
        Element { key: key.into(), value: ElementValue::default() }
    }

    /// An entry of a map.
    pub fn entry(key: impl Into<Bytes>, data: Data) -> Element {
        Element { key: key.into(), value: ElementValue { data: Some(data), ..ElementValue::default() } }
    }

    /// The same up to an upper end, which belongs to the range.
    pub fn up_to(mut self, key_end: impl Into<Bytes>) -> Element {
        let key_end = key_end.into();
        self.value.key_end = (key_end != self.key).then(|| Box::new(key_end));
        self
    }

    /// The last key that belongs to it.
    pub fn last(&self) -> &Bytes {
        self.value.last(&self.key)
    }

    /// The same with a comment.
    pub fn with_comment(mut self, comment: &Comment) -> Element {
        self.value.comment = Some(comment.clone());
        self
    }
}

/// Where evaluation goes on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NftVerdict {
    /// This hook is done with the packet.
    Accept,
    /// The packet is gone.
    Drop,
    /// The next rule.
    Continue,
    /// Back to the calling chain.
    Return,
    /// Into a chain, and back.
    Jump(NftName),
    /// Into a chain, not back.
    Goto(NftName),
}

/// A table with everything in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table {
    /// What nft prints beside it.
    pub comment: Option<Comment>,
    /// Its chains by name.
    pub chains: BTreeMap<NftName, Chain>,
    /// Its sets and maps by name.
    pub sets: BTreeMap<NftName, Set>,
}

/// Everything that is ours in one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ruleset {
    /// The tables.
    pub tables: BTreeMap<TableId, Table>,
}

/// Where a new rule goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RulePosition {
    /// After all others.
    Last,
    /// Before all others.
    First,
}

/// One step of a transaction.
#[allow(missing_docs, reason = "each variant says what it does with its fields")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NftChange {
    /// Make the table, or leave it as it is.
    AddTable { table: TableId, comment: Option<Comment> },
    /// Remove the table and everything in it. It must exist.
    DeleteTable { table: TableId },
    /// Make the chain; with the same spec it may exist.
    AddChain { table: TableId, chain: NftName, spec: ChainSpec },
    /// Remove all rules of the chain.
    FlushChain { table: TableId, chain: NftName },
    /// Remove the chain and its rules; nothing may lead to it. On kernels before 6.2 a chain whose last reference
    /// goes in the same transaction is still busy (pitfall 9): flush now, delete in a later one.
    DeleteChain { table: TableId, chain: NftName },
    /// Make the set or map; with the same spec it may exist.
    AddSet { table: TableId, set: NftName, spec: SetSpec },
    /// Remove all elements.
    FlushSet { table: TableId, set: NftName },
    /// Remove the set or map; no rule may use it.
    DeleteSet { table: TableId, set: NftName },
    /// Put elements in. An equal one may be there; one with the same key and other data is an error: delete it
    /// earlier in the same transaction.
    AddElements { table: TableId, set: NftName, ranges: IntervalEncoding, elements: Vec<Element> },
    /// Take elements out; all must be there. Data need not be given, the end of a range must.
    DeleteElements { table: TableId, set: NftName, ranges: IntervalEncoding, elements: Vec<Element> },
    /// Put a rule in.
    AddRule { table: TableId, chain: NftName, rule: NftRule, position: RulePosition },
    /// Put a rule in the place of another.
    ReplaceRule { table: TableId, chain: NftName, handle: u64, rule: NftRule },
    /// Take one rule out.
    DeleteRule { table: TableId, chain: NftName, handle: u64 },
}

impl NftChange {
    /// How many elements it brings or takes.
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

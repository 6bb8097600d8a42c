//! Decodes tables, chains, sets, elements and rules.

use std::num::NonZeroU64;

use super::expr::{decode_expr, decode_verdict};
use super::*;
use crate::nfnetlink::wire::Attrs;
use crate::nftables::abi::{chain, data, elem, rule, set, table, udata};
use crate::nftables::ir::{Base, Bytes, Data, DataType, ElementValue, FieldType, PackedElement, Policy};

/// One element as encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawElement {
    pub element: Element,
    /// Marks the exclusive end of the preceding interval.
    pub interval_end: bool,
}

pub(super) fn message(
    kind: u16,
    flags: u16,
    family: NftFamily,
    attrs: Attrs<'_>,
) -> Result<NftMessage, DecodeError> {
    let change = match kind {
        msg::NEWTABLE => NftChange::AddTable {
            table: table_id(family, attrs, table::NAME, "a table")?,
            comment: comment(attrs, table::USERDATA, udata::TABLE_COMMENT),
        },
        msg::DELTABLE => NftChange::DeleteTable { table: table_id(family, attrs, table::NAME, "a table")? },
        msg::NEWCHAIN => add_chain(family, attrs)?,
        msg::DELCHAIN => NftChange::DeleteChain {
            table: table_id(family, attrs, chain::TABLE, "a chain")?,
            chain: name(attrs, chain::NAME, "a chain")?,
        },
        msg::NEWRULE => add_rule(flags, family, attrs)?,
        msg::DELRULE => delete_rule(family, attrs)?,
        msg::NEWSET => add_set(family, attrs)?,
        msg::DELSET => NftChange::DeleteSet {
            table: table_id(family, attrs, set::TABLE, "a set")?,
            set: name(attrs, set::NAME, "a set")?,
        },
        msg::NEWSETELEM => return Ok(NftMessage::Elements(elements(family, attrs)?)),
        msg::DELSETELEM if attrs.find(elem::LIST_ELEMENTS).is_some() => {
            return Ok(NftMessage::DeleteElements(elements(family, attrs)?));
        }
        msg::DELSETELEM => NftChange::FlushSet {
            table: table_id(family, attrs, elem::LIST_TABLE, "elements")?,
            set: name(attrs, elem::LIST_SET, "elements")?,
        },
        other => {
            return Err(problem("another object", format!("nf_tables message {other} is not supported")));
        }
    };
    Ok(NftMessage::Change(change))
}

fn name(attrs: Attrs<'_>, attr: u16, of: &'static str) -> Result<NftName, DecodeError> {
    attrs.text(attr).map(NftName::from).ok_or_else(|| problem(of, "it has no name"))
}

fn table_id(
    family: NftFamily,
    attrs: Attrs<'_>,
    attr: u16,
    of: &'static str,
) -> Result<TableId, DecodeError> {
    let name = attrs.text(attr).ok_or_else(|| problem(of, "it has no table"))?;
    Ok(TableId::new(family, name))
}

/// One attribute of nft's user data.
fn userdata(bytes: &[u8], wanted: u8) -> Option<&[u8]> {
    let mut rest = bytes;
    while let [kind, len, tail @ ..] = rest {
        let value = tail.get(..usize::from(*len))?;
        if *kind == wanted {
            return Some(value);
        }
        rest = &tail[value.len()..];
    }
    None
}

fn comment(attrs: Attrs<'_>, attr: u16, kind: u8) -> Option<Comment> {
    let value = userdata(attrs.find(attr)?, kind)?;
    let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
    Some(Comment::new(&String::from_utf8_lossy(text)))
}

fn add_chain(family: NftFamily, attrs: Attrs<'_>) -> Result<NftChange, DecodeError> {
    let base = attrs.nested(chain::HOOK).map(|hook| base(attrs, hook)).transpose()?;
    Ok(NftChange::AddChain {
        table: table_id(family, attrs, chain::TABLE, "a chain")?,
        chain: name(attrs, chain::NAME, "a chain")?,
        spec: ChainSpec { base, comment: comment(attrs, chain::USERDATA, udata::CHAIN_COMMENT) },
    })
}

fn base(attrs: Attrs<'_>, hook: Attrs<'_>) -> Result<Base, DecodeError> {
    let wrong = |what: &str| problem("a chain", format!("its {what} is missing or unknown"));
    let kind = match attrs.text(chain::TYPE) {
        Some(name) => codes::chain_type(&name).ok_or_else(|| wrong("type"))?,
        None => crate::nftables::ir::ChainType::Filter,
    };
    let number = hook.u32(chain::HOOK_NUM).ok_or_else(|| wrong("hook"))?;
    let priority = hook.u32(chain::HOOK_PRIORITY).ok_or_else(|| wrong("priority"))?;
    let policy = match attrs.u32(chain::POLICY) {
        Some(0) => Policy::Drop,
        _ => Policy::Accept,
    };
    let hook = codes::HOOK.word(number).ok_or_else(|| wrong("hook"))?;
    Ok(Base { kind, hook, priority: priority.cast_signed(), policy })
}

fn add_rule(flags: u16, family: NftFamily, attrs: Attrs<'_>) -> Result<NftChange, DecodeError> {
    let table = table_id(family, attrs, rule::TABLE, "a rule")?;
    let chain = name(attrs, rule::CHAIN, "a rule")?;
    let handle = attrs.u64(rule::HANDLE);
    let list = attrs.nested(rule::EXPRESSIONS).unwrap_or(Attrs::new(&[]));
    let exprs =
        list.iter().map(|(_, bytes)| decode_expr(Attrs::new(bytes))).collect::<Result<Vec<_>, _>>()?;
    let comment = comment(attrs, rule::USERDATA, udata::RULE_COMMENT);
    if flags & abi::NLM_F_REPLACE != 0 {
        let handle = handle.ok_or_else(|| problem("a rule", "it replaces a rule without a handle"))?;
        return Ok(NftChange::ReplaceRule {
            table,
            chain,
            handle,
            rule: NftRule { exprs, comment, handle: None },
        });
    }
    let position = if flags & abi::NLM_F_APPEND != 0 { RulePosition::Last } else { RulePosition::First };
    Ok(NftChange::AddRule { table, chain, rule: NftRule { exprs, comment, handle }, position })
}

fn delete_rule(family: NftFamily, attrs: Attrs<'_>) -> Result<NftChange, DecodeError> {
    let table = table_id(family, attrs, rule::TABLE, "a rule")?;
    let chain = name(attrs, rule::CHAIN, "a rule")?;
    Ok(match attrs.u64(rule::HANDLE) {
        Some(handle) => NftChange::DeleteRule { table, chain, handle },
        None => NftChange::FlushChain { table, chain },
    })
}

fn add_set(family: NftFamily, attrs: Attrs<'_>) -> Result<NftChange, DecodeError> {
    let missing = |what: &str| problem("a set", format!("its {what} is missing"));
    let flags = attrs.u32(set::FLAGS).unwrap_or(0);
    let key_len = attrs.u32(set::KEY_LEN).ok_or_else(|| missing("key length"))?;
    let desc = attrs.nested(set::DESC);
    let widths = desc.and_then(|desc| desc.nested(set::DESC_CONCAT)).map(concat_widths).unwrap_or_default();
    let data = (flags & set::F_MAP != 0).then(|| data_type(attrs)).flatten();
    let timeout = attrs.u64(set::TIMEOUT).filter(|timeout| *timeout != 0);
    let spec = SetSpec {
        key: fields(attrs.u32(set::KEY_TYPE).unwrap_or(0), usize::try_from(key_len).unwrap_or(0), &widths),
        data,
        interval: flags & set::F_INTERVAL != 0,
        dynamic: flags & set::F_EVAL != 0,
        expires: flags & set::F_TIMEOUT != 0,
        timeout,
        size: desc.and_then(|desc| desc.u32(set::DESC_SIZE)),
        comment: comment(attrs, set::USERDATA, udata::SET_COMMENT),
    };
    Ok(NftChange::AddSet {
        table: table_id(family, attrs, set::TABLE, "a set")?,
        set: name(attrs, set::NAME, "a set")?,
        spec,
    })
}

fn concat_widths(concat: Attrs<'_>) -> Vec<usize> {
    let fields = concat.iter().filter_map(|(_, field)| Attrs::new(field).u32(set::FIELD_LEN));
    fields.map(|width| usize::try_from(width).unwrap_or(0)).collect()
}

fn data_type(attrs: Attrs<'_>) -> Option<DataType> {
    match attrs.u32(set::DATA_TYPE)? {
        set::DATA_VERDICT => Some(DataType::Verdict),
        number => {
            let len = usize::try_from(attrs.u32(set::DATA_LEN)?).ok()?;
            Some(DataType::Fields(fields(number, len, &[])))
        }
    }
}

/// The fields of a type number. Keys have explicit widths; those of data follow from the types.
fn fields(number: u32, len: usize, widths: &[usize]) -> Vec<FieldType> {
    if number < 0x40 && widths.len() < 2 {
        return vec![codes::field_word(number, len)];
    }
    let mut numbers: Vec<u32> = Vec::new();
    let mut rest = number;
    while rest != 0 && numbers.len() < widths.len().max(5) {
        numbers.push(rest & 0x3f);
        rest >>= 6;
    }
    numbers.reverse();
    let field = |(place, number): (usize, &u32)| {
        let width = widths.get(place).copied();
        let width = width.or_else(|| codes::FIELD.word(*number).map(FieldType::width)).unwrap_or(4);
        codes::field_word(*number, width)
    };
    numbers.iter().enumerate().map(field).collect()
}

fn elements(family: NftFamily, attrs: Attrs<'_>) -> Result<ElementList, DecodeError> {
    let list = attrs.nested(elem::LIST_ELEMENTS).unwrap_or(Attrs::new(&[]));
    Ok(ElementList {
        table: table_id(family, attrs, elem::LIST_TABLE, "elements")?,
        set: name(attrs, elem::LIST_SET, "elements")?,
        raw: list.iter().map(|(_, bytes)| element(Attrs::new(bytes))).collect::<Result<_, _>>()?,
    })
}

/// The key of an element.
pub(super) fn key<'a>(element: Attrs<'a>) -> Option<&'a [u8]> {
    element.nested(elem::KEY)?.find(data::VALUE)
}

/// Whether an element of a set without intervals has this value. Compared without decoding: a dump has hundreds of
/// thousands.
pub(super) fn is_same(element: Attrs<'_>, value: &ElementValue) -> bool {
    let comment = value.comment.as_ref().map(Comment::as_str);
    let is_data = |nested: Attrs<'_>| match &value.data {
        Some(Data::Value(data)) => nested.find(data::VALUE) == Some(data.as_slice()),
        Some(Data::Verdict(verdict)) => decode_verdict(nested).as_ref() == Ok(verdict),
        None => false,
    };
    has_value(element, value.data.is_some(), is_data, comment)
}

/// The same for an element with plain data or none.
pub(super) fn is_same_packed(element: Attrs<'_>, wanted: &PackedElement<'_>) -> bool {
    let is_data = |nested: Attrs<'_>| nested.find(data::VALUE) == Some(wanted.data);
    has_value(element, !wanted.data.is_empty(), is_data, wanted.comment)
}

fn has_value(
    element: Attrs<'_>,
    wants_data: bool,
    is_data: impl Fn(Attrs<'_>) -> bool,
    comment: Option<&str>,
) -> bool {
    let (mut has_data, mut has_comment) = (false, false);
    let is_as_wanted = element.iter().all(|(attr, bytes)| match attr {
        elem::DATA => {
            has_data = true;
            is_data(Attrs::new(bytes))
        }
        elem::USERDATA => {
            has_comment = true;
            let text = userdata(bytes, udata::ELEM_COMMENT).and_then(|text| text.split(|b| *b == 0).next());
            text == comment.map(str::as_bytes)
        }
        // The key was used for the lookup.
        elem::KEY | elem::PAD => true,
        elem::FLAGS => bytes.iter().all(|byte| *byte == 0),
        _ => false,
    });
    is_as_wanted && has_data == wants_data && has_comment == comment.is_some()
}

pub(super) fn element(attrs: Attrs<'_>) -> Result<RawElement, DecodeError> {
    let bytes = |attr: u16| attrs.nested(attr).and_then(|nested| nested.find(data::VALUE)).map(Bytes::from);
    let key = bytes(elem::KEY).ok_or_else(|| problem("elements", "one has no key"))?;
    let flags = attrs.u32(elem::FLAGS).unwrap_or(0);
    let data = match attrs.nested(elem::DATA) {
        None => None,
        Some(nested) => match nested.find(data::VALUE) {
            Some(value) => Some(Data::Value(Bytes::from(value))),
            None => Some(Data::Verdict(decode_verdict(nested)?)),
        },
    };
    let value = ElementValue {
        key_end: bytes(elem::KEY_END).filter(|end| *end != key).map(Box::new),
        data,
        timeout: attrs.u64(elem::TIMEOUT).and_then(NonZeroU64::new),
        comment: comment(attrs, elem::USERDATA, udata::ELEM_COMMENT),
    };
    Ok(RawElement { element: Element { key, value }, interval_end: flags & elem::F_INTERVAL_END != 0 })
}

/// The number before, of the same length; zero stays.
pub(super) fn predecessor(bytes: &[u8]) -> Vec<u8> {
    let mut before = bytes.to_vec();
    for byte in before.iter_mut().rev() {
        let (difference, borrow) = byte.overflowing_sub(1);
        *byte = difference;
        if !borrow {
            return before;
        }
    }
    bytes.to_vec()
}

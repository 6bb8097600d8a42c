//! Encodes tables, chains, sets, elements and rules, with the user data that nft needs to list comments and types.

use super::expr::{data, encode_expr};
use super::{Batch, MessageHeader, MessageWriter, abi, userdata};
use crate::nftables::abi::{chain, elem, msg, rule, set, table, udata};
use crate::nftables::codes;
use crate::nftables::ir::{
    Base, ChainSpec, Comment, Data, DataType, Element, IntervalEncoding, NftChange, NftRule, Policy,
    RulePosition, SetSpec, TableId,
};

/// A list of elements is one attribute of at most 64 KiB; the rest of that is far longer than one element.
pub(super) const LIST_LIMIT: usize = 60_000;

/// Appends the messages of one change.
pub(super) fn encode(batch: &mut Batch, change: &NftChange, index: u32) {
    match change {
        NftChange::AddTable { table, comment } => add_table(batch, index, table, comment.as_ref()),
        NftChange::DeleteTable { table } => {
            batch.message(index, head(table, msg::DELTABLE, 0), |out| out.attr_str(table::NAME, &table.name));
        }
        NftChange::AddChain { table, chain, spec } => add_chain(batch, index, table, chain, spec),
        NftChange::DeleteChain { table, chain: name } => {
            batch.message(index, head(table, msg::DELCHAIN, 0), |out| {
                out.attr_str(chain::TABLE, &table.name);
                out.attr_str(chain::NAME, name);
            });
        }
        NftChange::FlushChain { table, chain } => delete_rule(batch, index, table, chain, None),
        NftChange::DeleteRule { table, chain, handle } => {
            delete_rule(batch, index, table, chain, Some(*handle))
        }
        NftChange::AddSet { table, set, spec } => add_set(batch, index, table, set, spec),
        NftChange::DeleteSet { table, set: name } => {
            batch.message(index, head(table, msg::DELSET, 0), |out| {
                out.attr_str(set::TABLE, &table.name);
                out.attr_str(set::NAME, name);
            });
        }
        // Without a list of elements the kernel deletes all.
        NftChange::FlushSet { table, set } => {
            batch.message(index, head(table, msg::DELSETELEM, 0), |out| {
                out.attr_str(elem::LIST_TABLE, &table.name);
                out.attr_str(elem::LIST_SET, set);
            });
        }
        NftChange::AddElements { table, set, ranges, elements } => {
            let header = head(table, msg::NEWSETELEM, abi::NLM_F_CREATE);
            encode_elements(batch, index, header, table, set, *ranges, elements);
        }
        NftChange::DeleteElements { table, set, ranges, elements } => {
            encode_elements(batch, index, head(table, msg::DELSETELEM, 0), table, set, *ranges, elements);
        }
        NftChange::AddRule { table, chain, rule, position } => {
            let flags = match position {
                RulePosition::Last => abi::NLM_F_CREATE | abi::NLM_F_APPEND,
                RulePosition::First => abi::NLM_F_CREATE,
            };
            // A new rule must not have a handle; only dumps have them.
            let handle = rule.handle.filter(|_| batch.is_dump);
            add_rule(batch, index, head(table, msg::NEWRULE, flags), (table, chain), handle, rule);
        }
        NftChange::ReplaceRule { table, chain, handle, rule } => {
            let header = head(table, msg::NEWRULE, abi::NLM_F_REPLACE);
            add_rule(batch, index, header, (table, chain), Some(*handle), rule);
        }
    }
}

pub(super) fn head(table: &TableId, message: u16, flags: u16) -> MessageHeader {
    MessageHeader {
        kind: codes::nft_message(message),
        flags: abi::NLM_F_REQUEST | flags,
        seq: 0,
        family: u8::try_from(codes::FAMILY.number(table.family)).unwrap_or(0),
        version: 0,
        resource: 0,
    }
}

fn add_table(batch: &mut Batch, index: u32, table: &TableId, comment: Option<&Comment>) {
    batch.message(index, head(table, msg::NEWTABLE, abi::NLM_F_CREATE), |out| {
        out.attr_str(table::NAME, &table.name);
        out.attr_u32(table::FLAGS, 0);
        comment_attr(out, table::USERDATA, udata::TABLE_COMMENT, comment.map(Comment::as_str));
    });
}

fn add_chain(batch: &mut Batch, index: u32, table: &TableId, name: &str, spec: &ChainSpec) {
    batch.message(index, head(table, msg::NEWCHAIN, abi::NLM_F_CREATE), |out| {
        out.attr_str(chain::TABLE, &table.name);
        out.attr_str(chain::NAME, name);
        if let Some(base) = &spec.base {
            base_attrs(out, base);
        }
        comment_attr(out, chain::USERDATA, udata::CHAIN_COMMENT, spec.comment.as_ref().map(Comment::as_str));
    });
}

fn base_attrs(out: &mut MessageWriter, base: &Base) {
    out.nested(chain::HOOK, |out| {
        out.attr_u32(chain::HOOK_NUM, codes::HOOK.number(base.hook));
        out.attr(chain::HOOK_PRIORITY, &base.priority.to_be_bytes());
    });
    let policy = match base.policy {
        Policy::Drop => 0,
        Policy::Accept => 1,
    };
    out.attr_u32(chain::POLICY, policy);
    out.attr_str(chain::TYPE, codes::chain_type_name(base.kind));
}

fn delete_rule(batch: &mut Batch, index: u32, table: &TableId, chain: &str, handle: Option<u64>) {
    batch.message(index, head(table, msg::DELRULE, 0), |out| {
        out.attr_str(rule::TABLE, &table.name);
        out.attr_str(rule::CHAIN, chain);
        if let Some(handle) = handle {
            out.attr_u64(rule::HANDLE, handle);
        }
    });
}

fn add_rule(
    batch: &mut Batch,
    index: u32,
    header: MessageHeader,
    (table, chain): (&TableId, &str),
    handle: Option<u64>,
    added: &NftRule,
) {
    batch.message(index, header, |out| {
        out.attr_str(rule::TABLE, &table.name);
        out.attr_str(rule::CHAIN, chain);
        if let Some(handle) = handle {
            out.attr_u64(rule::HANDLE, handle);
        }
        out.nested(rule::EXPRESSIONS, |out| {
            added.exprs.iter().for_each(|expr| encode_expr(out, expr));
        });
        comment_attr(out, rule::USERDATA, udata::RULE_COMMENT, added.comment.as_ref().map(Comment::as_str));
    });
}

fn add_set(batch: &mut Batch, index: u32, table: &TableId, name: &str, spec: &SetSpec) {
    let header = head(table, msg::NEWSET, abi::NLM_F_CREATE);
    batch.message(index, header, |out| {
        out.attr_str(set::TABLE, &table.name);
        out.attr_str(set::NAME, name);
        out.attr_u32(set::FLAGS, set_flags(spec));
        out.attr_u32(set::KEY_TYPE, codes::fields_number(&spec.key));
        out.attr_u32(set::KEY_LEN, width(spec.key_len()));
        if let Some(data) = &spec.data {
            let number = match data {
                DataType::Verdict => set::DATA_VERDICT,
                DataType::Fields(fields) => codes::fields_number(fields),
            };
            out.attr_u32(set::DATA_TYPE, number);
            out.attr_u32(set::DATA_LEN, width(data.width()));
        }
        set_desc(out, spec);
        // The kernel requires an id by which later messages of the batch may reference the set.
        out.attr_u32(set::ID, index + 1);
        if let Some(timeout) = spec.timeout {
            out.attr_u64(set::TIMEOUT, timeout);
        }
        out.attr(set::USERDATA, &userdata::of_set(spec));
    });
}

fn set_flags(spec: &SetSpec) -> u32 {
    [
        (spec.interval, set::F_INTERVAL),
        (spec.data.is_some(), set::F_MAP),
        (spec.expires || spec.timeout.is_some(), set::F_TIMEOUT),
        (spec.dynamic, set::F_EVAL),
        (spec.key.len() > 1, set::F_CONCAT),
    ]
    .into_iter()
    .filter(|(wanted, _)| *wanted)
    .fold(0, |flags, (_, flag)| flags | flag)
}

fn set_desc(out: &mut MessageWriter, spec: &SetSpec) {
    if spec.size.is_none() && spec.key.len() < 2 {
        return;
    }
    out.nested(set::DESC, |out| {
        if let Some(size) = spec.size {
            out.attr_u32(set::DESC_SIZE, size);
        }
        if spec.key.len() > 1 {
            out.nested(set::DESC_CONCAT, |out| {
                for field in &spec.key {
                    out.nested(abi::LIST_ELEM, |out| out.attr_u32(set::FIELD_LEN, width(field.width())));
                }
            });
        }
    });
}

fn width(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

pub(super) fn comment_attr(out: &mut MessageWriter, attr: u16, kind: u8, comment: Option<&str>) {
    if let Some(comment) = comment {
        let mut buffer = [0; userdata::LONGEST_COMMENT];
        out.attr(attr, userdata::comment_only(&mut buffer, kind, comment));
    }
}

/// Splits the elements into as many messages as their lists need.
fn encode_elements(
    batch: &mut Batch,
    index: u32,
    header: MessageHeader,
    table: &TableId,
    name: &str,
    ranges: IntervalEncoding,
    elements: &[Element],
) {
    let mut rest = elements;
    while !rest.is_empty() {
        let mut written = 0;
        batch.message(index, header, |out| {
            out.attr_str(elem::LIST_TABLE, &table.name);
            out.attr_str(elem::LIST_SET, name);
            out.nested(elem::LIST_ELEMENTS, |out| {
                let start = out.position();
                for element in rest {
                    if written > 0 && out.position() - start > LIST_LIMIT {
                        break;
                    }
                    encode_element(out, ranges, element);
                    written += 1;
                }
            });
        });
        rest = &rest[written..];
    }
}

fn encode_element(out: &mut MessageWriter, ranges: IntervalEncoding, element: &Element) {
    out.nested(abi::LIST_ELEM, |out| {
        data(out, elem::KEY, &element.key);
        if ranges == IntervalEncoding::KeyEnd {
            data(out, elem::KEY_END, element.last());
        }
        element_value(out, element);
    });
    // An interval of one field ends with an element after its last value, unless that is the highest value.
    if ranges == IntervalEncoding::TwoElements {
        let last = element.last();
        if let Some(behind) = successor(last) {
            out.nested(abi::LIST_ELEM, |out| {
                data(out, elem::KEY, &behind);
                out.attr_u32(elem::FLAGS, elem::F_INTERVAL_END);
            });
        }
    }
}

fn element_value(out: &mut MessageWriter, element: &Element) {
    match &element.value.data {
        Some(Data::Value(bytes)) => data(out, elem::DATA, bytes),
        Some(Data::Verdict(verdict)) => {
            out.nested(elem::DATA, |out| super::expr::verdict(out, verdict));
        }
        None => {}
    }
    if let Some(timeout) = element.value.timeout {
        out.attr_u64(elem::TIMEOUT, timeout.get());
    }
    let comment = element.value.comment.as_ref().map(Comment::as_str);
    comment_attr(out, elem::USERDATA, udata::ELEM_COMMENT, comment);
}

/// The next number of the same length; none after all ones.
pub(crate) fn successor(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut next = bytes.to_vec();
    for byte in next.iter_mut().rev() {
        let (sum, carry) = byte.overflowing_add(1);
        *byte = sum;
        if !carry {
            return Some(next);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::ir::FieldType;

    #[test]
    fn successor_carries_and_ends_behind_all_ones() {
        assert_eq!(successor(&[10, 0, 0, 255]), Some(vec![10, 0, 1, 0]));
        assert_eq!(successor(&[255, 255]), None);
    }

    #[test]
    fn no_field_type_is_without_a_number() {
        let fields = [FieldType::Ipv4Addr, FieldType::InetProto, FieldType::InetService];
        assert_eq!(codes::fields_number(&fields), (7 << 6 | 12) << 6 | 13);
    }
}

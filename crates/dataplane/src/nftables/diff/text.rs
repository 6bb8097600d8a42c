//! Changes as text, with elements in nft's syntax.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::nftables::ir::{
    Data, DataType, Element, FieldType, NftChange, NftName, NftVerdict, Ruleset, SetSpec, TableId,
};

/// One change as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffLine {
    /// `add`, `delete`, `flush` or `replace`.
    pub does: &'static str,
    /// The table, as `ip zoneward`.
    pub table: String,
    /// The object, as `element endpoints-1k` or `chain cluster-ip-3`.
    pub what: String,
    /// The element, or the comment of a chain or rule.
    pub detail: String,
}

/// Changes as text; `rulesets` have the types of the sets.
pub fn lines(changes: &[NftChange], rulesets: &[&Ruleset]) -> Vec<DiffLine> {
    changes.iter().flat_map(|change| lines_of(change, rulesets)).collect()
}

fn lines_of(change: &NftChange, rulesets: &[&Ruleset]) -> Vec<DiffLine> {
    let line = |does, table: &TableId, what: String, detail: &str| {
        vec![DiffLine { does, table: table.to_string(), what, detail: detail.to_owned() }]
    };
    let elements = |does, table: &TableId, set: &NftName, elements: &[Element]| -> Vec<DiffLine> {
        let spec = spec_of(table, set, rulesets);
        let what = format!("element {set}");
        let one = |element: &Element| DiffLine {
            does,
            table: table.to_string(),
            what: what.clone(),
            detail: element_text(element, spec),
        };
        elements.iter().map(one).collect()
    };
    let says = |comment: &Option<crate::nftables::ir::Comment>| {
        comment.as_ref().map(|c| c.as_str().to_owned()).unwrap_or_default()
    };
    match change {
        NftChange::AddTable { table, comment } => line("add", table, "table".to_owned(), &says(comment)),
        NftChange::DeleteTable { table } => line("delete", table, "table".to_owned(), ""),
        NftChange::AddChain { table, chain, spec } => {
            line("add", table, format!("chain {chain}"), &says(&spec.comment))
        }
        NftChange::FlushChain { table, chain } => line("flush", table, format!("chain {chain}"), ""),
        NftChange::DeleteChain { table, chain } => line("delete", table, format!("chain {chain}"), ""),
        NftChange::AddSet { table, set, spec } => {
            line("add", table, format!("set {set}"), &says(&spec.comment))
        }
        NftChange::FlushSet { table, set } => line("flush", table, format!("set {set}"), ""),
        NftChange::DeleteSet { table, set } => line("delete", table, format!("set {set}"), ""),
        NftChange::AddElements { table, set, elements: list, .. } => elements("add", table, set, list),
        NftChange::DeleteElements { table, set, elements: list, .. } => elements("delete", table, set, list),
        NftChange::AddRule { table, chain, rule, .. } => {
            line("add", table, format!("rule in {chain}"), &says(&rule.comment))
        }
        NftChange::ReplaceRule { table, chain, rule, .. } => {
            line("replace", table, format!("rule in {chain}"), &says(&rule.comment))
        }
        NftChange::DeleteRule { table, chain, handle } => {
            line("delete", table, format!("rule in {chain}"), &format!("handle {handle}"))
        }
    }
}

fn spec_of<'p>(table: &TableId, set: &NftName, rulesets: &[&'p Ruleset]) -> Option<&'p SetSpec> {
    rulesets.iter().find_map(|ruleset| Some(&ruleset.tables.get(table)?.sets.get(set)?.spec))
}

/// An element in nft's syntax.
pub fn element_text(element: &Element, spec: Option<&SetSpec>) -> String {
    let key_fields = spec.map_or(&[][..], |spec| &spec.key);
    let mut text = fields_text(&element.key, key_fields);
    if let Some(end) = &element.value.key_end {
        text = range_text(&element.key, end, key_fields);
    }
    match (&element.value.data, spec.and_then(|spec| spec.data.as_ref())) {
        (Some(Data::Value(value)), Some(DataType::Fields(fields))) => {
            text += &format!(" : {}", fields_text(value, fields));
        }
        (Some(Data::Value(value)), _) => text += &format!(" : {}", fields_text(value, &[])),
        (Some(Data::Verdict(verdict)), _) => text += &format!(" : {}", verdict_text(verdict)),
        (None, _) => {}
    }
    if let Some(comment) = &element.value.comment {
        text += &format!(" ({comment})");
    }
    text
}

fn verdict_text(verdict: &NftVerdict) -> String {
    match verdict {
        NftVerdict::Accept => "accept".to_owned(),
        NftVerdict::Drop => "drop".to_owned(),
        NftVerdict::Continue => "continue".to_owned(),
        NftVerdict::Return => "return".to_owned(),
        NftVerdict::Jump(chain) => format!("jump {chain}"),
        NftVerdict::Goto(chain) => format!("goto {chain}"),
    }
}

/// Fields joined by ` . `; bytes of unknown type as hex.
fn fields_text(bytes: &[u8], fields: &[FieldType]) -> String {
    split(bytes, fields).join(" . ")
}

fn range_text(from: &[u8], to: &[u8], fields: &[FieldType]) -> String {
    let ends = split(from, fields).into_iter().zip(split(to, fields));
    let parts: Vec<String> = ends.map(|(a, b)| if a == b { a } else { format!("{a}-{b}") }).collect();
    parts.join(" . ")
}

fn split(bytes: &[u8], fields: &[FieldType]) -> Vec<String> {
    let mut rest = bytes;
    let mut parts = Vec::new();
    for field in fields {
        let (Some(value), width) = (rest.get(..field.width()), field.padded_width().min(rest.len())) else {
            break;
        };
        parts.push(field_text(value, *field));
        rest = &rest[width..];
    }
    if !rest.is_empty() {
        parts.push(rest.iter().map(|byte| format!("{byte:02x}")).collect());
    }
    parts
}

fn field_text(value: &[u8], field: FieldType) -> String {
    match (field, value) {
        (FieldType::Ipv4Addr, &[a, b, c, d]) => Ipv4Addr::new(a, b, c, d).to_string(),
        (FieldType::Ipv6Addr, value) => {
            <[u8; 16]>::try_from(value).map(|octets| Ipv6Addr::from(octets).to_string()).unwrap_or_default()
        }
        (FieldType::InetProto, &[number]) => match super::super::render::protocol_of(number) {
            Some(protocol) => protocol.as_str().to_lowercase(),
            None => number.to_string(),
        },
        (FieldType::InetService, &[high, low]) => u16::from_be_bytes([high, low]).to_string(),
        (FieldType::Mark | FieldType::FibAddrType | FieldType::CtState, &[a, b, c, d]) => {
            format!("{:#010x}", u32::from_ne_bytes([a, b, c, d]))
        }
        (FieldType::IfName, value) => String::from_utf8_lossy(value).trim_end_matches('\0').to_owned(),
        (_, value) => value.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

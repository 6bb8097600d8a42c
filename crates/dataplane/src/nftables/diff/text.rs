//! Changes as lines that people can read, in nft's own way of writing elements.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::nftables::ir::{
    Change, Data, DataType, Element, FieldType, Name, Program, SetSpec, TableId, Verdict,
};

/// One line of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// `add`, `delete`, `flush` or `replace`.
    pub does: &'static str,
    /// The table, as `ip zoneward`.
    pub table: String,
    /// What is changed, as `element endpoints-1k` or `chain cluster-ip-3`.
    pub what: String,
    /// The element, or what a rule says of itself.
    pub detail: String,
}

/// The lines of changes; `programs` know the types of the sets.
pub fn lines(changes: &[Change], programs: &[&Program]) -> Vec<Line> {
    changes.iter().flat_map(|change| lines_of(change, programs)).collect()
}

fn lines_of(change: &Change, programs: &[&Program]) -> Vec<Line> {
    let line = |does, table: &TableId, what: String, detail: &str| {
        vec![Line { does, table: table.to_string(), what, detail: detail.to_owned() }]
    };
    let elements = |does, table: &TableId, set: &Name, elements: &[Element]| -> Vec<Line> {
        let spec = spec_of(table, set, programs);
        let what = format!("element {set}");
        let one = |element: &Element| Line {
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
        Change::AddTable { table, comment } => line("add", table, "table".to_owned(), &says(comment)),
        Change::DeleteTable { table } => line("delete", table, "table".to_owned(), ""),
        Change::AddChain { table, chain, spec } => {
            line("add", table, format!("chain {chain}"), &says(&spec.comment))
        }
        Change::FlushChain { table, chain } => line("flush", table, format!("chain {chain}"), ""),
        Change::DeleteChain { table, chain } => line("delete", table, format!("chain {chain}"), ""),
        Change::AddSet { table, set, spec } => line("add", table, format!("set {set}"), &says(&spec.comment)),
        Change::FlushSet { table, set } => line("flush", table, format!("set {set}"), ""),
        Change::DeleteSet { table, set } => line("delete", table, format!("set {set}"), ""),
        Change::AddElements { table, set, elements: list, .. } => elements("add", table, set, list),
        Change::DeleteElements { table, set, elements: list, .. } => elements("delete", table, set, list),
        Change::AddRule { table, chain, rule, .. } => {
            line("add", table, format!("rule in {chain}"), &says(&rule.comment))
        }
        Change::ReplaceRule { table, chain, rule, .. } => {
            line("replace", table, format!("rule in {chain}"), &says(&rule.comment))
        }
        Change::DeleteRule { table, chain, handle } => {
            line("delete", table, format!("rule in {chain}"), &format!("handle {handle}"))
        }
    }
}

fn spec_of<'p>(table: &TableId, set: &Name, programs: &[&'p Program]) -> Option<&'p SetSpec> {
    programs.iter().find_map(|program| Some(&program.tables.get(table)?.sets.get(set)?.spec))
}

/// An element as nft writes it.
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

fn verdict_text(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Accept => "accept".to_owned(),
        Verdict::Drop => "drop".to_owned(),
        Verdict::Continue => "continue".to_owned(),
        Verdict::Return => "return".to_owned(),
        Verdict::Jump(chain) => format!("jump {chain}"),
        Verdict::Goto(chain) => format!("goto {chain}"),
    }
}

/// Fields with ` . ` between them; bytes whose type is not known as hex.
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

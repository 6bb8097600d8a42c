//! Resources as Envoy's own JSON, for people: read back from the very bytes that would be sent, so it is no second
//! account of them. Private keys are left out.
//!
//! `show/fields.txt` names the fields of the messages that we send. What it does not name is shown by number, so that
//! nothing is hidden.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::resource::{Kind, Resource};

/// A resource as JSON.
pub fn value(kind: Kind, resource: &Resource) -> Value {
    let name = kind.type_url().rsplit('/').next().unwrap_or_default();
    message(name, &resource.body, 0)
}

/// Deeper than any message of ours.
const DEPTH: usize = 32;

/// What a field holds.
enum Holds {
    Text,
    Bytes,
    Bool,
    Int,
    Enum(BTreeMap<u64, &'static str>),
    Message(&'static str),
    Map(&'static str),
}

struct Field {
    name: &'static str,
    repeated: bool,
    holds: Holds,
}

type Fields = BTreeMap<u32, Field>;

static MESSAGES: LazyLock<BTreeMap<&'static str, Fields>> =
    LazyLock::new(|| read(include_str!("show/fields.txt")));

fn read(text: &'static str) -> BTreeMap<&'static str, Fields> {
    let mut messages: BTreeMap<&'static str, Fields> = BTreeMap::new();
    let mut current = "";
    for line in text.lines() {
        match line.strip_prefix(' ') {
            None => {
                current = line;
                messages.entry(current).or_default();
            }
            Some(rest) => {
                let field = read_field(rest);
                messages.entry(current).or_default().extend(field);
            }
        }
    }
    messages
}

/// `NUMBER NAME [*]KIND`.
fn read_field(line: &'static str) -> Option<(u32, Field)> {
    let mut words = line.splitn(3, ' ');
    let (number, name, kind) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
    let repeated = kind.starts_with('*');
    let kind = kind.trim_start_matches('*');
    let holds = match kind.split_once(' ') {
        Some(("enum", values)) => {
            let pair = |word: &'static str| {
                let (name, number) = word.split_once('=')?;
                Some((number.parse().ok()?, name))
            };
            Holds::Enum(values.split(' ').filter_map(pair).collect())
        }
        Some(("map", of)) => Holds::Map(of),
        _ => match kind {
            "text" => Holds::Text,
            "bytes" => Holds::Bytes,
            "bool" => Holds::Bool,
            "int" => Holds::Int,
            of => Holds::Message(of),
        },
    };
    Some((number, Field { name, repeated, holds }))
}

/// One field on the wire.
enum Raw<'b> {
    Number(u64),
    Bytes(&'b [u8]),
}

/// The fields of a message, in order; ends at the first that cannot be read.
fn raw(mut bytes: &[u8]) -> impl Iterator<Item = (u32, Raw<'_>)> {
    std::iter::from_fn(move || {
        let key = varint(&mut bytes)?;
        let field = u32::try_from(key >> 3).ok()?;
        let raw = match key & 7 {
            0 => Raw::Number(varint(&mut bytes)?),
            1 => Raw::Bytes(take(&mut bytes, 8)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                Raw::Bytes(take(&mut bytes, length)?)
            }
            5 => Raw::Bytes(take(&mut bytes, 4)?),
            _ => return None,
        };
        Some((field, raw))
    })
}

fn take<'b>(bytes: &mut &'b [u8], length: usize) -> Option<&'b [u8]> {
    let (head, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(head)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn message(name: &str, bytes: &[u8], depth: usize) -> Value {
    match name {
        "google.protobuf.Any" => return any(bytes, depth),
        "google.protobuf.Duration" => return format!("{}s", number(bytes)).into(),
        "google.protobuf.UInt32Value" => return number(bytes).into(),
        "google.protobuf.BoolValue" => return (number(bytes) != 0).into(),
        _ => {}
    }
    let mut object = Map::new();
    let none = Fields::new();
    let fields = MESSAGES.get(name).filter(|_| depth < DEPTH).unwrap_or(&none);
    for (at, raw) in raw(bytes) {
        let Some(field) = fields.get(&at) else {
            put(&mut object, &format!("field {at}"), true, unknown(&raw));
            continue;
        };
        // A key is nobody's to read, neither here nor in a log of this.
        let hidden = name.ends_with(".TlsCertificate") && field.name == "private_key";
        let shown = if hidden { "(not shown)".into() } else { held(&field.holds, &raw, depth) };
        match (&field.holds, &shown) {
            (Holds::Map(_), Value::Object(entry)) => {
                let map = object.entry(field.name).or_insert_with(|| json!({}));
                map.as_object_mut().into_iter().for_each(|map| map.extend(entry.clone()));
            }
            _ => put(&mut object, field.name, field.repeated, shown),
        }
    }
    Value::Object(object)
}

fn put(object: &mut Map<String, Value>, name: &str, repeated: bool, value: Value) {
    if !repeated {
        object.insert(name.to_owned(), value);
        return;
    }
    let list = object.entry(name).or_insert_with(|| json!([]));
    if let Some(list) = list.as_array_mut() {
        list.push(value);
    }
}

fn held(holds: &Holds, raw: &Raw<'_>, depth: usize) -> Value {
    match (holds, raw) {
        (Holds::Text, Raw::Bytes(bytes)) => String::from_utf8_lossy(bytes).into(),
        (Holds::Bytes, Raw::Bytes(bytes)) => STANDARD.encode(bytes).into(),
        (Holds::Bool, Raw::Number(number)) => (*number != 0).into(),
        (Holds::Int, Raw::Number(number)) => (*number).into(),
        (Holds::Enum(names), Raw::Number(number)) => {
            names.get(number).map_or_else(|| Value::from(*number), |name| Value::from(*name))
        }
        (Holds::Message(of), Raw::Bytes(bytes)) => message(of, bytes, depth + 1),
        (Holds::Map(of), Raw::Bytes(bytes)) => entry(of, bytes, depth),
        (_, raw) => unknown(raw),
    }
}

fn unknown(raw: &Raw<'_>) -> Value {
    match raw {
        Raw::Number(number) => (*number).into(),
        Raw::Bytes(bytes) => STANDARD.encode(bytes).into(),
    }
}

/// An entry of a map: key and value.
fn entry(of: &str, bytes: &[u8], depth: usize) -> Value {
    let (mut key, mut value) = (String::new(), json!({}));
    for (at, raw) in raw(bytes) {
        match (at, raw) {
            (1, Raw::Bytes(bytes)) => key = String::from_utf8_lossy(bytes).into_owned(),
            (2, Raw::Bytes(bytes)) => value = message(of, bytes, depth + 1),
            _ => {}
        }
    }
    json!({ key: value })
}

fn any(bytes: &[u8], depth: usize) -> Value {
    let (mut url, mut content) = (String::new(), &[] as &[u8]);
    for (at, raw) in raw(bytes) {
        match (at, raw) {
            (1, Raw::Bytes(bytes)) => url = String::from_utf8_lossy(bytes).into_owned(),
            (2, Raw::Bytes(bytes)) => content = bytes,
            _ => {}
        }
    }
    let mut object = Map::new();
    object.insert("@type".to_owned(), url.as_str().into());
    let name = url.rsplit('/').next().unwrap_or_default();
    if let Value::Object(fields) = message(name, content, depth + 1) {
        object.extend(fields);
    }
    Value::Object(object)
}

/// The first field of a message that wraps a number.
fn number(bytes: &[u8]) -> u64 {
    raw(bytes)
        .find_map(|(at, raw)| if let (1, Raw::Number(number)) = (at, raw) { Some(number) } else { None })
        .unwrap_or(0)
}

/// The places in a shown resource that `show/fields.txt` does not name.
#[cfg(test)]
pub(crate) fn unnamed(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, inner)| {
                let own = name.starts_with("field ").then(|| name.clone());
                own.into_iter()
                    .chain(unnamed(inner).into_iter().map(|below| format!("{name}.{below}")))
                    .collect::<Vec<_>>()
            })
            .collect(),
        Value::Array(list) => list.iter().flat_map(unnamed).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_broken_is_shown_as_far_as_it_can_be_read() {
        for bytes in
            [&[0xff][..], &[0x0a, 0x05, b'a'], &[0x0b], &[0x82, 0x01, 0x01, 0x00], b"\x0a\x01x\xff\xff"]
        {
            let resource = Resource::new("x", bytes.to_vec());
            let shown = value(Kind::Cluster, &resource);
            assert!(shown.is_object());
        }
        assert_eq!(value(Kind::Cluster, &Resource::new("x", b"\x0a\x01x".to_vec())), json!({"name": "x"}));
    }

    #[test]
    fn unnamed_fields_are_shown_by_number() {
        let shown = value(Kind::Cluster, &Resource::new("x", vec![0xf8, 0x06, 1]));
        assert_eq!(shown, json!({"field 111": [1]}));
        assert_eq!(unnamed(&shown), ["field 111"]);
    }
}

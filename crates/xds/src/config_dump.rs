//! Resources as Envoy's JSON, decoded from the bytes that are sent. Private keys are omitted.
//!
//! `config_dump/fields.txt` names the fields of our messages. Other fields are shown by number and length, since they could
//! hold a key.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::resource::{ResourceType, XdsResource};

pub fn value(kind: ResourceType, resource: &XdsResource) -> Value {
    let name = kind.type_url().rsplit('/').next().unwrap_or_default();
    message(name, &resource.body, 0)
}

/// Deeper than any message of ours.
const MAX_DEPTH: usize = 32;

enum FieldType {
    Text,
    Bytes,
    Bool,
    Int,
    /// A repeated number.
    Packed,
    Double,
    Enum(BTreeMap<u64, &'static str>),
    Message(&'static str),
    Map(&'static str),
}

struct Field {
    name: &'static str,
    repeated: bool,
    field_type: FieldType,
}

type Fields = BTreeMap<u32, Field>;

static MESSAGES: LazyLock<BTreeMap<&'static str, Fields>> =
    LazyLock::new(|| read(include_str!("config_dump/fields.txt")));

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
    let field_type = match kind.split_once(' ') {
        Some(("enum", values)) => {
            let pair = |word: &'static str| {
                let (name, number) = word.split_once('=')?;
                Some((number.parse().ok()?, name))
            };
            FieldType::Enum(values.split(' ').filter_map(pair).collect())
        }
        Some(("map", of)) => FieldType::Map(of),
        _ => match kind {
            "text" => FieldType::Text,
            "bytes" => FieldType::Bytes,
            "bool" => FieldType::Bool,
            "int" => FieldType::Int,
            "packed" => FieldType::Packed,
            "double" => FieldType::Double,
            of => FieldType::Message(of),
        },
    };
    Some((number, Field { name, repeated, field_type }))
}

enum WireValue<'b> {
    Number(u64),
    Bytes(&'b [u8]),
}

/// The fields of a message in order, up to the first malformed one.
fn wire_fields(mut bytes: &[u8]) -> impl Iterator<Item = (u32, WireValue<'_>)> {
    std::iter::from_fn(move || {
        let key = varint(&mut bytes)?;
        let field = u32::try_from(key >> 3).ok()?;
        let raw = match key & 7 {
            0 => WireValue::Number(varint(&mut bytes)?),
            1 => WireValue::Bytes(take(&mut bytes, 8)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                WireValue::Bytes(take(&mut bytes, length)?)
            }
            5 => WireValue::Bytes(take(&mut bytes, 4)?),
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
        "google.protobuf.Duration" => return duration(bytes).into(),
        "google.protobuf.UInt32Value" => return number(bytes).into(),
        "google.protobuf.BoolValue" => return (number(bytes) != 0).into(),
        _ => {}
    }
    let mut object = Map::new();
    let none = Fields::new();
    let fields = MESSAGES.get(name).filter(|_| depth < MAX_DEPTH).unwrap_or(&none);
    for (at, raw) in wire_fields(bytes) {
        let Some(field) = fields.get(&at) else {
            put(&mut object, &format!("field {at}"), true, unknown(&raw));
            continue;
        };
        let is_secret = name.ends_with(".TlsCertificate") && field.name == "private_key";
        let shown = if is_secret { "(not shown)".into() } else { decode(&field.field_type, &raw, depth) };
        match (&field.field_type, &shown) {
            (FieldType::Map(_), Value::Object(entry)) => {
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

fn decode(field_type: &FieldType, raw: &WireValue<'_>, depth: usize) -> Value {
    match (field_type, raw) {
        (FieldType::Text, WireValue::Bytes(bytes)) => String::from_utf8_lossy(bytes).into(),
        (FieldType::Bytes, WireValue::Bytes(bytes)) => STANDARD.encode(bytes).into(),
        (FieldType::Bool, WireValue::Number(number)) => (*number != 0).into(),
        (FieldType::Int, WireValue::Number(number)) => (*number).into(),
        (FieldType::Packed, WireValue::Bytes(bytes)) => {
            let mut rest = *bytes;
            std::iter::from_fn(|| varint(&mut rest)).collect()
        }
        (FieldType::Double, WireValue::Bytes(bytes)) => match <[u8; 8]>::try_from(*bytes) {
            Ok(bytes) => f64::from_le_bytes(bytes).into(),
            Err(_) => unknown(raw),
        },
        (FieldType::Enum(names), WireValue::Number(number)) => {
            names.get(number).map_or_else(|| Value::from(*number), |name| Value::from(*name))
        }
        (FieldType::Message(of), WireValue::Bytes(bytes)) => message(of, bytes, depth + 1),
        (FieldType::Map(of), WireValue::Bytes(bytes)) => entry(of, bytes, depth),
        (_, raw) => unknown(raw),
    }
}

fn unknown(raw: &WireValue<'_>) -> Value {
    match raw {
        WireValue::Number(number) => (*number).into(),
        WireValue::Bytes(bytes) => format!("{} bytes", bytes.len()).into(),
    }
}

/// Seconds with the decimal places that are needed.
fn duration(bytes: &[u8]) -> String {
    let part = |wanted: u32| {
        wire_fields(bytes).find_map(|(at, raw)| match raw {
            WireValue::Number(number) if at == wanted => Some(number),
            _ => None,
        })
    };
    let nanos = format!(".{:09}", part(2).unwrap_or(0));
    format!("{}{}s", part(1).unwrap_or(0), nanos.trim_end_matches('0').trim_end_matches('.'))
}

/// A map entry.
fn entry(of: &str, bytes: &[u8], depth: usize) -> Value {
    let (mut key, mut value) = (String::new(), json!({}));
    for (at, raw) in wire_fields(bytes) {
        match (at, raw) {
            (1, WireValue::Bytes(bytes)) => key = String::from_utf8_lossy(bytes).into_owned(),
            (2, WireValue::Bytes(bytes)) => value = message(of, bytes, depth + 1),
            _ => {}
        }
    }
    json!({ key: value })
}

fn any(bytes: &[u8], depth: usize) -> Value {
    let (mut url, mut content) = (String::new(), &[] as &[u8]);
    for (at, raw) in wire_fields(bytes) {
        match (at, raw) {
            (1, WireValue::Bytes(bytes)) => url = String::from_utf8_lossy(bytes).into_owned(),
            (2, WireValue::Bytes(bytes)) => content = bytes,
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

/// The value of a wrapper message.
fn number(bytes: &[u8]) -> u64 {
    wire_fields(bytes)
        .find_map(
            |(at, raw)| if let (1, WireValue::Number(number)) = (at, raw) { Some(number) } else { None },
        )
        .unwrap_or(0)
}

/// Paths of fields that `config_dump/fields.txt` does not name.
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
            let resource = XdsResource::new("x", bytes.to_vec());
            let shown = value(ResourceType::Cluster, &resource);
            assert!(shown.is_object());
        }
        assert_eq!(
            value(ResourceType::Cluster, &XdsResource::new("x", b"\x0a\x01x".to_vec())),
            json!({"name": "x"})
        );
    }

    #[test]
    fn unnamed_fields_are_shown_by_number() {
        let shown = value(ResourceType::Cluster, &XdsResource::new("x", vec![0xf8, 0x06, 1]));
        assert_eq!(shown, json!({"field 111": [1]}));
        assert_eq!(unnamed(&shown), ["field 111"]);
    }
}

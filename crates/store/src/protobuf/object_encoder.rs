//! Stored JSON -> protobuf, for lists and watches of the kinds that nodes read by the thousand.
//!
//! ```text
//! event:  length + WatchEvent { type, object { "k8s\0" + Unknown { typeMeta, raw } } }
//! list:   "k8s\0" + Unknown { typeMeta, raw = List { metadata, items } }
//! ```
//!
//! The JSON is read once from left to right, and each value is appended by the number of its field; a message gets its
//! length when its end is known. A value of another type than the table has, which validation does not admit, is left out.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use model::protobuf::{FRAME_HEADER, MAGIC};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::field_table::{self, Plain, Shape, Type};
use crate::kinds::ResourceKind;

/// The kinds whose lists and watches are served in protobuf, by their messages in the table.
const ROOTS: [&str; 3] = ["core.v1.Node", "core.v1.Service", "discovery.v1.EndpointSlice"];
const STATUS: &str = "meta.v1.Status";

/// A field of a message, found by its name in JSON.
struct NumberedField {
    name: &'static str,
    number: u64,
    shape: Shape,
    of: FieldType,
}

#[derive(Clone, Copy)]
enum FieldType {
    Plain(Plain),
    /// The index of a message.
    Message(usize),
}

/// The messages that can be encoded; fields are sorted by name.
struct MessageTable {
    index_by_name: BTreeMap<&'static str, usize>,
    messages: Vec<Vec<NumberedField>>,
}

impl MessageTable {
    fn shared() -> &'static Self {
        static TABLE: OnceLock<MessageTable> = OnceLock::new();
        TABLE.get_or_init(|| {
            let mut table = Self { index_by_name: BTreeMap::new(), messages: Vec::new() };
            for name in ROOTS.into_iter().chain([STATUS]) {
                table.add(name);
            }
            table
        })
    }

    /// The index of a message, which is added with all that it contains.
    fn add(&mut self, name: &str) -> Option<usize> {
        let (name, rows) = field_table::messages().get_key_value(name)?;
        if let Some(index) = self.index_by_name.get(name) {
            return Some(*index);
        }
        let index = self.messages.len();
        self.index_by_name.insert(name, index);
        self.messages.push(Vec::new());
        let mut fields = Vec::with_capacity(rows.len());
        for (number, row) in rows {
            let of = match &row.of {
                Type::Plain(plain) => FieldType::Plain(*plain),
                Type::Message(inner) => match self.add(inner) {
                    Some(inner) => FieldType::Message(inner),
                    None => continue,
                },
            };
            fields.push(NumberedField { name: &row.name, number: *number, shape: row.shape, of });
        }
        fields.sort_by_key(|field| field.name);
        self.messages[index] = fields;
        Some(index)
    }

    fn field(&self, message: usize, name: &str) -> Option<&NumberedField> {
        let fields = self.messages.get(message)?;
        fields.binary_search_by(|field| field.name.cmp(name)).ok().and_then(|at| fields.get(at))
    }
}

/// Whether lists and watches of a kind are served in protobuf.
pub(crate) fn is_encodable(kind: &ResourceKind) -> bool {
    ROOTS.iter().any(|root| {
        let mut parts = root.split('.');
        let (group, version, name) = (parts.next(), parts.next(), parts.next());
        let own_group = if kind.group.is_empty() { "core" } else { kind.group };
        own_group.split('.').next() == group && Some(kind.version) == version && Some(kind.kind) == name
    })
}

/// Encodes objects of one kind.
#[derive(Clone, Debug)]
pub(crate) struct ObjectEncoder {
    message: usize,
    api_version: String,
    kind: &'static str,
    drops_managed_fields: bool,
}

impl ObjectEncoder {
    /// `None` for kinds that are served as JSON alone.
    pub(crate) fn of(kind: &ResourceKind, drops_managed_fields: bool) -> Option<Self> {
        if !is_encodable(kind) {
            return None;
        }
        let group = if kind.group.is_empty() { "core" } else { kind.group };
        let name = format!("{}.{}.{}", group.split('.').next().unwrap_or_default(), kind.version, kind.kind);
        let message = *MessageTable::shared().index_by_name.get(name.as_str())?;
        Some(Self { message, api_version: kind.api_version(), kind: kind.kind, drops_managed_fields })
    }

    /// Appends an event of an object.
    pub(crate) fn put_event(
        &self,
        out: &mut Vec<u8>,
        word: &str,
        json: &[u8],
    ) -> Result<(), serde_json::Error> {
        put_frame(out, word, &self.api_version, self.kind, |out| self.put_object(out, json))
    }

    /// The message of an object.
    fn put_object(&self, out: &mut Vec<u8>, json: &[u8]) -> Result<(), serde_json::Error> {
        put_message(out, self.message, json, self.drops_managed_fields)
    }

    /// A list: its metadata, as in JSON, and its stored objects.
    pub(crate) fn list(&self, meta: &serde_json::Value, items: &[Bytes]) -> Result<Bytes, serde_json::Error> {
        let size: usize = items.iter().map(Bytes::len).sum();
        let mut out = Vec::with_capacity(size / 2 + 256);
        put_envelope(&mut out, &self.api_version, &format!("{}List", self.kind), |out| {
            put_delimited(out, 1, |out| {
                put_text(out, 2, meta["resourceVersion"].as_str().unwrap_or_default());
                if let Some(token) = meta["continue"].as_str() {
                    put_text(out, 3, token);
                }
                if let Some(remaining) = meta["remainingItemCount"].as_i64() {
                    put_integer(out, 4, remaining);
                }
                Ok(())
            })?;
            items.iter().try_for_each(|item| put_delimited(out, 2, |out| self.put_object(out, item)))
        })?;
        Ok(out.into())
    }
}

/// An event with a Status, from its JSON.
pub(crate) fn status_event(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let message = MessageTable::shared().index_by_name.get(STATUS).copied().unwrap_or_default();
    // Of JSON that was made just now.
    let _ = put_frame(&mut out, "ERROR", "v1", "Status", |out| put_message(out, message, json, false));
    out
}

type PutResult = Result<(), serde_json::Error>;

fn put_frame(
    out: &mut Vec<u8>,
    word: &str,
    api_version: &str,
    kind: &str,
    put: impl FnOnce(&mut Vec<u8>) -> PutResult,
) -> PutResult {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEADER]);
    put_text(out, 1, word);
    let written =
        put_delimited(out, 2, |out| put_delimited(out, 1, |out| put_envelope(out, api_version, kind, put)));
    // An object has at most some megabytes.
    let length = u32::try_from(out.len() - start - FRAME_HEADER).unwrap_or(u32::MAX);
    match (&written, out.get_mut(start..start + FRAME_HEADER)) {
        (Ok(()), Some(header)) => header.copy_from_slice(&length.to_be_bytes()),
        _ => out.truncate(start),
    }
    written
}

fn put_envelope(
    out: &mut Vec<u8>,
    api_version: &str,
    kind: &str,
    put: impl FnOnce(&mut Vec<u8>) -> PutResult,
) -> PutResult {
    out.extend_from_slice(MAGIC);
    put_delimited(out, 1, |out| {
        put_text(out, 1, api_version);
        put_text(out, 2, kind);
        Ok(())
    })?;
    put_delimited(out, 2, put)
}

fn put_message(out: &mut Vec<u8>, message: usize, json: &[u8], drops_managed_fields: bool) -> PutResult {
    let mut json = serde_json::Deserializer::from_slice(json);
    MessageSeed { table: MessageTable::shared(), message, drops_managed_fields, out }.deserialize(&mut json)
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_tag(out: &mut Vec<u8>, number: u64, wire_type: u64) {
    put_varint(out, number << 3 | wire_type);
}

fn put_bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    put_tag(out, number, 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_text(out: &mut Vec<u8>, number: u64, text: &str) {
    put_bytes(out, number, text.as_bytes());
}

fn put_integer(out: &mut Vec<u8>, number: u64, value: i64) {
    put_tag(out, number, 0);
    put_varint(out, value.cast_unsigned());
}

/// A field whose length is known when it was written. Most are short: one byte is reserved, and more are made room for.
fn put_delimited<E>(
    out: &mut Vec<u8>,
    number: u64,
    put: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    put_tag(out, number, 2);
    let at = out.len();
    out.push(0);
    put(out)?;
    let (start, end) = (at + 1, out.len());
    if end - start < 0x80 {
        out[at] = (end - start) as u8;
        return Ok(());
    }
    let mut length = Vec::with_capacity(10);
    put_varint(&mut length, (end - start) as u64);
    let more = length.len() - 1;
    out.resize(end + more, 0);
    out.copy_within(start..end, start + more);
    out[at..start + more].copy_from_slice(&length);
    Ok(())
}

/// The members of a JSON object as the fields of a message.
struct MessageSeed<'a> {
    table: &'static MessageTable,
    message: usize,
    drops_managed_fields: bool,
    out: &'a mut Vec<u8>,
}

impl<'de> DeserializeSeed<'de> for MessageSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MessageSeed<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let Self { table, message, drops_managed_fields, out } = self;
        while let Some(field) = members.next_key_seed(FieldSeed { table, message })? {
            match field {
                Some(field) if drops_managed_fields && field.name == "managedFields" => {
                    members.next_value::<IgnoredAny>()?;
                }
                Some(NumberedField { number, of: FieldType::Plain(Plain::Raw), .. }) => {
                    let json = members.next_value::<&RawValue>()?.get();
                    put_delimited(out, *number, |out| {
                        put_text(out, 1, json);
                        Ok(())
                    })?;
                }
                Some(field) => {
                    let shape = field.shape;
                    let out = &mut *out;
                    members.next_value_seed(ValueSeed { table, field, shape, drops_managed_fields, out })?;
                }
                None => drop(members.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// The field of a member, by its name.
struct FieldSeed {
    table: &'static MessageTable,
    message: usize,
}

impl<'de> DeserializeSeed<'de> for FieldSeed {
    type Value = Option<&'static NumberedField>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for FieldSeed {
    type Value = Option<&'static NumberedField>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a field")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.table.field(self.message, name))
    }
}

/// A value of a field; of a list or map also one element.
struct ValueSeed<'a> {
    table: &'static MessageTable,
    field: &'static NumberedField,
    shape: Shape,
    drops_managed_fields: bool,
    out: &'a mut Vec<u8>,
}

impl ValueSeed<'_> {
    fn plain(&self) -> Option<Plain> {
        match self.field.of {
            FieldType::Plain(plain) if self.shape == Shape::One => Some(plain),
            _ => None,
        }
    }

    fn integer(&mut self, value: i64) {
        let number = self.field.number;
        match self.plain() {
            Some(Plain::Integer) => put_integer(self.out, number, value),
            Some(Plain::Double) => put_double(self.out, number, value as f64),
            Some(Plain::Quantity) => put_wrapped(self.out, number, value.to_string().as_bytes()),
            Some(Plain::IntOrString) => {
                let _ = put_delimited(self.out, number, |out| {
                    put_integer(out, 1, 0);
                    put_integer(out, 2, value);
                    Ok::<(), ()>(())
                });
            }
            _ => {}
        }
    }

    fn text(&mut self, text: &str) {
        let (out, number) = (&mut *self.out, self.field.number);
        match self.field.of {
            FieldType::Plain(_) if self.shape != Shape::One => {}
            FieldType::Plain(Plain::Text) => put_text(out, number, text),
            FieldType::Plain(Plain::Quantity) => put_wrapped(out, number, text.as_bytes()),
            FieldType::Plain(Plain::Bytes) => {
                if let Ok(bytes) = STANDARD.decode(text) {
                    put_bytes(out, number, &bytes);
                }
            }
            FieldType::Plain(Plain::IntOrString) => {
                let _ = put_delimited(out, number, |out| {
                    put_integer(out, 1, 1);
                    put_text(out, 3, text);
                    Ok::<(), ()>(())
                });
            }
            FieldType::Plain(Plain::Time | Plain::MicroTime) => {
                if let Ok(time) = text.parse::<jiff::Timestamp>() {
                    let _ = put_delimited(out, number, |out| {
                        put_integer(out, 1, time.as_second());
                        put_integer(out, 2, time.subsec_nanosecond().into());
                        Ok::<(), ()>(())
                    });
                }
            }
            _ => {}
        }
    }
}

/// A message around bytes.
fn put_wrapped(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    let _ = put_delimited(out, number, |out| {
        put_bytes(out, 1, bytes);
        Ok::<(), ()>(())
    });
}

fn put_double(out: &mut Vec<u8>, number: u64, value: f64) {
    put_tag(out, number, 1);
    out.extend_from_slice(&value.to_le_bytes());
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        if self.plain() == Some(Plain::Bool) {
            put_integer(self.out, self.field.number, value.into());
        }
        Ok(())
    }

    fn visit_i64<E>(mut self, value: i64) -> Result<(), E> {
        self.integer(value);
        Ok(())
    }

    fn visit_u64<E>(mut self, value: u64) -> Result<(), E> {
        if let Ok(value) = i64::try_from(value) {
            self.integer(value);
        }
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        match self.plain() {
            Some(Plain::Double) => put_double(self.out, self.field.number, value),
            Some(Plain::Quantity) => {
                put_wrapped(self.out, self.field.number, value.to_string().as_bytes());
            }
            _ => {}
        }
        Ok(())
    }

    fn visit_str<E>(mut self, text: &str) -> Result<(), E> {
        self.text(text);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        if self.shape != Shape::List {
            while elements.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(());
        }
        let Self { table, field, drops_managed_fields, out, .. } = self;
        loop {
            let out = &mut *out;
            let element = ValueSeed { table, field, shape: Shape::One, drops_managed_fields, out };
            if elements.next_element_seed(element)?.is_none() {
                return Ok(());
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let Self { table, field, shape, drops_managed_fields, out } = self;
        match (shape, field.of) {
            (Shape::Map, _) => {
                while let Some(key) = members.next_key::<String>()? {
                    put_delimited(out, field.number, |out| {
                        put_text(out, 1, &key);
                        let field = map_value(field.of);
                        let shape = Shape::One;
                        members.next_value_seed(ValueSeed { table, field, shape, drops_managed_fields, out })
                    })?;
                }
                Ok(())
            }
            (Shape::One, FieldType::Message(message)) => put_delimited(out, field.number, |out| {
                MessageSeed { table, message, drops_managed_fields, out }.visit_map(members)
            }),
            _ => {
                while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(())
            }
        }
    }
}

/// The value of an entry of a map, which is field 2 of its message.
fn map_value(of: FieldType) -> &'static NumberedField {
    const TEXT: NumberedField =
        NumberedField { name: "", number: 2, shape: Shape::One, of: FieldType::Plain(Plain::Text) };
    const QUANTITY: NumberedField =
        NumberedField { name: "", number: 2, shape: Shape::One, of: FieldType::Plain(Plain::Quantity) };
    match of {
        FieldType::Plain(Plain::Quantity) => &QUANTITY,
        // No other map is in these kinds: a test checks it.
        _ => &TEXT,
    }
}

#[cfg(test)]
mod tests;

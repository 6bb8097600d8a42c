//! Decodes protobuf bodies, which kubectl and client-go send for typed objects, into JSON.
//!
//! ```text
//! "k8s\0" + Unknown { typeMeta { apiVersion, kind }, raw } -> message of that kind, by the numbers in `table`
//! ```
//!
//! Responses are JSON, which every client that sends protobuf accepts; lists and watches of some kinds are encoded by
//! [`object_encoder`] for clients that prefer protobuf.

mod field_table;
pub(crate) mod object_encoder;

use std::cell::Cell;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::kinds::{self, BINDING, ResourceKind, TOKEN_REQUEST};
use crate::object_size::MAX_OBJECT;
use field_table::{Field, Plain, Shape, Type};
use model::protobuf::wire::{FieldValue, WireError, WireFields};
use model::protobuf::{Envelope, envelope};

/// Maximum nesting of messages; the deepest kind has nine.
const MAX_DEPTH: usize = 32;

/// Why a body cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProtobufError {
    Malformed(String),
    /// The object would have more bytes as JSON than an object may have.
    TooLarge,
}

impl From<String> for ProtobufError {
    fn from(error: String) -> Self {
        Self::Malformed(error)
    }
}

/// Bounds of a body: an empty message takes two bytes on the wire, and far more in memory.
#[derive(Clone, Copy)]
struct Bounds<'a> {
    /// Nesting of messages that is left.
    depth: usize,
    /// Bytes of JSON that are left.
    left: &'a Cell<usize>,
}

const TOO_LARGE: WireError = WireError("the object is too large");

impl Bounds<'_> {
    fn take(&self, bytes: usize) -> Result<(), WireError> {
        self.left.set(self.left.get().checked_sub(bytes).ok_or(TOO_LARGE)?);
        Ok(())
    }
}

pub(crate) fn object(content: &[u8]) -> Result<Value, ProtobufError> {
    let Envelope { api_version, kind, raw } = envelope(content).map_err(describe)?;
    let name = message_of(api_version, kind)
        .ok_or_else(|| format!("no kind {kind:?} is registered for version {api_version:?}"))?;
    let mut object = Map::new();
    object.insert("kind".to_owned(), kind.into());
    object.insert("apiVersion".to_owned(), api_version.into());
    let left = Cell::new(MAX_OBJECT);
    message(&name, raw, &mut object, Bounds { depth: MAX_DEPTH, left: &left }).map_err(describe)?;
    Ok(Value::Object(object))
}

fn describe(error: WireError) -> ProtobufError {
    match error {
        TOO_LARGE => ProtobufError::TooLarge,
        error => ProtobufError::Malformed(format!("malformed protobuf: {error}")),
    }
}

/// The table's name of a kind's message, as `core.v1.Service`.
fn message_of(api_version: &str, kind: &str) -> Option<String> {
    if kind == "DeleteOptions" {
        // The same in every group.
        return Some("meta.v1.DeleteOptions".to_owned());
    }
    let is_body = |row: &ResourceKind| row.kind == kind && row.has_version(api_version);
    let served = kinds::of(api_version, kind).is_some() || is_body(&TOKEN_REQUEST) || is_body(&BINDING);
    let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
    let name = format!("{}.{version}.{kind}", group.split('.').next().unwrap_or_default());
    (served && field_table::message(&name).is_some()).then_some(name)
}

fn message(
    name: &str,
    bytes: &[u8],
    object: &mut Map<String, Value>,
    bounds: Bounds<'_>,
) -> Result<(), WireError> {
    let rows = field_table::message(name).ok_or(WireError("a message that is not in the table"))?;
    let depth = bounds.depth.checked_sub(1).ok_or(WireError("messages are nested too deeply"))?;
    let bounds = Bounds { depth, ..bounds };
    for item in WireFields::of(bytes) {
        let (number, raw) = item?;
        // Unknown fields of newer clients are dropped, as in kube-apiserver.
        let Some(field) = rows.get(&number) else { continue };
        if field.is_inline() {
            if let Type::Message(inner) = &field.of {
                message(inner, raw.bytes()?, object, bounds)?;
            }
            continue;
        }
        put(object, field, raw, bounds)?;
    }
    Ok(())
}

fn put(
    object: &mut Map<String, Value>,
    field: &Field,
    raw: FieldValue<'_>,
    bounds: Bounds<'_>,
) -> Result<(), WireError> {
    // At least brackets or a digit, and a comma.
    bounds.take(if field.shape == Shape::List { 2 } else { field.name.len() })?;
    match field.shape {
        Shape::One => {
            let value = value(&field.of, raw, bounds)?;
            if field.kept || !is_zero(&value) {
                object.insert(field.name.clone(), value);
            } else {
                // The last of several counts.
                object.shift_remove(&field.name);
            }
        }
        Shape::List => {
            let list = object.entry(field.name.clone()).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(list) = list {
                list.push(value(&field.of, raw, bounds)?);
            }
        }
        Shape::Map => {
            let (key, value) = entry(&field.of, raw.bytes()?, bounds)?;
            let map = object.entry(field.name.clone()).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(map) = map {
                map.insert(key, value);
            }
        }
    }
    Ok(())
}

/// Values that Go leaves out of JSON. Empty messages are kept: `emptyDir: {}` has a meaning.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(_) | Value::Object(_) => false,
    }
}

/// One entry of a map: a message of key (1) and value (2).
fn entry(of: &Type, bytes: &[u8], bounds: Bounds<'_>) -> Result<(String, Value), WireError> {
    let (mut key, mut found) = (String::new(), None);
    for field in WireFields::of(bytes) {
        match field? {
            (1, raw) => key = raw.text()?.to_owned(),
            (2, raw) => found = Some(value(of, raw, bounds)?),
            _ => {}
        }
    }
    // An empty value may be missing on the wire.
    let found = found.map_or_else(|| value(of, FieldValue::Bytes(&[]), bounds), Ok)?;
    Ok((key, found))
}

fn value(of: &Type, raw: FieldValue<'_>, bounds: Bounds<'_>) -> Result<Value, WireError> {
    match of {
        Type::Message(name) => {
            let mut object = Map::new();
            message(name, raw.bytes()?, &mut object, bounds)?;
            Ok(Value::Object(object))
        }
        Type::Plain(plain) => self::plain(*plain, raw),
    }
}

fn plain(of: Plain, raw: FieldValue<'_>) -> Result<Value, WireError> {
    Ok(match of {
        Plain::Text => raw.text()?.into(),
        Plain::Bool => (raw.number()? != 0).into(),
        Plain::Integer => raw.number()?.into(),
        Plain::Double => raw.double()?.into(),
        Plain::Bytes => STANDARD.encode(raw.bytes()?).into(),
        Plain::Quantity => wrapped(raw.bytes()?)?.text()?.into(),
        Plain::IntOrString => int_or_string(raw.bytes()?)?,
        Plain::Time => time(raw.bytes()?, false)?,
        Plain::MicroTime => time(raw.bytes()?, true)?,
        Plain::Raw => match wrapped(raw.bytes()?)?.bytes()? {
            [] => Value::Null,
            json => serde_json::from_slice(json).map_err(|_| WireError("embedded content is not JSON"))?,
        },
    })
}

/// The field of a message that wraps a plain value; empty if missing.
fn wrapped(bytes: &[u8]) -> Result<FieldValue<'_>, WireError> {
    let mut found = FieldValue::Bytes(&[]);
    for field in WireFields::of(bytes) {
        if let (1, raw) = field? {
            found = raw;
        }
    }
    Ok(found)
}

fn int_or_string(bytes: &[u8]) -> Result<Value, WireError> {
    let (mut is_text, mut number, mut text) = (false, 0, "");
    for field in WireFields::of(bytes) {
        match field? {
            (1, raw) => is_text = raw.number()? == 1,
            (2, raw) => number = raw.number()?,
            (3, raw) => text = raw.text()?,
            _ => {}
        }
    }
    Ok(if is_text { text.into() } else { number.into() })
}

/// Seconds (1) and nanoseconds (2) since 1970. An empty message is null.
fn time(bytes: &[u8], micro: bool) -> Result<Value, WireError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0, 0);
    for field in WireFields::of(bytes) {
        match field? {
            (1, raw) => seconds = raw.number()?,
            (2, raw) => nanos = raw.number()?,
            _ => {}
        }
    }
    let nanos = i32::try_from(nanos).map_err(|_| WireError("a time out of range"))?;
    let time = jiff::Timestamp::new(seconds, if micro { nanos } else { 0 });
    let time = time.map_err(|_| WireError("a time out of range"))?;
    Ok(if micro { format!("{time:.6}").into() } else { time.to_string().into() })
}

#[cfg(test)]
mod tests;

//! The protobuf messages of OTLP (opentelemetry.proto.trace.v1), written field by field: five small messages, of which a
//! span is most of the bytes. Generated types would allocate for each key of an attribute.

use std::borrow::Cow;

use super::trace_context::TraceContext;

/// Bytes of an attribute's value; the rest is cut off.
const MAX_VALUE_BYTES: usize = 1_024;

/// A span that is being written.
#[derive(Debug)]
pub(crate) struct EncodedSpan {
    out: Vec<u8>,
    has_failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanKind {
    Server = 2,
    Client = 3,
}

/// Flags of a span about its parent: whether it is known to be remote, and whether it is.
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

impl EncodedSpan {
    /// `parent` is a span of another process for a server span.
    pub(crate) fn new(
        kind: SpanKind,
        context: TraceContext,
        parent: Option<u64>,
        trace_state: Option<&[u8]>,
        start: u64,
    ) -> Self {
        let mut out = Vec::with_capacity(1_024);
        bytes(&mut out, 1, &context.trace_id.to_be_bytes());
        bytes(&mut out, 2, &context.span_id.to_be_bytes());
        if let Some(trace_state) = trace_state {
            bytes(&mut out, 3, trace_state);
        }
        if let Some(parent) = parent {
            bytes(&mut out, 4, &parent.to_be_bytes());
        }
        number(&mut out, 6, kind as u64);
        fixed64(&mut out, 7, start);
        let is_remote = if kind == SpanKind::Server && parent.is_some() { IS_REMOTE } else { 0 };
        key(&mut out, 16, 5);
        out.extend((u32::from(context.flags()) | HAS_IS_REMOTE | is_remote).to_le_bytes());
        Self { out, has_failed: false }
    }

    pub(crate) fn text(&mut self, name: &str, value: &str) {
        attribute(&mut self.out, 9, name, cut(value));
    }

    /// Bytes that are not UTF-8 become replacement characters.
    pub(crate) fn lossy(&mut self, name: &str, value: &[u8]) {
        let value = String::from_utf8_lossy(&value[..value.len().min(MAX_VALUE_BYTES)]);
        self.text(name, &value);
    }

    pub(crate) fn number(&mut self, name: &str, value: u64) {
        let mut any_value = Vec::with_capacity(11);
        number(&mut any_value, 3, value);
        key_value(&mut self.out, 9, name, &any_value);
    }

    /// Span status Error, for the first of several reasons.
    pub(crate) fn failed(&mut self, error_type: &str) {
        if std::mem::replace(&mut self.has_failed, true) {
            return;
        }
        self.text("error.type", error_type);
        bytes(&mut self.out, 15, &[3 << 3, 2]);
    }

    pub(crate) fn end(mut self, name: &str, end: u64) -> Vec<u8> {
        bytes(&mut self.out, 5, cut(name).as_bytes());
        fixed64(&mut self.out, 8, end);
        self.out
    }
}

/// Cuts at the end of a character.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_VALUE_BYTES)]
}

/// An encoded Resource.
pub(crate) fn resource(attributes: &[(String, String)]) -> Vec<u8> {
    let mut out = Vec::new();
    attributes.iter().for_each(|(name, value)| attribute(&mut out, 1, name, cut(value)));
    out
}

/// The request of an export: spans of one resource and one scope.
pub(crate) fn export_request(resource: &[u8], spans: &[Vec<u8>]) -> Vec<u8> {
    let mut scope = Vec::new();
    bytes(&mut scope, 1, b"zoneward");
    bytes(&mut scope, 2, env!("CARGO_PKG_VERSION").as_bytes());
    let size = spans.iter().map(|span| span.len() + 4).sum::<usize>();
    let mut scope_spans = Vec::with_capacity(size + 64);
    bytes(&mut scope_spans, 1, &scope);
    spans.iter().for_each(|span| bytes(&mut scope_spans, 2, span));
    let mut resource_spans = Vec::with_capacity(scope_spans.len() + resource.len() + 16);
    bytes(&mut resource_spans, 1, resource);
    bytes(&mut resource_spans, 2, &scope_spans);
    let mut out = Vec::with_capacity(resource_spans.len() + 8);
    bytes(&mut out, 1, &resource_spans);
    out
}

/// Spans that the collector rejected, and why, by its response to an export. Malformed responses reject none.
pub(crate) fn rejected_spans(response: &[u8]) -> (u64, Cow<'_, str>) {
    let partial_success = fields(response).find(|(field, _)| *field == 1);
    let Some((_, FieldValue::Bytes(partial_success))) = partial_success else { return (0, Cow::default()) };
    fields(partial_success).fold((0, Cow::default()), |(count, message), field| match field {
        (1, FieldValue::Number(rejected)) => (rejected, message),
        (2, FieldValue::Bytes(text)) => (count, String::from_utf8_lossy(text)),
        _ => (count, message),
    })
}

enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, up to the first that is malformed or of another wire type.
fn fields(mut message: &[u8]) -> impl Iterator<Item = (u64, FieldValue<'_>)> {
    std::iter::from_fn(move || {
        let tag = read_varint(&mut message)?;
        let value = match tag & 7 {
            0 => FieldValue::Number(read_varint(&mut message)?),
            2 => {
                let length = usize::try_from(read_varint(&mut message)?).ok()?;
                let (value, rest) = message.split_at_checked(length)?;
                message = rest;
                FieldValue::Bytes(value)
            }
            _ => return None,
        };
        Some((tag >> 3, value))
    })
}

fn read_varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn attribute(out: &mut Vec<u8>, field: u32, name: &str, value: &str) {
    let mut any_value = Vec::with_capacity(value.len() + 4);
    bytes(&mut any_value, 1, value.as_bytes());
    key_value(out, field, name, &any_value);
}

fn key_value(out: &mut Vec<u8>, field: u32, name: &str, any_value: &[u8]) {
    let length = 2 + varint_size(name.len()) + name.len() + varint_size(any_value.len()) + any_value.len();
    key(out, field, 2);
    varint(out, length as u64);
    bytes(out, 1, name.as_bytes());
    bytes(out, 2, any_value);
}

fn key(out: &mut Vec<u8>, field: u32, wire_type: u32) {
    varint(out, u64::from(field << 3 | wire_type));
}

fn number(out: &mut Vec<u8>, field: u32, value: u64) {
    key(out, field, 0);
    varint(out, value);
}

fn fixed64(out: &mut Vec<u8>, field: u32, value: u64) {
    key(out, field, 1);
    out.extend(value.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    key(out, field, 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn varint_size(value: usize) -> usize {
    (value.max(1).ilog2() / 7 + 1) as usize
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_the_bytes() {
        for value in [0, 1, 127, 128, 16_383, 16_384, 1 << 40] {
            let mut out = Vec::new();
            varint(&mut out, value as u64);
            assert_eq!(out.len(), varint_size(value), "{value}");
            assert_eq!(read_varint(&mut out.as_slice()), Some(value as u64));
        }
    }

    #[test]
    fn values_are_cut_between_characters() {
        assert_eq!(cut(&"é".repeat(600)).len(), MAX_VALUE_BYTES);
        assert_eq!(cut(&format!("a{}", "é".repeat(600))).len(), MAX_VALUE_BYTES - 1);
    }

    #[test]
    fn a_partial_success_is_read_and_malformed_ones_are_ignored() {
        let mut partial_success = Vec::new();
        number(&mut partial_success, 1, 300);
        bytes(&mut partial_success, 2, b"quota");
        let mut response = Vec::new();
        bytes(&mut response, 1, &partial_success);
        assert_eq!(rejected_spans(&response), (300, "quota".into()));
        for end in 0..response.len() {
            assert_eq!(rejected_spans(&response[..end]).0, 0, "{end}");
        }
        for malformed in
            [&[0xff; 40][..], b"{}", &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]]
        {
            assert_eq!(rejected_spans(malformed).0, 0);
        }
    }
}

//! Encodes an OpenAPI v2 document as the protobuf messages of gnostic; only the fields that our document uses.
//!
//! | message | fields |
//! |---|---|
//! | Document | swagger 1, info 2, definitions 9 |
//! | Schema | $ref 1, format 2, description 4, required 19, additionalProperties 21, type 22, items 23, properties 25, extensions 31 |

use serde_json::Value;

pub(super) fn encode(document: &Value) -> Vec<u8> {
    let mut out = Message::default();
    out.text(1, &document["swagger"]);
    let mut info = Message::default();
    info.text(1, &document["info"]["title"]);
    info.text(2, &document["info"]["version"]);
    out.message(2, &info);
    out.message(9, &named_schemas(&document["definitions"]));
    out.0
}

/// A message in progress.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(0x80 | (value & 0x7f) as u8);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// A field of bytes; its wire type is 2.
    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, message: &Message) {
        self.bytes(field, &message.0);
    }

    /// A field of text, if the value is one.
    fn text(&mut self, field: u64, value: &Value) {
        if let Some(text) = value.as_str() {
            self.bytes(field, text.as_bytes());
        }
    }
}

/// Schemas by name: a list (1) of name (1) and schema (2).
fn named_schemas(schemas: &Value) -> Message {
    let mut out = Message::default();
    for (name, value) in schemas.as_object().into_iter().flatten() {
        let mut named = Message::default();
        named.bytes(1, name.as_bytes());
        named.message(2, &schema(value));
        out.message(1, &named);
    }
    out
}

fn schema(value: &Value) -> Message {
    let mut out = Message::default();
    out.text(1, &value["$ref"]);
    out.text(2, &value["format"]);
    out.text(4, &value["description"]);
    for name in value["required"].as_array().into_iter().flatten() {
        out.text(19, name);
    }
    // additionalProperties, type and items each wrap their content in a message of one field.
    let wrapped = |content: &Message| {
        let mut wrapper = Message::default();
        wrapper.message(1, content);
        wrapper
    };
    if let Some(values) = value.get("additionalProperties") {
        out.message(21, &wrapped(&schema(values)));
    }
    if value["type"].is_string() {
        let mut word = Message::default();
        word.text(1, &value["type"]);
        out.message(22, &word);
    }
    if let Some(items) = value.get("items") {
        out.message(23, &wrapped(&schema(items)));
    }
    if let Some(properties) = value.get("properties") {
        out.message(25, &named_schemas(properties));
    }
    for (name, content) in value.as_object().into_iter().flatten().filter(|(name, _)| name.starts_with("x-"))
    {
        // JSON is YAML.
        let mut any = Message::default();
        any.bytes(2, content.to_string().as_bytes());
        let mut named = Message::default();
        named.bytes(1, name.as_bytes());
        named.message(2, &any);
        out.message(31, &named);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_have_their_numbers_and_lengths() {
        let document = json!({"swagger": "2.0", "info": {"title": "T", "version": "1"},
            "definitions": {"A": {"type": "array", "items": {"$ref": "#/definitions/A"}}}});
        let reference = [b"\x0a\x0f".as_slice(), b"#/definitions/A"].concat();
        let items = [b"\xba\x01\x13\x0a\x11".as_slice(), &reference].concat();
        let schema = [b"\xb2\x01\x07\x0a\x05array".as_slice(), &items].concat();
        let named = [b"\x0a\x01A\x12\x20".as_slice(), &schema].concat();
        let definitions = [b"\x4a\x27\x0a\x25".as_slice(), &named].concat();
        let expected = [b"\x0a\x032.0\x12\x06\x0a\x01T\x12\x011".as_slice(), &definitions].concat();
        assert_eq!(encode(&document), expected);
        let mut long = Message::default();
        long.varint(300);
        assert_eq!(long.0, [0xac, 0x02]);
    }
}

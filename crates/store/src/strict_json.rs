//! Decodes JSON and reports duplicate fields, for strict field validation. The last of duplicates counts.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Duplicates that are reported.
const MAX_DUPLICATES: usize = 100;

/// A decoded value.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StrictJson {
    pub value: Value,
    /// A message for each duplicate field: `duplicate field "spec.ports[0].port"`.
    pub duplicates: Vec<String>,
}

impl From<Value> for StrictJson {
    fn from(value: Value) -> Self {
        Self { value, duplicates: Vec::new() }
    }
}

impl StrictJson {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        let mut duplicates = Vec::new();
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let value =
            Node { position: &JsonPosition::Root, duplicates: &mut duplicates }.deserialize(&mut reader)?;
        reader.end()?;
        Ok(Self { value, duplicates })
    }
}

/// The path of a value as a chain up to the root; formatted only for duplicates.
enum JsonPosition<'a> {
    Root,
    Member(&'a JsonPosition<'a>, &'a str),
    Item(&'a JsonPosition<'a>, usize),
}

impl fmt::Display for JsonPosition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Member(Self::Root, name) => f.write_str(name),
            Self::Member(above, name) => write!(f, "{above}.{name}"),
            Self::Item(above, number) => write!(f, "{above}[{number}]"),
        }
    }
}

struct Node<'a> {
    position: &'a JsonPosition<'a>,
    duplicates: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let position = &JsonPosition::Item(self.position, list.len());
            let Some(item) = items.next_element_seed(Node { position, duplicates: self.duplicates })? else {
                return Ok(Value::Array(list));
            };
            list.push(item);
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            if map.is_empty() {
                // A typical size of nested objects, such as endpoints of a slice; empty ones have no memory.
                map = Map::with_capacity(4);
            }
            let position = &JsonPosition::Member(self.position, &name);
            if map.contains_key(&name) && self.duplicates.len() < MAX_DUPLICATES {
                let message = format!("duplicate field {:?}", position.to_string());
                if !self.duplicates.contains(&message) {
                    self.duplicates.push(message);
                }
            }
            let value = members.next_value_seed(Node { position, duplicates: self.duplicates })?;
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_last_of_duplicates_counts_and_each_is_reported() {
        let text = br#"{"a": 1, "spec": {"ports": [{"port": 1, "port": 2, "port": 3}]}, "a": [true, null, -1, 1.5, "x"]}"#;
        let document = StrictJson::decode(text).unwrap();
        assert_eq!(
            document.value,
            json!({"a": [true, null, -1, 1.5, "x"], "spec": {"ports": [{"port": 3}]}})
        );
        assert_eq!(document.duplicates, ["duplicate field \"spec.ports[0].port\"", "duplicate field \"a\""]);
    }

    #[test]
    fn malformed_json_is_refused() {
        for text in ["", "{", "{}x", "[1,", "{\"a\":}", &"[".repeat(100_000)] {
            assert!(StrictJson::decode(text.as_bytes()).is_err());
        }
    }
}

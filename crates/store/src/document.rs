//! JSON read with an eye on members that stand twice: the last one counts, and strict clients want to know.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// How many doubles are told; more would help nobody.
const TOLD: usize = 100;

/// What was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    /// The value.
    pub value: Value,
    /// A sentence for each member that stands twice or more: `duplicate field "spec.ports[0].port"`.
    pub doubles: Vec<String>,
}

impl From<Value> for Document {
    fn from(value: Value) -> Self {
        Self { value, doubles: Vec::new() }
    }
}

impl Document {
    /// Reads JSON.
    pub fn read(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        let mut doubles = Vec::new();
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let value = Node { place: &Place::Root, doubles: &mut doubles }.deserialize(&mut reader)?;
        reader.end()?;
        Ok(Self { value, doubles })
    }
}

/// Where a value stands, as a chain of steps up to the root: written out only for what stands twice, which hardly
/// anything does.
enum Place<'a> {
    Root,
    Member(&'a Place<'a>, &'a str),
    Item(&'a Place<'a>, usize),
}

impl fmt::Display for Place<'_> {
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
    place: &'a Place<'a>,
    doubles: &'a mut Vec<String>,
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
            let place = &Place::Item(self.place, list.len());
            let Some(item) = items.next_element_seed(Node { place, doubles: self.doubles })? else {
                return Ok(Value::Array(list));
            };
            list.push(item);
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        // Many objects inside of objects have about so many members: a slice's endpoint, for one.
        let mut map = Map::with_capacity(4);
        while let Some(name) = members.next_key::<String>()? {
            let place = &Place::Member(self.place, &name);
            if map.contains_key(&name) && self.doubles.len() < TOLD {
                let sentence = format!("duplicate field {:?}", place.to_string());
                if !self.doubles.contains(&sentence) {
                    self.doubles.push(sentence);
                }
            }
            let value = members.next_value_seed(Node { place, doubles: self.doubles })?;
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
    fn the_last_of_two_counts_and_both_are_told() {
        let text = br#"{"a": 1, "spec": {"ports": [{"port": 1, "port": 2, "port": 3}]}, "a": [true, null, -1, 1.5, "x"]}"#;
        let document = Document::read(text).unwrap();
        assert_eq!(
            document.value,
            json!({"a": [true, null, -1, 1.5, "x"], "spec": {"ports": [{"port": 3}]}})
        );
        assert_eq!(document.doubles, ["duplicate field \"spec.ports[0].port\"", "duplicate field \"a\""]);
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for text in ["", "{", "{}x", "[1,", "{\"a\":}", &"[".repeat(100_000)] {
            assert!(Document::read(text.as_bytes()).is_err());
        }
    }
}

//! Partial decoding of stored objects: one member is not decoded, but compared without building it. An update of an
//! EndpointSlice needs no more of the endpoints that it replaces, and decoding them costs as much as decoding the new ones.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// An object but for one member, and that member undecoded.
pub(crate) fn all_but<'j>(
    json: &'j [u8],
    name: &str,
) -> Result<(Value, Option<&'j RawValue>), serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let (members, left_out) = reader.deserialize_map(AllBut(name))?;
    reader.end()?;
    Ok((Value::Object(members), left_out))
}

/// Whether undecoded JSON is this value.
pub(crate) fn is_same(json: &RawValue, value: &Value) -> bool {
    // The first difference is an error, which ends the decoding.
    Same(value).deserialize(&mut serde_json::Deserializer::from_str(json.get())).is_ok()
}

struct AllBut<'a>(&'a str);

impl<'de> Visitor<'de> for AllBut<'_> {
    type Value = (Map<String, Value>, Option<&'de RawValue>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let (mut found, mut left_out) = (Map::new(), None);
        let decoded = |name: &str| (name != self.0).then(|| name.to_owned());
        while let Some(name) = members.next_key_seed(Name(decoded))? {
            match name {
                Some(name) => drop(found.insert(name, members.next_value()?)),
                None => left_out = Some(members.next_value()?),
            }
        }
        Ok((found, left_out))
    }
}

/// Looks up the name of a member without copying it.
struct Name<F>(F);

impl<'de, T, F: FnOnce(&str) -> T> DeserializeSeed<'de> for Name<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<T, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<'de, T, F: FnOnce(&str) -> T> Visitor<'de> for Name<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<T, E> {
        Ok((self.0)(name))
    }
}

/// Compares a value.
struct Same<'a>(&'a Value);

fn differs<E: Error>() -> E {
    E::custom("another value")
}

fn same<E: Error>(holds: bool) -> Result<(), E> {
    if holds { Ok(()) } else { Err(differs()) }
}

impl<'de> DeserializeSeed<'de> for Same<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Same<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the same value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        same(*self.0 == value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        same(*self.0 == value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        same(*self.0 == value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        same(*self.0 == value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        same(self.0.as_str() == Some(value))
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        same(self.0.is_null())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let wanted = self.0.as_array().ok_or_else(differs)?;
        for value in wanted {
            items.next_element_seed(Same(value))?.ok_or_else(differs)?;
        }
        // An additional item is a difference.
        same(items.next_element::<IgnoredAny>()?.is_none())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let wanted = self.0.as_object().ok_or_else(differs)?;
        let mut left = wanted.len();
        while let Some(value) = members.next_key_seed(Name(|name: &str| wanted.get(name)))? {
            members.next_value_seed(Same(value.ok_or_else(differs)?))?;
            left = left.saturating_sub(1);
        }
        same(left == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn one_member_is_not_decoded() {
        let json = br#"{"kind":"X","metadata":{"name":"a\n","labels":{"b":"c"}},"endpoints":[1, {"metadata":2}],"d":4}"#;
        let (found, endpoints) = all_but(json, "endpoints").unwrap();
        assert_eq!(found, json!({"kind": "X", "metadata": {"name": "a\n", "labels": {"b": "c"}}, "d": 4}));
        assert_eq!(endpoints.map(RawValue::get), Some(r#"[1, {"metadata":2}]"#));
        assert!(all_but(json, "missing").unwrap().1.is_none());
        assert!(all_but(b"[1]", "a").is_err() && all_but(b"{", "a").is_err());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-c\"é]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-c]", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn comparing_bytes_equals_comparing_values(stored in any_json(), other in any_json()) {
            let json = RawValue::from_string(stored.to_string()).unwrap();
            prop_assert!(is_same(&json, &stored));
            prop_assert_eq!(is_same(&json, &other), stored == other);
        }
    }
}

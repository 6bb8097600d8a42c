//! Partial decoding of stored objects: some members are decoded, the rest is skipped, or compared without building it.
//! Most updates need no more of the version that they replace, and decoding all of it costs as much as decoding the new
//! version.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The members of an object with these names.
pub fn members(json: &[u8], names: &[&str]) -> Result<Value, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let found = reader.deserialize_map(Chosen(names))?;
    reader.end()?;
    Ok(Value::Object(found))
}

/// Whether an object equals the encoded one, except for metadata and status.
pub fn has_content(json: &[u8], object: &Value) -> bool {
    let Some(members) = object.as_object() else { return false };
    // The first difference is an error, which ends the decoding.
    serde_json::Deserializer::from_slice(json).deserialize_map(Content(members)).is_ok()
}

struct Chosen<'a>(&'a [&'a str]);

impl<'de> Visitor<'de> for Chosen<'_> {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = Map::new();
        while let Some(name) =
            members.next_key_seed(Name(|name: &str| self.0.iter().find(|one| **one == name)))?
        {
            match name {
                Some(name) => drop(found.insert((*name).to_owned(), members.next_value()?)),
                None => drop(members.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
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

/// Compares the members of an object except metadata and status.
struct Content<'a>(&'a Map<String, Value>);

fn is_content(name: &str) -> bool {
    !matches!(name, "metadata" | "status")
}

impl<'de> Visitor<'de> for Content<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the same content")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut left = self.0.keys().filter(|name| is_content(name)).count();
        let wanted = |name: &str| is_content(name).then(|| self.0.get(name));
        while let Some(wanted) = members.next_key_seed(Name(wanted))? {
            match wanted {
                None => drop(members.next_value::<IgnoredAny>()?),
                Some(Some(value)) => {
                    members.next_value_seed(Same(value))?;
                    left = left.saturating_sub(1);
                }
                Some(None) => return Err(differs()),
            }
        }
        if left == 0 { Ok(()) } else { Err(differs()) }
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
    fn only_the_requested_members_are_decoded() {
        let json = br#"{"kind":"X","metadata":{"name":"a\n","labels":{"b":"c"}},"endpoints":[1,{"metadata":2}],"d":4}"#;
        let found = members(json, &["metadata", "d", "missing"]).unwrap();
        assert_eq!(found, json!({"metadata": {"name": "a\n", "labels": {"b": "c"}}, "d": 4}));
        assert!(members(b"[1]", &["a"]).is_err() && members(b"{", &["a"]).is_err());
    }

    #[test]
    fn content_is_all_but_metadata_and_status() {
        let stored =
            json!({"metadata": {"name": "a"}, "spec": {"b": [1, -2, 1.5, true, null, "x\"y"]}, "status": 1});
        let with = |change: &dyn Fn(&mut Value)| {
            let mut object = stored.clone();
            change(&mut object);
            has_content(stored.to_string().as_bytes(), &object)
        };
        assert!(with(&|_| ()));
        assert!(with(&|object| object["metadata"] = json!({})));
        assert!(with(&|object| drop(object.as_object_mut().unwrap().remove("status"))));
        assert!(!with(&|object| object["more"] = json!(null)));
        assert!(!with(&|object| drop(object.as_object_mut().unwrap().remove("spec"))));
        for other in [
            json!([]),
            json!([1, -2, 1.5, true, null]),
            json!([1, -2, 1.5, true, null, "x\"y", 1]),
            json!({}),
        ] {
            assert!(!with(&|object| object["spec"]["b"] = other.clone()), "{other}");
        }
        assert!(!has_content(b"no JSON", &stored) && !has_content(b"{}", &json!([])));
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
            let (stored, other) = (json!({"spec": stored}), json!({"spec": other}));
            let json = stored.to_string();
            prop_assert!(has_content(json.as_bytes(), &stored));
            prop_assert_eq!(has_content(json.as_bytes(), &other), stored == other);
        }
    }
}

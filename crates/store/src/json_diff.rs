//! The changed parts of a JSON value, computed once: several validators then skip the unchanged parts. Lists are compared
//! by index, objects by name.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// How a value differs from the one before; equal values have no diff.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JsonDiff {
    /// All of it: there was no value, one of another type, or another scalar.
    Whole,
    /// An object, with its new and changed members; removed ones are left out.
    Members(BTreeMap<String, JsonDiff>),
    /// A list, with its new and changed items; removed ones are left out.
    Items(BTreeMap<usize, JsonDiff>),
}

impl JsonDiff {
    pub(crate) fn between(old: &Value, new: &Value) -> Option<Self> {
        match (old, new) {
            (Value::Object(old), Value::Object(new)) => Self::of_members(old, new),
            (Value::Array(old), Value::Array(new)) => Self::of_items(old, new),
            _ => (old != new).then_some(Self::Whole),
        }
    }

    /// As [`JsonDiff::between`], if there may be no old value.
    pub(crate) fn since(old: Option<&Value>, new: &Value) -> Option<Self> {
        old.map_or(Some(Self::Whole), |old| Self::between(old, new))
    }

    fn of_members(old: &Map<String, Value>, new: &Map<String, Value>) -> Option<Self> {
        let mut differing = BTreeMap::new();
        let mut in_order = old.iter();
        for (name, value) in new {
            // Writers mostly keep the order of members; the lookup is for the rest.
            let before = match in_order.next() {
                Some((known, before)) if known == name => Some(before),
                _ => old.get(name),
            };
            if let Some(difference) = Self::since(before, value) {
                differing.insert(name.clone(), difference);
            }
        }
        (old.len() != new.len() || !differing.is_empty()).then_some(Self::Members(differing))
    }

    fn of_items(old: &[Value], new: &[Value]) -> Option<Self> {
        let mut differing = BTreeMap::new();
        for (at, value) in new.iter().enumerate() {
            if let Some(difference) = Self::since(old.get(at), value) {
                differing.insert(at, difference);
            }
        }
        (old.len() != new.len() || !differing.is_empty()).then_some(Self::Items(differing))
    }

    pub(crate) fn member(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Whole => Some(self),
            Self::Members(members) => members.get(name),
            Self::Items(_) => None,
        }
    }

    pub(crate) fn item(&self, at: usize) -> Option<&Self> {
        match self {
            Self::Whole => Some(self),
            Self::Items(items) => items.get(&at),
            Self::Members(_) => None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// Small values of every type, with names and texts that meet.
    pub(crate) fn any_json() -> impl Strategy<Value = Value> {
        let plain = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-2i64..3).prop_map(Value::from),
            "[ab]{0,2}".prop_map(Value::from),
        ];
        plain.prop_recursive(4, 48, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec(("[a-d]", inner), 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    /// A value, and one that has much in common with it.
    pub(crate) fn two_alike() -> impl Strategy<Value = (Value, Value)> {
        (any_json(), any_json(), any::<prop::sample::Index>()).prop_map(|(old, part, at)| {
            let mut new = old.clone();
            let mut places = 0;
            count(&new, &mut places);
            let mut left = at.index(places);
            exchange(&mut new, &part, &mut left);
            (old, new)
        })
    }

    fn count(value: &Value, places: &mut usize) {
        *places += 1;
        match value {
            Value::Array(items) => items.iter().for_each(|item| count(item, places)),
            Value::Object(members) => members.values().for_each(|member| count(member, places)),
            _ => {}
        }
    }

    /// Puts `part` into the place with this number.
    fn exchange(value: &mut Value, part: &Value, left: &mut usize) -> bool {
        if *left == 0 {
            *value = part.clone();
            return true;
        }
        *left -= 1;
        match value {
            Value::Array(items) => items.iter_mut().any(|item| exchange(item, part, left)),
            Value::Object(members) => members.values_mut().any(|member| exchange(member, part, left)),
            _ => false,
        }
    }

    /// Every part of `new` is in the difference if and only if it is not equal to what was there before.
    fn agrees(old: Option<&Value>, new: &Value, difference: Option<&JsonDiff>) -> bool {
        if (old == Some(new)) != difference.is_none() {
            return false;
        }
        let Some(difference) = difference else { return true };
        match new {
            Value::Object(members) => members.iter().all(|(name, value)| {
                agrees(old.and_then(|old| old.get(name)), value, difference.member(name))
            }),
            Value::Array(items) => items
                .iter()
                .enumerate()
                .all(|(at, value)| agrees(old.and_then(|old| old.get(at)), value, difference.item(at))),
            _ => true,
        }
    }

    proptest! {
        #[test]
        fn a_part_is_in_the_difference_if_it_is_not_equal((old, new) in two_alike(), other in any_json()) {
            for (old, new) in [(&old, &new), (&new, &old), (&old, &other), (&old, &old)] {
                prop_assert!(agrees(Some(old), new, JsonDiff::between(old, new).as_ref()));
            }
        }
    }

    #[test]
    fn the_order_of_members_does_not_count_and_their_number_does() {
        let old = json!({"a": 1, "b": [1, 2, {"c": 3}], "d": 4});
        assert_eq!(JsonDiff::between(&old, &json!({"d": 4, "b": [1, 2, {"c": 3}], "a": 1})), None);
        let shorter = JsonDiff::between(&old, &json!({"a": 1, "b": [1, 2]}));
        let items = JsonDiff::Items(BTreeMap::new());
        assert_eq!(shorter, Some(JsonDiff::Members([("b".to_owned(), items)].into())));
        let changed = JsonDiff::between(&old, &json!({"a": 1, "b": [1, 2, {"c": 5}], "d": 4})).unwrap();
        assert_eq!(changed.member("a"), None);
        let list = changed.member("b").unwrap();
        assert_eq!((list.item(0), list.item(2).unwrap().member("c")), (None, Some(&JsonDiff::Whole)));
    }
}

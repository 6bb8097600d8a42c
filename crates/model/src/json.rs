//! Fast comparison of JSON values.

use serde_json::{Map, Value};

/// As `==`, but faster for equal values: writers keep the order of members, so most are compared without a look-up.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => same_members(a, b),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        _ => a == b,
    }
}

fn same_members(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    let mut in_order = b.iter();
    a.len() == b.len()
        && a.iter().all(|(name, value)| match in_order.next() {
            Some((known, other)) if known == name => same(value, other),
            _ => b.get(name).is_some_and(|other| same(value, other)),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_the_same_if_they_are_equal() {
        let values = [
            json!(null),
            json!(1),
            json!(1.0),
            json!("1"),
            json!([]),
            json!([1, {"a": 1}]),
            json!([1, {"a": 2}]),
            json!([1]),
            json!({}),
            json!({"a": 1, "b": {"c": [1, 2]}}),
            json!({"b": {"c": [1, 2]}, "a": 1}),
            json!({"a": 1, "b": {"c": [2, 1]}}),
            json!({"a": 1, "d": {"c": [1, 2]}}),
            json!({"a": 1}),
        ];
        for a in &values {
            for b in &values {
                assert_eq!(same(a, b), a == b, "{a} {b}");
            }
        }
    }
}

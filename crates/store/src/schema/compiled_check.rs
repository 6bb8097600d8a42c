//! Compiled schemas for a fast check of the usual case: an object without findings. [`super::check`] looks up ten names
//! in the OpenAPI document for every field; it runs only for objects that do not fit here, or cannot be decided here.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::Value;

use super::{of, resolve};
use crate::kinds::KINDS;

/// A compiled schema. Nested ones are indices, because schemas may be recursive.
struct Shape {
    takes: Takes,
    members: Members,
    items: Option<usize>,
}

enum Takes {
    /// Anything, without a look inside.
    All,
    /// Any type; its content is checked.
    AnyType,
    Text,
    Integer,
    Int32,
    Number,
    Flag,
    List,
    Object,
    IntegerOrText,
    /// Cannot be decided here.
    Unsure,
}

enum Members {
    Any,
    Each(usize),
    /// Sorted by name.
    Named(Vec<(&'static str, usize)>),
}

#[derive(Default)]
struct Shapes {
    shapes: Vec<Shape>,
    /// The index of a schema by its address: schemas are static.
    numbers: BTreeMap<usize, usize>,
}

/// Whether an object certainly has the right types and no unknown fields.
pub(crate) fn fits(object: &Value, schema: &'static Value) -> bool {
    static SHAPES: OnceLock<Shapes> = OnceLock::new();
    let shapes = SHAPES.get_or_init(|| {
        let mut shapes = Shapes::default();
        for schema in KINDS.iter().filter_map(of) {
            shapes.number(schema);
        }
        shapes
    });
    let number = shapes.numbers.get(&address(resolve(schema)));
    number.is_some_and(|number| shapes.fits(*number, object))
}

fn address(schema: &'static Value) -> usize {
    std::ptr::from_ref(schema) as usize
}

impl Shapes {
    fn number(&mut self, schema: &'static Value) -> usize {
        let schema = resolve(schema);
        if let Some(number) = self.numbers.get(&address(schema)) {
            return *number;
        }
        let number = self.shapes.len();
        self.numbers.insert(address(schema), number);
        self.shapes.push(Shape { takes: Takes::Unsure, members: Members::Any, items: None });
        let members = match (&schema["properties"], &schema["additionalProperties"]) {
            (Value::Object(named), _) => {
                let each = named.iter().map(|(name, schema)| (name.as_str(), self.number(schema)));
                let mut named: Vec<(&'static str, usize)> = each.collect();
                named.sort_unstable();
                Members::Named(named)
            }
            (_, each @ Value::Object(_)) => Members::Each(self.number(each)),
            _ => Members::Any,
        };
        let items = schema["items"].is_object().then(|| self.number(&schema["items"]));
        self.shapes[number] = Shape { takes: takes(schema), members, items };
        number
    }

    fn fits(&self, number: usize, value: &Value) -> bool {
        let shape = &self.shapes[number];
        if value.is_null() {
            return true;
        }
        let right = match shape.takes {
            Takes::All => return true,
            Takes::Unsure => return false,
            Takes::AnyType => true,
            Takes::Text => value.is_string(),
            Takes::Integer => value.is_i64(),
            Takes::Int32 => value.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
            Takes::Number => value.is_number(),
            Takes::Flag => value.is_boolean(),
            Takes::List => value.is_array(),
            Takes::Object => value.is_object(),
            Takes::IntegerOrText => value.is_string() || value.is_i64() || value.is_u64(),
        };
        right && self.fits_below(shape, value)
    }

    fn fits_below(&self, shape: &Shape, value: &Value) -> bool {
        match (value, &shape.members, shape.items) {
            (Value::Object(map), Members::Each(number), _) => {
                map.values().all(|value| self.fits(*number, value))
            }
            (Value::Object(map), Members::Named(named), _) => map.iter().all(|(name, value)| {
                let found = named.binary_search_by(|(known, _)| (*known).cmp(name.as_str()));
                found.ok().and_then(|at| named.get(at)).is_some_and(|(_, number)| self.fits(*number, value))
            }),
            (Value::Array(items), _, Some(number)) => items.iter().all(|item| self.fits(number, item)),
            _ => true,
        }
    }
}

fn takes(schema: &'static Value) -> Takes {
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return Takes::All;
    }
    if schema["format"] == "byte" {
        return Takes::Unsure;
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return Takes::IntegerOrText;
    }
    match schema["type"].as_str() {
        Some("string") => Takes::Text,
        Some("integer") if schema["format"] == "int32" => Takes::Int32,
        Some("integer") => Takes::Integer,
        Some("number") => Takes::Number,
        Some("boolean") => Takes::Flag,
        Some("array") => Takes::List,
        Some("object") => Takes::Object,
        _ => Takes::AnyType,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;
    use crate::schema::{Findings, check};
    use proptest::prelude::*;
    use serde_json::json;

    fn slice() -> Value {
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "a", "labels": {"b": "c"}, "generation": 3, "ownerReferences": [{"uid": "u", "name": "n",
                "kind": "Service", "apiVersion": "v1", "controller": true}]},
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}, "hints": {"forZones": [{"name": "z"}]}}],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]})
    }

    fn service() -> Value {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"selector": {"a": "b"},
            "ports": [{"port": 80, "targetPort": "http"}, {"port": 81, "targetPort": 8080}]}, "status": {"loadBalancer": {}}})
    }

    fn verdicts(kind: &str, object: &Value) -> (bool, bool) {
        let schema = of(kinds::named(kind).unwrap()).unwrap();
        let mut checked = object.clone();
        let clean = check(&mut checked, None, schema) == Findings::default();
        assert!(!clean || checked == *object);
        (fits(object, schema), clean)
    }

    #[test]
    fn good_objects_fit_and_what_cannot_be_told_does_not() {
        for (kind, object) in [("EndpointSlice", slice()), ("Service", service())] {
            assert_eq!(verdicts(kind, &object), (true, true));
        }
        let secret = json!({"metadata": {"name": "a"}, "data": {"b": "YQ=="}});
        assert_eq!(verdicts("Secret", &secret), (false, true));
        for kind in kinds::KINDS {
            assert!(fits(&json!({"metadata": {"name": "a"}}), of(kind).unwrap()), "{}", kind.kind);
        }
        assert!(!fits(&slice(), Box::leak(Box::new(json!({})))));
    }

    /// Every place in a value, by its pointer.
    fn places(value: &Value, path: &str, found: &mut Vec<String>) {
        found.push(path.to_owned());
        match value {
            Value::Object(map) => map.iter().for_each(|(name, value)| {
                places(value, &format!("{path}/{}", name.replace('~', "~0").replace('/', "~1")), found);
            }),
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(i, value)| places(value, &format!("{path}/{i}"), found));
            }
            _ => {}
        }
    }

    proptest! {
        #[test]
        fn whatever_is_changed_fits_if_the_check_finds_nothing(
            is_slice: bool, at: prop::sample::Index, with in 0..9usize, adds: bool,
        ) {
            let (kind, mut object) = if is_slice { ("EndpointSlice", slice()) } else { ("Service", service()) };
            let mut all = Vec::new();
            places(&object, "", &mut all);
            let place = object.pointer_mut(&all[at.index(all.len())]).unwrap();
            let values = [json!(null), json!(true), json!(7), json!(-7), json!(5_000_000_000u64), json!(u64::MAX),
                json!(1.5), json!("x"), json!({"unknown": [1]})];
            match (adds, place.as_object_mut()) {
                (true, Some(map)) => drop(map.insert("unknown".to_owned(), values[with].clone())),
                _ => *place = values[with].clone(),
            }
            let (fits, clean) = verdicts(kind, &object);
            prop_assert_eq!(fits, clean, "{}", object);
        }
    }
}

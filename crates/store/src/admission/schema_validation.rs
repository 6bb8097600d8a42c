//! Schema validation of custom resources: required fields, limits, patterns, enums, and CEL rules
//! (`x-kubernetes-validations`). Types and unknown fields were checked when the object was decoded.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use apimachinery::validate::FieldErrorType;
use kube_cel::{CompiledSchema, Validator, compile_schema};
use model::parse::route;
use regex::Regex;
use serde_json::Value;

use crate::json_diff::JsonDiff;
use crate::kinds::ResourceKind;
use crate::schema::resolve;

/// The path of a field, its fault, and the message.
pub(super) type FieldFinding = (String, FieldErrorType, String);

/// Validates an object of a kind with a schema.
///
/// Unchanged parts were validated before and are skipped: one changed rule among a thousand costs one, and a stricter
/// schema refuses only what is changed (ratcheting).
pub(super) fn check(kind: &ResourceKind, old: Option<&Value>, new: &Value) -> Vec<FieldFinding> {
    let Some(schema) = admission_schema(kind) else { return Vec::new() };
    let Some(difference) = JsonDiff::since(old, new) else { return Vec::new() };
    let mut faults = limits(schema, new, &difference);
    if faults.is_empty() {
        // As in Kubernetes: rules may rely on the schema.
        faults = rule_faults(compiled(kind.id, schema), old, new, &difference);
    }
    faults
}

/// The schema that an object has to pass. That of a route has no `spec`: the parser of the daemons validates it.
fn admission_schema(kind: &ResourceKind) -> Option<&'static Value> {
    static WITHOUT_SPEC: Mutex<BTreeMap<u16, &'static Value>> = Mutex::new(BTreeMap::new());
    let schema = kind.schema?();
    if kind.group != route::GROUP || !route::KINDS.contains(&kind.kind) {
        return Some(schema);
    }
    let mut schemas = WITHOUT_SPEC.lock().unwrap_or_else(PoisonError::into_inner);
    Some(schemas.entry(kind.id).or_insert_with(|| {
        let mut schema = schema.clone();
        schema["properties"].as_object_mut().map(|properties| properties.remove("spec"));
        Box::leak(Box::new(schema))
    }))
}

/// The rules of a kind, compiled when they are first used, and kept: there are few kinds.
fn compiled(id: u16, schema: &'static Value) -> &'static CompiledSchema {
    static COMPILED: Mutex<BTreeMap<u16, &'static CompiledSchema>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    compiled.entry(id).or_insert_with(|| Box::leak(Box::new(compile_schema(schema))))
}

fn rule_faults(
    rules: &CompiledSchema,
    old: Option<&Value>,
    new: &Value,
    difference: &JsonDiff,
) -> Vec<FieldFinding> {
    let run = || {
        let mut walk = RuleWalk { validator: Validator::new(), path: String::new(), faults: Vec::new() };
        walk.walk(rules, old, new, difference);
        walk.faults
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        vec![(String::new(), FieldErrorType::Invalid, "a rule of the schema cannot be evaluated".to_owned())]
    })
}

/// Evaluates CEL rules along an object.
struct RuleWalk {
    validator: Validator,
    path: String,
    faults: Vec<FieldFinding>,
}

impl RuleWalk {
    /// Descends to the nodes with rules, and skips unchanged parts.
    fn walk(&mut self, rules: &CompiledSchema, old: Option<&Value>, new: &Value, difference: &JsonDiff) {
        let branches = [&rules.all_of, &rules.one_of, &rules.any_of];
        if !rules.validations.is_empty() || branches.iter().any(|branch| !branch.is_empty()) {
            let errors = self.validator.validate_compiled(rules, new, old).err();
            let errors = errors.into_iter().flat_map(kube_cel::ValidationErrors::into_vec);
            let path = &self.path;
            self.faults.extend(
                errors.map(|error| (within(path, &error.field_path), FieldErrorType::Invalid, error.message)),
            );
            return;
        }
        let length = self.path.len();
        match new {
            Value::Object(members) => {
                let additional = rules.additional_properties.as_deref();
                let additional = additional.filter(|_| !rules.preserve_unknown_fields);
                for (name, value) in members {
                    let Some(difference) = difference.member(name) else { continue };
                    if let Some(rules) = rules.properties.get(name).or(additional) {
                        push_member(&mut self.path, name);
                        self.walk(rules, old.and_then(|old| old.get(name)), value, difference);
                        self.path.truncate(length);
                    }
                }
            }
            Value::Array(items) => {
                let Some(rules) = rules.items.as_deref() else { return };
                for (i, item) in items.iter().enumerate() {
                    let Some(difference) = difference.item(i) else { continue };
                    push_index(&mut self.path, i);
                    self.walk(rules, old.and_then(|old| old.get(i)), item, difference);
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }
}

/// The path of a field below another path.
fn within(path: &str, field: &str) -> String {
    match field {
        "" => path.to_owned(),
        _ if field.starts_with('[') => format!("{path}{field}"),
        _ => below(path, field),
    }
}

/// Validates everything but CEL rules.
fn limits(schema: &'static Value, object: &Value, difference: &JsonDiff) -> Vec<FieldFinding> {
    let mut faults = Vec::new();
    walk(schema, object, difference, &mut String::new(), &mut faults);
    faults
}

/// `path` is one buffer that grows and shrinks on the way.
fn walk(
    schema: &'static Value,
    value: &Value,
    difference: &JsonDiff,
    path: &mut String,
    faults: &mut Vec<FieldFinding>,
) {
    if value.is_null() {
        return;
    }
    let schema = resolve(schema);
    let mut fault = |fault: FieldErrorType, reason: String| faults.push((path.clone(), fault, reason));
    choices(schema, value, &mut fault);
    let length = path.len();
    match value {
        Value::String(text) => lengths(schema, text, &mut fault),
        Value::Number(number) => range(schema, number.as_f64().unwrap_or(f64::NAN), &mut fault),
        Value::Array(items) => {
            count(
                schema,
                ["minItems", "maxItems"],
                items.len(),
                "items",
                FieldErrorType::TooMany,
                &mut fault,
            );
            let schema = &schema["items"];
            for (i, item) in items.iter().enumerate() {
                let Some(difference) = difference.item(i) else { continue };
                push_index(path, i);
                // As a member, null is no value; in a list it would take a place.
                if item.is_null() && schema.is_object() && schema["nullable"] != true {
                    let kind = resolve(schema)["type"].as_str().unwrap_or("object");
                    let reason = format!("Invalid value: \"null\": must be of type {kind}");
                    faults.push((path.clone(), FieldErrorType::Invalid, reason));
                }
                walk(schema, item, difference, path, faults);
                path.truncate(length);
            }
        }
        Value::Object(members) => {
            let names = ["minProperties", "maxProperties"];
            count(schema, names, members.len(), "members", FieldErrorType::TooMany, &mut fault);
            for (name, value) in members {
                let Some(difference) = difference.member(name) else { continue };
                let field = match &schema["properties"][name] {
                    Value::Null => &schema["additionalProperties"],
                    field => field,
                };
                push_member(path, name);
                walk(field, value, difference, path, faults);
                path.truncate(length);
            }
            required(schema, value, path, faults);
        }
        Value::Null | Value::Bool(_) => {}
    }
}

fn push_member(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
}

fn push_index(path: &mut String, at: usize) {
    let _ = write!(path, "[{at}]");
}

fn below(path: &str, name: &str) -> String {
    let mut path = path.to_owned();
    push_member(&mut path, name);
    path
}

fn required(schema: &Value, value: &Value, path: &str, faults: &mut Vec<FieldFinding>) {
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value[name].is_null() {
            faults.push((below(path, name), FieldErrorType::Required, String::new()));
        }
    }
}

fn choices(schema: &Value, value: &Value, fault: &mut impl FnMut(FieldErrorType, String)) {
    let Some(allowed) = schema["enum"].as_array() else { return };
    if !allowed.contains(value) {
        let words: Vec<String> = allowed.iter().map(Value::to_string).collect();
        fault(FieldErrorType::NotSupported, format!("{value}: supported values: {}", words.join(", ")));
    }
}

fn lengths(schema: &'static Value, text: &str, fault: &mut impl FnMut(FieldErrorType, String)) {
    count(
        schema,
        ["minLength", "maxLength"],
        text.chars().count(),
        "letters",
        FieldErrorType::TooLong,
        fault,
    );
    let Some(pattern) = schema["pattern"].as_str() else { return };
    match regex(pattern) {
        Ok(regex) if regex.is_match(text) => {}
        Ok(_) => fault(FieldErrorType::Invalid, format!("Invalid value: {text:?}: should match '{pattern}'")),
        Err(error) => fault(FieldErrorType::Invalid, format!("invalid pattern in the schema: {error}")),
    }
}

/// A compiled pattern, cached: compiling takes as long as reading a hundred rules. Schemas are static, so the few dozen
/// patterns are never dropped.
fn regex(pattern: &'static str) -> &'static Result<Regex, regex::Error> {
    type Compiled = BTreeMap<&'static str, &'static Result<Regex, regex::Error>>;
    static COMPILED: Mutex<Compiled> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    compiled.entry(pattern).or_insert_with(|| Box::leak(Box::new(Regex::new(pattern))))
}

fn range(schema: &Value, number: f64, fault: &mut impl FnMut(FieldErrorType, String)) {
    let strict = |name: &str| schema[name] == true;
    if let Some(least) = schema["minimum"].as_f64() {
        let exclusive = strict("exclusiveMinimum");
        if number < least || exclusive && number <= least {
            let words = if exclusive { "greater than" } else { "greater than or equal to" };
            fault(FieldErrorType::Invalid, format!("Invalid value: {number}: should be {words} {least}"));
        }
    }
    if let Some(most) = schema["maximum"].as_f64() {
        let exclusive = strict("exclusiveMaximum");
        if number > most || exclusive && number >= most {
            let words = if exclusive { "less than" } else { "less than or equal to" };
            fault(FieldErrorType::Invalid, format!("Invalid value: {number}: should be {words} {most}"));
        }
    }
}

fn count(
    schema: &Value,
    [least, most]: [&str; 2],
    found: usize,
    what: &str,
    excess: FieldErrorType,
    fault: &mut impl FnMut(FieldErrorType, String),
) {
    let found = u64::try_from(found).unwrap_or(u64::MAX);
    if let Some(least) = schema[least].as_u64().filter(|least| found < *least) {
        fault(
            FieldErrorType::Invalid,
            format!("Invalid value: should have at least {least} {what}, has {found}"),
        );
    }
    if let Some(most) = schema[most].as_u64().filter(|most| found > *most) {
        fault(excess, format!("may not have more than {most} {what}, has {found}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;
    use crate::json_diff::tests::two_alike;
    use serde_json::json;

    fn schema() -> &'static Value {
        static SCHEMA: OnceLock<Value> = OnceLock::new();
        SCHEMA.get_or_init(|| {
            json!({"type": "object", "properties": {"spec": {
                "type": "object",
                "required": ["to"],
                "x-kubernetes-validations": [
                    {"rule": "!has(self.weight) || self.weight != 13", "message": "thirteen brings bad luck"},
                    {"rule": "!has(oldSelf.to) || self.to == oldSelf.to", "message": "to cannot change"},
                ],
                "properties": {
                    "to": {"type": "array", "minItems": 1, "maxItems": 2, "items": {
                        "type": "string", "pattern": "^[a-z]+$", "maxLength": 3}},
                    "mode": {"type": "string", "enum": ["a", "b"]},
                    "weight": {"type": "integer", "minimum": 0, "maximum": 100, "exclusiveMaximum": true},
                    "tags": {"type": "object", "maxProperties": 1, "additionalProperties": {"minLength": 1}},
                },
            }}})
        })
    }

    fn faults(rules: &CompiledSchema, old: Option<&Value>, new: &Value) -> Vec<FieldFinding> {
        let difference = JsonDiff::since(old, new);
        difference.map_or_else(Vec::new, |difference| rule_faults(rules, old, new, &difference))
    }

    fn fields(spec: Value) -> Vec<String> {
        limits(schema(), &json!({"spec": spec}), &JsonDiff::Whole)
            .into_iter()
            .map(|(field, ..)| field)
            .collect()
    }

    #[test]
    fn limits_are_held_to_with_the_path_of_the_field() {
        assert!(fields(json!({"to": ["a", "b"], "mode": "a", "weight": 0, "tags": {"x": "y"}})).is_empty());
        for (spec, field) in [
            (json!({}), "spec.to"),
            (json!({"to": []}), "spec.to"),
            (json!({"to": ["a", "b", "c"]}), "spec.to"),
            (json!({"to": ["a", "B"]}), "spec.to[1]"),
            (json!({"to": ["aaaa"]}), "spec.to[0]"),
            (json!({"to": ["a", null]}), "spec.to[1]"),
            (json!({"to": ["a"], "mode": "c"}), "spec.mode"),
            (json!({"to": ["a"], "weight": -1}), "spec.weight"),
            (json!({"to": ["a"], "weight": 100}), "spec.weight"),
            (json!({"to": ["a"], "tags": {"x": ""}}), "spec.tags.x"),
            (json!({"to": ["a"], "tags": {"x": "1", "y": "2"}}), "spec.tags"),
        ] {
            assert_eq!(fields(spec.clone()), [field], "{spec}");
        }
    }

    #[test]
    fn rules_in_cel_see_the_object_and_the_one_before() {
        let rules = compile_schema(schema());
        let spec = |to: &str, weight: u8| json!({"spec": {"to": [to], "weight": weight}});
        assert!(faults(&rules, None, &spec("a", 1)).is_empty());
        let unlucky = faults(&rules, None, &spec("a", 13));
        assert_eq!(
            unlucky,
            [("spec".to_owned(), FieldErrorType::Invalid, "thirteen brings bad luck".to_owned())]
        );
        let moved = faults(&rules, Some(&spec("a", 1)), &spec("b", 1));
        assert_eq!(moved, [("spec".to_owned(), FieldErrorType::Invalid, "to cannot change".to_owned())]);
        assert!(faults(&rules, Some(&spec("a", 1)), &spec("a", 2)).is_empty());
    }

    #[test]
    fn what_is_as_it_was_stored_is_not_looked_at_again() {
        let spec = |list: Value, tags: Value| json!({"spec": {"to": list, "tags": tags}});
        let stored = spec(json!(["a", "NO"]), json!({"x": ""}));
        let of = |new: &Value| -> Vec<String> {
            let Some(difference) = JsonDiff::between(&stored, new) else { return Vec::new() };
            limits(schema(), new, &difference).into_iter().map(|(field, ..)| field).collect()
        };
        assert!(of(&stored).is_empty());
        assert!(of(&spec(json!(["b", "NO"]), json!({"x": ""}))).is_empty());
        assert_eq!(of(&spec(json!(["B", "NO"]), json!({"x": ""}))), ["spec.to[0]"]);
        assert_eq!(
            of(&spec(json!(["NO", "a"]), json!({}))),
            ["spec.to[0]"],
            "items are compared by position"
        );
    }

    #[test]
    fn rules_deep_in_a_list_are_told_by_their_whole_path_and_asked_only_of_what_changed() {
        let item = json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.n < 10", "message": "too many"}],
            "properties": {"n": {"type": "integer"}, "below": {"type": "array", "items": {"type": "object",
                "x-kubernetes-validations": [{"rule": "self.m > 0", "message": "too few"}],
                "properties": {"m": {"type": "integer"}}}}}});
        let rules = compile_schema(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"rules": {"type": "array", "items": item}}}}}));
        let object = |list: Value| json!({"spec": {"rules": list}});
        let bad = json!({"n": 10, "below": [{"m": 1}, {"m": 0}]});
        let fields = |old: Option<&Value>, list: Value| -> Vec<String> {
            faults(&rules, old, &object(list)).into_iter().map(|(field, ..)| field).collect()
        };
        let both = ["spec.rules[1]", "spec.rules[1].below[1]"];
        assert_eq!(fields(None, json!([{"n": 1}, bad.clone()])), both);
        let stored = object(json!([{"n": 1}, bad.clone()]));
        assert!(fields(Some(&stored), json!([{"n": 2}, bad.clone()])).is_empty());
        assert_eq!(fields(Some(&stored), json!([{"n": 11}, bad])), ["spec.rules[0]"]);
    }

    /// A schema that goes on below itself, with something to be wrong at every place, and a rule for maps three levels
    /// above the last.
    fn deep(levels: usize) -> Value {
        if levels == 0 {
            return json!({"minimum": -1, "maxLength": 1});
        }
        let below = deep(levels - 1);
        let mut schema = json!({"minimum": -1, "maxLength": 1, "maxItems": 3, "items": below,
            "properties": {"a": below, "b": below, "c": below, "d": below}});
        if levels == 3 {
            let rule = json!({"rule": "!has(self.c) || !has(self.d)", "message": "one of c and d"});
            schema["x-kubernetes-validations"] = json!([rule]);
        }
        schema
    }

    proptest::proptest! {
        #[test]
        fn a_change_of_a_good_object_has_the_faults_of_the_new_one((old, new) in two_alike()) {
            static SCHEMA: OnceLock<Value> = OnceLock::new();
            static RULES: OnceLock<CompiledSchema> = OnceLock::new();
            let schema = SCHEMA.get_or_init(|| deep(5));
            let rules = RULES.get_or_init(|| compile_schema(&json!({"type": "object", "properties": {"spec": schema}})));
            let (old, new) = (json!({"spec": old}), json!({"spec": new}));
            let whole = JsonDiff::Whole;
            let limited = |object: &Value, difference: &JsonDiff| limits(schema, &object["spec"], difference);
            proptest::prop_assume!(limited(&old, &whole).is_empty());
            proptest::prop_assume!(rule_faults(rules, None, &old, &whole).is_empty());
            let Some(difference) = JsonDiff::between(&old, &new) else { return Ok(()) };
            let of_spec = difference.member("spec").unwrap();
            proptest::prop_assert_eq!(limited(&new, of_spec), limited(&new, &whole));
            let (shortened, full) =
                (rule_faults(rules, Some(&old), &new, &difference), rule_faults(rules, Some(&old), &new, &whole));
            proptest::prop_assert_eq!(shortened, full);
        }
    }
}

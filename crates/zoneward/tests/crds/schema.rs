//! What an API server does with a structural schema: types, bounds, unknown fields, value validations, and CEL rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube_cel::KubeCelExt;
use kube_cel::cel::objects::Map;
use kube_cel::cel::{Context, Program, Value as Cel};
use regex::Regex;
use serde_json::Value;

pub struct Schema {
    schema: Value,
    /// Compiled once: the same rules are asked of every object.
    programs: BTreeMap<String, Program>,
}

impl Schema {
    pub fn new(schema: Value) -> Self {
        let mut programs = BTreeMap::new();
        compile(&schema, &mut programs);
        Self { schema, programs }
    }

    /// Everything that stands against an object. Metadata is the API server's own business.
    pub fn problems(&self, object: &Value) -> Vec<String> {
        let mut problems = Vec::new();
        let spec = &self.schema["properties"]["spec"];
        match object.get("spec") {
            Some(value) => self.check(spec, value, "spec", &mut problems),
            None => problems.push("spec: missing".to_owned()),
        }
        problems
    }

    fn check(&self, schema: &Value, value: &Value, path: &str, problems: &mut Vec<String>) {
        if schema["x-kubernetes-int-or-string"] == true {
            if !value.is_i64() && !value.is_string() {
                problems.push(format!("{path}: no whole number and no text"));
            }
            return;
        }
        if value.is_null() && schema["nullable"] == true {
            return;
        }
        let is_open = schema["x-kubernetes-preserve-unknown-fields"] == true;
        let fits = match schema["type"].as_str() {
            None if is_open => true,
            Some("object") => value.is_object(),
            Some("array") => value.is_array(),
            Some("string") => value.is_string(),
            Some("integer") => value.is_i64() || value.is_u64(),
            Some("boolean") => value.is_boolean(),
            other => panic!("{path}: type {other:?}"),
        };
        if !fits {
            problems.push(format!("{path}: {value} is no {}", schema["type"]));
            return;
        }
        bounds(schema, value, path, problems);
        if !meets_choices(schema, value) {
            problems.push(format!("{path}: allOf, anyOf, oneOf or not"));
        }
        self.members(schema, value, path, problems);
        if let Some(items) = value.as_array() {
            for (i, item) in items.iter().enumerate() {
                self.check(&schema["items"], item, &format!("{path}[{i}]"), problems);
            }
            unique(schema, items, path, problems);
        }
        self.rules(schema, value, path, problems);
    }

    fn members(&self, schema: &Value, value: &Value, path: &str, problems: &mut Vec<String>) {
        let Some(map) = value.as_object() else { return };
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if map.get(name).is_none_or(Value::is_null) {
                problems.push(format!("{path}.{name}: missing"));
            }
        }
        for (name, inner) in map {
            let known = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
            match known {
                Some(known) => self.check(known, inner, &format!("{path}.{name}"), problems),
                None if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
                None => problems.push(format!("{path}.{name}: no such field")),
            }
        }
    }

    fn rules(&self, schema: &Value, value: &Value, path: &str, problems: &mut Vec<String>) {
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            let source = rule["rule"].as_str().expect("a rule");
            let program = &self.programs[source];
            let mut context = Context::default().with_all();
            context.add_variable_from_value("self", convert(value));
            match program.execute(&context) {
                Ok(Cel::Bool(true)) => {}
                Ok(Cel::Bool(false)) => problems.push(format!("{path}: {}", rule["message"])),
                // The API server refuses an object on which a rule fails.
                other => problems.push(format!("{path}: {source}: {other:?}")),
            }
        }
    }
}

/// Compiles every rule; one that cannot be compiled would make the definition useless.
fn compile(schema: &Value, programs: &mut BTreeMap<String, Program>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let source = rule["rule"].as_str().expect("a rule");
        let program = Program::compile(source).unwrap_or_else(|e| panic!("{source}: {e}"));
        programs.insert(source.to_owned(), program);
    }
    match schema {
        Value::Object(map) => map.values().for_each(|inner| compile(inner, programs)),
        Value::Array(list) => list.iter().for_each(|inner| compile(inner, programs)),
        _ => {}
    }
}

/// Whether a value meets `allOf`, `anyOf`, `oneOf` and `not`.
fn meets_choices(schema: &Value, value: &Value) -> bool {
    let hits = |name: &str| {
        let choices = schema[name].as_array();
        choices.map(|choices| choices.iter().filter(|choice| meets(choice, value)).count())
    };
    hits("allOf").is_none_or(|hits| Some(hits) == schema["allOf"].as_array().map(Vec::len))
        && hits("anyOf").is_none_or(|hits| hits > 0)
        && hits("oneOf").is_none_or(|hits| hits == 1)
        && (schema["not"].is_null() || !meets(&schema["not"], value))
}

/// Whether a value meets a schema without types.
fn meets(schema: &Value, value: &Value) -> bool {
    let mut problems = Vec::new();
    bounds(schema, value, "", &mut problems);
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut members = schema["properties"].as_object().into_iter().flatten();
    problems.is_empty()
        && required.into_iter().all(|name| value.get(name).is_some())
        && members.all(|(name, inner)| value.get(name).is_none_or(|value| meets(inner, value)))
        && meets_choices(schema, value)
}

fn bounds(schema: &Value, value: &Value, path: &str, problems: &mut Vec<String>) {
    let mut refuse = |what: &str, bad: bool| {
        if bad {
            problems.push(format!("{path}: {what}"));
        }
    };
    let limit = |name: &str| schema[name].as_i64();
    if let Some(words) = schema["enum"].as_array() {
        refuse("not one of the words", !words.contains(value));
    }
    if let Some(number) = value.as_i64() {
        refuse("too small", limit("minimum").is_some_and(|low| number < low));
        refuse("too large", limit("maximum").is_some_and(|high| number > high));
    }
    let size = match value {
        Value::String(text) => Some((text.chars().count() as i64, "minLength", "maxLength")),
        Value::Array(items) => Some((items.len() as i64, "minItems", "maxItems")),
        Value::Object(map) => Some((map.len() as i64, "minProperties", "maxProperties")),
        _ => None,
    };
    if let Some((size, low, high)) = size {
        refuse(low, limit(low).is_some_and(|low| size < low));
        refuse(high, limit(high).is_some_and(|high| size > high));
    }
    if let (Some(pattern), Some(text)) = (schema["pattern"].as_str(), value.as_str()) {
        refuse("spelled wrong", !Regex::new(pattern).expect("a good pattern").is_match(text));
    }
}

fn unique(schema: &Value, items: &[Value], path: &str, problems: &mut Vec<String>) {
    let keys: Vec<&str> = schema["x-kubernetes-list-map-keys"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let key = |item: &Value| keys.iter().map(|key| item[*key].clone()).collect::<Vec<_>>();
    for (i, item) in items.iter().enumerate().filter(|_| !keys.is_empty()) {
        if items[..i].iter().any(|other| key(other) == key(item)) {
            problems.push(format!("{path}[{i}]: a key twice"));
        }
    }
}

fn convert(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(flag) => Cel::Bool(*flag),
        Value::Number(number) => Cel::Int(number.as_i64().unwrap_or(i64::MAX)),
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(convert).collect())),
        Value::Object(map) => {
            let map = map.iter().map(|(name, value)| (name.clone().into(), convert(value))).collect();
            Cel::Map(Map { map: Arc::new(map) })
        }
    }
}

/// Where a schema is not structural: every value has a type, lists say of what, maps of what or which, and lists that
/// rules walk over are bounded.
pub fn structural_problems(schema: &Value, path: &str) -> Vec<String> {
    let mut found = Vec::new();
    match schema["type"].as_str() {
        Some("object") => {
            for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
                found.extend(structural_problems(inner, &format!("{path}.{name}")));
            }
            if let Some(inner) = schema.get("additionalProperties") {
                found.extend(structural_problems(inner, &format!("{path}.*")));
            }
        }
        Some("array") => {
            if schema["maxItems"].is_null() && !path.contains("conditions") {
                found.push(format!("{path}: no maxItems"));
            }
            found.extend(structural_problems(&schema["items"], &format!("{path}[]")));
        }
        Some("string" | "integer" | "boolean") => {}
        None if schema["x-kubernetes-preserve-unknown-fields"] == true => {
            // An API server gives CEL no values without a type, so it refuses rules about them.
            let text = schema.to_string();
            if text.contains("x-kubernetes-validations") {
                found.push(format!("{path}: rules below a value without a type"));
            }
            for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
                found.extend(structural_problems(inner, &format!("{path}.{name}")));
            }
            found.extend(structural_problems(&schema["items"], &format!("{path}[]")));
        }
        _ if schema["x-kubernetes-int-or-string"] == true => {}
        other => found.push(format!("{path}: type {other:?}")),
    }
    found
}

/// What an API server is about to refuse a definition for: it multiplies the cost of a rule by how often the bounds of
/// all lists above it let it run, and takes at most ten million. This estimate is coarse, and was set beside the answers
/// of a kube-apiserver 1.37.
pub fn dear_rules(schema: &Value, path: &str, runs: u64) -> Vec<String> {
    const MOST: u64 = 10_000_000;
    const LITERAL: u64 = 40;
    let mut found = Vec::new();
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let source = rule["rule"].as_str().expect("a rule");
        let literals = if source.contains('[') { LITERAL } else { 0 };
        let cost = runs * (2 * source.matches("self").count() as u64 + literals);
        if cost > MOST {
            found.push(format!("{path}: {source}: {cost}"));
        }
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        found.extend(dear_rules(inner, &format!("{path}.{name}"), runs));
    }
    if schema["items"].is_object() {
        let runs = runs * schema["maxItems"].as_u64().unwrap_or(1);
        found.extend(dear_rules(&schema["items"], &format!("{path}[]"), runs));
    }
    found
}

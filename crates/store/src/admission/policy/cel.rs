//! CEL expressions over objects, with the Kubernetes functions of `kube-cel` (cidr and ip among them).
//!
//! Expressions are user input: their length and depth are bounded, and a panic of the interpreter is an error of the
//! expression.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use kube_cel::KubeCelExt;
use kube_cel::cel::objects::Map;
use kube_cel::cel::{Context, Program, Value as Cel};
use serde_json::Value;

const MAX_LENGTH: usize = 8_192;
const MAX_DEPTH: usize = 48;

/// The variables of expressions.
pub(super) struct Scope {
    context: Context<'static>,
    variables: HashMap<String, Cel>,
}

impl Scope {
    pub(super) fn new(values: &[(&str, &Value)]) -> Self {
        let mut context = Context::default().with_all();
        for (name, value) in values {
            context.add_variable_from_value(*name, convert(value));
        }
        Self { context, variables: HashMap::new() }
    }

    /// Defines `variables.NAME`.
    pub(super) fn define(&mut self, name: &str, source: &str) -> Result<(), String> {
        let value = self.value(source)?;
        self.variables.insert(name.to_owned(), value);
        let map = self.variables.iter().map(|(name, value)| (name.clone().into(), value.clone())).collect();
        self.context.add_variable_from_value("variables", Cel::Map(Map { map: Arc::new(map) }));
        Ok(())
    }

    pub(super) fn holds(&self, source: &str) -> Result<bool, String> {
        match self.value(source)? {
            Cel::Bool(holds) => Ok(holds),
            other => Err(format!("expression '{source}' returns {}, expected bool", other.type_of())),
        }
    }

    pub(super) fn text(&self, source: &str) -> Result<String, String> {
        match self.value(source)? {
            Cel::String(text) => Ok(text.to_string()),
            other => Err(format!("expression '{source}' returns {}, expected string", other.type_of())),
        }
    }

    fn value(&self, source: &str) -> Result<Cel, String> {
        let program = compiled(source)?;
        let run = || program.execute(&self.context);
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(format!("expression '{source}' resulted in error: {error}")),
            Err(_) => Err(format!("expression '{source}' cannot be evaluated")),
        }
    }
}

/// Compiled expressions that are kept.
const KEPT: usize = 1_024;

thread_local! {
    /// Policies are evaluated for every write, mostly on the writer thread; an expression is compiled once.
    static COMPILED: RefCell<HashMap<String, Rc<Program>>> = RefCell::default();
}

fn compiled(source: &str) -> Result<Rc<Program>, String> {
    if let Some(known) = COMPILED.with_borrow(|compiled| compiled.get(source).cloned()) {
        return Ok(known);
    }
    let program = Rc::new(compile(source)?);
    COMPILED.with_borrow_mut(|compiled| {
        if compiled.len() >= KEPT {
            compiled.clear();
        }
        compiled.insert(source.to_owned(), program.clone());
    });
    Ok(program)
}

fn compile(source: &str) -> Result<Program, String> {
    if source.len() > MAX_LENGTH {
        return Err(format!("the expression has more than {MAX_LENGTH} bytes"));
    }
    if depth(source) > MAX_DEPTH {
        return Err(format!("the expression has more than {MAX_DEPTH} nested brackets"));
    }
    let compiled = catch_unwind(|| Program::compile(source));
    match compiled {
        Ok(Ok(program)) => Ok(program),
        Ok(Err(error)) => Err(format!("compilation failed: {error}")),
        Err(_) => Err("compilation failed: internal error".to_owned()),
    }
}

/// The maximum nesting of brackets and runs of operators.
fn depth(source: &str) -> usize {
    let (mut open, mut deepest, mut run) = (0usize, 0usize, 0usize);
    for letter in source.chars() {
        match letter {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open = open.saturating_sub(1),
            _ => {}
        }
        run = if "!-?".contains(letter) {
            run + 1
        } else if letter.is_whitespace() {
            run
        } else {
            0
        };
        deepest = deepest.max(open + run);
    }
    deepest
}

fn convert(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(flag) => Cel::Bool(*flag),
        Value::Number(number) => match number.as_i64() {
            Some(number) => Cel::Int(number),
            None => Cel::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(convert).collect())),
        Value::Object(map) => {
            let map = map.iter().map(|(name, value)| (name.clone().into(), convert(value))).collect();
            Cel::Map(Map { map: Arc::new(map) })
        }
    }
}

/// The expressions of a policy that do not compile: path and error of each.
pub fn uncompilable(policy: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let lists = [
        ("matchConditions", "expression"),
        ("variables", "expression"),
        ("validations", "expression"),
        ("validations", "messageExpression"),
    ];
    for (list, field) in lists {
        for (i, entry) in policy["spec"][list].as_array().into_iter().flatten().enumerate() {
            let path = format!("spec.{list}[{i}].{field}");
            match entry[field].as_str() {
                Some(source) if source.trim().is_empty() => {
                    found.push((path, "must not be empty".to_owned()))
                }
                Some(source) => found.extend(compile(source).err().map(|error| (path, error))),
                None if field == "expression" => found.push((path, "an expression is required".to_owned())),
                None => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    // Seed 002: the rule of its ServiceCIDR policy.
    #[test]
    fn cidrs_are_compared_by_what_they_contain() {
        let rule = "object.spec.cidrs.all(i , variables.allowed.exists(j , cidr(j).containsCIDR(i)))";
        for (cidr, good) in [("10.96.4.0/24", true), ("10.97.0.0/24", false), ("2001:db8::/112", true)] {
            let mut scope = Scope::new(&[("object", &json!({"spec": {"cidrs": [cidr]}}))]);
            scope.define("allowed", "['10.96.0.0/16','2001:db8::/64']").unwrap();
            assert_eq!(scope.holds(rule), Ok(good), "{cidr}");
        }
    }

    #[test]
    fn bad_expressions_are_errors_and_nothing_worse() {
        let scope = Scope::new(&[("object", &json!({"a": 1}))]);
        for source in ["", "(((", "object.b", "1 + 'x'", "object.a", "nosuch(1)", "1/0 == 1"] {
            assert!(scope.holds(source).is_err(), "{source}");
        }
        assert!(scope.holds(&"(".repeat(10_000)).is_err());
        assert!(scope.holds(&"[".repeat(1_000)).is_err());
        assert!(scope.holds(&"!".repeat(5_000)).is_err());
    }

    #[test]
    fn a_policy_that_cannot_be_compiled_names_the_field() {
        let policy = json!({"spec": {"validations": [{"expression": "true"}, {"expression": "a +"}]}});
        let found = uncompilable(&policy);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "spec.validations[1].expression");
    }
}

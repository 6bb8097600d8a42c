//! Evaluates a parsed expression and counts what that costs, as Kubernetes does: one unit for each operation, one for ten
//! bytes of text that it reads or makes, one for each item of a list. The library evaluates single operators and functions;
//! what repeats or grows is counted here, before it happens.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, ListExpr, MapEntryExpr, MapExpr,
    SelectExpr, operators,
};
use kube_cel::cel::objects::{Key, KeyRef};
use kube_cel::cel::{Context, ExecutionError, Value};
use regex::{Regex, RegexBuilder};

/// What an evaluation may still cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CostBudget {
    pub(super) left: u64,
    /// Whether it was exceeded. The evaluation fails then, even if an operator ignores the error of its operand.
    pub(super) is_exceeded: bool,
}

impl CostBudget {
    pub(super) fn new(limit: u64) -> Self {
        Self { left: limit, is_exceeded: false }
    }

    pub(super) fn charge(&mut self, cost: u64) -> Result<(), ExecutionError> {
        match self.left.checked_sub(cost).filter(|_| !self.is_exceeded) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                self.is_exceeded = true;
                Err(failed("cost", "actual cost limit exceeded"))
            }
        }
    }
}

fn failed(function: &str, message: &str) -> ExecutionError {
    ExecutionError::function_error(function, message)
}

/// The accumulator of macros such as `map`; expressions cannot name it.
const ACCUMULATOR: &str = "@result";

/// Bytes of text per unit of cost.
const TEXT_PER_UNIT: u64 = 10;

/// Memory of a compiled pattern.
const PATTERN_BYTES: usize = 1 << 20;
/// Compiled patterns that are kept.
const PATTERNS: usize = 64;
/// Compiling a pattern, in units of cost.
const PATTERN_COST: u64 = 1_000;

thread_local! {
    /// The functions; variables are ours.
    static FUNCTIONS: Context<'static> = Context::default().with_all();
    static COMPILED_PATTERNS: RefCell<HashMap<String, Regex>> = RefCell::default();
}

pub(super) struct Evaluator<'a> {
    pub(super) variables: &'a HashMap<String, Value>,
    pub(super) budget: CostBudget,
    /// Variables of macros, the innermost last.
    scopes: Vec<(&'a str, Value)>,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(variables: &'a HashMap<String, Value>, budget: CostBudget) -> Self {
        Self { variables, budget, scopes: Vec::new() }
    }

    pub(super) fn evaluate(&mut self, expr: &'a IdedExpr) -> Result<Value, ExecutionError> {
        match &expr.expr {
            Expr::Literal(_) => self.library(expr.clone(), Vec::new()),
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) => self.select(select),
            Expr::Call(call) => self.call(call),
            Expr::List(list) => self.list(list),
            Expr::Map(map) => self.map(map),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::Struct(_) => Err(failed("struct", "messages are not supported")),
            Expr::Unspecified => Err(failed("expression", "an operand is missing")),
        }
    }

    fn find(&self, name: &str) -> Option<&Value> {
        let inner = self.scopes.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value);
        inner.or_else(|| self.variables.get(name))
    }

    fn variable(&mut self, name: &str) -> Result<Value, ExecutionError> {
        self.budget.charge(1)?;
        self.find(name).cloned().ok_or_else(|| ExecutionError::undeclared_reference(name))
    }

    fn select(&mut self, select: &'a SelectExpr) -> Result<Value, ExecutionError> {
        let operand = self.evaluate(&select.operand)?;
        self.budget.charge(1)?;
        // As the library does: a field of anything but a map is false.
        let Value::Map(map) = operand else { return Ok(Value::Bool(false)) };
        let found = map.get(&KeyRef::String(&select.field));
        if select.test {
            return Ok(Value::Bool(found.is_some()));
        }
        found.cloned().ok_or_else(|| ExecutionError::no_such_key(&select.field))
    }

    fn list(&mut self, list: &'a ListExpr) -> Result<Value, ExecutionError> {
        self.budget.charge(1 + list.elements.len() as u64)?;
        let values = self.all(&list.elements)?;
        if list.optional_indices.is_empty() {
            return Ok(Value::List(Arc::new(values)));
        }
        let elements = (0..values.len()).map(placeholder).collect();
        let list = ListExpr::new_with_optionals(elements, list.optional_indices.clone());
        self.counted(expression(Expr::List(list)), values)
    }

    fn map(&mut self, map: &'a MapExpr) -> Result<Value, ExecutionError> {
        self.budget.charge(1 + map.entries.len() as u64)?;
        let (mut values, mut entries) = (Vec::new(), Vec::new());
        for entry in &map.entries {
            let EntryExpr::MapEntry(found) = &entry.expr else {
                return Err(failed("struct", "messages are not supported"));
            };
            values.push(self.evaluate(&found.key)?);
            values.push(self.evaluate(&found.value)?);
            let (key, value) = (placeholder(values.len() - 2), placeholder(values.len() - 1));
            let entry = EntryExpr::MapEntry(MapEntryExpr { key, value, optional: found.optional });
            entries.push(IdedEntryExpr { id: 0, expr: entry });
        }
        self.counted(expression(Expr::Map(MapExpr { entries })), values)
    }

    fn all(&mut self, expressions: &'a [IdedExpr]) -> Result<Vec<Value>, ExecutionError> {
        expressions.iter().map(|expr| self.evaluate(expr)).collect()
    }

    fn flag(&mut self, expr: &'a IdedExpr) -> Result<bool, ExecutionError> {
        match self.evaluate(expr)? {
            Value::Bool(flag) => Ok(flag),
            _ => Err(ExecutionError::NoSuchOverload),
        }
    }

    fn comprehension(&mut self, loop_: &'a ComprehensionExpr) -> Result<Value, ExecutionError> {
        let initial = self.evaluate(&loop_.accu_init)?;
        let items: Arc<Vec<Value>> = match self.evaluate(&loop_.iter_range)? {
            Value::List(items) => items,
            Value::Map(map) => {
                self.budget.charge(map.map.len() as u64)?;
                Arc::new(map.map.keys().map(key_value).collect())
            }
            _ => return Err(ExecutionError::NoSuchOverload),
        };
        let depth = self.scopes.len();
        self.scopes.push((&loop_.accu_var, initial));
        let result = self.iterate(loop_, &items, depth);
        self.scopes.truncate(depth);
        result
    }

    fn iterate(
        &mut self,
        loop_: &'a ComprehensionExpr,
        items: &[Value],
        accumulator: usize,
    ) -> Result<Value, ExecutionError> {
        for item in items {
            self.budget.charge(1)?;
            if !self.flag(&loop_.loop_cond)? {
                break;
            }
            self.scopes.push((&loop_.iter_var, item.clone()));
            let step = self.evaluate(&loop_.loop_step);
            self.scopes.truncate(accumulator + 1);
            self.scopes[accumulator].1 = step?;
        }
        self.evaluate(&loop_.result)
    }

    fn call(&mut self, call: &'a CallExpr) -> Result<Value, ExecutionError> {
        self.budget.charge(1)?;
        match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::CONDITIONAL, [condition, yes, no]) => {
                if self.flag(condition)? {
                    self.evaluate(yes)
                } else {
                    self.evaluate(no)
                }
            }
            (operators::LOGICAL_OR, [left, right]) => self.either(left, right, true),
            (operators::LOGICAL_AND, [left, right]) => self.either(left, right, false),
            (operators::NOT_STRICTLY_FALSE, [operand]) => Ok(Value::Bool(self.flag(operand).unwrap_or(true))),
            (operators::ADD, [left, right]) => {
                let left = self.operand_of_add(left)?;
                let right = self.evaluate(right)?;
                self.add(left, right)
            }
            _ => self.function(call),
        }
    }

    /// `||` (`decisive` is true) and `&&` (false): the error of one operand does not count if the other one decides.
    fn either(
        &mut self,
        left: &'a IdedExpr,
        right: &'a IdedExpr,
        decisive: bool,
    ) -> Result<Value, ExecutionError> {
        let left = self.flag(left);
        if left == Ok(decisive) {
            return Ok(Value::Bool(decisive));
        }
        let right = self.flag(right)?;
        match left {
            Ok(_) => Ok(Value::Bool(right)),
            Err(_) if right == decisive => Ok(Value::Bool(decisive)),
            Err(error) => Err(error),
        }
    }

    /// The accumulator of a macro is replaced by the sum, so it is moved and not copied.
    fn operand_of_add(&mut self, expr: &'a IdedExpr) -> Result<Value, ExecutionError> {
        match (&expr.expr, self.scopes.iter().rposition(|(name, _)| *name == ACCUMULATOR)) {
            (Expr::Ident(name), Some(at)) if name == ACCUMULATOR => {
                Ok(std::mem::replace(&mut self.scopes[at].1, Value::Null))
            }
            _ => self.evaluate(expr),
        }
    }

    fn add(&mut self, left: Value, right: Value) -> Result<Value, ExecutionError> {
        match (left, right) {
            (Value::List(mut left), Value::List(right)) => {
                let copied = if Arc::get_mut(&mut left).is_some() { 0 } else { left.len() };
                self.budget.charge((copied + right.len()) as u64)?;
                Arc::make_mut(&mut left).extend(right.iter().cloned());
                Ok(Value::List(left))
            }
            (Value::String(mut left), Value::String(right)) => {
                self.budget.charge(units(left.len() + right.len()))?;
                Arc::make_mut(&mut left).push_str(&right);
                Ok(Value::String(left))
            }
            (left, right) => self.operator(operators::ADD, vec![left, right]),
        }
    }

    fn operator(&mut self, name: &str, values: Vec<Value>) -> Result<Value, ExecutionError> {
        let args = (0..values.len()).map(placeholder).collect();
        let call = CallExpr { func_name: name.to_owned(), target: None, args };
        self.counted(expression(Expr::Call(call)), values)
    }

    fn function(&mut self, call: &'a CallExpr) -> Result<Value, ExecutionError> {
        // `math.greatest(...)`: a name that is no variable belongs to the function.
        let qualifier = match call.target.as_ref().map(|target| &target.expr) {
            Some(Expr::Ident(name)) if self.find(name).is_none() => Some(name.as_str()),
            _ => None,
        };
        let mut values = Vec::with_capacity(call.args.len() + 1);
        if let (Some(target), None) = (&call.target, qualifier) {
            values.push(self.evaluate(target)?);
        }
        for arg in &call.args {
            values.push(self.evaluate(arg)?);
        }
        let name = call.func_name.as_str();
        if let Some(result) = self.without_copies(name, qualifier, &values) {
            return result;
        }
        self.budget.charge(extra_cost(name, &values))?;
        let mut numbers = 0..values.len();
        let target = match (&call.target, qualifier) {
            (Some(target), Some(_)) => Some(target.clone()),
            (Some(_), None) => numbers.next().map(|number| Box::new(placeholder(number))),
            (None, _) => None,
        };
        let args = numbers.map(placeholder).collect();
        let call = CallExpr { func_name: call.func_name.clone(), target, args };
        self.counted(expression(Expr::Call(call)), values)
    }

    /// Frequent operations on values that need not be copied for them.
    fn without_copies(
        &mut self,
        name: &str,
        qualifier: Option<&str>,
        values: &[Value],
    ) -> Option<Result<Value, ExecutionError>> {
        if qualifier.is_some() {
            return None;
        }
        let flag = |flag: bool| Some(Ok(Value::Bool(flag)));
        match (name, values) {
            ("size", [Value::List(items)]) => Some(Ok(Value::Int(items.len() as i64))),
            ("size", [Value::Map(map)]) => Some(Ok(Value::Int(map.map.len() as i64))),
            (operators::INDEX, [Value::List(items), Value::Int(at)]) => {
                let found = usize::try_from(*at).ok().and_then(|at| items.get(at));
                Some(found.cloned().ok_or(ExecutionError::IndexOutOfBounds(Value::Int(*at))))
            }
            (operators::INDEX, [Value::Map(map), Value::String(key)]) => {
                let found = map.get(&KeyRef::String(key));
                Some(found.cloned().ok_or_else(|| ExecutionError::no_such_key(key)))
            }
            (operators::EQUALS, [left, right]) if same_scalars(left, right) => flag(left == right),
            (operators::NOT_EQUALS, [left, right]) if same_scalars(left, right) => flag(left != right),
            (operators::IN, [Value::String(key), Value::Map(map)]) => {
                flag(map.get(&KeyRef::String(key)).is_some())
            }
            (operators::IN, [item, Value::List(items)])
                if items.iter().all(|other| same_scalars(item, other)) =>
            {
                Some(self.budget.charge(items.len() as u64).map(|()| Value::Bool(items.contains(item))))
            }
            ("matches", [Value::String(text), Value::String(pattern)]) => {
                Some(self.matches(text, pattern).map(Value::Bool))
            }
            _ => None,
        }
    }

    fn matches(&mut self, text: &str, pattern: &str) -> Result<bool, ExecutionError> {
        self.budget.charge(units(text.len() + 1) * (1 + pattern.len() as u64 / 4))?;
        let known = COMPILED_PATTERNS.with_borrow(|known| known.get(pattern).cloned());
        let regex = match known {
            Some(regex) => regex,
            None => {
                self.budget.charge(PATTERN_COST)?;
                let compiled = RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).build();
                let compiled = compiled.map_err(|error| {
                    failed("matches", &format!("'{pattern}' not a valid regex:\n{error}"))
                })?;
                COMPILED_PATTERNS.with_borrow_mut(|known| {
                    if known.len() >= PATTERNS {
                        known.clear();
                    }
                    known.insert(pattern.to_owned(), compiled.clone());
                });
                compiled
            }
        };
        Ok(regex.is_match(text))
    }

    /// An operation of the library on values, which it copies.
    fn counted(&mut self, expr: IdedExpr, values: Vec<Value>) -> Result<Value, ExecutionError> {
        for value in &values {
            self.charge_size(value)?;
        }
        let result = self.library(expr, values)?;
        self.charge_size(&result)?;
        Ok(result)
    }

    fn library(&mut self, expr: IdedExpr, values: Vec<Value>) -> Result<Value, ExecutionError> {
        FUNCTIONS.with(|functions| {
            let mut context = functions.new_inner_scope();
            for (number, value) in values.into_iter().enumerate() {
                context.add_variable_from_value(placeholder_name(number), value);
            }
            context.resolve(&expr)
        })
    }

    /// Charges for reading all of a value.
    fn charge_size(&mut self, value: &Value) -> Result<(), ExecutionError> {
        match value {
            Value::String(text) => self.budget.charge(units(text.len())),
            Value::Bytes(bytes) => self.budget.charge(units(bytes.len())),
            Value::List(items) => {
                self.budget.charge(items.len() as u64)?;
                items.iter().try_for_each(|item| self.charge_size(item))
            }
            Value::Map(map) => {
                self.budget.charge(map.map.len() as u64)?;
                map.map.values().try_for_each(|item| self.charge_size(item))
            }
            _ => Ok(()),
        }
    }
}

/// Functions whose result, or whose work, is larger than their arguments.
fn extra_cost(name: &str, values: &[Value]) -> u64 {
    let length = |at: usize| match values.get(at) {
        Some(Value::String(text)) => text.len() as u64,
        Some(Value::List(items)) => items.len() as u64,
        _ => 0,
    };
    match (name, values) {
        ("range", [Value::Int(count)]) => u64::try_from(*count).unwrap_or(0),
        ("replace", [_, _, _, ..]) => (length(0) + 1) / length(1).max(1) * length(2) / TEXT_PER_UNIT,
        ("split", [_, _, ..]) => length(0) / length(1).max(1),
        ("join", [_, _]) => length(0) * (1 + length(1) / TEXT_PER_UNIT),
        ("contains" | "equivalent" | "intersects" | "indexOf" | "lastIndexOf", [_, _, ..]) => {
            (length(0) / TEXT_PER_UNIT).saturating_mul(1 + length(1) / TEXT_PER_UNIT).max(
                // Sets compare all with all.
                match (&values[0], &values[1]) {
                    (Value::List(left), Value::List(right)) => (left.len() as u64) * (right.len() as u64),
                    _ => 0,
                },
            )
        }
        ("distinct", [_]) => length(0).saturating_mul(length(0)) / 2,
        ("find" | "findAll", [_, Value::String(pattern), ..]) => {
            length(0).saturating_add(PATTERN_COST * (1 + numbers_in(pattern)))
        }
        ("format", [Value::String(text), ..]) => numbers_in(text),
        _ => 0,
    }
}

/// The product of all numbers in a text, at least 1: repetitions of a pattern, widths of a format.
fn numbers_in(text: &str) -> u64 {
    let numbers = text.split(|letter: char| !letter.is_ascii_digit()).filter(|word| !word.is_empty());
    numbers.fold(1, |product: u64, word| product.saturating_mul(word.parse().unwrap_or(u64::MAX).max(1)))
}

fn units(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(TEXT_PER_UNIT)
}

fn same_scalars(left: &Value, right: &Value) -> bool {
    matches!(
        (left, right),
        (Value::String(_), Value::String(_))
            | (Value::Int(_), Value::Int(_))
            | (Value::Bool(_), Value::Bool(_))
            | (Value::Null, Value::Null)
    )
}

fn key_value(key: &Key) -> Value {
    match key {
        Key::Int(number) => Value::Int(*number),
        Key::Uint(number) => Value::UInt(*number),
        Key::Bool(flag) => Value::Bool(*flag),
        Key::String(text) => Value::String(text.clone()),
    }
}

fn placeholder_name(number: usize) -> String {
    format!("@{number}")
}

fn placeholder(number: usize) -> IdedExpr {
    expression(Expr::Ident(placeholder_name(number)))
}

fn expression(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

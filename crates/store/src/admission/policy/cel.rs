//! CEL expressions over objects, with the Kubernetes functions of `kube-cel` (cidr and ip among them).
//!
//! Expressions are user input: length, depth and cost are bounded, and a panic of the library is an error of the
//! expression.

mod evaluator;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr, MapExpr, StructExpr};
use kube_cel::cel::objects::Map;
use kube_cel::cel::{Program, Value as Cel};
use serde_json::Value;

use evaluator::{CostBudget, Evaluator};

const MAX_LENGTH: usize = 8_192;
/// Expressions of a policy; each is parsed when the policy is written.
const MAX_EXPRESSIONS: usize = 1_000;
/// Depth of the syntax tree, as in Kubernetes.
const MAX_DEPTH: usize = 250;
/// Nesting of brackets, the limit of the parser: it would refuse more, but only after seconds.
const MAX_BRACKETS: usize = 96;
/// Nesting of a variable's value; an object has up to 128 levels.
const MAX_NESTING: usize = 200;
/// Bytes of an error that are reported; those of the library may contain whole objects.
const MAX_ERROR: usize = 1_024;
/// Stack for the parser: it recurses several times for each byte in the worst case.
const PARSER_STACK: usize = 512 << 20;

/// Cost of one expression, as in Kubernetes.
pub(super) const EXPRESSION_COST: u64 = 1_000_000;
/// Cost of all expressions of all policies for one write.
pub(super) const REQUEST_COST: u64 = 10_000_000;

/// The variables of expressions, and what their evaluation may still cost.
pub(super) struct Scope {
    values: HashMap<String, Cel>,
    variables: HashMap<String, Cel>,
    left: u64,
}

impl Scope {
    pub(super) fn new(values: &[(&str, &Value)]) -> Self {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), convert(value))).collect();
        Self { values, variables: HashMap::new(), left: REQUEST_COST }
    }

    /// Sets `params`, and forgets the variables of the policy before.
    pub(super) fn start_policy(&mut self, params: &Value) {
        self.values.insert("params".to_owned(), convert(params));
        self.values.remove("variables");
        self.variables.clear();
    }

    /// Defines `variables.NAME`.
    pub(super) fn define(&mut self, name: &str, source: &str) -> Result<(), String> {
        let value = self.value(source)?;
        if is_deeper(&value, MAX_NESTING) {
            return Err(format!("variable '{name}' is nested more than {MAX_NESTING} levels deep"));
        }
        self.variables.insert(name.to_owned(), value);
        let map = self.variables.iter().map(|(name, value)| (name.clone().into(), value.clone())).collect();
        self.values.insert("variables".to_owned(), Cel::Map(Map { map: Arc::new(map) }));
        Ok(())
    }

    pub(super) fn holds(&mut self, source: &str) -> Result<bool, String> {
        match self.value(source)? {
            Cel::Bool(holds) => Ok(holds),
            other => Err(format!("expression '{source}' returns {}, expected bool", other.type_of())),
        }
    }

    pub(super) fn text(&mut self, source: &str) -> Result<String, String> {
        match self.value(source)? {
            Cel::String(text) => Ok(text.to_string()),
            other => Err(format!("expression '{source}' returns {}, expected string", other.type_of())),
        }
    }

    fn value(&mut self, source: &str) -> Result<Cel, String> {
        let program = compiled(source)?;
        let limit = self.left.min(EXPRESSION_COST);
        let mut evaluator = Evaluator::new(&self.values, CostBudget::new(limit));
        let run = || evaluator.evaluate(program.expression());
        let result = catch_unwind(AssertUnwindSafe(run));
        let budget = evaluator.budget;
        let is_last = limit == self.left;
        self.left = if budget.is_exceeded { self.left - limit } else { self.left - (limit - budget.left) };
        match result {
            _ if budget.is_exceeded && is_last => Err(
                "validation failed due to running out of cost budget, no further validation rules will be run"
                    .to_owned(),
            ),
            _ if budget.is_exceeded => Err(format!(
                "expression '{source}' resulted in error: operation cancelled: actual cost limit exceeded"
            )),
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(format!("expression '{source}' resulted in error: {}", shortened(&error))),
            Err(_) => Err(format!("expression '{source}' cannot be evaluated")),
        }
    }
}

/// Compiled expressions that are kept.
const KEPT: usize = 1_024;

/// A compiled expression, or why it cannot be compiled.
type Compiled = Result<Rc<Program>, String>;

thread_local! {
    /// Policies are evaluated for every write, mostly on the writer thread; an expression is compiled once.
    static COMPILED: RefCell<HashMap<String, Compiled>> = RefCell::default();
}

fn compiled(source: &str) -> Compiled {
    if let Some(known) = COMPILED.with_borrow(|compiled| compiled.get(source).cloned()) {
        return known;
    }
    let program = compile(source).map(Rc::new);
    COMPILED.with_borrow_mut(|compiled| {
        if compiled.len() >= KEPT {
            compiled.clear();
        }
        compiled.insert(source.to_owned(), program.clone());
    });
    program
}

/// Parses an expression on a thread with a large stack, because the parser and its trees are recursive and only the tree
/// shows how deep it is. Pages of the stack that are not touched cost nothing.
#[allow(
    clippy::disallowed_methods,
    reason = "a large stack needs a thread of its own; it ends with the call"
)]
fn compile(source: &str) -> Result<Program, String> {
    if source.len() > MAX_LENGTH {
        return Err(format!("compilation failed: the expression has more than {MAX_LENGTH} bytes"));
    }
    if brackets(source) > MAX_BRACKETS {
        return Err(format!("compilation failed: expression recursion limit exceeded: {MAX_BRACKETS}"));
    }
    std::thread::scope(|scope| {
        let parser = std::thread::Builder::new().name("cel-parser".to_owned()).stack_size(PARSER_STACK);
        let thread = parser.spawn_scoped(scope, || parse(source));
        let thread =
            thread.map_err(|error| format!("compilation failed: no thread for the parser: {error}"))?;
        thread.join().unwrap_or_else(|_| Err("compilation failed: internal error".to_owned()))
    })
}

/// The nesting of brackets outside of plain string literals.
fn brackets(source: &str) -> usize {
    let (mut open, mut deepest, mut quote, mut letters) = (0usize, 0, None, source.chars());
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            ('\\', Some(_)) => drop(letters.next()),
            ('\'' | '"', Some(end)) if letter == end => quote = None,
            ('\'' | '"', None) => quote = Some(letter),
            ('(' | '[' | '{', None) => open += 1,
            (')' | ']' | '}', None) => open = open.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(open);
    }
    deepest
}

fn parse(source: &str) -> Result<Program, String> {
    match catch_unwind(|| Program::compile(source)) {
        // A tree that is too deep is dropped here, on the large stack.
        Ok(Ok(program)) if depth(program.expression()) > MAX_DEPTH => {
            Err(format!("compilation failed: expression recursion limit exceeded: {MAX_DEPTH}"))
        }
        Ok(Ok(program)) => Ok(program),
        Ok(Err(error)) => Err(format!("compilation failed: {}", shortened(&error))),
        Err(_) => Err("compilation failed: internal error".to_owned()),
    }
}

/// The start of an error. The compiler repeats the line for every character that it does not know: 8 KiB of them made
/// 833 MB of text.
fn shortened(error: &impl fmt::Display) -> String {
    struct Start(String);

    impl fmt::Write for Start {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let left = MAX_ERROR - self.0.len();
            let kept = text.floor_char_boundary(left);
            self.0.push_str(&text[..kept]);
            // An error ends the formatting.
            if kept == text.len() { Ok(()) } else { Err(fmt::Error) }
        }
    }

    let mut start = Start(String::new());
    if fmt::write(&mut start, format_args!("{error}")).is_err() {
        start.0.push_str(" ...");
    }
    start.0
}

/// The depth of a syntax tree; does not recurse.
fn depth(root: &IdedExpr) -> usize {
    let (mut deepest, mut open) = (0, vec![(root, 1)]);
    while let Some((node, depth)) = open.pop() {
        deepest = deepest.max(depth);
        let mut below = |node| open.push((node, depth + 1));
        match &node.expr {
            Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).for_each(below),
            Expr::Comprehension(inner) => {
                [&inner.iter_range, &inner.accu_init, &inner.loop_cond, &inner.loop_step, &inner.result]
                    .into_iter()
                    .for_each(below);
            }
            Expr::List(list) => list.elements.iter().for_each(below),
            Expr::Select(select) => below(&select.operand),
            Expr::Map(MapExpr { entries }) | Expr::Struct(StructExpr { entries, .. }) => {
                for entry in entries {
                    match &entry.expr {
                        EntryExpr::StructField(field) => below(&field.value),
                        EntryExpr::MapEntry(entry) => {
                            below(&entry.key);
                            below(&entry.value);
                        }
                    }
                }
            }
            Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
        }
    }
    deepest
}

/// Whether a value has more than `levels` of lists and maps.
fn is_deeper(value: &Cel, levels: usize) -> bool {
    let below = |value: &Cel| levels == 0 || is_deeper(value, levels - 1);
    match value {
        Cel::List(items) => items.iter().any(below),
        Cel::Map(map) => map.map.values().any(below),
        _ => false,
    }
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
pub(crate) fn uncompilable(policy: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let count: usize = ["matchConditions", "variables", "validations"]
        .iter()
        .map(|list| policy["spec"][list].as_array().map_or(0, Vec::len))
        .sum();
    if count > MAX_EXPRESSIONS {
        let why = format!("must have at most {MAX_EXPRESSIONS} match conditions, variables and validations");
        return vec![("spec".to_owned(), why)];
    }
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
    use kube_cel::KubeCelExt;
    use kube_cel::cel::Context;
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
        let mut scope = Scope::new(&[("object", &json!({"a": 1}))]);
        for source in ["", "(((", "object.b", "1 + 'x'", "object.a", "nosuch(1)", "1/0 == 1", "A{b: 1}"] {
            assert!(scope.holds(source).is_err(), "{source}");
        }
    }

    /// Shapes of expressions that nest or chain: what starts, repeats, is in the middle, repeats, and ends.
    const SHAPES: [[&str; 5]; 30] = [
        ["", "(", "true", ")", ""],
        ["", "[", "", "]", " == []"],
        ["", "{'a':", "1", "}", " == 1"],
        ["", "{{'a':1}:", "1", "}", " == 1"],
        ["", "!", "true", "", ""],
        ["", "-", "1", "", " == 1"],
        ["", "- ", "1", "", " == 1"],
        ["", "!(", "true", ")", ""],
        ["", "-(", "1", ")", " == 1"],
        ["object", ".a", "", "", " == 1"],
        ["object", ".?a", "", "", " == 1"],
        ["object", "['a']", "", "", " == 1"],
        ["object", "[?'a']", "", "", " == 1"],
        ["object", "[", "0", "]", " == 1"],
        ["'a'", ".trim()", "", "", " == 'a'"],
        ["", "size(", "'a'", ")", " == 1"],
        ["", "has(", "object.a", ")", ""],
        ["1", "+1", "", "", " > 1"],
        ["1", "-1", "", "", " > 1"],
        ["1", "*1", "", "", " > 0"],
        ["1", "%1", "", "", " > 0"],
        ["1", "<1", "", "", ""],
        ["1", "==1", "", "", ""],
        ["'a'", " in ['a']", "", "", ""],
        ["true", "&&true", "", "", ""],
        ["false", "||false", "", "", ""],
        ["", "true?true:", "true", "", ""],
        ["", "true?", "true", ":false", ""],
        ["", "[1].all(x,", "true", ")", ""],
        ["[1]", ".map(x,x)", "", "", " == [1]"],
    ];

    fn shape([start, open, middle, close, end]: [&str; 5], count: usize) -> String {
        format!("{start}{}{middle}{}{end}", open.repeat(count), close.repeat(count))
    }

    #[test]
    fn no_shape_of_an_expression_overflows_the_stack() {
        let mut scope = Scope::new(&[("object", &json!({"a": 1}))]);
        for parts in SHAPES {
            let step = parts[1].len() + parts[3].len();
            let longest = (MAX_LENGTH - 40) / step;
            for count in [1, 40, 90, 245, 1_000, longest, MAX_LENGTH] {
                let source = shape(parts, count);
                if count > longest && count < MAX_LENGTH {
                    continue;
                }
                // Whatever comes of it, this process goes on.
                let _ = scope.holds(&source);
            }
            let refused = scope.holds(&shape(parts, longest));
            let shallow = ["!", "-", "- ", "&&true", "||false"].contains(&parts[1]);
            assert!(refused.is_err() || shallow, "{parts:?}: {refused:?}");
        }
    }

    #[test]
    fn depth_is_that_of_the_tree_and_not_of_brackets() {
        let scope = || Scope::new(&[("object", &json!({"a": 1}))]);
        assert_eq!(scope().holds(&shape(["true", "&&true", "", "", ""], 1_000)), Ok(true));
        assert_eq!(scope().holds(&shape(["1", "+1", "", "", " == 241"], 240)), Ok(true));
        let error = scope().holds(&shape(["1", "+1", "", "", " > 1"], 260)).unwrap_err();
        assert_eq!(error, "compilation failed: expression recursion limit exceeded: 250");
        assert_eq!(scope().holds("((((((((1)))))))) == 1"), Ok(true));
    }

    #[test]
    fn what_the_library_evaluates_is_evaluated_alike() {
        let object = json!({"a": {"b": [1, 2, 3], "c": "x", "d": {"e": 1.5, "f": null}}, "n": -4, "t": true});
        let mut scope = Scope::new(&[("object", &object)]);
        let mut context = Context::default().with_all();
        context.add_variable_from_value("object", convert(&object));
        for source in [
            "object.a.b.map(x, x * 2)",
            "object.a.b.filter(x, x > 1)",
            "object.a.b.exists_one(x, x == 2)",
            "object.a.b.map(x, x > 1, x + 1)",
            "object.a.b.all(x, object.a.b.exists(y, y >= x))",
            "object.a.b[1] + object.n",
            "object.a.b[7]",
            "object.a['c'] + 'y'",
            "object.a['z']",
            "object.a.z",
            "has(object.a.z) || has(object.a.c)",
            "object.a.c.d",
            "object.a.z == 1 || true",
            "object.a.z == 1 && false",
            "object.a.z == 1 && true",
            "1 && true",
            "{'a': 1, 'b': [2]}",
            "{'a': 1}.b",
            "[1, 2] + [3]",
            "2 in object.a.b",
            "'c' in object.a",
            "1.5 in [1, 1.5]",
            "object.a.d.e == 1.5",
            "object.a.d.f == null",
            "object.n < 0 ? 'low' : 'high'",
            "size(object.a) + size(object.a.b) + size('abc')",
            "'abc'.matches('^a.c$')",
            "'abc'.matches('(')",
            "'a,b'.split(',').join('-')",
            "math.greatest(1, 2)",
            "sets.contains([1, 2], [2])",
            "lists.range(3)",
            "'%d-%s'.format([1, 'a'])",
            "ip('10.0.0.1').family()",
            "cidr('10.0.0.0/8').containsIP('10.1.1.1')",
            "optional.of(5).orValue(6)",
            "[object.t, !object.t]",
            "-object.n",
            "nosuch.field",
            "nosuch(1)",
            "object.nosuch()",
        ] {
            let expected = Program::compile(source).unwrap().execute(&context);
            let found = scope.value(source);
            match expected {
                Ok(expected) => assert_eq!(found, Ok(expected), "{source}"),
                Err(error) => assert!(found.unwrap_err().ends_with(&error.to_string()), "{source}: {error}"),
            }
        }
    }

    #[test]
    fn an_expression_that_costs_too_much_is_cancelled() {
        let many: Value = (0..2_000).map(|number| format!("name-{number}")).collect();
        let object = json!({"many": many, "text": "x".repeat(100_000)});
        for source in [
            "object.many.all(a, object.many.all(b, object.many.all(c, a != b + c)))",
            "object.many.map(a, object.many.map(b, object.many)).size() > 0",
            "lists.range(1000000000000).size() > 0",
            "object.text.replace('', object.text).size() > 0",
            "object.many.exists(a, object.text.contains(a + 'x'))",
            "'%.1000000000f'.format([1.0]).size() > 0",
            "object.many.all(a, a.find('(\\\\w{100}){100}') != 'x')",
            "sets.contains(object.many, object.many) && object.many.all(a, sets.contains(object.many, object.many))",
            "object.many.exists(a, object.many.all(b, object.many.all(c, a != b + c))) || true",
        ] {
            let error = Scope::new(&[("object", &object)]).holds(source).expect_err(source);
            assert!(error.ends_with("operation cancelled: actual cost limit exceeded"), "{source}: {error}");
        }
        let pattern = "object.many.all(a, a.matches('((((a{100}){100}){100}){100}){100}'))";
        assert!(Scope::new(&[("object", &object)]).holds(pattern).is_err());
        // A common rule over a large object is cheap.
        let cheap = "object.many.all(a, a.startsWith('name-') && size(a) < 63 && a.matches('^[a-z0-9-]+$'))";
        assert_eq!(Scope::new(&[("object", &object)]).holds(cheap), Ok(true));
    }

    #[test]
    fn all_expressions_of_a_request_share_a_budget_and_values_cannot_grow_without_end() {
        let many: Value = (0..2_000).collect();
        let mut scope = Scope::new(&[("object", &json!({"many": many}))]);
        let rule = "object.many.all(a, object.many.all(b, a + b >= 0))";
        let errors: Vec<String> = (0..12).map(|_| scope.holds(rule).unwrap_err()).collect();
        assert!(errors[0].ends_with("actual cost limit exceeded"), "{}", errors[0]);
        assert!(errors[11].contains("running out of cost budget"), "{}", errors[11]);

        let mut scope = Scope::new(&[]);
        scope.define("v0", "'xxxxxxxxxxxxxxxx'").unwrap();
        let doubled = (0..64).find_map(|number| {
            let source = format!("variables.v{number} + variables.v{number}");
            scope.define(&format!("v{}", number + 1), &source).err()
        });
        assert!(doubled.unwrap().contains("cost"));

        let mut scope = Scope::new(&[]);
        scope.define("v0", "[]").unwrap();
        let nested = (0..100_000).find_map(|number| {
            let source = format!("[[[[[[[[[[variables.v{number}]]]]]]]]]]");
            scope.define(&format!("v{}", number + 1), &source).err()
        });
        assert!(nested.unwrap().contains("levels deep"));
    }

    #[test]
    fn an_error_of_the_compiler_is_short() {
        let error = compile(&format!("a{}", "\u{16}".repeat(8_000))).err().unwrap();
        assert!(error.len() < 2_000, "{} bytes", error.len());
    }

    #[test]
    fn a_policy_that_cannot_be_compiled_names_the_field() {
        let policy = json!({"spec": {"validations": [{"expression": "true"}, {"expression": "a +"}]}});
        let found = uncompilable(&policy);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "spec.validations[1].expression");
    }
}

//! A place in a JSON object with its path, and the list of what is wrong so far.
//!
//! A path is written out only when there is something to say about it: policies of thousands of rules have tens of
//! thousands of places, and most of them are right.

use std::fmt::Write;
use std::rc::Rc;

use serde_json::Value;

use crate::json;
use crate::name::Name;
use crate::parse::Problem;

/// What stands at one path. JSON `null` counts as absent.
#[derive(Clone, Debug)]
pub(super) struct At<'a> {
    path: Option<Rc<Step<'a>>>,
    value: Option<&'a Value>,
    /// What stood there before, where somebody asks only for what is new.
    before: Option<&'a Value>,
}

/// The last part of a path, and what is before it.
#[derive(Debug)]
struct Step<'a> {
    before: Option<Rc<Step<'a>>>,
    part: Part<'a>,
}

#[derive(Debug)]
enum Part<'a> {
    /// A member of an object.
    Member(&'a str),
    /// A place in a list.
    Place(usize),
    /// A key of a map whose keys are anything.
    Key(&'a str),
}

impl Step<'_> {
    fn write(&self, path: &mut String) {
        if let Some(before) = &self.before {
            before.write(path);
        }
        let written = match self.part {
            Part::Member(name) if path.is_empty() => write!(path, "{name}"),
            Part::Member(name) => write!(path, ".{name}"),
            Part::Place(number) => write!(path, "[{number}]"),
            Part::Key(key) => write!(path, "[{key}]"),
        };
        written.expect("writing into a String cannot fail");
    }
}

/// Everything that is wrong so far, and what does not count.
#[derive(Debug, Default)]
pub(super) struct Problems {
    pub(super) found: Vec<Problem>,
    pub(super) ignored: Vec<Problem>,
}

impl Problems {
    pub(super) fn add(&mut self, at: &At, text: impl Into<String>) {
        let problem = Problem::new(at.path(), text);
        // Two rules that read the same field of the wrong type say the same about it.
        if !self.found.contains(&problem) {
            self.found.push(problem);
        }
    }

    pub(super) fn ignore(&mut self, at: &At, text: impl Into<String>) {
        self.ignored.push(Problem::new(at.path(), text));
    }
}

impl<'a> At<'a> {
    pub(super) fn root(value: &'a Value, before: Option<&'a Value>) -> Self {
        Self { path: None, value: Some(value), before }
    }

    fn below(&self, part: Part<'a>, value: Option<&'a Value>) -> Self {
        let before = self.before.and_then(|before| match part {
            Part::Member(name) | Part::Key(name) => before.get(name),
            Part::Place(at) => before.get(at),
        });
        Self { path: Some(Rc::new(Step { before: self.path.clone(), part })), value, before }
    }

    /// Whether what stood there before is what stands there now.
    pub(super) fn is_as_before(&self) -> bool {
        self.value.zip(self.before).is_some_and(|(value, before)| json::same(value, before))
    }

    fn path(&self) -> String {
        let mut path = String::new();
        if let Some(last) = &self.path {
            last.write(&mut path);
        }
        path
    }

    pub(super) fn child(&self, name: &'a str) -> Self {
        let value = self.value.and_then(|v| v.get(name)).filter(|v| !v.is_null());
        self.below(Part::Member(name), value)
    }

    pub(super) fn is_set(&self) -> bool {
        self.value.is_some()
    }

    /// Whether the member is written down, be it null.
    pub(super) fn names(&self, member: &str) -> bool {
        self.value.is_some_and(|v| v.get(member).is_some())
    }

    /// Refuses members that nobody knows: a misspelled one must not be passed over.
    pub(super) fn only(&self, known: &[&str], problems: &mut Problems) {
        let Some(value) = self.value else { return };
        let Some(map) = value.as_object() else {
            problems.add(self, format!("{} stands where a map belongs", kind_of(value)));
            return;
        };
        for name in map.keys().filter(|name| !known.contains(&name.as_str())) {
            let text = format!("no such field: known here are {}", known.join(", "));
            problems.add(&self.below(Part::Member(name), None), text);
        }
    }

    pub(super) fn text(&self, problems: &mut Problems) -> Option<&'a str> {
        self.typed(Value::as_str, "a text", problems)
    }

    /// A text that is there and not empty.
    pub(super) fn needed(&self, problems: &mut Problems) -> Option<&'a str> {
        let text = self.text(problems);
        if self.value.is_none() || text == Some("") {
            problems.add(self, "it is missing");
        }
        text.filter(|text| !text.is_empty())
    }

    pub(super) fn whole(&self, problems: &mut Problems) -> Option<i64> {
        self.typed(Value::as_i64, "a whole number without quotes", problems)
    }

    /// A whole number within bounds.
    pub(super) fn within(&self, low: i64, high: i64, problems: &mut Problems) -> Option<i64> {
        let number = self.whole(problems)?;
        if (low..=high).contains(&number) {
            return Some(number);
        }
        problems.add(self, format!("{number} is not within {low} to {high}"));
        None
    }

    pub(super) fn port(&self, problems: &mut Problems) -> Option<u16> {
        self.within(1, 65_535, problems).and_then(|n| u16::try_from(n).ok())
    }

    pub(super) fn number(&self) -> Option<f64> {
        self.value.and_then(Value::as_f64)
    }

    pub(super) fn peek(&self) -> Option<&'a str> {
        self.value.and_then(Value::as_str)
    }

    /// One of these words.
    pub(super) fn word(&self, words: &[&str], problems: &mut Problems) -> Option<&'a str> {
        let text = self.text(problems)?;
        if words.contains(&text) {
            return Some(text);
        }
        problems.add(self, format!("{} is not known here: write {}", quoted(text), words.join(", ")));
        None
    }

    /// The entries of a list.
    pub(super) fn items(&self, problems: &mut Problems) -> Vec<Self> {
        let items = self.typed(Value::as_array, "a list", problems);
        let at = |(i, value)| self.below(Part::Place(i), Some(value));
        items.into_iter().flatten().enumerate().map(at).collect()
    }

    /// The entries of a list that may not be empty.
    pub(super) fn items_or_one(&self, problems: &mut Problems, what: &str) -> Vec<Self> {
        let items = self.items(problems);
        if items.is_empty() && self.value.is_none_or(Value::is_array) {
            problems.add(self, format!("at least one of the {what} is needed"));
        }
        items
    }

    /// The pairs of a map of texts.
    pub(super) fn pairs(&self, problems: &mut Problems) -> Vec<(Name, Name)> {
        let Some(map) = self.typed(Value::as_object, "a map", problems) else { return Vec::new() };
        let mut pairs = Vec::new();
        for (key, value) in map {
            let at = || self.below(Part::Key(key), Some(value));
            match value {
                Value::String(text) if !key.is_empty() => pairs.push((Name::new(key), Name::new(text))),
                Value::String(_) => problems.add(&at(), "a tag needs a name"),
                Value::Number(_) | Value::Bool(_) => {
                    problems.add(&at(), format!("only a text can stand here: write \"{value}\", in quotes"));
                }
                _ => problems.add(&at(), "only a text can stand here"),
            }
        }
        pairs
    }

    pub(super) fn is_list(&self) -> bool {
        self.value.is_some_and(Value::is_array)
    }

    pub(super) fn is_map(&self) -> bool {
        self.value.is_some_and(Value::is_object)
    }

    fn typed<T>(&self, read: fn(&'a Value) -> Option<T>, wanted: &str, problems: &mut Problems) -> Option<T> {
        let value = self.value?;
        let found = read(value);
        if found.is_none() {
            problems.add(self, format!("{} stands where {wanted} belongs", kind_of(value)));
        }
        found
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(n) if n.is_f64() => "a number that is not whole",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

/// A value in quotes, cut where it would drown the sentence around it.
pub(super) fn quoted(text: &str) -> String {
    const SHOWN: usize = 80;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

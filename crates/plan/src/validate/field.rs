//! One place in a JSON object with its path, and the list of what was found wrong.
//!
//! Reading through a [`Field`] is what makes a wrong type a finding instead of a failure: a text where a
//! number belongs is reported once and then counts as absent. JSON `null` counts as absent too.

use std::collections::BTreeSet;

use model::ObjectRef;
use model::parse::object_ref;
use serde_json::Value;

use super::syntax::Rule;
use super::{Fault, Violation};

/// The longest path that a rule follows has seven steps: `status.loadBalancer.ingress[0].ports[0].error`. Anything
/// further down would be called by the name of what it is part of.
const DEEPEST: usize = 8;

/// One step of a path.
#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Member(&'a str),
    Entry(usize),
    Key(&'a str),
}

/// The way to a field. Every field of every object has one and hardly any is ever written out, so the steps lie in
/// place and become a text only when something is wrong.
#[derive(Clone, Copy, Debug)]
struct Path<'a> {
    steps: [Step<'a>; DEEPEST],
    count: usize,
}

impl<'a> Path<'a> {
    const ROOT: Self = Self { steps: [Step::Entry(0); DEEPEST], count: 0 };

    fn then(mut self, step: Step<'a>) -> Self {
        if let Some(place) = self.steps.get_mut(self.count) {
            *place = step;
            self.count += 1;
        }
        self
    }
}

impl std::fmt::Display for Path<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, step) in self.steps.iter().take(self.count).enumerate() {
            match step {
                Step::Member(name) if i == 0 => out.write_str(name)?,
                Step::Member(name) => write!(out, ".{name}")?,
                Step::Entry(number) => write!(out, "[{number}]")?,
                Step::Key(key) => write!(out, "[{key}]")?,
            }
        }
        Ok(())
    }
}

/// What stands at one path of an object.
#[derive(Clone, Debug)]
pub(super) struct Field<'a> {
    path: Path<'a>,
    value: Option<&'a Value>,
}

impl<'a> Field<'a> {
    pub(super) fn root(value: &'a Value) -> Self {
        Self { path: Path::ROOT, value: Some(value) }
    }

    /// The member of that name, which may be absent.
    pub(super) fn child(&self, name: &'static str) -> Self {
        let value = self.value.and_then(|value| value.get(name)).filter(|value| !value.is_null());
        Self { path: self.path.then(Step::Member(name)), value }
    }

    pub(super) fn path(&self) -> String {
        self.path.to_string()
    }

    pub(super) fn is_set(&self) -> bool {
        self.value.is_some()
    }

    /// Whether something stands there that says something: empty texts, lists and maps do not.
    pub(super) fn is_given(&self) -> bool {
        match self.value {
            None => false,
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(items)) => !items.is_empty(),
            Some(Value::Object(map)) => !map.is_empty(),
            Some(_) => true,
        }
    }

    /// The entry of that number, which may be absent.
    pub(super) fn entry(&self, number: usize) -> Self {
        let value = self.value.and_then(|value| value.get(number));
        Self { path: self.path.then(Step::Entry(number)), value }
    }

    /// The same value under the path of another field: for one thing that may stand in two places.
    pub(super) fn called(&self, other: &Self) -> Self {
        Self { path: other.path, value: self.value }
    }

    /// What stands there; of an absent field, null.
    pub(super) fn value(&self) -> &'a Value {
        self.value.unwrap_or(&Value::Null)
    }

    /// The text, without a word about anything else that may stand there.
    pub(super) fn peek_text(&self) -> Option<&'a str> {
        self.value?.as_str()
    }

    /// The text unless it is empty: for fields where empty means absent.
    pub(super) fn peek_nonempty(&self) -> Option<&'a str> {
        self.peek_text().filter(|text| !text.is_empty())
    }

    /// The entries of a list, without a word about anything else that may stand there.
    pub(super) fn peek_items(&self) -> Vec<Field<'a>> {
        let Some(Value::Array(items)) = self.value else { return Vec::new() };
        let at = |(i, value)| Field { path: self.path.then(Step::Entry(i)), value: Some(value) };
        items.iter().enumerate().map(at).collect()
    }

    /// How many entries the list has; no path is made for any of them.
    pub(super) fn count(&self) -> usize {
        self.value.and_then(Value::as_array).map_or(0, Vec::len)
    }

    pub(super) fn text(&self, findings: &mut Findings) -> Option<&'a str> {
        self.typed(Value::as_str, "a text", findings)
    }

    /// The text unless it is empty.
    pub(super) fn nonempty(&self, findings: &mut Findings) -> Option<&'a str> {
        self.text(findings).filter(|text| !text.is_empty())
    }

    pub(super) fn integer(&self, findings: &mut Findings) -> Option<i64> {
        self.typed(Value::as_i64, "a whole number without quotes", findings)
    }

    pub(super) fn flag(&self, findings: &mut Findings) -> Option<bool> {
        self.typed(Value::as_bool, "true or false without quotes", findings)
    }

    /// The entries of a list, each with its own path.
    pub(super) fn items(&self, findings: &mut Findings) -> Vec<Field<'a>> {
        self.typed(Value::as_array, "a list", findings);
        self.peek_items()
    }

    /// The members of a map, as `metadata.labels[app]`.
    pub(super) fn entries(&self, findings: &mut Findings) -> Vec<(&'a str, Field<'a>)> {
        let Some(map) = self.typed(Value::as_object, "a map", findings) else { return Vec::new() };
        let at = |key: &'a str, value| Field { path: self.path.then(Step::Key(key)), value: Some(value) };
        map.iter().map(|(key, value)| (key.as_str(), at(key, value))).collect()
    }

    /// The field itself, after making sure that it is a map or absent.
    pub(super) fn map(self, findings: &mut Findings) -> Field<'a> {
        self.typed(Value::as_object, "a map", findings);
        self
    }

    fn typed<T>(&self, read: fn(&'a Value) -> Option<T>, wanted: &str, findings: &mut Findings) -> Option<T> {
        let value = self.value?;
        let found = read(value);
        if found.is_none() {
            findings.refuse(self, format!("{} stands where {wanted} belongs", kind_of(value)));
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

/// Everything that was found wrong with one object so far.
#[derive(Debug)]
pub(super) struct Findings {
    object: ObjectRef,
    found: Vec<(String, Fault, String)>,
}

impl Findings {
    pub(super) fn new(object: &Value) -> Self {
        Self { object: object_ref(object), found: Vec::new() }
    }

    fn note(&mut self, field: &Field, fault: Fault, reason: impl Into<String>) {
        self.found.push((field.path(), fault, reason.into()));
    }

    /// The value cannot stand there.
    pub(super) fn refuse(&mut self, field: &Field, reason: impl Into<String>) {
        self.note(field, Fault::Invalid, reason);
    }

    pub(super) fn refuse_at(&mut self, path: &str, reason: impl Into<String>) {
        self.found.push((path.to_owned(), Fault::Invalid, reason.into()));
    }

    /// Nothing stands there, and something must.
    pub(super) fn require(&mut self, field: &Field, reason: impl Into<String>) {
        self.note(field, Fault::Required, reason);
    }

    /// Another entry has the value already.
    pub(super) fn repeated(&mut self, field: &Field, reason: impl Into<String>) {
        self.note(field, Fault::Duplicate, reason);
    }

    /// The value is none of the known words.
    pub(super) fn unknown(&mut self, field: &Field, reason: impl Into<String>) {
        self.note(field, Fault::NotSupported, reason);
    }

    /// Nothing may stand there, or it may not change.
    pub(super) fn forbid(&mut self, field: &Field, reason: impl Into<String>) {
        self.note(field, Fault::Forbidden, reason);
    }

    pub(super) fn too_long(&mut self, field: &Field, reason: impl Into<String>) {
        self.note(field, Fault::TooLong, reason);
    }

    pub(super) fn too_many(&mut self, field: &Field, reason: impl Into<String>) {
        self.note(field, Fault::TooMany, reason);
    }

    /// Holds a text against a rule of spelling; an absent one is fine, an empty one is a text.
    pub(super) fn spelled(&mut self, field: &Field, rule: Rule) {
        if let Some(text) = field.text(self) {
            self.refuse_if(field, rule(text));
        }
    }

    /// Holds a text against a rule of spelling; an empty one counts as absent.
    pub(super) fn spelled_if_given(&mut self, field: &Field, rule: Rule) {
        if let Some(text) = field.nonempty(self) {
            self.refuse_if(field, rule(text));
        }
    }

    /// Notes the reason, if there is one, that a rule gives.
    pub(super) fn refuse_if(&mut self, field: &Field, reason: Option<String>) {
        if let Some(reason) = reason {
            self.refuse(field, reason);
        }
    }

    /// The violations in the order of finding. Two rules that read the same field of the wrong type say the
    /// same about it; that counts once.
    pub(super) fn into_violations(self) -> Vec<Violation> {
        let Self { object, found } = self;
        let mut seen = BTreeSet::new();
        let fresh = found.into_iter().filter(|finding| seen.insert(finding.clone()));
        let violation = |(field, fault, reason)| Violation { object: object.clone(), field, reason, fault };
        fresh.map(violation).collect()
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

/// A choice out of fixed words; an absent or empty text is no choice and no violation.
pub(super) fn one_of<'a>(field: &Field<'a>, words: &[&str], findings: &mut Findings) -> Option<&'a str> {
    let text = field.nonempty(findings)?;
    if words.contains(&text) {
        return Some(text);
    }
    findings.unknown(field, format!("{} is not known here: write {}", quoted(text), listed(words)));
    None
}

/// `A, B or C`.
fn listed(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

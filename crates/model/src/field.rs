//! Fields of a JSON object: path, value, and the list of errors found so far.
//!
//! Reading through a [`Field`] makes a wrong type an error of that field instead of a failure of the whole object: it is
//! reported once, then the field counts as absent. JSON `null` counts as absent as well. `parse::route` and
//! `apimachinery::validate` read objects this way.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use crate::json;
use crate::name::Name;

/// An error in one field of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldError {
    /// The path, as `spec.ports[0].protocol`.
    pub field: String,
    pub error_type: FieldErrorType,
    /// What is wrong, and which values are allowed.
    pub message: String,
}

impl FieldError {
    /// An error of type [`FieldErrorType::Invalid`].
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), error_type: FieldErrorType::Invalid, message: message.into() }
    }
}

/// The error types of Kubernetes' `field.ErrorType`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum FieldErrorType {
    #[default]
    Invalid,
    Required,
    Duplicate,
    /// The value refers to what does not exist.
    NotFound,
    /// The value is not one of a fixed set.
    NotSupported,
    /// The field must be absent, or must not change.
    Forbidden,
    TooLong,
    TooMany,
}

impl FieldErrorType {
    /// `reason` of a cause in a Status, as `FieldValueRequired`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotFound => "FieldValueNotFound",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
        }
    }

    /// The start of the message, which clients of Kubernetes search for.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Invalid => "Invalid value",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::NotFound => "Not found",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
        }
    }
}

/// Checks the format of a string: `None`, or what is wrong with it.
pub type FormatRule = fn(&str) -> Option<String>;

/// The errors of one object so far.
#[derive(Debug, Default)]
pub struct FieldErrors {
    errors: Vec<FieldError>,
    ignored: Vec<FieldError>,
}

impl FieldErrors {
    fn add(&mut self, field: &Field, error_type: FieldErrorType, message: impl Into<String>) {
        self.errors.push(FieldError { field: field.path(), error_type, message: message.into() });
    }

    pub fn invalid(&mut self, field: &Field, message: impl Into<String>) {
        self.add(field, FieldErrorType::Invalid, message);
    }

    pub fn invalid_at(&mut self, path: &str, message: impl Into<String>) {
        self.errors.push(FieldError::invalid(path, message));
    }

    pub fn required(&mut self, field: &Field, message: impl Into<String>) {
        self.add(field, FieldErrorType::Required, message);
    }

    pub fn duplicate(&mut self, field: &Field, message: impl Into<String>) {
        self.add(field, FieldErrorType::Duplicate, message);
    }

    pub fn not_found(&mut self, field: &Field, message: impl Into<String>) {
        self.add(field, FieldErrorType::NotFound, message);
    }

    pub fn not_supported(&mut self, field: &Field, message: impl Into<String>) {
        self.add(field, FieldErrorType::NotSupported, message);
    }

    pub fn forbidden(&mut self, field: &Field, message: impl Into<String>) {
        self.add(field, FieldErrorType::Forbidden, message);
    }

    pub fn too_long(&mut self, field: &Field, message: impl Into<String>) {
        self.add(field, FieldErrorType::TooLong, message);
    }

    pub fn too_many(&mut self, field: &Field, message: impl Into<String>) {
        self.add(field, FieldErrorType::TooMany, message);
    }

    pub fn invalid_if(&mut self, field: &Field, message: Option<String>) {
        if let Some(message) = message {
            self.invalid(field, message);
        }
    }

    /// Checks a string unless it is absent; an empty one is checked.
    pub fn check_format(&mut self, field: &Field, rule: FormatRule) {
        if let Some(text) = field.string(self) {
            self.invalid_if(field, rule(text));
        }
    }

    /// Checks a string unless it is absent or empty.
    pub fn check_format_if_set(&mut self, field: &Field, rule: FormatRule) {
        if let Some(text) = field.nonempty_string(self) {
            self.invalid_if(field, rule(text));
        }
    }

    /// Reports an entry that has no effect and does not make the object invalid.
    pub fn ignore(&mut self, field: &Field, message: impl Into<String>) {
        self.ignored.push(FieldError::invalid(field.path(), message));
    }

    /// The errors in the order of their discovery, and the ignored entries. Two rules that read the same field of the
    /// wrong type report it twice; duplicates are dropped.
    pub fn into_parts(self) -> (Vec<FieldError>, Vec<FieldError>) {
        let mut seen = BTreeSet::new();
        let errors = self.errors.into_iter().filter(|error| seen.insert(error.clone())).collect();
        (errors, self.ignored)
    }
}

/// The longest path that a rule reads has fourteen steps:
/// `spec.to[0].rules[0].default.backendRefs[0].filters[0].requestHeaderModifier.set[0].name`. Deeper fields are reported
/// under the path of their ancestor at this depth.
const MAX_DEPTH: usize = 14;

#[derive(Clone, Copy, Debug)]
enum PathElement<'a> {
    Child(&'a str),
    Index(usize),
    /// A key of a map with arbitrary keys, as `metadata.labels[app]`.
    Key(&'a str),
}

/// Stored inline: every field has a path, but only the paths of errors are formatted.
#[derive(Clone, Copy, Debug)]
struct Path<'a> {
    elements: [PathElement<'a>; MAX_DEPTH],
    depth: usize,
}

impl<'a> Path<'a> {
    const ROOT: Self = Self { elements: [PathElement::Index(0); MAX_DEPTH], depth: 0 };

    fn then(mut self, element: PathElement<'a>) -> Self {
        if let Some(next) = self.elements.get_mut(self.depth) {
            *next = element;
            self.depth += 1;
        }
        self
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, element) in self.elements.iter().take(self.depth).enumerate() {
            match element {
                PathElement::Child(name) if i == 0 => f.write_str(name)?,
                PathElement::Child(name) => write!(f, ".{name}")?,
                PathElement::Index(index) => write!(f, "[{index}]")?,
                PathElement::Key(key) => write!(f, "[{key}]")?,
            }
        }
        Ok(())
    }
}

/// The value at one path of an object, perhaps with the value that it replaces.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    path: Path<'a>,
    value: Option<&'a Value>,
    old: Option<&'a Value>,
}

impl<'a> Field<'a> {
    pub fn root(value: &'a Value) -> Self {
        Self::root_with_old(value, None)
    }

    /// The root of an object that replaces `old`.
    pub fn root_with_old(value: &'a Value, old: Option<&'a Value>) -> Self {
        Self { path: Path::ROOT, value: Some(value), old }
    }

    /// The member of that name, which may be absent.
    pub fn child(&self, name: &'a str) -> Self {
        let value = self.value.and_then(|value| value.get(name)).filter(|value| !value.is_null());
        self.member(PathElement::Child(name), name, value)
    }

    fn member(&self, element: PathElement<'a>, name: &str, value: Option<&'a Value>) -> Self {
        let old = self.old.and_then(|old| old.get(name));
        Self { path: self.path.then(element), value, old }
    }

    /// The list entry at that index, which may be absent.
    pub fn index(&self, index: usize) -> Self {
        self.item(index, self.value.and_then(|value| value.get(index)))
    }

    fn item(&self, index: usize, value: Option<&'a Value>) -> Self {
        let old = self.old.and_then(|old| old.get(index));
        Self { path: self.path.then(PathElement::Index(index)), value, old }
    }

    /// The same value under the path of another field, for a value with two spellings (`clusterIP`, `clusterIPs[0]`).
    pub fn with_path_of(&self, other: &Self) -> Self {
        Self { path: other.path, ..*self }
    }

    pub fn path(&self) -> String {
        self.path.to_string()
    }

    pub fn is_set(&self) -> bool {
        self.value.is_some()
    }

    /// Whether it is set, and not to an empty string, list or map.
    pub fn is_nonempty(&self) -> bool {
        match self.value {
            None => false,
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(items)) => !items.is_empty(),
            Some(Value::Object(map)) => !map.is_empty(),
            Some(_) => true,
        }
    }

    /// Whether it equals the value that it replaces.
    pub fn is_unchanged(&self) -> bool {
        self.value.zip(self.old).is_some_and(|(value, old)| json::same(value, old))
    }

    /// The value; of an absent field, null.
    pub fn value(&self) -> &'a Value {
        self.value.unwrap_or(&Value::Null)
    }

    // Readers without an error: a value of another type counts as absent.

    pub fn as_str(&self) -> Option<&'a str> {
        self.value?.as_str()
    }

    pub fn as_nonempty_str(&self) -> Option<&'a str> {
        self.as_str().filter(|text| !text.is_empty())
    }

    pub fn as_f64(&self) -> Option<f64> {
        self.value?.as_f64()
    }

    /// A whole number, as a float: the schema takes fractions as strings alone.
    pub fn as_whole(&self) -> Option<f64> {
        i32::try_from(self.value?.as_i64()?).ok().map(f64::from)
    }

    pub fn as_items(&self) -> Vec<Self> {
        let Some(Value::Array(items)) = self.value else { return Vec::new() };
        items.iter().enumerate().map(|(i, value)| self.item(i, Some(value))).collect()
    }

    pub fn item_count(&self) -> usize {
        self.value.and_then(Value::as_array).map_or(0, Vec::len)
    }

    pub fn is_list(&self) -> bool {
        self.value.is_some_and(Value::is_array)
    }

    pub fn is_map(&self) -> bool {
        self.value.is_some_and(Value::is_object)
    }

    /// Whether the member is present, even as null.
    pub fn has_member(&self, name: &str) -> bool {
        self.value.is_some_and(|value| value.get(name).is_some())
    }

    /// Reports a list or map with more than `max` entries; `what` names them in the error.
    pub fn limit(&self, max: usize, what: &str, errors: &mut FieldErrors) {
        let count = match self.value {
            Some(Value::Array(items)) => items.len(),
            Some(Value::Object(map)) => map.len(),
            _ => 0,
        };
        if count > max {
            errors.invalid(self, format!("at most {max} {what} are allowed"));
        }
    }

    /// Reports a string of more than `max` bytes.
    pub fn limit_bytes(&self, max: usize, errors: &mut FieldErrors) {
        if self.as_str().is_some_and(|text| text.len() > max) {
            errors.invalid(self, format!("at most {max} bytes are allowed"));
        }
    }

    // Readers that report a value of another type.

    pub fn string(&self, errors: &mut FieldErrors) -> Option<&'a str> {
        self.typed(Value::as_str, "a string", errors)
    }

    pub fn nonempty_string(&self, errors: &mut FieldErrors) -> Option<&'a str> {
        self.string(errors).filter(|text| !text.is_empty())
    }

    /// A string that must be set and not empty.
    pub fn required_string(&self, errors: &mut FieldErrors) -> Option<&'a str> {
        let text = self.string(errors);
        if self.value.is_none() || text == Some("") {
            errors.invalid(self, "is missing");
        }
        text.filter(|text| !text.is_empty())
    }

    pub fn integer(&self, errors: &mut FieldErrors) -> Option<i64> {
        self.typed(Value::as_i64, "an integer (without quotes)", errors)
    }

    pub fn integer_within(&self, low: i64, high: i64, errors: &mut FieldErrors) -> Option<i64> {
        let number = self.integer(errors)?;
        if (low..=high).contains(&number) {
            return Some(number);
        }
        errors.invalid(self, format!("{number} is not between {low} and {high}"));
        None
    }

    pub fn port(&self, errors: &mut FieldErrors) -> Option<u16> {
        self.integer_within(1, 65_535, errors).and_then(|port| u16::try_from(port).ok())
    }

    pub fn boolean(&self, errors: &mut FieldErrors) -> Option<bool> {
        self.typed(Value::as_bool, "true or false (without quotes)", errors)
    }

    /// One of a fixed set of strings.
    pub fn keyword(&self, keywords: &[&str], errors: &mut FieldErrors) -> Option<&'a str> {
        let text = self.string(errors)?;
        if keywords.contains(&text) {
            return Some(text);
        }
        errors.invalid(self, not_one_of(text, keywords));
        None
    }

    pub fn items(&self, errors: &mut FieldErrors) -> Vec<Self> {
        self.typed(Value::as_array, "a list", errors);
        self.as_items()
    }

    /// The entries of a list that must not be empty; `what` names them in the error.
    pub fn required_items(&self, what: &str, errors: &mut FieldErrors) -> Vec<Self> {
        let items = self.items(errors);
        if items.is_empty() && self.value.is_none_or(Value::is_array) {
            errors.invalid(self, format!("needs at least one of the {what}"));
        }
        items
    }

    /// The entries of a map with arbitrary keys, as `metadata.labels[app]`.
    pub fn entries(&self, errors: &mut FieldErrors) -> Vec<(&'a str, Self)> {
        let Some(map) = self.typed(Value::as_object, "a map", errors) else { return Vec::new() };
        let at = |key: &'a str, value| self.member(PathElement::Key(key), key, Some(value));
        map.iter().map(|(key, value)| (key.as_str(), at(key, value))).collect()
    }

    /// The pairs of a map of strings with nonempty keys.
    pub fn string_map(&self, errors: &mut FieldErrors) -> Vec<(Name, Name)> {
        let mut pairs = Vec::new();
        for (key, field) in self.entries(errors) {
            match field.value() {
                Value::String(text) if !key.is_empty() => pairs.push((Name::new(key), Name::new(text))),
                Value::String(_) => errors.invalid(&field, "the key is empty"),
                value @ (Value::Number(_) | Value::Bool(_)) => {
                    let message =
                        format!("expected a string, got {}: write \"{value}\", in quotes", kind_of(value));
                    errors.invalid(&field, message);
                }
                value => errors.invalid(&field, format!("expected a string, got {}", kind_of(value))),
            }
        }
        pairs
    }

    /// The field itself, after checking that it is a map or absent.
    pub fn map(self, errors: &mut FieldErrors) -> Self {
        self.typed(Value::as_object, "a map", errors);
        self
    }

    /// Reports members other than `known`, so that a misspelled one is not silently ignored.
    pub fn only(&self, known: &[&str], errors: &mut FieldErrors) {
        let Some(map) = self.typed(Value::as_object, "a map", errors) else { return };
        for name in map.keys().filter(|name| !known.contains(&name.as_str())) {
            let field = self.member(PathElement::Child(name), name, None);
            errors.invalid(&field, format!("unknown field; known fields are {}", known.join(", ")));
        }
    }

    fn typed<T>(
        &self,
        read: fn(&'a Value) -> Option<T>,
        expected: &str,
        errors: &mut FieldErrors,
    ) -> Option<T> {
        let value = self.value?;
        let found = read(value);
        if found.is_none() {
            errors.invalid(self, format!("expected {expected}, got {}", kind_of(value)));
        }
        found
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a fractional number",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

/// The error message for a string outside of a fixed set.
pub fn not_one_of(text: &str, keywords: &[&str]) -> String {
    format!("{} is not supported: use {}", quoted(text), listed(keywords))
}

/// `A, B or C`.
pub fn listed(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// A value in quotes, truncated to keep messages short.
pub fn quoted(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

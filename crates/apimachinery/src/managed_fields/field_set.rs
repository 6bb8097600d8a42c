//! Sets of fields as in `managedFields`: which paths a manager owns, and their text form, FieldsV1.
//!
//! ```text
//! f:NAME     a field, or a key of a map      k:{...}  an item of a list by its keys
//! v:VALUE    a value of a set                i:N      an item by position; read, never written
//! {}         the path is a member            ".": {}  so is this one, which also has paths below it
//! ```

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde_json::{Map, Value};

use super::field_schema::FieldSchema;

/// One step of a path. Keys and values are JSON, keys sorted by name, so that equal ones are equal texts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PathElement {
    Field(String),
    Key(String),
    Value(String),
    Index(i64),
}

/// A set of paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(BTreeMap<PathElement, FieldNode>);

/// What a set holds at a path, and below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldNode {
    /// Whether the path itself is in the set.
    pub(super) is_member: bool,
    pub(super) below: FieldSet,
}

impl FieldNode {
    pub(super) fn member() -> Self {
        Self { is_member: true, below: FieldSet::default() }
    }

    fn is_empty(&self) -> bool {
        !self.is_member && self.below.is_empty()
    }
}

impl FieldSet {
    /// The set of some paths of fields, such as `metadata.name`.
    pub fn of_fields(paths: &[&str]) -> Self {
        let mut set = Self::default();
        for path in paths {
            let mut below = &mut set;
            let mut names = path.split('.').peekable();
            while let Some(name) = names.next() {
                let node = below.0.entry(PathElement::Field(name.to_owned())).or_default();
                node.is_member |= names.peek().is_none();
                below = &mut node.below;
            }
        }
        set
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn get(&self, element: &PathElement) -> Option<&FieldNode> {
        self.0.get(element)
    }

    /// Adds what is at a path element; nothing if that is empty.
    pub(super) fn put(&mut self, element: PathElement, node: FieldNode) {
        if !node.is_empty() {
            let known = self.0.entry(element).or_default();
            known.is_member |= node.is_member;
            known.below.extend(node.below);
        }
    }

    /// Adds all paths of another set.
    pub(super) fn extend(&mut self, other: Self) {
        for (element, node) in other.0 {
            self.put(element, node);
        }
    }

    /// The paths that are in another set as well.
    pub(super) fn intersection(&self, other: &Self) -> Self {
        self.combined(|element, node| {
            let other = other.get(element)?;
            let is_member = node.is_member && other.is_member;
            Some(FieldNode { is_member, below: node.below.intersection(&other.below) })
        })
    }

    /// The paths that are not in another set.
    pub(super) fn difference(&self, other: &Self) -> Self {
        let mut left = self.clone();
        left.subtract(other);
        left
    }

    /// Removes the paths of another set.
    pub(super) fn subtract(&mut self, other: &Self) {
        for (element, gone) in &other.0 {
            if let Some(node) = self.0.get_mut(element) {
                node.is_member &= !gone.is_member;
                node.below.subtract(&gone.below);
                if node.is_empty() {
                    self.0.remove(element);
                }
            }
        }
    }

    /// Removes the paths of another set, and all below them.
    pub(super) fn subtract_subtrees(&mut self, other: &Self) {
        for (element, gone) in &other.0 {
            if let Some(node) = self.0.get_mut(element) {
                node.below.subtract_subtrees(&gone.below);
                if gone.is_member || node.is_empty() {
                    self.0.remove(element);
                }
            }
        }
    }

    /// Whether all paths are in a set in its text form.
    pub(super) fn is_in(&self, fields: &Value) -> bool {
        self.0.iter().all(|(element, node)| {
            fields
                .get(element.to_text())
                .is_some_and(|other| (!node.is_member || is_member(other)) && node.below.is_in(other))
        })
    }

    /// Whether none of the paths is in a set in its text form.
    pub(super) fn is_outside(&self, fields: &Value) -> bool {
        self.0.iter().all(|(element, node)| {
            fields
                .get(element.to_text())
                .is_none_or(|other| !(node.is_member && is_member(other)) && node.below.is_outside(other))
        })
    }

    fn combined(&self, keep: impl Fn(&PathElement, &FieldNode) -> Option<FieldNode>) -> Self {
        let kept = self.0.iter().filter_map(|(element, node)| Some((element.clone(), keep(element, node)?)));
        Self(kept.filter(|(_, node)| !node.is_empty()).collect())
    }

    /// The same set, in which declared fields with paths below them are members.
    pub(super) fn with_named_parents(&self, schema: FieldSchema<'_>) -> Self {
        self.combined(|element, node| {
            let (child, is_declared) = schema.at(element);
            let is_parent = is_declared && !node.below.is_empty();
            let below = node.below.with_named_parents(child);
            Some(FieldNode { is_member: node.is_member || is_parent, below })
        })
    }

    /// Follows fields that became atomic: owners of paths below one own the field.
    pub(super) fn reconcile(&mut self, schema: FieldSchema<'_>) {
        for (element, node) in self.0.iter_mut().filter(|(_, node)| !node.below.is_empty()) {
            let (child, _) = schema.at(element);
            match child.is_atomic() {
                true => *node = FieldNode::member(),
                false => node.below.reconcile(child),
            }
        }
    }

    /// The paths as in conflicts: `.spec.ports[port=80,protocol="TCP"].name`.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect_paths(&mut String::new(), &mut paths);
        paths
    }

    fn collect_paths(&self, path: &mut String, paths: &mut Vec<String>) {
        for (element, node) in &self.0 {
            let length = path.len();
            let _ = write!(path, "{element}");
            if node.is_member {
                paths.push(path.clone());
            }
            node.below.collect_paths(path, paths);
            path.truncate(length);
        }
    }

    /// FieldsV1.
    pub fn to_json(&self) -> Value {
        let mut members = Map::new();
        self.write_members(&mut members);
        Value::Object(members)
    }

    fn write_members(&self, members: &mut Map<String, Value>) {
        for (element, node) in &self.0 {
            let mut below = Map::new();
            if node.is_member && !node.below.is_empty() {
                below.insert(".".to_owned(), Value::Object(Map::new()));
            }
            node.below.write_members(&mut below);
            members.insert(element.to_text(), Value::Object(below));
        }
    }

    /// Reads FieldsV1; `None` if it is malformed. Elements with an unknown prefix are dropped.
    pub fn from_json(fields: &Value) -> Option<Self> {
        let mut set = Self::default();
        for (text, below) in fields.as_object()?.iter().filter(|(text, _)| *text != ".") {
            let Some(element) = PathElement::from_text(text)? else { continue };
            let is_member = is_member(below);
            set.put(element, FieldNode { is_member, below: Self::from_json(below)? });
        }
        Some(set)
    }
}

/// Whether a path is in a set, by what its text form has there.
fn is_member(below: &Value) -> bool {
    below.as_object().is_some_and(|members| members.is_empty() || members.contains_key("."))
}

impl PathElement {
    pub(super) fn field(name: &str) -> Self {
        Self::Field(name.to_owned())
    }

    fn to_text(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(keys) => format!("k:{keys}"),
            Self::Value(value) => format!("v:{value}"),
            Self::Index(at) => format!("i:{at}"),
        }
    }

    /// `None` if it is malformed, `Some(None)` if its prefix is unknown.
    fn from_text(text: &str) -> Option<Option<Self>> {
        let parsed = |text: &str| serde_json::from_str::<Value>(text).ok();
        Some(match text.split_once(':')? {
            ("f", name) => Some(Self::field(name)),
            ("k", keys) => {
                let keys: BTreeMap<String, Value> = serde_json::from_str(keys).ok()?;
                Some(Self::Key(serde_json::to_string(&keys).ok()?))
            }
            ("v", value) => Some(Self::Value(parsed(value)?.to_string())),
            ("i", at) => Some(Self::Index(at.parse().ok()?)),
            _ => None,
        })
    }
}

impl fmt::Display for PathElement {
    /// As in conflicts: `.name`, `[port=80,protocol="TCP"]`, `[="value"]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(keys) => {
                let keys: BTreeMap<String, Value> = serde_json::from_str(keys).unwrap_or_default();
                let pairs: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
                write!(f, "[{}]", pairs.join(","))
            }
            Self::Value(value) => write!(f, "[={value}]"),
            Self::Index(at) => write!(f, "[{at}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(fields: Value) -> FieldSet {
        FieldSet::from_json(&fields).unwrap()
    }

    #[test]
    fn fields_v1_is_read_and_written() {
        let fields = json!({"f:metadata": {"f:finalizers": {".": {}, "v:\"a/b\"": {}}},
            "f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}}}}});
        assert_eq!(set(fields.clone()).to_json(), fields);
        let unsorted = json!({"k:{\"protocol\":\"TCP\",\"port\":80}": {}, "x:other": {}, "i:3": {}});
        assert_eq!(
            set(unsorted).to_json(),
            json!({"k:{\"port\":80,\"protocol\":\"TCP\"}": {}, "i:3": {}}),
            "keys are sorted, unknown prefixes dropped"
        );
        for malformed in
            [json!([]), json!({"f:a": 1}), json!({"plain": {}}), json!({"k:{": {}}), json!({"i:x": {}})]
        {
            assert_eq!(FieldSet::from_json(&malformed), None, "{malformed}");
        }
    }

    #[test]
    fn paths_are_written_as_in_conflicts() {
        let fields = set(json!({"f:metadata": {"f:finalizers": {"v:\"a\"": {}}},
            "f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}}}}}));
        assert_eq!(
            fields.paths(),
            [
                ".metadata.finalizers[=\"a\"]",
                ".spec.ports[port=80,protocol=\"TCP\"]",
                ".spec.ports[port=80,protocol=\"TCP\"].name"
            ]
        );
    }

    #[test]
    fn sets_are_combined_path_by_path() {
        let a = set(json!({"f:a": {".": {}, "f:x": {}, "f:y": {}}, "f:b": {}}));
        let b = set(json!({"f:a": {"f:x": {}}, "f:b": {}, "f:c": {}}));
        assert_eq!(a.difference(&b).to_json(), json!({"f:a": {".": {}, "f:y": {}}}));
        assert_eq!(a.intersection(&b).to_json(), json!({"f:a": {"f:x": {}}, "f:b": {}}));
        let whole = set(json!({"f:a": {}}));
        assert_eq!(a.difference(&whole).to_json(), json!({"f:a": {"f:x": {}, "f:y": {}}, "f:b": {}}));
        let mut rest = a.clone();
        rest.subtract_subtrees(&whole);
        assert_eq!(rest.to_json(), json!({"f:b": {}}));
        assert!(a.intersection(&b).is_in(&a.to_json()) && !a.is_in(&b.to_json()));
        assert!(rest.is_outside(&whole.to_json()) && !b.is_outside(&a.to_json()));
        let mut both = a.clone();
        both.extend(b);
        assert_eq!(both.to_json(), json!({"f:a": {".": {}, "f:x": {}, "f:y": {}}, "f:b": {}, "f:c": {}}));
        assert_eq!(FieldSet::of_fields(&["a", "a.x", "b.c"]).paths(), [".a", ".a.x", ".b.c"]);
    }
}

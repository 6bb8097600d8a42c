//! Objects compared, merged and pruned by their schema.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::field_schema::{FieldSchema, ItemIdentity, MergeType};
use super::field_set::{FieldNode, FieldSet, PathElement};

static NULL: Value = Value::Null;
static EMPTY: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));

/// What differs between two objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldChanges {
    pub(super) added: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) removed: FieldSet,
}

impl FieldChanges {
    /// The same changes but for these fields, and all below them.
    pub(super) fn without_subtrees(mut self, ignored: &FieldSet) -> Self {
        for set in [&mut self.added, &mut self.modified, &mut self.removed] {
            set.subtract_subtrees(ignored);
        }
        self
    }

    /// The paths that have a new value.
    pub(super) fn set(&self) -> FieldSet {
        self.clone().into_set()
    }

    pub(super) fn into_set(self) -> FieldSet {
        let mut set = self.added;
        set.extend(self.modified);
        set
    }
}

/// As [`FieldChanges`], of one value.
#[derive(Default)]
struct NodeChanges {
    added: FieldNode,
    modified: FieldNode,
    removed: FieldNode,
}

impl NodeChanges {
    fn put(&mut self, element: PathElement, node: Self) {
        self.added.below.put(element.clone(), node.added);
        self.modified.below.put(element.clone(), node.modified);
        self.removed.below.put(element, node.removed);
    }
}

pub(super) fn compare(schema: FieldSchema<'_>, old: &Value, new: &Value) -> FieldChanges {
    let NodeChanges { added, modified, removed } = compare_values(schema, Some(old), Some(new));
    FieldChanges { added: added.below, modified: modified.below, removed: removed.below }
}

fn compare_values(schema: FieldSchema<'_>, old: Option<&Value>, new: Option<&Value>) -> NodeChanges {
    let mut changes = NodeChanges::default();
    if old == new {
        return changes;
    }
    match common_type(schema, old, new) {
        Some(MergeType::Leaf) => {
            changes.modified.is_member = old.is_some() && new.is_some();
        }
        Some(MergeType::Map) => compare_maps(schema, old, new, &mut changes),
        Some(MergeType::List(identity)) => compare_lists(schema, identity, old, new, &mut changes),
        None => {
            changes.removed.below = compare_values(schema, old, None).removed.below;
            changes.added.below = compare_values(schema, None, new).added.below;
            changes.modified.is_member = true;
        }
    }
    changes.added.is_member |= old.is_none();
    changes.removed.is_member |= new.is_none();
    changes
}

/// How two values are compared or merged; `None` if one is a map or list and the other has another type. Empty values go
/// with any type.
fn common_type<'a>(
    schema: FieldSchema<'a>,
    old: Option<&Value>,
    new: Option<&Value>,
) -> Option<MergeType<'a>> {
    let merge_type = |value: Option<&Value>| value.map_or(MergeType::Leaf, |value| schema.merge_type(value));
    match (merge_type(old), merge_type(new)) {
        (a, b) if a == b => Some(a),
        (MergeType::Leaf, b) if old.is_none_or(is_empty) => Some(b),
        (a, MergeType::Leaf) if new.is_none_or(is_empty) => Some(a),
        _ => None,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(members) => members.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn compare_maps<'v>(
    schema: FieldSchema<'_>,
    old: Option<&'v Value>,
    new: Option<&'v Value>,
    changes: &mut NodeChanges,
) {
    let mut names: BTreeSet<&str> = schema.always_present().iter().copied().collect();
    for object in [old, new].into_iter().flatten() {
        names.extend(object.as_object().into_iter().flat_map(Map::keys).map(String::as_str));
    }
    let member_of = |object: Option<&'v Value>, name: &str| object.and_then(|object| object.get(name));
    for name in names {
        if member_of(old, name) == member_of(new, name) {
            continue;
        }
        let Some(member) = schema.member(name) else { continue };
        let absent = match schema.always_present().contains(&name) {
            true if member.is_list() => Some(&NULL),
            true => Some(&*EMPTY),
            false => None,
        };
        let below = compare_values(member, present(old, name, absent), present(new, name, absent));
        changes.put(PathElement::field(name), below);
    }
}

/// A member of a map; `absent` stands for one that is missing or null.
fn present<'v>(object: Option<&'v Value>, name: &str, absent: Option<&'static Value>) -> Option<&'v Value> {
    let member = object?.get(name);
    member.filter(|value| absent.is_none() || !value.is_null()).or(absent)
}

fn compare_lists(
    schema: FieldSchema<'_>,
    identity: ItemIdentity<'_>,
    old: Option<&Value>,
    new: Option<&Value>,
    changes: &mut NodeChanges,
) {
    let (old, new) = (items_by_element(schema, identity, old), items_by_element(schema, identity, new));
    let elements: BTreeSet<&PathElement> = old.keys().chain(new.keys()).collect();
    let none = Vec::new();
    for element in elements {
        let (old, new) = (old.get(element).unwrap_or(&none), new.get(element).unwrap_or(&none));
        let below = match (old.as_slice(), new.as_slice()) {
            ([] | [_], [] | [_]) => {
                compare_values(schema.items(), old.first().copied(), new.first().copied())
            }
            // Duplicates are one item without fields.
            (old, new) => {
                let mut below = NodeChanges::default();
                let node = match (old, new) {
                    ([], _) => &mut below.added,
                    (_, []) => &mut below.removed,
                    _ => &mut below.modified,
                };
                node.is_member = old != new;
                below
            }
        };
        changes.put(element.clone(), below);
    }
}

/// The items of a list by path element; those without one are left out.
fn items_by_element<'v>(
    schema: FieldSchema<'_>,
    identity: ItemIdentity<'_>,
    list: Option<&'v Value>,
) -> BTreeMap<PathElement, Vec<&'v Value>> {
    let mut by_element: BTreeMap<PathElement, Vec<&Value>> = BTreeMap::new();
    for item in list.and_then(Value::as_array).into_iter().flatten() {
        if let Ok(element) = schema.item_element(identity, item) {
            by_element.entry(element).or_default().push(item);
        }
    }
    by_element
}

/// The fields that an applied object sets.
pub(super) fn field_set(schema: FieldSchema<'_>, object: &Value) -> FieldSet {
    node_of(schema, object).below
}

fn node_of(schema: FieldSchema<'_>, value: &Value) -> FieldNode {
    let mut node = FieldNode::default();
    match schema.merge_type(value) {
        // Of lists that are merged, only the items are owned.
        MergeType::Leaf => node.is_member = !(value.is_array() && schema.is_merged_list()),
        MergeType::Map => {
            for (name, value) in value.as_object().into_iter().flatten() {
                let Some(member) = schema.member(name) else { continue };
                let mut below = node_of(member, value);
                below.is_member |= value.is_null() || !schema.declares(name);
                node.below.put(PathElement::field(name), below);
            }
        }
        MergeType::List(identity) => {
            for (element, items) in items_by_element(schema, identity, Some(value)) {
                let mut below = match items.as_slice() {
                    [item] => node_of(schema.items(), item),
                    _ => FieldNode::default(),
                };
                below.is_member = true;
                node.below.put(element, below);
            }
        }
    }
    node
}

/// Checks that an applied object has fields of the schema only, and lists whose items can be told apart.
pub(super) fn check(schema: FieldSchema<'_>, value: &Value, path: &mut String) -> Result<(), String> {
    let length = path.len();
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                path.push('.');
                path.push_str(name);
                let member = schema.member(name);
                let member = member.ok_or_else(|| format!("{path}: field not declared in schema"))?;
                check(member, value, path)?;
                path.truncate(length);
            }
        }
        Value::Array(items) => {
            let mut seen = BTreeSet::new();
            for (at, item) in items.iter().enumerate() {
                let mut step = format!("[{at}]");
                if let MergeType::List(identity) = schema.merge_type(value) {
                    let element = schema.item_element(identity, item);
                    let element = element.map_err(|error| format!("{path}: element {at}: {error}"))?;
                    step = element.to_string();
                    if !seen.insert(element) {
                        return Err(format!("{path}: duplicate entries for key {step}"));
                    }
                }
                path.push_str(&step);
                check(schema.items(), item, path)?;
                path.truncate(length);
            }
        }
        _ => {}
    }
    Ok(())
}

/// The stored value with what the applied one sets.
pub(super) fn merge(schema: FieldSchema<'_>, live: &Value, config: &Value) -> Value {
    match common_type(schema, Some(live), Some(config)) {
        Some(MergeType::Map) => {
            let mut merged = live.as_object().cloned().unwrap_or_default();
            for (name, value) in config.as_object().into_iter().flatten() {
                let value = match (merged.get(name), schema.member(name)) {
                    (Some(live), Some(member)) => merge(member, live, value),
                    _ => value.clone(),
                };
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        Some(MergeType::List(identity)) => {
            Value::Array(merge_lists(schema, identity, as_list(live), as_list(config)))
        }
        _ => config.clone(),
    }
}

fn as_list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Items that both have come in the order of the applied list; stored ones that it does not name stay before the next
/// shared item that follows them.
fn merge_lists(
    schema: FieldSchema<'_>,
    identity: ItemIdentity<'_>,
    live: &[Value],
    config: &[Value],
) -> Vec<Value> {
    let element = |item: &Value| schema.item_element(identity, item).ok();
    let live_elements: Vec<Option<PathElement>> = live.iter().map(element).collect();
    let config_elements: Vec<Option<PathElement>> = config.iter().map(element).collect();
    // Of duplicates in the stored list, none is merged.
    let mut stored: BTreeMap<&PathElement, Option<&Value>> = BTreeMap::new();
    for (element, item) in live_elements.iter().zip(live) {
        if let Some(element) = element {
            stored.entry(element).and_modify(|found| *found = None).or_insert(Some(item));
        }
    }
    let applied: BTreeSet<&PathElement> = config_elements.iter().flatten().collect();
    let is_applied =
        |element: &Option<PathElement>| element.as_ref().is_some_and(|one| applied.contains(one));
    // For each applied item, the next one that is stored as well.
    let mut next_shared: Vec<Option<&Option<PathElement>>> = vec![None; config.len()];
    let mut following = None;
    for (at, element) in config_elements.iter().enumerate().rev() {
        if element.as_ref().is_some_and(|one| stored.contains_key(one)) {
            following = Some(element);
        }
        next_shared[at] = following;
    }
    let mut merged = Vec::with_capacity(live.len() + config.len());
    let mut rest = live_elements.iter().zip(live).peekable();
    for ((element, item), next_shared) in config_elements.iter().zip(config).zip(next_shared) {
        while let Some((next, other)) = rest.next_if(|(next, _)| Some(*next) != next_shared) {
            // Shared items that are not due are merged at their place in the applied list.
            if !is_applied(next) {
                merged.push(other.clone());
            }
        }
        let _ = rest.next_if(|(next, _)| *next == element);
        merged.push(match element.as_ref().and_then(|element| stored.get(element)) {
            Some(Some(live)) => merge(schema.items(), live, item),
            _ => item.clone(),
        });
    }
    merged.extend(rest.filter(|(element, _)| !is_applied(element)).map(|(_, item)| item.clone()));
    merged
}

/// A value without some of its fields and items; `None` if nothing is left of it.
pub(super) fn remove(schema: FieldSchema<'_>, value: &Value, gone: &FieldSet) -> Option<Value> {
    if gone.is_empty() {
        return Some(value.clone());
    }
    let kept = |child: FieldSchema<'_>, element: &PathElement, value: &Value| match gone.get(element) {
        None => Some(value.clone()),
        Some(node) if node.is_member => None,
        Some(node) => remove(child, value, &node.below),
    };
    match schema.merge_type(value) {
        MergeType::Leaf => Some(value.clone()),
        MergeType::Map => {
            let mut left = Map::new();
            for (name, value) in value.as_object().into_iter().flatten() {
                let element = PathElement::field(name);
                let value = match schema.member(name) {
                    Some(member) => kept(member, &element, value),
                    None => Some(value.clone()),
                };
                if let Some(value) = value {
                    left.insert(name.clone(), value);
                }
            }
            (!left.is_empty()).then_some(Value::Object(left))
        }
        MergeType::List(identity) => {
            let items = as_list(value).iter().filter_map(|item| match schema.item_element(identity, item) {
                Ok(element) => kept(schema.items(), &element, item),
                Err(_) => Some(item.clone()),
            });
            let left: Vec<Value> = items.collect();
            (!left.is_empty()).then_some(Value::Array(left))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        let item = json!({"type": "object", "properties": {"name": {"type": "string"}, "value": {"type": "integer"}}});
        json!({"type": "object", "properties": {
            "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            "list": {"type": "array", "items": item, "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"]},
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
    }

    #[test]
    fn applied_items_come_in_their_order_and_stored_ones_between_them() {
        let (schema, definitions) = (schema(), Map::new());
        let schema = FieldSchema::custom(&definitions, &schema);
        for (live, config, merged) in [
            ("abc", "", "abc"),
            ("", "abc", "abc"),
            ("abc", "b", "abc"),
            ("abc", "cba", "cba"),
            ("abx", "ba", "bxa"),
            ("xay", "aby", "xaby"),
            ("xy", "ab", "xyab"),
            ("axby", "ba", "xbya"),
            ("ab", "nab", "nab"),
            ("xab", "nab", "xnab"),
        ] {
            let list = |text: &str| json!({"set": text.chars().map(String::from).collect::<Vec<_>>()});
            assert_eq!(merge(schema, &list(live), &list(config)), list(merged), "{live} + {config}");
        }
    }

    #[test]
    fn duplicates_of_a_stored_list_are_one_item() {
        let (schema, definitions) = (schema(), Map::new());
        let schema = FieldSchema::custom(&definitions, &schema);
        let old = json!({"list": [{"name": "a", "value": 1}, {"name": "a", "value": 2}]});
        let new = json!({"list": [{"name": "a", "value": 1}]});
        let changes = compare(schema, &old, &new);
        assert_eq!(changes.set().paths(), [".list[name=\"a\"]"]);
        assert_eq!(compare(schema, &old, &old), FieldChanges::default());
        assert_eq!(field_set(schema, &old).paths(), [".list[name=\"a\"]"]);
        let error = check(schema, &old, &mut String::new()).unwrap_err();
        assert_eq!(error, ".list: duplicate entries for key [name=\"a\"]");
        let error = check(schema, &json!({"list": [{"value": 1}]}), &mut String::new()).unwrap_err();
        assert!(error.starts_with(".list: element 0: associative list with keys"), "{error}");
    }

    #[test]
    fn values_without_a_schema_are_merged_by_their_own_type() {
        let (schema, definitions) = (schema(), Map::new());
        let schema = FieldSchema::custom(&definitions, &schema);
        let (old, new) = (json!({"open": {"a": {"b": 1}, "l": [1]}}), json!({"open": {"a": 1, "l": [2]}}));
        let changes = compare(schema, &old, &new);
        assert_eq!(changes.modified.paths(), [".open.a", ".open.l"]);
        assert_eq!(changes.removed.paths(), [".open.a.b"]);
        assert_eq!(merge(schema, &old, &new), new);
        assert_eq!(field_set(schema, &old).paths(), [".open.a", ".open.a.b", ".open.l"]);
    }
}

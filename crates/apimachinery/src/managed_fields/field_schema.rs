//! How fields are merged, read from OpenAPI schemas: which lists are sets or have keys, which values are atomic. Schemas
//! of custom resources carry that themselves; those of built-in kinds get it from [`super::list_types`].

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::field_set::PathElement;
use super::list_types;

/// The schema of a value.
#[derive(Clone, Copy, Debug)]
pub struct FieldSchema<'a> {
    /// References are resolved.
    schema: &'a Value,
    /// The schema of the field, whose extensions count as well.
    field: &'a Value,
    /// The name of the definition; built-in types have one.
    name: &'a str,
    definitions: &'a Map<String, Value>,
}

/// How the items of a list are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemIdentity<'a> {
    /// By value.
    Set,
    /// By some of their fields.
    Keys(&'a [Value]),
}

/// How a value is merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MergeType<'a> {
    /// As a whole: scalars, and values that are atomic.
    Leaf,
    Map,
    List(ItemIdentity<'a>),
}

/// For values without a schema: maps field by field, lists as a whole.
static OPEN: Value = Value::Null;

impl<'a> FieldSchema<'a> {
    /// The schema of a built-in kind, by the name of its definition.
    pub fn builtin(definitions: &'a Map<String, Value>, name: &'a str) -> Option<Self> {
        let schema = definitions.get(name)?;
        Some(Self { schema, field: schema, name, definitions })
    }

    /// The schema of a custom resource; its references lead to `definitions`.
    pub fn custom(definitions: &'a Map<String, Value>, schema: &'a Value) -> Self {
        Self { schema, field: schema, name: "", definitions }
    }

    fn field(&self, field: &'a Value) -> Self {
        let reference = field["$ref"].as_str().or_else(|| field["allOf"][0]["$ref"].as_str());
        let name = reference.and_then(|reference| reference.rsplit('/').next()).unwrap_or_default();
        match self.definitions.get(name) {
            Some(schema) => Self { schema, field, name, ..*self },
            None => Self { schema: field, field, name: "", ..*self },
        }
    }

    fn open(&self) -> Self {
        Self { schema: &OPEN, field: &OPEN, name: "", ..*self }
    }

    fn has_extension(&self, name: &str, value: &str) -> bool {
        self.field[name] == value || self.schema[name] == value
    }

    fn preserves_unknown(&self) -> bool {
        self.schema["x-kubernetes-preserve-unknown-fields"] == true
    }

    /// Whether anything is allowed here.
    fn is_open(&self) -> bool {
        let has = |name: &str| !self.schema[name].is_null();
        match self.schema["type"].as_str() {
            Some("object") => !has("properties") && !self.schema["additionalProperties"].is_object(),
            Some(_) => false,
            None => {
                !has("properties")
                    && !has("oneOf")
                    && !has("anyOf")
                    && self.schema["x-kubernetes-int-or-string"] != true
            }
        }
    }

    /// How a value is merged; an empty one is a leaf.
    pub(super) fn merge_type(&self, value: &Value) -> MergeType<'a> {
        if self.is_atomic() {
            return MergeType::Leaf;
        }
        match value {
            Value::Object(members) if !members.is_empty() => MergeType::Map,
            Value::Array(items) if !items.is_empty() => match self.field["x-kubernetes-list-type"].as_str() {
                Some("set") => MergeType::List(ItemIdentity::Set),
                Some("map") => {
                    let keys = self.field["x-kubernetes-list-map-keys"].as_array();
                    MergeType::List(ItemIdentity::Keys(keys.map_or(&[], Vec::as_slice)))
                }
                _ => MergeType::Leaf,
            },
            _ => MergeType::Leaf,
        }
    }

    /// Whether a list, map or struct here is merged as a whole.
    pub(super) fn is_atomic(&self) -> bool {
        match self.schema["type"].as_str() {
            Some("array") => !self.is_merged_list(),
            Some("object") | None => self.has_extension("x-kubernetes-map-type", "atomic"),
            Some(_) => false,
        }
    }

    /// The schema of a member of a map or struct; `None` if the schema does not allow it.
    pub(super) fn member(&self, name: &str) -> Option<Self> {
        if let Some(field) = self.declared(name) {
            return Some(self.field(field));
        }
        let additional = &self.schema["additionalProperties"];
        if additional.is_object() {
            return Some(self.field(additional));
        }
        (self.is_open() || self.preserves_unknown() || *additional == true).then(|| self.open())
    }

    fn declared(&self, name: &str) -> Option<&'a Value> {
        self.schema["properties"].get(name)
    }

    /// Whether a member is a field of the schema, and no key of a map.
    pub(super) fn declares(&self, name: &str) -> bool {
        self.declared(name).is_some()
    }

    /// The schema of the items of a list.
    pub(super) fn items(&self) -> Self {
        match &self.schema["items"] {
            Value::Null => self.open(),
            items => self.field(items),
        }
    }

    /// The schema at a path element, and whether that is a declared field.
    pub(super) fn at(&self, element: &PathElement) -> (Self, bool) {
        match element {
            PathElement::Field(name) => {
                (self.member(name).unwrap_or_else(|| self.open()), self.declares(name))
            }
            _ => (self.items(), false),
        }
    }

    /// The fields that exist in every object of a built-in type, since they are structs and not pointers.
    pub(super) fn always_present(&self) -> &'static [&'static str] {
        list_types::always_present(self.name)
    }

    pub(super) fn is_list(&self) -> bool {
        self.schema["type"] == "array"
    }

    /// Whether a list here is merged item by item.
    pub(super) fn is_merged_list(&self) -> bool {
        matches!(self.field["x-kubernetes-list-type"].as_str(), Some("set" | "map"))
    }

    /// The path element of an item of a list.
    pub(super) fn item_element(
        &self,
        identity: ItemIdentity<'_>,
        item: &Value,
    ) -> Result<PathElement, String> {
        let ItemIdentity::Keys(keys) = identity else {
            return match item {
                Value::Null => Err("associative list without keys may not have a null element".to_owned()),
                Value::Object(_) => {
                    Err("associative list without keys has an element that's a map type".to_owned())
                }
                Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
                value => Ok(PathElement::Value(value.to_string())),
            };
        };
        let Value::Object(members) = item else {
            return Err("associative list with keys may not have non-map elements".to_owned());
        };
        let items = self.items();
        let keys: Vec<&str> = keys.iter().filter_map(Value::as_str).collect();
        let mut found: BTreeMap<&str, &Value> = BTreeMap::new();
        for key in &keys {
            let default = || items.member(key).and_then(|schema| schema.default());
            if let Some(value) = members.get(*key).or_else(default) {
                found.insert(key, value);
            }
        }
        if found.is_empty() {
            return Err(format!(
                "associative list with keys has an element that omits all key fields {keys:?} (and doesn't have default values for any key fields)"
            ));
        }
        let text = serde_json::to_string(&found).map_err(|error| error.to_string())?;
        Ok(PathElement::Key(text))
    }

    fn default(&self) -> Option<&'a Value> {
        self.field.get("default").or_else(|| self.schema.get("default"))
    }
}

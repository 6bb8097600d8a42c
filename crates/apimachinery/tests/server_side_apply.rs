//! The cases of `vectors/server-side-apply.json` for custom resources, on a store of one object. Those of built-in kinds
//! run against the API, in the crate `store`.

mod pruned;

use std::borrow::Cow;

use apimachinery::managed_fields::{
    ApiVersions, ApplyConflict, ApplyRefusal, ApplyRequest, FieldSchema, FieldSet, FieldWrite, ManagedFields,
};
use pruned::pruned;
use serde_json::{Map, Value, json};

/// The versions of the widgets: one schema, and conversion of apiVersion only.
struct Widgets {
    schema: Value,
    definitions: Map<String, Value>,
}

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

impl Widgets {
    fn new(schema: &Value) -> Self {
        let mut schema = schema["openAPIV3Schema"].clone();
        let text = json!({"type": "string"});
        let texts = json!({"type": "object", "additionalProperties": text});
        schema["properties"]["apiVersion"] = text.clone();
        schema["properties"]["kind"] = text.clone();
        schema["properties"]["metadata"] = json!({"$ref": format!("#/components/schemas/{META}")});
        let meta = json!({"type": "object", "properties": {"name": text, "namespace": text, "labels": texts,
            "annotations": texts, "finalizers": {"type": "array", "items": text}}});
        let mut definitions = Map::from_iter([(META.to_owned(), meta)]);
        apimachinery::managed_fields::annotate(&mut definitions);
        Self { schema, definitions }
    }
}

impl ApiVersions for Widgets {
    fn schema(&self, api_version: &str) -> Option<FieldSchema<'_>> {
        let is_served = ["ssa.test.example/v1", "ssa.test.example/v2"].contains(&api_version);
        is_served.then(|| FieldSchema::custom(&self.definitions, &self.schema))
    }

    fn convert<'v>(&self, object: &'v Value, api_version: &str) -> Cow<'v, Value> {
        let mut converted = object.clone();
        converted["apiVersion"] = api_version.into();
        Cow::Owned(converted)
    }
}

struct World {
    widgets: Widgets,
    object: Option<Value>,
    managed: ManagedFields,
    revision: u64,
    seconds: u64,
}

impl World {
    /// The status code, and the message of an error with its conflicts.
    fn step(&mut self, step: &Value, default_version: &str) -> (u64, String, Vec<ApplyConflict>) {
        let text = |name: &str| step[name].as_str().unwrap_or_default();
        self.seconds += 1 + step["delaySeconds"].as_u64().unwrap_or(0);
        let time = format!("2026-01-01T00:{:02}:{:02}Z", self.seconds / 60, self.seconds % 60);
        let version = step["version"].as_str().unwrap_or(default_version);
        let is_status = text("subresource") == "status";
        let reset = FieldSet::of_fields(if is_status { &["spec", "metadata"] } else { &["status"] });
        let write = FieldWrite {
            versions: &self.widgets,
            reset: &reset,
            manager: text("manager"),
            api_version: version,
            subresource: text("subresource"),
            time: &time,
        };
        let live = self.object.as_ref().map(|live| self.widgets.convert(live, version).into_owned());
        let managed = self.managed.clone();
        let (mut new, managed) = match text("op") {
            "apply" => {
                let force = step["force"] == true;
                let request = ApplyRequest { write, config: &step["object"], force };
                match managed.applied(&request, live.as_ref()) {
                    Ok(applied) => applied,
                    Err(ApplyRefusal::Invalid(why)) => return (500, why, Vec::new()),
                    Err(ApplyRefusal::Conflicts(conflicts)) => {
                        return (409, ApplyConflict::summary(&conflicts), conflicts);
                    }
                }
            }
            op => {
                let mut new = match op {
                    "patch" => {
                        assert_eq!(text("patchType"), "merge");
                        let mut new = live.clone().unwrap();
                        merge_patch(&mut new, &step["object"]);
                        new
                    }
                    _ => step["object"].clone(),
                };
                fill_defaults(&self.widgets.schema, &mut new);
                let managed = updated(managed, &write, live.as_ref(), &new);
                (new, managed)
            }
        };
        fill_defaults(&self.widgets.schema, &mut new);
        let code = if live.is_none() { 201 } else { 200 };
        let kept = live.unwrap_or_else(|| json!({}));
        match is_status {
            true => {
                let status = new["status"].take();
                new = kept;
                new["status"] = status;
            }
            false => new["status"] = kept["status"].clone(),
        }
        new["apiVersion"] = version.into();
        let stored = self.object.as_ref().map(|stored| self.widgets.convert(stored, version).into_owned());
        if stored.map(|stored| pruned(&stored)) != Some(pruned(&new))
            || !self.managed.has_same_owners(&managed)
        {
            self.revision += 1;
            (self.object, self.managed) = (Some(new), managed);
        }
        (code, String::new(), Vec::new())
    }
}

/// Ownership after a create or an update, which is the same with entries that are not decoded.
fn updated(
    managed: ManagedFields,
    write: &FieldWrite<'_>,
    live: Option<&Value>,
    new: &Value,
) -> ManagedFields {
    let Some(live) = live else { return ManagedFields::created(write, new) };
    let mut entries = managed.to_json();
    let managed = managed.updated(write, live, new);
    ManagedFields::update_entries(&mut entries, write, live, new);
    assert_eq!(entries, managed.to_json());
    managed
}

fn merge_patch(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    for (name, change) in patch {
        match change {
            Value::Null => drop(value.as_object_mut().unwrap().remove(name)),
            change => merge_patch(&mut value[name], change),
        }
    }
}

fn fill_defaults(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(default) = property.get("default").filter(|_| !members.contains_key(name)) {
                    members.insert(name.clone(), default.clone());
                }
                if let Some(member) = members.get_mut(name) {
                    fill_defaults(property, member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| fill_defaults(&schema["items"], item)),
        _ => {}
    }
}

fn without_times(managed: &ManagedFields) -> Value {
    let mut entries = managed.to_json();
    for entry in entries.as_array_mut().unwrap() {
        let entry = entry.as_object_mut().unwrap();
        entry.remove("time");
        assert_eq!(entry.remove("fieldsType"), Some(json!("FieldsV1")));
    }
    entries
}

fn sorted(entries: &Value) -> Vec<String> {
    let text = |entry: &Value| {
        let mut entry = entry.clone();
        entry.sort_all_objects();
        entry.to_string()
    };
    let mut entries: Vec<String> = entries.as_array().into_iter().flatten().map(text).collect();
    entries.sort();
    entries
}

#[test]
fn the_vectors_of_custom_resources_hold() {
    let vectors: Value =
        serde_json::from_str(include_str!("../../../vectors/server-side-apply.json")).unwrap();
    let mut count = 0;
    for case in vectors["cases"].as_array().unwrap().iter().filter(|case| case["kind"] == "Widget") {
        count += 1;
        run(case, &vectors["schemas"]);
    }
    assert_eq!(count, 20, "cases of custom resources");
}

fn run(case: &Value, schemas: &Value) {
    let name = case["id"].as_str().unwrap();
    let default_version = case["apiVersion"].as_str().unwrap();
    let widgets = Widgets::new(&schemas[case["schema"].as_str().unwrap()]);
    let managed = ManagedFields::default();
    let mut world = World { widgets, object: None, managed, revision: 0, seconds: 0 };
    for (i, step) in case["steps"].as_array().unwrap().iter().enumerate() {
        let (what, expect) = (format!("{name}, step {i}"), &step["expect"]);
        let before = world.revision;
        let (code, message, conflicts) = match step["op"].as_str().unwrap() {
            "schema" => {
                world.widgets = Widgets::new(&schemas[step["schema"].as_str().unwrap()]);
                continue;
            }
            "get" => (200, String::new(), Vec::new()),
            _ => world.step(step, default_version),
        };
        assert_eq!(code, expect["status"].as_u64().unwrap(), "{what}: {message}");
        if let Some(part) = expect["messageContains"].as_str() {
            assert!(message.contains(part), "{what}: {message}");
        }
        if let Some(whole) = expect["message"].as_str() {
            assert_eq!(message, whole, "{what}");
        }
        if let Some(expected) = expect["conflicts"].as_array() {
            let pair = |conflict: &Value| {
                (
                    conflict["field"].as_str().unwrap().to_owned(),
                    conflict["message"].as_str().unwrap().to_owned(),
                )
            };
            let mut expected: Vec<(String, String)> = expected.iter().map(pair).collect();
            let mut found: Vec<(String, String)> =
                conflicts.iter().map(|conflict| (conflict.field.clone(), conflict.message())).collect();
            expected.sort();
            found.sort();
            assert_eq!(found, expected, "{what}");
        }
        if let Some(unchanged) = expect["resourceVersionUnchanged"].as_bool() {
            assert_eq!(world.revision == before, unchanged, "{what}");
        }
        if !expect["object"].is_null() {
            let mut object = world.object.clone().unwrap();
            object["apiVersion"] = expect["object"]["apiVersion"].clone();
            assert_eq!(pruned(&object), pruned(&expect["object"]), "{what}");
        }
        if !expect["managedFields"].is_null() {
            assert_eq!(sorted(&without_times(&world.managed)), sorted(&expect["managedFields"]), "{what}");
        }
    }
}

#[test]
fn entries_are_read_and_written_as_they_are() {
    let entry = |manager: &str, operation: &str, time: &str| {
        json!({"manager": manager, "operation": operation, "apiVersion": "v1", "time": time,
            "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:a": {}}}})
    };
    let entries = json!([
        entry("z", "Apply", "2026-01-01T00:00:01Z"),
        entry("a", "Apply", "2026-01-01T00:00:02Z"),
        entry("b", "Update", "2026-01-01T00:00:00Z"),
    ]);
    assert_eq!(ManagedFields::from_json(&entries).unwrap().to_json(), entries);
    for (field, value) in [
        ("operation", json!("Delete")),
        ("apiVersion", json!("")),
        ("fieldsType", Value::Null),
        ("fieldsV1", json!({"f:a": []})),
    ] {
        let mut entry = entry("a", "Apply", "2026-01-01T00:00:02Z");
        entry[field] = value;
        assert_eq!(ManagedFields::from_json(&json!([entry])), None, "{field}");
    }
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    /// An object of the first schema of the vectors, with lists of all types.
    fn config() -> impl Strategy<Value = Value> {
        let word = || prop::sample::select(vec!["a", "b", "c", "d"]);
        let words = || prop::sample::subsequence(vec!["a", "b", "c", "d"], 0..4).prop_shuffle();
        let items = prop::collection::btree_map(word(), 0..3u8, 0..4);
        let options = prop::collection::btree_map(word(), word(), 0..4);
        (words(), items, options.clone(), options, prop::option::of(0..3u8)).prop_map(
            |(tags, items, options, limits, count)| {
                let items: Vec<Value> =
                    items.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
                let mut spec = json!({"tags": tags, "items": items, "options": options, "limits": limits});
                if let Some(count) = count {
                    spec["count"] = count.into();
                }
                json!({"apiVersion": "ssa.test.example/v1", "kind": "Widget",
                    "metadata": {"name": "w", "finalizers": tags}, "spec": spec})
            },
        )
    }

    proptest! {
        #[test]
        fn an_apply_that_is_repeated_changes_nothing(
            steps in prop::collection::vec((0..3u8, any::<bool>(), config()), 1..8)
        ) {
            let vectors: Value =
                serde_json::from_str(include_str!("../../../vectors/server-side-apply.json")).unwrap();
            let widgets = Widgets::new(&vectors["schemas"]["widget-1"]);
            let reset = FieldSet::of_fields(&["status"]);
            let (mut object, mut managed) = (None, ManagedFields::default());
            for (manager, is_apply, config) in &steps {
                let manager = format!("m{manager}");
                let write = FieldWrite { versions: &widgets, reset: &reset, manager: &manager,
                    api_version: "ssa.test.example/v1", subresource: "", time: "2026-01-01T00:00:00Z" };
                if !is_apply {
                    managed = updated(managed, &write, object.as_ref(), config);
                    object = Some(config.clone());
                    continue;
                }
                let forced = ApplyRequest { write, config, force: true };
                let (new, owners) = managed.clone().applied(&forced, object.as_ref()).unwrap();
                let again = ApplyRequest { force: false, ..forced };
                let (same, same_owners) = owners.clone().applied(&again, Some(&new)).unwrap();
                prop_assert_eq!(&same, &new);
                prop_assert!(same_owners.has_same_owners(&owners));
                // What is written is read again.
                prop_assert_eq!(ManagedFields::from_json(&owners.to_json()), Some(owners.clone()));
                prop_assert_eq!(&new["spec"]["limits"], &config["spec"]["limits"]);
                (object, managed) = (Some(new), owners);
            }
        }
    }
}

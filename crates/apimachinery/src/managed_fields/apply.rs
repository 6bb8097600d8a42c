//! Apply: the stored object with what is applied, without what its manager applied before and no manager owns now.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::{Map, Value};

use super::field_set::FieldSet;
use super::{FieldManager, FieldWrite, ManagedFields, ManagerOperation, NEVER_OWNED, OwnedFields, typed};

/// kubectl's annotation of client-side apply.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The manager that may take over fields of client-side apply.
const KUBECTL: &str = "kubectl";

/// An apply: the write, the applied object, and whether it takes fields of others.
#[derive(Clone, Copy)]
pub struct ApplyRequest<'a> {
    pub write: FieldWrite<'a>,
    /// In the version of the write.
    pub config: &'a Value,
    pub force: bool,
}

/// Why an apply is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplyRefusal {
    /// The applied object does not fit its schema; names the field.
    Invalid(String),
    /// Other managers own fields that the apply would change.
    Conflicts(Vec<ApplyConflict>),
}

/// A field that another manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyConflict {
    manager: FieldManager,
    /// As `.spec.ports[port=80,protocol="TCP"].name`.
    pub field: String,
}

impl ApplyConflict {
    /// Conflicts that are listed in a Status.
    pub const MAX_LISTED: usize = 100;

    /// As in the cause of a Status: `conflict with "m" using v1`.
    pub fn message(&self) -> String {
        format!("conflict with {}", self.manager())
    }

    fn manager(&self) -> String {
        let FieldManager { name, operation, api_version, subresource } = &self.manager;
        let mut text = format!("{name:?}");
        if !subresource.is_empty() {
            let _ = write!(text, " with subresource {subresource:?}");
        }
        if *operation == ManagerOperation::Update {
            let _ = write!(text, " using {api_version}");
        }
        text
    }

    /// The message of a Status, in the words of kube-apiserver.
    pub fn summary(conflicts: &[Self]) -> String {
        if let [one] = conflicts {
            return format!("Apply failed with 1 conflict: {}: {}", one.message(), one.field);
        }
        let mut by_manager: BTreeMap<&FieldManager, Vec<&Self>> = BTreeMap::new();
        for conflict in conflicts.iter().take(Self::MAX_LISTED) {
            by_manager.entry(&conflict.manager).or_default().push(conflict);
        }
        let group = |conflicts: Vec<&Self>| {
            let mut text = format!("conflicts with {}:", conflicts[0].manager());
            for conflict in &conflicts {
                let _ = write!(text, "\n- {}", conflict.field);
            }
            text
        };
        let mut groups: Vec<String> = by_manager.into_values().map(group).collect();
        if conflicts.len() > Self::MAX_LISTED {
            groups.push(format!("and {} more", conflicts.len() - Self::MAX_LISTED));
        }
        format!("Apply failed with {} conflicts: {}", conflicts.len(), groups.join("\n"))
    }
}

impl ManagedFields {
    /// The object after an apply, before its defaults, and its owners. `live` is in the version of the write; `None` if the
    /// apply creates the object.
    pub fn applied(
        mut self,
        request: &ApplyRequest<'_>,
        live: Option<&Value>,
    ) -> Result<(Value, Self), ApplyRefusal> {
        let write = &request.write;
        let empty = Value::Object(Map::new());
        if let Some(live) = live {
            self.track(write, live);
        }
        let live = live.unwrap_or(&empty);
        let (mut object, managed) = match self.clone().merged(request, live, request.force) {
            Err(ApplyRefusal::Conflicts(conflicts)) if write.manager == KUBECTL => {
                let left = not_from_client_side_apply(write, live, conflicts);
                if !left.is_empty() {
                    return Err(ApplyRefusal::Conflicts(left));
                }
                self.merged(request, live, true)?
            }
            result => result?,
        };
        if write.manager == KUBECTL {
            update_last_applied(&mut object, request.config);
        }
        Ok((object, managed))
    }

    fn merged(
        mut self,
        request: &ApplyRequest<'_>,
        live: &Value,
        force: bool,
    ) -> Result<(Value, Self), ApplyRefusal> {
        let (write, config) = (&request.write, request.config);
        let schema = write.versions.schema(write.api_version);
        let schema =
            schema.ok_or_else(|| ApplyRefusal::Invalid(format!("{}: no such version", write.api_version)))?;
        typed::check(schema, config, &mut String::new()).map_err(ApplyRefusal::Invalid)?;
        self.reconcile(write.versions);
        let identity = write.identity(ManagerOperation::Apply);
        let mut fields = typed::field_set(schema, config);
        fields.subtract_subtrees(write.reset);
        let owned = OwnedFields {
            api_version: write.api_version.to_owned(),
            fields: fields.difference(&NEVER_OWNED),
            time: Some(write.time.to_owned()),
        };
        let before = self.0.insert(identity.clone(), owned);
        let mut object = typed::merge(schema, live, config);
        if let Some(before) = before {
            object = self.pruned(write, object, &before, &fields);
            // A map or list that is applied without items may have lost its last one.
            object = typed::merge(schema, &object, config);
        }
        let changes = typed::compare(schema, live, &object).without_subtrees(write.reset);
        let all = self.by_version(write, live, &object, changes, Some(&identity));
        let own = self.0.remove(&identity);
        if !force {
            let conflicts = self.conflicts(&all);
            if !conflicts.is_empty() {
                return Err(ApplyRefusal::Conflicts(conflicts));
            }
        }
        self.lose(&all);
        if let Some(own) = own.filter(|own| !own.fields.is_empty()) {
            self.0.insert(identity, own);
        }
        Ok((object, self))
    }

    fn conflicts(&self, changes: &BTreeMap<String, typed::FieldChanges>) -> Vec<ApplyConflict> {
        let mut conflicts = Vec::new();
        for (manager, owned) in &self.0 {
            let changed = changes.get(&owned.api_version).map(typed::FieldChanges::set).unwrap_or_default();
            let paths = owned.fields.intersection(&changed).paths();
            let conflict = |field| ApplyConflict { manager: manager.clone(), field };
            conflicts.extend(paths.into_iter().map(conflict));
        }
        conflicts
    }

    /// Removes what the manager applied before, does not apply now, and no manager owns.
    fn pruned(&self, write: &FieldWrite<'_>, merged: Value, before: &OwnedFields, now: &FieldSet) -> Value {
        let is_same_version = before.api_version == write.api_version;
        if is_same_version && before.fields.difference(now).is_empty() {
            return merged;
        }
        // In the version of the previous apply, where its fields have their names.
        let (versions, version) = (write.versions, before.api_version.as_str());
        let Some(schema) = versions.schema(version) else { return merged };
        let all = versions.convert(&merged, version).into_owned();
        let last = before.fields.with_named_parents(schema);
        let without = |value: &Value, gone: &FieldSet, schema| {
            typed::remove(schema, value, gone).unwrap_or_else(|| Value::Object(Map::new()))
        };
        let mut pruned = without(&all, &last, schema);
        for (owned_version, owned) in self.owned_by_version(version) {
            let Some(schema) = versions.schema(owned_version) else { continue };
            let (full, rest) =
                (versions.convert(&all, owned_version), versions.convert(&pruned, owned_version));
            let mut kept = typed::field_set(schema, &rest).with_named_parents(schema);
            kept.extend(owned.with_named_parents(schema));
            let gone = typed::field_set(schema, &full).with_named_parents(schema).difference(&kept);
            let added_back = without(&full, &gone, schema);
            pruned = versions.convert(&added_back, version).into_owned();
        }
        // Fields that no manager owns stay, unless they are in an item that goes.
        let set = |value: &Value| typed::field_set(schema, value).with_named_parents(schema);
        let gone = set(&all).difference(&set(&pruned)).intersection(&last);
        let left = without(&all, &gone, schema);
        versions.convert(&left, write.api_version).into_owned()
    }

    /// What all managers own, by version, this one first.
    fn owned_by_version(&self, first: &str) -> Vec<(&str, FieldSet)> {
        let mut by_version: BTreeMap<&str, FieldSet> = BTreeMap::new();
        for owned in self.0.values() {
            by_version.entry(&owned.api_version).or_default().extend(owned.fields.clone());
        }
        let mut sets: Vec<(&str, FieldSet)> = by_version.into_iter().collect();
        sets.sort_by_key(|(version, _)| *version != first);
        sets
    }
}

/// The conflicts but those on fields that client-side apply set, and that still have that value.
fn not_from_client_side_apply(
    write: &FieldWrite<'_>,
    live: &Value,
    conflicts: Vec<ApplyConflict>,
) -> Vec<ApplyConflict> {
    let text = live["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap_or_default();
    let Ok(last @ Value::Object(_)) = serde_json::from_str::<Value>(text) else { return conflicts };
    let Some(schema) = write.versions.schema(write.api_version) else { return conflicts };
    if last["apiVersion"] != write.api_version {
        return conflicts;
    }
    let changes = typed::compare(schema, &last, live);
    let set = typed::field_set(schema, &last);
    let allowed = set.difference(&changes.set()).difference(&changes.removed).paths();
    let allowed: BTreeSet<String> = allowed.into_iter().collect();
    conflicts.into_iter().filter(|conflict| !allowed.contains(&conflict.field)).collect()
}

/// Keeps the annotation of client-side apply in step, so that it can be used again.
fn update_last_applied(object: &mut Value, config: &Value) {
    let Some(annotations) = object["metadata"]["annotations"].as_object_mut() else { return };
    if annotations.get(LAST_APPLIED).and_then(Value::as_str).is_none_or(str::is_empty) {
        return;
    }
    let mut last = config.clone();
    if let Some(metadata) = last["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(LAST_APPLIED);
        }
    }
    last.sort_all_objects();
    annotations.insert(LAST_APPLIED.to_owned(), Value::String(format!("{last}\n")));
}

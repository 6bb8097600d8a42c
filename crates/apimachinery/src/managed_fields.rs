//! Server-side apply and field ownership, as in Kubernetes: which manager owns which fields of an object
//! (`metadata.managedFields`), what a write changes of that, and what an apply makes of the stored object.
//!
//! ```text
//! update, patch   stored, new      -> the writer owns what it changed; others lose it
//! apply           stored, applied  -> conflicts, or: stored + applied - what was applied before and no manager owns
//! ```

mod apply;
mod field_schema;
mod field_set;
mod list_types;
mod typed;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

pub use apply::{ApplyConflict, ApplyRefusal, ApplyRequest};
pub use field_schema::FieldSchema;
pub use field_set::FieldSet;
pub use list_types::annotate;
use typed::FieldChanges;

/// The manager that owns the fields of an object that was written before its fields were tracked.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// The manager into which old updates are merged.
const ANCIENT_CHANGES: &str = "ancient-changes";
/// Update entries of an object; older ones are merged.
const MAX_UPDATE_ENTRIES: usize = 10;

/// Fields that no manager owns.
static NEVER_OWNED: LazyLock<FieldSet> = LazyLock::new(|| {
    FieldSet::of_fields(&[
        "apiVersion",
        "kind",
        "metadata",
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "metadata.selfLink",
        "metadata.creationTimestamp",
        "metadata.generation",
        "metadata.resourceVersion",
        "metadata.managedFields",
    ])
});

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ManagerOperation {
    Apply,
    Update,
}

impl ManagerOperation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// What makes two entries of managedFields the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldManager {
    name: String,
    operation: ManagerOperation,
    /// Empty for Apply: an apply in another version replaces the entry.
    api_version: String,
    subresource: String,
}

/// The fields of a manager.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnedFields {
    api_version: String,
    fields: FieldSet,
    /// RFC 3339 in UTC, whole seconds.
    time: Option<String>,
}

/// The owners of the fields of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagedFields(BTreeMap<FieldManager, OwnedFields>);

/// The versions of a kind: their schemas, and conversion between them.
pub trait ApiVersions {
    /// The schema of a version; `None` if it is not served.
    fn schema(&self, api_version: &str) -> Option<FieldSchema<'_>>;
    /// An object of any of the versions in this one.
    fn convert<'v>(&self, object: &'v Value, api_version: &str) -> Cow<'v, Value>;
}

/// A write: by which manager, in which version, of what, and when.
#[derive(Clone, Copy)]
pub struct FieldWrite<'a> {
    pub versions: &'a dyn ApiVersions,
    /// The fields that this resource or subresource does not write.
    pub reset: &'a FieldSet,
    pub manager: &'a str,
    pub api_version: &'a str,
    /// Empty, or `status`.
    pub subresource: &'a str,
    /// RFC 3339 in UTC, whole seconds.
    pub time: &'a str,
}

impl FieldWrite<'_> {
    fn identity(&self, operation: ManagerOperation) -> FieldManager {
        let name = if self.manager.is_empty() { "unknown" } else { self.manager };
        let api_version = match operation {
            ManagerOperation::Apply => "",
            ManagerOperation::Update => self.api_version,
        };
        FieldManager {
            name: name.to_owned(),
            operation,
            api_version: api_version.to_owned(),
            subresource: self.subresource.to_owned(),
        }
    }

    fn changes(&self, old: &Value, new: &Value, api_version: &str) -> Option<FieldChanges> {
        let schema = self.versions.schema(api_version)?;
        let (old, new) = (self.versions.convert(old, api_version), self.versions.convert(new, api_version));
        Some(typed::compare(schema, &old, &new).without_subtrees(self.reset))
    }
}

impl ManagedFields {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the same managers own the same fields; times do not count.
    pub fn has_same_owners(&self, other: &Self) -> bool {
        let owners = |managed: &Self| -> Vec<(FieldManager, String, FieldSet)> {
            let owner = |(manager, owned): (&FieldManager, &OwnedFields)| {
                (manager.clone(), owned.api_version.clone(), owned.fields.clone())
            };
            managed.0.iter().map(owner).collect()
        };
        owners(self) == owners(other)
    }

    /// Reads the entries of `metadata.managedFields`; `None` if one is malformed. Of entries with the same identity the
    /// last counts.
    pub fn from_json(entries: &Value) -> Option<Self> {
        let mut managers = BTreeMap::new();
        let text = |entry: &Value, name: &str| -> Option<String> {
            match &entry[name] {
                Value::Null => Some(String::new()),
                value => value.as_str().map(str::to_owned),
            }
        };
        for entry in entries.as_array().map(Vec::as_slice).unwrap_or_default() {
            let operation = match entry["operation"].as_str()? {
                "Apply" => ManagerOperation::Apply,
                "Update" => ManagerOperation::Update,
                _ => return None,
            };
            let api_version = text(entry, "apiVersion").filter(|version| !version.is_empty())?;
            if entry["fieldsType"] != "FieldsV1" {
                return None;
            }
            let fields = match &entry["fieldsV1"] {
                Value::Null => FieldSet::default(),
                fields => FieldSet::from_json(fields)?,
            };
            let identity = FieldManager {
                name: text(entry, "manager")?,
                operation,
                api_version: match operation {
                    ManagerOperation::Apply => String::new(),
                    ManagerOperation::Update => api_version.clone(),
                },
                subresource: text(entry, "subresource")?,
            };
            let time = entry["time"].as_str().map(str::to_owned);
            managers.insert(identity, OwnedFields { api_version, fields, time });
        }
        Some(Self(managers))
    }

    /// The entries of `metadata.managedFields`, in the order of kube-apiserver.
    pub fn to_json(&self) -> Value {
        let mut entries: Vec<(&FieldManager, &OwnedFields)> = self.0.iter().collect();
        entries.sort_by_key(|(manager, owned)| {
            (manager.operation, &owned.time, &manager.name, &owned.api_version, &manager.subresource)
        });
        let entry = |(manager, owned): (&FieldManager, &OwnedFields)| {
            let mut entry = Map::new();
            let mut set = |name: &str, value: Value| entry.insert(name.to_owned(), value);
            set("manager", json!(manager.name));
            set("operation", json!(manager.operation.as_str()));
            set("apiVersion", json!(owned.api_version));
            if let Some(time) = &owned.time {
                set("time", json!(time));
            }
            set("fieldsType", json!("FieldsV1"));
            set("fieldsV1", owned.fields.to_json());
            if !manager.subresource.is_empty() {
                set("subresource", json!(manager.subresource));
            }
            Value::Object(entry)
        };
        entries.into_iter().map(entry).collect()
    }

    /// Ownership of a new object: all that it has belongs to its writer. It is in the version of the write, with its
    /// defaults.
    pub fn created(write: &FieldWrite<'_>, new: &Value) -> Self {
        let mut managed = Self::default();
        let nothing = Value::Object(Map::new());
        if let Some(changes) = write.changes(&nothing, new, write.api_version) {
            managed.take(write, &nothing, new, changes);
        }
        managed
    }

    /// Ownership after an update, or a patch of another kind than apply: the writer owns what it set. The objects are in the
    /// version of the write, the new one with its defaults. An object without entries stays without.
    #[must_use]
    pub fn updated(mut self, write: &FieldWrite<'_>, live: &Value, new: &Value) -> Self {
        if !self.is_empty()
            && let Some(changes) = write.changes(live, new, write.api_version)
        {
            self.take(write, live, new, changes);
        }
        self
    }

    /// [`Self::updated`] on the entries of `metadata.managedFields`. Most updates change values only, not their owners: then
    /// the entries are not decoded.
    pub fn update_entries(entries: &mut Value, write: &FieldWrite<'_>, live: &Value, new: &Value) {
        let Some(changes) = write.changes(live, new, write.api_version) else { return };
        if is_renewed(entries, write, &changes) {
            return;
        }
        let mut managed = Self::from_json(entries).unwrap_or_default();
        if !managed.is_empty() {
            managed.take(write, live, new, changes);
        }
        *entries = managed.to_json();
    }

    /// Gives the manager of an update what it changed.
    fn take(&mut self, write: &FieldWrite<'_>, live: &Value, new: &Value, changes: FieldChanges) {
        if !self.is_empty() {
            self.reconcile(write.versions);
            let all = self.by_version(write, live, new, changes.clone(), None);
            self.lose(&all);
        }
        let mut gained = changes.into_set();
        gained.subtract(&NEVER_OWNED);
        if !gained.is_empty() {
            let api_version = write.api_version.to_owned();
            let owned = self.0.entry(write.identity(ManagerOperation::Update));
            let owned = owned.or_insert(OwnedFields { api_version, fields: FieldSet::default(), time: None });
            owned.fields.extend(gained);
            owned.time = Some(write.time.to_owned());
        }
        self.cap();
    }

    /// The changes in the versions of all entries but one; entries in versions that are not served are dropped.
    fn by_version(
        &mut self,
        write: &FieldWrite<'_>,
        live: &Value,
        new: &Value,
        changes: FieldChanges,
        except: Option<&FieldManager>,
    ) -> BTreeMap<String, FieldChanges> {
        let mut known = BTreeMap::from([(write.api_version.to_owned(), changes)]);
        self.0.retain(|manager, owned| {
            if Some(manager) == except || known.contains_key(&owned.api_version) {
                return true;
            }
            let changes = write.changes(live, new, &owned.api_version);
            changes.map(|changes| known.insert(owned.api_version.clone(), changes)).is_some()
        });
        known
    }

    /// All managers lose what changed, and what is gone.
    fn lose(&mut self, changes: &BTreeMap<String, FieldChanges>) {
        for owned in self.0.values_mut() {
            if let Some(changes) = changes.get(&owned.api_version) {
                for gone in [&changes.added, &changes.modified, &changes.removed] {
                    owned.fields.subtract(gone);
                }
            }
        }
        self.0.retain(|_, owned| !owned.fields.is_empty());
    }

    /// Follows changes of schemas since the entries were written.
    fn reconcile(&mut self, versions: &dyn ApiVersions) {
        for owned in self.0.values_mut() {
            if let Some(schema) = versions.schema(&owned.api_version) {
                owned.fields.reconcile(schema);
            }
        }
    }

    /// Merges the oldest updates, by version, until few enough are left.
    fn cap(&mut self) {
        let is_update = |manager: &&FieldManager| manager.operation == ManagerOperation::Update;
        let mut oldest: Vec<FieldManager> = self.0.keys().filter(is_update).cloned().collect();
        if oldest.len() <= MAX_UPDATE_ENTRIES {
            return;
        }
        oldest.sort_by_key(|manager| {
            (self.0.get(manager).and_then(|owned| owned.time.clone()), manager.clone())
        });
        let mut left = oldest.len();
        let mut first_by_version: BTreeMap<String, FieldManager> = BTreeMap::new();
        for manager in oldest {
            if left <= MAX_UPDATE_ENTRIES {
                return;
            }
            let Some(owned) = self.0.get(&manager).cloned() else { continue };
            let Some(first) = first_by_version.get(&owned.api_version) else {
                first_by_version.insert(owned.api_version, manager);
                continue;
            };
            let bucket = FieldManager {
                name: ANCIENT_CHANGES.to_owned(),
                operation: ManagerOperation::Update,
                api_version: owned.api_version.clone(),
                subresource: String::new(),
            };
            if !self.0.contains_key(&bucket)
                && let Some(first) = self.0.remove(first)
            {
                self.0.insert(bucket.clone(), first);
            }
            self.0.remove(&manager);
            if let Some(bucket) = self.0.get_mut(&bucket) {
                bucket.fields.extend(owned.fields);
                bucket.time = owned.time;
            }
            left -= 1;
        }
    }

    /// Tracks an object that has no entries: all its fields belong to the manager `before-first-apply`.
    fn track(&mut self, write: &FieldWrite<'_>, live: &Value) {
        if self.is_empty() {
            *self = Self::created(&FieldWrite { manager: BEFORE_FIRST_APPLY, ..*write }, live);
        }
    }
}

/// If an update changes no owner, only the time of its entry changes: the writer owns all that it changed, no other manager
/// owns any of it, and no manager owns what is gone. False, and nothing is done, if owners may change.
fn is_renewed(entries: &mut Value, write: &FieldWrite<'_>, changes: &FieldChanges) -> bool {
    let Some(entries) = entries.as_array_mut().filter(|entries| entries.len() <= MAX_UPDATE_ENTRIES) else {
        return false;
    };
    let identity = write.identity(ManagerOperation::Update);
    let is_writer = |entry: &Value| {
        entry["manager"] == *identity.name
            && entry["operation"] == identity.operation.as_str()
            && entry["subresource"].as_str().unwrap_or_default() == identity.subresource
    };
    let mut gained = changes.clone().into_set();
    gained.subtract(&NEVER_OWNED);
    let is_same = |entry: &Value| {
        let fields = &entry["fieldsV1"];
        entry["apiVersion"] == write.api_version
            && changes.removed.is_outside(fields)
            && if is_writer(entry) { gained.is_in(fields) } else { gained.is_outside(fields) }
    };
    if entries.is_empty() || !entries.iter().all(is_same) {
        return false;
    }
    if gained.is_empty() {
        return true;
    }
    let Some(own) = entries.iter_mut().find(|entry| is_writer(entry)) else { return false };
    own["time"] = write.time.into();
    entries.sort_by_cached_key(|entry| {
        let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        ["operation", "time", "manager", "apiVersion", "subresource"].map(text)
    });
    true
}

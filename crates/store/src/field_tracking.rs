//! Field ownership of the served kinds: their versions and schemas, the fields that a resource does not write, and what a
//! write makes of `metadata.managedFields`. The decisions are in [`apimachinery::managed_fields`].

use std::borrow::Cow;
use std::sync::LazyLock;

use apimachinery::managed_fields::{
    ApiVersions, ApplyConflict, ApplyRefusal, ApplyRequest, FieldSchema, FieldSet, FieldWrite, ManagedFields,
};
use serde_json::{Value, json};

use crate::api::{Subresource, WriteContext};
use crate::kinds::{KINDS, ResourceKind};
use crate::status::StatusError;
use crate::{meta, schema};

/// The served versions of a stored kind.
struct KindVersions(&'static ResourceKind);

impl KindVersions {
    fn version(&self, api_version: &str) -> Option<&'static ResourceKind> {
        KINDS.iter().find(|kind| kind.id == self.0.id && kind.has_version(api_version))
    }
}

impl ApiVersions for KindVersions {
    fn schema(&self, api_version: &str) -> Option<FieldSchema<'_>> {
        let kind = self.version(api_version)?;
        match kind.schema {
            Some(schema) => Some(FieldSchema::custom(schema::definitions(), schema())),
            None => FieldSchema::builtin(schema::definitions(), kind.definition),
        }
    }

    fn convert<'v>(&self, object: &'v Value, api_version: &str) -> Cow<'v, Value> {
        let given = object["apiVersion"].as_str().unwrap_or_default();
        let (Some(from), Some(to)) = (self.version(given), self.version(api_version)) else {
            return Cow::Borrowed(object);
        };
        if from.version == to.version && from.group == to.group {
            return Cow::Borrowed(object);
        }
        Cow::Owned(to.converted(&from.to_stored(object)).into_owned())
    }
}

/// The fields that a write of a resource, or of a part of it, does not change.
fn reset_fields(kind: &ResourceKind, subresource: Subresource) -> &'static FieldSet {
    static NONE: LazyLock<FieldSet> = LazyLock::new(FieldSet::default);
    static STATUS: LazyLock<FieldSet> = LazyLock::new(|| FieldSet::of_fields(&["status"]));
    static NAMESPACE: LazyLock<FieldSet> =
        LazyLock::new(|| FieldSet::of_fields(&["status", "spec.finalizers"]));
    static SPEC: LazyLock<FieldSet> = LazyLock::new(|| FieldSet::of_fields(&["spec"]));
    static POD: LazyLock<FieldSet> = LazyLock::new(|| {
        FieldSet::of_fields(&["spec", "metadata.deletionTimestamp", "metadata.ownerReferences"])
    });
    static ALL_BUT_STATUS: LazyLock<FieldSet> = LazyLock::new(|| FieldSet::of_fields(&["spec", "metadata"]));
    match (subresource == Subresource::Status, kind.kind) {
        (true, "Pod") => &POD,
        (true, "ServiceCIDR") => &ALL_BUT_STATUS,
        (true, _) if kind.schema.is_some() => &ALL_BUT_STATUS,
        (true, _) => &SPEC,
        (false, "Namespace") => &NAMESPACE,
        (false, _) if kind.status => &STATUS,
        (false, _) => &NONE,
    }
}

/// The write of a request, for decisions on ownership.
fn with_write<T>(
    context: &WriteContext,
    now: jiff::Timestamp,
    decide: impl FnOnce(FieldWrite<'_>) -> T,
) -> T {
    decide(FieldWrite {
        versions: &KindVersions(context.kind),
        reset: reset_fields(context.kind, context.subresource),
        manager: &context.field_manager,
        api_version: &context.requested.api_version(),
        subresource: context.subresource.as_str(),
        time: &meta::time(now),
    })
}

/// Sets the owners of the fields of a new object.
pub(crate) fn track_create(context: &WriteContext, object: &mut Value, now: jiff::Timestamp) {
    let managed = with_write(context, now, |write| ManagedFields::created(&write, object));
    set(object, &managed);
}

/// Sets the owners of the fields of a new version, which has the stored ones. `given` are the managedFields in the request.
pub(crate) fn track_update(
    context: &WriteContext,
    old: &Value,
    new: &mut Value,
    given: &Value,
    now: jiff::Timestamp,
) {
    let stored = &old["metadata"]["managedFields"];
    let is_given = given.is_array() && given != stored && context.subresource == Subresource::None;
    with_write(context, now, |write| {
        if is_given || last_writer(stored).is_some() {
            let given = if is_given { given } else { &Value::Null };
            let managed = starting_from(&write, old, given).updated(&write, old, new);
            set(new, &managed);
        } else if !stored.is_null() {
            let mut entries = take(new);
            ManagedFields::update_entries(&mut entries, &write, old, new);
            meta::set(new, "managedFields", entries);
        }
    });
}

/// The object after an apply, with its owners. `old` is the stored object; `None` if the apply creates it.
pub(crate) fn apply(
    context: &WriteContext,
    old: Option<&Value>,
    config: &Value,
    force: bool,
    now: jiff::Timestamp,
) -> Result<Value, StatusError> {
    with_write(context, now, |write| {
        let live = old.map(|old| write.versions.convert(old, write.api_version));
        let managed = old.map_or_else(ManagedFields::default, |old| starting_from(&write, old, &Value::Null));
        let request = ApplyRequest { write, config, force };
        match managed.applied(&request, live.as_deref()) {
            Ok((mut object, managed)) => {
                set(&mut object, &managed);
                Ok(object)
            }
            Err(ApplyRefusal::Conflicts(conflicts)) => Err(conflict(&conflicts)),
            Err(ApplyRefusal::Invalid(why)) => {
                let (namespace, name) = (meta::text(config, "namespace"), meta::text(config, "name"));
                let name =
                    [namespace, name].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>();
                Err(StatusError::unknown(format!(
                    "failed to create typed patch object ({}; {}, Kind={}): {why}",
                    name.join("/"),
                    context.requested.group_version(),
                    context.kind.kind
                )))
            }
        }
    })
}

fn conflict(conflicts: &[ApplyConflict]) -> StatusError {
    let cause = |conflict: &ApplyConflict| json!({"reason": "FieldManagerConflict", "message": conflict.message(), "field": conflict.field});
    StatusError::apply_conflict(
        ApplyConflict::summary(conflicts),
        conflicts.iter().take(ApplyConflict::MAX_LISTED).map(cause).collect(),
    )
}

/// Whether two versions have the same owners; times do not count.
pub(crate) fn has_same_owners(one: &Value, other: &Value) -> bool {
    let decoded = || Some((ManagedFields::from_json(one)?, ManagedFields::from_json(other)?));
    one == other || decoded().is_some_and(|(one, other)| one.has_same_owners(&other))
}

/// Takes the managedFields of an object.
pub(crate) fn take(object: &mut Value) -> Value {
    object.pointer_mut("/metadata/managedFields").map(Value::take).unwrap_or_default()
}

fn set(object: &mut Value, managed: &ManagedFields) {
    match managed.is_empty() {
        true => meta::remove(object, "managedFields"),
        false => meta::set(object, "managedFields", managed.to_json()),
    }
}

/// The owners before a write: those in the request if it has some, else the stored ones. An empty list clears them.
fn starting_from(write: &FieldWrite<'_>, old: &Value, given: &Value) -> ManagedFields {
    if let Value::Array(entries) = given {
        if entries.is_empty() || *entries == [json!({})] {
            return ManagedFields::default();
        }
        let managed = in_utc(given).and_then(|given| ManagedFields::from_json(&given));
        if let Some(managed) = managed.filter(|managed| !managed.is_empty()) {
            return managed;
        }
    }
    let stored = &old["metadata"]["managedFields"];
    if let Some(manager) = last_writer(stored) {
        let write = FieldWrite { manager, ..*write };
        return ManagedFields::created(&write, old);
    }
    ManagedFields::from_json(stored).unwrap_or_default()
}

/// Entries with times as the server writes them; `None` if one is no time.
fn in_utc(entries: &Value) -> Option<Value> {
    let mut entries = entries.clone();
    for entry in entries.as_array_mut()? {
        if let Some(text) = entry.get("time").and_then(Value::as_str) {
            entry["time"] = meta::time(text.parse().ok()?).into();
        }
    }
    Some(entries)
}

/// The manager in an entry of earlier versions, which only named the last writer of an EndpointSlice.
fn last_writer(entries: &Value) -> Option<&str> {
    let entry = entries.as_array()?.first()?;
    entry["manager"].as_str().filter(|_| entry["fieldsType"].is_null() && entry["fieldsV1"].is_null())
}

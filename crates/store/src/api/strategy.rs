//! The create and update strategies: what happens to an object inside its transaction, from the stored version to the
//! new one: preconditions, preparation, defaulting, validation, policies, allocation.

use std::sync::Arc;

use apimachinery::rbac::{self, EscalationError, RbacWrite, UserInfo};
use apimachinery::validate::drop_disabled;
use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{Api, Caller, Subresource, delete};
use crate::admission::policy::{AdmissionAttributes, AdmissionOperation};
use crate::admission::service::{self, AllocationContext, ServiceRanges};
use crate::admission::{self, policy};
use crate::authorization::{self, Authorizer, create_attributes};
use crate::field_tracking;
use crate::kinds::{self, ResourceKind};
use crate::meta;
use crate::object_txn::{ObjectTxn, revision_of};
use crate::query::WriteOptions;
use crate::status::StatusError;

/// The parameters of a write.
#[derive(Clone)]
pub(crate) struct WriteContext {
    pub(crate) kind: &'static ResourceKind,
    /// The kind of the path, which may be another form of the stored one.
    pub(crate) requested: &'static ResourceKind,
    /// The part of the object that is written.
    pub(crate) subresource: Subresource,
    pub(crate) options: WriteOptions,
    pub(crate) user: Arc<UserInfo>,
    /// Checks writes of roles and bindings; `None` trusts the writer.
    pub(crate) authorizer: Option<Arc<Authorizer>>,
    /// Whether the request names the object; a create does not.
    pub(crate) named: bool,
    pub(crate) field_manager: String,
    /// Whether this is an apply: the object then carries its owners.
    pub(crate) applied: bool,
    pub(crate) ranges: Arc<ServiceRanges>,
    /// Where searches for free addresses and ports start.
    pub(crate) seed: u64,
    /// Whether admission policies apply.
    pub(crate) policies: bool,
}

/// The field manager of writes by this process.
const OWN_MANAGER: &str = "zoneward";

/// The result of a write.
#[derive(Clone, Debug)]
pub(crate) struct WriteOutcome {
    pub(crate) object: Value,
    /// The stored bytes; `None` if nothing was stored.
    pub(super) json: Option<Bytes>,
    pub(super) warnings: Vec<String>,
}

impl Api {
    pub(crate) fn write_context(
        &self,
        kind: &'static ResourceKind,
        caller: &Caller,
        options: WriteOptions,
    ) -> WriteContext {
        let (user, field_manager) = (caller.user.clone(), OWN_MANAGER.to_owned());
        let (ranges, seed) = (self.ranges.clone(), self.names.seed());
        let authorizer = Some(self.authorizer.clone());
        let (subresource, named, applied, policies) = (Subresource::None, false, false, true);
        WriteContext {
            kind,
            requested: kind,
            subresource,
            options,
            user,
            authorizer,
            named,
            field_manager,
            applied,
            ranges,
            seed,
            policies,
        }
    }
}

/// Creates an object inside a transaction.
pub(crate) fn create_in(
    objects: &mut ObjectTxn<'_, '_>,
    context: &WriteContext,
    mut object: Value,
) -> Result<WriteOutcome, StatusError> {
    let kind = context.kind;
    kind.stamp(&mut object);
    if !meta::text(&object, "resourceVersion").is_empty() {
        return Err(StatusError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    check_namespace(objects, kind, &object)?;
    let owners = field_tracking::take(&mut object);
    generate_name(objects, kind, &mut object)?;
    meta::prepare_new(&mut object, objects.now, objects.names.uid());
    admission::prepare_for_create(kind, &mut object);
    admission::defaults(kind, &mut object);
    drop_disabled(&context.ranges.gates, None, &mut object);
    match context.applied {
        true => meta::set(&mut object, "managedFields", owners),
        false => field_tracking::track_create(context, &mut object, objects.now),
    }
    meta::remove_empty(&mut object);
    admission::validate(&context.ranges, kind, None, &object)?;
    let (namespace, name) = (meta::text(&object, "namespace"), meta::text(&object, "name"));
    if objects.find(kind, namespace, name)?.is_some() {
        return Err(StatusError::already_exists(kind, name));
    }
    check_grants(objects, context, None, &object)?;
    let mut warnings = admission::warnings(kind, &object);
    if context.policies {
        let attributes = attributes(context, AdmissionOperation::Create, &object, &Value::Null);
        warnings.extend(policy::check(objects, &attributes)?);
    }
    match kind.kind {
        "Service" => service::allocate(objects, allocation(context), None, &mut object)?,
        "IPAddress" => service::check_ip_address(objects, &context.ranges, &object)?,
        _ => {}
    }
    let mut json = Some(objects.store(kind, &mut object)?);
    if context.options.dry_run {
        meta::remove(&mut object, "resourceVersion");
        json = None;
    }
    Ok(WriteOutcome { object, json, warnings })
}

/// Whether an update of a missing object creates it.
pub(super) fn creates(
    objects: &ObjectTxn<'_, '_>,
    context: &WriteContext,
    namespace: &str,
    name: &str,
) -> Result<bool, StatusError> {
    let may = context.kind.update_creates && context.subresource == Subresource::None;
    Ok(may && !objects.has(context.kind, namespace, name)?)
}

/// The resourceVersion of an update belongs to a deleted object and does not count; a uid does, and matches nothing.
pub(super) fn create_by_update(
    objects: &mut ObjectTxn<'_, '_>,
    context: &WriteContext,
    mut object: Value,
) -> Result<WriteOutcome, StatusError> {
    let (uid, name) = (meta::text(&object, "uid"), meta::text(&object, "name"));
    if !uid.is_empty() {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: ");
        return Err(StatusError::conflict(context.kind, name, why));
    }
    meta::remove(&mut object, "resourceVersion");
    if let Some(authorizer) = &context.authorizer {
        let (namespace, name) = (meta::text(&object, "namespace"), meta::text(&object, "name"));
        let attributes = create_attributes(context.requested, namespace, name);
        authorization::check(&authorizer.policy_in_transaction(), &context.user, &attributes, false)?;
    }
    create_in(objects, context, object)
}

/// Updates an object inside a transaction; `make` gets the stored version.
pub(super) fn update_in(
    objects: &mut ObjectTxn<'_, '_>,
    context: &WriteContext,
    namespace: &str,
    name: &str,
    make: impl FnOnce(&Value) -> Result<(Value, Vec<String>), StatusError>,
) -> Result<WriteOutcome, StatusError> {
    let kind = context.kind;
    let old = objects.fetch(kind, namespace, name)?;
    let (new, mut warnings) = make(&old)?;
    let mut new = prepare_for_update(context, name, &old, new, objects.now)?;
    check_grants(objects, context, Some(&old), &new)?;
    warnings.extend(admission::warnings(kind, &new));
    let attributes = attributes(context, AdmissionOperation::Update, &new, &old);
    warnings.extend(policy::check(objects, &attributes)?);
    if kind.kind == "Service" && context.subresource == Subresource::None {
        service::allocate(objects, allocation(context), Some(&old), &mut new)?;
    }
    if !is_changed(&old, &mut new) {
        // An update without a change has no event.
        return Ok(WriteOutcome { object: new, json: None, warnings });
    }
    if delete::is_ready_to_remove(kind, &new) {
        objects.allow_on_full_disk();
        delete::remove(objects, kind, &mut new)?;
        return Ok(WriteOutcome { object: new, json: None, warnings });
    }
    let json = objects.store(kind, &mut new)?;
    if delete::is_step_of_deletion(&old, &new, json.len()) {
        objects.allow_on_full_disk();
    }
    Ok(WriteOutcome { object: new, json: Some(json), warnings })
}

/// Refuses a role or binding that grants more than its writer holds.
fn check_grants(
    objects: &ObjectTxn<'_, '_>,
    context: &WriteContext,
    old: Option<&Value>,
    new: &Value,
) -> Result<(), StatusError> {
    let (kind, name) = (context.kind, meta::text(new, "name"));
    let Some(authorizer) = context.authorizer.as_ref().filter(|_| kind.group == rbac::GROUP) else {
        return Ok(());
    };
    // As this transaction sees it: a write that is not acknowledged yet may have changed it.
    let role = match kinds::named(new["roleRef"]["kind"].as_str().unwrap_or_default()) {
        Some(kind) if kind.group == rbac::GROUP => {
            let namespace = if kind.namespaced { meta::text(new, "namespace") } else { "" };
            objects.find(kind, namespace, new["roleRef"]["name"].as_str().unwrap_or_default())?
        }
        _ => None,
    };
    let request_name = if context.named { name } else { "" };
    let write = RbacWrite { new, old, request_name, role: role.as_ref() };
    match rbac::check_escalation(&authorizer.policy_in_transaction(), &context.user, &write) {
        Ok(()) => Ok(()),
        Err(EscalationError::Forbidden(why)) => {
            Err(authorization::forbidden_object(kind.group, kind.plural, name, &why))
        }
        Err(EscalationError::RoleNotFound(_)) => {
            let role = &new["roleRef"];
            let kind = kinds::named(role["kind"].as_str().unwrap_or_default()).unwrap_or(kind);
            Err(StatusError::not_found(kind, role["name"].as_str().unwrap_or_default()))
        }
    }
}

fn attributes<'a>(
    context: &'a WriteContext,
    operation: AdmissionOperation,
    object: &'a Value,
    old: &'a Value,
) -> AdmissionAttributes<'a> {
    AdmissionAttributes {
        kind: context.kind,
        subresource: context.subresource.as_str(),
        operation,
        object,
        old,
        user: &context.user,
        dry_run: context.options.dry_run,
    }
}

fn allocation(context: &WriteContext) -> AllocationContext<'_> {
    AllocationContext { ranges: &context.ranges, dry_run: context.options.dry_run, seed: context.seed }
}

/// Attempts to find a generated name that is free.
const NAME_ATTEMPTS: usize = 8;

fn generate_name(
    objects: &ObjectTxn<'_, '_>,
    kind: &ResourceKind,
    object: &mut Value,
) -> Result<(), StatusError> {
    let prefix = meta::text(object, "generateName").to_owned();
    if !meta::text(object, "name").is_empty() || prefix.is_empty() {
        return Ok(());
    }
    for _ in 0..NAME_ATTEMPTS {
        let name = objects.names.generate(&prefix);
        if objects.find(kind, meta::text(object, "namespace"), &name)?.is_none() {
            meta::set(object, "name", name);
            return Ok(());
        }
    }
    Err(StatusError::already_exists(kind, &prefix))
}

fn check_namespace(
    objects: &ObjectTxn<'_, '_>,
    kind: &ResourceKind,
    object: &Value,
) -> Result<(), StatusError> {
    if !kind.namespaced {
        return Ok(());
    }
    let (namespace, name) = (meta::text(object, "namespace"), meta::text(object, "name"));
    let namespaces = kinds::named("Namespace").expect("the table has Namespaces");
    let found = objects.fetch(namespaces, "", namespace)?;
    if !meta::is_deleting(&found) {
        return Ok(());
    }
    let what = kind.qualified();
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let mut error = StatusError::forbidden(format!("{what} {name:?} is forbidden: {why}"));
    error.details = json!({"name": name, "kind": kind.plural, "causes": [{
        "reason": "NamespaceTerminating",
        "message": format!("namespace {namespace} is being terminated"),
        "field": "metadata.namespace",
    }]});
    Err(error)
}

/// The new version after preparation and validation, as far as these need no object but the stored one.
pub(super) fn prepare_for_update(
    context: &WriteContext,
    name: &str,
    old: &Value,
    mut new: Value,
    now: jiff::Timestamp,
) -> Result<Value, StatusError> {
    let kind = context.kind;
    kind.stamp(&mut new);
    check_resource_version(kind, name, old, &new)?;
    let owners = field_tracking::take(&mut new);
    keep_server_fields(context, old, &mut new);
    admission::pod_ips(kind, &mut new);
    drop_disabled(&context.ranges.gates, Some(old), &mut new);
    match context.applied {
        true => meta::set(&mut new, "managedFields", owners),
        false => field_tracking::track_update(context, old, &mut new, &owners, now),
    }
    meta::remove_empty(&mut new);
    admission::validate(&context.ranges, kind, Some(old), &new)?;
    Ok(new)
}

/// Sets generation and resourceVersion; true if the new version differs from the stored one.
pub(super) fn is_changed(old: &Value, new: &mut Value) -> bool {
    meta::update_generation(old, new);
    meta::set(new, "resourceVersion", old["metadata"]["resourceVersion"].clone());
    // Times in managedFields are no change.
    if meta::has_same_fields(old, new)
        && field_tracking::has_same_owners(
            &old["metadata"]["managedFields"],
            &new["metadata"]["managedFields"],
        )
    {
        *new = old.clone();
        return false;
    }
    true
}

/// The uid in the body of an update is a precondition; in a patch it is a change that validation refuses.
pub(super) fn check_uid(
    kind: &ResourceKind,
    name: &str,
    old: &Value,
    new: &Value,
) -> Result<(), StatusError> {
    let (uid, stored) = (meta::text(new, "uid"), meta::text(old, "uid"));
    if uid.is_empty() || uid == stored {
        return Ok(());
    }
    let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {stored}");
    Err(StatusError::conflict(kind, name, why))
}

pub(super) fn check_resource_version(
    kind: &ResourceKind,
    name: &str,
    old: &Value,
    new: &Value,
) -> Result<(), StatusError> {
    let wanted = meta::text(new, "resourceVersion");
    if wanted.is_empty() || wanted == "0" || revision_of(new) == revision_of(old) {
        return Ok(());
    }
    if revision_of(new).is_none() {
        return Err(StatusError::bad_request(format!(
            "metadata.resourceVersion: {wanted:?} is not a resourceVersion of this server"
        )));
    }
    Err(StatusError::modified(kind, name))
}

/// The status is written by its subresource only, and a subresource writes nothing else.
fn keep_server_fields(context: &WriteContext, old: &Value, new: &mut Value) {
    meta::keep_server_fields(old, new);
    if context.subresource == Subresource::Status {
        *new = with_status(context.kind, old, new);
        return;
    }
    if context.kind.status
        && let Some(map) = new.as_object_mut()
    {
        set_or_remove(map, "status", old.get("status").cloned());
    }
    admission::defaults(context.kind, new);
    if context.kind.kind == "Service" {
        service::preserve_allocated(old, new);
    }
    if context.kind.kind == "Namespace" {
        meta::set_in(new, "spec", "finalizers", old["spec"]["finalizers"].clone());
    }
}

/// The stored version with the status of the new one, and in built-in kinds its metadata.
fn with_status(kind: &ResourceKind, old: &Value, new: &Value) -> Value {
    let mut kept = old.clone();
    if let Some(map) = kept.as_object_mut() {
        set_or_remove(map, "status", new.get("status").cloned());
        if kind.schema.is_none() {
            set_or_remove(map, "metadata", new.get("metadata").cloned());
        }
    }
    with_resource_version(kept, new)
}

fn with_resource_version(mut kept: Value, new: &Value) -> Value {
    if let Some(version) = new["metadata"].get("resourceVersion") {
        meta::set(&mut kept, "resourceVersion", version.clone());
    }
    kept
}

fn set_or_remove(map: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    match value {
        Some(value) => {
            map.insert(name.to_owned(), value);
        }
        None => {
            map.shift_remove(name);
        }
    }
}

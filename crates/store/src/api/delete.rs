//! Requests to delete: an object is removed at once, or when its finalizers, grace period and dependents allow it.

use http::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::negotiation::ResponseForm;
use super::request_info::Subresource;
use super::{Api, Caller, ResourceRequest, ResponseBody, body, list};
use crate::admission::policy::{self, AdmissionAttributes, AdmissionOperation};
use crate::admission::service;
use crate::kinds::ResourceKind;
use crate::meta;
use crate::object_size;
use crate::object_txn::ObjectTxn;
use crate::query::{dry_run, unknown};
use crate::status::{self, Cause, StatusError};
use apimachinery::rbac::UserInfo;

/// The finalizer of an owner that waits for the deletion of its dependents.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an owner whose dependents are orphaned.
pub(crate) const ORPHAN: &str = "orphan";

/// What an update of managed fields may add to an object that is being deleted on a full disk.
const STEP_BYTES: usize = 4_096;

const PROTECTED_NAMESPACES: &[&str] = &["default", "kube-system"];

/// What happens to the dependents of a deleted owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Propagation {
    /// Deleted after it.
    #[default]
    Background,
    /// Deleted before it.
    Foreground,
    /// Kept.
    Orphan,
}

/// The body of a DELETE.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DeleteOptions {
    pub grace_period_seconds: Option<i64>,
    pub preconditions: Option<Preconditions>,
    pub propagation_policy: Option<Propagation>,
    /// Deprecated form of the propagation policy.
    pub orphan_dependents: Option<bool>,
    pub dry_run: Option<Vec<String>>,
}

/// Preconditions of a delete.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Preconditions {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

impl DeleteOptions {
    /// The options in the body and the query of a request.
    fn of(request: &ResourceRequest) -> Result<Self, StatusError> {
        let mut causes = Vec::new();
        let mut options = if request.content.is_empty() {
            Self::default()
        } else {
            let mut object = body::object(&request.headers, &request.content, "DeleteOptions")?.value;
            let word = object.as_object_mut().and_then(|options| options.shift_remove("propagationPolicy"));
            let read: Result<Self, _> = serde_json::from_value(object);
            let read = read
                .map_err(|error| StatusError::bad_request(format!("cannot decode DeleteOptions: {error}")))?;
            let word = word.filter(|word| !word.is_null());
            Self { propagation_policy: word.and_then(|word| propagation(word, &mut causes)), ..read }
        };
        if let Some(seconds) = request.query.value("gracePeriodSeconds") {
            let read = seconds
                .parse()
                .map_err(|_| StatusError::bad_request("gracePeriodSeconds must be an integer"))?;
            options.grace_period_seconds = Some(read);
        }
        if let Some(word) = request.query.value("propagationPolicy") {
            options.propagation_policy = propagation(word.into(), &mut causes);
        }
        if request.query.value("orphanDependents").is_some() {
            options.orphan_dependents = Some(request.query.flag("orphanDependents"));
        }
        if let Some(word) = request.query.value("dryRun") {
            options.dry_run = Some(vec![word.to_owned()]);
        }
        if options.orphan_dependents.is_some() && options.propagation_policy.is_some() {
            let reason = "orphanDependents and propagationPolicy cannot both be set";
            causes.push(Cause::invalid("propagationPolicy", reason));
        }
        causes.extend(options.parse_dry_run().1);
        if causes.is_empty() {
            Ok(options)
        } else {
            Err(StatusError::invalid_options("DeleteOptions", &causes))
        }
    }

    fn parse_dry_run(&self) -> (bool, Vec<Cause>) {
        dry_run(self.dry_run.iter().flatten().map(String::as_str))
    }

    pub(super) fn is_dry_run(&self) -> bool {
        self.parse_dry_run().0
    }

    fn propagation(&self) -> Option<Propagation> {
        let old = self
            .orphan_dependents
            .map(|orphan| if orphan { Propagation::Orphan } else { Propagation::Background });
        self.propagation_policy.or(old)
    }
}

fn propagation(word: Value, causes: &mut Vec<Cause>) -> Option<Propagation> {
    let text = word.as_str().map_or_else(|| word.to_string(), str::to_owned);
    let read = serde_json::from_value(word).ok();
    if read.is_none() {
        causes.push(unknown("propagationPolicy", &text, &["Foreground", "Background", "Orphan"]));
    }
    read
}

impl Api {
    pub(super) async fn delete(
        &self,
        request: ResourceRequest,
        caller: &Caller,
    ) -> Result<Response<ResponseBody>, StatusError> {
        if request.info.subresource != Subresource::None {
            return Err(StatusError::method_not_allowed());
        }
        let options = DeleteOptions::of(&request)?;
        let kind = request.info.kind;
        let namespace = request.info.namespace.clone().unwrap_or_default();
        let name = request.info.name.clone().unwrap_or_default();
        let user = caller.user.clone();
        let dry_run = options.is_dry_run();
        let work = move |objects: &mut ObjectTxn<'_, '_>| {
            delete_in(objects, kind, &namespace, &name, &options, &user)
        };
        let answer = self.commit(dry_run, work).await?;
        let is_object = answer["kind"] == kind.kind;
        Ok(body::json(200, &if is_object { kind.converted(&answer).into_owned() } else { answer }))
    }

    pub(super) async fn delete_collection(
        &self,
        request: ResourceRequest,
        caller: &Caller,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let kind = request.info.kind;
        if kind.namespaced && request.info.namespace.is_none() {
            return Err(StatusError::method_not_allowed());
        }
        let options = DeleteOptions::of(&request)?;
        let dry_run = options.is_dry_run();
        let listed = self.page(&request.info, &request.query.list_options(kind)?, 0, false)?;
        let mut items = Vec::new();
        for json in &listed.items {
            let object = super::parse(json)?;
            let (namespace, name) =
                (meta::text(&object, "namespace").to_owned(), meta::text(&object, "name").to_owned());
            let (options, user) = (options.clone(), caller.user.clone());
            let work = move |objects: &mut ObjectTxn<'_, '_>| {
                delete_in(objects, kind, &namespace, &name, &options, &user)
            };
            match self.commit(dry_run, work).await {
                Ok(_) => items.push(object),
                // Deleted concurrently.
                Err(error) if error.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let shown: Vec<Value> = items.iter().map(|object| kind.converted(object).into_owned()).collect();
        let mut list = json!({"kind": format!("{}List", kind.kind), "apiVersion": kind.api_version(),
            "metadata": {"resourceVersion": listed.revision.to_string()}, "items": shown});
        if request.accept.form == ResponseForm::Table {
            let include = list::included(&request);
            list =
                crate::table::table(kind, &items, list["metadata"].take(), include, request.now.as_second());
        }
        Ok(body::json(200, &list))
    }
}

/// Deletes an object inside a transaction, or marks it as being deleted. Returns the body of the response.
pub(crate) fn delete_in(
    objects: &mut ObjectTxn<'_, '_>,
    kind: &'static ResourceKind,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
    user: &UserInfo,
) -> Result<Value, StatusError> {
    let mut object = objects.fetch(kind, namespace, name)?;
    objects.allow_on_full_disk();
    check_preconditions(kind, name, &object, options.preconditions.as_ref())?;
    let dry_run = options.is_dry_run();
    policy::check(
        objects,
        &AdmissionAttributes {
            kind,
            subresource: "",
            operation: AdmissionOperation::Delete,
            object: &Value::Null,
            old: &object,
            user,
            dry_run,
        },
    )?;
    if kind.kind == "Namespace" && PROTECTED_NAMESPACES.contains(&name) {
        return Err(StatusError::forbidden_object(kind, name, "this namespace may not be deleted"));
    }
    let before = object.clone();
    mark_deleted(objects, kind, &mut object, options);
    if is_ready_to_remove(kind, &object) {
        let uid = object["metadata"]["uid"].clone();
        remove(objects, kind, &mut object)?;
        return Ok(if kind.returns_deleted { object } else { status::deleted(kind, name, &uid) });
    }
    meta::update_generation(&before, &mut object);
    if object != before {
        objects.put(kind, &mut object)?;
    }
    Ok(object)
}

fn check_preconditions(
    kind: &ResourceKind,
    name: &str,
    object: &Value,
    wanted: Option<&Preconditions>,
) -> Result<(), StatusError> {
    let Some(wanted) = wanted else { return Ok(()) };
    let pairs =
        [("UID", "uid", &wanted.uid), ("ResourceVersion", "resourceVersion", &wanted.resource_version)];
    for (word, field, wanted) in pairs {
        let found = meta::text(object, field);
        if let Some(wanted) = wanted.as_deref().filter(|wanted| !wanted.is_empty() && *wanted != found) {
            let why = format!(
                "Precondition failed: {word} in precondition: {wanted}, {word} in object meta: {found}"
            );
            return Err(StatusError::precondition(kind, name, why));
        }
    }
    Ok(())
}

/// Sets deletionTimestamp, and the finalizers of the propagation policy.
fn mark_deleted(
    objects: &ObjectTxn<'_, '_>,
    kind: &ResourceKind,
    object: &mut Value,
    options: &DeleteOptions,
) {
    let mut finalizers: Vec<String> = meta::finalizers(object).into_iter().map(str::to_owned).collect();
    if let Some(propagation) = options.propagation() {
        finalizers.retain(|finalizer| finalizer != FOREGROUND && finalizer != ORPHAN);
        match propagation {
            Propagation::Foreground => finalizers.push(FOREGROUND.to_owned()),
            Propagation::Orphan => finalizers.push(ORPHAN.to_owned()),
            Propagation::Background => {}
        }
        if finalizers.is_empty() {
            meta::remove(object, "finalizers");
        } else {
            meta::set(object, "finalizers", finalizers);
        }
    }
    let grace = grace_period(kind, object, options);
    let shortened =
        object["metadata"]["deletionGracePeriodSeconds"].as_i64().is_some_and(|before| grace < before);
    if !meta::is_deleting(object) || shortened {
        let seconds = objects.now.as_second().saturating_add(grace);
        let until = jiff::Timestamp::from_second(seconds).unwrap_or(objects.now);
        meta::set(object, "deletionTimestamp", meta::time(until));
        meta::set(object, "deletionGracePeriodSeconds", grace);
    }
    if kind.kind == "Namespace" && object.is_object() {
        meta::set_in(object, "status", "phase", "Terminating");
    }
}

/// Only Pods on a node have a grace period.
fn grace_period(kind: &ResourceKind, object: &Value, options: &DeleteOptions) -> i64 {
    let runs = meta::at(object, "spec.nodeName").as_str().is_some_and(|node| !node.is_empty())
        && !matches!(meta::at(object, "status.phase").as_str(), Some("Failed" | "Succeeded"));
    if kind.kind != "Pod" || !runs {
        return 0;
    }
    let own = meta::at(object, "spec.terminationGracePeriodSeconds").as_i64();
    options.grace_period_seconds.or(own).unwrap_or(30).max(0)
}

/// Whether an update removes a finalizer of an object that is being deleted, and adds little else.
pub(super) fn is_step_of_deletion(old: &Value, new: &Value, new_bytes: usize) -> bool {
    meta::is_deleting(old)
        && meta::finalizers(new).len() < meta::finalizers(old).len()
        && object_size::encoded(old).is_none_or(|bytes| new_bytes <= bytes + STEP_BYTES)
}

/// Whether an object that is being deleted can be removed.
pub(crate) fn is_ready_to_remove(kind: &ResourceKind, object: &Value) -> bool {
    let waits_for_content = kind.kind == "Namespace"
        && object["spec"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
    let grace = object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    meta::is_deleting(object) && meta::finalizers(object).is_empty() && !waits_for_content && grace == 0
}

/// Removes an object and releases its allocations.
pub(crate) fn remove(
    objects: &mut ObjectTxn<'_, '_>,
    kind: &ResourceKind,
    object: &mut Value,
) -> Result<(), StatusError> {
    if kind.kind == "Service" {
        service::release(objects, object)?;
    }
    objects.remove(kind, object)
}

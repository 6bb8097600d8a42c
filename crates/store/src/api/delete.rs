//! delete: at once, or when finalizers, grace periods and dependents allow it.

use http::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::route::Part;
use super::{Api, Body, Call, Caller, body, read};
use crate::admission::policy::{self, Attempt, Operation};
use crate::admission::service;
use crate::kinds::Kind;
use crate::meta;
use crate::objects::Objects;
use crate::query::{dry_run, unknown};
use crate::status::{self, Cause, Failure};

/// The finalizer of an object that waits for its dependents.
pub const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object whose dependents are to lose it and stay.
pub const ORPHAN: &str = "orphan";

const PROTECTED_NAMESPACES: &[&str] = &["default", "kube-system"];

/// What becomes of the objects that name the deleted one as their owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Propagation {
    /// They go after it.
    #[default]
    Background,
    /// They go before it.
    Foreground,
    /// They stay.
    Orphan,
}

/// The body of a DELETE.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeleteOptions {
    /// How many seconds a Pod gets to end.
    pub grace_period_seconds: Option<i64>,
    /// What must be true of the object.
    pub preconditions: Option<Preconditions>,
    /// What becomes of dependents.
    pub propagation_policy: Option<Propagation>,
    /// The old way to say Orphan.
    pub orphan_dependents: Option<bool>,
    /// `All` for a rehearsal.
    pub dry_run: Option<Vec<String>>,
}

/// What must be true of an object for it to be deleted.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Preconditions {
    /// This life of it.
    pub uid: Option<String>,
    /// This version of it.
    pub resource_version: Option<String>,
}

impl DeleteOptions {
    /// The options of a request: its body, and what the query adds.
    fn of(call: &Call) -> Result<Self, Failure> {
        let mut causes = Vec::new();
        let mut options = if call.content.is_empty() {
            Self::default()
        } else {
            let mut object = body::object(&call.headers, &call.content)?.value;
            let word = object.as_object_mut().and_then(|options| options.shift_remove("propagationPolicy"));
            let read: Result<Self, _> = serde_json::from_value(object);
            let read =
                read.map_err(|error| Failure::bad_request(format!("DeleteOptions cannot be read: {error}")))?;
            let word = word.filter(|word| !word.is_null());
            Self { propagation_policy: word.and_then(|word| propagation(word, &mut causes)), ..read }
        };
        if let Some(seconds) = call.query.value("gracePeriodSeconds") {
            let read =
                seconds.parse().map_err(|_| Failure::bad_request("gracePeriodSeconds is a whole number"))?;
            options.grace_period_seconds = Some(read);
        }
        if let Some(word) = call.query.value("propagationPolicy") {
            options.propagation_policy = propagation(word.into(), &mut causes);
        }
        if call.query.value("orphanDependents").is_some() {
            options.orphan_dependents = Some(call.query.flag("orphanDependents"));
        }
        if let Some(word) = call.query.value("dryRun") {
            options.dry_run = Some(vec![word.to_owned()]);
        }
        if options.orphan_dependents.is_some() && options.propagation_policy.is_some() {
            let reason = "orphanDependents is the old way to say it: write one of the two";
            causes.push(Cause::invalid("propagationPolicy", reason));
        }
        causes.extend(options.rehearsal().1);
        if causes.is_empty() { Ok(options) } else { Err(Failure::invalid_options("DeleteOptions", &causes)) }
    }

    fn rehearsal(&self) -> (bool, Vec<Cause>) {
        dry_run(self.dry_run.iter().flatten().map(String::as_str))
    }

    fn is_rehearsal(&self) -> bool {
        self.rehearsal().0
    }

    fn propagation(&self) -> Option<Propagation> {
        let old = self
            .orphan_dependents
            .map(|orphan| if orphan { Propagation::Orphan } else { Propagation::Background });
        self.propagation_policy.or(old)
    }
}

/// Reads the word for what becomes of dependents.
fn propagation(word: Value, causes: &mut Vec<Cause>) -> Option<Propagation> {
    let text = word.as_str().map_or_else(|| word.to_string(), str::to_owned);
    let read = serde_json::from_value(word).ok();
    if read.is_none() {
        causes.push(unknown("propagationPolicy", &text, &["Foreground", "Background", "Orphan"]));
    }
    read
}

impl Api {
    pub(super) async fn delete(&self, call: Call, caller: &Caller) -> Result<Response<Body>, Failure> {
        if call.target.part == Part::Status {
            return Err(Failure::method_not_allowed());
        }
        let options = DeleteOptions::of(&call)?;
        let kind = call.target.kind;
        let namespace = call.target.namespace.clone().unwrap_or_default();
        let name = call.target.name.clone().unwrap_or_default();
        let user = caller.name.clone();
        let rehearsal = options.is_rehearsal();
        let work =
            move |objects: &mut Objects<'_, '_>| delete_in(objects, kind, &namespace, &name, &options, &user);
        let answer = self.commit(rehearsal, work).await?;
        let is_object = answer["kind"] == kind.kind;
        Ok(body::json(200, &if is_object { kind.shown(&answer).into_owned() } else { answer }))
    }

    pub(super) async fn delete_collection(
        &self,
        call: Call,
        caller: &Caller,
    ) -> Result<Response<Body>, Failure> {
        let kind = call.target.kind;
        if kind.namespaced && call.target.namespace.is_none() {
            return Err(Failure::method_not_allowed());
        }
        let options = DeleteOptions::of(&call)?;
        let rehearsal = options.is_rehearsal();
        let listed = self.page(&call.target, &call.query.list_options(kind)?, false)?;
        let mut items = Vec::new();
        for json in &listed.items {
            let object = super::parse(json)?;
            let (namespace, name) =
                (meta::text(&object, "namespace").to_owned(), meta::text(&object, "name").to_owned());
            let (options, user) = (options.clone(), caller.name.clone());
            let work = move |objects: &mut Objects<'_, '_>| {
                delete_in(objects, kind, &namespace, &name, &options, &user)
            };
            match self.commit(rehearsal, work).await {
                Ok(_) => items.push(object),
                // Gone already, by somebody else.
                Err(failure) if failure.code == 404 => {}
                Err(failure) => return Err(failure),
            }
        }
        let shown: Vec<Value> = items.iter().map(|object| kind.shown(object).into_owned()).collect();
        let mut list = json!({"kind": format!("{}List", kind.kind), "apiVersion": kind.api_version(),
            "metadata": {"resourceVersion": listed.revision.to_string()}, "items": shown});
        if call.accept.form == super::accept::Form::Table {
            let include = read::included(&call);
            list = crate::table::table(kind, &items, list["metadata"].take(), include, read::now());
        }
        Ok(body::json(200, &list))
    }
}

/// Deletes an object inside a transaction, or begins to. The result is what the client is told.
pub fn delete_in(
    objects: &mut Objects<'_, '_>,
    kind: &'static Kind,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
    user: &str,
) -> Result<Value, Failure> {
    let mut object = objects.fetch(kind, namespace, name)?;
    check_preconditions(kind, name, &object, options.preconditions.as_ref())?;
    let rehearsal = options.is_rehearsal();
    policy::check(
        objects,
        &Attempt {
            kind,
            subresource: "",
            operation: Operation::Delete,
            object: &Value::Null,
            old: &object,
            user,
            dry_run: rehearsal,
        },
    )?;
    if kind.kind == "Namespace" && PROTECTED_NAMESPACES.contains(&name) {
        return Err(Failure::forbidden_object(kind, name, "this namespace may not be deleted"));
    }
    let before = object.clone();
    prepare(objects, kind, &mut object, options);
    if is_free_to_go(kind, &object) {
        let uid = object["metadata"]["uid"].clone();
        remove(objects, kind, &mut object)?;
        return Ok(if kind.returns_deleted { object } else { status::deleted(kind, name, &uid) });
    }
    meta::count_generation(&before, &mut object);
    if object != before {
        objects.put(kind, &mut object)?;
    }
    Ok(object)
}

fn check_preconditions(
    kind: &Kind,
    name: &str,
    object: &Value,
    wanted: Option<&Preconditions>,
) -> Result<(), Failure> {
    let Some(wanted) = wanted else { return Ok(()) };
    let pairs =
        [("UID", "uid", &wanted.uid), ("ResourceVersion", "resourceVersion", &wanted.resource_version)];
    for (word, field, wanted) in pairs {
        let found = meta::text(object, field);
        if let Some(wanted) = wanted.as_deref().filter(|wanted| !wanted.is_empty() && *wanted != found) {
            let why = format!(
                "Precondition failed: {word} in precondition: {wanted}, {word} in object meta: {found}"
            );
            return Err(Failure::precondition(kind, name, why));
        }
    }
    Ok(())
}

/// Marks the object as being deleted, with the finalizers that the propagation asks for.
fn prepare(objects: &Objects<'_, '_>, kind: &Kind, object: &mut Value, options: &DeleteOptions) {
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

/// Only Pods that run somewhere get time to end.
fn grace_period(kind: &Kind, object: &Value, options: &DeleteOptions) -> i64 {
    let runs = meta::at(object, "spec.nodeName").as_str().is_some_and(|node| !node.is_empty())
        && !matches!(meta::at(object, "status.phase").as_str(), Some("Failed" | "Succeeded"));
    if kind.kind != "Pod" || !runs {
        return 0;
    }
    let own = meta::at(object, "spec.terminationGracePeriodSeconds").as_i64();
    options.grace_period_seconds.or(own).unwrap_or(30).max(0)
}

/// Whether a deleted object has nothing left to wait for.
pub(crate) fn is_free_to_go(kind: &Kind, object: &Value) -> bool {
    let waits_for_content = kind.kind == "Namespace"
        && object["spec"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
    let grace = object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    meta::is_deleting(object) && meta::finalizers(object).is_empty() && !waits_for_content && grace == 0
}

/// Removes an object with all that it held.
pub(crate) fn remove(objects: &mut Objects<'_, '_>, kind: &Kind, object: &mut Value) -> Result<(), Failure> {
    if kind.kind == "Service" {
        service::release(objects, object)?;
    }
    objects.remove(kind, object)
}

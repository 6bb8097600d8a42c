//! create, update and patch: each one transaction, from the stored object to its new version with all that
//! belongs to it.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use plan::validate::drop_disabled;
use serde_json::Value;

use super::accept::Form;
use super::route::Part;
use super::{Api, Body, Call, Caller, body, read};
use crate::admission::policy::{Attempt, Operation};
use crate::admission::service::{self, Ranges};
use crate::admission::{self, policy};
use crate::document::Document;
use crate::kinds::{self, Kind};
use crate::objects::{Objects, revision_of};
use crate::patch::{self, PatchKind};
use crate::query::{FieldValidation, WriteOptions};
use crate::status::Failure;
use crate::{meta, names, schema};

/// How a write is to be done, and for whom.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The kind of the object.
    pub kind: &'static Kind,
    /// Whether only the status is written.
    pub status: bool,
    /// Dry run, unknown fields.
    pub options: WriteOptions,
    /// Who writes.
    pub user: String,
    /// The program that writes.
    pub manager: String,
    /// What Services can get.
    pub ranges: Arc<Ranges>,
    /// Where searches for free addresses start.
    pub seed: u64,
    /// Whether admission policies are asked.
    pub policies: bool,
}

/// The name of what this process itself writes.
const OWN_MANAGER: &str = "zoneward";
/// Kubernetes' limit.
const LONGEST_MANAGER: usize = 128;

/// What a write did.
#[derive(Clone, Debug)]
pub struct Change {
    /// The object afterwards.
    pub object: Value,
    /// The object as it was stored, if it was.
    pub json: Option<Bytes>,
    /// What the client should know.
    pub warnings: Vec<String>,
}

/// A new version of an object that a client wants, and what to warn of.
pub(super) struct Wanted {
    pub(super) terms: Terms,
    pub(super) object: Value,
    pub(super) warnings: Vec<String>,
}

impl Api {
    /// The terms of a write.
    pub fn terms(&self, kind: &'static Kind, user: &Caller, options: WriteOptions) -> Result<Terms, Failure> {
        // Only Services search for addresses; chance costs a call into the system.
        let seed = if kind.kind == "Service" { names::seed().map_err(Failure::internal)? } else { 0 };
        let (user, manager) = (user.name.clone(), OWN_MANAGER.to_owned());
        let ranges = self.ranges.clone();
        Ok(Terms { kind, status: false, options, user, manager, ranges, seed, policies: true })
    }

    pub(super) async fn create(&self, call: Call, caller: &Caller) -> Result<Response<Body>, Failure> {
        let kind = call.target.kind;
        let namespace = call.target.namespace.clone();
        if kind.namespaced && namespace.is_none() {
            return Err(Failure::method_not_allowed());
        }
        let terms = Terms {
            manager: manager(&call),
            ..self.terms(kind, caller, call.query.write_options("CreateOptions")?)?
        };
        let mut document = body::object(&call.headers, &call.content)?;
        let warnings = admit_shape(&terms, None, &mut document)?;
        let (terms, mut object) = keep(terms, document.value);
        place(&mut object, namespace.as_deref())?;
        let dry_run = terms.options.dry_run;
        let mut change = self.commit(dry_run, move |objects| create_in(objects, &terms, object)).await?;
        change.warnings.extend(warnings);
        Ok(respond(201, &call, &change))
    }

    pub(super) async fn replace(&self, call: Call, caller: &Caller) -> Result<Response<Body>, Failure> {
        let (namespace, name) = identity(&call);
        let mut wanted = self.wanted(&call, caller)?;
        if let Some(stored) = self.replaceable(&wanted.terms, &namespace, &name)? {
            if let Some(change) = self.replace_ahead(stored, wanted).await? {
                return Ok(respond(200, &call, &change));
            }
            wanted = self.wanted(&call, caller)?;
        }
        let Wanted { terms, object, warnings } = wanted;
        let dry_run = terms.options.dry_run;
        let work = move |objects: &mut Objects<'_, '_>| {
            if creates(objects, &terms, &namespace, &name)? {
                return create_by_update(objects, &terms, object).map(|change| (201, change));
            }
            let kind = terms.kind;
            let given = |old: &Value| check_uid(kind, &name, old, &object).map(|()| (object, Vec::new()));
            let change = update_in(objects, &terms, &namespace, &name, given)?;
            Ok((200, change))
        };
        let (code, mut change) = self.commit(dry_run, work).await?;
        change.warnings.extend(warnings);
        Ok(respond(code, &call, &change))
    }

    /// What an update brings, as far as it can be judged by itself.
    fn wanted(&self, call: &Call, caller: &Caller) -> Result<Wanted, Failure> {
        let terms = Terms {
            status: call.target.part == Part::Status,
            manager: manager(call),
            ..self.terms(call.target.kind, caller, call.query.write_options("UpdateOptions")?)?
        };
        let mut document = body::object(&call.headers, &call.content)?;
        let warnings = admit_shape(&terms, None, &mut document)?;
        let (terms, mut object) = keep(terms, document.value);
        place(&mut object, call.target.namespace.as_deref())?;
        let (given, name) = (meta::text(&object, "name"), call.target.name.as_deref().unwrap_or_default());
        if given != name {
            return Err(Failure::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        Ok(Wanted { terms, object, warnings })
    }

    pub(super) async fn patch(&self, call: Call, caller: &Caller) -> Result<Response<Body>, Failure> {
        let kind = call.target.kind;
        let how = PatchKind::of(body::media_type(&call.headers), kind)?;
        let terms = Terms {
            status: call.target.part == Part::Status,
            manager: manager(&call),
            ..self.terms(kind, caller, call.query.write_options("PatchOptions")?)?
        };
        let (namespace, name) = identity(&call);
        let wanted = name.clone();
        let content = Document::read(&call.content)
            .map_err(|error| Failure::bad_request(format!("error decoding patch: {error}")))?;
        let dry_run = terms.options.dry_run;
        let shape = terms.clone();
        let terms = Terms { kind: kind.as_stored(), ..terms };
        // The patch meets the object inside the transaction, so there is nothing to race with.
        let patched = move |old: &Value| {
            let stored = kind.shown(old);
            let value = patch::apply(how, kind, &stored, &content.value)?;
            let mut new = Document { value, doubles: content.doubles };
            let warnings = admit_shape(&shape, Some(&stored), &mut new)?;
            if meta::text(&new.value, "name") != wanted {
                return Err(Failure::bad_request("the name of an object cannot be patched"));
            }
            if meta::text(&new.value, "namespace") != meta::text(old, "namespace") {
                return Err(Failure::bad_request("the namespace of an object cannot be patched"));
            }
            Ok((kind.keep(new.value), warnings))
        };
        let work =
            move |objects: &mut Objects<'_, '_>| update_in(objects, &terms, &namespace, &name, patched);
        let change = self.commit(dry_run, work).await?;
        Ok(respond(200, &call, &change))
    }
}

/// The program that writes: by its own word, or by the first word of its user agent, as in Kubernetes.
pub(super) fn manager(call: &Call) -> String {
    let agent = call.headers.get(http::header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    let name = call.query.value("fieldManager").or(agent).unwrap_or("unknown");
    name.split('/').next().unwrap_or_default().chars().take(LONGEST_MANAGER).collect()
}

/// Whether an update of this object is its creation.
fn creates(objects: &Objects<'_, '_>, terms: &Terms, namespace: &str, name: &str) -> Result<bool, Failure> {
    let may = terms.kind.update_creates && !terms.status;
    Ok(may && !objects.has(terms.kind, namespace, name)?)
}

/// The version that an update names is of an object that is gone, and does not count; a uid does, and is nobody's.
fn create_by_update(
    objects: &mut Objects<'_, '_>,
    terms: &Terms,
    mut object: Value,
) -> Result<Change, Failure> {
    let (uid, name) = (meta::text(&object, "uid"), meta::text(&object, "name"));
    if !uid.is_empty() {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: ");
        return Err(Failure::conflict(terms.kind, name, why));
    }
    meta::remove(&mut object, "resourceVersion");
    create_in(objects, terms, object)
}

fn identity(call: &Call) -> (String, String) {
    (call.target.namespace.clone().unwrap_or_default(), call.target.name.clone().unwrap_or_default())
}

fn respond(code: u16, call: &Call, change: &Change) -> Response<Body> {
    let mut response = match (&change.json, call.accept.form) {
        (Some(json), Form::Object) if !call.target.kind.is_view() => body::bytes(code, json.clone()),
        _ => body::json(code, &read::shown(call, &change.object)),
    };
    body::warn(&mut response, &change.warnings);
    response
}

/// A view's object, and the terms of its write, as they are for the kind that is stored.
fn keep(terms: Terms, object: Value) -> (Terms, Value) {
    let object = terms.kind.keep(object);
    (Terms { kind: terms.kind.as_stored(), ..terms }, object)
}

/// Checks kind, version, types, unknown fields and such that stand twice; the result is what to warn of.
pub(super) fn admit_shape(
    terms: &Terms,
    stored: Option<&Value>,
    document: &mut Document,
) -> Result<Vec<String>, Failure> {
    let (kind, object) = (terms.kind, &mut document.value);
    let said = |name: &str| object[name].as_str().unwrap_or_default();
    let (version, word) = (said("apiVersion"), said("kind"));
    if !version.is_empty() && !kind.has_version(version) || !word.is_empty() && word != kind.kind {
        return Err(Failure::bad_request(format!(
            "{word} in version {version:?} cannot be handled as a {}: the path is for {} in version {:?}",
            kind.kind,
            kind.kind,
            kind.api_version()
        )));
    }
    kind.stamp(object);
    let schema = schema::of(kind).ok_or_else(|| Failure::internal(format!("{} has no schema", kind.kind)))?;
    // A patch changes little of what is stored, and what is stored fits.
    let findings = match stored.is_none() && schema::fits(object, schema) {
        true => schema::Findings::default(),
        false => schema::check(object, stored, schema),
    };
    if !findings.mistyped.is_empty() {
        let what = findings.mistyped.join(", ");
        let (word, version) = (kind.kind, kind.version);
        return Err(Failure::bad_request(format!(
            "{word} in version {version:?} cannot be handled as a {word}: json: cannot unmarshal: {what}"
        )));
    }
    let mut unknown = std::mem::take(&mut document.doubles);
    unknown.extend(findings.unknown.iter().map(|path| format!("unknown field {path:?}")));
    match terms.options.field_validation {
        FieldValidation::Strict if !unknown.is_empty() => {
            Err(Failure::bad_request(format!("strict decoding error: {}", unknown.join(", "))))
        }
        FieldValidation::Warn => Ok(unknown),
        FieldValidation::Strict | FieldValidation::Ignore => Ok(Vec::new()),
    }
}

/// Puts the object into the namespace of its path.
fn place(object: &mut Value, namespace: Option<&str>) -> Result<(), Failure> {
    let given = meta::text(object, "namespace").to_owned();
    match namespace {
        Some(namespace) if given.is_empty() => meta::set(object, "namespace", namespace),
        Some(namespace) if given != namespace => {
            return Err(Failure::bad_request(format!(
                "the namespace of the provided object does not match the namespace sent on the request: {given:?}, {namespace:?}"
            )));
        }
        None if !given.is_empty() => meta::remove(object, "namespace"),
        _ => {}
    }
    Ok(())
}

/// How often a generated name is made up anew because it was taken.
const ATTEMPTS: usize = 8;

fn name_it(objects: &Objects<'_, '_>, kind: &Kind, object: &mut Value) -> Result<(), Failure> {
    let prefix = meta::text(object, "generateName").to_owned();
    if !meta::text(object, "name").is_empty() || prefix.is_empty() {
        return Ok(());
    }
    for _ in 0..ATTEMPTS {
        let name = names::generate(&prefix).map_err(Failure::internal)?;
        if objects.find(kind, meta::text(object, "namespace"), &name)?.is_none() {
            meta::set(object, "name", name);
            return Ok(());
        }
    }
    Err(Failure::already_exists(kind, &prefix))
}

fn check_namespace(objects: &Objects<'_, '_>, kind: &Kind, object: &Value) -> Result<(), Failure> {
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
    let mut failure = Failure::forbidden(format!("{what} {name:?} is forbidden: {why}"));
    failure.details = serde_json::json!({"name": name, "kind": kind.plural, "causes": [{
        "reason": "NamespaceTerminating",
        "message": format!("namespace {namespace} is being terminated"),
        "field": "metadata.namespace",
    }]});
    Err(failure)
}

/// Creates an object inside a transaction.
pub fn create_in(objects: &mut Objects<'_, '_>, terms: &Terms, mut object: Value) -> Result<Change, Failure> {
    let kind = terms.kind;
    kind.stamp(&mut object);
    if !meta::text(&object, "resourceVersion").is_empty() {
        return Err(Failure::bad_request("resourceVersion should not be set on objects to be created"));
    }
    check_namespace(objects, kind, &object)?;
    name_it(objects, kind, &mut object)?;
    let uid = names::uid().map_err(Failure::internal)?;
    meta::born(&mut object, objects.now, uid);
    admission::prepare_new(kind, &mut object);
    admission::defaults(kind, &mut object);
    drop_disabled(&terms.ranges.gates, None, &mut object);
    meta::tidy(&mut object);
    admission::validate(&terms.ranges, kind, None, &object)?;
    let (namespace, name) = (meta::text(&object, "namespace"), meta::text(&object, "name"));
    if objects.find(kind, namespace, name)?.is_some() {
        return Err(Failure::already_exists(kind, name));
    }
    let mut warnings = admission::warnings(kind, &object);
    if terms.policies {
        warnings.extend(policy::check(objects, &attempt(terms, Operation::Create, &object, &Value::Null))?);
    }
    match kind.kind {
        "Service" => service::settle(objects, service_terms(terms), None, &mut object)?,
        "IPAddress" => service::check_ip_address(objects, &terms.ranges, &object)?,
        _ => {}
    }
    meta::note_writer(kind, &mut object, &terms.manager, objects.now);
    let mut json = Some(objects.store(kind, &mut object)?);
    if terms.options.dry_run {
        meta::remove(&mut object, "resourceVersion");
        json = None;
    }
    Ok(Change { object, json, warnings })
}

fn attempt<'a>(terms: &'a Terms, operation: Operation, object: &'a Value, old: &'a Value) -> Attempt<'a> {
    let subresource = if terms.status { "status" } else { "" };
    Attempt {
        kind: terms.kind,
        subresource,
        operation,
        object,
        old,
        user: &terms.user,
        dry_run: terms.options.dry_run,
    }
}

fn service_terms(terms: &Terms) -> service::Terms<'_> {
    service::Terms { ranges: &terms.ranges, dry_run: terms.options.dry_run, seed: terms.seed }
}

/// Makes a new version of an object inside a transaction; `make` gets the stored one.
pub fn update_in(
    objects: &mut Objects<'_, '_>,
    terms: &Terms,
    namespace: &str,
    name: &str,
    make: impl FnOnce(&Value) -> Result<(Value, Vec<String>), Failure>,
) -> Result<Change, Failure> {
    let kind = terms.kind;
    let old = objects.fetch(kind, namespace, name)?;
    let (new, mut warnings) = make(&old)?;
    let mut new = revised(terms, name, &old, new)?;
    warnings.extend(admission::warnings(kind, &new));
    warnings.extend(policy::check(objects, &attempt(terms, Operation::Update, &new, &old))?);
    if kind.kind == "Service" && !terms.status {
        service::settle(objects, service_terms(terms), Some(&old), &mut new)?;
    }
    if !is_changed(&old, &mut new) {
        // Nothing changes, so nobody needs to hear of it.
        return Ok(Change { object: new, json: None, warnings });
    }
    if super::delete::is_free_to_go(kind, &new) {
        super::delete::remove(objects, kind, &mut new)?;
        return Ok(Change { object: new, json: None, warnings });
    }
    meta::note_writer(kind, &mut new, &terms.manager, objects.now);
    let json = objects.store(kind, &mut new)?;
    Ok(Change { object: new, json: Some(json), warnings })
}

/// A new version as admission leaves it, as far as that needs no object but the stored one.
pub(super) fn revised(terms: &Terms, name: &str, old: &Value, mut new: Value) -> Result<Value, Failure> {
    let kind = terms.kind;
    kind.stamp(&mut new);
    check_version(kind, name, old, &new)?;
    merge_parts(terms, old, &mut new);
    admission::pod_ips(kind, &mut new);
    drop_disabled(&terms.ranges.gates, Some(old), &mut new);
    meta::tidy(&mut new);
    admission::validate(&terms.ranges, kind, Some(old), &new)?;
    Ok(new)
}

/// Gives a new version what counts versions, and says whether it is another one than the stored.
pub(super) fn is_changed(old: &Value, new: &mut Value) -> bool {
    meta::count_generation(old, new);
    meta::set(new, "resourceVersion", old["metadata"]["resourceVersion"].clone());
    new != old
}

/// The uid in the body of an update is a precondition; in a patch it is a change that validation refuses.
pub(super) fn check_uid(kind: &Kind, name: &str, old: &Value, new: &Value) -> Result<(), Failure> {
    let (uid, stored) = (meta::text(new, "uid"), meta::text(old, "uid"));
    if uid.is_empty() || uid == stored {
        return Ok(());
    }
    let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {stored}");
    Err(Failure::conflict(kind, name, why))
}

pub(super) fn check_version(kind: &Kind, name: &str, old: &Value, new: &Value) -> Result<(), Failure> {
    let wanted = meta::text(new, "resourceVersion");
    if wanted.is_empty() || wanted == "0" || revision_of(new) == revision_of(old) {
        return Ok(());
    }
    if revision_of(new).is_none() {
        return Err(Failure::bad_request(format!(
            "metadata.resourceVersion: {wanted:?} is none that this server gave"
        )));
    }
    Err(Failure::modified(kind, name))
}

/// The status is written by its own path alone, and that path writes nothing else.
fn merge_parts(terms: &Terms, old: &Value, new: &mut Value) {
    meta::carry_over(old, new);
    if terms.status {
        let status = new.get("status").cloned();
        let metadata = new.get("metadata").cloned();
        let mut kept = old.clone();
        if let Some(map) = kept.as_object_mut() {
            set_or_remove(map, "status", status);
            if terms.kind.group != "zoneward.dev" {
                set_or_remove(map, "metadata", metadata);
            }
        }
        if let Some(version) = new["metadata"].get("resourceVersion") {
            meta::set(&mut kept, "resourceVersion", version.clone());
        }
        *new = kept;
        return;
    }
    if terms.kind.status
        && let Some(map) = new.as_object_mut()
    {
        set_or_remove(map, "status", old.get("status").cloned());
    }
    admission::defaults(terms.kind, new);
    if terms.kind.kind == "Service" {
        service::carry_over(old, new);
    }
    if terms.kind.kind == "Namespace" {
        meta::set_in(new, "spec", "finalizers", old["spec"]["finalizers"].clone());
    }
}

fn set_or_remove(map: &mut serde_json::Map<String, Value>, name: &str, value: Option<Value>) {
    match value {
        Some(value) => {
            map.insert(name.to_owned(), value);
        }
        None => {
            map.shift_remove(name);
        }
    }
}

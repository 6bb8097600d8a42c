//! Requests to create, update and patch: decodes the body, runs the strategy in one transaction, and responds.

use http::Response;
use serde_json::Value;

use super::negotiation::ResponseForm;
use super::request_info::Subresource;
use super::strategy::{
    WriteContext, WriteOutcome, check_resource_version, check_uid, create_by_update, create_in, creates,
    update_in,
};
use super::{Api, Caller, ResourceRequest, ResponseBody, body, list};
use crate::kinds::ResourceKind;
use crate::object_size;
use crate::object_txn::ObjectTxn;
use crate::patch::{self, PatchKind};
use crate::query::{FieldValidation, MAX_MANAGER, WriteOptions};
use crate::schema::TypeMismatch;
use crate::status::StatusError;
use crate::strict_json::StrictJson;
use crate::{field_tracking, meta, schema};

/// The decoded body of an update.
pub(super) struct UpdateRequest {
    pub(super) context: WriteContext,
    pub(super) object: Value,
    pub(super) warnings: Vec<String>,
}

impl Api {
    pub(super) async fn create(
        &self,
        request: ResourceRequest,
        caller: &Caller,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let kind = request.info.kind;
        let namespace = request.info.namespace.clone();
        if kind.namespaced && namespace.is_none() {
            return Err(StatusError::method_not_allowed());
        }
        let context = WriteContext {
            field_manager: field_manager(&request),
            ..self.write_context(kind, caller, request.query.write_options("CreateOptions")?)
        };
        let mut decoded = body::object(&request.headers, &request.content, request.info.kind.kind)?;
        let warnings = decode_strictly(&context, None, &mut decoded)?;
        let (context, mut object) = as_stored(context, decoded.value);
        set_namespace(&mut object, namespace.as_deref())?;
        let dry_run = context.options.dry_run;
        let mut outcome = self.commit(dry_run, move |objects| create_in(objects, &context, object)).await?;
        outcome.warnings.extend(warnings);
        Ok(respond(201, &request, &outcome))
    }

    pub(super) async fn update(
        &self,
        request: ResourceRequest,
        caller: &Caller,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let (namespace, name) = namespace_and_name(&request);
        let mut update = self.decode_update(&request, caller)?;
        if let Some(stored) = self.cached_version(&update.context, &namespace, &name)? {
            if let Some(outcome) = self.update_optimistically(stored, update).await? {
                return Ok(respond(200, &request, &outcome));
            }
            update = self.decode_update(&request, caller)?;
        }
        let UpdateRequest { context, object, warnings } = update;
        let dry_run = context.options.dry_run;
        let work = move |objects: &mut ObjectTxn<'_, '_>| {
            if creates(objects, &context, &namespace, &name)? {
                return create_by_update(objects, &context, object).map(|outcome| (201, outcome));
            }
            let kind = context.kind;
            let make = |old: &Value| check_uid(kind, &name, old, &object).map(|()| (object, Vec::new()));
            let outcome = update_in(objects, &context, &namespace, &name, make)?;
            Ok((200, outcome))
        };
        let (code, mut outcome) = self.commit(dry_run, work).await?;
        outcome.warnings.extend(warnings);
        Ok(respond(code, &request, &outcome))
    }

    fn decode_update(
        &self,
        request: &ResourceRequest,
        caller: &Caller,
    ) -> Result<UpdateRequest, StatusError> {
        let context = WriteContext {
            subresource: request.info.subresource,
            named: true,
            field_manager: field_manager(request),
            ..self.write_context(request.info.kind, caller, request.query.write_options("UpdateOptions")?)
        };
        let mut decoded = body::object(&request.headers, &request.content, request.info.kind.kind)?;
        let warnings = decode_strictly(&context, None, &mut decoded)?;
        let (context, mut object) = as_stored(context, decoded.value);
        set_namespace(&mut object, request.info.namespace.as_deref())?;
        let (given, name) = (meta::text(&object, "name"), request.info.name.as_deref().unwrap_or_default());
        if given != name {
            return Err(other_name(given, name));
        }
        Ok(UpdateRequest { context, object, warnings })
    }

    pub(super) async fn patch(
        &self,
        request: ResourceRequest,
        caller: &Caller,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let kind = request.info.kind;
        if body::media_type(&request.headers) == patch::APPLY {
            return self.apply(request, caller).await;
        }
        let patch_kind = PatchKind::of(body::media_type(&request.headers), kind)?;
        let decode_context = WriteContext {
            subresource: request.info.subresource,
            named: true,
            field_manager: field_manager(&request),
            ..self.write_context(kind, caller, request.query.write_options("PatchOptions")?)
        };
        let (namespace, name) = namespace_and_name(&request);
        let wanted = name.clone();
        let content = StrictJson::decode(&request.content)
            .map_err(|error| StatusError::bad_request(format!("error decoding patch: {error}")))?;
        let context = WriteContext { kind: kind.as_stored(), ..decode_context.clone() };
        let dry_run = context.options.dry_run;
        // The patch is applied inside the transaction, so it cannot conflict.
        let patched = move |old: &Value| {
            let stored = kind.converted(old);
            let value = patch::apply(patch_kind, kind, &stored, &content.value)?;
            let mut new = StrictJson { value, duplicates: content.duplicates };
            let warnings =
                decode_strictly(&decode_context, Some(&stored), &mut new).map_err(StatusError::of_patch)?;
            if meta::text(&new.value, "name") != wanted {
                return Err(StatusError::bad_request("the name of an object cannot be patched"));
            }
            if meta::text(&new.value, "namespace") != meta::text(old, "namespace") {
                return Err(StatusError::bad_request("the namespace of an object cannot be patched"));
            }
            Ok((kind.into_stored(new.value), warnings))
        };
        let work =
            move |objects: &mut ObjectTxn<'_, '_>| update_in(objects, &context, &namespace, &name, patched);
        let outcome = self.commit(dry_run, work).await?;
        Ok(respond(200, &request, &outcome))
    }

    /// Server-side apply; creates the object if there is none.
    async fn apply(
        &self,
        request: ResourceRequest,
        caller: &Caller,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let kind = request.info.kind;
        let (options, force) = request.query.apply_options()?;
        let (config, warnings) = applied_object(&request, &options)?;
        let context = WriteContext {
            kind: kind.as_stored(),
            requested: kind,
            subresource: request.info.subresource,
            named: true,
            field_manager: field_manager(&request),
            applied: true,
            ..self.write_context(kind, caller, options)
        };
        let (namespace, name) = namespace_and_name(&request);
        // The apply happens inside the transaction, so it is based on the newest version.
        let work = move |objects: &mut ObjectTxn<'_, '_>| {
            let now = objects.now;
            let apply = |old: Option<&Value>| {
                let object = field_tracking::apply(&context, old, &config, force, now)?;
                Ok::<Value, StatusError>(kind.into_stored(object))
            };
            if context.subresource == Subresource::None && !objects.has(context.kind, &namespace, &name)? {
                let object = apply(None)?;
                return create_by_update(objects, &context, object).map(|outcome| (201, outcome));
            }
            let make = |old: &Value| {
                check_uid(context.kind, &name, old, &config)?;
                check_resource_version(context.kind, &name, old, &config)?;
                Ok((apply(Some(old))?, Vec::new()))
            };
            let outcome = update_in(objects, &context, &namespace, &name, make)?;
            Ok((200, outcome))
        };
        let (code, mut outcome) = self.commit(options.dry_run, work).await?;
        outcome.warnings.extend(warnings);
        Ok(respond(code, &request, &outcome))
    }
}

/// The applied object, with the name and namespace of the path.
fn applied_object(
    request: &ResourceRequest,
    options: &WriteOptions,
) -> Result<(Value, Vec<String>), StatusError> {
    let kind = request.info.kind;
    let StrictJson { value: mut object, duplicates } = body::apply_patch(&request.content, kind.kind)?;
    let field = |name: &str| object[name].as_str().unwrap_or_default();
    let (version, word) = (field("apiVersion"), field("kind"));
    if !kind.has_version(version) || word != kind.kind {
        return Err(StatusError::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {version}, Kind={word}, expected: {}, Kind={}",
            kind.api_version(),
            kind.kind
        )));
    }
    if !object["metadata"]["managedFields"].is_null() {
        return Err(StatusError::bad_request("metadata.managedFields must be nil"));
    }
    meta::remove(&mut object, "managedFields");
    let schema =
        schema::of(kind).ok_or_else(|| StatusError::internal(format!("{} has no schema", kind.kind)))?;
    // Unknown fields are found by the apply, in the words of kube-apiserver.
    let findings = schema::check(&mut object.clone(), None, schema);
    if !findings.mistyped.is_empty() {
        return Err(mistyped(kind, &findings.mistyped));
    }
    object_size::check(&object)?;
    let name = request.info.name.as_deref().unwrap_or_default();
    match meta::text(&object, "name") {
        "" => meta::set(&mut object, "name", name),
        given if given != name => return Err(other_name(given, name)),
        _ => {}
    }
    set_namespace(&mut object, request.info.namespace.as_deref())?;
    Ok((object, reported(options, duplicates)?))
}

/// The field manager: the parameter, or the first word of the user agent, as in Kubernetes.
pub(super) fn field_manager(request: &ResourceRequest) -> String {
    if let Some(name) = request.query.value("fieldManager").filter(|name| !name.is_empty()) {
        return name.to_owned();
    }
    let agent = request.headers.get(http::header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    let name = agent.unwrap_or_default().split('/').next().unwrap_or_default();
    if name.is_empty() { "unknown".to_owned() } else { name.chars().take(MAX_MANAGER).collect() }
}

fn other_name(given: &str, name: &str) -> StatusError {
    StatusError::bad_request(format!(
        "the name of the object ({given}) does not match the name on the URL ({name})"
    ))
}

fn mistyped(kind: &ResourceKind, findings: &[TypeMismatch]) -> StatusError {
    let what = list_of(findings, TypeMismatch::to_string);
    let (word, version) = (kind.kind, kind.version);
    StatusError::bad_request(format!(
        "{word} in version {version:?} cannot be handled as a {word}: json: cannot unmarshal: {what}"
    ))
}

fn list_of(findings: &[TypeMismatch], words: impl Fn(&TypeMismatch) -> String) -> String {
    findings.iter().map(words).collect::<Vec<_>>().join(", ")
}

/// The warnings for fields that are unknown or duplicate; an error if they are not allowed.
fn reported(options: &WriteOptions, fields: Vec<String>) -> Result<Vec<String>, StatusError> {
    match options.field_validation {
        FieldValidation::Strict if !fields.is_empty() => {
            Err(StatusError::bad_request(format!("strict decoding error: {}", fields.join(", "))))
        }
        FieldValidation::Warn => Ok(fields),
        FieldValidation::Strict | FieldValidation::Ignore => Ok(Vec::new()),
    }
}

fn namespace_and_name(request: &ResourceRequest) -> (String, String) {
    (request.info.namespace.clone().unwrap_or_default(), request.info.name.clone().unwrap_or_default())
}

fn respond(code: u16, request: &ResourceRequest, outcome: &WriteOutcome) -> Response<ResponseBody> {
    let mut response = match (&outcome.json, request.accept.form) {
        (Some(json), ResponseForm::Object) if !request.info.kind.is_converted() => {
            body::bytes(code, request.accept.shown(json.clone()))
        }
        _ => body::json(code, &list::converted(request, &outcome.object)),
    };
    body::warn(&mut response, &outcome.warnings);
    response
}

/// Converts an object, and the context of its write, to the kind that is stored.
fn as_stored(context: WriteContext, object: Value) -> (WriteContext, Value) {
    let object = context.kind.into_stored(object);
    (WriteContext { kind: context.kind.as_stored(), ..context }, object)
}

/// Checks kind, version, types, unknown and duplicate fields; returns warnings. `stored` is the version that is patched.
pub(super) fn decode_strictly(
    context: &WriteContext,
    stored: Option<&Value>,
    decoded: &mut StrictJson,
) -> Result<Vec<String>, StatusError> {
    let (kind, object) = (context.kind, &mut decoded.value);
    let field = |name: &str| object[name].as_str().unwrap_or_default();
    let (version, word) = (field("apiVersion"), field("kind"));
    if !version.is_empty() && !kind.has_version(version) || !word.is_empty() && word != kind.kind {
        return Err(StatusError::bad_request(format!(
            "{word} in version {version:?} cannot be handled as a {}: the path is for {} in version {:?}",
            kind.kind,
            kind.kind,
            kind.api_version()
        )));
    }
    kind.stamp(object);
    let schema =
        schema::of(kind).ok_or_else(|| StatusError::internal(format!("{} has no schema", kind.kind)))?;
    // A patch changes a small part of what is stored, and that was checked.
    let findings = match stored.is_none() && schema::fits(object, schema) {
        true => schema::Findings::default(),
        false => schema::check(object, stored, schema),
    };
    if !findings.mistyped.is_empty() {
        return Err(match stored {
            Some(_) => StatusError::bad_request(list_of(&findings.mistyped, TypeMismatch::of_patch)),
            None => mistyped(kind, &findings.mistyped),
        });
    }
    if stored.is_none() {
        object_size::check(object)?;
    }
    let mut unknown = std::mem::take(&mut decoded.duplicates);
    unknown.extend(findings.unknown.iter().map(|path| format!("unknown field {path:?}")));
    reported(&context.options, unknown)
}

/// Sets the namespace of the path.
fn set_namespace(object: &mut Value, namespace: Option<&str>) -> Result<(), StatusError> {
    let given = meta::text(object, "namespace").to_owned();
    match namespace {
        Some(namespace) if given.is_empty() => meta::set(object, "namespace", namespace),
        Some(namespace) if given != namespace => {
            return Err(StatusError::bad_request(format!(
                "the namespace of the provided object does not match the namespace sent on the request: {given:?}, {namespace:?}"
            )));
        }
        None if !given.is_empty() => meta::remove(object, "namespace"),
        _ => {}
    }
    Ok(())
}

//! `pods/NAME/binding`: assigns a Pod to its node, as schedulers do. An update cannot: the spec is immutable.

use http::Response;
use serde_json::{Value, json};

use super::strategy::{check_resource_version, check_uid};
use super::write::{decode_strictly, field_manager};
use super::{Api, Caller, ResourceRequest, ResponseBody, WriteContext, body};
use crate::admission;
use crate::admission::policy::{self, AdmissionAttributes, AdmissionOperation};
use crate::kinds::{BINDING, ResourceKind};
use crate::meta;
use crate::object_txn::ObjectTxn;
use crate::status::{Cause, StatusError};
use apimachinery::validate::FieldErrorType;

impl Api {
    pub(super) async fn bind(
        &self,
        request: ResourceRequest,
        caller: &Caller,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let options = request.query.write_options("CreateOptions")?;
        let context = WriteContext {
            field_manager: field_manager(&request),
            ..self.write_context(request.info.kind, caller, options)
        };
        let mut decoded = body::object(&request.headers, &request.content, BINDING.kind)?;
        let decode_context = WriteContext { kind: &BINDING, ..context.clone() };
        let warnings = decode_strictly(&decode_context, None, &mut decoded)?;
        let (namespace, name) =
            (request.info.namespace.unwrap_or_default(), request.info.name.unwrap_or_default());
        let binding = decoded.value;
        check_binding(&binding, &namespace, &name)?;
        let dry_run = context.options.dry_run;
        let work =
            move |objects: &mut ObjectTxn<'_, '_>| bind_in(objects, &context, &namespace, &name, &binding);
        let mut all_warnings = self.commit(dry_run, work).await?;
        all_warnings.extend(warnings);
        let status =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        let mut response = body::json(201, &status);
        body::warn(&mut response, &all_warnings);
        Ok(response)
    }
}

fn check_binding(binding: &Value, namespace: &str, name: &str) -> Result<(), StatusError> {
    for (field, given, wanted) in [
        ("name", meta::text(binding, "name"), name),
        ("namespace", meta::text(binding, "namespace"), namespace),
    ] {
        if !given.is_empty() && given != wanted {
            let why =
                format!("the {field} of the binding ({given}) does not match the one on the URL ({wanted})");
            return Err(StatusError::bad_request(why));
        }
    }
    let target = &binding["target"];
    let (kind, node) =
        (target["kind"].as_str().unwrap_or_default(), target["name"].as_str().unwrap_or_default());
    let mut causes = Vec::new();
    if !matches!(kind, "" | "Node") {
        let why = format!("{kind:?}: supported values: \"Node\", \"<empty>\"");
        causes.push(Cause::new(FieldErrorType::NotSupported, "target.kind", why));
    }
    if node.is_empty() {
        causes.push(Cause::new(FieldErrorType::Required, "target.name", "must name a node"));
    }
    if causes.is_empty() { Ok(()) } else { Err(StatusError::invalid(&BINDING, name, &causes)) }
}

/// Binds a Pod inside a transaction; returns warnings.
fn bind_in(
    objects: &mut ObjectTxn<'_, '_>,
    context: &WriteContext,
    namespace: &str,
    name: &str,
    binding: &Value,
) -> Result<Vec<String>, StatusError> {
    let kind = context.kind;
    let old = objects.fetch(kind, namespace, name)?;
    check_uid(kind, name, &old, binding)?;
    check_resource_version(kind, name, &old, binding)?;
    if let Some(why) = conflict_reason(name, &old) {
        return Err(conflict(kind, name, &why));
    }
    let mut new = old.clone();
    meta::set_in(&mut new, "spec", "nodeName", binding["target"]["name"].clone());
    copy_annotations(&mut new, binding);
    set_scheduled(&mut new, objects.now);
    admission::validate(&context.ranges, kind, None, &new)?;
    let warnings = policy::check(
        objects,
        &AdmissionAttributes {
            kind,
            subresource: "binding",
            operation: AdmissionOperation::Create,
            object: binding,
            old: &Value::Null,
            user: &context.user,
            dry_run: context.options.dry_run,
        },
    )?;
    meta::update_generation(&old, &mut new);
    objects.put(kind, &mut new)?;
    Ok(warnings)
}

/// Why a Pod cannot be bound, in the messages of Kubernetes.
fn conflict_reason(name: &str, pod: &Value) -> Option<String> {
    if meta::is_deleting(pod) {
        return Some(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let node = meta::at(pod, "spec.nodeName").as_str().unwrap_or_default();
    if !node.is_empty() {
        return Some(format!("pod {name} is already assigned to node {node:?}"));
    }
    let gates = meta::at(pod, "spec.schedulingGates").as_array().is_some_and(|gates| !gates.is_empty());
    gates.then(|| format!("pod {name} has non-empty .spec.schedulingGates"))
}

fn conflict(kind: &ResourceKind, name: &str, why: &str) -> StatusError {
    let mut error = StatusError::conflict(kind, name, why);
    error.message = format!("Operation cannot be fulfilled on {}/binding {name:?}: {why}", kind.plural);
    error.details["kind"] = format!("{}/binding", kind.plural).into();
    error
}

/// Annotations of the binding are kept with the Pod.
fn copy_annotations(pod: &mut Value, binding: &Value) {
    let Some(given) = binding["metadata"]["annotations"].as_object().filter(|given| !given.is_empty()) else {
        return;
    };
    let mut all = pod["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    all.extend(given.iter().map(|(name, value)| (name.clone(), value.clone())));
    meta::set(pod, "annotations", all);
}

fn set_scheduled(pod: &mut Value, now: jiff::Timestamp) {
    let mut conditions = meta::at(pod, "status.conditions").as_array().cloned().unwrap_or_default();
    conditions.retain(|condition| condition["type"] != "PodScheduled");
    let time = meta::time(now);
    conditions.push(
        json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": time}),
    );
    meta::set_in(pod, "status", "conditions", conditions);
}

//! `pods/NAME/binding`: gives a Pod its node, once and for good, as schedulers do it. An update cannot: the node is
//! part of the spec, which does not change.

use http::Response;
use serde_json::{Value, json};

use super::write::{admit_shape, check_uid, check_version, manager};
use super::{Api, Body, Call, Caller, Terms, body};
use crate::admission;
use crate::admission::policy::{self, Attempt, Operation};
use crate::kinds::{BINDING, Kind};
use crate::meta;
use crate::objects::Objects;
use crate::status::{Cause, Failure};
use plan::validate::FieldErrorType;

impl Api {
    pub(super) async fn bind(&self, call: Call, caller: &Caller) -> Result<Response<Body>, Failure> {
        let options = call.query.write_options("CreateOptions")?;
        let terms = Terms { manager: manager(&call), ..self.terms(call.target.kind, caller, options)? };
        let mut document = body::object(&call.headers, &call.content)?;
        let shape = Terms { kind: &BINDING, ..terms.clone() };
        let warnings = admit_shape(&shape, None, &mut document)?;
        let (namespace, name) =
            (call.target.namespace.unwrap_or_default(), call.target.name.unwrap_or_default());
        let binding = document.value;
        check_binding(&binding, &namespace, &name)?;
        let dry_run = terms.options.dry_run;
        let work = move |objects: &mut Objects<'_, '_>| bind_in(objects, &terms, &namespace, &name, &binding);
        let mut said = self.commit(dry_run, work).await?;
        said.extend(warnings);
        let status =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        let mut response = body::json(201, &status);
        body::warn(&mut response, &said);
        Ok(response)
    }
}

/// Whether a binding is one for the Pod of the path, to a node.
fn check_binding(binding: &Value, namespace: &str, name: &str) -> Result<(), Failure> {
    for (field, given, wanted) in [
        ("name", meta::text(binding, "name"), name),
        ("namespace", meta::text(binding, "namespace"), namespace),
    ] {
        if !given.is_empty() && given != wanted {
            let why =
                format!("the {field} of the binding ({given}) does not match the one on the URL ({wanted})");
            return Err(Failure::bad_request(why));
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
        causes.push(Cause::new(FieldErrorType::Required, "target.name", "say which node"));
    }
    if causes.is_empty() { Ok(()) } else { Err(Failure::invalid(&BINDING, name, &causes)) }
}

/// Binds a Pod inside a transaction; the result is what to warn of.
fn bind_in(
    objects: &mut Objects<'_, '_>,
    terms: &Terms,
    namespace: &str,
    name: &str,
    binding: &Value,
) -> Result<Vec<String>, Failure> {
    let kind = terms.kind;
    let old = objects.fetch(kind, namespace, name)?;
    check_uid(kind, name, &old, binding)?;
    check_version(kind, name, &old, binding)?;
    if let Some(why) = hindrance(name, &old) {
        return Err(conflict(kind, name, &why));
    }
    let mut new = old.clone();
    meta::set_in(&mut new, "spec", "nodeName", binding["target"]["name"].clone());
    take_annotations(&mut new, binding);
    note_scheduled(&mut new, objects.now);
    admission::validate(&terms.ranges, kind, None, &new)?;
    let warnings = policy::check(
        objects,
        &Attempt {
            kind,
            subresource: "binding",
            operation: Operation::Create,
            object: binding,
            old: &Value::Null,
            user: &terms.user,
            dry_run: terms.options.dry_run,
        },
    )?;
    meta::count_generation(&old, &mut new);
    objects.put(kind, &mut new)?;
    Ok(warnings)
}

/// Why a Pod cannot be bound, in the words that schedulers know.
fn hindrance(name: &str, pod: &Value) -> Option<String> {
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

fn conflict(kind: &Kind, name: &str, why: &str) -> Failure {
    let mut failure = Failure::conflict(kind, name, why);
    failure.message = format!("Operation cannot be fulfilled on {}/binding {name:?}: {why}", kind.plural);
    failure.details["kind"] = format!("{}/binding", kind.plural).into();
    failure
}

/// What the scheduler wants to say about its choice is kept with the Pod.
fn take_annotations(pod: &mut Value, binding: &Value) {
    let Some(given) = binding["metadata"]["annotations"].as_object().filter(|given| !given.is_empty()) else {
        return;
    };
    let mut all = pod["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    all.extend(given.iter().map(|(name, value)| (name.clone(), value.clone())));
    meta::set(pod, "annotations", all);
}

fn note_scheduled(pod: &mut Value, now: jiff::Timestamp) {
    let mut conditions = meta::at(pod, "status.conditions").as_array().cloned().unwrap_or_default();
    conditions.retain(|condition| condition["type"] != "PodScheduled");
    let time = meta::time(now);
    conditions.push(
        json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": time}),
    );
    meta::set_in(pod, "status", "conditions", conditions);
}

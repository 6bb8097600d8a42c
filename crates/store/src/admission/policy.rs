//! ValidatingAdmissionPolicy: CEL rules of operators, evaluated for every write that they match.
//!
//! ```text
//! binding -> policy -> matchConstraints -> params -> matchConditions -> variables -> validations
//! ```
//!
//! Seed 002 restricts ServiceCIDRs with one.

mod cel;
mod matching;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use apimachinery::rbac::UserInfo;
use serde_json::{Value, json};

use super::node_restriction;
use crate::engine::{Bytes, StoreKey, StoredObject};
use crate::kinds::{self, ResourceKind};
use crate::meta;
use crate::object_txn::{ObjectTxn, parse};
use crate::selector::LabelSelector;
use crate::status::StatusError;

use cel::Scope;

pub(crate) use cel::uncompilable;

/// Evaluates an expression over `object`, for the fuzz target.
pub(crate) fn evaluate_expression(expression: &str, object: &Value) -> Result<bool, String> {
    Scope::new(&[("object", object)]).holds(expression)
}

/// The operation of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmissionOperation {
    Create,
    Update,
    Delete,
}

impl AdmissionOperation {
    fn word(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// The attributes of a write that policies see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionAttributes<'a> {
    pub kind: &'a ResourceKind,
    /// `status`, `binding`, or empty.
    pub subresource: &'a str,
    pub operation: AdmissionOperation,
    /// The new version; null for a deletion.
    pub object: &'a Value,
    /// The stored version; null for a new object.
    pub old: &'a Value,
    pub user: &'a UserInfo,
    pub dry_run: bool,
}

impl AdmissionAttributes<'_> {
    pub(super) fn any(&self) -> &Value {
        if self.object.is_null() { self.old } else { self.object }
    }
}

/// Parsed policies and bindings that are kept.
const PARSED: usize = 256;

thread_local! {
    static PARSED_OBJECTS: RefCell<BTreeMap<StoreKey, (Bytes, Rc<Value>)>> = RefCell::default();
}

/// Parses a policy or binding. They are evaluated for every write and rarely change, so each version is parsed once. The
/// cache compares bytes and not revisions, because a revision whose write failed may come again with other content.
fn parse_cached(stored: &StoredObject) -> Result<Rc<Value>, StatusError> {
    let known = PARSED_OBJECTS.with_borrow(|parsed| {
        let (json, value) = parsed.get(&stored.key)?;
        (*json == stored.json).then(|| value.clone())
    });
    if let Some(known) = known {
        return Ok(known);
    }
    let value = Rc::new(parse(stored)?);
    PARSED_OBJECTS.with_borrow_mut(|parsed| {
        if parsed.len() >= PARSED {
            parsed.clear();
        }
        parsed.insert(stored.key.clone(), (stored.json.clone(), value.clone()));
    });
    Ok(value)
}

fn policies() -> &'static ResourceKind {
    kinds::named("ValidatingAdmissionPolicy").expect("the table has policies")
}

fn bindings() -> &'static ResourceKind {
    kinds::named("ValidatingAdmissionPolicyBinding").expect("the table has bindings")
}

/// Whether any policy can apply to writes of a kind.
pub(crate) fn exist(objects: &ObjectTxn<'_, '_>, kind: &ResourceKind) -> Result<bool, StatusError> {
    Ok(kind.group != policies().group && !objects.stored(bindings())?.is_empty())
}

/// Evaluates the rules for nodes and all policies for a write; returns warnings.
pub(crate) fn check(
    objects: &ObjectTxn<'_, '_>,
    attempt: &AdmissionAttributes<'_>,
) -> Result<Vec<String>, StatusError> {
    node_restriction::check(objects, attempt)?;
    let mut warnings = Vec::new();
    let mut scope = None;
    // As in Kubernetes, policies do not apply to policies.
    if attempt.kind.group == policies().group {
        return Ok(warnings);
    }
    for binding in objects.stored(bindings())? {
        let binding = parse_cached(&binding)?;
        let name = binding["spec"]["policyName"].as_str().unwrap_or_default();
        let Some(policy) = objects.find_stored(policies(), "", name)? else { continue };
        let policy = parse_cached(&policy)?;
        if !matching::may_match(&policy["spec"]["matchConstraints"], attempt) {
            continue;
        }
        let namespace = namespace_of(objects, attempt)?;
        let matches = matching::matches(&policy["spec"]["matchConstraints"], attempt, &namespace)
            && (binding["spec"]["matchResources"].is_null()
                || matching::matches(&binding["spec"]["matchResources"], attempt, &namespace));
        if !matches {
            continue;
        }
        for params in params(objects, &policy, &binding, attempt)? {
            let scope = scope.get_or_insert_with(|| scope_of(attempt, &namespace));
            let verdict = evaluate(&policy, scope, &params);
            enforce(&policy, &binding, attempt, verdict, &mut warnings)?;
        }
    }
    Ok(warnings)
}

fn namespace_of(
    objects: &ObjectTxn<'_, '_>,
    attempt: &AdmissionAttributes<'_>,
) -> Result<Value, StatusError> {
    let name = match attempt.kind.kind {
        "Namespace" => return Ok(attempt.any().clone()),
        _ => meta::text(attempt.any(), "namespace"),
    };
    let namespaces = kinds::named("Namespace").expect("the table has Namespaces");
    Ok(objects.find(namespaces, "", name)?.unwrap_or(Value::Null))
}

/// The param objects of a binding, each evaluated separately; null if the policy has no paramKind.
fn params(
    objects: &ObjectTxn<'_, '_>,
    policy: &Value,
    binding: &Value,
    attempt: &AdmissionAttributes<'_>,
) -> Result<Vec<Value>, StatusError> {
    let wanted = &policy["spec"]["paramKind"];
    if wanted.is_null() {
        return Ok(vec![Value::Null]);
    }
    let reference = &binding["spec"]["paramRef"];
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = kinds::of(&word(&wanted["apiVersion"]), &word(&wanted["kind"]));
    let mut found = Vec::new();
    if let Some(kind) = kind {
        let given = word(&reference["namespace"]);
        let own = meta::text(attempt.any(), "namespace");
        let namespace = if !kind.namespaced {
            ""
        } else if given.is_empty() {
            own
        } else {
            &given
        };
        let name = word(&reference["name"]);
        if name.is_empty() {
            let labels =
                LabelSelector::of_object(&reference["selector"]).map_err(StatusError::bad_request)?;
            let all = objects.list(kind, Some(namespace))?;
            found.extend(all.into_iter().filter(|object| labels.matches(object)));
        } else {
            found.extend(objects.find(kind, namespace, &name)?);
        }
    }
    if found.is_empty() && reference["parameterNotFoundAction"] != "Allow" {
        let message = format!("{} no params found for policy binding", denied(policy, binding, attempt));
        return Err(StatusError::forbidden(message));
    }
    Ok(found)
}

/// The failed validations: message and reason of each.
type Verdict = Result<Vec<(String, String)>, String>;

/// The variables of all policies, which also share a budget.
fn scope_of(attempt: &AdmissionAttributes<'_>, namespace: &Value) -> Scope {
    let request = json!({
        "operation": attempt.operation.word(),
        "kind": {"group": attempt.kind.group, "version": attempt.kind.version, "kind": attempt.kind.kind},
        "resource": {"group": attempt.kind.group, "version": attempt.kind.version, "resource": attempt.kind.plural},
        "subResource": attempt.subresource,
        "name": meta::text(attempt.any(), "name"),
        "namespace": meta::text(attempt.any(), "namespace"),
        "dryRun": attempt.dry_run,
        "userInfo": attempt.user.to_json(),
    });
    Scope::new(&[
        ("object", attempt.object),
        ("oldObject", attempt.old),
        ("request", &request),
        ("namespaceObject", namespace),
    ])
}

fn evaluate(policy: &Value, scope: &mut Scope, params: &Value) -> Verdict {
    scope.start_policy(params);
    let items = |name: &str| policy["spec"][name].as_array().cloned().unwrap_or_default();
    for condition in items("matchConditions") {
        if !scope.holds(text(&condition, "expression"))? {
            return Ok(Vec::new());
        }
    }
    for variable in items("variables") {
        scope.define(text(&variable, "name"), text(&variable, "expression"))?;
    }
    let mut failed = Vec::new();
    for validation in items("validations") {
        if !scope.holds(text(&validation, "expression"))? {
            failed.push((message_of(scope, &validation), text(&validation, "reason").to_owned()));
        }
    }
    Ok(failed)
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn message_of(scope: &mut Scope, validation: &Value) -> String {
    let computed = validation["messageExpression"].as_str().and_then(|source| scope.text(source).ok());
    let given = computed.filter(|text| !text.is_empty() && !text.contains('\n'));
    given.unwrap_or_else(|| match text(validation, "message") {
        "" => format!("failed expression: {}", text(validation, "expression").trim()),
        message => message.to_owned(),
    })
}

fn denied(policy: &Value, binding: &Value, attempt: &AdmissionAttributes<'_>) -> String {
    format!(
        "{} {:?} is forbidden: ValidatingAdmissionPolicy '{}' with binding '{}' denied request:",
        attempt.kind.qualified(),
        meta::text(attempt.any(), "name"),
        meta::text(policy, "name"),
        meta::text(binding, "name")
    )
}

fn enforce(
    policy: &Value,
    binding: &Value,
    attempt: &AdmissionAttributes<'_>,
    verdict: Verdict,
    warnings: &mut Vec<String>,
) -> Result<(), StatusError> {
    let failed = match verdict {
        Ok(failed) => failed,
        Err(_) if policy["spec"]["failurePolicy"] == "Ignore" => return Ok(()),
        Err(error) => vec![(error, String::new())],
    };
    let actions = binding["spec"]["validationActions"].as_array().cloned().unwrap_or_default();
    for (message, reason) in failed {
        if actions.iter().any(|action| action == "Warn") {
            let (policy, binding) = (meta::text(policy, "name"), meta::text(binding, "name"));
            warnings.push(format!(
                "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{binding}': {message}"
            ));
        }
        if actions.iter().any(|action| action == "Deny") {
            return Err(refusal(&reason, format!("{} {message}", denied(policy, binding, attempt))));
        }
    }
    Ok(())
}

/// The error for the reason of a validation; 422 by default.
fn refusal(reason: &str, message: String) -> StatusError {
    match reason {
        "Unauthorized" => StatusError { message, ..StatusError::unauthorized() },
        "Forbidden" => StatusError::forbidden(message),
        "RequestEntityTooLarge" => StatusError { message, ..StatusError::too_large(0) },
        _ => StatusError::unprocessable(message),
    }
}

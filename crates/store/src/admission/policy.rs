//! ValidatingAdmissionPolicy: rules in CEL that operators add, held against every write that they match.
//!
//! ```text
//! binding -> policy -> matchConstraints -> params -> matchConditions -> variables -> validations
//! ```
//!
//! Seed 002 restricts ServiceCIDRs with one.

mod cel;
mod matching;
mod read;

use serde_json::{Value, json};

use crate::kinds::{self, Kind};
use crate::meta;
use crate::objects::Objects;
use crate::selector::Labels;
use crate::status::Failure;

use cel::Scope;

pub use cel::uncompilable;

/// What is done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It is new.
    Create,
    /// It gets a new version.
    Update,
    /// It goes.
    Delete,
}

impl Operation {
    fn word(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// A write that policies may refuse.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// The kind of the object.
    pub kind: &'a Kind,
    /// `status`, or nothing.
    pub subresource: &'a str,
    /// What is done.
    pub operation: Operation,
    /// The object as it would be; null for a deletion.
    pub object: &'a Value,
    /// The object as it is; null for a new one.
    pub old: &'a Value,
    /// Who does it.
    pub user: &'a str,
    /// Whether it is only a rehearsal.
    pub dry_run: bool,
}

impl Attempt<'_> {
    fn any(&self) -> &Value {
        if self.object.is_null() { self.old } else { self.object }
    }
}

fn policies() -> &'static Kind {
    kinds::named("ValidatingAdmissionPolicy").expect("the table has policies")
}

fn bindings() -> &'static Kind {
    kinds::named("ValidatingAdmissionPolicyBinding").expect("the table has bindings")
}

/// Whether a write of a kind has to be held against policies at all.
pub fn are_there(objects: &Objects<'_, '_>, kind: &Kind) -> Result<bool, Failure> {
    Ok(kind.group != policies().group && !objects.stored(bindings())?.is_empty())
}

/// Holds a write against all policies; the result is what to warn of.
pub fn check(objects: &Objects<'_, '_>, attempt: &Attempt<'_>) -> Result<Vec<String>, Failure> {
    let mut warnings = Vec::new();
    // Kubernetes never lets policies lock people out of policies.
    if attempt.kind.group == policies().group {
        return Ok(warnings);
    }
    for binding in objects.stored(bindings())? {
        let binding = read::once(&binding)?;
        let name = binding["spec"]["policyName"].as_str().unwrap_or_default();
        let Some(policy) = objects.find_stored(policies(), "", name)? else { continue };
        let policy = read::once(&policy)?;
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
            let verdict = evaluate(&policy, attempt, &namespace, &params);
            enforce(&policy, &binding, attempt, verdict, &mut warnings)?;
        }
    }
    Ok(warnings)
}

fn namespace_of(objects: &Objects<'_, '_>, attempt: &Attempt<'_>) -> Result<Value, Failure> {
    let name = match attempt.kind.kind {
        "Namespace" => return Ok(attempt.any().clone()),
        _ => meta::text(attempt.any(), "namespace"),
    };
    let namespaces = kinds::named("Namespace").expect("the table has Namespaces");
    Ok(objects.find(namespaces, "", name)?.unwrap_or(Value::Null))
}

/// The objects that a binding hands to its policy, each for a check of its own; null where it takes none.
fn params(
    objects: &Objects<'_, '_>,
    policy: &Value,
    binding: &Value,
    attempt: &Attempt<'_>,
) -> Result<Vec<Value>, Failure> {
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
            let labels = Labels::of_object(&reference["selector"]).map_err(Failure::bad_request)?;
            let all = objects.list(kind, Some(namespace))?;
            found.extend(all.into_iter().filter(|object| labels.matches(object)));
        } else {
            found.extend(objects.find(kind, namespace, &name)?);
        }
    }
    if found.is_empty() && reference["parameterNotFoundAction"] != "Allow" {
        let message = format!("{} no params found for policy binding", denied(policy, binding, attempt));
        return Err(Failure::forbidden(message));
    }
    Ok(found)
}

/// Each rule that does not hold: its sentence and its reason.
type Verdict = Result<Vec<(String, String)>, String>;

fn evaluate(policy: &Value, attempt: &Attempt<'_>, namespace: &Value, params: &Value) -> Verdict {
    let request = json!({
        "operation": attempt.operation.word(),
        "kind": {"group": attempt.kind.group, "version": attempt.kind.version, "kind": attempt.kind.kind},
        "resource": {"group": attempt.kind.group, "version": attempt.kind.version, "resource": attempt.kind.plural},
        "subResource": attempt.subresource,
        "name": meta::text(attempt.any(), "name"),
        "namespace": meta::text(attempt.any(), "namespace"),
        "dryRun": attempt.dry_run,
        "userInfo": {"username": attempt.user, "groups": ["system:authenticated"]},
    });
    let mut scope = Scope::new(&[
        ("object", attempt.object),
        ("oldObject", attempt.old),
        ("request", &request),
        ("namespaceObject", namespace),
        ("params", params),
    ]);
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
            failed.push((sentence(&scope, &validation), text(&validation, "reason").to_owned()));
        }
    }
    Ok(failed)
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn sentence(scope: &Scope, validation: &Value) -> String {
    let computed = validation["messageExpression"].as_str().and_then(|source| scope.text(source).ok());
    let given = computed.filter(|text| !text.is_empty() && !text.contains('\n'));
    given.unwrap_or_else(|| match text(validation, "message") {
        "" => format!("failed expression: {}", text(validation, "expression").trim()),
        message => message.to_owned(),
    })
}

fn denied(policy: &Value, binding: &Value, attempt: &Attempt<'_>) -> String {
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
    attempt: &Attempt<'_>,
    verdict: Verdict,
    warnings: &mut Vec<String>,
) -> Result<(), Failure> {
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

/// The code that a validation asks for; 422 unless it says otherwise.
fn refusal(reason: &str, message: String) -> Failure {
    match reason {
        "Unauthorized" => Failure { message, ..Failure::unauthorized() },
        "Forbidden" => Failure::forbidden(message),
        "RequestEntityTooLarge" => Failure { message, ..Failure::too_large(0) },
        _ => Failure::unprocessable(message),
    }
}

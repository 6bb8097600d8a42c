//! The reviews of authentication.k8s.io and authorization.k8s.io: objects that are answered and not stored.

use apimachinery::rbac::{
    AccessAttributes, AccessDecision, PolicyRule, RbacPolicy, ResourceAttributes, UserInfo, authorize,
    rules_for,
};
use apimachinery::validate::FieldErrorType;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kinds::ResourceKind;
use crate::meta;
use crate::status::{Cause, StatusError};

/// Authenticates the token of a TokenReview for some audiences, or for those of the API.
pub(crate) type Authenticate<'a> = &'a dyn Fn(&str, &[String]) -> Result<(UserInfo, Vec<String>), String>;

/// What a review is answered from.
pub(crate) struct ReviewContext<'a> {
    pub(crate) policy: &'a RbacPolicy,
    pub(crate) user: &'a UserInfo,
    /// Of the path.
    pub(crate) namespace: Option<&'a str>,
    pub(crate) now: Timestamp,
    pub(crate) authenticate: Authenticate<'a>,
}

/// The review with its status.
pub(crate) fn review(
    kind: &ResourceKind,
    mut review: Value,
    context: &ReviewContext<'_>,
) -> Result<Value, StatusError> {
    let (spec, user) = (&review["spec"], context.user);
    let status = match kind.kind {
        "SelfSubjectReview" => json!({"userInfo": user.to_json()}),
        "TokenReview" => token(spec, context)?,
        "SelfSubjectRulesReview" => rules(spec, context)?,
        "SelfSubjectAccessReview" => {
            refuse(kind, &review, access_causes(spec))?;
            access(context.policy, user, spec)
        }
        _ => {
            let mut causes = access_causes(spec);
            let (name, groups) = (text(spec, "user"), strings(&spec["groups"]));
            if name.is_empty() && groups.is_empty() {
                let why = "at least one of user or group must be specified";
                causes.push(Cause::invalid("spec.user", format!("\"\": {why}")));
            }
            if kind.namespaced {
                causes.extend(local_causes(&review, context.namespace.unwrap_or_default()));
            }
            refuse(kind, &review, causes)?;
            let (name, uid) = (name.to_owned(), text(spec, "uid").to_owned());
            access(context.policy, &UserInfo { name, uid, groups, ..UserInfo::default() }, spec)
        }
    };
    if kind.kind == "SelfSubjectReview" {
        meta::set(&mut review, "creationTimestamp", meta::time(context.now));
    }
    if kind.namespaced {
        meta::set(&mut review, "namespace", context.namespace.unwrap_or_default());
    }
    kind.stamp(&mut review);
    review["status"] = status;
    Ok(review)
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn refuse(kind: &ResourceKind, review: &Value, causes: Vec<Cause>) -> Result<(), StatusError> {
    if causes.is_empty() {
        Ok(())
    } else {
        Err(StatusError::invalid(kind, meta::text(review, "name"), &causes))
    }
}

fn access_causes(spec: &Value) -> Vec<Cause> {
    let one = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
    match (spec["resourceAttributes"].is_null(), spec["nonResourceAttributes"].is_null()) {
        (true, true) => vec![Cause::invalid("spec.resourceAttributes", format!("null: {one}"))],
        (false, false) => vec![Cause::invalid(
            "spec.nonResourceAttributes",
            "cannot be specified in combination with resourceAttributes",
        )],
        _ => Vec::new(),
    }
}

/// A LocalSubjectAccessReview is about its namespace alone.
fn local_causes(review: &Value, namespace: &str) -> Vec<Cause> {
    let (spec, mut causes) = (&review["spec"], Vec::new());
    let asked = text(&spec["resourceAttributes"], "namespace");
    if !spec["resourceAttributes"].is_null() && asked != namespace {
        let field = "spec.resourceAttributes.namespace";
        causes.push(Cause::invalid(field, format!("{asked:?}: must match metadata.namespace")));
    }
    if !spec["nonResourceAttributes"].is_null() {
        let why = "disallowed on this kind of request";
        causes.push(Cause::new(FieldErrorType::Invalid, "spec.nonResourceAttributes", why));
    }
    causes
}

fn access(policy: &RbacPolicy, user: &UserInfo, spec: &Value) -> Value {
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let attributes = match resource.is_null() {
        true => AccessAttributes::Path { verb: text(path, "verb"), path: text(path, "path") },
        false => AccessAttributes::Resource(ResourceAttributes {
            verb: text(resource, "verb"),
            group: text(resource, "group"),
            resource: text(resource, "resource"),
            subresource: text(resource, "subresource"),
            namespace: text(resource, "namespace"),
            name: text(resource, "name"),
        }),
    };
    let decision = authorize(policy, user, &attributes);
    let mut status = json!({"allowed": decision.is_allowed()});
    let reason = decision.reason();
    if !reason.is_empty() {
        status["reason"] = reason.clone().into();
    }
    if matches!(decision, AccessDecision::Denied(_)) && !reason.is_empty() {
        status["evaluationError"] = reason.trim_start_matches("RBAC: ").into();
    }
    status
}

fn rules(spec: &Value, context: &ReviewContext<'_>) -> Result<Value, StatusError> {
    let namespace = text(spec, "namespace");
    if namespace.is_empty() {
        return Err(StatusError::bad_request("no namespace on request"));
    }
    let (rules, missing) = rules_for(context.policy, context.user, namespace);
    let resource = |rule: &&PolicyRule| {
        let mut shown =
            json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
        if !rule.resource_names.is_empty() {
            shown["resourceNames"] = rule.resource_names.clone().into();
        }
        shown
    };
    let path = |rule: &&PolicyRule| json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls});
    let resources: Vec<Value> =
        rules.iter().filter(|rule| !rule.resources.is_empty()).map(resource).collect();
    let paths: Vec<Value> =
        rules.iter().filter(|rule| !rule.non_resource_urls.is_empty()).map(path).collect();
    let mut status = json!({
        "resourceRules": resources, "nonResourceRules": paths, "incomplete": !missing.is_empty(),
    });
    if !missing.is_empty() {
        status["evaluationError"] = missing.join(", ").into();
    }
    Ok(status)
}

fn token(spec: &Value, context: &ReviewContext<'_>) -> Result<Value, StatusError> {
    let token = text(spec, "token");
    if token.is_empty() {
        return Err(StatusError::bad_request("token is required for TokenReview in authentication"));
    }
    Ok(match (context.authenticate)(token, &strings(&spec["audiences"])) {
        Ok((user, audiences)) => {
            json!({"authenticated": true, "user": user.to_json(), "audiences": audiences})
        }
        Err(error) => json!({"user": {}, "error": error}),
    })
}

//! Escalation: who writes a role or a binding must hold what it grants, or the verb `escalate` or `bind`.

use serde_json::Value;

use super::covers::{compact, uncovered};
use super::policy::not_found;
use super::{
    AccessAttributes, GROUP, PolicyRule, RbacPolicy, ResourceAttributes, UserInfo, authorize, quoted_list,
    rules_for,
};

/// A write of a role or binding.
#[derive(Clone, Copy, Debug)]
pub struct RbacWrite<'a> {
    pub new: &'a Value,
    /// The stored object, for an update.
    pub old: Option<&'a Value>,
    /// The name in the request; a create has none.
    pub request_name: &'a str,
    /// The role that a binding refers to, as the write sees it; `None` if it does not exist.
    pub role: Option<&'a Value>,
}

/// Why a write is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EscalationError {
    /// It grants more than the writer holds.
    Forbidden(String),
    /// The role of a binding does not exist.
    RoleNotFound(String),
}

/// Refuses a write of a role or binding that grants more than the writer holds. Other kinds are not checked.
pub fn check_escalation(
    policy: &RbacPolicy,
    user: &UserInfo,
    write: &RbacWrite<'_>,
) -> Result<(), EscalationError> {
    if user.is_master() || write.old.is_some_and(|old| is_same_but_for_gc(old, write.new)) {
        return Ok(());
    }
    match write.new["kind"].as_str().unwrap_or_default() {
        "Role" => check_role(policy, user, write, "roles"),
        "ClusterRole" => check_role(policy, user, write, "clusterroles"),
        "RoleBinding" | "ClusterRoleBinding" => check_binding(policy, user, write),
        _ => Ok(()),
    }
}

/// Whether only fields differ that the garbage collector writes.
fn is_same_but_for_gc(old: &Value, new: &Value) -> bool {
    let cut = |object: &Value| {
        let mut object = object.clone();
        if let Some(meta) = object["metadata"].as_object_mut() {
            for name in ["ownerReferences", "finalizers", "managedFields", "resourceVersion", "generation"] {
                meta.remove(name);
            }
        }
        object
    };
    let (old, new) = (cut(old), cut(new));
    model::json::same(&old, &new)
}

fn check_role(
    policy: &RbacPolicy,
    user: &UserInfo,
    write: &RbacWrite<'_>,
    resource: &str,
) -> Result<(), EscalationError> {
    let namespace = namespace_of(write.new);
    let escalate = ResourceAttributes {
        verb: "escalate",
        group: GROUP,
        resource,
        namespace,
        name: write.request_name,
        ..ResourceAttributes::default()
    };
    if authorize(policy, user, &AccessAttributes::Resource(escalate)).is_allowed() {
        return Ok(());
    }
    confirm(policy, user, namespace, &PolicyRule::parse_all(write.new))?;
    let aggregates = |role: &Value| !role["aggregationRule"].is_null();
    if aggregates(write.new) || write.old.is_some_and(aggregates) {
        let all = || vec!["*".to_owned()];
        let everything = [
            PolicyRule { verbs: all(), api_groups: all(), resources: all(), ..PolicyRule::default() },
            PolicyRule { verbs: all(), non_resource_urls: all(), ..PolicyRule::default() },
        ];
        confirm(policy, user, namespace, &everything).map_err(|_| {
            let message = "must have cluster-admin privileges to use the aggregationRule";
            EscalationError::Forbidden(message.to_owned())
        })?;
    }
    Ok(())
}

fn check_binding(policy: &RbacPolicy, user: &UserInfo, write: &RbacWrite<'_>) -> Result<(), EscalationError> {
    let new = write.new;
    let namespace = namespace_of(new);
    let is_cluster_role = new["roleRef"]["kind"] == "ClusterRole";
    let name = new["roleRef"]["name"].as_str().unwrap_or_default();
    let bind = ResourceAttributes {
        verb: "bind",
        group: GROUP,
        resource: if is_cluster_role { "clusterroles" } else { "roles" },
        namespace,
        name,
        ..ResourceAttributes::default()
    };
    if authorize(policy, user, &AccessAttributes::Resource(bind)).is_allowed() {
        return Ok(());
    }
    match write.role {
        Some(role) => confirm(policy, user, namespace, &PolicyRule::parse_all(role)),
        None => Err(EscalationError::RoleNotFound(not_found(is_cluster_role, name))),
    }
}

fn namespace_of(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

/// Refuses rules that the user's rules in the same scope do not cover.
fn confirm(
    policy: &RbacPolicy,
    user: &UserInfo,
    namespace: &str,
    rules: &[PolicyRule],
) -> Result<(), EscalationError> {
    let (own, errors) = rules_for(policy, user, namespace);
    let missing = uncovered(&own, rules).map_err(EscalationError::Forbidden)?;
    if missing.is_empty() {
        return Ok(());
    }
    let mut lines: Vec<String> = compact(&missing).iter().map(PolicyRule::to_string).collect();
    lines.sort();
    lines.dedup();
    let mut message = format!(
        "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        quoted_list(&user.groups),
        lines.join("\n")
    );
    if !errors.is_empty() {
        message.push_str(&format!("; resolution errors: [{}]", errors.join(" ")));
    }
    Err(EscalationError::Forbidden(message))
}

//! Role-based access control, decided as Kubernetes decides it: whether a user may do something, which rules a user has,
//! and which writes of roles and bindings would grant more than the writer holds.
//!
//! ```text
//! Role, ClusterRole, RoleBinding, ClusterRoleBinding -> RbacPolicy (indexed by subject) -> authorize -> AccessDecision
//! ```
//!
//! The request path, the reviews, the audit log and impersonation call [`authorize`], so they cannot disagree. There are
//! no rules that deny: a request is allowed if one rule of one binding matches.

mod aggregation;
mod bootstrap;
mod covers;
mod escalation;
mod impersonation;
mod policy;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value};

pub use aggregation::aggregated_rules;
pub use bootstrap::{bootstrap_objects, reconciled};
pub use covers::{compact, uncovered};
pub use escalation::{EscalationError, RbacWrite, check_escalation};
pub use impersonation::{Impersonation, extra_key, impersonate};
pub use policy::{Grant, RbacPolicy};

/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";
/// Members may do everything; no binding is consulted.
pub const MASTERS: &str = "system:masters";
/// The group of every authenticated user.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of requests without credentials.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The user of requests without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// Roles that do not exist, in one message.
const MAX_MISSING: usize = 50;

/// A user, as authentication leaves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// A user with groups, without uid and extra.
    pub fn new(name: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Self { name: name.to_owned(), groups, ..Self::default() }
    }

    /// The user of requests without credentials.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS, &[UNAUTHENTICATED])
    }

    /// A service account; `extra` comes from its token.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        let groups = vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
            AUTHENTICATED.to_owned(),
        ];
        let extra = BTreeMap::new();
        Self { name: service_account_name(namespace, name), uid: uid.to_owned(), groups, extra }
    }

    /// Whether the user is a member of `system:masters`.
    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }

    /// As `userInfo` of reviews, audit events and admission.
    pub fn to_json(&self) -> Value {
        let mut user = Map::new();
        user.insert("username".to_owned(), self.name.clone().into());
        if !self.uid.is_empty() {
            user.insert("uid".to_owned(), self.uid.clone().into());
        }
        if !self.groups.is_empty() {
            user.insert("groups".to_owned(), self.groups.clone().into());
        }
        if !self.extra.is_empty() {
            let extra = self.extra.iter().map(|(key, values)| (key.clone(), values.clone().into()));
            user.insert("extra".to_owned(), Value::Object(extra.collect()));
        }
        Value::Object(user)
    }
}

/// The user name of a service account.
pub fn service_account_name(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// Namespace and name of a service account's user name.
pub fn split_service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let valid = is_label(namespace) && is_subdomain(name);
    valid.then_some((namespace, name))
}

fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_word(text)
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_word)
}

fn is_word(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.iter().all(|end| end.is_some_and(|byte| inner(*byte)))
        && bytes.iter().all(|byte| inner(*byte) || *byte == b'-')
}

/// One rule of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyRule {
    pub verbs: Vec<String>,
    pub api_groups: Vec<String>,
    pub resources: Vec<String>,
    pub resource_names: Vec<String>,
    pub non_resource_urls: Vec<String>,
}

impl PolicyRule {
    /// Reads a rule; what is no list of strings is empty and matches nothing.
    pub fn parse(rule: &Value) -> Self {
        let list = |name: &str| -> Vec<String> {
            let items = rule[name].as_array().into_iter().flatten();
            items.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Self {
            verbs: list("verbs"),
            api_groups: list("apiGroups"),
            resources: list("resources"),
            resource_names: list("resourceNames"),
            non_resource_urls: list("nonResourceURLs"),
        }
    }

    /// The rules of a role.
    pub fn parse_all(role: &Value) -> Vec<Self> {
        role["rules"].as_array().into_iter().flatten().map(Self::parse).collect()
    }

    pub fn to_json(&self) -> Value {
        let mut rule = Map::new();
        for (name, list) in self.lists() {
            if !list.is_empty() || name == "verbs" {
                rule.insert(name.to_owned(), list.clone().into());
            }
        }
        Value::Object(rule)
    }

    fn lists(&self) -> [(&'static str, &Vec<String>); 5] {
        [
            ("verbs", &self.verbs),
            ("apiGroups", &self.api_groups),
            ("resources", &self.resources),
            ("resourceNames", &self.resource_names),
            ("nonResourceURLs", &self.non_resource_urls),
        ]
    }

    /// Whether the rule allows a request.
    pub fn allows(&self, attributes: &AccessAttributes<'_>) -> bool {
        match attributes {
            AccessAttributes::Resource(wanted) => {
                has(&self.verbs, wanted.verb)
                    && has(&self.api_groups, wanted.group)
                    && self.resources.iter().any(|item| matches_resource(item, wanted))
                    && (self.resource_names.is_empty()
                        || self.resource_names.iter().any(|item| item == wanted.name))
            }
            AccessAttributes::Path { verb, path } => {
                has(&self.verbs, verb) && self.non_resource_urls.iter().any(|item| matches_url(item, path))
            }
        }
    }
}

/// As kube-apiserver prints a rule that a writer lacks.
impl fmt::Display for PolicyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        let parts = parts.into_iter().filter(|(_, list)| !list.is_empty());
        let parts: Vec<String> = parts.map(|(name, list)| format!("{name}:{}", quoted_list(list))).collect();
        write!(f, "{{{}}}", parts.join(", "))
    }
}

/// A list of strings as Go prints it with `%q`.
fn quoted_list(list: &[String]) -> String {
    let items: Vec<String> = list.iter().map(|item| format!("{item:?}")).collect();
    format!("[{}]", items.join(" "))
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

/// `*`, `pods`, `pods/log` or `*/log`; other forms with a star are literals.
fn matches_resource(item: &str, wanted: &ResourceAttributes<'_>) -> bool {
    let (resource, subresource) = (wanted.resource, wanted.subresource);
    if item == "*" {
        return true;
    }
    if subresource.is_empty() {
        return item == resource;
    }
    let cut = item.len().checked_sub(subresource.len() + 1);
    let Some((base, rest)) = cut.and_then(|cut| item.split_at_checked(cut)) else { return false };
    rest.strip_prefix('/') == Some(subresource) && (base == resource || base == "*")
}

/// `*`, a path, or a prefix of paths that ends with a star.
fn matches_url(item: &str, path: &str) -> bool {
    item == "*" || item == path || item.ends_with('*') && path.starts_with(item.trim_end_matches('*'))
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessAttributes<'a> {
    Resource(ResourceAttributes<'a>),
    /// A path that is no resource; the verb is the method in lower case.
    Path {
        verb: &'a str,
        path: &'a str,
    },
}

/// What a request does to objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceAttributes<'a> {
    /// `get`, `create` and so on.
    pub verb: &'a str,
    /// The API group, empty for core.
    pub group: &'a str,
    /// The name in paths, as `services`.
    pub resource: &'a str,
    /// As `status`; empty for the object itself.
    pub subresource: &'a str,
    /// Empty for cluster-scoped objects and for all namespaces.
    pub namespace: &'a str,
    /// Empty for collections.
    pub name: &'a str,
}

impl AccessAttributes<'_> {
    pub fn verb(&self) -> &str {
        match self {
            Self::Resource(wanted) => wanted.verb,
            Self::Path { verb, .. } => verb,
        }
    }
}

/// The refusal in the words of kube-apiserver, without the object.
pub fn forbidden_message(user: &UserInfo, attributes: &AccessAttributes<'_>) -> String {
    let user = &user.name;
    match attributes {
        AccessAttributes::Path { verb, path } => format!("User {user:?} cannot {verb} path {path:?}"),
        AccessAttributes::Resource(wanted) => {
            let ResourceAttributes { verb, group, namespace, .. } = wanted;
            let resource = match wanted.subresource {
                "" => wanted.resource.to_owned(),
                part => format!("{}/{part}", wanted.resource),
            };
            let scope = match *namespace {
                "" => "at the cluster scope".to_owned(),
                namespace => format!("in the namespace {namespace:?}"),
            };
            format!("User {user:?} cannot {verb} resource {resource:?} in API group {group:?} {scope}")
        }
    }
}

/// Whether a user may do something, and why.
#[derive(Clone, Debug)]
pub enum AccessDecision<'a> {
    /// By membership in `system:masters`.
    Master,
    /// By a rule.
    Granted(Grant<'a>),
    /// By nothing; the roles that bindings of the user refer to and that do not exist.
    Denied(Vec<String>),
}

impl AccessDecision<'_> {
    pub fn is_allowed(&self) -> bool {
        !matches!(self, Self::Denied(_))
    }

    /// The reason in the words of kube-apiserver; empty if there is none.
    pub fn reason(&self) -> String {
        match self {
            Self::Master => String::new(),
            Self::Granted(grant) => format!("RBAC: allowed by {grant}"),
            Self::Denied(missing) if missing.is_empty() => String::new(),
            Self::Denied(missing) => format!("RBAC: {}", joined(missing)),
        }
    }
}

fn joined(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// Whether a user may do something.
pub fn authorize<'a>(
    policy: &'a RbacPolicy,
    user: &'a UserInfo,
    attributes: &AccessAttributes<'_>,
) -> AccessDecision<'a> {
    if user.is_master() {
        return AccessDecision::Master;
    }
    let namespace = match attributes {
        AccessAttributes::Resource(wanted) => wanted.namespace,
        AccessAttributes::Path { .. } => "",
    };
    let mut missing = MissingRoles::default();
    for grant in policy.grants(user, namespace) {
        match grant.rules() {
            Some(rules) if rules.iter().any(|rule| rule.allows(attributes)) => {
                return AccessDecision::Granted(grant);
            }
            Some(_) => {}
            None => missing.add(grant),
        }
    }
    AccessDecision::Denied(missing.messages)
}

/// The rules of a user in a namespace, or without one those for the cluster; and the roles that do not exist.
pub fn rules_for<'a>(
    policy: &'a RbacPolicy,
    user: &'a UserInfo,
    namespace: &str,
) -> (Vec<&'a PolicyRule>, Vec<String>) {
    let (mut rules, mut missing, mut seen) = (Vec::new(), MissingRoles::default(), BTreeSet::new());
    for grant in policy.grants(user, namespace) {
        // A binding may have several subjects that match; its rules count once.
        if !seen.insert(grant.id()) {
            continue;
        }
        match grant.rules() {
            Some(found) => rules.extend(found),
            None => missing.add(grant),
        }
    }
    (rules, missing.messages)
}

/// The roles of bindings that do not exist, each once. Only the first are named: users can leave many such bindings.
#[derive(Default)]
struct MissingRoles<'a> {
    seen: BTreeSet<(bool, &'a str)>,
    messages: Vec<String>,
}

impl<'a> MissingRoles<'a> {
    fn add(&mut self, grant: Grant<'a>) {
        if self.messages.len() < MAX_MISSING && self.seen.insert(grant.role()) {
            self.messages.push(grant.not_found());
        }
    }
}

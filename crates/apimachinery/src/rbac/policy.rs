//! Roles and bindings, indexed by subject, so that a decision looks only at the bindings of its user.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::{PolicyRule, UserInfo, service_account_name};

/// All roles and bindings. Kept up to date object by object: [`RbacPolicy::put`] and [`RbacPolicy::remove`]. A copy shares
/// everything; a change of a copy copies what its namespace has.
#[derive(Clone, Debug, Default)]
pub struct RbacPolicy {
    cluster_roles: Arc<RolesByName>,
    /// By namespace.
    roles: BTreeMap<String, Arc<RolesByName>>,
    cluster_bindings: Arc<BindingIndex>,
    /// By namespace.
    bindings: BTreeMap<String, Arc<BindingIndex>>,
}

type RolesByName = BTreeMap<String, Arc<[PolicyRule]>>;

/// The bindings of one scope.
#[derive(Clone, Debug, Default)]
struct BindingIndex {
    by_name: BindingsByName,
    by_user: BTreeMap<String, BindingsByName>,
    by_group: BTreeMap<String, BindingsByName>,
}

type BindingsByName = BTreeMap<String, Arc<Binding>>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Binding {
    /// Empty for a ClusterRoleBinding.
    namespace: String,
    name: String,
    is_cluster_role: bool,
    role: String,
    subjects: Vec<Subject>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Subject {
    kind: SubjectKind,
    /// The user name of a service account.
    key: String,
    /// As kube-apiserver prints it.
    shown: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SubjectKind {
    User,
    Group,
}

/// A binding that applies to a user.
#[derive(Clone, Copy)]
pub struct Grant<'a> {
    policy: &'a RbacPolicy,
    binding: &'a Binding,
    user: &'a UserInfo,
}

impl RbacPolicy {
    /// The policy of some objects; other kinds are ignored.
    pub fn of<'a>(objects: impl IntoIterator<Item = &'a Value>) -> Self {
        let mut policy = Self::default();
        for object in objects {
            policy.put(object);
        }
        policy
    }

    /// Adds or replaces a role or binding; other kinds are ignored.
    pub fn put(&mut self, object: &Value) {
        let kind = object["kind"].as_str().unwrap_or_default();
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        let (namespace, name) = (text("namespace"), text("name"));
        self.remove(kind, namespace, name);
        match kind {
            "ClusterRole" => {
                let roles = Arc::make_mut(&mut self.cluster_roles);
                roles.insert(name.to_owned(), PolicyRule::parse_all(object).into());
            }
            "Role" => {
                let roles = Arc::make_mut(self.roles.entry(namespace.to_owned()).or_default());
                roles.insert(name.to_owned(), PolicyRule::parse_all(object).into());
            }
            "ClusterRoleBinding" => {
                Arc::make_mut(&mut self.cluster_bindings).insert(Binding::parse("", name, object));
            }
            "RoleBinding" => {
                let index = Arc::make_mut(self.bindings.entry(namespace.to_owned()).or_default());
                index.insert(Binding::parse(namespace, name, object));
            }
            _ => {}
        }
    }

    /// Removes a role or binding.
    pub fn remove(&mut self, kind: &str, namespace: &str, name: &str) {
        match kind {
            "ClusterRole" => {
                Arc::make_mut(&mut self.cluster_roles).remove(name);
            }
            "Role" => {
                if let Some(roles) = self.roles.get_mut(namespace) {
                    Arc::make_mut(roles).remove(name);
                    if roles.is_empty() {
                        self.roles.remove(namespace);
                    }
                }
            }
            "ClusterRoleBinding" => Arc::make_mut(&mut self.cluster_bindings).remove(name),
            "RoleBinding" => {
                if let Some(index) = self.bindings.get_mut(namespace) {
                    Arc::make_mut(index).remove(name);
                    if index.by_name.is_empty() {
                        self.bindings.remove(namespace);
                    }
                }
            }
            _ => {}
        }
    }

    /// The rules of the role that a binding of this namespace refers to; `None` if it does not exist.
    pub(super) fn role(&self, is_cluster_role: bool, namespace: &str, name: &str) -> Option<&[PolicyRule]> {
        let rules = match is_cluster_role {
            true => self.cluster_roles.get(name),
            false => self.roles.get(namespace).and_then(|roles| roles.get(name)),
        };
        rules.map(Arc::as_ref)
    }

    /// The bindings of a user: those for the cluster, then those of the namespace, if there is one. A binding is repeated
    /// if several of its subjects match.
    pub(super) fn grants<'a>(
        &'a self,
        user: &'a UserInfo,
        namespace: &str,
    ) -> impl Iterator<Item = Grant<'a>> + use<'a> {
        let local = if namespace.is_empty() { None } else { self.bindings.get(namespace) };
        [Some(&self.cluster_bindings), local]
            .into_iter()
            .flatten()
            .map(Arc::as_ref)
            .flat_map(move |index| index.of(user))
            .map(move |binding| Grant { policy: self, binding, user })
    }
}

impl BindingIndex {
    fn insert(&mut self, binding: Binding) {
        let binding = Arc::new(binding);
        for subject in &binding.subjects {
            let bindings = self.by_subject(subject.kind).entry(subject.key.clone()).or_default();
            bindings.insert(binding.name.clone(), binding.clone());
        }
        self.by_name.insert(binding.name.clone(), binding);
    }

    fn remove(&mut self, name: &str) {
        let Some(binding) = self.by_name.remove(name) else { return };
        for subject in &binding.subjects {
            let map = self.by_subject(subject.kind);
            let Some(bindings) = map.get_mut(&subject.key) else { continue };
            bindings.remove(name);
            if bindings.is_empty() {
                map.remove(&subject.key);
            }
        }
    }

    fn by_subject(&mut self, kind: SubjectKind) -> &mut BTreeMap<String, BindingsByName> {
        match kind {
            SubjectKind::User => &mut self.by_user,
            SubjectKind::Group => &mut self.by_group,
        }
    }

    fn of<'a>(&'a self, user: &'a UserInfo) -> impl Iterator<Item = &'a Binding> {
        let groups = user.groups.iter().filter_map(|group| self.by_group.get(group));
        let found = self.by_user.get(&user.name).into_iter().chain(groups);
        found.flat_map(BTreeMap::values).map(Arc::as_ref)
    }
}

impl Binding {
    fn parse(namespace: &str, name: &str, object: &Value) -> Self {
        let role = &object["roleRef"];
        let subjects = object["subjects"].as_array().into_iter().flatten();
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            is_cluster_role: role["kind"] == "ClusterRole",
            role: role["name"].as_str().unwrap_or_default().to_owned(),
            subjects: subjects.filter_map(|subject| Subject::parse(namespace, subject)).collect(),
        }
    }
}

impl Subject {
    /// `None` for a subject that matches no user.
    fn parse(namespace: &str, subject: &Value) -> Option<Self> {
        let text = |name: &str| subject[name].as_str().unwrap_or_default();
        let (kind, name) = (text("kind"), text("name"));
        let own = |kind: SubjectKind, word: &str| Self {
            kind,
            key: name.to_owned(),
            shown: format!("{word} {name:?}"),
        };
        match kind {
            "User" => Some(own(SubjectKind::User, "User")),
            "Group" => Some(own(SubjectKind::Group, "Group")),
            "ServiceAccount" => {
                let given = text("namespace");
                let namespace = if given.is_empty() { namespace } else { given };
                (!namespace.is_empty()).then(|| Self {
                    kind: SubjectKind::User,
                    key: service_account_name(namespace, name),
                    shown: format!("ServiceAccount {:?}", format!("{name}/{namespace}")),
                })
            }
            _ => None,
        }
    }

    fn applies_to(&self, user: &UserInfo) -> bool {
        match self.kind {
            SubjectKind::User => self.key == user.name,
            SubjectKind::Group => user.groups.contains(&self.key),
        }
    }
}

impl<'a> Grant<'a> {
    /// The rules of the role; `None` if it does not exist.
    pub(super) fn rules(&self) -> Option<&'a [PolicyRule]> {
        let Binding { is_cluster_role, namespace, role, .. } = self.binding;
        self.policy.role(*is_cluster_role, namespace, role)
    }

    /// Namespace and name of the binding.
    pub(super) fn id(&self) -> (&'a str, &'a str) {
        (&self.binding.namespace, &self.binding.name)
    }

    /// Whether the role is a ClusterRole, and its name.
    pub(super) fn role(&self) -> (bool, &'a str) {
        (self.binding.is_cluster_role, &self.binding.role)
    }

    /// That the role does not exist.
    pub(super) fn not_found(&self) -> String {
        not_found(self.binding.is_cluster_role, &self.binding.role)
    }
}

/// That a role does not exist, in the words of kube-apiserver's lister.
pub(super) fn not_found(is_cluster_role: bool, name: &str) -> String {
    let kind = if is_cluster_role { "clusterrole" } else { "role" };
    format!("{kind}.{} {name:?} not found", super::GROUP)
}

/// As kube-apiserver names the binding that allowed a request.
impl fmt::Display for Grant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Binding { namespace, name, is_cluster_role, role, subjects } = self.binding;
        match namespace.as_str() {
            "" => write!(f, "ClusterRoleBinding {name:?}")?,
            namespace => write!(f, "RoleBinding {:?}", format!("{name}/{namespace}"))?,
        }
        let kind = if *is_cluster_role { "ClusterRole" } else { "Role" };
        let subject = subjects.iter().find(|subject| subject.applies_to(self.user));
        let shown = subject.map_or("", |subject| &subject.shown);
        write!(f, " of {kind} {role:?} to {shown}")
    }
}

impl fmt::Debug for Grant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

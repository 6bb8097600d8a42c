//! Authorization: the RBAC policy of the stored roles and bindings, and what a request does.
//!
//! The policy is brought up to date before each decision from the event history, so a request sees every write that was
//! acknowledged before it. That costs one comparison of revisions, and each event once. Decisions hold a snapshot and no
//! lock, so a slow one delays no other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, TryLockError};

use apimachinery::rbac::{
    AccessAttributes, AccessDecision, GROUP, RbacPolicy, ResourceAttributes, UserInfo, authorize,
    forbidden_message,
};
use http::Method;
use serde_json::{Value, json};

use crate::api::{RequestPath, Subresource};
use crate::engine::{Engine, ListQuery, ResourceId, Revision, StoreReadError, WatchEvent, WatchEventType};
use crate::kinds::{self, ResourceKind};
use crate::query::QueryParams;
use crate::status::StatusError;

/// Keeps the policy of an engine's roles and bindings.
pub(crate) struct Authorizer {
    engine: Arc<Engine>,
    policy: RwLock<Arc<RbacPolicy>>,
    /// Events up to this revision are in the policy.
    seen: AtomicU64,
    /// Held while the policy is brought up to date. Transactions never wait for it: its holder may read the store.
    refresh: Mutex<()>,
}

fn rbac_kinds() -> &'static [&'static ResourceKind] {
    static KINDS: OnceLock<Vec<&'static ResourceKind>> = OnceLock::new();
    KINDS.get_or_init(|| kinds::stored().filter(|kind| kind.group == GROUP).collect())
}

fn is_rbac(resource: ResourceId) -> bool {
    rbac_kinds().iter().any(|kind| ResourceId(kind.id) == resource)
}

impl Authorizer {
    /// The policy is read with the first decision.
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        let authorizer =
            Self { engine, policy: RwLock::default(), seen: AtomicU64::new(0), refresh: Mutex::default() };
        // A store that cannot be read leaves an empty policy; each decision tries again.
        if let Ok(revision) = authorizer.reload() {
            authorizer.seen.store(revision.0, Ordering::SeqCst);
        }
        authorizer
    }

    /// The policy with every acknowledged write.
    pub(crate) fn policy(&self) -> Arc<RbacPolicy> {
        if !self.is_current() {
            let _guard = self.refresh.lock().unwrap_or_else(PoisonError::into_inner);
            // If the event history does not reach back that far, all is read again.
            if !self.catch_up()
                && let Ok(revision) = self.reload()
            {
                self.seen.store(revision.0, Ordering::SeqCst);
            }
        }
        self.snapshot()
    }

    /// The policy for a transaction, which waits for nothing: with every acknowledged write, unless another thread is
    /// bringing it up to date at this moment.
    pub(crate) fn policy_in_transaction(&self) -> Arc<RbacPolicy> {
        if !self.is_current() {
            let guard = match self.refresh.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            if guard.is_some() {
                self.catch_up();
            }
        }
        self.snapshot()
    }

    fn is_current(&self) -> bool {
        self.engine.revision().0 == self.seen.load(Ordering::SeqCst)
    }

    fn snapshot(&self) -> Arc<RbacPolicy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Applies the events after those that were seen; false if the event history does not reach back that far.
    fn catch_up(&self) -> bool {
        let seen = Revision(self.seen.load(Ordering::SeqCst));
        let Some((revision, events)) = self.engine.recent_events(seen, is_rbac) else { return false };
        if !events.is_empty() {
            let mut policy = self.policy.write().unwrap_or_else(PoisonError::into_inner);
            // A decision that holds it keeps its own.
            let policy = Arc::make_mut(&mut policy);
            events.iter().for_each(|event| apply(policy, event));
        }
        self.seen.store(revision.0, Ordering::SeqCst);
        true
    }

    /// Reads all roles and bindings. Events after the returned revision may already be in the policy.
    fn reload(&self) -> Result<Revision, StoreReadError> {
        let revision = self.engine.revision();
        let mut policy = RbacPolicy::default();
        for kind in rbac_kinds() {
            for stored in self.engine.list(&ListQuery::all(ResourceId(kind.id)))?.items {
                put(&mut policy, &stored.json);
            }
        }
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
        Ok(revision)
    }
}

fn apply(policy: &mut RbacPolicy, event: &WatchEvent) {
    if event.kind != WatchEventType::Deleted {
        return put(policy, &event.json);
    }
    if let Some(kind) = rbac_kinds().iter().find(|kind| ResourceId(kind.id) == event.key.resource) {
        policy.remove(kind.kind, &event.key.namespace, &event.key.name);
    }
}

fn put(policy: &mut RbacPolicy, json: &[u8]) {
    // Everything that is stored was validated.
    if let Ok(object) = serde_json::from_slice::<Value>(json) {
        policy.put(&object);
    }
}

/// The name that a list or watch is limited to by `fieldSelector=metadata.name=NAME`; it counts as the object's name.
pub(crate) fn selected_name(query: &QueryParams) -> &str {
    let parts = query.value("fieldSelector").unwrap_or_default().split(',');
    let name = |part: &'_ str| -> Option<usize> {
        let value = part.strip_prefix("metadata.name=")?;
        let value = value.strip_prefix('=').unwrap_or(value);
        let valid = !matches!(value, "" | "." | "..") && !value.contains(['/', '%', '\\']);
        valid.then_some(value.len())
    };
    parts.filter_map(|part| name(part).map(|length| &part[part.len() - length..])).next().unwrap_or_default()
}

/// What a request does, for authorization and audit.
pub(crate) fn attributes<'a>(
    method: &'a Method,
    verb: &'a str,
    uri_path: &'a str,
    path: &'a RequestPath<'_>,
    query: &'a QueryParams,
) -> AccessAttributes<'a> {
    let RequestPath::Resource(info) = path else {
        return AccessAttributes::Path { verb, path: uri_path };
    };
    let named = info.name.as_deref();
    let is_read = *method == Method::GET || *method == Method::HEAD;
    let verb = match (method.as_str(), named) {
        ("GET" | "HEAD", _) if query.is_watch() => "watch",
        ("GET" | "HEAD", Some(_)) => "get",
        ("GET" | "HEAD", None) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", Some(_)) => "delete",
        ("DELETE", None) => "deletecollection",
        _ => verb,
    };
    let name = named.unwrap_or_else(|| if is_read { selected_name(query) } else { "" });
    // The namespace of a Namespace is itself.
    let namespace = match info.kind.kind {
        "Namespace" => named.unwrap_or_default(),
        _ => info.namespace.as_deref().unwrap_or_default(),
    };
    AccessAttributes::Resource(ResourceAttributes {
        verb,
        group: info.kind.group,
        resource: info.kind.plural,
        subresource: info.subresource.as_str(),
        namespace,
        name,
    })
}

/// The verb of a path that is no resource: the method in lower case.
pub(crate) fn path_verb(method: &Method) -> std::borrow::Cow<'static, str> {
    match method.as_str() {
        "GET" => "get".into(),
        "HEAD" => "head".into(),
        "POST" => "post".into(),
        "PUT" => "put".into(),
        "PATCH" => "patch".into(),
        "DELETE" => "delete".into(),
        other => other.to_ascii_lowercase().into(),
    }
}

/// Refuses what a user may not do, in the words of kube-apiserver. On success, why it is allowed, if that was asked for.
pub(crate) fn check(
    policy: &RbacPolicy,
    user: &UserInfo,
    attributes: &AccessAttributes<'_>,
    with_reason: bool,
) -> Result<String, StatusError> {
    match authorize(policy, user, attributes) {
        AccessDecision::Denied(missing) => {
            Err(forbidden(user, attributes, &AccessDecision::Denied(missing).reason()))
        }
        decision if with_reason => Ok(decision.reason()),
        _ => Ok(String::new()),
    }
}

/// 403 with the message of kube-apiserver.
pub(crate) fn forbidden(user: &UserInfo, attributes: &AccessAttributes<'_>, reason: &str) -> StatusError {
    let mut why = forbidden_message(user, attributes);
    if !reason.is_empty() {
        why = format!("{why}: {reason}");
    }
    match attributes {
        AccessAttributes::Path { .. } => {
            let mut error = StatusError::forbidden(format!("forbidden: {why}"));
            error.details = json!({});
            error
        }
        AccessAttributes::Resource(wanted) => {
            let ResourceAttributes { group, resource, name, .. } = wanted;
            forbidden_object(group, resource, name, &why)
        }
    }
}

/// 403 for an object, which need not be of a served kind.
pub(crate) fn forbidden_object(group: &str, resource: &str, name: &str, why: &str) -> StatusError {
    let qualified = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
    let object = if name.is_empty() { qualified } else { format!("{qualified} {name:?}") };
    let mut error = StatusError::forbidden(format!("{object} is forbidden: {why}"));
    error.details = json!({});
    for (field, value) in [("name", name), ("group", group), ("kind", resource)] {
        if !value.is_empty() {
            error.details[field] = value.into();
        }
    }
    error
}

/// What a write does with a new object.
pub(crate) fn create_attributes<'a>(
    kind: &'a ResourceKind,
    namespace: &'a str,
    name: &'a str,
) -> AccessAttributes<'a> {
    let subresource = Subresource::None.as_str();
    let (group, resource) = (kind.group, kind.plural);
    AccessAttributes::Resource(ResourceAttributes {
        verb: "create",
        group,
        resource,
        subresource,
        namespace,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_one_name_is_about_that_name() {
        for (query, name) in [
            ("", ""),
            ("fieldSelector=metadata.name%3Da", "a"),
            ("fieldSelector=metadata.name%3D%3Da", "a"),
            ("fieldSelector=type%3Dx%2Cmetadata.name%3Da", "a"),
            ("fieldSelector=metadata.name!%3Da", ""),
            ("fieldSelector=metadata.name%3Da/b", ""),
            ("fieldSelector=metadata.name%3D", ""),
        ] {
            assert_eq!(selected_name(&QueryParams::parse(query)), name, "{query}");
        }
    }
}

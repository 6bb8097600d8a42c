//! Which policies are for a client and a destination, the one that wins first.

use std::cmp::Reverse;

use model::route::{BackendRef, PolicyTarget};
use model::{Name, Notice, ObjectKey, ObjectRef, ServiceKey, Snapshot};

use super::client::Client;
use super::merge::Source;

/// Smaller goes first.
pub(super) type Precedence<'k> = (Reverse<u8>, Reverse<usize>, &'k Name);

/// Semantics 1.3: the kind decides; among gateway routes the number of tags; then the smaller name.
pub(super) fn precedence<'k>(target: &PolicyTarget, key: &'k ObjectKey) -> Precedence<'k> {
    let (kind, tags) = match target {
        PolicyTarget::Mesh => (1, 0),
        PolicyTarget::Subset(_) => (3, 0),
        PolicyTarget::Gateway(_, tags) => (4, tags.iter().count()),
        PolicyTarget::Service(_) => (5, 0),
        PolicyTarget::ServiceSubset(..) => (8, 0),
    };
    (Reverse(kind), Reverse(tags), &key.name)
}

/// The lists of rules for a destination, the one of highest precedence first. Policies act in their namespace.
pub(super) fn http_rules<'s>(
    snapshot: &'s Snapshot,
    client: &Client,
    service: &ServiceKey,
) -> Vec<Source<'s>> {
    if service.namespace != client.namespace {
        return Vec::new();
    }
    let mut policies: Vec<_> =
        snapshot.http_routes(&client.namespace).filter(|p| client.is_meant(&p.target)).collect();
    policies.sort_by_key(|policy| precedence(&policy.target, &policy.key));
    let mut sources = Vec::new();
    for policy in policies {
        // Semantics 1.3: within one policy, lower entries override upper ones.
        for (i, to) in policy.to.iter().enumerate().rev().filter(|(_, to)| to.service == service.name) {
            let field = format!("spec.to[{i}].rules");
            sources.push(Source { policy: policy.object(), field, rules: &to.rules });
        }
    }
    sources
}

/// The backends of the TCP route that wins for a destination.
pub(super) fn tcp_backends<'s>(
    snapshot: &'s Snapshot,
    client: &Client,
    service: &ServiceKey,
) -> Option<(ObjectRef, &'s [BackendRef])> {
    if service.namespace != client.namespace {
        return None;
    }
    let policies = snapshot.tcp_routes(&client.namespace).filter(|p| client.is_meant(&p.target));
    let entries = policies.flat_map(|policy| policy.to.iter().rev().map(move |to| (policy, to)));
    let meant = entries.filter(|(_, to)| to.service.as_ref() == Some(&service.name));
    // The first of equals stays: the last entry of the policy.
    let winner = meant.min_by_key(|(policy, _)| precedence(&policy.target, &policy.key))?;
    Some((winner.0.object(), &winner.1.backends))
}

/// Policies that name a gateway, a Service to come from or a Service to go to that is not there: they do nothing
/// until it is.
pub fn unused_targets(snapshot: &Snapshot, namespace: &Name) -> Vec<Notice> {
    let mut notices = Vec::new();
    let mut look = |policy: &dyn Fn() -> ObjectRef,
                    target: &PolicyTarget,
                    destinations: Vec<(usize, &Name)>| {
        let service = |name: &Name| snapshot.service(&ServiceKey::new(namespace, name)).is_some();
        let missing = match target {
            PolicyTarget::Gateway(name, _) => snapshot
                .gateway(&ObjectKey::new(namespace, name))
                .is_none()
                .then(|| format!("MeshGateway {name}")),
            PolicyTarget::Service(name) | PolicyTarget::ServiceSubset(name, _) => {
                (!service(name)).then(|| format!("Service {name}"))
            }
            PolicyTarget::Mesh | PolicyTarget::Subset(_) => None,
        };
        let found = missing.map(|what| ("spec.targetRef.name".to_owned(), what));
        let gone = destinations.into_iter().filter(|(_, name)| !service(name));
        let gone = gone.map(|(i, name)| (format!("spec.to[{i}].targetRef.name"), format!("Service {name}")));
        for (field, what) in found.into_iter().chain(gone) {
            let message = format!(
                "{field}: there is no {what} in namespace {namespace}; this part does nothing until there is"
            );
            notices.push(Notice::new(policy(), "TargetNotFound", message));
        }
    };
    for route in snapshot.http_routes(namespace) {
        let to = route.to.iter().map(|to| &to.service).enumerate().collect();
        look(&|| route.object(), &route.target, to);
    }
    for route in snapshot.gateway_http_routes(namespace) {
        look(&|| route.object(), &route.target, Vec::new());
    }
    for route in snapshot.tcp_routes(namespace) {
        let to = route.to.iter().enumerate().filter_map(|(i, to)| Some((i, to.service.as_ref()?))).collect();
        look(&|| route.object(), &route.target, to);
    }
    notices
}

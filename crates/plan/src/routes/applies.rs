//! Which policies are for a client and a destination, the one that wins first.

use std::cmp::Reverse;
use std::collections::BTreeSet;

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

/// Whether a policy changes requests of a client to a Service (seed 004: the owner of a Service routes "requests from all
/// services"). The mesh is the whole API. A policy acts on requests to Services of its own namespace, from anywhere
/// (producer), and on requests of its own namespace's clients (consumer); never on traffic between two other namespaces.
pub fn applies(policy: &Name, target: &PolicyTarget, client: &Client, destination: &ServiceKey) -> bool {
    let is_producer = *policy == destination.namespace;
    let is_consumer = *policy == client.namespace;
    (is_producer || is_consumer) && client.is_selected(target, policy)
}

/// The namespaces whose policies may change requests of a client to a Service.
fn namespaces<'n>(client: &'n Client, destination: &'n ServiceKey) -> impl Iterator<Item = &'n Name> {
    let consumer = Some(&client.namespace);
    let producer = Some(&destination.namespace).filter(|namespace| **namespace != client.namespace);
    consumer.into_iter().chain(producer)
}

/// In the mesh, among policies with targets of one kind, the client's own namespace goes before that of the Service
/// (semantics 1.3).
fn precedence_in_mesh<'k>(
    target: &PolicyTarget,
    key: &'k ObjectKey,
    client: &Client,
) -> (Reverse<u8>, bool, &'k Name) {
    let (kind, _, name) = precedence(target, key);
    (kind, key.namespace != client.namespace, name)
}

/// The lists of rules for a destination, the one of highest precedence first.
pub(super) fn http_rules<'s>(
    snapshot: &'s Snapshot,
    client: &Client,
    service: &ServiceKey,
) -> Vec<Source<'s>> {
    let all = namespaces(client, service).flat_map(|namespace| snapshot.http_routes(namespace));
    let mut policies: Vec<_> =
        all.filter(|policy| applies(&policy.key.namespace, &policy.target, client, service)).collect();
    policies.sort_by_key(|policy| precedence_in_mesh(&policy.target, &policy.key, client));
    let mut sources = Vec::new();
    for policy in policies {
        // Semantics 1.3: within one policy, lower entries override upper ones.
        for (i, to) in policy.to.iter().enumerate().rev().filter(|(_, to)| to.service == *service) {
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
    let all = namespaces(client, service).flat_map(|namespace| snapshot.tcp_routes(namespace));
    let policies = all.filter(|policy| applies(&policy.key.namespace, &policy.target, client, service));
    let entries = policies.flat_map(|policy| policy.to.iter().rev().map(move |to| (policy, to)));
    let meant = entries.filter(|(_, to)| to.service.as_ref() == Some(service));
    // The first of equals stays: the last entry of the policy.
    let winner = meant.min_by_key(|(policy, _)| precedence_in_mesh(&policy.target, &policy.key, client))?;
    Some((winner.0.object(), &winner.1.backends))
}

/// The Services that policies name as destinations: only the way to these depends on the client.
pub fn destinations(snapshot: &Snapshot) -> BTreeSet<ServiceKey> {
    let http = snapshot.all_http_routes().flat_map(|policy| policy.to.iter().map(|to| &to.service));
    let tcp =
        snapshot.all_tcp_routes().flat_map(|policy| policy.to.iter().filter_map(|to| to.service.as_ref()));
    http.chain(tcp).cloned().collect()
}

/// Policies that name a gateway, a Service to come from or a Service to go to that is not there: they do nothing
/// until it is.
pub fn unused_targets(snapshot: &Snapshot, namespace: &Name) -> Vec<Notice> {
    let mut notices = Vec::new();
    let mut look = |policy: &dyn Fn() -> ObjectRef,
                    target: &PolicyTarget,
                    destinations: Vec<(usize, &ServiceKey)>| {
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
        let found = found.map(|(field, what)| (field, what, namespace));
        let gone = destinations.into_iter().filter(|(_, key)| snapshot.service(key).is_none());
        let gone = gone.map(|(i, key)| {
            (format!("spec.to[{i}].targetRef.name"), format!("Service {}", key.name), &key.namespace)
        });
        for (field, what, namespace) in found.into_iter().chain(gone) {
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

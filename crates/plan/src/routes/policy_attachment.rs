//! Which policies apply to a client and a destination, in order of precedence.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use model::route::{BackendRef, PolicyTarget};
use model::{Name, Notice, ObjectKey, ObjectRef, ServiceKey, Snapshot};

use super::merge::RuleSource;
use super::mesh_client::MeshClient;

/// Smaller wins.
pub(super) type Precedence<'k> = (Reverse<u8>, Reverse<usize>, &'k Name);

/// Semantics 1.3: by the kind of target, then by the number of tags for gateways, then by name.
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

/// Whether a policy in the namespace `policy` applies to requests of a client to a Service (seed 004). It applies to
/// requests to Services of its namespace from any client (producer), and to requests of clients in its namespace
/// (consumer), but never to traffic between two other namespaces.
pub fn applies(policy: &Name, target: &PolicyTarget, client: &MeshClient, destination: &ServiceKey) -> bool {
    let is_producer = *policy == destination.namespace;
    let is_consumer = *policy == client.namespace;
    (is_producer || is_consumer) && client.is_selected(target, policy)
}

/// The namespaces whose policies may apply to requests of a client to a Service.
fn namespaces<'n>(client: &'n MeshClient, destination: &'n ServiceKey) -> impl Iterator<Item = &'n Name> {
    let consumer = Some(&client.namespace);
    let producer = Some(&destination.namespace).filter(|namespace| **namespace != client.namespace);
    consumer.into_iter().chain(producer)
}

/// Semantics 1.3: in the mesh, among targets of one kind, policies in the client's namespace win over those in the
/// Service's.
fn precedence_in_mesh<'k>(
    target: &PolicyTarget,
    key: &'k ObjectKey,
    client: &MeshClient,
) -> (Reverse<u8>, bool, &'k Name) {
    let (kind, _, name) = precedence(target, key);
    (kind, key.namespace != client.namespace, name)
}

/// The lists of rules for a destination, highest precedence first.
pub(super) fn http_rules<'s>(
    snapshot: &'s Snapshot,
    client: &MeshClient,
    service: &ServiceKey,
) -> Vec<RuleSource<'s>> {
    let all = namespaces(client, service).flat_map(|namespace| snapshot.mesh_http_routes(namespace));
    let mut policies: Vec<_> =
        all.filter(|policy| applies(&policy.key.namespace, &policy.target, client, service)).collect();
    policies.sort_by_key(|policy| precedence_in_mesh(&policy.target, &policy.key, client));
    let mut sources = Vec::new();
    for policy in policies {
        // Semantics 1.3: within one policy, lower entries override upper ones.
        for (i, to) in policy.to.iter().enumerate().rev().filter(|(_, to)| to.service == *service) {
            let field = format!("spec.to[{i}].rules");
            sources.push(RuleSource { policy: policy.object(), field, rules: &to.rules });
        }
    }
    sources
}

/// The backends of the winning TCP route for a destination.
pub(super) fn tcp_backends<'s>(
    snapshot: &'s Snapshot,
    client: &MeshClient,
    service: &ServiceKey,
) -> Option<(ObjectRef, &'s [BackendRef])> {
    let all = namespaces(client, service).flat_map(|namespace| snapshot.mesh_tcp_routes(namespace));
    let policies = all.filter(|policy| applies(&policy.key.namespace, &policy.target, client, service));
    let entries = policies.flat_map(|policy| policy.to.iter().rev().map(move |to| (policy, to)));
    let matching = entries.filter(|(_, to)| to.service.as_ref() == Some(service));
    // Of equals the first wins: the last entry of the policy.
    let winner =
        matching.min_by_key(|(policy, _)| precedence_in_mesh(&policy.target, &policy.key, client))?;
    Some((winner.0.object(), &winner.1.backends))
}

/// The Services that policies have as destinations: only their routes depend on the client.
pub fn destinations(snapshot: &Snapshot) -> BTreeSet<ServiceKey> {
    let http = snapshot.all_mesh_http_routes().flat_map(|policy| policy.to.iter().map(|to| &to.service));
    let tcp = snapshot
        .all_mesh_tcp_routes()
        .flat_map(|policy| policy.to.iter().filter_map(|to| to.service.as_ref()));
    http.chain(tcp).cloned().collect()
}

/// Notices for policies with a targetRef to a gateway or Service that does not exist.
pub fn unused_targets(snapshot: &Snapshot, namespace: &Name) -> Vec<Notice> {
    let mut notices = Vec::new();
    let mut check = |policy: &dyn Fn() -> ObjectRef,
                     target: &PolicyTarget,
                     destinations: Vec<(usize, &ServiceKey)>| {
        let service = |name: &Name| snapshot.service(&ServiceKey::new(namespace, name)).is_some();
        let missing = match target {
            PolicyTarget::Gateway(name, _) => snapshot
                .mesh_gateway(&ObjectKey::new(namespace, name))
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
                "{field}: {what} does not exist in namespace {namespace}; this part of the policy has no effect until it does"
            );
            notices.push(Notice::new(policy(), "TargetNotFound", message));
        }
    };
    for route in snapshot.mesh_http_routes(namespace) {
        let to = route.to.iter().map(|to| &to.service).enumerate().collect();
        check(&|| route.object(), &route.target, to);
    }
    for route in snapshot.mesh_gateway_http_routes(namespace) {
        check(&|| route.object(), &route.target, Vec::new());
    }
    for route in snapshot.mesh_tcp_routes(namespace) {
        let to = route.to.iter().enumerate().filter_map(|(i, to)| Some((i, to.service.as_ref()?))).collect();
        check(&|| route.object(), &route.target, to);
    }
    for policy in snapshot.load_balancing_policies(namespace) {
        let to = policy.to.iter().enumerate().filter_map(|(i, to)| Some((i, to.service.as_ref()?))).collect();
        // A Gateway of the Gateway API may be the target, too.
        let target = match &policy.target {
            PolicyTarget::Gateway(name, _)
                if snapshot.gateway(&ObjectKey::new(namespace, name)).is_some() =>
            {
                &PolicyTarget::Mesh
            }
            target => target,
        };
        check(&|| policy.object(), target, to);
    }
    notices
}

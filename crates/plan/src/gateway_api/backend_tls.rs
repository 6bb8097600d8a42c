//! BackendTLSPolicies: which one applies to a port of a Service, and whether it can be used.

use model::gateway_api::{BackendTlsPolicy, Gateway, TlsPolicyTarget};
use model::route::{BackendId, BackendTls, RouteTable};
use model::{Protocol, ServiceKey, ServicePort, Snapshot};

use super::Problem;
use super::references::Referrer;

fn is_for(target: &TlsPolicyTarget, service: &ServiceKey) -> bool {
    target.group.is_empty() && target.kind == "Service" && target.name == service.name
}

/// The policy of a port: one that names the port wins, then the older one.
pub(super) fn tls_policy<'s>(
    snapshot: &'s Snapshot,
    service: &ServiceKey,
    port: &ServicePort,
) -> Option<&'s BackendTlsPolicy> {
    let policies = snapshot.backend_tls_policies(&service.namespace);
    let targets = policies.flat_map(|policy| policy.targets.iter().map(move |target| (policy, target)));
    let own = targets.filter(|(_, target)| {
        is_for(target, service) && target.section.as_ref().is_none_or(|section| *section == port.name)
    });
    let first = own.min_by_key(|(policy, target)| (target.section.is_none(), policy.identity.age_order()));
    first.map(|(policy, _)| policy)
}

/// TLS to the backends of a Gateway's table. A policy without a usable certificate authority is left out: its backends are
/// errors in the table.
pub(super) fn of_table(
    snapshot: &Snapshot,
    gateway: &Gateway,
    table: &RouteTable,
) -> Vec<(BackendId, BackendTls)> {
    if snapshot.all_backend_tls_policies().next().is_none() {
        return Vec::new();
    }
    let owner = Referrer { snapshot, kind: "Gateway", namespace: &gateway.identity.key.namespace };
    let client = gateway.client_certificate.as_ref();
    let client = client.and_then(|to| owner.certificate(to, "InvalidClientCertificateRef").ok());
    let tls = |id: BackendId| {
        let service = snapshot.service(&id.service)?;
        let port = service.ports.iter().find(|port| port.port == id.port && port.protocol == id.protocol)?;
        let policy = tls_policy(snapshot, &id.service, port).filter(|_| id.protocol == Protocol::Tcp)?;
        let referrer =
            Referrer { snapshot, kind: "BackendTLSPolicy", namespace: &policy.identity.key.namespace };
        let usable = policy.authorities.iter().filter_map(|to| referrer.authority(to, "InvalidKind").ok());
        let tls = BackendTls {
            server_name: policy.hostname.clone(),
            alternative_names: policy.alternative_names.clone(),
            authorities: usable.collect(),
            trusts_system: policy.trusts_system,
            client_certificate: client.clone(),
        };
        Some((id, tls))
    };
    table.backends().into_iter().filter_map(tls).collect()
}

/// Whether older policies have all targets of a policy.
pub(super) fn is_overridden(snapshot: &Snapshot, policy: &BackendTlsPolicy) -> bool {
    let order = policy.identity.age_order();
    let has_older = |target: &TlsPolicyTarget| {
        let mut others = snapshot.backend_tls_policies(&policy.identity.key.namespace);
        others.any(|other| other.identity.age_order() < order && other.targets.contains(target))
    };
    !policy.targets.is_empty() && policy.targets.iter().all(has_older)
}

/// ResolvedRefs, and Accepted as far as certificates decide it.
pub(super) fn authorities(
    snapshot: &Snapshot,
    policy: &BackendTlsPolicy,
) -> (Result<(), Problem>, Result<(), Problem>) {
    if policy.trusts_system {
        return (Ok(()), Ok(()));
    }
    let referrer = Referrer { snapshot, kind: "BackendTLSPolicy", namespace: &policy.identity.key.namespace };
    let all: Vec<_> =
        policy.authorities.iter().map(|authority| referrer.authority(authority, "InvalidKind")).collect();
    let accepted = if all.iter().any(Result::is_ok) {
        Ok(())
    } else {
        let message = "no certificate authority can be used; requests fail instead of going without TLS";
        Err(Problem::new("NoValidCACertificate", message))
    };
    (all.into_iter().collect::<Result<Vec<_>, _>>().map(drop), accepted)
}

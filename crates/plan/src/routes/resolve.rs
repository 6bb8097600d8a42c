//! From the names in a policy to ports of Services that exist.

use model::route::{AppProtocol, BackendId, BackendRef, LegTarget, Split};
use model::{Name, Notice, ObjectRef, Protocol, Service, ServiceKey, ServicePort, ServiceType, Snapshot};

/// Looks backends up.
#[derive(Clone, Copy)]
pub(super) struct Resolver<'a> {
    pub(super) snapshot: &'a Snapshot,
    /// The port that the client asked for; none at a gateway.
    pub(super) near: Option<&'a ServicePort>,
}

/// The answer for the share of a backend that cannot be resolved (semantics 1.8).
const UNRESOLVED: u16 = 500;

impl Resolver<'_> {
    /// The backends with their weights. One that cannot be resolved keeps its share.
    pub(super) fn split(
        &self,
        backends: &[BackendRef],
        http: bool,
        policy: &ObjectRef,
        notices: &mut Vec<Notice>,
    ) -> Split {
        let leg = |backend: &BackendRef| match self.backend(backend, &policy.namespace, http) {
            Ok(id) => (LegTarget::Backend(id), backend.share()),
            Err(reason) => {
                notices.push(unresolved(policy, backend, &reason, "its share of the traffic gets an error"));
                (LegTarget::Error(UNRESOLVED), backend.share())
            }
        };
        Split::new(backends.iter().map(leg).collect::<Vec<_>>())
    }

    /// A backend, or why it cannot be had. It is a Service of the namespace of the policy that names it.
    pub(super) fn backend(
        &self,
        backend: &BackendRef,
        namespace: &Name,
        http: bool,
    ) -> Result<BackendId, String> {
        let key = ServiceKey::new(namespace, &backend.name);
        let Some(service) = self.snapshot.service(&key) else {
            return Err(format!("there is no Service {key}: create it, or correct the name"));
        };
        if service.kind == ServiceType::ExternalName {
            return Err(format!("Service {key} is of type ExternalName and has no endpoints"));
        }
        let port = self.port(service, backend, http)?;
        let tags = backend.tags.clone().unwrap_or_default();
        Ok(BackendId { service: key, port: port.port, tags })
    }

    /// The port that is named; else the one that the client asked for, by number and then by name; else the first
    /// that speaks HTTP, or for connections the first.
    fn port<'s>(
        &self,
        service: &'s Service,
        backend: &BackendRef,
        http: bool,
    ) -> Result<&'s ServicePort, String> {
        let key = &service.key;
        let speaks = |port: &ServicePort| AppProtocol::of(port.app_protocol.as_deref(), &port.name);
        let fits = |port: &&ServicePort| !http || speaks(port).is_http();
        let ports = || service.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
        if let Some(number) = backend.port {
            let named = ports().find(|port| port.port == number);
            let port = named.ok_or_else(|| format!("Service {key} has no TCP port {number}"))?;
            return Some(port)
                .filter(fits)
                .ok_or_else(|| format!("port {number} of Service {key} {NOT_HTTP}"));
        }
        let near = self.near.and_then(|near| {
            let by_number = ports().filter(fits).find(|port| port.port == near.port);
            by_number.or_else(|| ports().filter(fits).find(|port| port.name == near.name))
        });
        near.or_else(|| ports().find(fits)).ok_or_else(|| match ports().next() {
            Some(_) => format!("no port of Service {key} speaks HTTP as far as we know; {ADVICE}"),
            None => format!("Service {key} has no TCP port"),
        })
    }
}

const NOT_HTTP: &str = "does not speak HTTP as far as we know; set its appProtocol to http, http2 or grpc";
const ADVICE: &str = "set the appProtocol of one to http, http2 or grpc";

/// The Notice of a backend that cannot be resolved.
pub(super) fn unresolved(policy: &ObjectRef, backend: &BackendRef, reason: &str, effect: &str) -> Notice {
    let message = format!("backendRef {} {}: {reason}; until then {effect}", backend.kind(), backend.name);
    Notice::new(policy.clone(), "BackendNotResolved", message)
}

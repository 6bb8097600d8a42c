//! Resolves the backendRefs of policies to ports of existing Services.

use std::sync::Arc;

use model::route::{AppProtocol, BackendId, BackendRef, BackendTarget, WeightedBackends};
use model::{Name, Notice, ObjectRef, Protocol, Service, ServiceKey, ServicePort, ServiceType, Snapshot};

use super::rule_action::header_and_path_changes;

#[derive(Clone, Copy)]
pub(super) struct BackendResolver<'a> {
    pub(super) snapshot: &'a Snapshot,
    /// The port that the client connected to; none at a gateway.
    pub(super) client_port: Option<&'a ServicePort>,
}

/// The status for the share of an unresolved backend (semantics 1.8).
const UNRESOLVED: u16 = 500;

impl BackendResolver<'_> {
    /// The backends with their weights. An unresolved one keeps its share.
    pub(super) fn split(
        &self,
        backends: &[BackendRef],
        http: bool,
        policy: &ObjectRef,
        notices: &mut Vec<Notice>,
    ) -> WeightedBackends {
        let entry = |backend: &BackendRef| match self.backend(backend, &policy.namespace, http) {
            Ok(id) => {
                let filters = &backend.filters;
                let filters = (!filters.is_empty()).then(|| Arc::new(header_and_path_changes(filters)));
                (BackendTarget::Backend(id), backend.share(), filters)
            }
            Err(reason) => {
                notices.push(unresolved(policy, backend, &reason, "its share of requests fails"));
                (BackendTarget::Error(UNRESOLVED), backend.share(), None)
            }
        };
        WeightedBackends::with_filters(backends.iter().map(entry).collect::<Vec<_>>())
    }

    /// A backend, which is a Service in the policy's namespace, or why it cannot be resolved.
    pub(super) fn backend(
        &self,
        backend: &BackendRef,
        namespace: &Name,
        http: bool,
    ) -> Result<BackendId, String> {
        let key = ServiceKey::new(namespace, &backend.name);
        let Some(service) = self.snapshot.service(&key) else {
            return Err(format!("Service {key} does not exist: create it, or correct the name"));
        };
        if service.kind == ServiceType::ExternalName {
            return Err(format!("Service {key} is of type ExternalName and has no endpoints"));
        }
        let port = self.port(service, backend, http)?;
        let tags = backend.tags.clone().unwrap_or_default();
        Ok(BackendId { service: key, port: port.port, protocol: port.protocol, tags })
    }

    /// The port of the backendRef; else the one that the client connected to, by number, then by name; else the first one,
    /// for requests the first with HTTP.
    fn port<'s>(
        &self,
        service: &'s Service,
        backend: &BackendRef,
        http: bool,
    ) -> Result<&'s ServicePort, String> {
        let key = &service.key;
        let protocol = |port: &ServicePort| AppProtocol::of(port.app_protocol.as_deref(), &port.name);
        let fits = |port: &&ServicePort| !http || protocol(port).is_http();
        let ports = || service.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
        if let Some(number) = backend.port {
            let named = ports().find(|port| port.port == number);
            let port = named.ok_or_else(|| format!("Service {key} has no TCP port {number}"))?;
            return Some(port)
                .filter(fits)
                .ok_or_else(|| format!("port {number} of Service {key} {NOT_HTTP}"));
        }
        let same = self.client_port.and_then(|own| {
            let by_number = ports().filter(fits).find(|port| port.port == own.port);
            by_number.or_else(|| ports().filter(fits).find(|port| port.name == own.name))
        });
        same.or_else(|| ports().find(fits)).ok_or_else(|| match ports().next() {
            Some(_) => format!("no port of Service {key} is declared as HTTP; {ADVICE}"),
            None => format!("Service {key} has no TCP port"),
        })
    }
}

const NOT_HTTP: &str = "is not declared as HTTP; set its appProtocol to http, http2 or grpc";
const ADVICE: &str = "set the appProtocol of one to http, http2 or grpc";

pub(super) fn unresolved(policy: &ObjectRef, backend: &BackendRef, reason: &str, effect: &str) -> Notice {
    let message = format!("backendRef {} {}: {reason}; until then {effect}", backend.kind(), backend.name);
    Notice::new(policy.clone(), "BackendNotResolved", message)
}

//! The conditions of valid policies and gateways: ResolvedRefs (all references exist) and Programmed (proxies have it).
//! Types and reasons follow the Gateway API.
//!
//! ```text
//! policy + Services, gateways, Secrets -> RouteStatus: two conditions, each with a reason and what to do
//! ```

use std::collections::BTreeMap;

use model::route::{
    AppProtocol, BackendRef, MeshGateway, MeshGatewayHttpRoute, MeshHttpRoute, MeshLoadBalancing,
    MeshTcpRoute, PolicyTarget, RouteFilter, RouteRule,
};
use model::{Name, ObjectKey, ObjectRef, Protocol, Service, ServiceKey, Snapshot};

use super::backend_resolution::BackendResolver;
use super::gateway::{has_listener, selects};
use crate::condition_status::ConditionStatus;
use crate::gateway_api::bound_ports::bound;
use crate::gateway_api::{UnboundPorts, deciding_routes, shared_hosts};

/// The state of a Secret that a listener refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretState {
    /// It has a certificate and its key.
    Usable,
    /// It is missing or invalid; why, and what to do.
    Unusable(String),
    /// It cannot be read; why, and what to do.
    Unknown(String),
}

/// A condition without its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteCondition {
    pub status: ConditionStatus,
    pub reason: &'static str,
    pub message: String,
}

/// The conditions of a valid policy or gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteStatus {
    /// ResolvedRefs.
    pub resolved: RouteCondition,
    pub programmed: RouteCondition,
}

/// How many problems a message lists.
const LISTED: usize = 10;

/// The conditions of a MeshHTTPRoute.
pub fn of_http_route(snapshot: &Snapshot, policy: &MeshHttpRoute) -> RouteStatus {
    let mut refs = ReferenceCheck::new(snapshot, &policy.key.namespace);
    let selects = refs.target(&policy.target);
    let mut effective = 0;
    for (i, to) in policy.to.iter().enumerate() {
        effective += usize::from(refs.destination(i, &to.service, true));
        refs.rules(&format!("spec.to[{i}].rules"), &to.rules);
    }
    refs.status(selects && effective > 0)
}

/// The conditions of a MeshGatewayHTTPRoute.
pub fn of_gateway_http_route(snapshot: &Snapshot, policy: &MeshGatewayHttpRoute) -> RouteStatus {
    let mut refs = ReferenceCheck::new(snapshot, &policy.key.namespace);
    let mut effective = refs.target(&policy.target);
    if let Some(gateway) = refs.gateway(&policy.target)
        && !has_listener(gateway, policy)
    {
        effective = false;
        refs.idle.push((
            "NoListener",
            format!(
                "no HTTP or HTTPS listener of MeshGateway {} matches its hosts and tags: compare spec.hostnames and spec.targetRef.tags with the listeners",
                gateway.key.name
            ),
        ));
    }
    refs.rules("spec.rules", &policy.rules);
    let mut status = refs.status(effective);
    if effective && let Some(shared) = shared_hosts::of_mesh_policy(snapshot, policy) {
        status.programmed.message += &format!("; {shared}");
    }
    status
}

/// The conditions of a MeshTCPRoute.
pub fn of_tcp_route(snapshot: &Snapshot, policy: &MeshTcpRoute) -> RouteStatus {
    let mut refs = ReferenceCheck::new(snapshot, &policy.key.namespace);
    let selects = refs.target(&policy.target);
    let mut effective = 0;
    for (i, to) in policy.to.iter().enumerate() {
        effective += usize::from(match &to.service {
            Some(service) => refs.destination(i, service, false),
            None => refs.tcp_listener(&policy.target),
        });
        for (j, backend) in to.backends.iter().enumerate() {
            refs.backend(&format!("spec.to[{i}].rules[0].default.backendRefs[{j}]"), backend, false);
        }
    }
    refs.status(selects && effective > 0)
}

/// The conditions of a MeshLoadBalancing.
pub fn of_load_balancing(snapshot: &Snapshot, policy: &MeshLoadBalancing) -> RouteStatus {
    let mut refs = ReferenceCheck::new(snapshot, &policy.identity.key.namespace);
    // A Gateway of the Gateway API may be the target, too.
    let selects = match &policy.target {
        PolicyTarget::Gateway(name, _)
            if snapshot.gateway(&ObjectKey::new(refs.namespace, name)).is_some() =>
        {
            true
        }
        target => refs.target(target),
    };
    let mut effective = 0;
    for (i, to) in policy.to.iter().enumerate() {
        effective += usize::from(match &to.service {
            None => true,
            Some(service) => refs.policy_destination(i, service, to.settings.needs_http()),
        });
    }
    let mut status = refs.status(selects && effective > 0);
    if selects && effective > 0 {
        status.programmed.message = status
            .programmed
            .message
            .replace("the rules are in the route tables", "the settings are in the tables");
    }
    status
}

/// The conditions of a MeshRouteFilter, which refers to nothing; the routes that refer to it have it.
pub fn of_route_filter() -> RouteStatus {
    let condition = |reason, message: &str| {
        let message = message.to_owned();
        RouteCondition { status: ConditionStatus::True, reason, message }
    };
    RouteStatus {
        resolved: condition("ResolvedRefs", "all references are resolved"),
        programmed: condition("Programmed", "routes that refer to it by extensionRef use it"),
    }
}

/// The conditions of a MeshGateway. A Secret that is not in `secrets` has not been read yet.
pub fn of_gateway(
    gateway: &MeshGateway,
    secrets: &BTreeMap<ObjectKey, SecretState>,
    unbound: &UnboundPorts,
) -> RouteStatus {
    let (mut broken, mut unknown, mut invalid) = (Vec::new(), Vec::new(), 0);
    for (i, listener) in gateway.listeners.iter().enumerate() {
        let before = broken.len();
        for (at, certificate) in listener.certificates.iter().enumerate() {
            let field = format!("spec.listeners[{i}].{}", listener.certificate_field(at));
            match secrets.get(&certificate.secret) {
                Some(SecretState::Usable) => {}
                Some(SecretState::Unusable(why)) => broken.push(format!("{field}: {why}")),
                Some(SecretState::Unknown(why)) => unknown.push(format!("{field}: {why}")),
                None => unknown.push(format!("{field}: Secret {} has not been read yet", certificate.secret)),
            }
        }
        // With one of several, a listener is served.
        let unusable = broken.len() - before;
        invalid += usize::from(unusable > 0 && unusable == listener.certificates.len());
    }
    let condition = |status, reason, message: String| RouteCondition { status, reason, message };
    if invalid > 0 {
        let all = gateway.listeners.len();
        let effect = "TLS handshakes with such a listener fail, the other listeners work";
        return RouteStatus {
            resolved: condition(ConditionStatus::False, "InvalidCertificateRef", listed(&broken)),
            programmed: condition(
                ConditionStatus::False,
                "ListenersNotValid",
                format!("{invalid} of {all} listeners have no usable certificate: {effect}"),
            ),
        };
    }
    if !unknown.is_empty() {
        return RouteStatus {
            resolved: condition(ConditionStatus::Unknown, "SecretNotReadable", listed(&unknown)),
            programmed: condition(ConditionStatus::Unknown, "SecretNotReadable", listed(&unknown)),
        };
    }
    let resolved = match broken.as_slice() {
        [] => condition(ConditionStatus::True, "ResolvedRefs", "all certificates exist".to_owned()),
        broken => condition(ConditionStatus::False, "InvalidCertificateRef", listed(broken)),
    };
    let unbound = unbound.get(&gateway.key);
    let bound = gateway.listeners.iter().try_for_each(|listener| bound(unbound, listener.port, false));
    RouteStatus {
        resolved,
        programmed: match bound {
            Err(message) => condition(ConditionStatus::False, "Pending", message),
            Ok(()) => condition(
                ConditionStatus::True,
                "Programmed",
                "the listeners are in the route tables of proxies".to_owned(),
            ),
        },
    }
}

/// Looks up the references of a policy.
struct ReferenceCheck<'s> {
    snapshot: &'s Snapshot,
    namespace: &'s Name,
    /// Unresolved references: the reason of the condition and a message.
    missing: Vec<(&'static str, String)>,
    /// References that exist but that the policy has no effect on.
    idle: Vec<(&'static str, String)>,
}

impl<'s> ReferenceCheck<'s> {
    fn new(snapshot: &'s Snapshot, namespace: &'s Name) -> Self {
        Self { snapshot, namespace, missing: Vec::new(), idle: Vec::new() }
    }

    fn gateway(&self, target: &PolicyTarget) -> Option<&'s MeshGateway> {
        let PolicyTarget::Gateway(name, _) = target else { return None };
        self.snapshot.mesh_gateway(&ObjectKey::new(self.namespace, name))
    }

    /// Whether the targetRef exists.
    fn target(&mut self, target: &PolicyTarget) -> bool {
        let (kind, name, exists) = match target {
            PolicyTarget::Mesh | PolicyTarget::Subset(_) => return true,
            PolicyTarget::Gateway(name, _) => ("MeshGateway", name, self.gateway(target).is_some()),
            PolicyTarget::Service(name) | PolicyTarget::ServiceSubset(name, _) => {
                let key = ServiceKey::new(self.namespace, name);
                ("Service", name, self.snapshot.service(&key).is_some())
            }
        };
        if !exists {
            let message = format!(
                "spec.targetRef: {kind} {}/{name} does not exist: create it, or correct the name",
                self.namespace
            );
            self.missing.push(("TargetNotFound", message));
        }
        exists
    }

    /// Whether a destination exists and has a port that the policy can apply to.
    fn destination(&mut self, at: usize, key: &ServiceKey, http: bool) -> bool {
        let Some(service) = self.snapshot.service(key) else {
            let message = format!(
                "spec.to[{at}].targetRef: Service {key} does not exist: create it, or correct the name"
            );
            self.missing.push(("TargetNotFound", message));
            return false;
        };
        let mut ports = service.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
        let fits =
            ports.any(|port| !http || AppProtocol::of(port.app_protocol.as_deref(), &port.name).is_http());
        if !fits {
            let advice = "set the appProtocol of a port to http, http2 or grpc, or use a MeshTCPRoute";
            let what = if http { format!("is declared as HTTP; {advice}") } else { "is TCP".to_owned() };
            self.idle.push((
                "DestinationNotHTTP",
                format!("spec.to[{at}].targetRef: no port of Service {key} {what}"),
            ));
        }
        fits && !self.is_overridden(at, service)
    }

    /// Whether a destination exists; fields for requests need a port with HTTP.
    fn policy_destination(&mut self, at: usize, key: &ServiceKey, needs_http: Option<&str>) -> bool {
        let Some(service) = self.snapshot.service(key) else {
            let message = format!(
                "spec.to[{at}].targetRef: Service {key} does not exist: create it, or correct the name"
            );
            self.missing.push(("TargetNotFound", message));
            return false;
        };
        let mut ports = service.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
        let has_http = ports.any(|port| AppProtocol::of(port.app_protocol.as_deref(), &port.name).is_http());
        if let Some(field) = needs_http.filter(|_| !has_http) {
            self.idle.push((
                "DestinationNotHTTP",
                format!(
                    "spec.to[{at}].default.{field}: no port of Service {key} is declared as HTTP; where no HTTPRoute leads to it, set the appProtocol of a port to http, http2 or grpc"
                ),
            ));
        }
        true
    }

    /// Whether routes of the Gateway API decide on every port.
    fn is_overridden(&mut self, at: usize, service: &Service) -> bool {
        let ports = service.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
        let deciding = |port| deciding_routes(self.snapshot, self.namespace, service, port);
        let routes: Vec<Vec<ObjectRef>> = ports.map(deciding).collect();
        if routes.iter().any(Vec::is_empty) {
            return false;
        }
        let mut names: Vec<String> = routes.iter().flatten().map(ToString::to_string).collect();
        names.dedup();
        let message =
            format!("spec.to[{at}].targetRef: {} decide on Service {}", names.join(", "), service.key);
        self.idle.push(("Overridden", message));
        true
    }

    fn tcp_listener(&mut self, target: &PolicyTarget) -> bool {
        let Some(gateway) = self.gateway(target) else { return false };
        let mut listeners = gateway.listeners.iter().filter(|listener| !listener.protocol.is_http());
        let found = listeners.any(|listener| selects(gateway, target, listener));
        if !found {
            let name = &gateway.key.name;
            self.idle.push((
                "NoListener",
                format!("no TCP or TLS listener of MeshGateway {name} has the tags of spec.targetRef"),
            ));
        }
        found
    }

    fn rules(&mut self, field: &str, rules: &[std::sync::Arc<RouteRule>]) {
        for (i, rule) in rules.iter().enumerate() {
            for (part, filters, backends) in rule.parts() {
                for (j, backend) in backends.iter().enumerate() {
                    self.backend(&format!("{field}[{i}].{part}.backendRefs[{j}]"), backend, true);
                }
                for (j, filter) in filters.iter().enumerate() {
                    if let RouteFilter::Mirror { backend, .. } = filter {
                        let field = format!("{field}[{i}].{part}.filters[{j}].requestMirror.backendRef");
                        self.backend(&field, backend, true);
                    }
                }
            }
        }
    }

    fn backend(&mut self, field: &str, backend: &BackendRef, http: bool) {
        let resolver = BackendResolver { snapshot: self.snapshot, client_port: None };
        if let Err(why) = resolver.backend(backend, self.namespace, http) {
            let key = ServiceKey::new(self.namespace, &backend.name);
            let exists = self.snapshot.service(&key).is_some();
            let reason = if exists { "UnsupportedProtocol" } else { "BackendNotFound" };
            self.missing.push((reason, format!("{field}: {why}")));
        }
    }

    fn status(self, has_effect: bool) -> RouteStatus {
        let Self { missing, idle, .. } = self;
        let texts =
            |list: &[(&'static str, String)]| list.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>();
        let resolved = match missing.first() {
            Some((reason, _)) => {
                RouteCondition { status: ConditionStatus::False, reason, message: listed(&texts(&missing)) }
            }
            None => RouteCondition {
                status: ConditionStatus::True,
                reason: "ResolvedRefs",
                message: "all references are resolved".to_owned(),
            },
        };
        let programmed = if has_effect {
            let is_backend = |(reason, _): &(&str, String)| *reason != "TargetNotFound";
            let mut message = "the rules are in the route tables of proxies".to_owned();
            if missing.iter().any(is_backend) {
                message += "; requests to an unresolved backend get status 500";
            }
            if missing.iter().any(|entry| !is_backend(entry)) || !idle.is_empty() {
                message += "; parts of the policy have no effect, see ResolvedRefs";
            }
            if !idle.is_empty() {
                message += &format!(": {}", listed(&texts(&idle)));
            }
            RouteCondition { status: ConditionStatus::True, reason: "Programmed", message }
        } else {
            let all: Vec<(&'static str, String)> =
                missing.into_iter().filter(|(reason, _)| *reason == "TargetNotFound").chain(idle).collect();
            let reason = all.first().map_or("TargetNotFound", |(reason, _)| reason);
            RouteCondition {
                status: ConditionStatus::False,
                reason,
                message: format!("the policy has no effect: {}", listed(&texts(&all))),
            }
        };
        RouteStatus { resolved, programmed }
    }
}

fn listed(all: &[String]) -> String {
    let mut text = all.iter().take(LISTED).cloned().collect::<Vec<_>>().join("; ");
    if all.len() > LISTED {
        text += &format!("; and {} more", all.len() - LISTED);
    }
    text
}

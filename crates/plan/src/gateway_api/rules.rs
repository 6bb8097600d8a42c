//! The rules of a route with their filters and backends resolved.

use std::sync::Arc;

use model::gateway_api::{GatewayApiRule, ObjectReference, Route, RouteKind};
use model::route::{
    BackendId, BackendRef, BackendTarget, DirectResponse, DirectResponseBody, ExtensionEffect,
    ExtensionFilter, HttpRule, Percentage, RequestMirror, Responder, RouteFilter, RouteRule, RuleAction,
    RuleOrigin, WeightedBackends, error_text,
};
use model::{Labels, Name, Notice, ObjectKey, Protocol, ServiceKey, ServiceType, Snapshot};

use super::references::Referrer;
use super::{Problem, backend_tls};
use crate::routes::header_and_path_changes;

/// A route whose rules are planned.
#[derive(Clone, Copy)]
pub(super) struct RouteRules<'s> {
    pub(super) snapshot: &'s Snapshot,
    pub(super) route: &'s Route,
    /// For a Service as parent: references to other namespaces need no grant.
    pub(super) is_mesh: bool,
}

/// A backend that gets no requests.
enum BackendFailure {
    /// The reference cannot be resolved.
    Unresolved(Problem),
    /// TLS is required and not possible.
    Tls(Problem),
}

impl RouteRules<'_> {
    /// The rules that are not dropped.
    fn supported(&self) -> impl Iterator<Item = (usize, &GatewayApiRule)> {
        self.route.rules.iter().enumerate().filter(|(_, rule)| rule.unsupported.is_none())
    }

    /// The rules of an HTTPRoute or GRPCRoute.
    pub(super) fn http(&self, notices: &mut Vec<Notice>) -> Vec<Arc<HttpRule>> {
        self.supported().map(|(index, rule)| Arc::new(self.http_rule(index, &rule.rule, notices))).collect()
    }

    /// The backends of a TLSRoute, TCPRoute or UDPRoute.
    pub(super) fn connections(&self, notices: &mut Vec<Notice>) -> WeightedBackends {
        let rule = self.supported().next();
        rule.map(|(index, rule)| self.split(&field(index), &rule.rule, notices)).unwrap_or_default()
    }

    /// Every reference that cannot be resolved, with its field.
    pub(super) fn unresolved(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (index, rule) in self.supported() {
            let field = field(index);
            for (i, backend) in rule.rule.backends.iter().flatten().enumerate() {
                if let Err(BackendFailure::Unresolved(problem)) = self.backend(backend) {
                    problems.push(problem.at(&format!("{field}.backendRefs[{i}]")));
                }
            }
            for (i, filter) in rule.rule.filters.iter().flatten().enumerate() {
                let problem = match filter {
                    RouteFilter::Mirror { backend, .. } => match self.backend(backend) {
                        Err(BackendFailure::Unresolved(problem)) => problem,
                        _ => continue,
                    },
                    RouteFilter::Extension(filter) => match self.extension(filter) {
                        Err(problem) => problem,
                        Ok(_) => continue,
                    },
                    _ => continue,
                };
                problems.push(problem.at(&format!("{field}.filters[{i}]")));
            }
        }
        problems
    }

    fn http_rule(&self, index: usize, rule: &Arc<RouteRule>, notices: &mut Vec<Notice>) -> HttpRule {
        let policy = Some(self.route.object());
        let field = field(index);
        let action = self.action(&field, rule, notices);
        let origin = RuleOrigin {
            filters: policy.clone().filter(|_| rule.filters.is_some()),
            backends: policy.clone().filter(|_| rule.backends.is_some()),
            policy,
            field,
            index,
            ..RuleOrigin::default()
        };
        HttpRule { rule: rule.clone(), origin, action }
    }

    fn action(&self, field: &str, rule: &RouteRule, notices: &mut Vec<Notice>) -> RuleAction {
        let filters = rule.filters.as_deref().unwrap_or_default();
        let changes = header_and_path_changes(filters);
        let cors = filters.iter().find_map(|filter| match filter {
            RouteFilter::Cors(cors) => Some(cors.clone()),
            _ => None,
        });
        RuleAction {
            request_headers: changes.request_headers,
            response_headers: changes.response_headers,
            mirrors: self.mirrors(field, filters, notices),
            rewrite: changes.rewrite,
            timeouts: rule.timeouts,
            retry: rule.retry.clone(),
            cors,
            is_grpc: self.route.kind == RouteKind::Grpc,
            responder: self.responder(field, rule, filters, notices),
        }
    }

    fn mirrors(
        &self,
        field: &str,
        filters: &[RouteFilter],
        notices: &mut Vec<Notice>,
    ) -> Box<[RequestMirror]> {
        let mut mirrors = Vec::new();
        for (i, filter) in filters.iter().enumerate() {
            let RouteFilter::Mirror { backend, percentage } = filter else { continue };
            match self.backend(backend) {
                Ok(to) => mirrors.push(RequestMirror { to, share: percentage.unwrap_or(Percentage::ALL) }),
                Err(failure) => {
                    let field = format!("{field}.filters[{i}]");
                    notices.push(self.notice(&field, &failure, "no requests are mirrored"));
                }
            }
        }
        mirrors.into()
    }

    fn responder(
        &self,
        field: &str,
        rule: &RouteRule,
        filters: &[RouteFilter],
        notices: &mut Vec<Notice>,
    ) -> Responder {
        let own = filters.iter().find_map(|filter| match filter {
            RouteFilter::Redirect(redirect) => Some(Responder::Redirect(redirect.into())),
            RouteFilter::Extension(filter) => match self.extension(filter) {
                Ok(ExtensionEffect::Respond(response)) => Some(Responder::Respond(response.clone())),
                Ok(ExtensionEffect::Subset(_)) => None,
                Err(_) => {
                    let body = Some(DirectResponseBody::Text(Name::new(error_text(500))));
                    Some(Responder::Respond(DirectResponse { status: 500, body }))
                }
            },
            _ => None,
        });
        own.unwrap_or_else(|| Responder::Forward(self.split(field, rule, notices)))
    }

    /// The effect of a filter that is an object of its own.
    fn extension(&self, filter: &ExtensionFilter) -> Result<&ExtensionEffect, Problem> {
        if !filter.is_own() {
            let ExtensionFilter { group, kind, name } = filter;
            let message =
                format!("{kind} {name} of {:?} is not a known filter; its requests get 500", group.as_str());
            return Err(Problem::new("InvalidKind", message));
        }
        let key = ObjectKey::new(&self.route.identity.key.namespace, &filter.name);
        let problem = |what: &str| {
            Problem::new("InvalidExtensionRef", format!("MeshRouteFilter {key} {what}; its requests get 500"))
        };
        let object = self.snapshot.route_filter(&key).ok_or_else(|| problem("does not exist"))?;
        match &object.effect {
            ExtensionEffect::Respond(_) if self.route.kind == RouteKind::Grpc => {
                Err(problem("has a directResponse, which gRPC clients do not understand"))
            }
            effect => Ok(effect),
        }
    }

    /// The tags that filters reduce backends to.
    fn subset(&self, filters: &[RouteFilter]) -> Result<Labels, Problem> {
        let mut tags: Vec<(Name, Name)> = Vec::new();
        for filter in filters {
            let RouteFilter::Extension(filter) = filter else { continue };
            if let ExtensionEffect::Subset(own) = self.extension(filter)? {
                tags.extend(own.iter().cloned());
            }
        }
        Ok(Labels::from_pairs(tags))
    }

    /// The backends with their weights. One that fails keeps its share.
    fn split(&self, field: &str, rule: &RouteRule, notices: &mut Vec<Notice>) -> WeightedBackends {
        let mut entries = Vec::new();
        // A filter that is not known replaces the backends.
        let tags = self.subset(rule.filters.as_deref().unwrap_or_default()).unwrap_or_default();
        for (i, backend) in rule.backends.iter().flatten().enumerate() {
            let has_changes = backend.filters.iter().any(|f| !matches!(f, RouteFilter::Extension(_)));
            let filters = has_changes.then(|| Arc::new(header_and_path_changes(&backend.filters)));
            match self.backend(backend) {
                Ok(mut id) => {
                    if !tags.is_empty() {
                        let pairs = tags.iter().chain(id.tags.iter()).cloned().collect();
                        id.tags = Labels::from_pairs(pairs);
                    }
                    entries.push((BackendTarget::Backend(id), backend.share(), filters));
                }
                Err(failure) => {
                    let field = format!("{field}.backendRefs[{i}]");
                    notices.push(self.notice(&field, &failure, "its share of requests fails"));
                    entries.push((BackendTarget::Error(self.failure_status()), backend.share(), None));
                }
            }
        }
        WeightedBackends::with_filters(entries)
    }

    /// gRPC clients read 503 as UNAVAILABLE, and 500 as UNKNOWN.
    fn failure_status(&self) -> u16 {
        if self.route.kind == RouteKind::Grpc { 503 } else { 500 }
    }

    fn backend(&self, backend: &BackendRef) -> Result<BackendId, BackendFailure> {
        let (service, port) = self.service(backend).map_err(BackendFailure::Unresolved)?;
        let found = self.snapshot.service(&service).and_then(|service| {
            service.ports.iter().find(|own| own.port == port && own.protocol == self.protocol())
        });
        if let Some(policy) = found.and_then(|own| backend_tls::tls_policy(self.snapshot, &service, own))
            && let (_, Err(problem)) = backend_tls::authorities(self.snapshot, policy)
            && !self.is_mesh
        {
            return Err(BackendFailure::Tls(
                problem.at(&format!("BackendTLSPolicy {}", policy.identity.key)),
            ));
        }
        let filters = &*backend.filters;
        let responds = filters.iter().any(|filter| match filter {
            RouteFilter::Extension(filter) => {
                matches!(self.extension(filter), Ok(ExtensionEffect::Respond(_)))
            }
            _ => false,
        });
        if responds {
            let message = "a directResponse is a filter of a rule, not of a backendRef".to_owned();
            return Err(BackendFailure::Unresolved(Problem::new("InvalidExtensionRef", message)));
        }
        let tags = self.subset(filters).map_err(BackendFailure::Unresolved)?;
        Ok(BackendId { service, port, protocol: self.protocol(), tags })
    }

    fn protocol(&self) -> Protocol {
        if self.route.kind == RouteKind::Udp { Protocol::Udp } else { Protocol::Tcp }
    }

    fn service(&self, backend: &BackendRef) -> Result<(ServiceKey, u16), Problem> {
        let own = &self.route.identity.key.namespace;
        let (group, kind, namespace) = match &backend.object {
            Some(object) => (object.group.clone(), object.kind.clone(), object.namespace.clone()),
            None => (Name::default(), Name::new("Service"), own.clone()),
        };
        if !group.is_empty() || kind != "Service" {
            let message = format!("{kind} {} is not a Service", backend.name);
            return Err(Problem::new("InvalidKind", message));
        }
        let to = ObjectReference { group, kind, namespace, name: backend.name.clone() };
        if !self.is_mesh {
            Referrer { snapshot: self.snapshot, kind: self.route.kind.as_str(), namespace: own }
                .check_grant(&to)?;
        }
        let key = ServiceKey::new(&to.namespace, &to.name);
        let missing = |message: String| Problem::new("BackendNotFound", message);
        let service = self.snapshot.service(&key);
        let service = service.ok_or_else(|| missing(format!("Service {key} does not exist")))?;
        if service.kind == ServiceType::ExternalName {
            return Err(missing(format!("Service {key} is of type ExternalName and has no endpoints")));
        }
        let number = backend.port.ok_or_else(|| missing(format!("Service {key} needs a port")))?;
        let protocol = self.protocol();
        let has_port = service.ports.iter().any(|port| port.port == number && port.protocol == protocol);
        if !has_port {
            return Err(missing(format!("Service {key} has no {} port {number}", protocol.as_str())));
        }
        Ok((key, number))
    }

    fn notice(&self, field: &str, failure: &BackendFailure, effect: &str) -> Notice {
        let (BackendFailure::Unresolved(problem) | BackendFailure::Tls(problem)) = failure;
        let message = format!("{field}: {}; until this is fixed, {effect}", problem.message);
        Notice::new(self.route.object(), "BackendNotResolved", message)
    }
}

impl Problem {
    /// The same, with the field in its message.
    fn at(self, field: &str) -> Self {
        Self { message: format!("{field}: {}", self.message), ..self }
    }
}

fn field(index: usize) -> String {
    format!("spec.rules[{index}]")
}

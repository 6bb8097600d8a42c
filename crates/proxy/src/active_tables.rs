//! The active tables with their compiled rules. They are replaced as a whole: a request sees one version from routing to
//! response. Unchanged parts are taken over from the version before.

use std::sync::Arc;

use model::route::{HttpRoutes, PathMatch, RequestView, RouteGroup, Routing, WeightedBackends};
use model::{Notice, ObjectRef};

use crate::downstream::client_certificates::{self, TlsByListener};
use crate::downstream::connection::RouteScope;
use crate::http::outbound_limits::{self, BackendLimits, OutboundLimits, OutboundLimitsByPort};
use crate::http::route_rule::{CompiledRule, RuleGroup};
use crate::proxy::ProxyTables;
use crate::registry::{ByPointer, Registry, pointer};
use crate::settings::ProxyOptions;
use crate::upstream::backend::UpstreamBackend;
use crate::upstream::endpoint::ProxyTime;
use crate::upstream::tls::{self, UpstreamTlsByBackend};
use crate::upstream::weighted_backends::BackendPicker;

#[derive(Default)]
pub(crate) struct ActiveTables {
    pub(crate) tables: ProxyTables,
    groups: ByPointer<Arc<RuleGroup>>,
    tcp_backends: ByPointer<Arc<BackendPicker>>,
    pub(crate) listener_tls: TlsByListener,
    upstream_tls: UpstreamTlsByBackend,
    outbound_limits: OutboundLimitsByPort,
    backend_limits: BackendLimits,
}

/// The rule that a request matches.
#[derive(Clone, Copy)]
pub(crate) struct MatchedRule<'s> {
    pub(crate) rule: &'s CompiledRule,
    pub(crate) model: &'s model::route::HttpRule,
    pub(crate) path: &'s PathMatch,
}

impl ActiveTables {
    /// Compiles new tables, with Notices about what in them cannot be applied.
    pub(crate) fn new(
        tables: ProxyTables,
        before: &Self,
        registry: &mut Registry,
        now: ProxyTime,
        settings: &ProxyOptions,
    ) -> (Self, Vec<Notice>) {
        let mut notices = Vec::new();
        let upstream_tls = tls::of_backends(&tables, &before.upstream_tls, &mut notices);
        registry.update(&tables.backends, &tables.routes, &upstream_tls, now, settings);
        let outbound_limits = outbound_limits::of_table(&tables.routes, &before.outbound_limits);
        let backend_limits = outbound_limits::of_gateway(&tables.routes, &before.backend_limits);
        let mut active = Self { tables, upstream_tls, outbound_limits, backend_limits, ..Self::default() };
        let routes = active.tables.routes.clone();
        let listeners = routes.ports().flat_map(|port| port.listeners.iter());
        let of_hosts: Vec<_> = listeners.flat_map(|listener| listener.hosts.iter().map(|(_, r)| r)).collect();
        for routing in routes.outbounds().map(|outbound| &outbound.routing).chain(of_hosts) {
            active.compile(routing, before, registry, settings);
        }
        for (_, split) in routes.udp_ports() {
            active.compile(&Routing::Tcp(split.clone()), before, registry, settings);
        }
        notices.extend(active.groups.values().flat_map(|group| group.notices.clone()));
        notices.extend(active.missing_certificates());
        active.listener_tls =
            client_certificates::listeners(&active.tables, &before.listener_tls, &mut notices);
        notices.sort();
        notices.dedup();
        (active, notices)
    }

    fn compile(
        &mut self,
        routing: &Routing,
        before: &Self,
        registry: &mut Registry,
        settings: &ProxyOptions,
    ) {
        match routing {
            Routing::Http(routes) => {
                for group in &routes.groups {
                    self.groups.entry(pointer(group)).or_insert_with(|| {
                        let known = before.groups.get(&pointer(group)).cloned();
                        known.unwrap_or_else(|| Arc::new(RuleGroup::new(group, registry, settings)))
                    });
                }
            }
            Routing::Tcp(split) => {
                self.tcp_backends.entry(pointer(split)).or_insert_with(|| {
                    let known = before.tcp_backends.get(&pointer(split)).cloned();
                    known.unwrap_or_else(|| Arc::new(BackendPicker::new(split, registry, &mut Vec::new())))
                });
            }
        }
    }

    fn missing_certificates(&self) -> Vec<Notice> {
        let ports = self.tables.routes.ports().filter(|port| port.protocol.is_tls());
        let certificates = ports.flat_map(|port| &port.listeners).flat_map(|l| l.certificates.iter());
        let missing = certificates.filter(|c| !self.tables.certificates.contains_key(&c.secret));
        let notice = |secret: &model::ObjectKey| {
            let object = ObjectRef::new("Secret", &secret.namespace, &secret.name);
            let message = "missing or unusable certificate of a listener: TLS connections for its hosts are closed, unless it has another one; create it with kubectl create secret tls";
            Notice::new(object, "CertificateMissing", message)
        };
        missing.map(|certificate| notice(&certificate.secret)).collect()
    }

    pub(crate) fn match_rule<'s>(
        &'s self,
        routes: &'s HttpRoutes,
        request: &RequestView<'_>,
    ) -> Option<MatchedRule<'s>> {
        routes.groups.iter().find_map(|group: &Arc<RouteGroup>| {
            let entry = group.find(request)?;
            let rule = self.groups.get(&pointer(group))?.rules.get(entry.rule)?;
            Some(MatchedRule { rule, model: group.rules().get(entry.rule)?, path: &entry.path })
        })
    }

    /// The rate limit and faults of a destination.
    pub(crate) fn outbound_limits(&self, scope: &RouteScope) -> Option<&Arc<OutboundLimits>> {
        match scope {
            RouteScope::Outbound(service, port) if !self.outbound_limits.is_empty() => {
                self.outbound_limits.get(&(service.clone(), *port))
            }
            RouteScope::Outbound(..) | RouteScope::Gateway(..) => None,
        }
    }

    /// The rate limit and faults of a gateway's backend.
    pub(crate) fn backend_limits(
        &self,
        scope: &RouteScope,
        backend: &UpstreamBackend,
    ) -> Option<&Arc<OutboundLimits>> {
        let RouteScope::Gateway(port, server_name) = scope else { return None };
        if self.backend_limits.is_empty() {
            return None;
        }
        let listener = match server_name {
            Some(sni) => Some(self.tables.routes.port(*port)?.listener(sni)?.name.clone()),
            None => None,
        };
        self.backend_limits.get(&(*port, listener, backend.label.clone()))
    }

    pub(crate) fn tcp_backends(&self, split: &Arc<WeightedBackends>) -> Option<&Arc<BackendPicker>> {
        self.tcp_backends.get(&pointer(split))
    }
}

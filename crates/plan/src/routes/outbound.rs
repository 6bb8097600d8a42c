//! The routes of a client to one port of a Service. They are updated incrementally: a changed policy costs its own rules
//! and one merged list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::route::{
    AppProtocol, BackendId, BackendTarget, HttpRoutes, HttpRule, Outbound, RouteGroup, Routing,
    WeightedBackends,
};
use model::{Labels, Notice, ObjectKey, Protocol, Service, ServicePort, Snapshot};

use super::backend_resolution::BackendResolver;
use super::match_precedence;
use super::merge::RuleSource;
use super::mesh_client::MeshClient;
use super::policy_attachment::{http_rules, tcp_backends};
use super::prepared_rules::{PreparedRules, merge_lists, same_or_new};
use super::rule_action::{RouteContext, forward_to};
use crate::gateway_api::{MeshRouting, mesh_routing};

/// The routes of a client to one port of a Service.
#[derive(Debug)]
pub struct OutboundRoutes {
    pub outbound: Arc<Outbound>,
    pub notices: Vec<Notice>,
    prepared: RulesByPolicy,
}

/// Prepared rules by policy and field.
type RulesByPolicy = BTreeMap<(ObjectKey, String), Arc<PreparedRules>>;

impl OutboundRoutes {
    /// `None` for protocols other than TCP.
    pub fn new(
        snapshot: &Snapshot,
        client: &MeshClient,
        service: &Service,
        port: &ServicePort,
    ) -> Option<Self> {
        Self::make(snapshot, client, service, port, &PreviousRoutes::default())
    }

    /// The routes after a change of these MeshHTTPRoutes and of nothing else.
    pub fn after(
        &self,
        snapshot: &Snapshot,
        client: &MeshClient,
        service: &Service,
        port: &ServicePort,
        policies: &BTreeSet<ObjectKey>,
    ) -> Option<Self> {
        let group = match &self.outbound.routing {
            Routing::Http(routes) => routes.groups.first().cloned(),
            Routing::Tcp(_) => None,
        };
        let before =
            PreviousRoutes { group: group.unwrap_or_default(), prepared: Some((&self.prepared, policies)) };
        Self::make(snapshot, client, service, port, &before)
    }

    fn make(
        snapshot: &Snapshot,
        client: &MeshClient,
        service: &Service,
        port: &ServicePort,
        before: &PreviousRoutes<'_>,
    ) -> Option<Self> {
        if port.protocol != Protocol::Tcp {
            return None;
        }
        let protocol = AppProtocol::of(port.app_protocol.as_deref(), &port.name);
        let destination = Destination { service, port, protocol };
        let mut builder =
            OutboundBuilder { snapshot, before, notices: Vec::new(), prepared: RulesByPolicy::new() };
        let standard = mesh_routing(snapshot, &client.namespace, service, port);
        let (routing, protocol) = match standard {
            Some(standard) => builder.standard_routing(client, &destination, standard),
            None => (builder.routing(client, &destination), protocol),
        };
        let outbound = Outbound {
            service: service.key.clone(),
            port: port.port,
            protocol,
            addresses: service.cluster_ips.addresses().into(),
            routing,
        };
        Some(Self { outbound: Arc::new(outbound), notices: builder.notices, prepared: builder.prepared })
    }
}

#[derive(Default)]
struct PreviousRoutes<'b> {
    group: Arc<RouteGroup>,
    /// Valid for all policies but these.
    prepared: Option<(&'b RulesByPolicy, &'b BTreeSet<ObjectKey>)>,
}

/// The Service port that a client connects to.
struct Destination<'a> {
    service: &'a Service,
    port: &'a ServicePort,
    protocol: AppProtocol,
}

impl Destination<'_> {
    fn backend(&self) -> BackendId {
        BackendId {
            service: self.service.key.clone(),
            port: self.port.port,
            protocol: self.port.protocol,
            tags: Labels::EMPTY,
        }
    }
}

struct OutboundBuilder<'a> {
    snapshot: &'a Snapshot,
    before: &'a PreviousRoutes<'a>,
    notices: Vec<Notice>,
    prepared: RulesByPolicy,
}

impl OutboundBuilder<'_> {
    /// Routes of the Gateway API decide alone: the two APIs differ in what an unmatched request gets.
    fn standard_routing(
        &mut self,
        client: &MeshClient,
        destination: &Destination<'_>,
        standard: MeshRouting,
    ) -> (Routing, AppProtocol) {
        self.notices.extend(standard.notices);
        let by: Vec<String> = standard.routes.iter().map(ToString::to_string).collect();
        let Destination { service, port, protocol } = destination;
        let http = http_rules(self.snapshot, client, &service.key).into_iter().map(|source| source.policy);
        let tcp = tcp_backends(self.snapshot, client, &service.key).map(|(policy, _)| policy);
        for policy in http.chain(tcp) {
            let message = format!(
                "no effect on port {} of {}: {} has it as parentRef, and routes of the Gateway API decide alone; remove one of them",
                port.port,
                service.key,
                by.join(", ")
            );
            self.notices.push(Notice::new(policy, "Overridden", message));
        }
        // The route tells what the port speaks if its declaration does not.
        let is_http = matches!(standard.routing, Routing::Http(_));
        let protocol = if is_http && protocol.is_http() { *protocol } else { standard.protocol };
        (standard.routing, protocol)
    }

    /// Semantics 1.8: HTTP routes for HTTP ports, TCP routes for other ports and for HTTP ports without HTTP routes.
    fn routing(&mut self, client: &MeshClient, destination: &Destination<'_>) -> Routing {
        let http = http_rules(self.snapshot, client, &destination.service.key);
        let tcp = tcp_backends(self.snapshot, client, &destination.service.key);
        if !destination.protocol.is_http() {
            self.notices.extend(http.iter().map(|source| not_http(source, destination)));
        }
        if destination.protocol.is_http() && (!http.is_empty() || tcp.is_none()) {
            return Routing::Http(Arc::new(self.http_routes(destination, &http)));
        }
        let Some((policy, backends)) = tcp else {
            return Routing::Tcp(Arc::new(WeightedBackends::new([(
                BackendTarget::Backend(destination.backend()),
                1,
            )])));
        };
        let client_port = Some(destination.port);
        let resolver = BackendResolver { snapshot: self.snapshot, client_port };
        Routing::Tcp(Arc::new(resolver.split(backends, false, &policy, &mut self.notices)))
    }

    fn http_routes(&mut self, destination: &Destination<'_>, sources: &[RuleSource<'_>]) -> HttpRoutes {
        let resolver = BackendResolver { snapshot: self.snapshot, client_port: Some(destination.port) };
        let context = RouteContext { resolver, otherwise: Some(destination.backend()) };
        let lists: Vec<Arc<PreparedRules>> =
            sources.iter().map(|source| self.prepare(source, &context)).collect();
        let before = &self.before.group;
        let is_shared = |_: &Arc<HttpRule>| lists.len() > 1;
        let (mut rules, notices) =
            merge_lists(lists.iter().map(|list| &**list), is_shared, &context, before.rules());
        self.notices.extend(notices);
        // Semantics 1.5: no 404 in the mesh. Unmatched requests go to the original destination.
        if !rules.iter().flat_map(|rule| &rule.rule.matches).any(|on| on.is_everything()) {
            let catch_all = HttpRule::catch_all(forward_to(destination.backend()));
            rules.push(same_or_new(before.rules().last(), catch_all));
        }
        if before.has_rules(&rules) {
            return HttpRoutes { groups: [before.clone()].into() };
        }
        HttpRoutes { groups: [Arc::new(RouteGroup::after(before, rules, match_precedence::entries))].into() }
    }

    /// The rules of one list, prepared again only if its policy changed.
    fn prepare(&mut self, source: &RuleSource<'_>, context: &RouteContext<'_>) -> Arc<PreparedRules> {
        let policy = ObjectKey::new(&source.policy.namespace, &source.policy.name);
        let known_in = self.before.prepared.map(|(prepared, changed)| (prepared, !changed.contains(&policy)));
        let key = (policy, source.field.clone());
        let known = known_in.and_then(|(prepared, is_same)| Some((prepared.get(&key)?, is_same)));
        let rules = match known {
            Some((rules, true)) => rules.clone(),
            known => Arc::new(PreparedRules::new(source, context, known.map(|(rules, _)| &**rules))),
        };
        self.prepared.insert(key, rules.clone());
        rules
    }
}

fn not_http(source: &RuleSource<'_>, destination: &Destination<'_>) -> Notice {
    let Destination { service, port, .. } = destination;
    let message = format!(
        "{}: port {} of {} is not declared as HTTP, so this route does not apply to it; set the port's appProtocol to http, http2 or grpc, or use a MeshTCPRoute",
        source.field, port.port, service.key
    );
    Notice::new(source.policy.clone(), "DestinationNotHTTP", message)
}

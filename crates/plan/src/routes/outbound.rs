//! The routes of a client to one port of a Service, to be made again when policies change: a change of one costs its
//! own rules and one list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::route::{
    AppProtocol, BackendId, HttpRoutes, HttpRule, LegTarget, Outbound, RouteGroup, Routing, Split,
};
use model::{Labels, Notice, ObjectKey, Protocol, Service, ServicePort, Snapshot};

use super::applies::{http_rules, tcp_backends};
use super::client::Client;
use super::draft::{Draft, join, same_or_new};
use super::merge::Source;
use super::resolve::Resolver;
use super::{act, order};

/// The routes of a client to one port of a Service.
#[derive(Debug)]
pub struct OutboundRoutes {
    /// The routes.
    pub outbound: Arc<Outbound>,
    /// What there is to say about policies there.
    pub notices: Vec<Notice>,
    /// The rules of each policy by themselves, by its key and the field where they stand.
    drafts: Drafts,
}

type Drafts = BTreeMap<(ObjectKey, String), Arc<Draft>>;

impl OutboundRoutes {
    /// The routes as they are now. `None` for what is not TCP.
    pub fn new(snapshot: &Snapshot, client: &Client, service: &Service, port: &ServicePort) -> Option<Self> {
        Self::make(snapshot, client, service, port, &Before::default())
    }

    /// The same after these MeshHTTPRoutes came, changed or went, and nothing else of what it is made of.
    pub fn after(
        &self,
        snapshot: &Snapshot,
        client: &Client,
        service: &Service,
        port: &ServicePort,
        policies: &BTreeSet<ObjectKey>,
    ) -> Option<Self> {
        let group = match &self.outbound.routing {
            Routing::Http(routes) => routes.groups.first().cloned(),
            Routing::Tcp(_) => None,
        };
        let before = Before { group: group.unwrap_or_default(), drafts: Some((&self.drafts, policies)) };
        Self::make(snapshot, client, service, port, &before)
    }

    fn make(
        snapshot: &Snapshot,
        client: &Client,
        service: &Service,
        port: &ServicePort,
        before: &Before<'_>,
    ) -> Option<Self> {
        if port.protocol != Protocol::Tcp {
            return None;
        }
        let protocol = AppProtocol::of(port.app_protocol.as_deref(), &port.name);
        let destination = Destination { service, port, protocol };
        let mut work = Work { snapshot, before, notices: Vec::new(), drafts: Drafts::new() };
        let routing = work.routing(client, &destination);
        let outbound = Outbound {
            service: service.key.clone(),
            port: port.port,
            protocol,
            addresses: service.cluster_ips.addresses().into(),
            routing,
        };
        Some(Self { outbound: Arc::new(outbound), notices: work.notices, drafts: work.drafts })
    }
}

/// What was made the last time.
#[derive(Default)]
struct Before<'b> {
    group: Arc<RouteGroup>,
    /// The drafts, good for all policies but these.
    drafts: Option<(&'b Drafts, &'b BTreeSet<ObjectKey>)>,
}

/// A Service's port as what a client asked for.
struct Destination<'a> {
    service: &'a Service,
    port: &'a ServicePort,
    protocol: AppProtocol,
}

impl Destination<'_> {
    fn backend(&self) -> BackendId {
        BackendId { service: self.service.key.clone(), port: self.port.port, tags: Labels::EMPTY }
    }
}

struct Work<'a> {
    snapshot: &'a Snapshot,
    before: &'a Before<'a>,
    notices: Vec<Notice>,
    drafts: Drafts,
}

impl Work<'_> {
    /// Semantics 1.8: HTTP routes where requests can be told apart, TCP routes elsewhere or where there are no others.
    fn routing(&mut self, client: &Client, destination: &Destination<'_>) -> Routing {
        let http = http_rules(self.snapshot, client, &destination.service.key);
        let tcp = tcp_backends(self.snapshot, client, &destination.service.key);
        if !destination.protocol.is_http() {
            self.notices.extend(http.iter().map(|source| not_http(source, destination)));
        }
        if destination.protocol.is_http() && (!http.is_empty() || tcp.is_none()) {
            return Routing::Http(Arc::new(self.http_routes(destination, &http)));
        }
        let Some((policy, backends)) = tcp else {
            return Routing::Tcp(Arc::new(Split::new([(LegTarget::Backend(destination.backend()), 1)])));
        };
        let near = Some(destination.port);
        let resolver = Resolver { snapshot: self.snapshot, near };
        Routing::Tcp(Arc::new(resolver.split(backends, false, &policy, &mut self.notices)))
    }

    fn http_routes(&mut self, destination: &Destination<'_>, sources: &[Source<'_>]) -> HttpRoutes {
        let resolver = Resolver { snapshot: self.snapshot, near: Some(destination.port) };
        let setting = act::Setting { resolver, otherwise: Some(destination.backend()), keeps_query: true };
        let drafts: Vec<Arc<Draft>> = sources.iter().map(|source| self.draft(source, &setting)).collect();
        let before = &self.before.group;
        let may_meet = |_: &Arc<HttpRule>| drafts.len() > 1;
        let (mut rules, notices) =
            join(drafts.iter().map(|draft| &**draft), may_meet, &setting, before.rules());
        self.notices.extend(notices);
        // Semantics 1.5: no 404 in the mesh. What no rule takes goes where it was going.
        if !rules.iter().flat_map(|rule| &rule.rule.matches).any(|on| on.is_everything()) {
            let catch_all = HttpRule::catch_all(act::pass_on(destination.backend()));
            rules.push(same_or_new(before.rules().last(), catch_all));
        }
        if before.has_rules(&rules) {
            return HttpRoutes { groups: [before.clone()].into() };
        }
        HttpRoutes { groups: [Arc::new(RouteGroup::after(before, rules, order::entries))].into() }
    }

    /// The rules of one list, made anew only if its policy changed.
    fn draft(&mut self, source: &Source<'_>, setting: &act::Setting<'_>) -> Arc<Draft> {
        let policy = ObjectKey::new(&source.policy.namespace, &source.policy.name);
        let known_in = self.before.drafts.map(|(drafts, changed)| (drafts, !changed.contains(&policy)));
        let key = (policy, source.field.clone());
        let known = known_in.and_then(|(drafts, is_same)| Some((drafts.get(&key)?, is_same)));
        let draft = match known {
            Some((draft, true)) => draft.clone(),
            known => Arc::new(Draft::new(source, setting, known.map(|(draft, _)| &**draft))),
        };
        self.drafts.insert(key, draft.clone());
        draft
    }
}

fn not_http(source: &Source<'_>, destination: &Destination<'_>) -> Notice {
    let Destination { service, port, .. } = destination;
    let message = format!(
        "{}: port {} of {} speaks TCP as far as we know, so its requests cannot be told apart and this route is not used there; set the port's appProtocol to http, http2 or grpc, or use a MeshTCPRoute",
        source.field, port.port, service.key
    );
    Notice::new(source.policy.clone(), "DestinationNotHTTP", message)
}

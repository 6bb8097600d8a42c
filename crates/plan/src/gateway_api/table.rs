//! The route table of a Gateway.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::gateway_api::{Gateway, ParentKind, Route, RouteKind};
use model::route::{
    Certificate, GatewayPort, HeaderMatch, HostMap, Hostname, HttpRoutes, HttpRule, Listener,
    MeshGatewayProtocol, Pattern, RouteGroup, RouteRule, RouteTable, Routing, ValueTest,
};
use model::{Name, Notice, ObjectKey, Snapshot};

use super::attachment::{attached_listeners, shared_hosts};
use super::backend_tls;
use super::listeners::{EffectiveGateway, EffectiveListener};
use super::rules::RouteRules;
use crate::routes::{PolicyConsumer, match_precedence, set_load_balancing};

/// The route table of a Gateway and of its ListenerSets. Listeners that are not programmed are left out.
pub fn gateway_table(snapshot: &Snapshot, gateway: &Gateway) -> (RouteTable, Vec<Notice>) {
    let effective = EffectiveGateway::new(snapshot, gateway);
    let mut planner = TablePlanner { snapshot, notices: Vec::new(), rules: BTreeMap::new() };
    let routes_by_listener = planner.attach(&effective);
    let mut listeners_by_port: BTreeMap<u16, Vec<Listener>> = BTreeMap::new();
    let mut table = RouteTable::default();
    for (at, listener) in effective.listeners.iter().enumerate().filter(|(_, l)| l.is_programmed()) {
        let routes = routes_by_listener.get(&at).map(Vec::as_slice).unwrap_or_default();
        let port = listener.listener.port;
        if listener.listener.protocol == "UDP" {
            if let Some(oldest) = routes.first() {
                table.put_udp_port(port, Arc::new(planner.connections(oldest)));
            }
            continue;
        }
        let planned = planner.listener(listener, routes);
        listeners_by_port.entry(port).or_default().push(planned);
    }
    for (number, listeners) in listeners_by_port {
        // Listeners with HTTPS and TLS may share a port: the SNI tells them apart.
        let has_tls = listeners.iter().any(|listener| listener.protocol == MeshGatewayProtocol::Tls);
        let first = listeners.first().map_or(MeshGatewayProtocol::Http, |listener| listener.protocol);
        let protocol = if has_tls { MeshGatewayProtocol::Tls } else { first };
        table.put_port(Arc::new(GatewayPort::new(number, protocol, listeners)));
    }
    for (id, tls) in backend_tls::of_table(snapshot, gateway, &table) {
        table.put_backend_tls(id, Arc::new(tls));
    }
    let mut notices = planner.notices;
    let consumer = PolicyConsumer::Gateway(&gateway.identity.key);
    notices.extend(set_load_balancing(&mut table, snapshot, consumer));
    notices.sort();
    notices.dedup();
    (table, notices)
}

struct TablePlanner<'s> {
    snapshot: &'s Snapshot,
    notices: Vec<Notice>,
    /// The rules of each route, which hosts and listeners share.
    rules: BTreeMap<(RouteKind, ObjectKey), Vec<Arc<HttpRule>>>,
}

impl<'s> TablePlanner<'s> {
    /// The routes of each listener by its index, older ones first.
    fn attach(&mut self, gateway: &EffectiveGateway<'s>) -> BTreeMap<usize, Vec<&'s Route>> {
        let key = &gateway.gateway.identity.key;
        let own = self.snapshot.routes_of_parent(ParentKind::Gateway, key).map(|route| (route, None));
        let sets = gateway.sets.iter().flat_map(|(set, _)| {
            let key = &set.identity.key;
            self.snapshot.routes_of_parent(ParentKind::ListenerSet, key).map(move |route| (route, Some(key)))
        });
        let mut routes_by_listener: BTreeMap<usize, Vec<&'s Route>> = BTreeMap::new();
        let mut notices = Vec::new();
        for (route, set) in own.chain(sets) {
            let mut attached = BTreeSet::new();
            for parent in &*route.parents {
                let is_own = match set {
                    None => parent.kind() == ParentKind::Gateway && parent.object.key() == *key,
                    Some(set) => parent.kind() == ParentKind::ListenerSet && parent.object.key() == *set,
                };
                if !is_own {
                    continue;
                }
                match attached_listeners(self.snapshot, gateway, set, route, parent) {
                    Ok(listeners) => attached.extend(listeners),
                    Err(problem) => {
                        let to = &parent.object;
                        let message = format!(
                            "not attached to {} {}/{}: {}: {}",
                            to.kind, to.namespace, to.name, problem.reason, problem.message
                        );
                        notices.push(Notice::new(route.object(), "RouteNotAccepted", message));
                    }
                }
            }
            for at in attached {
                routes_by_listener.entry(at).or_default().push(route);
            }
        }
        self.notices.extend(notices);
        for routes in routes_by_listener.values_mut() {
            routes.sort_by_cached_key(|route| route.identity.age_order());
        }
        routes_by_listener
    }

    fn listener(&mut self, listener: &EffectiveListener<'_>, routes: &[&'s Route]) -> Listener {
        let own = listener.listener;
        let hosts = match own.protocol.as_str() {
            "HTTP" | "HTTPS" => self.http_hosts(&own.hostname, routes),
            _ => self.connection_hosts(&own.hostname, routes),
        };
        let name = match listener.set {
            Some(set) => Name::new(&format!("{}/{}", set.identity.key, own.name)),
            None => own.name.clone(),
        };
        let certificates =
            listener.certificates.iter().cloned().map(|secret| Certificate { secret }).collect();
        let protocol = match own.protocol.as_str() {
            "HTTPS" => MeshGatewayProtocol::Https,
            "TLS" => MeshGatewayProtocol::Tls,
            "TCP" => MeshGatewayProtocol::Tcp,
            _ => MeshGatewayProtocol::Http,
        };
        let clients = listener.clients.clone();
        Listener { name, hostname: own.hostname.clone(), protocol, certificates, clients, hosts }
    }

    /// Each host with the oldest route that has it.
    fn connection_hosts(&mut self, listener: &Hostname, routes: &[&'s Route]) -> HostMap<Routing> {
        let mut hosts = HostMap::default();
        for route in routes {
            for host in shared_hosts(route, listener) {
                if hosts.at(&host).is_none() {
                    hosts.insert(&host, Routing::Tcp(Arc::new(self.connections(route))));
                }
            }
        }
        hosts
    }

    fn connections(&mut self, route: &'s Route) -> model::route::WeightedBackends {
        RouteRules { snapshot: self.snapshot, route, is_mesh: false }.connections(&mut self.notices)
    }

    /// Each host with its own rules, then those of less specific names that cover it.
    fn http_hosts(&mut self, listener: &Hostname, routes: &[&'s Route]) -> HostMap<Routing> {
        let mut routes_by_host: BTreeMap<Hostname, Vec<&'s Route>> = BTreeMap::new();
        for route in routes {
            for host in shared_hosts(route, listener) {
                routes_by_host.entry(host).or_default().push(route);
            }
        }
        let mut group_by_host: BTreeMap<Hostname, Arc<RouteGroup>> = BTreeMap::new();
        for (host, routes) in &routes_by_host {
            let lists: Vec<_> = routes.iter().map(|route| (route.kind, self.rules(route))).collect();
            group_by_host.insert(host.clone(), Arc::new(group(&lists)));
        }
        let mut hosts = HostMap::default();
        for (host, own) in &group_by_host {
            let wider = host.wider().filter_map(|wider| group_by_host.get(&wider));
            let groups = std::iter::once(own).chain(wider).cloned().collect();
            hosts.insert(host, Routing::Http(Arc::new(HttpRoutes { groups })));
        }
        hosts
    }

    fn rules(&mut self, route: &'s Route) -> Vec<Arc<HttpRule>> {
        let key = (route.kind, route.identity.key.clone());
        if let Some(known) = self.rules.get(&key) {
            return known.clone();
        }
        let rules = RouteRules { snapshot: self.snapshot, route, is_mesh: false }.http(&mut self.notices);
        self.rules.insert(key, rules.clone());
        rules
    }
}

/// The rules of several routes, older ones first, in order of precedence. Where HTTPRoutes and GRPCRoutes meet, the latter
/// take gRPC requests only.
pub(super) fn group(lists: &[(RouteKind, Vec<Arc<HttpRule>>)]) -> RouteGroup {
    let has = |kind: RouteKind| lists.iter().any(|(own, _)| *own == kind);
    let is_mixed = has(RouteKind::Grpc) && has(RouteKind::Http);
    let of = |kind: RouteKind| lists.iter().filter(move |(own, _)| *own == kind).flat_map(|(_, rules)| rules);
    let grpc = of(RouteKind::Grpc).map(|rule| if is_mixed { only_grpc(rule) } else { rule.clone() });
    let rules: Vec<Arc<HttpRule>> = grpc.chain(of(RouteKind::Http).cloned()).collect();
    let entries = match_precedence::entries(&rules);
    RouteGroup::new(rules, entries)
}

fn only_grpc(rule: &Arc<HttpRule>) -> Arc<HttpRule> {
    let Ok(pattern) = Pattern::new("application/grpc([+;].*)?") else { return rule.clone() };
    let mut matches = rule.rule.matches.to_vec();
    for on in &mut matches {
        let test = ValueTest::Regex(pattern.clone());
        let mut headers = on.conditions.headers.to_vec();
        headers.push(HeaderMatch { name: "content-type".into(), test });
        on.conditions.headers = headers.into();
    }
    let own = RouteRule { matches: matches.into(), ..(*rule.rule).clone() };
    Arc::new(HttpRule { rule: Arc::new(own), ..(**rule).clone() })
}

//! The table of a gateway: ports, their listeners, and for each host its rules. Kept up, so that a change of a policy
//! costs its own rules and the lists of its hosts.
//!
//! ```text
//! policy -> Draft, its rules by themselves -> hosts that a listener and it have in common
//!        -> for each host one list of the drafts -> behind it the lists of the wider names that cover it
//! ```

mod hosts;
mod meeting;
mod uses;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::route::{
    BackendId, Gateway, GatewayHttpRoute, GatewayListener, GatewayPort, HostMap, Hostname, Listener,
    PolicyTarget, RouteTable, Routing,
};
use model::{Name, Notice, ObjectKey, Snapshot};

use super::act::Setting;
use super::applies::precedence;
use super::draft::Draft;
use super::merge::Source;
use super::resolve::Resolver;
use hosts::Site;
use uses::Uses;

/// The routes of a gateway.
pub fn gateway(snapshot: &Snapshot, gateway: &Gateway) -> (RouteTable, Vec<Notice>) {
    let routes = GatewayRoutes::new(snapshot, gateway.clone());
    let notices = routes.notices();
    (Arc::unwrap_or_clone(routes.table), notices)
}

/// The routes of a gateway, to be kept up. They are those that would be made from nothing, whatever came before.
#[derive(Debug)]
pub struct GatewayRoutes {
    gateway: Gateway,
    /// The HTTP policies for this gateway.
    policies: BTreeMap<Name, Policy>,
    /// The HTTP listeners.
    sites: Vec<Site>,
    table: Arc<RouteTable>,
    uses: Uses,
    /// What there is to say about TCP listeners.
    notices: Vec<Notice>,
}

#[derive(Debug)]
struct Policy {
    draft: Arc<Draft>,
    rank: Rank,
    /// The listeners that take it, as places among the sites, each with a host name in common.
    places: Vec<(usize, Hostname)>,
}

/// The precedence of a policy.
type Rank = (Reverse<u8>, Reverse<usize>, Name);

impl GatewayRoutes {
    /// The routes as they are now.
    pub fn new(snapshot: &Snapshot, gateway: Gateway) -> Self {
        let mut routes = Self {
            gateway,
            policies: BTreeMap::new(),
            sites: Vec::new(),
            table: Arc::default(),
            uses: Uses::default(),
            notices: Vec::new(),
        };
        routes.open_ports(snapshot);
        let all = snapshot.gateway_http_routes(&routes.gateway.key.namespace);
        let names: BTreeSet<Name> = all.map(|policy| policy.key.name.clone()).collect();
        routes.update(snapshot, &names);
        routes
    }

    /// The table. What did not change is shared with the one before.
    pub fn table(&self) -> &Arc<RouteTable> {
        &self.table
    }

    /// Everything that there is to say about its policies.
    pub fn notices(&self) -> Vec<Notice> {
        let mut notices = self.notices.clone();
        notices.extend(self.sites.iter().flat_map(Site::notices).cloned());
        let unused = self.policies.iter().filter(|(_, policy)| policy.places.is_empty());
        notices.extend(unused.map(|(name, _)| self.no_listener(name)));
        notices.sort();
        notices.dedup();
        notices
    }

    /// Whether some route leads to a backend.
    pub fn leads_to(&self, backend: &BackendId) -> bool {
        self.uses.has(backend)
    }

    /// The backends that routes began or ceased to lead to since this was last asked; some may have done both.
    pub fn take_turned_backends(&mut self) -> BTreeSet<BackendId> {
        self.uses.take_turned()
    }

    /// Looks again at these HTTP policies: they came, changed or went, or a Service that they name did. Says whether
    /// the table is another than before. For changes of the gateway or of TCP policies make new routes.
    pub fn update(&mut self, snapshot: &Snapshot, policies: &BTreeSet<Name>) -> bool {
        let mut stale = BTreeSet::new();
        for name in policies {
            self.replace(snapshot, name, &mut stale);
        }
        let setting = setting(snapshot);
        let mut turned_by_site: BTreeMap<usize, BTreeSet<Hostname>> = BTreeMap::new();
        for (at, host) in stale {
            let Some(site) = self.sites.get_mut(at) else { continue };
            if site.plan(&host, &setting, &mut self.uses) {
                turned_by_site.entry(at).or_default().insert(host);
            }
        }
        let is_turned = !turned_by_site.is_empty();
        for (at, hosts) in turned_by_site {
            let Some(site) = self.sites.get(at) else { continue };
            site.link(&hosts, Arc::make_mut(&mut self.table));
        }
        is_turned
    }

    /// Takes what a policy was out of its hosts and puts in what it is. The hosts are to be planned again.
    fn replace(&mut self, snapshot: &Snapshot, name: &Name, stale: &mut BTreeSet<(usize, Hostname)>) {
        let before = self.policies.remove(name);
        let after = self.policy(snapshot, name, before.as_ref().map(|before| &*before.draft));
        if let Some(before) = &before {
            let same_rank = after.as_ref().filter(|after| after.rank == before.rank);
            for place in &before.places {
                // Where it stays, the new one takes its place.
                if !same_rank.is_some_and(|after| after.places.contains(place))
                    && let Some(site) = self.sites.get_mut(place.0)
                {
                    site.take_out(&place.1, &before.rank);
                }
                stale.insert(place.clone());
            }
        }
        let Some(after) = after else { return };
        for (at, host) in &after.places {
            if let Some(site) = self.sites.get_mut(*at) {
                site.put_in(host, &after.rank, &after.draft);
            }
            stale.insert((*at, host.clone()));
        }
        self.policies.insert(name.clone(), after);
    }

    /// A policy as it is now, if it is there and for this gateway.
    fn policy(&self, snapshot: &Snapshot, name: &Name, before: Option<&Draft>) -> Option<Policy> {
        let key = ObjectKey::new(&self.gateway.key.namespace, name);
        let route = snapshot.gateway_http_route(&key)?;
        if !matches!(&route.target, PolicyTarget::Gateway(name, _) if *name == self.gateway.key.name) {
            return None;
        }
        let draft = Draft::new(&source(route), &setting(snapshot), before);
        let (kind, tags, _) = precedence(&route.target, &route.key);
        let rank = (kind, tags, name.clone());
        Some(Policy { draft: Arc::new(draft), rank, places: self.places_of(route) })
    }

    /// Where a policy acts: each listener that it selects, with every host name that both have (semantics 1.6).
    fn places_of(&self, policy: &GatewayHttpRoute) -> Vec<(usize, Hostname)> {
        let any = [Hostname::Any];
        let own: &[Hostname] = if policy.hostnames.is_empty() { &any } else { &policy.hostnames };
        let mut places = BTreeSet::new();
        for (at, site) in self.sites.iter().enumerate() {
            if is_meant(&self.gateway, &policy.target, &site.listener) {
                let common = own.iter().filter_map(|host| site.listener.hostname.intersection(host));
                places.extend(common.map(|host| (at, host)));
            }
        }
        places.into_iter().collect()
    }

    /// Ports and listeners, without HTTP routes yet.
    fn open_ports(&mut self, snapshot: &Snapshot) {
        let mut listeners_by_port: BTreeMap<u16, Vec<GatewayListener>> = BTreeMap::new();
        for listener in &self.gateway.listeners {
            listeners_by_port.entry(listener.port).or_default().push(listener.clone());
        }
        let mut table = RouteTable::default();
        for (number, mut listeners) in listeners_by_port {
            let Some(protocol) = listeners.first().map(|first| first.protocol) else { continue };
            // Validation lets no other protocol on the same port.
            listeners.retain(|listener| listener.protocol == protocol);
            let open = |(at, listener)| self.listener(snapshot, at, listener);
            let listeners = listeners.into_iter().enumerate().map(open).collect();
            table.put_port(Arc::new(GatewayPort::new(number, protocol, listeners)));
        }
        self.table = Arc::new(table);
    }

    fn listener(&mut self, snapshot: &Snapshot, at: usize, listener: GatewayListener) -> Listener {
        let is_http = listener.protocol.is_http();
        let hosts = if is_http { HostMap::default() } else { self.tcp(snapshot, &listener) };
        let opened = Listener {
            name: listener.name.clone(),
            hostname: listener.hostname.clone(),
            certificate: listener.certificate.clone(),
            hosts,
        };
        if is_http {
            self.sites.push(Site::new(listener, at));
        }
        opened
    }

    /// A TCP listener has one split; without a route it has none, and connections are closed.
    fn tcp(&mut self, snapshot: &Snapshot, listener: &GatewayListener) -> HostMap<Routing> {
        let namespace = &self.gateway.key.namespace;
        let all = snapshot.tcp_routes(namespace);
        let meant = all.filter(|policy| is_meant(&self.gateway, &policy.target, listener));
        let winner = meant.min_by_key(|policy| precedence(&policy.target, &policy.key));
        let mut hosts = HostMap::default();
        if let Some((policy, to)) = winner.and_then(|policy| Some((policy, policy.to.last()?))) {
            let resolver = Resolver { snapshot, near: None };
            let split = resolver.split(&to.backends, false, &policy.object(), &mut self.notices);
            self.uses.add(split.backends());
            hosts.insert(&listener.hostname, Routing::Tcp(Arc::new(split)));
        }
        hosts
    }

    /// A policy for this gateway that no listener takes is a mistake in its hosts or tags.
    fn no_listener(&self, policy: &Name) -> Notice {
        let Gateway { key, .. } = &self.gateway;
        let message = format!(
            "no HTTP or HTTPS listener of MeshGateway {} has these hosts and tags, so the route gets no request; compare spec.hostnames and spec.targetRef.tags with the listeners",
            key.name
        );
        Notice::new(GatewayHttpRoute::object_at(&key.namespace, policy), "NoListener", message)
    }
}

/// Whether some HTTP listener takes a policy.
pub(super) fn takes(gateway: &Gateway, policy: &GatewayHttpRoute) -> bool {
    let shares_host = |listener: &GatewayListener| {
        policy.hostnames.is_empty()
            || policy.hostnames.iter().any(|host| listener.hostname.intersection(host).is_some())
    };
    let mut listeners = gateway.listeners.iter().filter(|listener| listener.protocol.is_http());
    listeners.any(|listener| is_meant(gateway, &policy.target, listener) && shares_host(listener))
}

/// Whether a policy for a gateway selects a listener of it.
pub(super) fn is_meant(gateway: &Gateway, target: &PolicyTarget, listener: &GatewayListener) -> bool {
    let PolicyTarget::Gateway(name, tags) = target else { return false };
    *name == gateway.key.name && tags.selects(&listener.tags)
}

fn setting(snapshot: &Snapshot) -> Setting<'_> {
    Setting { resolver: Resolver { snapshot, near: None }, otherwise: None, keeps_query: false }
}

fn source(policy: &GatewayHttpRoute) -> Source<'_> {
    Source { policy: policy.object(), field: "spec.rules".to_owned(), rules: &policy.rules }
}

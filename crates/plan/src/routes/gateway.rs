//! The route table of a gateway: ports, listeners, and the rules of each host. It is updated incrementally: a changed
//! policy costs its own rules and the lists of its hosts.
//!
//! ```text
//! policy -> PreparedRules -> the hosts that it shares with a listener
//!        -> for each host one merged list, followed by the lists of less specific names that cover it
//! ```

mod backend_usage;
mod listener_hosts;
mod shared_matches;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::route::{
    BackendId, GatewayPort, HostMap, Hostname, Listener, MeshGateway, MeshGatewayHttpRoute,
    MeshGatewayListener, PolicyTarget, RouteTable, Routing,
};
use model::{Name, Notice, ObjectKey, Snapshot};

use super::backend_resolution::BackendResolver;
use super::load_balancing::{PolicyConsumer, set_load_balancing};
use super::merge::RuleSource;
use super::policy_attachment::precedence;
use super::prepared_rules::PreparedRules;
use super::rule_action::RouteContext;
use backend_usage::BackendUsage;
use listener_hosts::ListenerHosts;

pub fn gateway(snapshot: &Snapshot, gateway: &MeshGateway) -> (RouteTable, Vec<Notice>) {
    let routes = GatewayRoutes::new(snapshot, gateway.clone());
    let mut notices = routes.notices();
    let mut table = Arc::unwrap_or_clone(routes.table);
    notices.extend(set_load_balancing(&mut table, snapshot, PolicyConsumer::Gateway(&gateway.key)));
    (table, notices)
}

/// The routes of a gateway with the state that updates need. An update gives the same table as planning from scratch.
#[derive(Debug)]
pub struct GatewayRoutes {
    gateway: MeshGateway,
    /// The HTTP policies of this gateway.
    policies: BTreeMap<Name, AttachedPolicy>,
    /// The HTTP listeners.
    listeners: Vec<ListenerHosts>,
    table: Arc<RouteTable>,
    usage: BackendUsage,
    /// About TCP listeners.
    notices: Vec<Notice>,
}

#[derive(Debug)]
struct AttachedPolicy {
    rules: Arc<PreparedRules>,
    rank: PolicyRank,
    /// The index of each listener that it is attached to, with a shared host name.
    hosts: Vec<(usize, Hostname)>,
}

/// The precedence of a policy.
type PolicyRank = (Reverse<u8>, Reverse<usize>, Name);

impl GatewayRoutes {
    pub fn new(snapshot: &Snapshot, gateway: MeshGateway) -> Self {
        let mut routes = Self {
            gateway,
            policies: BTreeMap::new(),
            listeners: Vec::new(),
            table: Arc::default(),
            usage: BackendUsage::default(),
            notices: Vec::new(),
        };
        routes.open_ports(snapshot);
        let all = snapshot.mesh_gateway_http_routes(&routes.gateway.key.namespace);
        let names: BTreeSet<Name> = all.map(|policy| policy.key.name.clone()).collect();
        routes.update(snapshot, &names);
        routes
    }

    /// The table; unchanged parts are shared with the previous one.
    pub fn table(&self) -> &Arc<RouteTable> {
        &self.table
    }

    /// The Notices of all its policies.
    pub fn notices(&self) -> Vec<Notice> {
        let mut notices = self.notices.clone();
        notices.extend(self.listeners.iter().flat_map(ListenerHosts::notices).cloned());
        let unused = self.policies.iter().filter(|(_, policy)| policy.hosts.is_empty());
        notices.extend(unused.map(|(name, _)| self.no_listener(name)));
        notices.sort();
        notices.dedup();
        notices
    }

    /// Whether some route uses a backend.
    pub fn leads_to(&self, backend: &BackendId) -> bool {
        self.usage.has(backend)
    }

    /// The backends that came into use or went out of use since the last call, possibly both.
    pub fn take_changed_backends(&mut self) -> BTreeSet<BackendId> {
        self.usage.take_changed()
    }

    /// Plans HTTP policies again that changed, or that refer to a Service that changed. Returns whether the table changed.
    /// A change of the gateway itself or of TCP policies requires [`Self::new`].
    pub fn update(&mut self, snapshot: &Snapshot, policies: &BTreeSet<Name>) -> bool {
        let mut stale = BTreeSet::new();
        for name in policies {
            self.replace(snapshot, name, &mut stale);
        }
        let context = context(snapshot);
        let mut changed_by_listener: BTreeMap<usize, BTreeSet<Hostname>> = BTreeMap::new();
        for (at, host) in stale {
            let Some(listener) = self.listeners.get_mut(at) else { continue };
            if listener.plan(&host, &context, &mut self.usage) {
                changed_by_listener.entry(at).or_default().insert(host);
            }
        }
        let is_changed = !changed_by_listener.is_empty();
        for (at, hosts) in changed_by_listener {
            let Some(listener) = self.listeners.get(at) else { continue };
            listener.link(&hosts, Arc::make_mut(&mut self.table));
        }
        is_changed
    }

    /// Replaces a policy in its hosts and adds these to `stale`.
    fn replace(&mut self, snapshot: &Snapshot, name: &Name, stale: &mut BTreeSet<(usize, Hostname)>) {
        let before = self.policies.remove(name);
        let after = self.policy(snapshot, name, before.as_ref().map(|before| &*before.rules));
        if let Some(before) = &before {
            let same_rank = after.as_ref().filter(|after| after.rank == before.rank);
            for attached in &before.hosts {
                // A host that the policy keeps is overwritten below.
                if !same_rank.is_some_and(|after| after.hosts.contains(attached))
                    && let Some(listener) = self.listeners.get_mut(attached.0)
                {
                    listener.detach(&attached.1, &before.rank);
                }
                stale.insert(attached.clone());
            }
        }
        let Some(after) = after else { return };
        for (at, host) in &after.hosts {
            if let Some(listener) = self.listeners.get_mut(*at) {
                listener.attach(host, &after.rank, &after.rules);
            }
            stale.insert((*at, host.clone()));
        }
        self.policies.insert(name.clone(), after);
    }

    /// The current policy, if it exists and targets this gateway.
    fn policy(
        &self,
        snapshot: &Snapshot,
        name: &Name,
        before: Option<&PreparedRules>,
    ) -> Option<AttachedPolicy> {
        let key = ObjectKey::new(&self.gateway.key.namespace, name);
        let route = snapshot.mesh_gateway_http_route(&key)?;
        if !matches!(&route.target, PolicyTarget::Gateway(name, _) if *name == self.gateway.key.name) {
            return None;
        }
        let rules = PreparedRules::new(&source(route), &context(snapshot), before);
        let (kind, tags, _) = precedence(&route.target, &route.key);
        let rank = (kind, tags, name.clone());
        Some(AttachedPolicy { rules: Arc::new(rules), rank, hosts: self.shared_hosts(route) })
    }

    /// Each listener that a policy selects, with every host name that both have (semantics 1.6).
    fn shared_hosts(&self, policy: &MeshGatewayHttpRoute) -> Vec<(usize, Hostname)> {
        let any = [Hostname::Any];
        let own: &[Hostname] = if policy.hostnames.is_empty() { &any } else { &policy.hostnames };
        let mut shared = BTreeSet::new();
        for (at, hosts) in self.listeners.iter().enumerate() {
            if selects(&self.gateway, &policy.target, &hosts.listener) {
                let common = own.iter().filter_map(|host| hosts.listener.hostname.intersection(host));
                shared.extend(common.map(|host| (at, host)));
            }
        }
        shared.into_iter().collect()
    }

    /// Creates ports and listeners, still without HTTP routes.
    fn open_ports(&mut self, snapshot: &Snapshot) {
        let mut listeners_by_port: BTreeMap<u16, Vec<MeshGatewayListener>> = BTreeMap::new();
        for listener in &self.gateway.listeners {
            listeners_by_port.entry(listener.port).or_default().push(listener.clone());
        }
        let mut table = RouteTable::default();
        for (number, mut listeners) in listeners_by_port {
            let Some(protocol) = listeners.first().map(|first| first.protocol) else { continue };
            // Validation refuses two protocols on one port.
            listeners.retain(|listener| listener.protocol == protocol);
            let open = |(at, listener)| self.listener(snapshot, at, listener);
            let listeners = listeners.into_iter().enumerate().map(open).collect();
            table.put_port(Arc::new(GatewayPort::new(number, protocol, listeners)));
        }
        self.table = Arc::new(table);
    }

    fn listener(&mut self, snapshot: &Snapshot, at: usize, listener: MeshGatewayListener) -> Listener {
        let is_http = listener.protocol.is_http();
        let hosts = if is_http { HostMap::default() } else { self.tcp(snapshot, &listener) };
        let opened = Listener {
            name: listener.name.clone(),
            hostname: listener.hostname.clone(),
            protocol: listener.protocol,
            certificates: listener.certificates.iter().cloned().collect(),
            clients: None,
            hosts,
        };
        if is_http {
            self.listeners.push(ListenerHosts::new(listener, at));
        }
        opened
    }

    /// The backends of a TCP listener. Without a route there are none, and connections are closed.
    fn tcp(&mut self, snapshot: &Snapshot, listener: &MeshGatewayListener) -> HostMap<Routing> {
        let namespace = &self.gateway.key.namespace;
        let all = snapshot.mesh_tcp_routes(namespace);
        let attached = all.filter(|policy| selects(&self.gateway, &policy.target, listener));
        let winner = attached.min_by_key(|policy| precedence(&policy.target, &policy.key));
        let mut hosts = HostMap::default();
        if let Some((policy, to)) = winner.and_then(|policy| Some((policy, policy.to.last()?))) {
            let resolver = BackendResolver { snapshot, client_port: None };
            let split = resolver.split(&to.backends, false, &policy.object(), &mut self.notices);
            self.usage.add(split.backends());
            hosts.insert(&listener.hostname, Routing::Tcp(Arc::new(split)));
        }
        hosts
    }

    /// A policy that selects no listener: its hosts or tags are wrong.
    fn no_listener(&self, policy: &Name) -> Notice {
        let MeshGateway { key, .. } = &self.gateway;
        let message = format!(
            "no HTTP or HTTPS listener of MeshGateway {} matches the hosts and tags of this route, so it gets no requests; compare spec.hostnames and spec.targetRef.tags with the listeners",
            key.name
        );
        Notice::new(MeshGatewayHttpRoute::object_at(&key.namespace, policy), "NoListener", message)
    }
}

/// Whether a policy is attached to some HTTP listener.
pub(super) fn has_listener(gateway: &MeshGateway, policy: &MeshGatewayHttpRoute) -> bool {
    let shares_host = |listener: &MeshGatewayListener| {
        policy.hostnames.is_empty()
            || policy.hostnames.iter().any(|host| listener.hostname.intersection(host).is_some())
    };
    let mut listeners = gateway.listeners.iter().filter(|listener| listener.protocol.is_http());
    listeners.any(|listener| selects(gateway, &policy.target, listener) && shares_host(listener))
}

/// Whether a targetRef selects a listener of a gateway.
pub(super) fn selects(gateway: &MeshGateway, target: &PolicyTarget, listener: &MeshGatewayListener) -> bool {
    let PolicyTarget::Gateway(name, tags) = target else { return false };
    *name == gateway.key.name && tags.selects(&listener.tags)
}

fn context(snapshot: &Snapshot) -> RouteContext<'_> {
    RouteContext { resolver: BackendResolver { snapshot, client_port: None }, otherwise: None }
}

fn source(policy: &MeshGatewayHttpRoute) -> RuleSource<'_> {
    RuleSource { policy: policy.object(), field: "spec.rules".to_owned(), rules: &policy.rules }
}

//! The table of a gateway: ports, their listeners, and for each host its rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::route::{
    Gateway, GatewayHttpRoute, GatewayListener, GatewayPort, HostMap, Hostname, HttpRoutes, Listener,
    PolicyTarget, RouteGroup, RouteTable, Routing,
};
use model::{Name, Notice, Snapshot};

use super::applies::precedence;
use super::merge::{Source, merge};
use super::resolve::Resolver;
use super::{act, order};

/// The routes of a gateway.
pub fn gateway(snapshot: &Snapshot, gateway: &Gateway) -> (RouteTable, Vec<Notice>) {
    let mut work = Work { snapshot, gateway, notices: Vec::new(), used: BTreeSet::new() };
    let mut listeners_by_port: BTreeMap<u16, Vec<&GatewayListener>> = BTreeMap::new();
    for listener in &gateway.listeners {
        listeners_by_port.entry(listener.port).or_default().push(listener);
    }
    let mut table = RouteTable::default();
    for (number, listeners) in listeners_by_port {
        let Some(first) = listeners.first() else { continue };
        let protocol = first.protocol;
        // Validation lets no other protocol on the same port.
        let same = listeners.iter().filter(|listener| listener.protocol == protocol);
        let listeners = same.map(|listener| work.listener(listener)).collect();
        table.put_port(Arc::new(GatewayPort::new(number, protocol, listeners)));
    }
    work.tell_unused();
    let mut notices = work.notices;
    notices.sort();
    notices.dedup();
    (table, notices)
}

struct Work<'a> {
    snapshot: &'a Snapshot,
    gateway: &'a Gateway,
    notices: Vec<Notice>,
    /// HTTP policies that some listener took.
    used: BTreeSet<&'a Name>,
}

impl<'a> Work<'a> {
    fn is_meant(&self, target: &PolicyTarget, listener: &GatewayListener) -> bool {
        let PolicyTarget::Gateway(name, tags) = target else { return false };
        *name == self.gateway.key.name && tags.selects(&listener.tags)
    }

    fn resolver(&self) -> Resolver<'a> {
        Resolver { snapshot: self.snapshot, namespace: &self.gateway.key.namespace, near: None }
    }

    fn listener(&mut self, listener: &'a GatewayListener) -> Listener {
        let hosts = if listener.protocol.is_http() { self.http(listener) } else { self.tcp(listener) };
        Listener {
            name: listener.name.clone(),
            hostname: listener.hostname.clone(),
            certificate: listener.certificate.clone(),
            hosts,
        }
    }

    /// Each host name has its own rules first, then those of the wider names that cover it (semantics 1.6).
    fn http(&mut self, listener: &'a GatewayListener) -> HostMap<Routing> {
        let policies_by_host = self.policies_by_host(listener);
        let setting = act::Setting { resolver: self.resolver(), otherwise: None, keeps_query: false };
        let mut groups: Vec<(Hostname, Arc<RouteGroup>)> = Vec::new();
        for (host, policies) in policies_by_host {
            let sources: Vec<Source<'_>> = policies.iter().map(|policy| source(policy)).collect();
            let rules = act::rules(merge(&sources), &setting, &mut self.notices);
            let entries = order::entries(&rules);
            groups.push((host, Arc::new(RouteGroup::new(rules, entries))));
        }
        groups.sort_by(|(a, _), (b, _)| a.rank().cmp(&b.rank()));
        // Only these can cover another name; there may be thousands of exact ones, which need not be held against
        // each other.
        let wide: Vec<_> = groups.iter().filter(|(host, _)| !matches!(host, Hostname::Exact(_))).collect();
        let mut hosts = HostMap::default();
        for (host, own) in &groups {
            let wider = wide.iter().filter(|(wider, _)| wider.covers(host) && wider != host);
            let covering = std::iter::once(own).chain(wider.map(|(_, group)| group));
            let routes = HttpRoutes { groups: covering.cloned().collect() };
            hosts.insert(host, Routing::Http(Arc::new(routes)));
        }
        hosts
    }

    /// The policies for each host name that the listener and they have in common; the winner first.
    fn policies_by_host(
        &mut self,
        listener: &'a GatewayListener,
    ) -> Vec<(Hostname, Vec<&'a GatewayHttpRoute>)> {
        let all = self.snapshot.gateway_http_routes(&self.gateway.key.namespace);
        let mut policies: Vec<_> = all.filter(|p| self.is_meant(&p.target, listener)).collect();
        policies.sort_by_key(|policy| precedence(&policy.target, &policy.key));
        let mut by_host: BTreeMap<String, (Hostname, Vec<&'a GatewayHttpRoute>)> = BTreeMap::new();
        for policy in policies {
            let any = [Hostname::Any];
            let own: &[Hostname] = if policy.hostnames.is_empty() { &any } else { &policy.hostnames };
            let common: BTreeMap<String, Hostname> = own
                .iter()
                .filter_map(|host| listener.hostname.intersection(host))
                .map(|host| (host.to_string(), host))
                .collect();
            for (text, host) in common {
                self.used.insert(&policy.key.name);
                by_host.entry(text).or_insert((host, Vec::new())).1.push(policy);
            }
        }
        by_host.into_values().collect()
    }

    /// A TCP listener has one split; without a route it has none, and connections are closed.
    fn tcp(&mut self, listener: &GatewayListener) -> HostMap<Routing> {
        let all = self.snapshot.tcp_routes(&self.gateway.key.namespace);
        let meant = all.filter(|policy| self.is_meant(&policy.target, listener));
        let winner = meant.min_by_key(|policy| precedence(&policy.target, &policy.key));
        let mut hosts = HostMap::default();
        if let Some((policy, to)) = winner.and_then(|policy| Some((policy, policy.to.last()?))) {
            let resolver = self.resolver();
            let split = resolver.split(&to.backends, false, &policy.object(), &mut self.notices);
            hosts.insert(&listener.hostname, Routing::Tcp(Arc::new(split)));
        }
        hosts
    }

    /// A policy for this gateway that no listener takes is a mistake in its hosts or tags.
    fn tell_unused(&mut self) {
        for policy in self.snapshot.gateway_http_routes(&self.gateway.key.namespace) {
            let PolicyTarget::Gateway(name, _) = &policy.target else { continue };
            if *name != self.gateway.key.name || self.used.contains(&policy.key.name) {
                continue;
            }
            let message = format!(
                "no HTTP or HTTPS listener of MeshGateway {name} has these hosts and tags, so the route gets no request; compare spec.hostnames and spec.targetRef.tags with the listeners"
            );
            self.notices.push(Notice::new(policy.object(), "NoListener", message));
        }
    }
}

fn source(policy: &GatewayHttpRoute) -> Source<'_> {
    Source { policy: policy.object(), field: "spec.rules".to_owned(), rules: &policy.rules }
}

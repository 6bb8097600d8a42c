//! The hosts of one HTTP listener, each with the merged rules of its policies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::Notice;
use model::route::{Hostname, HttpRoutes, MeshGatewayListener, RouteGroup, RouteTable, Routing};

use super::super::match_precedence;
use super::super::prepared_rules::{PreparedRules, merge_lists};
use super::super::rule_action::RouteContext;
use super::PolicyRank;
use super::backend_usage::BackendUsage;
use super::shared_matches::SharedMatches;

/// An HTTP listener.
#[derive(Debug)]
pub(super) struct ListenerHosts {
    pub(super) listener: MeshGatewayListener,
    /// Its index among the listeners of its port.
    at: usize,
    hosts: BTreeMap<Hostname, HostRules>,
}

#[derive(Debug, Default)]
struct HostRules {
    /// The attached policies, highest precedence first.
    policies: BTreeMap<PolicyRank, Arc<PreparedRules>>,
    shared: SharedMatches,
    group: Arc<RouteGroup>,
    notices: Vec<Notice>,
}

impl ListenerHosts {
    pub(super) fn new(listener: MeshGatewayListener, at: usize) -> Self {
        Self { listener, at, hosts: BTreeMap::new() }
    }

    pub(super) fn notices(&self) -> impl Iterator<Item = &Notice> {
        self.hosts.values().flat_map(|host| &host.notices)
    }

    /// Adds or replaces a policy.
    pub(super) fn attach(&mut self, host: &Hostname, rank: &PolicyRank, rules: &Arc<PreparedRules>) {
        let host = self.hosts.entry(host.clone()).or_default();
        let before = host.policies.insert(rank.clone(), rules.clone());
        host.shared.replace(before.as_ref().map_or(&[], |before| &before.rules), &rules.rules);
    }

    pub(super) fn detach(&mut self, host: &Hostname, rank: &PolicyRank) {
        if let Some(host) = self.hosts.get_mut(host) {
            let before = host.policies.remove(rank);
            host.shared.replace(before.as_ref().map_or(&[], |before| &before.rules), &[]);
        }
    }

    /// Merges the rules of a host again. Returns whether they changed; a host without policies is removed.
    pub(super) fn plan(
        &mut self,
        name: &Hostname,
        context: &RouteContext<'_>,
        usage: &mut BackendUsage,
    ) -> bool {
        let Some(host) = self.hosts.get_mut(name) else { return false };
        if host.policies.is_empty() {
            usage.replace(host.group.rules(), &[]);
            self.hosts.remove(name);
            return true;
        }
        let lists = host.policies.values().map(|rules| &**rules);
        let (rules, notices) = merge_lists(lists, |rule| host.shared.has(rule), context, host.group.rules());
        host.notices = notices;
        if host.group.has_rules(&rules) {
            return false;
        }
        usage.replace(host.group.rules(), &rules);
        host.group = Arc::new(RouteGroup::after(&host.group, rules, match_precedence::entries));
        true
    }

    /// Writes the routes of changed hosts, and of hosts that they cover, into the table.
    pub(super) fn link(&self, changed: &BTreeSet<Hostname>, table: &mut RouteTable) {
        let port = table.port_mut(self.listener.port);
        let Some(listener) = port.and_then(|port| port.listeners.get_mut(self.at)) else { return };
        for host in changed.iter().filter(|host| !self.hosts.contains_key(host)) {
            listener.hosts.remove(host);
        }
        let mut put = |host: &Hostname, own: &HostRules| {
            let routes = HttpRoutes { groups: self.chain(host, own) };
            listener.hosts.insert(host, Routing::Http(Arc::new(routes)));
        };
        if changed.iter().any(Hostname::is_wide) {
            let is_affected = |host: &Hostname| {
                changed.contains(host) || host.wider().any(|wider| changed.contains(&wider))
            };
            self.hosts.iter().filter(|(host, _)| is_affected(host)).for_each(|(host, own)| put(host, own));
        } else {
            let existing = changed.iter().filter_map(|host| Some((host, self.hosts.get(host)?)));
            existing.for_each(|(host, own)| put(host, own));
        }
    }

    /// A host's own rules, then those of the less specific names that cover it (semantics 1.6).
    fn chain(&self, host: &Hostname, own: &HostRules) -> Box<[Arc<RouteGroup>]> {
        let wider = host.wider().filter_map(|wider| self.hosts.get(&wider));
        std::iter::once(own).chain(wider).map(|host| host.group.clone()).collect()
    }
}

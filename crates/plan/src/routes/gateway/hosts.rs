//! The hosts of one HTTP listener: whose rules each has, as one list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::Notice;
use model::route::{GatewayListener, Hostname, HttpRoutes, RouteGroup, RouteTable, Routing};

use super::super::act::Setting;
use super::super::draft::{Draft, join};
use super::super::order;
use super::Rank;
use super::meeting::Meeting;
use super::uses::Uses;

/// An HTTP listener.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) listener: GatewayListener,
    /// Its place among the listeners of its port.
    at: usize,
    hosts: BTreeMap<Hostname, Host>,
}

#[derive(Debug, Default)]
struct Host {
    /// The policies that have it in common with the listener, the winner first.
    drafts: BTreeMap<Rank, Arc<Draft>>,
    meeting: Meeting,
    group: Arc<RouteGroup>,
    notices: Vec<Notice>,
}

impl Site {
    pub(super) fn new(listener: GatewayListener, at: usize) -> Self {
        Self { listener, at, hosts: BTreeMap::new() }
    }

    pub(super) fn notices(&self) -> impl Iterator<Item = &Notice> {
        self.hosts.values().flat_map(|host| &host.notices)
    }

    /// Puts a policy in, or in the place of what it was.
    pub(super) fn put_in(&mut self, host: &Hostname, rank: &Rank, draft: &Arc<Draft>) {
        let host = self.hosts.entry(host.clone()).or_default();
        let before = host.drafts.insert(rank.clone(), draft.clone());
        host.meeting.shift(before.as_ref().map_or(&[], |before| &before.rules), &draft.rules);
    }

    pub(super) fn take_out(&mut self, host: &Hostname, rank: &Rank) {
        if let Some(host) = self.hosts.get_mut(host) {
            let before = host.drafts.remove(rank);
            host.meeting.shift(before.as_ref().map_or(&[], |before| &before.rules), &[]);
        }
    }

    /// Makes the list of a host anew. Says whether it is another than before; without a policy it is gone.
    pub(super) fn plan(&mut self, name: &Hostname, setting: &Setting<'_>, uses: &mut Uses) -> bool {
        let Some(host) = self.hosts.get_mut(name) else { return false };
        if host.drafts.is_empty() {
            uses.shift(host.group.rules(), &[]);
            self.hosts.remove(name);
            return true;
        }
        let drafts = host.drafts.values().map(|draft| &**draft);
        let (rules, notices) = join(drafts, |rule| host.meeting.has(rule), setting, host.group.rules());
        host.notices = notices;
        if host.group.has_rules(&rules) {
            return false;
        }
        uses.shift(host.group.rules(), &rules);
        host.group = Arc::new(RouteGroup::after(&host.group, rules, order::entries));
        true
    }

    /// Puts the lists of these hosts into the table, and behind those of the hosts that they cover.
    pub(super) fn link(&self, turned: &BTreeSet<Hostname>, table: &mut RouteTable) {
        let port = table.port_mut(self.listener.port);
        let Some(listener) = port.and_then(|port| port.listeners.get_mut(self.at)) else { return };
        for host in turned.iter().filter(|host| !self.hosts.contains_key(host)) {
            listener.hosts.remove(host);
        }
        let mut put = |host: &Hostname, own: &Host| {
            let routes = HttpRoutes { groups: self.chain(host, own) };
            listener.hosts.insert(host, Routing::Http(Arc::new(routes)));
        };
        if turned.iter().any(Hostname::is_wide) {
            let is_touched =
                |host: &Hostname| turned.contains(host) || host.wider().any(|wider| turned.contains(&wider));
            self.hosts.iter().filter(|(host, _)| is_touched(host)).for_each(|(host, own)| put(host, own));
        } else {
            let there = turned.iter().filter_map(|host| Some((host, self.hosts.get(host)?)));
            there.for_each(|(host, own)| put(host, own));
        }
    }

    /// Each host name has its own rules first, then those of the wider names that cover it (semantics 1.6).
    fn chain(&self, host: &Hostname, own: &Host) -> Box<[Arc<RouteGroup>]> {
        let wider = host.wider().filter_map(|wider| self.hosts.get(&wider));
        std::iter::once(own).chain(wider).map(|host| host.group.clone()).collect()
    }
}

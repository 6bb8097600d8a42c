//! The changes from the virtual servers that the kernel holds to those that it should hold, in two parts: what is added
//! before the rules let packets in, and what is removed after they keep them out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use model::Protocol;

use super::kernel::HeldServer;
use super::message::{HeldRealServer, IpvsChange, RealServer, VirtualServerKey};
use super::render::WantedServer;
use super::route::{LocalRoute, RouteChange};

/// How long the connections of a removed real server may go on.
const TERMINATION: Duration = Duration::from_secs(15 * 60);

/// A real server of a virtual server.
pub(super) type RealKey = (VirtualServerKey, SocketAddr);

/// Changes in the order of the fields.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ServerDiff {
    pub(super) additions: Vec<IpvsChange>,
    pub(super) removals: Vec<IpvsChange>,
    /// The end of real servers that were terminating: no repair.
    pub(super) drained: Vec<IpvsChange>,
    /// Real servers that get no new connections and are deleted when their connections have ended.
    pub(super) terminating: BTreeSet<RealKey>,
    /// Virtual servers that no frontend has and that stay until their connections have ended.
    pub(super) lingering: BTreeSet<VirtualServerKey>,
}

/// Adds the changes of one virtual server. `is_over` says of a real server whether it has been terminating for too long.
pub(super) fn diff_server(
    to: &mut ServerDiff,
    key: &VirtualServerKey,
    held: Option<&HeldServer>,
    wanted: Option<&WantedServer>,
    may_linger: bool,
    is_over: &dyn Fn(&RealKey) -> Option<bool>,
) {
    let Some(wanted) = wanted else {
        if let Some(held) = held {
            end_server(to, key, held, may_linger, is_over);
        }
        return;
    };
    match held {
        None => to.additions.push(IpvsChange::NewServer(*key, wanted.server.clone())),
        Some(held) if held.server != wanted.server => {
            to.additions.push(IpvsChange::SetServer(*key, wanted.server.clone()));
        }
        Some(_) => {}
    }
    let nothing = BTreeMap::new();
    let reals = held.map_or(&nothing, |held| &held.reals);
    for real in &wanted.reals {
        match reals.get(&real.address) {
            Some(held) if held.server == *real && held.is_masquerade => {}
            Some(held) if held.is_masquerade => to.additions.push(IpvsChange::SetReal(*key, *real)),
            Some(_) => {
                to.additions.push(IpvsChange::DeleteReal(*key, real.address));
                to.additions.push(IpvsChange::NewReal(*key, *real));
            }
            None => to.additions.push(IpvsChange::NewReal(*key, *real)),
        }
    }
    let is_wanted = |address: &SocketAddr| wanted.reals.iter().any(|real| real.address == *address);
    for held in reals.values().filter(|held| !is_wanted(&held.server.address)) {
        end_real(to, key, held, is_over);
    }
}

/// The rules pass no new connections to it; those of TCP are left to end if its address stays harmless meanwhile.
fn end_server(
    to: &mut ServerDiff,
    key: &VirtualServerKey,
    held: &HeldServer,
    may_linger: bool,
    is_over: &dyn Fn(&RealKey) -> Option<bool>,
) {
    let is_used = |held: &HeldRealServer| {
        let is_over = is_over(&(*key, held.server.address)) == Some(true);
        key.protocol == Protocol::Tcp && held.open > 0 && !is_over
    };
    if may_linger && held.reals.values().any(is_used) {
        held.reals.values().for_each(|real| end_real(to, key, real, is_over));
        to.lingering.insert(*key);
        return;
    }
    let known = held.reals.keys().any(|address| is_over(&(*key, *address)).is_some());
    let ended = if known { &mut to.drained } else { &mut to.removals };
    ended.push(IpvsChange::DeleteServer(*key));
}

/// Connections of TCP are left to end. Those of other protocols have no end that could be seen, and go to another server at
/// once.
fn end_real(
    to: &mut ServerDiff,
    key: &VirtualServerKey,
    held: &HeldRealServer,
    is_over: &dyn Fn(&RealKey) -> Option<bool>,
) {
    let RealServer { address, weight } = held.server;
    let known = is_over(&(*key, address));
    let is_used = key.protocol == Protocol::Tcp && held.open > 0;
    if !is_used || known == Some(true) {
        let ended = if known.is_some() { &mut to.drained } else { &mut to.removals };
        ended.push(IpvsChange::DeleteReal(*key, address));
        return;
    }
    if weight > 0 {
        to.removals.push(IpvsChange::SetReal(*key, RealServer { address, weight: 0 }));
    }
    to.terminating.insert((*key, address));
}

/// Since when real servers get no new connections.
#[derive(Debug, Default)]
pub(super) struct Terminating {
    since: BTreeMap<RealKey, Duration>,
}

impl Terminating {
    /// Whether a real server has been terminating for too long; none if it was not terminating.
    pub(super) fn is_over(&self, now: Duration) -> impl Fn(&RealKey) -> Option<bool> + use<'_> {
        move |real| self.since.get(real).map(|since| now.saturating_sub(*since) >= TERMINATION)
    }

    /// Replaces what is known of the real servers of some virtual servers.
    pub(super) fn remember(
        &mut self,
        diff: &ServerDiff,
        now: Duration,
        is_compared: impl Fn(&VirtualServerKey) -> bool,
    ) {
        self.since.retain(|real, _| !is_compared(&real.0) || diff.terminating.contains(real));
        for real in &diff.terminating {
            self.since.entry(*real).or_insert(now);
        }
    }
}

/// Changes of routes.
#[derive(Debug, Default)]
pub(super) struct RouteDiff {
    pub(super) deleted: Vec<RouteChange>,
    pub(super) replaced: Vec<RouteChange>,
}

impl RouteDiff {
    pub(super) fn of(held: &BTreeSet<LocalRoute>, wanted: &BTreeSet<LocalRoute>) -> Self {
        let is_wanted = |held: &&LocalRoute| wanted.iter().any(|route| route.range == held.range);
        let deleted = held.iter().filter(|held| !is_wanted(held));
        Self {
            deleted: deleted.map(|route| RouteChange::Delete(*route)).collect(),
            replaced: wanted.difference(held).map(|route| RouteChange::Replace(*route)).collect(),
        }
    }

    /// Keeps what virtual servers need whose connections have not ended.
    pub(super) fn without(mut self, lingering: &BTreeSet<VirtualServerKey>) -> Self {
        let is_needed = |change: &RouteChange| {
            let RouteChange::Delete(route) = change else { return false };
            lingering.iter().any(|key| route.range.contains(&key.address))
        };
        self.deleted.retain(|change| !is_needed(change));
        self
    }
}

//! [`NodeBackend`] over IPVS, routes and the nftables backend.
//!
//! There is no transaction over the three, so the order of a change matters: a virtual server is complete before the rules
//! pass packets to it, and they pass none before it goes. Addresses become local last and stop being so first.
//!
//! ```text
//! routes deleted -> servers added, weights set -> nftables transaction -> routes added -> servers removed
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use model::forward::{FirstPacket, Frontend, NodeRules};
use model::{ForwardingTable, Name, ServiceKey};
use nix::errno::Errno;

use super::diff::{RealKey, ServerDiff, diff_server};
use super::kernel::{
    HeldServer, IpvsKernel, RefusedChange, list_reals, read_routes, read_servers, send_changes,
    send_route_changes,
};
use super::message::{IpvsChange, VirtualServer, VirtualServerKey};
use super::ownership::RecordedFrontends;
use super::render::{self, WantedServer};
use super::route::{LocalRoute, RouteChange};
use super::scheduler::IpvsScheduler;
use super::trace;
use crate::backend::{
    BackendError, CleanupItem, CleanupScope, FrontendChange, NodeBackend, PacketTrace, Reconciled,
};
use crate::nfnetlink::NetlinkError;
use crate::nftables::NftablesBackend;

/// How long the connections of a removed real server may go on.
const TERMINATION: Duration = Duration::from_secs(15 * 60);

/// The time since any fixed moment.
pub type BackendTime = Box<dyn Fn() -> Duration + Send>;

/// Settings of mode ipvs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpvsSettings {
    pub scheduler: IpvsScheduler,
    /// Virtual servers on these addresses are never deleted.
    pub exclude_cidrs: Vec<IpNet>,
    /// The name of the node, which the order of real servers depends on.
    pub node: Name,
}

/// Our virtual servers, routes and tables in a kernel.
pub struct IpvsBackend {
    nft: NftablesBackend,
    kernel: Box<dyn IpvsKernel + Send>,
    settings: IpvsSettings,
    time: BackendTime,
    /// None until everything is programmed, and after a failure: everything is then compared.
    programmed: Option<Programmed>,
    /// Virtual servers that this process added or found to be ours.
    ours: BTreeSet<VirtualServerKey>,
    /// Since when real servers get no new connections.
    terminating: BTreeMap<RealKey, Duration>,
}

/// What the kernel was told.
struct Programmed {
    nft_table: ForwardingTable,
    servers: BTreeMap<VirtualServerKey, VirtualServer>,
    /// Ranges that are local, with the number of frontends that need each.
    ranges: BTreeMap<IpNet, usize>,
}

impl IpvsBackend {
    pub fn new(
        nft: NftablesBackend,
        kernel: Box<dyn IpvsKernel + Send>,
        settings: IpvsSettings,
        time: BackendTime,
    ) -> Self {
        let (programmed, ours, terminating) = (None, BTreeSet::new(), BTreeMap::new());
        Self { nft, kernel, settings, time, programmed, ours, terminating }
    }

    /// Whether the kernel holds virtual servers or routes that mode ipvs left.
    pub fn has_leftovers(&mut self) -> Result<bool, BackendError> {
        let has_routes = !read_routes(&mut *self.kernel).map_err(read_error)?.is_empty();
        Ok(has_routes || !self.recorded_servers()?.is_empty())
    }

    /// The nftables backend alone.
    pub fn into_nftables(self) -> NftablesBackend {
        self.nft
    }

    /// Compares everything with the kernel.
    fn compare(&mut self, table: &ForwardingTable) -> Result<Reconciled, BackendError> {
        let node = &table.node;
        let nft_table = render::nft_table(table);
        let programmed = self.programmed.take();
        let recorded = match &programmed {
            Some(_) => RecordedFrontends::default(),
            None => RecordedFrontends::read(&self.nft.read_tables()?.0),
        };
        // The nftables backend knows nothing of a table that it was not told.
        let is_loaded = programmed.is_some_and(|programmed| programmed.nft_table == nft_table);
        let wanted = render::servers(table, &self.settings);
        let is_ours = |key: &VirtualServerKey| {
            let in_cidr = node.service_cidrs.iter().any(|cidr| cidr.contains(&key.address));
            wanted.contains_key(key)
                || self.ours.contains(key)
                || in_cidr
                || recorded.has(key, &node.addresses)
        };
        let held = read_servers(&mut *self.kernel, is_ours).map_err(read_error)?;
        let now = (self.time)();
        let diff = self.diff_all(&held, &wanted, node, now);
        let ranges = ranges(table.services().flat_map(|(_, frontends)| frontends), table);
        let wanted_routes = ranges.keys().map(|range| render::route(*range, node)).collect();
        let held_routes = read_routes(&mut *self.kernel).map_err(read_error)?;
        let routes = RouteDiff::of(&held_routes, &wanted_routes).without(&diff.lingering);
        let services = services_of(&wanted);
        let (reconciled, sent) = self.apply(&diff, &routes, &services, |nft| match is_loaded {
            true => nft.reconcile(&nft_table),
            false => nft.load(&nft_table),
        })?;
        self.remember_terminating(&diff, now, |_| true);
        self.ours = wanted.keys().chain(&diff.lingering).copied().collect();
        let servers = wanted.into_iter().map(|(key, wanted)| (key, wanted.server)).collect();
        self.programmed = Some(Programmed { nft_table, servers, ranges });
        Ok(Reconciled { transactions: reconciled.transactions + sent, ..reconciled })
    }

    /// The difference of all virtual servers; those of excludeCIDRs are never deleted.
    fn diff_all(
        &self,
        held: &BTreeMap<VirtualServerKey, HeldServer>,
        wanted: &BTreeMap<VirtualServerKey, WantedServer>,
        node: &NodeRules,
        now: Duration,
    ) -> ServerDiff {
        let is_over = over(&self.terminating, now);
        let mut diff = ServerDiff::default();
        let keys: BTreeSet<&VirtualServerKey> = held.keys().chain(wanted.keys()).collect();
        for key in keys {
            let is_excluded = self.settings.exclude_cidrs.iter().any(|cidr| cidr.contains(&key.address));
            if wanted.contains_key(key) || !is_excluded {
                let linger = may_linger(key, node);
                diff_server(&mut diff, key, held.get(key), wanted.get(key), linger, &is_over);
            }
        }
        diff
    }

    /// Applies the changes around those of the nftables backend. Returns its result and the number of sends.
    fn apply<T>(
        &mut self,
        diff: &ServerDiff,
        routes: &RouteDiff,
        services: &BTreeMap<VirtualServerKey, ServiceKey>,
        nft: impl FnOnce(&mut NftablesBackend) -> Result<T, BackendError>,
    ) -> Result<(T, usize), BackendError> {
        // Like what drained, they go some time after their frontends: no repair.
        self.send_routes(&routes.deleted)?;
        let mut sent = self.send(&diff.additions, services)?;
        let result = nft(&mut self.nft)?;
        sent += self.send_routes(&routes.replaced)?;
        sent += self.send(&diff.removals, services)?;
        self.send(&diff.drained, services)?;
        Ok((result, sent))
    }

    /// Returns 1 if there was something to send.
    fn send(
        &mut self,
        changes: &[IpvsChange],
        services: &BTreeMap<VirtualServerKey, ServiceKey>,
    ) -> Result<usize, BackendError> {
        if changes.is_empty() {
            return Ok(0);
        }
        let refused = send_changes(&mut *self.kernel, changes)
            .map_err(|error| BackendError::failed(format!("cannot change IPVS: {error}")))?;
        // What is gone already need not be deleted.
        let is_gone = |refused: &RefusedChange<IpvsChange>| {
            let deletes = matches!(refused.change, IpvsChange::DeleteServer(_) | IpvsChange::DeleteReal(..));
            deletes && matches!(refused.errno, Errno::ESRCH | Errno::ENOENT)
        };
        let refused: Vec<_> = refused.into_iter().filter(|refused| !is_gone(refused)).collect();
        let Some(first) = refused.first() else { return Ok(1) };
        let message =
            format!("cannot {}: {}{}", first.change, first.errno, advice(&first.change, first.errno));
        let keys = refused.iter().filter_map(|refused| refused.change.key());
        let named: BTreeSet<ServiceKey> = keys.filter_map(|key| services.get(key)).cloned().collect();
        // Another program changed the same virtual server: a comparison repairs it.
        let is_stale = matches!(first.errno, Errno::EEXIST | Errno::ESRCH)
            || (first.errno == Errno::ENOENT && matches!(first.change, IpvsChange::SetReal(..)));
        Err(match is_stale {
            true => BackendError::failed(message),
            false => BackendError::refused_services(message, named),
        })
    }

    fn send_routes(&mut self, changes: &[RouteChange]) -> Result<usize, BackendError> {
        if changes.is_empty() {
            return Ok(0);
        }
        let failed = |error: NetlinkError| BackendError::failed(format!("cannot change routes: {error}"));
        let refused = send_route_changes(&mut *self.kernel, changes).map_err(failed)?;
        let mut again = Vec::new();
        for RefusedChange { change, errno } in refused {
            match change {
                RouteChange::Delete(_) if errno == Errno::ESRCH => {}
                // The address of the node is not on an interface (yet).
                RouteChange::Replace(LocalRoute { range, source: Some(_) }) if errno == Errno::EINVAL => {
                    again.push(RouteChange::Replace(LocalRoute { range, source: None }));
                }
                RouteChange::Replace(LocalRoute { range, .. })
                | RouteChange::Delete(LocalRoute { range, .. }) => {
                    return Err(BackendError::failed(format!(
                        "cannot change the local route {range}: {errno}"
                    )));
                }
            }
        }
        if !again.is_empty() {
            self.send_routes(&again)?;
        }
        Ok(1)
    }

    /// Replaces what is known of the real servers of some virtual servers.
    fn remember_terminating(
        &mut self,
        diff: &ServerDiff,
        now: Duration,
        is_compared: impl Fn(&VirtualServerKey) -> bool,
    ) {
        self.terminating.retain(|real, _| !is_compared(&real.0) || diff.terminating.contains(real));
        for real in &diff.terminating {
            self.terminating.entry(*real).or_insert(now);
        }
    }

    fn change_services(
        &mut self,
        table: &ForwardingTable,
        services: &[FrontendChange<'_>],
    ) -> Result<(), BackendError> {
        let node = &table.node;
        let programmed = self.programmed.take_if(|programmed| programmed.nft_table.node == *node);
        let Some(mut programmed) = programmed else {
            return self.compare(table).map(drop);
        };
        let keys = services.iter().flat_map(|(old, new)| old.iter().chain(*new)).map(|f| &f.port.service);
        let keys: BTreeSet<&ServiceKey> = keys.collect();
        let mut nft_changes: Vec<(Vec<Frontend>, Vec<Frontend>)> = Vec::new();
        for key in &keys {
            let new = render::nft_frontends(table.frontends(key), node);
            nft_changes.push((programmed.nft_table.frontends(key).to_vec(), new.clone()));
            programmed.nft_table.replace(key, new);
        }
        let (diff, wanted, now) = self.diff_services(table, services, &keys, &programmed)?;
        let routes = change_ranges(&mut programmed.ranges, services, table).without(&diff.lingering);
        let named = keys.iter().flat_map(|key| table.frontends(key));
        let named = named.flat_map(|frontend| render::servers_of(frontend, node, &self.settings));
        let named = named.map(|(key, wanted)| (key, wanted.service)).collect();
        let pairs: Vec<FrontendChange<'_>> =
            nft_changes.iter().map(|(old, new)| (&old[..], &new[..])).collect();
        self.apply(&diff, &routes, &named, |nft| nft.change(&programmed.nft_table, &pairs))?;
        self.remember_terminating(&diff, now, |key| wanted.contains_key(key));
        for (key, wanted) in wanted {
            match wanted {
                Some(wanted) => {
                    programmed.servers.insert(key, wanted.server);
                    self.ours.insert(key);
                }
                None => {
                    programmed.servers.remove(&key);
                    if !diff.lingering.contains(&key) {
                        self.ours.remove(&key);
                    }
                }
            }
        }
        self.programmed = Some(programmed);
        Ok(())
    }

    /// The difference of the virtual servers of some Services, with those of them that are wanted. Their real servers are
    /// read from the kernel: it knows which have connections.
    #[allow(clippy::type_complexity, reason = "three results of one pass")]
    fn diff_services(
        &mut self,
        table: &ForwardingTable,
        services: &[FrontendChange<'_>],
        keys: &BTreeSet<&ServiceKey>,
        programmed: &Programmed,
    ) -> Result<(ServerDiff, BTreeMap<VirtualServerKey, Option<WantedServer>>, Duration), BackendError> {
        let now = (self.time)();
        let mut wanted: BTreeMap<VirtualServerKey, Option<WantedServer>> = BTreeMap::new();
        for frontend in services.iter().flat_map(|(old, _)| *old) {
            let of_old = render::servers_of(frontend, &table.node, &self.settings);
            wanted.extend(of_old.into_iter().map(|(key, _)| (key, None)));
        }
        for frontend in keys.iter().flat_map(|key| table.frontends(key)) {
            let of_new = render::servers_of(frontend, &table.node, &self.settings);
            wanted.extend(of_new.into_iter().map(|(key, wanted)| (key, Some(wanted))));
        }
        let mut diff = ServerDiff::default();
        for (key, wanted) in &wanted {
            let held = match programmed.servers.get(key) {
                None => None,
                Some(server) => {
                    let reals = list_reals(&mut *self.kernel, key).map_err(read_error)?;
                    Some(HeldServer { server: server.clone(), reals })
                }
            };
            let is_over = over(&self.terminating, now);
            let linger = may_linger(key, &table.node);
            diff_server(&mut diff, key, held.as_ref(), wanted.as_ref(), linger, &is_over);
        }
        Ok((diff, wanted, now))
    }

    /// The virtual servers that the record of our table names, and those of its ServiceCIDRs whose last connections have
    /// not ended.
    fn recorded_servers(&mut self) -> Result<Vec<VirtualServerKey>, BackendError> {
        let recorded = RecordedFrontends::read(&self.nft.read_tables()?.0);
        let addresses = self.kernel.local_addresses();
        let is_ours = |key: &VirtualServerKey| recorded.has(key, &addresses) || recorded.has_range_of(key);
        let mut held = read_servers(&mut *self.kernel, is_ours).map_err(read_error)?;
        held.retain(|key, held| recorded.has(key, &addresses) || is_terminating(held));
        Ok(held.into_keys().collect())
    }
}

/// Only in a ServiceCIDR, where a virtual server without a frontend is still known to be ours. And other ports of a load
/// balancer IP would reach servers of the node while it stays local.
fn may_linger(key: &VirtualServerKey, node: &NodeRules) -> bool {
    node.service_cidrs.iter().any(|cidr| cidr.contains(&key.address))
}

/// Whether it has real servers, and none of them gets new connections.
fn is_terminating(held: &HeldServer) -> bool {
    !held.reals.is_empty() && held.reals.values().all(|real| real.server.weight == 0)
}

/// Whether a real server has been terminating for too long; none if it was not terminating.
fn over(
    terminating: &BTreeMap<RealKey, Duration>,
    now: Duration,
) -> impl Fn(&RealKey) -> Option<bool> + use<'_> {
    move |real| terminating.get(real).map(|since| now.saturating_sub(*since) >= TERMINATION)
}

fn services_of(wanted: &BTreeMap<VirtualServerKey, WantedServer>) -> BTreeMap<VirtualServerKey, ServiceKey> {
    wanted.iter().map(|(key, wanted)| (*key, wanted.service.clone())).collect()
}

fn advice(change: &IpvsChange, errno: Errno) -> String {
    match (change, errno) {
        (IpvsChange::NewServer(_, server) | IpvsChange::SetServer(_, server), Errno::ENOENT) => {
            format!("; load the kernel module ip_vs_{}", server.scheduler)
        }
        (_, Errno::EPERM) => "; run as root or grant NET_ADMIN".to_owned(),
        _ => String::new(),
    }
}

fn read_error(error: NetlinkError) -> BackendError {
    BackendError::failed(format!("cannot read virtual servers and routes from the kernel: {error}"))
}

/// The local ranges of frontends, with the number of frontends that need each.
fn ranges<'f>(
    frontends: impl Iterator<Item = &'f Frontend>,
    table: &ForwardingTable,
) -> BTreeMap<IpNet, usize> {
    let mut ranges = BTreeMap::new();
    for range in frontends.filter_map(|frontend| render::local_range(frontend, &table.node)) {
        *ranges.entry(range).or_default() += 1;
    }
    ranges
}

fn change_ranges(
    ranges: &mut BTreeMap<IpNet, usize>,
    services: &[FrontendChange<'_>],
    table: &ForwardingTable,
) -> RouteDiff {
    let before: BTreeSet<IpNet> = ranges.keys().copied().collect();
    for (old, new) in services {
        for range in new.iter().filter_map(|frontend| render::local_range(frontend, &table.node)) {
            *ranges.entry(range).or_default() += 1;
        }
        for range in old.iter().filter_map(|frontend| render::local_range(frontend, &table.node)) {
            if let Some(count) = ranges.get_mut(&range) {
                *count = count.saturating_sub(1);
            }
        }
    }
    ranges.retain(|_, count| *count > 0);
    let route = |range: &IpNet| render::route(*range, &table.node);
    let gone = before.iter().filter(|range| !ranges.contains_key(range));
    let new = ranges.keys().filter(|range| !before.contains(range));
    RouteDiff {
        deleted: gone.map(|range| RouteChange::Delete(route(range))).collect(),
        replaced: new.map(|range| RouteChange::Replace(route(range))).collect(),
    }
}

/// Changes of routes.
#[derive(Debug, Default)]
struct RouteDiff {
    deleted: Vec<RouteChange>,
    replaced: Vec<RouteChange>,
}

impl RouteDiff {
    fn of(held: &BTreeSet<LocalRoute>, wanted: &BTreeSet<LocalRoute>) -> Self {
        let is_wanted = |held: &&LocalRoute| wanted.iter().any(|route| route.range == held.range);
        let deleted = held.iter().filter(|held| !is_wanted(held));
        Self {
            deleted: deleted.map(|route| RouteChange::Delete(*route)).collect(),
            replaced: wanted.difference(held).map(|route| RouteChange::Replace(*route)).collect(),
        }
    }
}

impl RouteDiff {
    /// Keeps what virtual servers need whose connections have not ended.
    fn without(mut self, lingering: &BTreeSet<VirtualServerKey>) -> Self {
        let is_needed = |change: &RouteChange| {
            let RouteChange::Delete(route) = change else { return false };
            lingering.iter().any(|key| route.range.contains(&key.address))
        };
        self.deleted.retain(|change| !is_needed(change));
        self
    }
}

impl NodeBackend for IpvsBackend {
    fn load(&mut self, table: &ForwardingTable) -> Result<Reconciled, BackendError> {
        self.programmed = None;
        self.compare(table)
    }

    fn change(
        &mut self,
        table: &ForwardingTable,
        services: &[FrontendChange<'_>],
    ) -> Result<(), BackendError> {
        match self.change_services(table, services) {
            // Another program changed our virtual servers.
            Err(error) if !error.is_refusal() => self.compare(table).map(drop),
            result => result,
        }
    }

    /// Never free: IPVS does not tell whether others changed it.
    fn reconcile(&mut self, table: &ForwardingTable) -> Result<Reconciled, BackendError> {
        self.compare(table)
    }

    fn maintain(&mut self) -> Result<bool, BackendError> {
        self.nft.maintain()
    }

    fn has_services(&mut self) -> Result<bool, BackendError> {
        self.nft.has_services()
    }

    fn trace(
        &mut self,
        packets: &[FirstPacket],
        addresses: &[IpAddr],
    ) -> Result<Vec<PacketTrace>, BackendError> {
        let rules = self.nft.read_held()?;
        if rules.tables.is_empty() {
            return Err(BackendError::failed(
                "no nftables table `zoneward` in this network namespace: the node proxy has not run here",
            ));
        }
        let is_met = |key: &VirtualServerKey| {
            let is_met_by = |packet: &FirstPacket| {
                key.address == packet.dst.ip()
                    && key.port == packet.dst.port()
                    && key.protocol == packet.protocol
            };
            packets.iter().any(is_met_by)
        };
        let servers = read_servers(&mut *self.kernel, is_met).map_err(read_error)?;
        packets.iter().map(|packet| trace::trace(&rules, &servers, packet, addresses)).collect()
    }

    /// The table goes at once. Of the routes, addresses stay whose virtual servers have open connections: these routes also
    /// tell a later process which virtual servers are ours.
    fn retire(&mut self) -> Result<Option<Vec<CleanupItem>>, BackendError> {
        let recorded = self.recorded_servers()?;
        let routes = read_routes(&mut *self.kernel).map_err(read_error)?;
        let route_of = |ip: &IpAddr| routes.iter().find(|route| route.range.contains(ip)).copied();
        let is_ours = |key: &VirtualServerKey| {
            self.ours.contains(key) || recorded.contains(key) || route_of(&key.address).is_some()
        };
        let held = read_servers(&mut *self.kernel, is_ours).map_err(read_error)?;
        let (now, mut diff) = ((self.time)(), ServerDiff::default());
        for (key, server) in &held {
            diff_server(&mut diff, key, Some(server), None, true, &over(&self.terminating, now));
        }
        let removed = self.nft.cleanup(CleanupScope::NodeProxy, false)?;
        self.programmed = None;
        self.send(&diff.removals, &BTreeMap::new())?;
        self.send(&diff.drained, &BTreeMap::new())?;
        let needed = diff.lingering.iter().filter_map(|key| {
            route_of(&key.address).map(|route| LocalRoute { range: key.address.into(), ..route })
        });
        let changes = RouteDiff::of(&routes, &needed.collect());
        self.send_routes(&changes.replaced)?;
        self.send_routes(&changes.deleted)?;
        self.remember_terminating(&diff, now, |_| true);
        self.ours = diff.lingering;
        Ok(self.ours.is_empty().then_some(removed))
    }

    fn cleanup(&mut self, scope: CleanupScope, dry_run: bool) -> Result<Vec<CleanupItem>, BackendError> {
        let mut items = Vec::new();
        for key in self.recorded_servers()? {
            let deleted =
                if dry_run { Ok(0) } else { self.send(&[IpvsChange::DeleteServer(key)], &BTreeMap::new()) };
            items.push(CleanupItem { kind: "virtual server", name: key.to_string(), error: deleted.err() });
        }
        for route in read_routes(&mut *self.kernel).map_err(read_error)? {
            let deleted = if dry_run { Ok(0) } else { self.send_routes(&[RouteChange::Delete(route)]) };
            items.push(CleanupItem {
                kind: "local route",
                name: route.range.to_string(),
                error: deleted.err(),
            });
        }
        // Last: the table says which virtual servers are ours.
        items.extend(self.nft.cleanup(scope, dry_run)?);
        self.programmed = None;
        Ok(items)
    }
}

//! [`NodeBackend`] over IPVS, routes and the nftables backend.
//!
//! There is no transaction over the three, so the order of a change matters: a virtual server is complete before the rules
//! pass packets to it, and they pass none before it goes. Addresses become local last and stop being so first. Only from
//! mode nftables they are local before its rules stop to translate them.
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

use super::apply::{read_error, send, send_routes};
use super::diff::{RouteDiff, ServerDiff, Terminating, diff_server};
use super::interface::HeldInterface;
use super::kernel::{HeldServer, IpvsKernel, list_reals, read_routes, read_servers};
use super::message::{IpvsChange, VirtualServer, VirtualServerKey};
use super::render::{self, WantedServer};
use super::route::RouteChange;
use super::scheduler::IpvsScheduler;
use super::{guard, interface, trace};
use crate::backend::{
    BackendError, CleanupItem, CleanupScope, FrontendChange, NodeBackend, PacketTrace, Reconciled,
};
use crate::nftables::NftablesBackend;

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
    /// Addresses of Services are on the interface kube-ipvs0, too.
    pub has_dummy_interface: bool,
}

/// Our virtual servers, routes and tables in a kernel.
pub struct IpvsBackend {
    nft: NftablesBackend,
    kernel: Box<dyn IpvsKernel + Send>,
    settings: IpvsSettings,
    time: BackendTime,
    /// None until everything is programmed, and after a failure: everything is then compared.
    programmed: Option<Programmed>,
    terminating: Terminating,
    /// The dummy interface as it was read or changed last.
    interface: Option<HeldInterface>,
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
        Self {
            nft,
            kernel,
            settings,
            time,
            programmed: None,
            terminating: Terminating::default(),
            interface: None,
        }
    }

    /// Compares everything with the kernel.
    fn compare(&mut self, table: &ForwardingTable) -> Result<Reconciled, BackendError> {
        let node = &table.node;
        let nft_table = render::nft_table(table);
        let programmed = self.programmed.take();
        // The nftables backend knows nothing of a table that it was not told.
        let is_loaded = programmed.is_some_and(|programmed| programmed.nft_table == nft_table);
        let wanted = render::servers(table, &self.settings);
        // What is in a ServiceCIDR and belongs to no Service is stale, such as what kube-proxy left.
        let is_ours = |key: &VirtualServerKey, server: &VirtualServer| {
            server.is_ours() || wanted.contains_key(key) || is_in_service_cidr(key, node)
        };
        let held = read_servers(&mut *self.kernel, is_ours).map_err(read_error)?;
        let now = (self.time)();
        let diff = self.diff_all(&held, &wanted, node, now);
        let ranges = ranges(table.services().flat_map(|(_, frontends)| frontends), table, &self.settings);
        let wanted_routes = ranges.keys().map(|range| render::route(*range, node)).collect();
        let held_routes = read_routes(&mut *self.kernel).map_err(read_error)?;
        let routes = RouteDiff::of(&held_routes, &wanted_routes).without(&diff.lingering);
        let services = services_of(&wanted);
        if !is_loaded {
            self.prepare_rules(table, &routes)?;
        }
        if self.settings.has_dummy_interface {
            self.interface = interface::read(&mut *self.kernel)?;
        } else if !is_loaded {
            interface::delete_ours(&mut *self.kernel, false)?;
        }
        let (reconciled, sent) = self.apply(&diff, &routes, &services, &ranges, |nft| match is_loaded {
            true => nft.reconcile(&nft_table),
            false => nft.load(&nft_table),
        })?;
        self.terminating.remember(&diff, now, |_| true);
        let servers = wanted.into_iter().map(|(key, wanted)| (key, wanted.server)).collect();
        self.programmed = Some(Programmed { nft_table, servers, ranges });
        Ok(Reconciled { transactions: reconciled.transactions + sent, ..reconciled })
    }

    /// From mode nftables: its rules translate an address until it is local, and refuse other ports of it before. What
    /// refused them for connections that mode ipvs had left would refuse new ones, too.
    fn prepare_rules(&mut self, table: &ForwardingTable, routes: &RouteDiff) -> Result<(), BackendError> {
        if self.nft.holds_mode_nftables()? {
            self.nft.load(table)?;
            send_routes(&mut *self.kernel, &routes.replaced)?;
        }
        self.nft.delete_tables(&guard::tables())
    }

    /// The difference of all virtual servers; those of excludeCIDRs are never deleted.
    fn diff_all(
        &self,
        held: &BTreeMap<VirtualServerKey, HeldServer>,
        wanted: &BTreeMap<VirtualServerKey, WantedServer>,
        node: &NodeRules,
        now: Duration,
    ) -> ServerDiff {
        let is_over = self.terminating.is_over(now);
        let mut diff = ServerDiff::default();
        let keys: BTreeSet<&VirtualServerKey> = held.keys().chain(wanted.keys()).collect();
        for key in keys {
            let is_excluded = self.settings.exclude_cidrs.iter().any(|cidr| cidr.contains(&key.address));
            if wanted.contains_key(key) || !is_excluded {
                let linger = is_in_service_cidr(key, node);
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
        ranges: &BTreeMap<IpNet, usize>,
        nft: impl FnOnce(&mut NftablesBackend) -> Result<T, BackendError>,
    ) -> Result<(T, usize), BackendError> {
        let on_interface = self.settings.has_dummy_interface.then(|| single_addresses(ranges));
        if let Some(addresses) = &on_interface {
            interface::delete_addresses(&mut *self.kernel, self.interface.as_ref(), addresses)?;
        }
        // Like what drained, they go some time after their frontends: no repair.
        send_routes(&mut *self.kernel, &routes.deleted)?;
        let mut sent = send(&mut *self.kernel, &diff.additions, services)?;
        let result = nft(&mut self.nft)?;
        sent += send_routes(&mut *self.kernel, &routes.replaced)?;
        // After their routes: the first route to an address counts, and that of the interface has it as the source.
        if let Some(addresses) = on_interface {
            sent += interface::add_addresses(&mut *self.kernel, &mut self.interface, &addresses)?;
            if let Some(interface) = &mut self.interface {
                (interface.addresses, interface.is_ours) = (addresses, true);
            }
        }
        sent += send(&mut *self.kernel, &diff.removals, services)?;
        send(&mut *self.kernel, &diff.drained, services)?;
        Ok((result, sent))
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
        let routes =
            change_ranges(&mut programmed.ranges, services, table, &self.settings).without(&diff.lingering);
        let named = keys.iter().flat_map(|key| table.frontends(key));
        let named = named.flat_map(|frontend| render::servers_of(frontend, node, &self.settings));
        let named = named.map(|(key, wanted)| (key, wanted.service)).collect();
        let pairs: Vec<FrontendChange<'_>> =
            nft_changes.iter().map(|(old, new)| (&old[..], &new[..])).collect();
        let change = |nft: &mut NftablesBackend| nft.change(&programmed.nft_table, &pairs);
        self.apply(&diff, &routes, &named, &programmed.ranges, change)?;
        self.terminating.remember(&diff, now, |key| wanted.contains_key(key));
        for (key, wanted) in wanted {
            match wanted {
                Some(wanted) => drop(programmed.servers.insert(key, wanted.server)),
                None => drop(programmed.servers.remove(&key)),
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
            let is_over = self.terminating.is_over(now);
            let linger = is_in_service_cidr(key, &table.node);
            diff_server(&mut diff, key, held.as_ref(), wanted.as_ref(), linger, &is_over);
        }
        Ok((diff, wanted, now))
    }
}

/// Where a virtual server without a frontend may stay until its connections have ended: other ports of a load balancer IP
/// would reach servers of the node while it stays local.
fn is_in_service_cidr(key: &VirtualServerKey, node: &NodeRules) -> bool {
    node.service_cidrs.iter().any(|cidr| cidr.contains(&key.address))
}

fn services_of(wanted: &BTreeMap<VirtualServerKey, WantedServer>) -> BTreeMap<VirtualServerKey, ServiceKey> {
    wanted.iter().map(|(key, wanted)| (*key, wanted.service.clone())).collect()
}

/// The local ranges of frontends, with the number of frontends that need each.
fn ranges<'f>(
    frontends: impl Iterator<Item = &'f Frontend>,
    table: &ForwardingTable,
    settings: &IpvsSettings,
) -> BTreeMap<IpNet, usize> {
    let mut ranges = BTreeMap::new();
    for range in frontends.flat_map(|frontend| render::local_ranges(frontend, &table.node, settings)) {
        *ranges.entry(range).or_default() += 1;
    }
    ranges
}

/// The ranges of one address.
fn single_addresses(ranges: &BTreeMap<IpNet, usize>) -> BTreeSet<IpAddr> {
    let single = ranges.keys().filter(|range| range.prefix_len() == range.max_prefix_len());
    single.map(IpNet::addr).collect()
}

fn change_ranges(
    ranges: &mut BTreeMap<IpNet, usize>,
    services: &[FrontendChange<'_>],
    table: &ForwardingTable,
    settings: &IpvsSettings,
) -> RouteDiff {
    let of = |frontend: &Frontend| render::local_ranges(frontend, &table.node, settings);
    let before: BTreeSet<IpNet> = ranges.keys().copied().collect();
    for (old, new) in services {
        for range in new.iter().flat_map(of) {
            *ranges.entry(range).or_default() += 1;
        }
        for range in old.iter().flat_map(of) {
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
        let is_met = |key: &VirtualServerKey, _: &VirtualServer| {
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

    fn cleanup(&mut self, scope: CleanupScope, dry_run: bool) -> Result<Vec<CleanupItem>, BackendError> {
        self.programmed = None;
        let mut items = Vec::new();
        let ours = |_: &VirtualServerKey, server: &VirtualServer| server.is_ours();
        for key in read_servers(&mut *self.kernel, ours).map_err(read_error)?.into_keys() {
            let delete = [IpvsChange::DeleteServer(key)];
            let deleted = if dry_run { Ok(0) } else { send(&mut *self.kernel, &delete, &BTreeMap::new()) };
            items.push(CleanupItem { kind: "virtual server", name: key.to_string(), error: deleted.err() });
        }
        for route in read_routes(&mut *self.kernel).map_err(read_error)? {
            let delete = [RouteChange::Delete(route)];
            let deleted = if dry_run { Ok(0) } else { send_routes(&mut *self.kernel, &delete) };
            let name = route.range.to_string();
            items.push(CleanupItem { kind: "local route", name, error: deleted.err() });
        }
        if interface::delete_ours(&mut *self.kernel, dry_run)? {
            let name = interface::DUMMY_INTERFACE.to_owned();
            items.push(CleanupItem { kind: "interface", name, error: None });
        }
        items.extend(self.nft.cleanup(scope, dry_run)?);
        Ok(items)
    }
}

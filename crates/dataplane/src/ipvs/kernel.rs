//! IPVS and routes over netlink: the trait that the real kernel and the fake one implement.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use model::{Family, Protocol};
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};
use nix::errno::Errno;

use super::message::{
    self, HeldRealServer, IpvsChange, IpvsTimeouts, VirtualServer, VirtualServerKey, decode_real,
    decode_server,
};
use super::route::{self, LocalRoute, RouteChange};
use super::scheduler::IpvsScheduler;
use super::{abi, interface};
use crate::iptables::ruleset::{IpvsDestination, IpvsServers, IpvsVirtualServer};
use crate::nfnetlink::abi::NLM_F_REQUEST;
use crate::nfnetlink::wire::{Attrs, MessageHeader, MessageWriter, messages, whole};
use crate::nfnetlink::{DumpEnd, NetlinkError, NetlinkSocket};
use crate::nftables::apply::ConnectionCount;
use crate::nftables::render::protocol_number;

/// Messages per send: the acknowledgements of all have to fit into the receive buffer.
const MESSAGES_PER_SEND: usize = 500;
/// Attempts at a dump that changes interrupt.
const ATTEMPTS: u32 = 5;

/// Takes messages and dumps what they left.
pub trait IpvsKernel {
    /// The number of IPVS among the families of generic netlink.
    fn family(&self) -> u16;

    /// Sends messages, which are applied one by one; returns the sequence numbers of the refused ones.
    fn send(&mut self, batch: &[u8]) -> Result<Vec<(u32, Errno)>, NetlinkError>;

    /// The messages that answer a request.
    fn dump(&mut self, request: &IpvsDump) -> Result<Vec<u8>, NetlinkError>;

    /// Sends changes of routes and interfaces, which are applied one by one; returns the sequence numbers of the refused ones.
    fn send_routes(&mut self, batch: &[u8]) -> Result<Vec<(u32, Errno)>, NetlinkError>;
}

/// What to dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpvsDump {
    VirtualServers,
    RealServers(VirtualServerKey),
    Routes(Family),
    /// The dummy interface alone.
    Interface,
    /// The addresses of all interfaces.
    Addresses(Family),
}

/// A kernel with several owners, such as a backend and a test that changes virtual servers behind its back.
impl<K: IpvsKernel> IpvsKernel for Arc<Mutex<K>> {
    fn family(&self) -> u16 {
        self.lock().unwrap_or_else(PoisonError::into_inner).family()
    }

    fn send(&mut self, batch: &[u8]) -> Result<Vec<(u32, Errno)>, NetlinkError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).send(batch)
    }

    fn dump(&mut self, request: &IpvsDump) -> Result<Vec<u8>, NetlinkError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).dump(request)
    }

    fn send_routes(&mut self, batch: &[u8]) -> Result<Vec<(u32, Errno)>, NetlinkError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).send_routes(batch)
    }
}

/// Why IPVS cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IpvsUnavailable {
    /// Kernel modules that are not loaded, and that the kernel could not load itself.
    MissingModules(Vec<String>),
    Netlink(NetlinkError),
}

impl fmt::Display for IpvsUnavailable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingModules(modules) => {
                let list = modules.join(", ");
                write!(
                    out,
                    "kernel modules are missing for mode ipvs: {list}; load them on the host (modprobe {}), or use mode nftables",
                    modules.join(" ")
                )
            }
            Self::Netlink(error) => write!(out, "cannot use IPVS: {error}; CAP_NET_ADMIN is required"),
        }
    }
}

impl std::error::Error for IpvsUnavailable {}

/// The sockets of the network namespace that they were opened in.
pub struct IpvsSocket {
    generic: NetlinkSocket,
    routes: NetlinkSocket,
    family: u16,
}

impl IpvsSocket {
    /// Opens the sockets. The kernel loads the module ip_vs if it can.
    pub fn open() -> Result<Self, IpvsUnavailable> {
        let mut generic = NetlinkSocket::open_protocol(NETLINK_GENERIC).map_err(IpvsUnavailable::Netlink)?;
        let routes = NetlinkSocket::open_protocol(NETLINK_ROUTE).map_err(IpvsUnavailable::Netlink)?;
        let family = match family(&mut generic) {
            Ok(Some(family)) => family,
            Ok(None) => return Err(IpvsUnavailable::MissingModules(vec!["ip_vs".to_owned()])),
            Err(error) => return Err(IpvsUnavailable::Netlink(error)),
        };
        Ok(Self { generic, routes, family })
    }
}

/// None if the kernel has no such family.
fn family(socket: &mut NetlinkSocket) -> Result<Option<u16>, NetlinkError> {
    let header = MessageHeader {
        kind: abi::GENL_ID_CTRL,
        flags: NLM_F_REQUEST,
        seq: 0,
        family: abi::CTRL_CMD_GETFAMILY,
        version: 1,
        resource: 0,
    };
    let mut found = None;
    let number = |attrs: Attrs<'_>| {
        Some(u16::from_ne_bytes(attrs.find(abi::CTRL_ATTR_FAMILY_ID)?.get(..2)?.try_into().ok()?))
    };
    let body = |out: &mut MessageWriter| out.attr_str(abi::CTRL_ATTR_FAMILY_NAME, abi::FAMILY_NAME);
    match socket.request(header, body, &mut |raw| found = found.or(number(raw.attrs()))) {
        Ok(_) => Ok(found),
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

impl IpvsKernel for IpvsSocket {
    fn family(&self) -> u16 {
        self.family
    }

    fn send(&mut self, batch: &[u8]) -> Result<Vec<(u32, Errno)>, NetlinkError> {
        self.generic.send_each(batch)
    }

    fn dump(&mut self, request: &IpvsDump) -> Result<Vec<u8>, NetlinkError> {
        let mut gathered = Vec::new();
        let mut take = |raw: crate::nfnetlink::wire::RawMessage<'_>| gathered.extend_from_slice(raw.bytes);
        let end = match request {
            IpvsDump::Routes(family) => {
                self.routes.request(route::dump_header(*family), route::put_dump, &mut take)?
            }
            IpvsDump::Interface => {
                self.routes.request(interface::link_request(), interface::put_link_request, &mut take)?
            }
            IpvsDump::Addresses(family) => self.routes.request(
                interface::address_dump(*family),
                interface::put_address_dump,
                &mut take,
            )?,
            IpvsDump::VirtualServers => self.generic.request(
                message::dump_header(self.family, None),
                |out| message::put_dump(out, None),
                &mut take,
            )?,
            IpvsDump::RealServers(of) => self.generic.request(
                message::dump_header(self.family, Some(of)),
                |out| message::put_dump(out, Some(of)),
                &mut take,
            )?,
        };
        match end {
            DumpEnd::Complete => Ok(gathered),
            DumpEnd::Interrupted => Err(NetlinkError::Interrupted),
        }
    }

    fn send_routes(&mut self, batch: &[u8]) -> Result<Vec<(u32, Errno)>, NetlinkError> {
        self.routes.send_each(batch)
    }
}

/// A virtual server as the kernel holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeldServer {
    pub server: VirtualServer,
    pub reals: BTreeMap<SocketAddr, HeldRealServer>,
}

pub(super) fn dump(kernel: &mut dyn IpvsKernel, request: &IpvsDump) -> Result<Vec<u8>, NetlinkError> {
    let mut attempt = 1;
    loop {
        match kernel.dump(request) {
            Ok(dump) if whole(&dump) => return Ok(dump),
            Ok(_) | Err(NetlinkError::Interrupted | NetlinkError::Lost) if attempt < ATTEMPTS => attempt += 1,
            Ok(_) => return Err(NetlinkError::Interrupted),
            Err(error) => return Err(error),
        }
    }
}

/// Virtual servers by address, with their connections so far; those by mark are not ours and left out.
fn list_servers(
    kernel: &mut dyn IpvsKernel,
) -> Result<BTreeMap<VirtualServerKey, (VirtualServer, u64)>, NetlinkError> {
    let dump = dump(kernel, &IpvsDump::VirtualServers)?;
    let decoded = messages(&dump).filter_map(decode_server);
    Ok(decoded.map(|(key, server, connections)| (key, (server, connections))).collect())
}

/// The real servers of a virtual server; none if it has gone meanwhile.
pub(super) fn list_reals(
    kernel: &mut dyn IpvsKernel,
    key: &VirtualServerKey,
) -> Result<BTreeMap<SocketAddr, HeldRealServer>, NetlinkError> {
    let dump = match dump(kernel, &IpvsDump::RealServers(*key)) {
        Err(error) if error.errno() == Some(Errno::ESRCH) => return Ok(BTreeMap::new()),
        dump => dump?,
    };
    let decoded = messages(&dump).filter_map(|raw| decode_real(raw, key));
    Ok(decoded.map(|held| (held.server.address, held)).collect())
}

/// The virtual servers that pass a filter, with their real servers.
pub(super) fn read_servers(
    kernel: &mut dyn IpvsKernel,
    wanted: impl Fn(&VirtualServerKey, &VirtualServer) -> bool,
) -> Result<BTreeMap<VirtualServerKey, HeldServer>, NetlinkError> {
    let mut held = BTreeMap::new();
    let servers = list_servers(kernel)?.into_iter().map(|(key, (server, _))| (key, server));
    for (key, server) in servers.filter(|(key, server)| wanted(key, server)) {
        let reals = list_reals(kernel, &key)?;
        held.insert(key, HeldServer { server, reals });
    }
    Ok(held)
}

/// The virtual servers of other programs, such as kube-proxy, as `ipvsadm -Sn` lists them.
pub fn foreign_servers(kernel: &mut dyn IpvsKernel) -> Result<IpvsServers, NetlinkError> {
    let server = |(key, held): (VirtualServerKey, HeldServer)| {
        let destinations = held
            .reals
            .values()
            .map(|real| IpvsDestination { address: real.server.address, weight: real.server.weight });
        let server = IpvsVirtualServer {
            scheduler: held.server.scheduler,
            persistence: held.server.persistence,
            destinations: destinations.collect(),
        };
        ((protocol_number(key.protocol), SocketAddr::new(key.address, key.port)), server)
    };
    let held = read_servers(kernel, |_, server| !server.is_ours())?;
    Ok(IpvsServers(held.into_iter().map(server).collect()))
}

/// Our routes.
pub(super) fn read_routes(kernel: &mut dyn IpvsKernel) -> Result<BTreeSet<LocalRoute>, NetlinkError> {
    let mut routes = BTreeSet::new();
    for family in [Family::V4, Family::V6] {
        let dump = dump(kernel, &IpvsDump::Routes(family))?;
        routes.extend(messages(&dump).filter_map(route::decode));
    }
    Ok(routes)
}

/// Connections from virtual servers to real servers. Only real servers of virtual servers whose count differs from that in
/// `known` are read, so that idle ones cost nothing; `known` is updated.
pub fn server_counts(
    kernel: &mut dyn IpvsKernel,
    known: &mut BTreeMap<(Protocol, SocketAddr), u64>,
) -> Result<Vec<ConnectionCount>, NetlinkError> {
    let mut counts = Vec::new();
    let mut seen = BTreeMap::new();
    for (key, (_, connections)) in list_servers(kernel)? {
        let frontend = SocketAddr::new(key.address, key.port);
        seen.insert((key.protocol, frontend), connections);
        if known.get(&(key.protocol, frontend)) == Some(&connections) {
            continue;
        }
        counts.extend(list_reals(kernel, &key)?.into_values().map(|held| ConnectionCount {
            protocol: key.protocol,
            frontend,
            endpoint: held.server.address,
            connections: held.connections,
        }));
    }
    *known = seen;
    Ok(counts)
}

/// Why a change was not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RefusedChange<C> {
    pub(super) change: C,
    pub(super) errno: Errno,
}

/// Sends changes in order. Those that the kernel refuses are returned; the others are applied.
pub(super) fn send_changes(
    kernel: &mut dyn IpvsKernel,
    changes: &[IpvsChange],
) -> Result<Vec<RefusedChange<IpvsChange>>, NetlinkError> {
    let family = kernel.family();
    send_all(
        changes,
        |out, seq, change| message::encode(out, family, seq, change),
        |batch| kernel.send(batch),
    )
}

/// The same for routes.
pub(super) fn send_route_changes(
    kernel: &mut dyn IpvsKernel,
    changes: &[RouteChange],
) -> Result<Vec<RefusedChange<RouteChange>>, NetlinkError> {
    send_all(changes, route::encode, |batch| kernel.send_routes(batch))
}

pub(super) fn send_all<C: Clone>(
    changes: &[C],
    encode: impl Fn(&mut MessageWriter, u32, &C),
    mut send: impl FnMut(&[u8]) -> Result<Vec<(u32, Errno)>, NetlinkError>,
) -> Result<Vec<RefusedChange<C>>, NetlinkError> {
    let mut refused = Vec::new();
    for chunk in changes.chunks(MESSAGES_PER_SEND) {
        let mut out = MessageWriter::new();
        for (seq, change) in (1..).zip(chunk) {
            encode(&mut out, seq, change);
        }
        let at = |seq: u32| chunk.get(usize::try_from(seq).ok()?.checked_sub(1)?);
        for (seq, errno) in send(out.bytes())? {
            refused.extend(at(seq).map(|change| RefusedChange { change: change.clone(), errno }));
        }
    }
    Ok(refused)
}

/// Sets the timeouts of connections; those that are 0 stay.
pub fn set_timeouts(kernel: &mut dyn IpvsKernel, timeouts: IpvsTimeouts) -> Result<(), NetlinkError> {
    if timeouts == IpvsTimeouts::default() {
        return Ok(());
    }
    match send_changes(kernel, &[IpvsChange::SetTimeouts(timeouts)])?.first() {
        Some(refused) => Err(NetlinkError::Refused { seq: 0, errno: refused.errno, text: None }),
        None => Ok(()),
    }
}

/// Adds a virtual server of a documentation address with the scheduler, as kube-proxy does, and deletes it: what answers
/// works, and the kernel loads the scheduler's module if it can.
pub fn probe(kernel: &mut dyn IpvsKernel, schedulers: &[IpvsScheduler]) -> Result<(), IpvsUnavailable> {
    let key = VirtualServerKey { address: [198, 51, 100, 0].into(), protocol: Protocol::Tcp, port: 20_000 };
    let mut missing = Vec::new();
    for scheduler in schedulers {
        let name = scheduler.as_str().to_owned();
        let server = VirtualServer { scheduler: name, flags: scheduler.flags(), persistence: None };
        // One that a probe left which was killed.
        let changes = [
            IpvsChange::DeleteServer(key),
            IpvsChange::NewServer(key, server),
            IpvsChange::DeleteServer(key),
        ];
        let refused = send_changes(kernel, &changes).map_err(IpvsUnavailable::Netlink)?;
        let added = refused.iter().find(|refused| matches!(refused.change, IpvsChange::NewServer(..)));
        match added.map(|refused| refused.errno) {
            None => {}
            Some(Errno::ENOENT) => missing.push(scheduler.module()),
            Some(errno) => {
                return Err(IpvsUnavailable::Netlink(NetlinkError::Refused { seq: 0, errno, text: None }));
            }
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(IpvsUnavailable::MissingModules(missing)) }
}

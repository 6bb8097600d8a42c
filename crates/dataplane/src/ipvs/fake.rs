//! A kernel with IPVS in memory. It decodes the bytes that the real one would get, and refuses what that refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use model::Family;
use nix::errno::Errno;

use super::interface::{self, HeldInterface, InterfaceChange};
use super::kernel::{HeldServer, IpvsDump, IpvsKernel};
use super::message::{
    HeldRealServer, IpvsChange, IpvsTimeouts, RealServer, VirtualServer, VirtualServerKey, decode_change,
    encode_held_real, encode_held_server,
};
use super::route::{self, LocalRoute, RouteChange};
use super::scheduler::IpvsScheduler;
use crate::nfnetlink::NetlinkError;
use crate::nfnetlink::wire::{MessageWriter, messages};

/// The number that the fake gives to IPVS.
const FAMILY: u16 = 0x28;
/// The number of the dummy interface.
const INTERFACE_INDEX: u32 = 7;
/// The kernel's limit of a weight.
const MAX_WEIGHT: u32 = 65_535;

/// Virtual servers and routes.
#[derive(Clone, Debug, Default)]
pub struct FakeIpvs {
    servers: BTreeMap<VirtualServerKey, HeldServer>,
    routes: BTreeSet<LocalRoute>,
    /// The dummy interface.
    interface: Option<HeldInterface>,
    addresses: Vec<IpAddr>,
    missing: BTreeSet<&'static str>,
    timeouts: IpvsTimeouts,
    /// Every change that was applied, in order.
    log: Vec<IpvsChange>,
}

impl FakeIpvs {
    /// A node with these addresses.
    pub fn new(addresses: &[IpAddr]) -> Self {
        Self { addresses: addresses.to_vec(), ..Self::default() }
    }

    /// A kernel without the module of a scheduler.
    pub fn without(mut self, scheduler: IpvsScheduler) -> Self {
        self.missing.insert(scheduler.as_str());
        self
    }

    /// The virtual servers, as `scheduler real-server=weight ...`.
    pub fn listing(&self) -> BTreeMap<String, String> {
        let text = |held: &HeldServer| {
            let mut words = vec![held.server.scheduler.clone()];
            words.extend(held.server.persistence.map(|seconds| format!("persistent {seconds}")));
            words.extend(held.reals.values().map(|h| format!("{}={}", h.server.address, h.server.weight)));
            words.join(" ")
        };
        self.servers.iter().map(|(key, held)| (key.to_string(), text(held))).collect()
    }

    pub fn routes(&self) -> &BTreeSet<LocalRoute> {
        &self.routes
    }

    pub fn timeouts(&self) -> IpvsTimeouts {
        self.timeouts
    }

    /// The changes since the last call.
    pub fn take_log(&mut self) -> Vec<IpvsChange> {
        std::mem::take(&mut self.log)
    }

    /// Sets the open connections of a real server everywhere, as traffic would.
    pub fn set_open(&mut self, real: SocketAddr, open: u64) {
        for held in self.servers.values_mut().filter_map(|server| server.reals.get_mut(&real)) {
            held.open = open;
            held.connections += open;
        }
    }

    /// Applies one change, as another program would.
    pub fn apply(&mut self, change: IpvsChange) -> Result<(), Errno> {
        self.change(&change)?;
        self.log.push(change);
        Ok(())
    }

    fn is_known(&self, scheduler: &str) -> bool {
        scheduler.parse::<IpvsScheduler>().is_ok() && !self.missing.contains(scheduler)
    }

    fn change(&mut self, change: &IpvsChange) -> Result<(), Errno> {
        match change {
            IpvsChange::NewServer(key, server) => {
                if self.servers.contains_key(key) {
                    return Err(Errno::EEXIST);
                }
                self.check(server)?;
                self.servers.insert(*key, HeldServer { server: server.clone(), reals: BTreeMap::new() });
            }
            IpvsChange::SetServer(key, server) => {
                self.servers.get(key).ok_or(Errno::ESRCH)?;
                self.check(server)?;
                if let Some(held) = self.servers.get_mut(key) {
                    held.server = server.clone();
                }
            }
            IpvsChange::DeleteServer(key) => drop(self.servers.remove(key).ok_or(Errno::ESRCH)?),
            IpvsChange::NewReal(key, real) => {
                let reals = self.reals(key, real)?;
                if reals.contains_key(&real.address) {
                    return Err(Errno::EEXIST);
                }
                let held = HeldRealServer { server: *real, is_masquerade: true, open: 0, connections: 0 };
                reals.insert(real.address, held);
            }
            IpvsChange::SetReal(key, real) => {
                self.reals(key, real)?.get_mut(&real.address).ok_or(Errno::ENOENT)?.server = *real;
            }
            IpvsChange::DeleteReal(key, address) => {
                let held = self.servers.get_mut(key).ok_or(Errno::ESRCH)?;
                held.reals.remove(address).ok_or(Errno::ENOENT)?;
            }
            IpvsChange::SetTimeouts(timeouts) => {
                let IpvsTimeouts { tcp, tcp_fin, udp } = &mut self.timeouts;
                for (held, new) in [(tcp, timeouts.tcp), (tcp_fin, timeouts.tcp_fin), (udp, timeouts.udp)] {
                    *held = if new == 0 { *held } else { new };
                }
            }
        }
        Ok(())
    }

    fn check(&self, server: &VirtualServer) -> Result<(), Errno> {
        if self.is_known(&server.scheduler) { Ok(()) } else { Err(Errno::ENOENT) }
    }

    fn reals(
        &mut self,
        key: &VirtualServerKey,
        real: &RealServer,
    ) -> Result<&mut BTreeMap<SocketAddr, HeldRealServer>, Errno> {
        let held = self.servers.get_mut(key).ok_or(Errno::ESRCH)?;
        let is_same_family = real.address.is_ipv4() == key.address.is_ipv4();
        if is_same_family && real.weight <= MAX_WEIGHT { Ok(&mut held.reals) } else { Err(Errno::EINVAL) }
    }

    /// The addresses of the dummy interface, if there is one.
    pub fn interface_addresses(&self) -> Option<Vec<IpAddr>> {
        self.interface.as_ref().map(|held| held.addresses.iter().copied().collect())
    }

    /// Gives the node a dummy interface, as kube-proxy does.
    pub fn add_foreign_interface(&mut self, addresses: &[IpAddr]) {
        let addresses = addresses.iter().copied().collect();
        self.interface = Some(HeldInterface { index: INTERFACE_INDEX, is_ours: false, addresses });
    }

    fn change_interface(&mut self, change: &InterfaceChange) -> Result<(), Errno> {
        match (change, &mut self.interface) {
            (InterfaceChange::Create, Some(_)) => return Err(Errno::EEXIST),
            (InterfaceChange::Create, none) => {
                let index = INTERFACE_INDEX;
                *none = Some(HeldInterface { index, is_ours: true, addresses: BTreeSet::new() });
            }
            (_, None) => return Err(Errno::ENODEV),
            (InterfaceChange::Adopt(_), Some(held)) => held.is_ours = true,
            (InterfaceChange::Delete(_), held) => *held = None,
            (InterfaceChange::AddAddress(_, address), Some(held)) => {
                held.addresses.insert(*address).then_some(()).ok_or(Errno::EEXIST)?;
            }
            (InterfaceChange::DeleteAddress(_, address), Some(held)) => {
                held.addresses.remove(address).then_some(()).ok_or(Errno::EADDRNOTAVAIL)?;
            }
        }
        Ok(())
    }

    fn change_route(&mut self, change: &RouteChange) -> Result<(), Errno> {
        match change {
            RouteChange::Replace(route) => {
                // The kernel accepts only a source that the node has.
                if route.source.is_some_and(|source| !self.addresses.contains(&source)) {
                    return Err(Errno::EINVAL);
                }
                self.routes.retain(|held| held.range != route.range);
                self.routes.insert(*route);
            }
            RouteChange::Delete(route) => {
                let before = self.routes.len();
                self.routes.retain(|held| held.range != route.range);
                if self.routes.len() == before {
                    return Err(Errno::ESRCH);
                }
            }
        }
        Ok(())
    }
}

impl IpvsKernel for FakeIpvs {
    fn family(&self) -> u16 {
        FAMILY
    }

    fn send(&mut self, batch: &[u8]) -> Result<Vec<(u32, Errno)>, NetlinkError> {
        let mut refused = Vec::new();
        for raw in messages(batch) {
            let outcome = match decode_change(raw).filter(|_| raw.header.kind == FAMILY) {
                Some(change) => self.apply(change),
                None => Err(Errno::EINVAL),
            };
            refused.extend(outcome.err().map(|errno| (raw.header.seq, errno)));
        }
        Ok(refused)
    }

    fn dump(&mut self, request: &IpvsDump) -> Result<Vec<u8>, NetlinkError> {
        let mut out = MessageWriter::new();
        match request {
            IpvsDump::VirtualServers => {
                for (key, held) in &self.servers {
                    let connections = held.reals.values().map(|real| real.connections).sum();
                    encode_held_server(&mut out, key, &held.server, connections);
                }
            }
            IpvsDump::RealServers(key) => {
                let refused = NetlinkError::Refused { seq: 0, errno: Errno::ESRCH, text: None };
                let held = self.servers.get(key).ok_or(refused)?;
                held.reals.values().for_each(|real| encode_held_real(&mut out, real));
            }
            IpvsDump::Interface | IpvsDump::Addresses(_) => {
                let missing = NetlinkError::Refused { seq: 0, errno: Errno::ENODEV, text: None };
                let family = match request {
                    IpvsDump::Addresses(family) => Some(*family),
                    _ => None,
                };
                interface::encode_held(&mut out, self.interface.as_ref().ok_or(missing)?, family);
            }
            IpvsDump::Routes(family) => {
                for held in self.routes.iter().filter(|held| Family::of(held.range.addr()) == *family) {
                    route::encode(&mut out, 0, &RouteChange::Replace(*held));
                }
            }
        }
        Ok(out.into_bytes())
    }

    fn send_routes(&mut self, batch: &[u8]) -> Result<Vec<(u32, Errno)>, NetlinkError> {
        let mut refused = Vec::new();
        for raw in messages(batch) {
            let outcome = match (route::decode_change(raw), interface::decode_change(raw)) {
                (Some(change), _) => self.change_route(&change),
                (None, Some(change)) => self.change_interface(&change),
                (None, None) => Err(Errno::EINVAL),
            };
            refused.extend(outcome.err().map(|errno| (raw.header.seq, errno)));
        }
        Ok(refused)
    }
}

//! The dummy interface kube-ipvs0 with the addresses of Services, as kube-proxy has it. Zoneward does not need it, since a
//! route makes them local; it is there for programs that read the addresses, and only if asked for.
//!
//! Its alias says that it is ours. It stays down: its addresses are there, and the interface sends nothing.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::Family;
use nix::errno::Errno;

use super::abi;
use super::kernel::{IpvsDump, IpvsKernel, RefusedChange, dump, send_all};
use super::route::{address, family_number, octets};
use crate::backend::BackendError;
use crate::nfnetlink::NetlinkError;
use crate::nfnetlink::abi::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST};
use crate::nfnetlink::wire::{Attrs, MessageHeader, MessageWriter, RawMessage, messages};

/// The name that kube-proxy gives it.
pub const DUMMY_INTERFACE: &str = "kube-ipvs0";
/// The alias of ours.
pub const DUMMY_ALIAS: &str = "zoneward";

/// A change of the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InterfaceChange {
    Create,
    /// Sets the alias of one that is there.
    Adopt(u32),
    Delete(u32),
    AddAddress(u32, IpAddr),
    DeleteAddress(u32, IpAddr),
}

/// The interface as the kernel holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HeldInterface {
    pub(super) index: u32,
    pub(super) is_ours: bool,
    pub(super) addresses: BTreeSet<IpAddr>,
}

/// None if there is no such interface.
pub(super) fn read(kernel: &mut dyn IpvsKernel) -> Result<Option<HeldInterface>, BackendError> {
    let link = match kernel.dump(&IpvsDump::Interface) {
        Err(error) if error.errno() == Some(Errno::ENODEV) => return Ok(None),
        link => link.map_err(read_error)?,
    };
    let Some((index, is_ours)) = messages(&link).find_map(decode_link) else { return Ok(None) };
    let mut addresses = BTreeSet::new();
    for family in [Family::V4, Family::V6] {
        let dump = dump(kernel, &IpvsDump::Addresses(family)).map_err(read_error)?;
        addresses.extend(messages(&dump).filter_map(|raw| decode_address(raw, index)));
    }
    Ok(Some(HeldInterface { index, is_ours, addresses }))
}

/// Adds the addresses that are missing.
pub(super) fn add_addresses(
    kernel: &mut dyn IpvsKernel,
    held: &mut Option<HeldInterface>,
    wanted: &BTreeSet<IpAddr>,
) -> Result<usize, BackendError> {
    if held.is_none() {
        send(kernel, &[InterfaceChange::Create])?;
        *held = read(kernel)?;
    }
    let Some(interface) = held else {
        return Err(BackendError::failed(format!("the interface {DUMMY_INTERFACE} is gone")));
    };
    let mut changes: Vec<InterfaceChange> = Vec::new();
    changes.extend((!interface.is_ours).then_some(InterfaceChange::Adopt(interface.index)));
    let missing = wanted.difference(&interface.addresses);
    changes.extend(missing.map(|address| InterfaceChange::AddAddress(interface.index, *address)));
    send(kernel, &changes)
}

/// Deletes the addresses that are not wanted.
pub(super) fn delete_addresses(
    kernel: &mut dyn IpvsKernel,
    held: Option<&HeldInterface>,
    wanted: &BTreeSet<IpAddr>,
) -> Result<usize, BackendError> {
    let Some(interface) = held else { return Ok(0) };
    let stale = interface.addresses.difference(wanted).filter(|address| !is_link_local(address));
    let changes: Vec<InterfaceChange> =
        stale.map(|address| InterfaceChange::DeleteAddress(interface.index, *address)).collect();
    send(kernel, &changes)
}

/// The kernel's own, of an interface that is up.
fn is_link_local(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Deletes the interface if it is ours. Returns whether it is.
pub(super) fn delete_ours(kernel: &mut dyn IpvsKernel, dry_run: bool) -> Result<bool, BackendError> {
    let Some(interface) = read(kernel)?.filter(|interface| interface.is_ours) else { return Ok(false) };
    if !dry_run {
        send(kernel, &[InterfaceChange::Delete(interface.index)])?;
    }
    Ok(true)
}

fn read_error(error: NetlinkError) -> BackendError {
    BackendError::failed(format!("cannot read the interface {DUMMY_INTERFACE} from the kernel: {error}"))
}

/// Returns 1 if there was something to send.
fn send(kernel: &mut dyn IpvsKernel, changes: &[InterfaceChange]) -> Result<usize, BackendError> {
    if changes.is_empty() {
        return Ok(0);
    }
    let failed = |error: &dyn std::fmt::Display| {
        BackendError::failed(format!("cannot change the interface {DUMMY_INTERFACE}: {error}"))
    };
    let refused =
        send_all(changes, encode, |batch| kernel.send_routes(batch)).map_err(|error| failed(&error))?;
    // Another program was as quick.
    let is_done = |refused: &RefusedChange<InterfaceChange>| {
        matches!(refused.errno, Errno::EEXIST | Errno::EADDRNOTAVAIL | Errno::ENODEV)
    };
    match refused.iter().find(|refused| !is_done(refused)) {
        Some(refused) if refused.errno == Errno::EOPNOTSUPP => {
            Err(failed(&"the kernel has no dummy interfaces; load the module dummy (modprobe dummy)"))
        }
        Some(refused) => Err(failed(&refused.errno)),
        None => Ok(1),
    }
}

fn link_header(kind: u16, flags: u16, seq: u32) -> MessageHeader {
    MessageHeader { kind, flags: NLM_F_REQUEST | flags, seq, family: 0, version: 0, resource: 0 }
}

/// The rest of ifinfomsg.
fn put_link(out: &mut MessageWriter, index: u32) {
    out.attributes(&index.to_ne_bytes());
    out.attributes(&[0; 8]);
}

fn encode(out: &mut MessageWriter, seq: u32, change: &InterfaceChange) {
    match change {
        InterfaceChange::Create => {
            let header = link_header(abi::RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, seq);
            out.message(header, |out| {
                put_link(out, 0);
                out.attr_str(abi::IFLA_IFNAME, DUMMY_INTERFACE);
                out.attr_str(abi::IFLA_IFALIAS, DUMMY_ALIAS);
                out.nested(abi::IFLA_LINKINFO, |out| out.attr_str(abi::IFLA_INFO_KIND, "dummy"));
            });
        }
        InterfaceChange::Adopt(index) => out.message(link_header(abi::RTM_NEWLINK, NLM_F_ACK, seq), |out| {
            put_link(out, *index);
            out.attr_str(abi::IFLA_IFALIAS, DUMMY_ALIAS);
        }),
        InterfaceChange::Delete(index) => {
            out.message(link_header(abi::RTM_DELLINK, NLM_F_ACK, seq), |out| put_link(out, *index));
        }
        InterfaceChange::AddAddress(index, address) => {
            put_address(out, abi::RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, seq, (*index, *address));
        }
        InterfaceChange::DeleteAddress(index, address) => {
            put_address(out, abi::RTM_DELADDR, 0, seq, (*index, *address));
        }
    }
}

fn put_address(out: &mut MessageWriter, kind: u16, flags: u16, seq: u32, (index, address): (u32, IpAddr)) {
    let (length, flags_of_address) = match address {
        IpAddr::V4(_) => (32, 0),
        IpAddr::V6(_) => (128, abi::IFA_F_NODAD),
    };
    // ifaddrmsg: family, length of the prefix, flags, scope, index.
    let header = MessageHeader {
        kind,
        flags: NLM_F_REQUEST | NLM_F_ACK | flags,
        seq,
        family: family_number(Family::of(address)),
        version: length,
        resource: u16::from_be_bytes([flags_of_address, 0]),
    };
    out.message(header, |out| {
        out.attributes(&index.to_ne_bytes());
        out.attr(abi::IFA_LOCAL, &octets(address));
        out.attr(abi::IFA_ADDRESS, &octets(address));
    });
}

/// A request for the interface alone.
pub(super) fn link_request() -> MessageHeader {
    link_header(abi::RTM_GETLINK, 0, 0)
}

pub(super) fn put_link_request(out: &mut MessageWriter) {
    put_link(out, 0);
    out.attr_str(abi::IFLA_IFNAME, DUMMY_INTERFACE);
}

pub(super) fn address_dump(family: Family) -> MessageHeader {
    MessageHeader { family: family_number(family), ..link_header(abi::RTM_GETADDR, NLM_F_DUMP, 0) }
}

/// The rest of ifaddrmsg.
pub(super) fn put_address_dump(out: &mut MessageWriter) {
    out.attributes(&[0; 4]);
}

fn decode_link(raw: RawMessage<'_>) -> Option<(u32, bool)> {
    let (head, rest) = raw.payload.split_at_checked(16)?;
    let attrs = Attrs::new(rest);
    let text = |kind| attrs.find(kind).map(|bytes| bytes.strip_suffix(&[0]).unwrap_or(bytes));
    let is_it = raw.header.kind == abi::RTM_NEWLINK && text(abi::IFLA_IFNAME)? == DUMMY_INTERFACE.as_bytes();
    let index = u32::from_ne_bytes(head[4..8].try_into().ok()?);
    is_it.then_some((index, text(abi::IFLA_IFALIAS) == Some(DUMMY_ALIAS.as_bytes())))
}

fn decode_address(raw: RawMessage<'_>, of: u32) -> Option<IpAddr> {
    let (head, rest) = raw.payload.split_at_checked(8)?;
    let index = u32::from_ne_bytes(head[4..8].try_into().ok()?);
    let is_of = raw.header.kind == abi::RTM_NEWADDR && index == of;
    let attrs = Attrs::new(rest);
    let bytes = attrs.find(abi::IFA_LOCAL).or_else(|| attrs.find(abi::IFA_ADDRESS))?;
    address(bytes).filter(|_| is_of)
}

/// A change as the kernel reads it.
pub(super) fn decode_change(raw: RawMessage<'_>) -> Option<InterfaceChange> {
    let index = || Some(u32::from_ne_bytes(raw.payload.get(4..8)?.try_into().ok()?));
    let address = || address(Attrs::new(raw.payload.get(8..)?).find(abi::IFA_LOCAL)?);
    match raw.header.kind {
        abi::RTM_NEWLINK if raw.header.flags & NLM_F_CREATE != 0 => Some(InterfaceChange::Create),
        abi::RTM_NEWLINK => Some(InterfaceChange::Adopt(index()?)),
        abi::RTM_DELLINK => Some(InterfaceChange::Delete(index()?)),
        abi::RTM_NEWADDR => Some(InterfaceChange::AddAddress(index()?, address()?)),
        abi::RTM_DELADDR => Some(InterfaceChange::DeleteAddress(index()?, address()?)),
        _ => None,
    }
}

/// What the kernel answers to a dump, for the fake.
pub(super) fn encode_held(out: &mut MessageWriter, held: &HeldInterface, addresses_of: Option<Family>) {
    let Some(family) = addresses_of else {
        return out.message(link_header(abi::RTM_NEWLINK, 0, 0), |out| {
            put_link(out, held.index);
            out.attr_str(abi::IFLA_IFNAME, DUMMY_INTERFACE);
            if held.is_ours {
                out.attr_str(abi::IFLA_IFALIAS, DUMMY_ALIAS);
            }
        });
    };
    for address in held.addresses.iter().filter(|address| Family::of(**address) == family) {
        put_address(out, abi::RTM_NEWADDR, 0, 0, (held.index, *address));
    }
}

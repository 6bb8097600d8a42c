//! Messages of IPVS, encoded and decoded. The kernel validates each alone: there are no transactions.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use model::{Family, Protocol};

use super::abi::{self, cmd, dest, service};
use crate::nfnetlink::abi::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use crate::nfnetlink::wire::{Attrs, MessageHeader, MessageWriter, RawMessage};
use crate::nftables::render::{protocol_number, protocol_of};

/// The address of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VirtualServerKey {
    pub address: IpAddr,
    pub protocol: Protocol,
    pub port: u16,
}

impl fmt::Display for VirtualServerKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.protocol, SocketAddr::new(self.address, self.port))
    }
}

/// How a virtual server chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualServer {
    /// A name: virtual servers of other programs may have a scheduler that we do not set.
    pub scheduler: String,
    /// Without `PERSISTENT` and `HASHED`.
    pub flags: u32,
    /// Seconds for which a client keeps its real server.
    pub persistence: Option<u32>,
}

/// A server that a virtual server forwards to. Weight 0 gets no new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealServer {
    pub address: SocketAddr,
    pub weight: u32,
}

/// A real server as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRealServer {
    pub server: RealServer,
    /// Forwards by rewriting, as ours do.
    pub is_masquerade: bool,
    /// Established connections, and others that are not forgotten.
    pub open: u64,
    /// Connections since it was added.
    pub connections: u64,
}

/// Timeouts of IPVS's connections in seconds; 0 leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpvsTimeouts {
    pub tcp: u32,
    pub tcp_fin: u32,
    pub udp: u32,
}

/// One message that changes something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IpvsChange {
    NewServer(VirtualServerKey, VirtualServer),
    SetServer(VirtualServerKey, VirtualServer),
    DeleteServer(VirtualServerKey),
    NewReal(VirtualServerKey, RealServer),
    SetReal(VirtualServerKey, RealServer),
    DeleteReal(VirtualServerKey, SocketAddr),
    SetTimeouts(IpvsTimeouts),
}

impl IpvsChange {
    /// The virtual server that it belongs to.
    pub fn key(&self) -> Option<&VirtualServerKey> {
        match self {
            Self::NewServer(key, _)
            | Self::SetServer(key, _)
            | Self::DeleteServer(key)
            | Self::NewReal(key, _)
            | Self::SetReal(key, _)
            | Self::DeleteReal(key, _) => Some(key),
            Self::SetTimeouts(_) => None,
        }
    }

    fn command(&self) -> u8 {
        match self {
            Self::NewServer(..) => cmd::NEW_SERVICE,
            Self::SetServer(..) => cmd::SET_SERVICE,
            Self::DeleteServer(_) => cmd::DEL_SERVICE,
            Self::NewReal(..) => cmd::NEW_DEST,
            Self::SetReal(..) => cmd::SET_DEST,
            Self::DeleteReal(..) => cmd::DEL_DEST,
            Self::SetTimeouts(_) => cmd::SET_CONFIG,
        }
    }
}

/// In the imperative, for `cannot ...`.
impl fmt::Display for IpvsChange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NewServer(key, server) => {
                write!(out, "add virtual server {key} with scheduler {}", server.scheduler)
            }
            Self::SetServer(key, server) => {
                write!(out, "change virtual server {key} to scheduler {}", server.scheduler)
            }
            Self::DeleteServer(key) => write!(out, "delete virtual server {key}"),
            Self::NewReal(key, real) => write!(out, "add real server {} to {key}", real.address),
            Self::SetReal(key, RealServer { address, weight }) => {
                write!(out, "set the weight of real server {address} of {key} to {weight}")
            }
            Self::DeleteReal(key, address) => write!(out, "delete real server {address} of {key}"),
            Self::SetTimeouts(_) => out.write_str("set the timeouts of connections"),
        }
    }
}

fn header(family: u16, command: u8, flags: u16, seq: u32) -> MessageHeader {
    // genlmsghdr has the layout of nfgenmsg: command, version, two reserved bytes.
    MessageHeader {
        kind: family,
        flags: NLM_F_REQUEST | flags,
        seq,
        family: command,
        version: abi::VERSION,
        resource: 0,
    }
}

/// Appends a change; `family` is the number of IPVS in this kernel.
pub fn encode(out: &mut MessageWriter, family: u16, seq: u32, change: &IpvsChange) {
    out.message(header(family, change.command(), NLM_F_ACK, seq), |out| match change {
        IpvsChange::NewServer(key, server) | IpvsChange::SetServer(key, server) => {
            out.nested(abi::ATTR_SERVICE, |out| {
                put_key(out, key);
                put_server(out, key, server);
            });
        }
        IpvsChange::DeleteServer(key) => out.nested(abi::ATTR_SERVICE, |out| put_key(out, key)),
        IpvsChange::NewReal(key, real) | IpvsChange::SetReal(key, real) => {
            out.nested(abi::ATTR_SERVICE, |out| put_key(out, key));
            out.nested(abi::ATTR_DEST, |out| {
                put_real_address(out, real.address);
                put_u32(out, dest::FWD_METHOD, abi::MASQUERADE);
                put_u32(out, dest::WEIGHT, real.weight);
                put_u32(out, dest::U_THRESH, 0);
                put_u32(out, dest::L_THRESH, 0);
            });
        }
        IpvsChange::DeleteReal(key, address) => {
            out.nested(abi::ATTR_SERVICE, |out| put_key(out, key));
            out.nested(abi::ATTR_DEST, |out| put_real_address(out, *address));
        }
        IpvsChange::SetTimeouts(timeouts) => {
            put_u32(out, abi::ATTR_TIMEOUT_TCP, timeouts.tcp);
            put_u32(out, abi::ATTR_TIMEOUT_TCP_FIN, timeouts.tcp_fin);
            put_u32(out, abi::ATTR_TIMEOUT_UDP, timeouts.udp);
        }
    });
}

/// A request for all virtual servers, or for the real servers of one.
pub(super) fn dump_header(family: u16, of: Option<&VirtualServerKey>) -> MessageHeader {
    let command = if of.is_some() { cmd::GET_DEST } else { cmd::GET_SERVICE };
    header(family, command, NLM_F_DUMP, 0)
}

pub(super) fn put_dump(out: &mut MessageWriter, of: Option<&VirtualServerKey>) {
    if let Some(key) = of {
        out.nested(abi::ATTR_SERVICE, |out| put_key(out, key));
    }
}

/// In host byte order, unlike the attributes of nf_tables.
fn put_u32(out: &mut MessageWriter, kind: u16, value: u32) {
    out.attr(kind, &value.to_ne_bytes());
}

fn put_u16(out: &mut MessageWriter, kind: u16, value: u16) {
    out.attr(kind, &value.to_ne_bytes());
}

fn put_u64(out: &mut MessageWriter, kind: u16, value: u64) {
    out.attr(kind, &value.to_ne_bytes());
}

fn family_number(address: IpAddr) -> u16 {
    match Family::of(address) {
        Family::V4 => abi::AF_INET,
        Family::V6 => abi::AF_INET6,
    }
}

/// Sixteen bytes, also for IPv4.
fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
    }
}

fn put_key(out: &mut MessageWriter, key: &VirtualServerKey) {
    put_u16(out, service::AF, family_number(key.address));
    put_u16(out, service::PROTOCOL, u16::from(protocol_number(key.protocol)));
    out.attr(service::ADDR, &address_bytes(key.address));
    out.attr(service::PORT, &key.port.to_be_bytes());
}

fn put_server(out: &mut MessageWriter, key: &VirtualServerKey, server: &VirtualServer) {
    out.attr_str(service::SCHED_NAME, &server.scheduler);
    let persistent = if server.persistence.is_some() { abi::PERSISTENT } else { 0 };
    let (flags, mask) = ((server.flags | persistent).to_ne_bytes(), u32::MAX.to_ne_bytes());
    out.attr(service::FLAGS, &[flags, mask].concat());
    put_u32(out, service::TIMEOUT, server.persistence.unwrap_or(0));
    let netmask = if key.address.is_ipv4() { u32::MAX } else { 128 };
    put_u32(out, service::NETMASK, netmask);
}

fn put_real_address(out: &mut MessageWriter, address: SocketAddr) {
    out.attr(dest::ADDR, &address_bytes(address.ip()));
    out.attr(dest::PORT, &address.port().to_be_bytes());
    put_u16(out, dest::ADDR_FAMILY, family_number(address.ip()));
}

fn u16_of(attrs: Attrs<'_>, kind: u16) -> Option<u16> {
    Some(u16::from_ne_bytes(attrs.find(kind)?.get(..2)?.try_into().ok()?))
}

fn u32_of(attrs: Attrs<'_>, kind: u16) -> Option<u32> {
    Some(u32::from_ne_bytes(attrs.find(kind)?.get(..4)?.try_into().ok()?))
}

fn u64_of(attrs: Attrs<'_>, kind: u16) -> Option<u64> {
    Some(u64::from_ne_bytes(attrs.find(kind)?.get(..8)?.try_into().ok()?))
}

fn port_of(attrs: Attrs<'_>, kind: u16) -> Option<u16> {
    Some(u16::from_be_bytes(attrs.find(kind)?.get(..2)?.try_into().ok()?))
}

fn address_of(family: u16, bytes: &[u8]) -> Option<IpAddr> {
    match family {
        abi::AF_INET => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(..4)?).ok()?).into()),
        abi::AF_INET6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(..16)?).ok()?).into()),
        _ => None,
    }
}

/// None for a virtual server by mark, or of another protocol.
fn key_of(attrs: Attrs<'_>) -> Option<VirtualServerKey> {
    let address = address_of(u16_of(attrs, service::AF)?, attrs.find(service::ADDR)?)?;
    let protocol = protocol_of(u8::try_from(u16_of(attrs, service::PROTOCOL)?).ok()?)?;
    Some(VirtualServerKey { address, protocol, port: port_of(attrs, service::PORT)? })
}

fn server_of(attrs: Attrs<'_>) -> Option<VirtualServer> {
    let flags = u32_of(attrs, service::FLAGS)?;
    let persistence = (flags & abi::PERSISTENT != 0).then(|| u32_of(attrs, service::TIMEOUT)).flatten();
    Some(VirtualServer {
        scheduler: attrs.text(service::SCHED_NAME)?,
        flags: flags & !(abi::PERSISTENT | abi::HASHED),
        persistence,
    })
}

fn real_address_of(attrs: Attrs<'_>, family: u16) -> Option<SocketAddr> {
    // Kernels before 3.18 do not tell the family: it is that of the virtual server.
    let family = u16_of(attrs, dest::ADDR_FAMILY).unwrap_or(family);
    Some(SocketAddr::new(address_of(family, attrs.find(dest::ADDR)?)?, port_of(attrs, dest::PORT)?))
}

/// A virtual server in the answer to a dump, with its connections so far; none for those by mark.
pub(super) fn decode_server(raw: RawMessage<'_>) -> Option<(VirtualServerKey, VirtualServer, u64)> {
    let attrs = raw.attrs().nested(abi::ATTR_SERVICE)?;
    let connections = attrs.nested(service::STATS64).and_then(|stats| u64_of(stats, abi::STATS_CONNS));
    Some((key_of(attrs)?, server_of(attrs)?, connections.unwrap_or(0)))
}

/// A real server in the answer to a dump.
pub(super) fn decode_real(raw: RawMessage<'_>, of: &VirtualServerKey) -> Option<HeldRealServer> {
    let attrs = raw.attrs().nested(abi::ATTR_DEST)?;
    let address = real_address_of(attrs, family_number(of.address))?;
    let count = |kind| u64::from(u32_of(attrs, kind).unwrap_or(0));
    let connections = attrs.nested(dest::STATS64).and_then(|stats| u64_of(stats, abi::STATS_CONNS));
    Some(HeldRealServer {
        server: RealServer { address, weight: u32_of(attrs, dest::WEIGHT)? },
        is_masquerade: u32_of(attrs, dest::FWD_METHOD)? & 7 == abi::MASQUERADE,
        open: count(dest::ACTIVE_CONNS) + count(dest::INACT_CONNS),
        connections: connections.unwrap_or(0),
    })
}

/// A change as the kernel reads it. None if an attribute is missing that the kernel requires.
pub fn decode_change(raw: RawMessage<'_>) -> Option<IpvsChange> {
    let attrs = raw.attrs();
    let command = raw.header.family;
    if command == cmd::SET_CONFIG {
        let seconds = |kind| u32_of(attrs, kind).unwrap_or(0);
        return Some(IpvsChange::SetTimeouts(IpvsTimeouts {
            tcp: seconds(abi::ATTR_TIMEOUT_TCP),
            tcp_fin: seconds(abi::ATTR_TIMEOUT_TCP_FIN),
            udp: seconds(abi::ATTR_TIMEOUT_UDP),
        }));
    }
    let server = attrs.nested(abi::ATTR_SERVICE)?;
    let key = key_of(server)?;
    let real = || {
        let attrs = attrs.nested(abi::ATTR_DEST)?;
        let required = [dest::FWD_METHOD, dest::U_THRESH, dest::L_THRESH];
        required.iter().all(|kind| attrs.find(*kind).is_some()).then_some(())?;
        let address = real_address_of(attrs, family_number(key.address))?;
        Some(RealServer { address, weight: u32_of(attrs, dest::WEIGHT)? })
    };
    let whole = || {
        server.find(service::TIMEOUT)?;
        server.find(service::NETMASK)?;
        server_of(server)
    };
    Some(match command {
        cmd::NEW_SERVICE => IpvsChange::NewServer(key, whole()?),
        cmd::SET_SERVICE => IpvsChange::SetServer(key, whole()?),
        cmd::DEL_SERVICE => IpvsChange::DeleteServer(key),
        cmd::NEW_DEST => IpvsChange::NewReal(key, real()?),
        cmd::SET_DEST => IpvsChange::SetReal(key, real()?),
        cmd::DEL_DEST => {
            let attrs = attrs.nested(abi::ATTR_DEST)?;
            IpvsChange::DeleteReal(key, real_address_of(attrs, family_number(key.address))?)
        }
        _ => return None,
    })
}

/// Appends a virtual server as the kernel reports it.
pub(super) fn encode_held_server(
    out: &mut MessageWriter,
    key: &VirtualServerKey,
    server: &VirtualServer,
    connections: u64,
) {
    out.message(header(0, cmd::NEW_SERVICE, 0, 0), |out| {
        out.nested(abi::ATTR_SERVICE, |out| {
            put_key(out, key);
            let hashed = VirtualServer { flags: server.flags | abi::HASHED, ..server.clone() };
            put_server(out, key, &hashed);
            out.nested(service::STATS64, |out| put_u64(out, abi::STATS_CONNS, connections));
        });
    });
}

/// Appends a real server as the kernel reports it.
pub(super) fn encode_held_real(out: &mut MessageWriter, held: &HeldRealServer) {
    out.message(header(0, cmd::NEW_DEST, 0, 0), |out| {
        out.nested(abi::ATTR_DEST, |out| {
            put_real_address(out, held.server.address);
            put_u32(out, dest::FWD_METHOD, if held.is_masquerade { abi::MASQUERADE } else { 3 });
            put_u32(out, dest::WEIGHT, held.server.weight);
            put_u32(out, dest::ACTIVE_CONNS, u32::try_from(held.open).unwrap_or(u32::MAX));
            put_u32(out, dest::INACT_CONNS, 0);
            out.nested(dest::STATS64, |out| put_u64(out, abi::STATS_CONNS, held.connections));
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nfnetlink::wire::messages;

    fn changes() -> Vec<IpvsChange> {
        let v4 = VirtualServerKey { address: [10, 96, 0, 1].into(), protocol: Protocol::Tcp, port: 80 };
        let v6 = VirtualServerKey {
            address: Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 1).into(),
            protocol: Protocol::Udp,
            port: 53,
        };
        let server = VirtualServer { scheduler: "rr".into(), flags: 0, persistence: None };
        let sticky =
            VirtualServer { scheduler: "mh".into(), flags: abi::SCHED_PORT, persistence: Some(10_800) };
        let real = |text: &str, weight| RealServer { address: text.parse().expect("an address"), weight };
        vec![
            IpvsChange::NewServer(v4, server.clone()),
            IpvsChange::SetServer(v6, sticky),
            IpvsChange::NewReal(v4, real("10.1.0.1:8080", 1)),
            IpvsChange::SetReal(v6, real("[fd00:1::1]:53", 0)),
            IpvsChange::DeleteReal(v4, real("10.1.0.1:8080", 0).address),
            IpvsChange::DeleteServer(v6),
            IpvsChange::SetTimeouts(IpvsTimeouts { tcp: 900, tcp_fin: 0, udp: 300 }),
        ]
    }

    #[test]
    fn every_change_is_read_as_it_was_written() {
        let mut out = MessageWriter::new();
        for (seq, change) in changes().iter().enumerate() {
            encode(&mut out, 40, seq as u32, change);
        }
        let read: Vec<IpvsChange> =
            messages(out.bytes()).map(|raw| decode_change(raw).expect("complete")).collect();
        assert_eq!(read, changes());
        assert!(messages(out.bytes()).all(|raw| raw.header.kind == 40 && raw.header.version == abi::VERSION));
    }

    #[test]
    fn ipv4_addresses_take_sixteen_bytes_and_ports_are_in_network_order() {
        let mut out = MessageWriter::new();
        encode(&mut out, 40, 1, &changes()[0]);
        let raw = messages(out.bytes()).next().expect("one message");
        let server = raw.attrs().nested(abi::ATTR_SERVICE).expect("nested");
        assert_eq!(server.find(service::ADDR).map(<[u8]>::len), Some(16));
        assert_eq!(server.find(service::PORT), Some(&[0, 80][..]));
        assert_eq!(server.find(service::NETMASK), Some(&[255; 4][..]));
    }

    #[test]
    fn messages_that_are_cut_off_are_refused_without_a_panic() {
        for change in changes() {
            let mut out = MessageWriter::new();
            encode(&mut out, 40, 1, &change);
            let bytes = out.bytes();
            for length in 0..bytes.len() {
                let mut cut = bytes[..length].to_vec();
                if length >= 4 {
                    cut[..4].copy_from_slice(&(length as u32).to_ne_bytes());
                }
                messages(&cut).for_each(|raw| drop((decode_change(raw), decode_server(raw))));
            }
        }
    }
}

//! ctnetlink: conntrack over netlink, with filters that the kernel applies (CTA_FILTER).

use std::net::{IpAddr, SocketAddr};

use model::Family;
use nix::errno::Errno;

use super::{ConntrackEntry, ConntrackFilter, ConntrackTable, DumpStatus};
use crate::nfnetlink::abi::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, SUBSYS_CTNETLINK};
use crate::nfnetlink::wire::{Attrs, MessageHeader, MessageWriter};
use crate::nfnetlink::{DumpEnd, NetlinkError, NetlinkSocket};

const CT_GET: u16 = 1;
const CT_DELETE: u16 = 2;

const TUPLE_ORIG: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
const FILTER_ORIG: u16 = 1;
const FILTER_REPLY: u16 = 2;

const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const TUPLE_ZONE: u16 = 3;
const V4_SRC: u16 = 1;
const V6_SRC: u16 = 3;
const PROTO_NUM: u16 = 1;
const PROTO_SRC_PORT: u16 = 2;
const PROTO_DST_PORT: u16 = 3;

/// Fields of a tuple that a filter compares.
const MATCH_DST: u32 = 1 << 1;
const MATCH_PROTO: u32 = 1 << 3;
const MATCH_DPORT: u32 = 1 << 5;

/// The conntrack table of the network namespace that the socket was opened in.
pub struct ConntrackSocket {
    pub(super) socket: NetlinkSocket,
}

impl ConntrackSocket {
    pub fn open() -> Result<ConntrackSocket, NetlinkError> {
        Ok(ConntrackSocket { socket: NetlinkSocket::open()? })
    }
}

pub(super) fn header(message: u16, flags: u16, family: Family) -> MessageHeader {
    let family = match family {
        Family::V4 => 2,
        Family::V6 => 10,
    };
    // With version 1 a delete filters by family.
    MessageHeader {
        kind: SUBSYS_CTNETLINK << 8 | message,
        flags: NLM_F_REQUEST | flags,
        seq: 0,
        family,
        version: 1,
        resource: 0,
    }
}

/// The source attribute of a family; the destination's number is one higher.
fn source_attr(family: Family) -> u16 {
    match family {
        Family::V4 => V4_SRC,
        Family::V6 => V6_SRC,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The address that the kernel compares. Never an IPv6 address: kernels up to at least 6.18 invert that comparison and
/// dump, or delete, every other entry.
fn compared_dst(filter: &ConntrackFilter) -> Option<IpAddr> {
    filter.dst.filter(IpAddr::is_ipv4)
}

fn write_filter(out: &mut MessageWriter, filter: &ConntrackFilter) {
    out.nested(TUPLE_ORIG, |out| {
        if let Some(dst) = compared_dst(filter) {
            out.nested(TUPLE_IP, |out| out.attr(source_attr(filter.family) + 1, &octets(dst)));
        }
        out.nested(TUPLE_PROTO, |out| {
            out.attr_u8(PROTO_NUM, filter.protocol);
            if let Some(port) = filter.dport {
                out.attr(PROTO_DST_PORT, &port.to_be_bytes());
            }
        });
    });
    let mut compared = MATCH_PROTO;
    compared |= compared_dst(filter).map_or(0, |_| MATCH_DST);
    compared |= filter.dport.map_or(0, |_| MATCH_DPORT);
    out.nested(FILTER, |out| {
        out.attr(FILTER_ORIG, &compared.to_ne_bytes());
        out.attr(FILTER_REPLY, &0u32.to_ne_bytes());
    });
}

fn write_entry(out: &mut MessageWriter, entry: &ConntrackEntry) {
    let source = source_attr(Family::of(entry.src.ip()));
    out.nested(TUPLE_ORIG, |out| {
        out.nested(TUPLE_IP, |out| {
            out.attr(source, &octets(entry.src.ip()));
            out.attr(source + 1, &octets(entry.dst.ip()));
        });
        out.nested(TUPLE_PROTO, |out| {
            out.attr_u8(PROTO_NUM, entry.protocol);
            out.attr(PROTO_SRC_PORT, &entry.src.port().to_be_bytes());
            out.attr(PROTO_DST_PORT, &entry.dst.port().to_be_bytes());
        });
    });
    if let Some(id) = entry.id {
        out.attr_u32(ID, id);
    }
}

/// One direction of a connection: protocol, source, destination.
fn read_tuple(tuple: Attrs<'_>, family: Family) -> Option<(u8, SocketAddr, SocketAddr)> {
    let (ip, proto) = (tuple.nested(TUPLE_IP)?, tuple.nested(TUPLE_PROTO)?);
    let address = |attr: u16| {
        let bytes = ip.find(attr)?;
        match family {
            Family::V4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
            Family::V6 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        }
    };
    let port = |attr: u16| Some(u16::from_be_bytes(proto.find(attr)?.get(..2)?.try_into().ok()?));
    let source = source_attr(family);
    let src = SocketAddr::new(address(source)?, port(PROTO_SRC_PORT)?);
    let dst = SocketAddr::new(address(source + 1)?, port(PROTO_DST_PORT)?);
    Some((proto.u8(PROTO_NUM)?, src, dst))
}

/// Decodes an entry. None for protocols without ports and for conntrack zones other than 0, which our rules never use.
pub(super) fn read_entry(attrs: Attrs<'_>, family: Family) -> Option<ConntrackEntry> {
    let original = attrs.nested(TUPLE_ORIG)?;
    let elsewhere = attrs.find(ZONE).is_some_and(|zone| zone.iter().any(|byte| *byte != 0));
    if elsewhere || original.find(TUPLE_ZONE).is_some() {
        return None;
    }
    let (protocol, src, dst) = read_tuple(original, family)?;
    let (_, reply_src, reply_dst) = read_tuple(attrs.nested(TUPLE_REPLY)?, family)?;
    Some(ConntrackEntry { protocol, src, dst, reply_src, reply_dst, id: attrs.u32(ID) })
}

/// The entry with its original direction encoded and decoded, for the fuzz target.
pub(crate) fn recoded(entry: &ConntrackEntry) -> Option<ConntrackEntry> {
    let mut out = MessageWriter::new();
    write_entry(&mut out, entry);
    let attrs = Attrs::new(out.bytes());
    let (protocol, src, dst) = read_tuple(attrs.nested(TUPLE_ORIG)?, Family::of(entry.src.ip()))?;
    Some(ConntrackEntry { protocol, src, dst, id: attrs.u32(ID), ..entry.clone() })
}

impl ConntrackTable for ConntrackSocket {
    fn dump(
        &mut self,
        filter: &ConntrackFilter,
        take: &mut dyn FnMut(ConntrackEntry),
    ) -> Result<DumpStatus, NetlinkError> {
        let request = header(CT_GET, NLM_F_DUMP, filter.family);
        let end = self.socket.request(request, |out| write_filter(out, filter), &mut |raw| {
            // Compared again: the kernel ignores some fields.
            let entry = read_entry(raw.attrs(), filter.family);
            entry.filter(|entry| filter.matches(entry)).into_iter().for_each(&mut *take);
        })?;
        Ok(if end == DumpEnd::Complete { DumpStatus::Complete } else { DumpStatus::Partial })
    }

    fn delete_matching(&mut self, filter: &ConntrackFilter) -> Result<(), NetlinkError> {
        if compared_dst(filter) != filter.dst {
            return Err(NetlinkError::Refused { seq: 0, errno: Errno::EOPNOTSUPP, text: None });
        }
        let request = header(CT_DELETE, NLM_F_ACK, filter.family);
        self.socket.request(request, |out| write_filter(out, filter), &mut |_| {}).map(|_| ())
    }

    fn delete(&mut self, entry: &ConntrackEntry) -> Result<bool, NetlinkError> {
        let request = header(CT_DELETE, NLM_F_ACK, Family::of(entry.dst.ip()));
        match self.socket.request(request, |out| write_entry(out, entry), &mut |_| {}) {
            Ok(_) => Ok(true),
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

//! The kernel's table of connections over netlink (ctnetlink), with filters that the kernel applies (CTA_FILTER): what
//! does not match never leaves it.

use std::net::{IpAddr, SocketAddr};

use nix::errno::Errno;

use super::{Conntrack, Family, Filter, Flow, Seen};
use crate::nftables::netlink::abi::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, SUBSYS_CTNETLINK};
use crate::nftables::netlink::wire::{Attrs, Header, Writer};
use crate::nftables::netlink::{Complete, NetlinkError, Socket};

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

/// The table of connections of the network namespace that this was opened in.
pub struct CtSocket {
    pub(super) socket: Socket,
}

impl CtSocket {
    /// Opens a socket for it.
    pub fn open() -> Result<CtSocket, NetlinkError> {
        Ok(CtSocket { socket: Socket::open()? })
    }
}

pub(super) fn header(message: u16, flags: u16, family: Family) -> Header {
    let family = match family {
        Family::Ip => 2,
        Family::Ip6 => 10,
    };
    // Version 1 makes the family count in a delete.
    Header {
        kind: SUBSYS_CTNETLINK << 8 | message,
        flags: NLM_F_REQUEST | flags,
        seq: 0,
        family,
        version: 1,
        resource: 0,
    }
}

/// The number of a source attribute by family; the destination's is the next.
fn source_attr(family: Family) -> u16 {
    match family {
        Family::Ip => V4_SRC,
        Family::Ip6 => V6_SRC,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The address that the kernel is asked to compare. Never one of IPv6: kernels up to 6.18 at least have that comparison
/// the wrong way round, and would hand out, or delete, every flow but those.
fn compared_dst(filter: &Filter) -> Option<IpAddr> {
    filter.dst.filter(IpAddr::is_ipv4)
}

fn write_filter(out: &mut Writer, filter: &Filter) {
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

fn write_flow(out: &mut Writer, flow: &Flow) {
    let source = source_attr(Family::of(flow.src.ip()));
    out.nested(TUPLE_ORIG, |out| {
        out.nested(TUPLE_IP, |out| {
            out.attr(source, &octets(flow.src.ip()));
            out.attr(source + 1, &octets(flow.dst.ip()));
        });
        out.nested(TUPLE_PROTO, |out| {
            out.attr_u8(PROTO_NUM, flow.protocol);
            out.attr(PROTO_SRC_PORT, &flow.src.port().to_be_bytes());
            out.attr(PROTO_DST_PORT, &flow.dst.port().to_be_bytes());
        });
    });
    if let Some(id) = flow.id {
        out.attr_u32(ID, id);
    }
}

/// One direction of a connection: protocol, source, destination.
fn read_tuple(tuple: Attrs<'_>, family: Family) -> Option<(u8, SocketAddr, SocketAddr)> {
    let (ip, proto) = (tuple.nested(TUPLE_IP)?, tuple.nested(TUPLE_PROTO)?);
    let address = |attr: u16| {
        let bytes = ip.find(attr)?;
        match family {
            Family::Ip => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
            Family::Ip6 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        }
    };
    let port = |attr: u16| Some(u16::from_be_bytes(proto.find(attr)?.get(..2)?.try_into().ok()?));
    let source = source_attr(family);
    let src = SocketAddr::new(address(source)?, port(PROTO_SRC_PORT)?);
    let dst = SocketAddr::new(address(source + 1)?, port(PROTO_DST_PORT)?);
    Some((proto.u8(PROTO_NUM)?, src, dst))
}

/// A flow out of a message. None for what has no ports, and for zones other than the first: those are separate worlds
/// that our rules do not make.
pub(super) fn read_flow(attrs: Attrs<'_>, family: Family) -> Option<Flow> {
    let original = attrs.nested(TUPLE_ORIG)?;
    let elsewhere = attrs.find(ZONE).is_some_and(|zone| zone.iter().any(|byte| *byte != 0));
    if elsewhere || original.find(TUPLE_ZONE).is_some() {
        return None;
    }
    let (protocol, src, dst) = read_tuple(original, family)?;
    let (_, reply_src, reply_dst) = read_tuple(attrs.nested(TUPLE_REPLY)?, family)?;
    Some(Flow { protocol, src, dst, reply_src, reply_dst, id: attrs.u32(ID) })
}

impl Conntrack for CtSocket {
    fn dump(&mut self, filter: &Filter, take: &mut dyn FnMut(Flow)) -> Result<Seen, NetlinkError> {
        let request = header(CT_GET, NLM_F_DUMP, filter.family);
        let complete = self.socket.each(request, |out| write_filter(out, filter), &mut |raw| {
            // Compared again here, since the kernel does not compare everything.
            let flow = read_flow(raw.attrs(), filter.family);
            flow.filter(|flow| filter.matches(flow)).into_iter().for_each(&mut *take);
        })?;
        Ok(if complete == Complete::Yes { Seen::All } else { Seen::Some })
    }

    fn delete_matching(&mut self, filter: &Filter) -> Result<(), NetlinkError> {
        if compared_dst(filter) != filter.dst {
            return Err(NetlinkError::Refused { seq: 0, errno: Errno::EOPNOTSUPP, text: None });
        }
        let request = header(CT_DELETE, NLM_F_ACK, filter.family);
        self.socket.each(request, |out| write_filter(out, filter), &mut |_| {}).map(|_| ())
    }

    fn delete(&mut self, flow: &Flow) -> Result<bool, NetlinkError> {
        let request = header(CT_DELETE, NLM_F_ACK, Family::of(flow.dst.ip()));
        match self.socket.each(request, |out| write_flow(out, flow), &mut |_| {}) {
            Ok(_) => Ok(true),
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

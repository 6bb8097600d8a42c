//! Routes of type local: IPVS sees a packet only where its destination is local to the node. One route makes a whole
//! ServiceCIDR local, without an address on an interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use model::Family;

use super::abi;
use crate::nfnetlink::abi::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST};
use crate::nfnetlink::wire::{Attrs, MessageHeader, MessageWriter, RawMessage};

/// A range that is local to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalRoute {
    pub range: IpNet,
    /// The address from which the node itself connects to the range. Without one it would be the destination.
    pub source: Option<IpAddr>,
}

/// A change of routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RouteChange {
    Replace(LocalRoute),
    Delete(LocalRoute),
}

pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

pub(super) fn family_number(family: Family) -> u8 {
    match family {
        Family::V4 => abi::AF_INET as u8,
        Family::V6 => abi::AF_INET6 as u8,
    }
}

pub(super) fn encode(out: &mut MessageWriter, seq: u32, change: &RouteChange) {
    let (kind, more, route) = match change {
        // The new one replaces one to the same range, with another source.
        RouteChange::Replace(route) => (abi::RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, route),
        RouteChange::Delete(route) => (abi::RTM_DELROUTE, 0, route),
    };
    let family = Family::of(route.range.addr());
    // The first four bytes of rtmsg: family, length of the destination, of the source, type of service.
    let header = MessageHeader {
        kind,
        flags: NLM_F_REQUEST | NLM_F_ACK | more,
        seq,
        family: family_number(family),
        version: route.range.prefix_len(),
        resource: 0,
    };
    out.message(header, |out| {
        let scope = if family == Family::V4 { abi::RT_SCOPE_HOST } else { abi::RT_SCOPE_UNIVERSE };
        out.attributes(&[abi::RT_TABLE_LOCAL, abi::RTPROT_ZONEWARD, scope, abi::RTN_LOCAL, 0, 0, 0, 0]);
        out.attr(abi::RTA_DST, &octets(route.range.network()));
        out.attr(abi::RTA_OIF, &abi::LOOPBACK_INDEX.to_ne_bytes());
        if let Some(source) = route.source {
            out.attr(abi::RTA_PREFSRC, &octets(source));
        }
    });
}

pub(super) fn dump_header(family: Family) -> MessageHeader {
    let flags = NLM_F_REQUEST | NLM_F_DUMP;
    MessageHeader {
        kind: abi::RTM_GETROUTE,
        flags,
        seq: 0,
        family: family_number(family),
        version: 0,
        resource: 0,
    }
}

/// The rest of rtmsg.
pub(super) fn put_dump(out: &mut MessageWriter) {
    out.attributes(&[0; 8]);
}

/// Whether it is a route of ours in a dump.
pub(super) fn decode(raw: RawMessage<'_>) -> Option<LocalRoute> {
    let (head, rest) = raw.payload.split_at_checked(12)?;
    let ours = [abi::RT_TABLE_LOCAL, abi::RTPROT_ZONEWARD];
    if raw.header.kind != abi::RTM_NEWROUTE || head[4..6] != ours || head[7] != abi::RTN_LOCAL {
        return None;
    }
    let attrs = Attrs::new(rest);
    let network = address(attrs.find(abi::RTA_DST)?)?;
    let range = IpNet::new(network, head[1]).ok()?;
    Some(LocalRoute { range, source: attrs.find(abi::RTA_PREFSRC).and_then(address) })
}

/// A change as the kernel reads it.
pub(super) fn decode_change(raw: RawMessage<'_>) -> Option<RouteChange> {
    let (head, rest) = raw.payload.split_at_checked(12)?;
    let attrs = Attrs::new(rest);
    let range = IpNet::new(address(attrs.find(abi::RTA_DST)?)?, head[1]).ok()?;
    let route = LocalRoute { range, source: attrs.find(abi::RTA_PREFSRC).and_then(address) };
    match raw.header.kind {
        abi::RTM_NEWROUTE if raw.header.flags & NLM_F_EXCL == 0 => Some(RouteChange::Replace(route)),
        abi::RTM_DELROUTE => Some(RouteChange::Delete(route)),
        _ => None,
    }
}

pub(super) fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|bytes| IpAddr::from(Ipv4Addr::from(bytes)));
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(|bytes| IpAddr::from(Ipv6Addr::from(bytes)))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nfnetlink::wire::messages;

    #[test]
    fn routes_are_read_as_they_were_written_and_others_are_left_alone() {
        let routes = [("10.96.0.0/12", Some("192.0.2.1")), ("fd00:96::/112", None)];
        for (range, source) in routes {
            let route = LocalRoute {
                range: range.parse().expect("a range"),
                source: source.map(|text| text.parse().expect("an address")),
            };
            let mut out = MessageWriter::new();
            encode(&mut out, 1, &RouteChange::Replace(route));
            let raw = messages(out.bytes()).next().expect("one message");
            assert_eq!(decode(raw), Some(route));
            assert_eq!(decode_change(raw), Some(RouteChange::Replace(route)));
            let mut foreign = out.bytes().to_vec();
            foreign[16 + 5] = 2;
            assert_eq!(decode(messages(&foreign).next().expect("one message")), None, "the kernel's own");
        }
    }
}

//! How many connections went from which frontend to which endpoint, as the rules counted them.

use std::net::{IpAddr, SocketAddr};

use model::{Family, Protocol};

use super::read::ReadError;
use crate::nftables::ir::Name;
use crate::nftables::netlink::abi::{counter, data, elem, rule};
use crate::nftables::netlink::wire::{Attrs, Raw};
use crate::nftables::netlink::{Kernel, NetlinkError, Query};
use crate::nftables::render::{SetName, protocol_of, table_id};

/// How often counts are read that somebody changes meanwhile.
const ATTEMPTS: u32 = 5;

/// Connections from one frontend to one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// The transport protocol.
    pub protocol: Protocol,
    /// Where clients connected to.
    pub frontend: SocketAddr,
    /// Where the connections went.
    pub endpoint: SocketAddr,
    /// How many, since this pair was first seen or last forgotten.
    pub connections: u64,
}

/// Reads the counts of a family. Where there is no table of ours, there are none.
pub fn counted(kernel: &mut dyn Kernel, family: Family) -> Result<Vec<Counted>, ReadError> {
    let query = Query::Elements(table_id(family), Name::from(SetName::Connections.stem()));
    let mut attempt = 1;
    loop {
        let mut found = Vec::new();
        match kernel.each(&query, &mut |raw| take(raw, family, &mut found)) {
            Ok(()) => return Ok(found),
            Err(NetlinkError::Interrupted | NetlinkError::Lost) if attempt < ATTEMPTS => attempt += 1,
            Err(cause) if cause.errno() == Some(nix::errno::Errno::ENOENT) => return Ok(Vec::new()),
            Err(cause) => return Err(ReadError { what: "counts of connections", cause }),
        }
    }
}

fn take(raw: Raw<'_>, family: Family, found: &mut Vec<Counted>) {
    let elements = raw.attrs().nested(elem::LIST_ELEMENTS);
    let list = elements.iter().flat_map(|list| list.iter());
    found.extend(list.filter_map(|(_, element)| read(Attrs::new(element), family)));
}

/// An element without a counter was put there by somebody else.
fn read(element: Attrs<'_>, family: Family) -> Option<Counted> {
    let key = element.nested(elem::KEY)?.find(data::VALUE)?;
    let (protocol, frontend, endpoint) = pair(key, family)?;
    let counts = element.nested(elem::EXPR)?.nested(rule::EXPR_DATA)?;
    Some(Counted { protocol, frontend, endpoint, connections: counts.u64(counter::PACKETS)? })
}

/// The fields of `SetName::Connections`: address . protocol . port . address . port.
fn pair(key: &[u8], family: Family) -> Option<(Protocol, SocketAddr, SocketAddr)> {
    let width = if family == Family::V4 { 4 } else { 16 };
    let address = |at: usize| {
        let bytes = key.get(at..at + width)?;
        let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
        v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
    };
    let port = |at: usize| Some(u16::from_be_bytes(key.get(at..at + 2)?.try_into().ok()?));
    let protocol = protocol_of(*key.get(width)?)?;
    let frontend = SocketAddr::new(address(0)?, port(width + 4)?);
    Some((protocol, frontend, SocketAddr::new(address(width + 8)?, port(2 * width + 8)?)))
}

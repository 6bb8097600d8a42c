//! Connections from frontends to endpoints, as counted by the rules.

use std::net::{IpAddr, SocketAddr};

use model::{Family, Protocol};

use super::dump::RulesetReadError;
use crate::nfnetlink::NetlinkError;
use crate::nfnetlink::wire::{Attrs, RawMessage};
use crate::nftables::abi::{counter, data, elem, rule};
use crate::nftables::ir::NftName;
use crate::nftables::kernel::{DumpRequest, Kernel};
use crate::nftables::render::{SetName, protocol_of, table_id};

/// Attempts at a dump that others interrupt.
const ATTEMPTS: u32 = 5;

/// Connections from one frontend to one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionCount {
    pub protocol: Protocol,
    pub frontend: SocketAddr,
    pub endpoint: SocketAddr,
    /// Connections since the counter was created; counters expire.
    pub connections: u64,
}

/// Reads the counters of a family; none if the table does not exist.
pub fn connection_counts(
    kernel: &mut dyn Kernel,
    family: Family,
) -> Result<Vec<ConnectionCount>, RulesetReadError> {
    let request = DumpRequest::Elements(table_id(family), NftName::from(SetName::Connections.stem()));
    let mut attempt = 1;
    loop {
        let mut found = Vec::new();
        match kernel.each(&request, &mut |raw| take(raw, family, &mut found)) {
            Ok(()) => return Ok(found),
            Err(NetlinkError::Interrupted | NetlinkError::Lost) if attempt < ATTEMPTS => attempt += 1,
            Err(cause) if cause.errno() == Some(nix::errno::Errno::ENOENT) => return Ok(Vec::new()),
            Err(cause) => return Err(RulesetReadError { what: "counts of connections", cause }),
        }
    }
}

fn take(raw: RawMessage<'_>, family: Family, found: &mut Vec<ConnectionCount>) {
    let elements = raw.attrs().nested(elem::LIST_ELEMENTS);
    let list = elements.iter().flat_map(|list| list.iter());
    found.extend(list.filter_map(|(_, element)| read(Attrs::new(element), family)));
}

/// None for an element without a counter, which the rules do not create.
fn read(element: Attrs<'_>, family: Family) -> Option<ConnectionCount> {
    let key = element.nested(elem::KEY)?.find(data::VALUE)?;
    let (protocol, frontend, endpoint) = counted_pair(key, family)?;
    let counts = element.nested(elem::EXPR)?.nested(rule::EXPR_DATA)?;
    Some(ConnectionCount { protocol, frontend, endpoint, connections: counts.u64(counter::PACKETS)? })
}

/// The fields of `SetName::Connections`: address . protocol . port . address . port.
pub fn counted_pair(key: &[u8], family: Family) -> Option<(Protocol, SocketAddr, SocketAddr)> {
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

//! The kernel's connection tracking table: stale UDP entries, byte counters, events of closed connections.

mod accounting;
mod ctnetlink;
mod fake;
mod new_connections;
mod stale_udp;

pub(crate) use accounting::destroyed;
pub use accounting::{AccountedEntry, ConntrackEvents};
pub use ctnetlink::ConntrackSocket;
pub(crate) use ctnetlink::recoded;
pub use fake::{DumpFault, FakeConntrack};
pub use new_connections::NewConnections;
pub use stale_udp::{StaleCleanup, delete_stale_udp, is_stale};

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use model::Family;

use crate::nfnetlink::NetlinkError;

/// The protocol number of UDP.
pub const UDP: u8 = 17;

/// One tracked connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConntrackEntry {
    /// Transport protocol number.
    pub protocol: u8,
    /// Source of the first packet.
    pub src: SocketAddr,
    /// Destination of the first packet before DNAT: a frontend.
    pub dst: SocketAddr,
    /// Source of replies: the endpoint.
    pub reply_src: SocketAddr,
    /// Destination of replies: the client, or the node if the client was masqueraded.
    pub reply_dst: SocketAddr,
    /// The kernel's id, which tells a new entry with the same addresses from this one.
    pub id: Option<u32>,
}

/// Selects entries that agree in every given field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConntrackFilter {
    /// Transport protocol number.
    pub protocol: u8,
    /// Address family.
    pub family: Family,
    /// Original destination address.
    pub dst: Option<IpAddr>,
    /// Original destination port.
    pub dport: Option<u16>,
}

impl ConntrackFilter {
    /// Whether an entry is selected.
    pub fn matches(&self, entry: &ConntrackEntry) -> bool {
        entry.protocol == self.protocol
            && Family::of(entry.dst.ip()) == self.family
            && self.dst.is_none_or(|dst| dst == entry.dst.ip())
            && self.dport.is_none_or(|port| port == entry.dst.port())
    }
}

/// Whether a dump saw every entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpStatus {
    /// Every entry.
    Complete,
    /// The table was resized during the dump: some entries may be missing.
    Partial,
}

/// The connection tracking table of a kernel.
pub trait ConntrackTable {
    /// Passes the entries that match.
    fn dump(
        &mut self,
        filter: &ConntrackFilter,
        take: &mut dyn FnMut(ConntrackEntry),
    ) -> Result<DumpStatus, NetlinkError>;

    /// Deletes all entries that match, within the kernel. Old kernels return EINVAL, every kernel EOPNOTSUPP for a
    /// filter with an IPv6 address.
    fn delete_matching(&mut self, filter: &ConntrackFilter) -> Result<(), NetlinkError>;

    /// Deletes one entry. Returns whether it existed.
    fn delete(&mut self, entry: &ConntrackEntry) -> Result<bool, NetlinkError>;
}

/// A table with several owners, such as a sync loop and a test that adds entries.
impl<T: ConntrackTable> ConntrackTable for Arc<Mutex<T>> {
    fn dump(
        &mut self,
        filter: &ConntrackFilter,
        take: &mut dyn FnMut(ConntrackEntry),
    ) -> Result<DumpStatus, NetlinkError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).dump(filter, take)
    }

    fn delete_matching(&mut self, filter: &ConntrackFilter) -> Result<(), NetlinkError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).delete_matching(filter)
    }

    fn delete(&mut self, entry: &ConntrackEntry) -> Result<bool, NetlinkError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).delete(entry)
    }
}

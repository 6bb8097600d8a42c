//! Connection tracking: UDP flows that lead to endpoints that are gone.
//!
//! The kernel keeps sending a UDP flow where its first packet went, for as long as packets come. So after the rules
//! changed, flows to a frontend of a Service whose answers come from no serving endpoint are deleted, and the next
//! packet meets the new rules. TCP and SCTP notice by themselves.
//!
//! ```text
//! UdpService -> IPv4 frontends without endpoint: one delete, matched in the kernel
//!            -> all others: dump, matched in the kernel -> stale? -> delete just that flow
//! ```

mod account;
mod clean;
mod ctnetlink;
mod fake;
mod stale;

pub use account::{Account, Ended};
pub use clean::{Cleaned, clean};
pub use ctnetlink::CtSocket;
pub use fake::{FakeConntrack, FlowFault};
pub use stale::{UdpService, is_stale};

use std::net::{IpAddr, SocketAddr};

use crate::nftables::netlink::NetlinkError;

/// The number of UDP.
pub const UDP: u8 = 17;

/// One tracked connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// The transport protocol.
    pub protocol: u8,
    /// Where the first packet came from.
    pub src: SocketAddr,
    /// Where it was sent: a frontend, before translation.
    pub dst: SocketAddr,
    /// Where answers come from: the endpoint.
    pub reply_src: SocketAddr,
    /// Where answers go: the client, or the node if it was masqueraded.
    pub reply_dst: SocketAddr,
    /// The kernel's number for it, so that a new flow with the same addresses is not mistaken for it.
    pub id: Option<u32>,
}

/// Which flows: all that agree in every field that is given.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Filter {
    /// The transport protocol.
    pub protocol: u8,
    /// The address family.
    pub family: Family,
    /// Where the first packet was sent.
    pub dst: Option<IpAddr>,
    /// The port that it was sent to.
    pub dport: Option<u16>,
}

impl Filter {
    /// Whether a flow agrees.
    pub fn matches(&self, flow: &Flow) -> bool {
        flow.protocol == self.protocol
            && Family::of(flow.dst.ip()) == self.family
            && self.dst.is_none_or(|dst| dst == flow.dst.ip())
            && self.dport.is_none_or(|port| port == flow.dst.port())
    }
}

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
}

impl Family {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::Ip } else { Family::Ip6 }
    }
}

/// Whether all flows that were asked for were seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// All.
    All,
    /// The kernel's table changed its size on the way: perhaps not all.
    Some,
}

/// The kernel's table of connections, or one that behaves like it.
pub trait Conntrack {
    /// Hands out the flows that match.
    fn dump(&mut self, filter: &Filter, take: &mut dyn FnMut(Flow)) -> Result<Seen, NetlinkError>;

    /// Deletes all flows that match, within the kernel. Older kernels cannot: they look for one flow and find it
    /// incompletely described (EINVAL); and none can for IPv6 addresses (EOPNOTSUPP).
    fn delete_matching(&mut self, filter: &Filter) -> Result<(), NetlinkError>;

    /// Deletes this flow; that it is gone already is fine. Answers whether it was there.
    fn delete(&mut self, flow: &Flow) -> Result<bool, NetlinkError>;
}

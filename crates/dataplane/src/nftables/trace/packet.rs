//! Input and output of an evaluation: the packet, the node's addresses, the paths with every rule that matched.

use std::net::{IpAddr, SocketAddr};

use crate::backend::TracedVerdict;
use crate::nftables::ir::{Comment, Hook, NftName, TableId};

/// The first packet of a connection, unless `established`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedPacket {
    /// If this is an address of the node, the packet starts at the output hook.
    pub src: IpAddr,
    pub dst: IpAddr,
    /// Transport protocol number.
    pub protocol: u8,
    pub sport: u16,
    pub dport: u16,
    /// Input interface.
    pub iif: Option<NftName>,
    /// Output interface.
    pub oif: Option<NftName>,
    pub mark: u32,
    /// User id of the sending socket.
    pub uid: u32,
    /// Belongs to a tracked connection; nat chains do not see it.
    pub established: bool,
}

impl TracedPacket {
    /// A packet of a new connection without mark and interfaces.
    pub fn new(protocol: u8, src: SocketAddr, dst: SocketAddr) -> TracedPacket {
        TracedPacket {
            src: src.ip(),
            dst: dst.ip(),
            protocol,
            sport: src.port(),
            dport: dst.port(),
            iif: None,
            oif: None,
            mark: 0,
            uid: 0,
            established: false,
        }
    }
}

/// The node that a packet meets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeAddresses {
    /// Loopback addresses are implied.
    pub addresses: Vec<IpAddr>,
}

impl NodeAddresses {
    pub fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address)
    }
}

/// One rule that matched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleMatch {
    pub hook: Hook,
    pub table: TableId,
    pub chain: NftName,
    /// Index of the rule in its chain.
    pub index: usize,
    /// Comment of the rule.
    pub rule: Option<Comment>,
    /// Lookups that succeeded: set and comment of the element.
    pub found: Vec<(NftName, Option<Comment>)>,
    /// What the rule did, as text.
    pub did: String,
}

/// One path of a packet with its probability.
#[derive(Debug, Clone, PartialEq)]
pub struct TracePath {
    pub weight: f64,
    pub verdict: TracedVerdict,
    /// The destination after rewrites.
    pub destination: SocketAddr,
    pub masquerade: bool,
    pub mark: u32,
    pub steps: Vec<RuleMatch>,
    pub updates: Vec<DynsetUpdate>,
}

/// An element of a dynamic set that a rule added, renewed or deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DynsetUpdate {
    pub table: TableId,
    pub set: NftName,
    pub key: crate::nftables::ir::Bytes,
    /// None if the element was deleted.
    pub value: Option<crate::nftables::ir::ElementValue>,
    /// Whether the element counts packets.
    pub counts: bool,
}

/// All paths of a packet.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// The most likely verdict.
    pub verdict: TracedVerdict,
    /// Rewritten destinations with their probabilities, sorted.
    pub endpoints: Vec<(SocketAddr, f64)>,
    /// Whether the most likely path with this verdict masquerades.
    pub masquerade: bool,
    /// Session affinity timeout in milliseconds.
    pub affinity: Option<u64>,
    /// In the order of the random numbers.
    pub paths: Vec<TracePath>,
}

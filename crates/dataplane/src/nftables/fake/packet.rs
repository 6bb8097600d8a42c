//! What goes into an evaluation and what comes out: a packet, the node that it meets, and what became of it with every
//! step on the way.

use std::net::{IpAddr, SocketAddr};

use crate::nftables::ir::{Comment, Hook, Name, TableId};

/// The first packet of a connection, unless `established`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Where it comes from. If that is an address of the node, the packet starts at the output hook.
    pub src: IpAddr,
    /// Where it is sent.
    pub dst: IpAddr,
    /// The transport protocol by number: 6 TCP, 17 UDP, 132 SCTP.
    pub protocol: u8,
    /// The source port.
    pub sport: u16,
    /// The destination port.
    pub dport: u16,
    /// The interface that it comes in by, if that is known.
    pub iif: Option<Name>,
    /// The interface that it leaves by, if that is known.
    pub oif: Option<Name>,
    /// The mark that it carries already.
    pub mark: u32,
    /// The user whose socket it comes from, if it starts here.
    pub uid: u32,
    /// It belongs to a connection that conntrack knows; nat chains do not see it.
    pub established: bool,
}

impl Packet {
    /// A packet of a new connection, without mark, by interfaces that do not matter.
    pub fn new(protocol: u8, src: SocketAddr, dst: SocketAddr) -> Packet {
        Packet {
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

/// What the kernel knows besides its tables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// The node's own addresses; loopback is always one.
    pub addresses: Vec<IpAddr>,
}

impl Node {
    /// Whether the address is one of the node's.
    pub fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address)
    }
}

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// It went on with another destination.
    Dnat,
    /// It was dropped and the sender told.
    Reject,
    /// It was dropped.
    Drop,
    /// A rule said accept, and nothing was rewritten.
    Accept,
    /// No rule said anything.
    Untouched,
}

/// One rule that matched, on one way through the tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The hook at which this happened.
    pub hook: Hook,
    /// The table.
    pub table: TableId,
    /// The chain.
    pub chain: Name,
    /// The place of the rule in its chain, from 0.
    pub index: usize,
    /// What the rule says of itself.
    pub rule: Option<Comment>,
    /// Set or map elements that the rule found: the set's name and the element's comment.
    pub found: Vec<(Name, Option<Comment>)>,
    /// What the rule did, in words.
    pub did: String,
}

/// One way that the packet can take, with the chance that it does.
#[derive(Debug, Clone, PartialEq)]
pub struct Path {
    /// Its chance, 0 to 1.
    pub weight: f64,
    /// How it ended.
    pub fate: Fate,
    /// The destination at the end; where it was sent, unless rewritten.
    pub destination: SocketAddr,
    /// The source is rewritten to an address of the node.
    pub masquerade: bool,
    /// The mark at the end.
    pub mark: u32,
    /// The rules that matched, in order.
    pub steps: Vec<Step>,
    /// Elements that rules added, renewed or removed.
    pub learned: Vec<Learned>,
}

/// A change that a rule made to a dynamic set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Learned {
    /// The table.
    pub table: TableId,
    /// The set.
    pub set: Name,
    /// The key of the element.
    pub key: crate::nftables::ir::Bytes,
    /// What it was: the element, or none where it was deleted.
    pub value: Option<crate::nftables::ir::ElementValue>,
}

/// Everything that can become of a packet.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// How it ends; where chance decides that, the likeliest.
    pub fate: Fate,
    /// Where it can end up after a rewritten destination, sorted, with the chance of each.
    pub endpoints: Vec<(SocketAddr, f64)>,
    /// The source is rewritten, on the likeliest way that has this fate.
    pub masquerade: bool,
    /// How long a client stays with its endpoint, in milliseconds, if rules remember that.
    pub affinity: Option<u64>,
    /// Every way, in the order of the random numbers.
    pub paths: Vec<Path>,
}

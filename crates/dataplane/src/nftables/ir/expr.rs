//! The expressions of rules, one variant for each kind that our rulesets use. They work on sixteen 32-bit registers,
//! and stop the rule when a test fails.

use super::{Bytes, NftFamily, NftName, NftVerdict};

/// A 32-bit register by number, 0 to 15. Longer values take the following ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reg(pub u8);

impl Reg {
    /// The register that follows a value of so many bytes here.
    pub fn after(self, bytes: usize) -> Reg {
        Reg(self.0.saturating_add(u8::try_from(bytes.div_ceil(4)).unwrap_or(u8::MAX)))
    }
}

/// What `Meta` loads or sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MetaKey {
    /// The EtherType, two bytes in network order.
    Protocol,
    /// The packet's mark, in host byte order.
    Mark,
    /// The number of the interface that the packet came in by.
    Iif,
    /// The number of the interface that the packet leaves by.
    Oif,
    /// The name of the interface that it came in by, sixteen bytes.
    IifName,
    /// The name of the interface that it leaves by, sixteen bytes.
    OifName,
    /// The user that the packet's socket belongs to, in host byte order; only for packets made here.
    SkUid,
    /// The address family, one byte: 2 is IPv4, 10 is IPv6.
    NfProto,
    /// The transport protocol, one byte.
    L4Proto,
}

/// What a payload offset counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PayloadBase {
    /// The network header.
    Network,
    /// The transport header.
    Transport,
}

/// What `Ct` loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CtKey {
    /// One bit of invalid 1, established 2, related 4, new 8, untracked 64.
    State,
    /// The connection's status bits: dst-nat is 0x20, src-nat 0x10.
    Status,
    /// The connection's mark.
    Mark,
    /// 0 for original, 1 for reply: which way this packet goes.
    Direction,
    /// The IPv4 source address of a direction's tuple.
    IpSaddr,
    /// The IPv4 destination address of a direction's tuple.
    IpDaddr,
    /// The IPv6 source address of a direction's tuple.
    Ip6Saddr,
    /// The IPv6 destination address of a direction's tuple.
    Ip6Daddr,
    /// The source port of a direction's tuple.
    ProtoSrc,
    /// The destination port of a direction's tuple.
    ProtoDst,
}

/// A direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CtDirection {
    /// As the first packet went.
    Original,
    /// As its answers go.
    Reply,
}

/// Flags and answers of `Fib`.
pub mod fib {
    /// Look the source address up.
    pub const SADDR: u32 = 1;
    /// Look the destination address up.
    pub const DADDR: u32 = 2;
    /// Consider the mark.
    pub const MARK: u32 = 4;
    /// Restrict to the interface that the packet came in by.
    pub const IIF: u32 = 8;
    /// Restrict to the interface that the packet leaves by.
    pub const OIF: u32 = 16;

    /// The answer for an ordinary remote address.
    pub const TYPE_UNICAST: u32 = 1;
    /// The answer for an address of this node.
    pub const TYPE_LOCAL: u32 = 2;
}

/// How `Cmp` compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CmpOp {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less, byte by byte from the first.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

/// What `Bitwise` does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BitwiseOp {
    /// `(value & mask) ^ xor`
    MaskXor {
        /// What stays.
        mask: Bytes,
        /// What is flipped afterwards.
        xor: Bytes,
    },
    /// Shift left by bits.
    Left(u32),
    /// Shift right by bits.
    Right(u32),
}

/// Which address `Nat` rewrites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NatKind {
    /// The destination.
    Dnat,
    /// The source.
    Snat,
}

/// How ports are picked when addresses are rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NatFlags {
    /// `random`
    pub random: bool,
    /// `fully-random`
    pub fully_random: bool,
    /// `persistent`
    pub persistent: bool,
}

/// How `Numgen` counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NumgenKind {
    /// Round robin.
    Inc,
    /// At random.
    Random,
}

/// What `Dynset` does with the element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DynsetOp {
    /// Put it in if it is not there; a time that runs goes on.
    Add,
    /// Put it in, or start its time anew. The data of an element that is there stays.
    Update,
    /// Take it out.
    Delete,
}

/// How `Reject` answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RejectKind {
    /// ICMP (or ICMPv6) unreachable with this code, in the table's own family.
    Icmp(u8),
    /// The same by the family-independent codes of inet tables: 0 no route, 1 port, 2 host, 3 prohibited.
    Icmpx(u8),
    /// A TCP reset.
    TcpReset,
}

/// A value in registers from one to another; most often both are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The lowest.
    pub min: Reg,
    /// The highest, if it differs.
    pub max: Option<Reg>,
}

impl Span {
    /// Just this value.
    pub fn one(reg: Reg) -> Span {
        Span { min: reg, max: None }
    }
}

/// One step of a rule.
#[allow(missing_docs, reason = "each variant says what it does with its fields")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    /// Loads what the kernel knows of the packet.
    Meta { key: MetaKey, dreg: Reg },
    /// Sets what the kernel knows of the packet.
    MetaSet { key: MetaKey, sreg: Reg },
    /// Loads bytes of the packet.
    Payload { base: PayloadBase, offset: u32, len: u32, dreg: Reg },
    /// Loads what conntrack knows of the connection. Addresses and ports need a direction.
    Ct { key: CtKey, direction: Option<CtDirection>, dreg: Reg },
    /// Sets the connection's mark.
    CtSet { key: CtKey, sreg: Reg },
    /// Loads the type of an address (`fib daddr type`).
    FibType { flags: u32, dreg: Reg },
    /// Goes on if the register compares so with the value.
    Cmp { op: CmpOp, sreg: Reg, value: Bytes },
    /// Goes on if the register is within the bounds, or outside of them.
    Range { negated: bool, sreg: Reg, from: Bytes, to: Bytes },
    /// Computes bits.
    Bitwise { sreg: Reg, dreg: Reg, len: u32, op: BitwiseOp },
    /// Loads a constant.
    Immediate { dreg: Reg, value: Bytes },
    /// Ends the rule with a verdict.
    Verdict(NftVerdict),
    /// Goes on if the key is in the set (or is not, if negated).
    Lookup { set: NftName, sreg: Reg, negated: bool },
    /// Loads what the map answers; stops the rule if the key is not there.
    LookupMap { set: NftName, sreg: Reg, dreg: Reg },
    /// Goes where the map says; stops the rule if the key is not there.
    LookupVerdict { set: NftName, sreg: Reg },
    /// Rewrites an address, and a port if given.
    Nat { kind: NatKind, family: NftFamily, address: Option<Span>, port: Option<Span>, flags: NatFlags },
    /// Rewrites the source to the address of the interface that the packet leaves by.
    Masquerade { flags: NatFlags },
    /// Loads a number from `offset` to `offset + modulus - 1`.
    Numgen { kind: NumgenKind, modulus: u32, offset: u32, dreg: Reg },
    /// Changes an element of a dynamic set. Never stops the rule, except `Add` and `Update` when the set is full. On a
    /// map the kernel wants data even for `Delete`, and looks only at the key. nft 1.0.6 lists every form, but cannot
    /// load one whose key is longer than three wide registers, such as two IPv6 addresses with more.
    /// One that counts gives the element a counter that it starts with, and counts the packet there.
    Dynset { op: DynsetOp, set: NftName, key: Reg, data: Option<Reg>, timeout: Option<u64>, counts: bool },
    /// Drops the packet and tells the sender.
    Reject(RejectKind),
    /// Counts packets and bytes. The counts themselves are not part of a ruleset.
    Counter,
    /// An expression that is not one of ours, kept as it came. Only in what others wrote into our tables.
    Foreign { name: NftName, data: Bytes },
}

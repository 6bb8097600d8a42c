//! The expressions of rules that our rulesets use. They work on sixteen 32-bit registers and end the rule when a
//! condition fails.

use super::{Bytes, NftFamily, NftName, NftVerdict};

/// A 32-bit register by number, 0 to 15. Longer values take the following ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reg(pub u8);

impl Reg {
    /// The register after a value of this length.
    pub fn after(self, bytes: usize) -> Reg {
        Reg(self.0.saturating_add(u8::try_from(bytes.div_ceil(4)).unwrap_or(u8::MAX)))
    }
}

/// Key of `Meta` and `MetaSet`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MetaKey {
    /// The EtherType, two bytes in network order.
    Protocol,
    /// The packet's mark, in host byte order.
    Mark,
    /// Index of the input interface.
    Iif,
    /// Index of the output interface.
    Oif,
    /// Name of the input interface, sixteen bytes.
    IifName,
    /// Name of the output interface, sixteen bytes.
    OifName,
    /// User id of the sending socket, in host byte order.
    SkUid,
    /// The address family, one byte: 2 is IPv4, 10 is IPv6.
    NfProto,
    /// The transport protocol, one byte.
    L4Proto,
}

/// What a payload offset counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PayloadBase {
    Network,
    Transport,
}

/// Key of `Ct`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CtKey {
    /// One bit of invalid 1, established 2, related 4, new 8, untracked 64.
    State,
    /// The connection's status bits: dst-nat is 0x20, src-nat 0x10.
    Status,
    Mark,
    /// Direction of this packet: 0 original, 1 reply.
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
    Original,
    Reply,
}

/// Flags and results of `FibType`.
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
    Eq,
    Ne,
    /// Byte by byte, from the first.
    Lt,
    Le,
    Gt,
    Ge,
}

/// What `Bitwise` does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BitwiseOp {
    /// `(value & mask) ^ xor`
    MaskXor { mask: Bytes, xor: Bytes },
    /// Shift left by bits.
    Left(u32),
    /// Shift right by bits.
    Right(u32),
}

/// Which address `Nat` rewrites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NatKind {
    Dnat,
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
    /// Adds the element; the timeout of an existing one continues.
    Add,
    /// Adds the element or restarts its timeout. The data of an existing one stays.
    Update,
    Delete,
}

/// The reply of `Reject`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RejectKind {
    /// ICMP (or ICMPv6) unreachable with this code, in the table's own family.
    Icmp(u8),
    /// The family-independent codes of inet tables: 0 no route, 1 port, 2 host, 3 prohibited.
    Icmpx(u8),
    TcpReset,
}

/// The lowest and highest value of a range, each in a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    pub min: Reg,
    /// None if equal to `min`.
    pub max: Option<Reg>,
}

impl Span {
    pub fn one(reg: Reg) -> Span {
        Span { min: reg, max: None }
    }
}

/// One expression of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    /// Loads packet metadata.
    Meta {
        key: MetaKey,
        dreg: Reg,
    },
    /// Sets packet metadata.
    MetaSet {
        key: MetaKey,
        sreg: Reg,
    },
    /// Loads bytes of the packet.
    Payload {
        base: PayloadBase,
        offset: u32,
        len: u32,
        dreg: Reg,
    },
    /// Loads conntrack state. Addresses and ports need a direction.
    Ct {
        key: CtKey,
        direction: Option<CtDirection>,
        dreg: Reg,
    },
    /// Sets the connection's mark.
    CtSet {
        key: CtKey,
        sreg: Reg,
    },
    /// Loads the type of an address (`fib daddr type`).
    FibType {
        flags: u32,
        dreg: Reg,
    },
    /// Ends the rule unless the comparison holds.
    Cmp {
        op: CmpOp,
        sreg: Reg,
        value: Bytes,
    },
    /// Ends the rule unless the value is within the bounds, or outside if negated.
    Range {
        negated: bool,
        sreg: Reg,
        from: Bytes,
        to: Bytes,
    },
    Bitwise {
        sreg: Reg,
        dreg: Reg,
        len: u32,
        op: BitwiseOp,
    },
    /// Loads a constant.
    Immediate {
        dreg: Reg,
        value: Bytes,
    },
    /// Ends the rule with a verdict.
    Verdict(NftVerdict),
    /// Ends the rule unless the key is in the set, or is not if negated.
    Lookup {
        set: NftName,
        sreg: Reg,
        negated: bool,
    },
    /// Loads the data of a map element; ends the rule if the key does not exist.
    LookupMap {
        set: NftName,
        sreg: Reg,
        dreg: Reg,
    },
    /// Takes the verdict of a map element; ends the rule if the key does not exist.
    LookupVerdict {
        set: NftName,
        sreg: Reg,
    },
    /// Rewrites an address, and a port if given.
    Nat {
        kind: NatKind,
        family: NftFamily,
        address: Option<Span>,
        port: Option<Span>,
        flags: NatFlags,
    },
    /// Rewrites the source to the address of the output interface.
    Masquerade {
        flags: NatFlags,
    },
    /// Loads a number from `offset` to `offset + modulus - 1`.
    Numgen {
        kind: NumgenKind,
        modulus: u32,
        offset: u32,
        dreg: Reg,
    },
    /// Changes an element of a dynamic set. Ends the rule only if the set is full. On a map the kernel requires data even
    /// for `Delete`, which ignores it. nft 1.0.6 lists every form, but cannot load one whose key is longer than three
    /// 128-bit registers. With `counts` the element has a counter, which counts the packet.
    Dynset {
        op: DynsetOp,
        set: NftName,
        key: Reg,
        data: Option<Reg>,
        timeout: Option<u64>,
        counts: bool,
    },
    /// Drops the packet and notifies the sender.
    Reject(RejectKind),
    /// Counts packets and bytes. The counts are not part of a ruleset.
    Counter,
    /// An expression that we do not use, undecoded; only in foreign rules.
    Foreign {
        name: NftName,
        data: Bytes,
    },
}

//! Values of `ir` and the kernel's numbers for them. Tests compare them with `nft list ruleset` on the real kernel.

use crate::nftables::ir::{
    ChainType, CmpOp, CtDirection, CtKey, DynsetOp, FieldType, Hook, MetaKey, NatFlags, NatKind, NftFamily,
    NftVerdict, NumgenKind, PayloadBase, Reg,
};

use super::abi::{self, nat, reg, udata, verdict};

/// Values and their numbers.
pub struct Codes<T: 'static>(&'static [(T, u32)]);

impl<T: Copy + PartialEq> Codes<T> {
    /// Every value of the type has a number; a test checks that.
    pub fn number(&self, word: T) -> u32 {
        self.0.iter().find(|(known, _)| *known == word).map_or(u32::MAX, |(_, number)| *number)
    }

    pub fn word(&self, number: u32) -> Option<T> {
        self.0.iter().find(|(_, known)| *known == number).map(|(word, _)| *word)
    }
}

/// Address families.
pub const FAMILY: Codes<NftFamily> = Codes(&[(NftFamily::Inet, 1), (NftFamily::Ip, 2), (NftFamily::Ip6, 10)]);

/// Hooks.
pub const HOOK: Codes<Hook> = Codes(&[
    (Hook::Prerouting, 0),
    (Hook::Input, 1),
    (Hook::Forward, 2),
    (Hook::Output, 3),
    (Hook::Postrouting, 4),
]);

/// What `meta` knows.
pub const META: Codes<MetaKey> = Codes(&[
    (MetaKey::Protocol, 1),
    (MetaKey::Mark, 3),
    (MetaKey::Iif, 4),
    (MetaKey::Oif, 5),
    (MetaKey::IifName, 6),
    (MetaKey::OifName, 7),
    (MetaKey::SkUid, 10),
    (MetaKey::NfProto, 15),
    (MetaKey::L4Proto, 16),
]);

/// Headers of a packet.
pub const PAYLOAD_BASE: Codes<PayloadBase> = Codes(&[(PayloadBase::Network, 1), (PayloadBase::Transport, 2)]);

/// What `ct` knows.
pub const CT: Codes<CtKey> = Codes(&[
    (CtKey::State, 0),
    (CtKey::Direction, 1),
    (CtKey::Status, 2),
    (CtKey::Mark, 3),
    (CtKey::ProtoSrc, 11),
    (CtKey::ProtoDst, 12),
    (CtKey::IpSaddr, 19),
    (CtKey::IpDaddr, 20),
    (CtKey::Ip6Saddr, 21),
    (CtKey::Ip6Daddr, 22),
]);

/// Directions of a connection.
pub const CT_DIRECTION: Codes<CtDirection> = Codes(&[(CtDirection::Original, 0), (CtDirection::Reply, 1)]);

/// Comparisons.
pub const CMP: Codes<CmpOp> =
    Codes(&[(CmpOp::Eq, 0), (CmpOp::Ne, 1), (CmpOp::Lt, 2), (CmpOp::Le, 3), (CmpOp::Gt, 4), (CmpOp::Ge, 5)]);

/// Kinds of address translation.
pub const NAT: Codes<NatKind> = Codes(&[(NatKind::Snat, 0), (NatKind::Dnat, 1)]);

/// Kinds of counting.
pub const NUMGEN: Codes<NumgenKind> = Codes(&[(NumgenKind::Inc, 0), (NumgenKind::Random, 1)]);

/// What rules do to sets.
pub const DYNSET: Codes<DynsetOp> =
    Codes(&[(DynsetOp::Add, 0), (DynsetOp::Update, 1), (DynsetOp::Delete, 2)]);

/// nft's numbers for types. The kernel keeps them without a look.
pub const FIELD: Codes<FieldType> = Codes(&[
    (FieldType::Index, 4),
    (FieldType::Ipv4Addr, 7),
    (FieldType::Ipv6Addr, 8),
    (FieldType::InetProto, 12),
    (FieldType::InetService, 13),
    (FieldType::Mark, 19),
    (FieldType::CtState, 26),
    (FieldType::FibAddrType, 38),
    (FieldType::IfName, 41),
]);

/// nft's number for a type, ours or not.
pub fn field_number(field: FieldType) -> u32 {
    match field {
        FieldType::Other { id, .. } => u32::from(id),
        known => FIELD.number(known),
    }
}

/// The type of a number and a length; one that does not fit is not ours.
pub fn field_word(number: u32, width: usize) -> FieldType {
    let known = FIELD.word(number).filter(|field| field.width() == width);
    known.unwrap_or(FieldType::Other {
        id: u8::try_from(number & 0x3f).unwrap_or(0),
        width: u8::try_from(width).unwrap_or(u8::MAX),
    })
}

/// nft's number for fields one after the other: six bits each. Five fit; the kernel never looks.
pub fn fields_number(fields: &[FieldType]) -> u32 {
    fields.iter().fold(0, |number, field| number << 6 | field_number(*field))
}

/// The byte order that nft prints a type in. Concatenations have none of their own.
pub fn byteorder(fields: &[FieldType]) -> u32 {
    match fields {
        [FieldType::Ipv4Addr | FieldType::Ipv6Addr | FieldType::InetProto | FieldType::InetService] => {
            udata::BYTEORDER_BIG
        }
        [_] => udata::BYTEORDER_HOST,
        _ => 0,
    }
}

/// A chain type's name in the kernel.
pub fn chain_type_name(kind: ChainType) -> &'static str {
    match kind {
        ChainType::Filter => "filter",
        ChainType::Nat => "nat",
        ChainType::Route => "route",
    }
}

/// A chain type by its name in the kernel.
pub fn chain_type(name: &str) -> Option<ChainType> {
    [ChainType::Filter, ChainType::Nat, ChainType::Route]
        .into_iter()
        .find(|kind| chain_type_name(*kind) == name)
}

/// The kernel's number for a register.
pub fn reg_number(register: Reg) -> u32 {
    reg::NARROW_FIRST + u32::from(register.0)
}

/// The register of a number; the kernel calls every fourth by its old, wide name.
pub fn reg_word(number: u32) -> Option<Reg> {
    let narrow = match number {
        reg::WIDE_FIRST..=reg::WIDE_LAST => (number - reg::WIDE_FIRST) * 4,
        reg::NARROW_FIRST..=reg::NARROW_LAST => number - reg::NARROW_FIRST,
        _ => return None,
    };
    u8::try_from(narrow).ok().map(Reg)
}

/// A verdict's number, and its chain.
pub fn verdict_number(word: &NftVerdict) -> (i32, Option<&str>) {
    match word {
        NftVerdict::Accept => (verdict::ACCEPT, None),
        NftVerdict::Drop => (verdict::DROP, None),
        NftVerdict::Continue => (verdict::CONTINUE, None),
        NftVerdict::Return => (verdict::RETURN, None),
        NftVerdict::Jump(chain) => (verdict::JUMP, Some(chain)),
        NftVerdict::Goto(chain) => (verdict::GOTO, Some(chain)),
    }
}

/// The verdict of a number and a chain.
pub fn verdict_word(number: i32, chain: Option<String>) -> Option<NftVerdict> {
    match (number, chain) {
        (verdict::ACCEPT, _) => Some(NftVerdict::Accept),
        (verdict::DROP, _) => Some(NftVerdict::Drop),
        (verdict::CONTINUE, _) => Some(NftVerdict::Continue),
        (verdict::RETURN, _) => Some(NftVerdict::Return),
        (verdict::JUMP, Some(chain)) => Some(NftVerdict::Jump(chain.into())),
        (verdict::GOTO, Some(chain)) => Some(NftVerdict::Goto(chain.into())),
        _ => None,
    }
}

/// Flags of address translation as the kernel's bits.
pub fn nat_flags_number(flags: NatFlags) -> u32 {
    [
        (flags.random, nat::F_RANDOM),
        (flags.persistent, nat::F_PERSISTENT),
        (flags.fully_random, nat::F_FULLY_RANDOM),
    ]
    .into_iter()
    .filter(|(set, _)| *set)
    .fold(0, |bits, (_, bit)| bits | bit)
}

/// Flags from the kernel's bits; those that it adds by itself (an address or port is given) are left out.
pub fn nat_flags_word(bits: u32) -> NatFlags {
    NatFlags {
        random: bits & nat::F_RANDOM != 0,
        persistent: bits & nat::F_PERSISTENT != 0,
        fully_random: bits & nat::F_FULLY_RANDOM != 0,
    }
}

/// A message's number with the subsystem.
pub fn nft_message(message: u16) -> u16 {
    abi::SUBSYS_NFTABLES << 8 | message
}

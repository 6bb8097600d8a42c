//! Decodes the expressions of rules. Unknown ones, and those with unknown attributes, are kept undecoded.

use super::{DecodeError, problem};
use crate::nfnetlink::wire::Attrs;
use crate::nftables::abi::{
    self, bitwise, cmp, ct, dynset, fib, immediate, lookup, meta, nat, numgen, payload, range, reg, reject,
    rule,
};
use crate::nftables::codes;
use crate::nftables::ir::{BitwiseOp, Bytes, Expr, NftName, NftVerdict, Reg, RejectKind, Span};

/// Decodes one expression.
pub(super) fn decode_expr(attrs: Attrs<'_>) -> Result<Expr, DecodeError> {
    let name = attrs.text(rule::EXPR_NAME).ok_or_else(|| problem("a rule", "an expression has no name"))?;
    let bytes = attrs.find(rule::EXPR_DATA).unwrap_or_default();
    let known = known(&name, Attrs::new(bytes));
    Ok(known.unwrap_or_else(|| Expr::Foreign { name: NftName::from(name), data: Bytes::from(bytes) }))
}

pub(super) fn decode_verdict(data: Attrs<'_>) -> Result<NftVerdict, DecodeError> {
    verdict(data).ok_or_else(|| problem("a verdict", "missing or unknown"))
}

fn verdict(data: Attrs<'_>) -> Option<NftVerdict> {
    let attrs = data.nested(abi::data::VERDICT)?;
    codes::verdict_word(
        attrs.u32(abi::data::VERDICT_CODE)?.cast_signed(),
        attrs.text(abi::data::VERDICT_CHAIN),
    )
}

fn register(attrs: Attrs<'_>, attr: u16) -> Option<Reg> {
    codes::reg_word(attrs.u32(attr)?)
}

fn value(attrs: Attrs<'_>, attr: u16) -> Option<Bytes> {
    attrs.nested(attr)?.find(abi::data::VALUE).map(Bytes::from)
}

fn known(name: &str, attrs: Attrs<'_>) -> Option<Expr> {
    match name {
        "meta" => decode_meta(attrs),
        "payload" => Some(Expr::Payload {
            base: codes::PAYLOAD_BASE.word(attrs.u32(payload::BASE)?)?,
            offset: attrs.u32(payload::OFFSET)?,
            len: attrs.u32(payload::LEN)?,
            dreg: register(attrs, payload::DREG)?,
        }),
        "ct" => decode_ct(attrs),
        "fib" => {
            (attrs.u32(fib::RESULT)? == fib::RESULT_ADDRTYPE).then_some(())?;
            Some(Expr::FibType { flags: attrs.u32(fib::FLAGS)?, dreg: register(attrs, fib::DREG)? })
        }
        "cmp" => Some(Expr::Cmp {
            op: codes::CMP.word(attrs.u32(cmp::OP)?)?,
            sreg: register(attrs, cmp::SREG)?,
            value: value(attrs, cmp::DATA)?,
        }),
        "range" => Some(Expr::Range {
            negated: attrs.u32(range::OP)? == 1,
            sreg: register(attrs, range::SREG)?,
            from: value(attrs, range::FROM)?,
            to: value(attrs, range::TO)?,
        }),
        "bitwise" => decode_bitwise(attrs),
        "immediate" => decode_immediate(attrs),
        "lookup" => decode_lookup(attrs),
        "nat" => decode_nat(attrs),
        "masq" => {
            let bits = attrs.u32(nat::MASQ_FLAGS).unwrap_or(0);
            Some(Expr::Masquerade { flags: codes::nat_flags_word(bits) })
        }
        "numgen" => Some(Expr::Numgen {
            kind: codes::NUMGEN.word(attrs.u32(numgen::TYPE)?)?,
            modulus: attrs.u32(numgen::MODULUS)?,
            offset: attrs.u32(numgen::OFFSET).unwrap_or(0),
            dreg: register(attrs, numgen::DREG)?,
        }),
        "dynset" => Some(Expr::Dynset {
            op: codes::DYNSET.word(attrs.u32(dynset::OP)?)?,
            set: attrs.text(dynset::SET)?.into(),
            key: register(attrs, dynset::SREG_KEY)?,
            data: register(attrs, dynset::SREG_DATA),
            // The kernel dumps zero if none was given.
            timeout: attrs.u64(dynset::TIMEOUT).filter(|timeout| *timeout != 0),
            counts: counts(attrs)?,
        }),
        "reject" => match (attrs.u32(reject::TYPE)?, attrs.u8(reject::CODE)) {
            (0, Some(code)) => Some(Expr::Reject(RejectKind::Icmp(code))),
            (1, _) => Some(Expr::Reject(RejectKind::TcpReset)),
            (2, Some(code)) => Some(Expr::Reject(RejectKind::Icmpx(code))),
            _ => None,
        },
        "counter" => Some(Expr::Counter),
        _ => None,
    }
}

/// Whether a dynset has a counter; none if it has another expression.
fn counts(dynset: Attrs<'_>) -> Option<bool> {
    match (dynset.nested(dynset::EXPR), dynset.find(dynset::EXPRESSIONS)) {
        (None, None) => Some(false),
        (Some(expr), None) => (expr.text(rule::EXPR_NAME).as_deref() == Some("counter")).then_some(true),
        _ => None,
    }
}

fn decode_meta(attrs: Attrs<'_>) -> Option<Expr> {
    let key = codes::META.word(attrs.u32(meta::KEY)?)?;
    match register(attrs, meta::SREG) {
        Some(sreg) => Some(Expr::MetaSet { key, sreg }),
        None => Some(Expr::Meta { key, dreg: register(attrs, meta::DREG)? }),
    }
}

fn decode_ct(attrs: Attrs<'_>) -> Option<Expr> {
    let key = codes::CT.word(attrs.u32(ct::KEY)?)?;
    if let Some(sreg) = register(attrs, ct::SREG) {
        return Some(Expr::CtSet { key, sreg });
    }
    let direction = attrs.u8(ct::DIRECTION).and_then(|number| codes::CT_DIRECTION.word(u32::from(number)));
    Some(Expr::Ct { key, direction, dreg: register(attrs, ct::DREG)? })
}

fn decode_bitwise(attrs: Attrs<'_>) -> Option<Expr> {
    let shift = || Some(u32::from_ne_bytes(value(attrs, bitwise::DATA)?.get(..4)?.try_into().ok()?));
    let op = match attrs.u32(bitwise::OP).unwrap_or(0) {
        0 => BitwiseOp::MaskXor { mask: value(attrs, bitwise::MASK)?, xor: value(attrs, bitwise::XOR)? },
        1 => BitwiseOp::Left(shift()?),
        2 => BitwiseOp::Right(shift()?),
        _ => return None,
    };
    Some(Expr::Bitwise {
        sreg: register(attrs, bitwise::SREG)?,
        dreg: register(attrs, bitwise::DREG)?,
        len: attrs.u32(bitwise::LEN)?,
        op,
    })
}

fn decode_immediate(attrs: Attrs<'_>) -> Option<Expr> {
    let number = attrs.u32(immediate::DREG)?;
    if number == reg::VERDICT {
        return verdict(attrs.nested(immediate::DATA)?).map(Expr::Verdict);
    }
    Some(Expr::Immediate { dreg: codes::reg_word(number)?, value: value(attrs, immediate::DATA)? })
}

fn decode_lookup(attrs: Attrs<'_>) -> Option<Expr> {
    let set = NftName::from(attrs.text(lookup::SET)?);
    let sreg = register(attrs, lookup::SREG)?;
    match attrs.u32(lookup::DREG) {
        None => {
            let negated = attrs.u32(lookup::FLAGS).unwrap_or(0) & lookup::F_INV != 0;
            Some(Expr::Lookup { set, sreg, negated })
        }
        Some(reg::VERDICT) => Some(Expr::LookupVerdict { set, sreg }),
        Some(number) => Some(Expr::LookupMap { set, sreg, dreg: codes::reg_word(number)? }),
    }
}

fn decode_nat(attrs: Attrs<'_>) -> Option<Expr> {
    let span = |min: u16, max: u16| {
        let first = register(attrs, min)?;
        Some(Span { min: first, max: register(attrs, max).filter(|last| *last != first) })
    };
    Some(Expr::Nat {
        kind: codes::NAT.word(attrs.u32(nat::TYPE)?)?,
        family: codes::FAMILY.word(attrs.u32(nat::FAMILY)?)?,
        address: span(nat::ADDR_MIN, nat::ADDR_MAX),
        port: span(nat::PROTO_MIN, nat::PROTO_MAX),
        flags: codes::nat_flags_word(attrs.u32(nat::FLAGS).unwrap_or(0)),
    })
}

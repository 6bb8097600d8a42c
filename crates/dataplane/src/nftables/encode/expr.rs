//! Encodes the expressions of rules.

use super::{MessageWriter, abi};
use crate::nftables::abi::{
    bitwise, cmp, ct, dynset, fib, immediate, lookup, meta, nat, numgen, payload, range, reg, reject, rule,
};
use crate::nftables::codes;
use crate::nftables::ir::{BitwiseOp, Expr, NftVerdict, Reg, RejectKind, Span};

/// Data for registers.
pub(super) fn data(out: &mut MessageWriter, attr: u16, bytes: &[u8]) {
    out.nested(attr, |out| out.attr(abi::data::VALUE, bytes));
}

/// A verdict inside a data attribute.
pub(super) fn verdict(out: &mut MessageWriter, verdict: &NftVerdict) {
    let (number, chain) = codes::verdict_number(verdict);
    out.nested(abi::data::VERDICT, |out| {
        out.attr(abi::data::VERDICT_CODE, &number.to_be_bytes());
        if let Some(chain) = chain {
            out.attr_str(abi::data::VERDICT_CHAIN, chain);
        }
    });
}

fn register(out: &mut MessageWriter, attr: u16, register: Reg) {
    out.attr_u32(attr, codes::reg_number(register));
}

/// Appends one expression to a rule's list.
pub(super) fn encode_expr(out: &mut MessageWriter, expr: &Expr) {
    out.nested(abi::LIST_ELEM, |out| {
        out.attr_str(rule::EXPR_NAME, name(expr));
        match expr {
            Expr::Foreign { data, .. } => out.attr(rule::EXPR_DATA, data),
            expr => out.nested(rule::EXPR_DATA, |out| body(out, expr)),
        }
    });
}

fn name(expr: &Expr) -> &str {
    match expr {
        Expr::Meta { .. } | Expr::MetaSet { .. } => "meta",
        Expr::Payload { .. } => "payload",
        Expr::Ct { .. } | Expr::CtSet { .. } => "ct",
        Expr::FibType { .. } => "fib",
        Expr::Cmp { .. } => "cmp",
        Expr::Range { .. } => "range",
        Expr::Bitwise { .. } => "bitwise",
        Expr::Immediate { .. } | Expr::Verdict(_) => "immediate",
        Expr::Lookup { .. } | Expr::LookupMap { .. } | Expr::LookupVerdict { .. } => "lookup",
        Expr::Nat { .. } => "nat",
        Expr::Masquerade { .. } => "masq",
        Expr::Numgen { .. } => "numgen",
        Expr::Dynset { .. } => "dynset",
        Expr::Reject(_) => "reject",
        Expr::Counter => "counter",
        Expr::Foreign { name, .. } => name,
    }
}

fn body(out: &mut MessageWriter, expr: &Expr) {
    match expr {
        Expr::Meta { .. }
        | Expr::MetaSet { .. }
        | Expr::Payload { .. }
        | Expr::Ct { .. }
        | Expr::CtSet { .. }
        | Expr::FibType { .. }
        | Expr::Numgen { .. } => load(out, expr),
        Expr::Cmp { .. } | Expr::Range { .. } | Expr::Bitwise { .. } | Expr::Immediate { .. } => {
            compute(out, expr)
        }
        Expr::Lookup { .. } | Expr::LookupMap { .. } | Expr::LookupVerdict { .. } | Expr::Dynset { .. } => {
            use_set(out, expr);
        }
        Expr::Verdict(word) => {
            out.attr_u32(immediate::DREG, reg::VERDICT);
            out.nested(immediate::DATA, |out| verdict(out, word));
        }
        Expr::Nat { kind, family, address, port, flags } => {
            out.attr_u32(nat::TYPE, codes::NAT.number(*kind));
            out.attr_u32(nat::FAMILY, codes::FAMILY.number(*family));
            span(out, nat::ADDR_MIN, nat::ADDR_MAX, *address);
            span(out, nat::PROTO_MIN, nat::PROTO_MAX, *port);
            flags_attr(out, nat::FLAGS, codes::nat_flags_number(*flags));
        }
        Expr::Masquerade { flags } => flags_attr(out, nat::MASQ_FLAGS, codes::nat_flags_number(*flags)),
        Expr::Reject(kind) => encode_reject(out, *kind),
        Expr::Counter | Expr::Foreign { .. } => {}
    }
}

fn flags_attr(out: &mut MessageWriter, attr: u16, flags: u32) {
    if flags != 0 {
        out.attr_u32(attr, flags);
    }
}

fn span(out: &mut MessageWriter, min: u16, max: u16, span: Option<Span>) {
    if let Some(span) = span {
        register(out, min, span.min);
        if let Some(last) = span.max {
            register(out, max, last);
        }
    }
}

/// Expressions that load registers from packet, kernel or random numbers, or store them.
fn load(out: &mut MessageWriter, expr: &Expr) {
    match expr {
        Expr::Meta { key, dreg } => {
            register(out, meta::DREG, *dreg);
            out.attr_u32(meta::KEY, codes::META.number(*key));
        }
        Expr::MetaSet { key, sreg } => {
            out.attr_u32(meta::KEY, codes::META.number(*key));
            register(out, meta::SREG, *sreg);
        }
        Expr::Payload { base, offset, len, dreg } => {
            register(out, payload::DREG, *dreg);
            out.attr_u32(payload::BASE, codes::PAYLOAD_BASE.number(*base));
            out.attr_u32(payload::OFFSET, *offset);
            out.attr_u32(payload::LEN, *len);
        }
        Expr::Ct { key, direction, dreg } => {
            register(out, ct::DREG, *dreg);
            out.attr_u32(ct::KEY, codes::CT.number(*key));
            if let Some(direction) = direction {
                let number = codes::CT_DIRECTION.number(*direction);
                out.attr_u8(ct::DIRECTION, u8::try_from(number).unwrap_or(u8::MAX));
            }
        }
        Expr::CtSet { key, sreg } => {
            out.attr_u32(ct::KEY, codes::CT.number(*key));
            register(out, ct::SREG, *sreg);
        }
        Expr::FibType { flags, dreg } => {
            register(out, fib::DREG, *dreg);
            out.attr_u32(fib::RESULT, fib::RESULT_ADDRTYPE);
            out.attr_u32(fib::FLAGS, *flags);
        }
        Expr::Numgen { kind, modulus, offset, dreg } => {
            register(out, numgen::DREG, *dreg);
            out.attr_u32(numgen::MODULUS, *modulus);
            out.attr_u32(numgen::TYPE, codes::NUMGEN.number(*kind));
            out.attr_u32(numgen::OFFSET, *offset);
        }
        _ => {}
    }
}

/// Expressions that only use registers.
fn compute(out: &mut MessageWriter, expr: &Expr) {
    match expr {
        Expr::Cmp { op, sreg, value } => {
            register(out, cmp::SREG, *sreg);
            out.attr_u32(cmp::OP, codes::CMP.number(*op));
            data(out, cmp::DATA, value);
        }
        Expr::Range { negated, sreg, from, to } => {
            register(out, range::SREG, *sreg);
            out.attr_u32(range::OP, u32::from(*negated));
            data(out, range::FROM, from);
            data(out, range::TO, to);
        }
        Expr::Bitwise { sreg, dreg, len, op } => {
            register(out, bitwise::SREG, *sreg);
            register(out, bitwise::DREG, *dreg);
            out.attr_u32(bitwise::LEN, *len);
            match op {
                BitwiseOp::MaskXor { mask, xor } => {
                    out.attr_u32(bitwise::OP, 0);
                    data(out, bitwise::MASK, mask);
                    data(out, bitwise::XOR, xor);
                }
                BitwiseOp::Left(bits) => shift(out, 1, *bits),
                BitwiseOp::Right(bits) => shift(out, 2, *bits),
            }
        }
        Expr::Immediate { dreg, value } => {
            register(out, immediate::DREG, *dreg);
            data(out, immediate::DATA, value);
        }
        _ => {}
    }
}

fn shift(out: &mut MessageWriter, op: u32, bits: u32) {
    out.attr_u32(bitwise::OP, op);
    data(out, bitwise::DATA, &bits.to_ne_bytes());
}

/// Expressions that use a set.
fn use_set(out: &mut MessageWriter, expr: &Expr) {
    match expr {
        Expr::Lookup { set, sreg, negated } => {
            out.attr_str(lookup::SET, set);
            register(out, lookup::SREG, *sreg);
            flags_attr(out, lookup::FLAGS, if *negated { lookup::F_INV } else { 0 });
        }
        Expr::LookupMap { set, sreg, dreg } => {
            out.attr_str(lookup::SET, set);
            register(out, lookup::SREG, *sreg);
            register(out, lookup::DREG, *dreg);
        }
        Expr::LookupVerdict { set, sreg } => {
            out.attr_str(lookup::SET, set);
            register(out, lookup::SREG, *sreg);
            out.attr_u32(lookup::DREG, reg::VERDICT);
        }
        Expr::Dynset { op, set, key, data, timeout, counts } => {
            out.attr_str(dynset::SET, set);
            out.attr_u32(dynset::OP, codes::DYNSET.number(*op));
            register(out, dynset::SREG_KEY, *key);
            if let Some(data) = data {
                register(out, dynset::SREG_DATA, *data);
            }
            if let Some(timeout) = timeout {
                out.attr_u64(dynset::TIMEOUT, *timeout);
            }
            if *counts {
                out.nested(dynset::EXPR, |out| {
                    out.attr_str(rule::EXPR_NAME, "counter");
                    out.nested(rule::EXPR_DATA, |_| {});
                });
            }
        }
        _ => {}
    }
}

fn encode_reject(out: &mut MessageWriter, kind: RejectKind) {
    let (number, code) = match kind {
        RejectKind::Icmp(code) => (0, Some(code)),
        RejectKind::TcpReset => (1, None),
        RejectKind::Icmpx(code) => (2, Some(code)),
    };
    out.attr_u32(reject::TYPE, number);
    if let Some(code) = code {
        out.attr_u8(reject::CODE, code);
    }
}

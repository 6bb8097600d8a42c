//! Validates as the kernel does: registers, sets and chains that rules use, cycles of jumps, expressions that a hook does
//! not allow.

use std::collections::BTreeSet;

use nix::errno::Errno;

use crate::nftables::ir::{
    Base, BitwiseOp, Chain, ChainType, CtKey, Data, DataType, Element, Expr, Hook, MetaKey, NatKind,
    NftFamily, NftName, NftRule, NftVerdict, Reg, Ruleset, Set, SetSpec, Table,
};
use crate::nftables::trace::REGISTER_BYTES as BYTES;

/// The kernel's limit of nested jumps.
const MAX_DEPTH: usize = 16;
/// Conntrack runs at this priority; nat cannot come earlier.
const CONNTRACK: i32 = -200;

/// Whether a hook exists for this type of chain.
pub(super) fn base(base: Option<&Base>) -> Result<(), Errno> {
    let Some(base) = base else { return Ok(()) };
    let fits = match base.kind {
        ChainType::Filter => true,
        ChainType::Nat => base.hook != Hook::Forward && base.priority > CONNTRACK,
        ChainType::Route => base.hook == Hook::Output,
    };
    if fits { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

/// The set that an expression uses.
pub(super) fn set_of(expr: &Expr) -> Option<&NftName> {
    match expr {
        Expr::Lookup { set, .. }
        | Expr::LookupMap { set, .. }
        | Expr::LookupVerdict { set, .. }
        | Expr::Dynset { set, .. } => Some(set),
        _ => None,
    }
}

fn target(verdict: &NftVerdict) -> Option<&NftName> {
    match verdict {
        NftVerdict::Jump(chain) | NftVerdict::Goto(chain) => Some(chain),
        _ => None,
    }
}

fn verdicts(set: &Set) -> impl Iterator<Item = &NftVerdict> {
    let is_map = set.spec.data == Some(DataType::Verdict);
    let values = set.elements.values().filter(move |_| is_map);
    values.filter_map(|value| match &value.data {
        Some(Data::Verdict(verdict)) => Some(verdict),
        _ => None,
    })
}

/// Whether another chain's rule or a map element references the chain.
pub(super) fn is_referenced(table: &Table, chain: &NftName) -> bool {
    let leads = |verdict: &NftVerdict| target(verdict) == Some(chain);
    let others = table.chains.iter().filter(|(name, _)| *name != chain);
    let mut exprs = others.flat_map(|(_, chain)| &chain.rules).flat_map(|rule| &rule.exprs);
    exprs.any(|expr| matches!(expr, Expr::Verdict(verdict) if leads(verdict)))
        || table.sets.values().flat_map(verdicts).any(leads)
}

fn check_verdict(table: &Table, verdict: &NftVerdict) -> Result<(), Errno> {
    let Some(name) = target(verdict) else { return Ok(()) };
    match table.chains.get(name) {
        None => Err(Errno::ENOENT),
        Some(chain) if chain.spec.base.is_some() => Err(Errno::EOPNOTSUPP),
        Some(_) => Ok(()),
    }
}

/// Whether an element fits its set.
pub(super) fn element(table: &Table, spec: &SetSpec, element: &Element) -> Result<(), Errno> {
    let value = &element.value;
    let wrong_len = element.key.len() != spec.key_len()
        || value.key_end.as_ref().is_some_and(|end| end.len() != spec.key_len() || **end < element.key);
    let misplaced = (value.key_end.is_some() && !spec.interval)
        || (value.timeout.is_some() && !spec.expires && spec.timeout.is_none());
    if wrong_len || misplaced {
        return Err(Errno::EINVAL);
    }
    match (&spec.data, &value.data) {
        (None, None) => Ok(()),
        (Some(DataType::Verdict), Some(Data::Verdict(verdict))) => check_verdict(table, verdict),
        (Some(kind @ DataType::Fields(_)), Some(Data::Value(bytes))) if bytes.len() == kind.width() => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

/// Registers that a rule has written so far. The kernel refuses to read others, which would leak its memory.
#[derive(Default)]
struct Written([bool; BYTES / 4]);

impl Written {
    fn span(reg: Reg, len: usize) -> Result<std::ops::Range<usize>, Errno> {
        let start = usize::from(reg.0);
        let end = start + len.div_ceil(4);
        if len == 0 || end > BYTES / 4 { Err(Errno::ERANGE) } else { Ok(start..end) }
    }

    fn store(&mut self, reg: Reg, len: usize) -> Result<(), Errno> {
        self.0[Written::span(reg, len)?].fill(true);
        Ok(())
    }

    fn load(&self, reg: Reg, len: usize) -> Result<(), Errno> {
        let written = self.0[Written::span(reg, len)?].iter().all(|written| *written);
        if written { Ok(()) } else { Err(Errno::ENODATA) }
    }
}

pub(super) fn rule(table: &Table, rule: &NftRule) -> Result<(), Errno> {
    let mut written = Written::default();
    rule.exprs.iter().try_for_each(|expr| check_expr(table, &mut written, expr))
}

fn width(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX / 2)
}

fn check_expr(table: &Table, written: &mut Written, expr: &Expr) -> Result<(), Errno> {
    match expr {
        Expr::Meta { key, dreg } => written.store(*dreg, meta_width(*key)),
        Expr::MetaSet { key: MetaKey::Mark, sreg } => written.load(*sreg, 4),
        Expr::MetaSet { .. } => Err(Errno::EOPNOTSUPP),
        Expr::Payload { len, dreg, .. } => written.store(*dreg, width(*len)),
        Expr::Ct { key, direction, dreg } => {
            // Addresses and ports belong to a direction, everything else to the connection.
            match ct_width(*key) {
                (_, true) if direction.is_none() => Err(Errno::EINVAL),
                (_, false) if direction.is_some() => Err(Errno::EINVAL),
                (len, _) => written.store(*dreg, len),
            }
        }
        Expr::CtSet { key: CtKey::Mark, sreg } => written.load(*sreg, 4),
        Expr::CtSet { .. } => Err(Errno::EOPNOTSUPP),
        Expr::FibType { dreg, .. } => written.store(*dreg, 4),
        Expr::Cmp { sreg, value, .. } => written.load(*sreg, value.len()),
        Expr::Range { sreg, from, to, .. } if from.len() == to.len() => written.load(*sreg, from.len()),
        Expr::Range { .. } => Err(Errno::EINVAL),
        Expr::Bitwise { sreg, dreg, len, op } => {
            written.load(*sreg, width(*len))?;
            check_bitwise(width(*len), op)?;
            written.store(*dreg, width(*len))
        }
        Expr::Immediate { dreg, value } => written.store(*dreg, value.len()),
        Expr::Verdict(verdict) => check_verdict(table, verdict),
        Expr::Numgen { modulus, dreg, offset, .. } => {
            let fits = *modulus > 0 && offset.checked_add(modulus - 1).is_some();
            if fits { written.store(*dreg, 4) } else { Err(Errno::ERANGE) }
        }
        Expr::Lookup { .. } | Expr::LookupMap { .. } | Expr::LookupVerdict { .. } | Expr::Dynset { .. } => {
            check_set_use(table, written, expr)
        }
        Expr::Nat { family, address, port, .. } => {
            let len = if *family == NftFamily::Ip6 { 16 } else { 4 };
            let spans = [(address, len), (port, 2)];
            let regs = spans.iter().flat_map(|(span, len)| span.iter().map(move |span| (span, *len)));
            regs.into_iter().try_for_each(|(span, len)| {
                written.load(span.min, len)?;
                span.max.map_or(Ok(()), |max| written.load(max, len))
            })
        }
        Expr::Masquerade { .. } | Expr::Reject(_) | Expr::Counter => Ok(()),
        // No such expression in this kernel.
        Expr::Foreign { .. } => Err(Errno::ENOENT),
    }
}

fn check_bitwise(len: usize, op: &BitwiseOp) -> Result<(), Errno> {
    let fits = match op {
        BitwiseOp::MaskXor { mask, xor } => mask.len() == len && xor.len() == len,
        BitwiseOp::Left(bits) | BitwiseOp::Right(bits) => *bits < 32,
    };
    if fits { Ok(()) } else { Err(Errno::EINVAL) }
}

fn check_set_use(table: &Table, written: &mut Written, expr: &Expr) -> Result<(), Errno> {
    let name = set_of(expr).ok_or(Errno::EINVAL)?;
    let spec = &table.sets.get(name).ok_or(Errno::ENOENT)?.spec;
    match (expr, &spec.data) {
        (Expr::Lookup { sreg, .. }, _) => written.load(*sreg, spec.key_len()),
        (Expr::LookupMap { sreg, dreg, .. }, Some(data @ DataType::Fields(_))) => {
            written.load(*sreg, spec.key_len())?;
            written.store(*dreg, data.width())
        }
        (Expr::LookupVerdict { sreg, .. }, Some(DataType::Verdict)) => written.load(*sreg, spec.key_len()),
        (Expr::Dynset { .. }, _) if !spec.dynamic => Err(Errno::EOPNOTSUPP),
        (Expr::Dynset { timeout: Some(_), .. }, _) if !spec.expires && spec.timeout.is_none() => {
            Err(Errno::EOPNOTSUPP)
        }
        (Expr::Dynset { key, data: Some(data), .. }, Some(kind @ DataType::Fields(_))) => {
            written.load(*key, spec.key_len())?;
            written.load(*data, kind.width())
        }
        (Expr::Dynset { key, data: None, .. }, None) => written.load(*key, spec.key_len()),
        _ => Err(Errno::EINVAL),
    }
}

pub(super) fn meta_width(key: MetaKey) -> usize {
    match key {
        MetaKey::NfProto | MetaKey::L4Proto => 1,
        MetaKey::Protocol => 2,
        MetaKey::Mark | MetaKey::Iif | MetaKey::Oif | MetaKey::SkUid => 4,
        MetaKey::IifName | MetaKey::OifName => 16,
    }
}

/// Width, and whether the key needs a direction.
fn ct_width(key: CtKey) -> (usize, bool) {
    match key {
        CtKey::Direction => (1, false),
        CtKey::State | CtKey::Status | CtKey::Mark => (4, false),
        CtKey::ProtoSrc | CtKey::ProtoDst => (2, true),
        CtKey::IpSaddr | CtKey::IpDaddr => (4, true),
        CtKey::Ip6Saddr | CtKey::Ip6Daddr => (16, true),
    }
}

/// Walks every chain that a base chain can reach.
pub(super) fn ruleset(ruleset: &Ruleset) -> Result<(), Errno> {
    for table in ruleset.tables.values() {
        for (name, chain) in &table.chains {
            let Some(base) = &chain.spec.base else { continue };
            let mut seen = BTreeSet::new();
            walk(table, base, (name, chain), 0, &mut seen)?;
        }
    }
    Ok(())
}

fn walk<'a>(
    table: &'a Table,
    base: &Base,
    (name, chain): (&'a NftName, &'a Chain),
    depth: usize,
    seen: &mut BTreeSet<(&'a NftName, usize)>,
) -> Result<(), Errno> {
    if depth >= MAX_DEPTH {
        return Err(Errno::EMLINK);
    }
    if !seen.insert((name, depth)) {
        return Ok(());
    }
    for expr in chain.rules.iter().flat_map(|rule| &rule.exprs) {
        at_hook(base, expr)?;
        let direct = match expr {
            Expr::Verdict(verdict) => target(verdict),
            _ => None,
        };
        let by_map = match expr {
            Expr::LookupVerdict { set, .. } => table.sets.get(set),
            _ => None,
        };
        let targets = direct.into_iter().chain(by_map.into_iter().flat_map(verdicts).filter_map(target));
        for next in targets {
            let Some(found) = table.chains.get_key_value(next) else { continue };
            walk(table, base, found, depth + 1, seen)?;
        }
    }
    Ok(())
}

/// Whether an expression may run at this hook.
fn at_hook(base: &Base, expr: &Expr) -> Result<(), Errno> {
    use Hook::{Forward, Input, Output, Postrouting, Prerouting};
    let fits = match expr {
        Expr::Nat { kind: NatKind::Dnat, .. } => {
            base.kind == ChainType::Nat && matches!(base.hook, Prerouting | Output)
        }
        Expr::Nat { kind: NatKind::Snat, .. } => {
            base.kind == ChainType::Nat && matches!(base.hook, Postrouting | Input)
        }
        Expr::Masquerade { .. } => base.kind == ChainType::Nat && base.hook == Postrouting,
        Expr::Reject(_) => matches!(base.hook, Input | Forward | Output | Prerouting),
        _ => true,
    };
    if fits { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

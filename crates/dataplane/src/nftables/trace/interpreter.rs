//! Runs the rules of a hook, expression by expression, on a packet, its connection and the sets.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::ops::{Bound, Range};

use super::packet::{DynsetUpdate, NodeAddresses, RuleMatch, TracedPacket};
use super::register::{Registers, shift};
use crate::nftables::ir::{
    BitwiseOp, Bytes, CmpOp, Comment, CtDirection, CtKey, Data, DynsetOp, ElementValue, Expr, FieldType,
    Hook, IntervalEncoding, MetaKey, NatKind, NftFamily, NftName, NftVerdict, PayloadBase, Reg, Ruleset, Set,
    Table, TableId, fib,
};

/// Bits of the conntrack status.
const SRC_NAT: u32 = 0x10;
const DST_NAT: u32 = 0x20;
/// Bits of the conntrack state.
const ESTABLISHED: u32 = 2;
const NEW: u32 = 8;

/// How a rule ended.
pub(super) enum RuleEnd {
    /// A condition failed: the next rule runs.
    Break,
    /// All expressions ran: the next rule runs.
    End,
    Verdict(NftVerdict),
    Reject,
}

/// The packet, its connection and what happened so far.
pub(super) struct Interpreter<'a> {
    pub(super) ruleset: &'a Ruleset,
    pub(super) node: &'a NodeAddresses,
    /// The packet before any rewrite.
    pub(super) original: &'a TracedPacket,
    pub(super) random: &'a mut dyn FnMut(u32) -> u32,
    pub(super) hook: Hook,
    pub(super) destination: SocketAddr,
    pub(super) mark: u32,
    pub(super) ct_mark: u32,
    pub(super) dnat: bool,
    pub(super) masquerade: bool,
    pub(super) steps: Vec<RuleMatch>,
    pub(super) updates: Vec<DynsetUpdate>,
    pub(super) overlay: BTreeMap<(TableId, NftName), BTreeMap<Bytes, Option<ElementValue>>>,
    /// Lookups and actions of the current rule.
    pub(super) found: Vec<(NftName, Option<Comment>)>,
    pub(super) did: Vec<String>,
}

/// The byte ranges of the fields of a concatenated key.
pub(in crate::nftables) fn field_ranges(fields: &[FieldType]) -> impl Iterator<Item = Range<usize>> + '_ {
    fields.iter().scan(0, |start, field| {
        let range = *start..*start + field.width();
        *start += field.padded_width();
        Some(range)
    })
}

/// The element that contains a key.
fn find<'s>(set: &'s Set, key: &[u8]) -> Option<(&'s Bytes, &'s ElementValue)> {
    match set.spec.ranges() {
        IntervalEncoding::None => set.elements.get_key_value(key),
        IntervalEncoding::TwoElements => {
            let below = set.elements.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back();
            below.filter(|(start, value)| value.last(start).as_slice() >= key)
        }
        IntervalEncoding::KeyEnd => set.elements.iter().find(|(start, value)| {
            let end = value.last(start);
            field_ranges(&set.spec.key)
                .all(|field| start[field.clone()] <= key[field.clone()] && key[field.clone()] <= end[field])
        }),
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address_from(bytes: &[u8]) -> Option<IpAddr> {
    let long = || <[u8; 16]>::try_from(bytes).map(IpAddr::from);
    <[u8; 4]>::try_from(bytes).map(IpAddr::from).or_else(|_| long()).ok()
}

fn interface(name: Option<&NftName>) -> Vec<u8> {
    let mut bytes = name.map(|name| name.as_bytes().to_vec()).unwrap_or_default();
    bytes.resize(16, 0);
    bytes
}

impl Interpreter<'_> {
    /// Runs one rule.
    pub(super) fn rule(&mut self, id: &TableId, table: &Table, exprs: &[Expr]) -> RuleEnd {
        let mut regs = Registers::default();
        self.found.clear();
        self.did.clear();
        for expr in exprs {
            match self.expr(id, table, &mut regs, expr) {
                RuleEnd::End => {}
                other => return other,
            }
        }
        RuleEnd::End
    }

    fn expr(&mut self, id: &TableId, table: &Table, regs: &mut Registers, expr: &Expr) -> RuleEnd {
        match expr {
            Expr::Meta { key, dreg } => regs.store(*dreg, &self.meta(*key)),
            Expr::MetaSet { sreg, .. } => {
                self.mark = regs.number(*sreg);
                self.did.push(format!("mark {:#x}", self.mark));
            }
            Expr::CtSet { sreg, .. } => self.ct_mark = regs.number(*sreg),
            Expr::Payload { base, offset, len, dreg } => match self.payload(*base, *offset, *len) {
                Some(bytes) => regs.store(*dreg, &bytes),
                None => return RuleEnd::Break,
            },
            Expr::Ct { key, direction, dreg } => regs.store(*dreg, &self.ct(*key, *direction)),
            Expr::FibType { flags, dreg } => regs.store(*dreg, &self.address_type(*flags).to_ne_bytes()),
            Expr::Numgen { modulus, offset, dreg, .. } => {
                let number = (self.random)(*modulus).wrapping_add(*offset);
                regs.store(*dreg, &number.to_ne_bytes());
            }
            Expr::Cmp { .. } | Expr::Range { .. } | Expr::Bitwise { .. } | Expr::Immediate { .. } => {
                return compute(regs, expr);
            }
            Expr::Lookup { .. } | Expr::LookupMap { .. } | Expr::LookupVerdict { .. } => {
                return self.lookup(id, table, regs, expr);
            }
            Expr::Dynset { op, set, key, data, timeout, counts } => {
                return self.dynset(id, table, regs, (*op, set), (*key, *data), (*timeout, *counts));
            }
            Expr::Verdict(verdict) => return RuleEnd::Verdict(verdict.clone()),
            Expr::Nat { .. } => return self.nat(regs, expr),
            Expr::Masquerade { .. } => {
                self.masquerade = true;
                self.did.push("masquerade".to_string());
                return RuleEnd::Verdict(NftVerdict::Accept);
            }
            Expr::Reject(_) => return RuleEnd::Reject,
            Expr::Counter => {}
            // Unknown, and never rendered by us.
            Expr::Foreign { name, .. } => self.did.push(format!("foreign expression {name}")),
        }
        RuleEnd::End
    }

    fn is_v4(&self) -> bool {
        self.destination.is_ipv4()
    }

    fn meta(&self, key: MetaKey) -> Vec<u8> {
        let (iif, oif) = match self.hook {
            Hook::Prerouting | Hook::Input => (self.original.iif.as_ref(), None),
            Hook::Forward => (self.original.iif.as_ref(), self.original.oif.as_ref()),
            Hook::Output | Hook::Postrouting => (None, self.original.oif.as_ref()),
        };
        match key {
            MetaKey::Protocol => (if self.is_v4() { 0x0800u16 } else { 0x86dd }).to_be_bytes().to_vec(),
            MetaKey::Mark => self.mark.to_ne_bytes().to_vec(),
            MetaKey::SkUid => self.original.uid.to_ne_bytes().to_vec(),
            // Interface indexes are unknown here; our rules match names.
            MetaKey::Iif | MetaKey::Oif => vec![0; 4],
            MetaKey::IifName => interface(iif),
            MetaKey::OifName => interface(oif),
            MetaKey::NfProto => vec![if self.is_v4() { 2 } else { 10 }],
            MetaKey::L4Proto => vec![self.original.protocol],
        }
    }

    /// Bytes of the headers after rewrites; none beyond the headers.
    fn payload(&self, base: PayloadBase, offset: u32, len: u32) -> Option<Vec<u8>> {
        let header = match base {
            PayloadBase::Network => self.network_header(),
            PayloadBase::Transport => self.transport_header(),
        };
        let start = usize::try_from(offset).ok()?;
        header.get(start..start.checked_add(usize::try_from(len).ok()?)?).map(<[u8]>::to_vec)
    }

    fn network_header(&self) -> Vec<u8> {
        let (len, version, protocol, source) = match self.is_v4() {
            true => (20, 0x45, 9, 12),
            false => (40, 0x60, 6, 8),
        };
        let mut header = vec![0; len];
        header[0] = version;
        header[protocol] = self.original.protocol;
        let addresses = [octets(self.original.src), octets(self.destination.ip())].concat();
        let end = (source + addresses.len()).min(len);
        header[source..end].copy_from_slice(&addresses[..end - source]);
        header
    }

    fn transport_header(&self) -> Vec<u8> {
        let len = match self.original.protocol {
            6 => 20,
            132 => 12,
            17 => 8,
            _ => 4,
        };
        let mut header = vec![0; len];
        header[..2].copy_from_slice(&self.original.sport.to_be_bytes());
        header[2..4].copy_from_slice(&self.destination.port().to_be_bytes());
        header
    }

    fn ct(&self, key: CtKey, direction: Option<CtDirection>) -> Vec<u8> {
        let sent = self.original;
        // Replies come from the rewritten destination and go to the client, masqueraded or not.
        let (src, dst) = match direction {
            Some(CtDirection::Reply) => (self.destination, SocketAddr::new(sent.src, sent.sport)),
            _ => (SocketAddr::new(sent.src, sent.sport), SocketAddr::new(sent.dst, sent.dport)),
        };
        match key {
            CtKey::State => (if sent.established { ESTABLISHED } else { NEW }).to_ne_bytes().to_vec(),
            CtKey::Status => {
                let bits = [(self.dnat, DST_NAT), (self.masquerade, SRC_NAT)];
                let status = bits.iter().filter(|(on, _)| *on).fold(0u32, |sum, (_, bit)| sum | bit);
                status.to_ne_bytes().to_vec()
            }
            CtKey::Mark => self.ct_mark.to_ne_bytes().to_vec(),
            CtKey::Direction => vec![0],
            CtKey::IpSaddr | CtKey::Ip6Saddr => octets(src.ip()),
            CtKey::IpDaddr | CtKey::Ip6Daddr => octets(dst.ip()),
            CtKey::ProtoSrc => src.port().to_be_bytes().to_vec(),
            CtKey::ProtoDst => dst.port().to_be_bytes().to_vec(),
        }
    }

    fn address_type(&self, flags: u32) -> u32 {
        let address = if flags & fib::SADDR != 0 { self.original.src } else { self.destination.ip() };
        match address {
            address if self.node.is_local(address) => fib::TYPE_LOCAL,
            IpAddr::V4(address) if address.is_broadcast() => 3,
            address if address.is_multicast() => 5,
            _ => fib::TYPE_UNICAST,
        }
    }

    fn lookup(&mut self, id: &TableId, table: &Table, regs: &mut Registers, expr: &Expr) -> RuleEnd {
        let (Expr::Lookup { set: name, sreg, .. }
        | Expr::LookupMap { set: name, sreg, .. }
        | Expr::LookupVerdict { set: name, sreg }) = expr
        else {
            return RuleEnd::Break;
        };
        let Some(set) = table.sets.get(name) else { return RuleEnd::Break };
        let found = self.element(id, name, set, regs.load(*sreg, set.spec.key_len()));
        if let Some(value) = &found {
            self.found.push((name.clone(), value.comment.clone()));
        }
        match (expr, found.and_then(|value| value.data.clone().map(Some).or(Some(None)))) {
            (Expr::Lookup { negated, .. }, found) if found.is_some() != *negated => RuleEnd::End,
            (Expr::LookupMap { dreg, .. }, Some(Some(Data::Value(bytes)))) => {
                regs.store(*dreg, &bytes);
                RuleEnd::End
            }
            (Expr::LookupVerdict { .. }, Some(Some(Data::Verdict(verdict)))) => RuleEnd::Verdict(verdict),
            _ => RuleEnd::Break,
        }
    }

    /// What a set holds for a key, after what rules did to it on the way.
    fn element(&self, id: &TableId, name: &NftName, set: &Set, key: &[u8]) -> Option<ElementValue> {
        if let Some(changes) = self.overlay.get(&(id.clone(), name.clone()))
            && let Some(change) = changes.get(key)
        {
            return change.clone();
        }
        if key.len() != set.spec.key_len() {
            return None;
        }
        find(set, key).map(|(_, value)| value.clone())
    }

    fn dynset(
        &mut self,
        id: &TableId,
        table: &Table,
        regs: &Registers,
        (op, name): (DynsetOp, &NftName),
        (key, data): (Reg, Option<Reg>),
        (timeout, counts): (Option<u64>, bool),
    ) -> RuleEnd {
        let Some(set) = table.sets.get(name) else { return RuleEnd::Break };
        let key = Bytes::from(regs.load(key, set.spec.key_len()));
        let old = self.element(id, name, set, &key);
        let width = set.spec.data.as_ref().map_or(0, |data| data.width());
        let fresh = || ElementValue {
            data: data.map(|reg| Data::Value(Bytes::from(regs.load(reg, width)))),
            timeout: timeout.filter(|timeout| set.spec.timeout != Some(*timeout)).and_then(NonZeroU64::new),
            ..ElementValue::default()
        };
        let value = match (op, old) {
            (DynsetOp::Delete, None) => return RuleEnd::End,
            (DynsetOp::Delete, Some(_)) => None,
            // The timeout continues or restarts; the data stays.
            (DynsetOp::Add | DynsetOp::Update, Some(old)) => Some(old),
            (DynsetOp::Add | DynsetOp::Update, None) => {
                if set.spec.size.is_some_and(|size| set.elements.len() >= usize::try_from(size).unwrap_or(0))
                {
                    return RuleEnd::Break;
                }
                Some(fresh())
            }
        };
        let verb = match (&value, &set.spec.data) {
            (None, _) => "deleted from",
            (Some(_), Some(_)) => "stored in",
            (Some(_), None) => "added to",
        };
        self.did.push(format!("{verb} {name}"));
        let overlay = self.overlay.entry((id.clone(), name.clone())).or_default();
        overlay.insert(key.clone(), value.clone());
        self.updates.push(DynsetUpdate { table: id.clone(), set: name.clone(), key, value, counts });
        RuleEnd::End
    }

    fn nat(&mut self, regs: &Registers, expr: &Expr) -> RuleEnd {
        let Expr::Nat { kind, family, address, port, .. } = expr else { return RuleEnd::Break };
        let long = *family == NftFamily::Ip6 || (*family == NftFamily::Inet && !self.is_v4());
        let width = if long { 16 } else { 4 };
        let to = address.and_then(|span| address_from(regs.load(span.min, width)));
        let port = port.and_then(|span| regs.load(span.min, 2).try_into().ok()).map(u16::from_be_bytes);
        match kind {
            NatKind::Snat => {
                self.masquerade = true;
                self.did.push("snat".to_string());
            }
            NatKind::Dnat => {
                let ip = to.unwrap_or(self.destination.ip());
                self.destination = SocketAddr::new(ip, port.unwrap_or(self.destination.port()));
                self.dnat = true;
                self.did.push(format!("dnat to {}", self.destination));
            }
        }
        RuleEnd::Verdict(NftVerdict::Accept)
    }
}

/// Expressions that only read and write registers.
fn compute(regs: &mut Registers, expr: &Expr) -> RuleEnd {
    let matches = match expr {
        Expr::Cmp { op, sreg, value } => {
            let ordering = regs.load(*sreg, value.len()).cmp(value);
            match op {
                CmpOp::Eq => ordering.is_eq(),
                CmpOp::Ne => ordering.is_ne(),
                CmpOp::Lt => ordering.is_lt(),
                CmpOp::Le => ordering.is_le(),
                CmpOp::Gt => ordering.is_gt(),
                CmpOp::Ge => ordering.is_ge(),
            }
        }
        Expr::Range { negated, sreg, from, to } => {
            let value = regs.load(*sreg, from.len());
            (from.as_slice() <= value && value <= to.as_slice()) != *negated
        }
        Expr::Bitwise { sreg, dreg, len, op } => {
            let value = regs.load(*sreg, usize::try_from(*len).unwrap_or(0)).to_vec();
            regs.store(*dreg, &bitwise(&value, op));
            true
        }
        Expr::Immediate { dreg, value } => {
            regs.store(*dreg, value);
            true
        }
        _ => true,
    };
    if matches { RuleEnd::End } else { RuleEnd::Break }
}

fn bitwise(value: &[u8], op: &BitwiseOp) -> Bytes {
    match op {
        BitwiseOp::MaskXor { mask, xor } => {
            let bits = value.iter().zip(mask.iter()).zip(xor.iter());
            Bytes::from(bits.map(|((value, mask), xor)| (value & mask) ^ xor).collect::<Vec<u8>>())
        }
        BitwiseOp::Left(bits) => shift(value, *bits, true),
        BitwiseOp::Right(bits) => shift(value, *bits, false),
    }
}

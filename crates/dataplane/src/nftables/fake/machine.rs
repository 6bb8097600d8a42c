//! One packet on its way: runs the rules of a hook, expression by expression, on the packet, the connection and the sets.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::ops::{Bound, Range};

use super::packet::{Learned, Node, Packet, Step};
use super::register::{Registers, shift};
use crate::nftables::ir::{
    BitwiseOp, Bytes, CmpOp, Comment, CtDirection, CtKey, Data, DynsetOp, ElementValue, Expr, Family,
    FieldType, Hook, MetaKey, Name, NatKind, PayloadBase, Program, Ranges, Reg, Set, Table, TableId, Verdict,
    fib,
};

/// Bits of a connection's status.
const SRC_NAT: u32 = 0x10;
const DST_NAT: u32 = 0x20;
/// Bits of its state.
const ESTABLISHED: u32 = 2;
const NEW: u32 = 8;

/// How a rule ended.
pub(super) enum Flow {
    /// A test failed: the next rule.
    Break,
    /// All expressions ran: the next rule.
    End,
    /// Somewhere else.
    To(Verdict),
    /// Dropped, and the sender told.
    Reject,
}

/// The packet, the connection and what happened so far.
pub(super) struct Machine<'a> {
    pub(super) program: &'a Program,
    pub(super) node: &'a Node,
    /// As it was sent.
    pub(super) original: &'a Packet,
    pub(super) chance: &'a mut dyn FnMut(u32) -> u32,
    pub(super) hook: Hook,
    pub(super) destination: SocketAddr,
    pub(super) mark: u32,
    pub(super) ct_mark: u32,
    pub(super) dnat: bool,
    pub(super) masquerade: bool,
    pub(super) steps: Vec<Step>,
    pub(super) learned: Vec<Learned>,
    pub(super) overlay: BTreeMap<(TableId, Name), BTreeMap<Bytes, Option<ElementValue>>>,
    /// What the rule at hand found and did.
    pub(super) found: Vec<(Name, Option<Comment>)>,
    pub(super) did: Vec<String>,
}

/// The places of the fields in a concatenated key.
pub(super) fn fields_at(fields: &[FieldType]) -> impl Iterator<Item = Range<usize>> + '_ {
    fields.iter().scan(0, |start, field| {
        let place = *start..*start + field.width();
        *start += field.padded_width();
        Some(place)
    })
}

/// The element of a set that a key falls on.
fn find<'s>(set: &'s Set, key: &[u8]) -> Option<(&'s Bytes, &'s ElementValue)> {
    match set.spec.ranges() {
        Ranges::None => set.elements.get_key_value(key),
        Ranges::TwoElements => {
            let below = set.elements.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back();
            below.filter(|(start, value)| value.last(start).as_slice() >= key)
        }
        Ranges::KeyEnd => set.elements.iter().find(|(start, value)| {
            let end = value.last(start);
            fields_at(&set.spec.key)
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

fn interface(name: Option<&Name>) -> Vec<u8> {
    let mut bytes = name.map(|name| name.as_bytes().to_vec()).unwrap_or_default();
    bytes.resize(16, 0);
    bytes
}

impl Machine<'_> {
    /// Runs one rule.
    pub(super) fn rule(&mut self, id: &TableId, table: &Table, exprs: &[Expr]) -> Flow {
        let mut regs = Registers::default();
        self.found.clear();
        self.did.clear();
        for expr in exprs {
            match self.expr(id, table, &mut regs, expr) {
                Flow::End => {}
                other => return other,
            }
        }
        Flow::End
    }

    fn expr(&mut self, id: &TableId, table: &Table, regs: &mut Registers, expr: &Expr) -> Flow {
        match expr {
            Expr::Meta { key, dreg } => regs.store(*dreg, &self.meta(*key)),
            Expr::MetaSet { sreg, .. } => {
                self.mark = regs.number(*sreg);
                self.did.push(format!("mark {:#x}", self.mark));
            }
            Expr::CtSet { sreg, .. } => self.ct_mark = regs.number(*sreg),
            Expr::Payload { base, offset, len, dreg } => match self.payload(*base, *offset, *len) {
                Some(bytes) => regs.store(*dreg, &bytes),
                None => return Flow::Break,
            },
            Expr::Ct { key, direction, dreg } => regs.store(*dreg, &self.ct(*key, *direction)),
            Expr::FibType { flags, dreg } => regs.store(*dreg, &self.address_type(*flags).to_ne_bytes()),
            Expr::Numgen { modulus, offset, dreg, .. } => {
                let number = (self.chance)(*modulus).wrapping_add(*offset);
                regs.store(*dreg, &number.to_ne_bytes());
            }
            Expr::Cmp { .. } | Expr::Range { .. } | Expr::Bitwise { .. } | Expr::Immediate { .. } => {
                return compute(regs, expr);
            }
            Expr::Lookup { .. } | Expr::LookupMap { .. } | Expr::LookupVerdict { .. } => {
                return self.lookup(id, table, regs, expr);
            }
            Expr::Dynset { op, set, key, data, timeout } => {
                return self.dynset(id, table, regs, (*op, set), (*key, *data), *timeout);
            }
            Expr::Verdict(verdict) => return Flow::To(verdict.clone()),
            Expr::Nat { .. } => return self.nat(regs, expr),
            Expr::Masquerade { .. } => {
                self.masquerade = true;
                self.did.push("masquerade".to_string());
                return Flow::To(Verdict::Accept);
            }
            Expr::Reject(_) => return Flow::Reject,
            Expr::Counter => {}
            // Nobody knows what it does; the kernel would not have taken it from us.
            Expr::Foreign { name, .. } => self.did.push(format!("ran {name}, which is not ours")),
        }
        Flow::End
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
            // Numbers of interfaces are the kernel's alone; rules of ours go by name.
            MetaKey::Iif | MetaKey::Oif => vec![0; 4],
            MetaKey::IifName => interface(iif),
            MetaKey::OifName => interface(oif),
            MetaKey::NfProto => vec![if self.is_v4() { 2 } else { 10 }],
            MetaKey::L4Proto => vec![self.original.protocol],
        }
    }

    /// Bytes of the headers as the packet has them now; none beyond what a first packet has.
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
        // Answers come from where the packet goes now; their destination is the client, whatever masquerading does.
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

    fn lookup(&mut self, id: &TableId, table: &Table, regs: &mut Registers, expr: &Expr) -> Flow {
        let (Expr::Lookup { set: name, sreg, .. }
        | Expr::LookupMap { set: name, sreg, .. }
        | Expr::LookupVerdict { set: name, sreg }) = expr
        else {
            return Flow::Break;
        };
        let Some(set) = table.sets.get(name) else { return Flow::Break };
        let found = self.element(id, name, set, regs.load(*sreg, set.spec.key_len()));
        if let Some(value) = &found {
            self.found.push((name.clone(), value.comment.clone()));
        }
        match (expr, found.and_then(|value| value.data.clone().map(Some).or(Some(None)))) {
            (Expr::Lookup { negated, .. }, found) if found.is_some() != *negated => Flow::End,
            (Expr::LookupMap { dreg, .. }, Some(Some(Data::Value(bytes)))) => {
                regs.store(*dreg, &bytes);
                Flow::End
            }
            (Expr::LookupVerdict { .. }, Some(Some(Data::Verdict(verdict)))) => Flow::To(verdict),
            _ => Flow::Break,
        }
    }

    /// What a set holds for a key, after what rules did to it on the way.
    fn element(&self, id: &TableId, name: &Name, set: &Set, key: &[u8]) -> Option<ElementValue> {
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
        (op, name): (DynsetOp, &Name),
        (key, data): (Reg, Option<Reg>),
        timeout: Option<u64>,
    ) -> Flow {
        let Some(set) = table.sets.get(name) else { return Flow::Break };
        let key = Bytes::from(regs.load(key, set.spec.key_len()));
        let old = self.element(id, name, set, &key);
        let width = set.spec.data.as_ref().map_or(0, |data| data.width());
        let fresh = || ElementValue {
            data: data.map(|reg| Data::Value(Bytes::from(regs.load(reg, width)))),
            timeout: timeout.filter(|timeout| set.spec.timeout != Some(*timeout)).and_then(NonZeroU64::new),
            ..ElementValue::default()
        };
        let value = match (op, old) {
            (DynsetOp::Delete, None) => return Flow::End,
            (DynsetOp::Delete, Some(_)) => None,
            // Its time goes on, or starts anew; the data stays.
            (DynsetOp::Add | DynsetOp::Update, Some(old)) => Some(old),
            (DynsetOp::Add | DynsetOp::Update, None) => {
                if set.spec.size.is_some_and(|size| set.elements.len() >= usize::try_from(size).unwrap_or(0))
                {
                    return Flow::Break;
                }
                Some(fresh())
            }
        };
        let verb = if value.is_some() { "remembered in" } else { "forgotten in" };
        self.did.push(format!("{verb} {name}"));
        let place = self.overlay.entry((id.clone(), name.clone())).or_default();
        place.insert(key.clone(), value.clone());
        self.learned.push(Learned { table: id.clone(), set: name.clone(), key, value });
        Flow::End
    }

    fn nat(&mut self, regs: &Registers, expr: &Expr) -> Flow {
        let Expr::Nat { kind, family, address, port, .. } = expr else { return Flow::Break };
        let long = *family == Family::Ip6 || (*family == Family::Inet && !self.is_v4());
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
        Flow::To(Verdict::Accept)
    }
}

/// What works on registers alone.
fn compute(regs: &mut Registers, expr: &Expr) -> Flow {
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
    if matches { Flow::End } else { Flow::Break }
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

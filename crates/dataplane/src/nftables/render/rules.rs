//! The rules, expression by expression.
//!
//! nft 1.0.6 aborts when it lists a rule that looks something up by what another look-up answered. So such an
//! answer goes through the packet's mark and back: set, load, and the old mark restored, within one rule.
//! Nobody else ever sees it, and the listing shows `meta mark` for it.

use model::Family;
use model::forward::{LocalTrafficDetector, NodePortAddresses, NodeRules};

use super::class::{Class, Ending, Role};
use super::names::{Kind, SetName, Side};
use super::sizes::Sizes;
use super::table_id;
use crate::nftables::ir::{
    self, BitwiseOp, Bytes, CmpOp, CtDirection, CtKey, DynsetOp, Expr, MetaKey, NatFlags, NatKind,
    NumgenKind, PayloadBase, Reg, RejectKind, Rule, Span, Verdict, fib,
};

/// The packet's own mark is kept here while an answer goes through it.
const SAVED_MARK: Reg = Reg(15);
/// An answer on its way through the mark.
const ANSWER: Reg = Reg(14);

/// The bit of a connection's status that says that its destination was rewritten.
const DST_NAT: u32 = 0x20;

/// What the rules of a table are made from.
pub(super) struct Code<'a> {
    pub(super) node: &'a NodeRules,
    pub(super) sizes: &'a Sizes,
    pub(super) family: Family,
}

impl Code<'_> {
    fn set(&self, name: SetName) -> ir::Name {
        self.sizes.name(self.family, name)
    }

    fn address_len(&self) -> usize {
        if self.family == Family::V4 { 4 } else { 16 }
    }

    fn load_source(&self, dreg: Reg) -> Expr {
        let offset = if self.family == Family::V4 { 12 } else { 8 };
        Expr::Payload { base: PayloadBase::Network, offset, len: self.address_len() as u32, dreg }
    }

    fn load_destination(&self, dreg: Reg) -> Expr {
        let offset = if self.family == Family::V4 { 16 } else { 24 };
        Expr::Payload { base: PayloadBase::Network, offset, len: self.address_len() as u32, dreg }
    }

    /// Loads what finds a frontend into the first registers; the next free one comes back.
    fn load_frontend(&self, kind: Kind, exprs: &mut Vec<Expr>) -> Reg {
        let mut reg = Reg(0);
        if kind == Kind::Address {
            exprs.push(self.load_destination(reg));
            reg = reg.after(self.address_len());
        }
        exprs.push(Expr::Meta { key: MetaKey::L4Proto, dreg: reg });
        reg = reg.after(4);
        exprs.push(Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, dreg: reg });
        reg.after(4)
    }

    fn answer(&self, map: SetName, key: Reg, exprs: &mut Vec<Expr>, into: Reg) {
        exprs.push(Expr::LookupMap { set: self.set(map), sreg: key, dreg: ANSWER });
        exprs.push(Expr::MetaSet { key: MetaKey::Mark, sreg: ANSWER });
        exprs.push(Expr::Meta { key: MetaKey::Mark, dreg: into });
        exprs.push(Expr::MetaSet { key: MetaKey::Mark, sreg: SAVED_MARK });
    }

    fn save_mark() -> Expr {
        Expr::Meta { key: MetaKey::Mark, dreg: SAVED_MARK }
    }

    /// Goes where the class of a frontend leads.
    fn dispatch(&self, kind: Kind, side: Side, exprs: &mut Vec<Expr>) {
        exprs.push(Self::save_mark());
        let free = self.load_frontend(kind, exprs);
        self.answer(SetName::Frontends(kind, side), Reg(0), exprs, free);
        exprs.push(Expr::LookupVerdict { set: self.set(SetName::Verdicts(side)), sreg: free });
    }

    /// From the hooks to the one chain that knows Services.
    pub(super) fn jump_services(&self) -> Rule {
        Rule::new(vec![Expr::Verdict(Verdict::Jump("services".into()))], "is it for a Service?")
    }

    /// Which Service, if any (semantics D2): by address, by node port, else what is left of the address.
    pub(super) fn services(&self) -> Vec<Rule> {
        let mut by_address = Vec::new();
        self.dispatch(Kind::Address, Side::Main, &mut by_address);
        let mut by_node_port = self.takes_node_ports();
        self.dispatch(Kind::NodePort, Side::Main, &mut by_node_port);
        let to = |set| {
            let lookup = Expr::Lookup { set: self.set(set), sreg: Reg(0), negated: false };
            vec![self.load_destination(Reg(0)), lookup]
        };
        let mut unknown_port = to(SetName::ClusterIps);
        unknown_port.push(Expr::Verdict(Verdict::Goto("reject".into())));
        let mut unassigned = to(SetName::ServiceCidrs);
        unassigned.push(Expr::Verdict(Verdict::Drop));
        vec![
            Rule::new(by_address, "a cluster IP, external IP or load balancer IP"),
            Rule::new(by_node_port, "a node port"),
            Rule::new(unknown_port, "a cluster IP, but no port of its Service"),
            Rule::new(unassigned, "in a ServiceCIDR, but of no Service"),
        ]
    }

    /// Semantics D4: addresses of this node within the ranges, never loopback.
    fn takes_node_ports(&self) -> Vec<Expr> {
        let mut exprs = vec![self.load_destination(Reg(0))];
        if let NodePortAddresses::Within(_) = self.node.node_ports(self.family) {
            exprs.push(Expr::Lookup { set: self.set(SetName::NodePortRanges), sreg: Reg(0), negated: false });
        }
        let loopback = match self.family {
            Family::V4 => "127.0.0.0/8",
            Family::V6 => "::1/128",
        };
        exprs.extend(self.within(self.load_destination(Reg(0)), &parse(loopback), CmpOp::Ne));
        exprs.extend(is_local(fib::DADDR));
        exprs
    }

    /// Whether an address is in a range, or is not.
    fn within(&self, load: Expr, range: &ipnet::IpNet, op: CmpOp) -> Vec<Expr> {
        let value = ir::Key::new().address(range.network()).bytes();
        let mut exprs = vec![load];
        if range.prefix_len() < range.max_prefix_len() {
            let mask = ir::Key::new().address(range.netmask()).bytes();
            let xor = Bytes::from(vec![0; mask.len()]);
            let op = BitwiseOp::MaskXor { mask, xor };
            exprs.push(Expr::Bitwise { sreg: Reg(0), dreg: Reg(0), len: self.address_len() as u32, op });
        }
        exprs.push(Expr::Cmp { op, sreg: Reg(0), value });
        exprs
    }

    /// Whether the client is a pod (`Eq`) or is not (`Ne`); `None` where nobody can tell (semantics D3).
    fn is_pod(&self, op: CmpOp) -> Option<Vec<Expr>> {
        let by_name = |value: Bytes| {
            vec![Expr::Meta { key: MetaKey::IifName, dreg: Reg(0) }, Expr::Cmp { op, sreg: Reg(0), value }]
        };
        match &self.node.detect_local {
            LocalTrafficDetector::Unknown => None,
            ranges @ LocalTrafficDetector::Ranges { .. } => {
                let range = ranges.range(self.family)?;
                Some(self.within(self.load_source(Reg(0)), &range, op))
            }
            LocalTrafficDetector::Bridge(name) => Some(by_name(ir::Key::new().interface(name).bytes())),
            // Compared without the zeros behind it, a name is a prefix.
            LocalTrafficDetector::InterfacePrefix(prefix) => Some(by_name(Bytes::from(prefix.as_bytes()))),
        }
    }

    /// Asks for masquerading on the way out.
    fn mark(&self) -> Vec<Expr> {
        let bit = self.node.mark();
        let op = BitwiseOp::MaskXor { mask: number(!bit), xor: number(bit) };
        vec![
            Expr::Meta { key: MetaKey::Mark, dreg: Reg(0) },
            Expr::Bitwise { sreg: Reg(0), dreg: Reg(0), len: 4, op },
            Expr::MetaSet { key: MetaKey::Mark, sreg: Reg(0) },
        ]
    }

    /// Tells the client. A reset is no ICMP message: no rate limit and no filter on the way holds it up.
    pub(super) fn reject(&self) -> Vec<Rule> {
        let tcp = vec![
            Expr::Meta { key: MetaKey::L4Proto, dreg: Reg(0) },
            Expr::Cmp { op: CmpOp::Eq, sreg: Reg(0), value: Bytes::from([6]) },
            Expr::Reject(RejectKind::TcpReset),
        ];
        let port_unreachable = if self.family == Family::V4 { 3 } else { 4 };
        let other = vec![Expr::Reject(RejectKind::Icmp(port_unreachable))];
        vec![Rule::new(tcp, "connection refused"), Rule::new(other, "port unreachable")]
    }

    /// Semantics D2 and D3: pods keep their address, the node itself does not.
    pub(super) fn short_circuit(&self, kind: Kind) -> Vec<Rule> {
        let mut rules = Vec::new();
        if let Some(mut pod) = self.is_pod(CmpOp::Eq) {
            self.dispatch(kind, Side::Inside, &mut pod);
            rules.push(Rule::new(pod, "a pod may use every endpoint"));
        }
        let mut mark = is_local(fib::SADDR);
        mark.extend(self.mark());
        rules.push(Rule::new(mark, "masquerade: the node itself"));
        let mut own = is_local(fib::SADDR);
        self.dispatch(kind, Side::Inside, &mut own);
        rules.push(Rule::new(own, "the node itself may use every endpoint"));
        rules
    }

    /// Whose source address changes: pods that reach themselves, and whoever was marked.
    pub(super) fn postrouting(&self) -> Vec<Rule> {
        let flags = NatFlags { fully_random: true, ..NatFlags::default() };
        let second = Reg(0).after(self.address_len());
        let protocol = second.after(self.address_len());
        let hairpin = vec![
            self.load_source(Reg(0)),
            self.load_destination(second),
            Expr::Meta { key: MetaKey::L4Proto, dreg: protocol },
            Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, dreg: protocol.after(4) },
            Expr::Lookup { set: self.set(SetName::Hairpin), sreg: Reg(0), negated: false },
            Expr::Masquerade { flags },
        ];
        let bit = self.node.mark();
        let only = BitwiseOp::MaskXor { mask: number(bit), xor: number(0) };
        let without = BitwiseOp::MaskXor { mask: number(u32::MAX), xor: number(bit) };
        let marked = vec![
            Expr::Meta { key: MetaKey::Mark, dreg: Reg(0) },
            Expr::Bitwise { sreg: Reg(0), dreg: Reg(0), len: 4, op: only },
            Expr::Cmp { op: CmpOp::Ne, sreg: Reg(0), value: number(0) },
            Expr::Meta { key: MetaKey::Mark, dreg: Reg(0) },
            Expr::Bitwise { sreg: Reg(0), dreg: Reg(0), len: 4, op: without },
            Expr::MetaSet { key: MetaKey::Mark, sreg: Reg(0) },
            Expr::Masquerade { flags },
        ];
        // In this order: a pod that was marked and reaches itself must not keep its mark.
        vec![
            Rule::new(marked, "masquerade: marked on the way in"),
            Rule::new(hairpin, "masquerade: a pod that reaches itself"),
        ]
    }

    /// Counts a new connection by where it was sent and where it goes. Behind the choice of an endpoint, so that there is
    /// one place for all ways to it, and before others rewrite the source, since the kernel asks nobody after that.
    pub(super) fn count(&self) -> Rule {
        let original = Some(CtDirection::Original);
        let address = if self.family == Family::V4 { CtKey::IpDaddr } else { CtKey::Ip6Daddr };
        let only = BitwiseOp::MaskXor { mask: number(DST_NAT), xor: number(0) };
        let protocol = Reg(0).after(self.address_len());
        let endpoint = protocol.after(4).after(4);
        let exprs = vec![
            Expr::Ct { key: CtKey::Status, direction: None, dreg: Reg(0) },
            Expr::Bitwise { sreg: Reg(0), dreg: Reg(0), len: 4, op: only },
            Expr::Cmp { op: CmpOp::Ne, sreg: Reg(0), value: number(0) },
            Expr::Ct { key: address, direction: original, dreg: Reg(0) },
            Expr::Meta { key: MetaKey::L4Proto, dreg: protocol },
            Expr::Ct { key: CtKey::ProtoDst, direction: original, dreg: protocol.after(4) },
            self.load_destination(endpoint),
            Expr::Payload {
                base: PayloadBase::Transport,
                offset: 2,
                len: 2,
                dreg: endpoint.after(self.address_len()),
            },
            Expr::Dynset {
                op: DynsetOp::Update,
                set: self.set(SetName::Connections),
                key: Reg(0),
                data: None,
                timeout: None,
                counts: true,
            },
        ];
        Rule::new(exprs, "counted: from which frontend to which endpoint")
    }

    /// The chain of a class.
    pub(super) fn class(&self, class: &Class) -> Vec<Rule> {
        let mut rules = Vec::new();
        if class.restricted {
            rules.push(self.source_ranges(class.kind));
        }
        match class.role {
            Role::ClusterIp => rules.extend(self.mark_strangers()),
            Role::External => rules.push(Rule::new(self.mark(), "masquerade: externalTrafficPolicy Cluster")),
            Role::ExternalLocal => {
                let jump = Expr::Verdict(Verdict::Jump(class.kind.short_circuit().into()));
                rules.push(Rule::new(vec![jump], "clients from inside leave here"));
            }
            Role::Inside => {}
        }
        match class.ending {
            Ending::Reject => {
                let goto = Expr::Verdict(Verdict::Goto("reject".into()));
                rules.push(Rule::new(vec![goto], "no endpoint anywhere"));
            }
            Ending::Drop => {
                let drop = Expr::Verdict(Verdict::Drop);
                rules.push(Rule::new(vec![drop], "no endpoint on this node: a load balancer tries another"));
            }
            Ending::Send(slots) => rules.push(self.send(class, slots)),
            Ending::Sticky(slots, seconds) => rules.extend(self.sticky(class, slots, seconds)),
        }
        rules
    }

    /// Pitfall 13: before the address changes, whether there are endpoints or not.
    fn source_ranges(&self, kind: Kind) -> Rule {
        let mut exprs = Vec::new();
        let client = self.load_frontend(kind, &mut exprs);
        exprs.push(self.load_source(client));
        exprs.push(Expr::Lookup { set: self.set(SetName::SourceRanges), sreg: Reg(0), negated: true });
        exprs.push(Expr::Verdict(Verdict::Drop));
        Rule::new(exprs, "not in loadBalancerSourceRanges")
    }

    /// To a cluster IP: everybody with masqueradeAll, else whoever is no pod, if that can be told.
    fn mark_strangers(&self) -> Option<Rule> {
        if self.node.masquerade_all {
            return Some(Rule::new(self.mark(), "masquerade: masqueradeAll"));
        }
        let mut exprs = self.is_pod(CmpOp::Ne)?;
        exprs.extend(self.mark());
        Some(Rule::new(exprs, "masquerade: not a pod"))
    }

    fn random(slots: u32, dreg: Reg) -> Expr {
        Expr::Numgen { kind: NumgenKind::Random, modulus: slots, offset: 0, dreg }
    }

    /// The endpoint that a map answers with becomes the destination.
    fn dnat(&self, map: SetName, exprs: &mut Vec<Expr>) {
        exprs.push(Expr::LookupMap { set: self.set(map), sreg: Reg(0), dreg: Reg(0) });
        exprs.push(self.nat());
    }

    fn nat(&self) -> Expr {
        Expr::Nat {
            kind: NatKind::Dnat,
            family: table_id(self.family).family,
            address: Some(Span::one(Reg(0))),
            port: Some(Span::one(Reg(0).after(self.address_len()))),
            flags: NatFlags::default(),
        }
    }

    fn send(&self, class: &Class, slots: u32) -> Rule {
        let mut exprs = Vec::new();
        let number = self.load_frontend(class.kind, &mut exprs);
        exprs.push(Self::random(slots, number));
        self.dnat(SetName::Endpoints(class.kind, class.side()), &mut exprs);
        Rule::new(exprs, "to one of the endpoints")
    }

    /// Semantics D5: a client's endpoint is remembered by number. If that endpoint is not among those of
    /// today, another one is chosen and remembered in its place.
    fn sticky(&self, class: &Class, slots: u32, seconds: u32) -> Vec<Rule> {
        let (kind, side) = (class.kind, class.side());
        let endpoints = SetName::StickyEndpoints(kind, side);
        let lasting = Some(u64::from(seconds) * 1000);
        let client_of = |exprs: &mut Vec<Expr>| {
            exprs.push(Self::save_mark());
            let number = self.load_frontend(kind, exprs);
            let client = number.after(4);
            self.answer(SetName::StickyIds(kind), Reg(0), exprs, client.after(self.address_len()));
            exprs.push(self.load_source(client));
            (number, client)
        };
        let remember = |op, client, number, timeout| Expr::Dynset {
            op,
            set: self.set(SetName::Affinity),
            key: client,
            data: Some(number),
            timeout,
            counts: false,
        };

        let mut known = Vec::new();
        let (number, client) = client_of(&mut known);
        self.answer(SetName::Affinity, client, &mut known, number);
        known.push(Expr::LookupMap { set: self.set(endpoints), sreg: Reg(0), dreg: Reg(0) });
        known.push(remember(DynsetOp::Update, client, number, lasting));
        known.push(self.nat());

        // Data of an element that is there stays as it is, so the old one has to go first.
        let mut forget = Vec::new();
        let (_, client) = client_of(&mut forget);
        forget.push(remember(DynsetOp::Delete, client, client.after(self.address_len()), None));

        let mut choose = Vec::new();
        let (number, client) = client_of(&mut choose);
        choose.push(Self::random(slots, number));
        self.answer(SetName::StickySlots(kind, side), Reg(0), &mut choose, number);
        choose.push(remember(DynsetOp::Add, client, number, lasting));
        self.dnat(endpoints, &mut choose);

        // A full set ends the rule before.
        let mut unremembered = vec![Self::save_mark()];
        let number = self.load_frontend(kind, &mut unremembered);
        unremembered.push(Self::random(slots, number));
        self.answer(SetName::StickySlots(kind, side), Reg(0), &mut unremembered, number);
        self.dnat(endpoints, &mut unremembered);
        vec![
            Rule::new(known, "session affinity: to the endpoint as before"),
            Rule::new(forget, "session affinity: that endpoint is gone, forget it"),
            Rule::new(choose, "session affinity: choose an endpoint and remember it"),
            Rule::new(unremembered, "session affinity: no room to remember, choose only"),
        ]
    }
}

fn is_local(which: u32) -> Vec<Expr> {
    let value = number(fib::TYPE_LOCAL);
    vec![Expr::FibType { flags: which, dreg: Reg(0) }, Expr::Cmp { op: CmpOp::Eq, sreg: Reg(0), value }]
}

/// A number as the kernel holds marks.
fn number(value: u32) -> Bytes {
    Bytes::from(value.to_ne_bytes())
}

fn parse(range: &str) -> ipnet::IpNet {
    range.parse().expect("a range that is written in this file")
}

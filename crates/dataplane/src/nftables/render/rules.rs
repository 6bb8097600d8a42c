//! The rules, expression by expression: dispatch to Services and node ports, the chain of a class, reject, counters.
//! Masquerading and session affinity have files of their own.
//!
//! nft 1.0.6 aborts when it lists a rule that uses the result of one lookup as the key of another. So such a result
//! goes through the packet's mark: the mark is saved, set, loaded and restored within one rule.

use model::Family;
use model::forward::{ForwardingMode, NodePortAddresses, NodeRules};

use super::chain_class::{ChainClass, Ending, Role};
use super::set_sizes::SetSizes;
use super::sets::{ClientScope, FrontendLookup, SetName};
use super::table_id;
use crate::nftables::ir::{
    self, BitwiseOp, Bytes, CmpOp, CtDirection, CtKey, DynsetOp, Expr, MetaKey, NatFlags, NatKind, NftRule,
    NftVerdict, NumgenKind, PayloadBase, Reg, RejectKind, Span, fib,
};

/// Holds the packet's mark during a lookup.
const SAVED_MARK: Reg = Reg(15);
/// The result of a lookup on its way through the mark.
const RESULT: Reg = Reg(14);

/// IPS_DST_NAT in the conntrack status.
const DST_NAT: u32 = 0x20;

/// Renders the rules of one table.
pub(super) struct Rules<'a> {
    pub(super) node: &'a NodeRules,
    pub(super) sizes: &'a SetSizes,
    pub(super) family: Family,
}

impl Rules<'_> {
    pub(super) fn set(&self, name: SetName) -> ir::NftName {
        self.sizes.name(self.family, name)
    }

    pub(super) fn address_len(&self) -> usize {
        if self.family == Family::V4 { 4 } else { 16 }
    }

    pub(super) fn load_source(&self, dreg: Reg) -> Expr {
        let offset = if self.family == Family::V4 { 12 } else { 8 };
        Expr::Payload { base: PayloadBase::Network, offset, len: self.address_len() as u32, dreg }
    }

    pub(super) fn load_destination(&self, dreg: Reg) -> Expr {
        let offset = if self.family == Family::V4 { 16 } else { 24 };
        Expr::Payload { base: PayloadBase::Network, offset, len: self.address_len() as u32, dreg }
    }

    /// Loads the key of a frontend into the first registers; returns the next free one.
    pub(super) fn load_frontend(&self, lookup: FrontendLookup, exprs: &mut Vec<Expr>) -> Reg {
        let mut reg = Reg(0);
        if lookup == FrontendLookup::Address {
            exprs.push(self.load_destination(reg));
            reg = reg.after(self.address_len());
        }
        exprs.push(Expr::Meta { key: MetaKey::L4Proto, dreg: reg });
        reg = reg.after(4);
        exprs.push(Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, dreg: reg });
        reg.after(4)
    }

    pub(super) fn look_up_through_mark(&self, map: SetName, key: Reg, exprs: &mut Vec<Expr>, into: Reg) {
        exprs.push(Expr::LookupMap { set: self.set(map), sreg: key, dreg: RESULT });
        exprs.push(Expr::MetaSet { key: MetaKey::Mark, sreg: RESULT });
        exprs.push(Expr::Meta { key: MetaKey::Mark, dreg: into });
        exprs.push(Expr::MetaSet { key: MetaKey::Mark, sreg: SAVED_MARK });
    }

    pub(super) fn save_mark() -> Expr {
        Expr::Meta { key: MetaKey::Mark, dreg: SAVED_MARK }
    }

    /// Goes to the chain of the frontend's class.
    pub(super) fn dispatch(&self, lookup: FrontendLookup, scope: ClientScope, exprs: &mut Vec<Expr>) {
        exprs.push(Self::save_mark());
        let free = self.load_frontend(lookup, exprs);
        self.look_up_through_mark(SetName::Frontends(lookup, scope), Reg(0), exprs, free);
        exprs.push(Expr::LookupVerdict { set: self.set(SetName::Verdicts(scope)), sreg: free });
    }

    /// From the hooks to the chain that looks Services up.
    pub(super) fn jump_services(&self) -> NftRule {
        NftRule::new(vec![Expr::Verdict(NftVerdict::Jump("services".into()))], "service lookup")
    }

    /// Looks the Service up (semantics D2): by address, by node port; else rejects or drops what is left of its ranges.
    pub(super) fn services(&self) -> Vec<NftRule> {
        let mut by_address = Vec::new();
        self.dispatch(FrontendLookup::Address, ClientScope::All, &mut by_address);
        let mut by_node_port = self.is_node_port_address();
        self.dispatch(FrontendLookup::NodePort, ClientScope::All, &mut by_node_port);
        let to = |set| {
            let lookup = Expr::Lookup { set: self.set(set), sreg: Reg(0), negated: false };
            vec![self.load_destination(Reg(0)), lookup]
        };
        let mut unknown_port = to(SetName::ClusterIps);
        unknown_port.push(Expr::Verdict(NftVerdict::Goto("reject".into())));
        let mut unassigned = to(SetName::ServiceCidrs);
        unassigned.push(Expr::Verdict(NftVerdict::Drop));
        let by_address =
            NftRule::new(by_address, "lookup by address: cluster IP, external IP, load balancer IP");
        let by_node_port = NftRule::new(by_node_port, "lookup by node port");
        let unknown_port = NftRule::new(unknown_port, "cluster IP, unknown port: reject");
        let unassigned = NftRule::new(unassigned, "unassigned address of a ServiceCIDR: drop");
        if self.node.mode != ForwardingMode::Ipvs {
            return vec![by_address, by_node_port, unknown_port, unassigned];
        }
        // Addresses of Services are local: they must not be taken for the node's own, nor reach its own servers.
        let mut other_port = to(SetName::LocalLoadBalancers);
        other_port.push(Expr::Verdict(NftVerdict::Goto("reject".into())));
        let other_port = NftRule::new(other_port, "load balancer IP, unknown port: reject");
        vec![by_address, unknown_port, other_port, unassigned, by_node_port]
    }

    /// Semantics D4: addresses of this node within the ranges, never loopback.
    fn is_node_port_address(&self) -> Vec<Expr> {
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

    /// Whether an address is in a range (`Eq`) or is not (`Ne`).
    pub(super) fn within(&self, load: Expr, range: &ipnet::IpNet, op: CmpOp) -> Vec<Expr> {
        let value = ir::KeyBuilder::new().address(range.network()).bytes();
        let mut exprs = vec![load];
        if range.prefix_len() < range.max_prefix_len() {
            let mask = ir::KeyBuilder::new().address(range.netmask()).bytes();
            let xor = Bytes::from(vec![0; mask.len()]);
            let op = BitwiseOp::MaskXor { mask, xor };
            exprs.push(Expr::Bitwise { sreg: Reg(0), dreg: Reg(0), len: self.address_len() as u32, op });
        }
        exprs.push(Expr::Cmp { op, sreg: Reg(0), value });
        exprs
    }

    /// A TCP reset is not rate limited or filtered like ICMP messages.
    pub(super) fn reject(&self) -> Vec<NftRule> {
        let tcp = vec![
            Expr::Meta { key: MetaKey::L4Proto, dreg: Reg(0) },
            Expr::Cmp { op: CmpOp::Eq, sreg: Reg(0), value: Bytes::from([6]) },
            Expr::Reject(RejectKind::TcpReset),
        ];
        let port_unreachable = if self.family == Family::V4 { 3 } else { 4 };
        let other = vec![Expr::Reject(RejectKind::Icmp(port_unreachable))];
        vec![NftRule::new(tcp, "TCP reset"), NftRule::new(other, "ICMP port unreachable")]
    }

    /// Counts a new connection by frontend and endpoint. After DNAT, so that one rule counts all paths, and before
    /// postrouting at priority 100: once another table rewrote the source, the kernel skips further nat chains.
    pub(super) fn count(&self) -> NftRule {
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
        NftRule::new(exprs, "count connections by frontend and endpoint")
    }

    /// The chain of a class.
    pub(super) fn class(&self, class: &ChainClass) -> Vec<NftRule> {
        let mut rules = Vec::new();
        if class.restricted {
            rules.push(self.source_ranges(class.lookup));
        }
        match class.role {
            Role::ClusterIp => rules.extend(self.mark_non_pods()),
            Role::External => rules.push(self.mark_all()),
            Role::ExternalLocal => {
                let jump = Expr::Verdict(NftVerdict::Jump(class.lookup.short_circuit().into()));
                rules.push(NftRule::new(vec![jump], "in-cluster clients: short circuit"));
            }
            Role::Inside => {}
        }
        match class.ending {
            Ending::Reject => {
                let goto = Expr::Verdict(NftVerdict::Goto("reject".into()));
                rules.push(NftRule::new(vec![goto], "no endpoints: reject"));
            }
            Ending::Drop => {
                let drop = Expr::Verdict(NftVerdict::Drop);
                rules.push(NftRule::new(vec![drop], "no local endpoints: drop"));
            }
            Ending::Pass => {
                let accept = Expr::Verdict(NftVerdict::Accept);
                rules.push(NftRule::new(vec![accept], "virtual server: IPVS forwards"));
            }
            Ending::Send(slots) => {
                rules.push(self.send(class, slots));
                rules.push(Self::no_such_slot());
            }
            Ending::Sticky(slots, seconds) => {
                rules.extend(self.affinity(class, slots, seconds));
                rules.push(Self::no_such_slot());
            }
        }
        rules
    }

    /// A packet that meets a commit may find the class before it and the slots after it: the kernel reads the generation
    /// with each lookup. Passed on, it would make a connection without DNAT, which retransmissions belong to as well;
    /// dropped, it leaves none, and the next one is looked up again.
    fn no_such_slot() -> NftRule {
        NftRule::new(
            vec![Expr::Verdict(NftVerdict::Drop)],
            "slot removed during the lookup: drop, clients retry",
        )
    }

    /// Pitfall 13: before DNAT, whether there are endpoints or not.
    fn source_ranges(&self, lookup: FrontendLookup) -> NftRule {
        let mut exprs = Vec::new();
        let client = self.load_frontend(lookup, &mut exprs);
        exprs.push(self.load_source(client));
        exprs.push(Expr::Lookup { set: self.set(SetName::SourceRanges), sreg: Reg(0), negated: true });
        exprs.push(Expr::Verdict(NftVerdict::Drop));
        NftRule::new(exprs, "loadBalancerSourceRanges: drop other sources")
    }

    pub(super) fn random(slots: u32, dreg: Reg) -> Expr {
        Expr::Numgen { kind: NumgenKind::Random, modulus: slots, offset: 0, dreg }
    }

    pub(super) fn look_up_endpoint(&self, map: SetName) -> Expr {
        Expr::LookupMap { set: self.set(map), sreg: Reg(0), dreg: Reg(0) }
    }

    /// Rewrites the destination to the endpoint in the first registers.
    pub(super) fn dnat(&self) -> Expr {
        Expr::Nat {
            kind: NatKind::Dnat,
            family: table_id(self.family).family,
            address: Some(Span::one(Reg(0))),
            port: Some(Span::one(Reg(0).after(self.address_len()))),
            flags: NatFlags::default(),
        }
    }

    fn send(&self, class: &ChainClass, slots: u32) -> NftRule {
        let mut exprs = Vec::new();
        let number = self.load_frontend(class.lookup, &mut exprs);
        exprs.push(Self::random(slots, number));
        let map = SetName::Endpoints(class.lookup, class.scope());
        exprs.extend([self.look_up_endpoint(map), self.dnat()]);
        NftRule::new(exprs, "DNAT to a random endpoint")
    }
}

pub(super) fn is_local(which: u32) -> Vec<Expr> {
    let value = number(fib::TYPE_LOCAL);
    vec![Expr::FibType { flags: which, dreg: Reg(0) }, Expr::Cmp { op: CmpOp::Eq, sreg: Reg(0), value }]
}

/// A mark, in host byte order.
pub(super) fn number(value: u32) -> Bytes {
    Bytes::from(value.to_ne_bytes())
}

fn parse(range: &str) -> ipnet::IpNet {
    range.parse().expect("a constant of this file")
}

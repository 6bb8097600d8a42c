//! Masquerading: which clients of cluster IPs, external addresses and node ports are marked, and the rules at
//! postrouting that replace the source of marked packets.
//!
//! | traffic | marked |
//! |---|---|
//! | cluster IP | every client that is not a pod, or all with masqueradeAll |
//! | externalTrafficPolicy Cluster, node ports included | every client |
//! | externalTrafficPolicy Local, node ports included | the node itself |
//!
//! A pod that reaches itself (hairpin) is always masqueraded.

use model::forward::LocalTrafficDetector;

use super::rules::{Rules, is_local, number};
use super::sets::{ClientScope, FrontendLookup, SetName};
use crate::nftables::ir::{
    self, BitwiseOp, Bytes, CmpOp, Expr, MetaKey, NatFlags, NftRule, PayloadBase, Reg, fib,
};

impl Rules<'_> {
    /// Whether the client is a pod (`Eq`) or is not (`Ne`); `None` where pods cannot be detected (semantics D3).
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
            LocalTrafficDetector::Bridge(name) => {
                Some(by_name(ir::KeyBuilder::new().interface(name).bytes()))
            }
            // Compared without trailing zeros, a name is a prefix.
            LocalTrafficDetector::InterfacePrefix(prefix) => Some(by_name(Bytes::from(prefix.as_bytes()))),
        }
    }

    /// Sets the masquerade bit of the packet mark.
    fn set_mark(&self) -> Vec<Expr> {
        let bit = self.node.mark();
        let op = BitwiseOp::MaskXor { mask: number(!bit), xor: number(bit) };
        vec![
            Expr::Meta { key: MetaKey::Mark, dreg: Reg(0) },
            Expr::Bitwise { sreg: Reg(0), dreg: Reg(0), len: 4, op },
            Expr::MetaSet { key: MetaKey::Mark, sreg: Reg(0) },
        ]
    }

    /// externalTrafficPolicy Cluster: the reply has to come back through this node.
    pub(super) fn mark_all(&self) -> NftRule {
        NftRule::new(self.set_mark(), "masquerade: externalTrafficPolicy Cluster")
    }

    /// To a cluster IP: all clients with masqueradeAll, else those that are not pods, if pods can be detected.
    pub(super) fn mark_non_pods(&self) -> Option<NftRule> {
        if self.node.masquerade_all {
            return Some(NftRule::new(self.set_mark(), "masquerade: masqueradeAll"));
        }
        let mut exprs = self.is_pod(CmpOp::Ne)?;
        exprs.extend(self.set_mark());
        Some(NftRule::new(exprs, "masquerade: source is not a pod"))
    }

    /// Clients inside the cluster bypass externalTrafficPolicy Local. Pods keep their address, the node itself does
    /// not (semantics D2 and D3).
    pub(super) fn short_circuit(&self, lookup: FrontendLookup) -> Vec<NftRule> {
        let mut rules = Vec::new();
        if let Some(mut pod) = self.is_pod(CmpOp::Eq) {
            self.dispatch(lookup, ClientScope::Inside, &mut pod);
            rules.push(NftRule::new(pod, "short circuit: pods"));
        }
        let mut mark = is_local(fib::SADDR);
        mark.extend(self.set_mark());
        rules.push(NftRule::new(mark, "masquerade: source is this node"));
        let mut own = is_local(fib::SADDR);
        self.dispatch(lookup, ClientScope::Inside, &mut own);
        rules.push(NftRule::new(own, "short circuit: this node"));
        rules
    }

    /// Replaces the source of marked packets and of pods that reach themselves.
    pub(super) fn postrouting(&self) -> Vec<NftRule> {
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
        // In this order: a marked pod that reaches itself must not keep its mark.
        vec![
            NftRule::new(marked, "masquerade: marked connections"),
            NftRule::new(hairpin, "masquerade: hairpin"),
        ]
    }
}

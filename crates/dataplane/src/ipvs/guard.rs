//! The tables that refuse new connections to addresses which stay local to the node only for connections that mode ipvs
//! left: what other ports of such an address would reach is a server of the node itself.
//!
//! ```text
//! input hook: of a new connection, and to an address in `addresses`? -> reject
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::Family;

use crate::backend::BackendError;
use crate::nftables::Kernel;
use crate::nftables::apply::{apply_diff, read};
use crate::nftables::ir::{
    Base, BitwiseOp, Bytes, Chain, ChainSpec, ChainType, CmpOp, Comment, CtKey, Element, Expr, FieldType,
    Hook, KeyBuilder, MetaKey, NftFamily, NftRule, PayloadBase, Policy, Reg, RejectKind, Ruleset, Set,
    SetSpec, Table, TableId,
};

/// The name of the tables.
pub(crate) const TABLE: &str = "zoneward-ipvs";
const ADDRESSES: &str = "addresses";
/// The bit of a new connection in the state that conntrack reports.
const NEW: u32 = 8;
const TCP: u8 = 6;

/// The tables, one for each family.
pub(super) fn tables() -> [TableId; 2] {
    [NftFamily::Ip, NftFamily::Ip6].map(|family| TableId::new(family, TABLE))
}

/// Refuses new connections to these addresses, and to no others.
pub(super) fn refuse_new(kernel: &mut dyn Kernel, addresses: &BTreeSet<IpAddr>) -> Result<(), BackendError> {
    let (held, _) = read(kernel, &tables())?;
    apply_diff(kernel, &held, &render(addresses)).map(drop)?;
    Ok(())
}

fn render(addresses: &BTreeSet<IpAddr>) -> Ruleset {
    let mut ruleset = Ruleset::default();
    for (id, family) in tables().into_iter().zip([Family::V4, Family::V6]) {
        let of_family: Vec<IpAddr> =
            addresses.iter().copied().filter(|address| Family::of(*address) == family).collect();
        if !of_family.is_empty() {
            ruleset.tables.insert(id, table(family, &of_family));
        }
    }
    ruleset
}

fn table(family: Family, addresses: &[IpAddr]) -> Table {
    let (field, unreachable) = match family {
        Family::V4 => (FieldType::Ipv4Addr, 3),
        Family::V6 => (FieldType::Ipv6Addr, 4),
    };
    let mut set = Set::empty(SetSpec::new(&[field]));
    for address in addresses {
        let element = Element::member(KeyBuilder::new().address(*address).bytes());
        set.elements.insert(element.key, element.value);
    }
    let mut tcp = new_connection(family);
    tcp.push(Expr::Meta { key: MetaKey::L4Proto, dreg: Reg(0) });
    tcp.push(Expr::Cmp { op: CmpOp::Eq, sreg: Reg(0), value: Bytes::from(&[TCP][..]) });
    tcp.push(Expr::Reject(RejectKind::TcpReset));
    let mut other = new_connection(family);
    other.push(Expr::Reject(RejectKind::Icmp(unreachable)));
    let rules = vec![NftRule::new(tcp, "TCP reset"), NftRule::new(other, "ICMP port unreachable")];
    let base = Base { kind: ChainType::Filter, hook: Hook::Input, priority: 0, policy: Policy::Accept };
    let spec = ChainSpec { base: Some(base), comment: None };
    let comment = Comment::new("Zoneward: addresses that stay local until connections of mode ipvs end");
    let mut table = Table { comment: Some(comment), ..Table::default() };
    table.sets.insert(ADDRESSES.into(), set);
    table.chains.insert("input".into(), Chain { spec, rules });
    table
}

fn new_connection(family: Family) -> Vec<Expr> {
    let (offset, len) = match family {
        Family::V4 => (16, 4),
        Family::V6 => (24, 16),
    };
    let number = |value: u32| Bytes::from(&value.to_ne_bytes()[..]);
    let only_new = BitwiseOp::MaskXor { mask: number(NEW), xor: number(0) };
    vec![
        Expr::Ct { key: CtKey::State, direction: None, dreg: Reg(0) },
        Expr::Bitwise { sreg: Reg(0), dreg: Reg(0), len: 4, op: only_new },
        Expr::Cmp { op: CmpOp::Ne, sreg: Reg(0), value: number(0) },
        Expr::Payload { base: PayloadBase::Network, offset, len, dreg: Reg(0) },
        Expr::Lookup { set: ADDRESSES.into(), sreg: Reg(0), negated: false },
    ]
}

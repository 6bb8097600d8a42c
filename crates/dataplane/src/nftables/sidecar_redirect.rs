//! The rules that redirect a pod's connections to Services into its sidecar: separate tables, in the pod's network
//! namespace.
//!
//! ```text
//! output hook: of the sidecar itself (by mark or user)? -> untouched
//!              TCP to an address and port in `services`? -> to the sidecar's port on loopback
//! ```
//!
//! The sidecar reads the original destination from conntrack. Other connections are untouched.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use model::Family;

use super::ir::{
    self, Base, Bytes, Chain, ChainSpec, ChainType, CmpOp, Comment, Element, Expr, FieldType, Hook,
    KeyBuilder, MetaKey, NatFlags, NatKind, NftRule, NftVerdict, PayloadBase, Policy, Reg, Ruleset, Set,
    SetSpec, Span, Table, TableId,
};

/// The name of the tables.
pub const TABLE: &str = "zoneward-mesh";
/// The mark of the sidecar's own packets.
pub const MARK: u32 = 0x7a6d;
/// Before dstnat (-100), and thus before a node proxy in the same namespace.
const PRIORITY: i32 = -110;
const TCP: u8 = 6;
const SERVICES: &str = "services";

/// Parameters of the redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidecarRedirect<'a> {
    pub services: &'a [SocketAddr],
    /// The sidecar's port on loopback.
    pub port: u16,
    /// User id whose connections are not redirected, if only the sidecar has it.
    pub uid: Option<u32>,
}

pub fn table_id(family: Family) -> TableId {
    let family = match family {
        Family::V4 => ir::NftFamily::Ip,
        Family::V6 => ir::NftFamily::Ip6,
    };
    TableId::new(family, TABLE)
}

/// The tables, one for each family.
pub fn render(redirect: &SidecarRedirect<'_>) -> Ruleset {
    let mut ruleset = Ruleset::default();
    for family in [Family::V4, Family::V6] {
        ruleset.tables.insert(table_id(family), table(redirect, family));
    }
    ruleset
}

fn table(redirect: &SidecarRedirect<'_>, family: Family) -> Table {
    let base = Base { kind: ChainType::Nat, hook: Hook::Output, priority: PRIORITY, policy: Policy::Accept };
    let spec = ChainSpec { base: Some(base), comment: None };
    let mut rules = vec![NftRule::new(own(MetaKey::Mark, MARK), "skip connections of the sidecar, by mark")];
    if let Some(uid) = redirect.uid {
        rules.push(NftRule::new(own(MetaKey::SkUid, uid), "skip connections of the sidecar, by user ID"));
    }
    rules
        .push(NftRule::new(to_sidecar(redirect.port, family), "redirect Service connections to the sidecar"));
    let mut table = Table {
        comment: Some(Comment::new("Zoneward: Service connections redirected to the sidecar")),
        ..Table::default()
    };
    table.chains.insert("output".into(), Chain { spec, rules });
    table.sets.insert(SERVICES.into(), services(redirect.services, family));
    table
}

fn services(all: &[SocketAddr], family: Family) -> Set {
    let address = match family {
        Family::V4 => FieldType::Ipv4Addr,
        Family::V6 => FieldType::Ipv6Addr,
    };
    let mut set = Set::empty(SetSpec::new(&[address, FieldType::InetService]));
    for service in all.iter().filter(|service| Family::of(service.ip()) == family) {
        let element = Element::member(KeyBuilder::new().address(service.ip()).port(service.port()).bytes());
        set.elements.insert(element.key, element.value);
    }
    set
}

fn own(key: MetaKey, value: u32) -> Vec<Expr> {
    vec![
        Expr::Meta { key, dreg: Reg(0) },
        Expr::Cmp { op: CmpOp::Eq, sreg: Reg(0), value: Bytes::from(&value.to_ne_bytes()[..]) },
        Expr::Verdict(NftVerdict::Return),
    ]
}

fn to_sidecar(port: u16, family: Family) -> Vec<Expr> {
    let (offset, length, loopback, own) = match family {
        Family::V4 => (16, 4, IpAddr::from(Ipv4Addr::LOCALHOST), ir::NftFamily::Ip),
        Family::V6 => (24, 16, IpAddr::from(Ipv6Addr::LOCALHOST), ir::NftFamily::Ip6),
    };
    let behind = Reg(0).after(length);
    let (address, to_port) = (Reg(8), Reg(12));
    vec![
        Expr::Meta { key: MetaKey::L4Proto, dreg: Reg(0) },
        Expr::Cmp { op: CmpOp::Eq, sreg: Reg(0), value: Bytes::from(&[TCP][..]) },
        Expr::Payload { base: PayloadBase::Network, offset, len: length as u32, dreg: Reg(0) },
        Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, dreg: behind },
        Expr::Lookup { set: SERVICES.into(), sreg: Reg(0), negated: false },
        Expr::Immediate { dreg: address, value: KeyBuilder::new().address(loopback).bytes() },
        Expr::Immediate { dreg: to_port, value: Bytes::from(&port.to_be_bytes()[..]) },
        Expr::Nat {
            kind: NatKind::Dnat,
            family: own,
            address: Some(Span::one(address)),
            port: Some(Span::one(to_port)),
            flags: NatFlags::default(),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::apply::{initial_load_groups, load, read};
    use crate::nftables::fake::FakeKernel;
    use crate::nftables::trace::{NodeAddresses, TracedPacket, evaluate};

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn only_connections_to_services_go_into_the_sidecar_and_never_its_own() {
        let services = [at("10.96.0.7:80"), at("[fd00::7]:80")];
        let ruleset = render(&SidecarRedirect { services: &services, port: 15_001, uid: Some(1337) });
        let mut kernel = FakeKernel::default();
        load(&mut kernel, initial_load_groups(&ruleset)).unwrap();
        let ours = [table_id(Family::V4), table_id(Family::V6)];
        let (held, problems) = read(&mut kernel, &ours).unwrap();
        assert_eq!((&held, problems.len()), (&ruleset, 0), "what the kernel shows is what was sent");
        let node = NodeAddresses { addresses: vec![at("10.0.0.2:0").ip(), at("[fd00:1::2]:0").ip()] };
        let goes = |change: fn(&mut TracedPacket), from: &str, to: &str| {
            let mut packet = TracedPacket::new(TCP, at(from), at(to));
            change(&mut packet);
            let ways = evaluate(&held, &packet, &node).unwrap().endpoints;
            ways.first().map_or_else(|| "untouched".to_owned(), |(address, _)| address.to_string())
        };
        let plain = |_: &mut TracedPacket| {};
        assert_eq!(goes(plain, "10.0.0.2:40000", "10.96.0.7:80"), "127.0.0.1:15001");
        assert_eq!(goes(plain, "[fd00:1::2]:40000", "[fd00::7]:80"), "[::1]:15001");
        for (from, to) in [("10.0.0.2:4000", "10.96.0.7:81"), ("10.0.0.2:4000", "10.96.0.8:80")] {
            assert_eq!(goes(plain, from, to), "untouched", "no Service's");
        }
        let to = "10.96.0.7:80";
        assert_eq!(goes(|packet| packet.mark = MARK, "10.0.0.2:40000", to), "untouched");
        assert_eq!(goes(|packet| packet.uid = 1337, "10.0.0.2:40000", to), "untouched");
        assert_eq!(
            goes(|packet| packet.protocol = 17, "10.0.0.2:40000", to),
            "untouched",
            "UDP is not carried"
        );
    }
}

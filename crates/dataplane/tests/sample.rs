//! A program with one of everything: every kind of set, every expression, both families.

use std::net::IpAddr;

use dataplane::nftables::ir::{
    Base, BitwiseOp, Chain, ChainSpec, ChainType, CmpOp, Comment, CtDirection, CtKey, Data, DataType,
    DynsetOp, Element, Expr, FieldType, Hook, KeyBuilder, MetaKey, NatFlags, NatKind, NftFamily, NftRule,
    NftVerdict, NumgenKind, PayloadBase, Policy, Reg, RejectKind, Ruleset, Set, SetSpec, Span, Table,
    TableId, fib,
};

const R0: Reg = Reg(0);

pub(crate) fn ip4() -> TableId {
    TableId::new(NftFamily::Ip, "zoneward")
}

pub(crate) fn ip6() -> TableId {
    TableId::new(NftFamily::Ip6, "zoneward")
}

/// How the families differ.
pub(crate) struct Flavour {
    pub(crate) family: NftFamily,
    pub(crate) address: FieldType,
    pub(crate) saddr: u32,
    pub(crate) daddr: u32,
    pub(crate) vip: IpAddr,
    pub(crate) endpoints: [IpAddr; 2],
}

pub(crate) fn flavour(family: NftFamily) -> Flavour {
    let address = |text: &str| text.parse().expect("an address");
    match family {
        NftFamily::Ip6 => Flavour {
            family,
            address: FieldType::Ipv6Addr,
            saddr: 8,
            daddr: 24,
            vip: address("fd00:30::1"),
            endpoints: [address("fd00:10::1"), address("fd00:10::2")],
        },
        _ => Flavour {
            family,
            address: FieldType::Ipv4Addr,
            saddr: 12,
            daddr: 16,
            vip: address("172.30.0.1"),
            endpoints: [address("10.1.0.1"), address("10.1.0.2")],
        },
    }
}

/// Both tables.
pub(crate) fn program() -> Ruleset {
    let mut program = Ruleset::default();
    program.tables.insert(ip4(), table(NftFamily::Ip));
    program.tables.insert(ip6(), table(NftFamily::Ip6));
    program
}

fn set(spec: SetSpec, comment: &str, elements: Vec<Element>) -> Set {
    let elements = elements.into_iter().map(|element| (element.key, element.value)).collect();
    Set { spec: SetSpec { comment: Some(Comment::new(comment)), ..spec }, elements }
}

fn base(kind: ChainType, hook: Hook, priority: i32, rules: Vec<NftRule>) -> Chain {
    let base = Some(Base { kind, hook, priority, policy: Policy::Accept });
    Chain { spec: ChainSpec { base, comment: Some(Comment::new("where packets come in")) }, rules }
}

fn plain(rules: Vec<NftRule>) -> Chain {
    Chain { spec: ChainSpec::default(), rules }
}

pub(crate) fn table(family: NftFamily) -> Table {
    let flavour = flavour(family);
    let mut table = Table { comment: Some(Comment::new("service rules of this node")), ..Table::default() };
    sets(&flavour, &mut table);
    chains(&flavour, &mut table);
    table
}

fn sets(flavour: &Flavour, table: &mut Table) {
    use FieldType::{IfName, Index, InetProto, InetService, Mark};
    let address = flavour.address;
    let web = Comment::new("default/web:http");
    let frontend = || KeyBuilder::new().address(flavour.vip).protocol(6).port(80);
    let class = SetSpec {
        size: Some(1024),
        ..SetSpec::map(&[address, InetProto, InetService], DataType::Fields(vec![Mark]))
    };
    let to_class = Element::entry(frontend().bytes(), Data::Value(KeyBuilder::new().mark(0x102).bytes()));
    table.sets.insert("frontends".into(), set(class, "frontend to class", vec![to_class.with_comment(&web)]));

    let class_chains = SetSpec::map(&[Mark], DataType::Verdict);
    let n2 = Element::entry(KeyBuilder::new().mark(2).bytes(), Data::Verdict(NftVerdict::Goto("n-2".into())));
    table.sets.insert("classes".into(), set(class_chains, "class to chain", vec![n2]));

    let endpoints = SetSpec {
        size: Some(4096),
        ..SetSpec::map(
            &[address, InetProto, InetService, Index],
            DataType::Fields(vec![address, InetService]),
        )
    };
    let entry = |index: u32| {
        let data = KeyBuilder::new().address(flavour.endpoints[index as usize]).port(8080).bytes();
        Element::entry(frontend().index(index).bytes(), Data::Value(data)).with_comment(&web)
    };
    table.sets.insert("endpoints".into(), set(endpoints, "where packets go", vec![entry(0), entry(1)]));

    let affinity = SetSpec {
        dynamic: true,
        timeout: Some(10_800_000),
        size: Some(65_536),
        ..SetSpec::map(&[Mark, address], DataType::Fields(vec![Mark]))
    };
    table.sets.insert("affinity".into(), set(affinity, "clients stay", vec![]));

    let masked = |first: &str, last: &str| {
        let key = |text: &str| KeyBuilder::new().address(text.parse().expect("an address")).bytes();
        Element::member(key(first)).up_to(key(last))
    };
    let ranges = match flavour.family {
        NftFamily::Ip6 => vec![
            masked("fd00:30::", "fd00:30::ffff"),
            masked("fd00:31::5", "fd00:31::5"),
            masked("ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ],
        _ => vec![
            masked("172.30.0.0", "172.30.255.255"),
            masked("172.31.0.0", "172.31.0.7"),
            masked("172.31.0.8", "172.31.0.8"),
            masked("224.0.0.0", "255.255.255.255"),
        ],
    };
    let cidrs = SetSpec { interval: true, ..SetSpec::new(&[address]) };
    table.sets.insert("service-cidrs".into(), set(cidrs, "addresses of Services", ranges));

    let sources = SetSpec { interval: true, ..SetSpec::new(&[address, InetProto, InetService, address]) };
    let low = frontend().address(flavour.endpoints[0]).bytes();
    let high = frontend().address(flavour.endpoints[1]).bytes();
    let one =
        KeyBuilder::new().address(flavour.vip).protocol(17).port(53).address(flavour.endpoints[0]).bytes();
    let allowed = vec![Element::member(low).up_to(high).with_comment(&web), Element::member(one)];
    table.sets.insert("allowed-sources".into(), set(sources, "loadBalancerSourceRanges", allowed));

    let bridges = vec![Element::member(KeyBuilder::new().interface("cni0").bytes())];
    table.sets.insert("pod-bridges".into(), set(SetSpec::new(&[IfName]), "pods come in here", bridges));
}

/// Loads daddr . proto . dport from register 0 on, and returns the register behind.
fn load_frontend(flavour: &Flavour) -> (Vec<Expr>, Reg) {
    let width = flavour.address.padded_width();
    let proto = R0.after(width);
    let port = proto.after(4);
    let exprs = vec![
        Expr::Payload {
            base: PayloadBase::Network,
            offset: flavour.daddr,
            len: flavour.address.width() as u32,
            dreg: R0,
        },
        Expr::Meta { key: MetaKey::L4Proto, dreg: proto },
        Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, dreg: port },
    ];
    (exprs, port.after(4))
}

fn mask(bits: u32) -> BitwiseOp {
    BitwiseOp::MaskXor { mask: bits.to_ne_bytes().into(), xor: 0u32.to_ne_bytes().into() }
}

fn saddr(flavour: &Flavour, dreg: Reg) -> Expr {
    let len = flavour.address.width() as u32;
    Expr::Payload { base: PayloadBase::Network, offset: flavour.saddr, len, dreg }
}

fn chains(flavour: &Flavour, table: &mut Table) {
    let prerouting =
        vec![rule(vec![Expr::Verdict(NftVerdict::Jump("services".into()))], "all that comes in")];
    let nat = base(ChainType::Nat, Hook::Prerouting, -100, prerouting);
    table.chains.insert("nat-prerouting".into(), nat);
    let postrouting = base(ChainType::Nat, Hook::Postrouting, 100, masquerade_rules());
    table.chains.insert("nat-postrouting".into(), postrouting);
    let forward = base(ChainType::Filter, Hook::Forward, 0, filter_rules(flavour));
    table.chains.insert("filter-forward".into(), forward);
    table.chains.insert("services".into(), plain(service_rules(flavour)));
    table.chains.insert("n-2".into(), plain(balance_rules(flavour)));
}

fn rule(exprs: Vec<Expr>, comment: &str) -> NftRule {
    NftRule::new(exprs, comment)
}

fn service_rules(flavour: &Flavour) -> Vec<NftRule> {
    let (mut classify, _) = load_frontend(flavour);
    classify.push(Expr::LookupMap { set: "frontends".into(), sreg: R0, dreg: R0 });
    classify.push(Expr::MetaSet { key: MetaKey::Mark, sreg: R0 });
    let class = vec![
        Expr::Meta { key: MetaKey::Mark, dreg: R0 },
        Expr::Bitwise { sreg: R0, dreg: R0, len: 4, op: mask(0xff) },
        Expr::LookupVerdict { set: "classes".into(), sreg: R0 },
    ];
    let own = vec![
        Expr::FibType { flags: fib::DADDR, dreg: R0 },
        Expr::Cmp { op: CmpOp::Eq, sreg: R0, value: fib::TYPE_LOCAL.to_ne_bytes().into() },
        Expr::Counter,
        Expr::Verdict(NftVerdict::Return),
    ];
    vec![rule(classify, "which Service"), rule(class, "how many endpoints"), rule(own, "the node itself")]
}

fn balance_rules(flavour: &Flavour) -> Vec<NftRule> {
    let (mut pick, index) = load_frontend(flavour);
    let port = R0.after(flavour.address.padded_width());
    pick.push(Expr::Numgen { kind: NumgenKind::Random, modulus: 2, offset: 0, dreg: index });
    pick.push(Expr::LookupMap { set: "endpoints".into(), sreg: R0, dreg: R0 });
    pick.push(Expr::Nat {
        kind: NatKind::Dnat,
        family: flavour.family,
        address: Some(Span::one(R0)),
        port: Some(Span::one(port)),
        flags: NatFlags::default(),
    });
    vec![rule(pick, "one of two, by chance")]
}

fn masquerade_rules() -> Vec<NftRule> {
    let marked = vec![
        Expr::Meta { key: MetaKey::Mark, dreg: R0 },
        Expr::Bitwise { sreg: R0, dreg: R0, len: 4, op: mask(0x4000) },
        Expr::Cmp { op: CmpOp::Ne, sreg: R0, value: 0u32.to_ne_bytes().into() },
        Expr::Masquerade { flags: NatFlags { fully_random: true, ..NatFlags::default() } },
    ];
    vec![rule(marked, "answers come back through this node")]
}

fn filter_rules(flavour: &Flavour) -> Vec<NftRule> {
    let daddr = Expr::Payload {
        base: PayloadBase::Network,
        offset: flavour.daddr,
        len: flavour.address.width() as u32,
        dreg: R0,
    };
    let original = match flavour.family {
        NftFamily::Ip6 => CtKey::Ip6Daddr,
        _ => CtKey::IpDaddr,
    };
    let state = |bits: u32| {
        vec![
            Expr::Ct { key: CtKey::State, direction: None, dreg: R0 },
            Expr::Bitwise { sreg: R0, dreg: R0, len: 4, op: mask(bits) },
            Expr::Cmp { op: CmpOp::Ne, sreg: R0, value: 0u32.to_ne_bytes().into() },
        ]
    };
    let (mut sources, behind) = load_frontend(flavour);
    sources.push(saddr(flavour, behind));
    sources.push(Expr::Lookup { set: "allowed-sources".into(), sreg: R0, negated: true });
    sources.push(Expr::Verdict(NftVerdict::Drop));
    let data = Reg(1).after(flavour.address.padded_width());
    let mut remember = vec![Expr::Meta { key: MetaKey::Mark, dreg: R0 }, saddr(flavour, Reg(1))];
    remember.push(Expr::Ct { key: CtKey::Mark, direction: None, dreg: data });
    remember.push(Expr::Dynset {
        op: DynsetOp::Update,
        set: "affinity".into(),
        key: R0,
        data: Some(data),
        timeout: Some(60_000),
        counts: false,
    });
    let mut forget = remember.clone();
    if let Some(Expr::Dynset { op, timeout, .. }) = forget.last_mut() {
        (*op, *timeout) = (DynsetOp::Delete, None);
    }
    let unknown = vec![
        daddr.clone(),
        Expr::Lookup { set: "service-cidrs".into(), sreg: R0, negated: false },
        Expr::Reject(RejectKind::Icmp(if flavour.family == NftFamily::Ip6 { 4 } else { 3 })),
    ];
    let bridge = vec![
        Expr::Meta { key: MetaKey::IifName, dreg: R0 },
        Expr::Lookup { set: "pod-bridges".into(), sreg: R0, negated: false },
        Expr::Verdict(NftVerdict::Accept),
    ];
    let ports = vec![
        Expr::Meta { key: MetaKey::L4Proto, dreg: R0 },
        Expr::Cmp { op: CmpOp::Eq, sreg: R0, value: [6].into() },
        Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, dreg: R0 },
        Expr::Range {
            negated: false,
            sreg: R0,
            from: KeyBuilder::new().port(30_000).bytes(),
            to: KeyBuilder::new().port(32_767).bytes(),
        },
        Expr::Reject(RejectKind::TcpReset),
    ];
    let before = vec![
        Expr::Ct { key: original, direction: Some(CtDirection::Original), dreg: R0 },
        Expr::Cmp { op: CmpOp::Eq, sreg: R0, value: KeyBuilder::new().address(flavour.vip).bytes() },
        Expr::Counter,
    ];
    let mut new = state(8);
    new.push(Expr::Counter);
    vec![
        rule(new, "only new connections"),
        rule(sources, "sources that may"),
        rule(remember, "who went where"),
        rule(forget, "who is gone"),
        rule(unknown, "no such Service"),
        rule(bridge, "from pods"),
        rule(ports, "node ports without Service"),
        rule(before, "what was asked for"),
    ]
}

//! Changes to the sample that the kernel refuses, with its error numbers: the fake kernel and the real one must agree.

use dataplane::nftables::ir::{
    Base, ChainSpec, ChainType, Data, Element, Expr, FieldType, Hook, IntervalEncoding, KeyBuilder, MetaKey,
    NatFlags, NatKind, NftChange, NftFamily, NftRule, NftVerdict, Policy, Reg, RulePosition, SetSpec, Span,
    TableId,
};
use nix::errno::Errno;

use super::sample::ip4;

type Refusal = (&'static str, Vec<NftChange>, Errno);

fn rule(chain: &str, exprs: Vec<Expr>) -> Vec<NftChange> {
    vec![NftChange::AddRule {
        table: ip4(),
        chain: chain.into(),
        rule: NftRule::new(exprs, "refused"),
        position: RulePosition::Last,
    }]
}

fn jump(chain: &str, to: &str) -> Vec<NftChange> {
    rule(chain, vec![Expr::Verdict(NftVerdict::Jump(to.into()))])
}

fn add(set: &str, ranges: IntervalEncoding, element: Element) -> Vec<NftChange> {
    vec![NftChange::AddElements { table: ip4(), set: set.into(), ranges, elements: vec![element] }]
}

fn delete(set: &str, ranges: IntervalEncoding, element: Element) -> Vec<NftChange> {
    vec![NftChange::DeleteElements { table: ip4(), set: set.into(), ranges, elements: vec![element] }]
}

fn address(text: &str) -> KeyBuilder {
    KeyBuilder::new().address(text.parse().expect("an address"))
}

pub(crate) fn all() -> Vec<Refusal> {
    [objects(), elements(), rules()].concat()
}

fn objects() -> Vec<Refusal> {
    let table = ip4();
    let chain = |chain: &str| vec![NftChange::DeleteChain { table: table.clone(), chain: chain.into() }];
    let set = |set: &str| vec![NftChange::DeleteSet { table: table.clone(), set: set.into() }];
    let base = |kind, hook, priority| {
        let base = Some(Base { kind, hook, priority, policy: Policy::Accept });
        ChainSpec { base, comment: None }
    };
    let make =
        |name: &str, spec| vec![NftChange::AddChain { table: table.clone(), chain: name.into(), spec }];
    let none = TableId::new(NftFamily::Ip, "none");
    let plain = ChainSpec::default();
    let other = SetSpec::new(&[FieldType::Mark]);
    vec![
        ("table that is not there", vec![NftChange::DeleteTable { table: none.clone() }], Errno::ENOENT),
        (
            "chain in a table that is not there",
            vec![NftChange::AddChain { table: none, chain: "x".into(), spec: plain }],
            Errno::ENOENT,
        ),
        ("chain that a map leads to", chain("n-2"), Errno::EBUSY),
        ("chain that a rule leads to", chain("services"), Errno::EBUSY),
        ("chain that is not there", chain("none"), Errno::ENOENT),
        ("set that a rule uses", set("frontends"), Errno::EBUSY),
        ("set that is not there", set("none"), Errno::ENOENT),
        (
            "base chain with another priority",
            make("nat-prerouting", base(ChainType::Nat, Hook::Prerouting, -90)),
            Errno::EOPNOTSUPP,
        ),
        (
            "nat before conntrack",
            make("early", base(ChainType::Nat, Hook::Prerouting, -300)),
            Errno::EOPNOTSUPP,
        ),
        ("nat at forward", make("forward", base(ChainType::Nat, Hook::Forward, 0)), Errno::EOPNOTSUPP),
        ("route at input", make("route", base(ChainType::Route, Hook::Input, 0)), Errno::EOPNOTSUPP),
        (
            "set with another key",
            vec![NftChange::AddSet { table: table.clone(), set: "frontends".into(), spec: other }],
            Errno::EEXIST,
        ),
    ]
}

fn elements() -> Vec<Refusal> {
    let frontend = || address("172.30.0.1").protocol(6).port(80).bytes();
    let mark = |value: u32| Data::Value(KeyBuilder::new().mark(value).bytes());
    let class = |verdict| Element::entry(KeyBuilder::new().mark(9).bytes(), Data::Verdict(verdict));
    let range =
        |first: &str, last: &str| Element::member(address(first).bytes()).up_to(address(last).bytes());
    vec![
        (
            "element with other data",
            add("frontends", IntervalEncoding::None, Element::entry(frontend(), mark(7))),
            Errno::EEXIST,
        ),
        (
            "map without data",
            add("frontends", IntervalEncoding::None, Element::member(frontend())),
            Errno::EINVAL,
        ),
        (
            "key of the wrong length",
            add("frontends", IntervalEncoding::None, Element::entry(address("172.30.0.9").bytes(), mark(7))),
            Errno::EINVAL,
        ),
        (
            "verdict to nowhere",
            add("classes", IntervalEncoding::None, class(NftVerdict::Goto("none".into()))),
            Errno::ENOENT,
        ),
        (
            "verdict to a base chain",
            add("classes", IntervalEncoding::None, class(NftVerdict::Goto("nat-prerouting".into()))),
            Errno::EOPNOTSUPP,
        ),
        (
            "element that is not there",
            delete(
                "frontends",
                IntervalEncoding::None,
                Element::member(address("172.30.0.9").protocol(6).port(1).bytes()),
            ),
            Errno::ENOENT,
        ),
        (
            "range that overlaps",
            add("service-cidrs", IntervalEncoding::TwoElements, range("172.30.4.0", "172.30.5.0")),
            Errno::EEXIST,
        ),
        (
            "range that is not there",
            delete("service-cidrs", IntervalEncoding::TwoElements, range("172.20.0.0", "172.20.0.255")),
            Errno::ENOENT,
        ),
    ]
}

fn rules() -> Vec<Refusal> {
    let load_mark = |dreg| Expr::Meta { key: MetaKey::Mark, dreg };
    let dnat = || Expr::Nat {
        kind: NatKind::Dnat,
        family: NftFamily::Ip,
        address: Some(Span::one(Reg(0))),
        port: None,
        flags: NatFlags::default(),
    };
    vec![
        ("jump to nowhere", jump("services", "none"), Errno::ENOENT),
        ("jump to a base chain", jump("services", "nat-prerouting"), Errno::EOPNOTSUPP),
        ("rule in a chain that is not there", jump("none", "services"), Errno::ENOENT),
        (
            "set that is not there",
            rule(
                "services",
                vec![load_mark(Reg(0)), Expr::Lookup { set: "none".into(), sreg: Reg(0), negated: false }],
            ),
            Errno::ENOENT,
        ),
        (
            "answer of a set that has none",
            rule(
                "services",
                vec![
                    load_mark(Reg(0)),
                    load_mark(Reg(1)),
                    load_mark(Reg(2)),
                    load_mark(Reg(3)),
                    Expr::LookupMap { set: "pod-bridges".into(), sreg: Reg(0), dreg: Reg(0) },
                ],
            ),
            Errno::EINVAL,
        ),
        (
            "register that nothing wrote",
            rule("services", vec![Expr::MetaSet { key: MetaKey::Mark, sreg: Reg(5) }]),
            Errno::ENODATA,
        ),
        (
            "register past the end",
            rule("services", vec![Expr::Meta { key: MetaKey::IifName, dreg: Reg(14) }]),
            Errno::ERANGE,
        ),
        ("dnat where no nat is", rule("filter-forward", vec![load_mark(Reg(0)), dnat()]), Errno::EOPNOTSUPP),
        (
            "masquerade before routing",
            rule("services", vec![Expr::Masquerade { flags: NatFlags::default() }]),
            Errno::EOPNOTSUPP,
        ),
        ("chain that leads to itself", jump("services", "services"), Errno::EMLINK),
        (
            "rule that is not there",
            vec![NftChange::DeleteRule { table: ip4(), chain: "services".into(), handle: 999_999 }],
            Errno::ENOENT,
        ),
    ]
}

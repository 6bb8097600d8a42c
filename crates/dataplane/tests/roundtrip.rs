//! What is encoded decodes to the same, for any change; and no bytes make the decoder panic.

use std::num::NonZeroU64;

use dataplane::nfnetlink::wire::messages;
use dataplane::nftables::decode;
use dataplane::nftables::encode::Batch;
use dataplane::nftables::ir::{
    Base, BitwiseOp, Bytes, ChainSpec, ChainType, CmpOp, Comment, CtDirection, CtKey, Data, DataType,
    DynsetOp, Element, ElementValue, Expr, FieldType, Hook, IntervalEncoding, MetaKey, NatFlags, NatKind,
    NftChange, NftFamily, NftName, NftRule, NftVerdict, NumgenKind, PayloadBase, Policy, Reg, RejectKind,
    RulePosition, SetSpec, Span, TableId,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use proptest::sample::select;

fn name() -> impl Strategy<Value = NftName> {
    "[a-z][a-z0-9/_.-]{0,30}".prop_map(NftName::from)
}

fn comment() -> impl Strategy<Value = Option<Comment>> {
    option::of(".{0,140}".prop_map(|text: String| Comment::new(&text)))
}

fn table() -> impl Strategy<Value = TableId> {
    (select(vec![NftFamily::Ip, NftFamily::Ip6, NftFamily::Inet]), name())
        .prop_map(|(family, name)| TableId::new(family, name))
}

fn bytes(longest: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 1..=longest).prop_map(Bytes::from)
}

fn reg() -> impl Strategy<Value = Reg> {
    (0u8..16).prop_map(Reg)
}

fn verdict() -> impl Strategy<Value = NftVerdict> {
    prop_oneof![
        select(vec![NftVerdict::Accept, NftVerdict::Drop, NftVerdict::Continue, NftVerdict::Return]),
        name().prop_map(NftVerdict::Jump),
        name().prop_map(NftVerdict::Goto),
    ]
}

fn base() -> impl Strategy<Value = Base> {
    (
        select(vec![ChainType::Filter, ChainType::Nat, ChainType::Route]),
        select(vec![Hook::Prerouting, Hook::Input, Hook::Forward, Hook::Output, Hook::Postrouting]),
        any::<i32>(),
        select(vec![Policy::Accept, Policy::Drop]),
    )
        .prop_map(|(kind, hook, priority, policy)| Base { kind, hook, priority, policy })
}

fn field() -> impl Strategy<Value = FieldType> {
    use FieldType::{CtState, FibAddrType, IfName, Index, InetProto, InetService, Ipv4Addr, Ipv6Addr, Mark};
    select(vec![Ipv4Addr, Ipv6Addr, InetProto, InetService, Mark, Index, IfName, FibAddrType, CtState])
}

fn spec() -> impl Strategy<Value = SetSpec> {
    let data = prop_oneof![vec(field(), 1..4).prop_map(DataType::Fields), Just(DataType::Verdict)];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    // Long comments of sets with described fields are cut to fit; that has a test of its own.
    let comment = option::of("[a-z ]{0,40}".prop_map(|text: String| Comment::new(&text)));
    let numbers = (option::of(1..u64::MAX / 2), option::of(any::<u32>()), comment);
    (vec(field(), 1..5), option::of(data), flags, numbers).prop_map(
        |(key, data, flags, (timeout, size, comment))| {
            let (interval, dynamic, expires) = flags;
            SetSpec { key, data, interval, dynamic, expires, timeout, size, comment }
        },
    )
}

fn flags() -> impl Strategy<Value = NatFlags> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(random, fully_random, persistent)| NatFlags {
        random,
        fully_random,
        persistent,
    })
}

fn span() -> impl Strategy<Value = Option<Span>> {
    option::of(
        (reg(), option::of(reg())).prop_map(|(min, max)| Span { min, max: max.filter(|max| *max != min) }),
    )
}

fn loads() -> impl Strategy<Value = Expr> {
    use MetaKey::{Iif, IifName, L4Proto, Mark, NfProto, Oif, OifName, Protocol, SkUid};
    let meta = || select(vec![Protocol, Mark, Iif, Oif, IifName, OifName, NfProto, L4Proto, SkUid]);
    let ct = || {
        use CtKey::{
            Direction, Ip6Daddr, Ip6Saddr, IpDaddr, IpSaddr, Mark, ProtoDst, ProtoSrc, State, Status,
        };
        select(vec![State, Status, Mark, Direction, IpSaddr, IpDaddr, Ip6Saddr, Ip6Daddr, ProtoSrc, ProtoDst])
    };
    let base = select(vec![PayloadBase::Network, PayloadBase::Transport]);
    let direction = option::of(select(vec![CtDirection::Original, CtDirection::Reply]));
    prop_oneof![
        (meta(), reg()).prop_map(|(key, dreg)| Expr::Meta { key, dreg }),
        (meta(), reg()).prop_map(|(key, sreg)| Expr::MetaSet { key, sreg }),
        (base, any::<u32>(), any::<u32>(), reg()).prop_map(|(base, offset, len, dreg)| Expr::Payload {
            base,
            offset,
            len,
            dreg
        }),
        (ct(), direction, reg()).prop_map(|(key, direction, dreg)| Expr::Ct { key, direction, dreg }),
        (ct(), reg()).prop_map(|(key, sreg)| Expr::CtSet { key, sreg }),
        (any::<u32>(), reg()).prop_map(|(flags, dreg)| Expr::FibType { flags, dreg }),
        (select(vec![NumgenKind::Inc, NumgenKind::Random]), any::<u32>(), any::<u32>(), reg())
            .prop_map(|(kind, modulus, offset, dreg)| Expr::Numgen { kind, modulus, offset, dreg }),
    ]
}

fn computes() -> impl Strategy<Value = Expr> {
    let cmp = select(vec![CmpOp::Eq, CmpOp::Ne, CmpOp::Lt, CmpOp::Le, CmpOp::Gt, CmpOp::Ge]);
    let bitwise = prop_oneof![
        (bytes(16), bytes(16)).prop_map(|(mask, xor)| BitwiseOp::MaskXor { mask, xor }),
        any::<u32>().prop_map(BitwiseOp::Left),
        any::<u32>().prop_map(BitwiseOp::Right),
    ];
    prop_oneof![
        (cmp, reg(), bytes(40)).prop_map(|(op, sreg, value)| Expr::Cmp { op, sreg, value }),
        (any::<bool>(), reg(), bytes(16), bytes(16)).prop_map(|(negated, sreg, from, to)| Expr::Range {
            negated,
            sreg,
            from,
            to
        }),
        (reg(), reg(), any::<u32>(), bitwise).prop_map(|(sreg, dreg, len, op)| Expr::Bitwise {
            sreg,
            dreg,
            len,
            op
        }),
        (reg(), bytes(40)).prop_map(|(dreg, value)| Expr::Immediate { dreg, value }),
        Just(Expr::Counter),
    ]
}

fn acts() -> impl Strategy<Value = Expr> {
    let reject = prop_oneof![
        any::<u8>().prop_map(RejectKind::Icmp),
        any::<u8>().prop_map(RejectKind::Icmpx),
        Just(RejectKind::TcpReset),
    ];
    let dynset = (select(vec![DynsetOp::Add, DynsetOp::Update, DynsetOp::Delete]), name(), reg());
    let kind = select(vec![NatKind::Dnat, NatKind::Snat]);
    let family = select(vec![NftFamily::Ip, NftFamily::Ip6, NftFamily::Inet]);
    prop_oneof![
        verdict().prop_map(Expr::Verdict),
        (name(), reg(), any::<bool>()).prop_map(|(set, sreg, negated)| Expr::Lookup { set, sreg, negated }),
        (name(), reg(), reg()).prop_map(|(set, sreg, dreg)| Expr::LookupMap { set, sreg, dreg }),
        (name(), reg()).prop_map(|(set, sreg)| Expr::LookupVerdict { set, sreg }),
        (kind, family, span(), span(), flags()).prop_map(|(kind, family, address, port, flags)| Expr::Nat {
            kind,
            family,
            address,
            port,
            flags
        }),
        flags().prop_map(|flags| Expr::Masquerade { flags }),
        (dynset, option::of(reg()), option::of(1..u64::MAX), proptest::bool::ANY).prop_map(
            |((op, set, key), data, timeout, counts)| Expr::Dynset { op, set, key, data, timeout, counts }
        ),
        reject.prop_map(Expr::Reject),
        ("[a-z]{9,12}", bytes(40)).prop_map(|(name, data)| Expr::Foreign { name: name.into(), data }),
    ]
}

fn rule() -> impl Strategy<Value = NftRule> {
    (vec(prop_oneof![loads(), computes(), acts()], 0..8), comment()).prop_map(|(exprs, comment)| NftRule {
        exprs,
        comment,
        handle: None,
    })
}

/// Elements of a set with ranges of this kind; keys of one length and, as in a real set, no two ranges that overlap.
fn elements(ranges: IntervalEncoding) -> impl Strategy<Value = Vec<Element>> {
    let data = option::of(prop_oneof![bytes(20).prop_map(Data::Value), verdict().prop_map(Data::Verdict)]);
    let one = (any::<u16>(), 0u16..3, data, any::<u64>().prop_map(NonZeroU64::new), comment());
    vec(one, 1..20).prop_map(move |raw| {
        let mut list: Vec<Element> = Vec::new();
        for (start, span, data, timeout, comment) in raw {
            let start = start & !3;
            let value = ElementValue { key_end: None, data, timeout, comment };
            let element = Element { key: start.to_be_bytes().into(), value };
            let span = if ranges == IntervalEncoding::None { 0 } else { span };
            if list.iter().all(|other| other.key != element.key) {
                list.push(element.up_to((start + span).to_be_bytes()));
            }
        }
        list
    })
}

fn change() -> impl Strategy<Value = NftChange> {
    let ranges =
        || select(vec![IntervalEncoding::None, IntervalEncoding::TwoElements, IntervalEncoding::KeyEnd]);
    let listed = || (table(), name(), ranges().prop_flat_map(|ranges| (Just(ranges), elements(ranges))));
    let chain_spec = (option::of(base()), comment()).prop_map(|(base, comment)| ChainSpec { base, comment });
    let position = select(vec![RulePosition::First, RulePosition::Last]);
    prop_oneof![
        (table(), comment()).prop_map(|(table, comment)| NftChange::AddTable { table, comment }),
        table().prop_map(|table| NftChange::DeleteTable { table }),
        (table(), name(), chain_spec).prop_map(|(table, chain, spec)| NftChange::AddChain {
            table,
            chain,
            spec
        }),
        (table(), name()).prop_map(|(table, chain)| NftChange::FlushChain { table, chain }),
        (table(), name()).prop_map(|(table, chain)| NftChange::DeleteChain { table, chain }),
        (table(), name()).prop_map(|(table, set)| NftChange::FlushSet { table, set }),
        (table(), name()).prop_map(|(table, set)| NftChange::DeleteSet { table, set }),
        (table(), name(), spec()).prop_map(|(table, set, spec)| NftChange::AddSet { table, set, spec }),
        listed().prop_map(|(table, set, (ranges, elements))| NftChange::AddElements {
            table,
            set,
            ranges,
            elements
        }),
        listed().prop_map(|(table, set, (ranges, elements))| NftChange::DeleteElements {
            table,
            set,
            ranges,
            elements
        }),
        (table(), name(), rule(), position).prop_map(|(table, chain, rule, position)| NftChange::AddRule {
            table,
            chain,
            rule,
            position
        }),
        (table(), name(), any::<u64>(), rule())
            .prop_map(|(table, chain, handle, rule)| NftChange::ReplaceRule { table, chain, handle, rule }),
        (table(), name(), any::<u64>()).prop_map(|(table, chain, handle)| NftChange::DeleteRule {
            table,
            chain,
            handle
        }),
    ]
}

fn ranges_of(changes: &[NftChange], table: &TableId, set: &NftName) -> Option<IntervalEncoding> {
    changes.iter().find_map(|change| match change {
        NftChange::AddElements { table: of, set: name, ranges, .. }
        | NftChange::DeleteElements { table: of, set: name, ranges, .. }
            if of == table && name == set =>
        {
            Some(*ranges)
        }
        _ => None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn change_that_is_encoded_decodes_to_the_same(change in change()) {
        let changes = [change];
        let batch = Batch::of(&changes, 1);
        let decoded = decode::changes(batch.bytes(), |table, set| ranges_of(&changes, table, set));
        assert_eq!(decoded.unwrap(), changes);
        for raw in messages(batch.bytes()).skip(1) {
            let change = batch.change_of(raw.header.seq);
            assert_eq!(change, (raw.header.seq < batch.acknowledged_seq() + 1).then_some(0));
        }
    }

    #[test]
    fn damaged_bytes_do_not_make_the_decoder_panic(
        change in change(), places in vec((any::<usize>(), any::<u8>()), 1..20), cut in any::<usize>(),
    ) {
        let mut bytes = Batch::of(&[change], 1).bytes().to_vec();
        for (position, value) in places {
            let len = bytes.len();
            bytes[position % len] = value;
        }
        bytes.truncate(cut % (bytes.len() + 1));
        let _ = decode::changes(&bytes, |_, _| Some(IntervalEncoding::TwoElements));
        let mut reader = decode::RulesetReader::default();
        messages(&bytes).for_each(|raw| reader.take(raw, &[TableId::new(NftFamily::Ip, "a")]));
    }
}

#[test]
fn long_lists_of_elements_are_dealt_out_over_messages() {
    let elements: Vec<Element> = (0..5_000u32).map(|number| Element::member(number.to_be_bytes())).collect();
    for ranges in [IntervalEncoding::None, IntervalEncoding::TwoElements, IntervalEncoding::KeyEnd] {
        let (table, set) = (TableId::new(NftFamily::Ip, "t"), NftName::from("s"));
        let change = NftChange::AddElements { table, set, ranges, elements: elements.clone() };
        let batch = Batch::of(&[change], 7);
        let decoded = decode::changes(batch.bytes(), |_, _| Some(ranges)).unwrap();
        assert!(decoded.len() > 1);
        let joined = decoded.into_iter().flat_map(|change| match change {
            NftChange::AddElements { elements, .. } => elements,
            other => panic!("{other}"),
        });
        assert_eq!(joined.collect::<Vec<_>>(), elements);
        assert_eq!(batch.change_of(batch.acknowledged_seq()), Some(0));
    }
}

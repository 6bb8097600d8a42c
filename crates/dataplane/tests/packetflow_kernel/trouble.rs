//! What can go wrong with a transaction: the kernel is busy, answers are lost, somebody else was at our tables.

use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::apply::apply;
use dataplane::nftables::fake::KernelFault;
use dataplane::nftables::ir::{ChainSpec, Expr, NftChange, NftRule, NftVerdict, RulePosition, Ruleset};
use nix::errno::Errno;
use proptest::prelude::*;
use proptest::sample::select;

/// What goes wrong with the next transaction.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Trouble {
    /// Nothing.
    None,
    /// The kernel is disturbed so many times and then does it.
    Disturbed(KernelFault, usize),
    /// It does not do it.
    Refused(KernelFault, usize),
    /// It does it, and nobody hears of it.
    AnswerLost,
    /// Somebody else changes our tables before; the kernel itself then refuses what does not fit any more.
    Stranger(u8),
}

impl Trouble {
    /// The failures to inject.
    pub(crate) fn faults(&self) -> Vec<KernelFault> {
        match self {
            Trouble::None | Trouble::Stranger(_) => Vec::new(),
            Trouble::Disturbed(fault, times) | Trouble::Refused(fault, times) => vec![*fault; *times],
            Trouble::AnswerLost => vec![KernelFault::LoseReply],
        }
    }

    /// Whether it ends well.
    pub(crate) fn passes(&self) -> bool {
        matches!(self, Trouble::None | Trouble::Disturbed(..))
    }
}

/// Trouble with every other transaction.
pub(crate) fn trouble() -> impl Strategy<Value = Trouble> {
    let refuse = |errno| KernelFault::Refuse { errno, message: 1 };
    let passing = [
        refuse(Errno::EINTR),
        refuse(Errno::EAGAIN),
        refuse(Errno::ENOBUFS),
        KernelFault::Send(Errno::EINTR),
        KernelFault::Send(Errno::ENOBUFS),
        KernelFault::LoseBatch,
    ];
    let lasting =
        [refuse(Errno::EBUSY), refuse(Errno::ENOMEM), refuse(Errno::ENOENT), KernelFault::Send(Errno::EPERM)];
    // A transaction is tried five times.
    let too_often = [refuse(Errno::EINTR), refuse(Errno::ENOBUFS), KernelFault::Send(Errno::EAGAIN)];
    prop_oneof![
        6 => Just(Trouble::None),
        1 => (select(passing.to_vec()), 1usize..5).prop_map(|(fault, times)| Trouble::Disturbed(fault, times)),
        1 => select(lasting.to_vec()).prop_map(|fault| Trouble::Refused(fault, 1)),
        1 => select(too_often.to_vec()).prop_map(|fault| Trouble::Refused(fault, 5)),
        1 => Just(Trouble::AnswerLost),
        2 => any::<u8>().prop_map(Trouble::Stranger),
    ]
}

/// Failures of up to three dumps of the next reading, which begins again after each.
pub(crate) fn dump_faults() -> impl Strategy<Value = Vec<KernelFault>> {
    let faults = [
        KernelFault::CutDump,
        KernelFault::InterruptDump,
        KernelFault::RefuseDump(Errno::EINTR),
        KernelFault::RefuseDump(Errno::ENOBUFS),
    ];
    proptest::collection::vec(select(faults.to_vec()), 0..4)
}

/// Somebody else changes one of our tables: elements go, a chain comes, rules go, or all of it.
pub(crate) fn meddle(other: &mut NetlinkSocket, held: &Ruleset, deed: u8) {
    let (id, table) = held.tables.iter().nth(usize::from(deed) % 2).expect("two tables");
    let table_id = id.clone();
    let changes = match deed / 2 % 4 {
        0 => vec![NftChange::DeleteTable { table: table_id }],
        1 => {
            let rule = NftRule::new(vec![Expr::Verdict(NftVerdict::Accept)], "by somebody else");
            let (chain, spec) = ("stranger".into(), ChainSpec::default());
            let made = NftChange::AddChain { table: table_id.clone(), chain, spec };
            let chain = "stranger".into();
            vec![made, NftChange::AddRule { table: table_id, chain, rule, position: RulePosition::Last }]
        }
        2 => vec![NftChange::FlushChain { table: table_id, chain: "services".into() }],
        _ => {
            let full = table.sets.iter().filter(|(_, set)| !set.elements.is_empty());
            full.map(|(name, _)| NftChange::FlushSet { table: table_id.clone(), set: name.clone() }).collect()
        }
    };
    apply(other, &changes).unwrap();
}

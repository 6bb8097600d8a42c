//! Writes changes to the kernel and reads its tables.
//!
//! A list of changes is one transaction: it is applied as a whole or not at all, and after a failure the old rules hold.
//! Only what exceeds the send buffer takes several. In an initial load the rules of base chains then come last, so that
//! no packet meets half a ruleset.

mod affinity_entries;
mod connection_counts;
mod dump;
mod kernel_version;
mod refused_services;
mod support;

pub use affinity_entries::{DeleteAffinityError, delete_affinity_entries};
pub use connection_counts::{ConnectionCount, connection_counts, counted_pair};
pub use dump::{LiveDiff, RulesetReadError, RulesetToCompare, read, read_and_compare};
pub use kernel_version::{UnsupportedKernel, check_kernel};
pub use refused_services::{RefusedGroup, apply_up_to_refusal, is_content_refused};
pub use support::check_support;

use std::borrow::Cow;
use std::fmt;
use std::iter::Peekable;

use nix::errno::Errno;

use super::decode::{ElementList, NftMessage, RawElement, message};
use super::diff::{RulesetDiff, StagedDiff, by_service, diff, split_group, stage};
use super::encode::Batch;
use super::ir::{
    Element, IntervalEncoding, NftChange, NftName, PackedElements, RulePosition, Ruleset, Set, Table, TableId,
};
use super::kernel::Kernel;
use crate::nfnetlink::NetlinkError;
use crate::nfnetlink::wire::messages;

/// Attempts at a transaction that the kernel did not process.
const ATTEMPTS: u32 = 5;
/// Elements per change of an initial load, so that changes can be distributed over transactions.
const ELEMENTS_PER_CHANGE: usize = 500;
/// The longest transaction of an initial load: with longer ones, what the kernel records until the commit outgrows the
/// processor's caches.
const LOAD_BATCH: usize = 192 << 10;

/// Why changes were not applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApplyError {
    /// The refused change, as text.
    pub change: Option<String>,
    pub cause: NetlinkError,
    /// Transactions that were committed before.
    pub done: usize,
}

impl ApplyError {
    /// Whether the kernel may hold neither the old nor the new state, so that it must be read before the next change.
    pub fn is_uncertain(&self) -> bool {
        self.done > 0 || matches!(self.cause, NetlinkError::Lost | NetlinkError::Silent)
    }
}

impl fmt::Display for ApplyError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let change = self.change.as_deref().unwrap_or("change the nftables rules");
        write!(out, "cannot {change}: {}", self.cause)?;
        if let Some(advice) = advice(&self.cause) {
            write!(out, "; {advice}")?;
        }
        match (&self.cause, self.done) {
            (NetlinkError::Lost | NetlinkError::Silent, _) => {
                out.write_str("; the change may have been applied, the tables will be read again")
            }
            (_, 0) => out.write_str("; the old rules stay in force"),
            (_, done) => write!(out, "; {done} transactions were committed before"),
        }
    }
}

impl std::error::Error for ApplyError {}

/// What an operator can do.
fn advice(cause: &NetlinkError) -> Option<&'static str> {
    match cause {
        NetlinkError::TooLong { .. } => {
            Some("raise net.core.wmem_max, or grant CAP_NET_ADMIN in the host's namespace")
        }
        NetlinkError::Lost => Some("raise net.core.rmem_max"),
        cause => match cause.errno()? {
            Errno::EPERM => Some("run as root or grant NET_ADMIN"),
            Errno::EBUSY => Some("it is still referenced, perhaps by a rule of another program"),
            Errno::ENOENT => Some(
                "it, or an object that it references, does not exist: another program may have deleted it",
            ),
            Errno::EEXIST => Some("it exists with other content: another program may have added it"),
            Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT => {
                Some("not supported by this kernel: check CONFIG_NF_TABLES")
            }
            Errno::ENFILE | Errno::ENOSPC => Some("the set is full"),
            Errno::ENOMEM => {
                Some("the kernel is out of memory, or a net.netfilter limit of this namespace is reached")
            }
            Errno::EROFS | Errno::EPROTONOSUPPORT => Some("check that the nf_tables module is available"),
            _ => None,
        },
    }
}

/// Changes that go into the same transaction of an initial load.
#[derive(Debug, Clone, Default)]
pub struct LoadGroup {
    /// Elements of sets without intervals.
    pub packed: Vec<PackedSet>,
    pub changes: Vec<NftChange>,
}

/// Packed elements of one set.
#[derive(Debug, Clone)]
pub struct PackedSet {
    pub table: TableId,
    pub set: NftName,
    pub elements: PackedElements,
}

impl From<Vec<NftChange>> for LoadGroup {
    fn from(changes: Vec<NftChange>) -> LoadGroup {
        LoadGroup { packed: Vec::new(), changes }
    }
}

/// Changes that must be applied by one transaction.
trait AtomicGroup {
    fn push_into(&self, batch: &mut Batch);
}

impl AtomicGroup for LoadGroup {
    fn push_into(&self, batch: &mut Batch) {
        self.packed
            .iter()
            .for_each(|PackedSet { table, set, elements }| batch.push_packed(table, set, elements));
        self.changes.iter().for_each(|change| batch.push(change));
    }
}

impl AtomicGroup for Cow<'_, [NftChange]> {
    fn push_into(&self, batch: &mut Batch) {
        self.iter().for_each(|change| batch.push(change));
    }
}

/// Applies changes as one transaction. Changes of Services that exceed the send buffer are split so that each
/// transaction leaves every Service either old or new.
pub fn apply(kernel: &mut dyn Kernel, changes: &[NftChange]) -> Result<(), ApplyError> {
    if changes.is_empty() {
        return Ok(());
    }
    let batch = Batch::of(changes, 1);
    if batch.closed_len() > kernel.longest_batch()
        && let Some(groups) = by_service(changes, &[])
    {
        return apply_groups(kernel, &groups).map(drop);
    }
    commit(kernel, &batch)
}

/// Changes a kernel that holds `old` to hold `new`: by one transaction where that fits, else by a staged diff. Unused
/// objects are deleted by further transactions. Returns the number of transactions.
pub fn apply_diff(kernel: &mut dyn Kernel, old: &Ruleset, new: &Ruleset) -> Result<usize, ApplyError> {
    if let Some(done) = apply_diff_at_once(kernel, old, new)? {
        return Ok(done);
    }
    let StagedDiff { now, later } = stage(old, new);
    let done = apply_groups(kernel, &now)?;
    apply_later(kernel, &later, done)
}

/// The same if the change fits into one transaction; else returns `None` without applying anything. Objects equal in
/// both rulesets may be missing in both.
pub fn apply_diff_at_once(
    kernel: &mut dyn Kernel,
    old: &Ruleset,
    new: &Ruleset,
) -> Result<Option<usize>, ApplyError> {
    let RulesetDiff { now, later } = diff(old, new);
    if now.is_empty() && later.is_empty() {
        return Ok(Some(0));
    }
    let batch = Batch::of(&now, 1);
    if batch.closed_len() > kernel.longest_batch() {
        return Ok(None);
    }
    if !now.is_empty() {
        commit(kernel, &batch)?;
    }
    apply_later(kernel, &later, usize::from(!now.is_empty())).map(Some)
}

fn apply_later(kernel: &mut dyn Kernel, later: &[NftChange], done: usize) -> Result<usize, ApplyError> {
    let groups: Vec<Vec<NftChange>> = later.iter().map(|change| vec![change.clone()]).collect();
    let more =
        apply_groups(kernel, &groups).map_err(|error| ApplyError { done: done + error.done, ..error })?;
    Ok(done + more)
}

/// Applies atomic groups in order, as many per transaction as fit. A group that exceeds the send buffer by itself, such
/// as a Service with thousands of endpoints, is split. Returns the number of transactions.
fn apply_groups(kernel: &mut dyn Kernel, groups: &[Vec<NftChange>]) -> Result<usize, ApplyError> {
    let limit = kernel.longest_batch();
    let each = groups.iter().flat_map(|group| {
        // An element is shorter than 300 bytes, a rule shorter than 4,096: most groups need not be encoded to know.
        let most: usize = group.iter().map(|change| 4096 + 300 * change.elements()).sum();
        match most > limit && Batch::of(group, 1).closed_len() > limit {
            true => split_group(group).into_iter().map(Cow::Owned).collect(),
            false => vec![Cow::Borrowed(group.as_slice())],
        }
    });
    commit_groups(kernel, each, limit)
}

/// Loads groups into a kernel that has none of our tables, in as few transactions as its buffers and the processor's
/// caches allow. The groups come from `render::initial_load`, or from [`initial_load_groups`]. Returns the number of
/// transactions.
pub fn load(
    kernel: &mut dyn Kernel,
    groups: impl Iterator<Item = impl Into<LoadGroup>>,
) -> Result<usize, ApplyError> {
    let limit = kernel.longest_batch().min(LOAD_BATCH);
    commit_groups(kernel, groups.map(Into::into), limit)
}

/// Bytes by which the last group of a batch may exceed the limit before it is taken back: most are shorter.
const GROUP: usize = 32 << 10;

fn commit_groups(
    kernel: &mut dyn Kernel,
    groups: impl Iterator<Item = impl AtomicGroup>,
    limit: usize,
) -> Result<usize, ApplyError> {
    let mut done = 0;
    let mut groups = groups.peekable();
    // One buffer for all: new buffers would mean new pages.
    let mut batch = Batch::open(1);
    if limit <= LOAD_BATCH {
        batch.reserve(limit + GROUP);
    }
    while groups.peek().is_some() {
        fill(&mut batch, &mut groups, limit);
        if !batch.is_empty() {
            commit(kernel, &batch).map_err(|error| ApplyError { done, ..error })?;
            done += 1;
        }
        batch.reopen();
    }
    Ok(done)
}

/// Puts as many groups into a batch as fit; at least one, even if the kernel will refuse it as too long.
fn fill(batch: &mut Batch, groups: &mut Peekable<impl Iterator<Item = impl AtomicGroup>>, limit: usize) {
    while let Some(group) = groups.peek() {
        let start = batch.position();
        let is_first = batch.is_empty();
        group.push_into(batch);
        if !is_first && batch.closed_len() > limit {
            batch.reset(start);
            break;
        }
        groups.next();
    }
    batch.close();
}

/// A ruleset as groups of an initial load: first everything that no packet can reach yet, then, as one group, the rules
/// of base chains.
pub fn initial_load_groups(ruleset: &Ruleset) -> impl Iterator<Item = Vec<NftChange>> + '_ {
    let hidden = ruleset.tables.iter().flat_map(|(id, table)| {
        let made = NftChange::AddTable { table: id.clone(), comment: table.comment.clone() };
        let elements = table.sets.iter().flat_map(|(name, set)| add_elements(id, name, set));
        let plain = rules(id, table, false).map(|rule| vec![rule]);
        // Elements after rules: the kernel walks a whole map for each rule that starts to use it.
        std::iter::once(vec![made]).chain(containers(id, table)).chain(plain).chain(elements)
    });
    let dispatch = ruleset.tables.iter().flat_map(|(id, table)| rules(id, table, true));
    hidden.chain(std::iter::once_with(move || dispatch.collect()))
}

/// Empty chains and sets, which rules and verdicts refer to.
fn containers<'a>(id: &'a TableId, table: &'a Table) -> impl Iterator<Item = Vec<NftChange>> + 'a {
    let chains = table.chains.iter().map(|(name, chain)| {
        vec![NftChange::AddChain { table: id.clone(), chain: name.clone(), spec: chain.spec.clone() }]
    });
    let sets = table.sets.iter().map(|(name, set)| {
        vec![NftChange::AddSet { table: id.clone(), set: name.clone(), spec: set.spec.clone() }]
    });
    chains.chain(sets)
}

/// The rules of all base chains, or of all others.
fn rules<'a>(id: &'a TableId, table: &'a Table, base: bool) -> impl Iterator<Item = NftChange> + 'a {
    let chains = table.chains.iter().filter(move |(_, chain)| chain.spec.base.is_some() == base);
    chains.flat_map(move |(name, chain)| {
        chain.rules.iter().map(move |rule| NftChange::AddRule {
            table: id.clone(),
            chain: name.clone(),
            rule: rule.clone(),
            position: RulePosition::Last,
        })
    })
}

fn add_elements<'a>(
    id: &'a TableId,
    name: &'a NftName,
    set: &'a Set,
) -> impl Iterator<Item = Vec<NftChange>> + 'a {
    let mut rest = set.each().peekable();
    std::iter::from_fn(move || {
        rest.peek()?;
        Some(vec![NftChange::AddElements {
            table: id.clone(),
            set: name.clone(),
            ranges: set.spec.ranges(),
            elements: rest.by_ref().take(ELEMENTS_PER_CHANGE).collect(),
        }])
    })
}

/// Sends a batch, retries transient failures, and names the refused change.
fn commit(kernel: &mut dyn Kernel, batch: &Batch) -> Result<(), ApplyError> {
    let mut attempt = 1;
    loop {
        let before = kernel.generation().ok();
        let Err(cause) = kernel.transact(batch.bytes()) else { return Ok(()) };
        if attempt < ATTEMPTS && may_repeat(kernel, &cause, before) {
            attempt += 1;
            continue;
        }
        let change = match &cause {
            NetlinkError::Refused { seq, .. } => describe(batch, *seq),
            _ => None,
        };
        return Err(ApplyError { change, cause, done: 0 });
    }
}

/// Whether nothing was applied and the same batch may succeed at once.
fn may_repeat(kernel: &mut dyn Kernel, cause: &NetlinkError, before: Option<u32>) -> bool {
    match cause {
        NetlinkError::Refused { errno: Errno::EINTR | Errno::EAGAIN | Errno::ENOBUFS, .. } => true,
        NetlinkError::Socket { errno: Errno::EINTR | Errno::EAGAIN | Errno::ENOBUFS, .. } => true,
        // The reply was lost, but the generation is unchanged: nothing was applied.
        NetlinkError::Lost | NetlinkError::Silent => before.is_some() && kernel.generation().ok() == before,
        _ => false,
    }
}

/// The refused message as text, decoded from the batch, so that changes need not be kept until the commit.
fn describe(batch: &Batch, seq: u32) -> Option<String> {
    let raw = messages(batch.bytes()).find(|raw| raw.header.seq == seq)?;
    match message(raw).ok()? {
        NftMessage::Begin | NftMessage::End => None,
        NftMessage::Change(change) => Some(change.to_string()),
        NftMessage::Elements(ElementList { table, set, raw }) => {
            let (ranges, elements) = (IntervalEncoding::None, starts(raw));
            Some(NftChange::AddElements { table, set, ranges, elements }.to_string())
        }
        NftMessage::DeleteElements(ElementList { table, set, raw }) => {
            let (ranges, elements) = (IntervalEncoding::None, starts(raw));
            Some(NftChange::DeleteElements { table, set, ranges, elements }.to_string())
        }
    }
}

/// Elements without those that only end an interval.
fn starts(raw: Vec<RawElement>) -> Vec<Element> {
    raw.into_iter().filter(|raw| !raw.interval_end).map(|raw| raw.element).collect()
}

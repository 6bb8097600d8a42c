//! Changes into the kernel, and the kernel's tables back out.
//!
//! A list of changes is one transaction: all of it holds or nothing, and after a failure the rules from before are still
//! in force. Only the first load of a large program takes several, because a send buffer ends somewhere; then the rules
//! of base chains come last, so that no packet meets half a program.

mod counted;
mod faults;
mod read;
mod version;

pub use counted::{Counted, counted};
pub use faults::{Fault, Faulty};
pub use read::{Beside, ReadError, read, read_beside};
pub use version::{OldKernel, check_kernel};

use std::borrow::Cow;
use std::fmt;
use std::iter::Peekable;

use nix::errno::Errno;

use super::decode::{Elements, Message, RawElement, message};
use super::diff::{Difference, Parts, by_service, diff, in_steps, parts};
use super::encode::Batch;
use super::ir::{Change, Element, Name, Place, Program, Ranges, Rows, Set, Table, TableId};
use super::netlink::wire::messages;
use super::netlink::{Kernel, NetlinkError};

/// How often a transaction is tried that the kernel did not even look at.
const ATTEMPTS: u32 = 5;
/// Elements per change of a first load, so that changes can be dealt out over transactions.
const ELEMENTS_PER_CHANGE: usize = 500;
/// The longest transaction of a first load: with longer ones, what the kernel writes down until the commit outgrows the
/// processor's caches.
const LOAD_BATCH: usize = 192 << 10;

/// Why changes were not applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApplyError {
    /// The change that the kernel named, in words.
    pub change: Option<String>,
    /// What the kernel or the socket said.
    pub cause: NetlinkError,
    /// How many transactions of a first load, or groups of a large change, were done before.
    pub done: usize,
}

impl ApplyError {
    /// Whether the tables may differ from what the caller believes, so that they must be read before the next change.
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
                out.write_str("; whether the change was made is not known, so the tables will be read again")
            }
            (_, 0) => out.write_str("; the rules from before stay in force"),
            (_, done) => write!(out, "; {done} earlier transactions of the same load were made"),
        }
    }
}

impl std::error::Error for ApplyError {}

/// What an operator can do about it.
fn advice(cause: &NetlinkError) -> Option<&'static str> {
    match cause {
        NetlinkError::TooLong { .. } => {
            Some("raise net.core.wmem_max, or run with CAP_NET_ADMIN in the host's namespace")
        }
        NetlinkError::Lost => Some("raise net.core.rmem_max"),
        cause => match cause.errno()? {
            Errno::EPERM => Some("NET_ADMIN is needed: run as root or grant the capability"),
            Errno::EBUSY => Some("something still refers to it, perhaps a rule that another program added"),
            Errno::ENOENT => {
                Some("it, or what it refers to, does not exist: another program may have removed it")
            }
            Errno::EEXIST => Some("it exists already and is different: another program may have added it"),
            Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT => {
                Some("this kernel lacks it: is CONFIG_NF_TABLES complete?")
            }
            Errno::ENFILE | Errno::ENOSPC => Some("the set is full: its declared size is too small"),
            Errno::ENOMEM => {
                Some("the kernel is out of memory, or of net.netfilter limits of this namespace")
            }
            Errno::EROFS | Errno::EPROTONOSUPPORT => Some("is the nf_tables module there?"),
            _ => None,
        },
    }
}

/// What goes into one transaction of a first load together.
#[derive(Debug, Clone, Default)]
pub struct Portion {
    /// Elements for sets without ranges.
    pub rows: Vec<SetRows>,
    /// Everything else.
    pub changes: Vec<Change>,
}

/// Elements for a set.
#[derive(Debug, Clone)]
pub struct SetRows {
    /// The table of the set.
    pub table: TableId,
    /// The set.
    pub set: Name,
    /// Its elements.
    pub rows: Rows,
}

impl From<Vec<Change>> for Portion {
    fn from(changes: Vec<Change>) -> Portion {
        Portion { rows: Vec::new(), changes }
    }
}

/// What is put into a batch as a whole.
trait Group {
    fn push_into(&self, batch: &mut Batch);
}

impl Group for Portion {
    fn push_into(&self, batch: &mut Batch) {
        self.rows.iter().for_each(|SetRows { table, set, rows }| batch.push_rows(table, set, rows));
        self.changes.iter().for_each(|change| batch.push(change));
    }
}

impl Group for Cow<'_, [Change]> {
    fn push_into(&self, batch: &mut Batch) {
        self.iter().for_each(|change| batch.push(change));
    }
}

/// Applies changes as one transaction. Changes of Services that do not fit into one go in several, each of which leaves
/// every Service as it was or as it will be.
pub fn apply(kernel: &mut dyn Kernel, changes: &[Change]) -> Result<(), ApplyError> {
    if changes.is_empty() {
        return Ok(());
    }
    let batch = Batch::of(changes, 1, None);
    if batch.closed_len() > kernel.longest_batch()
        && let Some(groups) = by_service(changes, &[])
    {
        return apply_groups(kernel, &groups).map(drop);
    }
    commit(kernel, &batch)
}

/// Makes the kernel, which holds `old`, hold `new`: by one transaction where that fits, else in parts that leave every
/// Service as it was or as it will be; what nothing leads to any more goes in another. Answers with the number of
/// transactions.
pub fn apply_program(kernel: &mut dyn Kernel, old: &Program, new: &Program) -> Result<usize, ApplyError> {
    if let Some(done) = apply_short(kernel, old, new)? {
        return Ok(done);
    }
    let Parts { now, later } = parts(old, new);
    let done = apply_groups(kernel, &now)?;
    apply_later(kernel, &later, done)
}

/// The same if it fits into one transaction; else nothing is done, and the answer is none. What is the same in both
/// programs may be missing in both.
pub fn apply_short(
    kernel: &mut dyn Kernel,
    old: &Program,
    new: &Program,
) -> Result<Option<usize>, ApplyError> {
    let Difference { now, later } = diff(old, new);
    if now.is_empty() && later.is_empty() {
        return Ok(Some(0));
    }
    let batch = Batch::of(&now, 1, None);
    if batch.closed_len() > kernel.longest_batch() {
        return Ok(None);
    }
    if !now.is_empty() {
        commit(kernel, &batch)?;
    }
    apply_later(kernel, &later, usize::from(!now.is_empty())).map(Some)
}

fn apply_later(kernel: &mut dyn Kernel, later: &[Change], done: usize) -> Result<usize, ApplyError> {
    let groups: Vec<Vec<Change>> = later.iter().map(|change| vec![change.clone()]).collect();
    let more =
        apply_groups(kernel, &groups).map_err(|error| ApplyError { done: done + error.done, ..error })?;
    Ok(done + more)
}

/// Applies changes as one transaction, and only if nobody changed any table since `generation`; else the cause is
/// ERESTART and the caller reads the tables again.
pub fn apply_since(kernel: &mut dyn Kernel, generation: u32, changes: &[Change]) -> Result<(), ApplyError> {
    if changes.is_empty() {
        return Ok(());
    }
    commit(kernel, &Batch::of(changes, 1, Some(generation)))
}

/// Applies groups in order: each group is atomic, and as many as fit go into one transaction. A group is what must not
/// be seen half done, such as all elements of one Service. One that does not fit by itself, a Service of thousands of
/// endpoints, goes in steps. Answers with the number of transactions.
pub fn apply_groups(kernel: &mut dyn Kernel, groups: &[Vec<Change>]) -> Result<usize, ApplyError> {
    let limit = kernel.longest_batch();
    let each = groups.iter().flat_map(|group| {
        // No element takes as much as 300 bytes, no rule as much as 4,096: most groups need not be measured.
        let most: usize = group.iter().map(|change| 4096 + 300 * change.elements()).sum();
        match most > limit && Batch::of(group, 1, None).closed_len() > limit {
            true => in_steps(group).into_iter().map(Cow::Owned).collect(),
            false => vec![Cow::Borrowed(group.as_slice())],
        }
    });
    apply_stream(kernel, each, limit)
}

/// Loads the portions of a program into a kernel that has none of its tables, as `render::portions` makes them: in
/// order, in as few transactions as its buffers and the processor's caches allow. Answers with their number.
pub fn load_portions(
    kernel: &mut dyn Kernel,
    portions: impl Iterator<Item = Portion>,
) -> Result<usize, ApplyError> {
    let limit = kernel.longest_batch().min(LOAD_BATCH);
    apply_stream(kernel, portions, limit)
}

/// What the last group of a batch may take beyond the limit before it is taken back: most take less.
const GROUP: usize = 32 << 10;

fn apply_stream(
    kernel: &mut dyn Kernel,
    groups: impl Iterator<Item = impl Group>,
    limit: usize,
) -> Result<usize, ApplyError> {
    let mut done = 0;
    let mut groups = groups.peekable();
    // One buffer for all: a fresh one for each would be fresh pages for each.
    let mut batch = Batch::open(1, None);
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
fn fill(batch: &mut Batch, groups: &mut Peekable<impl Iterator<Item = impl Group>>, limit: usize) {
    while let Some(group) = groups.peek() {
        let mark = batch.mark();
        let is_first = batch.is_empty();
        group.push_into(batch);
        if !is_first && batch.closed_len() > limit {
            batch.reset(mark);
            break;
        }
        groups.next();
    }
    batch.close();
}

/// Loads a program into a kernel that has none of its tables, in as many transactions as its buffers ask for, with the
/// rules of base chains last. Answers with the number of transactions.
pub fn load(kernel: &mut dyn Kernel, program: &Program) -> Result<usize, ApplyError> {
    let limit = kernel.longest_batch().min(LOAD_BATCH);
    apply_stream(kernel, first_load(program).map(Portion::from), limit)
}

/// The groups of a first load: everything that no packet can see yet, in small pieces, and at the end, as one group,
/// the rules that dispatch to it.
pub fn first_load(program: &Program) -> impl Iterator<Item = Vec<Change>> + '_ {
    let hidden = program.tables.iter().flat_map(|(id, table)| {
        let made = Change::AddTable { table: id.clone(), comment: table.comment.clone() };
        let elements = table.sets.iter().flat_map(|(name, set)| add_elements(id, name, set));
        let plain = rules(id, table, false).map(|rule| vec![rule]);
        // Elements after rules: the kernel looks through a whole map for each chain that comes to use it.
        std::iter::once(vec![made]).chain(containers(id, table)).chain(plain).chain(elements)
    });
    let dispatch = program.tables.iter().flat_map(|(id, table)| rules(id, table, true));
    hidden.chain(std::iter::once_with(move || dispatch.collect()))
}

/// Chains and sets, empty: rules and verdicts refer to them.
fn containers<'a>(id: &'a TableId, table: &'a Table) -> impl Iterator<Item = Vec<Change>> + 'a {
    let chains = table.chains.iter().map(|(name, chain)| {
        vec![Change::AddChain { table: id.clone(), chain: name.clone(), spec: chain.spec.clone() }]
    });
    let sets = table.sets.iter().map(|(name, set)| {
        vec![Change::AddSet { table: id.clone(), set: name.clone(), spec: set.spec.clone() }]
    });
    chains.chain(sets)
}

/// The rules of all base chains, or of all others.
fn rules<'a>(id: &'a TableId, table: &'a Table, base: bool) -> impl Iterator<Item = Change> + 'a {
    let chains = table.chains.iter().filter(move |(_, chain)| chain.spec.base.is_some() == base);
    chains.flat_map(move |(name, chain)| {
        chain.rules.iter().map(move |rule| Change::AddRule {
            table: id.clone(),
            chain: name.clone(),
            rule: rule.clone(),
            place: Place::Last,
        })
    })
}

fn add_elements<'a>(id: &'a TableId, name: &'a Name, set: &'a Set) -> impl Iterator<Item = Vec<Change>> + 'a {
    let mut rest = set.each().peekable();
    std::iter::from_fn(move || {
        rest.peek()?;
        Some(vec![Change::AddElements {
            table: id.clone(),
            set: name.clone(),
            ranges: set.spec.ranges(),
            elements: rest.by_ref().take(ELEMENTS_PER_CHANGE).collect(),
        }])
    })
}

/// Sends a batch, again if the kernel was only disturbed, and says which change was refused.
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

/// Whether nothing was done and the same bytes may succeed at once.
fn may_repeat(kernel: &mut dyn Kernel, cause: &NetlinkError, before: Option<u32>) -> bool {
    match cause {
        NetlinkError::Refused { errno: Errno::EINTR | Errno::EAGAIN | Errno::ENOBUFS, .. } => true,
        NetlinkError::Socket { errno: Errno::EINTR | Errno::EAGAIN | Errno::ENOBUFS, .. } => true,
        // The answer was lost, but the tables are as they were: it was not done.
        NetlinkError::Lost | NetlinkError::Silent => before.is_some() && kernel.generation().ok() == before,
        _ => false,
    }
}

/// The message that was refused, in words; read out of the batch, so that changes need not be kept until it is through.
fn describe(batch: &Batch, seq: u32) -> Option<String> {
    let raw = messages(batch.bytes()).find(|raw| raw.header.seq == seq)?;
    match message(raw).ok()? {
        Message::Begin { .. } | Message::End => None,
        Message::Change(change) => Some(change.to_string()),
        Message::Elements(Elements { table, set, raw }) => {
            let (ranges, elements) = (Ranges::None, starts(raw));
            Some(Change::AddElements { table, set, ranges, elements }.to_string())
        }
        Message::DeleteElements(Elements { table, set, raw }) => {
            let (ranges, elements) = (Ranges::None, starts(raw));
            Some(Change::DeleteElements { table, set, ranges, elements }.to_string())
        }
    }
}

/// Elements without those that only end a range.
fn starts(raw: Vec<RawElement>) -> Vec<Element> {
    raw.into_iter().filter(|raw| !raw.interval_end).map(|raw| raw.element).collect()
}

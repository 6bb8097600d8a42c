//! Changes into the kernel, and the kernel's tables back out.
//!
//! A list of changes is one transaction: all of it holds or nothing, and after a failure the rules from before are still
//! in force. Only the first load of a large program takes several, because a send buffer ends somewhere; then the rules
//! of base chains come last, so that no packet meets half a program.

mod faults;
mod read;
mod version;

pub use faults::{Fault, Faulty};
pub use read::{ReadError, read};
pub use version::{OldKernel, check_kernel};

use std::borrow::Cow;
use std::fmt;
use std::iter::Peekable;

use nix::errno::Errno;

use super::encode::Batch;
use super::ir::{Change, Name, Place, Program, Set, Table, TableId};
use super::netlink::{Kernel, NetlinkError};

/// How often a transaction is tried that the kernel did not even look at.
const ATTEMPTS: u32 = 5;
/// Elements per change of a first load, so that changes can be dealt out over transactions.
const ELEMENTS_PER_CHANGE: usize = 500;
/// The longest transaction of a first load.
const LOAD_BATCH: usize = 1 << 20;

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

/// Applies changes as one transaction.
pub fn apply(kernel: &mut dyn Kernel, changes: &[Change]) -> Result<(), ApplyError> {
    if changes.is_empty() {
        return Ok(());
    }
    let batch = Batch::of(changes, 1, None);
    commit(kernel, &batch, |index| changes.get(index).map(ToString::to_string))
}

/// Applies changes as one transaction, and only if nobody changed any table since `generation`; else the cause is
/// ERESTART and the caller reads the tables again.
pub fn apply_since(kernel: &mut dyn Kernel, generation: u32, changes: &[Change]) -> Result<(), ApplyError> {
    if changes.is_empty() {
        return Ok(());
    }
    let batch = Batch::of(changes, 1, Some(generation));
    commit(kernel, &batch, |index| changes.get(index).map(ToString::to_string))
}

/// Applies groups in order: each group is atomic, and as many as fit go into one transaction. A group is what must not
/// be seen half done, such as all elements of one Service. Answers with the number of transactions.
pub fn apply_groups(kernel: &mut dyn Kernel, groups: &[Vec<Change>]) -> Result<usize, ApplyError> {
    let limit = kernel.longest_batch();
    apply_stream(kernel, groups.iter().map(|group| Cow::Borrowed(group.as_slice())), limit)
}

fn apply_stream<'a>(
    kernel: &mut dyn Kernel,
    groups: impl Iterator<Item = Cow<'a, [Change]>>,
    limit: usize,
) -> Result<usize, ApplyError> {
    let mut done = 0;
    let mut groups = groups.peekable();
    while groups.peek().is_some() {
        let (batch, taken) = fill(&mut groups, limit);
        if !batch.is_empty() {
            let describe =
                |index| taken.iter().flat_map(|group| group.iter()).nth(index).map(ToString::to_string);
            commit(kernel, &batch, describe).map_err(|error| ApplyError { done, ..error })?;
            done += 1;
        }
    }
    Ok(done)
}

/// A batch of as many groups as fit, and those; at least one, even if the kernel will refuse it as too long.
fn fill<'a>(
    groups: &mut Peekable<impl Iterator<Item = Cow<'a, [Change]>>>,
    limit: usize,
) -> (Batch, Vec<Cow<'a, [Change]>>) {
    let mut batch = Batch::open(1, None);
    let mut taken = Vec::new();
    while let Some(group) = groups.peek() {
        let mark = batch.mark();
        group.iter().for_each(|change| batch.push(change));
        if !taken.is_empty() && batch.closed_len() > limit {
            batch.reset(mark);
            break;
        }
        taken.extend(groups.next());
    }
    batch.close();
    (batch, taken)
}

/// Loads a program into a kernel that has none of its tables, in as many transactions as its buffers ask for, with the
/// rules of base chains last. Answers with the number of transactions.
pub fn load(kernel: &mut dyn Kernel, program: &Program) -> Result<usize, ApplyError> {
    // Larger ones are no faster, and would hold a second copy of the program.
    let limit = kernel.longest_batch().min(LOAD_BATCH);
    apply_stream(kernel, first_load(program).map(Cow::Owned), limit)
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
fn commit(
    kernel: &mut dyn Kernel,
    batch: &Batch,
    describe: impl Fn(usize) -> Option<String>,
) -> Result<(), ApplyError> {
    let mut attempt = 1;
    loop {
        let before = kernel.generation().ok();
        let Err(cause) = kernel.transact(batch.bytes()) else { return Ok(()) };
        if attempt < ATTEMPTS && may_repeat(kernel, &cause, before) {
            attempt += 1;
            continue;
        }
        let change = match &cause {
            NetlinkError::Refused { seq, .. } => batch.change_of(*seq).and_then(describe),
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

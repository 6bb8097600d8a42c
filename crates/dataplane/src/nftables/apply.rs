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

use std::fmt;

use nix::errno::Errno;

use super::encode::Batch;
use super::ir::{Change, Place, Program, Set, Table, TableId};
use super::netlink::{Kernel, NetlinkError};

/// How often a transaction is tried that the kernel did not even look at.
const ATTEMPTS: u32 = 5;
/// Elements per change of a first load, so that changes can be dealt out over transactions.
const ELEMENTS_PER_CHANGE: usize = 500;

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
    let mut done = 0;
    let mut rest = groups;
    while !rest.is_empty() {
        let (batch, taken) = fill(rest, limit);
        if !batch.is_empty() {
            let changes = || rest[..taken].iter().flatten();
            let describe = |index| changes().nth(index).map(ToString::to_string);
            commit(kernel, &batch, describe).map_err(|error| ApplyError { done, ..error })?;
            done += 1;
        }
        rest = &rest[taken..];
    }
    Ok(done)
}

/// A batch of as many groups as fit, and how many those are; at least one, even if the kernel will refuse it as too long.
fn fill(groups: &[Vec<Change>], limit: usize) -> (Batch, usize) {
    let mut batch = Batch::open(1, None);
    let mut taken = 0;
    for group in groups {
        let mark = batch.mark();
        group.iter().for_each(|change| batch.push(change));
        if taken > 0 && batch.closed_len() > limit {
            batch.reset(mark);
            break;
        }
        taken += 1;
    }
    batch.close();
    (batch, taken)
}

/// Loads a program into a kernel that has none of its tables, in as many transactions as its buffers ask for, with the
/// rules of base chains last. Answers with the number of transactions.
pub fn load(kernel: &mut dyn Kernel, program: &Program) -> Result<usize, ApplyError> {
    apply_groups(kernel, &first_load(program))
}

/// The groups of a first load: everything that no packet can see yet, in small pieces, and at the end, as one group,
/// the rules that dispatch to it.
pub fn first_load(program: &Program) -> Vec<Vec<Change>> {
    let mut groups = Vec::new();
    let mut dispatch = Vec::new();
    for (id, table) in &program.tables {
        groups.push(vec![Change::AddTable { table: id.clone(), comment: table.comment.clone() }]);
        add_containers(id, table, &mut groups);
        for (name, set) in &table.sets {
            add_elements(id, name, set, &mut groups);
        }
        for (name, chain) in &table.chains {
            let rules = chain.rules.iter().map(|rule| Change::AddRule {
                table: id.clone(),
                chain: name.clone(),
                rule: rule.clone(),
                place: Place::Last,
            });
            match chain.spec.base {
                Some(_) => dispatch.extend(rules),
                None => groups.push(rules.collect()),
            }
        }
    }
    groups.push(dispatch);
    groups
}

/// Chains and sets, empty: rules and verdicts refer to them.
fn add_containers(id: &TableId, table: &Table, groups: &mut Vec<Vec<Change>>) {
    for (name, chain) in &table.chains {
        let spec = chain.spec.clone();
        groups.push(vec![Change::AddChain { table: id.clone(), chain: name.clone(), spec }]);
    }
    for (name, set) in &table.sets {
        groups.push(vec![Change::AddSet { table: id.clone(), set: name.clone(), spec: set.spec.clone() }]);
    }
}

fn add_elements(id: &TableId, name: &super::ir::Name, set: &Set, groups: &mut Vec<Vec<Change>>) {
    let mut elements = set.each().peekable();
    while elements.peek().is_some() {
        groups.push(vec![Change::AddElements {
            table: id.clone(),
            set: name.clone(),
            ranges: set.spec.ranges(),
            elements: elements.by_ref().take(ELEMENTS_PER_CHANGE).collect(),
        }]);
    }
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

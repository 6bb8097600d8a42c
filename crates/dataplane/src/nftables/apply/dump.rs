//! Reads our tables from the kernel. A ruleset takes several dumps; if the generation id changes meanwhile, all of them
//! are repeated.

use std::collections::BTreeMap;
use std::fmt;

use nix::errno::Errno;

use crate::nfnetlink::NetlinkError;
use crate::nftables::decode::{DecodeError, RulesetReader};
use crate::nftables::diff::can_change_in_place;
use crate::nftables::ir::{IntervalEncoding, NftName, PackedIndex, Ruleset, Set, Table, TableId};
use crate::nftables::kernel::{DumpRequest, Kernel};

/// Attempts while others keep changing tables.
const ATTEMPTS: u32 = 10;

/// Why tables could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesetReadError {
    /// The kind of object, as text.
    pub what: &'static str,
    pub cause: NetlinkError,
}

impl fmt::Display for RulesetReadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "cannot read {} from the kernel: {}", self.what, self.cause)?;
        match self.cause.errno() {
            Some(Errno::EPERM) => out.write_str("; run as root or grant NET_ADMIN"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for RulesetReadError {}

/// Reads those of these tables that exist. Objects that cannot be decoded are returned as errors.
pub fn read(
    kernel: &mut dyn Kernel,
    wanted: &[TableId],
) -> Result<(Ruleset, Vec<DecodeError>), RulesetReadError> {
    retry(|| read_once(kernel, wanted))
}

/// Repeats an interrupted read.
fn retry<T>(mut once: impl FnMut() -> Result<Option<T>, RulesetReadError>) -> Result<T, RulesetReadError> {
    let mut attempt = 1;
    loop {
        let error = match once() {
            Ok(Some(found)) => return Ok(found),
            // The generation changed.
            Ok(None) => RulesetReadError { what: "the tables", cause: NetlinkError::Interrupted },
            Err(error) if is_transient(&error.cause) => error,
            Err(error) => return Err(error),
        };
        if attempt == ATTEMPTS {
            return Err(error);
        }
        attempt += 1;
    }
}

/// The difference between our tables and what they should be: elements equal on both sides are left out.
#[derive(Debug, Default)]
pub struct LiveDiff {
    /// What the kernel holds. Elements of dynamic sets are left out.
    pub held: Ruleset,
    /// What it should hold; empty if it holds no table.
    pub wanted: Ruleset,
    /// Objects that could not be decoded.
    pub problems: Vec<DecodeError>,
}

/// A rendered ruleset to be compared: the elements of large sets are packed, and missing in the ruleset.
#[derive(Debug, Default)]
pub struct RulesetToCompare {
    pub ruleset: Ruleset,
    pub packed: BTreeMap<(TableId, NftName), PackedIndex>,
}

/// One set of it.
enum WantedSet<'w> {
    Full(&'w mut Set),
    Packed(&'w mut PackedIndex),
}

impl From<Ruleset> for RulesetToCompare {
    fn from(ruleset: Ruleset) -> Self {
        Self { ruleset, packed: BTreeMap::new() }
    }
}

impl RulesetToCompare {
    fn set(&mut self, table: &TableId, name: &NftName) -> Option<WantedSet<'_>> {
        if let Some(index) = self.packed.get_mut(&(table.clone(), name.clone())) {
            return Some(WantedSet::Packed(index));
        }
        self.ruleset.tables.get_mut(table)?.sets.get_mut(name).map(WantedSet::Full)
    }

    /// The ruleset with the packed elements that the kernel was not found to hold.
    fn unpacked(self) -> Ruleset {
        let mut ruleset = self.ruleset;
        for ((table, name), index) in self.packed {
            let set = ruleset.tables.get_mut(&table).and_then(|table| table.sets.get_mut(&name));
            if let Some(set) = set {
                set.elements.append(&mut index.others());
            }
        }
        ruleset
    }
}

/// Reads these tables and compares elements with the result of `render` as they arrive, so that equal ones, often
/// hundreds of thousands, are never held twice. Tables that cannot be changed in place are returned in full. `render`
/// runs again when the read is repeated.
pub fn read_and_compare(
    kernel: &mut dyn Kernel,
    ours: &[TableId],
    render: &mut dyn FnMut() -> RulesetToCompare,
) -> Result<LiveDiff, RulesetReadError> {
    retry(|| read_and_compare_once(kernel, ours, render))
}

fn read_and_compare_once(
    kernel: &mut dyn Kernel,
    ours: &[TableId],
    render: &mut dyn FnMut() -> RulesetToCompare,
) -> Result<Option<LiveDiff>, RulesetReadError> {
    let before = kernel.generation().map_err(failed("the generation"))?;
    let mut reader = RulesetReader::default();
    read_structure(kernel, ours, &mut reader)?;
    let mut wanted = RulesetToCompare::default();
    if !reader.so_far().tables.is_empty() {
        wanted = render();
        let can_change = |(id, old): (&TableId, &Table)| {
            wanted.ruleset.tables.get(id).is_some_and(|new| can_change_in_place(old, new))
        };
        let is_in_place = reader.so_far().tables.iter().all(can_change);
        for (table, sets) in names(reader.so_far()) {
            for name in sets {
                let set = wanted.set(&table, &name).filter(|_| is_in_place);
                read_elements(kernel, (&table, name), set, &mut reader)?;
            }
        }
    }
    let after = kernel.generation().map_err(failed("the generation"))?;
    let (held, problems) = reader.finish();
    Ok((before == after).then(|| LiveDiff { held, wanted: wanted.unpacked(), problems }))
}

/// The elements of one set; compared with `wanted` if given.
fn read_elements(
    kernel: &mut dyn Kernel,
    (table, name): (&TableId, NftName),
    wanted: Option<WantedSet<'_>>,
    reader: &mut RulesetReader,
) -> Result<(), RulesetReadError> {
    let request = DumpRequest::Elements(table.clone(), name);
    let ours = std::slice::from_ref(table);
    let read = match wanted {
        Some(WantedSet::Packed(index)) => {
            kernel.each(&request, &mut |raw| reader.take_packed_difference(raw, index))
        }
        // Rules write it, and it may hold a million clients.
        Some(WantedSet::Full(set)) if set.spec.dynamic => Ok(()),
        // Both ends of an interval may arrive in different messages.
        Some(WantedSet::Full(set)) if set.spec.ranges() == IntervalEncoding::None => {
            kernel.each(&request, &mut |raw| reader.take_difference(raw, set))
        }
        _ => kernel.each(&request, &mut |raw| reader.take(raw, ours)),
    };
    read.map_err(failed("elements"))?;
    reader.settle();
    Ok(())
}

/// Tables, sets, chains and rules; no elements.
fn read_structure(
    kernel: &mut dyn Kernel,
    ours: &[TableId],
    reader: &mut RulesetReader,
) -> Result<(), RulesetReadError> {
    let mut take = |request: DumpRequest, what| {
        kernel.each(&request, &mut |raw| reader.take(raw, ours)).map_err(failed(what))?;
        Ok(names(reader.so_far()))
    };
    let tables = take(DumpRequest::Tables, "tables")?;
    for (table, _) in &tables {
        take(DumpRequest::Sets(table.clone()), "sets")?;
    }
    take(DumpRequest::Chains, "chains")?;
    for (table, _) in &tables {
        take(DumpRequest::Rules(table.clone()), "rules")?;
    }
    Ok(())
}

/// Whether a retry may succeed.
fn is_transient(cause: &NetlinkError) -> bool {
    match cause {
        NetlinkError::Interrupted | NetlinkError::Lost => true,
        // ENOENT: a set or table was deleted after it was listed.
        cause => matches!(cause.errno(), Some(Errno::ENOENT | Errno::EINTR | Errno::EAGAIN | Errno::ENOBUFS)),
    }
}

fn read_once(
    kernel: &mut dyn Kernel,
    wanted: &[TableId],
) -> Result<Option<(Ruleset, Vec<DecodeError>)>, RulesetReadError> {
    let before = kernel.generation().map_err(failed("the generation"))?;
    let mut reader = RulesetReader::default();
    read_structure(kernel, wanted, &mut reader)?;
    for (table, sets) in names(reader.so_far()) {
        for set in sets {
            read_elements(kernel, (&table, set), None, &mut reader)?;
        }
    }
    let after = kernel.generation().map_err(failed("the generation"))?;
    Ok((before == after).then(|| reader.finish()))
}

fn failed(what: &'static str) -> impl Fn(NetlinkError) -> RulesetReadError {
    move |cause| RulesetReadError { what, cause }
}

/// The sets of each table.
fn names(ruleset: &Ruleset) -> Vec<(TableId, Vec<NftName>)> {
    let sets = |table: &Table| table.sets.keys().cloned().collect();
    ruleset.tables.iter().map(|(id, table)| (id.clone(), sets(table))).collect()
}

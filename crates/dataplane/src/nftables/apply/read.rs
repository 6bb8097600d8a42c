//! Our tables as the kernel holds them. Several dumps make one program, so that a change in between is noticed by the
//! generation and everything is read again.

use std::fmt;

use nix::errno::Errno;

use crate::nftables::decode::{DecodeError, Reader};
use crate::nftables::diff::can_become;
use crate::nftables::ir::{Name, Program, Ranges, Set, Table, TableId};
use crate::nftables::netlink::{Kernel, NetlinkError, Query};

/// How often tables are read that someone else keeps changing.
const ATTEMPTS: u32 = 10;

/// Why tables could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadError {
    /// What was asked for, in words.
    pub what: &'static str,
    /// What the kernel or the socket said.
    pub cause: NetlinkError,
}

impl fmt::Display for ReadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "cannot read {} from the kernel: {}", self.what, self.cause)?;
        match self.cause.errno() {
            Some(Errno::EPERM) => out.write_str("; NET_ADMIN is needed: run as root or grant the capability"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for ReadError {}

/// Reads these tables, whichever of them exist, and what in them could not be read.
pub fn read(kernel: &mut dyn Kernel, wanted: &[TableId]) -> Result<(Program, Vec<DecodeError>), ReadError> {
    again(|| read_once(kernel, wanted))
}

/// Reads until nobody changed anything meanwhile, but not for ever.
fn again<T>(mut once: impl FnMut() -> Result<Option<T>, ReadError>) -> Result<T, ReadError> {
    let mut attempt = 1;
    loop {
        let again = match once() {
            Ok(Some(found)) => return Ok(found),
            // Changed in between.
            Ok(None) => ReadError { what: "the tables", cause: NetlinkError::Interrupted },
            Err(error) if is_passing(&error.cause) => error,
            Err(error) => return Err(error),
        };
        if attempt == ATTEMPTS {
            return Err(again);
        }
        attempt += 1;
    }
}

/// Our tables beside what they should be, without what is the same in both.
#[derive(Debug, Default)]
pub struct Beside {
    /// What the kernel holds: tables, chains, rules, sets, and of elements those that differ. Elements that rules write
    /// are left out.
    pub held: Program,
    /// What it should hold, likewise; nothing if it holds no table at all.
    pub wanted: Program,
    /// What could not be read.
    pub problems: Vec<DecodeError>,
}

/// Reads these tables and compares them on the way with what `render` says they should be: of hundreds of thousands of
/// elements that are right, none is held twice. Tables that cannot become the others where they are come whole, both.
/// `render` is asked again when somebody changes tables meanwhile.
pub fn read_beside(
    kernel: &mut dyn Kernel,
    ours: &[TableId],
    render: &mut dyn FnMut() -> Program,
) -> Result<Beside, ReadError> {
    again(|| read_beside_once(kernel, ours, render))
}

fn read_beside_once(
    kernel: &mut dyn Kernel,
    ours: &[TableId],
    render: &mut dyn FnMut() -> Program,
) -> Result<Option<Beside>, ReadError> {
    let before = kernel.generation().map_err(failed("the generation"))?;
    let mut reader = Reader::default();
    read_frame(kernel, ours, &mut reader)?;
    let mut wanted = Program::default();
    if !reader.so_far().tables.is_empty() {
        wanted = render();
        let is_in_place =
            |(id, old): (&TableId, &Table)| wanted.tables.get(id).is_some_and(|new| can_become(old, new));
        let is_in_place = reader.so_far().tables.iter().all(is_in_place);
        for (table, sets) in names(reader.so_far()) {
            for name in sets {
                let set = wanted.tables.get_mut(&table).and_then(|table| table.sets.get_mut(&name));
                read_elements(kernel, (&table, name), set.filter(|_| is_in_place), &mut reader)?;
            }
        }
    }
    let after = kernel.generation().map_err(failed("the generation"))?;
    let (held, problems) = reader.finish();
    Ok((before == after).then_some(Beside { held, wanted, problems }))
}

/// The elements of one set; beside those that it should have, if it has them already as they would be.
fn read_elements(
    kernel: &mut dyn Kernel,
    (table, name): (&TableId, Name),
    wanted: Option<&mut Set>,
    reader: &mut Reader,
) -> Result<(), ReadError> {
    let query = Query::Elements(table.clone(), name);
    let ours = std::slice::from_ref(table);
    let read = match wanted {
        // What rules write is theirs, and may be a million clients.
        Some(set) if set.spec.dynamic => Ok(()),
        // The two ends of a range may come apart.
        Some(set) if set.spec.ranges() == Ranges::None => {
            kernel.each(&query, &mut |raw| reader.take_beside(raw, set))
        }
        _ => kernel.each(&query, &mut |raw| reader.take(raw, ours)),
    };
    read.map_err(failed("elements"))?;
    reader.settle();
    Ok(())
}

/// Tables, sets, chains and rules, without elements.
fn read_frame(kernel: &mut dyn Kernel, ours: &[TableId], reader: &mut Reader) -> Result<(), ReadError> {
    let mut take = |query: Query, what| {
        kernel.each(&query, &mut |raw| reader.take(raw, ours)).map_err(failed(what))?;
        Ok(names(reader.so_far()))
    };
    let tables = take(Query::Tables, "tables")?;
    for (table, _) in &tables {
        take(Query::Sets(table.clone()), "sets")?;
    }
    take(Query::Chains, "chains")?;
    for (table, _) in &tables {
        take(Query::Rules(table.clone()), "rules")?;
    }
    Ok(())
}

/// Whether the next attempt may go better: others write at the same time, or answers were lost.
fn is_passing(cause: &NetlinkError) -> bool {
    match cause {
        NetlinkError::Interrupted | NetlinkError::Lost => true,
        // A set or table went away after it was listed.
        cause => matches!(cause.errno(), Some(Errno::ENOENT | Errno::EINTR | Errno::EAGAIN | Errno::ENOBUFS)),
    }
}

fn read_once(
    kernel: &mut dyn Kernel,
    wanted: &[TableId],
) -> Result<Option<(Program, Vec<DecodeError>)>, ReadError> {
    let before = kernel.generation().map_err(failed("the generation"))?;
    let mut reader = Reader::default();
    read_frame(kernel, wanted, &mut reader)?;
    for (table, sets) in names(reader.so_far()) {
        for set in sets {
            read_elements(kernel, (&table, set), None, &mut reader)?;
        }
    }
    let after = kernel.generation().map_err(failed("the generation"))?;
    Ok((before == after).then(|| reader.finish()))
}

fn failed(what: &'static str) -> impl Fn(NetlinkError) -> ReadError {
    move |cause| ReadError { what, cause }
}

/// The tables and their sets, to ask for next.
fn names(program: &Program) -> Vec<(TableId, Vec<Name>)> {
    let sets = |table: &Table| table.sets.keys().cloned().collect();
    program.tables.iter().map(|(id, table)| (id.clone(), sets(table))).collect()
}
